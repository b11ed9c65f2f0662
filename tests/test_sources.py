"""``--from``: every form that is known, and one line for everything that is not."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import random
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machines import build
from support import SMBIOS_END, smbios_dump

from gpucheck import sources
from gpucheck.assemble import assemble
from gpucheck.catalog import Catalog, load
from gpucheck.cli import run
from gpucheck.errors import GpucheckError
from gpucheck.host import LiveHost
from gpucheck.probing import Probe, judge, probe, read

MACHINES = Path(__file__).parent / "machines"
R730 = MACHINES / "r730-two-p40" / "capture.json"
SUPERMICRO = MACHINES / "sm-4028gr-tr-eight-p40" / "capture.json"

DMIDECODE = """# dmidecode 3.3
Getting SMBIOS data from sysfs.
SMBIOS 2.8 present.

Handle 0x0100, DMI type 1, 27 bytes
System Information
\tManufacturer: Dell Inc.
\tProduct Name: PowerEdge R730
\tUUID: 4c4c4544-005a-3110-8036-b4c04f4d3232

Handle 0x0400, DMI type 4, 48 bytes
Processor Information
\tSocket Designation: CPU1
\tVersion: Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz
\tStatus: Populated, Enabled

Handle 0x0401, DMI type 4, 48 bytes
Processor Information
\tSocket Designation: CPU2
\tStatus: Unpopulated

