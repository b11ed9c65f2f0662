"""Rulings on power: plugs by exact kind, and watts with bounds where something is not given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucheck.entries import AuxSocket, citations
from gpucheck.findings import Citation, Outcome
from gpucheck.fit import plugs, supplies
from gpucheck.fit.case import Case, Ruling, admitted, check_of, covered, listed, needs_that_apply, slots_of, vouched
from gpucheck.fit.report import Answer, Condition, Item, PowerSum, PowerTerm, Question, Supplies
from gpucheck.fit.request import Order, PsuPlan, Request
from gpucheck.fit.slots import SLOT_WATTS
from gpucheck.power import LOW_LINE_BELOW_VOLTS, REDUNDANCIES, Bounds, judged, usable_watts
from gpucheck.text import say


def power_plugs(case: Case) -> Iterator[Ruling]:
    """Has every card its auxiliary power, by exact kind of plug?"""
    server, build = case.server, case.build
    there = plugs.active_sockets(server, build)
    socket_sources = case.cite(key for socket in there or () for key in socket.src)
    feeds = [(order, plugs.feed(server, order.wanted, build)) for order in case.request.orders]
    for order, feed in feeds:
        if order.fitted:
            continue  # it runs: its cable is there, and takes its socket
        yield from _feed(case, order, feed, socket_sources)
        yield from _socket_watts(
            order, feed, there or (), case.cite(k for s in there or () for k in s.watts_src or s.src)
        )
    if there is None:
        return
    have = sum(socket.count for socket in there)
    fed = sum(order.count for order, feed in feeds if feed.sockets)
    need = sum(order.count * feed.sockets for order, feed in feeds)
    if fed > have:
        text = say("{fed} cards need a GPU power socket each, the server has {have}.", fed=fed, have=have)
        yield Ruling(check_of("plug", "fail", text, socket_sources), essential=True)
    elif need > have:
        yield _too_few_sockets(case, need, have, socket_sources)


def _socket_watts(
    order: Order, feed: plugs.Feed, there: Sequence[AuxSocket], sources: tuple[Citation, ...]
) -> Iterator[Ruling]:
    """A card whose way to the server's sockets is known draws no more than they and its slot give."""
    power, given = order.wanted.power, [socket.watts for socket in there]
    known = [watts for watts in given if watts is not None]
    if power is None or feed.outcome == "unknown" or not feed.sockets or len(known) < len(given):
        return
    most = SLOT_WATTS + feed.sockets * max(known)
    if power.watts > most:
        text = say(
            "The {card} draws {watts} W; its slot and the GPU power sockets give it {most} W.",
            card=order.wanted.name,
            watts=power.watts,
            most=most,
        )
        yield Ruling(check_of("plug", "fail", text, citations(order.wanted.card, power.src), sources), essential=True)


def _too_few_sockets(case: Case, need: int, have: int, sources: tuple[Citation, ...]) -> Ruling:
    """The known cables take more sockets than there are; another cable may feed a card from one."""
    text = say(
        "With the cables that are known the cards take {need} GPU power sockets, the server has {have}.",
        need=need,
        have=have,
    )
    known = [covered(case, order.wanted) for order in case.request.orders]
    if known and all(known):
        text = say("{what} But a source has these cards in this model.", what=text)
        return Ruling(check_of("plug", "pass", text, *known), essential=True)
    question = Question(
        ask="Is there a cable for this server that feeds all plugs of one card from one socket?",
        how="Ask for its part number, and for what its socket may give in watts.",
        if_yes="One socket a card is enough, within the socket's watts.",
        if_no=say("The sockets are for fewer cards: {have} in all.", have=have),
    )
    held = Condition(text="one GPU power socket feeds all plugs of a card")
    return Ruling(check_of("plug", "unknown", text, sources), essential=True, conditions=(held,), questions=(question,))


