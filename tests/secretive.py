"""A machine that is full of what names it: serial numbers, addresses, people. All of it is invented."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any

from machines import build
from machines.golden import MACHINES
from support import SMBIOS_END, smbios_cpu, smbios_slot, smbios_structure

from gpucheck.readers import smbios

Document = dict[str, Any]

UUID = bytes.fromhex("44454c4c4b0010348058b7c04f4d3532")
UUID_TEXT = "4c4c4544-004b-3410-8058-b7c04f4d3532"
CARD_UUID = "5e1f0c2a-77aa-4b1d-9c3e-2f60b1a4d7c8"
DISK_UUID = "9b8c7d6e-1f2a-4b3c-8d4e-5f6071829304"
TAG, BOARD_SERIAL, DIMM_SERIAL, PSU_SERIAL = "4K4XM52", "CN7475143S00AB", "8F31C0D2", "CN1797265P01QZ"
ASSET = "RACK7-UNIT12"

SECRETS = (
    TAG, BOARD_SERIAL, DIMM_SERIAL, PSU_SERIAL, ASSET, UUID_TEXT, CARD_UUID, DISK_UUID, "OEMSECRET77", "0324519087654",
    "d0:94:66:1a:2b:3c", "d0-94-66-1a-2b-3c", "192.168.17.42", "2001:db8:17:42::beef", "fe80::d294:66ff:fe1a:2b3c",
    "gpubox17", "alice", "S3Z8NB0K", "5000c500a1b2c3d4", "hunter22", "ab12cd34ab12cd34ab12cd34ab12cd34", "1A2B-3C4D",
)  # fmt: skip

VERSIONS = (
    "550.163.01", "12.4", "12.550.163.01", "86.02.23.00.01", "94.02.42.00.b4", "5.15.167.4-microsoft-standard-WSL2",
    "0000:04:00.0", "00000000:4F:00.0", "PCI:0000:82:00", "10de:1b38", "10000:00:04.0", "firmware version 16.28.2.1",
    "PCI: 10de:0a76:1043:8446 rev 162", "[mem 0x383800000000-0x383fffffffff 64bit pref]", "12:34:56", "FW 214.0.253.1",
    "Serial: 8250/16550 driver, 32 ports", "pci 0000:04:00.0: [10de:1b38] type 00", "megaraid 07.714.04.00",
    "127.0.0.1", "255.255.255.0", "ff:ff:ff:ff:ff:ff", "SerialNumber=3", "ACPI: Core revision 20230628", "::1",
    "Serial Number: To Be Filled By O.E.M.", "serial 0000:00:16.3: enabling device", "usb 1-1: new device 1:2:3",
)  # fmt: skip
"""What looks a little like a secret and is none."""

LOG = (
    f"Command line: root=UUID={DISK_UUID} ro password=hunter22",
    f"DMI: Dell Inc. PowerEdge R730/0WCJNT, serial {TAG}",
    "igb 0000:01:00.0: eth0: (PCIe:5.0Gb/s:Width x4) d0:94:66:1a:2b:3c",
    "[UFW BLOCK] MAC=d0:94:66:1a:2b:3c:00:1b:21:00:11:22:08:00 SRC=192.168.17.42 DST=2001:db8:17:42::beef",
    "IPv6: ADDRCONF fe80::d294:66ff:fe1a:2b3c/64",
    "usb 1-1: SerialNumber: S3Z8NB0K",
    "sd 0:0:0:0: sas_addr(0x5000c500a1b2c3d4)",
    f"NVRM: GPU at PCI:0000:04:00: GPU-{CARD_UUID}",
    "NVRM: GPU Board Serial Number: 0324519087654",
    "systemd[1]: Hostname set to <gpubox17>.",
    "audit: exe=/home/alice/train.py on gpubox17",
    "oom: task_memcg=/docker/ab12cd34ab12cd34ab12cd34ab12cd34",
    *VERSIONS,
)

FRU = f"""\
FRU Device Description : PS1 (ID 7)
 Board Mfg             : DELL
 Board Product         : PWR SPLY,1100W,RDNT,LTON
 Board Serial          : {PSU_SERIAL}
 Board Part Number     : 0Y26KXA02
 Product Asset Tag     : {ASSET}

FRU Device Description : PS2 (ID 8)
 Board Product         : PWR SPLY,1100W,RDNT,LTON
 Board Serial          : CN1797265P01QY
