"""The parent: starts the worker, watches it, ends it, and has the evidence weighed.

TensorFlow ignores SIGTERM in some states and can hang in a driver for good, so it never runs in
this process: it has a session of its own, heartbeats and a deadline, and ends by SIGKILL.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import gpucheck
from gpucheck.errors import UsageError
from gpucheck.findings import in_order
from gpucheck.host import LiveHost, end_group
from gpucheck.smoke import plan as planning
from gpucheck.smoke.aftermath import is_over
from gpucheck.smoke.cards import identities_of, not_listed
from gpucheck.smoke.evidence import judge
from gpucheck.smoke.examine import NO_PEER_ACCESS, look_closer, wanted
from gpucheck.smoke.job import JOIN, Division, Job, Mode, Strategy, Task
from gpucheck.smoke.outcome import Judgement, Outcome, Watched
from gpucheck.smoke.plan import DeviceRequest, DoNotTrain, Train
from gpucheck.smoke.progress import Diary, about
from gpucheck.smoke.progress import path as diary_path
from gpucheck.smoke.report import EXIT_CODES, SmokeReport
from gpucheck.smoke.soak import soaked
from gpucheck.text import say

if TYPE_CHECKING:
    from gpucheck.facts import Machine
    from gpucheck.readers.nvml_watch import Watch

Progress = Callable[[int, int, str], None]
"""Called with step, steps and phase: ``import``, ``devices``, ``alone``, ``train`` or ``infer``,
``compare``, ``together``."""

Messages = queue.SimpleQueue[dict[str, Any] | None]
"""What the worker says, as it comes; None when it says no more."""

STEPS = 10
TIMEOUT = 300.0
QUIET_SECONDS = 60.0
POLL_SECONDS = 5.0
END_SECONDS = 5.0
READY_SECONDS = 10.0
"""For a first look at every card. What is missing then is unknown, and the training starts all the same."""
SETTLE_SECONDS = 5.0
"""The driver takes a moment to free what an ended process held."""
SETTLE_POLL_SECONDS = 0.05
FIRST_SHARE = 0.4
"""Of the time, for the first step of all devices: the rest is for finding out which of them hang."""
TRIAL_SECONDS = 30.0
"""Patience with one trial of some devices, whose kernels the training has compiled already."""
LONG_SOAK_SECONDS, LONG_SOAK_INTERVAL = 120.0, 1.0
"""From so long a soak on, NVML is asked less often: hours of samples are held in memory."""
STDERR_LINES = 4000
NOISE = (
    b"Executing op ",
    b" placer.cc",
    b"oneDNN custom operations",
    b"TF_ENABLE_ONEDNN_OPTS",
    b"All log messages before absl",
)
"""Lines of TensorFlow's log that would push the telling ones out."""

