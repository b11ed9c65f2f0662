"""Power supplies as the BMC's inventory (FRU) lists them.

SMBIOS type 39 is read with the rest of SMBIOS. A third of the servers leave it out or fill in
nothing, and then the inventory of the BMC is the next place: ``ipmitool fru``, which takes seconds
and therefore runs only on request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpucheck.facts import Gap, GapReason, Parts, Psu
from gpucheck.host import Host
from gpucheck.readers.smbios import known, watts_in_name
from gpucheck.text import say

FRU = ("ipmitool", "fru")
_HOW = "sudo /usr/bin/ipmitool fru > fru.txt, then gpucheck probe --from fru.txt"


def read(host: Host, listed: Sequence[Psu] | None = None, *, ask_ipmi: bool = False, timeout: float = 30.0) -> Parts:
    """Ask the BMC for the power supplies, if told to.

    Args:
        host: The machine.
        listed: What SMBIOS listed. Where it rates every unit that is present and the BMC was not to
            be asked, there is nothing to add.
        ask_ipmi: Run ``ipmitool fru``.
        timeout: Seconds that it may take; a BMC answers one unit after the other.

    Never raises: what was not read is a gap.
    """
    if not ask_ipmi:
        rated = listed and all(unit.watts is not None for unit in listed if unit.present is not False)
        return Parts(origin=host.name) if rated else _without(host, "not-requested")
    try:
        answer = host.run(FRU, timeout)
    except FileNotFoundError:
        return _without(host, "tool-absent")
    except TimeoutError:
        return _without(host, "timed-out")
    except OSError:
        return _without(host, "unreadable")
    if units := from_ipmi_fru(answer.stdout):
        return Parts(origin=host.name, psus=units)
    if "Could not open device" in answer.stderr:
        return _without(host, "needs-root" if "ermission" in answer.stderr else "file-absent")
    return _without(host, "not-supported")


def _without(host: Host, reason: GapReason) -> Parts:
    return Parts(origin=host.name, gaps=(Gap(fact="psus", reason=reason, how=say(_HOW)),))


_DEVICE = re.compile(r"FRU Device Description\s*:\s*(?P<name>.*?)\s*(?:\(ID \d+\))?\s*")
_UNIT = re.compile(r"(?:ps|psu|pws|pwr supply|power supply|power_supply)[ _#]*\d*(?: fru)?", re.IGNORECASE)
_CAPACITY = re.compile(r"(\d+) W")


def from_ipmi_fru(text: str) -> tuple[Psu, ...]:
    """Power supplies in the output of ``ipmitool fru``; empty where it lists none.

    A unit that answers is present; one that ipmitool calls not present is absent, unless it merely
    did not answer in time. Whether a unit has mains is not in the FRU. A unit that two controllers
    list under one serial number is counted once.
    """
    units: list[Psu] = []
    serials: set[str] = set()
    for name, fields in _devices(text):
        model = known(fields.get("Board Product")) or known(fields.get("Product Name"))
        if not _UNIT.fullmatch(name) and not (model or "").upper().startswith("PWR SPLY"):
            continue
        serial = known(fields.get("Board Serial")) or known(fields.get("Product Serial"))
        if serial in serials:
            continue
        serials.update([serial] if serial else [])
        capacity = _CAPACITY.fullmatch(fields.get("Capacity", ""))
        units.append(
            Psu(
                location=name,
                model=model,
                part=known(fields.get("Board Part Number")) or known(fields.get("Product Part Number")),
                manufacturer=known(fields.get("Board Mfg")) or known(fields.get("Product Manufacturer")),
                watts=(int(capacity[1]) or None) if capacity else watts_in_name(model),
                present=_present(fields),
            )
        )
    return tuple(units)


_ABSENT = "Device not present"


def _present(fields: dict[str, str]) -> bool | None:
    if _ABSENT in fields:
        return None if "Timeout" in fields[_ABSENT] else False
    return bool(fields) or None


def _devices(text: str) -> list[tuple[str, dict[str, str]]]:
    """Name and fields of each device; ``Device not present (Timeout)`` becomes a field too."""
    devices: list[tuple[str, dict[str, str]]] = []
    for line in text.splitlines():
        words = line.strip()
        if found := _DEVICE.fullmatch(words):
            devices.append((found["name"], {}))
        elif devices and words.startswith(_ABSENT):
            devices[-1][1][_ABSENT] = words.removeprefix(_ABSENT)
        elif devices and ":" in words:
            name, _, value = words.partition(":")
            devices[-1][1].setdefault(name.rstrip(), value.strip())
    return devices


def looks_like_ipmi_fru(text: str) -> bool:
    """Whether the text is output of ``ipmitool fru``."""
    return any(_DEVICE.fullmatch(line.strip()) for line in text[:4000].splitlines())
