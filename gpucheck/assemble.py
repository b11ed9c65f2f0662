"""Partial facts → Machine. Joins go through the PCI address, never through an index.

Precedence where sources overlap: configuration space, then NVML, then SMBIOS. A contradiction
becomes a gap; parts of two different machines are an input error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from gpucheck import topology
from gpucheck.catalog import Catalog
from gpucheck.displays import gpu_functions, vendor_of
from gpucheck.errors import InputError
from gpucheck.facts import (
    Counts,
    Cpu,
    CpuSocket,
    Expected,
    Gap,
    Gpu,
    Machine,
    NvmlGpu,
    Parts,
    PciFunction,
    Psu,
    Slot,
    System,
    Topology,
    pci_address,
)
from gpucheck.text import say

if TYPE_CHECKING:
    from gpucheck.entries import Server, SlotRow

_T = TypeVar("_T")

_LEVELS = ("system", "cpu_sockets", "slots", "psus", "cpu", "pci", "driver", "nvml", "kernel_log")
_NO_REMEDY = ("not-supported", "file-absent")
"""Reasons of gaps that nothing fills."""
_HOW = "What was given does not hold it: run gpucheck probe on the machine, or give a capture of it."

VRAM_TOLERANCE = 0.07
"""NVML reports a little less memory than a card's name says: 22,9 of 24 GB, 15,4 of 16."""


def assemble(parts: Sequence[Parts], catalog: Catalog) -> Machine:
    """Join what the readers and dumps brought.

    Raises:
        InputError: two parts come from different machines.
    """
    _check_one_machine(parts)
    system = _system(parts)
    cpu = _first(part.cpu for part in parts)
    pci = _pci(parts)
    nvml = _first(part.nvml for part in parts)
    sockets = _first(part.cpu_sockets for part in parts)
    slots = _first(part.slots for part in parts)
    model = catalog.server_of(system) if system is not None else None
    server = catalog.server(model) if model is not None else None
    gaps: list[Gap] = []
    gpus = _gpus(parts, catalog, server, gaps)
    return Machine(
        system=system,
        catalog_model=model,
        cpu_sockets=sockets,
        cpu=cpu,
        slots=None if slots is None else tuple(_with_socket(slot, sockets, server) for slot in slots),
        psus=_psus(parts),
        memory_bytes=_memory(parts),
        gpus=gpus,
        topology=_topology(pci, gpus, cpu.numa_nodes if cpu else None),
        driver=_first(part.driver for part in parts),
        nvml=nvml,
        gaps=(*_open_gaps(parts), *dict.fromkeys(gaps)),
        pci=pci,
        kernel_log=_first(part.kernel_log for part in parts),
        onboard=_first(part.onboard for part in parts),
    )


def counts(machine: Machine, expected: Expected | None) -> Counts:
    """GPU functions on each level; None where it was not looked at or could not start."""
    driver, nvml = machine.driver, machine.nvml
    files = driver.device_files if driver is not None else None
    return Counts(
        pci=None if machine.pci is None else len(gpu_functions(machine.pci)),
        device_files=None if files is None else len(files),
        nvml=len(nvml.gpus)
        if nvml is not None and nvml.status == "ok" and nvml.gpus and nvml.complete
        else 0
        if nvml is not None and nvml.status == "ok" and nvml.gpus == ()
        else None,
        expected=expected,
    )


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)


# --- one machine --------------------------------------------------------------------------------


def _check_one_machine(parts: Sequence[Parts]) -> None:
    known: Parts | None = None
    for part in parts:
        if part.system is None:
            continue
        if known is None or known.system is None:
            known = part
            continue
        for field in ("uuid", "product", "board"):
            first, second = (getattr(p.system, field) for p in (known, part))
            if first is not None and second is not None and first.casefold() != second.casefold():
                what = "another machine" if field == "uuid" else f"{second!r}, not {first!r}"
                raise InputError(
                    f"it comes from {what}; {known.origin} came first",
                    input=part.origin,
                    hint="give dumps of one machine at a time",
                )


def _system(parts: Sequence[Parts]) -> System | None:
    systems = [part.system for part in parts if part.system is not None]
    if not systems:
        return None
    merged: dict[str, str | None] = {}
    for field in System.model_fields:
        merged[field] = _first(getattr(system, field) for system in systems)
    return System.model_validate(merged)


