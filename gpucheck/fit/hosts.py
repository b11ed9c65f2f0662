"""Rulings on the machine around the cards: the CPU that is named, the host's memory, and what the cards are for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpucheck.entries import Card, citations
from gpucheck.findings import Citation
from gpucheck.fit.case import Case, Ruling, check_of, cited, listed
from gpucheck.fit.report import Condition
from gpucheck.fit.request import Processor
from gpucheck.text import say

GIB = 1 << 30

READ_SHARE = 0.95
"""The kernel's MemTotal is a few percent below what is fitted: it leaves out what firmware and kernel keep."""


# --- the CPU --------------------------------------------------------------------------------------


def processors(case: Case) -> Iterator[Ruling]:
    """Does the CPU that is named go into the server, and what does it leave to the cards?"""
    cpu = case.request.cpu
    if cpu is None:
        return
    yield from _socketed(case, cpu)
    yield from _address_bits(case, cpu)
    yield from _lanes(case, cpu)
    if cpu.avx == "none":
        text = say("TensorFlow's packages need AVX; the {cpu} has none.", cpu=cpu.name)
        held = Condition(text=say("the software needs no AVX: the {cpu} has none", cpu=cpu.name))
        yield Ruling(check_of("cpu", "unknown", text, cpu.family_sources), conditions=(held,))


def _socketed(case: Case, cpu: Processor) -> Iterator[Ruling]:
    """A list of families names what the sources name: a CPU that is not on it may still go in."""
    known = case.server.sockets.cpus
    if cpu.found or not known:
        return
    sources = case.cite(case.server.sockets.src)
    fields = {"model": case.server.model, "family": cpu.family, "cpu": cpu.name, "families": listed(known)}
    if cpu.family in known:
        text = say("The {model} takes CPUs of the family {family}: the {cpu} is one.", **fields)
        yield Ruling(check_of("cpu", "pass", text, sources, cpu.sources))
        return
    text = say("The {cpu} is of the family {family}; the {model} is known to take: {families}.", **fields)
    held = Condition(text=say("the {cpu} goes into the {model}, known for: {families}", **fields), sources=sources)
    yield Ruling(check_of("cpu", "unknown", text, sources), conditions=(held,))


