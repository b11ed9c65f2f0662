"""The advice: what the best plan says, how many cards there is room for, and what else could be done."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpucheck.entries import Bus, Card, Server, Size, SlotRow, Software, citations
from gpucheck.fit.case import Case, Ruling
from gpucheck.fit.forecast import forecast
from gpucheck.fit.plans import VERDICT_ORDER, Plan, best_plan, best_verdict, builds, most_cards, most_in
from gpucheck.fit.report import (
    Advice,
    AdviceVerdict,
    Alternative,
    Answer,
    Candidate,
    Capacity,
    Condition,
    Item,
    KnownBuild,
    Place,
    Question,
    Scenario,
    SlotTopology,
)
from gpucheck.fit.request import DERIVED, Order, Request, Wanted
from gpucheck.fit.room import asked_for, fitted_cards, in_it, room_left
from gpucheck.fit.seats import room_in_limit, room_shown
from gpucheck.fit.short import in_short
from gpucheck.fit.slots import Build, Placement, Topic, active_rows, best_placement
from gpucheck.fit.software import shared
from gpucheck.text import plural, say

EXIT_CODES: dict[AdviceVerdict, int] = {"fits": 0, "fits-with-changes": 0, "does-not-fit": 1, "unknown": 3}


# --- capacity -----------------------------------------------------------------------------------


def _generic(name: str, wide: int, size: Size) -> Wanted:
    """A card of a class, for the question how many of them there is room for."""
    return Wanted(
        Card(
            id=name,
            vendor="nvidia",
            name=name,
            names=(),
            family="other",
            pci=(),
            size=size.model_copy(update={"slots_wide": wide}),
            bus=Bus(gen=3, lanes=16),
            software=Software(),
            needs_above_4g=False,
            sources={},
        )
    )


CLASSES = (
    _generic("double-wide, full height", 2, Size(length_mm=267, profile="full")),
    _generic("single-wide, full height", 1, Size(length_mm=267, profile="full")),
    _generic("single-wide, low profile, half length", 1, Size(length_mm=167.65, profile="low")),
)


def capacity(request: Request) -> tuple[Capacity, ...]:
    """How many cards of each class have a slot, whatever they draw.

    Where the geometry is not known a slot counts only if a sourced build shows the room.
    """
    found = []
    for wanted in CLASSES:
        most, perhaps, given = 0, 0, ""
        for build in builds(request):
            sure, there = _slots_for(request, wanted, build)
            perhaps = max(perhaps, there)
            if sure > most:
                most, given = sure, _in_words(request.server, build)
        found.append(Capacity(class_=wanted.name, max=most, perhaps=perhaps, given=given))
    return tuple(found)


def _slots_for(request: Request, wanted: Wanted, build: Build) -> tuple[int, int]:
    """How many such cards are known to find a slot, and how many find one at best."""
    order = Order(wanted, len(active_rows(request.server, build)))
    placement = best_placement(request.server, (*request.fitted, order), build)
    seats = [seat for seat in placement.seats if not seat.fitted]
    sure = [seat for seat in seats if not seat.unknowns]
    open_seats = [seat for seat in seats if seat.unknowns]
    for count in range(len(open_seats), 0, -1):
        case = Case(request.with_new((Order(wanted, len(sure) + count),)), build, placement)
        topics: dict[Topic, list[SlotRow]] = {}
        for seat in open_seats[:count]:
            for remark in seat.unknowns:
                topics.setdefault(remark.topic, []).append(seat.row)
        if all(_shown(case, wanted, topic, rows) for topic, rows in topics.items()):
            return len(sure) + count, len(seats)
    return len(sure), len(seats)


def _shown(case: Case, wanted: Wanted, topic: Topic, rows: Sequence[SlotRow]) -> bool:
    """Whether a sourced build or a vendor's limit shows what the geometry leaves open."""
    slots = frozenset(row.id for row in rows)
    return bool(room_shown(case, wanted, topic, rows) or room_in_limit(case, wanted, topic, slots))


def _in_words(server: Server, build: Build) -> str:
    cpus = say("1 CPU") if build.cpus == 1 else say("{count} CPUs", count=build.cpus)
    return ", ".join([cpus, *(server.options[key].choices[choice].called for key, choice in build.options.items())])


