"""vfio-pci holds a card for a virtual machine.

What it means
The card is set aside to be passed to a virtual machine. The host's own drivers, and with them CUDA
on the host, do not see it.

How we know
The card's driver link on PCI leads to vfio-pci (or to pci-stub or xen-pciback, which serve the same
end).

Why it matters
As a rule it is meant, and nothing is wrong. It is a surprise where cards are set aside by their
PCI id: that takes every card of the same model, the one for the host as well.

What to do
If the card belongs to a virtual machine, look at it from inside. If not, take its id out of the
options of vfio-pci; to set aside one of two equal cards, bind it by its address (driverctl
set-override) instead of by id.

When it is wrong
It is a fact, not a judgement; it becomes an error only when more cards are expected on this host.

Sources
https://www.mail-archive.com/libvir-list@redhat.com/msg96087.html (by id and by address)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Gpu, Machine
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.rules import View
from gpucheck.rules._shared import driver_evidence, label
from gpucheck.text import say

NEEDS: tuple[str, ...] = ("gpus",)

PASS_THROUGH = frozenset({"vfio-pci", "pci-stub", "pciback", "xen-pciback"})


def lacks(machine: Machine) -> Iterator[str]:
    """Cards whose driver the source cannot tell."""
    for gpu in machine.gpus or ():
        if gpu.on_pci and not gpu.driver_read:
            yield f"gpus.{gpu.address}.driver"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per card, of any vendor."""
    for gpu in machine.gpus or ():
        if gpu.on_pci and gpu.driver in PASS_THROUGH:
            yield finding(
                "vfio-bound",
                "warning",
                gpu.address,
                say(
                    "{card} is set aside for a virtual machine ({driver}), so this host does not use it.",
                    card=label(gpu),
                    driver=gpu.driver,
                ),
                evidence=(driver_evidence(gpu), *_by_id(machine, gpu)),
                remedy=(
                    say("If it belongs to a virtual machine, nothing is wrong: check it from inside."),
                    say(
                        "If not, take {pci_id} out of the ids of vfio-pci (kernel command line and "
                        "/etc/modprobe.d), rebuild the initial RAM disk and reboot.",
                        pci_id=gpu.pci_id or say("its PCI id"),
                    ),
                    say("An id catches every card of that model: to set aside one of several, bind it by its address."),
                ),
            )


def _by_id(machine: Machine, gpu: Gpu) -> tuple[Evidence, ...]:
    """The option of the kernel command line that names the card's id."""
    line = (machine.driver.kernel_command_line if machine.driver else None) or ""
    return tuple(
        Evidence(source="/proc/cmdline", text=option)
        for option in line.split()
        if option.startswith(("vfio-pci.ids=", "vfio_pci.ids=", "pci-stub.ids="))
        and gpu.pci_id
        and gpu.pci_id in option.lower()
    )
