"""A link trained narrower than card and slot allow.

What it means
Card and slot agree on a number of PCIe lanes when they start. They agreed on fewer than both can
do: some lanes have no contact.

How we know
The width in use is below the smaller of what the card and the port above it advertise. Where the
port was not read, the lanes of the slot in the catalog stand in. Without either nothing is claimed:
the maximum that nvidia-smi shows is often the card's own and says nothing of the slot.

Why it matters
Half of the lanes is half of the rate between host and card. It is often the first sign of a bad
riser, dirty contacts or a card that hangs in its slot, and cards that fall off the bus later.

What to do
Seat the card again, clean its contacts, try without the riser. Look in the firmware setup whether
the slot is set to be split (bifurcation), or shares its lanes with another slot that is now in use.

When it is wrong
Cards with eight lanes (A2, RTX 4060 Ti, RTX 2000 Ada) and slots with eight lanes are right at x8
and not reported. The speed per lane falls when a card is idle, so it is not judged here. The number of
lanes may fall as well, NVIDIA says, while a card is not in use: look again under load. In a virtual
machine the port is not the real one.

Sources
https://git.zx2c4.com/linux-dev/commit/?id=56c1af4606f04048e3ae9ab2027a708b9684ff37 (the files)
https://github.com/scitix/sichek/pull/49 (an idle link is no fault)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Gpu, Machine
from gpucheck.findings import Evidence, Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.rules._links import End, end_of, is_virtual, lanes
from gpucheck.rules._shared import label, pci_source
from gpucheck.text import say

NEEDS: tuple[str, ...] = ("gpus",)


def lacks(machine: Machine) -> Iterator[str]:
    """Links of which an end was not read."""
    for gpu in machine.gpus or ():
        if not gpu.on_pci or gpu.config_dead:
            continue
        end = end_of(machine, gpu)
        if lanes(end.card.width) is None or lanes(end.card.max_width) is None:
            yield f"gpus.{gpu.address}.link"
        elif is_virtual(machine) or (_port_lanes(end) is None and _short_of_own(end)):
            yield f"gpus.{gpu.address}.port_link"


def _short_of_own(end: End) -> bool:
    return (lanes(end.card.width) or 0) < (lanes(end.card.max_width) or 0)


def _port_lanes(end: End) -> int | None:
    """Lanes of the port; None where it was not read."""
    return lanes(end.port.max_width) if end.port is not None else None


def _slot_lanes(view: View, gpu: Gpu) -> int | None:
    """Lanes of the slot in the catalog, where all its options agree."""
    rows = view.server.slots if view.server and gpu.slot else ()
    wired = {row.lanes for row in rows if gpu.slot in row.designations}
    return wired.pop() if len(wired) == 1 else None


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per link."""
    if is_virtual(machine):
        return
    seen: set[str] = set()
    for gpu in machine.gpus or ():
        end = end_of(machine, gpu)
        width, card = lanes(end.card.width), lanes(end.card.max_width)
        port = _port_lanes(end) or _slot_lanes(view, gpu)
        if not gpu.on_pci or gpu.config_dead or end.address in seen:
            continue
        seen.add(end.address)
        if width is None or card is None or port is None or width >= min(card, port):
            continue
        yield finding(
            "link-width-reduced",
            "warning",
            gpu.address,
            say(
                "{card} runs with x{width} where card and slot allow x{possible}.",
                card=label(gpu),
                width=width,
                possible=min(card, port),
            ),
            evidence=(
                Evidence(
                    source=pci_source(end.address),
                    text=say("Link width x{width}, card x{card}, port x{port}", width=width, card=card, port=port),
                ),
            ),
            remedy=(
                say("Shut down, seat the card again and clean its contacts."),
                say("Try it without the riser or extension cable."),
                say(
                    "Look in the firmware setup whether the slot is split (bifurcation) or shares lanes with a slot "
                    "that is in use."
                ),
            ),
            next_test=(
                NextTest(
                    do=say("Look at the width again while the card works."),
                    outcomes=(
                        Reading(seen=say("All lanes are in use then"), means=say("Power saving: the link is sound.")),
                        Reading(seen=say("It stays narrow"), means=say("Contact, riser, slot or a setting.")),
                    ),
                ),
                NextTest(
                    do=say("Swap the card with one that trains at full width."),
                    outcomes=(
                        Reading(seen=say("The narrow link stays with the slot"), means=say("Slot, riser or setting.")),
                        Reading(seen=say("It moves with the card"), means=say("The card's contacts or the card.")),
                    ),
                ),
            ),
        )
