from __future__ import annotations

import pytest

from gpucheck.facts import Gpu, Machine, Nvml, NvmlGpu
from rules.machines import blind, gpu, log, machine, missing, names, only, seen, view

OPEN = "nvmlDeviceGetHandleByIndex"
SECOND = "0000:82:00.0"


def with_closed(code: int, *cards: Gpu, **known: object) -> Machine:
    """NVML lists the cards that carry its facts, and one more that it does not open."""
    listed = tuple(card.nvml for card in cards if card.nvml is not None)
    return machine(*cards, nvml=Nvml(status="ok", gpus=(*listed, NvmlGpu(index=1, errors={OPEN: code}))), **known)


def unlisted(address: str = SECOND) -> Gpu:
    return blind(address, driver="nvidia", slot="SLOT 4")


def test_fires_for_a_card_that_is_lost_after_it_was_opened() -> None:
    lost = seen(SECOND, index=1, uuid="GPU-1", errors={"nvmlDeviceGetMemoryInfo": 15})
    finding = only("nvml-gpu-lost", machine(gpu(), gpu(SECOND, nvml=lost, slot="SLOT 4")))
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "certain", SECOND)
    assert "SLOT 4" in finding.message
    assert [line.source for line in finding.evidence][:2] == ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUUID"]


@pytest.mark.parametrize(("code", "confidence"), [(15, "likely"), (16, "likely"), (8, "likely"), (999, "possible")])
def test_a_card_that_is_not_opened_is_likely_the_one_that_is_not_listed(code: int, confidence: str) -> None:
    line = f"NVRM: GPU at PCI:{SECOND[:-2]}: GPU-2"
    made = with_closed(code, gpu(), unlisted(), kernel_log=log(line))
    finding = only("nvml-gpu-lost", made, expect=2)
    assert (finding.severity, finding.confidence, finding.subject) == ("error", confidence, SECOND)
    assert finding.evidence[0].text.startswith(f"device 1: error {code}, ")
    assert line in [evidence.text for evidence in finding.evidence]
    assert names(made, expect=2) == ["nvml-gpu-lost"]
    assert finding.evidence[-1].text == "2 GPUs expected, 1 usable"
    assert bool(finding.next_test) == (code != 8)


def test_which_card_is_not_guessed_among_several() -> None:
    cards = (gpu(), unlisted(), unlisted("0000:83:00.0"))
    finding = only("nvml-gpu-lost", with_closed(15, *cards))
    assert (finding.subject, finding.confidence) == ("machine", "certain")
    assert SECOND in finding.message
    assert only("nvml-gpu-lost", with_closed(999, gpu())).confidence == "possible"
    assert only("nvml-gpu-lost", with_closed(15, gpu(), pci=None)).subject == "machine"


def test_a_card_without_an_address_that_stands_alone_in_the_list_of_cards() -> None:
    closed = NvmlGpu(index=1, errors={OPEN: 999})
    alone = Gpu(address="nvml:1", vendor="nvidia", driver_read=False, nvml=closed)
    made = machine(gpu(), alone)
    assert only("nvml-gpu-lost", made, expect=2).subject == "nvml:1"
    assert names(made, expect=2) == ["nvml-gpu-lost"]
    assert names(made, expect=3) == ["nvml-gpu-lost", "gpu-count-mismatch"]


def test_stands_aside_for_what_explains_the_card() -> None:
    lost = seen(SECOND, index=1, errors={"nvmlDeviceGetName": 15})
    assert names(machine(gpu(), gpu(SECOND, nvml=lost, config_dead=True))) == ["gpu-fell-off-bus"]
    dead = blind(SECOND, driver="nvidia", config_dead=True)
    assert names(with_closed(15, gpu(), dead)) == ["gpu-fell-off-bus"]
    nameless = log("NVRM: a GPU has fallen off the bus.")
    assert "nvml-gpu-lost" not in names(
        with_closed(15, gpu(), unlisted(), unlisted("0000:83:00.0"), kernel_log=nameless)
    )


@pytest.mark.parametrize("code", [4, 17])
def test_a_card_that_is_hidden_is_not_lost(code: int) -> None:
    assert "nvml-gpu-lost" not in names(with_closed(code, gpu(), unlisted()))


def test_quiet_on_a_card_that_merely_lacks_something() -> None:
    modest = seen(errors={"nvmlDeviceGetPowerUsage": 3, "nvmlDeviceGetName": 999})
    assert "nvml-gpu-lost" not in names(machine(gpu(nvml=modest)))


def test_nvml_that_does_not_start_for_a_lost_card() -> None:
    made = machine(blind(driver="nvidia"), nvml=Nvml(status="failed", call="nvmlInit", code=15))
    finding = only("nvml-gpu-lost", made)
    assert (finding.subject, finding.evidence[0].source) == ("machine", "nvmlInit")
    assert "nvml-unavailable" not in names(made)


def test_unchecked_when_nvml_listed_nothing() -> None:
    assert missing("nvml-gpu-lost", machine(gpu(), nvml=None)) == ("nvml",)
    assert missing("nvml-gpu-lost", machine(blind(driver="nvidia"), nvml=Nvml(status="timed-out"))) == ("nvml.gpus",)
    assert missing("nvml-gpu-lost", machine(gpu())) == ()
    assert view(machine(gpu())).counts.nvml == 1