# --- what else could be done --------------------------------------------------------------------


def alternatives(request: Request, most: int, verdict: AdviceVerdict) -> tuple[Alternative, ...]:
    """What comes out if some of what the request states were changed, the fewest things first."""
    stated = [name for name in ("cpus", "psus", "options") if getattr(request, name)]
    if not stated or not request.new:
        return ()
    found: list[Alternative] = []
    for names in (some for size in range(1, len(stated) + 1) for some in itertools.combinations(stated, size)):
        freed = request.freed(*names)
        plan, count = best_plan(freed), most_cards(freed)
        better = VERDICT_ORDER[plan.verdict] > VERDICT_ORDER[verdict]
        if count > most or better:
            changes = _changes(request, plan)
            text, parts = say("with {changes}", changes=", ".join(changes)), _new_parts(request, plan)
            told = any(known.max_count >= count and known.verdict == plan.verdict for known in found)
            if changes and not told:
                found.append(Alternative(change=text, verdict=plan.verdict, max_count=count, parts=parts))
    return tuple(found)


def _changes(request: Request, plan: Plan) -> list[str]:
    build, server = plan.case.build, request.server
    words = []
    if request.cpus is not None and build.cpus != request.cpus:
        words.append(say("1 CPU") if build.cpus == 1 else say("{count} CPUs", count=build.cpus))
    for key, choice in build.options.items():
        if request.options.get(key, choice) != choice:
            words.append(server.options[key].choices[choice].called)
    if request.psus is not None and plan.case.request.psus is None:
        words += [
            say("{count} × {item}", count=i.quantity, item=i.item)
            for r in plan.rulings
            if r.check.topic == "watts"
            for i in r.items
        ]
    return words


def _new_parts(request: Request, plan: Plan) -> tuple[str, ...]:
    return tuple(
        part
        for key, choice in plan.case.build.options.items()
        if request.options.get(key, choice) != choice
        for part in request.server.options[key].choices[choice].parts
    )


def scenarios(request: Request) -> tuple[Scenario, ...]:
    """Where nothing is stated: the answer for each number of CPUs and each choice."""
    if request.cpus is not None or request.options or len(request.new) > 1:
        return ()
    return tuple(_scenario(request, build) for build in builds(request))


def _scenario(request: Request, build: Build) -> Scenario:
    most, perhaps = (most_in(request, build), None) if request.new else _slots_for(request, CLASSES[0], build)
    given = _in_words(request.server, build)
    return Scenario(given=given, max_count=most, perhaps=perhaps, cpus=build.cpus, options=build.options)


def _ask_about_build(request: Request, told: Sequence[Scenario]) -> Iterator[Question]:
    """Questions on what is not stated and changes the count."""
    server = request.server
    if request.cpus is None and server.sockets.count > 1:
        by_cpus = {n: max((s.max_count for s in told if s.cpus == n), default=None) for n in (1, server.sockets.count)}
        if None not in by_cpus.values() and len(set(by_cpus.values())) > 1:
            yield Question(
                ask=say("Are both CPUs fitted?")
                if server.sockets.count == 2
                else say("Are all {count} CPUs fitted?", count=server.sockets.count),
                how="Count the CPU heat sinks on a picture of the open machine.",
                if_yes="No slot is dead for want of a CPU.",
                if_no="The slots of the empty sockets are dead.",
                yes=Answer(option=f"--cpus {server.sockets.count}"),
                no=Answer(option="--cpus 1"),
            )
    for key, option in server.options.items():
        if key in request.options:
            continue
        counts = {
            name: max((s.max_count for s in told if s.options.get(key) == name), default=None)
            for name in option.choices
        }
        shipped = next(iter(option.choices))
        best = max(option.choices, key=lambda name: counts[name] or 0)
        if counts[best] != counts[shipped]:
            choice = option.choices[best]
            flag = f"--option {key}" if option.riser is None else f"--riser {option.riser}"
            yield Question(
                ask=say("Is this fitted: {called}?", called=choice.called),
                how=choice.photo or say("Photograph the label of {label}.", label=option.label),
                if_yes="It need not be ordered.",
                if_no=say("As shipped, {label}: {called}.", label=option.label, called=option.choices[shipped].called),
                yes=Answer(option=f"{flag}={best}"),
                no=Answer(option=f"{flag}={shipped}"),
            )


