"""The cuDNN beside TensorFlow holds no code for a card before Turing.

What it means
From 9.11 on the cuDNN packages hold no code for compute capabilities below 7.5: Maxwell, Pascal and
Volta (M40, P40, P100, GTX 10, V100). From TensorFlow 2.20 on, tensorflow[and-cuda] takes the newest.

How we know
The version of the nvidia-cudnn package, or of a cuDNN library that the dynamic loader finds, against the
compute capability that NVML gives. What the packages hold was read from them.

Why it matters
Plain products work, so a quick test passes; convolution, normalisation and recurrent layers are
expected to fail.

What to do
pip install 'nvidia-cudnn-cu12<9.11' in the same environment, after TensorFlow.

When it is wrong
It is concluded from what the libraries hold. The Python that was looked at is the one that runs
gpucheck; another may train.

Sources
https://docs.nvidia.com/deeplearning/cudnn/latest/support-matrix/index.html (9.10.2 lists 5.0 to 12.0)
https://github.com/conda-forge/tensorflow-feedstock/pull/457 (kept below 9.11)
https://github.com/immich-app/immich/pull/23110 (the same limit, another program)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpucheck.facts import Machine
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.rules import View
from gpucheck.rules import _tensorflow as tf
from gpucheck.rules._shared import labels, pci_source, subject
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()

FIRST_WITHOUT = (9, 11)
TURING = (7, 5)

_PACKAGE = re.compile(r"nvidia-cudnn(?:-cu\d+)?")


def lacks(machine: Machine) -> Iterator[str]:
    """Packages, and the compute capability of each card where a cuDNN is there that is too new for some."""
    yield from tf.lacks(machine)
    if tf.installed(machine) is not None and _too_new(machine):
        for gpu in tf.cards(machine):
            if gpu.nvml is None or gpu.nvml.compute_capability is None:
                yield f"gpus.{gpu.address}.nvml.compute_capability"


def _too_new(machine: Machine) -> tuple[Evidence, str] | None:
    """The cuDNN that TensorFlow would open, if it is of a version without the code. The package comes first."""
    software = machine.software
    for package in (software.packages or ()) if software is not None else ():
        if _PACKAGE.fullmatch(package.name):
            too_new = tf.versions(package.version)[:2] >= FIRST_WITHOUT
            return (tf.package_evidence(machine, package), package.version) if too_new else None
    for name in (software.libraries or ()) if software is not None else ():
        version = name.removeprefix("libcudnn.so.")
        numbers = tf.versions(version)[:2]
        if name != version and len(numbers) == 2 and numbers >= FIRST_WITHOUT:
            return Evidence(source=say("libraries of the dynamic loader"), text=name), version
    return None


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """At most one finding, for all cards that are too old."""
    found = _too_new(machine)
    if found is None or tf.installed(machine) is None or tf.is_cuda_build(machine, view) is False:
        return
    old = [(gpu, number) for gpu in tf.cards(machine) if (number := tf.capability(gpu, view)) and number < TURING]
    if not old:
        return
    gpus = [gpu for gpu, _ in old]
    evidence, version = found
    capabilities = tuple(
        Evidence(
            source=pci_source(gpu.address),
            text=say("compute capability {major}.{minor}", major=number[0], minor=number[1]),
        )
        for gpu, number in old
    )
    yield finding(
        "tensorflow-cudnn-too-new",
        "warning",
        subject(gpus),
        say(
            "cuDNN {version} holds no code for cards before Turing ({cards}): convolutions are expected to fail.",
            version=version,
            cards=labels(gpus),
        ),
        evidence=(evidence, *capabilities),
        remedy=(
            say("Take the last that does: pip install 'nvidia-cudnn-cu12<9.11'"),
            say("Prove it on every card: gpucheck smoke"),
        ),
        confidence="likely",
    )
