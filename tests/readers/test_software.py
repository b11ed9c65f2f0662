from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpucheck import capture
from gpucheck.facts import Package, Parts, Software, TensorFlowBuild
from gpucheck.host import LiveHost, Python
from gpucheck.packages import BUILD_INFO
from gpucheck.readers import software

HERE = "/opt/me/venv/lib/python3.11/site-packages"
CUDA = """\
import collections

build_info = collections.OrderedDict([('cpu_compiler', '/usr/lib/llvm-18/bin/clang'), \
('cuda_compute_capabilities', ['sm_60', 'sm_70', 'compute_90']), ('cuda_version', '12.5.1'), \
('cudnn_version', '9'), ('is_cuda_build', True), ('is_rocm_build', False), ('is_tensorrt_build', False)])
"""
CPU = "import collections\nbuild_info = collections.OrderedDict([('is_cuda_build', False), ('is_rocm_build', False)])\n"


def read(*names: str, python: Any = "default", **files: Any) -> Parts:
    document = {
        "schema": capture.SCHEMA,
        "files": {"/proc/x": "", **{f"{HERE}/{name}": "" for name in names}, **files},
        "python": {"version": "3.11.7", "folders": [HERE]} if python == "default" else python,
        "environment": {"LD_LIBRARY_PATH": "/opt/cuda/lib64:relative::/opt/gone"},
    }
    return software.read(capture.from_json("x.json", document))


def known(parts: Parts) -> Software:
    assert parts.software is not None
    return parts.software


def test_packages_from_the_names_of_folders() -> None:
    found = known(
        read(
            "tensorflow-2.21.0.dist-info",
            "tensorflow_hub-0.16.1.dist-info",
            "nvidia_cudnn_cu12-9.10.2.21.dist-info",
            "nvidia_ml_py-13.615.71.dist-info",
            "Keras-3.15.1.dist-info",
            "tf_keras-2.21.0.dist-info",
            "numpy-2.4.6.dist-info",
            "tensorflow",
            "nvidia",
        )
    )
    assert [(package.name, package.version) for package in found.packages or ()] == [
        ("keras", "3.15.1"),
        ("nvidia-cudnn-cu12", "9.10.2.21"),
        ("tensorflow", "2.21.0"),
        ("tf-keras", "2.21.0"),
    ]
    assert found.version("tf-nightly", "tensorflow") == "2.21.0"
    assert found.version("tensorflow-cpu") is None
    assert (found.python, found.folders) == ("3.11.7", (HERE,))


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("tf_nightly-2.23.0.dev20261026.dist-info", "tf-nightly"),
        ("tensorflow_cpu-2.21.0.dist-info", "tensorflow-cpu"),
        ("tensorflow_rocm-2.14.0.dist-info", "tensorflow-rocm"),
        ("tensorflow-2.17.0+nv25.02.dist-info", "tensorflow"),
        ("tensorflow-2.4.0-py3.8.egg-info", None),
        ("tensorflow-2.4.0.egg-info", "tensorflow"),
        ("nvidia_cuda_runtime_cu11-11.8.89.dist-info", "nvidia-cuda-runtime-cu11"),
        ("nvidia_cublas-13.1.0.3.dist-info", "nvidia-cublas"),
        ("keras_preprocessing-1.1.2.dist-info", None),
    ],
)
def test_which_packages_matter(folder: str, name: str | None) -> None:
    assert [package.name for package in software.packages([folder])] == ([name] if name else [])


def test_the_first_folder_wins(tmp_path: Path) -> None:
    document = {
        "schema": capture.SCHEMA,
        "files": {"/a/site-packages/keras-3.1.0.dist-info": "", "/b/site-packages/keras-2.9.0.dist-info": ""},
        "python": {"version": None, "folders": ["/gone/site-packages", "/a/site-packages", "/b/site-packages"]},
    }
    found = known(software.read(capture.from_json("x.json", document)))
    assert found.packages == (Package(name="keras", version="3.1.0"),)


def test_build_information() -> None:
    parts = read("tensorflow-2.21.0.dist-info", **{f"{HERE}/{BUILD_INFO}": CUDA, "/etc/ld.so.cache": ""})
    assert known(parts).build == TensorFlowBuild(
        cuda=True,
        rocm=False,
        cuda_version="12.5.1",
        cudnn_version="9",
        compute_capabilities=("sm_60", "sm_70", "compute_90"),
    )
    assert parts.gaps == ()
    assert software.parse_build_info(CPU) == TensorFlowBuild(cuda=False, rocm=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "build_info = 5\n",
        "import os\nbuild_info = collections.OrderedDict(os.system('true'))\n",
        "build_info = f([1, 2])\n",
        "build_info = f(((((\n",
        "\0",
        "build_info = f(" + "[" * 5000,
    ],
)
def test_build_information_is_read_and_never_run(text: str) -> None:
    parts = read("tensorflow-2.21.0.dist-info", **{f"{HERE}/{BUILD_INFO}": text, "/etc/ld.so.cache": ""})
    assert known(parts).build is None
    assert [gap.fact for gap in parts.gaps] == ["software.build"]


def test_libraries_of_the_loader_and_of_the_path() -> None:
    cache = b"glibc-ld.so.cache1.1\0libcudart.so.12\0/usr/lib/libcudart.so.12\0libcublasLt.so.12\0libcuda.so.1\0\xff"
    import base64

    parts = read(
        "tensorflow-2.21.0.dist-info",
        **{
            "/etc/ld.so.cache": {"base64": base64.b64encode(cache).decode()},
            "/opt/cuda/lib64/libcudnn.so.9.12.0": "",
            "/opt/cuda/lib64/libcudnn.so": "",
            "/opt/cuda/lib64/libother.so.1": "",
            "/opt/me/venv/lib/libcufft.so.11": "",
        },
    )
    assert known(parts).libraries == (
        "libcublasLt.so.12",
        "libcudart.so.12",
        "libcudnn.so.9.12.0",
        "libcufft.so.11",
    )
    # Without a TensorFlow nobody wants them, and the folders are not even listed.
    assert known(read("keras-3.0.dist-info")).libraries is None


def test_folders_of_libraries() -> None:
    path = {"LD_LIBRARY_PATH": "/x/lib/:/sys/y:rel:/x/lib:" + ":".join(f"/{n}" for n in range(100))}
    folders = software.library_folders(path, Python(None, ("/opt/c/lib/python3.11/site-packages", "/usr/lib/x")))
    assert folders[0] == "/x/lib"
    assert folders[-1] == "/opt/c/lib"
    assert len(folders) < 40
    assert software.library_folders(None, None) == ()


def test_where_no_python_is_named_nothing_is_said() -> None:
    assert read("tensorflow-2.21.0.dist-info", python=None).software is None


def test_a_folder_that_cannot_be_read() -> None:
    parts = read(**{HERE: {"error": "EACCES"}})
    assert known(parts).packages is None
    assert [(gap.fact, gap.reason) for gap in parts.gaps] == [("software.packages", "needs-root")]


def test_this_python_costs_little_and_imports_nothing() -> None:
    before = set(sys.modules)
    start = time.perf_counter()
    parts = software.read(LiveHost())
    assert time.perf_counter() - start < 0.5
    assert "tensorflow" not in set(sys.modules) - before
    assert known(parts).python == sys.version.partition(" ")[0]
    assert known(parts).packages is not None
