"""The CPU by name, the host's memory, and what the cards are for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.errors import UsageError
from gpucheck.facts import Cpu, CpuSocket, Machine, System
from gpucheck.fit.ask import with_found
from gpucheck.fit.request import Processor, Request, Use, parse_ram, processor

from .ask import ask, card, checks, fit, outcome, says, server, shipped, states

GIB = 1 << 30


# --- CPU by name --------------------------------------------------------------------------------


def test_named_cpu_brings_its_watts_with_their_source() -> None:
    advice = ask("R730", "P40:2", cpus=2, cpu="E5-2680 v4", psu="2x750")
    assert (advice.request["cpu"], advice.request["cpu_watts"]) == ("Xeon E5-2680 v4", 120)
    assert advice.power is not None
    (term,) = (term for term in advice.power.terms if "E5-2680" in term.item)
    assert (term.item, term.low_watts, term.high_watts) == ("2 × Xeon E5-2680 v4", 240, 240)
    assert term.sources
    assert outcome(advice, "cpu-watts") == "pass"  # at most 120 W


def test_cpu_whose_watts_the_catalog_does_not_know_stays_bounded() -> None:
    unknown = Processor(name="EPYC 7281", family="EPYC 7001")
    power = fit(server(), card(), cpu=unknown, psus="2x1000").power
    assert power is not None
    (term,) = (term for term in power.terms if "EPYC" in term.item)
    assert (term.item, term.low_watts, term.high_watts) == ("2 × EPYC 7281, watts not known", 0, 200)


def test_name_and_watts_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="a CPU's name says its watts"):
        ask("R730", "P40", cpu="E5-2680 v4", cpu_watts=120)


def test_name_that_the_catalog_does_not_know() -> None:
    with pytest.raises(UsageError, match="no such processor in the catalog"):
        ask("R730", "P40", cpu="E5-9999 v4")


@pytest.mark.parametrize(("name", "found"), [("E5-2680 v4", "pass"), ("Gold 6248", "unknown")])
def test_cpu_of_another_family_than_the_model_is_known_for(name: str, found: str) -> None:
    advice = ask("R730", "P40", cpu=name)
    assert outcome(advice, "cpu") == found
    assert says(advice, "goes into the PowerEdge R730") is (found == "unknown")


NEEDY: dict[str, Any] = {"item": "CPUs of the second kind", "cpu_families": ["Kind 2"]}


@pytest.mark.parametrize(
    ("family", "src", "found", "verdict"),
    [
        ("Kind 2", "manual", "pass", "fits-with-changes"),
        ("Kind 1", "manual", "fail", "does-not-fit"),
        ("Kind 1", "quote", "unknown", "fits-with-changes"),
    ],
)
def test_families_that_a_gpu_wants(family: str, src: str, found: str, verdict: str) -> None:
    box = server(gpu__needs=[{**NEEDY, "src": [src]}])
    advice = fit(box, card(), cpu=Processor(name="CPU X", family=family), psus="2x1000")
    assert (outcome(advice, "support"), advice.verdict) == (found, verdict)
    assert says(advice, "CPUs of the second kind") is (found == "unknown")


def test_family_that_nobody_names_is_a_condition() -> None:
    box = server(gpu__needs=[{**NEEDY, "src": ["manual"]}])
    advice = fit(box, card(), psus="2x1000")
    assert advice.verdict == "fits-with-changes"
    assert says(advice, "CPUs of the second kind")


@pytest.mark.parametrize(("name", "verdict"), [("EPYC 7302", "does-not-fit"), ("EPYC 7313", None)])
def test_mi210_in_an_sr655_wants_an_epyc_7003(name: str, verdict: str | None) -> None:
    told = [check for check in checks(ask("SR655", "MI210", cpu=name), "support") if "MI210" in check.message]
    binding = all(source.confidence == "vendor" for check in told for source in check.sources[:1])
    outcomes = {check.outcome for check in told if name in check.message}
    assert outcomes == ({"pass"} if verdict is None else {"fail" if binding else "unknown"})


BIG = {"bar1": {"bytes": 32 * GIB, "src": ["brief"]}, "needs_above_4g": True}


@pytest.mark.parametrize(
    ("bits", "ram", "found"), [(36, None, "pass"), (36, 32 * GIB, "pass"), (36, 64 * GIB, "fail"), (34, None, "fail")]
)
def test_address_bits_of_the_cpu_bound_bars_and_memory(bits: int, ram: int | None, found: str) -> None:
    cpu = Processor(name="CPU X", family="Kind 1", address_bits=bits)
    assert outcome(fit(server(), card(**BIG), cpu=cpu, ram_bytes=ram), "address-bits") == found


def test_too_few_lanes_are_told() -> None:
    one_socket = server(slots=[slot.model_dump() | {"socket": 1} for slot in server().slots])
    for lanes, told in ((28, True), (40, False)):
        cpu = Processor(name="CPU X", family="Kind 1", pcie_lanes=lanes)
        advice = fit(one_socket, (card(), 2), cpu=cpu)
        assert states(advice, "lanes", "wired for 32 lanes, the CPU X has 28") is told


def test_cpu_without_avx() -> None:
    assert says(fit(server(), card(), cpu=Processor(name="CPU X", family="Kind 1", avx="none")), "needs no AVX")
    assert not says(fit(server(), card(), cpu=Processor(name="CPU X", family="Kind 1", avx="avx2")), "AVX")


# --- CPU and memory that a probe found ----------------------------------------------------------


def found(*models: str | None, **stated: Any) -> Request:
    machine = Machine(
        system=System(vendor="Dell Inc.", product="PowerEdge R730"),
        catalog_model="dell-poweredge-r730",
        cpu_sockets=tuple(CpuSocket(designation=f"CPU{n}", populated=True, model=m) for n, m in enumerate(models, 1)),
        cpu=Cpu(model="Intel(R) Xeon(R) CPU E5-2650 v4 @ 2.20GHz"),
        memory_bytes=256 * GIB,
    )
    return with_found(replace(Request(shipped().server("dell-poweredge-r730"), catalog=shipped()), **stated), machine)


def test_probed_cpu_counts_as_named() -> None:
    request = found("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", None)
    assert request.cpu is not None
    assert (request.cpu.name, request.cpu.found, request.cpu_watts) == ("Xeon E5-2680 v4", True, 120)
    assert request.ram_bytes == 256 * GIB


def test_probed_cpu_that_the_catalog_does_not_know_is_no_error() -> None:
    request = found("CPU of the future")
    assert request.cpu is not None
    assert request.cpu.name == "Xeon E5-2650 v4"  # as the kernel names it


def test_what_is_stated_of_the_cpu_outweighs_what_was_found() -> None:
    assert found("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", cpu_watts=105).cpu is None
    named = processor("E5-2690 v4", shipped())
    assert found("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", cpu=named, cpu_watts=135).cpu == named


# --- memory of the host -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [("256G", 256 * GIB), ("256 GB", 256 * GIB), ("256gib", 256 * GIB), ("1.5T", 1536 * GIB), ("512M", GIB // 2)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_ram(text) == size


@pytest.mark.parametrize("text", ["256", "G", "0G", "-1G", "1e3G", "256 Gb/s", "", "lots"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="not a size of memory"):
        parse_ram(text)


@pytest.mark.parametrize(
    ("ram", "use", "found"),
    [
        (None, None, "unknown"),
        ("48G", None, "pass"),
        ("46G", "train", "pass"),  # the kernel's count of 48 GiB that are fitted
        ("32G", "train", "unknown"),
        ("32G", "infer", "pass"),
        ("16G", "infer", "unknown"),
    ],
)
def test_memory_of_the_host_against_that_of_the_cards(ram: str | None, use: Use | None, found: str) -> None:
    advice = ask("R730", "P40:2", ram=ram, use=use)
    assert outcome(advice, "host-ram") == found
    (check,) = checks(advice, "host-ram")
    assert "derived" in {source.confidence for source in check.sources}
    assert says(advice, f"the host has {24 if use == 'infer' else 48} GiB of memory or more") is (found == "unknown")
    assert advice.verdict == "fits-with-changes"  # a rule of thumb decides nothing


@pytest.mark.parametrize(
    ("gpu", "ram", "told"),
    [("K80", "1.5T", True), ("K80", "512G", False), ("P40", "1.5T", False), ("MI25", "2T", False)],
)
def test_old_cards_do_not_reach_a_terabyte(gpu: str, ram: str, told: bool) -> None:
    advice = ask("4028GR-TR", gpu, ram=ram)
    assert states(advice, "host-ram", "reaches 1024 GiB of addresses") is told


def test_without_the_rules_memory_is_not_judged() -> None:
    assert checks(fit(server(), card(), ram_bytes=GIB), "host-ram") == []


# --- what the cards are for ---------------------------------------------------------------------


def test_inference_says_what_it_does_not_ask() -> None:
    train, infer = (ask("R730", "P40:2", use=use) for use in ("train", "infer"))
    assert checks(train, "use") == []
    (check,) = checks(infer, "use")
    assert check.outcome == "pass"
    assert "how far apart the cards stand" in check.message
    assert "host memory for all the cards at once" in check.message
    assert check.sources
    assert checks(infer, "topology") == []
    assert checks(train, "topology") != []


def test_inference_needs_no_tensorflow_in_common() -> None:
    words = "each may have a process of its own"
    assert states(ask("4028GR-TR", "K80", "L40S", use="infer"), "use", words)
    assert not states(ask("4028GR-TR", "K80:2", use="infer"), "use", words)


def test_inference_takes_lanes_as_they_are() -> None:
    narrow = server(slots=[slot.model_dump() | {"lanes": 8} for slot in server().slots])
    assert checks(fit(narrow, card()), "lanes") != []
    infer = fit(narrow, card(), use="infer")
    assert checks(infer, "lanes") == []
    assert states(infer, "use", "lanes: models are loaded once, and slower")


def test_use_that_is_not_stated_is_judged_as_training() -> None:
    free, train = ask("R730", "P40:2"), ask("R730", "P40:2", use="train")
    assert [check.message for check in free.checks] == [check.message for check in train.checks]


# --- watts ----------------------------------------------------------------------------------------


def test_usable_watts_are_shown_for_every_redundancy() -> None:
    power = fit(server(), card(), psus="2x1000").power
    assert power is not None
    assert power.usable_by_redundancy == {"none": 2000, "n+1": 1000, "n+n": 1000}
    assert power.supplies is not None
    assert (power.supplies.watts_at_voltage, power.supplies.low_line_watts) == (1000, 600)
    low = fit(server(), card(), psus="2x1000", input_volts=110).power
    assert low is not None
    assert low.usable_by_redundancy == {"none": 1200, "n+1": 600, "n+n": 600}


def test_supplies_that_nobody_knows_give_no_watts() -> None:
    power = fit(server(power__psus=None), card()).power
    assert power is not None
    assert (power.supplies, power.usable_by_redundancy) == (None, None)


def test_every_term_of_the_load_says_what_it_rests_on() -> None:
    power = ask("R730", "P40:2", cpus=2, cpu="E5-2680 v4", psu="2x1100").power
    assert power is not None
    assert all(term.sources for term in power.terms)
    assert power.load_watts == sum(term.high_watts or 0 for term in power.terms)
    assert any(term.note for term in power.terms)
