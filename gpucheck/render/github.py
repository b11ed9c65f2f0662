"""The gate's answer as GitHub Actions reads it: annotations, and a page for the summary of the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucheck.text import say, shorten

if TYPE_CHECKING:
    from gpucheck.checking import CheckReport

_MOST = 10
"""GitHub shows no more annotations of a kind for one step."""


def _data(text: str) -> str:
    """The part after the second pair of colons, as the runner decodes it."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """A value between the command and its message."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _annotation(level: str, title: str, message: str) -> str:
    return f"::{level} title={_property(shorten(title, 120))}::{_data(shorten(message, 1000))}"


def commands(report: CheckReport) -> str:
    """Annotations as commands to the runner: one for each question that was not passed, one for each earlier try,
    what to do, and one for each finding that is allowed."""
    errors, notices = [], []
    for row in report.checks:
        if row.outcome == "fail":
            title = say("gpucheck: {name} ({subject})", name=row.finding or row.topic, subject=row.subject)
            errors.append(_annotation("error", title, row.message))
        elif row.outcome == "unknown":
            errors.append(_annotation("error", say("gpucheck could not check: {topic}", topic=row.topic), row.message))
        elif row.allowance is not None:
            notices.append(_annotation("notice", say("gpucheck: allowed"), row.message))
    warnings = [
        _annotation("warning", say("gpucheck: try {number} was not good", number=number), attempt.headline)
        for number, attempt in enumerate(report.attempts[:-1], 1)
    ]
    if report.advice is not None:
        notices.insert(0, _annotation("notice", say("gpucheck: what to do"), report.advice))
    return "".join(f"{line}\n" for lines in (errors, warnings, notices) for line in lines[:_MOST])
