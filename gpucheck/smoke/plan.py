"""What to train on, decided from what was read of the machine. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gpucheck.errors import UsageError
from gpucheck.findings import Evidence, Finding, Severity, finding
from gpucheck.smoke.job import Division, Job, Mode, Strategy, mesh
from gpucheck.smoke.report import Verdict
from gpucheck.text import plural, say

if TYPE_CHECKING:
    from gpucheck.facts import Machine, Nvml, NvmlGpu

MOST_LOGICAL = 64
LEAST_WIDTH, MOST_WIDTH = 64, 256
"""Channels of the first convolution on a GPU."""
LEAST_LOAD_BATCH, MOST_LOAD_BATCH, USUAL_LOAD_BATCH = 256, 32768, 2048
"""Samples per card under load; the last where the card's memory was not read."""
LOAD_SHARE = 0.25
"""Share of the free memory that the load may fill. TensorFlow's allocator grows in steps of twice the
size, and the convolution's workspaces are beside it."""
LOAD_SECONDS, LEAST_LOAD_SECONDS = 10.0, 1.0
"""Time under load of all measurements together, and the least of one: NVML refreshes its utilisation
a few times a second."""

_ALLOTMENTS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Variables by which a user, a container runtime or a scheduler grants some cards only."""


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """``--devices``: ``auto``, ``gpu``, or ``cpu`` with a number of logical devices."""

    kind: Literal["auto", "gpu", "cpu"]
    count: int | None = None

    @classmethod
    def parse(cls, text: str) -> DeviceRequest:
        """Read ``auto``, ``gpu`` or ``cpu:N``. UsageError for anything else."""
        kind, colon, number = text.strip().lower().partition(":")
        if kind in ("auto", "gpu") and not colon:
            return cls("auto" if kind == "auto" else "gpu")
        if kind == "cpu" and number.isascii() and number.isdigit() and 1 <= int(number) <= MOST_LOGICAL:
            return cls("cpu", int(number))
        raise UsageError(
            say("{text} names no devices.", text=repr(text)),
            input="--devices",
            hint=say("use auto, gpu or cpu:N with N from 1 to {most}", most=MOST_LOGICAL),
        )


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU as far as a training needs to know it."""

    address: str
    vendor: str
    name: str | None = None
    uuid: str | None = None
    in_nvml: bool = False
    processes: tuple[int, ...] | None = None
    """Processes with a compute context; None where that was not read."""
    free_bytes: int | None = None
    """Memory that was not in use; None where that was not read."""


@dataclass(frozen=True, slots=True)
class Train:
    """Train, and expect ``cards`` to take part."""

    job: Job
    cards: tuple[Card, ...] = ()
    left_out: tuple[Card, ...] = ()
    """Cards that are not expected to take part."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables to set for the worker."""
    findings: tuple[Finding, ...] = ()
    """What is worth saying before the training starts."""


@dataclass(frozen=True, slots=True)
class DoNotTrain:
    """Nothing to train on, with the reason."""

    verdict: Verdict
    headline: str
    cards: tuple[Card, ...] = ()
    findings: tuple[Finding, ...] = ()


def cards_of(machine: Machine) -> tuple[Card, ...] | None:
    """Every GPU that PCI or NVML showed, in the order of addresses; None when neither could look."""
    if machine.gpus is None:
        return None
    return tuple(
        Card(
            address=gpu.address,
            vendor=gpu.vendor,
            name=gpu.name,
            uuid=gpu.nvml.uuid if gpu.nvml else None,
            in_nvml=gpu.nvml is not None,
            processes=gpu.nvml.processes if gpu.nvml else None,
            free_bytes=_free(gpu.nvml) if gpu.nvml else None,
        )
        for gpu in sorted(machine.gpus, key=lambda gpu: gpu.address)
    )


def _free(card: NvmlGpu) -> int | None:
    if card.memory_total_bytes is None or card.memory_used_bytes is None:
        return None
    return max(0, card.memory_total_bytes - card.memory_used_bytes)


def granted(cards: tuple[Card, ...], environ: Mapping[str, str]) -> tuple[Card, ...]:
    """The cards that this process may expect to use. A card that no declared allotment hides is
    expected, whether or not the driver knows it."""
    declared = {name for name in _ALLOTMENTS if name in environ} - {
        name for name in _ALLOTMENTS[1:] if environ.get(name) in ("all", "void", "")
    }
    if not declared:
        return cards
    # Inside a container or a job NVML lists only what was granted, while PCI shows every card.
    reachable = tuple(card for card in cards if card.in_nvml) or cards
    if "CUDA_VISIBLE_DEVICES" not in declared:
        return reachable
    chosen = []
    for entry in environ["CUDA_VISIBLE_DEVICES"].split(","):
        card = _entry(entry.strip(), reachable)
        if card is None:
            break  # CUDA stops at the first entry that it cannot resolve
        chosen.append(card)
    return tuple(chosen)


