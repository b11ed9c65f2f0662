"""A power supply has failed, or their redundancy is lost or reduced.

What it means
The server has several power supplies so that one may fail, and now one more failure may switch it off.

How we know
The BMC says that redundancy is lost or degraded, or that a unit which is fitted and has mains has
failed: a sensor in ipmitool sdr, or Redfish. SMBIOS does not count: its status of a unit is often not
kept up to date, and "Unknown" is what many servers say of a unit that works.

Why it matters
The machine still runs, but the watts of the failed unit are missing for the cards, and some servers
slow processors and cards down in this state.

What to do
Find the unit whose lamp is not green, seat it anew, and replace it if that does not help. With two
good units look for a redundancy setting in the BMC, for units of different ratings, and for a load
above what one unit gives.

When it is wrong
Some BMCs keep the state until it is cleared or the BMC restarts. A server that is set to use the sum of
its supplies has no redundancy by choice; its BMC should then not call it lost.

Sources
Intel and others, IPMI 2.0, table 42-2 (redundancy) and 42-3 (power supply) ·
DMTF DSP0268, PowerSubsystem, PowerSupplyRedundancy; Power, Redundancy
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Machine, Psu
from gpucheck.findings import Evidence, Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.rules.psu_unplugged import units
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()

_TOLD_BY = frozenset({"psu-unplugged", "psu-missing"})
"""Findings that say already which unit is not there for the others."""
_MOST_EVENTS = 3


def lacks(machine: Machine) -> Iterator[str]:
    """What the BMC says of redundancy; of a single unit without a second bay there is none to lose."""
    if len(machine.psus or ()) != 1 and (machine.power is None or machine.power.redundancy is None):
        yield "power.redundancy"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per failed unit; one for the machine where the BMC names no unit."""
    failed = [(name, psu) for name, psu in units(machine) if psu.present and psu.failed]
    for name, psu in failed:
        yield _unit_failed(machine, name, psu)
    power = machine.power
    if failed or power is None or power.redundancy != "lost" or any(found.name in _TOLD_BY for found in view.found):
        return
    yield finding(
        "psu-redundancy-lost",
        "warning",
        "machine",
        say("The BMC says that the redundancy of the power supplies is lost or reduced."),
        evidence=(Evidence(source="BMC", text=power.redundancy_text or "Redundancy Lost"), *_events(machine)),
        remedy=(
            say("Look at the lamps of the power supplies; seat a unit anew whose lamp is not green, or replace it."),
            say("With two good units, look into the BMC's log and its power settings for the reason."),
        ),
        next_test=(
            NextTest(
                do=say("Let the cards rest, and read the state again: sudo /usr/bin/ipmitool sdr elist."),
                outcomes=(
                    Reading(seen=say("Fully Redundant"), means=say("The load was above what one unit less can give.")),
                    Reading(seen=say("Still lost"), means=say("A unit, its cord or a setting is the cause.")),
                ),
            ),
        ),
    )


def _unit_failed(machine: Machine, name: str, psu: Psu) -> Finding:
    model = psu.model or psu.part or say("model unknown")
    return finding(
        "psu-redundancy-lost",
        "warning",
        name,
        say("The BMC says that power supply {unit} has failed: it can take over for no other.", unit=name),
        evidence=(
            Evidence(source=say("Power supply record"), text=say("{unit}, {model}: failed", unit=name, model=model)),
            *_events(machine),
        ),
        remedy=(
            say("Take {unit} out, wait a minute, put it back and see whether its lamp turns green.", unit=name),
            say("If it does not, replace it by a unit of the same part number."),
        ),
    )


def _events(machine: Machine) -> tuple[Evidence, ...]:
    """The newest entries of the BMC's log about power supplies."""
    about = [event for event in machine.bmc_events or () if "Power Supply" in event or "Redundancy" in event]
    return tuple(Evidence(source="ipmitool sel", text=event) for event in about[-_MOST_EVENTS:])
