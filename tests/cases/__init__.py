"""Real cases: machines built after problems that people described in public threads.

Each case names its thread and what a good answer is. A case that a probe can see is a function with
:func:`case` that returns a :class:`~machines.build.Golden` (or a whole capture document); one that
it cannot is a row of :data:`ELSEWHERE`. ``docs/cases.md`` is made of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from machines.build import Golden

from gpucheck.findings import Confidence

THREADS = "https://github.com/"


@dataclass(frozen=True)
class Case:
    """One case that a probe can see.

    Attributes:
        id: Number of the case.
        title: What the owner saw, in one line.
        thread: Address of the thread.
        first: The finding that must come first; None where the right answer is that nothing is wrong.
        confidence: Of that finding. Where the thread never settled it, nothing is ``certain``.
        settled: The thread agreed on the cause.
        make: Builds the machine.
        also: Further findings that must be there.
        absent: Findings that would mislead here.
        expect_gpus: As the option of probe.
        says: Words that the first finding (message, evidence, remedy, tests) must hold.
    """

    id: str
    title: str
    thread: str
    first: str | None
    confidence: Confidence | None
    settled: bool
    make: Callable[[], Golden | dict[str, Any]]
    also: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    expect_gpus: int | None = None
    says: tuple[str, ...] = ()


CASES: dict[str, Case] = {}

ELSEWHERE: dict[str, tuple[str, str, str, str]] = {}
"""Case number to title, thread, what answers it (``advise``, ``smoke``, ``check``, ``test`` or ``nothing``), and
how, or why not."""


def case(
    id: str,
    title: str,
    thread: str,
    *,
    first: str | None,
    confidence: Confidence | None = None,
    settled: bool,
    **more: Any,
) -> Callable[[Callable[[], Golden | dict[str, Any]]], Callable[[], Golden | dict[str, Any]]]:
    """Enter a machine as the case of that number."""

    def enter(make: Callable[[], Golden | dict[str, Any]]) -> Callable[[], Golden | dict[str, Any]]:
        assert id not in CASES, id
        CASES[id] = Case(id, title, thread, first, confidence, settled, make, **more)
        return make

    return enter


def load() -> dict[str, Case]:
    """Every case that a probe can see, by number."""
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        import_module(f"cases.{path.stem}")
    return dict(sorted(CASES.items()))
