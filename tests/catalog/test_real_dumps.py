"""Entries against the SMBIOS of real machines of that model: names of slots and of CPU sockets, letter by letter."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.catalog import Catalog, load
from gpucheck.entries import Server
from gpucheck.facts import Parts
from gpucheck.fit.plans import builds
from gpucheck.fit.request import Request
from gpucheck.fit.slots import active_rows
from gpucheck.readers import smbios

NOT_A_CARD_S_PLACE = {
    "asus-esc4000a-e10": {"PCIE5-f00", "PCIE5-f01"},  # one device, listed by function
    "huananzhi-x99-f8d": {"Slot1", "Slot3", "Slot7"},  # x1
    "huawei-2288h-v5": {"HDD44", "HDD45"},
    "supermicro-sys-7049gp-trt": {"M.2 CONNECTOR"},
}
"""Slots in the firmware's list where no graphics card can stand, or where nobody knows what they are."""


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load()


@pytest.fixture(scope="module")
def dumps(shared_machines: Path, catalog: Catalog) -> dict[str, tuple[Server, Parts]]:
    """Name of the dump to the entry of its model and what its SMBIOS says."""
    found = {}
    for path in sorted((shared_machines / "dmi").glob("*.txt")):
        parts = smbios.parse_text(path.read_text(errors="replace"))
        if parts.system is not None and (id := catalog.server_of(parts.system)) is not None:
            found[path.name] = (catalog.server(id), parts)
    return found


def designations(server: Server) -> list[set[str]]:
    """The slots that firmware lists, once for every way to build the model."""
    return [
        {name for row in active_rows(server, build) for name in row.designations} for build in builds(Request(server))
    ]


def test_models_are_recognised(dumps: dict[str, tuple[Server, Parts]]) -> None:
    assert len({server.id for server, _ in dumps.values()}) >= 25


def test_every_slot_of_an_entry_is_in_the_machine_s_list(dumps: dict[str, tuple[Server, Parts]]) -> None:
    missing = {
        name: min((expected - listed for expected in designations(server)), key=len)
        for name, (server, parts) in dumps.items()
        for listed in [{slot.designation for slot in parts.slots or ()}]
    }
    assert {name: slots for name, slots in missing.items() if slots} == {}


def test_every_slot_of_a_machine_is_in_the_entry(dumps: dict[str, tuple[Server, Parts]]) -> None:
    surplus = {
        name: {slot.designation for slot in parts.slots or ()}.difference(*designations(server))
        for name, (server, parts) in dumps.items()
    }
    assert {name: slots for name, slots in surplus.items() if slots} == {
        name: NOT_A_CARD_S_PLACE[server.id] for name, (server, _) in dumps.items() if server.id in NOT_A_CARD_S_PLACE
    }


def test_cpu_sockets_have_the_machine_s_names(dumps: dict[str, tuple[Server, Parts]]) -> None:
    differing = {
        name: (server.sockets.designations, listed)
        for name, (server, parts) in dumps.items()
        if server.sockets.designations
        for listed in [tuple(socket.designation for socket in parts.cpu_sockets or ())]
        if listed != server.sockets.designations
    }
    assert differing == {}
    assert {
        name for name, (server, parts) in dumps.items() if len(parts.cpu_sockets or ()) != server.sockets.count
    } == set()
