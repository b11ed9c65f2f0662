"""What NVML says: lost cards, hangs, calls that a card does not know, MIG, power, cards without a PCI function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from machines.build import (
    GIB,
    MIB,
    OK,
    PRESENT,
    Bar,
    Board,
    Document,
    Function,
    Golden,
    NvmlCard,
    nvml,
    port,
)
from machines.golden import (
    DELL_1100,
    SLOT_4,
    SLOT_6,
    k80_one_card,
    r730,
    r730_nvml_timeout,
    r730_psu_unplugged,
    r730_two_p40,
    two_p40,
    wsl_one_rtx_3060,
)

from cases import THREADS, case

XEON = "Intel(R) Xeon(R) CPU E5-2690 v3 @ 2.60GHz"
NOT_SUPPORTED = 3


def answer(call: str, value: Any) -> Document:
    return {"call": call, "code": 0, "value": value}


def unsupported(*calls: str) -> list[Document]:
    return [{"call": call, "code": NOT_SUPPORTED} for call in calls]


def loaded(reasons: int, clock: int, most: int, milliwatts: int) -> list[Document]:
    """A card that works at full load, with NVML's reasons for its clock."""
    return [
        answer("nvmlDeviceGetUtilizationRates", {"gpu": 100, "memory": 40}),
        answer("nvmlDeviceGetPerformanceState", 0),
        answer("nvmlDeviceGetClockInfo", clock),
        answer("nvmlDeviceGetMaxClockInfo", most),
        answer("nvmlDeviceGetPowerUsage", milliwatts),
        answer("nvmlDeviceGetCurrentClocksThrottleReasons", reasons),
    ]


def hangs_in(call: str, index: int, made: Golden, **more: Any) -> Golden:
    """The same machine, whose NVML hangs in a call."""
    answers: Document = {**(made.nvml or {}), "timed_out": True, "exit_code": None}
    calls: Sequence[Document] = answers["calls"]
    cut = next(n for n, each in enumerate(calls) if (each["call"], each.get("device")) == (call, index))
    return replace(made, nvml={**answers, "calls": [*calls[:cut], {"call": call, "device": index}]}, **more)


# --- lost ---------------------------------------------------------------------------------------


@case(
    "C020",
    "A lost card makes every question fail, and a tool shows the bare error",
    THREADS + "leptonai/gpud/issues/604",
    first="gpu-fell-off-bus",
    confidence="certain",
    settled=True,
    absent=("nvml-gpu-lost", "gpu-count-mismatch", "nvml-unavailable"),
    says=("Xid (PCI:0000:82:00): 79", "error 15, GPU is lost"),
)
def lost_in_the_middle() -> Golden:
    lost = NvmlCard(SLOT_4, fails={"nvmlDeviceGetMemoryInfo": 15})
    log = ("NVRM: Xid (PCI:0000:82:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",)
    return r730(*two_p40(dead=True), nvml=nvml(NvmlCard(SLOT_6), lost), log=log)


@case(
    "C022",
    "A card without a handle drops out of the metrics unseen",
    THREADS + "NVIDIA/dcgm-exporter/issues/604",
    first="nvml-gpu-lost",
    confidence="possible",
    settled=False,
    absent=("gpu-count-mismatch",),
    says=(SLOT_4, "PCIe Slot 4", "GPU-00000000-1b38-4000-8000-000000000001", "error 999"),
)
def without_a_handle() -> Golden:
    closed = NvmlCard(SLOT_4, fails={"nvmlDeviceGetHandleByIndex": 999})
    log = ("NVRM: GPU at PCI:0000:82:00: GPU-00000000-1b38-4000-8000-000000000001",)
    return r730(*two_p40(), nvml=nvml(NvmlCard(SLOT_6), closed), log=log)


@case(
    "C052",
    "One lost card and the whole list is empty",
    THREADS + "rossumai/nvgpu/issues/6",
    first="nvml-gpu-lost",
    confidence="likely",
    settled=True,
    absent=("gpu-count-mismatch", "nvml-unavailable"),
    says=("nvmlDeviceGetHandleByIndex", "device 1: error 15"),
)
def one_lost_of_two() -> Golden:
    lost = NvmlCard(SLOT_4, fails={"nvmlDeviceGetHandleByIndex": 15})
    return r730(*two_p40(), nvml=nvml(NvmlCard(SLOT_6), lost))


