"""The training stopped making progress.

What it means
The training process said nothing for too long, or used up the whole time that it was given, and
was ended.

How we know
It reports every phase and every step. After the first step, silence of 60 s (or of --timeout, if
that is less) ends it. Before that, only --timeout does, since the first use of a card may compile its
kernels for minutes; but once each card has run alone, the first step of all may take two fifths of
--timeout. With the rest each card alone, pairs and all are tried, and all once more with
NCCL_P2P_DISABLE=1: what that names takes the place of this finding (pair-hangs, peer-access-hangs).
With --deep it also names a card whose memory was filled and never read back.

Why it matters
A collective operation that never returns keeps every card at 100 % utilisation and does nothing.

What to do
The message names the device or the step. Each device runs by itself first: if that went well and
the training hangs, it is the way between the cards; set NCCL_P2P_DISABLE=1 and compare, then look
at IOMMU and ACS. If one device hangs alone, read the kernel log for that address.

When it is wrong
Cards newer than the TensorFlow package compile every kernel at the first start. Give a larger
--timeout once; the second start is fast.

Sources
https://github.com/tensorflow/tensorflow/issues/94650 (collectives start, no step is finished)
https://github.com/tensorflow/tensorflow/issues/22463 (only certain pairs of cards hang)
"""
