"""What lspci printed: lists, details, trees and hex dumps, in any mix, whole or in part.

One text may hold several listings of one machine (``-nn``, then ``-t``, then ``-nnvvvxxxx``): what
each says about a function is joined by its address. Where they differ the kernel's view in words
goes before the registers in the hex dump: an address that only the register has is not in use.

The forms: ``-v`` to ``-vvv``, ``-n``, ``-nn`` or names only, ``-D``, ``-k``, ``-t`` with any of
these, ``-x`` to ``-xxxx``. Not read: the form for programs (``-m``).

A listing says little about what it leaves out, so absence counts only where it is shown: a function
has no driver when its entry is there to the end in a listing that names drivers, and a bus is a
root bus when the tree, or all bridges of a whole listing, say so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from gpucheck.displays import gpu_functions
from gpucheck.facts import (
    SPEED_GTS,
    Bar,
    Gap,
    GapReason,
    Link,
    Parts,
    PciFunction,
    Port,
    address_order,
    pci_address,
)
from gpucheck.readers.config_space import double_word, express, port, word
from gpucheck.readers.pci import parse_width
from gpucheck.text import say
from gpucheck.topology import UNKNOWN_PARENT

_CLASSES = {
    "non-vga unclassified device": 0x0000,
    "scsi storage controller": 0x0100,
    "ide interface": 0x0101,
    "raid bus controller": 0x0104,
    "sata controller": 0x0106,
    "serial attached scsi controller": 0x0107,
    "non-volatile memory controller": 0x0108,
    "ethernet controller": 0x0200,
    "infiniband controller": 0x0207,
    "network controller": 0x0280,
    "vga compatible controller": 0x0300,
    "xga compatible controller": 0x0301,
    "3d controller": 0x0302,
    "display controller": 0x0380,
    "multimedia audio controller": 0x0401,
    "audio device": 0x0403,
    "ram memory": 0x0500,
    "memory controller": 0x0580,
    "host bridge": 0x0600,
    "isa bridge": 0x0601,
    "pci bridge": 0x0604,
    "bridge": 0x0680,
    "serial controller": 0x0700,
    "communication controller": 0x0780,
    "pic": 0x0800,
    "iommu": 0x0806,
    "system peripheral": 0x0880,
    "co-processor": 0x0B40,
    "usb controller": 0x0C03,
    "fibre channel": 0x0C04,
    "smbus": 0x0C05,
    "serial bus controller": 0x0C80,
    "encryption controller": 0x1080,
    "performance counters": 0x1101,
    "signal processing controller": 0x1180,
    "processing accelerators": 0x1200,
    "unassigned class": 0xFF00,
}
"""Class by name. A function whose class is not here, and not given as a number, is left out."""

_VENDORS = (
    ("nvidia corporation", 0x10DE),
    ("advanced micro devices, inc. [amd/ati]", 0x1002),
    ("advanced micro devices, inc. [amd] nee ati", 0x1002),
    ("advanced micro devices [amd] nee ati", 0x1002),
    ("ati technologies inc", 0x1002),
    ("advanced micro devices, inc. [amd]", 0x1022),
    ("advanced micro devices [amd]", 0x1022),
    ("intel corporation", 0x8086),
    ("aspeed technology", 0x1A03),
    ("matrox", 0x102B),
    ("xgi technology", 0x18CA),
    ("silicon motion", 0x126F),
    ("huawei technologies", 0x19E5),
    ("red hat, inc. virtio", 0x1AF4),
    ("red hat, inc. qxl", 0x1B36),
    ("red hat, inc. qemu", 0x1B36),
    ("vmware", 0x15AD),
    ("innotek systemberatung", 0x80EE),
    ("parallels", 0x1AB8),
    ("microsoft corporation", 0x1414),
    ("cirrus logic", 0x1013),
    ("amazon.com", 0x1D0F),
    ("xilinx corporation", 0x10EE),
    ("altera corporation", 0x1172),
    # Makers of bridges, without which the tree would have holes.
    ("plx technology", 0x10B5),
    ("broadcom / lsi", 0x1000),
    ("asmedia technology", 0x1B21),
    ("mellanox technologies", 0x15B3),
    ("pmc-sierra", 0x11F8),
    ("microsemi / pmc / idt", 0x11F8),
    ("integrated device technology", 0x111D),
    ("pericom semiconductor", 0x12D8),
    ("texas instruments", 0x104C),
    ("renesas technology", 0x1912),
    ("ibm", 0x1014),
)
"""Start of the name, in small letters, to vendor id."""

_DEVICES = (
    (0x1002, "ES1000", 0x515E),
    (0x1002, "Rage XL", 0x4752),
    (0x19E5, "iBMC", 0x1711),
    (0x1013, "GD 5446", 0x00B8),
)
"""Names that stand for one device id, of displays that are no GPU though their vendor makes GPUs too."""

_HEADER = re.compile(
    r"(?P<address>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7]) "
    r"(?:(?:Class )?(?P<code>[0-9a-f]{4}): (?P<ids>[0-9a-f]{4}:[0-9a-f]{4})(?= |$)"
    r"|(?:Class (?P<nameless>[0-9a-f]{4})|(?P<class>[A-Z0-9][^:\[\]]{2,50}?)(?: \[(?P<number>[0-9a-f]{4})\])?)"
    r": (?P<name>\S.*))",
    re.IGNORECASE,
)
_IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]")
_TAIL = re.compile(r" (?:\[[0-9a-f]{4}:[0-9a-f]{4}\]|\((?:rev|prog-if) [^()]*\))")
_NUMBERED = re.compile(r"Device ([0-9a-f]{4})(?::([0-9a-f]{4}))?\b")
_NAMELESS = re.compile(r"(?:^|\s)Device(?: [0-9a-f]{4}(?::[0-9a-f]{4})?)?$")
_REVISION = re.compile(r"\((?:rev|prog-if) [^()]*\)\s*")
_HEAD_END = re.compile(r"(?:\[[0-9a-f]{4}:[0-9a-f]{4}\]|\((?:rev|prog-if) [^()]*\))\s*$")
_HEX = re.compile(r"([0-9a-f]{2}): ((?:[0-9a-f]{2} ?){16})")
_DETAIL = re.compile(
    r"Subsystem:|DeviceName:|Control:|Status:|Flags:|Latency|Interrupt:|NUMA node|IOMMU group|Region \d|Memory |I/O "
    r"|Prefetchable |Expansion ROM|\[virtual\]|Bus: |Capabilities:|Kernel |Physical Slot:|Lnk\w+:|Dev\w+:|Slt\w+:|!!!"
)
_REGION = re.compile(
    r"(?:Region (?P<index>\d): )?(?:\[(?:virtual|enhanced)\] )*(?P<kind>Memory|I/O ports) at (?P<at>\S+)"
    r"(?: \((?P<type>[^,)]+), (?P<non>non-)?prefetchable\))?(?P<marks>.*)"
)
_SIZE = re.compile(r"\[size=(\d+)([KMGT]?)\]")
_LINK_CAP = re.compile(r"LnkCap:\s*.*?Speed ([\d.]+GT/s|\w+).*?, Width x(\d+)\b")
_LINK_STATE = re.compile(r"LnkSta:\s*Speed ([\d.]+GT/s|\w+).*?, Width x(\d+)\b")
_BUSES = re.compile(r"Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})")
_TREE = re.compile(r"[ |]*(?:\+|\\|-)-?[-+]*(?:\[(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}|[01][0-9a-f]\.[0-7])")

_BEGUN = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7](?= |$)", re.IGNORECASE)
"""The begin of a head."""
_CARD_MAKERS = ("NVIDIA", "AMD/ATI")
_ONCE = ("Subsystem: ", "Flags: ", "Kernel driver in use: ")
"""Lines that an entry has once."""
_LEFT_OUT = re.compile(r"[\[<(]*(?:\.\.|…|snip)")
"""What people put where they cut."""

_FOR_CARD = "sudo /usr/bin/lspci -nnvvv -s {address}"


def looks_like(text: str) -> bool:
    """Whether a line of the text is the head of an lspci entry, or the root of its tree."""
    return any(map(starts, text.splitlines()))


def starts(line: str) -> bool:
    """Whether the line can be the first of lspci's output."""
    line = line.strip()
    return _class_of(_HEADER.match(line)) is not None or _ROOT.match(line) is not None


