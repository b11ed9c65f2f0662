"""A card stopped answering on the PCI bus.

What it means
The card was there and then did not answer any more: it lost power or contact, or hung. The driver
cannot bring it back.

How we know
Its configuration space reads all ones; or the kernel log holds Xid 79 or one of the spellings of
"fallen off the bus" (at driver start there is no Xid, and the message is spread over three lines).
NVML's answer that the GPU is lost is a further witness; alone it is nvml-gpu-lost.

Why it matters
A training that uses the card ends or hangs, and calls to the driver may block. Often the card comes
back after a reboot and falls again under load.

What to do
NVIDIA's own order of the usual causes: heat, too little power, an old system BIOS. Watch the
temperature; seat the card and its power leads again, the full number of them, each on its own cable
from the supply; update the system BIOS. Holding the clocks low is the experiment that tells power from
the rest. After these come poor contact, the riser, and the card itself.

When it is wrong
A sleeping laptop card (D3cold) reads all ones too. The kernel says so since 5.11, but it says the same of
some cards that are gone: such a card is then unchecked. lspci never tells. If every card fails at
driver start under the open kernel modules and the cards are older than Turing (V100, P40, P100, M40,
K80), the module is the wrong one, not the cards: that is open-module-unsupported, and nothing is
claimed here. A card that answers again is reported as a warning.

Sources
https://github.com/NVIDIA/open-gpu-kernel-modules/issues/507 (order of causes, locked clocks)
https://github.com/NVIDIA/NVSentinel/issues/155 (the message without an Xid)
https://github.com/leptonai/gpud/pull/1209 (the message on several lines)
https://github.com/pciutils/pciutils/pull/91 (configuration space of ones)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpucheck.facts import Gpu, Machine, pci_address
from gpucheck.findings import Evidence, Finding, NextTest, Reading, finding
from gpucheck.nvml_codes import GPU_IS_LOST
from gpucheck.rules import View
from gpucheck.rules._generations import before_turing
from gpucheck.rules._shared import ADDRESS, address_near, label, log_evidence, log_lines, nvidia_on_pci, pci_source
from gpucheck.rules.open_module_unsupported import flavour
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()

_XID_79 = rf"Xid \((?:PCI:)?({ADDRESS})\):? 79\b"
OF_NVML = frozenset({"nvml", "nameless"})
"""Kinds of signs that NVML gives."""


class Sign(NamedTuple):
    """One thing that says that a card is gone."""

    kind: str
    """``dead``, ``xid``, ``probe`` (at driver start), ``text``, ``nvml``, or ``nameless``: NVML without an address."""
    evidence: Evidence


def signs(machine: Machine) -> dict[str, list[Sign]]:
    """Address, or ``machine`` where none could be read, to what says that the card is gone."""
    found: dict[str, list[Sign]] = {}
    for gpu in machine.gpus or ():
        if gpu.config_dead:
            text = say("Configuration space reads all ones")
            found.setdefault(gpu.address, []).append(Sign("dead", Evidence(source=pci_source(gpu.address), text=text)))
        for call, code in gpu.nvml.errors.items() if gpu.nvml else ():
            if code == GPU_IS_LOST:
                text = say("{address}: error 15, GPU is lost", address=gpu.address)
                found.setdefault(gpu.address, []).append(Sign("nvml", Evidence(source=call, text=text)))
                break  # one is enough: every call fails on a lost card
    for address, sign in _nameless(machine):
        found.setdefault(address, []).append(sign)
    if machine.nvml is not None and machine.nvml.code == GPU_IS_LOST:
        call = machine.nvml.call or "NVML"
        text = machine.nvml.message or say("Error 15, GPU is lost")
        found.setdefault("machine", []).append(Sign("nvml", Evidence(source=call, text=text)))
    for address, sign in _log_signs(machine):
        found.setdefault(address, []).append(sign)
    if len(found) > 1:
        found.pop("machine", None)  # the cards that are known by address say more
    # What NVML alone says is a finding of its own (nvml-gpu-lost): here it is a further witness.
    return {address: heard for address, heard in found.items() if not {sign.kind for sign in heard} <= OF_NVML}


def _nameless(machine: Machine) -> Iterator[tuple[str, Sign]]:
    """Cards that NVML counts and calls lost before it tells their address.

    One such entry, and one card on PCI that NVML does not list: most likely they are the same.
    """
    nameless = [gpu for gpu in (machine.nvml.gpus if machine.nvml else None) or () if gpu.address is None]
    unlisted = [gpu.address for gpu in nvidia_on_pci(machine) if gpu.nvml is None]
    address = unlisted[0] if len(nameless) == len(unlisted) == 1 else "machine"
    for gpu in nameless:
        call = next((call for call, code in gpu.errors.items() if code == GPU_IS_LOST), None)
        if call is not None:
            text = say("device {index}: error 15, GPU is lost", index=gpu.index)
            yield address, Sign("nameless", Evidence(source=call, text=text))


def _log_signs(machine: Machine) -> Iterator[tuple[str, Sign]]:
    log = machine.kernel_log
    if log is None:
        return
    for number, line in log_lines(machine, "Xid", "fallen off the bus"):
        evidence = log_evidence(log, line)
        xid = re.search(_XID_79, line)
        if xid is not None:
            yield pci_address(xid[1]) or "machine", Sign("xid", evidence)
        elif "fallen off the bus" in line and re.search(r"NVRM|nvidia|amdgpu|GPU", line):
            # Other drivers write the same of their devices.
            kind = "probe" if "not responding" in line else "text"
            yield address_near(log, number, before=3, after=0) or "machine", Sign(kind, evidence)


def lacks(machine: Machine) -> Iterator[str]:
    """Each of the three witnesses that was not heard."""
    if machine.gpus is None:
        yield "gpus"
    for gpu in machine.gpus or ():
        if gpu.on_pci and gpu.config_dead is None:
            yield f"gpus.{gpu.address}.config_dead"
    if machine.kernel_log is None:
        yield "kernel_log"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per card; a card that is no longer on PCI keeps its address from the log."""
    found = signs(machine)
    gpus = {gpu.address: gpu for gpu in machine.gpus or ()}
    if wrong_module(machine, found):
        return
    for address, heard in found.items():
        gpu = gpus.get(address)
        evidence = list(dict.fromkeys(sign.evidence for sign in heard))
        again = gpu is not None and answers_again(gpu)
        # Nobody says which card it was, and every card that is known answers.
        of_log = all(sign.kind in ("xid", "probe", "text") for sign in heard)
        past = address == "machine" and of_log and bool(gpus) and all(map(answers_again, gpus.values()))
        if gpu is not None and again:
            message = say("{card} fell off the bus earlier in this boot and answers again.", card=label(gpu))
        elif gpu is not None:
            message = say("{card} has fallen off the bus: it no longer answers.", card=label(gpu))
        elif address == "machine":
            message = say("A GPU has fallen off the bus; which one is not known.")
        else:
            message = say("The GPU at {address} has fallen off the bus.", address=address)
        yield finding(
            "gpu-fell-off-bus",
            "warning" if again or past else "error",
            address,
            message,
            # A driver repeats itself: the first signs and the last say it all.
            evidence=tuple(dict.fromkeys((*evidence[:2], evidence[-1]))),
            remedy=_remedy(),
            next_test=_tests(),
        )


