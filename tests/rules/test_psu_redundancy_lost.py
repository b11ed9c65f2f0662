from gpucheck.facts import Power, Psu
from rules.machines import found, gpu, machine, missing, names, only

GOOD = Psu(location="PSU1", watts=1100, present=True, plugged=True, failed=False)
BAD = Psu(location="PSU2", model="PWR SPLY,1100W", watts=1100, present=True, plugged=True, failed=True)
LOST = Power(redundancy="lost", redundancy_text="PS Redundancy: Redundancy Lost")
LOG = tuple(f"{n} | 11/03/2026 | 10:1{n}:00 | Power Supply PS2 | Failure detected | Asserted" for n in range(5))


def test_fires_for_a_failed_unit() -> None:
    finding = only("psu-redundancy-lost", machine(gpu(), psus=(GOOD, BAD), power=LOST, bmc_events=LOG))
    assert (finding.severity, finding.subject) == ("warning", "PSU2")
    assert [evidence.text for evidence in finding.evidence] == ["PSU2, PWR SPLY,1100W: failed", *LOG[-3:]]


def test_fires_for_what_the_bmc_says_of_the_whole() -> None:
    made = machine(gpu(), psus=(GOOD, GOOD.model_copy(update={"location": "PSU2"})), power=LOST)
    finding = only("psu-redundancy-lost", made)
    assert (finding.severity, finding.subject, finding.confidence) == ("warning", "machine", "certain")
    assert finding.evidence[0].text == "PS Redundancy: Redundancy Lost"
    assert "psu-redundancy-lost" in names(machine(gpu(), psus=None, power=LOST))


def test_one_cause_is_told_once() -> None:
    dark = Psu(location="PSU2", present=True, plugged=False)
    assert names(machine(gpu(), psus=(GOOD, dark), power=LOST)) == ["psu-unplugged"]
    assert names(machine(gpu(), psus=(GOOD, Psu(location="PSU2", present=False)), power=LOST)) == ["psu-missing"]


def test_quiet_when_all_is_well_or_it_was_never_meant_to_be() -> None:
    two = (GOOD, GOOD.model_copy(update={"location": "PSU2"}))
    for power in (Power(redundancy="full"), Power(redundancy="none"), Power(drawn_watts=300)):
        assert [finding.name for finding in found(machine(gpu(), psus=two, power=power))] == []
    unknown = Psu(location="PSU2", present=True, plugged=True)  # "Present, Unknown", as Dell's firmware has it
    assert names(machine(gpu(), psus=(GOOD, unknown))) == []


def test_unchecked_where_nobody_says() -> None:
    assert missing("psu-redundancy-lost", machine(gpu(), power=None)) == ("power.redundancy",)
    assert missing("psu-redundancy-lost", machine(gpu(), power=Power(drawn_watts=300))) == ("power.redundancy",)
    assert missing("psu-redundancy-lost", machine(gpu(), power=Power(redundancy="full"))) == ()
    assert missing("psu-redundancy-lost", machine(gpu(), psus=(GOOD,))) == ()
