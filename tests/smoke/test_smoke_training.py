"""Real trainings by real TensorFlow on logical CPU devices, sound and with one fault each."""

from __future__ import annotations

import functools
import inspect
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

import gpucheck
from gpucheck import api
from gpucheck.facts import Gpu, Machine, NvmlGpu
from gpucheck.smoke.evidence import judge
from gpucheck.smoke.job import Job, Shard
from gpucheck.smoke.numbers import TOLERANCE
from gpucheck.smoke.outcome import Judgement, Outcome
from gpucheck.smoke.plan import DeviceRequest, Train
from gpucheck.smoke.report import SmokeReport
from gpucheck.smoke.run import Limits, smoke, train

FAULTY = Path(__file__).with_name("faulty_worker.py")
UNEVEN = (Shard(0, 20), Shard(20, 8), Shard(28, 4), Shard(32, 16))

pytestmark = pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs the extra [smoke]")


@functools.cache
def outcome_of(fault: str, job: Job, limits: Limits | None) -> Outcome:
    """Train with a fault; one run serves every test that asks for it."""
    command = (sys.executable, "-P", str(FAULTY), fault)
    return train(job, environ=os.environ, limits=limits, command=command)


def judged(fault: str, job: Job, limits: Limits | None = None) -> Judgement:
    return judge(Train(job), outcome_of(fault, job, limits), None)


def names(judgement: Judgement) -> set[str]:
    return {finding.name for finding in judgement.findings}


# --- sound ----------------------------------------------------------------------------------------


# Where tests are spread over processes, those of one report stay together.
of_one_report = pytest.mark.xdist_group("smoke-four")


@pytest.fixture(scope="module")
def four():
    steps: list[tuple[int, int, str]] = []
    report = smoke(DeviceRequest.parse("cpu:4"), None, steps=5, progress=lambda *message: steps.append(message))
    return report, steps


@of_one_report
def test_four_logical_devices_train_exactly(four):
    report, _ = four
    assert (report.verdict, report.exit_code, report.findings) == ("pass", 0, ())
    assert report.numerics is not None
    assert report.numerics.max_param_difference <= TOLERANCE / 10
    assert report.numerics.replica_spread == 0
    assert report.numerics.max_param_change > 1000 * TOLERANCE
    assert report.global_batch == 64
    # Without a failure nobody looks closer.
    assert (report.isolation, report.allreduce, report.deep, report.soak) == ((), (), None, None)


@of_one_report
def test_it_proves_no_gpu_and_says_so(four):
    report, _ = four
    assert report.proves_gpu is False
    assert "no GPU" in report.headline


@of_one_report
def test_each_device_has_its_own_evidence(four):
    report, _ = four
    assert [device.device for device in report.devices] == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
    for index, device in enumerate(report.devices):
        evidence = device.evidence
        assert device.used
        assert (device.replica_steps, evidence.samples, evidence.replica) == (5, 80, index)
        assert evidence.variables_on == evidence.inputs_on == device.device
        # Two convolutions and a matrix product, forward and backward, and all of them here.
        assert set(evidence.computed_on) == {device.device}
        assert evidence.computed_on[device.device] >= 8
        assert device.examples_per_second > 0


@of_one_report
def test_the_speed_of_the_group_is_compared_with_the_devices_alone(four):
    report, _ = four
    total = sum(device.examples_per_second for device in report.devices)
    assert report.scaling.efficiency == pytest.approx(report.scaling.all / total)
    slowest = min(report.devices, key=lambda device: device.examples_per_second)
    assert report.scaling.slowest == slowest.device


@of_one_report
def test_progress_names_each_step_and_phase(four):
    _, steps = four
    assert [step for step, _, phase in steps if phase == "train"] == [0, 1, 2, 3, 4, 5]
    phases = list(dict.fromkeys(phase for _, _, phase in steps))
    assert phases == ["import", "devices", "alone", "train", "compare", "together"]


@of_one_report
def test_the_document_has_the_agreed_keys(four):
    report, _ = four
    document = report.model_dump(mode="json")
    assert document["schema"] == "gpucheck/smoke/1"
    assert {"gpucheck", "time", "headline", "verdict", "exit_code", "proves_gpu"} < set(document)
    assert {"device", "address", "used", "replica_steps", "examples_per_second", "evidence"} < set(
        document["devices"][0]
    )
    assert {"max_param_difference", "replica_spread", "tolerance"} < set(document["numerics"])
    assert set(document["scaling"]) == {"single", "all", "efficiency", "slowest"}


def test_the_parent_does_not_load_tensorflow():
    code = "import sys, gpucheck.smoke.run; sys.exit(any(m in sys.modules for m in ('tensorflow', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_one_device():
    report = smoke(DeviceRequest.parse("cpu:1"), None, steps=3)
    assert (report.verdict, report.headline) == (
        "pass",
        "Training on 1 logical CPU device is exact; it proves no GPU.",
    )
    assert report.devices[0].evidence.param_difference == 0


