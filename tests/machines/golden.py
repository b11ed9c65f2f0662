"""The golden machines, described. Their captures are made by build.py; what each should give is
written by hand in ``<name>/expect.json``, where ``about`` says what the machine is there to show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from machines.build import (
    BMC_PORT,
    GIB,
    MIB,
    OK,
    PRESENT,
    UNPLUGGED,
    Bar,
    Board,
    Function,
    Golden,
    NvmlCard,
    nvml,
    nvml_fails,
    nvml_of,
    p40,
    port,
    switch,
)

X8_IN_X16, X16 = (0xB6, 0x0B), (0xB6, 0x0D)
"""Codes of SMBIOS type 9: PCI Express 3 x16 connector, eight or sixteen lanes."""
XEON = "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz"
SLOT_6, SLOT_4 = "0000:04:00.0", "0000:82:00.0"
DELL_1100 = "PWR SPLY,1100W,RDNT,LTON"
NO_NVIDIA: dict[str, Any] = {
    "modules": (),
    "module_installed": False,
    "driver_version": None,
    "library": None,
    "nvml": nvml_fails(12),
}

MACHINES: dict[str, Callable[[], Golden]] = {}


def machine(make: Callable[[], Golden]) -> Callable[[], Golden]:
    """Enter a machine under its function's name."""
    MACHINES[make.__name__.replace("_", "-")] = make
    return make


def r730(*cards: Function, **traits: Any) -> Golden:
    """A Dell R730 with two processors, two 1100 W supplies and the alternate riser 3. A card goes to
    the slot of its address: slot 6 on CPU1, slot 4 on CPU2."""
    seated = {card.address: card for card in cards}
    first, second = seated.get(SLOT_6), seated.get(SLOT_4)
    board = Board(
        vendor="Dell Inc.",
        product="PowerEdge R730",
        board="0WCJNT",
        sockets={"CPU1": XEON, "CPU2": XEON},
        slots=(
            *((f"PCIe Slot {number}", *X8_IN_X16, None) for number in (1, 2, 3)),
            ("PCIe Slot 4", *X16, SLOT_4 if second else None),
            ("PCIe Slot 5", *X8_IN_X16, None),
            ("PCIe Slot 6", *X16, SLOT_6 if first else None),
        ),
        psus=(("PSU.Slot.1", DELL_1100, 1100, PRESENT | OK), ("PSU.Slot.2", DELL_1100, 1100, PRESENT | OK)),
    )
    functions = (
        port("0000:00:02.0", *((first,) if first else ())),
        BMC_PORT,
        port("0000:80:02.0", *((second,) if second else ()), node=1),
    )
    known: dict[str, Any] = {"functions": functions, "board": board, "nvml": nvml_of(cards)}
    return Golden(**{**known, **traits})


def two_p40(**second: Any) -> tuple[Function, Function]:
    """A healthy P40 in slot 6 and one with these traits in slot 4."""
    return p40(SLOT_6, 0), p40(SLOT_4, 1, **{"node": 1, **second})


def with_board(made: Golden, **traits: Any) -> Golden:
    assert made.board is not None
    return replace(made, board=replace(made.board, **traits))


# --- healthy ------------------------------------------------------------------------------------


@machine
def r730_two_p40() -> Golden:
    return r730(*two_p40())


@machine
def r730_idle_link() -> Golden:
    cards = (p40(SLOT_6, 0, speed=2.5), p40(SLOT_4, 1, node=1, speed=2.5))
    return r730(*cards, nvml=nvml_of(cards, gen=1))