"""
LOG = """[    0.000000] Linux version 6.8.0-48-generic (buildd@example)
[   12.400000] NVRM: Xid (PCI:0000:82:00): 79, pid=4120, GPU has fallen off the bus.
"""


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load()


# --- what is refused ----------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a command line gives; the JSON form must say the same."""
    assert run(arguments) == 2
    out, line = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"gpucheck: [^\n]+\n", line), line
    assert run([*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    assert err == ""
    document = json.loads(out)
    assert (document["schema"], document["verdict"], document["exit_code"]) == ("gpucheck/error/1", "error", 2)
    error = document["error"]
    assert set(error) == {"input", "message", "hint"}
    assert error["message"] in line
    assert document["headline"] == error["message"]
    return line


def capture_of(**parts: Any) -> bytes:
    return json.dumps({**json.loads(R730.read_bytes()), **parts}).encode()


def _tar(document: dict[str, Any], folder: Path, **how: str) -> bytes:
    return build.as_tar(build.as_tree(document, folder), **how)


BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is empty"),
    "blank": (b" \n\t\n", "it is empty"),
    "prose": (b"My server does not see its second card.\n", "in no form that gpucheck knows"),
    "noise": (random.Random(1).randbytes(5000), "in no form that gpucheck knows"),
    "zeros": (bytes(5000), "in no form that gpucheck knows"),
    "cut.gz": (gzip.compress(DMIDECODE.encode())[:-12], "cut off or damaged"),
    "empty.gz": (gzip.compress(b""), "in no form that gpucheck knows"),
    "magic.gz": (b"\x1f\x8b", "cut off or damaged"),
    "magic.bz2": (b"BZh", "cut off or damaged"),
    "magic.xz": (b"\xfd7zXZ\x00", "cut off or damaged"),
    "probe.json": (b'{"schema": "gpucheck/probe/1"}', "not a capture"),
    "other.json": (b'{"schema": "somebody/else/7"}', "not a capture"),
    "list.json": (b"[1, 2]", "in no form that gpucheck knows"),
    "cut.json": (R730.read_bytes()[:700], "not valid JSON"),
    "deep.json": (b'{"a":' * 100_000, "nested without end"),
    "damaged.json": (capture_of(files=3), "the capture is damaged"),
    "base64.json": (capture_of(files={"/a": {"base64": "?"}}), "the capture is damaged"),
    "dmidecode": (b"# dmidecode 3.3\nnothing follows\n", "damaged SMBIOS data"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_no_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    content, words = BAD_FILES[name]
    place = tmp_path / name
    place.write_bytes(content)
    line = refused(capsys, "probe", "--from", str(place))
    assert str(place) in line
    assert words in line
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("mode", ["", "gz", "bz2", "xz"])
def test_a_cut_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str) -> None:
    data = _tar(json.loads(R730.read_bytes()), tmp_path / "tree", mode=mode)
    place = tmp_path / "cut.tar"
    for size in (300, len(data) // 2, len(data) - 1):
        place.write_bytes(data[:size])
        assert "cut off" in refused(capsys, "probe", "--from", str(place))


def _make(path: Path) -> Callable[[str], Path]:
    def make(kind: str) -> Path:
        place = path / "input"
        match kind:
            case "folder":
                place.mkdir()
            case "folder of captures":
                (place / "a").mkdir(parents=True)
                (place / "a" / "capture.json").write_text("{}")
            case "dangling link":
                place.symlink_to("nowhere")
            case "link to itself":
                place.symlink_to("input")
            case "pipe":
                os.mkfifo(place)
        return place

    return make


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nothing", "no such file"),
        ("folder", "no machine in this folder"),
        ("folder of captures", "no machine in this folder"),
        ("dangling link", "no such file"),
        ("link to itself", "no such file"),
        ("pipe", "it is empty"),  # nobody writes to it: it must not wait for ever
    ],
)
def test_a_path_that_is_no_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, words: str) -> None:
    place = _make(tmp_path)(kind)
    line = refused(capsys, "probe", "--from", str(place))
    assert str(place) in line
    assert words in line


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/dev/full"])
def test_devices(capsys: pytest.CaptureFixture[str], path: str) -> None:
    assert f"{path}: not a file or folder" in refused(capsys, "probe", "--from", path)


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000])
def test_paths_that_cannot_be(capsys: pytest.CaptureFixture[str], path: str) -> None:
    refused(capsys, "probe", "--from", path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "secret"
    place.write_text(DMIDECODE)
    place.chmod(0)
    assert "Permission denied" in refused(capsys, "probe", "--from", str(place))


def test_a_file_larger_than_any_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "huge.log"
    with place.open("wb") as file:
        file.write(LOG.encode())
        file.truncate(300 << 20)  # sparse: takes no room
    assert "larger than 256 MiB" in refused(capsys, "probe", "--from", str(place))


def test_two_machines(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "probe", "--from", str(R730), "--from", str(SUPERMICRO))
    assert str(R730) in line
    assert str(SUPERMICRO) in line
    assert "give dumps of one machine at a time" in line


def test_two_machines_of_one_model_are_told_apart_by_uuid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, other = tmp_path / "mine.txt", tmp_path / "other.txt"
    mine.write_text(DMIDECODE)
    other.write_text(DMIDECODE.replace("4f4d3232", "4f4d3233"))
    line = refused(capsys, "probe", "--from", str(mine), "--from", str(other))
    assert "another machine" in line
    assert "4c4c4544" not in line


def test_an_archive_of_two_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, capture in (("first", R730), ("second", SUPERMICRO)):
        build.as_tree(json.loads(capture.read_bytes()), tmp_path / "both" / name)
    place = tmp_path / "both.tar.gz"
    place.write_bytes(build.as_tar(tmp_path / "both"))
    assert "holds 2 machines: /snapshot/first, /snapshot/second" in refused(capsys, "probe", "--from", str(place))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["advise", "--model", "R73000", "--gpu", "P40"], "R73000: no such server model"),
        (["advise", "--model", "R730", "--gpu", "P4000000"], "P4000000"),
        (["advise", "--model", "R730", "--gpu", "P40", "--count", "0"], "--count 0"),
        (["advise", "--model", "R730", "--gpu", "P40", "--count", "-1"], "--count -1"),
        (["advise", "--model", "R730", "--gpu", "P40", "--psu", "nonsense"], "--psu nonsense"),
        (["advise", "--model", "R730", "--gpu", "P40:x"], "--gpu P40:x"),
        (["advise", "--model", "R730", "--gpu", "P40", "--riser", "nonsense"], "--riser nonsense"),
        (["advise", "--model", "R730", "--gpu", "P40", "--riser", "3=nonsense"], "--riser 3=nonsense"),
        (["advise", "--model", "R730", "--gpu", "P40", "--option", "nonsense"], "--option nonsense"),
        (["advise", "--model", "R730", "--gpu", "P40", "--cpus", "9"], "--cpus 9"),
        (["advise", "--model", "R730", "--gpu", "P40", "--gpu", "T4", "--count", "2"], "--count 2"),
        (["advise", "--model", "R730", "--gpu", "P40", "--input-voltage", "5"], "--input-voltage"),
        (["advise", "--model", "R730", "--gpu", "P40", "--catalog", "/no/such/place"], "/no/such/place"),
        (["advise", "--from", "/no/such/place", "--gpu", "P40"], "/no/such/place"),
        (
            ["advise", "--from", str(MACHINES / "wsl-one-rtx-3060" / "capture.json"), "--gpu", "P40"],
            "not in the catalog",
        ),
        (["explain", "nonsense"], "nonsense"),
        (["catalog", "show", "nonsense"], "nonsense: no such server or card"),
        (["smoke", "--devices", "nonsense"], "nonsense"),
        (["probe", "--expect-gpus", "-1"], "--expect-gpus"),
        (["probe", "--expect-gpus", "two"], "--expect-gpus"),
        (["probe", "--timeout", "0"], "--timeout"),
        (["probe", "--lang", "xx"], "--lang"),
        (["probe", "--nonsense"], "--nonsense"),
        (["nonsense"], "nonsense"),
    ],
)
def test_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert words in refused(capsys, *arguments)


