"""From what the worker and NVML saw to a verdict. Pure.

A card passes by what was counted on it. What could not be counted is named as unknown and never
counts in its favour.
"""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Literal, Protocol

from gpucheck.facts import pci_address
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.smoke.plan import Card, Train
from gpucheck.smoke.report import (
    DeviceEvidence,
    Numerics,
    NvmlEvidence,
    Scaling,
    SmokeDevice,
    Split,
    TensorFlowBuild,
    Verdict,
)
from gpucheck.text import plural, say

TOLERANCE = 1e-5
"""Rounding of float32 leaves below 1e-6, any fault of weighting or reduction above 1e-2."""
LEAST_CHANGE = 100 * TOLERANCE
SUM_TOLERANCE = 1e-5
"""Share by which sums of float32 may differ: rounding leaves about 1e-8, other samples or a part that is
missing from a sum above 1e-3."""
LEAST_GROWTH_BYTES = 32 << 20
"""A CUDA context alone takes more."""
MOST_LEFT_BYTES = 64 << 20
SLOW = 0.85
"""Share of the median speed of equal cards under which one of them is slow."""

_CREATED = re.compile(r"Created device \S*device:(GPU:\d+) (.*)")
_DESCRIBED = re.compile(r"name: (.+?), pci bus id: ([0-9a-fA-F:.]+)")
_TELLING = re.compile(
    r"dlopen|cuda drivers|cuInit|CUDA_ERROR|failed call|Skipping registering|compute capability"
    r"|Ignoring visible gpu|not built with|NCCL|Could not find|Error|error|Xid",
)


class Sample(Protocol):
    """What NVML said of one card at one moment. None: not counted."""

    @property
    def address(self) -> str | None: ...
    @property
    def seconds(self) -> float: ...
    @property
    def memory_used_bytes(self) -> int | None: ...
    @property
    def utilization_percent(self) -> int | None: ...
    @property
    def energy_joules(self) -> float | None: ...
    @property
    def pids(self) -> tuple[int, ...] | None: ...


@dataclass(slots=True)
class Outcome:
    """How the worker ended and what it said until then.

    Attributes:
        ending: ``done``; ``failed`` by an exception that it reported; ``died`` without a word;
            ``stuck`` when heartbeats stopped; ``late`` when the whole time was used up.
        returncode: As subprocess gives it: negative for a signal; None when it could not be ended.
        started: ``time.monotonic()`` just before the worker was started.
        seconds: From then until it was gone.
        limit_seconds: The limit that was broken, for ``stuck`` and ``late``.
        left_behind: It, or a process that it started, could not be ended or outlived it.
    """

    ending: Literal["done", "failed", "died", "stuck", "late"] = "died"
    pid: int = 0
    started: float = 0.0
    returncode: int | None = None
    phase: str = "start"
    device: str | None = None
    step: int | None = None
    build: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    stderr: list[str] = field(default_factory=list)
    seconds: float = 0.0
    limit_seconds: float | None = None
    left_behind: bool = False

    @property
    def ended(self) -> float:
        """``time.monotonic()`` when the worker was gone."""
        return self.started + self.seconds


@dataclass(frozen=True, slots=True)
class Judgement:
    """Everything of the report that follows from the evidence."""

    verdict: Verdict
    headline: str
    proves_gpu: bool = False
    devices: tuple[SmokeDevice, ...] = ()
    numerics: Numerics | None = None
    scaling: Scaling | None = None
    findings: tuple[Finding, ...] = ()
    tensorflow: TensorFlowBuild | None = None
    global_batch: int | None = None
    split: Split | None = None


def judge(plan: Train, outcome: Outcome, samples: Sequence[Sample] | None, expect_gpus: int | None = None) -> Judgement:
    """Weigh a training.

    Args:
        plan: What was to be trained, and which cards should take part.
        outcome: What the worker said.
        samples: What the NVML watch saw, oldest first; None where there was no watch.
        expect_gpus: Number of GPUs that must have taken part.
    """
    build = None
    if outcome.build is not None:
        build = TensorFlowBuild(
            **{
                **outcome.build,
                "compute_capabilities": tuple(outcome.build.get("compute_capabilities") or ()),
            }
        )
    if outcome.ending != "done" or outcome.result is None:
        return _not_done(plan, outcome, samples, build)
    if not outcome.result["devices"]:
        return _no_devices(plan, outcome, build)
    return _weigh(plan, outcome, outcome.result, samples, expect_gpus, build)


