"""What was read from a machine. No opinions here.

``None`` always means *not read*; the reason stands in :attr:`Machine.gaps`. An empty tuple means
that the place was looked at and held nothing.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gpucheck.text import Text

_ADDRESS = re.compile(
    r"(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.(?P<function>[0-7]))?",
    re.IGNORECASE,
)


def pci_address(text: str) -> str | None:
    """Normalise a PCI address to ``dddd:bb:dd.f``, lower case, domain of 4 to 8 digits.

    Accepts what lspci, NVML (``00000000:4F:00.0``), NVRM (``PCI:0000:9b:00``) and SMBIOS write.
    Returns None for anything else.
    """
    match = _ADDRESS.fullmatch(text.strip().removeprefix("PCI:").removeprefix("pci:"))
    if match is None:
        return None
    domain = int(match["domain"] or "0", 16)
    return f"{domain:04x}:{match['bus']}:{match['device']}.{match['function'] or '0'}".lower()


def address_order(address: str) -> tuple[int, str]:
    """Sort key of a normalised PCI address: domains are numbers of different length."""
    domain, _, rest = address.partition(":")
    return int(domain, 16), rest


SPEED_GTS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""PCIe generation, which is also the code in a link's registers, to GT/s per lane."""


def swapped_uuid(uuid: str) -> str:
    """The UUID with the bytes of its first three groups in the other order, as some BMCs give it.

    The groups are set apart by dashes; anything else comes back as it is.
    """
    groups = uuid.split("-")
    if len(groups) != 5:
        return uuid
    return "-".join(["".join(reversed(re.findall("..", group))) for group in groups[:3]] + groups[3:])


class Fact(BaseModel):
    """Base of everything that was read: immutable, and strict about its own keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


GapReason = Literal[
    "needs-root",
    "file-absent",
    "tool-absent",
    "timed-out",
    "not-supported",
    "in-container",
    "not-in-input",
    "not-requested",
    "unreadable",
    "contradiction",
]


class Gap(Fact):
    """Something that was not read, why, and how to read it."""

    fact: str
    """Dotted name of the fact, such as ``slots`` or ``gpus.0000:04:00.0.link``."""
    reason: GapReason
    how: Text
    """The exact command or step that fills the gap, or what is known about it."""


class System(Fact):
    """Identity, from SMBIOS types 0 to 3. Placeholders such as ``To Be Filled By O.E.M.`` are None."""

    vendor: Text | None = None
    product: Text | None = None
    version: Text | None = None
    sku: Text | None = None
    board_vendor: Text | None = None
    board: Text | None = None
    chassis: Text | None = None
    bios_vendor: Text | None = None
    bios_version: Text | None = None
    bios_date: Text | None = None
    uuid: Text | None = Field(default=None, exclude=True)
    """Only to tell two machines apart; never shown."""


class CpuSocket(Fact):
    """One SMBIOS type 4 record, or one package the kernel shows where SMBIOS was not read."""

    designation: Text
    populated: bool | None
    """Bit 6 of the Status byte; nothing else in the record of an empty socket can be trusted."""
    model: Text | None = None
    status: Text | None = None
    """``enabled``, ``idle``, ``disabled-by-bios``, ``disabled-by-user`` or ``unknown``."""
    tdp_watts: int | None = None
    """Of the CPU in it, where the BMC tells."""


class Slot(Fact):
    """One SMBIOS type 9 record, unfiltered."""

    designation: Text
    in_use: bool | None
    """None where the firmware says Unknown, Other, Unavailable or a value out of the standard."""
    lanes: int | None = None
    """Data lanes as the firmware says; some firmware gives the width in use of an occupied slot."""
    connector: int | None = None
    """Lanes of the mechanical connector."""
    gen: int | None = None
    length: Text | None = None
    socket: Text | None = None
    """Designation of the CPU socket that owns the slot, where it is known."""
    address: Text | None = None
    """PCI address as SMBIOS gives it: the card, its root port or a bridge; None for ``ff`` and
    ``00:00.0``, which mean that firmware assigned none."""


class Psu(Fact):
    """One SMBIOS type 39 record (or FRU or Redfish unit)."""

    location: Text | None = None
    model: Text | None = None
    part: Text | None = None
    manufacturer: Text | None = None
    watts: int | None = None
    """Rated output at 200-240 V; 0, 75 and 65535 in the firmware mean that it does not know."""
    present: bool | None = None
    plugged: bool | None = None
    """Has mains. None for a unit that is not present."""
    failed: bool | None = None
    """What the BMC says of a unit that is present; None where nobody says, or where it only lacks mains."""


class Power(Fact):
    """What the BMC says of the power of the whole machine."""

    redundancy: Literal["full", "lost", "none"] | None = None
    """``none``: not set up, or only one unit by design."""
    redundancy_text: Text | None = None
    """How the BMC words it."""
    drawn_watts: float | None = None
    """Draw of the whole machine at that moment."""


class OnboardDevice(Fact):
    """One SMBIOS type 41 record."""

    designation: Text
    kind: Text | None = None
    enabled: bool | None = None
    address: Text | None = None


class MemoryDevice(Fact):
    """One populated SMBIOS type 17 record."""

    locator: Text
    bytes: int


class Link(Fact):
    """PCIe link of one function. Widths in lanes, speeds in GT/s per lane.

    ``max_*`` is what this device advertises, not what its slot can do.
    """

    width: int | None = None
    max_width: int | None = None
    speed_gts: float | None = None
    max_speed_gts: float | None = None


class ErrorCounts(Fact):
    """Errors of one function's link since the boot, as advanced error reporting (AER) counts them."""

    correctable: int | None = None
    nonfatal: int | None = None
    fatal: int | None = None


