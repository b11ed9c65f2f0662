"""What is said of strategies, modes and shares."""

from __future__ import annotations

import pytest

from gpucheck.render import training
from gpucheck.smoke.report import Numerics, SmokeReport, Split


def report(**more) -> SmokeReport:
    return SmokeReport(headline="-", verdict="pass", exit_code=0, proves_gpu=False, steps=10, **more)


@pytest.mark.parametrize("strategy", ["mirrored", "central", "model", "hybrid"])
def test_each_strategy_is_named(strategy):
    said = training.layout(report(strategy=strategy))
    assert said.startswith(f"Strategy {strategy}: ")
    assert "Forward passes only" not in said
    assert training.layout(report(strategy=strategy, mode="infer")).startswith(f"{said} Forward passes only")


def test_an_inference_speaks_of_outputs():
    numerics = Numerics(
        compared="outputs",
        max_param_difference=None,
        max_output_difference=2e-6,
        replica_spread=0.0,
        start_difference=0.0,
        tolerance=1e-4,
        max_param_change=None,
        max_output=2.0,
        loss=(None, None),
    )
    assert training.numbers(numerics) == "Outputs differ by at most 2e-06 (allowed 1e-04)."


def test_shares_by_speed_say_what_they_gained():
    split = Split(kind="auto", shares={"a": 48, "b": 16}, slowest_pace=200.0, even_per_second=190.0, gain=0.5)
    assert training.shares(split) == (
        "Shares by speed (a 48, b 16 samples a step) give +50% against even shares, which reached 190 examples/s; "
        "all at the slowest one's pace alone would be 200."
    )
    assert training.shares(Split(kind="even", shares={"a": 32}, slowest_pace=200.0)) is None
