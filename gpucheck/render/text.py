"""Documents for a terminal, through rich: colours only on a terminal, NO_COLOR and width respected."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpucheck.findings import untold
from gpucheck.power import REDUNDANCIES, usable_watts
from gpucheck.render import closer, training
from gpucheck.render.gaps import grouped
from gpucheck.text import plural, say, shorten

if TYPE_CHECKING:
    from gpucheck.checking import CheckReport
    from gpucheck.explain import Explanation
    from gpucheck.facts import Gpu, Link, Machine, Slot
    from gpucheck.findings import Citation, Finding
    from gpucheck.fit.report import Advice, PowerSum, Price
    from gpucheck.probing import Probe
    from gpucheck.smoke.report import SmokeReport

_SEVERITY = {"error": "bold red", "warning": "yellow", "info": "cyan"}
_OUTCOME = {"pass": "green", "change": "yellow", "fail": "bold red", "unknown": "magenta"}
_VERDICT = {
    "ok": "bold green",
    "fits": "bold green",
    "pass": "bold green",
    "fits-with-changes": "bold yellow",
    "problem": "bold red",
    "does-not-fit": "bold red",
    "fail": "bold red",
}
_FATE = {"passed": "green", "failed": "bold red", "unconfirmed": "magenta"}
_UNKNOWN = "?"
_LONGEST_BAR, _SHORTEST_BAR = 30, 5
_WITHOUT_BARS = 62
"""Columns of the table of trained cards without its bars."""
_NVML_WIDTH = 90
"""Columns from which what NVML saw of a card fits on one line of a table."""


_TRAILING = re.compile(r" +(?=\n)")
_FEW_NAMES = 8
_BUSY_PERCENT = 50
"""From this utilization on, a card is no longer idle."""
_MOST_COLUMNS = 24
"""Cards of which a table of distances can be read."""
_FULL_WIDTH = 60
"""Columns from which an address is kept on one line."""


class _Pipe:
    """Standard output without the blanks to the right that fill a table's last column."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_TRAILING.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console() -> Console:
    """Standard output. A pipe gets 100 columns and no colours; COLUMNS decides in both cases."""
    piped_width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else 100
    out = cast(TextIO, _Pipe(sys.stdout))
    return Console(file=out, highlight=False, markup=False, emoji=False, width=piped_width)


def _table(*columns: str, whole: Collection[str] = ()) -> Table:
    """A table without lines; the columns in ``whole`` are not folded."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in whole)
    return table


def _in(content: Table | Text, columns: int) -> Padding:
    """Indented, without blanks to the end of the line."""
    return Padding(content, (0, 0, 0, columns), expand=False)


def _row(table: Table, *cells: object) -> None:
    table.add_row(*(cell if isinstance(cell, Text) else Text(_shown(cell)) for cell in cells))


def _shown(value: object) -> str:
    return _UNKNOWN if value is None else shorten(str(value), 80)


def _heading(out: Console, text: str) -> None:
    out.print()
    out.print(Text(text, style="bold"))


def _headline(out: Console, verdict: str, headline: str) -> None:
    out.print(Text.assemble((verdict, _VERDICT.get(verdict, "bold magenta")), "  ", headline))


def _steps(out: Console, steps: Iterable[str], indent: int = 4) -> None:
    for number, step in enumerate(steps, 1):
        out.print(_in(_hanging(f"{number}.", step), indent))


def _hanging(label: str, text: str, style: str = "") -> Table:
    """A label and a text that wraps beside it."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, style="dim"), Text(text, style=style))
    return grid


def _confidence(citations: Iterable[Citation]) -> str:
    """The weakest source decides how far a statement can be trusted: its kind is shown with it."""
    from gpucheck.entries import CONFIDENCE_ORDER

    weakest = max(citations, key=lambda source: CONFIDENCE_ORDER[source.confidence], default=None)
    return "" if weakest is None else f"[{weakest.confidence}]"


# --- probe --------------------------------------------------------------------------------------


