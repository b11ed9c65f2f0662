"""The nouveau driver holds an NVIDIA card.

What it means
The kernel came with its own driver for NVIDIA cards, nouveau, and that one took the card. CUDA and
TensorFlow need NVIDIA's driver, which cannot take the card as long as nouveau holds it.

How we know
The card's driver link on PCI leads to nouveau.

Why it matters
The card is on PCI and in perfect order, and nvidia-smi does not list it. It happens on every fresh
installation, and after a kernel update for which NVIDIA's module was not built.

What to do
Install NVIDIA's driver, or build its module for this kernel, if it is not there; keep nouveau from
loading, rebuild the initial RAM disk and reboot. Most distribution packages of the driver do the middle
part themselves. That the driver is missing is told here and not a second time as driver-not-installed.

When it is wrong
A card that only drives a monitor may stay with nouveau.

Sources
https://pastebin.com/jDfhDqLt (NVIDIA's installer on a machine with nouveau: incompatible, must be disabled)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Machine
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.rules import View
from gpucheck.rules._shared import driver_evidence, labels, log_evidence, log_lines, nvidia_on_pci, subject
from gpucheck.rules.driver_not_installed import build_step, disk_evidence, library_is_there
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ("gpus",)


def lacks(machine: Machine) -> Iterator[str]:
    """Cards whose driver the source cannot tell."""
    for gpu in nvidia_on_pci(machine):
        if not gpu.driver_read:
            yield f"gpus.{gpu.address}.driver"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding for all cards: what keeps nouveau away works for the whole machine."""
    held = [gpu for gpu in nvidia_on_pci(machine) if gpu.driver == "nouveau"]
    if not held:
        return
    log = machine.kernel_log
    refused = [line for _, line in log_lines(machine, "probe routine was not called")]
    yield finding(
        "nouveau-bound",
        "error",
        subject(held),
        say(
            plural(
                len(held),
                "The nouveau driver holds {cards}; NVIDIA's driver, which CUDA needs, cannot take it.",
                "The nouveau driver holds {cards}; NVIDIA's driver, which CUDA needs, cannot take them.",
            ),
            cards=labels(held),
        ),
        evidence=(
            *(driver_evidence(gpu) for gpu in held),
            *((log_evidence(log, refused[-1]),) if log is not None and refused else ()),
            *_no_module(machine),
        ),
        remedy=(
            *_install(machine),
            say(
                "Keep nouveau away: put the lines 'blacklist nouveau' and 'options nouveau modeset=0' into "
                "/etc/modprobe.d/blacklist-nouveau.conf."
            ),
            say("Rebuild the initial RAM disk (sudo update-initramfs -u, or sudo dracut --force) and reboot."),
        ),
    )


def _no_module(machine: Machine) -> Iterator[Evidence]:
    if machine.driver is not None and machine.driver.nvidia_module_installed is False:
        yield from disk_evidence(machine.driver)


def _install(machine: Machine) -> Iterator[str]:
    """What NVIDIA's driver lacks on this machine; nothing where its module is there."""
    driver = machine.driver
    installed = driver.nvidia_module_installed if driver is not None else None
    if installed:
        return
    if driver is not None and installed is False and library_is_there(machine):
        yield say("NVIDIA's driver package is there, its module for this kernel is not.")
        yield build_step(driver)
    elif installed is False:
        yield say(
            "Install NVIDIA's driver with the package manager of the distribution, in a branch that drives every card "
            "of this machine: no module of it is there."
        )
    else:
        yield say("Install NVIDIA's driver with the package manager of the distribution, if it is not installed.")
