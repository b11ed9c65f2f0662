"""A training that did not come to its end, and why. Pure."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpucheck.findings import Evidence, finding
from gpucheck.smoke.aftermath import left_over
from gpucheck.smoke.cards import absent, by_address, identities_of, incidents, not_listed, nvml_evidence
from gpucheck.smoke.counters import risen
from gpucheck.smoke.outcome import Judgement, Outcome, Watched
from gpucheck.smoke.plan import Card, Train
from gpucheck.smoke.report import DeviceEvidence, TensorFlowBuild, Verdict
from gpucheck.text import plural, say

if TYPE_CHECKING:
    from gpucheck.readers.nvml_watch import Sample

LOST = ("gpu-fell-off-bus", "nvml-gpu-lost")

_TELLING = re.compile(
    r"dlopen|cuda drivers|cuInit|CUDA_ERROR|failed call|Skipping registering|compute capability"
    r"|Ignoring visible gpu|not built with|NCCL|Could not find|Error|error|Xid",
)


def no_devices(plan: Train, outcome: Outcome, build: TensorFlowBuild | None) -> Judgement:
    """TensorFlow started and listed no GPU."""
    devices = tuple(not_listed(card) for card in absent(plan, ()))
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


def not_done(plan: Train, outcome: Outcome, watched: Watched, build: TensorFlowBuild | None) -> Judgement:
    """The worker failed, died or was ended. What was seen of the cards until then may be the cause."""
    found = list(plan.findings)
    failure = outcome.failure or {}
    loading = outcome.phase in ("start", "import")
    # Before the first device is touched no card has been judged.
    verdict: Verdict = "not-run" if loading else "fail"
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
        problem = finding(
            "smoke-worker-died",
            "error",
            _subject(outcome),
            _death(outcome),
            evidence=_telling(outcome.stderr),
            remedy=(
                say('Try python -c "import tensorflow": where that fails too, install TensorFlow anew.')
                if loading
                else say("Run gpucheck probe, and read the kernel log of that moment."),
            ),
        )
    found.append(problem)
    headline = problem.message
    devices = tuple(not_listed(card) for card in absent(plan, ()))
    if plan.job.kind == "gpu" and problem.name != "tensorflow-missing":
        samples = by_address(watched.samples or ())
        devices = tuple(
            not_listed(card, _evidence(card, outcome, watched, samples.get(card.address, ())))
            for card in absent(plan, ())
        )
        seen = incidents(devices, outcome, watched)
        headline = next((item.message for item in seen if item.name in LOST), headline)
        found += seen
    found += left_over(outcome, watched.samples or ())
    return Judgement(
        verdict=verdict,
        headline=headline,
        devices=devices,
        findings=tuple(found),
        tensorflow=build,
    )


def _evidence(card: Card, outcome: Outcome, watched: Watched, own: Sequence[Sample]) -> DeviceEvidence:
    return DeviceEvidence(
        nvml=nvml_evidence(own, outcome) if own else None,
        risen=risen(card.address, watched.before, watched.after, own),
    )


def _subject(outcome: Outcome) -> str:
    """The device that was at work alone, by its address where the log names it."""
    if outcome.phase != "alone" or outcome.device is None:
        return "machine"
    address, _ = identities_of((), outcome.stderr).get(outcome.device, (outcome.device, ""))
    return address


def _at_work(outcome: Outcome) -> str:
    """What the worker was doing last, as a sentence of its own."""
    match outcome.phase:
        case "start" | "import":
            return say("TensorFlow was being loaded.")
        case "devices":
            return say("TensorFlow was looking for devices.")
        case "join":
            return say("TensorFlow was joining the other hosts.")
        case "alone":
            return say("{device} was running by itself.", device=outcome.device)
        case "train":
            return say("Step {step} of the training was running.", step=outcome.step)
        case "infer":
            return say("Step {step} of the inference was running.", step=outcome.step)
        case "compare":
            return say("The comparison run on one device was running.")
        case "soak":
            return say("The soak was running.")
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
