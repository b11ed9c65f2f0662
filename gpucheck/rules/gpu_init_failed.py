"""The right driver cannot start the card.

What it means
The kernel module took the card and gave up while bringing it up: the card's own firmware did not
start, its video BIOS could not be read, or it does not get enough power.

How we know
The kernel log holds RmInitAdapter failed with its codes, often with the step that failed before it:
GFW boot not complete and GSP firmware that does not boot (the card's own processors), a video BIOS
that cannot be copied, power cables that are missing.

Why it matters
lspci shows the card, often even with its driver, but nvidia-smi says No devices were found or leaves
it out.

What to do
Begin at the card, not at the driver: take the mains off for half a minute, seat the card and every
one of its power leads again, and try it in another slot or machine. A driver that starts an equal
card is not at fault. Only after that install the driver again, or a newer one.

When it is wrong
A card that works by now had a bad start only, and is reported as a warning. In a virtual machine a
passed-through laptop card often lacks its video BIOS: then the guest needs the ROM file.

Sources
https://github.com/NVIDIA/open-gpu-kernel-modules/issues/789 (GFW boot not complete)
https://github.com/NVIDIA/open-gpu-kernel-modules/blob/main/src/nvidia/arch/nvalloc/unix/src/osinit.c
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpucheck.facts import Gpu, Machine
from gpucheck.findings import Confidence, Evidence, Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.rules._shared import (
    BELOW_THE_DRIVER,
    DRIVER_REFUSES,
    LOOK_FURTHER,
    addresses_in,
    explained,
    healthy_twins,
    label,
    log_evidence,
    log_lines,
)
from gpucheck.text import say

NEEDS: tuple[str, ...] = ("kernel_log",)

EXPLAINED = BELOW_THE_DRIVER | DRIVER_REFUSES
"""Findings that say why a card could not be started."""

FAILED = "RmInitAdapter failed!"
_STEPS = (
    ("power", r"does not have the necessary power cables connected"),
    ("open", r"requires use of the NVIDIA open kernel modules"),
    ("vbios", r"Failed to copy vbios to system memory"),
    ("firmware", r"failed to wait for GFW boot complete|GSP-FMC reported an error"),
    ("firmware", r"failed to wait for GFW_BOOT|Cannot initialize GSP firmware"),
)
"""What the driver says of the step that failed, the most telling first."""
_NONE = ("None of the NVIDIA graphics adapters were initialized", "None of the NVIDIA devices were initialized")
_LOADED = ("NVRM: loading NVIDIA",)
"""What a module says that has started; after :data:`_NONE` it was loaded anew, and that is over."""
_TAKEN = "probe routine was not called"
_BEFORE = 40
"""Lines before the failure in which its step is looked for; the driver dumps registers in between."""


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per card that the driver could not start."""
    done = explained(view.found, machine, EXPLAINED)
    known = {gpu.address: gpu for gpu in machine.gpus or ()}
    failures: dict[str, int] = {}
    for number, line in log_lines(machine, FAILED):
        for address in addresses_in(line)[:1]:
            failures[address] = number
    for address, number in failures.items():
        if address not in done:
            yield _found(machine, address, known.get(address), number)
    if machine.pci is None and not failures and not any(f.severity == "error" for f in view.found):
        yield from _none_started(machine)


def _none_started(machine: Machine) -> Iterator[Finding]:
    """The log alone says that no card was started, without a reason and without an address."""
    log = machine.kernel_log
    told = [line for _, line in log_lines(machine, *_NONE, *_LOADED)]
    if log is None or machine.gpus or not told or any(word in told[-1] for word in _LOADED):
        return
    taken = [line for _, line in log_lines(machine, _TAKEN)]
    if taken:
        message = say("The NVIDIA driver started no card: another driver, such as nouveau or nvidiafb, holds it.")
    else:
        message = say("The NVIDIA driver started none of its cards; the log does not say which, nor why.")
    yield finding(
        "gpu-init-failed",
        "error",
        "machine",
        message,
        evidence=tuple(log_evidence(log, line) for line in (*taken[-1:], told[-1])),
        remedy=LOOK_FURTHER,
        confidence="possible",
    )