def probe(report: Probe) -> None:
    """Headline, counts, cards, findings; then the machine, and what was not read."""
    out = console()
    _headline(out, report.verdict, report.headline)
    _counts(out, report)
    _cards(out, report.machine)
    for finding in report.findings:
        _finding(out, finding)
    _changes(out, report)
    _machine(out, report.machine)
    _unchecked(out, untold(report.findings, report.unchecked))
    gaps = grouped(report.machine.gaps)
    if gaps:
        _heading(out, say("Not read"))
        for facts, gap in gaps:
            out.print(_in(_hanging("-", f"{facts} ({gap.reason}): {gap.how}"), 2))


def _unchecked(out: Console, names: Sequence[str]) -> None:
    """A few by name; of many only how many."""
    if names:
        _heading(out, say("Not checked, for lack of facts"))
        many = say("{count} checks lacked facts; --json lists them.", count=len(names))
        out.print(_in(Text(", ".join(names) if len(names) <= _FEW_NAMES else many), 2))


def _counts(out: Console, report: Probe) -> None:
    counts = report.counts
    table = _table("PCI", "/dev/nvidia*", "NVML", "TensorFlow", "expected")
    expected = counts.expected.n if counts.expected is not None else "-"
    # TensorFlow is counted by the smoke training alone: importing it here would take seconds.
    tensorflow = say("(smoke)") if counts.tensorflow is None else counts.tensorflow
    _row(table, counts.pci, counts.device_files, counts.nvml, tensorflow, expected)
    _heading(out, say("GPUs on each level"))
    out.print(_in(table, 2))


def _changes(out: Console, report: Probe) -> None:
    """What is different from the baseline; that nothing is, is an answer too."""
    if report.changes is None:
        return
    _heading(out, say("Since the baseline"))
    if report.uncompared is not None:
        out.print(_in(Text(report.uncompared), 2))
    if not report.changes:
        if report.uncompared is None:
            out.print(_in(Text(say("Nothing that matters has changed.")), 2))
        return
    table = _table("what", "of", "then", "now")
    for change in report.changes:
        _row(table, change.what, change.subject, change.before or "-", change.after or "-")
    out.print(_in(table, 2))


def _cards(out: Console, machine: Machine) -> None:
    if not machine.gpus:
        return
    rows = []
    for gpu in machine.gpus:
        driver = (gpu.driver or "-") if gpu.driver_read else None
        rows.append((gpu.address, gpu.name or gpu.pci_id, gpu.slot, gpu.socket, driver, _link(gpu)))
    _heading(out, say("Cards"))
    columns = ("address", "card", "slot", "socket", "driver", "link")
    _table_or_entries(out, columns, rows, whole=("address", "driver"))


def _table_or_entries(
    out: Console, columns: Sequence[str], rows: Sequence[Sequence[object]], whole: Collection[str]
) -> None:
    """A table; where it would fold an address, an entry for each row, every cell with its column's name."""
    if out.width >= _FULL_WIDTH:
        table = _table(*columns, whole=whole)
        for row in rows:
            _row(table, *row)
        out.print(_in(table, 2))
        return
    for first, *others in rows:
        named = ", ".join(f"{name} {_shown(cell)}" for name, cell in zip(columns[1:], others, strict=True))
        out.print(_in(_hanging("-", f"{_shown(first)}: {named}"), 2))


def _machine(out: Console, machine: Machine) -> None:
    """What the cards are in: distances, sockets, slots, power supplies."""
    if len(machine.topology.addresses) > 1:
        _matrix(out, machine.topology.addresses, machine.topology.matrix)
    table = _table("CPU socket", "populated", "model")
    for socket in machine.cpu_sockets or ():
        _row(table, socket.designation, _yes_no(socket.populated), socket.model if socket.populated else "-")
    if table.row_count:
        _heading(out, say("CPU sockets"))
        out.print(_in(table, 2))
    if machine.slots:
        _heading(out, say("Slots, as the firmware lists them"))
        columns = ("slot", "in use", "lanes", "gen", "socket", "address")
        rows = [
            (slot.designation, _yes_no(slot.in_use), _lanes(slot), slot.gen, slot.socket, slot.address or "-")
            for slot in machine.slots
        ]
        _table_or_entries(out, columns, rows, whole=("lanes", "address"))
    table = _table("power supply", "model", "watts", "present", "mains")
    # Laptops list a supply without a word on it.
    for psu in (psu for psu in machine.psus or () if psu.location or psu.model or psu.watts):
        _row(table, psu.location, psu.model, psu.watts, _yes_no(psu.present), _yes_no(psu.plugged))
    if table.row_count:
        _heading(out, say("Power supplies"))
        out.print(_in(table, 2))
    if machine.power is not None and machine.power.drawn_watts is not None:
        out.print(say("  The machine draws {watts} W now.", watts=f"{machine.power.drawn_watts:.0f}"))
    table = _table("setting", "value")
    for name, value in (machine.firmware_settings or {}).items():
        _row(table, name, value)
    if table.row_count:
        _heading(out, say("Settings of the BIOS, as the BMC lists them"))
        out.print(_in(table, 2))


