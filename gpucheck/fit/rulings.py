"""What an expert checks about one way of building the cards in, in the order an expert asks."""

from __future__ import annotations

from gpucheck.fit.addresses import firmware
from gpucheck.fit.case import Case, Ruling
from gpucheck.fit.seats import options, slots, sockets
from gpucheck.fit.vendor import cooling, needs, software, support, topology
from gpucheck.fit.watts import power_plugs, watts


def rulings(case: Case) -> tuple[Ruling, ...]:
    """Every question, in the order in which an expert asks them."""
    questions = (
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
    return tuple(ruling for question in questions for ruling in question(case))
