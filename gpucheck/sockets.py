"""CPU sockets by the catalog's number and by the firmware's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpucheck.facts import CpuSocket

if TYPE_CHECKING:
    from gpucheck.entries import Server


def socket_name(number: int, server: Server, sockets: Sequence[CpuSocket] | None) -> str | None:
    """Designation of a socket that the catalog numbers from 1.

    Without a name that the catalog knows, the place in the firmware's list counts, if the list is as
    long as the catalog's; labels count from 0 or 1, so they do not tell.
    """
    names = server.sockets.designations
    if sockets is None:
        return names[number - 1] if number <= len(names) else None
    there = [socket.designation for socket in sockets]
    spelled = {name.casefold(): name for name in there}
    known = [spelled.get(name.strip().casefold()) for name in names]
    if any(known):
        return known[number - 1] if number <= len(known) else None
    return there[number - 1] if number <= len(there) == server.sockets.count else None


def socket_number(designation: str, server: Server, sockets: Sequence[CpuSocket] | None) -> int | None:
    """Number in the catalog, from 1, of a socket that the firmware names; None where that is not known."""
    numbers = range(1, server.sockets.count + 1)
    found = [number for number in numbers if socket_name(number, server, sockets) == designation]
    return found[0] if len(found) == 1 else None
