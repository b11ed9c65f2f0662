"""One card, or its slot, is the odd one among healthy twins.

What it means
Equal cards in one machine should fare alike: same driver, same firmware, same settings. Where all
but one work, what they share is not the cause, and the card, its slot, its riser or its power lead
is. Which of these, only a swap can tell.

How we know
Cards with the same PCI id are compared. One is called unsupported by the very driver that drives its
twins; or has no driver, is not in NVML or has no address although the root bus has room for it,
while at least two twins work; or every Xid that the logs keep is its own. Or cards are missing, and
slots that the firmware calls occupied answer nothing while the firmware is right about the slots of
every card that is seen.

Why it matters
The driver's own words mislead here: "not supported by this release" from a defective card makes
people change drivers, and a silent slot makes them change cards.

What to do
Swap the card with a twin. The fault moves with the card: the card is defective. It stays with the
slot: the slot, its riser, cable or power lead.

When it is wrong
A batch system or a container may grant a process all cards but one: look from the host. Somebody may
have unbound the driver on purpose. Firmware may call a slot occupied that holds no card, so that is
a warning and never proof.

Sources
https://github.com/NVIDIA/aicr/issues/1858 (one of eight equal cards "not supported": it was defective)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck import topology
from gpucheck.facts import Gpu, Machine, NvmlGpu, Slot
from gpucheck.findings import Evidence, Finding, NextTest, Reading, Severity, finding
from gpucheck.rules import View
from gpucheck.rules._addresses import FOUR_GIB, lost, on_the_same_root, room, wanted
from gpucheck.rules._shared import (
    addresses_in,
    driver_evidence,
    label,
    labels,
    log_evidence,
    log_lines,
    nvidia_on_pci,
)
from gpucheck.rules.xid_reported import points_to_the_card, reports
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ("gpus",)

NOT_SUPPORTED = "is not supported by"
FELL = "gpu-fell-off-bus"
SILENT = frozenset({"cpu-socket-empty", "link-down"})
"""Why a slot is silent, told already."""
LEAST_TWINS = 2
"""Without a word from the driver, one working twin is no majority."""
GPU_LANES = 16


def lacks(machine: Machine) -> Iterator[str]:
    """NVML, which says which twins work, where there are twins."""
    ids = [gpu.pci_id for gpu in nvidia_on_pci(machine) if gpu.pci_id is not None]
    if len(ids) > len(set(ids)) and (machine.nvml is None or machine.nvml.gpus is None):
        yield "nvml.gpus"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per odd card, one per occupied slot in which nothing answers."""
    fallen = {f.subject for f in view.found if f.name == FELL}
    for gpu in nvidia_on_pci(machine):
        if gpu.nvml is None and not gpu.config_dead and gpu.address not in fallen:
            yield from _odd_card(machine, view, gpu)
    yield from _odd_by_xids(machine, fallen)
    yield from _silent_slots(machine, view)


# --- cards --------------------------------------------------------------------------------------


def _odd_card(machine: Machine, view: View, gpu: Gpu) -> Iterator[Finding]:
    equal = [other for other in nvidia_on_pci(machine) if other.pci_id == gpu.pci_id and other.address != gpu.address]
    twins = [other for other in equal if other.nvml is not None and _answers(other.nvml)]
    if gpu.pci_id is None or not twins:
        return
    line = _called_unsupported(machine, gpu)
    if line is not None and machine.kernel_log is not None:
        message = say(
            "The driver calls {card} unsupported, but it drives {twins} of the same kind: the card or its slot is at "
            "fault, not the driver.",
            card=label(gpu),
            twins=labels(twins),
        )
        yield _finding(gpu, twins, message, (log_evidence(machine.kernel_log, line),), "error")
    elif len(equal) == len(twins) >= LEAST_TWINS:
        difference = _how_it_differs(machine, view, gpu, len(twins))
        if difference is not None:
            yield _finding(gpu, twins, difference, (), "warning")


