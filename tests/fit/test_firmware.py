"""Firmware settings, versions of the BIOS, and the address space for the cards' BARs."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.fit.addresses import _older
from gpucheck.fit.report import Advice

from .ask import ask, card, checks, fit, item, outcome, says, server, states

GIB = 1 << 30
MENU = {"purpose": "above-4g", "menu": "Above 4G", "value": "Enabled", "src": ["manual"]}


def large(gib: int = 32, gpus: int = 1) -> Any:
    """A card with large BARs."""
    return card(bar1={"bytes": gib * GIB, "src": ["brief"]}, gpus_per_card=gpus, needs_above_4g=True)


def windows(*sizes: int, each: str = "machine", when: str | None = None) -> list[dict[str, Any]]:
    told = {} if when is None else {"when": when}
    return [{"bytes": size * GIB, "each": each, "src": ["manual"], **told} for size in sizes]


# --- windows ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "count", "expected"),
    [
        (256, 2, "pass"),
        (128, 2, "pass"),  # two of 32 GiB, and as much again at worst: each begins at a multiple of its size
        (127, 2, "unknown"),
        (65, 2, "unknown"),
        (64, 2, "fail"),  # not a byte left for the small BARs
        (32, 1, "fail"),
        (64, 1, "pass"),
    ],
)
def test_bars_against_the_window(window: int, count: int, expected: str) -> None:
    advice = fit(server(mmio=windows(window)), (large(), count))
    assert outcome(advice, "address-space") == expected
    assert all(check.sources for check in checks(advice, "address-space"))


def test_numbers_are_stated() -> None:
    advice = fit(server(mmio=windows(64)), (large(), 2))
    assert advice.verdict == "does-not-fit"
    assert states(advice, "address-space", "take 64 GiB or more of one window; this model's is 64 GiB")


def test_a_bar_counts_as_a_power_of_two() -> None:
    assert outcome(fit(server(mmio=windows(64)), (large(24), 1)), "address-space") == "pass"
    assert outcome(fit(server(mmio=windows(63)), (large(24), 1)), "address-space") == "unknown"


def test_every_gpu_of_a_card_has_its_bar() -> None:
    assert outcome(fit(server(mmio=windows(96)), (large(16, gpus=2), 2)), "address-space") == "pass"
    assert outcome(fit(server(mmio=windows(64)), (large(16, gpus=2), 2)), "address-space") == "fail"


def test_windows_of_each_cpu() -> None:
    """One card at each CPU of the example server."""
    box = server(mmio=windows(64, each="socket"))
    assert outcome(fit(box, (large(), 2)), "address-space") == "pass"
    assert outcome(fit(server(mmio=windows(64)), (large(), 2)), "address-space") == "fail"


def test_slots_of_unknown_owner_may_share_a_window() -> None:
    box = server(mmio=windows(64, each="socket"), slots__1__socket=None)
    assert outcome(fit(box, (large(), 2)), "address-space") == "fail"


def test_a_window_that_a_setting_makes_is_a_condition() -> None:
    small, big = windows(16), windows(256, when="MMIO High = 256G")
    advice = fit(server(mmio=[*small, *big]), (large(), 2))
    assert outcome(advice, "address-space") == "pass"
    assert says(advice, "the firmware is set so: MMIO High = 256G")
    setting = {"purpose": "mmio-size", "menu": "MMIO High", "value": "256G", "src": ["manual"]}
    listed = fit(server(mmio=[*small, *big], firmware=[MENU, setting]), (large(), 2))
    assert not says(listed, "the firmware is set so")
    assert says(listed, "MMIO High = 256G")


def test_a_setting_may_know_larger_windows_than_a_source_names() -> None:
    advice = fit(server(mmio=windows(32, when="MMIO High = 32G")), (large(), 2))
    assert outcome(advice, "address-space") == "unknown"
    assert any("How large is the 64-bit memory window" in question.ask for question in advice.questions)


def test_more_cards_never_need_less() -> None:
    order = ("pass", "unknown", "fail")
    outcomes = [
        order.index(outcome(fit(server(mmio=windows(size)), (large(), count)), "address-space"))
        for size in (40, 100)
        for count in (1, 2)
    ]
    assert outcomes[0] <= outcomes[1]
    assert outcomes[2] <= outcomes[3]


def test_real_windows() -> None:
    advice = ask("7048GR-TR", "P40:4")
    assert states(advice, "address-space", "at most 128 GiB of a CPU's window; it has 256 GiB")
    assert states(ask("4028GR-TR", "K80:4"), "address-space", "it has 512 GiB")
    assert outcome(ask("4028GR-TR2", "A100 80GB:8"), "address-space") == "unknown"  # 1 TiB at one CPU


# --- address bits -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "cards", "ram", "expected"),
    [
        (36, 2, None, "fail"),  # 64 GiB in all
        (36, 1, None, "unknown"),  # with little memory
        (36, 1, 16 * GIB, "pass"),
        (36, 1, 48 * GIB, "fail"),
        (39, 2, None, "pass"),
        (46, 2, 512 * GIB, "pass"),
    ],
)
def test_bits_that_a_probe_read(bits: int, cards: int, ram: int | None, expected: str) -> None:
    box = server(mmio=windows(1024))
    advice = fit(box, (large(), cards), address_bits=bits, ram_bytes=ram)
    assert outcome(advice, "address-bits") == expected
    assert advice.verdict == ("does-not-fit" if expected == "fail" else "fits-with-changes")


def test_small_bars_ask_for_no_bits() -> None:
    assert checks(fit(server(), card(), address_bits=36), "address-bits") == []


# --- settings -----------------------------------------------------------------------------------


def test_steps_in_the_order_of_the_menus() -> None:
    csm = {"purpose": "csm", "menu": "CSM", "value": "Disabled", "src": ["manual"]}
    advice = fit(server(firmware=[MENU, csm]), large(1))
    assert states(advice, "firmware", "Set in the firmware: CSM = Disabled; Above 4G = Enabled.")
    assert says(ask("X99-F8D", "P40:4"), "boot mode UEFI only; PCIe settings > Above 4G Decoding = Enabled")


def test_what_comes_so_need_not_be_confirmed() -> None:
    base = {"purpose": "mmio-base", "menu": "Base", "value": "12 TB", "default": "56 TB", "src": ["manual"]}
    advice = fit(server(firmware=[{**MENU, "default": "Enabled"}, base]), large(1))
    assert states(advice, "firmware", "Above 4G = Enabled (as it comes: Enabled); Base = 12 TB (as it comes: 56 TB)")
    assert says(advice, "the firmware setting is on: Base = 12 TB")
    alone = fit(server(firmware=[{**MENU, "default": "Enabled"}]), large(1))
    assert says(alone, "the firmware setting is on: Above 4G = Enabled")


def test_how_to_set_it_from_outside() -> None:
    advice = fit(server(firmware=[{**MENU, "command": "racadm set X"}]), large(1))
    assert states(advice, "firmware", "Above 4G = Enabled (or: racadm set X)")


def test_boards_hide_the_switch_behind_csm() -> None:
    def how(kind: str) -> str:
        advice = fit(server(firmware=[], form={"kind": kind, "src": ["manual"]}), large(1))
        return next(question.how for question in advice.questions if "Above 4G" in question.ask)

    assert "boot mode UEFI alone first" in how("board")
    assert "UEFI" not in how("rack")


def test_resizable_bar_is_mentioned_where_a_card_has_it() -> None:
    assert states(ask("R730", "3090 asus turbo"), "firmware", "With Resizable BAR each")
    assert not states(ask("R730", "T4"), "firmware", "Resizable BAR")


# --- versions of the BIOS -----------------------------------------------------------------------


def bios(version: str | None, **setting: Any) -> Advice:
    return fit(server(firmware=[{**MENU, **setting}], mmio=windows(64)), large(1), bios_version=version)


def test_versions_that_lack_the_setting() -> None:
    lacking = bios("F25", bios_without=["F23", "F25"])
    assert (lacking.verdict, outcome(lacking, "firmware")) == ("fits-with-changes", "change")
    assert item(lacking, "another BIOS version") == 1
    assert says(bios(None, bios_without=["F23", "F25"]), "the BIOS is none of F23, F25, which lack Above 4G")
    sound = bios("F22", bios_without=["F23", "F25"])
    assert states(sound, "firmware", "BIOS F22 is not known to lack Above 4G.")
    assert not says(sound, "F23")


def test_versions_before_the_setting_came() -> None:
    assert outcome(bios("2.4.3", bios_from="2.10.0"), "firmware") == "change"
    assert outcome(bios("2.10.1", bios_from="2.10.0"), "firmware") == "pass"
    for version in (None, "F4", ""):
        assert says(bios(version, bios_from="2.10.0"), "the BIOS is version 2.10.0 or newer")


@pytest.mark.parametrize(
    ("version", "than", "older"),
    [
        ("2.5.4", "2.10.0", True),
        ("2.10.0", "2.10.0", False),
        ("3.0b", "3.2", True),
        ("3.2", "3.0b", False),
        ("F4", "F22", True),
        ("F22", "F4", False),
        ("P1.20", "F4", None),
        ("", "1", None),
    ],
)
def test_older(version: str, than: str, older: bool | None) -> None:
    assert _older(version, than) is older
