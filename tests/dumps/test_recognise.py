"""Texts of several tools, as people save and paste them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck import dumps
from gpucheck.facts import Parts

SMI = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 575.51.03              Driver Version: 575.51.03      CUDA Version: 12.9     |
|-----------------------------------------+------------------------+----------------------+
|   0  Tesla P40                      Off |   00000000:04:00.0 Off |                    0 |
| N/A   31C    P8              9W /  250W |       2MiB /  23040MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
"""
LSPCI = """\
04:00.0 3D controller [0302]: NVIDIA Corporation GP102GL [Tesla P40] [10de:1b38] (rev a1)
	Subsystem: NVIDIA Corporation Device [10de:11d9]
	Kernel driver in use: nvidia
82:00.0 3D controller [0302]: NVIDIA Corporation GP102GL [Tesla P40] [10de:1b38] (rev a1)
	Subsystem: NVIDIA Corporation Device [10de:11d9]
"""
DMESG = """\
[    9.046885] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  575.51.03
[   10.000001] NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:
               NVRM: BAR1 is 0M @ 0x0 (PCI:0000:82:00.0)
"""
LSMOD = "Module                  Size  Used by\nnvidia 56819712 2 nvidia_uvm\n"
DEVICES = "crw-rw-rw- 1 root root 195, 0 Nov  3 10:00 /dev/nvidia0\n"
DMI = """\
# dmidecode 3.2
Getting SMBIOS data from sysfs.
SMBIOS 3.3 present.
# SMBIOS implementations newer than version 3.2.0 are not
# fully supported by this version of dmidecode.

Handle 0x0001, DMI type 1, 27 bytes
System Information
	Manufacturer: Dell Inc.
	Product Name: PowerEdge R730

"""
LSCPU = "Architecture:        x86_64\nSocket(s):           2\nModel name:          Xeon\n"

ALL = {"lspci": LSPCI, "smi": SMI, "dmesg": DMESG, "lsmod": LSMOD, "devices": DEVICES, "dmi": DMI, "lscpu": LSCPU}


def recognised(text: str) -> Parts:
    """All parts in one."""
    found = dumps.recognise(text)
    assert found is not None
    values: dict[str, object] = {}
    for parts in found:
        values |= {name: value for name, value in parts if value not in (None, (), "", True)}
    return Parts.model_validate(values)


def check_all(text: str, *, driver_read: bool = True) -> None:
    parts = recognised(text)
    assert [(f.address, f.driver, f.driver_read) for f in parts.pci or ()] == [
        ("0000:04:00.0", "nvidia", True),
        ("0000:82:00.0", None, driver_read),
    ]
    assert parts.nvml is not None
    assert [gpu.name for gpu in parts.nvml.gpus or ()] == ["Tesla P40"]
    assert parts.kernel_log is not None
    assert len(parts.kernel_log.lines) == 2
    assert parts.kernel_log.lines[1].endswith("BAR1 is 0M @ 0x0 (PCI:0000:82:00.0)")
    assert parts.driver is not None
    assert (parts.driver.loaded_modules, parts.driver.device_files) == (("nvidia",), ("/dev/nvidia0",))
    assert parts.system is not None
    assert parts.system.product == "PowerEdge R730"
    assert parts.cpu is not None
    assert parts.cpu.packages == 2


def test_one_after_the_other() -> None:
    check_all("".join(ALL.values()))
    # At the end of the text a list may be cut off: then no driver line says nothing.
    check_all("".join(reversed(ALL.values())), driver_read=False)


@pytest.mark.parametrize(
    "prompt", ["$ ", "# ", "user@box:~$ ", "[root@box ~]# ", "root@box:/srv/data# ", "(base) me@box:~$ "]
)
def test_prompts(prompt: str) -> None:
    commands = {
        "lspci": "sudo lspci -nnk | grep -A3 NVIDIA",
        "smi": "nvidia-smi",
        "dmesg": "dmesg | grep -i nv",
        "lsmod": "lsmod",
        "devices": "ls -l /dev/nvidia*",
        "dmi": "sudo dmidecode -t 1",
        "lscpu": "lscpu",
    }
    pieces = [f"{prompt}{command}\n{ALL[name]}" for name, command in commands.items()]
    check_all("".join(pieces))
    log = recognised("".join(pieces)).kernel_log
    assert log is not None
    assert log.source == "dmesg"