class Port(Fact):
    """What a root port or switch port says of the slot below it."""

    presence: bool
    """Something is plugged in."""
    link_active: bool
    link_disabled: bool
    power_off: bool
    """The port holds the slot's power off."""


class DriverReport(Fact):
    """What the kernel drivers of AMD and Intel tell of a card in sysfs."""

    product_name: Text | None = None
    vram_bytes: int | None = None
    busy_percent: int | None = None
    power_cap_watts: float | None = None


class Bar(Fact):
    """One memory BAR. ``bytes`` is None when firmware and kernel left no size behind."""

    index: int
    bytes: int | None
    assigned: bool
    is_64bit: bool | None = None
    prefetchable: bool | None = None
    start: int | None = Field(default=None, exclude=True)


class Window(Fact):
    """One memory window of a bridge: what it hands on to the devices behind it."""

    start: int
    bytes: int
    prefetchable: bool


class PciFunction(Fact):
    """One function on the PCI bus, as the kernel enumerated it."""

    address: Text
    vendor_id: int
    device_id: int | None
    """None where a listing gives names only."""
    name: Text | None = None
    """Name in a listing, where one was read: vendor and product as the list of PCI ids has them."""
    subsystem_vendor_id: int | None = None
    subsystem_device_id: int | None = None
    class_id: int
    """24 bits: class, subclass, programming interface, such as 0x030200 for a 3D controller."""
    parent: Text | None = None
    """Address of the bridge above; None directly under a root bus; ``?`` where the source does not tell."""
    driver: Text | None = None
    driver_read: bool = True
    """False where the source cannot say whether a driver is bound (then ``driver`` is None)."""
    numa_node: int | None = None
    """None also where the kernel says -1."""
    iommu_group: int | None = None
    iommu_domain: Text | None = None
    """``identity``: addresses pass the IOMMU as they are; ``DMA`` and ``DMA-FQ``: it translates them."""
    link: Link = Link()
    errors: ErrorCounts | None = None
    """Of GPUs and the bridges above them; None also where the device or the kernel does not count."""
    port: Port | None = None
    """Of ports with a slot that can tell whether their link is up; None: not read, or no such port."""
    acs: tuple[Text, ...] | None = None
    """Access control services that are on in a bridge above a GPU (``ReqRedir``); None: not read."""
    bars: tuple[Bar, ...] | None = None
    """None: not read."""
    windows: tuple[Window, ...] | None = None
    """Memory windows of a bridge that have an address; None: not read, or no bridge."""
    boot_vga: bool | None = None
    config_dead: bool | None = None
    """Configuration space reads all ones: the device no longer answers. None for one that sleeps."""
    power_state: Text | None = None
    """``D0`` to ``D3hot``; ``D3cold``: the power of a sleeping device is off."""
    report: DriverReport | None = None
    physical_slot: Text | None = None
    """Slot number of the hot-plug port (/sys/bus/pci/slots), where the kernel has one."""

    @property
    def pci_id(self) -> str | None:
        """Vendor and device, such as ``10de:1b38``."""
        return None if self.device_id is None else f"{self.vendor_id:04x}:{self.device_id:04x}"

    @property
    def subsystem_id(self) -> str | None:
        """Subsystem vendor and device, such as ``10de:11d9``."""
        if self.subsystem_vendor_id is None or self.subsystem_device_id is None:
            return None
        return f"{self.subsystem_vendor_id:04x}:{self.subsystem_device_id:04x}"

    @property
    def is_bridge(self) -> bool:
        """PCI-to-PCI bridge: root port, switch port or the bridge on a two-GPU card."""
        return self.class_id >> 8 == 0x0604


