"""lspci's output in its many forms."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import registers

from gpucheck.displays import gpu_functions
from gpucheck.dumps import lspci
from gpucheck.facts import Parts, PciFunction, Port

LISTED = """\
00:00.0 Host bridge [0600]: Intel Corporation Xeon E7 v3/Xeon E5 v3/Core i7 DMI2 [8086:2f00] (rev 02)
00:03.0 PCI bridge [0604]: Intel Corporation Xeon E7 v3/Xeon E5 v3/Core i7 PCI Express Root Port 3 [8086:2f08] (rev 02)
04:00.0 3D controller [0302]: NVIDIA Corporation GP102GL [Tesla P40] [10de:1b38] (rev a1)
0a:00.0 VGA compatible controller [0300]: ASPEED Technology, Inc. ASPEED Graphics Family [1a03:2000] (rev 30)
"""

TREE = """\
-+-[0000:80]-+-02.0-[81-84]----00.0-[82-84]--+-08.0-[83]----00.0  NVIDIA Corporation GP102GL [Tesla P40]
 |           |                               \\-10.0-[84]--+-00.0
 |           |                                            \\-00.1
 |           \\-05.0
 \\-[0000:00]-+-00.0
             +-03.0-[04]----00.0
             \\-1c.0-[0a]----00.0
"""

CARD = """\
0000:04:00.0 3D controller [0302]: NVIDIA Corporation GP102GL [Tesla P40] [10de:1b38] (rev a1) (prog-if 00 [Normal])
	Subsystem: NVIDIA Corporation GP102GL [Tesla P40] [10de:11d9]
	Physical Slot: 4
	Control: I/O- Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr- Stepping- SERR- FastB2B- DisINTx+
	NUMA node: 1
	IOMMU group: 37
	Region 0: Memory at c6000000 (32-bit, non-prefetchable) [size=16M]
	Region 1: Memory at 27800000000 (64-bit, prefetchable) [size=32G]
	Region 3: Memory at 28000000000 (64-bit, prefetchable) [size=32M]
	Capabilities: [78] Express (v2) Endpoint, MSI 00
		LnkCap:	Port #0, Speed 8GT/s, Width x16, ASPM L0s L1, Exit Latency L0s <512ns, L1 <4us
		LnkSta:	Speed 2.5GT/s (downgraded), Width x8 (downgraded)
		LnkCap2: Supported Link Speeds: 2.5-16GT/s, Crosslink- Retimer- 2Retimers- DRS-
	Capabilities: [bcc v1] Single Root I/O Virtualization (SR-IOV)
		Region 0: Memory at 29000000000 (64-bit, prefetchable)
	Kernel driver in use: nvidia
	Kernel modules: nvidiafb, nouveau, nvidia_drm, nvidia

