"""A training as people and as CI systems read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from junitparser import JUnitXml, TestSuite

from gpucheck.cli import run
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.render import junit, markdown, text, training
from gpucheck.smoke.report import (
    DeviceEvidence,
    Numerics,
    NvmlEvidence,
    Scaling,
    SmokeDevice,
    SmokeHost,
    SmokeReport,
    Split,
)

FIRST, SECOND = "0000:04:00.0", "0000:82:00.0"
NVML = NvmlEvidence(
    process_seen=True,
    memory_growth_bytes=900 << 20,
    busy_percent=97,
    busy_seconds=8.1,
    idle_watts=30.4,
    most_watts=249.8,
    clocks_mhz=(1200, 1900),
    most_celsius=71,
)
NUMERICS = Numerics(
    max_param_difference=2e-7,
    replica_spread=0.0,
    start_difference=0.0,
    tolerance=1e-5,
    max_param_change=0.1,
    loss=(2.4, 2.2),
)


def card(index: int, address: str | None, speed: float | None = 1000.0, **more: Any) -> SmokeDevice:
    usual: dict[str, Any] = {
        "device": f"GPU:{index}" if address else f"CPU:{index}",
        "used": True,
        "replica_steps": 10,
        "evidence": DeviceEvidence(nvml=NVML if address else None),
    }
    return SmokeDevice(address=address, examples_per_second=speed, **{**usual, **more})


def report(*devices: SmokeDevice, findings: tuple[Finding, ...] = (), **more: Any) -> SmokeReport:
    usual: dict[str, Any] = {
        "headline": "All 2 GPUs trained together.",
        "verdict": "pass",
        "exit_code": 0,
        "proves_gpu": True,
        "numerics": NUMERICS,
        "scaling": Scaling(single=750.0, all=950.0, efficiency=0.63, slowest=SECOND),
        "split": Split(kind="even", shares={FIRST: 16, SECOND: 16}, slowest_pace=1000.0),
        "steps": 10,
        "seconds": 12.5,
    }
    return SmokeReport(devices=devices, findings=findings, **{**usual, **more})


GOOD = report(card(0, FIRST), card(1, SECOND, 500.0))
ON_CPU = report(card(0, None), card(1, None), proves_gpu=False, headline="It proves no GPU.")


def failed() -> SmokeReport:
    """One card idle, one lost to NVML's eye, one not in the grant."""
    idle = finding(
        "gpu-unused-in-training",
        "error",
        SECOND,
        "The device did not do its part.",
        evidence=(Evidence(source="NVML utilisation", text="0 % in every sample"),),
        remedy=("Train on this card alone.",),
    )
    left = finding("memory-not-released", "error", FIRST, "300 MiB more are in use.")
    return report(
        card(0, FIRST),
        card(1, SECOND, used=False),
        card(2, "0000:83:00.0", evidence=DeviceEvidence(nvml=NvmlEvidence())),
        SmokeDevice(
            device=None, address="0000:84:00.0", used=False, replica_steps=None, examples_per_second=None,
            evidence=DeviceEvidence(),
        ),
        findings=(idle, left),
        verdict="fail",
        exit_code=1,
        proves_gpu=False,
        headline="The training failed.",
    )  # fmt: skip


def shown(
    document: SmokeReport, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int = 100
) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    text.smoke(document)
    return capsys.readouterr().out.splitlines()


# --- for people -----------------------------------------------------------------------------------


