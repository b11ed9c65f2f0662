import pytest

from gpucheck.facts import Machine, Nvml
from rules.machines import L40S, P40, blind, driver, gpu, log, machine, missing, names, only

OPEN = driver(nvidia_flavour="open")
NONE_LISTED = Nvml(status="ok", gpus=())
NEEDS_GSP = (
    "NVRM: The NVIDIA GPU 0000:82:00.0 (PCI ID: 10de:1bb3) installed in this system is not supported by open nvidia.ko "
    "because it does not include the required GPU System Processor (GSP)."
)
INIT = "NVRM: GPU 0000:82:00.0: RmInitAdapter failed! (0x24:0x72:1603)"
P4 = {"pci_id": "10de:1bb3", "name": "Tesla P4"}


def test_fires_on_what_the_module_says() -> None:
    made = machine(
        blind("0000:82:00.0", driver="nvidia", **P4), driver=OPEN, kernel_log=log(NEEDS_GSP, INIT), nvml=NONE_LISTED
    )
    finding = only("open-module-unsupported", made)
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "certain", "0000:82:00.0")
    assert finding.evidence[0].text == NEEDS_GSP
    assert "branch 580" in finding.remedy[0]
    assert names(made, expect=1) == ["open-module-unsupported"]


def test_fires_for_the_old_one_of_two_cards_without_a_log() -> None:
    made = machine(gpu(pci_id=L40S, name="L40S"), blind("0000:82:00.0", driver=None), driver=OPEN, kernel_log=None)
    finding = only("open-module-unsupported", made)
    assert finding.subject == "0000:82:00.0"
    assert names(made, expect=2) == ["open-module-unsupported"]


def test_two_cards_that_no_flavour_drives_both() -> None:
    blackwell = gpu(pci_id="10de:2b85", name="GeForce RTX 5090")
    finding = only("open-module-unsupported", machine(blackwell, blind("0000:82:00.0"), driver=OPEN))
    assert "5090" in finding.remedy[-1]


def test_a_log_alone_names_the_card() -> None:
    finding = only("open-module-unsupported", Machine(kernel_log=log(NEEDS_GSP)))
    assert finding.subject == "0000:82:00.0"


def test_an_old_open_module_and_a_card_that_is_not_of_the_data_centre() -> None:
    line = "NVRM: Open nvidia.ko is only ready for use on Data Center GPUs."
    rtx = {"pci_id": "10de:2684", "name": "GeForce RTX 4090"}
    made = machine(blind(driver="nvidia", **rtx), driver=OPEN, kernel_log=log(line), nvml=NONE_LISTED)
    assert names(made) == ["open-module-unsupported"]
    # The owner went back to the other flavour: then the line is history.
    assert "open-module-unsupported" not in names(
        machine(blind(driver="nvidia", **rtx), kernel_log=log(line), nvml=None)
    )


@pytest.mark.parametrize(
    "made",
    [
        machine(gpu(), driver=driver()),
        machine(gpu(pci_id=L40S, name="L40S"), driver=OPEN),
        machine(blind(pci_id=L40S, name="L40S"), driver=OPEN),
        machine(blind("0000:82:00.0", pci_id=P40)),
        machine(blind(driver="vfio-pci"), driver=OPEN),
        machine(gpu(), driver=OPEN),
    ],
    ids=["proprietary", "new card", "new card without a driver", "old card, proprietary", "passed through", "listed"],
)
def test_quiet(made: Machine) -> None:
    assert "open-module-unsupported" not in names(made)


def test_unchecked_without_the_flavour() -> None:
    unknown = driver(nvidia_flavour=None)
    assert missing("open-module-unsupported", machine(blind(), driver=unknown)) == ("driver.nvidia_flavour",)
    said = log("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64 570.158.01 Release Build")
    assert missing("open-module-unsupported", machine(blind(), driver=unknown, kernel_log=said)) == ()
