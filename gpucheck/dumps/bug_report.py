"""The log of nvidia-bug-report.sh: many tools' output in one file, plain or as .log.gz.

A section is a line of 44 underscores, an empty line, a heading and the body. Headings are the command
line or ``*** /path`` and changed over the years; paths are compared by what they name. Everything
goes to the parser that meets it elsewhere too: lspci, dmidecode, the kernel log, /proc.

Only what speaks of now is taken. Kernel messages of earlier boots (kern.log, ``journalctl -b -1``)
are left out: half of the logs that people send hold faults that a reboot has cured since.
"""

from __future__ import annotations

import html
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gpucheck.capture import CaptureHost
from gpucheck.dumps import lspci, nvidia_smi, small
from gpucheck.facts import Driver, Gap, GapReason, KernelLog, Parts, PciFunction
from gpucheck.readers import cpu as cpu_reader
from gpucheck.readers import kernel_log, smbios
from gpucheck.readers.driver import options_that_matter
from gpucheck.text import say

_LINE = "_" * 44
_START = "Start of NVIDIA bug report log file."
_END = "End of NVIDIA bug report log file."
_LOOKS = re.compile(r"^[\s>]*(?:Start of NVIDIA bug report log file|nvidia-bug-report\.sh Version: \d)", re.MULTILINE)

_COMMAND = re.compile(r"(?:/\S*/)?(lspci|dmidecode|modinfo|nvidia-smi) ?(.*)")
_FILE = re.compile(r"^\*\*\* (?!ls: )(/\S+)( does not exist)?$", re.MULTILINE)
_LISTED = re.compile(r"^\*\*\* ls: .*\n", re.MULTILINE)
_SUB_COMMAND = re.compile(r"^(?:/\S*/)?(?:nvidia-smi|modinfo) .*$", re.MULTILINE)
_LOG = re.compile(r"^ *(journalctl -b -\d+|/var/log/\S*):$", re.MULTILINE)
_LOGS_OF_THIS_BOOT = ("journalctl -b -0", "/var/log/dmesg")
_FABRIC_MANAGER = "systemctl status nvidia-fabricmanager.service"
_BUILT_MODULE = re.compile(r"/var/lib/dkms/nvidia/[^/]+/([^/]+)/[^/]+/log/make\.log")
_GPU_DETAILS = re.compile(r"^NVIDIA GPU Details +\| *(.*?) *$", re.MULTILINE)
_SYSFS_DUMP = re.compile(
    r"^([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) 0x([0-9a-f]{4})[0-9a-f]{2}: Vendor ([0-9a-f]{4})"
    r" Device ([0-9a-f]{4})",
    re.MULTILINE,
)

_AGAIN = "sudo nvidia-bug-report.sh"


def looks_like(text: str) -> bool:
    """Whether the text begins as a log of nvidia-bug-report.sh, whatever it was pasted with."""
    return _LOOKS.search(text[:5000]) is not None


def unpack(data: bytes, limit: int) -> bytes:
    """Undo gzip as far as it goes: all members, and what is whole of one that is cut or damaged.

    Args:
        data: The file; the script appends a member for every section.
        limit: Most bytes to unpack; what is beyond is left out.
    """
    unpacked = bytearray()
    while data and len(unpacked) < limit:
        member = zlib.decompressobj(wbits=31)
        try:
            unpacked += member.decompress(data, limit - len(unpacked))
        except zlib.error:
            break
        data = member.unused_data
        if not member.eof:
            break
    return bytes(unpacked)


def parse(text: str) -> list[Parts]:
    """Facts from the log, one :class:`Parts` for each log in the text.

    Never raises: what is missing, cut off or was skipped is a gap.
    """
    text = text.replace("\r\n", "\n")
    if "&lt;" in text or "&gt;" in text or "&#" in text:  # pasted into a page and copied from its source
        text = html.unescape(text)
    starts = [found.start() for found in re.finditer(re.escape(_START), text)] or [0]
    ends = [*starts[1:], len(text)]
    return [_log(text[start:end]) for start, end in zip(starts, ends, strict=True)]


class _Sections(NamedTuple):
    """What a log holds, by kind."""

    head: str
    files: dict[str, str]
    """Path to content; a path that the script found absent is not here."""
    absent: set[str]
    commands: dict[str, list[str]]
    """Base name of the program (of systemctl the whole line) to what each run printed, heading left out."""
    kernel_scan: str
    dmesg: str | None
    skipped: str
    """Headings of what was skipped, and why."""


