from __future__ import annotations

from typing import Any

from gpucheck.facts import Machine, Psu, System
from rules.machines import gpu, machine, missing, names, only, seen


def working(*reasons: str, **known: Any) -> Machine:
    """One card at full load, with these reasons for its clocks."""
    loaded = {"utilization_percent": 100, "sm_clock_mhz": 382, "sm_max_clock_mhz": 1530, "clock_reasons": reasons}
    more = {name: known.pop(name) for name in [*known] if name in ("system", "psus")}
    return machine(gpu(nvml=seen(**{**loaded, **known}), subsystem_id="10de:1249"), **more)


DELL = System(vendor="Dell Inc.", product="PowerEdge C4130")


def test_fires_as_an_error_for_a_loaded_card_that_crawls() -> None:
    finding = only("power-brake", working("hw-slowdown", "hw-power-brake"))
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "possible", "0000:04:00.0")
    assert "382 of 1530 MHz" in finding.message
    assert finding.evidence[0].text == "hw-slowdown, hw-power-brake"
    assert "10de:1249" in finding.evidence[-1].text
    assert len(finding.next_test) == 2
    assert "iDRAC" not in " ".join(finding.remedy)


def test_on_a_dell_the_subsystem_is_compared_first() -> None:
    finding = only("power-brake", working("hw-power-brake", system=DELL))
    assert "power table" in finding.remedy[0]
    assert "10de:1249" in finding.remedy[0]


def test_a_supply_without_mains_is_evidence() -> None:
    finding = only("power-brake", working("hw-power-brake", psus=(Psu(location="PSU2", present=True, plugged=False),)))
    assert ("Power supply record", "PSU2: no mains") in [(line.source, line.text) for line in finding.evidence]


def test_a_brake_that_costs_nothing_now_is_a_warning() -> None:
    idle = working("idle", "hw-power-brake", utilization_percent=0)
    assert only("power-brake", idle).severity == "warning"
    assert only("power-brake", working("hw-power-brake", sm_clock_mhz=1500)).severity == "warning"


def test_a_slowdown_without_a_reason_counts_under_load_only() -> None:
    assert only("power-brake", working("hw-slowdown")).severity == "warning"
    assert names(working("hw-slowdown", utilization_percent=0)) == []
    assert names(working("hw-slowdown", sm_clock_mhz=1500)) == []
    assert names(working("hw-slowdown", "hw-thermal")) == ["thermal-slowdown"]


def test_quiet_on_a_cap_near_its_limit() -> None:
    capped = only("power-brake", working("sw-power-cap", power_watts=240.0, power_limit_watts=400.0))
    assert (capped.severity, capped.confidence) == ("warning", "possible")
    assert "240 W of 400 W" in capped.message
    assert names(working("sw-power-cap", power_watts=395.0, power_limit_watts=400.0)) == []
    assert names(working("sw-power-cap", power_watts=24.0, power_limit_watts=400.0, utilization_percent=0)) == []
    assert names(working("sw-power-cap")) == []


def test_unchecked_without_reasons() -> None:
    lacking = machine(gpu(nvml=seen(clock_reasons=None)))
    assert missing("power-brake", lacking) == ("gpus.0000:04:00.0.nvml.clock_reasons",)
    unable = seen(clock_reasons=None, errors={"nvmlDeviceGetCurrentClocksThrottleReasons": 3})
    assert missing("power-brake", machine(gpu(nvml=unable))) == ()
    assert missing("power-brake", machine(gpu(), nvml=None)) == ("nvml",)
