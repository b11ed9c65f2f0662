"""A folder of captures to ``gpucheck/fleet/1``: hosts one by one, in bounded memory, then what they tell together."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, Field

from gpucheck.errors import InputError
from gpucheck.facts import Counts, Expected
from gpucheck.findings import Change, Confidence, Document, Printed, Severity
from gpucheck.fit.report import RoomLeft
from gpucheck.fleet import store
from gpucheck.fleet.judging import Settings, judge
from gpucheck.fleet.merge import Group, Row, Shared, merge
from gpucheck.fleet.store import Place, Unseen
from gpucheck.text import Text, plural, say

FleetVerdict = Literal["ok", "problem", "unknown"]
EXIT_CODES: dict[FleetVerdict, int] = {"ok": 0, "problem": 1, "unknown": 3}
Progress = Callable[[int, int], None]
"""Hosts judged, and hosts in all."""
D = TypeVar("D", bound=BaseModel)


class HostFinding(Document):
    """A finding of a host, without its evidence; ``gpucheck probe --from FILE`` shows all of it."""

    code: str
    name: str
    severity: Severity
    subject: Text
    message: Text
    confidence: Confidence


class HostReport(Document):
    """One host. Findings are errors and warnings, its own and those against its twins."""

    host: Text
    file: Text
    """What it was judged by."""
    verdict: FleetVerdict
    exit_code: int
    counts: Counts
    headline: Text
    findings: tuple[HostFinding, ...]
    changed: tuple[Change, ...] | None = None
    """Against the run before; None where there is none."""
    lost: tuple[Text, ...] = ()
    """Cards that the run before had, and this one has not."""
    uncompared: str | None = None
    """Why cards were not compared with the run before, where they were not."""
    room: tuple[RoomLeft, ...] | None = None
    """More cards that go in; None where it was not asked, or cannot be told."""
    group: int
    """Number of the group of equal machines that it belongs to."""


class FleetCards(Document):
    """Cards of one kind in each machine of a group."""

    id: Text
    name: Text
    count: int


class FleetGroup(Document):
    """Machines of one model with equal cards, slots, power supplies and memory. None: not read."""

    number: int
    hosts: int
    """How many there are."""
    model: Text | None
    cards: tuple[FleetCards, ...] | None
    slots: int | None
    psus: tuple[int | None, ...] | None
    """Watts of each power supply that is present."""
    memory_bytes: int | None


class FleetTotals(Document):
    """Sums over the hosts that were judged."""

    hosts: int
    ok: int
    problem: int
    unknown: int
    warned: int
    """Hosts with a warning and no error."""
    gpus: int
    lost: int
    """Cards that the run before had."""
    room: int | None
    """More cards that go in, where no question is open; None where it was not asked."""


class FleetHead(Printed):
    """All but the hosts."""

    schema_: Literal["gpucheck/fleet/1"] = Field(default="gpucheck/fleet/1", alias="schema")
    verdict: FleetVerdict
    totals: FleetTotals
    groups: tuple[FleetGroup, ...]
    unseen: tuple[Unseen, ...]


class Fleet(FleetHead):
    """Many machines, judged together."""

    hosts: tuple[HostReport, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """A fleet before it is printed: the head, and rows from which each host is made when it is its turn."""

    head: FleetHead
    rows: tuple[Row, ...]

    def hosts(self) -> Iterator[HostReport]:
        """One at a time."""
        return map(host_report, self.rows)

    def document(self) -> Fleet:
        """All of it at once."""
        return Fleet(**dict(self.head), hosts=tuple(self.hosts()))


def report(
    folder: str,
    *,
    since: str | None = None,
    room: str | None = None,
    catalog: str | None = None,
    jobs: int = 1,
    strict: bool = False,
    progress: Progress | None = None,
) -> Merged:
    """Judge every host of a folder.

    Args:
        folder: Captures, probes or dumps; see :mod:`gpucheck.fleet.store` for how they may lie in it.
        since: A folder with the state to compare with; by default each host's run before, where it is there.
        room: Also tell how many more of this card go into each host.
        catalog: Folder with catalog entries of your own.
        jobs: Processes that judge.
        strict: Let warnings make the exit code 1.
        progress: Called after every host.

    Raises:
        InputError: there is no such folder, or nothing is in it.
        UsageError: no card is called so.
    """
    from gpucheck.catalog import load

    if room is not None:
        load(catalog).find_cards(room)
    entries = list(_entries(Path(folder), Path(since) if since is not None else None))
    if not entries:
        raise InputError("no host is in it", input=folder, hint="give a folder with one capture a host, or collect one")
    unseen = [entry for entry in entries if isinstance(entry, Unseen)]
    waiting = [entry for entry in entries if isinstance(entry, Place)]
    del entries
    shared, rows = Shared(), []
    done = judged(waiting, partial(judge, settings=Settings(catalog, room)), jobs)
    for number, outcome in enumerate(done, 1):
        if isinstance(outcome, Row):
            rows.append(shared.row(outcome))
        else:
            unseen.append(outcome)
        if progress is not None:
            progress(number, len(waiting))
    merged, groups = merge(rows)
    return Merged(_head(merged, groups, sorted(unseen, key=lambda one: one.host), strict, room is not None), merged)


def _entries(folder: Path, since: Path | None) -> Iterator[Place | Unseen]:
    """Hosts to judge, and those of which it is known that there is nothing to judge."""
    try:
        run = store.read_run(folder)
    except InputError as error:
        run = None
        yield Unseen(host=store.MANIFEST, reason=error.message)
    earlier: dict[str, str] = {}
    if since is not None:
        earlier = {place.host: place.now for place in store.places(since) if isinstance(place, Place)}
    failed = {store.folder_of(one.host): one for one in run.unseen} if run is not None else {}
    missing = {store.folder_of(host): host for host in run.hosts} if run is not None else {}
    for place in store.places(folder):
        earlier_file = earlier.pop(place.host, None)
        wanted = missing.pop(place.host, None)
        if place.host in failed:
            yield failed.pop(place.host)
        elif isinstance(place, Unseen):
            yield place
        elif run is not None and wanted is not None and store.run_of(place.now) != run.run:
            yield Unseen(host=wanted, reason=_not_reached(run))
        elif run is not None and wanted is None and store.run_of(place.now) is not None:
            yield Unseen(
                host=place.host, reason=say("not among the hosts of the last run: remove its folder if it has gone")
            )
        else:
            yield Place(wanted or place.host, place.now, earlier_file if since is not None else place.before)
    yield from failed.values()
    if run is not None:
        yield from (Unseen(host=host, reason=_not_reached(run)) for key, host in missing.items() if key not in failed)
    yield from (Unseen(host=host, reason=say("it was there in the earlier run")) for host in sorted(earlier))


def _not_reached(run: store.Run) -> str:
    if run.ended:
        return say("the last run has no capture of it")
    return say("the last run was broken off before it: collect again to go on")


# --- processes ----------------------------------------------------------------------------------


def judged(places: Iterable[Place], work: Callable[[Place], Row | Unseen], jobs: int) -> Iterator[Row | Unseen]:
    """Judge places in so many processes; one that dies takes only the host down that killed it."""
    if jobs == 1:
        yield from map(work, places)
        return
    left = iter(places)
    again: list[Place] = []
    while True:
        running: dict[Future[Row | Unseen], Place] = {}
        with _pool(jobs) as pool:
            try:
                while True:
                    for place in islice(left, 4 * jobs - len(running)):
                        again = [place]  # until it is on its way: a broken pool takes nothing
                        running[pool.submit(work, place)] = place
                        again = []
                    if not running:
                        break
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        result = future.result()
                        del running[future]
                        yield result
            except BrokenProcessPool:
                again += running.values()
        if not again:
            return
        yield from _one_by_one(again, work)
        again.clear()


def _one_by_one(places: Iterable[Place], work: Callable[[Place], Row | Unseen]) -> Iterator[Row | Unseen]:
    """Those that were being judged when a process died: here it shows which of them it was."""
    pool = _pool(1)
    try:
        for place in places:
            try:
                yield pool.submit(work, place).result()
            except BrokenProcessPool:
                pool = _pool(1)
                yield Unseen(host=place.host, reason=say("the process that judged it died: too large for memory?"))
    finally:
        pool.shutdown()


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""

    def watch() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# --- the document -------------------------------------------------------------------------------


def host_report(row: Row) -> HostReport:
    """One host, as it is printed."""
    pci, device_files, nvml, tensorflow = row.counts
    expected = Expected(n=row.expected[0], origin=row.expected[1]) if row.expected is not None else None
    return HostReport(
        host=row.host,
        file=row.file,
        verdict=row.verdict,
        exit_code=row.exit_code,
        counts=Counts(pci=pci, device_files=device_files, nvml=nvml, tensorflow=tensorflow, expected=expected),
        headline=row.headline,
        findings=tuple(HostFinding.model_validate(note._asdict()) for note in row.notes),
        changed=None if row.changed is None else tuple(_filled(Change, values) for values in row.changed),
        lost=row.lost,
        uncompared=row.uncompared,
        room=None if row.room is None else tuple(_filled(RoomLeft, values) for values in row.room),
        group=row.group,
    )


def _filled(model: type[D], values: Sequence[object]) -> D:
    return model(**dict(zip(model.model_fields, values, strict=True)))


def _group(number: int, group: Group) -> FleetGroup:
    traits = group.traits
    cards = (
        None
        if traits.cards is None
        else tuple(FleetCards(id=kind.id, name=kind.name, count=kind.number) for kind in traits.cards)
    )
    return FleetGroup(
        number=number,
        hosts=group.hosts,
        model=traits.model,
        cards=cards,
        slots=traits.slots,
        psus=traits.psus,
        memory_bytes=traits.memory_bytes,
    )


def cards_in(row: Row) -> int:
    """GPUs of a host, by the level that shows most."""
    return max((count for count in (row.counts[0], row.counts[2]) if count is not None), default=0)


def room_in(row: Row) -> int | None:
    """More cards that go in for certain; None where it was not asked, or a question is open."""
    if row.room is None:
        return None
    left = [_filled(RoomLeft, values) for values in row.room]
    known = [one.more for one in left if one.verdict != "unknown"]
    return sum(known) if len(known) == len(left) else None


def _totals(rows: Sequence[Row], asked_room: bool) -> FleetTotals:
    verdicts = Counter(row.verdict for row in rows)
    return FleetTotals(
        hosts=len(rows),
        ok=verdicts["ok"],
        problem=verdicts["problem"],
        unknown=verdicts["unknown"],
        warned=sum(row.verdict == "ok" and bool(row.notes) for row in rows),
        gpus=sum(map(cards_in, rows)),
        lost=sum(len(row.lost) for row in rows),
        room=sum(room_in(row) or 0 for row in rows) if asked_room else None,
    )


def _head(
    rows: Sequence[Row], groups: Sequence[Group], unseen: Sequence[Unseen], strict: bool, asked_room: bool
) -> FleetHead:
    totals = _totals(rows, asked_room)
    verdict: FleetVerdict = "problem" if totals.problem else "unknown" if unseen or totals.unknown else "ok"
    exit_code = EXIT_CODES[verdict]
    if strict and any(row.notes for row in rows):
        exit_code = 1
    return FleetHead(
        headline=_headline(totals, len(unseen)),
        verdict=verdict,
        exit_code=exit_code,
        totals=totals,
        groups=tuple(_group(number, group) for number, group in enumerate(groups, 1)),
        unseen=tuple(unseen),
    )


def _headline(totals: FleetTotals, unseen: int) -> str:
    """Whole sentences, as many as there is something to say."""
    said = [
        say(
            plural(totals.hosts, "{hosts} host with {gpus} GPUs.", "{hosts} hosts with {gpus} GPUs."),
            hosts=totals.hosts,
            gpus=totals.gpus,
        )
    ]
    for count, one, many in (
        (totals.problem, "{count} has a problem.", "{count} have a problem."),
        (totals.lost, "{count} card is gone since the run before.", "{count} cards are gone since the run before."),
        (totals.warned, "{count} has only warnings.", "{count} have only warnings."),
        (totals.unknown, "{count} could not be judged.", "{count} could not be judged."),
        (unseen, "{count} was not seen.", "{count} were not seen."),
    ):
        if count:
            said.append(say(plural(count, one, many), count=count))
    if not (totals.problem or totals.warned or totals.unknown or unseen):
        said.append(say("No problem found."))
    if totals.room is not None:
        one, many = "There is room for {count} more card.", "There is room for {count} more cards."
        said.append(say(plural(totals.room, one, many), count=totals.room))
    return " ".join(said)
