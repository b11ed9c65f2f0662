"""Whether the work is right, and how fast it was. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from gpucheck.findings import Evidence, Finding, finding
from gpucheck.smoke.cards import called
from gpucheck.smoke.plan import Train
from gpucheck.smoke.report import Numerics, Scaling, SmokeDevice, Split
from gpucheck.text import say

TOLERANCE = 1e-5
"""Rounding of float32 leaves below 1e-6, any fault of weighting or reduction above 1e-2."""

OUTPUT_TOLERANCE = 1e-4
"""Outputs are larger than parameters, and no learning rate damps their rounding, which leaves about 1e-6."""

LEAST_CHANGE = 100 * TOLERANCE

SUM_TOLERANCE = 1e-5
"""Share by which sums of float32 may differ: rounding leaves about 1e-8, other samples or a part that is
missing from a sum above 1e-3."""

SLOW = 0.85
"""Share of the median speed of equal cards under which one of them is slow."""


def contradictions(
    numerics: Numerics, devices: Sequence[SmokeDevice], replicas: Mapping[str, Mapping[str, Any]]
) -> list[Finding]:
    """What the numbers speak against. A cause that is named stands for what follows from it."""
    inferred = numerics.compared == "outputs"
    causes = [
        *_wrong_alone(devices, inferred),
        *_wrongly_fed(_differing("fed_difference", devices, replicas)),
        *_wrongly_reduced(_differing("reduced_difference", devices, replicas)),
    ]
    if numerics.start_difference != 0:
        causes.append(
            _diverged(
                devices,
                say("A replica began with other parameters than those that it was given."),
                _number(say("largest difference before the first step"), numerics.start_difference),
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
                evidence=(_number(say("largest output") if inferred else say("largest change of a parameter"), moved),),
            )
        )
    return found


def _diverged(devices: Sequence[SmokeDevice], message: str, evidence: Evidence, remedy: str) -> Finding:
    furthest = max(
        devices, key=lambda device: device.evidence.param_difference or device.evidence.output_difference or 0.0
    )
    return finding("replica-diverged", "error", called(furthest), message, evidence=(evidence,), remedy=(remedy,))


def _wrong_alone(devices: Sequence[SmokeDevice], inferred: bool) -> list[Finding]:
    """Devices that differ from the CPU without any other's help."""
    return [
        finding(
            "output-mismatch" if inferred else "gradient-mismatch",
            "error",
            called(device),
            say("The device {subject} computes another result than the CPU, even by itself.", subject=called(device)),
            evidence=(
                _number(
                    say("difference of an output") if inferred else say("difference after one update"),
                    device.evidence.alone_difference,
                ),
            ),
            remedy=(say("Test the card in another slot; check memory errors, heat and power."),),
        )
        for device in devices
        if device.device is not None
        and not _within(device.evidence.alone_difference, OUTPUT_TOLERANCE if inferred else TOLERANCE)
    ]


def _differing(
    key: str, devices: Sequence[SmokeDevice], replicas: Mapping[str, Mapping[str, Any]]
) -> dict[str, float | None]:
    """Devices whose counter is off by more than rounding, or is no number. One that did not count is
    not among them."""
    counted = [(called(device), replicas.get(device.device or "", {})) for device in devices]
    return {
        subject: replica[key]
        for subject, replica in counted
        if key in replica and not _within(replica[key], SUM_TOLERANCE)
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


def scaling_of(result: Mapping[str, Any], devices: Sequence[SmokeDevice]) -> Scaling | None:
    """How fast the devices were alone and together; None where none was measured alone."""
    speeds = {called(device): device.examples_per_second for device in devices if device.examples_per_second}
    single = [speed for speed in speeds.values() if speed]
    if not single:
        return None
    return Scaling(
        single=fmean(single),
        all=result["together_per_second"],
        efficiency=result["together_per_second"] / sum(single),
        slowest=min(speeds, key=lambda subject: speeds[subject] or 0.0),
    )


def split_of(plan: Train, result: Mapping[str, Any], devices: Sequence[SmokeDevice]) -> Split:
    """Who had how many samples of a step, and what shares by speed gained."""
    speeds = [device.examples_per_second for device in devices if device.examples_per_second]
    even = result.get("even_per_second")
    return Split(
        kind="auto" if plan.job.by_speed else "even",
        shares={
            called(device): device.evidence.samples // plan.job.steps
            for device in devices
            if device.evidence.samples is not None
        },
        slowest_pace=len(speeds) * min(speeds) if speeds else None,
        even_per_second=even,
        gain=result["together_per_second"] / even - 1 if even else None,
    )


def slower_cards(devices: Sequence[SmokeDevice]) -> list[Finding]:
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
                        called(device),
                        say(
                            "The card at {subject} reaches {share:.0f} % of the speed of its twins.",
                            subject=called(device),
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
