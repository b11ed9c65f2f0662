"""The work of ``gpucheck smoke --devices cpu:N``, written by hand with TensorFlow and nothing else.

Each device by itself, ten steps on all of them, the same ten on one, and the speed of the group: what
a person would type to try a machine, without any evidence. ``bench.py`` measures smoke against it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import tensorflow as tf

STEPS, PER_REPLICA, WIDTH, RATE, REPEATS = 10, 16, 8, 0.1, 3
COUNT = int(sys.argv[1])

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * COUNT)
DEVICES = [f"CPU:{index}" for index in range(COUNT)]
TOTAL = PER_REPLICA * COUNT


def batch(step: int, first: int, count: int) -> tuple[Any, Any]:
    images = tf.random.stateless_uniform([TOTAL, 16, 16, 3], [step, TOTAL], -1.0, 1.0)
    labels = tf.argmax(tf.reshape(images, [TOTAL, -1])[:, :10], axis=1, output_type=tf.int32)
    return images[first : first + count], labels[first : first + count]


def initial() -> list[Any]:
    shapes = [(3, 3, 3, WIDTH), (WIDTH,), (3, 3, WIDTH, 2 * WIDTH), (2 * WIDTH,), (32 * WIDTH, 10), (10,)]
    return [
        tf.random.stateless_normal(shape, [index, 1], stddev=0.1) if len(shape) > 1 else tf.zeros(shape)
        for index, shape in enumerate(shapes)
    ]


def losses(weights: list[Any], images: Any, labels: Any) -> Any:
    hidden = tf.nn.relu(tf.nn.conv2d(images, weights[0], 2, "SAME") + weights[1])
    hidden = tf.nn.relu(tf.nn.conv2d(hidden, weights[2], 2, "SAME") + weights[3])
    logits = tf.matmul(tf.reshape(hidden, [-1, 32 * WIDTH]), weights[4]) + weights[5]
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def plain_update(weights: list[Any], images: Any, labels: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_mean(losses(weights, images, labels))
    return [weight - RATE * gradient for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True)]


update = tf.function(
    plain_update,
    input_signature=[
        [tf.TensorSpec(weight.shape) for weight in initial()],
        tf.TensorSpec([None, 16, 16, 3]),
        tf.TensorSpec([None], tf.int32),
    ],
)


def speed(once: Callable[[], object]) -> float:
    once()
    started = time.perf_counter()
    for _ in range(REPEATS):
        once()
    return REPEATS / (time.perf_counter() - started)


def by_itself() -> float:
    start, (images, labels) = initial(), batch(0, 0, PER_REPLICA)
    return PER_REPLICA * speed(lambda: [weight.numpy() for weight in update(start, images, labels)])


alone = []
for device in DEVICES:
    with tf.device(device):
        alone.append(by_itself())

strategy = tf.distribute.MirroredStrategy(DEVICES)
with strategy.scope():
    weights = [tf.Variable(weight) for weight in initial()]


def replica(images: Any, labels: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(losses(weights, images, labels)) / TOTAL
    gradients = tape.gradient(loss, weights)
    gradients = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.assign_sub(RATE * gradient)
    return loss


def plain_step(images: Any, labels: Any) -> Any:
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica, args=(images, labels)), axis=None)


step = tf.function(plain_step)


def distributed(number: int) -> Any:
    def part(context: Any) -> tuple[Any, Any]:
        index = context.replica_id_in_sync_group
        with tf.device(DEVICES[index]):
            return batch(number, PER_REPLICA * index, PER_REPLICA)

    return strategy.experimental_distribute_values_from_function(part)


for number in range(STEPS):
    loss = float(step(*distributed(number)))

single = initial()
for number in range(STEPS):
    single = update(single, *batch(number, 0, TOTAL))
difference = max(
    float(tf.reduce_max(tf.abs(copy - one)))
    for weight, one in zip(weights, single, strict=True)
    for copy in strategy.experimental_local_results(weight)
)
fixed = distributed(0)
together = TOTAL * speed(lambda: float(step(*fixed)))
print(f"{difference:.1e}, {sum(alone):.0f} samples/s one by one, {together:.0f} together", flush=True)
# As smoke's own child does: tearing TensorFlow down takes another half second.
os._exit(0)
