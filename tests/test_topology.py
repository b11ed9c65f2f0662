from __future__ import annotations

import pytest

from gpucheck import topology
from gpucheck.facts import Cpu, PciFunction
from gpucheck.topology import Tree


def function(address: str, ids: str, class_id: int, parent: str | None = None, node: int | None = None) -> PciFunction:
    vendor, device = (int(part, 16) for part in ids.split(":"))
    return PciFunction(
        address=address, vendor_id=vendor, device_id=device, class_id=class_id, parent=parent, numa_node=node
    )


def bridge(address: str, parent: str | None = None, ids: str = "8086:6f08", node: int | None = None) -> PciFunction:
    return function(address, ids, 0x060400, parent, node)


def gpu(address: str, parent: str | None, ids: str = "10de:1b38", node: int | None = None) -> PciFunction:
    return function(address, ids, 0x030200, parent, node)


PLX = "10b5:8747"

# Processor 1: a switch with two cards and a second switch below it with two more, and a card of its
# own root port. Processor 2: a card of another root bus.
SERVER = (
    bridge("0000:00:02.0", node=0),
    bridge("0000:02:00.0", "0000:00:02.0", PLX),
    bridge("0000:03:08.0", "0000:02:00.0", PLX),
    bridge("0000:03:10.0", "0000:02:00.0", PLX),
    bridge("0000:03:14.0", "0000:02:00.0", PLX),
    gpu("0000:04:00.0", "0000:03:08.0", node=0),
    gpu("0000:05:00.0", "0000:03:10.0", node=0),
    bridge("0000:06:00.0", "0000:03:14.0", PLX),
    bridge("0000:07:08.0", "0000:06:00.0", PLX),
    bridge("0000:07:10.0", "0000:06:00.0", PLX),
    gpu("0000:08:00.0", "0000:07:08.0", node=0),
    gpu("0000:09:00.0", "0000:07:10.0", node=0),
    bridge("0000:00:03.0", node=0),
    gpu("0000:0a:00.0", "0000:00:03.0"),
    bridge("0000:80:02.0", node=1),
    gpu("0000:82:00.0", "0000:80:02.0"),
    bridge("0000:5d:00.0", node=0),
    gpu("0000:5e:00.0", "0000:5d:00.0"),
)
KNOWN = topology.tree(SERVER)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("0000:04:00.0", "0000:04:00.0", "X"),
        ("0000:04:00.0", "0000:05:00.0", "PIX"),
        ("0000:08:00.0", "0000:09:00.0", "PIX"),
        ("0000:04:00.0", "0000:08:00.0", "PXB"),
        ("0000:04:00.0", "0000:0a:00.0", "PHB"),
        ("0000:0a:00.0", "0000:5e:00.0", "NODE"),
        ("0000:04:00.0", "0000:82:00.0", "SYS"),
        ("0000:04:00.0", "0000:99:00.0", "?"),
    ],
)
def test_pairs(first: str, second: str, expected: str) -> None:
    assert topology.pair_class(first, second, KNOWN) == expected
    assert topology.pair_class(second, first, KNOWN) == expected


def test_matrix_keeps_the_order_given() -> None:
    found = topology.matrix(SERVER, ["0000:82:00.0", "0000:04:00.0", "0000:05:00.0"])
    assert found.addresses == ("0000:82:00.0", "0000:04:00.0", "0000:05:00.0")
    assert found.matrix == (("X", "SYS", "SYS"), ("SYS", "X", "PIX"), ("SYS", "PIX", "X"))


def test_path_and_root() -> None:
    path = topology.path_to_root("0000:08:00.0", KNOWN)
    assert [one.address for one in path] == [
        "0000:07:08.0",
        "0000:06:00.0",
        "0000:03:14.0",
        "0000:02:00.0",
        "0000:00:02.0",
    ]
    assert topology.root_bus("0000:08:00.0", KNOWN) == "0000:00"
    assert topology.path_to_root("0000:00:02.0", KNOWN) == ()
    assert topology.root_bus("0000:00:02.0", KNOWN) == "0000:00"
    assert topology.root_bus("0000:99:00.0", KNOWN) is None


