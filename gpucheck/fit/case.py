"""A request in one build, and what every ruling shares: sources, and what covers an unknown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpucheck.catalog import loose_name
from gpucheck.entries import CONFIDENCE_ORDER, BuildReport, Card, GpuLimit, Server, citations
from gpucheck.findings import Check, Citation, Outcome
from gpucheck.fit.report import Condition, Item, PowerSum, Question
from gpucheck.fit.request import Request, Wanted
from gpucheck.fit.slots import Build, Placement


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

    def cards_in(self, report: BuildReport) -> tuple[Card, ...]:
        """Catalog entries of a report's cards; empty when one of them is not in the catalog."""
        catalog = self.request.catalog
        if catalog is None or any(id not in catalog.cards for id in report.cards):
            return ()
        return tuple(catalog.card(id) for id in report.cards)

    def cite(self, keys: Iterable[str]) -> tuple[Citation, ...]:
        """Sources of the server entry."""
        return citations(self.server, tuple(dict.fromkeys(keys)))


def check_of(topic: str, outcome: Outcome, message: str, *sources: tuple[Citation, ...]) -> Check:
    """A check with its sources, each named once."""
    found = tuple(dict.fromkeys(source for group in sources for source in group))
    return Check(topic=topic, outcome=outcome, message=message, sources=found)


def listed(words: Iterable[str]) -> str:
    """Words with commas between them."""
    return ", ".join(words)


def means_card(name: str, card: Card) -> bool:
    """Whether a list's or a report's name for a card means this one."""
    return name == card.id or loose_name(name) in {loose_name(known) for known in (card.name, *card.names)}


def cover(case: Case, wanted: Wanted, count: int) -> tuple[Citation, ...]:
    """The strongest source that says that so many of this card work in this model; empty when none does.

    A report of a build that runs, a vendor's list, or a vendor's limit that admits the card.
    """
    gpu = case.server.gpu
    found: list[str] = []
    for report in gpu.reports:
        if report.works and report.count >= count and any(means_card(name, wanted.card) for name in report.cards):
            found += report.src
    limits = [limit for limit in gpu.limits if applies(limit, wanted, case.build)]
    most = max((limit.max for limit in limits), default=1)
    for listed in gpu.listed:
        if count <= most and any(means_card(name, wanted.card) for name in listed.cards):
            found += listed.src
    for limit in limits:
        watts = wanted.power.watts if wanted.power else None
        if count <= limit.max and limit.watts_each is not None and watts is not None and watts <= limit.watts_each:
            found += limit.src
    return tuple(sorted(case.cite(found), key=lambda source: CONFIDENCE_ORDER[source.confidence])[:1])


def applies(limit: GpuLimit, wanted: Wanted, build: Build) -> bool:
    """Whether a vendor's limit speaks of this card in this build."""
    same_width = limit.wide is None or limit.wide == wanted.slots_wide
    return same_width and all(build.options.get(key) == choice for key, choice in limit.needs.items())


def covered(case: Case, wanted: Wanted) -> tuple[Citation, ...]:
    """Sources that cover the unknowns of a card, for as many as the request wants."""
    count = sum(order.count for order in case.request.orders if order.wanted is wanted)
    return cover(case, wanted, count)
