"""The driver and the TensorFlow that all the cards of a machine share, or why there is none."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gpucheck.catalog import Catalog
from gpucheck.fit.report import Advice, SoftwareStack
from gpucheck.fit.request import Order, Request, Wanted
from gpucheck.fit.software import shared

from .ask import ask, card, checks, fit, outcome, says, server, shipped, states


def stack(*cards: str, **stated: Any) -> SoftwareStack:
    """The software of cards by their catalog ids, without building them into anything."""
    orders = tuple(Order(Wanted(shipped().card(id)), 1) for id in cards)
    box = shipped().server("supermicro-sys-4028gr-tr")
    return shared(Request(server=box, orders=orders, catalog=shipped(), **stated)).stack


P40, T4, K80, L40S = "nvidia-tesla-p40", "nvidia-t4", "nvidia-tesla-k80", "nvidia-l40s"
A100, V100, M40 = "nvidia-a100-pcie-40gb", "nvidia-tesla-v100-pcie-16gb", "nvidia-tesla-m40-24gb"
RTX_5090, MI100, ARC = "nvidia-geforce-rtx-5090", "amd-instinct-mi100", "intel-arc-b580"


@pytest.mark.parametrize(
    ("cards", "driver", "tensorflow"),
    [
        ((P40,), ("525", "580", "proprietary"), "2.21.0"),
        ((T4,), ("525", None, "either"), "2.21.0"),
        ((K80,), ("450", "470", "proprietary"), "2.11.0"),
        ((M40,), ("525", "580", "proprietary"), "2.16.2"),
        ((P40, T4), ("525", "580", "proprietary"), "2.21.0"),
        ((M40, V100), ("525", "580", "proprietary"), "2.16.2"),
        ((K80, A100), ("450", "470", "proprietary"), "2.11.0"),  # R450 knows the A100, R470 still the K80
        ((RTX_5090, L40S), ("570", None, "open"), None),
    ],
)
def test_what_cards_share(cards: tuple[str, ...], driver: tuple[str, str | None, str], tensorflow: str | None) -> None:
    found = stack(*cards)
    assert found.driver is not None
    assert (found.driver.from_, found.driver.last, found.driver.flavour) == driver
    assert found.tensorflow == tensorflow


@pytest.mark.parametrize(
    ("cards", "why"),
    [
        ((P40, RTX_5090), "the Tesla P40 (Pascal) needs the proprietary kernel modules, and the GeForce RTX 5090"),
        ((K80, L40S), "470 is the last branch for the Tesla K80 (Kepler), and the L40S (Ada) needs 520 or newer"),
        ((K80, RTX_5090), "470 is the last branch for the Tesla K80 (Kepler)"),
    ],
)
def test_cards_without_a_common_driver(cards: tuple[str, ...], why: str) -> None:
    found = stack(*cards)
    assert (found.driver, found.tensorflow, found.pip) == (None, None, None)
    assert why in (found.why_none or "")


def test_the_order_of_the_cards_does_not_matter() -> None:
    assert stack(P40, T4).driver == stack(T4, P40).driver
    assert stack(RTX_5090, P40).why_none is not None


def test_no_common_driver_keeps_cards_apart_but_not_for_inference() -> None:
    assert ask("4028GR-TR", "P40", "RTX 5090").verdict == "does-not-fit"
    advice = ask("4028GR-TR", "P40", "RTX 5090", use="infer")
    assert outcome(advice, "software") == "unknown"
    assert says(advice, "virtual machines of their own")


def test_pip_line_and_the_trap_of_cudnn() -> None:
    """From 2.20 on the extra takes the newest cuDNN, which has no code before Turing."""
    assert stack(P40).pip == "pip install 'tensorflow[and-cuda]==2.21.0' 'nvidia-cudnn-cu12<9.11'"
    assert stack(P40, T4).pip == stack(P40).pip
    assert stack(T4).pip == "pip install 'tensorflow[and-cuda]==2.21.0'"
    assert stack(M40).pip == "pip install 'tensorflow[and-cuda]==2.16.2'"  # asks for one old cuDNN by itself
    assert stack(K80).pip == "pip install 'tensorflow==2.11.0'"  # before there was an extra
    assert states(ask("R730", "P40"), "software", "The pin matters: nvidia-cudnn-cu12 >=9.11 has no code for cards")
    assert not states(ask("R730", "T4"), "software", "The pin matters")
    assert states(ask("4028GR-TR", "K80"), "software", "CUDA 11.2 and cuDNN 8.1 must be installed beside it")


def test_versions_that_go_with_it() -> None:
    found = stack(P40)
    assert (found.cuda, found.cudnn, found.python, found.cpu_needs) == ("12.5", "9.3", ("3.10", "3.13"), ("avx",))


def test_blackwell_has_a_driver_but_no_official_wheel() -> None:
    advice = ask("4028GR-TR2", "RTX 5090")
    assert advice.software is not None
    assert advice.software.pip is None
    assert "No official TensorFlow is known to have machine code for the GeForce RTX 5090" in (
        advice.software.why_none or ""
    )
    assert says(advice, "something else than the official TensorFlow uses the GeForce RTX 5090")
    assert outcome(advice, "software") == "unknown"


@pytest.mark.parametrize("id", [MI100, ARC])
def test_other_makers_cards_get_no_line_to_install(id: str) -> None:
    found = stack(id)
    assert (found.driver, found.tensorflow, found.pip) == (None, None, None)
    assert "they are built for CUDA" in (found.why_none or "")
    assert found.sources


def test_without_lists_the_cards_own_word_counts() -> None:
    advice = fit(server(), card())
    assert states(advice, "software", "The newest official TensorFlow with code for the Example 200 is 2.21.")
    assert advice.software is not None
    assert advice.software.pip is None
    unread = fit(server(), card(software={"src": ["brief"]}))
    assert states(unread, "software", "Which TensorFlow has code for the Example 200 is not known.")


def test_a_card_of_an_unlisted_generation_beside_one_that_ended_is_asked() -> None:
    old = card(id="nvidia-old", name="Old", names=["Old"], software__last_driver_branch="470")
    advice = fit(server(), old, card(software__compute_capability="99.0"))
    assert says(advice, "a driver of branch 470 or earlier, the last for the Old, also drives the Example 200")


def test_a_wheel_must_run_under_the_last_driver_and_hold_code_for_the_card() -> None:
    def newest(**software: Any) -> str | None:
        one = card(software={"src": ["brief"], **software})
        catalog = Catalog({}, {}, shipped().software)
        return shared(Request(server=server(), orders=(Order(Wanted(one), 1),), catalog=catalog)).stack.tensorflow

    assert newest(compute_capability="8.0") == "2.21.0"
    assert newest(compute_capability="8.0", last_driver_branch="470") == "2.14.0"  # CUDA 12 wants 525
    assert newest(compute_capability="8.0", tensorflow_newest="2.12") == "2.12.1"
    assert newest(compute_capability="3.0") is None  # code for 3.5 does not run on it


def test_fitted_cards_count_too() -> None:
    box = shipped().server("supermicro-sys-4028gr-tr")
    orders = (
        Order(Wanted(shipped().card(K80)), 1, slot="8", fitted=True),
        Order(Wanted(shipped().card(L40S)), 1),
    )
    assert shared(Request(server=box, orders=orders, catalog=shipped())).stack.why_none is not None


def test_every_card_gets_an_answer_with_sources() -> None:
    for id in shipped().cards:
        found = stack(id)
        assert found.sources, id
        assert (found.pip is None) is (found.tensorflow is None)
        if found.pip is not None:
            assert re.fullmatch(r"pip install 'tensorflow(\[and-cuda\])?==\d+\.\d+\.\d+'( '[a-z0-9<.-]+')?", found.pip)
        capability = shipped().card(id).software.compute_capability
        assert found.tensorflow is not None or found.why_none is not None or capability is None, id


def test_the_document_is_that_of_the_cards() -> None:
    advice: Advice = ask("R730", "P40:2")
    assert advice.software == stack(P40)
    assert all(check.sources for check in checks(advice, "software"))
    assert ask("R730").software is None