# --- what is read -------------------------------------------------------------------------------


def test_forms_are_known_by_their_content(tmp_path: Path) -> None:
    document = json.loads(R730.read_bytes())
    table = base64.b64decode(document["files"]["/sys/firmware/dmi/tables/DMI"]["base64"])
    assert table.endswith(SMBIOS_END)
    forms = {
        "table": table,
        "dump-bin": smbios_dump(table),
        "dmidecode": DMIDECODE.encode(),
        "windows": DMIDECODE.replace("\n", "\r\n").encode("utf-16"),
        "with-mark": DMIDECODE.encode("utf-8-sig"),
        "packed": gzip.compress(DMIDECODE.encode()),
    }
    for name, content in forms.items():
        place = tmp_path / f"{name}.jpg"
        place.write_bytes(content)
        assert probe([str(place)]).machine.catalog_model == "dell-poweredge-r730", name


def test_dumps_of_one_machine_are_merged(tmp_path: Path) -> None:
    for name, content in (("dmi.txt", DMIDECODE), ("kernel.log", LOG)):
        (tmp_path / name).write_text(content)
    report = probe([str(tmp_path / "dmi.txt"), str(tmp_path / "kernel.log")])
    assert report.machine.catalog_model == "dell-poweredge-r730"
    names = {finding.name for finding in report.findings}
    assert names == {"gpu-fell-off-bus", "cpu-socket-empty"}
    assert (report.verdict, report.exit_code) == ("problem", 1)
    assert report.counts.pci is report.counts.nvml is None
    assert {"pci", "nvml"} <= {gap.fact for gap in report.machine.gaps}


def test_a_folder_of_dumps_is_read_file_by_file(tmp_path: Path) -> None:
    for name, content in (("dmi.txt", DMIDECODE), ("kernel.log", LOG), ("notes.md", "prose\n"), ("empty", "")):
        (tmp_path / name).write_text(content)
    (tmp_path / "more").mkdir()
    report = probe([str(tmp_path)])
    assert report.machine.catalog_model == "dell-poweredge-r730"
    assert "gpu-fell-off-bus" in {finding.name for finding in report.findings}
    left_out = {gap.fact: gap.how for gap in report.machine.gaps if gap.fact.startswith("input.")}
    assert left_out == {
        "input.notes.md": "Left out: in no form that gpucheck knows.",
        "input.empty": "Left out: it is empty.",
    }


