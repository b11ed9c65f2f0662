"""What every way to lay a net out over devices answers to, and what they share.

A :class:`Layout` belongs to one :class:`~gpucheck.smoke.worker.Training`, which owns the data, the
referee and the comparison; the layout owns variables, graphs and the counters on the devices. The
training calls, in this order:

1. ``build(weights)``: make the variables from arrays, and the counters;
2. ``train(step)`` or ``infer(step)`` for each step of the job: the first gives the loss, the second
   the outputs of each replica, as arrays in the order of the samples of its shard;
3. ``copies()``: the parameters as each replica holds them, as arrays;
4. ``evidence()``: one mapping per device that took part, see there;
5. ``under_load(counts)``: for so many samples per device, the samples of a step in all and a call that
   does it, to be timed.

Placement is what TensorFlow's placer logged for operations under the name scope ``shard_<replica>``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpucheck.smoke.job import Shard
    from gpucheck.smoke.worker import Training

LEARNING_RATE = 0.1
IMAGE = 16
"""Pixels along one side of a sample, three channels each."""
CLASSES = 10

TALLY = ("steps", "samples", "fed", "sent", "size", "received")
"""What a replica counts, on its own device and in its own graph: steps; samples; the sum of its
images; of its gradients before they are combined the checksum and the size that rounding of it goes
by; and the checksum of what came back."""

Weights = Sequence[Any]


def short(name: str) -> str:
    """``/job:localhost/replica:0/task:0/device:GPU:0`` to ``GPU:0``."""
    return name.rpartition("device:")[2]


def finite(value: float) -> float | None:
    """JSON has no infinity and no not-a-number."""
    return value if math.isfinite(value) else None


def difference(left: Sequence[Any], right: Sequence[Any]) -> float:
    """Largest difference of any two parameters; not a number when one of them is not."""
    import numpy

    return float(numpy.max([numpy.max(numpy.abs(a - b)) for a, b in zip(left, right, strict=True)]))


def spread_of(copies: Sequence[Sequence[Any]]) -> float:
    """Largest difference of any two copies of a parameter from the first."""
    return max((difference(copies[0], copy) for copy in copies), key=nan_first)


def nan_first(value: float) -> tuple[bool, float]:
    """Sort key under which not-a-number is the largest."""
    return math.isnan(value), value


class Convolutional:
    """Two convolutions and a matrix product."""

    sample = (IMAGE, IMAGE, 3)

    def __init__(self, width: int) -> None:
        half = IMAGE // 4
        self.shapes: list[tuple[int, ...]] = [
            (3, 3, 3, width),
            (width,),
            (3, 3, width, 2 * width),
            (2 * width,),
            (half * half * 2 * width, CLASSES),
            (CLASSES,),
        ]

    @staticmethod
    def logits(tf: Any, weights: Weights, images: Any) -> Any:
        hidden = tf.nn.relu(tf.nn.conv2d(images, weights[0], 2, "SAME") + weights[1])
        hidden = tf.nn.relu(tf.nn.conv2d(hidden, weights[2], 2, "SAME") + weights[3])
        flat = tf.reshape(hidden, [-1, weights[4].shape[0]])
        return tf.matmul(flat, weights[4]) + weights[5]


class Layout:
    """Base of the layouts: the step of one replica, and how its tally becomes evidence."""

    net: Any
    """``shapes`` of the parameters, shape of a ``sample``, and ``logits``."""

    def __init__(self, session: Training) -> None:
        self.session = session
        self.tf = session.tf
        self.net = Convolutional(session.job.width)

    def divide(self) -> tuple[Shard, ...]:
        """The part of the global batch that each device sees."""
        return self.session.job.split(len(self.session.devices))

    # --- what a layout must answer ------------------------------------------------------------

    def build(self, weights: list[Any]) -> None:
        raise NotImplementedError

    def train(self, step: int) -> float:
        raise NotImplementedError

    def infer(self, step: int) -> list[Any]:
        raise NotImplementedError

    def copies(self) -> list[list[Any]]:
        raise NotImplementedError

    def evidence(self) -> list[dict[str, Any]]:
        """Per device: ``device``, ``steps``, ``samples``, ``variables_on``, ``inputs_on``,
        ``computed_on`` (device to number of operations) and, where the layout can tell, what
        :meth:`read` gives of the tally."""
        raise NotImplementedError

    def under_load(self, counts: Sequence[int]) -> tuple[int, Callable[[], object]]:
        raise NotImplementedError

    def reset(self, weights: list[Any]) -> None:
        """Put the variables back to such arrays. Only what can be soaked needs it."""
        raise NotImplementedError

    # --- shared -------------------------------------------------------------------------------

    def gradients(self, replica: int, weights: Weights, images: Any, labels: Any) -> tuple[Any, list[Any]]:
        """Loss and gradients of one replica, before they are combined."""
        tf = self.tf
        with tf.name_scope(f"shard_{replica}"):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                loss = self.session.weigh(self.session.losses(weights, images, labels))
            return loss, tape.gradient(loss, weights)

    def outputs(self, replica: int, weights: Weights, images: Any) -> Any:
        """Logits of one replica."""
        with self.tf.name_scope(f"shard_{replica}"):
            return self.session.logits(weights, images)

    def tally(self, images: Any, sent: Sequence[Any] = (), received: Sequence[Any] = ()) -> Any:
        """What one step adds to the counters of a replica."""
        tf = self.tf
        counted = [1.0, tf.size(images, tf.float32) / math.prod(images.shape[1:]), tf.reduce_sum(images), 0.0, 0.0, 0.0]
        if sent:
            ramp = self.ramp(sent)
            terms = self.flat(sent) * ramp
            counted[3:] = [tf.reduce_sum(terms), tf.reduce_sum(tf.abs(terms)), 0.0]
            if received:
                counted[5] = tf.reduce_sum(self.flat(received) * ramp)
        return tf.cast(tf.stack(counted), tf.float64)

    def flat(self, tensors: Sequence[Any]) -> Any:
        """All of them in one row."""
        return self.tf.concat([self.tf.reshape(tensor, [-1]) for tensor in tensors], 0)

    def ramp(self, tensors: Sequence[Any]) -> Any:
        """Factors of a checksum. It adds up as the tensors do, so that the sum of all replicas' can be
        held against that of their sum. A plain sum would not see that two parameters were exchanged,
        nor anything of the last bias, whose gradients always add up to nothing."""
        count = sum(math.prod(tensor.shape) for tensor in tensors)
        return self.tf.range(0.5 * count, 1.5 * count) / count

    def read(self, tallies: Sequence[Any], shards: Sequence[Shard]) -> list[dict[str, Any]]:
        """Of the tallies of all replicas: ``steps``, ``samples``, ``fed_difference`` (share by which
        the sum of the images differs from that of the shard) and ``reduced_difference`` (share by
        which what came back differs from the sum of what all sent). The last is left out where
        nothing was exchanged, or no sum was sent that anything could be held against."""
        named = [dict(zip(TALLY, map(float, tally), strict=True)) for tally in tallies]
        sent, size = (sum(one[key] for one in named) for key in ("sent", "size"))
        read: list[dict[str, Any]] = []
        for one, shard in zip(named, shards, strict=True):
            fed = self.session.fed_difference(one["fed"], shard)
            counted = {"steps": int(one["steps"]), "samples": int(one["samples"]), "fed_difference": finite(fed)}
            if size and math.isfinite(sent):
                counted["reduced_difference"] = finite(abs(one["received"] - sent) / size)
            read.append(counted)
        return read
