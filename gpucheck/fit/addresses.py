"""Rulings on firmware settings and address space for the cards' BARs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpucheck.entries import Card, FirmwareSetting, MmioWindow, citations
from gpucheck.findings import Citation
from gpucheck.fit.case import Case, Ruling, check_of, cover, listed, most_listed, vouched
from gpucheck.fit.report import Answer, Condition, Item, Question
from gpucheck.fit.request import Wanted
from gpucheck.text import say

GIB = 1 << 30

_STEPS = ("csm", "above-4g", "mmio-base", "mmio-size")
"""In the order in which the menus want them: many boards show the switch only once CSM is off."""


def firmware(case: Case) -> Iterator[Ruling]:
    """Which firmware settings must be on, and is there room for the cards' BARs?"""
    yield from _address_bits(case)
    big = [order for order in case.request.orders if order.wanted.card.needs_above_4g is not False]
    known_big = [order for order in big if order.wanted.card.needs_above_4g]
    if not big:
        small = [order.wanted.card for order in case.request.orders]
        said = (citations(card, card.needs_above_4g_src) for card in small)
        yield Ruling(check_of("firmware", "pass", "The cards need no 64-bit address space.", *said))
        yield from _resizable(case)
        return
    settings = sorted(
        (setting for setting in case.server.firmware if setting.purpose in _STEPS),
        key=lambda setting: _STEPS.index(setting.purpose),
    )
    names = listed(order.wanted.name for order in (known_big or big))
    if settings:
        text = say("Set in the firmware: {steps}.", steps="; ".join(map(_in_full, settings)))
        sources = case.cite(key for setting in settings for key in setting.src)
        # What comes so needs no confirming, but a dead battery may have brought another default back.
        unsure = [setting for setting in settings if setting.default != setting.value] or settings
        steps = "; ".join(f"{setting.menu} = {setting.value}" for setting in unsure)
        held = Condition(text=say("the firmware setting is on: {steps}", steps=steps), sources=sources)
        yield Ruling(check_of("firmware", "pass", text, sources), conditions=(held,) if known_big else ())
        for setting in settings if known_big else ():
            yield from _bios(case, setting)
    else:
        yield _setting_unknown(case, names, sure=bool(known_big))
    yield from _address_space(case)


def _in_full(setting: FirmwareSetting) -> str:
    """Menu and value, what it comes with, and how to set it from outside."""
    template = "{menu} = {value}"
    if setting.default is not None and setting.command is not None:
        template = "{menu} = {value} (as it comes: {default}; or: {command})"
    elif setting.default is not None:
        template = "{menu} = {value} (as it comes: {default})"
    elif setting.command is not None:
        template = "{menu} = {value} (or: {command})"
    return say(template, menu=setting.menu, value=setting.value, default=setting.default, command=setting.command)


def _setting_unknown(case: Case, names: str, *, sure: bool) -> Ruling:
    text = say(
        "The name of this model's setting for 64-bit addresses (often: Above 4G Decoding) is not known; {cards} "
        "may need it.",
        cards=names,
    )
    how = (
        "Look through the PCI pages of the firmware setup. On boards with a compatibility mode (CSM) it often shows "
        "only after that is off: boot mode UEFI alone first, then the switch."
        if case.server.form.kind in ("board", "desktop")
        else "Look through the PCI pages of the firmware setup."
    )
    question = Question(
        ask="Is there a firmware setting for memory-mapped I/O above 4 GB (Above 4G Decoding)?",
        how=how,
        if_yes="Turn it on before the card goes in.",
        if_no="Cards with a large BAR will not get their addresses.",
    )
    held = Condition(text=say("the firmware can place the large BAR of {cards}", cards=names))
    return Ruling(check_of("firmware", "unknown", text), conditions=(held,) if sure else (), questions=(question,))


# --- versions of the BIOS -----------------------------------------------------------------------


def _bios(case: Case, setting: FirmwareSetting) -> Iterator[Ruling]:
    """Versions without the setting: judged where the version is known, else a condition."""
    version, sources = case.request.bios_version, case.cite(setting.src)
    fields = {"menu": setting.menu, "without": listed(setting.bios_without), "first": setting.bios_from, "is": version}
    if setting.bios_without:
        named = {_folded(known) for known in setting.bios_without}
        if version is None:
            text = say("the BIOS is none of {without}, which lack {menu}", **fields)
            yield Ruling(check_of("firmware", "unknown", text, sources), conditions=(_held(text, sources),))
        elif _folded(version) in named:
            yield _reflash(say("BIOS {is} lacks {menu}: another version is needed.", **fields), sources)
        else:
            yield Ruling(check_of("firmware", "pass", say("BIOS {is} is not known to lack {menu}.", **fields), sources))
    if setting.bios_from is not None:
        older = None if version is None else _older(version, setting.bios_from)
        if older is None:
            text = say("the BIOS is version {first} or newer: earlier ones lack {menu}", **fields)
            yield Ruling(check_of("firmware", "unknown", text, sources), conditions=(_held(text, sources),))
        elif older:
            text = say("BIOS {is} lacks {menu}, which comes with {first}: update it.", **fields)
            yield _reflash(text, sources)
        else:
            text = say("BIOS {is} has {menu}, which came with {first}.", **fields)
            yield Ruling(check_of("firmware", "pass", text, sources))