def _lanes(slot: Slot) -> str | None:
    """Lanes, and the connector where it is longer: a wide card fits, and runs narrow."""
    if slot.lanes is None:
        return None
    if slot.connector is None or slot.connector == slot.lanes:
        return f"x{slot.lanes}"
    return say("x{lanes} in x{connector}", lanes=slot.lanes, connector=slot.connector)


def _yes_no(value: bool | None) -> str:
    return _UNKNOWN if value is None else "yes" if value else "no"


def _link(gpu: Gpu) -> str | None:
    link: Link = gpu.link
    if link.width is None:
        return None
    full = link.max_width is None or link.width == link.max_width
    width = f"x{link.width}" if full else say("x{width} of x{most}", width=link.width, most=link.max_width)
    if link.speed_gts is None:
        return width
    fields = {"width": width, "speed": f"{link.speed_gts:g}"}
    slow = link.max_speed_gts is not None and link.speed_gts < link.max_speed_gts
    busy = gpu.nvml is not None and (gpu.nvml.utilization_percent or 0) >= _BUSY_PERCENT
    return say("{width}, {speed} GT/s (idle is normal)" if slow and not busy else "{width}, {speed} GT/s", **fields)


def _matrix(out: Console, names: Sequence[str], matrix: Sequence[Sequence[str]]) -> None:
    """Short names head the columns; long ones, such as addresses, are numbered."""
    _heading(out, say("Distance between the cards"))
    if len(names) > _MOST_COLUMNS:
        out.print(_in(Text(say("{count} cards are too many for a table; --json lists it.", count=len(names))), 2))
        return
    long = max(map(len, names)) > 4
    table = _table("", "", *(str(n) for n in range(1, len(names) + 1))) if long else _table("", *names)
    for number, (name, row) in enumerate(zip(names, matrix, strict=True), 1):
        _row(table, *((number, name) if long else (name,)), *row)
    out.print(_in(table, 2))


def _finding(out: Console, finding: Finding) -> None:
    out.print()
    title = Text.assemble(
        (finding.severity, _SEVERITY[finding.severity]),
        f" {finding.code} {finding.name}",
        (f" ({finding.subject})", "dim"),
    )
    out.print(title)
    confidence = "" if finding.confidence == "certain" else f" ({finding.confidence})"
    out.print(_in(Text(f"{finding.message}{confidence}"), 2))
    for evidence in finding.evidence:
        out.print(_in(_hanging(">", f"{evidence.source}: {evidence.text}", "dim"), 2))
    if finding.remedy:
        _steps(out, finding.remedy)
    for test in finding.next_test:
        out.print(_in(_hanging(say("Test:"), test.do), 2))
        for outcome in test.outcomes:
            out.print(_in(_hanging("-", f"{outcome.seen}: {outcome.means}"), 4))


# --- advise -------------------------------------------------------------------------------------


def advice(report: Advice) -> None:
    """Headline, scenarios, places, checks, what to order, what to ask."""
    _advice(report, {})


def cited_advice(report: Advice) -> None:
    """The same with the number of each source, and the list of them."""
    sources = dict.fromkeys(map(_document, _cited(report)))
    _advice(report, {source: number for number, source in enumerate(sources, 1)})


Numbers = Mapping[tuple[str, str, str], int]
"""A source to its number in the list at the end; empty where there is none."""


