"""A power supply is fitted but has no mains.

What it means
The unit is in its bay and gives nothing: no cord, a switched-off socket or a tripped breaker.

How we know
The unit's record says present and not plugged.

Why it matters
Redundancy is lost, and only the other units' watts can be used. Some servers then slow the
processors or the cards down.

What to do
Plug its cord in, on a second circuit where there is one.

When it is wrong
A unit may be left without mains on purpose. Some firmware sets the flag wrong; the lamp on the unit
tells.

Sources
DMTF DSP0134, System Power Supply (type 39), Power Supply Characteristics
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Machine, Psu
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.rules import View
from gpucheck.text import say

NEEDS: tuple[str, ...] = ("psus",)


def lacks(machine: Machine) -> Iterator[str]:
    """Units that do not say whether they have mains; no record at all is not "no unit"."""
    if machine.psus == ():
        yield "psus"
    for name, psu in units(machine):
        if psu.present is None or (psu.present and psu.plugged is None):
            yield f"psus.{name}.plugged"


def units(machine: Machine) -> list[tuple[str, Psu]]:
    """Every unit with what to call it: its location if no other has the same, else its place among
    the records, from 1."""
    psus = machine.psus or ()
    locations = [psu.location for psu in psus]
    return [
        (psu.location if psu.location and locations.count(psu.location) == 1 else say("PSU {n}", n=number), psu)
        for number, psu in enumerate(psus, 1)
    ]


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per unit."""
    for name, psu in units(machine):
        if psu.present and psu.plugged is False:
            yield finding(
                "psu-unplugged",
                "warning",
                name,
                say("Power supply {unit} is fitted but has no mains.", unit=name),
                evidence=(
                    Evidence(
                        source=say("Power supply record"),
                        text=say(
                            "{unit}, {model}: present, not plugged",
                            unit=name,
                            model=psu.model or psu.part or say("model unknown"),
                        ),
                    ),
                ),
                remedy=(
                    say("Plug the cord of {unit} in and see that its lamp lights.", unit=name),
                    say("If the lamp stays dark, try the cord and the outlet of a unit that works."),
                ),
            )
