"""The number of cards from Slurm, and the health check and prolog: against a real Slurm, and what it cannot show
against a stand-in for scontrol."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from slurm import Slurm, unavailable

from gpucheck.checking import node_gres
from gpucheck.facts import Expected
from gpucheck.host import LiveHost

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "examples" / "slurm" / "gpucheck-health.sh"
MACHINES = ROOT / "tests" / "machines"
WHY_NOT = unavailable()


def gpucheck_of(folder: Path, machine: str) -> Path:
    """A gpucheck that looks at a golden machine."""
    place = folder / f"gpucheck-{machine}"
    capture = MACHINES / machine / "capture.json"
    place.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpucheck "$@" --from {capture}\n')
    place.chmod(0o755)
    return place


# --- a real Slurm -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Two nodes with two GPUs each. Node n1 has a card off the bus, NVML of node n2 hangs."""
    folder = tmp_path_factory.mktemp("slurm-gate")
    for node, machine in (("n1", "r730-fell-off-bus"), ("n2", "r730-nvml-timeout")):
        gpucheck_of(folder, machine).rename(folder / f"gpucheck.{node}")
    for name in ("health", "prolog"):
        wrapper = folder / name
        # Slurm starts both with an almost empty environment.
        wrapper.write_text(
            f"#!/bin/sh\n[ -e {folder}/{name}.on ] || exit 0\n"
            f"export SLURM_CONF={folder}/state/slurm.conf GPUCHECK={folder}/gpucheck.$SLURMD_NODENAME\n"
            f"{SCRIPT} 2>> {folder}/{name}.$SLURMD_NODENAME\ncode=$?\n"
            f"echo ended $code >> {folder}/{name}.$SLURMD_NODENAME\nexit $code\n"
        )
        wrapper.chmod(0o755)
    more = f"HealthCheckProgram={folder}/health\nHealthCheckInterval=2\nProlog={folder}/prolog\n"
    with Slurm(folder / "state", gpus=2, more=more) as started:
        yield started


def node(slurm: Slurm, name: str) -> str:
    return slurm.run(["scontrol", "--oneliner", "show", "node", name]).stdout


def until(there: Callable[[], bool], seconds: float = 40) -> bool:
    deadline = time.monotonic() + seconds
    while not there():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


