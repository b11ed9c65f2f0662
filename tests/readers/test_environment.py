from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import tree

from gpucheck import capture
from gpucheck.facts import Environment
from gpucheck.host import LiveHost
from gpucheck.readers import environment


def of(variables: dict[str, str] | None = None, **files: str) -> Environment:
    document: dict[str, Any] = {"schema": capture.SCHEMA, "files": {"/proc/x": "", **files}, "environment": variables}
    read = environment.read(capture.from_json("x.json", document)).environment
    assert read is not None
    return read


def test_of_the_librarys_folders_only_those_of_cuda_are_facts() -> None:
    folders = ("/srv/project-x/lib", "/usr/local/cuda-12/lib64", "/v/site-packages/nvidia/cudnn/lib", "/srv/alice/x")
    read = of({"LD_LIBRARY_PATH": ":".join(folders)})
    assert read.variables == {"LD_LIBRARY_PATH": ":".join(folders[1:3])}
    assert of({"LD_LIBRARY_PATH": "/srv/alice/x"}).get("LD_LIBRARY_PATH") == ""


def test_only_what_matters_is_kept() -> None:
    read = of(
        {
            "CUDA_VISIBLE_DEVICES": "0,1",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "TF_CONFIG": '{"cluster": {"worker": ["10.0.0.7:2222"]}}',
            "TF_VAR_db_password": "hush",
            "TF_TOKEN_app_terraform_io": "hush",
            "SLURM_JOB_ACCOUNT": "project-x",
            "PATH": "/usr/bin",
        }
    )
    assert read.variables == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TF_CONFIG": "set",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    assert (read.get("CUDA_VISIBLE_DEVICES"), read.get("SLURM_JOB_ID")) == ("0,1", None)


def test_set_to_nothing_is_not_unset() -> None:
    assert of({"CUDA_VISIBLE_DEVICES": ""}).get("CUDA_VISIBLE_DEVICES") == ""
    assert of({}).variables == {}


@pytest.mark.parametrize(
    ("variables", "files", "kind"),
    [
        (None, {}, None),
        (None, {"/.dockerenv": ""}, "docker"),
        (None, {"/run/.containerenv": "", "/proc/1/cgroup": "0::/\n"}, "podman"),
        (None, {"/proc/1/cgroup": "4:devices:/docker/ab12\n"}, "docker"),
        (None, {"/proc/1/cgroup": "0::/kubepods.slice/x\n", "/.dockerenv": ""}, "kubernetes"),
        (None, {"/proc/1/cgroup": "0::/lxc/web\n"}, "lxc"),
        (None, {"/proc/1/cgroup": "0::/system.slice/containerd.service/x\n"}, "other"),
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, {}, "kubernetes"),
    ],
)
def test_kind_of_container(variables: dict[str, str] | None, files: dict[str, str], kind: str | None) -> None:
    assert of(variables, **files).container == kind


def test_device_rules_of_a_container() -> None:
    rules = "c 1:3 rwm\nc 195:* m\nc 195:0 rw\nb *:* m\nc *:* m\n"
    read = of(None, **{"/.dockerenv": "", environment.DEVICES: rules})
    assert read.device_rules == ("c 195:* m", "c 195:0 rw", "c *:* m")
    assert of(None, **{"/.dockerenv": "", environment.DEVICES: "a *:* rwm\n"}).device_rules == ("a *:* rwm",)
    # On a host the list is that of the root, whatever group the process is in.
    assert of(None, **{environment.DEVICES: "a *:* rwm\n"}).device_rules is None
    assert of(None, **{"/.dockerenv": ""}).device_rules is None


def test_a_folder_is_no_process(tmp_path: Path) -> None:
    parts = environment.read(tree(tmp_path, {"/proc/x": ""}))
    assert parts.environment == Environment()
    assert [(gap.fact, gap.reason) for gap in parts.gaps] == [("environment.variables", "not-in-input")]


def test_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1\x1b[31m")
    parts = environment.read(LiveHost())
    assert parts.environment is not None
    assert parts.environment.get("CUDA_VISIBLE_DEVICES") == "GPU-1"
    assert parts.gaps == ()
