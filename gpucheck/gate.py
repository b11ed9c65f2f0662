"""Policy and what was read → the rows of ``gpucheck/check/1``. Pure.

A row is a question of the policy and its answer. What was not read is *unknown*; only an allowance, with its
reason and its day, turns a *fail* into a *pass*.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucheck.errors import UsageError
from gpucheck.facts import SPEED_GTS, Expected, Gpu, Machine, Psu
from gpucheck.findings import Check, Finding
from gpucheck.policy import Allowance, Policy
from gpucheck.rules._links import end_of, lanes
from gpucheck.rules._shared import cards_of, label
from gpucheck.rules.gpu_count_mismatch import OFF_THE_BUS, unusable
from gpucheck.rules.memory_retired import pages, rows
from gpucheck.text import Text, plural, say

if TYPE_CHECKING:
    from gpucheck.catalog import Catalog
    from gpucheck.facts import NvmlGpu
    from gpucheck.probing import Probe
    from gpucheck.smoke.report import SmokeReport

_GONE = OFF_THE_BUS | {"gpu-lost-since-baseline"}
"""Findings whose subject may be a card that is no longer listed."""
_SOFTWARE = frozenset({"tensorflow-missing", "tensorflow-cpu-only-build", "cpu-lacks-avx"})
"""Why a training did not start that another try would meet again."""
_VARIANTS = frozenset({"ti", "super", "laptop", "mobile", "max-q", "d"})
"""Words that make another card of a name."""
_OLDEST_DAY = datetime.date(2026, 1, 1)
"""gpucheck is younger: a clock that says less is wrong, and an allowance would never end by it."""
GENERATIONS = {speed: gen for gen, speed in SPEED_GTS.items()}
"""GT/s per lane to PCIe generation."""


class PolicyCheck(Check):
    """One question of the policy to this machine."""

    subject: Text = "machine"
    """PCI address, slot or power supply; ``machine`` for the whole of it."""
    allowance: Allowance | None = None
    """What allows the finding (then the outcome is pass), or did until its day."""
    transient: bool = False
    """Of an unknown one: another try may answer it."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What the rows are made from.

    Attributes:
        expected: How many GPUs there should be, and who says so.
        asked_training: A training was asked for.
        trouble: Why something that tells what to expect could not be asked.
        today: For the allowances.
    """

    policy: Policy
    expected: Expected
    probe: Probe
    catalog: Catalog
    today: datetime.date
    smoke: SmokeReport | None = None
    asked_training: bool = False
    trouble: str | None = None

    @property
    def machine(self) -> Machine:
        """As it was read."""
        return self.probe.machine

    @property
    def usable(self) -> list[Gpu]:
        """GPUs that no finding calls unusable."""
        lost = unusable(self.machine, self.probe.findings)
        return [gpu for gpu in self.machine.gpus or () if gpu.address not in lost]

    @property
    def excused(self) -> dict[str, Allowance]:
        """Addresses of cards that are allowed to be unusable, and by what."""
        lost = unusable(self.machine, self.probe.findings)
        known = {gpu.address for gpu in self.machine.gpus or ()}
        found: dict[str, Allowance] = {}
        for finding in self.probe.findings:
            allowance = allowance_for(self.policy, finding.name, finding.subject)
            if allowance is None or allowance.until < self.today:
                continue
            cards = cards_of(finding, self.machine) & lost
            if finding.name in _GONE and ":" in finding.subject and finding.subject not in known:
                cards.add(finding.subject)
            found |= dict.fromkeys(cards, allowance)
        return found


def unconfirmed(machine: Machine, gpu: Gpu) -> bool:
    """An NVIDIA card that PCI shows, where NVML hung or gave no list that it could be on."""
    nvml = machine.nvml
    if gpu.vendor != "nvidia":
        return False
    return nvml is None or nvml.status == "timed-out" or (gpu.nvml is None and nvml.gpus is None)


def demanded(policy: Policy, origin: str) -> Expected | None:
    """How many GPUs the policy itself asks for; None where it leaves that open."""
    if policy.gpus.count is not None:
        return Expected(n=policy.gpus.count, origin=f"{origin}: gpus.count")
    by_name, by_place = sum(policy.gpus.models.values()), len(set(policy.gpus.addresses))
    if not by_name and not by_place:
        return None
    key = "gpus.models" if by_name >= by_place else "gpus.addresses"
    return Expected(n=max(by_name, by_place), origin=f"{origin}: {key}")


def allowance_for(policy: Policy, name: str | None, subject: str) -> Allowance | None:
    """The allowance that covers a finding, the one that lasts longest; None where none does."""
    covering = [one for one in policy.allow if one.finding == name and one.subject in (None, subject)]
    return max(covering, key=lambda one: one.until, default=None)


def judge(seen: Situation) -> tuple[PolicyCheck, ...]:
    """Every row: what could not be looked at, findings, cards, links, power, memory, baseline, training."""
    made = [
        *_look(seen),
        *_findings(seen),
        *_count(seen),
        *_models(seen),
        *_addresses(seen),
        *_links(seen),
        *_power(seen),
        *_memory(seen),
        *_baseline(seen),
        *_training(seen),
    ]
    return tuple(_weighed(seen, row) for row in made)


def _weighed(seen: Situation, row: PolicyCheck) -> PolicyCheck:
    """A failed row as its allowance has it."""
    if row.outcome != "fail":
        return row
    allowance = allowance_for(seen.policy, row.finding, row.subject)
    if allowance is None:
        return row
    fields = {"day": allowance.until.isoformat(), "reason": allowance.reason, "message": row.message}
    if allowance.until < seen.today:
        text = say("{message} Its allowance ended on {day} ({reason}).", **fields)
        return row.model_copy(update={"message": text, "allowance": allowance})
    text = say("Allowed until {day} ({reason}): {message}", **fields)
    return row.model_copy(update={"message": text, "allowance": allowance, "outcome": "pass"})


# --- what the probe found -----------------------------------------------------------------------


def _look(seen: Situation) -> Iterator[PolicyCheck]:
    if seen.policy.allow and seen.today < _OLDEST_DAY:
        message = say("Whether allowances have ended is not known: the clock says {day}.", day=seen.today.isoformat())
        yield PolicyCheck(topic="clock", outcome="unknown", message=message)
    if seen.trouble is not None:
        yield PolicyCheck(topic="expected", outcome="unknown", message=seen.trouble, transient=True)
    hung = seen.machine.nvml is not None and seen.machine.nvml.status == "timed-out"
    if seen.probe.verdict == "unknown":
        yield PolicyCheck(topic="probe", outcome="unknown", message=seen.probe.headline, transient=hung)
    elif hung:
        yield PolicyCheck(topic="probe", outcome="unknown", message=say("NVML did not answer in time."), transient=True)
    elif seen.probe.verdict == "ok":
        yield PolicyCheck(topic="probe", outcome="pass", message=say("The probe found no error."))


def _findings(seen: Situation) -> Iterator[PolicyCheck]:
    """Errors fail, with ``strict`` warnings too, and what an allowance names: whether it covers is weighed later."""
    for finding in seen.probe.findings:
        grave = finding.severity == "error" or (seen.policy.strict and finding.severity == "warning")
        if grave or (finding.severity != "info" and allowance_for(seen.policy, finding.name, finding.subject)):
            yield _failing("finding", finding)
    found = {finding.name for finding in seen.probe.findings}
    lacking = {row.name: row.missing for row in seen.probe.unchecked}
    for name in dict.fromkeys(one.finding for one in seen.policy.allow if one.until < seen.today):
        if name in lacking and name not in found:
            message = say(
                "The allowance of {name} has ended, and whether it is mended could not be read: {facts}.",
                name=name,
                facts=", ".join(lacking[name]),
            )
            yield PolicyCheck(topic="finding", outcome="unknown", message=message, finding=name)


def _failing(topic: str, finding: Finding) -> PolicyCheck:
    return PolicyCheck(
        topic=topic, outcome="fail", message=finding.message, finding=finding.name, subject=finding.subject
    )


# --- cards --------------------------------------------------------------------------------------


def _count(seen: Situation) -> Iterator[PolicyCheck]:
    n, excused = seen.expected.n, len(seen.excused)
    if seen.machine.gpus is None:
        if n:
            message = say("GPUs expected by {origin}: {n}. They were not looked at.", origin=seen.expected.origin, n=n)
            yield PolicyCheck(topic="gpus", outcome="unknown", message=message, finding="gpu-count-mismatch")
        return
    unsure = sum(unconfirmed(seen.machine, gpu) for gpu in seen.usable)
    usable = len(seen.usable) - unsure
    fields = {"n": n, "origin": seen.expected.origin, "usable": usable, "unsure": unsure, "excused": excused}
    if usable + excused < n <= usable + excused + unsure:
        message = say("GPUs expected: {n} ({origin}); on PCI: {unsure}, but whether NVML can use them is not known.",
                      **fields)  # fmt: skip
        yield PolicyCheck(topic="gpus", outcome="unknown", message=message, finding="gpu-count-mismatch")
        return
    template = "GPUs expected: {n} ({origin}); usable: {usable}."
    if usable < n <= usable + excused:
        template = "GPUs expected: {n} ({origin}); usable: {usable}; allowed to be missing: {excused}."
    outcome = "pass" if usable + excused >= n else "fail"
    yield PolicyCheck(topic="gpus", outcome=outcome, message=say(template, **fields), finding="gpu-count-mismatch")


def _models(seen: Situation) -> Iterator[PolicyCheck]:
    for name, n in seen.policy.gpus.models.items():
        is_one = named(name, seen.catalog)
        answers = [is_one(gpu) for gpu in seen.usable]
        have, maybe = answers.count(True), answers.count(None)
        lost = [gpu for gpu in seen.machine.gpus or () if gpu.address in seen.excused]
        have += sum(is_one(gpu) is True for gpu in lost)
        message = say("{name}: {n} expected, {have} usable or allowed to be missing.", name=name, n=n, have=have)
        if have >= n:
            outcome = "pass"
        else:
            outcome = "unknown" if seen.machine.gpus is None or have + maybe >= n else "fail"
        yield PolicyCheck(topic="model", outcome=outcome, message=message, finding="gpu-count-mismatch")


def named(name: str, catalog: Catalog) -> Callable[[Gpu], bool | None]:
    """Whether a GPU is the card that a policy names; None where what it is was not read."""
    try:
        ids = {match.card for match in catalog.find_cards(name)}
    except UsageError:
        ids = set()
    words = set(name.lower().split())

    def is_one(gpu: Gpu) -> bool | None:
        if gpu.catalog_gpu in ids or name.lower() == gpu.pci_id:
            return True
        if ids and gpu.catalog_gpu is not None:
            return False
        if gpu.name is not None:
            own = set(gpu.name.lower().replace("[", " ").replace("]", " ").split())
            return words <= own and _VARIANTS.isdisjoint(own - words)
        return None if gpu.catalog_gpu is None else False

    return is_one


def _addresses(seen: Situation) -> Iterator[PolicyCheck]:
    known, usable = {gpu.address for gpu in seen.machine.gpus or ()}, {gpu.address: gpu for gpu in seen.usable}
    for address in dict.fromkeys((*seen.policy.gpus.addresses, *seen.policy.link.at)):
        row = {"topic": "address", "subject": address, "finding": "gpu-count-mismatch"}
        allowance = seen.excused.get(address)
        if address in usable:
            message = say("{card} is where it should be.", card=label(usable[address]))
            yield PolicyCheck(outcome="pass", message=message, **row)
        elif seen.machine.gpus is None:
            message = say("Whether there is a GPU at {address} was not looked at.", address=address)
            yield PolicyCheck(outcome="unknown", message=message, **row)
        elif allowance is not None:
            message = say("The GPU at {address} may be missing: {reason}.", address=address, reason=allowance.reason)
            yield PolicyCheck(outcome="pass", message=message, allowance=allowance, **row)
        elif address in known:
            message = say("The GPU at {address} cannot be used.", address=address)
            yield PolicyCheck(outcome="fail", message=message, **row)
        else:
            yield PolicyCheck(outcome="fail", message=say("No GPU is at {address}.", address=address), **row)


# --- links --------------------------------------------------------------------------------------


def _links(seen: Situation) -> Iterator[PolicyCheck]:
    """Of usable GPUs: what is wrong with another is told already."""
    widths, generations = list(_widths(seen)), list(_generations(seen))
    for topic, found, told in (
        ("link-width", widths, say("Every link has the lanes that it should.")),
        ("link-generation", generations, say("Every card and slot can do the PCIe generation that they should.")),
    ):
        yield from (row for row in found if row is not None)
        if found and not any(found):
            yield PolicyCheck(topic=topic, outcome="pass", message=told)


def _widths(seen: Situation) -> Iterator[PolicyCheck | None]:
    """One for each link that is asked about; None: it is as it should be."""
    for gpu in seen.usable:
        least = seen.policy.link.of(gpu.address).lanes
        if least is None:
            continue
        width = lanes(end_of(seen.machine, gpu).card.width)
        row = {"topic": "link-width", "subject": gpu.address, "finding": "link-width-reduced"}
        if width is None:
            message = say("The width of the link of {card} was not read.", card=label(gpu))
            yield PolicyCheck(outcome="unknown", message=message, **row)
        elif width < least:
            message = say(
                "{card} has {width} lanes; at least {least} are asked.", card=label(gpu), width=width, least=least
            )
            yield PolicyCheck(outcome="fail", message=message, **row)
        else:
            yield None


def _generations(seen: Situation) -> Iterator[PolicyCheck | None]:
    """As :func:`_widths`. What counts is what both ends can do: an idle link is slow to save power."""
    for gpu in seen.usable:
        least = seen.policy.link.of(gpu.address).gen
        if least is None:
            continue
        can = generation(seen.machine, gpu)
        row = {"topic": "link-generation", "subject": gpu.address, "finding": "link-speed-reduced"}
        if can is None:
            message = say("What the link of {card} can do was not read.", card=label(gpu))
            yield PolicyCheck(outcome="unknown", message=message, **row)
        elif can < least:
            message = say(
                "{card} in its slot can do PCIe generation {can}; at least {least} is asked.",
                card=label(gpu),
                can=can,
                least=least,
            )
            yield PolicyCheck(outcome="fail", message=message, **row)
        else:
            yield None


def generation(machine: Machine, gpu: Gpu) -> int | None:
    """The highest PCIe generation that a card and its slot can do together, as far as their ends tell."""
    end = end_of(machine, gpu)
    both = [end.card.max_speed_gts, end.port.max_speed_gts if end.port is not None else None]
    if gpu.nvml is not None and end.address == gpu.address:
        both.append(gpu.nvml.link.max_speed_gts)
    return min((GENERATIONS[speed] for speed in both if speed in GENERATIONS), default=None)


# --- power and memory ---------------------------------------------------------------------------


def _power(seen: Situation) -> Iterator[PolicyCheck]:
    asked, machine = seen.policy.power, seen.machine
    if asked.supplies is not None:
        yield _supplies(machine.psus, asked.supplies)
    if asked.redundancy:
        yield _redundancy(machine)


def works(psu: Psu) -> bool | None:
    """Whether a supply is fitted, has mains and has not failed; None where that was not read."""
    if psu.present is False or psu.plugged is False or psu.failed:
        return False
    return True if psu.present and psu.plugged else None


def _supplies(psus: Collection[Psu] | None, least: int) -> PolicyCheck:
    states = [works(psu) for psu in psus or ()]
    good, maybe = states.count(True), states.count(None)
    row = {"topic": "power-supplies", "finding": "psu-missing"}
    if good >= least or (psus is not None and good + maybe < least):
        message = say("Power supplies that work: {good}; least number asked: {least}.", good=good, least=least)
        return PolicyCheck(outcome="pass" if good >= least else "fail", message=message, **row)
    message = say(
        "Whether enough power supplies work ({least}) was not read (as root: gpucheck check --ipmi).", least=least
    )
    return PolicyCheck(outcome="unknown", message=message, **row)


def _redundancy(machine: Machine) -> PolicyCheck:
    state = machine.power.redundancy if machine.power is not None else None
    row = {"topic": "power-redundancy", "finding": "psu-redundancy-lost"}
    broken = any(psu.present and works(psu) is False for psu in machine.psus or ())
    if state == "lost" or broken:
        return PolicyCheck(outcome="fail", message=say("The redundancy of the power supplies is lost."), **row)
    if state == "none":
        return PolicyCheck(outcome="fail", message=say("The power supplies are not set up as redundant."), **row)
    if state == "full":
        return PolicyCheck(outcome="pass", message=say("The power supplies are redundant."), **row)
    message = say("Whether the power supplies are redundant was not read (as root: gpucheck check --ipmi).")
    return PolicyCheck(outcome="unknown", message=message, **row)


_Counter = Callable[["NvmlGpu"], "int | None"]


def _retired(seen: NvmlGpu) -> int | None:
    return None if seen.retired_pages_single_bit is None and seen.retired_pages_double_bit is None else pages(seen)


def _remapped(seen: NvmlGpu) -> int | None:
    return None if seen.remapped_rows_corrected is None and seen.remapped_rows_uncorrected is None else rows(seen)


COUNTERS: Mapping[str, _Counter] = {
    "uncorrectable": lambda seen: seen.ecc_aggregate_uncorrected,
    "retired_pages": _retired,
    "remapped_rows": _remapped,
}
"""Key of ``[memory]`` to what NVML counts; None: not told."""
_COUNTED = {
    "uncorrectable": ("ecc-uncorrectable", "{card} had {count} memory errors that could not be corrected; {most} "
                      "may be."),
    "retired_pages": ("memory-retired", "{card} has {count} retired pages of memory; {most} may be."),
    "remapped_rows": ("memory-retired", "{card} has {count} replaced rows of memory; {most} may be."),
}  # fmt: skip


def _memory(seen: Situation) -> Iterator[PolicyCheck]:
    for key, counter in COUNTERS.items():
        most = getattr(seen.policy.memory, key)
        if most is None:
            continue
        name, template = _COUNTED[key]
        if seen.machine.gpus is None:
            message = say("The GPUs that [memory] {key} is asked of were not looked at.", key=key)
            yield PolicyCheck(topic="memory", outcome="unknown", message=message, finding=name)
            continue
        found = list(_over(seen.usable, key, counter, most, name, template))
        yield from found
        if not found:
            message = say("No GPU is above what [memory] {key} allows.", key=key)
            yield PolicyCheck(topic="memory", outcome="pass", message=message)


def _over(
    gpus: Iterable[Gpu], key: str, counter: _Counter, most: int, name: str, template: str
) -> Iterator[PolicyCheck]:
    for gpu in gpus:
        count = counter(gpu.nvml) if gpu.nvml is not None else None
        if count is None:
            message = say("NVML does not tell {key} of {card}.", key=key, card=label(gpu))
            yield PolicyCheck(topic="memory", outcome="unknown", message=message, finding=name, subject=gpu.address)
        elif count > most:
            message = say(template, card=label(gpu), count=count, most=most)
            yield PolicyCheck(topic="memory", outcome="fail", message=message, finding=name, subject=gpu.address)


# --- baseline and training ----------------------------------------------------------------------


def _baseline(seen: Situation) -> Iterator[PolicyCheck]:
    """What is lost is among the findings: here only whether the comparison was made."""
    if seen.policy.baseline is None:
        return
    if seen.probe.uncompared is not None:
        yield PolicyCheck(topic="baseline", outcome="unknown", message=seen.probe.uncompared)
        return
    count = len(seen.probe.changes or ())
    template = plural(count, "One thing differs from the baseline.", "{count} things differ from the baseline.")
    message = say(template, count=count) if count else say("Nothing that matters differs from the baseline.")
    yield PolicyCheck(topic="baseline", outcome="pass", message=message)


def _training(seen: Situation) -> Iterator[PolicyCheck]:
    report = seen.smoke
    if not seen.asked_training:
        return
    if report is None:
        outcome = "unknown" if seen.machine.gpus is None else "fail"
        message = say("No training was started: there is no GPU to train on.")
        yield PolicyCheck(topic="training", outcome=outcome, message=message, finding="gpu-count-mismatch")
    elif report.verdict == "pass":
        yield PolicyCheck(topic="training", outcome="pass", message=report.headline)
    elif report.verdict == "not-run":
        first = next((finding.name for finding in report.findings), None)
        lasting = any(finding.name in _SOFTWARE for finding in report.findings)
        yield PolicyCheck(
            topic="training", outcome="unknown", message=report.headline, finding=first, transient=not lasting
        )
    else:
        grave = [finding for finding in report.findings if finding.severity == "error"]
        yield from (_failing("training", finding) for finding in grave)
        if not grave:
            yield PolicyCheck(topic="training", outcome="fail", message=report.headline)
    for finding in report.findings if report is not None and seen.policy.strict else ():
        if finding.severity == "warning":
            yield _failing("training", finding)
