"""Software: the driver and the TensorFlow that all the cards of a machine share, or why there is none.

One machine runs one driver, in one of two flavours; one training runs one TensorFlow. What they rest on stands in
``catalog/software``: the first branch and the flavour for each generation, the code that each official wheel holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpucheck.entries import Card, citations
from gpucheck.findings import Citation
from gpucheck.fit.case import Case, Ruling, check_of, cited, listed
from gpucheck.fit.report import Condition, Driver, SoftwareStack
from gpucheck.fit.request import Request
from gpucheck.text import plural, say

Raw = Mapping[str, Any]
Flavour = Literal["open", "proprietary", "either"]


@dataclass(frozen=True, slots=True)
class Shared:
    """What the cards of one machine share, and what was checked about it."""

    stack: SoftwareStack
    rulings: tuple[Ruling, ...]


def software(case: Case) -> Iterator[Ruling]:
    """Is there one driver and one TensorFlow for all the cards?"""
    yield from shared(case.request).rulings


def shared(request: Request) -> Shared:
    """The software for the cards of a request: it depends on them alone, not on how they are built in."""
    cards = {order.wanted.card.id: order.wanted.card for order in request.orders}
    infer, catalog = request.use == "infer", request.catalog
    if catalog is None:
        return _shared(tuple(cards.values()), {}, infer=infer)
    return catalog.kept(
        ("software", tuple(cards), infer), lambda: _shared(tuple(cards.values()), catalog.software, infer=infer)
    )


def _shared(cards: Sequence[Card], documents: Mapping[str, Raw], *, infer: bool) -> Shared:
    tensorflow = documents.get("tensorflow", {})
    ours = [card for card in cards if card.vendor == "nvidia"]
    found = [_no_cuda(card, tensorflow) for card in cards if card.vendor != "nvidia"]
    if not ours:
        why = found[0].check.message if found else None
        return Shared(SoftwareStack(why_none=why, sources=_all_sources(found)), tuple(found))
    driver = _driver(ours, documents.get("nvidia-driver", {}), infer=infer)
    wheel = _newest(ours, driver, tensorflow)
    found += driver.rulings(wheel, cited("tensorflow", tensorflow, wheel["src"]) if wheel is not None else ())
    if driver.why is None:
        found += _wheel_rulings(ours, wheel, tensorflow, infer=infer)
    why = driver.why or (_no_wheel(ours, tensorflow) if wheel is None and tensorflow else None)
    return Shared(_stack(ours, driver, wheel, tensorflow, why, found), tuple(found))


def _all_sources(rulings: Sequence[Ruling]) -> tuple[Citation, ...]:
    return tuple(dict.fromkeys(source for ruling in rulings for source in ruling.check.sources))


def _no_cuda(card: Card, tensorflow: Raw) -> Ruling:
    """Official wheels are built for CUDA alone."""
    text = say("The official TensorFlow packages hold no code for the {card}: they are built for CUDA.", card=card.name)
    sources = cited("tensorflow", tensorflow, tensorflow["wheels"][0]["src"]) if tensorflow else ()
    held = Condition(
        text=say("something else than the official TensorFlow uses the {card}: it has no code for it", card=card.name),
        sources=sources,
    )
    return Ruling(check_of("software", "unknown", text, sources), conditions=(held,))


# --- the driver ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Drivers:
    """Branches that drive all the cards.

    Attributes:
        names: The cards.
        first: First branch that knows the newest of them; None: older than any that matters.
        last: Last branch that drives the oldest of them; None: current drivers do.
        flavour: Kernel modules that drive all of them; None: not known.
        why: Why there is none.
        ended: What to hold, for each card whose support has ended.
        beyond: Cards of which it is not known whether so old a driver knows them.
        sources: What it rests on.
        infer: Each card may run on its own.
    """

    names: str
    first: int | None
    last: int | None
    flavour: Flavour | None
    why: str | None
    ended: tuple[Ruling, ...]
    beyond: str | None
    sources: tuple[Citation, ...]
    infer: bool

    def from_branch(self, wheel: Raw | None) -> int | None:
        """The oldest branch that the cards and the wheel want."""
        asked = [self.first, None if wheel is None else _branch(wheel["min_driver"])]
        return max((branch for branch in asked if branch is not None), default=None)

    def rulings(self, wheel: Raw | None, of_wheel: tuple[Citation, ...]) -> Iterator[Ruling]:
        """What is checked about the driver; ``of_wheel`` are the sources of what the wheel wants."""
        yield from self.ended
        if self.why is not None:
            if not self.infer:
                yield Ruling(check_of("software", "fail", self.why, self.sources))
                return
            held = Condition(text="cards that share no driver run in virtual machines of their own")
            yield Ruling(check_of("software", "unknown", self.why, self.sources), conditions=(held,))
            return
        if self.beyond is not None:
            text = say("Not known: whether {what}.", what=self.beyond)
            held = Condition(text=self.beyond, sources=self.sources)
            yield Ruling(check_of("software", "unknown", text, self.sources), conditions=(held,))
            return
        first = self.from_branch(wheel)
        if self.flavour is None or (first is None and self.last is None):
            return
        template = _RANGES[first is not None and first != self.last, self.last is not None]
        text = say(template, cards=self.names, first=first, last=self.last, flavour=_FLAVOURS[self.flavour])
        yield Ruling(check_of("software", "pass", text, self.sources, of_wheel))


_RANGES = {
    (True, True): "Driver for {cards}: branches {first} to {last}, {flavour}.",
    (True, False): "Driver for {cards}: branch {first} or newer, {flavour}.",
    (False, True): "Driver for {cards}: branch {last} only, {flavour}.",
    (False, False): "Driver for {cards}: {flavour}.",
}
_FLAVOURS: dict[Flavour, str] = {
    "open": "with the open kernel modules",
    "proprietary": "with the proprietary kernel modules",
    "either": "with open or proprietary kernel modules",
}


def _driver(cards: Sequence[Card], document: Raw, *, infer: bool) -> _Drivers:
    rows = {card.id: _generation(card, document) for card in cards}
    ends = [(int(card.software.last_driver_branch), card) for card in cards if card.software.last_driver_branch]
    begins = [(int(row["first"]), card) for card in cards if (row := rows[card.id]) and "first" in row]
    end = min(ends, key=lambda pair: pair[0], default=None)
    begin = max(begins, key=lambda pair: pair[0], default=None)
    wanting = {
        flavour: [card for card in cards if (row := rows[card.id]) and row["flavour"] == flavour]
        for flavour in ("proprietary", "open")
    }
    why = None
    if end is not None and begin is not None and begin[0] > end[0]:
        why = say(
            "No driver drives all of {cards} in one machine: {last} is the last branch for the {old}, and the {new} "
            "needs {first} or newer.",
            cards=listed(card.name for card in cards),
            last=end[0],
            old=_called(end[1]),
            new=_called(begin[1]),
            first=begin[0],
        )
    elif wanting["proprietary"] and wanting["open"]:
        why = say(
            "No driver drives all of {cards} in one machine: the {old} needs the proprietary kernel modules, and the "
            "{new} the open ones.",
            cards=listed(card.name for card in cards),
            old=_called(wanting["proprietary"][0]),
            new=_called(wanting["open"][0]),
        )
    unread = [card for card in cards if rows[card.id] is None and card.software.last_driver_branch is None]
    beyond = None
    if end is not None and unread:
        beyond = say(
            "a driver of branch {branch} or earlier, the last for the {card}, also drives the {others}",
            branch=end[0],
            card=end[1].name,
            others=listed(card.name for card in unread),
        )
    flavour: Flavour | None = None
    if all(rows.values()):
        flavour = "open" if wanting["open"] else "proprietary" if wanting["proprietary"] else "either"
    told = [cited("nvidia-driver", document, row["src"]) for row in rows.values() if row]
    told += [citations(card, card.software.src) for _, card in ends]
    return _Drivers(
        names=listed(card.name for card in cards),
        first=None if begin is None else begin[0],
        last=None if end is None else end[0],
        flavour=flavour,
        why=why,
        ended=tuple(_ended(card, branch) for branch, card in ends),
        beyond=beyond,
        sources=tuple(dict.fromkeys(source for group in told for source in group)),
        infer=infer,
    )


def _ended(card: Card, branch: int) -> Ruling:
    text = say(
        "The last driver branch for the {card} is {branch}: do not let an update go beyond it.",
        card=card.name,
        branch=branch,
    )
    return Ruling(check_of("software", "pass", text, citations(card, card.software.src)))


def _generation(card: Card, document: Raw) -> Raw | None:
    capability = card.software.compute_capability
    rows: Sequence[Raw] = document.get("generations", ())
    return next((row for row in rows if capability in row["compute_capability"]), None)


def _called(card: Card) -> str:
    generation = card.software.architecture
    return card.name if generation is None else f"{card.name} ({generation})"


def _branch(version: str) -> int:
    return int(version.partition(".")[0])


# --- TensorFlow ---------------------------------------------------------------------------------


def _newest(cards: Sequence[Card], driver: _Drivers, document: Raw) -> Raw | None:
    """The newest official wheel with machine code for every card that a driver for all of them can run."""
    if driver.why is not None:
        return None
    serving = [wheel for wheel in document.get("wheels", ()) if all(_serves(wheel, card, document) for card in cards)]
    if driver.last is not None:
        serving = [wheel for wheel in serving if _branch(wheel["min_driver"]) <= driver.last]
    return max(serving, key=lambda wheel: _version(wheel["version"]), default=None)


def _serves(wheel: Raw, card: Card, document: Raw) -> bool:
    """Whether a wheel holds machine code for a card, and nothing that goes with it leaves the card out."""
    capability = card.software.compute_capability
    if capability is None or not _has_code(wheel["machine_code_for"], capability):
        return False
    caps = [card.software.tensorflow_newest, *(row.get("newest") for row in _limits(card, document))]
    return all(_version(wheel["version"])[:2] <= _version(cap)[:2] for cap in caps if cap is not None)


def _limits(card: Card, document: Raw) -> Sequence[Raw]:
    capability = card.software.compute_capability
    return [row for row in document.get("card_limits", ()) if capability in row["compute_capability"]]


def _wheel_rulings(cards: Sequence[Card], wheel: Raw | None, document: Raw, *, infer: bool) -> Iterator[Ruling]:
    sources = tuple(citations(card, card.software.src) for card in cards)
    for card in cards:
        if card.software.compute_capability is None:
            text = say("Which TensorFlow has code for the {card} is not known.", card=card.name)
            yield Ruling(check_of("software", "unknown", text, citations(card, card.software.src)))
    if any(card.software.compute_capability is None for card in cards):
        return
    names = listed(card.name for card in cards)
    if wheel is not None:
        template = plural(
            len(cards),
            "The newest official TensorFlow with code for the {cards} is {version}. {note}",
            "The newest official TensorFlow with code for all of {cards} is {version}.",
        )
        note = cards[0].software.note or ""
        text = say(template, cards=names, version=_release(wheel), note=note).strip()
        yield Ruling(check_of("software", "pass", text, *sources, cited("tensorflow", document, wheel["src"])))
        yield from _install(cards, wheel, document)
    elif not document:
        # No list of wheels: what the card's own entry says.
        yield from (_own_word(card) for card in cards if card.software.tensorflow_newest is not None)
    elif infer and len(cards) > 1:
        text = say("No official TensorFlow has code for all of {cards}: each needs its own environment.", cards=names)
        yield Ruling(check_of("software", "pass", text, *sources))
    else:
        text = _no_wheel(cards, document)
        template = plural(
            len(cards),
            "something else than the official TensorFlow uses the {cards}: no release has machine code for it",
            "one TensorFlow serves all of {cards}: none is known",
        )
        told = (cited("tensorflow", document, row["src"]) for card in cards for row in _limits(card, document))
        check = check_of("software", "unknown", text, *sources, *told)
        held = Condition(text=say(template, cards=names), sources=check.sources)
        yield Ruling(check, conditions=(held,))


def _own_word(card: Card) -> Ruling:
    text = say(
        "The newest official TensorFlow with code for the {card} is {version}. {note}",
        card=card.name,
        version=card.software.tensorflow_newest,
        note=card.software.note or "",
    ).strip()
    return Ruling(check_of("software", "pass", text, citations(card, card.software.src)))


def _no_wheel(cards: Sequence[Card], document: Raw) -> str:
    if len(cards) > 1:
        names = listed(card.name for card in cards)
        return say("No official TensorFlow is known to have machine code for all of {cards}.", cards=names)
    notes = [row["note"] for row in _limits(cards[0], document) if "newest" not in row]
    template = "No official TensorFlow is known to have machine code for the {card}. {note}"
    return say(template, card=_called(cards[0]), note=" ".join(notes)).strip()


def _install(cards: Sequence[Card], wheel: Raw, document: Raw) -> Iterator[Ruling]:
    """What goes with the wheel, and the line that installs it."""
    traps = _traps(cards, wheel, document)
    template = (
        "It is built for CUDA {cuda} and cuDNN {cudnn} and runs on Python {oldest} to {newest}: {pip}"
        if "cudnn_package" in wheel
        else "CUDA {cuda} and cuDNN {cudnn} must be installed beside it; it runs on Python {oldest} to {newest}: {pip}"
    )
    oldest, newest = wheel["python"]
    text = say(
        template,
        cuda=wheel["cuda"],
        cudnn=wheel["cudnn"],
        oldest=oldest,
        newest=newest,
        pip=_pip(wheel, traps),
    )
    yield Ruling(check_of("software", "pass", text, cited("tensorflow", document, wheel["src"])))
    for trap in traps:
        text = say(
            "The pin matters: {package} {versions} has no code for cards below {below}, and pip would take the newest. "
            "{note}",
            package=trap["package"],
            versions=trap["versions"],
            below=trap["no_code_below"],
            note=trap["note"],
        )
        yield Ruling(check_of("software", "pass", text, cited("tensorflow", document, trap["src"])))


def _traps(cards: Sequence[Card], wheel: Raw, document: Raw) -> Sequence[Raw]:
    """Ranges of cuDNN that the wheel's extra admits and that leave out one of the cards."""
    minor = ".".join(wheel["version"].split(".")[:2])
    return [
        row
        for row in document.get("cudnn_limits", ())
        if minor in row["wheels"]
        and any(_version(card.software.compute_capability or "") < _version(row["no_code_below"]) for card in cards)
    ]


