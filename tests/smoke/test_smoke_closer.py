"""The closer look and the soak by real TensorFlow on logical CPU devices, sound and with one fault each."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from gpucheck.smoke import examine, run
from gpucheck.smoke.plan import DeviceRequest
from gpucheck.smoke.progress import last_judgement, process_start
from gpucheck.smoke.report import SmokeReport

FAULTY = Path(__file__).with_name("faulty_worker.py")
PATIENCE = 8.0
"""Seconds for a trial; loaded machines need some for each new graph."""

pytestmark = pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs the extra [smoke]")


def smoke(fault: str, devices: int, **options: object) -> SmokeReport:
    command = (sys.executable, "-P", str(FAULTY), fault)
    return run.smoke(DeviceRequest.parse(f"cpu:{devices}"), None, steps=3, command=command, **options)  # type: ignore[arg-type]


def errors(report: SmokeReport) -> list[tuple[str, str]]:
    return [(item.name, item.subject) for item in report.findings if item.severity == "error"]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(run, "QUIET_SECONDS", PATIENCE)
    return PATIENCE


# --- sound ----------------------------------------------------------------------------------------


# Where tests are spread over processes, those of one report stay together.
of_one_report = pytest.mark.xdist_group("smoke-deep")


@pytest.fixture(scope="module")
def deep() -> SmokeReport:
    return smoke("none", 2, deep=True)


@of_one_report
def test_a_closer_look_at_sound_devices_finds_nothing(deep: SmokeReport):
    assert (deep.verdict, deep.findings) == ("pass", ())
    assert "found nothing either" in deep.headline
    assert [len(trial.devices) for trial in deep.isolation] == [1, 1, 2]
    assert {trial.outcome for trial in deep.isolation} == {"pass"}


@of_one_report
def test_known_sums_of_several_sizes_are_exact_and_timed(deep: SmokeReport):
    assert [one.bytes for one in deep.allreduce] == list(examine.CPU_SUMS)
    for one in deep.allreduce:
        assert one.correct is True
        assert one.bytes_per_second == pytest.approx(one.bytes / one.seconds)


@of_one_report
def test_other_ways_to_sum_are_compared(deep: SmokeReport):
    assert deep.deep is not None
    assert [(one.way, one.correct) for one in deep.deep.ways] == [("one-device", True), ("hierarchical", True)]


@of_one_report
def test_memory_reads_back(deep: SmokeReport):
    assert deep.deep is not None
    assert [(one.device, one.bytes, one.wrong_words) for one in deep.deep.vram] == [
        (f"CPU:{n}", examine.CPU_FILL, 0) for n in range(2)
    ]


# --- faults ---------------------------------------------------------------------------------------


def test_a_device_that_is_wrong_alone_is_named():
    report = smoke("wrong-alone", 3)
    assert errors(report) == [("replica-diverged", "CPU:1")]
    assert "CPU:1 fails by itself" in report.headline
    assert [trial.outcome for trial in report.isolation if trial.devices == ("CPU:1",)] == ["wrong"]


def test_a_pair_whose_sum_is_wrong_is_named():
    report = smoke("wrong-pair", 3, deep=True)
    assert report.verdict == "fail"
    assert ("allreduce-mismatch", "CPU:1 + CPU:2") in errors(report)
    wrong = [trial.devices for trial in report.isolation if trial.outcome == "wrong"]
    assert wrong == [("CPU:1", "CPU:2"), ("CPU:0", "CPU:1", "CPU:2")]
    assert [one.correct for one in report.allreduce] == [False] * 3


def test_memory_with_a_bit_that_stays_is_a_defect_of_its_device():
    report = smoke("bad-memory", 2, deep=True)
    assert errors(report) == [("vram-defect", "CPU:1")]
    assert report.verdict == "fail"
    assert report.deep is not None
    bad = report.deep.vram[1]
    # The pattern has that bit set in one of the two passes, and wrong in the other.
    assert (bad.wrong_words, bad.first_offset) == (1, 2 * (4 << 20) + 7 * 8)
    assert int(bad.got or "", 16) ^ int(bad.expected or "", 16) == 1 << 20


def test_a_hang_that_goes_without_peer_access_names_it(patience: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(examine.NO_PEER_ACCESS, raising=False)
    report = smoke("peers-hang", 3, timeout=170)
    assert errors(report) == [("peer-access-hangs", "CPU:1 + CPU:2")]
    assert [(trial.devices, trial.outcome) for trial in report.isolation if not trial.peer_access] == [
        (("CPU:0", "CPU:1", "CPU:2"), "pass")
    ]
    assert "Without peer access it works" in report.headline


def test_a_hang_that_stays_names_the_pair(patience: float):
    started = time.monotonic()
    report = smoke("pair-hangs", 3, timeout=170)
    assert errors(report) == [("pair-hangs", "CPU:1 + CPU:2")]
    assert time.monotonic() - started < 171 + run.END_SECONDS


def test_the_closer_look_keeps_to_the_deadline(patience: float):
    started = time.monotonic()
    report = smoke("pair-hangs", 3, timeout=18)
    assert time.monotonic() - started < 18 + 3
    assert report.verdict == "fail"


# --- the soak -------------------------------------------------------------------------------------


def test_a_soak_repeats_the_same_training():
    report = smoke("none", 2, soak_minutes=0.05)
    assert report.verdict == "pass"
    assert report.soak is not None
    assert report.soak.rounds >= 2
    assert report.soak.seconds >= 3
    assert (report.soak.wrong_rounds, report.soak.cards) == (0, ())
    assert report.soak.max_difference is not None
    assert report.soak.max_difference < 1e-6
    assert len(report.soak.examples_per_second.values) == report.soak.rounds


def test_a_central_soak():
    report = smoke("none", 2, soak_minutes=0.02, strategy="central")
    assert (report.verdict, report.soak and report.soak.wrong_rounds) == ("pass", 0)


def test_a_fault_that_comes_with_time_is_found():
    report = smoke("warms-up", 2, soak_minutes=0.12)
    assert report.verdict == "fail"
    assert report.soak is not None
    assert report.soak.wrong_rounds == report.soak.rounds - 2
    assert "of the soak" in report.headline
    assert errors(report) == [("gradient-mismatch", "machine")]


# --- a training that is killed --------------------------------------------------------------------


def test_after_a_kill_the_last_stage_is_known(tmp_path: Path):
    worker = (sys.executable, "-P", str(FAULTY), "never-moves")
    code = (
        "from gpucheck.smoke.run import smoke; from gpucheck.smoke.plan import DeviceRequest;"
        f"smoke(DeviceRequest.parse('cpu:2'), None, command={worker!r})"
    )
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", code], env=environ)
    try:
        give_up = time.monotonic() + 60
        while '"phase": "train"' not in "".join(file.read_text() for file in tmp_path.glob("gpucheck/smoke-*.jsonl")):
            assert time.monotonic() < give_up
            assert process.poll() is None
            time.sleep(0.1)
        running = last_judgement(environ)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    finally:
        process.kill()
        process.wait()
    # Its child would hold the cards while it hangs.
    assert len(children) == 1
    give_up = time.monotonic() + 10
    while process_start(int(children[0])) is not None:
        assert time.monotonic() < give_up
        time.sleep(0.05)
    assert "still runs" in running.headline
    killed = last_judgement(environ)
    assert [(item.name, item.severity) for item in killed.findings] == [("smoke-interrupted", "warning")]
    assert "Stage train was running" in killed.headline
    # The same file after a reboot.
    (file,) = tmp_path.glob("gpucheck/smoke-*.jsonl")
    header, _, rest = file.read_text().partition("\n")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    file.write_text(header.replace(boot, "0" * 8 + boot[8:]) + "\n" + rest + '{"at": 9, "pha')
    rebooted = last_judgement(environ)
    assert [(item.name, item.severity) for item in rebooted.findings] == [("smoke-interrupted", "error")]
    assert "The machine went down during the training" in rebooted.headline
    assert "Stage train was running" in rebooted.headline
