"""The link of a card makes errors.

What it means
Packets between card and host arrive damaged or not at all. Damaged ones are sent again, which only
costs time (correctable); a lost link ends the work of the card (uncorrectable).

How we know
The kernel counts the errors of every device since the boot (aer_dev_correctable, aer_dev_nonfatal,
aer_dev_fatal), and logs them; NVML counts packets that were sent again. The card and every bridge
above it are looked at. A handful of correctable errors is normal. SDES in the log is a surprise: the
link went down while in use; CmpltTO is an answer that never came.

Why it matters
A stream of correctable errors slows the card down and often comes before it falls off the bus. A
fatal error ends every program on the card.

What to do
After a fatal error, in this order: the power leads of the card, its seat in the slot, the riser.
With a stream of correctable errors: seat the card, clean its contacts, try without the riser, and
let the slot run one PCIe generation lower.

When it is wrong
A switched-off slot, a reset and the start of a card leave single errors behind, and counters do not
tell when they rose. Errors of other devices are not reported. A card that works again after a fatal
error gives a warning. Where only a log was given it is not known what is behind the port: then it is
named, and the tree of devices (lspci -t) is asked for.

Sources
https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats (the counters)
https://www.kernel.org/doc/Documentation/PCI/pcieaer-howto.rst (the messages)
https://github.com/rwth-i6/returnn/issues/1500 (surprise down on the port of a card)
https://github.com/pop-os/pop/issues/3363 (a stream of correctable errors)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpucheck import topology
from gpucheck.facts import ErrorCounts, Gpu, Machine, PciFunction, pci_address
from gpucheck.findings import Confidence, Evidence, Finding, NextTest, Reading, Severity, finding
from gpucheck.rules import View
from gpucheck.rules._links import below, slot_behind
from gpucheck.rules._shared import ADDRESS, labels, log_evidence, log_lines, pci_source
from gpucheck.rules.gpu_fell_off_bus import answers_again
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()

STREAM = 1000
"""Correctable errors of one device since the boot that are no longer chance."""
SOME = 100
STREAM_LINES = 20
"""Messages in the log: the kernel leaves most of them out when they come fast."""

_MESSAGE = rf"({ADDRESS}): (?:AER: )?PCIe Bus Error: severity=(\w+)(?: \(([\w-]+)\))?"
_KIND = rf"({ADDRESS}): (?:AER: )?\[ ?(\d+)\] (\w+)"
_PORTS_AND_CARDS = ("pcieport ", "pci ", "nvidia ", "nouveau ", "vfio-pci ", "amdgpu ", "radeon ", "i915 ", "xe ")
"""What begins a message about a port, or about a device that may be a card."""
_KIND_LINES = 12
"""How far below a message its kinds of error stand, other devices' lines among them."""


@dataclass
class Heard:
    """What was counted and logged of one device."""

    counts: ErrorCounts = field(default_factory=ErrorCounts)
    replays: int = 0
    correctable: int = 0
    fatal: int = 0
    nonfatal: int = 0
    """Messages in the log."""
    kinds: set[str] = field(default_factory=set)
    """Of messages that are not about correctable errors."""
    evidence: list[Evidence] = field(default_factory=list)

    def joined(self, other: Heard) -> Heard:
        """What two devices of one link say. Each counts the same errors: the larger number counts."""
        return Heard(
            counts=ErrorCounts(
                correctable=max(self.counts.correctable or 0, other.counts.correctable or 0),
                nonfatal=max(self.counts.nonfatal or 0, other.counts.nonfatal or 0),
                fatal=max(self.counts.fatal or 0, other.counts.fatal or 0),
            ),
            replays=max(self.replays, other.replays),
            correctable=self.correctable + other.correctable,
            fatal=self.fatal + other.fatal,
            nonfatal=self.nonfatal + other.nonfatal,
            kinds=self.kinds | other.kinds,
            evidence=[*self.evidence, *other.evidence],
        )

    @property
    def any_fatal(self) -> bool:
        return self.fatal > 0 or (self.counts.fatal or 0) > 0

    @property
    def many_nonfatal(self) -> bool:
        return bool(self.kinds & {"SDES", "CmpltTO", "DLP"}) or (self.counts.nonfatal or 0) >= SOME

    @property
    def stream(self) -> bool:
        return max(self.counts.correctable or 0, self.replays) >= STREAM or self.correctable >= STREAM_LINES

    @property
    def some(self) -> bool:
        return max(self.counts.correctable or 0, self.replays) >= SOME or self.correctable > 0 or self.nonfatal > 0


