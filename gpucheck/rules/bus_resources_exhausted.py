"""Other devices eat the addresses or bus numbers that a card needs.

What it means
Firmware sets memory windows and bus numbers aside for devices that may be plugged in later: behind
hot-plug slots, USB4 and Thunderbolt ports. What they take is missing elsewhere. Very many cards of
the VGA class can also use up the few legacy resources that each of them claims.

How we know
A card has a memory BAR without an address while bridges with nothing behind them hold windows on
the same root bus: likely the cause where the root bus could hold the card without them, else
possible. Bus numbers: the kernel says that it has none left for a bridge, so that it cannot see
what is behind it. Ten or more VGA-class cards are named as possible only, when cards are missing or
have no address.

Why it matters
The card looks dead, or is not there at all, although neither it nor the Above 4G switch is at fault.

What to do
In the firmware setup turn hot-plug, USB4 or Thunderbolt support off where it is not needed, or lower
what it reserves (PCI resource padding). Then boot with the cards plugged in rather than adding them
later. The kernel can number the buses anew with pci=assign-busses. It reserves little for hot-plug
by itself, unless its command line says so (hpmmioprefsize, hpmemsize).

When it is wrong
Lines about I/O ports alone ("no space for [io size 0x1000]") are harmless for compute cards and are
not counted. A bridge without bus numbers may lead to something that is no card at all: that is a
warning until cards turn out to be missing.

Sources
https://github.com/Dunedan/mbp-2016-linux/issues/60 (a card behind Thunderbolt without its BAR1)
http://fastra2.ua.ac.be/?page_id=214 (13 GPUs: addresses below 4 GB and I/O ports run out)
https://github.com/ROCm/legacy-rocm-build/issues/295 (about 13 VGA-class cards, none for compute-class)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpucheck.facts import Gpu, Machine, PciFunction, pci_address
from gpucheck.findings import Confidence, Evidence, Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.rules._addresses import (
    FOUR_GIB,
    Lost,
    empty_bridges,
    lost,
    on_the_same_root,
    room,
    room_evidence,
    told,
    wanted,
)
from gpucheck.rules._shared import ADDRESS, label, log_evidence, log_lines, pci_source, size
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ("gpus", "pci")

MANY_VGA = 10
"""Reports of machines that do not start name 13; some boards give up at eight or nine."""

_NO_BUS = (
    rf"\b({ADDRESS}): (?:No bus number available for hot-added bridge"
    r"|devices behind bridge are unusable because \[bus [0-9a-f-]+\] cannot be assigned)"
    rf"|No bus number available for hot-added bridge ({ADDRESS})"
)


def lacks(machine: Machine) -> Iterator[str]:
    """The kernel log, which alone tells of bus numbers."""
    if machine.kernel_log is None:
        yield "kernel_log"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per card without an address, one for bridges without bus numbers, one for many cards."""
    yield from _without_bus(machine)
    if machine.cpu is not None and machine.cpu.hypervisor:
        return
    explained = told(view)
    cards = [card for card in lost(machine, view) if card.gpu is not None and card.address not in explained]
    for card in cards:
        yield from _window_taken(machine, card, cards)
    yield from _many_vga(machine, view, cards)


# --- bus numbers --------------------------------------------------------------------------------


def _without_bus(machine: Machine) -> Iterator[Finding]:
    # Numbers that a later scan found: something is behind the bridge now.
    above = {function.parent for function in machine.pci or ()}
    lines: dict[str, str] = {}
    for _, line in log_lines(machine, "No bus number", "devices behind bridge"):
        match = re.search(_NO_BUS, line)
        address = pci_address(match[1] or match[2]) if match else None
        if address is not None and address not in above:
            lines[address] = line
    log = machine.kernel_log
    if not lines or log is None:
        return
    yield finding(
        "bus-resources-exhausted",
        "warning",
        next(iter(lines)) if len(lines) == 1 else "machine",
        say(
            plural(
                len(lines),
                "No bus number was left for the bridge at {bridges}: what is behind it cannot be seen.",
                "No bus numbers were left for the bridges at {bridges}: what is behind them cannot be seen.",
            ),
            bridges=", ".join(lines),
        ),
        evidence=tuple(log_evidence(log, line) for line in lines.values()),
        remedy=(
            say("Plug everything in before switching on, so that the firmware counts its buses."),
            say("In the firmware setup, turn off hot-plug, USB4 or Thunderbolt support that is not needed."),
            say(
                "Or let the kernel number the buses anew: boot once with pci=assign-busses on the kernel command line."
            ),
        ),
        confidence="certain",
    )


# --- windows of empty bridges -------------------------------------------------------------------


