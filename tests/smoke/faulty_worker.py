"""A worker with one fault, to show that the fault is caught: FAULT JOB FOLDER."""

from __future__ import annotations

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


FAULTS: dict[str, type[worker.Training]] = {
    "not-averaged": GradientsNotAveraged,
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
    "none": worker.Training,
}

worker.main(FAULTS[FAULT])
