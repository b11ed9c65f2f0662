"""No NVIDIA driver is installed for this kernel.

What it means
There is an NVIDIA card, and the running kernel has no NVIDIA module: none is loaded and none lies
in its module folder.

How we know
The list of loaded modules and /lib/modules of the running kernel hold no nvidia module. Whether the
user library is there tells the two usual stories apart: nothing was ever installed, or the driver
was built for another kernel.

Why it matters
Neither nvidia-smi nor TensorFlow can see any card, however healthy.

What to do
Install the driver from the distribution's packages, in a branch that still drives the card (580 is
the last for Maxwell, Pascal and Volta, 470 for Kepler; the open flavour begins with Turing). If it
is installed for another kernel, install the headers of the running one and let DKMS build it.

When it is wrong
In a container the host's modules cannot be seen; then nothing is claimed. Cards that are set aside
for virtual machines need no driver on the host. Of cards that nouveau holds, nouveau-bound tells.

Sources
https://docs.nvidia.com/datacenter/tesla/drivers/cuda-toolkit-driver-and-architecture-matrix.html
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Driver, Gpu, Machine
from gpucheck.findings import Confidence, Evidence, Finding, finding
from gpucheck.rules import View
from gpucheck.rules._shared import driver_evidence, explained, labels, module_evidence, nvidia_on_pci, subject
from gpucheck.rules.vfio_bound import PASS_THROUGH
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ("gpus", "driver")


_TAKEN = PASS_THROUGH | {"nvidia", "nouveau"}
"""Drivers whose cards are not judged here: nouveau-bound tells of a missing driver itself."""
_NOT_LOADED = 9
"""nvmlReturn_t of a library that is there while its module is not loaded."""


def _without_driver(machine: Machine) -> list[Gpu]:
    """NVIDIA cards that need a driver on this host and that none is known to run."""
    return [gpu for gpu in nvidia_on_pci(machine) if gpu.nvml is None and gpu.driver not in _TAKEN]


def library_is_there(machine: Machine) -> bool:
    """Whether the user part of NVIDIA's driver is known to be installed."""
    found = machine.driver.library_versions if machine.driver is not None else None
    return bool(found) or (machine.nvml is not None and machine.nvml.code == _NOT_LOADED)


def _maybe_installed(machine: Machine, driver: Driver) -> bool:
    """The module folder was not read, and NVML does not speak against it either."""
    nvml_absent = machine.nvml is not None and machine.nvml.status == "library-absent"
    return driver.nvidia_module_installed is None and not nvml_absent


def lacks(machine: Machine) -> Iterator[str]:
    """What keeps it from being told, where there is an NVIDIA card without a driver."""
    driver = machine.driver
    if driver is None or driver.nvidia_version is not None or not _without_driver(machine):
        return
    if driver.loaded_modules is None:
        yield "driver.loaded_modules"
    elif "nvidia" not in driver.loaded_modules and _maybe_installed(machine, driver):
        yield "driver.nvidia_module_installed"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding for the whole machine."""
    driver = machine.driver
    blocked = explained(view.found, machine, frozenset({"module-load-blocked"}))
    cards = [gpu for gpu in _without_driver(machine) if gpu.address not in blocked]
    if driver is None or not cards or driver.loaded_modules is None or driver.nvidia_version is not None:
        return
    if "nvidia" in driver.loaded_modules or driver.nvidia_module_installed or _maybe_installed(machine, driver):
        return
    confidence: Confidence = "certain" if driver.nvidia_module_installed is False else "likely"
    if library_is_there(machine):
        message = say(
            plural(
                len(cards),
                "NVIDIA's library {version} is installed, but its kernel module is not built for the running "
                "kernel, so {cards} has no driver.",
                "NVIDIA's library {version} is installed, but its kernel module is not built for the running "
                "kernel, so {cards} have no driver.",
            )
            if driver.library_versions
            else plural(
                len(cards),
                "NVIDIA's library is installed, but its kernel module is not built for the running kernel, so "
                "{cards} has no driver.",
                "NVIDIA's library is installed, but its kernel module is not built for the running kernel, so "
                "{cards} have no driver.",
            ),
            version=", ".join(driver.library_versions or ()),
            cards=labels(cards),
        )
        remedy: tuple[str, ...] = (build_step(driver), say("Or boot the kernel for which the module was built."))
    else:
        message = say(
            plural(
                len(cards),
                "No NVIDIA driver is installed, so {cards} has no driver.",
                "No NVIDIA driver is installed, so {cards} have no driver.",
            ),
            cards=labels(cards),
        )
        remedy = (
            say(
                "Install NVIDIA's driver with the package manager of the distribution, in a branch that drives "
                "every card of this machine, and reboot."
            ),
        )
    yield finding(
        "driver-not-installed",
        "error",
        subject(cards),
        message,
        evidence=(*(driver_evidence(gpu) for gpu in cards), *module_evidence(machine), *disk_evidence(driver)),
        remedy=remedy,
        confidence=confidence,
    )


def build_step(driver: Driver) -> str:
    """How the module comes into being that the installed package lacks."""
    how = "Install the headers of kernel {kernel} and let DKMS build the module: sudo dkms autoinstall"
    return say(how, kernel=driver.kernel_release or "$(uname -r)")


def disk_evidence(driver: Driver) -> Iterator[Evidence]:
    """What lies on disk of NVIDIA's driver."""
    if driver.nvidia_module_installed is False:
        folder = f"/lib/modules/{driver.kernel_release}" if driver.kernel_release else "/lib/modules"
        yield Evidence(source=folder, text=say("No nvidia module for the running kernel"))
    if driver.library_versions is not None:
        versions = ", ".join(driver.library_versions) or say("none")
        yield Evidence(source="libnvidia-ml.so", text=say("Versions on disk: {versions}", versions=versions))