def _address_bits(case: Case, cpu: Processor) -> Iterator[Ruling]:
    """What the CPU cannot address no firmware can give: the cards' BARs and the host's memory share it."""
    cards = [(order.wanted.card, order.count) for order in case.request.orders]
    if cpu.address_bits is None or any(card.bar1 is None for card, _ in cards):
        return
    bars = sum(card.bar1.bytes * card.gpus_per_card * count for card, count in cards if card.bar1)
    sources = [citations(card, card.bar1.src) for card, _ in cards if card.bar1]
    ram = case.request.ram_bytes or 0
    fields = {
        "cpu": cpu.name,
        "bits": cpu.address_bits,
        "space": (1 << cpu.address_bits) // GIB,
        "bars": -(-bars // GIB),
        "ram": -(-ram // GIB),
    }
    if bars + ram <= 1 << cpu.address_bits:
        text = say("The {cpu} has {bits} address bits ({space} GiB): room for the cards' BARs of {bars} GiB.", **fields)
        yield Ruling(check_of("address-bits", "pass", text, cpu.family_sources, *sources))
        return
    text = say(
        "The {cpu} has {bits} address bits ({space} GiB): too few for the cards' BARs of {bars} GiB and {ram} GiB of "
        "memory, whatever the firmware.",
        **fields,
    )
    yield Ruling(check_of("address-bits", "fail", text, cpu.family_sources, *sources), essential=True)


def _lanes(case: Case, cpu: Processor) -> Iterator[Ruling]:
    """Slots without a switch that are wired for more lanes than the CPU has share them, or some are dead."""
    wired: Counter[int] = Counter()
    for seat in case.placement.seats:
        if seat.row.socket is not None and seat.row.switch is None:
            wired[seat.row.socket] += seat.row.lanes or 0
    for socket, lanes in sorted(wired.items()):
        if cpu.pcie_lanes is not None and lanes > cpu.pcie_lanes:
            text = say(
                "The slots used at CPU {socket} are wired for {lanes} lanes, the {cpu} has {have}: some run narrower.",
                socket=socket,
                lanes=lanes,
                cpu=cpu.name,
                have=cpu.pcie_lanes,
            )
            yield Ruling(check_of("lanes", "unknown", text, cpu.family_sources), conditions=(Condition(text=text),))


# --- memory ---------------------------------------------------------------------------------------


def memory(case: Case) -> Iterator[Ruling]:
    """Is there enough of it for the cards, and can they reach all of it?"""
    rules = _rules(case)
    if rules is None:
        return
    yield from _enough(case, rules)
    if case.request.ram_bytes is not None:
        yield from _reached(case, rules, case.request.ram_bytes)


def _rules(case: Case) -> Mapping[str, Any] | None:
    """The catalog's rules of thumb; None where it has none, as a person's own may."""
    catalog = case.request.catalog
    return catalog.software.get("host-memory") if catalog is not None else None


def _enough(case: Case, rules: Mapping[str, Any]) -> Iterator[Ruling]:
    cards = [(order.wanted.card, order.count) for order in case.request.orders]
    if any(card.vram_gib is None for card, _ in cards):
        names = listed(dict.fromkeys(card.name for card, _ in cards if card.vram_gib is None))
        text = say("Not known: the memory of the {cards}, by which the host's memory is judged.", cards=names)
        yield Ruling(check_of("host-ram", "unknown", text))
        return
    infer = case.request.use == "infer"
    each = [((card.vram_gib or 0) * card.gpus_per_card, count) for card, count in cards]
    want = round(max(vram for vram, _ in each) if infer else sum(vram * count for vram, count in each))
    rule = rules["infer" if infer else "train"]
    sources = (*_cited(rules, rule["src"]), *(s for card, _ in cards for s in citations(card, card.vram_src)))
    have = case.request.ram_bytes
    fields = {"want": want, "have": None if have is None else round(have / GIB)}
    if have is not None and have >= want * GIB * READ_SHARE:
        text = say(rule["enough"], **fields)
        yield Ruling(check_of("host-ram", "pass", text, sources))
        return
    text = say(rule["wanted"] if have is None else rule["short"], **fields)
    held = Condition(text=say("the host has {want} GiB of memory or more (a rule of thumb)", **fields), sources=sources)
    yield Ruling(check_of("host-ram", "unknown", text, sources), conditions=(held,))


def _reached(case: Case, rules: Mapping[str, Any], have: int) -> Iterator[Ruling]:
    """Older GPUs have fewer address lines than the host has memory: the driver then avoids all above 4 GB."""
    for card in dict.fromkeys(order.wanted.card.id for order in case.request.orders):
        entry = next(order.wanted.card for order in case.request.orders if order.wanted.card.id == card)
        row = _reach(entry, rules["reach"])
        if row is not None and have >= 1 << row["bits"]:
            fields = {"card": entry.name, "reach": (1 << row["bits"]) // GIB, "have": have // GIB}
            text = say(
                "The {card} reaches {reach} GiB of addresses, the host has {have} GiB: the driver then keeps its "
                "buffers below 4 GB.",
                **fields,
            )
            sources = _cited(rules, row["src"])
            held = Condition(
                text=say("less than {reach} GiB of memory is fitted or used: the {card} reaches no more", **fields),
                sources=sources,
            )
            yield Ruling(check_of("host-ram", "unknown", text, sources), conditions=(held,))


def _reach(card: Card, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The first row for GPUs below whose compute capability the card is; None where neither is known."""
    capability = card.software.compute_capability
    if card.vendor != "nvidia" or capability is None:
        return None
    return next((row for row in rows if float(capability) < float(row["below"])), None)


def _cited(rules: Mapping[str, Any], keys: Sequence[str]) -> tuple[Citation, ...]:
    return cited("host-memory", rules, keys)


# --- use ------------------------------------------------------------------------------------------


def use(case: Case) -> Iterator[Ruling]:
    """What only training needs is not asked of cards that infer; it says so."""
    if case.request.use != "infer":
        return
    several = case.request.count > 1
    unlike = len({order.wanted.card.software.compute_capability for order in case.request.orders}) > 1
    narrow = any(
        seat.wanted.bus is not None and (seat.row.lanes is None or seat.row.lanes < seat.wanted.bus.lanes)
        for seat in case.placement.seats
    )
    relaxed = [
        *(["how far apart the cards stand, and all-reduce between them"] if several else []),
        *(["one TensorFlow for all the cards: each may have a process of its own"] if unlike else []),
        *(["lanes: models are loaded once, and slower"] if narrow else []),
        "host memory for all the cards at once: that of the largest card is enough",
    ]
    text = say("For inference these are not asked: {relaxed}.", relaxed="; ".join(relaxed))
    rules = _rules(case)
    yield Ruling(check_of("use", "pass", text, _cited(rules, rules["alone"]["src"]) if rules is not None else ()))
