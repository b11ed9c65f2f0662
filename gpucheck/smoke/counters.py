"""Error counters of the cards before a training and after it, and what rose meanwhile.

The kernel counts the errors of each link (AER), NVML those of each card's memory and the packets that
were sent again, and the NVIDIA driver writes into the kernel log. A count of the moment says little:
some rose at the start of the machine, and a fault under load leaves an idle card's counters still.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpucheck.facts import ErrorCounts
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.smoke.report import RisenCounters
from gpucheck.text import say

if TYPE_CHECKING:
    from gpucheck.host import Host
    from gpucheck.readers.nvml_watch import Sample

PCI = "/sys/bus/pci/devices"
SOME_ERRORS = 10
"""Corrected errors in one training that are no longer chance."""
SURVIVED = frozenset({63, 92, 121})
"""Xids that say that an error was corrected or a repair is noted: the work goes on, and is right."""
MOST_LINES = 5

_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True, slots=True)
class Counters:
    """What was counted at one moment.

    Attributes:
        above: Card to itself and the bridges above it, the nearest first. A card that is not there is
            not among them.
        links: Of all of these, errors of the link; only those that count.
        dead: Card to whether its registers read as nothing but ones, which a card off the bus does.
        log: Messages of the kernel in this boot; None where they could not be read.
    """

    above: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    links: Mapping[str, ErrorCounts] = field(default_factory=dict)
    dead: Mapping[str, bool] = field(default_factory=dict)
    log: tuple[str, ...] | None = None


def read(host: Host, addresses: Iterable[str]) -> Counters:
    """Read the counters of these cards. Never raises: what cannot be read is left out."""
    from gpucheck.readers import kernel_log
    from gpucheck.readers.pci import parse_errors

    def total(function: str, kind: str, name: str) -> int | None:
        try:
            return parse_errors(host.text(f"{PCI}/{function}/aer_dev_{kind}"), name)
        except OSError:
            return None

    above: dict[str, tuple[str, ...]] = {}
    dead: dict[str, bool] = {}
    for address in addresses:
        try:
            folder = host.real(f"{PCI}/{address}")
        except FileNotFoundError:
            dead[address] = True
            continue
        except OSError:
            continue
        above[address] = tuple(part for part in reversed(folder.split("/")) if _FUNCTION.fullmatch(part))
        try:
            dead[address] = host.read(f"{PCI}/{address}/config", 4) == b"\xff" * 4
        except OSError:
            continue
    links = {}
    for function in sorted({function for path in above.values() for function in path}):
        counts = ErrorCounts(
            correctable=total(function, "correctable", "TOTAL_ERR_COR"),
            nonfatal=total(function, "nonfatal", "TOTAL_ERR_NONFATAL"),
            fatal=total(function, "fatal", "TOTAL_ERR_FATAL"),
        )
        if counts != ErrorCounts():
            links[function] = counts
    log = kernel_log.read(host).kernel_log
    return Counters(above, links, dead, None if log is None else tuple(log.lines))


# --- what rose ------------------------------------------------------------------------------------


def risen(address: str, before: Counters | None, after: Counters | None, samples: Sequence[Sample]) -> RisenCounters:
    """How far the counters of one card rose. ``samples`` are its own, oldest first."""
    from gpucheck.rules.xid_reported import reports

    ends = before.above.get(address, ())[:2] if before is not None else ()
    links = [rise for end in ends if (rise := _link_rise(end, before, after)) is not None]
    lines = new_lines(before, after)
    return RisenCounters(
        pcie_replays=_rise([sample.pcie_replays for sample in samples]),
        aer_correctable=_most(rise.correctable for rise in links),
        aer_nonfatal=_most(rise.nonfatal for rise in links),
        aer_fatal=_most(rise.fatal for rise in links),
        ecc_corrected=_rise([sample.ecc_corrected for sample in samples]),
        ecc_uncorrected=_rise([sample.ecc_uncorrected for sample in samples]),
        xids=None if lines is None else tuple(told.line for told in reports(lines) if told.address == address),
    )


def new_lines(before: Counters | None, after: Counters | None) -> tuple[str, ...] | None:
    """Messages of the kernel that came meanwhile; None where they were not read twice."""
    if before is None or after is None or before.log is None or after.log is None:
        return None
    known = Counter(before.log)
    fresh = []
    for line in after.log:  # without its time one message may come again: as often as before it is known
        if known[line]:
            known[line] -= 1
        else:
            fresh.append(line)
    return tuple(fresh)


def _rise(values: Sequence[int | None]) -> int | None:
    """None for fewer than two values, and for a counter that began anew."""
    counted = [value for value in values if value is not None]
    return counted[-1] - counted[0] if len(counted) > 1 and counted[-1] >= counted[0] else None


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _link_rise(function: str, before: Counters | None, after: Counters | None) -> ErrorCounts | None:
    if before is None or after is None or not {function} <= before.links.keys() & after.links.keys():
        return None
    first, last = before.links[function], after.links[function]
    return ErrorCounts(
        correctable=_rise([first.correctable, last.correctable]),
        nonfatal=_rise([first.nonfatal, last.nonfatal]),
        fatal=_rise([first.fatal, last.fatal]),
    )


# --- what it means --------------------------------------------------------------------------------


@dataclass(slots=True)
class _Errors:
    """Of one link or path."""

    corrected: int = 0
    nonfatal: int = 0
    fatal: int = 0
    evidence: list[Evidence] = field(default_factory=list)


def told_by(cards: Mapping[str, RisenCounters], before: Counters | None, after: Counters | None) -> Iterator[Finding]:
    """What rose, as findings: links, memory, messages of the driver. ``cards`` by address."""
    yield from _links(cards, before, after)
    for address, counts in cards.items():
        yield from _memory(address, counts)
        yield from _xids(address, counts)


def _links(cards: Mapping[str, RisenCounters], before: Counters | None, after: Counters | None) -> Iterator[Finding]:
    """One finding per card, and per bridge that several cards of the training share."""
    behind: dict[str, list[str]] = {}
    for address in cards:
        for function in before.above.get(address, ()) if before is not None else ():
            behind.setdefault(function, []).append(address)
    found: dict[str, _Errors] = {}
    for function, its_cards in behind.items():
        rise = _link_rise(function, before, after)
        if rise is None or rise == ErrorCounts(correctable=0, nonfatal=0, fatal=0):
            continue
        errors = found.setdefault(its_cards[0] if len(its_cards) == 1 else function, _Errors())
        errors.corrected = max(errors.corrected, rise.correctable or 0)
        errors.nonfatal = max(errors.nonfatal, rise.nonfatal or 0)
        errors.fatal = max(errors.fatal, rise.fatal or 0)
        for file, count in (("correctable", rise.correctable), ("nonfatal", rise.nonfatal), ("fatal", rise.fatal)):
            if count:
                source = f"{PCI}/{function}/aer_dev_{file}"
                errors.evidence.append(Evidence(source=source, text=say("{n} more than before", n=count)))
    for address, counts in cards.items():
        if counts.pcie_replays:
            errors = found.setdefault(address, _Errors())
            errors.corrected = max(errors.corrected, counts.pcie_replays)
            text = say("{n} more than before", n=counts.pcie_replays)
            errors.evidence.append(Evidence(source="nvmlDeviceGetPcieReplayCounter", text=text))
    for subject, errors in found.items():
        if errors.evidence:
            yield _link(subject, errors)


def _link(subject: str, errors: _Errors) -> Finding:
    if errors.fatal:
        message = say("The link at {subject} failed during the training.", subject=subject)
    elif errors.nonfatal:
        message = say("The link at {subject} made errors during the training that cannot be corrected.",
                      subject=subject)  # fmt: skip
    elif errors.corrected >= SOME_ERRORS:
        message = say("The link at {subject} made {n} errors during the training; they were corrected.",
                      subject=subject, n=errors.corrected)  # fmt: skip
    else:
        message = say("The link at {subject} made a few errors during the training; they were corrected.",
                      subject=subject)  # fmt: skip
    serious = errors.fatal or errors.nonfatal or errors.corrected >= SOME_ERRORS
    return finding(
        "link-errors-in-training",
        "error" if errors.fatal else "warning" if serious else "info",
        subject,
        message,
        evidence=tuple(errors.evidence),
        remedy=(
            say("Shut down, seat the card again and clean its contacts; check its power leads."),
            say("Try it without the riser or extension cable, and with the slot one PCIe generation lower."),
            say("Train again: gpucheck smoke. If the errors move with the card, it is the card; else the slot."),
        )
        if serious
        else (),
    )


def _memory(address: str, counts: RisenCounters) -> Iterator[Finding]:
    if counts.ecc_uncorrected:
        yield finding(
            "ecc-uncorrectable",
            "error",
            address,
            say("The memory of the card at {address} made {n} errors during the training that it could not correct.",
                address=address, n=counts.ecc_uncorrected),
            evidence=(_more("nvmlDeviceGetTotalEccErrors (uncorrected)", counts.ecc_uncorrected),),
            remedy=_after_memory_errors(address),
        )  # fmt: skip
    if counts.ecc_corrected:
        many = counts.ecc_corrected >= SOME_ERRORS
        yield finding(
            "memory-errors-in-training",
            "warning" if many else "info",
            address,
            say("The memory of the card at {address} made {n} errors during the training; they were corrected.",
                address=address, n=counts.ecc_corrected),
            evidence=(_more("nvmlDeviceGetTotalEccErrors (corrected)", counts.ecc_corrected),),
            remedy=_after_memory_errors(address) if many else (),
        )  # fmt: skip


def _more(source: str, count: int) -> Evidence:
    return Evidence(source=source, text=say("{n} more than before", n=count))


def _after_memory_errors(address: str) -> tuple[str, ...]:
    return (
        say("Take the card out of use, and read its memory health: nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT"),
        say("Reset it when nothing uses it (sudo nvidia-smi --gpu-reset -i {card}), then train again.", card=address),
        say("If the errors come back, replace the card."),
    )


def _xids(address: str, counts: RisenCounters) -> Iterator[Finding]:
    from gpucheck.rules.xid_reported import XIDS, points_to_the_card, reports

    told = list(reports(counts.xids or ()))
    if not told:
        return
    serious = [report for report in told if points_to_the_card(report.number)]
    first = next(iter(serious), told[0])
    lasting = any(report.number not in SURVIVED for report in serious)
    known = XIDS.get(first.number)
    yield finding(
        "xid-reported",
        "error" if lasting else "warning",
        address,
        say(
            "The driver reported Xid {number} of the card at {address} during the training ({meaning}).",
            number=first.number,
            address=address,
            meaning=known.meaning if known is not None else say("NVIDIA's catalog does not explain it"),
        ),
        evidence=tuple(Evidence(source=say("kernel log"), text=report.line) for report in told[:MOST_LINES]),
        remedy=(say("Run gpucheck explain xid-reported; look at heat, power leads and seat, then train again."),),
    )
