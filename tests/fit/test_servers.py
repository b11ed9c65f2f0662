"""What the advisor says of the servers in the catalog: the questions that buyers bring."""

from __future__ import annotations

from typing import Any

import pytest
from catalog.entries import CARD, changed, write

from gpucheck.catalog import load
from gpucheck.errors import UsageError

from .ask import ask, checks, item, outcome, says, shipped, states

TWO_P40: dict[str, Any] = {"cpus": 2, "psu": "2x1100"}


# --- R730 ---------------------------------------------------------------------------------------


def test_r730_takes_two_p40_with_the_alternate_riser() -> None:
    advice = ask("R730", "P40:2", **TWO_P40, risers=("3=alternate",))
    assert advice.verdict in ("fits", "fits-with-changes")
    assert (advice.exit_code, advice.max_count, advice.max_with_changes) == (0, 2, 2)
    assert [(place.slot, place.socket, place.lanes) for place in advice.placement] == [("6", 1, 16), ("4", 2, 16)]
    assert advice.placement[1].covers == ("5",)
    assert advice.topology.slots == ("6", "4")
    assert advice.topology.matrix == (("X", "SYS"), ("SYS", "X"))
    assert item(advice, "EPS 8-pin") == 2
    assert item(advice, "alternate riser") == item(advice, "CPU 2") == item(advice, "1100 W") == 0
    assert says(advice, "12 V and ground on opposite rows")
    assert says(advice, "Memory Mapped I/O above 4 GB = Enabled")


def test_r730_with_one_cpu_takes_one() -> None:
    advice = ask("R730", "P40:2", **TWO_P40 | {"cpus": 1}, risers=("3=alternate",))
    assert (advice.verdict, advice.exit_code) == ("does-not-fit", 1)
    assert (advice.max_count, advice.max_with_changes) == (1, 2)
    assert "CPU 2, which is not there, owns slot 4" in advice.headline
    assert [(a.change, a.max_count) for a in advice.alternatives] == [("with 2 CPUs", 2)]


def test_r730_with_the_standard_riser_takes_one() -> None:
    advice = ask("R730", "P40:2", **TWO_P40, risers=("3=default",))
    assert (advice.verdict, advice.max_count, advice.max_with_changes) == ("does-not-fit", 1, 2)
    (alternative,) = advice.alternatives
    assert "alternate riser 3" in alternative.change
    assert "800JH" in alternative.parts
    assert (alternative.verdict, alternative.max_count) == ("fits-with-changes", 2)


def test_one_change_may_help_where_only_several_are_enough() -> None:
    advice = ask("R730", "P40:2", cpus=1, psu="2x1100", risers=("3=default",))
    assert (advice.max_count, advice.max_with_changes) == (0, 2)
    helped = {alternative.change: (alternative.verdict, alternative.max_count) for alternative in advice.alternatives}
    assert helped["with 2 CPUs"] == ("does-not-fit", 1)
    assert helped["with 2 CPUs, alternate riser 3 with one x16 slot (6)"] == ("fits-with-changes", 2)


def test_r730_with_a_riser_to_order() -> None:
    advice = ask("R730", "P40:2", **TWO_P40)
    assert (advice.verdict, advice.max_count) == ("fits-with-changes", 2)
    (riser,) = (item for item in advice.shopping_list if "riser" in item.item and "800JH" in item.part_numbers)
    assert (riser.quantity, riser.need) == (1, "must")
    assert outcome(advice, "riser") == "change"


def test_r730_of_which_nothing_is_stated() -> None:
    advice = ask("R730", "P40:2")
    assert (advice.verdict, advice.max_count) == ("fits-with-changes", 2)
    by_build = {(scenario.cpus, scenario.options["riser3"]): scenario.max_count for scenario in advice.scenarios}
    assert by_build == {(1, "default"): 0, (1, "alternate"): 1, (2, "default"): 1, (2, "alternate"): 2}
    assert [question.ask for question in advice.questions[:2]] == [
        "Are both CPUs fitted?",
        "Is this fitted: alternate riser 3 with one x16 slot (6)?",
    ]
    assert item(advice, "CPU 2") == 1
    assert item(advice, "1100 W") == 2


def test_r730_has_no_room_for_a_three_slot_card() -> None:
    advice = ask("R730", "3090")
    assert (advice.verdict, advice.max_count) == ("does-not-fit", 0)
    assert "3 slots wide" in advice.headline
    assert says(advice, "Asus Turbo RTX 3090")  # a maker's version for which the answer is another
    assert advice.shopping_list == ()


