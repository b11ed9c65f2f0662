"""One host's file, and the one before it, to a row. Runs in a process of its own where ``--jobs`` asks for several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from pydantic import ValidationError

from gpucheck import baseline, probing
from gpucheck.assemble import assemble
from gpucheck.catalog import Catalog, load
from gpucheck.errors import GpucheckError, InputError
from gpucheck.facts import Counts, Expected, Gpu, Machine, Parts
from gpucheck.findings import Change, Finding, in_order
from gpucheck.fleet.merge import Kind, Note, Row, Traits
from gpucheck.fleet.store import Place, Unseen
from gpucheck.host import Host
from gpucheck.rules._shared import label
from gpucheck.sources import open_baseline
from gpucheck.text import clean, say, shorten


class Settings(NamedTuple):
    """What is the same for every host."""

    catalog: str | None = None
    """Folder with entries of one's own."""
    room: str | None = None
    """The card of which to tell how many more go in."""


def judge(place: Place, settings: Settings) -> Row | Unseen:
    """Judge one host. A file that cannot be read, whatever is in it, makes it unseen; nothing is raised."""
    host = shorten(clean(place.host), 100)
    try:
        return _judged(host, place, settings)
    except GpucheckError as error:
        reason = error.message
    except RecursionError:
        reason = say("nested without end")
    except MemoryError:
        reason = say("too large for the memory of this computer")
    except OSError as error:
        reason = say("cannot be read: {reason}", reason=error.strerror or error)
    except Exception as error:
        reason = say("a fault in gpucheck itself: {fault}", fault=f"{type(error).__name__}: {error}")
    return Unseen(host=host, reason=shorten(reason, 300))


@cache
def _catalog(folder: str | None) -> Catalog:
    return load(folder)


class _State(NamedTuple):
    """What is known of one host before its twins are."""

    verdict: probing.ProbeVerdict
    counts: Counts
    headline: str
    findings: tuple[Finding, ...]


def _judged(host: str, place: Place, settings: Settings) -> Row:
    catalog = _catalog(settings.catalog)
    opened = open_baseline(place.now)
    if isinstance(opened, dict):
        probed = baseline.from_document(place.now, opened)
        machine = probed.machine
        comparison, why = _compared(place, machine, catalog)
        state = _as_probed(probed, opened, comparison)
    else:
        machine = assemble(_parts(opened), catalog)
        comparison, why = _compared(place, machine, catalog)
        state = _as_captured(machine, comparison, catalog)
    expected = state.counts.expected
    changed: tuple[Change, ...] | None = None
    if comparison is not None:
        changed, why = baseline.changes(comparison, state.findings), baseline.uncompared(comparison)
    return Row(
        host=host,
        file=clean(place.now),
        verdict=state.verdict,
        exit_code=probing.EXIT_CODES[state.verdict],
        counts=(state.counts.pci, state.counts.device_files, state.counts.nvml, state.counts.tensorflow),
        expected=(expected.n, expected.origin) if expected is not None else None,
        headline=clean(state.headline),
        notes=tuple(_note(finding) for finding in state.findings if finding.severity != "info"),
        traits=traits(machine, catalog),
        changed=None if changed is None else tuple((one.subject, one.what, one.before, one.after) for one in changed),
        lost=tuple(label(gpu) for gpu in comparison.lost) if comparison is not None else (),
        uncompared=why,
        room=_room(machine, settings, catalog),
    )


def _as_captured(machine: Machine, comparison: baseline.Comparison | None, catalog: Catalog) -> _State:
    """A capture or dump: judged here, with the cards of the run before expected, as ``probe --baseline`` does."""
    expected = probing.granted(machine)
    if expected is None and comparison is not None and (count := comparison.earlier.count) is not None:
        expected = Expected(n=count, origin=comparison.earlier.origin)
    report = probing.judge(machine, expected, catalog, comparison)
    return _State(report.verdict, report.counts, report.headline, report.findings)