def _sections(text: str) -> _Sections:
    head, *bodies = f"\n{text}".split(f"\n{_LINE}\n")
    files: dict[str, str] = {}
    absent: set[str] = set()
    commands: dict[str, list[str]] = {}
    scan, dmesg, skipped = "", None, []
    for section in bodies:
        body = section.lstrip("\n")
        heading, _, rest = body.partition("\n")
        if heading.startswith("*** "):
            _take_files(body, files, absent)
        elif heading == "dmesg:":
            dmesg = rest
        elif heading.startswith("Scanning kernel log files"):
            scan = rest
        elif heading.startswith("PCI devices configuration space"):
            commands.setdefault("lspci", []).append(_SYSFS_DUMP.sub(r"\1 \2: \3:\4", rest))
        elif heading.startswith("Skipp"):
            skipped.append(body)
        elif heading.endswith(_FABRIC_MANAGER):
            commands.setdefault(_FABRIC_MANAGER, []).append(rest)
        elif found := _COMMAND.fullmatch(heading):
            # Further runs follow in the same section: other modules, --query --unit.
            commands.setdefault(found[1], []).append(_SUB_COMMAND.split(rest, maxsplit=1)[0])
    return _Sections(head, files, absent, commands, scan, dmesg, "\n".join(skipped))


def _take_files(body: str, files: dict[str, str], absent: set[str]) -> None:
    pieces = _FILE.split(body)
    for name, missing, content in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        path = name.replace("/./", "/")
        if missing:
            absent.add(path)
        else:
            files.setdefault(path, _LISTED.sub("", content).lstrip("\n"))


def _log(text: str) -> Parts:
    whole = _END in text[-2000:]
    if not whole:
        text = text[: text.rfind("\n") + 1]  # half a line is no statement
        start = text.rfind(f"\n{_LINE}\n")
        if text[start + len(_LINE) + 2 :].lstrip("\n").startswith("*** "):
            text = text[:start]  # nor is half a list of processors or modules
    sections = _sections(text)
    firmware = _smbios(sections)
    parts = [
        _pci(sections),
        firmware,
        _cpu(sections, firmware),
        _driver(sections),
        _kernel_log(sections),
        _nvml(sections),
    ]
    joined = _joined(parts)
    if not whole:
        how = say("The log ends before its last line, so what stood after that is missing: {command}", command=_AGAIN)
        joined = joined.model_copy(
            update={"gaps": (Gap(fact="bug_report", reason="unreadable", how=how), *joined.gaps)}
        )
    return joined


def _joined(parts: Iterable[Parts]) -> Parts:
    values: dict[str, object] = {}
    gaps: list[Gap] = []
    for part in parts:
        gaps += part.gaps
        values |= {
            name: value
            for name, value in part
            if name not in ("origin", "gaps", "pci_complete") and value is not None and name not in values
        }
        if part.pci is not None:
            values["pci_complete"] = part.pci_complete
    return Parts.model_validate({**values, "gaps": tuple(gaps)})


def _missing(fact: str, reason: GapReason = "not-in-input", how: str = _AGAIN) -> Parts:
    return Parts(gaps=(Gap(fact=fact, reason=reason, how=say(how)),))


# --- kinds of sections --------------------------------------------------------------------------


def _pci(sections: _Sections) -> Parts:
    """Functions from all runs of lspci: older logs list the cards in full and the rest by name only."""
    runs = sections.commands.get("lspci")
    if not runs:
        return _missing("pci")
    parts = lspci.parse(f"\n{_LINE}\n".join(runs) + "\n\n\n")
    if parts.pci is None:
        return parts
    nodes = dict(_numa_nodes(sections.files))
    functions = tuple(_on_node(function, nodes) for function in parts.pci)
    told = {f"gpus.{function.address}.numa_node" for function in functions if function.numa_node is not None}
    gaps = tuple(gap for gap in parts.gaps if gap.fact not in told)
    return parts.model_copy(update={"pci": functions, "gaps": gaps})