def test_fences_and_prose_between() -> None:
    text = "Hello, one of two cards is missing.\n\n"
    text += "\n".join(f"Here is some more:\n```text\n{piece}```\nthat was it" for piece in ALL.values())
    check_all(text)


def test_short_answers_after_a_prompt() -> None:
    text = "me@box:~$ uname -r\n6.8.0-48-generic\nme@box:~$ cat /proc/cmdline\nBOOT_IMAGE=/x ro nomodeset\n"
    driver = recognised(text).driver
    assert driver is not None
    assert (driver.kernel_release, driver.kernel_command_line) == ("6.8.0-48-generic", "nomodeset")


def test_a_further_command_ends_the_one_before() -> None:
    parts = recognised(f"me@box:~$ dmesg\n{DMESG}me@box:~$ free -h\nMem: 5 GB\nme@box:~$ lsmod\n{LSMOD}")
    assert parts.kernel_log is not None
    assert not any("Mem" in line for line in parts.kernel_log.lines)


def test_topology_needs_the_table() -> None:
    text = SMI + "\n\tGPU0\tCPU Affinity\nGPU0\t X \t0-15\n"
    assert recognised(text).topology is not None


def test_a_log_of_the_bug_report_script() -> None:
    text = "Start of NVIDIA bug report log file.  Please include\n" + "_" * 44 + "\n\n/usr/bin/lspci -nn\n\n" + LSPCI
    (parts,) = dumps.recognise(text) or ()
    assert len(parts.pci or ()) == 2


@pytest.mark.parametrize("text", ["", "hello", DMI, DMESG, "{}", "FRU Device Description : PS1 (ID 1)\n", "a\n" * 5])
def test_what_others_recognise_is_left_to_them(text: str) -> None:
    assert dumps.recognise(text) is None


def test_damaged_dmidecode_is_a_gap() -> None:
    text = f"$ dmidecode\nnothing that it prints\n$ lscpu\n{LSCPU}"
    gaps = {gap.fact: gap.reason for parts in dumps.recognise(text) or () for gap in parts.gaps}
    assert gaps["system"] == "unreadable"


WORDS = st.sampled_from(
    [line for text in ALL.values() for line in text.splitlines()] + ["$ nvidia-smi", "", "\t", "--"]
)


@given(st.lists(WORDS | st.text(max_size=40), max_size=40), st.integers(0, 400))
def test_nothing_raises(lines: list[str], cut: int) -> None:
    text = "\n".join(lines)
    dumps.recognise(text)
    dumps.recognise(text[:cut])


def test_every_real_file_is_survived(shared_machines: Path) -> None:
    for folder in ("lspci", "nvidia-smi", "topo", "lscpu", "ipmi", "dmi", "dmi-psu", "dmesg", "lshw", "nccl-topo"):
        for path in sorted((shared_machines / folder).iterdir()):
            text = path.read_text("utf-8", "replace")
            found = dumps.recognise(text)
            for end in (len(text) // 3, len(text) // 2, len(text) - 5):
                dumps.recognise(text[:end])
            if folder == "lspci":
                assert found, path.name


def test_a_page_of_pasted_outputs(shared_machines: Path) -> None:
    parts = recognised((shared_machines / "lspci" / "stelline_asus-esc8000a-e12.md").read_text())
    assert parts.nvml is not None
    assert parts.topology is not None
    addresses = {gpu.address for gpu in parts.nvml.gpus or ()}
    cards = {function.address: function for function in parts.pci or () if function.vendor_id == 0x10DE}
    assert addresses == set(cards)
    assert parts.topology.matrix[0] == ("X", "NODE", "SYS", "SYS")
    assert {card.parent for card in cards.values()} == {"0000:00:01.1", "0000:40:01.1", "0000:c0:01.1", "0000:e0:01.1"}
    assert not parts.pci_complete