# The worker's folder is not put on the module path: its neighbours would shadow other modules.
_START = "import sys; sys.path.append(sys.argv.pop()); from gpucheck.smoke.worker import main; main()"
WORKER = (sys.executable, "-P", "-c", _START)


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that a worker may take.

    Attributes:
        total: From start to end.
        quiet: Between two messages, once the first step is done. Before that only ``total`` counts:
            the first use of a card may compile its kernels for minutes.
        first: For the first step of all devices, each of which has run alone by then; None: ``total``.
    """

    total: float = TIMEOUT
    quiet: float = QUIET_SECONDS
    first: float | None = None


def smoke(
    request: DeviceRequest,
    machine: Machine | None,
    *,
    steps: int = STEPS,
    timeout: float = TIMEOUT,
    if_busy: Literal["fail", "skip", "wait"] = "fail",
    expect_gpus: int | None = None,
    global_batch: int | None = None,
    strategy: Strategy = "mirrored",
    mode: Mode = "train",
    split: Division = "even",
    deep: bool = False,
    soak_minutes: float = 0.0,
    progress: Progress | None = None,
    look_again: Callable[[], Machine] | None = None,
    environ: Mapping[str, str] | None = None,
    command: Sequence[str] = WORKER,
) -> SmokeReport:
    """Train data-parallel on every device and report what it proves.

    Args:
        request: The devices that were asked for.
        machine: What a probe read; only ``gpus`` is used. None, or ``gpus`` None: not known.
        steps: Training steps, at least one.
        timeout: Seconds for the training (and, with ``wait``, once more for the cards to get free).
        if_busy: What to do about cards that run somebody else's processes.
        expect_gpus: Fewer GPUs that did their part than this is a failure.
        global_batch: Samples per step over all devices; by default 16 for each.
        strategy: How the net is laid out over the devices.
        mode: ``infer`` for forward passes only.
        split: ``auto`` gives each device a share of the batch by the speed that it has alone.
        deep: Try single devices and pairs also where nothing failed, sums that are known, and the memory.
        soak_minutes: Repeat the training under load for so long; added to ``timeout``.
        progress: Called from this thread at every message of the worker.
        look_again: Reads the machine once more, for ``wait``.
        environ: Environment of the worker, by default that of this process.
        command: What to start as the worker.

    Raises:
        UsageError: The request contradicts itself.
    """
    environ = os.environ if environ is None else environ
    if soak_minutes and (mode != "train" or strategy not in ("mirrored", "central")):
        raise UsageError(
            say("A soak repeats a training by the strategies mirrored or central."), input="--soak",
            hint=say("leave --mode and --strategy out"),
        )  # fmt: skip

    def decide() -> Train | DoNotTrain:
        return planning.decide(
            request,
            planning.cards_of(machine) if machine is not None else None,
            nvml=machine.nvml if machine is not None else None,
            environ=environ,
            steps=steps,
            global_batch=global_batch,
            strategy=strategy,
            mode=mode,
            split=split,
            expect_gpus=expect_gpus,
            if_busy=if_busy,
        )

    plan = decide()
    give_up = time.monotonic() + timeout
    while (
        if_busy == "wait"
        and look_again is not None
        and isinstance(plan, DoNotTrain)
        and any(item.name == "gpu-busy" for item in plan.findings)
        and time.monotonic() < give_up
    ):
        if progress is not None:
            progress(0, steps, "wait")
        time.sleep(POLL_SECONDS)
        machine = look_again()
        plan = decide()
    if isinstance(plan, DoNotTrain):
        devices = tuple(not_listed(card) for card in plan.cards)
        judgement = Judgement(plan.verdict, plan.headline, devices=devices, findings=plan.findings)
        return report_of(judgement, strategy, mode)
    plan = replace(plan, job=replace(plan.job, soak_seconds=60 * soak_minutes))
    deadline = time.monotonic() + timeout + plan.job.soak_seconds
    cards = [card.address for card in plan.cards]
    diary = Diary(diary_path(environ), about(plan.job.kind, cards, strategy, deep, soak_minutes))
    outcome, watched = attend(plan, environ, timeout, progress, command=command, diary=diary)
    judgement = soaked(judge(plan, outcome, watched, expect_gpus), outcome, watched)

    def start(tasks: tuple[Task, ...], peer_access: bool, seconds: float) -> Outcome:
        return train(
            replace(plan.job, tasks=tasks, soak_seconds=0.0),
            environ={**environ, **dict(plan.environment), **({} if peer_access else {NO_PEER_ACCESS: "1"})},
            limits=Limits(seconds, min(seconds, QUIET_SECONDS, TRIAL_SECONDS)),
            progress=progress,
            command=command,
            diary=diary,
        )

    if to_try := wanted(plan, outcome, judgement, deep):
        may_disable = NO_PEER_ACCESS not in environ
        judgement = look_closer(plan, outcome, judgement, to_try, start, deadline, deep=deep, may_disable=may_disable)
    diary.end(judgement.verdict, judgement.headline)
    return report_of(judgement, strategy, mode, steps, outcome.seconds)


def attend(
    plan: Train,
    environ: Mapping[str, str],
    timeout: float,
    progress: Progress | None,
    *,
    command: Sequence[str] = WORKER,
    messages: Messages | None = None,
    diary: Diary | None = None,
) -> tuple[Outcome, Watched]:
    """Train while NVML is watched, with the error counters of the cards before and after; without GPUs
    there is nothing to watch. A soak has time of its own."""
    quiet = min(timeout, QUIET_SECONDS)
    # Hosts wait for each other in their first step.
    first = max(quiet, FIRST_SHARE * timeout) if plan.job.tf_config is None else None
    limits = Limits(timeout + plan.job.soak_seconds, quiet, first)

    def work() -> Outcome:
        return train(
            plan.job,
            environ={**environ, **dict(plan.environment)},
            limits=limits,
            progress=progress,
            command=command,
            messages=messages,
            diary=diary,
        )

    if plan.job.kind != "gpu":
        return work(), Watched()
    from gpucheck.smoke import counters

    host = LiveHost()
    addresses = [card.address for card in plan.cards]
    watch = _watch(plan.job.soak_seconds)
    try:
        watch.start()
        before = counters.read(host, addresses)
        watch.wait_ready(READY_SECONDS)
        outcome = work()
        settle(watch, outcome)
    finally:
        samples = watch.stop()
    return outcome, Watched(samples, watch.parts, before, counters.read(host, addresses))


def settle(watch: Watch, outcome: Outcome) -> None:
    """Wait until the cards are free of the training, at most :data:`SETTLE_SECONDS`."""
    give_up = time.monotonic() + SETTLE_SECONDS
    while not is_over(outcome, watch.samples) and not watch.has_ended and time.monotonic() < give_up:
        time.sleep(SETTLE_POLL_SECONDS)


def _watch(soak_seconds: float) -> Watch:
    from gpucheck.readers.nvml_watch import Watch

    return Watch(LONG_SOAK_INTERVAL) if soak_seconds >= LONG_SOAK_SECONDS else Watch()


def report_of(
    judgement: Judgement, strategy: Strategy, mode: Mode, steps: int | None = None, seconds: float | None = None
) -> SmokeReport:
    """The document of a judgement."""
    return SmokeReport(
        headline=judgement.headline,
        verdict=judgement.verdict,
        exit_code=EXIT_CODES[judgement.verdict],
        proves_gpu=judgement.proves_gpu,
        devices=judgement.devices,
        numerics=judgement.numerics,
        scaling=judgement.scaling,
        findings=in_order(list(judgement.findings)),
        tensorflow=judgement.tensorflow,
        strategy=strategy,
        mode=mode,
        split=judgement.split,
        isolation=judgement.isolation,
        allreduce=judgement.allreduce,
        deep=judgement.deep,
        soak=judgement.soak,
        steps=steps,
        global_batch=judgement.global_batch,
        seconds=None if seconds is None else round(seconds, 3),
    )


# --- the worker -----------------------------------------------------------------------------------


def train(
    job: Job,
    *,
    environ: Mapping[str, str],
    limits: Limits | None = None,
    progress: Progress | None = None,
    command: Sequence[str] = WORKER,
    messages: Messages | None = None,
    diary: Diary | None = None,
) -> Outcome:
    """Have a worker do a job. Never raises for what the worker does, and never waits for it longer
    than its limits and a second. Another thread may put ``{"lost": ...}`` into ``messages``: then the
    worker waits for somebody who will not come, and is ended."""
    limits = limits or Limits()
    started = time.monotonic()
    process = subprocess.Popen(
        [
            *command,
            replace(job, give_up_seconds=limits.total + END_SECONDS).to_json(),
            str(Path(gpucheck.__file__).parent.parent),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(job, environ),
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    messages = queue.SimpleQueue() if messages is None else messages
    stderr: deque[str] = deque(maxlen=STDERR_LINES)
    readers = [
        threading.Thread(target=_read_messages, args=(process.stdout, messages), daemon=True),
        threading.Thread(target=_read_lines, args=(process.stderr, stderr), daemon=True),
    ]
    for reader in readers:
        reader.start()
    outcome = Outcome(pid=process.pid, started=started)
    try:
        _follow(outcome, messages, started, limits, _each(progress, diary, outcome, stderr, job.steps))
        if outcome.ending not in ("stuck", "late", "lost"):
            _await_end(process)
    finally:
        alive = _group_alive(process)
        ended = end_group(process)
        # After a kill for time only what survives it is left behind, else all that was still there.
        outcome.left_behind = not ended or (alive and outcome.ending not in ("stuck", "late", "lost"))
        outcome.returncode = process.returncode
        outcome.seconds = time.monotonic() - started
        for reader in readers:
            reader.join(1.0)
        outcome.stderr = list(stderr)
    return outcome


def _environment(job: Job, environ: Mapping[str, str]) -> dict[str, str]:
    child = {
        **environ,
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "NVIDIA_TF32_OVERRIDE": "0",
        # At level 0 TensorFlow names the PCI address of each GPU and the library it could not load.
        "TF_CPP_MIN_LOG_LEVEL": "0" if job.kind == "gpu" else "2",
    }
    # Made for a cluster job; a training on this machine alone would wait for the other hosts.
    child.pop("TF_CONFIG", None)
    return child


def _read_messages(file: IO[bytes], messages: Messages) -> None:
    """Queue each message, and None at the end."""
    with file:
        for line in file:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # cut off by the end of the worker
            if isinstance(message, dict):
                messages.put(message)
    messages.put(None)


def _read_lines(file: IO[bytes], lines: deque[str]) -> None:
    with file:
        for line in file:
            if not any(noise in line for noise in NOISE):
                lines.append(line.decode("utf-8", "replace").rstrip())


def _follow(
    outcome: Outcome,
    messages: Messages,
    started: float,
    limits: Limits,
    each: Callable[[], None],
) -> None:
    """Take messages until the worker is done, ends or breaks a limit."""
    while True:
        left = started + limits.total - time.monotonic()
        patience = _patience(outcome, limits)
        try:
            message = messages.get(timeout=max(0.0, min(left, patience)))
        except queue.Empty:
            late = time.monotonic() - started >= limits.total
            outcome.ending = "late" if late else "stuck"
            outcome.limit_seconds = limits.total if late else patience
            return
        if message is None:
            return
        if "build" in message:
            outcome.build = message["build"]
        elif "result" in message:
            outcome.result = message["result"]
            outcome.ending = "done"
            return
        elif "failed" in message:
            outcome.failure = message["failed"]
            outcome.ending = "failed"
            return
        elif "lost" in message:
            outcome.ending = "lost"
            return
        elif "phase" in message:
            if outcome.task is not None and "task" not in message:
                continue  # a step of a task is a sign of life only
            outcome.phase = message["phase"]
            if outcome.phase == "devices":
                outcome.touched = time.monotonic()
            outcome.device = message.get("device")
            outcome.step = message.get("step")
            if message.get("task") != outcome.task:
                outcome.task, outcome.task_began = message["task"], time.monotonic()
            each()
        elif "examined" in message:
            outcome.examined.append(message["examined"])


def _patience(outcome: Outcome, limits: Limits) -> float:
    """Seconds until the next message, at most."""
    if outcome.task is not None or outcome.step or outcome.phase in ("compare", "together", "soak"):
        return limits.quiet
    if outcome.phase in ("train", "infer") and limits.first is not None:
        return limits.first
    return limits.total


def _each(
    progress: Progress | None, diary: Diary | None, outcome: Outcome, stderr: deque[str], steps: int
) -> Callable[[], None]:
    """What is done at every message that says where the worker is."""

    def tell() -> None:
        if diary is not None:
            addresses = identities_of((), stderr.copy()) if outcome.device else {}
            names = [addresses.get(device, (device,))[0] for device in (outcome.device or "").split(JOIN)]
            diary.stage(outcome.phase, JOIN.join(names) or None, outcome.step)
        if progress is not None:
            progress(outcome.step or 0, steps, outcome.phase)

    return tell


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """A worker that said its last word has a moment to go; after that it counts as left behind."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)


def _group_alive(process: subprocess.Popen[bytes]) -> bool:
    """Whether any process of the worker's group still runs."""
    if sys.platform == "win32":
        return process.poll() is None
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