# --- a training that came to its end --------------------------------------------------------------


def _weigh(
    plan: Train,
    outcome: Outcome,
    result: Mapping[str, Any],
    samples: Sequence[Sample] | None,
    expect_gpus: int | None,
    build: TensorFlowBuild | None,
) -> Judgement:
    on_gpu = plan.job.kind == "gpu"
    findings = list(plan.findings)
    replicas: dict[str, dict[str, Any]] = {replica["device"]: replica for replica in result["replicas"]}
    identities = _identities(result["devices"], outcome.stderr)
    devices: list[SmokeDevice] = []
    unproven: list[SmokeDevice] = []
    for entry in result["devices"]:
        replica = replicas.get(entry["device"], {})
        address, name = identities.get(entry["device"], (None, None))
        nvml = _nvml_evidence(address, samples or (), outcome) if on_gpu else None
        doubts = _doubts(plan, entry["device"], replica, nvml)
        unknown = _unknown(plan, address, replica, nvml) if on_gpu else ()
        device = SmokeDevice(
            device=entry["device"],
            address=address,
            name=name,
            used=not doubts,
            replica_steps=replica.get("steps", 0),
            examples_per_second=entry.get("alone_per_second"),
            evidence=DeviceEvidence(
                replica=list(replicas).index(entry["device"]) if replica else None,
                samples=replica.get("samples"),
                variables_on=replica.get("variables_on"),
                inputs_on=replica.get("inputs_on"),
                computed_on=replica.get("computed_on") or None,
                param_difference=replica.get("difference") if plan.job.mode == "train" else None,
                output_difference=replica.get("difference") if plan.job.mode == "infer" else None,
                fed_difference=replica.get("fed_difference"),
                reduced_difference=replica.get("reduced_difference"),
                alone_difference=entry.get("alone_difference"),
                peak_bytes=entry.get("peak_bytes"),
                nvml=nvml,
                unknown=unknown,
            ),
        )
        devices.append(device)
        if doubts:
            findings.append(_unused(_called(device), doubts))
        elif nvml is not None and not (nvml.process_seen or nvml.memory_growth_bytes):
            unproven.append(device)

    findings += _missing(plan, {device.address for device in devices}, build)
    devices += [not_listed(card) for card in _absent(plan, devices)]
    numerics = Numerics(
        compared="outputs" if plan.job.mode == "infer" else "parameters",
        max_param_difference=result.get("max_param_difference"),
        max_output_difference=result.get("max_output_difference"),
        replica_spread=result["replica_spread"],
        start_spread=result["start_spread"],
        tolerance=TOLERANCE,
        max_param_change=result.get("max_param_change"),
        max_output=result.get("max_output"),
        loss=tuple(result.get("loss", (None, None))),
    )
    findings += _numeric_findings(numerics, devices, replicas)
    scaling = _scaling(result, devices)
    split = _split(plan, result, devices)
    if on_gpu:
        findings += _slow(devices)
    findings += _aftermath(outcome, samples or ())
    used = sum(device.used for device in devices)
    failed = any(item.severity == "error" for item in findings)
    if on_gpu and expect_gpus is not None and used < expect_gpus and not failed:
        failed = True
        findings = _unmet(findings, used, expect_gpus)
    verdict: Verdict = "fail" if failed else "not-run" if unproven else "pass"
    return Judgement(
        verdict=verdict,
        headline=_headline(plan, verdict, devices, unproven, scaling),
        proves_gpu=on_gpu and verdict == "pass",
        devices=tuple(devices),
        numerics=numerics,
        scaling=scaling,
        findings=tuple(findings),
        tensorflow=build,
        global_batch=result["global_batch"],
        split=split,
    )


