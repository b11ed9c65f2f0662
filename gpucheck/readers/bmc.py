"""Power supplies, processors, slots and BIOS settings as the BMC's Redfish service has them.

:func:`read` follows the links from the service root; :func:`parse` takes resources in any order, one or
many, also those that somebody saved. Both forms of power supplies are known: the old ``Power`` resource
and ``PowerSubsystem`` with a resource for each unit. What a BMC says of a whole, such as a capacity in
watts, differs between vendors in meaning: only what it says of one unit counts.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from gpucheck.facts import CpuSocket, Gap, Parts, Power, Psu, Slot, System
from gpucheck.host import Host
from gpucheck.readers.gaps import reason_of, told
from gpucheck.readers.smbios import NO_RATING, known, watts_in_name
from gpucheck.text import clean, say

Resource = dict[str, Any]

ROOT = "/redfish/v1"
PREFIX = "/redfish/"
FILE = "/index.json"
"""A resource is read from this file below its path, as trees of saved Redfish answers are laid out."""
_MOST = 400
"""Resources that one machine needs at most; eight cards and 40 PCIe devices are under 150."""
_HOW = "gpucheck probe --bmc https://ADDRESS --bmc-auth FILE"
_ONLY_HERE = ("power", "firmware_settings")
"""Facts that nothing but a BMC tells."""


# --- asking -------------------------------------------------------------------------------------

_LINKS: dict[str, tuple[str, ...]] = {
    "ServiceRoot": ("Systems",),
    "ComputerSystem": ("Links.Chassis", "Bios", "Processors", "PCIeDevices"),
    "Chassis": ("Power", "PowerSubsystem", "PCIeSlots", "PCIeDevices", "EnvironmentMetrics"),
    "PowerSubsystem": ("PowerSupplies",),
}


def read(host: Host) -> Parts:
    """Ask the BMC. A host without one (not asked for, or a capture made without it) gives one gap.

    Never raises: what was not read is a gap.
    """
    origin = say("{name} (BMC)", name=host.name)
    if not host.exists(ROOT + FILE):
        return Parts(origin=host.name, gaps=tuple(_gaps(_ONLY_HERE, "not-requested", say(_HOW))))
    resources: list[Resource] = []
    gaps = list(_walk(host, resources))
    found = parse(resources, origin)
    missing = [fact for fact in _ONLY_HERE if getattr(found, fact) is None]
    gaps += _gaps(missing, "not-supported", say("The BMC does not tell it."))
    return found.model_copy(update={"gaps": (*found.gaps, *gaps)})


def _gaps(facts: Iterable[str], reason: Literal["not-requested", "not-supported"], how: str) -> list[Gap]:
    return [Gap(fact=fact, reason=reason, how=how) for fact in facts]


def _walk(host: Host, resources: list[Resource]) -> Iterator[Gap]:
    """Read resource after resource into the list; at most one gap, for all that could not be read."""
    waiting, later, seen = deque([ROOT]), deque[str](), {ROOT}
    failed: list[tuple[str, Exception]] = []
    while queue := waiting or later:
        path = queue.popleft()
        try:
            resource = _parsed(host.text(path + FILE))
        except FileNotFoundError:
            continue  # many a BMC links to what it does not have
        except (OSError, ValueError) as error:
            failed.append((path, error))
            if isinstance(error, TimeoutError):
                break
            continue
        resources.append(resource)
        for link in _links(resource):
            if link not in seen and len(seen) < _MOST:
                seen.add(link)
                # There are dozens of devices, and they tell least: a slow BMC must not spend its time on them.
                (later if "/PCIeDevices/" in link else waiting).append(link)
    if failed:
        path, why = failed[-1] if isinstance(failed[-1][1], TimeoutError) else failed[0]
        how = say("{path}: {error}", path=path, error=told(why))
        yield Gap(fact="bmc", reason="unreadable" if isinstance(why, PermissionError) else reason_of(why), how=how)
    elif len(seen) >= _MOST:
        how = say("The BMC has more than {most} resources; the rest was left out.", most=_MOST)
        yield Gap(fact="bmc", reason="unreadable", how=how)


def _parsed(text: str) -> Resource:
    """ValueError where it is no JSON object."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("JSON nested without end") from None
    if not isinstance(document, dict):
        raise ValueError("no JSON object")
    return document


