"""The answer in one sentence, where what was given does not allow much of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.probing import Probe, probe

NO_DEVICES = "No devices were found\n"
P40S = """\
00:1f.0 ISA bridge [0601]: Intel Corporation C610/X99 series chipset LPC Controller [8086:8d44] (rev 05)
04:00.0 3D controller [0302]: NVIDIA Corporation GP102GL [Tesla P40] [10de:1b38] (rev a1)
\tKernel driver in use: nvidia
82:00.0 3D controller [0302]: NVIDIA Corporation GP102GL [Tesla P40] [10de:1b38] (rev a1)
\tKernel driver in use: nvidia
"""
ONE_P40 = "\n".join(P40S.splitlines()[1:3]) + "\n"
DMIDECODE = """\
# dmidecode 3.3
Getting SMBIOS data from sysfs.
SMBIOS 2.8 present.

Handle 0x0001, DMI type 1, 27 bytes
System Information
\tManufacturer: Dell Inc.
\tProduct Name: PowerEdge R730
"""
XID = "[   10.000000] NVRM: Xid (PCI:0000:83:00): 62, pid=1, halted\n"


def looked(folder: Path, text: str, **options: object) -> Probe:
    (folder / "given.txt").write_text(text)
    return probe([str(folder / "given.txt")], **options)  # type: ignore[arg-type]


def test_nvidia_smi_that_finds_nothing_leaves_it_unknown(tmp_path: Path) -> None:
    report = looked(tmp_path, NO_DEVICES)
    assert (report.verdict, report.exit_code) == ("unknown", 3)
    assert "nvidia-smi ran and found no card that it can use" in report.headline
    assert looked(tmp_path, NO_DEVICES, expect_gpus=1).exit_code == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (DMIDECODE, ("dmidecode", "lists no cards", "lspci -nnvvv", "nvidia-smi -q", "dmesg")),
        (XID, ("Xid 62", "the kernel log", "lspci -nnvvv", "nvidia-smi -q")),
    ],
)
def test_what_was_given_and_what_to_add(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    report = looked(tmp_path, text)
    assert report.verdict == "unknown"
    for word in words:
        assert word in report.headline
    assert ("sudo dmesg" in report.headline) is (text == DMIDECODE)


def test_no_problem_where_most_checks_had_no_facts(tmp_path: Path) -> None:
    report = looked(tmp_path, P40S)
    lacking = len(report.unchecked)
    assert report.headline.endswith(f"no problem in what was given; {lacking} checks had no facts.")


def test_an_excerpt_is_not_compared_with_the_baseline(tmp_path: Path) -> None:
    (tmp_path / "base.json").write_text(looked(tmp_path, P40S).model_dump_json(by_alias=True))
    report = looked(tmp_path, ONE_P40, baseline=str(tmp_path / "base.json"))
    assert report.changes == ()
    assert report.uncompared == (
        "Cards were not compared: this list may be an excerpt. Not seen here: 0000:82:00.0 Tesla P40."
    )
    (mismatch,) = [f for f in report.findings if f.name == "gpu-count-mismatch"]
    assert mismatch.confidence == "possible"
    assert "The list may be an excerpt" in mismatch.message
    assert "lspci" in mismatch.remedy[0]


def test_the_log_speaks_of_a_card_that_an_excerpt_lacks(tmp_path: Path) -> None:
    unplaced = "[    1.0] pci 0000:82:00.0: BAR 1: failed to assign [mem size 0x800000000 64bit pref]\n"
    report = looked(tmp_path, f"$ lspci -nnk\n{ONE_P40}$ dmesg\n{unplaced.replace('1.0]', '1.000000]')}")
    assert [(f.name, f.subject, f.confidence) for f in report.findings] == [
        ("bar-unassigned", "0000:82:00.0", "possible")
    ]
