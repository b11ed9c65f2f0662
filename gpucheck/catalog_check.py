"""Faults of form in the catalog: sources, cross-references, names. ``gpucheck catalog validate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from gpucheck.catalog import Catalog, cpu_forms, loose_name
from gpucheck.entries import Card, CpuFamily, Server, Sourced
from gpucheck.errors import CatalogError
from gpucheck.fit.request import Request
from gpucheck.fit.slots import active_rows

Fault = tuple[str, str]


def faults(catalog: Catalog) -> list[Fault]:
    """Every fault as (entry id, sentence)."""
    found: list[Fault] = []
    for id in sorted(catalog.servers):
        try:
            server = catalog.server(id)
        except CatalogError as error:
            found.append((id, error.message))
            continue
        found += [(id, fault) for fault in (*_sources(server), *_server(server, catalog))]
    for id in sorted(catalog.cards):
        try:
            card = catalog.card(id)
        except CatalogError as error:
            found.append((id, error.message))
            continue
        found += [(id, fault) for fault in (*_sources(card), *_card(card))]
    for id in sorted(catalog.cpus):
        try:
            family = catalog.cpu_family(id)
        except CatalogError as error:
            found.append((id, error.message))
            continue
        found += [(id, fault) for fault in (*_sources(family), *_cpus(family, catalog))]
    for id in sorted(catalog.software):
        found += [(id, fault) for fault in _document(catalog.software[id])]
    return found


def _document(document: Mapping[str, Any]) -> Iterator[str]:
    """A document of ``catalog/software``: its tables name sources that it has, and each of them is named."""
    sources = document.get("sources", {})
    used: set[str] = set()
    for name, table in document.items():
        for row in table if isinstance(table, list) else [table]:
            keys = list(_named_in(row)) if name != "sources" else []
            used.update(keys)
            if name != "sources" and not keys:
                yield f"{name}: stated without a source"
            for key in keys:
                if key not in sources:
                    yield f"{name}: source {key!r} is not in [sources]"
    for key in sorted(set(sources) - used):
        yield f"source {key!r} is used nowhere"


def _named_in(table: Any) -> Iterator[str]:
    """Keys of the sources of a table and of those in it."""
    if isinstance(table, Mapping):
        yield from table.get("src", ())
        for value in table.values():
            yield from _named_in(value)


def _walk(model: BaseModel, path: str) -> Iterator[tuple[str, BaseModel]]:
    for name in type(model).model_fields:
        yield from _walk_value(getattr(model, name), f"{path}.{name}" if path else name)


def _walk_value(value: Any, path: str) -> Iterator[tuple[str, BaseModel]]:
    if isinstance(value, BaseModel):
        yield path, value
        yield from _walk(value, path)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _walk_value(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk_value(item, f"{path}.{key}")


def _sources(entry: Server | Card | CpuFamily) -> Iterator[str]:
    """Every statement has a source: the smallest table that holds a number names it, and it exists."""
    used: set[str] = set()
    for path, table in [("", entry), *_walk(entry, "")]:
        dot = f"{path}." if path else ""
        for name in type(table).model_fields:
            if name == "src" or name.endswith("_src"):
                keys = getattr(table, name)
                used.update(keys)
                for key in keys:
                    if key not in entry.sources:
                        yield f"{dot}{name}: source {key!r} is not in [sources]"
        own = _with_own_sources(table)
        stated = [name for name in type(table).model_fields if _is_stated(table, name)]
        for name in stated:
            if name.endswith("_src") and not any(own[field] == name for field in stated if field in own):
                yield f"{dot}{name}: sources of something that is not stated"
        if getattr(table, "src", ()):
            continue
        for name in stated:
            if name in own and not getattr(table, own[name]):
                yield f"{dot}{name}: stated without a source"
        if isinstance(table, Sourced) and any(_is_number(table, name) for name in stated if name not in own):
            yield f"{path}: a number without a source"
    for key in sorted(set(entry.sources) - used):
        yield f"source {key!r} is used nowhere"


def _with_own_sources(table: BaseModel) -> dict[str, str]:
    """Fields with a field of sources of their own: ``peak_factor`` rests on ``peak_src``."""
    fields = type(table).model_fields
    return {
        name: sources
        for sources in fields
        if sources.endswith("_src")
        for name in fields
        if name != sources and f"{name}_".startswith(f"{sources.removesuffix('_src')}_")
    }


def _is_stated(table: BaseModel, name: str) -> bool:
    return bool(getattr(table, name) != type(table).model_fields[name].default)


def _is_number(table: BaseModel, name: str) -> bool:
    value = getattr(table, name)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _server(server: Server, catalog: Catalog) -> Iterator[str]:
    from gpucheck.fit.plans import builds

    ids = {row.id for row in server.slots}
    for row in server.slots:
        for blocked in (slot for slots in row.wide_blocks.values() for slot in slots):
            if blocked not in ids:
                yield f"slot {row.id}: blocks {blocked}, which does not exist"
        if row.socket is not None and not 1 <= row.socket <= server.sockets.count:
            yield f"slot {row.id}: socket {row.socket} of {server.sockets.count}"
        if row.connector is not None and row.lanes is not None and row.connector < row.lanes:
            yield f"slot {row.id}: more lanes than the connector has"
    for build in builds(Request(server)):
        active = [row.id for row in active_rows(server, build)]
        for id in sorted({id for id in active if active.count(id) > 1}):
            yield f"slot {id}: active twice with {build.options}"
    named_options = [
        *((f"slot {row.id}", row.when) for row in server.slots),
        *(("limit", limit.needs) for limit in server.gpu.limits),
        *((f"power socket {socket.at}", socket.when) for socket in server.power.aux or ()),
    ]
    for place, options in named_options:
        for key, chosen in options.items():
            if key not in server.options or chosen not in server.options[key].choices:
                yield f"{place}: no option {key} = {chosen}"
    named_slots = [
        *(("limit", limit.slots) for limit in server.gpu.limits),
        *(("report", report.slots) for report in server.gpu.reports),
        *(
            (f"{option.label}: recognised by", (*seen.slots_absent, *seen.slots_present, *seen.slot_lanes))
            for option in server.options.values()
            for choice in option.choices.values()
            if (seen := choice.recognise) is not None
        ),
    ]
    for place, slots in named_slots:
        for slot in sorted(set(slots) - ids):
            yield f"{place}: slot {slot} does not exist"
    named_cards = [
        *(("report", report.cards) for report in server.gpu.reports),
        *(("list", listed.cards) for listed in server.gpu.listed),
        *(("limit", limit.cards) for limit in server.gpu.limits),
        *(("need", need.cards) for need in server.gpu.needs),
        *(("ban", forbidden.cards) for forbidden in server.gpu.forbids),
    ]
    for place, cards in named_cards:
        for card in cards:
            if card.startswith(("nvidia-", "amd-", "intel-")) and card not in catalog.cards:
                yield f"{place}: card {card} is not in the catalog"
    if not any(loose_name(name) for name in server.names):
        yield "no name that people can type"


def _card(card: Card) -> Iterator[str]:
    if not card.pci:
        yield "no PCI id"
    if not card.names:
        yield "no name that people can type"
    variants = [variant.id for variant in card.variants]
    for id in sorted({id for id in variants if variants.count(id) > 1}):
        yield f"variant {id}: twice"
    for variant in card.variants:
        if not variant.names:
            yield f"variant {variant.id}: no name that people can type"


def _cpus(family: CpuFamily, catalog: Catalog) -> Iterator[str]:
    if not family.models:
        yield "no processor"
    for cpu in family.models:
        for form in sorted(cpu_forms(cpu.model_dump())):
            for id, name in catalog.cpu_names[form]:
                if (id, name) != (family.id, cpu.name):
                    yield f"{cpu.name}: {form} means {name} too"