def test_a_folder_of_no_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.md").write_text("prose\n")
    assert "a folder of dumps" in refused(capsys, "probe", "--from", str(tmp_path))


def test_two_files_after_one_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert "repeat --from for each file" in refused(capsys, "probe", "--from", "a.txt", "b.txt")


def test_a_capture_and_a_longer_kernel_log_are_merged(tmp_path: Path) -> None:
    document = json.loads(R730.read_bytes())
    del document["files"]["/dev/kmsg"]
    (tmp_path / "capture.json").write_text(json.dumps(document))
    (tmp_path / "kernel.log").write_text(LOG)
    report = probe([str(tmp_path / "capture.json"), str(tmp_path / "kernel.log")])
    assert [finding.name for finding in report.findings] == ["gpu-fell-off-bus"]
    assert "kernel_log" not in {gap.fact for gap in report.machine.gaps}


def _stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _stdin(monkeypatch, DMIDECODE.encode())
    assert run(["probe", "--from", "-", "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["machine"]["catalog_model"] == "dell-poweredge-r730"
    assert document["verdict"] == "unknown"


@pytest.mark.parametrize("content", [b"", None])
def test_no_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    if content is None:
        monkeypatch.setattr(sys, "stdin", None)
    else:
        _stdin(monkeypatch, content)
    assert "standard input: it is" in refused(capsys, "probe", "--from", "-")


def test_standard_input_can_be_read_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _stdin(monkeypatch, DMIDECODE.encode())
    assert "read only once" in refused(capsys, "probe", "--from", "-", "--from", "-")


def test_a_pipe_that_somebody_writes_to(tmp_path: Path) -> None:
    """As the shell's ``--from <(ssh host dmidecode)`` gives it."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        # Later than the reader opens it, which must wait then.
        writer = threading.Timer(0.3, lambda: (pipe.write(DMIDECODE.encode()), pipe.close()))
        writer.start()
        try:
            report = probe([f"/dev/fd/{reading}"])
        finally:
            writer.join()
            os.close(reading)
    assert report.machine.catalog_model == "dell-poweredge-r730"


# --- whatever comes in --------------------------------------------------------------------------

_ODD: tuple[Any, ...] = ("", "\0", "-1", "0x", "f" * 40, "9" * 5000, None, -1, 2**63, True, [], {}, [[]], {"a": 1}, "²")


def _places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [place for key, value in items for place in ((*path, key), *_places(value, (*path, key)))]


def _mutated_bytes(chance: random.Random, data: bytes) -> bytes:
    raw = bytearray(data)
    for _ in range(chance.randint(1, 12)):
        place = chance.randrange(len(raw) + 1)
        match chance.randrange(4):
            case 0 if place < len(raw):
                raw[place] = chance.randrange(256)
            case 1:
                raw[place : place + chance.randrange(40)] = b""
            case 2:
                raw[place:place] = chance.choice([b"0x", b"\xc2\xb2", b": ", b"\n\n", b"9" * 30, b"Handle 0x", b"\0"])
            case _:
                raw[place:place] = raw[chance.randrange(len(raw) + 1) :][:60]
    return bytes(raw)


def _mutated_capture(chance: random.Random, document: dict[str, Any]) -> bytes:
    for _ in range(chance.randint(1, 4)):
        *above, key = chance.choice([place for place in _places(document) if place != ("schema",)])
        node: Any = document
        for step in above:
            node = node[step]
        value = node[key]
        match value, chance.random():
            case _, luck if luck < 0.2:
                del node[key]
            case str(), luck if luck < 0.7:
                node[key] = _mutated_bytes(chance, value.encode()).decode("utf-8", "replace")
            case {"base64": str(packed)}, luck if luck < 0.8:
                mutated = _mutated_bytes(chance, base64.b64decode(packed))
                node[key] = {"base64": base64.b64encode(mutated).decode()}
            case _, luck if luck < 0.85:
                node[key] = {"error": chance.choice(["EACCES", "EIO", "ENOENT", "EISDIR", "ELOOP"])}
            case _:
                node[key] = chance.choice(_ODD)
    return json.dumps(document).encode()


def _judged(data: bytes, catalog: Catalog) -> Probe | None:
    """The probe's document for any bytes; None where they were refused. Nothing else may be raised."""
    try:
        opened = sources.recognise("input", data)
        parts = opened if isinstance(opened, tuple) else read(opened)
        return judge(assemble(parts, catalog), None, catalog)
    except GpucheckError:
        return None


@pytest.mark.parametrize("seed", range(8))
def test_mutated_captures_never_raise(seed: int, catalog: Catalog) -> None:
    chance = random.Random(seed)
    captures = sorted(MACHINES.glob("*/capture.json"))
    judged = 0
    for _ in range(40):
        document = json.loads(chance.choice(captures).read_bytes())
        report = _judged(_mutated_capture(chance, document), catalog)
        if report is not None:
            report.model_dump_json(by_alias=True)
            judged += 1
    assert judged > 10  # most are still machines: the test reaches the readers and the rules


@pytest.mark.parametrize("seed", range(8))
def test_mutated_dumps_never_raise(seed: int, catalog: Catalog) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        report = _judged(_mutated_bytes(chance, chance.choice([DMIDECODE, LOG]).encode()), catalog)
        if report is not None:
            report.model_dump_json(by_alias=True)


def test_two_dumps_in_one_text_are_refused() -> None:
    """Pasted one after the other they would become one machine with four sockets."""
    dump = "Handle 0x0100, DMI type 1, 27 bytes\nSystem Information\n\tProduct Name: {name}\n\n"
    for names in (("PowerEdge R730", "PowerEdge T630"), ("PowerEdge R730", "PowerEdge R730")):
        text = "".join(dump.format(name=name) for name in names)
        with pytest.raises(GpucheckError, match="one machine at a time"):
            sources.recognise("two.txt", text.encode())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--psu", "3x1100"],
        ["--psu", "2x1100", "--psu", "1x750"],
        ["--riser", "3=alternate", "--riser", "3=default"],
        ["--option", "riser3=alternate", "--riser", "3=default"],
    ],
)
def test_a_request_that_contradicts_itself_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "R730", "2xP40", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_fault_of_gpucheck_itself_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(name: str) -> None:
        raise RuntimeError(name)

    monkeypatch.setattr("gpucheck.explain.explain", broken)
    assert run(["explain", "GC101"]) == 3
    assert "a fault in gpucheck itself: RuntimeError" in capsys.readouterr().err


