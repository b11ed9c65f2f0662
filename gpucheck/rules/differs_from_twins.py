"""A machine of a fleet differs from its twins.

What it means
Several machines are of the same model and equal in all that makes them what they are; this one is not: it
has fewer or other cards, a narrower link, a power supply less, less memory, another BIOS, VBIOS or driver.

How we know
gpucheck fleet report compares machines of one model that agree in cards, power supplies, memory and slots. What
differs is left out of the comparison that finds the twins. For each machine with the odd value at least three
twins must share the usual one; where three machines or more are alike in cards, power supplies, memory, slots or
links, at least twenty, for they may have been built that way.

Why it matters
A card that does not come up and a link that trains at half its width leave no error on the machine itself.
Beside its twins they stand out.

What to do
Run gpucheck probe --from on the file of that host: it tells more of it. If the machine is meant to be
different, nothing is to be done. Else compare it with a twin: seat the card again, look at its riser and its
power leads, load the same BIOS settings, bring firmware and driver to the same version.

When it is wrong
Where machines of one model are bought in two configurations, and there are few of the second, those few are
called odd. Without root neither memory modules, slots nor power supplies are read: such captures are compared
with each other, in less. A machine that is odd in two of these things at once has no twins and is not named.

Sources
https://github.com/leptonai/gpud/issues/591 (operators who want to be told when a GPU disappears)
"""

from __future__ import annotations
