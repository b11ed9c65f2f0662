"""From scripted evidence of cards to a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.facts import ErrorCounts, Gap, Nvml, Parts
from gpucheck.readers.nvml_watch import Sample
from gpucheck.smoke.aftermath import is_over
from gpucheck.smoke.counters import Counters
from gpucheck.smoke.evidence import judge
from gpucheck.smoke.job import Job
from gpucheck.smoke.outcome import Outcome, Watched
from gpucheck.smoke.plan import Card, Train

FIRST, SECOND = "0000:04:00.0", "0000:82:00.0"
CARDS = (Card(FIRST, "nvidia", processes=()), Card(SECOND, "nvidia", processes=()))
PLAN = Train(Job("gpu", 2), cards=CARDS)
PID = 4711
STARTED, SECONDS = 1000.0, 10.0
MIB = 1 << 20


def sample(address: str, seconds: float, **values: Any) -> Sample:
    """An idle look at a card, with these differences."""
    idle = {
        "index": 0,
        "uuid": f"GPU-{address}",
        "memory_used_bytes": 10 * MIB,
        "utilization_percent": 0,
        "energy_joules": 100.0,
        "power_watts": 50.0,
        "temperature_c": 40,
        "performance_state": 8,
        "sm_clock_mhz": 500,
        "clock_reasons": ("idle",),
        "pcie_replays": 0,
        "ecc_corrected": 0,
        "ecc_uncorrected": 0,
        "pids": (),
        "pid_memory": {},
        "errors": {},
    }
    return Sample(address=address, seconds=seconds, **{**idle, **values})


def watched(address: str, *, busy: int | None = 90, pids: Any = (PID,), left: int = 0, peak: int = 900, **loaded: Any):
    """Before, four times during, after. ``loaded`` are further values of the looks during the training."""
    asleep = {"utilization_percent": busy and 0, "pids": pids and ()}
    at_work = {
        "memory_used_bytes": peak * MIB,
        "utilization_percent": busy,
        "pids": pids,
        "power_watts": 200.0,
        "temperature_c": 70,
        "sm_clock_mhz": 1500,
        "clock_reasons": ("sw-power-cap",),
        **loaded,
    }
    return [
        sample(address, STARTED - 1, **asleep),
        *(sample(address, STARTED + 2 * n, energy_joules=100.0 + 400 * n, **at_work) for n in range(1, 5)),
        sample(address, STARTED + SECONDS + 1, **asleep, memory_used_bytes=(10 + left) * MIB, energy_joules=1800.0),
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


def weigh(result=None, samples=SEEN, *, plan=PLAN, expect_gpus=None, before=None, after=None, parts=None, **outcome):
    build = {"version": "2.21.0", "cuda": True, "rocm": False, "compute_capabilities": ["sm_60"]}
    defaults: dict[str, Any] = {"ending": "done", "pid": PID, "returncode": 0, "build": build}
    defaults |= {"started": STARTED, "seconds": SECONDS}
    ended = Outcome(**{**defaults, "result": result, **outcome})
    return judge(plan, ended, Watched(samples, parts, before, after), expect_gpus)


def found(judgement):
    return [(finding.name, finding.severity, finding.subject) for finding in judgement.findings]


def test_two_good_cards_are_proven():
    judgement = weigh(good())
    assert (judgement.verdict, judgement.proves_gpu, judgement.findings) == ("pass", True, ())
    assert [(device.address, device.used) for device in judgement.devices] == [(FIRST, True), (SECOND, True)]
    nvml = judgement.devices[0].evidence.nvml
    assert nvml.process_seen is True
    assert (nvml.memory_growth_bytes, nvml.memory_left_bytes) == (890 * MIB, 0)
    assert (nvml.busy_percent, nvml.busy_seconds) == (90, 5.4)
    assert (nvml.energy_joules, nvml.idle_watts, nvml.energy_over_idle_joules) == (1700.0, 50.0, 1100.0)
    assert (nvml.most_watts, nvml.most_celsius, nvml.clocks_mhz) == (200.0, 70, (1500, 1500))
    assert (nvml.slowdowns, nvml.other_processes, nvml.lost) == ({}, (), False)
    assert judgement.devices[0].evidence.unknown == ()
    assert judgement.devices[0].uuid == f"GPU-{FIRST}"
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
        assert set(device.evidence.unknown) == {
            f"nvml.{name}"
            for name in (
                "memory_growth_bytes",
                "memory_left_bytes",
                "other_processes",
                "idle_watts",
                "energy_over_idle_joules",
            )
        }
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
    for replica in result["replicas"]:
        replica["computed_on"] = {}
    judgement = weigh(result)
    assert judgement.verdict == "pass"
    assert judgement.devices[1].evidence.unknown == ("computed_on",)


def test_a_device_alone_without_a_placement_computed_nothing():
    result = good()
    result["replicas"][1]["computed_on"] = {}
    judgement = weigh(result)
    assert found(judgement) == [("gpu-unused-in-training", "error", SECOND)]
    assert "none of the work was placed on it" in judgement.findings[0].evidence[0].text


@pytest.mark.parametrize("seconds", [STARTED - 2, STARTED + SECONDS + 2])
def test_what_a_card_did_before_and_after_is_not_the_trainings_work(seconds):
    idle = watched(SECOND, busy=0, peak=10, pids=())
    other = sample(SECOND, seconds, memory_used_bytes=900 * MIB, utilization_percent=7)
    own = sorted([*idle, other], key=lambda one: one.seconds)
    judgement = weigh(good(), [*watched(FIRST), *own])
    assert ("gpu-unused-in-training", "error", SECOND) in found(judgement)
    assert (judgement.verdict, judgement.devices[1].evidence.nvml.memory_growth_bytes) == ("fail", 0)


def test_a_card_on_which_nvml_does_not_list_the_training_is_not_proven():
    """It lists it on the other one, so it knows its number."""
    judgement = weigh(good(), [*watched(FIRST), *watched(SECOND, pids=())])
    assert (judgement.verdict, judgement.proves_gpu, judgement.findings) == ("not-run", False, ())
    assert "could not confirm 1 of 2" in judgement.headline


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


def test_an_unmet_expectation_is_no_reproach_to_the_cards():
    judgement = weigh(good(), expect_gpus=3)
    assert found(judgement) == [("gpu-count-mismatch", "error", "machine")]
    assert judgement.headline == "The training failed, although all 2 GPUs that TensorFlow lists did their part."


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
    samples = [*SEEN[:-1], replace(SEEN[-1], pids=(PID,))]
    assert found(weigh(good(), samples)) == [("process-left-behind", "error", "machine")]


# --- what happens to cards meanwhile --------------------------------------------------------------


def test_memory_alone_proves_no_work():
    """Neither busy time nor power was counted; then only power, at rest and at work."""
    unread = {"busy": None, "pids": None}
    assert weigh(good(), [*watched(FIRST, **unread, power_watts=None), *watched(SECOND)]).verdict == "not-run"
    assert weigh(good(), [*watched(FIRST, **unread, power_watts=65.0), *watched(SECOND)]).verdict == "not-run"
    assert weigh(good(), [*watched(FIRST, **unread, power_watts=180.0), *watched(SECOND)]).verdict == "pass"


def test_a_card_is_known_by_its_uuid_where_its_address_is_not_read():
    samples = watched(SECOND)
    nameless = [samples[0], *(replace(one, address=None) for one in samples[1:])]
    judgement = weigh(good(), [*watched(FIRST), *nameless])
    assert judgement.verdict == "pass"
    assert judgement.devices[1].evidence.nvml.memory_growth_bytes == 890 * MIB


@pytest.mark.parametrize(
    ("reason", "words", "remedy"),
    [
        ("hw-power-brake", "The server braked", "power supply"),
        ("hw-thermal", "got too hot: the hardware cut its clocks", "air"),
        ("sw-thermal", "got hot: the driver held its clocks back", "air"),
        ("hw-slowdown", "does not say why", "power supply"),
    ],
)
def test_a_card_that_is_slowed_down_is_named(reason, words, remedy):
    braked = watched(SECOND, clock_reasons=(reason,), sm_clock_mhz=300)
    judgement = weigh(good(), [*watched(FIRST), *braked])
    assert found(judgement) == [("gpu-throttled-in-training", "warning", SECOND)]
    (finding,) = judgement.findings
    assert words in finding.message
    assert "in 100 % of the looks" in finding.message
    assert remedy in finding.remedy[0]
    assert [line.text for line in finding.evidence] == [
        f"{reason} 100 %",
        "300 to 300 MHz under load",
        "at most 70 °C",
        "at most 200 W",
    ]
    assert (judgement.verdict, judgement.devices[1].evidence.nvml.slowdowns) == ("pass", {reason: 1.0})


def test_the_gravest_reason_is_told():
    both = watched(SECOND, clock_reasons=("hw-slowdown", "hw-power-brake"))
    assert "power brake" in weigh(good(), [*watched(FIRST), *both]).findings[0].message


@pytest.mark.parametrize("reasons", [("idle",), ("sw-power-cap",), ("applications-clocks",), None])
def test_reasons_that_are_none_to_worry_are_not_told(reasons):
    judgement = weigh(good(), [*watched(FIRST), *watched(SECOND, clock_reasons=reasons)])
    assert (judgement.verdict, judgement.findings) == ("pass", ())


def test_a_slowdown_of_a_moment_or_of_an_idle_card_is_not_told():
    hot = watched(SECOND)
    hot[1] = replace(hot[1], clock_reasons=("hw-slowdown",))  # a quarter of the looks
    asleep = watched(FIRST)
    asleep[0] = replace(asleep[0], clock_reasons=("hw-thermal",))
    assert weigh(good(), [*asleep, *hot]).findings == ()


def test_low_clocks_of_a_card_with_little_to_do_are_not_told():
    samples = watched(SECOND, busy=20, clock_reasons=("hw-slowdown", "sw-thermal"))
    judgement = weigh(good(), [*watched(FIRST), *samples])
    assert judgement.findings == ()
    assert judgement.devices[1].evidence.nvml.slowdowns is None


def test_somebody_elses_process_is_told():
    judgement = weigh(good(), [*watched(FIRST), *watched(SECOND, pids=(PID, 99))])
    assert found(judgement) == [("gpu-busy", "warning", SECOND)]
    assert judgement.findings[0].confidence == "certain"
    assert "(99)" in judgement.findings[0].message
    assert judgement.verdict == "pass"


def test_a_card_on_which_only_a_stranger_worked_is_not_proven():
    """Its memory and its busy time are the stranger's."""
    judgement = weigh(good(), [*watched(FIRST), *watched(SECOND, pids=(99,))])
    assert (judgement.verdict, found(judgement)) == ("not-run", [("gpu-busy", "warning", SECOND)])