def _links(resource: Resource) -> Iterator[str]:
    """Paths of the resources that this one leads to and that matter."""
    targets: list[object] = [resource.get("Members"), {"@odata.id": resource.get("Members@odata.nextLink")}]
    for name in _LINKS.get(kind(resource), ()):
        targets.append(_within(resource, *name.split(".")))
    for target in targets:
        for link in target if isinstance(target, list) else [target]:
            path = _within(link, "@odata.id")
            if isinstance(path, str) and path.startswith(PREFIX) and ".." not in path and "#" not in path:
                yield path.rstrip("/")


# --- recognising, and keeping no more than is needed --------------------------------------------


def kind(resource: Mapping[str, Any]) -> str:
    """Name of the resource's schema, such as ``PowerSupply``; empty where it has none."""
    name = resource.get("@odata.type")
    return name.rpartition(".")[2] if isinstance(name, str) else ""


def looks_like(document: object) -> bool:
    """Whether parsed JSON is a Redfish resource, or a list of them."""
    if isinstance(document, list):
        return bool(document) and all(looks_like(item) for item in document)
    return isinstance(document, dict) and isinstance(document.get("@odata.type"), str) and "@odata.id" in document


_KEPT = frozenset({
    "@odata.id", "@odata.type", "Attributes", "BayNumber", "Bios", "BiosVersion", "CapacityWatts", "Chassis",
    "EnvironmentMetrics", "Health", "Hpe", "InputRanges", "Lanes", "LineInputStatus", "LineInputVoltage", "Links",
    "Location", "LocationOrdinalValue", "Manufacturer", "MaxTDPWatts", "MemberId", "Members",
    "Members@odata.nextLink", "Mode", "Model", "Name", "Oem", "PCIeDevice", "PCIeDevices", "PCIeInterface",
    "PCIeSlots", "PCIeType", "PartLocation", "PartNumber", "Power", "PowerCapacityWatts", "PowerConsumedWatts",
    "PowerControl", "PowerSubsystem", "PowerSupplies", "PowerSupplyRedundancy", "PowerWatts", "ProcessorType",
    "Processors", "Reading", "Redundancy", "RedundancyType", "ServiceLabel", "Slot", "SlotType", "Slots", "Socket",
    "State", "Status", "Systems", "TDPWatts", "UUID",
})  # fmt: skip


def kept(text: bytes) -> bytes:
    """What of a resource a capture keeps: no serial number, no name of a host, no user."""
    try:
        resource = _parsed(text.decode("utf-8", "replace"))
    except ValueError:
        return b"{"  # as unreadable as it was
    made = _pruned(resource)
    if isinstance(attributes := made.get("Attributes"), dict):
        made["Attributes"] = settings(attributes)
    return json.dumps(made, sort_keys=True).encode()


def _pruned(value: Any, *, all: bool = False) -> Any:
    if isinstance(value, dict):
        return {key: _pruned(item, all=key == "Attributes") for key, item in value.items() if all or key in _KEPT}
    return [_pruned(item) for item in value] if isinstance(value, list) else value


# --- values -------------------------------------------------------------------------------------


