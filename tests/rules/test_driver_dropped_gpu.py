import pytest

from gpucheck.catalog import load
from gpucheck.facts import Machine, Nvml, NvmlGpu
from gpucheck.rules import judge
from rules.machines import L40S, MIB, P40, bar, blind, driver, gpu, log, machine, missing, names, no_driver, only, view

LEGACY = (
    "NVRM: The NVIDIA Tesla P40 GPU installed in this system is supported through the NVIDIA 580.xx Legacy drivers. "
    "Please visit http://www.nvidia.com/object/unix.html for more information. The 595.71.05 NVIDIA driver will ignore "
    "this GPU. Continuing probe..."
)
NEW = driver(nvidia_version="595.71.05", library_versions=("595.71.05",))


def test_fires_on_what_the_module_says_and_names_the_branch() -> None:
    made = machine(gpu(pci_id=L40S, name="L40S"), blind("0000:82:00.0"), driver=NEW, kernel_log=log(LEGACY))
    finding = only("driver-dropped-gpu", made)
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "certain", "0000:82:00.0")
    assert finding.evidence[0].text == LEGACY
    assert "branch 580" in finding.remedy[0]
    assert names(made, expect=2) == ["driver-dropped-gpu"]


def test_the_module_that_found_no_other_card_is_not_loaded() -> None:
    said = no_driver(nvidia_module_installed=True, library_versions=("595.71.05",))
    made = machine(blind(), driver=said, kernel_log=log(LEGACY), nvml=None)
    assert names(made) == ["driver-dropped-gpu"]


def test_fires_on_the_version_alone() -> None:
    made = machine(gpu(pci_id=L40S, name="L40S"), blind("0000:82:00.0", catalog_gpu="nvidia-tesla-p40"), driver=NEW)
    findings, _ = judge(made, view(made, catalog=load()))
    assert [(f.name, f.confidence) for f in findings] == [("driver-dropped-gpu", "certain")]
    # Without the catalog the card's PCI id tells its generation.
    unlisted = machine(blind(pci_id="10de:1c03", name="GeForce GTX 1060"), driver=NEW)
    assert only("driver-dropped-gpu", unlisted).confidence == "likely"


def test_a_release_that_does_not_know_the_card() -> None:
    line = (
        "NVRM: The NVIDIA GPU 0000:82:00.0 (PCI ID: 10de:2b85) installed in this system is not supported by the NVIDIA "
        "570.158.01 driver release."
    )
    made = machine(gpu(), blind("0000:82:00.0", pci_id="10de:2b85", name="RTX 5090"), kernel_log=log(line))
    finding = only("driver-dropped-gpu", made)
    assert (finding.confidence, finding.evidence[0].text) == ("likely", line)
    assert names(made) == ["driver-dropped-gpu"]


@pytest.mark.parametrize(
    "made",
    [
        machine(gpu(), driver=NEW, kernel_log=log(LEGACY)),
        machine(gpu(), blind("0000:82:00.0"), driver=NEW, kernel_log=log(LEGACY)),
        machine(blind(), driver=driver(), kernel_log=log(LEGACY)),
        machine(blind()),
        machine(blind(pci_id=L40S, name="L40S"), driver=NEW),
        machine(blind(driver="nvidia"), driver=NEW),
        machine(blind(bars=(bar(1, 256 * MIB, assigned=False),)), driver=NEW, kernel_log=log(LEGACY)),
    ],
    ids=["works", "healthy twin", "another version by now", "not newer", "newer card", "bound", "no address"],
)
def test_quiet(made: Machine) -> None:
    assert "driver-dropped-gpu" not in names(made)


def test_which_card_the_module_means() -> None:
    """It names the product and no address."""
    old, new = blind(pci_id=P40), blind("0000:82:00.0", pci_id=L40S, name="L40S")
    made = machine(old, new, driver=NEW, kernel_log=log(LEGACY))
    assert [f.subject for f in judge(made, view(made))[0] if f.name == "driver-dropped-gpu"] == ["0000:04:00.0"]


