"""Rulings on cooling, what the vendor and owners say, distance between cards, and software."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucheck.entries import Card, GpuLimit, citations
from gpucheck.findings import Citation, Outcome
from gpucheck.fit.case import Case, Ruling, binds, check_of, cover, needs_that_apply
from gpucheck.fit.report import Condition, Item
from gpucheck.fit.request import Order
from gpucheck.fit.slots import applies, pair_class
from gpucheck.text import plural, say


def cooling(case: Case) -> Iterator[Ruling]:
    """Does the chassis cool this kind of card?"""
    for order in case.request.orders:
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
            if known := cover(case, wanted, order.count):
                text = say("{what} But a source has this card in this model.", what=text)
                yield Ruling(check_of("cooling", "pass", text, card_sources, known))
            else:
                airflow = say("the airflow at the slot is enough for a card that is {kind}", kind=_KINDS[kind])
                held = Condition(text=airflow)
                yield Ruling(check_of("cooling", "unknown", text, card_sources), conditions=(held,))
        for row, said in spoken:
            sources = case.cite(row.src)
            note = row.note or say("The {card} is {kind}.", card=wanted.name, kind=_KINDS[kind])
            if said == "yes":
                yield Ruling(check_of("cooling", "pass", note, card_sources, sources))
            elif said == "no" and binds(sources):
                yield Ruling(check_of("cooling", "fail", note, card_sources, sources))
            else:
                held = Condition(text=row.remedy or note, sources=sources)
                yield Ruling(check_of("cooling", "unknown", note, card_sources, sources), conditions=(held,))


_KINDS = {
    "passive": "passive (it lives on the server's airflow)",
    "blower": "cooled by a blower",
    "open-air": "cooled by open fans",
    "liquid": "cooled by liquid",
}


def support(case: Case) -> Iterator[Ruling]:
    """What does the vendor say? A support statement binds only when the vendor's own page was read."""
    gpu = case.server.gpu
    if gpu.official == "none":
        yield _statement(case, gpu.official_note or "The vendor supports no GPU in this model.", gpu.official_src)
    elif gpu.official_note is not None:
        said = Condition(text=gpu.official_note, sources=case.cite(gpu.official_src))
        yield Ruling(check_of("support", "unknown", said.text, said.sources), conditions=(said,))
    for limit in gpu.limits:
        meant = [order for order in case.request.orders if applies(limit, order.wanted, case.build)]
        if meant:
            yield from _limit(case, meant, limit)
    for forbidden in gpu.forbids:
        if forbidden.cards and not any(
            o.wanted.is_called(name) for o in case.request.orders for name in forbidden.cards
        ):
            continue
        if forbidden.when:
            if all(case.build.options.get(key) == choice for key, choice in forbidden.when.items()):
                text = say("Excludes a GPU: {item}.", item=forbidden.item)
                yield _statement(case, text, forbidden.src)
            continue
        held = Condition(
            text=say("it is without this, which excludes a GPU: {item}", item=forbidden.item),
            sources=case.cite(forbidden.src),
        )
        text = say("Excludes a GPU: {item}.", item=forbidden.item)
        yield Ruling(check_of("support", "unknown", text, held.sources), conditions=(held,))
    for order in case.request.orders:
        for listed in gpu.listed:
            if any(order.wanted.is_called(name) for name in listed.cards):
                text = say("The {card} is listed by: {by}.", card=order.wanted.name, by=listed.by)
                yield Ruling(check_of("listed", "pass", text, case.cite(listed.src)))
        for report in gpu.reports:
            if any(order.wanted.is_called(name) for name in report.cards):
                yield _report(case, order, report.works, report.note, report.count, report.src)


def _report(case: Case, order: Order, works: bool, note: str | None, count: int, src: tuple[str, ...]) -> Ruling:
    template = (
        "An owner runs {count} × {card} in this model. {note}"
        if works
        else "An owner failed with {count} × {card} in this model. {note}"
    )
    text = say(template, count=count, card=order.wanted.name, note=note or "").strip()
    sources = case.cite(src)
    held = () if works else (Condition(text=text, sources=sources),)
    return Ruling(check_of("reports", "pass" if works else "unknown", text, sources), conditions=held)


def _statement(case: Case, text: str, src: tuple[str, ...]) -> Ruling:
    sources = case.cite(src)
    if binds(sources):
        return Ruling(check_of("support", "fail", text, sources))
    return Ruling(check_of("support", "unknown", text, sources), conditions=(Condition(text=text, sources=sources),))


