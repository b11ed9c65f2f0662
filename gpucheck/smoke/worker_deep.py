"""The closer look, in the child: short trainings of some devices, sums that are known, memory that is
filled and read back; and the soak.

Each task of ``Job.tasks`` is announced by ``phase`` ``examine`` with its number, and answered by a line
``examined`` with ``task``, ``seconds`` and what it found, or ``error``: a hang or a crash then costs
only the task that it happened in, and the parent goes on behind it in a new child.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpucheck.smoke.job import JOIN, Job, Task
from gpucheck.smoke.worker_layout import difference, finite, nan_first, spread_of

if TYPE_CHECKING:
    from gpucheck.smoke.worker import Training

TRIAL_STEPS = 2
WAYS = {
    "nccl": "NcclAllReduce",
    "hierarchical": "HierarchicalCopyAllReduce",
    "one-device": "ReductionToOneDevice",
}
PERIOD = 251
"""Numbers of a known sum are whole and below this, so that float32 adds them up exactly."""
SUM_REPEATS = 5
GPU_CHUNK, CPU_CHUNK = 256 << 20, 4 << 20
SPARE_CHUNKS = 2
"""Left free of a memory that is filled to the brim: to read a chunk back, its pattern is made again."""
SIGN_OF_LIFE = 16
"""Chunks between two of them."""
ROUND_SECONDS = 2.0
MOST_STEPS_PER_ROUND = 200


class Examination:
    """Does the tasks of a job, with the devices and the seams of a training."""

    def __init__(self, session: Training) -> None:
        self.session = session
        self.tf = session.tf

    def run(self) -> dict[str, Any]:
        session = self.session
        for number, task in enumerate(session.job.tasks):
            self.task = number
            self.alive(task)
            started = time.perf_counter()
            with self.on(task.devices):
                try:
                    found = self.do(task)
                except Exception as fault:  # of this task alone
                    found = {"error": f"{type(fault).__name__}: {fault}"[:2000]}
            seconds = time.perf_counter() - started
            session.channel.send(examined={"task": number, "seconds": seconds, **found})
            if "error" in found:
                break  # TensorFlow then aborts every later exchange of this process
        return {"devices": session.describe()}

    def alive(self, task: Task, step: int | None = None) -> None:
        devices = JOIN.join(task.devices)
        self.session.channel.send(phase="examine", task=self.task, device=devices, step=step)

    def do(self, task: Task) -> dict[str, Any]:
        match task.what:
            case "train":
                return self.train()
            case "sum":
                return self.sum(task.size or 0, task.way)
            case "fill":
                return self.fill(task)

    @contextmanager
    def on(self, devices: Sequence[str]) -> Iterator[None]:
        """The training as if there were these devices only."""
        session = self.session
        kept = {name: getattr(session, name) for name in ("devices", "job", "layout", "shards", "total")}
        session.devices = list(devices)
        session.job = _trial(session.job)
        session.layout = session.layouts[session.job.strategy](session)
        session.shards = session.layout.divide()
        session.total = sum(shard.count for shard in session.shards)
        try:
            yield
        finally:
            for name, value in kept.items():
                setattr(session, name, value)

    # --- tasks --------------------------------------------------------------------------------

    def train(self) -> dict[str, Any]:
        """A few steps, held against the CPU: see :func:`gpucheck.smoke.isolate.fate`."""
        session = self.session
        session.prepare()
        session.layout.build(session.initial)
        compared = session.train()
        found = {
            "difference": compared["max_param_difference"],
            "spread": finite(spread_of(session.layout.copies())),
        }
        reduced = [one["reduced_difference"] for one in session.layout.evidence() if "reduced_difference" in one]
        if reduced:
            found["reduced_difference"] = None if None in reduced else max(reduced)
        return found

    def sum(self, size: int, way: str | None) -> dict[str, Any]:
        """Replica r gives r + 1 times a row of whole numbers, so that every sum is exact. Each device
        counts by itself the numbers that it got and that are not the sum."""
        tf, session = self.tf, self.session
        operations = None if way is None else getattr(tf.distribute, WAYS[way])()
        spread = session.mirror(operations)
        replicas = len(session.devices)
        count = max(1, size // 4)

        def row() -> Any:
            return tf.floor(tf.random.stateless_uniform([count], [count, 0], 0.0, float(PERIOD)))

        def given(context: Any) -> Any:
            replica = context.replica_id_in_sync_group
            with session.place(replica):
                return row() * float(replica + 1)

        def reduced(own: Any) -> Any:
            return session.combine([own])[0]

        def wrong(own: Any) -> Any:
            total = row() * float(replicas * (replicas + 1) // 2)
            return tf.reduce_sum(tf.cast(tf.not_equal(reduced(own), total), tf.float32))

        values = spread.experimental_distribute_values_from_function(given)
        check = tf.function(lambda own: spread.run(wrong, args=(own,)), autograph=False)
        # Of the result one number is fetched, so that the time is that of the exchange.
        exchange = tf.function(
            lambda own: spread.run(lambda part: tf.reduce_max(reduced(part)[:1]), args=(own,)), autograph=False
        )

        def fetch(result: Any) -> list[float]:
            return [float(part) for part in spread.experimental_local_results(result)]

        off = sum(fetch(check(values)))
        fetch(exchange(values))
        started = time.perf_counter()
        for _ in range(SUM_REPEATS):
            fetch(exchange(values))
        return {"wrong": finite(off), "each_seconds": (time.perf_counter() - started) / SUM_REPEATS}

    def fill(self, task: Task) -> dict[str, Any]:
        """Write a pattern that no two places share, then the same inverted. All of it is written before
        any is read, so that a chunk which lands on another's place shows."""
        tf = self.tf
        device = task.devices[0]
        chunk = GPU_CHUNK if self.session.job.kind == "gpu" else CPU_CHUNK
        words = chunk // 8
        most = None if task.size is None else max(1, task.size // chunk)

        def pattern(number: Any, mask: Any) -> Any:
            bits = tf.random.stateless_uniform([words], tf.stack([number, 0]), None, None, tf.int64)
            return tf.bitwise.bitwise_xor(bits, mask)

        def wrong(held: Any, number: Any, mask: Any) -> Any:
            return tf.reduce_sum(tf.cast(tf.not_equal(held, pattern(number, mask)), tf.float32))

        number, mask = tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int64)
        write = tf.function(pattern, autograph=False).get_concrete_function(number, mask)
        compare = tf.function(wrong, autograph=False).get_concrete_function(
            tf.TensorSpec([words], tf.int64), number, mask
        )
        found: dict[str, Any] = {"bytes": 0, "wrong_words": 0}
        for bits in (0, -1):
            held: list[Any] = []
            with tf.device(device):
                inverted = tf.constant(bits, tf.int64)
                try:
                    while most is None or len(held) < most:
                        if len(held) % SIGN_OF_LIFE == 0:
                            self.alive(task, len(held))
                        held.append(write(tf.constant(len(held)), inverted))
                        # Wait for it: a device that is behind would refuse memory long after.
                        held[-1][-1].numpy()
                except tf.errors.ResourceExhaustedError:
                    del held[max(1, len(held) - SPARE_CHUNKS) :]
                for place, value in enumerate(held):
                    if place % SIGN_OF_LIFE == 0:
                        self.alive(task, place)
                    stored = self.session.stored(device, place, value)
                    if float(compare(stored, tf.constant(place), inverted)):
                        _compared(found, place * chunk, stored.numpy(), write(tf.constant(place), inverted).numpy())
            found["bytes"] = max(found["bytes"], len(held) * chunk)
            # The second pass must not grow beyond the first, whose memory is only then free again.
            most = len(held)
        return found


