"""A training that stands in for one on GPUs, beside the scripted NVML library and a scripted bus."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml, Script, device, script

from gpucheck.host import LiveHost
from gpucheck.smoke import counters, run
from gpucheck.smoke.evidence import judge
from gpucheck.smoke.job import Job
from gpucheck.smoke.outcome import Judgement, Outcome, Watched
from gpucheck.smoke.plan import Card, Train

SCRIPTED = Path(__file__).with_name("scripted_worker.py")
FIRST, SECOND = "0000:04:00.0", "0000:44:00.0"
CARDS = tuple(Card(address, "nvidia", processes=(), in_nvml=True) for address in (FIRST, SECOND))
PLAN = Train(Job("gpu", 2, steps=2), cards=CARDS)
MIB = 1 << 20

Attend = Callable[..., tuple[Outcome, Watched, Judgement]]


def working(index: int, **more: Any) -> Script:
    """A card that works while the training's process lives."""
    usual = {
        "processes": [{"pid": "siblings", "used_bytes": 900 * MIB}],
        "memory_used_bytes": {"idle": 300 * MIB, "busy": 1200 * MIB},
        "utilization_percent": {"idle": 0, "busy": 97},
        "power_mw": {"idle": 30_000, "busy": 250_000},
        "sm_clock_mhz": {"idle": 210, "busy": 1900},
        "throttle_reasons": {"idle": 1, "busy": 4},
        "temperature_c": {"idle": 35, "busy": 66},
        "energy_mj": {"start": 1000, "per_second": 200_000},
        "ecc_volatile_corrected": 0,
        "ecc_volatile_uncorrected": 0,
    }
    return device(index, **{**usual, **more})


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with both cards below a port of their own."""
    root = tmp_path / "root"
    for address, port in ((FIRST, "0000:00:01.0"), (SECOND, "0000:40:02.0")):
        folder = root / "sys/devices" / f"pci{port[:7]}" / port / address
        folder.mkdir(parents=True)
        (folder / "config").write_bytes(b"\xde\x10\x38\x1b")
        for place in (folder, folder.parent):
            (place / "aer_dev_correctable").write_text("BadTLP 12\nTOTAL_ERR_COR 12\n")
            (place / "aer_dev_nonfatal").write_text("TOTAL_ERR_NONFATAL 0\n")
            (place / "aer_dev_fatal").write_text("TOTAL_ERR_FATAL 0\n")
            link = root / "sys/bus/pci/devices" / place.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(place, link.parent))
    (root / "var/log").mkdir(parents=True)
    (root / "var/log/dmesg").write_text("[    0.000000] Linux version 6.8\n[    1.000000] pci 0000:04:00.0: BAR 0\n")
    monkeypatch.setattr(run, "LiveHost", lambda: LiveHost(root))
    return root


@pytest.fixture
def attend(fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, bus: Path) -> Attend:
    def train(wanted: Script, behaviour: str = "works") -> tuple[Outcome, Watched, Judgement]:
        for name, value in fake_nvml.environment(wanted).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SCRIPTED_ADDRESSES", f"{FIRST},{SECOND}")
        command = (sys.executable, str(SCRIPTED), behaviour)
        outcome, watched = run.attend(PLAN, os.environ, 60, None, command=command)
        return outcome, watched, judge(PLAN, outcome, watched)

    return train


def found(judgement: Judgement) -> list[tuple[str, str, str]]:
    return [(finding.name, finding.severity, finding.subject) for finding in judgement.findings]


def test_two_cards_that_work_are_proven(attend: Attend) -> None:
    outcome, watched, judgement = attend(script(working(0), working(1)))
    assert (judgement.verdict, judgement.proves_gpu, judgement.findings) == ("pass", True, ())
    for card, address in zip(judgement.devices, (FIRST, SECOND), strict=True):
        nvml = card.evidence.nvml
        assert nvml is not None
        assert (card.address, card.used, nvml.process_seen, nvml.lost) == (address, True, True, False)
        assert (nvml.memory_growth_bytes, nvml.memory_left_bytes) == (900 * MIB, 0)
        assert (nvml.busy_percent, nvml.idle_watts, nvml.most_watts) == (97, 30.0, 250.0)
        assert nvml.busy_seconds is not None
        assert 0 < nvml.busy_seconds <= outcome.seconds
        assert nvml.energy_over_idle_joules is not None
        assert nvml.energy_over_idle_joules > 0
        risen = card.evidence.risen
        assert risen is not None
        assert (risen.pcie_replays, risen.aer_correctable, risen.ecc_corrected, risen.xids) == (0, 0, 0, ())
    assert outcome.touched is not None
    assert watched.parts is not None


def test_a_card_that_only_reserved_memory_fails(attend: Attend) -> None:
    _, _, judgement = attend(script(working(0), working(1, utilization_percent=0)))
    assert (judgement.verdict, found(judgement)) == ("fail", [("gpu-unused-in-training", "error", SECOND)])


def test_an_idle_card_fails(attend: Attend) -> None:
    _, _, judgement = attend(script(working(0), device(1)))
    assert (judgement.verdict, found(judgement)) == ("fail", [("gpu-unused-in-training", "error", SECOND)])
    texts = [line.text for line in judgement.findings[0].evidence]
    assert texts == ["grew by 0 bytes during the training", "0 % in every sample"]


def test_somebody_elses_process_in_the_middle(attend: Attend) -> None:
    stranger = [{"pid": "siblings"}, {"pid": [0] * 12 + [1] * 12 + [0]}]
    _, _, judgement = attend(script(working(0), working(1, processes=stranger)))
    assert ("gpu-busy", "warning", SECOND) in found(judgement)


def test_memory_that_stays(attend: Attend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SETTLE_SECONDS", 0.5)
    held = [300 * MIB] * 3 + [1200 * MIB]
    _, _, judgement = attend(script(working(0), working(1, memory_used_bytes=held)))
    assert (judgement.verdict, found(judgement)) == ("fail", [("memory-not-released", "error", SECOND)])


def test_memory_that_comes_back_late_is_waited_for(attend: Attend) -> None:
    slow = [300 * MIB] * 3 + [1200 * MIB] * 14 + [300 * MIB]
    _, watched, judgement = attend(script(working(0), working(1, memory_used_bytes=slow)))
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    assert len([sample for sample in watched.samples or () if sample.address == SECOND]) >= 18


def test_a_process_that_stays(attend: Attend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It left the group of the training, and still holds a card: told as what it is, a stranger to NVML."""
    monkeypatch.setattr(run, "SETTLE_SECONDS", 0.5)
    number = tmp_path / "left"
    number.write_text("")
    processes = [{"pid": "siblings"}, {"pid": f"file:{number}"}]
    try:
        _, _, judgement = attend(script(working(0), working(1, processes=processes)), f"leaves {number}")
    finally:
        with suppress(ValueError, ProcessLookupError):
            os.kill(int(number.read_text()), signal.SIGKILL)
    assert ("memory-not-released", SECOND) in [(name, subject) for name, _, subject in found(judgement)]
    evidence = {line.text for finding in judgement.findings for line in finding.evidence}
    assert f"{SECOND}: {number.read_text().strip()}" in evidence


