from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from machines import registers
from support import Content, pci_device, tree, unpacked

from gpucheck.assemble import assemble
from gpucheck.catalog import load
from gpucheck.displays import gpu_functions, kind_of_display
from gpucheck.facts import Bar, DriverReport, ErrorCounts, Link, Parts, PciFunction
from gpucheck.host import LiveHost
from gpucheck.probing import judge
from gpucheck.readers import pci

EMPTY = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
P40_RESOURCE = (
    "0x0000000092000000 0x0000000092ffffff 0x0000000000040200\n"
    "0x0000383000000000 0x00003837ffffffff 0x000000000014220c\n"
    + EMPTY
    + "0x0000383800000000 0x0000383801ffffff 0x000000000014220c\n"
    + EMPTY * 9
)


def config(*registers: int, bridge: bool = False) -> bytes:
    """A header whose BAR registers hold the numbers given."""
    header = bytearray(64)
    header[0x0E] = 1 if bridge else 0
    for index, register in enumerate(registers):
        header[0x10 + 4 * index : 0x14 + 4 * index] = register.to_bytes(4, "little")
    return bytes(header)


P40_CONFIG = config(0x92000000, 0x0000000C, 0x3830, 0x0000000C, 0x3838, 0x3001)
P40 = "pci0000:00/0000:00:02.0/0000:04:00.0"
P40_FILES: dict[str, Content] = {
    "numa_node": "0\n",
    "current_link_width": "16\n",
    "max_link_width": "16\n",
    "current_link_speed": "2.5 GT/s PCIe\n",
    "max_link_speed": "8.0 GT/s PCIe\n",
    "resource": P40_RESOURCE,
    "config": P40_CONFIG,
}


def machine(root: Path, **changes: Content) -> LiveHost:
    """A root port with a P40 behind it; ``changes`` replace files of the P40, None leaves one out."""
    files = {name: value for name, value in (P40_FILES | changes).items() if value is not None}
    return tree(
        root,
        pci_device("pci0000:00/0000:00:02.0", "8086:6f04", 0x060400, driver="pcieport")
        | pci_device(P40, "10de:1b38", 0x030200, driver="nvidia", attributes=files)
        | {
            "/sys/kernel/iommu_groups/31": None,
            f"/sys/devices/{P40}/iommu_group": Path("/sys/kernel/iommu_groups/31"),
            "/sys/bus/pci/slots/4/address": "0000:04:00\n",
        },
    )


# --- parsing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lanes"),
    [("16\n", 16), ("1", 1), ("0\n", None), ("255\n", None), ("Unknown", None), ("", None), ("²", None)],
)
def test_width(text: str, lanes: int | None) -> None:
    assert pci.parse_width(text) == lanes


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("8.0 GT/s PCIe\n", 8.0),
        ("8 GT/s\n", 8.0),
        ("2.5 GT/s PCIe", 2.5),
        ("Unknown\n", None),
        ("Unknown speed", None),
        ("", None),
    ],
)
def test_speed(text: str, speed: float | None) -> None:
    assert pci.parse_speed(text) == speed


def test_bars_with_addresses() -> None:
    bars = pci.parse_bars(P40_RESOURCE, P40_CONFIG)
    assert [(bar.index, bar.bytes, bar.assigned, bar.is_64bit, bar.prefetchable) for bar in bars] == [
        (0, 16 << 20, True, False, False),
        (1, 32 << 30, True, True, True),
        (3, 32 << 20, True, True, True),
    ]
    assert bars[1].start == 0x383000000000


@pytest.mark.parametrize("flags", ["0x000000002014220c", "0x000000000014220c"])
def test_bar_that_kept_its_size_but_got_no_address(flags: str) -> None:
    resource = EMPTY + f"0x0000000000000000 0x00000007ffffffff {flags}\n" + EMPTY * 11
    (bar,) = pci.parse_bars(resource, None)
    assert bar == Bar(index=1, bytes=32 << 30, assigned=False, is_64bit=True, prefetchable=True)


@pytest.mark.parametrize("flag", [0x1000_0000, 0x2000_0000], ids=["disabled", "unset"])
def test_a_start_that_the_kernel_calls_void_is_no_address(flag: int) -> None:
    resource = EMPTY + f"0x0000383000000000 0x00003837ffffffff {0x14220C | flag:#018x}\n" + EMPTY * 11
    (bar,) = pci.parse_bars(resource, None)
    assert bar == Bar(index=1, bytes=32 << 30, assigned=False, is_64bit=True, prefetchable=True)


