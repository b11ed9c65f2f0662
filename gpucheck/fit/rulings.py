"""What an expert checks about one way of building the cards in, in the order an expert asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gpucheck.fit.addresses import firmware
from gpucheck.fit.case import Case, Ruling
from gpucheck.fit.cooling import cooling, plugs_on_top, side_by_side
from gpucheck.fit.forecast import topology
from gpucheck.fit.hosts import memory, processors, use
from gpucheck.fit.seats import options, slots, sockets
from gpucheck.fit.software import software
from gpucheck.fit.vendor import needs, support
from gpucheck.fit.watts import power_plugs, watts

_QUESTIONS = (
    slots,
    sockets,
    options,
    processors,
    power_plugs,
    watts,
    firmware,
    cooling,
    side_by_side,
    plugs_on_top,
    needs,
    support,
    topology,
    software,
    memory,
    use,
)

_LOWERING = (options, sockets, slots)
"""Those that, once every card has a slot, ask for a change or say that something is not known, and never fail."""

_TELLING = (topology, memory, use)
"""Those that decide nothing."""

_FAILING = tuple(question for question in reversed(_QUESTIONS) if question not in (*_LOWERING, *_TELLING))
"""Those that may fail, the quick ones first: who wants the verdict alone stops there."""


def rulings(case: Case) -> Iterator[Ruling]:
    """Every question, in the order in which an expert asks them."""
    return _asked(_QUESTIONS, case)


def failing(case: Case) -> Iterator[Ruling]:
    """What can fail in a case in which every card has a slot."""
    return _asked(_FAILING, case)


def lowering(case: Case) -> Iterator[Ruling]:
    """What else can lower the verdict of such a case, to *unknown* at worst."""
    return _asked(_LOWERING, case)


def _asked(questions: Iterable[Callable[[Case], Iterator[Ruling]]], case: Case) -> Iterator[Ruling]:
    for question in questions:
        yield from question(case)