def _odd_by_xids(machine: Machine, fallen: set[str]) -> Iterator[Finding]:
    """A card that works, and to which every Xid of this boot and earlier ones belongs, none to any of its twins."""
    log = machine.kernel_log
    told = [] if log is None else [(report, True) for report in reports(log.lines)]
    told += [] if log is None else [(report, False) for report in reports(log.earlier)]
    named = {report.address for report, _ in told}
    for gpu in nvidia_on_pci(machine):
        equal = [o for o in nvidia_on_pci(machine) if o.pci_id == gpu.pci_id and o.address != gpu.address]
        mine = [report for report, _ in told if report.address == gpu.address and points_to_the_card(report.number)]
        quiet = len(equal) >= LEAST_TWINS and named.isdisjoint(other.address for other in equal)
        if not mine or not quiet or gpu.pci_id is None or gpu.nvml is None or gpu.address in fallen or log is None:
            continue
        now = any(current and report.address == gpu.address for report, current in told)
        source = log_evidence(log, mine[0].line)
        if not now:
            source = Evidence(source=say("kernel log of an earlier boot"), text=mine[0].line)
        count = sum(report.address == gpu.address for report, _ in told)
        message = say(
            plural(
                count,
                "Of its kind only {card} has an Xid in the kernel log (one line); {twins} equal cards have none.",
                "Of its kind only {card} has Xids in the kernel log ({count} lines); {twins} equal cards have none.",
            ),
            card=label(gpu),
            count=count,
            twins=len(equal),
        )
        yield _finding(gpu, equal, message, (source,), "warning")


def _called_unsupported(machine: Machine, gpu: Gpu) -> str | None:
    for _, line in log_lines(machine, NOT_SUPPORTED):
        if any(address[:-2] == gpu.address[:-2] for address in addresses_in(line)):
            return line
    return None


def _answers(seen: NvmlGpu) -> bool:
    """What a card does not support, or a user may not ask, says nothing of its health."""
    return all(code in (3, 4, 13) for code in seen.errors.values())


def _how_it_differs(machine: Machine, view: View, gpu: Gpu, twins: int) -> str | None:
    """What sets the card apart from all its twins, which work; None where something common explains it."""
    fields = {"card": label(gpu), "count": twins}
    cards = lost(machine, view)
    own = next((card for card in cards if card.address == gpu.address), None)
    if own is not None:
        given = room(machine, gpu.address)
        need = wanted(on_the_same_root(machine, gpu.address), cards)
        # The card that comes last finds no room: that is bar-unassigned, unless there is room.
        if len(cards) > 1 or given.above_4g is None or not FOUR_GIB <= need < given.above_4g:
            return None
        return say(
            "{card} has no address although its root bus has room, and {count} equal cards have theirs.", **fields
        )
    if gpu.driver_read and gpu.driver is None:
        return say("{card} is the only one of its kind without a driver; {count} equal cards have theirs.", **fields)
    files, listed = view.counts.device_files, view.counts.nvml
    # As many device files as NVML lists: then it is hidden, not lost.
    if gpu.driver == "nvidia" and files is not None and listed is not None and files > listed:
        return say("{card} is the only one of its kind that NVML does not list; {count} equal cards are.", **fields)
    return None


def _finding(gpu: Gpu, twins: list[Gpu], message: str, heard: tuple[Evidence, ...], severity: Severity) -> Finding:
    healthy = tuple(Evidence(source="NVML", text=say("lists {card}", card=label(twin))) for twin in twins)
    return finding(
        "gpu-suspect",
        severity,
        gpu.address,
        message,
        evidence=(driver_evidence(gpu), *heard, *healthy),
        remedy=(
            say("Shut down, take the mains off, seat the card and its power leads again, and look anew."),
            say("If it is still the odd one, swap it with a twin to learn whether the card or the slot is at fault."),
        ),
        next_test=(_swap(gpu, twins[0]),),
        confidence="likely" if severity == "error" else "possible",
    )


