"""``gpucheck check --init``: the policy that a machine, as it is, just meets. Text with comments, pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date, timedelta

from gpucheck.facts import Gpu, Machine
from gpucheck.gate import COUNTERS, generation, works
from gpucheck.probing import Probe, model_name
from gpucheck.rules._links import end_of, lanes
from gpucheck.rules._shared import label
from gpucheck.rules.gpu_count_mismatch import unusable
from gpucheck.text import shorten

_A_QUARTER = timedelta(days=90)
_WIDTHS = (16, 8, 4, 2, 1)


def policy_text(report: Probe) -> str:
    """TOML that :func:`gpucheck.policy.parse` reads. What was not read is asked of nothing."""
    machine, good = report.machine, usable_gpus(report)
    lines = [
        f"# What a machine should be: {_comment(model_name(machine))} as it was on {report.time[:10]}.",
        "# gpucheck check judges a machine by this file; docs/schema/policy.json describes every key.",
        "",
        "# true: warnings fail too.",
        "strict = false",
        "",
        *_cards(good, [gpu for gpu in machine.gpus or () if gpu not in good]),
        *_links(machine, good),
        *_power(machine),
        *_memory(good),
        "",
        "[smoke]",
        "# A short training on every card; gpucheck check --no-smoke leaves it out once.",
        "run = true",
        'devices = "auto"',
        "",
        "[retry]",
        "# Only when the check could not be made (exit code 3). A machine that failed is never asked again.",
        "times = 0",
        "wait_seconds = 10",
        "",
        *_allowed(report),
    ]
    return "\n".join(lines).rstrip() + "\n"


def usable_gpus(report: Probe) -> list[Gpu]:
    """The GPUs that a policy made from this machine asks for."""
    lost = unusable(report.machine, report.findings)
    return [gpu for gpu in report.machine.gpus or () if gpu.address not in lost]


def _cards(good: list[Gpu], lost: list[Gpu]) -> Iterator[str]:
    yield "[gpus]"
    yield "# At least so many that can be used. 0: this machine needs none."
    yield f"count = {len(good)}"
    yield from (f"# not counted, because it cannot be used now: {_comment(label(gpu))}" for gpu in lost)
    addresses = [gpu.address for gpu in good if not gpu.address.startswith("nvml:")]
    if addresses:
        yield f"addresses = [{', '.join(map(_string, addresses))}]"
    models = Counter(gpu.catalog_gpu or gpu.pci_id for gpu in good)
    named = {name: n for name, n in models.items() if name is not None}
    if named:
        yield ""
        yield "[gpus.models]"
        yield from (f"{_string(name)} = {n}" for name, n in named.items())


def _links(machine: Machine, gpus: list[Gpu]) -> Iterator[str]:
    """The most common values for all; a table for each card that differs."""
    widths = {gpu.address: _whole(lanes(end_of(machine, gpu).card.width)) for gpu in gpus}
    generations = {gpu.address: generation(machine, gpu) for gpu in gpus}
    usual = _usual(widths.values()), _usual(generations.values())
    if usual == (None, None):
        return
    yield from ("", "[link]", "# Least lanes, and least PCIe generation that card and slot can do.")
    yield from _link_keys(*usual)
    for gpu in gpus:
        own = widths[gpu.address], generations[gpu.address]
        if own != usual:
            yield from ("", f"[link.at.{_string(gpu.address)}]", *_link_keys(*own))


def _link_keys(width: int | None, gen: int | None) -> Iterator[str]:
    if width is not None:
        yield f"lanes = {width}"
    if gen is not None:
        yield f"gen = {gen}"


def _usual(values: Iterable[int | None]) -> int | None:
    return max(Counter(values).items(), key=lambda item: item[1], default=(None, 0))[0]


def _whole(width: int | None) -> int | None:
    """The next width that a policy can name."""
    return None if width is None else next(known for known in _WIDTHS if known <= width)


def _power(machine: Machine) -> Iterator[str]:
    working = sum(works(psu) is True for psu in machine.psus or ())
    redundant = machine.power is not None and machine.power.redundancy == "full"
    if not working and not redundant:
        return
    yield from ("", "[power]")
    if working:
        yield from ("# Power supplies that are fitted, have mains and have not failed.", f"supplies = {working}")
    if redundant:
        yield from ("# The BMC says it: gpucheck check --ipmi, as root.", "redundancy = true")


def _memory(gpus: list[Gpu]) -> Iterator[str]:
    """What every card counts: the most that one has."""
    most: dict[str, int] = {}
    for key, counter in COUNTERS.items():
        counts = [counter(gpu.nvml) if gpu.nvml is not None else None for gpu in gpus]
        known = [count for count in counts if count is not None]
        if known and len(known) == len(counts):
            most[key] = max(known)
    if most:
        yield from ("", "[memory]", "# The most of each that a card may have, over its life.")
        yield from (f"{key} = {count}" for key, count in most.items())


def _allowed(report: Probe) -> Iterator[str]:
    yield "# A finding that is known and accepted until a day:"
    seen = [finding for finding in report.findings if finding.severity != "info"]
    for finding in seen[:1] or (None,):
        yield "# [[allow]]"
        yield f"# finding = {_string(finding.name if finding else 'link-width-reduced')}"
        yield f"# subject = {_string(finding.subject if finding else '0000:04:00.0')}"
        yield '# reason = "why it is accepted"'
        yield f"# until = {date.fromisoformat(report.time[:10]) + _A_QUARTER}"
    if seen:
        yield "# What is wrong now is no part of what is asked above: mend it, then run --init again."
    yield from (f"# found now: {finding.name} ({_comment(finding.subject)})" for finding in seen)


def _string(text: str) -> str:
    """A basic string of TOML: JSON's escapes are among TOML's, and ASCII keeps hostile letters out."""
    return json.dumps(text).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    """Text is cleaned of line ends when it is read; what is long is cut."""
    return shorten(" ".join(text.split()), 100)