def _feed(case: Case, order: Order, feed: plugs.Feed, socket_sources: tuple[Citation, ...]) -> Iterator[Ruling]:
    wanted = order.wanted
    card_sources = citations(wanted.card, wanted.aux.src) if wanted.aux else ()
    if feed.outcome == "pass":
        if feed.sockets:
            text = say("The server's GPU leads end in the {card}'s plug.", card=wanted.name)
            yield Ruling(check_of("plug", "pass", text, card_sources, socket_sources), essential=True)
        else:
            text = say("The {card} needs no power plug.", card=wanted.name)
            yield Ruling(check_of("plug", "pass", text, card_sources), essential=True)
        return
    if feed.outcome == "change":
        assert wanted.aux is not None
        ends = {cable.from_plug for cable in feed.cables}
        sockets = plugs.active_sockets(case.server, case.build) or ()
        text = say(
            "Each {card} takes {plugs}: {cables} (from: {at}).",
            card=wanted.name,
            plugs=plugs.in_words(wanted.aux),
            cables=listed(cable.called for cable in feed.cables),
            at=listed(dict.fromkeys(socket.at for socket in sockets if None in ends or socket.plug in ends)),
        )
        items = tuple(
            Item(
                item=cable.called,
                part_numbers=cable.parts,
                quantity=order.count * feed.cables.count(cable),
                need="must",
                why=text,
                note=cable.note,
                sources=case.cite(cable.src),
            )
            for cable in dict.fromkeys(feed.cables)
        )
        warn: tuple[Condition, ...] = ()
        if any(plug.kind in ("eps-8", "pcie-8") for plug in wanted.aux.plugs):
            warn = (Condition(text=_LOOK_ALIKE, sources=card_sources),)
        cable_sources = case.cite(key for cable in feed.cables for key in cable.src)
        yield Ruling(
            check_of("plug", "change", text, card_sources, cable_sources),
            essential=True,
            items=items,
            conditions=warn,
        )
        return
    yield _unknown_feed(case, order, feed, card_sources)


_LOOK_ALIKE = (
    "every power cable is of the exact kind: the 8-pin EPS (CPU) and the 8-pin PCIe plug look alike and have "
    "12 V and ground on opposite rows"
)


def _unknown_feed(case: Case, order: Order, feed: plugs.Feed, card_sources: tuple[Citation, ...]) -> Ruling:
    wanted = order.wanted
    words = plugs.in_words(wanted.aux) if wanted.aux else ""
    text = {
        "aux-unknown": say("Which power plug the {card} has is not known.", card=wanted.name),
        "kind-unknown": say("The {card} has {plugs}.", card=wanted.name, plugs=words),
        "server-unknown": say(
            "The {card} takes {plugs}; which GPU power sockets the {model} has is not known.",
            card=wanted.name,
            plugs=words,
            model=case.server.model,
        ),
        "no-cable": say(
            "The {card} takes {plugs}; no cable from this server's GPU sockets to that plug is known.",
            card=wanted.name,
            plugs=words,
        ),
    }[feed.reason or "aux-unknown"]
    held = Condition(text=say("there is a power cable that ends in the plug of the {card}", card=wanted.name))
    if known := covered(case, wanted):
        text = say("{what} But a source has this card in this model.", what=text)
        return Ruling(check_of("plug", "pass", text, known), essential=True, conditions=(held,))
    if shown := _plugs_shown(case, order):
        text = say("{what} But a source has a card with the same plugs in this model.", what=text)
        return Ruling(check_of("plug", "pass", text, shown), essential=True, conditions=(held,))
    if feed.reason == "server-unknown" and (known := vouched(case)):
        text = say("{what} But the vendor's own limit admits such cards here.", what=text)
        return Ruling(check_of("plug", "pass", text, known), essential=True, conditions=(held,))
    question = Question(
        ask=say(
            "Which GPU power cables come with the server, and do they end in the plug of the {card}?",
            card=wanted.name,
        ),
        how="Photograph both ends of each cable and the socket on the riser or board that it plugs into.",
        if_yes="Power plugs are not the obstacle.",
        if_no="Find the right cable before you buy; never force an 8-pin plug.",
    )
    return Ruling(
        check_of("plug", "unknown", text, card_sources),
        essential=True,
        conditions=(held,),
        questions=(question,),
    )


