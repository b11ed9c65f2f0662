"""collect through a real Slurm of two nodes, and what sinfo may say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm import Slurm, unavailable

from gpucheck import probe
from gpucheck.fleet.report import report
from gpucheck.fleet.slurm import Node, argv, nodes

needs_slurm = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
# One Slurm serves all of them.
pytestmark = pytest.mark.xdist_group("slurm")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm") / "state") as started:
        yield started


@pytest.fixture
def slurm(cluster: Slurm) -> Slurm:
    until(lambda: cluster.run(["sinfo", "-h", "-o", "%T %D"]).stdout == "idle 2\n")
    return cluster


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def collect(slurm: Slurm, folder: Path, *more: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "gpucheck", "fleet", "collect", str(folder), "--slurm", "--json", *more]
    done = slurm.run(command, timeout=120)
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["exit_code"] == done.returncode
    return document


def reasons(document: dict[str, Any]) -> dict[str, str]:
    return {one["host"]: one["reason"] for one in document["unseen"]}


@needs_slurm
def test_free_nodes_are_asked_and_a_drained_one_is_told(slurm: Slurm, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    both = collect(slurm, folder)
    assert both["collected"] == ["n1", "n2"], both["unseen"]
    assert both["exit_code"] == 0
    for node in ("n1", "n2"):
        (file,) = (folder / node).iterdir()
        assert probe([str(file)]).machine.memory_bytes

    slurm.run(["scontrol", "update", "nodename=n2", "state=drain", "reason=fan 3 fails"])
    one = collect(slurm, folder)
    slurm.run(["scontrol", "update", "nodename=n2", "state=resume"])
    assert one["collected"] == ["n1"]
    assert reasons(one) == {"n2": "Slurm: drained (fan 3 fails)"}
    assert one["exit_code"] == 3
    head = report(str(folder)).head
    assert head.totals.hosts == 1
    assert [(unseen.host, unseen.reason) for unseen in head.unseen] == [("n2", "Slurm: drained (fan 3 fails)")]


@needs_slurm
def test_a_busy_node_is_told_and_not_queued_for(slurm: Slurm, tmp_path: Path) -> None:
    inside = slurm._inside("ctl")
    job = ["srun", "--nodelist=n2", "--exclusive", "--nodes=1", "sleep", "300"]
    with subprocess.Popen([*inside, *job], env=slurm.environ, stderr=subprocess.DEVNULL) as busy:
        try:
            until(lambda: slurm.run(["squeue", "-h", "-t", "R", "-o", "%N"]).stdout == "n2\n")
            document = collect(slurm, tmp_path / "out")
            assert document["collected"] == ["n1"]
            assert reasons(document)["n2"] == "Slurm: allocated"
            assert slurm.run(["squeue", "-h", "-o", "%j"]).stdout.split() == ["sleep"]
        finally:
            busy.terminate()


@needs_slurm
def test_a_node_that_is_full_by_the_time_it_is_asked(slurm: Slurm, tmp_path: Path) -> None:
    """Mixed by sinfo, and yet without room for what is asked."""
    document = collect(slurm, tmp_path / "out", "--srun=--cpus-per-task=64")
    assert set(reasons(document)) == {"n1", "n2"}
    assert all(reason.startswith("busy: ") for reason in reasons(document).values()), document["unseen"]
    assert not list((tmp_path / "out").glob("*/*"))
    assert not slurm.run(["squeue", "-h"]).stdout


@needs_slurm
def test_a_job_that_takes_too_long_is_ended(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "bin"
    slow.mkdir()
    (slow / "mktemp").write_text("#!/bin/sh\nsleep 300\n")
    (slow / "mktemp").chmod(0o755)
    monkeypatch.setitem(slurm.environ, "PATH", f"{slow}:{slurm.environ['PATH']}")
    document = collect(slurm, tmp_path / "out", "--timeout", "5")
    assert set(reasons(document).values()) == {"no answer within 5 s"}
    until(lambda: not slurm.run(["squeue", "-h"]).stdout)


def test_states_of_nodes() -> None:
    lines = [
        "a|batch|idle|none",
        "a|gpu*|idle|none",
        "b|gpu*|mixed-|none",
        "c|gpu*|idle*|not responding",
        "d|gpu*|drained|NHC: \x1b[31mgpu lost",
        "e|gpu*|allocated|none",
        "f|gpu*|idle~|none",
        "g|gpu*|mixed@|reboot",
        "h|old|down|none",
        "h|gpu*|idle|none",
        "",
        "half a line",
    ]
    free, others = nodes(lines)
    assert free == [Node("a", "gpu"), Node("b", "gpu"), Node("h", "gpu")]
    assert {one.host: one.reason for one in others} == {
        "c": "Slurm: idle* (not responding)",
        "d": "Slurm: drained (NHC: gpu lost)",
        "e": "Slurm: allocated",
        "f": "Slurm: idle~",
        "g": "Slurm: mixed@ (reboot)",
    }


def test_srun_waits_for_its_node_seconds_only() -> None:
    made = argv(Node("n1", "p"), timeout=90, sudo=False, more="--account=it '--comment=a b'")
    assert made[:3] == ["srun", "--nodelist=n1", "--partition=p"]
    assert {"--nodes=1", "--ntasks=1", "--immediate=10", "--time=2", "--account=it", "--comment=a b"} <= set(made)
    assert made[-4:-2] == ["sh", "-c"]
    assert "sudo" not in made[-2]
    assert "sudo -n sh" in argv(Node("n1", "p"), timeout=90, sudo=True, more=None)[-2]
