"""Which card can stand in which slot, and the exact search for the best places.

Geometry follows the PCIe Card Electromechanical specification (CEM): a full-height card is
111.15 mm high and a full-length one 312 mm long; half length is 167.65 mm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpucheck.entries import Server, SlotRow
from gpucheck.findings import Outcome
from gpucheck.fit.request import Order, Wanted
from gpucheck.text import say

CEM_FULL_HEIGHT_MM = 111.15
CEM_LOW_HEIGHT_MM = 68.9
CEM_FULL_LENGTH_MM = 312.0
CEM_HALF_LENGTH_MM = 167.65
SLOT_WATTS = 75
"""Most that a card may draw from a slot (CEM, x16 graphics)."""

Topic = Literal["slot", "socket", "connector", "width", "height", "length", "slot-watts"]


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing about a card in a slot that is not simply all right."""

    topic: Topic
    outcome: Outcome
    message: str
    src: tuple[str, ...] = ()
    """Keys of the server's sources."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A card in a slot."""

    wanted: Wanted
    row: SlotRow
    remarks: tuple[Remark, ...]

    @property
    def usable(self) -> bool:
        """Nothing forbids it."""
        return all(remark.outcome != "fail" for remark in self.remarks)

    @property
    def unknowns(self) -> tuple[Remark, ...]:
        """What is not known about it."""
        return tuple(remark for remark in self.remarks if remark.outcome == "unknown")

    @property
    def lanes(self) -> int:
        """Lanes that the card will have."""
        return min(self.row.lanes, self.wanted.bus.lanes) if self.wanted.bus else self.row.lanes

    @property
    def covers(self) -> frozenset[str]:
        """Slot ids that it takes, its own among them."""
        wide = self.wanted.slots_wide or 1
        blocked = {slot for width, slots in self.row.wide_blocks.items() if int(width) <= wide for slot in slots}
        return frozenset(blocked | {self.row.id})


@dataclass(frozen=True, slots=True)
class Build:
    """One way in which the server can stand: CPUs and one choice per option."""

    cpus: int
    options: dict[str, str] = field(default_factory=dict)


def active_rows(server: Server, build: Build) -> tuple[SlotRow, ...]:
    """Slots that exist in this build, whether or not their CPU is there."""
    return tuple(
        row for row in server.slots if all(build.options.get(option) == choice for option, choice in row.when.items())
    )


def seat(wanted: Wanted, row: SlotRow, build: Build) -> Seat:
    """Judge one card in one slot."""
    return Seat(wanted, row, tuple(_remarks(wanted, row, build)))


def _remarks(wanted: Wanted, row: SlotRow, build: Build) -> Iterator[Remark]:
    if not row.gpu:
        yield Remark("slot", "fail", say("Slot {slot} is not for GPUs.", slot=row.id), row.src)
    if row.socket is None:
        text = say("Which CPU owns slot {slot} is not known.", slot=row.id)
        yield Remark("socket", "unknown", text)
    elif row.socket > build.cpus:
        text = say("Slot {slot} belongs to CPU {cpu}, which is not there.", slot=row.id, cpu=row.socket)
        yield Remark("socket", "fail", text, row.src)
    yield from _connector(wanted, row)
    yield from _width(wanted, row)
    yield from _height(wanted, row)
    yield from _length(wanted, row)
    yield from _slot_watts(wanted, row)


def _connector(wanted: Wanted, row: SlotRow) -> Iterator[Remark]:
    if wanted.bus is None:
        text = say("The edge connector of the {card} is not known.", card=wanted.name)
        yield Remark("connector", "unknown", text)
        return
    need, have = wanted.bus.connector, row.connector
    if have is None:
        if row.lanes < need and not row.open_ended:
            text = say("Whether an x{need} card goes into slot {slot} is not known.", need=need, slot=row.id)
            yield Remark("connector", "unknown", text)
    elif have < need and not row.open_ended:
        text = say(
            "Slot {slot} has an x{have} connector, the {card} needs x{need}.",
            slot=row.id,
            have=have,
            card=wanted.name,
            need=need,
        )
        yield Remark("connector", "fail", text, row.src)


def _width(wanted: Wanted, row: SlotRow) -> Iterator[Remark]:
    wide = wanted.slots_wide
    if wide is None:
        yield Remark("width", "unknown", say("How many slots wide the {card} is, is not known.", card=wanted.name))
    elif row.max_wide is None:
        if wide > 1:
            text = say("Whether slot {slot} has room for {wide} widths is not known.", slot=row.id, wide=wide)
            yield Remark("width", "unknown", text)
    elif wide > row.max_wide:
        text = say(
            "The {card} is {wide} slots wide, slot {slot} takes at most {most}.",
            card=wanted.name,
            wide=wide,
            slot=row.id,
            most=row.max_wide,
        )
        yield Remark("width", "fail", text, row.src)


