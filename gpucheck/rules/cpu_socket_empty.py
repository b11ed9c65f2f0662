"""Slots that belong to an empty CPU socket are dead.

What it means
Each slot is wired to one processor. Where a socket is empty, its slots have no host: a card in
them gets power and turns its fan, but no software can see it.

How we know
The firmware's SMBIOS record of the socket says that it is not populated. Which slots hang on it
comes from the catalog entry of this model; nothing else is a safe guide, neither the slot's label
nor the fact that the firmware lists the slot as available. Where the entry knows the owner of some slots
only, those are named, and the rest is called unknown.

Why it matters
It is often why somebody says in good faith that a server takes only one GPU: sold with one processor,
an R730 or a T630 has lost half of its slots.

What to do
Fit the second processor with its heat sink and memory, or move the card to a slot of a populated
socket. There is no message anywhere: silence is what a dead slot sounds like.

When it is wrong
Some firmware lists sockets that the board does not have, and virtual machines list dozens: neither
is judged. A board with one socket is never reported.

Sources
DMTF DSP0134, Processor Information (type 4), Status byte
https://www.easymanua.ls/dell/poweredge-t620/manual/114926?p=20 (slots 5 and 7 need two processors)
https://pubs.lenovo.com/x3550-m5-8869/t_installing_pci_assembly (riser 2 needs two processors)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpucheck.facts import CpuSocket, Machine
from gpucheck.findings import Evidence, Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.sockets import socket_number
from gpucheck.text import plural, say

if TYPE_CHECKING:
    from gpucheck.entries import Server

NEEDS: tuple[str, ...] = ("cpu_sockets",)


def lacks(machine: Machine) -> Iterator[str]:
    """Sockets whose record says neither."""
    if not machine.cpu_sockets:
        yield "cpu_sockets"
    for socket in machine.cpu_sockets or ():
        if socket.populated is None:
            yield f"cpu_sockets.{socket.designation}.populated"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding per empty socket: a warning, until cards turn out to be missing."""
    sockets = machine.cpu_sockets or ()
    populated = [socket for socket in sockets if socket.populated]
    if len(sockets) < 2 or not populated or (view.server is not None and view.server.sockets.count < 2):
        return
    cpu = machine.cpu
    if cpu is not None and (cpu.hypervisor or (cpu.packages or 0) > len(populated)):
        return  # the kernel runs on a processor that SMBIOS denies
    for socket in sockets:
        if socket.populated is False:
            yield from _check_socket(machine, view, socket)


def _check_socket(machine: Machine, view: View, socket: CpuSocket) -> Iterator[Finding]:
    dead = dead_slots(machine, view.server, socket)
    if dead == ():
        return
    if dead is None:
        message = say(
            "CPU socket {socket} is empty, so the slots that belong to it are dead. Which slots these are is "
            "not known for this model.",
            socket=socket.designation,
        )
    elif _owners_known(machine, view.server):
        message = say(
            plural(
                len(dead),
                "CPU socket {socket} is empty, so slot {slots} is dead.",
                "CPU socket {socket} is empty, so slots {slots} are dead.",
            ),
            socket=socket.designation,
            slots=", ".join(_listed(machine, view.server, dead)),
        )
    else:
        message = say(
            plural(
                len(dead),
                "CPU socket {socket} is empty, so at least slot {slots} is dead; for the other slots it is not known.",
                "CPU socket {socket} is empty, so at least slots {slots} are dead; for the other slots it is not "
                "known.",
            ),
            socket=socket.designation,
            slots=", ".join(_listed(machine, view.server, dead)),
        )
    yield finding(
        "cpu-socket-empty",
        "warning",
        socket.designation,
        message,
        evidence=(Evidence(source="SMBIOS type 4", text=say("{socket}: not populated", socket=socket.designation)),),
        remedy=(
            say(
                "Fit a processor of the same model in {socket}, with its heat sink and memory.",
                socket=socket.designation,
            ),
            say("Or use only slots that belong to a populated socket."),
        ),
        next_test=(_move_test(),) if _is_missing(machine, view) else (),
        sources=_sources(view.server, dead or ()),
    )


def _is_missing(machine: Machine, view: View) -> bool:
    """Whether a card is known to be missing, or none is seen at all."""
    return not machine.gpus or (view.expected is not None and len(machine.gpus) < view.expected.n)


def _move_test() -> NextTest:
    return NextTest(
        do=say("Move the card that is not seen to a slot in which a card is seen."),
        outcomes=(
            Reading(seen=say("It is seen there"), means=say("Its old slot is dead.")),
            Reading(
                seen=say("It is not seen there either"),
                means=say("The card or its power lead is at fault, not the socket."),
            ),
        ),
    )


def _owners_known(machine: Machine, server: Server | None) -> bool:
    """Whether the owner of every slot is known."""
    if server is not None and server.slots:
        return all(row.socket is not None for row in server.slots)
    return all(slot.socket is not None for slot in machine.slots or ())


def _listed(machine: Machine, server: Server | None, dead: tuple[str, ...]) -> Iterator[str]:
    """Slots as the firmware of this machine names them, or as the catalog does."""
    there = {slot.designation for slot in machine.slots or ()}
    for id in dead:
        rows = [row for row in (server.slots if server is not None else ()) if row.id == id]
        names = {name for row in rows for name in row.designations if name in there}
        yield names.pop() if len(names) == 1 else id


def dead_slots(machine: Machine, server: Server | None, socket: CpuSocket) -> tuple[str, ...] | None:
    """Slots of an empty socket, as the catalog names them; None where that is not known.

    Args:
        machine: For all its sockets, and the owner of a slot where it is known without the catalog.
        server: Catalog entry of the model.
        socket: The empty socket.
    """
    number = socket_number(socket.designation, server, machine.cpu_sockets) if server is not None else None
    if server is not None and number is not None:
        rows = server.slots
        ids = tuple(dict.fromkeys(row.id for row in rows if row.socket == number))
        # A slot can belong to another socket under another riser: name only what is dead in any case.
        dead = tuple(id for id in ids if all(row.socket == number for row in rows if row.id == id))
        if dead or all(row.socket is not None for row in rows):
            return dead
    owned = tuple(slot.designation for slot in machine.slots or () if slot.socket == socket.designation)
    return owned or None


def _sources(server: Server | None, dead: tuple[str, ...]) -> tuple[str, ...]:
    if server is None:
        return ()
    from gpucheck.entries import citations

    keys = dict.fromkeys(key for row in server.slots if row.id in dead for key in row.src)
    return tuple(citation.title for citation in citations(server, tuple(keys)))
