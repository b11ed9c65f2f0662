"""Data-parallel with one copy of the variables, as the towers of TensorFlow 1 had it: every device
reads them, and their keeper adds up the gradients and applies them once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpucheck.smoke.worker_layout import LEARNING_RATE, TALLY, Layout, short

FEW = 2
"""Up to so many cards, the first one keeps the variables: then one card at most has to fetch them."""


class Central(Layout):
    """Towers by hand: each operation is told its device, and the placer logs where it went."""

    @property
    def keeper(self) -> str:
        """Device of the variables."""
        devices = self.session.devices
        return devices[0] if len(devices) <= FEW else "CPU:0"

    def build(self, weights: list[Any]) -> None:
        tf = self.tf
        with tf.device(self.keeper):
            self.weights = [tf.Variable(weight) for weight in weights]
            self.applied = tf.Variable(tf.zeros([], tf.float64))
        self.seen = []
        for device in self.session.devices:
            with tf.device(device):
                self.seen.append(tf.Variable(tf.zeros([len(TALLY)], tf.float64)))
        self.inputs_on: list[str] = []
        self.trained = tf.function(self._train, autograph=False)
        self.inferred = tf.function(self._infer, autograph=False)

    def fetch(self, replica: int) -> list[Any]:
        """The variables as a tower reads them. Called on its device."""
        return self.session.start(replica, [self.tf.identity(weight) for weight in self.weights])

    # --- one step -----------------------------------------------------------------------------

    def _train(self, batch: list[tuple[Any, Any]]) -> Any:
        tf = self.tf
        losses, towers = [], []
        for replica, (images, labels) in enumerate(batch):
            with tf.device(self.session.devices[replica]):
                loss, sent = self.gradients(replica, self.fetch(replica), images, labels)
                self.seen[replica].assign_add(self.tally(images, sent))
            losses.append(loss)
            towers.append(sent)
        with tf.device(self.keeper):
            gradients = self.session.gather(towers)
            for weight, gradient in zip(self.weights, gradients, strict=True):
                weight.assign_sub(LEARNING_RATE * gradient)
            self.applied.assign_add(tf.cast(tf.reduce_sum(self.flat(gradients) * self.ramp(gradients)), tf.float64))
            return tf.add_n(losses)

    def _infer(self, batch: list[tuple[Any, Any]]) -> list[Any]:
        outputs = []
        for replica, (images, _) in enumerate(batch):
            with self.tf.device(self.session.devices[replica]):
                outputs.append(self.outputs(replica, self.fetch(replica), images))
                self.seen[replica].assign_add(self.tally(images))
        return outputs

    # --- the protocol -------------------------------------------------------------------------

    def batch(self, make: Callable[[int], tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """The images and labels of each tower, each made on the tower's device."""
        batch = []
        for replica in range(len(self.session.devices)):
            with self.session.place(replica):
                batch.append(make(replica))
        self.inputs_on = self.inputs_on or [short(images.device) for images, _ in batch]
        return batch

    def shards(self, step: int) -> list[tuple[Any, Any]]:
        session = self.session
        return self.batch(lambda replica: session.samples(step, session.shards[replica]))

    def train(self, step: int) -> float:
        return float(self.trained(self.shards(step)))

    def infer(self, step: int) -> list[Any]:
        return [output.numpy() for output in self.inferred(self.shards(step))]

    def copies(self) -> list[list[Any]]:
        copies = []
        for replica, device in enumerate(self.session.devices):
            with self.tf.device(device):
                copies.append([self.tf.convert_to_tensor(weight).numpy() for weight in self.fetch(replica)])
        return copies

    def reset(self, weights: list[Any]) -> None:
        for weight, value in zip(self.weights, weights, strict=True):
            weight.assign(value)

    def evidence(self) -> list[dict[str, Any]]:
        tallies = [seen.numpy() for seen in self.seen]
        for tally in tallies:
            tally[TALLY.index("received")] = float(self.applied)
        placed = self.session.placements()
        return [
            {
                **tally,
                "device": device,
                "home": self.keeper,
                "variables_on": short(self.weights[0].device),
                "inputs_on": self.inputs_on[replica],
                "computed_on": dict(placed[str(replica)]),
            }
            for replica, (device, tally) in enumerate(
                zip(self.session.devices, self.read(tallies, self.session.shards), strict=True)
            )
        ]

    def under_load(self, counts: Sequence[int]) -> tuple[int, Callable[[], object]]:
        batch = self.batch(lambda replica: self.session.load_batch(counts[replica]))
        if self.session.job.mode == "infer":
            return sum(counts), lambda: [output.numpy() for output in self.inferred(batch)]
        return sum(counts), lambda: float(self.trained(batch))
