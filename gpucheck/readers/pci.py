"""PCI functions from sysfs.

What is read, per function:

* every function: ids, class, driver and the bridge above it, from one file (``uevent``) and one
  resolved path per bus;
* bridges, displays, accelerators and NVSwitches: also NUMA node, link, BARs and the first 64 bytes
  of configuration space, which need no root; all but bridges: their IOMMU group; bridges: slot and
  link as the port sees them, which need root;
* GPUs and the bridges above them: also error counters; these bridges: access control, which needs
  root; GPUs: power state, and what the drivers of AMD and Intel tell (never serial numbers).

Left out on purpose: link, BARs and NUMA node of everything else (network, disks, the processor's
own registers: hundreds of functions on a server, and no question here is about them), and SR-IOV
virtual functions of GPUs, which are shares of a card and not cards. Only the kernel's view is read:
a card that the kernel never enumerated is not here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpucheck.displays import GPU_CLASSES, gpu_functions, is_nvswitch
from gpucheck.facts import (
    Bar,
    DriverReport,
    ErrorCounts,
    Gap,
    GapReason,
    Link,
    Parts,
    PciFunction,
    Window,
    pci_address,
)
from gpucheck.host import Host
from gpucheck.readers.config_space import PLAIN_BYTES, WHOLE_BYTES, access_control, port
from gpucheck.readers.gaps import not_read, reason_of, told
from gpucheck.text import clean, say
from gpucheck.topology import UNKNOWN_PARENT, path_to_root, tree

DEVICES = "/sys/bus/pci/devices"
DRIVERS = "/sys/bus/pci/drivers"
SLOTS = "/sys/bus/pci/slots"
CONFIG_BYTES = 64
"""The standard header: all of configuration space that the kernel shows without root."""

# Flags in the third column of ``resource`` (linux/ioport.h).
_IO = 0x100
_MEM = 0x200
_PREFETCH = 0x2000
_MEM_64 = 0x0010_0000
_DISABLED = 0x1000_0000
_UNSET = 0x2000_0000
_AFTER_ROM = 7
# The low bits of a BAR register, which the kernel keeps in the flags too (PCI 3.0, 6.2.5.1).
_REGISTER_64 = 0x4
_REGISTER_PREFETCH = 0x8

# --- parsing ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a function is; ``driver`` is None when none is bound, or when ``driver_read`` is False."""

    vendor_id: int
    device_id: int
    class_id: int
    subsystem_vendor_id: int | None = None
    subsystem_device_id: int | None = None
    driver: str | None = None
    driver_read: bool = True


def parse_uevent(text: str) -> Identity | None:
    """Identity from a function's ``uevent``; None when it lacks the ids or the class.

    The kernel writes a DRIVER line exactly when a driver is bound.
    """
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    try:
        vendor, device = (int(part, 16) for part in fields["PCI_ID"].split(":"))
        class_id = int(fields["PCI_CLASS"], 16)
    except (KeyError, ValueError):
        return None
    try:
        sub_vendor, sub_device = (int(part, 16) for part in fields["PCI_SUBSYS_ID"].split(":"))
    except (KeyError, ValueError):
        return Identity(vendor, device, class_id, driver=fields.get("DRIVER"))
    return Identity(vendor, device, class_id, sub_vendor, sub_device, fields.get("DRIVER"))