# --- the document -------------------------------------------------------------------------------


def _items(rulings: Sequence[Ruling]) -> tuple[Item, ...]:
    """What to order; a thing that is wanted for several reasons is needed once for each."""
    merged: dict[tuple[str, tuple[str, ...]], Item] = {}
    for item in dict.fromkeys(item for ruling in rulings for item in ruling.items):
        key = (item.item, item.part_numbers)
        known = merged.get(key)
        merged[key] = item if known is None else known.model_copy(update={"quantity": known.quantity + item.quantity})
    return tuple(sorted(merged.values(), key=lambda item: item.need != "must"))


def advise(request: Request) -> Advice:
    """Answer one request for one model.

    Args:
        request: Cards and what is stated of the machine.

    Returns:
        The document; ``verdict`` and ``max_count`` speak of what is stated.
    """
    room = capacity(request)
    told = scenarios(request)
    if not request.new:
        return _without_cards(request, room, told)
    plan = best_plan(request)
    # Every way of building it was a scenario already, where nothing is stated.
    most = max(scenario.max_count for scenario in told) if told else most_cards(request)
    alone = len(request.new) == 1 and request.new[0].slot is None
    stated = [name for name in ("cpus", "psus", "options") if getattr(request, name)]
    with_changes = max(most, most_cards(request.freed(*stated))) if stated else most
    fits = plan.verdict != "does-not-fit"
    conditions = tuple({c.text: c for c in (*_of_variants(request, plan), *_conditions(plan))}.values())
    # There is nothing to order for, and nothing to ask about, a plan that fails in every build.
    questions = [*_ask_about_build(request, told), *(q for r in plan.rulings for q in r.questions)] if fits else []
    power = next((ruling.power for ruling in plan.rulings if ruling.power is not None), None)
    return _document(
        request,
        headline=_headline(request, plan, most, conditions),
        verdict=plan.verdict,
        max_count=most,
        max_with_changes=with_changes,
        capacity=room,
        room=room_left(request, most if alone else None),
        placement=_places(plan.case.placement),
        checks=plan.checks,
        power=power,
        topology=forecast(plan.case),
        software=shared(request).stack,
        shopping_list=_items(plan.rulings) if fits else (),
        questions=tuple({q.ask: q for q in questions}.values()),
        conditions=conditions,
        alternatives=alternatives(request, most, plan.verdict),
        scenarios=told,
        needs=in_short(plan),
    )


def _conditions(plan: Plan) -> Iterator[Condition]:
    if plan.verdict != "does-not-fit":
        yield from (condition for ruling in plan.rulings for condition in ruling.conditions)


def _of_variants(request: Request, plan: Plan) -> Iterator[Condition]:
    """Makers' versions of a card for which the answer is another one than for the reference card."""
    for position, order in enumerate(request.orders):
        if order.wanted.variant is not None or order.fitted:
            continue
        card = order.wanted.card
        unlike: dict[AdviceVerdict, list[str]] = {}
        for variant in card.variants:
            orders = list(request.orders)
            orders[position] = replace(order, wanted=Wanted(card, variant))
            verdict = best_verdict(replace(request, orders=tuple(orders)))
            if verdict != plan.verdict:
                unlike.setdefault(verdict, []).append(variant.names[0])
        for verdict, names in unlike.items():
            template = _VARIANT_SENTENCES[verdict]
            yield Condition(text=say(template, card=card.name, names=", ".join(names)))


_VARIANT_SENTENCES: dict[AdviceVerdict, str] = {
    "fits": "this is about the reference {card}: these makers' versions fit: {names}",
    "fits-with-changes": "this is about the reference {card}: these makers' versions fit with changes: {names}",
    "does-not-fit": "this is about the reference {card}: these makers' versions do not fit: {names}",
    "unknown": "this is about the reference {card}: for these makers' versions it is not known: {names}",
}


