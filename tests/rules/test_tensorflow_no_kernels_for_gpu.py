import pytest

from gpucheck.catalog import load
from gpucheck.facts import Machine
from gpucheck.rules._tensorflow import code_for, versions
from rules.machines import found, machine, missing, names, only
from rules.software import CUDA_12, SONAMES, WHEELS, card, log, software, trains

NAME = "tensorflow-no-kernels-for-gpu"
NEW = "TensorFlow was not built with CUDA kernel binaries compatible with compute capability 12.0. CUDA kernels will be"
OLD = (
    "Ignoring visible gpu device (device: 0, name: GeForce GTX 660 Ti, pci bus id: 0000:05:00.0, compute capability: "
    "3.0) with Cuda compute capability 3.0. The minimum required Cuda capability is 3.5."
)
AMD = (
    "Ignoring visible gpu device (device: 0, name: Radeon RX 7900 XTX, pci bus id: 0000:0c:00.0) with AMDGPU version "
    ": gfx1100. The supported AMDGPU versions are gfx1030, gfx900."
)


@pytest.mark.parametrize(
    ("capability", "severity", "confidence"),
    [
        ("3.7", "warning", "certain"),
        ("5.2", "warning", "certain"),
        ("10.0", "warning", "likely"),
        ("12.0", "warning", "likely"),
    ],
)
def test_fires(capability: str, severity: str, confidence: str) -> None:
    finding = only(NAME, trains(card(capability)))
    assert (finding.severity, finding.confidence, finding.subject) == (severity, confidence, "0000:04:00.0")
    assert any("cuda_compute_capabilities: sm_60" in e.text for e in finding.evidence)
    assert any(e.text == f"compute capability {capability}" for e in finding.evidence)


@pytest.mark.parametrize("capability", ["6.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0"])
def test_quiet(capability: str) -> None:
    assert names(trains(card(capability))) == []


def test_ptx_alone_is_told() -> None:
    build = CUDA_12.model_copy(update={"compute_capabilities": ("sm_75", "compute_80")})
    finding = only(NAME, trains(card("9.0"), build=build))
    assert (finding.severity, finding.confidence) == ("info", "likely")


def test_each_reason_once() -> None:
    made = trains(card("3.7"), card("12.0", "0000:82:00.0"), card("8.6", "0000:83:00.0"))
    assert [f.subject for f in found(made)] == ["0000:04:00.0", "0000:82:00.0"]


def test_the_catalog_knows_the_official_package() -> None:
    made = machine(card("5.2"), software=software({"tensorflow": "2.17.1", **WHEELS}, None, libraries=SONAMES))
    assert names(made) == []
    assert only(NAME, made, catalog=load()).severity == "warning"
    older = machine(card("5.2"), software=software({"tensorflow": "2.15.1", **WHEELS}, None, libraries=SONAMES))
    assert names(older, catalog=load()) == []
    rebuilt = software({"tensorflow": "2.17.0+nv25.02", **WHEELS}, None, libraries=SONAMES)
    assert names(machine(card("5.2"), software=rebuilt), catalog=load()) == []


def test_the_catalog_knows_the_card() -> None:
    made = trains(card(None, catalog_gpu="nvidia-tesla-k80"))
    assert names(made) == []
    assert only(NAME, made, catalog=load()).confidence == "certain"


@pytest.mark.parametrize(
    ("lines", "severity", "subject"),
    [
        ((NEW,), "warning", "TensorFlow"),
        ((NEW, "'cuModuleLoadData(&module, data)' failed with 'CUDA_ERROR_INVALID_PTX'"), "error", "TensorFlow"),
        (("no kernel image is available for execution on the device",), "error", "TensorFlow"),
        ((OLD,), "error", "0000:05:00.0"),
        ((AMD,), "error", "0000:0c:00.0"),
    ],
)
def test_the_log_says_it(lines: tuple[str, ...], severity: str, subject: str) -> None:
    finding = only(NAME, Machine(tensorflow_log=log(*lines)))
    assert (finding.severity, finding.subject) == (severity, subject)
    assert [e.text for e in finding.evidence] == list(lines)


def test_code() -> None:
    assert code_for((6, 1), ["sm_60"]) == "machine"
    assert code_for((6, 0), ["sm_61"]) == "none"
    assert code_for((7, 0), ["sm_60"]) == "none"
    assert code_for((12, 0), ["sm_90", "compute_90"]) == "ptx"
    assert code_for((9, 0), ["sm_90a"]) == "machine"
    assert code_for((6, 1), ["gfx90a"]) is None
    assert code_for((6, 1), []) == "none"


def test_versions() -> None:
    assert versions("9.10.2.21") < versions("9.11")
    assert versions("2.17.0+nv25.02") == (2, 17, 0)
    assert versions(None) == ()


def test_unchecked_without_facts() -> None:
    assert missing(NAME, trains(card(None))) == ("gpus.0000:04:00.0.nvml.compute_capability",)
    assert missing(NAME, machine(card(), software=None)) == ("software.packages",)
