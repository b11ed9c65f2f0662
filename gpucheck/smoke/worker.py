"""The child that trains, and the only module that imports TensorFlow; its neighbours ``worker_*.py``
are loaded here only, and get TensorFlow handed in.

It writes JSON lines to what was its standard output; TensorFlow's own prints go elsewhere. A line
holds one of ``phase`` (with ``device`` or ``step``), ``build``, ``result``, ``failed``.

Order: each device alone, then all together, then the same work on one device, then the speed of the
group. A device that hangs or fails alone is thereby named, and one that fails only in company points
at the way between the cards.

How the parts fit together, for whoever adds one:

- :class:`Training` is the session: devices, samples, the referee, the comparison. ``run()`` calls
  ``alone()`` and ``together()``; a further phase is one more method that ``run()`` calls, whose
  mapping it merges into the result, and that sends ``channel.send(phase=...)`` before it starts.
- A strategy is a :class:`~gpucheck.smoke.worker_layout.Layout` (build, train or infer step by step,
  copies, evidence, under_load), registered in :data:`LAYOUTS` under its name in ``Job.strategy``.
- A test breaks one seam (``samples``, ``weigh``, ``combine``, ``place``, ``start``, ...) in a subclass
  and hands it to :func:`main`.

``result`` is ``{"devices": [...], "replicas": [...], ...}``: ``devices`` has one entry per device that
was listed (see ``describe`` and ``alone``), ``replicas`` one per device that took part (``evidence``
of the layout, ``difference``); for the rest see :meth:`Training.together`. Numbers that are infinite
or not numbers are null.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, ClassVar

from gpucheck.smoke.job import Job, Shard, by_speed
from gpucheck.smoke.worker_central import Central
from gpucheck.smoke.worker_deep import Examination, soak
from gpucheck.smoke.worker_dtensor import Cut
from gpucheck.smoke.worker_layout import (
    CLASSES,
    IMAGE,
    LEARNING_RATE,
    Layout,
    Weights,
    difference,
    finite,
    nan_first,
    short,
    spread_of,
)
from gpucheck.smoke.worker_mirrored import Mirrored

LAYOUTS: dict[str, type[Layout]] = {
    "mirrored": Mirrored,
    "central": Central,
    "model": Cut,
    "hybrid": Cut,
}
MEASURED_REPEATS = 3
WORK = ("Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "MatMul")
"""The operations that do the arithmetic: where they run is where the training runs."""

_PLACED = re.compile(r"shard_(\w+?)/[^:]*: \((\w+)\): \S*device:(\w+:\d+)")


class Channel:
    """JSON lines to the parent, each flushed at once."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def send(self, **message: object) -> None:
        self._file.write(json.dumps(message) + "\n")
        self._file.flush()


