"""A server entry for a machine that is not in the catalog, from what the machine itself reports.

Slots come from SMBIOS, where that lists any, else from the ports on PCI. Firmware is read with care:

* the width of a slot in use is the card's; the port's own link, else what the slot's label says, tells the slot's;
* of an address the bus is often right and the rest wrong, and its segment may be junk;
* a slot is listed whether or not its CPU is there: the owner comes from the port's NUMA node, else, with both
  CPUs fitted, from the half of the bus numbers, else from a label such as ``CPU2 SLOT4``;
* a connector that is no longer than the lanes is what firmware says where it does not know: a label must agree;
* lengths say nothing about the card that goes in, and boards without a name often carry the table of another board.

No vendor's document was read, so room, slot power, plugs, base load and firmware settings stay unknown, and the
advisor never answers that a card fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpucheck import topology
from gpucheck.entries import MOST_BUILDS, Form, Note, Server, SlotRow, Sockets, Source
from gpucheck.errors import InputError
from gpucheck.facts import CpuSocket, Machine, PciFunction, Slot, System
from gpucheck.fit.request import DERIVED
from gpucheck.text import say, shorten

_MACHINE, _READING = "machine", "reading"

_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_LANES = frozenset({1, 2, 4, 8, 16, 32})
LONGEST_NAME = 40
"""Letters of a slot's name."""
WIDE_PORT = 8
"""Lanes from which a free port without a slot flag may still lead to a slot."""

_NO_CARD = re.compile(
    r"(?<![a-z])(?:m\.?2|u\.?[23]|oculink|slim ?(?:line|sas)|mcio|nvme|ssd|sff|ocp|aom|siom|mezz\w*|hdd\w*|sas|sata"
    r"|lom|bay|mini ?pci\w*|pci-?x)(?![a-z])",
    re.IGNORECASE,
)
"""In labels of connectors that take drives, modules or network daughter cards."""
_LABEL_WIDTH = re.compile(r"(?<![a-z0-9])x(\d{1,2})(?:\s*\(in\s*x(\d{1,2})\))?", re.IGNORECASE)
_LABEL_GENERATION = re.compile(r"pci-?e(?:xpress)?\s*([1-6])\.0", re.IGNORECASE)
_LABEL_CPU = re.compile(r"cpu[ _-]?(\d{1,2})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)\D*$")
_PORTABLE = frozenset({"portable", "laptop", "notebook", "sub notebook", "hand held", "tablet", "convertible"})
"""Types of chassis (SMBIOS type 3); such machines often carry a desktop board's list of slots."""
_VIRTUAL = re.compile(
    r"\b(?:QEMU|KVM|VMware|VirtualBox|Virtual Machine|Standard PC|HVM domU|Compute Engine|Amazon EC2)\b"
)


def derive(machine: Machine, origin: str) -> Server:
    """Describe a machine by its own facts.

    Args:
        machine: What was read.
        origin: Where it was read, for the list of sources.

    Raises:
        InputError: it is a virtual machine or a portable computer, or neither its firmware nor PCI shows a slot.
    """
    if _is_virtual(machine):
        raise InputError(
            say("its model is not in the catalog, and a virtual machine does not show the slots of its host"),
            input=origin,
            hint="run gpucheck on the host, or name the model with --model",
        )
    if machine.system is not None and (machine.system.chassis or "").casefold() in _PORTABLE:
        raise InputError(
            say("its model is not in the catalog, and a portable computer has no slots for cards"), input=origin
        )
    tree = topology.tree(machine.pci or ())
    sockets = tuple(sorted(machine.cpu_sockets or (), key=lambda socket: socket.populated is False))
    packages = machine.cpu.packages if machine.cpu is not None else None
    count = min(len(sockets) or packages or 1, MOST_BUILDS)
    rows = tuple(_firmware_rows(machine, sockets, count, tree)) or tuple(_port_rows(machine, sockets, count, tree))
    if not rows:
        raise InputError(
            say("its model is not in the catalog, and neither its firmware nor PCI shows its slots"),
            input=origin,
            hint="read it as root (sudo gpucheck capture FILE), or name the model with --model",
        )
    vendor, model = _named(machine.system)
    return Server(
        id=DERIVED,
        vendor=vendor,
        model=model,
        names=(model,),
        form=_form(machine.system),
        sockets=Sockets(count=count, designations=tuple(one.designation for one in sockets), src=(_MACHINE,)),
        slots=rows,
        notes=tuple(_notes(machine, rows)),
        not_known=("room, power and order of the slots", "GPU power sockets", "base load", "firmware settings"),
        sources={
            _MACHINE: Source(confidence="measured", title=say("what the machine reports of itself"), where=origin),
            _READING: Source(confidence="derived", title=say("our reading of its labels and bus numbers")),
        },
    )


