"""The closer look, from the parent: trials of some devices after a failure or with ``--deep``, and what
else only ``--deep`` looks at.

A task that hangs or crashes ends its child; the next child goes on behind it. Everything happens before
the deadline of the whole, and what there is no time for is left out and said to be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpucheck.findings import Evidence, Finding, finding
from gpucheck.smoke import isolate
from gpucheck.smoke.cards import called, identities_of
from gpucheck.smoke.isolate import Trial
from gpucheck.smoke.job import Task
from gpucheck.smoke.outcome import Judgement, Outcome
from gpucheck.smoke.plan import Train
from gpucheck.smoke.report import AllReduce, Deep, Fate, Filled, Isolation
from gpucheck.text import say

Start = Callable[[tuple[Task, ...], bool, float], Outcome]
"""Does tasks in a new child, with peer access or without, within so many seconds."""

NO_PEER_ACCESS = "NCCL_P2P_DISABLE"
"""Variable that keeps NCCL from direct copies between cards."""
LEAST_SECONDS = 5.0
"""Loading TensorFlow alone takes about that: with less time left nothing is started."""
TOGETHER = ("train", "infer", "together")
"""Phases in which devices need each other."""
GPU_SUMS = (4 << 10, 1 << 20, 64 << 20, 256 << 20)
CPU_SUMS = (4 << 10, 256 << 10, 4 << 20)
WAY_SIZE = {"gpu": 64 << 20, "cpu": 4 << 20}
CPU_FILL = 32 << 20
FILL_SHARE = 0.9
"""Of the memory that is free: contexts, and what is needed to compare, have the rest."""


class Examination:
    """What has been tried, and what came of it. Devices have TensorFlow's names.

    Args:
        devices: Those that can be tried.
        start: Starts a child.
        deadline: ``time.monotonic()`` by which everything is over.
    """

    def __init__(self, devices: Sequence[str], start: Start, deadline: float) -> None:
        self.devices = tuple(devices)
        self.start = start
        self.deadline = deadline
        self.trials: list[Trial] = []
        self.done: list[tuple[Task, dict[str, Any]]] = []
        """The tasks that are no trials."""
        self.cut_short = False
        self.left_behind: list[Outcome] = []
        self.stderr: list[str] = []

    def isolate(self, hung: float | None, may_disable: bool) -> None:
        """Each alone, pairs, all; what hangs also without peer access.

        Args:
            hung: Seconds after which all devices together were given up; None: they did not hang.
            may_disable: Peer access was not off from the start.
        """
        if hung is not None and len(self.devices) > 1:
            self.trials.append(Trial(self.devices, "hang", hung))
            if may_disable:
                self._run((Task("train", self.devices),), peer_access=False)
        while todo := isolate.next_trials(self.devices, self.trials):
            before = len(self.trials)
            self._run(tuple(Task("train", devices) for devices in todo))
            if len(self.trials) == before:
                return  # no time, or no child that comes as far as that
        tried = {trial.devices for trial in self.trials if not trial.peer_access}
        hanging = [trial.devices for trial in self.trials if trial.outcome == "hang" and len(trial.devices) > 1]
        if may_disable and hanging and not tried:
            self._run((Task("train", hanging[0]),), peer_access=False)

    def look(self, tasks: Sequence[Task]) -> None:
        """Do tasks that are no trials, each once."""
        left = tuple(tasks)
        while left:
            before = len(self.done)
            self._run(left)
            if len(self.done) == before:
                return
            left = left[len(self.done) - before :]

    def _run(self, tasks: tuple[Task, ...], *, peer_access: bool = True) -> None:
        """One child. It does the tasks in their order until one of them ends it."""
        seconds = self.deadline - time.monotonic()
        if seconds < LEAST_SECONDS:
            self.cut_short = True
            return
        outcome = self.start(tasks, peer_access, seconds)
        self.stderr += outcome.stderr
        if outcome.left_behind:
            self.left_behind.append(outcome)
        for found in outcome.examined:
            self._note(tasks[found["task"]], found, peer_access)
        number = outcome.task
        if number is None or outcome.ending == "late":
            self.cut_short = True
        elif outcome.ending != "done" and number == len(outcome.examined):
            ended = "hang" if outcome.ending == "stuck" else "died"
            self._note(tasks[number], {"ended": ended, "seconds": outcome.task_seconds}, peer_access)

    def _note(self, task: Task, found: dict[str, Any], peer_access: bool) -> None:
        if task.what != "train":
            self.done.append((task, found))
            return
        outcome: Fate
        outcome, detail = (found["ended"], None) if "ended" in found else isolate.fate(found)
        self.trials.append(Trial(task.devices, outcome, found["seconds"], peer_access, detail))


def wanted(plan: Train, outcome: Outcome, judgement: Judgement, deep: bool) -> tuple[str, ...]:
    """The devices to try, by TensorFlow's names; empty where there is no cause, or nothing to tell apart."""
    if outcome.ending == "done":
        listed = [entry["device"] for entry in (outcome.result or {}).get("devices", ())]
        return tuple(listed) if deep or (_failed(judgement) and len(listed) > 1) else ()
    # A device that hangs or dies alone is named already; before that there is none to try.
    if outcome.phase not in TOGETHER:
        return ()
    if plan.job.kind == "cpu":
        return tuple(f"CPU:{number}" for number in range(plan.job.replicas))
    return tuple(sorted(identities_of((), outcome.stderr), key=lambda device: int(device.partition(":")[2])))


