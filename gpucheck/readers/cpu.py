"""Processors, NUMA nodes, memory and the hypervisor, as the kernel shows them.

Only processors that are on line are seen. How many sockets a board has, and which are empty, is
SMBIOS's to tell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpucheck.facts import Cpu, Gap, Parts
from gpucheck.host import Host
from gpucheck.readers.gaps import not_read
from gpucheck.text import say

CPUINFO = "/proc/cpuinfo"
MEMINFO = "/proc/meminfo"
NODES = "/sys/devices/system/node"
VENDOR = "/sys/class/dmi/id/sys_vendor"

HYPERVISORS: dict[str, str] = {
    "qemu": "QEMU",
    "red hat": "KVM",
    "vmware": "VMware",
    "xen": "Xen",
    "innotek gmbh": "VirtualBox",
    "parallels": "Parallels",
    "nutanix": "Nutanix AHV",
    "openstack": "OpenStack",
    "microsoft corporation": "Hyper-V",
    "amazon ec2": "Amazon EC2",
    "google": "Google Compute Engine",
    "alibaba cloud": "Alibaba Cloud",
    "tencent cloud": "Tencent Cloud",
    "digitalocean": "DigitalOcean",
    "hetzner": "Hetzner Cloud",
}
"""Start of the SMBIOS system vendor to hypervisor or cloud. Several of them also make hardware or
rent whole machines, so a name counts only where the processor says that it is virtual."""

_ONLY_VIRTUAL = frozenset({"qemu", "vmware", "xen", "innotek gmbh", "parallels", "openstack"})


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """What /proc/cpuinfo says. Fields that an architecture does not have are None."""

    model: str | None
    logical_cpus: int
    packages: int | None
    physical_address_bits: int | None
    flags: frozenset[str] | None


def parse_cpuinfo(text: str) -> CpuInfo:
    """Parse /proc/cpuinfo of x86, Arm or POWER. ValueError when it lists no processor."""
    logical_cpus = len(re.findall(r"^processor\s*:\s*\d+$", text, re.MULTILINE))
    if not logical_cpus:
        raise ValueError("no processor in it")
    packages = set(re.findall(r"^physical id\s*:\s*(\d+)$", text, re.MULTILINE))
    model = _first(r"^(?:model name|cpu)\s*:\s*(\S.*)$", text)
    bits = _first(r"^address sizes\s*:\s*(\d+) bits physical", text)
    flags = _first(r"^flags\s*:\s*(.*)$", text)
    return CpuInfo(
        model=model,
        logical_cpus=logical_cpus,
        packages=len(packages) or None,
        physical_address_bits=int(bits) if bits else None,
        flags=None if flags is None else frozenset(flags.split()),
    )


def _first(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1].strip() if match else None


def parse_meminfo(text: str) -> int:
    """Bytes of memory that the kernel manages, a little less than is fitted. ValueError without it."""
    kib = _first(r"^MemTotal:\s*(\d+) kB$", text)
    if kib is None:
        raise ValueError("no MemTotal in it")
    return int(kib) * 1024


def count_list(text: str) -> int:
    """Members of a kernel list such as ``0-3,8``. ValueError for an empty one and for anything else.

    Kernels before 3.x end it with a zero byte.
    """
    count = 0
    for piece in text.strip(" \n\0").split(","):
        first, _, last = piece.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def read(host: Host) -> Parts:
    """``cpu`` and ``memory_bytes`` of a machine. On a live system without /proc (macOS, Windows)
    counts and memory come from psutil."""
    gaps: list[Gap] = []
    info: CpuInfo | None = None
    try:
        info = parse_cpuinfo(host.text(CPUINFO))
    except (OSError, ValueError) as error:
        gaps.append(not_read(host, "cpu", CPUINFO, error))
    memory: int | None = None
    try:
        memory = parse_meminfo(host.text(MEMINFO))
    except (OSError, ValueError) as error:
        if (memory := _psutil_memory(host)) is None:
            gaps.append(not_read(host, "memory_bytes", MEMINFO, error))
    nodes = _numa_nodes(host, gaps)
    if info is None:
        logical = _psutil_cpus(host)
        known = logical is not None or nodes is not None
        cpu = Cpu(logical_cpus=logical, numa_nodes=nodes) if known else None
        return Parts(origin=host.name, cpu=cpu, memory_bytes=memory, gaps=tuple(gaps))
    for fact, value in (
        ("model", info.model),
        ("packages", info.packages),
        ("physical_address_bits", info.physical_address_bits),
        ("has_avx", info.flags),
    ):
        if value is None:
            how = say("{path} does not say it on this kind of processor.", path=CPUINFO)
            gaps.append(Gap(fact=f"cpu.{fact}", reason="not-supported", how=how))
    cpu = Cpu(
        model=info.model,
        packages=info.packages,
        numa_nodes=nodes,
        logical_cpus=info.logical_cpus,
        physical_address_bits=info.physical_address_bits,
        has_avx=None if info.flags is None else "avx" in info.flags,
        hypervisor=_hypervisor(host, info.flags, gaps),
    )
    return Parts(origin=host.name, cpu=cpu, memory_bytes=memory, gaps=tuple(gaps))


def _numa_nodes(host: Host, gaps: list[Gap]) -> int | None:
    """NUMA nodes that hold processors: memory of GPUs can be a node too (POWER9, Grace)."""
    path = f"{NODES}/has_cpu"
    try:
        return count_list(host.text(path))
    except (OSError, ValueError) as error:
        problem = error
    try:
        nodes = [name for name in host.names(NODES) if re.fullmatch(r"node\d+", name)]
    except OSError:
        nodes = []
    if nodes:
        return len(nodes)
    gaps.append(not_read(host, "cpu.numa_nodes", path, problem))
    return None


def _hypervisor(host: Host, flags: frozenset[str] | None, gaps: list[Gap]) -> str | None:
    """Name of the hypervisor, ``unknown`` when only the CPU flag tells, None on bare metal.

    Without flags (Arm, POWER) only a vendor that makes nothing but virtual machines is proof; else
    it is not known.
    """
    if flags is not None and "hypervisor" not in flags:
        return None
    try:
        vendor = host.text(VENDOR).strip().lower()
    except OSError:
        vendor = ""
    known = next((key for key in HYPERVISORS if vendor.startswith(key)), None)
    if flags is None and known not in _ONLY_VIRTUAL:
        how = say("{path} has no hypervisor flag on this kind of processor.", path=CPUINFO)
        gaps.append(Gap(fact="cpu.hypervisor", reason="not-supported", how=how))
        return None
    if known is not None:
        return HYPERVISORS[known]
    return _xen(host) or _wsl(host) or "unknown"


def _xen(host: Host) -> str | None:
    """Xen names itself to its guests, also to those without SMBIOS."""
    try:
        return "Xen" if host.text("/sys/hypervisor/type").strip() == "xen" else None
    except OSError:
        return None


def _wsl(host: Host) -> str | None:
    """WSL 2 has no SMBIOS; its kernel's release carries Microsoft's name."""
    try:
        # A limit, because the kernel refuses to read its sysctl files into a buffer of several MiB.
        release = host.read("/proc/sys/kernel/osrelease", 256)
    except OSError:
        return None
    return "Hyper-V" if b"microsoft" in release.lower() else None


def _psutil_cpus(host: Host) -> int | None:
    if not host.live:
        return None
    import psutil

    return psutil.cpu_count()


def _psutil_memory(host: Host) -> int | None:
    if not host.live:
        return None
    import psutil

    return int(psutil.virtual_memory().total)