def _advice(report: Advice, numbers: Numbers) -> None:
    out, tag = console(), partial(_tag, numbers)
    _headline(out, report.verdict, report.headline)
    if report.candidates:
        _candidates(out, report)
    if report.scenarios:
        table = _table(say("at most"), say("if it has"))
        for scenario in report.scenarios:
            _row(table, scenario.max_count, Text(scenario.given))
        _heading(out, say("How many go in, by how the machine stands"))
        out.print(_in(table, 2))
    if report.claim is not None:
        out.print(_in(Text(report.claim.text), 2))
    if report.placement:
        table = _table("slot", "card", "riser", "CPU", "lanes", "covers")
        for place in report.placement:
            covers = ", ".join(place.covers) or "-"
            lanes = f"x{place.lanes}" if place.lanes else "?"
            name = say("{card} (in it)", card=place.name) if place.fitted else place.name
            _row(table, place.slot, name, place.riser or "-", place.socket, lanes, covers)
        _heading(out, say("Where the cards go"))
        out.print(_in(table, 2))
        if len(report.topology.slots) > 1:
            _matrix(out, report.topology.slots, report.topology.matrix)
            for meaning in report.topology.means:
                out.print(_in(_hanging("-", f"{meaning.text} {tag(meaning.sources)}".strip()), 2))
    if report.shopping_list:
        _heading(out, say("To order"))
        for item in report.shopping_list:
            parts = f" ({item.other_numbers})" if item.other_numbers else ""
            fitted = say(" - may be fitted already") if item.need == "maybe-fitted" else ""
            out.print(_in(_hanging(f"{item.quantity} ×", f"{item.item}{parts}{fitted}"), 2))
            if item.note:
                out.print(_in(Text(item.note, style="dim"), 6))
    install = report.software and (report.software.pip or report.software.why_none)
    if install and report.verdict != "does-not-fit":
        _heading(out, say("To install"))
        out.print(_in(Text(install), 2))
    if report.price is not None:
        _price(out, report.price)
    if report.conditions:
        # Of a plan that fails nothing but other versions of the card are left to speak of.
        _heading(out, say("Other versions") if report.verdict == "does-not-fit" else say("Only if"))
        for condition in report.conditions:
            out.print(_in(_hanging("-", f"{condition.text} {tag(condition.sources)}".strip()), 2))
    if report.questions:
        _heading(out, say("Ask the seller"))
        for question in report.questions:
            out.print(_in(_hanging("?", question.ask), 2))
            out.print(_in(Text(question.how, style="dim"), 4))
            out.print(_in(_hanging(say("yes:"), question.if_yes), 4))
            out.print(_in(_hanging(say("no: "), question.if_no), 4))
    if report.alternatives:
        _heading(out, say("It would be different"))
        for alternative in report.alternatives:
            parts = f" ({', '.join(alternative.parts)})" if alternative.parts else ""
            text = say(
                "{change}{parts}: {verdict}, at most {most}",
                change=alternative.change,
                parts=parts,
                verdict=alternative.verdict,
                most=alternative.max_count,
            )
            out.print(_in(_hanging("-", text), 2))
    _known_builds(out, report, tag)
    _checks(out, report, tag)
    if report.room:
        _heading(out, say("Room for more"))
        for left in report.room:
            out.print(_in(_hanging("-", left.in_words), 2))
    if report.capacity:
        _heading(out, say("Room by class of card (slots alone)"))
        for row in report.capacity:
            given = f" ({row.given})" if row.given else ""
            out.print(_in(_hanging(f"{row.max:>2}", f"{row.class_}{given}"), 2))
    if report.notes and report.placement:
        _heading(out, say("Good to know"))
        for note in report.notes:
            out.print(_in(_hanging("-", f"{note.text} {tag(note.sources)}".strip()), 2))
    _bibliography(out, report, numbers)


