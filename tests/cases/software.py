"""What hides cards from a process, and the TensorFlow that does not use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from machines.build import GIB, Function, Golden, NvmlCard, nvml, p40, port
from machines.golden import SLOT_6, r730

from cases import THREADS, case

LIBRARIES = {
    "nvidia_cublas_cu12-12.3.4.1.dist-info": "",
    "nvidia_cuda_runtime_cu12-12.3.101.dist-info": "",
    "nvidia_cudnn_cu12-8.9.7.29.dist-info": "",
    "nvidia_cufft_cu12-11.0.12.1.dist-info": "",
    "nvidia_cusolver_cu12-11.5.4.101.dist-info": "",
    "nvidia_cusparse_cu12-12.2.0.103.dist-info": "",
}
BUILD_INFO = "tensorflow/python/platform/build_info.py"


def build_info(cuda: str, cudnn: str, *capabilities: str) -> Mapping[str, str]:
    """What a package with CUDA says of itself."""
    pairs = [
        ("cuda_compute_capabilities", list(capabilities)),
        ("cuda_version", cuda),
        ("cudnn_version", cudnn),
        ("is_cuda_build", True),
        ("is_rocm_build", False),
    ]
    return {BUILD_INFO: f"import collections\nbuild_info = collections.OrderedDict({pairs!r})\n"}


def one_card(ids: str = "10de:1b38", **listed: Any) -> Golden:
    """A healthy card, and NVML that lists it."""
    card = replace(p40(SLOT_6), ids=ids)
    return r730(card, nvml=nvml(NvmlCard(SLOT_6, pci_id=int(ids[5:] + ids[:4], 16), **listed)), environment={})


def eight() -> tuple[Function, ...]:
    """Eight A40, each behind a port of its own."""
    return tuple(replace(p40(f"0000:{4 + n:02x}:00.0", n), ids="10de:2235") for n in range(8))


@case(
    "C031",
    "TensorFlow 2.16 finds no GPU although the same card worked with 2.15",
    THREADS + "tensorflow/tensorflow/issues/63362",
    first="tensorflow-cuda-libraries-missing",
    confidence="likely",
    settled=True,
    says=("2.16.1", "LD_LIBRARY_PATH"),
)
def libraries_not_looked_for() -> Golden:
    build = build_info("12.3", "8", "sm_50", "sm_60", "sm_70", "sm_80", "compute_90")
    return replace(one_card(), python_packages={"tensorflow-2.16.1.dist-info": "", **LIBRARIES, **build})


@case(
    "C032",
    "One Python environment sees the A100, another with the same TensorFlow does not",
    THREADS + "tensorflow/tensorflow/issues/110956",
    first="tensorflow-cuda-libraries-missing",
    confidence="likely",
    settled=False,
    says=("2.20.0", "cuda_version: 12.5.1", "site-packages"),
)
def environment_without_libraries() -> Golden:
    build = build_info("12.5.1", "9", "sm_60", "sm_70", "sm_80", "sm_89", "compute_90")
    made = one_card("10de:20b5", name="NVIDIA A100 80GB PCIe", compute=(8, 0), memory=85_520_809_984, bar1=128 * GIB)
    return replace(made, python_packages={"tensorflow-2.20.0.dist-info": "", **build})


@case(
    "C037",
    "An RTX 5090 is listed, and every kernel fails with CUDA_ERROR_INVALID_PTX",
    THREADS + "tensorflow/tensorflow/issues/90291",
    first="tensorflow-no-kernels-for-gpu",
    confidence="likely",
    settled=True,
    says=("compute capability 12.0", "container of NVIDIA"),
)
def newer_than_the_package() -> Golden:
    build = build_info("12.5.1", "9", "sm_60", "sm_70", "sm_80", "sm_89", "compute_90")
    libraries = {name: "" for name in LIBRARIES if "cudnn" not in name} | {"nvidia_cudnn_cu12-9.3.0.75.dist-info": ""}
    made = one_card("10de:2b85", name="NVIDIA GeForce RTX 5090", compute=(12, 0), memory=34_190_917_632)
    return replace(made, python_packages={"tensorflow-2.20.0.dist-info": "", **libraries, **build})


@case(
    "C038",
    "A card of compute capability 5.0, and a TensorFlow whose code begins at 6.0",
    THREADS + "tensorflow/tensorflow/issues/42467",
    first="tensorflow-no-kernels-for-gpu",
    confidence="certain",
    settled=True,
    says=("compute capability 5.0", "cuda_compute_capabilities", "2.16"),
)
def older_than_the_package() -> Golden:
    build = build_info("12.3", "8", "sm_60", "sm_70", "sm_80", "sm_89", "compute_90")
    made = one_card("10de:1392", name="NVIDIA GeForce GTX 860M", compute=(5, 0), memory=2 * GIB, bar1=256 << 20)
    return replace(made, python_packages={"tensorflow-2.17.0.dist-info": "", **LIBRARIES, **build})


@case(
    "C125",
    '"Could not find cuda drivers on your machine" while nvidia-smi lists the card',
    THREADS + "tensorflow/tensorflow/issues/62328",
    first="tensorflow-cuda-libraries-missing",
    confidence="likely",
    settled=False,
    says=("tensorflow[and-cuda]",),
    absent=("driver-not-installed", "nvml-unavailable"),
)
def the_plain_package() -> Golden:
    build = build_info("12.2", "8", "sm_50", "sm_60", "sm_70", "sm_75", "compute_80")
    return replace(one_card(), python_packages={"tensorflow-2.15.0.post1.dist-info": "", **build})


@case(
    "C130",
    "Slurm gives the job two of eight A40; tools mix up two ways of counting them",
    THREADS + "ollama/ollama/issues/11356",
    first="visibility-limited",
    confidence="certain",
    settled=False,
    says=("SLURM_JOB_GPUS", "2 of 8 cards"),
    absent=("gpu-count-mismatch",),
)
def two_of_eight() -> Golden:
    cards = eight()
    listed = [NvmlCard(card.address, name="NVIDIA A40", pci_id=0x223510DE, compute=(8, 6)) for card in cards[1:3]]
    functions = tuple(port(f"0000:00:{n + 1:02x}.0", card) for n, card in enumerate(cards))
    granted = {"SLURM_JOB_ID": "4711", "SLURM_JOB_GPUS": "1,2", "SLURM_GPUS_ON_NODE": "2"}
    return Golden(
        functions=functions,
        nvml=nvml(*listed),
        device_files=(1, 2),
        environment=granted | {"CUDA_VISIBLE_DEVICES": "0,1"},
    )


@case(
    "C133",
    "Ten GPUs are expected, lspci and NVML agree on eight",
    THREADS + "leptonai/gpud/issues/591",
    first="gpu-count-mismatch",
    confidence="certain",
    settled=True,
    expect_gpus=10,
    says=("10 GPUs are expected and 8",),
)
def eight_of_ten() -> Golden:
    cards = eight()
    functions = tuple(port(f"0000:00:{n + 1:02x}.0", card) for n, card in enumerate(cards))
    listed = (NvmlCard(card.address, name="NVIDIA A40", pci_id=0x223510DE, compute=(8, 6)) for card in cards)
    return Golden(functions=functions, nvml=nvml(*listed), environment={})


@case(
    "C134",
    "A node with four cards is held to be broken, because eight are usual",
    THREADS + "ROCm/cvs/pull/376",
    first=None,
    settled=True,
    absent=("gpu-count-mismatch",),
)
def four_are_four() -> Golden:
    cards = eight()[:4]
    functions = tuple(port(f"0000:00:{n + 1:02x}.0", card) for n, card in enumerate(cards))
    listed = (NvmlCard(card.address, name="NVIDIA A40", pci_id=0x223510DE, compute=(8, 6)) for card in cards)
    return Golden(functions=functions, nvml=nvml(*listed), environment={})
