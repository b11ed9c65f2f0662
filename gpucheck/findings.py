"""Findings and checks: the one vocabulary that probe, advise, smoke and check share.

A :class:`Finding` says what is wrong; a :class:`Check` is a question that ``advise`` asked and its
outcome. :data:`CODES` is the only table of names: a name describes the problem, never the remedy,
and a code is never used again for something else.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gpucheck import __version__
from gpucheck.errors import GpucheckError
from gpucheck.text import Text, clean

Severity = Literal["error", "warning", "info"]
Confidence = Literal["certain", "likely", "possible"]
Outcome = Literal["pass", "change", "fail", "unknown"]

SEVERITY_ORDER: dict[str, int] = {"error": 0, "warning": 1, "info": 2}


class Document(BaseModel):
    """Base of what is printed: immutable and strict, like the facts."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, populate_by_name=True, serialize_by_alias=True
    )


def now() -> str:
    """The time that a document carries: UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Printed(Document):
    """What every document starts with. ``headline`` is the answer in one sentence."""

    schema_: str = Field(alias="schema")
    gpucheck: str = __version__
    time: str = Field(default_factory=now)
    headline: str
    verdict: str
    exit_code: int


class Listing(Printed):
    """A look-up: no judgement, only content. ``gpucheck/explain/1``, ``gpucheck/catalog-list/1`` and so on."""

    model_config = ConfigDict(extra="allow")

    verdict: Literal["ok", "faults"] = "ok"
    exit_code: int = 0


class Evidence(Document):
    """One line that was read, word for word apart from control characters."""

    source: Text
    """Where it was read: a path, a command, a call."""
    text: Text


class Reading(Document):
    """One possible result of a test and what it would mean."""

    seen: str
    means: str


class NextTest(Document):
    """A step that tells several possible causes apart."""

    do: str
    outcomes: tuple[Reading, ...]


class Finding(Document):
    """Something that is wrong, or worth knowing, with what it rests on and what to do."""

    code: str
    name: str
    severity: Severity
    subject: Text
    """PCI address, slot, socket or PSU; ``machine`` for the whole of it."""
    message: Text
    evidence: tuple[Evidence, ...] = ()
    remedy: tuple[str, ...] = ()
    next_test: tuple[NextTest, ...] = ()
    confidence: Confidence = "certain"
    sources: tuple[str, ...] = ()


class Citation(Document):
    """What a statement about a product rests on."""

    entry: str | None = None
    """Id of the catalog entry in whose ``[sources]`` it stands; None: in none."""
    key: str | None = None
    """Its key there."""
    title: str
    where: str | None = None
    confidence: str


class Check(Document):
    """A question that was asked of a plan or a policy, and its outcome."""

    topic: str
    outcome: Outcome
    message: str
    finding: str | None = None
    """Name of the finding that this would become on a real machine."""
    sources: tuple[Citation, ...] = ()


class Change(Document):
    """One difference between a machine and its baseline; None where there was, or is, nothing."""

    subject: Text
    """PCI address, socket or PSU; ``machine`` for the whole of it."""
    what: str
    """``card``, ``place``, ``address``, ``link-width``, ``card-memory``, ``vbios``, ``bound-driver``, ``fault``,
    ``cpu-socket``, ``cpu-model``, ``memory``, ``power-supply``, ``board``, ``bios-version``, ``nvidia-driver``,
    ``kernel``."""
    before: Text | None
    after: Text | None


class Unchecked(Document):
    """A rule that could not be applied, and the facts it lacked."""

    name: str
    missing: tuple[str, ...]


class Code(Document):
    """One row of the registry."""

    code: str
    name: str
    stage: int
    """Triage order: 0 told by a comparison, 1 seen, 2 addressed, 3 driver, 4 NVML, 5 hidden, 6 framework, 7 link,
    power and health, 8 counts. Causes come before counts."""
    summary: str


def _table(*rows: tuple[str, str, int, str]) -> dict[str, Code]:
    return {name: Code(code=code, name=name, stage=stage, summary=summary) for code, name, stage, summary in rows}


CODES: dict[str, Code] = _table(
    ("GC101", "gpu-count-mismatch", 8, "Fewer cards than expected, or levels that disagree, unexplained."),
    ("GC102", "no-gpu-found", 8, "No GPU on any level that could be looked at."),
    ("GC103", "gpu-fell-off-bus", 1, "A card stopped answering on the PCI bus."),
    ("GC105", "visibility-limited", 5, "Cards are hidden from this process."),
    ("GC106", "mig-limits-process", 5, "A card is partitioned: a process sees one part of it, or nothing."),
    ("GC107", "gpu-lost-since-baseline", 1, "A card that the baseline has is gone."),
    ("GC108", "machine-changed", 8, "The machine differs from its baseline in something that matters."),
    ("GC109", "fault-stays-with-slot", 0, "After cards changed places, the fault is where it was."),
    ("GC110", "fault-moves-with-card", 0, "After a card was moved, its fault is in the new place."),
    ("GC111", "differs-from-twins", 8, "A machine of a fleet differs from its twins."),
    ("GC201", "link-width-reduced", 7, "A link trained narrower than card and slot allow."),
    ("GC202", "link-speed-reduced", 7, "A link runs slower under load than card and slot allow."),
    ("GC203", "link-errors", 1, "The link of a card makes errors."),
    ("GC204", "link-down", 1, "Something is plugged in, but its link is down."),
    ("GC205", "peer-access-blocked", 5, "Cards cannot copy to each other directly."),
    ("GC206", "peer-limit-exceeded", 5, "More GPUs than can have peer access to each other."),
    ("GC301", "cpu-socket-empty", 1, "Slots that belong to an empty CPU socket are dead."),
    # After what else can make a slot silent.
    ("GC104", "gpu-suspect", 1, "One card, or its slot, is the odd one among healthy twins."),
    ("GC401", "psu-unplugged", 7, "A power supply is fitted but has no mains."),
    ("GC402", "psu-missing", 7, "A power supply bay is empty."),
    ("GC403", "psu-undersized", 7, "Cards and processors may draw more than the power supplies give."),
    ("GC404", "psu-redundancy-lost", 7, "A power supply has failed, or their redundancy is lost or reduced."),
    ("GC405", "power-brake", 7, "A card is held at low clocks because of power."),
    ("GC501", "thermal-slowdown", 7, "A card runs slower because it is too hot."),
    ("GC502", "ecc-uncorrectable", 7, "Memory of a card had errors that could not be corrected."),
    ("GC504", "vram-defect", 7, "Memory of a card does not hold what is written to it."),
    ("GC503", "memory-retired", 7, "Bad memory of a card was taken out of use, or waits for it."),
    # The causes that can be shown run first: bar-unassigned is for the rest.
    ("GC604", "vm-mmio-window-too-small", 2, "A virtual machine's memory window has no room for a card's BAR."),
    ("GC602", "address-space-too-small", 2, "The processor's address space cannot hold a card's BAR."),
    ("GC603", "bus-resources-exhausted", 2, "Other devices eat the addresses or bus numbers that a card needs."),
    ("GC601", "bar-unassigned", 2, "A memory BAR of a card got no address."),
    ("GC701", "nouveau-bound", 3, "The nouveau driver holds an NVIDIA card."),
    ("GC702", "vfio-bound", 3, "vfio-pci holds a card for a virtual machine."),
    # Causes before what they cause: within a stage the rules run in this order.
    ("GC708", "module-load-blocked", 3, "NVIDIA's kernel module is there, but this kernel may not load it."),
    ("GC709", "driver-dropped-gpu", 3, "The NVIDIA driver that is loaded does not drive this generation of cards."),
    ("GC710", "open-module-unsupported", 3, "NVIDIA's open kernel modules do not drive this card."),
    ("GC712", "gpu-init-failed", 3, "The right driver cannot start the card."),
    ("GC711", "fabric-manager-missing", 3, "The NVSwitches are not set up: no fabric manager runs."),
    ("GC703", "no-driver-bound", 3, "A driver is there, but none is bound to the card."),
    ("GC704", "driver-not-installed", 3, "No NVIDIA driver is installed for this kernel."),
    ("GC705", "driver-library-mismatch", 3, "Kernel module and user library have different versions."),
    ("GC706", "nvml-unavailable", 4, "NVML cannot start although an NVIDIA card is there."),
    ("GC707", "nvml-timeout", 4, "NVML did not answer in time."),
    ("GC714", "nvml-gpu-lost", 4, "NVML cannot reach one card."),
    ("GC713", "xid-reported", 7, "The NVIDIA driver reported an error of a card (Xid) that no other finding explains."),
    ("GC801", "gpu-unused-in-training", 6, "A card took no part in the training."),
    ("GC802", "gradient-mismatch", 6, "The training differs from the single-device training."),
    ("GC803", "replica-diverged", 6, "The replicas ended with different parameters."),
    ("GC804", "smoke-timeout", 6, "The training stopped making progress."),
    ("GC805", "smoke-worker-died", 6, "The training process ended before it was done."),
    ("GC806", "gpu-slower-than-peers", 6, "One card is slower than the others and sets the pace of all."),
    ("GC807", "tensorflow-missing", 6, "TensorFlow is not installed for this Python."),
    ("GC808", "tensorflow-sees-no-gpu", 6, "A card is on PCI but TensorFlow lists no GPU."),
    ("GC809", "tensorflow-cpu-only-build", 6, "The installed TensorFlow was built without GPU support."),
    ("GC810", "memory-not-released", 6, "Device memory is still in use after the training ended."),
    ("GC811", "process-left-behind", 6, "A process of the training outlived it."),
    ("GC812", "gpu-busy", 6, "A card is in use by another process."),
    ("GC813", "tensorflow-cuda-libraries-missing", 6, "TensorFlow finds no CUDA libraries."),
    ("GC814", "tensorflow-no-kernels-for-gpu", 6, "The installed TensorFlow holds no code for a card."),
    ("GC815", "tensorflow-cudnn-too-new", 6, "The cuDNN beside TensorFlow holds no code for a card before Turing."),
    ("GC816", "cpu-lacks-avx", 6, "The processor has no AVX, which TensorFlow's packages need."),
    ("GC817", "tensorflow-ignores-gpu", 6, "TensorFlow leaves out a card that it could see."),
    ("GC818", "worker-lost", 6, "A worker on another host never came, or was lost in the training."),
    ("GC819", "network-slow", 6, "Most of a training step is exchange between hosts and waiting."),
    ("GC821", "pair-hangs", 6, "Two cards hang when they work together."),
    ("GC822", "peer-access-hangs", 6, "Cards hang when they copy to each other directly."),
    ("GC823", "smoke-interrupted", 6, "The last training never came to its end."),
    ("GC820", "allreduce-mismatch", 6, "What the replicas got back is not the sum of what they sent."),
    ("GC824", "gpu-throttled-in-training", 7, "A card was slowed down by brake, heat or power while it trained."),
    ("GC825", "link-errors-in-training", 7, "The link of a card made errors while it trained."),
    ("GC826", "shard-mismatch", 6, "A device was fed other samples than those of its shard."),
    ("GC827", "output-mismatch", 6, "An inference gives other outputs than the same net on one device."),
    ("GC828", "memory-errors-in-training", 7, "The memory of a card made errors while it trained."),
)
"""Name to code. A rule module of the same name (underscores) holds the explanation."""

BY_CODE: dict[str, Code] = {code.code: code for code in CODES.values()}


def finding(
    name: str,
    severity: Severity,
    subject: str,
    message: str,
    *,
    evidence: tuple[Evidence, ...] = (),
    remedy: tuple[str, ...] = (),
    next_test: tuple[NextTest, ...] = (),
    confidence: Confidence = "certain",
    sources: tuple[str, ...] = (),
) -> Finding:
    """Build a finding by its registered name. KeyError for a name that is not in CODES."""
    return Finding(
        code=CODES[name].code,
        name=name,
        severity=severity,
        subject=subject,
        message=message,
        evidence=evidence,
        remedy=remedy,
        next_test=next_test,
        confidence=confidence,
        sources=sources,
    )


def in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """Severity, then triage order (causes before counts), then subject."""
    return tuple(sorted(findings, key=lambda f: (SEVERITY_ORDER[f.severity], CODES[f.name].stage, f.subject, f.code)))


def untold(findings: Iterable[Finding], unchecked: Iterable[Unchecked]) -> list[str]:
    """Names of the rules that lacked facts and found nothing: one that found something has spoken already."""
    spoken = {finding.name for finding in findings}
    return [row.name for row in unchecked if row.name not in spoken]


class ErrorBody(Document):
    """What is at fault, why, and what to do."""

    input: str | None
    message: str
    hint: str | None


class ErrorDocument(Printed):
    """``gpucheck/error/1``: what a command prints with ``--json`` when it cannot answer."""

    schema_: Literal["gpucheck/error/1"] = Field(default="gpucheck/error/1", alias="schema")
    verdict: Literal["error"] = "error"
    error: ErrorBody

    @classmethod
    def of(cls, error: GpucheckError) -> ErrorDocument:
        """The document for an exception."""
        return cls(
            headline=clean(error.message),
            exit_code=error.exit_code,
            error=ErrorBody(
                input=clean(error.input) if error.input else None, message=clean(error.message), hint=error.hint
            ),
        )
