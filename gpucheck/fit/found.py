"""What a probe found in a machine, as a plan needs it: its risers, the cards that are in it, what else is taken."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from gpucheck import topology
from gpucheck.catalog import Catalog
from gpucheck.entries import Recognise, Server, SlotRow
from gpucheck.facts import Gpu, Machine, pci_address
from gpucheck.findings import Citation
from gpucheck.fit.request import Order, Stranger, Wanted
from gpucheck.fit.slots import Build, seat, slots_named
from gpucheck.sockets import socket_number
from gpucheck.text import say, shorten

_OF_SIZE = frozenset({"connector", "width", "height", "length"})


@dataclass(frozen=True, slots=True)
class Standing:
    """How a machine stands.

    Attributes:
        fitted: Cards of the catalog, each in its slot; the slot is None where none can be named.
        strangers: Cards that the catalog does not know.
        occupied: Ids of the other slots in which something stands.
        options: Choices of the model's options, as its slots and cards show them and as a person states them.
        cpus: CPUs that must be there, as the slots of living cards show; None: they do not show it.
        remarks: What was taken for granted, and what contradicts what is stated.
    """

    fitted: tuple[Order, ...] = ()
    strangers: tuple[Stranger, ...] = ()
    occupied: frozenset[str] = frozenset()
    options: dict[str, str] = field(default_factory=dict)
    cpus: int | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    """A card in the machine. ``wanted`` None: the catalog does not know it."""

    gpu: Gpu
    wanted: Wanted | None

    @property
    def name(self) -> str:
        return self.wanted.name if self.wanted is not None else shorten(self.gpu.name or self.gpu.pci_id or say("GPU"))


def standing(server: Server, machine: Machine, catalog: Catalog, stated: dict[str, str]) -> Standing:
    """Read off a machine how it stands.

    Args:
        server: Its entry.
        machine: What was read.
        catalog: Where its cards are looked up.
        stated: Options as a person states them; they outweigh what was found.
    """
    seen = recognised(server, machine)
    options = {**seen, **stated}
    tree = topology.tree(machine.pci or ())
    cards = tuple(_cards(machine, catalog))
    rows = _rows(server, options)
    places: dict[int, SlotRow] = {}
    for number, card in enumerate(cards):
        row = _row_of(card.gpu, rows, tree)
        if row is not None and row.id not in {known.id for known in places.values()}:
            places[number] = row
    shown = [(cards[number].wanted, row.id) for number, row in places.items()]
    options |= _shown_by_cards(server, options, [(wanted, id) for wanted, id in shown if wanted is not None])
    rows = _rows(server, options)
    owners = [row.socket or 0 for number, row in places.items() if cards[number].gpu.on_pci]
    in_use, unsure = _in_use(rows, machine, tree)
    remarks = [
        say(
            "The machine's slots show this: {found}. Stated, and judged here: {stated}.",
            found=server.options[key].choices[choice].called,
            stated=server.options[key].choices[options[key]].called,
        )
        for key, choice in seen.items()
        if options[key] != choice
    ]
    covered = {slot for number, row in places.items() for slot in _covers(cards[number].wanted, row)}
    for number, card in enumerate(cards):
        if number in places or (card.wanted is not None and card.wanted.card.form != "pcie"):
            continue
        row = _likely(card, [row for row in rows if row.id not in covered], in_use, server, machine)
        if row is None:
            template = "Which slot the {card} stands in is not known: no slot is taken for it."
            remarks.append(say(template, card=card.name))
            continue
        template = "Which slot the {card} stands in is not known: it is taken to stand in slot {slot}."
        remarks.append(say(template, card=card.name, slot=row.id))
        places[number] = row
        covered |= _covers(card.wanted, row)
    ids = {number: row.id for number, row in places.items()}
    strange = [number for number, card in enumerate(cards) if card.wanted is None]
    own = {id for number, id in ids.items() if number not in strange}
    if open_slots := sorted(unsure - set(ids.values())):
        template = "The firmware does not say whether something stands in {slots}."
        remarks.append(say(template, slots=slots_named(open_slots)))
    return Standing(
        fitted=tuple(
            Order(card.wanted, 1, ids.get(number), fitted=True)
            for number, card in enumerate(cards)
            if card.wanted is not None
        ),
        strangers=tuple(_stranger(cards[number], ids.get(number)) for number in strange),
        occupied=frozenset((in_use - own) | {ids[n] for n in strange if n in ids}),
        options=options,
        cpus=server.sockets.count if max(owners, default=0) == server.sockets.count else None,
        remarks=tuple(dict.fromkeys(remarks)),
    )


# --- cards --------------------------------------------------------------------------------------


def _cards(machine: Machine, catalog: Catalog) -> Iterator[_Found]:
    """Cards, where the machine lists GPUs: those of one card share a switch, else a slot, else they are counted."""
    seen: set[str] = set()
    loose: dict[str, int] = {}
    for gpu in machine.gpus or ():
        known = gpu.catalog_gpu is not None and gpu.catalog_gpu in catalog.cards
        wanted = Wanted(catalog.card(gpu.catalog_gpu)) if known and gpu.catalog_gpu is not None else None
        several = wanted.card.gpus_per_card if wanted is not None else 1
        together = gpu.card or (gpu.slot if several > 1 else None)
        if together is None and several > 1 and wanted is not None:
            loose[wanted.id] = number = loose.get(wanted.id, -1) + 1
            together = f"{wanted.id} {number // several}"
        if (key := together or gpu.address) not in seen:
            seen.add(key)
            yield _Found(gpu, wanted)


def _stranger(card: _Found, slot: str | None) -> Stranger:
    watts = _limit_of(card.gpu)
    told = Citation(title=say("the power limit that the card's driver tells"), confidence="measured")
    return Stranger(card.name, slot, watts, (told,) if watts is not None else ())


def _limit_of(gpu: Gpu) -> int | None:
    """Watts that the card may draw: its limit as it comes, or as it is set where that is more."""
    limits = (gpu.nvml.power_default_limit_watts, gpu.nvml.power_limit_watts) if gpu.nvml is not None else ()
    known = [limit for limit in limits if limit]
    if not known and gpu.report is not None and gpu.report.power_cap_watts:
        known = [gpu.report.power_cap_watts]
    return round(max(known)) if known else None


# --- slots --------------------------------------------------------------------------------------


def _rows(server: Server, options: dict[str, str]) -> list[SlotRow]:
    """Slots that may exist with these choices; an id repeats where an open choice decides how it is built."""
    return [row for row in server.slots if all(options.get(key, choice) == choice for key, choice in row.when.items())]


def _row_of(gpu: Gpu, rows: Sequence[SlotRow], tree: topology.Tree) -> SlotRow | None:
    """The slot that the firmware or the port above a card names."""
    named = [row for row in rows if gpu.slot is not None and gpu.slot in row.designations]
    path = {bridge.address for bridge in topology.path_to_root(gpu.address, tree)}
    below = [row for row in named or rows if row.root_port is not None and pci_address(row.root_port) in path]
    if below and len({row.id for row in below}) == 1:
        return below[0]
    return named[0] if named else None


def _covers(wanted: Wanted | None, row: SlotRow) -> set[str]:
    wide = (wanted.slots_wide if wanted is not None else None) or 1
    return {row.id} | {slot for width, slots in row.wide_blocks.items() if int(width) <= wide for slot in slots}


def _could_stand(wanted: Wanted, row: SlotRow, server: Server) -> bool:
    """Whether a card's size lets it stand in a slot."""
    remarks = seat(wanted, row, Build(server.sockets.count, full=True)).remarks
    return not any(remark.outcome == "fail" and remark.topic in _OF_SIZE for remark in remarks)