def _found(machine: Machine, address: str, gpu: Gpu | None, number: int) -> Finding:
    log = machine.kernel_log
    lines = log.lines if log is not None else ()
    kind, step = _step(lines, address, number)
    card = label(gpu) if gpu is not None else say("GPU at {address}", address=address)
    works = gpu is not None and gpu.nvml is not None and not gpu.nvml.errors
    twin = gpu is not None and bool(healthy_twins(machine, gpu))
    message, confidence = _message(kind, card, works)
    options = machine.driver.kernel_command_line if machine.driver is not None else None
    option = re.search(r"\S*NVreg_EnableGpuFirmware=0\S*", options or "")
    evidence = [log_evidence(log, line) for line in (step, lines[number]) if line is not None and log is not None]
    if option is not None and kind == "firmware":
        evidence.append(Evidence(source="/proc/cmdline", text=option[0]))
    return finding(
        "gpu-init-failed",
        "warning" if works else "error",
        address,
        message,
        evidence=tuple(dict.fromkeys(evidence)),
        remedy=tuple(_remedy(kind, option is not None, twin)),
        next_test=_tests() if kind in {"firmware", "other"} else (),
        confidence=confidence,
    )


def _step(lines: tuple[str, ...], address: str, number: int) -> tuple[str, str | None]:
    """Which step failed, and its line: nearest to the failure, of this card or of none that is named."""
    before = lines[max(0, number - _BEFORE) : number + 1]
    for kind, pattern in _STEPS:
        for line in reversed(before):
            if re.search(pattern, line) and (address in addresses_in(line) or not addresses_in(line)):
                return kind, line
    return "other", None


def _message(kind: str, card: str, works: bool) -> tuple[str, Confidence]:
    if works:
        return say("The NVIDIA driver once failed to start {card} in this boot; it works now.", card=card), "certain"
    match kind:
        case "power":
            return say("{card} does not start: its power leads are not all connected.", card=card), "certain"
        case "open":
            template = "{card} does not start: it needs the open flavour of NVIDIA's kernel modules."
            return say(template, card=card), "certain"
        case "vbios":
            return say("{card} does not start: the driver cannot read its video BIOS.", card=card), "likely"
        case "firmware":
            template = (
                "{card} does not start: its own firmware does not come up. Suspect its power leads, its seat and the "
                "card itself before the driver."
            )
            return say(template, card=card), "possible"
    return say("The NVIDIA driver cannot start {card}.", card=card), "possible"


def _remedy(kind: str, option: bool, twin: bool) -> Iterator[str]:
    if kind == "power":
        yield say("Shut down and connect every power socket of the card, each with its own lead from the supply.")
        yield say(
            "Check the kind of plug: Tesla cards with one 8-pin socket mostly take the EPS (CPU) kind, not PCIe 8-pin."
        )
        return
    if kind == "open":
        yield say("Install the open flavour of the driver (packages with open in their name), and reboot.")
        return
    if kind == "vbios":
        yield say("In a virtual machine, give the guest the card's ROM file (romfile= in QEMU), and boot it with UEFI.")
        yield say("On bare metal, update the system's BIOS, and try the card in another slot.")
        return
    if option:
        yield say("Take NVreg_EnableGpuFirmware=0 off the kernel command line: the open modules need that firmware.")
    yield say("Shut down, take the mains off for half a minute and boot again: only that resets the card's processors.")
    yield say("Seat the card and each of its power leads again; every lead on its own cable from the supply.")
    yield say("Try it without the riser, in another slot, or in another machine.")
    if twin:
        yield say("An equal card works under this driver, so leave the driver as it is: suspect the card or its slot.")
    else:
        yield say("Only then install the driver again, or the newest version of its branch.")


def _tests() -> tuple[NextTest, ...]:
    return (
        NextTest(
            do=say("Swap it with a card that works, or try it in another slot with another power lead."),
            outcomes=(
                Reading(seen=say("The fault moves with the card"), means=say("The card is defective.")),
                Reading(seen=say("The fault stays with the slot"), means=say("Slot, riser or power lead.")),
                Reading(seen=say("Both work now"), means=say("It was badly seated or connected.")),
            ),
        ),
    )
