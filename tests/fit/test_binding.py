"""What binds: capacity always, a vendor's statement when its page was read, anything weaker as a condition."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.catalog import Catalog
from gpucheck.fit.advise import advise
from gpucheck.fit.request import Order, Request, Wanted

from .ask import card, checks, fit, item, outcome, says, server


def limit(src: str, **fields: Any) -> dict[str, Any]:
    return {"gpu__limits": [{"wide": 2, "max": 1, "src": [src], **fields}]}


def test_sound_server_takes_a_card() -> None:
    advice = fit(server(), card())
    assert (advice.verdict, advice.max_count) == ("fits-with-changes", 2)
    assert item(advice, "8-pin cable") == 1


def test_nothing_to_order_and_no_condition_is_a_plain_yes() -> None:
    plain = card(aux__plugs=[], power__watts=70)
    advice = fit(server(), plain, psus="2x1000", input_volts=230, redundancy="n+1")
    assert advice.verdict == "fits"
    assert advice.conditions == advice.shopping_list == ()
    assert advice.headline == "Yes: the Example Box takes 1 × Example 200 (slots: 1)."


def test_limit_of_the_vendor_fails() -> None:
    advice = fit(server(**limit("manual")), (card(), 2))
    assert (advice.verdict, advice.max_count) == ("does-not-fit", 1)
    assert "The vendor allows at most one such card; 2 are wanted." in advice.headline


def test_limit_that_is_only_quoted_is_a_condition() -> None:
    advice = fit(server(**limit("quote")), (card(), 2))
    assert (advice.verdict, advice.max_count) == ("fits-with-changes", 2)
    assert says(advice, "The vendor allows at most one such card; 2 are wanted.")


def test_limit_rests_on_its_weakest_source() -> None:
    advice = fit(server(gpu__limits=[{"max": 1, "src": ["manual", "owner"]}]), (card(), 2))
    assert advice.verdict == "fits-with-changes"


@pytest.mark.parametrize(("src", "verdict"), [("manual", "does-not-fit"), ("quote", "fits-with-changes")])
def test_limit_of_watts_a_card(src: str, verdict: str) -> None:
    advice = fit(server(**limit(src, max=2, watts_each=150)), card())
    assert advice.verdict == verdict
    assert "The vendor allows 150 W a card; the Example 200 draws 200 W." in [
        check.message for check in checks(advice, "support")
    ]


def test_limit_of_another_width_or_another_option_does_not_apply() -> None:
    assert fit(server(**limit("manual", wide=1)), (card(), 2)).max_count == 2
    options = {"options__riser": {"label": "Riser", "choices": {"a": {"called": "a"}, "b": {"called": "b"}}}}
    ruled = server(**options, **limit("manual", needs={"riser": "b"}))
    assert fit(ruled, (card(), 2), options={"riser": "a"}).max_count == 2
    assert fit(ruled, (card(), 2), options={"riser": "b"}).max_count == 1


@pytest.mark.parametrize(("src", "verdict"), [("manual", "does-not-fit"), ("quote", "fits-with-changes")])
def test_official_none(src: str, verdict: str) -> None:
    advice = fit(server(gpu={"official": "none", "official_note": "No GPU here.", "official_src": [src]}), card())
    assert advice.verdict == verdict
    assert says(advice, "No GPU here.") is (src == "quote")


@pytest.mark.parametrize(("src", "verdict"), [("manual", "does-not-fit"), ("quote", "fits-with-changes")])
def test_cooling_that_the_vendor_denies(src: str, verdict: str) -> None:
    row = {"passive": "no", "note": "No airflow at the slots.", "src": [src]}
    advice = fit(server(cooling=[row]), card())
    assert advice.verdict == verdict
    assert says(advice, "No airflow") is (src == "quote")


def test_cooling_denied_by_nobody_in_particular_does_not_bind() -> None:
    assert fit(server(cooling=[{"passive": "no", "note": "Hot."}]), card()).verdict == "fits-with-changes"


def test_cooling_of_the_other_kind_says_nothing() -> None:
    advice = fit(server(cooling=[{"active": "yes", "src": ["manual"]}]), card())
    assert outcome(advice, "cooling") == "unknown"
    assert says(advice, "the airflow at the slot is enough")
    built = server(cooling=[], gpu__reports=[{"cards": ["E200"], "works": True, "src": ["owner"]}])
    assert outcome(fit(built, card()), "cooling") == "pass"
    assert outcome(fit(built, (card(), 2)), "cooling") == "unknown"


@pytest.mark.parametrize("src", ["manual", "quote"])
@pytest.mark.parametrize(
    ("stated", "found"), [(None, "unknown"), (90, "pass"), (100, "pass"), (120, "change")], ids=str
)
def test_cpu_limit_is_a_change_whoever_says_it(src: str, stated: int | None, found: str) -> None:
    ruled = server(gpu__needs=[{"item": "CPUs of at most 100 W", "cpu_watts_max": 100, "src": [src]}])
    advice = fit(ruled, card(), cpu_watts=stated)
    assert outcome(advice, "cpu-watts") == found
    assert item(advice, "CPUs of at most 100 W") == (2 if found == "change" else 0)
    assert says(advice, "CPUs of at most 100 W") is (found == "unknown")
    assert advice.verdict == "fits-with-changes"


@pytest.mark.parametrize(
    ("src", "ambient", "found"),
    [
        ("manual", None, "unknown"),
        ("manual", 25, "pass"),
        ("manual", 35, "fail"),
        ("quote", 35, "unknown"),
    ],
)
def test_limit_of_the_inlet_air(src: str, ambient: int | None, found: str) -> None:
    ruled = server(gpu__needs=[{"item": "inlet air of at most 30 °C", "inlet_c_max": 30, "src": [src]}])
    advice = fit(ruled, card(), ambient_c=ambient)
    assert outcome(advice, "cooling") == found
    assert says(advice, "Inlet air of 35 °C is above the limit") is (found == "unknown" and ambient == 35)


@pytest.mark.parametrize(("kind", "found"), [("passive", "fail"), ("blower", "pass"), ("open-air", "pass")])
def test_cooling_goes_by_the_kind_of_card(kind: str, found: str) -> None:
    row = {"passive": "no", "active": "yes", "note": "No airflow at the slots.", "src": ["manual"]}
    assert outcome(fit(server(cooling=[row]), card(cooling__kind=kind)), "cooling") == found


@pytest.mark.parametrize(("src", "verdict"), [("manual", "does-not-fit"), ("quote", "fits-with-changes")])
def test_need_of_both_cpus(src: str, verdict: str) -> None:
    ruled = server(gpu__needs=[{"item": "both CPUs are fitted", "cpus": 2, "src": [src]}])
    advice = fit(ruled, card(), cpus=1)
    assert advice.verdict == verdict
    assert says(advice, "both CPUs are fitted") is (src == "quote")
    assert fit(ruled, card(), cpus=2).verdict == "fits-with-changes"


def test_need_with_part_numbers_is_ordered_once() -> None:
    ruled = server(gpu__needs=[{"item": "GPU kit", "parts": ["KIT"], "src": ["quote"]}])
    advice = fit(ruled, card(), card(id="nvidia-other", name="Other 200"))
    assert item(advice, "GPU kit") == 1


def test_need_of_cards_with_plugs_or_of_wide_cards_alone() -> None:
    plain = card(aux__plugs=[], size__slots_wide=1, power__watts=70)
    ruled = server(
        gpu__needs=[
            {"item": "power board", "aux_only": True, "src": ["manual"]},
            {"item": "wide shroud", "wide_min": 2, "src": ["manual"]},
        ]
    )
    assert says(fit(ruled, card()), "power board")
    assert says(fit(ruled, card()), "wide shroud")
    assert not says(fit(ruled, plain), "power board")
    assert not says(fit(ruled, plain), "wide shroud")


def test_what_excludes_a_gpu_is_a_condition() -> None:
    advice = fit(server(gpu__forbids=[{"item": "tape unit", "src": ["manual"]}]), card())
    assert says(advice, "excludes a GPU: tape unit")
    assert advice.verdict == "fits-with-changes"


# --- what covers an unknown ---------------------------------------------------------------------


def unsized() -> dict[str, Any]:
    """A server of which the room behind its slots is not known."""
    return {"slots__0__length": None, "slots__1__length": None}


def report(**fields: Any) -> list[dict[str, Any]]:
    return [{"cards": ["nvidia-example"], "works": True, "src": ["owner"], **fields}]


def test_room_that_is_not_known_is_unknown() -> None:
    assert fit(server(**unsized()), card()).verdict == "unknown"


def test_report_of_the_card_covers_it_at_its_confidence() -> None:
    advice = fit(server(**unsized(), gpu__reports=report()), card())
    assert advice.verdict == "fits-with-changes"
    (room,) = checks(advice, "geometry")
    assert (room.outcome, room.sources[0].confidence) == ("pass", "community")


def test_report_of_one_card_does_not_cover_two() -> None:
    one = server(**unsized(), gpu__reports=report())
    assert fit(one, (card(), 2)).verdict == "unknown"
    assert fit(server(**unsized(), gpu__reports=report(count=2)), (card(), 2)).verdict == "fits-with-changes"


def test_failed_build_covers_nothing_and_warns() -> None:
    advice = fit(server(**unsized(), gpu__reports=report(works=False, note="It hung.")), card())
    assert advice.verdict == "unknown"
    assert says(advice, "An owner failed with 1 × Example 200 in this model. It hung.")


def test_vendor_list_covers_one_card_or_as_many_as_its_limit_allows() -> None:
    listed = {"gpu__listed": [{"by": "the manual", "cards": ["Example 200"], "src": ["manual"]}]}
    assert fit(server(**unsized(), **listed), card()).verdict == "fits-with-changes"
    assert fit(server(**unsized(), **listed), (card(), 2)).verdict == "unknown"
    allowed = server(**unsized(), **listed, **limit("manual", max=2))
    assert fit(allowed, (card(), 2)).verdict == "fits-with-changes"


def test_vendor_limit_covers_room_for_a_standard_card_in_its_slots() -> None:
    ruled = server(**unsized(), **limit("quote", watts_each=250, slots=["1", "2"]))
    assert fit(ruled, card()).verdict == "fits-with-changes"
    assert fit(ruled, card(power__watts=260)).verdict == "unknown"  # above the limit's watts
    assert fit(ruled, card(size__length_mm=330)).verdict == "unknown"  # longer than a standard card
    assert fit(ruled, card(size__height_mm=140)).verdict == "unknown"
    other_slot = server(**unsized(), **limit("quote", watts_each=250, slots=["2"]))
    assert fit(other_slot, card(), cpus=1).verdict == "unknown"  # it stands in slot 1


def test_limit_that_names_a_width_alone_is_read_as_meaning_cards_of_its_time_and_says_so() -> None:
    ruled = server(**unsized(), **limit("manual"))
    for_work = card(family="datacenter")
    advice = fit(ruled, for_work)
    assert outcome(advice, "geometry") == "pass"
    told = [c for c in advice.conditions if "names neither cards nor watts" in c.text]
    assert [c.text for c in told] == [
        "the vendor's limit of one card of this width means the Example 200: it names neither cards nor watts"
    ]
    assert {source.key for source in told[0].sources} == {"manual"}
    named = server(**unsized(), **limit("manual", watts_each=250))
    assert not any("names neither" in c.text for c in fit(named, for_work).conditions)


def test_limit_of_a_width_shows_room_and_no_power() -> None:
    ruled = server(**unsized(), **limit("manual"), power__aux=None)
    advice = fit(ruled, card(family="geforce"))
    assert outcome(advice, "geometry") == "pass"
    assert outcome(advice, "plug") == "unknown"


def test_card_at_least_as_large_shows_the_room() -> None:
    other = card(id="nvidia-large", name="Large 300", size__length_mm=300)
    shown = server(**unsized(), gpu__reports=report(cards=["nvidia-large"]))
    # The large card is in the request too, so that the catalog of this question knows it.
    advice = fit(shown, card(), other)
    messages = [check.message for check in checks(advice, "geometry") if check.outcome == "pass"]
    assert any("a source has a card as large" in message for message in messages)
    small = card(id="nvidia-large", name="Large 300", size__length_mm=200)
    assert outcome(fit(shown, card(), small), "geometry") == "unknown"


def test_report_speaks_of_its_own_slots() -> None:
    other = card(id="nvidia-large", name="Large 300", size__length_mm=300)
    seen = report(cards=["nvidia-large"], slots=["2"])
    alike = server(**unsized(), gpu__reports=seen)
    assert any(c.outcome == "pass" and "as large" in c.message for c in checks(fit(alike, card(), other), "geometry"))
    unlike = server(**unsized(), slots__1__max_wide=3, gpu__reports=seen)
    advice = fit(unlike, card(), other)
    in_slot_1 = next(place.gpu for place in advice.placement if place.slot == "1")
    assert in_slot_1 == "nvidia-example"
    assert any(c.outcome == "unknown" and "slot 1" in c.message for c in checks(advice, "geometry"))


# --- address space ------------------------------------------------------------------------------

GIB = 1 << 30


def big(gib: int, **changes: Any) -> dict[str, Any]:
    return {"bar1__bytes": gib * GIB, "needs_above_4g": True, **changes}


def test_small_bars_fit_below_4_gib() -> None:
    advice = fit(server(), card(needs_above_4g=True))
    assert outcome(advice, "address-space") == "pass"
    assert "256 MiB" in checks(advice, "address-space")[0].message


def test_large_bars_in_firmware_that_nobody_tried_are_unknown() -> None:
    advice = fit(server(), card(**big(16)))
    assert advice.verdict == "unknown"
    assert "16 GiB" in checks(advice, "address-space")[0].message
    assert says(advice, "the firmware setting is on: Above 4G = Enabled")


def test_address_space_counts_every_gpu_of_a_card() -> None:
    assert "64 GiB" in checks(fit(server(), (card(**big(16), gpus_per_card=2), 2)), "address-space")[0].message


@pytest.mark.parametrize(
    ("known_gib", "known_count", "wanted_gib", "wanted_count", "found"),
    [
        (32, 2, 32, 2, "pass"),
        (32, 2, 16, 2, "pass"),
        (32, 1, 16, 2, "pass"),
        (16, 4, 32, 2, "unknown"),  # a BAR lies in one piece
        (32, 1, 32, 2, "unknown"),
    ],
)
def test_as_much_address_space_in_another_build(
    known_gib: int, known_count: int, wanted_gib: int, wanted_count: int, found: str
) -> None:
    other = card(id="nvidia-known", name="Known 1", bar1__bytes=known_gib * GIB, needs_above_4g=True)
    built = server(gpu__reports=report(cards=["nvidia-known"], count=known_count))
    wanted = card(**big(wanted_gib))
    entries = {entry.id: entry.model_dump(mode="json", exclude_defaults=True) for entry in (other, wanted)}
    advice = fit(built, (wanted, wanted_count), catalog=Catalog({}, entries))
    assert outcome(advice, "address-space") == found


def test_firmware_without_a_known_setting_is_asked() -> None:
    advice = fit(server(firmware=[]), card(**big(16)))
    assert outcome(advice, "firmware") == "unknown"
    assert any("Above 4G Decoding" in question.ask for question in advice.questions)


# --- makers' versions ---------------------------------------------------------------------------


def test_makers_version_with_another_answer_is_a_condition() -> None:
    wide = {"id": "maker-wide", "names": ["Maker Wide 200"], "size": {"slots_wide": 3, "length_mm": 267}}
    same = {"id": "maker-same", "names": ["Maker Same 200"]}
    advice = fit(server(), card(variants=[wide, same]))
    assert says(advice, "these makers' versions do not fit: Maker Wide 200")
    assert not says(advice, "Maker Same 200")


def test_report_of_the_reference_card_does_not_cover_a_makers_version() -> None:
    long = {"id": "maker-long", "names": ["Maker Long 200"], "size": {"slots_wide": 2, "length_mm": 330}}
    whole = card(variants=[long])
    built = server(gpu__reports=[*report(), *report(cards=["Example 200"])])
    (variant,) = whole.variants
    advice = advise(Request(built, (Order(Wanted(whole, variant), 1),), cpus=2))
    assert advice.verdict == "unknown"
    assert checks(advice, "reports") == []
