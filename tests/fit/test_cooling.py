"""Heat and the room that plugs take: what the chassis cools, open fans side by side, plugs on top."""

from __future__ import annotations

from typing import Any

import pytest
from catalog.entries import SERVER

from gpucheck.catalog import Catalog
from gpucheck.fit.report import Advice
from gpucheck.fit.request import Wanted

from .ask import ask, card, checks, fit, outcome, says, server, shipped, states

FANS = {"kind": "open-air", "src": ["brief"]}


def build(box: Any, *cards: Any, **stated: Any) -> Advice:
    """Advice with the shipped rules on mechanics."""
    pairs = [one if isinstance(one, tuple) else (one, 1) for one in cards]
    entries = {one.id: one.model_dump(mode="json") for one, _ in pairs}
    return fit(box, *pairs, catalog=Catalog({}, entries, shipped().software), **stated)


def rows(*ids: str, **changes: Any) -> list[dict[str, Any]]:
    return [{**SERVER["slots"][0], "id": id, "smbios": [f"Slot {id}"], **changes} for id in ids]


# --- what the chassis cools ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tower", "desktop", "board"])
def test_passive_card_without_a_servers_airflow(kind: str) -> None:
    advice = build(server(cooling=[], form={"kind": kind, "src": ["manual"]}), card())
    assert outcome(advice, "cooling") == "unknown"
    assert says(advice, "a fan with a shroud blows air through the Example 200")


def test_passive_card_in_a_rack_server() -> None:
    advice = build(server(cooling=[]), card())
    assert says(advice, "the airflow at the slot is enough for a card that is passive")
    assert not says(advice, "shroud")


def test_a_statement_on_airflow_outweighs_the_form() -> None:
    advice = build(server(form={"kind": "tower", "src": ["manual"]}), card())
    assert outcome(advice, "cooling") == "pass"
    assert not says(advice, "shroud")


def test_blower_in_a_tower_needs_no_shroud() -> None:
    tower = server(cooling=[], form={"kind": "tower", "src": ["manual"]})
    assert not says(build(tower, card(cooling={"kind": "blower", "src": ["brief"]})), "shroud")


# --- open fans side by side ---------------------------------------------------------------------


def test_open_fans_side_by_side() -> None:
    advice = build(server(), (card(cooling=FANS), 2))
    assert outcome(advice, "cooling") == "unknown"
    assert says(advice, "cards with open fans stay cool enough side by side in slots 1, 2; blowers would")
    assert all(check.sources for check in checks(advice, "cooling"))


def test_one_card_or_another_cooler_has_no_such_neighbour() -> None:
    assert not says(build(server(), card(cooling=FANS)), "side by side")
    assert not says(build(server(), (card(), 2)), "side by side")
    blower = card(id="nvidia-blower", name="Blower", names=["Blower"], cooling={"kind": "blower", "src": ["brief"]})
    assert not says(build(server(), card(cooling=FANS), blower), "side by side")


def test_room_between_two_cards() -> None:
    """Slots 1 and 2 hold a card of two slots each; from 1 to 5 there is air."""
    apart = server(slots=[*rows("1", "5"), *rows("3", max_wide=1)])
    assert not says(build(apart, (card(cooling=FANS), 2)), "side by side")
    covered = server(slots=[*rows("1", wide_blocks={"2": ["3"]}), *rows("5"), *rows("3", max_wide=1)])
    assert says(build(covered, (card(cooling=FANS), 2)), "side by side in slots 1, 5")
    near = server(slots=[*rows("1", "3"), *rows("2", max_wide=1)])
    assert says(build(near, (card(cooling=FANS), 2)), "side by side in slots 1, 3")


def test_cards_on_different_risers_are_apart() -> None:
    risers = server(slots=[*rows("1", riser="1"), *rows("2", riser="2")])
    assert not says(build(risers, (card(cooling=FANS), 2)), "side by side")


def test_a_build_that_runs_shows_that_they_stay_cool() -> None:
    report = {"cards": ["nvidia-example"], "count": 2, "works": True, "src": ["owner"]}
    advice = build(server(gpu={"reports": [report]}), (card(cooling=FANS), 2))
    assert states(advice, "cooling", "But a source has these cards in this model.")
    assert not says(advice, "side by side")


def test_eight_4090() -> None:
    assert says(ask("ESC8000-G4", "4090:8"), "side by side in slots 1, 2, 3, 4, 5, 6, 7, 8")


# --- plugs on top -------------------------------------------------------------------------------


def on_top(**changes: Any) -> Any:
    return card(aux={"plugs": [{"kind": "pcie-8"}], "at": "top", "src": ["brief"]}, **changes)


@pytest.mark.parametrize(("room", "expected"), [(147, "pass"), (140, "unknown"), (112, "unknown")])
def test_plug_on_top_and_its_bend(room: float, expected: str) -> None:
    """A card of 111.15 mm with about 35 mm above it."""
    box = server(slots=rows("1", clearance_height_mm=room))
    advice = build(box, on_top())
    assert outcome(advice, "geometry") == expected
    assert says(advice, "or an angled plug is used") is (expected == "unknown")
    assert advice.verdict == "fits-with-changes"  # about 35 mm rest on what builders say: no reason to fail


def test_plug_on_top_where_the_room_is_not_known() -> None:
    advice = build(server(), on_top())
    assert says(advice, "about 146.15 mm of height are free at slot 1")
    assert all(check.sources for check in checks(advice, "geometry"))


def test_plug_at_the_end_takes_no_height() -> None:
    advice = build(server(), card(aux={"plugs": [{"kind": "pcie-8"}], "at": "end", "src": ["brief"]}))
    assert checks(advice, "geometry") == []


def test_card_that_is_too_high_without_its_plug_fails_as_before() -> None:
    box = server(slots=rows("1", clearance_height_mm=105))
    assert build(box, on_top()).verdict == "does-not-fit"


# --- width --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wide", "thick", "slots"),
    [(2.5, None, 3), (3, 61, 3), (None, 40, 2), (None, 57, 3), (None, 61, 3), (None, 70.1, 4), (None, None, None)],
)
def test_slots_that_a_card_takes(wide: float | None, thick: float | None, slots: int | None) -> None:
    size = {"length_mm": 267, "profile": "full", "src": ["brief"]}
    given = {key: value for key, value in (("slots_wide", wide), ("thickness_mm", thick)) if value is not None}
    assert Wanted(card(size={**size, **given})).slots_wide == slots


def test_a_card_of_two_and_a_half_slots_needs_three() -> None:
    advice = build(server(), card(size__slots_wide=2.5))
    assert advice.verdict == "does-not-fit"
    assert "is 3 slots wide" in advice.headline
