"""Which card can stand in which slot, and the exact search for the best places.

Geometry follows the PCIe Card Electromechanical specification (CEM): a full-height card is
111.15 mm high and a full-length one 312 mm long; half length is 167.65 mm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import add
from typing import Literal

from gpucheck.entries import GpuLimit, Server, Size, SlotRow, Sourced, citations
from gpucheck.findings import Citation, Outcome
from gpucheck.fit.request import HEIGHT_ROUNDING_MM, ROUNDING_MM, Order, Wanted
from gpucheck.text import plural, say

CEM_FULL_HEIGHT_MM = 111.15
CEM_LOW_HEIGHT_MM = 68.9
CEM_FULL_LENGTH_MM = 312.0
CEM_HALF_LENGTH_MM = 167.65
SLOT_WATTS = 75
"""Most that a card may draw from a slot (CEM, x16 graphics)."""
LEAST_SLOT_WATTS = 25
"""What every slot of x4 and more gives (CEM)."""

Topic = Literal["slot", "socket", "connector", "width", "height", "length", "slot-watts"]


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing about a card in a slot that is not simply all right.

    ``template`` is a whole sentence that reads well with ``slot 4`` and with ``slots 4, 5`` for ``{slots}``.
    """

    topic: Topic
    outcome: Outcome
    template: str
    wanted: Wanted
    slot: str
    src: tuple[str, ...] = ()
    """Keys of the server's sources."""
    fields: tuple[tuple[str, object], ...] = ()

    @property
    def message(self) -> str:
        """The sentence for this slot."""
        return say(self.template, slots=slots_named((self.slot,)), **dict(self.fields))

    @property
    def of_card(self) -> tuple[Citation, ...]:
        """Sources of what it says of the card."""
        wanted = self.wanted
        table: Sourced | None = {"connector": wanted.bus, "slot-watts": wanted.power}.get(self.topic)
        if self.topic in ("width", "height", "length"):
            table = wanted.size
        return citations(wanted.card, table.src) if table is not None else ()


def merged(remarks: Iterable[Remark]) -> tuple[str, ...]:
    """Sentences for several remarks: those that differ in the slot alone become one."""
    groups: dict[tuple[str, tuple[tuple[str, object], ...]], list[str]] = {}
    for remark in remarks:
        slots = groups.setdefault((remark.template, remark.fields), [])
        if remark.slot not in slots:
            slots.append(remark.slot)
    return tuple(
        say(template, slots=slots_named(slots), **dict(fields)) for (template, fields), slots in groups.items()
    )


def slots_named(ids: Iterable[str]) -> str:
    """``slot 4`` or ``slots 4, 5``: each id once."""
    once = tuple(dict.fromkeys(ids))
    return say(plural(len(once), "slot {slots}", "slots {slots}"), slots=", ".join(once))


@dataclass(frozen=True)
class Seat:
    """A card in a slot."""

    wanted: Wanted
    row: SlotRow
    remarks: tuple[Remark, ...]
    covers: frozenset[str]
    """Slot ids that it takes, its own among them."""
    displaces: frozenset[str] = frozenset()
    """Of these, the ones in which something stands now."""
    order: int | None = None
    """Place in the vendor's order of filling for such a card, 1 first; None: the vendor names none."""
    rank: int = 0
    """The same where it is a rule for such a card; else 0."""
    fitted: bool = False
    """It stands there already."""

    @property
    def usable(self) -> bool:
        """Nothing forbids it."""
        return all(remark.outcome != "fail" for remark in self.remarks)

    @cached_property
    def unknowns(self) -> tuple[Remark, ...]:
        """What is not known about it."""
        return tuple(remark for remark in self.remarks if remark.outcome == "unknown")

    @cached_property
    def lanes(self) -> int | None:
        """Lanes that the card will have; None: not known."""
        if self.row.lanes is None or self.wanted.bus is None:
            return self.row.lanes
        return min(self.row.lanes, self.wanted.bus.lanes)


@dataclass(frozen=True, slots=True)
class Build:
    """One way in which the server can stand: CPUs and one choice per option."""

    cpus: int
    options: dict[str, str] = field(default_factory=dict)
    occupied: frozenset[str] = frozenset()
    """Slots that a probe found in use."""
    full: bool = False
    """Every CPU socket is populated: then no slot is dead, whoever owns it."""
    kept: frozenset[str] = frozenset()
    """Of these, the ones in which it stays."""