def _class_of(head: re.Match[str] | None) -> int | None:
    if head is None:
        return None
    number = head["code"] or head["nameless"] or head["number"]
    return int(number, 16) if number else _CLASSES.get(head["class"].lower())


def parse(text: str) -> Parts:
    """Facts from lspci's output.

    ``pci`` is None, with a gap, when no function's class and vendor could be told: a tree alone has
    no classes.
    """
    read = _read(text)
    joined: dict[str, _Function] = {}
    for function in map(_Entry.function, read.entries):
        known = joined.setdefault(function.address, function)
        if known is not function:
            known.fill(function)
    parents = _Parents(joined.values(), read.parents)
    functions = [
        function.fact(parents.of(address))
        for address, function in sorted(joined.items(), key=lambda item: address_order(item[0]))
        if function.class_id is not None and function.vendor_id is not None
    ]
    gaps = [
        Gap(fact=f"pci.{address}", reason="not-in-input", how=say("lspci -nn -s {address}", address=address))
        for address, function in joined.items()
        if function.class_id is not None and function.class_id >> 16 == 0x03 and function.vendor_id is None
    ]
    if not functions:
        return Parts(gaps=(*gaps, Gap(fact="pci", reason="not-in-input", how=say("lspci -nnk > lspci.txt"))))
    gpus = gpu_functions(functions)
    gaps += [gap for gpu in gpus for gap in joined[gpu.address].gaps()]
    if any(gpu.parent == UNKNOWN_PARENT for gpu in gpus):
        how = say("The bridges above the cards are not shown: lspci -t > tree.txt")
        gaps.append(Gap(fact="topology", reason="not-in-input", how=how))
    gaps += _lost(read, text)
    whole = not (read.shortened or read.headless) and any(function.class_id >> 8 == 0x0600 for function in functions)
    return Parts(pci=tuple(functions), pci_complete=whole, gaps=tuple(gaps))


