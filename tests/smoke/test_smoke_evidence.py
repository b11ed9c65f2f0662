"""From scripted evidence of cards to a verdict."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpucheck.smoke.evidence import judge
from gpucheck.smoke.outcome import Outcome
from gpucheck.smoke.job import Job
from gpucheck.smoke.plan import Card, Train

FIRST, SECOND = "0000:04:00.0", "0000:82:00.0"
CARDS = (Card(FIRST, "nvidia", processes=()), Card(SECOND, "nvidia", processes=()))
PLAN = Train(Job("gpu", 2), cards=CARDS)
PID = 4711
STARTED, SECONDS = 1000.0, 10.0
MIB = 1 << 20


@dataclass
class Sample:
    address: str | None
    seconds: float
    memory_used_bytes: int | None
    utilization_percent: int | None
    energy_joules: float | None
    pids: tuple[int, ...] | None


def watched(address: str, *, busy: int | None = 90, pids: Any = (PID,), left: int = 0, peak: int = 900):
    """Before, twice during, after."""
    return [
        Sample(address, STARTED - 1, 10 * MIB, busy and 0, 100.0, pids and ()),
        Sample(address, STARTED + 5, peak * MIB, busy, 150.0, pids),
        Sample(address, STARTED + 6, peak * MIB, busy, 200.0, pids),
        Sample(address, STARTED + SECONDS + 1, (10 + left) * MIB, busy and 0, 220.0, pids and ()),
    ]


SEEN = [*watched(FIRST), *watched(SECOND)]


def good() -> dict[str, Any]:
    return {
        "devices": [
            {
                "device": f"GPU:{index}",
                "description": f"device: {index}, name: Tesla P40, pci bus id: 0000:{bus}:00.0, compute ...",
                "alone_difference": 1e-7,
                "alone_per_second": 1000.0,
                "peak_bytes": 50 * MIB,
            }
            for index, bus in enumerate(("04", "82"))
        ],
        "replicas": [
            {
                "device": f"GPU:{index}",
                "steps": 10,
                "samples": 160,
                "variables_on": f"GPU:{index}",
                "inputs_on": f"GPU:{index}",
                "computed_on": {f"GPU:{index}": 9},
                "difference": 2e-7,
            }
            for index in range(2)
        ],
        "max_param_difference": 2e-7,
        "start_difference": 0.0,
        "replica_spread": 0.0,
        "max_param_change": 0.05,
        "loss": [2.4, 2.2],
        "together_per_second": 1800.0,
        "global_batch": 32,
    }


def weigh(result=None, samples=SEEN, *, plan=PLAN, expect_gpus=None, **outcome):
    build = {"version": "2.21.0", "cuda": True, "rocm": False, "compute_capabilities": ["sm_60"]}
    defaults: dict[str, Any] = {"ending": "done", "pid": PID, "returncode": 0, "build": build}
    defaults |= {"started": STARTED, "seconds": SECONDS}
    return judge(plan, Outcome(**{**defaults, "result": result, **outcome}), samples, expect_gpus)


def found(judgement):
    return [(finding.name, finding.severity, finding.subject) for finding in judgement.findings]


def test_two_good_cards_are_proven():
    judgement = weigh(good())
    assert (judgement.verdict, judgement.proves_gpu, judgement.findings) == ("pass", True, ())
    assert [(device.address, device.used) for device in judgement.devices] == [(FIRST, True), (SECOND, True)]
    nvml = judgement.devices[0].evidence.nvml
    assert nvml.process_seen is True
    assert (nvml.memory_growth_bytes, nvml.memory_left_bytes) == (890 * MIB, 0)
    assert (nvml.busy_percent, nvml.energy_joules) == (90, 120.0)
    assert judgement.devices[0].evidence.unknown == ()
    assert judgement.scaling.efficiency == pytest.approx(0.9)
    assert judgement.scaling.single == 1000


def test_devices_are_joined_by_address_and_never_by_index():
    result = good()
    first, second = result["devices"]
    first["description"], second["description"] = second["description"], first["description"]
    judgement = weigh(result, [*watched(FIRST, busy=0, peak=10), *watched(SECOND)])
    assert [(device.device, device.address, device.used) for device in judgement.devices] == [
        ("GPU:0", SECOND, True),
        ("GPU:1", FIRST, False),
    ]


def test_the_address_comes_from_the_log_where_the_description_has_none():
    result = good()
    for device in result["devices"]:
        device["description"] = None
    line = (
        "I0000 gpu_device.cc:2020] Created device /job:localhost/replica:0/task:0/device:GPU:{} with 22000 MB"
        " memory:  -> device: {}, name: Tesla P40, pci bus id: 0000:{}:00.0, compute capability: 6.1"
    )
    judgement = weigh(result, stderr=[line.format(0, 0, "04"), line.format(1, 1, "82")])
    assert [device.address for device in judgement.devices] == [FIRST, SECOND]
    assert judgement.verdict == "pass"


def test_a_device_without_an_address_is_not_proven():
    result = good()
    for device in result["devices"]:
        device["description"] = ""
    judgement = weigh(result)
    assert (judgement.verdict, judgement.proves_gpu) == ("not-run", False)
    assert "address" in judgement.devices[0].evidence.unknown


def test_a_card_that_was_never_busy_did_not_train():
    judgement = weigh(good(), [*watched(FIRST), *watched(SECOND, busy=0)])
    assert found(judgement) == [("gpu-unused-in-training", "error", SECOND)]
    assert judgement.verdict == "fail"


def test_memory_that_did_not_grow_speaks_against_a_card():
    judgement = weigh(good(), [*watched(FIRST), *watched(SECOND, peak=20)])
    assert found(judgement) == [("gpu-unused-in-training", "error", SECOND)]


def test_a_watch_that_came_late_knows_no_growth():
    """What the card held when it was first looked at may be the training's own."""
    late = [*watched(FIRST)[1:], *watched(SECOND)[1:]]
    judgement = weigh(good(), late)
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    for device in judgement.devices:
        nvml = device.evidence.nvml
        assert (nvml.memory_growth_bytes, nvml.memory_left_bytes, nvml.busy_percent) == (None, None, 90)
        assert device.evidence.unknown == ("nvml.memory_growth_bytes", "nvml.memory_left_bytes")
    without_list = [replace(sample, pids=None) for sample in late]
    assert weigh(good(), without_list).verdict == "not-run"