def active_rows(server: Server, build: Build) -> tuple[SlotRow, ...]:
    """Slots that exist in this build, whether or not their CPU is there."""
    return tuple(
        row for row in server.slots if all(build.options.get(option) == choice for option, choice in row.when.items())
    )


@dataclass(frozen=True, slots=True)
class Named:
    """Slots that the vendor names for a card, in its order of filling."""

    slots: tuple[str, ...]
    rule: bool
    """Its own page was read."""
    only: bool
    """A rule that names these and no others."""
    src: tuple[str, ...]


def applies(limit: GpuLimit, wanted: Wanted, build: Build) -> bool:
    """Whether a vendor's limit speaks of this card in this build."""
    return (
        (not limit.cards or any(wanted.is_called(name) for name in limit.cards))
        and limit.wide in (None, wanted.slots_wide)
        and limit.profile in (None, wanted.size.profile)
        and limit.cpus in (None, build.cpus)
        and all(build.options.get(key) == choice for key, choice in limit.needs.items())
    )


def vendor_read(server: Server, keys: Iterable[str]) -> bool:
    """Whether a statement with these sources is a rule: the vendor's own page was read."""
    return {server.sources[key].confidence for key in keys if key in server.sources} == {"vendor"}


def named_slots(server: Server, wanted: Wanted, build: Build) -> Named | None:
    """The slots that the vendor names for this card; the statement that says most of the card counts."""
    limits = [limit for limit in server.gpu.limits if limit.slots and applies(limit, wanted, build)]
    if not limits:
        return None
    limit = max(limits, key=lambda one: (bool(one.cards), one.cpus is not None, len(one.needs)))
    rule = vendor_read(server, limit.src)
    return Named(limit.slots, rule, limit.only_slots and rule, limit.src)


def seat(wanted: Wanted, row: SlotRow, build: Build, named: Named | None = None) -> Seat:
    """Judge one card in one slot.

    Args:
        wanted: The card.
        row: The slot.
        build: How the server stands.
        named: What :func:`named_slots` says of the card.
    """
    wide = wanted.slots_wide or 1
    blocked = {slot for width, slots in row.wide_blocks.items() if int(width) <= wide for slot in slots}
    covers = frozenset(blocked | {row.id})
    order, rank = row.order, 0
    if named is not None:
        order = named.slots.index(row.id) + 1 if row.id in named.slots else None
        rank = order or 0 if named.rule else 0
    return Seat(wanted, row, tuple(_remarks(wanted, row, build, named)), covers, covers & build.occupied, order, rank)


def _as_it_stands(order: Order, row: SlotRow) -> Seat:
    """A fitted card in its slot: nothing about it is in question, but the slots that it covers are taken."""
    wide = order.wanted.slots_wide or 1
    blocked = {slot for width, slots in row.wide_blocks.items() if int(width) <= wide for slot in slots}
    return Seat(order.wanted, row, (), frozenset(blocked | {row.id}), order=row.order, fitted=True)


def _remarks(wanted: Wanted, row: SlotRow, build: Build, named: Named | None) -> Iterator[Remark]:
    def remark(topic: Topic, outcome: Outcome, template: str, src: tuple[str, ...] = (), **fields: object) -> Remark:
        return Remark(topic, outcome, template, wanted, row.id, src, tuple(fields.items()))

    if wanted.card.form != "pcie":
        template = "The {card} is a module for a board of its own kind; it goes into no PCIe slot."
        yield remark("connector", "fail", template, card=wanted.name)
        return
    if named is not None and named.only and row.id not in named.slots:
        template = "The vendor names slots {named} for the {card}, not {slots}."
        yield remark("slot", "fail", template, named.src, card=wanted.name, named=", ".join(named.slots))
    if not row.gpu:
        yield remark("slot", "fail", "No GPU goes into {slots}.", row.src_of("gpu"))
    if row.socket is None and not build.full:
        yield remark("socket", "unknown", "Not known: which CPU owns {slots}.")
    elif row.socket is not None and row.socket > build.cpus:
        yield remark("socket", "fail", "CPU {cpu}, which is not there, owns {slots}.", row.src, cpu=row.socket)
    for judge in (_connector, _width, _height, _length, _slot_watts):
        yield from judge(wanted, row, remark)


Make = Callable[..., Remark]


