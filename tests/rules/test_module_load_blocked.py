import pytest

from gpucheck.facts import Machine
from rules.machines import blind, driver, gpu, log, machine, missing, names, no_driver, only

NOT_LOADED = {"loaded_modules": (), "nvidia_version": None, "nvidia_flavour": None}
WAITS = driver(**NOT_LOADED, secure_boot=False)
REJECTED = "Loading of module with unavailable key is rejected"


@pytest.mark.parametrize(
    "line",
    [
        REJECTED,
        "Loading of unsigned module is rejected",
        "nvidia: loading of module with unavailable key is rejected",
        "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
    ],
)
def test_fires_for_a_refused_signature(line: str) -> None:
    made = machine(blind(), driver=driver(**NOT_LOADED, secure_boot=True), kernel_log=log(line), nvml=None)
    finding = only("module-load-blocked", made)
    assert (finding.severity, finding.confidence) == ("error", "likely")
    assert finding.evidence[0].text == line
    assert "mokutil" in finding.remedy[0]
    assert names(made) == ["module-load-blocked"]


@pytest.mark.parametrize(
    "line",
    [
        "nvidia: version magic '6.8.0-45-generic SMP preempt mod_unload' should be '6.8.0-48-generic SMP preempt'",
        "nvidia: disagrees about version of symbol module_layout",
    ],
)
def test_fires_for_a_module_of_another_kernel(line: str) -> None:
    made = machine(blind(), driver=WAITS, kernel_log=log(line), nvml=None)
    finding = only("module-load-blocked", made)
    assert finding.confidence == "certain"
    assert "6.8.0-48-generic" in finding.remedy[0]
    assert names(made) == ["module-load-blocked"]


def test_a_symbol_that_is_missing_may_have_another_cause() -> None:
    line = "nvidia: Unknown symbol backlight_device_register (err -2)"
    finding = only("module-load-blocked", machine(blind(), driver=WAITS, kernel_log=log(line), nvml=None))
    assert (finding.confidence, finding.evidence[0].text) == ("likely", line)


def test_fires_where_the_module_lies_in_another_kernels_folder() -> None:
    other = no_driver(library_versions=("570.158.01",), module_kernels=("6.8.0-45-generic",))
    made = machine(blind(), blind("0000:82:00.0"), driver=other, nvml=None)
    finding = only("module-load-blocked", made)
    assert (finding.confidence, finding.subject) == ("certain", "machine")
    assert "6.8.0-45-generic" in finding.message
    assert names(made) == ["module-load-blocked"]


def test_a_newer_kernel_that_is_there_is_booted_first() -> None:
    repair = "BOOT_IMAGE=/boot/vmlinuz-6.8.0-48-generic ro recovery nomodeset"
    newer = no_driver(module_kernels=("6.8.0-100-generic", "6.8.0-49-generic"), kernel_command_line=repair)
    steps = only("module-load-blocked", machine(blind(), driver=newer, nvml=None)).remedy
    assert steps[0] == "Boot kernel 6.8.0-100-generic, for which the module is built."
    assert "recovery, nomodeset" in steps[1]
    assert "dkms autoinstall" in steps[-1]
    older = no_driver(module_kernels=("6.8.0-9-generic",))
    assert "dkms" in only("module-load-blocked", machine(blind(), driver=older, nvml=None)).remedy[0]


@pytest.mark.parametrize(
    ("known", "evidence"),
    [
        ({"blacklisted_modules": ("nvidia",)}, "/etc/modprobe.d"),
        ({"kernel_command_line": "ro module_blacklist=nouveau,nvidia quiet"}, "/proc/cmdline"),
        ({"kernel_command_line": "ro modprobe.blacklist=nvidia"}, "/proc/cmdline"),
    ],
)
def test_fires_for_a_setting(known: dict[str, object], evidence: str) -> None:
    made = machine(blind(), driver=driver(**NOT_LOADED, secure_boot=False, **known), nvml=None)
    finding = only("module-load-blocked", made)
    assert finding.evidence[0].source == evidence
    assert names(made) == ["module-load-blocked"]


def test_secure_boot_alone_is_a_possible_cause_with_a_test() -> None:
    made = machine(blind(), driver=driver(**NOT_LOADED, secure_boot=True), nvml=None)
    finding = only("module-load-blocked", made)
    assert finding.confidence == "possible"
    assert "modprobe nvidia" in finding.next_test[0].do
    # The kernel's own words count where the firmware was not asked.
    said = log("secureboot: Secure boot enabled")
    assert names(machine(blind(), driver=driver(**NOT_LOADED), kernel_log=said, nvml=None)) == ["module-load-blocked"]


def test_a_card_that_nouveau_took_meanwhile() -> None:
    taken = blind(driver="nouveau")
    made = machine(taken, driver=driver(**NOT_LOADED, secure_boot=True), kernel_log=log(REJECTED), nvml=None)
    assert names(made) == ["nouveau-bound", "module-load-blocked"]
    guess = machine(taken, driver=driver(**NOT_LOADED, secure_boot=True), nvml=None)
    assert names(guess) == ["nouveau-bound"]


@pytest.mark.parametrize(
    "made",
    [
        machine(gpu(), blind("0000:82:00.0"), kernel_log=log(REJECTED), driver=driver(secure_boot=True)),
        machine(blind(), driver=WAITS, nvml=None),
        machine(blind(), driver=driver(**NOT_LOADED, secure_boot=False, blacklisted_modules=("nouveau",)), nvml=None),
        machine(
            blind(),
            driver=WAITS,
            nvml=None,
            kernel_log=log(
                "nvidia: module verification failed: signature and/or required key missing - tainting kernel"
            ),
        ),
        machine(blind(), driver=no_driver(), nvml=None),
    ],
    ids=["loaded", "nobody loaded it", "nouveau is blacklisted", "tainted only", "nothing installed"],
)
def test_quiet(made: Machine) -> None:
    assert "module-load-blocked" not in names(made)


def test_unchecked_without_its_facts() -> None:
    assert missing("module-load-blocked", Machine()) == ("gpus", "driver")
    unknown = driver(**NOT_LOADED)
    assert missing("module-load-blocked", machine(blind(), driver=unknown, kernel_log=None)) == (
        "driver.secure_boot",
        "kernel_log",
    )
    assert missing("module-load-blocked", machine(gpu(), driver=driver())) == ()
