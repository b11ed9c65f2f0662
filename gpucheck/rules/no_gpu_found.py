"""No GPU on any level that could be looked at.

What it means
The PCI bus was looked through and holds no GPU, and NVML shows none either. Or PCI was not looked at, and
NVML (nvidia-smi) ran and lists none: then the verdict is unknown.

How we know
No function on PCI is a display controller or accelerator of a card; what the board's management
chip, the hypervisor or the processor itself brings does not count, and is listed with the reason.
nvidia-smi's "No devices were found" alone does not say whether a card is on PCI.

Why it matters
A host without a card is no fault. If a card is in it, it is not even on the bus, and no driver can
change that.

What to do
If a card is fitted: check its power leads, its seat, the riser, and whether its slot belongs to a
populated CPU socket. Tell how many cards there should be (--expect-gpus) and the missing ones
become an error.

When it is wrong
Integrated GPUs of some boards (Tegra) and WSL 2 have no PCI function. A container may hide the bus.

Sources
https://github.com/truenas/middleware/pull/7743 (classes that count)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.displays import known_as, why_not_counted
from gpucheck.facts import Machine
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.rules import View
from gpucheck.rules._shared import LOOK_FURTHER, log_evidence, log_lines, pci_source
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()

_NONE_DRIVEN = "NVRM: No NVIDIA GPU found"


def lacks(machine: Machine) -> Iterator[str]:
    """Whether a card is on PCI."""
    if machine.gpus is None:
        yield "gpus"
    if machine.pci is None:
        yield "pci"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """At most one finding, for the machine."""
    counts = view.counts
    if machine.gpus or counts.nvml or counts.tensorflow:
        return
    if machine.pci is None:
        told = [line for _, line in log_lines(machine, _NONE_DRIVEN)]
        if any(f.severity == "error" for f in view.found):
            return
        if machine.gpus is not None:
            yield _none_in_nvml(machine)
        elif told and machine.kernel_log is not None:
            yield _none_driven(log_evidence(machine.kernel_log, told[-1]))
        return
    functions = machine.pci
    displays = [(f, why) for f in functions if (why := why_not_counted(f, functions)) is not None]
    if displays:
        message = say(
            "No GPU was found; what the board, the processor or the hypervisor brings does not count: {displays}.",
            displays=", ".join(f"{known_as(function)} ({function.address})" for function, _ in displays),
        )
    else:
        message = say("No GPU was found.")
    yield finding(
        "no-gpu-found",
        "info",
        "machine",
        message,
        evidence=tuple(Evidence(source=pci_source(function.address), text=why) for function, why in displays),
        remedy=(
            say(
                "If a card is fitted, check its power leads, its seat and riser, and whether its slot belongs to a "
                "populated CPU socket."
            ),
        ),
    )


def _none_driven(told: Evidence) -> Finding:
    """The log alone: a card that another driver holds, or that this branch does not know, is passed over too."""
    return finding(
        "no-gpu-found",
        "warning",
        "machine",
        say("NVIDIA's module found no GPU that it drives; whether a card is on PCI was not given."),
        evidence=(told,),
        remedy=LOOK_FURTHER,
        confidence="possible",
    )


def _none_in_nvml(machine: Machine) -> Finding:
    """NVML started, so its module is loaded, and drives no card; PCI was not looked at."""
    nvml = machine.nvml
    who = nvml.call if nvml is not None and nvml.call is not None else "NVML"
    told = (Evidence(source=who, text=nvml.message),) if nvml is not None and nvml.message is not None else ()
    return finding(
        "no-gpu-found",
        "info",
        "machine",
        say("{who} ran and found no card that it can use; whether a card is on PCI was not given.", who=who),
        evidence=told,
        remedy=LOOK_FURTHER,
    )
