"""SMBIOS: identity, CPU sockets, slots, memory, power supplies and onboard devices.

Three forms of the same data come in: the structure table itself, the text that dmidecode makes of
it, and the few strings that the kernel shows to everybody. Each is turned into :class:`Record`, whose
fields carry dmidecode's names and words, and one interpretation makes facts of them. What firmware
is known to get wrong is therefore handled in one place.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gpucheck.facts import (
    CpuSocket,
    Gap,
    GapReason,
    MemoryDevice,
    OnboardDevice,
    Parts,
    Psu,
    Slot,
    System,
    pci_address,
)
from gpucheck.host import Host
from gpucheck.readers.gaps import in_container
from gpucheck.text import clean, say

TABLE = "/sys/firmware/dmi/tables/DMI"
ENTRY_POINT = "/sys/firmware/dmi/tables/smbios_entry_point"
STRINGS = "/sys/class/dmi/id"

_FACTS = {"cpu_sockets": 4, "slots": 9, "memory_devices": 17, "psus": 39, "onboard": 41}
"""Fact to the record type that brings it."""

_WITH_DMIDECODE = "sudo /usr/sbin/dmidecode > dmi.txt, then gpucheck probe --from dmi.txt"


class Record(NamedTuple):
    """One SMBIOS structure, its fields named and worded as dmidecode prints them."""

    kind: int
    handle: str
    fields: dict[str, str]


# --- reading ----------------------------------------------------------------------------------


def read(host: Host) -> Parts:
    """Read the table of a machine; where that is not allowed, the strings open to everybody.

    Never raises: what cannot be read is a gap.
    """
    try:
        return parse_table(host.read(TABLE), _entry_point_version(host)).model_copy(update={"origin": host.name})
    except PermissionError as problem:
        if host.is_root:
            reason, how = "unreadable", say("{path} is closed even to root: {problem}", path=TABLE, problem=problem)
        else:
            reason, how = "needs-root", say(_WITH_DMIDECODE)
    except (FileNotFoundError, NotADirectoryError):
        reason = "in-container" if in_container(host) else "file-absent"
        how = say(
            "{path} is not there: the firmware has no SMBIOS, or a container hides it; read it on the host.",
            path=TABLE,
        )
    except (OSError, ValueError) as problem:
        reason, how = "unreadable", say("{path} cannot be read: {problem}", path=TABLE, problem=problem)
    system = _system(_by_kind(_open_strings(host)))
    facts = [*_FACTS, *([] if system else ["system"])]
    return Parts(origin=host.name, system=system, gaps=tuple(Gap(fact=fact, reason=reason, how=how) for fact in facts))


def _entry_point_version(host: Host) -> tuple[int, int] | None:
    try:
        entry = _entry_point(host.read(ENTRY_POINT))
    except OSError:
        return None
    return entry.version if entry else None


_OPEN_STRINGS = {
    "bios_vendor": (0, "Vendor"),
    "bios_version": (0, "Version"),
    "bios_date": (0, "Release Date"),
    "sys_vendor": (1, "Manufacturer"),
    "product_name": (1, "Product Name"),
    "product_version": (1, "Version"),
    "product_sku": (1, "SKU Number"),
    "board_vendor": (2, "Manufacturer"),
    "board_name": (2, "Product Name"),
    "chassis_type": (3, "Type"),
}


def _open_strings(host: Host) -> list[Record]:
    """Records of types 0 to 3 from the files of the kernel that need no privilege."""
    records = [Record(kind, "", {}) for kind in range(4)]
    for name, (kind, field) in _OPEN_STRINGS.items():
        try:
            value = host.text(f"{STRINGS}/{name}").strip()
        except OSError:
            continue
        if name == "chassis_type":
            value = _named(_CHASSIS, int(value)) if value.isdecimal() else ""
        records[kind].fields[field] = value
    return records


# --- the table --------------------------------------------------------------------------------


class _Structure(NamedTuple):
    """One structure of the table: its formatted area and its strings."""

    kind: int
    handle: int
    area: bytes
    strings: list[bytes]
    version: tuple[int, int] | None


class _EntryPoint(NamedTuple):
    length: int
    table: int
    version: tuple[int, int]


def _entry_point(data: bytes) -> _EntryPoint | None:
    """The entry point at the start of the data; None where there is none."""
    try:
        if data.startswith(b"_SM3_"):
            length, major, minor = data[6:9]
            return _EntryPoint(length, struct.unpack_from("<Q", data, 0x10)[0], (major, minor))
        if data.startswith(b"_SM_"):
            length, major, minor = data[5:8]
            return _EntryPoint(length, struct.unpack_from("<I", data, 0x18)[0], (major, minor))
        if data.startswith(b"_DMI_"):
            return _EntryPoint(15, struct.unpack_from("<I", data, 8)[0], (data[14] >> 4, data[14] & 15))
    except (struct.error, ValueError, IndexError):
        pass
    return None


def parse_table(data: bytes, version: tuple[int, int] | None = None) -> Parts:
    """Make facts of a structure table, bare or behind an entry point as ``dmidecode --dump-bin`` writes it.

    Args:
        data: The bytes.
        version: SMBIOS version where it is known from elsewhere; an entry point in the data wins.

    Returns:
        What was readable; what was not is a gap.

    Raises:
        ValueError: The bytes hold no SMBIOS structure.
    """
    entry = _entry_point(data)
    if entry:
        # An entry point copied from memory gives a physical address: then the table follows directly.
        data = data[entry.table if entry.length <= entry.table < len(data) else entry.length :]
        version = entry.version
    structures, problem = _walk(data, version)
    if not structures:
        raise ValueError("no SMBIOS structure in the data")
    return _facts(map(_record, structures), whole=True, problem=problem)


def looks_like_table(data: bytes) -> bool:
    """Whether the bytes are an SMBIOS table, bare or behind an entry point. False when in doubt."""
    if _entry_point(data):
        return True
    structures, _ = _walk(data, None)
    handles = {structure.handle for structure in structures}
    kinds = {structure.kind for structure in structures}
    return len(handles) == len(structures) >= 3 and {0, 1} <= kinds


def _walk(data: bytes, version: tuple[int, int] | None) -> tuple[list[_Structure], str | None]:
    """Split the table; stops at the end-of-table structure or where the data is broken."""
    structures: list[_Structure] = []
    start = 0
    while start + 4 <= len(data):
        kind, length, handle = struct.unpack_from("<BBH", data, start)
        if length < 4:
            return structures, say(
                "The table is broken: the structure at byte {start} is shorter than 4 bytes.", start=start
            )
        if start + length > len(data):
            return structures, say("The table is cut: the structure at byte {start} is not complete.", start=start)
        end = data.find(b"\0\0", start + length)
        cut = end < 0
        strings = data[start + length : len(data) if cut else end].rstrip(b"\0")
        area = data[start : start + length]
        structures.append(_Structure(kind, handle, area, strings.split(b"\0") if strings else [], version))
        if kind == 127:
            return structures, None
        if cut:
            return structures, say("The table is cut: the strings of the last structure have no end.")
        start = end + 2
    return structures, None if structures and start == len(data) else say("The table ends within a structure.")


def _record(structure: _Structure) -> Record:
    fields: dict[str, str] = {}
    for name, offset, words in _LAYOUT.get(structure.kind, ()):
        try:
            fields[name] = words(structure, offset)
        except (IndexError, struct.error):
            continue  # an older, shorter form of the structure, or a string that is not there
    return Record(structure.kind, f"0x{structure.handle:04X}", fields)


OUT_OF_SPEC = "<OUT OF SPEC>"


def _named(names: tuple[str, ...], code: int, first: int = 1) -> str:
    """Name of an enumerated value; most of the standard's lists start at 1."""
    return names[code - first] if first <= code < first + len(names) else OUT_OF_SPEC


