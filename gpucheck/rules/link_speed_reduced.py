"""A link runs slower under load than card and slot allow.

What it means
Card and slot can both do a higher rate per lane than the one that was in use while the card worked.

How we know
Only a card that works is judged: NVIDIA's in its fastest performance state and at least half busy,
AMD's at least half busy. The rate is compared with the smaller of what card and port advertise.
Where both the kernel and NVML were asked, both must have seen the lower rate. Where the port was not
read nothing is claimed: the maximum that NVML gives is that of card and system together, NVIDIA says,
but dumps show the card's own. Only where it is lower than what the card advertises is it the slot's.

Why it matters
Each generation less halves the rate between host and card, as half of the lanes would.

What to do
Look at the rate several times while the card works. If it stays low, look in the firmware setup
whether the slot is set to an older generation, and try without the riser: a bad one trains at a
lower rate than it should.

When it is wrong
A link falls to 2.5 GT/s when its card is idle, to save power, and that is never reported. Some links
also change their rate all the time under load, so that one look proves little: hence the finding is
possible, or likely where two looks agree.

Sources
https://github.com/scitix/sichek/pull/49 (an idle link is no fault)
https://github.com/local-inference-lab/rtx6kpro/pull/88 (links that change all the time; one that stayed slow)
https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html (maximum of device and system)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Gpu, Machine
from gpucheck.findings import Confidence, Evidence, Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.rules._links import End, end_of, is_virtual
from gpucheck.rules._nvml import BUSY_PERCENT
from gpucheck.rules._shared import label, pci_source
from gpucheck.text import say

NEEDS: tuple[str, ...] = ("gpus",)


def _works(gpu: Gpu) -> bool | None:
    """Whether the card was under load; None where nothing tells."""
    if gpu.nvml is not None:
        state, busy = gpu.nvml.performance_state, gpu.nvml.utilization_percent
        return None if state is None or busy is None else state == 0 and busy >= BUSY_PERCENT
    if gpu.report is not None and gpu.report.busy_percent is not None:
        return gpu.report.busy_percent >= BUSY_PERCENT
    return None


def _looks(end: End, gpu: Gpu) -> list[tuple[str, float]]:
    """Where a rate was seen, and which."""
    seen = [(pci_source(end.address), end.card.speed_gts)]
    if gpu.nvml is not None and end.address == gpu.address:
        seen.append(("NVML", gpu.nvml.link.speed_gts))
    return [(source, speed) for source, speed in seen if speed is not None]


def _possible(end: End, gpu: Gpu) -> float | None:
    """The highest rate of both ends; None where one of them was not read."""
    card = end.card.max_speed_gts
    port = end.port.max_speed_gts if end.port is not None else None
    together = gpu.nvml.link.max_speed_gts if gpu.nvml is not None and end.address == gpu.address else None
    if card is None:
        return None
    if port is None and together is not None and together < card:
        return together
    return None if port is None else min(port, card)


def lacks(machine: Machine) -> Iterator[str]:
    """Rates that were not read, and the load of cards whose link is slow now."""
    for gpu in machine.gpus or ():
        if not gpu.on_pci or gpu.config_dead:
            continue
        end = end_of(machine, gpu)
        looks, possible = _looks(end, gpu), _possible(end, gpu)
        card, works = end.card.max_speed_gts, _works(gpu)
        if not looks or card is None or is_virtual(machine):
            yield f"gpus.{gpu.address}.link.speed_gts"
        elif works is False or any(speed >= (possible or card) for _, speed in looks):
            continue
        elif possible is None:
            yield f"gpus.{gpu.address}.port_link"
        elif works is None:
            yield f"gpus.{gpu.address}.utilization_percent"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per link."""
    if is_virtual(machine):
        return
    seen: set[str] = set()
    for gpu in machine.gpus or ():
        end = end_of(machine, gpu)
        looks, possible = _looks(end, gpu), _possible(end, gpu)
        if not gpu.on_pci or gpu.config_dead or end.address in seen or not _works(gpu):
            continue
        seen.add(end.address)
        if possible is None or not looks or any(speed >= possible for _, speed in looks):
            continue
        confidence: Confidence = "likely" if len(looks) > 1 else "possible"
        yield finding(
            "link-speed-reduced",
            "warning",
            gpu.address,
            say(
                "{card} works with {speed} GT/s per lane where card and slot allow {possible}.",
                card=label(gpu),
                speed=f"{max(speed for _, speed in looks):g}",
                possible=f"{possible:g}",
            ),
            evidence=tuple(
                Evidence(source=source, text=say("Link speed {speed} GT/s under load", speed=f"{speed:g}"))
                for source, speed in looks
            ),
            remedy=(
                say("Look in the firmware setup whether the slot is set to an older PCIe generation."),
                say("Try the card without the riser or extension cable."),
                say("Look whether a setting or script holds the link at a low rate (power saving, setpci)."),
            ),
            next_test=(
                NextTest(
                    do=say(
                        "Look ten times while the card works: nvidia-smi "
                        "--query-gpu=pci.bus_id,pstate,pcie.link.gen.current,pcie.link.gen.max --format=csv -l 1"
                    )
                    if gpu.vendor == "nvidia"
                    else say(
                        "Look ten times while the card works: cat /sys/bus/pci/devices/{address}/current_link_speed",
                        address=end.address,
                    ),
                    outcomes=(
                        Reading(seen=say("The rate rises at times"), means=say("Power saving: the link is sound.")),
                        Reading(seen=say("It never rises"), means=say("Setting, riser, slot or card hold it low.")),
                    ),
                ),
            ),
            confidence=confidence,
        )
