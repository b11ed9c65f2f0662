"""Rulings on slots: does every card have one, which CPUs and risers must be there for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucheck.entries import Size, SlotRow, citations
from gpucheck.findings import Citation
from gpucheck.fit.case import Case, Ruling, admitted, check_of, covered, listed, needs_that_apply, owner_told
from gpucheck.fit.report import Condition, Item, Question
from gpucheck.fit.request import HEIGHT_ROUNDING_MM, ROUNDING_MM, Order, Wanted
from gpucheck.fit.slots import (
    CEM_FULL_LENGTH_MM,
    SLOT_WATTS,
    Remark,
    Seat,
    Topic,
    active_rows,
    height_of,
    merged,
    named_slots,
    of_standard_height,
    seat,
    slots_named,
    vendor_read,
)
from gpucheck.text import plural, say

_ESSENTIAL_WORDS: dict[Topic, str] = {
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
    new = [place for place in case.placement.seats if not place.fitted]
    placed, wanted = len(new), sum(order.count for order in case.request.new)
    rows = {place.row.id: place.row for place in new}
    sources = case.cite(key for row in rows.values() for key in row.src)
    if placed == wanted:
        template = plural(wanted, "The card has a slot: {slots}.", "All {count} cards have a slot: {slots}.")
        text = say(template, count=wanted, slots=listed(rows))
        yield Ruling(check_of("slot", "pass", text, sources))
    elif case.request.may_have_more_slots:
        text = say(
            "{placed} of {wanted} cards find a port that PCI shows. Not known: which slots it has, for nobody read the "
            "firmware's list of them.",
            placed=placed,
            wanted=wanted,
        )
        yield Ruling(check_of("slot", "unknown", text, sources), essential=True)
    else:
        template = plural(wanted, "The card finds no slot.", "{placed} of {wanted} cards find a slot.")
        text = say(template, placed=placed, wanted=wanted)
        yield Ruling(check_of("slot", "fail", text, sources))
        yield from _modules(case)
        yield from _reasons(case)
    yield from _zones(case)
    yield from _displaced(case)
    yield from _lanes_lost(case)
    yield from _unknown_remarks(case)


def _reasons(case: Case) -> Iterator[Ruling]:
    """What keeps the other slots from taking a card: those that one thing alone excludes, if there are any."""
    taken = {slot for place in case.placement.seats for slot in place.covers}
    refused = [
        [remark for remark in _judged(case, order, row).remarks if remark.outcome == "fail"]
        for order in case.request.new
        if order.wanted.card.form == "pcie"
        for row in active_rows(case.server, case.build)
        if row.id not in taken
    ]
    by_one = [remarks for remarks in refused if len(remarks) == 1]
    refusals: dict[Topic, list[Remark]] = {}
    for remark in (remark for remarks in by_one or refused for remark in remarks):
        refusals.setdefault(remark.topic, []).append(remark)
    # An empty socket can be filled, a card can move; a short connector stays short.
    if remarks := refusals.pop("socket", None):
        yield _refused(case, "socket", remarks)
    of_fitted = {slot for place in case.placement.seats if place.fitted for slot in place.covers}
    if by_fitted := sorted(of_fitted | case.build.kept, key=_natural):
        one, many = "A card that is in it takes {slots}.", "The cards that are in it take {slots}."
        text = say(plural(len(by_fitted), one, many), slots=slots_named(by_fitted))
        yield Ruling(check_of("slot", "fail", text, _SEEN))
    for topic, remarks in refusals.items():
        yield _refused(case, topic, remarks)


def _refused(case: Case, topic: Topic, remarks: Sequence[Remark]) -> Ruling:
    text = " ".join(merged(remarks))
    return Ruling(check_of(_ESSENTIAL_WORDS[topic], "fail", text, _rests_on(case, remarks)))


def _rests_on(case: Case, remarks: Sequence[Remark]) -> tuple[Citation, ...]:
    """Sources of what remarks say of slots and of cards."""
    of_slots = case.cite(key for remark in remarks for key in remark.src)
    return (*of_slots, *(source for remark in remarks for source in remark.of_card))


def _natural(slot: str) -> str:
    return slot.zfill(4)


_SEEN = (Citation(title="what a probe found in the machine", confidence="measured"),)


def _modules(case: Case) -> Iterator[Ruling]:
    for order in case.request.new:
        card = order.wanted.card
        if card.form != "pcie":
            text = say("The {card} is a module for a board of its own kind, not a card for a slot.", card=card.name)
            yield Ruling(check_of("slot", "fail", text, citations(card, card.pci[0].src)))


def _judged(case: Case, order: Order, row: SlotRow) -> Seat:
    return seat(order.wanted, row, case.build, named_slots(case.server, order.wanted, case.build))


def _zones(case: Case) -> Iterator[Ruling]:
    """Why a free slot takes no card of another model: the vendor wants one model in each zone."""
    models = {order.wanted.id for order in case.request.orders}
    for zone in case.server.gpu.zones if len(models) > 1 else ():
        text = say("Slots {slots} are one zone: all GPUs in them must be of one model.", slots=listed(zone.slots))
        sources = case.cite(zone.src)
        short = case.left_out > 0
        if vendor_read(case.server, zone.src):
            yield Ruling(check_of("slot", "fail" if short else "pass", text, sources))
        else:
            held = (Condition(text=text, sources=sources),)
            yield Ruling(check_of("slot", "unknown", text, sources), conditions=held)


def _displaced(case: Case) -> Iterator[Ruling]:
    """What stands in the way now, as a probe found it."""
    slots = sorted({slot for place in case.placement.seats for slot in place.displaces})
    if slots:
        text = say("Something stands in {slots} now: it must be taken out or moved.", slots=slots_named(slots))
        held = Condition(
            text=say(
                "what stands in {slots} now can be taken out or moved; what stays in is not in the sum of watts",
                slots=slots_named(slots),
            )
        )
        yield Ruling(check_of("slot", "change", text), conditions=(held,))


def _lanes_lost(case: Case) -> Iterator[Ruling]:
    if case.request.use == "infer":
        return  # a model is loaded once
    for place in case.placement.seats:
        bus = place.wanted.bus
        if bus is None or place.fitted:
            continue
        if place.row.lanes is None:
            text = say("Not known: how many lanes slot {slot} gives the card.", slot=place.row.id)
            yield Ruling(check_of("lanes", "unknown", text))
        elif place.row.lanes < bus.lanes:
            text = say(
                "The {card} has {card_lanes} lanes, slot {slot} gives it {lanes}: it works, copies to and from "
                "the card are slower.",
                card=place.wanted.name,
                card_lanes=bus.lanes,
                slot=place.row.id,
                lanes=place.row.lanes,
            )
            of_card = citations(place.wanted.card, bus.src)
            yield Ruling(check_of("lanes", "pass", text, case.cite(place.row.src), of_card))


def _unknown_remarks(case: Case) -> Iterator[Ruling]:
    """What is not known about a card in its slot: covered by a sourced build, or asked."""
    groups: dict[tuple[str, Topic], list[tuple[Remark, SlotRow]]] = {}
    for place in case.placement.seats:
        for remark in place.unknowns:
            groups.setdefault((place.wanted.id, remark.topic), []).append((remark, place.row))
    kinds = {order.wanted.id: order.wanted for order in case.request.orders}
    for (id, topic), found in groups.items():
        wanted = kinds[id]
        remarks, rows = [remark for remark, _ in found], [row for _, row in found]
        text = " ".join(merged(remarks))
        known, because = _told(case, wanted, topic, rows)
        if known:
            said = say(because, what=text)
            sources = _rests_on(case, remarks)
            yield Ruling(check_of(_ESSENTIAL_WORDS[topic], "pass", said, known, sources), essential=True)
        else:
            yield Ruling(
                check_of(_ESSENTIAL_WORDS[topic], "unknown", text, _rests_on(case, remarks)),
                essential=True,
                conditions=(Condition(text=_WHAT_MUST_HOLD[topic]),),
                questions=(_measure(topic, wanted, rows),),
            )


def _told(case: Case, wanted: Wanted, topic: Topic, rows: Sequence[SlotRow]) -> tuple[tuple[Citation, ...], str]:
    """What covers an unknown about a card in these slots, and the sentence that says so; no sources: nothing does."""
    slots = frozenset(row.id for row in rows)
    if known := covered(case, wanted):
        return known, "{what} But a source has this card in this model."
    if known := room_shown(case, wanted, topic, rows):
        return known, "{what} But a source has a card as large in this model."
    if known := room_in_limit(case, wanted, topic, slots):
        return known, "{what} But the vendor's limit admits such cards there."
    if topic == "socket" and (known := owner_told(case, wanted, slots)):
        return known, "{what} But the vendor names it for so many CPUs."
    return (), ""


def room_shown(case: Case, wanted: Wanted, topic: Topic, rows: Sequence[SlotRow]) -> tuple[Citation, ...]:
    """A sourced build with at least as many other cards that are at least as large shows that there is room.

    Where it names its slots, it speaks of those and of slots that are built like them.
    """
    need = _extent(wanted.size, topic)
    if need is None:
        return ()
    rounding = {"length": ROUNDING_MM, "height": HEIGHT_ROUNDING_MM}.get(topic, 0)
    count = len(rows) + sum(place.fitted for place in case.placement.seats)
    for report in case.server.gpu.reports:
        if not report.works or report.count < count:
            continue
        sizes = [_extent(card.size, topic) for card in case.cards_in(report)]
        as_large = bool(sizes) and all(size is not None and size + rounding >= need for size in sizes)
        shown = {_mechanics(row) for row in active_rows(case.server, case.build) if row.id in report.slots}
        if as_large and (not report.slots or all(_mechanics(row) in shown for row in rows)):
            return case.cite(report.src)
    return ()


def _mechanics(row: SlotRow) -> tuple[object, ...]:
    return (row.connector, row.height, row.length, row.max_wide, row.riser)


def room_in_limit(case: Case, wanted: Wanted, topic: Topic, slots: frozenset[str]) -> tuple[Citation, ...]:
    """A vendor's limit that shows what is not known of a card in these slots."""
    return admitted(case, wanted, slots, room=topic != "slot-watts") if _limit_speaks(topic, wanted) else ()