def test_one_strange_number_in_a_container_is_the_trainings_own_and_two_are_not():
    judgement = weigh(good(), [*watched(FIRST, pids=(1,)), *watched(SECOND, pids=(1,))])
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    assert judgement.devices[0].evidence.nvml.other_processes == (1,)
    judgement = weigh(good(), [*watched(FIRST, pids=(1,)), *watched(SECOND, pids=(1, 2))])
    assert (judgement.verdict, found(judgement)) == ("not-run", [("gpu-busy", "warning", SECOND)])
    assert judgement.findings[0].confidence == "likely"


def test_a_process_that_was_there_before_is_no_visitor():
    samples = watched(SECOND, pids=(PID, 7))
    samples[0] = replace(samples[0], pids=(7,))
    assert weigh(good(), [*watched(FIRST), *samples]).findings == ()


LOST = {"nvmlDeviceGetPowerUsage": 15}


def test_a_card_lost_in_the_middle_is_named():
    gone = [*watched(SECOND)[:2], sample(SECOND, STARTED + 4, errors=LOST)]
    judgement = weigh(good(), [*watched(FIRST), *gone])
    assert ("nvml-gpu-lost", "error", SECOND) in found(judgement)
    assert judgement.devices[1].used is False
    assert judgement.verdict == "fail"
    failure = {"kind": "InternalError", "message": "CUDA_ERROR_UNKNOWN", "module": None}
    judgement = weigh(None, [*watched(FIRST), *gone], ending="failed", phase="train", step=3, failure=failure)
    assert found(judgement) == [("smoke-worker-died", "error", "machine"), ("nvml-gpu-lost", "error", SECOND)]
    assert judgement.headline == f"The card at {SECOND} was lost during the training."
    assert [device.evidence.nvml.lost for device in judgement.devices] == [False, True]


