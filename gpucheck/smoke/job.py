"""The order that the parent gives to the worker. Standard library only: both sides load it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

PER_REPLICA = 16
"""Samples of one step on one device: enough for a gradient, small enough to compare on a CPU."""


JOIN = " + "
"""Between the names of devices that work together."""

Strategy = Literal["mirrored", "central", "model", "hybrid"]
Mode = Literal["train", "infer"]
Division = Literal["even", "auto"]


@dataclass(frozen=True, slots=True)
class Shard:
    """Samples ``first`` to ``first + count - 1`` of a step's global batch."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of a closer look.

    Attributes:
        what: ``train`` a few steps; ``sum`` what is known; ``fill`` the memory and read it back.
        devices: TensorFlow's names; of a ``fill`` one.
        size: Bytes per device; None for a ``fill`` until the device gives no more.
        way: Of a ``sum``, the cross-device operations to use: a key of ``worker_deep.WAYS``.
    """

    what: Literal["train", "sum", "fill"]
    devices: tuple[str, ...]
    size: int | None = None
    way: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What to train. Everything in it is a number, so that both runs of a training are the same.

    Attributes:
        kind: ``gpu`` for every GPU that TensorFlow lists, ``cpu`` for logical CPU devices.
        replicas: Logical CPU devices to make; for GPUs the number that is hoped for, since only
            TensorFlow knows how many it lists.
        steps: Training steps.
        global_batch: Samples of a step over all replicas; None gives :data:`PER_REPLICA` to each.
        shards: Who trains on what, only to prescribe an uneven split; None divides evenly.
        width: Channels of the first convolution.
        load_batch: Samples per device while speed is measured; None means as in training.
        load_seconds: Shortest time under load per measurement. NVML refreshes its utilisation
            a few times a second, so a GPU needs more than one such period.
        give_up_seconds: After this long the worker ends itself, should its parent be gone.
        strategy: How the net is laid out over the devices.
        mode: ``infer`` for forward passes only.
        by_speed: Each device gets a share of the batch by the speed it has alone.
        tf_config: For a training on several hosts, who they are and which this is; ``replicas`` and
            ``shards`` are then of this host, and ``global_batch`` of all.
        soak_seconds: Time to repeat the training under load after everything else.
        tasks: A closer look in place of the training.
    """

    kind: Literal["gpu", "cpu"]
    replicas: int
    steps: int = 10
    global_batch: int | None = None
    shards: tuple[Shard, ...] | None = None
    width: int = 8
    load_batch: int | None = None
    load_seconds: float = 0.0
    give_up_seconds: float = 600.0
    strategy: Strategy = "mirrored"
    mode: Mode = "train"
    by_speed: bool = False
    tf_config: str | None = None
    soak_seconds: float = 0.0
    tasks: tuple[Task, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        fields = json.loads(text)
        if fields["shards"] is not None:
            fields["shards"] = tuple(Shard(**shard) for shard in fields["shards"])
        fields["tasks"] = tuple(Task(**{**task, "devices": tuple(task["devices"])}) for task in fields["tasks"])
        return cls(**fields)

    def split(self, replicas: int) -> tuple[Shard, ...]:
        """The shard of each replica, in order."""
        if self.shards is not None:
            return self.shards
        return split(self.samples(replicas), replicas)

    def samples(self, replicas: int) -> int:
        """Samples of a step where no shards are prescribed."""
        return self.global_batch or PER_REPLICA * replicas


def split(global_batch: int, replicas: int) -> tuple[Shard, ...]:
    """Divide a batch; the first replicas take one sample more where it does not come out even.

    ValueError for fewer samples than replicas: TensorFlow cannot convolve an empty batch.
    """
    if global_batch < replicas:
        raise ValueError(f"{global_batch} samples are too few for {replicas} replicas")
    least, more = divmod(global_batch, replicas)
    counts = [least + (index < more) for index in range(replicas)]
    return _in_a_row(counts)


def mesh(strategy: Strategy, devices: int) -> tuple[int, int]:
    """Rows and columns of devices: a row shares a shard of the batch, a column a slice of the layers.

    ValueError where ``hybrid`` cannot have at least two of both.
    """
    if strategy != "hybrid":
        return 1, devices
    columns = max(number for number in range(1, devices + 1) if devices % number == 0 and number**2 <= devices)
    if columns == 1:
        raise ValueError(f"{devices} devices make no mesh of at least two rows and two columns")
    return devices // columns, columns


def by_speed(global_batch: int, speeds: Sequence[float]) -> tuple[Shard, ...]:
    """Divide a batch so that each share takes its device about as long: shares go by speed, rounded
    so that they add up (largest remainders first), and no device goes without.

    ValueError for fewer samples than devices.
    """
    if global_batch < len(speeds):
        raise ValueError(f"{global_batch} samples are too few for {len(speeds)} replicas")
    # Everybody has one; the rest goes by speed.
    rest = global_batch - len(speeds)
    wanted = [max(0.0, global_batch * speed / sum(speeds) - 1) for speed in speeds]
    scale = rest / sum(wanted) if sum(wanted) else 0.0
    exact = [share * scale for share in wanted]
    counts = [1 + int(share) for share in exact]
    by_remainder = sorted(range(len(speeds)), key=lambda index: int(exact[index]) - exact[index])
    for index in by_remainder[: global_batch - sum(counts)]:
        counts[index] += 1
    return _in_a_row(counts)


def _in_a_row(counts: Sequence[int]) -> tuple[Shard, ...]:
    return tuple(Shard(sum(counts[:index]), count) for index, count in enumerate(counts))