def _connector(wanted: Wanted, row: SlotRow, remark: Make) -> Iterator[Remark]:
    if wanted.bus is None:
        yield remark("connector", "unknown", "Not known: the edge connector of the {card}.", card=wanted.name)
        return
    need, have = wanted.bus.connector, row.connector
    if row.open_ended:
        return
    if have is None:
        if row.lanes is None or row.lanes < need:
            yield remark("connector", "unknown", "Not known: whether an x{need} card goes into {slots}.", need=need)
    elif have < need:
        template = "The {card} needs an x{need} connector; x{have} in {slots}."
        yield remark("connector", "fail", template, row.src, card=wanted.name, need=need, have=have)


def _width(wanted: Wanted, row: SlotRow, remark: Make) -> Iterator[Remark]:
    wide = wanted.slots_wide
    if wide is None:
        yield remark("width", "unknown", "Not known: how many slots wide the {card} is.", card=wanted.name)
    elif row.max_wide is None:
        if wide > 1:
            yield remark("width", "unknown", "Not known: room for {wide} slot widths at {slots}.", wide=wide)
    elif wide > row.max_wide:
        template = "The {card} is {wide} slots wide; room for a width of {most} at {slots}."
        src = row.src_of("max_wide")
        yield remark("width", "fail", template, src, card=wanted.name, wide=wide, most=row.max_wide)


def height_of(size: Size) -> float | None:
    """Height in mm: as listed, or that of the card's profile in the CEM; None: not known."""
    nominal = {"full": CEM_FULL_HEIGHT_MM, "low": CEM_LOW_HEIGHT_MM, None: None}[size.profile]
    return size.height_mm if size.height_mm is not None else nominal


def of_standard_height(height: float) -> bool:
    """Whether a card is no higher than a full-height one of the CEM, as lists round it."""
    return height <= CEM_FULL_HEIGHT_MM + HEIGHT_ROUNDING_MM


def _height(wanted: Wanted, row: SlotRow, remark: Make) -> Iterator[Remark]:
    height, room = height_of(wanted.size), row.clearance_height_mm
    if height is None:
        yield remark("height", "unknown", "Not known: the height of the {card}.", card=wanted.name)
    elif row.height == "low":
        if height > CEM_LOW_HEIGHT_MM + HEIGHT_ROUNDING_MM:
            template = "The {card} is not low-profile, as it must be in {slots}."
            yield remark("height", "fail", template, row.src_of("height"), card=wanted.name)
    elif room is not None:
        if height > room:
            template = "The {card} is {height:g} mm high; room for {room:g} mm above {slots}."
            yield remark("height", "fail", template, row.src_of("height"), card=wanted.name, height=height, room=room)
    elif not of_standard_height(height):
        template = (
            "The {card} is {height:g} mm high, more than a standard card ({cem:g} mm). Not known: the room above "
            "{slots}."
        )
        yield remark("height", "unknown", template, card=wanted.name, height=height, cem=CEM_FULL_HEIGHT_MM)
    elif row.height is None and height > CEM_LOW_HEIGHT_MM + HEIGHT_ROUNDING_MM:
        yield remark("height", "unknown", "Not known: room for a full-height card in {slots}.")


def _length(wanted: Wanted, row: SlotRow, remark: Make) -> Iterator[Remark]:
    length, room = wanted.size.length_mm, row.clearance_length_mm
    if length is None:
        yield remark("length", "unknown", "Not known: the length of the {card}.", card=wanted.name)
    elif room is not None:
        if length > room:
            template = "The {card} is {length:g} mm long; room for {room:g} mm behind {slots}."
            yield remark("length", "fail", template, row.src_of("length"), card=wanted.name, length=length, room=room)
    elif row.length == "half":
        if length > CEM_HALF_LENGTH_MM + ROUNDING_MM:
            template = "The {card} is {length:g} mm long; room for a half-length card in {slots}."
            yield remark("length", "fail", template, row.src_of("length"), card=wanted.name, length=length)
    elif length > CEM_FULL_LENGTH_MM:
        template = (
            "The {card} is {length:g} mm long, more than a standard card ({cem:g} mm). Not known: the room behind "
            "{slots}."
        )
        yield remark("length", "unknown", template, card=wanted.name, length=length, cem=CEM_FULL_LENGTH_MM)
    elif row.length is None and length > CEM_HALF_LENGTH_MM + ROUNDING_MM:
        template = "Not known: room for a card of {length:g} mm in {slots}."
        yield remark("length", "unknown", template, length=length)


