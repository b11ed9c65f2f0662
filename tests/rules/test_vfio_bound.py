from gpucheck.facts import Nvml
from rules.machines import P40, amd, blind, driver, gpu, machine, missing, names, only


def test_fires_as_a_warning() -> None:
    made = machine(gpu(), blind("0000:82:00.0", driver="vfio-pci"))
    finding = only("vfio-bound", made)
    assert (finding.severity, finding.subject) == ("warning", "0000:82:00.0")
    assert names(made, expect=1) == ["vfio-bound"]


def test_error_when_more_cards_are_expected() -> None:
    made = machine(gpu(), blind("0000:82:00.0", driver="vfio-pci"))
    assert names(made, expect=2) == ["vfio-bound"]
    assert only("vfio-bound", made, expect=2).severity == "error"


def test_twin_cards_caught_by_id() -> None:
    cards = (blind(driver="vfio-pci"), blind("0000:82:00.0", driver="vfio-pci"))
    line = f"quiet vfio-pci.ids={P40},10de:10f0"
    made = machine(*cards, driver=driver(kernel_command_line=line), nvml=Nvml(status="failed", code=9))
    assert names(made) == ["vfio-bound", "vfio-bound"]
    assert names(made, expect=2) == ["vfio-bound", "vfio-bound"]


def test_option_of_the_command_line_is_evidence() -> None:
    made = machine(
        blind(driver="vfio-pci"), driver=driver(kernel_command_line=f"quiet vfio-pci.ids={P40} vfio-pci.ids=1002:1")
    )
    assert [e.text for e in only("vfio-bound", made).evidence] == [
        "Kernel driver in use: vfio-pci",
        f"vfio-pci.ids={P40}",
    ]


def test_any_vendor() -> None:
    assert names(machine(amd(driver="vfio-pci"))) == ["vfio-bound"]


def test_quiet_on_other_drivers() -> None:
    assert names(machine(gpu(), amd(), amd("0000:84:00.0", driver="amdgpu"))) == []


def test_unchecked_where_the_source_cannot_tell() -> None:
    assert missing("vfio-bound", machine(amd(driver=None, driver_read=False))) == ("gpus.0000:83:00.0.driver",)
    assert missing("vfio-bound", machine(gpus=None)) == ("gpus",)
