"""Short outputs: lscpu, lsmod, ``ls /dev/nvidia*``, modinfo, uname, /proc files, ``ipmitool``.

Each tells a few facts about the driver, the processors or the power supplies. Files of /proc have
their parser with the reader that meets them on a live machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gpucheck.facts import Cpu, Driver, Gap, Parts, Power
from gpucheck.readers import cpu as cpu_reader
from gpucheck.readers import driver as driver_reader
from gpucheck.readers import psu
from gpucheck.text import say

# --- processors ---------------------------------------------------------------------------------

_ARCHITECTURE = re.compile(r"\s*Architecture:\s+\S")


def lscpu(text: str) -> Parts:
    """Facts from lscpu. In other languages than English its words are not known: then all is a gap."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.strip().partition(":")
        if colon:
            fields.setdefault(name, value.strip())
    flags = fields["Flags"].split() if "Flags" in fields else None
    hypervisor = fields.get("Hypervisor vendor")
    if hypervisor is None and flags is not None and "hypervisor" in flags:
        hypervisor = "unknown"
    address = re.match(r"(\d{1,3}) bits physical", fields.get("Address sizes", ""))
    cpu = Cpu(
        model=fields.get("Model name") or None,
        packages=_count(fields.get("Socket(s)")),
        numa_nodes=_count(fields.get("NUMA node(s)")),
        logical_cpus=_on_line(fields),
        physical_address_bits=int(address[1]) if address else None,
        has_avx=None if flags is None else "avx" in flags,
        hypervisor=hypervisor,
    )
    known = ("hypervisor",) if flags is not None else ()  # no such flag: bare metal
    return Parts(cpu=cpu, gaps=tuple(_gaps("cpu", cpu, dict.fromkeys(Cpu.model_fields, "lscpu"), known)))


def _count(text: str | None) -> int | None:
    """A number of one or more; lscpu writes ``-`` for sockets of some Arm machines."""
    return (int(text) or None) if text and text.isascii() and text.isdecimal() else None


def _on_line(fields: dict[str, str]) -> int | None:
    try:
        return cpu_reader.count_list(fields.get("On-line CPU(s) list", ""))
    except ValueError:
        return _count(fields.get("CPU(s)"))


# --- drivers ------------------------------------------------------------------------------------

_LSMOD_HEAD = re.compile(r"Module +Size +Used by")
_MODULE_LINE = re.compile(r"(\w+) +\d+ +-?\d+(?: +[\w,-]+)?(?: (?:Live|Loading|Unloading) 0x[0-9a-f]+.*)?")
_DEVICE = re.compile(r"(?:^|\s)/dev/nvidia(\d{1,4})?(?:ctl|-uvm|-modeset|-caps)?\S*(?=\s|$)")
_LISTED_DEVICE = re.compile(r"c[rwx-]{9}\S* .*? nvidia(\d{1,4})?(?:ctl|-uvm|-modeset)?\S*")
_NO_DEVICE = re.compile(r"ls: .*?/dev/nvidia.*?: No such file or directory")
_VERSION_LINE = re.compile(r"NVRM version: ")
_UNAME = re.compile(r"Linux \S+ (\d+\.\d+\S*) #\d\S* ")
_RELEASE = re.compile(r"(\d+\.\d+\.\d+[\w.+~-]*)")
_COMMAND_LINE = re.compile(r"BOOT_IMAGE=\S+ .*")
_NO_MODULE = re.compile(r"modinfo: ERROR: Module nvidia not found")
_MODINFO = re.compile(r"filename:\s+/\S*/(nvidia[\w-]*\.ko\S*)|vermagic:\s+\S")

_HOW = {
    "loaded_modules": "lsmod",
    "nvidia_version": "cat /proc/driver/nvidia/version",
    "nvidia_flavour": "cat /proc/driver/nvidia/version",
    "nvidia_module_installed": "modinfo nvidia",
    "library_versions": "ls /usr/lib/x86_64-linux-gnu/libnvidia-ml.so*",
    "device_files": "ls -l /dev/nvidia*",
    "kernel_release": "uname -a",
    "kernel_command_line": "cat /proc/cmdline",
    "efi_boot": "ls -d /sys/firmware/efi",
    "secure_boot": "mokutil --sb-state",
    "blacklisted_modules": "grep -r -e nvidia -e nouveau /etc/modprobe.d",
    "fabric_manager_running": "systemctl status nvidia-fabricmanager",
}


def lsmod(text: str) -> Driver:
    """Loaded modules, from lsmod or /proc/modules.

    Without its head, lsmod went through a filter: what is missing then says nothing, so the list
    counts only if it holds nvidia.
    """
    lines = [line.strip() for line in text.splitlines()]
    modules = driver_reader.parse_modules("\n".join(line for line in lines if _MODULE_LINE.fullmatch(line)))
    whole = any(_LSMOD_HEAD.match(line) for line in lines) or any(" Live 0x" in line for line in lines)
    return Driver(loaded_modules=modules if whole or "nvidia" in modules else None)


