from gpucheck.facts import Nvml
from rules.machines import blind, gpu, log, machine, missing, names, only

HUNG = Nvml(status="timed-out", call="nvmlDeviceGetHandleByIndex_v2")


def test_fires_as_a_warning_and_names_the_call() -> None:
    stuck = "INFO: task cache_mgr_event:2811 blocked for more than 120 seconds."
    made = machine(blind(driver="nvidia"), nvml=HUNG, kernel_log=log("other", stuck))
    finding = only("nvml-timeout", made)
    assert (finding.severity, finding.evidence[0].source) == ("warning", "nvmlDeviceGetHandleByIndex_v2")
    assert finding.evidence[1].text == stuck


def test_says_nothing_of_the_number_of_cards() -> None:
    made = machine(blind(driver="nvidia"), blind("0000:82:00.0", driver="nvidia"), nvml=HUNG)
    assert names(made, expect=2) == ["nvml-timeout"]
    assert only("nvml-timeout", made, expect=2).severity == "warning"


def test_quiet_when_nvml_answers_or_fails_at_once() -> None:
    assert names(machine(gpu())) == []
    assert "nvml-timeout" not in names(machine(blind(driver="nvidia"), nvml=Nvml(status="failed", code=9)))


def test_unchecked_when_nvml_was_not_asked() -> None:
    assert missing("nvml-timeout", machine(gpu(), nvml=None)) == ("nvml",)