def _price(out: Console, price: Price) -> None:
    _heading(out, say("What it costs, at the prices given"))
    table = _table("total", "each", "what")
    for row in price.priced:
        what = say("{count} × {item}", count=row.quantity, item=row.item)
        if row.need == "maybe-fitted":
            what = say("{what} - may be fitted already", what=what)
        _row(table, f"{row.total:.2f}", f"{row.each:.2f}", what)
    _row(table, f"{price.total:.2f}", "", say("in all"))
    if price.total_if_fitted != price.total:
        _row(table, f"{price.total_if_fitted:.2f}", "", say("without what may be fitted already"))
    out.print(_in(table, 2))
    if price.unpriced:
        out.print(_in(Text(say("Without a price: {items}.", items="; ".join(price.unpriced))), 2))


def _known_builds(out: Console, report: Advice, tag: Tag) -> None:
    if not report.known_builds:
        return
    _heading(out, say("Known builds of this model"))
    for build in report.known_builds:
        label = say("works") if build.works else say("failed")
        text = say("{count} × {cards}", count=build.count, cards=" + ".join(build.cards))
        if build.note is not None:
            text = say("{build}. {note}", build=text, note=build.note)
        out.print(_in(_hanging(f"{label:<6}", f"{text} {tag(build.sources)}".strip()), 2))


def _cited(report: Advice) -> Iterator[Citation]:
    """The sources of all that is shown, as they come."""
    shown = (
        report.topology.means,
        report.conditions,
        report.known_builds,
        report.checks,
        report.power.terms if report.power is not None else (),
        report.notes if report.placement else (),
    )
    for group in shown:
        for one in group:
            yield from one.sources


def _document(source: Citation) -> tuple[str, str, str]:
    """What tells one document from another."""
    return source.confidence, source.title, source.where or ""


Tag = Callable[[Sequence["Citation"]], str]


def _tag(numbers: Numbers, sources: Sequence[Citation]) -> str:
    """How far a statement can be trusted, and where the list of sources has what it rests on."""
    found = dict.fromkeys(numbers[document] for document in map(_document, sources) if document in numbers)
    confidence = _confidence(sources)
    return f"{confidence[:-1]} {', '.join(map(str, sorted(found)))}]" if found else confidence


def _bibliography(out: Console, report: Advice, numbers: Numbers) -> None:
    """Every document that something above rests on, once; or how to see them."""
    if not numbers:
        if count := len(dict.fromkeys(map(_document, _cited(report)))):
            out.print()
            out.print(Text(say(plural(count, _ONE_SOURCE, _MANY_SOURCES), count=count), style="dim"))
        return
    _heading(out, say("Sources"))
    for (confidence, title, where), number in numbers.items():
        place = f", {where}" if where else ""
        out.print(_in(_hanging(f"{number:>2} {confidence:<13}", f"{title}{place}"), 2))


_ONE_SOURCE = "This rests on one source: --sources names it."
_MANY_SOURCES = "This rests on {count} sources: --sources lists them, --json names those of each statement."


def _candidates(out: Console, report: Advice) -> None:
    one_name = report.server is not None
    _heading(out, say("This name means several products; the rest is about the weakest") if one_name else say("Models"))
    # The cards differ only where a name means several of them.
    several = len({candidate.gpus for candidate in report.candidates}) > 1
    table = _table("model", *(["cards"] if several else []), "verdict", "at most", "needs", whole=("verdict",))
    for candidate in report.candidates:
        verdict = Text(candidate.verdict, style=_VERDICT.get(candidate.verdict, "magenta"))
        cards = [" + ".join(candidate.gpus) or "-"] if several else []
        _row(table, candidate.model, *cards, verdict, candidate.max_count, candidate.needs or "-")
    out.print(_in(table, 2))
    if one_name:
        tell_apart = {candidate.model: candidate.tell_apart for candidate in report.candidates}
        for model, how in tell_apart.items():
            if how and len(tell_apart) > 1:
                out.print(_in(_hanging(f"{model}:", how), 2))


def _checks(out: Console, report: Advice, tag: Tag) -> None:
    if not report.checks:
        return
    _heading(out, say("Checks"))
    for check in report.checks:
        line = Text.assemble((f"{check.outcome:<7}", _OUTCOME[check.outcome]), f" {check.topic}: {check.message} ")
        line.append(tag(check.sources), style="dim")
        grid = Table.grid()
        grid.add_column(overflow="fold")
        grid.add_row(line)
        out.print(_in(grid, 2))
    if report.power is not None:
        _heading(out, say("Load"))
        for term in report.power.terms:
            high = _UNKNOWN if term.high_watts is None else term.high_watts
            watts = f"{term.low_watts} W" if term.low_watts == term.high_watts else f"{term.low_watts} to {high} W"
            out.print(_in(_hanging(f"{watts:>14}", f"{term.item} {tag(term.sources)}"), 2))
        _usable(out, report.power)


