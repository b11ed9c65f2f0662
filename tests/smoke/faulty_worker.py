"""A worker with one fault, to show that the fault is caught: FAULT JOB FOLDER.

With a list of [FAULT, JOB] in place of a job, and FAULT ``several``, one process does one job after the
other, each as a training of its own, and prints a line with the result of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

sys.path.append(sys.argv.pop())
FAULT = sys.argv.pop(1)

from gpucheck.smoke import worker  # noqa: E402

AT_STEP = 3


class GradientsNotAveraged(worker.Training):
    def combine(self, gradients: list[Any]) -> Any:
        return [len(self.devices) * gradient for gradient in gradients]

    def gather(self, towers: list[list[Any]]) -> Any:
        return self.combine(towers[0])


class OneRowLeftOut(worker.Training):
    """What the exchange does on a mesh TensorFlow decides, so the last row's part of the sum is lost here."""

    def weigh(self, losses: Any) -> Any:
        count = losses.shape[0] or 0
        if count != self.total:
            return super().weigh(losses)
        kept = [float(index < count // 2) for index in range(count)]
        return self.tf.reduce_sum(losses * self.tf.constant(kept)) / self.total


class OtherSeed(worker.Training):
    """Replica 1 begins with other weights."""

    def start(self, replica: int, weights: list[Any]) -> list[Any]:
        return [weight + 0.01 for weight in weights] if replica == 1 else weights


class OtherSamples(worker.Training):
    """Replica 1 trains on samples of another step."""

    at = 0

    def place(self, replica: int) -> Any:
        self.at = replica
        return super().place(replica)

    def samples(self, step: int, shard: worker.Shard) -> Any:
        return super().samples(step + 1000 * (self.at == 1), shard)


class ComputedElsewhere(worker.Training):
    """All arithmetic is asked of the first device."""

    def logits(self, weights: Any, images: Any) -> Any:
        if "shard_" not in self.tf.get_current_name_scope():
            return super().logits(weights, images)
        with self.tf.device(self.devices[0]):
            return super().logits(weights, images)


class OutputsExchanged(worker.Training):
    """Replicas 0 and 1 hand in each other's outputs."""

    def infer(self) -> Any:
        honest = self.layout.infer

        def exchanged(step: int) -> Any:
            first, second, *others = honest(step)
            return [second, first, *others]

        self.layout.infer = exchanged  # type: ignore[method-assign]
        return super().infer()


class SlowDevice(worker.Training):
    """Each sample takes the second device three milliseconds more."""

    def losses(self, weights: Any, images: Any, labels: Any) -> Any:
        tf = self.tf
        losses = super().losses(weights, images, labels)
        if "shard_1" not in tf.get_current_name_scope():
            return losses
        wait = tf.numpy_function(lambda count: time.sleep(0.003 * int(count)), [tf.shape(images)[0]], [])
        with tf.control_dependencies([wait] if isinstance(wait, tf.Operation) else wait):
            return tf.identity(losses)

    def alone(self) -> Any:
        measured = super().alone()
        measured[1]["alone_per_second"] = 1 / (1 / measured[1]["alone_per_second"] + 0.003)
        return measured


class SameShard(worker.Training):
    """Every replica trains on the first shard: all agree, and all are wrong."""

    def samples(self, step: int, shard: worker.Shard) -> Any:
        return super().samples(step, worker.Shard(0, shard.count) if shard.count < self.total else shard)


class MeanOfMeans(worker.Training):
    """Right only for even shards."""

    def weigh(self, losses: Any) -> Any:
        return self.tf.reduce_mean(losses) / len(self.devices)


class NothingLearnt(worker.Training):
    def losses(self, weights: Any, images: Any, labels: Any) -> Any:
        return 0.0 * super().losses(weights, images, labels)


class NotANumber(worker.Training):
    def weigh(self, losses: Any) -> Any:
        return super().weigh(losses) * float("nan")


class ElsewhereFed(worker.Training):
    """The batch of replica 1 is made on the device of replica 0."""

    def place(self, replica: int) -> Any:
        return super().place(0 if replica == 1 else replica)


class IdleDevice(worker.Training):
    """The last device is listed, and works by itself, but gets no replica."""

    def together(self) -> Any:
        listed, self.devices = self.devices, self.devices[:-1]
        self.shards = self.job.split(len(self.devices))
        self.total = sum(shard.count for shard in self.shards)
        try:
            return super().together()
        finally:
            self.devices = listed


class Raises(worker.Training):
    def combine(self, gradients: list[Any]) -> Any:
        raise RuntimeError("no way between the cards\x1b[2J")


class ProcessLeft(worker.Training):
    def together(self) -> Any:
        subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        return super().together()


class StopsAtStep(worker.Training):
    def run(self) -> Any:
        self.channel = _Stops(self.channel)
        return super().run()


class _Stops:
    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def send(self, **message: object) -> None:
        self._channel.send(**message)
        if message.get("step") == AT_STEP:
            if FAULT == "dies":
                os._exit(9)
            time.sleep(60)


class NeverMoves(worker.Training):
    """It says that it trains, and hangs."""

    def run(self) -> Any:
        self.channel.send(phase="train", step=0)
        time.sleep(600)


class WrongAlone(worker.Training):
    """The variables on one device are not those that were given, whoever works with it."""

    def start(self, replica: int, weights: list[Any]) -> list[Any]:
        return [1.01 * weight for weight in weights] if self.devices[replica] == "CPU:1" else weights


PAIR = {"CPU:1", "CPU:2"}


class WrongPair(worker.Training):
    """A sum over both of a pair comes out too large."""

    def combine(self, gradients: list[Any]) -> Any:
        reduced = super().combine(gradients)
        return [1.5 * gradient for gradient in reduced] if set(self.devices) >= PAIR else reduced


class PairHangs(worker.Training):
    """Both of a pair together never come to their second step; the faulty way between them may be left
    out, or not."""

    def each_step(self, phase: str) -> Any:
        around = FAULT == "peers-hang" and os.environ.get("NCCL_P2P_DISABLE") == "1"
        for step in super().each_step(phase):
            if step == 1 and set(self.devices) >= PAIR and not around:
                time.sleep(600)
            yield step


class BadMemory(worker.Training):
    """One word of one device's memory has a bit that stays 1."""

    def stored(self, device: str, chunk: int, value: Any) -> Any:
        if (device, chunk) != ("CPU:1", 2):
            return value
        words = value.numpy().copy()
        words[7] |= 1 << 20
        return self.tf.constant(words)


class WarmsUp(worker.Training):
    """From the third round of a soak on, a device computes something else."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.rounds = 0
        put_back = self.layout.reset

        def reset(weights: list[Any]) -> None:
            self.rounds += 1
            put_back([1.001 * weight for weight in weights] if self.rounds > 2 else weights)

        self.layout.reset = reset  # type: ignore[method-assign]


FAULTS: dict[str, type[worker.Training]] = {
    "not-averaged": GradientsNotAveraged,
    "row-left-out": OneRowLeftOut,
    "other-seed": OtherSeed,
    "other-samples": OtherSamples,
    "computed-elsewhere": ComputedElsewhere,
    "outputs-exchanged": OutputsExchanged,
    "slow-device": SlowDevice,
    "same-shard": SameShard,
    "mean-of-means": MeanOfMeans,
    "nothing-learnt": NothingLearnt,
    "not-a-number": NotANumber,
    "elsewhere-fed": ElsewhereFed,
    "idle-device": IdleDevice,
    "raises": Raises,
    "process-left": ProcessLeft,
    "hangs": StopsAtStep,
    "dies": StopsAtStep,
    "never-moves": NeverMoves,
    "wrong-alone": WrongAlone,
    "wrong-pair": WrongPair,
    "peers-hang": PairHangs,
    "pair-hangs": PairHangs,
    "bad-memory": BadMemory,
    "warms-up": WarmsUp,
    "none": worker.Training,
}


def several(jobs: list[tuple[str, str]]) -> None:
    """A result, or an error, for each. The placer's log begins anew with each training."""
    import tempfile

    import tensorflow as tf

    channel = worker.Channel(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    silent = worker.Channel(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for fault, job in jobs:
        prints = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        os.dup2(prints.fileno(), 1)
        try:
            channel.send(result=FAULTS[fault](tf, worker.Job.from_json(job), silent, prints).run())
        except Exception as error:
            channel.send(error=repr(error))
    sys.stderr.flush()
    os._exit(0)


if FAULT == "several":
    several(json.loads(sys.argv[1]))
else:
    worker.main(FAULTS[FAULT])
