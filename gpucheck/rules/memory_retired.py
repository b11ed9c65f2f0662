"""Bad memory of a card was taken out of use, or waits for it.

What it means
The driver takes weak memory out of use: pages of 64 KiB on cards before Ampere, rows that spare rows
replace from Ampere on. It takes effect at the next reset of the card or load of the driver. A remapping
can fail, mostly because the spare rows there have run out.

How we know
NVML counts pages and rows, and says whether some wait and whether a remapping has failed.

Why it matters
Some are normal in a card's life and cost nothing. While some wait, the driver keeps programs off the bad
place as well as it can. A failed remapping means that the card cannot mend itself any more: it is what
NVIDIA replaces cards for.

What to do
Pending: end the jobs and reset the card or reboot. Failed: have the card replaced, if NVIDIA's field
diagnostic confirms it. Otherwise note the count and see whether it rises.

When it is wrong
A few retired pages or rows are no fault. Used cards come with some: compare with their twins. A card
before Ampere retires 64 pages at most; from 48 on this is a warning, which is our own measure.

Sources
https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/row-remapping.html (rows, spare rows, reset)
https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/rma-policy-thresholds-for-row-remapping.html (replacement)
https://docs.nvidia.com/deploy/dynamic-page-retirement/index.html (pages)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Gpu, Machine, NvmlGpu
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.nvml_codes import NOT_SUPPORTED
from gpucheck.rules import View
from gpucheck.rules._nvml import read_cards, unread
from gpucheck.rules._shared import label
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ("gpus", "nvml")

PAGES, PENDING, ROWS = (
    "nvmlDeviceGetRetiredPages",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetRemappedRows",
)
MOST_PAGES = 64
"""A card before Ampere retires no more."""
MANY_PAGES = 48
"""Three quarters of it: worth a warning."""


def lacks(machine: Machine) -> Iterator[str]:
    """Cards of which neither pages nor rows were read: a card has either, or none."""
    yield from unread(machine, {})
    for gpu, seen in read_cards(machine):
        refused = NOT_SUPPORTED in (seen.errors.get(PENDING), seen.errors.get(ROWS))
        if seen.retired_pages_pending is None and seen.remapped_rows_pending is None and not refused:
            yield f"gpus.{gpu.address}.nvml.remapped_rows_pending"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """At most one finding for each card, of the gravest that holds."""
    for gpu, seen in read_cards(machine):
        if seen.remapped_rows_failed:
            yield _failed(gpu, seen)
        elif seen.retired_pages_pending or seen.remapped_rows_pending:
            yield _pending(gpu, seen)
        elif pages(seen) or rows(seen):
            yield _some(gpu, seen)


def pages(seen: NvmlGpu) -> int:
    """Pages that are retired, for either reason."""
    return (seen.retired_pages_single_bit or 0) + (seen.retired_pages_double_bit or 0)


def rows(seen: NvmlGpu) -> int:
    """Rows that are replaced, for either reason."""
    return (seen.remapped_rows_corrected or 0) + (seen.remapped_rows_uncorrected or 0)


def _failed(gpu: Gpu, seen: NvmlGpu) -> Finding:
    return finding(
        "memory-retired",
        "error",
        gpu.address,
        say("{card} could not replace a bad row of its memory by a spare one.", card=label(gpu)),
        evidence=_evidence(seen),
        remedy=(
            say("Take the card out of service: the bad place stays in use."),
            say("Have it replaced; NVIDIA's field diagnostic decides whether it qualifies."),
        ),
    )


def _pending(gpu: Gpu, seen: NvmlGpu) -> Finding:
    return finding(
        "memory-retired",
        "warning",
        gpu.address,
        say("Bad memory of {card} waits to be taken out of use: that needs a reset of the card.", card=label(gpu)),
        evidence=_evidence(seen),
        remedy=(
            say("End what uses the card and reset it (sudo nvidia-smi --gpu-reset -i {address}), or reboot.",
                address=gpu.address),
            say("Ask again: pending must be no."),
        ),
    )  # fmt: skip


def _some(gpu: Gpu, seen: NvmlGpu) -> Finding:
    many = pages(seen) >= MANY_PAGES
    if pages(seen):
        template = plural(
            pages(seen),
            "{card} has one retired page of memory; {most} is the most it can have.",
            "{card} has {count} retired pages of memory; {most} is the most it can have.",
        )
    else:
        template = plural(
            rows(seen),
            "{card} has replaced one row of its memory by a spare one.",
            "{card} has replaced {count} rows of its memory by spare ones.",
        )
    return finding(
        "memory-retired",
        "warning" if many else "info",
        gpu.address,
        say(template, card=label(gpu), count=pages(seen) or rows(seen), most=MOST_PAGES),
        evidence=_evidence(seen),
        remedy=(say("Note the count and look again after some weeks of load: if it rises, plan to replace the card."),),
    )


def _evidence(seen: NvmlGpu) -> tuple[Evidence, ...]:
    counts = (
        (PAGES, "after single-bit errors: {value}", seen.retired_pages_single_bit),
        (PAGES, "after double-bit errors: {value}", seen.retired_pages_double_bit),
        (ROWS, "after correctable errors: {value}", seen.remapped_rows_corrected),
        (ROWS, "after uncorrectable errors: {value}", seen.remapped_rows_uncorrected),
    )
    flags = (
        (PENDING, "pages pending: {value}", seen.retired_pages_pending),
        (ROWS, "rows pending: {value}", seen.remapped_rows_pending),
        (ROWS, "remapping failed: {value}", seen.remapped_rows_failed),
    )
    told = [Evidence(source=call, text=say(text, value=count)) for call, text, count in counts if count is not None]
    for call, text, flag in flags:
        if flag is not None:
            told.append(Evidence(source=call, text=say(text, value=say("yes") if flag else say("no"))))
    return tuple(told)
