"""The child that trains, and the only module that imports TensorFlow.

It writes JSON lines to what was its standard output; TensorFlow's own prints go elsewhere. A line
holds one of ``phase`` (with ``device`` or ``step``), ``build``, ``result``, ``failed``.

Order: each device alone, then all together, then the single-device training of the same global
batches, then the speed of the group. A device that hangs or fails alone is thereby named, and one
that fails only in company points at the way between the cards.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import math
import os
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any

from gpucheck.smoke.job import Job, Shard

IMAGE = 16
"""Pixels along one side of a sample, three channels each."""
CLASSES = 10
LEARNING_RATE = 0.1
MEASURED_REPEATS = 3
WORK = ("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "MatMul")
"""The operations that do the arithmetic: where they run is where the training runs."""

_PLACED = re.compile(r"shard_(\d+)/[^:]*: \((\w+)\): \S*device:(\w+:\d+)")

Weights = Sequence[Any]


class Channel:
    """JSON lines to the parent, each flushed at once."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def send(self, **message: object) -> None:
        self._file.write(json.dumps(message) + "\n")
        self._file.flush()


class Training:
    """One data-parallel training and what can be seen of it.

    The small methods are the seams: a test replaces one of them to show that the fault is caught.
    """

    def __init__(self, tf: Any, job: Job, channel: Channel, prints: IO[str]) -> None:
        self.tf = tf
        self.job = job
        self.channel = channel
        self.prints = prints
        self.devices = self.find_devices()
        self.referee = "CPU:0"
        """Device of the single-device training: never a card that is under test."""
        self.shards = job.split(len(self.devices)) if self.devices else ()
        self.total = sum(shard.count for shard in self.shards)

    # --- devices ------------------------------------------------------------------------------

    def find_devices(self) -> list[str]:
        """Names such as ``GPU:0``. Initialises the devices, so all settings come first."""
        tf = self.tf
        # TF32 keeps ten bits of the mantissa: too coarse to compare with a CPU.
        tf.config.experimental.enable_tensor_float_32_execution(False)
        # Graph rewriting costs more here than it saves; every step runs a handful of times.
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        # The placer then prints where it puts each operation of a graph: see placements().
        tf.debugging.set_log_device_placement(True)
        if self.job.kind == "cpu":
            tf.config.set_logical_device_configuration(
                tf.config.list_physical_devices("CPU")[0],
                [tf.config.LogicalDeviceConfiguration()] * self.job.replicas,
            )
        else:
            for card in tf.config.list_physical_devices("GPU"):
                tf.config.experimental.set_memory_growth(card, True)
        names = [_short(device.name) for device in tf.config.list_logical_devices(self.job.kind.upper())]
        # Set at the start it holds for every graph; from here on leave out each single eager call.
        tf.debugging.set_log_device_placement(False)
        return names

    def describe(self) -> list[dict[str, Any]]:
        """What TensorFlow says of each device. A GPU's ``description`` holds its name and PCI bus
        id; it is None where this version does not give it, since the module is not part of the
        public interface. The parent then reads the log, which has the same text."""
        tf = self.tf
        if self.job.kind == "cpu":
            return [{"device": device} for device in self.devices]
        descriptions = {}
        with suppress(ImportError, AttributeError, ValueError, RuntimeError, tf.errors.OpError):
            from tensorflow.python.client import device_lib

            config = tf.compat.v1.ConfigProto()
            config.gpu_options.allow_growth = True
            for device in device_lib.list_local_devices(config):
                descriptions[_short(device.name)] = device.physical_device_desc
        return [
            {"device": device, "description": descriptions.get(device), "peak_bytes": self.peak_bytes(device)}
            for device in self.devices
        ]

    def peak_bytes(self, device: str) -> int | None:
        """Most memory that TensorFlow's allocator had given out; None where it keeps no count."""
        try:
            return int(self.tf.config.experimental.get_memory_info(device)["peak"])
        except (ValueError, KeyError, self.tf.errors.OpError):
            return None

    # --- model and data -----------------------------------------------------------------------

    def initial_weights(self) -> list[Any]:
        """The same weights in every run, as arrays."""
        import numpy

        width, half = self.job.width, IMAGE // 4
        shapes = [
            (3, 3, 3, width),
            (width,),
            (3, 3, width, 2 * width),
            (2 * width,),
            (half * half * 2 * width, CLASSES),
            (CLASSES,),
        ]
        random = numpy.random.default_rng(0)
        return [
            (random.standard_normal(shape) * (2 / numpy.prod(shape[:-1])) ** 0.5).astype("float32")
            if len(shape) > 1
            else numpy.zeros(shape, "float32")
            for shape in shapes
        ]

    def losses(self, weights: Weights, images: Any, labels: Any) -> Any:
        """Loss of each sample: two convolutions and a matrix product."""
        nn = self.tf.nn
        hidden = nn.relu(nn.conv2d(images, weights[0], 2, "SAME") + weights[1])
        hidden = nn.relu(nn.conv2d(hidden, weights[2], 2, "SAME") + weights[3])
        flat = self.tf.reshape(hidden, [-1, weights[4].shape[0]])
        logits = self.tf.matmul(flat, weights[4]) + weights[5]
        return nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

    def samples(self, step: int, shard: Shard) -> tuple[Any, Any]:
        """Images in [-1, 1) and labels. Sample i of step s is a function of (s, i) alone, so that
        any split of a batch sees the same samples."""
        import numpy

        word = numpy.uint64
        index: Any = numpy.arange(shard.first, shard.first + shard.count, dtype=word)[:, None]
        mixed = (word(step) << word(44)) + (index << word(20)) + numpy.arange(IMAGE * IMAGE * 3, dtype=word)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            mixed = (mixed ^ (mixed >> word(shift))) * word(factor)
        pixels = (mixed >> word(40)).astype("float32") / 2**23 - 1
        labels = pixels[:, :CLASSES].argmax(axis=1).astype("int32")
        return pixels.reshape(-1, IMAGE, IMAGE, 3), labels

    # --- the step of one replica --------------------------------------------------------------

    def weigh(self, losses: Any) -> Any:
        """This replica's part of the mean over the global batch, right for uneven shards too."""
        return self.tf.reduce_sum(losses) / self.total

    def combine(self, gradients: list[Any]) -> Any:
        """Sum the gradients over all replicas."""
        context = self.tf.distribute.get_replica_context()
        return context.all_reduce(self.tf.distribute.ReduceOp.SUM, gradients)

    def place(self, replica: int) -> Any:
        """Device on which the batch of a replica is made."""
        return self.tf.device(self.devices[replica])

    # --- phases -------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Train, compare, measure."""
        alone = self.alone()
        together = self.together()
        return {
            **together,
            "devices": [{**device, **own} for device, own in zip(self.describe(), alone, strict=True)],
            "global_batch": self.total,
        }

    def alone(self) -> list[dict[str, Any]]:
        """One update on each device by itself: its speed, and how far its result is from the
        referee's."""
        tf = self.tf
        self.initial = self.initial_weights()
        self.load = Shard(0, self.job.load_batch or max(shard.count for shard in self.shards))

        def update(weights: Weights, images: Any, labels: Any) -> list[Any]:
            with tf.GradientTape() as tape:
                tape.watch(weights)
                loss = tf.reduce_mean(self.losses(weights, images, labels))
            return [
                weight - LEARNING_RATE * gradient
                for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True)
            ]

        # Traced once, without a device: it runs where it is called.
        self.update = tf.function(update, autograph=False).get_concrete_function(
            [tf.TensorSpec(weight.shape) for weight in self.initial],
            tf.TensorSpec([None, IMAGE, IMAGE, 3]),
            tf.TensorSpec([None], tf.int32),
        )
        batch = self.samples(0, self.load)

        def on(device: str) -> tuple[list[Any], Callable[[], Any]]:
            with tf.device(device):
                weights = [tf.constant(weight) for weight in self.initial]
                images, labels = map(tf.constant, batch)

            def once() -> Any:
                with tf.device(device):
                    return [weight.numpy() for weight in self.update(weights, images, labels)]

            return once(), once

        self.channel.send(phase="alone", device=self.referee)
        expected, _ = on(self.referee)
        measured = []
        for device in self.devices:
            self.channel.send(phase="alone", device=device)
            got, once = on(device)
            measured.append(
                {
                    "alone_difference": _finite(_difference(expected, got)),
                    "alone_per_second": self.load.count / self.seconds(once),
                }
            )
        return measured

    def seconds(self, once: Callable[[], Any]) -> float:
        """Mean time of a call, over enough of them."""
        started = time.perf_counter()
        calls = 0
        while calls < MEASURED_REPEATS or time.perf_counter() - started < self.job.load_seconds:
            once()
            calls += 1
        return (time.perf_counter() - started) / calls

    def together(self) -> dict[str, Any]:
        """The training on all devices, held against the referee's training."""
        tf = self.tf
        strategy = tf.distribute.MirroredStrategy(self.devices)
        with strategy.scope():
            weights = [tf.Variable(weight) for weight in self.initial]
            # Two counters that only a replica's own graph advances, each on its own device.
            seen = [
                tf.Variable(
                    0.0,
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                )
                for _ in ("steps", "samples")
            ]

        def replica_step(images: Any, labels: Any) -> Any:
            context = tf.distribute.get_replica_context()
            replica = int(tf.get_static_value(context.replica_id_in_sync_group))
            with tf.name_scope(f"shard_{replica}"):
                with tf.GradientTape() as tape:
                    loss = self.weigh(self.losses(weights, images, labels))
                gradients = tape.gradient(loss, weights)
            for weight, gradient in zip(weights, self.combine(gradients), strict=True):
                weight.assign_sub(LEARNING_RATE * gradient)
            seen[0].assign_add(1.0)
            seen[1].assign_add(tf.cast(tf.shape(images)[0], tf.float32))
            return loss

        def step(images: Any, labels: Any) -> Any:
            return strategy.reduce(
                tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=(images, labels)), axis=None
            )

        def distribute(number: int, shards: Sequence[Shard]) -> tuple[Any, Any]:
            def batch(context: Any) -> tuple[Any, Any]:
                replica = context.replica_id_in_sync_group
                images, labels = self.samples(number, shards[replica])
                with self.place(replica):
                    return tf.constant(images), tf.constant(labels)

            images, labels = strategy.experimental_distribute_values_from_function(batch)
            return images, labels

        def each(value: Any) -> tuple[Any, ...]:
            return tuple(strategy.experimental_local_results(value))

        trained = tf.function(step, autograph=False)
        first = distribute(0, self.shards)
        losses = []
        for number in range(self.job.steps):
            self.channel.send(phase="train", step=number, steps=self.job.steps)
            losses.append(float(trained(*(distribute(number, self.shards) if number else first))))
        self.channel.send(phase="train", step=self.job.steps, steps=self.job.steps)

        copies = [each(weight) for weight in weights]
        by_replica = [[copy[index].numpy() for copy in copies] for index in range(len(self.devices))]
        steps, samples = (each(counter) for counter in seen)
        placed = self.placements()
        expected = self.reference()
        differences = [_difference(expected, values) for values in by_replica]
        return {
            "replicas": [
                {
                    "device": self.devices[index],
                    "steps": int(steps[index]),
                    "samples": int(samples[index]),
                    "variables_on": _short(copies[0][index].device),
                    "inputs_on": _short(each(first[0])[index].device),
                    "computed_on": dict(placed[index]),
                    "difference": _finite(differences[index]),
                }
                for index in range(len(self.devices))
            ],
            "max_param_difference": _finite(max(differences, key=_nan_first)),
            "replica_spread": _finite(
                max((_difference(by_replica[0], values) for values in by_replica), key=_nan_first)
            ),
            "max_param_change": _finite(_difference(self.initial, expected)),
            "loss": [_finite(losses[0]), _finite(losses[-1])],
            "together_per_second": self.together_per_second(trained, distribute),
        }

    def reference(self) -> list[Any]:
        """Weights after the same global batches on one device."""
        tf = self.tf
        self.channel.send(phase="compare")
        whole = Shard(0, self.total)
        with tf.device(self.referee):
            weights = [tf.constant(weight) for weight in self.initial]
            for number in range(self.job.steps):
                weights = self.update(weights, *map(tf.constant, self.samples(number, whole)))
        return [weight.numpy() for weight in weights]

    def together_per_second(self, trained: Any, distribute: Any) -> float:
        """Samples per second of the whole group, under the load that each device had alone."""
        self.channel.send(phase="together")
        count = len(self.devices)
        batch = distribute(0, [Shard(self.load.count * index, self.load.count) for index in range(count)])
        trained(*batch)
        return count * self.load.count / self.seconds(lambda: float(trained(*batch)))

    def placements(self) -> list[Counter[str]]:
        """For each replica: device to number of arithmetic operations that TensorFlow's placer
        put there. It prints each decision to the C library's standard output."""
        if sys.platform != "win32":
            ctypes.CDLL(None).fflush(None)
        self.prints.seek(0)
        placed: list[Counter[str]] = [Counter() for _ in self.devices]
        for line in self.prints:
            match = _PLACED.search(line)
            if match and match[2] in WORK and int(match[1]) < len(placed):
                placed[int(match[1])][match[3]] += 1
        return placed