def answers_again(gpu: Gpu) -> bool:
    """The card works now, whatever the log says of the past."""
    return gpu.config_dead is False and gpu.nvml is not None and GPU_IS_LOST not in gpu.nvml.errors.values()


def wrong_module(machine: Machine, found: dict[str, list[Sign]]) -> bool:
    """Whether the open kernel modules on cards before Turing explain all of it.

    That takes: every NVIDIA card is hit, each at driver start only, the open flavour is loaded (or
    not known), and no card is of a generation that it drives.
    """
    if not found or any(sign.kind != "probe" for heard in found.values() for sign in heard):
        return False
    if flavour(machine) != "open":
        return False
    gpus = {gpu.address: gpu for gpu in machine.gpus or () if gpu.vendor == "nvidia"}
    ids = [gpu.pci_id for gpu in gpus.values()]
    for heard in found.values():
        ids += [match[1] for sign in heard if (match := re.search(r"PCI ID: (10de:\w{4})", sign.evidence.text))]
    old = {before_turing(pci_id) for pci_id in ids} - {None}
    return set(gpus) <= set(found) and old == {True}


def _remedy() -> tuple[str, ...]:
    """The three causes that NVIDIA names, in its order; then what is left."""
    return (
        say("Heat: watch the card under load (nvidia-smi dmon -s pt), clean its heat sink and see to its air."),
        say(
            "Power: shut down, take the mains off for half a minute, seat the card and each of its power leads again, "
            "every lead on its own cable; a weak or old power supply counts too."
        ),
        say("System BIOS: update it, an old one is the third usual cause."),
        say("Then contact: try it without the riser or extension cable, or in another slot."),
    )


def _tests() -> tuple[NextTest, ...]:
    return (
        NextTest(
            do=say("Hold the clocks low and repeat the load: sudo nvidia-smi -lgc 300,1500"),
            outcomes=(
                Reading(seen=say("The card stays"), means=say("It lacks power: leads, supply, or peaks of load.")),
                Reading(
                    seen=say("It falls off all the same"),
                    means=say("Heat, the system BIOS, contact, riser or the card itself."),
                ),
            ),
        ),
        NextTest(
            do=say("Swap it with a card that works."),
            outcomes=(
                Reading(seen=say("The fault stays with the slot"), means=say("Slot, riser or power lead.")),
                Reading(seen=say("The fault moves with the card"), means=say("The card is defective.")),
            ),
        ),
    )