def logged(machine: Machine) -> dict[str, Heard]:
    """What the log says, by address of the device that reports it."""
    found: dict[str, Heard] = {}
    log = machine.kernel_log
    if log is None:
        return found
    for number, line in log_lines(machine, "PCIe Bus Error: severity="):
        message = re.search(_MESSAGE, line)
        address = pci_address(message[1]) if message else None
        if message is None or address is None:
            continue
        heard = found.setdefault(address, Heard())
        is_correctable = message[2].startswith("Correct")
        if is_correctable:
            heard.correctable += 1
        elif message[3] == "Fatal":
            heard.fatal += 1
        else:
            heard.nonfatal += 1
        heard.evidence.append(log_evidence(log, line))
        for below_it in log.lines[number + 1 : number + 1 + _KIND_LINES]:
            if "PCIe Bus Error" in below_it:
                break
            kind = re.search(_KIND, below_it)
            if kind is not None and pci_address(kind[1]) == address:
                heard.evidence.append(log_evidence(log, below_it))
                if not is_correctable:
                    heard.kinds.add(kind[3])
    return found


def _devices(machine: Machine) -> dict[str, Heard]:
    """What was counted and logged, by address."""
    found = logged(machine)
    for function in machine.pci or ():
        if function.errors is not None:
            heard = found.setdefault(function.address, Heard())
            heard.counts = function.errors
            heard.evidence += _counted(function.address, function.errors)
    for gpu in machine.gpus or ():
        if gpu.nvml is not None and gpu.nvml.pcie_replays:
            heard = found.setdefault(gpu.address, Heard())
            heard.replays = gpu.nvml.pcie_replays
            text = say("{address}: {count} PCIe replays", address=gpu.address, count=heard.replays)
            heard.evidence.append(Evidence(source="NVML", text=text))
    return found


def _counted(address: str, counts: ErrorCounts) -> Iterator[Evidence]:
    rows = (
        ("aer_dev_fatal", "TOTAL_ERR_FATAL", counts.fatal),
        ("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL", counts.nonfatal),
        ("aer_dev_correctable", "TOTAL_ERR_COR", counts.correctable),
    )
    for name, total, count in rows:
        if count:
            yield Evidence(source=pci_source(address), text=f"{name}: {total} {count}")


