from __future__ import annotations

from typing import Any

import pytest

from gpucheck.facts import Cpu, DriverReport, Gpu, Link, NvmlGpu
from rules.machines import amd, found, gpu, machine, missing, names, only

SLOW = Link(width=16, max_width=16, speed_gts=2.5, max_speed_gts=8.0)
FULL = Link(width=16, max_width=16, speed_gts=8.0, max_speed_gts=8.0)


def card(nvml_speed: float | None = 2.5, state: int | None = 0, busy: int | None = 99, **known: Any) -> Gpu:
    """A card whose link the kernel saw at 2.5 GT/s while NVML saw the state, load and rate given."""
    listed = NvmlGpu(
        index=0,
        address="0000:04:00.0",
        performance_state=state,
        utilization_percent=busy,
        link=Link(speed_gts=nvml_speed, max_speed_gts=8.0),
    )
    return gpu(**{"link": SLOW, "port_link": FULL, "nvml": listed, **known})


def test_fires_under_load_only() -> None:
    finding = only("link-speed-reduced", machine(card()))
    assert (finding.severity, finding.confidence, finding.subject) == ("warning", "likely", "0000:04:00.0")
    assert "2.5 GT/s per lane where card and slot allow 8" in finding.message
    assert [evidence.source for evidence in finding.evidence] == ["PCI 0000:04:00.0", "NVML"]


def test_one_look_is_only_possible() -> None:
    assert only("link-speed-reduced", machine(card(nvml_speed=None))).confidence == "possible"


@pytest.mark.parametrize(
    "made",
    [
        card(state=8, busy=0),
        card(state=0, busy=0),
        card(state=2, busy=99),
        card(nvml_speed=8.0),
        card(port_link=Link(max_width=16, max_speed_gts=2.5)),
        card(link=Link(speed_gts=2.5, max_speed_gts=2.5), port_link=None),
        card(config_dead=True),
        card(on_pci=False),
    ],
    ids=["idle", "P0 but idle", "not P0", "NVML saw more", "old slot", "old card", "dead", "not on PCI"],
)
def test_quiet(made: Gpu) -> None:
    assert "link-speed-reduced" not in names(machine(made))


def test_without_the_port_nvmls_maximum_may_be_the_cards_own() -> None:
    """An older slot holds the card at its rate, and NVML calls it the card's fault."""
    in_old_slot = card(port_link=None)
    assert "link-speed-reduced" not in names(machine(in_old_slot))
    assert missing("link-speed-reduced", machine(in_old_slot)) == ("gpus.0000:04:00.0.port_link",)
    # Below what the card advertises, it tells of the slot.
    newer = Link(width=16, max_width=16, speed_gts=2.5, max_speed_gts=16.0)
    finding = only("link-speed-reduced", machine(card(link=newer, port_link=None)))
    assert "card and slot allow 8" in finding.message


def test_quiet_in_a_virtual_machine() -> None:
    assert found(machine(card(), cpu=Cpu(hypervisor="KVM"))) == []


def test_amd_by_its_own_load() -> None:
    for busy, expected in ((97, ["link-speed-reduced"]), (3, [])):
        made = amd(link=SLOW, port_link=FULL, report=DriverReport(busy_percent=busy))
        assert names(machine(made)) == expected


def test_unchecked_where_load_or_rate_was_not_read() -> None:
    name = "link-speed-reduced"
    assert missing(name, machine(card(state=None))) == ("gpus.0000:04:00.0.utilization_percent",)
    assert missing(name, machine(card(nvml_speed=None, link=Link()))) == ("gpus.0000:04:00.0.link.speed_gts",)
    assert missing(name, machine(card())) == ()
    assert missing(name, machine(gpu(port_link=None))) == ()  # at the card's full rate
    # An idle card is known not to be under load, and a link at its full rate needs no load.
    assert missing(name, machine(card(state=8))) == missing(name, machine(card(state=8, port_link=None))) == ()
    assert missing(name, machine(gpu())) == ()
    assert missing(name, machine(gpus=None)) == ("gpus",)
