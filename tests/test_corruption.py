"""Damaged input: nothing crashes, and damage never turns a problem into a clean bill of health.

What that means. A machine with a problem, its input damaged, may be judged ``ok`` only if for each error
that is lost

* its rule is listed as unchecked, though it was not before; or
* a gap that was not there before speaks of a fact that the rule rests on; or
* the input is a listing of lspci of which a gap says that nothing shows its end.

Two things no reader can notice, and they are not asked for: a log that ends earlier, for a log may end
at any line; and a value that was changed into another one that is well formed. So what is asked here is
damage by loss (an end or a beginning that is missing, a part that is gone, a line that is gone) and by
noise (bytes that no tool writes). Doubled and swapped lines and single bits must merely not crash.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpucheck.assemble import assemble
from gpucheck.capture import from_json
from gpucheck.catalog import Catalog, load
from gpucheck.errors import InputError
from gpucheck.findings import Finding
from gpucheck.host import Host
from gpucheck.probing import Probe, judge, read
from gpucheck.rules import module_name
from gpucheck.sources import recognise

MACHINES = Path(__file__).parent / "machines"
BOUNDED = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck), derandomize=True)

Document = dict[str, Any]
Damage = Callable[[bytes], bytes]


@cache
def catalog() -> Catalog:
    return load()


def judged(opened: Host | tuple[Any, ...]) -> Probe:
    parts = opened if isinstance(opened, tuple) else read(opened)
    return judge(assemble(parts, catalog()), None, catalog())


def of_text(data: bytes) -> Probe | None:
    """None for what was refused; nothing but InputError may be raised."""
    try:
        report = judged(recognise("text", data))
    except InputError:
        return None
    report.model_dump_json(by_alias=True)
    return report


def of_capture(document: Document) -> Probe | None:
    try:
        report = judged(from_json("capture", document))
    except InputError:
        return None
    report.model_dump_json(by_alias=True)
    return report


# --- what may be lost ---------------------------------------------------------------------------

LOGS = frozenset({"dmesg", "/dev/kmsg", "journalctl -k -b", "kernel log file"})
ABOVE = {"gpus": {"gpus", "pci", "nvml"}, "pci": {"gpus", "pci"}, "nvml": {"gpus", "nvml"}}
ALL = frozenset({"gpus", "pci", "nvml", "kernel_log", "driver", "psus", "cpu_sockets", "slots"})


def facts_of(name: str) -> set[str]:
    """First words of the gaps that speak of what a rule rests on."""
    needs = import_module(module_name(name)).NEEDS
    return {fact for need in needs for fact in ABOVE.get(need, {need})} or set(ALL)


def unexcused(before: Probe, after: Probe | None) -> list[str]:
    """Errors that are lost without a word."""
    if after is None or after.verdict != "ok":
        return []
    unchecked = {entry.name for entry in after.unchecked if entry not in before.unchecked}
    new = {gap.fact.partition(".")[0] for gap in after.machine.gaps if gap not in before.machine.gaps}
    open_end = any(gap.fact == "pci.complete" for gap in after.machine.gaps)
    return [
        finding.name
        for finding in before.findings
        if finding.severity == "error"
        and finding.name not in unchecked
        and not new & facts_of(finding.name)
        and not (open_end and facts_of(finding.name) & {"pci"})
        and not _rests_on_the_log(finding)
    ]


def _rests_on_the_log(finding: Finding) -> bool:
    return bool(finding.evidence) and all(evidence.source in LOGS for evidence in finding.evidence)


# --- damage -------------------------------------------------------------------------------------


@st.composite
def losses(draw: st.DrawFn) -> Damage:
    """An end, a beginning or a line is gone, or bytes are noise."""
    kind = draw(st.sampled_from(["end", "beginning", "line", "noise", "all"]))
    share = draw(st.floats(0, 1))
    length = draw(st.integers(1, 12))

    def damage(data: bytes) -> bytes:
        place = int(share * len(data))
        lines = data.split(b"\n")
        match kind:
            case "end":
                return data[:place]
            case "beginning":
                return data[place:]
            case "line":
                del lines[min(int(share * len(lines)), len(lines) - 1)]
                return b"\n".join(lines)
            case "noise":
                return data[:place] + b"\xff" * min(length, len(data) - place) + data[place + length :]
        return b""

    return damage


@st.composite
def alterations(draw: st.DrawFn) -> Damage:
    """Bits flipped, lines doubled and swapped, several at a time."""
    steps = draw(
        st.lists(st.tuples(st.sampled_from(["flip", "double", "swap"]), st.floats(0, 1)), min_size=1, max_size=6)
    )
    value = draw(st.integers(0, 255))

    def damage(data: bytes) -> bytes:
        for kind, share in steps:
            lines = data.split(b"\n")
            place = min(int(share * len(lines)), len(lines) - 1)
            if kind == "flip" and data:
                at = min(int(share * len(data)), len(data) - 1)
                data = data[:at] + bytes([value]) + data[at + 1 :]
            elif kind == "double":
                data = b"\n".join([*lines[: place + 1], *lines[place:]])
            elif kind == "swap" and place:
                lines[place - 1], lines[place] = lines[place], lines[place - 1]
                data = b"\n".join(lines)
        return data

    return damage


# --- captures -----------------------------------------------------------------------------------


@cache
def captures() -> dict[str, tuple[Document, Probe]]:
    found = {}
    for path in sorted(MACHINES.glob("*/capture.json")):
        document = json.loads(path.read_bytes())
        report = of_capture(document)
        assert report is not None
        found[path.parent.name] = document, report
    return found


def problems() -> list[str]:
    return [name for name, (_, report) in captures().items() if report.verdict == "problem"]


def with_part(document: Document, path: str, damage: Damage) -> Document:
    content = document["files"][path]
    if isinstance(content, str):
        changed: Any = {"base64": base64.b64encode(damage(content.encode())).decode()}
    elif "base64" in content:
        changed = {"base64": base64.b64encode(damage(base64.b64decode(content["base64"]))).decode()}
    else:
        return document
    return {**document, "files": {**document["files"], path: changed}}


@pytest.mark.parametrize("how", ["gone", "EIO", "EACCES"])
def test_every_part_of_a_broken_machine_matters_or_is_missed(how: str) -> None:
    """Each file of the problem machines in turn: but for those about PCI devices that are no GPU, all of them."""
    for name in problems()[:: 1 if how == "gone" else 3]:
        document, before = captures()[name]
        for path in document["files"]:
            files = dict(document["files"])
            if how == "gone":
                del files[path]
            else:
                files[path] = {"error": how}
            assert unexcused(before, of_capture({**document, "files": files})) == [], (name, path)


@pytest.mark.parametrize("name", problems())
def test_a_card_that_cannot_be_read_is_not_passed_over(name: str) -> None:
    """Each card of the problem machines in turn: listed on PCI, and nothing of it could be read. Whoever sees
    no problem then has not seen all."""
    document, before = captures()[name]
    for gpu in before.machine.gpus or ():
        files = dict(document["files"])
        own = [path for path in files if path.startswith("/sys/") and f"/{gpu.address}/" in path]
        files |= {path: {"error": "EIO"} for path in own}
        after = of_capture({**document, "files": files})
        assert after is not None
        if gpu.on_pci:
            assert own
            assert after.counts.pci is None
            assert (after.verdict, after.exit_code) in {("problem", 1), ("unknown", 3)}
            if after.verdict == "unknown" and after.machine.nvml is not None and after.machine.nvml.status == "ok":
                assert "one function on PCI could not be read: a card may be it" in after.headline


@BOUNDED
@given(st.data())
def test_loss_in_a_capture_is_told(data: st.DataObject) -> None:
    document, before = captures()[data.draw(st.sampled_from(problems()))]
    path = data.draw(st.sampled_from(sorted(document["files"])))
    assert unexcused(before, of_capture(with_part(document, path, data.draw(losses())))) == []


@BOUNDED
@given(st.data())
def test_altered_captures_do_not_crash(data: st.DataObject) -> None:
    document, _ = captures()[data.draw(st.sampled_from(sorted(captures())))]
    for path in data.draw(st.lists(st.sampled_from(sorted(document["files"])), min_size=1, max_size=4)):
        document = with_part(document, path, data.draw(alterations()))
    of_capture(document)


@BOUNDED
@given(st.data())
def test_answers_of_nvml_that_are_cut_off_are_told(data: st.DataObject) -> None:
    """The child was killed, or the file ends early."""
    document, before = captures()[data.draw(st.sampled_from(problems()))]
    calls = document.get("nvml", {}).get("calls", [])
    kept = calls[: data.draw(st.integers(0, len(calls)))]
    after = of_capture({**document, "nvml": {**document.get("nvml", {}), "calls": kept}})
    assert unexcused(before, after) == []


# --- texts --------------------------------------------------------------------------------------

CARD = """\
{address} 3D controller [0302]: NVIDIA Corporation GP102GL [Tesla P40] [10de:1b38] (rev a1)
	Subsystem: NVIDIA Corporation Device [10de:11d9]
	Control: I/O- Mem+ BusMaster+ SpecCycle- MemWINV- VGASnoop- ParErr+ Stepping- SERR+ FastB2B- DisINTx+
	NUMA node: 0
	Region 0: Memory at 92000000 (32-bit, non-prefetchable) [size=16M]
	Region 1: Memory at {bar}
	Capabilities: [78] Express (v2) Endpoint, MSI 00
		LnkCap:	Port #0, Speed 8GT/s, Width x16, ASPM not supported
		LnkSta:	Speed 8GT/s, Width x16
	Kernel driver in use: {driver}
	Kernel modules: nvidiafb, nouveau, nvidia

