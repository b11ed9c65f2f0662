"""What a probe found counts as stated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucheck.errors import UsageError
from gpucheck.facts import Cpu, CpuSocket, Gpu, Machine, NvmlGpu, PciFunction, Psu, Slot, System
from gpucheck.fit.advise import advise
from gpucheck.fit.ask import with_found
from gpucheck.fit.found import recognised
from gpucheck.fit.plans import builds
from gpucheck.fit.request import Order, PsuPlan, Request, Wanted
from gpucheck.fit.room import room_left

from .ask import ask, server, shipped

GOLDEN = Path(__file__).resolve().parents[1] / "machines"

R730 = "dell-poweredge-r730"
P40 = "nvidia-tesla-p40"


def slot(number: int, lanes: int | None = 8, **known: Any) -> Slot:
    return Slot(designation=f"PCIe Slot {number}", in_use=False, lanes=lanes, **known)


ALTERNATE = (*(slot(n) for n in (1, 2, 3)), slot(4, 16), slot(5), slot(6, 16))
DEFAULT = (*ALTERNATE[:-1], slot(6), slot(7))
WITHOUT = ALTERNATE[:-1]
NARROW = (*ALTERNATE[:-1], slot(6, 8))  # as an x8 card in slot 6 reads


def machine(**known: Any) -> Machine:
    return Machine(system=System(vendor="Dell Inc.", product="PowerEdge R730"), catalog_model=R730, **known)


@pytest.mark.parametrize(
    ("slots", "found"),
    [
        (ALTERNATE, {"riser3": "alternate"}),
        (DEFAULT, {"riser3": "default"}),
        (WITHOUT, {}),
        (NARROW, {}),
        ((*ALTERNATE, slot(7)), {"riser3": "default"}),
        ((), {}),
        (None, {}),
    ],
    ids=["alternate", "default", "no riser 3", "slot 6 in use by an x8 card", "x16 and slot 7", "no slots", "not read"],
)
def test_riser_is_recognised_by_its_slots(slots: tuple[Slot, ...] | None, found: dict[str, str]) -> None:
    assert recognised(shipped().server(R730), machine(slots=slots)) == found


def test_two_choices_that_both_agree_decide_nothing() -> None:
    seen = {"slots_present": ["1"]}
    choices = {name: {"called": f"riser {name}", "recognise": seen} for name in "ab"}
    both = server(options__riser={"label": "Riser", "choices": choices})
    assert recognised(both, machine(slots=(slot(1), slot(2)))) == {}


def found(known: Machine, **stated: Any) -> Request:
    return with_found(Request(shipped().server(R730), **stated), known)


def cpus(*populated: bool | None) -> tuple[CpuSocket, ...]:
    return tuple(CpuSocket(designation=f"CPU{n}", populated=there) for n, there in enumerate(populated, 1))


@pytest.mark.parametrize(
    ("sockets", "count"),
    [((True, True), 2), ((True, False), 1), ((True, None), None), ((), None), ((False, False), None)],
)
def test_populated_sockets_are_cpus(sockets: tuple[bool | None, ...], count: int | None) -> None:
    assert found(machine(cpu_sockets=cpus(*sockets))).cpus == count


def psu(watts: int | None = 1100, present: bool | None = True, plugged: bool | None = True) -> Psu:
    return Psu(watts=watts, present=present, plugged=plugged)


@pytest.mark.parametrize(
    ("units", "plan"),
    [
        ((psu(), psu()), PsuPlan(2, 1100)),
        ((psu(), psu(plugged=False)), PsuPlan(1, 1100)),
        ((psu(), psu(present=False, plugged=None)), PsuPlan(1, 1100)),
        ((psu(), psu(plugged=None)), PsuPlan(2, 1100)),
        ((psu(), psu(watts=750)), PsuPlan(2, 750)),
        ((psu(watts=None), psu(watts=None)), None),
        ((), None),
        (None, None),
    ],
)
def test_supplies_with_mains(units: tuple[Psu, ...] | None, plan: PsuPlan | None) -> None:
    assert found(machine(psus=units)).psus == plan


def test_what_is_stated_outweighs_what_was_found() -> None:
    known = machine(slots=DEFAULT, cpu_sockets=cpus(True, False), psus=(psu(750), psu(750)))
    stated = {"cpus": 2, "psus": PsuPlan(2, 1100), "options": {"riser3": "alternate"}}
    request = found(known, **stated)
    assert (request.cpus, request.psus, request.options) == (2, PsuPlan(2, 1100), {"riser3": "alternate"})
    assert found(known).options == {"riser3": "default"}


def test_capture_of_an_r730() -> None:
    advice = ask(None, "P40:2", sources=(str(GOLDEN / "r730-two-p40" / "capture.json"),))
    assert advice.server == R730
    assert (advice.request["cpus"], advice.request["options"]) == (2, {"riser3": "alternate"})
    assert [(card.gpu, card.slot, card.watts) for card in advice.fitted] == [(P40, "6", 250), (P40, "4", 250)]
    assert (advice.verdict, advice.max_count) == ("does-not-fit", 0)
    assert "2 × Tesla P40 next to the 2 × Tesla P40 that are in it" in advice.headline
    assert "take slots 4, 5, 6" in advice.headline
    assert [(left.gpu, left.more) for left in advice.room] == [(P40, 0)]


def test_slots_in_use_are_avoided_or_must_be_cleared() -> None:
    """A yes that leaves out what stands in the slots already would be a false one."""
    used = tuple(known.model_copy(update={"in_use": known.designation == "PCIe Slot 5"}) for known in ALTERNATE)
    request = replace(
        found(machine(slots=used)), orders=(Order(Wanted(shipped().card("nvidia-tesla-p40")), 1),), cpus=2
    )
    advice = advise(request)
    assert request.occupied == {"5"}
    assert [place.slot for place in advice.placement] == ["6"]  # a card in slot 4 would cover slot 5
    both = advise(replace(request, orders=(Order(request.orders[0].wanted, 2),)))
    assert any("Something stands in slot 5 now" in check.message for check in both.checks)
    assert both.verdict == "fits-with-changes"


def test_what_was_found_in_one_model_is_not_used_for_another(shared_machines: Path) -> None:
    dump = str(shared_machines / "dmi" / "PowerEdge_R730__1B371D2A39C6.dmidecode.txt")
    with pytest.raises(UsageError, match="not the machine that --from shows"):
        ask("T630", "P40", sources=(dump,))


# --- cards that are in it -----------------------------------------------------------------------


def gpu(address: str = "0000:04:00.0", card: str | None = P40, slot: str | None = "PCIe Slot 6", **known: Any) -> Gpu:
    return Gpu(address=address, vendor="nvidia", catalog_gpu=card, slot=slot, on_pci=True, **known)


def wants(card: str = P40, count: int = 1) -> tuple[Order, ...]:
    return (Order(Wanted(shipped().card(card)), count),)


def stands(*gpus: Gpu, **known: Any) -> Request:
    facts = {"slots": ALTERNATE, "cpu_sockets": cpus(True, True), "psus": (psu(), psu()), **known}
    return found(machine(gpus=gpus, **facts), catalog=shipped(), orders=wants())


def places(request: Request) -> list[tuple[str, str | None]]:
    return [(order.wanted.id, order.slot) for order in request.fitted]


def test_cards_in_it_stay_and_new_ones_come_next_to_them() -> None:
    request = stands(gpu())
    assert places(request) == [(P40, "6")]
    assert request.occupied == frozenset()
    advice = advise(request)
    assert [(place.slot, place.fitted) for place in advice.placement] == [("6", True), ("4", False)]
    assert advice.max_count == 1
    assert "next to the 1 × Tesla P40 that is in it" in advice.headline
    assert advice.power is not None
    assert sum(term.item == "1 × Tesla P40" for term in advice.power.terms) == 2
    assert sum(item.quantity for item in advice.shopping_list if "EPS" in item.item) == 1  # the other has its cable


def test_one_card_with_two_gpus_is_one_card() -> None:
    k80 = "nvidia-tesla-k80"
    by_slot = stands(gpu("0000:06:00.0", k80), gpu("0000:07:00.0", k80))
    assert places(by_slot) == [(k80, "6")]
    assert len(stands(gpu("0000:06:00.0", k80, None), gpu("0000:07:00.0", k80, None)).fitted) == 1
    four = [gpu(f"0000:0{n}:00.0", k80, None) for n in range(6, 10)]
    assert len(stands(*four).fitted) == 2


def test_a_card_without_a_slot_takes_the_best_one() -> None:
    """Too little room is told rather than too much."""
    request = stands(gpu(slot=None))
    assert places(request) == [(P40, "6")]
    assert "it is taken to stand in slot 6" in request.remarks[0]
    assert any("taken to stand in slot 6" in note.text for note in advise(request).notes)


def test_a_card_without_a_slot_stands_where_something_is() -> None:
    used = tuple(known.model_copy(update={"in_use": known.designation == "PCIe Slot 4"}) for known in ALTERNATE)
    assert places(stands(gpu(slot=None), slots=used)) == [(P40, "4")]
    unsure = tuple(k.model_copy(update={"in_use": None}) if k.designation == "PCIe Slot 6" else k for k in used)
    assert places(stands(gpu(slot=None), slots=unsure)) == [(P40, "4")]


def test_a_fitted_card_without_a_slot_is_given_none() -> None:
    request = Request(shipped().server(R730), (replace(wants()[0], fitted=True), *wants()), cpus=2, catalog=shipped())
    assert [place.fitted for place in advise(request).placement] == [False]


def test_no_other_riser_is_offered_that_lacks_the_slot_of_a_card() -> None:
    request = stands(gpu(card="nvidia-t4", slot="PCIe Slot 7"), slots=DEFAULT)
    assert {build.options["riser3"] for build in builds(request.freed("options"))} == {"default"}


def test_a_card_without_a_slot_is_looked_for_at_its_cpu() -> None:
    assert places(stands(gpu(slot=None, socket="CPU2"))) == [(P40, "4")]


def test_a_card_that_no_slot_can_hold_takes_none() -> None:
    narrow = tuple(slot(n) for n in (1, 2, 3, 5))
    request = stands(gpu(slot=None), gpu("0000:82:00.0", slot=None), gpu("0000:83:00.0", slot=None), slots=narrow)
    assert [order.slot for order in request.fitted] == ["6", "4", None]
    assert advise(request).verdict == "does-not-fit"


def test_a_module_needs_no_slot() -> None:
    v100 = "nvidia-tesla-v100-sxm2-32gb"
    if v100 not in shipped().cards:
        v100 = next(id for id in shipped().cards if shipped().card(id).form != "pcie")
    request = stands(gpu(card=v100, slot=None))
    assert places(request) == [(v100, None)]
    assert request.remarks == ()
    assert advise(request).placement[0].gpu == P40


def test_an_unknown_card_keeps_its_slot_and_counts_with_its_power_limit() -> None:
    read = NvmlGpu(index=0, power_limit_watts=120.0, power_default_limit_watts=140.0)
    request = stands(gpu(card=None, slot="PCIe Slot 4", name="Odd Card", nvml=read))
    assert [(one.name, one.slot, one.watts) for one in request.strangers] == [("Odd Card", "4", 140)]
    assert request.kept == {"4"}
    advice = advise(request)
    assert [place.slot for place in advice.placement] == ["6"]
    assert advice.max_count == 1
    assert [(card.gpu, card.watts) for card in advice.fitted] == [(None, 140)]
    assert advice.power is not None
    assert [term.high_watts for term in advice.power.terms if term.item == "Odd Card"] == [140]


def test_watts_of_an_unknown_card_without_a_limit_are_not_known() -> None:
    advice = advise(stands(gpu(card=None, slot="PCIe Slot 5", name="Odd Card")))
    assert advice.power is not None
    assert advice.power.load_watts is None
    assert advice.verdict == "unknown"


def test_the_machine_is_asked_for_its_draw_with_the_cards_that_are_in_it() -> None:
    """A meter shows what the fitted cards draw too: only those asked for come on top."""
    advice = advise(stands(gpu(), gpu("0000:08:00.0", None, "PCIe Slot 1", name="Odd Card")))
    assert any("at most 1950 W" in question.ask for question in advice.questions)


def test_a_wide_card_tells_the_riser_that_firmware_does_not() -> None:
    """Only the alternate riser has room for it in slot 6."""
    request = stands(gpu(), slots=None)
    assert request.options == {"riser3": "alternate"}
    assert stands(slots=None).options == {}


def test_living_cards_tell_the_cpus_that_must_be_there() -> None:
    assert stands(gpu("0000:82:00.0", slot="PCIe Slot 4"), cpu_sockets=None).cpus == 2
    assert stands(gpu(), cpu_sockets=None).cpus is None
    assert stands(gpu(), cpu_sockets=None, cpu=Cpu(packages=1)).cpus == 1


def test_contradictions_are_told() -> None:
    known = machine(slots=DEFAULT, cpu_sockets=cpus(True, False), psus=(psu(750), psu(750)))
    request = found(known, cpus=2, psus=PsuPlan(2, 1100), options={"riser3": "alternate"})
    assert [remark.partition(":")[0] for remark in request.remarks] == [
        "The machine's slots show this",
        "The machine shows so many CPUs",
        "The machine shows power supplies of 2 × 750 W. Stated, and judged here",
    ]
    assert found(known).remarks == ()


def test_what_stands_below_a_port_that_firmware_does_not_list_is_in_the_way() -> None:
    root = PciFunction(address="0000:80:02.0", vendor_id=0x8086, device_id=0x2F04, class_id=0x060400)
    card = PciFunction(
        address="0000:82:00.0", vendor_id=0x15B3, device_id=0x1013, class_id=0x020000, parent="0000:80:02.0"
    )
    assert found(machine(pci=(root, card))).occupied == {"4"}
    assert found(machine(pci=(root, card), slots=ALTERNATE)).occupied == frozenset()


def test_slots_of_which_firmware_says_nothing_are_named() -> None:
    unsure = tuple(
        known.model_copy(update={"in_use": None}) if "4" in known.designation else known for known in ALTERNATE
    )
    assert found(machine(slots=unsure)).remarks == ("The firmware does not say whether something stands in slot 4.",)


def test_room_counts_what_would_have_to_move_apart() -> None:
    used = tuple(known.model_copy(update={"in_use": known.designation == "PCIe Slot 5"}) for known in ALTERNATE)
    (left,) = room_left(stands(slots=used))
    assert (left.more, left.nothing_moved) == (2, 1)
    assert left.in_words == "2 more Tesla P40, 1 of them if nothing is moved"
    assert room_left(Request(shipped().server(R730), wants())) == ()


def test_room_is_told_of_the_cards_in_it_where_none_is_asked_for() -> None:
    advice = advise(replace(stands(gpu()), orders=stands(gpu()).fitted))
    assert [(left.gpu, left.more) for left in advice.room] == [(P40, 1)]
    assert advice.headline.startswith("Next to the 1 × Tesla P40 in it")


@pytest.mark.parametrize(
    ("name", "fitted", "verdict", "most"),
    [
        ("r730-link-x8", 2, "does-not-fit", 0),
        ("r730-one-cpu-expecting-two", 1, "does-not-fit", 0),
        ("k80-one-card", 1, "fits-with-changes", 1),
        ("sm-4028gr-tr-eight-p40", 8, "does-not-fit", 0),
        ("bmc-only", 0, "fits-with-changes", 2),
    ],
)
def test_golden_machines(name: str, fitted: int, verdict: str, most: int) -> None:
    advice = ask(None, "P40", sources=(str(GOLDEN / name / "capture.json"),))
    assert (len(advice.fitted), advice.verdict, advice.max_count) == (fitted, verdict, most)
