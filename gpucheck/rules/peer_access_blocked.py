"""Cards cannot copy to each other directly.

What it means
GPUs of one machine exchange data by peer access: one writes straight into the memory of another. The
IOMMU or the access control of a bridge (ACS) turns such a write away, or sends it the long way round.

How we know
An IOMMU fault in the kernel log whose sender is one of several NVIDIA GPUs: that access was refused,
and among several cards it was most likely meant for another one.
Settings alone only make it possible: the IOMMU translates the addresses of the cards (domain type
DMA), or a switch that cards share redirects what they send each other to the processor (ReqRedir,
CmpltRedir).

Why it matters
A training on several cards hangs in its first step, or its loss becomes NaN, while every card alone
works. The driver may say all the same that peer access is possible.

What to do
In the firmware setup of a machine that runs no virtual machines, switch ACS and the IOMMU (VT-d,
AMD-Vi) off, or boot with iommu=pt. Until then NCCL_P2P_DISABLE=1 makes NCCL go through host memory.

When it is wrong
Many machines work with these settings; then nothing need be changed. An IOMMU that translates is therefore
information, a switch that redirects a warning. GeForce RTX cards have no peer
access over PCIe, so that there is nothing to block. Cards behind NVLink switches, and cards in virtual
machines, are not judged by settings. A card that is passed to a virtual machine is left out.

Sources
https://github.com/tensorflow/tensorflow/issues/32654 (faults of two cards, endless waiting)
https://github.com/tensorflow/tensorflow/issues/57893 (NaN until ACS was switched off)
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html (PCI access control)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpucheck.facts import Gpu, Machine, PciFunction, pci_address
from gpucheck.findings import Evidence, Finding, NextTest, Reading, Severity, finding
from gpucheck.rules import View
from gpucheck.rules._links import below, has_nvswitch, is_virtual
from gpucheck.rules._shared import ADDRESS, labels, log_evidence, log_lines, pci_source, subject
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ("gpus",)

_H = "[0-9a-fA-F]"
_INTEL = rf"DMAR: ?\[DMA [^\]]*\] Request device \[(?:0x)?({_H}{{2}}):(?:0x)?({_H}{{2}}\.[0-7])\]"
_AMD = rf"(?:({ADDRESS}): AMD-Vi: Event logged \[IO_PAGE_FAULT |IO_PAGE_FAULT device=({ADDRESS}) )"
_REDIRECTS = {"ReqRedir", "CmpltRedir"}


def _peers(machine: Machine) -> list[Gpu]:
    """NVIDIA cards that the host itself uses; empty where there is only one."""
    peers = [g for g in machine.gpus or () if g.vendor == "nvidia" and g.on_pci and g.driver != "vfio-pci"]
    return peers if len(peers) > 1 else []


def _sender(line: str, peers: list[Gpu]) -> Gpu | None:
    """The card whose access an IOMMU refused. Intel's message leaves the domain out."""
    if found := re.search(_INTEL, line):
        ending = f":{found[1]}:{found[2]}".lower()
        named = [gpu for gpu in peers if gpu.address.endswith(ending)]
        return named[0] if len(named) == 1 else None
    if found := re.search(_AMD, line):
        address = pci_address(found[1] or found[2])
        return next((gpu for gpu in peers if gpu.address == address), None)
    return None


def lacks(machine: Machine) -> Iterator[str]:
    """What would tell, on a machine with several cards."""
    peers = _peers(machine)
    if not peers:
        return
    if machine.kernel_log is None:
        yield "kernel_log"
    for gpu in peers:
        if gpu.iommu_group is not None and gpu.iommu_domain is None:
            yield f"gpus.{gpu.address}.iommu_domain"
    if any(bridge.acs is None for bridge in _of_shared_switches(machine)):
        yield "pci.bridges"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """What was refused; only where nothing was, what the settings may do."""
    peers = _peers(machine)
    faults: list[Evidence] = []
    senders: dict[str, Gpu] = {}
    if machine.kernel_log is not None and peers:
        for _, line in log_lines(machine, "DMAR:", "IO_PAGE_FAULT"):
            if (gpu := _sender(line, peers)) is not None:
                senders[gpu.address] = gpu
                faults.append(log_evidence(machine.kernel_log, line))
    if faults:
        cards = list(senders.values())
        yield finding(
            "peer-access-blocked",
            "error",
            subject(cards),
            say(
                plural(
                    len(cards),
                    "The IOMMU refuses what {cards} sends: most likely peer access between the cards is blocked.",
                    "The IOMMU refuses what {cards} send: most likely peer access between the cards is blocked.",
                ),
                cards=labels(cards),
            ),
            evidence=(*dict.fromkeys((*faults[:3], faults[-1])), *_translated(cards)),
            remedy=_remedy(),
            next_test=_tests(),
            confidence="likely",
        )
    elif peers and not is_virtual(machine) and not has_nvswitch(machine):
        yield from _by_settings(machine, view, peers)


