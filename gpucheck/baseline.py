"""What changed in a machine since an earlier probe of it: pure functions over two machines and their findings.

Cards are followed by their UUID where both sides have it and it is the card's own on both, or the same
stand-in. Else a card is taken for the one of the same ids and VBIOS that was at its place, or, where only
one can be meant, at another place: such a pair is never *certain*.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from gpucheck.errors import InputError
from gpucheck.facts import Counts, Gpu, Machine, Psu
from gpucheck.findings import (
    SEVERITY_ORDER,
    Change,
    Confidence,
    Evidence,
    Finding,
    NextTest,
    Reading,
    Unchecked,
    finding,
)
from gpucheck.rules._shared import cards_of, label, labels
from gpucheck.rules.gpu_count_mismatch import usable
from gpucheck.text import plural, say

SCHEMA = "gpucheck/probe/1"

FAULTS = frozenset(
    {
        "driver-dropped-gpu",
        "ecc-uncorrectable",
        "gpu-count-mismatch",
        "gpu-fell-off-bus",
        "gpu-init-failed",
        "gpu-suspect",
        "link-down",
        "link-errors",
        "link-speed-reduced",
        "link-width-reduced",
        "memory-retired",
        "nvml-gpu-lost",
        "power-brake",
        "thermal-slowdown",
        "vram-defect",
        "xid-reported",
    }
)
"""Findings whose cause is in the card or in its slot, cable or air, so that moving the card tells which.
Drivers and address space are left out: what lacks them changes with the order of the cards."""

MEMORY_TOLERANCE = 0.03
"""Another kernel keeps more or less memory for itself; one module of 24 is 4 %."""
_CARD_MEMORY_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class Earlier:
    """The machine as it was."""

    origin: str
    """The file, for messages."""
    machine: Machine
    findings: tuple[Finding, ...] = ()
    expected: int | None = None
    """How many GPUs that probe was told to expect."""

    @property
    def count(self) -> int | None:
        """How many GPUs there should be by it: those that could be used, for one that was held back for a virtual
        machine still is. What it expected itself and had not is still missing."""
        known = [n for n in (usable(self.machine, self.findings), self.expected) if n]
        return max(known, default=None)


@dataclass(frozen=True, slots=True)
class Pair:
    """One GPU, then and now."""

    before: Gpu
    after: Gpu
    sure: bool
    """It has the same UUID."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two machines, compared."""

    earlier: Earlier
    machine: Machine
    pairs: tuple[Pair, ...] = ()
    lost: tuple[Gpu, ...] = ()
    """As they were: GPUs that are gone, and no other is in their place."""
    replaced: tuple[tuple[Gpu, Gpu], ...] = ()
    """Another GPU is where one was."""
    new: tuple[Gpu, ...] = ()
    unseen: tuple[Gpu, ...] = ()
    """As they were: GPUs that are not listed now, where what is not listed may be there all the same."""


# --- reading a document -------------------------------------------------------------------------


class _Document(BaseModel):
    """What is read of a probe's result. Its gaps, headline and the rest speak of that time."""

    machine: Machine
    counts: Counts = Counts()
    findings: tuple[Finding, ...] = ()


def from_document(name: str, document: Mapping[str, Any]) -> Earlier:
    """The machine and findings of a ``gpucheck/probe/1`` document; keys that a later gpucheck added are passed over.

    Raises:
        InputError: its content breaks the form.
    """
    content = copy.deepcopy(dict(document))
    if isinstance(content.get("machine"), dict):
        content["machine"].pop("gaps", None)
    try:
        read = _without_news(content)
    except ValidationError as error:
        fault = next(f for f in error.errors(include_url=False) if f["type"] != _NEWS)
        raise InputError(
            say("the result of a probe is damaged: {place}: {fault}", place=_dotted(fault["loc"]), fault=fault["msg"]),
            input=name,
            hint="make it again: gpucheck probe --json > FILE",
        ) from None
    expected = read.counts.expected.n if read.counts.expected is not None else None
    return Earlier(origin=name, machine=read.machine, findings=read.findings, expected=expected)


_NEWS = "extra_forbidden"


