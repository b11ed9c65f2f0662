"""Joining what was read: one machine, its slots and sockets, and what stays open."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.assemble import assemble, counts
from gpucheck.catalog import Catalog, load
from gpucheck.errors import InputError
from gpucheck.facts import (
    Cpu,
    CpuSocket,
    Driver,
    DriverReport,
    Expected,
    Gap,
    Link,
    Machine,
    MemoryDevice,
    Nvml,
    NvmlGpu,
    Parts,
    PciFunction,
    Psu,
    Slot,
    System,
)
from gpucheck.sockets import socket_number

R730 = System(vendor="Dell Inc.", product="PowerEdge R730", board="0WCJNT")
CARD = "0000:04:00.0"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load()


def port(address: str, parent: str | None = None, **known: Any) -> PciFunction:
    return PciFunction(address=address, vendor_id=0x8086, device_id=0x6F04, class_id=0x060400, parent=parent, **known)


def card(address: str = CARD, parent: str | None = "0000:00:02.0", **known: Any) -> PciFunction:
    return PciFunction(address=address, vendor_id=0x10DE, device_id=0x1B38, class_id=0x030200, parent=parent, **known)


PCI = (port("0000:00:02.0"), card())


# --- one machine --------------------------------------------------------------------------------


def test_the_first_part_that_knows_a_fact_wins_and_strings_are_completed(catalog: Catalog) -> None:
    parts = [
        Parts(system=System(product="PowerEdge R730"), cpu=Cpu(packages=1)),
        Parts(system=R730, cpu=Cpu(packages=2), psus=(), memory_bytes=64),
        Parts(psus=(Psu(location="PSU1"),)),
    ]
    machine = assemble(parts, catalog)
    assert machine.system == R730
    assert machine.catalog_model == "dell-poweredge-r730"
    assert machine.cpu == Cpu(packages=1)
    assert machine.psus == (Psu(location="PSU1"),)
    assert machine.memory_bytes == 64


@pytest.mark.parametrize("field", ["uuid", "product", "board"])
def test_parts_of_two_machines_are_refused(catalog: Catalog, field: str) -> None:
    first, second = (Parts(origin=name, system=System(**{field: name})) for name in ("a.txt", "b.txt"))
    with pytest.raises(InputError, match=r"a\.txt came first") as caught:
        assemble([first, Parts(origin="log"), second], catalog)
    assert caught.value.input == "b.txt"


def test_identity_is_compared_without_case(catalog: Catalog) -> None:
    assemble([Parts(system=System(product="POWEREDGE R730")), Parts(system=R730)], catalog)


def test_memory_is_the_sum_of_its_modules_where_nobody_states_it(catalog: Catalog) -> None:
    modules = (MemoryDevice(locator="A1", bytes=8), MemoryDevice(locator="A2", bytes=8))
    assert assemble([Parts(memory_devices=modules)], catalog).memory_bytes == 16
    assert assemble([Parts(memory_devices=())], catalog).memory_bytes is None


def test_nothing_read_is_nothing_known(catalog: Catalog) -> None:
    machine = assemble([Parts()], catalog)
    assert machine.gpus is machine.slots is machine.psus is machine.system is None
    open_facts = {gap.fact: gap.reason for gap in machine.gaps}
    assert open_facts["pci"] == open_facts["nvml"] == open_facts["slots"] == "not-in-input"


def test_a_gap_that_another_part_fills_is_closed_and_told_once(catalog: Catalog) -> None:
    gap = Gap(fact="slots", reason="needs-root", how="sudo /usr/sbin/dmidecode")
    other = Gap(fact="psus", reason="not-requested", how="ipmitool fru")
    slots = (Slot(designation="1", in_use=False),)
    machine = assemble([Parts(gaps=(gap, other, other)), Parts(slots=slots)], catalog)
    assert [g.fact for g in machine.gaps if g.fact in ("slots", "psus")] == ["psus"]


# --- counts -------------------------------------------------------------------------------------


def test_counts_of_what_was_not_looked_at_are_null() -> None:
    assert counts(Machine(), None).model_dump() == dict.fromkeys(
        ("pci", "device_files", "nvml", "tensorflow", "expected")
    )


@pytest.mark.parametrize("status", ["failed", "timed-out", "library-absent"])
def test_nvml_that_did_not_finish_is_null_never_0(status: Any) -> None:
    listed = (NvmlGpu(index=0, address=CARD),) if status == "timed-out" else None
    machine = Machine(nvml=Nvml(status=status, gpus=listed), pci=PCI, driver=Driver(device_files=()))
    counted = counts(machine, Expected(n=2, origin="test"))
    assert (counted.pci, counted.device_files, counted.nvml) == (1, 0, None)
    assert counted.expected == Expected(n=2, origin="test")


# --- cards --------------------------------------------------------------------------------------


def test_cards_are_joined_by_address_not_by_index(catalog: Catalog) -> None:
    pci = (*PCI, port("0000:80:02.0"), card("0000:82:00.0", "0000:80:02.0"))
    nvml = Nvml(
        status="ok",
        gpus=(NvmlGpu(index=0, address="0000:82:00.0", name="second"), NvmlGpu(index=1, address=CARD, name="first")),
    )
    machine = assemble([Parts(pci=pci), Parts(nvml=nvml)], catalog)
    assert [(gpu.address, gpu.name) for gpu in machine.gpus or ()] == [(CARD, "first"), ("0000:82:00.0", "second")]


def test_a_card_that_only_nvml_lists(catalog: Catalog) -> None:
    nvml = Nvml(status="ok", gpus=(NvmlGpu(index=0, address="0000:01:00.0", name="RTX"),))
    (gpu,) = assemble([Parts(pci=(), nvml=nvml)], catalog).gpus or ()
    assert (gpu.on_pci, gpu.driver_read) == (False, False)
    (gpu,) = assemble([Parts(nvml=nvml)], catalog).gpus or ()
    assert gpu.on_pci is None


# --- slots and sockets --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "in_use", "joined"),
    [
        (CARD, True, True),
        ("0000:00:02.0", True, True),  # firmware names the root port
        ("0000:04:02.0", True, True),  # right bus, but device and function of the port
        ("0082:04:00.0", True, True),  # junk in the segment field
        ("0000:00:02.0", False, True),  # the free slot's root port, not updated after a hot reset
        (CARD, None, True),
        ("0000:05:00.0", True, False),
        (None, True, False),
        ("0000:04:00.0", False, True),
    ],
)
def test_the_slot_of_a_card(catalog: Catalog, address: str | None, in_use: bool | None, joined: bool) -> None:
    slots = (Slot(designation="other", in_use=True), Slot(designation="mine", in_use=in_use, address=address))
    (gpu,) = assemble([Parts(pci=PCI, slots=slots)], catalog).gpus or ()
    assert gpu.slot == ("mine" if joined else None)


def test_the_nearest_slot_wins(catalog: Catalog) -> None:
    slots = (
        Slot(designation="port", in_use=True, address="0000:00:02.0"),
        Slot(designation="card", in_use=True, address=CARD),
    )
    (gpu,) = assemble([Parts(pci=PCI, slots=slots)], catalog).gpus or ()
    assert gpu.slot == "card"


def test_the_catalog_names_slot_and_socket_by_the_root_port(catalog: Catalog) -> None:
    sockets = (CpuSocket(designation="CPU1", populated=True), CpuSocket(designation="CPU2", populated=False))
    machine = assemble([Parts(system=R730, pci=PCI, cpu_sockets=sockets)], catalog)
    (gpu,) = machine.gpus or ()
    assert (gpu.slot, gpu.socket) == ("PCIe Slot 6", "CPU1")


def test_slots_get_their_socket_from_the_catalog(catalog: Catalog) -> None:
    slots = tuple(Slot(designation=f"PCIe Slot {n}", in_use=False) for n in (4, 6, 9))
    machine = assemble([Parts(system=R730, slots=slots)], catalog)
    assert [slot.socket for slot in machine.slots or ()] == ["CPU2", "CPU1", None]


def test_the_socket_of_a_card_is_the_populated_one_with_that_number(catalog: Catalog) -> None:
    sockets = (CpuSocket(designation="CPU1", populated=False), CpuSocket(designation="CPU2", populated=True))
    pci = (port("0000:00:02.0", numa_node=0), card(numa_node=0))
    machine = assemble([Parts(pci=pci, cpu_sockets=sockets, cpu=Cpu(packages=1, numa_nodes=1))], catalog)
    (gpu,) = machine.gpus or ()
    assert gpu.socket == "CPU2"


# --- what contradicts itself is not guessed ------------------------------------------------------


def gap_reasons(machine: Machine, fact: str) -> list[str]:
    return [gap.reason for gap in machine.gaps if gap.fact == fact]


def test_the_bus_alone_says_nothing_on_a_root_bus(catalog: Catalog) -> None:
    """All root ports are on bus 0: a port that is hidden must not lend its slot to every card."""
    hidden = Slot(designation="SLOT 1", in_use=True, address="0000:00:01.1")
    machine = assemble([Parts(pci=PCI, slots=(hidden,))], catalog)
    assert machine.gpus is not None
    assert machine.gpus[0].slot is None


def test_two_slots_at_one_address_contradict_each_other(catalog: Catalog) -> None:
    slots = tuple(Slot(designation=name, in_use=True, address=CARD) for name in ("SLOT 1", "SLOT 2"))
    machine = assemble([Parts(pci=PCI, slots=slots)], catalog)
    assert machine.gpus is not None
    assert machine.gpus[0].slot is None
    assert gap_reasons(machine, f"gpus.{CARD}.slot") == ["contradiction"]


def test_sockets_that_the_kernel_does_not_see_shift_the_numbers(catalog: Catalog) -> None:
    sockets = tuple(CpuSocket(designation=name, populated=True) for name in ("CPU1", "CPU2"))
    machine = assemble([Parts(pci=PCI, cpu_sockets=sockets, cpu=Cpu(packages=1, numa_nodes=1))], catalog)
    assert machine.gpus is not None
    assert machine.gpus[0].socket is None
    assert gap_reasons(machine, "gpus.socket") == ["contradiction"]


def test_a_function_that_could_not_be_read_is_not_gone(catalog: Catalog) -> None:
    nvml = Nvml(status="ok", gpus=(NvmlGpu(index=0, address="0000:82:00.0"),))
    unread = Gap(fact="pci.0000:82:00.0", reason="unreadable", how="try again")
    for gaps, on_pci in (((), False), ((unread,), None)):
        machine = assemble([Parts(pci=PCI, nvml=nvml, gaps=gaps)], catalog)
        assert machine.gpus is not None
        assert machine.gpus[1].on_pci is on_pci


def test_the_bmc_fills_in_what_firmware_does_not_know_of_a_supply(catalog: Catalog) -> None:
    firmware = (Psu(location="PS1", present=True), Psu(location="PS2", present=False))
    bmc = (Psu(location="PS1", watts=1100, model="PWR SPLY,1100W"),)
    machine = assemble([Parts(psus=firmware), Parts(psus=bmc)], catalog)
    assert machine.psus == (
        Psu(location="PS1", present=True, watts=1100, model="PWR SPLY,1100W"),
        Psu(location="PS2", present=False),
    )
    elsewhere = (Psu(location="bay 1", watts=750),)
    assert assemble([Parts(psus=firmware), Parts(psus=elsewhere)], catalog).psus == elsewhere


def test_an_excerpt_does_not_hide_the_whole_list(catalog: Catalog) -> None:
    machine = assemble([Parts(pci=PCI[:1], pci_complete=False), Parts(pci=PCI)], catalog)
    assert machine.pci == PCI


def test_the_bus_alone_says_nothing_on_bus_0_of_a_machine_that_only_nvml_saw(catalog: Catalog) -> None:
    nvml = Nvml(status="ok", gpus=(NvmlGpu(index=0, address="0000:00:04.0"), NvmlGpu(index=1, address=CARD)))
    slots = (
        Slot(designation="SLOT 1", in_use=True, address="0000:00:01.1"),
        Slot(designation="SLOT 4", in_use=True, address=CARD),
    )
    machine = assemble([Parts(nvml=nvml, slots=slots)], catalog)
    assert [gpu.slot for gpu in machine.gpus or ()] == [None, "SLOT 4"]


def test_two_free_slots_at_one_port_name_neither(catalog: Catalog) -> None:
    slots = tuple(Slot(designation=name, in_use=False, address="0000:00:02.0") for name in ("SLOT 1", "SLOT 2"))
    (gpu,) = assemble([Parts(pci=PCI, slots=slots)], catalog).gpus or ()
    assert gpu.slot is None


@pytest.mark.parametrize(
    ("listed", "reasons"), [("10de:1db4", ["contradiction"]), ("10de:1b38", []), (None, [])], ids=str
)
def test_nvml_that_names_another_card_contradicts_pci(catalog: Catalog, listed: str | None, reasons: list[str]) -> None:
    nvml = Nvml(status="ok", gpus=(NvmlGpu(index=0, address=CARD, pci_id=listed),))
    machine = assemble([Parts(pci=PCI, nvml=nvml)], catalog)
    assert gap_reasons(machine, f"gpus.{CARD}.pci_id") == reasons
    assert [gpu.pci_id for gpu in machine.gpus or ()] == ["10de:1b38"]


def test_bars_that_were_not_read_are_null(catalog: Catalog) -> None:
    for bars in (None, ()):
        (gpu,) = assemble([Parts(pci=(card(bars=bars),))], catalog).gpus or ()
        assert gpu.bars == bars


@pytest.mark.parametrize(
    ("gibibytes", "named"),
    [(22.5, "nvidia-tesla-m40-24gb"), (11.2, "nvidia-tesla-m40-12gb"), (16.0, None), (None, None)],
)
def test_memory_decides_between_cards_of_one_pci_id(
    catalog: Catalog, gibibytes: float | None, named: str | None
) -> None:
    m40 = card().model_copy(update={"device_id": 0x17FD})
    total = None if gibibytes is None else int(gibibytes * 2**30)
    nvml = Nvml(status="ok", gpus=(NvmlGpu(index=0, address=CARD, memory_total_bytes=total),))
    (gpu,) = assemble([Parts(pci=(m40,), nvml=nvml)], catalog).gpus or ()
    assert gpu.catalog_gpu == named


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("needs-root", ["needs-root", "not-requested"]),
        ("in-container", ["in-container", "not-requested"]),
        ("not-supported", ["not-requested"]),
        ("file-absent", ["not-requested"]),
    ],
)
def test_two_ways_to_one_fact_are_told_if_both_lead_there(catalog: Catalog, reason: Any, told: list[str]) -> None:
    firmware = Parts(gaps=(Gap(fact="psus", reason=reason, how="SMBIOS"),))
    bmc = Parts(gaps=(Gap(fact="psus", reason="not-requested", how="ipmitool"),))
    assert gap_reasons(assemble([firmware, bmc], catalog), "psus") == told
    assert gap_reasons(assemble([firmware], catalog), "psus") == [reason]


@pytest.mark.parametrize(
    ("designations", "numbers"),
    [
        (("CPU1", "CPU2"), [1, 2]),
        (("cpu2", "CPU1"), [2, 1]),
        (("P0", "P1"), [1, 2]),
        (("CPU2", "P1"), [2, None]),
        (("P0", "P1", "P2", "P3"), [None] * 4),
        (("P0", "P0"), [None, None]),
    ],
    ids=str,
)
def test_the_number_of_a_socket(catalog: Catalog, designations: tuple[str, ...], numbers: list[int | None]) -> None:
    server = catalog.server("dell-poweredge-r730")
    sockets = tuple(CpuSocket(designation=name, populated=True) for name in designations)
    assert [socket_number(name, server, sockets) for name in designations] == numbers


def test_a_rating_that_the_bmc_knows_closes_the_gap_of_the_firmware(catalog: Catalog) -> None:
    gap = Gap(fact="psus.watts", reason="not-supported", how="read the label")
    firmware = Parts(psus=(Psu(location="PS1", present=True), Psu(location="PS2", present=False)), gaps=(gap,))
    bmc = Parts(psus=(Psu(location="PS1", watts=1100),))
    assert gap_reasons(assemble([firmware], catalog), "psus.watts") == ["not-supported"]
    assert gap_reasons(assemble([firmware, bmc], catalog), "psus.watts") == []


# --- cards of other makers -----------------------------------------------------------------------


def radeon(report: DriverReport | None = None) -> tuple[PciFunction, ...]:
    """A card whose own switch trained with eight lanes below a port of sixteen."""
    narrow = Link(width=8, max_width=16, speed_gts=8.0, max_speed_gts=16.0)
    inside = Link(width=16, max_width=16, speed_gts=16.0, max_speed_gts=16.0)
    amd = {"vendor_id": 0x1002, "class_id": 0x060400}
    return (
        port("0000:00:02.0", link=Link(width=8, max_width=16, speed_gts=8.0, max_speed_gts=8.0)),
        PciFunction(address="0000:03:00.0", device_id=0x1478, parent="0000:00:02.0", link=narrow, **amd),
        PciFunction(address="0000:04:00.0", device_id=0x1479, parent="0000:03:00.0", link=inside, **amd),
        PciFunction(
            address="0000:05:00.0",
            vendor_id=0x1002,
            device_id=0x744C,
            class_id=0x030000,
            parent="0000:04:00.0",
            driver="amdgpu",
            link=inside,
            report=report,
        ),
    )


def test_the_link_of_a_card_with_its_own_switch_is_that_of_the_slot(catalog: Catalog) -> None:
    (gpu,) = assemble([Parts(pci=radeon())], catalog).gpus or ()
    assert (gpu.vendor, gpu.link.width, gpu.link.speed_gts) == ("amd", 8, 8.0)
    assert gpu.port_link is not None
    assert gpu.port_link.max_width == 16


def test_the_driver_names_a_card_that_the_catalog_does_not_tell(catalog: Catalog) -> None:
    report = DriverReport(product_name="A card of AMD", vram_bytes=24 << 30)
    (gpu,) = assemble([Parts(pci=radeon(report))], catalog).gpus or ()
    assert gpu.name == "A card of AMD"
    assert gpu.report == report
