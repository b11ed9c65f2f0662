"""Sentences on a training that every form of its report shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucheck.text import say

if TYPE_CHECKING:
    from gpucheck.smoke.report import Network, Numerics, Scaling, SmokeReport, Split


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
        return say("{strategy} Forward passes only, so nothing is said of the exchange of gradients.", strategy=strategy)
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


def small(value: float | None) -> str:
    """A difference in one digit."""
    return "?" if value is None else "0" if value == 0 else f"{value:.0e}"