@pytest.mark.xdist_group("slurm")
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
class TestRealSlurm:
    """In this order: a drained node stays drained."""

    def test_the_node_s_gres_is_what_is_expected(self, slurm: Slurm) -> None:
        code = (
            "import os; from gpucheck.checking import node_gres; from gpucheck.host import LiveHost;"
            "print(node_gres(LiveHost(), os.environ).model_dump_json())"
        )
        done = slurm.run([sys.executable, "-c", code], environ={"SLURMD_NODENAME": "n2", "PYTHONPATH": str(ROOT)})
        assert done.stderr == ""
        assert Expected.model_validate_json(done.stdout) == Expected(n=2, origin="Gres of Slurm's node n2")

    def test_a_job_s_part_is_what_is_expected_in_it(self, slurm: Slurm) -> None:
        step = [sys.executable, "-c", "import os; print(os.environ['SLURM_GPUS_ON_NODE'])"]
        assert slurm.run(["srun", "--gres=gpu:1", *step]).stdout == "1\n"

    def test_a_prolog_drains_the_bad_node_and_the_job_does_not_run_there(self, slurm: Slurm, tmp_path: Path) -> None:
        folder = slurm.state.parent
        (folder / "prolog.on").touch()
        submitted = slurm.run(
            ["sbatch", "--requeue", "-w", "n1", "-o", f"{tmp_path}/out", "--wrap", f"touch {tmp_path}/ran"]
        )
        assert submitted.returncode == 0, submitted.stderr
        try:
            assert until(lambda: "DRAIN" in node(slurm, "n1"))
            assert until(lambda: "ended 1" in (folder / "prolog.n1").read_text())
            shown = node(slurm, "n1")
            assert "Reason=gpucheck: Dell Inc. PowerEdge R730 fails: Tesla P40 at 0000:82:00.0" in shown
            assert not (tmp_path / "ran").exists()
        finally:
            slurm.run(["scancel", "--user=root"])
            (folder / "prolog.on").unlink()

    def test_a_health_check_drains_the_bad_node_and_only_that(self, slurm: Slurm) -> None:
        folder = slurm.state.parent
        slurm.run(["scontrol", "update", "NodeName=n1", "State=RESUME"])
        assert until(lambda: "DRAIN" not in node(slurm, "n1"))
        (folder / "health.on").touch()
        try:
            assert until(lambda: "DRAIN" in node(slurm, "n1"))
            assert until(lambda: "ended 0" in (folder / "health.n1").read_text())
            assert until(lambda: (folder / "health.n2").exists() and "ended 0" in (folder / "health.n2").read_text())
        finally:
            (folder / "health.on").unlink()
        assert "Reason=gpucheck: Dell Inc. PowerEdge R730 fails:" in node(slurm, "n1")
        # NVML hangs on n2: exit code 3, which drains nothing.
        assert "n2 was not checked (exit code 3)" in (folder / "health.n2").read_text()
        assert "DRAIN" not in node(slurm, "n2")

    def test_a_reason_that_a_person_gave_is_kept(self, slurm: Slurm) -> None:
        folder = slurm.state.parent
        slurm.run(["scontrol", "update", "NodeName=n1", "State=RESUME"])
        slurm.run(["scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=new fans"])
        environ = {"SLURMD_NODENAME": "n1", "GPUCHECK": str(folder / "gpucheck.n1")}
        done = slurm.run([str(SCRIPT)], environ=environ)
        assert (done.returncode, "drained already" in done.stderr) == (0, True)
        assert "Reason=new fans" in node(slurm, "n1")


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="scontrol is not installed (Debian: slurm-client)")
def test_a_controller_that_does_not_answer_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf = "ClusterName=x\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nMessageTimeout=2\nAuthType=auth/none\n"
    (tmp_path / "slurm.conf").write_text(f"{conf}NodeName=n1\n")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    try:
        answer = node_gres(LiveHost(), {"SLURMD_NODENAME": "n1"})
    except TimeoutError:
        return
    assert answer is None  # scontrol without its authentication does not even try


def test_in_a_job_the_node_s_gres_says_nothing_of_its_part() -> None:
    assert node_gres(LiveHost(), {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}) is None


# --- a stand-in for scontrol --------------------------------------------------------------------