def _without_news(content: dict[str, Any]) -> _Document:
    try:
        return _Document.model_validate(content)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        if any(fault["type"] != _NEWS for fault in faults):
            raise
    for fault in faults:
        place: Any = content
        for step in fault["loc"][:-1]:
            place = place[step]
        del place[fault["loc"][-1]]
    return _Document.model_validate(content)


def _dotted(place: Sequence[int | str]) -> str:
    return ".".join(map(str, place))


# --- following the cards ------------------------------------------------------------------------


def compare(earlier: Earlier, machine: Machine, name: str) -> Comparison:
    """Follow every GPU from the earlier machine to this one.

    Args:
        earlier: The machine as it was.
        machine: The machine now.
        name: How to call the machine now: what was probed.

    Raises:
        InputError: they are two machines.
    """
    _check_one_machine(earlier, machine, name)
    pairs = tuple(_follow(earlier.machine, machine))
    ids = {id(gpu) for pair in pairs for gpu in (pair.before, pair.after)}
    gone = [gpu for gpu in earlier.machine.gpus or () if id(gpu) not in ids]
    come = [gpu for gpu in machine.gpus or () if id(gpu) not in ids]
    replaced = tuple(_matches(gone, come, _same_place))
    lost = tuple(gpu for gpu in gone if gpu not in [old for old, _ in replaced])
    new = tuple(gpu for gpu in come if gpu not in [young for _, young in replaced])
    if not _whole(machine):
        return Comparison(earlier, machine, pairs, replaced=replaced, unseen=lost)
    return Comparison(earlier, machine, pairs, lost, replaced, new)


def _whole(machine: Machine) -> bool:
    """Whether a GPU that is not listed is not there."""
    if machine.gpus is None:
        return False
    if machine.pci is not None:
        return machine.pci_complete
    return machine.nvml is not None and machine.nvml.complete


def unchecked(comparison: Comparison) -> Iterator[Unchecked]:
    """What could not be compared."""
    if comparison.earlier.machine.gpus is None or not _whole(comparison.machine):
        yield Unchecked(name="gpu-lost-since-baseline", missing=("gpus",))


def uncompared(comparison: Comparison) -> str | None:
    """Why cards could not be compared, and which of the baseline's are not listed; None where they were."""
    if comparison.earlier.machine.gpus is None:
        return say("Cards were not compared: the baseline has no list of them.")
    if comparison.machine.gpus is None:
        return say("Cards were not compared: there is no list of them now.")
    if _whole(comparison.machine):
        return None
    if not comparison.unseen:
        return say("Cards were not compared for new ones: this list may be an excerpt. All of the baseline are in it.")
    unseen = ", ".join(f"{gpu.address} {gpu.name or gpu.pci_id or ''}".strip() for gpu in comparison.unseen)
    return say("Cards were not compared: this list may be an excerpt. Not seen here: {unseen}.", unseen=unseen)


_SAME_MACHINE = "give an earlier probe of the same machine as the baseline"


def _check_one_machine(earlier: Earlier, machine: Machine, name: str) -> None:
    first, second = earlier.machine.system, machine.system
    if first is None or second is None:
        _check_cards(earlier, machine, name)
        return
    names = (first.product, second.product) if first.product and second.product else (first.board, second.board)
    if _differ(*names):
        fault = say(
            "it is the baseline of a {before}, but {name} is a {after}", before=names[0], name=name, after=names[1]
        )
    elif not earlier.machine.redacted and not machine.redacted and _differ(first.uuid, second.uuid):
        model = names[0] or say("machine")
        fault = say(
            "it is the baseline of another {model} than {name}: their system UUIDs differ", model=model, name=name
        )
    else:
        return
    raise InputError(fault, input=earlier.origin, hint=_SAME_MACHINE)


def _check_cards(earlier: Earlier, machine: Machine, name: str) -> None:
    """Where the firmware's names do not tell, one UUID of two models does: no card becomes another one."""
    known, now = _by_uuid(earlier.machine), _by_uuid(machine)
    for uuid in sorted(known.keys() & now.keys()):
        old, gpu = known[uuid], now[uuid]
        if not _agree(old.pci_id, gpu.pci_id):
            fault = say(
                "it cannot be compared with {name}: the same UUID is that of {before} here and of {after} there, so "
                "these are two machines, or stand-ins of two captures",
                name=name,
                before=label(old),
                after=label(gpu),
            )
            raise InputError(fault, input=earlier.origin, hint=_SAME_MACHINE)


