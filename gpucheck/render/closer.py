"""The closer look at a training and its soak, as rows that every form of the report shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucheck.smoke.job import JOIN
from gpucheck.text import plural, say

if TYPE_CHECKING:
    from gpucheck.smoke.report import AllReduce, Curve, SmokeReport, Soak

MOST_TRIALS = 12
"""Of more, only those are listed that were not right."""
LONGEST_LINE = 40
_BLOCKS, _ASCII = "▁▂▃▄▅▆▇█", "_.-~=+*#"

TRIALS = ("devices", "result", "seconds")
SUMS = ("exchange", "size", "ms", "GB/s", "sum")
FILLS = ("memory of", "GiB", "seconds", "result")
CURVES = ("", "least", "most", "last", "over the time")

Rows = list[tuple[str, ...]]


def trials(report: SmokeReport) -> tuple[str, Rows]:
    """A sentence, and what is worth a line."""
    good = sum(trial.outcome == "pass" for trial in report.isolation)
    sentence = plural(
        len(report.isolation),
        say("One short training of some of the devices."),
        say("{good} of {all} short trainings of some of the devices were right.", good=good, all=len(report.isolation)),
    )
    shown = [
        trial
        for trial in report.isolation
        if len(report.isolation) <= MOST_TRIALS or trial.outcome != "pass" or not trial.peer_access
    ]
    return sentence, [
        (
            JOIN.join(trial.devices),
            (trial.detail or trial.outcome)
            if trial.peer_access
            else say("{outcome} without peer access", outcome=trial.outcome),
            f"{trial.seconds:.1f}",
        )
        for trial in shown
    ]


def sums(report: SmokeReport) -> Rows:
    """Known sums by size, then by way."""
    return [_sum(one) for one in (*report.allreduce, *(report.deep.ways if report.deep else ()))]


def _sum(one: AllReduce) -> tuple[str, ...]:
    return (
        one.way,
        f"{one.bytes >> 20} MiB" if one.bytes >> 20 else f"{one.bytes >> 10} KiB",
        "-" if one.seconds is None else f"{1000 * one.seconds:.2f}",
        "-" if one.bytes_per_second is None else f"{one.bytes_per_second / 1e9:.2f}",
        one.error or say("unknown") if one.correct is None else say("right") if one.correct else say("wrong"),
    )


def fills(report: SmokeReport) -> Rows:
    """Memory that was filled and read back."""
    return [
        (
            one.device,
            "-" if one.bytes is None else f"{one.bytes / 2**30:.2f}",
            f"{one.seconds:.1f}",
            one.error or plural(one.wrong_words or 0, say("1 wrong word"), say("{n} wrong words", n=one.wrong_words))
            if one.wrong_words or one.error
            else say("as written"),
        )
        for one in (report.deep.vram if report.deep else ())
    ]


def cut_short(report: SmokeReport) -> str | None:
    """Where time was up."""
    if report.deep is None or not report.deep.cut_short:
        return None
    return say("Time was up before everything was tried: a larger --timeout shows the rest.")


def soaked(soak: Soak) -> str:
    """What a soak was, in a sentence."""
    return say(
        "{rounds} rounds of {steps} steps in {minutes:.1f} min, each from the same parameters; {wrong} ended otherwise "
        "than the first.",
        rounds=soak.rounds,
        steps=soak.steps_per_round,
        minutes=soak.seconds / 60,
        wrong=soak.wrong_rounds,
    )


def curves(soak: Soak, *, ascii_only: bool = False) -> Rows:
    """One row for each quantity that was read; of errors only those that rose."""
    found: Rows = [_curve(say("examples/s"), soak.examples_per_second, ascii_only)]
    if soak.wrong.last:
        found.append(_curve(say("wrong rounds"), soak.wrong, ascii_only))
    for card in soak.cards:
        for what, curve in (
            (say("{card} °C", card=card.address), card.temperature_c),
            (say("{card} MHz", card=card.address), card.sm_clock_mhz),
            (say("{card} W", card=card.address), card.power_watts),
        ):
            if curve is not None:
                found.append(_curve(what, curve, ascii_only))
        for what, curve in (
            (say("{card} PCIe replays", card=card.address), card.pcie_replays),
            (say("{card} corrected memory errors", card=card.address), card.ecc_corrected),
        ):
            if curve is not None and curve.last:
                found.append(_curve(what, curve, ascii_only))
    return found


def _curve(what: str, curve: Curve, ascii_only: bool) -> tuple[str, ...]:
    return (what, *(f"{value:,.0f}" for value in (curve.least, curve.most, curve.last)), sparkline(curve, ascii_only))


def sparkline(curve: Curve, ascii_only: bool = False) -> str:
    """One sign for each value, or for a few of them; a blank where nothing was read."""
    signs = _ASCII if ascii_only else _BLOCKS
    step = -(-len(curve.values) // LONGEST_LINE)
    values = curve.values[::step]
    span = curve.most - curve.least
    return "".join(
        " "
        if value is None
        else signs[min(len(signs) - 1, int((value - curve.least) / span * len(signs)) if span else 0)]
        for value in values
    )
