"""Sentences on a training that every form of its report shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gpucheck.smoke.job import JOIN
from gpucheck.text import say

if TYPE_CHECKING:
    from gpucheck.findings import Finding
    from gpucheck.smoke.report import Network, Numerics, Scaling, SmokeDevice, SmokeReport, Split


def layout(report: SmokeReport) -> str:
    """Strategy and mode."""
    match report.strategy:
        case "central":
            strategy = say("Strategy central: one copy of the parameters, which all devices read.")
        case "model":
            strategy = say("Strategy model: both layers of a net are cut over all devices.")
        case "hybrid":
            strategy = say("Strategy hybrid: on a mesh of devices, rows share the batch and columns the layers.")
        case _:
            strategy = say("Strategy mirrored: a copy of the net on every device.")
    if report.mode == "infer":
        return say(
            "{strategy} Forward passes only, so nothing is said of the exchange of gradients.", strategy=strategy
        )
    return strategy


def numbers(numerics: Numerics) -> str:
    """How far the results are from those of one device."""
    if numerics.compared == "outputs":
        return say(
            "Outputs differ by at most {difference} (allowed {tolerance}).",
            difference=small(numerics.max_output_difference),
            tolerance=small(numerics.tolerance),
        )
    return say(
        "Parameters differ by at most {difference} (allowed {tolerance}), replicas among themselves by {spread}.",
        difference=small(numerics.max_param_difference),
        tolerance=small(numerics.tolerance),
        spread=small(numerics.replica_spread),
    )


def speed(scaling: Scaling) -> str:
    """The group against each device alone."""
    if round(scaling.all / scaling.efficiency / scaling.single) == 1:  # one device
        return say(
            "{all:,.0f} examples/s in the training, {single:,.0f} by itself.", all=scaling.all, single=scaling.single
        )
    return say(
        "{all:,.0f} examples/s together, {single:,.0f} by one device alone on average ({efficiency:.0%} of "
        "the sum). The slowest, which the group waits for: {slowest}.",
        all=scaling.all,
        single=scaling.single,
        efficiency=scaling.efficiency,
        slowest=scaling.slowest,
    )


def shares(split: Split) -> str | None:
    """What shares by speed gained; None for even shares."""
    if split.even_per_second is None or split.gain is None or split.slowest_pace is None:
        return None
    return say(
        "Shares by speed ({shares} samples a step) give {gain:+.0%} against even shares, which reached "
        "{even:,.0f} examples/s; all at the slowest one's pace alone would be {pace:,.0f}.",
        shares=", ".join(f"{device} {count}" for device, count in split.shares.items()),
        gain=split.gain,
        even=split.even_per_second,
        pace=split.slowest_pace,
    )


def network(step: Network) -> str:
    """A step of all hosts against one of the slowest worker alone."""
    return say(
        "A step takes {alone:.1f} ms of the slowest worker's own work ({slowest}) and {together:.1f} ms with all: "
        "{share:.0%} of it is exchange ({kib:,.0f} KiB of gradients per device) and waiting.",
        alone=1000 * step.step_alone_seconds,
        slowest=step.slowest,
        together=1000 * step.step_together_seconds,
        share=step.share,
        kib=step.gradient_bytes / 1024,
    )


def no_gpu(report: SmokeReport) -> str | None:
    """That nothing was proved of a GPU, where only logical devices took part."""
    if report.proves_gpu or not report.devices or any(device.address is not None for device in report.devices):
        return None
    if any((device.device or "").startswith("GPU") for device in report.devices):
        return None
    return say("These are logical devices of the CPU: no GPU was proved, only that the work is divided rightly.")


def pace(report: SmokeReport) -> str | None:
    """The group against as many devices of the slowest one's speed. None where it was not measured."""
    devices = sum(device.examples_per_second is not None for device in report.devices)
    if report.strategy in ("model", "hybrid"):
        return None  # they divide the layers
    if report.scaling is None or report.split is None or not report.split.slowest_pace or devices < 2:
        return None
    return say(
        "That is {share:.0%} of {n} × the slowest ({pace:,.0f} examples/s), the measure for even shares.",
        share=report.scaling.all / report.split.slowest_pace,
        n=devices,
        pace=report.split.slowest_pace,
    )


Fate = Literal["passed", "failed", "unconfirmed", "left-out"]


def fate(report: SmokeReport, device: SmokeDevice) -> Fate:
    """What became of one device. ``unconfirmed``: nothing speaks against it, and NVML could not show its
    work. ``left-out``: nobody asked it to take part, or nothing came so far."""
    if errors_of(report, device):
        return "failed"
    if device.device is None:
        return "left-out"
    if not device.used:
        return "failed"
    if not device.device.startswith("GPU"):
        return "passed"
    from gpucheck.smoke.cards import is_confirmed

    nvml = device.evidence.nvml
    shared = any(other.evidence.nvml is not None and other.evidence.nvml.process_seen for other in report.devices)
    return "passed" if nvml is not None and is_confirmed(nvml, shared=shared) else "unconfirmed"


def errors_of(report: SmokeReport, device: SmokeDevice) -> list[Finding]:
    """Errors that name this device."""
    names = {device.address, device.device} - {None}
    return [
        finding
        for finding in report.findings
        if finding.severity == "error" and names & {finding.subject, *finding.subject.split(JOIN)}
    ]


def in_words(outcome: Fate) -> str:
    """As a cell of a table."""
    match outcome:
        case "passed":
            return say("did its part")
        case "failed":
            return say("FAILED")
        case "unconfirmed":
            return say("not confirmed")
        case _:
            return say("not in it")


def seen(device: SmokeDevice) -> tuple[str, ...] | None:
    """What NVML saw of a card, as cells under :data:`SEEN`; None for what NVML did not look at."""
    nvml = device.evidence.nvml
    if nvml is None:
        return None
    watts = None
    if nvml.most_watts is not None and nvml.idle_watts is not None:
        watts = f"{nvml.idle_watts:.0f} → {nvml.most_watts:.0f} W"
    clocks = None if nvml.clocks_mhz is None else "{}-{} MHz".format(*nvml.clocks_mhz)
    return tuple(
        "?" if cell is None else cell
        for cell in (
            None if nvml.memory_growth_bytes is None else f"+{nvml.memory_growth_bytes >> 20} MiB",
            None if nvml.busy_percent is None else f"{nvml.busy_percent} %",
            None if nvml.busy_seconds is None else f"{nvml.busy_seconds:.1f} s",
            watts,
            clocks,
            None if nvml.most_celsius is None else f"{nvml.most_celsius} °C",
        )
    )


SEEN = ("memory", "busy", "busy time", "power", "clock", "heat")


def small(value: float | None) -> str:
    """A difference in one digit."""
    return "?" if value is None else "0" if value == 0 else f"{value:.0e}"