class NvmlGpu(Fact):
    """One device that NVML listed. Every value is optional; ``errors`` keeps the return codes."""

    index: int
    address: Text | None = None
    name: Text | None = None
    uuid: Text | None = None
    minor: int | None = None
    pci_id: Text | None = None
    subsystem_id: Text | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    bar1_bytes: int | None = None
    compute_capability: Text | None = None
    vbios: Text | None = None
    link: Link = Link()
    """``max_*``: the most that card and system allow together, NVIDIA says; its width is often the card's own."""
    temperature_c: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    power_default_limit_watts: float | None = None
    power_max_limit_watts: float | None = None
    performance_state: int | None = None
    utilization_percent: int | None = None
    sm_clock_mhz: int | None = None
    sm_max_clock_mhz: int | None = None
    clock_reasons: tuple[Text, ...] | None = None
    """Why the clocks are not higher just now: ``idle``, ``applications-clocks``, ``sw-power-cap``,
    ``hw-slowdown``, ``sync-boost``, ``sw-thermal``, ``hw-thermal``, ``hw-power-brake``,
    ``display-clocks``, or the bit itself (``0x200``) where it has no name here."""
    ecc_enabled: bool | None = None
    ecc_volatile_corrected: int | None = None
    """Volatile: since the driver was loaded. Aggregate: in the card's life."""
    ecc_volatile_uncorrected: int | None = None
    ecc_aggregate_corrected: int | None = None
    ecc_aggregate_uncorrected: int | None = None
    retired_pages_single_bit: int | None = None
    """Memory pages taken out of use, cards before Ampere."""
    retired_pages_double_bit: int | None = None
    retired_pages_pending: bool | None = None
    remapped_rows_corrected: int | None = None
    """Memory rows replaced by spare ones, Ampere and later."""
    remapped_rows_uncorrected: int | None = None
    remapped_rows_pending: bool | None = None
    remapped_rows_failed: bool | None = None
    mig_enabled: bool | None = None
    mig_devices: int | None = None
    """MIG devices (compute instances) on the card; None also where MIG is off."""
    fabric_state: Literal["not-supported", "not-started", "in-progress", "completed"] | None = None
    """Registration with the NVLink fabric (NVSwitch machines)."""
    persistence: bool | None = None
    pcie_replays: int | None = None
    processes: tuple[int, ...] | None = None
    """Process ids with a compute context."""
    errors: dict[str, int] = {}
    """NVML function name to its return code, for calls that failed on this device."""


NVIDIA_SMI = "nvidia-smi"
"""What stands for the NVML function where only that program's words are known."""