@case(
    "C128",
    "A card leaves the bus without a word, and the driver still lists it",
    THREADS + "NVIDIA/open-gpu-kernel-modules/issues/1283",
    first="gpu-count-mismatch",
    confidence="likely",
    settled=False,
    says=("no longer on the PCI bus", SLOT_4),
)
def gone_without_a_word() -> Golden:
    first, _ = two_p40()
    return r730(first, nvml=nvml(NvmlCard(SLOT_6), NvmlCard(SLOT_4)), device_files=2)


# --- hangs --------------------------------------------------------------------------------------


@case(
    "C065",
    "nvidia-smi sleeps for ever in the driver after Xid 45",
    THREADS + "leptonai/gpud/pull/117",
    first="nvml-timeout",
    confidence="certain",
    settled=True,
    absent=("gpu-count-mismatch", "nvml-unavailable"),
    says=("blocked for more than 120 seconds", "nvmlDeviceGetPowerUsage"),
)
def asleep_in_the_driver() -> Golden:
    log = (
        "NVRM: Xid (PCI:0000:82:00): 45, pid=4120, Ch 00000008",
        "INFO: task cache_mgr_event:4120 blocked for more than 120 seconds.",
    )
    return replace(r730_nvml_timeout(), log=log)


@case(
    "C066",
    "A watchdog that waits for the driver waits with it",
    THREADS + "NVIDIA/NVSentinel/issues/1576",
    first="nvml-timeout",
    confidence="certain",
    settled=True,
    absent=("gpu-count-mismatch",),
    says=(f"NVML hung in nvmlDeviceGetMemoryInfo of device 1 ({SLOT_4})",),
)
def hung_at_the_second_card() -> Golden:
    return hangs_in("nvmlDeviceGetMemoryInfo", 1, r730_two_p40(), log=())


# --- what a card or driver does not tell --------------------------------------------------------


@case(
    "C049",
    "Fan and power limit are not supported by a laptop's card",
    THREADS + "wookayin/gpustat/issues/144",
    first=None,
    settled=False,
    absent=("nvml-gpu-lost", "nvml-unavailable", "power-brake"),
)
def laptop_without_a_power_limit() -> Golden:
    refused = unsupported("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetFanSpeed", "nvmlDeviceGetEccMode")
    return r730(*two_p40(), nvml=nvml(NvmlCard(SLOT_6, more=refused), NvmlCard(SLOT_4, more=refused)))


@case(
    "C050",
    "Driver 555.85 under WSL 2 gives names that are no text",
    THREADS + "wookayin/gpustat/issues/170",
    first=None,
    settled=True,
    absent=("nvml-unavailable", "gpu-count-mismatch"),
)
def names_that_are_no_text() -> Golden:
    card = NvmlCard(
        "0000:01:00.0",
        name="\ufffd\ufffd\ufffd\x01",
        pci_id=0x220610DE,
        subsystem_id=0x398A1462,
        memory=10 * GIB,
        bar1=256 * MIB,
        compute=(8, 6),
        watts=320,
        max_gen=4,
    )
    return replace(wsl_one_rtx_3060(), nvml=nvml(card, driver="555.85"))


def grace(*cards: Function, node_list: str, listed: Document) -> Golden:
    """An Arm machine with one processor and its cards."""
    version = next(each["value"] for each in listed["calls"] if each["call"] == "nvmlSystemGetDriverVersion")
    made = Golden(
        functions=tuple(port(f"{card.address[:4]}:00:00.0", card) for card in cards),
        nvml=listed,
        packages=1,
        modules=("nvidia_uvm", "nvidia"),
        driver_version=version,
        library=version,
    )
    return replace(made, more={"/sys/devices/system/node/has_cpu": node_list})


@case(
    "C057",
    "GB10 shares the memory of its processor: NVML knows no memory, no BAR1, no power limit",
    THREADS + "lablup/all-smi/issues/80",
    first=None,
    settled=True,
    absent=("bar-unassigned", "link-width-reduced", "nvml-gpu-lost"),
)
def unified_memory() -> Golden:
    gpu = Function("000f:01:00.0", "10de:2e12", 0x030200, driver="nvidia", bars=(Bar(0, 64 * MIB, 0x6_0000_0000),))
    refused = unsupported("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetEnforcedPowerLimit")
    card = NvmlCard(gpu.address, name="NVIDIA GB10", pci_id=0x2E1210DE, subsystem_id=0, compute=(12, 1), width=1, gen=1)
    return grace(gpu, node_list="0\n", listed=nvml(replace(card, more=refused), driver="580.95.05"))


