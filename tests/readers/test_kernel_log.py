"""Kernel logs: reading the ring buffer, and the forms in which people keep and paste them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support import tree

from gpucheck.host import Completed, LiveHost
from gpucheck.readers import kernel_log

INVALID = "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:"
BAR1 = "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:4f:00.0)"
JOINED = f"{INVALID} BAR1 is 0M @ 0x0 (PCI:0000:4f:00.0)"
PROBE = "nvidia: probe of 0000:4f:00.0 failed with error -1"

INDENT = " " * 15
PREFIXES = {
    "kmsg": ("4,900,45606250,-;", "4,901,45606251,-;", "3,902,45606542,-;"),
    "dmesg": ("[   45.606250] ", INDENT, "[   45.606542] "),
    "dmesg, every line stamped": ("[   45.606250] ", "[   45.606250] ", "[   45.606542] "),
    "dmesg --raw": ("<4>[   45.606250] ", "<4>[   45.606250] ", "<3>[   45.606542] "),
    "dmesg --decode": ("kern  :warn  : [   45.606250] ", INDENT, "kern  :err   : [   45.606542] "),
    "dmesg --ctime": ("[Tue Apr  2 18:03:56 2024] ", INDENT, "[Tue Apr  2 18:03:57 2024] "),
    "dmesg --human": ("[Apr 2 18:03] ", INDENT, "[  +0.000292] "),
    "dmesg --show-delta": ("[   45.606250 <    0.001234>] ", INDENT, "[   45.606542 <    0.000292>] "),
    "dmesg --time-format=iso": ("2024-04-02T18:03:56,123456+02:00 ", INDENT, "2024-04-02T18:03:57,123456+02:00 "),
    "dmesg with callers": ("[   45.606250][  T812] ", "[   45.606251][  T812] ", "[   45.606542][    C3] "),
    "dmesg without stamps": ("", "", ""),
    "dmesg, priorities alone": ("<4>", "<4>", "<3>"),
    "dmesg, pasted as a quotation": ("    [   45.606250] ", "    [   45.606250] ", "\n    [   45.606542] "),
    "journalctl": ("Nov 12 10:00:00 host kernel: ", INDENT, "Nov 12 10:00:01 host kernel: "),
    "journalctl in another language": ("5月 29 17:51:15 host kernel: ", INDENT, "5月 29 17:51:15 host kernel: "),
    "journalctl -o short-monotonic": ("[   45.606250] host kernel: ", INDENT, "[   45.606542] host kernel: "),
    "journalctl --no-hostname": ("[   45.606250] kernel: ", INDENT, "[   45.606542] kernel: "),
    "journalctl -o short-iso": ("2024-11-12T10:00:00+0100 h kernel: ", INDENT, "2024-11-12T10:00:00+0100 h kernel: "),
    "journalctl -o short-full": (
        "Tue 2024-11-12 10:00:00 CET h kernel: ",
        INDENT,
        "Tue 2024-11-12 10:00:01 CET h kernel: ",
    ),
    "journalctl -o short-unix": ("1731405600.123456 h kernel: ", INDENT, "1731405600.123456 h kernel: "),
    "syslog": (
        "Nov 12 10:00:00 host kernel: [   45.606250] ",
        "Nov 12 10:00:00 host kernel: [   45.606250] ",
        "Nov 12 10:00:00 host kernel: [   45.606542] ",
    ),
    "a journal of everything": (
        f"Nov 12 10:00:00 host systemd[1]: Started\n{INDENT}more of it\nNov 12 10:00:00 host kernel: ",
        INDENT,
        "Nov 12 10:00:00 host (udev-worker)[812]: nvidia: Failed\nNov 12 10:00:00 host kernel: ",
    ),
}
"""What stands before the first line of a message, before the rest of it, and before the next."""

FORMS = {
    name: f"{first}{INVALID}\n{rest}{BAR1}\n{following}{PROBE}\n" for name, (first, rest, following) in PREFIXES.items()
} | {
    "kmsg, one record": f"4,900,45606250,-;{INVALID}\\x0a{BAR1}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:4f:00.0\n"
    f"3,901,45606542,-;{PROBE}\n",
    "rsyslog": f"2025-07-13T05:57:55.113798+08:00 host kernel: [   45.606250] {INVALID}#012{BAR1}\n"
    f"2025-07-13T05:57:56.113798+08:00 host kernel: [   45.606542] {PROBE}\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    log = kernel_log.parse(FORMS[form], "file")
    assert log.lines == (JOINED, PROBE)
    assert not log.complete
    assert kernel_log.looks_like_kernel_log(FORMS[form])
    assert kernel_log.parse(FORMS[form].replace("\n", "\r\n"), "file").lines == log.lines


FELL_OFF = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0 (PCI ID: 10de:26b5) installed in this system has "
    "fallen off the bus and is not responding to commands."
)
STAMP = "[ 1843.308145] "


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            [
                "NVRM: The NVIDIA GPU 0000:b3:00.0",
                "NVRM: (PCI ID: 10de:26b5) installed in this system has",
                "NVRM: fallen off the bus and is not responding to commands.",
                "NVRM: The NVIDIA probe routine failed for 1 device(s).",
                "NVRM: loading NVIDIA UNIX Open Kernel Module",
            ],
            [
                FELL_OFF,
                "NVRM: The NVIDIA probe routine failed for 1 device(s).",
                "NVRM: loading NVIDIA UNIX Open Kernel Module",
            ],
        ),
        (
            [
                "NVRM: API mismatch: the client has the version 535.113.01, but",
                "NVRM: this kernel module has the version 535.104.05.  Please",
                "NVRM: make sure that this kernel module and all NVIDIA driver",
                "NVRM: components have the same version.",
                "NVRM: API mismatch: the client has the version 535.113.01, but",
            ],
            [
                "NVRM: API mismatch: the client has the version 535.113.01, but this kernel module has the version "
                "535.104.05. Please make sure that this kernel module and all NVIDIA driver components have the same "
                "version.",
                "NVRM: API mismatch: the client has the version 535.113.01, but",
            ],
        ),
        (  # separate messages of one second stay apart
            [
                "NVRM: GPU at PCI:0000:a1:00: GPU-32123173-3295-2662-6859-000000000016",
                "NVRM: Xid (PCI:0000:a1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                "NVRM: GPU 0000:a1:00.0: GPU has fallen off the bus.",
            ],
            [
                "NVRM: GPU at PCI:0000:a1:00: GPU-32123173-3295-2662-6859-000000000016",
                "NVRM: Xid (PCI:0000:a1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                "NVRM: GPU 0000:a1:00.0: GPU has fallen off the bus.",
            ],
        ),
        (  # a sentence whose end is lost swallows no Xid
            ["NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus."],
            ["NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus."],
        ),
    ],
)
def test_driver_messages_over_several_stamped_lines(lines: list[str], expected: list[str]) -> None:
    text = "".join(f"{STAMP}{line}\n" for line in lines)
    assert list(kernel_log.parse(text, "dmesg").lines) == expected


def test_indented_lines_continue_any_message_and_others_none() -> None:
    text = (
        "[    1.000000] mpt3sas: config\n               of two lines\nstray line\n[    2.000000] usb 1-1: new device\n"
    )
    assert kernel_log.parse(text, "dmesg").lines == (
        "mpt3sas: config of two lines",
        "stray line",
        "usb 1-1: new device",
    )


def boot(number: int) -> str:
    return f"[    0.000000] Linux version 6.8.0-{number}\n[    1.000000] pci 0000:04:00.0: boot {number}\n"


@pytest.mark.parametrize("between", ["", "-- Boot 3f1c9d02aa0b4c5d8e9f00112233aabb --\n", "-- Reboot --\n"])
def test_only_the_last_boot_counts(between: str) -> None:
    log = kernel_log.parse(f"-- Logs begin at Mon 2024-01-01 --\n{boot(1)}{between}{boot(2)}", "journal")
    assert log.lines == ("Linux version 6.8.0-2", "pci 0000:04:00.0: boot 2")
    assert log.complete


def test_a_boot_whose_beginning_is_lost_is_not_complete() -> None:
    log = kernel_log.parse(f"{boot(1)}-- Reboot --\n[   99.000000] usb 1-1: new device\n", "journal")
    assert log.lines == ("usb 1-1: new device",)
    assert not log.complete


def test_an_empty_journal_holds_no_line() -> None:
    assert kernel_log.parse("-- No entries --\n", "journal").lines == ()


def test_hostile_lines_are_cleaned() -> None:
    log = kernel_log.parse("4,1,2,-;usb 1-1: Product: \\x1b[2J\\xe2\\x80\\xaex\\x5cx0a\n", "kmsg")
    assert log.lines == ("usb 1-1: Product: x\\x0a",)


def test_devices_that_look_like_programs_are_kept() -> None:
    lines = ("usb 1-1: New USB device found", "ata3: SATA link down", "[drm] Initialized", "[Firmware Bug]: TSC")
    text = "".join(f"[    2.646272] {line}\n" for line in lines)
    assert kernel_log.parse(text, "dmesg").lines == lines
    iso = text.replace("[    2.646272]", "2024-04-02T18:03:56,123456+02:00")
    assert kernel_log.parse(iso, "dmesg").lines == lines


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[     3.512] (II) LoadModule: nvidia\n[     3.513] (II) Loading\n",
        "[Feb 25 2025 13:59:45] [INFO] [tid 1808] multicast group 0 is freed.\n",
        "Nov 12 10:00:00 host systemd[1]: Started\n",
        "Linux version 6.8.0 (builder) #1 SMP\n",  # /proc/version
        "Handle 0x0900, DMI type 9, 17 bytes\nSystem Slot Information\n",
        "04:00.0 3D controller: NVIDIA Corporation GP102GL\n\tKernel driver in use: nvidia\n",
    ],
)
def test_other_text_is_not_taken_for_a_kernel_log(text: str) -> None:
    assert not kernel_log.looks_like_kernel_log(text)


# --- reading ----------------------------------------------------------------------------------


class Answering(LiveHost):
    """A folder with a ring buffer and programs: what they give, or the error that asking raises."""

    def __init__(self, root: Path, ring: bytes | OSError, programs: Mapping[str, Completed | OSError]) -> None:
        super().__init__(root)
        self.ring, self.programs = ring, programs

    def kernel_messages(self) -> bytes:
        if isinstance(self.ring, OSError):
            raise self.ring
        return self.ring

    def run(self, argv: Sequence[str], timeout: float) -> Completed:
        answer = self.programs.get(argv[0], FileNotFoundError(2, "no such program", argv[0]))
        if isinstance(answer, OSError):
            raise answer
        return answer


FORBIDDEN = PermissionError(1, "Operation not permitted")
NO_RING = FileNotFoundError(2, "No such file or directory")
RECORDS = f"5,0,0,-;Linux version 6.8.0\n6,9,1,-;{PROBE}\n".encode()


def test_the_ring_buffer_comes_first(tmp_path: Path) -> None:
    host = Answering(tmp_path, RECORDS, {"dmesg": Completed(0, "[    1.000000] other\n", "")})
    parts = kernel_log.read(host)
    assert parts.origin == host.name
    assert parts.kernel_log is not None
    assert (parts.kernel_log.source, parts.kernel_log.lines[1], parts.gaps) == ("kmsg", PROBE, ())


def test_a_ring_that_lost_the_boot_says_so(tmp_path: Path) -> None:
    parts = kernel_log.read(Answering(tmp_path, RECORDS.partition(b"\n")[2], {}))
    assert parts.kernel_log is not None
    assert not parts.kernel_log.complete
    assert [(gap.fact, gap.reason) for gap in parts.gaps] == [("kernel_log.beginning", "not-in-input")]


def test_the_journal_is_open_where_the_ring_is_not(tmp_path: Path) -> None:
    refused = Completed(1, "", "dmesg: read kernel buffer failed: Operation not permitted")
    journal = Completed(0, f"[    0.000000] host kernel: Linux version 6\n[    1.000000] host kernel: {PROBE}\n", "")
    parts = kernel_log.read(Answering(tmp_path, FORBIDDEN, {"dmesg": refused, "journalctl": journal}))
    assert parts.kernel_log is not None
    assert (parts.kernel_log.source, parts.kernel_log.lines[1:]) == ("journal", (PROBE,))


@pytest.mark.parametrize(
    ("ring", "programs", "reason"),
    [
        (FORBIDDEN, {}, "needs-root"),
        (FORBIDDEN, {"journalctl": TimeoutError("journalctl")}, "needs-root"),
        (NO_RING, {"dmesg": Completed(1, "", "dmesg: Operation not permitted")}, "needs-root"),
        (NO_RING, {"journalctl": TimeoutError("journalctl")}, "timed-out"),
        (NO_RING, {"journalctl": Completed(0, "-- No entries --\n", "")}, "file-absent"),
        (b"", {}, "file-absent"),
    ],
)
def test_no_log_is_a_gap(
    tmp_path: Path, ring: bytes | OSError, programs: Mapping[str, Completed | OSError], reason: str
) -> None:
    parts = kernel_log.read(Answering(tmp_path, ring, programs))
    assert parts.kernel_log is None
    assert [(gap.fact, gap.reason) for gap in parts.gaps] == [("kernel_log", reason)]


def test_a_folder_is_read_by_its_log_files(tmp_path: Path) -> None:
    parts = kernel_log.read(tree(tmp_path, {"/var/log/kern.log": FORMS["syslog"]}))
    assert parts.kernel_log is not None
    assert (parts.kernel_log.source, parts.kernel_log.lines) == ("file", (JOINED, PROBE))


def test_a_log_file_of_a_live_machine_may_be_of_another_boot(tmp_path: Path) -> None:
    tree(tmp_path, {"/var/log/dmesg": FORMS["dmesg"]})
    host = Answering(tmp_path, NO_RING, {})
    assert kernel_log.read(host).kernel_log is not None
    host.live = True
    host.text = LiveHost(tmp_path).text  # type: ignore[method-assign]
    assert kernel_log.read(host).kernel_log is None


def test_the_live_ring_buffer_is_read_without_waiting() -> None:
    try:
        records = LiveHost().kernel_messages()
    except OSError as refused:
        pytest.skip(f"/dev/kmsg cannot be read here: {refused}")
    lines = [line for line in records.split(b"\n") if line and not line.startswith(b" ")]
    assert all(line.partition(b",")[0].isdigit() for line in lines)


def test_a_user_whom_the_kernel_refuses_is_told_to_use_sudo() -> None:
    restricted = Path("/proc/sys/kernel/dmesg_restrict")
    if sys.platform == "win32" or os.geteuid() != 0 or not restricted.exists() or restricted.read_text().strip() != "1":
        pytest.skip("needs root and a kernel that restricts its messages")
    program = (
        "import os; from gpucheck.host import LiveHost; from gpucheck.readers import kernel_log\n"
        "kernel_log.parse('', 'file'); os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(*(gap.reason + ': ' + gap.how for gap in kernel_log.read(LiveHost()).gaps))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("needs-root: sudo /usr/bin/dmesg")


# --- other people's machines ------------------------------------------------------------------


def test_real_logs(shared_machines: Path) -> None:
    logs = {path.name: path.read_text(errors="replace") for path in sorted((shared_machines / "dmesg").iterdir())}
    lines = {name: kernel_log.parse(text, "file").lines for name, text in logs.items()}
    for name, text in logs.items():
        assert kernel_log.looks_like_kernel_log(text) == (name != "gpud_fabricmanager.log"), name
        # no word is added: what stands in a line stands in the file
        known = {*text.split(), *text.replace(";", " ").split()}
        assert all(set(line.split()) <= known for line in lines[name] if not line.endswith("…")), name
    assert FELL_OFF in lines["nvrm_fallen-off_at-probe_no-xid.log"]
    assert f"{INVALID} BAR1 is 0M @ 0x0 (PCI:0000:73:00.0)" in lines["nvrm_bar1-0M_precision7920_v100.log"]
    assert f"{INVALID} BAR1 is 256M @ 0x00000000 (PCI:30000000:01.0)" in lines["nvrm_bar1_above4g_2008-wording.log"]
    assert sum("Xid (PCI:0000:a1:00): 79" in line for line in lines["nvrm_xid79_fallen-off.log"]) == 1
    assert len(lines["gpud_dmesg-xid-119.log"]) == len(logs["gpud_dmesg-xid-119.log"].splitlines())
    assert kernel_log.parse(logs["rhcip_dmesg.txt"], "file").complete


LEGACY = (
    "NVRM: The NVIDIA GeForce GT 1030 GPU installed in this system is",
    "NVRM:  supported through the NVIDIA 580.xx Legacy drivers. Please",
    "NVRM:  visit http://www.nvidia.com/object/unix.html for more",
    "NVRM:  information.  The 610.43.02 NVIDIA driver will ignore",
    "NVRM:  this GPU.  Continuing probe...",
    "NVRM: No NVIDIA GPU found.",
)


def test_a_product_that_a_legacy_driver_drives_is_one_message() -> None:
    stamped = "".join(f"[    5.100000] {line}\n" for line in LEGACY)
    first, second = kernel_log.parse(stamped, "dmesg").lines
    assert "supported through the NVIDIA 580.xx Legacy drivers" in first
    assert first.endswith("The 610.43.02 NVIDIA driver will ignore this GPU. Continuing probe...")
    assert second == LEGACY[-1]


def test_faults_of_earlier_boots_are_kept_apart() -> None:
    xid = "NVRM: Xid (PCI:0000:04:00): 62, x"
    lines = (
        "Nov 10 10:00:00 host kernel: Linux version 6.8.0",
        f"Nov 10 10:00:01 host kernel: {xid}",
        f"Nov 10 10:00:02 host kernel: {xid}",
        "Nov 10 10:00:03 host kernel: NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "-- Boot 0123456789abcdef0123456789abcdef --",
        "Nov 11 10:00:01 host kernel: NVRM: GPU 0000:04:00.0: RmInitAdapter failed! (0x62:0x65:1792)",
        "Nov 12 10:00:00 host kernel: Linux version 6.8.0",
        "Nov 12 10:00:01 host kernel: NVRM: Xid (PCI:0000:04:00): 13, y",
    )
    log = kernel_log.parse("\n".join(lines), "journal")
    assert log.earlier == (xid, "NVRM: GPU 0000:04:00.0: RmInitAdapter failed! (0x62:0x65:1792)")
    assert log.lines == ("Linux version 6.8.0", "NVRM: Xid (PCI:0000:04:00): 13, y")
