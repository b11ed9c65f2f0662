from gpucheck.facts import Cpu, Machine
from rules.machines import amd, machine, missing, names, only
from rules.software import card, log, software, trains

ABORTED = "The TensorFlow library was compiled to use AVX instructions, but these aren't available on your machine."
CELERON = Cpu(model="Intel(R) Celeron(R) CPU G3930 @ 2.90GHz", has_avx=False)


def test_fires_as_a_warning() -> None:
    finding = only("cpu-lacks-avx", trains(cpu=CELERON))
    assert (finding.severity, finding.confidence) == ("warning", "likely")
    assert "G3930" in finding.message
    assert not any("virtual" in step for step in finding.remedy)


def test_a_guest_is_told_of_its_processor_model() -> None:
    finding = only("cpu-lacks-avx", trains(cpu=Cpu(has_avx=False, hypervisor="QEMU")))
    assert "-cpu host" in finding.remedy[0]


def test_error_when_the_log_shows_it() -> None:
    assert only("cpu-lacks-avx", Machine(tensorflow_log=log(ABORTED))).severity == "error"


def test_quiet() -> None:
    assert names(trains(cpu=Cpu(has_avx=True))) == []
    assert names(machine(card(), cpu=CELERON)) == []
    assert names(machine(amd(), cpu=CELERON, software=software({"tensorflow": "2.21.0"}))) == []
    hint = "This TensorFlow binary was not compiled to use: AVX2 FMA, which are available on your machine"
    assert names(trains(cpu=Cpu(has_avx=True), tensorflow_log=log("Your CPU supports AVX2", hint))) == []


def test_unchecked_without_flags() -> None:
    assert missing("cpu-lacks-avx", trains(cpu=None)) == ("cpu.has_avx",)
    assert missing("cpu-lacks-avx", machine(card(), cpu=None)) == ()