def _failed(judgement: Judgement) -> bool:
    """Whether something went wrong of which trials can say more. A card that TensorFlow does not list
    cannot be tried."""
    listed = {called(device) for device in judgement.devices if device.device is not None}
    return any(
        item.name in isolate.TROUBLE
        and item.severity == "error"
        and (item.name != "gpu-unused-in-training" or item.subject in listed)
        for item in judgement.findings
    )


def deep_tasks(plan: Train, devices: tuple[str, ...], addresses: Mapping[str, str]) -> tuple[Task, ...]:
    """What ``--deep`` adds to the trials: memory card by card, then sums over all."""
    free = {card.address: card.free_bytes for card in plan.cards}
    fills = []
    for device in devices:
        known = free.get(addresses.get(device, ""))
        size = CPU_FILL if plan.job.kind == "cpu" else None if known is None else int(FILL_SHARE * known)
        fills.append(Task("fill", (device,), size))
    if len(devices) < 2:
        return tuple(fills)
    sizes = CPU_SUMS if plan.job.kind == "cpu" else GPU_SUMS
    ways = ["one-device"]
    # TensorFlow's hierarchical copy halves the group, and leaves out the last of an odd number.
    if len(devices) % 2 == 0:
        ways.append("hierarchical")
    # The operations of NCCL exist for GPUs only.
    if plan.job.kind == "gpu":
        ways.append("nccl")
    return (
        *fills,
        *(Task("sum", devices, size) for size in sizes),
        *(Task("sum", devices, WAY_SIZE[plan.job.kind], way) for way in ways),
    )


def look_closer(
    plan: Train,
    outcome: Outcome,
    judgement: Judgement,
    devices: tuple[str, ...],
    start: Start,
    deadline: float,
    *,
    deep: bool,
    may_disable: bool,
) -> Judgement:
    """Try what may be at fault, and judge anew.

    Args:
        plan: What was trained.
        outcome: How that went.
        judgement: What was made of it.
        devices: Those to try: see :func:`wanted`.
        start: Starts a child.
        deadline: ``time.monotonic()`` by which everything is over.
        deep: Look at memory and sums too.
        may_disable: Peer access was not off from the start.
    """
    examined = Examination(devices, start, deadline)
    hung = outcome.limit_seconds if outcome.ending in ("stuck", "late") else None
    examined.isolate(hung, may_disable)
    addresses = addresses_of(judgement, [*outcome.stderr, *examined.stderr])
    if deep:
        examined.look(deep_tasks(plan, devices, addresses))
    return merge(judgement, examined, addresses, deep)


def merge(judgement: Judgement, examined: Examination, addresses: Mapping[str, str], deep: bool) -> Judgement:
    """The judgement with what the closer look adds to it: findings under the name of the card or pair."""

    def name(device: str) -> str:
        return addresses.get(device, device)

    trials = [replace(trial, devices=tuple(map(name, trial.devices))) for trial in examined.trials]
    findings, sentence = isolate.told(judgement.findings, trials)
    sums = [_summed(task, found) for task, found in examined.done if task.what == "sum"]
    fills = [_filled(name(task.devices[0]), found) for task, found in examined.done if task.what == "fill"]
    findings += [
        *_wrong_sums(sums),
        *map(_defect, filter(_is_wrong, fills)),
        *map(_unfilled, (fill for fill in fills if fill.error is not None)),
        *map(_outlived, examined.left_behind),
    ]
    failed = any(item.severity == "error" for item in findings)
    headline = judgement.headline
    if sentence is None and failed and judgement.verdict != "fail":
        sentence = next(item.message for item in findings if item.severity == "error")
    if sentence is not None:
        headline = say("{headline} {sentence}", headline=headline, sentence=sentence)
        if judgement.verdict != "fail":
            headline = say("The training went well; the closer look did not. {sentence}", sentence=sentence)
    elif examined.cut_short and deep:
        headline = say("{headline} Time was up before the closer look was through.", headline=headline)
    elif deep and judgement.verdict == "pass":
        headline = say("{headline} The closer look found nothing either.", headline=headline)
    verdict = judgement.verdict
    if deep and examined.cut_short and verdict == "pass":
        verdict = "not-run"  # what was asked for was not shown
    return replace(
        judgement,
        verdict="fail" if failed else verdict,
        proves_gpu=judgement.proves_gpu and not failed,
        headline=headline,
        findings=tuple(findings),
        isolation=tuple(
            Isolation(
                devices=trial.devices,
                outcome=trial.outcome,
                seconds=round(trial.seconds, 3),
                peer_access=trial.peer_access,
                detail=trial.detail,
            )
            for trial in trials
        ),
        allreduce=tuple(one for one in sums if one.way == "default"),
        deep=Deep(
            ways=tuple(one for one in sums if one.way != "default"),
            vram=tuple(fills),
            cut_short=examined.cut_short,
        )
        if deep or examined.cut_short
        else None,
    )


