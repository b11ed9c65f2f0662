"""What a probed machine holds, and how many more cards it takes as it stands."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from gpucheck.entries import citations
from gpucheck.fit.plans import best_verdict, most_cards
from gpucheck.fit.report import FittedCard, RoomLeft
from gpucheck.fit.request import Order, Request
from gpucheck.text import plural, say


def fitted_cards(request: Request) -> tuple[FittedCard, ...]:
    """The cards that a probe found, those that the catalog does not know last."""
    known = tuple(
        FittedCard(
            gpu=order.wanted.id,
            name=order.wanted.name,
            slot=order.slot,
            watts=power.watts if power is not None else None,
            sources=citations(order.wanted.card, power.src) if power is not None else (),
        )
        for order in request.fitted
        for power in (order.wanted.power,)
    )
    unknown = tuple(
        FittedCard(gpu=None, name=one.name, slot=one.slot, watts=one.watts, sources=one.sources)
        for one in request.strangers
    )
    return known + unknown


def room_left(request: Request, most: int | None = None) -> tuple[RoomLeft, ...]:
    """How many more of each card a probed machine takes: of those asked for, or of those in it where none is.

    Args:
        request: The machine as a probe found it. Of one that nobody probed no room is told.
        most: What :func:`~gpucheck.fit.plans.most_cards` says, where one kind is asked for and that is known.
    """
    kinds = {order.wanted.id: order.wanted for order in request.new or request.fitted}
    found = []
    for wanted in kinds.values() if request.probed else ():
        if wanted.card.form != "pcie":
            continue
        asked = request.with_new((Order(wanted, 1),))
        more = most_cards(asked) if most is None else most
        kept = most_cards(replace(asked, kept=request.occupied)) if request.occupied - request.kept else more
        verdict = best_verdict(asked)
        found.append(RoomLeft(gpu=wanted.id, name=wanted.name, verdict=verdict, more=more, nothing_moved=kept))
    return tuple(found)


def in_it(request: Request) -> str:
    """``2 × Tesla P40 + 1 × Tesla T4``: the cards that a probe found; empty for none."""
    names = Counter([*(order.wanted.name for order in request.fitted), *(one.name for one in request.strangers)])
    return " + ".join(f"{count} × {name}" for name, count in names.items())


def asked_for(request: Request) -> str:
    """The cards asked for, and those beside which they would stand."""
    asked = " + ".join(f"{order.count} × {order.wanted.name}" for order in request.new)
    there = len(request.fitted) + len(request.strangers)
    if not there:
        return asked
    one, many = "{asked} next to the {fitted} that is in it", "{asked} next to the {fitted} that are in it"
    return say(plural(there, one, many), asked=asked, fitted=in_it(request))
