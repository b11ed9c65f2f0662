"""A machine that is not in the catalog: an entry derived from its own facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpucheck.entries import SlotRow
from gpucheck.errors import InputError
from gpucheck.facts import Cpu, CpuSocket, Link, Machine, PciFunction, Port, Slot, System
from gpucheck.fit.advise import advise
from gpucheck.fit.ask import with_found
from gpucheck.fit.derived import derive
from gpucheck.fit.report import Advice
from gpucheck.fit.request import DERIVED, Order, Request, Wanted

from .ask import ask, shipped

GOLDEN = Path(__file__).resolve().parents[1] / "machines"

TWO_CPUS = (CpuSocket(designation="CPU1", populated=True), CpuSocket(designation="CPU2", populated=True))
ONE_CPU = (TWO_CPUS[0], CpuSocket(designation="CPU2", populated=False))


def slot(designation: str, in_use: bool | None = False, **known: Any) -> Slot:
    return Slot(designation=designation, in_use=in_use, **known)


def port(address: str, lanes: int | None = 16, parent: str | None = None, **known: Any) -> PciFunction:
    link = Link(max_width=lanes, max_speed_gts=8.0)
    ids = {"vendor_id": 0x8086, "device_id": 0x6F08, "class_id": 0x060400}
    return PciFunction(address=address, parent=parent, link=link, **{**ids, **known})


def device(address: str, parent: str | None) -> PciFunction:
    return PciFunction(address=address, vendor_id=0x8086, device_id=0x1572, class_id=0x020000, parent=parent)


def machine(*slots: Slot, pci: tuple[PciFunction, ...] | None = None, **known: Any) -> Machine:
    system = System(vendor="Newmaker", product="Newmaker X1", chassis="Rack Mount Chassis")
    return Machine(**{"system": system, "cpu_sockets": TWO_CPUS, "slots": slots or None, "pci": pci, **known})


def row(*slots: Slot, **known: Any) -> SlotRow:
    return derive(machine(*slots, **known), "dump.txt").slots[0]


def plan(known: Machine, count: int = 1, card: str = "nvidia-tesla-p40") -> Advice:
    order = Order(Wanted(shipped().card(card)), count)
    return advise(with_found(Request(derive(known, "dump.txt"), (order,), catalog=shipped()), known))


def test_names_come_from_the_firmware_and_the_source_is_the_machine() -> None:
    entry = derive(machine(slot("SLOT1", lanes=16, gen=3)), "dump.txt")
    assert (entry.id, entry.vendor, entry.model, entry.form.kind) == (DERIVED, "Newmaker", "X1", "rack")
    assert entry.sources["machine"].confidence == "measured"
    assert entry.sources["machine"].where == "dump.txt"


def test_board_stands_in_for_a_product_that_firmware_does_not_name() -> None:
    entry = derive(machine(slot("SLOT1", lanes=16), system=System(board="X79-8D")), "dump.txt")
    assert (entry.vendor, entry.model) == ("nameless", "X79-8D")
    assert any("another board's list" in note.text for note in entry.notes)


@pytest.mark.parametrize(
    ("known", "lanes", "connector"),
    [
        (slot("PCIe Slot 4", lanes=16, gen=3), 16, None),
        (slot("PCIe Slot 5", lanes=8, connector=16), 8, 16),
        (slot("PCIe Slot 5", True, lanes=8, connector=16), None, 16),
        (slot("J7M1", lanes=8, connector=8), 8, None),
        (slot("CPU1 SLOT10 PCI-E 3.0 X8 (IN X16)", lanes=8, connector=8), 8, 16),
        (slot("CPU1 SLOT10 PCI-E 3.0 X8(IN X16)", True, lanes=4), 8, 16),
        (slot("CPU1 SLOT1 PCI-E 3.0 X8", lanes=8, connector=8), 8, 8),
        (slot("PCH SLOT7 PCI-E 3.0 X4", lanes=8, connector=8), 4, None),
    ],
    ids=["x16", "longer connector", "in use", "as long as its lanes", "label", "in use, label", "agree", "differ"],
)
def test_lanes_and_connector(known: Slot, lanes: int | None, connector: int | None) -> None:
    """A slot in use tells its card's width, and a short connector is believed only where the label agrees."""
    read = row(known)
    assert (read.lanes, read.connector) == (lanes, connector)


def test_the_port_tells_lanes_generation_and_owner() -> None:
    pci = (
        port("0000:00:02.0", 16, numa_node=0),
        port("0000:80:02.0", 8, numa_node=1),
        device("0000:82:00.0", "0000:80:02.0"),
    )
    cpu = Cpu(packages=2, numa_nodes=2)
    read = row(slot("CPU1 SLOT3", True, lanes=1, address="0000:82:00.0"), pci=pci, cpu=cpu)
    assert (read.lanes, read.gen, read.socket, read.root_port) == (8, 3, 2, "0000:80:02.0")
    assert read.src == ("machine",)


@pytest.mark.parametrize("address", ["0000:82:03.0", "0082:82:00.0"], ids=["bus alone is right", "junk segment"])
def test_half_wrong_addresses_lead_to_the_port(address: str) -> None:
    pci = (port("0000:80:02.0", 8, numa_node=1), device("0000:82:00.0", "0000:80:02.0"))
    assert row(slot("SLOT3", True, address=address, lanes=1), pci=pci).root_port == "0000:80:02.0"


def test_a_slot_below_a_switch_is_known_by_its_upper_end() -> None:
    pci = (
        port("0000:00:02.0"),
        port("0000:03:00.0", parent="0000:00:02.0"),
        port(
            "0000:04:08.0",
            parent="0000:03:00.0",
            port=Port(presence=False, link_active=False, link_disabled=False, power_off=False),
        ),
    )
    assert row(slot("SLOT8", lanes=16, address="0000:04:08.0"), pci=pci).switch == "0000:03:00.0"