def _is_virtual(machine: Machine) -> bool:
    if machine.cpu is not None and machine.cpu.hypervisor is not None:
        return True
    system = machine.system
    return system is not None and _VIRTUAL.search(f"{system.vendor or ''} {system.product or ''}") is not None


def _named(system: System | None) -> tuple[str, str]:
    """Maker and model for people, without saying the maker twice."""
    product = (system.product or system.board) if system is not None else None
    maker = (system.vendor or system.board_vendor) if system is not None else None
    maker, product = maker or say("nameless"), product or say("machine")
    model = product[len(maker) :].strip() if product.casefold().startswith(maker.casefold()) else product
    return shorten(maker), shorten(model or product)


def _form(system: System | None) -> Form:
    chassis = (system.chassis or "").casefold() if system is not None else ""
    if "rack" in chassis:
        return Form(kind="rack", src=(_MACHINE,))
    return Form(kind="tower" if "tower" in chassis else "desktop" if "desktop" in chassis else "board", src=(_MACHINE,))


def _notes(machine: Machine, rows: Sequence[SlotRow]) -> Iterator[Note]:
    known = {slot.designation for slot in machine.slots or ()}
    if not any(name in known for row in rows for name in row.designations):
        text = say("The firmware's list of slots was not read: ports on PCI stand for slots, named by their address.")
        yield Note(text=text, src=(_READING,))
    elif machine.system is None or machine.system.product is None:
        text = say("The firmware names no product; such boards often carry another board's list of slots: count them.")
        yield Note(text=text, src=(_READING,))


# --- slots as the firmware lists them -----------------------------------------------------------


def _firmware_rows(
    machine: Machine, sockets: Sequence[CpuSocket], count: int, tree: topology.Tree
) -> Iterator[SlotRow]:
    used: dict[str, int] = {}
    for slot in dict.fromkeys(machine.slots or ()):
        if not _takes_cards(slot):
            continue
        name = shorten(slot.designation, LONGEST_NAME)
        used[name] = number = used.get(name, 0) + 1
        label = _LABEL_WIDTH.search(slot.designation)
        width = label and int(label[1])
        # A width on the label is the slot's own; that of a slot in use is the card's.
        lanes = width or (None if slot.in_use else slot.lanes)
        port = _port_of(slot, tree)
        read = port.link.max_width if port is not None and port.link.max_width in _LANES else None
        owner, src = _owner(slot, port, machine, sockets, count, tree)
        yield SlotRow(
            id=name if number == 1 else f"{name} ({number})",
            smbios=(slot.designation,),
            socket=owner,
            lanes=read or lanes,
            connector=int(label[2]) if label and label[2] else _connector(slot, width),
            gen=_generation(port) or _label_generation(slot) or slot.gen,
            switch=_switch(port, tree),
            root_port=port.address if port is not None else None,
            src=src,
        )


def _connector(slot: Slot, width: int | None) -> int | None:
    """Lanes of the connector. As many as the slot has lanes is what firmware says of any slot: a label must agree."""
    if width is not None:
        return slot.connector if slot.lanes == width else None
    longer = slot.connector is not None and slot.lanes is not None and slot.connector > slot.lanes
    return slot.connector if longer else None


def _takes_cards(slot: Slot) -> bool:
    """Whether it is a PCIe slot as far as type and label tell: not a drive's, a module's or an old PCI one."""
    express = slot.lanes or slot.connector or slot.gen or "pcie" in slot.designation.casefold().replace("-", "")
    return bool(express) and _NO_CARD.search(slot.designation) is None


def _port_of(slot: Slot, tree: topology.Tree) -> PciFunction | None:
    """The port that a slot hangs on: firmware names it, or something below it, or only the right bus."""
    if slot.address is None:
        return None
    for address in (slot.address, f"0000:{slot.address.partition(':')[2]}"):
        named = tree.get(address)
        if named is not None:
            is_port = named.is_bridge and (named.parent is None or named.port is not None)
            return named if is_port else topology.slot_port(address, tree)
        bus = address[:-5]
        parents = {other.parent for other in tree.values() if other.address[:-5] == bus and other.parent is not None}
        if len(parents) == 1:
            return tree.get(parents.pop())
    return None