def _pip(wheel: Raw, traps: Sequence[Raw]) -> str:
    extra = "[and-cuda]" if "cudnn_package" in wheel else ""
    return " ".join((f"pip install 'tensorflow{extra}=={_release(wheel)}'", *(f"'{trap['pin']}'" for trap in traps)))


def _release(wheel: Raw) -> str:
    return str(wheel.get("patch", wheel["version"]))


def _has_code(machine_code: Sequence[str], capability: str) -> bool:
    """Machine code for X.Y runs on X.Z with Z of at least Y, and on no other X."""
    card = _version(capability)
    return any((code := _version(text))[0] == card[0] and code <= card for text in machine_code)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def _stack(
    cards: Sequence[Card], driver: _Drivers, wheel: Raw | None, document: Raw, why: str | None, found: Sequence[Ruling]
) -> SoftwareStack:
    first = driver.from_branch(wheel)
    return SoftwareStack(
        driver=None
        if driver.why is not None or driver.flavour is None
        else Driver(
            from_=None if first is None else str(first),
            last=None if driver.last is None else str(driver.last),
            flavour=driver.flavour,
        ),
        tensorflow=None if wheel is None else _release(wheel),
        cuda=None if wheel is None else wheel["cuda"],
        cudnn=None if wheel is None else wheel["cudnn"],
        python=None if wheel is None else tuple(wheel["python"]),
        pip=None if wheel is None else _pip(wheel, _traps(cards, wheel, document)),
        cpu_needs=tuple(document.get("cpu", {}).get("needs", ())),
        why_none=why,
        sources=_all_sources(found),
    )