def _unmet(findings: Sequence[Finding], used: int, expected: int) -> list[Finding]:
    """An expectation that is not met makes what explains it an error; else it stands alone."""
    explain = ("gpu-busy", "gpu-unused-in-training")
    if any(item.name in explain for item in findings):
        return [item.model_copy(update={"severity": "error"}) if item.name in explain else item for item in findings]
    message = say("{used} GPUs took part and {expected} are expected.", used=used, expected=expected)
    return [*findings, finding("gpu-count-mismatch", "error", "machine", message)]


def _headline(
    plan: Train,
    verdict: Verdict,
    devices: Sequence[SmokeDevice],
    unproven: Sequence[SmokeDevice],
    scaling: Scaling | None,
) -> str:
    headline = (_inferred if plan.job.mode == "infer" else _trained)(plan, verdict, devices, unproven, scaling)
    unread = sum("busy" in device.evidence.unknown for device in devices)
    if not unread:
        return headline
    return say(
        plural(
            unread,
            "{headline} Whether other processes use a card could not be read.",
            "{headline} Whether other processes use {n} of the cards could not be read.",
        ),
        headline=headline,
        n=unread,
    )


def _trained(
    plan: Train,
    verdict: Verdict,
    devices: Sequence[SmokeDevice],
    unproven: Sequence[SmokeDevice],
    scaling: Scaling | None,
) -> str:
    used = sum(device.used for device in devices)
    listed = sum(device.device is not None for device in devices)
    if plan.job.kind == "cpu":
        if verdict == "pass":
            return say(
                "Training on {n} logical CPU devices is exact; it proves no GPU.",
                n=used,
            )
        return say("Training on {n} logical CPU devices failed; no GPU was involved.", n=listed)
    if verdict == "pass":
        share = 100 * scaling.efficiency if scaling else 0.0
        return plural(
            used,
            say("The GPU trained, and the result is exact."),
            say(
                "All {n} GPUs trained together at {share:.0f} % of their added speed, and the result is exact.",
                n=used,
                share=share,
            ),
        )
    if verdict == "not-run":
        return say(
            "The training is exact, but NVML could not confirm {n} of {listed} GPUs.",
            n=len(unproven),
            listed=listed,
        )
    return say(
        "The training failed: {used} of {listed} GPUs that TensorFlow lists did their part.",
        used=used,
        listed=listed,
    )


def _inferred(
    plan: Train,
    verdict: Verdict,
    devices: Sequence[SmokeDevice],
    unproven: Sequence[SmokeDevice],
    scaling: Scaling | None,
) -> str:
    used = sum(device.used for device in devices)
    listed = sum(device.device is not None for device in devices)
    if plan.job.kind == "cpu":
        if verdict == "pass":
            return say("Inference on {n} logical CPU devices is exact; it proves no GPU.", n=used)
        return say("Inference on {n} logical CPU devices failed; no GPU was involved.", n=listed)
    if verdict == "pass":
        return plural(
            used,
            say("The GPU inferred exactly what the CPU did; training was not tried."),
            say("All {n} GPUs inferred exactly what the CPU did; training was not tried.", n=used),
        )
    if verdict == "not-run":
        return say(
            "The inference is exact, but NVML could not confirm {n} of {listed} GPUs.", n=len(unproven), listed=listed
        )
    return say(
        "The inference failed: {used} of {listed} GPUs that TensorFlow lists did their part.",
        used=used,
        listed=listed,
    )


def _identities(devices: Iterable[Mapping[str, Any]], stderr: Iterable[str]) -> dict[str, tuple[str, str]]:
    """TensorFlow device to PCI address and name: from its description, else from the line with the
    same text that TensorFlow logs when it makes the device."""
    texts = {match[1]: match[2] for line in stderr if (match := _CREATED.search(line))}
    texts |= {device["device"]: device["description"] for device in devices if device.get("description")}
    found = {}
    for device_name, text in texts.items():
        match = _DESCRIBED.search(text)
        if match and (address := pci_address(match[2])):
            found[device_name] = (address, match[1])
    return found


