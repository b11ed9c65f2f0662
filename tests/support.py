"""Small machines for tests: a dict becomes a folder that a :class:`LiveHost` reads."""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path

from gpucheck.host import LiveHost

Content = str | bytes | Path | None
"""Text or bytes of a file; a Path is the target of a symbolic link; None makes an empty folder."""


def tree(root: Path, content: Mapping[str, Content]) -> LiveHost:
    """Write files below ``root`` and return the machine that they stand for."""
    for path, value in content.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        match value:
            case None:
                place.mkdir(exist_ok=True)
            case Path():
                place.symlink_to(value)
            case str():
                place.write_text(value)
            case bytes():
                place.write_bytes(value)
    return LiveHost(root)


def pci_device(
    path: str,
    ids: str,
    class_id: int,
    *,
    driver: str | None = None,
    attributes: Mapping[str, Content] | None = None,
) -> dict[str, Content]:
    """One PCI function as sysfs shows it.

    Args:
        path: Place in the tree, such as ``pci0000:00/0000:00:02.0/0000:04:00.0``.
        ids: Vendor and device, ``10de:1b38``.
        class_id: 24 bits, such as 0x030200.
        driver: Name of the bound driver.
        attributes: Further files of the function's folder.
    """
    folder = f"/sys/devices/{path}"
    address = path.rpartition("/")[2]
    lines = [f"PCI_CLASS={class_id:X}", f"PCI_ID={ids.upper()}", "PCI_SUBSYS_ID=10DE:11D9"]
    files: dict[str, Content] = {
        f"/sys/bus/pci/devices/{address}": Path("/sys/devices") / path,
        f"{folder}/uevent": "\n".join([f"DRIVER={driver}", *lines] if driver else lines) + "\n",
    }
    files |= {f"{folder}/{name}": value for name, value in (attributes or {}).items()}
    return files


def unpacked(archive: Path, place: Path) -> LiveHost:
    """Unpack what can be unpacked safely; the folder that holds ``sys`` is the machine."""

    def safe(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        try:
            return tarfile.data_filter(member, path)
        except tarfile.FilterError:
            return None

    with tarfile.open(archive) as tar:
        tar.extractall(place, filter=safe)
    return LiveHost(next(iter(place.glob("**/sys"))).parent)


def smbios_structure(kind: int, handle: int, fields: bytes, *strings: str) -> bytes:
    """One SMBIOS structure.

    Args:
        kind: Type number.
        handle: Its handle.
        fields: The formatted area after the four bytes of the head.
        strings: String 1 and so on.
    """
    head = struct.pack("<BBH", kind, 4 + len(fields), handle)
    return head + fields + (b"".join(text.encode() + b"\0" for text in strings) or b"\0") + b"\0"


def smbios_slot(
    handle: int, name: str, kind: int, width: int, usage: int, segment: int = 0, bus: int = 0xFF, devfn: int = 0xFF
) -> bytes:
    """A type 9 structure in the form of SMBIOS 2.6: codes of type, data width and current usage."""
    fields = struct.pack("<BBBBBHBBHBB", 1, kind, width, usage, 4, handle & 0xFF, 0x0C, 1, segment, bus, devfn)
    return smbios_structure(9, handle, fields, name)


def smbios_cpu(handle: int, name: str, status: int, model: str) -> bytes:
    """A type 4 structure: socket name, Status byte, CPU model."""
    fields = bytearray(0x2A - 4)
    fields[0x00], fields[0x01], fields[0x0C], fields[0x14] = 1, 3, 2, status
    return smbios_structure(4, handle, bytes(fields), name, model)


def smbios_psu(
    handle: int, location: str, name: str, watts: int, bits: int, maker: str = "DELL", part: str = "0ABC"
) -> bytes:
    """A type 39 structure; bit 1 of ``bits`` is present, bit 2 unplugged, 7 to 9 the status."""
    fields = struct.pack("<BBBBBBBBHHHHH", 1, 1, 2, 3, 0, 0, 4, 0, watts, bits, 0xFFFF, 0xFFFF, 0xFFFF)
    return smbios_structure(39, handle, fields, location, name, maker, part)


def smbios_memory(handle: int, name: str, size: int, extended: int = 0, array: int = 0x1000) -> bytes:
    """A type 17 structure: the size word and, in megabytes, the extended size."""
    fields = bytearray(0x22 - 4)
    struct.pack_into("<HHHHH", fields, 0, array, 0xFFFE, 64, 64, size)
    fields[0x0C] = 1
    struct.pack_into("<I", fields, 0x18, extended)
    return smbios_structure(17, handle, bytes(fields), name)


SMBIOS_END = smbios_structure(127, 0xFEFF, b"")


def smbios_dump(table: bytes, version: tuple[int, int] = (3, 3)) -> bytes:
    """The file that ``dmidecode --dump-bin`` writes of a table: entry point, then the table at 32."""
    entry = bytearray(struct.pack("<5sBBBBBBBIQ", b"_SM3_", 0, 24, *version, 0, 1, 0, len(table), 32))
    entry[5] = -sum(entry) & 0xFF
    return bytes(entry).ljust(32, b"\0") + table