def _lost(read: _Read, text: str) -> Iterator[Gap]:
    """What shows that a device may be missing."""
    for address in read.damaged:
        how = say("Its line is cut off or damaged: lspci -nnk -s {address}", address=address)
        yield Gap(fact=f"pci.{address}", reason="unreadable", how=how)
    if read.headless:
        how = say("Lines about a device stand without its first line, so a device is missing: lspci -nnk > lspci.txt")
        yield Gap(fact="pci", reason="unreadable", how=how)
    if not text.endswith("\n\n\n"):  # as a text is handed on that something else follows
        how = say("Nothing shows that the list ends where the text ends; a capture of the machine holds all of it.")
        yield Gap(fact="pci.complete", reason="not-in-input", how=how)


# --- from lines to entries ----------------------------------------------------------------------


@dataclass(slots=True)
class _Listing:
    """One run of lspci."""

    names_drivers: bool = False
    shortened: bool = False
    """grep -A or -B cut entries: its ``--`` stands between them."""


@dataclass(slots=True)
class _Entry:
    """The lines of one function in one listing."""

    address: str
    head: re.Match[str]
    listing: _Listing
    details: list[str] = field(default_factory=list)
    config: bytearray = field(default_factory=bytearray)
    ended: bool = False
    """What follows shows that nothing of the entry is missing."""

    def has_such(self, line: str) -> bool:
        """Whether the entry has a line of this kind already: then the line is of the next entry, whose head is
        lost. One that was only doubled follows itself."""
        kind = next((kind for kind in _ONCE if line.startswith(kind)), None)
        return kind is not None and any(known.startswith(kind) for known in self.details) and line != self.details[-1]

    def function(self) -> _Function:
        function = _Function(self.address, _class_of(self.head))
        if function.class_id is not None:
            function.class_id <<= 8
        self._names(function)
        self._details(function)
        if len(self.config) >= 64:
            self._registers(function)
        return function

    def _names(self, function: _Function) -> None:
        head = self.head
        rest = head["name"] or ""
        if head["ids"]:
            function.vendor_id, function.device_id = _pair(head["ids"])
        elif ids := _IDS.findall(rest):
            function.vendor_id, function.device_id = int(ids[-1][0], 16), int(ids[-1][1], 16)
        else:
            function.vendor_id, function.device_id = _ids_by_name(rest)
        name = _TAIL.sub("", rest)
        function.name = None if _NAMELESS.search(name) else name or None
        tail = head.string[head.start("ids") if head["ids"] else head.start("name") :]
        interface = re.search(r"\(prog-if ([0-9a-f]{2})\b", tail)
        if interface and interface[1] != "ff" and function.class_id is not None:
            function.class_id |= int(interface[1], 16)
        if "(rev ff)" in tail:
            function.config_dead = True

    def _details(self, function: _Function) -> None:
        is_verbose = False
        in_header = True  # Regions that are listed inside a capability belong to virtual functions.
        regions: list[re.Match[str]] = []
        express_lines: list[str] = []
        in_express = False
        complete = self.ended
        for line in self.details:
            in_express = " Express " in line if line.startswith("Capabilities:") else in_express
            if in_express:
                express_lines.append(line)
            if line.startswith("Capabilities:"):
                in_header = False
                function.denied = function.denied or "<access denied>" in line
            elif line.startswith(("Flags:", "Control:")):
                is_verbose = True
            elif line.startswith("!!! Unknown header type"):
                function.config_dead = True
            elif line.startswith("Kernel "):
                in_header = False
                name, _, value = line.partition(":")
                if name == "Kernel driver in use":
                    function.driver, function.driver_read = value.strip() or None, True
                elif name == "Kernel modules":
                    function.driver_read = complete = True
            elif line.startswith("Lnk"):
                function.take_link(line)
            elif line.startswith("ACSCtl:"):
                function.acs = tuple(re.findall(r"(\w+)\+", line))
            elif line.startswith("Physical Slot:"):
                function.physical_slot = line.partition(":")[2].strip() or None
            elif line.startswith("Subsystem:"):
                function.subsystem = _subsystem(line) or function.subsystem
            elif line.startswith("Bus: ") and (buses := _BUSES.match(line)):
                function.secondary, function.subordinate = buses[1], buses[2]
            elif in_header and (region := _REGION.match(line)):
                regions.append(region)
            if found := re.search(r"^(?:Flags: .*)?NUMA node:? (\d+)", line):
                function.numa_node = int(found[1])
            if found := re.search(r"^(?:Flags: .*)?IOMMU group:? (\d+)", line):
                function.iommu_group = int(found[1])
        if complete and (is_verbose or self.listing.names_drivers) and not self.listing.shortened:
            function.driver_read = True
        function.port = _port(" ".join(express_lines))
        function.verbose = is_verbose
        if regions or is_verbose:
            function.config_dead = bool(function.config_dead)
            function.bars = tuple(_bars(regions, bytes(self.config)))
            function.bars_read = bool(complete or not in_header) and not function.config_dead

    def _registers(self, function: _Function) -> None:
        """What configuration space itself says, where words did not."""
        config = bytes(self.config)
        if not config[:64].strip(b"\xff"):
            function.config_dead = True
            return
        function.config_dead = bool(function.config_dead)
        if function.config_dead:
            return
        vendor, device = word(config, 0), word(config, 2)
        if vendor not in (0, 0xFFFF):
            function.vendor_id, function.device_id = vendor, device
            function.class_id = int.from_bytes(config[9:12], "little")
        is_bridge = config[0x0E] & 0x7F == 1
        if is_bridge and function.secondary is None:
            function.secondary, function.subordinate = f"{config[0x19]:02x}", f"{config[0x1A]:02x}"
        if config[0x0E] & 0x7F == 0 and function.subsystem is None:
            function.subsystem = word(config, 0x2C), word(config, 0x2E)
        if not function.verbose:
            function.bars, function.bars_read = tuple(_bars_in(config)), True
        if is_bridge:
            function.port = function.port or port(config)
        if (at := express(config)) is not None:
            capability = double_word(config, at + 0x0C)
            state = word(config, at + 0x12)
            function.fill_link(
                Link(
                    width=parse_width(str(state >> 4 & 0x3F)),
                    max_width=parse_width(str(capability >> 4 & 0x3F)),
                    speed_gts=SPEED_GTS.get(state & 0xF),
                    max_speed_gts=SPEED_GTS.get(capability & 0xF),
                )
            )