@pytest.mark.parametrize("seen", [1, 2, 3])
def test_a_watch_that_ended_early_raises_no_doubt(seen):
    """Its last look is from before or in the midst of the training, not from after it."""
    judgement = weigh(good(), [*watched(FIRST)[:seen], *watched(SECOND)])
    assert (judgement.verdict, judgement.findings) == ("not-run" if seen == 1 else "pass", ())
    nvml = judgement.devices[0].evidence.nvml
    assert nvml.memory_left_bytes is None
    assert (nvml.memory_growth_bytes, nvml.busy_percent) == ((None, None) if seen == 1 else (890 * MIB, 90))


def test_a_card_whose_processes_were_not_read_is_named_as_such():
    plan = Train(PLAN.job, cards=(CARDS[0], Card(SECOND, "nvidia")))
    judgement = weigh(good(), plan=plan)
    assert (judgement.verdict, judgement.proves_gpu) == ("pass", True)
    assert [device.evidence.unknown for device in judgement.devices] == [(), ("busy",)]
    assert judgement.headline.endswith(" Whether other processes use a card could not be read.")
    judgement = weigh(good(), plan=Train(PLAN.job))  # PCI was not read
    assert judgement.headline.endswith(" Whether other processes use 2 of the cards could not be read.")


@pytest.mark.parametrize("pids", [(1,), (), None])
def test_a_process_that_a_container_renumbers_does_not_speak_against_a_card(pids):
    judgement = weigh(good(), [*watched(FIRST, pids=pids), *watched(SECOND, pids=pids)])
    assert judgement.verdict == "pass"
    assert judgement.devices[0].evidence.nvml.process_seen is None
    assert "nvml.process_seen" in judgement.devices[0].evidence.unknown


@pytest.mark.parametrize("samples", [None, [], watched(FIRST)])
def test_what_nvml_did_not_count_never_counts_as_a_pass(samples):
    judgement = weigh(good(), samples)
    assert (judgement.verdict, judgement.proves_gpu) == ("not-run", False)


def test_a_replica_that_missed_steps_is_named():
    result = good()
    result["replicas"][1]["steps"] = 7
    assert found(weigh(result)) == [("gpu-unused-in-training", "error", SECOND)]


