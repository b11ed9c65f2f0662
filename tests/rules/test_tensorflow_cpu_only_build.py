from gpucheck.facts import Machine, TensorFlowBuild
from rules.machines import amd, machine, missing, names, only
from rules.software import CPU_ONLY, card, log, software, trains

PACKAGES = {"tensorflow-cpu": "2.21.0", "keras": "3.15.1"}


def test_fires_as_a_warning() -> None:
    finding = only("tensorflow-cpu-only-build", trains(packages=PACKAGES, build=CPU_ONLY))
    assert (finding.severity, finding.confidence) == ("warning", "certain")
    assert "tensorflow-cpu 2.21.0" in finding.message
    assert [e.text for e in finding.evidence] == ["tensorflow-cpu 2.21.0", "is_cuda_build: False"]


def test_the_name_of_the_package_is_enough() -> None:
    assert names(trains(packages=PACKAGES, build=None)) == ["tensorflow-cpu-only-build"]


def test_the_build_counts_before_the_name() -> None:
    """Arm, and two packages that overwrote each other's files."""
    assert names(trains(packages={"tensorflow": "2.21.0"}, build=CPU_ONLY)) == ["tensorflow-cpu-only-build"]


def test_error_when_the_log_shows_it() -> None:
    made = trains(
        packages=PACKAGES, build=CPU_ONLY, tensorflow_log=log("Could not find cuda drivers on your machine, x.")
    )
    assert only("tensorflow-cpu-only-build", made).severity == "error"
    assert names(made) == ["tensorflow-cpu-only-build"]


def test_quiet() -> None:
    assert names(trains()) == []
    assert names(machine(amd(), software=software(PACKAGES, CPU_ONLY))) == []
    assert names(machine(card())) == []
    rocm = TensorFlowBuild(cuda=False, rocm=True)
    assert names(trains(packages={"tensorflow-rocm": "2.14.0"}, build=rocm)) == []
    assert names(trains(packages={"tensorflow": "9.9.9"}, build=TensorFlowBuild())) == []


def test_unchecked_without_packages() -> None:
    assert missing("tensorflow-cpu-only-build", machine(card(), software=None)) == ("software.packages",)
    assert missing("tensorflow-cpu-only-build", machine(amd(), software=None)) == ()
    assert missing("tensorflow-cpu-only-build", Machine()) == ()
