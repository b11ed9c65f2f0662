"""The NVIDIA driver reported an error of a card (Xid) that no other finding explains.

What it means
The driver writes a numbered message into the kernel log when something on a card goes wrong. Some
numbers mean that a program did something forbidden, others that the card, its memory or its links have
a fault. What the number means is in the finding.

How we know
Lines of the form NVRM: Xid (address): number. Those of earlier boots, which log files keep, are
history and never more than an information.

Why it matters
A single Xid of a program ends that program. The same Xid from different programs, or on only one of
equal cards, points to the card.

What to do
It depends on the number: look at the program, reset the card, look at power, heat and links, or replace
it. After a reset, run the same load on this card and on another one.

When it is wrong
An Xid can follow from another: 45 only cleans up after an earlier fault, and 154 only says which reset
is needed. Read the first one in time.

Sources
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
https://docs.nvidia.com/deploy/xid-errors/index.html
https://github.com/NVIDIA/open-gpu-kernel-modules/blob/main/src/common/sdk/nvidia/inc/nverror.h
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from gpucheck.facts import Machine, pci_address
from gpucheck.findings import Evidence, Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.rules._shared import ADDRESS, explained, label, log_evidence
from gpucheck.text import say

NEEDS: tuple[str, ...] = ("kernel_log",)

_XID = rf"NVRM: Xid \((?:PCI:)?({ADDRESS})\):? (\d{{1,4}})\b"

Kind = Literal["card", "power", "memory", "link", "firmware", "program", "display", "follows"]


class Xid(NamedTuple):
    """What a number means, in our words."""

    kind: Kind
    meaning: str


XIDS: dict[int, Xid] = {
    8: Xid("card", "the card stopped working on a task"),
    11: Xid("program", "a program sent commands that are not valid"),
    13: Xid("program", "a program did something forbidden in a kernel, or the card computed wrongly"),
    25: Xid("program", "a program sent commands that are not valid"),
    31: Xid("program", "a program used memory of the card that it does not own"),
    32: Xid("program", "commands arrived damaged at the card: a program, or the bus"),
    38: Xid("firmware", "firmware on the card did not answer"),
    39: Xid("program", "a copy engine of the card stopped at a fault"),
    43: Xid("program", "a program was stopped after a fault of its own"),
    44: Xid("firmware", "the card failed while it switched between programs"),
    45: Xid("follows", "the driver cleaned up after an earlier fault"),
    46: Xid("card", "the card stopped working on a task"),
    48: Xid("memory", "an error in the card's memory that it could not correct"),
    54: Xid("power", "a power lead of the card is not connected"),
    56: Xid("display", "the display part of the card stopped at a fault; computing is not touched"),
    57: Xid("memory", "the link to the card's memory could not be trained"),
    58: Xid("memory", "the card's memory gave wrong data"),
    61: Xid("firmware", "a controller on the card stopped at a breakpoint"),
    62: Xid("firmware", "a controller on the card halted"),
    63: Xid("memory", "a bad piece of the card's memory was noted, to be replaced at the next reset"),
    64: Xid("memory", "a bad piece of the card's memory could not be replaced, or noted for it"),
    66: Xid("program", "the driver used a register that it may not use"),
    68: Xid("program", "the video decoder of the card stopped at a fault"),
    69: Xid("program", "a program used a function that the card does not have"),
    74: Xid("link", "an error on an NVLink"),
    78: Xid("program", "a virtual GPU could not be started"),
    79: Xid("power", "the card fell off the bus"),
    80: Xid("link", "data arrived damaged at the card"),
    92: Xid("memory", "many corrected errors in the card's memory"),
    94: Xid("memory", "an error in the card's memory that ended only the program that met it"),
    95: Xid("memory", "an error in the card's memory that ended everything on the card"),
    109: Xid("firmware", "the card did not switch between programs in time"),
    110: Xid("firmware", "the card reported a breach of its protection"),
    119: Xid("firmware", "the processor on the card (GSP) did not answer the driver"),
    120: Xid("firmware", "the processor on the card (GSP) failed"),
    121: Xid("link", "a corrected error on the link between GPU and CPU chip"),
    136: Xid("link", "a link of the card could not be trained"),
    137: Xid("link", "an NVLink peer asked for memory that it does not own"),
    140: Xid("memory", "an error in the card's memory that it could not correct"),
    143: Xid("firmware", "the card could not be started"),
    **{number: Xid("link", "an error on an NVLink") for number in range(144, 151)},
    154: Xid("follows", "the driver says which reset the card needs"),
    155: Xid("link", "an NVLink was reported as faulty by software"),
    156: Xid("memory", "the card took a bad part of itself out of use"),
    157: Xid("memory", "the card could not take a bad part of itself out of use"),
    158: Xid("card", "the card did not answer in time"),
    167: Xid("card", "the bus to the card did not answer in time"),
    171: Xid("memory", "an error in the card's memory that it could not correct"),
    172: Xid("memory", "an error in a memory inside the chip that it could not correct"),
}
"""Checked against NVIDIA's catalog of Xids; what it calls unused is left out, apart from old ones that
drivers still write."""

_GRAVEST: tuple[Kind, ...] = ("power", "memory", "card", "firmware", "link", "program", "display", "follows")

WHOLE_CARD = frozenset({"gpu-fell-off-bus", "gpu-init-failed", "nvml-gpu-lost"})
"""Findings that every Xid of the card in this boot belongs to."""
OF_MEMORY = frozenset({"ecc-uncorrectable", "memory-retired"})
"""Findings that the Xids about memory belong to."""
MOST_LINES = 5


class Report(NamedTuple):
    """One line of the log."""

    address: str
    number: int
    line: str


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per card and time: this boot, and earlier ones."""
    log = machine.kernel_log
    if log is None:
        return
    settled = explained(view.found, machine, WHOLE_CARD) | {f.subject for f in view.found if f.name in WHOLE_CARD}
    of_memory = explained(view.found, machine, OF_MEMORY)
    current = [
        report
        for report in reports(log.lines)
        if report.address not in settled and not (report.address in of_memory and _kind(report.number) == "memory")
    ]
    for address in dict.fromkeys(report.address for report in current):
        mine = [report for report in current if report.address == address]
        yield _found(machine, address, mine, [log_evidence(log, line) for line in _first_of_each(mine)], past=False)
    told = list(reports(log.earlier))
    for address in dict.fromkeys(report.address for report in told):
        mine = [report for report in told if report.address == address]
        source = say("kernel log of an earlier boot")
        evidence = [Evidence(source=source, text=line) for line in _first_of_each(mine)]
        yield _found(machine, address, mine, evidence, past=True)


