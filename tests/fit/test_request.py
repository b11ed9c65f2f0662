"""What people type after --psu, --gpu, --count, --riser and --option: good, bad, and one clear line for the bad."""

from __future__ import annotations

import pytest

from gpucheck.errors import UsageError
from gpucheck.fit.request import MOST_CARDS, PsuPlan, Wanted, checked_count, parse_gpu, parse_psus, resolve_option

from .ask import ask, card, shipped


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("2x1100", PsuPlan(2, 1100)),
        ("2x1100W", PsuPlan(2, 1100)),
        (" 2 X 1100 w ", PsuPlan(2, 1100)),
        ("2×1100", PsuPlan(2, 1100)),
        ("4*1600", PsuPlan(4, 1600)),
        ("750", PsuPlan(1, 750)),
        ("1x00750", PsuPlan(1, 750)),
    ],
)
def test_psus(text: str, plan: PsuPlan) -> None:
    assert parse_psus(text) == plan


@pytest.mark.parametrize(
    "text", ["", "x", "2x", "x1100", "0x1100", "-2x1100", "2x1100x3", "2x1.1kW", "two", "2x0000", "2x75", "2"]
)
def test_psus_that_are_none(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_psus(text)
    assert str(caught.value) == f"--psu {text}: not a number of power supplies (write it as 2x1100)"


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("P40", "P40", None),
        ("P40:2", "P40", 2),
        ("2xP40", "P40", 2),
        ("2 × Tesla P40", "Tesla P40", 2),
        ("8x1080 Ti", "1080 Ti", 8),
        ("1080ti", "1080ti", None),
        ("3090 : 2", "3090", 2),
        ("titan x", "titan x", None),
        (" P40 ", "P40", None),
    ],
)
def test_gpu(text: str, name: str, count: int | None) -> None:
    assert parse_gpu(text) == (name, count)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("P40:two", "not a number of cards"),
        ("P40:-1", "not a number of cards"),
        ("P40:1.5", "not a number of cards"),
        ("P40:99999", "not a number of cards"),
        ("P40:²", "not a number of cards"),
        ("P40:0", "a number of cards is between 1 and 64"),
        ("0xP40", "a number of cards is between 1 and 64"),
        ("65xP40", "a number of cards is between 1 and 64"),
        ("", "no card is named"),
        ("  ", "no card is named"),
    ],
)
def test_gpu_that_is_none(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_gpu(text)
    assert caught.value.message == message
    assert caught.value.input == f"--gpu {text}"
    assert caught.value.hint


def test_count() -> None:
    assert [checked_count(n, "--count") for n in (1, MOST_CARDS)] == [1, MOST_CARDS]
    for wrong in (-1, 0, MOST_CARDS + 1, 10**9):
        with pytest.raises(UsageError, match="between 1 and 64"):
            checked_count(wrong, f"--count {wrong}")


@pytest.mark.parametrize(
    ("text", "riser"),
    [
        ("3=alternate", True),
        (" 3 = Alternate ", True),
        ("riser 3=alternate", True),
        ("Riser3=ALTERNATE", True),
        ("riser3=alternate", False),
        ("RISER3=alternate", False),
    ],
)
def test_option(text: str, riser: bool) -> None:
    assert resolve_option(shipped().server("dell-poweredge-r730"), text, riser=riser) == ("riser3", "alternate")


@pytest.mark.parametrize(
    ("text", "riser", "line"),
    [
        ("4=alternate", True, "--riser 4=alternate: not an option of PowerEdge R730 (known: 3=default|alternate)"),
        ("3", True, "--riser 3: not an option of PowerEdge R730 (known: 3=default|alternate)"),
        ("", True, "--riser : not an option of PowerEdge R730 (known: 3=default|alternate)"),
        ("3=huge", True, "--riser 3=huge: not a choice for Riser 3 (left) (known: default, alternate)"),
        ("3=", True, "--riser 3=: not a choice for Riser 3 (left) (known: default, alternate)"),
        ("cage=4", False, "--option cage=4: not an option of PowerEdge R730 (known: riser3=default|alternate)"),
    ],
)
def test_option_that_is_none(text: str, riser: bool, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_option(shipped().server("dell-poweredge-r730"), text, riser=riser)
    assert str(caught.value) == line


def test_option_of_a_model_that_has_none() -> None:
    with pytest.raises(UsageError, match="the catalog knows no such choice for PowerEdge T630"):
        resolve_option(shipped().server("dell-poweredge-t630"), "3=alternate", riser=True)


@pytest.mark.parametrize(
    ("wide", "slots"), [(1, 1), (1.5, 2), (2, 2), (2.5, 3), (2.7, 3), (3, 3), (None, None)], ids=str
)
def test_width_in_whole_slots(wide: float | None, slots: int | None) -> None:
    assert Wanted(card(size__slots_wide=wide)).slots_wide == slots


# --- as a whole ---------------------------------------------------------------------------------


def test_short_form_is_the_long_form() -> None:
    short = ask(None, words=("R730", "2xP40"))
    long = ask("R730", "P40", count=2)
    assert short.model_copy(update={"time": ""}) == long.model_copy(update={"time": ""})
    cards = ask(None, words=("2xP40",))
    assert cards.server is None


def test_the_same_card_twice_is_added_up() -> None:
    assert ask("R730", "P40", "tesla p40").request["gpus"] == [{"gpu": "nvidia-tesla-p40", "count": 2}]


@pytest.mark.parametrize("gpus", [(), ("P40", "T4"), ("P40:2",), ("2xP40",)], ids=str)
def test_count_goes_with_one_card_without_a_number(gpus: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="exactly one --gpu") as caught:
        ask("R730", *gpus, count=2)
    assert caught.value.input == "--count 2"


def test_request_is_repeated_in_the_document() -> None:
    advice = ask(
        "R730",
        "P40",
        cpus=2,
        cpu_watts=105,
        psu="2x1100",
        risers=("3=alternate",),
        input_volts=230,
        redundancy="n+1",
        ambient_c=25,
    )
    assert advice.request == {
        "gpus": [{"gpu": "nvidia-tesla-p40", "count": 1}],
        "fitted": [],
        "cpus": 2,
        "cpu": None,
        "cpu_watts": 105,
        "psus": {"count": 2, "watts": 1100},
        "options": {"riser3": "alternate"},
        "input_voltage": 230,
        "redundancy": "n+1",
        "ambient_c": 25,
        "ram_bytes": None,
        "use": None,
        "address_bits": None,
        "bios_version": None,
        "occupied": [],
    }
