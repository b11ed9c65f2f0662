from gpucheck.facts import Machine
from rules.machines import driver, function, gpu, machine, missing, names, no_driver, only, seen

SWITCH = function("0000:c1:00.0", "10de:22a3", 0x068000)
H100 = gpu(pci_id="10de:2330", name="H100")


def hgx(running: bool | None, **known: object) -> Machine:
    made = {"pci": (SWITCH,), "driver": driver(fabric_manager_running=running), **known}
    return machine(H100, **made)


def test_fires_where_switches_are_there_and_nobody_sets_them_up() -> None:
    finding = only("fabric-manager-missing", hgx(False))
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "likely", "machine")
    assert "570.158.01" in finding.remedy[0]
    assert finding.next_test


def test_quiet() -> None:
    assert "fabric-manager-missing" not in names(hgx(True))
    assert "fabric-manager-missing" not in names(machine(H100, driver=driver(fabric_manager_running=False)))
    off = driver(fabric_manager_running=False, kernel_command_line="ro nvidia.NVreg_NvLinkDisable=1")
    assert "fabric-manager-missing" not in names(hgx(False, driver=off))
    bare = machine(
        gpu(driver=None, nvml=None), pci=(SWITCH,), driver=no_driver(fabric_manager_running=False), nvml=None
    )
    assert "fabric-manager-missing" not in names(bare)
    joined = gpu(pci_id="10de:2330", nvml=seen(fabric_state="completed"))
    waits = gpu("0000:82:00.0", pci_id="10de:2330", nvml=seen("0000:82:00.0", fabric_state="in-progress"))
    pid_elsewhere = {"pci": (SWITCH,), "driver": driver(fabric_manager_running=False)}
    assert "fabric-manager-missing" not in names(machine(joined, **pid_elsewhere))
    assert "fabric-manager-missing" in names(machine(joined, waits, **pid_elsewhere))
    old_chipset = function("0000:00:11.0", "10de:0057", 0x068000)
    assert "fabric-manager-missing" not in names(hgx(False, pci=(old_chipset,)))


def test_unchecked_where_nobody_looked() -> None:
    assert "fabric-manager-missing" not in names(hgx(None))
    assert missing("fabric-manager-missing", hgx(None)) == ("driver.fabric_manager_running",)
    assert missing("fabric-manager-missing", machine(H100, driver=driver())) == ()
    assert missing("fabric-manager-missing", Machine()) == ("pci", "gpus")
