from gpucheck.facts import Machine, Nvml
from rules.machines import amd, function, log, machine, missing, names, only, sockets

MATROX = function("0000:09:00.0", "102b:0534", 0x030000)
NETWORK = function("0000:01:00.0", "14e4:165f", 0x020000)
ABSENT = Nvml(status="library-absent")


def test_fires_as_info_and_lists_what_does_not_count() -> None:
    made = machine(pci=(MATROX, NETWORK), nvml=ABSENT)
    finding = only("no-gpu-found", made)
    assert (finding.severity, finding.subject) == ("info", "machine")
    assert "102b:0534 (0000:09:00.0)" in finding.message
    assert [e.text for e in finding.evidence] == [
        "0000:09:00.0 (102b:0534) is the display of the server's management controller."
    ]
    assert names(made) == ["no-gpu-found"]


def test_an_accelerator_in_the_processor_is_listed_too() -> None:
    npu = function("0000:00:0b.0", "8086:7d1d", 0x120000)
    finding = only("no-gpu-found", machine(pci=(npu, NETWORK), nvml=ABSENT))
    assert [e.text for e in finding.evidence] == ["0000:00:0b.0 (8086:7d1d) is part of the processor."]


def test_expected_cards_make_an_error_beside_it() -> None:
    made = machine(pci=(MATROX,), nvml=ABSENT)
    assert names(made, expect=1) == ["gpu-count-mismatch", "no-gpu-found"]
    one_cpu = machine(pci=(MATROX,), nvml=ABSENT, cpu_sockets=sockets(True, False))
    assert names(one_cpu, expect=1) == ["cpu-socket-empty", "no-gpu-found"]


def test_quiet_with_a_card_of_any_vendor() -> None:
    assert names(machine(amd(), pci=(MATROX,))) == []


def test_quiet_when_tensorflow_has_one() -> None:
    assert names(machine(), counts={"tensorflow": 1}) == []


def test_unchecked_when_pci_was_not_looked_at() -> None:
    assert missing("no-gpu-found", machine(pci=None)) == ("pci",)
    assert missing("no-gpu-found", Machine()) == ("gpus", "pci")


SAID = Nvml(status="ok", call="nvidia-smi", message="No devices were found", gpus=())


def test_what_nvidia_smi_does_not_find_may_be_on_pci() -> None:
    made = machine(pci=None, nvml=SAID, kernel_log=None)
    finding = only("no-gpu-found", made)
    assert "whether a card is on PCI was not given" in finding.message
    assert (finding.evidence[0].source, finding.evidence[0].text) == ("nvidia-smi", "No devices were found")
    assert "lspci -nnk -d 10de:" in finding.remedy[0]
    assert missing("no-gpu-found", made) == ("pci",)


def test_quiet_beside_the_reason_in_the_log() -> None:
    failed = log("NVRM: GPU 0000:82:00.0: RmInitAdapter failed! (0x26:0x56:1474)")
    assert names(machine(pci=None, nvml=SAID, kernel_log=failed)) == ["gpu-init-failed"]


def test_the_module_found_nothing_that_it_drives() -> None:
    said = "NVRM: No NVIDIA GPU found."
    finding = only("no-gpu-found", machine(gpus=None, pci=None, nvml=None, driver=None, kernel_log=log(said)))
    assert (finding.severity, finding.confidence, finding.evidence[0].text) == ("warning", "possible", said)
    # A module for another generation finds none in a machine whose cards work.
    assert "no-gpu-found" not in names(machine(amd(), kernel_log=log(said)))


def test_an_expected_card_that_nvidia_smi_does_not_find() -> None:
    made = machine(pci=None, nvml=SAID, kernel_log=None)
    assert names(made, expect=1) == ["gpu-count-mismatch"]
    finding = only("gpu-count-mismatch", made, expect=1)
    assert finding.message.startswith("One GPU is expected and nvidia-smi lists none")
    assert "whether it is on PCI was not given" in finding.message
    assert "lspci -nnk -d 10de:" in finding.remedy[0]
