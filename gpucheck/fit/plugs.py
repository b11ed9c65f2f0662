"""Auxiliary power by exact kind of plug: from the server's sockets, through a cable, to the card."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpucheck.entries import Aux, AuxSocket, Cable, PlugKind, Server
from gpucheck.findings import Outcome
from gpucheck.fit.request import Wanted
from gpucheck.fit.slots import Build

PLUG_NAMES: dict[str, str] = {
    "pcie-6": "6-pin PCIe",
    "pcie-8": "8-pin PCIe",
    "eps-8": "8-pin EPS (CPU type)",
    "12vhpwr": "16-pin 12VHPWR",
    "12-pin-fe": "12-pin (Founders Edition)",
    "8-pin-unknown": "8-pin of a kind that no source names",
}


@dataclass(frozen=True, slots=True)
class Feed:
    """How one card gets its power: the cables it needs, or why that is not known."""

    outcome: Outcome
    """pass: no plug needed; change: cables to fit; unknown; fail."""
    wanted: Wanted
    cables: tuple[Cable, ...] = ()
    sockets: int = 0
    reason: str | None = None
    """``aux-unknown``, ``server-unknown``, ``kind-unknown``, ``no-cable``."""


def needed(aux: Aux) -> Counter[PlugKind]:
    """Plugs of one card by kind."""
    plugs: Counter[PlugKind] = Counter()
    for plug in aux.plugs:
        plugs[plug.kind] += plug.count
    return plugs


def in_words(aux: Aux) -> str:
    """``one 8-pin PCIe and one 6-pin PCIe``-like list for people."""
    return " + ".join(f"{count} × {PLUG_NAMES[kind]}" for kind, count in needed(aux).items())


def active_sockets(server: Server, build: Build) -> tuple[AuxSocket, ...] | None:
    """The server's GPU power sockets in this build; None when they are not known."""
    if server.power.aux is None:
        return None
    return tuple(
        socket
        for socket in server.power.aux
        if all(build.options.get(option) == choice for option, choice in socket.when.items())
    )


def feed(server: Server, wanted: Wanted, build: Build) -> Feed:
    """The cables that one card needs in this server."""
    aux = wanted.aux
    if aux is None:
        return Feed("unknown", wanted, reason="aux-unknown")
    if not aux.plugs:
        return Feed("pass", wanted)
    sockets = active_sockets(server, build)
    if sockets is None:
        return Feed("unknown", wanted, reason="server-unknown")
    if "8-pin-unknown" in needed(aux):
        return Feed("unknown", wanted, sockets=1, reason="kind-unknown")
    plugs_there = {socket.plug for socket in sockets}
    cables = [c for c in server.power.cables if c.from_plug is None or c.from_plug in plugs_there]
    chosen = _fewest(cables, needed(aux))
    if chosen is not None:
        return Feed("change", wanted, chosen, sum(cable.sockets for cable in chosen))
    if set(needed(aux)) <= plugs_there and not server.power.cables:
        # The server's lead ends in the card's plug: no separate cable is known or needed.
        return Feed("pass", wanted, sockets=needed(aux).total())
    return Feed("unknown", wanted, sockets=1, reason="no-cable")


def _fewest(cables: Sequence[Cable], plugs: Counter[PlugKind]) -> tuple[Cable, ...] | None:
    """The fewest cables that end in at least these plugs; a plug left over hangs loose."""
    states: list[tuple[tuple[Cable, ...], Counter[PlugKind]]] = [((), plugs)]
    for _ in range(plugs.total()):
        following = []
        for chosen, left in states:
            for cable in cables:
                rest = left - Counter(cable.gives)
                if rest == left:
                    continue
                if not rest:
                    return (*chosen, cable)
                following.append(((*chosen, cable), rest))
        states = following
    return None
