"""SMBIOS: the table, dmidecode's text of it, and the strings open to everybody."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from support import (
    SMBIOS_END,
    smbios_cpu,
    smbios_dump,
    smbios_memory,
    smbios_psu,
    smbios_slot,
    smbios_structure,
    tree,
)

from gpucheck.facts import Parts
from gpucheck.host import READ_LIMIT, LiveHost
from gpucheck.readers import smbios

BIOS = smbios_structure(
    0, 0, struct.pack("<BBHBB", 1, 2, 0xF000, 3, 0xFF) + bytes(14), "Dell Inc.", "2.4.3", "01/17/2017"
)
UUID = bytes.fromhex("33221100554477668899aabbccddeeff")
SYSTEM = smbios_structure(
    1, 0x100, b"\1\2\3\0" + UUID + b"\6\4\0", "Dell Inc.", "PowerEdge R730", "Not Specified", "SKU=1"
)
BOARD = smbios_structure(2, 0x200, b"\1\2\3\0\0\0\0" + struct.pack("<HBB", 0x300, 10, 0), "Dell Inc.", "0WCJNT", "A06")
CHASSIS = smbios_structure(3, 0x300, b"\1\x97\0\0\0\3\3\3\3" + bytes(8), "Dell Inc.")
HEAD = BIOS + SYSTEM + BOARD + CHASSIS


def gaps(parts: Parts) -> dict[str, str]:
    return {gap.fact: gap.reason for gap in parts.gaps}


# --- the table --------------------------------------------------------------------------------


def test_identity() -> None:
    system = smbios.parse_table(HEAD + SMBIOS_END).system
    assert system is not None
    assert (system.vendor, system.product, system.sku) == ("Dell Inc.", "PowerEdge R730", "SKU=1")
    assert (system.board_vendor, system.board, system.chassis) == ("Dell Inc.", "0WCJNT", "Rack Mount Chassis")
    assert (system.bios_vendor, system.bios_version, system.bios_date) == ("Dell Inc.", "2.4.3", "01/17/2017")
    assert system.version is None
    assert system.uuid == "00112233-4455-6677-8899-aabbccddeeff"


def test_uuid_is_big_endian_before_2_6() -> None:
    system = smbios.parse_table(HEAD + SMBIOS_END, (2, 5)).system
    assert system is not None
    assert system.uuid == "33221100-5544-7766-8899-aabbccddeeff"


def test_the_motherboard_is_the_board_whatever_comes_first() -> None:
    riser = smbios_structure(2, 0x201, b"\1\2\0\0\0\0\0" + struct.pack("<HBB", 0, 13, 0), "Dell Inc.", "RISER")
    system = smbios.parse_table(riser + HEAD + SMBIOS_END).system
    assert system is not None
    assert system.board == "0WCJNT"


@pytest.mark.parametrize(
    ("status", "populated", "words"),
    [
        (0x41, True, "enabled"),
        (0x44, True, "idle"),
        (0x43, True, "disabled-by-bios"),
        (0x42, True, "disabled-by-user"),
        (0x40, True, "unknown"),
        (0x00, False, None),
        (0x01, False, None),
    ],
)
def test_a_socket_is_populated_by_bit_6_alone(status: int, populated: bool, words: str | None) -> None:
    table = HEAD + smbios_cpu(0x400, "CPU1", status, "  Intel(R) Xeon(R) CPU E5-2630 v4 @ 2.20GHz ") + SMBIOS_END
    sockets = smbios.parse_table(table).cpu_sockets
    assert sockets is not None
    assert [(socket.designation, socket.populated, socket.status) for socket in sockets] == [("CPU1", populated, words)]
    assert sockets[0].model == ("Intel(R) Xeon(R) CPU E5-2630 v4 @ 2.20GHz" if populated else None)


@pytest.mark.parametrize(
    ("kind", "width", "expected"),
    [
        (0xA5, 0x0D, (16, None, None)),  # "PCI Express" without a number: also said of PCIe 3.0 slots
        (0xAA, 0x0B, (8, 16, None)),
        (0xAB, 0x0A, (4, None, 2)),
        (0xB0, 0x0B, (8, 16, 2)),
        (0xB5, 0x0B, (8, 8, 3)),
        (0xB6, 0x0B, (8, 16, 3)),
        (0xB8, 0x0B, (8, None, 4)),
        (0xBD, 0x0D, (16, 16, 4)),
        (0xC3, 0x0D, (16, 16, 5)),
        (0xC4, 0x0D, (16, None, 6)),
        (0x20, 0x0A, (4, None, 3)),
        (0x17, 0x0A, (4, None, None)),
        (0x06, 0x05, (None, None, None)),
        (0xB6, 0x02, (None, 16, 3)),
    ],
)
def test_slot_type_byte(kind: int, width: int, expected: tuple[int | None, ...]) -> None:
    parts = smbios.parse_table(HEAD + smbios_slot(0x900, "SLOT1", kind, width, 3) + SMBIOS_END)
    assert parts.slots is not None
    slot = parts.slots[0]
    assert (slot.lanes, slot.connector, slot.gen) == expected
    assert not any(fact.startswith("slots.") for fact in gaps(parts))


def test_a_slot_type_that_is_not_in_the_standard_is_a_gap() -> None:
    parts = smbios.parse_table(HEAD + smbios_slot(0x900, "SLOT1", 0xF0, 0x0D, 4) + SMBIOS_END)
    assert parts.slots is not None
    assert (parts.slots[0].lanes, parts.slots[0].gen) == (16, None)
    assert gaps(parts)["slots.SLOT1.gen"] == "not-supported"


def test_more_lanes_than_the_connector_has_is_a_contradiction() -> None:
    parts = smbios.parse_table(HEAD + smbios_slot(0x900, "PCIe Slot 5", 0xAF, 0x0D, 4) + SMBIOS_END)
    assert parts.slots is not None
    assert (parts.slots[0].lanes, parts.slots[0].connector, parts.slots[0].gen) == (None, None, 2)
    assert gaps(parts)["slots.PCIe Slot 5.lanes"] == "contradiction"


def test_width_and_generation_of_smbios_3_4_fill_what_the_type_leaves_open() -> None:
    fields = struct.pack("<BBBBBHBBHBB", 1, 0xA5, 0x0B, 3, 4, 1, 0, 0, 0, 0xFF, 0xFF)
    one_peer = struct.pack("<BBHBBB", 0, 1, 0, 0x17, 0, 8)
    parts = smbios.parse_table(
        HEAD + smbios_structure(9, 0x900, fields + one_peer + bytes([4, 0x0D, 0, 0, 0]), "SLOT1") + SMBIOS_END
    )
    assert parts.slots is not None
    assert (parts.slots[0].lanes, parts.slots[0].connector, parts.slots[0].gen) == (8, 16, 4)


@pytest.mark.parametrize(("usage", "in_use"), [(3, False), (4, True), (1, None), (2, None), (5, None), (9, None)])
def test_usage_that_is_no_statement_is_unknown(usage: int, in_use: bool | None) -> None:
    slots = smbios.parse_table(HEAD + smbios_slot(0x900, "SLOT1", 0xB6, 0x0D, usage) + SMBIOS_END).slots
    assert slots is not None
    assert slots[0].in_use is in_use


@pytest.mark.parametrize(
    ("place", "address"),
    [
        ((0, 0x04, 0x00), "0000:04:00.0"),
        ((0, 0x00, 0x12), "0000:00:02.2"),
        ((0x0082, 0x88, 0x00), "0082:88:00.0"),
        ((0, 0xFF, 0x1A), None),
        ((7, 0xFF, 0x00), None),
        ((0, 0x00, 0x00), None),
    ],
)
def test_bus_ff_and_the_host_bridge_are_no_address(place: tuple[int, int, int], address: str | None) -> None:
    slots = smbios.parse_table(HEAD + smbios_slot(0x900, "SLOT1", 0xB6, 0x0D, 4, *place) + SMBIOS_END).slots
    assert slots is not None
    assert (slots[0].in_use, slots[0].address) == (True, address)


@pytest.mark.parametrize(
    ("watts", "bits", "name", "expected"),
    [
        (1100, 0x182, "PWR SPLY,1100W,RDNT,LTON      ", (1100, True, True)),
        (1100, 0x102, "PWS-1K66P-1R", (1100, True, True)),
        (900, 0x286, "PAC900S12-B1", (900, True, False)),
        (0x8000, 0x180, "To Be Filled By O.E.M.", (None, False, None)),
        (0, 0x182, "PWR SPLY,750WP,RDNT,DELTA", (750, True, True)),
        (75, 0x182, "OEM Define 1", (None, True, True)),
        (65535, 0x182, "PWS-1K66P-1R", (None, True, True)),
        (0x8000, 0x182, "PWS-2K04A-1R", (None, True, True)),
    ],
)
def test_psu(watts: int, bits: int, name: str, expected: tuple[int | None, bool, bool | None]) -> None:
    parts = smbios.parse_table(HEAD + smbios_psu(0x2700, "PSU1", name, watts, bits) + SMBIOS_END)
    assert parts.psus is not None
    unit = parts.psus[0]
    assert (unit.watts, unit.present, unit.plugged) == expected
    assert ("psus.watts" in gaps(parts)) == (unit.watts is None and unit.present)


def test_psu_placeholders_are_none_and_a_bay_is_no_model() -> None:
    table = HEAD + smbios_psu(1, "Not Specified", "Power Supply 1", 800, 0x182, "HP", " " * 32)
    table += smbios_psu(2, "To Be Filled By O.E.M.", "INVALID", 0x8000, 0x182, "Default string", "N/A") + SMBIOS_END
    psus = smbios.parse_table(table).psus
    assert psus is not None
    assert [(unit.location, unit.model, unit.part, unit.manufacturer) for unit in psus] == [
        ("Power Supply 1", None, None, "HP"),
        (None, None, None, None),
    ]


def test_memory_sizes() -> None:
    parts = smbios.parse_table(
        HEAD
        + smbios_memory(1, "A1", 8192)
        + smbios_memory(2, "A2", 0x7FFF, 65536)
        + smbios_memory(3, "A3", 0x8000 | 512)
        + smbios_memory(4, "A4", 0)
        + SMBIOS_END
    )
    assert [(device.locator, device.bytes) for device in parts.memory_devices or ()] == [
        ("A1", 8 << 30),
        ("A2", 64 << 30),
        ("A3", 512 << 10),
    ]
    assert parts.memory_bytes == (72 << 30) + (512 << 10)


def test_one_unknown_memory_size_leaves_the_sum_unknown() -> None:
    parts = smbios.parse_table(HEAD + smbios_memory(1, "A1", 8192) + smbios_memory(2, "A2", 0xFFFF) + SMBIOS_END)
    assert parts.memory_bytes is None
    assert gaps(parts)["memory_bytes"] == "not-supported"


def test_flash_is_no_memory_slot() -> None:
    def array(handle: int, use: int) -> bytes:
        return smbios_structure(16, handle, struct.pack("<BBBIHH", 3, use, 6, 0x80000000, 0xFFFE, 1) + bytes(8))

    parts = smbios.parse_table(
        HEAD
        + array(0x1000, 3)
        + array(0x1001, 5)
        + smbios_memory(1, "A1", 8192)
        + smbios_memory(2, "SYSTEM ROM", 0x8000 | 8192, array=0x1001)
        + SMBIOS_END
    )
    assert parts.memory_bytes == 8 << 30


def test_onboard_devices() -> None:
    video = smbios_structure(41, 1, struct.pack("<BBBHBB", 1, 0x83, 1, 0, 0x0A, 0), "Embedded Video")
    lan = smbios_structure(41, 2, struct.pack("<BBBHBB", 1, 0x05, 1, 0, 0x19, 0), " Onboard LAN")
    devices = smbios.parse_table(HEAD + video + lan + SMBIOS_END).onboard
    assert devices is not None
    assert [(device.designation, device.kind, device.enabled, device.address) for device in devices] == [
        ("Embedded Video", "Video", True, "0000:0a:00.0"),
        ("Onboard LAN", "Ethernet", False, "0000:19:00.0"),
    ]


def test_a_type_that_is_not_listed_is_unknown_not_empty() -> None:
    parts = smbios.parse_table(HEAD + SMBIOS_END)
    assert (parts.cpu_sockets, parts.slots, parts.psus) == (None, None, None)
    assert {gaps(parts)[fact] for fact in ("cpu_sockets", "slots", "psus")} == {"not-supported"}


def test_a_string_number_beyond_the_end_is_a_placeholder() -> None:
    fields = bytearray(smbios_slot(0x900, "SLOT1", 0xB6, 0x0D, 4))
    fields[4] = 9
    slots = smbios.parse_table(HEAD + bytes(fields) + SMBIOS_END).slots
    assert slots is not None
    assert slots[0].designation == "SMBIOS 0x0900"


def test_short_structures_of_old_versions_leave_fields_unknown() -> None:
    slot = smbios_structure(9, 0x900, struct.pack("<BBBBBHB", 1, 0xA5, 0x0D, 4, 4, 1, 0), "PCIE1")
    parts = smbios.parse_table(HEAD + slot + smbios_structure(4, 0x400, b"\1\3\0\0", "CPU1") + SMBIOS_END)
    assert parts.slots is not None
    assert (parts.slots[0].in_use, parts.slots[0].address) == (True, None)
    assert parts.cpu_sockets is not None
    assert parts.cpu_sockets[0].populated is None


@pytest.mark.parametrize("keep", [1, 5, 30])
def test_a_cut_table_gives_what_was_whole(keep: int) -> None:
    table = HEAD + smbios_slot(0x900, "SLOT1", 0xB6, 0x0D, 4)
    parts = smbios.parse_table(table + smbios_cpu(0x400, "CPU1", 0x41, "Xeon")[:keep])
    assert parts.slots is not None
    assert parts.system is not None
    assert parts.cpu_sockets is None
    assert gaps(parts)["smbios"] == gaps(parts)["cpu_sockets"] == "unreadable"


def test_strings_without_an_end_are_read_and_noted() -> None:
    parts = smbios.parse_table(HEAD + smbios_slot(0x900, "SLOT1", 0xB6, 0x0D, 4).rstrip(b"\0"))
    assert parts.slots is not None
    assert parts.slots[0].designation == "SLOT1"
    assert gaps(parts)["smbios"] == "unreadable"


def test_a_structure_shorter_than_its_head_ends_the_table() -> None:
    parts = smbios.parse_table(HEAD + b"\x09\x00\x00\x00" + SMBIOS_END)
    assert parts.system is not None
    assert gaps(parts)["slots"] == "unreadable"


def test_what_follows_the_end_of_the_table_is_not_read() -> None:
    assert smbios.parse_table(HEAD + SMBIOS_END + smbios_slot(9, "OLD", 0xB6, 0x0D, 4)).slots is None


@pytest.mark.parametrize("data", [b"", b"\0\0\0\0", b"\x09\x02\0\0", b"\x7f", b"_SM3_", bytes(64)])
def test_no_structure_at_all_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="no SMBIOS structure"):
        smbios.parse_table(data)
    with pytest.raises(ValueError, match="no dmidecode record"):
        smbios.parse_text(data.decode("latin-1"))


def test_an_entry_point_in_front_of_the_table() -> None:
    table = HEAD + smbios_slot(0x900, "SLOT1", 0xB6, 0x0D, 4) + SMBIOS_END
    bare = smbios.parse_table(table)
    dump = smbios_dump(table)
    assert smbios.parse_table(dump) == bare
    # both files of sysfs, one after the other: the address is that of the running machine's memory
    copied = dump[:16] + struct.pack("<Q", 0x7A32F000) + table
    assert smbios.parse_table(copied) == bare
    legacy = b"_SM_" + bytes([0, 31, 2, 8]) + bytes(8) + b"_DMI_" + struct.pack("<BHIHB", 0, len(table), 32, 5, 0x28)
    assert smbios.parse_table(legacy + b"\0" + table) == bare
    assert all(map(smbios.looks_like_table, (table, dump, copied, legacy)))


def test_structures_without_bios_and_system_are_not_taken_for_a_table() -> None:
    slots = [smbios_slot(handle, "SLOT1", 0xB6, 0x0D, 4) for handle in range(3)]
    assert not smbios.looks_like_table(b"".join(slots) + SMBIOS_END)


def test_hostile_strings_are_cleaned() -> None:
    parts = smbios.parse_table(HEAD + smbios_slot(0x900, "\x1b[2JSLOT\u202e1\r", 0xF0, 0x0D, 4) + SMBIOS_END)
    assert parts.slots is not None
    assert parts.slots[0].designation == "SLOT1"
    assert "slots.SLOT1.gen" in gaps(parts)


@pytest.mark.parametrize(
    "text",
    [
        "", " " * 48, "0" * 32, "--", "To Be Filled By O.E.M.", "To be filled by O.E.M.  ", "Default string",
        "Not Specified", "Not Available", "OEM Define 1", "INVALID", "Unknown", "N/A", "<BAD INDEX>", "0123456789",
        "System Product Name", "System manufacturer", "Chassis SKU Number", "Type2 - Board Chassis Location", "empty",
    ],
)  # fmt: skip
def test_placeholders(text: str) -> None:
    assert smbios.known(text) is None


@pytest.mark.parametrize(
    "text", ["X10DRi", "AS -4124GS-TNR", "OEM-R 720xd", "0WCJNT", "System x3650 M5", "100-1", "Other World"]
)
def test_names_are_no_placeholders(text: str) -> None:
    assert smbios.known(text) == text


@pytest.mark.parametrize(
    ("name", "watts"),
    [
        ("PWR SPLY,1100W,RDNT,LTON      ", 1100),
        ("PWR SPLY,750WP,RDNT,DELTA", 750),
        ("PWR SPLY,1100W,HVDC-C14", 1100),
        ("PWS-1K66P-1R", None),
        ("PWS-1100W", None),
        ("PAC900S12-B1", None),
        ("DPS-2200AB-2 E", None),
        (None, None),
    ],
)
def test_watts_stand_in_a_name_only_as_a_word(name: str | None, watts: int | None) -> None:
    assert smbios.watts_in_name(name) == watts


# --- reading ----------------------------------------------------------------------------------


class Locked(LiveHost):
    """A folder whose SMBIOS table only root may read."""

    def read(self, path: str, limit: int = READ_LIMIT) -> bytes:
        if "/dmi/tables/" in path:
            raise PermissionError(13, "Permission denied", path)
        return super().read(path, limit)


def test_read_the_table_with_its_version(tmp_path: Path) -> None:
    table = HEAD + SMBIOS_END
    host = tree(
        tmp_path,
        {
            smbios.TABLE: table,
            smbios.ENTRY_POINT: smbios_dump(table, (2, 5))[:24],
            f"{smbios.STRINGS}/sys_vendor": "no",
        },
    )
    parts = smbios.read(host)
    assert parts.origin == host.name
    assert parts.system is not None
    assert parts.system.vendor == "Dell Inc."
    assert parts.system.uuid == "33221100-5544-7766-8899-aabbccddeeff"


def test_without_privilege_the_open_strings_tell_the_model(tmp_path: Path) -> None:
    strings = {
        "sys_vendor": "HP\n", "product_name": "HP Z840 Workstation\n", "product_version": " \n", "board_name": "2129\n",
        "chassis_type": "6\n", "bios_version": "M60 v02.57\n", "bios_date": "07/15/2021\n",
    }  # fmt: skip
    tree(tmp_path, {f"{smbios.STRINGS}/{name}": value for name, value in strings.items()})
    parts = smbios.read(Locked(tmp_path))
    assert parts.system is not None
    assert (parts.system.vendor, parts.system.product, parts.system.version) == ("HP", "HP Z840 Workstation", None)
    assert (parts.system.board, parts.system.chassis, parts.system.bios_version) == ("2129", "Mini Tower", "M60 v02.57")
    assert (parts.cpu_sockets, parts.slots, parts.psus) == (None, None, None)
    assert set(gaps(parts)) == {"cpu_sockets", "slots", "memory_devices", "psus", "onboard"}
    assert all(gap.reason == "needs-root" and "sudo /usr/sbin/dmidecode" in gap.how for gap in parts.gaps)


def test_root_that_is_refused_is_not_told_to_be_root(tmp_path: Path) -> None:
    class Closed(Locked):
        is_root = True

    parts = smbios.read(Closed(tmp_path))
    assert gaps(parts)["slots"] == "unreadable"
    assert not any("sudo" in gap.how for gap in parts.gaps)


def test_a_machine_without_smbios(tmp_path: Path) -> None:
    parts = smbios.read(LiveHost(tmp_path))
    assert parts.system is None
    assert gaps(parts)["system"] == gaps(parts)["slots"] == "file-absent"


def test_a_container_hides_smbios(tmp_path: Path) -> None:
    parts = smbios.read(tree(tmp_path, {"/.dockerenv": ""}))
    assert {gap.reason for gap in parts.gaps} == {"in-container"}


def test_a_table_of_nothing_is_a_gap(tmp_path: Path) -> None:
    parts = smbios.read(tree(tmp_path, {smbios.TABLE: b"\0" * 8, f"{smbios.STRINGS}/product_name": "X10DRi"}))
    assert parts.system is not None
    assert parts.system.product == "X10DRi"
    assert gaps(parts)["slots"] == "unreadable"


# --- dmidecode's text -------------------------------------------------------------------------

SLOTS = """# dmidecode 3.3
Getting SMBIOS data from sysfs.
SMBIOS 3.2 present.