def test_a_card_that_left_the_bus_is_told_once():
    before = Counters(dead={FIRST: False, SECOND: False})
    after = Counters(dead={FIRST: False, SECOND: True})
    gone = [*watched(SECOND)[:2], sample(SECOND, STARTED + 4, errors=LOST)]
    judgement = weigh(None, [*watched(FIRST), *gone], ending="died", phase="train", before=before, after=after)
    assert [name for name, _, subject in found(judgement) if subject == SECOND] == ["gpu-fell-off-bus"]
    # What could not be looked at before says nothing.
    judgement = weigh(good(), before=Counters(), after=after)
    assert judgement.findings == ()


# --- counters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "rise", "expected"),
    [
        ("ecc_corrected", 4000, ("memory-errors-in-training", "warning")),
        ("ecc_corrected", 2, ("memory-errors-in-training", "info")),
        ("ecc_uncorrected", 1, ("ecc-uncorrectable", "error")),
        ("pcie_replays", 500, ("link-errors-in-training", "warning")),
        ("pcie_replays", 3, ("link-errors-in-training", "info")),
    ],
)
def test_counters_that_rise_are_told(counter, rise, expected):
    samples = watched(SECOND)
    rising = [replace(one, **{counter: 5 + (rise if index > 2 else 0)}) for index, one in enumerate(samples)]
    judgement = weigh(good(), [*watched(FIRST), *rising])
    assert found(judgement) == [(*expected, SECOND)]
    assert judgement.findings[0].evidence[0].text == f"{rise} more than before"
    assert getattr(judgement.devices[1].evidence.risen, counter) == rise
    assert getattr(judgement.devices[0].evidence.risen, counter) == 0
    assert judgement.verdict == ("fail" if expected[1] == "error" else "pass")