def _limit_speaks(topic: Topic, wanted: Wanted) -> bool:
    """A vendor's limit speaks of standard cards: it admits none that is larger, or whose size is not known."""
    if topic == "length":
        length = wanted.size.length_mm
        return length is not None and length <= CEM_FULL_LENGTH_MM
    if topic == "height":
        height = height_of(wanted.size)
        return height is not None and of_standard_height(height)
    return topic in ("slot", "connector", "width", "slot-watts")


def _extent(size: Size, topic: Topic) -> float | None:
    """What a larger card shows room for; None for topics that are not about size, or where it is not known."""
    return {"width": size.slots_wide, "height": height_of(size), "length": size.length_mm}.get(topic)


_WHAT_MUST_HOLD: dict[Topic, str] = {
    "slot": "the slot takes GPUs",
    "socket": "the CPU that owns the slot is fitted",
    "connector": "the card's edge connector goes into the slot",
    "width": "the card is no wider than the room at the slot",
    "height": "the lid closes over the card and its power plug",
    "length": "the card is no longer than the room behind the slot",
    "slot-watts": "the slot gives what the card draws from it",
}


_HOW_TO_MEASURE: dict[Topic, tuple[str, str]] = {
    "length": (
        "Is there room for a card of {length:g} mm behind {slots}?",
        "Measure from the slot's bracket to the first obstacle, with room for the plug and its bend.",
    ),
    "height": (
        "Is there room for a card of {height:g} mm and its power plug above {slots}?",
        "Measure from the bottom of the slot's connector to the closed lid.",
    ),
    "width": ("Is there room for a card of {wide} slot widths at {slots}?", "Look at what stands beside the slot."),
    "connector": (
        "Does a card with an x{lanes} connector go into {slots}?",
        "Photograph the slot: an x16 connector is 89 mm long; a shorter one must be open at its end.",
    ),
    "socket": (
        "Is the CPU fitted that owns {slots}?",
        "Look for the print beside the slot or in the manual; on a running machine: gpucheck probe names the socket.",
    ),
    "slot-watts": ("May a card draw {watts} W from {slots}?", "Look up the slot's power limit in the server's manual."),
    "slot": ("Does a GPU go into {slots}?", "Look in the server's manual."),
}

