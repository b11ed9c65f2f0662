"""Rulings on firmware settings and address space for the cards' BARs."""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.entries import citations
from gpucheck.findings import Citation
from gpucheck.fit.case import Case, Ruling, check_of, cover, listed, means_card
from gpucheck.fit.report import Condition, Question
from gpucheck.text import say

GIB = 1 << 30


def firmware(case: Case) -> Iterator[Ruling]:
    """Which firmware settings must be on, and is there room for the cards' BARs?"""
    big = [order for order in case.request.orders if order.wanted.card.needs_above_4g is not False]
    known_big = [order for order in big if order.wanted.card.needs_above_4g]
    if not big:
        yield Ruling(check_of("firmware", "pass", "The cards need no 64-bit address space."))
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
    yield from _address_space(case, bool(settings))


def _address_space(case: Case, has_setting: bool) -> Iterator[Ruling]:
    total, unknown = 0, []
    for order in case.request.orders:
        card = order.wanted.card
        if card.bar1 is not None:
            total += card.bar1.bytes * card.gpus_per_card * order.count
        elif card.needs_above_4g is not False:
            unknown.append(order.wanted.name)
    sources = tuple(
        source
        for order in case.request.orders
        if order.wanted.card.bar1 is not None
        for source in citations(order.wanted.card, order.wanted.card.bar1.src)
    )
    if unknown:
        text = say("How much address space {cards} want is not known.", cards=listed(unknown))
    elif total < GIB:
        text = say("The cards' large BARs take {mib} MiB in all: they fit below 4 GB.", mib=total >> 20)
        yield Ruling(check_of("address-space", "pass", text, sources), essential=True)
        return
    else:
        text = say("The cards' large BARs take {gib} GiB of address space.", gib=total >> 30)
    covered = [cover(case, order.wanted, order.count) for order in case.request.orders]
    if covered and all(covered):
        said = say("{what} These cards are known to work in this model.", what=text)
        yield Ruling(check_of("address-space", "pass", said, sources, *covered), essential=True)
    elif (most := _largest_known(case)) is not None and not unknown and total <= most[0]:
        said = say("{what} As much is known to work in this model.", what=text)
        yield Ruling(check_of("address-space", "pass", said, sources, most[1]), essential=True)
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


def _largest_known(case: Case) -> tuple[int, tuple[Citation, ...]] | None:
    """Most BAR1 bytes of the request's own cards that a report of this model covers."""
    best: tuple[int, tuple[Citation, ...]] | None = None
    for order in case.request.orders:
        card = order.wanted.card
        if card.bar1 is None:
            continue
        for report in case.server.gpu.reports:
            if report.works and any(means_card(name, card) for name in report.cards):
                total = card.bar1.bytes * card.gpus_per_card * report.count
                if best is None or total > best[0]:
                    best = (total, case.cite(report.src))
    return best