class Nvml(Fact):
    """NVML as a whole. ``gpus`` is None when it could not start, or hung before it had counted the cards."""

    status: Literal["ok", "library-absent", "failed", "timed-out"]
    call: Text | None = None
    """The NVML function that failed or hung; :data:`NVIDIA_SMI` where the text of that program tells."""
    code: int | None = None
    """nvmlReturn_t of that call: 9 driver not loaded, 18 driver/library mismatch, 15 GPU is lost."""
    message: Text | None = None
    driver_version: Text | None = None
    nvml_version: Text | None = None
    cuda_version: Text | None = None
    gpus: tuple[NvmlGpu, ...] | None = None
    complete: bool = True
    """False where ``gpus`` is an excerpt: a card that is not in it may be listed all the same."""


class Driver(Fact):
    """Kernel drivers for GPUs: what is loaded, what is installed, what /dev shows."""

    loaded_modules: tuple[Text, ...] | None = None
    """Of nvidia, nvidia_uvm, nvidia_modeset, nvidia_drm, nouveau, vfio_pci, amdgpu, radeon, i915, xe,
    ast, mgag200: those that /proc/modules (or /sys/module) lists."""
    nvidia_version: Text | None = None
    """Version of the loaded module (/proc/driver/nvidia/version, /sys/module/nvidia/version)."""
    nvidia_flavour: Literal["open", "proprietary"] | None = None
    nvidia_module_installed: bool | None = None
    """An nvidia.ko for the running kernel lies in /lib/modules."""
    library_versions: tuple[Text, ...] | None = None
    """Versions of the libnvidia-ml.so files on disk; empty when none was found."""
    device_files: tuple[Text, ...] | None = None
    """/dev/nvidia0 and so on, without nvidiactl, nvidia-uvm and nvidia-modeset."""
    kernel_release: Text | None = None
    kernel_command_line: Text | None = None
    """The options that decide what becomes of a card (``pci=``, ``iommu=``, ``vfio-pci.ids=``, ``nomodeset``, those
    of GPU modules), and no others."""
    efi_boot: bool | None = None
    secure_boot: bool | None = None
    """Whether the firmware checks signatures, and so the kernel those of its modules; False on legacy boot."""
    module_kernels: tuple[Text, ...] | None = None
    """Other kernels in /lib/modules with an NVIDIA module; looked for only where the running kernel has
    none and the user library is there."""
    blacklisted_modules: tuple[Text, ...] | None = None
    """Of nvidia and nouveau: those that a file in /etc/modprobe.d keeps from being loaded by themselves."""
    fabric_manager_running: bool | None = None
    """Of NVIDIA's fabric manager, which sets up the NVSwitches of a baseboard with eight or more GPUs."""


class Cpu(Fact):
    """The processors as the kernel sees them."""

    model: Text | None = None
    packages: int | None = None
    """Physical packages that are on line."""
    numa_nodes: int | None = None
    logical_cpus: int | None = None
    physical_address_bits: int | None = None
    has_avx: bool | None = None
    hypervisor: Text | None = None
    """Name of the hypervisor or ``unknown`` when only the CPU flag tells; None on bare metal or
    where it was not read (then a gap says so)."""


class KernelLog(Fact):
    """The kernel's messages of this boot, continuation lines joined to their first line."""

    source: Literal["dmesg", "kmsg", "journal", "file"]
    lines: tuple[str, ...]
    """Cleaned lines without time stamp and priority."""
    complete: bool
    """False when the first lines of the boot are gone from the ring buffer."""
    earlier: tuple[str, ...] = ()
    """What the NVIDIA driver said of faults (Xid, fallen off the bus, failed start) in earlier boots, where
    the source holds them; each line once. They tell a card's history, never its state."""