def _generation(port: PciFunction | None) -> int | None:
    return _GENERATIONS.get(port.link.max_speed_gts or 0) if port is not None else None


def _label_generation(slot: Slot) -> int | None:
    found = _LABEL_GENERATION.search(slot.designation)
    return int(found[1]) if found else None


def _switch(port: PciFunction | None, tree: topology.Tree) -> str | None:
    """The upper end of the switch that a port is one of; None for a root port."""
    above = topology.path_to_root(port.address, tree) if port is not None else ()
    return above[0].address if above else None


def _owner(
    slot: Slot | None,
    port: PciFunction | None,
    machine: Machine,
    sockets: Sequence[CpuSocket],
    count: int,
    tree: topology.Tree,
) -> tuple[int | None, tuple[str, ...]]:
    """Number of the CPU socket, populated ones first, and what that rests on."""
    if count == 1:
        return 1, (_MACHINE,)
    index = topology.socket_of(port.address, tree, machine.cpu) if port is not None else None
    if index is not None:
        return index + 1, (_MACHINE,)
    address = slot.address if slot is not None else port.address if port is not None else None
    if address is not None and count == 2 and all(socket.populated for socket in sockets) and sockets:
        return (2 if int(address[-7:-5], 16) >= 0x80 else 1), (_MACHINE, _READING)
    label = _label_cpu(slot) if slot is not None else None
    named = _named_by_labels(machine, sockets)
    return (named[label], (_MACHINE, _READING)) if label in named else (None, (_MACHINE,))


def _label_cpu(slot: Slot) -> int | None:
    found = _LABEL_CPU.search(slot.designation)
    return int(found[1]) if found else None


def _named_by_labels(machine: Machine, sockets: Sequence[CpuSocket]) -> dict[int | None, int]:
    """Number on slots' labels to the number of the socket, populated ones first.

    Labels say CPU1 where the sockets may be called SOCKET 0: they mean the sockets of their own numbers, or else,
    counted from 1, those of the firmware's list.
    """
    labels = {label for slot in machine.slots or () if (label := _label_cpu(slot)) is not None}
    numbers = [int(found[1]) if (found := _NUMBER.search(one.designation)) else None for one in sockets]
    if labels <= set(numbers) and len(set(numbers)) == len(sockets):
        return {number: place for place, number in enumerate(numbers, 1) if number is not None}
    listed = machine.cpu_sockets or ()
    if labels <= set(range(1, len(listed) + 1)):
        return {number: sockets.index(one) + 1 for number, one in enumerate(listed, 1)}
    return {}


# --- ports on PCI, where the firmware lists no slots --------------------------------------------


def _port_rows(machine: Machine, sockets: Sequence[CpuSocket], count: int, tree: topology.Tree) -> Iterator[SlotRow]:
    for port in _slot_ports(machine, tree):
        owner, src = _owner(None, port, machine, sockets, count, tree)
        yield SlotRow(
            id=port.address,
            socket=owner,
            lanes=port.link.max_width if port.link.max_width in _LANES else None,
            gen=_generation(port),
            switch=_switch(port, tree),
            root_port=port.address,
            src=src,
        )


def _slot_ports(machine: Machine, tree: topology.Tree) -> Iterator[PciFunction]:
    """Ports above cards, ports that say that they have a slot, and free ports that are wide enough for one.

    A port above another of them, or on a card, is none.
    """
    above_cards = {
        port.address for gpu in machine.gpus or () if (port := topology.slot_port(gpu.card or gpu.address, tree))
    }
    parents = {function.parent for function in tree.values()}
    found = set(above_cards)
    for function in tree.values():
        wide = function.link.max_width in _LANES and (function.link.max_width or 0) >= WIDE_PORT
        is_free = function.address not in parents and wide
        if function.is_bridge and (function.port is not None or is_free):
            found.add(function.address)
    paths = {address: {bridge.address for bridge in topology.path_to_root(address, tree)} for address in found}
    above = {bridge for path in paths.values() for bridge in path}
    for address in sorted(found):
        if address in above_cards or not (paths[address] & above_cards or address in above):
            yield tree[address]
