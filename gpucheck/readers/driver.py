"""Kernel drivers for GPUs: what is loaded, what is installed, what /dev shows.

Nothing is started and nothing is loaded: a look at names and a few small files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from gpucheck.facts import Driver, Gap, Parts
from gpucheck.host import Host
from gpucheck.readers.gaps import in_container, not_read
from gpucheck.text import say

MODULES = (
    "nvidia",
    "nvidia_uvm",
    "nvidia_modeset",
    "nvidia_drm",
    "nouveau",
    "vfio_pci",
    "amdgpu",
    "radeon",
    "i915",
    "xe",
    "ast",
    "mgag200",
)
"""Kernel modules that drive a display or keep one for a virtual machine."""

LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
)
"""Where Debian and Ubuntu, Fedora and SUSE, Arch, Kubernetes device plugins and WSL put libnvidia-ml."""

MODULE_FOLDERS = ("/lib/modules", "/usr/lib/modules")
BUILT_FOLDERS = ("updates/dkms", "extra", "extra/nvidia")
"""Where in a kernel's folder DKMS and akmods put what they build."""
MOST_KERNELS = 16
"""How many other kernels are looked at."""

SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
"""UEFI variable: four bytes of attributes, then one that says whether it is on."""
MODPROBE_FOLDER = "/etc/modprobe.d"
FABRIC_PIDS = tuple(f"{root}/nvidia-fabricmanager/nv-fabricmanager.pid" for root in ("/run", "/run/nvidia/driver/run"))
"""Where the fabric manager writes its process id; the second is that of a driver which runs in a container."""

LINE_LIMIT = 4096
"""Most bytes of a file that holds one line."""

_LIBRARY = re.compile(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)")
# Debian renames it (nvidia-current.ko); nvidia-drm.ko, nvidia-uvm.ko and nvidiafb.ko are others.
_MODULE_FILE = re.compile(r"nvidia(?:-current|-tesla|-legacy|-open|-\d+(?:xx)?)*\.ko(?:\.(?:xz|zst|gz))?")
_BLACKLISTED = re.compile(
    r"^[ \t]*(?:blacklist[ \t]+(nvidia|nouveau)|install[ \t]+(nvidia|nouveau)[ \t]+/\S*bin/(?:true|false))[ \t]*$",
    re.MULTILINE,
)
_LOADED = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)?)")

_OPTION = (
    r"nomodeset|recovery|single|rescue|emergency"
    r"|(?:pci|pcie_aspm|pcie_ports|iommu|intel_iommu|amd_iommu|module_blacklist|modprobe\.blacklist"
    r"|rd\.driver\.blacklist|pci-stub\.ids|vfio[-_]pci\.\w+|(?:nvidia|nouveau|amdgpu|radeon|i915|xe)(?:[-_]\w+)?\.\w+"
    r"|iommu\.\w+)=\S*"
)

Flavour = Literal["open", "proprietary"]


def parse_modules(text: str) -> tuple[str, ...]:
    """Those of :data:`MODULES` that /proc/modules lists, in that order."""
    return _known(line.partition(" ")[0] for line in text.splitlines())


def _known(loaded: Iterable[str]) -> tuple[str, ...]:
    names = set(loaded)
    return tuple(module for module in MODULES if module in names)


def parse_nvidia_version(text: str) -> tuple[str, Flavour]:
    """Version and flavour from /proc/driver/nvidia/version. ValueError when its first line differs."""
    match = _LOADED.search(text)
    if match is None:
        raise ValueError("no 'Kernel Module' and version in it")
    return match[1], "open" if "Open Kernel Module" in text else "proprietary"


def is_nvidia_module(path: str) -> bool:
    """Whether a path is the main module of the NVIDIA driver, plain or compressed."""
    return _MODULE_FILE.fullmatch(path.rpartition("/")[2]) is not None


def parse_modules_dep(text: str) -> bool:
    """Whether ``modules.dep`` knows an NVIDIA module."""
    if "nvidia" not in text:
        return False
    return any(is_nvidia_module(line.partition(":")[0]) for line in text.splitlines())


def library_versions(names: Iterable[str]) -> tuple[str, ...]:
    """Versions of the libnvidia-ml among file names, oldest first; ``libnvidia-ml.so.1`` is a link."""
    found = {match[1] for name in names if (match := _LIBRARY.fullmatch(name))}
    return tuple(sorted(found, key=lambda version: [int(part) for part in version.split(".")]))


