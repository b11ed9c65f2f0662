"""Cards without an address and the room there is for them: what the rules about address space share.

Four rules look at the same cards: ``bar-unassigned`` names the general case, the others a cause
that they can show. :func:`lost` finds the cards, :func:`room` what their root bus can give,
:func:`wanted` what all cards ask for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpucheck import topology
from gpucheck.facts import Gpu, KernelLog, Machine, PciFunction, pci_address
from gpucheck.findings import Confidence, Evidence, Severity
from gpucheck.rules import View
from gpucheck.rules._shared import ADDRESS, CAUSES_OF, address_near, log_evidence, log_lines, pci_source, size
from gpucheck.text import say

FOUR_GIB = 1 << 32
GIB = 1 << 30

_BAR_OF_CARD = range(6)
"""BAR 6 is the expansion ROM, 7 to 12 belong to virtual functions."""
_MAIN_BAR = (1, 2)
"""What NVIDIA calls BAR1: it begins at the second register, or the third where BAR0 takes two."""
_MEMORY_WINDOWS = frozenset({"14", "15", "bridge window"})
"""Of a bridge; 13 is its I/O window. Kernels from 6.9 on write ``bridge window``."""

# Old: "BAR 1: no space for [mem size …]", "BAR 1: can't assign mem (size …)".
# New: "BAR 1 [mem size …]: can't assign; no space". A "VF BAR" is none of ours.
_PLACED = (
    rf"\b({ADDRESS}): (?:BAR (\d+)|(bridge window))"
    r"(?:: (no space for|failed to assign|can't assign|assigned) (?:to )?\[?mem"
    r"| \[mem[^]]*\]: (can't assign|failed to assign|assigned))"
)
_SIZE = r"mem (?:size |pref \(size |\(size )0x([0-9a-fA-F]{1,16})"
_BAR_IS_0M = r"BAR([1-5]) is 0M @ 0x0+\b"
_ROOT_WINDOW = r"pci_bus ([0-9a-f]{4,8}:[0-9a-f]{2}): root bus resource \[mem 0x([0-9a-f]+)-0x([0-9a-f]+)"
_USABLE = r"BIOS-e820: (?:\[mem 0x[0-9a-f]+-0x([0-9a-f]{1,16})\] usable|[0-9a-f]+ - ([0-9a-f]{1,16}) \(usable\))"


class Word(NamedTuple):
    """The kernel's last word about one memory BAR or bridge window."""

    assigned: bool
    line: str

    @property
    def bytes(self) -> int | None:
        """Size, where the line tells it."""
        match = re.search(_SIZE, self.line)
        return int(match[1], 16) if match else None


class Lost(NamedTuple):
    """A card, or a device that only the kernel log knows, with a memory BAR that has no address."""

    address: str
    """``machine`` where nothing tells which card it is."""
    gpu: Gpu | None
    sizes: tuple[int, ...]
    """Bytes of its BARs without an address, as far as anything tells them."""
    by_catalog: bool
    """The size is what the catalog knows of this card; the kernel kept none."""
    evidence: tuple[Evidence, ...]
    confidence: Confidence
    severity: Severity

    @property
    def largest(self) -> int:
        """Bytes of the largest such BAR; 0 where no size is known."""
        return max(self.sizes, default=0)


class Room(NamedTuple):
    """Memory windows of the root bus above a card, as the kernel listed them."""

    lines: tuple[str, ...]
    above_4g: int | None
    """Bytes above 4 GiB; None where the log does not tell."""


# --- cards without an address -------------------------------------------------------------------


def last_words(machine: Machine) -> dict[tuple[str, str], Word]:
    """The kernel's last word per address and BAR (``"1"``) or bridge window."""
    words: dict[tuple[str, str], Word] = {}
    for _, line in log_lines(machine, "BAR ", "bridge window"):
        match = re.search(_PLACED, line)
        if match is None:
            continue
        address = pci_address(match[1])
        if address is not None:
            words[address, match[2] or match[3]] = Word((match[4] or match[5]) == "assigned", line)
    return words


