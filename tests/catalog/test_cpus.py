"""Processors: names as people type them and as the kernel prints them, and files of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpucheck.catalog import Catalog, load
from gpucheck.catalog_check import faults
from gpucheck.entries import citations
from gpucheck.errors import CatalogError, UsageError

from .entries import changed, toml

FAMILY: dict[str, Any] = {
    "id": "intel-example",
    "vendor": "intel",
    "family": "Xeon X-9900",
    "address_bits": 46,
    "address_bits_src": ["list"],
    "pcie": {"gen": 3, "lanes": 40, "src": ["list"]},
    "avx": "avx2",
    "avx_src": ["list"],
    "models": [
        {"name": "Xeon X-9901", "watts": 99, "src": ["list"]},
        {"name": "Xeon X-9902", "names": ["Example 2"], "src": ["list"]},
    ],
    "sources": {"list": {"confidence": "vendor", "title": "List"}},
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load()


def own(folder: Path, entry: dict[str, Any]) -> Catalog:
    (folder / f"{entry['id']}.toml").write_text(toml(entry), "utf-8")
    return load(folder)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("E5-2680 v4", "Xeon E5-2680 v4"),
        ("e5-2680v4", "Xeon E5-2680 v4"),
        ("2680v4", "Xeon E5-2680 v4"),
        ("Xeon E5-2680v4", "Xeon E5-2680 v4"),
        ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "Xeon E5-2680 v4"),
        ("Intel(R) Xeon(R) CPU E5-2670 0 @ 2.60GHz", "Xeon E5-2670"),
        ("E5-2670", "Xeon E5-2670"),
        ("E5-2670 v1", "Xeon E5-2670"),
        ("E5-2687W v2", "Xeon E5-2687W v2"),
        ("E5-2678 v3", "Xeon E5-2678 v3"),
        ("Gold 6248", "Xeon Gold 6248"),
        ("6248", "Xeon Gold 6248"),
        ("Xeon 6248", "Xeon Gold 6248"),
        ("Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz", "Xeon Gold 6248R"),
        ("Silver 4210", "Xeon Silver 4210"),
        ("platinum 8280", "Xeon Platinum 8280"),
        ("EPYC 7302P", "EPYC 7302P"),
        ("AMD EPYC 7302 16-Core Processor", "EPYC 7302"),
        ("7742", "EPYC 7742"),
    ],
)
def test_name(catalog: Catalog, typed: str, meant: str) -> None:
    assert catalog.find_cpu(typed)[1].name == meant


@pytest.mark.parametrize("id", sorted(load().cpus))
def test_every_name_of_a_processor_leads_to_it(catalog: Catalog, id: str) -> None:
    family = catalog.cpu_family(id)
    for cpu in family.models:
        for name in (cpu.name, *cpu.names):
            assert catalog.find_cpu(name) == (family, cpu)


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("E5-2681 v4", "Xeon E5-268"),
        ("2680", "Xeon E5-2680"),
        ("EPYC 7303", "EPYC 73"),
        ("Xeon Gold 6249", "Xeon Gold 624"),
    ],
)
def test_wrong_name_gets_the_nearest(catalog: Catalog, typed: str, near: str) -> None:
    with pytest.raises(UsageError, match="no such processor") as caught:
        catalog.find_cpu(typed)
    assert near in (caught.value.hint or "")


@pytest.mark.parametrize("typed", ["", "Xeon", "CPU", "Gold", "v4", "zzzzzzzz"])
def test_name_that_means_nothing(catalog: Catalog, typed: str) -> None:
    with pytest.raises(UsageError, match="no such processor"):
        catalog.find_cpu(typed)


@pytest.mark.parametrize(
    ("name", "family", "watts", "bits", "lanes", "avx"),
    [
        ("E5-2620 v2", "Xeon E5-2600 v2", 80, 46, 40, "avx"),
        ("E5-2680 v4", "Xeon E5-2600 v4", 120, 46, 40, "avx2"),
        ("Gold 6248", "Xeon Scalable 2nd generation", 150, 46, 48, "avx512"),
        ("EPYC 7742", "EPYC 7002", 225, 43, 128, "avx2"),
        ("EPYC 7313", "EPYC 7003", 155, None, 128, None),
        ("E5-2678 v3", "Xeon E5-2600 v3", None, 46, 40, "avx2"),
    ],
)
def test_facts(
    catalog: Catalog, name: str, family: str, watts: int | None, bits: int | None, lanes: int, avx: str | None
) -> None:
    found, cpu = catalog.find_cpu(name)
    assert (found.family, cpu.watts, found.address_bits, found.avx) == (family, watts, bits, avx)
    assert found.pcie is not None
    assert found.pcie.lanes == lanes
    assert citations(found, cpu.src)


def test_families_have_the_names_that_servers_ask_for(catalog: Catalog) -> None:
    families = {catalog.cpu_family(id).family for id in catalog.cpus}
    named = {name for id in catalog.servers for name in catalog.server(id).sockets.cpus}
    assert named - families == {"EPYC 9005", "Kunpeng 920", "Xeon Scalable 5th generation"}  # not in the lists we read


def test_own_family(tmp_path: Path) -> None:
    catalog = own(tmp_path, FAMILY)
    family, cpu = catalog.find_cpu("example 2")
    assert (family.family, cpu.name, cpu.watts) == ("Xeon X-9900", "Xeon X-9902", None)
    assert catalog.find_cpu("X-9901")[1].watts == 99
    assert catalog.find_cpu("E5-2680 v4")[1].watts == 120
    assert [fault for id, fault in faults(catalog) if id == "intel-example"] == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"models.0.src": []}, "models[0]: a number without a source"),
        ({"address_bits_src": []}, "address_bits: stated without a source"),
        ({"pcie.src": ["nowhere"]}, "pcie.src: source 'nowhere' is not in [sources]"),
        ({"models": []}, "no processor"),
        ({"models.1.names": ["X-9901"]}, "Xeon X-9901: x9901 means Xeon X-9902 too"),
        ({"avx": "avx9"}, "avx: Input should be"),
        ({"cores": 8}, "cores: Extra inputs are not permitted"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fault(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    catalog = own(tmp_path, changed(FAMILY, changes))
    assert any(said.startswith(fault) for id, said in faults(catalog) if id == "intel-example")


@pytest.mark.parametrize("models", [[{"watts": 99}], ["Xeon"], "Xeon"])
def test_broken_family_is_named(tmp_path: Path, models: Any) -> None:
    with pytest.raises(CatalogError, match=r"intel-example\.toml"):
        own(tmp_path, changed(FAMILY, {"models": models}))
