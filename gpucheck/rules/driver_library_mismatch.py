"""Kernel module and user library have different versions.

What it means
NVIDIA's driver has two halves that must have the same version to the last digit: the module in the
kernel and the library (libnvidia-ml, libcuda) on the disk. They differ.

How we know
NVML answers with error 18; or the loaded module's version is none of the library versions on disk
while NVML does not work; or the loaded module has logged an API mismatch.

Why it matters
nvidia-smi and CUDA fail for all cards at once, although every card is fine. It happens when the
driver package was updated while the old module stayed loaded.

What to do
Reboot. Or, with nothing using the cards, unload the old module and load the new one. In a
container, the library must be the host's: use the NVIDIA container runtime instead of a library in
the image.

When it is wrong
A mismatch in the log from before an update that was completed is history; it is not reported when
NVML works, or when the module that is loaded and the library on the disk agree today. A module that
was built by hand (a patched one shows as 570.124.06-p2p) needs a library of the same three numbers.

Sources
https://github.com/tinygrad/open-gpu-kernel-modules/issues/47 (the last digits count)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpucheck.facts import Machine
from gpucheck.findings import Confidence, Evidence, Finding, finding
from gpucheck.rules import View
from gpucheck.rules._shared import log_evidence, log_lines
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()

LIBRARY_MISMATCH = 18
"""nvmlReturn_t NVML_ERROR_LIB_RM_VERSION_MISMATCH."""

_VERSION = r"(\d+(?:\.\d+)+)"


def lacks(machine: Machine) -> Iterator[str]:
    """NVML is the best witness; without it both versions are needed."""
    if machine.nvml is None:
        yield "nvml"
        if machine.driver is None:
            yield "driver"
        elif machine.driver.library_versions is None and machine.driver.nvidia_version is not None:
            yield "driver.library_versions"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """At most one finding, for the machine."""
    nvml = machine.nvml
    if nvml is not None and nvml.status == "ok":
        return
    evidence: list[Evidence] = []
    confidence: Confidence = "likely"
    if nvml is not None and nvml.code == LIBRARY_MISMATCH:
        text = nvml.message or say("Error 18, driver/library version mismatch")
        evidence.append(Evidence(source=nvml.call or "NVML", text=text))
        confidence = "certain"
    evidence += _versions(machine)
    if evidence or not _agree(machine):
        evidence += _logged(machine)
    if not evidence:
        return
    yield finding(
        "driver-library-mismatch",
        "error",
        "machine",
        say("NVIDIA's kernel module and its library have different versions, so no card can be used."),
        evidence=tuple(evidence),
        remedy=(
            say("Reboot: the module that belongs to the library is then loaded."),
            say(
                "Or end everything that uses the cards and run: sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset "
                "nvidia && sudo modprobe nvidia"
            ),
            say(
                "If the module was built by hand, install the library of exactly its version, or go back to the "
                "distribution's module."
            ),
            say("In a container, take the library from the host through the NVIDIA container runtime."),
        ),
        confidence=confidence,
    )


def same_version(module: str, library: str) -> bool:
    """Whether the versions can be one: a library that gives fewer parts counts by those it gives."""
    return f"{module}.".startswith(f"{library}.")


def _agree(machine: Machine) -> bool:
    """Whether the module that is loaded has its library on the disk: a mismatch is over then."""
    driver = machine.driver
    if driver is None or driver.nvidia_version is None:
        return False
    return any(same_version(driver.nvidia_version, library) for library in driver.library_versions or ())


def _versions(machine: Machine) -> Iterator[Evidence]:
    driver = machine.driver
    if driver is None or driver.nvidia_version is None:
        return
    module = driver.nvidia_version
    libraries = [version for version in driver.library_versions or () if re.fullmatch(_VERSION, version)]
    if libraries and not any(same_version(module, library) for library in libraries):
        yield Evidence(source="/proc/driver/nvidia/version", text=module)
        yield Evidence(source="libnvidia-ml.so", text=", ".join(libraries))


def _logged(machine: Machine) -> Iterator[Evidence]:
    """The last API mismatch, if it speaks of the module that is loaded now."""
    log = machine.kernel_log
    if log is None:
        return
    loaded = machine.driver.nvidia_version if machine.driver else None
    for number, _ in reversed(list(log_lines(machine, "API mismatch"))):
        # Where the lines of the message have a time stamp each, the versions stand on two of them.
        lines = log.lines[number : number + 2]
        client = re.search(rf"client has the version {_VERSION}", lines[0])
        module = re.search(rf"kernel module has the version {_VERSION}", " ".join(lines))
        if client is not None and module is not None and loaded in {None, module[1]}:
            kept = lines if "kernel module has" not in lines[0] else lines[:1]
            yield from (log_evidence(log, line) for line in kept)
            return