_HOW_TO_COMPARE: dict[Topic, tuple[str, str]] = {
    "length": (
        "How long is the {card}, and how long is the room behind {slots}?",
        "Measure the card from the bracket to its end, and the machine from the slot's bracket to the first "
        "obstacle, with room for the plug and its bend.",
    ),
    "height": (
        "How high is the {card}, and how much room is above {slots}?",
        "Measure from the bottom of the slot's connector to the closed lid, and the card with its power plug.",
    ),
    "width": (
        "How many slots wide is the {card}, and how many are free at {slots}?",
        "Count the bracket's slot covers and look at what stands beside the slot.",
    ),
    "connector": (
        "Is the connector of {slots} as long as that of the {card}?",
        "Photograph both: an x16 connector is 89 mm long.",
    ),
}
"""The same where the card's own measure is not known either."""


def _measure(topic: Topic, wanted: Wanted, rows: Sequence[SlotRow]) -> Question:
    plugged = wanted.power is None or wanted.aux is None or bool(wanted.aux.plugs)
    own: dict[Topic, object] = {
        "length": wanted.size.length_mm,
        "height": height_of(wanted.size),
        "width": wanted.slots_wide,
        "connector": wanted.bus,
    }
    ask, how = (_HOW_TO_COMPARE if own.get(topic, True) is None else _HOW_TO_MEASURE)[topic]
    fields = {
        "card": wanted.name,
        "slots": slots_named(row.id for row in rows),
        "watts": SLOT_WATTS if plugged or wanted.power is None else wanted.power.watts,
        "length": wanted.size.length_mm,
        "height": height_of(wanted.size),
        "wide": wanted.slots_wide,
        "lanes": wanted.bus.connector if wanted.bus is not None else None,
    }
    return Question(ask=say(ask, **fields), how=how, if_yes="That is no obstacle.", if_no="That is in the way.")


