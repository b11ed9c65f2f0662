"""Auxiliary power by exact kind of plug."""

from __future__ import annotations

from typing import Any

import pytest

from .ask import card, checks, fit, item, outcome, says, server


def plugs(*kinds: str) -> dict[str, Any]:
    return {"aux__plugs": [{"kind": kind} for kind in kinds]}


def cable(called: str, *gives: str, sockets: int = 1, plug: str | None = "pcie-8") -> dict[str, Any]:
    return {"called": called, "from_plug": plug, "gives": list(gives), "sockets": sockets, "src": ["manual"]}


def test_card_without_a_plug() -> None:
    advice = fit(server(power__aux=None), card(**plugs(), power__watts=70))
    assert outcome(advice, "plug") == "pass"
    assert [source.title for source in checks(advice, "plug")[0].sources] == ["Product brief"]


def test_eps_card_with_pcie_cables_alone_is_not_a_pass() -> None:
    advice = fit(server(), card(**plugs("eps-8")))
    assert (advice.verdict, outcome(advice, "plug")) == ("unknown", "unknown")
    assert "no cable from this server's GPU sockets to that plug is known" in advice.headline
    assert item(advice, "cable") == 0


def test_kind_that_no_source_names_is_not_a_pass() -> None:
    assert fit(server(), card(**plugs("8-pin-unknown"))).verdict == "unknown"
    assert fit(server(), card(aux=None)).verdict == "unknown"
    same_unknown = server(power__aux__0__plug="8-pin-unknown", power__cables=[])
    assert fit(same_unknown, card(**plugs("8-pin-unknown"))).verdict == "unknown"


def test_look_alike_plugs_are_told_apart_for_the_buyer() -> None:
    assert says(fit(server(), card()), "12 V and ground on opposite rows")


def test_cables_of_unlike_cards_are_added_up() -> None:
    advice = fit(server(), card(), card(id="nvidia-other", name="Other 200"))
    assert [(thing.item, thing.quantity) for thing in advice.shopping_list if "cable" in thing.item] == [
        ("8-pin cable", 2)
    ]


def test_two_plugs_take_one_cable_with_both_ends() -> None:
    both = server(power__cables=[cable("single", "pcie-8"), cable("double", "pcie-8", "pcie-6")])
    advice = fit(both, card(**plugs("pcie-8", "pcie-6")))
    assert (item(advice, "double"), item(advice, "single")) == (1, 0)


def test_one_cable_a_card_even_if_an_end_hangs_loose() -> None:
    double = server(power__cables=[cable("double", "pcie-8", "pcie-6")])
    advice = fit(double, (card(**plugs("pcie-8")), 2))
    assert item(advice, "double") == 2
    assert advice.max_count == 2


@pytest.mark.parametrize(("count", "found"), [(1, "change"), (2, "unknown"), (3, "fail")])
def test_sockets_bind(count: int, found: str) -> None:
    # Two sockets; a card needs both with the known cables, and at least one with any.
    wide = server(
        power__cables=[cable("single", "pcie-8")],
        slots=[{**slot, "id": str(n)} for n, slot in enumerate(server().model_dump(mode="json")["slots"] * 2)],
    )
    advice = fit(wide, (card(**plugs("pcie-8", "pcie-8")), count))
    assert outcome(advice, "plug") == found
    assert advice.max_count == 2
    assert says(advice, "one GPU power socket feeds all plugs") is (found == "unknown")


def test_cable_that_takes_two_sockets() -> None:
    pair = server(power__cables=[cable("pair", "pcie-8", sockets=2)])
    assert outcome(fit(pair, card()), "plug") == "change"
    assert outcome(fit(pair, (card(), 2)), "plug") == "unknown"


def test_socket_that_an_option_brings() -> None:
    options = {"label": "Riser", "choices": {"a": {"called": "riser a"}, "b": {"called": "riser b"}}}
    socket = {"at": "riser", "plug": "pcie-8", "count": 2, "when": {"riser": "b"}, "src": ["manual"]}
    ruled = server(options__riser=options, power__aux=[socket])
    assert outcome(fit(ruled, card(), options={"riser": "a"}), "plug") == "fail"
    advice = fit(ruled, card())
    assert (advice.verdict, item(advice, "riser b")) == ("fits-with-changes", 1)


def test_server_of_which_the_sockets_are_not_known() -> None:
    unknown = {"power__aux": None, "power__cables": []}
    advice = fit(server(**unknown), card())
    assert (advice.verdict, outcome(advice, "plug")) == ("unknown", "unknown")
    built = server(**unknown, gpu__reports=[{"cards": ["nvidia-example"], "works": True, "src": ["owner"]}])
    covered = fit(built, card())
    assert outcome(covered, "plug") == "pass"
    assert says(covered, "there is a power cable that ends in the plug of the Example 200")


def test_another_card_with_the_same_plugs_shows_that_they_are_fed() -> None:
    built = server(
        power__aux=None,
        power__cables=[],
        gpu__reports=[{"cards": ["nvidia-other"], "works": True, "src": ["owner"]}],
    )
    twin = card(id="nvidia-other", name="Other", **plugs("pcie-8", "pcie-6"))
    advice = fit(built, card(), twin)
    assert [check.outcome for check in checks(advice, "plug")] == ["pass", "pass"]
    eps = card(id="nvidia-other", name="Other", **plugs("eps-8"))
    assert [check.outcome for check in checks(fit(built, card(), eps), "plug")] == ["unknown", "pass"]


def test_server_without_any_socket() -> None:
    advice = fit(server(power__aux=[]), card())
    assert (advice.verdict, advice.max_count) == ("does-not-fit", 0)
    assert "need a GPU power socket each, the server has 0" in advice.headline


def test_leads_that_end_in_the_plug_need_no_cable() -> None:
    leads = server(power__cables=[])
    assert outcome(fit(leads, card()), "plug") == "pass"
    assert fit(leads, (card(), 2)).max_count == 2


@pytest.mark.parametrize(("watts", "verdict"), [(225, "fits-with-changes"), (226, "does-not-fit")])
def test_socket_and_slot_together_give_what_the_card_draws(watts: int, verdict: str) -> None:
    weak = server(power__aux=[{"at": "board", "plug": "pcie-8", "count": 2, "watts": 150, "src": ["manual"]}])
    assert fit(weak, card(power__watts=watts)).verdict == verdict


@pytest.mark.parametrize(
    ("slot_watts", "card_watts", "verdict"),
    [(75, 75, "fits-with-changes"), (75, 76, "does-not-fit"), (None, 25, "fits-with-changes"), (None, 70, "unknown")],
)
def test_card_without_a_plug_lives_on_its_slot(slot_watts: int | None, card_watts: int, verdict: str) -> None:
    ruled = server(slots__0__watts=slot_watts, slots__1__watts=slot_watts)
    advice = fit(ruled, card(**plugs(), power__watts=card_watts))
    assert advice.verdict == verdict
    if verdict == "unknown":
        assert any("May a card draw 70 W from slot 1?" in question.ask for question in advice.questions)
