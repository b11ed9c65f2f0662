"""A driver is there, but none is bound to the card.

What it means
NVIDIA's kernel module is installed or even loaded, yet this card has no driver: the module was not
loaded, or it tried the card and gave up.

How we know
PCI shows no driver for the card, while the module is among the loaded ones or lies in the modules
of the running kernel, and nothing below the driver explains it (a BAR without an address, a card
that fell off the bus, a module that may not load, a driver for other generations).

Why it matters
nvidia-smi does not list the card. With several cards it is often exactly the oldest one: driver
branches drop old generations, and the open kernel modules drive none before Turing.

What to do
Load the module, then read what it says about the card in the kernel log; the lines that name the
card are shown as evidence. "Legacy drivers" names the branch to install. "Not supported by this
release" is to be believed only if no equal card works: with a working twin, see gpu-suspect.

When it is wrong
Somebody may have unbound the card on purpose. A card of AMD or Intel that no driver holds may be
there for the screen alone: that is a warning.

Sources
https://github.com/zzzhouuu/truenas-nvidia-drivers/issues/20 (open modules and a Pascal card)
https://github.com/NVIDIA/aicr/issues/1858 ("not supported" from a defective card)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Gpu, Machine
from gpucheck.findings import Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.rules._shared import (
    BELOW_THE_DRIVER,
    DRIVER_REFUSES,
    addresses_in,
    driver_evidence,
    explained,
    healthy_twins,
    label,
    labels,
    log_evidence,
    log_lines,
    module_evidence,
    module_loaded,
    nvidia_on_pci,
    subject,
    without_driver,
)
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ("gpus", "driver")

ODD_ONE = "gpu-suspect"
LAST_LINES = 4
_MODULES = {"amd": "amdgpu", "intel": "i915"}
"""Drivers of other makers' cards, for all but the oldest and the newest of them."""


def lacks(machine: Machine) -> Iterator[str]:
    """Cards whose driver the source cannot tell, and whether there is a module at all."""
    for gpu in nvidia_on_pci(machine):
        if not gpu.driver_read:
            yield f"gpus.{gpu.address}.driver"
    driver = machine.driver
    if driver is not None and without_driver(machine) and not module_loaded(machine):
        if driver.loaded_modules is None:
            yield "driver.loaded_modules"
        if driver.nvidia_module_installed is None:
            yield "driver.nvidia_module_installed"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding for all cards while the module is not loaded; else one per card."""
    below = explained(view.found, machine, BELOW_THE_DRIVER | DRIVER_REFUSES)
    # Only suspected, the odd one among its twins still needs its driver.
    below |= {f.subject for f in view.found if f.name == ODD_ONE and f.severity == "error"}
    for gpu in machine.gpus or ():
        alone = gpu.on_pci and gpu.driver_read and gpu.driver is None
        if alone and gpu.vendor in _MODULES and gpu.address not in below:
            yield _other_maker(machine, gpu)
    bare = [gpu for gpu in without_driver(machine) if gpu.address not in below]
    driver = machine.driver
    if not bare or driver is None:
        return
    if module_loaded(machine):
        for gpu in bare:
            yield _refused(machine, gpu)
    elif driver.nvidia_module_installed and driver.loaded_modules is not None:
        yield finding(
            "no-driver-bound",
            "error",
            subject(bare),
            say(
                plural(
                    len(bare),
                    "NVIDIA's kernel module is installed but not loaded, so {cards} has no driver.",
                    "NVIDIA's kernel module is installed but not loaded, so {cards} have no driver.",
                ),
                cards=labels(bare),
            ),
            evidence=(*(driver_evidence(gpu) for gpu in bare), *module_evidence(machine)),
            remedy=(say("Load it and read what it says: sudo modprobe nvidia; sudo dmesg | tail"),),
        )


def _other_maker(machine: Machine, gpu: Gpu) -> Finding:
    """A warning: such a card may be there for the screen alone."""
    how = "Load its driver and read what it says: sudo modprobe {module}; sudo dmesg | tail"
    return finding(
        "no-driver-bound",
        "warning",
        gpu.address,
        say("No kernel driver holds {card}.", card=label(gpu)),
        evidence=(driver_evidence(gpu), *module_evidence(machine)),
        remedy=(say(how, module=_MODULES[gpu.vendor]),),
    )


def _refused(machine: Machine, gpu: Gpu) -> Finding:
    log = machine.kernel_log
    lines = [
        line
        for _, line in log_lines(machine, "NVRM", "nvidia")
        if gpu.address in addresses_in(line) or any(gpu.address == f"{address[:-1]}0" for address in addresses_in(line))
    ]
    message = say("{card} has no driver although NVIDIA's module is loaded.", card=label(gpu))
    return finding(
        "no-driver-bound",
        "error",
        gpu.address,
        message,
        evidence=(
            driver_evidence(gpu),
            *module_evidence(machine),
            *(log_evidence(log, line) for line in lines[-LAST_LINES:] if log is not None),
        ),
        remedy=(
            say("Read what the module says about the card: sudo dmesg | grep -i -e nvrm -e nvidia"),
            say(
                "If it names a legacy branch, install that branch; if it is the open flavour and the card is older "
                "than Turing, install the proprietary flavour."
            ),
            say(
                "If it says nothing, bind the card: echo {address} | sudo tee /sys/bus/pci/drivers/nvidia/bind",
                address=gpu.address,
            ),
        ),
        next_test=(
            NextTest(
                do=say("Swap the card with one that works."),
                outcomes=(
                    Reading(seen=say("The fault moves with the card"), means=say("The card, or its generation.")),
                    Reading(seen=say("The fault stays with the slot"), means=say("Slot, riser or power lead.")),
                ),
            ),
        )
        if healthy_twins(machine, gpu)
        else (),
    )