def test_a_card_that_is_braked(attend: Attend) -> None:
    braked = working(1, throttle_reasons={"idle": 1, "busy": 0x88}, sm_clock_mhz={"idle": 210, "busy": 300})
    _, _, judgement = attend(script(working(0), braked))
    assert (judgement.verdict, found(judgement)) == ("pass", [("gpu-throttled-in-training", "warning", SECOND)])
    assert judgement.devices[1].evidence.nvml.clocks_mhz == (300, 300)


def test_counters_that_rise(attend: Attend, bus: Path) -> None:
    port = bus / "sys/devices/pci0000:40/0000:40:02.0/aer_dev_correctable"
    failing = working(1, ecc_volatile_corrected=[3, 3, 9003], pcie_replays=[0, 0, 2])
    _, _, judgement = attend(script(working(0), failing), f"count {port}")
    assert found(judgement) == [
        ("link-errors-in-training", "warning", SECOND),
        ("memory-errors-in-training", "warning", SECOND),
    ]
    risen = judgement.devices[1].evidence.risen
    assert risen is not None
    assert (risen.aer_correctable, risen.ecc_corrected, risen.pcie_replays) == (500, 9000, 2)


def test_a_card_lost_in_the_middle(attend: Attend) -> None:
    falling = working(1, calls={"nvmlDeviceGetPowerUsage": [0] * 4 + [15]})
    _, _, judgement = attend(script(working(0), falling), "dies")
    assert [name for name, _, subject in found(judgement) if subject == SECOND] == ["nvml-gpu-lost"]
    assert judgement.headline == f"The card at {SECOND} was lost during the training."
    assert judgement.verdict == "fail"


def test_a_watch_that_hangs(attend: Attend, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps nobody waiting longer than the time to settle, and what it saw until then counts."""
    monkeypatch.setattr(run, "SETTLE_SECONDS", 0.5)
    hanging = working(1, calls={"nvmlDeviceGetPowerUsage": [0] * 5 + ["hang"]})
    began = time.monotonic()
    _, _, judgement = attend(script(working(0), hanging))
    assert time.monotonic() - began < 30
    assert found(judgement) == [("nvml-timeout", "warning", "machine")]
    assert "nvmlDeviceGetPowerUsage" in judgement.findings[0].evidence[0].source
    assert judgement.devices[1].evidence.nvml.memory_left_bytes is None


def test_a_watch_that_dies_keeps_nobody_waiting(attend: Attend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SETTLE_SECONDS", 600.0)
    dying = working(1, calls={"nvmlDeviceGetPowerUsage": [0] * 5 + ["crash"]})
    _, _, judgement = attend(script(working(0), dying))
    assert found(judgement) == [("nvml-unavailable", "warning", "machine")]
    assert judgement.verdict == "pass"  # what it saw until then is enough


def test_a_machine_without_nvml(attend: Attend) -> None:
    _, _, judgement = attend(script(calls={"nvmlInit": 9}))
    assert (judgement.verdict, found(judgement)) == ("not-run", [("nvml-unavailable", "warning", "machine")])


# --- reading counters -----------------------------------------------------------------------------


def test_counters_are_read_along_the_path(bus: Path) -> None:
    read = counters.read(LiveHost(bus), [FIRST, SECOND, "0000:99:00.0"])
    assert read.above == {FIRST: (FIRST, "0000:00:01.0"), SECOND: (SECOND, "0000:40:02.0")}
    assert {address: counts.correctable for address, counts in read.links.items()} == {
        FIRST: 12, SECOND: 12, "0000:00:01.0": 12, "0000:40:02.0": 12,
    }  # fmt: skip
    assert read.dead == {FIRST: False, SECOND: False, "0000:99:00.0": True}
    assert read.log is not None
    assert "pci 0000:04:00.0: BAR 0" in read.log


def test_a_card_that_reads_as_ones_is_dead(bus: Path) -> None:
    (bus / "sys/devices/pci0000:40/0000:40:02.0" / SECOND / "config").write_bytes(b"\xff" * 64)
    assert counters.read(LiveHost(bus), [SECOND]).dead == {SECOND: True}


def test_a_machine_that_counts_nothing(tmp_path: Path) -> None:
    assert counters.read(LiveHost(tmp_path), [FIRST]) == counters.Counters(dead={FIRST: True})
