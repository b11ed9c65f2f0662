from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpucheck.catalog import load
from gpucheck.facts import Cpu, Machine
from rules.machines import L40S, amd, bridge, function, gpu, log, machine, missing, names, only

FIRST, SECOND = "0000:02:00.0", "0000:82:00.0"
TRANSLATED = {"iommu_group": 7, "iommu_domain": "DMA-FQ"}
REDIRECTS = ("SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd")


def two(*lines: str, first: dict[str, Any] | None = None, **known: Any) -> Machine:
    traits = known.pop("card", {})
    return machine(gpu(FIRST, **{**traits, **(first or {})}), gpu(SECOND, **traits), kernel_log=log(*lines), **known)


def switched(
    acs: tuple[str, ...] | None,
    root: tuple[str, ...] | None = (),
    card: Mapping[str, Any] | None = None,
    **known: Any,
) -> Machine:
    """Two cards behind one switch."""
    addresses = ("0000:04:00.0", "0000:05:00.0")
    pci = (
        bridge("0000:00:02.0", acs=root),
        bridge("0000:02:00.0", "0000:00:02.0", acs=()),
        bridge("0000:03:08.0", "0000:02:00.0", acs=acs),
        bridge("0000:03:10.0", "0000:02:00.0", acs=acs),
        function(addresses[0], L40S, 0x030200, parent="0000:03:08.0"),
        function(addresses[1], L40S, 0x030200, parent="0000:03:10.0"),
    )
    return machine(*(gpu(address, **card or {}) for address in addresses), **{"pci": pci, **known})


@pytest.mark.parametrize(
    "line",
    [
        "DMAR: [DMA Write] Request device [02:00.0] fault addr f8139000 [fault reason 05] PTE Write access is not set",
        "DMAR:[DMA Read] Request device [02:00.0] fault addr f8139000",
        "DMAR: [DMA Write NO_PASID] Request device [0x02:0x00.0] fault addr 0x1000 [fault reason 0x05] not set",
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=02:00.0 domain=0x000e address=0xd0000000 flags=0x0020]",
        "AMD-Vi: Event logged [IO_PAGE_FAULT device=0000:02:00.0 domain=0x000e address=0xd0000000 flags=0x0020]",
        "nvidia 0000:02:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000d address=0xd0000000 flags=0x0020]",
    ],
)
def test_fires_on_a_fault_of_a_card(line: str) -> None:
    finding = only("peer-access-blocked", two(line))
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "likely", FIRST)
    assert " sends: most likely" in finding.message
    assert finding.evidence[0].text == line
    assert "NCCL_P2P_DISABLE=1" in finding.next_test[0].do


def test_fires_as_possible_on_settings() -> None:
    finding = only("peer-access-blocked", two(card=TRANSLATED))
    assert (finding.severity, finding.confidence, finding.subject) == ("info", "possible", "machine")
    assert [evidence.text for evidence in finding.evidence] == ["IOMMU domain type: DMA-FQ"] * 2
    finding = only("peer-access-blocked", switched(REDIRECTS))
    assert (finding.severity, finding.confidence) == ("warning", "possible")
    assert finding.evidence[0].text == "ACSCtl: SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+"


def test_cards_without_peer_access_over_pcie_have_nothing_to_lose() -> None:
    geforce = {"name": "NVIDIA GeForce RTX 4090"}
    assert only("peer-access-blocked", switched(REDIRECTS, card=geforce)).severity == "info"
    known = {"name": None, "catalog_gpu": "nvidia-geforce-rtx-4090"}
    assert only("peer-access-blocked", switched(REDIRECTS, card=known), catalog=load()).severity == "info"
    able = {"name": None, "catalog_gpu": "nvidia-geforce-gtx-1080-ti"}
    assert only("peer-access-blocked", switched(REDIRECTS, card=able), catalog=load()).severity == "warning"


FAULT = "DMAR: [DMA Write] Request device [02:00.0] fault addr f8139000"


@pytest.mark.parametrize(
    "quiet",
    [
        two(),
        two(card={"iommu_group": 7, "iommu_domain": "identity"}),
        two(first=TRANSLATED),
        machine(gpu(FIRST, **TRANSLATED), kernel_log=log(FAULT)),
        machine(gpu(FIRST, **TRANSLATED), amd(**TRANSLATED), kernel_log=log(FAULT)),
        machine(amd(FIRST), amd(SECOND), kernel_log=log(FAULT)),
        two("DMAR: [DMA Write] Request device [00:1f.2] fault addr f8139000"),
        two("DMAR: [INTR-REMAP] Request device [02:00.0] fault index 25"),
        two("DMAR: DRHD: handling fault status reg 3"),
        two(FAULT, first={"driver": "vfio-pci"}),
        two(card=TRANSLATED, cpu=Cpu(hypervisor="KVM")),
        two(card=TRANSLATED, pci=(function("0000:90:00.0", "10de:22a3", 0x068000),)),
        switched(()),
        switched(("SrcValid",)),
        switched((), root=REDIRECTS),
    ],
    ids=[
        "no IOMMU", "identity", "one of two", "one card", "one of each maker", "AMD", "a disk", "interrupts",
        "no sender", "a virtual machine's card", "in a virtual machine",
        "NVSwitch", "ACS off", "no redirect", "root ports",
    ],
)  # fmt: skip
def test_quiet(quiet: Machine) -> None:
    assert "peer-access-blocked" not in names(quiet)


def test_unchecked_where_settings_or_log_were_not_read() -> None:
    name = "peer-access-blocked"
    unread = machine(gpu(FIRST, iommu_group=1), gpu(SECOND), kernel_log=None)
    assert missing(name, unread) == ("kernel_log", f"gpus.{FIRST}.iommu_domain")
    assert missing(name, switched(None)) == ("pci.bridges",)
    assert missing(name, machine(gpu(FIRST, iommu_group=1), kernel_log=None)) == ()
    assert missing(name, machine(gpus=None)) == ("gpus",)
