"""After a card was moved, its fault is in the new place.

What it means
A card had a fault at the time of the baseline. Since then it was moved to another slot and has a fault
there, and the card that is in its old slot has none. So the card is at fault.

How we know
Cards are followed by UUID, or by what else tells them apart, from the baseline to this probe; the
findings of both, on links, errors, heat and the bus, are compared place by place.

Why it matters
The swap is the test that tells a broken card from a broken slot: this is its result, with what it
rests on, as a vendor wants to see it before it replaces a card.

What to do
Try another power lead if the card kept its own; clean contacts and heat sink; have the card repaired or
replaced.

When it is wrong
It is certain only where both cards are known by UUID, changed places with each other and show the same
fault; possible only while nothing is in the old slot to show that the slot works. A card that the driver
rejects tells no UUID: which one it is then follows from the others.

Sources
https://github.com/ROCm/legacy-rocm-build/issues/1493 (every card in every slot, to find which is at fault)
"""
