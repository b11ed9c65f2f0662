"""Partial facts → Machine. Joins go through the PCI address, never through an index.

Precedence where sources overlap: configuration space, then lspci, then NVML, then SMBIOS. Sources of one kind
are merged first (merging.py). A contradiction becomes a gap; parts of two machines are an input error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpucheck import topology
from gpucheck.catalog import Catalog
from gpucheck.displays import gpu_functions, vendor_of
from gpucheck.facts import (
    Counts,
    Cpu,
    CpuSocket,
    DriverReport,
    Expected,
    Gap,
    Gpu,
    Machine,
    NvmlGpu,
    Parts,
    PciFunction,
    Slot,
    TensorFlowLog,
    Topology,
    pci_address,
)
from gpucheck.merging import merge
from gpucheck.sockets import socket_name
from gpucheck.text import say

if TYPE_CHECKING:
    from gpucheck.entries import Server, SlotRow

VRAM_TOLERANCE = 0.07
"""NVML reports a little less memory than a card's name says: 22,9 of 24 GB, 15,4 of 16."""


def assemble(parts: Sequence[Parts], catalog: Catalog) -> Machine:
    """Join what the readers and dumps brought.

    Raises:
        InputError: two parts come from different machines.
    """
    whole = merge(parts)
    system, slots, sockets = whole.system, whole.slots, whole.cpu_sockets
    model = catalog.server_of(system) if system is not None else None
    server = catalog.server(model) if model is not None else None
    gaps: list[Gap] = []
    gpus = _gpus(whole, catalog, server, gaps)
    return Machine(
        system=system,
        catalog_model=model,
        cpu_sockets=sockets,
        cpu=whole.cpu,
        slots=None if slots is None else tuple(_with_socket(slot, sockets, server) for slot in slots),
        psus=whole.psus,
        power=whole.power,
        firmware_settings=whole.firmware_settings,
        bmc_events=whole.bmc_events,
        memory_bytes=_memory(whole),
        gpus=gpus,
        topology=_topology(whole, gpus),
        driver=whole.driver,
        nvml=whole.nvml,
        environment=whole.environment,
        software=whole.software,
        gaps=(*whole.gaps, *dict.fromkeys(gaps)),
        redacted=whole.redacted,
        pci=whole.pci,
        pci_complete=whole.pci_complete,
        kernel_log=whole.kernel_log,
        tensorflow_log=whole.tensorflow_log,
        onboard=whole.onboard,
    )


def counts(machine: Machine, expected: Expected | None) -> Counts:
    """GPU functions on each level; None where it was not looked at, could not start, or was not read whole."""
    driver, nvml = machine.driver, machine.nvml
    files = driver.device_files if driver is not None else None
    return Counts(
        pci=None if machine.pci is None or unread_functions(machine) else len(gpu_functions(machine.pci)),
        device_files=None if files is None else len(files),
        nvml=len(nvml.gpus)
        if nvml is not None and nvml.status == "ok" and nvml.gpus and nvml.complete
        else 0
        if nvml is not None and nvml.status == "ok" and nvml.gpus == ()
        else None,
        tensorflow=None if machine.tensorflow_log is None else _tensorflow_devices(machine.tensorflow_log),
        expected=expected,
    )


def unread_functions(machine: Machine) -> frozenset[str]:
    """Functions that are listed on PCI and could not be read, so that nobody knows whether they are GPUs."""
    listed = {function.address for function in machine.pci or ()}
    facts = {gap.fact for gap in machine.gaps if gap.fact.startswith("pci.") and gap.reason != "contradiction"}
    return frozenset(fact.removeprefix("pci.") for fact in facts - _ABOUT_THE_LIST) - listed


_ABOUT_THE_LIST = {"pci.complete", "pci.bridges"}
"""Facts of the list as a whole, among those that are named after a function."""


def _tensorflow_devices(log: TensorFlowLog) -> int | None:
    """Devices that TensorFlow says it made; 0 where it says that it makes none."""
    made = [line for line in log.lines if line.startswith("Created ") and "pci bus id: " in line]
    if made:
        return len({line.partition("pci bus id: ")[2].partition(",")[0] for line in made})
    return 0 if any("Skipping registering GPU devices" in line for line in log.lines) else None


def _memory(whole: Parts) -> int | None:
    if whole.memory_bytes is not None:
        return whole.memory_bytes
    devices = whole.memory_devices
    return sum(device.bytes for device in devices) if devices else None


# --- cards --------------------------------------------------------------------------------------