def _doubts(plan: Train, device: str, replica: Mapping[str, Any], nvml: NvmlEvidence | None) -> tuple[Evidence, ...]:
    """Everything that speaks against the device having done its part."""
    steps, samples = replica.get("steps", 0), replica.get("samples", 0)
    found = []
    if steps < plan.job.steps:
        found.append((say("training"), say("{n} of {steps} steps ran on it", n=steps, steps=plan.job.steps)))
    if not samples:
        found.append((say("training"), say("it got no samples")))
    # Central variables have a home of their own; everything else belongs on the device.
    for what, home in (("variables_on", replica.get("home", device)), ("inputs_on", device)):
        if replica.get(what, home) != home:
            found.append((what, say("{other} instead of {device}", other=replica[what], device=home)))
    if strays := {other: count for other, count in (replica.get("computed_on") or {}).items() if other != device}:
        found.append((say("placement"), ", ".join(f"{other}: {count}" for other, count in strays.items())))
    if nvml is not None:
        grown = nvml.memory_growth_bytes
        if grown is not None and grown < LEAST_GROWTH_BYTES:
            found.append((say("NVML memory"), say("grew by {n} bytes during the training", n=grown)))
        if nvml.busy_percent == 0:
            found.append((say("NVML utilisation"), say("0 % in every sample")))
    return tuple(Evidence(source=source, text=text) for source, text in found)


def _nvml_evidence(address: str | None, samples: Sequence[Sample], outcome: Outcome) -> NvmlEvidence:
    """Reduce the samples of one card. What was seen counts; what was not seen counts only where the
    watch looked before the training, and went on until after it."""
    own = [sample for sample in samples if address is not None and sample.address == address]
    memory = [(sample.seconds, sample.memory_used_bytes) for sample in own if sample.memory_used_bytes is not None]
    before = [used for seconds, used in memory if seconds <= outcome.started]
    after = [used for seconds, used in memory if seconds >= outcome.ended]
    growth = max(used for _, used in memory) - before[-1] if before else None
    if growth is not None and growth < LEAST_GROWTH_BYTES and not after:
        growth = None
    busy = max((sample.utilization_percent for sample in own if sample.utilization_percent is not None), default=None)
    if busy == 0 and not (before and after):
        busy = None
    energy = [sample.energy_joules for sample in own if sample.energy_joules is not None]
    pids = [sample.pids for sample in own if sample.pids is not None]
    return NvmlEvidence(
        # A list without our number shows nothing: a container's numbers are not the host's.
        process_seen=True if any(outcome.pid in seen for seen in pids) else None,
        memory_growth_bytes=growth,
        memory_left_bytes=after[-1] - before[-1] if before and after else None,
        busy_percent=busy,
        energy_joules=energy[-1] - energy[0] if len(energy) > 1 else None,
    )


def _unknown(
    plan: Train, address: str | None, replica: Mapping[str, Any], nvml: NvmlEvidence | None
) -> tuple[str, ...]:
    names = []
    if address is None:
        names.append("address")
    if address not in {card.address for card in plan.cards if card.processes is not None}:
        names.append("busy")
    if not replica.get("computed_on"):
        names.append("computed_on")
    if nvml is not None:
        names += [f"nvml.{key}" for key, value in nvml if value is None]
    return tuple(names)


def _called(device: SmokeDevice) -> str:
    return device.address or device.device or "machine"


def _unused(subject: str, doubts: tuple[Evidence, ...]) -> Finding:
    return finding(
        "gpu-unused-in-training",
        "error",
        subject,
        say("The device {subject} did not do its part of the training.", subject=subject),
        evidence=doubts,
        remedy=(say("Train on this card alone (CUDA_VISIBLE_DEVICES) and compare."),),
    )


def _absent(plan: Train, devices: Iterable[SmokeDevice]) -> list[Card]:
    seen = {device.address for device in devices}
    return [card for card in (*plan.cards, *plan.left_out) if card.address not in seen]


def not_listed(card: Card) -> SmokeDevice:
    """A card that was not trained on."""
    return SmokeDevice(
        device=None,
        address=card.address,
        name=card.name,
        used=False,
        replica_steps=None,
        examples_per_second=None,
        evidence=DeviceEvidence(),
    )