"""


def one(text: str) -> PciFunction:
    gpus = gpu_functions(lspci.parse(text).pci or ())
    assert len(gpus) == 1
    return gpus[0]


def gaps(parts: Parts) -> dict[str, str]:
    return {gap.fact: gap.reason for gap in parts.gaps}


def dump(config: bytes) -> str:
    """Bytes as ``lspci -x`` prints them."""
    lines = (f"{at:02x}: {config[at : at + 16].hex(' ')}" for at in range(0, len(config), 16))
    return "\n".join(lines) + "\n"


def config(size: int = 256, **words: bytes) -> bytearray:
    """Configuration space of a P40; ``at_10=…`` puts bytes at 0x10."""
    space = bytearray(size)
    space[:12] = bytes.fromhex("de10381b 07041000 a1000203".replace(" ", ""))
    for place, data in words.items():
        at = int(place.removeprefix("at_"), 16)
        space[at : at + len(data)] = data
    return space


def test_details_become_facts() -> None:
    card = one(CARD)
    assert (card.address, card.pci_id, card.subsystem_id) == ("0000:04:00.0", "10de:1b38", "10de:11d9")
    assert card.class_id == 0x030200
    assert card.name == "NVIDIA Corporation GP102GL [Tesla P40]"
    assert (card.driver, card.driver_read, card.numa_node, card.iommu_group) == ("nvidia", True, 1, 37)
    assert card.physical_slot == "4"
    link = card.link
    assert (link.width, link.max_width, link.speed_gts, link.max_speed_gts) == (8, 16, 2.5, 8.0)
    assert [(bar.index, bar.bytes, bar.assigned) for bar in card.bars] == [
        (0, 16 << 20, True),
        (1, 32 << 30, True),
        (3, 32 << 20, True),
    ]
    assert card.config_dead is False


@pytest.mark.parametrize(
    ("state", "width", "speed"),
    [
        ("Speed 8GT/s (ok), Width x16 (ok)", 16, 8.0),
        ("Speed 2.5GT/s, Width x1", 1, 2.5),
        ("Speed 16GT/s (strange), Width x4 (overdriven)", 4, 16.0),
        ("Speed unknown (downgraded), Width x0 (downgraded)", None, None),
        ("Speed 32GT/s (downgraded), Width x8", 8, 32.0),
    ],
)
def test_dialects_of_the_link(state: str, width: int | None, speed: float | None) -> None:
    card = one(CARD.replace("Speed 2.5GT/s (downgraded), Width x8 (downgraded)", state))
    assert (card.link.width, card.link.speed_gts) == (width, speed)


@pytest.mark.parametrize(
    ("region", "assigned", "size"),
    [
        ("Memory at <unassigned> (64-bit, prefetchable) [disabled] [size=32G]", False, 32 << 30),
        ("Memory at <unassigned> (64-bit, prefetchable)", False, None),
        ("Memory at <ignored> (64-bit, prefetchable)", False, None),
        ("Memory at 27800000000 (64-bit, prefetchable) [disabled] [size=32G]", True, 32 << 30),
        ("Memory at 27800000000 (64-bit, prefetchable) [virtual] [size=32G]", True, 32 << 30),
        ("[virtual] Memory at 27800000000 (64-bit, prefetchable) [size=512]", True, 512),
    ],
)
def test_marks_of_a_bar(region: str, assigned: bool, size: int | None) -> None:
    text = CARD.replace("Memory at 27800000000 (64-bit, prefetchable) [size=32G]", region)
    bar = next(bar for bar in one(text).bars if bar.index == 1)
    assert (bar.assigned, bar.bytes) == (assigned, size)


def test_a_list_leaves_gaps_not_values() -> None:
    parts = lspci.parse(LISTED)
    assert [function.pci_id for function in parts.pci or ()] == ["8086:2f00", "8086:2f08", "10de:1b38", "1a03:2000"]
    assert parts.pci_complete
    card = one(LISTED)
    assert (card.driver, card.driver_read, card.config_dead, card.parent) == (None, False, None, "?")
    missing = gaps(parts)
    for fact in ("driver", "link", "bars", "config_dead", "numa_node"):
        assert missing[f"gpus.0000:04:00.0.{fact}"] == "not-in-input"
    assert missing["topology"] == "not-in-input"
    assert not any("0a:00.0" in fact for fact in missing)


def test_listings_of_one_machine_are_joined() -> None:
    card = one(f"{LISTED}\n\n{TREE}\n\n{CARD}")
    assert (card.parent, card.driver, card.link.max_width) == ("0000:00:03.0", "nvidia", 16)
    assert "topology" not in gaps(lspci.parse(f"{LISTED}{TREE}{CARD}"))


def test_the_tree_tells_parents_over_switches() -> None:
    cards = "".join(f"{bus}:00.0 3D controller [0302]: NVIDIA Corporation X [10de:1b38]\n" for bus in ("83", "84"))
    parents = {function.address: function.parent for function in lspci.parse(TREE + LISTED + cards).pci or ()}
    assert parents["0000:83:00.0"] == "0000:82:08.0"
    assert parents["0000:84:00.0"] == "0000:82:10.0"
    assert parents["0000:04:00.0"] == "0000:00:03.0"
    assert parents["0000:00:03.0"] is None


def test_a_tree_alone_has_no_classes() -> None:
    parts = lspci.parse(TREE)
    assert parts.pci is None
    assert gaps(parts) == {"pci": "not-in-input"}


def test_buses_of_bridges_tell_parents_and_root_buses() -> None:
    port = (
        "00:03.0 PCI bridge [0604]: Intel Corporation Port [8086:2f08] (rev 02)\n"
        "	Bus: primary=00, secondary=04, subordinate=06, sec-latency=0\n\n"
    )
    listed = port + "".join(
        f"{bus}:00.0 3D controller [0302]: NVIDIA Corporation X [10de:1b38]\n" for bus in ("04", "05", "80")
    )
    parents = {function.address: function.parent for function in lspci.parse(listed).pci or ()}
    assert parents["0000:04:00.0"] == "0000:00:03.0"
    assert parents["0000:05:00.0"] == "?"  # below the port, over a bridge that is not shown
    assert parents["0000:80:00.0"] is None


@pytest.mark.parametrize("head", ["04:00.0 0302: 10de:1b38 (rev a1)", "04:00.0 Class 0302: 10de:1b38 (rev a1)"])
def test_numbers_only(head: str) -> None:
    assert one(head).pci_id == "10de:1b38"


def test_names_only_leave_the_device_unknown() -> None:
    text = "04:00.0 3D controller: NVIDIA Corporation GP102GL [Tesla P40] (rev a1)\n"
    card = one(text)
    assert (card.vendor_id, card.device_id, card.pci_id) == (0x10DE, None, None)
    assert card.name == "NVIDIA Corporation GP102GL [Tesla P40]"
    assert gaps(lspci.parse(text))["gpus.0000:04:00.0.pci_id"] == "not-in-input"


def test_a_number_in_place_of_a_name_is_the_id() -> None:
    card = one("19:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)")
    assert (card.pci_id, card.name) == ("10de:2330", None)


@pytest.mark.parametrize(
    "name",
    [
        "Advanced Micro Devices, Inc. [AMD/ATI] ES1000 (rev 02)",
        "Huawei Technologies Co., Ltd. Hi171x Series [iBMC Intelligent Management system chip w/VGA support] (rev 01)",
        "Matrox Electronics Systems Ltd. G200eR2 (rev 01)",
        "Red Hat, Inc. QXL paravirtual graphic card (rev 04)",
        "Red Hat, Inc. Virtio GPU (rev 01)",
        "Device 1234:1111 (rev 02)",
        "Cirrus Logic GD 5446",
    ],
)
def test_displays_that_are_no_gpu_by_name(name: str) -> None:
    parts = lspci.parse(f"0b:00.0 VGA compatible controller: {name}\n")
    assert len(parts.pci or ()) == 1
    assert gpu_functions(parts.pci or ()) == ()


def test_a_display_of_an_unknown_maker_is_a_gap() -> None:
    parts = lspci.parse("0b:00.0 VGA compatible controller: Nobody Ltd. Thing\n")
    assert parts.pci is None
    assert gaps(parts)["pci.0000:0b:00.0"] == "not-in-input"


def test_no_driver_line_in_a_whole_entry_means_no_driver() -> None:
    text = CARD.replace("\tKernel driver in use: nvidia\n", "")
    assert (one(text).driver, one(text).driver_read) == (None, True)
    listed = (
        "04:00.0 3D controller [0302]: NVIDIA Corporation X [10de:1b38] (rev a1)\n"
        "\tSubsystem: NVIDIA Corporation Device [10de:11d9]\n"
        "05:00.0 Ethernet controller [0200]: Intel Corporation X [8086:1521]\n"
        "\tKernel driver in use: igb\n"
    )
    assert one(listed).driver_read


@pytest.mark.parametrize(
    "text",
    [
        CARD[: CARD.index("\tKernel driver")],  # cut
        CARD[: CARD.index("\tKernel driver")] + "[...]\n\nand so on\n",
        "04:00.0 3D controller [0302]: NVIDIA Corporation X [10de:1b38]\n\tSubsystem: A [10de:11d9]\n--\n"
        "05:00.0 Audio device [0403]: NVIDIA Corporation X [10de:0fb0]\n\tKernel driver in use: snd\n",  # grep -A1
    ],
)
def test_a_cut_entry_says_nothing_about_the_driver(text: str) -> None:
    assert not one(text).driver_read
    assert gaps(lspci.parse(text))["gpus.0000:04:00.0.driver"] == "not-in-input"


def test_a_cut_list_of_bars_is_a_gap() -> None:
    text = CARD[: CARD.index("\tRegion 3")]
    assert gaps(lspci.parse(text))["gpus.0000:04:00.0.bars"] == "not-in-input"


@pytest.mark.parametrize(
    "text",
    [
        "04:00.0 3D controller: NVIDIA Corporation GP102GL (rev ff)\n",
        "04:00.0 3D controller: NVIDIA Corporation GP102GL (rev ff) (prog-if ff)\n\t!!! Unknown header type 7f\n",
        "04:00.0 3D controller: NVIDIA Corporation GP102GL (rev a1)\n\t!!! Unknown header type 7f\n"
        "\tKernel driver in use: nvidia\n",
        "04:00.0 3D controller [0302]: NVIDIA Corporation X [10de:1b38]\n" + dump(b"\xff" * 64),
    ],
)
def test_a_card_that_no_longer_answers(text: str) -> None:
    card = one(text)
    assert card.config_dead is True
    assert card.class_id == 0x030200
    assert "gpus.0000:04:00.0.bars" in gaps(lspci.parse(text))


def test_closed_capabilities_need_root() -> None:
    text = CARD[: CARD.index("\tCapabilities: [78]")] + "\tCapabilities: <access denied>\n\tKernel modules: nvidia\n\n"
    parts = lspci.parse(text)
    assert gaps(parts)["gpus.0000:04:00.0.link"] == "needs-root"
    assert parts.gaps[0].how == "sudo /usr/bin/lspci -nnvvv -s 0000:04:00.0"


def test_short_details_are_numbered_by_their_width() -> None:
    text = (
        "04:00.0 VGA compatible controller: NVIDIA Corporation X [10de:17c2] (rev a1)\n"
        "\tFlags: bus master, fast devsel, latency 0, IRQ 137, NUMA node 1, IOMMU group 12\n"
        "\tMemory at f6000000 (32-bit, non-prefetchable) [size=16M]\n"
        "\tMemory at e0000000 (64-bit, prefetchable) [size=256M]\n"
        "\tMemory at f0000000 (64-bit, prefetchable) [disabled] [size=32M]\n"
        "\tI/O ports at e000 [size=128]\n"
        "\tExpansion ROM at 000c0000 [virtual] [disabled] [size=128K]\n\n"
    )
    card = one(text)
    assert [bar.index for bar in card.bars] == [0, 1, 3]
    assert (card.numa_node, card.iommu_group) == (1, 12)


def test_configuration_space_is_decoded() -> None:
    space = config(
        at_06=b"\x10\x00",
        at_10=b"\x00\x00\x00\xf6",  # BAR 0, 32 bit
        at_14=b"\x0c\x00\x00\x00\x00\x00\x00\x00",  # BAR 1, 64 bit, without an address
        at_1c=b"\x0c\x00\x00\xf0\x01\x00\x00\x00",  # BAR 3, 64 bit
        at_24=b"\x01\xe0\x00\x00",  # BAR 5, I/O
        at_2c=b"\xde\x10\xd9\x11",
        at_34=b"\x60",
        at_60=b"\x01\x78",
        at_78=b"\x10\x00\x12\x00",
        at_84=(16 << 4 | 3).to_bytes(4, "little"),
        at_8a=(8 << 4 | 1).to_bytes(2, "little"),
    )
    card = one("04:00.0 3D controller: NVIDIA Corporation GP102GL [Tesla P40] (rev a1)\n" + dump(bytes(space)))
    assert (card.pci_id, card.subsystem_id, card.class_id) == ("10de:1b38", "10de:11d9", 0x030200)
    assert [(bar.index, bar.assigned, bar.bytes) for bar in card.bars] == [
        (0, True, None),
        (1, False, None),
        (3, True, None),
    ]
    assert (card.link.width, card.link.max_width, card.link.speed_gts, card.link.max_speed_gts) == (8, 16, 2.5, 8.0)


def test_a_loop_of_capabilities_ends() -> None:
    space = config(at_06=b"\x10\x00", at_34=b"\x60", at_60=b"\x01\x60")
    assert one("04:00.0 3D controller [0302]: X [10de:1b38]\n" + dump(bytes(space))).link.width is None


def test_bridges_in_hex_tell_their_bus() -> None:
    space = config(at_00=b"\x86\x80\x08\x2f", at_09=b"\x00\x04\x06", at_0e=b"\x01", at_18=b"\x00\x04\x04\x00")
    text = "00:03.0 PCI bridge [0604]: Intel Corporation Port [8086:2f08]\n" + dump(bytes(space)) + "\n" + CARD
    assert one(text).parent == "0000:00:03.0"


def test_domains_of_any_length() -> None:
    text = "10000:01:00.0 3D controller [0302]: NVIDIA Corporation X [10de:1b38]\n"
    assert one(text).address == "10000:01:00.0"


@pytest.mark.parametrize("text", ["", "04:00.0 is where it sits: help", "[    1.0] pci 0000:04:00.0: BAR 1", "a: b"])
def test_other_text_is_not_taken(text: str) -> None:
    assert not lspci.looks_like(text)
    assert lspci.parse(text).pci is None


def test_any_cut_is_survived() -> None:
    text = f"{LISTED}{TREE}{CARD}{dump(bytes(config()))}"
    for end in range(0, len(text), 3):
        lspci.parse(text[:end])


def test_real_listings(shared_machines: Path) -> None:
    hgx = lspci.parse((shared_machines / "lspci" / "gpud_hgx-h100_lspci-vvv.txt").read_text())
    gpus = gpu_functions(hgx.pci or ())
    assert (len(hgx.pci or ()), len(gpus)) == (512, 8)
    assert {gpu.bars[1].bytes for gpu in gpus} == {128 << 30}
    assert {gpu.numa_node for gpu in gpus} == {0, 1}
    assert all(gpu.parent and gpu.parent != "?" and gpu.driver == "nvidia" for gpu in gpus)
    excerpt = lspci.parse((shared_machines / "lspci" / "linuxhw_SYS-4028GR-TR_9D0DC8353202_excerpt.txt").read_text())
    parents = {function.address: function.parent for function in excerpt.pci or ()}
    assert parents["0000:08:00.0"] == "0000:07:08.0"
    assert parents["0000:07:08.0"] == "?"
    assert not excerpt.pci_complete


def test_details_without_a_driver_line_or_bars_or_node() -> None:
    text = (
        "04:00.0 3D controller [0302]: NVIDIA Corporation X [10de:1b38] (rev a1) (prog-if 01 [Thing])\n"
        "\tFlags: fast devsel, IRQ 11\n\n"
    )
    parts = lspci.parse(LISTED + text)
    card = one(LISTED + text)
    assert (card.driver, card.driver_read, card.bars, card.class_id) == (None, True, (), 0x030201)
    missing = gaps(parts)
    assert missing["gpus.0000:04:00.0.numa_node"] == "not-supported"
    assert "gpus.0000:04:00.0.bars" not in missing


def test_modules_without_a_driver_end_an_entry() -> None:
    text = CARD[: CARD.index("\tKernel driver")] + "\tKernel modules: nouveau"
    assert (one(text).driver, one(text).driver_read) == (None, True)


def test_a_hex_dump_with_a_hole_is_not_decoded() -> None:
    space = dump(bytes(config(at_24=b"\x00\x00\x00\xf6"))).splitlines()
    text = "04:00.0 3D controller: NVIDIA Corporation GP102GL (rev a1)\n"
    card = one(text + "\n".join([space[0], *space[2:]]))
    assert (card.device_id, card.bars) == (None, None)


def test_addresses_of_64_bit_registers() -> None:
    space = config(at_14=b"\x0c\x00\x00\x80\x02\x01\x00\x00", at_1c=b"\x04\x00\x00\x00\x01\x00\x00\x00")
    card = one("04:00.0 3D controller [0302]: X [10de:1b38]\n" + dump(bytes(space)))
    assert [(bar.index, bar.start, bar.prefetchable, bar.is_64bit) for bar in card.bars] == [
        (1, 0x0102_8000_0000, True, True),
        (3, 0x1_0000_0000, False, True),
    ]


@pytest.mark.parametrize(("bus", "parent"), [("0f", "?"), ("0a", "0000:00:03.0"), ("10", None)])
def test_ends_of_a_range_of_buses(bus: str, parent: str | None) -> None:
    port = (
        "00:03.0 PCI bridge [0604]: Intel Corporation Port [8086:2f08]\n"
        "	Bus: primary=00, secondary=0a, subordinate=0f, sec-latency=0\n\n"
    )
    assert one(f"{port}{bus}:00.0 3D controller [0302]: NVIDIA Corporation X [10de:1b38]\n").parent == parent


def test_a_bridge_without_its_buses_leaves_parents_open() -> None:
    port = "00:03.0 PCI bridge [0604]: Intel Corporation Port [8086:2f08]\n"
    assert one(f"{port}80:00.0 3D controller [0302]: NVIDIA Corporation X [10de:1b38]\n").parent == "?"


# --- ports ---------------------------------------------------------------------------------------

PORT = """\
00:1c.4 PCI bridge [0604]: Intel Corporation C610/X99 PCI Express Root Port #5 [8086:8d18] (rev d5) (prog-if 00)
	Control: I/O+ Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr- Stepping- SERR+ FastB2B- DisINTx+
	Bus: primary=00, secondary=05, subordinate=05, sec-latency=0
	Capabilities: [40] Express (v2) Root Port (Slot+), MSI 00
		DevSta:	CorrErr- NonFatalErr- FatalErr- UnsupReq- AuxPwr+ TransPend-
		LnkCap:	Port #5, Speed 8GT/s, Width x4, ASPM L0s L1, Exit Latency L0s <512ns, L1 <16us
			ClockPM- Surprise- LLActRep+ BwNot+ ASPMOptComp-
		LnkCtl:	ASPM Disabled; RCB 64 bytes, Disabled- CommClk-
			ExtSynch- ClockPM- AutWidDis- BWInt- AutBWInt-
		LnkSta:	Speed 2.5GT/s (downgraded), Width x0 (downgraded)
			TrErr- Train- SlotClk+ DLActive- BWMgmt- ABWMgmt-
		SltCap:	AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug- Surprise-
			Slot #4, PowerLimit 25.000W; Interlock- NoCompl+
		SltCtl:	Enable: AttnBtn- PwrFlt- MRL- PresDet- CmdCplt- HPIrq- LinkChg-
			Control: AttnInd Unknown, PwrInd Unknown, Power- Interlock-
		SltSta:	Status: AttnBtn- PowerFlt- MRL- CmdCplt- PresDet+ Interlock-
			Changed: MRL- PresDet- LinkState-
		RootCap: CRSVisible-
		LnkSta2: Current De-emphasis Level: -3.5dB, EqualizationComplete-
	Capabilities: [110 v1] Access Control Services
		ACSCap:	SrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
		ACSCtl:	SrcValid+ TransBlk- ReqRedir+ CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
	Kernel driver in use: pcieport

