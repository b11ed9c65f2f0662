from gpucheck.facts import Nvml
from rules.machines import amd, blind, driver, gpu, machine, missing, names, no_driver, only

ABSENT = Nvml(status="library-absent")


def test_fires_once_and_explains_everything_above() -> None:
    made = machine(blind(), blind("0000:82:00.0"), driver=no_driver(), nvml=ABSENT)
    assert names(made, expect=2) == ["driver-not-installed"]
    finding = only("driver-not-installed", made)
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "certain", "machine")


def test_built_for_another_kernel() -> None:
    made = machine(blind(), driver=no_driver(library_versions=("520.56.06",)), nvml=Nvml(status="failed", code=9))
    finding = only("driver-not-installed", made)
    assert "not built for the running kernel" in finding.message
    assert "6.8.0-48-generic" in finding.remedy[0]


def test_the_library_that_nvml_found_speaks_for_a_package() -> None:
    made = machine(blind(), driver=no_driver(library_versions=None), nvml=Nvml(status="failed", code=9))
    assert "NVIDIA's library is installed" in only("driver-not-installed", made).message


def test_only_likely_where_the_module_folder_was_not_read() -> None:
    made = machine(blind(), driver=no_driver(nvidia_module_installed=None), nvml=ABSENT)
    assert only("driver-not-installed", made).confidence == "likely"


def test_quiet_when_loaded_installed_or_not_needed() -> None:
    assert names(machine(gpu())) == []
    assert "driver-not-installed" not in names(machine(blind(), driver=no_driver(nvidia_module_installed=True)))
    assert names(machine(blind(driver="vfio-pci"), driver=no_driver(), nvml=ABSENT)) == ["vfio-bound"]
    assert names(machine(amd(), driver=no_driver(), nvml=ABSENT)) == []


def test_unchecked_where_it_cannot_be_told() -> None:
    made = machine(blind(), driver=no_driver(nvidia_module_installed=None), nvml=None)
    assert missing("driver-not-installed", made) == ("driver.nvidia_module_installed",)
    made = machine(blind(), driver=no_driver(loaded_modules=None))
    assert missing("driver-not-installed", made) == ("driver.loaded_modules",)
    assert missing("driver-not-installed", machine(blind(), driver=None)) == ("driver",)
    assert missing("driver-not-installed", machine(gpu(), driver=driver())) == ()
