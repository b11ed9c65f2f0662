"""Names as people type them, strings as SMBIOS gives them, ids as PCI shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.catalog import Catalog, load
from gpucheck.errors import UsageError
from gpucheck.facts import System

from .entries import CARD, SERVER, changed, write

R730, R730XD, T630 = "dell-poweredge-r730", "dell-poweredge-r730xd", "dell-poweredge-t630"
RH2288, RH2288H = "huawei-rh2288-v3", "huawei-rh2288h-v3"
TR, TRT, TR2, TRT2 = (f"supermicro-sys-4028gr-{tail}" for tail in ("tr", "trt", "tr2", "trt2"))


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("R730", {R730}),
        ("r730", {R730}),
        ("dell r730", {R730}),
        ("PowerEdge R730", {R730}),
        ("Dell PowerEdge R-730", {R730}),
        (R730, {R730}),
        ("R730xd", {R730XD}),
        ("r730 XD", {R730XD}),
        ("T630", {T630}),
        ("Dell EMC PowerEdge T630", {T630}),
        ("2288V3", {RH2288, RH2288H}),
        ("huawei 2288 v3", {RH2288, RH2288H}),
        ("RH2288H V3", {RH2288H}),
        ("rh2288hv3", {RH2288H}),
        ("RH2288 V3", {RH2288}),
        ("FusionServer RH2288H V3", {RH2288H}),
        ("4028GR", {TR, TRT, TR2, TRT2}),
        ("Supermicro 4028GR", {TR, TRT, TR2, TRT2}),
        ("4028GR-TR", {TR}),
        ("SYS-4028GR-TRT", {TRT}),
        ("4028gr-tr2", {TR2}),
        ("SuperServer 4028GR-TRT2", {TRT2}),
    ],
)
def test_server(catalog: Catalog, typed: str, meant: set[str]) -> None:
    assert set(catalog.find_servers(typed)) == meant


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("1080ti", {"nvidia-geforce-gtx-1080-ti"}),
        ("GTX 1080 Ti", {"nvidia-geforce-gtx-1080-ti"}),
        ("NVIDIA GeForce GTX 1080Ti", {"nvidia-geforce-gtx-1080-ti"}),
        ("titan x", {"nvidia-geforce-gtx-titan-x", "nvidia-titan-x-pascal"}),
        ("GTX Titan X", {"nvidia-geforce-gtx-titan-x"}),
        ("P40", {"nvidia-tesla-p40"}),
        ("tesla p40", {"nvidia-tesla-p40"}),
        ("NVIDIA Tesla P40", {"nvidia-tesla-p40"}),
        ("3090", {"nvidia-geforce-rtx-3090"}),
        ("rtx3090", {"nvidia-geforce-rtx-3090"}),
        ("3090 asus turbo", {"nvidia-geforce-rtx-3090/asus-turbo"}),
        ("asus turbo 3090", {"nvidia-geforce-rtx-3090/asus-turbo"}),
        ("A100", {"nvidia-a100-pcie-40gb", "nvidia-a100-pcie-80gb"}),
        ("A100 80GB", {"nvidia-a100-pcie-80gb"}),
        ("P100", {"nvidia-tesla-p100-pcie-12gb", "nvidia-tesla-p100-pcie-16gb"}),
        ("V100", {"nvidia-tesla-v100-pcie-16gb", "nvidia-tesla-v100-pcie-32gb"}),
        ("V100S", {"nvidia-tesla-v100s-pcie-32gb"}),
        ("K20", {"nvidia-tesla-k20m"}),
        ("GRID K2", {"nvidia-grid-k2"}),
        ("P620", {"nvidia-quadro-p620"}),
        ("T1000", {"nvidia-t1000"}),
        ("A1000", {"nvidia-rtx-a1000"}),
        ("RTX 4000 SFF Ada", {"nvidia-rtx-4000-sff-ada"}),
        ("T4", {"nvidia-t4"}),
        ("K80", {"nvidia-tesla-k80"}),
        ("Quadro RTX 6000", {"nvidia-quadro-rtx-6000"}),
        ("RTX 6000 Ada", {"nvidia-rtx-6000-ada"}),
        ("A6000", {"nvidia-rtx-a6000"}),
    ],
)
def test_card(catalog: Catalog, typed: str, meant: set[str]) -> None:
    found = {
        match.card if match.variant is None else f"{match.card}/{match.variant}" for match in catalog.find_cards(typed)
    }
    assert found == meant


@pytest.mark.parametrize("id", sorted(load().servers))
def test_every_name_of_a_server_leads_to_it(catalog: Catalog, id: str) -> None:
    server = catalog.server(id)
    for name in (id, server.model, f"{server.vendor} {server.model}", *server.names):
        assert id in catalog.find_servers(name)


@pytest.mark.parametrize("id", sorted(load().cards))
def test_every_name_of_a_card_leads_to_it(catalog: Catalog, id: str) -> None:
    card = catalog.card(id)
    for name in (id, card.name, *card.names):
        assert (id, None) in {(match.card, match.variant) for match in catalog.find_cards(name)}
    for variant in card.variants:
        for name in variant.names:
            assert (id, variant.id) in {(match.card, match.variant) for match in catalog.find_cards(name)}


@pytest.mark.parametrize(
    ("typed", "near"), [("R731", "PowerEdge R730"), ("T6300", "PowerEdge T630"), ("RH2288H V4", "RH2288H V3")]
)
def test_wrong_server_name_gets_the_nearest(catalog: Catalog, typed: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        catalog.find_servers(typed)
    assert caught.value.input == typed
    assert (caught.value.hint or "").startswith(f"nearest: {near}")


@pytest.mark.parametrize(
    ("typed", "near"), [("1080xti", "GeForce GTX 1080 Ti"), ("P41", "Tesla P40"), ("RTX 3091", "GeForce RTX 3090")]
)
def test_wrong_card_name_gets_the_nearest(catalog: Catalog, typed: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        catalog.find_cards(typed)
    assert near in (caught.value.hint or "")


@pytest.mark.parametrize("typed", ["", " ", "dell", "server", "!?", "zzzzzzzz"])
def test_name_that_means_nothing(catalog: Catalog, typed: str) -> None:
    with pytest.raises(UsageError, match="no such server model"):
        catalog.find_servers(typed)
    with pytest.raises(UsageError, match="no such card"):
        catalog.find_cards(typed)


@pytest.mark.parametrize(
    ("vendor", "product", "board", "meant"),
    [
        ("Dell Inc.", "PowerEdge R730", "0H21J3", R730),
        ("Dell Inc.", "PowerEdge R730xd", "0H21J3", R730XD),
        ("Dell Inc.", "PowerEdge R730XD", None, R730XD),
        (" dell inc. ", "poweredge  r730", None, R730),
        ("Dell Inc.", "PowerEdge T630", None, T630),
        ("Huawei", "RH2288H V3", "BC11HGSA0", RH2288H),
        ("Huawei", None, "BC11HGSA0", RH2288H),
        ("Huawei", "RH2288 V3", None, RH2288),
        ("Supermicro", "SYS-4028GR-TR", "X10DRG-O+-CPU", TR),
        ("Supermicro", "SYS-4028GR-TR2", "X10DRG-O+-CPU", TR2),
        ("Supermicro", "SYS-4028GR-TRT2", "X10DRG-OT+-CPU", TRT2),
        ("Supermicro", None, "X10DRG-O+-CPU", None),  # the board of two models
        ("Dell Inc.", "PowerEdge R7", None, None),
        ("Another Inc.", "PowerEdge R730", None, None),
        (None, None, None, None),
    ],
)
def test_smbios_strings(
    catalog: Catalog, vendor: str | None, product: str | None, board: str | None, meant: str | None
) -> None:
    assert catalog.server_of(System(vendor=vendor, product=product, board=board)) == meant


@pytest.mark.parametrize(
    ("pci_id", "subsystem", "cards"),
    [
        ("10de:1b38", None, ("nvidia-tesla-p40",)),
        ("10de:17fd", None, ("nvidia-tesla-m40-12gb", "nvidia-tesla-m40-24gb")),
        ("10de:1df6", None, ("nvidia-tesla-v100s-pcie-32gb",)),
        ("10de:25b6", "10de:157e", ("nvidia-a2",)),
        ("10de:ffff", None, ()),
    ],
)
def test_pci_id(catalog: Catalog, pci_id: str, subsystem: str | None, cards: tuple[str, ...]) -> None:
    assert catalog.cards_of(pci_id, subsystem) == cards


def test_subsystem_decides_between_cards_of_one_id(tmp_path: Path) -> None:
    pci = {"id": "10de:fffe", "src": ["brief"]}
    small = changed(CARD, {"id": "nvidia-small", "pci": [{**pci, "subsystem": "10de:0001"}]})
    large = changed(CARD, {"id": "nvidia-large", "pci": [{**pci, "subsystem": "10de:0002"}]})
    plain = changed(CARD, {"id": "nvidia-plain", "pci": [pci]})
    catalog = load(write(tmp_path, small, large, plain))
    assert catalog.cards_of("10de:fffe", "10de:0001") == ("nvidia-small",)
    assert catalog.cards_of("10de:fffe", "10de:0002") == ("nvidia-large",)
    assert catalog.cards_of("10de:fffe", "10de:0003") == ("nvidia-plain",)
    assert catalog.cards_of("10de:fffe") == ("nvidia-plain",)


def test_board_counts_only_where_no_product_is_listed(tmp_path: Path) -> None:
    match = {"vendor": ["Example Inc."], "product": ["Box"], "board": ["B1"], "src": ["manual"]}
    catalog = load(write(tmp_path, changed(SERVER, {"smbios": [match]})))
    assert catalog.server_of(System(vendor="Example Inc.", product="Box", board="B2")) == "example-box"
    assert catalog.server_of(System(vendor="Example Inc.", product="Crate", board="B1")) is None


def test_strings_that_two_models_share_name_neither(tmp_path: Path) -> None:
    catalog = load(write(tmp_path, SERVER, changed(SERVER, {"id": "example-crate"})))
    assert catalog.server_of(System(vendor="Example Inc.", product="Box")) is None
