"""The search: every way of building the cards in, the best of them, and the advice that follows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

from gpucheck import __version__
from gpucheck.entries import Bus, Card, Server, Size, Software, citations
from gpucheck.findings import Check, Document
from gpucheck.fit.case import Case, Ruling
from gpucheck.fit.report import (
    Advice,
    AdviceVerdict,
    Alternative,
    Candidate,
    Capacity,
    Condition,
    Item,
    Place,
    Question,
    Scenario,
    SlotTopology,
)
from gpucheck.fit.request import Order, Request, Wanted
from gpucheck.fit.rulings import rulings
from gpucheck.fit.slots import Build, Placement, active_rows, best_placement, pair_class
from gpucheck.text import say

_VERDICT_ORDER: dict[AdviceVerdict, int] = {
    "does-not-fit": 0,
    "unknown": 1,
    "fits-with-changes": 2,
    "fits": 3,
}
EXIT_CODES: dict[AdviceVerdict, int] = {"fits": 0, "fits-with-changes": 0, "does-not-fit": 1, "unknown": 3}


@dataclass(frozen=True)
class Plan:
    """One build with the cards in their best places, and everything that was checked about it."""

    case: Case

    @cached_property
    def rulings(self) -> tuple[Ruling, ...]:
        """All checks with what follows from them."""
        return rulings(self.case)

    @property
    def checks(self) -> tuple[Check, ...]:
        """The checks alone, each said once."""
        return tuple(dict.fromkeys(ruling.check for ruling in self.rulings))

    @cached_property
    def verdict(self) -> AdviceVerdict:
        """Any fail: does not fit. An essential unknown: unknown. Any change: fits with changes."""
        outcomes = {ruling.check.outcome for ruling in self.rulings}
        if "fail" in outcomes:
            return "does-not-fit"
        if any(ruling.essential and ruling.check.outcome == "unknown" for ruling in self.rulings):
            return "unknown"
        return "fits-with-changes" if "change" in outcomes else "fits"

    @property
    def cost(self) -> tuple[object, ...]:
        """Less is better: cards left out, does it fit, what is not known, changes, distance."""
        counts = [ruling.check.outcome for ruling in self.rulings]
        unknown = sum(ruling.essential and ruling.check.outcome == "unknown" for ruling in self.rulings)
        left_out = self.case.request.count - len(self.case.placement.seats)
        # Where cards find no slot, the fuller machine shows best what keeps them out.
        cpus = self.case.build.cpus
        return (
            left_out,
            counts.count("fail"),
            unknown,
            -cpus if left_out else 0,
            counts.count("change"),
            cpus,
            self.case.placement.cost,
        )


def builds(request: Request) -> Iterator[Build]:
    """Every way in which the server may stand that agrees with what the request states."""
    server = request.server
    cpus = [request.cpus] if request.cpus is not None else range(1, server.sockets.count + 1)
    choices = [
        [(key, request.options[key])] if key in request.options else [(key, name) for name in option.choices]
        for key, option in server.options.items()
    ]
    for count in cpus:
        for combination in itertools.product(*choices):
            yield Build(count, dict(combination))


def best_plan(request: Request) -> Plan:
    """The best plan for exactly the cards of the request."""
    plans = [
        Plan(Case(request, build, best_placement(request.server, request.orders, build))) for build in builds(request)
    ]
    return min(plans, key=lambda plan: plan.cost)


def most_cards(request: Request) -> int:
    """The most cards without a *fail*: of the one kind that is asked for, or of the mix as it stands.

    A vendor's rule may allow three but not two; so every count is looked at, not only up to the
    first that fails.
    """
    most = 0
    if len(request.orders) == 1:
        order = request.orders[0]
        for count in range(1, len(request.server.slots) + 1):
            plan = best_plan(replace(request, orders=(replace(order, count=count),)))
            if plan.verdict != "does-not-fit":
                most = count
        return most
    ranges = [range(order.count + 1) for order in request.orders]
    for counts in sorted(itertools.product(*ranges), key=sum, reverse=True):
        orders = tuple(replace(o, count=n) for o, n in zip(request.orders, counts, strict=True) if n)
        if not orders or best_plan(replace(request, orders=orders)).verdict != "does-not-fit":
            return sum(counts)
    return most


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
    """How many cards of each class have a slot, whatever they draw; unknown geometry does not count."""
    found = []
    for wanted in CLASSES:
        most, given = 0, ""
        for build in builds(request):
            rows = len(active_rows(request.server, build))
            placement = best_placement(request.server, (Order(wanted, rows),), build)
            sure = sum(not seat.unknowns for seat in placement.seats)
            if sure > most:
                most, given = sure, _in_words(request.server, build)
        found.append(Capacity(class_=wanted.name, max=most, given=given))
    return tuple(found)


def _in_words(server: Server, build: Build) -> str:
    cpus = say("1 CPU") if build.cpus == 1 else say("{count} CPUs", count=build.cpus)
    return ", ".join([cpus, *(server.options[key].choices[choice].called for key, choice in build.options.items())])


# --- what else could be done --------------------------------------------------------------------


def alternatives(request: Request, most: int, verdict: AdviceVerdict) -> tuple[Alternative, ...]:
    """What comes out if one thing that the request states, or all of it, were changed."""
    stated = [name for name in ("cpus", "psus", "options") if getattr(request, name)]
    if not stated or not request.orders:
        return ()
    found: list[Alternative] = []
    for names in [(name,) for name in stated] + ([tuple(stated)] if len(stated) > 1 else []):
        freed = request.freed(*names)
        plan, count = best_plan(freed), most_cards(freed)
        better = _VERDICT_ORDER[plan.verdict] > _VERDICT_ORDER[verdict]
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
    if request.cpus is not None or request.options or len(request.orders) > 1:
        return ()
    order = request.orders[0] if request.orders else Order(CLASSES[0], 1)
    found = []
    for build in builds(request):
        fixed = replace(request, cpus=build.cpus, options=build.options, orders=(order,))
        if request.orders:
            most = most_cards(fixed)
        else:
            most = next(row.max for row in capacity(fixed) if row.class_ == order.wanted.name)
        found.append(
            Scenario(given=_in_words(request.server, build), max_count=most, cpus=build.cpus, options=build.options)
        )
    return tuple(found)


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
                if_yes=say("Up to {most} such cards.", most=by_cpus[server.sockets.count]),
                if_no=say("With one CPU, at most {most}.", most=by_cpus[1]),
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
            yield Question(
                ask=say("Is this fitted: {called}?", called=choice.called),
                how=choice.photo or say("Photograph the label of {label}.", label=option.label),
                if_yes=say("Up to {most} such cards.", most=counts[best]),
                if_no=say("As shipped, at most {most}; order it.", most=counts[shipped]),
            )


# --- the document -------------------------------------------------------------------------------


def _unique(things: Iterable[Document]) -> list[Document]:
    return list({thing.model_dump_json(): thing for thing in things}.values())


def _items(rulings: Sequence[Ruling]) -> tuple[Item, ...]:
    merged: dict[tuple[str, tuple[str, ...]], Item] = {}
    for item in (item for ruling in rulings for item in ruling.items):
        key = (item.item, item.part_numbers)
        if key in merged and ruling_differs(merged[key], item):
            merged[key] = merged[key].model_copy(update={"quantity": merged[key].quantity + item.quantity})
        else:
            merged.setdefault(key, item)
    return tuple(sorted(merged.values(), key=lambda item: item.need != "must"))


def ruling_differs(first: Item, second: Item) -> bool:
    """Whether two items of one name are wanted for different reasons (then both are needed)."""
    return first.why != second.why


def advise(request: Request) -> Advice:
    """Answer one request for one model.

    Args:
        request: Cards and what is stated of the machine.

    Returns:
        The document; ``verdict`` and ``max_count`` speak of what is stated.
    """
    room = capacity(request)
    told = scenarios(request)
    if not request.orders:
        return _without_cards(request, room, told)
    plan = best_plan(request)
    most = most_cards(request)
    stated = [name for name in ("cpus", "psus", "options") if getattr(request, name)]
    with_changes = max(most, most_cards(request.freed(*stated)) if stated else most)
    conditions = tuple({c.text: c for ruling in plan.rulings for c in ruling.conditions}.values())
    questions = [*_ask_about_build(request, told), *(q for ruling in plan.rulings for q in ruling.questions)]
    power = next((ruling.power for ruling in plan.rulings if ruling.power is not None), None)
    return _document(
        request,
        headline=_headline(request, plan, most, conditions),
        verdict=plan.verdict,
        max_count=most,
        max_with_changes=with_changes,
        capacity=room,
        placement=_places(plan.case.placement),
        checks=plan.checks,
        power=power,
        topology=_topology(plan.case.placement),
        shopping_list=_items(plan.rulings),
        questions=tuple({q.ask: q for q in questions}.values()),
        conditions=conditions,
        alternatives=alternatives(request, most, plan.verdict),
        scenarios=told,
    )


def _document(request: Request, **fields: object) -> Advice:
    server = request.server
    verdict = fields["verdict"]
    told = [(row.note, row.src) for row in server.cooling if row.note and row.passive is None and row.active is None]
    told += [(note.text, note.src) for note in server.notes]
    notes = tuple(Condition(text=text, sources=citations(server, src)) for text, src in told)
    return Advice.model_validate(
        {
            "gpucheck": __version__,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "exit_code": EXIT_CODES[verdict],  # type: ignore[index]
            "server": server.id,
            "model": f"{server.vendor} {server.model}",
            "request": request.as_stated(),
            "notes": notes,
            **fields,
        }
    )


def _without_cards(request: Request, room: tuple[Capacity, ...], told: tuple[Scenario, ...]) -> Advice:
    has_room = any(row.max for row in room)
    widest = room[0]
    verdict: AdviceVerdict = "fits" if has_room else "unknown"
    return _document(
        request,
        headline=say(
            "A {vendor} {model} has slots for up to {double} double-wide or {single} single-wide cards.",
            vendor=request.server.vendor,
            model=request.server.model,
            double=widest.max,
            single=room[1].max,
        )
        if has_room
        else say("Whether a {model} takes a GPU is not known.", model=request.server.model),
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
            slot=seat.row.id,
            position=seat.row.position,
            riser=seat.row.riser,
            socket=seat.row.socket,
            lanes=seat.lanes,
            gen=min(filter(None, (seat.row.gen, seat.wanted.bus.gen if seat.wanted.bus else None)), default=None),
            covers=tuple(sorted(seat.covers - {seat.row.id})),
        )
        for seat in placement.seats
    )


def _topology(placement: Placement) -> SlotTopology:
    rows = [seat.row for seat in placement.seats]
    return SlotTopology(
        slots=tuple(row.id for row in rows),
        matrix=tuple(tuple("X" if a is b else pair_class(a, b) for b in rows) for a in rows),
    )


def _headline(request: Request, plan: Plan, most: int, conditions: Sequence[Condition]) -> str:
    cards = " + ".join(f"{order.count} × {order.wanted.name}" for order in request.orders)
    fields = {
        "cards": cards,
        "model": f"{request.server.vendor} {request.server.model}",
        "slots": ", ".join(seat.row.id for seat in plan.case.placement.seats),
        "most": most,
        "conditions": len(conditions),
    }
    unknown = next((r.check.message for r in plan.rulings if r.essential and r.check.outcome == "unknown"), "")
    failures = [ruling.check.message for ruling in plan.rulings if ruling.check.outcome == "fail"]
    # The first says how many cards find a slot; the next says why the others do not.
    failed = failures[min(1, len(failures) - 1)] if failures else ""
    match plan.verdict:
        case "fits" if not conditions:
            return say("Yes: {cards} fit a {model} (slots {slots}).", **fields)
        case "fits":
            return say("Yes, if {conditions} conditions hold: {cards} fit a {model} (slots {slots}).", **fields)
        case "fits-with-changes" if not conditions:
            return say("Yes, with changes: {cards} fit a {model} (slots {slots}).", **fields)
        case "fits-with-changes":
            return say(
                "Yes, with changes and if {conditions} conditions hold: {cards} fit a {model} (slots {slots}).",
                **fields,
            )
        case "does-not-fit":
            return say("No: {cards} do not fit a {model}, at most {most}. {reason}", reason=failed, **fields)
    return say("Not known whether {cards} fit a {model}. {reason}", reason=unknown, **fields)


def advise_any(requests: Sequence[Request]) -> Advice:
    """Answer for every product that one name means; the document is that of the weakest."""
    advices = [(request, advise(request)) for request in requests]
    if len(advices) == 1:
        return advices[0][1]
    answers = {(request.server.id, advice.verdict, advice.max_count) for request, advice in advices}
    if len(answers) == 1:  # cards of one name that differ in nothing that matters here
        return advices[0][1]
    weakest = min(
        advices, key=lambda pair: (_VERDICT_ORDER[pair[1].verdict], pair[1].max_count or 0, pair[0].server.id)
    )
    return weakest[1].model_copy(update={"candidates": _candidates(advices)})


def rank(requests: Sequence[Request]) -> tuple[Candidate, ...]:
    """Every model for the same cards, the best first."""
    advices = [(request, advise(request)) for request in requests]
    ordered = sorted(_candidates(advices), key=lambda c: (-_VERDICT_ORDER[c.verdict], -(c.max_count or 0), c.server))
    return tuple(ordered)


def _candidates(advices: Sequence[tuple[Request, Advice]]) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(
            server=request.server.id,
            model=f"{request.server.vendor} {request.server.model}",
            gpus=tuple(order.wanted.name for order in request.orders),
            verdict=advice.verdict,
            max_count=advice.max_count,
            max_with_changes=advice.max_with_changes,
            tell_apart=request.server.tell_apart,
        )
        for request, advice in advices
    )