def _window_taken(machine: Machine, card: Lost, cards: list[Lost]) -> Iterator[Finding]:
    """A card that would have room if bridges with nothing behind them gave back their windows."""
    least = FOUR_GIB if card.largest >= FOUR_GIB else 0
    takers = [bridge for bridge in empty_bridges(machine, card.address) if _held(bridge, least)]
    held = sum(_held(bridge, least) for bridge in takers)
    if card.gpu is None or not card.largest or held < card.largest:
        return
    given = room(machine, card.address)
    need = wanted(on_the_same_root(machine, card.address), cards)
    confidence: Confidence = "possible"
    if card.largest >= FOUR_GIB and given.above_4g is not None:
        if need > given.above_4g:
            return  # too small for the cards alone
        if need + held > given.above_4g and card.confidence == "certain":
            confidence = "likely"
    yield finding(
        "bus-resources-exhausted",
        card.severity,
        card.address,
        say(
            plural(
                len(takers),
                "{card} has a memory BAR of {size} without an address, while the empty bridge at {bridges} holds "
                "{held} on the same root bus.",
                "{card} has a memory BAR of {size} without an address, while the empty bridges at {bridges} hold "
                "{held} on the same root bus.",
            ),
            card=label(card.gpu),
            size=size(card.largest),
            bridges=", ".join(bridge.address for bridge in takers),
            held=size(held),
        ),
        evidence=(
            *card.evidence,
            *(_taker_evidence(bridge, _held(bridge, least)) for bridge in takers),
            *room_evidence(machine, given),
        ),
        remedy=(
            say(
                "In the firmware setup, turn hot-plug, USB4 or Thunderbolt support off for the slots and ports that do "
                "not need it, or lower what it reserves (PCI resource padding)."
            ),
            *_kernel_reserve(machine),
            say("Otherwise enlarge the 64-bit MMIO window in the firmware setup (such as MMIO High Size)."),
        ),
        next_test=(
            NextTest(
                do=say("Turn hot-plug, USB4 and Thunderbolt support off in the firmware setup and boot."),
                outcomes=(
                    Reading(seen=say("The card gets all its BARs"), means=say("Their reserve had taken its place.")),
                    Reading(
                        seen=say("Its BAR still has no address"),
                        means=say("The window is off or too small; see bar-unassigned."),
                    ),
                ),
            ),
        ),
        confidence=confidence,
    )


def _kernel_reserve(machine: Machine) -> Iterator[str]:
    """The kernel's own reserve, where its command line sets one."""
    line = machine.driver.kernel_command_line if machine.driver else None
    for option in re.findall(r"\bhp(?:mem|mmio|mmiopref)size=\w+", line or ""):
        yield say("Take {option} off the kernel command line, or make it smaller.", option=option)


def _held(bridge: PciFunction, least: int) -> int:
    """Bytes that a bridge keeps: above 4 GiB, where the card's BAR must lie there, else all."""
    return sum(window.bytes for window in bridge.windows or () if window.start >= least)


def _taker_evidence(bridge: PciFunction, held: int) -> Evidence:
    if bridge.physical_slot:
        text = say(
            "Bridge with nothing behind it, hot-plug slot {slot}: memory window of {held}",
            slot=bridge.physical_slot,
            held=size(held),
        )
    else:
        text = say("Bridge with nothing behind it: memory window of {held}", held=size(held))
    return Evidence(source=pci_source(bridge.address), text=text)


# --- very many cards ----------------------------------------------------------------------------


def _many_vga(machine: Machine, view: View, cards: list[Lost]) -> Iterator[Finding]:
    vga = _vga_class(machine)
    missing = view.expected is not None and len(machine.gpus or ()) < view.expected.n
    if len(vga) < MANY_VGA or not (missing or any(card.severity == "error" for card in cards)):
        return
    yield finding(
        "bus-resources-exhausted",
        "warning",
        "machine",
        say(
            "{count} cards are of the VGA class: each claims legacy I/O ports and room below 4 GiB, and many boards "
            "run out of them at about 13.",
            count=len(vga),
        ),
        evidence=tuple(Evidence(source="PCI", text=say("{card}: class 0300 (VGA)", card=label(gpu))) for gpu in vga),
        remedy=(
            say("Switch cards that can be switched to compute mode: as class 0302 they claim no legacy resources."),
            say("Prefer compute cards (3D controller) for high counts, or spread the cards over two machines."),
        ),
        next_test=(
            NextTest(
                do=say("Take VGA-class cards out until fewer than ten are left, and boot."),
                outcomes=(
                    Reading(
                        seen=say("All that are left are seen and have their addresses"),
                        means=say("Their number is the limit of this board."),
                    ),
                    Reading(
                        seen=say("One is still missing or has no address"),
                        means=say("The number is not the cause; see bar-unassigned."),
                    ),
                ),
            ),
        ),
        confidence="possible",
    )


def _vga_class(machine: Machine) -> list[Gpu]:
    classes = {function.address: function.class_id for function in machine.pci or ()}
    return [gpu for gpu in machine.gpus or () if classes.get(gpu.address, 0) >> 8 == 0x0300]
