from __future__ import annotations

from rules.machines import gpu, machine, missing, names, only, seen


def test_fires_where_the_hardware_had_to_step_in() -> None:
    hot = seen(clock_reasons=("hw-slowdown", "hw-thermal"), temperature_c=97)
    finding = only("thermal-slowdown", machine(gpu(), gpu("0000:82:00.0", nvml=hot)))
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "certain", "0000:82:00.0")
    assert "97 °C" in [line.text for line in finding.evidence]


def test_the_driver_holds_back() -> None:
    warm = machine(gpu(nvml=seen(clock_reasons=("sw-thermal",))))
    assert only("thermal-slowdown", warm).severity == "warning"
    assert names(warm) == ["thermal-slowdown"]


def test_quiet_for_other_reasons() -> None:
    for reasons in ((), ("idle",), ("sw-power-cap",), ("applications-clocks", "0x200")):
        assert names(machine(gpu(nvml=seen(clock_reasons=reasons)))) == []


def test_unchecked_without_reasons() -> None:
    lacking = machine(gpu(nvml=seen(clock_reasons=None, errors={"nvmlDeviceGetCurrentClocksEventReasons": 999})))
    assert missing("thermal-slowdown", lacking) == ("gpus.0000:04:00.0.nvml.clock_reasons",)