def parse_blacklist(text: str) -> set[str]:
    """Which of nvidia and nouveau a file of modprobe keeps from being loaded by themselves."""
    return {first or second for first, second in _BLACKLISTED.findall(text)}


def options_that_matter(command_line: str) -> str:
    """Of the kernel's options those that decide what becomes of a card. The others are left out: tokens,
    addresses and passwords of installers stand among them."""
    return " ".join(word for word in command_line.split() if re.fullmatch(_OPTION, word))


def read(host: Host) -> Parts:
    """``driver`` of a machine."""
    gaps: list[Gap] = []
    release = _line(host, "kernel_release", "/proc/sys/kernel/osrelease", gaps)
    loaded = _loaded_modules(host, gaps)
    version, flavour = _nvidia_version(host, loaded, gaps)
    installed = _module_installed(host, release, gaps)
    libraries = _library_versions(host, gaps)
    options = _line(host, "kernel_command_line", "/proc/cmdline", gaps)
    efi = _efi_boot(host, gaps)
    driver = Driver(
        loaded_modules=loaded,
        nvidia_version=version,
        nvidia_flavour=flavour,
        nvidia_module_installed=installed,
        library_versions=libraries,
        device_files=_device_files(host, gaps),
        kernel_release=release,
        kernel_command_line=None if options is None else options_that_matter(options),
        efi_boot=efi,
        secure_boot=_secure_boot(host, efi, gaps),
        module_kernels=_module_kernels(host, release) if libraries and installed is False else None,
        blacklisted_modules=_blacklisted(host, gaps),
        fabric_manager_running=_fabric_manager_running(host, gaps),
    )
    return Parts(origin=host.name, driver=driver, gaps=tuple(gaps))


def _line(host: Host, fact: str, path: str, gaps: list[Gap]) -> str | None:
    try:
        # The kernel refuses to read its sysctl files into a buffer of several MiB.
        return host.read(path, LINE_LIMIT).decode("utf-8", "replace").strip()
    except OSError as error:
        gaps.append(not_read(host, f"driver.{fact}", path, error))
        return None


def _loaded_modules(host: Host, gaps: list[Gap]) -> tuple[str, ...] | None:
    try:
        return parse_modules(host.text("/proc/modules"))
    except OSError as error:
        try:
            return _known(host.names("/sys/module"))
        except OSError:
            gaps.append(not_read(host, "driver.loaded_modules", "/proc/modules", error))
            return None


def _nvidia_version(host: Host, loaded: Sequence[str] | None, gaps: list[Gap]) -> tuple[str | None, Flavour | None]:
    path = "/proc/driver/nvidia/version"
    try:
        return parse_nvidia_version(host.text(path))
    except (OSError, ValueError) as error:
        if loaded is not None and "nvidia" not in loaded:
            return None, None  # not loaded: there is no version, and nothing is missing
        problem = error
    try:
        version = host.text("/sys/module/nvidia/version").strip()
    except OSError:
        gaps.append(not_read(host, "driver.nvidia_version", path, problem))
        return None, None
    gaps.append(not_read(host, "driver.nvidia_flavour", path, problem))
    return version, None


def _module_installed(host: Host, release: str | None, gaps: list[Gap]) -> bool | None:
    """Look in the module list of the running kernel, then where DKMS puts what it built."""
    fact = "driver.nvidia_module_installed"
    if release is None:
        how = say("The kernel's release is not known, so neither is its folder of modules.")
        gaps.append(Gap(fact=fact, reason="not-in-input", how=how))
        return None
    problem: tuple[str, OSError] | None = None
    read_one = False
    for folder in MODULE_FOLDERS:
        path = f"{folder}/{release}/modules.dep"
        try:
            if parse_modules_dep(host.text(path)):
                return True
            read_one = True
        except OSError as error:
            problem = problem or (path, error)
        if _built(host, f"{folder}/{release}"):
            return True
    if read_one:
        return False
    if problem is not None:
        gaps.append(not_read(host, fact, *problem))
    return None


def _built(host: Host, folder: str) -> bool:
    """Whether DKMS or akmods left an NVIDIA module in a kernel's folder."""
    for built in BUILT_FOLDERS:
        try:
            if any(is_nvidia_module(name) for name in host.names(f"{folder}/{built}")):
                return True
        except OSError:
            continue
    return False