def _short(name: str) -> str:
    """``/job:localhost/replica:0/task:0/device:GPU:0`` to ``GPU:0``."""
    return name.rpartition("device:")[2]


def _difference(left: Sequence[Any], right: Sequence[Any]) -> float:
    """Largest difference of any two parameters; not a number when one of them is not."""
    import numpy

    return float(numpy.max([numpy.max(numpy.abs(a - b)) for a, b in zip(left, right, strict=True)]))


def _nan_first(value: float) -> tuple[bool, float]:
    return math.isnan(value), value


def _finite(value: float) -> float | None:
    """JSON has no infinity and no not-a-number."""
    return value if math.isfinite(value) else None


def main(training: type[Training] = Training) -> None:
    """Do the job of the first argument, then leave at once."""
    job = Job.from_json(sys.argv[1])
    faulthandler.enable()
    faulthandler.dump_traceback_later(job.give_up_seconds, exit=True)
    # Nothing but the channel may write to the parent's pipe: descriptor 1 becomes a file.
    channel = Channel(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    prints = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
    os.dup2(prints.fileno(), 1)
    code = 1
    try:
        channel.send(phase="import")
        import tensorflow as tf

        build = tf.sysconfig.get_build_info()
        channel.send(
            build={
                "version": tf.__version__,
                "cuda": bool(build.get("is_cuda_build")),
                "rocm": bool(build.get("is_rocm_build")),
                "cuda_version": build.get("cuda_version"),
                "cudnn_version": build.get("cudnn_version"),
                "compute_capabilities": list(build.get("cuda_compute_capabilities", ())),
            }
        )
        channel.send(phase="devices")
        session = training(tf, job, channel, prints)
        channel.send(result=session.run() if session.devices else {"devices": []})
        code = 0
    except Exception as fault:  # whatever it is, the parent must hear of it
        channel.send(
            failed={
                "kind": type(fault).__name__,
                "message": str(fault)[:100_000],
                "module": fault.name if isinstance(fault, ImportError) else None,
            }
        )
        traceback.print_exc()
    finally:
        # TensorFlow takes half a second to tear itself down, and may hang in a broken driver.
        sys.stderr.flush()
        os._exit(code)