def test_unchecked_without_its_facts() -> None:
    assert missing("driver-dropped-gpu", Machine()) == ("gpus",)
    assert missing("driver-dropped-gpu", machine(blind(), driver=None, kernel_log=None)) == (
        "driver.nvidia_version",
        "kernel_log",
    )
    assert missing("driver-dropped-gpu", machine(gpu(), driver=None, kernel_log=None)) == ()


SMI = Nvml(status="failed", call="nvidia-smi", code=9, message="NVIDIA-SMI has failed because it couldn't communicate")
K80 = (
    "NVRM: The NVIDIA GPU 0000:82:00.0 (PCI ID: 10de:102d) installed in this system is not supported by the NVIDIA "
    "535.161.07 driver release."
)


def test_the_log_alone_is_enough_to_be_likely() -> None:
    made = machine(gpus=None, pci=None, driver=None, nvml=SMI, kernel_log=log(LEGACY))
    finding = only("driver-dropped-gpu", made)
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "likely", "machine")
    assert finding.message.startswith("Tesla P40 has no driver: branch 580 is the last")
    assert [(e.source, e.text) for e in finding.evidence] == [("dmesg", LEGACY), ("nvidia-smi", SMI.message)]
    assert names(made) == ["driver-dropped-gpu"]


def test_a_driver_of_unknown_version_is_a_later_one() -> None:
    line = LEGACY.partition(" The 595")[0]
    finding = only("driver-dropped-gpu", machine(gpus=None, pci=None, driver=None, nvml=None, kernel_log=log(line)))
    assert finding.message.endswith("branch 580 is the last that drives it, and a later one is installed.")
    assert finding.remedy[0] == "Install branch 580 (the latest 580.x) in place of the driver that is installed."


def test_a_listing_that_does_not_tell_the_driver_leaves_it_likely() -> None:
    listed = gpu(driver=None, driver_read=False, nvml=None)
    finding = only("driver-dropped-gpu", machine(listed, driver=None, nvml=SMI, kernel_log=log(LEGACY)))
    assert (finding.confidence, finding.subject) == ("likely", "0000:04:00.0")
    assert "Kernel driver in use: none" not in [e.text for e in finding.evidence]
    # The version alone says nothing of a card whose driver was not read.
    assert "driver-dropped-gpu" not in names(machine(listed, driver=NEW))


def test_the_log_alone_names_address_and_id() -> None:
    made = machine(gpus=None, pci=None, driver=None, nvml=None, kernel_log=log(K80))
    (finding,) = [f for f in judge(made, view(made, catalog=load()))[0] if f.name == "driver-dropped-gpu"]
    assert (finding.subject, finding.confidence) == ("0000:82:00.0", "likely")
    assert finding.message.startswith("Tesla K80 at 0000:82:00.0 has no driver: branch 470 is the last")
    unknown = only("driver-dropped-gpu", made)
    assert unknown.message == "The NVIDIA driver 535.161.07 says that it does not support 10de:102d at 0000:82:00.0."


def test_an_excerpt_may_lack_the_card_and_a_whole_list_does_not() -> None:
    assert "driver-dropped-gpu" in names(machine(gpu(), pci_complete=False, driver=None, kernel_log=log(K80)))
    assert "driver-dropped-gpu" not in names(machine(gpu(), driver=None, kernel_log=log(K80)))


def test_quiet_where_nvml_lists_the_card_that_the_log_names() -> None:
    works = Nvml(status="ok", gpus=(NvmlGpu(index=0, address="0000:04:00.0", name="Tesla P40"),))
    made = machine(gpu(on_pci=None), pci=None, driver=None, nvml=works, kernel_log=log(LEGACY))
    assert "driver-dropped-gpu" not in names(made)
