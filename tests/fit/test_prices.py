"""What cards and parts cost, for prices that a person gives."""

from __future__ import annotations

import pytest

from gpucheck.errors import UsageError
from gpucheck.fit.prices import parse_price
from gpucheck.fit.report import Price

from .ask import ask


def cost(*prices: str, cards: str = "P40:2") -> Price:
    price = ask("R730", cards, prices=prices).price
    assert price is not None
    return price


def test_cards_and_parts_are_added_up() -> None:
    price = cost("P40=200", "800JH=45", "eps=12.50", "1100 W=30")
    assert [(row.item[:9], row.quantity, row.each, row.total, row.need) for row in price.priced] == [
        ("Tesla P40", 2, 200, 400, "must"),
        ("alternate", 1, 45, 45, "must"),
        ("EPS 8-pin", 2, 12.5, 25, "must"),
        ("1100 W Pl", 2, 30, 60, "maybe-fitted"),
    ]
    assert (price.total, price.total_if_fitted) == (530, 470)
    assert [item.split()[0] for item in price.unpriced] == ["CPU", "GPU"]


@pytest.mark.parametrize(
    "name", ["P40", "p40", "Tesla P40", "tesla", "nvidia-tesla-p40", "EPS 8-pin to EPS 8-pin cable", "0PR21C", "0pr21c"]
)
def test_names_that_mean_one_thing(name: str) -> None:
    assert len(cost(f"{name}=1").priced) == 1


def test_name_in_full_comes_before_words_of_another() -> None:
    assert [row.item for row in cost("1100 W Platinum=30").priced] == ["1100 W Platinum"]


def test_same_price_twice_is_one_price() -> None:
    assert cost("P40=200", "Tesla P40=200").total == 400


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        (("riser=45",), "it may mean several things .*be exact: alternate riser 3"),
        (("sled=45",), "nothing on the list is called so .*on the list: Tesla P40; alternate riser 3"),
        (("P40=200", "tesla=210"), "Tesla P40 has another price before"),
        (("P40",), "not a price"),
        (("P40=",), "not a price"),
        (("=4",), "not a price"),
        (("P40=-1",), "not a price"),
        (("P40=1e9",), "not a price"),
        (("P40=nan",), "not a price"),
        (("P40=200 EUR",), "not a price"),
        (("P40=1,200",), "not a price"),
        (("P40=12.345",), "not a price"),
    ],
)
def test_prices_that_say_nothing(prices: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ask("R730", "P40:2", prices=prices)


def test_item_may_hold_an_equals_sign() -> None:
    assert parse_price("a=b=3.50") == ("a=b", 3.5)


def test_prices_belong_to_cards_in_one_model() -> None:
    with pytest.raises(UsageError, match="add --gpu"):
        ask("R730", prices=("P40=200",))
    with pytest.raises(UsageError, match="name the model with --model"):
        ask(None, "P40", prices=("P40=200",))


def test_nothing_is_bought_for_a_plan_that_fails() -> None:
    advice = ask("R730", "3090", prices=("3090=700",))
    assert (advice.verdict, advice.price) == ("does-not-fit", None)
    with pytest.raises(UsageError, match="not a price"):
        ask("R730", "3090", prices=("3090",))


def test_two_orders_of_one_card_are_one_thing() -> None:
    price = ask("R730", "P40@6", "P40@4", prices=("P40=100",)).price
    assert price is not None
    assert (price.total, price.priced[0].quantity) == (200, 2)