def _entry(entry: str, cards: tuple[Card, ...]) -> Card | None:
    """One entry of CUDA_VISIBLE_DEVICES: an index in the order of addresses, or the start of a UUID."""
    if entry.isascii() and entry.isdigit():
        return cards[int(entry)] if int(entry) < len(cards) else None
    if entry.startswith("MIG-"):
        return cards[0] if len(cards) == 1 else None
    return next((card for card in cards if entry and card.uuid and card.uuid.startswith(entry)), None)


def decide(
    request: DeviceRequest,
    cards: tuple[Card, ...] | None,
    *,
    nvml: Nvml | None = None,
    environ: Mapping[str, str],
    steps: int,
    global_batch: int | None = None,
    strategy: Strategy = "mirrored",
    mode: Mode = "train",
    split: Division = "even",
    expect_gpus: int | None = None,
    if_busy: Literal["fail", "skip", "wait"] = "fail",
) -> Train | DoNotTrain:
    """Choose the devices. ``nvml`` says why the processes of a card were not read.

    ``auto`` takes logical CPU devices only where PCI shows no GPU at all: a card with a dead driver
    is trained for, and fails, and an unreadable bus is not an empty one. ``wait`` counts as
    ``fail`` here: waiting is the caller's. Where NVML hung before it named a card's processes,
    nothing is trained; a driver that cannot name them is no such sign, and the report says so.
    """
    replicas = request.count or len(cards or ()) or 1
    if global_batch is not None and global_batch < replicas:
        raise UsageError(
            say("A batch of {batch} samples is too small for {n} devices.", batch=global_batch, n=replicas),
            input="--batch",
            hint=say("each device needs at least one sample"),
        )
    if steps < 1:
        raise UsageError(say("A training has at least one step."), input="--steps")
    if split == "auto" and strategy in ("model", "hybrid"):
        raise UsageError(
            say("Strategy {strategy} divides the layers, so that no device can have a share by its speed.",
                strategy=strategy),
            input="--split",
            hint=say("use mirrored or central"),
        )  # fmt: skip

    def cpu_job(count: int) -> Job:
        _check_mesh(strategy, count, global_batch)
        return Job("cpu", count, steps, global_batch, strategy=strategy, mode=mode, by_speed=split == "auto")

    def gpu_job(cards: Sequence[Card]) -> Job:
        if cards:
            _check_mesh(strategy, len(cards), global_batch)
        width, load_batch = size([card.free_bytes for card in cards])
        return Job(
            "gpu",
            max(1, len(cards)),
            steps,
            global_batch,
            width=width,
            load_batch=load_batch,
            load_seconds=load_seconds(max(1, len(cards)), split),
            strategy=strategy,
            mode=mode,
            by_speed=split == "auto",
        )

    if request.kind == "cpu":
        if expect_gpus:
            raise UsageError(
                plural(
                    expect_gpus,
                    say("A training on logical CPU devices cannot show a GPU."),
                    say("A training on logical CPU devices cannot show {n} GPUs.", n=expect_gpus),
                ),
                input="--expect-gpus",
                hint=say("use --devices gpu or auto"),
            )
        return Train(cpu_job(request.count or 1), environment=_NO_GPU)
    if cards is None:
        if request.kind == "auto":
            return DoNotTrain(
                "not-run",
                say("Nothing was trained: whether there is a GPU could not be read. Ask for gpu or cpu:N."),
            )
        if nvml is not None and nvml.status == "timed-out":
            return _hung(nvml, ())
        return Train(gpu_job(()), environment=_IN_PCI_ORDER)
    if not cards:
        if request.kind == "auto" and not expect_gpus:
            count = 4 if strategy == "hybrid" else min(4, max(2, os.cpu_count() or 2), global_batch or 4)
            return Train(cpu_job(count), environment=_NO_GPU)
        return DoNotTrain("fail", say("Nothing was trained: there is no GPU on PCI."), findings=(_no_gpu(expect_gpus),))

    wanted = granted(cards, environ)
    if not wanted:
        return DoNotTrain(
            "fail",
            say("Nothing was trained: the environment hides every card from this process."),
            cards,
            (_hidden(environ, cards),),
        )
    unread = any(card.processes is None for card in wanted if card.vendor == "nvidia")
    if unread and nvml is not None and nvml.status == "timed-out":
        return _hung(nvml, cards)
    busy = [card for card in wanted if card.processes]
    if busy and (if_busy != "skip" or len(busy) == len(wanted) or not all(card.uuid for card in wanted)):
        return DoNotTrain(
            "not-run",
            plural(
                len(busy),
                say("Nothing was trained: a card runs somebody else's process."),
                say("Nothing was trained: {n} cards run somebody else's processes.", n=len(busy)),
            ),
            cards,
            tuple(_busy(card, "error") for card in busy),
        )
    free = tuple(card for card in wanted if card not in busy)
    environment = dict(_IN_PCI_ORDER)
    if busy:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(card.uuid or "" for card in free)
    return Train(
        gpu_job(free),
        cards=free,
        left_out=tuple(card for card in cards if card not in free),
        environment=tuple(environment.items()),
        findings=tuple(_busy(card, "warning") for card in busy),
    )