def _plugs_shown(case: Case, order: Order) -> tuple[Citation, ...]:
    """A sourced build of as many other cards with the same plugs shows that the server feeds them."""
    aux = order.wanted.aux
    if aux is None or "8-pin-unknown" in plugs.needed(aux):
        return ()
    for report in case.server.gpu.reports:
        fed = [card.aux for card in case.cards_in(report)]
        same = bool(fed) and all(other is not None and plugs.needed(aux) <= plugs.needed(other) for other in fed)
        count = sum(one.count for one in case.request.orders if one.wanted.id == order.wanted.id)
        if report.works and report.count >= count and same:
            return case.cite(report.src)
    return ()


def watts(case: Case) -> Iterator[Ruling]:
    """Do the power supplies carry it all?"""
    terms = tuple(_terms(case))
    load = Bounds(0, 0)
    for term in terms:
        load += Bounds(term.low_watts, term.high_watts)
    request = case.request
    if ruled := list(_by_vendor(case, load, terms)):
        yield from ruled
        return
    # The sum is no better known than the weakest of its terms.
    chosen, sources = request.psus, tuple(source for term in terms for source in term.sources)
    if chosen is None:
        yield from _free_psus(case, load, terms)
        return
    each = _at_voltage(case, chosen.watts)
    if each is None:
        # It gives no more than at 200-240 V.
        at_best = usable_watts(chosen.count, chosen.watts, request.redundancy or "none")
        power = _sum(case, load, terms, None, chosen)
        if judged(load, at_best) == "fail":
            text = _load_text(load, at_best, chosen, request)
            yield Ruling(check_of("watts", "fail", text, sources), essential=True, power=power)
            return
        text = say(
            "What a {watts} W supply gives at {volts} V is not known.",
            watts=chosen.watts,
            volts=request.input_volts,
        )
        yield Ruling(check_of("watts", "unknown", text), essential=True, power=power)
        return
    usable = usable_watts(chosen.count, each, request.redundancy or "none")
    outcome = judged(load, usable)
    text = _load_text(load, usable, chosen, request)
    if outcome == "unknown" and _as_large(case, chosen) and (known := _covered(case)):
        outcome, sources = "pass", known
        text = say("{what} A source has these cards in this model.", what=text)
    yield Ruling(
        check_of("watts", outcome, text, sources),
        essential=True,
        conditions=_power_conditions(case, load, chosen, each),
        questions=(_ask_load(case, load, usable),) if outcome == "unknown" else (),
        power=_sum(case, load, terms, usable, chosen),
    )
    yield from _peak(case, load, usable)


def _by_vendor(case: Case, load: Bounds, terms: tuple[PowerTerm, ...]) -> Iterator[Ruling]:
    """The vendor's own rule on supplies and cards, where there is one: it wins over our sum."""
    spec, stated = case.server.power, case.request.psus
    plans = [stated] if stated else [PsuPlan(spec.bays, size) for size in _sizes(case) if spec.bays is not None]
    last: Ruling | None = None
    for plan in plans:
        rule = supplies.rule(case, plan)
        if rule is None:
            continue
        sources = case.cite(rule.src)
        outcome: Outcome = "fail" if not rule.allowed else "pass" if stated else "change"
        item = Item(
            item=say("{watts} W power supply", watts=plan.watts),
            part_numbers=next((psu.parts for psu in spec.psus if psu.watts == plan.watts), ()),
            quantity=plan.count,
            need="maybe-fitted",
            why=rule.text,
            sources=sources,
        )
        last = Ruling(
            check_of("watts", outcome, rule.text, sources),
            essential=True,
            items=(item,) if outcome == "change" else (),
            power=_sum(
                case, load, terms, usable_watts(plan.count, plan.watts, case.request.redundancy or "none"), plan
            ),
        )
        if rule.allowed:
            break
    if last is not None:
        yield last


def _sizes(case: Case) -> list[int]:
    """Supplies that the model can have, the smallest first."""
    return sorted({psu.watts for psu in case.server.power.psus})


def _as_large(case: Case, chosen: PsuPlan) -> bool:
    """Whether no known build can have had larger supplies: all bays full of the largest."""
    largest = max((psu.watts for psu in case.server.power.psus), default=0)
    return chosen.watts >= largest and chosen.count >= (case.server.power.bays or 0)


