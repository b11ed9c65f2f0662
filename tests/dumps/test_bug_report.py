"""Logs of nvidia-bug-report.sh."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gpucheck import catalog, probing
from gpucheck.assemble import assemble
from gpucheck.dumps import bug_report
from gpucheck.facts import Parts

LINE = "_" * 44
HEAD = f"""\
{LINE}

Start of NVIDIA bug report log file.  Please include this file, along
with a detailed description of your problem.

nvidia-bug-report.sh Version: 36108447

Date: Fri Nov 11 12:23:49 UTC 2022
uname: Linux host1 6.8.0-48-generic #48-Ubuntu SMP x86_64 GNU/Linux
command line flags:
"""
SECTIONS = {
    "lspci": """\
/usr/bin/lspci -nn

00:00.0 Host bridge [0600]: Intel Corporation X [8086:2f00] (rev 02)
00:03.0 PCI bridge [0604]: Intel Corporation X [8086:2f08] (rev 02)
04:00.0 3D controller [0302]: NVIDIA Corporation GP102GL [Tesla P40] [10de:1b38] (rev a1)
""",
    "details": """\
/usr/bin/lspci -d "10de:*" -v -xxx

04:00.0 3D controller: NVIDIA Corporation GP102GL [Tesla P40] (rev a1)
	Flags: bus master, fast devsel, latency 0, IRQ 137
	Memory at f6000000 (32-bit, non-prefetchable) [size=16M]
	Kernel driver in use: nvidia
	Kernel modules: nvidia

""",
    "tree": "/usr/bin/lspci -t\n\n-[0000:00]-+-00.0\n           \\-03.0-[04]----00.0\n",
    "node": """\
*** /sys/bus/pci/devices/0000:04:00.0/numa_node
*** ls: -rw-r--r--. 1 root root 4096 2022-11-11 12:23:05.4 +0500 /sys/bus/pci/devices/0000:04:00.0/numa_node
1
""",
    "dmidecode": """\
/usr/sbin/dmidecode

# dmidecode 3.1
Handle 0x0001, DMI type 1, 27 bytes
System Information
	Manufacturer: QEMU
	Product Name: Standard PC
""",
    "modinfo": "/sbin/modinfo nvidia | grep vermagic\n\nvermagic:       6.8.0-48-generic SMP\n",
    "scan": """\
Scanning kernel log files for NVIDIA kernel messages:

  /var/log/kern.log:
Nov  7 16:47:34 host1 kernel: [    9.000000] NVRM: Xid (PCI:0000:04:00): 79, of an earlier boot

  journalctl -b -0:
Nov 11 12:23:06 host1 kernel: NVRM: from the journal

  journalctl -b -1:
Nov 10 12:23:06 host1 kernel: NVRM: Xid (PCI:0000:04:00): 62, of the boot before
""",
    "dmesg": """\
dmesg:

[    0.000000] Linux version 6.8.0
[    1.000000] efi: EFI v2.7
[    2.000000] NVRM: from dmesg
""",
    "cpuinfo": """\
*** /proc/cpuinfo
*** ls: -r--r--r-- 1 root root 0 x /proc/cpuinfo
processor	: 0
model name	: Xeon
flags		: fpu hypervisor avx
""",
    "modules": "*** /proc/modules\n*** ls: x\nnvidia 40792064 321 nvidia_uvm, Live 0xffffffffc3243000 (POE)\n",
    "version": """\
*** /proc/driver/nvidia/./version
*** ls: -r--r--r-- 1 root root 0 x /proc/driver/nvidia/./version
NVRM version: NVIDIA UNIX x86_64 Kernel Module  515.65.01  Wed Jul 20 14:00:58 UTC 2022
""",
    "smi": """\
/usr/bin/nvidia-smi --query


==============NVSMI LOG==============

Driver Version                            : 515.65.01

Attached GPUs                             : 1
GPU 00000000:04:00.0
    Product Name                          : Tesla P40

/usr/bin/nvidia-smi --query --unit


==============NVSMI LOG==============

