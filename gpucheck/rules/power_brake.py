"""A card is held at low clocks because of power.

What it means
A line from the server tells the card to halve its clocks or more (power brake). It is meant for a
power supply in trouble; some servers hold it down for cards that they do not know. Other slowdowns by
the hardware come from a missing power lead or from peaks, and a software cap from the power limit.

How we know
NVML gives the reason for which the clocks are held back, with clock, load and power at that moment. The
brake is reported whenever it is on: an error while a loaded card runs at half its clock or less, else a
warning. A slowdown without a reason counts only on a loaded card that slow, and a power cap only where
a loaded card draws far less than its limit.

Why it matters
The card crawls, often at a few hundred MHz, without any error message, and a training over all cards
waits for it.

What to do
Look at the power supplies and the BMC's event log, then at the card's power leads. On a Dell compare
the card's subsystem id with those of the cards that Dell sells for this model: iDRAC was found to brake
a card that is not in its power table.

When it is wrong
It is one look: a brake of a moment, when a supply is pulled or takes over, is harmless. An idle card
with low clocks is right so, and a software cap near the limit is what the limit is for.

Sources
https://github.com/l4rz/reverse-engineering-dell-idrac-to-get-rid-of-gpu-throttling (brake by the BMC)
https://github.com/l4rz/reverse-engineering-dell-idrac-to-get-rid-of-gpu-throttling/issues/3 (cap, unsettled)
https://docs.nvidia.com/datacenter/dcgm/3.1/dcgm-api/dcgm-api-field-constants.html (meaning of the reasons)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Gpu, Machine, NvmlGpu
from gpucheck.findings import Evidence, Finding, NextTest, Reading, Severity, finding
from gpucheck.rules import View
from gpucheck.rules._nvml import CLOCK_REASONS, is_loaded, is_slow, read_cards, reasons_evidence, unread
from gpucheck.rules._shared import label, pci_source
from gpucheck.text import say

NEEDS: tuple[str, ...] = ("gpus", "nvml")

FAR_BELOW = 0.7
"""Share of its limit below which a power cap does not come from the limit."""


def lacks(machine: Machine) -> Iterator[str]:
    """Cards that do not say why their clocks are where they are."""
    return unread(machine, {"clock_reasons": CLOCK_REASONS})


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """At most one finding for each card. Heat is another rule's."""
    for gpu, seen in read_cards(machine):
        reasons = seen.clock_reasons or ()
        if "hw-power-brake" in reasons:
            yield _braked(machine, gpu, seen)
        elif "hw-thermal" in reasons or "sw-thermal" in reasons or not is_loaded(seen):
            continue
        elif "hw-slowdown" in reasons and is_slow(seen):
            yield _slowed(machine, gpu, seen)
        elif "sw-power-cap" in reasons and _is_far_below(seen):
            yield _capped(machine, gpu, seen)


def _is_far_below(seen: NvmlGpu) -> bool:
    draw, limit = seen.power_watts, seen.power_limit_watts
    return draw is not None and limit is not None and draw < FAR_BELOW * limit


def _braked(machine: Machine, gpu: Gpu, seen: NvmlGpu) -> Finding:
    crawls = is_loaded(seen) and is_slow(seen)
    if crawls:
        template = "The server brakes {card} (HW power brake): it works at {now} of {most} MHz."
        message = say(template, card=label(gpu), now=seen.sm_clock_mhz, most=seen.sm_max_clock_mhz)
    else:
        message = say("The server brakes {card}: its HW power brake is on.", card=label(gpu))
    table = NextTest(
        do=say("Compare the card's subsystem id with the cards that the maker sells for this server."),
        outcomes=(
            Reading(
                seen=say("It is another"),
                means=say("The BMC brakes a card that is not in its power table: another variant of the card, or "
                          "another server, helps."),
            ),
            Reading(seen=say("It is one of them"), means=say("Look at supplies, backplane and power leads.")),
        ),
    )  # fmt: skip
    remedy = power_remedy()
    if _is_dell(machine):
        remedy = (
            say("iDRAC was found to brake a card that is missing from its power table: compare the card's subsystem id "
                "({id}) with the variant that Dell supports in this model.", id=gpu.subsystem_id or say("not read")),
            *remedy,
        )  # fmt: skip
    return _found(machine, gpu, seen, message, remedy, (_supplies(), table), "error" if crawls else "warning")


