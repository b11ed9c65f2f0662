"""A folder of captures to one report: twins, lost cards, broken files, forms, processes, every way to print it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import jsonschema
import psutil
import pytest
from machines import build
from machines.golden import MACHINES, SLOT_4, SLOT_6, r730, two_p40, with_board

import gpucheck
from gpucheck.cli import run
from gpucheck.errors import InputError, UsageError
from gpucheck.fleet import report as reporting
from gpucheck.fleet.merge import Row, Shared, merge
from gpucheck.fleet.report import Fleet, Merged, report
from gpucheck.fleet.store import Place, Unseen
from gpucheck.probing import probe

FOLDER = Path(__file__).resolve().parent.parent / "machines"
HEALTHY = "r730-two-p40"
TWINS = "differs-from-twins"


def text_of(made: build.Golden | str) -> str:
    return build.dump((MACHINES[made]() if isinstance(made, str) else made).capture())


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., str]:
    """Write captures, by host; a host ``gpu1/20260101T000000Z`` is a run of its."""

    def write(captures: Mapping[str, build.Golden | str], into: str = "fleet") -> str:
        folder = tmp_path / into
        for host, made in captures.items():
            place = folder / f"{host}.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text_of(made))
        return str(folder)

    return write


def healthy(count: int) -> dict[str, build.Golden | str]:
    return {f"twin{number}": HEALTHY for number in range(count)}


def odd(merged: Merged) -> dict[str, list[str]]:
    """What is said of hosts that differ from their twins."""
    said = {row.host: [note.message for note in row.notes if note.name == TWINS] for row in merged.rows}
    return {host: messages for host, messages in said.items() if messages}


def unseen(merged: Merged) -> dict[str, str]:
    return {one.host: one.reason for one in merged.head.unseen}


# --- twins --------------------------------------------------------------------------------------


def test_the_odd_ones_are_pointed_at(put: Callable[..., str]) -> None:
    card = build.NvmlCard(SLOT_4, uuid=1, minor=1, vbios="86.02.40.00.02")
    merged = report(
        put(
            {
                **healthy(6),
                "narrow": "r730-link-x8",
                "fewer": r730(two_p40()[0]),
                "supply": "r730-psu-missing",
                "vbios": r730(*two_p40(), nvml=build.nvml(build.NvmlCard(SLOT_6), card)),
                "bios": with_board(r730(*two_p40()), bios=("Dell Inc.", "1.5.4", "10/01/2015")),
                "memory": with_board(r730(*two_p40()), memory_gib=48),
                "a little less memory": with_board(r730(*two_p40()), memory_gib=63),
            }
        )
    )
    told = odd(merged)
    assert set(told) == {"narrow", "fewer", "supply", "vbios", "bios", "memory"}
    assert told["narrow"] == ["Tesla P40 at 0000:82:00.0 in PCIe Slot 4: x8 where 9 twins have x16."]
    assert told["fewer"] == ["Cards: 1 × Tesla P40 where 10 twins have 2 × Tesla P40."]
    assert told["supply"] == ["Power supplies: 1 × 1100 W where 10 twins have 2 × 1100 W."]
    assert told["memory"] == ["Memory: 48 GiB where 10 twins have 63 GiB."]
    assert told["bios"] == ["BIOS: 1.5.4 where 9 twins have 2.13.0."]
    assert told["vbios"] == ["VBIOS: 86.02.23.00.01, 86.02.40.00.02 where 9 twins have 86.02.23.00.01."]
    assert merged.head.exit_code == 0  # warnings
    assert all(note.severity == "warning" for row in merged.rows for note in row.notes)


def test_two_twins_say_nothing(put: Callable[..., str]) -> None:
    assert not odd(report(put({**healthy(2), "narrow": "r730-link-x8"})))
    assert odd(report(put({**healthy(3), "narrow": "r730-link-x8"})))


def test_two_configurations_of_one_model_are_no_odd_ones(put: Callable[..., str]) -> None:
    single = {f"single{number}": r730(two_p40()[0]) for number in range(2)}
    assert not odd(report(put({**healthy(5), **single})))


def test_many_alike_are_no_odd_ones_unless_they_are_few_among_very_many(put: Callable[..., str]) -> None:
    (two,) = report(put({"a": HEALTHY}, into="two")).rows
    (one,) = report(put({"a": r730(two_p40()[0])}, into="one")).rows
    (narrow,) = report(put({"a": "r730-link-x8"}, into="narrow")).rows
    old = replace(two, traits=two.traits._replace(driver="470.1"))

    def named(other: Row, others: int, twins: int) -> int:
        rows = [replace(two, host=f"twin{n}") for n in range(twins)]
        merged, _ = merge([*rows, *(replace(other, host=f"other{n}") for n in range(others))])
        return sum(any(note.name == TWINS for note in row.notes) for row in merged)

    for other in (one, narrow):
        assert named(other, 30, 150) == 0
        assert named(other, 3, 59) == 0
        assert named(other, 3, 60) == 3
        assert named(other, 2, 6) == 2
    assert named(old, 30, 150) == 30  # a version is only ever behind


def test_a_link_that_was_not_read_is_not_odd(put: Callable[..., str]) -> None:
    first, second = two_p40(width=None)
    assert not odd(report(put({**healthy(4), "silent": r730(first, second)})))


def test_machines_of_another_model_or_without_a_name_are_no_twins(put: Callable[..., str]) -> None:
    other = with_board(r730(two_p40()[0]), product="PowerEdge R740")
    nameless = {f"nameless{number}": replace(r730(*two_p40()), board=None) for number in range(4)}
    fewer = replace(r730(two_p40()[0]), board=None)
    assert not odd(report(put({**healthy(4), "other": other, **nameless, "fewer": fewer})))


def test_equal_machines_are_one_group(put: Callable[..., str]) -> None:
    merged = report(put({**healthy(3), "narrow": "r730-link-x8", "big": "sm-4028gr-tr-eight-p40"}))
    first, second = merged.head.groups
    assert (first.number, first.hosts, first.model) == (1, 4, "Dell Inc. PowerEdge R730")
    assert [(card.name, card.count) for card in first.cards or ()] == [("Tesla P40", 2)]
    assert (first.psus, first.slots) == ((1100, 1100), 6)
    assert second.hosts == 1
    assert {row.host: row.group for row in merged.rows} == {**dict.fromkeys(healthy(3), 1), "narrow": 1, "big": 2}
    assert merged.head.totals.gpus == 16


# --- since the last run -------------------------------------------------------------------------


def test_a_card_that_the_run_before_had(put: Callable[..., str]) -> None:
    folder = put(
        {
            "gpu1/20260101T000000Z": "r730-idle-link",
            "gpu1/20260102T000000Z": HEALTHY,
            "gpu1/20260103T000000Z": r730(two_p40()[0]),
            "gpu2/20260102T000000Z": HEALTHY,
            "gpu2/20260103T000000Z": HEALTHY,
            "gpu3/20260103T000000Z": HEALTHY,
        }
    )
    merged = report(folder)
    lost, same, new = merged.hosts()
    assert lost.lost == ("Tesla P40 at 0000:82:00.0 in PCIe Slot 4",)
    assert "gpu-lost-since-baseline" in {finding.name for finding in lost.findings}
    assert lost.verdict == "problem"
    assert lost.counts.expected is not None
    assert lost.counts.expected.n == 2
    assert (same.lost, same.changed, same.verdict) == ((), (), "ok")
    assert new.changed is None
    assert merged.head.totals.lost == 1
    assert "1 card is gone since the run before." in merged.head.headline
    assert merged.head.exit_code == 1


def test_compared_with_another_folder(put: Callable[..., str]) -> None:
    before = put({"gpu1": HEALTHY, "gpu2": HEALTHY, "gone": HEALTHY}, into="before")
    merged = report(put({"gpu1": HEALTHY, "gpu2": r730(two_p40()[0])}), since=before)
    assert {row.host: len(row.lost) for row in merged.rows} == {"gpu1": 0, "gpu2": 1}
    assert unseen(merged) == {"gone": "it was there in the earlier run"}


def test_a_damaged_earlier_file_spoils_only_the_comparison(put: Callable[..., str]) -> None:
    folder = put({"gpu1/20260103T000000Z": HEALTHY})
    Path(folder, "gpu1", "20260102T000000Z.json").write_text("{")
    merged = report(folder)
    (host,) = merged.hosts()
    assert (host.verdict, host.changed) == ("ok", None)
    assert host.uncompared is not None
    assert host.uncompared.startswith("Not compared with the run before: not valid JSON")


def test_a_probe_document_is_compared_too(put: Callable[..., str], tmp_path: Path) -> None:
    folder = Path(put({"gpu1/20260102T000000Z": HEALTHY}))
    place = tmp_path / "one.json"
    place.write_text(text_of(r730(two_p40()[0])))
    document = probe([str(place)]).model_dump_json(by_alias=True)
    (folder / "gpu1" / "20260103T000000Z.json").write_text(document)
    (host,) = report(str(folder)).hosts()
    assert (host.verdict, len(host.lost), host.counts.pci) == ("problem", 1, 1)


def test_hosts_that_the_last_run_did_not_reach_are_not_judged_by_an_older_file(put: Callable[..., str]) -> None:
    new, old = "20260103T000000Z", "20260102T000000Z"
    folder = put({f"a/{new}": HEALTHY, f"b/{old}": HEALTHY, f"c/{old}": HEALTHY, f"retired/{old}": HEALTHY})
    run_file = {
        "schema": "gpucheck/fleet-run/1",
        "run": new,
        "ended": False,
        "hosts": ["a", "b", "c", "d"],
        "unseen": [{"host": "b", "reason": "no answer within 9 s"}],
    }
    Path(folder, "fleet.json").write_text(json.dumps(run_file))
    merged = report(folder)
    assert [row.host for row in merged.rows] == ["a"]
    told = unseen(merged)
    assert told.pop("b") == "no answer within 9 s"
    assert told.pop("retired").startswith("not among the hosts of the last run")
    assert set(told) == {"c", "d"}
    assert all("broken off" in reason for reason in told.values())
    Path(folder, "fleet.json").write_text("{")
    assert "fleet.json" in unseen(report(folder))


def test_a_host_is_called_in_the_report_as_collect_calls_it(put: Callable[..., str]) -> None:
    stamp = "20260103T000000Z"
    folder = put({f"gpu1+2222/{stamp}": HEALTHY})
    run_file = {"schema": "gpucheck/fleet-run/1", "run": stamp, "ended": True, "hosts": ["gpu1:2222"]}
    Path(folder, "fleet.json").write_text(json.dumps(run_file))
    assert [row.host for row in report(folder).rows] == ["gpu1:2222"]


# --- what cannot be read ------------------------------------------------------------------------


def test_broken_files_are_listed_and_never_fatal(put: Callable[..., str], tmp_path: Path) -> None:
    folder = Path(put(healthy(1)))
    whole = text_of(HEALTHY)
    bad = {
        "half.json": whole[: len(whole) // 2].encode(),
        "empty.json": b"",
        "noise.json": os.urandom(5000),
        "half.tar.gz": build.as_tar(build.as_tree(MACHINES[HEALTHY]().capture(), tmp_path / "tree"))[:2000],
        "half.json.gz": gzip.compress(whole.encode())[:500],
        "deep.json": b"[" * 100_000,
        "deeper.json": b'{"a":' * 100_000,
        "bomb.json.gz": gzip.compress(bytes(300 << 20)),
        "other.json": b'{"schema":"gpucheck/advice/1"}',
        "numbers.json": b'{"schema":"gpucheck/capture/1","files":7}',
        "probe.json": b'{"schema":"gpucheck/probe/1","machine":{"gpus":4}}',
        "later.json": b'{"schema":"gpucheck/probe/9"}',
    }
    for name, content in bad.items():
        (folder / name).write_bytes(content)
    (folder / "nothing").mkdir()
    (folder / "dangling.json").symlink_to(tmp_path / "not there")
    os.mkfifo(folder / "pipe.json")
    (folder / "loop.json").symlink_to(folder / "loop.json")
    merged = report(str(folder))
    assert [row.host for row in merged.rows] == ["twin0"]
    assert len(merged.head.unseen) == len(bad) + 4
    assert all(reason for reason in unseen(merged).values())
    assert not any("fault in gpucheck" in reason for reason in unseen(merged).values())
    assert (merged.head.verdict, merged.head.exit_code) == ("unknown", 3)


def test_a_pipe_that_somebody_holds_open_is_not_waited_for(put: Callable[..., str]) -> None:
    folder = put(healthy(1))
    pipe = Path(folder, "pipe.json")
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)
    try:
        assert unseen(report(folder)) == {"pipe.json": "neither a file nor a folder"}
    finally:
        os.close(held)


def test_a_problem_outweighs_what_was_not_seen(put: Callable[..., str]) -> None:
    folder = put({**healthy(1), "bad": "r730-fell-off-bus"})
    Path(folder, "half.json").write_text("{")
    assert (report(folder).head.verdict, report(folder).head.exit_code) == ("problem", 1)


def test_exit_codes(put: Callable[..., str]) -> None:
    assert report(put(healthy(2), into="good")).head.exit_code == 0
    warned = put({"one": "r730-link-x8"}, into="warned")
    assert report(warned).head.exit_code == 0
    assert report(warned, strict=True).head.exit_code == 1
    assert report(put({"one": "r730-nvml-timeout"}, into="hung")).head.exit_code == 3


def test_nothing_to_judge(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "no such folder"):
        with pytest.raises(InputError):
            report(str(folder))
    with pytest.raises(UsageError):
        report(str(FOLDER), room="no such card at all")


# --- forms --------------------------------------------------------------------------------------


def test_every_form_that_probe_reads(put: Callable[..., str], tmp_path: Path) -> None:
    folder = Path(put({"json": HEALTHY}))
    tree = build.as_tree(MACHINES[HEALTHY]().capture(), folder / "tree")
    (folder / "archive.tar.gz").write_bytes(build.as_tar(tree))
    (folder / "packed.json.gz").write_bytes(gzip.compress(text_of(HEALTHY).encode()))
    (folder / "inside").mkdir()
    (folder / "inside" / "capture.json").write_text(text_of(HEALTHY))
    (folder / "probed.json").write_text(probe([str(folder / "json.json")]).model_dump_json(by_alias=True))
    (folder / "smi.v2.txt").write_text("Tue Nov 30 10:00:00 2026\n")
    merged = report(str(folder))
    assert {row.host for row in merged.rows} == {"json", "tree", "archive", "packed", "inside", "probed"}
    assert {row.counts[0] for row in merged.rows} == {2}
    assert {row.verdict for row in merged.rows} == {"ok"}
    assert set(unseen(merged)) == {"smi.v2"}
    assert merged.head.groups[0].hosts == 6


def test_two_files_of_one_name_stay_two(put: Callable[..., str]) -> None:
    folder = Path(put({"gpu1": HEALTHY}))
    (folder / "gpu1.json.gz").write_bytes(gzip.compress(text_of(HEALTHY).encode()))
    assert [row.host for row in report(str(folder)).rows] == ["gpu1.json", "gpu1.json.gz"]


# --- processes ----------------------------------------------------------------------------------


def test_several_processes_find_the_same() -> None:
    one, three = (report(str(FOLDER), jobs=jobs, room="P40") for jobs in (1, 3))
    assert one.rows == three.rows
    assert one.head.model_copy(update={"time": ""}) == three.head.model_copy(update={"time": ""})


def _judge_or_die(place: Place) -> Row | Unseen:
    if place.host == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    return Unseen(host=place.host, reason="judged")


def test_a_process_that_dies_takes_one_host_with_it() -> None:
    hosts = [f"h{number}" for number in range(30)]
    places = [Place(host, host) for host in [*hosts[:11], "deadly", *hosts[11:]]]
    found = {one.host: one.reason for one in reporting.judged(places, _judge_or_die, 2) if isinstance(one, Unseen)}
    assert found.pop("deadly").startswith("the process that judged it died")
    assert found == dict.fromkeys(hosts, "judged")


def _judge_for_long(place: Place) -> Row | Unseen:
    Path(place.now).write_text(str(os.getpid()))
    time.sleep(300)
    return Unseen(host=place.host, reason="judged")


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    program = (
        "from fleet.test_fleet_report import Place, _judge_for_long, reporting\n"
        f"list(reporting.judged([Place(path, path) for path in {list(map(str, files))}], _judge_for_long, 2))"
    )
    folders = os.pathsep.join(map(str, (FOLDER.parent, FOLDER.parent.parent)))
    environment = {**os.environ, "PYTHONPATH": folders}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as process:
        try:
            until(lambda: all(file.exists() and file.read_text() for file in files))
        finally:
            process.kill()
    workers = [int(file.read_text()) for file in files]
    try:
        until(lambda: not any(map(_runs, workers)))
    finally:
        for worker in filter(_runs, workers):
            os.kill(worker, signal.SIGKILL)


def _runs(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_equal_rows_share_what_is_equal(put: Callable[..., str]) -> None:
    rows = report(put(healthy(2))).rows
    shared = Shared()
    first, second = (shared.row(row) for row in rows)
    assert first.traits is second.traits
    assert first.headline is second.headline
    assert first.host != second.host


# --- how it is printed --------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = run(["fleet", "report", *arguments])
    return code, capsys.readouterr().out


def test_json_is_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = printed(capsys, str(FOLDER), "--json", "--room", "P40")
    document = json.loads(out)
    schema = Fleet.model_json_schema(by_alias=True, mode="serialization")
    jsonschema.validate(document, schema)
    whole = report(str(FOLDER), room="P40").document().model_dump(mode="json", by_alias=True)
    assert {**document, "time": 0} == {**whole, "time": 0}
    assert code == document["exit_code"] == 1
    assert {"host", "verdict", "counts", "headline", "findings", "changed", "room"} <= document["hosts"][0].keys()


def test_csv_opens_in_a_spreadsheet_and_computes_nothing(
    put: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = put({"=cmd|'calc'!A0": HEALTHY, "-1+1": "r730-fell-off-bus", "ok": HEALTHY})
    Path(folder, "broken.json").write_text("{")
    code, out = printed(capsys, folder, "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 1
    assert [row["host"] for row in rows] == ["'-1+1", "'=cmd|'calc'!A0", "ok", "broken"]
    assert [row["verdict"] for row in rows] == ["problem", "ok", "ok", "unseen"]
    assert [row["pci"] for row in rows] == ["2", "2", "2", ""]
    table = tmp_path / "fleet.csv"
    printed(capsys, folder, "--csv", str(table), "--json")
    assert table.read_text() == out.replace("\r\n", "\n") or table.read_bytes().decode() == out
    assert [path.name for path in tmp_path.glob("fleet.csv*")] == ["fleet.csv"]


def test_a_table_replaces_nothing_but_a_file(put: Callable[..., str], tmp_path: Path) -> None:
    folder = put(healthy(1))
    for place in (tmp_path / "pipe", tmp_path / "link"):
        os.mkfifo(place) if place.name == "pipe" else place.symlink_to(tmp_path / "elsewhere")
        assert run(["fleet", "report", folder, "--csv", str(place)]) == 2
        assert place.is_symlink() or place.is_fifo()


def test_hosts_with_something_to_tell_come_first(
    put: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    kinds = {"a-well": HEALTHY, "b-warned": "r730-link-x8", "c-hung": "r730-nvml-timeout", "d-bad": "r730-fell-off-bus"}
    _, out = printed(capsys, put({**kinds, "e-well": HEALTHY}))
    lines = out.splitlines()
    told = [line.split()[0] for line in lines[lines.index("Hosts") + 1 :]]
    assert told == ["d-bad", "c-hung", "b-warned", "a-well", "e-well"]


def test_hostile_names_reach_neither_terminal_nor_page(
    put: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = put({"a\x1b[2J\x1b]0;title\x07b": "hostile-strings", "c\u202ed|<b>": HEALTHY})
    Path(folder, "e\x9b1mf.json").write_text("{")
    for form in ([], ["--json"], ["--markdown"], ["--csv", "-"]):
        _, out = printed(capsys, folder, *form)
        assert not set(out) & set("\x1b\x07\x9b\u202e")
    _, page = printed(capsys, folder, "--markdown")
    assert "<b>" not in page.replace("\\<b\\>", "")
    assert "<script>" not in page.replace("\\<script\\>", "")


@pytest.mark.parametrize("width", [40, 60, 79])
def test_a_narrow_terminal_has_one_line_a_host(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    _, out = printed(capsys, str(FOLDER), "--room", "P40")
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    hosts = lines[lines.index("Hosts") + 1 : lines.index("Not seen") - 1]
    assert len(hosts) == len([path for path in FOLDER.iterdir() if (path / "capture.json").exists()])


def test_the_same_from_a_program() -> None:
    fleet = gpucheck.fleet_report(str(FOLDER), room="P40", strict=True)
    assert fleet.model_copy(update={"time": ""}) == report(str(FOLDER), room="P40", strict=True).document().model_copy(
        update={"time": ""}
    )


def test_room_for_more_cards(put: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = put({"full": HEALTHY, "half": r730(two_p40()[0]), "unnamed": "vm-four-v100"})
    merged = report(folder, room="P40")
    rooms = {host.host: host.room for host in merged.hosts()}
    assert [left.more for left in rooms["full"] or ()] == [0]
    assert [left.more for left in rooms["half"] or ()] == [1]
    assert merged.head.totals.room == 1
    assert "There is room for 1 more card." in merged.head.headline
    _, out = printed(capsys, folder, "--room", "P40")
    assert "room 1" in out
    assert report(folder).head.totals.room is None


def test_words_that_contradict_each_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = str(FOLDER)
    assert run(["fleet", "report", folder, "--json", "--markdown"]) == 2
    assert run(["fleet", "report", folder, "--csv", str(tmp_path / "no" / "folder.csv")]) == 2
    assert run(["fleet", "collect", str(tmp_path / "x")]) == 2
    assert run(["fleet", "collect", str(tmp_path / "x"), "--local", "--slurm"]) == 2
    assert run(["fleet", "collect", str(tmp_path / "x"), "--local", "--known-hosts", "f"]) == 2
    assert not (tmp_path / "x").exists()
    capsys.readouterr()