def sockets(case: Case) -> Iterator[Ruling]:
    """Which CPUs must be there: those that own the slots that are used, and those that the plan counts on."""
    seats = case.placement.seats
    if not seats or case.server.sockets.count == 1:
        return
    highest = max((place.row.socket for place in seats if place.row.socket is not None), default=1)
    sources = case.cite(key for place in seats if place.row.socket == highest for key in place.row.src)
    # A plan in which cards find no slot counts on nothing: the fuller machine only shows what keeps them out.
    if case.request.cpus is None and not case.left_out and case.build.cpus > highest:
        yield _all_counted_on(case, highest)
    elif highest == 1:
        if all(place.row.socket is not None for place in seats):
            text = say("The slots used belong to CPU 1: one CPU is enough for them.")
            yield Ruling(check_of("socket", "pass", text, sources))
    elif case.request.cpus is not None:
        text = say("CPU {cpu}, which owns a slot used, is fitted.", cpu=highest)
        yield Ruling(check_of("socket", "pass", text, sources))
    else:
        text = say("A slot used belongs to CPU {cpu}: {cpu} CPUs must be fitted.", cpu=highest)
        yield _cpus_needed(highest, text, sources)


def _all_counted_on(case: Case, highest: int) -> Ruling:
    """More CPUs than own the slots used: the vendor wants them, or nobody knows whose the slots are."""
    seats, server = case.placement.seats, case.server
    wanted = [need for need in needs_that_apply(case) if (need.cpus or 1) > highest]
    ownerless = [place.row.id for place in seats if place.row.socket is None]
    fields = {"cpus": case.build.cpus, "slots": slots_named(ownerless), "items": listed(need.item for need in wanted)}
    if wanted:
        text = say("{cpus} CPUs must be fitted, whichever owns the slots used: {items}.", **fields)
    elif ownerless:
        text = say("Which CPU owns {slots} is not known: with {cpus} CPUs fitted it does not matter.", **fields)
    else:
        text = say("The plan counts on {cpus} CPUs, whichever owns the slots used.", **fields)
    keys = [key for need in wanted for key in need.src] or [key for place in seats for key in place.row.src]
    return _cpus_needed(case.build.cpus, text, case.cite(keys or server.sockets.src))


def _cpus_needed(count: int, why: str, sources: tuple[Citation, ...]) -> Ruling:
    item = Item(
        item=say("CPU {cpu} with its heat sink, of the same model as CPU 1", cpu=count),
        part_numbers=(),
        quantity=count - 1,
        need="maybe-fitted",
        why=why,
        sources=sources,
    )
    return Ruling(check_of("socket", "change", why, sources), items=(item,))


def options(case: Case) -> Iterator[Ruling]:
    """Which risers and the like must be there?"""
    for key, option in case.server.options.items():
        chosen = case.build.options[key]
        choice = option.choices[chosen]
        shipped = next(iter(option.choices))
        sources = case.cite(choice.src)
        topic = "riser" if option.riser is not None else "option"
        if key in case.request.options:
            text = say("{label}: {called}, as stated or found.", label=option.label, called=choice.called)
            yield Ruling(check_of(topic, "pass", text, sources))
        elif chosen == shipped:
            text = say("{label}: {called}, as shipped.", label=option.label, called=choice.called)
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
