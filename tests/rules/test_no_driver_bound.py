import pytest

from gpucheck.facts import Nvml
from rules.machines import MIB, amd, bar, blind, driver, gpu, log, machine, missing, names, only

FAILED = Nvml(status="failed", call="nvmlInit_v2", code=9)
NOT_LOADED = driver(loaded_modules=(), nvidia_version=None, nvidia_flavour=None)


def test_fires_for_the_card_that_the_module_refused() -> None:
    line = "nvidia 0000:82:00.0: probe with driver nvidia failed with error -1"
    made = machine(gpu(), blind("0000:82:00.0"), kernel_log=log("NVRM: loading", line))
    finding = only("no-driver-bound", made)
    assert (finding.severity, finding.subject) == ("error", "0000:82:00.0")
    assert finding.evidence[-1].text == line
    assert names(made, expect=2) == ["no-driver-bound"]


def test_not_supported_with_a_working_twin_points_at_the_card() -> None:
    line = (
        "NVRM: The NVIDIA GPU 000a:00:00.0 (PCI ID: 10de:2330) installed in this system is not supported by the "
        "NVIDIA 580.126.09 driver release."
    )
    h100 = {"pci_id": "10de:2330", "name": "H100"}
    made = machine(gpu("0001:00:00.0", **h100), blind("000a:00:00.0", **h100), kernel_log=log(line))
    assert names(made) == ["gpu-suspect"]


def test_module_that_nobody_loaded_is_one_finding() -> None:
    made = machine(blind(), blind("0000:82:00.0"), driver=NOT_LOADED, nvml=FAILED)
    finding = only("no-driver-bound", made)
    assert finding.subject == "machine"
    assert "modprobe" in finding.remedy[0]
    assert names(made) == ["no-driver-bound"]


def test_quiet_when_a_deeper_cause_explains_it() -> None:
    made = machine(gpu(), blind("0000:82:00.0", bars=(bar(1, 256 * MIB, assigned=False),)))
    assert names(made) == ["bar-unassigned"]


def test_quiet_when_bound_or_of_another_vendor() -> None:
    assert names(machine(gpu(), amd())) == []


def test_quiet_where_the_list_does_not_tell_the_driver() -> None:
    for loaded in (driver(), NOT_LOADED):
        assert "no-driver-bound" not in names(machine(blind(driver_read=False), driver=loaded, nvml=FAILED))


def test_unchecked_where_nobody_can_tell() -> None:
    assert missing("no-driver-bound", machine(blind(driver_read=False))) == ("gpus.0000:04:00.0.driver",)
    assert missing("no-driver-bound", machine(blind(), driver=None)) == ("driver",)
    unknown = driver(loaded_modules=None, nvidia_version=None, nvidia_module_installed=None)
    assert missing("no-driver-bound", machine(blind(), driver=unknown)) == (
        "driver.loaded_modules",
        "driver.nvidia_module_installed",
    )
    # With every card bound nothing is lacking.
    assert missing("no-driver-bound", machine(gpu(), driver=unknown)) == ()


@pytest.mark.parametrize(("vendor", "module"), [("amd", "amdgpu"), ("intel", "i915")])
def test_cards_of_other_makers_are_a_warning(vendor: str, module: str) -> None:
    finding = only("no-driver-bound", machine(gpu(), amd(vendor=vendor, driver=None)))
    assert (finding.severity, finding.subject) == ("warning", "0000:83:00.0")
    assert f"modprobe {module};" in finding.remedy[0]
    assert "NVIDIA" not in finding.message
    assert "no-driver-bound" not in names(machine(gpu(), amd(vendor=vendor)))
    assert "no-driver-bound" not in names(machine(gpu(), amd(vendor=vendor, driver=None, driver_read=False)))