Driver Version                            : 515.65.01
Attached Units                            : 0
""",
}
END = "End of NVIDIA bug report log file.\n"


def log(*, head: str = HEAD, end: str = END, **changed: str | None) -> str:
    """A whole log; a section that is None is left out."""
    sections = {**SECTIONS, **changed}
    bodies = (body for body in sections.values() if body is not None)
    return f"\n{LINE}\n\n".join([head, *bodies, end])


def one(text: str) -> Parts:
    (parts,) = bug_report.parse(text)
    return parts


def gaps(parts: Parts) -> dict[str, str]:
    return {gap.fact: gap.reason for gap in parts.gaps}


def test_sections_reach_their_parsers() -> None:
    text = log()
    assert bug_report.looks_like(text)
    parts = one(text)
    card = next(function for function in parts.pci or () if function.vendor_id == 0x10DE)
    assert (card.pci_id, card.driver, card.parent, card.numa_node) == ("10de:1b38", "nvidia", "0000:00:03.0", 1)
    assert parts.system is not None
    assert parts.system.product == "Standard PC"
    assert parts.cpu is not None
    assert (parts.cpu.model, parts.cpu.hypervisor) == ("Xeon", "QEMU")
    driver = parts.driver
    assert driver is not None
    assert (driver.nvidia_version, driver.loaded_modules) == ("515.65.01", ("nvidia",))
    assert (driver.kernel_release, driver.nvidia_module_installed, driver.efi_boot) == ("6.8.0-48-generic", True, True)
    assert parts.nvml is not None
    assert [gpu.name for gpu in parts.nvml.gpus or ()] == ["Tesla P40"]
    assert "bug_report" not in gaps(parts)
    assert "gpus.0000:04:00.0.numa_node" not in gaps(parts)


def test_only_this_boot_counts() -> None:
    kernel = one(log()).kernel_log
    assert kernel is not None
    assert kernel.complete
    assert kernel.lines == ("Linux version 6.8.0", "efi: EFI v2.7", "NVRM: from dmesg")


def test_faults_of_earlier_boots_are_kept_apart() -> None:
    kernel = one(log()).kernel_log
    assert kernel is not None
    assert kernel.earlier == (
        "NVRM: Xid (PCI:0000:04:00): 79, of an earlier boot",
        "NVRM: Xid (PCI:0000:04:00): 62, of the boot before",
    )
    # The journal of this boot may know what the buffer has lost.
    scan = SECTIONS["scan"].replace("NVRM: from the journal", "NVRM: Xid (PCI:0000:04:00): 13, of this boot")
    today = one(log(scan=scan)).kernel_log
    assert today is not None
    assert today.earlier == kernel.earlier
    # Log files hold this boot as well.
    now = one(
        log(
            dmesg="dmesg:\n\n[    0.000000] Linux version 6.8\n"
            "[    1.000000] NVRM: Xid (PCI:0000:04:00): 79, of an earlier boot\n"
        )
    )
    assert now.kernel_log is not None
    assert now.kernel_log.earlier == ("NVRM: Xid (PCI:0000:04:00): 62, of the boot before",)


@pytest.mark.parametrize(
    ("status", "running"),
    [
        ("     Active: active (running) since Fri 2022-11-11\n", True),
        ("     Active: failed (Result: exit-code)\n", False),
        ("Unit nvidia-fabricmanager.service could not be found.\n", False),
        ("", None),
    ],
)
def test_the_fabric_manager(status: str, running: bool | None) -> None:
    section = f"/usr/bin/systemctl status nvidia-fabricmanager.service\n\n{status}"
    parts = one(log(fabric=section))
    assert parts.driver is not None
    assert parts.driver.fabric_manager_running is running


def test_secure_boot_and_the_kernels_that_dkms_built_for() -> None:
    said = "dmesg:\n\n[    0.000000] Linux version 6.8.0\n[    1.000000] secureboot: Secure boot enabled\n"
    built = "*** /var/lib/dkms/nvidia/515.65.01/{}/x86_64/log/make.log\n*** ls: x\nDKMS make.log\n{}\n"
    parts = one(
        log(
            dmesg=said,
            modinfo="/sbin/modinfo nvidia | grep vermagic\n\n",
            version="*** /proc/driver/nvidia/./version does not exist\n",
            first=built.format("6.8.0-45-generic", "  LD [M]  /var/lib/dkms/nvidia/515.65.01/build/nvidia.ko"),
            second=built.format("6.8.0-48-generic", "Error 2"),
        )
    )
    assert parts.driver is not None
    assert (parts.driver.secure_boot, parts.driver.module_kernels) == (True, ("6.8.0-45-generic",))


def test_the_journal_goes_before_a_buffer_that_lost_its_start() -> None:
    parts = one(log(dmesg="dmesg:\n\n[    2.000000] NVRM: from dmesg\n"))
    assert parts.kernel_log is not None
    assert parts.kernel_log.lines == ("NVRM: from the journal", "NVRM: from dmesg")
    assert not parts.kernel_log.complete
    assert gaps(parts)["kernel_log.beginning"] == "not-in-input"


def test_the_journal_stands_in_for_a_closed_buffer() -> None:
    parts = one(log(dmesg="dmesg:\n\ndmesg: read kernel buffer failed: Operation not permitted\n"))
    assert parts.kernel_log is not None
    assert parts.kernel_log.lines == ("NVRM: from the journal",)
    without = one(log(dmesg="dmesg:\n\ndmesg: read kernel buffer failed: Operation not permitted\n", scan=None))
    assert without.kernel_log is None
    assert gaps(without)["kernel_log"] == "needs-root"


def test_a_module_that_is_not_there() -> None:
    parts = one(
        log(
            modinfo="/sbin/modinfo nvidia | grep vermagic\n\n",
            version="*** /proc/driver/nvidia/./version does not exist\n",
            modules="*** /proc/modules\n*** ls: x\next4 1 1 - Live 0xffffffffc3243000\n",
        )
    )
    assert parts.driver is not None
    assert (parts.driver.nvidia_module_installed, parts.driver.loaded_modules) == (False, ())
    assert "driver.nvidia_version" not in gaps(parts)


@pytest.mark.parametrize(
    ("smi", "head", "reason"),
    [
        ("Skipping nvidia-smi output (nvidia-smi not found)\n", HEAD, "tool-absent"),
        (
            "Skipping: nvidia-smi, vulkaninfo etc. Commands\nSkipping due to --safe-mode-argument\n",
            HEAD.replace("flags:", "flags: --safe-mode"),
            "not-requested",
        ),
        (None, HEAD, "not-in-input"),
    ],
)
def test_nvidia_smi_that_was_not_run(smi: str | None, head: str, reason: str) -> None:
    parts = one(log(smi=smi, head=head))
    assert parts.nvml is None
    assert gaps(parts)["nvml"] == reason


def test_the_table_at_the_head_tells_of_no_devices() -> None:
    head = HEAD + "\nNVIDIA GPU Details                  | Failed: No devices were found\n" + "-" * 80 + "\n"
    parts = one(log(smi=None, head=head))
    assert parts.nvml is not None
    assert (parts.nvml.status, parts.nvml.gpus) == ("ok", ())


def test_a_mismatch_is_a_failure_of_nvml() -> None:
    failed = "/usr/bin/nvidia-smi --query\n\nFailed to initialize NVML: Driver/library version mismatch\n"
    parts = one(log(smi=failed))
    assert parts.nvml is not None
    assert (parts.nvml.status, parts.nvml.code) == ("failed", 18)


def test_configuration_space_from_sysfs() -> None:
    dump = (
        "PCI devices configuration space dump using sysfs\n\n"
        "0000:04:00.0 0x030200: Vendor 10de Device 1b38 (rev a1)\n00: de 10 38 1b" + " 00" * 12 + "\n"
    )
    parts = one(log(lspci=dump, details=None, tree=None))
    assert [function.pci_id for function in parts.pci or ()] == ["10de:1b38"]


def test_no_section_at_all_is_all_gaps() -> None:
    parts = one(HEAD + f"\n{LINE}\n\n" + END)
    assert (parts.pci, parts.nvml, parts.kernel_log, parts.system) == (None, None, None, None)
    assert {"pci", "nvml", "kernel_log", "system", "cpu_sockets", "slots", "cpu"} <= set(gaps(parts))


def test_a_missing_end_is_a_gap_and_half_a_line_is_dropped() -> None:
    whole = log()
    parts = one(whole[: whole.index("NVRM: from dmesg") + 10])
    assert parts.kernel_log is not None
    assert parts.kernel_log.lines == ("Linux version 6.8.0", "efi: EFI v2.7")
    assert gaps(parts)["bug_report"] == "unreadable"
    assert parts.pci is not None


def test_half_a_file_is_dropped() -> None:
    whole = log()
    parts = one(whole[: whole.index("model name")])
    assert parts.cpu is None
    assert gaps(parts)["cpu"] == "not-in-input"
    assert parts.kernel_log is not None


def test_two_logs_in_one_text() -> None:
    assert [len(parts.pci or ()) for parts in bug_report.parse(log() + log(lspci=None, tree=None))] == [3, 1]


def test_forms_that_copying_leaves() -> None:
    assert one(log().replace("\n", "\r\n")) == one(log())
    escaped = log().replace("10de:*", "10de:*&lt;").replace("Tesla P40", "Tesla &#80;40")
    assert (
        next(f for f in one(escaped).pci or () if f.vendor_id == 0x10DE).name
        == "NVIDIA Corporation GP102GL [Tesla P40]"
    )


def test_members_of_gzip() -> None:
    pieces = [piece.encode() for piece in log().split(LINE)]
    packed = b"".join(map(gzip.compress, pieces))
    assert bug_report.unpack(packed, 1 << 20) == b"".join(pieces)
    cut = bug_report.unpack(packed[:-10], 1 << 20)
    assert b"".join(pieces).startswith(cut)
    assert len(cut) > len(b"".join(pieces[:-1])) - 1
    assert bug_report.unpack(packed + b"rubbish", 1 << 20) == b"".join(pieces)
    assert len(bug_report.unpack(gzip.compress(bytes(1 << 16)), 1000)) == 1000
    assert bug_report.unpack(b"no gzip", 1000) == b""


def test_any_cut_is_survived() -> None:
    text = log()
    for end in range(0, len(text), 7):
        bug_report.parse(text[:end])


@pytest.mark.parametrize(
    "text", ["", "I ran nvidia-bug-report.sh Version: 5", "`Start of NVIDIA bug report log file.`"]
)
def test_other_text_is_not_taken(text: str) -> None:
    assert not bug_report.looks_like(text)


def _real(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    texts = []
    for expected in json.loads((folder / "expect.json").read_text()):
        data = (folder / expected["file"]).read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = bug_report.unpack(data, 1 << 28)
        texts.append((data.decode("utf-8", "replace"), expected))
    return texts


def test_real_logs(shared_machines: Path) -> None:
    """Counts, cards and findings of real logs."""
    known = catalog.load()
    for text, expected in _real(shared_machines / "nvidia-bug-report"):
        assert bug_report.looks_like(text), expected["file"]
        machine = assemble(bug_report.parse(text), known)
        found = probing.judge(machine, None, known)
        cards = [(gpu.address, gpu.pci_id) for gpu in machine.gpus or ()]
        assert cards == [(gpu["address"], gpu["pci_id"]) for gpu in expected["gpus"]], expected["file"]
        assert (found.counts.pci, found.counts.nvml) == tuple(expected["counts"].values()), expected["file"]
        names = {finding.name for finding in found.findings}
        assert not names & set(expected["absent"]), expected["file"]
        for alternatives in expected["names"]:
            assert names & set(alternatives), (expected["file"], names)
        past = [finding for finding in found.findings if finding.name == "xid-reported"]
        assert all(finding.severity == "info" for finding in past), expected["file"]
        assert not any(gap.fact == "bug_report" for gap in machine.gaps), expected["file"]
