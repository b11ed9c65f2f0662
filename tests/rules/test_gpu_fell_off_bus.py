from pathlib import Path

import pytest

from gpucheck.facts import Gpu, Machine, Nvml, NvmlGpu
from gpucheck.readers.kernel_log import parse
from gpucheck.rules import View, judge
from rules.machines import L40S, P40, blind, driver, found, gpu, log, machine, missing, names, only


def test_fires_on_config_space_of_ones() -> None:
    finding = only("gpu-fell-off-bus", machine(gpu(), blind("0000:82:00.0", driver="nvidia", config_dead=True)))
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "certain", "0000:82:00.0")
    assert finding.evidence[0].source == "PCI 0000:82:00.0"


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:a1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (0000:a1:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:A1:00.0): 79, pid=1234, GPU has fallen off the bus.",
        "NVRM: GPU 0000:a1:00.0: GPU has fallen off the bus.",
        "NVRM: GPU at 0000:a1:00.0 has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:a1:00.0 (PCI ID: 10de:26b5) installed in this system has fallen off the bus "
        "and is not responding to commands.",
    ],
)
def test_every_spelling(line: str) -> None:
    finding = only("gpu-fell-off-bus", Machine(kernel_log=log(line)))
    assert (finding.subject, finding.confidence) == ("0000:a1:00.0", "certain")


def test_message_on_three_lines_that_nobody_joined() -> None:
    made = Machine(
        kernel_log=log(
            "NVRM: The NVIDIA GPU 0000:b3:00.0",
            "NVRM: (PCI ID: 10de:26b5) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        )
    )
    assert only("gpu-fell-off-bus", made).subject == "0000:b3:00.0"


def test_many_lines_about_one_card_are_one_finding() -> None:
    xid = "NVRM: Xid (PCI:0000:a1:00): 79, pid=1, GPU has fallen off the bus."
    lines = [xid, *(f"NVRM: GPU 0000:a1:00.0: GPU has fallen off the bus. ({n})" for n in range(200))]
    finding = only("gpu-fell-off-bus", Machine(kernel_log=log(*lines)))
    assert len(finding.evidence) == 3


def test_what_nvml_says_is_a_further_witness_and_no_proof() -> None:
    lost = NvmlGpu(index=1, address="0000:82:00.0", errors={"nvmlDeviceGetMemoryInfo": 15, "nvmlDeviceGetName": 15})
    assert "gpu-fell-off-bus" not in names(machine(gpu(), gpu("0000:82:00.0", nvml=lost)))
    finding = only("gpu-fell-off-bus", machine(gpu(), gpu("0000:82:00.0", nvml=lost, config_dead=True)))
    assert [line.source for line in finding.evidence] == ["PCI 0000:82:00.0", "nvmlDeviceGetMemoryInfo"]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response",
        "NVRM: Xid (PCI:0000:03:00): 13, pid=3119, Graphics Exception: ESR 0x79",
        "NVRM: Xid (PCI:0000:79:00): 31, pid=1, MMU fault",
        "usb 1-4: device fell off",
    ],
)
def test_quiet_on_other_lines(line: str) -> None:
    assert "gpu-fell-off-bus" not in names(machine(gpu(), kernel_log=log(line)))


def test_the_three_usual_causes_in_nvidias_order() -> None:
    line = "NVRM: Xid (PCI:0000:04:00): 79, pid=1, GPU has fallen off the bus."
    finding = only("gpu-fell-off-bus", machine(gpu(config_dead=True), kernel_log=log(line)))
    assert [step.partition(":")[0] for step in finding.remedy[:3]] == ["Heat", "Power", "System BIOS"]
    assert "nvidia-smi -lgc" in finding.next_test[0].do


def test_a_card_that_answers_again_is_a_warning() -> None:
    line = "NVRM: Xid (PCI:0000:04:00): 79, pid=1, GPU has fallen off the bus."
    assert only("gpu-fell-off-bus", machine(gpu(), kernel_log=log(line))).severity == "warning"
    assert only("gpu-fell-off-bus", machine(gpu(config_dead=True), kernel_log=log(line))).severity == "error"


def at_probe(address: str, pci_id: str) -> str:
    return (
        f"NVRM: The NVIDIA GPU {address} (PCI ID: {pci_id}) installed in this system has fallen off the bus and is "
        "not responding to commands."
    )