def addresses_of(judgement: Judgement, stderr: Sequence[str]) -> dict[str, str]:
    """TensorFlow's name of a device to the name that people know it by."""
    found = {device: address for device, (address, _) in identities_of((), stderr).items()}
    return found | {device.device: called(device) for device in judgement.devices if device.device is not None}


def _summed(task: Task, found: Mapping[str, Any]) -> AllReduce:
    size, seconds = task.size or 0, found.get("each_seconds")
    over = "error" not in found and "ended" not in found
    return AllReduce(
        bytes=size,
        seconds=seconds,
        bytes_per_second=size / seconds if seconds else None,
        correct=found.get("wrong") == 0 if over else None,
        way=task.way or "default",
        error=found.get("error") or found.get("ended"),
    )


def _filled(device: str, found: Mapping[str, Any]) -> Filled:
    return Filled(
        device=device,
        bytes=found.get("bytes"),
        seconds=round(found["seconds"], 3),
        wrong_words=found.get("wrong_words"),
        first_offset=found.get("first_offset"),
        expected=found.get("expected"),
        got=found.get("got"),
        error=found.get("error") or found.get("ended"),
    )


# --- findings -------------------------------------------------------------------------------------


def _wrong_sums(sums: Sequence[AllReduce]) -> list[Finding]:
    """One finding for all sizes and ways: they go over the same links."""
    wrong = [one for one in sums if one.correct is False]
    stopped = [one for one in sums if one.correct is None]
    found = []
    if wrong:
        found.append(
            finding(
                "allreduce-mismatch",
                "error",
                "machine",
                say("An all-reduce of whole numbers did not give their sum."),
                evidence=tuple(
                    Evidence(source=say("known sum"), text=say("{way}, {n} bytes: wrong", way=one.way, n=one.bytes))
                    for one in wrong
                ),
                remedy=(say("Look at the way between the cards: set NCCL_P2P_DISABLE=1 and compare."),),
            )
        )
    if stopped:
        usual = [one for one in stopped if one.way == "default"]
        found.append(
            finding(
                "smoke-timeout" if any(one.error == "hang" for one in stopped) else "smoke-worker-died",
                "error" if usual else "warning",
                "machine",
                say("An all-reduce did not come to its end."),
                evidence=tuple(
                    Evidence(source=f"{one.way}, {one.bytes} bytes", text=one.error or "") for one in stopped
                ),
                remedy=(say("Look at the way between the cards: set NCCL_P2P_DISABLE=1 and compare."),)
                if usual
                else (say("The usual exchange works; keep to it."),),
            )
        )
    return found


def _is_wrong(fill: Filled) -> bool:
    return bool(fill.wrong_words)


def _defect(fill: Filled) -> Finding:
    lines = [say("{n} words of 8 bytes read back otherwise", n=fill.wrong_words)]
    if fill.first_offset is not None:
        lines.append(
            say(
                "the first at {offset} of {size} bytes: {expected} was written, {got} was read",
                offset=fill.first_offset,
                size=fill.bytes,
                expected=fill.expected,
                got=fill.got,
            )
        )
    return finding(
        "vram-defect",
        "error",
        fill.device,
        say("The memory of {device} does not hold what is written to it.", device=fill.device),
        evidence=tuple(Evidence(source=say("pattern"), text=line) for line in lines),
        remedy=(
            say("Run it once more: note whether the place stays."),
            say("Take overclocking off, and look at the temperature of the memory."),
            say("Run the maker's memory test; where it agrees, replace the card."),
        ),
    )


def _unfilled(fill: Filled) -> Finding:
    """Its memory was not read back to the end, so that nothing is known of it."""
    return finding(
        "smoke-timeout" if fill.error == "hang" else "smoke-worker-died",
        "error",
        fill.device,
        say("Filling the memory of {device} and reading it back did not come to its end.", device=fill.device),
        evidence=(Evidence(source=say("pattern"), text=fill.error or ""),),
        remedy=(say("Look at memory errors, heat and power of this card, and at the kernel log of that moment."),),
    )


def _outlived(outcome: Outcome) -> Finding:
    return finding(
        "process-left-behind",
        "error",
        "machine",
        say("A process of the closer look outlived it (process group {pid}).", pid=outcome.pid),
        remedy=(say("What SIGKILL does not end hangs in the driver: only a reboot frees the card."),),
    )
