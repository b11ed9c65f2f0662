"""Documents as JUnit XML, for CI systems that show tests: through junitparser."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from gpucheck.render import training
from gpucheck.text import say

if TYPE_CHECKING:
    from gpucheck.checking import CheckReport
    from gpucheck.findings import Finding, Printed
    from gpucheck.smoke.report import SmokeDevice, SmokeReport

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Letters that XML cannot hold, not even escaped."""


def _plain(text: str) -> str:
    return _NOT_XML.sub("?", text)


def _case(
    kind: str, name: str, *results: Failure | Error | Skipped, note: str | None = None, seconds: float = 0
) -> TestCase:
    made = TestCase(_plain(name), f"gpucheck.{kind}", time=seconds)
    made.result = list(results)
    if note is not None:
        made.system_out = _plain(note)
    return made


def _failure(message: str, kind: str | None, text: str = "") -> Failure:
    """The machine is at fault."""
    made = Failure(_plain(message), kind or "gpucheck")
    made.text = _plain(text or message)
    return made


def _error(message: str, kind: str | None) -> Error:
    """It could not be checked."""
    made = Error(_plain(message), kind or "not-checked")
    made.text = _plain(message)
    return made


def _document(
    kind: str, report: Printed, cases: Iterable[TestCase], properties: Mapping[str, str] | None = None
) -> str:
    suite = TestSuite(f"gpucheck {kind}")
    suite.timestamp = report.time.partition("+")[0]
    suite.add_property("headline", _plain(report.headline))
    suite.add_property("verdict", report.verdict)
    for name, value in (properties or {}).items():
        suite.add_property(name, value)
    for case in cases:
        suite.add_testcase(case)
    suite.update_statistics()
    whole = JUnitXml(f"gpucheck {kind}")
    whole.add_testsuite(suite)
    whole.update_statistics()
    text: bytes = whole.tostring()
    return text.decode("utf-8") + "\n"


def details(finding: Finding) -> str:
    """Message, evidence and remedy of a finding as plain lines."""
    lines = [finding.message, *(f"{one.source}: {one.text}" for one in finding.evidence)]
    lines += [f"{number}. {step}" for number, step in enumerate(finding.remedy, 1)]
    return "\n".join([*lines, say("gpucheck explain {name}", name=finding.name)])


def check(report: CheckReport) -> str:
    """One test for each question of the policy: failed, or an error where it could not be answered. The tries before
    the last are tests of their own."""
    known = [*report.probe.findings, *(report.smoke.findings if report.smoke is not None else ())]
    told = {(finding.name, finding.subject): details(finding) for finding in known}
    cases: list[TestCase] = []
    for number, attempt in enumerate(report.attempts[:-1], 1):
        name = say("try {number}", number=number)
        cases.append(_case("check", name, _error(attempt.headline, "not-checked")))
    for row in report.checks:
        name = (
            f"{row.topic}: {row.finding} ({row.subject})" if row.topic == "finding" else f"{row.topic}: {row.subject}"
        )
        text = told.get((row.finding or "", row.subject), "")
        if row.outcome == "fail":
            cases.append(_case("check", name, _failure(row.message, row.finding, text)))
        elif row.outcome == "unknown":
            cases.append(_case("check", name, _error(row.message, row.finding)))
        else:
            cases.append(_case("check", name, note=row.message))
    return _document("check", report, cases)


# --- a training ---------------------------------------------------------------------------------

OF_NUMERICS = ("gradient-mismatch", "output-mismatch", "replica-diverged", "allreduce-mismatch", "shard-mismatch")
OF_SCALING = ("gpu-slower-than-peers", "network-slow")
OF_AFTERMATH = ("memory-not-released", "process-left-behind")


def smoke(report: SmokeReport) -> str:
    """One test per card and per host, then numerics, scaling, aftermath, and the training as such for what is of
    none of them.

    A problem is a failure; what could not be shown is an error, so that it is not green; a card that was not asked
    to take part is skipped. Without any GPU one more test, skipped, says so. Every finding stands in one test only.
    """
    properties = {
        "proves_gpu": str(report.proves_gpu).lower(), "strategy": report.strategy, "mode": report.mode,
    }  # fmt: skip
    return _document("smoke", report, _trained(report), properties)