def _memory(parts: Sequence[Parts]) -> int | None:
    stated = _first(part.memory_bytes for part in parts)
    if stated is not None:
        return stated
    devices = _first(part.memory_devices for part in parts)
    return sum(device.bytes for device in devices) if devices else None


def _psus(parts: Sequence[Parts]) -> tuple[Psu, ...] | None:
    """Power supplies of the first list; what it does not know is filled in by location from the others.

    Where the locations have nothing in common, the list with the most ratings counts: firmware may list bays
    without a word on what is in them while the BMC knows.
    """
    lists = [part.psus for part in parts if part.psus]
    if not lists:
        return _first(part.psus for part in parts)
    first, *others = lists
    for other in others:
        at = {psu.location: psu for psu in other if psu.location is not None}
        if any(psu.location in at for psu in first):
            first = tuple(_filled(psu, at.get(psu.location or "")) for psu in first)
        elif _ratings(other) > _ratings(first):
            first = other
    return first


def _filled(psu: Psu, other: Psu | None) -> Psu:
    known = {} if other is None else {name: getattr(other, name) for name in Psu.model_fields}
    return psu.model_copy(update={name: value for name, value in known.items() if getattr(psu, name) is None})


def _ratings(psus: Sequence[Psu]) -> int:
    return sum(psu.watts is not None for psu in psus)


def _open_gaps(parts: Sequence[Parts]) -> Iterable[Gap]:
    """Gaps that no other part fills, each told once."""
    filled = {
        field
        for field in Parts.model_fields
        if field not in ("gaps", "origin") and any(getattr(part, field) is not None for part in parts)
    }
    if all(psu.watts is not None for psu in _psus(parts) or () if psu.present is not False):
        filled.add("psus.watts")
    gaps = dict.fromkeys(gap for part in parts for gap in part.gaps)
    told = {gap.fact.partition(".")[0] for gap in gaps}
    absent = [Gap(fact=fact, reason="not-in-input", how=_HOW) for fact in _LEVELS if fact not in filled | told]
    open_gaps = [gap for gap in gaps if gap.fact not in filled or gap.reason in ("contradiction", "unreadable")]
    helped = {gap.fact for gap in open_gaps if gap.reason not in _NO_REMEDY}
    # Two ways to read one fact are both told; a way that leads nowhere only where there is no other.
    return [*(gap for gap in open_gaps if gap.reason not in _NO_REMEDY or gap.fact not in helped), *absent]


def _pci(parts: Sequence[Parts]) -> tuple[PciFunction, ...] | None:
    """The whole list where there is one: an excerpt hides what it leaves out."""
    return _first(part.pci for part in parts if part.pci_complete) or _first(part.pci for part in parts)


# --- cards --------------------------------------------------------------------------------------


