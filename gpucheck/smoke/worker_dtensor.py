"""The layers themselves are cut: DTensor runs one program on a mesh of devices, data × model.

Each device holds a slice of both layers (columns of the first, rows of the second), and one row of
the mesh sees one shard of the batch. ``model`` is a mesh of one row: every device sees all samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpucheck.smoke.job import Shard, mesh, split
from gpucheck.smoke.worker_layout import CLASSES, IMAGE, LEARNING_RATE, Layout, Weights, finite, short

HIDDEN = 8
"""Width of the hidden layer on each device, in widths of the job."""
EVERY = "shard_every"
"""Name scope of the one program that all devices run."""


class Perceptron:
    """Two layers, so that each can be cut over any number of devices. DTensor cuts no convolution."""

    sample = (IMAGE * IMAGE * 3,)

    def __init__(self, hidden: int) -> None:
        self.shapes: list[tuple[int, ...]] = [
            (*self.sample, hidden),
            (hidden,),
            (hidden, CLASSES),
            (CLASSES,),
        ]

    @staticmethod
    def logits(tf: Any, weights: Weights, images: Any) -> Any:
        hidden = tf.nn.relu(tf.matmul(images, weights[0]) + weights[1])
        return tf.matmul(hidden, weights[2]) + weights[3]


CUT = (1, 0, 0, None)
"""For each parameter of the perceptron the axis that is cut over a row of the mesh."""


class Cut(Layout):
    """Strategies ``model`` and ``hybrid``."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self.rows, self.columns = mesh(session.job.strategy, len(session.devices) or 1)
        self.net = Perceptron(HIDDEN * session.job.width * self.columns)

    def divide(self) -> tuple[Shard, ...]:
        """One shard per row of the mesh, seen by each device of the row."""
        rows = split(self.session.job.samples(len(self.session.devices)), self.rows)
        return tuple(shard for shard in rows for _ in range(self.columns))

    def build(self, weights: list[Any]) -> None:
        tf, session = self.tf, self.session
        self.dtensor = dtensor = tf.experimental.dtensor
        self.mesh = dtensor.create_mesh([("data", self.rows), ("model", self.columns)], devices=session.devices)
        self.cuts = [
            self.layout(*("model" if axis == cut else dtensor.UNSHARDED for axis in range(weight.ndim)))
            for weight, cut in zip(weights, CUT, strict=True)
        ]
        given = [session.start(replica, weights) for replica in range(len(session.devices))]
        self.weights = [
            self.variable([self.slice(replica, number, each[number]) for replica, each in enumerate(given)], cut)
            for number, cut in enumerate(self.cuts)
        ]
        one = [tf.zeros([1, 1], tf.float64)] * len(session.devices)
        self.steps = self.variable(one, self.layout("data", "model"))
        self.one = self.pack([part + 1 for part in one], self.layout("data", "model"))
        self.fed = [0.0] * len(session.devices)
        self.counted = [0] * len(session.devices)
        self.inputs_on: list[str] = []
        self.trained = tf.function(self._train, autograph=False)
        self.inferred = tf.function(self._infer, autograph=False)

    # --- tensors on the mesh ------------------------------------------------------------------

    def layout(self, *axes: str) -> Any:
        return self.dtensor.Layout(list(axes), self.mesh)

    def slice(self, replica: int, number: int, weight: Any) -> Any:
        """What a device holds of a parameter."""
        axis = CUT[number]
        if axis is None:
            return weight
        size = weight.shape[axis] // self.columns
        first = replica % self.columns * size
        return weight[:, first : first + size] if axis else weight[first : first + size]

    def pack(self, parts: Sequence[Any], layout: Any) -> Any:
        """One tensor of the mesh from what each device shall hold."""
        placed = []
        for device, part in zip(self.session.devices, parts, strict=True):
            with self.tf.device(device):
                placed.append(self.tf.identity(part))
        return self.dtensor.pack(placed, layout)

    def variable(self, parts: Sequence[Any], layout: Any) -> Any:
        return self.dtensor.DVariable(self.pack(parts, layout))

    def held(self, variable: Any) -> list[Any]:
        """What each device holds of a variable."""
        return list(self.dtensor.unpack(variable.read_value()))

    # --- one step -----------------------------------------------------------------------------

    def _train(self, images: Any, labels: Any) -> Any:
        tf = self.tf
        with tf.name_scope(EVERY):
            with tf.GradientTape() as tape:
                loss = self.session.weigh(self.session.losses(self.weights, images, labels))
            gradients = tape.gradient(loss, self.weights)
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.assign_sub(LEARNING_RATE * gradient)
        self.steps.assign_add(self.one)
        return loss

    def _infer(self, images: Any) -> Any:
        with self.tf.name_scope(EVERY):
            outputs = self.session.logits(self.weights, images)
        self.steps.assign_add(self.one)
        return outputs

    # --- the protocol -------------------------------------------------------------------------

    def batch(self, make: Callable[[int], tuple[Any, Any]]) -> tuple[list[Any], Any, Any]:
        """What each device made, and from it the images and the labels on the mesh."""
        made = []
        for replica in range(len(self.session.devices)):
            with self.session.place(replica):
                made.append(make(replica))
        self.inputs_on = self.inputs_on or [short(images.device) for images, _ in made]
        images = self.pack([images for images, _ in made], self.layout("data", self.dtensor.UNSHARDED))
        labels = self.pack([labels for _, labels in made], self.layout("data"))
        return list(self.dtensor.unpack(images)), images, labels

    def shards(self, step: int) -> tuple[Any, Any]:
        """The batch of a step; what came to lie on each device is counted there."""
        session, tf = self.session, self.tf
        parts, images, labels = self.batch(lambda replica: session.samples(step, session.shards[replica]))
        for replica, part in enumerate(parts):
            self.fed[replica] += float(tf.reduce_sum(part))
            self.counted[replica] += part.shape[0]
        return images, labels

    def train(self, step: int) -> float:
        return float(self.trained(*self.shards(step)).numpy())

    def infer(self, step: int) -> list[Any]:
        images, _ = self.shards(step)
        return [output.numpy() for output in self.dtensor.unpack(self.inferred(images))]

    def copies(self) -> list[list[Any]]:
        """For each device the parameters of its row, put together; of one that is not cut, its own."""
        import numpy

        copies: list[list[Any]] = [[] for _ in self.session.devices]
        for weight, cut in zip(self.weights, CUT, strict=True):
            held = [part.numpy() for part in self.held(weight)]
            for replica, copy in enumerate(copies):
                first = replica - replica % self.columns
                row = held[first : first + self.columns]
                copy.append(held[replica] if cut is None else numpy.concatenate(row, axis=cut))
        return copies

    def evidence(self) -> list[dict[str, Any]]:
        placed = self.session.placements()["every"]
        steps, held = self.held(self.steps), self.held(self.weights[0])
        return [
            {
                "device": device,
                "steps": int(steps[replica].numpy().item()),
                "samples": self.counted[replica],
                "fed_difference": finite(self.session.fed_difference(self.fed[replica], self.session.shards[replica])),
                "variables_on": short(held[replica].device),
                "inputs_on": self.inputs_on[replica],
                # All devices run one program: its operations have the same names on each of them.
                "computed_on": {device: placed[device]} if placed[device] else {},
            }
            for replica, device in enumerate(self.session.devices)
        ]

    def under_load(self, counts: Sequence[int]) -> tuple[int, Callable[[], object]]:
        row = sum(counts) // self.rows
        _, images, labels = self.batch(lambda replica: self.session.load_batch(row))
        if self.session.job.mode == "infer":
            return row * self.rows, lambda: [part.numpy() for part in self.dtensor.unpack(self.inferred(images))]
        return row * self.rows, lambda: float(self.trained(images, labels).numpy())
