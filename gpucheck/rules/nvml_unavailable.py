"""NVML cannot start although an NVIDIA card is there.

What it means
NVML is the library through which nvidia-smi and everything else asks NVIDIA's driver. It is absent
or it refuses, and no cause below it was found.

How we know
The library could not be loaded, or its first call failed; the return code is shown, or nvidia-smi's own
words. Where these are all that was given, nobody knows whether there is a card, and nothing is certain.

Why it matters
Without NVML nothing can be said about memory, clocks, heat and use of the cards, and CUDA fails for
the same reason as a rule.

What to do
Library absent while the module is loaded: install the user part of the driver in the module's
version, or start the container with access to the GPUs. Driver not loaded: load the module. Unknown
error in a container that used to work: the container lost its device files, start it again.

When it is wrong
With another rule's finding about the driver this one is left out. If NVML was not asked, nothing is
claimed.

Sources
NVIDIA cuda-python documentation, cuda.bindings.nvml.Return (return codes)
https://github.com/wookayin/gpustat/issues/90 (library not found)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import NVIDIA_SMI, Machine, Nvml
from gpucheck.findings import Finding, NextTest, Reading, finding
from gpucheck.nvml_codes import GPU_IS_LOST
from gpucheck.rules import View
from gpucheck.rules._nvml import nvml_evidence, nvml_reason
from gpucheck.rules._shared import (
    BELOW_THE_DRIVER,
    DRIVER_REFUSES,
    LOOK_FURTHER,
    explained,
    module_evidence,
    module_loaded,
    nvidia_on_pci,
)
from gpucheck.rules.visibility_limited import container_lost_devices
from gpucheck.text import say

NEEDS: tuple[str, ...] = ("nvml",)

WHOLE_DRIVER = frozenset({"driver-not-installed", "driver-library-mismatch", "module-load-blocked"})
"""Findings that explain the silence of NVML for all cards at once."""
ONE_CARD = BELOW_THE_DRIVER | DRIVER_REFUSES | {"nouveau-bound", "vfio-bound", "no-driver-bound"}


def lacks(machine: Machine) -> Iterator[str]:
    """Whether there is a card at all."""
    if machine.gpus is None:
        yield "gpus"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """At most one finding, for the machine; none if what was found before explains it."""
    nvml = machine.nvml
    cards = {gpu.address for gpu in nvidia_on_pci(machine)}
    if nvml is None or nvml.status not in {"library-absent", "failed"}:
        return
    if machine.gpus is None and nvml.call == NVIDIA_SMI:
        yield from _alone(view, nvml)
    if not cards:
        return
    if nvml.code == GPU_IS_LOST:
        return  # nvml-gpu-lost, or gpu-fell-off-bus
    if container_lost_devices(machine):
        return
    if any(f.name in WHOLE_DRIVER for f in view.found) or cards <= explained(view.found, machine, ONE_CARD):
        return
    remedy: tuple[str, ...]
    if nvml.status == "library-absent":
        message = say("NVML is not there: the library libnvidia-ml.so.1 of NVIDIA's driver was not found.")
        if module_loaded(machine):
            remedy = (
                say("Install the user part of NVIDIA's driver in the version of the loaded module."),
                say("In a container, start it with access to the GPUs (such as docker run --gpus all)."),
            )
        else:
            remedy = (say("Install NVIDIA's driver, kernel module and library together."),)
    else:
        message = say("NVML cannot start: {reason}.", reason=nvml_reason(nvml).removesuffix("."))
        remedy = (
            say("Read what the driver says: sudo dmesg | grep -i -e nvrm -e nvidia"),
            say("If the module is not loaded, load it: sudo modprobe nvidia"),
            say("If this is a container that used to work, start it again."),
        )
    yield finding(
        "nvml-unavailable",
        "error",
        "machine",
        message,
        evidence=(*nvml_evidence(nvml), *module_evidence(machine)),
        remedy=remedy,
    )


def _alone(view: View, nvml: Nvml) -> Iterator[Finding]:
    """nvidia-smi's words are all there is of the cards; none where the kernel log says more."""
    if any(f.severity == "error" for f in view.found):
        return
    yield finding(
        "nvml-unavailable",
        "error" if view.expected is not None and view.expected.n else "warning",
        "machine",
        say("nvidia-smi does not reach NVIDIA's driver; whether a card is there, and what holds it, was not given."),
        evidence=nvml_evidence(nvml),
        remedy=LOOK_FURTHER,
        next_test=(
            NextTest(
                do=say("Look at what lspci -nnk -d 10de: prints."),
                outcomes=(
                    Reading(
                        seen=say("Nothing"),
                        means=say("No card is on PCI: its power leads, seat, riser or CPU socket."),
                    ),
                    Reading(
                        seen=say("A card, and: Kernel driver in use: nouveau"),
                        means=say("nouveau holds the card: install NVIDIA's driver and keep nouveau away."),
                    ),
                    Reading(
                        seen=say("A card, and no driver in use"),
                        means=say(
                            "The driver is not installed for this kernel, not loaded, or refuses the card: the kernel "
                            "log tells which."
                        ),
                    ),
                ),
            ),
        ),
        confidence="possible",
    )
