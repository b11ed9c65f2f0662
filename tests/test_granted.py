"""How many cards a job expects, where nobody else says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from machines.golden import MACHINES
from rules.machines import gpu, machine

from gpucheck.facts import Environment, NvmlGpu
from gpucheck.probing import granted, probe


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "0,1,2"}, (2, "SLURM_GPUS_ON_NODE")),
        ({"SLURM_JOB_GPUS": "4,7"}, (2, "SLURM_JOB_GPUS")),
        ({"SLURM_JOB_GPUS": "4-7"}, None),
        ({"SLURM_JOB_GPUS": ""}, None),
        ({"SLURM_GPUS_ON_NODE": "many"}, None),
        ({"SLURM_JOB_ID": "7"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_what_slurm_says(variables: dict[str, str] | None, wanted: tuple[int, str] | None) -> None:
    expected = granted(machine(gpu(), environment=Environment(variables=variables)))
    assert (None if expected is None else (expected.n, expected.origin)) == wanted


def test_parts_of_a_card_are_no_cards() -> None:
    parted = gpu(nvml=NvmlGpu(index=0, address="0000:04:00.0", mig_enabled=True))
    assert granted(machine(parted, environment=Environment(variables={"SLURM_GPUS_ON_NODE": "7"}))) is None
    assert granted(machine(gpu(), environment=None)) is None


def test_a_job_that_misses_a_card(tmp_path: Path) -> None:
    document = MACHINES["r730-two-p40"]().capture() | {"environment": {"SLURM_GPUS_ON_NODE": "3"}}
    (tmp_path / "c.json").write_text(json.dumps(document))
    report = probe([str(tmp_path / "c.json")])
    assert [(f.severity, f.name) for f in report.findings] == [("error", "gpu-count-mismatch")]
    assert report.counts.expected is not None
    assert report.counts.expected.origin == "SLURM_GPUS_ON_NODE"
    # Who asks for a number means that number.
    assert probe([str(tmp_path / "c.json")], expect_gpus=2).findings == ()