def test_wiped_bar_is_seen_in_the_register_alone() -> None:
    # The upper half of BAR 1 holds a number whose low bits look like a 64-bit BAR of its own.
    header = config(0x92000000, 0x0000000C, 0x0000000C, 0x00000004, 0, 0x3001)
    resource = P40_RESOURCE.splitlines(keepends=True)[0] + EMPTY * 12
    bars = pci.parse_bars(resource, header)
    assert [(bar.index, bar.bytes, bar.assigned, bar.prefetchable) for bar in bars] == [
        (0, 16 << 20, True, False),
        (1, None, False, True),
        (3, None, False, False),
    ]


def test_a_dead_header_invents_no_bars() -> None:
    assert pci.parse_bars(EMPTY * 13, b"\xff" * 64) == ()


def test_bridge_has_two_bars_and_bus_numbers_after_them() -> None:
    header = config(0, 0, 0x0005_0504, bridge=True)  # bus numbers: primary 4, secondary 5
    assert pci.parse_bars(EMPTY * 17, header, bridge=True) == ()


def test_io_and_rom_are_no_memory_bars() -> None:
    lines = [EMPTY] * 13
    lines[5] = "0x0000000000003000 0x000000000000307f 0x0000000000040101\n"
    lines[6] = "0x0000000093000000 0x000000009307ffff 0x0000000000046200\n"
    assert pci.parse_bars("".join(lines), None) == ()


def test_uevent() -> None:
    text = "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:1B38\nPCI_SUBSYS_ID=10DE:11D9\n"
    assert pci.parse_uevent(text) == pci.Identity(0x10DE, 0x1B38, 0x030200, 0x10DE, 0x11D9, "nvidia")
    assert pci.parse_uevent("PCI_CLASS=30200\n") is None
    assert pci.parse_uevent("PCI_ID=10DE\nPCI_CLASS=30200\n") is None


# --- reading ----------------------------------------------------------------------------------


def test_a_card_behind_a_root_port(tmp_path: Path) -> None:
    parts = pci.read(machine(tmp_path))
    assert parts.gaps == ()
    assert parts.pci is not None
    port, card = parts.pci
    assert (port.address, port.parent, port.is_bridge, port.driver) == (
        "0000:00:02.0",
        None,
        True,
        "pcieport",
    )
    assert (card.address, card.pci_id, card.subsystem_id) == ("0000:04:00.0", "10de:1b38", "10de:11d9")
    assert (card.parent, card.driver, card.numa_node, card.iommu_group) == ("0000:00:02.0", "nvidia", 0, 31)
    assert card.link == Link(width=16, max_width=16, speed_gts=2.5, max_speed_gts=8.0)
    assert [bar.bytes for bar in card.bars or ()] == [16 << 20, 32 << 30, 32 << 20]
    assert (card.physical_slot, card.config_dead, card.boot_vga) == ("4", False, None)


@pytest.mark.parametrize("resource", [None, "not numbers\n"])
def test_bars_that_were_not_read_are_not_none_at_all(tmp_path: Path, resource: Content) -> None:
    parts = pci.read(machine(tmp_path, resource=resource))
    assert parts.pci is not None
    assert parts.pci[1].bars is None


def test_a_device_that_is_no_link_has_no_known_place(tmp_path: Path) -> None:
    uevent = "PCI_CLASS=30200\nPCI_ID=10DE:1B38\n"
    parts = pci.read(tree(tmp_path, {"/sys/bus/pci/devices/0000:04:00.0/uevent": uevent}))
    assert [found.parent for found in parts.pci or ()] == ["?"]
    (gap,) = (gap for gap in parts.gaps if gap.fact == "topology")
    assert gap.reason == "not-in-input"
    assert "0000:04:00.0" in gap.how


def test_identity_from_single_files(tmp_path: Path) -> None:
    folder = f"/sys/devices/{P40}"
    host = tree(
        tmp_path,
        {
            "/sys/bus/pci/devices/0000:04:00.0": Path(folder),
            f"{folder}/vendor": "0x10de\n",
            f"{folder}/device": "0x1b38\n",
            f"{folder}/class": "0x030200\n",
            f"{folder}/subsystem_vendor": "0x10de\n",
            f"{folder}/subsystem_device": "0x11d9\n",
            "/sys/bus/pci/drivers/vfio-pci": None,
            f"{folder}/driver": Path("/sys/bus/pci/drivers/vfio-pci"),
        },
    )
    (card,) = pci.read(host).pci or ()
    assert (card.pci_id, card.class_id, card.subsystem_id) == ("10de:1b38", 0x030200, "10de:11d9")
    assert (card.driver, card.driver_read) == ("vfio-pci", True)