def test_uneven_shards_are_weighted_by_the_global_batch():
    judgement = judged("none", Job("cpu", 4, steps=5, shards=UNEVEN))
    assert judgement.verdict == "pass"
    assert [device.evidence.samples for device in judgement.devices] == [100, 40, 20, 80]
    assert judgement.numerics.max_param_difference <= TOLERANCE / 10


# --- faults ---------------------------------------------------------------------------------------


def test_gradients_that_are_not_averaged_diverge():
    judgement = judged("not-averaged", Job("cpu", 2, steps=5))
    assert judgement.verdict == "fail"
    assert judgement.numerics.max_param_difference > 100 * TOLERANCE
    assert judgement.numerics.replica_spread > 100 * TOLERANCE
    assert names(judgement) == {"allreduce-mismatch"}


def test_one_shard_for_all_is_caught_although_the_replicas_agree():
    judgement = judged("same-shard", Job("cpu", 2, steps=5))
    assert judgement.numerics.replica_spread == 0
    assert judgement.numerics.max_param_difference > 100 * TOLERANCE
    assert (judgement.verdict, names(judgement)) == ("fail", {"shard-mismatch"})
    assert [finding.subject for finding in judgement.findings] == ["CPU:1"]


def test_the_mean_of_means_is_caught_on_uneven_shards():
    judgement = judged("mean-of-means", Job("cpu", 4, steps=5, shards=UNEVEN))
    assert judgement.numerics.max_param_difference > 100 * TOLERANCE
    assert (judgement.verdict, names(judgement)) == ("fail", {"gradient-mismatch"})


def test_an_idle_device_is_named_although_the_numbers_are_right():
    judgement = judged("idle-device", Job("cpu", 3, steps=3))
    assert judgement.numerics.max_param_difference <= TOLERANCE
    assert [(finding.name, finding.subject) for finding in judgement.findings] == [("gpu-unused-in-training", "CPU:2")]
    assert [device.used for device in judgement.devices] == [True, True, False]
    assert judgement.verdict == "fail"


def test_a_batch_made_elsewhere_is_seen():
    judgement = judged("elsewhere-fed", Job("cpu", 2, steps=3))
    (finding,) = judgement.findings
    assert (finding.name, finding.subject) == ("gpu-unused-in-training", "CPU:1")
    assert [(line.source, line.text) for line in finding.evidence] == [("inputs_on", "CPU:0 instead of CPU:1")]


def test_standing_still_proves_nothing():
    judgement = judged("nothing-learnt", Job("cpu", 2, steps=3))
    assert judgement.numerics.max_param_difference == 0
    assert (judgement.verdict, names(judgement)) == ("fail", {"gradient-mismatch"})


def test_what_is_not_a_number_agrees_with_nothing():
    judgement = judged("not-a-number", Job("cpu", 2, steps=3))
    assert judgement.numerics.max_param_difference is None
    assert {"gradient-mismatch", "replica-diverged"} == names(judgement)


# --- endings --------------------------------------------------------------------------------------


def test_a_hang_is_ended_and_its_step_named():
    job, limits = Job("cpu", 2), Limits(total=60, quiet=2.5)
    judgement, outcome = judged("hangs", job, limits), outcome_of("hangs", job, limits)
    (finding,) = judgement.findings
    assert finding.name == "smoke-timeout"
    assert finding.message == "The training made no progress for 2.5 s. Step 3 of the training was running."
    assert (judgement.verdict, outcome.returncode, outcome.left_behind) == ("fail", -9, False)


def test_death_is_told_from_a_hang():
    judgement = judged("dies", Job("cpu", 2))
    (finding,) = judgement.findings
    assert finding.name == "smoke-worker-died"
    assert "code 9" in finding.message
    assert "Step 3" in finding.message
    assert judgement.verdict == "fail"


def test_an_exception_is_reported_in_clean_words():
    judgement = judged("raises", Job("cpu", 2))
    (finding,) = judgement.findings
    assert finding.name == "smoke-worker-died"
    assert "RuntimeError: " in finding.message
    assert "no way between the cards" in finding.message
    assert "\x1b" not in finding.message


