"""The machine differs from its baseline in something that matters.

What it means
An earlier probe of this machine, given with --baseline, shows it otherwise. A warning is a change for
the worse: a narrower link in the same slot, less memory, a power supply that is gone or has no mains,
a processor that is gone, a card that was exchanged. Information is the rest: cards that were moved or
added, other versions of firmware, driver and kernel.

How we know
Both probes are compared fact by fact, by what names them: cards as gpu-lost-since-baseline follows
them, sockets by designation, power supplies by location. What one of them has not read is not
compared.

Why it matters
A fault that began after a change is mostly due to it.

What to do
Go through the list from the time when the machine still worked. When all of it was intended, make a
new baseline.

When it is wrong
Memory is what the kernel counts, without what it keeps for itself: less than 3 % or 1 GiB is passed
over. Where slots are not known, an address that changed does not tell that a card was moved: bus
numbers shift when something else is plugged in. What another finding says with more knowledge (a link
below what card and slot allow, an empty bay, an empty socket) is not repeated here.

Sources
https://docs.nvidia.com/deploy/nvml-api/ (UUID, VBIOS version, memory)
DMTF DSP0134 (processor information, system power supply)
"""