def _uuid(gpu: Gpu) -> str | None:
    return gpu.nvml.uuid if gpu.nvml is not None else None


def _by_uuid(machine: Machine) -> dict[str, Gpu]:
    """GPUs by their UUIDs, those that one GPU alone has."""
    named = [(uuid, gpu) for gpu in machine.gpus or () if (uuid := _uuid(gpu)) is not None and _tells(uuid)]
    times = Counter(uuid for uuid, _ in named)
    return {uuid: gpu for uuid, gpu in named if times[uuid] == 1}


def _differ(first: str | None, second: str | None) -> bool:
    return first is not None and second is not None and first.casefold() != second.casefold()


Fits = Callable[[Gpu, Gpu], bool]


def _matches(left: Iterable[Gpu], right: Iterable[Gpu], fits: Fits) -> Iterator[tuple[Gpu, Gpu]]:
    """Pairs in which each is the only one that fits the other."""
    left, right = list(left), list(right)
    for before in left:
        fitting = [after for after in right if fits(before, after)]
        if len(fitting) == 1 and sum(fits(other, fitting[0]) for other in left) == 1:
            yield before, fitting[0]


def _follow(before: Machine, after: Machine) -> Iterator[Pair]:
    left, right = list(before.gpus or ()), list(after.gpus or ())
    named = _own_names(before, after)

    def uuid(gpu: Gpu) -> str | None:
        found = _uuid(gpu)
        return found if found in named else None

    def same_card(old: Gpu, young: Gpu) -> bool:
        return uuid(old) is not None and uuid(old) == uuid(young) and _agree(old.pci_id, young.pci_id)

    def alike(old: Gpu, young: Gpu) -> bool:
        return None in (uuid(old), uuid(young)) and _same_model(old, young)

    steps: tuple[tuple[bool, Callable[[], Iterable[tuple[Gpu, Gpu]]]], ...] = (
        (True, lambda: _matches(left, right, same_card)),
        (False, lambda: _crossed(left, right, uuid)),
        (False, lambda: _matches(left, right, lambda o, y: alike(o, y) and _same_vbios(o, y) and _at(o, y))),
        (False, lambda: _matches(left, right, lambda o, y: alike(o, y) and _same_vbios(o, y) and _same_place(o, y))),
        (False, lambda: _whole_cards(left, right, lambda o, y: alike(o, y) and _same_vbios(o, y))),
        (False, lambda: _matches(left, right, lambda o, y: alike(o, y) and _same_place(o, y))),
    )
    for sure, step in steps:
        for old, young in list(step()):
            left = [gpu for gpu in left if gpu is not old]
            right = [gpu for gpu in right if gpu is not young]
            yield Pair(old, young, sure)


def _own_names(before: Machine, after: Machine) -> frozenset[str]:
    """UUIDs that say which card is which on both sides.

    Stand-ins of two captures may differ, by who made them: they are of use only where some are the same.
    """
    known, now = _by_uuid(before).keys(), _by_uuid(after).keys()
    comparable = known & now or not (before.redacted or after.redacted)
    return frozenset(known | now) if comparable else frozenset()


def _tells(uuid: str) -> bool:
    """Zeros are what a capture of the shell script has in place of every UUID."""
    return bool(uuid.strip("GPU-0"))


def _same_model(old: Gpu, young: Gpu) -> bool:
    return old.pci_id == young.pci_id is not None and _agree(old.subsystem_id, young.subsystem_id)


def _same_vbios(old: Gpu, young: Gpu) -> bool:
    return _agree(*(gpu.nvml.vbios if gpu.nvml is not None else None for gpu in (old, young)))


def _agree(first: str | None, second: str | None) -> bool:
    return first is None or second is None or first == second