def _slot_watts(wanted: Wanted, row: SlotRow, remark: Make) -> Iterator[Remark]:
    """A card without a plug lives on the slot alone; one with a plug may still draw 75 W from it."""
    if wanted.aux is None:
        return
    if wanted.aux.plugs:
        if row.watts is not None and row.watts < SLOT_WATTS:
            template = "A card with a power plug may draw {most} W from its slot; {have} W from {slots}."
            yield remark("slot-watts", "unknown", template, row.src_of("watts"), most=SLOT_WATTS, have=row.watts)
        return
    if wanted.power is None:
        return
    need = wanted.power.watts
    if row.watts is None:
        if need > LEAST_SLOT_WATTS:
            template = "The {card} draws {need} W from its slot alone. Not known: the watts of {slots}."
            yield remark("slot-watts", "unknown", template, card=wanted.name, need=need)
    elif need > row.watts:
        template = "The {card} draws {need} W from its slot alone; {have} W from {slots}."
        yield remark("slot-watts", "fail", template, row.src_of("watts"), card=wanted.name, need=need, have=row.watts)


# --- pairs -------------------------------------------------------------------------------------

_DISTANCE = {"PIX": 0, "PHB": 1, "?": 2, "SYS": 3}


def pair_class(first: SlotRow, second: SlotRow) -> str:
    """PIX under one switch, PHB at one CPU, SYS across CPUs, ``?`` where the owner is not known."""
    if first.switch is not None and first.switch == second.switch:
        return "PIX"
    if first.socket is None or second.socket is None:
        return "?"
    return "PHB" if first.socket == second.socket else "SYS"


# --- search ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Placement:
    """Cards in slots, none of which is in another's way."""

    seats: tuple[Seat, ...]

    @property
    def cost(self) -> Cost:
        """Less is better: what is not known, slots in use, slots that the vendor does not name for GPUs, the order
        that a vendor's rule wants, lanes lost, distance between cards, the vendor's usual order."""
        return (*_spent(self.seats), tuple(seat.row.id.zfill(4) for seat in self.seats))


Cost = tuple[int | tuple[str, ...], ...]
_LANES = 4
"""Place of the lanes in a cost: the only part that one more card makes smaller."""


def _spent(seats: Sequence[Seat]) -> tuple[int, ...]:
    """Cost of seats, without their names."""
    spent: tuple[int, ...] = (0,) * 7
    for position, one in enumerate(seats):
        spent = tuple(map(add, spent, _one_more(one, seats[:position])))
    return spent


def _one_more(seat: Seat, others: Sequence[Seat]) -> tuple[int, ...]:
    """What one more seat adds to the cost of others."""
    return (
        len(seat.unknowns),
        len(seat.displaces),
        seat.order is None,
        seat.rank,
        -(seat.lanes or 0),
        sum(_DISTANCE[pair_class(seat.row, other.row)] for other in others),
        seat.order if seat.order is not None else 99,
    )


def best_placement(server: Server, orders: Sequence[Order], build: Build) -> Placement:
    """The best place for as many of the cards as go in; see :meth:`Room.best`."""
    return Room(server, build).best(orders)