def _document(request: Request, **fields: object) -> Advice:
    server = request.server
    verdict = fields["verdict"]
    told = [(row.note, row.src) for row in server.cooling if row.note and row.passive is None and row.active is None]
    told += [(note.text, note.src) for note in server.notes]
    notes = [Condition(text=text) for text in request.remarks]
    notes += [Condition(text=text, sources=citations(server, src)) for text, src in told]
    if server.id == DERIVED:
        fields |= _by_its_own_word(server, fields)
    return Advice.model_validate(
        {
            "exit_code": EXIT_CODES[verdict],  # type: ignore[index]
            "server": server.id,
            "model": f"{server.vendor} {server.model}",
            "request": request.as_stated(),
            "notes": tuple(notes),
            "fitted": fitted_cards(request),
            "known_builds": _known_builds(request),
            **fields,
        }
    )


def _known_builds(request: Request) -> tuple[KnownBuild, ...]:
    """What others run in this model or failed with: of the cards asked for, or of all where none is."""
    cards = [order.wanted for order in request.new]
    return tuple(
        KnownBuild(
            cards=tuple(_called(request, id) for id in report.cards),
            count=report.count,
            works=report.works,
            slots=report.slots,
            note=report.note,
            sources=citations(request.server, report.src),
        )
        for report in request.server.gpu.reports
        if not cards or any(card.is_called(id) for card in cards for id in report.cards)
    )


def _called(request: Request, id: str) -> str:
    """A card's name where it is in the catalog."""
    catalog = request.catalog
    return str(catalog.cards[id]["name"]) if catalog is not None and id in catalog.cards else id


def verdict_without_cards(room: Sequence[Capacity]) -> AdviceVerdict:
    """Without cards the question is whether there is room for any."""
    return "fits" if any(row.max for row in room) else "unknown"


def _by_its_own_word(server: Server, fields: Mapping[str, Any]) -> dict[str, object]:
    """Headline and conditions for an entry that was derived from what a machine reports: both say so."""
    held = Condition(
        text="the machine's own word is right: its model is not in the catalog, its slots are derived from what this "
        "machine reports, and no vendor document was read",
        sources=citations(server, tuple(server.sources)),
    )
    template = "{answer} Derived from what this machine reports; no vendor document was read."
    return {"headline": say(template, answer=fields["headline"]), "conditions": (held, *fields["conditions"])}


_ROOM_SENTENCES = {
    ("some", False): "The {vendor} {model} has slots for up to {double} double-wide or {single} single-wide cards.",
    ("some", True): "Next to the {fitted} in it, this {vendor} {model} has slots for up to {double} double-wide or "
    "{single} single-wide cards.",
    ("low", False): "Slots of the {vendor} {model} for low-profile cards: {low}. Whether larger ones go in is not "
    "known.",
    ("low", True): "Slots of this {vendor} {model} for low-profile cards, next to the {fitted} in it: {low}. "
    "Whether larger ones go in is not known.",
    ("only low", False): "Slots of the {vendor} {model} for low-profile cards: {low}. Larger ones do not go in.",
    ("only low", True): "Slots of this {vendor} {model} for low-profile cards, next to the {fitted} in it: {low}. "
    "Larger ones do not go in.",
    ("not known", False): "Whether the {model} takes a GPU is not known.",
    ("not known", True): "Whether this {vendor} {model} takes more cards than the {fitted} in it is not known.",
}
"""By what there is room for, and whether a probe found cards."""


def _room(room: Sequence[Capacity]) -> str:
    """For which classes of cards slots are known."""
    larger, low = room[:2], room[2]
    if any(row.max for row in larger):
        return "some"
    if not low.max:
        return "not known"
    return "low" if any(row.perhaps for row in larger) else "only low"


def _without_cards(request: Request, room: tuple[Capacity, ...], told: tuple[Scenario, ...]) -> Advice:
    verdict = verdict_without_cards(room)
    return _document(
        request,
        headline=say(
            _ROOM_SENTENCES[_room(room), bool(in_it(request))],
            vendor=request.server.vendor,
            model=request.server.model,
            double=room[0].max,
            single=room[1].max,
            low=room[2].max,
            fitted=in_it(request),
        ),
        room=room_left(request),
        verdict=verdict,
        max_count=None,
        max_with_changes=None,
        capacity=room,
        placement=(),
        checks=(),
        power=None,
        topology=SlotTopology(slots=(), matrix=()),
        shopping_list=(),
        questions=tuple(_ask_about_build(request, told)),
        conditions=(),
        alternatives=(),
        scenarios=told,
    )


