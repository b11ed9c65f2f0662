from gpucheck.facts import Machine, Nvml, NvmlGpu
from rules.machines import GIB, P40, amd, bar, blind, driver, found, gpu, log, machine, missing, names, only, sockets


def test_fires_when_a_card_is_missing_without_a_trace() -> None:
    finding = only("gpu-count-mismatch", machine(gpu()), expect=2)
    assert (finding.severity, finding.subject) == ("error", "machine")
    assert finding.message == "2 GPUs are expected and 1 can be seen: one is missing without a trace."
    assert [(e.source, e.text) for e in finding.evidence] == [
        ("PCI", "GPUs: 1"),
        ("NVML", "GPUs: 1"),
        ("--expect-gpus", "GPUs expected: 2"),
    ]


def test_quiet_when_the_expectation_is_met_or_exceeded() -> None:
    made = machine(gpu(), gpu("0000:82:00.0"))
    assert names(made) == names(made, expect=2) == names(made, expect=1) == names(made, expect=0) == []


def test_stands_aside_for_what_explains_the_loss() -> None:
    no_address = blind("0000:82:00.0", bars=(bar(1, 32 * GIB, assigned=False),))
    made = machine(gpu(), no_address)
    assert names(made, expect=2) == ["bar-unassigned"]
    assert only("bar-unassigned", made, expect=2).evidence[-1].text == "2 GPUs expected, 1 usable"
    # A third card that nobody sees is not explained by the second one's trouble ...
    assert names(made, expect=3) == ["bar-unassigned", "gpu-count-mismatch"]
    # ... but by an empty socket.
    one_cpu = machine(gpu(), no_address, cpu_sockets=sockets(True, False))
    assert [(f.name, f.severity) for f in found(one_cpu, expect=3)] == [
        ("cpu-socket-empty", "error"),
        ("bar-unassigned", "error"),
    ]
    assert [(f.name, f.severity) for f in found(one_cpu, expect=2)] == [
        ("bar-unassigned", "error"),
        ("cpu-socket-empty", "warning"),
    ]


def test_what_does_not_cost_a_card_is_not_raised() -> None:
    xid = "NVRM: Xid (PCI:0000:04:00): 79, pid=1, GPU has fallen off the bus."
    no_address = (bar(0, 16 * GIB), bar(5, GIB, assigned=False))
    made = machine(gpu(), gpu("0000:82:00.0", bars=no_address), kernel_log=log(xid))
    both = [("gpu-fell-off-bus", "warning"), ("bar-unassigned", "warning")]
    assert [(f.name, f.severity) for f in found(made, expect=2)] == both
    assert [(f.name, f.severity) for f in found(made, expect=3)] == [("gpu-count-mismatch", "error"), *both]


def test_expectation_that_is_just_met_raises_nothing() -> None:
    made = machine(gpu(), blind("0000:82:00.0", driver="vfio-pci"))
    assert [f.severity for f in found(made, expect=1)] == ["warning"]
    assert [f.severity for f in found(made, expect=2)] == ["error"]


def test_fallen_card_that_is_still_on_pci_explains_itself_alone() -> None:
    made = machine(gpu(), blind("0000:82:00.0", driver="nvidia", config_dead=True))
    assert names(made, expect=2) == ["gpu-fell-off-bus"]
    assert names(made, expect=3) == ["gpu-fell-off-bus", "gpu-count-mismatch"]


def test_card_on_pci_that_nvml_does_not_list() -> None:
    made = machine(gpu(), blind("0000:82:00.0", driver="nvidia"))
    finding = only("gpu-count-mismatch", made)
    assert (finding.severity, finding.subject) == ("error", "0000:82:00.0")
    assert names(made, expect=2) == ["gpu-count-mismatch"]


def test_cards_hidden_from_this_process_are_a_warning_until_they_are_expected() -> None:
    made = machine(gpu(), blind("0000:82:00.0", driver="nvidia"), blind("0000:83:00.0", driver="nvidia"))
    hidden = {"counts": {"device_files": 1}}
    finding = only("gpu-count-mismatch", made, **hidden)
    assert (finding.severity, finding.confidence, finding.subject) == ("warning", "possible", "machine")
    assert only("gpu-count-mismatch", made, expect=1, **hidden).severity == "warning"
    assert only("gpu-count-mismatch", made, expect=3, **hidden).severity == "error"


def test_stale_driver_state() -> None:
    gone = gpu("0000:82:00.0", on_pci=False, driver=None, driver_read=False, bars=None, config_dead=None)
    finding = only("gpu-count-mismatch", machine(gpu(), gone))
    assert finding.subject == "0000:82:00.0"
    assert "stale" in finding.message


def test_no_card_on_pci_at_all_is_how_wsl_is_made() -> None:
    only_nvml = gpu(on_pci=False, driver=None, driver_read=False, bars=None, config_dead=None)
    assert names(machine(only_nvml)) == names(machine(only_nvml), expect=1) == []


def test_vendors_are_compared_apart() -> None:
    made = machine(gpu(), amd(), amd("0000:84:00.0"))
    assert names(made) == names(made, expect=3) == []


def test_level_that_could_not_start_proves_nothing() -> None:
    made = machine(blind(driver="nvidia"), nvml=Nvml(status="timed-out"))
    assert "gpu-count-mismatch" not in names(made, expect=1)
    assert missing("gpu-count-mismatch", made) == ("nvml.gpus",)
    assert missing("gpu-count-mismatch", machine(amd(), nvml=None)) == ()
    assert missing("gpu-count-mismatch", machine(gpu(), nvml=None)) == ("nvml.gpus",)


def test_devices_of_nvml_without_an_address_cannot_be_called_missing() -> None:
    nameless = Nvml(status="ok", gpus=(NvmlGpu(index=0),))
    assert names(machine(blind(driver="nvidia"), nvml=nameless)) == []


def test_an_excerpt_of_nvmls_list_is_compared_with_nothing() -> None:
    cards = gpu(), gpu("0000:82:00.0", nvml=None)
    listed = tuple(card.nvml for card in cards if card.nvml is not None)
    for complete, found_names, lacked in ((True, ["gpu-count-mismatch"], ()), (False, [], ("nvml.complete",))):
        made = machine(*cards, nvml=Nvml(status="ok", gpus=listed, complete=complete))
        assert names(made) == found_names
        assert missing("gpu-count-mismatch", made) == lacked


def test_tensorflow_lists_fewer() -> None:
    made = machine(gpu(), gpu("0000:82:00.0"))
    assert names(made, counts={"tensorflow": 1}) == ["gpu-count-mismatch"]
    assert names(made, counts={"tensorflow": 2}) == names(made, counts={"tensorflow": 0}) == []


def test_unchecked_when_no_level_was_looked_at() -> None:
    assert missing("gpu-count-mismatch", Machine()) == ("gpus",)
    assert names(Machine(), expect=2) == []


def test_open_module_on_old_cards_explains_both() -> None:
    lines = [
        f"NVRM: The NVIDIA GPU {address} (PCI ID: {P40}) installed in this system has fallen off the bus and is not "
        "responding to commands."
        for address in ("0000:04:00.0", "0000:82:00.0")
    ]
    made = machine(
        blind(),
        blind("0000:82:00.0"),
        kernel_log=log(*lines),
        driver=driver(nvidia_flavour="open"),
        nvml=Nvml(status="ok", gpus=()),
    )
    assert names(made, expect=2) == ["open-module-unsupported", "open-module-unsupported"]
