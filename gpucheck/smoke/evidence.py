"""From what the worker and NVML saw to a verdict. Pure.

A card passes by what was counted on it. What could not be counted is named as unknown and never
counts in its favour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpucheck.findings import Finding, finding
from gpucheck.smoke.aftermath import left_over
from gpucheck.smoke.cards import (
    absent,
    by_address,
    called,
    doubts_of,
    identities_of,
    incidents,
    is_confirmed,
    missing,
    not_listed,
    nvml_evidence,
    shares_numbers,
    uncounted,
    unused,
)
from gpucheck.smoke.counters import risen
from gpucheck.smoke.endings import no_devices, not_done
from gpucheck.smoke.job import Mode
from gpucheck.smoke.numbers import OUTPUT_TOLERANCE, TOLERANCE, contradictions, scaling_of, slower_cards, split_of
from gpucheck.smoke.outcome import Judgement, Outcome, Watched
from gpucheck.smoke.plan import Train
from gpucheck.smoke.report import DeviceEvidence, Numerics, Scaling, SmokeDevice, TensorFlowBuild, Verdict
from gpucheck.text import plural, say


def judge(plan: Train, outcome: Outcome, watched: Watched | None = None, expect_gpus: int | None = None) -> Judgement:
    """Weigh a training.

    Args:
        plan: What was to be trained, and which cards should take part.
        outcome: What the worker said.
        watched: What was read of the cards meanwhile; None where nothing was.
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
    watched = watched or Watched()
    if outcome.ending != "done" or outcome.result is None:
        return not_done(plan, outcome, watched, build)
    if not outcome.result["devices"]:
        return no_devices(plan, outcome, build)
    return _weigh(plan, outcome, outcome.result, watched, expect_gpus, build)


def _weigh(
    plan: Train,
    outcome: Outcome,
    result: Mapping[str, Any],
    watched: Watched,
    expect_gpus: int | None,
    build: TensorFlowBuild | None,
) -> Judgement:
    on_gpu = plan.job.kind == "gpu"
    findings = list(plan.findings)
    replicas: dict[str, dict[str, Any]] = {replica["device"]: replica for replica in result["replicas"]}
    identities = identities_of(result["devices"], outcome.stderr)
    samples = by_address(watched.samples or ())
    shared = shares_numbers(outcome, watched.samples or ())
    logged = any(replica.get("computed_on") for replica in replicas.values())
    uuids = {card.address: card.uuid for card in plan.cards}
    devices: list[SmokeDevice] = []
    unproven: list[SmokeDevice] = []
    for entry in result["devices"]:
        replica = replicas.get(entry["device"], {})
        address, name = identities.get(entry["device"], (None, None))
        own = samples.get(address or "", ())
        nvml = nvml_evidence(own, outcome) if on_gpu else None
        doubts = doubts_of(plan, entry["device"], replica, nvml, logged=logged)
        unknown = uncounted(plan, address, replica, nvml) if on_gpu else ()
        device = SmokeDevice(
            device=entry["device"],
            address=address,
            uuid=uuids.get(address or "") or next((sample.uuid for sample in own if sample.uuid), None),
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
                risen=risen(address, watched.before, watched.after, own) if on_gpu and address else None,
                unknown=unknown,
            ),
        )
        devices.append(device)
        if doubts:
            findings.append(unused(called(device), doubts))
        elif nvml is not None and not is_confirmed(nvml, shared=shared):
            unproven.append(device)

    findings += missing(plan, {device.address for device in devices}, build)
    devices += [not_listed(card) for card in absent(plan, devices)]
    numerics = Numerics(
        compared="outputs" if plan.job.mode == "infer" else "parameters",
        max_param_difference=result.get("max_param_difference"),
        max_output_difference=result.get("max_output_difference"),
        replica_spread=result["replica_spread"],
        start_difference=result["start_difference"],
        tolerance=OUTPUT_TOLERANCE if plan.job.mode == "infer" else TOLERANCE,
        max_param_change=result.get("max_param_change"),
        max_output=result.get("max_output"),
        loss=tuple(result.get("loss", (None, None))),
    )
    findings += contradictions(numerics, devices, replicas)
    scaling = scaling_of(result, devices)
    split = split_of(plan, result, devices)
    if on_gpu:
        findings += slower_cards(devices)
        findings += incidents(devices, outcome, watched)
    findings += left_over(outcome, watched.samples or ())
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


_HEADLINES: dict[Mode, dict[str, tuple[str, str]]] = {
    "train": {
        "cpu-pass": (
            "Training on 1 logical CPU device is exact; it proves no GPU.",
            "Training on {n} logical CPU devices is exact; it proves no GPU.",
        ),
        "cpu-fail": (
            "Training on 1 logical CPU device failed; no GPU was involved.",
            "Training on {n} logical CPU devices failed; no GPU was involved.",
        ),
        "pass": (
            "The GPU trained, and the result is exact.",
            "All {n} GPUs trained together at {share:.0f} % of their added speed, and the result is exact.",
        ),
        "not-run": ("The training is exact, but NVML could not confirm {n} of {listed} GPUs.",) * 2,
        "fail": ("The training failed: {n} of {listed} GPUs that TensorFlow lists did their part.",) * 2,
        "fail-although": (
            "The training failed, although the GPU that TensorFlow lists did its part.",
            "The training failed, although all {n} GPUs that TensorFlow lists did their part.",
        ),
    },
    "infer": {
        "cpu-pass": (
            "Inference on 1 logical CPU device is exact; it proves no GPU.",
            "Inference on {n} logical CPU devices is exact; it proves no GPU.",
        ),
        "cpu-fail": (
            "Inference on 1 logical CPU device failed; no GPU was involved.",
            "Inference on {n} logical CPU devices failed; no GPU was involved.",
        ),
        "pass": (
            "The GPU inferred exactly what the CPU did; training was not tried.",
            "All {n} GPUs inferred exactly what the CPU did; training was not tried.",
        ),
        "not-run": ("The inference is exact, but NVML could not confirm {n} of {listed} GPUs.",) * 2,
        "fail": ("The inference failed: {n} of {listed} GPUs that TensorFlow lists did their part.",) * 2,
        "fail-although": (
            "The inference failed, although the GPU that TensorFlow lists did its part.",
            "The inference failed, although all {n} GPUs that TensorFlow lists did their part.",
        ),
    },
}
"""By mode and outcome the sentence for one device, and for several."""


def _headline(
    plan: Train,
    verdict: Verdict,
    devices: Sequence[SmokeDevice],
    unproven: Sequence[SmokeDevice],
    scaling: Scaling | None,
) -> str:
    used = sum(device.used for device in devices)
    listed = sum(device.device is not None for device in devices)
    if plan.job.kind == "cpu":
        outcome, count = ("cpu-pass", used) if verdict == "pass" else ("cpu-fail", listed)
    elif verdict == "fail":
        outcome, count = "fail" if used < listed else "fail-although", used
    else:
        outcome, count = verdict, used if verdict == "pass" else len(unproven)
    share = 100 * scaling.efficiency if scaling else 0.0
    headline = say(plural(count, *_HEADLINES[plan.job.mode][outcome]), n=count, listed=listed, share=share)
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
