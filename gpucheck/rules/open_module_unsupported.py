"""NVIDIA's open kernel modules do not drive this card.

What it means
NVIDIA builds its kernel modules in two flavours of one version. The open flavour needs a processor on
the card (the GSP) that came with Turing: T4, Quadro RTX and GeForce 20 are the oldest cards that it
drives. Its first branches (525 is one) also left out most cards that are not of the data centre.

How we know
The module says so; or the open flavour is loaded, the card's PCI id is older than Turing, and NVML does
not list it.

Why it matters
The card stays on PCI and nvidia-smi does not show it, or shows only the newer card beside it. At driver
start the module may also say that such a card fell off the bus; it did not.

What to do
Install the proprietary flavour of the same branch (580 is the last for Maxwell, Pascal and Volta, 470 for
Kepler) and reboot. Packages of the open flavour mostly have "open" in their name.

When it is wrong
Blackwell cards run under the open flavour only: a Pascal or Volta card cannot work beside one.

Sources
https://github.com/NVIDIA/open-gpu-kernel-modules (supported cards)
https://github.com/zzzhouuu/truenas-nvidia-drivers/issues/20 (a Tesla P4 under the open modules)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpucheck.facts import Gpu, Machine, pci_address
from gpucheck.findings import Confidence, Evidence, Finding, finding
from gpucheck.rules import View
from gpucheck.rules._generations import before_turing, device_id, last_branch
from gpucheck.rules._shared import (
    ADDRESS,
    BELOW_THE_DRIVER,
    addresses_in,
    driver_evidence,
    explained,
    label,
    log_evidence,
    log_lines,
    nvidia_on_pci,
)
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()

FIRST_BLACKWELL_ID = 0x2900
"""PCI device ids of Blackwell and later begin here (B100 and B200 2900 on, GeForce 50 2b80 on)."""

_NEEDS_GSP = "not supported by open nvidia.ko"
_DATA_CENTRE_ONLY = "Open nvidia.ko is only ready for use on Data Center GPUs"
_AT_START = rf"The NVIDIA GPU ({ADDRESS}) \(PCI ID: (10de:[0-9a-f]{{4}})\)"


def flavour(machine: Machine) -> str | None:
    """Flavour of the loaded module, from the driver itself or from what it said at its start."""
    if machine.driver is not None and machine.driver.nvidia_flavour is not None:
        return machine.driver.nvidia_flavour
    told = [line for _, line in log_lines(machine, "NVRM: loading NVIDIA UNIX")]
    if not told:
        return None
    return "open" if "Open Kernel Module" in told[-1] else "proprietary"


def lacks(machine: Machine) -> Iterator[str]:
    """The flavour, where an old card has no NVML entry."""
    if any(gpu.nvml is None and before_turing(gpu.pci_id) for gpu in nvidia_on_pci(machine)):
        loaded = machine.driver.loaded_modules if machine.driver is not None else None
        if flavour(machine) is None and (loaded is None or "nvidia" in loaded):
            yield "driver.nvidia_flavour"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per card; a card that only the log knows keeps its address from there."""
    kind = flavour(machine)
    if kind == "proprietary":
        return
    told = _told(machine)
    below = explained(view.found, machine, BELOW_THE_DRIVER)
    known = {gpu.address: gpu for gpu in machine.gpus or ()}
    old = [
        gpu.address
        for gpu in nvidia_on_pci(machine)
        if kind == "open" and gpu.nvml is None and gpu.driver in {None, "nvidia"} and before_turing(gpu.pci_id)
    ]
    for address in dict.fromkeys((*told, *old)):
        gpu = known.get(address)
        if address not in below and (gpu is None or gpu.nvml is None):
            confidence: Confidence = "certain" if address in told or kind == "open" else "likely"
            yield _found(machine, view, address, gpu, told.get(address, []), confidence)


def _told(machine: Machine) -> dict[str, list[str]]:
    """Address to what the module said of that card."""
    found: dict[str, list[str]] = {}
    unlisted = [gpu.address for gpu in nvidia_on_pci(machine) if gpu.nvml is None]
    for _, line in log_lines(machine, _NEEDS_GSP, _DATA_CENTRE_ONLY, "fallen off the bus"):
        if _NEEDS_GSP in line:
            addresses = addresses_in(line)[:1] or unlisted[:1]
        elif _DATA_CENTRE_ONLY in line:
            addresses = unlisted if len(unlisted) == 1 else []
        else:
            # At the start of the driver the open modules say it of every card that is too old.
            start = re.search(_AT_START, line) if "not responding" in line and flavour(machine) == "open" else None
            addresses = [pci_address(start[1]) or ""] if start and before_turing(start[2]) else []
        for address in addresses:
            found.setdefault(address, []).append(line)
    return found


def _found(
    machine: Machine, view: View, address: str, gpu: Gpu | None, lines: list[str], confidence: Confidence
) -> Finding:
    card = label(gpu) if gpu is not None else say("The GPU at {address}", address=address)
    version = machine.driver.nvidia_version if machine.driver is not None else None
    branch = last_branch(gpu, view) if gpu is not None else None
    if branch is not None:
        first = say("Install the proprietary flavour of branch {branch}, the last for this card.", branch=branch)
    else:
        first = say("Install the proprietary flavour of the driver, in a branch that drives the card.")
    remedy = [first, say("Reboot. Packages of the open flavour mostly have open in their name: remove them first.")]
    newer = [other for other in nvidia_on_pci(machine) if _is_blackwell(other)]
    if newer:
        remedy.append(say("{card} needs the open flavour: the two cannot work in one machine.", card=label(newer[0])))
    loaded = (
        Evidence(source="/proc/driver/nvidia/version", text=say("Open Kernel Module {version}", version=version)),
    )
    return finding(
        "open-module-unsupported",
        "error",
        address,
        say("NVIDIA's open kernel modules are loaded, and they do not drive {card}.", card=card),
        evidence=(
            *(log_evidence(machine.kernel_log, line) for line in lines[-2:] if machine.kernel_log is not None),
            *(loaded if version is not None and flavour(machine) == "open" else ()),
            *((driver_evidence(gpu),) if gpu is not None else ()),
        ),
        remedy=tuple(remedy),
        confidence=confidence,
    )


def _is_blackwell(gpu: Gpu) -> bool:
    return (device_id(gpu.pci_id) or 0) >= FIRST_BLACKWELL_ID
