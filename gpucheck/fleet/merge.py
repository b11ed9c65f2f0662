"""Rows of a fleet, one a host, to what only many machines together can tell: twins, and who differs from them.

Pure functions. A row is small, and what equal machines share is one object (:class:`Shared`), so that ten thousand
hosts fit where a thousand do.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from gpucheck.baseline import MEMORY_TOLERANCE
from gpucheck.findings import CODES, SEVERITY_ORDER, Confidence, Severity
from gpucheck.probing import ProbeVerdict
from gpucheck.text import say, shorten

TWINS = 3
"""So many twins for each machine like the odd one. With fewer nobody can say which is odd."""
MANY_TWINS = 20
"""So many where several machines are alike in what they were built with: else there are two kinds of machine, and none
is odd."""

T = TypeVar("T", bound=Hashable)


class Note(NamedTuple):
    """A finding of a host, without its evidence."""

    code: str
    name: str
    severity: Severity
    subject: str
    message: str
    confidence: Confidence


class Kind(NamedTuple):
    """Cards of one kind in a machine."""

    id: str
    """PCI id where it is known, else the name: a card that lost its driver keeps it."""
    name: str
    number: int


class Traits(NamedTuple):
    """What twins have in common. None: not read."""

    model: str | None
    """None for a machine without a name: it has no twins."""
    cards: tuple[Kind, ...] | None
    slots: int | None
    psus: tuple[int | None, ...] | None
    """Watts of each power supply that is present."""
    memory_bytes: int | None
    links: tuple[tuple[str, int], ...] | None = None
    """Place and lanes of each card's link; of a card whose link was not read, none."""
    vbios: tuple[tuple[str, str], ...] | None = None
    """Kinds of cards and versions, each pair once."""
    driver: str | None = None
    bios: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One host, judged."""

    host: str
    file: str
    verdict: ProbeVerdict
    exit_code: int
    counts: tuple[int | None, ...]
    """On PCI, device files, in NVML, in TensorFlow."""
    expected: tuple[int, str] | None
    headline: str
    notes: tuple[Note, ...]
    traits: Traits
    changed: tuple[tuple[str, str, str | None, str | None], ...] | None = None
    """Subject, what, before and after; None where there is nothing to compare with."""
    lost: tuple[str, ...] = ()
    """Cards that the run before had."""
    uncompared: str | None = None
    room: tuple[tuple[Any, ...], ...] | None = None
    """Values of :class:`gpucheck.fit.report.RoomLeft`; None where it was not asked, or cannot be told."""
    group: int = 0
    """0 until merged."""


class Group(NamedTuple):
    """Machines that are equal in model, cards, slots, power supplies and memory."""

    traits: Traits
    hosts: int


@dataclass(slots=True)
class Shared:
    """Keeps one object of those that are equal."""

    known: dict[Hashable, Any] = field(default_factory=dict)

    def one(self, value: T) -> T:
        kept: T = self.known.setdefault((type(value), value), value)
        return kept

    def row(self, row: Row) -> Row:
        """The same row, of shared parts."""
        parts = {one.name: self.one(getattr(row, one.name)) for one in fields(row) if one.name not in ("host", "file")}
        return replace(row, **parts | {"notes": self.one(tuple(map(self.one, row.notes)))})


# --- merging ------------------------------------------------------------------------------------


def merge(rows: Iterable[Row]) -> tuple[tuple[Row, ...], tuple[Group, ...]]:
    """Rows by host, with what differs from their twins among their notes; and the groups of equal machines."""
    ordered = sorted(rows, key=attrgetter("host"))
    sizes = _sizes(ordered)
    odd: dict[int, list[Note]] = defaultdict(list)
    for trait in _TRAITS:
        for number, note in _odd(ordered, trait, sizes):
            odd[number].append(note)
    counted: Counter[Hashable] = Counter()
    first: dict[Hashable, Traits] = {}
    for row in ordered:
        key = _signature(row.traits, sizes)
        counted[key] += 1
        first.setdefault(key, row.traits)
    numbers = {key: number for number, (key, _) in enumerate(counted.most_common(), 1)}
    merged = tuple(
        replace(
            row,
            group=numbers[_signature(row.traits, sizes)],
            notes=_in_order([*row.notes, *odd[number]]) if number in odd else row.notes,
        )
        for number, row in enumerate(ordered)
    )
    return merged, tuple(Group(first[key], count) for key, count in counted.most_common())


def _in_order(notes: Iterable[Note]) -> tuple[Note, ...]:
    return tuple(
        sorted(notes, key=lambda one: (SEVERITY_ORDER[one.severity], CODES[one.name].stage, one.subject, one.code))
    )


def _sizes(rows: Iterable[Row]) -> dict[int, int]:
    """Sizes of memory to the smallest of those that are the same but for what firmware and kernel keep of it."""
    same: dict[int, int] = {}
    smallest = 0
    for size in sorted({row.traits.memory_bytes for row in rows if row.traits.memory_bytes is not None}):
        if size > smallest * (1 + MEMORY_TOLERANCE):
            smallest = size
        same[size] = smallest
    return same


# --- traits -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Trait:
    """Something in which twins are alike."""

    name: str
    value: Callable[[Traits, Mapping[int, int]], Hashable | None]
    """None: not read, or nothing to compare."""
    tell: Callable[[Traits, Traits], tuple[str, str, str]]
    """Of the odd one and a twin: subject, what it has and what the twin has."""
    kind: bool
    """Whether it makes a machine what it is: then it is left out only of its own comparison."""
    built: bool = True
    """Whether machines are built with it, in more ways than one; versions are only ever behind."""


def _signature(traits: Traits, sizes: Mapping[int, int], without: str = "") -> Hashable:
    """What equal machines have in common; without one trait, what its twins do."""
    return (traits.model, *(one.value(traits, sizes) for one in _TRAITS if one.kind and one.name != without))


def _cards(traits: Traits, sizes: Mapping[int, int]) -> Hashable | None:
    return None if traits.cards is None else tuple((kind.id, kind.number) for kind in traits.cards)


def _lanes(traits: Traits, sizes: Mapping[int, int]) -> Hashable | None:
    """Only where every card's link was read: a card that no longer answers is told by its own finding."""
    links, cards = traits.links or (), sum(kind.number for kind in traits.cards or ())
    return tuple(sorted(lanes for _, lanes in links)) if links and len(links) == cards else None