def _numa_nodes(files: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    for path, content in files.items():
        found = re.fullmatch(r"/sys/bus/pci/devices/([0-9a-f:.]+)/numa_node", path)
        if found and (number := content.strip()).isascii() and number.isdecimal():  # not -1
            yield found[1], int(number)


def _on_node(function: PciFunction, nodes: Mapping[str, int]) -> PciFunction:
    node = nodes.get(function.address)
    if function.numa_node is not None or node is None:
        return function
    return function.model_copy(update={"numa_node": node})


def _smbios(sections: _Sections) -> Parts:
    texts = sections.commands.get("dmidecode")
    try:
        return smbios.parse_text("\n".join(texts or ()))
    except ValueError:
        how = "sudo /usr/sbin/dmidecode > dmi.txt"
        gaps = (_missing(fact, "needs-root" if texts else "not-in-input", how) for fact in ("system", "cpu_sockets"))
        return _joined([*gaps, _missing("slots", "needs-root" if texts else "not-in-input", how)])


def _cpu(sections: _Sections, firmware: Parts) -> Parts:
    """Processors and memory: the reader reads the files that the log holds."""
    files = {path: content.encode() for path, content in sections.files.items() if path.startswith(("/proc/", "/sys/"))}
    if firmware.system is not None and firmware.system.vendor is not None:
        files[cpu_reader.VENDOR] = firmware.system.vendor.encode()
    parts = cpu_reader.read(CaptureHost("nvidia-bug-report.log", files))
    gaps = (
        gap.model_copy(update={"reason": "not-in-input"}) if gap.reason == "file-absent" else gap for gap in parts.gaps
    )
    return parts.model_copy(update={"gaps": tuple(gaps)})


def _driver(sections: _Sections) -> Parts:
    files = sections.files
    modules = files.get("/proc/modules")
    version = files.get("/proc/driver/nvidia/version")
    command_line = files.get("/proc/cmdline")
    options = options_that_matter(command_line) if command_line and command_line.strip() else None
    modinfo = sections.commands.get("modinfo")
    installed = True if modinfo and "vermagic:" in modinfo[0] else None
    known: list[str] = []
    if "/proc/driver/nvidia/version" in sections.absent:
        known += ["nvidia_version", "nvidia_flavour"]  # not loaded
        if modinfo and not modinfo[0].strip():
            installed = False
    elif version is not None:
        installed = True
    driver = small.filled(
        (
            Driver(kernel_command_line=options, nvidia_module_installed=installed),
            small.lsmod(modules or ""),
            small.driver_version(version or ""),
            small.uname(sections.head),
            Driver(efi_boot=True if "efi: EFI v" in (sections.dmesg or "") else None),
            Driver(secure_boot=_secure_boot(sections.dmesg or "")),
            Driver(fabric_manager_running=_fabric_manager_running(sections)),
            Driver(module_kernels=_module_kernels(sections) if installed is False else None),
        )
    )
    return small.driver_parts(driver, known)


def _secure_boot(dmesg: str) -> bool | None:
    """What the kernel said of it at boot."""
    found = re.search(r"secureboot: Secure boot (enabled|disabled)", dmesg)
    return found[1] == "enabled" if found else None


def _fabric_manager_running(sections: _Sections) -> bool | None:
    told = "\n".join(sections.commands.get(_FABRIC_MANAGER, ()))
    found = re.search(r"Active: (active \(running\))?|could not be found", told)
    return found[1] is not None if found else None


def _module_kernels(sections: _Sections) -> tuple[str, ...]:
    """Kernels for which DKMS built the module: its log is there, and names the module at its end."""
    built = ((_BUILT_MODULE.fullmatch(path), content) for path, content in sections.files.items())
    return tuple(sorted({found[1] for found, content in built if found and "/nvidia.ko" in content}))


def _kernel_log(sections: _Sections) -> Parts:
    """Messages of this boot: dmesg, and before it what the journal kept where the buffer lost its start."""
    pieces = _LOG.split(sections.kernel_scan)
    scanned = list(zip(pieces[1::2], pieces[2::2], strict=True))
    journal = kernel_log.parse("".join(text for name, text in scanned if name == "journalctl -b -0"), "journal")
    text = sections.dmesg or ""
    refused = "read kernel buffer failed" in text
    log = kernel_log.parse("" if refused else text, "dmesg")
    if not log.lines:
        log = journal
    elif not log.complete:
        kept = frozenset(log.lines)
        earlier = tuple(line for line in journal.lines if line not in kept)
        log = log.model_copy(update={"lines": (*earlier, *log.lines)})
    log = log.model_copy(update={"earlier": tuple(_of_earlier_boots(scanned, log))})
    if not log.lines:
        return _missing("kernel_log", "needs-root" if refused else "not-in-input", "sudo /usr/bin/dmesg > kernel.log")
    if log.complete:
        return Parts(kernel_log=log)
    how = say("The first messages of this boot are not in the log: journalctl -k -b > kernel.log")
    return Parts(kernel_log=log, gaps=(Gap(fact="kernel_log.beginning", reason="not-in-input", how=how),))


def _of_earlier_boots(scanned: Iterable[tuple[str, str]], log: KernelLog) -> Iterator[str]:
    """Faults that the scan shows and this boot does not; the log files in it hold several boots."""
    seen = set(log.lines)
    for name, text in scanned:
        if name not in _LOGS_OF_THIS_BOOT:
            read = kernel_log.parse(text, "file")
            told = [line for line in kernel_log.faults((*read.earlier, *read.lines)) if line not in seen]
            seen.update(told)
            yield from told


def _nvml(sections: _Sections) -> Parts:
    """nvidia-smi's answer; one that was skipped, absent or failed are three different facts."""
    if runs := sections.commands.get("nvidia-smi"):
        return nvidia_smi.parse("\n".join(runs))
    details = _GPU_DETAILS.search(sections.head)
    if details and details[1].startswith("Failed: "):
        return nvidia_smi.parse(details[1])
    if "nvidia-smi not found" in sections.skipped:
        return _missing("nvml", "tool-absent", "nvidia-smi is not installed there; it comes with NVIDIA's driver.")
    if "--safe-mode" in sections.head or "safe-mode" in sections.skipped:
        return _missing("nvml", "not-requested", "The log was made with --safe-mode: nvidia-smi -q > smi.txt")
    return _missing("nvml")