class _Read(NamedTuple):
    """What the lines of all listings are."""

    entries: list[_Entry]
    parents: dict[str, str | None]
    """Of buses, as trees show them."""
    shortened: bool
    """grep cut something."""
    headless: bool
    """Lines of an entry stand without its head."""
    damaged: list[str]
    """Addresses whose head cannot be read."""


def _read(text: str) -> _Read:
    entries: list[_Entry] = []
    trees = _Trees()
    listing = _Listing()
    entry: _Entry | None = None
    shortened = headless = skipping = False
    damaged: list[str] = []
    for raw in _unwrapped(text.splitlines()):
        line = raw.strip()
        if not line:
            if entry is not None:
                entry.ended = entry.ended or bool(entry.details)
            trees.close()
        elif line[2:4] == ": " and (dump := _HEX.fullmatch(line)):
            if entry is not None and int(dump[1], 16) == len(entry.config):
                entry.config += bytes.fromhex(dump[2])
                entry.ended = True
        elif line[3:5] == ": " and entry is not None and entry.config:
            continue  # extended configuration space: nothing there is asked for
        elif (head := _HEADER.match(line)) and _class_of(head) is not None:
            address = pci_address(head["address"]) or ""
            if entry is not None and address_order(address) > address_order(entry.address):
                entry.ended = entry.ended or not listing.shortened
            else:
                listing = _Listing()
            entry = _Entry(address, head, listing)
            entries.append(entry)
        elif begun := _BEGUN.match(line):
            if entry is not None:
                entry.ended = entry.ended or not listing.shortened
            entry, skipping = None, True
            if head is None or not line.isascii() or any(maker in line for maker in _CARD_MAKERS):
                damaged.append(pci_address(begun[0]) or "")
        elif line == "--":
            listing.shortened = shortened = True
        elif _TREE.match(raw) and trees.add(raw):
            entry = None
        elif entry is not None and (raw[0].isspace() or _DETAIL.match(line)):
            if entry.has_such(line):
                entry, skipping, headless = None, True, True
                continue
            entry.details.append(line)
            listing.names_drivers = listing.names_drivers or line.startswith("Kernel ")
        elif entry is not None:
            entry.ended = entry.ended or (bool(entry.details) and not _LEFT_OUT.match(line))
            entry, listing = None, _Listing()
        elif not skipping and line.startswith(_ONCE):
            headless = True
        skipping = skipping and entry is None
    return _Read(entries, trees.parents, shortened, headless, damaged)


