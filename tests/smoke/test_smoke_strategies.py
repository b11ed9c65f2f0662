"""Every strategy, mode and division on logical CPU devices, sound and with one fault each.

All of them run in one process, since most of a short training is the import of TensorFlow.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from gpucheck.smoke.evidence import OUTPUT_TOLERANCE, TOLERANCE, Judgement, Outcome, judge
from gpucheck.smoke.job import Job, Shard, Strategy
from gpucheck.smoke.plan import Train

FAULTY = Path(__file__).with_name("faulty_worker.py")
STRATEGIES: tuple[Strategy, ...] = ("mirrored", "central", "model", "hybrid")
WHOLE = ("model", "hybrid")
"""Strategies whose exchange TensorFlow hides, so that no checksum of it can be taken."""
UNEVEN = (Shard(0, 20), Shard(20, 8), Shard(28, 4), Shard(32, 16))
STEPS = 3

pytestmark = [
    pytest.mark.xdist_group("smoke-strategies"),  # one process does all their trainings
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs the extra [smoke]"),
]


def job(strategy: Strategy, **more) -> Job:
    return Job("cpu", 4, STEPS, strategy=strategy, **more)


SOUND = [job(strategy, mode=mode) for strategy, mode in product(STRATEGIES, ("train", "infer"))]
BY_SPEED = [job(strategy, mode=mode, by_speed=True) for strategy, mode in product(STRATEGIES[:2], ("train", "infer"))]

ALL, DATA = STRATEGIES, STRATEGIES[:2]
FAULTS = [
    # fault, what makes it visible, strategies, mode, the one finding
    *[("not-averaged", {}, one, "train", "allreduce-mismatch") for one in DATA],
    ("row-left-out", {}, "hybrid", "train", "gradient-mismatch"),
    *[("same-shard", {}, one, "train", "shard-mismatch") for one in (*DATA, "hybrid")],
    *[("other-samples", {}, one, "train", "shard-mismatch") for one in ALL],
    *[("other-samples", {}, one, "infer", "shard-mismatch") for one in ALL],
    *[("elsewhere-fed", {}, one, "train", "gpu-unused-in-training") for one in ALL],
    *[("computed-elsewhere", {}, one, "train", "gpu-unused-in-training") for one in DATA],
    *[("computed-elsewhere", {}, one, "infer", "gpu-unused-in-training") for one in DATA],
    *[("mean-of-means", {"shards": UNEVEN}, one, "train", "gradient-mismatch") for one in DATA],
    *[("mean-of-means", {}, one, "train", "gradient-mismatch") for one in WHOLE],
    *[("other-seed", {}, one, "train", "replica-diverged") for one in ALL],
    *[("other-seed", {}, one, "infer", "replica-diverged") for one in ALL],
    *[("nothing-learnt", {}, one, "train", "gradient-mismatch") for one in ALL],
    *[("outputs-exchanged", {}, one, "infer", "output-mismatch") for one in DATA],
]
CASES = [(fault, job(strategy, mode=mode, **more), name) for fault, more, strategy, mode, name in FAULTS]
SLOW = ("slow-device", job("mirrored", by_speed=True))
ORDER = [("none", one) for one in (*SOUND, *BY_SPEED)] + [(fault, one) for fault, one, _ in CASES] + [SLOW]


@functools.cache
def results() -> dict[tuple[str, Job], dict]:
    """All trainings of this module, done by one process."""
    command = (sys.executable, "-P", str(FAULTY), "several")
    jobs = json.dumps([(fault, one.to_json()) for fault, one in ORDER])
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [*command, jobs, str(FAULTY.parents[2])], capture_output=True, text=True, check=False, env=environ, timeout=500
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(ORDER), done.stderr
    return dict(zip(ORDER, answers, strict=True))


def judged(fault: str, one: Job) -> Judgement:
    answer = results()[fault, one]
    assert "result" in answer, answer
    return judge(Train(one), Outcome(ending="done", returncode=0, result=answer["result"]), None)


def called(one: Job | str | dict) -> str:
    return "-".join((one.strategy, one.mode)) if isinstance(one, Job) else str(one)


@pytest.mark.parametrize("one", SOUND, ids=called)
def test_each_strategy_gives_what_one_device_gives(one):
    judgement = judged("none", one)
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    numerics = judgement.numerics
    assert (numerics.start_difference, numerics.replica_spread) == (0, 0)
    if one.mode == "train":
        assert numerics.max_param_difference <= TOLERANCE / 10
        assert numerics.max_param_change > 1000 * TOLERANCE
        assert numerics.max_output_difference is None
    else:
        assert numerics.max_output_difference <= OUTPUT_TOLERANCE / 10
        assert numerics.max_output > 0.1
        assert numerics.max_param_difference is None


@pytest.mark.parametrize("one", SOUND, ids=called)
def test_each_device_shows_its_part_of_each_strategy(one):
    samples = {"mirrored": 16, "central": 16, "model": 64, "hybrid": 32}[one.strategy]
    operations = {"train": 8, "infer": 3} if one.strategy in DATA else {"train": 5, "infer": 2}
    for device in judged("none", one).devices:
        evidence = device.evidence
        assert device.used
        assert (device.replica_steps, evidence.samples) == (STEPS, samples * STEPS)
        assert evidence.inputs_on == device.device
        assert evidence.variables_on == ("CPU:0" if one.strategy == "central" else device.device)
        assert set(evidence.computed_on) == {device.device}
        assert evidence.computed_on[device.device] >= operations[one.mode]
        assert evidence.fed_difference == 0
        # Without an exchange, or with one that cannot be counted, nothing is claimed.
        exchange = one.mode == "train" and one.strategy in DATA
        assert (evidence.reduced_difference is not None) is exchange
        assert device.examples_per_second > 0


@pytest.mark.parametrize("one", BY_SPEED, ids=called)
def test_shares_by_speed_are_weighted_right(one):
    judgement = judged("none", one)
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    assert judgement.split.kind == "auto"
    assert sum(judgement.split.shares.values()) == judgement.global_batch == 64
    assert judgement.split.even_per_second > 0


@pytest.mark.parametrize("one", SOUND, ids=called)
def test_even_shares_claim_no_gain(one):
    split = judged("none", one).split
    assert (split.kind, split.gain, split.even_per_second) == ("even", None, None)


def test_shares_by_speed_spare_the_slow_device():
    judgement = judged(*SLOW)
    assert judgement.verdict == "pass"
    assert judgement.scaling.slowest == "CPU:1"
    shares = judgement.split.shares
    assert shares["CPU:1"] < min(share for device, share in shares.items() if device != "CPU:1")
    assert judgement.split.gain > 0.3
    assert judgement.split.gain == pytest.approx(judgement.scaling.all / judgement.split.even_per_second - 1)


@pytest.mark.parametrize(("fault", "one", "name"), CASES, ids=called)
def test_each_fault_has_its_name(fault, one, name):
    judgement = judged(fault, one)
    assert judgement.verdict == "fail"
    assert {finding.name for finding in judgement.findings} == {name}


@pytest.mark.parametrize("strategy", ALL)
def test_other_samples_name_the_device_that_had_them(strategy):
    judgement = judged("other-samples", job(strategy))
    assert [finding.subject for finding in judgement.findings] == ["CPU:1"]