def _as_probed(probed: baseline.Earlier, document: Mapping[str, Any], comparison: baseline.Comparison | None) -> _State:
    """The document of a probe: it was judged on the host, where more was to be seen than is written in it."""
    findings = list(probed.findings)
    if comparison is not None:
        told = {(finding.name, finding.subject) for finding in findings}
        news = baseline.findings(comparison, probed.findings)
        findings += [finding for finding in news if (finding.name, finding.subject) not in told]
    broken = any(finding.severity == "error" for finding in findings)
    said = document.get("verdict")
    verdict: probing.ProbeVerdict = "problem" if broken else "ok" if said == "ok" else "unknown"
    try:
        counted = Counts.model_validate(document.get("counts") or {})
    except ValidationError:
        counted = Counts()
    return _State(verdict, counted, str(document.get("headline") or ""), in_order(findings))


def _parts(opened: Host | tuple[Parts, ...]) -> tuple[Parts, ...]:
    return opened if isinstance(opened, tuple) else probing.read(opened, ask_ipmi=probing.holds_fru(opened))


def _compared(place: Place, machine: Machine, catalog: Catalog) -> tuple[baseline.Comparison | None, str | None]:
    """The comparison with the run before; or why there is none. A damaged earlier file spoils only that."""
    if place.before is None:
        return None, None
    try:
        return baseline.compare(probing.earlier_state(place.before, catalog), machine, place.now), None
    except InputError as error:
        return None, say("Not compared with the run before: {reason}.", reason=shorten(error.message, 200))


def _note(finding: Finding) -> Note:
    return Note(*(getattr(finding, name) for name in Note._fields))


def traits(machine: Machine, catalog: Catalog) -> Traits:
    """What a machine is, as twins are told by it."""
    system, nvml = machine.system, machine.nvml
    named = system is not None and (system.product or system.board)
    fitted = [psu for psu in machine.psus or () if psu.present is not False]
    driver = machine.driver.nvidia_version if machine.driver is not None else None
    gpus = machine.gpus
    return Traits(
        model=probing.model_name(machine) if named else None,
        cards=None if gpus is None else _kinds(gpus, catalog),
        slots=None if machine.slots is None else len(machine.slots),
        psus=None if machine.psus is None else tuple(sorted((psu.watts for psu in fitted), key=lambda w: w or 0)),
        memory_bytes=machine.memory_bytes,
        links=tuple((label(gpu), gpu.link.width) for gpu in gpus or () if gpu.link.width is not None),
        vbios=tuple(sorted({(_id(gpu), gpu.nvml.vbios) for gpu in gpus or () if gpu.nvml and gpu.nvml.vbios})),
        driver=driver or (nvml.driver_version if nvml is not None else None),
        bios=system.bios_version if system is not None else None,
    )


def _id(gpu: Gpu) -> str:
    return gpu.pci_id or gpu.name or "GPU"


def _kinds(gpus: Sequence[Gpu], catalog: Catalog) -> tuple[Kind, ...]:
    counted = Counter(map(_id, gpus))
    names: dict[str, str] = {}
    for gpu in gpus:
        known = catalog.card(gpu.catalog_gpu).name if gpu.catalog_gpu is not None else None
        names.setdefault(_id(gpu), known or gpu.name or _id(gpu))
    return tuple(Kind(id, names[id], count) for id, count in sorted(counted.items()))


def _room(machine: Machine, settings: Settings, catalog: Catalog) -> tuple[tuple[Any, ...], ...] | None:
    """How many more of the card go in; None where it was not asked, or nobody can say."""
    if settings.room is None or machine.gpus is None:
        return None
    from gpucheck.fit.ask import room_for
    from gpucheck.fit.report import RoomLeft

    left = room_for(machine, settings.room, catalog)
    return None if left is None else tuple(tuple(getattr(one, name) for name in RoomLeft.model_fields) for one in left)
