"""A real Slurm of two nodes on this machine: srun gpucheck smoke --cluster slurm."""

from __future__ import annotations

import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from slurm import Slurm, unavailable

from gpucheck.smoke.report import SmokeReport

SCRIPT = Path(__file__).with_name("cluster_worker.py")
WHY_NOT = "needs the extra [smoke]" if find_spec("tensorflow") is None else unavailable()

# One Slurm serves all of them.
pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with Slurm(tmp_path_factory.mktemp("slurm") / "state") as started:
        yield started


def report(folder: Path, rank: int) -> SmokeReport:
    return SmokeReport.model_validate_json((folder / f"{rank}.json").read_text())


def test_two_nodes_train_exactly(slurm, tmp_path):
    """The job has two nodes and two tasks each, the step one task on each: only the step counts."""
    srun = f"srun -N2 -n2 --ntasks-per-node=1 --output={tmp_path}/%t.json --error={tmp_path}/%t.txt"
    step = f"{srun} {sys.executable} -m gpucheck smoke --devices cpu:1 --cluster slurm --json --steps 4"
    ended = slurm.run(["salloc", "-N2", "-n4", "sh", "-c", step], timeout=120)
    assert ended.returncode == 0, ended.stderr
    documents = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    for rank, document in enumerate(documents):
        assert (document["verdict"], document["findings"], document["global_batch"]) == ("pass", [], 32)
        cluster = document["cluster"]
        workers = json.loads(cluster["tf_config"])["cluster"]["worker"]
        assert [worker.partition(":")[0] for worker in workers] == ["n1", "n2"]
        assert len({worker.partition(":")[2] for worker in workers}) == 1
        assert f"10.77.0.{rank + 1}," in cluster["listens"][0]
        assert cluster["seen"]["SLURM_STEP_NODELIST"] == "n[1-2]"
        assert cluster["seen"]["SLURM_STEP_TASKS_PER_NODE"] == "1(x2)"
    assert [(host["host"], host["verdict"]) for host in documents[0]["hosts"]] == [("n1", "pass"), ("n2", "pass")]
    assert documents[0]["network"]["slowest"] in ("worker 0 (n1)", "worker 1 (n2)")


def test_a_worker_killed_in_the_middle_is_named(slurm, tmp_path):
    """Even without --kill-on-bad-exit the other one ends."""
    command = ["srun", "-N2", "-n2", sys.executable, str(SCRIPT), "parent-killed", "slurm", "-", str(tmp_path)]
    started = time.monotonic()
    ended = slurm.run([*command, "4000", "60"], timeout=120)
    assert time.monotonic() - started < 60
    assert ended.returncode != 0
    assert not (tmp_path / "1.json").exists()
    (finding,) = report(tmp_path, 0).findings
    assert (finding.name, finding.severity, finding.subject) == ("worker-lost", "error", "n2")
    assert finding.message == "Worker 1 (n2) was lost: its process ended, or it fell silent."
    assert "srun --kill-on-bad-exit" in finding.remedy[-1]
    assert report(tmp_path, 0).exit_code == 1


def test_a_worker_that_never_starts_is_named_and_the_step_ends(slurm, tmp_path):
    worker = f"exec {sys.executable} {SCRIPT} none slurm - {tmp_path} 4 4"
    started = time.monotonic()
    ended = slurm.run(
        ["srun", "-K", "-N2", "-n2", "sh", "-c", f"if [ $SLURM_PROCID = 1 ]; then exec sleep 100; fi; {worker}"],
        timeout=60,
    )
    assert time.monotonic() - started < 30
    assert ended.returncode != 0
    (finding,) = report(tmp_path, 0).findings
    assert (finding.name, finding.subject) == ("worker-lost", "n2")
    assert "never came: nobody answered at n2:" in finding.message


def test_outside_of_a_step_it_says_what_to_do(slurm):
    command = f"{sys.executable} -m gpucheck smoke --cluster slurm --devices cpu:1"
    ended = slurm.run(["salloc", "-N2", "sh", "-c", command], timeout=60)
    assert ended.returncode == 2
    assert "in a Slurm job, but not as a task of a step" in ended.stderr
    assert "srun -K" in ended.stderr