def _likely(
    card: _Found, rows: Sequence[SlotRow], in_use: Collection[str], server: Server, machine: Machine
) -> SlotRow | None:
    """The best of the slots that a card may stand in, so that too little room is told rather than too much.

    Slots that are in use come first, then those of which it is not known.
    """
    gpu = card.gpu
    owner = socket_number(gpu.socket, server, machine.cpu_sockets) if gpu.socket is not None else None
    able = [
        row
        for row in rows
        if (card.wanted is None or _could_stand(card.wanted, row, server))
        and (owner is None or row.socket in (None, owner))
    ]
    free = {slot.designation for slot in machine.slots or () if slot.in_use is False}
    used = [row for row in able if row.id in in_use]
    unsure = [row for row in able if not free & set(row.designations)]
    best = sorted(used or unsure or able, key=lambda row: (row.order or 99, -(row.lanes or 0), row.id.zfill(4)))
    return best[0] if best else None


def _in_use(rows: Sequence[SlotRow], machine: Machine, tree: topology.Tree) -> tuple[set[str], set[str]]:
    """Ids of slots in which something stands, and of those of which the firmware does not say it.

    A slot that the firmware does not list is judged by what is on PCI below its port.
    """
    told = {slot.designation: slot.in_use for slot in machine.slots or ()}
    used = {slot.designation for slot in machine.slots or () if slot.in_use}
    above = {
        bridge.address
        for function in tree.values()
        if not function.is_bridge
        for bridge in topology.path_to_root(function.address, tree)
    }
    ports = [port for _, port in {(row.id, row.root_port) for row in rows}]
    in_use, unsure = set(), set()
    for row in rows:
        states = [told[name] for name in row.designations if name in told]
        below = row.root_port is not None and ports.count(row.root_port) == 1 and pci_address(row.root_port) in above
        if used & set(row.designations) or (below and None in (states or [None])):
            in_use.add(row.id)
        elif None in states:
            unsure.add(row.id)
    return in_use, unsure


# --- options ------------------------------------------------------------------------------------


def recognised(server: Server, machine: Machine) -> dict[str, str]:
    """Options that the machine's own slot list decides; only where exactly one choice agrees."""
    if machine.slots is None:
        return {}
    widths = {slot.designation: slot.lanes for slot in machine.slots}
    names = {row.id: row.designations for row in server.slots}
    there = {id for id, designations in names.items() if any(name in widths for name in designations)}
    lanes = {id: next((widths[name] for name in names[id] if name in widths), None) for id in there}
    found = {}
    for key, option in server.options.items():
        agreeing = [
            name
            for name, choice in option.choices.items()
            if choice.recognise is not None and _agrees(choice.recognise, there, lanes)
        ]
        if len(agreeing) == 1:
            found[key] = agreeing[0]
    return found


def _agrees(recognise: Recognise, there: set[str], lanes: dict[str, int | None]) -> bool:
    return (
        not set(recognise.slots_absent) & there
        and set(recognise.slots_present) <= there
        and all(lanes.get(id) == width for id, width in recognise.slot_lanes.items())
    )


def _shown_by_cards(server: Server, options: dict[str, str], cards: Sequence[tuple[Wanted, str]]) -> dict[str, str]:
    """Open options that the cards decide: only one choice has slots in which they can stand."""
    found = {}
    for key, option in server.options.items():
        if key in options or not cards:
            continue
        able = [
            name
            for name in option.choices
            if all(
                any(
                    row.id == id
                    and all({**options, key: name}.get(k, choice) == choice for k, choice in row.when.items())
                    and _could_stand(wanted, row, server)
                    for row in server.slots
                )
                for wanted, id in cards
            )
        ]
        if len(able) == 1:
            found[key] = able[0]
    return found