def _places(placement: Placement) -> tuple[Place, ...]:
    return tuple(
        Place(
            gpu=seat.wanted.id,
            name=seat.wanted.name,
            slot=seat.row.id,
            position=seat.row.position,
            riser=seat.row.riser,
            socket=seat.row.socket,
            fitted=seat.fitted,
            lanes=seat.lanes,
            gen=min(filter(None, (seat.row.gen, seat.wanted.bus.gen if seat.wanted.bus else None)), default=None),
            covers=tuple(sorted(seat.covers - {seat.row.id})),
        )
        for seat in placement.seats
    )


def _headline(request: Request, plan: Plan, most: int, conditions: Sequence[Condition]) -> str:
    fields = {
        "cards": asked_for(request),
        "model": f"{request.server.vendor} {request.server.model}",
        "slots": ", ".join(seat.row.id for seat in plan.case.placement.seats if not seat.fitted),
        "most": most,
        "conditions": len(conditions),
    }
    match plan.verdict:
        case "fits" if not conditions:
            template = "Yes: the {model} takes {cards} (slots: {slots})."
        case "fits":
            template = plural(
                len(conditions),
                "Yes, if one condition holds: the {model} takes {cards} (slots: {slots}).",
                "Yes, if {conditions} conditions hold: the {model} takes {cards} (slots: {slots}).",
            )
        case "fits-with-changes" if not conditions:
            template = "Yes, with changes: the {model} takes {cards} (slots: {slots})."
        case "fits-with-changes":
            template = plural(
                len(conditions),
                "Yes, with changes and if one condition holds: the {model} takes {cards} (slots: {slots}).",
                "Yes, with changes and if {conditions} conditions hold: the {model} takes {cards} (slots: {slots}).",
            )
        case "does-not-fit":
            failed = [ruling.check for ruling in plan.rulings if ruling.check.outcome == "fail"]
            # The first says how many cards find a slot; the next says why the others do not.
            reason = failed[1] if plan.left_out and len(failed) > 1 else failed[0]
            template = (
                "No: the {model} does not take {cards}. {reason}"
                if not most
                else "No: the {model} does not take {cards}, at most {most} more. {reason}"
                if in_it(request)
                else "No: the {model} does not take {cards}, at most {most}. {reason}"
            )
            return say(template, reason=reason.message, **fields)
        case _:
            unknown = next(r.check for r in plan.rulings if r.essential and r.check.outcome == "unknown")
            template = "Not known whether the {model} takes {cards}. {reason}"
            return say(template, reason=unknown.message, **fields)
    return say(template, **fields)


def advise_any(requests: Sequence[Request]) -> tuple[Request, Advice]:
    """Answer for every product that one name means: the request and the document of the weakest."""
    advices = [(request, advise(request)) for request in requests]
    if len(advices) == 1:
        return advices[0]
    weakest = min(advices, key=lambda pair: (VERDICT_ORDER[pair[1].verdict], pair[1].max_count or 0, pair[0].server.id))
    return weakest[0], weakest[1].model_copy(update={"candidates": _candidates(advices)})


def rank(requests: Sequence[Request]) -> tuple[Candidate, ...]:
    """Every model for the same cards, the best first."""
    advices = [(request, advise(request)) for request in requests]
    ordered = sorted(_candidates(advices), key=lambda c: (-VERDICT_ORDER[c.verdict], -(c.max_count or 0), c.server))
    return tuple(ordered)


def _candidates(advices: Sequence[tuple[Request, Advice]]) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(
            server=request.server.id,
            model=f"{request.server.vendor} {request.server.model}",
            gpus=tuple(order.wanted.name for order in request.new),
            verdict=advice.verdict,
            max_count=advice.max_count,
            max_with_changes=advice.max_with_changes,
            tell_apart=request.server.tell_apart,
            needs=advice.needs,
        )
        for request, advice in advices
    )
