"""Topology forecast: what ``nvidia-smi topo -m`` would show, which pairs copy directly, and what that means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpucheck.entries import Card, SlotRow, citations
from gpucheck.findings import Citation
from gpucheck.fit.case import Case, Ruling, check_of, cited, listed
from gpucheck.fit.report import Condition, PeerAccess, SlotTopology
from gpucheck.fit.slots import pair_class
from gpucheck.text import say

Access = Literal["yes", "no", "unknown"]
Raw = Mapping[str, Any]

LEGEND = {
    "X": "the GPU itself",
    "PIX": "one PCIe switch between them, the server's or the one on a card with several GPUs",
    "PXB": "several PCIe switches between them, no CPU",
    "PHB": "the same CPU: through its PCIe root",
    "NODE": "the same CPU, different PCIe roots of it (SYS where the firmware splits a CPU into several NUMA nodes)",
    "SYS": "different CPUs: across the link between them",
    "?": "not known: which CPU owns a slot is not known",
}
"""The words of ``nvidia-smi topo -m`` that a forecast uses. NVLink bridges are left out: what was not asked for is
not assumed."""

_NAME = "nvidia-driver"
"""The document of ``catalog/software`` that holds what is known of direct access."""

_OURS = Citation(title="Our reasoning from the slots' owners and switches", confidence="derived")


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One GPU as it would stand: the card's place among the seats, the card, its slot."""

    seat: int
    card: Card
    row: SlotRow


def topology(case: Case) -> Iterator[Ruling]:
    """How far apart do the cards stand?"""
    rows = [place.row for place in case.placement.seats]
    pairs = {pair_class(a, b) for i, a in enumerate(rows) for b in rows[i + 1 :]}
    if not pairs or case.request.use == "infer":
        return  # each card works on its own
    sources = case.cite(key for row in rows for key in row.src)
    if "SYS" in pairs:
        text = say("The cards stand on different CPUs (SYS): copies between them cross the link between the CPUs.")
    elif "?" in pairs:
        text = say("How far apart the cards stand is not known.")
    elif pairs == {"PIX"}:
        text = say("The cards share one PCIe switch (PIX): the shortest way between them.")
    elif _several_roots(case):
        text = say("The cards stand at the same CPU (NODE).")
    else:
        text = say("The cards stand at the same CPU (PHB).")
    yield Ruling(check_of("topology", "unknown" if "?" in pairs and "SYS" not in pairs else "pass", text, sources))


def forecast(case: Case) -> SlotTopology:
    """The matrix of all GPUs of a plan, row by row as the cards stand in their slots."""
    gpus = [
        _Gpu(number, seat.wanted.card, seat.row)
        for number, seat in enumerate(case.placement.seats)
        for _ in range(seat.wanted.card.gpus_per_card)
    ]
    several = _several_roots(case)
    matrix = tuple(
        tuple("X" if i == j else _class(a, b, several=several) for j, b in enumerate(gpus)) for i, a in enumerate(gpus)
    )
    used = {word for line in matrix for word in line}
    access = _peer_access(case, gpus, matrix)
    return SlotTopology(
        slots=tuple(gpu.row.id for gpu in gpus),
        matrix=matrix,
        gpus=tuple(gpu.card.id for gpu in gpus),
        legend={word: meaning for word, meaning in LEGEND.items() if word in used},
        peer_access=access,
        means=tuple(_means(case, gpus, used, access)),
    )


def _class(first: _Gpu, second: _Gpu, *, several: bool) -> str:
    if first.seat == second.seat:
        return "PIX"
    pair = pair_class(first.row, second.row)
    if pair == "PIX" and max(first.card.gpus_per_card, second.card.gpus_per_card) > 1:
        return "PXB"  # the switch on the card lies between, beside the server's
    return "NODE" if pair == "PHB" and several else pair


def _document(case: Case) -> Raw:
    catalog = case.request.catalog
    return {} if catalog is None else catalog.software.get(_NAME, {})


def _several_roots(case: Case) -> bool:
    """Whether a CPU of this server opens several root buses: then no two slots share a host bridge."""
    roots = _document(case).get("topology", {}).get("root_buses", {})
    return case.server.sockets.type in roots.get("several", ())


# --- direct access ------------------------------------------------------------------------------


