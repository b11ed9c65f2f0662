"""What the cards and the shopping list cost, for prices that a person gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpucheck.errors import UsageError
from gpucheck.fit.report import Advice, Price, PricedItem
from gpucheck.fit.request import Request
from gpucheck.text import say


@dataclass(frozen=True, slots=True)
class Thing:
    """A card or a thing to order, and what it may be called."""

    item: str
    names: tuple[str, ...]
    quantity: int
    need: Literal["must", "maybe-fitted"]


def parse_price(text: str) -> tuple[str, float]:
    """``P40=200`` to what costs how much each. UsageError for anything else."""
    name, separator, amount = (part.strip() for part in text.rpartition("="))
    if not separator or not name or re.fullmatch(r"\d{1,9}(\.\d{1,2})?", amount) is None:
        raise UsageError("not a price", input=f"--price {text}", hint="write it as P40=200 or EPS=12.50")
    return name, float(amount)


def things(request: Request, advice: Advice) -> tuple[Thing, ...]:
    """Cards and things to order, each once."""
    cards: dict[str, Thing] = {}
    for order in request.new:
        names = (order.wanted.id, order.wanted.name, *(order.wanted.card.names if not order.wanted.variant else ()))
        count = order.count + (cards[order.wanted.id].quantity if order.wanted.id in cards else 0)
        cards[order.wanted.id] = Thing(order.wanted.name, names, count, "must")
    return (
        *cards.values(),
        *(Thing(one.item, (one.item, *one.part_numbers), one.quantity, one.need) for one in advice.shopping_list),
    )


def priced(request: Request, advice: Advice, texts: Sequence[str]) -> Advice:
    """The advice with prices; of a plan that fails nothing is ordered, and nothing is priced.

    Raises:
        UsageError: a price is none, or belongs to nothing on the list or to several things.
    """
    prices = [parse_price(text) for text in texts]
    if not prices or advice.verdict == "does-not-fit":
        return advice
    known = things(request, advice)
    each: dict[Thing, float] = {}
    for text, (name, amount) in zip(texts, prices, strict=True):
        thing = _meant(name, known, text)
        if each.setdefault(thing, amount) != amount:
            raise UsageError(say("{item} has another price before", item=thing.item), input=f"--price {text}")
    rows = tuple(
        PricedItem(
            item=thing.item,
            quantity=thing.quantity,
            each=amount,
            total=round(amount * thing.quantity, 2),
            need=thing.need,
        )
        for thing, amount in each.items()
    )
    price = Price(
        total=round(sum(row.total for row in rows), 2),
        total_if_fitted=round(sum(row.total for row in rows if row.need == "must"), 2),
        priced=rows,
        unpriced=tuple(thing.item for thing in known if thing not in each),
    )
    return advice.model_copy(update={"price": price})


def _meant(name: str, known: Sequence[Thing], text: str) -> Thing:
    """The one thing that is called so in full, or else the one in whose name the words stand."""
    folded = name.casefold()
    found = [thing for thing in known if folded in {one.casefold() for one in thing.names}]
    found = found or [thing for thing in known if any(folded in one.casefold() for one in thing.names)]
    if len(found) == 1:
        return found[0]
    listed = "; ".join(thing.item for thing in (found or known))
    if found:
        raise UsageError("it may mean several things", input=f"--price {text}", hint=f"be exact: {listed}")
    hint = f"on the list: {listed}" if known else "without cards there is nothing to order: add --gpu"
    raise UsageError("nothing on the list is called so", input=f"--price {text}", hint=hint)