def device_files(text: str) -> Driver:
    """/dev/nvidia0 and so on, from ``ls`` with or without ``-l``; an empty list when ls found none."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if _is_device(line)]
    if not lines:
        return Driver(device_files=() if _NO_DEVICE.search(text) else None)
    minors = {found for line in lines for found in (*_DEVICE.findall(line), *_LISTED_DEVICE.findall(line)) if found}
    return Driver(device_files=tuple(f"/dev/nvidia{minor}" for minor in sorted(map(int, minors))))


def driver_version(text: str) -> Driver:
    """Version and flavour of the loaded module."""
    try:
        version, flavour = driver_reader.parse_nvidia_version(text)
    except ValueError:
        return Driver()
    return Driver(nvidia_version=version, nvidia_flavour=flavour)


def uname(text: str) -> Driver:
    """Release of the kernel, from ``uname -a``, or ``-r`` alone."""
    found = _UNAME.search(text) or _RELEASE.fullmatch(text.strip())
    return Driver(kernel_release=found[1] if found else None)


def command_line(text: str) -> Driver:
    """Options of the kernel, from /proc/cmdline."""
    found = _COMMAND_LINE.search(text)
    return Driver(kernel_command_line=driver_reader.options_that_matter(found[0]) if found else None)


def modinfo(text: str) -> Driver:
    """Whether the nvidia module is there for the running kernel, from ``modinfo nvidia``."""
    if _NO_MODULE.search(text):
        return Driver(nvidia_module_installed=False)
    return Driver(nvidia_module_installed=True if _MODINFO.search(text) else None)


def filled(drivers: Iterable[Driver]) -> Driver:
    """One driver from several partial ones: of each fact the first that is known."""
    values: dict[str, object] = {}
    for driver in drivers:
        for name, value in driver:
            if value is not None:
                values.setdefault(name, value)
    return Driver.model_validate(values)


def driver_parts(driver: Driver, known: Iterable[str] = ()) -> Parts:
    """The driver with a gap for every fact that is not known.

    Args:
        driver: What was told.
        known: Facts of which None is the answer, such as the version of a module that is not loaded.
    """
    if driver.loaded_modules is not None and "nvidia" not in driver.loaded_modules:
        known = (*known, "nvidia_version", "nvidia_flavour")
    return Parts(driver=driver, gaps=tuple(_gaps("driver", driver, _HOW, known)))


def _gaps(level: str, facts: Cpu | Driver, how: dict[str, str], known: Iterable[str]) -> Iterator[Gap]:
    for name, value in facts:
        if value is None and name in how and name not in known:
            step = say("Not in the text: {command}", command=how[name])
            yield Gap(fact=f"{level}.{name}", reason="not-in-input", how=step)


# --- power supplies -----------------------------------------------------------------------------


def sensors(text: str) -> Parts:
    """State of power supplies in ``ipmitool sdr``, which never tells their rating."""
    how = say("sudo /usr/bin/ipmitool fru > fru.txt, then gpucheck probe --from fru.txt")
    gap = Gap(fact="psus.watts", reason="not-in-input", how=how)
    read = psu.from_ipmi_sdr(text)
    return read.model_copy(update={"gaps": (gap, *read.gaps)})


def draw(text: str) -> Parts:
    """Watts that the machine draws, in ``ipmitool dcmi power reading``."""
    watts = psu.from_ipmi_dcmi(text)
    return Parts(power=None if watts is None else Power(drawn_watts=watts))


def events(text: str) -> Parts:
    """The BMC's event log, in ``ipmitool sel list`` or ``elist``."""
    return Parts(bmc_events=psu.from_ipmi_sel(text))


# --- which is which -----------------------------------------------------------------------------


class Form(NamedTuple):
    """One kind of short output."""

    name: str
    starts: Callable[[str], object]
    """Whether a stripped line tells this form."""
    driver: Callable[[str], Driver] | None = None


DRIVER_FORMS = (
    Form("lsmod", lambda line: _LSMOD_HEAD.match(line) or _is_gpu_module(line), lsmod),
    Form("devices", lambda line: _is_device(line) or _NO_DEVICE.match(line), device_files),
    Form("version", _VERSION_LINE.match, driver_version),
    Form("uname", _UNAME.match, uname),
    Form("cmdline", lambda line: False, command_line),  # such a line stands in many files: only a prompt tells
    Form("modinfo", lambda line: _NO_MODULE.match(line) or _MODINFO.match(line), modinfo),
)
BMC_FORMS = {"sdr": sensors, "dcmi": draw, "sel": events}
FORMS = (
    Form("lscpu", _ARCHITECTURE.match),
    Form("sdr", psu.looks_like_ipmi_sdr),
    Form("dcmi", lambda line: line.startswith("Instantaneous power reading:")),
    Form("sel", psu.looks_like_ipmi_sel),
    *DRIVER_FORMS,
)


def _is_gpu_module(line: str) -> bool:
    found = _MODULE_LINE.fullmatch(line)
    return found is not None and found[1] in driver_reader.MODULES


def _is_device(line: str) -> bool:
    """Whether ls wrote the line: nothing but paths in /dev, or a character device with its mode."""
    if line.startswith("/dev/nvidia"):
        return all(word.startswith("/dev/") for word in line.split())
    mode = line.startswith(("crw", "cr-")) and line[10:11] in (" ", "+", ".")
    return mode and bool(_DEVICE.search(line) or _LISTED_DEVICE.fullmatch(line))


def form_of(line: str) -> str | None:
    """Name of the form whose output the line can begin."""
    line = line.strip()
    return next((form.name for form in FORMS if form.starts(line)), None)


def looks_like(text: str) -> bool:
    """Whether a line of the text is one that only these tools print."""
    return any(form_of(line) is not None for line in text.splitlines())
