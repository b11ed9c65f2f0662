"""Cards without an address: Above 4G decoding, windows, virtual machines, too few address bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from machines.build import GIB, MIB, Bar, Board, Function, Golden, NvmlCard, nvml, nvml_fails, p40, port
from machines.golden import NO_NVIDIA, SLOT_6, X16, r730

from cases import THREADS, case

LOW = "pci_bus 0000:00: root bus resource [mem 0xc0000000-0xfeafffff window]"
LOADED: dict[str, Any] = {"nvml": nvml_fails(9), "device_files": 0}
"""The driver is installed and loaded, and found no card that it can use."""


def card(address: str, ids: str, *bars: Bar, class_id: int = 0x030200, **traits: Any) -> Function:
    known: dict[str, Any] = {"driver": None, "width": 16, "max_width": 16, "node": None, **traits}
    return Function(address, ids, class_id, bars=bars, **known)


def small(size: int = 16 * MIB, start: int = 0xF600_0000) -> Bar:
    """BAR 0: it always finds room below 4 GiB."""
    return Bar(0, size, start, small=True)


def desktop(*cards: Function, vendor: str, product: str, board: str, cpu: str, **traits: Any) -> Golden:
    """One processor, each card behind a root port of its own."""
    ports = tuple(port(f"0000:00:{number:02x}.0", one, node=None) for number, one in enumerate(cards, 1))
    firmware = Board(vendor=vendor, product=product, board=board, sockets={"CPU 1": cpu})
    return Golden(**{"functions": ports, "board": firmware, "packages": 1, "cpu": cpu, **LOADED, **traits})


def with_space(made: Golden, bits: int, memory_gib: int) -> Golden:
    """The same machine with other address bits and memory."""
    cpuinfo = made.kernel()["/proc/cpuinfo"].replace("46 bits", f"{bits} bits")
    files = {"/proc/cpuinfo": cpuinfo, "/proc/meminfo": f"MemTotal: {memory_gib * 1_027_000} kB\n"}
    board = replace(made.board, memory_gib=memory_gib) if made.board is not None else None
    return replace(made, board=board, more={**made.more, **files})


def refused(address: str, size: int, bar: int = 1) -> tuple[str, str]:
    """What the kernel says of a BAR for which it found no room."""
    where = f"pci {address}: BAR {bar}:"
    return (
        f"{where} no space for [mem size {size:#x} 64bit pref]",
        f"{where} failed to assign [mem size {size:#x} 64bit pref]",
    )


# --- Above 4G decoding --------------------------------------------------------------------------


@case(
    "C001",
    "V100 seen by lspci, rejected by the driver: BAR1 has no address",
    THREADS + "xCuri0/ReBarUEFI/issues/329",
    first="bar-unassigned",
    confidence="certain",
    settled=False,
    says=("BAR1 is 0M", "a memory BAR of 16 GiB", "pci=realloc", "root bus resource"),
    absent=("no-driver-bound", "gpu-fell-off-bus", "driver-dropped-gpu", "gpu-count-mismatch"),
    expect_gpus=1,
)
def bar1_is_0m() -> Golden:
    # The firmware's line of this BAR is all zero: its size comes from the catalog.
    v100 = card(SLOT_6, "10de:1db4", small(), Bar(1, 16 * GIB, None, wiped=True), node=0)
    log = (
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
        "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:04:00.0)",
        "nvidia: probe of 0000:04:00.0 failed with error -1",
    )
    made = r730(v100, **{**NO_NVIDIA, "modules": ("nvidia",), "module_installed": True})
    return replace(made, log=log, driver_version="570.158.01", library="570.158.01")


@case(
    "C006",
    "P40 on a Z77 board: the root bus has no window above 4 GiB",
    THREADS + "xCuri0/ReBarUEFI/issues/95",
    first="bar-unassigned",
    confidence="certain",
    settled=False,
    also=("address-space-too-small",),
    says=("no memory window above 4 GiB", LOW),
)
def no_window_above_4_gib() -> Golden:
    address = "0000:01:00.0"
    lost = card(address, "10de:1b38", small(), Bar(1, 32 * GIB, None))
    made = desktop(
        lost,
        vendor="ASUS",
        product="All Series",
        board="SABERTOOTH Z77",
        cpu="Intel(R) Core(TM) i7-3770 CPU @ 3.40GHz",
        log=(LOW, *refused(address, 32 * GIB), "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:01:00.0)"),
    )
    return with_space(made, 36, 8)


@case(
    "C009",
    "K40m in a workstation: the firmware assigns none of its BARs",
    "https://forums.developer.nvidia.com/t/k40-setup-on-lenovo-p510/64917/11",
    first="bar-unassigned",
    confidence="certain",
    settled=True,
    absent=("gpu-fell-off-bus", "driver-dropped-gpu", "no-driver-bound"),
    says=("Above 4G Decoding",),
)
def workstation_that_maps_nothing() -> Golden:
    lost = card("0000:01:00.0", "10de:1023", Bar(0, 16 * MIB, None, small=True), Bar(1, 16 * GIB, None))
    return desktop(
        lost,
        vendor="LENOVO",
        product="ThinkStation P510",
        board="1031",
        cpu="Intel(R) Xeon(R) CPU E5-1620 v4 @ 3.50GHz",
    )


@case(
    "C116",
    "Three cards work on an X99 board, the fourth stops the boot at d4",
    THREADS + "miyconst/Mi899/issues/39",
    first="gpu-count-mismatch",
    confidence="certain",
    settled=True,
    also=("bar-unassigned",),
    expect_gpus=4,
)
def legacy_boot_with_three_cards() -> Golden:
    cards = [
        card(
            f"0000:0{bus}:00.0", "10de:1f03", small(), Bar(1, 256 * MIB, 0xC000_0000 + bus * 0x1000_0000),
            class_id=0x030000, driver="nvidia",
        )
        for bus in (1, 2, 3)
    ]  # fmt: skip
    listed = nvml(*(NvmlCard(one.address, name="RTX 2060", pci_id=0x1F0310DE, bar1=256 * MIB) for one in cards))
    made = desktop(
        *cards,
        vendor="HUANANZHI",
        product="X99-F8",
        board="X99-F8",
        cpu="Intel(R) Xeon(R) CPU E5-2670 v3 @ 2.30GHz",
        nvml=listed,
        device_files=3,
        efi=False,
        log=(LOW,),
    )
    # The folder is there and says nothing of UEFI: so the boot was legacy, and the kernel's tables were read.
    return replace(made, more={**made.more, "/sys/firmware/acpi/tables/DSDT": ""})


# --- too few address bits -----------------------------------------------------------------------


@case(
    "C005",
    "M40 24 GB in an office PC of 2012: 36 address bits cannot hold it",
    THREADS + "xCuri0/ReBarUEFI/issues/77",
    first="address-space-too-small",
    confidence="certain",
    settled=True,
    absent=("bar-unassigned", "no-driver-bound"),
    says=("36 address bits span 64 GiB", "Take memory out"),
)
def bits_that_cannot_hold_the_bar() -> Golden:
    address = "0000:01:00.0"
    lost = card(address, "10de:17fd", small(), Bar(1, 32 * GIB, None))
    made = desktop(
        lost,
        vendor="Dell Inc.",
        product="OptiPlex 7010",
        board="0GY6Y8",
        cpu="Intel(R) Core(TM) i7-3770 CPU @ 3.40GHz",
        log=("BIOS-e820: [mem 0x0000000100000000-0x000000081f5fffff] usable", LOW, *refused(address, 32 * GIB)),
    )
    return with_space(made, 36, 32)


@case(
    "C007",
    "V100 32 GB on Z77: it depends on the amount of memory",
    THREADS + "xCuri0/ReBarUEFI/issues/381",
    first="bar-unassigned",
    confidence="certain",
    settled=False,
    also=("address-space-too-small",),
)
def bits_that_hold_it_with_little_memory() -> Golden:
    address = "0000:01:00.0"
    lost = card(address, "10de:1db6", small(), Bar(1, 32 * GIB, None))
    made = desktop(
        lost,
        vendor="Gigabyte Technology Co., Ltd.",
        product="Z77X-D3H",
        board="Z77X-D3H",
        cpu="Intel(R) Core(TM) i7-3770K CPU @ 3.50GHz",
        log=("BIOS-e820: [mem 0x0000000100000000-0x000000061f5fffff] usable", *refused(address, 32 * GIB)),
    )
    return with_space(made, 36, 24)


# --- very many cards ----------------------------------------------------------------------------


@case(
    "C013",
    "Thirteen GPUs in one desktop: addresses below 4 GB and I/O ports run out",
    "http://fastra2.ua.ac.be/?page_id=214",
    first="bar-unassigned",
    confidence="certain",
    settled=True,
    also=("bus-resources-exhausted",),
    says=("no memory window above 4 GiB",),
)
def thirteen_gpus() -> Golden:
    cards, said = [], [LOW]
    for bus in range(1, 14):
        address, placed = f"0000:{bus:02x}:00.0", bus < 9
        bars = (small(start=0xF000_0000 + bus * MIB * 16), Bar(1, 256 * MIB, 0xC000_0000 if placed else None))
        cards.append(card(address, "10de:05eb", *bars, class_id=0x030000))
        if not placed:
            said += refused(address, 256 * MIB)
            said.append(f"pci {address}: BAR 5: no space for [io  size 0x0080]")
    made = desktop(
        *cards, vendor="ASUS", product="P6T7 WS", board="P6T7 WS", cpu="Intel(R) Core(TM) i7 CPU 920 @ 2.67GHz",
        log=tuple(said),
    )  # fmt: skip
    return replace(made, **NO_NVIDIA)


# --- virtual machines ---------------------------------------------------------------------------

GUEST_FLAGS = "fpu sse sse2 avx avx2 hypervisor"


def guest(*cards: Function, vendor: str, product: str, **traits: Any) -> Golden:
    board = Board(vendor=vendor, product=product, board="Not Specified", sockets={"CPU 0": "virtual"})
    known: dict[str, Any] = {"functions": cards, "board": board, "packages": 1, "flags": GUEST_FLAGS}
    return Golden(**{**known, **LOADED, **traits})


@case(
    "C077",
    "P40 passed through to a guest with BIOS firmware",
    THREADS + "lsongdev/notes",
    first="vm-mmio-window-too-small",
    confidence="likely",
    settled=True,
    absent=("bar-unassigned", "address-space-too-small", "no-driver-bound"),
    says=("legacy BIOS firmware", "UEFI", "pciPassthru.use64bitMMIO"),
)
def guest_with_bios_firmware() -> Golden:
    lost = card("0000:03:00.0", "10de:1b38", small(), Bar(1, 32 * GIB, None), width=None)
    made = guest(lost, vendor="VMware, Inc.", product="VMware Virtual Platform", efi=False)
    return replace(made, more={"/sys/firmware/acpi/tables/DSDT": ""})


@case(
    "C078",
    "The second H100 of a guest is missing when the guest has much memory",
    THREADS + "harvester/harvester/issues/7932",
    first="vm-mmio-window-too-small",
    confidence="likely",
    settled=False,
    absent=("bar-unassigned", "gpu-count-mismatch", "gpu-suspect"),
    expect_gpus=2,
    says=("address sizes", "memory", "half of its memory"),
)
def second_card_of_a_guest() -> Golden:
    ids = "10de:2330"
    seen = card(
        "0000:09:00.0", ids, small(), Bar(2, 128 * GIB, 0x80_0000_0000), width=None, driver="nvidia",
    )  # fmt: skip
    lost = card("0000:0a:00.0", ids, small(), Bar(2, 128 * GIB, None), width=None)
    listed = nvml(NvmlCard("0000:09:00.0", name="NVIDIA H100 80GB HBM3", pci_id=0x233010DE, bar1=128 * GIB))
    made = guest(seen, lost, vendor="KubeVirt", product="None", nvml=listed, device_files=1)
    return with_space(made, 40, 448)


# --- right as it is -----------------------------------------------------------------------------


@case(
    "C090",
    "Tesla M60 in compute and in graphics mode: both count as GPUs",
    "https://www.easymanua.ls/cisco/ucs-c240-m4/manual?p=185",
    first=None,
    settled=True,
    absent=("bar-unassigned", "gpu-count-mismatch", "no-gpu-found"),
    expect_gpus=2,
)
def m60_in_both_modes() -> Golden:
    compute = card("0000:04:00.0", "10de:13f2", small(), Bar(1, 8 * GIB, 0x3800_0000_0000), driver="nvidia", node=0)
    graphics = card(
        "0000:82:00.0", "10de:13f2", small(), Bar(1, 256 * MIB, 0x3900_0000_0000), class_id=0x030000, driver="nvidia",
        node=1,
    )  # fmt: skip
    listed = nvml(
        *(
            NvmlCard(one.address, name="Tesla M60", pci_id=0x13F210DE, bar1=one.bars[1].size)
            for one in (compute, graphics)
        )
    )
    return replace(r730(compute, graphics), nvml=listed)


@case(
    "C140",
    "Three MI100 in a server that dies under load: the slot's address is not the card's",
    THREADS + "ROCm/legacy-rocm-build/issues/1493",
    first=None,
    settled=False,
    absent=("bar-unassigned", "gpu-count-mismatch", "gpu-suspect", "bus-resources-exhausted"),
    expect_gpus=3,
)
def three_mi100_behind_their_own_bridges() -> Golden:
    def mi100(bus: int, node: int) -> Function:
        start = 0x3800_0000_0000 + bus * 0x10_0000_0000
        gpu = Function(
            f"0000:{bus + 2:02x}:00.0", "1002:738c", 0x038000, subsystem="1002:0c34", driver="amdgpu", width=16,
            speed=16.0, max_speed=16.0, node=node, bars=(Bar(0, 32 * GIB, start), Bar(2, 2 * MIB, start + 32 * GIB)),
        )  # fmt: skip
        inner = Function(f"0000:{bus + 1:02x}:00.0", "1002:14a1", 0x060400, width=16, node=node, below=(gpu,))
        return Function(f"0000:{bus:02x}:00.0", "1002:14a0", 0x060400, width=16, node=node, below=(inner,))

    slots = {"PCIe Slot 2": 0x21, "PCIe Slot 5": 0x81, "PCIe Slot 7": 0xE2}
    ports = tuple(port(f"0000:{bus - 1:02x}:01.0", mi100(bus, bus >> 7), node=bus >> 7) for bus in slots.values())
    board = Board(
        vendor="Dell Inc.",
        product="PowerEdge R7525",
        board="0590KW",
        sockets={"CPU1": "AMD EPYC 7452", "CPU2": "AMD EPYC 7452"},
        slots=tuple((name, *X16, f"0000:{bus:02x}:00.0") for name, bus in slots.items()),
    )
    return Golden(
        functions=ports, board=board, cpu="AMD EPYC 7452 32-Core Processor", **{**NO_NVIDIA, "modules": ("amdgpu",)}
    )


# --- the second processor -----------------------------------------------------------------------


def one_processor(vendor: str, product: str, slots: tuple[tuple[str, str | None], ...], *cards: Function) -> Golden:
    """A board with two sockets and one processor."""
    xeon = "Intel(R) Xeon(R) CPU E5-2650 0 @ 2.00GHz"
    board = Board(
        vendor=vendor,
        product=product,
        board="0MX4YF",
        sockets={"CPU1": xeon, "CPU2": None},
        slots=tuple((name, *X16, address) for name, address in slots),
    )
    ports = tuple(port(f"0000:00:0{number}.0", one) for number, one in enumerate(cards, 2))
    listed = nvml(*(NvmlCard(one.address) for one in cards))
    return Golden(functions=ports, board=board, packages=1, cpu=xeon, nvml=listed)


@case(
    "C123",
    "Four cards in a T620 with one processor: two of its slots are dead",
    "https://www.easymanua.ls/dell/poweredge-t620/manual/114926?p=20",
    first="cpu-socket-empty",
    confidence="certain",
    settled=True,
    absent=("gpu-count-mismatch", "gpu-suspect"),
    expect_gpus=4,
)
def t620_with_one_processor() -> Golden:
    cards = p40("0000:03:00.0", 0), p40("0000:04:00.0", 1)
    slots = (("PCI2", "0000:03:00.0"), ("PCI4", "0000:04:00.0"), ("PCI5", None), ("PCI7", None))
    return one_processor("Dell Inc.", "PowerEdge T620", slots, *cards)


@case(
    "C088",
    "x3550 M5 with one processor: the slots of riser 2 do not exist",
    "https://pubs.lenovo.com/x3550-m5-8869/t_installing_pci_assembly",
    first="cpu-socket-empty",
    confidence="certain",
    settled=True,
    absent=("gpu-count-mismatch",),
    expect_gpus=2,
)
def x3550_with_one_processor() -> Golden:
    slots = (("PCIe Slot 1", "0000:03:00.0"),)
    return one_processor("LENOVO", "Lenovo System x3550 M5: -[8869AC1]-", slots, p40("0000:03:00.0", 0))