def test_a_driver_link_that_leads_nowhere_is_no_missing_driver(tmp_path: Path) -> None:
    host = machine(tmp_path, driver=Path("/sys/bus/pci/drivers/nvidia"), vendor="0x10de", device="0x1b38")
    folder = tmp_path / "sys/devices" / P40
    (folder / "uevent").unlink()
    (folder / "class").write_text("0x030200")
    parts = pci.read(host)
    assert parts.pci is not None
    assert (parts.pci[1].driver, parts.pci[1].driver_read) == (None, False)
    assert [gap.fact for gap in parts.gaps] == ["gpus.0000:04:00.0.driver"]


@pytest.mark.parametrize("has_drivers", [True, False])
def test_a_dump_without_any_driver_says_nothing_of_them(tmp_path: Path, has_drivers: bool) -> None:
    host = machine(tmp_path, vendor="0x10de", device="0x1b38")
    folder = tmp_path / "sys/devices" / P40
    (folder / "uevent").unlink()
    (folder / "class").write_text("0x030200")
    if has_drivers:
        (tmp_path / "sys/bus/pci/drivers").mkdir(parents=True)
    card = by_address(pci.read(host))["0000:04:00.0"]
    assert (card.driver, card.driver_read) == (None, has_drivers)


def test_unbound_card(tmp_path: Path) -> None:
    host = tree(tmp_path, pci_device(P40, "10de:1b38", 0x030200))
    (card,) = pci.read(host).pci or ()
    assert (card.driver, card.driver_read) == (None, True)


def test_dead_configuration_space(tmp_path: Path) -> None:
    parts = pci.read(machine(tmp_path, config=b"\xff" * 64))
    assert parts.pci is not None
    assert parts.pci[1].config_dead is True
    assert parts.pci[1].pci_id == "10de:1b38"


@pytest.mark.parametrize(
    ("name", "value", "fact", "reason"),
    [
        ("config", b"\xff" * 8, "config_dead", "unreadable"),
        ("config", None, "config_dead", "file-absent"),
        ("config", b"\xde\x11" + bytes(62), "config_dead", "contradiction"),  # another vendor than the kernel says
        ("resource", "not numbers\n", "bars", "unreadable"),
        ("resource", None, "bars", "file-absent"),
        ("numa_node", "-1\n", "numa_node", "not-supported"),
        ("max_link_width", "255\n", "link", "not-supported"),
        ("current_link_width", "0\n", "link", "not-supported"),
    ],
)
def test_what_a_card_does_not_tell_is_a_gap(tmp_path: Path, name: str, value: Content, fact: str, reason: str) -> None:
    parts = pci.read(machine(tmp_path, **{name: value}))
    assert parts.pci is not None
    assert len(parts.pci) == 2
    assert [(gap.fact, gap.reason) for gap in parts.gaps] == [(f"gpus.0000:04:00.0.{fact}", reason)]


def test_one_bad_device_is_a_gap_and_the_others_stay(tmp_path: Path) -> None:
    host = machine(tmp_path)
    (tmp_path / "sys/devices" / P40 / "uevent").unlink()
    parts = pci.read(host)
    assert parts.pci is not None
    assert [found.address for found in parts.pci] == ["0000:00:02.0"]
    assert [(gap.fact, gap.reason) for gap in parts.gaps] == [("pci.0000:04:00.0", "file-absent")]


def test_a_device_that_goes_between_listing_and_reading_is_missed(tmp_path: Path) -> None:
    host = machine(tmp_path)
    shutil.rmtree(tmp_path / "sys/devices" / P40)  # its name is still listed
    seen = assemble([pci.read(host)], load())
    assert [(gap.fact, gap.reason) for gap in seen.gaps][:1] == [("pci.0000:04:00.0", "file-absent")]
    report = judge(seen, None, load())
    assert (report.counts.pci, report.verdict, report.exit_code) == (None, "unknown", 3)
    assert report.headline == "The machine: no GPU, but one function on PCI could not be read: a card may be it."


def test_no_device_that_could_be_read_is_not_an_empty_bus(tmp_path: Path) -> None:
    host = tree(tmp_path, {"/sys/bus/pci/devices/0000:04:00.0": None})
    parts = pci.read(host)
    assert parts.pci is None
    assert len(parts.gaps) == 1


def test_an_empty_bus_is_known_to_be_empty(tmp_path: Path) -> None:
    assert pci.read(tree(tmp_path, {"/sys/bus/pci/devices": None})).pci == ()


