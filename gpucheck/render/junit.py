"""A training as a JUnit file, which CI systems show test by test.

One test per card (and per host), then numerics, scaling, aftermath, and the training as such for what is
of none of them. A problem is a failure; what could not be shown is an error, so that it is not green; a
card that was not asked to take part is skipped. Without any GPU one more test, skipped, says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpucheck.render import training
from gpucheck.text import clean, say

if TYPE_CHECKING:
    from gpucheck.findings import Finding
    from gpucheck.smoke.report import SmokeDevice, SmokeReport

OF_NUMERICS = ("gradient-mismatch", "output-mismatch", "replica-diverged", "allreduce-mismatch", "shard-mismatch")
OF_SCALING = ("gpu-slower-than-peers", "network-slow")
OF_AFTERMATH = ("memory-not-released", "process-left-behind")


@dataclass(frozen=True, slots=True)
class Test:
    """One test.

    Attributes:
        name: Unique in its file.
        outcome: ``error`` for what could not be judged.
        message: One line, for anything but ``passed``.
        findings: What it rests on, shown in full.
        notes: What a test that passed has to say.
        seconds: None where it has no time of its own.
    """

    name: str
    outcome: Literal["passed", "failed", "error", "skipped"]
    message: str = ""
    findings: tuple[Finding, ...] = ()
    notes: str = ""
    seconds: float | None = None


def smoke(report: SmokeReport) -> str:
    """The whole file."""
    properties = {
        "gpucheck": report.gpucheck,
        "headline": report.headline,
        "verdict": report.verdict,
        "proves_gpu": str(report.proves_gpu).lower(),
        "strategy": report.strategy,
        "mode": report.mode,
    }
    return written("gpucheck.smoke", tests_of(report), properties, report.time)


def written(suite: str, tests: Iterable[Test], properties: Mapping[str, str], time: str) -> str:
    """Tests as a JUnit file."""
    from io import BytesIO

    from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

    results = {"failed": Failure, "error": Error, "skipped": Skipped}
    group = TestSuite(suite)
    group.timestamp = time
    for name, value in properties.items():
        group.add_property(name, clean(value))
    for test in tests:
        case = TestCase(clean(test.name), suite, test.seconds)
        if test.outcome in results:
            result = results[test.outcome](clean(test.message), test.findings[0].name if test.findings else None)
            result.text = _in_full(test.findings)
            case.result = result
        elif notes := "\n".join(filter(None, (clean(test.notes), _in_full(test.findings)))):
            case.system_out = notes
        group.add_testcase(case)
    document = JUnitXml("gpucheck")
    document.add_testsuite(group)
    file = BytesIO()
    document.write(file, pretty=True)
    return file.getvalue().decode()


def _in_full(findings: Iterable[Finding]) -> str:
    """Findings with evidence and remedy, as the lines of a text."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.severity} {finding.code} {finding.name}: {finding.message}")
        lines += [f"  {line.source}: {line.text}" for line in finding.evidence]
        lines += [f"  {number}. {step}" for number, step in enumerate(finding.remedy, 1)]
    return "\n".join(map(_line, lines))


def _line(text: str) -> str:
    """Without what XML cannot hold; the indentation stays."""
    return text[: len(text) - len(text.lstrip())] + clean(text)


def tests_of(report: SmokeReport) -> Iterator[Test]:
    """Every finding stands in exactly one test."""
    left = list(report.findings)

    def take(names: Sequence[str] | None, subjects: Sequence[str | None] | None = None) -> tuple[Finding, ...]:
        taken = [
            finding
            for finding in left
            if (names is None or finding.name in names) and (subjects is None or finding.subject in subjects)
        ]
        left[:] = [finding for finding in left if finding not in taken]
        return tuple(taken)

    aftermath = take(OF_AFTERMATH)
    scaling = take(OF_SCALING)
    for device in report.devices:
        yield _card(report, device, take(None, [name for name in (device.address, device.device) if name]))
    for host in report.hosts:
        outcome = _OUTCOMES[host.verdict]
        yield Test(f"host {host.host} ({host.rank})", outcome, host.headline, notes=" ".join(host.problems))
    numerics = take(OF_NUMERICS, ["machine"])
    yield _numerics(report, numerics)
    yield _scaling(report, scaling)
    yield _aftermath(report, aftermath)
    if (warning := training.no_gpu(report)) is not None:
        yield Test("gpu", "skipped", warning)
    yield _training(report, tuple(left))


_OUTCOMES: Mapping[str, Literal["passed", "failed", "error"]] = {"pass": "passed", "fail": "failed", "not-run": "error"}


def _card(report: SmokeReport, device: SmokeDevice, findings: tuple[Finding, ...]) -> Test:
    name = " ".join(filter(None, (device.device, device.address)))
    match training.fate(report, device):
        case "failed":
            worst = next((finding.message for finding in findings if finding.severity == "error"), None)
            return Test(name, "failed", worst or say("It did not do its part."), findings)
        case "unconfirmed":
            return Test(name, "error", say("NVML could not confirm that it worked."), findings)
        case "left-out":
            return Test(name, "skipped", say("It did not take part, or nothing came so far."), findings)
        case _:
            speed = device.examples_per_second
            notes = say("{speed:,.0f} examples/s alone", speed=speed) if speed is not None else ""
            return Test(name, "passed", findings=findings, notes=notes)


def _numerics(report: SmokeReport, findings: tuple[Finding, ...]) -> Test:
    if report.numerics is None and not findings:
        return Test("numerics", "error", say("The results were not compared."))
    wrong = any(finding.severity == "error" for finding in report.findings if finding.name in OF_NUMERICS)
    notes = training.numbers(report.numerics) if report.numerics is not None else ""
    return Test("numerics", "failed" if wrong else "passed", say("The result is wrong."), findings, notes)


def _scaling(report: SmokeReport, findings: tuple[Finding, ...]) -> Test:
    """Slowness is a warning, not a failure: the notes say it."""
    if report.scaling is None:
        return Test("scaling", "skipped", say("The speed was not measured."), findings)
    notes = " ".join(filter(None, (training.speed(report.scaling), training.pace(report))))
    failed = any(finding.severity == "error" for finding in findings)
    return Test("scaling", "failed" if failed else "passed", notes, findings, notes)


def _aftermath(report: SmokeReport, findings: tuple[Finding, ...]) -> Test:
    if report.seconds is None:
        return Test("aftermath", "skipped", say("Nothing was started."), findings)
    failed = any(finding.severity == "error" for finding in findings)
    message = say("The training left something behind.")
    return Test("aftermath", "failed" if failed else "passed", message, findings)


def _training(report: SmokeReport, findings: tuple[Finding, ...]) -> Test:
    """What is of no card: a worker that died, a machine without cards, an expectation that was not met."""
    failed = any(finding.severity == "error" for finding in findings)
    outcome: Literal["passed", "failed", "error"] = "failed" if failed else "passed"
    if report.verdict == "not-run":
        outcome = "error"
    return Test("training", outcome, report.headline, findings, report.headline, report.seconds)
