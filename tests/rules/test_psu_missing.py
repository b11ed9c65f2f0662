from gpucheck.facts import Psu
from rules.machines import gpu, machine, missing, names, only

FITTED = Psu(location="PSU1", present=True, plugged=True)
EMPTY = Psu(location="PSU2", present=False)


def test_fires_once_for_all_empty_bays() -> None:
    finding = only("psu-missing", machine(gpu(), psus=(FITTED, EMPTY)))
    assert (finding.severity, finding.subject) == ("warning", "PSU2")
    bays = (FITTED, EMPTY, Psu(location="PSU3", present=False), Psu(location="PSU4", present=False))
    finding = only("psu-missing", machine(gpu(), psus=bays))
    assert finding.subject == "machine"
    assert finding.message == "1 of 4 power supplies fitted: the bays PSU2, PSU3, PSU4 are empty."


def test_quiet_when_all_are_fitted_or_the_record_is_a_placeholder() -> None:
    assert names(machine(gpu(), psus=(FITTED,))) == []
    assert names(machine(gpu(), psus=(FITTED, Psu(present=False)))) == []


def test_unchecked_without_an_answer() -> None:
    assert missing("psu-missing", machine(gpu(), psus=None)) == ("psus",)
    assert missing("psu-missing", machine(gpu(), psus=())) == ("psus",)
    # A machine that runs has a unit, so this firmware does not know.
    assert missing("psu-missing", machine(gpu(), psus=(EMPTY,))) == ("psus",)
    unknown = Psu(location="PSU2")
    assert missing("psu-missing", machine(gpu(), psus=(FITTED, unknown))) == ("psus.PSU2.present",)
