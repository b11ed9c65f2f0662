"""Questions to the advisor, of the catalog that is shipped and of small entries of a test's own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from catalog.entries import CARD, SERVER, changed

from gpucheck.catalog import Catalog, load
from gpucheck.entries import Card, Server
from gpucheck.findings import Check
from gpucheck.fit.advise import advise
from gpucheck.fit.ask import Asked, answer
from gpucheck.fit.plans import Plan
from gpucheck.fit.report import Advice, AdviceVerdict
from gpucheck.fit.request import Order, Request, Wanted, parse_psus


@cache
def shipped() -> Catalog:
    """The catalog, loaded once."""
    return load()


def ask(model: str | None, *gpus: str, catalog: Catalog | None = None, **stated: Any) -> Advice:
    """Ask as the command line does: ``ask("R730", "P40:2", cpus=2, risers=("3=alternate",))``."""
    return answer(Asked(model=model, gpus=gpus, **stated), catalog or shipped())


def server(**changes: Any) -> Server:
    """The example server with changes; ``__`` stands for the dot of a path."""
    return Server.model_validate(changed(SERVER, _paths(changes)))


def card(**changes: Any) -> Card:
    """The example card with changes."""
    return Card.model_validate(changed(CARD, _paths(changes)))


def _paths(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {path.replace("__", "."): value for path, value in changes.items()}


def fit(server: Server, *cards: Card | tuple[Card, int], **stated: Any) -> Advice:
    """Advice on cards, each with its count, for a server with two CPUs; ``psus="2x1000"``."""
    pairs = [one if isinstance(one, tuple) else (one, 1) for one in cards]
    entries = {card.id: card.model_dump(mode="json", exclude_defaults=True) for card, _ in pairs}
    given: dict[str, Any] = {"cpus": 2, "catalog": Catalog({}, entries)}
    if isinstance(psus := stated.get("psus"), str):
        given["psus"] = parse_psus(psus)
        del stated["psus"]
    orders = tuple(Order(Wanted(card), count) for card, count in pairs)
    return advise(Request(server=server, orders=orders, **{**given, **stated}))


def checks(advice: Advice, topic: str) -> list[Check]:
    """Checks of one topic."""
    return [check for check in advice.checks if check.topic == topic]


def outcome(advice: Advice, topic: str) -> str:
    """The worst outcome of a topic."""
    order = ("fail", "unknown", "change", "pass")
    return min((check.outcome for check in checks(advice, topic)), key=order.index)


def says(advice: Advice, words: str) -> bool:
    """Whether a condition holds these words."""
    return any(words in condition.text for condition in advice.conditions)


def states(advice: Advice, topic: str, words: str) -> bool:
    """Whether a check of a topic holds these words."""
    return any(words in check.message for check in checks(advice, topic))


def item(advice: Advice, words: str) -> int:
    """How many of a thing are on the shopping list."""
    return sum(item.quantity for item in advice.shopping_list if words in item.item)


UNSOURCED = {
    # Sums and statements about the request itself, or about what is not known.
    "watts": "The load is",
    "slot": "find",
    "peak-watts": "Short peaks",
    "geometry": "Not known",
    "width": "Not known",
}


def bare(advice: Advice) -> list[Check]:
    """Statements about a product that name no source."""
    judged = (check for check in advice.checks if check.outcome in ("pass", "fail", "change"))
    return [check for check in judged if not check.sources and UNSOURCED.get(check.topic, "\0") not in check.message]


def by_all_rulings(plan: Plan) -> AdviceVerdict:
    """The verdict of a plan as DESIGN has it, from everything that was checked."""
    outcomes = {ruling.check.outcome for ruling in plan.rulings}
    if plan.left_out or "fail" in outcomes:
        return "does-not-fit"
    if any(ruling.essential and ruling.check.outcome == "unknown" for ruling in plan.rulings):
        return "unknown"
    return "fits-with-changes" if "change" in outcomes else "fits"