"""


def table() -> bytes:
    """An SMBIOS table with strings of every kind."""
    maker, model, watts = "Dell Inc.", "PowerEdge R730", "PWR SPLY,1100W,RDNT,LTON"
    memory = bytearray(0x22 - 4)
    struct.pack_into("<HHHHH", memory, 0, 0x1000, 0xFFFE, 64, 64, 0x4000)
    memory[0x0C], memory[0x13:0x17] = 1, bytes((2, 3, 4, 5))
    power = struct.pack("<BBBBBBBBHHHHH", 1, 1, 2, 3, 4, 5, 6, 0, 1100, build.PRESENT | build.OK, *[0xFFFF] * 3)
    return b"".join(
        (
            smbios_structure(0, 0, bytes((1, 2, 0, 0, 3)) + bytes(13), maker, "2.19.0", "12/12/2023"),
            smbios_structure(1, 1, bytes((1, 2, 0, 3)) + UUID + bytes((6, 4, 0)), maker, model, TAG, "SKU=100%d\\n%"),
            smbios_structure(2, 2, bytes((1, 2, 3, 4, 5, 9, 0, 0, 3, 10)), maker, "0WCJNT", "A06", BOARD_SERIAL, ASSET),
            smbios_structure(3, 3, bytes((1, 23, 0, 2, 3)) + bytes(9), maker, TAG, "To Be Filled By O.E.M."),
            smbios_cpu(0x400, "CPU1", 0x41, "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz"),
            smbios_slot(0x900, "PCIe Slot 6", 0xB6, 0x0D, 4, 0, 4, 0),
            smbios_structure(11, 0xB00, bytes((2,)), "Dell System", "OEMSECRET77"),
            smbios_structure(17, 0x1100, bytes(memory), "A1", "Samsung", DIMM_SERIAL, "00141263", "M393A4K40BB1-CRC"),
            smbios_structure(39, 0x2700, power, "PSU.Slot.1", watts, "DELL", PSU_SERIAL, ASSET, "0Y26KX"),
            smbios_structure(221, 0xDD00, b"\x04OEMSECRET77", "d0:94:66:1a:2b:3c"),
            SMBIOS_END,
        )
    )  # fmt: skip


def bare_table(dump: bytes) -> bytes:
    """The table in what ``dmidecode --dump-bin`` writes."""
    entry = smbios._entry_point(dump)
    if entry is None:
        return dump
    return dump[entry.table if entry.length <= entry.table < len(dump) else entry.length :]


def document() -> Document:
    """A capture that is not redacted, of a Dell R730 with two P40s."""
    made = MACHINES["r730-two-p40"]().capture()
    files = made["files"]
    files["/sys/firmware/dmi/tables/DMI"] = build.packed(table())
    files["/proc/cmdline"] = (
        f"BOOT_IMAGE=/vmlinuz root=UUID={DISK_UUID} rd.efi=UUID=1A2B-3C4D "
        "ip=192.168.17.42::192.168.17.1:255.255.255.0:gpubox17:eth0:off BOOTIF=01-d0-94-66-1a-2b-3c password=hunter22 "
        "resume=/dev/disk/by-id/ata-INTEL_SSD_S3Z8NB0K-part2\n"
    )
    files["/proc/version"] = "Linux version 6.8.0-48-generic (alice@gpubox17) (gcc 13.2.0) #48-Ubuntu SMP\n"
    lines = ("Linux version 6.8.0-48-generic (alice@gpubox17) (gcc 13.2.0)", *LOG)
    files["/dev/kmsg"] = "".join(f"6,{n},{n * 1000},-;{line}\n" for n, line in enumerate(lines, 1))
    files["/proc/1/cgroup"] = "0::/system.slice/docker-ab12cd34ab12cd34ab12cd34ab12cd34.scope\n"
    for call in made["nvml"]["calls"]:
        if call["call"] == "nvmlDeviceGetUUID" and call["device"] == 0:
            call["value"] = f"GPU-{CARD_UUID}"
    made["nvml"]["calls"] += [
        {"call": "nvmlDeviceGetSerial", "device": 0, "code": 0, "value": "0324519087654"},
        {"call": "nvmlDeviceGetFanSpeed", "device": 0, "code": None, "error": "OSError: /home/alice/x.so"},
    ]
    journal = "".join(f"[    0.{n:06}] gpubox17 kernel: {line}\n" for n, line in enumerate(LOG))
    made["commands"] = {
        "ipmitool fru": {"returncode": 0, "stdout": FRU, "stderr": ""},
        "journalctl -k -b -o short-monotonic --no-pager": {"returncode": 0, "stdout": journal, "stderr": ""},
    }
    return made


def text_of(value: Any) -> Iterator[str]:
    """Every string in a document, with base64 undone."""
    match value:
        case {"base64": str(data), **rest} if not rest:
            yield base64.b64decode(data).decode("latin-1")
        case dict():
            for key, item in value.items():
                yield key
                yield from text_of(item)
        case list():
            for item in value:
                yield from text_of(item)
        case str():
            yield value