def _word(structure: _Structure, offset: int) -> int:
    value: int = struct.unpack_from("<H", structure.area, offset)[0]
    return value


def _string(structure: _Structure, offset: int) -> str:
    number = structure.area[offset]
    return structure.strings[number - 1].decode("utf-8", "replace") if number else "Not Specified"


def _handle(structure: _Structure, offset: int) -> str:
    return f"0x{_word(structure, offset):04X}"


def _enumerated(*names: str, mask: int = 0xFF) -> Callable[[_Structure, int], str]:
    return lambda structure, offset: _named(names, structure.area[offset] & mask)


def _uuid(structure: _Structure, offset: int) -> str:
    raw = structure.area[offset : offset + 16]
    if len(raw) < 16:
        raise IndexError(offset)
    # From 2.6 on the first three groups are little-endian; before, makers did as they liked.
    little = structure.version is None or structure.version >= (2, 6)
    first, second, third = struct.unpack("<IHH" if little else ">IHH", raw[:8])
    return f"{first:08x}-{second:04x}-{third:04x}-{raw[8:10].hex()}-{raw[10:].hex()}"


_CPU_STATUS = (
    "Unknown",
    "Enabled",
    "Disabled By User",
    "Disabled By BIOS",
    "Idle",
    OUT_OF_SPEC,
    OUT_OF_SPEC,
    "Other",
)


