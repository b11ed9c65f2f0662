from gpucheck.facts import Machine
from rules.machines import found, names, only
from rules.software import card, log, trains

NAME = "tensorflow-ignores-gpu"
SMALL = (
    "Ignoring visible gpu device (device: 1, name: GeForce GTX 1050, pci bus id: 0000:82:00.0, compute capability: 6.1)"
    " with {what}: 5. The minimum required count is 8. You can adjust this requirement with the env var "
    "TF_MIN_GPU_MULTIPROCESSOR_COUNT."
)


def test_fires_as_a_warning_for_a_small_card() -> None:
    for what in ("core count", "Cuda multiprocessor count"):
        made = trains(card(), card("6.1", "0000:82:00.0"), tensorflow_log=log(SMALL.format(what=what)))
        finding = only(NAME, made)
        assert (finding.severity, finding.subject) == ("warning", "0000:82:00.0")
        assert "TF_MIN_GPU_MULTIPROCESSOR_COUNT=1" in finding.remedy[0]


def test_it_explains_the_smaller_count() -> None:
    made = trains(card(), card("6.1", "0000:82:00.0"), tensorflow_log=log(SMALL.format(what="core count")))
    assert names(made, counts={"tensorflow": 1}) == [NAME]
    assert only(NAME, made, expect=2, counts={"tensorflow": 1}).severity == "error"
    unexplained = trains(card(), card("6.1", "0000:82:00.0"), tensorflow_log=log("Created device GPU:0"))
    assert names(unexplained, counts={"tensorflow": 1}) == ["gpu-count-mismatch"]


def test_quiet() -> None:
    assert names(trains()) == []
    assert found(Machine(tensorflow_log=log("Ignoring visible gpu device 1 whose executor is in invalid state"))) == []


def test_unchecked_without_a_log() -> None:
    assert found(Machine()) == []  # nobody misses a log that was never made: nothing is listed
