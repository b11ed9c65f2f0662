"""A card runs slower because it is too hot.

What it means
The driver lowers the clocks when the card reaches its working limit (software slowdown); at a higher
limit the card itself halves them or more (hardware slowdown), and next it switches itself off.

How we know
NVML gives the reason for which the clocks are held back at the moment it was asked.

Why it matters
The slowest card sets the pace of a training over all of them, and a card at its limit is the one
that falls off the bus.

What to do
Let air through: passive cards (P40, V100, A100) have no fan and need that of the server, with its
shroud, blanks in empty slots and fan profile. Clean the heat sink. Take the space of a neighbour away
that blows hot air into the card.

When it is wrong
It is one look. A software slowdown that comes and goes under full load costs little; a hot room or a
test bench without a lid explains it as well.

Sources
https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlClocksEventReasons.html (meaning of the reasons)
https://docs.nvidia.com/datacenter/dcgm/3.1/dcgm-api/dcgm-api-field-constants.html (factor of the slowdown)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Machine
from gpucheck.findings import Finding, finding
from gpucheck.rules import View
from gpucheck.rules._nvml import CLOCK_REASONS, read_cards, reasons_evidence, unread
from gpucheck.rules._shared import label
from gpucheck.text import say

NEEDS: tuple[str, ...] = ("gpus", "nvml")


def lacks(machine: Machine) -> Iterator[str]:
    """Cards that do not say why their clocks are where they are."""
    return unread(machine, {"clock_reasons": CLOCK_REASONS})


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding for each hot card: an error where the hardware had to step in."""
    for gpu, seen in read_cards(machine):
        reasons = seen.clock_reasons or ()
        if "hw-thermal" in reasons:
            message = say("{card} is too hot: the hardware has cut its clocks.", card=label(gpu))
        elif "sw-thermal" in reasons:
            message = say("{card} is hot: the driver holds its clocks back.", card=label(gpu))
        else:
            continue
        yield finding(
            "thermal-slowdown",
            "error" if "hw-thermal" in reasons else "warning",
            gpu.address,
            message,
            evidence=reasons_evidence(seen),
            remedy=cooling_remedy(),
        )


def cooling_remedy() -> tuple[str, ...]:
    """What helps a hot card."""
    return (
        say("See that air goes through the card: shroud, blanks in empty slots, nothing in front of it."),
        say("Clean its heat sink, and the filters and fans of the server."),
        say("Raise the fan speed in the BMC or the firmware setup; a passive card needs the server's fans."),
    )