def _cpu_status(structure: _Structure, offset: int) -> str:
    status = structure.area[offset]
    return f"Populated, {_CPU_STATUS[status & 7]}" if status & 0x40 else "Unpopulated"


_LANES = {0x08: "x1", 0x09: "x2", 0x0A: "x4", 0x0B: "x8", 0x0C: "x12", 0x0D: "x16", 0x0E: "x32"}

_SLOT_TYPES = {
    first + step: f"PCI Express{generation}{connector}"
    for first, generation in ((0xA5, ""), (0xAB, " 2"), (0xB1, " 3"), (0xB8, " 4"), (0xBE, " 5"))
    for step, connector in enumerate(("", " x1", " x2", " x4", " x8", " x16"))
} | {
    0x1F: "PCI Express 2 SFF-8639 (U.2)",
    0x20: "PCI Express 3 SFF-8639 (U.2)",
    0x24: "PCI Express 4 SFF-8639 (U.2)",
    0x25: "PCI Express 5 SFF-8639 (U.2)",
    0xC4: "PCI Express 6+",
}
"""Only what tells a generation or a connector; the code B7 is not in use."""

_NOT_PCI_EXPRESS = {
    *range(0x01, 0x1F),
    *range(0x21, 0x24),
    *range(0x26, 0x29),
    0x30,
    *range(0xA0, 0xA5),
    0xC5,
    0xC6,
}


def _slot_type(structure: _Structure, offset: int) -> str:
    code = structure.area[offset]
    kind = _SLOT_TYPES.get(code, "Other" if code in _NOT_PCI_EXPRESS else OUT_OF_SPEC)
    return f"{_LANES.get(structure.area[offset + 1], '')} {kind}".strip()


def _slot_tail(structure: _Structure, offset: int) -> int:
    """Value of the fields that SMBIOS 3.4 put behind the list of peers."""
    return structure.area[0x13 + 5 * structure.area[0x12] + offset]


def _slot_generation(structure: _Structure, offset: int) -> str:
    return str(_slot_tail(structure, offset))


def _slot_physical_width(structure: _Structure, offset: int) -> str:
    return _LANES.get(_slot_tail(structure, offset), "Unknown")


def _address(structure: _Structure, offset: int) -> str:
    segment, bus, devfn = struct.unpack_from("<HBB", structure.area, offset)
    return f"{segment:04x}:{bus:02x}:{devfn >> 3:02x}.{devfn & 7}"


def _memory_size(structure: _Structure, offset: int) -> str:
    size = _word(structure, offset)
    if size == 0:
        return "No Module Installed"
    if size == 0xFFFF:
        return "Unknown"
    if size == 0x7FFF:
        return f"{struct.unpack_from('<I', structure.area, 0x1C)[0] & 0x7FFFFFFF} MB"
    return f"{size & 0x7FFF} {'kB' if size & 0x8000 else 'MB'}"