def _gpus(whole: Parts, catalog: Catalog, server: Server | None, gaps: list[Gap]) -> tuple[Gpu, ...] | None:
    pci, nvml, slots, sockets, cpu = whole.pci, whole.nvml, whole.slots, whole.cpu_sockets, whole.cpu
    listed = {gpu.address: gpu for gpu in (nvml.gpus if nvml and nvml.gpus else ()) if gpu.address is not None}
    nvml_looked = nvml is not None and nvml.gpus is not None
    if pci is None and not nvml_looked:
        return None
    tree = topology.tree(pci or ())
    unread = {gap.fact for gap in whole.gaps}
    multi = _multi_gpu_ids(catalog, gpu_functions(pci or ()))
    found = []
    for function in gpu_functions(pci or ()):
        seen = listed.pop(function.address, None)
        if seen is not None and None not in (ids := {function.pci_id, seen.pci_id}) and len(ids) > 1:
            how = say("PCI says {pci}, NVML {nvml}.", pci=function.pci_id, nvml=seen.pci_id)
            gaps.append(Gap(fact=f"gpus.{function.address}.pci_id", reason="contradiction", how=how))
        pci_id = function.pci_id or (seen.pci_id if seen is not None else None)
        subsystem = function.subsystem_id or (seen.subsystem_id if seen is not None else None)
        card, name = _named(catalog, pci_id, subsystem, seen, function.report)
        slot = _slot_of(function.address, slots or (), server, tree, gaps)
        card_switch = topology.card_of(function.address, tree, multi)
        port = topology.slot_port(card_switch or function.address, tree)
        index = topology.socket_of(function.address, tree, cpu)
        found.append(
            Gpu(
                address=function.address,
                vendor=vendor_of(function),
                name=name or function.name,
                pci_id=pci_id,
                subsystem_id=subsystem,
                catalog_gpu=card,
                card=card_switch,
                driver=function.driver,
                driver_read=function.driver_read,
                numa_node=topology.numa_node_of(function.address, tree),
                iommu_group=function.iommu_group,
                iommu_domain=function.iommu_domain,
                socket=_populated_name(sockets, index, cpu, gaps) or _socket_by_catalog(slot, server, sockets),
                slot=slot,
                link=topology.slot_end(function.address, tree).link,
                port_link=port.link if port is not None and card_switch is None else None,
                bars=function.bars,
                config_dead=function.config_dead,
                power_state=function.power_state,
                errors=function.errors,
                report=function.report,
                on_pci=True,
                nvml=seen,
            )
        )
    for address, seen in listed.items():
        card, name = _named(catalog, seen.pci_id, seen.subsystem_id, seen)
        # A function that was there and could not be read is unknown, not gone.
        looked = pci is not None and whole.pci_complete and f"pci.{address}" not in unread
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
    return (*found, *_without_address(nvml.gpus if nvml is not None and nvml.gpus else (), found))


def _without_address(seen: Iterable[NvmlGpu], found: Sequence[Gpu]) -> Iterable[Gpu]:
    """Cards that NVML counts without an address, but for as many as PCI shows and NVML does not list:
    those are likely the same."""
    nameless = [gpu for gpu in seen if gpu.address is None]
    unlisted = sum(gpu.vendor == "nvidia" and gpu.nvml is None for gpu in found)
    for gpu in nameless[unlisted:]:
        yield Gpu(address=f"nvml:{gpu.index}", vendor="nvidia", name=gpu.name, driver_read=False, nvml=gpu)


def _multi_gpu_ids(catalog: Catalog, functions: Iterable[PciFunction]) -> frozenset[str]:
    ids = {function.pci_id for function in functions if function.pci_id is not None}
    return frozenset(
        pci_id for pci_id in ids if any(catalog.card(id).gpus_per_card > 1 for id in catalog.cards_of(pci_id))
    )


def _named(
    catalog: Catalog,
    pci_id: str | None,
    subsystem: str | None,
    seen: NvmlGpu | None,
    report: DriverReport | None = None,
) -> tuple[str | None, str | None]:
    """Catalog id and name. One PCI id may be several products: memory decides, else none is claimed."""
    name = seen.name if seen is not None else report.product_name if report is not None else None
    memory = seen.memory_total_bytes if seen is not None else report.vram_bytes if report is not None else None
    ids = catalog.cards_of(pci_id, subsystem) if pci_id is not None else ()
    if len(ids) > 1 and memory is not None:
        ids = tuple(id for id in ids if _same_memory(catalog.card(id).vram_gib, memory))
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


def _topology(whole: Parts, gpus: Sequence[Gpu] | None) -> Topology:
    """Classes of all pairs: what the tree does not tell, a tool may have printed."""
    addresses = [gpu.address for gpu in gpus or ()]
    if not addresses:
        return Topology()
    read = topology.matrix(whole.pci or (), addresses, whole.cpu.numa_nodes if whole.cpu else None)
    printed = whole.topology
    if printed is None:
        return read
    told = {
        (first, second): word
        for first, row in zip(printed.addresses, printed.matrix, strict=False)
        for second, word in zip(printed.addresses, row, strict=False)
    }
    rows = tuple(
        tuple(
            told.get((first, second), word) if word == "?" else word
            for second, word in zip(addresses, row, strict=True)
        )
        for first, row in zip(addresses, read.matrix, strict=True)
    )
    return Topology(addresses=read.addresses, matrix=rows)
