"""Where entries come from: the packed index, the checkout's TOML, a folder of one's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpucheck import catalog as module
from gpucheck.catalog import load
from gpucheck.errors import CatalogError

from .entries import CARD, SERVER, changed, write

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of one server and one card, with its index."""
    write(tmp_path / "catalog" / "servers" / "example", SERVER)
    write(tmp_path / "catalog" / "gpus" / "nvidia", CARD)
    (tmp_path / "catalog" / "software").mkdir()
    (tmp_path / "gpucheck").mkdir()
    pack(tmp_path)
    monkeypatch.setattr(module, "_CHECKOUT", tmp_path / "catalog")
    monkeypatch.setattr(module, "_INDEX", tmp_path / "gpucheck" / "_catalog.json")
    return tmp_path


def pack(root: Path) -> None:
    program = f"import pathlib, pack_catalog; pack_catalog.write(pathlib.Path({str(root)!r}))"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT / "scripts", check=True)


def poison(checkout: Path) -> None:
    """Make the index say something else than the TOML files, without making it older."""
    index = checkout / "gpucheck" / "_catalog.json"
    stamp = index.stat().st_mtime_ns
    document = json.loads(index.read_text())
    document["gpus"]["nvidia-example"]["name"] = "From the index"
    index.write_text(json.dumps(document))
    os.utime(index, ns=(stamp, stamp))


def test_packed_index_is_the_toml(checkout: Path) -> None:
    packed = load()
    (checkout / "gpucheck" / "_catalog.json").unlink()
    unpacked = load()
    assert packed.servers == unpacked.servers == {"example-box": SERVER}
    assert packed.cards == unpacked.cards == {"nvidia-example": CARD}


def test_packed_index_of_the_whole_catalog_is_the_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "catalog").symlink_to(ROOT / "catalog")
    (tmp_path / "gpucheck").mkdir()
    pack(tmp_path)
    monkeypatch.setattr(module, "_INDEX", tmp_path / "gpucheck" / "_catalog.json")
    packed = load()
    (tmp_path / "gpucheck" / "_catalog.json").unlink()
    unpacked = load()
    for section in ("servers", "cards", "software", "cpus"):
        assert getattr(packed, section) == getattr(unpacked, section)
        assert getattr(packed, section)


def test_fresh_index_is_used(checkout: Path) -> None:
    poison(checkout)
    assert load().card("nvidia-example").name == "From the index"


def test_index_is_not_used_when_a_file_is_newer(checkout: Path) -> None:
    poison(checkout)
    later = (checkout / "gpucheck" / "_catalog.json").stat().st_mtime_ns + 1_000_000_000
    os.utime(checkout / "catalog" / "gpus" / "nvidia" / "nvidia-example.toml", ns=(later, later))
    assert load().card("nvidia-example").name == "Example 200"


def test_index_is_not_used_when_a_file_is_gone(checkout: Path) -> None:
    (checkout / "catalog" / "gpus" / "nvidia" / "nvidia-example.toml").unlink()
    assert load().cards == {}


def test_index_alone_is_enough(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHECKOUT", checkout / "no such folder")
    assert load().server("example-box").model == "Box"


def test_own_folder_adds_and_overrides(tmp_path: Path) -> None:
    heavier = changed(CARD, {"id": "nvidia-tesla-p40", "power.watts": 333})
    catalog = load(write(tmp_path / "deep" / "own", SERVER, heavier).parent)
    assert catalog.find_servers("example box") == ("example-box",)
    assert (power := catalog.card("nvidia-tesla-p40").power) is not None
    assert power.watts == 333
    assert "dell-poweredge-r730" in catalog.servers
    assert "nvidia-tesla-k80" in catalog.cards


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"id = 'own'\nslots = [", "not a catalog file"),
        (b"\xff\xfe", "not a catalog file"),
        (b"id = 'own'\n", "neither a server (slots, sockets) nor a card (pci) nor processors (models)"),
    ],
)
def test_broken_file_in_the_own_folder_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "own.toml").write_bytes(content)
    with pytest.raises(CatalogError) as caught:
        load(tmp_path)
    assert reason in caught.value.message
    assert "own.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_own_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="no such folder"):
        load(tmp_path / "nothing")


def test_wrong_entry_is_told_when_it_is_asked_for(tmp_path: Path) -> None:
    catalog = load(write(tmp_path, changed(CARD, {"bus.lanes": "many"})))
    assert catalog.server("dell-poweredge-r730").model == "PowerEdge R730"
    with pytest.raises(CatalogError, match=r"catalog entry nvidia-example: bus\.lanes"):
        catalog.card("nvidia-example")


def test_what_is_no_small_file_is_not_read(tmp_path: Path) -> None:
    """A pipe would be waited for, and /dev/zero has no end."""
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(CatalogError, match="no file, or too large"):
        load(tmp_path)
    (tmp_path / "pipe.toml").unlink()
    (tmp_path / "large.toml").write_bytes(b"#" * (module._LARGEST_FILE + 1))
    with pytest.raises(CatalogError, match="no file, or too large"):
        load(tmp_path)


@pytest.mark.parametrize("count", [0, 100_000])
def test_entry_with_more_builds_than_can_be_searched(tmp_path: Path, count: int) -> None:
    catalog = load(write(tmp_path, changed(SERVER, {"sockets.count": count})))
    with pytest.raises(CatalogError, match=f"{count} ways of building it"):
        catalog.server("example-box")