@case(
    "C059",
    "GH200: NVML gives no BAR1, and a plugin gives up",
    THREADS + "hashicorp/nomad-device-nvidia/pull/87",
    first=None,
    settled=True,
    absent=("bar-unassigned",),
)
def no_bar1_in_nvml() -> Golden:
    bars = (Bar(0, 16 * MIB, 0x4_0000_0000), Bar(2, 128 * GIB, 0x42_0000_0000))
    gpu = Function("0009:01:00.0", "10de:2342", 0x030200, driver="nvidia", bars=bars)
    card = NvmlCard(
        gpu.address, name="NVIDIA GH200 480GB", pci_id=0x234210DE, memory=96 * GIB, compute=(9, 0), max_gen=5
    )
    refused = unsupported("nvmlDeviceGetBAR1MemoryInfo")
    return grace(gpu, node_list="0\n", listed=nvml(replace(card, more=refused), driver="580.95.05"))


@case(
    "C113",
    "Grace Hopper: the cards' memory shows as NUMA nodes without processors",
    THREADS + "pika-org/pika/issues/1223",
    first=None,
    settled=True,
    absent=("cpu-socket-empty",),
)
def nodes_without_processors() -> Golden:
    bars = (Bar(0, 16 * MIB, 0x4_0000_0000), Bar(2, 128 * GIB, 0x42_0000_0000))
    domains = ("0009", "0019", "0029", "0039")
    gpus = [Function(f"{d}:01:00.0", "10de:2342", 0x030200, driver="nvidia", bars=bars, node=None) for d in domains]
    cards = [NvmlCard(g.address, name="NVIDIA GH200 120GB", pci_id=0x234210DE, memory=96 * GIB) for g in gpus]
    made = grace(*gpus, node_list="0-3\n", listed=nvml(*cards, driver="560.35.03"))
    return replace(made, packages=4, nodes=4)


@case(
    "C061",
    "A board without any DMI in sysfs",
    THREADS + "archlinux/archinstall/issues/3770",
    first=None,
    settled=True,
    absent=("cpu-socket-empty", "gpu-count-mismatch"),
)
def no_dmi() -> Golden:
    return replace(r730_two_p40(), board=None)


@case(
    "C062",
    "Only the raw DMI table is there, without the entries of dmi-sysfs",
    THREADS + "open-mpi/hwloc/issues/598",
    first="psu-unplugged",
    confidence="certain",
    settled=True,
    says=("PSU.Slot.2",),
)
def raw_table_alone() -> Golden:
    return r730_psu_unplugged()


# --- no PCI function ----------------------------------------------------------------------------


@case(
    "C100",
    "WSL 2 has no PCI function for the card",
    THREADS + "NVIDIA/nccl/issues/442",
    first=None,
    settled=True,
    absent=("gpu-count-mismatch", "no-gpu-found", "driver-not-installed"),
)
def no_pci_under_wsl() -> Golden:
    return wsl_one_rtx_3060()


@case(
    "C126",
    "Jetson: NVML lists the card of the processor without an address, and little more",
    THREADS + "AhmedARadwan/ros2top/issues/2",
    first=None,
    settled=True,
    absent=("no-gpu-found", "gpu-count-mismatch", "nvml-gpu-lost", "driver-not-installed"),
)
def jetson() -> Golden:
    orin = NvmlCard("0000:00:00.0", name="Orin (nvgpu)", compute=(8, 7))
    refused = unsupported("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetBAR1MemoryInfo")
    listed = nvml(replace(orin, more=refused), driver="540.4.0")
    calls = [
        {"call": each["call"], "device": 0, "code": NOT_SUPPORTED} if each["call"] == "nvmlDeviceGetPciInfo" else each
        for each in listed["calls"]
    ]
    return Golden(
        nvml={**listed, "calls": calls},
        packages=1,
        modules=("nvgpu", "nvidia"),
        driver_version="540.4.0",
        library="540.4.0",
        efi=False,
    )


# --- MIG ----------------------------------------------------------------------------------------