def _psu_watts(structure: _Structure, offset: int) -> str:
    watts = _word(structure, offset)
    return "Unknown" if watts == 0x8000 else f"{watts} W"


_PSU_STATUS = ("Other", "Unknown", "OK", "Non-critical", "Critical")


def _psu_status(structure: _Structure, offset: int) -> str:
    bits = _word(structure, offset)
    return f"Present, {_named(_PSU_STATUS, bits >> 7 & 7)}" if bits & 2 else "Not Present"


def _psu_plugged(structure: _Structure, offset: int) -> str:
    return "No" if _word(structure, offset) & 4 else "Yes"


_CHASSIS = (
    "Other", "Unknown", "Desktop", "Low Profile Desktop", "Pizza Box", "Mini Tower", "Tower", "Portable",
    "Laptop", "Notebook", "Hand Held", "Docking Station", "All In One", "Sub Notebook", "Space-saving",
    "Lunch Box", "Main Server Chassis", "Expansion Chassis", "Sub Chassis", "Bus Expansion Chassis",
    "Peripheral Chassis", "RAID Chassis", "Rack Mount Chassis", "Sealed-case PC", "Multi-system",
    "CompactPCI", "AdvancedTCA", "Blade", "Blade Enclosing", "Tablet", "Convertible", "Detachable",
    "IoT Gateway", "Embedded PC", "Mini PC", "Stick PC",
)  # fmt: skip

_BOARD = (
    "Unknown", "Other", "Server Blade", "Connectivity Switch", "System Management Module",
    "Processor Module", "I/O Module", "Memory Module", "Daughter Board", "Motherboard",
    "Processor+Memory Module", "Processor+I/O Module", "Interconnect Board",
)  # fmt: skip

_ONBOARD = (
    "Other", "Unknown", "Video", "SCSI Controller", "Ethernet", "Token Ring", "Sound", "PATA Controller",
    "SATA Controller", "SAS Controller", "Wireless LAN", "Bluetooth", "WWAN", "eMMC", "NVMe Controller",
    "UFS Controller",
)  # fmt: skip

_MEMORY_USE = (
    "Other",
    "Unknown",
    "System Memory",
    "Video Memory",
    "Flash Memory",
    "Non-volatile RAM",
    "Cache Memory",
)

_LAYOUT: dict[int, tuple[tuple[str, int, Callable[[_Structure, int], str]], ...]] = {
    0: (("Vendor", 0x04, _string), ("Version", 0x05, _string), ("Release Date", 0x08, _string)),
    1: (
        ("Manufacturer", 0x04, _string),
        ("Product Name", 0x05, _string),
        ("Version", 0x06, _string),
        ("UUID", 0x08, _uuid),
        ("SKU Number", 0x19, _string),
    ),
    2: (
        ("Manufacturer", 0x04, _string),
        ("Product Name", 0x05, _string),
        ("Type", 0x0D, _enumerated(*_BOARD)),
    ),
    3: (("Type", 0x05, _enumerated(*_CHASSIS, mask=0x7F)),),
    4: (("Socket Designation", 0x04, _string), ("Version", 0x10, _string), ("Status", 0x18, _cpu_status)),
    9: (
        ("Designation", 0x04, _string),
        ("Type", 0x05, _slot_type),
        ("Current Usage", 0x07, _enumerated("Other", "Unknown", "Available", "In Use", "Unavailable")),
        ("Length", 0x08, _enumerated("Other", "Unknown", "Short", "Long")),
        ("Bus Address", 0x0D, _address),
        ("PCI Express Generation", 0x00, _slot_generation),
        ("Slot Physical Width", 0x01, _slot_physical_width),
    ),
    16: (("Use", 0x05, _enumerated(*_MEMORY_USE)),),
    17: (("Array Handle", 0x04, _handle), ("Size", 0x0C, _memory_size), ("Locator", 0x10, _string)),
    39: (
        ("Location", 0x05, _string),
        ("Name", 0x06, _string),
        ("Manufacturer", 0x07, _string),
        ("Model Part Number", 0x0A, _string),
        ("Max Power Capacity", 0x0C, _psu_watts),
        ("Status", 0x0E, _psu_status),
        ("Plugged", 0x0E, _psu_plugged),
    ),
    41: (
        ("Reference Designation", 0x04, _string),
        ("Type", 0x05, _enumerated(*_ONBOARD, mask=0x7F)),
        (
            "Status",
            0x05,
            lambda structure, offset: "Enabled" if structure.area[offset] & 0x80 else "Disabled",
        ),
        ("Bus Address", 0x07, _address),
    ),
}
"""Per record type: field name, offset in the formatted area, how to word it."""


