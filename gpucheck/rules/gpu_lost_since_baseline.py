"""A card that the baseline has is gone.

What it means
An earlier probe of this machine, given with --baseline, shows a GPU that is not there now. It says
which card it was, in which slot and at which address, and how it was then.

How we know
Every card of the baseline is looked for: by its UUID where both probes know it, else by its ids, its
VBIOS and its place. A card that is at another place now, or in whose place another card is, has not
been lost: that is reported as a change.

Why it matters
A card that does not come up leaves no line in most reports: the machine looks healthy, and smaller.

What to do
Look for the last messages about its address in the kernel log, seat it again, check its power leads
and its riser. If it was taken out on purpose, make a new baseline.

When it is wrong
Without UUIDs two cards of one kind cannot be told apart: then it is one of them that is gone, and the
place is that which is empty now. Where only NVML was read, the card may be hidden rather than gone:
the finding is then not certain. An excerpt of a listing loses no card.

Sources
https://github.com/leptonai/gpud/issues/591 (operators who want to be told when a GPU disappears)
https://docs.nvidia.com/deploy/nvml-api/ (nvmlDeviceGetUUID: the same in every boot and every slot)
"""
