"""Which sets are tried, what they name, and how the parent goes on behind a task that hangs: no worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.findings import Finding, finding
from gpucheck.smoke.examine import Examination, deep_tasks, merge, wanted
from gpucheck.smoke.isolate import GROUP, MOST_HANGS, Devices, Trial, conclude, fate, next_trials, told
from gpucheck.smoke.job import Job, Task
from gpucheck.smoke.outcome import Judgement, Outcome
from gpucheck.smoke.plan import Card, Train
from gpucheck.smoke.report import Fate

FOUR = ("A", "B", "C", "D")


def tried(devices: tuple[str, ...], wrong: Callable[[Devices], Fate]) -> list[Trial]:
    """All trials until there is no more, where each ends as it is told."""
    trials: list[Trial] = []
    while todo := next_trials(devices, trials):
        trials += [Trial(one, wrong(one), 0.1) for one in todo]
    return trials


def together(*culprits: str, outcome: Fate = "wrong") -> Callable[[Devices], Fate]:
    """Wrong as soon as all of these take part."""
    return lambda devices: outcome if set(culprits) <= set(devices) else "pass"


# --- the order ------------------------------------------------------------------------------------


def test_each_alone_then_pairs_then_all():
    sets = [trial.devices for trial in tried(FOUR, lambda _: "pass")]
    assert sets == [("A",), ("B",), ("C",), ("D",), *combinations(FOUR, 2), FOUR]


def test_of_two_the_pair_is_all():
    assert next_trials(("A", "B"), ()) == (("A",), ("B",), ("A", "B"))


def test_a_device_that_fails_alone_is_tried_with_nobody():
    trials = [Trial(("A",), "pass", 1.0), Trial(("B",), "died", 1.0)]
    assert next_trials(("A", "B", "C"), trials) == (("C",), ("A", "C"))


def test_enough_hanging_pairs_are_enough():
    trials = tried(FOUR, lambda devices: "hang" if len(devices) > 1 else "pass")
    alone = [Trial((device,), "pass", 1.0) for device in FOUR]
    hung = [Trial(pair, "hang", 1.0) for pair in list(combinations(FOUR, 2))[:MOST_HANGS]]
    assert next_trials(FOUR, [*alone, *hung]) == ()
    assert len(trials) == 11


def test_a_trial_without_peer_access_replaces_none_with_it():
    trials = [Trial(("A", "B"), "pass", 1.0, peer_access=False)]
    assert ("A", "B") in next_trials(("A", "B"), trials)


SIXTEEN = tuple(f"GPU:{number}" for number in range(16))


def test_more_than_eight_are_tried_in_groups_first():
    sets = [trial.devices for trial in tried(SIXTEEN, lambda _: "pass")]
    assert [len(one) for one in sets] == [1] * 16 + [8, 8, 16]


def test_pairs_are_made_inside_the_group_that_fails():
    trials = tried(SIXTEEN, together("GPU:2", "GPU:6"))
    assert sum(len(trial.devices) == 2 for trial in trials) == 28
    assert [one.devices for one in conclude(trials).sets] == [("GPU:2", "GPU:6")]


def test_pairs_are_made_across_groups_where_each_group_is_right():
    trials = tried(SIXTEEN, together("GPU:2", "GPU:7"))
    assert [one.devices for one in conclude(trials).sets] == [("GPU:2", "GPU:7")]


@given(count=st.integers(2, 20), data=st.data())
def test_any_one_card_or_pair_is_named(count: int, data: st.DataObject):
    devices = tuple(f"GPU:{number}" for number in range(count))
    culprits = data.draw(st.lists(st.sampled_from(devices), min_size=1, max_size=2, unique=True))
    trials = tried(devices, together(*culprits))
    named = conclude(trials)
    assert {frozenset(one.devices) for one in (*named.cards, *named.sets)} == {frozenset(culprits)}
    assert len({trial.devices for trial in trials}) == len(trials)
    assert len(trials) <= 20 + 3 + max(GROUP * (GROUP - 1) // 2 * 3, 190)


def test_the_card_in_every_failing_pair_is_named():
    trials = tried(FOUR, lambda devices: "wrong" if "B" in devices and len(devices) > 1 else "pass")
    assert conclude(trials).common == "B"


def test_several_pairs_without_a_common_card():
    bad = ({"A", "B"}, {"C", "D"})
    trials = tried(FOUR, lambda devices: "wrong" if any(pair <= set(devices) for pair in bad) else "pass")
    named = conclude(trials)
    assert named.common is None
    assert [one.devices for one in named.sets] == [("A", "B"), ("C", "D")]


# --- what is right --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "outcome", "says"),
    [
        ({"difference": 1e-7, "spread": 0.0, "reduced_difference": 1e-9}, "pass", None),
        ({"difference": 1e-7, "spread": 0.0}, "pass", None),
        ({"difference": None, "spread": 0.0}, "wrong", "not a number"),
        ({"difference": 1e-3, "spread": 0.0}, "wrong", "0.001"),
        ({"difference": 1e-7, "spread": 1e-9}, "wrong", "two replicas"),
        ({"difference": 1e-3, "spread": 1.0, "reduced_difference": 0.5}, "wrong", "sum of the gradients"),
        ({"error": "InternalError: no"}, "failed", "InternalError"),
    ],
)
def test_what_a_trial_came_to(numbers: dict[str, Any], outcome: str, says: str | None):
    found, detail = fate(numbers)
    assert found == outcome
    assert (detail is None) if says is None else says in str(detail)


# --- findings -------------------------------------------------------------------------------------

WRONG = finding("gradient-mismatch", "error", "machine", "wrong")
TIMEOUT = finding("smoke-timeout", "error", "machine", "late")
UNUSED = finding("gpu-unused-in-training", "error", "C", "idle")


def names(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(item.name, item.subject) for item in findings]


def test_a_card_that_is_wrong_alone_is_named():
    findings, sentence = told([WRONG, UNUSED], tried(FOUR, together("B")))
    assert names(findings) == [("gradient-mismatch", "B"), ("gpu-unused-in-training", "C")]
    assert sentence == "B fails by itself."
    assert any("B: wrong" in line.text for line in findings[0].evidence)


def test_a_pair_that_is_wrong_is_named():
    findings, sentence = told([WRONG], tried(FOUR, together("B", "D")))
    assert names(findings) == [("gradient-mismatch", "B + D")]
    assert sentence is not None
    assert "B + D" in sentence


def test_what_only_a_closer_look_finds_is_a_finding_of_its_own():
    assert names(told([], tried(FOUR, together("B", "D")))[0]) == [("allreduce-mismatch", "B + D")]
    assert names(told([], tried(FOUR, together("B")))[0]) == [("gradient-mismatch", "B")]


def test_a_pair_that_hangs_takes_the_place_of_the_timeout():
    findings, _ = told([TIMEOUT], tried(FOUR, together("B", "D", outcome="hang")))
    assert names(findings) == [("pair-hangs", "B + D")]


def test_a_hang_that_peer_access_makes_takes_the_place_of_the_timeout():
    trials = [Trial(FOUR, "pass", 2.0, peer_access=False), *tried(FOUR, together("B", "D", outcome="hang"))]
    findings, sentence = told([TIMEOUT], trials)
    assert names(findings) == [("peer-access-hangs", "B + D")]
    assert sentence is not None
    assert "Without peer access it works" in sentence
    assert any("NCCL_P2P_DISABLE=1: pass" in line.text for line in findings[0].evidence)


def test_peer_access_is_not_blamed_for_another_set():
    trials = [Trial(("A", "C"), "pass", 2.0, peer_access=False), *tried(FOUR, together("B", "D", outcome="hang"))]
    assert names(told([TIMEOUT], trials)[0]) == [("pair-hangs", "B + D")]


def test_a_hang_of_all_alone_stays_a_timeout_with_the_trials_as_evidence():
    findings, sentence = told([TIMEOUT], tried(FOUR, lambda devices: "hang" if len(devices) == 4 else "pass"))
    assert names(findings) == [("smoke-timeout", "machine")]
    assert "10 of 11 were right" in [line.text for line in findings[0].evidence]
    assert sentence is not None


def test_trials_that_are_all_right_accuse_nobody():
    findings, sentence = told([WRONG], tried(FOUR, lambda _: "pass"))
    assert names(findings) == names([WRONG])
    assert sentence is None
    assert "11 of 11 were right" in [line.text for line in findings[0].evidence]


# --- the parent -----------------------------------------------------------------------------------


class Child:
    """Stands for the worker: does tasks until one of them ends it."""

    def __init__(self, *, hangs: set[Devices] = frozenset(), around: bool = False, seconds: float = 0.01) -> None:  # type: ignore[assignment]
        self.hangs, self.around, self.seconds = hangs, around, seconds
        self.runs: list[tuple[tuple[Devices, ...], bool]] = []

    def __call__(self, tasks: tuple[Task, ...], peer_access: bool, seconds: float) -> Outcome:
        self.runs.append((tuple(task.devices for task in tasks), peer_access))
        outcome = Outcome(started=time.monotonic())
        for number, task in enumerate(tasks):
            outcome.task, outcome.task_began = number, time.monotonic()
            if any(set(one) <= set(task.devices) for one in self.hangs) and (peer_access or not self.around):
                outcome.ending = "stuck"
                outcome.seconds = self.seconds
                return outcome
            outcome.examined.append({"task": number, "seconds": 0.1, "difference": 0.0, "spread": 0.0})
        outcome.ending = "done"
        return outcome


def examined(child: Child, devices: tuple[str, ...], hung: float | None = None, **options: Any) -> Examination:
    examination = Examination(devices, child, time.monotonic() + options.pop("left", 100.0))
    examination.isolate(hung, options.pop("may_disable", True))
    return examination


def test_all_trials_go_into_one_child_where_nothing_hangs():
    child = Child()
    assert len(examined(child, FOUR).trials) == 11
    assert len(child.runs) == 1


def test_after_a_hang_the_next_child_goes_on_behind_it():
    child = Child(hangs={("B", "C")})
    trials = examined(child, FOUR).trials
    assert [trial.devices for trial in trials if trial.outcome == "hang"] == [("B", "C")] * 2
    # Up to the hang, the rest behind it but for what holds the pair, and the pair without peer access.
    assert [peer for _, peer in child.runs] == [True, True, False]
    assert child.runs[1][0] == (("B", "D"), ("C", "D"))


def test_what_hung_together_is_tried_without_peer_access_first():
    child = Child(hangs={("B", "C")}, around=True)
    trials = examined(child, FOUR, hung=60.0).trials
    assert child.runs[0] == ((FOUR,), False)
    assert conclude(trials).peer_access
    assert [one.devices for one in conclude(trials).sets] == [("B", "C")]


def test_peer_access_that_is_off_already_is_not_switched_off():
    child = Child(hangs={("B", "C")})
    examined(child, FOUR, hung=60.0, may_disable=False)
    assert all(peer for _, peer in child.runs)


def test_without_time_nothing_is_started():
    child = Child()
    examination = examined(child, FOUR, left=1.0)
    assert examination.cut_short
    assert child.runs == []
    assert examination.trials == []


def test_a_child_that_never_comes_so_far_is_not_started_for_ever():
    runs = []

    def start(*arguments: Any) -> Outcome:
        runs.append(arguments)
        return Outcome(ending="died")

    examination = Examination(FOUR, start, time.monotonic() + 100)
    examination.isolate(None, True)
    assert len(runs) == 1
    assert examination.cut_short


# --- when, and what -------------------------------------------------------------------------------


def done(count: int = 2) -> Outcome:
    return Outcome(ending="done", result={"devices": [{"device": f"CPU:{n}"} for n in range(count)]})


@pytest.mark.parametrize(
    ("outcome", "findings", "deep", "devices"),
    [
        (done(), (), False, 0),
        (done(), (), True, 2),
        (done(1), (), True, 1),
        (done(), (WRONG,), False, 2),
        (done(1), (WRONG,), False, 0),
        (done(), (UNUSED,), False, 0),  # of a card that is not listed
        (done(), (finding("gpu-busy", "error", "A", ""),), False, 0),
        (Outcome(ending="stuck", phase="train"), (TIMEOUT,), False, 3),
        (Outcome(ending="stuck", phase="alone", device="CPU:1"), (TIMEOUT,), True, 0),
        (Outcome(ending="died", phase="import"), (), True, 0),
    ],
)
def test_when_devices_are_tried(outcome: Outcome, findings: tuple[Finding, ...], deep: bool, devices: int):
    judgement = Judgement("fail", "", findings=findings)
    assert len(wanted(Train(Job("cpu", 3)), outcome, judgement, deep)) == devices


def test_cards_that_hung_are_known_by_the_log():
    log = [
        f"Created device /job:localhost/replica:0/task:0/device:GPU:{n} with 1 MB memory: -> device: {n}, "
        f"name: Tesla P40, pci bus id: 0000:{bus}:00.0, compute capability: 6.1"
        for n, bus in ((1, "82"), (0, "04"))
    ]
    outcome = Outcome(ending="stuck", phase="train", stderr=log)
    assert wanted(Train(Job("gpu", 2)), outcome, Judgement("fail", ""), False) == ("GPU:0", "GPU:1")


def test_memory_of_cards_is_filled_as_far_as_it_is_free():
    cards = (Card("0000:04:00.0", "nvidia", free_bytes=10 << 30), Card("0000:82:00.0", "nvidia"))
    addresses = {"GPU:0": "0000:04:00.0", "GPU:1": "0000:82:00.0"}
    tasks = deep_tasks(Train(Job("gpu", 2), cards=cards), ("GPU:0", "GPU:1"), addresses)
    assert [task.size for task in tasks if task.what == "fill"] == [9 << 30, None]
    assert {task.way for task in tasks if task.what == "sum"} == {None, "one-device", "hierarchical", "nccl"}


def test_an_odd_number_of_devices_is_not_summed_by_halves():
    tasks = deep_tasks(Train(Job("cpu", 3)), ("CPU:0", "CPU:1", "CPU:2"), {})
    assert {task.way for task in tasks if task.what == "sum"} == {None, "one-device"}


def test_a_sum_that_is_wrong_or_hangs_fails_what_had_passed():
    examination = Examination(FOUR, Child(), 0.0)
    examination.done = [
        (Task("sum", FOUR, 4096), {"seconds": 1.0, "wrong": 3.0, "each_seconds": 0.001}),
        (Task("sum", FOUR, 1 << 20), {"seconds": 30.0, "ended": "hang"}),
        (Task("sum", FOUR, 4096, "hierarchical"), {"seconds": 1.0, "wrong": 0.0, "each_seconds": 0.002}),
    ]
    judgement = merge(Judgement("pass", "good", proves_gpu=True), examination, {}, deep=True)
    assert (judgement.verdict, judgement.proves_gpu) == ("fail", False)
    assert {item.name for item in judgement.findings} == {"allreduce-mismatch", "smoke-timeout"}
    assert [(one.correct, one.bytes_per_second) for one in judgement.allreduce] == [(False, 4096e3), (None, None)]
    assert judgement.deep is not None
    assert [one.way for one in judgement.deep.ways] == ["hierarchical"]


@pytest.mark.parametrize(
    ("found", "name"), [({"ended": "hang"}, "smoke-timeout"), ({"error": "InternalError: x"}, "smoke-worker-died")]
)
def test_memory_that_is_not_read_back_to_the_end_fails_what_had_passed(found: dict[str, str], name: str):
    examination = Examination(FOUR, Child(), 0.0)
    examination.done = [(Task("fill", FOUR[:1], 4096), {"seconds": 1.0, **found})]
    judgement = merge(Judgement("pass", "good", proves_gpu=True), examination, {}, deep=True)
    assert [(item.name, item.severity, item.subject) for item in judgement.findings] == [(name, "error", FOUR[0])]
    assert (judgement.verdict, judgement.proves_gpu) == ("fail", False)


def test_a_closer_look_that_was_cut_short_is_no_pass():
    examination = Examination(FOUR, Child(), 0.0)
    examination.cut_short = True
    judgement = merge(Judgement("pass", "good", proves_gpu=True), examination, {}, deep=True)
    assert (judgement.verdict, judgement.headline) == (
        "not-run",
        "good Time was up before the closer look was through.",
    )


def test_a_way_that_nobody_uses_may_fail():
    examination = Examination(FOUR, Child(), 0.0)
    examination.done = [(Task("sum", FOUR, 4096, "nccl"), {"seconds": 1.0, "error": "not built in"})]
    judgement = merge(Judgement("pass", "good", proves_gpu=True), examination, {}, deep=True)
    assert judgement.verdict == "pass"
    assert [item.severity for item in judgement.findings] == ["warning"]
