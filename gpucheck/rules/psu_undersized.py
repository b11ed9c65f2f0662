"""Cards and processors may draw more than the power supplies give.

What it means
The power limits of the cards and the TDP of the processors add up to more watts than the power
supplies that are fitted and have mains are rated for.

How we know
NVML tells the limit that is in force for each card, the BMC the TDP of the processors, and SMBIOS, the
BMC's inventory or Redfish the rating of each supply. What is not known is not counted, and fans,
memory, disks and the board itself never are: the sum is the least that a full load can ask for.

Why it matters
Under full load the supplies switch off, and the machine restarts with nothing in its log; or the BMC
slows cards and processors down first. Cards that start a step together draw peaks far above their
limit for a moment, so that trouble begins before the sums are equal.

What to do
Fit larger supplies, or a second one where the server can share the load, all of one part number. Until
then give the cards a lower limit with nvidia-smi -pl.

When it is wrong
Cards may be fed by a supply of their own that the firmware does not list. A limit is what a card may
draw, not what it does draw: under a light load nothing happens. That the sum is smaller proves nothing,
for sockets that share a cable and single rails of a supply have limits of their own.

Sources
NVIDIA, NVML API Reference Guide, nvmlDeviceGetEnforcedPowerLimit ·
DMTF DSP0134, System Power Supply (type 39), Max Power Capacity ·
DMTF DSP0268, Processor, TDPWatts
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import CpuSocket, Gpu, Machine, Psu
from gpucheck.findings import Evidence, Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.rules._shared import label, pci_source
from gpucheck.rules.psu_unplugged import units
from gpucheck.text import say

NEEDS: tuple[str, ...] = ("psus", "gpus")


def lacks(machine: Machine) -> Iterator[str]:
    """Ratings of supplies, and limits of cards, that were not read."""
    if not _feeding(machine):
        yield "psus"
    for name, psu in _feeding(machine):
        if psu.watts is None:
            yield f"psus.{name}.watts"
    for gpu in machine.gpus or ():
        if _limit(gpu) is None:
            yield f"gpus.{gpu.address}.power_limit_watts"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding for the machine, where what is known of the load exceeds the ratings of all supplies."""
    supplies = _feeding(machine)
    ratings = [psu.watts for _, psu in supplies if psu.watts is not None]
    cards = [(gpu, limit) for gpu in machine.gpus or () if (limit := _limit(gpu)) is not None]
    cpus = [(cpu, cpu.tdp_watts) for cpu in machine.cpu_sockets or () if cpu.populated and cpu.tdp_watts is not None]
    load = sum(limit for _, limit in cards) + sum(tdp for _, tdp in cpus)
    if not supplies or len(ratings) < len(supplies) or not cards or load <= sum(ratings):
        return
    fields = {"load": f"{load:,.0f}", "usable": f"{sum(ratings):,}"}
    if cpus:
        message = say(
            "The cards and processors may draw {load} W together; the power supplies give {usable} W.", **fields
        )
    else:
        message = say("The cards alone may draw {load} W together; the power supplies give {usable} W.", **fields)
    yield finding(
        "psu-undersized",
        "warning",
        "machine",
        message,
        evidence=(
            *(_card(gpu, limit) for gpu, limit in cards),
            *(_cpu(cpu, tdp) for cpu, tdp in cpus),
            *(_supply(name, psu) for name, psu in supplies),
        ),
        remedy=(
            say("Fit larger power supplies of one part number, or a further one where the server shares the load."),
            say("Until then lower the limit of each card: sudo nvidia-smi -pl WATTS."),
        ),
        next_test=(
            NextTest(
                do=say("Lower the limits until the sum fits, and run the load that made the trouble."),
                outcomes=(
                    Reading(seen=say("It runs through"), means=say("The power supplies were overloaded.")),
                    Reading(seen=say("It fails all the same"), means=say("Look for heat, cables or a card instead.")),
                ),
            ),
        ),
        confidence="likely",
    )


def _feeding(machine: Machine) -> list[tuple[str, Psu]]:
    """Supplies that are fitted and not known to be without mains or failed."""
    return [(name, psu) for name, psu in units(machine) if psu.present and psu.plugged is not False and not psu.failed]


def _limit(gpu: Gpu) -> float | None:
    """Watts that the card may draw now."""
    seen = gpu.nvml
    if seen is None:
        return gpu.report.power_cap_watts if gpu.report is not None else None
    return seen.power_limit_watts if seen.power_limit_watts is not None else seen.power_default_limit_watts


def _card(gpu: Gpu, limit: float) -> Evidence:
    text = say("{card}: power limit {watts} W", card=label(gpu), watts=f"{limit:.0f}")
    return Evidence(source="NVML" if gpu.nvml else pci_source(gpu.address), text=text)


def _cpu(cpu: CpuSocket, tdp: int) -> Evidence:
    text = say("{socket}: {watts} W TDP", socket=cpu.designation, watts=tdp)
    return Evidence(source=say("Redfish processor"), text=text)


def _supply(name: str, psu: Psu) -> Evidence:
    text = say("{unit}, {model}: {watts} W", unit=name, model=psu.model or say("model unknown"), watts=psu.watts)
    return Evidence(source=say("Power supply record"), text=text)
