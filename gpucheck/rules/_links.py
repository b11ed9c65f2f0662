"""What the rules about links share: where a card meets its slot, and which cards are behind a port."""

from __future__ import annotations

from typing import NamedTuple

from gpucheck import topology
from gpucheck.displays import is_nvswitch
from gpucheck.facts import Gpu, Link, Machine, PciFunction


class End(NamedTuple):
    """The card's end of a link, and the port's."""

    address: str
    card: Link
    port: Link | None


def lanes(width: int | None) -> int | None:
    """A width that a link can have; an empty port says 0, some bridges 255."""
    return width if width is not None and 1 <= width <= 32 else None


def is_virtual(machine: Machine) -> bool:
    """In a virtual machine the ports are drawn by the hypervisor."""
    return machine.cpu is not None and bool(machine.cpu.hypervisor)


def end_of(machine: Machine, gpu: Gpu) -> End:
    """Where the card meets its slot: for a card of two GPUs that is the bridge they share."""
    functions = {function.address: function for function in machine.pci or ()}
    bridge = functions.get(gpu.card or "")
    if bridge is None:
        return End(gpu.address, gpu.link, gpu.port_link)
    port = functions.get(bridge.parent or "")
    return End(bridge.address, bridge.link, port.link if port else None)


def has_nvswitch(machine: Machine) -> bool:
    """Whether the cards reach each other over NVLink switches."""
    return any(map(is_nvswitch, machine.pci or ()))


class Below(NamedTuple):
    """GPUs at or below each function, and the bridges that have anything below them."""

    gpus: dict[str, tuple[Gpu, ...]]
    occupied: frozenset[str]


def below(machine: Machine) -> Below:
    """Who is behind which port. Cards that are not on PCI are behind none."""
    tree = topology.tree(machine.pci or ())
    gpus: dict[str, tuple[Gpu, ...]] = {}
    for gpu in machine.gpus or ():
        if gpu.on_pci:
            for address in (gpu.address, *(bridge.address for bridge in topology.path_to_root(gpu.address, tree))):
                gpus[address] = (*gpus.get(address, ()), gpu)
    occupied = frozenset(function.parent for function in machine.pci or () if function.parent is not None)
    return Below(gpus, occupied)


def slot_behind(machine: Machine, port: PciFunction, cards: tuple[Gpu, ...] = ()) -> str | None:
    """Name of the slot behind a port: that of the card in it, the one that firmware gives this port,
    or the number of a hot-plug port."""
    named = {gpu.slot for gpu in cards if gpu.slot}
    if len(named) == 1:
        return named.pop()
    listed = [slot.designation for slot in machine.slots or () if slot.address == port.address]
    return listed[0] if len(listed) == 1 else port.physical_slot
