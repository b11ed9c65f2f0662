"""Every number that the document states can be traced to the key of a source.

A number in the message of a check is one of these: it is part of the request; it belongs to a name (of the model, a
card, a slot, a choice); it is a constant of a sentence of ours; or it stands in a table of the catalog one of whose
sources the check cites, by entry and key. A sum (watts, address space) cites the sources of what it sums up.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from functools import cache

from pydantic import BaseModel

from gpucheck.entries import Documented, Server
from gpucheck.findings import Citation
from gpucheck.fit.advise import advise
from gpucheck.fit.plugs import PLUG_NAMES
from gpucheck.fit.report import Advice
from gpucheck.fit.request import Order, PsuPlan, Request, Wanted

from .ask import shipped

EVERY = 67
"""One place of the matrix in so many, as in test_document.py."""

SUMS = {"watts", "peak-watts", "address-space", "host-ram"}
"""Topics whose numbers are sums or differences of sourced terms and of the request."""

OWN = {"4", "16", "64", "75", "100", "120", "200", "240", "111.15", "312", "68.9", "167.65", *"0123"}
"""Numbers of our own sentences: 4 GB, 64-bit, x16, the CEM's sizes and slot power, ranges of mains; small counts."""

NUMBER = re.compile(r"\d+(?:\.\d+)?")


@cache
def documents() -> tuple[tuple[Request, Advice], ...]:
    catalog = shipped()
    places = [(server, card, n) for server in sorted(catalog.servers) for card in sorted(catalog.cards) for n in (1, 2)]
    requests = [
        Request(
            server=catalog.server(server),
            orders=(Order(Wanted(catalog.card(card)), count),),
            psus=PsuPlan(2, 1100) if count == 2 else None,
            cpu_watts=120 if count == 2 else None,
            ambient_c=30,
            catalog=catalog,
        )
        for server, card, count in places[::EVERY]
    ]
    return tuple((request, advise(request)) for request in requests)


def tables(table: BaseModel) -> Iterator[BaseModel]:
    yield table
    for name in type(table).model_fields:
        value = getattr(table, name)
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
        for one in inner:
            if isinstance(one, BaseModel):
                yield from tables(one)


def stated(entry: Documented, cited: set[str]) -> Iterator[str]:
    """Numbers in the tables of an entry that rest on one of these sources."""
    for table in tables(entry):
        keys = {key for name in type(table).model_fields if name.endswith("src") for key in getattr(table, name)}
        if keys & cited:
            yield from found_in(json.dumps(table.model_dump(mode="json", exclude={"sources", "slots", "models"})))


def found_in(text: str) -> Iterator[str]:
    """Numbers, each in one spelling: 267 for 267.0; of bytes also the MiB and GiB."""
    for number in NUMBER.findall(text):
        yield f"{float(number):g}"
        if number.isdecimal() and int(number) >= 1 << 20:
            yield from (str(int(number) >> 20), str(int(number) >> 30))


def names(request: Request, advice: Advice) -> Iterator[str]:
    """Names that hold numbers, the longest first."""
    server = request.server
    cards = [order.wanted.card for order in request.orders]
    found = [server.model, advice.model or "", *(row.id for row in server.slots), *PLUG_NAMES.values()]
    found += [name for card in cards for name in (card.name, *card.names)]
    found += [choice.called for option in server.options.values() for choice in option.choices.values()]
    found += [option.label for option in server.options.values()]
    yield from sorted(found, key=len, reverse=True)


def numbers(message: str, request: Request, advice: Advice) -> set[str]:
    for name in names(request, advice):
        message = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w|\.\d)", " ", message)
    return set(found_in(message))


def requested(request: Request) -> set[str]:
    return set(found_in(json.dumps(request.as_stated())))


def numbers_of(entry: str, cited: set[str], server: Server) -> Iterator[str]:
    """Numbers of a catalog entry, server, card or software, that rest on the sources that are cited."""
    catalog = shipped()
    if entry in catalog.software:
        text = json.dumps(catalog.software[entry])
        return itertools.chain(found_in(text), re.findall(r"\d+", text))  # versions: 525 of 525.60.13
    return stated(server if entry == server.id else catalog.card(entry), cited)


def keys(sources: tuple[Citation, ...], entry: str) -> set[str]:
    return {source.key for source in sources if source.entry == entry and source.key is not None}


def known(sources: tuple[Citation, ...], request: Request) -> set[str]:
    """Numbers that a statement with these sources may hold."""
    found = requested(request) | OWN
    for id in {source.entry for source in sources if source.entry is not None}:
        found |= set(numbers_of(id, keys(sources, id), request.server))
    return found


def is_sum(number: str, parts: set[str]) -> bool:
    return any(f"{float(number) - float(part):g}" in parts for part in parts)


def test_numbers_of_checks_stand_in_tables_whose_sources_are_cited() -> None:
    lost: set[tuple[str, str]] = set()
    for request, advice in documents():
        for check in advice.checks:
            parts = known(check.sources, request)
            for number in numbers(check.message, request, advice) - parts:
                height_and_bend = check.topic == "geometry" and is_sum(number, parts)
                if check.topic not in SUMS and not height_and_bend:
                    lost.add((number, check.message))
    assert lost == set()


def test_terms_of_the_sum_of_watts_stand_in_tables_whose_sources_are_cited() -> None:
    for request, advice in documents():
        for term in advice.power.terms if advice.power else ():
            count = max(sum(order.count for order in request.orders), request.server.sockets.count)
            parts = {float(number) for number in known(term.sources, request)}
            for watts in {term.low_watts, term.high_watts} - {0, None}:
                assert any(watts in (part * n for n in range(1, count + 1)) for part in parts), term


def test_sums_are_those_of_their_terms() -> None:
    for _, advice in documents():
        if advice.power is not None and advice.power.terms:
            assert advice.power.load_low_watts == round(sum(term.low_watts for term in advice.power.terms))
            highest = [term.high_watts for term in advice.power.terms]
            upper = None if None in highest else round(sum(watts for watts in highest if watts is not None))
            assert advice.power.load_watts == upper


def test_what_is_cited_stands_in_the_entry_that_is_named() -> None:
    for request, advice in documents():
        groups = [check.sources for check in advice.checks] + [item.sources for item in advice.shopping_list]
        groups += [condition.sources for condition in (*advice.conditions, *advice.notes)]
        for source in itertools.chain(*groups):
            if source.entry == request.server.id:
                assert source.key in request.server.sources
            elif source.entry in shipped().cards:
                assert source.key in shipped().card(source.entry).sources
            elif source.entry is not None:
                assert source.key in shipped().software[source.entry]["sources"]