@pytest.mark.parametrize(
    ("name", "sockets", "address", "owner"),
    [
        ("CPU2 SLOT4", TWO_CPUS, None, 2),
        ("CPU2 SLOT1", TWO_CPUS, "0000:06:00.0", 1),
        ("SLOT1", TWO_CPUS, "0000:86:00.0", 2),
        ("SLOT1", TWO_CPUS, None, None),
        ("SLOT1", ONE_CPU, "0000:80:02.0", None),
        ("CPU2 SLOT4", ONE_CPU, None, 2),
        ("CPU1 SLOT4", tuple(reversed(ONE_CPU)), None, 1),
        ("SLOT1", (TWO_CPUS[0],), None, 1),
    ],
)
def test_owner(name: str, sockets: tuple[CpuSocket, ...], address: str | None, owner: int | None) -> None:
    """A label may lie: with both CPUs fitted the bus outweighs it."""
    assert row(slot(name, lanes=16, address=address), cpu_sockets=sockets).socket == owner


def test_labels_count_from_one_where_the_sockets_count_from_zero() -> None:
    sockets = (CpuSocket(designation="SOCKET 0", populated=True), CpuSocket(designation="SOCKET 1", populated=False))
    known = machine(slot("CPU1_Slot1", lanes=16), slot("CPU2_Slot2", lanes=16), cpu_sockets=sockets)
    assert [read.socket for read in derive(known, "x").slots] == [1, 2]


@pytest.mark.parametrize(
    "name",
    ["M2_M", "U2_1_PortA", "OCuLink 1", "SLIMLINE_2", "NVMe0", "HDD44", "SIOM CPU1 PCI-E 3.0 X16", "SL_SAS", "Mezz1"],
)
def test_connectors_for_drives_and_modules_are_no_slots(name: str) -> None:
    known = machine(slot("SLOT1", lanes=16), slot(name, lanes=16))
    assert [read.id for read in derive(known, "x").slots] == ["SLOT1"]


def test_a_designation_that_repeats_makes_two_slots() -> None:
    known = machine(slot("SLOT1", lanes=16), slot("SLOT1", lanes=8))
    assert [read.id for read in derive(known, "x").slots] == ["SLOT1", "SLOT1 (2)"]


def test_never_fits_and_says_why() -> None:
    known = machine(slot("SLOT1", lanes=16, connector=16, gen=3))
    for card in ("nvidia-tesla-p40", "nvidia-t4"):
        advice = plan(known, 1, card)
        assert advice.verdict == "unknown"
        assert advice.headline.endswith("Derived from what this machine reports; no vendor document was read.")
        assert "no vendor document was read" in advice.conditions[0].text
        assert {source.confidence for source in advice.conditions[0].sources} == {"measured", "derived"}


def test_more_cards_than_slots_do_not_fit() -> None:
    advice = plan(machine(slot("SLOT1", lanes=16, gen=3)), 2)
    assert (advice.verdict, advice.max_count) == ("does-not-fit", 1)


def test_slot_of_an_absent_cpu_is_dead() -> None:
    known = machine(slot("CPU2 SLOT4", lanes=16), cpu_sockets=ONE_CPU)
    advice = plan(known)
    assert advice.verdict == "does-not-fit"
    assert "CPU 2, which is not there" in advice.headline


def test_ports_stand_for_slots_that_nobody_listed() -> None:
    """What PCI does not show may be there all the same: too few ports are no reason for a no."""
    pci = (
        port("0000:00:02.0"),
        port("0000:00:1c.0", 1),
        port("0000:00:03.0", 8),
        device("0000:05:00.0", "0000:00:03.0"),
    )
    known = machine(pci=pci, cpu_sockets=None, cpu=Cpu(packages=1))
    assert [read.id for read in derive(known, "x").slots] == ["0000:00:02.0"]
    assert plan(known, 1).verdict == "unknown"
    assert (plan(known, 2).verdict, plan(known, 2).max_count) == ("unknown", 1)


def test_ports_on_a_card_are_no_slots() -> None:
    advice = ask(None, "P40", sources=(str(GOLDEN / "container-one-of-two" / "capture.json"),))
    assert advice.server == DERIVED
    assert [(card.gpu, card.slot) for card in advice.fitted] == [
        ("nvidia-tesla-p40", "0000:00:02.0"),
        ("nvidia-tesla-p40", "0000:80:02.0"),
    ]


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (machine(slot("SLOT1", lanes=16), cpu=Cpu(hypervisor="KVM")), "virtual machine"),
        (machine(slot("SLOT1", lanes=16), system=System(vendor="QEMU", product="Standard PC")), "virtual machine"),
        (machine(slot("J6B2", lanes=16), system=System(product="Book", chassis="Notebook")), "portable computer"),
        (machine(), "neither its firmware nor PCI shows its slots"),
        (machine(slot("M2_1", lanes=4)), "neither its firmware nor PCI shows its slots"),
    ],
)
def test_no_plan_without_slots(known: Machine, words: str) -> None:
    with pytest.raises(InputError, match=words):
        derive(known, "x")


def test_real_dumps_are_answered(shared_machines: Path) -> None:
    """Firmware of forty makers: a yes never comes from a machine's own word alone."""
    dumps = sorted((shared_machines / "dmi").glob("*.dmidecode.txt"))
    assert dumps
    own_word = []
    for dump in dumps:
        try:
            advice = ask(None, "T4", sources=(str(dump),))
        except InputError:  # it lists connectors for drives alone
            continue
        if advice.server == DERIVED:
            own_word.append(advice.verdict)
    assert len(own_word) > 5
    assert set(own_word) <= {"unknown", "does-not-fit"}
