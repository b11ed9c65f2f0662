"""A memory BAR of a card got no address.

What it means
A card shows its memory to the processor through windows called BARs (base address registers).
Firmware and kernel found no room for at least one of them, so the driver cannot talk to the card:
lspci lists it, nvidia-smi does not. Nothing is broken.

How we know
PCI shows a memory BAR without an address; or the driver said that BAR1 is 0M; or the last word of
the kernel about this BAR is that there was no space. What the kernel says about the windows of the
bridges and of the root bus above the card is shown as evidence: a root bus without a window above
4 GiB means that Above 4G Decoding is off or without effect. Where the BMC tells the BIOS settings,
they say it outright. Where the firmware kept no size, that of the card comes from the catalog.

Why it matters
Cards with large BARs (K80, M40 24 GB, P40, P100, V100, A100 and later: 16 GiB and more for one
card) need room above 4 GiB. Many boards ship with that switched off, and often it is the second or
the fourth card that no longer finds a place.

What to do
First boot in UEFI mode only and turn CSM (legacy option ROMs) off: on many boards the next switch
has no effect before. Then enable Above 4G Decoding. If it is on, enlarge the window for 64-bit
MMIO until it holds the sum of all BARs, or take cards out until the rest fits. Look again after a
power cut: some boards forget these settings. Where the window of the root bus is large enough and
the card got no address all the same, let the kernel assign anew for one boot with pci=realloc: it
cures some machines and breaks others. Newer firmware has removed the switch from some boards, so do
not update blindly. An ARM board has none of these switches: there the device tree sets the window. No
lock ties a card to a maker's servers: firmware that can map it will.

When it is wrong
A BAR1 of 256 MiB is normal for a GeForce card, and messages about I/O ranges (BAR 13 of a bridge,
"io size") or expansion ROMs (BAR 6) are harmless: none of these is reported. A card that no longer
answers on the bus may look the same; see gpu-fell-off-bus. Causes that can be shown have findings
of their own, which then stand in place of this one: vm-mmio-window-too-small, where the window is
the hypervisor's, address-space-too-small and bus-resources-exhausted.

Sources
https://github.com/xCuri0/ReBarUEFI/issues/329 (BAR1 is 0M although the switch is on)
https://github.com/miyconst/Mi899/issues/39 (the switch works only with CSM off)
https://github.com/xCuri0/ReBarUEFI/issues/95 (a root bus without a window above 4 GiB)
https://github.com/NVIDIA/open-gpu-kernel-modules/issues/510 (bridge window refused, card works)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Machine
from gpucheck.findings import Evidence, Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.rules._addresses import (
    FOUR_GIB,
    Lost,
    Room,
    is_arm,
    legacy_boot,
    lost,
    on_the_same_root,
    room,
    room_evidence,
    rounded,
    told,
    wanted,
)
from gpucheck.rules._shared import label, size
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()

_MMIO_SWITCHES = ("above4g", "4gdecod", "pci64bit", "64bitresource")
"""What the name of the BIOS setting holds, blanks and signs aside: MmioAbove4Gb, Above4GDecoding,
DevicesandIOPorts_PCI64BitResource."""
_OFF = frozenset({"disabled", "disable", "off", "0", "no", "false"})


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
    """One finding per card, or per device that only the kernel log knows; none where the cause is told."""
    cards = lost(machine, view)
    explained = told(view)
    for card in cards:
        if card.address not in explained:
            yield _finding(machine, view, card, cards)
    if not cards and _no_room_for_another(machine, view):
        yield _next_card(machine, view)


def _finding(machine: Machine, view: View, card: Lost, cards: tuple[Lost, ...]) -> Finding:
    given = room(machine, card.address)
    need = wanted(on_the_same_root(machine, card.address), cards)
    remedy, sources = _remedy(machine, view, given, need)
    return finding(
        "bar-unassigned",
        card.severity,
        card.address,
        _message(card, given, need, _off(machine)),
        evidence=(
            *card.evidence,
            *_switch_evidence(machine),
            *room_evidence(machine, given),
            *legacy_boot(machine),
        ),
        remedy=remedy,
        next_test=_tests(machine, given),
        confidence=card.confidence,
        sources=sources,
    )


def _switches(machine: Machine) -> dict[str, str]:
    """BIOS settings for addresses above 4 GiB, as the BMC tells them."""
    return {
        name: value
        for name, value in (machine.firmware_settings or {}).items()
        if any(word in "".join(filter(str.isalnum, name)).lower() for word in _MMIO_SWITCHES)
    }


def _off(machine: Machine) -> list[str]:
    """Names of those that are off."""
    return [name for name, value in _switches(machine).items() if value.strip().lower() in _OFF]


def _switch_evidence(machine: Machine) -> tuple[Evidence, ...]:
    source = say("BIOS settings, from the BMC")
    return tuple(Evidence(source=source, text=f"{name}={value}") for name, value in _switches(machine).items())


def _message(card: Lost, given: Room, need: int, off: list[str]) -> str:
    if card.gpu is None:
        if card.address == "machine":
            return say("The driver met a card with a memory BAR without an address; which card is not known.")
        if card.confidence == "possible":
            return say(
                "The device at {address}, which looks like a GPU, has a memory BAR without an address.",
                address=card.address,
            )
        return say("The GPU at {address} has a memory BAR without an address.", address=card.address)
    if not card.largest:
        if given.above_4g == 0:
            return say(
                "{card} has a memory BAR without an address, and its root bus has no memory window above 4 GiB.",
                card=label(card.gpu),
            )
        return say("{card} has a memory BAR without an address.", card=label(card.gpu))
    if off:
        return say(
            "{card} has a memory BAR of {size} without an address, so its driver cannot use it: {setting} is "
            "switched off in the firmware setup.",
            card=label(card.gpu),
            size=size(card.largest),
            setting=off[0],
        )
    if given.above_4g == 0:
        return say(
            "{card} has a memory BAR of {size} without an address, so its driver cannot use it: its root bus has no "
            "memory window above 4 GiB.",
            card=label(card.gpu),
            size=size(card.largest),
        )
    if given.above_4g is not None and need > given.above_4g:
        return say(
            "{card} has a memory BAR of {size} without an address, so its driver cannot use it: the cards on its "
            "root bus need {need} above 4 GiB, and the window there holds {room}.",
            card=label(card.gpu),
            size=size(card.largest),
            need=size(need),
            room=rounded(given.above_4g),
        )
    return say(
        "{card} has a memory BAR of {size} without an address, so its driver cannot use it.",
        card=label(card.gpu),
        size=size(card.largest),
    )


def _no_room_for_another(machine: Machine, view: View) -> bool:
    """Cards are missing from PCI, and a machine booted in legacy mode has no window above 4 GiB."""
    if view.expected is None or not machine.gpus or len(machine.gpus) >= view.expected.n:
        return False
    if machine.cpu is not None and machine.cpu.hypervisor:
        return False
    return bool(legacy_boot(machine)) and room(machine, "machine").above_4g == 0


def _next_card(machine: Machine, view: View) -> Finding:
    """A boot that holds only what fits below 4 GiB: the cards that are missing may have stopped the last one."""
    given = room(machine, "machine")
    remedy, sources = _remedy(machine, view, given, 0)
    return finding(
        "bar-unassigned",
        "warning",
        "machine",
        say(
            "The machine was booted in legacy mode and has no memory window above 4 GiB: one more card may find no "
            "address, and then the machine does not start at all."
        ),
        evidence=(*_switch_evidence(machine), *room_evidence(machine, given), *legacy_boot(machine)),
        remedy=remedy,
        next_test=(
            NextTest(
                do=say("Fit the missing card, switch the machine on and read the code on its display."),
                outcomes=(
                    Reading(
                        seen=say("It stops with d4 (AMI firmware: out of PCI resources)"),
                        means=say("There is no address for the card: Above 4G Decoding is off or without effect."),
                    ),
                    Reading(
                        seen=say("It starts without the card"),
                        means=say("The slot, riser or power lead of the card, or the card itself."),
                    ),
                ),
            ),
        ),
        confidence="possible",
        sources=sources,
    )


def _remedy(machine: Machine, view: View, given: Room, need: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Steps in the order to try, and titles of what they rest on."""
    if is_arm(machine):
        return _arm_steps(), ()
    above_4g, sources = _menu(view, "above-4g")
    window, window_sources = _menu(view, "mmio-base", "mmio-size")
    switch = [
        say("In the firmware setup, boot in UEFI mode only and turn CSM (legacy option ROMs) off."),
        *_switch_on(machine, above_4g),
    ]
    window = window or [
        say(
            "Enlarge the 64-bit MMIO window in the firmware setup (such as MMIO High Size) until it holds the "
            "sum of all BARs."
        )
    ]
    anew = say(
        "The root bus has room enough, so let the kernel assign anew: boot once with pci=realloc on the kernel "
        "command line, and keep it only if every device still works."
    )
    remedy = [
        *([] if given.above_4g else switch),
        *([anew] if _has_room(given, need) and not _realloc(machine) else []),
        *window,
        say("If there is no such setting, take cards out until the rest finds room."),
    ]
    return tuple(remedy), tuple(dict.fromkeys(sources + window_sources))