@machine
def sm_4028gr_tr_eight_p40() -> Golden:
    buses = ("04", "05", "08", "09", "84", "85", "88", "89")
    cards = {bus: p40(f"0000:{bus}:00.0", n, node=n // 4) for n, bus in enumerate(buses)}

    def behind(upstream: str, ports: str, first: str, second: str, node: int) -> Function:
        pair = ((f"0000:{ports}:08.0", cards[first]), (f"0000:{ports}:10.0", cards[second]))
        return switch(upstream, *pair, node=node)

    functions = (
        port("0000:00:02.0", behind("0000:02:00.0", "03", "04", "05", 0)),
        port("0000:00:03.0", behind("0000:06:00.0", "07", "08", "09", 0)),
        port("0000:80:02.0", behind("0000:82:00.0", "83", "84", "85", 1), node=1),
        port("0000:80:03.0", behind("0000:86:00.0", "87", "88", "89", 1), node=1),
    )
    slots = ("88", "89", "84", "85", None, None, None, "04", "05", "08", "09")
    board = Board(
        vendor="Supermicro",
        product="SYS-4028GR-TR",
        board="X10DRG-O+-CPU",
        bios=("American Megatrends Inc.", "3.1", "06/08/2018"),
        sockets={"SOCKET 0": XEON, "SOCKET 1": XEON},
        slots=tuple(
            (f"CPU{2 if number <= 5 else 1} SLOT{number}", *X16, f"0000:{bus}:00.0" if bus else None)
            for number, bus in enumerate(slots, 1)
        ),
        psus=tuple((f"PSU{number}", "PWS-1K62P-1R", 1600, PRESENT | OK) for number in (1, 2, 3, 4)),
    )
    return Golden(functions=functions, board=board, nvml=nvml_of(cards.values()))


@machine
def k80_one_card() -> Golden:
    def half(address: str, number: int) -> Function:
        high = 0x3800_0000_0000 + number * 0x10_0000_0000
        bars = (Bar(0, 16 * MIB, 0x9200_0000, small=True), Bar(1, 16 * GIB, high), Bar(3, 32 * MIB, high + 16 * GIB))
        ids = {"ids": "10de:102d", "subsystem": "10de:106c", "bars": bars}
        return replace(p40(address, number), **ids)

    halves = half("0000:06:00.0", 0), half("0000:07:00.0", 1)
    card = switch("0000:04:00.0", ("0000:05:08.0", halves[0]), ("0000:05:10.0", halves[1]))
    traits: dict[str, Any] = {
        "name": "Tesla K80",
        "pci_id": 0x102D10DE,
        "subsystem_id": 0x106C10DE,
        "memory": 12_079_136_768,
        "bar1": 16 * GIB,
        "compute": (3, 7),
        "watts": 149,
    }
    listed = nvml(*(NvmlCard(h.address, **traits) for h in halves), driver="470.256.02")
    made = with_board(
        r730(nvml=listed),
        slots=(("PCIe Slot 6", *X16, "0000:04:00.0"),),
    )
    functions = (port("0000:00:02.0", card), BMC_PORT)
    return replace(made, functions=functions, driver_version="470.256.02", library="470.256.02")


@machine
def vm_four_v100() -> Golden:
    buses = range(4)
    bars = (
        Bar(0, 16 * MIB, 0x9200_0000, small=True),
        Bar(1, 16 * GIB, 0x20_0000_0000),
        Bar(3, 32 * MIB, 0x30_0000_0000),
    )
    cards = tuple(
        Function(
            f"0000:00:0{4 + n}.0", "10de:1db1", 0x030200, subsystem="10de:1212", driver="nvidia", node=None, bars=bars
        )
        for n in buses
    )
    vga = Function("0000:00:02.0", "1234:1111", 0x030000, subsystem="1af4:1100", driver="bochs-drm", node=None)
    traits: dict[str, Any] = {
        "name": "Tesla V100-SXM2-16GB",
        "pci_id": 0x1DB110DE,
        "subsystem_id": 0x121210DE,
        "memory": 16_945_512_448,
        "bar1": 16 * GIB,
        "compute": (7, 0),
        "watts": 300,
    }
    board = Board(
        vendor="QEMU",
        product="Standard PC (Q35 + ICH9, 2009)",
        board="Not Specified",
        bios=("EDK II", "edk2-20240524", "05/24/2024"),
        sockets={f"CPU {number}": "pc-q35-9.0" if number < 2 else None for number in range(4)},
        uuid=bytes(range(16)),
    )
    return Golden(
        functions=(vga, *cards),
        board=board,
        nvml=nvml(*(NvmlCard(card.address, **traits) for card in cards)),
        nodes=1,
        flags="fpu sse sse2 avx avx2 hypervisor",
    )


@machine
def wsl_one_rtx_3060() -> Golden:
    adapter = Function("0c1b:00:00.0", "1414:008e", 0x030200, driver="dxgkrnl", node=None)
    card = NvmlCard(
        "0000:01:00.0",
        name="NVIDIA GeForce RTX 3060",
        pci_id=0x250310DE,
        subsystem_id=0x397C1462,
        memory=12_884_901_888,
        bar1=256 * MIB,
        compute=(8, 6),
        watts=170,
        max_gen=4,
    )
    made = Golden(
        functions=(adapter,),
        nvml=nvml(card, driver="572.16"),
        packages=1,
        flags="fpu sse sse2 avx avx2 hypervisor",
        modules=(),
        module_installed=False,
        library=None,
        log=None,
        root=False,
    )
    more = {
        "/proc/sys/kernel/osrelease": "5.15.167.4-microsoft-standard-WSL2\n",
        "/usr/lib/wsl/lib/libnvidia-ml.so.1": "",
        "/lib/modules/5.15.167.4-microsoft-standard-WSL2/modules.dep": "\n",
    }
    return replace(made, more=more)


@machine
def amd_one_mi100() -> Golden:
    card = Function(
        "0000:06:00.0", "1002:738c", 0x038000, subsystem="1002:0c34", driver="amdgpu", width=16, max_width=16,
        speed=16.0, max_speed=16.0, bars=(Bar(0, 32 * GIB, 0x3800_0000_0000), Bar(2, 2 * MIB, 0x3810_0000_0000)),
    )  # fmt: skip
    inner = Function("0000:05:00.0", "1002:14a1", 0x060400, width=16, max_width=16, below=(card,))
    outer = Function(
        "0000:04:00.0", "1002:14a0", 0x060400, width=16, max_width=16, bars=(Bar(0, MIB, 0x9300_0000, small=True),),
        below=(inner,),
    )  # fmt: skip
    made = with_board(r730(**NO_NVIDIA), slots=(("PCIe Slot 6", *X16, "0000:04:00.0"),))
    return replace(made, functions=(port("0000:00:02.0", outer), BMC_PORT), modules=("amdgpu",))


@machine
def bmc_only() -> Golden:
    return r730(**{**NO_NVIDIA, "modules": ("mgag200",)})


# --- slots, sockets, addresses, links -----------------------------------------------------------


@machine
def r730_one_cpu_expecting_two() -> Golden:
    made = r730(p40(SLOT_6, 0), packages=1)
    # Without the second processor its root ports do not exist.
    made = replace(made, functions=tuple(f for f in made.functions if not f.address.startswith("0000:80")))
    return with_board(made, sockets={"CPU1": XEON, "CPU2": None})


@machine
def r730_above_4g_off() -> Golden:
    first, second = two_p40(driver=None)
    lost = (second.bars[0], Bar(1, 32 * GIB, None), Bar(3, 32 * MIB, None, wiped=True))
    cards = (first, replace(second, bars=lost))
    log = (
        "pci_bus 0000:80: root bus resource [mem 0xc8000000-0xfbffbfff window]",
        "pci 0000:82:00.0: BAR 1: no space for [mem size 0x800000000 64bit pref]",
        "pci 0000:82:00.0: BAR 1: failed to assign [mem size 0x800000000 64bit pref]",
        "pcieport 0000:80:02.0: BAR 13: no space for [io  size 0x1000]",
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:",
        "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:82:00.0)",
        "nvidia: probe of 0000:82:00.0 failed with error -1",
    )
    return r730(*cards, log=log)


@machine
def r730_fell_off_bus() -> Golden:
    cards = two_p40(dead=True)
    lost = NvmlCard(SLOT_4, fails={"nvmlDeviceGetHandleByIndex": 15})
    log = (
        "NVRM: Xid (PCI:0000:82:00): 79, pid=4120, GPU has fallen off the bus.",
        "NVRM: GPU 0000:82:00.0: GPU has fallen off the bus.",
    )
    return r730(*cards, nvml=nvml(NvmlCard(SLOT_6), lost), log=log)


@machine
def r730_link_x8() -> Golden:
    cards = two_p40(width=8)
    return r730(*cards, nvml=nvml(NvmlCard(SLOT_6), NvmlCard(SLOT_4, width=8)))


# --- drivers and NVML ---------------------------------------------------------------------------


@machine
def r730_nouveau() -> Golden:
    cards = p40(SLOT_6, 0, driver="nouveau"), p40(SLOT_4, 1, node=1, driver="nouveau")
    return r730(*cards, **{**NO_NVIDIA, "modules": ("nouveau",)})


@machine
def r730_vfio_one_of_two() -> Golden:
    cards = two_p40(driver="vfio-pci")
    modules = ("vfio_pci", "nvidia_uvm", "nvidia")
    return r730(*cards, modules=modules, command_line="root=/dev/sda2 ro intel_iommu=on vfio-pci.ids=10de:1b38")


@machine
def r730_no_driver() -> Golden:
    return r730(p40(SLOT_6, 0, driver=None), **NO_NVIDIA)


@machine
def r730_module_of_another_kernel() -> Golden:
    other = "6.8.0-45-generic"
    more = {
        f"/lib/modules/{other}/modules.dep": "kernel/fs/xfs/xfs.ko:\nupdates/dkms/nvidia.ko.zst:\n",
        f"/lib/modules/{other}/updates/dkms/nvidia.ko.zst": "",
        "/lib/modules/5.15.0-91-generic/modules.dep": "kernel/fs/xfs/xfs.ko:\n",
        "/etc/modprobe.d/cards.conf": "# written by hand\nblacklist nouveau\noptions snd_hda_intel power_save=0\n",
        "/run/nvidia-fabricmanager/nv-fabricmanager.pid": "4120\n",
        "/proc/4120/comm": "nv-fabricmanage\n",
    }
    cards = p40(SLOT_6, 0, driver=None), p40(SLOT_4, 1, node=1, driver=None)
    known = {**NO_NVIDIA, "library": "570.158.01", "nvml": nvml_fails(9)}
    return r730(*cards, **known, more=more, secure_boot=True)


@machine
def r730_library_mismatch() -> Golden:
    log = (
        "NVRM: API mismatch: the client has the version 570.169, but",
        "NVRM: this kernel module has the version 570.158.01.  Please",
        "NVRM: make sure that this kernel module and all NVIDIA driver",
        "NVRM: components have the same version.",
    )
    return r730(*two_p40(), nvml=nvml_fails(18), library="570.169", log=log)


@machine
def r730_nvml_timeout() -> Golden:
    answers = nvml(NvmlCard(SLOT_6), NvmlCard(SLOT_4), timed_out=True, exit_code=None)
    cut = next(n for n, call in enumerate(answers["calls"]) if call["call"] == "nvmlDeviceGetPowerUsage")
    hung = {"call": "nvmlDeviceGetPowerUsage", "device": 0}
    log = ("INFO: task nvidia-smi:4120 blocked for more than 120 seconds.",)
    return r730(*two_p40(), nvml={**answers, "calls": [*answers["calls"][:cut], hung]}, log=log)


@machine
def container_one_of_two() -> Golden:
    made = r730(*two_p40(), nvml=nvml(NvmlCard(SLOT_4, minor=1)), device_files=(1,), efi=False, log=None, root=False)
    return replace(
        made, board=None, environment=None, more={"/.dockerenv": "", "/proc/modules": "nvidia_uvm 1 0\nnvidia 1 0\n"}
    )


# --- power --------------------------------------------------------------------------------------


@machine
def r730_psu_unplugged() -> Golden:
    psus = (("PSU.Slot.1", DELL_1100, 1100, PRESENT | OK), ("PSU.Slot.2", DELL_1100, 1100, PRESENT | UNPLUGGED))
    return with_board(r730(*two_p40()), psus=psus)


@machine
def r730_psu_missing() -> Golden:
    psus = (("PSU.Slot.1", DELL_1100, 1100, PRESENT | OK), ("PSU.Slot.2", "Not Specified", 0x8000, UNPLUGGED))
    return with_board(r730(*two_p40()), psus=psus)


# --- hostile ------------------------------------------------------------------------------------

ESCAPES = "\x1b[2J\x1b[31mred\x1b]0;title\x07\x9b1m"
MARKUP = "</code></pre><script>alert(1)</script>[x](http://example.invalid) | `*_~ ```"


@machine
def hostile_strings() -> Golden:
    """Everything that hardware says here tries to break out of a terminal, a table or a page."""
    cards = p40(SLOT_6, 0), p40(SLOT_4, 1, node=1, dead=True)
    listed = nvml(NvmlCard(SLOT_6, name=f"Tesla {ESCAPES}{MARKUP}"), NvmlCard(SLOT_4, name="P40 " + "Ж" * 3000))
    log = (
        f"NVRM: Xid (PCI:0000:82:00): 79, pid='{ESCAPES}{MARKUP}', GPU has fallen off the bus.",
        "NVRM: GPU 0000:82:00.0: \\x1b[2J\\x0a``` GPU has fallen off the bus.",
    )
    made = r730(*cards, nvml=listed, log=log, command_line=f"ro {ESCAPES}")
    return with_board(
        made,
        vendor=f"Evil{ESCAPES}Corp",
        product=f"Box \u202e{MARKUP}",
        board="B" * 4000,
        sockets={f"CPU1 {ESCAPES}": f"Xeon {MARKUP}", "CPU2\n| injected | row |": XEON},
        slots=((f"SLOT 6 {ESCAPES}{MARKUP}", *X16, SLOT_6), ("SLOT 4 " + "x" * 900, *X16, SLOT_4)),
        psus=((f"PSU1 {MARKUP}", f"{ESCAPES}1100W", 1100, PRESENT | UNPLUGGED),),
    )
