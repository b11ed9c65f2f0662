"""The installed TensorFlow holds no code for a card.

What it means
A build of TensorFlow holds machine code for some compute capabilities, and PTX, which the driver
compiles for newer cards. For a card that is older than all of them there is nothing to run. For one
that is newer than its machine code only PTX is left: the first start takes long, and on compute
capability 12.0 (GeForce RTX 50) it is reported to fail.

How we know
The build's own list (cuda_compute_capabilities), or what the catalog knows of the official package,
against the compute capability that NVML gives. Machine code for X.Y runs on X.Z with Z at least Y. In
a start-up log TensorFlow says it itself.

Why it matters
The card is listed, and the training fails at its first operation, with an error that does not name
the cause.

What to do
Too old a card: take the last TensorFlow that holds code for it (compute capability 5.x: 2.16, 3.x:
2.11). Too new a card: a container of NVIDIA's with TensorFlow, or a build of one's own.

When it is wrong
A build of one's own may hold more than its list says. PTX may work where others report that it fails:
only a training tells.

Sources
https://github.com/tensorflow/tensorflow/issues/90291 (12.0: CUDA_ERROR_INVALID_PTX, INVALID_HANDLE)
https://github.com/tensorflow/tensorflow/issues/42467 (no kernel image for 5.0)
build_info.py of the official packages 2.4 to 2.21
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Gpu, Machine
from gpucheck.findings import Confidence, Evidence, Finding, Severity, finding
from gpucheck.rules import View
from gpucheck.rules import _tensorflow as tf
from gpucheck.rules._shared import addresses_in, labels, pci_source, subject
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ()

UNPROVEN = 10
"""Major number from which PTX of 9.0 is all there is: reported to fail on 12.0."""

_FAILED = ("no kernel image is available", "CUDA_ERROR_INVALID_PTX", "CUDA_ERROR_NO_BINARY_FOR_GPU")
_TOO_OLD = ("The minimum required Cuda capability is", "The supported AMDGPU versions are")
_COMPILED = ("was not built with CUDA kernel binaries compatible with compute capability",)


def lacks(machine: Machine) -> Iterator[str]:
    """Packages, and the compute capability of each card where TensorFlow is installed."""
    yield from tf.lacks(machine)
    if tf.installed(machine) is not None:
        for gpu in tf.cards(machine):
            if gpu.nvml is None or gpu.nvml.compute_capability is None:
                yield f"gpus.{gpu.address}.nvml.compute_capability"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """What the log says counts before what the list of the build lets expect."""
    yield from _logged(machine) or _listed(machine, view)


def _logged(machine: Machine) -> tuple[Finding, ...]:
    failed = tf.log_lines(machine, *_FAILED)
    too_old = tf.log_lines(machine, *_TOO_OLD)
    compiled = tf.log_lines(machine, *_COMPILED)
    if not (failed or too_old or compiled):
        return ()
    named = list(dict.fromkeys(address for line in too_old for address in addresses_in(line)))
    severity: Severity = "error" if failed or too_old else "warning"
    if failed:
        message = say("TensorFlow holds no code that runs on the card: its kernels cannot be loaded.")
    elif too_old:
        message = say("TensorFlow leaves a card out, because it holds no code for it.")
    else:
        message = say(
            "TensorFlow holds no machine code for the card, only PTX that the driver compiles at the first start."
        )
    return (
        finding(
            "tensorflow-no-kernels-for-gpu",
            severity,
            named[0] if len(named) == 1 else "TensorFlow",
            message,
            evidence=tf.log_evidence([*too_old, *compiled, *failed]),
            remedy=_newer() if compiled and not too_old else (*_older(), *_newer()),
            confidence="certain" if failed or too_old else "likely",
        ),
    )


def _listed(machine: Machine, view: View) -> Iterator[Finding]:
    package = tf.installed(machine)
    if package is None or machine.software is None or not tf.is_cuda_build(machine, view):
        return
    build = machine.software.build
    capabilities = build.compute_capabilities if build is not None else None
    if capabilities is None and (row := tf.wheel(package, view)) is not None:
        capabilities = (
            *(f"sm_{number.replace('.', '')}" for number in row["machine_code_for"]),
            *(f"compute_{number.replace('.', '')}" for number in row["ptx_for"]),
        )
    if capabilities is None:
        return
    without: dict[tuple[tf.Code, bool], list[tuple[Gpu, tuple[int, int]]]] = {}
    for gpu in tf.cards(machine):
        wanted = tf.capability(gpu, view)
        code = tf.code_for(wanted, capabilities) if wanted is not None else None
        if wanted is not None and code is not None and code != "machine":
            without.setdefault((code, wanted[0] >= UNPROVEN), []).append((gpu, wanted))
    for (kind, unproven), found in without.items():
        gpus = [gpu for gpu, _ in found]
        evidence = (
            tf.package_evidence(machine, package),
            tf.build_evidence(machine, say("cuda_compute_capabilities: {list}", list=", ".join(capabilities))),
            *(_capability_evidence(gpu, wanted) for gpu, wanted in found),
        )
        yield _finding(kind, unproven, gpus, package.version, evidence)


def _capability_evidence(gpu: Gpu, wanted: tuple[int, int]) -> Evidence:
    text = say("compute capability {major}.{minor}", major=wanted[0], minor=wanted[1])
    return Evidence(source=pci_source(gpu.address), text=text)


def _finding(code: tf.Code, unproven: bool, gpus: list[Gpu], version: str, evidence: tuple[Evidence, ...]) -> Finding:
    severity: Severity = "warning"
    confidence: Confidence = "likely"
    remedy = _newer()
    if code == "none":
        confidence = "certain"
        remedy = _older()
        message = say(
            plural(
                len(gpus),
                "TensorFlow {version} holds no code for {cards}: it is too old for this build.",
                "TensorFlow {version} holds no code for {cards}: they are too old for this build.",
            ),
            version=version,
            cards=labels(gpus),
        )
    elif unproven:
        message = say(
            "TensorFlow {version} holds no machine code for {cards}, only PTX, with which others report failures.",
            version=version,
            cards=labels(gpus),
        )
    else:
        severity = "info"
        message = say(
            "TensorFlow {version} holds no machine code for {cards}, only PTX: the first start takes long.",
            version=version,
            cards=labels(gpus),
        )
    return finding(
        "tensorflow-no-kernels-for-gpu",
        severity,
        subject(gpus),
        message,
        evidence=evidence,
        remedy=remedy,
        confidence=confidence,
    )


def _older() -> tuple[str, ...]:
    return (
        say(
            "For a card that is too old, take the last TensorFlow with code for it: 2.16 for compute capability 5.x, "
            "2.11 for 3.x."
        ),
    )


def _newer() -> tuple[str, ...]:
    return (
        say("For a card that is too new, use a container of NVIDIA's with TensorFlow, or a build of your own."),
        say("Prove it on every card: gpucheck smoke"),
    )
