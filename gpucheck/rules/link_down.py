"""Something is plugged in, but its link is down.

What it means
The slot notices a card, but card and slot could not agree on how to talk. The kernel sees nothing
there: no device, no address, no error of a driver.

How we know
The port above the slot says that something is present and that its link is not active, although the
port may use it and gives it power; or the kernel's hot-plug driver logs a card without a link. A port
behind which a device is enumerated is not reported, nor a card that was taken out.

Why it matters
A card that should be there is missing, and no driver or setting of the operating system brings it
back.

What to do
Set the slot to a lower PCIe generation in the firmware setup: a poor riser often works at Gen2 or
Gen1. Seat the card again and try it without the riser or cable, then check its power leads.

When it is wrong
What is plugged in need not be a GPU: drives have such slots too. Some boards report a card in every
slot. The registers are readable by root only, and ports without a slot status say nothing.

Sources
https://github.com/Cyclenerd/ethereum_nvidia_miner/issues/40 (a riser that trains at Gen2 only)
https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/drivers/pci/hotplug/pciehp_hpc.c (messages)
https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/drivers/pci/quirks.c (retraining)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpucheck import topology
from gpucheck.facts import Machine, PciFunction, pci_address
from gpucheck.findings import Evidence, Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.rules._links import below, is_virtual, slot_behind
from gpucheck.rules._shared import ADDRESS, log_evidence, log_lines, pci_source
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()

_HOTPLUG = rf"({ADDRESS})(?::pcie\d+)?: (?:pciehp: )?(?:Slot\([^)]*\): )?"
_EVENT = (
    _HOTPLUG + r"(?:(?P<gone>Card not present|Link Up)"
    r"|(?P<failed>Card present|Link Down$|No link$|No device found|Cannot train link|[Ll]ink [Tt]raining [Ee]rror"
    r"|Failed to check link status|retraining failed))"
)


def _logged(machine: Machine) -> dict[str, list[Evidence]]:
    """Ports whose last word in the log is that there is no link, with what was said since the last
    time that all was well or nothing was plugged in."""
    found: dict[str, list[Evidence]] = {}
    log = machine.kernel_log
    if log is None:
        return found
    for _, line in log_lines(machine, "pciehp", "Slot(", "retraining failed"):
        event = re.search(_EVENT, line)
        address = pci_address(event[1]) if event else None
        if event is None or address is None:
            continue
        if event["gone"]:
            found.pop(address, None)
        else:
            found.setdefault(address, []).append(log_evidence(log, line))
    return found


def _read(machine: Machine) -> dict[str, list[Evidence]]:
    """Ports that say that something is present without a link."""
    return {
        function.address: [
            Evidence(source=pci_source(function.address), text=say("Slot status: present; link status: not active"))
        ]
        for function in machine.pci or ()
        if (port := function.port) is not None
        and port.presence
        and not (port.link_active or port.link_disabled or port.power_off)
    }


def lacks(machine: Machine) -> Iterator[str]:
    """The kernel log, and the ports where none of them could be read."""
    if machine.kernel_log is None:
        yield "kernel_log"
    if machine.pci is None:
        yield "pci"
    elif (bridges := [f for f in machine.pci if f.is_bridge]) and not any(bridge.port for bridge in bridges):
        yield "pci.bridges"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per port."""
    if is_virtual(machine):
        return
    tree = topology.tree(machine.pci or ())
    occupied = below(machine).occupied
    found = _read(machine)
    for address, said in _logged(machine).items():
        if machine.pci is None or address in tree:
            found.setdefault(address, []).extend(said)
    for address, evidence in found.items():
        if address not in occupied:
            yield _finding(machine, address, tree.get(address), evidence)


def _finding(machine: Machine, address: str, port: PciFunction | None, evidence: list[Evidence]) -> Finding:
    slot = slot_behind(machine, port) if port is not None else None
    if slot is not None:
        message = say("Something is plugged into {slot} (port {port}), but its link is down.", slot=slot, port=address)
    else:
        message = say("Something is plugged in behind port {port}, but its link is down.", port=address)
    return finding(
        "link-down",
        "warning",
        address,
        message,
        evidence=tuple(dict.fromkeys((*evidence[:3], evidence[-1]))),
        remedy=(
            say("Set the slot to a lower PCIe generation (Gen2, then Gen1) in the firmware setup."),
            say("Shut down, seat the card again and try it without the riser or extension cable."),
            say("Check that every power lead of the card is plugged in."),
        ),
        next_test=(
            NextTest(
                do=say("Plug the card straight into a slot in which a card is seen."),
                outcomes=(
                    Reading(seen=say("It is seen"), means=say("The riser, cable or slot is at fault.")),
                    Reading(seen=say("It is not seen"), means=say("The card or its power lead is at fault.")),
                ),
            ),
        ),
        # With the log alone, what became of the card later is not known.
        confidence="likely" if port is not None else "possible",
    )