def _covered(case: Case) -> tuple[Citation, ...]:
    """Sources that say that all the cards work here; they say so of full mains and no wish for redundancy, and not
    of a card that the catalog does not know."""
    request = case.request
    low_line = request.input_volts is not None and request.input_volts < LOW_LINE_BELOW_VOLTS
    if low_line or request.redundancy not in (None, "none") or request.strangers:
        return ()
    known = [
        covered(case, order.wanted) or admitted(case, order.wanted, slots_of(case, order.wanted))
        for order in request.orders
    ]
    return tuple(source for group in known for source in group) if known and all(known) else ()


def _terms(case: Case) -> Iterator[PowerTerm]:
    for order in case.request.orders:
        power = order.wanted.power
        if power is None:
            yield PowerTerm(item=f"{order.count} × {order.wanted.name}", low_watts=0, high_watts=None)
        else:
            each = power.watts * order.count
            yield PowerTerm(
                item=f"{order.count} × {order.wanted.name}",
                low_watts=each,
                high_watts=each,
                sources=citations(order.wanted.card, power.src),
            )
    for stranger in case.request.strangers:
        limit = stranger.watts
        yield PowerTerm(item=stranger.name, low_watts=limit or 0, high_watts=limit, sources=stranger.sources)
    cpus, sockets_spec = case.build.cpus, case.server.sockets
    if case.request.cpu_watts is not None:
        each, named = case.request.cpu_watts * cpus, case.request.cpu
        item = say("{count} × {cpu}", count=cpus, cpu=named.name) if named else f"{cpus} × CPU, as stated"
        yield PowerTerm(item=item, low_watts=each, high_watts=each, sources=named.sources if named else ())
    else:
        most = sockets_spec.max_cpu_watts
        named = case.request.cpu
        yield PowerTerm(
            item=say("{count} × {cpu}, watts not known", count=cpus, cpu=named.name)
            if named
            else f"{cpus} × CPU, model not stated",
            low_watts=0,
            high_watts=None if most is None else most * cpus,
            sources=case.cite(sockets_spec.max_cpu_watts_src),
        )
    base = case.server.power.base
    if base is None:
        yield PowerTerm(item="fans, memory, drives and boards", low_watts=0, high_watts=None)
    else:
        yield PowerTerm(
            item="fans, memory, drives and boards",
            low_watts=base.low_watts,
            high_watts=base.high_watts,
            note=base.note,
            sources=case.cite(base.src),
        )


def _at_voltage(case: Case, watts_each: int) -> int | None:
    """Output of one supply at the stated mains voltage; at 200-240 V when none is stated."""
    volts = case.request.input_volts
    if volts is None or volts >= LOW_LINE_BELOW_VOLTS:
        return watts_each
    return _low_line(case, watts_each)


def _low_line(case: Case, watts_each: int) -> int | None:
    """Output of one supply at 100-120 V; None: not known."""
    return next((row.watts for row in case.server.power.low_line if row.rated_watts == watts_each), None)


def _load_text(load: Bounds, usable: float, chosen: PsuPlan, request: Request) -> str:
    fields = {
        "low": round(load.low),
        "high": None if load.high is None else round(load.high),
        "usable": round(usable),
        "count": chosen.count,
        "watts": chosen.watts,
        "redundancy": request.redundancy or "none",
    }
    if load.high is None:
        return say(
            "The load is at least {low} W, its upper bound is not known; {count} × {watts} W give {usable} W "
            "(redundancy {redundancy}).",
            **fields,
        )
    return say(
        "The load is {low} to {high} W; {count} × {watts} W give {usable} W (redundancy {redundancy}).",
        **fields,
    )


