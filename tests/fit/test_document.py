"""The document of every card in every server: its keys, its sentences, its sources."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from gpucheck.fit.advise import advise
from gpucheck.fit.report import Advice
from gpucheck.fit.request import Order, Request, Wanted

from .ask import ask, bare, shipped

PROMISED = {
    "": {
        *("schema", "gpucheck", "time", "headline", "verdict", "exit_code", "server", "candidates", "request"),
        *("max_count", "max_with_changes", "capacity", "placement", "checks", "power", "topology", "shopping_list"),
        *("questions", "conditions", "alternatives"),
    },
    "candidates": {"server", "verdict", "max_count", "tell_apart"},
    "capacity": {"class", "max", "given"},
    "placement": {"gpu", "slot", "position", "riser", "socket", "lanes", "gen"},
    "checks": {"topic", "outcome", "message", "sources"},
    "power": {"load_watts", "usable_watts", "peak_watts", "redundancy", "input_voltage"},
    "topology": {"slots", "matrix"},
    "shopping_list": {"item", "part_numbers", "quantity", "need", "why", "sources"},
    "questions": {"ask", "how", "if_yes", "if_no"},
}
"""Keys that other programs read."""


def test_keys_that_were_promised() -> None:
    questions = [
        ask("R730", "P40:2"),
        ask("R730", "P40:2", cpus=1, psu="1x495"),
        ask("2288V3", "T4:2"),
        ask("R730"),
        ask(None, "P40"),
    ]
    met: set[str] = set()
    for document in (json.loads(advice.model_dump_json(by_alias=True)) for advice in questions):
        assert document["schema"] == "gpucheck/advice/1"
        assert set(document) >= PROMISED[""]
        for key, promised in PROMISED.items():
            parts = document[key] if key else []
            for part in [parts] if isinstance(parts, dict) else parts or []:
                met.add(key)
                assert set(part) >= promised
    assert met == PROMISED.keys() - {""}


# --- cards in servers: one place of the matrix in so many -----------------------------------------

EVERY = 17
"""A prime: every server, every card and both counts have their turn. test_walk.py looks at all verdicts."""


@cache
def matrix() -> tuple[Advice, ...]:
    """Advice on one and on two of a card, makers' versions too, in a server."""
    catalog = shipped()
    cards = [catalog.card(id) for id in sorted(catalog.cards)]
    wanted = [Wanted(card, variant) for card in cards for variant in (None, *card.variants)]
    places = [(id, one, count) for id in sorted(catalog.servers) for one in wanted for count in (1, 2)][::EVERY]
    return tuple(
        advise(Request(server=catalog.server(id), orders=(Order(one, count),), catalog=catalog))
        for id, one, count in places
    )


def sentences(advice: Advice) -> Iterator[str]:
    yield advice.headline
    yield from (check.message for check in advice.checks)
    yield from (condition.text for condition in (*advice.conditions, *advice.notes))
    yield from (scenario.given for scenario in advice.scenarios)
    for item in advice.shopping_list:
        yield from (item.item, item.why)
    for question in advice.questions:
        yield from (question.ask, question.how, question.if_yes, question.if_no)


def test_every_answer_is_made_of_whole_sentences() -> None:
    for advice in matrix():
        for sentence in sentences(advice):
            assert sentence.strip() == sentence
            assert sentence
            assert not re.search(r"[{}]|\bNone\b|  |\.\.", sentence), sentence
        assert not re.search(r"\b1 conditions", advice.headline)


def test_every_answer_is_one_of_its_own_checks() -> None:
    for advice in matrix():
        outcomes = {check.outcome for check in advice.checks}
        assert ("fail" in outcomes) is (advice.verdict == "does-not-fit")
        assert advice.exit_code == {"fits": 0, "fits-with-changes": 0, "does-not-fit": 1, "unknown": 3}[advice.verdict]
        if advice.verdict == "unknown":
            assert "unknown" in outcomes
        if advice.verdict == "fits":
            assert "change" not in outcomes


def test_every_answer_is_short() -> None:
    for advice in matrix():
        assert len(advice.headline) < 400
        assert len(advice.questions) <= 12
        assert len(advice.conditions) <= 16
        assert len({condition.text for condition in advice.conditions}) == len(advice.conditions)


def test_every_statement_about_a_product_has_a_source() -> None:
    assert {check.message for advice in matrix() for check in bare(advice)} == set()


def test_sources_are_named_once_and_in_full() -> None:
    for advice in matrix():
        for check in advice.checks:
            assert len(set(check.sources)) == len(check.sources)
            assert all(source.title and source.confidence for source in check.sources)


@pytest.mark.parametrize("field", ["part_numbers", "quantity"])
def test_things_to_order_are_orderable(field: str) -> None:
    for advice in matrix():
        for item in advice.shopping_list:
            value: Any = getattr(item, field)
            assert value if field == "quantity" else all(number.strip() for number in value)