def lacks(machine: Machine) -> Iterator[str]:
    """The kernel log, and cards whose errors nobody counts."""
    if machine.kernel_log is None:
        yield "kernel_log"
    for gpu in machine.gpus or ():
        if gpu.on_pci and gpu.errors is None and (gpu.nvml is None or gpu.nvml.pcie_replays is None):
            yield f"gpus.{gpu.address}.errors"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per card, and per bridge that several cards share; both ends of a link are one."""
    tree = topology.tree(machine.pci or ())
    cards, occupied = below(machine)
    joined: dict[str, Heard] = {}
    for address, heard in _devices(machine).items():
        behind, device = cards.get(address, ()), tree.get(address)
        if not behind and _is_hidden(machine, device):
            if not heard.any_fatal and not _may_be_a_card(heard):
                continue  # its driver tells that it is no card
        elif not behind and (device is None or not device.is_bridge or address in occupied):
            continue  # another device's
        subject = behind[0].address if len(behind) == 1 else address
        joined[subject] = joined[subject].joined(heard) if subject in joined else heard
    for subject, heard in joined.items():
        found = _judged(machine, subject, heard, cards.get(subject, ()), tree.get(subject))
        if found is not None:
            yield found


def _judged(
    machine: Machine, subject: str, heard: Heard, behind: tuple[Gpu, ...], device: PciFunction | None
) -> Finding | None:
    where = labels(behind) if behind else None
    works = bool(behind) and all(map(_works, behind))
    severity: Severity
    confidence: Confidence = "possible"
    if heard.any_fatal:
        severity = "error" if behind and not works else "warning"
        if where is None:
            message = say("The link below {port} failed; what is behind it is not known.", port=subject)
        elif works:
            message = say("The link to {cards} failed earlier in this boot; it works again.", cards=where)
        elif "SDES" in heard.kinds:
            message = say("The link to {cards} went down while it was in use.", cards=where)
        else:
            message = say("The link to {cards} failed: the kernel reports a fatal error.", cards=where)
        confidence = "likely" if behind and heard.kinds & {"SDES", "CmpltTO"} else "possible"
    elif not behind and not _is_hidden(machine, device):
        return None
    elif where is None and (heard.many_nonfatal or heard.stream or heard.some):
        severity = "warning" if heard.many_nonfatal or heard.stream else "info"
        message = say("The kernel logs link errors at {port}; what is behind it was not given.", port=subject)
    elif heard.many_nonfatal:
        severity = "warning"
        message = say("The link to {cards} makes errors that cannot be corrected.", cards=where)
    elif heard.stream:
        severity, confidence = "warning", "likely"
        message = say("The link to {cards} makes a stream of errors, so far corrected.", cards=where)
    elif heard.some:
        severity = "info"
        message = say("The link to {cards} made some errors, which were corrected or harmless.", cards=where)
    else:
        return None
    return finding(
        "link-errors",
        severity,
        subject,
        message,
        evidence=_shown(heard.evidence),
        remedy=(
            *((_ask_for_the_tree(subject),) if not behind and _is_hidden(machine, device) else ()),
            *(() if severity == "info" else _remedy(machine, subject, heard, behind, device)),
        ),
        next_test=() if severity == "info" else _tests(),
        confidence=confidence,
    )


def _is_hidden(machine: Machine, device: PciFunction | None) -> bool:
    """Whether nobody knows what is behind a device: it is not in an excerpt, or the list tells no tree."""
    if device is None:
        return machine.pci is None or not machine.pci_complete
    return device.is_bridge and any(function.parent == topology.UNKNOWN_PARENT for function in machine.pci or ())


def _may_be_a_card(heard: Heard) -> bool:
    """Whether the message is of a port, or of a device whose driver is one for cards."""
    return any(evidence.text.startswith(_PORTS_AND_CARDS) for evidence in heard.evidence)


def _ask_for_the_tree(port: str) -> str:
    how = "See which device is behind {port}, and give both to gpucheck: lspci -nn > lspci.txt; lspci -t > tree.txt"
    return say(how, port=port)


def _works(gpu: Gpu) -> bool:
    """The card answers now; NVIDIA's also to NVML."""
    return answers_again(gpu) if gpu.vendor == "nvidia" else gpu.config_dead is False


def _shown(evidence: list[Evidence]) -> tuple[Evidence, ...]:
    """The first lines and the last, each once: a stream repeats itself."""
    once = list(dict.fromkeys(evidence))
    return tuple(once) if len(once) <= 6 else (*once[:4], *once[-2:])


def _remedy(
    machine: Machine, subject: str, heard: Heard, behind: tuple[Gpu, ...], device: PciFunction | None
) -> tuple[str, ...]:
    above = topology.path_to_root(subject, topology.tree(machine.pci or ()))
    port = above[-1] if above else device if device is not None and device.is_bridge else None
    slot = slot_behind(machine, port, behind) if port is not None else None
    steps = []
    if port is not None and slot is not None:
        steps.append(say("The root port is {port}; its slot is {slot}.", port=port.address, slot=slot))
    elif port is not None:
        steps.append(say("The root port is {port}.", port=port.address))
    if heard.any_fatal:
        steps += [
            say("Shut down and check the power leads of the card: all of them, each on a cable of its own."),
            say("Seat the card again and clean its contacts."),
            say("Try it without the riser or extension cable."),
        ]
    else:
        steps += [
            say("Shut down, seat the card again and clean its contacts."),
            say("Try it without the riser or extension cable."),
            say("Set the slot to a lower PCIe generation in the firmware setup."),
        ]
    return tuple(steps)


def _tests() -> tuple[NextTest, ...]:
    return (
        NextTest(
            do=say("Swap the card with one whose link makes no errors."),
            outcomes=(
                Reading(seen=say("The errors stay with the slot"), means=say("Slot, riser or power lead.")),
                Reading(seen=say("They move with the card"), means=say("The card's contacts or the card.")),
            ),
        ),
        NextTest(
            do=say("Set the slot one PCIe generation lower."),
            outcomes=(
                Reading(seen=say("The errors stop"), means=say("Signal quality: riser, contacts, slot.")),
                Reading(seen=say("They go on"), means=say("Power or the card itself.")),
            ),
        ),
    )