def test_open_module_on_old_cards_is_no_fallen_card() -> None:
    cards = (blind(), blind("0000:82:00.0"))
    lines = (at_probe("0000:04:00.0", P40), at_probe("0000:82:00.0", P40), "NVRM: BAR0 is 0M @ 0x0 (PCI:0000:04:00.0)")
    doubtful = machine(*cards, kernel_log=log(*lines), driver=driver(nvidia_flavour="open"))
    findings = found(doubtful)
    assert {f.name for f in findings} == {"open-module-unsupported"}
    assert "proprietary" in findings[0].remedy[0]
    # One of two, another flavour, or a card that the open module drives: then it is the card.
    one = machine(*cards, kernel_log=log(lines[0]), driver=driver(nvidia_flavour="open"))
    assert only("gpu-fell-off-bus", one).confidence == "certain"
    closed = machine(*cards, kernel_log=log(*lines))
    assert {f.confidence for f in found(closed)} == {"certain"}
    new = machine(
        blind(pci_id=L40S), kernel_log=log(at_probe("0000:04:00.0", L40S)), driver=driver(nvidia_flavour="open")
    )
    assert only("gpu-fell-off-bus", new).confidence == "certain"


def test_a_card_that_left_pci_explains_itself() -> None:
    line = "NVRM: Xid (PCI:0000:82:00): 79, pid=1, GPU has fallen off the bus."
    made = machine(gpu(), kernel_log=log(line))
    assert names(made, expect=2) == ["gpu-fell-off-bus"]
    assert names(made, expect=3) == ["gpu-fell-off-bus", "gpu-count-mismatch"]


def test_unchecked_without_witnesses() -> None:
    assert missing("gpu-fell-off-bus", Machine()) == ("gpus", "kernel_log")
    assert missing("gpu-fell-off-bus", machine(gpu(config_dead=None))) == ("gpus.0000:04:00.0.config_dead",)


@pytest.mark.parametrize(
    ("file", "address"),
    [("nvrm_xid79_fallen-off.log", "0000:a1:00.0"), ("nvrm_fallen-off_at-probe_no-xid.log", "0000:b3:00.0")],
)
def test_real_logs_alone(shared_machines: Path, file: str, address: str) -> None:
    read = parse((shared_machines / "dmesg" / file).read_text(), "file")
    findings, _ = judge(Machine(kernel_log=read), View())
    assert [(f.name, f.subject, f.confidence) for f in findings] == [("gpu-fell-off-bus", address, "certain")]


def test_other_devices_may_fall_off_the_bus() -> None:
    for line in ("mpt3sas 0000:05:00.0: device has fallen off the bus", "usb 1-1: it has fallen off the bus"):
        assert "gpu-fell-off-bus" not in names(machine(gpu(), kernel_log=log(line)))


def test_a_nameless_loss_while_every_card_answers_is_past() -> None:
    lost = machine(gpu(), kernel_log=log("NVRM: a GPU has fallen off the bus."))
    assert only("gpu-fell-off-bus", lost).severity == "warning"


NAMELESS = NvmlGpu(index=1, errors={"nvmlDeviceGetHandleByIndex": 15})


def with_nameless(*cards: Gpu, **known: object) -> Machine:
    """NVML lists the first card, and one that it calls lost before it tells the address."""
    listed = tuple(card.nvml for card in cards if card.nvml is not None)
    return machine(*cards, nvml=Nvml(status="ok", gpus=(*listed, NAMELESS)), **known)


def test_a_card_that_nvml_calls_lost_without_an_address_is_likely_the_dead_one() -> None:
    dead = blind("0000:82:00.0", driver="nvidia", config_dead=True)
    finding = only("gpu-fell-off-bus", with_nameless(gpu(), dead))
    assert (finding.subject, finding.confidence) == ("0000:82:00.0", "certain")
    assert finding.evidence[1].source == "nvmlDeviceGetHandleByIndex"


def test_a_card_that_nvml_does_not_open_for_another_reason_is_not_lost() -> None:
    closed = NvmlGpu(index=1, errors={"nvmlDeviceGetHandleByIndex": 4})
    made = machine(gpu(), blind("0000:82:00.0", driver="nvidia"), nvml=Nvml(status="ok", gpus=(closed,)))
    assert "gpu-fell-off-bus" not in names(made)