def _held(text: str, sources: tuple[Citation, ...]) -> Condition:
    return Condition(text=text, sources=sources)


def _reflash(text: str, sources: tuple[Citation, ...]) -> Ruling:
    item = Item(
        item=say("another BIOS version, from the maker's page (nothing to buy)"),
        part_numbers=(),
        quantity=1,
        need="must",
        why=text,
        sources=sources,
    )
    return Ruling(check_of("firmware", "change", text, sources), items=(item,))


def _folded(version: str) -> str:
    return version.strip().casefold()


def _older(version: str, than: str) -> bool | None:
    """Whether a BIOS version is older; None where the two are not written alike."""
    first, second = (re.findall(r"\d+|[a-z]+", _folded(text)) for text in (version, than))
    kinds = [[part.isdecimal() for part in parts] for parts in (first, second)]
    if not first or any(a is not b for a, b in zip(*kinds, strict=False)):
        return None
    words = [[part for part in parts[:1] if not part.isdecimal()] for parts in (first, second)]
    if words[0] != words[1]:
        return None

    def order(parts: Sequence[str]) -> tuple[tuple[int, str], ...]:
        return tuple((int(part), "") if part.isdecimal() else (0, part) for part in parts)

    return order(first) < order(second)


# --- address space ------------------------------------------------------------------------------


def _resizable(case: Case) -> Iterator[Ruling]:
    """What the switch for larger BARs would ask for, where a card has one."""
    for order in case.request.orders:
        bar = order.wanted.card.bar1
        if bar is not None and bar.resizable_to_bytes is not None:
            text = say(
                "With Resizable BAR each {card} asks for {large} GiB of addresses instead of {small} MiB: leave it off "
                "where they do not find room; training works without it.",
                card=order.wanted.name,
                large=bar.resizable_to_bytes // GIB,
                small=bar.bytes >> 20,
            )
            yield Ruling(check_of("firmware", "pass", text, citations(order.wanted.card, bar.src)))


