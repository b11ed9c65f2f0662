"""Rulings on slots: does every card have one, which CPUs and risers must be there for it."""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.entries import Size, SlotRow
from gpucheck.findings import Citation
from gpucheck.fit.case import Case, Ruling, check_of, covered, listed
from gpucheck.fit.report import Condition, Item, Question
from gpucheck.fit.request import Wanted
from gpucheck.fit.slots import Remark, active_rows, height_of, merged, seat
from gpucheck.text import say

_ESSENTIAL_WORDS = {
    "slot": "slot",
    "socket": "socket",
    "connector": "slot",
    "width": "width",
    "height": "geometry",
    "length": "geometry",
    "slot-watts": "watts",
}


def slots(case: Case) -> Iterator[Ruling]:
    """Does every card have a slot, and why not?"""
    placed, wanted = len(case.placement.seats), case.request.count
    rows = {place.row.id: place.row for place in case.placement.seats}
    sources = case.cite(key for row in rows.values() for key in row.src)
    if placed == wanted:
        text = say("{count} of {count} cards have a slot: {slots}.", count=wanted, slots=listed(rows))
        yield Ruling(check_of("slot", "pass", text, sources))
    else:
        text = say("{placed} of {wanted} cards find a slot.", placed=placed, wanted=wanted)
        yield Ruling(check_of("slot", "fail", text, sources))
        yield from _reasons(case)
    yield from _lanes_lost(case)
    yield from _unknown_remarks(case)


def _reasons(case: Case) -> Iterator[Ruling]:
    """What keeps the other slots from taking a card: those that one thing alone excludes, if there are any."""
    taken = {slot for place in case.placement.seats for slot in place.covers}
    refused = [
        [remark for remark in seat(order.wanted, row, case.build).remarks if remark.outcome == "fail"]
        for order in case.request.orders
        for row in active_rows(case.server, case.build)
        if row.id not in taken
    ]
    by_one = [remarks for remarks in refused if len(remarks) == 1]
    refusals: dict[str, list[Remark]] = {}
    for remark in (remark for remarks in by_one or refused for remark in remarks):
        refusals.setdefault(remark.topic, []).append(remark)
    for topic, remarks in refusals.items():
        text = " ".join(merged(remarks))
        sources = case.cite(key for remark in remarks for key in remark.src)
        yield Ruling(check_of(_ESSENTIAL_WORDS[topic], "fail", text, sources))


def _lanes_lost(case: Case) -> Iterator[Ruling]:
    for place in case.placement.seats:
        bus = place.wanted.bus
        if bus is not None and place.row.lanes < bus.lanes:
            text = say(
                "The {card} has {card_lanes} lanes, slot {slot} gives it {lanes}: it works, copies to and from "
                "the card are slower.",
                card=place.wanted.name,
                card_lanes=bus.lanes,
                slot=place.row.id,
                lanes=place.row.lanes,
            )
            yield Ruling(check_of("lanes", "pass", text, case.cite(place.row.src)))


def _unknown_remarks(case: Case) -> Iterator[Ruling]:
    """What is not known about a card in its slot: covered by a sourced build, or asked."""
    groups: dict[tuple[str, str], list[tuple[Remark, SlotRow]]] = {}
    for place in case.placement.seats:
        for remark in place.unknowns:
            groups.setdefault((place.wanted.id, remark.topic), []).append((remark, place.row))
    kinds = {order.wanted.id: order.wanted for order in case.request.orders}
    for (id, topic), found in groups.items():
        wanted = kinds[id]
        remarks = [remark for remark, _ in found]
        text = " ".join(merged(remarks))
        known, because = covered(case, wanted), say("{what} But this card is known to work in this model.", what=text)
        if not known:
            known = _room_shown(case, wanted, topic, len(found))
            because = say("{what} But a card as large is known to work in this model.", what=text)
        if known:
            yield Ruling(check_of(_ESSENTIAL_WORDS[topic], "pass", because, known), essential=True)
        else:
            yield Ruling(
                check_of(_ESSENTIAL_WORDS[topic], "unknown", text, case.cite(key for r in remarks for key in r.src)),
                essential=True,
                conditions=(Condition(text=_WHAT_MUST_HOLD[topic]),),
                questions=(_measure(topic, wanted, ", ".join(dict.fromkeys(row.id for _, row in found))),),
            )


def _room_shown(case: Case, wanted: Wanted, topic: str, count: int) -> tuple[Citation, ...]:
    """A sourced build with at least as many other cards that are at least as large shows that there is room."""
    if topic not in ("width", "height", "length"):
        return ()
    need = _extent(wanted.size, topic)
    if need is None:
        return ()
    for report in case.server.gpu.reports:
        if report.works and report.count >= count:
            sizes = [_extent(card.size, topic) for card in case.cards_in(report)]
            if sizes and all(size is not None and size >= need for size in sizes):
                return case.cite(report.src)
    return ()


