"""Rulings on heat and on the room that plugs take: what the chassis cools, open fans side by side, plugs on top."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from gpucheck.entries import citations
from gpucheck.fit.case import Case, Ruling, binds, check_of, cited, covered, listed
from gpucheck.fit.report import Condition
from gpucheck.fit.request import Wanted
from gpucheck.fit.slots import Seat, active_rows, height_of, slots_named
from gpucheck.text import say

_NAME = "mechanics"
"""The document of ``catalog/software`` that holds what is true of any chassis."""


def _document(case: Case) -> Mapping[str, Any]:
    catalog = case.request.catalog
    return {} if catalog is None else catalog.software.get(_NAME, {})


def cooling(case: Case) -> Iterator[Ruling]:
    """Does the chassis cool this kind of card?"""
    for order in case.request.new:
        wanted = order.wanted
        if wanted.cooling is None:
            text = say("How the {card} is cooled is not known.", card=wanted.name)
            yield Ruling(
                check_of("cooling", "unknown", text),
                conditions=(Condition(text="the chassis cools the card"),),
            )
            continue
        kind = wanted.cooling.kind
        rows = [(row, row.passive if kind == "passive" else row.active) for row in case.server.cooling]
        spoken = [(row, said) for row, said in rows if said is not None]
        card_sources = citations(wanted.card, wanted.cooling.src)
        if not spoken:
            text = say(
                "The {card} is {kind}; what this chassis cools is not known.",
                card=wanted.name,
                kind=_KINDS[kind],
            )
            if known := covered(case, wanted):
                text = say("{what} But a source has this card in this model.", what=text)
                yield Ruling(check_of("cooling", "pass", text, card_sources, known))
            else:
                held = Condition(text=_airflow(case, wanted, kind))
                yield Ruling(check_of("cooling", "unknown", text, card_sources), conditions=(held,))
        for row, said in spoken:
            sources = case.cite(row.src)
            note = row.note or say("The {card} is {kind}.", card=wanted.name, kind=_KINDS[kind])
            if said == "yes":
                yield Ruling(check_of("cooling", "pass", note, card_sources, sources))
            elif said == "no" and binds(sources):
                yield Ruling(check_of("cooling", "fail", note, card_sources, sources))
            else:
                text = row.remedy or say("the chassis cools the card in spite of this: {what}", what=note)
                held = Condition(text=text, sources=sources)
                yield Ruling(check_of("cooling", "unknown", note, card_sources, sources), conditions=(held,))


_KINDS = {
    "passive": "passive (it lives on the server's airflow)",
    "blower": "cooled by a blower",
    "open-air": "cooled by open fans",
    "liquid": "cooled by liquid",
}


def _airflow(case: Case, wanted: Wanted, kind: str) -> str:
    """What must hold where no source says what the chassis cools."""
    if kind == "passive" and case.server.form.kind != "rack":
        template = (
            "a fan with a shroud blows air through the {card}: it has none of its own, and this is no rack server"
        )
        return say(template, card=wanted.name)
    return say("the airflow at the slot is enough for a card that is {kind}", kind=_KINDS[kind])


# --- open fans side by side ---------------------------------------------------------------------


def side_by_side(case: Case) -> Iterator[Ruling]:
    """Do cards with open fans blow their heat into each other?"""
    seats, document = _side_by_side(case), _document(case)
    if not document or all(seat.fitted for seat in seats):
        return
    rule = document["open_fans"]
    slots = listed(seat.row.id for seat in seats)
    text = say("Cards with open fans stand side by side in slots {slots}. {why}", slots=slots, why=rule["why"])
    known = [covered(case, seat.wanted) for seat in seats]
    if all(known):
        said = say("{what} But a source has these cards in this model.", what=text)
        yield Ruling(check_of("cooling", "pass", said, *known))
        return
    sources = [citations(seat.wanted.card, seat.wanted.cooling.src) for seat in seats if seat.wanted.cooling]
    check = check_of("cooling", "unknown", text, *sources, cited(_NAME, document, rule["src"]))
    held = say("cards with open fans stay cool enough side by side in slots {slots}; blowers would", slots=slots)
    yield Ruling(check, conditions=(Condition(text=held, sources=check.sources),))


def _side_by_side(case: Case) -> list[Seat]:
    """Cards with open fans that have one for a neighbour, as far as the numbers of the slots tell."""
    fans = [s for s in case.placement.seats if s.wanted.cooling is not None and s.wanted.cooling.kind == "open-air"]
    if len(fans) < 2:
        return []
    rows = sorted(active_rows(case.server, case.build), key=lambda row: (row.riser or "", row.id.zfill(4)))
    places = {row.id: place for place, row in enumerate(rows)}
    fans.sort(key=lambda seat: places[seat.row.id])
    close = []
    for first, second in itertools.pairwise(fans):
        between = rows[places[first.row.id] + 1 : places[second.row.id]]
        covers = first.covers | second.covers
        touch = all(row.id in covers for row in between) or _gap(first, second) <= (first.wanted.slots_wide or 1)
        if touch and first.row.riser == second.row.riser:
            close += [first, second]
    return list({seat.row.id: seat for seat in close}.values())


def _gap(first: Seat, second: Seat) -> float:
    """How many slots on the second stands, by the numbers; infinite where the slots are not numbered."""
    ids = first.row.id, second.row.id
    return int(ids[1]) - int(ids[0]) if all(id.isdecimal() for id in ids) else math.inf


# --- plugs on top -------------------------------------------------------------------------------


def plugs_on_top(case: Case) -> Iterator[Ruling]:
    """Is there room above the card for a plug on its top edge and the bend of the cable?"""
    groups: dict[tuple[str, float | None], list[Seat]] = {}
    for seat in case.placement.seats:
        aux = seat.wanted.aux
        if not seat.fitted and aux is not None and aux.plugs and aux.at == "top":
            groups.setdefault((seat.wanted.id, seat.row.clearance_height_mm), []).append(seat)
    document = _document(case)
    if not groups or not document:
        return
    bend, bent = document["plug_bend"]["mm"], cited(_NAME, document, document["plug_bend"]["src"])
    for (_, room), seats in groups.items():
        wanted = seats[0].wanted
        height = height_of(wanted.size)
        if height is None or wanted.aux is None:
            continue
        slots = slots_named(seat.row.id for seat in seats)
        fields = {
            "card": wanted.name,
            "need": height + bend,
            "bend": bend,
            "room": room,
            "slots": slots,
        }
        told = citations(wanted.card, wanted.aux.src)
        if room is not None and height + bend <= room:
            text = say(
                "The {card} with its plug on top needs {need:g} mm of height; there are {room:g} mm above {slots}.",
                **fields,
            )
            above = case.cite(key for seat in seats for key in seat.row.src_of("height"))
            yield Ruling(check_of("geometry", "pass", text, told, above, bent))
            continue
        template = (
            "The plug is on top of the {card}: with about {bend} mm for it and its bend, {need:g} mm of height are "
            "needed; how much is free above {slots} is not known."
            if room is None
            else "The plug is on top of the {card}: with about {bend} mm for it and its bend, {need:g} mm of height "
            "are needed; there are {room:g} mm above {slots}."
        )
        held = say(
            "about {need:g} mm of height are free at {slots}, or an angled plug is used: the plug is on top of "
            "the {card}",
            **fields,
        )
        check = check_of("geometry", "unknown", say(template, **fields), told, bent)
        yield Ruling(check, conditions=(Condition(text=held, sources=check.sources),))
