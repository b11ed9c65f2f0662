"""The closer look and the soak as people read them."""

from __future__ import annotations

import pytest

from gpucheck.findings import finding
from gpucheck.render import closer, markdown, text, training
from gpucheck.smoke.report import (
    AllReduce,
    Curve,
    Deep,
    DeviceEvidence,
    Filled,
    Isolation,
    SmokeDevice,
    SmokeReport,
    Soak,
    SoakedCard,
)

FIRST, SECOND = "0000:04:00.0", "0000:82:00.0"
HEAT = Curve(least=40, most=83, last=82, values=(40.0, 70.0, 83.0, 82.0))
SPEED = Curve(least=900, most=1000, last=900, values=(1000.0, 990.0, 950.0, 900.0))
WRONG = Curve(least=0, most=1, last=1, values=(0.0, 0.0, 0.0, 1.0))


def report(**more: object) -> SmokeReport:
    return SmokeReport(verdict="fail", exit_code=1, headline="It failed.", proves_gpu=False, **more)  # type: ignore[arg-type]


LOOKED = report(
    isolation=(
        Isolation(devices=(FIRST,), outcome="pass", seconds=1.2),
        Isolation(devices=(FIRST, SECOND), outcome="wrong", seconds=2.0, detail="the sum is off by 0.5"),
        Isolation(devices=(FIRST, SECOND), outcome="pass", seconds=2.5, peer_access=False),
    ),
    allreduce=(
        AllReduce(bytes=4096, seconds=0.0005, bytes_per_second=8.192e6, correct=True),
        AllReduce(bytes=64 << 20, seconds=0.01, bytes_per_second=6.7e9, correct=False),
    ),
    deep=Deep(
        ways=(AllReduce(bytes=64 << 20, seconds=None, bytes_per_second=None, correct=None, way="nccl", error="hang"),),
        vram=(
            Filled(device=FIRST, bytes=20 << 30, seconds=30.0, wrong_words=0),
            Filled(device=SECOND, bytes=20 << 30, seconds=31.0, wrong_words=3, first_offset=64),
        ),
        cut_short=True,
    ),
    soak=Soak(
        seconds=600,
        rounds=300,
        steps_per_round=20,
        wrong_rounds=1,
        max_difference=0.1,
        examples_per_second=SPEED,
        wrong=WRONG,
        cards=(SoakedCard(address=FIRST, temperature_c=HEAT),),
    ),
)
SAID = (
    "2 of 3 short trainings",
    f"{FIRST} + {SECOND}",
    "the sum is off by 0.5",
    "pass without peer access",
    "4 KiB",
    "64 MiB",
    "6.70",
    "hang",
    "3 wrong words",
    "as written",
    "Time was up",
    "300 rounds of 20 steps in 10.0 min",
    "wrong rounds",
    f"{FIRST} °C",
)


def test_a_terminal_shows_all_of_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "140")
    text.smoke(LOOKED)
    out = capsys.readouterr().out
    assert [word for word in SAID if word not in out] == []


def test_markdown_shows_all_of_it():
    out = markdown.smoke(LOOKED).replace("\\", "")
    assert [word for word in SAID if word not in out] == []


def test_a_training_without_it_shows_none_of_it(capsys: pytest.CaptureFixture[str]):
    text.smoke(report())
    out = capsys.readouterr().out
    assert "Soak" not in out
    assert "pairs" not in out
    assert markdown.smoke(report()) == "**fail**: It failed."


def test_of_many_trials_only_those_that_were_not_right_are_listed():
    trials = [Isolation(devices=(f"GPU:{n}",), outcome="died" if n == 7 else "pass", seconds=1.0) for n in range(36)]
    sentence, rows = closer.trials(report(isolation=tuple(trials)))
    assert sentence.startswith("35 of 36")
    assert rows == [("GPU:7", "died", "1.0")]


def test_a_pair_that_is_named_fails_both_of_its_cards():
    pair = finding("pair-hangs", "error", f"{FIRST} + {SECOND}", "They hang.")
    devices = [
        SmokeDevice(
            device=f"GPU:{n}",
            address=address,
            used=True,
            replica_steps=1,
            examples_per_second=1.0,
            evidence=DeviceEvidence(),
        )
        for n, address in enumerate((FIRST, SECOND, "0000:83:00.0"))
    ]
    named = report(devices=tuple(devices), findings=(pair,))
    assert [training.fate(named, device) for device in devices] == ["failed", "failed", "unconfirmed"]