# --- dmidecode's text -------------------------------------------------------------------------

_HANDLE = re.compile(r"\s*Handle (0x[0-9A-Fa-f]+)")
_TYPE = re.compile(r"\bDMI type (\d+)")
_TITLES = {
    "BIOS Information": 0,
    "System Information": 1,
    "Base Board Information": 2,
    "Chassis Information": 3,
    "Processor Information": 4,
    "System Slot Information": 9,
    "Physical Memory Array": 16,
    "Memory Device": 17,
    "System Power Supply": 39,
    "Onboard Device": 41,
}
"""Titles of the records we read: all that ``dmidecode -q`` leaves of a record's head."""

_BROKEN = re.compile(r"<TRUNCATED>|DMI table is broken|Wrong DMI structures")
_LOOKS = re.compile(
    r"^\s*#? ?dmidecode \d|^\s*Handle 0x[0-9A-Fa-f]{4},?\s+DMI type \d+|^(?:"
    + "|".join(map(re.escape, _TITLES))
    + r")\n[ \t]+\w[\w ]*: ",
    re.MULTILINE,
)


def parse_text(text: str) -> Parts:
    """Make facts of what dmidecode printed: whole, partial (``-t 9``) or quiet (``-q``), any version.

    Raises:
        ValueError: No record is in the text, and no word of dmidecode says why.
    """
    records = list(_text_records(text))
    if not records:
        if "Permission denied" in text:
            return _nothing("needs-root", say(_WITH_DMIDECODE))
        if "No SMBIOS nor DMI entry point" in text:
            return _nothing("not-supported", say("dmidecode found no SMBIOS on that machine."))
        raise ValueError("no dmidecode record in the text")
    if sum(record.kind == 1 for record in records) > 1:
        raise ValueError("more than one dump is in it: give one machine at a time")
    broken = _BROKEN.search(text)
    problem = say("dmidecode said: {words}.", words=broken.group()) if broken else None
    whole = any(record.kind == 127 for record in records)
    # Only a listing of everything begins with the number of structures, and such a one ends with type 127.
    cut = not whole and "structures occupying" in text
    if cut and problem is None:
        problem = say("The text ends before the table does: make the dump again and copy all of it.")
    return _facts(records, whole=whole, problem=problem, cut=cut)


_STRINGS = {
    "bios-vendor": "bios_vendor",
    "bios-version": "bios_version",
    "bios-release-date": "bios_date",
    "system-manufacturer": "vendor",
    "system-product-name": "product",
    "system-version": "version",
    "system-sku-number": "sku",
    "baseboard-manufacturer": "board_vendor",
    "baseboard-product-name": "board",
}
"""Keyword of ``dmidecode -s`` to the fact that it prints. Serial numbers and UUIDs are left out."""


def parse_strings(text: str) -> System | None:
    """Identity from ``dmidecode -s``, one line of keyword, colon and value each; None where none is known."""
    pairs = (line.partition(": ") for line in text.splitlines())
    told = {_STRINGS[keyword]: known(value) for keyword, _, value in pairs if keyword in _STRINGS}
    return System(**told) if any(told.values()) else None


def looks_like_dmidecode(text: str) -> bool:
    """Whether the text begins as output of dmidecode does. False when in doubt."""
    return _LOOKS.search(text[:4000]) is not None


