from __future__ import annotations

import pytest

from gpucheck.facts import Gpu, Machine, TensorFlowLog
from rules.machines import amd, function, gpu, machine, missing, names, only


def cards(count: int, driver: str = "nvidia") -> list[Gpu]:
    return [gpu(f"0000:{bus:02x}:00.0", driver=driver) for bus in range(0x80, 0x80 + count)]


@pytest.mark.parametrize(
    "line",
    [
        "failed call to cuCtxEnablePeerAccess: CUDA_ERROR_TOO_MANY_PEERS: peer mapping resources exhausted",
        "unable to create StreamExecutor for CUDA:0: failed call to cuDevicePrimaryCtxRetain: "
        "CUDA_ERROR_TOO_MANY_PEERS: peer mapping resources exhausted",
    ],
)
def test_fires_when_cuda_says_so_and_is_told_once(line: str) -> None:
    made = machine(*cards(10), tensorflow_log=TensorFlowLog(lines=(line, line)))
    finding = only("peer-limit-exceeded", made)
    assert (finding.severity, finding.confidence) == ("error", "certain")
    assert [evidence.text for evidence in finding.evidence] == [line]
    assert names(made, counts={"tensorflow": 7}) == ["peer-limit-exceeded"]


def test_fires_as_information_on_ten_cards() -> None:
    finding = only("peer-limit-exceeded", machine(*cards(10)))
    assert (finding.severity, finding.confidence) == ("info", "possible")
    assert finding.message.startswith("10 GPUs")


@pytest.mark.parametrize(
    "quiet",
    [
        machine(*cards(9)),
        machine(*cards(8), amd("0000:04:00.0"), amd("0000:05:00.0")),
        machine(*cards(16), pci=(function("0000:10:00.0", "10de:22a3", 0x068000),)),
    ],
    ids=["nine", "two makers", "NVSwitch"],
)
def test_quiet(quiet: Machine) -> None:
    assert "peer-limit-exceeded" not in names(quiet)


def test_quiet_where_a_driver_of_virtual_machines_holds_them() -> None:
    assert "peer-limit-exceeded" not in names(machine(*cards(12, "vfio-pci")))


def test_unchecked_without_gpus() -> None:
    assert missing("peer-limit-exceeded", machine(gpus=None)) == ("gpus",)