def _same_place(one: Gpu, other: Gpu) -> bool:
    """By slot where both are known: bus numbers change with what else is plugged in."""
    if one.slot is not None and other.slot is not None:
        return one.slot == other.slot
    return one.address == other.address


def _at(one: Gpu, other: Gpu) -> bool:
    return one.address == other.address and _agree(one.slot, other.slot)


def _crossed(left: Sequence[Gpu], right: Sequence[Gpu], uuid: Callable[[Gpu], str | None]) -> Iterator[tuple[Gpu, Gpu]]:
    """A card that the driver rejects has no UUID. Where one UUID is gone and another has come, while one card
    without a UUID was there and is there, the two were swapped: what else would need a card from outside."""
    gone, was_nameless = _by_name(left, uuid)
    come, is_nameless = _by_name(right, uuid)
    if all(len(side) == 1 for side in (gone, was_nameless, come, is_nameless)):
        pairs = ((gone[0], is_nameless[0]), (was_nameless[0], come[0]))
        if all(_same_model(*pair) for pair in pairs):
            yield from pairs


def _by_name(gpus: Sequence[Gpu], uuid: Callable[[Gpu], str | None]) -> tuple[list[Gpu], list[Gpu]]:
    """Those with a UUID, and those without."""
    return [gpu for gpu in gpus if uuid(gpu) is not None], [gpu for gpu in gpus if uuid(gpu) is None]


def _whole_cards(left: Sequence[Gpu], right: Sequence[Gpu], alike: Fits) -> Iterator[tuple[Gpu, Gpu]]:
    """Cards, of one GPU or of several, that only one card can have become."""
    before, after = _cards(left), _cards(right)

    def fits(old: Gpu, young: Gpu) -> bool:
        halves = before[_card(old)], after[_card(young)]
        return len(halves[0]) == len(halves[1]) and all(map(alike, *halves))

    for old, young in _matches([gpus[0] for gpus in before.values()], [gpus[0] for gpus in after.values()], fits):
        yield from zip(before[_card(old)], after[_card(young)], strict=True)


def _card(gpu: Gpu) -> str:
    return gpu.card or gpu.address


def _cards(gpus: Iterable[Gpu]) -> dict[str, list[Gpu]]:
    cards: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        cards.setdefault(_card(gpu), []).append(gpu)
    return cards


def _moved(pair: Pair, pairs: Collection[Pair]) -> bool:
    """Whether the card is in another place. Where slots are not known, addresses tell only if cards exchanged
    them: a bus gets another number when something else is plugged in."""
    old, young = pair.before, pair.after
    if old.slot is not None and young.slot is not None:
        return old.slot != young.slot
    return (
        old.address != young.address
        and old.address in {other.after.address for other in pairs}
        and young.address in {other.before.address for other in pairs}
    )


# --- what changed -------------------------------------------------------------------------------


def changes(comparison: Comparison, found: Sequence[Finding]) -> tuple[Change, ...]:
    """Every difference that matters, cards first.

    Args:
        comparison: The two machines.
        found: What the rules found in the machine now.
    """
    return tuple(change for change, _ in _judged(comparison, found))


Judged = tuple[Change, bool]
"""A change, and whether it is one for the worse."""


def _judged(comparison: Comparison, found: Sequence[Finding]) -> Iterator[Judged]:
    for old in comparison.lost:
        yield Change(subject=old.address, what="card", before=label(old), after=None), True
    for old, young in comparison.replaced:
        yield Change(subject=young.address, what="card", before=label(old), after=label(young)), True
    for young in comparison.new:
        yield Change(subject=young.address, what="card", before=None, after=label(young)), False
    then, now = _faults(comparison, found)
    for pair in comparison.pairs:
        yield from _of_card(pair, comparison.pairs)
        faults = then.get(pair.before.address, frozenset()), now.get(pair.after.address, frozenset())
        yield from _row(pair.after.address, "fault", (", ".join(sorted(names)) or say("none") for names in faults))
    yield from _of_machine(comparison.earlier.machine, comparison.machine)


def _row(subject: str, what: str, states: Iterable[str | None], worse: bool = False) -> Iterator[Judged]:
    """A change from the first state to the second, where both are known and differ."""
    before, after = states
    if before is not None and after is not None and before != after:
        yield Change(subject=subject, what=what, before=before, after=after), worse


