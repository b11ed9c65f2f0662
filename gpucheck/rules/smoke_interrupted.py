"""The last training never came to its end.

What it means
The file that a training keeps has no last line. Either the machine went down, or gpucheck itself was
ended from outside.

How we know
Before each stage a line is forced to the disk, with the device that is at work. The first line has the
kernel's boot id: if it is another one now, the machine was down in between. The file lies in
$XDG_STATE_HOME/gpucheck (by default ~/.local/state/gpucheck; of root /var/lib/gpucheck), one for each
host.

Why it matters
A machine that loses power writes no log: the stage is then all there is. One that goes down only when
several cards work together points at its power supplies: their protection trips on the peaks of cards
that start each step at the same moment. Each card alone, and a stress test that is not in step, pass.

What to do
Read the end of the last boot's journal and the BMC's event log. If both end abruptly, limit the power
of every card (nvidia-smi -pl) and train again: if it holds, count the supplies without the redundant
one, give each card cables of its own, or fit larger supplies. If it goes down with one card too, look
at that card, its slot and its cooling.

When it is wrong
Somebody may have rebooted the machine while the training ran; that is seen in the journal too. In a
container the file may be gone with it.

Sources
https://github.com/tensorflow/tensorflow/issues/8858 (reboots only when three or four cards train together)
"""
