"""A memory BAR of a card got no address.

What it means
A card shows its memory to the processor through windows called BARs (base address registers).
Firmware and kernel found no room for at least one of them, so the driver cannot talk to the card:
lspci lists it, nvidia-smi does not. Nothing is broken.

How we know
PCI shows a memory BAR without an address; or the driver said that BAR1 is 0M; or the last word of
the kernel about this BAR is that there was no space. What the kernel says about the windows of the
bridges above the card is shown as evidence.

Why it matters
Cards with large BARs (K80, M40 24 GB, P40, P100, V100, A100 and later: 16 GiB and more for one
card) need room above 4 GiB. Many boards ship with that switched off, and often it is the second or
the fourth card that no longer finds a place.

What to do
First boot in UEFI mode only and turn CSM (legacy option ROMs) off: on many boards the next switch
has no effect before. Then enable Above 4G Decoding. If it is on, enlarge the window for 64-bit
MMIO until it holds the sum of all BARs, or take cards out until the rest fits. Look again after a
power cut: some boards forget these settings. The kernel option pci=realloc cures some machines and
breaks others, and newer firmware has removed the switch from some boards, so try neither blindly.

When it is wrong
A BAR1 of 256 MiB is normal for a GeForce card, and messages about I/O ranges (BAR 13 of a bridge,
"io size") or expansion ROMs (BAR 6) are harmless: none of these is reported. A card that no longer
answers on the bus may look the same; see gpu-fell-off-bus. Inside a virtual machine the window is
the hypervisor's.

Sources
https://github.com/xCuri0/ReBarUEFI/issues/329 (BAR1 is 0M although the switch is on)
https://github.com/miyconst/Mi899/issues/39 (the switch works only with CSM off)
https://github.com/xCuri0/ReBarUEFI/issues/77 (36 address bits cannot hold a 32 GiB BAR)
https://github.com/harvester/harvester/issues/7932 (a virtual machine's window)
https://github.com/NVIDIA/open-gpu-kernel-modules/issues/510 (bridge window refused, card works)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpucheck import topology
from gpucheck.facts import Bar, Gpu, KernelLog, Machine, pci_address
from gpucheck.findings import Confidence, Evidence, Finding, NextTest, Reading, Severity, finding
from gpucheck.rules import View
from gpucheck.rules._shared import (
    ADDRESS,
    address_near,
    label,
    log_evidence,
    log_lines,
    pci_source,
    size,
)
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()

FOUR_GIB = 1 << 32

_BAR_OF_CARD = range(6)
"""BAR 6 is the expansion ROM, 7 to 12 belong to virtual functions."""
_MEMORY_WINDOWS = frozenset({"14", "15", "bridge window"})
"""Of a bridge; 13 is its I/O window. Kernels from 6.9 on write ``bridge window``."""

# Old: "BAR 1: no space for [mem size …]", "BAR 1: can't assign mem (size …)".
# New: "BAR 1 [mem size …]: can't assign; no space". A "VF BAR" is none of ours.
_PLACED = (
    rf"\b({ADDRESS}): (?:BAR (\d+)|(bridge window))"
    r"(?:: (no space for|failed to assign|can't assign|assigned) (?:to )?\[?mem"
    r"| \[mem[^]]*\]: (can't assign|failed to assign|assigned))"
)
_BAR_IS_0M = r"BAR([1-5]) is 0M @ 0x0+\b"


class Word(NamedTuple):
    """The kernel's last word about one memory BAR or bridge window."""

    assigned: bool
    line: str


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