@pytest.mark.parametrize(
    ("files", "reason"),
    [({}, "file-absent"), ({"/.dockerenv": ""}, "in-container")],
)
def test_no_bus(tmp_path: Path, files: dict[str, Content], reason: str) -> None:
    parts = pci.read(tree(tmp_path, files))
    assert parts.pci is None
    assert [(gap.fact, gap.reason) for gap in parts.gaps] == [("pci", reason)]


def test_hostile_names_and_numbers(tmp_path: Path) -> None:
    host = machine(tmp_path)
    devices = tmp_path / "sys/bus/pci/devices"
    (devices / "evil\x1b[31m").mkdir()
    wide = tmp_path / "sys/devices/pci0000:00/0000:00:03.0"
    wide.mkdir()
    (wide / "uevent").write_text("PCI_ID=FFFFFFFF:1\nPCI_CLASS=30200\n")
    (devices / "0000:00:03.0").symlink_to("/sys/devices/pci0000:00/0000:00:03.0")
    parts = pci.read(host)
    assert parts.pci is not None
    assert len(parts.pci) == 2
    assert sorted(gap.fact for gap in parts.gaps) == ["pci.0000:00:03.0", "pci.evil"]


def test_shares_of_a_card_are_no_cards(tmp_path: Path) -> None:
    share = "pci0000:00/0000:00:02.0/0000:04:01.0"
    host = machine(tmp_path)
    tree(tmp_path, pci_device(share, "10de:1b38", 0x030200, attributes={"physfn": Path("../0000:04:00.0")}))
    parts = pci.read(host)
    assert parts.pci is not None
    assert [card.address for card in gpu_functions(parts.pci)] == ["0000:04:00.0"]


def test_domains_of_vmd_have_their_own_root_bus(tmp_path: Path) -> None:
    path = "pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0"
    (port,) = pci.read(tree(tmp_path, pci_device(path, "8086:201d", 0x060400))).pci or ()
    assert (port.address, port.parent) == ("10000:00:02.0", None)


def test_a_slot_that_knows_its_bus_only(tmp_path: Path) -> None:
    host = machine(tmp_path)
    (tmp_path / "sys/bus/pci/slots/4/address").write_text("0000:04\n")
    assert [found.physical_slot for found in pci.read(host).pci or ()] == [None, "4"]


# --- real machines ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "functions", "gpus", "bmc"),
    [
        ("hwloc_32em64t-2n8c+dax+nvme+mic+dimms.tar.bz2", 137, [], ["1a03:2000"]),
        ("hwloc_40intel64-2g2n4c+pcilocality.tar.bz2", 37, [], ["102b:0532"]),
        ("ghw_linux-amd64-accel-nvidia.tar.gz", 29, ["10de:15f8"], []),
        ("ghw_linux-amd64-61797caf7c0b6bca1725ad7975ed4773.tar.gz", 43, ["1002:6758"], []),
    ],
)
def test_real_trees(
    shared_machines: Path, tmp_path: Path, name: str, functions: int, gpus: list[str], bmc: list[str]
) -> None:
    found = pci.read(unpacked(shared_machines / "sysfs" / name, tmp_path)).pci
    assert found is not None
    assert len(found) == functions
    assert [gpu.pci_id for gpu in gpu_functions(found)] == gpus
    assert [one.pci_id for one in found if kind_of_display(one, found) == "bmc"] == bmc
    addresses = {one.address for one in found}
    assert all(one.parent is None or one.parent in addresses for one in found)


# --- links, sleep and other makers' drivers ------------------------------------------------------


def by_address(parts: Parts) -> dict[str, PciFunction]:
    return {function.address: function for function in parts.pci or ()}


def aer(correctable: int, nonfatal: int = 0, fatal: int = 0) -> dict[str, Content]:
    return {
        "aer_dev_correctable": f"RxErr 0\nBadTLP {correctable}\nTOTAL_ERR_COR {correctable}\n",
        "aer_dev_nonfatal": f"Undefined 0\nTOTAL_ERR_NONFATAL {nonfatal}\n",
        "aer_dev_fatal": f"Undefined 0\nTOTAL_ERR_FATAL {fatal}\n",
    }


def test_errors_and_access_control_above_a_card_and_nowhere_else(tmp_path: Path) -> None:
    attributes: dict[str, Content] = {**aer(3), "config": registers.bridge(link=True, presence=True, acs=4)}
    host = tree(
        tmp_path,
        pci_device("pci0000:00/0000:00:02.0", "8086:6f04", 0x060400, attributes=attributes)
        | pci_device(P40, "10de:1b38", 0x030200, driver="nvidia", attributes=P40_FILES | aer(12, 1, 2))
        | pci_device("pci0000:00/0000:00:03.0", "8086:6f08", 0x060400, attributes=attributes),
    )
    found = by_address(pci.read(host))
    assert found["0000:04:00.0"].errors == ErrorCounts(correctable=12, nonfatal=1, fatal=2)
    above, other = found["0000:00:02.0"], found["0000:00:03.0"]
    assert above.errors == ErrorCounts(correctable=3, nonfatal=0, fatal=0)
    assert above.acs == ("ReqRedir",)
    assert (other.errors, other.acs) == (None, None)
    assert above.port == other.port is not None


