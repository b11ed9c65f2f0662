"""What came of a soak: curves over its time, and rounds that ended otherwise than the first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from gpucheck.findings import Evidence, Finding, finding
from gpucheck.readers.nvml_watch import Sample
from gpucheck.smoke.numbers import TOLERANCE
from gpucheck.smoke.report import Curve, Soak, SoakedCard
from gpucheck.text import plural, say

POINTS = 60
"""Values of a curve; fewer where less was read."""

Points = Sequence[tuple[float, float]]
"""Time and value, oldest first."""


def curve(points: Points, began: float, ended: float, most: int = POINTS) -> Curve | None:
    """Means over equal spans of time; None without a point in that time."""
    inside = [(at, value) for at, value in points if began <= at <= ended]
    if not inside:
        return None
    spans = min(most, len(inside))
    width = (ended - began) / spans or 1.0
    boxes: list[list[float]] = [[] for _ in range(spans)]
    for at, value in inside:
        boxes[min(spans - 1, int((at - began) / width))].append(value)
    values = [value for _, value in inside]
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
