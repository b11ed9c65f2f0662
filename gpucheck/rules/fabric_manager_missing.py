"""The NVSwitches are not set up: no fabric manager runs.

What it means
A baseboard with NVSwitches (HGX, DGX) joins its GPUs through them, and NVIDIA's fabric manager has to
set them up at every boot. It does not run.

How we know
PCI shows NVSwitches, NVIDIA's driver holds the GPUs, and no process is there under the number that the
fabric manager leaves in /run. Where NVML says that every GPU has joined the fabric, as it does from
Hopper on, somebody has set the switches up, and nothing is reported.

Why it matters
nvidia-smi lists all cards, but no CUDA program starts: error 802, system not yet initialized. TensorFlow
then sees no GPU at all.

What to do
Install the fabric manager in the version of the driver, to the last digit, and start it. If it is
installed and does not run, its log tells why; mostly the driver was updated and it was not.

When it is wrong
Where the driver runs in a container, so does the fabric manager, and it may keep its number elsewhere. A
machine whose NVLinks are turned off in the driver (NVreg_NvLinkDisable=1) needs none.

Sources
https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.displays import is_nvswitch
from gpucheck.facts import Machine, PciFunction
from gpucheck.findings import Evidence, Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.rules._shared import nvidia_on_pci, pci_source
from gpucheck.text import say

NEEDS: tuple[str, ...] = ("pci", "gpus")


def _switches(machine: Machine) -> list[PciFunction]:
    """NVSwitches on a machine whose GPUs NVIDIA's driver holds."""
    held = any(gpu.driver == "nvidia" or gpu.nvml is not None for gpu in nvidia_on_pci(machine))
    return [function for function in machine.pci or () if is_nvswitch(function)] if held else []


def lacks(machine: Machine) -> Iterator[str]:
    """Whether it runs, where it has to."""
    if _switches(machine) and (machine.driver is None or machine.driver.fabric_manager_running is None):
        yield "driver.fabric_manager_running"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """At most one finding, for the machine."""
    switches, driver = _switches(machine), machine.driver
    if not switches or driver is None or driver.fabric_manager_running is not False:
        return
    if "NVreg_NvLinkDisable=1" in (driver.kernel_command_line or ""):
        return
    states = {gpu.nvml.fabric_state for gpu in nvidia_on_pci(machine) if gpu.nvml is not None}
    if states == {"completed"}:
        return
    version = driver.nvidia_version or say("the driver's version")
    yield finding(
        "fabric-manager-missing",
        "error",
        "machine",
        say("This machine has {count} NVSwitches, and no fabric manager runs to set them up.", count=len(switches)),
        evidence=(
            Evidence(source=pci_source(switches[0].address), text=say("NVSwitch")),
            Evidence(source="/run/nvidia-fabricmanager", text=say("No process of the fabric manager")),
        ),
        remedy=(
            say(
                "Install the fabric manager in exactly the version {version} (package nvidia-fabricmanager).",
                version=version,
            ),
            say("Start it: sudo systemctl enable --now nvidia-fabricmanager"),
            say("If it ends again, read why: sudo journalctl -u nvidia-fabricmanager, and /var/log/fabricmanager.log"),
        ),
        next_test=(
            NextTest(
                do=say("Ask it: systemctl status nvidia-fabricmanager"),
                outcomes=(
                    Reading(seen=say("Active (running)"), means=say("It runs elsewhere; this finding is wrong.")),
                    Reading(seen=say("Failed"), means=say("Mostly its version is not the driver's.")),
                    Reading(seen=say("Could not be found"), means=say("It is not installed.")),
                ),
            ),
        ),
        confidence="likely",
    )