def test_a_missing_bridge_makes_the_distance_unknown() -> None:
    broken = topology.tree(one for one in SERVER if one.address != "0000:00:02.0")
    assert topology.root_bus("0000:04:00.0", broken) is None
    assert topology.pair_class("0000:04:00.0", "0000:05:00.0", broken) == "PIX"
    assert topology.pair_class("0000:04:00.0", "0000:82:00.0", broken) == "?"


def test_a_bridge_that_the_source_does_not_tell_makes_the_distance_unknown() -> None:
    known = topology.tree([gpu("0000:04:00.0", "?"), gpu("0000:04:01.0", "?"), gpu("0000:04:02.0", None)])
    assert topology.path_to_root("0000:04:00.0", known) == ()
    assert topology.root_bus("0000:04:00.0", known) is None
    assert topology.pair_class("0000:04:00.0", "0000:04:01.0", known) == "?"
    assert topology.pair_class("0000:04:00.0", "0000:04:02.0", known) == "?"


def test_a_conventional_bridge_below_the_switch_is_one_more() -> None:
    known = topology.tree((*SERVER, bridge("0000:0b:00.0", "0000:03:10.0"), gpu("0000:0c:00.0", "0000:0b:00.0")))
    assert topology.pair_class("0000:04:00.0", "0000:0c:00.0", known) == "PXB"


def test_a_loop_of_parents_ends() -> None:
    loop = topology.tree([bridge("0000:01:00.0", "0000:02:00.0"), bridge("0000:02:00.0", "0000:01:00.0")])
    assert len(topology.path_to_root("0000:01:00.0", loop)) == 1


def test_without_numa_nodes_other_host_bridges_are_unknown_unless_there_is_one_node() -> None:
    flat = topology.tree([bridge("0000:5d:00.0"), gpu("0000:5e:00.0", "0000:5d:00.0"), gpu("0001:00:00.0", None)])
    assert topology.pair_class("0000:5e:00.0", "0001:00:00.0", flat) == "?"
    assert topology.pair_class("0000:5e:00.0", "0001:00:00.0", flat, numa_nodes=1) == "NODE"
    assert topology.pair_class("0000:5e:00.0", "0001:00:00.0", flat, numa_nodes=2) == "?"


def test_a_flat_virtual_machine_is_all_phb() -> None:
    addresses = [f"0000:00:{device:02x}.0" for device in range(4, 8)]
    found = topology.matrix([gpu(address, None) for address in addresses], addresses)
    assert {cell for row in found.matrix for cell in row} == {"X", "PHB"}


# --- cards --------------------------------------------------------------------------------------

K80 = "10de:102d"


def k80(slot_port: str, first_bus: int) -> tuple[PciFunction, ...]:
    """Upstream port, two downstream ports and two GPUs below a port of the server."""
    bus = [f"0000:{first_bus + step:02x}" for step in range(4)]
    return (
        bridge(f"{bus[0]}:00.0", slot_port, PLX),
        bridge(f"{bus[1]}:08.0", f"{bus[0]}:00.0", PLX),
        bridge(f"{bus[1]}:10.0", f"{bus[0]}:00.0", PLX),
        gpu(f"{bus[2]}:00.0", f"{bus[1]}:08.0", K80),
        gpu(f"{bus[3]}:00.0", f"{bus[1]}:10.0", K80),
    )


TWO_K80 = topology.tree(
    (
        bridge("0000:00:02.0"),
        bridge("0000:01:00.0", "0000:00:02.0", PLX),
        bridge("0000:02:08.0", "0000:01:00.0", PLX),
        bridge("0000:02:10.0", "0000:01:00.0", PLX),
        *k80("0000:02:08.0", 0x03),
        *k80("0000:02:10.0", 0x07),
    )
)