def _peer_access(case: Case, gpus: Sequence[_Gpu], matrix: Sequence[Sequence[str]]) -> tuple[PeerAccess, ...]:
    """Pairs that share a reason together."""
    groups: dict[tuple[Access, str, tuple[Citation, ...]], list[tuple[int, int]]] = {}
    known: dict[tuple[str, str, str], tuple[Access, str, tuple[Citation, ...]]] = {}
    for i, first in enumerate(gpus):
        for j in range(i + 1, len(gpus)):
            key = (first.card.id, gpus[j].card.id, matrix[i][j])
            if key not in known:
                known[key] = _access(case, first.card, gpus[j].card, matrix[i][j])
            groups.setdefault(known[key], []).append((i, j))
    return tuple(
        PeerAccess(pairs=tuple(pairs), access=access, why=why, sources=sources)
        for (access, why, sources), pairs in groups.items()
    )


def _access(case: Case, first: Card, second: Card, pair: str) -> tuple[Access, str, tuple[Citation, ...]]:
    """Whether two GPUs copy to each other directly. What no source says is unknown: there is no published list."""
    document = _document(case)
    if first.vendor != second.vendor:
        return "no", say("Cards of different makers have no direct access to each other."), (_OURS,)
    said = [_own(card, document) for card in (first, second)]
    for refused in said:
        if refused[0] == "no":
            return refused
    across = document.get("across_cpus", {})
    if pair in ("SYS", "?") and case.server.sockets.type in across.get("socket_types", ()):
        sources = cited(_NAME, document, across["src"])
        if pair == "SYS":
            return "no", across["why"], sources
        return "unknown", say("Which CPU owns a slot is not known. {why}", why=across["why"]), sources
    if first.id != second.id:
        names = listed((first.name, second.name))
        return "unknown", say("No source says whether unlike cards have direct access: {cards}.", cards=names), ()
    return said[0]


def _own(card: Card, document: Raw) -> tuple[Access, str, tuple[Citation, ...]]:
    """What is known of two cards of one model."""
    if (told := card.peer_to_peer) is not None:
        template = (
            "Two {card} copy to each other directly over PCIe. {note}"
            if told.pcie == "yes"
            else "The {card} has no direct access over PCIe. {note}"
        )
        return told.pcie, say(template, card=card.name, note=told.note or "").strip(), citations(card, told.src)
    for rule in document.get("peers", ()):
        capability = card.software.compute_capability
        if card.family == rule["family"] and capability and float(capability) >= float(rule["capability_from"]):
            return rule["access"], rule["why"], cited(_NAME, document, rule["src"])
    return "unknown", say("No source says whether two {card} have direct access over PCIe.", card=card.name), ()


# --- in plain words -----------------------------------------------------------------------------


def _means(case: Case, gpus: Sequence[_Gpu], used: set[str], access: Sequence[PeerAccess]) -> Iterator[Condition]:
    """What follows for the use of the cards."""
    if len(gpus) < 2:
        return
    if case.request.use == "infer":
        text = say("For inference each GPU works on its own: how far apart they stand matters little.")
        yield Condition(text=text, sources=(_OURS,))
        return
    document = _document(case)
    answers = {group.access for group in access}
    told = tuple(dict.fromkeys(source for group in access for source in group.sources))
    if answers == {"yes"}:
        text = say("Data-parallel training: all pairs copy to each other directly, so all-reduce stays on PCIe.")
        yield Condition(text=text, sources=told)
    elif "yes" in answers:
        yield Condition(text=say("Data-parallel training: some pairs copy directly, others do not."), sources=told)
    if "unknown" in answers:
        text = say("Which pairs copy directly shows on the running machine: nvidia-smi topo -p2p r.")
        yield Condition(text=text, sources=told or (_OURS,))
    if answers != {"yes"} and document:
        yield _ruled(document, "fallback")
    if "SYS" in used and document:
        yield _ruled(document, "slowest_pair")
    if len({gpu.card.id for gpu in gpus}) > 1:
        text = say("Every step of a data-parallel training waits for the slowest card: give it a smaller share.")
        yield Condition(text=text, sources=(_OURS,))
    if document and len(gpus) - 1 > document["peer_limit"]["gpus"]:
        yield _ruled(document, "peer_limit")


def _ruled(document: Raw, name: str) -> Condition:
    rule = document[name]
    return Condition(text=rule["why"], sources=cited(_NAME, document, rule["src"]))