def _of_card(pair: Pair, pairs: Collection[Pair]) -> Iterator[Judged]:
    old, young = pair.before, pair.after
    moved = _moved(pair, pairs)
    if moved:
        yield from _row(young.address, "place", (_where(old), _where(young)))
    else:
        yield from _row(young.address, "address", (old.address, young.address))
    was, width = old.link.width, young.link.width
    if was is not None and width is not None:
        # In another slot another width is to be expected; whether it is what the slot can do, a rule says.
        yield from _row(young.address, "link-width", (f"x{was}", f"x{width}"), worse=not moved and was > width)
    if old.driver_read and young.driver_read:
        yield from _row(young.address, "bound-driver", (old.driver or say("none"), young.driver or say("none")))
    if old.nvml is None or young.nvml is None:
        return
    yield from _row(young.address, "vbios", (old.nvml.vbios, young.nvml.vbios))
    memory = old.nvml.memory_total_bytes, young.nvml.memory_total_bytes
    if _other_size(*memory, _CARD_MEMORY_TOLERANCE):
        # With error correction on, part of the memory of many cards holds the check bits.
        same_mode = old.nvml.ecc_enabled == young.nvml.ecc_enabled
        yield from _memory_row(young.address, "card-memory", *memory, same_mode)


def _where(gpu: Gpu) -> str:
    return gpu.address if gpu.slot is None else say("{slot} ({address})", slot=gpu.slot, address=gpu.address)


def _other_size(before: int | None, after: int | None, tolerance: float, least: int = 0) -> bool:
    """Whether two sizes are known and differ by more than a share of the first, and by ``least`` bytes."""
    if before is None or after is None:
        return False
    return abs(after - before) > tolerance * before and abs(after - before) >= least


def _memory_row(
    subject: str, what: str, before: int | None, after: int | None, counts: bool = True
) -> Iterator[Judged]:
    if before is not None and after is not None:
        yield from _row(subject, what, (_gib(before), _gib(after)), worse=counts and after < before)


def _gib(number: int) -> str:
    return say("{gib:.1f} GiB", gib=number / (1 << 30))


def _of_machine(before: Machine, after: Machine) -> Iterator[Judged]:
    sockets = {socket.designation: socket for socket in before.cpu_sockets or ()}
    for socket in after.cpu_sockets or ():
        old = sockets.get(socket.designation)
        if old is not None and None not in (old.populated, socket.populated):
            states = [
                say("populated") if populated else say("empty") for populated in (old.populated, socket.populated)
            ]
            yield from _row(socket.designation, "cpu-socket", states, worse=not socket.populated)
            if old.populated and socket.populated:
                yield from _row(socket.designation, "cpu-model", (old.model, socket.model))
    # A gibibyte and more: a small machine's kernel keeps a larger share for itself.
    sizes = before.memory_bytes, after.memory_bytes
    if _other_size(*sizes, MEMORY_TOLERANCE, least=1 << 30):
        yield from _memory_row("machine", "memory", *sizes)
    yield from _of_supplies(before.psus, after.psus)
    if before.system is not None and after.system is not None:
        yield from _row("machine", "board", (before.system.board, after.system.board))
        yield from _row("machine", "bios-version", (before.system.bios_version, after.system.bios_version))
    yield from _row("machine", "nvidia-driver", (_driver_version(before), _driver_version(after)))
    if before.driver is not None and after.driver is not None:
        yield from _row("machine", "kernel", (before.driver.kernel_release, after.driver.kernel_release))


def _driver_version(machine: Machine) -> str | None:
    loaded = machine.driver.nvidia_version if machine.driver is not None else None
    return loaded or (machine.nvml.driver_version if machine.nvml is not None else None)