def _missing(plan: Train, seen: set[str | None], build: TensorFlowBuild | None) -> list[Finding]:
    """Cards that should have trained and that TensorFlow did not list."""
    if None in seen:
        # A device without an address may be any card: its own evidence says that it is unproven.
        return []
    vendor = "amd" if build and build.rocm else "nvidia"
    found = []
    for card in plan.cards:
        if card.address in seen:
            continue
        drives = card.vendor == vendor
        found.append(
            finding(
                "gpu-unused-in-training",
                "error" if drives else "info",
                card.address,
                say("The card at {address} is on PCI, but TensorFlow does not list it.", address=card.address)
                if drives
                else say(
                    "The card at {address} took no part: this TensorFlow drives cards of another maker.",
                    address=card.address,
                ),
                remedy=(say("Run gpucheck probe: it shows on which level the card is lost."),) if drives else (),
            )
        )
    return found


def _aftermath(outcome: Outcome, samples: Sequence[Sample]) -> list[Finding]:
    """What the training left on the machine."""
    found = []
    for address in sorted({sample.address for sample in samples if sample.address is not None}):
        left = _nvml_evidence(address, samples, outcome).memory_left_bytes
        if left is not None and left > MOST_LEFT_BYTES:
            found.append(
                finding(
                    "memory-not-released",
                    "error",
                    address,
                    say(
                        "{mib} MiB more are in use on {address} after the training than before.",
                        mib=left >> 20,
                        address=address,
                    ),
                    evidence=(Evidence(source=say("NVML memory"), text=say("{n} bytes", n=left)),),
                    remedy=(say("Look for processes that hold the card (nvidia-smi); a reset frees the rest."),),
                )
            )
    last = {sample.address: sample.pids or () for sample in samples if sample.seconds >= outcome.ended}
    holders = tuple(
        Evidence(source=say("NVML processes"), text=f"{address}: {outcome.pid}")
        for address, pids in last.items()
        if outcome.pid in pids
    )
    if outcome.left_behind or holders:
        found.append(
            finding(
                "process-left-behind",
                "error",
                "machine",
                say("A process of the training outlived it (process group {pid}).", pid=outcome.pid),
                evidence=holders,
                remedy=(say("What SIGKILL does not end hangs in the driver: only a reboot frees the card."),),
            )
        )
    return found


def _numeric_findings(
    numerics: Numerics, devices: Sequence[SmokeDevice], replicas: Mapping[str, Mapping[str, Any]]
) -> list[Finding]:
    """What the numbers speak against. A cause that is named stands for what follows from it."""
    inferred = numerics.compared == "outputs"
    causes = [
        *_wrong_alone(devices, inferred),
        *_wrongly_fed(_differing("fed_difference", devices, replicas)),
        *_wrongly_reduced(_differing("reduced_difference", devices, replicas)),
    ]
    if numerics.start_spread != 0:
        causes.append(
            _diverged(
                devices,
                say("The replicas began with different parameters."),
                _number(say("largest difference between replicas before the first step"), numerics.start_spread),
                say("Look at how the parameters are copied to the cards: set NCCL_P2P_DISABLE=1 and compare."),
            )
        )
    if causes:
        return causes
    found = []
    difference = numerics.max_output_difference if inferred else numerics.max_param_difference
    if not _within(difference, numerics.tolerance):
        found.append(
            finding(
                "output-mismatch" if inferred else "gradient-mismatch",
                "error",
                "machine",
                say("The outputs differ from those of one device for the same samples.")
                if inferred
                else say("The training differs from the single-device training of the same batches."),
                evidence=(
                    _number(
                        say("largest difference of an output")
                        if inferred
                        else say("largest difference of a parameter"),
                        difference,
                    ),
                    _number(say("tolerance"), numerics.tolerance),
                ),
                remedy=(say("Each device is right by itself: look at the way between them (NCCL_P2P_DISABLE=1)."),),
            )
        )
    if numerics.replica_spread != 0:
        found.append(
            _diverged(
                devices,
                say("The replicas ended with different parameters."),
                _number(say("largest difference between replicas"), numerics.replica_spread),
                say("Look at the way between the cards: set NCCL_P2P_DISABLE=1 and compare."),
            )
        )
    moved = numerics.max_output if inferred else numerics.max_param_change
    if moved is not None and moved < LEAST_CHANGE:
        found.append(
            finding(
                "output-mismatch" if inferred else "gradient-mismatch",
                "error",
                "machine",
                say("The outputs are as good as zero, so that their agreement proves nothing.")
                if inferred
                else say("The parameters hardly moved, so that their agreement proves nothing."),
                evidence=(
                    _number(say("largest output") if inferred else say("largest change of a parameter"), moved),
                ),
            )
        )
    return found


