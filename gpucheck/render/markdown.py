"""Documents as Markdown to paste into a forum or an issue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gpucheck.render import closer, training
from gpucheck.render.gaps import grouped
from gpucheck.text import say

if TYPE_CHECKING:
    from gpucheck.checking import CheckReport
    from gpucheck.findings import Change, Finding
    from gpucheck.fit.report import Advice, KnownBuild, Question
    from gpucheck.probing import Probe
    from gpucheck.smoke.report import SmokeReport

# Punctuation that means something anywhere in a line, and what makes a list or a rule at its start.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&])|^([-+=])|^(\d+)([.)])")


def _plain(value: object) -> str:
    """Text that Markdown shows as it is."""
    return "?" if value is None else _SPECIAL.sub(_escaped, str(value))


_COMMAND = re.compile(
    r"(?:^|(?<=: )|(?<=\()|(?<=; )|(?<=, or )|(?<=then ))"
    r"(?P<command>(?:sudo (?:/[\w/]+/)?[\w-]+"
    r"|(?:/[\w/]+/)?(?:lspci|nvidia-smi|dmesg|journalctl|dmidecode|lscpu|lsmod|uname|mokutil|docker|grep|ls|cat|echo)"
    r"(?= [-/|>$'\"*])|gpucheck (?:probe|capture)|modinfo nvidia|systemctl status)"
    r"(?:[^`;,()]|,(?! ))*?)(?=\.?$|\. |, |[;)]| and reboot)"
)
"""A command in a sentence: after a colon, a bracket or the like, and to the end of its clause."""


def _prose(text: str) -> str:
    """A sentence with its commands in backticks, to be copied as they are."""
    pieces, end = [], 0
    for found in _COMMAND.finditer(text):
        pieces += [_plain(text[end : found.start()]), f"`{found['command']}`"]
        end = found.end()
    return "".join((*pieces, _plain(text[end:])))


def _escaped(found: re.Match[str]) -> str:
    if found[3]:
        return f"{found[3]}\\{found[4]}"
    return f"\\{found[0]}"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return [*lines, *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows), ""]


def _cell(value: object) -> str:
    return "-" if value == "-" else _plain(value)


def probe(report: Probe) -> str:
    """Counts, cards and findings."""
    counts, machine = report.counts, report.machine
    expected = counts.expected.n if counts.expected else "-"
    lines = [f"**{report.verdict}**: {_plain(report.headline)}", ""]
    levels = (counts.pci, counts.device_files, counts.nvml, expected)
    lines += _table(("PCI", "/dev/nvidia\\*", "NVML", "expected"), [levels])
    if machine.gpus:
        header = ("address", "card", "slot", "socket", "driver", "link width")
        drivers = ((g.driver or "-") if g.driver_read else None for g in machine.gpus)
        cards = zip(machine.gpus, drivers, strict=True)
        rows = [(g.address, g.name or g.pci_id, g.slot, g.socket, driver, g.link.width) for g, driver in cards]
        lines += _table(header, rows)
    lines += [line for finding in report.findings for line in _finding(finding)]
    if report.changes is not None:
        lines += [say("Since the baseline:"), "", *_changes(report.changes, report.uncompared)]
    if gaps := grouped(machine.gaps):
        lines += [say("Not read:"), ""]
        lines += [f"- {_plain(facts)} ({gap.reason}): {_prose(gap.how)}" for facts, gap in gaps]
    return "\n".join(lines).rstrip()


def _changes(changes: Sequence[Change], uncompared: str | None) -> list[str]:
    note = [_plain(uncompared), ""] if uncompared is not None else []
    if not changes:
        return note or [say("Nothing that matters has changed."), ""]
    rows = [(change.what, change.subject, change.before or "-", change.after or "-") for change in changes]
    return [*note, *_table(("what", "of", "then", "now"), rows)]


def _finding(finding: Finding) -> list[str]:
    lines = [f"### {finding.severity}: {finding.code} {finding.name} ({_plain(finding.subject)})", ""]
    confidence = "" if finding.confidence == "certain" else f" ({finding.confidence})"
    lines += [f"{_plain(finding.message)}{confidence}", ""]
    if finding.evidence:
        # A fence longer than any run of backticks in the evidence cannot be closed by it.
        runs = [len(run) for e in finding.evidence for run in re.findall(r"`+", f"{e.source} {e.text}")]
        fence = "`" * max(3, max(runs, default=0) + 1)
        lines += [fence, *(f"{e.source}: {e.text}" for e in finding.evidence), fence, ""]
    lines += [f"{number}. {_prose(step)}" for number, step in enumerate(finding.remedy, 1)]
    for test in finding.next_test:
        lines += ["", _prose(test.do), *(f"- {_plain(o.seen)}: {_plain(o.means)}" for o in test.outcomes)]
    return [*lines, ""]


def advice(report: Advice) -> str:
    """Answer, places, checks, what to order, what to ask."""
    lines = [f"**{report.verdict}**: {_plain(report.headline)}", ""]
    if report.candidates:
        ranked = report.server is None
        header = ("model", "verdict", "at most", "needs" if ranked else "how to tell")
        told = [(c, c.needs if ranked else c.tell_apart) for c in report.candidates]
        lines += _table(header, [(c.model, c.verdict, c.max_count, text or "") for c, text in told])
    if report.scenarios:
        lines += _table(("at most", "if"), [(s.max_count, s.given) for s in report.scenarios])
    if report.claim is not None:
        lines += [_plain(report.claim.text), ""]
    if report.placement:
        rows = [
            (
                place.slot,
                say("{card} (in it)", card=place.name) if place.fitted else place.name,
                place.riser or "-",
                place.socket,
                f"x{place.lanes}" if place.lanes else "?",
            )
            for place in report.placement
        ]
        lines += _table(("slot", "card", "riser", "CPU", "lanes"), rows)
    for title, items in (
        (say("Room for more"), [left.in_words for left in report.room]),
        (say("Checks"), [f"{c.outcome}: {c.topic}: {c.message}" for c in report.checks]),
        (
            say("To order"),
            [f"{i.quantity} × {i.item} {i.other_numbers} ({i.need})".replace("  ", " ") for i in report.shopping_list],
        ),
        (say("Only if"), [c.text for c in report.conditions]),
        (say("Known builds of this model"), [_build(build) for build in report.known_builds]),
        (say("What the answers mean"), [f"{q.ask} {_answers(q)}" for q in report.questions]),
        (say("It would be different"), [f"{a.change}: {a.verdict}, {a.max_count}" for a in report.alternatives]),
    ):
        if items:
            lines += [f"**{title}**", "", *(f"- {_plain(item)}" for item in items), ""]
    if report.price is not None:
        prices = [(f"{row.total:.2f}", f"{row.each:.2f}", str(row.quantity), row.item) for row in report.price.priced]
        prices.append((f"{report.price.total:.2f}", "", "", say("in all")))
        lines += _table(("total", "each", "quantity", "what"), prices)
    if report.seller_message is not None:
        lines += [f"**{say('Message to the seller')}**", "", *_quoted(report.seller_message), ""]
    return "\n".join(lines).rstrip()


def _build(build: KnownBuild) -> str:
    template = "Works: {count} × {cards}. {note}" if build.works else "Failed: {count} × {cards}. {note}"
    return say(template, count=build.count, cards=" + ".join(build.cards), note=build.note or "").strip()


def _answers(question: Question) -> str:
    return say("Yes: {yes} No: {no}", yes=question.if_yes, no=question.if_no)


def _quoted(message: str) -> list[str]:
    """Lines that stay lines."""
    return [f"> {_plain(line)}  " if line else ">" for line in message.splitlines()]


def smoke(report: SmokeReport) -> str:
    """One line a card, and the findings."""
    lines = [f"**{report.verdict}**: {_plain(report.headline)}", ""]
    if (warning := training.no_gpu(report)) is not None:
        lines += [_plain(warning), ""]
    rows = [
        (
            device.device or "-",
            device.address or "-",
            training.in_words(training.fate(report, device)),
            device.replica_steps,
            None if device.examples_per_second is None else f"{device.examples_per_second:,.0f}",
        )
        for device in report.devices
    ]
    if report.steps is not None:
        lines += [_plain(training.layout(report)), ""]
    if rows:
        lines += _table(("device", "address", "result", "steps", "examples/s"), rows)
    if seen := [(d.address or d.device, *cells) for d in report.devices if (cells := training.seen(d)) is not None]:
        lines += [say("What NVML saw of them meanwhile:"), "", *_table(("address", *training.SEEN), seen)]
    if report.numerics is not None:
        lines += [_plain(training.numbers(report.numerics)), ""]
    if report.scaling is not None:
        lines += [_plain(training.speed(report.scaling)), ""]
    if (pace := training.pace(report)) is not None:
        lines += [_plain(pace), ""]
    if report.split is not None and (gain := training.shares(report.split)) is not None:
        lines += [_plain(gain), ""]
    if report.hosts:
        hosts = [(h.rank, h.host, h.address, h.examples_per_second, h.verdict) for h in report.hosts]
        lines += _table(("rank", "host", "address", "examples/s", "verdict"), hosts)
    if report.network is not None:
        lines += [_plain(training.network(report.network)), ""]
    if report.isolation:
        sentence, trials = closer.trials(report)
        lines += [_plain(sentence), "", *_table(closer.TRIALS, trials)]
    if sums := closer.sums(report):
        lines += _table(closer.SUMS, sums)
    if fills := closer.fills(report):
        lines += _table(closer.FILLS, fills)
    if (short := closer.cut_short(report)) is not None:
        lines += [_plain(short), ""]
    if report.soak is not None:
        lines += [_plain(closer.soaked(report.soak)), "", *_table(closer.CURVES, closer.curves(report.soak))]
    lines += [line for finding in report.findings for line in _finding(finding)]
    return "\n".join(lines).rstrip()


def check(report: CheckReport) -> str:
    """Answer, what to do, one line a question, earlier tries, and the findings that failed it."""
    lines = [f"**{report.verdict}**: {_plain(report.headline)}", ""]
    if report.advice is not None:
        lines += [_plain(report.advice), ""]
    topics = [row.finding if row.topic == "finding" else row.topic for row in report.checks]
    rows = [(row.outcome, topic, row.subject, row.message) for row, topic in zip(report.checks, topics, strict=True)]
    lines += _table(("outcome", "topic", "of", "answer"), rows)
    if len(report.attempts) > 1:
        lines += [say("Tries:"), ""]
        lines += [f"{n}. {one.verdict}: {_plain(one.headline)}" for n, one in enumerate(report.attempts, 1)]
        lines += [""]
    smoke = report.smoke.findings if report.smoke is not None else ()
    failed = {(row.finding, row.subject) for row in report.checks if row.outcome == "fail"}
    for finding in (*report.probe.findings, *smoke):
        if (finding.name, finding.subject) in failed:
            lines += _finding(finding)
    return "\n".join(lines).rstrip()