def _extent(size: Size, topic: str) -> float | None:
    return {"width": size.slots_wide, "height": height_of(size), "length": size.length_mm}[topic]


_WHAT_MUST_HOLD = {
    "slot": "the slot takes GPUs",
    "socket": "the CPU that owns the slot is fitted",
    "connector": "the card's edge connector goes into the slot",
    "width": "the card is no wider than the room at the slot",
    "height": "the lid closes over the card and its power plug",
    "length": "the card is no longer than the room behind the slot",
    "slot-watts": "the slot gives what the card draws from it",
}


def _measure(topic: str, wanted: Wanted, slot: str) -> Question:
    fields = {"card": wanted.name, "slot": slot}
    ask, how = {
        "length": (
            "How long is the {card}, and how long is the room at slot {slot}?",
            "Measure the card from the bracket to its end, and the machine from the slot's bracket to the first "
            "obstacle, with room for the plug and its bend.",
        ),
        "height": (
            "How high is the {card}, and how much room is above slot {slot}?",
            "Measure from the bottom of the slot's connector to the closed lid, and the card with its power plug.",
        ),
        "width": (
            "How many slots wide is the {card}, and how many are free beside slot {slot}?",
            "Count the bracket's slot covers and look at what stands beside the slot.",
        ),
        "connector": (
            "Is the connector of slot {slot} as long as the card's?",
            "Photograph the slot: an x16 connector is 89 mm long.",
        ),
        "socket": (
            "Which CPU does slot {slot} belong to?",
            "Look for the print beside the slot or in the manual; on a running machine: "
            "gpucheck probe names the socket.",
        ),
        "slot-watts": (
            "May a card draw 75 W from slot {slot}?",
            "Look up the slot's power limit in the server's manual.",
        ),
        "slot": ("Does slot {slot} take a GPU?", "Look in the server's manual."),
    }[topic]
    return Question(
        ask=say(ask, **fields),
        how=say(how, **fields),
        if_yes="It fits if the numbers do.",
        if_no="It does not fit.",
    )


def sockets(case: Case) -> Iterator[Ruling]:
    """Which CPUs must be there for the slots that are used?"""
    owners = {place.row.socket for place in case.placement.seats if place.row.socket is not None}
    highest = max(owners, default=1)
    sources = case.cite(key for place in case.placement.seats if place.row.socket == highest for key in place.row.src)
    if not case.placement.seats or case.server.sockets.count == 1:
        return
    if highest == 1:
        yield Ruling(check_of("socket", "pass", say("The slots used belong to CPU 1: one CPU is enough."), sources))
    elif case.request.cpus is not None:
        text = say("CPU {cpu}, which owns a slot used, is fitted.", cpu=highest)
        yield Ruling(check_of("socket", "pass", text, sources))
    else:
        text = say("A slot used belongs to CPU {cpu}: {cpu} CPUs must be fitted.", cpu=highest)
        item = Item(
            item=say("CPU {cpu} with its heat sink, of the same model as CPU 1", cpu=highest),
            part_numbers=(),
            quantity=highest - 1,
            need="maybe-fitted",
            why=text,
            sources=sources,
        )
        yield Ruling(check_of("socket", "change", text, sources), items=(item,))


def options(case: Case) -> Iterator[Ruling]:
    """Which risers and the like must be there?"""
    for key, option in case.server.options.items():
        chosen = case.build.options[key]
        choice = option.choices[chosen]
        shipped = next(iter(option.choices))
        sources = case.cite(choice.src)
        topic = "riser" if option.riser is not None else "option"
        if key in case.request.options:
            text = say("{label}: {called}, as stated.", label=option.label, called=choice.called)
            yield Ruling(check_of(topic, "pass", text, sources))
        elif chosen == shipped:
            text = say("{label}: {called}, as shipped, is enough.", label=option.label, called=choice.called)
            yield Ruling(check_of(topic, "pass", text, sources))
        else:
            text = say("{label}: {called} is needed.", label=option.label, called=choice.called)
            item = Item(
                item=choice.called,
                part_numbers=choice.parts,
                quantity=1,
                need="must",
                why=say(
                    "As shipped, {label} is: {called}.",
                    label=option.label,
                    called=option.choices[shipped].called,
                ),
                sources=sources,
            )
            yield Ruling(check_of(topic, "change", text, sources), items=(item,))
