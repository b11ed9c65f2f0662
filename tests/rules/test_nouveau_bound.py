from gpucheck.facts import Nvml
from rules.machines import amd, blind, gpu, log, machine, missing, names, no_driver, only

ABSENT = Nvml(status="library-absent")


def test_fires_once_for_all_cards() -> None:
    cards = (blind(driver="nouveau"), blind("0000:82:00.0", driver="nouveau"))
    line = "NVRM: The NVIDIA probe routine was not called for 2 device(s)."
    finding = only("nouveau-bound", machine(*cards, nvml=ABSENT, kernel_log=log(line)))
    assert (finding.severity, finding.subject) == ("error", "machine")
    assert [e.text for e in finding.evidence] == [
        "Kernel driver in use: nouveau",
        "Kernel driver in use: nouveau",
        line,
    ]
    assert finding.message.endswith("cannot take them.")


def test_names_the_one_card_and_nothing_is_told_twice() -> None:
    made = machine(gpu(), blind("0000:82:00.0", driver="nouveau"))
    assert names(made, expect=2) == ["nouveau-bound"]
    assert only("nouveau-bound", made).subject == "0000:82:00.0"


def test_explains_the_silence_of_nvml() -> None:
    assert names(machine(blind(driver="nouveau"), nvml=ABSENT)) == ["nouveau-bound"]
    fresh = machine(blind(driver="nouveau"), nvml=ABSENT, driver=no_driver(loaded_modules=("nouveau",)))
    assert names(fresh) == ["nouveau-bound"]  # one cause, told once


def test_what_to_install_first() -> None:
    def first(**known: object) -> str:
        nvml = known.pop("nvml", ABSENT)
        held = machine(blind(driver="nouveau"), nvml=nvml, driver=no_driver(loaded_modules=("nouveau",), **known))
        return only("nouveau-bound", held).remedy[0]

    assert first().startswith("Install NVIDIA's driver")
    assert first(nvidia_module_installed=None).endswith("if it is not installed.")
    assert first(nvidia_module_installed=True).startswith("Keep nouveau away")
    package = "NVIDIA's driver package is there, its module for this kernel is not."
    assert first(library_versions=("570.158.01",)) == package
    assert first(nvml=Nvml(status="failed", call="nvidia-smi", code=9)) == package


def test_quiet_with_nvidias_driver_or_another_vendor() -> None:
    assert names(machine(gpu(), amd())) == []


def test_unchecked_where_the_source_cannot_tell() -> None:
    made = machine(blind(driver=None, driver_read=False))
    assert missing("nouveau-bound", made) == ("gpus.0000:04:00.0.driver",)
    assert missing("nouveau-bound", machine(gpus=None)) == ("gpus",)
