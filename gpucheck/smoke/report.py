"""The document ``gpucheck/smoke/1``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpucheck.findings import Document, Finding, Printed
from gpucheck.smoke.job import Division, Mode, Strategy
from gpucheck.text import Text

Verdict = Literal["pass", "fail", "not-run"]
Fate = Literal["pass", "wrong", "failed", "died", "hang"]
"""Of a trial: its numbers are right; are wrong; an error was raised; the process died; nothing moved."""

EXIT_CODES: dict[Verdict, int] = {"pass": 0, "fail": 1, "not-run": 3}


class NvmlEvidence(Document):
    """What NVML saw of one card before, during and after the training. None: it cannot count it."""

    process_seen: bool | None = None
    """The training's process was on the card's list. None also where NVML numbers processes in
    another process namespace, as from inside a container."""
    other_processes: tuple[int, ...] | None = None
    """Numbers of other processes that came onto the card while the training ran. Where the training's own
    was not seen, one of them may be it, under the number of another namespace."""
    memory_growth_bytes: int | None = None
    """Most memory in use during the training over that in use before. None where the card was not
    sampled before the training began, or none was seen and the watch ended early."""
    memory_left_bytes: int | None = None
    """Memory in use after the end over that in use before. None without a sample of either."""
    busy_percent: int | None = None
    """Highest utilisation that was sampled. None also for a 0 of a watch that ended early."""
    busy_seconds: float | None = None
    """Utilisation, added up over the time of the training."""
    energy_joules: float | None = None
    """From the first to the last sample. An idle card takes energy too: this is a record, no proof."""
    energy_over_idle_joules: float | None = None
    """Of that, what is more than ``idle_watts`` over the same time."""
    idle_watts: float | None = None
    """Median before the training touched a card."""
    most_watts: float | None = None
    """Highest draw during the training."""
    most_celsius: int | None = None
    clocks_mhz: tuple[int, int] | None = None
    """Lowest and highest clock while the card was loaded."""
    slowdowns: dict[str, float] | None = None
    """Why the clocks were held back while the card was loaded, by brake, heat or power: reason to its share
    of the samples under load."""
    lost: bool | None = None
    """NVML said that it had lost the card. None without any sample."""


class RisenCounters(Document):
    """How far the error counters of one card rose from before the training until after it. None: not read
    on both sides."""

    pcie_replays: int | None = None
    """Packets that were sent again, as NVML counts them."""
    aer_correctable: int | None = None
    """Errors of the card's link, as the kernel counts them: the larger of its two ends."""
    aer_nonfatal: int | None = None
    aer_fatal: int | None = None
    ecc_corrected: int | None = None
    """Errors of the card's memory, as NVML counts them."""
    ecc_uncorrected: int | None = None
    xids: tuple[Text, ...] | None = None
    """Lines about this card that the NVIDIA driver wrote into the kernel log meanwhile."""


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
    risen: RisenCounters | None = None
    unknown: tuple[str, ...] = ()
    """What could not be counted, and so proves nothing."""


class SmokeDevice(Document):
    """One device that was trained on, or one card that was not."""

    device: str | None
    """TensorFlow's name, such as ``GPU:0``; None for a card that TensorFlow did not list."""
    address: str | None
    """PCI address; None for a logical CPU device."""
    uuid: Text | None = None
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
    start_difference: float | None
    """Largest difference of the parameters that a replica began with from those that it was given."""
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

    kind: Division
    """``auto``: each device had a share by the speed that it reached alone."""
    shares: dict[str, int]
    """Address or name of a device to its samples in a step."""
    slowest_pace: float | None
    """Samples per second if every device went at the pace of the slowest alone."""
    even_per_second: float | None = None
    """Of ``auto``: samples per second of all devices together, measured with even shares too."""
    gain: float | None = None
    """Of ``auto``: speed over that with even shares, less one."""


class Isolation(Document):
    """A short training of some of the devices only."""

    devices: tuple[str, ...]
    """Addresses or names."""
    outcome: Fate
    seconds: float
    """Until it was done or given up."""
    peer_access: bool = True
    """False: with ``NCCL_P2P_DISABLE=1``, so without direct copies between cards."""
    detail: Text | None = None


class AllReduce(Document):
    """An all-reduce of a known sum over all devices."""

    bytes: int
    """Of the one tensor that every device gave and got."""
    seconds: float | None
    """Of one, on average. None: it did not come to its end."""
    bytes_per_second: float | None
    """``bytes`` over ``seconds``; what the links carried is up to twice as much."""
    correct: bool | None
    """Every number on every device was the sum, exactly. None: it did not come to its end."""
    way: str = "default"
    """``nccl``, ``hierarchical`` (copies in two stages) or ``one-device`` (all added up on one)."""
    error: Text | None = None