def _compared(found: dict[str, Any], offset: int, got: Any, expected: Any) -> None:
    """Add what differs in a chunk that begins at an offset."""
    import numpy

    wrong = numpy.flatnonzero(got != expected)
    if not len(wrong):  # it read back rightly the second time: it counts all the same
        found["wrong_words"] += 1
        return
    if "first_offset" not in found:
        first = int(wrong[0])
        found["first_offset"] = offset + 8 * first
        found["got"], found["expected"] = (f"{int(one[first]) & (1 << 64) - 1:016x}" for one in (got, expected))
    found["wrong_words"] += len(wrong)


def _trial(job: Job) -> Job:
    """Of a short training. The layouts that need a mesh cannot be tried on one device."""
    strategy = job.strategy if job.strategy in ("mirrored", "central") else "mirrored"
    return replace(
        job, steps=TRIAL_STEPS, global_batch=None, shards=None, by_speed=False, mode="train", strategy=strategy
    )


# --- the soak -------------------------------------------------------------------------------------


def soak(session: Training, per_second: float) -> dict[str, Any]:
    """Repeat a number of steps under load until the time is up, each round from the same parameters
    and on the same samples, so that each must end as the first did.

    Per round: ``at`` (seconds since the soak began), ``per_second``, ``difference`` of the parameters
    from those of the first, ``spread`` between the replicas.
    """
    kept = session.total
    # The mean is over what a step of the load holds.
    session.total = sum(session.load_counts)
    try:
        samples, once = session.layout.under_load(session.load_counts)
        steps = min(MOST_STEPS_PER_ROUND, max(1, int(ROUND_SECONDS * per_second / samples)))
        return {"steps": steps, "rounds": list(_rounds(session, once, steps, samples))}
    finally:
        session.total = kept


def _rounds(session: Training, once: Callable[[], object], steps: int, samples: int) -> Iterator[dict[str, Any]]:
    began = time.perf_counter()
    first: list[Any] | None = None
    number = 0
    while number < 2 or time.perf_counter() - began < session.job.soak_seconds:
        session.channel.send(phase="soak", step=number)
        session.layout.reset(session.initial)
        started = time.perf_counter()
        for _ in range(steps):
            once()
        seconds = time.perf_counter() - started
        copies = session.layout.copies()
        first = first or copies[0]
        yield {
            "at": time.perf_counter() - began,
            "per_second": steps * samples / seconds,
            "difference": finite(max((difference(first, copy) for copy in copies), key=nan_first)),
            "spread": finite(spread_of(copies)),
        }
        number += 1