def test_a_listing_that_is_cut_off_states_no_totals() -> None:
    """Half of the modules are not the memory, and one supply of two is not the power."""
    whole = (
        "# dmidecode 3.3\n3 structures occupying 200 bytes.\n\n"
        "Handle 0x0100, DMI type 1, 27 bytes\nSystem Information\n\tProduct Name: PowerEdge R730\n\n"
        "Handle 0x1100, DMI type 17, 40 bytes\nMemory Device\n\tSize: 16 GB\n\tLocator: A1\n\n"
        "Handle 0x2700, DMI type 39, 22 bytes\nSystem Power Supply\n"
        "\tName: PWR SPLY,1100W,RDNT\n\tStatus: Present, OK\n\n"
    )
    end = "Handle 0x7F00, DMI type 127, 4 bytes\nEnd Of Table\n"
    (complete,), (cut,) = (sources.recognise("d.txt", text.encode()) for text in (whole + end, whole))
    assert (complete.memory_bytes, len(complete.psus)) == (16 << 30, 1)
    assert (cut.memory_bytes, cut.psus) == (None, None)
    assert {"memory_bytes", "psus"} <= {gap.fact for gap in cut.gaps if gap.reason == "unreadable"}


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    os.mkfifo(tmp_path / "proc" / "cpuinfo")
    with pytest.raises(OSError, match="not a regular file"):
        LiveHost(tmp_path).text("/proc/cpuinfo")