"""
GOOD = "38000000000 (64-bit, prefetchable) [size=32G]"


def lspci(bar: str = GOOD, driver: str = "nvidia") -> str:
    first = CARD.format(address="04:00.0", bar=GOOD, driver="nvidia")
    return first + CARD.format(address="82:00.0", bar=bar, driver=driver)


ONE_OF_TWO = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 575.51.03              Driver Version: 575.51.03      CUDA Version: 12.9     |
|-----------------------------------------+------------------------+----------------------+
|   0  Tesla P40                      Off |   00000000:04:00.0 Off |                    0 |
| N/A   31C    P8              9W /  250W |       2MiB /  23040MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
"""
MISMATCH = """\
Failed to initialize NVML: Driver/library version mismatch
NVML library version: 575.51
"""
VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.158.01  Wed\n"
XID = """\
[    9.046885] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  575.51.03
[   12.400000] NVRM: Xid (PCI:0000:82:00): 79, pid=4120, GPU has fallen off the bus.
"""
TEXTS = {
    "nouveau": lspci(driver="nouveau"),
    "no address": lspci(bar="<ignored> (64-bit, prefetchable)"),
    "one of two": lspci() + ONE_OF_TWO,
    "with prompts": f"me@a:~$ lspci -nnvvv\n{lspci()}me@a:~$ nvidia-smi\n{ONE_OF_TWO}me@a:~$ exit\n",
    "mismatch": f"$ lspci -nnvvv\n{lspci()}$ nvidia-smi\n{MISMATCH}$ cat /proc/driver/nvidia/version\n{VERSION}",
    "fallen": f"$ lspci -nnvvv\n{lspci()}$ dmesg\n{XID}",
}