def test_cards_stand_in_a_table_with_bars(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(GOOD, monkeypatch, capsys)
    rows = [line for line in lines if line.startswith("  GPU:")]
    assert rows == [
        f"  GPU:0   {FIRST}  did its part  10     1,000       " + "█" * 30,
        f"  GPU:1   {SECOND}  did its part  10     500         " + "█" * 15,
    ]
    assert "  That is 95% of 2 × the slowest (1,000 examples/s), the measure for even shares." in lines
    assert f"  {FIRST}  +900 MiB  97 %  8.1 s      30 → 250 W  1200-1900 MHz  71 °C" in lines
    assert not any("no GPU was proved" in line for line in lines)


def test_one_device_is_compared_with_itself_and_layers_that_are_cut_have_no_shares() -> None:
    assert training.speed(Scaling(single=800.0, all=600.0, efficiency=0.75, slowest=FIRST)) == (
        "600 examples/s in the training, 800 by itself."
    )
    assert training.pace(GOOD) is not None
    assert training.pace(GOOD.model_copy(update={"strategy": "model"})) is None


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 200])
def test_every_width_is_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int) -> None:
    for document in (GOOD, failed(), ON_CPU):
        lines = shown(document, monkeypatch, capsys, columns)
        # Addresses and results stay whole; a table of four of them needs 50 columns.
        assert max(map(len, lines)) <= max(columns, 50)
        assert not any("\x1b" in line for line in lines)
        assert all(line == line.rstrip() for line in lines)


def test_bars_are_left_out_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not any("█" in line for line in shown(GOOD, monkeypatch, capsys, 60))
    assert any("█" in line for line in shown(GOOD, monkeypatch, capsys, 80))


def test_what_became_of_each_card_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(failed(), monkeypatch, capsys)
    for address, words in (
        (FIRST, "FAILED"),  # it did its part, and kept memory
        (SECOND, "FAILED"),
        ("0000:83:00.0", "not confirmed"),
        ("0000:84:00.0", "not in it"),
    ):
        assert any(address in line and words in line for line in lines)


def test_that_no_gpu_was_proved_is_said_plainly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "These are logical devices of the CPU: no GPU was proved"
    assert any(words in line for line in shown(ON_CPU, monkeypatch, capsys))
    assert words in markdown.smoke(ON_CPU)
    assert words not in markdown.smoke(GOOD)
    card_only = SmokeDevice(
        device=None, address=FIRST, used=False, replica_steps=None, examples_per_second=None, evidence=DeviceEvidence()
    )
    assert words not in markdown.smoke(report(card_only, verdict="fail", proves_gpu=False))


def test_markdown_has_the_same_cells() -> None:
    page = markdown.smoke(GOOD).replace("\\", "")
    assert f"| GPU:1 | {SECOND} | did its part | 10 | 500 |" in page
    assert f"| {FIRST} | +900 MiB | 97 % | 8.1 s | 30 → 250 W | 1200-1900 MHz | 71 °C |" in page
    assert "That is 95% of 2 × the slowest" in page


# --- for machines ---------------------------------------------------------------------------------


def read(document: SmokeReport) -> TestSuite:
    """The only suite of the file that a report becomes."""
    (suite,) = JUnitXml.fromstring(junit.smoke(document).encode())
    return suite


def outcomes(suite: TestSuite) -> dict[str, str]:
    return {
        case.name: "failed" if case.is_failure else "error" if case.is_error else "skipped" if case.is_skipped else "ok"
        for case in suite
    }


def test_each_card_is_a_test() -> None:
    suite = read(GOOD)
    assert outcomes(suite) == {
        f"GPU:0 {FIRST}": "ok",
        f"GPU:1 {SECOND}": "ok",
        "numerics": "ok",
        "scaling": "ok",
        "aftermath": "ok",
        "training": "ok",
    }
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (6, 0, 0, 0)
    assert {case.classname for case in suite} == {"gpucheck.smoke"}
    assert {entry.name: entry.value for entry in suite.properties()}["proves_gpu"] == "true"
    assert GOOD.time.startswith(suite.timestamp)


def test_a_failure_is_told_by_card_in_plain_words() -> None:
    suite = read(failed())
    assert outcomes(suite) == {
        f"GPU:0 {FIRST}": "failed",
        f"GPU:1 {SECOND}": "failed",
        "GPU:2 0000:83:00.0": "error",
        "0000:84:00.0": "skipped",
        "numerics": "ok",
        "scaling": "ok",
        "aftermath": "failed",
        "training": "ok",
    }
    (result,) = next(case for case in suite if SECOND in case.name).result
    assert (result.message, result.type) == ("The device did not do its part.", "gpu-unused-in-training")
    assert next(case for case in suite if FIRST in case.name).result[0].message == "300 MiB more are in use."
    assert result.text.splitlines() == [
        "The device did not do its part.",
        "NVML utilisation: 0 % in every sample",
        "1. Train on this card alone.",
        "gpucheck explain gpu-unused-in-training",
    ]