def _gpus(parts: Sequence[Parts], catalog: Catalog, server: Server | None, gaps: list[Gap]) -> tuple[Gpu, ...] | None:
    pci = _pci(parts)
    nvml = _first(part.nvml for part in parts)
    listed = {gpu.address: gpu for gpu in (nvml.gpus if nvml and nvml.gpus else ()) if gpu.address is not None}
    nvml_looked = nvml is not None and nvml.gpus is not None
    if pci is None and not nvml_looked:
        return None
    slots = _first(part.slots for part in parts)
    sockets = _first(part.cpu_sockets for part in parts)
    cpu = _first(part.cpu for part in parts)
    tree = topology.tree(pci or ())
    unread = {gap.fact for part in parts for gap in part.gaps}
    multi = _multi_gpu_ids(catalog, gpu_functions(pci or ()))
    found = []
    for function in gpu_functions(pci or ()):
        seen = listed.pop(function.address, None)
        if seen is not None and None not in (ids := {function.pci_id, seen.pci_id}) and len(ids) > 1:
            how = say("PCI says {pci}, NVML {nvml}.", pci=function.pci_id, nvml=seen.pci_id)
            gaps.append(Gap(fact=f"gpus.{function.address}.pci_id", reason="contradiction", how=how))
        card, name = _named(catalog, function.pci_id, function.subsystem_id, seen)
        slot = _slot_of(function.address, slots or (), server, tree, gaps)
        card_switch = topology.card_of(function.address, tree, multi)
        port = topology.slot_port(card_switch or function.address, tree)
        index = topology.socket_of(function.address, tree, cpu)
        found.append(
            Gpu(
                address=function.address,
                vendor=vendor_of(function),
                name=name,
                pci_id=function.pci_id,
                subsystem_id=function.subsystem_id,
                catalog_gpu=card,
                card=card_switch,
                driver=function.driver,
                driver_read=function.driver_read,
                numa_node=topology.numa_node_of(function.address, tree),
                iommu_group=function.iommu_group,
                socket=_populated_name(sockets, index, cpu, gaps) or _socket_by_catalog(slot, server, sockets),
                slot=slot,
                link=function.link,
                port_link=port.link if port is not None and card_switch is None else None,
                bars=function.bars,
                config_dead=function.config_dead,
                on_pci=True,
                nvml=seen,
            )
        )
    whole = all(part.pci_complete for part in parts if part.pci is not None)
    for address, seen in listed.items():
        card, name = _named(catalog, seen.pci_id, seen.subsystem_id, seen)
        # A function that was there and could not be read is unknown, not gone.
        looked = pci is not None and whole and f"pci.{address}" not in unread
        slot = _slot_of(address, slots or (), server, tree, gaps)
        found.append(
            Gpu(
                address=address,
                vendor="nvidia",
                name=name,
                pci_id=seen.pci_id,
                subsystem_id=seen.subsystem_id,
                catalog_gpu=card,
                driver_read=False,
                socket=_socket_by_catalog(slot, server, sockets),
                slot=slot,
                link=seen.link,
                on_pci=False if looked else None,
                nvml=seen,
            )
        )
    return tuple(found)


def _multi_gpu_ids(catalog: Catalog, functions: Iterable[PciFunction]) -> frozenset[str]:
    ids = {function.pci_id for function in functions if function.pci_id is not None}
    return frozenset(
        pci_id for pci_id in ids if any(catalog.card(id).gpus_per_card > 1 for id in catalog.cards_of(pci_id))
    )


def _named(
    catalog: Catalog, pci_id: str | None, subsystem: str | None, seen: NvmlGpu | None
) -> tuple[str | None, str | None]:
    """Catalog id and name. One PCI id may be several products: memory decides, else none is claimed."""
    name = seen.name if seen is not None else None
    ids = catalog.cards_of(pci_id, subsystem) if pci_id is not None else ()
    if len(ids) > 1 and seen is not None and seen.memory_total_bytes is not None:
        ids = tuple(id for id in ids if _same_memory(catalog.card(id).vram_gib, seen.memory_total_bytes))
    if len(ids) == 1:
        return ids[0], name or catalog.card(ids[0]).name
    if name is None and ids:
        name = say("{names}", names=" or ".join(catalog.card(id).name for id in ids))
    return None, name


def _same_memory(vram_gib: float | None, total_bytes: int) -> bool:
    return vram_gib is not None and abs(total_bytes / (vram_gib * 2**30) - 1) <= VRAM_TOLERANCE


# --- slots and sockets --------------------------------------------------------------------------


def _slot_of(
    address: str, slots: Sequence[Slot], server: Server | None, tree: topology.Tree, gaps: list[Gap]
) -> str | None:
    """Designation of the slot that a card is in.

    SMBIOS may name the card itself, a bridge above it or its root port, and on some boards only the
    bus of the address is right: the nearest match on the way up from the card wins. Two slots that match
    as well contradict each other.
    """
    path = [address, *(bridge.address for bridge in topology.path_to_root(address, tree))]
    matches = [
        (steps, slot.designation)
        for slot in slots
        if slot.address is not None and slot.in_use is not False
        if (steps := _steps(slot.address, path, tree)) is not None
    ]
    if matches:
        nearest = {designation for steps, designation in matches if steps == min(matches)[0]}
        if len(nearest) == 1:
            return nearest.pop()
        how = say("The firmware names the same address for {slots}.", slots=", ".join(sorted(nearest)))
        gaps.append(Gap(fact=f"gpus.{address}.slot", reason="contradiction", how=how))
        return None
    # A free slot's root port: firmware that does not update it after a hot reset.
    free = {slot.designation for slot in slots if slot.in_use is False and slot.address in path}
    return free.pop() if len(free) == 1 else _slot_by_catalog(path, slots, server)