def _limit(case: Case, meant: Sequence[Order], limit: GpuLimit) -> Iterator[Ruling]:
    """A limit speaks of all the cards that it means together."""
    count = sum(order.count for order in meant)
    hungry = [
        order.wanted for order in meant if order.wanted.power and order.wanted.power.watts > (limit.watts_each or 0)
    ]
    sources = case.cite(limit.src)
    if count > limit.max and not limit.max:
        yield _statement(case, say("The vendor allows no such card in this configuration."), limit.src)
    elif count > limit.max:
        template = plural(
            limit.max,
            "The vendor allows at most one such card; {count} are wanted.",
            "The vendor allows at most {most} such cards; {count} are wanted.",
        )
        yield _statement(case, say(template, most=limit.max, count=count), limit.src)
    elif limit.watts_each is not None and hungry and hungry[0].power is not None:
        text = say(
            "The vendor allows {most} W a card; the {card} draws {watts} W.",
            most=limit.watts_each,
            card=hungry[0].name,
            watts=hungry[0].power.watts,
        )
        yield _statement(case, text, limit.src)
    else:
        template = plural(
            limit.max, "Within the vendor's limit of one such card.", "Within the vendor's limit of {most} such cards."
        )
        yield Ruling(check_of("support", "pass", say(template, most=limit.max), sources))
    if limit.note is not None and len(case.request.orders) > 1:
        held = Condition(text=limit.note, sources=sources)
        yield Ruling(check_of("support", "unknown", limit.note, sources), conditions=(held,))


def needs(case: Case) -> Iterator[Ruling]:
    """What must be there with a GPU: kits, CPUs, heat limits, supplies."""
    for need in needs_that_apply(case):
        sources = case.cite(need.src)
        binding = binds(sources)
        held = (Condition(text=need.item, sources=sources),)
        if need.parts:
            item = Item(
                item=need.item,
                part_numbers=need.parts,
                quantity=1,
                need="maybe-fitted",
                why="It must be there with a GPU.",
                sources=sources,
            )
            yield Ruling(check_of("parts", "change", need.item, sources), items=(item,))
        elif need.cpus is not None and need.cpus > case.build.cpus:
            yield Ruling(check_of("support", "fail" if binding else "unknown", need.item, sources), conditions=held)
        elif need.cpu_watts_max is not None:
            continue  # several documents may name a limit: one ruling for all, below
        elif need.inlet_c_max is not None:
            ambient = case.request.ambient_c
            if ambient is None:
                yield Ruling(check_of("cooling", "unknown", need.item, sources), conditions=held)
            elif ambient <= need.inlet_c_max:
                yield Ruling(check_of("cooling", "pass", need.item, sources))
            else:
                text = say("Inlet air of {ambient} °C is above the limit: {item}.", ambient=ambient, item=need.item)
                held = (Condition(text=text, sources=sources),)
                yield Ruling(check_of("cooling", "fail" if binding else "unknown", text, sources), conditions=held)
        elif need.psu_watts_min is not None:
            psus = case.request.psus
            if psus is None and any(psu.watts >= need.psu_watts_min for psu in case.server.power.psus):
                continue  # the search chooses such supplies and puts them on the list
            if psus is not None and psus.watts >= need.psu_watts_min:
                yield Ruling(check_of("support", "pass", need.item, sources))
            else:
                outcome: Outcome = "fail" if psus is not None and binding else "unknown"
                yield Ruling(check_of("support", outcome, need.item, sources), conditions=held)
        elif need.cpus is None:
            yield Ruling(check_of("parts", "unknown", need.item, sources), conditions=held)
    yield from _cpu_watts(case)


def _cpu_watts(case: Case) -> Iterator[Ruling]:
    """Limits on the CPUs' TDP. Documents differ: below the lowest is fine, above the highest must be changed."""
    limits = [(need.cpu_watts_max, need) for need in needs_that_apply(case) if need.cpu_watts_max is not None]
    if not limits:
        return
    texts = "; ".join(need.item for _, need in limits)
    sources = case.cite(key for _, need in limits for key in need.src)
    lowest, highest, stated = min(most for most, _ in limits), max(most for most, _ in limits), case.request.cpu_watts
    if stated is not None and stated <= lowest:
        yield Ruling(check_of("cpu-watts", "pass", texts, sources))
    elif stated is not None and stated > highest:
        said = say("CPUs of {stated} W are above the limit: {limits}.", stated=stated, limits=texts)
        item = Item(
            item=say("CPUs of at most {most} W", most=highest),
            part_numbers=(),
            quantity=case.build.cpus,
            need="must",
            why=said,
            sources=sources,
        )
        yield Ruling(check_of("cpu-watts", "change", said, sources), items=(item,))
    else:
        yield Ruling(
            check_of("cpu-watts", "unknown", texts, sources), conditions=(Condition(text=texts, sources=sources),)
        )