def _unwrapped(lines: Sequence[str]) -> Iterator[str]:
    """Heads of entries in one line each, also where a terminal or a mailer broke them in up to three."""
    place = 0
    while place < len(lines):
        line = lines[place]
        place += 1
        if _HEADER.match(line.strip()):
            rest = list(takewhile(_may_go_on, lines[place : place + 2]))
            ends = [count for count, text in enumerate(rest, 1) if _HEAD_END.search(text)]
            if ends and (not _HEAD_END.search(line) or _REVISION.fullmatch(rest[0])):
                line = " ".join((line.rstrip(), *rest[: ends[0]]))
                place += ends[0]
        yield line


def _may_go_on(line: str) -> bool:
    """Whether a line can be the rest of the head above it."""
    return bool(line.strip()) and not line[0].isspace() and not _HEADER.match(line) and not _DETAIL.match(line)


def _pair(ids: str) -> tuple[int, int]:
    vendor, device = (int(part, 16) for part in ids.split(":"))
    return vendor, device


def _ids_by_name(name: str) -> tuple[int | None, int | None]:
    """Vendor and device as far as the name is certain."""
    if found := _NUMBERED.match(name):  # neither is in the list of ids
        return (int(found[1], 16), int(found[2], 16)) if found[2] else (None, None)
    small = name.lower()
    vendor = next((vendor for start, vendor in _VENDORS if small.startswith(start)), None)
    if vendor is None:
        return None, None
    if found := re.search(r" Device ([0-9a-f]{4})(?= |$)", name):
        return vendor, int(found[1], 16)
    return vendor, next((id for maker, words, id in _DEVICES if maker == vendor and words in name), None)


