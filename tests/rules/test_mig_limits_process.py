from __future__ import annotations

import pytest

from gpucheck.facts import Nvml
from rules.machines import blind, gpu, machine, missing, names, only, seen


@pytest.mark.parametrize(("count", "words"), [(1, "one MIG device"), (4, "4 MIG devices"), (None, "one of its parts")])
def test_fires_for_information_on_a_partitioned_card(count: int | None, words: str) -> None:
    finding = only("mig-limits-process", machine(gpu(nvml=seen(mig_enabled=True, mig_devices=count))))
    assert (finding.severity, finding.confidence, finding.subject) == ("info", "certain", "0000:04:00.0")
    assert words in finding.message
    assert "-mig 0" in finding.remedy[0]


def test_a_partitioned_card_without_parts_is_a_warning() -> None:
    finding = only("mig-limits-process", machine(gpu(nvml=seen(mig_enabled=True, mig_devices=0))))
    assert (finding.severity, finding.evidence[1].text) == ("warning", "MIG devices: 0")
    assert "CUDA sees nothing" in finding.message


def test_quiet_without_mig() -> None:
    off = machine(gpu(), gpu("0000:82:00.0", nvml=seen("0000:82:00.0", mig_enabled=None, errors={MODE: 3})))
    assert "mig-limits-process" not in names(off)
    assert missing("mig-limits-process", off) == ()


MODE = "nvmlDeviceGetMigMode"


def test_unchecked_without_its_facts() -> None:
    assert missing("mig-limits-process", machine(gpu(nvml=seen(mig_enabled=None)))) == (
        "gpus.0000:04:00.0.nvml.mig_enabled",
    )
    assert missing("mig-limits-process", machine(gpu(nvml=seen(mig_enabled=True)))) == (
        "gpus.0000:04:00.0.nvml.mig_devices",
    )
    hung = machine(blind(driver="nvidia"), nvml=Nvml(status="timed-out"))
    assert missing("mig-limits-process", hung) == ("nvml.gpus",)