class Training:
    """One training over all devices and what can be seen of it.

    The small methods are the seams: a test replaces one of them to show that the fault is caught.
    """

    layouts: ClassVar[Mapping[str, type[Layout]]] = LAYOUTS

    def __init__(self, tf: Any, job: Job, channel: Channel, prints: IO[str]) -> None:
        self.tf = tf
        self.job = job
        self.channel = channel
        self.prints = prints
        self.mirrors = 0
        self.devices = self.find_devices()
        self.referee = "CPU:0"
        """Device of the single-device training: never a card that is under test."""
        self.layout = self.layouts[job.strategy](self)
        self.shards = self.layout.divide() if self.devices else ()
        """The part of the global batch that each device sees; several may see the same."""
        self.total = max((shard.first + shard.count for shard in self.shards), default=0)

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
        names = self.list_devices()
        # Set at the start it holds for every graph; from here on leave out each single eager call.
        tf.debugging.set_log_device_placement(False)
        return names

    def list_devices(self) -> list[str]:
        """The devices of the kind that was asked for."""
        listed = self.tf.config.list_logical_devices(self.job.kind.upper())
        return [short(device.name) for device in listed]

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
                descriptions[short(device.name)] = device.physical_device_desc
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

        random = numpy.random.default_rng(0)
        return [
            (random.standard_normal(shape) * (2 / numpy.prod(shape[:-1])) ** 0.5).astype("float32")
            if len(shape) > 1
            else numpy.zeros(shape, "float32")
            for shape in self.layout.net.shapes
        ]

    def logits(self, weights: Weights, images: Any) -> Any:
        """Outputs of the net."""
        return self.layout.net.logits(self.tf, weights, images)

    def losses(self, weights: Weights, images: Any, labels: Any) -> Any:
        """Loss of each sample."""
        return self.tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=self.logits(weights, images))

    def draw(self, seed: tuple[int, int], count: int) -> Any:
        """Images in [-1, 1). TensorFlow documents that stateless random numbers are the same on CPU
        and GPU."""
        return self.tf.random.stateless_uniform([count, *self.layout.net.sample], seed, -1.0, 1.0)

    def labelled(self, images: Any) -> tuple[Any, Any]:
        """Images, and labels that can be learnt from them."""
        tf = self.tf
        labels = tf.argmax(tf.reshape(images, [len(images), -1])[:, :CLASSES], axis=1, output_type=tf.int32)
        return images, labels

    def load_batch(self, count: int) -> tuple[Any, Any]:
        """As many samples, for a measurement; made on the device where this is called."""
        return self.labelled(self.draw((0, 0), count))

    def samples(self, step: int, shard: Shard) -> tuple[Any, Any]:
        """A part of a step's global batch, made on the device where this is called."""
        return self.part(step, shard)

    def part(self, step: int, shard: Shard) -> tuple[Any, Any]:
        """The batch is drawn in blocks, each from a seed of its own, so that any split of it sees the
        same samples and none has to be sent."""
        block = max(1, self.total // len(self.devices))
        first, end = shard.first // block, -(-(shard.first + shard.count) // block)
        images = self.tf.concat([self.draw((step, number), block) for number in range(first, end)], 0)
        begin = shard.first - first * block
        return self.labelled(images[begin : begin + shard.count])

    def mirror(self, operations: Any = None) -> Any:
        """A MirroredStrategy over the devices, by other cross-device operations if they are given.

        TensorFlow numbers the groups of each strategy from one on, so that a second one over other
        devices would meet the first one's group. Only from the second on are they kept apart, by an
        attribute of the class that is not public."""
        kind = self.tf.distribute.MirroredStrategy
        if self.mirrors:
            kind = type("MirroredStrategy", (kind,), {"_collective_key_base": 1000 * self.mirrors})
        self.mirrors += 1
        return kind(self.devices, cross_device_ops=operations)

    # --- the step of one replica --------------------------------------------------------------

    def start(self, replica: int, weights: list[Any]) -> list[Any]:
        """The weights that a replica begins with; of central variables, what it reads in every step."""
        return weights

    def weigh(self, losses: Any) -> Any:
        """This replica's part of the mean over the global batch, right for uneven shards too."""
        return self.tf.reduce_sum(losses) / self.total

    def combine(self, gradients: list[Any]) -> Any:
        """Sum the gradients over all replicas. Called in a replica's context."""
        context = self.tf.distribute.get_replica_context()
        return context.all_reduce(self.tf.distribute.ReduceOp.SUM, gradients)

    def gather(self, towers: list[list[Any]]) -> list[Any]:
        """The same sum where one device keeps the variables. Called on that device."""
        return [self.tf.add_n(gradients) for gradients in zip(*towers, strict=True)]

    def stored(self, device: str, chunk: int, value: Any) -> Any:
        """What the memory of a device holds in a chunk that was filled. Called on it."""
        return value

    def place(self, replica: int) -> Any:
        """Device on which the batch of a replica is made."""
        return self.tf.device(self.devices[replica])

    # --- phases -------------------------------------------------------------------------------

    def leave(self) -> None:
        """What is to be done after the result was sent."""

    def run(self) -> dict[str, Any]:
        """Train, compare, measure; or do the tasks of a closer look."""
        if self.job.tasks:
            return Examination(self).run()
        alone = self.alone()
        self.divide([device["alone_per_second"] for device in alone])
        together = self.together()
        if self.job.soak_seconds:
            together["soak"] = soak(self, together["together_per_second"])
        return {
            **together,
            "devices": [{**device, **own} for device, own in zip(self.describe(), alone, strict=True)],
            "global_batch": self.total,
        }

    def prepare(self) -> None:
        """The weights at the start, and the work of one device."""
        tf = self.tf
        self.initial = self.initial_weights()
        self.load = self.job.load_batch or max(shard.count for shard in self.shards)

        def update(weights: Weights, images: Any, labels: Any) -> list[Any]:
            with tf.GradientTape() as tape:
                tape.watch(weights)
                loss = tf.reduce_mean(self.losses(weights, images, labels))
            return [
                weight - LEARNING_RATE * gradient
                for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True)
            ]

        def infer(weights: Weights, images: Any, labels: Any) -> list[Any]:
            return [self.logits(weights, images)]

        # Traced once, without a device: it runs where it is called.
        work = infer if self.job.mode == "infer" else update
        self.work = tf.function(work, autograph=False).get_concrete_function(
            [tf.TensorSpec(weight.shape) for weight in self.initial],
            tf.TensorSpec([None, *self.layout.net.sample]),
            tf.TensorSpec([None], tf.int32),
        )

    def alone(self) -> list[dict[str, Any]]:
        """One update (or one inference) on each device by itself: its speed, and how far its result
        is from the referee's."""
        tf = self.tf
        self.prepare()

        def on(device: str, count: int) -> Callable[[], list[Any]]:
            with tf.device(device):
                weights = [tf.constant(weight) for weight in self.initial]
                images, labels = self.load_batch(count)

            def once() -> list[Any]:
                with tf.device(device):
                    return [value.numpy() for value in self.work(weights, images, labels)]

            return once

        # A few samples are enough to compare: the referee would take long over a card's full load.
        few = max(shard.count for shard in self.shards)
        self.channel.send(phase="alone", device=self.referee)
        expected = on(self.referee, few)()
        measured = []
        for device in self.devices:
            self.channel.send(phase="alone", device=device)
            off = difference(expected, on(device, few)())
            once = on(device, self.load)
            once()
            speed = self.load / self.seconds(once)
            measured.append({"alone_difference": finite(off), "alone_per_second": speed})
        return measured

    def seconds(self, once: Callable[[], Any]) -> float:
        """Mean time of a call, over enough of them."""
        started = time.perf_counter()
        calls = 0
        while calls < MEASURED_REPEATS or time.perf_counter() - started < self.job.load_seconds:
            once()
            calls += 1
        return (time.perf_counter() - started) / calls

    def divide(self, speeds: Sequence[float]) -> None:
        """Give each device a share of the batch by its speed, where that is asked for."""
        self.load_counts = [self.load] * len(self.devices)
        if self.job.by_speed:
            self.shards = by_speed(self.total, speeds)
            self.load_counts = [shard.count for shard in by_speed(self.load * len(speeds), speeds)]

    def together(self) -> dict[str, Any]:
        """The work on all devices, held against the referee's.

        ``replicas``: the layout's evidence, with ``difference`` (of parameters, or of outputs);
        ``max_param_difference``, ``max_output_difference``: the largest, of what was compared;
        ``start_difference``: between the parameters that any replica began with and those it was given;
        ``replica_spread``: between the parameters of replicas after the last step;
        ``max_param_change``: how far training moved them; ``max_output``: the largest output;
        ``loss``: of the first and of the last step; ``together_per_second``, and with shares by speed
        ``even_per_second``.
        """
        self.layout.build(self.initial)
        started = self.layout.copies()
        compared = self.infer() if self.job.mode == "infer" else self.train()
        copies = self.layout.copies()
        differences = compared.pop("differences")
        evidence = self.layout.evidence()
        return {
            **compared,
            "replicas": [{**one, "difference": finite(off)} for one, off in zip(evidence, differences, strict=True)],
            "start_difference": finite(max((difference(self.initial, copy) for copy in started), key=nan_first)),
            "replica_spread": finite(spread_of(copies)),
            **self.speeds(),
        }

    def train(self) -> dict[str, Any]:
        """Every step on all devices, then on one, and how far each replica's parameters differ."""
        losses = [self.layout.train(step) for step in self.each_step("train")]
        expected = self.reference()
        differences = [difference(expected, values) for values in self.layout.copies()]
        return {
            "differences": differences,
            "max_param_difference": finite(max(differences, key=nan_first)),
            "max_param_change": finite(difference(self.initial, expected)),
            "loss": [finite(losses[0]), finite(losses[-1])],
        }

    def infer(self) -> dict[str, Any]:
        """The same for outputs, replica by replica."""
        import numpy

        got = [self.layout.infer(step) for step in self.each_step("infer")]
        expected = self.reference_outputs()
        differences = [
            max(
                (
                    difference([whole[shard.first : shard.first + shard.count]], [outputs[replica]])
                    for whole, outputs in zip(expected, got, strict=True)
                ),
                key=nan_first,
            )
            for replica, shard in enumerate(self.shards)
        ]
        return {
            "differences": differences,
            "max_output_difference": finite(max(differences, key=nan_first)),
            "max_output": finite(float(max(numpy.abs(whole).max() for whole in expected))),
        }

    def each_step(self, phase: str) -> Iterator[int]:
        """The numbers of the steps, each with a sign of life before it."""
        for step in range(self.job.steps):
            self.channel.send(phase=phase, step=step, steps=self.job.steps)
            yield step
        self.channel.send(phase=phase, step=self.job.steps, steps=self.job.steps)

    def reference(self) -> list[Any]:
        """Weights after the same global batches on one device."""
        tf = self.tf
        self.channel.send(phase="compare")
        with tf.device(self.referee):
            weights = [tf.constant(weight) for weight in self.initial]
            for images, labels in self.global_batches():
                weights = self.work(weights, images, labels)
        return [weight.numpy() for weight in weights]

    def reference_outputs(self) -> list[Any]:
        """Outputs for the same global batches on one device, step by step."""
        tf = self.tf
        self.channel.send(phase="compare")
        with tf.device(self.referee):
            weights = [tf.constant(weight) for weight in self.initial]
            return [self.work(weights, images, labels)[0].numpy() for images, labels in self.global_batches()]

    def global_batches(self) -> Iterator[tuple[Any, Any]]:
        """All samples of each step. Notes what the images of each shard add up to."""
        self.should_be_fed = dict.fromkeys(self.shards, 0.0)
        for step in range(self.job.steps):
            images, labels = self.part(step, Shard(0, self.total))
            for shard in set(self.shards):
                part = images[shard.first : shard.first + shard.count]
                self.should_be_fed[shard] += float(self.tf.reduce_sum(part))
            yield images, labels

    def fed_difference(self, fed: float, shard: Shard) -> float:
        """How far the sum of the images that a replica saw is from that of its shard, as a share of
        the sum of their sizes."""
        size = self.job.steps * shard.count * IMAGE * IMAGE * 3 / 2
        return abs(fed - self.should_be_fed[shard]) / size

    def speeds(self) -> dict[str, Any]:
        """Samples per second of the whole group, under the load that each device had alone."""
        self.channel.send(phase="together")
        found = {"together_per_second": self.per_second(self.load_counts)}
        if self.job.by_speed:
            found["even_per_second"] = self.per_second([self.load] * len(self.devices))
        return found

    def per_second(self, counts: Sequence[int]) -> float:
        samples, once = self.layout.under_load(counts)
        once()
        return samples / self.seconds(once)

    def placements(self) -> Mapping[str, Counter[str]]:
        """For each name scope ``shard_<name>``: device to number of arithmetic operations that
        TensorFlow's placer put there. It prints each decision to the C library's standard output."""
        if sys.platform != "win32":
            ctypes.CDLL(None).fflush(None)
        self.prints.seek(0)
        placed: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for line in self.prints:
            match = _PLACED.search(line)
            if match and match[2] in WORK:
                placed[match[1]][match[3]] += 1
        return placed


def main(training: type[Training] = Training) -> None:
    """Do the job of the first argument, then leave at once. A parent that is killed takes this process with
    it: a card would stay in use, and other hosts would wait."""
    job = Job.from_json(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
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
        session.leave()
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
