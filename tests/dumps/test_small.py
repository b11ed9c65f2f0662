"""Short outputs: lscpu, lsmod, ls, modinfo, uname, sensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck import dumps
from gpucheck.dumps import small
from gpucheck.facts import Driver, Power, Psu
from gpucheck.merging import merge

LSCPU = """\
Architecture:          x86_64
Address sizes:         46 bits physical, 48 bits virtual
CPU(s):                32
On-line CPU(s) list:   0-21
Off-line CPU(s) list:  22-31
Socket(s):             2
NUMA node(s):          2
Model name:            Intel(R) Xeon(R) CPU E5-2630 v3 @ 2.40GHz
Flags:                 fpu vme sse sse2 avx avx2
"""


def test_lscpu() -> None:
    parts = small.lscpu(LSCPU)
    cpu = parts.cpu
    assert cpu is not None
    assert cpu.model == "Intel(R) Xeon(R) CPU E5-2630 v3 @ 2.40GHz"
    assert (cpu.packages, cpu.numa_nodes, cpu.logical_cpus, cpu.physical_address_bits) == (2, 2, 22, 46)
    assert (cpu.has_avx, cpu.hypervisor) == (True, None)
    assert parts.gaps == ()


@pytest.mark.parametrize(
    ("line", "hypervisor"),
    [("Hypervisor vendor: KVM", "KVM"), ("Flags: fpu hypervisor", "unknown"), ("Flags: fpu", None)],
)
def test_hypervisor(line: str, hypervisor: str | None) -> None:
    parts = small.lscpu(f"Architecture: x86_64\n{line}\n")
    assert parts.cpu is not None
    assert parts.cpu.hypervisor == hypervisor
    assert "cpu.hypervisor" not in {gap.fact for gap in parts.gaps}


def test_lscpu_without_flags_leaves_gaps() -> None:
    parts = small.lscpu("Architecture: aarch64\nSocket(s): -\nCPU(s): 4\n")
    assert parts.cpu is not None
    assert (parts.cpu.packages, parts.cpu.logical_cpus, parts.cpu.has_avx) == (None, 4, None)
    facts = {gap.fact for gap in parts.gaps}
    assert {"cpu.packages", "cpu.has_avx", "cpu.hypervisor", "cpu.model"} <= facts


LSMOD = """\
Module                  Size  Used by
nvidia_uvm           1540096  0
nouveau              2412544  -2
nvidia              56819712  2 nvidia_uvm,nvidia_modeset
"""
PROC = """\
nvidia_uvm 1126400 0 - Live 0xffffffffc0769000 (OE)
nvidia 40792064 321 nvidia_uvm, Live 0xffffffffc3243000 (POE)
"""


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        (LSMOD, ("nvidia", "nvidia_uvm", "nouveau")),
        (PROC, ("nvidia", "nvidia_uvm")),
        ("Module                  Size  Used by\next4 1 1\n", ()),
        ("nvidia              56819712  2 nvidia_uvm\n", ("nvidia",)),
        ("nouveau              2412544  1\n", None),  # a filter let only this through
        ("", None),
    ],
)
def test_lsmod(text: str, modules: tuple[str, ...] | None) -> None:
    assert small.lsmod(text).loaded_modules == modules


@pytest.mark.parametrize(
    ("text", "files"),
    [
        (
            "crw-rw-rw- 1 root root 195,   1 Nov  3 10:00 /dev/nvidia1\n"
            "crw-rw-rw-. 1 root root 195,  10 Nov  3 10:00 /dev/nvidia10\n"
            "crw-rw-rw- 1 root root 195, 255 Nov  3 10:00 /dev/nvidiactl\n\n/dev/nvidia-caps:\ntotal 0\n"
            "cr-------- 1 root root 237, 1 Nov  3 10:00 nvidia-cap1\n",
            ("/dev/nvidia1", "/dev/nvidia10"),
        ),
        ("/dev/nvidia0  /dev/nvidia1  /dev/nvidiactl  /dev/nvidia-uvm\n", ("/dev/nvidia0", "/dev/nvidia1")),
        ("crw-rw-rw-  1 root root    195,   0 Nov  3 10:00 nvidia0\n", ("/dev/nvidia0",)),
        ("crw-rw-rw- 1 root root 195, 255 Nov  3 10:00 /dev/nvidiactl\n", ()),
        ("ls: cannot access '/dev/nvidia*': No such file or directory\n", ()),
        ("something about /dev/nvidia0 and more\n", None),
    ],
)
def test_device_files(text: str, files: tuple[str, ...] | None) -> None:
    assert small.device_files(text).device_files == files


def test_versions() -> None:
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.64.03  Release Build  (x)\nGCC version: 13\n"
    driver = small.driver_version(line)
    assert (driver.nvidia_version, driver.nvidia_flavour) == ("575.64.03", "open")
    assert small.driver_version("no such file") == Driver()
    assert small.uname("Linux box 6.8.0-48-generic #48~22.04 SMP x86_64 GNU/Linux").kernel_release == "6.8.0-48-generic"
    assert small.uname("6.1.0-18-amd64\n").kernel_release == "6.1.0-18-amd64"
    assert small.uname("no release").kernel_release is None


@pytest.mark.parametrize(
    ("text", "installed"),
    [
        ("filename:       /lib/modules/6.8.0/updates/dkms/nvidia.ko.zst\nversion: 575\n", True),
        ("modinfo: ERROR: Module nvidia not found.\n", False),
        ("", None),
    ],
)
def test_modinfo(text: str, installed: bool | None) -> None:
    assert small.modinfo(text).nvidia_module_installed is installed


def test_drivers_are_filled_and_the_rest_is_a_gap() -> None:
    driver = small.filled((small.lsmod(LSMOD), Driver(kernel_release="6.8"), Driver(kernel_release="5.4")))
    assert (driver.kernel_release, driver.loaded_modules) == ("6.8", ("nvidia", "nvidia_uvm", "nouveau"))
    facts = {gap.fact: gap.how for gap in small.driver_parts(driver).gaps}
    assert facts["driver.device_files"] == "Not in the text: ls -l /dev/nvidia*"
    assert "driver.kernel_release" not in facts


def test_a_module_that_is_not_loaded_has_no_version_to_miss() -> None:
    facts = {gap.fact for gap in small.driver_parts(Driver(loaded_modules=("nouveau",))).gaps}
    assert "driver.nvidia_version" not in facts
    assert "driver.nvidia_module_installed" in facts


def test_sensors() -> None:
    text = (
        "Power Supply 1   | 90 Watts          | ok\n"
        "Power Supply 2   | 0 Watts           | ok\n"
        "Power Supplies   | 0x00              | ok\n"
        "Fan 1            | 33.32 percent     | ok\n"
        "PS3 Status       | C8h | ok  | 10.1 | Presence detected, Power Supply AC lost\n"
        "PSU4_Status      | C9h | ok  | 10.2 | Presence detected\n"
        "PS5 Status       | 0x01              | ok\n"
    )
    parts = small.sensors(text)
    found = [(psu.location, psu.present, psu.plugged, psu.watts) for psu in parts.psus or ()]
    assert found == [
        ("Power Supply 1", True, True, None),
        ("Power Supply 2", None, None, None),
        ("Power Supply 3", True, False, None),
        ("Power Supply 4", True, None, None),
        ("Power Supply 5", None, None, None),
    ]


def test_a_unit_called_failed_at_0_watts_is_a_gap() -> None:
    line = "Power Supply 2 | 34h | ok | 10.2 | 0 Watts, Presence detected, Failure detected\n"
    assert {gap.fact for gap in small.sensors(line).gaps} == {"psus.watts", "psus.Power Supply 2.failed"}


BMC = """\
$ sudo ipmitool sdr elist
Inlet Temp       | 04h | ok  |  7.1 | 21 degrees C
PS Redundancy    | 77h | ok  |  7.1 | Redundancy Lost
Status           | 85h | ok  | 10.1 | Presence detected
Status           | 86h | ok  | 10.2 | Presence detected, Failure detected
$ sudo ipmitool dcmi power reading

    Instantaneous power reading:                   312 Watts
    Minimum during sampling period:                  2 Watts
    Power reading state is:                   activated