class Stand:
    """A scontrol that writes down what it was asked; the node is in a given state."""

    def __init__(self, folder: Path, state: str = "IDLE", gres: str = "gpu:2") -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "asks-nothing.toml").touch()
        script = folder / "bin" / "scontrol"
        script.write_text(
            f'#!/bin/sh\nshown="NodeName=n1 Gres={gres} State={state} Reason=x"\n'
            f'if [ "$1" = --oneliner ]; then echo "$shown"; exit; fi\n'
            f'printf "%s\\n" "$@" >> {folder}/asked\n'
        )
        script.chmod(0o755)

    def health(self, gpucheck: Path | str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [shutil.which("dash") or "sh", str(SCRIPT)],
            env={"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "SLURMD_NODENAME": "n1",
                 "GPUCHECK": str(gpucheck), "GPUCHECK_POLICY": f"{self.folder}/asks-nothing.toml", **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )  # fmt: skip

    @property
    def asked(self) -> list[str]:
        place = self.folder / "asked"
        return place.read_text().splitlines() if place.exists() else []


@pytest.mark.parametrize(
    ("machine", "drains"), [("r730-two-p40", False), ("r730-nvml-timeout", False), ("hostile-strings", True)]
)
def test_only_a_bad_machine_drains(tmp_path: Path, machine: str, drains: bool) -> None:
    stand = Stand(tmp_path)
    done = stand.health(gpucheck_of(tmp_path, machine))
    assert done.returncode == 0
    assert bool(stand.asked) is drains
    if drains:
        assert stand.asked[:3] == ["update", "NodeName=n1", "State=DRAIN"]
        (reason,) = stand.asked[3:]
        assert reason.startswith("Reason=gpucheck: Evil")
        assert not set(reason) & set("\"'`\\\x1b")
        assert len(reason) < 300


def test_a_prolog_ends_with_1_for_a_bad_machine_only(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    assert stand.health(gpucheck_of(tmp_path, "r730-fell-off-bus"), SLURM_JOB_ID="7").returncode == 1
    assert stand.health(gpucheck_of(tmp_path, "r730-nvml-timeout"), SLURM_JOB_ID="7").returncode == 0


def test_a_node_that_is_drained_already_is_left_alone(tmp_path: Path) -> None:
    stand = Stand(tmp_path, "IDLE+DRAIN")
    assert "drained already" in stand.health(gpucheck_of(tmp_path, "r730-fell-off-bus")).stderr
    assert stand.asked == []


@pytest.mark.parametrize("body", ["exit 1", "echo Traceback; exit 1", "exit 2", "exit 3", "exit 127", "kill -9 $$"])
def test_what_is_no_answer_drains_nothing(tmp_path: Path, body: str) -> None:
    stand = Stand(tmp_path)
    broken = tmp_path / "gpucheck"
    broken.write_text(f"#!/bin/sh\n{body}\n")
    broken.chmod(0o755)
    done = stand.health(broken, SLURM_JOB_ID="7")
    assert (done.returncode, stand.asked) == (0, [])
    assert "n1 was not checked" in done.stderr
    assert stand.health(tmp_path / "none").returncode == 0


@pytest.mark.skipif(Path("/etc/gpucheck.toml").exists(), reason="this machine has a policy")
@pytest.mark.parametrize(
    ("gres", "machine", "drains"),
    [
        ("(null)", "bmc-only", False),
        ("nic:1", "bmc-only", False),
        ("gpu:2", "bmc-only", True),
        ("(null)", "r730-fell-off-bus", True),
    ],
)
def test_a_node_without_gpus_in_its_gres_needs_none(tmp_path: Path, gres: str, machine: str, drains: bool) -> None:
    stand = Stand(tmp_path, gres=gres)
    stand.health(gpucheck_of(tmp_path, machine), GPUCHECK_POLICY="")
    assert bool(stand.asked) is drains


def test_a_policy_that_is_named_and_not_there_is_not_left_out_in_silence(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    done = stand.health(gpucheck_of(tmp_path, "r730-fell-off-bus"), GPUCHECK_POLICY=f"{tmp_path}/none.toml")
    assert (done.returncode, stand.asked) == (0, [])
    assert "n1 was not checked (exit code 2)" in done.stderr
    assert "none.toml: no such file" in done.stderr


def test_a_reason_holds_no_quotes_and_no_second_line(tmp_path: Path) -> None:
    said = tmp_path / "gpucheck"
    said.write_text("#!/bin/sh\ncat << 'EOF'\nnote\nfail  a\"b'c`d\\e \u00e9 $(id)\nfail  more\nEOF\nexit 1\n")
    said.chmod(0o755)
    stand = Stand(tmp_path)
    stand.health(said)
    assert stand.asked == ["update", "NodeName=n1", "State=DRAIN", "Reason=gpucheck: abcde  $(id)"]


def test_a_job_s_part_is_not_taken_for_the_node(tmp_path: Path) -> None:
    seen = tmp_path / "gpucheck"
    seen.write_text(f'#!/bin/sh\nenv > {tmp_path}/env; echo "$@" > {tmp_path}/arguments\n')
    seen.chmod(0o755)
    (tmp_path / "policy").write_text("")
    stand = Stand(tmp_path)
    given = {"SLURM_JOB_GPUS": "0", "SLURM_GPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "7"}
    stand.health(seen, **given, GPUCHECK_POLICY=str(tmp_path / "policy"))
    kept = (tmp_path / "env").read_text()
    assert not [name for name in given if f"{name}=" in kept]
    assert (tmp_path / "arguments").read_text() == f"check --no-smoke --policy {tmp_path}/policy\n"
