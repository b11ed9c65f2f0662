import pytest

from gpucheck.facts import Machine, Nvml
from gpucheck.rules.driver_library_mismatch import same_version
from rules.machines import blind, driver, gpu, log, machine, missing, names, only

MISMATCH = Nvml(status="failed", call="nvmlInit_v2", code=18, message="Driver/library version mismatch")
FAILED = Nvml(status="failed", call="nvmlInit_v2", code=999)
LINE = (
    "NVRM: API mismatch: the client has the version 530.30.02, but this kernel module has the version 525.89.02. "
    "Please make sure that this kernel module and all NVIDIA driver components have the same version."
)


def bound(**known: object) -> Machine:
    return machine(blind(driver="nvidia"), **known)


def test_fires_on_error_18_and_explains_nvml() -> None:
    made = bound(nvml=MISMATCH, driver=driver(nvidia_version="525.89.02", library_versions=("530.30.02",)))
    finding = only("driver-library-mismatch", made)
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "certain", "machine")
    assert [e.text for e in finding.evidence] == ["Driver/library version mismatch", "525.89.02", "530.30.02"]
    assert names(made, expect=1) == ["driver-library-mismatch"]


def test_versions_alone_are_likely() -> None:
    made = bound(nvml=None, driver=driver(nvidia_version="570.124.06", library_versions=("570.124.04",)))
    assert only("driver-library-mismatch", made).confidence == "likely"


def test_log_counts_if_it_speaks_of_the_loaded_module() -> None:
    loaded = driver(nvidia_version="525.89.02", library_versions=None)
    assert only("driver-library-mismatch", bound(nvml=FAILED, driver=loaded, kernel_log=log(LINE))).evidence[0].text
    other = driver(nvidia_version="530.30.02", library_versions=("530.30.02",))
    assert "driver-library-mismatch" not in names(bound(nvml=FAILED, driver=other, kernel_log=log(LINE)))
    assert names(Machine(kernel_log=log(LINE))) == ["driver-library-mismatch"]


def test_log_with_a_time_stamp_on_each_line() -> None:
    lines = (
        "NVRM: API mismatch: the client has the version 530.30.02, but",
        "NVRM: this kernel module has the version 525.89.02. Please",
    )
    finding = only("driver-library-mismatch", Machine(kernel_log=log(*lines)))
    assert tuple(e.text for e in finding.evidence) == lines


def test_quiet_when_nvml_works() -> None:
    assert names(machine(gpu(), kernel_log=log(LINE))) == []
    assert names(machine(gpu(), driver=driver(library_versions=("530.30.02",)))) == []


def test_quiet_when_module_and_library_agree_by_now() -> None:
    """The update was completed by loading the module that the log says was there, or its library came back."""
    old = driver(nvidia_version="525.89.02", library_versions=("525.89.02",))
    assert names(bound(nvml=None, driver=old, kernel_log=log(LINE))) == []


@pytest.mark.parametrize(
    ("module", "library", "same"),
    [
        ("570.124.06", "570.124.06", True),
        ("570.124.06", "570.124.04", False),
        ("570.124.06", "570.124", True),
        ("570.12", "570.124", False),
        ("570.124", "570.12", False),
    ],
)
def test_all_parts_of_a_version_count(module: str, library: str, same: bool) -> None:
    assert same_version(module, library) is same


def test_unchecked_without_nvml() -> None:
    assert missing("driver-library-mismatch", Machine()) == ("nvml", "driver")
    made = bound(nvml=None, driver=driver(library_versions=None))
    assert missing("driver-library-mismatch", made) == ("nvml", "driver.library_versions")
    assert missing("driver-library-mismatch", machine(gpu())) == ()