def alive_in(group: int) -> list[str]:
    """Processes of a group that run; a zombie of a container without an init does not."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _parent, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                found.append(stat.parent.name)
    return found


def test_a_process_that_outlives_the_training_is_reported_and_ended():
    judgement = judged("process-left", Job("cpu", 1, steps=2))
    assert names(judgement) == {"process-left-behind"}
    assert judgement.verdict == "fail"
    left = outcome_of("process-left", Job("cpu", 1, steps=2), None).pid
    # SIGKILL takes effect when the process is next scheduled. By itself it would stay for an hour.
    for _ in range(6000):
        if not alive_in(left):
            return
        time.sleep(0.01)
    pytest.fail("the process is still there")


def test_the_whole_training_has_a_deadline():
    job, limits = Job("cpu", 2), Limits(total=0.3)
    judgement = judged("none", job, limits)
    assert (judgement.verdict, names(judgement)) == ("not-run", {"smoke-timeout"})  # no card was judged
    assert "TensorFlow was being loaded" in judgement.findings[0].message


def test_a_worker_without_a_parent_ends_itself():
    """Its own limit holds when nobody is left to end it."""
    read, write = os.pipe()
    job = Job("cpu", 1, give_up_seconds=0.5)
    command = [sys.executable, "-P", str(FAULTY), "none", job.to_json(), str(FAULTY.parents[2])]
    process = subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=60)
    os.close(write)
    os.close(read)
    assert process.returncode == 1
    assert b"Timeout (0:00:00.5" in errors  # where it was, for the log


def test_a_deaf_progress_callback_does_not_leave_a_worker():
    """An exception of the caller's passes through, and the worker is gone."""
    before = {thread.ident for thread in threading.enumerate()}

    def progress(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Job("cpu", 1), environ=os.environ, progress=progress)
    assert {thread.ident for thread in threading.enumerate()} == before


# --- TensorFlow itself ----------------------------------------------------------------------------


def test_without_tensorflow_nothing_is_run():
    command = (sys.executable, "-I", "-S", str(FAULTY), "none")
    outcome = train(Job("cpu", 2), environ=os.environ, command=command)
    judgement = judge(Train(Job("cpu", 2)), outcome, None)
    (finding,) = judgement.findings
    assert finding.name == "tensorflow-missing"
    assert 'pip install "gpucheck-server[smoke]"' in finding.remedy[0]
    assert judgement.verdict == "not-run"


def test_a_card_that_tensorflow_cannot_use_fails_and_is_never_replaced_by_a_cpu():
    machine = Machine(gpus=(Gpu(address="0000:04:00.0", vendor="nvidia", name="Tesla P40", on_pci=True),))
    report = smoke(DeviceRequest.parse("auto"), machine)
    assert (report.verdict, report.exit_code, report.proves_gpu) == ("fail", 1, False)
    (finding,) = report.findings
    assert finding.name in ("tensorflow-cpu-only-build", "tensorflow-sees-no-gpu")
    (device,) = report.devices
    assert (device.address, device.device, device.used) == ("0000:04:00.0", None, False)


def test_the_library_waits_for_a_card_that_gets_free(monkeypatch):
    """What NVML says of the only card: busy at the first look, free at the second."""
    monkeypatch.setattr("gpucheck.smoke.run.POLL_SECONDS", 0.01)
    looks = iter([(77,), (77,), ()])

    def look() -> Machine:
        nvml = NvmlGpu(index=0, uuid="GPU-1", processes=next(looks))
        return Machine(gpus=(Gpu(address="0000:04:00.0", vendor="nvidia", nvml=nvml),))

    monkeypatch.setattr("gpucheck.api._look", look)
    report = gpucheck.smoke("gpu", if_busy="wait", timeout=60)
    assert list(looks) == []
    assert "gpu-busy" not in [finding.name for finding in report.findings]


def test_the_package_is_the_library_function():
    """Both ways to the name, and in any order of imports."""
    import gpucheck.smoke.run

    report = gpucheck.smoke("cpu:1", steps=1, timeout=120.0)
    assert isinstance(report, SmokeReport)
    assert (report.verdict, report.steps) == ("pass", 1)
    with pytest.raises(TypeError, match="step"):
        gpucheck.smoke("cpu:1", step=1)
    assert all(kind.kind is not kind.VAR_KEYWORD for kind in inspect.signature(api.smoke).parameters.values())


@pytest.mark.parametrize("if_busy", ["fail", "wait"])
def test_busy_cards_are_left_alone(monkeypatch, if_busy):
    monkeypatch.setattr("gpucheck.smoke.run.POLL_SECONDS", 0.01)

    def machine(*processes: int) -> Machine:
        nvml = NvmlGpu(index=0, uuid="GPU-1", processes=processes)
        return Machine(gpus=(Gpu(address="0000:04:00.0", vendor="nvidia", nvml=nvml),))

    looks = iter([machine(77), machine()])
    report = smoke(DeviceRequest.parse("gpu"), machine(77), if_busy=if_busy, timeout=60, look_again=lambda: next(looks))
    if if_busy == "fail":
        assert (report.verdict, report.exit_code) == ("not-run", 3)
        assert [finding.name for finding in report.findings] == ["gpu-busy"]
        assert [(device.address, device.used) for device in report.devices] == [("0000:04:00.0", False)]
    else:  # the card got free, and so it was trained for
        assert list(looks) == []
        assert "gpu-busy" not in [finding.name for finding in report.findings]
