"""One card in one slot, and which of several slots is the best."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.entries import Card, SlotRow
from gpucheck.fit.request import Order, Wanted
from gpucheck.fit.slots import Build, best_placement, merged, pair_class, seat

from .ask import card, fit, item, server

ROW: dict[str, Any] = server().slots[0].model_dump(mode="json")


def row(id: str = "1", **changes: Any) -> SlotRow:
    return SlotRow.model_validate({**ROW, "id": id, **changes})


def judged(card: Card, row: SlotRow, cpus: int = 2) -> dict[str, str]:
    """Topic to outcome of what is not simply all right."""
    return {remark.topic: remark.outcome for remark in seat(Wanted(card), row, Build(cpus)).remarks}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, {}),
        ({"gpu": False}, {"slot": "fail"}),
        ({"socket": 3}, {"socket": "fail"}),
        ({"socket": None}, {"socket": "unknown"}),
        ({"connector": 8, "lanes": 8}, {"connector": "fail"}),
        ({"connector": 8, "lanes": 8, "open_ended": True}, {}),
        ({"connector": 16, "lanes": 4}, {}),
        ({"connector": None, "lanes": 8}, {"connector": "unknown"}),
        ({"connector": None, "lanes": 16}, {}),
        ({"max_wide": 1}, {"width": "fail"}),
        ({"max_wide": None}, {"width": "unknown"}),
        ({"height": "low"}, {"height": "fail"}),
        ({"height": None}, {"height": "unknown"}),
        ({"length": "half"}, {"length": "fail"}),
        ({"length": None}, {"length": "unknown"}),
        ({"clearance_length_mm": 260}, {"length": "fail"}),
        ({"clearance_length_mm": 267, "length": "half"}, {}),
        ({"clearance_height_mm": 100}, {"height": "fail"}),
        ({"watts": 25}, {"slot-watts": "unknown"}),
    ],
    ids=str,
)
def test_card_in_a_slot(changes: dict[str, Any], found: dict[str, str]) -> None:
    assert judged(card(), row(**changes)) == found


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"bus": None}, {"connector": "unknown"}),
        ({"size__slots_wide": None}, {"width": "unknown"}),
        ({"size__slots_wide": 2.1}, {"width": "fail"}),
        ({"size__length_mm": None}, {"length": "unknown"}),
        ({"size__length_mm": 312}, {}),
        ({"size__length_mm": 313}, {"length": "unknown"}),
        ({"size__profile": None}, {"height": "unknown"}),
        ({"size__height_mm": 111}, {}),
        ({"size__height_mm": 112}, {}),  # 4.4 inches, rounded
        ({"size__height_mm": 113}, {"height": "unknown"}),
    ],
    ids=str,
)
def test_card_and_the_standard_envelope(changes: dict[str, Any], found: dict[str, str]) -> None:
    assert judged(card(**changes), row()) == found


def test_card_of_half_length_may_be_a_little_longer() -> None:
    half = {"size__profile": "low", "size__slots_wide": 1}
    assert judged(card(**half, size__length_mm=169), row(height="low", length="half", max_wide=1)) == {}
    assert judged(card(**half, size__length_mm=170), row(height="low", length="half")) == {"length": "fail"}


def test_low_card_is_listed_with_a_rounded_height() -> None:
    low = {"size__profile": "low", "size__slots_wide": 1, "size__length_mm": 167}
    assert judged(card(**low, size__height_mm=69), row(height="low", length="half")) == {}
    assert judged(card(**low, size__height_mm=71), row(height="low", length="half")) == {"height": "fail"}


def test_wide_cards_cover_their_neighbours() -> None:
    crowded = row("2", wide_blocks={"2": ["3"], "3": ["1"]})
    covered = {wide: seat(Wanted(card(size__slots_wide=wide)), crowded, Build(2)).covers for wide in (1, 2, 2.5, 3)}
    assert covered == {1: {"2"}, 2: {"2", "3"}, 2.5: {"1", "2", "3"}, 3: {"1", "2", "3"}}


def test_sentences_that_differ_in_the_slot_alone_become_one() -> None:
    narrow = [row(id, max_wide=1) for id in ("1", "2")] + [row("3", socket=3)]
    remarks = [remark for one in narrow for remark in seat(Wanted(card()), one, Build(2)).remarks]
    assert merged(remarks) == (
        "The Example 200 is 2 slots wide; room for a width of 1 at slots 1, 2.",
        "CPU 3, which is not there, owns slot 3.",
    )


@pytest.mark.parametrize(
    ("first", "second", "pair"),
    [
        ({"socket": 1}, {"socket": 1}, "PHB"),
        ({"socket": 1}, {"socket": 2}, "SYS"),
        ({"socket": None}, {"socket": 2}, "?"),
        ({"socket": None, "switch": "A"}, {"socket": None, "switch": "A"}, "PIX"),
        ({"switch": "A"}, {"switch": "B"}, "PHB"),
    ],
)
def test_pair_class(first: dict[str, Any], second: dict[str, Any], pair: str) -> None:
    assert pair_class(row("1", **first), row("2", **second)) == pair


# --- the best of several slots ------------------------------------------------------------------


def places(*rows: SlotRow, cards: list[tuple[Card, int]] | None = None) -> list[str]:
    whole = server(slots=[row.model_dump(mode="json") for row in rows])
    orders = [Order(Wanted(one), count) for one, count in cards or [(card(), 2)]]
    return [seat.row.id for seat in best_placement(whole, orders, Build(2)).seats]


def test_cards_stand_at_one_cpu_where_they_can() -> None:
    assert places(row("1", socket=1), row("2", socket=2), row("3", socket=2)) == ["2", "3"]


def test_cards_stand_under_one_switch_where_they_can() -> None:
    assert places(row("1", switch="A"), row("2", switch="B"), row("3", switch="B")) == ["2", "3"]


def test_all_lanes_come_before_nearness() -> None:
    assert places(row("1", lanes=8), row("2"), row("3", socket=2)) == ["2", "3"]


def test_vendor_order_decides_between_slots_of_one_worth() -> None:
    assert places(row("1", order=3), row("2", order=2), row("3", order=1)) == ["3", "2"]
    assert places(row("1"), row("2"), row("3", order=1), row("4", order=2)) == ["3", "4"]


def test_what_is_known_comes_before_all_else() -> None:
    assert places(row("1", order=1, length=None), row("2", order=2), row("3", lanes=8)) == ["2", "3"]


def test_more_cards_come_before_better_places() -> None:
    # A wide card in the best slot would cost both others.
    assert places(row("1", order=1, wide_blocks={"2": ["2", "3"]}), row("2", order=2), row("3", order=3)) == ["2", "3"]


def test_narrow_card_makes_way_for_a_wide_one() -> None:
    # Slots 2 and 3 look alike; a wide card in slot 1 covers slot 2.
    narrow = card(id="nvidia-narrow", size__slots_wide=1)
    rows = (row("1", wide_blocks={"2": ["2"]}), row("2", max_wide=1), row("3", max_wide=1))
    assert sorted(places(*rows, cards=[(narrow, 1), (card(), 1)])) == ["1", "3"]


def test_fewer_of_one_kind_let_more_of_another_in() -> None:
    # The wide card alone would take all three slots.
    rows = (row("1", wide_blocks={"2": ["2", "3"]}), row("2", max_wide=1), row("3", max_wide=1, height="low"))
    low = card(id="nvidia-low", size__slots_wide=1, size__profile="low", size__length_mm=168)
    assert places(*rows, cards=[(card(), 1), (low, 2)]) == ["1", "2"]
    assert sorted(
        places(row("1", max_wide=2, wide_blocks={"2": ["2"]}), row("2", max_wide=1), cards=[(card(), 1), (low, 2)])
    ) == ["1", "2"]


def test_sixty_four_cards_in_twelve_slots_are_an_answer_like_any_other() -> None:
    rows = [row(str(n), socket=1 + n % 2, switch="AB"[n % 2]) for n in range(12)]
    kinds = [(card(id=f"nvidia-{name}"), 64) for name in ("one", "two", "three")]
    assert len(places(*rows, cards=kinds)) == 12


# --- the best of several builds -----------------------------------------------------------------

RISER = {"label": "Riser", "choices": {"a": {"called": "riser a"}, "b": {"called": "riser b", "parts": ["RB"]}}}


def chosen(**of_a: Any) -> tuple[str, int]:
    """Where the card goes and how many risers are ordered: slot 1 with riser a, slot 2 with riser b."""
    rows = [row("1", when={"riser": "a"}, **of_a), row("2", when={"riser": "b"})]
    advice = fit(server(slots=[one.model_dump(mode="json") for one in rows], options__riser=RISER), card())
    return advice.placement[0].slot, item(advice, "riser b")


def test_fewer_changes_come_before_more_lanes() -> None:
    assert chosen(lanes=8) == ("1", 0)


def test_what_is_known_comes_before_fewer_changes() -> None:
    assert chosen(length=None) == ("2", 1)


def test_what_fits_comes_before_what_does_not() -> None:
    assert chosen(max_wide=1) == ("2", 1)