def _translated(gpus: list[Gpu]) -> Iterator[Evidence]:
    for gpu in gpus:
        if gpu.iommu_domain is not None and gpu.iommu_domain.startswith("DMA"):
            text = say("IOMMU domain type: {type}", type=gpu.iommu_domain)
            yield Evidence(source=pci_source(gpu.address), text=text)


def _redirected(machine: Machine) -> Iterator[Evidence]:
    """Ports of a switch that several cards share which send peer traffic to the processor. At a root
    port it goes there in any case."""
    for bridge in _of_shared_switches(machine):
        if _REDIRECTS & set(bridge.acs or ()):
            text = "ACSCtl: " + " ".join(f"{service}+" for service in bridge.acs or ())
            yield Evidence(source=pci_source(bridge.address), text=text)


def _of_shared_switches(machine: Machine) -> list[PciFunction]:
    """Bridges above a card whose own bridge has more cards below."""
    gpus = below(machine).gpus
    return [
        bridge
        for bridge in machine.pci or ()
        if bridge.is_bridge and bridge.address in gpus and len(gpus.get(bridge.parent or "", ())) > 1
    ]


def _by_settings(machine: Machine, view: View, peers: list[Gpu]) -> Iterator[Finding]:
    translated, redirected = tuple(_translated(peers)), tuple(_redirected(machine))
    if len(translated) < 2 and not redirected:
        return
    # An IOMMU that translates is how most servers come, and most of them train all the same.
    plain = not redirected or all(_has_no_peers(gpu, view) for gpu in peers)
    severity: Severity = "info" if plain else "warning"
    if translated and redirected:
        message = say("The IOMMU and the access control of a PCIe switch may block peer access between the cards.")
    elif translated:
        message = say("The IOMMU translates what the cards send: it may block peer access between them.")
    else:
        count = len(redirected)
        one = "A port of a PCIe switch redirects what the cards send each other: it may block peer access."
        many = "{count} ports of PCIe switches redirect what the cards send each other: they may block peer access."
        message = say(plural(count, one, many), count=count)
    yield finding(
        "peer-access-blocked",
        severity,
        "machine",
        message,
        evidence=(*translated[:4], *redirected[:4]),
        remedy=(say("Change nothing while trainings on several cards work."), *_remedy()),
        next_test=_tests(),
        confidence="possible",
    )


def _has_no_peers(gpu: Gpu, view: View) -> bool:
    """Whether such cards have no peer access over PCIe, whatever the settings: by the catalog, else by the name."""
    if view.catalog is not None and gpu.catalog_gpu is not None:
        told = view.catalog.card(gpu.catalog_gpu).peer_to_peer
        if told is not None:
            return told.pcie == "no"
    return gpu.name is not None and "GeForce RTX" in gpu.name


def _remedy() -> tuple[str, ...]:
    return (
        say("To go on at once: NCCL_P2P_DISABLE=1 in the environment of the training."),
        say("Switch ACS off in the firmware setup, and the IOMMU (VT-d, AMD-Vi) where no virtual machines run."),
        say("Or keep the IOMMU and boot with iommu=pt on the kernel command line."),
    )


def _tests() -> tuple[NextTest, ...]:
    return (
        NextTest(
            do=say("Run a training on two cards as it is, and once more with NCCL_P2P_DISABLE=1."),
            outcomes=(
                Reading(
                    seen=say("It works only with NCCL_P2P_DISABLE=1"),
                    means=say("Peer access is blocked: IOMMU or ACS."),
                ),
                Reading(seen=say("It works both ways"), means=say("Peer access is not blocked.")),
                Reading(seen=say("It fails both ways"), means=say("The cause is another one.")),
            ),
        ),
    )