def _trained(report: SmokeReport) -> Iterator[TestCase]:
    left = list(report.findings)

    def take(names: Collection[str] | None, subjects: Collection[str] | None = None) -> list[Finding]:
        taken = [
            finding
            for finding in left
            if (names is None or finding.name in names) and (subjects is None or finding.subject in subjects)
        ]
        left[:] = [finding for finding in left if finding not in taken]
        return taken

    aftermath, scaling = take(OF_AFTERMATH), take(OF_SCALING)
    for device in report.devices:
        yield _card(report, device, take(None, {name for name in (device.address, device.device) if name}))
    for host in report.hosts:
        name = say("host {name} ({rank})", name=host.host, rank=host.rank)
        problems = "\n".join((host.headline, *host.problems))
        match host.verdict:
            case "pass":
                yield _case("smoke", name, note=problems)
            case "fail":
                yield _case("smoke", name, _failure(host.headline, None, problems))
            case _:
                yield _case("smoke", name, _error(host.headline, None))
    yield _numerics(report, take(OF_NUMERICS, {"machine"}))
    if report.scaling is None:
        yield _case("smoke", "scaling", _skipped(say("The speed was not measured.")), note=_notes(scaling))
    else:
        speed = filter(None, (training.speed(report.scaling), training.pace(report)))
        yield _judged("scaling", scaling, *speed)
    if report.seconds is None:
        yield _case("smoke", "aftermath", _skipped(say("Nothing was started.")), note=_notes(aftermath))
    else:
        yield _judged("aftermath", aftermath)
    if (warning := training.no_gpu(report)) is not None:
        yield _case("smoke", "gpu", _skipped(warning))
    yield _whole(report, left)


def _judged(name: str, findings: Sequence[Finding], *notes: str, seconds: float = 0) -> TestCase:
    """Errors are failures, and the other findings notes."""
    grave = [finding for finding in findings if finding.severity == "error"]
    results = [_failure(finding.message, finding.name, details(finding)) for finding in grave]
    note = _notes([finding for finding in findings if finding not in grave], *notes)
    return _case("smoke", name, *results, note=note, seconds=seconds)


def _notes(findings: Iterable[Finding], *notes: str) -> str | None:
    return "\n".join((*notes, *map(details, findings))) or None


def _skipped(message: str) -> Skipped:
    return Skipped(_plain(message))


def _card(report: SmokeReport, device: SmokeDevice, findings: Sequence[Finding]) -> TestCase:
    name = " ".join(filter(None, (device.device, device.address)))
    match training.fate(report, device):
        case "failed" if not any(finding.severity == "error" for finding in findings):
            elsewhere = [finding.message for finding in training.errors_of(report, device)]
            message = next(iter(elsewhere), say("It did not do its part."))
            return _case("smoke", name, _failure(message, None), note=_notes(findings))
        case "unconfirmed":
            message = say("NVML could not confirm that it worked.")
            return _case("smoke", name, _error(message, None), note=_notes(findings))
        case "left-out":
            message = say("It did not take part, or nothing came so far.")
            return _case("smoke", name, _skipped(message), note=_notes(findings))
        case _:
            speed = device.examples_per_second
            return _judged(name, findings, *(() if speed is None else (say("{n:,.0f} examples/s alone", n=speed),)))


def _numerics(report: SmokeReport, findings: Sequence[Finding]) -> TestCase:
    """Of a card's own wrong results too, which are told in full with the card."""
    if report.numerics is None and not findings:
        return _case("smoke", "numerics", _error(say("The results were not compared."), None))
    notes = () if report.numerics is None else (training.numbers(report.numerics),)
    wrong = [item for item in report.findings if item.name in OF_NUMERICS and item.severity == "error"]
    if wrong and not findings:
        return _case("smoke", "numerics", _failure(wrong[0].message, wrong[0].name), note=_notes((), *notes))
    return _judged("numerics", findings, *notes)


def _whole(report: SmokeReport, findings: Sequence[Finding]) -> TestCase:
    """What is of no card: a worker that died, a machine without cards, an expectation that was not met."""
    if report.verdict == "not-run":
        first = next((finding.name for finding in findings), None)
        note = _notes(findings)
        return _case("smoke", "training", _error(report.headline, first), note=note, seconds=report.seconds or 0)
    return _judged("training", findings, report.headline, seconds=report.seconds or 0)