_NO_GPU = (("CUDA_VISIBLE_DEVICES", "-1"), ("HIP_VISIBLE_DEVICES", "-1"))
_IN_PCI_ORDER = (("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),)


def _check_mesh(strategy: Strategy, devices: int, global_batch: int | None) -> None:
    """UsageError where the devices make no mesh, or the batch no equal shards for its rows."""
    if strategy != "hybrid":
        return
    try:
        rows, _ = mesh(strategy, devices)
    except ValueError:
        raise UsageError(
            say("Strategy hybrid needs a mesh, and {n} devices make none.", n=devices),
            input="--strategy",
            hint=say("use 4, 6, 8, 9, 10, 12 or 16 devices, or strategy model"),
        ) from None
    if global_batch is not None and global_batch % rows:
        raise UsageError(
            say("A batch of {batch} samples cannot be divided evenly over {rows} rows.", batch=global_batch, rows=rows),
            input="--batch",
            hint=say("use a multiple of {rows}", rows=rows),
        )


def sample_bytes(width: int) -> int:
    """Device memory that one sample takes in a training step: of the image and of both convolutions
    the value, the sum with the bias, the rectified one and the gradient."""
    floats = 4 * (16 * 16 * 3 + 8 * 8 * width + 4 * 4 * 2 * width)
    return 4 * floats


def size(free_bytes: Sequence[int | None]) -> tuple[int, int]:
    """Width and samples per card under load, for cards with so much free memory. The smallest card
    binds, since all get the same. A larger memory is filled with more samples first, then by a wider
    net, which works longer on each."""
    known = [free for free in free_bytes if free is not None]
    if not known or len(known) < len(free_bytes):
        return LEAST_WIDTH, USUAL_LOAD_BATCH
    budget = int(LOAD_SHARE * min(known))
    width = LEAST_WIDTH
    while width < MOST_WIDTH and budget // sample_bytes(2 * width) >= MOST_LOAD_BATCH:
        width *= 2
    return width, min(MOST_LOAD_BATCH, max(LEAST_LOAD_BATCH, budget // sample_bytes(width)))


def load_seconds(cards: int, split: Division) -> float:
    """Seconds per measurement: each card alone, all together, and with shares by speed all once more."""
    return max(LEAST_LOAD_SECONDS, LOAD_SECONDS / (cards + (2 if split == "auto" else 1)))


def _no_gpu(expected: int | None) -> Finding:
    return finding(
        "no-gpu-found",
        "error",
        "machine",
        plural(
            expected,
            say("A GPU is expected, and PCI shows none."),
            say("{n} GPUs are expected, and PCI shows none.", n=expected),
        )
        if expected
        else say("A training on GPUs was asked for, and PCI shows no GPU."),
    )


def _hidden(environ: Mapping[str, str], cards: tuple[Card, ...]) -> Finding:
    return finding(
        "tensorflow-sees-no-gpu",
        "error",
        "machine",
        plural(
            len(cards),
            say("TensorFlow cannot list the card on PCI: CUDA_VISIBLE_DEVICES grants this process none."),
            say(
                "TensorFlow cannot list any of the {n} cards on PCI: CUDA_VISIBLE_DEVICES grants this process none.",
                n=len(cards),
            ),
        ),
        evidence=(
            Evidence(
                source=say("environment"),
                text=f"CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES', '')}",
            ),
        ),
        remedy=(say("Unset CUDA_VISIBLE_DEVICES, or ask the scheduler for a GPU."),),
    )


def _hung(nvml: Nvml, cards: tuple[Card, ...]) -> DoNotTrain:
    message = say("Nothing was trained: NVML hung, so whether a card runs somebody else's process is unknown.")
    hang = finding(
        "nvml-timeout",
        "error",
        "machine",
        message,
        evidence=(Evidence(source=nvml.call or "NVML", text=nvml.message or say("No answer before the deadline")),),
        remedy=(say("Run gpucheck probe with more time (--timeout); if it hangs again, reboot."),),
    )
    return DoNotTrain("not-run", message, cards, (hang,))


def _busy(card: Card, severity: Severity) -> Finding:
    return finding(
        "gpu-busy",
        severity,
        card.address,
        say(
            "The card at {address} runs other processes ({pids}), so it was not trained on.",
            address=card.address,
            pids=", ".join(map(str, card.processes or ())),
        ),
        remedy=(say("Wait for them to end (--if-busy wait), leave the card out (--if-busy skip), or stop them."),),
    )
