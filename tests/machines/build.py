"""Golden machines: a compact description becomes ``<name>/capture.json``.

    cd tests && python -m machines.build          write every capture
    cd tests && python -m machines.build NAME     write one

To add a machine: describe it in golden.py, run this, and write ``<name>/expect.json`` by hand (see
README.md). All of them are invented; serial numbers and UUIDs are made up.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import sys
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import SMBIOS_END, smbios_cpu, smbios_memory, smbios_psu, smbios_slot, smbios_structure

FOLDER = Path(__file__).resolve().parent
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
KERNEL = "6.8.0-48-generic"
DRIVER = "570.158.01"
MIB, GIB = 1 << 20, 1 << 30
PACKAGES = "/opt/train/lib/python3.11/site-packages"

Document = dict[str, Any]

# --- PCI ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """One memory BAR: 64 bits wide and prefetchable unless ``small`` (32 bits)."""

    index: int
    size: int
    start: int | None
    """None: no address; the kernel keeps the size."""
    small: bool = False
    wiped: bool = False
    """Without an address, the kernel has lost the size too; the register still tells the type."""

    @property
    def line(self) -> str:
        if self.wiped:
            return resource(0, 0, 0)
        flags = 0x40200 if self.small else 0x14220C
        if self.start is None:
            return resource(0, self.size - 1, flags | 0x2000_0000)
        return resource(self.start, self.start + self.size - 1, flags)

    @property
    def register(self) -> int:
        return (self.start or 0) & 0xFFFF_FFF0 | (0x0 if self.small else 0xC)


def resource(start: int, end: int, flags: int) -> str:
    return f"0x{start:016x} 0x{end:016x} 0x{flags:016x}"


@dataclass(frozen=True)
class Function:
    """One PCI function, and those behind it where it is a bridge."""

    address: str
    ids: str
    class_id: int
    subsystem: str | None = None
    driver: str | None = None
    node: int | None = 0
    width: int | None = None
    max_width: int | None = None
    speed: float = 8.0
    max_speed: float = 8.0
    bars: tuple[Bar, ...] = ()
    dead: bool = False
    """Configuration space reads all ones; what the kernel keeps itself is still there."""
    below: tuple[Function, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further files of its folder, or others in place of those made here."""

    @property
    def is_bridge(self) -> bool:
        return self.class_id >> 8 == 0x0604

    def files(self, above: str) -> Document:
        """Paths below /sys/devices of this function and all behind it."""
        folder = f"{above}/{self.address}"
        ids = [f"PCI_CLASS={self.class_id:X}", f"PCI_ID={self.ids.upper()}"]
        driver = [f"DRIVER={self.driver}"] if self.driver else []
        subsystem = [f"PCI_SUBSYS_ID={self.subsystem.upper()}"] if self.subsystem else []
        found: Document = {f"{folder}/uevent": "\n".join([*driver, *ids, *subsystem, ""])}
        found[f"{folder}/numa_node"] = f"{-1 if self.node is None else self.node}\n"
        if self.width is not None:
            found |= {
                f"{folder}/current_link_width": f"{self.width}\n",
                f"{folder}/max_link_width": f"{self.max_width or self.width}\n",
                f"{folder}/current_link_speed": f"{self.speed} GT/s PCIe\n",
                f"{folder}/max_link_speed": f"{self.max_speed} GT/s PCIe\n",
            }
        found[f"{folder}/config"] = packed(b"\xff" * 64 if self.dead else self.config())
        found[f"{folder}/resource"] = "\n".join([*self.resources(), ""])
        found |= {f"{folder}/{name}": content for name, content in self.more.items()}
        for function in self.below:
            found |= function.files(folder)
        return found

    def resources(self) -> list[str]:
        lines = [resource(0, 0, 0)] * 7
        for bar in self.bars:
            lines[bar.index] = bar.line
        return lines

    def config(self) -> bytes:
        """The standard header."""
        vendor, device = (int(part, 16) for part in self.ids.split(":"))
        header = bytearray(64)
        struct.pack_into("<HHHH", header, 0, vendor, device, 0x0406, 0x0010)
        struct.pack_into("<I", header, 8, self.class_id << 8 | 0xA1)
        header[0x0E] = 1 if self.is_bridge else 0
        for bar in self.bars:
            struct.pack_into("<I", header, 0x10 + 4 * bar.index, bar.register)
        if self.subsystem and not self.is_bridge:
            struct.pack_into("<HH", header, 0x2C, *(int(part, 16) for part in self.subsystem.split(":")))
        return bytes(header)

    def flat(self) -> Iterable[Function]:
        yield self
        for function in self.below:
            yield from function.flat()

    def paths(self, above: str) -> Iterable[tuple[str, str]]:
        """Address and place below /sys/devices, of this function and all behind it."""
        here = f"{above}/{self.address}"
        yield self.address, here
        for function in self.below:
            yield from function.paths(here)