def parse_width(text: str) -> int | None:
    """Lanes; None for 0 (no link), 255 and ``Unknown`` (the kernel could not tell)."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) <= 32 else None


def parse_speed(text: str) -> float | None:
    """GT/s from ``8.0 GT/s PCIe``, ``8 GT/s`` or ``2.5 GT/s``; None for ``Unknown``."""
    match = re.match(r"\s*(\d+(?:\.\d+)?) GT/s", text)
    return float(match[1]) if match else None


def parse_bars(resource: str, config: bytes | None, *, bridge: bool = False) -> tuple[Bar, ...]:
    """Memory BARs from ``resource`` and the registers in configuration space.

    A BAR without an address shows in one of two ways: the kernel keeps its size and starts it at 0,
    or it wipes the line; then only the register's type bits tell that a 64-bit BAR exists, and its
    size is lost. A wiped 32-bit BAR can't be told from one that the device does not have.

    Raises:
        ValueError: the lines are not three numbers each.
    """
    count = 2 if bridge else 6
    bars: list[Bar] = []
    is_upper_half = False
    for index, line in enumerate(resource.splitlines()[:count]):
        start, end, flags = (int(word, 16) for word in line.split())
        if is_upper_half:
            is_upper_half = False
            continue
        if start == end == flags == 0:
            register = _register(config, index)
            if register & 0x7 == _REGISTER_64:
                prefetchable = bool(register & _REGISTER_PREFETCH)
                bars.append(Bar(index=index, bytes=None, assigned=False, is_64bit=True, prefetchable=prefetchable))
                is_upper_half = True
            continue
        if not flags & _MEM:
            continue
        is_upper_half = bool(flags & (_MEM_64 | _REGISTER_64))
        assigned = start > 0 and not flags & (_UNSET | _DISABLED)
        bars.append(
            Bar(
                index=index,
                bytes=end - start + 1 if end > start else None,
                assigned=assigned,
                is_64bit=is_upper_half,
                prefetchable=bool(flags & _PREFETCH),
                start=start if assigned else None,
            )
        )
    return tuple(bars)


def parse_errors(text: str, total: str) -> int | None:
    """The sum in one of the ``aer_dev_*`` files, such as ``TOTAL_ERR_COR 12``."""
    match = re.search(rf"^{total} (\d{{1,20}})$", text, re.MULTILINE)
    return int(match[1]) if match else None


def parse_windows(resource: str) -> tuple[Window, ...]:
    """Memory windows of a bridge from ``resource``: its last lines, how many depends on the kernel.

    Windows that are closed or got no address are left out.

    Raises:
        ValueError: the lines are not three numbers each.
    """
    windows: list[Window] = []
    for line in resource.splitlines()[_AFTER_ROM:]:
        start, end, flags = (int(word, 16) for word in line.split())
        if flags & _MEM and 0 < start < end and not flags & (_UNSET | _DISABLED):
            windows.append(Window(start=start, bytes=end - start + 1, prefetchable=bool(flags & _PREFETCH)))
    return tuple(windows)


def _register(config: bytes | None, index: int) -> int:
    """BAR register of that index; 0, which is what an absent BAR reads, when it was not read."""
    if config is None:
        return 0
    offset = 0x10 + 4 * index
    return int.from_bytes(config[offset : offset + 4], "little")


# --- reading ----------------------------------------------------------------------------------


def read(host: Host) -> Parts:
    """All PCI functions of a machine, by address.

    ``pci`` is None, with a gap, when the bus could not be looked at or no function on it could be
    read. A function without vendor, device or class is a gap and is left out.
    """
    try:
        names = host.names(DEVICES)
    except OSError as error:
        return Parts(origin=host.name, gaps=(not_read(host, "pci", DEVICES, error),))
    bus = _Bus(host, _physical_slots(host))
    functions: list[PciFunction] = []
    gaps: list[Gap] = []
    for name in names:
        try:
            function = bus.function(name)
        except (OSError, ValueError) as error:
            how = say("{path}: {error}", path=f"{DEVICES}/{name}", error=told(error))
            gaps.append(Gap(fact=clean(f"pci.{name}"), reason=reason_of(error), how=how))
        else:
            if function is not None:
                functions.append(function)
    if names and not functions:
        return Parts(origin=host.name, gaps=tuple(gaps))
    if bus.unplaced:
        how = say("{address} is no link into /sys/devices: the bridge above is not known.", address=bus.unplaced)
        gaps.append(Gap(fact="topology", reason="not-in-input", how=how))
    gpus = {gpu.address for gpu in gpu_functions(functions)}
    known = tree(functions)
    above = {bridge.address for gpu in gpus for bridge in path_to_root(gpu, known)}
    functions = [
        bus.gpu(function)
        if function.address in gpus
        else bus.bridge(function)
        if function.address in above
        else function
        for function in functions
    ]
    if host.is_root is False and any(bridge.acs is None for bridge in functions if bridge.address in above):
        how = say("The kernel shows the registers of bridges beyond the first 64 bytes to root: sudo gpucheck probe")
        gaps.append(Gap(fact="pci.bridges", reason="needs-root", how=how))
    for gpu in sorted(gpus):
        gaps += bus.gaps.get(gpu, ())
    return Parts(origin=host.name, pci=tuple(functions), gaps=tuple(gaps))


def _physical_slots(host: Host) -> dict[str, str]:
    """Slot name by ``dddd:bb:dd``, or by ``dddd:bb`` where the kernel knows only the bus."""
    try:
        names = host.names(SLOTS)
    except OSError:  # no hot-plug driver: most machines
        return {}
    slots: dict[str, str] = {}
    for name in names:
        try:
            slots[host.text(f"{SLOTS}/{name}/address").strip()] = name
        except OSError:
            continue
    return slots


@dataclass(slots=True)
class _Bus:
    """One pass over the bus: what its functions share, and the gaps found on the way."""

    host: Host
    slots: dict[str, str]
    parents: dict[str, str | None] = field(default_factory=dict)
    unplaced: str | None = None
    gaps: dict[str, list[Gap]] = field(default_factory=dict)
    """By address: only those of GPUs are reported."""

    def function(self, name: str) -> PciFunction | None:
        """Read one function; None for an SR-IOV share of a GPU. OSError or ValueError without identity."""
        address = pci_address(name)
        if address is None:
            raise ValueError(f"{name!r} is no PCI address")
        folder = f"{DEVICES}/{name}"
        identity = self.identity(folder)
        if max(identity.vendor_id, identity.device_id) > 0xFFFF or identity.class_id > 0xFFFFFF:
            raise ValueError("vendor, device or class is out of range")
        function = PciFunction(
            address=address,
            vendor_id=identity.vendor_id,
            device_id=identity.device_id,
            class_id=identity.class_id,
            subsystem_vendor_id=identity.subsystem_vendor_id,
            subsystem_device_id=identity.subsystem_device_id,
            driver=identity.driver,
            driver_read=identity.driver_read,
            parent=self.parent(folder, address),
            physical_slot=self.slots.get(address[:-2]) or self.slots.get(address[:-5]),
        )
        is_display = function.class_id >> 16 == 0x03 or function.class_id >> 8 in GPU_CLASSES
        if not (is_display or function.is_bridge or is_nvswitch(function)):
            return function
        if is_display and self.host.exists(f"{folder}/physfn"):
            return None
        return self.detailed(folder, function)

    def identity(self, folder: str) -> Identity:
        try:
            identity = parse_uevent(self.host.text(f"{folder}/uevent"))
        except OSError:
            identity = None
        if identity is not None:
            return identity
        driver, driver_read = self.driver(folder)
        return Identity(
            self.number(folder, "vendor"),
            self.number(folder, "device"),
            self.number(folder, "class"),
            self.optional_number(folder, "subsystem_vendor"),
            self.optional_number(folder, "subsystem_device"),
            driver,
            driver_read,
        )

    def driver(self, folder: str) -> tuple[str | None, bool]:
        """Name of the bound driver, and whether that could be read: a link that leads out of a
        dump says that there is one, not which. A dump without the drivers' folder has no such links."""
        try:
            return self.host.real(f"{folder}/driver").rpartition("/")[2], True
        except OSError:
            pass
        try:
            return None, "driver" not in self.host.names(folder) and self.host.exists(DRIVERS)
        except OSError:
            return None, False

    def number(self, folder: str, attribute: str) -> int:
        """A number with its base (``0x10de``). OSError; ValueError names the attribute."""
        text = self.host.text(f"{folder}/{attribute}")
        try:
            return int(text, 0)
        except ValueError:
            raise ValueError(f"{attribute} is {text.strip()[:20]!r}") from None

    def optional_number(self, folder: str, attribute: str) -> int | None:
        try:
            return self.number(folder, attribute)
        except (OSError, ValueError):
            return None

    def parent(self, folder: str, address: str) -> str | None:
        """Bridge above, as :attr:`PciFunction.parent` says it. One bus hangs on one bridge, so one
        resolved path serves all its functions."""
        bus = address[:-5]
        if bus not in self.parents:
            try:
                path = self.host.real(folder)
            except OSError:
                path = folder
            if path.startswith(f"{DEVICES}/"):
                self.unplaced = address
                return UNKNOWN_PARENT
            self.parents[bus] = pci_address(path.split("/")[-2])
        return self.parents[bus]

    def detailed(self, folder: str, function: PciFunction) -> PciFunction:
        """The same function with NUMA node, link, BARs and what configuration space says."""
        address = function.address
        config = self.config(folder, address, PLAIN_BYTES if function.is_bridge else CONFIG_BYTES)
        node = self.optional_number(folder, "numa_node")
        if node is None or node < 0:
            node = None
            how = say("{path} names none: firmware does not say.", path=f"{folder}/numa_node")
            self.note(address, "numa_node", "not-supported", how)
        if not function.driver_read:
            how = say("Neither {folder}/uevent nor the link {folder}/driver tells.", folder=folder)
            self.note(address, "driver", "not-in-input", how)
        boot_vga = self.optional_number(folder, "boot_vga")
        return function.model_copy(
            update={
                "numa_node": node,
                "iommu_group": None if function.is_bridge else self.iommu_group(folder),
                "port": port(config) if function.is_bridge and config is not None else None,
                "link": self.link(folder, address),
                **self.regions(folder, function, config),
                "boot_vga": None if boot_vga is None else boot_vga == 1,
                "config_dead": None if config is None else self.is_dead(config, function),
            }
        )

    def is_dead(self, config: bytes, function: PciFunction) -> bool | None:
        """No device has the vendor ffff: it is what reads where nothing answers."""
        vendor = int.from_bytes(config[:2], "little")
        if vendor in (0xFFFF, 0, function.vendor_id):
            return vendor == 0xFFFF
        how = say(
            "Configuration space says vendor {config:04x}, uevent {kernel:04x}.",
            config=vendor,
            kernel=function.vendor_id,
        )
        self.note(function.address, "config_dead", "contradiction", how)
        return None

    def bridge(self, function: PciFunction) -> PciFunction:
        """A bridge above a GPU with its error counters and access control."""
        folder = f"{DEVICES}/{function.address}"
        try:
            acs = access_control(self.host.read(f"{folder}/config", WHOLE_BYTES))
        except OSError:
            acs = None
        return function.model_copy(update={"errors": self.errors(folder), "acs": acs})

    def gpu(self, function: PciFunction) -> PciFunction:
        """A GPU with its error counters, power state, IOMMU domain and what its driver tells."""
        folder = f"{DEVICES}/{function.address}"
        # After configuration space: reading that wakes a card that can be woken.
        power_state = self.line(f"{folder}/power_state")
        dead = function.config_dead
        if dead and power_state == "D3cold":
            dead = None
            how = say("The kernel says D3cold: the card sleeps, or it is gone. Use it (nvidia-smi), and look again.")
            self.note(function.address, "config_dead", "not-supported", how)
        domain = None
        if function.iommu_group is not None:
            domain = self.line(f"/sys/kernel/iommu_groups/{function.iommu_group}/type")
        return function.model_copy(
            update={
                "errors": self.errors(folder),
                "power_state": power_state,
                "config_dead": dead,
                "iommu_domain": domain,
                "report": self.report(folder) if function.driver in ("amdgpu", "i915", "xe") else None,
            }
        )

    def line(self, path: str) -> str | None:
        try:
            return clean(self.host.text(path)) or None
        except OSError:
            return None

    def errors(self, folder: str) -> ErrorCounts | None:
        counts = ErrorCounts(
            correctable=self.total(f"{folder}/aer_dev_correctable", "TOTAL_ERR_COR"),
            nonfatal=self.total(f"{folder}/aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"),
            fatal=self.total(f"{folder}/aer_dev_fatal", "TOTAL_ERR_FATAL"),
        )
        return None if counts == ErrorCounts() else counts

    def total(self, path: str, name: str) -> int | None:
        try:
            return parse_errors(self.host.text(path), name)
        except OSError:
            return None

    def report(self, folder: str) -> DriverReport:
        return DriverReport(
            product_name=self.line(f"{folder}/product_name"),
            vram_bytes=self.optional_number(folder, "mem_info_vram_total") or None,
            busy_percent=self.optional_number(folder, "gpu_busy_percent"),
            power_cap_watts=self.power_cap(f"{folder}/hwmon"),
        )

    def power_cap(self, folder: str) -> float | None:
        """Watts; the files hold microwatts, and 0 where there is no limit."""
        try:
            names = self.host.names(folder)
        except OSError:
            return None
        for name in names:
            for limit in ("power1_cap", "power1_max"):  # amdgpu; i915 and xe
                if microwatts := self.optional_number(f"{folder}/{name}", limit):
                    return microwatts / 1e6
        return None

    def note(self, address: str, fact: str, reason: GapReason, how: str) -> None:
        gap = Gap(fact=f"gpus.{address}.{fact}", reason=reason, how=how)
        self.gaps.setdefault(address, []).append(gap)

    def iommu_group(self, folder: str) -> int | None:
        """None without an IOMMU: then there is no link."""
        try:
            name = self.host.real(f"{folder}/iommu_group").rpartition("/")[2]
        except OSError:
            return None
        return int(name) if name.isdigit() else None

    def config(self, folder: str, address: str, limit: int) -> bytes | None:
        path = f"{folder}/config"
        try:
            config = self.host.read(path, limit)
        except OSError as error:
            how = say("{path}: {error}", path=path, error=told(error))
            self.note(address, "config_dead", reason_of(error), how)
            return None
        if len(config) < CONFIG_BYTES:
            how = say("{path} holds {count} bytes of {needed}.", path=path, count=len(config), needed=CONFIG_BYTES)
            self.note(address, "config_dead", "unreadable", how)
            return None
        return config

    def link(self, folder: str, address: str) -> Link:
        texts: dict[str, str] = {}
        for name in ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed"):
            try:
                texts[name] = self.host.text(f"{folder}/{name}")
            except OSError:
                continue
        link = Link(
            width=parse_width(texts.get("current_link_width", "")),
            max_width=parse_width(texts.get("max_link_width", "")),
            speed_gts=parse_speed(texts.get("current_link_speed", "")),
            max_speed_gts=parse_speed(texts.get("max_link_speed", "")),
        )
        if not texts:
            how = say("{folder} has no link attributes: no PCI Express, or a kernel before 4.13.", folder=folder)
            self.note(address, "link", "file-absent", how)
        elif link.width is None or link.max_width is None:
            how = say("{folder}: the kernel does not know the link.", folder=folder)
            self.note(address, "link", "not-supported", how)
        return link

    def regions(self, folder: str, function: PciFunction, config: bytes | None) -> dict[str, object]:
        """``bars``, and of a bridge ``windows``; nothing where they were not read."""
        path = f"{folder}/resource"
        try:
            text = self.host.text(path)
            bars = parse_bars(text, config, bridge=function.is_bridge)
            return {"bars": bars, "windows": parse_windows(text) if function.is_bridge else None}
        except (OSError, ValueError) as error:
            how = say("{path}: {error}", path=path, error=told(error))
            self.note(function.address, "bars", reason_of(error), how)
            return {}