def zero_sized(machine: Machine) -> dict[str | None, list[str]]:
    """Address to the driver's lines of the form ``BAR1 is 0M @ 0x0``; None: no address to be found.

    The address of old drivers (``PCI:30000000:01.0``) cannot be read; then the lines around tell,
    such as ``probe of 0000:67:00.0 failed``.
    """
    lines: dict[str | None, list[str]] = {}
    for number, line in log_lines(machine, " is 0M @ "):
        if machine.kernel_log is not None and re.search(_BAR_IS_0M, line):
            address = address_near(machine.kernel_log, number, before=3, after=3)
            lines.setdefault(address, []).append(line)
    return lines


def lost(machine: Machine, view: View) -> tuple[Lost, ...]:
    """Every card with a memory BAR that got no address, or a device that only the kernel log knows."""
    words = last_words(machine)
    zero = zero_sized(machine)
    gpus = machine.gpus or ()
    found: list[Lost] = []
    for gpu in gpus:
        if gpu.on_pci and not gpu.config_dead:
            found.extend(_lost_card(machine, view, gpu, words, zero.get(gpu.address, [])))
    if machine.pci is None and not any(gpu.on_pci for gpu in gpus):
        found.extend(_lost_in_log(machine, words, zero))
    elif not machine.pci_complete and (unlisted := _unlisted(machine, words, zero)) != ({}, {}):
        # An excerpt: the log may know a card that is not in it.
        found.extend(_lost_in_log(machine, *unlisted))
    elif None in zero and any(gpu.on_pci and gpu.nvml is None for gpu in gpus):
        found.append(Lost("machine", None, (), False, _log(machine, zero[None]), "likely", "error"))
    return tuple(found)


def _unlisted(
    machine: Machine, words: dict[tuple[str, str], Word], zero: dict[str | None, list[str]]
) -> tuple[dict[tuple[str, str], Word], dict[str | None, list[str]]]:
    """What kernel and driver say of devices that the list does not hold."""
    listed = {function.address for function in machine.pci or ()}
    return (
        {(address, bar): word for (address, bar), word in words.items() if address not in listed},
        {address: lines for address, lines in zero.items() if address is not None and address not in listed},
    )


def _lost_card(
    machine: Machine, view: View, gpu: Gpu, words: dict[tuple[str, str], Word], zero: list[str]
) -> Iterator[Lost]:
    bars = {bar.index: bar for bar in gpu.bars or ()}
    unassigned = [bar for bar in bars.values() if not bar.assigned]
    own = {
        index: words[gpu.address, str(index)]
        for index in _BAR_OF_CARD
        if (gpu.address, str(index)) in words and not (index in bars and bars[index].assigned)
    }
    refused = [word.line for word in own.values() if not word.assigned]
    windows = [
        word.line
        for bridge in topology.path_to_root(gpu.address, topology.tree(machine.pci or ()))
        for (address, bar), word in words.items()
        if address == bridge.address and bar in _MEMORY_WINDOWS and not word.assigned
    ]
    works = gpu.nvml is not None
    severity: Severity = "error"
    confidence: Confidence
    if unassigned:
        confidence = "certain"
        severity = "warning" if works else "error"
    elif works:
        return  # what the log says is over: the driver runs this card
    elif zero:
        # BAR1 with an address on PCI and none in the log: the bus was scanned anew since.
        confidence = "likely" if 1 in bars else "certain"
    elif refused:
        confidence = "likely"
    elif windows and not gpu.bars:
        confidence = "possible"
        severity = "warning"
    else:
        return
    sizes = {bar.index: bar.bytes for bar in unassigned if bar.bytes}
    sizes |= {index: word.bytes for index, word in own.items() if index not in sizes and word.bytes}
    by_catalog = None
    if confidence != "possible" and not sizes and not any(bars[n].assigned for n in _MAIN_BAR if n in bars):
        by_catalog = _bar1_of(gpu, view)
    evidence = (
        *(_bar_evidence(gpu, bar.index, bar.bytes) for bar in unassigned),
        *_log(machine, [*zero, *refused, *windows]),
    )
    if by_catalog is not None:
        text = say("BAR1 of this card: {size}", size=size(by_catalog))
        evidence += (Evidence(source=say("catalog, {card}", card=gpu.catalog_gpu), text=text),)
        sizes[1] = by_catalog
    known = tuple(number for number in sizes.values() if number)
    yield Lost(gpu.address, gpu, known, by_catalog is not None, evidence, confidence, severity)