class Environment(Fact):
    """What surrounds the process and can hide cards from it, or change what TensorFlow does."""

    variables: dict[str, Text] | None = None
    """The variables that :data:`gpucheck.readers.environment.WANTED` names, those that are set. Of
    ``TF_CONFIG`` and ``KUBERNETES_SERVICE_HOST`` only that they are (the value is ``set``), of
    ``LD_LIBRARY_PATH`` only folders of CUDA and NVIDIA."""
    variables_complete: bool = True
    """False where ``variables`` is an excerpt: one that is not in it may be set all the same."""
    container: Literal["docker", "podman", "kubernetes", "lxc", "other"] | None = None
    """Kind of container; None where no engine left a mark."""
    device_rules: tuple[Text, ...] | None = None
    """What cgroup version 1 lets a container open of /dev, as far as it is about all devices or
    NVIDIA's (``c 195:0 rwm``). Version 2 keeps a program in the kernel that only root can read."""

    def get(self, name: str) -> str | None:
        """Value of a variable; None where it is not set, or variables were not read."""
        return None if self.variables is None else self.variables.get(name)


class Package(Fact):
    """One installed Python package."""

    name: Text
    """Normalised: lower case, words joined by ``-``."""
    version: Text


class TensorFlowBuild(Fact):
    """What TensorFlow's own build information says. None: the key is not in it."""

    cuda: bool | None = None
    rocm: bool | None = None
    cuda_version: Text | None = None
    cudnn_version: Text | None = None
    compute_capabilities: tuple[Text, ...] | None = None
    """``sm_60``: machine code for 6.0; ``compute_90``: machine code and PTX for 9.0."""


class Software(Fact):
    """TensorFlow, Keras and the CUDA libraries that one Python finds."""

    python: Text | None = None
    """Version of the Python that was looked at, such as ``3.11.7``."""
    folders: tuple[Text, ...] | None = None
    """Its folders of packages."""
    packages: tuple[Package, ...] | None = None
    """Of TensorFlow, Keras and NVIDIA; empty when none is installed."""
    packages_complete: bool = True
    """False where ``packages`` is an excerpt."""
    build: TensorFlowBuild | None = None
    libraries: tuple[Text, ...] | None = None
    """File names of CUDA libraries in the system's folders and in LD_LIBRARY_PATH."""

    def version(self, *names: str) -> str | None:
        """Version of the first of these packages that is installed."""
        known = {package.name: package.version for package in self.packages or ()}
        return next((known[name] for name in names if name in known), None)


class TensorFlowLog(Fact):
    """What TensorFlow printed when it started, without time stamps; continuation lines joined."""

    lines: tuple[Text, ...]


class Parts(Fact):
    """What one reader or one dump brought: every field optional. ``assemble`` joins them."""

    origin: str = ""
    """For messages: the file, or ``this machine``."""
    system: System | None = None
    cpu_sockets: tuple[CpuSocket, ...] | None = None
    slots: tuple[Slot, ...] | None = None
    psus: tuple[Psu, ...] | None = None
    power: Power | None = None
    bmc_events: tuple[Text, ...] | None = None
    firmware_settings: dict[Text, Text] | None = None
    onboard: tuple[OnboardDevice, ...] | None = None
    memory_devices: tuple[MemoryDevice, ...] | None = None
    memory_bytes: int | None = None
    cpu: Cpu | None = None
    pci: tuple[PciFunction, ...] | None = None
    pci_complete: bool = True
    """False where ``pci`` is an excerpt: a device that is not in it may be there all the same."""
    redacted: bool = False
    """UUIDs are stand-ins: they tell cards apart, and say nothing to another source."""
    nvml: Nvml | None = None
    topology: Topology | None = None
    """As a tool printed it, for pairs of which the tree of ``pci`` does not tell. Where that text has no
    addresses, NVML's indexes stand in their place until a list of NVML is joined."""
    driver: Driver | None = None
    kernel_log: KernelLog | None = None
    environment: Environment | None = None
    software: Software | None = None
    tensorflow_log: TensorFlowLog | None = None
    hosts: frozenset[str] = Field(default=frozenset(), exclude=True, repr=False)
    """Names that a text gives its host: only to tell two machines apart, never shown."""
    gaps: tuple[Gap, ...] = ()