def _module_kernels(host: Host, release: str | None) -> tuple[str, ...]:
    """Other kernels that have what the running one lacks."""
    found: set[str] = set()
    for folder in MODULE_FOLDERS:
        try:
            others = [name for name in host.names(folder) if name != release]
        except OSError:
            continue
        for other in others[-MOST_KERNELS:]:
            try:
                listed = parse_modules_dep(host.text(f"{folder}/{other}/modules.dep"))
            except OSError:
                listed = False
            if listed or _built(host, f"{folder}/{other}"):
                found.add(other)
    return tuple(sorted(found))


def _library_versions(host: Host, gaps: list[Gap]) -> tuple[str, ...] | None:
    names: list[str] = []
    looked = False
    for folder in LIBRARY_FOLDERS:
        try:
            names += host.names(folder)
        except OSError:
            continue
        looked = True
    if looked:
        return library_versions(names)
    how = say("None of the usual library folders is there: {folders}", folders=", ".join(LIBRARY_FOLDERS))
    gaps.append(Gap(fact="driver.library_versions", reason="file-absent", how=how))
    return None


def _device_files(host: Host, gaps: list[Gap]) -> tuple[str, ...] | None:
    try:
        names = host.names("/dev")
    except OSError as error:
        gaps.append(not_read(host, "driver.device_files", "/dev", error))
        return None
    minors = sorted(int(match[1]) for name in names if (match := re.fullmatch(r"nvidia(\d{1,4})", name)))
    return tuple(f"/dev/nvidia{minor}" for minor in minors)


def _efi_boot(host: Host, gaps: list[Gap]) -> bool | None:
    """Container engines hide the firmware folder behind an empty one, which proves nothing."""
    path = "/sys/firmware"
    try:
        names = host.names(path)
    except OSError as error:
        gaps.append(not_read(host, "driver.efi_boot", path, error))
        return None
    if names:
        return "efi" in names
    reason: Literal["in-container", "unreadable"] = "in-container" if in_container(host) else "unreadable"
    gaps.append(Gap(fact="driver.efi_boot", reason=reason, how=say("{path} is empty.", path=path)))
    return None


def _secure_boot(host: Host, efi: bool | None, gaps: list[Gap]) -> bool | None:
    """Only UEFI has it."""
    if efi is False:
        return False
    try:
        value = host.read(SECURE_BOOT, 16)
    except OSError as error:
        gaps.append(not_read(host, "driver.secure_boot", SECURE_BOOT, error))
        return None
    if len(value) == 5 and value[4] in (0, 1):
        return value[4] == 1
    how = say("{path} holds {count} bytes, not five.", path=SECURE_BOOT, count=len(value))
    gaps.append(Gap(fact="driver.secure_boot", reason="unreadable", how=how))
    return None


def _blacklisted(host: Host, gaps: list[Gap]) -> tuple[str, ...] | None:
    try:
        names = [name for name in host.names(MODPROBE_FOLDER) if name.endswith(".conf")]
    except OSError as error:
        gaps.append(not_read(host, "driver.blacklisted_modules", MODPROBE_FOLDER, error))
        return None
    found: set[str] = set()
    for name in names:
        try:
            found |= parse_blacklist(host.text(f"{MODPROBE_FOLDER}/{name}"))
        except OSError as error:
            gaps.append(not_read(host, "driver.blacklisted_modules", f"{MODPROBE_FOLDER}/{name}", error))
    return tuple(sorted(found))


def _fabric_manager_running(host: Host, gaps: list[Gap]) -> bool | None:
    """Whether a file of it names a process of that name. A container does not show the host's."""
    fact = "driver.fabric_manager_running"
    try:
        host.names("/run")
        numbers = [host.text(path).strip() for path in FABRIC_PIDS if host.exists(path)]
    except OSError as error:
        gaps.append(not_read(host, fact, "/run", error))
        return None
    for number in filter(str.isdecimal, numbers):
        try:
            if host.text(f"/proc/{number}/comm").startswith("nv-fabric"):
                return True
        except OSError:
            continue
    if in_container(host):
        how = say("A container does not show the host's processes; run on the host.")
        gaps.append(Gap(fact=fact, reason="in-container", how=how))
        return None
    return False