@pytest.mark.parametrize("key", ["variables_on", "inputs_on"])
def test_a_replica_that_lives_elsewhere_is_named(key):
    result = good()
    result["replicas"][1][key] = "GPU:0"
    judgement = weigh(result)
    assert found(judgement) == [("gpu-unused-in-training", "error", SECOND)]
    assert "GPU:0 instead of GPU:1" in judgement.findings[0].evidence[0].text


def test_arithmetic_that_ran_elsewhere_is_named():
    result = good()
    result["replicas"][1]["computed_on"] = {"GPU:1": 6, "CPU:0": 3}
    judgement = weigh(result)
    assert found(judgement) == [("gpu-unused-in-training", "error", SECOND)]
    assert judgement.findings[0].evidence[0].text == "CPU:0: 3"


def test_placements_that_were_not_logged_are_unknown():
    result = good()
    result["replicas"][1]["computed_on"] = {}
    judgement = weigh(result)
    assert judgement.verdict == "pass"
    assert judgement.devices[1].evidence.unknown == ("computed_on",)


def test_a_card_that_tensorflow_does_not_list_fails():
    result = good()
    for key in ("devices", "replicas"):
        del result[key][1]
    judgement = weigh(result, watched(FIRST))
    assert found(judgement) == [("gpu-unused-in-training", "error", SECOND)]
    assert [(device.device, device.address, device.used) for device in judgement.devices] == [
        ("GPU:0", FIRST, True),
        (None, SECOND, False),
    ]


def test_a_card_of_another_maker_is_left_in_peace():
    result = good()
    for key in ("devices", "replicas"):
        del result[key][1]
    plan = Train(PLAN.job, cards=(CARDS[0], Card(SECOND, "amd")))
    judgement = weigh(result, watched(FIRST), plan=plan)
    assert found(judgement) == [("gpu-unused-in-training", "info", SECOND)]
    assert judgement.verdict == "pass"


def test_a_card_outside_the_grant_is_listed_and_not_missed():
    result = good()
    for key in ("devices", "replicas"):
        del result[key][1]
    plan = Train(PLAN.job, cards=CARDS[:1], left_out=CARDS[1:])
    judgement = weigh(result, watched(FIRST), plan=plan)
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    assert [device.used for device in judgement.devices] == [True, False]
    assert weigh(result, watched(FIRST), plan=plan, expect_gpus=1).verdict == "pass"
    judgement = weigh(result, watched(FIRST), plan=plan, expect_gpus=2)
    assert found(judgement) == [("gpu-count-mismatch", "error", "machine")]


def test_an_unmet_expectation_makes_its_explanation_an_error():
    result = good()
    for key in ("devices", "replicas"):
        del result[key][1]
    plan = Train(PLAN.job, cards=(CARDS[0], Card(SECOND, "amd")))
    judgement = weigh(result, watched(FIRST), plan=plan, expect_gpus=2)
    assert found(judgement) == [("gpu-unused-in-training", "error", SECOND)]
    assert judgement.verdict == "fail"


def test_a_card_that_computes_wrongly_by_itself_is_named():
    result = good()
    result["devices"][1]["alone_difference"] = 0.5
    result["max_param_difference"] = 0.2
    judgement = weigh(result)
    assert found(judgement) == [("gradient-mismatch", "error", SECOND)]


def test_cards_that_are_right_alone_and_wrong_together():
    result = good()
    result["max_param_difference"] = 0.2
    judgement = weigh(result)
    assert found(judgement) == [("gradient-mismatch", "error", "machine")]
    assert "NCCL_P2P_DISABLE" in judgement.findings[0].remedy[0]


def test_the_slower_of_two_twins_is_named_and_still_passes():
    result = good()
    result["devices"][1]["alone_per_second"] = 700.0
    judgement = weigh(result)
    assert found(judgement) == [("gpu-slower-than-peers", "warning", SECOND)]
    assert "70 %" in judgement.findings[0].message
    assert (judgement.verdict, judgement.scaling.slowest) == ("pass", SECOND)


def test_cards_of_different_names_are_not_compared():
    result = good()
    slower = result["devices"][1]
    slower.update(alone_per_second=500.0, description=slower["description"].replace("P40", "M40"))
    assert weigh(result).findings == ()


def test_memory_that_stays_is_reported():
    judgement = weigh(good(), [*watched(FIRST), *watched(SECOND, left=300)])
    assert found(judgement) == [("memory-not-released", "error", SECOND)]
    assert "300 MiB" in judgement.findings[0].message