def topology(case: Case) -> Iterator[Ruling]:
    """How far apart do the cards stand?"""
    rows = [place.row for place in case.placement.seats]
    pairs = {pair_class(a, b) for i, a in enumerate(rows) for b in rows[i + 1 :]}
    if not pairs:
        return
    sources = case.cite(key for row in rows for key in row.src)
    if "SYS" in pairs:
        text = "The cards stand on different CPUs (SYS): copies between them cross the link between the CPUs."
    elif "?" in pairs:
        text = "How far apart the cards stand is not known."
    elif pairs == {"PIX"}:
        text = "The cards share one PCIe switch (PIX): the shortest way between them."
    else:
        text = "The cards stand at the same CPU (PHB)."
    yield Ruling(check_of("topology", "unknown" if "?" in pairs and "SYS" not in pairs else "pass", text, sources))


def software(case: Case) -> Iterator[Ruling]:
    """Is there one driver and one TensorFlow for all the cards?"""
    for order in case.request.orders:
        card = order.wanted.card
        spec = card.software
        sources = citations(card, spec.src)
        if spec.last_driver_branch is not None:
            text = say(
                "The last driver branch for the {card} is {branch}: do not let an update go beyond it.",
                card=order.wanted.name,
                branch=spec.last_driver_branch,
            )
            yield Ruling(check_of("software", "pass", text, sources))
        if spec.tensorflow_newest is not None:
            text = say(
                "The newest official TensorFlow with code for the {card} is {version}. {note}",
                card=order.wanted.name,
                version=spec.tensorflow_newest,
                note=spec.note or "",
            ).strip()
            yield Ruling(check_of("software", "pass", text, sources))
        elif spec.compute_capability is None:
            text = say("Which TensorFlow has code for the {card} is not known.", card=order.wanted.name)
            yield Ruling(check_of("software", "unknown", text, sources))
    yield from _together(case, [order.wanted.card for order in case.request.orders])


def _together(case: Case, cards: Sequence[Card]) -> Iterator[Ruling]:
    """One driver and one TensorFlow serve all cards of a machine."""
    last = {card.name: card.software.last_driver_branch for card in cards}
    ended = {name: branch for name, branch in last.items() if branch is not None}
    sources = [citations(card, card.software.src) for card in cards]
    if len(set(last.values())) > 1:
        oldest = min(ended, key=lambda name: _version(ended[name]))
        text = say(
            "a driver of branch {branch} or earlier, the last for the {card}, also drives the {others}",
            branch=ended[oldest],
            card=oldest,
            others=", ".join(name for name in last if name != oldest),
        )
        check = check_of("software", "unknown", say("Not known: whether {what}.", what=text), *sources)
        yield Ruling(check, conditions=(Condition(text=text, sources=check.sources),))
    if len({card.software.compute_capability for card in cards}) > 1:
        yield _one_tensorflow(case, cards, sources)


def _one_tensorflow(case: Case, cards: Sequence[Card], sources: Sequence[tuple[Citation, ...]]) -> Ruling:
    """The newest official wheel with machine code for every card, as the catalog's list of wheels has it."""
    capabilities = [card.software.compute_capability for card in cards]
    wheels = case.request.catalog.software.get("tensorflow", {}).get("wheels", ()) if case.request.catalog else ()
    caps = [_version(card.software.tensorflow_newest) for card in cards if card.software.tensorflow_newest]
    serving = [
        wheel["version"]
        for wheel in wheels
        if all(
            capability is not None and _has_code(wheel["machine_code_for"], capability) for capability in capabilities
        )
        and all(_version(wheel["version"])[:2] <= cap[:2] for cap in caps)
    ]
    names = ", ".join(card.name for card in cards)
    if serving:
        text = say(
            "The newest official TensorFlow with code for all of {cards} is {version}.",
            cards=names,
            version=max(serving, key=_version),
        )
        return Ruling(check_of("software", "pass", text, *sources))
    text = say("No official TensorFlow is known to have machine code for all of {cards}.", cards=names)
    held = Condition(text=say("one TensorFlow serves all of {cards}: none is known", cards=names))
    return Ruling(check_of("software", "unknown", text, *sources), conditions=(held,))


def _has_code(machine_code: Sequence[str], capability: str) -> bool:
    """Machine code for X.Y runs on X.Z with Z of at least Y, and on no other X."""
    card = _version(capability)
    return any((code := _version(text))[0] == card[0] and code <= card for text in machine_code)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
