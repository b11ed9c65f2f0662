"""Where cards sit in the PCIe tree: pure functions over what was enumerated.

Classes of pairs are those of ``nvidia-smi topo -m``, which are NVML's levels of a common ancestor:

======== ======================================================================================
``X``    the function itself
``PIX``  one PCIe switch at most between them, also the one on a card with several GPUs
``PXB``  several switches, without passing the host bridge
``PHB``  the same host bridge, that is the same root bus, mostly of one processor
``NODE`` different host bridges of one NUMA node
``SYS``  different NUMA nodes: the way leads over the link between the processors
``?``    not known: the tree or the NUMA nodes were not read
======== ======================================================================================

A class says how far apart two cards are, not whether they may talk to each other directly. In a
virtual machine it describes the machine that the hypervisor drew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from gpucheck.facts import Cpu, PciFunction, Topology

PairClass = Literal["X", "PIX", "PXB", "PHB", "NODE", "SYS", "?"]

_CARD_SWITCH_PORTS = frozenset(
    {
        *((0x1002, port) for port in (0x1470, 0x1471, 0x1478, 0x1479, 0x14A0, 0x14A1)),  # AMD, Vega 10 on
        *((0x8086, port) for port in (0x4FA0, 0x4FA1, 0x4FA4, 0xE2FF, 0xE2F0, 0xE2F1)),  # Intel Arc
    }
)
"""Ports of the switch that AMD and Intel build into their own GPUs, one GPU each."""

UNKNOWN_PARENT = "?"
"""The bridge above a function where the source does not tell it."""

Tree = dict[str, PciFunction]


def tree(functions: Iterable[PciFunction]) -> Tree:
    """Functions by address."""
    return {function.address: function for function in functions}


def path_to_root(address: str, functions: Tree) -> tuple[PciFunction, ...]:
    """Bridges above a function, nearest first, the root port last.

    Empty under a root bus, and for an address that is not in the tree. The path ends early where a
    bridge is missing from the tree, or where the source did not tell it (``?``); :func:`root_bus` is
    None then.
    """
    path: list[PciFunction] = []
    seen = {address}
    function = functions.get(address)
    while function is not None and function.parent is not None and function.parent not in seen:
        seen.add(function.parent)
        function = functions.get(function.parent)
        if function is not None:
            path.append(function)
    return tuple(path)


def root_bus(address: str, functions: Tree) -> str | None:
    """Bus that the host bridge opens, as ``dddd:bb``; None when the way up is not known."""
    path = path_to_root(address, functions)
    top = path[-1] if path else functions.get(address)
    return top.address[:-5] if top is not None and top.parent is None else None


def numa_node_of(address: str, functions: Tree) -> int | None:
    """NUMA node of a function, else of the nearest bridge above that knows one."""
    function = functions.get(address)
    if function is None:
        return None
    chain = (function, *path_to_root(address, functions))
    return next((member.numa_node for member in chain if member.numa_node is not None), None)


def socket_of(address: str, functions: Tree, cpu: Cpu | None) -> int | None:
    """Index (from 0) of the processor package whose lanes a function uses.

    Known with one package, or where each package is exactly one NUMA node. None with sub-NUMA
    clusters and with node interleaving, where the kernel's node number names no package.
    """
    if cpu is None or cpu.packages is None:
        return None
    if cpu.packages == 1:
        return 0
    node = numa_node_of(address, functions)
    if node is None or cpu.numa_nodes != cpu.packages or node >= cpu.packages:
        return None
    return node


def slot_port(address: str, functions: Tree) -> PciFunction | None:
    """The port that a card is plugged into: the nearest bridge that is not on the card itself.

    The switch inside an AMD or Intel GPU is stepped over: the link below it is inside the card and
    always full. The switch on a card with several GPUs is not (see :func:`card_of`).
    """
    return next(iter(_above_card(address, functions)), None)


def slot_end(address: str, functions: Tree) -> PciFunction:
    """Where a card meets its slot: the card itself, or the upper end of the switch that AMD or Intel
    built into it. KeyError for an address that is not in the tree."""
    path = path_to_root(address, functions)
    on_card = len(path) - len(_above_card(address, functions))
    return path[on_card - 1] if on_card else functions[address]


def _above_card(address: str, functions: Tree) -> tuple[PciFunction, ...]:
    path = path_to_root(address, functions)
    on_card = 0
    while on_card < len(path) and (path[on_card].vendor_id, path[on_card].device_id) in _CARD_SWITCH_PORTS:
        on_card += 1
    return path[on_card:]


def pair_class(first: str, second: str, functions: Tree, numa_nodes: int | None = None) -> PairClass:
    """Class of a pair of functions.

    Args:
        first: PCI address.
        second: PCI address.
        functions: All functions of the machine.
        numa_nodes: NUMA nodes of the machine; with one only, two host bridges need no node numbers.
    """
    if first == second:
        return "X"
    if first not in functions or second not in functions:
        return "?"
    paths = _above_card(first, functions), _above_card(second, functions)
    steps = _steps_to_common(*paths)
    if steps is not None:
        # Downstream port, upstream port: two steps lead to the top of the switch that a card is in.
        return "PIX" if max(steps) <= 2 else "PXB"
    roots = root_bus(first, functions), root_bus(second, functions)
    if None in roots:
        return "?"
    if roots[0] == roots[1]:
        return "PHB"
    nodes = numa_node_of(first, functions), numa_node_of(second, functions)
    if None in nodes:
        return "NODE" if numa_nodes == 1 else "?"
    return "NODE" if nodes[0] == nodes[1] else "SYS"


def _steps_to_common(first: Sequence[PciFunction], second: Sequence[PciFunction]) -> tuple[int, int] | None:
    """Bridges up to and with the nearest common one, on either side; None without a common one."""
    places = {bridge.address: steps for steps, bridge in enumerate(second, 1)}
    for steps, bridge in enumerate(first, 1):
        if bridge.address in places:
            return steps, places[bridge.address]
    return None


def matrix(functions: Iterable[PciFunction], addresses: Sequence[str], numa_nodes: int | None = None) -> Topology:
    """Classes of all pairs, rows and columns in the order of ``addresses``."""
    known = tree(functions)
    rows = tuple(tuple(pair_class(row, column, known, numa_nodes) for column in addresses) for row in addresses)
    return Topology(addresses=tuple(addresses), matrix=rows)


def card_of(address: str, functions: Tree, multi_gpu_ids: Collection[str]) -> str | None:
    """Address of the switch on a card with several GPUs that this GPU shares with its twins.

    Args:
        address: PCI address of the GPU.
        functions: All functions of the machine.
        multi_gpu_ids: PCI ids (``10de:102d``) of cards with several GPUs; other cards behind one
            switch of the server look the same.

    None for one GPU a card; also for the last GPU of a card whose others are gone, and in a virtual
    machine, which does not show the card's switch.
    """
    gpu = functions.get(address)
    if gpu is None or gpu.pci_id not in multi_gpu_ids:
        return None
    switch = path_to_root(address, functions)[1:2]
    if not switch:
        return None
    twins = (other.address for other in functions.values() if other.address != address and other.pci_id == gpu.pci_id)
    if any(path_to_root(twin, functions)[1:2] == switch for twin in twins):
        return switch[0].address
    return None
