"""The processor's address space cannot hold a card's BAR.

What it means
A processor has a fixed number of physical address bits. Memory lies at the bottom of that space, and
the BARs of cards must find their place above it. Here the rest is smaller than what the cards ask
for, so no setting of the firmware can help.

How we know
From the address bits in /proc/cpuinfo, the end of memory in the firmware's map (the BIOS-e820 lines
of the kernel log, else the amount of memory) and the sizes of all BARs of 4 GiB and more. A BAR of
such a size cannot lie below 4 GiB, and it begins at a multiple of its size. Certain where even the
least sum does not fit; likely where it rests on the memory fitted or on a size from the catalog;
possible where it fits by the sum, but one BAR asks for half of the whole space.

Why it matters
People look for a switch that does not exist. Desktop processors of about 2012 have 36 bits, 64 GiB
in all: a card with a BAR of 32 GiB (M40 24 GB, P40) works there with little memory, if at all.

What to do
Take memory out, until what is left and the BARs fit together; or put the card into a machine with
more address bits (46 on the Xeons of the same years). Several cards: fewer of them.

When it is wrong
A virtual machine has the bits that the hypervisor gives it: there the cause is
vm-mmio-window-too-small. Some cards can be switched to a small BAR (Tesla M60, M6 and M10 in
graphics mode).

Sources
https://github.com/xCuri0/ReBarUEFI/issues/77 (36 bits and 32 GB of memory: impossible)
https://github.com/xCuri0/ReBarUEFI/issues/381 (36 bits: it depends on the amount of memory)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpucheck.facts import Machine
from gpucheck.findings import Confidence, Evidence, Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.rules._addresses import FOUR_GIB, GIB, Lost, lost, rounded, top_of_memory, wanted
from gpucheck.rules._shared import label, log_evidence, size
from gpucheck.text import say

NEEDS: tuple[str, ...] = ("gpus", "cpu")

_BITS = range(32, 53)
"""What x86 and Arm processors have; anything else is a reading error."""


class Space(NamedTuple):
    """Address space of the machine, in bytes."""

    bits: int
    memory_end: int
    """At least; 0 where neither the log nor the amount of memory was read."""
    fitted_end: int
    """Where memory ends if it comes in whole GiB and leaves the hole below 4 GiB free, as it does."""
    evidence: tuple[Evidence, ...]

    @property
    def bytes(self) -> int:
        """All of it."""
        return 1 << self.bits


def lacks(machine: Machine) -> Iterator[str]:
    """The address bits, where there are cards."""
    if machine.gpus and machine.cpu is not None and machine.cpu.physical_address_bits is None:
        yield "cpu.physical_address_bits"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per card that has no address."""
    space = _space(machine)
    if space is None:
        return
    cards = lost(machine, view)
    together = wanted(machine.gpus or (), cards)
    for card in cards:
        if card.gpu is not None and card.largest >= FOUR_GIB:
            confidence = _verdict(space, card, together)
            if confidence is not None:
                yield _finding(space, card, together, confidence)


def _space(machine: Machine) -> Space | None:
    cpu = machine.cpu
    if cpu is None or cpu.hypervisor or cpu.physical_address_bits not in _BITS:
        return None
    bits = cpu.physical_address_bits or 0
    text = say("address sizes: {bits} bits physical", bits=bits)
    evidence: tuple[Evidence, ...] = (Evidence(source="/proc/cpuinfo", text=text),)
    end = top_of_memory(machine.kernel_log)
    if end is not None and machine.kernel_log is not None:
        return Space(bits, end[0], end[0], (*evidence, log_evidence(machine.kernel_log, end[1])))
    memory = machine.memory_bytes or 0
    if memory:
        evidence += (Evidence(source=say("memory"), text=rounded(memory)),)
    return Space(bits, memory, -(-memory // GIB) * GIB + 1, evidence)


def _verdict(space: Space, card: Lost, together: int) -> Confidence | None:
    """How sure it is that the card finds no place; None where there is enough."""
    if together + space.memory_end > space.bytes or card.largest >= space.bytes:
        return "likely" if card.by_catalog or card.confidence != "certain" else "certain"
    if space.memory_end and together + space.fitted_end > space.bytes:
        return "likely"
    return "possible" if card.largest * 2 >= space.bytes else None


def _finding(space: Space, card: Lost, together: int, confidence: Confidence) -> Finding:
    fields = {
        "card": label(card.gpu) if card.gpu is not None else card.address,
        "bits": space.bits,
        "space": size(space.bytes),
        "need": size(together),
        "size": size(card.largest),
    }
    if confidence == "possible":
        message = say(
            "{card} asks for {size}, half of the {space} that the processor's {bits} address bits span: next to the "
            "memory there may be no place for it whatever the firmware says.",
            **fields,
        )
    elif together > card.largest:
        message = say(
            "The cards ask for {need}, {card} for {size} of it, and the processor's {bits} address bits span {space} "
            "with the memory: no setting makes room for all.",
            **fields,
        )
    else:
        message = say(
            "{card} asks for {size}, and the processor's {bits} address bits span {space} with the memory: no "
            "setting makes room for it.",
            **fields,
        )
    left = space.bytes - together
    return finding(
        "address-space-too-small",
        card.severity,
        card.address,
        message,
        evidence=(*card.evidence, *space.evidence),
        remedy=(
            *(
                [
                    say(
                        "Take memory out, down to a few GiB less than {left}, and look whether the card then gets "
                        "its address.",
                        left=size(left),
                    )
                ]
                if left > 4 * GIB
                else []
            ),
            say("Or put the card into a machine whose processor has more address bits, such as a Xeon with 46."),
            *([say("Or use fewer cards.")] if together > card.largest else []),
        ),
        next_test=(_less_memory(),) if confidence != "certain" and left > 4 * GIB else (),
        confidence=confidence,
    )


def _less_memory() -> NextTest:
    return NextTest(
        do=say("Boot once with as little memory as the machine takes (one module)."),
        outcomes=(
            Reading(
                seen=say("The card gets all its BARs"),
                means=say("Memory and card together are too much for the address space."),
            ),
            Reading(
                seen=say("Its BAR still has no address"),
                means=say("The firmware opens no large enough window above 4 GiB at all; see bar-unassigned."),
            ),
        ),
    )
