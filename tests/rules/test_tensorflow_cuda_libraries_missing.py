import pytest

from gpucheck.catalog import load
from gpucheck.facts import Environment, Machine
from rules.machines import amd, found, machine, missing, names, only
from rules.software import CUDA_12, SONAMES, WHEELS, card, log, software, trains

NAME = "tensorflow-cuda-libraries-missing"
REFUSED = (
    "Cannot dlopen some GPU libraries. Please make sure the missing libraries mentioned above are installed properly.",
    "Skipping registering GPU devices...",
)
STUB = "Could not find cuda drivers on your machine, GPU will not be used."


def test_fires_for_the_plain_package() -> None:
    finding = only(NAME, trains(packages={"tensorflow": "2.21.0"}))
    assert (finding.severity, finding.confidence) == ("warning", "likely")
    assert "none of the CUDA libraries" in finding.message


def test_one_is_missing() -> None:
    packages = {"tensorflow": "2.21.0", **{name: v for name, v in WHEELS.items() if "cusparse" not in name}}
    finding = only(NAME, trains(packages=packages))
    assert "libcusparse.so.12" in finding.message
    assert "libcublas" not in finding.message


def test_packages_of_another_cuda() -> None:
    packages = {"tensorflow": "2.21.0", **{name.replace("cu12", "cu11"): v for name, v in WHEELS.items()}}
    assert "none of the CUDA libraries" in only(NAME, trains(packages=packages)).message


def test_libraries_of_the_system() -> None:
    assert names(trains(packages={"tensorflow": "2.21.0"}, libraries=SONAMES)) == []
    full = tuple(f"{name}.4.1" for name in SONAMES)
    assert names(trains(packages={"tensorflow": "2.21.0"}, libraries=full)) == []
    old = tuple(name.replace("libcudnn.so.9", "libcudnn.so.8") for name in SONAMES)
    assert "libcudnn.so.9" in only(NAME, trains(packages={"tensorflow": "2.21.0"}, libraries=old)).message


def test_a_list_of_packages_alone_is_weaker() -> None:
    """pip list does not tell what the system has."""
    made = machine(card(), software=software({"tensorflow": "2.15.0"}, None, libraries=None))
    finding = only(NAME, made, catalog=load())
    assert (finding.severity, finding.confidence) == ("warning", "possible")
    assert [reading.seen for reading in finding.next_test[0].outcomes][1] == "tensorflow-cpu"
    assert NAME not in names(made)  # nothing is known of the version without the catalog
    assert missing(NAME, made) == ("software.libraries",)
    excerpt = software({"tensorflow": "2.15.0"}, None, libraries=None, packages_complete=False)
    assert NAME not in names(machine(card(), software=excerpt), catalog=load())


def test_2_16_does_not_look_where_pip_puts_them() -> None:
    packages = {"tensorflow": "2.16.1", **WHEELS}
    finding = only(NAME, trains(packages=packages))
    assert (finding.severity, finding.confidence) == ("warning", "likely")
    assert "2.17" in finding.remedy[0]
    told = Environment(variables={"LD_LIBRARY_PATH": "/opt/p/site-packages/nvidia/cudnn/lib"})
    assert names(trains(packages=packages, environment=told)) == []
    assert names(trains(packages=packages, libraries=SONAMES)) == []
    assert names(trains(packages={"tensorflow": "2.17.1", **WHEELS})) == []


@pytest.mark.parametrize(
    ("lines", "words", "confidence"),
    [
        (REFUSED, "one of the CUDA libraries", "certain"),
        ((STUB,), "libcudart", "likely"),
        (
            (
                "Could not load dynamic library 'libcusolver.so.11'; dlerror: libnvJitLink.so.12: cannot open shared "
                "object file: No such file or directory; LD_LIBRARY_PATH: /usr/lib",
                *REFUSED,
            ),
            "libnvJitLink.so.12",
            "certain",
        ),
    ],
)
def test_the_log_says_it(lines: tuple[str, ...], words: str, confidence: str) -> None:
    made = machine(card(), software=None, tensorflow_log=log(*lines))
    finding = only(NAME, made)
    assert (finding.severity, finding.confidence) == ("error", confidence)
    assert words in finding.message
    assert {e.text for e in finding.evidence} == set(lines)


def test_the_log_alone() -> None:
    """The package prints the same on a machine without a card."""
    finding = only(NAME, Machine(tensorflow_log=log(STUB)))
    assert (finding.severity, finding.confidence) == ("warning", "possible")
    assert names(machine(amd(), tensorflow_log=log(STUB))) == []


def test_the_log_counts_before_packages() -> None:
    made = trains(packages={"tensorflow": "2.21.0"}, tensorflow_log=log(*REFUSED))
    assert [(f.name, f.severity) for f in found(made)] == [(NAME, "error")]


def test_a_library_that_nothing_needs() -> None:
    line = "Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file"
    assert names(trains(tensorflow_log=log(line))) == []


def test_libdevice() -> None:
    made = trains(tensorflow_log=log("Can't find libdevice directory ${CUDA_DIR}/nvvm/libdevice."))
    finding = only(NAME, made)
    assert (finding.severity, finding.subject, finding.confidence) == ("warning", "XLA", "likely")
    assert "CONDA_PREFIX" in finding.remedy[1]
    failed = trains(tensorflow_log=log("INTERNAL: libdevice not found at ./libdevice.10.bc"))
    assert only(NAME, failed).severity == "error"


def test_quiet() -> None:
    assert names(trains()) == []
    assert names(machine(amd(), software=software({"tensorflow": "2.21.0"}))) == []
    assert names(trains(packages={"nvidia-tensorflow": "1.15.5+nv22.5"})) == []
    unknown = CUDA_12.model_copy(update={"cuda_version": "99"})
    assert names(trains(packages={"tensorflow": "2.99.0"}, build=unknown)) == []


def test_unchecked_without_packages() -> None:
    assert missing(NAME, machine(card(), software=None)) == ("software.packages",)