def _address_bits(case: Case) -> Iterator[Ruling]:
    """What a probe read of a processor that is not named: no firmware gives more than it can address."""
    bits, cpu = case.request.address_bits, case.request.cpu
    bars = _bars([order.wanted.card for order in case.request.orders for _ in range(order.count)])
    if bits is None or not bars or (cpu is not None and cpu.address_bits is not None):
        return
    space, memory = 1 << bits, max(case.request.ram_bytes or 0, 4 * GIB)
    fields = {
        "bits": bits,
        "space": space // GIB,
        "bars": sum(bars) // GIB,
        "ram": -(-memory // GIB),
        "left": max(space - sum(bars), 0) // GIB,
    }
    sources = [citations(o.wanted.card, o.wanted.card.bar1.src) for o in case.request.orders if o.wanted.card.bar1]
    if sum(bars) + memory > space:
        text = say(
            "The processor has {bits} address bits ({space} GiB): too few for the cards' BARs of {bars} GiB and {ram} "
            "GiB of memory, whatever the firmware.",
            **fields,
        )
        yield Ruling(check_of("address-bits", "fail", text, *sources), essential=True)
    elif case.request.ram_bytes is None and 4 * sum(bars) > space:
        text = say(
            "the processor has {bits} address bits ({space} GiB), the cards' BARs take {bars} GiB: less than {left} "
            "GiB of memory is fitted",
            **fields,
        )
        check = check_of("address-bits", "unknown", text, *sources)
        yield Ruling(check, conditions=(Condition(text=text, sources=check.sources),))
    else:
        text = say(
            "The processor has {bits} address bits ({space} GiB): room for the cards' BARs of {bars} GiB.", **fields
        )
        yield Ruling(check_of("address-bits", "pass", text, *sources))


def _bars(cards: Sequence[Card]) -> list[int]:
    """Large BARs of the cards, each a power of two."""
    sizes = [card.bar1.bytes for card in cards if card.bar1 is not None for _ in range(card.gpus_per_card)]
    return [_power_of_two(size) for size in sizes if size >= GIB]


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


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
    judged = None if unknown else _windows(case, sources)
    if judged is not None and judged.check.outcome == "pass":
        yield judged
    elif covered and all(covered):
        said = say("{what} A source has these cards in this model.", what=text)
        yield Ruling(check_of("address-space", "pass", said, sources, *covered), essential=True)
    elif not unknown and (shown := _as_much(case, total)):
        said = say("{what} A source has cards with as much in this model.", what=text)
        yield Ruling(check_of("address-space", "pass", said, sources, shown), essential=True)
    elif judged is not None and judged.check.outcome == "fail":
        yield judged
    elif known := vouched(case):
        said = say("{what} The vendor's own limit admits such cards here.", what=text)
        held = Condition(text="the firmware has enough 64-bit address space")
        yield Ruling(check_of("address-space", "pass", said, sources, known), essential=True, conditions=(held,))
    elif judged is not None:
        yield judged
    else:
        said = say("{what} How much this model's firmware can give is not known.", what=text)
        yield Ruling(
            check_of("address-space", "unknown", said, sources),
            essential=True,
            conditions=(Condition(text="the firmware has enough 64-bit address space"),),
            questions=(_WINDOW_QUESTION,),
        )


_WINDOW_QUESTION = Question(
    ask="How large is the 64-bit memory window of this machine?",
    how="On a running machine: dmesg | grep 'root bus resource' shows one window above 4 GB for each CPU.",
    if_yes="It is enough if each window holds the BARs of the cards behind it.",
    if_no="Look for MMIO size or MMIO high in the firmware setup.",
    no=Answer(verdict="unknown"),
)


def _windows(case: Case, sources: tuple[Citation, ...]) -> Ruling | None:
    """The BARs against the windows that a source gives for this model; None where none is given.

    A BAR begins at a multiple of its size, and a card has small BARs beside the large: so the cards of one window
    take at least the sum of their BARs, and at most one BAR more for each card.
    """
    if not case.placement.seats:
        return None
    by_socket: dict[int | None, list[Card]] = {}
    for seat in case.placement.seats:
        by_socket.setdefault(seat.row.socket, []).append(seat.wanted.card)
    whole = [[seat.wanted.card for seat in case.placement.seats]]
    # Cards whose CPU is not known may all stand at one.
    shares = {"machine": whole, "socket": whole if None in by_socket else list(by_socket.values())}
    windows = sorted(case.server.mmio, key=lambda window: window.bytes)
    for window in windows:
        if all(_most(cards) <= window.bytes for cards in shares[window.each]):
            return _in_window(case, window, shares[window.each], sources)
    if not windows:
        return None
    window = windows[-1]
    cards = max(shares[window.each], key=_most)
    least, most = sum(_bars(cards)), _most(cards)
    fields = {"least": least // GIB, "most": most // GIB, "window": window.bytes // GIB, "when": window.when}
    told = case.cite(window.src)
    if least >= window.bytes and all(known.when is None for known in windows):
        text = say(
            "The cards' large BARs take {least} GiB or more of one window; this model's is {window} GiB.", **fields
        )
        return Ruling(check_of("address-space", "fail", text, sources, told), essential=True)
    text = say(
        "The cards' large BARs take {least} to {most} GiB of one window, by how they are aligned; the largest that is "
        "known of this model is {window} GiB.",
        **fields,
    )
    held = Condition(text="the firmware has enough 64-bit address space")
    return Ruling(
        check_of("address-space", "unknown", text, sources, told),
        essential=True,
        conditions=(held,),
        questions=(_WINDOW_QUESTION,),
    )


def _most(cards: Sequence[Card]) -> int:
    """Most that cards take of a window: their large BARs and, for each card, as much again as its largest."""
    each = (_bars([card]) for card in cards)
    return sum(sum(bars) + max(bars, default=0) for bars in each)


def _in_window(
    case: Case, window: MmioWindow, shares: Sequence[Sequence[Card]], sources: tuple[Citation, ...]
) -> Ruling:
    fields = {
        "most": max(map(_most, shares)) // GIB,
        "window": window.bytes // GIB,
        "when": window.when,
    }
    template = (
        "The cards' large BARs take at most {most} GiB of a CPU's window; it has {window} GiB."
        if window.each == "socket"
        else "The cards' large BARs take at most {most} GiB of the window; it has {window} GiB."
    )
    told = case.cite(window.src)
    check = check_of("address-space", "pass", say(template, **fields), sources, told)
    if window.when is None or any(setting.purpose == "mmio-size" for setting in case.server.firmware):
        return Ruling(check, essential=True)  # the setting is among the steps already
    held = Condition(text=say("the firmware is set so: {when}", **fields), sources=told)
    return Ruling(check, essential=True, conditions=(held,))


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
