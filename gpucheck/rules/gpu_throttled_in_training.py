"""A card was slowed down while it trained.

What it means
The card worked at lower clocks than it could, because the server braked it, because it got hot, or
because its hardware stepped in for a reason that it does not tell.

How we know
NVML is asked about ten times a second while the training runs. Of the looks at which the card was at
least half busy, the share with a reason for low clocks counts: power brake and a hardware slowdown for
heat from 5 %, the driver's slowdown for heat from 20 %, a hardware slowdown without a reason from 30 %.
The finding shows the lowest and highest clock, the temperature and the power of those looks.

Why it matters
The slowest card sets the pace of all. A card that gets hot within seconds falls off the bus within
hours, and a braked card crawls without any error message.

What to do
Heat: see that air goes through the card, clean it, raise the fan speed. Brake: look at the power
supplies, the BMC's event log and the card's power leads. Then train again.

When it is wrong
A cap at the power limit is not told: that is what the limit is for. A training of a few seconds does
not heat a card through, so that silence says nothing about hours of work. With fewer than three looks
under load nothing is told.

Sources
https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlClocksEventReasons.html (meaning of the reasons)
https://github.com/l4rz/reverse-engineering-dell-idrac-to-get-rid-of-gpu-throttling (brake by the BMC)
"""
