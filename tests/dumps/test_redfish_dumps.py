"""Saved Redfish answers given to --from: one, several, or a folder of them in any layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from redfish_service import CHASSIS, SYSTEM, Tree, machine

from gpucheck import sources
from gpucheck.errors import InputError
from gpucheck.facts import Parts
from gpucheck.probing import probe
from gpucheck.readers import bmc
from gpucheck.sources import open_source


def opened(path: Path) -> Parts:
    (parts,) = open_source(str(path))  # type: ignore[misc]
    assert isinstance(parts, Parts)
    return parts


def saved(content: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def facts(parts: Parts) -> Parts:
    return parts.model_copy(update={"origin": ""})


def test_one_answer(tmp_path: Path) -> None:
    parts = opened(saved(machine()[f"{SYSTEM}/Bios"], tmp_path / "answer"))
    assert parts.origin == str(tmp_path / "answer")
    assert parts.firmware_settings is not None
    assert parts.firmware_settings["MmioAbove4Gb"] == "Disabled"


def test_a_collection_with_its_members_written_out(tmp_path: Path) -> None:
    tree = machine()
    processors = [tree[f"{SYSTEM}/Processors/{n}"] for n in (1, 2, 3)]
    whole = {**tree[f"{SYSTEM}/Processors"], "Members": processors}
    assert [cpu.designation for cpu in opened(saved(whole, tmp_path / "x")).cpu_sockets or ()] == ["CPU1", "CPU2"]
    assert len(opened(saved(processors, tmp_path / "y")).cpu_sockets or ()) == 2


@pytest.mark.parametrize("cut", ["", "/redfish/v1"])
def test_a_tree_from_the_root_or_from_the_service(tmp_path: Path, cut: str) -> None:
    tree = machine()
    for path, content in tree.items():
        saved(content, tmp_path / path.removeprefix(cut)[1:] / "index.json")
    (tmp_path / "notes.json").write_text("[1, 2")
    (tmp_path / "README").write_text("x")
    assert facts(opened(tmp_path)) == bmc.parse(tree.values())


def test_a_folder_of_answers_with_any_names(tmp_path: Path) -> None:
    wanted: Tree = {path: machine()[path] for path in (SYSTEM, f"{CHASSIS}/Power")}
    for number, content in enumerate(wanted.values()):
        saved(content, tmp_path / f"{number}.json")
    assert facts(opened(tmp_path)) == bmc.parse(wanted.values())
    report = probe([str(tmp_path)])
    assert report.exit_code == 3
    assert [psu.location for psu in report.machine.psus or ()] == ["PS1", "PS2"]


def test_other_json_is_no_answer(tmp_path: Path) -> None:
    for content in ({"@odata.id": "/x"}, {"a": {"@odata.type": "#Power.Power"}}, [], [5], {"@odata.type": 5}):
        with pytest.raises(InputError):
            open_source(str(saved(content, tmp_path / "x")))
    (tmp_path / "x").write_text('{"@odata.type": ' + "[" * 100_000)
    with pytest.raises(InputError):
        open_source(str(tmp_path / "x"))
    with pytest.raises(InputError, match="no machine in this folder"):
        open_source(str(tmp_path))


def test_a_folder_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "TREE_LIMIT", 2)
    for number in range(3):
        saved({}, tmp_path / f"{number}.json")
    with pytest.raises(InputError, match="too many"):
        open_source(str(tmp_path))


def test_real_answers_as_a_folder(shared_machines: Path) -> None:
    # Of many machines: what cannot be one machine is not mixed.
    parts = opened(shared_machines / "redfish")
    assert parts.psus is None
    assert [gap.reason for gap in parts.gaps] == ["contradiction"]