class Filled(Document):
    """Memory of a device that was filled with patterns, twice (as they are, and inverted), and read back."""

    device: str
    bytes: int | None
    """None: it did not come to its end."""
    seconds: float
    wrong_words: int | None
    """Words of eight bytes that read back otherwise, over both passes."""
    first_offset: int | None = None
    """Bytes from the beginning of what was filled, which is no physical address."""
    expected: Text | None = None
    got: Text | None = None
    """The first wrong word, in hexadecimal."""
    error: Text | None = None


class Deep(Document):
    """What only ``--deep`` looks at; and where time was up, also of the trials after a failure."""

    ways: tuple[AllReduce, ...] = ()
    """The same all-reduce by other cross-device operations."""
    vram: tuple[Filled, ...] = ()
    cut_short: bool = False
    """Time was up before everything was tried."""


class Curve(Document):
    """A quantity over the time of a soak."""

    least: float
    most: float
    last: float
    values: tuple[float | None, ...]
    """Oldest first; of many the means over equal spans of time, None where nothing was read."""


class SoakedCard(Document):
    """A card over the time of a soak. None: not read."""

    address: str
    temperature_c: Curve | None = None
    sm_clock_mhz: Curve | None = None
    power_watts: Curve | None = None
    pcie_replays: Curve | None = None
    """Since the soak began, as far as the card counts."""
    ecc_corrected: Curve | None = None
    """The same, of its memory."""


class Soak(Document):
    """The training repeated under load from the same parameters on the same samples, round by round."""

    seconds: float
    rounds: int
    steps_per_round: int
    wrong_rounds: int
    """Rounds that ended with other parameters than the first, or with different replicas."""
    max_difference: float | None
    """Largest difference of a parameter at the end of a round from that of the first; None: not a number."""
    examples_per_second: Curve
    wrong: Curve
    """Wrong rounds up to then."""
    cards: tuple[SoakedCard, ...] = ()


class TensorFlowBuild(Document):
    """The TensorFlow that trained."""

    version: str
    cuda: bool
    rocm: bool
    cuda_version: str | None = None
    cudnn_version: str | None = None
    compute_capabilities: tuple[str, ...] = ()
    """Machine code in the package, such as ``sm_70``."""


class SmokeHost(Document):
    """One worker of a training on several hosts. None: it did not come so far, or did not say."""

    host: Text
    rank: int
    address: Text
    """Address and port at which the others reach it."""
    devices: tuple[Text, ...] | None = None
    examples_per_second: float | None = None
    """Of this worker while all train together."""
    alone_per_second: float | None = None
    """Of its devices alone, added up."""
    verdict: Verdict
    headline: Text
    problems: tuple[Text, ...] = ()
    """Messages of its findings."""


class Network(Document):
    """What a step costs beyond the work of the slowest worker, in seconds."""

    slowest: Text
    """The worker whose devices alone take longest for their part of a step: all wait for it."""
    step_alone_seconds: float
    """Of the slowest worker, without any exchange."""
    step_together_seconds: float
    share: float
    """Part of a step together that is not the slowest worker's own work: exchange, within a host too,
    and waiting."""
    gradient_bytes: int
    """What each replica sends into the sum in a step."""


class ClusterUse(Document):
    """Which hosts train together, as it was derived."""

    source: Literal["slurm", "tf_config", "hosts"]
    rank: int
    tf_config: str
    """The variable that TensorFlow was given."""
    listens: tuple[str, ...]
    """Addresses and ports on this host, in plain words."""
    seen: dict[str, Text] = Field(default_factory=dict)
    """Variables that it was derived from."""


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
    isolation: tuple[Isolation, ...] = ()
    """Trials of single devices, pairs and all, after a failure or with ``--deep``, in their order."""
    allreduce: tuple[AllReduce, ...] = ()
    """With ``--deep``: sums of several sizes."""
    deep: Deep | None = None
    soak: Soak | None = None
    steps: int | None = None
    global_batch: int | None = None
    seconds: float | None = None
    """Wall time of the worker, from its start to its end."""
    cluster: ClusterUse | None = None
    """None for a training on this machine alone."""
    hosts: tuple[SmokeHost, ...] = ()
    """Of a training on several hosts: every worker in the document of rank 0, else this one."""
    network: Network | None = None
