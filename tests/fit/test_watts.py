"""The sum of watts: bounds, redundancy, mains voltage, peaks. Two CPUs draw 0 to 200 W, the rest 100 to 200 W."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.power import Bounds, judged, usable_watts

from .ask import card, checks, fit, item, outcome, says, server


@pytest.mark.parametrize(
    ("count", "redundancy", "watts"),
    [
        (2, "none", 2000),
        (2, "n+1", 1000),
        (2, "n+n", 1000),
        (4, "n+1", 3000),
        (4, "n+n", 2000),
        (3, "n+n", 1000),
        (1, "n+1", 0),
        (1, "n+n", 0),
    ],
)
def test_usable_watts(count: int, redundancy: Any, watts: int) -> None:
    assert usable_watts(count, 1000, redundancy) == watts


@pytest.mark.parametrize(
    ("load", "found"),
    [
        (Bounds(100, 200), "pass"),
        (Bounds(100, 201), "unknown"),
        (Bounds(200, 300), "unknown"),
        (Bounds(201, 300), "fail"),
        (Bounds(100, None), "unknown"),
        (Bounds(201, None), "fail"),
    ],
)
def test_bounds(load: Bounds, found: str) -> None:
    assert judged(load, 200) == found


def test_sum_of_bounds() -> None:
    assert Bounds(1, 2) + Bounds(10, 20) == Bounds(11, 22)
    assert Bounds(1, 2) + Bounds(10, None) == Bounds(11, None)
    assert Bounds(1, 2).times(3) == Bounds(3, 6)
    assert Bounds(1, None).times(3) == Bounds(3, None)


@pytest.mark.parametrize(
    ("psus", "found", "verdict"),
    [
        ("1x600", "pass", "fits-with-changes"),  # 300 to 600 W
        ("1x599", "unknown", "unknown"),
        ("1x300", "unknown", "unknown"),
        ("1x299", "fail", "does-not-fit"),
    ],
)
def test_watts_that_are_not_given_are_bounded(psus: str, found: str, verdict: str) -> None:
    advice = fit(server(), card(), psus=psus)
    assert (outcome(advice, "watts"), advice.verdict) == (found, verdict)
    assert advice.power is not None
    assert (advice.power.load_low_watts, advice.power.load_watts) == (300, 600)
    asked = any("(TDP) each?" in q.ask or "draw at most" in q.ask for q in advice.questions)
    assert asked is (found == "unknown")


def test_stated_cpu_watts_close_the_bounds() -> None:
    assert outcome(fit(server(), card(), psus="1x500", cpu_watts=50), "watts") == "pass"
    assert outcome(fit(server(), card(), psus="1x500", cpu_watts=90), "watts") == "unknown"
    assert outcome(fit(server(), card(), psus="1x500", cpu_watts=250), "watts") == "fail"


def test_no_upper_bound_is_never_a_pass() -> None:
    open_ended = server(power__base=None)
    assert outcome(fit(open_ended, card(), psus="2x5000"), "watts") == "unknown"
    assert outcome(fit(server(), card(power=None), psus="2x5000"), "watts") == "unknown"


@pytest.mark.parametrize(
    ("redundancy", "found"), [("none", "pass"), ("n+1", "unknown"), ("n+n", "unknown"), (None, "pass")]
)
def test_redundancy(redundancy: Any, found: str) -> None:
    advice = fit(server(), card(), psus="2x500", redundancy=redundancy)
    assert outcome(advice, "watts") == found
    assert advice.power is not None
    assert advice.power.usable_watts == (1000 if redundancy in ("none", None) else 500)
    # Nobody asked for redundancy, and it is lost: that must be all right.
    assert says(advice, "not redundant") is (redundancy is None)


def test_no_word_of_redundancy_where_half_of_the_supplies_is_enough() -> None:
    assert not says(fit(server(), card(), psus="2x1000"), "not redundant")


@pytest.mark.parametrize(
    ("volts", "usable", "found"), [(None, 1000, "pass"), (230, 1000, "pass"), (110, 600, "unknown")]
)
def test_low_line(volts: int | None, usable: int, found: str) -> None:
    advice = fit(server(), card(power__watts=300), psus="1x1000", input_volts=volts)
    assert outcome(advice, "watts") == found
    assert advice.power is not None
    assert advice.power.usable_watts == usable
    assert says(advice, "at 100-120 V a 1000 W supply gives 600 W") is (volts is None)


def test_low_line_that_is_not_known() -> None:
    advice = fit(server(), card(), psus="1x500", input_volts=110)
    assert advice.verdict == "unknown"
    assert "What a 500 W supply gives at 110 V is not known." in advice.headline


def test_low_line_gives_no_more_than_the_rating() -> None:
    """What it gives at 110 V is not known, that it is too little for the card alone is."""
    advice = fit(server(), card(power__watts=600), psus="1x500", input_volts=110)
    assert outcome(advice, "watts") == "fail"
    assert advice.verdict == "does-not-fit"


def test_low_line_that_is_enough_is_not_mentioned() -> None:
    assert not says(fit(server(), card(), psus="2x1000"), "100-120 V")


def test_peaks_warn_and_never_fail() -> None:
    jumpy = card(power__peak_factor=2.0, power__peak_src=["brief"])
    advice = fit(server(), jumpy, psus="1x700")
    assert outcome(advice, "watts") == "pass"
    assert advice.power is not None
    assert advice.power.peak_watts == 800
    assert says(advice, "Short peaks of one card may bring the load to 800 W, above 700 W")
    assert advice.verdict == "fits-with-changes"
    assert checks(fit(server(), jumpy, psus="1x900"), "peak-watts") == []


def test_one_card_peaks_at_a_time() -> None:
    jumpy = card(power__peak_factor=2.0, power__peak_src=["brief"])
    power = fit(server(), (jumpy, 2), psus="2x1000").power
    assert power is not None
    assert (power.load_watts, power.peak_watts) == (800, 1000)
    other = card(id="nvidia-other", power__watts=150, power__peak_factor=1.5, power__peak_src=["brief"])
    power = fit(server(), jumpy, other, psus="2x1000").power
    assert power is not None
    assert (power.load_watts, power.peak_watts) == (750, 950)


# --- supplies that are not stated ---------------------------------------------------------------


def test_smallest_supplies_that_are_enough_are_ordered() -> None:
    advice = fit(server(), card())
    assert item(advice, "500 W power supply") == 2
    assert outcome(advice, "watts") == "change"
    assert any("Are at least 2 power supplies of 500 W" in question.ask for question in advice.questions)
    assert item(fit(server(), (card(), 2), redundancy="n+1"), "1000 W power supply") == 2


def test_supplies_that_the_model_does_not_have() -> None:
    advice = fit(server(), (card(power__watts=1000), 2))
    assert (advice.verdict, advice.max_count) == ("does-not-fit", 1)


def test_supplies_that_nobody_knows_are_asked() -> None:
    advice = fit(server(power__psus=None), card())
    assert (advice.verdict, outcome(advice, "watts")) == ("unknown", "unknown")
    assert says(advice, "the power supplies carry at least 300 W")


def test_need_of_large_supplies_concerns_the_cards_it_names() -> None:
    ruled = server(gpu__needs=[{"item": "1000 W", "psu_watts_min": 1000, "aux_only": True, "src": ["quote"]}])
    assert item(fit(ruled, card()), "1000 W power supply") == 2
    assert item(fit(ruled, card(aux__plugs=[], power__watts=70)), "500 W power supply") == 2


@pytest.mark.parametrize(("src", "verdict"), [("manual", "does-not-fit"), ("quote", "fits-with-changes")])
def test_need_of_large_supplies_binds_when_the_vendor_says_it(src: str, verdict: str) -> None:
    ruled = server(gpu__needs=[{"item": "two 1000 W supplies", "psu_watts_min": 1000, "src": [src]}])
    assert fit(ruled, card(), psus="2x500").verdict == verdict
    assert fit(ruled, card(), psus="2x1000").verdict == "fits-with-changes"


# --- builds that run ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        ({"psus": "2x1000"}, "pass"),
        ({}, "change"),
        ({"psus": "1x1000"}, "unknown"),  # the build may have had two
        ({"psus": "2x800"}, "unknown"),  # or larger ones
        ({"psus": "2x1000", "redundancy": "n+1"}, "unknown"),  # a report does not say that one may fail
        ({"psus": "2x1000", "input_volts": 110}, "unknown"),  # nor that the mains was low
    ],
)
def test_build_that_runs_covers_watts_only_as_far_as_it_goes(stated: dict[str, Any], found: str) -> None:
    built = server(power__base=None, gpu__reports=[{"cards": ["nvidia-example"], "works": True, "src": ["owner"]}])
    assert outcome(fit(built, card(), **stated), "watts") == found


# --- what would help ----------------------------------------------------------------------------


def test_larger_supplies_are_an_alternative() -> None:
    advice = fit(server(), card(), psus="1x250")
    assert (advice.verdict, advice.max_count, advice.max_with_changes) == ("does-not-fit", 0, 2)
    (alternative,) = advice.alternatives
    assert alternative.change == "with 2 × 500 W power supply"
    assert alternative.verdict == "fits-with-changes"


def test_all_that_is_stated_may_have_to_change() -> None:
    advice = fit(server(), (card(), 2), psus="1x250", cpus=1)
    assert advice.max_with_changes == 2
    assert advice.alternatives[-1].change == "with 2 CPUs, 2 × 500 W power supply"
