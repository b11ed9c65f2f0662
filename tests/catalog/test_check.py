"""Each kind of fault, shown once with a broken entry in a folder of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpucheck.catalog import Catalog, load
from gpucheck.catalog_check import faults

from .entries import CARD, SERVER, changed, write

SLOT = SERVER["slots"][0]
OPTION = {"label": "Riser", "choices": {"small": {"called": "small riser"}, "large": {"called": "large riser"}}}


def found(folder: Path, entry: dict[str, Any]) -> list[str]:
    return [fault for id, fault in faults(load(write(folder, entry))) if id == entry["id"]]


@pytest.mark.parametrize("entry", [SERVER, CARD], ids=["server", "card"])
def test_sound_entry(tmp_path: Path, entry: dict[str, Any]) -> None:
    unused = {"sources.quote": None, "sources.owner": None} if entry is SERVER else {}
    assert found(tmp_path, changed(entry, unused)) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"sources.spare": {"confidence": "vendor", "title": "Spare"}}, "source 'spare' is used nowhere"),
        ({"form.src": ["nowhere"]}, "form.src: source 'nowhere' is not in [sources]"),
        ({"power.base.src": []}, "power.base: a number without a source"),
        ({"power.bays_src": []}, "power.bays: stated without a source"),
        ({"sockets.src": []}, "sockets: a number without a source"),
        ({"sockets.max_cpu_watts_src": [], "sockets.src": []}, "sockets.max_cpu_watts: stated without a source"),
        ({"gpu.official": "none"}, "gpu.official: stated without a source"),
        ({"tell_apart": "Look at the lid."}, "tell_apart: stated without a source"),
        ({"slots.0.height_src": ["nowhere"]}, "slots[0].height_src: source 'nowhere' is not in [sources]"),
        ({"slots.0.src": [], "slots.0.watts_src": ["manual"]}, "slots[0].height: stated without a source"),
        ({"slots.0.position_src": ["manual"]}, "slots[0].position_src: sources of something that is not stated"),
        ({"power.aux.0.watts_src": ["manual"]}, "power.aux[0].watts_src: sources of something that is not stated"),
        (
            {"gpu.needs": [{"item": "both CPUs", "cpus": 2, "inlet_c_max": 30, "src": ["manual"]}]},
            "gpu.needs.0: Value error, one need is judged by one field",
        ),
        ({"slots.0.when": {"riser": "huge"}}, "slot 1: no option riser = huge"),
        ({"slots.0.wide_blocks": {"2": ["9"]}}, "slot 1: blocks 9, which does not exist"),
        ({"slots.0.socket": 3}, "slot 1: socket 3 of 2"),
        ({"slots.0.connector": 8}, "slot 1: more lanes than the connector has"),
        ({"slots.1.id": "1"}, "slot 1: active twice with {}"),
        ({"gpu.limits": [{"max": 1, "slots": ["9"], "src": ["manual"]}]}, "limit: slot 9 does not exist"),
        ({"gpu.limits": [{"max": 1, "needs": {"riser": "huge"}, "src": ["manual"]}]}, "limit: no option riser = huge"),
        (
            {"options.riser": OPTION, "options.riser.choices.large.recognise": {"slots_absent": ["9"]}},
            "Riser: recognised by: slot 9 does not exist",
        ),
        (
            {"gpu.reports": [{"cards": ["nvidia-nothing"], "works": True, "src": ["manual"]}]},
            "report: card nvidia-nothing is not in the catalog",
        ),
        (
            {"gpu.reports": [{"cards": ["E200"], "slots": ["9"], "works": True, "src": ["manual"]}]},
            "report: slot 9 does not exist",
        ),
        (
            {"gpu.listed": [{"by": "a list", "cards": ["nvidia-nothing"], "src": ["manual"]}]},
            "list: card nvidia-nothing is not in the catalog",
        ),
        (
            {"gpu.limits": [{"cards": ["nvidia-nothing"], "max": 1, "src": ["manual"]}]},
            "limit: card nvidia-nothing is not in the catalog",
        ),
        (
            {"gpu.needs": [{"item": "a kit", "cards": ["nvidia-nothing"], "src": ["manual"]}]},
            "need: card nvidia-nothing is not in the catalog",
        ),
        (
            {"gpu.forbids": [{"item": "a tape", "cards": ["nvidia-nothing"], "src": ["manual"]}]},
            "ban: card nvidia-nothing is not in the catalog",
        ),
        ({"power.aux.0.when": {"riser": "huge"}}, "power socket board: no option riser = huge"),
        ({"names": ["Server"]}, "no name that people can type"),
        ({"colour": "grey"}, "colour: Extra inputs are not permitted"),
        ({"slots.0.lanes": "many"}, "slots.0.lanes: Input should be a valid integer"),
        ({"model": None}, "model: Field required"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fault_of_a_server(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    assert any(sentence.startswith(fault) for sentence in found(tmp_path, changed(SERVER, changes)))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"sources.spare": {"confidence": "vendor", "title": "Spare"}}, "source 'spare' is used nowhere"),
        ({"power.src": ["nowhere"]}, "power.src: source 'nowhere' is not in [sources]"),
        ({"power.src": []}, "power: a number without a source"),
        ({"vram_gib": 24}, "vram_gib: stated without a source"),
        ({"needs_above_4g_src": []}, "needs_above_4g: stated without a source"),
        ({"power.peak_factor": 1.5, "power.src": []}, "power.peak_factor: stated without a source"),
        ({"pci": []}, "no PCI id"),
        ({"names": []}, "no name that people can type"),
        ({"variants": [{"id": "oc", "names": ["OC"]}, {"id": "oc", "names": ["OC 2"]}]}, "variant oc: twice"),
        ({"variants": [{"id": "oc", "names": []}]}, "variant oc: no name that people can type"),
        ({"form": "isa"}, "form: Input should be"),
        ({"sources.brief.confidence": "certain"}, "sources.brief.confidence: Input should be"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fault_of_a_card(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    assert any(sentence.startswith(fault) for sentence in found(tmp_path, changed(CARD, changes)))


def test_id_is_the_name_of_the_file(tmp_path: Path) -> None:
    (write(tmp_path, CARD) / "nvidia-example.toml").rename(tmp_path / "nvidia-other.toml")
    assert ("nvidia-other", "its id is 'nvidia-example', not the file's name") in faults(load(tmp_path))


def test_every_fault_of_an_entry_is_told(tmp_path: Path) -> None:
    both = changed(CARD, {"pci": [], "names": []})
    assert found(tmp_path, both) == ["no PCI id", "no name that people can type"]


def test_fields_rest_on_their_own_sources_or_the_row_s(tmp_path: Path) -> None:
    owned = {"slots.0.height_src": ["owner"], "power.aux.0.watts": 225, "power.aux.0.watts_src": ["quote"]}
    server = load(write(tmp_path, changed(SERVER, owned))).server(SERVER["id"])
    [first, second], [socket] = server.slots, server.power.aux or ()
    assert (first.src_of("height"), first.src_of("length")) == (("owner",), ("manual",))
    assert second.src_of("height") == second.src_of("socket") == ("manual",)
    assert (socket.src_of("watts"), socket.src_of("plug")) == (("quote",), ("manual",))


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"rule": {"mm": 35, "src": ["a"]}, "sources": {"a": {}}}, []),
        ({"rules": [{"deep": {"src": ["a"]}}], "sources": {"a": {}}}, []),
        ({"rule": {"mm": 35}, "sources": {}}, ["rule: stated without a source"]),
        ({"rule": {"src": ["b"]}, "sources": {}}, ["rule: source 'b' is not in [sources]"]),
        ({"rule": {"src": ["a"]}, "sources": {"a": {}, "b": {}}}, ["source 'b' is used nowhere"]),
    ],
)
def test_fault_of_a_document(document: dict[str, Any], told: list[str]) -> None:
    assert [fault for _, fault in faults(Catalog({}, {}, {"rules": document}))] == told
