"""A fleet in every form. Hosts are made and printed one after the other: what is printed is never held as a whole."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from gpucheck.fleet.merge import Kind, Row, kinds_in_words, supplies_in_words
from gpucheck.fleet.report import Fleet, host_report
from gpucheck.render.markdown import _plain
from gpucheck.render.text import console
from gpucheck.text import plural, say, shorten

if TYPE_CHECKING:
    from gpucheck.fleet.collect import Collected
    from gpucheck.fleet.report import FleetGroup, HostReport, Merged
    from gpucheck.fleet.store import Unseen

_STYLE = {"problem": "bold red", "unknown": "magenta", "ok": "green"}
"""Of verdicts, the worst first."""
_NARROW = 80
"""Columns below which a host has one line and nothing else."""
_LONGEST_NAME = 40
_COLUMNS = (
    "host", "verdict", "exit_code", "pci", "nvml", "expected", "group", "errors", "warnings", "first", "lost",
    "changed", "room", "headline", "file",
)  # fmt: skip


# --- JSON ---------------------------------------------------------------------------------------


def as_json(merged: Merged) -> Iterator[str]:
    """The document ``gpucheck/fleet/1`` in pieces; a host a line, so that line tools can pick one."""
    head = merged.head.model_dump(mode="json", by_alias=True)
    order = ["schema", "gpucheck", "time", "headline", "verdict", "exit_code", "totals", "groups", "unseen"]
    assert {*order, "hosts"} == {field.alias or name for name, field in Fleet.model_fields.items()}
    for number, key in enumerate(order):
        yield f"{',' if number else '{'}\n {json.dumps(key)}: {json.dumps(head[key], ensure_ascii=False)}"
    yield ',\n "hosts": ['
    for number, host in enumerate(merged.hosts()):
        yield f"{',' if number else ''}\n  {host.model_dump_json(by_alias=True)}"
    yield "\n ]\n}\n"


# --- CSV ----------------------------------------------------------------------------------------


def as_csv(merged: Merged) -> Iterator[str]:
    """A line a host, those that were not seen last. No cell begins with what a spreadsheet takes for a formula."""
    yield _line(_COLUMNS)
    for host in merged.hosts():
        severities = [finding.severity for finding in host.findings]
        yield _line(
            (
                host.host,
                host.verdict,
                host.exit_code,
                host.counts.pci,
                host.counts.nvml,
                host.counts.expected.n if host.counts.expected is not None else None,
                host.group,
                severities.count("error"),
                severities.count("warning"),
                host.findings[0].name if host.findings else None,
                "; ".join(host.lost),
                None if host.changed is None else "; ".join(f"{one.subject} {one.what}" for one in host.changed),
                _room(host),
                host.headline,
                host.file,
            )
        )
    for unseen in merged.head.unseen:
        yield _line((unseen.host, "unseen", *[None] * (len(_COLUMNS) - 4), unseen.reason, None))


def _line(cells: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(["" if cell is None else _harmless(cell) for cell in cells])
    return text.getvalue()


def _harmless(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def _room(host: HostReport) -> str | None:
    """``2``; ``2?`` where a question is open."""
    if host.room is None:
        return None
    return "; ".join(f"{left.more}{'?' if left.verdict == 'unknown' else ''}" for left in host.room)


# --- text ---------------------------------------------------------------------------------------


def text(merged: Merged) -> None:
    """Headline, groups of equal machines, a line a host and below it what is wrong with it; then the unseen.

    Hosts with something to tell come first, the worst before the others: among thousands nobody would find them.
    """
    out = console()
    head = merged.head
    out.print(Text.assemble((head.verdict, _STYLE[head.verdict]), "  ", head.headline))
    narrow = out.width < _NARROW
    if not narrow and head.groups:
        out.print(Text("\n" + say("Equal machines"), style="bold"))
        for group in head.groups:
            out.print(Text(f"  {group.number:>3}  {group_in_words(group)}"), soft_wrap=True)
    names = [len(row.host) for row in merged.rows]
    column = min(max(names, default=0), _LONGEST_NAME, out.width // 3)
    if names:
        out.print(Text("\n" + say("Hosts"), style="bold"))
    for host in map(host_report, sorted(merged.rows, key=_urgency)):
        line = Text.assemble(
            shorten(host.host, column).ljust(column), "  ", (host.verdict.ljust(7), _STYLE[host.verdict]), "  "
        )
        line.append(_cards(host).rjust(5) + "  ")
        room = _room(host)
        line.append("" if room is None else say("room {room}", room=room).ljust(8) + "  ")
        line.append(_first(host))
        line.truncate(out.width, overflow="ellipsis")
        out.print(line, no_wrap=True)
        for finding in () if narrow else host.findings:
            out.print(Text(f"{'':{column}}  - {finding.name}: {finding.message}"), soft_wrap=True)
    if head.unseen:
        out.print(Text("\n" + say("Not seen"), style="bold"))
        _unseen(head.unseen)


def _urgency(row: Row) -> tuple[int, bool]:
    return list(_STYLE).index(row.verdict), not (row.notes or row.changed)


def _unseen(unseen: Iterable[Unseen]) -> None:
    out = console()
    for one in unseen:
        line = Text(f"{shorten(one.host, _LONGEST_NAME)}  {one.reason}")
        if out.width < _NARROW:
            line.truncate(out.width, overflow="ellipsis")
        out.print(line, soft_wrap=True)


def _cards(host: HostReport) -> str:
    """``1/2``: cards that are there, of those expected."""
    known = [count for count in (host.counts.pci, host.counts.nvml) if count is not None]
    seen = str(max(known)) if known else "?"
    return f"{seen}/{host.counts.expected.n}" if host.counts.expected is not None else seen


def _first(host: HostReport) -> str:
    """The worst finding by name, and how many more there are; else what changed."""
    if host.findings:
        more = len(host.findings) - 1
        return host.findings[0].name + (f" +{more}" if more else "")
    if host.changed:
        return say(plural(len(host.changed), "{count} change", "{count} changes"), count=len(host.changed))
    return ""


def group_in_words(group: FleetGroup) -> str:
    """``12 × Dell Inc. PowerEdge R730: 2 × Tesla P40, 2 × 1100 W, 256 GiB``."""
    cards = None if group.cards is None else tuple(Kind(card.id, card.name, card.count) for card in group.cards)
    parts = [kinds_in_words(cards)]
    if group.psus is not None:
        parts.append(supplies_in_words(group.psus))
    if group.memory_bytes is not None:
        parts.append(f"{group.memory_bytes / (1 << 30):.0f} GiB")
    model = group.model or say("unnamed machine")
    return f"{group.hosts} × {shorten(model)}: {', '.join(parts)}"


# --- Markdown -----------------------------------------------------------------------------------


def as_markdown(merged: Merged) -> Iterator[str]:
    """Tables to paste; a host with nothing to tell has no line of its own."""
    head = merged.head
    yield f"**{head.verdict}** {_plain(head.headline)}\n"
    if head.groups:
        yield "\n| group | machines |\n|---|---|\n"
    for group in head.groups:
        yield f"| {group.number} | {_plain(group_in_words(group))} |\n"
    begun = False
    for host in merged.hosts():
        if host.verdict == "ok" and not host.findings and not host.changed:
            continue
        if not begun:
            yield "\n| host | verdict | cards | room | findings |\n|---|---|---|---|---|\n"
            begun = True
        told = "<br>".join(f"`{finding.name}` {_plain(finding.message)}" for finding in host.findings)
        cells = (_plain(host.host), host.verdict, _cards(host), _room(host) or "", told or _first(host))
        yield f"| {' | '.join(cells)} |\n"
    if head.unseen:
        yield "\n| not seen | why |\n|---|---|\n"
    for one in head.unseen:
        yield f"| {_plain(one.host)} | {_plain(one.reason)} |\n"


# --- collect ------------------------------------------------------------------------------------


def collected(result: Collected) -> None:
    """What came, and what did not."""
    out = console()
    out.print(Text(result.headline), soft_wrap=True)
    _unseen(result.unseen)