def test_r730xd_is_officially_without_gpus_but_that_is_only_quoted() -> None:
    advice = ask("R730xd", "GTX Titan X")
    assert advice.verdict == "fits-with-changes"
    assert says(advice, "the R730xd supports no internal or external GPU")
    assert outcome(advice, "support") == "unknown"


def test_r730_report_of_another_card_of_a_like_name_proves_nothing() -> None:
    # Owners run the Quadro RTX 6000 (8 + 6 pins), not the RTX 6000 Ada (16 pins).
    assert ask("R730", "Quadro RTX 6000").verdict == "fits-with-changes"
    advice = ask("R730", "RTX 6000 Ada")
    assert advice.verdict == "unknown"
    assert checks(advice, "reports") == []


def test_vendor_limit_says_nothing_of_a_plug_that_came_later() -> None:
    advice = ask("R730", "L40")  # 300 W, two slots wide, 16-pin plug
    assert (advice.verdict, outcome(advice, "plug"), outcome(advice, "address-space")) == ("unknown",) * 3


# --- T630 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cpus", "most"), [(1, 2), (2, 4)])
def test_t630_needs_both_cpus_for_four_cards(cpus: int, most: int) -> None:
    advice = ask("T630", "P40:4", cpus=cpus)
    assert advice.max_count == most
    assert advice.max_with_changes == 4
    assert advice.verdict == ("does-not-fit" if cpus == 1 else "fits-with-changes")


def test_t630_headline_names_the_cpu_that_can_be_added() -> None:
    assert "CPU 2, which is not there, owns slots 6, 7" in ask("T630", "P40:4", cpus=1).headline


def test_t630_psu_rule_for_cards_with_plugs_does_not_bind_a_card_without() -> None:
    assert item(ask("T630", "P40"), "1100 W") == 2
    assert item(ask("T630", "T4"), "1100 W") == 0


# --- Supermicro and Huawei ----------------------------------------------------------------------


def test_4028gr_tr() -> None:
    advice = ask("4028GR-TR", "1080ti:8", cpus=2)
    assert (advice.verdict, advice.max_count) == ("fits-with-changes", 8)
    assert {place.slot for place in advice.placement} == {"1", "2", "3", "4", "8", "9", "10", "11"}
    pairs = {row for line in advice.topology.matrix for row in line}
    assert pairs == {"X", "PIX", "PHB", "SYS"}
    assert ask("4028GR-TR", "1080ti:8", cpus=1).max_count == 4
    assert ask("4028GR-TR", "1080ti:9", cpus=2).verdict == "does-not-fit"


def test_4028gr_means_four_and_the_weakest_answers() -> None:
    advice = ask("4028GR", "1080ti:10")
    assert len(advice.candidates) == 4
    assert advice.verdict == "does-not-fit"
    assert advice.max_count == 8
    assert all(candidate.tell_apart for candidate in advice.candidates)


def test_2288v3_means_two() -> None:
    advice = ask("2288V3", "T4:2")
    assert {candidate.server for candidate in advice.candidates} == {"huawei-rh2288-v3", "huawei-rh2288h-v3"}
    assert all("24 memory slots" in (candidate.tell_apart or "") for candidate in advice.candidates)
    assert advice.server == "huawei-rh2288-v3"


# --- other questions ----------------------------------------------------------------------------


def test_every_model_for_a_card() -> None:
    advice = ask(None, "P40:2")
    assert {one.server for one in advice.candidates} == set(shipped().servers)
    assert advice.server is None
    order = ("fits", "fits-with-changes", "unknown", "does-not-fit")
    verdicts = [candidate.verdict for candidate in advice.candidates]
    assert verdicts == sorted(verdicts, key=order.index)


@pytest.mark.parametrize(
    ("model", "double", "single"), [("R730", 2, 4), ("T630", 4, 4), ("4028GR-TR", 8, 8), ("4028GR-TR2", 10, 10)]
)
def test_room_by_class(model: str, double: int, single: int) -> None:
    advice = ask(model)
    assert advice.verdict == "fits"
    assert [room.max for room in advice.capacity[:2]] == [double, single]
    assert f"{double} double-wide or {single} single-wide" in advice.headline
    assert advice.max_count is None


def test_room_that_nothing_shows_is_not_claimed() -> None:
    advice = ask("RH2288 V3")
    assert advice.capacity[0].max == 0


def test_card_of_unknown_length_is_not_a_pass(tmp_path: Any) -> None:
    unmeasured = changed(CARD, {"size": {"slots_wide": 2, "profile": "full", "src": ["brief"]}})
    catalog = load(write(tmp_path, unmeasured))
    advice = ask("R730", "E200", catalog=catalog, cpus=2, psu="2x1100", risers=("3=alternate",))
    assert (advice.verdict, advice.exit_code) == ("unknown", 3)
    assert advice.max_count == 2
    assert "Not known: the length of the Example 200." in advice.headline
    assert any(question.ask.startswith("How long is the Example 200") for question in advice.questions)
    assert says(advice, "the card is no longer than the room behind the slot")