def test_without_root_bridges_tell_nothing(tmp_path: Path) -> None:
    host = machine(tmp_path)
    (tmp_path / "sys/devices/pci0000:00/0000:00:02.0/config").write_bytes(registers.bridge(size=64))
    bridge = by_address(pci.read(host))["0000:00:02.0"]
    assert (bridge.port, bridge.acs, bridge.errors) == (None, None, None)


def test_a_sleeping_card_is_not_a_dead_one(tmp_path: Path) -> None:
    dead = b"\xff" * 64
    parts = pci.read(machine(tmp_path / "asleep", config=dead, power_state="D3cold\n"))
    card = by_address(parts)["0000:04:00.0"]
    assert (card.config_dead, card.power_state) == (None, "D3cold")
    assert ("gpus.0000:04:00.0.config_dead", "not-supported") in [(gap.fact, gap.reason) for gap in parts.gaps]
    card = by_address(pci.read(machine(tmp_path / "lost", config=dead, power_state="D0\n")))["0000:04:00.0"]
    assert card.config_dead is True
    card = by_address(pci.read(machine(tmp_path / "awake", power_state="D3cold\n")))["0000:04:00.0"]
    assert card.config_dead is False


def test_type_of_the_iommu_domain(tmp_path: Path) -> None:
    host = machine(tmp_path)
    assert by_address(pci.read(host))["0000:04:00.0"].iommu_domain is None
    (tmp_path / "sys/kernel/iommu_groups/31/type").write_text("DMA-FQ\n")
    assert by_address(pci.read(host))["0000:04:00.0"].iommu_domain == "DMA-FQ"


AMD: dict[str, Content] = {
    "product_name": "AMD INSTINCT MI210\n",
    "serial_number": "PCB12345678\n",
    "unique_id": "deadbeef01234567\n",
    "mem_info_vram_total": "68702699520\n",
    "gpu_busy_percent": "7\n",
    "hwmon/hwmon3/power1_cap": "300000000\n",
}


def card_of(root: Path, driver: str | None, attributes: dict[str, Content]) -> PciFunction:
    place = "pci0000:00/0000:00:02.0/0000:04:00.0"
    made = pci_device(place, "1002:740f", 0x038000, driver=driver, attributes=attributes)
    return by_address(pci.read(tree(root, made)))["0000:04:00.0"]


def test_what_amds_driver_tells(tmp_path: Path) -> None:
    card = card_of(tmp_path, "amdgpu", AMD)
    assert card.report == DriverReport(
        product_name="AMD INSTINCT MI210",
        vram_bytes=68702699520,
        busy_percent=7,
        power_cap_watts=300.0,
    )
    assert "PCB12345678" not in card.model_dump_json()


def test_what_intels_driver_tells(tmp_path: Path) -> None:
    made: dict[str, Content] = {"hwmon/hwmon2/power1_max": "275000000\n"}
    assert card_of(tmp_path, "xe", made).report == DriverReport(power_cap_watts=275.0)


@pytest.mark.parametrize("driver", [None, "vfio-pci"])
def test_no_driver_no_report(tmp_path: Path, driver: str | None) -> None:
    assert card_of(tmp_path, driver, AMD).report is None


def test_windows_of_a_bridge_are_its_last_lines() -> None:
    closed = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
    io = "0x0000000000004000 0x0000000000004fff 0x0000000000000101\n"
    low = "0x0000000076000000 0x00000000821fffff 0x0000000000000200\n"
    high = "0x0000006000000000 0x000000601bffffff 0x0000000000102201\n"
    unset = "0x0000000000000000 0x00000000001fffff 0x0000000020102201\n"
    for without_iov in (closed * 7, closed * 13):
        windows = pci.parse_windows(without_iov + io + low + high + closed)
        assert [(w.start, w.bytes >> 20, w.prefetchable) for w in windows] == [
            (0x7600_0000, 194, False),
            (0x60_0000_0000, 448, True),
        ]
    assert pci.parse_windows(closed * 13 + io + low.replace("76000000", "00000000") + unset) == ()
    with pytest.raises(ValueError, match="invalid literal"):
        pci.parse_windows(closed * 13 + "not three numbers\n")