def _subsystem(line: str) -> tuple[int, int] | None:
    found = _IDS.findall(line) or re.findall(r"Subsystem: ([0-9a-f]{4}):([0-9a-f]{4})$", line)
    return (int(found[-1][0], 16), int(found[-1][1], 16)) if found else None


def _port(text: str) -> Port | None:
    """Slot and link of a port, from the lines of its PCI Express capability; None for a port without a
    slot, for one that cannot tell whether its link is up, and where the lines were cut."""
    pieces = re.split(r"\b((?:Dev|Lnk|Slt|Root)\w+):", text)
    marks = {
        (register, name): sign == "+"
        for register, words in zip(pieces[1::2], pieces[2::2], strict=True)
        # What changed follows what is, under the same names.
        for name, sign in re.findall(r"(?<![\w-])(\w+)([+-])", words.partition("Changed:")[0])
    }
    if not marks.get(("LnkCap", "LLActRep")):
        return None
    try:
        return Port(
            presence=marks["SltSta", "PresDet"],
            link_active=marks["LnkSta", "DLActive"],
            link_disabled=marks["LnkCtl", "Disabled"],
            power_off=marks["SltCap", "PwrCtrl"] and marks["SltCtl", "Power"],
        )
    except KeyError:
        return None


# --- BARs and capabilities ----------------------------------------------------------------------


def _bars(regions: list[re.Match[str]], config: bytes) -> Iterator[Bar]:
    """Memory BARs from the lines of one function.

    ``-v`` leaves their numbers out: then they are counted, over the registers in use where the hex
    dump shows these, else without holes, which is how displays lay them out.
    """
    used = [index for index, _ in _registers_in_use(config)] if len(config) >= 64 else []
    counted = 0
    for place, region in enumerate(regions):
        wide = region["type"] == "64-bit"
        index = int(region["index"]) if region["index"] else used[place] if len(used) == len(regions) else counted
        counted = index + (2 if wide else 1)
        if region["kind"] != "Memory" or region["type"] is None:
            continue
        size = _SIZE.search(region["marks"])
        at = region["at"]
        start = int(at, 16) if re.fullmatch(r"[0-9a-f]+", at) else 0
        yield Bar(
            index=index,
            bytes=(int(size[1]) << 10 * " KMGT".index(size[2] or " ")) or None if size else None,
            assigned=start > 0,
            is_64bit=wide,
            prefetchable=region["non"] is None,
            start=start or None,
        )


def _registers_in_use(config: bytes) -> Iterator[tuple[int, int]]:
    """Index and value of the BAR registers that are not zero, without upper halves."""
    index = 0
    while index < (2 if config[0x0E] & 0x7F == 1 else 6):
        value = int.from_bytes(config[0x10 + 4 * index : 0x14 + 4 * index], "little")
        wide = value & 0x7 == 0x4
        if wide:
            value |= int.from_bytes(config[0x14 + 4 * index : 0x18 + 4 * index], "little") << 32
        if value:
            yield index, value
        index += 2 if wide else 1


