"""Machines with a TensorFlow, for the tests of its rules."""

from __future__ import annotations

from typing import Any

from gpucheck.facts import Gpu, Machine, NvmlGpu, Package, Software, TensorFlowBuild, TensorFlowLog
from rules.machines import gpu, machine

CUDA_12 = TensorFlowBuild(
    cuda=True,
    rocm=False,
    cuda_version="12.5.1",
    cudnn_version="9",
    compute_capabilities=("sm_60", "sm_70", "sm_80", "sm_89", "compute_90"),
)
CPU_ONLY = TensorFlowBuild(cuda=False, rocm=False)
WHEELS = {
    "nvidia-cublas-cu12": "12.5.3.2",
    "nvidia-cuda-runtime-cu12": "12.5.82",
    "nvidia-cudnn-cu12": "9.3.0.75",
    "nvidia-cufft-cu12": "11.2.3.61",
    "nvidia-cusolver-cu12": "11.6.3.83",
    "nvidia-cusparse-cu12": "12.5.1.3",
}
"""What tensorflow[and-cuda] brings, as far as TensorFlow opens it at its start."""
SONAMES = (
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcudnn.so.9",
)


def card(capability: str | None = "6.1", address: str = "0000:04:00.0", **known: Any) -> Gpu:
    """A healthy card whose compute capability NVML gives."""
    return gpu(address, nvml=NvmlGpu(index=0, address=address, compute_capability=capability), **known)


def software(packages: dict[str, str], build: TensorFlowBuild | None = CUDA_12, **known: Any) -> Software:
    listed = tuple(Package(name=name, version=version) for name, version in packages.items())
    found = {"python": "3.11.7", "folders": ("/opt/p/site-packages",), "libraries": (), **known}
    return Software(packages=listed, build=build, **found)


def trains(*cards: Gpu, packages: dict[str, str] | None = None, **known: Any) -> Machine:
    """A machine with TensorFlow 2.21 and its CUDA libraries."""
    build = known.pop("build", CUDA_12)
    libraries = known.pop("libraries", ())
    found = software({"tensorflow": "2.21.0", **WHEELS} if packages is None else packages, build, libraries=libraries)
    return machine(*(cards or (card(),)), **{"software": found, **known})


def log(*lines: str) -> TensorFlowLog:
    return TensorFlowLog(lines=lines)