"""
WAITING = Port(presence=True, link_active=False, link_disabled=False, power_off=False)


def port_of(text: str) -> Port | None:
    (function,) = lspci.parse(text).pci or ()
    return function.port


def test_a_port_that_waits_for_its_card() -> None:
    (function,) = lspci.parse(PORT).pci or ()
    assert function.port == WAITING
    assert function.acs == ("SrcValid", "ReqRedir")


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("DLActive-", "DLActive+", "link_active"),
        ("bytes, Disabled-", "bytes, Disabled+", "link_disabled"),
        ("AttnBtn- PwrCtrl-", "AttnBtn- PwrCtrl+", "power_off"),
    ],
)
def test_each_mark_of_a_port(old: str, new: str, field: str) -> None:
    text = PORT.replace(old, new).replace("Power- Inter", "Power+ Inter")
    assert port_of(text) == WAITING.model_copy(update={field: True})


@pytest.mark.parametrize("cut", ["LLActRep+", "SltSta:", "SltCap:", "DLActive-"])
def test_a_port_that_was_cut_or_cannot_tell_says_nothing(cut: str) -> None:
    assert port_of(PORT.replace(cut, "")) is None


def test_registers_of_a_port_without_words() -> None:
    config = registers.bridge(presence=True, size=256)
    rows = [f"{at:02x}: {config[at : at + 16].hex(' ')}" for at in range(0, 256, 16)]
    head = PORT.splitlines()[0]
    assert port_of("\n".join([head, *rows, ""])) == WAITING