def _of_supplies(before: Sequence[Psu] | None, after: Sequence[Psu] | None) -> Iterator[Judged]:
    """By location; where the firmware names none, only their number tells."""
    if before is None or after is None:
        return
    then, now = ({psu.location: psu for psu in psus if psu.location is not None} for psus in (before, after))
    if len(then) < len(before) or len(now) < len(after) or not then.keys() & now.keys():
        fitted = [sum(psu.present is True for psu in psus) for psus in (before, after)]
        if all(psu.present is not None for psu in (*before, *after)):
            yield from _row("machine", "power-supply", map(str, fitted), worse=fitted[1] < fitted[0])
        return
    for location, old in then.items():
        psu = now.get(location, Psu(location=location, present=False))
        states = (old.present, old.plugged is not False), (psu.present, psu.plugged is not False)
        if None not in (old.present, psu.present):
            yield from _row(location, "power-supply", (_supply(old), _supply(psu)), worse=states[1] < states[0])


def _supply(psu: Psu) -> str:
    if not psu.present:
        return say("not present")
    name = psu.model or psu.part or say("present")
    template = "{name}, no mains" if psu.plugged is False else "{name}"
    return say(template, name=name)


def _faults(
    comparison: Comparison, found: Sequence[Finding]
) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
    """Address to names of what was wrong with that card, and of what is wrong with it."""
    earlier = comparison.earlier
    return _faults_of(earlier.findings, earlier.machine), _faults_of(found, comparison.machine)


def _faults_of(findings: Iterable[Finding], machine: Machine) -> dict[str, frozenset[str]]:
    faults: dict[str, frozenset[str]] = {}
    for f in findings:
        if f.name in FAULTS and f.severity != "info":
            for address in cards_of(f, machine):
                faults[address] = faults.get(address, frozenset()) | {f.name}
    return faults


# --- findings -----------------------------------------------------------------------------------


def findings(comparison: Comparison, found: Sequence[Finding]) -> Iterator[Finding]:
    """What the comparison says, beside what the rules found."""
    yield from _lost(comparison)
    yield from _concluded(comparison, found)
    yield from _changed(comparison, found)


def _then(comparison: Comparison, gpu: Gpu) -> Evidence:
    """The card as it was."""
    words = [label(gpu)]
    if (uuid := _uuid(gpu)) is not None:
        words.append(uuid)
    if gpu.link.width is not None:
        words.append(say("link x{width}", width=gpu.link.width))
    words.append(
        say("driver {driver}", driver=gpu.driver or say("none")) if gpu.driver_read else say("driver not read")
    )
    faults = _faults_of(comparison.earlier.findings, comparison.earlier.machine).get(gpu.address)
    words.append(say("fault: {names}", names=", ".join(sorted(faults))) if faults else say("no fault"))
    return Evidence(source=comparison.earlier.origin, text="; ".join(words))


def _lost(comparison: Comparison) -> Iterator[Finding]:
    machine = comparison.machine
    for gpus in _cards(comparison.lost).values():
        first = gpus[0]
        model = [gpu for gpu in comparison.earlier.machine.gpus or () if gpu.pci_id == first.pci_id]
        fewer = len(model) > sum(gpu.pci_id == first.pci_id for gpu in machine.gpus or ())
        slot = next((slot for slot in machine.slots or () if slot.designation == first.slot), None)
        evidence = [_then(comparison, gpu) for gpu in gpus]
        if slot is not None and slot.in_use is not None:
            text = "{slot}: the firmware calls it in use" if slot.in_use else "{slot}: the firmware calls it free"
            evidence.append(Evidence(source=say("Slot record"), text=say(text, slot=slot.designation)))
        on_pci = machine.pci is not None
        yield finding(
            "gpu-lost-since-baseline",
            "error",
            first.address,
            say(
                plural(
                    len(gpus),
                    "{cards} was there at the time of the baseline and is gone.",
                    "{cards} were there at the time of the baseline and are gone.",
                )
                if on_pci
                else plural(
                    len(gpus),
                    "NVML listed {cards} at the time of the baseline and lists it no more.",
                    "NVML listed {cards} at the time of the baseline and lists them no more.",
                ),
                cards=labels(gpus),
            ),
            evidence=tuple(evidence),
            remedy=(
                say(
                    "Read what the kernel said last of it: sudo dmesg | grep -i {address}", address=first.address[5:-2]
                ),
                say("Shut down, take the mains off for half a minute, seat the card again and check its power leads."),
                say("If it was taken out on purpose, make a new baseline: gpucheck probe --json > FILE"),
            ),
            next_test=(
                NextTest(
                    do=say("Put the card into a slot in which a card is seen, and probe again with this baseline."),
                    outcomes=(
                        Reading(seen=say("It is seen"), means=say("Its old slot, riser or power lead is at fault.")),
                        Reading(seen=say("It is not seen"), means=say("The card is at fault.")),
                    ),
                ),
            ),
            confidence="certain" if fewer and on_pci else "likely",
        )