def _usable(out: Console, power: PowerSum) -> None:
    """What the supplies give: with none to spare, with one, with half of them; and on the low line."""
    if power.peak_watts is not None:
        out.print(_in(_hanging(f"{power.peak_watts:>12} W", say("when the largest card peaks for a moment")), 2))
    supplies = power.supplies
    if supplies is None:
        return
    table = _table("mains", *REDUNDANCIES)
    lines = [(say("200-240 V"), supplies.watts), (say("100-120 V"), supplies.low_line_watts)]
    for mains, each in lines:
        watts = [None if each is None else round(usable_watts(supplies.count, each, kind)) for kind in REDUNDANCIES]
        _row(table, mains, *(None if one is None else f"{one} W" for one in watts))
    _heading(out, say("Usable of {count} × {watts} W", count=supplies.count, watts=supplies.watts))
    out.print(_in(table, 2))


# --- smoke --------------------------------------------------------------------------------------


def smoke(report: SmokeReport) -> None:
    """Headline, one line a card, numerics, findings."""
    out = console()
    _headline(out, report.verdict, report.headline)
    if report.devices:
        _heading(out, say("Cards in the training"))
        if (warning := training.no_gpu(report)) is not None:
            out.print(_in(Text(warning, style="yellow"), 2))
        if report.steps is not None:
            out.print(_in(Text(training.layout(report)), 2))
        out.print(_in(_trained(out, report), 2))
        _seen(out, report)
    if report.numerics is not None:
        _heading(out, say("Against the same work on one device"))
        out.print(_in(Text(training.numbers(report.numerics)), 2))
    if report.scaling is not None:
        _heading(out, say("Speed"))
        out.print(_in(Text(training.speed(report.scaling)), 2))
        if (pace := training.pace(report)) is not None:
            out.print(_in(Text(pace), 2))
    if report.split is not None and (gain := training.shares(report.split)) is not None:
        out.print(_in(Text(gain), 2))
    if report.hosts:
        table = _table("rank", "host", "address", "devices", "examples/s", "verdict")
        for host in report.hosts:
            speed = None if host.examples_per_second is None else f"{host.examples_per_second:,.0f}"
            devices = None if host.devices is None else ", ".join(host.devices)
            _row(table, host.rank, host.host, host.address, devices, speed, host.verdict)
        _heading(out, say("Hosts"))
        out.print(_in(table, 2))
    if report.network is not None:
        out.print(_in(Text(training.network(report.network)), 2))
    _closer(out, report)
    for finding in report.findings:
        _finding(out, finding)


def _closer(out: Console, report: SmokeReport) -> None:
    """Trials, sums, memory, and the curves of a soak."""
    if report.isolation:
        sentence, trials = closer.trials(report)
        _heading(out, say("Single devices, pairs and all"))
        out.print(_in(Text(sentence), 2))
        _rows(out, closer.TRIALS, trials)
    if sums := closer.sums(report):
        _heading(out, say("Sums that are known"))
        _rows(out, closer.SUMS, sums)
    if fills := closer.fills(report):
        _heading(out, say("Memory filled and read back"))
        _rows(out, closer.FILLS, fills)
    if (short := closer.cut_short(report)) is not None:
        out.print(_in(Text(short, style="yellow"), 2))
    if report.soak is not None:
        _heading(out, say("Soak"))
        out.print(_in(Text(closer.soaked(report.soak)), 2))
        _rows(out, closer.CURVES, closer.curves(report.soak, ascii_only=out.options.ascii_only))


