"""A request in one build, and what every ruling shares: sources, and what covers an unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpucheck.entries import CONFIDENCE_ORDER, BuildReport, Card, GpuLimit, GpuNeed, Server, citations
from gpucheck.findings import Check, Citation, Outcome
from gpucheck.fit.report import Condition, Item, PowerSum, Question
from gpucheck.fit.request import Request, Wanted
from gpucheck.fit.slots import Build, Placement, applies, vendor_read


@dataclass(frozen=True, slots=True)
class Ruling:
    """One check and what follows from it."""

    check: Check
    essential: bool = False
    items: tuple[Item, ...] = ()
    conditions: tuple[Condition, ...] = ()
    questions: tuple[Question, ...] = ()
    power: PowerSum | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A request, one build for it, and where the cards stand in it."""

    request: Request
    build: Build
    placement: Placement

    @property
    def server(self) -> Server:
        """The model."""
        return self.request.server

    @property
    def left_out(self) -> int:
        """Cards asked for that find no slot."""
        placed = sum(not seat.fitted for seat in self.placement.seats)
        return sum(order.count for order in self.request.new) - placed

    def cards_in(self, report: BuildReport) -> tuple[Card, ...]:
        """Catalog entries of a report's cards; empty when one of them is not in the catalog."""
        catalog = self.request.catalog
        if catalog is None or any(id not in catalog.cards for id in report.cards):
            return ()
        return tuple(catalog.card(id) for id in report.cards)

    def cite(self, keys: Iterable[str]) -> tuple[Citation, ...]:
        """Sources of the server entry."""
        return citations(self.server, tuple(dict.fromkeys(keys)))


def cited(name: str, document: Mapping[str, Any], keys: Iterable[str]) -> tuple[Citation, ...]:
    """Sources of a document of ``catalog/software``."""
    return tuple(Citation(entry=name, key=key, **document["sources"][key]) for key in keys)


def check_of(topic: str, outcome: Outcome, message: str, *sources: tuple[Citation, ...]) -> Check:
    """A check with its sources, each named once."""
    found = tuple(dict.fromkeys(source for group in sources for source in group))
    return Check(topic=topic, outcome=outcome, message=message, sources=found)


def listed(words: Iterable[str]) -> str:
    """Words with commas between them."""
    return ", ".join(words)


def cover(case: Case, wanted: Wanted, count: int) -> tuple[Citation, ...]:
    """The strongest source that says that so many of this very card work in this model; empty when none does.

    A report of a build that runs, or a vendor's list. A list names no number: it speaks of as many as the vendor's
    limit allows, of one where there is no limit.
    """
    gpu = case.server.gpu
    found: list[str] = []
    for report in gpu.reports:
        if report.works and report.count >= count and any(wanted.is_called(name) for name in report.cards):
            found += report.src
    for listed in gpu.listed:
        if count <= most_listed(case, wanted) and any(wanted.is_called(name) for name in listed.cards):
            found += listed.src
    return strongest(case.cite(found))


def most_listed(case: Case, wanted: Wanted) -> int:
    """How many of a listed card the vendor means."""
    return max((limit.max for limit in case.server.gpu.limits if applies(limit, wanted, case.build)), default=1)


def admitted(case: Case, wanted: Wanted, slots: frozenset[str], *, room: bool = False) -> tuple[Citation, ...]:
    """The strongest vendor's limit that admits this card, as many as are wanted, in these slots.

    ``At most two double-wide cards of 300 W in slots 6 and 4`` says that such a card finds room, slot power and
    supply power there. One that names a width alone says that there is room; of power it says something only as far
    as :func:`means` reads it so.

    Args:
        case: The request in a build.
        wanted: The card.
        slots: Where cards of this kind stand.
        room: Only whether there is room is asked. A limit that names no slots says that there is, somewhere in the
            machine with all its CPUs.
    """
    watts = wanted.power.watts if wanted.power else None

    def count(limit: GpuLimit) -> int:
        return sum(order.count for order in case.request.orders if applies(limit, order.wanted, case.build))

    found = [
        key
        for limit in case.server.gpu.limits
        if applies(limit, wanted, case.build)
        and count(limit) <= limit.max
        and (not limit.slots or slots <= set(limit.slots))
        and (
            bool(limit.cards)
            or (limit.watts_each is not None and watts is not None and watts <= limit.watts_each)
            or (room and _shows_room(case, limit, watts))
            or means(case, wanted, limit)
        )
        for key in limit.src
    ]
    return strongest(case.cite(found))


