"""No driver, the wrong one, one that cannot start the card, and cards that fell off the bus."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from machines.build import GIB, MIB, Bar, Board, Function, Golden, NvmlCard, nvml, nvml_fails, p40
from machines.golden import NO_NVIDIA, SLOT_4, SLOT_6, r730

from cases import THREADS, case


def open_modules(version: str) -> dict[str, str]:
    """The open flavour of the driver, loaded."""
    loaded = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n"
    return {"/proc/driver/nvidia/version": loaded}


def card(address: str, ids: str, **traits: Any) -> Function:
    """A card with the traits of a P40 and another id."""
    return replace(p40(address), ids=ids, **{"subsystem": None, **traits})


@case(
    "C016",
    "One card falls off the bus while it plays",
    THREADS + "NVIDIA/open-gpu-kernel-modules/issues/507",
    first="gpu-fell-off-bus",
    confidence="certain",
    settled=False,
    says=("Heat: ", "Power: ", "System BIOS: ", "nvidia-smi -lgc 300,1500"),
)
def falls_off_under_load() -> Golden:
    log = ("NVRM: Xid (PCI:0000:04:00): 79, pid=4120, name=game, GPU has fallen off the bus.",)
    gone = card(SLOT_6, "10de:24a0", dead=True)
    lost = NvmlCard(SLOT_6, fails={"nvmlDeviceGetHandleByIndex": 15})
    return r730(gone, nvml=nvml(lost, driver="530.41.03"), driver_version="530.41.03", library="530.41.03", log=log)


@case(
    "C018",
    "A card is off the bus when the driver starts, and there is no Xid",
    THREADS + "NVIDIA/NVSentinel/issues/155",
    first="gpu-fell-off-bus",
    confidence="certain",
    settled=True,
    absent=("xid-reported",),
    says=("has fallen off the bus and is not responding to commands",),
)
def off_the_bus_at_start() -> Golden:
    cards = card(SLOT_6, "10de:26b5"), card(SLOT_4, "10de:26b5", driver=None, node=1)
    log = (
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
        "NVRM: The NVIDIA GPU 0000:82:00.0 (PCI ID: 10de:26b5)\\x0aNVRM: installed in this system has fallen off the "
        "bus and is\\x0aNVRM: not responding to commands.",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
    )
    return r730(*cards, nvml=nvml(NvmlCard(SLOT_6)), log=log, more=open_modules("570.158.01"))


@case(
    "C019",
    "The message that a card is gone is spread over lines, and the address stands on another one",
    THREADS + "leptonai/gpud/pull/1209",
    first="gpu-fell-off-bus",
    confidence="certain",
    settled=True,
    says=("GPU 0000:82:00.0",),
)
def message_on_several_lines() -> Golden:
    cards = card(SLOT_6, "10de:2330"), card(SLOT_4, "10de:2330", driver=None, node=1)
    log = (
        "NVRM: The NVIDIA GPU 0000:82:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        "mlx5_core 0000:0a:00.0: Port module event: module 0, Cable plugged",
    )
    return r730(*cards, nvml=nvml(NvmlCard(SLOT_6)), log=log)


@case(
    "C054",
    "libnvidia-ml.so.1 is not found",
    THREADS + "wookayin/gpustat/issues/90",
    first="driver-not-installed",
    confidence="certain",
    settled=True,
    absent=("no-gpu-found", "nvml-unavailable", "gpu-count-mismatch"),
    says=("No NVIDIA driver is installed",),
)
def no_library() -> Golden:
    cards = p40(SLOT_6, 0, driver=None), p40(SLOT_4, 1, node=1, driver=None)
    return r730(*cards, **NO_NVIDIA)


@case(
    "C056",
    "A kernel module patched for peer to peer beside a library with another last number",
    THREADS + "tinygrad/open-gpu-kernel-modules/issues/47",
    first="driver-library-mismatch",
    confidence="certain",
    settled=True,
    says=("570.124.06", "570.124.04", "built by hand"),
)
def patched_module() -> Golden:
    log = (
        "NVRM: API mismatch: the client has the version 570.124.04, but",
        "NVRM: this kernel module has the version 570.124.06.  Please",
        "NVRM: make sure that this kernel module and all NVIDIA driver",
        "NVRM: components have the same version.",
    )
    more = open_modules("570.124.06")
    cards = card(SLOT_6, "10de:2684"), card(SLOT_4, "10de:2684", node=1)
    return r730(*cards, nvml=nvml_fails(18), library="570.124.04", log=log, more=more)


@case(
    "C080",
    "Tesla P4 invisible: the open kernel modules are loaded",
    THREADS + "zzzhouuu/truenas-nvidia-drivers/issues/20",
    first="open-module-unsupported",
    confidence="certain",
    settled=True,
    absent=("gpu-init-failed", "gpu-count-mismatch", "no-driver-bound"),
    says=("does not include the required GPU System Processor", "proprietary flavour of branch 580"),
)
def p4_under_open_modules() -> Golden:
    log = (
        "NVRM: The NVIDIA GPU 0000:04:00.0 (PCI ID: 10de:1bb3)\\x0aNVRM: installed in this system is not supported by "
        "open\\x0aNVRM: nvidia.ko because it does not include the required GPU\\x0aNVRM: System Processor (GSP).",
        "NVRM: GPU 0000:04:00.0: RmInitAdapter failed! (0x24:0x72:1603)",
        "NVRM: GPU 0000:04:00.0: rm_init_adapter failed, device minor number 0",
    )
    made = r730(card(SLOT_6, "10de:1bb3"), nvml=nvml(driver="580.178.04"), log=log, more=open_modules("580.178.04"))
    return replace(made, library="580.178.04")


@case(
    "C082",
    "RTX 3090: the firmware on the card does not come up",
    THREADS + "NVIDIA/open-gpu-kernel-modules/issues/789",
    first="gpu-init-failed",
    confidence="possible",
    settled=False,
    absent=("gpu-count-mismatch", "open-module-unsupported", "driver-dropped-gpu"),
    says=(
        "failed to wait for GFW boot complete",
        "Swap it with a card that works",
        "Only then install the driver again",
    ),
)
def gfw_does_not_boot() -> Golden:
    bars = (
        Bar(0, 16 * MIB, 0x9200_0000, small=True),
        Bar(1, 256 * MIB, 0x3800_0000_0000),
        Bar(3, 32 * MIB, 0x3800_2000_0000),
    )
    log = (
        "NVRM: gpuWaitForGfwBootComplete_TU102: failed to wait for GFW_BOOT: (progress 0x3)",
        "NVRM: kgspWaitForGfwBootOk_TU102: failed to wait for GFW boot complete: 0x65 VBIOS version 94.02.59.00.05",
        "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM",
        "NVRM: GPU 0000:04:00.0: RmInitAdapter failed! (0x62:0x65:1792)",
        "NVRM: GPU 0000:04:00.0: rm_init_adapter failed, device minor number 0",
    )
    made = r730(card(SLOT_6, "10de:2204", bars=bars), nvml=nvml(driver="550.144.03"), log=log)
    return replace(made, library="550.144.03", more=open_modules("550.144.03"))


@case(
    "C083",
    "One of eight H100 is called unsupported by the driver that drives its twins",
    THREADS + "NVIDIA/aicr/issues/1858",
    first="gpu-suspect",
    confidence="likely",
    settled=True,
    absent=("driver-dropped-gpu", "no-driver-bound"),
    says=("000a:00:00.0", "is not supported by the NVIDIA 580.126.09 driver release"),
)
def unsupported_among_twins() -> Golden:
    bars = (Bar(0, 16 * MIB, 0x9200_0000, small=True), Bar(2, 128 * GIB, 0x3800_0000_0000))
    domains = (*range(1, 8), 10)
    cards = tuple(
        card(f"{domain:04x}:00:00.0", "10de:2330", node=None, bars=bars, driver=None if domain == 10 else "nvidia")
        for domain in domains
    )
    h100 = {"name": "NVIDIA H100 80GB HBM3", "pci_id": 0x233010DE, "compute": (9, 0)}
    listed = (NvmlCard(made.address, **h100) for made in cards[:-1])
    log = (
        "NVRM: The NVIDIA GPU 000a:00:00.0 (PCI ID: 10de:2330)\\x0aNVRM: installed in this system is not supported by "
        "the\\x0aNVRM: NVIDIA 580.126.09 driver release.",
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
    )
    version = {"driver_version": "580.126.09", "library": "580.126.09"}
    flags = "fpu sse sse2 avx avx2 hypervisor"
    return Golden(functions=cards, nvml=nvml(*listed, driver="580.126.09"), log=log, flags=flags, **version)


CLOUD = Board(
    vendor="Microsoft Corporation",
    product="Virtual Machine",
    board="Virtual Machine",
    bios=("Microsoft Corporation", "Hyper-V UEFI Release v4.1", "05/13/2024"),
    sockets={"None": "Intel(R) Xeon(R) Platinum 8480C"},
    uuid=bytes(range(16)),
)
"""A virtual machine of a cloud, whose kind no file knows."""


@case(
    "C105",
    "A cloud machine without a driver: its cards are not missing",
    THREADS + "Azure/azhpc-diagnostics/pull/46",
    first="driver-not-installed",
    confidence="certain",
    settled=True,
    absent=("gpu-count-mismatch", "nvml-unavailable"),
)
def not_measured_is_not_missing() -> Golden:
    cards = tuple(card(f"000{n}:00:00.0", "10de:1db5", node=None, driver=None) for n in (1, 2))
    return Golden(functions=cards, board=CLOUD, flags="fpu sse avx hypervisor", **NO_NVIDIA)


@case(
    "C106",
    "A kind of machine that no file knows is judged all the same",
    THREADS + "Azure/azurehpc-health-checks/issues/133",
    first=None,
    settled=True,
    absent=("gpu-count-mismatch", "no-gpu-found"),
    expect_gpus=2,
)
def unknown_kind_of_machine() -> Golden:
    bars = (Bar(0, 16 * MIB, 0x9200_0000, small=True), Bar(2, 256 * GIB, 0x3800_0000_0000))
    cards = tuple(card(f"000{n}:00:00.0", "10de:2335", node=None, bars=bars) for n in (1, 2))
    listed = (NvmlCard(made.address, name="NVIDIA H200", pci_id=0x233510DE, compute=(9, 0)) for made in cards)
    return Golden(functions=cards, board=CLOUD, nvml=nvml(*listed), flags="fpu sse avx hypervisor")