@cache
def text_report(name: str) -> Probe:
    report = of_text(TEXTS[name].encode())
    assert report is not None
    return report


@pytest.mark.parametrize("name", TEXTS)
def test_the_texts_show_a_problem(name: str) -> None:
    assert text_report(name).verdict == "problem"


@settings(BOUNDED, max_examples=150)
@given(st.sampled_from(sorted(TEXTS)), losses())
def test_loss_in_a_text_is_told(name: str, damage: Damage) -> None:
    assert unexcused(text_report(name), of_text(damage(TEXTS[name].encode()))) == []


@BOUNDED
@given(st.sampled_from(sorted(TEXTS)), st.lists(alterations(), min_size=1, max_size=3))
def test_altered_texts_do_not_crash(name: str, damages: list[Damage]) -> None:
    data = TEXTS[name].encode()
    for damage in damages:
        data = damage(data)
    of_text(data)


@pytest.mark.parametrize("line", ["82:00.0 3D con\ufffd: NVIDIA Corporation GP102GL", "82:00.0 3", "82:00.0"])
def test_a_card_whose_first_line_is_damaged_is_missed(line: str) -> None:
    text = CARD.format(address="04:00.0", bar=GOOD, driver="nvidia") + line + "\n\tSubsystem: X\n"
    report = of_text(text.encode())
    assert report is not None
    assert "pci.0000:82:00.0" in {gap.fact for gap in report.machine.gaps if gap.reason == "unreadable"}


def test_an_entry_without_its_first_line_is_missed() -> None:
    lines = [line for line in lspci().splitlines() if not line.startswith("82:00.0")]
    report = of_text("\n".join(lines).encode())
    assert report is not None
    assert "pci" in {gap.fact for gap in report.machine.gaps if gap.reason == "unreadable"}
    assert [(gpu.address, gpu.driver) for gpu in report.machine.gpus or ()] == [("0000:04:00.0", "nvidia")]


# --- real dumps ---------------------------------------------------------------------------------


def real_texts(root: Path) -> Iterator[tuple[str, bytes]]:
    for folder in ("dmesg", "lspci", "nvidia-smi", "topo", "lscpu", "ipmi", "dmi-psu", "nvidia-bug-report"):
        for path in sorted((root / folder).iterdir()):
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            if len(data) < 400_000:
                yield f"{folder}/{path.name}", data


def test_real_dumps_survive_damage(shared_machines: Path) -> None:
    texts = dict(real_texts(shared_machines))
    before = {name: of_text(data) for name, data in texts.items()}
    broken = sorted(name for name, report in before.items() if report is not None and report.verdict == "problem")
    assert broken

    @settings(BOUNDED, max_examples=40)
    @given(st.sampled_from(sorted(texts)), alterations())
    def altered(name: str, damage: Damage) -> None:
        of_text(damage(texts[name]))

    @settings(BOUNDED, max_examples=40)
    @given(st.sampled_from(broken), losses())
    def lost(name: str, damage: Damage) -> None:
        known = before[name]
        assert known is not None
        assert unexcused(known, of_text(damage(texts[name]))) == []

    altered()
    lost()