class Gpu(Fact):
    """One GPU function, joined by PCI address from config space, NVML, SMBIOS and the catalog."""

    address: Text
    """``nvml:2`` for a device that NVML counts without an address and that PCI does not show."""
    vendor: Literal["nvidia", "amd", "intel", "other"]
    name: Text | None = None
    pci_id: Text | None = None
    subsystem_id: Text | None = None
    catalog_gpu: str | None = None
    """Catalog id; None where it is not in the catalog or the PCI id fits several cards."""
    card: Text | None = None
    """Address of the bridge that two GPUs of one card share (K80); None for one GPU a card."""
    driver: Text | None = None
    driver_read: bool = True
    numa_node: int | None = None
    iommu_group: int | None = None
    iommu_domain: Text | None = None
    socket: Text | None = None
    slot: Text | None = None
    link: Link = Link()
    """Where the card meets its slot: of an AMD or Intel card the upper end of the switch on it."""
    port_link: Link | None = None
    """The link as the port above the card sees it: ``max_*`` is what the slot can do."""
    bars: tuple[Bar, ...] | None = None
    config_dead: bool | None = None
    power_state: Text | None = None
    errors: ErrorCounts | None = None
    report: DriverReport | None = None
    on_pci: bool | None = None
    """False: NVML lists it but PCI does not; None: PCI was not looked at."""
    nvml: NvmlGpu | None = None


class Topology(Fact):
    """How far apart each pair of GPUs is. Classes as ``nvidia-smi topo -m`` names them: X itself,
    PIX one bridge, PXB several bridges, PHB the host bridge, NODE one NUMA node, SYS across CPU
    sockets, NV# so many NVLinks (only where that tool said so); ``?`` where it was not read."""

    addresses: tuple[Text, ...] = ()
    matrix: tuple[tuple[str, ...], ...] = ()


class Machine(Fact):
    """Everything that was read, joined. The ``machine`` key of ``gpucheck/probe/1``."""

    system: System | None = None
    catalog_model: str | None = None
    cpu_sockets: tuple[CpuSocket, ...] | None = None
    cpu: Cpu | None = None
    slots: tuple[Slot, ...] | None = None
    psus: tuple[Psu, ...] | None = None
    power: Power | None = None
    firmware_settings: dict[Text, Text] | None = None
    """Settings of the BIOS that decide what becomes of a card, as the BMC names them: address space,
    SR-IOV, IOMMU, boot mode, slots."""
    memory_bytes: int | None = None
    gpus: tuple[Gpu, ...] | None = None
    topology: Topology = Topology()
    driver: Driver | None = None
    nvml: Nvml | None = None
    environment: Environment | None = None
    software: Software | None = None
    gaps: tuple[Gap, ...] = ()
    redacted: bool = False
    """UUIDs are stand-ins, as in a capture: they compare with those of the same machine's captures only."""
    pci: tuple[PciFunction, ...] | None = Field(default=None, exclude=True)
    pci_complete: bool = Field(default=True, exclude=True)
    """As in :class:`Parts`: what is not listed is not gone."""
    kernel_log: KernelLog | None = Field(default=None, exclude=True)
    tensorflow_log: TensorFlowLog | None = Field(default=None, exclude=True)
    bmc_events: tuple[Text, ...] | None = Field(default=None, exclude=True)
    """Lines of the BMC's event log, as ``ipmitool sel`` prints them."""
    onboard: tuple[OnboardDevice, ...] | None = Field(default=None, exclude=True)


class Expected(Fact):
    """How many GPUs there should be, and who says so."""

    n: int
    origin: Text


class Counts(Fact):
    """GPU functions on four levels, without the BMC's, a hypervisor's or the CPU's own graphics.
    Each is None where that level was not looked at or could not start; PCI also where a function that is listed
    there could not be read."""

    pci: int | None = None
    device_files: int | None = None
    nvml: int | None = None
    tensorflow: int | None = None
    expected: Expected | None = None