def _text_records(text: str) -> Iterator[Record]:
    handle, kind = "", -1
    fields: dict[str, str] | None = None
    for line in text.splitlines():
        words = line.strip()
        if found := _HANDLE.match(line):
            handle, kind, fields = found[1], -1, None
        if (handle or found) and (typed := _TYPE.search(line)) and fields is None:
            kind, fields = int(typed[1]), {}
            yield Record(kind, handle, fields)
        elif found:
            continue  # the oldest versions write the type on the next line
        elif not words:
            if not handle:
                fields = None
        elif words in _TITLES and not handle:
            fields = {}
            yield Record(_TITLES[words], "", fields)
        elif fields is not None:
            name, colon, value = words.partition(":")
            if colon:
                # The first of a name counts: lists inside a record may repeat it.
                fields.setdefault(name.rstrip(), value.strip())


# --- from records to facts --------------------------------------------------------------------

_PLACEHOLDER = re.compile(
    r"[\W_]*|x+|0+|0?123456789\w*"
    r"|to be filled by o\.?e\.?m\.?|o\.?e\.?m\.?|oem define ?\d*|default string"
    r"|not (?:specified|available|applicable|provided|installed|present)"
    r"|none|null|n/?a|unknown|undefined|other|empty|invalid|<(?:bad index|out of spec)>"
    r"|(?:system|chassis|base ?board|product)[ _](?:product[ _])?"
    r"(?:manufacturer|name|version|sku(?: number)?|serial number)"
    r"|sku|type\d ?- ?.*|type\d(?:family|sku\d*|product\w*)",
    re.IGNORECASE,
)


def known(text: str | None) -> str | None:
    """The text cleaned, or None where firmware left a placeholder: ``To Be Filled By O.E.M.``"""
    cleaned = clean(text or "")
    return None if _PLACEHOLDER.fullmatch(cleaned) else cleaned


_WATTS_IN_NAME = re.compile(r"(?:^|[,\s])(\d{3,4}) ?WP?(?=$|[,\s])")


def watts_in_name(name: str | None) -> int | None:
    """Rating that a name spells out as its own word: ``PWR SPLY,1100W,RDNT,LTON`` gives 1100.

    Digits inside a model name are no rating: ``PWS-1K66P-1R`` gives None.
    """
    found = _WATTS_IN_NAME.search(name or "")
    return int(found[1]) if found else None


def _by_kind(records: Iterable[Record]) -> dict[int, list[Record]]:
    grouped: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        grouped[record.kind].append(record)
    return grouped


def _nothing(reason: GapReason, how: str) -> Parts:
    return Parts(gaps=tuple(Gap(fact=fact, reason=reason, how=how) for fact in ("system", *_FACTS)))


def _facts(records: Iterable[Record], *, whole: bool, problem: str | None, cut: bool = False) -> Parts:
    """Interpret records.

    A type without any record is None, not empty: firmware leaves out whole types (a third of Dell
    servers list no power supply), so that none listed does not mean none there.

    Args:
        records: In table order.
        whole: The input held all of the table, so that what is absent is not there.
        problem: What was wrong with the table; what is absent may stand behind it.
        cut: Records at the end are missing: a sum, or a list of power supplies, may be only a part of it.
    """
    of = _by_kind(records)
    gaps = [Gap(fact="smbios", reason="unreadable", how=problem)] if problem else []
    system = _system(of)
    absent = [fact for fact, kind in _FACTS.items() if not of[kind]]
    for fact in absent if system else ["system", *absent]:
        if problem:
            gaps.append(Gap(fact=fact, reason="unreadable", how=problem))
        elif whole:
            how = say("The firmware lists none; that does not mean that there is none.")
            gaps.append(Gap(fact=fact, reason="not-supported", how=how))
        else:
            gaps.append(Gap(fact=fact, reason="not-in-input", how=say(_WITH_DMIDECODE)))
    memory = list(_system_memory(of))
    sizes = [_bytes(record.fields.get("Size", "")) for record in memory]
    if None in sizes:
        how = say("The firmware does not know the size of every memory module.")
        gaps.append(Gap(fact="memory_bytes", reason="not-supported", how=how))
    psus = tuple(map(_psu, of[39]))
    if any(psu.present and psu.watts is None for psu in psus):
        how = say("The firmware does not know the rating of a power supply: read the label on the unit.")
        gaps.append(Gap(fact="psus.watts", reason="not-supported", how=how))
    slots = tuple(_slot(record, gaps) for record in of[9])
    devices = tuple(
        MemoryDevice(locator=_label(record, "Locator"), bytes=size)
        for record, size in zip(memory, sizes, strict=True)
        if size
    )
    if cut and problem:
        partly = [("memory_bytes", bool(memory)), ("psus", bool(psus))]
        gaps += [Gap(fact=fact, reason="unreadable", how=problem) for fact, there in partly if there]
    return Parts(
        system=system,
        cpu_sockets=tuple(map(_cpu_socket, of[4])) or None,
        slots=slots or None,
        psus=None if cut else psus or None,
        onboard=tuple(map(_onboard, of[41])) or None,
        memory_devices=devices if memory and not cut else None,
        memory_bytes=None if None in sizes or cut else sum(filter(None, sizes)) or None,
        gaps=tuple(gaps),
    )