$ sudo ipmitool sel elist
   1 | 11/03/2026 | 10:11:12 | Power Supply PS2 Status | Failure detected | Asserted
   2 |  Pre-Init  |0000001459| Event Logging Disabled SEL | Log area reset/cleared | Asserted
"""


def test_what_a_bmc_says_in_one_text() -> None:
    parts = dumps.recognise(BMC) or []
    assert [part.power for part in parts] == [
        Power(redundancy="lost", redundancy_text="PS Redundancy: Redundancy Lost"),
        Power(drawn_watts=312),
        None,
    ]
    assert parts[0].psus == (
        Psu(location="Power Supply 1", present=True),
        Psu(location="Power Supply 2", present=True, failed=True),
    )
    assert parts[2].bmc_events == (
        "1 | 11/03/2026 | 10:11:12 | Power Supply PS2 Status | Failure detected | Asserted",
        "2 | Pre-Init |0000001459| Event Logging Disabled SEL | Log area reset/cleared | Asserted",
    )
    whole = merge(parts).power
    assert whole is not None
    assert (whole.redundancy, whole.drawn_watts) == ("lost", 312)


@pytest.mark.parametrize("text", ["", "just words", "Power Supply 1 is dead", "a | b", "nvidia 5 6 seven eight"])
def test_other_text_is_not_taken(text: str) -> None:
    assert not small.looks_like(text)


def test_real_lscpu(shared_machines: Path) -> None:
    for path in (shared_machines / "lscpu").iterdir():
        text = path.read_text()
        assert small.looks_like(text)
        cpu = small.lscpu(text).cpu
        assert cpu is not None
        assert cpu.model
        assert cpu.packages in (1, 2)
        assert cpu.has_avx
