"""Metrics: read by promtool, and scraped from a real node_exporter on loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpucheck.checking import check
from gpucheck.cli import run
from gpucheck.policy import Policy
from gpucheck.render import prometheus

MACHINES = Path(__file__).resolve().parent.parent / "machines"
PROMTOOL = shutil.which("promtool")
EXPORTER = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
NAMES = sorted(path.parent.name for path in MACHINES.glob("*/capture.json"))


def metrics(name: str) -> str:
    return prometheus.check(check([str(MACHINES / name / "capture.json")], policy=Policy()))


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample; the same one twice would be refused by node_exporter."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def key(name: str, /, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize("name", NAMES)
def test_promtool_finds_no_fault(name: str) -> None:
    done = subprocess.run(
        [str(PROMTOOL), "check", "metrics"], input=metrics(name), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_values() -> None:
    found = samples(metrics("r730-fell-off-bus"))
    first = {"address": "0000:04:00.0", "slot": "PCIe Slot 6", "name": "Tesla P40"}
    second = {"address": "0000:82:00.0", "slot": "PCIe Slot 4", "name": "Tesla P40"}
    assert found[key("gpucheck_verdict", verdict="fail")] == 1
    assert found[key("gpucheck_verdict", verdict="pass")] == found[key("gpucheck_verdict", verdict="unknown")] == 0
    assert found[key("gpucheck_gpu_healthy", **first)] == 1
    assert found[key("gpucheck_gpu_healthy", **second)] == 0
    assert found[key("gpucheck_gpu_link_lanes", **first)] == 16
    assert key("gpucheck_gpu_memory_bytes", **second) not in found  # not read is no 0
    assert found[key("gpucheck_gpus", level="pci")] == 2
    assert found[key("gpucheck_gpus", level="expected")] == 1
    labels = {"name": "gpu-fell-off-bus", "code": "GC103", "severity": "error", "subject": "0000:82:00.0"}
    assert found[key("gpucheck_finding", **labels)] == 1
    unread = samples(metrics("r730-nvml-timeout"))
    assert unread[key("gpucheck_verdict", verdict="unknown")] == 1
    assert key("gpucheck_gpus", level="nvml") not in unread
    assert key("gpucheck_gpu_healthy", **first) not in unread  # NVML hung: nobody knows


def test_hostile_labels_come_back_as_they_are() -> None:
    report = check([str(MACHINES / "hostile-strings" / "capture.json")], policy=Policy())
    wanted = {(gpu.address, gpu.slot, gpu.name) for gpu in report.probe.machine.gpus or ()}
    got = {
        tuple(dict(labels)[label] for label in ("address", "slot", "name"))
        for name, labels in samples(prometheus.check(report))
        if name == "gpucheck_gpu_healthy"
    }
    assert got == wanted
    quoted = report.probe.machine.model_copy(
        update={"gpus": tuple(g.model_copy(update={"name": 'a"b\\n\\'}) for g in report.probe.machine.gpus or ())}
    )
    odd = report.model_copy(update={"probe": report.probe.model_copy(update={"machine": quoted})})
    assert {dict(labels)["name"] for name, labels in samples(prometheus.check(odd)) if name == "gpucheck_gpu_healthy"} \
        == {'a"b\\n\\'}  # fmt: skip


def test_the_file_is_replaced_whole_and_others_may_read_it(tmp_path: Path) -> None:
    place = tmp_path / "gpucheck.prom"
    arguments = ["check", "--from", str(MACHINES / "r730-two-p40" / "capture.json"), "--prometheus", str(place)]
    mask = os.umask(0o022)
    try:
        assert run(arguments) == 0
        before = place.stat().st_ino
        with place.open() as old:
            assert run(arguments) == 0
            assert "gpucheck_verdict" in old.read()  # who has it open still reads the whole of the old one
    finally:
        os.umask(mask)
    assert place.stat().st_ino != before
    assert place.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["gpucheck.prom"]


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[str]:
    """A real node_exporter that reads the folder ``textfile``; its address."""
    if EXPORTER is None:
        pytest.skip("node_exporter is not installed (Debian: prometheus-node-exporter)")
    (tmp_path / "textfile").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [EXPORTER, f"--web.listen-address={address}", "--collector.disable-defaults", "--collector.textfile",
               f"--collector.textfile.directory={tmp_path / 'textfile'}"]  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://{address}/metrics"
    finally:
        process.kill()
        process.wait()


def scraped(address: str) -> str:
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                text: bytes = answer.read()
                return text.decode()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.mark.parametrize("name", ["r730-fell-off-bus", "hostile-strings"])
def test_node_exporter_serves_them(tmp_path: Path, exporter: str, name: str) -> None:
    place = tmp_path / "textfile" / "gpucheck.prom"
    assert run(["check", "--from", str(MACHINES / name / "capture.json"), "--prometheus", str(place)]) == 1
    got = samples(scraped(exporter))
    assert got[key("node_textfile_scrape_error")] == 0
    ours = samples(place.read_text())
    assert ours
    assert {name: got.get(name) for name in ours} == ours