def lacks(machine: Machine) -> Iterator[str]:
    """BARs of single cards; the kernel log where it is the only witness."""
    if machine.gpus is None:
        yield "gpus"
    # A GPU without any memory BAR does not exist: the kernel kept nothing of them.
    without = [gpu.address for gpu in machine.gpus or () if gpu.on_pci and not gpu.bars]
    yield from (f"gpus.{address}.bars" for address in without)
    if machine.kernel_log is None and (machine.pci is None or without):
        yield "kernel_log"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per card, or per device that only the kernel log knows."""
    words = last_words(machine)
    zero = zero_sized(machine)
    gpus = machine.gpus or ()
    for gpu in gpus:
        if gpu.on_pci and not gpu.config_dead:
            yield from _check_card(machine, view, gpu, words, zero.get(gpu.address, []))
    if machine.pci is None and not any(gpu.on_pci for gpu in gpus):
        yield from _check_log(machine, view, words, zero)
    elif None in zero and any(gpu.on_pci and gpu.nvml is None for gpu in gpus):
        yield _finding(machine, view, "machine", None, _log(machine, zero[None]), "likely")


def _check_card(
    machine: Machine, view: View, gpu: Gpu, words: dict[tuple[str, str], Word], zero: list[str]
) -> Iterator[Finding]:
    bars = {bar.index: bar for bar in gpu.bars or ()}
    unassigned = [bar for bar in bars.values() if not bar.assigned]
    own = [
        words[gpu.address, str(index)]
        for index in _BAR_OF_CARD
        if (gpu.address, str(index)) in words and not (index in bars and bars[index].assigned)
    ]
    refused = [word.line for word in own if not word.assigned]
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
    evidence = (*(_bar_evidence(gpu, bar) for bar in unassigned), *_log(machine, [*zero, *refused, *windows]))
    yield _finding(machine, view, gpu.address, gpu, evidence, confidence, severity)


def _check_log(
    machine: Machine, view: View, words: dict[tuple[str, str], Word], zero: dict[str | None, list[str]]
) -> Iterator[Finding]:
    """PCI was not looked at: which devices are GPUs must come from the log too."""
    works = {gpu.address for gpu in machine.gpus or ()}
    for address, lines in zero.items():
        if address in works:
            continue
        yield _finding(machine, view, address or "machine", None, _log(machine, lines), "certain")
    gpus = _gpus_in_log(machine)
    refused: dict[str, list[str]] = {}
    for (address, bar), word in words.items():
        if not word.assigned and bar.isdigit() and int(bar) in _BAR_OF_CARD and address not in zero:
            refused.setdefault(address, []).append(word.line)
    for address, lines in refused.items():
        if address in gpus and address not in works:
            yield _finding(machine, view, address, None, _log(machine, lines), gpus[address])


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


def _bar_evidence(gpu: Gpu, bar: Bar) -> Evidence:
    if bar.bytes is None:
        text = say("BAR {index}: no address, size unknown", index=bar.index)
    else:
        text = say("BAR {index} of {size}: no address", index=bar.index, size=size(bar.bytes))
    return Evidence(source=pci_source(gpu.address), text=text)


def _log(machine: Machine, lines: list[str]) -> tuple[Evidence, ...]:
    log = machine.kernel_log
    return () if log is None else tuple(log_evidence(log, line) for line in lines)


def _finding(
    machine: Machine,
    view: View,
    address: str,
    gpu: Gpu | None,
    evidence: tuple[Evidence, ...],
    confidence: Confidence,
    severity: Severity = "error",
) -> Finding:
    sizes = [bar.bytes for bar in (gpu.bars if gpu and gpu.bars else ()) if not bar.assigned and bar.bytes]
    if gpu is not None and sizes:
        message = say(
            "{card} has a memory BAR of {size} without an address, so its driver cannot use it.",
            card=label(gpu),
            size=size(max(sizes)),
        )
    elif gpu is not None:
        message = say("{card} has a memory BAR without an address.", card=label(gpu))
    elif address == "machine":
        message = say("The driver met a card with a memory BAR without an address; which card is not known.")
    elif confidence == "possible":
        message = say(
            "The device at {address}, which looks like a GPU, has a memory BAR without an address.",
            address=address,
        )
    else:
        message = say("The GPU at {address} has a memory BAR without an address.", address=address)
    remedy, next_test, sources = _advice(machine, view, sizes)
    if machine.driver is not None and machine.driver.efi_boot is False:
        evidence += (Evidence(source="/sys/firmware/efi", text="absent: the machine was booted in legacy mode"),)
    return finding(
        "bar-unassigned",
        severity,
        address,
        message,
        evidence=evidence,
        remedy=remedy,
        next_test=next_test,
        confidence=confidence,
        sources=sources,
    )


def _advice(
    machine: Machine, view: View, sizes: list[int]
) -> tuple[tuple[str, ...], tuple[NextTest, ...], tuple[str, ...]]:
    """Remedy in the order to try, the tests that tell the causes apart, and what it rests on."""
    if machine.cpu is not None and machine.cpu.hypervisor:
        return _in_virtual_machine(), (), ()
    above_4g, sources = _menu(view, "above-4g")
    window, window_sources = _menu(view, "mmio-base", "mmio-size")
    switch = [
        say("In the firmware setup, boot in UEFI mode only and turn CSM (legacy option ROMs) off."),
        *(above_4g or [say("Then enable Above 4G Decoding (also called Memory Mapped I/O above 4 GB).")]),
    ]
    window = window or [
        say(
            "Enlarge the 64-bit MMIO window in the firmware setup (such as MMIO High Size) until it holds the "
            "sum of all BARs."
        )
    ]
    has_window = high_window(machine.kernel_log)
    remedy = [
        *_too_few_bits(machine, sizes),
        *([] if has_window else switch),
        *window,
        say("If there is no such setting, take cards out until the rest finds room."),
    ]
    next_test = (_alone_test(),) if has_window is not None else (_windows_test(), _alone_test())
    return tuple(remedy), next_test, tuple(dict.fromkeys(sources + window_sources))


def high_window(log: KernelLog | None) -> bool | None:
    """Whether a root bus has a memory window above 4 GiB; None where the log does not tell."""
    windows = [
        match
        for line in (log.lines if log else ())
        if (match := re.search(r"root bus resource \[mem 0x([0-9a-fA-F]+)-0x", line))
    ]
    if any(int(match[1], 16) >= FOUR_GIB for match in windows):
        return True
    return False if windows and log is not None and log.complete else None


def _windows_test() -> NextTest:
    return NextTest(
        do=say("Look at the windows of the root buses: sudo dmesg | grep 'root bus resource'"),
        outcomes=(
            Reading(
                seen=say("No [mem ...] window begins at 0x100000000 or above"),
                means=say("Above 4G Decoding is off, or legacy boot (CSM) voids it."),
            ),
            Reading(
                seen=say("There is such a window, but it is smaller than the sum of the cards' BARs"),
                means=say("The window is too small: enlarge it, or use fewer cards."),
            ),
        ),
    )


def _alone_test() -> NextTest:
    return NextTest(
        do=say("Leave only this card in the machine, in the same slot, and boot."),
        outcomes=(
            Reading(
                seen=say("It gets all its BARs"),
                means=say("The window is too small for all cards together."),
            ),
            Reading(
                seen=say("Its BAR still has no address"),
                means=say("Above 4G Decoding is off or without effect, or the window is too small for one card."),
            ),
        ),
    )


def _menu(view: View, *purposes: str) -> tuple[list[str], tuple[str, ...]]:
    """Steps by the names in this model's own firmware menu, and titles of their sources."""
    settings = [s for p in purposes for s in (view.server.firmware if view.server else ()) if s.purpose == p]
    if view.server is None or not settings:
        return [], ()
    from gpucheck.entries import citations

    steps = [
        say("Set {menu} to {value} (from outside: {command}).", menu=s.menu, value=s.value, command=s.command)
        if s.command
        else say("Set {menu} to {value}.", menu=s.menu, value=s.value)
        for s in settings
    ]
    keys = tuple(key for setting in settings for key in setting.src)
    return steps, tuple(citation.title for citation in citations(view.server, keys))


def _too_few_bits(machine: Machine, sizes: list[int]) -> list[str]:
    """What to say where the BAR would fill half of the processor's address space or more.

    A BAR sits at a multiple of its size, and memory and the hole below 4 GiB take the rest.
    """
    bits = machine.cpu.physical_address_bits if machine.cpu else None
    if bits is None or not 32 <= bits <= 64 or not sizes or max(sizes) * 2 < 1 << bits:
        return []
    return [
        say(
            "The processor addresses {bits} bits, {space} in all: next to the memory there may be no place for "
            "{size} whatever the firmware says, and then only less memory or another processor helps.",
            bits=bits,
            space=size(1 << bits),
            size=size(max(sizes)),
        )
    ]


def _in_virtual_machine() -> tuple[str, ...]:
    return (
        say("Give the virtual machine UEFI firmware instead of BIOS."),
        say(
            "Enlarge the virtual machine's 64-bit MMIO window in the hypervisor until it holds the sum of the "
            "cards' BARs, and let it use the host's physical address bits."
        ),
        say("Reserve all of the guest's memory; less guest memory can leave room for the cards."),
    )