def _power_conditions(case: Case, load: Bounds, chosen: PsuPlan, each: int) -> tuple[Condition, ...]:
    request = case.request
    conditions: list[Condition] = []
    if request.redundancy is None and chosen.count > 1:
        spare = usable_watts(chosen.count, each, "n+n")
        if judged(load, spare) != "pass":
            conditions.append(
                Condition(
                    text=say(
                        "it is all right that the supplies are not redundant: half of them carry {spare} W, the load "
                        "may reach more",
                        spare=round(spare),
                    )
                )
            )
    if request.input_volts is None:
        low = next((row for row in case.server.power.low_line if row.rated_watts == chosen.watts), None)
        enough = low is not None and judged(load, usable_watts(chosen.count, low.watts, request.redundancy or "none"))
        if low is None:
            conditions.append(
                Condition(
                    text=say(
                        "the mains is 200-240 V; what a {watts} W supply gives at 100-120 V is not known",
                        watts=chosen.watts,
                    )
                )
            )
        elif enough != "pass":
            conditions.append(
                Condition(
                    text=say(
                        "the mains is 200-240 V; at 100-120 V a {rated} W supply gives {watts} W",
                        rated=low.rated_watts,
                        watts=low.watts,
                    ),
                    sources=case.cite(low.src),
                )
            )
    return tuple(conditions)


def _ask_load(case: Case, load: Bounds, usable: float) -> Question:
    """What would close the bounds: the CPUs' watts, or those of the machine without the new cards."""
    base = case.server.power.base
    strangers = [one.watts for one in case.request.strangers]
    cards = _watts_of(case.request.orders) + sum(watts or 0 for watts in strangers)
    if case.request.cpu_watts is None and base is not None and None not in strangers:
        each = int(usable - cards - base.high_watts) // case.build.cpus
        if each >= LEAST_CPU_WATTS:
            return Question(
                ask=say("Are its CPUs of at most {watts} W (TDP) each?", watts=each),
                how="Ask for the CPUs' model, or read it off `gpucheck probe`, and give it with --cpu.",
                if_yes="The power supplies carry it all.",
                if_no="The power supplies may be too small.",
                yes=Answer(option=f"--cpu-tdp {each}"),
                no=Answer(option=f"--cpu-tdp {each + 1}"),
            )
    return Question(
        ask=say(
            "Does the machine draw at most {watts} W under load without the cards asked for?",
            watts=round(usable) - _watts_of(case.request.new),
        ),
        how="Read it from the BMC (its page on power) or from a meter at the wall, with all CPUs at work.",
        if_yes="The power supplies carry it all.",
        if_no="The power supplies are too small.",
    )


def _watts_of(orders: Sequence[Order]) -> int:
    return sum(order.wanted.power.watts * order.count for order in orders if order.wanted.power is not None)


LEAST_CPU_WATTS = 20
"""No server CPU draws less: a question whether it does would be idle."""


def _free_psus(case: Case, load: Bounds, terms: tuple[PowerTerm, ...]) -> Iterator[Ruling]:
    """No supplies are stated: the smallest that are enough, or an honest don't-know."""
    spec, request = case.server.power, case.request
    label = Question(
        ask=say("Do the power supplies in it give at least {watts} W together?", watts=round(load.low)),
        how="Photograph the label on the back of each power supply.",
        if_yes="They carry the cards and the least that the rest draws; say how many there are, with --psu.",
        if_no="They do not carry the cards.",
    )
    if not spec.psus or spec.bays is None:
        text = say("The load is at least {low} W; which power supplies it has is not stated.", low=round(load.low))
        if known := _covered(case):
            text = say("{what} A source has these cards in this model.", what=text)
        yield Ruling(
            check_of("watts", "pass" if known else "unknown", text, known),
            essential=True,
            questions=(label,),
            conditions=(
                Condition(
                    text=say(
                        "the power supplies carry at least {low} W and what else is in it",
                        low=round(load.low),
                    )
                ),
            ),
            power=_sum(case, load, terms, None, None),
        )
        return
    wished = max((need.psu_watts_min or 0 for need in needs_that_apply(case)), default=0)
    options = [psu for psu in spec.psus if psu.watts >= wished] or list(spec.psus)
    last: Ruling | None = None
    for psu in sorted(options, key=lambda option: option.watts):
        plan, each = PsuPlan(spec.bays, psu.watts), _at_voltage(case, psu.watts)
        if each is None:
            continue
        usable = usable_watts(plan.count, each, request.redundancy or "none")
        outcome = judged(load, usable)
        sources = (*case.cite((*psu.src, *spec.bays_src)), *(source for term in terms for source in term.sources))
        if outcome == "unknown" and _as_large(case, plan) and (known := _covered(case)):
            outcome, sources = "pass", (*sources, *known)
        item = Item(
            item=psu.called or say("{watts} W power supply", watts=psu.watts),
            part_numbers=psu.parts,
            quantity=plan.count,
            need="maybe-fitted",
            why=_load_text(load, usable, plan, request),
            sources=sources,
        )
        conditions = _power_conditions(case, load, plan, each)
        ruling = Ruling(
            check_of("watts", "change" if outcome == "pass" else outcome, item.why, sources),
            essential=True,
            items=(item,) if outcome == "pass" else (),
            conditions=conditions if outcome == "pass" else (),
            questions=(_ask_supplies(case, load, plan),),
            power=_sum(case, load, terms, usable, plan),
        )
        if outcome == "pass":
            yield ruling
            yield from _peak(case, load, usable)
            return
        last = ruling
    if last is not None:
        yield last
    else:
        text = say("What its supplies give at {volts} V is not known.", volts=request.input_volts)
        yield Ruling(
            check_of("watts", "unknown", text),
            essential=True,
            questions=(label,),
            power=_sum(case, load, terms, None, None),
        )