def test_counters_that_are_high_and_stay_are_not_told():
    samples = [replace(one, pcie_replays=9000, ecc_corrected=100) for one in watched(SECOND)]
    assert weigh(good(), [*watched(FIRST), *samples]).findings == ()


def test_a_counter_that_began_anew_is_unknown():
    samples = watched(SECOND)
    samples = [replace(one, pcie_replays=50 - index) for index, one in enumerate(samples)]
    judgement = weigh(good(), [*watched(FIRST), *samples])
    assert judgement.devices[1].evidence.risen.pcie_replays is None
    assert judgement.findings == ()


PORT, SWITCH = "0000:80:02.0", "0000:00:01.0"


def counted(log=(), **links: tuple[int, int, int]):
    """Counters of two cards, the second below a port of its own, both below a switch."""
    names = {"first": FIRST, "second": SECOND, "port": PORT, "switch": SWITCH}
    kinds = ("correctable", "nonfatal", "fatal")
    return Counters(
        above={FIRST: (FIRST, SWITCH), SECOND: (SECOND, PORT, SWITCH)},
        links={
            address: ErrorCounts(**dict(zip(kinds, links.get(name, (7, 0, 0)), strict=True)))
            for name, address in names.items()
        },
        dead={FIRST: False, SECOND: False},
        log=tuple(log),
    )


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ({"second": (9, 0, 0)}, ("info", SECOND)),
        ({"port": (507, 0, 0)}, ("warning", SECOND)),
        ({"second": (7, 1, 0)}, ("warning", SECOND)),
        ({"port": (7, 0, 1)}, ("error", SECOND)),
        ({"switch": (507, 0, 0)}, ("warning", SWITCH)),
        ({"port": (507, 0, 0), "second": (17, 0, 0)}, ("warning", SECOND)),
    ],
)
def test_errors_of_a_link_are_told_by_card_or_shared_bridge(links, expected):
    judgement = weigh(good(), before=counted(), after=counted(**links))
    assert found(judgement) == [("link-errors-in-training", *expected)]
    assert len(judgement.findings[0].evidence) == len(links)
    assert judgement.findings[0].evidence[0].source.startswith("/sys/bus/pci/devices/0000:")