def test_the_command_writes_the_file_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gpucheck.api.smoke", lambda *_, **__: failed())
    file = tmp_path / "smoke.xml"
    file.write_text("an older one")
    assert run(["smoke", "--junit", str(file)]) == 1
    (suite,) = JUnitXml.fromfile(str(file))
    assert (suite.failures, suite.errors, suite.skipped) == (3, 1, 1)
    assert list(tmp_path.iterdir()) == [file]


def test_a_place_that_cannot_be_written_is_told_before_the_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("gpucheck.api.smoke", lambda *_, **__: pytest.fail("it was trained"))
    assert run(["smoke", "--junit", str(tmp_path / "nowhere" / "smoke.xml")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_logical_devices_are_no_green_gpu() -> None:
    suite = read(ON_CPU)
    assert outcomes(suite)["gpu"] == "skipped"
    assert outcomes(suite)["CPU:0"] == "ok"


@pytest.mark.parametrize(
    ("name", "subject", "case"),
    [
        ("gradient-mismatch", "machine", "numerics"),
        ("allreduce-mismatch", "machine", "numerics"),
        ("process-left-behind", "machine", "aftermath"),
        ("smoke-worker-died", "machine", "training"),
        ("gpu-count-mismatch", "machine", "training"),
        ("link-errors-in-training", "0000:00:01.0", "training"),  # a bridge
        ("gradient-mismatch", SECOND, f"GPU:1 {SECOND}"),
    ],
)
def test_every_error_makes_a_test_fail(name: str, subject: str, case: str) -> None:
    wrong = finding(name, "error", subject, "It is wrong.")
    suite = read(report(card(0, FIRST), card(1, SECOND), findings=(wrong,), verdict="fail", exit_code=1))
    assert outcomes(suite)[case] == "failed"
    assert sum(f"explain {name}" in (result.text or "") for one in suite for result in one.result) == 1


def test_each_host_is_a_test() -> None:
    def host(rank: int, verdict: Any, *problems: str) -> SmokeHost:
        return SmokeHost(
            host=f"n{rank}", rank=rank, address=f"n{rank}:2222", verdict=verdict, headline="Words.", problems=problems
        )

    hosts = (host(0, "pass"), host(1, "fail", "It never came."), host(2, "not-run"))
    suite = read(report(card(0, FIRST), hosts=hosts, verdict="fail", exit_code=1))
    found = outcomes(suite)
    assert [found[f"host n{rank} ({rank})"] for rank in range(3)] == ["ok", "failed", "error"]
    (result,) = next(case for case in suite if case.name == "host n1 (1)").result
    assert result.text == "Words.\nIt never came."


def test_warnings_are_notes() -> None:
    slow = finding("gpu-slower-than-peers", "warning", SECOND, "It is slow.")
    hot = finding("gpu-throttled-in-training", "warning", FIRST, "It is hot.")
    suite = read(report(card(0, FIRST), card(1, SECOND), findings=(slow, hot)))
    assert set(outcomes(suite).values()) == {"ok"}
    notes = {case.name: case.system_out or "" for case in suite}
    assert "It is hot." in notes[f"GPU:0 {FIRST}"]
    assert "It is slow." in notes["scaling"]


def test_what_was_not_run_is_not_green() -> None:
    nothing = report(verdict="not-run", exit_code=3, numerics=None, scaling=None, seconds=None, proves_gpu=False)
    assert outcomes(read(nothing)) == {
        "numerics": "error",
        "scaling": "skipped",
        "aftermath": "skipped",
        "training": "error",
    }


def test_what_xml_cannot_hold_does_no_harm() -> None:
    hostile = finding(
        "smoke-worker-died", "error", "machine", "It \x1b[31mdied\x00 <&]]>", remedy=("Look at \x07 ]]> this.",)
    )
    suite = read(report(findings=(hostile,), verdict="fail", headline="\x00 <bad> \ud800"))
    (result,) = next(case for case in suite if case.name == "training").result
    assert result.text.splitlines()[1] == "1. Look at ? ]]> this."
