from gpucheck.facts import Nvml
from gpucheck.nvml_codes import meaning
from rules.machines import MIB, amd, bar, blind, driver, gpu, log, machine, missing, names, no_driver, only

FAILED = Nvml(status="failed", call="nvmlInit_v2", code=999, message="Unknown Error")


def test_fires_when_nothing_else_explains_it() -> None:
    finding = only("nvml-unavailable", machine(blind(driver="nvidia"), nvml=FAILED))
    assert (finding.severity, finding.subject) == ("error", "machine")
    assert finding.evidence[0].source == "nvmlInit_v2"
    assert finding.message.startswith("NVML cannot start: error 999, ")


def test_library_absent_while_the_module_is_loaded() -> None:
    made = machine(blind(driver="nvidia"), nvml=Nvml(status="library-absent"))
    assert names(made, expect=1) == ["nvml-unavailable"]
    assert "user part" in only("nvml-unavailable", made).remedy[0]


def test_a_code_means_here_what_it_means_in_the_gaps() -> None:
    made = machine(blind(driver="nvidia"), nvml=Nvml(status="failed", code=9, message="Driver Not Loaded"))
    assert f"error 9, {meaning(9)}." in only("nvml-unavailable", made).message


def test_code_that_nobody_knows() -> None:
    made = machine(blind(driver="nvidia"), nvml=Nvml(status="failed", code=77))
    assert "error 77, no reason given" in only("nvml-unavailable", made).message


def test_a_reason_that_is_a_sentence_ends_once() -> None:
    died = Nvml(status="failed", message="The process that asks NVML died with exit code -11.")
    message = only("nvml-unavailable", machine(blind(driver="nvidia"), nvml=died)).message
    assert message == "NVML cannot start: The process that asks NVML died with exit code -11."


def test_quiet_when_another_finding_explains_it() -> None:
    bare = machine(blind(), nvml=Nvml(status="library-absent"), driver=no_driver())
    assert names(bare) == ["driver-not-installed"]
    no_address = (bar(1, 256 * MIB, assigned=False),)
    assert names(machine(blind(bars=no_address), nvml=FAILED)) == ["bar-unassigned"]
    # One of two cards is explained; the silence about the other is not.
    both = machine(blind(bars=no_address), blind("0000:82:00.0", driver="nvidia"), nvml=FAILED)
    assert names(both) == ["bar-unassigned", "nvml-unavailable"]


def test_quiet_without_an_nvidia_card() -> None:
    absent = Nvml(status="library-absent")
    assert names(machine(amd(), nvml=absent, driver=driver())) == []
    assert names(machine(gpu())) == []


def test_unchecked_when_nvml_was_not_asked() -> None:
    assert missing("nvml-unavailable", machine(gpu(), nvml=None)) == ("nvml",)
    assert missing("nvml-unavailable", machine(gpus=None, nvml=None)) == ("nvml",)
    assert missing("nvml-unavailable", machine(gpus=None, nvml=SAID)) == ("gpus",)


SAID = Nvml(
    status="failed",
    call="nvidia-smi",
    code=9,
    message="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
)


def test_the_words_of_nvidia_smi_are_quoted() -> None:
    (evidence, *_) = only("nvml-unavailable", machine(blind(driver="nvidia"), nvml=SAID)).evidence
    assert (evidence.source, evidence.text) == ("nvidia-smi", SAID.message)


def test_the_words_of_nvidia_smi_alone_are_possible_and_ask_for_more() -> None:
    made = machine(gpus=None, pci=None, nvml=SAID, driver=None, kernel_log=None)
    finding = only("nvml-unavailable", made)
    assert (finding.severity, finding.confidence) == ("warning", "possible")
    assert "lspci -nnk -d 10de:" in finding.remedy[0]
    assert len(finding.next_test[0].outcomes) == 3
    assert only("nvml-unavailable", made, expect=1).severity == "error"


def test_quiet_where_the_log_tells_why_nvidia_smi_fails() -> None:
    legacy = (
        "NVRM: The NVIDIA Tesla K80 GPU installed in this system is supported through the NVIDIA 470.xx Legacy "
        "drivers. The 535.161.07 NVIDIA driver will ignore this GPU."
    )
    made = machine(gpus=None, pci=None, nvml=SAID, driver=None, kernel_log=log(legacy))
    assert names(made) == ["driver-dropped-gpu"]


def test_quiet_where_a_live_machine_has_neither_library_nor_bus() -> None:
    assert names(machine(gpus=None, pci=None, nvml=Nvml(status="library-absent", call="nvmlInit", code=12))) == []