def test_a_process_that_nvml_still_lists_is_reported():
    samples = copy.deepcopy(SEEN)
    samples[-1].pids = (PID,)
    assert found(weigh(good(), samples)) == [("process-left-behind", "error", "machine")]


def test_a_package_without_gpu_support_is_told_from_a_blind_one():
    cpu_only = {"version": "2.21.0", "cuda": False, "rocm": False}
    judgement = weigh({"devices": []}, build=cpu_only)
    assert found(judgement) == [("tensorflow-cpu-only-build", "error", "machine")]
    log = ["I0000 noise", "E0000 cuda_executor.cc:1] failed call to cuInit: UNKNOWN ERROR (303)"]
    judgement = weigh({"devices": []}, stderr=log)
    assert found(judgement) == [("tensorflow-sees-no-gpu", "error", "machine")]
    assert [line.text for line in judgement.findings[0].evidence] == log[1:]
    assert judgement.verdict == "fail"
    assert [device.address for device in judgement.devices] == [FIRST, SECOND]


def test_no_gpu_in_tensorflow_says_little_where_pci_was_not_read():
    judgement = weigh({"devices": []}, plan=Train(Job("gpu", 1)))
    assert judgement.verdict == "not-run"


def test_a_card_that_hangs_by_itself_is_named_by_its_address():
    line = "Created device /job:localhost/replica:0/task:0/device:GPU:1 with 1 MB -> name: X, pci bus id: 0000:82:00.0"
    judgement = weigh(
        None, ending="late", phase="alone", device="GPU:1", limit_seconds=300, returncode=-9, stderr=[line]
    )
    assert found(judgement) == [("smoke-timeout", "error", SECOND)]
    assert "GPU:1 was running by itself." in judgement.findings[0].message


def test_a_process_that_cannot_be_ended_is_reported_with_the_hang():
    judgement = weigh(None, ending="stuck", phase="train", step=2, limit_seconds=60, returncode=None, left_behind=True)
    assert [name for name, *_ in found(judgement)] == ["smoke-timeout", "process-left-behind"]


@pytest.mark.parametrize(("phase", "verdict"), [("import", "not-run"), ("alone", "fail"), ("train", "fail")])
def test_a_death_before_any_card_was_touched_judges_none(phase, verdict):
    judgement = weigh(None, ending="died", phase=phase, device="GPU:0", step=1, returncode=-4)
    assert (judgement.verdict, judgement.findings[0].name) == (verdict, "smoke-worker-died")
    assert "SIGILL" in judgement.findings[0].message


@pytest.mark.parametrize(
    ("message", "gist"),
    [
        ("simple\nmore", "simple"),
        (
            "Graph execution error:\n\nDetected at node a\n  File x\n\nOOM when allocating\n\t [[{{node a}}]]",
            "OOM when allocating",
        ),
        ("Graph execution error:\n\n2 root error(s)\n  (0) INTERNAL:  first\n  (1) x", "INTERNAL:  first"),
    ],
)
def test_the_gist_of_an_error_is_found(message, gist):
    failure = {"kind": "InternalError", "message": message, "module": None}
    judgement = weigh(None, ending="failed", phase="train", step=1, failure=failure)
    assert judgement.findings[0].message.endswith("InternalError: " + " ".join(gist.split()))


@pytest.mark.parametrize(
    ("phase", "at_work"),
    [
        ("import", "TensorFlow was being loaded."),
        ("devices", "TensorFlow was looking for devices."),
        ("alone", "GPU:1 was running by itself."),
        ("train", "Step 3 of the training was running."),
        ("compare", "The comparison run on one device was running."),
        ("together", "The speed of all devices was being measured."),
    ],
)
def test_what_was_at_work_is_a_sentence_of_its_own(phase, at_work):
    def message(**ending):
        return weigh(None, phase=phase, device="GPU:1", step=3, **ending).findings[0].message

    assert message(ending="stuck", limit_seconds=60) == f"The training made no progress for 60 s. {at_work}"
    assert message(ending="late", limit_seconds=300) == f"The training was not done within 300 s. {at_work}"
    assert message(returncode=7, ending="died") == f"The training process ended with code 7. {at_work}"
    assert message(returncode=-9, ending="died") == f"The training process was ended by SIGKILL. {at_work}"
    failure = {"kind": "InternalError", "message": "no way", "module": None}
    expected = f"The training process failed. {at_work} InternalError: no way"
    assert message(ending="failed", failure=failure) == expected