def _diverged(devices: Sequence[SmokeDevice], message: str, evidence: Evidence, remedy: str) -> Finding:
    furthest = max(
        devices, key=lambda device: device.evidence.param_difference or device.evidence.output_difference or 0.0
    )
    return finding("replica-diverged", "error", _called(furthest), message, evidence=(evidence,), remedy=(remedy,))


def _wrong_alone(devices: Sequence[SmokeDevice], inferred: bool) -> list[Finding]:
    """Devices that differ from the CPU without any other's help."""
    return [
        finding(
            "output-mismatch" if inferred else "gradient-mismatch",
            "error",
            _called(device),
            say("The device {subject} computes another result than the CPU, even by itself.", subject=_called(device)),
            evidence=(
                _number(
                    say("difference of an output") if inferred else say("difference after one update"),
                    device.evidence.alone_difference,
                ),
            ),
            remedy=(say("Test the card in another slot; check memory errors, heat and power."),),
        )
        for device in devices
        if device.device is not None and not _within(device.evidence.alone_difference, TOLERANCE)
    ]


def _differing(
    key: str, devices: Sequence[SmokeDevice], replicas: Mapping[str, Mapping[str, Any]]
) -> dict[str, float | None]:
    """Devices whose counter is off by more than rounding, or is no number. One that did not count is
    not among them."""
    return {
        _called(device): replicas[device.device][key]
        for device in devices
        if device.device in replicas
        and key in replicas[device.device]
        and not _within(replicas[device.device][key], SUM_TOLERANCE)
    }


def _wrongly_fed(wrong: Mapping[str, float | None]) -> list[Finding]:
    """Devices whose own counter saw other samples than those of their shard."""
    return [
        finding(
            "shard-mismatch",
            "error",
            subject,
            say("The device {subject} was fed other samples than those of its shard.", subject=subject),
            evidence=(_number(say("difference of the sum of its images, as a share"), difference),),
            remedy=(
                say("Test the card in another slot; check its memory errors and its link."),
                say("Where every card is named, report it: then gpucheck itself divided the batch wrongly."),
            ),
        )
        for subject, difference in wrong.items()
    ]


def _wrongly_reduced(wrong: Mapping[str, float | None]) -> list[Finding]:
    """An all-reduce that gave something else than the sum of what was sent."""
    if not wrong:
        return []
    return [
        finding(
            "allreduce-mismatch",
            "error",
            next(iter(wrong)) if len(wrong) == 1 else "machine",
            say("The gradients that came back are not the sum of those that the replicas sent."),
            evidence=tuple(
                _number(say("{device}: difference of the checksum, as a share", device=device), difference)
                for device, difference in wrong.items()
            ),
            remedy=(say("Look at the way between the cards: set NCCL_P2P_DISABLE=1 and compare."),),
        )
    ]


def _within(value: float | None, limit: float) -> bool:
    return value is not None and value <= limit


def _number(source: str, value: float | None) -> Evidence:
    return Evidence(source=source, text=say("not a number") if value is None else f"{value:.3g}")


def _scaling(result: Mapping[str, Any], devices: Sequence[SmokeDevice]) -> Scaling | None:
    speeds = {_called(device): device.examples_per_second for device in devices if device.examples_per_second}
    single = [speed for speed in speeds.values() if speed]
    if not single:
        return None
    return Scaling(
        single=fmean(single),
        all=result["together_per_second"],
        efficiency=result["together_per_second"] / sum(single),
        slowest=min(speeds, key=lambda subject: speeds[subject] or 0.0),
    )