def _bars_in(config: bytes) -> Iterator[Bar]:
    """Memory BARs of the hex dump; a register does not tell its size."""
    for index, value in _registers_in_use(config):
        if value & 1:  # I/O ports
            continue
        start = value & ~0xF
        yield Bar(
            index=index,
            bytes=None,
            assigned=start > 0,
            is_64bit=value & 0x7 == 0x4,
            prefetchable=bool(value & 0x8),
            start=start or None,
        )


# --- one function -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Function:
    """What the listings say about one function; None is what none of them shows."""

    address: str
    class_id: int | None = None
    vendor_id: int | None = None
    device_id: int | None = None
    name: str | None = None
    subsystem: tuple[int, int] | None = None
    driver: str | None = None
    driver_read: bool = False
    numa_node: int | None = None
    iommu_group: int | None = None
    link: Link = field(default_factory=Link)
    port: Port | None = None
    acs: tuple[str, ...] | None = None
    bars: tuple[Bar, ...] = ()
    bars_read: bool = False
    config_dead: bool | None = None
    physical_slot: str | None = None
    secondary: str | None = None
    subordinate: str | None = None
    verbose: bool = False
    denied: bool = False

    def fill(self, other: _Function) -> None:
        """Take from another listing what this one lacks."""
        for name in (
            "vendor_id", "device_id", "name", "subsystem", "numa_node", "iommu_group", "physical_slot",
            "secondary", "subordinate", "port", "acs",
        ):  # fmt: skip
            if getattr(self, name) is None:
                setattr(self, name, getattr(other, name))
        if self.class_id is None or self.class_id & 0xFF == 0:  # most listings leave the interface out
            self.class_id = other.class_id if other.class_id is not None else self.class_id
        if other.config_dead is not None:
            self.config_dead = bool(self.config_dead) or other.config_dead
        if other.driver_read and not self.driver_read:
            self.driver, self.driver_read = other.driver, True
        if (other.bars_read, any(bar.bytes for bar in other.bars)) > (
            self.bars_read,
            any(bar.bytes for bar in self.bars),
        ):
            self.bars, self.bars_read = other.bars, other.bars_read
        self.fill_link(other.link)
        self.verbose = self.verbose or other.verbose
        self.denied = self.denied or other.denied

    def fill_link(self, other: Link) -> None:
        known = {name: value for name, value in self.link if value is not None}
        self.link = other.model_copy(update=known)

    def take_link(self, line: str) -> None:
        if found := _LINK_CAP.match(line):
            self.fill_link(Link(max_width=parse_width(found[2]), max_speed_gts=_speed(found[1])))
        elif found := _LINK_STATE.match(line):
            self.fill_link(Link(width=parse_width(found[2]), speed_gts=_speed(found[1])))

    def fact(self, parent: str | None) -> PciFunction:
        assert self.vendor_id is not None
        assert self.class_id is not None
        subsystem = self.subsystem or (None, None)
        return PciFunction(
            address=self.address,
            vendor_id=self.vendor_id,
            device_id=self.device_id,
            name=self.name,
            subsystem_vendor_id=subsystem[0],
            subsystem_device_id=subsystem[1],
            class_id=self.class_id,
            parent=parent,
            driver=self.driver,
            driver_read=self.driver_read,
            numa_node=self.numa_node,
            iommu_group=self.iommu_group,
            link=self.link,
            port=self.port,
            acs=self.acs,
            bars=self.bars if self.bars_read else None,
            config_dead=self.config_dead,
            physical_slot=self.physical_slot,
        )

    def gaps(self) -> Iterator[Gap]:
        """What is not known about a GPU, and how to learn it."""
        closed: GapReason = "needs-root" if self.denied else "not-in-input"
        missing: list[tuple[str, GapReason, str]] = []
        if self.device_id is None:
            missing.append(("pci_id", "not-in-input", say("lspci -nn -s {address}", address=self.address)))
        if not self.driver_read:
            missing.append(("driver", "not-in-input", say("lspci -nnk -s {address}", address=self.address)))
        how = say(_FOR_CARD, address=self.address)
        if self.config_dead is None:
            missing.append(("config_dead", "not-in-input", how))
        if not self.config_dead and (self.link.width is None or self.link.max_width is None):
            missing.append(("link", closed, how))
        if not self.bars_read:
            missing.append(("bars", "not-in-input", how))
        if self.numa_node is None and self.verbose:
            missing.append(("numa_node", "not-supported", say("lspci names none: firmware does not say.")))
        elif self.numa_node is None:
            missing.append(("numa_node", "not-in-input", how))
        for fact, reason, step in missing:
            yield Gap(fact=f"gpus.{self.address}.{fact}", reason=reason, how=step)


