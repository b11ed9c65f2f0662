"""Data-parallel: a copy of the net on every device, and the gradients summed over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpucheck.smoke.worker_layout import LEARNING_RATE, TALLY, Layout, short


class Mirrored(Layout):
    """``tf.distribute.MirroredStrategy``. Another strategy with one replica per device, and variables
    on each, needs only another :meth:`strategy`."""

    def strategy(self) -> Any:
        return self.session.mirror()

    def build(self, weights: list[Any]) -> None:
        tf = self.tf
        self.spread = self.strategy()
        with self.spread.scope():
            self.weights = [tf.Variable(weight) for weight in weights]
            # Only a replica's own graph advances it, on its own device.
            self.seen = tf.Variable(
                tf.zeros([len(TALLY)], tf.float64),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
        for replica in range(len(self.session.devices)):
            given = self.session.start(replica, weights)
            if given is not weights:
                for weight, value in zip(self.weights, given, strict=True):
                    self.each(weight)[replica].assign(value)
        self.inputs_on: list[str] = []
        self.trained = tf.function(self._train, autograph=False)
        self.inferred = tf.function(self._infer, autograph=False)

    def each(self, value: Any) -> tuple[Any, ...]:
        """What each replica holds of a value."""
        return tuple(self.spread.experimental_local_results(value))

    # --- one step -----------------------------------------------------------------------------

    def _replica(self) -> int:
        context = self.tf.distribute.get_replica_context()
        return self.local(int(self.tf.get_static_value(context.replica_id_in_sync_group)))

    def local(self, replica: int) -> int:
        """Number of a replica among those of this process."""
        return replica

    def _train_replica(self, images: Any, labels: Any) -> Any:
        loss, sent = self.gradients(self._replica(), self.weights, images, labels)
        received = self.session.combine(sent)
        for weight, gradient in zip(self.weights, received, strict=True):
            weight.assign_sub(LEARNING_RATE * gradient)
        self.seen.assign_add(self.tally(images, sent, received))
        return loss

    def _train(self, images: Any, labels: Any) -> Any:
        losses = self.spread.run(self._train_replica, args=(images, labels))
        return self.spread.reduce(self.tf.distribute.ReduceOp.SUM, losses, axis=None)

    def _infer_replica(self, images: Any) -> Any:
        outputs = self.outputs(self._replica(), self.weights, images)
        self.seen.assign_add(self.tally(images))
        return outputs

    def _infer(self, images: Any) -> Any:
        return self.spread.run(self._infer_replica, args=(images,))

    # --- the protocol -------------------------------------------------------------------------

    def batch(self, make: Callable[[int], tuple[Any, Any]]) -> tuple[Any, Any]:
        """The images and the labels of all replicas, each made on the replica's device."""

        def of_replica(context: Any) -> tuple[Any, Any]:
            replica = self.local(context.replica_id_in_sync_group)
            with self.session.place(replica):
                return make(replica)

        images, labels = self.spread.experimental_distribute_values_from_function(of_replica)
        self.inputs_on = self.inputs_on or [short(part.device) for part in self.each(images)]
        return images, labels

    def shards(self, step: int) -> tuple[Any, Any]:
        session = self.session
        return self.batch(lambda replica: session.samples(step, session.shards[replica]))

    def train(self, step: int) -> float:
        return float(self.trained(*self.shards(step)))

    def infer(self, step: int) -> list[Any]:
        images, _ = self.shards(step)
        return [output.numpy() for output in self.each(self.inferred(images))]

    def copies(self) -> list[list[Any]]:
        by_weight = [[copy.numpy() for copy in self.each(weight)] for weight in self.weights]
        return [list(copy) for copy in zip(*by_weight, strict=True)]

    def reset(self, weights: list[Any]) -> None:
        for weight, value in zip(self.weights, weights, strict=True):
            for copy in self.each(weight):
                copy.assign(value)

    def evidence(self) -> list[dict[str, Any]]:
        tallies = self.read([tally.numpy() for tally in self.each(self.seen)], self.session.shards)
        placed = self.session.placements()
        return [
            {
                **tally,
                "device": device,
                "variables_on": short(self.each(self.weights[0])[replica].device),
                "inputs_on": self.inputs_on[replica],
                "computed_on": dict(placed[str(replica)]),
            }
            for replica, (device, tally) in enumerate(zip(self.session.devices, tallies, strict=True))
        ]

    def under_load(self, counts: Sequence[int]) -> tuple[int, Callable[[], object]]:
        images, labels = self.batch(lambda replica: self.session.load_batch(counts[replica]))
        if self.session.job.mode == "infer":
            return sum(counts), lambda: [output.numpy() for output in self.each(self.inferred(images))]
        return sum(counts), lambda: float(self.trained(images, labels))
