"""Every card in every model, one to ten of it: what must hold wherever one looks.

The verdicts of the whole matrix come from the quick way; whole documents from one in so many of its places. With
``GPUCHECK_WALK=all`` in the environment every place is written out: that takes an hour.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from functools import cache

from gpucheck.fit.advise import advise
from gpucheck.fit.plans import VERDICT_ORDER, best_plan, verdicts
from gpucheck.fit.report import Advice, AdviceVerdict
from gpucheck.fit.request import Order, PsuPlan, Request, Wanted

from .ask import bare, by_all_rulings, shipped

COUNTS = range(1, 11)
EVERY = 1 if os.environ.get("GPUCHECK_WALK") == "all" else 401
"""A prime: one in so many places meets every model, card and count in turn."""

ESSENTIAL = {"slot", "width", "geometry", "socket", "plug", "watts", "address-space"}

Answer = tuple[int, AdviceVerdict, int]


def asked(server: str, card: str, count: int) -> Request:
    catalog = shipped()
    orders = (Order(Wanted(catalog.card(card)), count),)
    return Request(server=catalog.server(server), orders=orders, catalog=catalog)


@cache
def matrix() -> dict[tuple[str, str], tuple[Answer, ...]]:
    """Verdict and most cards for every model, card and count."""
    catalog = shipped()
    return {
        (server, card): verdicts(asked(server, card, 1), COUNTS)
        for server in sorted(catalog.servers)
        for card in sorted(catalog.cards)
    }


@cache
def written() -> tuple[tuple[Answer, Request, Advice], ...]:
    """Whole documents for some places of the matrix, each with what the quick way said."""
    places = [(place, answer) for place, answers in matrix().items() for answer in answers][::EVERY]
    requests = [(answer, asked(*place, answer[0])) for place, answer in places]
    return tuple((answer, request, advise(request)) for answer, request in requests)


def test_the_quick_way_says_what_the_document_says() -> None:
    for answer, request, advice in written():
        assert answer == (request.count, advice.verdict, advice.max_count)


def test_fewer_cards_fit_where_more_do_unless_a_rule_of_the_vendor_says_otherwise() -> None:
    for place, answers in matrix().items():
        most = answers[0][2]
        for count, verdict, _ in answers:
            if count > most:
                assert verdict == "does-not-fit"
            elif verdict == "does-not-fit":
                failed = [check for check in best_plan(asked(*place, count)).checks if check.outcome == "fail"]
                assert all("vendor" in {source.confidence for source in check.sources} for check in failed), place


def test_a_verdict_gets_no_better_with_more_cards() -> None:
    for place, answers in matrix().items():
        ranks = [VERDICT_ORDER[verdict] for count, verdict, most in answers if verdict != "does-not-fit"]
        assert ranks == sorted(ranks, reverse=True), (place, answers)


def test_larger_supplies_never_cost_a_card() -> None:
    for _, request, _ in written():
        sizes = sorted({psu.watts for psu in request.server.power.psus})
        bays = request.server.power.bays or 2
        answers = [verdicts(replace(request, psus=PsuPlan(bays, watts)), COUNTS) for watts in sizes]
        for smaller, larger in itertools.pairwise(answers):
            for (_, verdict, most), (_, better, more) in zip(smaller, larger, strict=True):
                assert VERDICT_ORDER[better] >= VERDICT_ORDER[verdict]
                assert more >= most


def test_nothing_fits_while_something_essential_is_not_known() -> None:
    for _, request, advice in written():
        if advice.verdict in ("fits", "fits-with-changes"):
            assert [check for check in advice.checks if check.topic in ESSENTIAL and check.outcome == "unknown"] == []
            assert len(advice.placement) == request.count


def test_every_statement_about_a_product_has_a_source() -> None:
    assert {check.message for _, _, advice in written() for check in bare(advice)} == set()


def test_nothing_decides_but_what_the_quick_way_asks() -> None:
    for answer, request, _ in written():
        plan = best_plan(request)
        assert by_all_rulings(plan) == plan.verdict == answer[1]
