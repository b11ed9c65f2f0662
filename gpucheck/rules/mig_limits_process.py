"""A card is partitioned: a process sees one part of it, or nothing.

What it means
In MIG mode a card is no CUDA device any more; its MIG devices are. A process sees one of them,
however many there are, and a training over all of them in one process is not possible. Without any
MIG device CUDA finds nothing on the card.

How we know
NVML says that MIG mode is on, and lists the card's MIG devices.

Why it matters
TensorFlow will list one device, or fewer than there are cards, by design: it looks like a missing
card and is none.

What to do
To train over whole cards, switch MIG off. To use the parts, start one process for each, with the
MIG device's UUID in CUDA_VISIBLE_DEVICES. With MIG on and no MIG device, make some.

When it is wrong
Where jobs are meant to share the card, all is as it should be: then this is for information only.
Later drivers may let a process see more than one part.

Sources
https://docs.nvidia.com/datacenter/tesla/mig-user-guide/mig-device-names.html (CUDA and R450 to R525: one per process)
https://github.com/pytorch/pytorch/issues/102715 (one device of several)
https://github.com/NVIDIA/gpu-feature-discovery/issues/24 (MIG on, nothing made yet)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Machine
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.rules import View
from gpucheck.rules._nvml import read_cards, unread
from gpucheck.rules._shared import label
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ("gpus", "nvml")


def lacks(machine: Machine) -> Iterator[str]:
    """Cards of which it is not known whether MIG is on, or how many MIG devices they have."""
    yield from unread(machine, {"mig_enabled": ("nvmlDeviceGetMigMode",)})
    for gpu, seen in read_cards(machine):
        if seen.mig_enabled and seen.mig_devices is None:
            yield f"gpus.{gpu.address}.nvml.mig_devices"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding for each card in MIG mode."""
    for gpu, seen in read_cards(machine):
        if not seen.mig_enabled:
            continue
        evidence = [Evidence(source="nvmlDeviceGetMigMode", text=say("{address}: on", address=gpu.address))]
        if seen.mig_devices is not None:
            text = say("MIG devices: {count}", count=seen.mig_devices)
            evidence.append(Evidence(source="nvmlDeviceGetMigDeviceHandleByIndex", text=text))
        off = say("To use the whole card, switch MIG off: sudo nvidia-smi -i {address} -mig 0", address=gpu.address)
        if seen.mig_devices == 0:
            yield finding(
                "mig-limits-process",
                "warning",
                gpu.address,
                say("MIG is on for {card}, and it has no MIG device: CUDA sees nothing on it.", card=label(gpu)),
                evidence=tuple(evidence),
                remedy=(
                    off,
                    say("To use parts of it, list the profiles (nvidia-smi mig -lgip) and make some, such as "
                        "sudo nvidia-smi mig -i {address} -cgi 19 -C", address=gpu.address),
                ),
            )  # fmt: skip
            continue
        if seen.mig_devices is None:
            message = say("MIG is on for {card}: a process sees one of its parts, by design.", card=label(gpu))
        else:
            template = plural(
                seen.mig_devices,
                "MIG is on for {card}, which has one MIG device: a process sees that part only, by design.",
                "MIG is on for {card}, which has {count} MIG devices: a process sees one of them, by design.",
            )
            message = say(template, card=label(gpu), count=seen.mig_devices)
        yield finding(
            "mig-limits-process",
            "info",
            gpu.address,
            message,
            evidence=tuple(evidence),
            remedy=(
                off,
                say(
                    "To use the parts, start a process for each with its UUID (nvidia-smi -L) in CUDA_VISIBLE_DEVICES."
                ),
            ),
        )