class Room:
    """The slots of a server in one build: what one search learns of them serves the next.

    Args:
        server: The model.
        build: How it stands.
    """

    def __init__(self, server: Server, build: Build) -> None:
        self.server = server
        self.build = build
        self.rows = sorted(active_rows(server, build), key=lambda row: row.id.zfill(4))
        self._zones = _zones(server)
        self._twins = _twins(self.rows, build.occupied, self._zones)
        self._places: dict[tuple[str, str | None], list[Seat]] = {}

    def places(self, order: Order) -> list[Seat]:
        """Every slot that such a card may stand in."""
        key = (order.wanted.id, order.slot)
        if key not in self._places:
            named = named_slots(self.server, order.wanted, self.build)
            rows = (row for row in self.rows if order.slot in (None, row.id))
            seats = (seat(order.wanted, row, self.build, named) for row in rows)
            self._places[key] = [place for place in seats if place.usable and not place.displaces & self.build.kept]
        return self._places[key]

    def best(self, orders: Sequence[Order]) -> Placement:
        """The best place for as many of the cards as go in: most cards first, then least cost.

        Fitted cards stay where they are. Exact: every set of slots is looked at, but for those that cannot beat the
        best, and for those that differ from one that was looked at only in which of two interchangeable slots they use.
        """
        zones = self._zones
        standing = tuple(_as_it_stands(o, row) for o in orders if o.fitted for row in self.rows if row.id == o.slot)
        kinds = [(order.count, self.places(order)) for order in orders if not order.fitted]
        # Two slots are alike if every kind of card sees them so.
        seen = [{place.row.id: place.order for place in places} for _, places in kinds]
        twins = {row.id: (self._twins[row.id], *(order.get(row.id, 0) for order in seen)) for row in self.rows}
        # Most cards that the kinds from this one on can add.
        to_come = [sum(min(count, len(places)) for count, places in kinds[kind:]) for kind in range(len(kinds) + 1)]
        widest = max((place.lanes or 0 for _, places in kinds for place in places), default=0)
        best: tuple[Seat, ...] = ()
        most, least = -1, Cost()

        def beaten(more: int, chosen: tuple[Seat, ...], spent: tuple[int, ...]) -> bool:
            """Whether up to so many more cards cannot bring it before the best: too few, or dear already."""
            if len(chosen) + more != most:
                return len(chosen) + more < most
            return (*spent[:_LANES], spent[_LANES] - more * widest, *spent[_LANES + 1 :]) > least[:-1]

        def search(
            kind: int,
            start: int,
            left: int,
            chosen: tuple[Seat, ...],
            spent: tuple[int, ...],
            taken: frozenset[str],
            owners: frozenset[tuple[int, str]],
        ) -> None:
            nonlocal best, most, least
            if kind == len(kinds):
                cost: Cost = (*spent, tuple(one.row.id.zfill(4) for one in chosen))
                if len(chosen) > most or cost < least:
                    best, most, least = chosen, len(chosen), cost
                return
            places = kinds[kind][1]
            passed: set[object] = set()
            for position in range(start, len(places) if left else 0):
                if beaten(min(left, len(places) - position) + to_come[kind + 1], chosen, spent):
                    break
                place = places[position]
                twin = twins[place.row.id]
                if place.covers & taken or twin in passed:
                    continue
                held = zones.get(place.row.id, ())
                if any(zone in held and id != place.wanted.id for zone, id in owners):
                    continue
                owned = owners.union((zone, place.wanted.id) for zone in held) if held else owners
                more = tuple(map(add, spent, _one_more(place, chosen)))
                search(kind, position + 1, left - 1, (*chosen, place), more, taken | place.covers, owned)
                passed.add(twin)
            # Leave out the others of this kind: fewer of one may let another in.
            if not beaten(to_come[kind + 1], chosen, spent):
                following = kinds[kind + 1][0] if kind + 1 < len(kinds) else 0
                search(kind + 1, 0, following, chosen, spent, taken, owners)

        covered = frozenset(slot for one in standing for slot in one.covers)
        owned = frozenset((zone, one.wanted.id) for one in standing for zone in zones.get(one.row.id, ()))
        search(0, 0, kinds[0][0] if kinds else 0, standing, _spent(standing), covered, owned)
        return Placement(tuple(sorted(best, key=lambda s: s.order if s.order is not None else 99)))


def _zones(server: Server) -> dict[str, tuple[int, ...]]:
    """Slot id to the numbers of the zones in which the vendor wants GPUs of one model only."""
    read = [zone for zone in server.gpu.zones if vendor_read(server, zone.src)]
    slots = {slot for zone in read for slot in zone.slots}
    return {slot: tuple(number for number, zone in enumerate(read) if slot in zone.slots) for slot in slots}


def _twins(rows: Sequence[SlotRow], occupied: frozenset[str], zones: dict[str, tuple[int, ...]]) -> dict[str, object]:
    """Slot id to what decides about a card in it: equal for slots that are interchangeable."""
    in_the_way = occupied | {slot for row in rows for slots in row.wide_blocks.values() for slot in slots}
    return {
        row.id: row.id
        if row.wide_blocks or row.id in in_the_way
        else (
            *(row.socket, row.switch, row.gpu, row.lanes, row.connector, row.open_ended, row.watts, zones.get(row.id)),
            *(row.height, row.length, row.max_wide, row.clearance_height_mm, row.clearance_length_mm),
        )
        for row in rows
    }