def _label(record: Record, field: str) -> str:
    """Name on the board; where firmware gives none, the handle, so that the record stays tellable."""
    return known(record.fields.get(field)) or f"SMBIOS {record.handle or record.kind}"


def _system(of: dict[int, list[Record]]) -> System | None:
    """Identity; None where nothing but placeholders is there."""
    bios, product, first_board, chassis = (of[kind][0].fields if of[kind] else {} for kind in range(4))
    # Risers and daughter boards are type 2 records too.
    motherboards = [record.fields for record in of[2] if record.fields.get("Type") == "Motherboard"]
    board = motherboards[0] if motherboards else first_board
    system = {
        "vendor": known(product.get("Manufacturer")),
        "product": known(product.get("Product Name")),
        "version": known(product.get("Version")),
        "sku": known(product.get("SKU Number")),
        "board_vendor": known(board.get("Manufacturer")),
        "board": known(board.get("Product Name")),
        "chassis": known(chassis.get("Type")),
        "bios_vendor": known(bios.get("Vendor")),
        "bios_version": known(bios.get("Version")),
        "bios_date": known(bios.get("Release Date")),
        "uuid": _real_uuid(product.get("UUID", "")),
    }
    return System(**system) if any(system.values()) else None


_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_COPIED_UUID = "03000200-0400-0500-0006-000700080009"
"""What many boards come with; it tells no machine from another."""


def _real_uuid(text: str) -> str | None:
    uuid = text.strip().lower()
    unset = uuid == _COPIED_UUID or len(set(uuid) - {"-"}) < 2
    return uuid if _UUID.fullmatch(uuid) and not unset else None


_CPU_STATES = {
    "Enabled": "enabled",
    "Idle": "idle",
    "Disabled By BIOS": "disabled-by-bios",
    "Disabled By User": "disabled-by-user",
}


def _cpu_socket(record: Record) -> CpuSocket:
    """Of an empty socket only the status bit counts: its version, family and plug are left-overs."""
    presence, _, state = record.fields.get("Status", "").partition(", ")
    populated = {"Populated": True, "Unpopulated": False}.get(presence)
    return CpuSocket(
        designation=_label(record, "Socket Designation"),
        populated=populated,
        model=known(record.fields.get("Version")) if populated else None,
        status=_CPU_STATES.get(state, "unknown") if populated else None,
    )


_SLOT = re.compile(r"(?:x(?P<lanes>\d+) )?(?:PCI Express(?: (?P<gen>[2-9])\+?)?(?: x(?P<connector>\d+))?)?")


