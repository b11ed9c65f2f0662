"""pip list, printenv and TensorFlow's log, as people paste them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck import dumps
from gpucheck.dumps import software
from gpucheck.facts import Parts
from gpucheck.probing import gather, probe

PIP = """\
Package                      Version
---------------------------- ----------
absl-py                      2.1.0
keras                        3.5.0
nvidia-cudnn-cu12            9.3.0.75
nvidia-ml-py                 12.560.30
tensorflow                   2.18.0
tensorflow-io-gcs-filesystem 0.37.1
"""
FREEZE = "absl-py==2.1.0\nkeras==3.5.0\nnvidia-cudnn-cu12==9.3.0.75\ntensorflow==2.18.0\nfoo @ file:///srv/foo\n"
CONDA = """\
# packages in environment at /opt/conda:
#
# Name                    Version                   Build  Channel
keras                     3.5.0              pyhd8ed1ab_0    conda-forge
nvidia-cudnn-cu12         9.3.0.75                 pypi_0    pypi
tensorflow                2.18.0          cuda120py311ha     conda-forge
"""
ENV = """\
SHELL=/bin/bash
PWD=/srv/me
CUDA_VISIBLE_DEVICES=0,1
LS_COLORS=rs=0:di=01;34
XLA_FLAGS=--xla_gpu_cuda_data_dir=/opt/cuda --other
TF_CONFIG={"cluster": {"worker": ["10.0.0.7:2222"]}}
TF_TOKEN_app_terraform_io=hush
_=/usr/bin/printenv
"""
OLD_LOG = """\
2021-08-06 21:37:12.570693: W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic \
library 'libcudnn.so.8'; dlerror: libcudnn.so.8: cannot open shared object file: No such file or directory
2021-08-06 21:37:12.570728: W tensorflow/core/common_runtime/gpu/gpu_device.cc:1766] Cannot dlopen some GPU libraries.
Skipping registering GPU devices...
"""
NEW_LOG = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1791518552.124373   58405 cpu_feature_guard.cc:227] This TensorFlow binary is optimized.
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow.
I0000 00:00:1791518554.975189   58405 gpu_device.cc:2020] Created device /job:localhost/replica:0/task:0/device:GPU:0 \
with 22510 MB memory:  -> device: 0, name: Tesla P40, pci bus id: 0000:04:00.0, compute capability: 6.1
I0000 00:00:1791518554.975190   58405 gpu_device.cc:2020] Created device /job:localhost/replica:0/task:0/device:GPU:1 \
with 22510 MB memory:  -> device: 1, name: Tesla P40, pci bus id: 0000:82:00.0, compute capability: 6.1
"""


def recognised(text: str) -> list[Parts]:
    found = dumps.recognise(text)
    assert found is not None
    return found


@pytest.mark.parametrize("text", [PIP, FREEZE, CONDA, f"$ pip list\n{PIP}", f"(tf) me@box:~$ pip3 freeze\n{FREEZE}"])
def test_packages(text: str) -> None:
    (parts,) = recognised(text)
    assert parts.software is not None
    assert [(package.name, package.version) for package in parts.software.packages or ()] == [
        ("keras", "3.5.0"),
        ("nvidia-cudnn-cu12", "9.3.0.75"),
        ("tensorflow", "2.18.0"),
    ]
    assert parts.software.packages_complete
    assert parts.software.libraries is None


def test_a_filtered_list_is_an_excerpt() -> None:
    text = "me@box:~$ pip list | grep -i -e tensorflow -e nvidia\nnvidia-ml-py   12.560.30\ntensorflow     2.18.0\n"
    (parts,) = recognised(text)
    assert parts.software is not None
    assert not parts.software.packages_complete
    assert [package.name for package in parts.software.packages or ()] == ["tensorflow"]
    assert recognised("$ pip install foo\nCollecting foo\nSuccessfully installed foo-1.0\n") == [Parts()]