def _within(value: object, *path: str) -> object:
    """What lies at the end of the path of keys; None where any of them is missing."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _text(value: object, *path: str) -> str | None:
    found = _within(value, *path)
    return known(found) if isinstance(found, str) else None


def _number(value: object, *path: str) -> float | None:
    """A finite number of at least 0; true and false are none."""
    found = _within(value, *path)
    if not isinstance(found, int | float) or isinstance(found, bool):
        return None
    return float(found) if abs(found) < 1e9 and math.isfinite(found) and found >= 0 else None


def _watts(value: object, *path: str) -> int | None:
    found = _number(value, *path)
    return None if found is None or round(found) in NO_RATING else round(found)


def _objects(value: object) -> list[Resource]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


# --- facts --------------------------------------------------------------------------------------


def parse(resources: Iterable[Resource], origin: str = "") -> Parts:
    """Facts from Redfish resources of one machine, collections with their members written out included.

    Args:
        resources: In any order; of two with the same ``@odata.id`` the last counts.
        origin: For messages.
    """
    of: dict[str, list[Resource]] = {}
    at = {str(resource.get("@odata.id", number)).rstrip("/"): resource for number, resource in _all(resources)}
    for resource in at.values():
        of.setdefault(kind(resource), []).append(resource)
    systems = of.get("ComputerSystem", [])
    if len(systems) > 1:  # a tray of cards may be listed as a system too; it has no BIOS
        systems = [system for system in systems if "Bios" in system or "BiosVersion" in system]
    if len(systems) > 1:
        how = say("The BMC answers for {count} machines.", count=len(systems))
        return Parts(origin=origin, gaps=(Gap(fact="bmc", reason="contradiction", how=how),))
    attributes = [
        settings(bios["Attributes"]) for bios in of.get("Bios", ()) if isinstance(bios.get("Attributes"), dict)
    ]
    found: dict[str, Any] = {
        "system": _system(systems[0]) if systems else None,
        "cpu_sockets": tuple(_socket(cpu) for cpu in of.get("Processor", ()) if _is_cpu(cpu)),
        "slots": tuple(_slots(of)),
        "psus": _psus(of),
        "power": _power(of),
        "firmware_settings": attributes[0] if attributes else None,
    }
    # An empty list in Redfish means as often that the BMC does not know as that there is nothing.
    return Parts(origin=origin, **{fact: value or None for fact, value in found.items()})


def _all(resources: Iterable[Resource]) -> Iterator[tuple[int, Resource]]:
    """Every resource, and each member that a collection writes out."""
    number = 0
    for resource in resources:
        for item in (resource, *(member for member in _objects(resource.get("Members")) if looks_like(member))):
            yield number, item
            number += 1


def _system(system: Resource) -> System:
    """Identity. SKU is left out: some vendors write their service tag there."""
    return System(
        vendor=_text(system, "Manufacturer"),
        product=_text(system, "Model"),
        bios_version=_text(system, "BiosVersion"),
        uuid=_text(system, "UUID"),
    )


def _is_cpu(processor: Resource) -> bool:
    return processor.get("ProcessorType") in (None, "CPU")


_THERE = frozenset(
    {"Enabled", "Disabled", "StandbyOffline", "StandbySpare", "UnavailableOffline", "Updating", "Quiesced"}
)
"""Values of Status.State of a thing that is fitted, working or not."""


def _present(resource: Resource) -> bool | None:
    state = _text(resource, "Status", "State")
    return False if state == "Absent" else True if state in _THERE else None


def _socket(processor: Resource) -> CpuSocket:
    tdp = _watts(processor, "TDPWatts") or _watts(processor, "MaxTDPWatts")
    return CpuSocket(
        designation=_text(processor, "Socket") or _text(processor, "Name") or say("CPU"),
        populated=_present(processor),
        model=_text(processor, "Model"),
        tdp_watts=tdp,
    )


def _slots(of: Mapping[str, Sequence[Resource]]) -> Iterator[Slot]:
    """Slots of the chassis; where it has no list of them, those in which the BMC sees a device."""
    listed = [slot for slots in of.get("PCIeSlots", ()) for slot in _objects(slots.get("Slots"))]
    named: set[str] = set()
    for number, slot in enumerate(listed, 1):
        name = _slot_name(slot) or say("Slot {n}", n=number)
        named.add(name)
        filled = bool(_objects(_within(slot, "Links", "PCIeDevice"))) or _present(slot)
        yield _slot(name, slot, filled)
    for device in of.get("PCIeDevice", ()):
        seat = device.get("Slot")
        label = _slot_name(seat) if isinstance(seat, dict) else None
        if not listed and label is not None and label not in named:
            named.add(label)
            yield _slot(label, device["Slot"], True)


def _slot(name: str, slot: Resource, filled: bool | None) -> Slot:
    lanes, gen = _number(slot, "Lanes"), re.fullmatch(r"Gen([1-9])", _text(slot, "PCIeType") or "")
    return Slot(
        designation=name,
        in_use=filled,
        lanes=round(lanes) if lanes else None,
        gen=int(gen[1]) if gen else None,
    )


def _slot_name(slot: Resource) -> str | None:
    place = _within(slot, "Location", "PartLocation")
    if label := _text(place, "ServiceLabel"):
        return label
    number = _number(place, "LocationOrdinalValue")
    return None if number is None else say("Slot {n}", n=round(number))


# --- power supplies -----------------------------------------------------------------------------


def _psus(of: Mapping[str, Sequence[Resource]]) -> tuple[Psu, ...]:
    """Units of the form that rates more of them: a BMC may offer both, one of them empty."""
    new = [_psu(unit, number) for number, unit in enumerate(of.get("PowerSupply", ()), 1)]
    old = [
        _psu(unit, number)
        for power in of.get("Power", ())
        for number, unit in enumerate(_objects(power.get("PowerSupplies")), 1)
    ]
    rated = [sum(unit.watts is not None for unit in units) for units in (new, old)]
    return tuple(old if (rated[1], len(old)) > (rated[0], len(new)) else new)


def _psu(unit: Resource, number: int) -> Psu:
    present = _present(unit)
    model = _text(unit, "Model")
    plugged = _plugged(unit) if present else None
    health = _within(unit, "Status", "Health")
    # A unit without mains is reported as critical too.
    failed = health == "Critical" if present and plugged is not False and health in ("OK", "Critical") else None
    return Psu(
        location=_bay(unit, number),
        model=model,
        part=_text(unit, "PartNumber"),
        manufacturer=_text(unit, "Manufacturer"),
        watts=_watts(unit, "PowerCapacityWatts") or watts_in_name(model) if present else None,
        present=present,
        plugged=plugged,
        failed=failed,
    )


def _bay(unit: Resource, number: int) -> str:
    """Name of the bay. Some vendors name every unit alike: then their bay number or the place counts."""
    if label := _text(unit, "Location", "PartLocation", "ServiceLabel"):
        return label
    name = (_text(unit, "Name") or "").removesuffix(" Status")
    if re.search(r"\d", name):
        return name
    bay = _number(unit, "Oem", "Hpe", "BayNumber")
    return say("Power Supply {n}", n=number if bay is None else round(bay))


def _plugged(unit: Resource) -> bool | None:
    """Whether it has mains. A reading of 0 V counts only where the BMC is not content with the unit: a BMC
    that cannot measure says 0 as well."""
    status = _within(unit, "LineInputStatus")
    if status in ("Normal", "LossOfInput"):
        return status == "Normal"
    volts = _number(unit, "LineInputVoltage")
    if volts:
        return True
    return False if volts == 0 and _within(unit, "Status", "Health") in ("Warning", "Critical") else None


def _power(of: Mapping[str, Sequence[Resource]]) -> Power | None:
    groups = [group for power in of.get("PowerSubsystem", ()) for group in _objects(power.get("PowerSupplyRedundancy"))]
    groups += [group for power in of.get("Power", ()) for group in _objects(power.get("Redundancy"))]
    states = [(state, text) for group in groups for state, text in _redundancy(group)]
    order = {"lost": 0, "full": 1, "none": 2}
    state, text = min(states, key=lambda found: order[found[0]], default=(None, None))
    drawn = [_number(metrics, "PowerWatts", "Reading") for metrics in of.get("EnvironmentMetrics", ())]
    drawn += [
        _number(control, "PowerConsumedWatts")
        for power in of.get("Power", ())
        for control in _objects(power.get("PowerControl"))[:1]
    ]
    watts = next((number for number in drawn if number), None)
    if state is None and watts is None:
        return None
    return Power(redundancy=state, redundancy_text=text, drawn_watts=watts)


def _redundancy(group: Resource) -> Iterator[tuple[Literal["full", "lost", "none"], str]]:
    """State of one group of supplies; nothing for a group that is off or says neither."""
    mode = _text(group, "RedundancyType") or _text(group, "Mode") or ""
    health, state = _text(group, "Status", "Health"), _text(group, "Status", "State")
    words = ", ".join(word for word in (_text(group, "Name"), mode, state, health) if word)
    if mode in ("NotRedundant", "Not Redundant"):
        yield "none", words
    elif state == "Enabled" and health in ("OK", "Warning", "Critical"):
        yield ("full" if health == "OK" else "lost"), words


# --- settings of the BIOS -----------------------------------------------------------------------

_SETTING = (
    r"above4g|4gdecod|mmio|pci64bit|64bitresource|pciresourcepadding|mmc(?:on)?f(?:i)?gbase"
    r"|sriov|iommu|iovt|vtd(?!isk)|directedio|procvirtualization"
    r"|bootmode|boottype|csmsupport|^csm|legacyboot"
    r"|bifurcation|slot\d+bif|iiopcieport|resizablebar|resizebar"
    r"|^(?:pcie?)?slot\d+(?:enable|disable|linkspeed|bifurcation)?$|maxpciespeed"
)
"""In an attribute's name without blanks and underscores, in lower case. The names differ from vendor to
vendor and from one generation to the next; opaque ones (``PCIS007``) tell nothing."""
_MOST_SETTINGS = 200


def settings(attributes: Mapping[str, object]) -> dict[str, str]:
    """Of all BIOS attributes those that decide what becomes of a card, as the BMC spells them."""
    found: dict[str, str] = {}
    for name in sorted(attributes):
        value = attributes[name]
        words = re.sub(r"[^a-z0-9]", "", name.lower())
        if not re.search(_SETTING, words) or words.startswith("onetime") or len(name) > 100:
            continue
        if isinstance(value, str | int | float) and (text := clean(str(value)[:100])):
            found[name] = text
        if len(found) == _MOST_SETTINGS:
            break
    return found
