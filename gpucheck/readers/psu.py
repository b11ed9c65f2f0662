"""Power supplies as the BMC lists them over IPMI, their state, and the BMC's event log.

SMBIOS type 39 is read with the rest of SMBIOS. A third of the servers leave it out or fill in
nothing, and then the inventory of the BMC (FRU) is the next place. Whether a unit works and whether
redundancy holds, only its sensors tell. ``ipmitool`` takes seconds for each, and therefore runs only on
request. Nothing but reading is ever asked: commands of a vendor's own differ between generations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from gpucheck.facts import Gap, GapReason, Parts, Power, Psu
from gpucheck.host import Host
from gpucheck.readers.smbios import known, watts_in_name
from gpucheck.text import say

FRU = ("ipmitool", "fru")
SENSORS = ("ipmitool", "sdr", "elist")
DRAW = ("ipmitool", "dcmi", "power", "reading")
EVENTS = ("ipmitool", "sel", "elist")
MOST_EVENTS = 500
"""Lines of the event log that are kept, the newest."""
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


def read_state(host: Host, *, timeout: float = 30.0) -> Parts:
    """Ask the BMC for the state of the power supplies, its power reading and its event log.

    Args:
        host: The machine.
        timeout: Seconds that each of the three may take; after one that runs out of them no more is asked.

    Never raises. A BMC that does not answer gives nothing here: the gap of :func:`read` says why.
    """
    printed: dict[tuple[str, ...], str] = {}
    for argv in (SENSORS, DRAW, EVENTS):
        try:
            answer = host.run(argv, timeout)
        except TimeoutError:
            break
        except OSError:
            continue
        if answer.returncode == 0:
            printed[argv] = answer.stdout
    found = from_ipmi_sdr(printed.get(SENSORS, ""))
    power = Power.model_validate(dict(found.power or Power()) | {"drawn_watts": from_ipmi_dcmi(printed.get(DRAW, ""))})
    return Parts(
        origin=host.name,
        psus=found.psus,
        power=None if power == Power() else power,
        bmc_events=from_ipmi_sel(printed[EVENTS]) if EVENTS in printed else None,
        gaps=found.gaps,
    )


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


# --- state --------------------------------------------------------------------------------------

# Plain strings: re compiles those that are used, and most probes ask no BMC.
_SENSOR_OF_UNIT = r"(?i)(?:PS|PSU|PWS|Pwr Supply|Power Supply)[ _#]*(?P<number>\d{1,2})\b(?P<rest>.*)"
_ENTITY = r"10\.(\d{1,2})"
"""Entity 10 of IPMI is a power supply; behind the point stands which one."""
_LISTED = r"[^|]+\| [0-9A-Fa-f]{2}h \| (?:ok|ns|nc|cr|nr|us|lnc|lcr|lnr|unc|ucr|unr) \| \d+\.\d+ \|.*"
_REDUNDANCY = r"(?i)power supplies|(?:ps|psu|power(?: supply| unit)?|pwr(?: unit)?) ?(?:redundancy|rdndncy|redund)\b.*"
_STATES: dict[str, Literal["full", "lost"]] = {
    "fully redundant": "full",
    "redundancy lost": "lost",
    "redundancy degraded": "lost",
    "non-redundant: sufficient from redundant": "lost",
    "non-redundant: insufficient resources": "lost",
    "redundancy degraded from fully redundant": "lost",
}
"""What a redundancy sensor says (IPMI 2.0, table 42-2, generic offsets 0Bh), as ipmitool words it."""


def looks_like_ipmi_sdr(line: str) -> bool:
    """Whether a line is one of a power supply in ``ipmitool sdr``, or any line of its long form."""
    name = line.partition("|")[0].strip().replace("_", " ")
    short = line.count("|") in range(2, 5) and (re.match(_SENSOR_OF_UNIT, name) or re.fullmatch(_REDUNDANCY, name))
    return bool(short or re.fullmatch(_LISTED, " ".join(line.split())))


def from_ipmi_sdr(text: str) -> Parts:
    """Power supplies and redundancy in ``ipmitool sdr`` (also ``elist`` and ``type "Power Supply"``).

    A reading above 0 W is the draw of a unit that is present and has mains, never its rating. Of the
    states only those that are written out count; the compact form's ``0x01`` depends on the sensor.
    A failure beside a reading of 0 W is a gap: HP's BMCs say that of a unit that only lacks mains, too.
    """
    units: dict[int, Psu] = {}
    gaps: list[Gap] = []
    power: Power | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 3:
            continue
        states = [state.strip().lower() for state in cells[-1].split(",")]
        redundancy = next((_STATES[state] for state in states if state in _STATES), None)
        if redundancy is not None and re.fullmatch(_REDUNDANCY, cells[0].replace("_", " ")):
            power = Power(redundancy=redundancy, redundancy_text=say("{name}: {state}", name=cells[0], state=cells[-1]))
            continue
        named = re.fullmatch(_SENSOR_OF_UNIT, cells[0].replace("_", " "))
        entity = re.fullmatch(_ENTITY, cells[3]) if len(cells) == 5 else None
        if named is None and entity is None:
            continue
        number = int(named["number"] if named is not None else entity[1] if entity is not None else 0)
        unit = units.get(number) or Psu(location=f"Power Supply {number}")
        units[number] = _with_states(unit, cells, states)
        if "failure detected" in states and _gives(cells) == 0:
            how = say("{unit} gives 0 W and is called failed: look at its cord, then at its lamp.", unit=unit.location)
            gaps.append(Gap(fact=f"psus.{unit.location}.failed", reason="contradiction", how=how))
    return Parts(psus=tuple(units[number] for number in sorted(units)) or None, power=power, gaps=tuple(gaps))


def _gives(cells: Sequence[str]) -> float | None:
    """Watts that a unit gives just now; None where its sensor has no reading of them."""
    read = (re.match(r"(\d+(?:\.\d+)?) Watts\b", cell) for cell in cells)
    return next((float(found[1]) for found in read if found), None)


def _with_states(unit: Psu, cells: Sequence[str], states: Sequence[str]) -> Psu:
    """A unit with what one more of its sensors says."""
    present, plugged, failed = unit.present, unit.plugged, unit.failed
    gives = _gives(cells)
    if gives:
        present = plugged = True
    if "presence detected" in states:
        present = True
    if any(state.startswith(("power supply ac lost", "power supply input lost")) for state in states):
        plugged = False
    if "failure detected" in states and gives != 0:
        failed = True
    return unit.model_copy(
        update={
            "present": present,
            "plugged": plugged if present else None,
            "failed": failed if present and plugged is not False else None,
        }
    )


_DRAW = r"Instantaneous power reading:\s*(\d{1,6}) Watts"


def from_ipmi_dcmi(text: str) -> float | None:
    """Watts that the machine draws, from ``ipmitool dcmi power reading``; 0 means that nothing measures them."""
    found = re.search(_DRAW, text)
    return (float(found[1]) or None) if found else None


_EVENT = r"(?i)\s*[0-9a-f]{1,4} \| *(?:\d\d/\d\d/\d{2,4}|Pre-Init)[^|]*\|.*\|.*"


def looks_like_ipmi_sel(line: str) -> bool:
    """Whether a line is one of ``ipmitool sel list`` or ``elist``."""
    return re.fullmatch(_EVENT, line) is not None


def from_ipmi_sel(text: str) -> tuple[str, ...]:
    """Events of the BMC, oldest first, at most :data:`MOST_EVENTS`."""
    events = [" ".join(line.split()) for line in text.splitlines() if looks_like_ipmi_sel(line)]
    return tuple(events[-MOST_EVENTS:])