def _rows(out: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = _table(*columns)
    for row in rows:
        _row(table, *row)
    out.print(_in(table, 2))


def _trained(out: Console, report: SmokeReport) -> Table:
    """One line a card, with a bar of its speed alone as far as there is room for bars."""
    fastest = max((device.examples_per_second or 0.0 for device in report.devices), default=0.0)
    columns = min(_LONGEST_BAR, out.width - _WITHOUT_BARS)
    addressed = any(device.address is not None for device in report.devices)
    roomy = out.width >= _FULL_WIDTH
    header = ["device", *(["address"] if addressed else []), "result", *(["steps"] if roomy else []), "examples/s", ""]
    table = _table(*header, whole=("device", "address", "result", "examples/s"))
    for device in report.devices:
        speed = device.examples_per_second
        result = training.fate(report, device)
        _row(
            table,
            device.device or "-",
            *([device.address or "-"] if addressed else []),
            Text(training.in_words(result), style=_FATE.get(result, "")),
            *([device.replica_steps] if roomy else []),
            None if speed is None else f"{speed:,.0f}",
            _bar(out, (speed or 0.0) / fastest, columns) if fastest and columns >= _SHORTEST_BAR else "",
        )
    return table


def _bar(out: Console, share: float, columns: int) -> str:
    """At least one sign for anything at all; signs of ASCII where the output knows no others."""
    return ("#" if out.options.ascii_only else "█") * max(round(share * columns), 1 if share else 0)


def _seen(out: Console, report: SmokeReport) -> None:
    """What NVML saw of each card."""
    rows = [(device, cells) for device in report.devices if (cells := training.seen(device)) is not None]
    if not rows:
        return
    _heading(out, say("What NVML saw of them meanwhile"))
    if out.width < _NVML_WIDTH:
        for device, cells in rows:
            values = ", ".join(f"{name} {cell}" for name, cell in zip(training.SEEN, cells, strict=True))
            out.print(_in(_hanging(device.address or device.device or "-", values), 2))
        return
    table = _table("address", *training.SEEN)
    for device, cells in rows:
        _row(table, device.address or device.device, *cells)
    out.print(_in(table, 2))


# --- check --------------------------------------------------------------------------------------


def check(report: CheckReport) -> None:
    """Headline, what to do, one line a question, earlier tries; then the findings that are errors."""
    out = console()
    _headline(out, report.verdict, report.headline)
    if report.advice is not None:
        out.print(_in(Text(report.advice), 2))
    table = _table("", "topic", "of", "")
    for row in report.checks:
        topic = row.finding if row.topic == "finding" else row.topic
        _row(table, Text(row.outcome, style=_OUTCOME[row.outcome]), topic, row.subject, Text(row.message))
    _heading(out, say("Asked by {policy}", policy=report.policy_file or say("the command line")))
    out.print(_in(table, 2))
    if len(report.attempts) > 1:
        _heading(out, say("Tries"))
        for number, attempt in enumerate(report.attempts, 1):
            out.print(_in(_hanging(f"{number}.", f"{attempt.verdict}: {attempt.headline}"), 2))
    smoke = report.smoke.findings if report.smoke is not None else ()
    failed = {(row.finding, row.subject) for row in report.checks if row.outcome == "fail"}
    for finding in (*report.probe.findings, *smoke):
        if (finding.name, finding.subject) in failed:
            _finding(out, finding)


# --- explain and catalog ------------------------------------------------------------------------


def explanation(found: Explanation) -> None:
    """A finding's documentation."""
    out = console()
    out.print(Text.assemble((f"{found.code} {found.name}", "bold")))
    out.print(Text(found.summary))
    for heading, body in found.sections.items():
        _heading(out, heading)
        out.print(_in(Text(body), 2))


def names(servers: Sequence[dict[str, Any]], cards: Sequence[dict[str, Any]]) -> None:
    """Ids and the names they answer to."""
    out = console()
    for title, rows in ((say("Servers"), servers), (say("Cards"), cards)):
        _heading(out, title)
        table = _table("id", "names")
        for row in rows:
            table.add_row(Text(row["id"]), Text(", ".join(dict.fromkeys(row["names"]))))  # never cut: people copy them
        out.print(_in(table, 2))


def entries(documents: Sequence[dict[str, Any]]) -> None:
    """Catalog entries, as they stand."""
    import json

    out = console()
    for document in documents:
        out.print(Text(json.dumps(document, indent=2, ensure_ascii=False)))
