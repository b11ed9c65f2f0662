"""What several rules need: which cards a rule speaks of, how to name them, lines of the kernel log.

Patterns are plain strings: ``re`` compiles and keeps those that are used, so that a machine without
a kernel log pays for none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpucheck.facts import Gpu, KernelLog, Machine, pci_address
from gpucheck.findings import Evidence, Finding
from gpucheck.text import say

ADDRESS = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
"""A PCI address as drivers and kernel print it, with or without domain and function."""

_ALONE = rf"(?:(?<![0-9a-fA-F:.])|PCI:|GPU)({ADDRESS})(?![0-9a-fA-F:])"

_LOG_SOURCES = {
    "dmesg": "dmesg",
    "kmsg": "/dev/kmsg",
    "journal": "journalctl -k -b",
    "file": "kernel log file",
}


LOOK_FURTHER = (
    say("See whether the card is on PCI, and which driver holds it: lspci -nnk -d 10de:"),
    say("Read what the driver says of it: sudo dmesg | grep -i nvrm"),
    say("Give both to gpucheck (gpucheck probe --from FILE --from FILE), or run gpucheck probe on the machine."),
)
"""Steps where only NVIDIA's own tools were asked."""


def nvidia_on_pci(machine: Machine) -> list[Gpu]:
    """NVIDIA GPUs that PCI shows; empty also where GPUs were not looked for."""
    return [gpu for gpu in machine.gpus or () if gpu.vendor == "nvidia" and gpu.on_pci]


def without_driver(machine: Machine, *others: str) -> list[Gpu]:
    """NVIDIA cards that certainly have no driver, or one of ``others`` in place of NVIDIA's."""
    drivers = {None, *others}
    return [gpu for gpu in nvidia_on_pci(machine) if gpu.driver_read and gpu.driver in drivers and gpu.nvml is None]


def healthy_twins(machine: Machine, gpu: Gpu) -> list[Gpu]:
    """Equal cards that work under the same driver."""
    return [
        other
        for other in nvidia_on_pci(machine)
        if gpu.pci_id is not None
        and other.pci_id == gpu.pci_id
        and other.nvml is not None
        and other.address != gpu.address
    ]


def module_loaded(machine: Machine) -> bool:
    """Whether NVIDIA's module is known to be loaded."""
    driver = machine.driver
    return driver is not None and ("nvidia" in (driver.loaded_modules or ()) or driver.nvidia_version is not None)


def label(gpu: Gpu) -> str:
    """A card as people should see it: name, address and slot, as far as they are known."""
    name = gpu.name or gpu.pci_id
    if name and gpu.slot:
        return say("{name} at {address} in {slot}", name=name, address=gpu.address, slot=gpu.slot)
    if name:
        return say("{name} at {address}", name=name, address=gpu.address)
    if gpu.slot:
        return say("GPU at {address} in {slot}", address=gpu.address, slot=gpu.slot)
    return say("GPU at {address}", address=gpu.address)


def labels(gpus: Iterable[Gpu]) -> str:
    """Several cards as one list."""
    return ", ".join(label(gpu) for gpu in gpus)


def subject(gpus: list[Gpu]) -> str:
    """The address of the only card, or ``machine`` when a cause holds for several."""
    return gpus[0].address if len(gpus) == 1 else "machine"


def size(number: int) -> str:
    """Bytes in the largest binary unit that divides them, such as ``32 GiB``."""
    for shift, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number and number % (1 << shift) == 0:
            return f"{number >> shift} {unit}"
    return f"{number} B"


def pci_source(address: str) -> str:
    """Source of what configuration space, sysfs or lspci says about one function."""
    return f"PCI {address}"


def driver_evidence(gpu: Gpu) -> Evidence:
    """Which kernel driver holds the card."""
    text = say("Kernel driver in use: {driver}", driver=gpu.driver or say("none"))
    return Evidence(source=pci_source(gpu.address), text=text)


def module_evidence(machine: Machine) -> tuple[Evidence, ...]:
    """GPU modules that are loaded; nothing where that was not read."""
    if machine.driver is None or machine.driver.loaded_modules is None:
        return ()
    loaded = ", ".join(machine.driver.loaded_modules) or "none"
    return (Evidence(source="/proc/modules", text=say("GPU modules loaded: {loaded}", loaded=loaded)),)


def log_evidence(log: KernelLog, line: str) -> Evidence:
    """A line of the kernel log, word for word."""
    return Evidence(source=_LOG_SOURCES[log.source], text=line)


def log_lines(machine: Machine, *words: str) -> Iterator[tuple[int, str]]:
    """Kernel log lines that hold one of the words (a cheap filter before any pattern)."""
    if machine.kernel_log is not None:
        for number, line in enumerate(machine.kernel_log.lines):
            if any(word in line for word in words):
                yield number, line


def addresses_in(line: str) -> list[str]:
    """PCI addresses in a line, normalised, in the order of the line."""
    found = (pci_address(match) for match in re.findall(_ALONE, line))
    return [address for address in found if address is not None]


def address_near(log: KernelLog, number: int, before: int, after: int) -> str | None:
    """Address in a line, or in the driver's lines around it: old drivers spread one message over
    several lines, each with its own time stamp."""
    nearby = [number, *range(number - 1, number - 1 - before, -1), *range(number + 1, number + 1 + after)]
    for index in nearby:
        line = log.lines[index] if 0 <= index < len(log.lines) else ""
        if ("NVRM" in line or "nvidia" in line) and (found := addresses_in(line)):
            return found[0]
    return None


BELOW_THE_DRIVER = frozenset({"bar-unassigned", "gpu-fell-off-bus"})
"""Findings about a card against which no driver helps."""
DRIVER_REFUSES = frozenset({"module-load-blocked", "driver-dropped-gpu", "open-module-unsupported", "gpu-init-failed"})
"""Findings that say why NVIDIA's driver does not drive a card."""

CAUSES_OF: dict[str, str] = {
    "address-space-too-small": "bar-unassigned",
    "bus-resources-exhausted": "bar-unassigned",
    "vm-mmio-window-too-small": "bar-unassigned",
}
"""Finding that stands in place of a more general one, where its cause can be shown, to that one."""


def cards_of(finding: Finding, machine: Machine) -> set[str]:
    """Addresses of the machine's GPUs that a finding speaks of, from its subject and evidence."""
    spoken = {finding.subject}
    for evidence in finding.evidence:
        spoken.update(addresses_in(evidence.source))
    return spoken & {gpu.address for gpu in machine.gpus or ()}


def explained(found: Iterable[Finding], machine: Machine, names: frozenset[str]) -> set[str]:
    """Addresses of cards that findings of these names, or their more specific causes, already speak of."""
    return {address for f in found if CAUSES_OF.get(f.name, f.name) in names for address in cards_of(f, machine)}