def _bar1_of(gpu: Gpu, view: View) -> int | None:
    """Bytes of BAR1 of an NVIDIA card by the catalog."""
    if view.catalog is None or gpu.catalog_gpu is None or gpu.vendor != "nvidia":
        return None
    bar1 = view.catalog.card(gpu.catalog_gpu).bar1
    return bar1.bytes if bar1 is not None else None


def _bar_evidence(gpu: Gpu, index: int, number: int | None) -> Evidence:
    if number is None:
        text = say("BAR {index}: no address, size unknown", index=index)
    else:
        text = say("BAR {index} of {size}: no address", index=index, size=size(number))
    return Evidence(source=pci_source(gpu.address), text=text)


def _lost_in_log(
    machine: Machine, words: dict[tuple[str, str], Word], zero: dict[str | None, list[str]]
) -> Iterator[Lost]:
    """PCI was not looked at: which devices are GPUs must come from the log too."""
    works = {gpu.address for gpu in machine.gpus or ()}
    for place, lines in zero.items():
        if place not in works:
            yield Lost(place or "machine", None, (), False, _log(machine, lines), "certain", "error")
    gpus = _gpus_in_log(machine)
    refused: dict[str, list[Word]] = {}
    for (address, bar), word in words.items():
        if not word.assigned and bar.isdigit() and int(bar) in _BAR_OF_CARD and address not in zero:
            refused.setdefault(address, []).append(word)
    for address, heard in refused.items():
        if address in gpus and address not in works:
            sizes = tuple(word.bytes for word in heard if word.bytes)
            lines = [word.line for word in heard]
            yield Lost(address, None, sizes, False, _log(machine, lines), gpus[address], "error")


def _gpus_in_log(machine: Machine) -> dict[str, Confidence]:
    """Devices that the log names as display or accelerator, or whose BARs look like a GPU's."""
    gpus: dict[str, Confidence] = {}
    for _, line in log_lines(machine, " class 0x03", " class 0x12", "64bit pref"):
        match = re.search(rf"\bpci ({ADDRESS}): (.*)", line)
        address = pci_address(match[1]) if match else None
        if match is None or address is None:
            continue
        if re.search(r"class 0x(?:03|1200)", match[2]):
            gpus[address] = "likely"
        elif match[2].startswith("BAR ") and _large(match[2]):
            gpus.setdefault(address, "possible")
    return gpus


def _large(text: str) -> bool:
    """A prefetchable BAR of 128 MiB or more: a card's memory, hardly anything else."""
    of_size = re.search(r"\[mem size 0x([0-9a-fA-F]+)", text)
    placed = re.search(r"\[mem 0x([0-9a-fA-F]+)-0x([0-9a-fA-F]+)", text)
    number = int(of_size[1], 16) if of_size else 0
    if placed:
        number = int(placed[2], 16) - int(placed[1], 16) + 1
    return number >= 128 << 20


def _log(machine: Machine, lines: Iterable[str]) -> tuple[Evidence, ...]:
    log = machine.kernel_log
    return () if log is None else tuple(log_evidence(log, line) for line in lines)


# --- room and need ------------------------------------------------------------------------------


def wanted(gpus: Iterable[Gpu], cards: Iterable[Lost]) -> int:
    """Bytes of the BARs of 4 GiB and more of these GPUs: they must lie above 4 GiB.

    Args:
        gpus: The GPUs that share the room.
        cards: What :func:`lost` found, for the sizes of BARs without an address.

    BARs whose size nothing tells are left out, so that the sum is the least they need.
    """
    unplaced = {card.address: card.sizes for card in cards}
    total = 0
    for gpu in gpus:
        placed = [bar.bytes for bar in gpu.bars or () if bar.assigned and bar.bytes]
        total += sum(number for number in (*placed, *unplaced.get(gpu.address, ())) if number >= FOUR_GIB)
    return total


