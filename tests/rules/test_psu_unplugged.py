from gpucheck.facts import Psu
from rules.machines import gpu, machine, missing, names, only

PLUGGED = Psu(location="PSU1", model="PWR SPLY,1100W", watts=1100, present=True, plugged=True)


def test_fires_for_a_unit_without_mains() -> None:
    dark = Psu(location="PSU2", model="PWR SPLY,1100W", watts=1100, present=True, plugged=False)
    finding = only("psu-unplugged", machine(gpu(), psus=(PLUGGED, dark)))
    assert (finding.severity, finding.subject) == ("warning", "PSU2")
    assert finding.evidence[0].text == "PSU2, PWR SPLY,1100W: present, not plugged"


def test_quiet_for_plugged_and_absent_units() -> None:
    absent = Psu(location="PSU2", present=False, plugged=False)
    assert "psu-unplugged" not in names(machine(gpu(), psus=(PLUGGED, absent)))


def test_unit_without_a_name() -> None:
    assert only("psu-unplugged", machine(gpu(), psus=(PLUGGED, Psu(present=True, plugged=False)))).subject == "PSU 2"


def test_units_that_share_a_location_are_told_apart() -> None:
    units = (Psu(location="chassis", present=True, plugged=True), Psu(location="chassis", present=True, plugged=False))
    assert only("psu-unplugged", machine(gpu(), psus=units)).subject == "PSU 2"


def test_unchecked_without_records_is_not_without_units() -> None:
    assert missing("psu-unplugged", machine(gpu(), psus=None)) == ("psus",)
    assert missing("psu-unplugged", machine(gpu(), psus=())) == ("psus",)
    unknown = Psu(location="PSU2", present=True, plugged=None)
    assert missing("psu-unplugged", machine(gpu(), psus=(PLUGGED, unknown))) == ("psus.PSU2.plugged",)
