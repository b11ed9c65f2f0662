"""The document ``gpucheck/smoke/1``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpucheck.findings import Document, Finding, Printed
from gpucheck.smoke.job import Mode, Strategy
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
    output_difference: float | None = None
    """Of an inference: largest difference of this replica's outputs from those of one device for the
    same samples."""
    fed_difference: float | None = None
    """How far the sum of the images that the replica counted is from that of its shard, as a share."""
    reduced_difference: float | None = None
    """How far the checksum of the gradients that came back is from the sum of those that all replicas
    sent, as a share. None without an exchange that can be counted."""
    alone_difference: float | None = None
    """Difference after one update (or for one inference) that the device did by itself."""
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
    """How the work on all devices compares with the same work on one device."""

    compared: Literal["parameters", "outputs"] = "parameters"
    """Outputs after an inference. Of the two differences the other is None."""
    max_param_difference: float | None
    """None when a parameter was no longer a number."""
    max_output_difference: float | None = None
    """None when an output was no number."""
    replica_spread: float | None
    """Largest difference between the parameters of two replicas; 0 means equal bit for bit."""
    start_spread: float | None
    """The same before the first step."""
    tolerance: float
    max_param_change: float | None
    """How far training moved the parameters: a comparison of things that stood still proves nothing."""
    max_output: float | None = None
    """Largest output of an inference, for the same reason."""
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


class Split(Document):
    """How the samples of a step were divided."""

    kind: Literal["even", "auto"]
    """``auto``: each device had a share by the speed that it reached alone."""
    shares: dict[str, int]
    """Address or name of a device to its samples in a step."""
    slowest_pace: float | None
    """Samples per second if every device went at the pace of the slowest alone."""
    even_per_second: float | None = None
    """Of ``auto``: samples per second of all devices together, measured with even shares too."""
    gain: float | None = None
    """Of ``auto``: speed over that with even shares, less one."""


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
    strategy: Strategy = "mirrored"
    mode: Mode = "train"
    split: Split | None = None
    steps: int | None = None
    global_batch: int | None = None
    seconds: float | None = None
    """Wall time of the worker, from its start to its end."""
