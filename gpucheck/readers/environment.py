"""What hides cards from a process: environment variables, the container, cgroup device rules.

Only named variables are kept. A prefix would not do: ``TF_VAR_…`` and ``TF_TOKEN_…`` are Terraform's
and hold secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from gpucheck.facts import Environment, Gap, Parts
from gpucheck.host import Host
from gpucheck.text import say

Container = Literal["docker", "podman", "kubernetes", "lxc", "other"]

WANTED = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "SLURM_JOB_ID",
        "SLURM_JOB_GPUS",
        "SLURM_STEP_GPUS",
        "SLURM_GPUS",
        "SLURM_GPUS_ON_NODE",
        "SLURM_GPUS_PER_NODE",
        "SLURM_GPUS_PER_TASK",
        "SLURM_NTASKS",
        "SLURM_JOB_NUM_NODES",
        "NCCL_P2P_DISABLE",
        "LD_LIBRARY_PATH",
        "XLA_FLAGS",
        "TF_XLA_FLAGS",
        "TF_MIN_GPU_MULTIPROCESSOR_COUNT",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "TF_GPU_ALLOCATOR",
        "TF_USE_LEGACY_KERAS",
        "TF_CPP_MIN_LOG_LEVEL",
    }
)
"""Variables whose values are kept."""
FLAGS = frozenset({"TF_CONFIG", "KUBERNETES_SERVICE_HOST"})
"""Of these only that they are set: they name hosts and addresses."""
IS_SET = "set"

DEVICES = "/sys/fs/cgroup/devices/devices.list"
"""Of cgroup version 1. In a container this is its own list; outside of one it is the root's, which allows all."""
_MARKS: tuple[tuple[str, Container], ...] = (("/.dockerenv", "docker"), ("/run/.containerenv", "podman"))
_CGROUP_WORDS: tuple[tuple[str, Container], ...] = (
    ("kubepods", "kubernetes"),
    ("docker", "docker"),
    ("libpod", "podman"),
    ("lxc", "lxc"),
    ("containerd", "other"),
)
_RULE = re.compile(r"a \*:\*|[ac] (?:\*|195):\S+ [rwm]+|a")
"""Rules about every device, or about NVIDIA's, whose major number is 195."""


def wanted(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter, of all that are set."""
    kept = {name: value for name, value in variables.items() if name in WANTED}
    return dict(sorted((kept | {name: IS_SET for name in FLAGS if name in variables}).items()))


def kept(variables: Mapping[str, str]) -> dict[str, str]:
    """Of the variables that matter what is a fact: of LD_LIBRARY_PATH only folders of CUDA and NVIDIA, for
    the others name people, projects and hosts."""
    facts = wanted(variables)
    if "LD_LIBRARY_PATH" in facts:
        folders = facts["LD_LIBRARY_PATH"].split(":")
        facts["LD_LIBRARY_PATH"] = ":".join(folder for folder in folders if re.search(_OF_CUDA, folder))
    return facts


_OF_CUDA = r"(?i)cuda|cudnn|nvidia|nccl"


def read(host: Host) -> Parts:
    """``environment`` of a machine."""
    gaps: list[Gap] = []
    variables: dict[str, str] | None = None
    try:
        variables = kept(host.environment())
    except FileNotFoundError:
        how = say("What was given does not hold it: run gpucheck probe where the program runs, or add printenv.")
        gaps.append(Gap(fact="environment.variables", reason="not-in-input", how=how))
    in_pod = variables is not None and "KUBERNETES_SERVICE_HOST" in variables
    inside: Container | None = "kubernetes" if in_pod else container(host)
    environment = Environment(
        variables=variables,
        container=inside,
        device_rules=_device_rules(host) if inside is not None else None,
    )
    return Parts(origin=host.name, environment=environment, gaps=tuple(gaps))


def container(host: Host) -> Container | None:
    """The engine whose container this is, by the marks that engines leave; None outside of one."""
    try:
        cgroups = host.text("/proc/1/cgroup")
    except OSError:
        cgroups = ""
    named = next((kind for word, kind in _CGROUP_WORDS if word in cgroups), None)
    marked = next((kind for path, kind in _MARKS if host.exists(path)), None)
    return named if named == "kubernetes" else marked or named


def _device_rules(host: Host) -> tuple[str, ...] | None:
    try:
        lines = host.text(DEVICES).splitlines()
    except OSError:
        return None
    return tuple(line.strip() for line in lines if _RULE.match(line.strip()))
