import pytest

from rules.machines import machine, missing, names, only
from rules.software import CPU_ONLY, SONAMES, WHEELS, card, trains

NAME = "tensorflow-cudnn-too-new"
NEWEST = {"tensorflow": "2.21.0", **WHEELS, "nvidia-cudnn-cu12": "9.28.0.42"}


@pytest.mark.parametrize("capability", ["6.0", "6.1", "7.0"])
def test_fires(capability: str) -> None:
    finding = only(NAME, trains(card(capability), packages=NEWEST))
    assert (finding.severity, finding.confidence) == ("warning", "likely")
    assert [e.text for e in finding.evidence] == ["nvidia-cudnn-cu12 9.28.0.42", f"compute capability {capability}"]


def test_only_the_old_cards_are_named() -> None:
    finding = only(NAME, trains(card("6.1"), card("8.6", "0000:82:00.0"), packages=NEWEST))
    assert finding.subject == "0000:04:00.0"
    assert "0000:82:00.0" not in finding.message


def test_a_library_of_the_path() -> None:
    libraries = (*SONAMES, "libcudnn.so.9.12.0")
    finding = only(NAME, trains(packages={"tensorflow": "2.21.0"}, libraries=libraries))
    assert finding.evidence[0].text == "libcudnn.so.9.12.0"
    assert names(trains(packages={"tensorflow": "2.21.0", **WHEELS}, libraries=libraries)) == []  # the package is first


@pytest.mark.parametrize("version", ["9.3.0.75", "9.10.2.21", "8.9.7.29", "odd"])
def test_quiet_on_older_ones(version: str) -> None:
    assert names(trains(packages={"tensorflow": "2.21.0", **WHEELS, "nvidia-cudnn-cu12": version})) == []


def test_quiet() -> None:
    assert names(trains(card("7.5"), packages=NEWEST)) == []
    assert names(trains(packages={"nvidia-cudnn-cu12": "9.28.0.42"})) == []
    assert NAME not in names(trains(packages=NEWEST, build=CPU_ONLY))


def test_unchecked_without_facts() -> None:
    assert missing(NAME, machine(card(), software=None)) == ("software.packages",)
    assert missing(NAME, trains(card(None), packages=NEWEST)) == ("gpus.0000:04:00.0.nvml.compute_capability",)
    assert missing(NAME, trains(card(None))) == ()