def test_link_counters_that_stay_or_were_read_once_are_not_told():
    assert weigh(good(), before=counted(), after=counted()).findings == ()
    assert weigh(good(), before=counted(), after=Counters()).findings == ()
    judgement = weigh(good(), before=counted(), after=counted(second=(10, 0, 0)))
    assert judgement.devices[1].evidence.risen.aer_correctable == 3
    assert judgement.devices[0].evidence.risen.aer_correctable == 0
    assert weigh(good()).devices[0].evidence.risen.aer_correctable is None


XID = "NVRM: Xid (PCI:0000:82:00): {}, pid=4711, name=python, words"


@pytest.mark.parametrize(
    ("number", "severity"), [(79, "error"), (48, "error"), (63, "warning"), (31, "warning"), (999, "error")]
)
def test_what_the_driver_writes_meanwhile_is_told(number, severity):
    line = XID.format(number)
    judgement = weigh(good(), before=counted(log=["boot"]), after=counted(log=["boot", line]))
    assert found(judgement) == [("xid-reported", severity, SECOND)]
    assert judgement.findings[0].evidence[0].text == line
    assert judgement.devices[1].evidence.risen.xids == (line,)
    assert judgement.devices[0].evidence.risen.xids == ()


def test_only_new_lines_of_the_log_count():
    line = XID.format(48)
    assert weigh(good(), before=counted(log=[line]), after=counted(log=[line])).findings == ()
    # The oldest is no longer in the buffer, and the same came once more.
    judgement = weigh(good(), before=counted(log=["boot", line]), after=counted(log=[line, line]))
    assert found(judgement) == [("xid-reported", "error", SECOND)]
    unread = replace(counted(), log=None)
    assert weigh(good(), before=unread, after=counted(log=[line])).devices[1].evidence.risen.xids is None


# --- a watch that does not see --------------------------------------------------------------------


def test_a_watch_that_hung_is_told_and_keeps_what_it_saw():
    hung = Parts(nvml=Nvml(status="timed-out", call="nvmlDeviceGetClockInfo", message="NVML hung"))
    early = [*watched(FIRST)[:4], *watched(SECOND)[:4]]
    judgement = weigh(good(), early, parts=hung)
    assert found(judgement) == [("nvml-timeout", "warning", "machine")]
    assert judgement.findings[0].evidence[0].source == "nvmlDeviceGetClockInfo"
    assert judgement.verdict == "pass"
    assert weigh(good(), [], parts=hung).verdict == "not-run"


def test_a_watch_without_nvml_says_why():
    parts = Parts(gaps=(Gap(fact="nvml", reason="tool-absent", how="pip install nvidia-ml-py"),))
    judgement = weigh(good(), [], parts=parts)
    assert (judgement.verdict, found(judgement)) == ("not-run", [("nvml-unavailable", "warning", "machine")])
    assert judgement.findings[0].evidence[0].text == "pip install nvidia-ml-py"
    assert weigh(good(), parts=Parts(nvml=Nvml(status="ok"))).findings == ()


# --- after the end --------------------------------------------------------------------------------


def test_memory_that_a_stranger_may_hold_is_a_warning():
    samples = watched(SECOND, pids=(PID, 99), left=300)
    samples[-1] = replace(samples[-1], pids=(99,))
    judgement = weigh(good(), [*watched(FIRST), *samples])
    assert ("memory-not-released", "warning", SECOND) in found(judgement)
    assert judgement.verdict == "pass"


def test_a_process_that_stays_in_a_container_is_possibly_ours():
    samples = [*watched(FIRST, pids=(1,)), *watched(SECOND, pids=(1,))]
    samples[-1] = replace(samples[-1], pids=(1,))
    judgement = weigh(good(), samples)
    assert found(judgement) == [("process-left-behind", "warning", "machine")]
    assert judgement.findings[0].confidence == "possible"