def _concluded(comparison: Comparison, found: Sequence[Finding]) -> Iterator[Finding]:
    """Cards that were moved while they, or the slots that they came to, had a fault."""
    then, now = _faults(comparison, found)
    told: set[tuple[str, str]] = set()
    for pair in comparison.pairs:
        had = then.get(pair.before.address)
        if not had or not _moved(pair, comparison.pairs):
            continue
        has = now.get(pair.after.address, frozenset())
        inheritors = [other for other in comparison.pairs if _same_place(other.after, pair.before)]
        inherited = [
            *(other.after for other in inheritors if not then.get(other.before.address)),
            *(gpu for gpu in comparison.new if _same_place(gpu, pair.before)),
        ]
        faulty = [gpu for gpu in inherited if now.get(gpu.address)]
        swapped, place = _swapped(pair, inheritors, then), _place(pair.before)
        if has and not any(now.get(other.after.address) for other in inheritors) and not faulty:
            if ("moves", place) not in told:
                told.add(("moves", place))
                healthy = next((other.after for other in inheritors), None)
                trust = _trust(swapped, bool(had & has), tested=healthy is not None)
                yield _moves_with_card(comparison, found, pair, healthy, trust)
        elif not has and faulty and ("stays", place) not in told:
            told.add(("stays", place))
            trust = _trust(swapped, bool(had & now[faulty[0].address]), tested=True)
            yield _stays_with_slot(comparison, found, pair, faulty[0], trust)


def _place(gpu: Gpu) -> str:
    return gpu.slot or gpu.address


def _severity(found: Sequence[Finding], gpu: Gpu, machine: Machine) -> Any:
    """That of the fault itself."""
    spoken = [f.severity for f in found if f.name in FAULTS and gpu.address in cards_of(f, machine)]
    return min(spoken, key=SEVERITY_ORDER.__getitem__)


def _of_fault(comparison: Comparison, found: Sequence[Finding], then: Gpu, now: Gpu) -> tuple[Evidence, ...]:
    """What was said of it in the place where it was, and what is said where it is."""
    earlier = comparison.earlier
    lines = [
        Evidence(source=earlier.origin, text=f.message)
        for f in earlier.findings
        if f.name in FAULTS and f.severity != "info" and then.address in cards_of(f, earlier.machine)
    ]
    lines += [
        Evidence(source=say("now"), text=f.message)
        for f in found
        if f.name in FAULTS and f.severity != "info" and now.address in cards_of(f, comparison.machine)
    ]
    return tuple(lines)


def _swapped(pair: Pair, inheritors: Sequence[Pair], then: Mapping[str, frozenset[str]]) -> bool:
    """Whether the card changed places with one that had no fault, and UUIDs prove both ways."""
    return pair.sure and any(
        other.sure and _same_place(other.before, pair.after) and not then.get(other.before.address)
        for other in inheritors
    )


def _trust(swapped: bool, same: bool, tested: bool) -> Confidence:
    if not tested:
        return "possible"
    return "certain" if swapped and same else "likely"


def _moves_with_card(
    comparison: Comparison, found: Sequence[Finding], pair: Pair, healthy: Gpu | None, trust: Confidence
) -> Finding:
    evidence = _of_fault(comparison, found, pair.before, pair.after)
    if healthy is not None:
        text = say("{card}: no such fault in the slot where the faulty card was", card=label(healthy))
        evidence += (Evidence(source=say("now"), text=text),)
    return finding(
        "fault-moves-with-card",
        _severity(found, pair.after, comparison.machine),
        pair.after.address,
        say(
            "The fault moved with {card} from {before} to {after}: the card is at fault, not the slot.",
            card=pair.after.name or pair.after.pci_id or "GPU",
            before=_place(pair.before),
            after=_place(pair.after),
        ),
        evidence=evidence,
        remedy=(
            say("If the card kept its power lead when it was moved, try another lead first."),
            say("Clean its contacts and its heat sink; then have the card repaired or replaced."),
        ),
        confidence=trust,
    )


