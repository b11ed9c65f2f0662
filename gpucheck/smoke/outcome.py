"""What a training leaves behind for its judges, and what they make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from gpucheck.findings import Finding
from gpucheck.smoke.report import (
    AllReduce,
    Deep,
    Isolation,
    Numerics,
    Scaling,
    SmokeDevice,
    Soak,
    Split,
    TensorFlowBuild,
    Verdict,
)

if TYPE_CHECKING:
    from gpucheck.facts import Parts
    from gpucheck.readers.nvml_watch import Sample
    from gpucheck.smoke.counters import Counters


@dataclass(slots=True)
class Outcome:
    """How the worker ended and what it said until then.

    Attributes:
        ending: ``done``; ``failed`` by an exception that it reported; ``died`` without a word;
            ``stuck`` when heartbeats stopped; ``late`` when the whole time was used up; ``lost`` when
            it was ended because a worker on another host was.
        returncode: As subprocess gives it: negative for a signal; None when it could not be ended.
        started: ``time.monotonic()`` just before the worker was started.
        touched: The same when the worker said that it looks for devices: until then every card was idle.
        seconds: From then until it was gone.
        limit_seconds: The limit that was broken, for ``stuck`` and ``late``.
        left_behind: It, or a process that it started, could not be ended or outlived it.
        task: Number of the task of a closer look that began last, and ``time.monotonic()`` of then.
        examined: What the worker said of the tasks that came to their end.
    """

    ending: Literal["done", "failed", "died", "stuck", "late", "lost"] = "died"
    pid: int = 0
    started: float = 0.0
    touched: float | None = None
    returncode: int | None = None
    phase: str = "start"
    device: str | None = None
    step: int | None = None
    build: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    stderr: list[str] = field(default_factory=list)
    seconds: float = 0.0
    limit_seconds: float | None = None
    left_behind: bool = False
    task: int | None = None
    task_began: float | None = None
    examined: list[dict[str, Any]] = field(default_factory=list)

    @property
    def task_seconds(self) -> float:
        """How long the last task had until the worker was gone."""
        return 0.0 if self.task_began is None else self.ended - self.task_began

    @property
    def ended(self) -> float:
        """``time.monotonic()`` when the worker was gone."""
        return self.started + self.seconds


@dataclass(frozen=True, slots=True)
class Watched:
    """What was read of the cards beside the training.

    Attributes:
        samples: What the NVML watch saw, oldest first; None where there was no watch.
        parts: How the watch began and ended.
        before: Counters before the worker was started; None where they were not read.
        after: The same after its end.
    """

    samples: Sequence[Sample] | None = None
    parts: Parts | None = None
    before: Counters | None = None
    after: Counters | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """Everything of the report that follows from the evidence."""

    verdict: Verdict
    headline: str
    proves_gpu: bool = False
    devices: tuple[SmokeDevice, ...] = ()
    numerics: Numerics | None = None
    scaling: Scaling | None = None
    findings: tuple[Finding, ...] = ()
    tensorflow: TensorFlowBuild | None = None
    global_batch: int | None = None
    split: Split | None = None
    isolation: tuple[Isolation, ...] = ()
    allreduce: tuple[AllReduce, ...] = ()
    deep: Deep | None = None
    soak: Soak | None = None
