"""NVML cannot start although an NVIDIA card is there.

What it means
NVML is the library through which nvidia-smi and everything else asks NVIDIA's driver. It is absent
or it refuses, and no cause below it was found.

How we know
The library could not be loaded, or its first call failed; the return code is shown.

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

from gpucheck.facts import Machine, Nvml
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.rules import View
from gpucheck.rules._nvml import GPU_IS_LOST
from gpucheck.rules._shared import BELOW_THE_DRIVER, DRIVER_REFUSES, explained, module_evidence, nvidia_on_pci
from gpucheck.rules.no_driver_bound import module_loaded
from gpucheck.rules.visibility_limited import container_lost_devices
from gpucheck.text import say

NEEDS: tuple[str, ...] = ("gpus", "nvml")

WHOLE_DRIVER = frozenset({"driver-not-installed", "driver-library-mismatch", "module-load-blocked"})
"""Findings that explain the silence of NVML for all cards at once."""
ONE_CARD = BELOW_THE_DRIVER | DRIVER_REFUSES | {"nouveau-bound", "vfio-bound", "no-driver-bound"}


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """At most one finding, for the machine; none if what was found before explains it."""
    nvml = machine.nvml
    cards = {gpu.address for gpu in nvidia_on_pci(machine)}
    if nvml is None or nvml.status not in {"library-absent", "failed"} or not cards:
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
        message = say("NVML cannot start: {reason}.", reason=_reason(nvml))
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
        evidence=(Evidence(source=nvml.call or "NVML", text=_reason(nvml)), *module_evidence(machine)),
        remedy=remedy,
    )


def _reason(nvml: Nvml) -> str:
    if nvml.code is None:
        return nvml.message or say("the library was not found")
    from gpucheck.readers.nvml import MEANINGS

    meaning = MEANINGS.get(nvml.code) or nvml.message or say("no reason given")
    return say("error {code}, {meaning}", code=nvml.code, meaning=meaning)