def _ask_supplies(case: Case, load: Bounds, plan: PsuPlan) -> Question:
    """Whether the supplies that the plan counts on are there; if not, the next smaller ones are judged."""
    smaller = max((watts for watts in _sizes(case) if watts < plan.watts), default=None)
    less = PsuPlan(plan.count, smaller) if smaller is not None else PsuPlan(1, plan.watts)
    return Question(
        ask=say("Are at least {count} power supplies of {watts} W or more in it?", count=plan.count, watts=plan.watts),
        how="Photograph the label on the back of each power supply.",
        if_yes="The power supplies are there.",
        if_no=say("Suppose that it has {count} × {watts} W.", count=less.count, watts=less.watts),
        yes=Answer(option=f"--psu {plan.count}x{plan.watts}"),
        no=Answer(option=f"--psu {less.count}x{less.watts}"),
    )


def _peak_watts(case: Case, load: Bounds) -> float | None:
    """The load when the hungriest card peaks; cards rarely peak together."""
    if load.high is None:
        return None
    extra = [
        (power.peak_factor - 1) * power.watts
        for order in case.request.orders
        if (power := order.wanted.power) is not None and power.peak_factor is not None
    ]
    return load.high + max(extra) if extra else None


def _peak(case: Case, load: Bounds, usable: float) -> Iterator[Ruling]:
    peak = _peak_watts(case, load)
    if peak is not None and peak > usable:
        text = say(
            "Short peaks of one card may bring the load to {peak} W, above {usable} W: most supplies ride through "
            "that, a power limit (nvidia-smi -pl) avoids it.",
            peak=round(peak),
            usable=round(usable),
        )
        yield Ruling(check_of("peak-watts", "pass", text), conditions=(Condition(text=text),))


def _sum(
    case: Case, load: Bounds, terms: tuple[PowerTerm, ...], usable: float | None, plan: PsuPlan | None
) -> PowerSum:
    peak = _peak_watts(case, load)
    each = None if plan is None else _at_voltage(case, plan.watts)
    low = None if plan is None else _low_line(case, plan.watts)
    return PowerSum(
        load_watts=None if load.high is None else round(load.high),
        load_low_watts=round(load.low),
        usable_watts=None if usable is None else round(usable),
        peak_watts=None if peak is None else round(peak),
        redundancy=case.request.redundancy,
        input_voltage=case.request.input_volts,
        supplies=None
        if plan is None or each is None
        else Supplies(count=plan.count, watts=plan.watts, watts_at_voltage=each, low_line_watts=low),
        usable_by_redundancy=None
        if plan is None or each is None
        else {kind: round(usable_watts(plan.count, each, kind)) for kind in REDUNDANCIES},
        terms=terms,
    )