def _speed(text: str) -> float | None:
    return float(text.removesuffix("GT/s")) if text.endswith("GT/s") else None


# --- the tree -----------------------------------------------------------------------------------

_ROOT = re.compile(r"(?:[-+\\|]-?[-+]*)\[(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2})(?:-[0-9a-f]{2})?\](?=-|$)")
_DEVICE = re.compile(r"(?P<device>[01][0-9a-f]\.[0-7])(?:-\[(?P<bus>[0-9a-f]{2})(?:-[0-9a-f]{2})?\])?")
_ART = re.compile(r"-*(?:\+|\\)?-+")


class _Trees:
    """Reads ``lspci -t`` line by line.

    A line continues the branch of the nearest line above whose first device stands in the same
    column. Each level is a bus, the column of its devices and the bridge that opens it.
    """

    def __init__(self) -> None:
        self.parents: dict[str, str | None] = {}
        self._levels: list[tuple[int, str]] = []

    def close(self) -> None:
        """The tree is over."""
        self._levels.clear()

    def add(self, line: str) -> bool:
        """Take one line; False when it is none of a tree."""
        place = len(line) - len(line.lstrip(" |"))
        root = _ROOT.match(line, place)
        if root is not None:
            bus = f"{root['domain'].lower()}:{root['bus'].lower()}"
            self.parents[bus] = None
            self._levels = []
            place = root.end()
        else:
            art = re.compile(r"(?:\+|\\)-").match(line, place)
            if art is None or not self._levels:
                return False
            place = art.end()
            self._levels = [level for level in self._levels if level[0] <= place]
            if not self._levels or self._levels[-1][0] != place:
                return False
            bus = self._levels.pop()[1]
        while True:
            if art := _ART.match(line, place):
                place = art.end()
            device = _DEVICE.match(line, place)
            if device is None:
                return True
            self._levels.append((place, bus))
            if device["bus"] is None:
                return True
            bridge = pci_address(f"{bus}:{device['device']}")
            bus = f"{bus.rpartition(':')[0]}:{device['bus'].lower()}"
            self.parents[bus] = bridge
            place = device.end()


class _Parents:
    """Which bridge opens a bus."""

    def __init__(self, functions: Iterable[_Function], tree: dict[str, str | None]) -> None:
        self._opened = dict(tree)
        self._ranges: list[tuple[str, int, int]] = []
        self._unsure: set[str] = set()
        """Domains with a bridge that does not say which bus it opens."""
        self._with_bridges: set[str] = set()
        for function in functions:
            if function.class_id is None or function.class_id >> 8 != 0x0604:
                continue
            domain = function.address.partition(":")[0]
            self._with_bridges.add(domain)
            if function.secondary is None or function.subordinate is None:
                self._unsure.add(domain)
            elif function.secondary != "00":  # a bridge that firmware left unconfigured says 00
                self._opened.setdefault(f"{domain}:{function.secondary}", function.address)
                self._ranges.append((domain, int(function.secondary, 16), int(function.subordinate, 16)))

    def of(self, address: str) -> str | None:
        """The bridge above; None under a root bus; ``?`` where it is not shown."""
        bus = address[:-5]
        if bus in self._opened:
            return self._opened[bus]
        domain, _, number = bus.partition(":")
        if number == "00":
            return None
        inside = any(domain == other and first <= int(number, 16) <= last for other, first, last in self._ranges)
        told = domain in self._with_bridges and domain not in self._unsure
        return None if told and not inside else UNKNOWN_PARENT
