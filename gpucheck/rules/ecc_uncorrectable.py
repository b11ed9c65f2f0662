"""Memory of a card had errors that could not be corrected.

What it means
The card's memory checks itself (ECC). It corrects single wrong bits; this counts those that it could
not correct, for which it stops the program instead of computing with wrong values.

How we know
NVML counts them since the driver was loaded (volatile) and in the life of the card (aggregate).

Why it matters
Each ends a program. A card that has one often has more, under load above all.

What to do
Since the driver was loaded: end the jobs, reset the card or reboot, and run a memory test. If it
happens again on the same card, have it replaced. Only earlier ones: watch the count.

When it is wrong
Earlier errors say little about today: the rows or pages concerned are long replaced (memory-retired
tells). Consumer cards without ECC count nothing, which does not mean that they have no errors.

Sources
https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html (errors, containment, replacement)
https://docs.nvidia.com/deploy/dynamic-page-retirement/index.html (cards before Ampere)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Gpu, Machine, NvmlGpu
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.rules import View
from gpucheck.rules._nvml import read_cards, unread
from gpucheck.rules._shared import label, log_evidence, log_lines
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ("gpus", "nvml")

CALL = "nvmlDeviceGetTotalEccErrors"
LAST_LINES = 2
_XIDS = tuple(f": {number}," for number in (48, 94, 95))
"""Xids of uncorrectable errors: double bit, contained, uncontained."""


def lacks(machine: Machine) -> Iterator[str]:
    """Cards that could count and were not read; a card whose ECC is off counts nothing."""
    off = {f"gpus.{gpu.address}.nvml" for gpu, seen in read_cards(machine) if seen.ecc_enabled is False}
    for name in unread(machine, {"ecc_volatile_uncorrected": (CALL,)}):
        if name.rpartition(".")[0] not in off:
            yield name


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding for each card: an error where they happened since the driver was loaded."""
    for gpu, seen in read_cards(machine):
        if seen.ecc_volatile_uncorrected:
            yield _recent(machine, gpu, seen, seen.ecc_volatile_uncorrected)
        elif seen.ecc_aggregate_uncorrected:
            yield _earlier(gpu, seen, seen.ecc_aggregate_uncorrected)


def _recent(machine: Machine, gpu: Gpu, seen: NvmlGpu, count: int) -> Finding:
    template = plural(
        count,
        "{card} had a memory error that could not be corrected since its driver was loaded.",
        "{card} had {count} memory errors that could not be corrected since its driver was loaded.",
    )
    log, place = machine.kernel_log, gpu.address.removesuffix(".0")
    lines = [
        line
        for _, line in log_lines(machine, "Xid (")
        if place in line.lower() and any(number in line for number in _XIDS)
    ]
    return finding(
        "ecc-uncorrectable",
        "error",
        gpu.address,
        say(template, card=label(gpu), count=count),
        evidence=(*_counts(seen), *(log_evidence(log, line) for line in lines[-LAST_LINES:] if log is not None)),
        remedy=(
            say("End what uses the card and reset it (sudo nvidia-smi --gpu-reset -i {address}), or reboot.",
                address=gpu.address),
            say("Run a memory test, such as dcgmi diag -r 3, and look at the count again."),
            say("If it happens again on this card, have it replaced."),
        ),
    )  # fmt: skip


def _earlier(gpu: Gpu, seen: NvmlGpu, count: int) -> Finding:
    template = plural(
        count,
        "{card} had a memory error that could not be corrected earlier in its life, and none since its driver was "
        "loaded.",
        "{card} had {count} memory errors that could not be corrected earlier in its life, and none since its driver "
        "was loaded.",
    )
    if seen.ecc_volatile_uncorrected is None:
        template = plural(
            count,
            "{card} had a memory error that could not be corrected in its life; when is not known.",
            "{card} had {count} memory errors that could not be corrected in its life; when is not known.",
        )
    return finding(
        "ecc-uncorrectable",
        "warning",
        gpu.address,
        say(template, card=label(gpu), count=count),
        evidence=_counts(seen),
        remedy=(say("Note the count and look again after some days of load: if it rises, have the card replaced."),),
    )


def _counts(seen: NvmlGpu) -> tuple[Evidence, ...]:
    counts = (
        (say("uncorrected since the driver was loaded: {count}", count=seen.ecc_volatile_uncorrected),
         seen.ecc_volatile_uncorrected),
        (say("uncorrected in the card's life: {count}", count=seen.ecc_aggregate_uncorrected),
         seen.ecc_aggregate_uncorrected),
    )  # fmt: skip
    return tuple(Evidence(source=CALL, text=text) for text, count in counts if count is not None)