def port(address: str, *below: Function, lanes: int = 16, gen: float = 8.0, node: int | None = 0) -> Function:
    """A root port or a switch port. Without a device behind it there is no link."""
    link = {"width": below[0].width or 0, "speed": below[0].speed} if below else {"width": 0, "speed": 2.5}
    return Function(
        address,
        "8086:6f04",
        0x060400,
        max_width=lanes,
        max_speed=gen,
        node=node,
        driver="pcieport",
        below=below,
        **link,
    )


def switch(upstream: str, *cards: tuple[str, Function], node: int | None = 0) -> Function:
    """A PEX 8747: its upstream port, and a downstream port (by address) above each card."""
    down = tuple(port(address, card, node=node) for address, card in cards)
    return Function(upstream, "10b5:8747", 0x060400, width=16, max_width=16, node=node, driver="pcieport", below=down)


def p40(address: str, number: int = 0, **traits: Any) -> Function:
    """A Tesla P40: 24 GB, BARs of 16 MiB, 32 GiB and 32 MiB; ``number`` spreads the addresses."""
    high = 0x3800_0000_0000 + number * 0x10_0000_0000
    known: dict[str, Any] = {
        "subsystem": "10de:11d9",
        "driver": "nvidia",
        "width": 16,
        "max_width": 16,
        "bars": (
            Bar(0, 16 * MIB, 0x9200_0000 + number * 0x200_0000, small=True),
            Bar(1, 32 * GIB, high),
            Bar(3, 32 * MIB, high + 32 * GIB),
        ),
    }
    return Function(address, "10de:1b38", 0x030200, **{**known, **traits})


BMC = Function("0000:0a:00.0", "102b:0534", 0x030000, subsystem="1028:0600", driver="mgag200")
BMC_PORT = port("0000:00:1c.7", BMC, lanes=1, gen=5.0)

