"""Rulings on firmware settings and address space for the cards' BARs."""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.entries import Card, citations
from gpucheck.findings import Citation
from gpucheck.fit.case import Case, Ruling, check_of, cover, listed, most_listed, vouched
from gpucheck.fit.report import Condition, Question
from gpucheck.fit.request import Wanted
from gpucheck.text import say

GIB = 1 << 30


def firmware(case: Case) -> Iterator[Ruling]:
    """Which firmware settings must be on, and is there room for the cards' BARs?"""
    big = [order for order in case.request.orders if order.wanted.card.needs_above_4g is not False]
    known_big = [order for order in big if order.wanted.card.needs_above_4g]
    if not big:
        small = [order.wanted.card for order in case.request.orders]
        said = (citations(card, card.needs_above_4g_src) for card in small)
        yield Ruling(check_of("firmware", "pass", "The cards need no 64-bit address space.", *said))
        return
    settings = [s for s in case.server.firmware if s.purpose in ("above-4g", "mmio-base", "mmio-size")]
    names = listed(order.wanted.name for order in (known_big or big))
    if settings:
        steps = "; ".join(f"{setting.menu} = {setting.value}" for setting in settings)
        text = say("Set in the firmware: {steps}.", steps=steps)
        sources = case.cite(key for setting in settings for key in setting.src)
        held = Condition(text=say("the firmware setting is on: {steps}", steps=steps), sources=sources)
        yield Ruling(check_of("firmware", "pass", text, sources), conditions=(held,) if known_big else ())
    else:
        text = say(
            "The name of this model's setting for 64-bit addresses (often: Above 4G Decoding) is not known; {cards} "
            "may need it.",
            cards=names,
        )
        question = Question(
            ask="Is there a firmware setting for memory-mapped I/O above 4 GB (Above 4G Decoding)?",
            how="Look through the PCI pages of the firmware setup.",
            if_yes="Turn it on before the card goes in.",
            if_no="Cards with a large BAR will not get their addresses.",
        )
        held = Condition(text=say("the firmware can place the large BAR of {cards}", cards=names))
        yield Ruling(
            check_of("firmware", "unknown", text),
            conditions=(held,) if known_big else (),
            questions=(question,),
        )
    yield from _address_space(case)


def _address_space(case: Case) -> Iterator[Ruling]:
    cards = [(order.wanted.card, order.count) for order in case.request.orders]
    bars = [(card.bar1.bytes, card.gpus_per_card * count) for card, count in cards if card.bar1 is not None]
    small, large = (sum(size * n for size, n in bars if (size >= GIB) is above) for above in (False, True))
    # A few small BARs find room below 4 GB, whatever the large ones do.
    total = large if small < GIB else large + small
    unknown = [card.name for card, _ in cards if card.bar1 is None and card.needs_above_4g is not False]
    sources = tuple(source for card, _ in cards if card.bar1 is not None for source in citations(card, card.bar1.src))
    if unknown:
        text = say("How much address space the {cards} takes is not known.", cards=listed(unknown))
    elif not total:
        text = say("The cards' large BARs take {mib} MiB in all: they fit below 4 GB.", mib=small >> 20)
        yield Ruling(check_of("address-space", "pass", text, sources), essential=True)
        return
    else:
        text = say("The cards' large BARs take {gib} GiB of address space.", gib=total >> 30)
    covered = [cover(case, order.wanted, order.count) for order in case.request.orders]
    if covered and all(covered):
        said = say("{what} A source has these cards in this model.", what=text)
        yield Ruling(check_of("address-space", "pass", said, sources, *covered), essential=True)
    elif not unknown and (shown := _as_much(case, total)):
        said = say("{what} A source has cards with as much in this model.", what=text)
        yield Ruling(check_of("address-space", "pass", said, sources, shown), essential=True)
    elif known := vouched(case):
        said = say("{what} The vendor's own limit admits such cards here.", what=text)
        held = Condition(text="the firmware has enough 64-bit address space")
        yield Ruling(check_of("address-space", "pass", said, sources, known), essential=True, conditions=(held,))
    else:
        said = say("{what} How much this model's firmware can give is not known.", what=text)
        question = Question(
            ask="How large is the 64-bit memory window of this machine?",
            how="On a running machine: dmesg | grep 'root bus resource' shows one window above 4 GB for each CPU.",
            if_yes="It is enough if each window holds the BARs of the cards behind it.",
            if_no="Look for MMIO size or MMIO high in the firmware setup.",
        )
        yield Ruling(
            check_of("address-space", "unknown", said, sources),
            essential=True,
            conditions=(Condition(text="the firmware has enough 64-bit address space"),),
            questions=(question,),
        )


def _as_much(case: Case, total: int) -> tuple[Citation, ...]:
    """The source of a build, or of the vendor's list, whose cards want as much in all and as much each.

    Each, because a BAR lies in one piece: two of 32 GiB do not show that one of 64 GiB finds room.
    """
    largest = max(order.wanted.card.bar1.bytes for order in case.request.orders if order.wanted.card.bar1)
    for card, count, src in _known_cards(case):
        bar = card.bar1.bytes if card.bar1 else 0
        if bar >= largest and bar * card.gpus_per_card * count >= total:
            return case.cite(src)
    return ()


def _known_cards(case: Case) -> Iterator[tuple[Card, int, tuple[str, ...]]]:
    """Cards that run or are listed in this model: entry, how many, keys of the sources."""
    gpu, catalog = case.server.gpu, case.request.catalog
    for report in gpu.reports:
        if report.works and len(report.cards) == 1:
            yield from ((card, report.count, report.src) for card in case.cards_in(report))
    for row in gpu.listed:
        for id in row.cards:
            if catalog is not None and id in catalog.cards:
                card = catalog.card(id)
                yield card, most_listed(case, Wanted(card)), row.src