def _steps(slot_address: str, path: Sequence[str], tree: topology.Tree) -> int | None:
    for candidate in (slot_address, f"0000:{slot_address.partition(':')[2]}"):
        if candidate in path:
            return path.index(candidate)
        if candidate not in tree:
            # Right bus, but the device and function of the port stand in the field. On a root bus, where all
            # root ports are, the bus alone says nothing.
            for steps, address in enumerate(path):
                same_bus = address.rpartition(":")[0] == candidate.rpartition(":")[0]
                if same_bus and not _on_root_bus(address, tree):
                    return steps
    return None


def _on_root_bus(address: str, tree: topology.Tree) -> bool:
    """Whether no bridge is above; where that was not read, bus 0 is always a root bus."""
    function = tree.get(address)
    if function is None or function.parent == topology.UNKNOWN_PARENT:
        return address[:-5].endswith(":00")
    return function.parent is None


def _slot_by_catalog(path: Sequence[str], slots: Sequence[Slot], server: Server | None) -> str | None:
    if server is None:
        return None
    there = {slot.designation for slot in slots}
    rows = [row for row in server.slots if row.root_port is not None and pci_address(row.root_port) in path]
    names = {name for row in rows for name in row.designations if not there or name in there}
    return names.pop() if len(names) == 1 else None


def _populated_name(
    sockets: Sequence[CpuSocket] | None, index: int | None, cpu: Cpu | None, gaps: list[Gap]
) -> str | None:
    """Name of the package with that number: packages are numbered in the order of populated sockets.

    None where firmware and kernel count differently: a CPU that is off line or mapped out shifts the numbers.
    """
    if sockets is None or index is None or cpu is None:
        return None
    populated = [socket.designation for socket in sockets if socket.populated]
    if len(populated) != cpu.packages:
        how = say(
            "The firmware lists {firmware} populated CPU sockets, the kernel {kernel} packages.",
            firmware=len(populated),
            kernel=cpu.packages,
        )
        gaps.append(Gap(fact="gpus.socket", reason="contradiction", how=how))
        return None
    return populated[index]


def socket_name(number: int, server: Server, sockets: Sequence[CpuSocket] | None) -> str | None:
    """Designation of a socket that the catalog numbers from 1.

    Without a name that the catalog knows, the place in the firmware's list counts, if the list is as
    long as the catalog's; labels count from 0 or 1, so they do not tell.
    """
    names = server.sockets.designations
    if sockets is None:
        return names[number - 1] if number <= len(names) else None
    there = [socket.designation for socket in sockets]
    spelled = {name.casefold(): name for name in there}
    known = [spelled.get(name.strip().casefold()) for name in names]
    if any(known):
        return known[number - 1] if number <= len(known) else None
    return there[number - 1] if number <= len(there) == server.sockets.count else None


def socket_number(designation: str, server: Server, sockets: Sequence[CpuSocket] | None) -> int | None:
    """Number in the catalog, from 1, of a socket that the firmware names; None where that is not known."""
    numbers = range(1, server.sockets.count + 1)
    found = [number for number in numbers if socket_name(number, server, sockets) == designation]
    return found[0] if len(found) == 1 else None


def _row_of(designation: str, server: Server) -> SlotRow | None:
    """The catalog's row for a slot; None where the rows of several options name different owners."""
    rows = [row for row in server.slots if designation in row.designations]
    sockets = {row.socket for row in rows}
    return rows[0] if rows and len(sockets) == 1 else None


def _socket_by_catalog(slot: str | None, server: Server | None, sockets: Sequence[CpuSocket] | None) -> str | None:
    if slot is None or server is None:
        return None
    row = _row_of(slot, server)
    return socket_name(row.socket, server, sockets) if row is not None and row.socket is not None else None


def _with_socket(slot: Slot, sockets: Sequence[CpuSocket] | None, server: Server | None) -> Slot:
    name = _socket_by_catalog(slot.designation, server, sockets)
    return slot if name is None else slot.model_copy(update={"socket": name})


def _topology(pci: Sequence[PciFunction] | None, gpus: Sequence[Gpu] | None, numa_nodes: int | None) -> Topology:
    addresses = [gpu.address for gpu in gpus or ()]
    return topology.matrix(pci or (), addresses, numa_nodes) if addresses else Topology()
