"""Faults of form in the catalog: sources, cross-references, names. ``gpucheck catalog validate``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from gpucheck.catalog import Catalog, loose_name
from gpucheck.entries import Card, Server, Sourced
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
    return found


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


def _sources(entry: Server | Card) -> Iterator[str]:
    """Every number has a source: the smallest table that holds one names it, and it exists."""
    used: set[str] = set()
    for path, table in [("", entry), *_walk(entry, "")]:
        for name in type(table).model_fields:
            if name == "src" or name.endswith("_src"):
                keys = getattr(table, name)
                used.update(keys)
                for key in keys:
                    if key not in entry.sources:
                        yield f"{path}.{name}: source {key!r} is not in [sources]"
        if isinstance(table, Sourced) and not table.src and _states_a_number(table):
            yield f"{path}: a number without a source"
        for name in type(table).model_fields:
            companion = f"{name}_src"
            if companion in type(table).model_fields and getattr(table, name) is not None:
                value = getattr(table, name)
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                if is_number and not getattr(table, companion) and not getattr(table, "src", ()):
                    yield f"{path}.{name}: a number without a source"
    for key in sorted(set(entry.sources) - used):
        yield f"source {key!r} is used nowhere"


def _states_a_number(table: Sourced) -> bool:
    return any(
        isinstance(getattr(table, name), int | float)
        and not isinstance(getattr(table, name), bool)
        and getattr(table, name) != field.default
        and f"{name}_src" not in type(table).model_fields
        for name, field in type(table).model_fields.items()
    )


def _server(server: Server, catalog: Catalog) -> Iterator[str]:
    from gpucheck.fit.advise import builds

    ids = {row.id for row in server.slots}
    for row in server.slots:
        for key, chosen in row.when.items():
            if key not in server.options or chosen not in server.options[key].choices:
                yield f"slot {row.id}: no option {key} = {chosen}"
        for blocked in (slot for slots in row.wide_blocks.values() for slot in slots):
            if blocked not in ids:
                yield f"slot {row.id}: blocks {blocked}, which does not exist"
        if row.socket is not None and not 1 <= row.socket <= server.sockets.count:
            yield f"slot {row.id}: socket {row.socket} of {server.sockets.count}"
        if row.connector is not None and row.connector < row.lanes:
            yield f"slot {row.id}: more lanes than the connector has"
    for build in builds(Request(server)):
        active = [row.id for row in active_rows(server, build)]
        for id in sorted({id for id in active if active.count(id) > 1}):
            yield f"slot {id}: active twice with {build.options}"
    for limit in server.gpu.limits:
        for slot in limit.slots:
            if slot not in ids:
                yield f"limit: slot {slot} does not exist"
    for declared in server.options.values():
        for choice in declared.choices.values():
            if choice.recognise is not None:
                named = {*choice.recognise.slots_absent, *choice.recognise.slots_present, *choice.recognise.slot_lanes}
                for slot in sorted(named - ids):
                    yield f"{declared.label}: recognised by slot {slot}, which does not exist"
    for report in server.gpu.reports:
        for card in report.cards:
            if card.startswith(("nvidia-", "amd-", "intel-")) and card not in catalog.cards:
                yield f"report: card {card} is not in the catalog"
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
