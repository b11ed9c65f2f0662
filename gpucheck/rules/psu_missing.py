"""A power supply bay is empty.

What it means
The server has a bay for a power supply and no unit in it.

How we know
The bay's record says not present, while at least one other unit is present.

Why it matters
A server with several bays is often sold with one unit. Fewer units mean fewer watts for cards, and
no redundancy.

What to do
Add up what the cards and processors need (gpucheck advise does) and fit units of the same part
number as those that are there.

When it is wrong
Many servers run well with an empty bay: it is a warning, never an error. Records that name neither
place nor model are placeholders of the firmware and are not reported.

Sources
DMTF DSP0134, System Power Supply (type 39), Power Supply Characteristics
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Machine
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.rules import View
from gpucheck.rules.psu_unplugged import units
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ("psus",)


def lacks(machine: Machine) -> Iterator[str]:
    """Bays that say neither; a machine that runs has a unit, so none present is no answer either."""
    if machine.psus is not None and not any(psu.present for psu in machine.psus):
        yield "psus"
    for name, psu in units(machine):
        if psu.present is None:
            yield f"psus.{name}.present"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding for all empty bays."""
    fitted = [name for name, psu in units(machine) if psu.present]
    empty = [name for name, psu in units(machine) if psu.present is False and (psu.location or psu.model)]
    if not fitted or not empty:
        return
    yield finding(
        "psu-missing",
        "warning",
        empty[0] if len(empty) == 1 else "machine",
        say(
            plural(
                len(empty),
                "{fitted} of {bays} power supplies fitted: the bay {empty} is empty.",
                "{fitted} of {bays} power supplies fitted: the bays {empty} are empty.",
            ),
            fitted=len(fitted),
            bays=len(fitted) + len(empty),
            empty=", ".join(empty),
        ),
        evidence=tuple(
            Evidence(source=say("Power supply record"), text=say("{unit}: not present", unit=name)) for name in empty
        ),
        remedy=(
            say("If the cards need more watts or redundancy, fit units of the part number of those that are there."),
        ),
    )
