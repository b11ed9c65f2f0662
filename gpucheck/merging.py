"""Parts of one machine → one :class:`Parts`. Each fact comes from the best of its sources.

Where two sources say the same fact, the order is: what readers found before what listings say, whole
lists before excerpts, then as given. A contradiction becomes a gap that names both. What cannot be
of one machine (other firmware, other cards at the same addresses, another host name) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import TypeVar

from gpucheck.displays import GPU_CLASSES
from gpucheck.errors import InputError
from gpucheck.facts import (
    Cpu,
    CpuSocket,
    Driver,
    Environment,
    Fact,
    Gap,
    KernelLog,
    Link,
    Nvml,
    NvmlGpu,
    Parts,
    PciFunction,
    Power,
    Psu,
    Software,
    System,
    address_order,
    swapped_uuid,
)
from gpucheck.facts import Topology as Pairs
from gpucheck.text import say
from gpucheck.topology import UNKNOWN_PARENT

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Fact)

_LEVELS = (
    "system",
    "cpu_sockets",
    "slots",
    "psus",
    "cpu",
    "pci",
    "driver",
    "nvml",
    "kernel_log",
    "environment",
    "software",
)
_NO_REMEDY = ("not-supported", "file-absent")
"""Reasons of gaps that nothing fills."""
_BMC_ONLY = ("power", "firmware_settings")
"""Facts that nothing but a BMC tells: where one was asked, to ask it is no advice."""
_NO_FACTS = ("gaps", "origin", "hosts", "redacted", "pci_complete")
"""Fields of parts that say something of the source."""
_STAY = ("contradiction", "unreadable")
"""Reasons of gaps that another source does not close: part of the fact is still not known."""
_HOW = "What was given does not hold it: run gpucheck probe on the machine, or give a capture of it."

_NVIDIA = 0x10DE
_BOOT = "Linux version "


def merge(parts: Sequence[Parts]) -> Parts:
    """Join what the readers and dumps brought, with the gaps that are still open.

    Raises:
        InputError: two parts come from different machines.
    """
    check_one_machine(parts)
    gaps: list[Gap] = []
    pci = _pci(parts, gaps)
    nvml = _nvml(parts, gaps)
    driver = _fields(Driver, "driver", [(part.driver, part) for part in parts], gaps)
    log = _kernel_log(parts, gaps)
    known: dict[str, object] = {name: _first(getattr(part, name) for part in parts) for name in Parts.model_fields}
    known |= {
        "origin": ", ".join(dict.fromkeys(part.origin for part in parts)),
        "system": _system(parts),
        "psus": _psus(parts),
        "cpu_sockets": _sockets(parts),
        "power": _fields(Power, "power", [(part.power, part) for part in parts], gaps),
        "cpu": _fields(Cpu, "cpu", [(part.cpu, part) for part in parts], gaps),
        "pci": pci,
        "pci_complete": pci is None or any(part.pci_complete for part in parts if part.pci is not None),
        "redacted": any(part.redacted for part in parts),
        "nvml": nvml,
        "topology": _pairs(parts, nvml),
        "driver": driver,
        "kernel_log": log,
        "environment": _fields(Environment, "environment", [(part.environment, part) for part in parts], gaps),
        "software": _fields(Software, "software", [(part.software, part) for part in parts], gaps),
        "gaps": (),
    }
    gaps += _versions(driver, nvml, log)
    whole = Parts().model_copy(update=known)
    return whole.model_copy(update={"gaps": (*_open_gaps(parts, whole), *dict.fromkeys(gaps))})


def _first(values: Iterable[_T | None]) -> _T | None:
    return next((value for value in values if value is not None), None)


# --- one machine --------------------------------------------------------------------------------


def check_one_machine(parts: Sequence[Parts]) -> None:
    """Refuse parts that cannot be of one machine.

    Raises:
        InputError: names both sources, and what tells them apart without any secret in it.
    """
    for first, second in combinations(parts, 2):
        what = _other_firmware(first, second) or _other_cards(first, second) or _other_host(first, second)
        if what is not None:
            raise InputError(
                say("it comes from {what}; {first} came first", what=what, first=first.origin),
                input=second.origin,
                hint="give dumps of one machine at a time",
            )


def _other_firmware(first: Parts, second: Parts) -> str | None:
    if first.system is None or second.system is None:
        return None
    for field in ("uuid", "product", "board"):
        ours, theirs = getattr(first.system, field), getattr(second.system, field)
        if ours is None or theirs is None:
            continue
        if field == "uuid" and same_uuid(ours, theirs):
            return None  # firmware and BMC may name one product in two ways
        if ours.casefold() == theirs.casefold():
            continue
        if field != "uuid":
            return f"{theirs!r}, not {ours!r}"
        if first.redacted == second.redacted:
            return "another machine"
    return None


def same_uuid(first: str, second: str) -> bool:
    """Whether two UUIDs are one, also where its first three groups are in the other order of bytes, as some
    BMCs give them."""
    return second.casefold() in (first.casefold(), swapped_uuid(first.casefold()))


def _other_cards(first: Parts, second: Parts) -> str | None:
    ours, theirs = (_by_address(part.pci) for part in (first, second))
    shared = [address for address in ours if address in theirs]
    other = [address for address in shared if _differ(ours[address].pci_id, theirs[address].pci_id)]
    # A disk may have been changed meanwhile; a card that is another one is no longer the machine in question.
    gpus = [address for address in other if _is_display(ours[address]) or _is_display(theirs[address])]
    if gpus or len(other) * 2 > len(shared):
        return _another((gpus or other)[0], ours[(gpus or other)[0]].pci_id, theirs[(gpus or other)[0]].pci_id)
    if first.origin != second.origin:
        for functions, listed in ((ours, second.nvml), (theirs, first.nvml)):
            for gpu in _listed(listed):
                function = functions.get(gpu.address or "")
                if function is not None and (
                    function.vendor_id not in (_NVIDIA, 0xFFFF) or _differ(function.pci_id, gpu.pci_id)
                ):
                    return _another(function.address, function.pci_id or function.name, gpu.pci_id or gpu.name)
    # Of the same card two captures have the same stand-in only where both could read the firmware's table.
    if not first.redacted and not second.redacted:
        uuids = {gpu.address: gpu.uuid for gpu in _listed(first.nvml) if gpu.address is not None}
        for gpu in _listed(second.nvml):
            if gpu.address in uuids and _differ(uuids[gpu.address], gpu.uuid):
                return say("another machine (the GPU at {address} has another UUID)", address=gpu.address)
    return None


def _another(address: str, first: str | None, second: str | None) -> str:
    template = "another machine ({address} is {second}, not {first})"
    return say(template, address=address, first=first or "?", second=second or "?")


def _differ(first: str | None, second: str | None) -> bool:
    return first is not None and second is not None and first.casefold() != second.casefold()


def _is_display(function: PciFunction) -> bool:
    return function.class_id >> 8 in GPU_CLASSES


def _by_address(functions: Iterable[PciFunction] | None) -> dict[str, PciFunction]:
    return {function.address: function for function in functions or () if function.vendor_id != 0xFFFF}


def _listed(nvml: Nvml | None) -> tuple[NvmlGpu, ...]:
    return (nvml.gpus or ()) if nvml is not None else ()


def _other_host(first: Parts, second: Parts) -> str | None:
    """Names that texts give the host; what proves one machine goes before them, for hosts are renamed."""
    if not first.hosts or not second.hosts or first.hosts & second.hosts or first.origin == second.origin:
        return None
    ours, theirs = first.system, second.system
    if ours and theirs and ours.uuid and ours.uuid == theirs.uuid:
        return None
    uuids = {gpu.uuid for gpu in _listed(first.nvml) if gpu.uuid is not None}
    if any(gpu.uuid in uuids for gpu in _listed(second.nvml)):
        return None
    return say("another machine (the names of the hosts differ)")


# --- facts of one record ------------------------------------------------------------------------


def _filled(known: _F, other: _F, leave: Sequence[str] = ()) -> tuple[_F, list[str]]:
    """``known`` with what it lacks from ``other``, and the names of the fields in which they differ."""
    found: dict[str, object] = {}
    differ: list[str] = []
    for name in type(known).model_fields:
        ours, theirs = getattr(known, name), getattr(other, name)
        if name in leave or theirs is None:
            continue
        if ours is None:
            found[name] = theirs
        elif isinstance(ours, Link) and isinstance(theirs, Link):
            found[name] = _filled(ours, theirs)[0]
        elif ours != theirs:
            differ.append(name)
    return (known.model_copy(update=found) if found else known), differ


def _fields(kind: type[_F], level: str, sources: Iterable[tuple[_F | None, Parts]], gaps: list[Gap]) -> _F | None:
    """One record from several partial ones; which fields may differ is in :data:`_MAY_DIFFER`."""
    merged: _F | None = None
    origin = ""
    for record, part in sources:
        if record is None:
            continue
        if merged is None:
            merged, origin = record, part.origin
            continue
        before = merged
        merged, differ = _filled(merged, record)
        for name in differ:
            if name not in _MAY_DIFFER:
                gaps.append(
                    _contradiction(f"{level}.{name}", getattr(before, name), origin, getattr(record, name), part.origin)
                )
    return merged


_MAY_DIFFER = frozenset(
    {
        "hypervisor",
        "logical_cpus",
        "kernel_command_line",
        "redundancy_text",
        "drawn_watts",
        "packages_complete",
        "variables_complete",
    }
)
"""Facts that tools word or count differently."""


def _contradiction(fact: str, ours: object, first: str, theirs: object, second: str) -> Gap:
    template = "{first} says {ours}, {second} {theirs}."
    how = say(template, first=first, ours=_word(ours), second=second, theirs=_word(theirs))
    return Gap(fact=fact, reason="contradiction", how=how)


def _word(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _system(parts: Sequence[Parts]) -> System | None:
    systems = [part.system for part in parts if part.system is not None]
    if not systems:
        return None
    merged: dict[str, str | None] = {}
    for field in System.model_fields:
        merged[field] = _first(getattr(system, field) for system in systems)
    return System.model_validate(merged)


def _versions(driver: Driver | None, nvml: Nvml | None, log: KernelLog | None) -> Iterator[Gap]:
    """Dumps of two times: before and after a driver or a kernel was changed."""
    loaded = driver.nvidia_version if driver is not None else None
    if nvml is not None and nvml.status == "ok" and _differ(loaded, nvml.driver_version):
        yield _contradiction(
            "driver.nvidia_version", loaded, "/proc/driver/nvidia/version", nvml.driver_version, "NVML"
        )
    release = driver.kernel_release if driver is not None else None
    boot = next((line for line in log.lines[:20] if line.startswith(_BOOT)), None) if log is not None else None
    if boot is not None and _differ(release, (booted := (boot.removeprefix(_BOOT).split() or [""])[0])):
        yield _contradiction("kernel_log", booted, say("the kernel log"), release, "uname")


# --- PCI ----------------------------------------------------------------------------------------


def _pci(parts: Sequence[Parts], gaps: list[Gap]) -> tuple[PciFunction, ...] | None:
    """Functions of all lists, joined by address."""
    lists = [part for part in parts if part.pci is not None]
    if len(lists) < 2:
        return lists[0].pci if lists else None
    lists.sort(key=lambda part: (not part.pci_complete, _is_listing(part)))
    best, *others = lists
    merged = {function.address: function for function in best.pci or ()}
    sure = best.pci_complete and not _is_listing(best)
    unread = {gap.fact for gap in best.gaps}
    for part in others:
        for function in part.pci or ():
            address = function.address
            if address in merged:
                merged[address] = _function(merged[address], best.origin, function, part.origin, gaps)
                continue
            if best.pci_complete and _is_display(function) and f"pci.{address}" not in unread:
                how = say("{second} lists it, {first} does not.", second=part.origin, first=best.origin)
                gaps.append(Gap(fact=f"pci.{address}", reason="contradiction", how=how))
            if not sure or f"pci.{address}" in unread:
                merged[address] = function
    return tuple(merged[address] for address in sorted(merged, key=address_order))


def _is_listing(part: Parts) -> bool:
    """Whether the functions come from a listing, which names them, and not from the kernel itself."""
    return any(function.name is not None for function in part.pci or ())


def _function(known: PciFunction, first: str, other: PciFunction, second: str, gaps: list[Gap]) -> PciFunction:
    """One function from two lists. Of a display, differences are told: they may be of two times."""
    special = ("name", "class_id", "parent", "driver", "driver_read", "bars")
    merged, differ = _filled(known, other, special)
    update: dict[str, object] = {}
    if known.name is None:
        update["name"] = other.name
    if known.class_id & 0xFF == 0:  # most listings leave the interface out
        update["class_id"] = other.class_id
    if known.parent == UNKNOWN_PARENT:
        update["parent"] = other.parent
    if not known.driver_read:
        update |= {"driver": other.driver, "driver_read": other.driver_read}
    elif other.driver_read and known.driver != other.driver:
        differ.append("driver")
    sized = any(bar.bytes for bar in known.bars or ())
    if known.bars is None or (not sized and any(bar.bytes for bar in other.bars or ())):
        update["bars"] = known.bars if other.bars is None else other.bars
    if known.bars is not None and other.bars is not None and _unassigned(known) != _unassigned(other):
        differ.append("bars")
    if _is_display(known):
        for name in differ:
            if name in _TOLD:
                ours, theirs = getattr(known, name), getattr(other, name)
                if name == "bars":
                    ours, theirs = _unassigned(known), _unassigned(other)
                    how = say(
                        "Without an address: {first} says {ours}, {second} {theirs}.",
                        first=first,
                        ours=_word(ours),
                        second=second,
                        theirs=_word(theirs),
                    )
                    gaps.append(Gap(fact=f"gpus.{known.address}.bars", reason="contradiction", how=how))
                else:
                    gaps.append(_contradiction(f"gpus.{known.address}.{name}", ours, first, theirs, second))
    return merged.model_copy(update=update) if update else merged


_TOLD = ("driver", "bars", "config_dead", "device_id", "subsystem_device_id", "numa_node")
"""Of a display: what a finding may rest on."""


def _unassigned(function: PciFunction) -> tuple[int, ...]:
    return tuple(sorted(bar.index for bar in function.bars or () if not bar.assigned))


# --- NVML ---------------------------------------------------------------------------------------


def _nvml(parts: Sequence[Parts], gaps: list[Gap]) -> Nvml | None:
    """Cards of all lists, joined by address, by UUID, or by index where both lists count from the first."""
    found = [part for part in parts if part.nvml is not None]
    if len(found) < 2:
        return found[0].nvml if found else None
    found.sort(key=lambda part: not (part.nvml and part.nvml.complete))
    best, *others = found
    merged = best.nvml
    assert merged is not None
    for part in others:
        other = part.nvml
        assert other is not None
        if merged.status != other.status or (merged.gpus is None) != (other.gpus is None):
            how = say(
                "{first} says {ours}, {second} {theirs}.",
                first=best.origin,
                ours=_outcome(merged),
                second=part.origin,
                theirs=_outcome(other),
            )
            gaps.append(Gap(fact="nvml", reason="contradiction", how=how))
            continue
        cards, agree = _cards(merged, other)
        if not agree:
            how = say("{first} and {second} do not list the same GPUs.", first=best.origin, second=part.origin)
            gaps.append(Gap(fact="nvml.gpus", reason="contradiction", how=how))
        if _differ(merged.driver_version, other.driver_version):
            gaps.append(
                _contradiction(
                    "nvml.driver_version", merged.driver_version, best.origin, other.driver_version, part.origin
                )
            )
        complete = (merged.complete or other.complete) and agree
        merged = _filled(merged, other, ("gpus", "complete"))[0]
        merged = merged.model_copy(update={"gpus": cards, "complete": complete})
    return merged


def _outcome(nvml: Nvml) -> str:
    return nvml.message or nvml.status


def _cards(first: Nvml, second: Nvml) -> tuple[tuple[NvmlGpu, ...] | None, bool]:
    """Cards of both, and whether they may be the same ones: an excerpt may lack some, a list may not."""
    if first.gpus is None or second.gpus is None:
        return first.gpus, True
    cards = list(first.gpus)
    counted = first.complete and second.complete
    left = list(second.gpus)
    agree = len(cards) == len(left) if counted else len(left) <= len(cards) or not first.complete
    for by_index in (False, True):
        for other in tuple(left):
            place = next(
                (place for place, card in enumerate(cards) if _same_card(card, other, by_index and counted)), None
            )
            if place is not None:
                cards[place] = _card(cards[place], other)
                left.remove(other)
    for other in left:
        if other.address is not None or other.uuid is not None:
            agree = agree and not first.complete
            cards.append(other)
    return tuple(cards), agree


def _same_card(first: NvmlGpu, second: NvmlGpu, by_index: bool) -> bool:
    for name in ("address", "uuid"):
        ours, theirs = getattr(first, name), getattr(second, name)
        if ours is not None and theirs is not None:
            return bool(ours == theirs)
    return by_index and first.index == second.index


def _card(known: NvmlGpu, other: NvmlGpu) -> NvmlGpu:
    filled = _filled(known, other, ("index", "errors"))[0]
    return filled.model_copy(update={"errors": {**other.errors, **known.errors}})


def _pairs(parts: Sequence[Parts], nvml: Nvml | None) -> Pairs | None:
    """The matrix that a tool printed; one that names cards by index needs a list of NVML."""
    at = {str(gpu.index): gpu.address for gpu in _listed(nvml)} if nvml is not None and nvml.complete else {}
    for part in parts:
        if part.topology is None:
            continue
        named = [at.get(address) if address.isdecimal() else address for address in part.topology.addresses]
        if None not in named:
            return part.topology.model_copy(update={"addresses": tuple(named)})
    return None


# --- power supplies and log ---------------------------------------------------------------------


def _psus(parts: Sequence[Parts]) -> tuple[Psu, ...] | None:
    """Power supplies of the first list; what it does not know is filled in from the others.

    Units are joined by location, else by the number that ends it (``PSU.Slot.1``, ``PS1``) where both lists have
    the same numbers. A list that names all units of the first one may add others. Where the two have nothing in
    common, the list with the most ratings counts: firmware may list bays without a word on what is in them while
    the BMC knows.
    """
    lists = [part.psus for part in parts if part.psus]
    if not lists:
        return _first(part.psus for part in parts)
    first, *others = lists
    for other in others:
        at = {psu.location: psu for psu in other if psu.location is not None}
        mine, theirs = _numbered(first), _numbered(other)
        if any(psu.location in at for psu in first):
            named = {psu.location for psu in first}
            more = [psu for psu in other if psu.location not in named] if named <= at.keys() else ()
            first = (*(_filled(psu, at.get(psu.location or "", psu))[0] for psu in first), *more)
        elif mine and mine.keys() == theirs.keys():
            first = tuple(_filled(psu, theirs[number])[0] for number, psu in mine.items())
        elif _ratings(other) > _ratings(first):
            first = other
    return first


def _numbered(psus: Sequence[Psu]) -> dict[str, Psu]:
    """Units by the number that ends their location; empty where one has none, or two have the same."""
    found = {number[0]: psu for psu in psus if (number := re.search(r"\d{1,2}$", psu.location or ""))}
    return found if len(found) == len(psus) else {}


def _sockets(parts: Sequence[Parts]) -> tuple[CpuSocket, ...] | None:
    """Sockets of the first list, with the TDP that the BMC gives where all its processors have the same."""
    first = _first(part.cpu_sockets for part in parts)
    told = {socket.tdp_watts for part in parts for socket in part.cpu_sockets or () if socket.tdp_watts is not None}
    if first is None or len(told) != 1:
        return first
    tdp = told.pop()
    return tuple(socket.model_copy(update={"tdp_watts": tdp}) if socket.populated else socket for socket in first)


def _ratings(psus: Sequence[Psu]) -> int:
    return sum(psu.watts is not None for psu in psus)


def _kernel_log(parts: Sequence[Parts], gaps: list[Gap]) -> KernelLog | None:
    """The log that holds the start of the boot, then what only the others hold; each line once."""
    found = [part for part in parts if part.kernel_log is not None]
    if len(found) < 2:
        return found[0].kernel_log if found else None
    found.sort(key=lambda part: not (part.kernel_log and part.kernel_log.complete))
    best, *others = found
    merged = best.kernel_log
    assert merged is not None
    for part in others:
        other = part.kernel_log
        assert other is not None
        boots = {line for log in (merged, other) for line in log.lines if line.startswith(_BOOT)}
        if len(boots) > 1:
            how = say("{first} and {second} are of two kernels.", first=best.origin, second=part.origin)
            gaps.append(Gap(fact="kernel_log", reason="contradiction", how=how))
            continue
        there = frozenset(merged.lines)
        lines = (*merged.lines, *(line for line in other.lines if line not in there))
        earlier = tuple(dict.fromkeys((*merged.earlier, *other.earlier)))
        merged = merged.model_copy(update={"lines": lines, "earlier": earlier})
    return merged


# --- gaps ---------------------------------------------------------------------------------------


def _open_gaps(parts: Sequence[Parts], whole: Parts) -> Iterable[Gap]:
    """Gaps that no other part fills, each told once."""
    closed = frozenset(_known(whole))
    if any(part.pci is not None and part.pci_complete and not _is_listing(part) for part in parts):
        closed |= {"pci.complete"}
    gaps = dict.fromkeys(gap for part in parts for gap in part.gaps)
    told = {gap.fact.partition(".")[0] for gap in gaps}
    absent = [Gap(fact=fact, reason="not-in-input", how=_HOW) for fact in _LEVELS if fact not in closed | told]
    open_gaps = [gap for gap in gaps if gap.fact not in closed or gap.reason in _STAY]
    asked = {gap.fact for gap in open_gaps if gap.fact in _BMC_ONLY and gap.reason != "not-requested"}
    open_gaps = [gap for gap in open_gaps if gap.fact not in asked or gap.reason != "not-requested"]
    helped = {gap.fact for gap in open_gaps if gap.reason not in _NO_REMEDY}
    # Two ways to read one fact are both told; a way that leads nowhere only where there is no other.
    return [*(gap for gap in open_gaps if gap.reason not in _NO_REMEDY or gap.fact not in helped), *absent]


def _known(whole: Parts) -> Iterator[str]:
    """Names of facts that are known now, as gaps spell them."""
    for name in Parts.model_fields:
        if name not in _NO_FACTS and getattr(whole, name) is not None:
            yield name
    if all(psu.watts is not None for psu in whole.psus or () if psu.present is not False):
        yield "psus.watts"
    for level in ("driver", "cpu", "environment", "software", "power"):
        record: Fact | None = getattr(whole, level)
        if record is not None:
            yield from (f"{level}.{name}" for name, value in record if value is not None)
    if whole.nvml is not None and whole.nvml.complete:
        yield "nvml.complete"
    if whole.kernel_log is not None and whole.kernel_log.complete:
        yield "kernel_log.beginning"
    for function in filter(_is_display, whole.pci or ()):
        facts = {name for name, value in function if value is not None} - {"link", "driver", "parent"}
        if function.driver_read:
            facts.add("driver")
        if None not in (function.link.width, function.link.max_width):
            facts.add("link")
        if function.pci_id is not None:
            facts.add("pci_id")
        yield from (f"gpus.{function.address}.{fact}" for fact in facts)
