"""The processor has no AVX, which TensorFlow's packages need.

What it means
The official packages of TensorFlow are compiled for processors with AVX. On one without, the program
ends at once when TensorFlow is imported.

How we know
The processor's flags do not name avx while a TensorFlow is installed; or TensorFlow's own message.

Why it matters
Cards and driver can be in perfect order: mining boards with a Celeron or Pentium, and servers older than
2011, are the usual places. So are virtual machines whose processor model hides AVX.

What to do
In a virtual machine, give the guest the host's processor (QEMU: -cpu host, Proxmox: type host). On
hardware, a processor with AVX, or a TensorFlow that was built without it.

When it is wrong
A build of one's own, or of a distribution, may do without AVX.

Sources
https://github.com/tensorflow/tensorflow/issues/27198 (the message at the import)
TensorFlow, Install with pip (AVX among the requirements)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Machine
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.rules import View
from gpucheck.rules import _tensorflow as tf
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()


def lacks(machine: Machine) -> Iterator[str]:
    """The processor's flags, where TensorFlow is installed beside a card."""
    yield from tf.lacks(machine)
    if tf.cards(machine) and tf.installed(machine) is not None and (machine.cpu is None or machine.cpu.has_avx is None):
        yield "cpu.has_avx"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """At most one finding, for the machine."""
    lines = [
        line
        for line in tf.log_lines(machine, "was compiled to use")
        if "AVX" in line and "available on your machine" in line
    ]
    package = tf.installed(machine) if tf.cards(machine) else None
    without = machine.cpu is not None and machine.cpu.has_avx is False
    if not lines and (package is None or not without):
        return
    model = machine.cpu.model if machine.cpu is not None else None
    in_guest = machine.cpu is not None and machine.cpu.hypervisor is not None
    evidence: tuple[Evidence, ...] = tf.log_evidence(lines)
    if without:
        evidence += (Evidence(source="/proc/cpuinfo", text=say("no avx among the flags")),)
    if package is not None:
        evidence += (tf.package_evidence(machine, package),)
    yield finding(
        "cpu-lacks-avx",
        "error" if lines else "warning",
        "machine",
        say(
            "The processor ({model}) has no AVX, without which TensorFlow's official packages do not start.",
            model=model or say("of unknown model"),
        ),
        evidence=evidence,
        remedy=(
            *(
                (say("Give the virtual machine the host's processor model (QEMU: -cpu host, Proxmox: type host)."),)
                if in_guest
                else ()
            ),
            say("Use a processor with AVX: Xeon and Core since Sandy Bridge, Opteron since Bulldozer."),
            say("Or build TensorFlow without AVX."),
        ),
        confidence="certain" if lines else "likely",
    )