def on_the_same_root(machine: Machine, address: str) -> list[Gpu]:
    """The cards that share a card's root bus, itself among them; all where the tree was not read."""
    tree = topology.tree(machine.pci or ())
    bus = topology.root_bus(address, tree)
    return [gpu for gpu in machine.gpus or () if bus is None or topology.root_bus(gpu.address, tree) in (bus, None)]


def room(machine: Machine, address: str) -> Room:
    """The windows of a card's root bus; those of all root buses where its own is not known."""
    log = machine.kernel_log
    lines = (line for _, line in log_lines(machine, "root bus resource [mem"))
    found = [match for line in lines if (match := re.search(_ROOT_WINDOW, line))]
    bus = topology.root_bus(address, topology.tree(machine.pci or ()))
    if bus is not None:
        found = [match for match in found if match[1] == bus]
    above = sum(max(0, int(match[3], 16) + 1 - max(int(match[2], 16), FOUR_GIB)) for match in found)
    known = bool(found) and (above > 0 or (log is not None and log.complete))
    return Room(tuple(match.string for match in found), above if known else None)


def room_evidence(machine: Machine, given: Room) -> tuple[Evidence, ...]:
    """The lines of the windows, word for word."""
    return _log(machine, given.lines)


def top_of_memory(log: KernelLog | None) -> tuple[int, str] | None:
    """The first address after the last memory, by the firmware's own map in the log, and its line."""
    tops: list[tuple[int, str]] = []
    for line in log.lines if log else ():
        if "BIOS-e820: " in line and (match := re.search(_USABLE, line)):
            # The old form gives the end as the first address after it.
            tops.append((int(match[1], 16) + 1 if match[1] else int(match[2], 16), line))
    return max(tops, default=None)


def legacy_boot(machine: Machine) -> tuple[Evidence, ...]:
    """What says that the machine was booted without UEFI; nothing where it was, or where it was not read."""
    if machine.driver is None or machine.driver.efi_boot is not False:
        return ()
    return (Evidence(source="/sys/firmware/efi", text=say("absent: the machine was booted in legacy mode")),)


def is_arm(machine: Machine) -> bool:
    """Whether it is an ARM machine, by its kernel, its processor or the first messages of its boot."""
    release = (machine.driver.kernel_release if machine.driver is not None else None) or ""
    model = (machine.cpu.model if machine.cpu is not None else None) or ""
    first = machine.kernel_log.lines[:20] if machine.kernel_log is not None else ()
    return (
        any(word in release for word in ("aarch64", "arm64", "raspi", "-rpi"))
        or model.startswith(("Cortex", "Neoverse", "ARM"))
        or any("aarch64" in line or line.startswith("Booting Linux on physical CPU") for line in first)
    )


def rounded(number: int) -> str:
    """Bytes as people compare them: whole GiB, rounded down; smaller ones exactly."""
    return size(number - number % GIB) if number >= GIB else size(number)


# --- who speaks ---------------------------------------------------------------------------------


def told(view: View) -> set[str]:
    """Subjects whose cause a more specific rule is sure enough of to speak alone.

    In a virtual machine that is always so: what to do about a machine's own firmware is of no use there.
    """
    return {
        f.subject
        for f in view.found
        if CAUSES_OF.get(f.name) == "bar-unassigned"
        and (f.confidence != "possible" or f.name == "vm-mmio-window-too-small")
    }


def empty_bridges(machine: Machine, address: str) -> list[PciFunction]:
    """Bridges with nothing behind them that hold a memory window on the root bus of a card."""
    tree = topology.tree(machine.pci or ())
    bus = topology.root_bus(address, tree)
    above = {function.parent for function in tree.values()}
    if bus is None or topology.UNKNOWN_PARENT in above:
        return []
    return [
        function
        for function in tree.values()
        if function.windows and function.address not in above and topology.root_bus(function.address, tree) == bus
    ]