def reports(lines: Iterable[str]) -> Iterator[Report]:
    """The Xids in lines of a kernel log."""
    for line in lines:
        if "NVRM: Xid" in line and (found := re.search(_XID, line)) and (address := pci_address(found[1])):
            yield Report(address, int(found[2]), line)


def points_to_the_card(number: int) -> bool:
    """Whether a number speaks of the card itself rather than of a program, a display or an earlier Xid."""
    return _kind(number) not in {"program", "display", "follows"}


def _kind(number: int) -> Kind:
    return XIDS[number].kind if number in XIDS else "card"


def _by_weight(told: list[Report]) -> list[int]:
    """The numbers, the gravest first; among equals the one that came first."""
    return sorted(dict.fromkeys(report.number for report in told), key=lambda n: _GRAVEST.index(_kind(n)))


def _first_of_each(told: list[Report]) -> list[str]:
    first = {report.number: report.line for report in reversed(told)}
    return [first[number] for number in _by_weight(told)][:MOST_LINES]


def _found(machine: Machine, address: str, told: list[Report], evidence: list[Evidence], *, past: bool) -> Finding:
    gpu = next((gpu for gpu in machine.gpus or () if gpu.address == address), None)
    numbers = _by_weight(told)
    kind = _kind(numbers[0])
    known = XIDS.get(numbers[0])
    fields: dict[str, object] = {
        "card": label(gpu) if gpu is not None else say("GPU at {address}", address=address),
        "number": numbers[0],
        "meaning": known.meaning if known is not None else say("NVIDIA's catalog does not explain it"),
        "others": ", ".join(map(str, numbers[1:])),
    }
    if past and len(numbers) == 1:
        message = say("{card}: Xid {number} in an earlier boot ({meaning}).", **fields)
    elif past:
        message = say("{card}: Xid {number} in an earlier boot ({meaning}), besides {others}.", **fields)
    elif len(numbers) == 1:
        message = say("{card}: Xid {number} in this boot ({meaning}).", **fields)
    else:
        message = say("{card}: Xid {number} in this boot ({meaning}), besides {others}.", **fields)
    return finding(
        "xid-reported",
        "warning" if not past and points_to_the_card(numbers[0]) else "info",
        address,
        message,
        evidence=tuple(evidence),
        remedy=tuple(_remedy(kind, address)),
        next_test=() if past else _tests(kind),
    )


def _remedy(kind: Kind, address: str) -> Iterator[str]:
    match kind:
        case "program":
            yield say("Look at the program first: run it under compute-sanitizer, or an older version of it.")
            yield say("If different programs cause it, or it comes on this card alone, suspect the card.")
        case "display":
            yield say(
                "Check the monitor's cable and adapter, or use another output; for computing nothing is to be done."
            )
        case "follows":
            yield say("Look for the Xid before it: that one is the cause.")
        case "power":
            yield say("Shut down, and check that each power socket of the card has its own lead from the supply.")
            yield say("Look at heat and seat as well.")
        case "memory":
            yield say(
                "Reset the card when nothing uses it, or reboot: sudo nvidia-smi --gpu-reset -i {card}", card=address
            )
            yield say("Read its memory health: nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT")
            yield say("If a remapping has failed there, or errors that were not corrected come back, replace the card.")
        case "link":
            yield say("Read the links: nvidia-smi nvlink -s and nvidia-smi nvlink -e")
            yield say(
                "Seat the bridges or the baseboard's modules again; if it comes back on one link, replace that part."
            )
        case "card" | "firmware":
            yield say(
                "Reset the card when nothing uses it, or reboot: sudo nvidia-smi --gpu-reset -i {card}", card=address
            )
            yield say("Look at heat, and at the card's power leads and seat.")
            yield say("Update the driver within its branch; if only this card does it, suspect the card.")


def _tests(kind: Kind) -> tuple[NextTest, ...]:
    if kind in {"display", "follows"}:
        return ()
    return (
        NextTest(
            do=say("Run the same load on this card and on an equal one."),
            outcomes=(
                Reading(seen=say("Only this card reports it"), means=say("The card, its slot or its power lead.")),
                Reading(seen=say("Both report it"), means=say("The program or the driver.")),
            ),
        ),
    )
