"""What came of a soak: curves over its time, and rounds that ended otherwise than the first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gpucheck.findings import Evidence, Finding, finding
from gpucheck.smoke.numbers import TOLERANCE
from gpucheck.smoke.outcome import Judgement, Outcome, Watched
from gpucheck.smoke.report import Curve, Soak, SoakedCard
from gpucheck.text import plural, say

if TYPE_CHECKING:
    from gpucheck.readers.nvml_watch import Sample

POINTS = 60
"""Values of a curve; fewer where less was read."""

Points = Sequence[tuple[float, float]]
"""Time and value, oldest first."""


def curve(points: Points, began: float, ended: float, most: int = POINTS) -> Curve | None:
    """The values, or means over equal spans of time where there are too many; None without any."""
    inside = [(at, value) for at, value in points if began <= at <= ended]
    if not inside:
        return None
    values = [value for _, value in inside]
    boxes: list[list[float]] = [[value] for value in values]
    if len(values) > most:
        boxes = [[] for _ in range(most)]
        for at, value in inside:
            boxes[min(most - 1, int(most * (at - began) / (ended - began)))].append(value)
    return Curve(
        least=min(values),
        most=max(values),
        last=values[-1],
        values=tuple(round(fmean(box), 3) if box else None for box in boxes),
    )


def soak_of(result: Mapping[str, Any], samples: Sequence[Sample], ended: float) -> Soak:
    """Weigh a soak.

    Args:
        result: What the worker said of it.
        samples: What the NVML watch saw.
        ended: ``time.monotonic()`` of the parent when the soak was over.
    """
    rounds = result["rounds"]
    seconds = rounds[-1]["at"]
    wrong = [_is_wrong(one) for one in rounds]
    differences = [one["difference"] for one in rounds]
    speeds = curve([(one["at"], one["per_second"]) for one in rounds], 0.0, seconds)
    counted = curve([(one["at"], float(sum(wrong[: n + 1]))) for n, one in enumerate(rounds)], 0.0, seconds)
    assert speeds is not None
    assert counted is not None
    began = ended - seconds
    addresses = sorted({sample.address for sample in samples if sample.address is not None})
    return Soak(
        seconds=round(seconds, 3),
        rounds=len(rounds),
        steps_per_round=result["steps"],
        wrong_rounds=sum(wrong),
        max_difference=None if None in differences else max(differences),
        examples_per_second=speeds,
        wrong=counted,
        cards=tuple(
            _card(address, [one for one in samples if one.address == address], began, ended) for address in addresses
        ),
    )


def _is_wrong(one: Mapping[str, Any]) -> bool:
    difference, spread = one["difference"], one["spread"]
    return difference is None or not difference <= TOLERANCE or spread != 0


def _card(address: str, samples: Sequence[Sample], began: float, ended: float) -> SoakedCard:
    def of(read: Callable[[Sample], float | None], *, risen: bool = False) -> Curve | None:
        points = [(one.seconds, value) for one in samples if (value := read(one)) is not None]
        if risen and points:
            before = [value for at, value in points if at <= began] or [points[0][1]]
            points = [(at, value - before[-1]) for at, value in points]
        return curve(points, began, ended)

    return SoakedCard(
        address=address,
        temperature_c=of(lambda one: one.temperature_c),
        sm_clock_mhz=of(lambda one: one.sm_clock_mhz),
        power_watts=of(lambda one: one.power_watts),
        pcie_replays=of(lambda one: one.pcie_replays, risen=True),
        ecc_corrected=of(lambda one: one.ecc_corrected, risen=True),
    )


def soaked(judgement: Judgement, outcome: Outcome, watched: Watched) -> Judgement:
    """The judgement with what came of the soak, where there was one."""
    result = (outcome.result or {}).get("soak")
    if result is None:
        return judgement
    soak = soak_of(result, watched.samples or (), outcome.ended)
    wrong = wrong_rounds(soak)
    if not wrong:
        return replace(judgement, soak=soak)
    return replace(
        judgement,
        soak=soak,
        verdict="fail",
        proves_gpu=False,
        headline=wrong[0].message if judgement.verdict == "pass" else judgement.headline,
        findings=(*judgement.findings, *wrong),
    )


def wrong_rounds(soak: Soak) -> list[Finding]:
    """A fault that comes with heat or time."""
    if not soak.wrong_rounds:
        return []
    return [
        finding(
            "gradient-mismatch",
            "error",
            "machine",
            plural(
                soak.wrong_rounds,
                say("One of {all} rounds of the soak ended with other parameters than the first.", all=soak.rounds),
                say(
                    "{n} of {all} rounds of the soak ended with other parameters than the first.",
                    n=soak.wrong_rounds,
                    all=soak.rounds,
                ),
            ),
            evidence=(
                Evidence(
                    source=say("largest difference of a parameter"),
                    text=say("not a number") if soak.max_difference is None else f"{soak.max_difference:.3g}",
                ),
            ),
            remedy=(
                say("Compare the curves of temperature and clock with that of wrong rounds."),
                say("Take overclocking off; set a lower power limit (nvidia-smi -pl) and soak once more."),
            ),
        )
    ]