def _height(wanted: Wanted, row: SlotRow) -> Iterator[Remark]:
    nominal = {"full": CEM_FULL_HEIGHT_MM, "low": CEM_LOW_HEIGHT_MM, None: None}[wanted.size.profile]
    height = wanted.size.height_mm if wanted.size.height_mm is not None else nominal
    if height is None:
        yield Remark("height", "unknown", say("The height of the {card} is not known.", card=wanted.name))
        return
    if row.height == "low":
        if height > CEM_LOW_HEIGHT_MM:
            text = say("Slot {slot} is low-profile, the {card} is not.", slot=row.id, card=wanted.name)
            yield Remark("height", "fail", text, row.src)
        return
    if row.clearance_height_mm is not None:
        if height > row.clearance_height_mm:
            yield Remark("height", "fail", _too_big("high", height, row, row.clearance_height_mm), row.src)
    elif height > CEM_FULL_HEIGHT_MM:
        text = say(
            "The {card} is {height:g} mm high, more than a standard card ({cem:g} mm), and the room above "
            "slot {slot} is not known.",
            card=wanted.name,
            height=height,
            cem=CEM_FULL_HEIGHT_MM,
            slot=row.id,
        )
        yield Remark("height", "unknown", text)
    elif row.height is None and height > CEM_LOW_HEIGHT_MM:
        text = say("Whether slot {slot} takes full-height cards is not known.", slot=row.id)
        yield Remark("height", "unknown", text)


def _length(wanted: Wanted, row: SlotRow) -> Iterator[Remark]:
    length = wanted.size.length_mm
    if length is None:
        yield Remark("length", "unknown", say("The length of the {card} is not known.", card=wanted.name))
        return
    if row.clearance_length_mm is not None:
        if length > row.clearance_length_mm:
            yield Remark("length", "fail", _too_big("long", length, row, row.clearance_length_mm), row.src)
    elif row.length == "half":
        if length > CEM_HALF_LENGTH_MM:
            text = say("Slot {slot} is half-length, the {card} is longer.", slot=row.id, card=wanted.name)
            yield Remark("length", "fail", text, row.src)
    elif length > CEM_FULL_LENGTH_MM:
        text = say(
            "The {card} is {length:g} mm long, more than a standard card ({cem:g} mm), and the room behind "
            "slot {slot} is not known.",
            card=wanted.name,
            length=length,
            cem=CEM_FULL_LENGTH_MM,
            slot=row.id,
        )
        yield Remark("length", "unknown", text)
    elif row.length is None and length > CEM_HALF_LENGTH_MM:
        text = say("Whether slot {slot} takes a card of {length:g} mm is not known.", slot=row.id, length=length)
        yield Remark("length", "unknown", text)


def _too_big(word: str, size: float, row: SlotRow, room: float) -> str:
    template = {
        "high": "The card is {size:g} mm high, slot {slot} has room for {room:g} mm.",
        "long": "The card is {size:g} mm long, slot {slot} has room for {room:g} mm.",
    }[word]
    return say(template, size=size, slot=row.id, room=room)


def _slot_watts(wanted: Wanted, row: SlotRow) -> Iterator[Remark]:
    """A card without a plug lives on the slot alone; one with a plug may still draw 75 W from it."""
    if wanted.aux is None or row.watts is None:
        return
    if wanted.aux.plugs:
        if row.watts < SLOT_WATTS:
            text = say(
                "Slot {slot} gives {have} W; a card with a power plug may draw up to {most} W from its slot.",
                slot=row.id,
                have=row.watts,
                most=SLOT_WATTS,
            )
            yield Remark("slot-watts", "unknown", text, row.src)
    elif wanted.power is not None and wanted.power.watts > row.watts:
        text = say(
            "Slot {slot} gives {have} W, the {card} draws {need} W from it alone.",
            slot=row.id,
            have=row.watts,
            card=wanted.name,
            need=wanted.power.watts,
        )
        yield Remark("slot-watts", "fail", text, row.src)


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
    def cost(self) -> tuple[object, ...]:
        """Less is better: what is not known, lanes lost, distance between cards, the vendor's order."""
        rows = [seat.row for seat in self.seats]
        pairs = [pair_class(a, b) for i, a in enumerate(rows) for b in rows[i + 1 :]]
        return (
            sum(len(seat.unknowns) for seat in self.seats),
            -sum(seat.lanes for seat in self.seats),
            sum(_DISTANCE[pair] for pair in pairs),
            sum(row.order if row.order is not None else 99 for row in rows),
            tuple(row.id.zfill(4) for row in rows),
        )


def best_placement(server: Server, orders: Sequence[Order], build: Build) -> Placement:
    """The best place for as many of the cards as go in: most cards first, then least cost.

    Exact: every set of slots is looked at, with those that cannot beat the best left out early.
    """
    rows = active_rows(server, build)
    queue = [order.wanted for order in orders for _ in range(order.count)]
    seats = {
        id(order.wanted): [place for row in rows if (place := seat(order.wanted, row, build)).usable]
        for order in orders
    }
    best: tuple[tuple[object, ...], Placement] | None = None

    def search(index: int, start: int, chosen: list[Seat], taken: frozenset[str]) -> None:
        nonlocal best
        left = len(queue) - index
        if best is not None and len(chosen) + left < len(best[1].seats):
            return
        if left == 0:
            placement = Placement(tuple(chosen))
            key = (-len(chosen), *placement.cost)
            if best is None or key < best[0]:
                best = (key, placement)
            return
        wanted = queue[index]
        options = seats[id(wanted)]
        for position in range(start, len(options)):
            option = options[position]
            if not option.covers & taken:
                same = index + 1 < len(queue) and queue[index + 1] is wanted
                search(index + 1, position + 1 if same else 0, [*chosen, option], taken | option.covers)
        # Leave out this card and those like it: fewer of one kind may let another kind in.
        following = index
        while following < len(queue) and queue[following] is wanted:
            following += 1
        search(following, 0, chosen, taken)

    search(0, 0, [], frozenset())
    assert best is not None
    seated = best[1].seats
    return Placement(tuple(sorted(seated, key=lambda s: s.row.order if s.row.order is not None else 99)))