# --- NVML ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NvmlCard:
    """What NVML answers for one card. ``fails`` maps a call to its return code."""

    address: str
    name: str = "Tesla P40"
    pci_id: int = 0x1B3810DE
    subsystem_id: int = 0x11D910DE
    minor: int | None = None
    uuid: int | None = None
    """Last digits of its UUID; its index by default. The model is in it too: no two cards share one."""
    vbios: str = "86.02.23.00.01"
    memory: int = 24_096_276_480
    bar1: int = 32 * GIB
    compute: tuple[int, int] = (6, 1)
    watts: int = 250
    width: int = 16
    gen: int = 3
    max_gen: int = 3
    fails: Mapping[str, int] = field(default_factory=dict)
    more: Sequence[Document] = ()
    """Further answers; a later one of a call replaces what is said here."""

    def own_uuid(self, index: int) -> str:
        number = index if self.uuid is None else self.uuid
        return f"GPU-00000000-{self.pci_id >> 16:04x}-4000-8000-{number:012d}"

    def answers(self, index: int) -> list[Document]:
        values: Document = {
            "nvmlDeviceGetHandleByIndex": None,
            "nvmlDeviceGetPciInfo": {
                "busId": self.address.upper().rjust(16, "0"),
                "pciDeviceId": self.pci_id,
                "pciSubSystemId": self.subsystem_id,
            },
            "nvmlDeviceGetUUID": self.own_uuid(index),
            "nvmlDeviceGetName": self.name,
            "nvmlDeviceGetMinorNumber": index if self.minor is None else self.minor,
            "nvmlDeviceGetMemoryInfo": {"total": self.memory, "used": 0, "free": self.memory},
            "nvmlDeviceGetUtilizationRates": {"gpu": 0, "memory": 0},
            "nvmlDeviceGetPowerUsage": 10_250,
            "nvmlDeviceGetPerformanceState": 8,
            "nvmlDeviceGetTemperature": 31,
            "nvmlDeviceGetComputeRunningProcesses_v3": [],
            "nvmlDeviceGetBAR1MemoryInfo": {"bar1Total": self.bar1, "bar1Free": self.bar1, "bar1Used": 0},
            "nvmlDeviceGetCudaComputeCapability": list(self.compute),
            "nvmlDeviceGetVbiosVersion": self.vbios,
            "nvmlDeviceGetCurrPcieLinkWidth": self.width,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetCurrPcieLinkGeneration": self.gen,
            "nvmlDeviceGetMaxPcieLinkGeneration": self.max_gen,
            "nvmlDeviceGetPcieReplayCounter": 0,
            "nvmlDeviceGetEnforcedPowerLimit": self.watts * 1000,
            "nvmlDeviceGetPowerManagementDefaultLimit": self.watts * 1000,
            "nvmlDeviceGetPowerManagementLimitConstraints": [self.watts * 500, self.watts * 1000],
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetPersistenceMode": 0,
            "nvmlDeviceGetRetiredPagesPendingStatus": 0,
        }
        made: list[Document] = []
        for call, value in values.items():
            answer: Document = {"call": call, "device": index}
            code = self.fails.get(call, 0)
            made.append(answer | ({"code": code} if code or value is None else {"code": 0, "value": value}))
            if code:
                break  # the child asks no more of a card that is lost or does not open
        else:
            told = {answer["call"] for answer in self.more}
            made += [{"device": index, **answer} for answer in _HEALTHY if answer["call"] not in told]
            if not any(call.startswith("nvmlDeviceGetCurrentClocks") for call in told):
                made.append({"call": "nvmlDeviceGetCurrentClocksEventReasons", "device": index, "code": 0, "value": 1})
        return [*made, *({"device": index, **answer} for answer in self.more)]


_HEALTHY: tuple[Document, ...] = (
    *(
        {"call": "nvmlDeviceGetTotalEccErrors", "arguments": [kind, since], "code": 0, "value": 0}
        for kind in (0, 1)
        for since in (0, 1)
    ),
    *({"call": "nvmlDeviceGetRetiredPages", "arguments": [cause], "code": 0, "value": []} for cause in (0, 1)),
    {"call": "nvmlDeviceGetMigMode", "code": 3},
)
"""Memory without errors, and no MIG."""


def nvml(*cards: NvmlCard, driver: str = DRIVER, **end: Any) -> Document:
    """NVML that starts and lists these cards."""
    calls: list[Document] = [
        {"call": "nvmlInit", "code": 0},
        {"call": "nvmlSystemGetDriverVersion", "code": 0, "value": driver},
        {"call": "nvmlSystemGetNVMLVersion", "code": 0, "value": f"12.{driver}"},
        {"call": "nvmlSystemGetCudaDriverVersion", "code": 0, "value": 12080},
        {"call": "nvmlDeviceGetCount", "code": 0, "value": len(cards)},
    ]
    for index, card in enumerate(cards):
        calls += card.answers(index)
    return {"calls": calls, "timed_out": False, "exit_code": 0, **end}


