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

LINE_LIMIT = 4096
"""Most bytes of a file that holds one line."""

_LIBRARY = re.compile(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)?)")
# Debian renames it (nvidia-current.ko); nvidia-drm.ko, nvidia-uvm.ko and nvidiafb.ko are others.
_MODULE_FILE = re.compile(r"nvidia(?:-current|-tesla|-legacy|-open|-\d+(?:xx)?)*\.ko(?:\.(?:xz|zst|gz))?")
_LOADED = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+\.\d+(?:\.\d+)?)")

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


def read(host: Host) -> Parts:
    """``driver`` of a machine."""
    gaps: list[Gap] = []
    release = _line(host, "kernel_release", "/proc/sys/kernel/osrelease", gaps)
    loaded = _loaded_modules(host, gaps)
    version, flavour = _nvidia_version(host, loaded, gaps)
    driver = Driver(
        loaded_modules=loaded,
        nvidia_version=version,
        nvidia_flavour=flavour,
        nvidia_module_installed=_module_installed(host, release, gaps),
        library_versions=_library_versions(host, gaps),
        device_files=_device_files(host, gaps),
        kernel_release=release,
        kernel_command_line=_line(host, "kernel_command_line", "/proc/cmdline", gaps),
        efi_boot=_efi_boot(host, gaps),
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
        for built in (f"{folder}/{release}/updates/dkms", f"{folder}/{release}/extra"):
            try:
                if any(is_nvidia_module(name) for name in host.names(built)):
                    return True
            except OSError:
                continue
    if read_one:
        return False
    if problem is not None:
        gaps.append(not_read(host, fact, *problem))
    return None


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
