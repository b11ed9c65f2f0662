"""What a training notes on disk, and what is told of it after the machine went down; the curves of a soak."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpucheck.render import closer
from gpucheck.smoke import progress
from gpucheck.smoke.progress import Diary, Last, parse, told
from gpucheck.smoke.report import Curve, Soak
from gpucheck.smoke.soak import POINTS, curve, soak_of, wrong_rounds

BOOT, OTHER = "11111111-1111", "22222222-2222"
CARDS = ["0000:04:00.0", "0000:82:00.0"]


def last(*stages: dict[str, Any], **run: Any) -> Last | None:
    header = {"schema": progress.SCHEMA, "began": "2025-03-01T10:00:00+00:00", "boot": BOOT, "cards": CARDS, **run}
    return parse("\n".join(json.dumps(line) for line in (header, *stages)).encode())


ALONE = {"at": 3.0, "phase": "alone", "device": CARDS[1], "step": None}
TOGETHER = {"at": 4.0, "phase": "together", "device": None, "step": None}


# --- writing --------------------------------------------------------------------------------------


def test_each_stage_is_on_disk_when_it_begins(tmp_path: Path):
    file = tmp_path / "state" / "smoke-here.jsonl"
    diary = Diary(file, {"cards": CARDS})
    diary.stage("alone", CARDS[0])
    diary.stage("alone", CARDS[1])
    diary.stage("train", None, 0)
    diary.stage("train", None, 1)
    read = parse(file.read_bytes())
    assert read is not None
    assert [(stage["phase"], stage["device"]) for stage, _ in read.stages] == [
        ("alone", CARDS[0]),
        ("alone", CARDS[1]),
        ("train", None),
    ]
    assert read.end is None
    diary.end("pass", "good")
    assert told(parse(file.read_bytes()), BOOT, running=False).verdict == "pass"
    assert [one.name for one in file.parent.iterdir()] == [file.name]
    assert file.stat().st_mode & 0o077 == 0


def test_where_nothing_can_be_written_nothing_fails(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for where in (None, tmp_path / "file" / "smoke.jsonl"):
        diary = Diary(where, {})
        diary.stage("train")
        diary.end("pass", "good")


def test_a_full_disk_ends_the_diary_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    diary = Diary(tmp_path / "smoke.jsonl", {})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(progress.os, "fsync", full)
    diary.stage("train")
    diary.stage("compare")
    diary.end("pass", "good")


@pytest.mark.parametrize(
    ("environ", "root", "where"),
    [
        ({"HOME": "/h"}, True, "/var/lib/gpucheck"),
        ({"HOME": "/h"}, False, "/h/.local/state/gpucheck"),
        ({"HOME": "/h", "XDG_STATE_HOME": "/s"}, False, "/s/gpucheck"),
        ({}, False, None),
    ],
)
def test_where_it_lies(environ: dict[str, str], root: bool, where: str | None):
    assert progress.folder(environ, root=root) == (None if where is None else Path(where))


# --- after a reboot -------------------------------------------------------------------------------


def test_the_card_that_was_alone_at_work_is_named():
    judgement = told(last(ALONE), OTHER, running=False)
    (found,) = judgement.findings
    assert (judgement.verdict, found.name, found.subject) == ("fail", "smoke-interrupted", CARDS[1])
    assert (found.severity, found.confidence) == ("error", "possible")
    assert f"Stage alone was running on {CARDS[1]}" in found.message
    assert json.dumps(ALONE) in [line.text for line in found.evidence]


def test_all_cards_together_point_at_the_power_supplies():
    (found,) = told(last(ALONE, TOGETHER), OTHER, running=False).findings
    assert found.subject == "machine"
    assert "on 2 cards together: 0000:04:00.0, 0000:82:00.0" in found.message
    assert "Limit the power" in found.next_test[0].do
    assert any("suppl" in reading.means for reading in found.next_test[0].outcomes)


def test_in_the_same_boot_somebody_ended_it():
    judgement = told(last(TOGETHER), BOOT, running=False)
    (found,) = judgement.findings
    assert (judgement.verdict, found.severity, found.name) == ("not-run", "warning", "smoke-interrupted")


def test_one_that_still_runs_is_no_finding():
    judgement = told(last(TOGETHER), BOOT, running=True)
    assert (judgement.verdict, judgement.findings) == ("not-run", ())


def test_without_boot_ids_nobody_says_that_the_machine_went_down():
    (found,) = told(last(TOGETHER, boot=None), None, running=False).findings
    assert "never ended" in found.message


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[]", b'{"schema": "other"}', b'{"schema": ', b"1\n2\n"])
def test_a_file_that_is_none_of_ours_is_no_training(data: bytes):
    assert parse(data) is None
    assert told(None, BOOT, running=False).verdict == "not-run"


@pytest.mark.parametrize(
    "stage",
    [
        {"phase": "alone", "device": ["\x1b[2J"]},
        {"phase": "\x1b[2J", "device": 3},
        {"phase": 4},
        {"verdict": []},
        {"verdict": "pass", "headline": "\x1b[2J"},
    ],
)
def test_a_hostile_file_is_told_as_text(stage: dict[str, Any]):
    judgement = told(last(stage, cards="GPU", began="\x1b[1A"), OTHER, running=False)
    assert "\x1b" not in judgement.headline
    assert "\x1b" not in "".join(line.text for item in judgement.findings for line in item.evidence)
    assert all("\x1b" not in item.subject for item in judgement.findings)


def test_a_line_that_was_cut_off_is_left_out():
    header = {"schema": progress.SCHEMA, "boot": BOOT}
    read = parse(f"{json.dumps(header)}\n{json.dumps(ALONE)}\n".encode() + b'{"at": 5.0, "pha')
    assert read is not None
    assert len(read.stages) == 1


# --- the soak -------------------------------------------------------------------------------------


@dataclass
class Sample:
    address: str | None
    seconds: float
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    power_watts: float | None = None
    pcie_replays: int | None = None
    ecc_corrected: int | None = None


def rounds(*differences: float | None) -> dict[str, Any]:
    return {
        "steps": 5,
        "rounds": [
            {"at": 2.0 * (n + 1), "per_second": 100.0 + n, "difference": off, "spread": 0.0}
            for n, off in enumerate(differences)
        ],
    }


def test_few_points_are_kept_and_many_are_averaged():
    few = curve([(0.0, 1.0), (1.0, 3.0)], 0.0, 10.0)
    assert few == Curve(least=1.0, most=3.0, last=3.0, values=(1.0, 3.0))
    many = curve([(n / 10, float(n)) for n in range(600)], 0.0, 60.0)
    assert many is not None
    assert len(many.values) == POINTS
    assert many.values[0] == 4.5
    assert (many.least, many.most, many.last) == (0.0, 599.0, 599.0)
    assert curve([(99.0, 1.0)], 0.0, 10.0) is None


def test_a_span_without_a_sample_is_a_gap():
    gap = curve([(n / 100, 1.0) for n in range(200)] + [(10.0, 2.0)], 0.0, 10.0)
    assert gap is not None
    assert gap.values[30] is None
    assert gap.values[-1] == 2.0


def test_cards_have_curves_of_the_soak_alone():
    samples = [
        Sample(CARDS[0], 90.0, 30, 300, 20.0, 7),  # before
        Sample(CARDS[0], 95.0, 60, 1500, 200.0, 7),
        Sample(CARDS[0], 99.0, 80, 1400, 240.0, 9),
        Sample(CARDS[1], 96.0),
        Sample(None, 96.0, 99),
    ]
    soak = soak_of(rounds(0.0, 0.0, 0.0, 0.0), samples, 100.0)  # type: ignore[arg-type]
    assert [card.address for card in soak.cards] == CARDS
    first, second = soak.cards
    assert first.temperature_c == Curve(least=60, most=80, last=80, values=(60, 80))
    assert first.pcie_replays is not None
    assert (first.pcie_replays.values, first.ecc_corrected) == ((0.0, 2.0), None)
    assert second.temperature_c is None
    assert (soak.rounds, soak.wrong_rounds, soak.seconds) == (4, 0, 8.0)
    assert wrong_rounds(soak) == []


def test_rounds_that_end_otherwise_are_a_finding():
    soak = soak_of(rounds(0.0, 1e-3, None, 0.0), (), 100.0)
    assert (soak.wrong_rounds, soak.max_difference) == (2, None)
    assert soak.wrong.values == (0.0, 1.0, 2.0, 2.0)
    (found,) = wrong_rounds(soak)
    assert (found.name, found.severity) == ("gradient-mismatch", "error")
    assert "2 of 4 rounds" in found.message


def test_rounding_is_no_fault_and_replicas_that_differ_are():
    assert soak_of(rounds(0.0, 1e-7), (), 100.0).wrong_rounds == 0
    differing = rounds(0.0, 0.0)
    differing["rounds"][1]["spread"] = 1e-9
    assert soak_of(differing, (), 100.0).wrong_rounds == 1


def test_curves_are_lines_of_signs():
    rising = Curve(least=0, most=7, last=7, values=tuple(map(float, range(8))))
    assert closer.sparkline(rising) == "▁▂▃▄▅▆▇█"
    assert closer.sparkline(rising, ascii_only=True).isascii()
    assert closer.sparkline(Curve(least=1, most=1, last=1, values=(1.0, None, 1.0))) == "▁ ▁"
    long = Curve(least=0, most=1, last=1, values=(0.0,) * 60)
    assert len(closer.sparkline(long)) <= closer.LONGEST_LINE


def test_errors_have_a_curve_only_where_they_rose():
    flat, risen = Curve(least=0, most=0, last=0, values=(0.0,)), Curve(least=0, most=2, last=2, values=(0.0, 2.0))
    soak = Soak(
        seconds=60,
        rounds=2,
        steps_per_round=5,
        wrong_rounds=0,
        max_difference=0.0,
        examples_per_second=risen,
        wrong=flat,
        cards=(
            {"address": CARDS[0], "temperature_c": risen, "pcie_replays": risen},  # type: ignore[arg-type]
            {"address": CARDS[1], "pcie_replays": flat},  # type: ignore[arg-type]
        ),
    )
    assert [row[0] for row in closer.curves(soak)] == [
        "examples/s",
        f"{CARDS[0]} °C",
        f"{CARDS[0]} PCIe replays",
    ]
