"""The document ``gpucheck/smoke/1``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpucheck.findings import Document, Finding, Printed
from gpucheck.text import Text

Verdict = Literal["pass", "fail", "not-run"]

EXIT_CODES: dict[Verdict, int] = {"pass": 0, "fail": 1, "not-run": 3}


class NvmlEvidence(Document):
    """What NVML saw of one card before, during and after the training. None: it cannot count it."""

    process_seen: bool | None = None
    """The training's process was on the card's list. None also where NVML numbers processes in
    another process namespace, as from inside a container."""
    memory_growth_bytes: int | None = None
    """Most memory in use during the training over that in use before. None where the card was not
    sampled before the training began, or none was seen and the watch ended early."""
    memory_left_bytes: int | None = None
    """Memory in use after the end over that in use before. None without a sample of either."""
    busy_percent: int | None = None
    """Highest utilisation that was sampled. None also for a 0 of a watch that ended early."""
    energy_joules: float | None = None
    """From the first to the last sample. An idle card takes energy too: this is a record, no proof."""


class DeviceEvidence(Document):
    """What shows that a device did its part of the training."""

    replica: int | None = None
    samples: int | None = None
    """Samples that the replica's own counter, on its device, counted."""
    variables_on: str | None = None
    inputs_on: str | None = None
    computed_on: dict[str, int] | None = None
    """Device to number of convolutions and matrix products that TensorFlow placed there."""
    param_difference: float | None = None
    """Largest difference of this replica's parameters from those of the single-device training."""
    alone_difference: float | None = None
    """The same after one update that the device did by itself."""
    peak_bytes: int | None = None
    """Most device memory that TensorFlow's allocator had given out."""
    nvml: NvmlEvidence | None = None
    unknown: tuple[str, ...] = ()
    """What could not be counted, and so proves nothing."""


class SmokeDevice(Document):
    """One device that was trained on, or one card that was not."""

    device: str | None
    """TensorFlow's name, such as ``GPU:0``; None for a card that TensorFlow did not list."""
    address: str | None
    """PCI address; None for a logical CPU device."""
    name: Text | None = None
    used: bool
    replica_steps: int | None
    examples_per_second: float | None
    """This device alone, on the batch of one replica."""
    evidence: DeviceEvidence


class Numerics(Document):
    """How the data-parallel training compares with the single-device training of the same batches."""

    max_param_difference: float | None
    """None when a parameter was no longer a number."""
    replica_spread: float | None
    """Largest difference between two replicas; 0 means equal bit for bit."""
    tolerance: float
    max_param_change: float | None
    """How far training moved the parameters: a comparison of things that stood still proves nothing."""
    loss: tuple[float | None, float | None]
    """Of the first and of the last step."""


class Scaling(Document):
    """Speed in samples per second."""

    single: float
    """One device alone, on average."""
    all: float
    """All devices together."""
    efficiency: float
    """``all`` over the sum of the devices alone."""
    slowest: str
    """Address (or name) of the slowest device alone: the group waits for it in every step."""


class TensorFlowBuild(Document):
    """The TensorFlow that trained."""

    version: str
    cuda: bool
    rocm: bool
    cuda_version: str | None = None
    cudnn_version: str | None = None
    compute_capabilities: tuple[str, ...] = ()
    """Machine code in the package, such as ``sm_70``."""


class SmokeReport(Printed):
    """Result of a training."""

    schema_: Literal["gpucheck/smoke/1"] = Field(default="gpucheck/smoke/1", alias="schema")
    verdict: Verdict
    proves_gpu: bool
    """True only for a training on GPUs that passed."""
    devices: tuple[SmokeDevice, ...] = ()
    numerics: Numerics | None = None
    scaling: Scaling | None = None
    findings: tuple[Finding, ...] = ()
    tensorflow: TensorFlowBuild | None = None
    strategy: str = "mirrored"
    steps: int | None = None
    global_batch: int | None = None
    seconds: float | None = None
    """Wall time of the worker, from its start to its end."""