def nvml_fails(code: int) -> Document:
    """NVML that does not start."""
    return {"calls": [{"call": "nvmlInit", "code": code}], "timed_out": False, "exit_code": 0}


def nvml_of(functions: Iterable[Function], **traits: Any) -> Document:
    """NVML that lists every P40 which the NVIDIA driver holds."""
    held = [f for f in functions if f.ids == "10de:1b38" and f.driver == "nvidia"]
    return nvml(*(NvmlCard(f.address, **traits) for f in held))


# --- SMBIOS -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Board:
    """What the firmware says of a machine."""

    vendor: str
    product: str
    board: str
    sockets: Mapping[str, str | None]
    """Designation to CPU model; None for an empty socket."""
    slots: Sequence[tuple[str, int, int, str | None]] = ()
    """Designation, type code, data width code, address of what is in it (None: free)."""
    psus: Sequence[tuple[str, str, int, int]] = ()
    """Location, name, watts, status bits (PRESENT, UNPLUGGED)."""
    bios: tuple[str, str, str] = ("Dell Inc.", "2.13.0", "05/14/2021")
    uuid: bytes = bytes.fromhex("4c4c4544005a31108036b4c04f4d3232")
    memory_gib: int = 64

    def table(self) -> bytes:
        vendor, version, date = self.bios
        records = [
            smbios_structure(0, 0, struct.pack("<BBHBB", 1, 2, 0xF000, 3, 0xFF) + bytes(14), vendor, version, date),
            smbios_structure(1, 0x100, b"\1\2\0\3" + self.uuid + b"\6\0\0", self.vendor, self.product, "MADEUP1"),
            smbios_structure(2, 0x200, b"\1\2\0\0\0\0\0" + struct.pack("<HBB", 0x300, 10, 0), self.vendor, self.board),
            smbios_structure(3, 0x300, b"\1\x17\0\0\0\3\3\3\3" + bytes(8), self.vendor),
        ]
        for number, (name, model) in enumerate(self.sockets.items()):
            records.append(smbios_cpu(0x400 + number, name, 0x41 if model else 0x00, model or "Not Specified"))
        for number, (name, kind, width, address) in enumerate(self.slots):
            where = (0, 0xFF, 0xFF) if address is None else smbios_address(address)
            records.append(smbios_slot(0x900 + number, name, kind, width, 3 if address is None else 4, *where))
        records.append(smbios_memory(0x1100, "A1", 0x7FFF, self.memory_gib * 1024))
        for number, (location, name, watts, bits) in enumerate(self.psus):
            records.append(smbios_psu(0x2700 + number, location, name, watts, bits))
        return b"".join([*records, SMBIOS_END])


PRESENT, UNPLUGGED = 2, 4
OK = 3 << 7


def smbios_address(address: str) -> tuple[int, int, int]:
    domain, bus, rest = address.split(":")
    device, function = rest.split(".")
    return int(domain, 16), int(bus, 16), int(device, 16) << 3 | int(function)


