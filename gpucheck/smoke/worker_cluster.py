"""The child on one of several hosts: ``tf.distribute.MultiWorkerMirroredStrategy``.

Each host draws the whole global batch, trains on its replicas' shards of it, and compares its copies
with a training of the whole batch on its own CPU. What only all hosts together can tell (whether their
copies are equal, whether what came back is the sum of what all sent) goes to the parent as numbers, so
that it does not travel by the way that is under test.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gpucheck.smoke import worker
from gpucheck.smoke.job import PER_REPLICA, Shard, split
from gpucheck.smoke.worker_layout import finite, short
from gpucheck.smoke.worker_mirrored import Mirrored

LEAST_CALLS = 10
"""Steps of the measurement. Their number must be the same on every host, or one waits for ever."""

LEAVE_SECONDS = 4.0
"""Less than the parent waits for the end of a worker that gave its result."""


class AcrossHosts(Mirrored):
    """Replicas of this host; those of the others have numbers before and after them."""

    session: ClusterTraining

    def strategy(self) -> Any:
        return self.session.spread

    def local(self, replica: int) -> int:
        return replica - self.first()

    def first(self) -> int:
        """Number of this host's first replica among all."""
        return int(self.session.rank) * len(self.session.devices)

    def divide(self) -> tuple[Shard, ...]:
        return self.session.whole()[self.first() : self.first() + len(self.session.devices)]

    def read(self, tallies: Sequence[Any], shards: Sequence[Shard]) -> list[dict[str, Any]]:
        """What was sent and what came back, as they are: the sum runs over all hosts."""
        read = super().read(tallies, shards)
        for one, tally in zip(read, tallies, strict=True):
            one.pop("reduced_difference", None)
            one["tally"] = [finite(float(value)) for value in tally[3:6]]
        return read

    def mean(self, value: float) -> float:
        """The mean of a number over all replicas of all hosts."""
        tf = self.tf

        def own() -> Any:
            return tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.MEAN, tf.constant(value, tf.float32)
            )

        return float(self.each(self.spread.run(tf.function(own, autograph=False)))[0])


class ClusterTraining(worker.Training):
    """One host's part of a training on several."""

    layouts = {"mirrored": AcrossHosts}  # noqa: RUF012
    layout: AcrossHosts

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.total = sum(shard.count for shard in self.whole())

    def list_devices(self) -> list[str]:
        """Join the others, then list this host's devices: the order is TensorFlow's."""
        assert self.job.tf_config is not None
        os.environ["TF_CONFIG"] = self.job.tf_config
        config = json.loads(self.job.tf_config)
        self.hosts, self.rank = len(config["cluster"]["worker"]), config["task"]["index"]
        self.channel.send(phase="join")
        self.spread = self.tf.distribute.MultiWorkerMirroredStrategy()
        names = [short(device) for device in self.spread.extended.worker_devices]
        # Where it finds no GPU it takes the CPU, and says nothing.
        return [name for name in names if name.startswith(self.job.kind.upper())]

    def leave(self) -> None:
        """Stay until all have their result: a worker that goes takes the last exchange of the others with
        it. Who does not come within a moment is not waited for."""
        if not self.devices:
            return
        threading.Timer(LEAVE_SECONDS, os._exit, (0,)).start()
        with suppress(self.tf.errors.OpError):
            self.layout.mean(1.0)

    def whole(self) -> tuple[Shard, ...]:
        """The shards of all replicas of all hosts."""
        replicas = self.hosts * len(self.devices)
        return split(self.job.global_batch or PER_REPLICA * replicas, replicas) if replicas else ()

    def train(self) -> dict[str, Any]:
        result = super().train()
        copy = self.layout.copies()[0]
        digest = hashlib.sha256()
        for value in copy:
            digest.update(value.tobytes())
        return {**result, "fingerprint": digest.hexdigest(), "gradient_bytes": sum(value.nbytes for value in copy)}

    def run(self) -> dict[str, Any]:
        return {**super().run(), "load": self.load}

    def per_second(self, counts: Sequence[int]) -> float:
        samples, once = self.layout.under_load(counts)
        once()
        first = self.timed(once, worker.MEASURED_REPEATS)
        # Each host has its own clock and load: the number of steps is agreed on.
        calls = max(LEAST_CALLS, math.ceil(self.layout.mean(self.job.load_seconds / first)))
        return samples / self.timed(once, calls)

    @staticmethod
    def timed(once: Any, calls: int) -> float:
        """Mean time of a call."""
        started = time.perf_counter()
        for _ in range(calls):
            once()
        return (time.perf_counter() - started) / calls


def main(training: type[ClusterTraining] = ClusterTraining) -> None:
    """Do the job of the first argument."""
    worker.main(training)