def _stays_with_slot(
    comparison: Comparison, found: Sequence[Finding], pair: Pair, faulty: Gpu, trust: Confidence
) -> Finding:
    works = say("{card}: no such fault in the slot where it is now", card=label(pair.after))
    return finding(
        "fault-stays-with-slot",
        _severity(found, faulty, comparison.machine),
        _place(pair.before),
        say(
            "The fault stayed with {slot} when its card was exchanged: the slot, its riser, cable or power lead is "
            "at fault, not the card.",
            slot=_place(pair.before),
        ),
        evidence=(
            *_of_fault(comparison, found, pair.before, faulty),
            Evidence(source=say("now"), text=works),
        ),
        remedy=(
            say(
                "Look into the slot for dirt and bent contacts; seat the riser and its cables again, or exchange them."
            ),
            say("Try another power lead for the card in this slot."),
            say("Leave the slot empty if it cannot be mended."),
        ),
        confidence=trust,
    )


_WORSE = {
    "card": "At {subject} {before} was exchanged for {after}.",
    "link-width": "The link of the card at {subject} was {before} wide at the time of the baseline; it is {after} now.",
    "card-memory": "The card at {subject} had {before} of memory at the time of the baseline; it has {after} now.",
    "memory": "The machine had {before} of memory at the time of the baseline; it has {after} now.",
    "power-supply": "Power supply {subject} was {before} at the time of the baseline; it is {after} now.",
    "cpu-socket": "CPU socket {subject} was {before} at the time of the baseline; it is {after} now.",
}
_CHECKS = {
    "card": "If that was not intended, find out who exchanged it; else make a new baseline.",
    "link-width": "Seat the card and its riser again, and look at the slot's settings in the firmware setup.",
    "card-memory": "Look at the card's memory errors: nvidia-smi -q -d ECC,ROW_REMAPPER",
    "memory": "Look for a memory module that is gone or failed: sudo dmidecode -t memory",
    "power-supply": "Look at the supply, its seat and its mains lead.",
    "cpu-socket": "Look whether a processor was taken out or disabled; slots that belong to it are dead.",
}
_OWNERS = {
    "link-width": ("link-width-reduced",),
    "power-supply": ("psu-missing", "psu-unplugged", "psu-redundancy-lost"),
    "cpu-socket": ("cpu-socket-empty",),
}
"""Rules that speak of the same thing with more knowledge."""


def _changed(comparison: Comparison, found: Sequence[Finding]) -> Iterator[Finding]:
    origin, names = comparison.earlier.origin, {f.name for f in found}
    neutral: list[Change] = []
    for change, worse in _judged(comparison, found):
        if change.what == "fault" or (change.what == "card" and change.after is None):
            continue  # findings of their own
        if not worse:
            neutral.append(change)
        elif names.isdisjoint(_OWNERS.get(change.what, ())):
            yield finding(
                "machine-changed",
                "warning",
                change.subject,
                say(_WORSE[change.what], **change.model_dump()),
                evidence=(_shown(origin, change),),
                remedy=(say(_CHECKS[change.what]),),
            )
    if neutral:
        yield finding(
            "machine-changed",
            "info",
            "machine",
            say(
                plural(
                    len(neutral),
                    "One thing is different from the baseline.",
                    "{count} things are different from the baseline.",
                ),
                count=len(neutral),
            ),
            evidence=tuple(_shown(origin, change) for change in neutral),
        )


def _shown(origin: str, change: Change) -> Evidence:
    before, after = change.before or say("nothing"), change.after or say("nothing")
    text = say(
        "{subject}, {what}: {before}, now {after}", subject=change.subject, what=change.what, before=before, after=after
    )
    return Evidence(source=origin, text=text)