def _swap(gpu: Gpu, twin: Gpu) -> NextTest:
    return NextTest(
        do=say("Swap it with {twin}, each with the power lead of its new slot.", twin=label(twin)),
        outcomes=(
            Reading(seen=say("The fault moves with the card"), means=say("The card is defective: have it replaced.")),
            Reading(
                seen=say("The fault stays with the slot ({slot})", slot=gpu.slot or gpu.address),
                means=say("The slot, its riser, cable or power lead is at fault."),
            ),
            Reading(seen=say("Both work"), means=say("It was contact: the card or a lead was not seated well.")),
        ),
    )


# --- slots --------------------------------------------------------------------------------------


def _silent_slots(machine: Machine, view: View) -> Iterator[Finding]:
    """Occupied slots without a device, where cards are missing and the firmware is otherwise right."""
    cards = [gpu for gpu in machine.gpus or () if gpu.on_pci]
    if view.expected is None or not cards or len(cards) >= view.expected.n:
        return
    if any(f.name in SILENT for f in view.found):
        return
    occupied = {slot.designation for slot in machine.slots or () if slot.in_use}
    if not all(gpu.slot in occupied for gpu in cards):
        return
    silent = [slot for slot in machine.slots or () if slot.in_use and _wide(slot) and _nothing_in(slot, machine)]
    taken = {gpu.slot for gpu in cards}
    silent = [slot for slot in silent if slot.designation not in taken]
    if not silent:
        return
    sockets = {slot.socket for slot in silent}
    one_side = len(sockets) == 1 and None not in sockets and sockets.isdisjoint({gpu.socket for gpu in cards})
    message = say(
        plural(
            len(silent),
            "The firmware calls slot {slots} occupied, but nothing answers there: its card or the slot is suspect.",
            "The firmware calls slots {slots} occupied, but nothing answers there: their cards or the slots are "
            "suspect.",
        ),
        slots=", ".join(slot.designation for slot in silent),
    )
    if one_side:
        message = say(
            "Cards are seen in the slots of one processor only; the firmware calls {slots}, all of {socket}, occupied, "
            "but nothing answers there.",
            slots=", ".join(slot.designation for slot in silent),
            socket=silent[0].socket,
        )
    yield finding(
        "gpu-suspect",
        "warning",
        silent[0].designation if len(silent) == 1 else "machine",
        message,
        evidence=(
            *(Evidence(source="SMBIOS type 9", text=say("{slot}: in use", slot=slot.designation)) for slot in silent),
            *(Evidence(source="PCI", text=say("{card} is seen", card=label(gpu))) for gpu in cards),
        ),
        remedy=(
            say(
                "Check that the card in it is seated, that its power leads are plugged in and that the riser sits well."
            ),
            say("In the firmware setup, check that the slot is enabled."),
        ),
        next_test=(
            NextTest(
                do=say("Swap its card with one that is seen."),
                outcomes=(
                    Reading(
                        seen=say("The card is seen in the other slot"),
                        means=say("Its old slot, riser or processor's side is at fault."),
                    ),
                    Reading(
                        seen=say("It is not seen there either"), means=say("The card or its power lead is at fault.")
                    ),
                ),
            ),
        ),
        confidence="possible",
    )


def _wide(slot: Slot) -> bool:
    return GPU_LANES in (slot.lanes, slot.connector)


def _nothing_in(slot: Slot, machine: Machine) -> bool:
    """Whether no device is at the slot's address or behind it; False where the address tells nothing."""
    tree = topology.tree(machine.pci or ())
    port = tree.get(slot.address or "")
    if slot.address is None or (port is not None and not port.is_bridge):
        return False
    devices = [function.address for function in tree.values() if not function.is_bridge]
    if port is None:
        return all(address[:-5] != slot.address[:-5] for address in devices)
    return all(port not in topology.path_to_root(address, tree) for address in devices)
