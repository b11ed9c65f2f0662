"""Every golden machine: its capture is what build.py makes, and the probe says what expect.json says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from machines import build
from machines.golden import MACHINES

from gpucheck.facts import Machine
from gpucheck.probing import Probe, probe

FOLDER = Path(__file__).parent / "machines"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/expect.json"))


def expected(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((FOLDER / name / "expect.json").read_text("utf-8"))
    return read


def probed(name: str) -> Probe:
    return probe([str(FOLDER / name / "capture.json")], expect_gpus=expected(name).get("expect_gpus"))


def test_every_machine_is_described_and_expected() -> None:
    assert sorted(MACHINES) == NAMES
    assert sorted(path.name for path in FOLDER.iterdir() if (path / "capture.json").exists()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_capture_is_what_the_builder_makes(name: str) -> None:
    assert (FOLDER / name / "capture.json").read_text("utf-8") == build.dump(MACHINES[name]().capture())


@pytest.mark.parametrize("name", NAMES)
def test_findings(name: str) -> None:
    report, expect = probed(name), expected(name)
    found = [(finding.severity, finding.name, finding.subject) for finding in report.findings]
    wanted = [tuple(line.split(" ", 2)) for line in expect["findings"]]
    assert [got[: len(want)] for got, want in zip(found, wanted, strict=False)] == wanted
    assert found[len(wanted) :] == []
    assert {name for _, name, _ in found}.isdisjoint(expect["absent"])
    assert (report.verdict, report.exit_code) == (expect["verdict"], expect["exit_code"])


@pytest.mark.parametrize("name", NAMES)
def test_facts(name: str) -> None:
    report, expect = probed(name), expected(name)
    counts = report.counts.model_dump(include={"pci", "device_files", "nvml"})
    assert counts == expect["counts"]
    machine = report.machine
    assert machine.catalog_model == expect["catalog_model"]
    if expect["cards"]:
        cards = {gpu.address: [gpu.slot, gpu.socket, gpu.catalog_gpu] for gpu in machine.gpus or ()}
        assert cards == expect["cards"]
    if "matrix" in expect:
        assert [" ".join(row) for row in machine.topology.matrix] == expect["matrix"]


def test_one_machine_in_every_form_is_the_same_machine(tmp_path: Path) -> None:
    document = json.loads((FOLDER / "r730-two-p40" / "capture.json").read_text("utf-8"))
    # A tree has neither NVML's answers nor a device that gives kernel messages.
    for key in ("nvml", "root", "environment", "python"):
        del document[key]
    document["files"]["/var/log/dmesg"] = document["files"].pop("/dev/kmsg")
    tree = build.as_tree(document, tmp_path / "tree")
    forms = {
        "capture.json": json.dumps(document).encode(),
        "capture.json.gz": gzip.compress(json.dumps(document).encode()),
        "snapshot.tar": build.as_tar(tree, mode=""),
        "snapshot.tar.gz": build.as_tar(tree),
        "snapshot.tar.xz": build.as_tar(tree, mode="xz"),
        "flat.tar.bz2": build.as_tar(tree, prefix="", mode="bz2"),
    }
    for name, content in forms.items():
        (tmp_path / name).write_bytes(content)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "capture.json").write_bytes(forms["capture.json"])
    machines: dict[str, Machine] = {
        path.name: probe([str(path)]).machine for path in (tree, folder, *(tmp_path / name for name in forms))
    }
    tree_machine = machines.pop("tree")
    assert tree_machine.catalog_model == "dell-poweredge-r730"
    assert [gpu.slot for gpu in tree_machine.gpus or ()] == ["PCIe Slot 6", "PCIe Slot 4"]
    for name, machine in machines.items():
        assert machine == tree_machine, name
