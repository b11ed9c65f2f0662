"""The installed TensorFlow was built without GPU support.

What it means
The package can use no GPU whatever is in the machine.

How we know
Its own build information says that it is neither a CUDA nor a ROCm build, or the package is one that
never is (tensorflow-cpu). A probe reads this from the folder of packages and imports nothing; a
training asks TensorFlow itself.

Why it matters
Driver and card may be in perfect order; nothing below TensorFlow needs to be touched.

What to do
pip uninstall tensorflow-cpu tensorflow, then pip install "tensorflow[and-cuda]" (before Turing:
"gpucheck-server[cuda-pascal-volta]"). The plain package on Windows, macOS and Arm has no CUDA either.

When it is wrong
The Python that was looked at is the one that runs gpucheck; another may train. Two packages in one
environment may overwrite each other's files; uninstall both before installing.

Sources
https://github.com/tensorflow/tensorflow/issues/62328 (a CPU-only package among the causes)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Machine
from gpucheck.findings import Finding, finding
from gpucheck.rules import View
from gpucheck.rules import _tensorflow as tf
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()
lacks = tf.lacks


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """At most one finding, where an NVIDIA card is there."""
    package = tf.installed(machine)
    if package is None or machine.software is None or not tf.cards(machine):
        return
    build = machine.software.build
    if tf.is_cuda_build(machine, view) is not False or (build is not None and build.rocm):
        return
    said = build is not None and build.cuda is False
    lines = tf.log_lines(machine, "Could not find cuda drivers", "Skipping registering GPU devices")
    yield finding(
        "tensorflow-cpu-only-build",
        "error" if lines else "warning",
        "TensorFlow",
        say(
            "TensorFlow is installed as {name} {version}, which was built without GPU support: it can use no card.",
            name=package.name,
            version=package.version,
        ),
        evidence=(
            tf.package_evidence(machine, package),
            *((tf.build_evidence(machine, "is_cuda_build: False"),) if said else ()),
            *tf.log_evidence(lines),
        ),
        remedy=(
            say("Take it away: pip uninstall {name}", name=package.name),
            say('Install one with CUDA: pip install "tensorflow[and-cuda]"'),
            say("If another Python trains, run gpucheck with that one: python -m gpucheck probe"),
        ),
    )