def test_name_that_means_cards_of_unlike_fit_is_answered_for_the_weakest() -> None:
    advice = ask("R730", "titan x")
    assert {candidate.gpus for candidate in advice.candidates} == {("GeForce GTX Titan X",), ("Titan X (Pascal)",)}
    order = ("does-not-fit", "unknown", "fits-with-changes", "fits")
    assert advice.verdict == min((candidate.verdict for candidate in advice.candidates), key=order.index)


def test_mixed_cards() -> None:
    advice = ask("R730", "P40", "T4:2", cpus=2, psu="2x1100")
    assert advice.verdict == "fits-with-changes"
    assert advice.max_count == 3
    assert sorted(place.gpu for place in advice.placement) == ["nvidia-t4", "nvidia-t4", "nvidia-tesla-p40"]


def test_mixed_cards_need_one_driver_and_one_tensorflow() -> None:
    advice = ask("4028GR-TR", "P40", "T4")
    assert states(advice, "software", "Driver for Tesla P40, T4: branches 525 to 580, with the proprietary")
    assert states(advice, "software", "The newest official TensorFlow with code for all of Tesla P40, T")


def test_cards_that_no_driver_serves_together_do_not_go_together() -> None:
    advice = ask("4028GR-TR", "K80", "RTX 5090")
    assert (advice.verdict, outcome(advice, "software")) == ("does-not-fit", "fail")
    assert states(advice, "software", "470 is the last branch for the Tesla K80 (Kepler)")


def test_two_known_cables_a_card_leave_open_whether_one_would_do() -> None:
    advice = ask("R730", "2080 Ti:2", cpus=2, psu="2x1100", risers=("3=alternate",))
    assert advice.verdict == "unknown"
    assert advice.max_count == 2
    assert says(advice, "one GPU power socket feeds all plugs of a card")
    assert outcome(ask("R730", "2080 Ti:3", cpus=2), "plug") == "fail"  # three cards, two sockets


def test_riser_without_a_model() -> None:
    with pytest.raises(UsageError, match="belongs to one model"):
        ask(None, "P40", risers=("3=alternate",))


@pytest.mark.parametrize("cpus", [0, 3])
def test_cpus_that_no_board_has(cpus: int) -> None:
    with pytest.raises(UsageError, match="the PowerEdge R730 has 2 CPU sockets"):
        ask("R730", "P40", cpus=cpus)


def test_cpus_that_no_model_has() -> None:
    with pytest.raises(UsageError, match="no model in the catalog has so many CPU sockets"):
        ask(None, "P40", cpus=9)


@pytest.mark.parametrize(("model", "cards"), [("R740", "V100 16GB"), ("G5500", "V100 16GB:8")])
def test_cpus_that_the_vendor_wants_are_on_the_list(model: str, cards: str) -> None:
    """All cards could stand at CPU 1; the vendor wants both CPUs with a GPU."""
    advice = ask(model, cards)
    assert any(item.item.startswith("CPU 2 with its heat sink") for item in advice.shopping_list)
    assert not any("one CPU is enough" in check.message for check in advice.checks)
    assert not any(condition.text == "both CPUs" for condition in advice.conditions)


def test_room_agrees_with_what_the_vendor_allows() -> None:
    advice = ask("R740")
    assert advice.capacity[0].max == 3
    assert "up to 3 double-wide" in advice.headline
    counts = {(one.cpus, one.options["risers"], one.options["nvdimm"]): one.max_count for one in advice.scenarios}
    assert counts[2, "4", "none"] == 3
    assert counts[2, "4", "fitted"] == 2
    # A limit that names no slots does not say that one CPU's slots are enough.
    assert counts[1, "4", "fitted"] == 0


def test_room_that_is_not_known_is_not_told_as_none() -> None:
    advice = ask("DL380 Gen9")
    assert "0 double-wide" not in advice.headline
    assert "Whether larger ones go in is not known." in advice.headline
    assert advice.capacity[0].max == 0 < advice.capacity[0].perhaps
    assert advice.claim is not None
    assert advice.claim.right_when == ()
    assert 'Whether the claim "only one GPU" is wrong' in advice.claim.text


def test_what_speaks_against_a_card_is_no_condition_that_holds() -> None:
    advice = ask("R730", "P40", ambient_c=35)
    told = [condition.text for condition in advice.conditions if "35 °C" in condition.text]
    assert told == ["it works in spite of this: Inlet air of 35 °C is above the limit: inlet air of at most 30 °C."]