def a100(parts: int) -> Golden:
    """An R730 with one A100 in MIG mode, cut into so many parts."""
    card = Function(
        SLOT_6, "10de:20f1", 0x030200, subsystem="10de:145f", driver="nvidia", width=16, max_width=16,
        bars=(Bar(0, 16 * MIB, 0x9200_0000, small=True), Bar(1, 64 * GIB, 0x3800_0000_0000)),
    )  # fmt: skip
    place = "nvmlDeviceGetMigDeviceHandleByIndex"
    mig = [
        answer("nvmlDeviceGetMigMode", [1, 1]),
        answer("nvmlDeviceGetMaxMigDeviceCount", 7),
        *({"call": place, "arguments": [n], "code": 0 if n < parts else 6} for n in range(7)),
    ]
    seen = NvmlCard(SLOT_6, name="NVIDIA A100-PCIE-40GB", pci_id=0x20F110DE, memory=40 * GIB, compute=(8, 0), more=mig)
    return r730(card, nvml=nvml(seen))


@case(
    "C085",
    "An A100 in MIG mode: a process sees one device",
    THREADS + "pytorch/pytorch/issues/102715",
    first="mig-limits-process",
    confidence="certain",
    settled=True,
    absent=("gpu-count-mismatch",),
    expect_gpus=1,
    says=("3 MIG devices", "by design"),
)
def mig_with_three_parts() -> Golden:
    return a100(3)


@case(
    "C086",
    "MIG is on and nothing has been made yet",
    THREADS + "NVIDIA/gpu-feature-discovery/issues/24",
    first="mig-limits-process",
    confidence="certain",
    settled=True,
    says=("CUDA sees nothing",),
)
def mig_without_parts() -> Golden:
    return a100(0)


# --- power --------------------------------------------------------------------------------------


@case(
    "C073",
    "A C4130 brakes a V100 that is not in its table: 382 MHz",
    THREADS + "l4rz/reverse-engineering-dell-idrac-to-get-rid-of-gpu-throttling",
    first="power-brake",
    confidence="possible",
    settled=True,
    says=("382 of 1530 MHz", "iDRAC", "10de:1249", "power supplies"),
)
def braked_by_the_bmc() -> Golden:
    gpu = Function(
        "0000:04:00.0", "10de:1db5", 0x030200, subsystem="10de:1249", driver="nvidia", width=16, max_width=16,
        bars=(Bar(0, 16 * MIB, 0x9200_0000, small=True), Bar(1, 32 * GIB, 0x3800_0000_0000)),
    )  # fmt: skip
    card = NvmlCard(
        gpu.address, name="Tesla V100-SXM2-32GB", pci_id=0x1DB510DE, subsystem_id=0x124910DE, memory=32 * GIB,
        compute=(7, 0), watts=300, more=loaded(0x88, 382, 1530, 52_000),
    )  # fmt: skip
    board = Board(
        vendor="Dell Inc.",
        product="PowerEdge C4130",
        board="0VCHW8",
        sockets={"CPU1": XEON, "CPU2": XEON},
        psus=(("PSU.Slot.1", DELL_1100, 1600, PRESENT | OK), ("PSU.Slot.2", DELL_1100, 1600, PRESENT | OK)),
    )
    return Golden(functions=(port("0000:00:02.0", gpu),), board=board, nvml=nvml(card))


@case(
    "C074",
    "An A100 is capped near 240 of its 400 W",
    THREADS + "l4rz/reverse-engineering-dell-idrac-to-get-rid-of-gpu-throttling/issues/3",
    first="power-brake",
    confidence="possible",
    settled=False,
    says=("SW power cap", "240 W of 400 W"),
)
def capped_below_its_limit() -> Golden:
    gpu = Function(
        SLOT_6, "10de:20b2", 0x030200, subsystem="10de:1463", driver="nvidia", width=16, max_width=16,
        bars=(Bar(0, 16 * MIB, 0x9200_0000, small=True), Bar(1, 128 * GIB, 0x3800_0000_0000)),
    )  # fmt: skip
    card = NvmlCard(
        gpu.address, name="NVIDIA A100-SXM4-80GB", pci_id=0x20B210DE, subsystem_id=0x146310DE, memory=80 * GIB,
        compute=(8, 0), watts=400, more=loaded(0x4, 990, 1410, 240_000),
    )  # fmt: skip
    return replace(r730(), functions=(port("0000:00:02.0", gpu),), board=None, nvml=nvml(card))


# --- counting -----------------------------------------------------------------------------------


@case(
    "C093",
    "A K80 is one card and two GPUs of 12 GB",
    THREADS + "rcgsheffield/sheffield_hpc/pull/1030",
    first=None,
    settled=True,
    expect_gpus=2,
    absent=("gpu-count-mismatch", "bar-unassigned"),
)
def two_gpus_on_a_card() -> Golden:
    return k80_one_card()