@pytest.mark.parametrize("text", [ENV, f"me@box:~$ printenv\n{ENV}", f"$ env\n{ENV}"])
def test_environment(text: str) -> None:
    (parts,) = recognised(text)
    assert parts.environment is not None
    assert parts.environment.variables == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TF_CONFIG": "set",
        "XLA_FLAGS": "--xla_gpu_cuda_data_dir=/opt/cuda --other",
    }
    assert parts.environment.variables_complete
    assert "hush" not in repr(parts)
    assert "10.0.0.7" not in repr(parts)


def test_a_filtered_environment_is_an_excerpt() -> None:
    (parts,) = recognised("$ env | grep -i cuda\nCUDA_VISIBLE_DEVICES=0\n")
    assert parts.environment is not None
    assert not parts.environment.variables_complete


@pytest.mark.parametrize(
    "line", ["CUDA_VISIBLE_DEVICES=0 python train.py", "export CUDA_VISIBLE_DEVICES=0", "FOO=bar", "cuda=12.4", ""]
)
def test_what_is_no_environment(line: str) -> None:
    assert software.form_of(line) is None


def test_old_log() -> None:
    (parts,) = recognised(OLD_LOG)
    assert parts.tensorflow_log is not None
    lines = parts.tensorflow_log.lines
    assert lines[0].startswith("Could not load dynamic library 'libcudnn.so.8'")
    assert lines[1:] == ("Cannot dlopen some GPU libraries.", "Skipping registering GPU devices...")


def test_new_log_counts_devices(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(NEW_LOG)
    report = probe([str(tmp_path / "train.log")])
    assert report.counts.tensorflow == 2
    assert (report.verdict, report.findings) == ("unknown", ())
    (tmp_path / "train.log").write_text(OLD_LOG)
    assert probe([str(tmp_path / "train.log")]).counts.tensorflow == 0
    (tmp_path / "train.log").write_text(NEW_LOG.partition("Created")[0] + "nothing\n")
    assert probe([str(tmp_path / "train.log")]).counts.tensorflow is None


def test_all_of_it_in_one_paste(tmp_path: Path) -> None:
    text = f"It uses no GPU:\n\n```\n{NEW_LOG}```\n\n(tf) me@box:~$ pip list\n{PIP}me@box:~$ printenv\n{ENV}"
    (tmp_path / "paste.txt").write_text(text)
    parts = gather([str(tmp_path / "paste.txt")])
    assert [[name for name in ("software", "environment", "tensorflow_log") if getattr(p, name)] for p in parts] == [
        ["software"],
        ["environment"],
        ["tensorflow_log"],
    ]


def test_a_capture_and_a_log_are_one_machine(tmp_path: Path) -> None:
    golden = Path(__file__).parent.parent / "machines" / "r730-two-p40" / "capture.json"
    (tmp_path / "train.log").write_text(OLD_LOG)
    report = probe([str(golden), str(tmp_path / "train.log")])
    assert [(f.severity, f.name, f.confidence) for f in report.findings] == [
        ("error", "tensorflow-cuda-libraries-missing", "certain")
    ]
    assert (report.counts.nvml, report.counts.tensorflow) == (2, 0)


def test_a_log_of_which_nothing_is_understood() -> None:
    assert [gap.reason for gap in software.start_up_log("hello\n").gaps] == ["unreadable"]


def test_real_dumps_hold_none_of_these(shared_machines: Path) -> None:
    """No listing of hardware is taken for a list of packages, an environment or a log."""
    for folder in ("lspci", "nvidia-smi", "dmi", "lscpu", "lshw", "dmesg"):
        for file in sorted((shared_machines / folder).rglob("*")):
            if file.is_file() and file.stat().st_size < 4 << 20:
                assert not software.looks_like(file.read_bytes().decode("utf-8", "replace")), file.name


@given(st.text(max_size=300))
def test_anything_is_survived(text: str) -> None:
    software.pip_list(text)
    software.printenv(text)
    software.start_up_log(text)
    software.looks_like(text)
