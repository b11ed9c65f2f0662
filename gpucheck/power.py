"""Sums of watts that rules and fit share. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Redundancy = Literal["none", "n+1", "n+n"]
REDUNDANCIES: tuple[Redundancy, ...] = ("none", "n+1", "n+n")

LOW_LINE_BELOW_VOLTS = 180
"""Mains below this is the 100-120 V range; server supplies give their rated output at 200-240 V."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A load in watts that is known to lie between two values; ``high`` None: no upper bound is known."""

    low: float
    high: float | None

    def __add__(self, other: Bounds) -> Bounds:
        high = None if self.high is None or other.high is None else self.high + other.high
        return Bounds(self.low + other.low, high)

    def times(self, count: int) -> Bounds:
        """The same load ``count`` times."""
        return Bounds(self.low * count, None if self.high is None else self.high * count)


def usable_watts(count: int, watts: float, redundancy: Redundancy) -> float:
    """Output that may be used so that the wanted number of supplies can fail.

    Args:
        count: Supplies fitted and plugged in.
        watts: Output of one, at the voltage in question.
        redundancy: ``none`` uses all, ``n+1`` spares one, ``n+n`` spares half (rounded up).
    """
    spare = {"none": 0, "n+1": 1, "n+n": (count + 1) // 2}[redundancy]
    return max(count - spare, 0) * watts


def judged(load: Bounds, usable: float) -> Literal["pass", "fail", "unknown"]:
    """Upper bound fits: pass. Lower bound exceeds: fail. Otherwise nobody can say yet."""
    if load.high is not None and load.high <= usable:
        return "pass"
    return "fail" if load.low > usable else "unknown"
