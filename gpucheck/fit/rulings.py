"""What an expert checks about one way of building the cards in, in the order an expert asks."""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.fit.addresses import firmware
from gpucheck.fit.case import Case, Ruling
from gpucheck.fit.seats import options, slots, sockets
from gpucheck.fit.vendor import cooling, needs, software, support, topology
from gpucheck.fit.watts import power_plugs, watts

_QUESTIONS = (
    slots,
    sockets,
    options,
    power_plugs,
    watts,
    firmware,
    cooling,
    needs,
    support,
    topology,
    software,
)


def rulings(case: Case) -> Iterator[Ruling]:
    """Every question, in the order in which an expert asks them."""
    for question in _QUESTIONS:
        yield from question(case)
