"""Rulings on cooling, what the vendor and owners say, distance between cards, and software."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucheck.entries import Card, GpuLimit, citations
from gpucheck.findings import Citation, Outcome
from gpucheck.fit.case import Case, Ruling, applies, binds, check_of, means, needs_that_apply
from gpucheck.fit.report import Condition, Item
from gpucheck.fit.request import Order
from gpucheck.fit.slots import pair_class
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
            held = Condition(text=say("the airflow at the slot is enough for a card that is {kind}", kind=_KINDS[kind]))
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
    for limit in gpu.limits:
        for order in case.request.orders:
            if applies(limit, order.wanted, case.build):
                yield from _limit(case, order, limit)
    for forbidden in gpu.forbids:
        held = Condition(text=say("it is without this, which excludes a GPU: {item}", item=forbidden.item), sources=case.cite(forbidden.src))
        text = say("Excludes a GPU: {item}.", item=forbidden.item)
        yield Ruling(check_of("support", "unknown", text, held.sources), conditions=(held,))
    for order in case.request.orders:
        for listed in gpu.listed:
            if any(means(name, order.wanted) for name in listed.cards):
                text = say("The {card} is listed by: {by}.", card=order.wanted.name, by=listed.by)
                yield Ruling(check_of("listed", "pass", text, case.cite(listed.src)))
        for report in gpu.reports:
            if any(means(name, order.wanted) for name in report.cards):
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
    return Ruling(check_of("reports", "pass", text, sources), conditions=held)


def _statement(case: Case, text: str, src: tuple[str, ...]) -> Ruling:
    sources = case.cite(src)
    if binds(sources):
        return Ruling(check_of("support", "fail", text, sources))
    return Ruling(check_of("support", "unknown", text, sources), conditions=(Condition(text=text, sources=sources),))


def _limit(case: Case, order: Order, limit: GpuLimit) -> Iterator[Ruling]:
    wanted, power = order.wanted, order.wanted.power
    if order.count > limit.max:
        template = plural(
            limit.max,
            "The vendor allows at most one such card; {count} are wanted.",
            "The vendor allows at most {most} such cards; {count} are wanted.",
        )
        text = say(template, most=limit.max, count=order.count)
        yield _statement(case, text, limit.src)
    elif limit.watts_each is not None and power is not None and power.watts > limit.watts_each:
        text = say(
            "The vendor allows {most} W a card; the {card} draws {watts} W.",
            most=limit.watts_each,
            card=wanted.name,
            watts=power.watts,
        )
        yield _statement(case, text, limit.src)
    else:
        template = plural(
            limit.max, "Within the vendor's limit of one such card.", "Within the vendor's limit of {most} such cards."
        )
        text = say(template, most=limit.max)
        yield Ruling(check_of("support", "pass", text, case.cite(limit.src)))


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
            yield _cpu_watts(case, need.cpu_watts_max, need.item, sources)
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


def _cpu_watts(case: Case, most: int, text: str, sources: tuple[Citation, ...]) -> Ruling:
    stated = case.request.cpu_watts
    if stated is not None and stated <= most:
        return Ruling(check_of("cpu-watts", "pass", text, sources))
    if stated is not None:
        said = say("CPUs of {stated} W are above the limit. {text}", stated=stated, text=text)
        item = Item(
            item=say("CPUs of at most {most} W", most=most),
            part_numbers=(),
            quantity=case.build.cpus,
            need="must",
            why=said,
            sources=sources,
        )
        return Ruling(check_of("cpu-watts", "change", said, sources), items=(item,))
    return Ruling(check_of("cpu-watts", "unknown", text, sources), conditions=(Condition(text=text, sources=sources),))


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
    yield from _together([order.wanted.card for order in case.request.orders])


def _together(cards: Sequence[Card]) -> Iterator[Ruling]:
    """One driver and one TensorFlow serve all cards of a machine: the oldest card says how new they may be."""
    sources = [citations(card, card.software.src) for card in cards]
    branches = {card.software.last_driver_branch for card in cards}
    wheels = {card.software.tensorflow_newest for card in cards}
    texts = []
    if len(branches) > 1:
        oldest = min((branch for branch in branches if branch), key=_version)
        texts.append(say("one driver serves all the cards: branch {branch} or earlier", branch=oldest))
    if len(wheels) > 1:
        oldest = min((version for version in wheels if version), key=_version)
        texts.append(say("one TensorFlow serves all the cards: {version} or earlier", version=oldest))
    for text in texts:
        check = check_of("software", "unknown", say("Must hold: {what}.", what=text), *sources)
        yield Ruling(check, conditions=(Condition(text=text, sources=check.sources),))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
