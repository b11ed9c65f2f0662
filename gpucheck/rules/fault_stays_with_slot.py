"""After cards changed places, the fault is where it was.

What it means
A card had a fault at the time of the baseline. Since then it was moved, and has none; the card that is
in its old slot now has a fault, and had none before. So the slot, its riser, cable or power lead, or
the air there is at fault.

How we know
Cards are followed by UUID, or by what else tells them apart, from the baseline to this probe; the
findings of both, on links, errors, heat and the bus, are compared place by place.

Why it matters
The swap is the test that tells a broken card from a broken slot, and its result is easily misread when
bus numbers shift.

What to do
Clean the slot, seat the riser and its cables again or exchange them, try another power lead. The card
needs no replacement.

When it is wrong
It is certain only where both cards are known by UUID, changed places with each other and show the same
fault. A fault that comes and goes can be absent in one probe by chance: probe again under load. A power
lead that was moved with the card belongs to the card in this test.

Sources
https://github.com/ROCm/legacy-rocm-build/issues/1493 (every card in every slot, to find which is at fault)
"""