def _shows_room(case: Case, limit: GpuLimit, watts: int | None) -> bool:
    """Whether a limit says that there is room for its width: in its slots, or somewhere in the machine as a whole."""
    return (
        limit.wide is not None
        and (limit.watts_each is None or watts is None)
        and (bool(limit.slots) or case.build.full)
    )


def means(case: Case, wanted: Wanted, limit: GpuLimit) -> bool:
    """Whether a vendor's limit that names a width, and neither a card nor watts, is read as meaning this card.

    A vendor that says how many double-wide cards a model takes means those that were sold with it: cards for work, of
    the PCIe generation of its newest slots. It does not say so: whoever builds on it puts that on the conditions.
    """
    if limit.cards or limit.watts_each is not None or limit.wide is None:
        return False
    newest = max((row.gen for row in case.server.slots if row.gen is not None), default=None)
    for_work = wanted.card.family in ("datacenter", "workstation", "instinct")
    of_its_time = wanted.bus is not None and wanted.bus.gen == newest
    return for_work and of_its_time and vendor_read(case.server, limit.src)


def slots_of(case: Case, wanted: Wanted) -> frozenset[str]:
    """Slots in which cards of this kind stand."""
    return frozenset(place.row.id for place in case.placement.seats if place.wanted.id == wanted.id)


def owner_told(case: Case, wanted: Wanted, slots: frozenset[str]) -> tuple[Citation, ...]:
    """A vendor's limit for just so many CPUs that names these slots: then their owners are among those CPUs."""
    limits = [
        limit
        for limit in case.server.gpu.limits
        if limit.cpus == case.build.cpus and slots <= set(limit.slots) and applies(limit, wanted, case.build)
    ]
    return strongest(case.cite(key for limit in limits for key in limit.src))


def vouched(case: Case) -> tuple[Citation, ...]:
    """The vendor's own limits that admit every card of the request where it stands; empty when one is not admitted.

    A vendor that states how many such cards the model takes sells it with what they need: the leads and the
    firmware. Which those are stays a condition.
    """
    found: list[Citation] = []
    for order in case.request.orders:
        sources = admitted(case, order.wanted, slots_of(case, order.wanted))
        if not binds(sources):
            return ()
        found += sources
    return tuple(dict.fromkeys(found))


def strongest(sources: Iterable[Citation]) -> tuple[Citation, ...]:
    """The source of the highest confidence alone."""
    return tuple(sorted(sources, key=lambda source: CONFIDENCE_ORDER[source.confidence])[:1])


def covered(case: Case, wanted: Wanted) -> tuple[Citation, ...]:
    """Sources that cover the unknowns of a card, for as many as the request wants."""
    count = sum(order.count for order in case.request.orders if order.wanted.id == wanted.id)
    return cover(case, wanted, count)


def binds(sources: Iterable[Citation]) -> bool:
    """Whether a support statement with these sources is a rule: the vendor's own page was read."""
    confidences = {source.confidence for source in sources}
    return confidences == {"vendor"}


def needs_that_apply(case: Case) -> tuple[GpuNeed, ...]:
    """What the model wants with a GPU, as far as it concerns one of the cards."""
    return tuple(
        need for need in case.server.gpu.needs if any(_concerns(need, order.wanted) for order in case.request.orders)
    )


def _concerns(need: GpuNeed, wanted: Wanted) -> bool:
    if need.cards and not any(wanted.is_called(name) for name in need.cards):
        return False
    wide_enough = need.wide_min is None or wanted.slots_wide is None or wanted.slots_wide >= need.wide_min
    has_aux = not need.aux_only or wanted.aux is None or bool(wanted.aux.plugs)
    return wide_enough and has_aux
