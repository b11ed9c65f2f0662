"""What a probe found counts as stated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucheck.errors import UsageError
from gpucheck.facts import CpuSocket, Machine, Psu, Slot, System
from gpucheck.fit.advise import advise
from gpucheck.fit.ask import with_found
from gpucheck.fit.found import recognised
from gpucheck.fit.request import Order, PsuPlan, Request, Wanted

from .ask import ask, server, shipped

GOLDEN = Path(__file__).resolve().parents[1] / "machines"

R730 = "dell-poweredge-r730"


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
    assert advice.verdict == "fits-with-changes"


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
