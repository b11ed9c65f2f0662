"""Rulings on what the vendor says, what must be there with a GPU, and what owners ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucheck.entries import GpuLimit, GpuNeed, citations
from gpucheck.findings import Citation, Outcome
from gpucheck.fit.case import Case, Ruling, binds, check_of, means, needs_that_apply
from gpucheck.fit.report import Condition, Item
from gpucheck.fit.request import Order, Wanted
from gpucheck.fit.slots import applies
from gpucheck.text import plural, say


def support(case: Case) -> Iterator[Ruling]:
    """What does the vendor say? A support statement binds only when the vendor's own page was read."""
    gpu = case.server.gpu
    if gpu.official == "none":
        yield _statement(case, gpu.official_note or "The vendor supports no GPU in this model.", gpu.official_src)
    elif gpu.official_note is not None:
        sources = case.cite(gpu.official_src)
        said = Condition(text=say("the vendor's word is no obstacle: {what}", what=gpu.official_note), sources=sources)
        # A note that the vendor's word was not read is no condition.
        conditions = (said,) if gpu.official == "supported" else ()
        yield Ruling(check_of("support", "unknown", gpu.official_note, sources), conditions=conditions)
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
    held = () if works else (_in_spite(text, sources),)
    return Ruling(check_of("reports", "pass" if works else "unknown", text, sources), conditions=held)


def _statement(case: Case, text: str, src: tuple[str, ...], of_card: tuple[Citation, ...] = ()) -> Ruling:
    sources = case.cite(src)
    if binds(sources):
        return Ruling(check_of("support", "fail", text, sources, of_card))
    return Ruling(check_of("support", "unknown", text, sources, of_card), conditions=(_in_spite(text, sources),))


def _in_spite(text: str, sources: tuple[Citation, ...]) -> Condition:
    """What must hold where something speaks against the cards that decides nothing."""
    return Condition(text=say("it works in spite of this: {what}", what=text), sources=sources)


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
        yield _statement(case, text, limit.src, citations(hungry[0].card, hungry[0].power.src))
    else:
        template = plural(
            limit.max, "Within the vendor's limit of one such card.", "Within the vendor's limit of {most} such cards."
        )
        yield Ruling(
            check_of("support", "pass", say(template, most=limit.max), sources),
            conditions=tuple(_reading(o.wanted, limit, sources) for o in meant if means(case, o.wanted, limit)),
        )
    if limit.note is not None and len(case.request.orders) > 1:
        held = Condition(text=limit.note, sources=sources)
        yield Ruling(check_of("support", "unknown", limit.note, sources), conditions=(held,))


def _reading(wanted: Wanted, limit: GpuLimit, sources: tuple[Citation, ...]) -> Condition:
    """A limit is read as meaning this card, and does not say so."""
    template = plural(
        limit.max,
        "the vendor's limit of one card of this width means the {card}: it names neither cards nor watts",
        "the vendor's limit of {most} cards of this width means the {card}: it names neither cards nor watts",
    )
    return Condition(text=say(template, most=limit.max, card=wanted.name), sources=sources)


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
        elif need.cpu_families and case.request.cpu is not None:
            yield _family(case, need, sources)
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
                held = (_in_spite(text, sources),)
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


def _family(case: Case, need: GpuNeed, sources: tuple[Citation, ...]) -> Ruling:
    """A GPU wants CPUs of certain families, and which CPU it is, is known."""
    cpu = case.request.cpu
    assert cpu is not None
    text = say("{item}: the {cpu} is of the family {family}.", item=need.item, cpu=cpu.name, family=cpu.family)
    if cpu.family in need.cpu_families:
        return Ruling(check_of("support", "pass", text, sources, cpu.sources))
    if binds(sources):
        return Ruling(check_of("support", "fail", text, sources, cpu.sources))
    held = (Condition(text=need.item, sources=sources),)
    return Ruling(check_of("support", "unknown", text, sources, cpu.sources), conditions=held)


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
