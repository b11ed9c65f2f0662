"""A virtual machine's memory window has no room for a card's BAR.

What it means
In a virtual machine the hypervisor and the guest's own firmware decide where cards may lie. A memory
BAR of a card that was passed through got no address there: the window for 64-bit MMIO is too small
for all cards, the guest has too few address bits, or it was started with legacy BIOS firmware. The
card itself and the host are well.

How we know
The processor says that it is virtual, and PCI (or the kernel log) shows a memory BAR without an
address. Certain where the windows of the guest's root bus, as its kernel lists them, are smaller
than what the cards ask for.

Why it matters
One card works and the second is missing, or a card vanishes when the guest gets more memory: where
its window begins depends on the guest's address bits and memory.

What to do
Give the guest UEFI firmware, make its 64-bit MMIO window larger than the sum of all BARs, pass the
host's physical address bits through, and reserve all of the guest's memory.

When it is wrong
WSL 2 has no GPU on PCI and is not judged. If the host's own kernel gave the card no address either,
the host is to be mended first: run gpucheck there.

Sources
https://github.com/harvester/harvester/issues/7932 (how many cards appear depends on the guest's memory)
https://github.com/kubevirt/kubevirt/issues/11093 (BAR1 is 0M in a guest, also with UEFI)
https://github.com/tianocore/edk2/pull/10856 (what opt/ovmf/X-PciMmio64Mb sets)
https://www.dell.com/support/kbdoc/en-us/000199172/pci-passthrough-module-devicepoweron-power-on-failed (vSphere)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Machine
from gpucheck.findings import Confidence, Evidence, Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.rules._addresses import (
    GIB,
    Lost,
    Room,
    legacy_boot,
    lost,
    on_the_same_root,
    room,
    room_evidence,
    rounded,
    wanted,
)
from gpucheck.rules._shared import label, size
from gpucheck.text import say

NEEDS: tuple[str, ...] = ("cpu",)


def lacks(machine: Machine) -> Iterator[str]:
    """BARs of single cards in a virtual machine."""
    if machine.cpu is not None and machine.cpu.hypervisor:
        if machine.gpus is None:
            yield "gpus"
        yield from (f"gpus.{gpu.address}.bars" for gpu in machine.gpus or () if gpu.on_pci and not gpu.bars)


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per card."""
    if machine.cpu is None or not machine.cpu.hypervisor:
        return
    cards = lost(machine, view)
    for card in cards:
        yield _finding(machine, card, cards)


def _finding(machine: Machine, card: Lost, cards: tuple[Lost, ...]) -> Finding:
    given = room(machine, card.address)
    together = wanted(machine.gpus or (), cards)
    short = given.above_4g is not None and wanted(on_the_same_root(machine, card.address), cards) > given.above_4g
    return finding(
        "vm-mmio-window-too-small",
        card.severity,
        card.address,
        _message(card, given, bool(legacy_boot(machine)), short=short, together=together),
        evidence=(
            *card.evidence,
            *room_evidence(machine, given),
            *_guest_evidence(machine),
            *legacy_boot(machine),
        ),
        remedy=_remedy(machine, together),
        next_test=() if short else _tests(),
        confidence=_confidence(card, short=short),
    )


def _confidence(card: Lost, *, short: bool) -> Confidence:
    if short or card.confidence == "possible":
        return card.confidence
    return "likely"


def _message(card: Lost, given: Room, legacy: bool, *, short: bool, together: int) -> str:
    if card.gpu is None:
        return say("In this virtual machine a GPU has a memory BAR without an address ({where}).", where=card.address)
    if short:
        return say(
            "{card} has no address for its BAR: the cards of this virtual machine ask for {need}, and its memory "
            "window above 4 GiB holds {room}.",
            card=label(card.gpu),
            need=size(together),
            room=rounded(given.above_4g or 0),
        )
    if legacy:
        return say(
            "{card} has a memory BAR without an address in a virtual machine with legacy BIOS firmware: large BARs "
            "mostly need UEFI there.",
            card=label(card.gpu),
        )
    return say(
        "{card} has a memory BAR without an address: the memory window of this virtual machine has no room for it.",
        card=label(card.gpu),
    )


def _guest_evidence(machine: Machine) -> Iterator[Evidence]:
    cpu = machine.cpu
    if cpu is not None and cpu.hypervisor:
        yield Evidence(source="/proc/cpuinfo", text=say("hypervisor: {name}", name=cpu.hypervisor))
        if cpu.physical_address_bits is not None:
            text = say("address sizes: {bits} bits physical", bits=cpu.physical_address_bits)
            yield Evidence(source="/proc/cpuinfo", text=text)
    if machine.memory_bytes is not None:
        yield Evidence(source=say("memory"), text=rounded(machine.memory_bytes))


def _remedy(machine: Machine, together: int) -> tuple[str, ...]:
    firmware = (
        say("Give the virtual machine UEFI firmware instead of BIOS (its system may have to be installed anew)."),
    )
    known_efi = machine.driver is not None and machine.driver.efi_boot is True
    return (
        *(() if known_efi else firmware),
        *_window_steps(machine.cpu.hypervisor if machine.cpu else None, together),
        say("Reserve all of the guest's memory; less guest memory can leave room for the cards."),
    )


def _window_steps(hypervisor: str | None, together: int) -> Iterator[str]:
    """How the hypervisor sets the window; a power of two at least twice what the cards ask for."""
    if not together:
        yield say(
            "Enlarge the virtual machine's 64-bit MMIO window in the hypervisor until it holds the sum of the "
            "cards' BARs, and let it use the host's physical address bits."
        )
        return
    window = 1 << (2 * together - 1).bit_length()
    yield say(
        "Give the virtual machine a 64-bit MMIO window of {size} in the hypervisor (its cards ask for {need}), and "
        "let it use the host's physical address bits.",
        size=size(window),
        need=size(together),
    )
    if hypervisor == "VMware":
        yield say(
            'In its configuration: pciPassthru.use64bitMMIO = "TRUE" and pciPassthru.64bitMMIOSizeGB = "{gib}".',
            gib=window // GIB,
        )
    elif hypervisor in ("QEMU", "KVM", "OpenStack"):
        yield say(
            "With QEMU: -cpu host,host-phys-bits=on and -fw_cfg name=opt/ovmf/X-PciMmio64Mb,string={mib}",
            mib=window >> 20,
        )
    elif hypervisor == "Hyper-V":
        yield say("On the host: Set-VM -HighMemoryMappedIoSpace {mib}MB -VMName NAME", mib=window >> 20)


def _tests() -> tuple[NextTest, ...]:
    less = NextTest(
        do=say("Start the virtual machine with half of its memory, or with this card only."),
        outcomes=(
            Reading(seen=say("The card gets all its BARs"), means=say("The window is too small for memory and cards.")),
            Reading(
                seen=say("Its BAR still has no address"),
                means=say("The guest's firmware or address bits are too small for one card."),
            ),
        ),
    )
    host = NextTest(
        do=say("Run gpucheck probe on the host."),
        outcomes=(
            Reading(seen=say("The card has all its addresses there"), means=say("The virtual machine is at fault.")),
            Reading(
                seen=say("It has a BAR without an address there too"),
                means=say("The host's firmware has no room: see bar-unassigned there."),
            ),
        ),
    )
    return less, host