def _arm_steps() -> tuple[str, ...]:
    return (
        say(
            "On an ARM board that boots with a device tree, its PCIe node (ranges) sets the window for memory BARs: "
            "use a newer kernel or device tree with a larger one, or enlarge it there."
        ),
        say("On an ARM server with UEFI, look for the size of the PCIe memory window in the firmware setup."),
        say("If there is none, use a card with smaller BARs."),
    )


def _switch_on(machine: Machine, by_menu: list[str]) -> list[str]:
    """The step that switches addresses above 4 GiB on; none where the BMC says that they are."""
    off = _off(machine)
    if off:
        return by_menu or [say("Set {setting} to Enabled in the firmware setup.", setting=name) for name in off]
    if _switches(machine):
        return []
    return by_menu or [say("Then enable Above 4G Decoding (also called Memory Mapped I/O above 4 GB).")]


def _has_room(given: Room, need: int) -> bool:
    # Small BARs share the window: what large ones fill to the last byte is too small.
    return given.above_4g is not None and FOUR_GIB <= need < given.above_4g


def _realloc(machine: Machine) -> bool:
    """The kernel was started with ``pci=realloc``."""
    line = machine.driver.kernel_command_line if machine.driver else None
    options = [word.removeprefix("pci=") for word in (line or "").split() if word.startswith("pci=")]
    return any(option in ("realloc", "realloc=on") for word in options for option in word.split(","))


def _tests(machine: Machine, given: Room) -> tuple[NextTest, ...]:
    if _off(machine) or is_arm(machine):
        return ()
    unknown = given.above_4g is None
    return (
        *([_windows_test()] if unknown else []),
        *([_without_realloc_test()] if _realloc(machine) else [_realloc_test()] if unknown else []),
        _alone_test(),
    )


def _realloc_test() -> NextTest:
    return NextTest(
        do=say("Boot once with pci=realloc on the kernel command line (for one boot, in the boot menu)."),
        outcomes=(
            Reading(
                seen=say("The card gets all its BARs"),
                means=say("The root bus has room; the firmware made the windows of the bridges too small."),
            ),
            Reading(
                seen=say("Nothing changes, or another device fails"),
                means=say("Leave the option out again: the room is missing in the firmware's window."),
            ),
        ),
    )


def _without_realloc_test() -> NextTest:
    return NextTest(
        do=say("Boot once without pci=realloc: it can also take from a card the address that firmware gave it."),
        outcomes=(
            Reading(seen=say("The card gets all its BARs"), means=say("The option is the cause: leave it out.")),
            Reading(seen=say("Its BAR still has no address"), means=say("The firmware gave it none either.")),
        ),
    )


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
