"""Take out of a capture what names one machine, its network and its people.

Serial numbers, asset and service tags, UUIDs, MAC and IP addresses, world wide names, host and user
names give way to stand-ins of the same form and length. A value has one stand-in wherever it stands,
and in every capture of one machine: it is a keyed hash whose key is made of the machine's own system
UUID and serial numbers. The key is not stored, and it is slow to make, so that short serial numbers
cannot be tried out one after the other.

PCI addresses, ids and versions stay: they look a little like MAC and IP addresses, and everything
that is known about a machine hangs on them. So do the placeholders that firmware writes where it has
no serial number.

What this cannot do is know every message that a kernel module may print. Look through a capture
before you publish it.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import ipaddress
import re
import secrets
import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from gpucheck.facts import swapped_uuid
from gpucheck.readers.smbios import known

Document = dict[str, Any]

# --- stand-ins ----------------------------------------------------------------------------------

_DIGITS, _HEX = "0123456789", "0123456789abcdef"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_H = "[0-9a-fA-F]"
_UUID = rf"{_H}{{8}}(?:[-_]{_H}{{4}}){{3}}[-_]{_H}{{12}}"
# Of six bytes or more, which takes in InfiniBand, SAS and what a firewall logs; dashes: BOOTIF=.
_MAC = rf"{_H}{{2}}(?::{_H}{{2}}){{5,}}|{_H}{{2}}(?:-{_H}{{2}}){{5,}}"
_IN_GROUPS = re.compile(rf"{_UUID}|{_MAC}")
_SAY_NOTHING = {"localhost", "03000200-0400-0500-0006-000700080009"}
"""The second is what many boards come with."""


def _names_nothing(value: str) -> bool:
    """Whether a value is a placeholder, zeros or ones all through, or the same on many machines."""
    signs = {char for char in value.lower() if char.isalnum()}
    return len(signs) < 2 or known(value) is None or value.lower() in _SAY_NOTHING


class StandIns:
    """Maps a value to its stand-in, of the same form and length.

    Args:
        key: What makes the stand-ins of one machine.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def _numbers(self, value: str, count: int) -> bytes:
        return hashlib.shake_256(self._key + b"\0" + value.encode("utf-8", "surrogatepass")).digest(count)

    def value(self, value: str) -> str:
        """Of a serial number, tag, name, UUID or MAC address; a placeholder stays.

        A digit becomes a digit, and a letter one of the same case.
        """
        if _names_nothing(value):
            return value
        if _IN_GROUPS.fullmatch(value):
            return self.hexadecimal(value)
        made = value
        for attempt in range(100):
            numbers = self._numbers(f"{attempt} {value}", len(value))
            made = "".join(_like(char, number) for char, number in zip(value, numbers, strict=True))
            if made != value and known(made) == made:
                break
        return made

    def hexadecimal(self, value: str) -> str:
        """Of hexadecimal digits: the same in either case, and however the groups are set apart. A UUID and the
        same one in the other order of bytes have stand-ins that differ in nothing else."""
        if _names_nothing(value):
            return value
        if swapped_uuid(value).lower() < value.lower():
            return swapped_uuid(self.hexadecimal(swapped_uuid(value)))
        digits = "".join(char for char in value.lower() if char in _HEX)
        numbers = iter(self._numbers(digits, len(digits)))
        made = "".join(_HEX[next(numbers) % 16] if char in _HEX else char for char in value.lower())
        return made if value == value.lower() else made.upper()

    def mac(self, value: str) -> str:
        """Also one behind the byte that BOOTIF= puts before it, or two and what follows, as a
        firewall logs them."""
        pairs = re.split("[:-]", value)
        sizes = {7: (1, 6), 14: (6, 6, 2)}.get(len(pairs), (len(pairs),))
        made, start = [], 0
        for size in sizes:
            part = value[3 * start : 3 * (start + size) - 1]
            made.append(part if size < 6 else self.hexadecimal(part))
            start += size
        return value[2].join(made)

    def ipv4(self, value: str) -> str:
        """Numbers of as many digits; loopback, net masks and 0.0.0.0 stay."""
        if value.startswith(("0.", "127.", "255.")):
            return value
        made = []
        for place, octet in enumerate(value.split(".")):
            number = int.from_bytes(self._numbers(f"{place} {value}", 4), "big")
            first, last = {1: (1, 9), 2: (10, 99), 3: (100, 254)}[len(octet)]
            made.append(str(first + number % (last - first + 1)))
        return ".".join(made)

    def ipv6(self, value: str) -> str:
        """Groups of as many digits, the same for the short and the long form; ``::1`` stays."""
        address = ipaddress.IPv6Address(value)
        if address.is_loopback or address.is_unspecified:
            return value
        left, gap, right = value.partition("::")
        made = {place: self._group(address, place, group) for place, group in enumerate(left.split(":")) if group}
        tail = right.split(":")
        made |= {8 - len(tail) + n: self._group(address, 8 - len(tail) + n, g) for n, g in enumerate(tail) if g}
        groups = [made[place] for place in sorted(made)]
        if not gap:
            return ":".join(groups)
        front = len([group for group in left.split(":") if group])
        return ":".join(groups[:front]) + "::" + ":".join(groups[front:])

    def _group(self, address: ipaddress.IPv6Address, place: int, group: str) -> str:
        digits = group.lstrip("0")
        number = int.from_bytes(self._numbers(f"{place} {address.compressed}", 8), "big")
        made = _HEX[1:][number % 15] + format(number // 15 % 4096, "03x")
        made = group[: len(group) - len(digits)] + made[: len(digits)]
        return made if group == group.lower() else made.upper()


def _like(char: str, number: int) -> str:
    if char in _DIGITS:
        return _DIGITS[number % 10]
    if char in _LETTERS:
        return _LETTERS[number % 26]
    if char.lower() in _LETTERS:
        return _LETTERS[number % 26].upper()
    return char if char.isascii() else "x"


# --- SMBIOS -------------------------------------------------------------------------------------

_SECRET_STRINGS = {
    1: (0x07,),
    2: (0x07, 0x08),
    3: (0x07, 0x08),
    4: (0x20, 0x21),
    17: (0x18, 0x19),
    39: (0x08, 0x09),
}
"""Per record type the offsets of the numbers of serial and asset tag strings (SMBIOS 3.7)."""

_NAME_STRINGS = {0: (0x04, 0x05, 0x08), 1: (0x04, 0x05), 2: (0x04, 0x05), 3: (0x04,)}
"""Maker, product and version: cheap boards write one of these into the field of the serial number."""

_KEPT = frozenset({*range(10), 13, *range(16, 22), 32, 38, 39, 41, 127})
"""Records whose layout the standard gives and that, but for the above, name no machine. The others
(OEM strings, OEM records, host interfaces, batteries) are blanked, their length kept."""


class _Structure(NamedTuple):
    kind: int
    start: int
    strings: int
    """Where its strings begin."""
    end: int
    """Where the two zero bytes behind them are."""


def _structures(table: bytes) -> Iterator[_Structure]:
    """The structures of a table, up to its end or to where it is broken."""
    start = 0
    while start + 4 <= len(table):
        kind, length = table[start], table[start + 1]
        if length < 4 or start + length > len(table):
            return
        end = table.find(b"\0\0", start + length)
        end = len(table) if end < 0 else end
        yield _Structure(kind, start, start + length, end)
        if kind == 127:
            return
        start = end + 2


def _strings(table: bytes, structure: _Structure) -> list[tuple[int, int]]:
    """Begin and end of each string."""
    places, begin = [], structure.strings
    for piece in bytes(table[structure.strings : structure.end]).split(b"\0"):
        if piece:
            places.append((begin, begin + len(piece)))
        begin += len(piece) + 1
    return places


def _fields(table: bytes, structure: _Structure, offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Places of the strings that these fields name."""
    places = _strings(table, structure)
    for offset in offsets:
        if structure.start + offset < structure.strings and 0 < (n := table[structure.start + offset]) <= len(places):
            yield places[n - 1]


def _uuid_at(table: bytes, start: int, little: bool) -> str:
    first, second, third = struct.unpack_from("<IHH" if little else ">IHH", table, start)
    rest = bytes(table[start + 8 : start + 16]).hex()
    return f"{first:08x}-{second:04x}-{third:04x}-{rest[:4]}-{rest[4:]}"


def _uuid_place(structure: _Structure) -> int | None:
    if structure.kind == 1 and structure.start + 0x18 <= structure.strings:
        return structure.start + 0x08
    return None


class _Table:
    """A structure table, and what in it is secret.

    Args:
        data: The table, bare.
        little: The first groups of the UUID are little-endian: SMBIOS 2.6 and later.
    """

    def __init__(self, data: bytes, little: bool = True) -> None:
        self.data = data
        self.little = little
        self.structures = list(_structures(data))
        names = {
            self._text(place) for s in self.structures for place in _fields(data, s, _NAME_STRINGS.get(s.kind, ()))
        }
        self.secret_places = [
            place
            for structure in self.structures
            for place in _fields(data, structure, _SECRET_STRINGS.get(structure.kind, ()))
            if self._text(place) not in names
        ]
        self.uuid_places = [place for s in self.structures if (place := _uuid_place(s)) is not None]

    @property
    def identity(self) -> list[str]:
        """UUID and serial number of the system, and the serial number of its first board."""
        systems = [structure for structure in self.structures if structure.kind == 1][:1]
        boards = [structure for structure in self.structures if structure.kind == 2][:1]
        uuids = [_uuid_at(self.data, place, self.little) for place in self.uuid_places[:1]]
        places = [place for s in (*systems, *boards) for place in _fields(self.data, s, (0x07,))]
        return [value for value in (*uuids, *map(self._text, places)) if not _names_nothing(value)]

    def _text(self, place: tuple[int, int]) -> str:
        # Firmware pads; the stand-in is that of the value, wherever it is written without its blanks.
        return self.data[slice(*place)].decode("latin-1").strip()

    @property
    def values(self) -> list[str]:
        """The secrets, UUIDs first, in table order."""
        uuids = (_uuid_at(self.data, place, self.little) for place in self.uuid_places)
        return [*uuids, *(self._text(place) for place in self.secret_places)]

    def redacted(self, stand_ins: StandIns) -> bytes:
        """The table with stand-ins; every length and offset as before."""
        table = bytearray(self.data)
        for start, end in self.secret_places:
            raw = self.data[start:end].decode("latin-1")
            made = raw.replace(raw.strip(), stand_ins.value(raw.strip())) if raw.strip() else raw
            table[start:end] = made.encode("latin-1")
        for place in self.uuid_places:
            groups = stand_ins.value(_uuid_at(self.data, place, self.little)).split("-")
            packed = struct.pack("<IHH" if self.little else ">IHH", *(int(group, 16) for group in groups[:3]))
            table[place : place + 16] = packed + bytes.fromhex("".join(groups[3:]))
        read = 0
        for structure in self.structures:
            read = structure.end + 2
            if structure.kind not in _KEPT:
                table[structure.start + 4 : structure.strings] = bytes(structure.strings - structure.start - 4)
                for start, end in _strings(self.data, structure):
                    table[start:end] = b"x" * (end - start)
        # Behind the end, or behind a broken head, is nothing that anybody reads.
        table[read + 4 :] = bytes(max(0, len(table) - read - 4))
        return bytes(table)


# --- text ---------------------------------------------------------------------------------------

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_NOT_BEHIND_A_WORD, _NOT_BEFORE_A_WORD = "(?<![0-9A-Za-z])", "(?![0-9A-Za-z])"

_RULES: tuple[str, ...] = (
    # Where a line begins with its label, the value is all that follows. "Serial: 8250/16550 driver"
    # is what the driver of the serial ports says.
    r"^[ \t]*(?:\w+[ \t]+)*?(?i:serial(?:[ _-]?(?:number|num|no))?|asset tag|service tag)[ \t]*:[ \t]*(?!8250)"
    r"(?P<labelled>\S[^\n]*?)(?=[ \t\r]*$)",
    rf"(?:(?<![0-9A-Za-z])|(?<=pod))(?P<uuid>{_UUID}){_NOT_BEFORE_A_WORD}",
    rf"(?<![0-9A-Za-z:-])(?P<mac>{_MAC})(?![0-9A-Za-z:-])",
    # Four groups of four also are the ids of a PCI device and its subsystem: only behind their name.
    rf"(?i:guid)[^\n0-9A-Fa-f]{{1,40}}?(?P<guid>{_H}{{4}}(?::{_H}{{4}}){{3}})(?![0-9A-Za-z:])",
    rf"(?<![0-9A-Za-z:])(?P<array>{_H}{{8}}(?::{_H}{{8}}){{3}})(?![0-9A-Za-z:])",
    rf"(?<![\w.])(?P<ipv4>{_OCTET}(?:\.{_OCTET}){{3}})(?![\w-]|\.\w)",
    rf"(?<![\w:.])(?P<ipv6>(?:{_H}{{0,4}}:){{2,7}}{_H}{{0,4}})(?![\w:.])",
    rf"{_NOT_BEHIND_A_WORD}(?P<digest>[0-9a-f]{{64}}|[0-9a-f]{{32}}){_NOT_BEFORE_A_WORD}",
    rf"(?:0x(?=5)|(?:naa|eui)\.)(?P<wwn>[0-9a-f]{{16}}(?:[0-9a-f]{{16}})?){_NOT_BEFORE_A_WORD}",
    rf"UUID=(?P<volume>{_H}{{4}}-{_H}{{4}}|{_H}{{8}}-{_H}{{2}}|{_H}{{16}}){_NOT_BEFORE_A_WORD}",
    r"/by-id/[a-z]+-(?P<disk>\S+?)(?=-part\d+|[\s,;:)\"']|$)",
    r"iqn\.\d{4}-\d\d\.(?P<initiator>[^\s,\"']+)",
    r"(?i:password|passwd|passphrase|secret|token)=(?P<password>[^\s,&]+)",
    r"(?i:\bserial(?:[ _-]?(?:number|num|no|nr))?|\bs/n|asset[ _-]?tag|service[ _-]?tag)"
    r"[ \t]*[:=(#][ \t]*\"?(?!8250|[0-9a-f]{4}:)(?P<serial>[^\s,;)\"]{4,})",
    r"Linux version \S+ \((?P<builder>[^\s()@]+@[^\s()]+)",
    r"/(?:home|Users)/(?P<home>[^/\s:\"']+)",
    r"\bacct=\"(?P<account>[^\"]+)",
)
"""What is secret in text; the one named group of each is the value, and its name the kind."""

_HOST_NAMES: tuple[str, ...] = (
    r"^\[ *\d+\.\d{6}\] (\S+)(?= kernel: )",  # journalctl -o short-monotonic
    r"^\w{3} +\d+ \d\d:\d\d:\d\d (\S+)(?= [\w./@-]+(?:\[\d+\])?: )",
    r"^\d{4}-\d\d-\d\dT\S+ (\S+)(?= [\w./@-]+(?:\[\d+\])?: )",
    r"\bip=(?:\[[^\]]*\]|[^\s:\[]*)(?::(?:\[[^\]]*\]|[^\s:\[]*)){3}:([A-Za-z][\w.-]*)",
    r"\bhostname=([\w.-]+)",
    r"\b[Hh]ostname (?:set )?to <([^>]+)>",
)
_HOST_NAME = re.compile("|".join(_HOST_NAMES), re.MULTILINE)

_VERSION_BEFORE = re.compile(
    r"(?:(?<![A-Za-z])(?i:version|ver|firmware|fw|driver|rev|revision|release|bios)|Version|Firmware|Driver)\W{0,5}$"
)
"""What stands before four numbers that are no address."""

_COMMON = re.compile(
    r"root|user|admin|host|localhost|server|node|linux|kernel|debian|ubuntu|fedora|rocky|centos|gpu|nvidia|nouveau"
    r"|tesla|cuda|pcie?|dell|supermicro|huawei|mem(?:ory)?|cpu|system|boot|device|driver|bar|bus|usb|net|eth\d|acpi"
    r"|bios|efi|nvme|disk|slot|card|irq|no|test|vga|\d+",
    re.IGNORECASE,
)
"""Names of hosts and users that are words of the kernel too: they are replaced only where a name stands."""


class _Text:
    """Replaces what is secret in text.

    Args:
        stand_ins: For the values.
        names: Secrets to be found wherever they stand as words.
    """

    def __init__(self, stand_ins: StandIns, names: Iterable[str]) -> None:
        self._stand_ins = stand_ins
        exact = "|".join(re.escape(name) for name in sorted(set(names), key=lambda name: (-len(name), name)))
        rules = [rf"{_NOT_BEHIND_A_WORD}(?P<exact>{exact}){_NOT_BEFORE_A_WORD}"] if exact else []
        self._pattern = re.compile("|".join([*rules, *_RULES]), re.MULTILINE)

    def __call__(self, text: str) -> str:
        """The text, of the same length."""
        return self._pattern.sub(self._replaced, _HOST_NAME.sub(self._host, text))

    def _host(self, found: re.Match[str]) -> str:
        assert found.lastindex is not None
        # What is no common word is replaced with all the names, and must not be replaced twice.
        name = found[found.lastindex]
        return _with(found, found.lastindex, self._stand_ins.value(name) if _COMMON.fullmatch(name) else name)

    def _replaced(self, found: re.Match[str]) -> str:
        kind = found.lastgroup
        assert kind is not None
        return _with(found, kind, self._stand_in(kind, found[kind], found))

    def _stand_in(self, kind: str, value: str, found: re.Match[str]) -> str:
        match kind:
            case "ipv4":
                before = found.string[max(0, found.start() - 24) : found.start()]
                return value if _VERSION_BEFORE.search(before) else self._stand_ins.ipv4(value)
            case "ipv6":
                try:
                    return self._stand_ins.ipv6(value)
                except ValueError:
                    return value
            case "mac":
                return self._stand_ins.mac(value)
            case "builder":
                return "@".join(map(self._stand_ins.value, value.split("@", 1)))
            case "uuid" | "guid" | "array" | "digest" | "wwn" | "volume":
                return self._stand_ins.hexadecimal(value)
        return self._stand_ins.value(value)


def _with(found: re.Match[str], group: str | int, made: str) -> str:
    start, end = found.start(group) - found.start(), found.end(group) - found.start()
    return found[0][:start] + made + found[0][end:]


def host_names(text: str) -> set[str]:
    """Names of the host that stand where only such a name can stand."""
    return {name for found in _HOST_NAME.finditer(text) if found.lastindex and (name := found[found.lastindex])}


def _distinctive(value: str) -> bool:
    """Whether a value is worth looking for in all text: a short or plain one would be found by chance."""
    if known(value) is None or _COMMON.fullmatch(value):
        return False
    return len(value) >= 8 or (len(value) >= 5 and any(char.isdigit() for char in value))


# --- the document -------------------------------------------------------------------------------

_DMI_TABLE = "/dmi/tables/DMI"
_DMI_SECRET = re.compile(r".*/dmi/id/(?:\w+_(?:serial|asset_tag|uuid))")
_HARDWARE = ("/sys/bus/pci/", "/sys/devices/pci", "/sys/devices/system/")
"""Numbers of the hardware: no names, and much that looks like an address."""
_KERNELS = ("/sys/", "/proc/", "/dev/")
_HOME = re.compile(r"/(?:home|Users)/([^/\s:\"']+)")


def redact(document: Document, *, names: Iterable[str] = (), key: bytes = b"") -> Document:
    """A copy of a capture with stand-ins; one that has been redacted is returned as it is.

    Args:
        document: A ``gpucheck/capture/1`` document.
        names: Host and user names to look for, besides those that the capture itself tells.
        key: What tells this machine from others where the capture holds no SMBIOS table. Without
            either, stand-ins are the same within this capture alone.
    """
    if document.get("redacted") is True:
        return document
    made = copy.deepcopy(document)
    files: Document = made.get("files", {})
    tables = _tables(files)
    secret_files = {path: content for path, content in files.items() if _DMI_SECRET.fullmatch(path)}
    values = [value for table in tables.values() for value in table.values]
    values += [content.strip() for content in secret_files.values() if isinstance(content, str)]
    stand_ins = StandIns(_key(tables.values(), key))

    commands: Document = made.get("commands", {})
    printed = [answer for answer in commands.values() if "error" not in answer]
    texts = [_decoded(content) for path, content in files.items() if not path.startswith(_HARDWARE)]
    texts += [answer[stream] for answer in printed for stream in ("stdout", "stderr")]
    hosts = {name for text in texts for name in host_names(text)}
    words = {value for value in values if _distinctive(value)}
    users = _HOME.findall("\n".join([*_variables(made).values(), *_folders(made)]))
    words |= {name for name in (*hosts, *users, *names) if len(name) > 1 and not _COMMON.fullmatch(name)}
    text = _Text(stand_ins, words)

    for path, content in files.items():
        if path in tables:
            files[path] = _packed(tables[path].redacted(stand_ins))
        elif path in secret_files:
            files[path] = _padded(content, stand_ins)
        elif not path.startswith(_HARDWARE):
            files[path] = _redacted_content(content, text)
    for answer in printed:
        answer["stdout"], answer["stderr"] = text(answer["stdout"]), text(answer["stderr"])
    if "nvml" in made:
        _redact_nvml(made["nvml"], text, stand_ins)
    for name, value in _variables(made).items():
        made["environment"][name] = text(_whole_uuids(value, document.get("nvml") or {}))
    if _folders(made):
        made["python"]["folders"] = [text(folder) for folder in _folders(made)]
    for part in ("files", "links"):
        made[part] = {_path(path, text): value for path, value in made.get(part, {}).items()}
    made["links"] = {path: _path(target, text) for path, target in made["links"].items()}
    made["folders"] = [_path(path, text) for path in made.get("folders", ())]
    made["redacted"] = True
    return made


def _variables(document: Document) -> dict[str, str]:
    variables: dict[str, str] = document.get("environment") or {}
    return variables


def _folders(document: Document) -> list[str]:
    folders: list[str] = (document.get("python") or {}).get("folders", [])
    return folders


def _whole_uuids(value: str, nvml: Document) -> str:
    """A list of GPUs with beginnings of UUIDs made whole, because a beginning has no stand-in of its own."""
    uuids = [str(call.get("value")) for call in nvml.get("calls", ()) if call.get("call") == "nvmlDeviceGetUUID"]

    def whole(found: re.Match[str]) -> str:
        if re.fullmatch(f"GPU-{_UUID}", found[0]):
            return found[0]
        matches = [uuid for uuid in uuids if uuid.startswith(found[0])]
        return matches[0] if len(matches) == 1 else f"GPU-{'0' * 8}"

    return re.sub(rf"GPU-{_H}{{1,8}}(?:-{_H}{{0,12}}){{0,4}}(?![\w-])", whole, value)


def _path(path: str, text: _Text) -> str:
    """A path outside of what the kernel makes: folders of programs may lie in a person's home."""
    return path if path.startswith(_KERNELS) else text(path)


def _tables(files: Document) -> dict[str, _Table]:
    """The SMBIOS tables among the files."""
    found = {}
    for path, content in files.items():
        if path.endswith(_DMI_TABLE) and (data := _bytes(content)) is not None:
            entry = _bytes(files.get(path.removesuffix("DMI") + "smbios_entry_point")) or b""
            version = tuple(entry[7:9]) if entry.startswith(b"_SM3_") else tuple(entry[6:8])
            found[path] = _Table(data, little=len(version) < 2 or version >= (2, 6))
    return found


def _bytes(content: object) -> bytes | None:
    match content:
        case str():
            return content.encode("utf-8", "surrogatepass")
        case {"base64": str(packed)}:
            return base64.b64decode(packed)
    return None


def _packed(data: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode()}


def _padded(content: object, stand_ins: StandIns) -> object:
    if not isinstance(content, str) or not content.strip():
        return content
    return content.replace(content.strip(), stand_ins.value(content.strip()))


def _decoded(content: object) -> str:
    """For a search: bytes that are not UTF-8 as latin-1."""
    return content if isinstance(content, str) else (_bytes(content) or b"").decode("latin-1")


def _redacted_content(content: object, text: _Text) -> object:
    """Text as text; bytes that are not UTF-8 as latin-1, which keeps them."""
    if isinstance(content, str):
        return text(content)
    data = _bytes(content)
    return content if data is None else _packed(text(data.decode("latin-1")).encode("latin-1"))


def _redact_nvml(nvml: Document, text: _Text, stand_ins: StandIns) -> None:
    """UUIDs and serial numbers among the answers, paths in errors; all else is hardware's."""
    if isinstance(nvml.get("error"), str):
        nvml["error"] = text(nvml["error"])
    for call in nvml.get("calls", ()):
        if isinstance(call.get("error"), str):
            call["error"] = text(call["error"])
        name, value = str(call.get("call")), call.get("value")
        if isinstance(value, str) and ("UUID" in name or "Serial" in name):
            call["value"] = text(value) if "UUID" in name else stand_ins.value(value)


def _key(tables: Iterable[_Table], other: bytes) -> bytes:
    """The key of a machine: its system UUID and the serial numbers of system and board.

    A serial number of seven letters can be tried out in an hour; hence a function that is slow.
    """
    own = [value for table in tables for value in table.identity]
    material = "\n".join(own).encode() or other or secrets.token_bytes(32)
    return hashlib.scrypt(material, salt=b"gpucheck/capture/1", n=1 << 14, r=8, p=1, dklen=32)
