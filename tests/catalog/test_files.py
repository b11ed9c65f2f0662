"""Every file of the catalog, one by one: the name of a failing test is the name of the file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucheck.catalog import Catalog, load
from gpucheck.catalog_check import faults

CATALOG = Path(__file__).resolve().parents[2] / "catalog"
ENTRIES = sorted(path for section in ("servers", "gpus", "cpus") for path in (CATALOG / section).rglob("*.toml"))
ALL_FILES = sorted(CATALOG.rglob("*.toml"))

each_entry = pytest.mark.parametrize("path", ENTRIES, ids=lambda path: path.stem)
each_file = pytest.mark.parametrize("path", ALL_FILES, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load()


@pytest.fixture(scope="module")
def found(catalog: Catalog) -> dict[str, list[str]]:
    by_entry: dict[str, list[str]] = {}
    for id, fault in faults(catalog):
        by_entry.setdefault(id, []).append(fault)
    return by_entry


def test_catalog_is_there() -> None:
    assert len([path for path in ENTRIES if "servers" in path.parts]) >= 80
    assert len([path for path in ENTRIES if "gpus" in path.parts]) >= 100
    assert len([path for path in ENTRIES if "cpus" in path.parts]) >= 12


@each_entry
def test_entry_has_no_fault(path: Path, found: dict[str, list[str]]) -> None:
    assert found.get(path.stem, []) == []


@each_entry
def test_file_name_is_the_id_and_the_folder_the_vendor(path: Path, catalog: Catalog) -> None:
    document = tomllib.loads(path.read_text("utf-8"))
    assert document["id"] == path.stem
    assert path.stem.startswith(f"{path.parent.name}-")
    section = next(name for name in ("servers", "gpus", "cpus") if name in path.parts)
    assert path.stem in {"servers": catalog.servers, "gpus": catalog.cards, "cpus": catalog.cpus}[section]


RESTS_ON_REASONING_ALONE = {
    "dell-poweredge-r730": {("4", "wide_blocks")},
    "dell-poweredge-r730xd": {("4", "wide_blocks")},
    "huawei-rh2288-v3": {
        *((slot, "position") for slot in ("3", "6", "7")),
        *((slot, "height") for slot in ("4", "5")),
        ("6", "wide_blocks"),
    },
    "huawei-rh2288h-v3": {
        *((slot, "position") for slot in "1234567"),
        *((slot, "height") for slot in ("4", "5")),
        *((slot, "wide_blocks") for slot in ("1", "2", "3", "6")),
    },
    "supermicro-sys-7048gr-tr": {(slot, "max_wide") for slot in ("2", "4", "6", "8")},
}
"""Slot and field that no document states: shown as our reasoning, never as measured or as the vendor's."""


@pytest.mark.parametrize("id", sorted(path.stem for path in ENTRIES if "servers" in path.parts))
def test_what_no_document_states_is_marked_as_reasoning(id: str, catalog: Catalog) -> None:
    server = catalog.server(id)
    marked = {
        (row.id, field)
        for row in server.slots
        for field in ("position", "height", "length", "watts", "max_wide", "wide_blocks")
        if getattr(row, field) and {server.sources[key].confidence for key in row.src_of(field)} == {"derived"}
    }
    assert marked == RESTS_ON_REASONING_ALONE.get(id, set())


@each_file
def test_file_is_clean_text(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert "\t" not in text
    assert "\r" not in text
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


@each_file
def test_no_empty_text(path: Path) -> None:
    assert [where for where, text in _texts(tomllib.loads(path.read_text("utf-8"))) if not text.strip()] == []


def _texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")