def power_remedy() -> tuple[str, ...]:
    """What helps a card that is held back because of power."""
    return (
        say("Look in the BMC's event log for a power supply that failed or lost its mains, and mend that first."),
        say("Check that every power lead of the card is plugged in, at the card and at the board or backplane."),
    )


def _slowed(machine: Machine, gpu: Gpu, seen: NvmlGpu) -> Finding:
    message = say(
        "{card} works at {now} of {most} MHz: the hardware slows it down (HW slowdown), and does not say why.",
        card=label(gpu),
        now=seen.sm_clock_mhz,
        most=seen.sm_max_clock_mhz,
    )
    remedy = (
        say("Ask again under load: the reason is set for a moment at each change of clocks as well."),
        say("Check the card's power leads, then the power supplies and their mains."),
        say("Look at its temperature under load."),
    )
    return _found(machine, gpu, seen, message, remedy, (_supplies(), _lead()))


def _capped(machine: Machine, gpu: Gpu, seen: NvmlGpu) -> Finding:
    message = say(
        "The driver caps the power of {card} (SW power cap), which draws {now:g} W of {limit:g} W allowed.",
        card=label(gpu),
        now=seen.power_watts,
        limit=seen.power_limit_watts,
    )
    remedy = (
        say("Ask again under steady load: power is averaged over a second, the reason is of this moment."),
        say("Compare its limits with those of its twins: nvidia-smi -q -d POWER"),
        say("Check its power leads, then the power supplies, then its temperature."),
    )
    return _found(machine, gpu, seen, message, remedy, (_lead(), _supplies()))


def _found(
    machine: Machine,
    gpu: Gpu,
    seen: NvmlGpu,
    message: str,
    remedy: tuple[str, ...],
    next_test: tuple[NextTest, ...],
    severity: Severity = "warning",
) -> Finding:
    """One look at a moment: every cause is only possible."""
    return finding(
        "power-brake",
        severity,
        gpu.address,
        message,
        evidence=_evidence(machine, gpu, seen),
        remedy=remedy,
        next_test=next_test,
        confidence="possible",
    )


def _is_dell(machine: Machine) -> bool:
    """The firmware names Dell as the maker."""
    vendor = machine.system.vendor if machine.system is not None else None
    return vendor is not None and vendor.casefold().startswith("dell")


def _evidence(machine: Machine, gpu: Gpu, seen: NvmlGpu) -> tuple[Evidence, ...]:
    found = [*reasons_evidence(seen)]
    if gpu.subsystem_id is not None:
        text = say("{card}, subsystem {subsystem}", card=gpu.pci_id, subsystem=gpu.subsystem_id)
        found.append(Evidence(source=pci_source(gpu.address), text=text))
    for psu in machine.psus or ():
        if psu.present is False or psu.plugged is False:
            text = (
                say("{unit}: absent", unit=psu.location or say("unit"))
                if psu.present is False
                else say("{unit}: no mains", unit=psu.location or say("unit"))
            )
            found.append(Evidence(source=say("Power supply record"), text=text))
    return tuple(found)


def _supplies() -> NextTest:
    return NextTest(
        do=say("Look at the power supplies: lamps, mains, the BMC's event log and its redundancy state."),
        outcomes=(
            Reading(
                seen=say("One is absent, dark or reported as failed"), means=say("The server saves power for that.")
            ),
            Reading(seen=say("All are in order"), means=say("The card, its leads or the BMC's list of cards.")),
        ),
    )


def _lead() -> NextTest:
    return NextTest(
        do=say("Swap the card's power lead, then the card, with those of a twin that runs at full clock."),
        outcomes=(
            Reading(seen=say("The fault moves with the lead"), means=say("The lead or its socket on the board.")),
            Reading(seen=say("The fault moves with the card"), means=say("The card.")),
            Reading(seen=say("It stays"), means=say("The server: supplies, backplane, or its BMC.")),
        ),
    )