def _split(plan: Train, result: Mapping[str, Any], devices: Sequence[SmokeDevice]) -> Split:
    """Who had how many samples of a step, and what shares by speed gained."""
    speeds = [device.examples_per_second for device in devices if device.examples_per_second]
    even = result.get("even_per_second")
    return Split(
        kind="auto" if plan.job.by_speed else "even",
        shares={
            _called(device): device.evidence.samples // plan.job.steps
            for device in devices
            if device.evidence.samples is not None
        },
        slowest_pace=len(speeds) * min(speeds) if speeds else None,
        even_per_second=even,
        gain=result["together_per_second"] / even - 1 if even else None,
    )


def _slow(devices: Sequence[SmokeDevice]) -> list[Finding]:
    """Cards that are slower than others of the same name."""
    found = []
    for name in sorted({device.name for device in devices if device.name}):
        twins = [device for device in devices if device.name == name and device.examples_per_second]
        if len(twins) < 2:
            continue
        # The better half: with two cards the median would be half-way to the slow one.
        usual = median(sorted(device.examples_per_second or 0.0 for device in twins)[len(twins) // 2 :])
        for device in twins:
            speed = device.examples_per_second or 0.0
            if speed < SLOW * usual:
                found.append(
                    finding(
                        "gpu-slower-than-peers",
                        "warning",
                        _called(device),
                        say(
                            "The card at {subject} reaches {share:.0f} % of the speed of its twins.",
                            subject=_called(device),
                            share=100 * speed / usual,
                        ),
                        evidence=(
                            Evidence(source=say("speed alone"), text=say("{speed:.0f} samples/s", speed=speed)),
                            Evidence(source=say("speed of its twins"), text=say("{speed:.0f} samples/s", speed=usual)),
                        ),
                        remedy=(say("Look at temperature, power limit and link width of this card under load."),),
                    )
                )
    return found


# --- a training that did not ----------------------------------------------------------------------


def _no_devices(plan: Train, outcome: Outcome, build: TensorFlowBuild | None) -> Judgement:
    """TensorFlow started and listed no GPU."""
    devices = tuple(not_listed(card) for card in _absent(plan, ()))
    if build is not None and not build.cuda and not build.rocm:
        name = "tensorflow-cpu-only-build"
        message = say(
            "TensorFlow {version} was built without GPU support, so it can use none of the cards.",
            version=build.version,
        )
        remedy = say('Install a TensorFlow with GPU support: pip install "tensorflow[and-cuda]".')
    else:
        name = "tensorflow-sees-no-gpu"
        message = say("TensorFlow lists no GPU.")
        remedy = say("Run gpucheck probe: driver, library or visibility keep the cards from it.")
    if name == "tensorflow-cpu-only-build":
        evidence: tuple[Evidence, ...] = (
            Evidence(source="tf.test.is_built_with_cuda() or is_built_with_rocm()", text="False"),
        )
    else:
        evidence = _telling(outcome.stderr)
    known = bool(plan.cards)
    if known and name == "tensorflow-sees-no-gpu":
        message = plural(
            len(plan.cards),
            say("A card is on PCI, but TensorFlow lists no GPU."),
            say("{n} cards are on PCI, but TensorFlow lists no GPU.", n=len(plan.cards)),
        )
    return Judgement(
        # Where PCI could not be read, no card may be there at all.
        verdict="fail" if known else "not-run",
        headline=message,
        devices=devices,
        findings=(
            *plan.findings,
            finding(name, "error", "machine", message, evidence=evidence, remedy=(remedy,)),
        ),
        tensorflow=build,
    )


def _not_done(
    plan: Train, outcome: Outcome, samples: Sequence[Sample] | None, build: TensorFlowBuild | None
) -> Judgement:
    found = list(plan.findings)
    failure = outcome.failure or {}
    verdict: Verdict = "fail"
    if failure.get("module") == "tensorflow":
        verdict = "not-run"
        problem = finding(
            "tensorflow-missing",
            "error",
            "machine",
            say("TensorFlow is not installed for this Python, so nothing was trained."),
            evidence=(Evidence(source="import tensorflow", text=failure["message"]),),
            remedy=(say('Install it: pip install "gpucheck-server[smoke]" (with GPUs: [cuda]).'),),
        )
    elif outcome.ending in ("stuck", "late"):
        problem = finding(
            "smoke-timeout",
            "error",
            _subject(outcome),
            say(
                "The training made no progress for {limit:g} s. {at_work}"
                if outcome.ending == "stuck"
                else "The training was not done within {limit:g} s. {at_work}",
                limit=outcome.limit_seconds,
                at_work=_at_work(outcome),
            ),
            evidence=_telling(outcome.stderr),
            remedy=_after_hang(outcome),
        )
    else:
        # Before the first device is touched no card has been judged.
        verdict = "not-run" if outcome.phase in ("start", "import") else "fail"
        problem = finding(
            "smoke-worker-died",
            "error",
            _subject(outcome),
            _death(outcome),
            evidence=_telling(outcome.stderr),
            remedy=(say("Run gpucheck probe, and read the kernel log of that moment."),),
        )
    found.append(problem)
    found += _aftermath(outcome, samples or ())
    return Judgement(
        verdict=verdict,
        headline=problem.message,
        devices=tuple(not_listed(card) for card in _absent(plan, ())),
        findings=tuple(found),
        tensorflow=build,
    )


def _subject(outcome: Outcome) -> str:
    """The device that was at work alone, by its address where the log names it."""
    if outcome.phase != "alone" or outcome.device is None:
        return "machine"
    address, _ = _identities((), outcome.stderr).get(outcome.device, (outcome.device, ""))
    return address


def _at_work(outcome: Outcome) -> str:
    """What the worker was doing last, as a sentence of its own."""
    match outcome.phase:
        case "start" | "import":
            return say("TensorFlow was being loaded.")
        case "devices":
            return say("TensorFlow was looking for devices.")
        case "alone":
            return say("{device} was running by itself.", device=outcome.device)
        case "train":
            return say("Step {step} of the training was running.", step=outcome.step)
        case "infer":
            return say("Step {step} of the inference was running.", step=outcome.step)
        case "compare":
            return say("The comparison run on one device was running.")
        case _:
            return say("The speed of all devices was being measured.")


def _death(outcome: Outcome) -> str:
    at_work = _at_work(outcome)
    if outcome.failure is not None:
        return say(
            "The training process failed. {at_work} {kind}: {message}",
            at_work=at_work,
            kind=outcome.failure["kind"],
            message=_gist(outcome.failure["message"]),
        )
    if outcome.returncode is not None and outcome.returncode < 0:
        try:
            name = signal.Signals(-outcome.returncode).name
        except ValueError:
            name = str(-outcome.returncode)
        return say("The training process was ended by {name}. {at_work}", name=name, at_work=at_work)
    return say("The training process ended with code {code}. {at_work}", code=outcome.returncode, at_work=at_work)


def _gist(message: str) -> str:
    """The line that says what is wrong. TensorFlow puts a traceback in front of it, and behind it
    the node in double brackets; of several faults the first is ``(0)``."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    for line in lines:
        if line.startswith("(0) "):
            return line.removeprefix("(0) ").strip()
    for line, following in itertools.pairwise(lines):
        if following.startswith("[[{{node"):
            return line
    return lines[0] if lines else say("no message")


def _after_hang(outcome: Outcome) -> tuple[str, ...]:
    if outcome.phase in ("train", "infer", "together"):
        return (
            say("Each device ran by itself: set NCCL_P2P_DISABLE=1 and compare; if that helps, look at"
                " IOMMU and ACS."),
            say("A larger --timeout helps only a slow first start."),
        )  # fmt: skip
    return (say("Run gpucheck probe, and read the kernel log; a larger --timeout helps a slow first start."),)


def _telling(stderr: Sequence[str]) -> tuple[Evidence, ...]:
    """The lines of the log that speak of a GPU or an error, else its last lines."""
    lines = [line for line in stderr if line.strip()]
    chosen = [line for line in lines if _TELLING.search(line)][-5:] or lines[-3:]
    return tuple(Evidence(source=say("standard error of the training"), text=line) for line in chosen)
