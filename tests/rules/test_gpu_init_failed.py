import pytest

from gpucheck.facts import Machine, Nvml
from rules.machines import blind, driver, gpu, log, machine, missing, names, only

NONE_LISTED = Nvml(status="ok", gpus=())
FAILED = "NVRM: GPU 0000:04:00.0: RmInitAdapter failed! (0x62:0x65:1792)"
GFW = "NVRM: kgspWaitForGfwBootOk_TU102: failed to wait for GFW boot complete: 0x65 VBIOS version 94.02.59.00.05"
RTX = {"pci_id": "10de:2204", "name": "GeForce RTX 3090"}


def held(*lines: str, **known: object) -> Machine:
    return machine(blind(driver="nvidia", **RTX), kernel_log=log(*lines), **{"nvml": NONE_LISTED, **known})


def test_fires_for_firmware_that_does_not_start_and_points_at_the_card_first() -> None:
    made = held(GFW, "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM", FAILED)
    finding = only("gpu-init-failed", made)
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "possible", "0000:04:00.0")
    assert FAILED in {evidence.text for evidence in finding.evidence}
    assert "mains" in finding.remedy[0]
    assert "driver" in finding.remedy[-1]
    assert "Swap" in finding.next_test[0].do
    assert names(made, expect=1) == ["gpu-init-failed"]


@pytest.mark.parametrize(
    ("line", "confidence", "words"),
    [
        ("NVRM: GPU 0000:04:00.0: GPU does not have the necessary power cables connected.", "certain", "power"),
        ("NVRM: GPU 0000:04:00.0: Failed to copy vbios to system memory.", "likely", "video BIOS"),
        (
            "NVRM: The NVIDIA GPU 0000:04:00.0 (PCI ID: 10de:2c02) installed in this system requires use of the NVIDIA "
            "open kernel modules.",
            "certain",
            "open flavour",
        ),
        ("NVRM: something else", "possible", "cannot start"),
    ],
)
def test_the_step_that_failed(line: str, confidence: str, words: str) -> None:
    finding = only("gpu-init-failed", held(line, FAILED))
    assert finding.confidence == confidence
    assert words in finding.message


def test_a_step_of_another_card_is_not_taken() -> None:
    other = "NVRM: GPU 0000:82:00.0: GPU does not have the necessary power cables connected."
    assert only("gpu-init-failed", held(other, FAILED)).confidence == "possible"


def test_an_option_that_turns_the_firmware_off_is_named() -> None:
    asked = driver(kernel_command_line="ro nvidia.NVreg_EnableGpuFirmware=0", nvidia_flavour="open")
    finding = only("gpu-init-failed", held(GFW, FAILED, driver=asked))
    assert "NVreg_EnableGpuFirmware=0" in finding.remedy[0]
    assert finding.evidence[-1].source == "/proc/cmdline"


def test_with_a_working_twin_the_driver_is_left_alone() -> None:
    made = machine(gpu("0000:82:00.0", **RTX), blind(driver="nvidia", **RTX), kernel_log=log(GFW, FAILED))
    assert "leave the driver" in only("gpu-init-failed", made).remedy[-1]


def test_a_card_that_works_by_now_is_a_warning() -> None:
    assert only("gpu-init-failed", machine(gpu(), kernel_log=log(FAILED))).severity == "warning"


@pytest.mark.parametrize(
    "made",
    [
        machine(gpu()),
        machine(
            blind(pci_id="10de:1b38", driver="nvidia"), driver=driver(nvidia_flavour="open"), kernel_log=log(FAILED)
        ),
        machine(blind(driver="nvidia", config_dead=True), kernel_log=log(FAILED)),
    ],
    ids=["healthy", "open modules", "off the bus"],
)
def test_quiet(made: Machine) -> None:
    assert "gpu-init-failed" not in names(made)


def test_unchecked_without_a_log() -> None:
    assert missing("gpu-init-failed", machine(gpu(), kernel_log=None)) == ("kernel_log",)


NONE = "NVRM: None of the NVIDIA graphics adapters were initialized!"


def test_the_log_alone_says_that_no_card_was_started() -> None:
    alone = {"gpus": None, "pci": None, "nvml": None, "driver": None}
    finding = only("gpu-init-failed", machine(**alone, kernel_log=log(NONE)))
    assert (finding.subject, finding.confidence, finding.evidence[0].text) == ("machine", "possible", NONE)
    assert "lspci -nnk -d 10de:" in finding.remedy[0]
    taken = "NVRM: The NVIDIA probe routine was not called for 1 device(s)."
    assert "nouveau" in only("gpu-init-failed", machine(**alone, kernel_log=log(taken, NONE))).message
    again = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module 173.14.12"
    assert names(machine(**alone, kernel_log=log(NONE, again))) == []
    # With PCI at hand, other rules know more of each card.
    assert "gpu-init-failed" not in names(machine(gpu(), kernel_log=log(NONE)))