def test_two_gpus_of_a_card_share_the_switch_on_it() -> None:
    assert topology.card_of("0000:05:00.0", TWO_K80, {K80}) == "0000:03:00.0"
    assert topology.card_of("0000:06:00.0", TWO_K80, {K80}) == "0000:03:00.0"
    assert topology.card_of("0000:0a:00.0", TWO_K80, {K80}) == "0000:07:00.0"
    assert topology.pair_class("0000:05:00.0", "0000:06:00.0", TWO_K80) == "PIX"
    assert topology.pair_class("0000:05:00.0", "0000:09:00.0", TWO_K80) == "PXB"


def test_single_cards_behind_a_switch_are_no_card() -> None:
    assert topology.card_of("0000:04:00.0", KNOWN, {K80}) is None
    assert topology.card_of("0000:05:00.0", TWO_K80, set()) is None


def test_the_last_gpu_of_a_card_has_no_twin() -> None:
    without = {address: one for address, one in TWO_K80.items() if address != "0000:06:00.0"}
    assert topology.card_of("0000:05:00.0", without, {K80}) is None


def test_a_card_in_a_flat_virtual_machine_is_not_recognised() -> None:
    flat = topology.tree([gpu("0000:00:04.0", None, K80), gpu("0000:00:05.0", None, K80)])
    assert topology.card_of("0000:00:04.0", flat, {K80}) is None


def radeon(slot_port: str, first_bus: int) -> tuple[PciFunction, ...]:
    bus = [f"0000:{first_bus + step:02x}" for step in range(3)]
    return (
        bridge(f"{bus[0]}:00.0", slot_port, "1002:1478"),
        bridge(f"{bus[1]}:00.0", f"{bus[0]}:00.0", "1002:1479"),
        gpu(f"{bus[2]}:00.0", f"{bus[1]}:00.0", "1002:744c"),
    )


def test_the_switch_inside_a_gpu_does_not_count() -> None:
    known = topology.tree(
        (
            bridge("0000:00:02.0"),
            bridge("0000:01:00.0", "0000:00:02.0", PLX),
            bridge("0000:02:08.0", "0000:01:00.0", PLX),
            bridge("0000:02:10.0", "0000:01:00.0", PLX),
            *radeon("0000:02:08.0", 0x03),
            *radeon("0000:02:10.0", 0x06),
        )
    )
    port = topology.slot_port("0000:05:00.0", known)
    assert port is not None
    assert port.address == "0000:02:08.0"
    assert topology.pair_class("0000:05:00.0", "0000:08:00.0", known) == "PIX"
    assert topology.slot_end("0000:05:00.0", known).address == "0000:03:00.0"


def test_slot_end_of_a_plain_card_is_the_card() -> None:
    assert topology.slot_end("0000:0a:00.0", KNOWN).address == "0000:0a:00.0"


def test_slot_port() -> None:
    port = topology.slot_port("0000:0a:00.0", KNOWN)
    assert port is not None
    assert port.address == "0000:00:03.0"
    assert topology.slot_port("0000:99:00.0", KNOWN) is None


# --- locality -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "node"), [("0000:04:00.0", 0), ("0000:82:00.0", 1), ("0000:02:00.0", 0), ("0000:99:00.0", None)]
)
def test_numa_node_comes_from_the_nearest_that_knows(address: str, node: int | None) -> None:
    assert topology.numa_node_of(address, KNOWN) == node


@pytest.mark.parametrize(
    ("packages", "nodes", "socket"),
    [(2, 2, 1), (1, 1, 0), (1, 4, 0), (2, 4, None), (2, 1, None), (None, 2, None), (2, None, None)],
)
def test_socket(packages: int | None, nodes: int | None, socket: int | None) -> None:
    cpu = Cpu(packages=packages, numa_nodes=nodes)
    assert topology.socket_of("0000:82:00.0", KNOWN, cpu) == socket


def test_socket_without_a_node_or_a_cpu() -> None:
    flat: Tree = topology.tree([gpu("0000:00:04.0", None)])
    assert topology.socket_of("0000:00:04.0", flat, Cpu(packages=2, numa_nodes=2)) is None
    assert topology.socket_of("0000:82:00.0", KNOWN, None) is None