def _memory(traits: Traits, sizes: Mapping[int, int]) -> Hashable | None:
    return None if traits.memory_bytes is None else sizes[traits.memory_bytes]


def kinds_in_words(cards: Sequence[Kind] | None) -> str:
    """``2 × Tesla P40``; ``no card`` for none, ``?`` where they were not read."""
    if cards is None:
        return "?"
    return ", ".join(f"{kind.number} × {shorten(kind.name)}" for kind in cards) or say("no card")


def supplies_in_words(psus: Sequence[int | None] | None) -> str:
    """``2 × 1100 W``."""
    if psus is None:
        return "?"
    counted = Counter(psus).items()
    return ", ".join(f"{n} × {'?' if watts is None else watts} W" for watts, n in counted) or say("no power supply")


def _tell_cards(odd: Traits, twin: Traits) -> tuple[str, str, str]:
    return "Cards", kinds_in_words(odd.cards), kinds_in_words(twin.cards)


def _tell_links(odd: Traits, twin: Traits) -> tuple[str, str, str]:
    """The cards whose lanes no twin's card has to spare."""
    spare = Counter(lanes for _, lanes in twin.links or ())
    unlike = []
    for place, lanes in odd.links or ():
        spare[lanes] -= 1
        if spare[lanes] < 0:
            unlike.append((place, lanes))
    theirs = sorted(lanes for lanes, left in spare.items() if left > 0 for _ in range(left))
    return (
        ", ".join(place for place, _ in unlike),
        ", ".join(f"x{lanes}" for _, lanes in unlike),
        ", ".join(f"x{lanes}" for lanes in theirs),
    )


def _tell_vbios(odd: Traits, twin: Traits) -> tuple[str, str, str]:
    own, theirs = ([version for _, version in one.vbios or ()] for one in (odd, twin))
    return "VBIOS", ", ".join(own), ", ".join(theirs)


def _tell_psus(odd: Traits, twin: Traits) -> tuple[str, str, str]:
    return "Power supplies", supplies_in_words(odd.psus), supplies_in_words(twin.psus)


def _tell_driver(odd: Traits, twin: Traits) -> tuple[str, str, str]:
    return "Driver", f"{odd.driver}", f"{twin.driver}"


def _tell_bios(odd: Traits, twin: Traits) -> tuple[str, str, str]:
    return "BIOS", f"{odd.bios}", f"{twin.bios}"


def _gib(size: int | None) -> str:
    return "?" if size is None else f"{size / (1 << 30):.0f} GiB"


_TRAITS = (
    _Trait("cards", _cards, _tell_cards, kind=True),
    _Trait("psus", lambda t, _: t.psus, _tell_psus, kind=True),
    _Trait("memory", _memory, lambda a, b: ("Memory", _gib(a.memory_bytes), _gib(b.memory_bytes)), kind=True),
    _Trait("slots", lambda t, _: t.slots, lambda a, b: ("Slots", f"{a.slots}", f"{b.slots}"), kind=True),
    _Trait("links", _lanes, _tell_links, kind=False),
    _Trait("vbios", lambda t, _: t.vbios or None, _tell_vbios, kind=False, built=False),
    _Trait("driver", lambda t, _: t.driver, _tell_driver, kind=False, built=False),
    _Trait("bios", lambda t, _: t.bios, _tell_bios, kind=False, built=False),
)


def _odd(rows: Sequence[Row], trait: _Trait, sizes: Mapping[int, int]) -> Iterator[tuple[int, Note]]:
    """Which rows have another value than most of those that are otherwise equal."""
    families: dict[Hashable, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        if row.traits.model is not None and trait.value(row.traits, sizes) is not None:
            families[_signature(row.traits, sizes, trait.name)].append(number)
    for family in families.values():
        values = Counter(trait.value(rows[number].traits, sizes) for number in family)
        (usual, twins), *others = values.most_common()
        if not others:
            continue
        twin = next(rows[n].traits for n in family if trait.value(rows[n].traits, sizes) == usual)
        for number in family:
            own = trait.value(rows[number].traits, sizes)
            alike = values[own]
            if own != usual and alike * (MANY_TWINS if trait.built and alike >= TWINS else TWINS) <= twins:
                yield number, _note(trait.tell(rows[number].traits, twin), twins)


def _note(told: tuple[str, str, str], twins: int) -> Note:
    subject, own, usual = told
    message = say("{what}: {own} where {twins} twins have {usual}.", what=subject, own=own, twins=twins, usual=usual)
    name = "differs-from-twins"
    return Note(CODES[name].code, name, "warning", subject, message, "likely")