def test_the_cards_are_waited_for():
    outcome = Outcome(pid=PID, started=STARTED, seconds=SECONDS)
    assert is_over(outcome, SEEN)
    assert is_over(outcome, [])
    assert not is_over(outcome, SEEN[:-1])  # the second was not looked at after the end
    assert not is_over(outcome, [*watched(FIRST), *watched(SECOND, left=300)])
    assert not is_over(outcome, [*SEEN[:-1], replace(SEEN[-1], pids=(PID,))])
    assert is_over(outcome, [*watched(FIRST), *watched(SECOND)[:2], sample(SECOND, STARTED + 4, errors=LOST)])
    assert is_over(outcome, [*watched(FIRST), *watched(SECOND)[1:3]])  # nothing is known of it before


# --- a training that did not end ------------------------------------------------------------------


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


# --- what the devices counted ---------------------------------------------------------------------


def test_samples_of_another_shard_name_the_card():
    result = good()
    result["replicas"][1]["fed_difference"] = 0.02
    result["max_param_difference"] = 0.2  # follows from it
    judgement = weigh(result)
    assert found(judgement) == [("shard-mismatch", "error", SECOND)]
    assert judgement.verdict == "fail"


@pytest.mark.parametrize(("cards", "subject"), [([1], SECOND), ([0, 1], "machine")])
@pytest.mark.parametrize("difference", [0.3, None])
def test_a_sum_that_came_back_wrong_is_named(cards, subject, difference):
    """None: it was no number, although what was sent was one."""
    result = good()
    for replica in result["replicas"]:
        replica["reduced_difference"] = 1e-8
    for card in cards:
        result["replicas"][card]["reduced_difference"] = difference
    result["replica_spread"] = result["max_param_difference"] = None
    judgement = weigh(result)
    assert found(judgement) == [("allreduce-mismatch", "error", subject)]
    assert len(judgement.findings[0].evidence) == len(cards)


def test_a_replica_that_began_elsewhere_is_named():
    result = good()
    result["start_difference"] = 0.01
    result["replicas"][1]["difference"] = 0.2
    result["replica_spread"] = result["max_param_difference"] = 0.2
    assert found(weigh(result)) == [("replica-diverged", "error", SECOND)]


def test_variables_of_a_central_keeper_are_at_home_there():
    result = good()
    for replica in result["replicas"]:
        replica |= {"home": "CPU:0", "variables_on": "CPU:0"}
    assert weigh(result).verdict == "pass"
    result["replicas"][1]["variables_on"] = "GPU:0"
    assert found(weigh(result)) == [("gpu-unused-in-training", "error", SECOND)]


def inferred() -> dict[str, Any]:
    result = good()
    for key in ("max_param_difference", "max_param_change", "loss"):
        del result[key]
    return {**result, "max_output_difference": 3e-6, "max_output": 2.0}


INFER = Train(replace(PLAN.job, mode="infer"), cards=CARDS)


def test_an_inference_claims_no_more_than_that():
    judgement = weigh(inferred(), plan=INFER)
    assert (judgement.verdict, judgement.proves_gpu) == ("pass", True)
    assert judgement.headline == "All 2 GPUs inferred exactly what the CPU did; training was not tried."
    assert (judgement.numerics.compared, judgement.numerics.max_param_difference) == ("outputs", None)


@pytest.mark.parametrize(
    ("wrong", "subject"),
    [
        ({"max_output_difference": 0.1}, "machine"),
        ({"max_output_difference": None}, "machine"),
        ({"max_output": 0.0}, "machine"),
    ],
)
def test_outputs_that_differ_or_say_nothing_fail(wrong, subject):
    assert found(weigh({**inferred(), **wrong}, plan=INFER)) == [("output-mismatch", "error", subject)]


def test_a_card_that_infers_wrongly_by_itself_is_named():
    result = inferred()
    result["devices"][0]["alone_difference"] = 0.5
    assert found(weigh(result, plan=INFER)) == [("output-mismatch", "error", FIRST)]