Handle 0x0900, DMI type 9, 17 bytes
System Slot Information
	Designation: CPU1 SLOT2 PCI-E 3.0 X16
	Type: x16 <OUT OF SPEC>
	Current Usage: In Use
	Length: Short
	Bus Address: 0000:ff:03.2

Handle 0x0901, DMI type 9, 17 bytes
System Slot Information
	Designation: PCIe Slot 4
	Type: x8 PCI Express 3 x16
	Current Usage: <OUT OF SPEC>
	Length: Long
	Bus Address: 0000:82:00.0
"""


@pytest.mark.parametrize(
    "text",
    [
        SLOTS,
        SLOTS.replace("\t", "    "),
        SLOTS.replace("\t", ""),
        SLOTS.replace("\n", "\r\n"),
        SLOTS.partition("\n\n")[2],
        "$ sudo dmidecode -t 9\n" + SLOTS,
        SLOTS.replace(", DMI type", "\n\tDMI type"),
    ],
)
def test_partial_text(text: str) -> None:
    assert smbios.looks_like_dmidecode(text)
    parts = smbios.parse_text(text)
    assert parts.slots is not None
    first, second = parts.slots
    assert (first.designation, first.in_use, first.lanes, first.gen, first.address) == (
        "CPU1 SLOT2 PCI-E 3.0 X16", True, 16, None, None,
    )  # fmt: skip
    assert (second.in_use, second.lanes, second.connector, second.gen) == (None, 8, 16, 3)
    assert second.address == "0000:82:00.0"
    assert gaps(parts)["psus"] == gaps(parts)["system"] == "not-in-input"


def test_quiet_text() -> None:
    text = re.sub(r"^(?:#|Getting|SMBIOS|Handle).*\n", "", SLOTS, flags=re.MULTILINE).strip()
    text += "\n\nCache Information\n\tDesignation: no slot\n"
    text += "\nProcessor Information\n\tSocket Designation: P0\n\tStatus: Unpopulated\n"
    assert smbios.looks_like_dmidecode(text)
    parts = smbios.parse_text(text)
    assert [slot.designation for slot in parts.slots or ()] == ["CPU1 SLOT2 PCI-E 3.0 X16", "PCIe Slot 4"]
    assert [(socket.designation, socket.populated) for socket in parts.cpu_sockets or ()] == [("P0", False)]


def test_a_list_within_a_record_overrides_no_field() -> None:
    text = SLOTS.replace("Length: Long", "Length: Long\n\tCharacteristics:\n\t\tLength: 3.3 V")
    assert [slot.length for slot in smbios.parse_text(text).slots or ()] == ["Short", "Long"]


def test_text_of_a_user_without_privilege() -> None:
    parts = smbios.parse_text("# dmidecode 3.3\nScanning /dev/mem for entry point.\n/dev/mem: Permission denied\n")
    assert set(gaps(parts).values()) == {"needs-root"}
    parts = smbios.parse_text("# dmidecode 3.3\n# No SMBIOS nor DMI entry point found, sorry.\n")
    assert set(gaps(parts).values()) == {"not-supported"}


@pytest.mark.parametrize("text", ["", "Handle with care", "System Information\n", "03:00.0 VGA compatible controller"])
def test_other_text_is_not_taken_for_dmidecode(text: str) -> None:
    assert not smbios.looks_like_dmidecode(text)
    assert not smbios.looks_like_table(text.encode() * 9)


# --- other people's machines ------------------------------------------------------------------

DMIDECODE = shutil.which("dmidecode", path="/usr/sbin:/usr/bin:/sbin:/usr/local/sbin")


def decoded(table: bytes, folder: Path) -> str:
    """What the real dmidecode says of a table."""
    if DMIDECODE is None:
        pytest.skip("dmidecode is not installed")
    dump = folder / "dump.bin"
    dump.write_bytes(smbios_dump(table))
    return subprocess.run(
        [DMIDECODE, "--from-dump", str(dump)], capture_output=True, check=True, text=True, errors="replace"
    ).stdout


def without_gaps(parts: Parts) -> Parts:
    return parts.model_copy(update={"gaps": ()})


def test_dmidecode_reads_the_same_in_our_table(tmp_path: Path) -> None:
    table = HEAD
    for handle, kind in enumerate([0xA5, 0xA6, 0xAA, 0xAB, 0xB0, 0xB1, 0xB5, 0xB6, 0xBD, 0x17, 0x1F, 0x06, 0xF0]):
        table += smbios_slot(0x900 + handle, f"SLOT{handle}", kind, 0x0B, handle % 6, handle, 0x80 + handle, handle)
    for handle, status in enumerate([0x41, 0x44, 0x43, 0x42, 0x40, 0x47, 0x00]):
        table += smbios_cpu(0x400 + handle, f"CPU{handle}", status, " Intel(R) Xeon(R) ")
    for handle, (watts, bits) in enumerate([(1100, 0x182), (0x8000, 0x102), (0, 0x180), (900, 0x286), (75, 0x182)]):
        table += smbios_psu(0x2700 + handle, "PSU1", "PWR SPLY,495W,RDNT,EMSN", watts, bits)
    for handle, (size, extended) in enumerate([(0, 0), (8192, 0), (0x7FFF, 65536), (0x8200, 0), (0x7FFF, 40960)]):
        table += smbios_memory(0x1100 + handle, f"A{handle}", size, extended)
    table += SMBIOS_END
    assert smbios.parse_text(decoded(table, tmp_path)) == smbios.parse_table(table, (3, 3))


def test_dmidecode_reads_the_same_in_real_tables(shared_machines: Path, tmp_path: Path) -> None:
    tables = sorted((shared_machines / "smbios-bin").glob("*.dmi"))
    assert tables
    for path in tables:
        table = path.read_bytes()
        assert smbios.looks_like_table(table), path
        ours, theirs = smbios.parse_table(table, (3, 3)), smbios.parse_text(decoded(table, tmp_path))
        assert without_gaps(ours) == without_gaps(theirs), path
        assert set(gaps(ours)) >= set(gaps(theirs)) - {"smbios"}, path


def test_a_real_table_against_another_decoder(shared_machines: Path) -> None:
    folder = shared_machines / "smbios-bin"
    key = json.loads((folder / "Dell-PowerEdge-R630-Dual-Xeon.json").read_text())
    parts = smbios.parse_table((folder / "Dell-PowerEdge-R630-Dual-Xeon.dmi").read_bytes())
    assert parts.system is not None
    assert parts.system.product == key["SystemInformation"]["ProductName"]
    assert parts.system.uuid == key["SystemInformation"]["UUID"]
    assert parts.system.board == key["BaseboardInformation"]["Product"]
    assert parts.system.bios_date == key["BIOSInformation"]["ReleaseDate"]
    assert [(socket.designation, socket.populated, socket.model) for socket in parts.cpu_sockets or ()] == [
        (cpu["SocketDesignation"], bool(cpu["Status"] & 0x40), cpu["ProcessorVersion"] or None)
        for cpu in key["ProcessorInformation"]
    ]
    assert [slot.designation for slot in parts.slots or ()] == [slot["SlotDesignation"] for slot in key["SystemSlots"]]


def test_r730(shared_machines: Path) -> None:
    text = (shared_machines / "dmi" / "PowerEdge_R730__1B371D2A39C6.dmidecode.txt").read_text()
    parts = smbios.parse_text(text)
    assert parts.system is not None
    assert parts.system.product == "PowerEdge R730"
    assert [socket.populated for socket in parts.cpu_sockets or ()] == [True, True]
    assert len(parts.slots or ()) == 6
    assert [(unit.watts, unit.present, unit.plugged) for unit in parts.psus or ()] == [(1100, True, True)] * 2
    assert parts.memory_bytes == 512 << 30
    assert parts.gaps == ()


def test_no_real_dump_crashes_or_gives_an_invented_value(shared_machines: Path) -> None:
    dumps = [path for name in ("dmi", "dmi-psu") for path in sorted((shared_machines / name).glob("*.txt"))]
    assert dumps
    for path in dumps:
        text = path.read_text(errors="replace")
        assert smbios.looks_like_dmidecode(text), path
        parts = smbios.parse_text(text)
        found = (parts.cpu_sockets, parts.slots, parts.psus, parts.onboard)
        for kind, facts in zip((4, 9, 39, 41), found, strict=True):
            assert len(facts or ()) == len(re.findall(rf"DMI type {kind},", text)), path
        # a unit's watts stand in its own record, as a rating or in its name
        units = [block for block in re.split(r"(?=^Handle )", text, flags=re.MULTILINE) if "DMI type 39," in block]
        for block, unit in zip(units, parts.psus or (), strict=True):
            assert unit.watts is None or re.search(rf"\b{unit.watts} ?W", block), path
            assert unit.present is ("Status: Present" in block), path
        for block, slot in zip(
            re.findall(r"DMI type 9,.*?(?=\n\n|\Z)", text, re.DOTALL), parts.slots or (), strict=True
        ):
            assert slot.in_use is {"In Use": True, "Available": False}.get(re.findall(r"Usage: (.*)", block)[0]), path
            assert slot.address is None or f"Bus Address: {slot.address}" in block, path
            for number, pattern in (
                (slot.lanes, r"Type: x{}\b"),
                (slot.connector, r" x{}$"),
                (slot.gen, r"Express {}\b"),
            ):
                assert number is None or re.search(pattern.format(number), block, re.MULTILINE), (path, block)
        named = (*(parts.cpu_sockets or ()), *(parts.slots or ()))
        assert all(fact.designation and "O.E.M." not in fact.designation for fact in named), path