# --- the machine --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Golden:
    """A machine. What is None or empty here was not read, or is not there."""

    functions: tuple[Function, ...] = ()
    board: Board | None = None
    nvml: Document | None = None
    packages: int = 2
    nodes: int | None = None
    cpu: str = "Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz"
    flags: str = "fpu sse sse2 avx avx2"
    modules: tuple[str, ...] = ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")
    module_installed: bool = True
    driver_version: str | None = DRIVER
    library: str | None = DRIVER
    device_files: int | tuple[int, ...] | None = None
    """Minor numbers of /dev/nvidia*, or how many; by default one for each card that NVIDIA's driver holds."""
    command_line: str = "BOOT_IMAGE=/vmlinuz root=/dev/sda2 ro"
    efi: bool = True
    secure_boot: bool = False
    log: tuple[str, ...] | None = ()
    """Lines after the first of this boot; None: not readable."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further files, or others in place of those made here; None takes a file away."""
    root: bool = True
    environment: Mapping[str, str] | None = field(default_factory=dict)
    """Variables of the process; None: not recorded."""
    python_packages: Mapping[str, str] | None = field(default_factory=dict)
    """What lies in the folder of packages (``tensorflow-2.15.0.dist-info``); None: no Python was looked at."""

    def all_functions(self) -> list[Function]:
        return [member for function in self.functions for member in function.flat()]

    def capture(self) -> Document:
        """The ``gpucheck/capture/1`` document."""
        files: Document = {}
        links: dict[str, str] = {}
        folders: list[str] = ["/sys/bus/pci/devices", "/dev", "/run", "/etc/modprobe.d"]
        for function in self.functions:
            root = f"/sys/devices/pci{function.address[:-5]}"
            files |= function.files(root)
            links |= {f"/sys/bus/pci/devices/{address}": place for address, place in function.paths(root)}
        if self.board is not None:
            files["/sys/firmware/dmi/tables/DMI"] = packed(self.board.table())
            files["/sys/class/dmi/id/sys_vendor"] = f"{self.board.vendor}\n"
        files |= self.kernel()
        files |= self.driver()
        if self.python_packages is not None:
            folders.append(PACKAGES)
            files["/etc/ld.so.cache"] = ""
            files |= {f"{PACKAGES}/{name}": text for name, text in self.python_packages.items()}
        if self.efi:
            files[SECURE_BOOT] = packed(bytes((6, 0, 0, 0, self.secure_boot)))
        files = {path: content for path, content in {**files, **self.more}.items() if content is not None}
        document: Document = {"schema": "gpucheck/capture/1", "files": dict(sorted(files.items()))}
        document |= {"links": dict(sorted(links.items())), "folders": sorted(folders), "commands": {}}
        if self.nvml is not None:
            document["nvml"] = self.nvml
        if self.environment is not None:
            document["environment"] = dict(self.environment)
        if self.python_packages is not None:
            document["python"] = {"version": "3.11.7", "folders": [PACKAGES]}
        return document | {"root": self.root}

    def kernel(self) -> Document:
        """What /proc and /sys tell of processors, memory and messages."""
        processors = [
            f"processor\t: {package}\nmodel name\t: {self.cpu}\nphysical id\t: {package}\n"
            f"flags\t\t: {self.flags}\naddress sizes\t: 46 bits physical, 48 bits virtual\n"
            for package in range(self.packages)
        ]
        last = (self.nodes or self.packages) - 1
        files: Document = {
            "/proc/cpuinfo": "\n".join(processors),
            "/proc/meminfo": "MemTotal:       65842512 kB\n",
            "/proc/cmdline": f"{self.command_line}\n",
            "/proc/sys/kernel/osrelease": f"{KERNEL}\n",
            "/sys/devices/system/node/has_cpu": f"0-{last}\n" if last else "0\n",
        }
        if self.log is not None:
            lines = (f"Linux version {KERNEL}", *self.log)
            files["/dev/kmsg"] = "".join(f"6,{n},{n * 1000},-;{line}\n" for n, line in enumerate(lines, 1))
        return files

    def driver(self) -> Document:
        """NVIDIA's driver on disk, in the kernel and in /dev."""
        files: Document = {
            "/proc/modules": "".join(f"{module} 16384 0 - Live 0x0\n" for module in self.modules),
            f"/lib/modules/{KERNEL}/modules.dep": "updates/dkms/nvidia.ko:\n" if self.module_installed else "\n",
            "/usr/lib/x86_64-linux-gnu/libc.so.6": "",
        }
        if self.library:
            files[f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{self.library}"] = ""
        if self.driver_version and "nvidia" in self.modules:
            files["/proc/driver/nvidia/version"] = (
                f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {self.driver_version}  Mon May 19 2025\n"
            )
        held = sum(function.driver == "nvidia" for function in self.all_functions())
        minors = held if self.device_files is None else self.device_files
        for minor in range(minors) if isinstance(minors, int) else minors:
            files[f"/dev/nvidia{minor}"] = ""
        return files


def crowded(functions: int) -> Golden:
    """A machine with 16 P40s behind eight switches, and so many functions in all: the rest are shares of network
    cards, 31 to a port. For measuring; at most some 7000 functions."""
    cards = [p40(f"0000:{2 + 3 * (n // 2):02x}:{n % 2:02x}.0", n, node=n // 8) for n in range(16)]
    seats = [
        port(
            f"0000:00:{1 + n:02x}.0",
            Function(
                f"0000:{1 + 3 * n:02x}:00.0", "10b5:8747", 0x060400, width=16, max_width=16, node=n // 4,
                below=tuple(cards[2 * n : 2 * n + 2]),
            ),
            node=n // 4,
        )
        for n in range(8)
    ]  # fmt: skip
    left = functions - sum(1 for seat in seats for _ in seat.flat())
    ports = []
    for bus in range(left // 32 + 1):
        count = min(31, left - 32 * bus - 1)
        shares = (f"0001:{1 + bus:02x}:{n // 8:02x}.{n % 8}" for n in range(max(count, 0)))
        below = tuple(Function(address, "15b3:101e", 0x020000, driver="mlx5_core") for address in shares)
        if below:
            ports.append(port(f"0001:00:{bus % 32:02x}.{bus // 32}", *below))
    listed = (NvmlCard(card.address, uuid=n) for n, card in enumerate(cards))
    return Golden(functions=(*seats, *ports), nvml=nvml(*listed))


def packed(data: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode()}


def dump(document: Document) -> str:
    """JSON with one file, one link or one call of NVML on a line: what a diff should show."""

    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=True)

    def block(value: Any, indent: str) -> str:
        inner = indent + " "
        if isinstance(value, dict) and value:
            parts = [f"{inner}{line(key)}: {line(item)}" for key, item in value.items()]
            return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
        if isinstance(value, list) and value:
            return "[\n" + ",\n".join(f"{inner}{line(item)}" for item in value) + f"\n{indent}]"
        return line(value)

    parts = []
    for key, value in document.items():
        if key == "nvml":
            rest = "".join(f",\n  {line(name)}: {line(item)}" for name, item in value.items() if name != "calls")
            parts.append(f' "nvml": {{\n  "calls": {block(value["calls"], "  ")}{rest}\n }}')
        else:
            parts.append(f" {line(key)}: {block(value, ' ')}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def unpacked(content: Any) -> bytes:
    """Bytes of a file in a capture."""
    return base64.b64decode(content["base64"]) if isinstance(content, dict) else content.encode()


def as_tree(document: Document, root: Path) -> Path:
    """Write a capture's files, links and folders below a folder, as a machine's own tree."""
    for path in document["folders"]:
        (root / path[1:]).mkdir(parents=True, exist_ok=True)
    for path, content in document["files"].items():
        place = root / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(unpacked(content))
    for path, target in document["links"].items():
        place = root / path[1:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
    return root


def as_tar(tree: Path, prefix: str = "snapshot", mode: str = "gz") -> bytes:
    """Pack a tree under a folder's name."""
    packed_tree = io.BytesIO()
    with tarfile.open(fileobj=packed_tree, mode=f"w:{mode}") as archive:  # type: ignore[call-overload]
        archive.add(tree, prefix)
    return packed_tree.getvalue()


def captures() -> dict[str, str]:
    """Name of each golden machine to the text of its capture.json."""
    from machines.golden import MACHINES

    return {name: dump(make().capture()) for name, make in MACHINES.items()}


def main(wanted: Sequence[str]) -> None:
    made = captures()
    for name in wanted or made:
        place = FOLDER / name / "capture.json"
        place.parent.mkdir(exist_ok=True)
        place.write_text(made[name], "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