def _slot(record: Record, gaps: list[Gap]) -> Slot:
    """One slot. ``PCI Express`` without a number is no statement: PCIe 3.0 slots are called so too."""
    name = _label(record, "Designation")
    kind = record.fields.get("Type", "")
    found = _SLOT.match(kind)
    lanes, gen, connector = (found and found[key] and int(found[key]) for key in ("lanes", "gen", "connector"))
    connector = connector or _number(record.fields.get("Slot Physical Width", ""))
    gen = gen or _number(record.fields.get("PCI Express Generation", ""))
    if OUT_OF_SPEC in kind:
        how = say("The slot type is not one that the program which read it knows: read it with a newer one.")
        gaps.append(Gap(fact=f"slots.{name}.gen", reason="not-supported", how=how))
    if lanes and connector and lanes > connector:
        how = say("The firmware says {kind}: more lanes than the connector has.", kind=kind)
        gaps.append(Gap(fact=f"slots.{name}.lanes", reason="contradiction", how=how))
        lanes = connector = None
    return Slot(
        designation=name,
        in_use={"In Use": True, "Available": False}.get(record.fields.get("Current Usage", "")),
        lanes=lanes,
        connector=connector,
        gen=gen,
        length=known(record.fields.get("Length")),
        address=_assigned(record.fields.get("Bus Address", "")),
    )


def _number(text: str) -> int | None:
    """Of ``x16`` or ``4``; None for zero and for words."""
    digits = text.removeprefix("x")
    return (int(digits) or None) if digits.isdecimal() else None


def _assigned(text: str) -> str | None:
    """A PCI address; None for bus ff and for the host bridge, with which firmware says "none"."""
    address = pci_address(text)
    return None if address is None or address == "0000:00:00.0" or address[-7:-5] == "ff" else address


_BAY = re.compile(r"(?:power supply|psu|ps) ?#?\d+", re.IGNORECASE)
NO_RATING = {0, 75, 0x8000, 0xFFFF}
"""Watts that firmware gives for power supplies it knows nothing of."""


def _psu(record: Record) -> Psu:
    """One power supply. Only the presence bit says that it is there; Status ``Unknown`` is common
    for units that work, and ``Plugged: Yes`` for units that are absent."""
    fields = record.fields
    name, location = known(fields.get("Name")), known(fields.get("Location"))
    if name and _BAY.fullmatch(name):
        name, location = None, location or name
    presence = fields.get("Status", "").partition(", ")[0]
    present = {"Present": True, "Not Present": False}.get(presence)
    rating = _WATTS.fullmatch(fields.get("Max Power Capacity", ""))
    watts = int(rating[1]) if rating else 0
    return Psu(
        location=location,
        model=name,
        part=known(fields.get("Model Part Number")),
        manufacturer=known(fields.get("Manufacturer")),
        watts=watts_in_name(name) if watts in NO_RATING else watts,
        present=present,
        plugged={"Yes": True, "No": False}.get(fields.get("Plugged", "")) if present else None,
    )


_WATTS = re.compile(r"(\d+) W")


def _onboard(record: Record) -> OnboardDevice:
    return OnboardDevice(
        designation=_label(record, "Reference Designation"),
        kind=known(record.fields.get("Type")),
        enabled={"Enabled": True, "Disabled": False}.get(record.fields.get("Status", "")),
        address=_assigned(record.fields.get("Bus Address", "")),
    )


def _system_memory(of: dict[int, list[Record]]) -> Iterator[Record]:
    """The type 17 records, without the chips of flash and video memory that some firmware lists."""
    other = {
        record.handle for record in of[16] if record.fields.get("Use", "System Memory") not in _MAY_BE_SYSTEM_MEMORY
    }
    return (record for record in of[17] if record.fields.get("Array Handle") not in other)


_MAY_BE_SYSTEM_MEMORY = {"System Memory", "Other", "Unknown", OUT_OF_SPEC}

_SIZE = re.compile(r"(\d+) (k|M|G|T)B")


def _bytes(size: str) -> int | None:
    """Bytes of a memory module; 0 for an empty slot, None where the firmware does not know."""
    if size == "No Module Installed":
        return 0
    found = _SIZE.fullmatch(size)
    return int(found[1]) << (10 * (" kMGT".index(found[2]))) if found else None
