from pathlib import Path

import pytest

from gpucheck.catalog import load
from gpucheck.entries import FirmwareSetting, Form, Server, SlotRow, Sockets, Source
from gpucheck.facts import Cpu, KernelLog, Machine
from gpucheck.readers.kernel_log import parse
from gpucheck.rules import View, judge
from rules.machines import (
    GIB,
    MIB,
    V100,
    amd,
    bar,
    blind,
    bridge,
    driver,
    found,
    function,
    gpu,
    log,
    machine,
    missing,
    names,
    only,
)

UNASSIGNED = (bar(0, 16 * MIB), bar(1, 32 * GIB, assigned=False), bar(3, 32 * MIB))


def test_fires_for_the_second_card_whose_bar_got_no_address() -> None:
    made = machine(gpu(), blind("0000:82:00.0", bars=UNASSIGNED))
    finding = only("bar-unassigned", made)
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "certain", "0000:82:00.0")
    assert "32 GiB" in finding.message
    assert finding.evidence[0].text == "BAR 1 of 32 GiB: no address"
    assert "CSM" in finding.remedy[0]
    assert "Above 4G" in finding.remedy[1]
    assert not any("realloc" in step or "update" in step.lower() for step in finding.remedy)


def test_explains_the_missing_driver_too() -> None:
    made = machine(gpu(), blind("0000:82:00.0", bars=UNASSIGNED))
    assert names(made, expect=2) == ["bar-unassigned"]


def test_quiet_when_every_memory_bar_has_an_address() -> None:
    assert names(machine(gpu(bars=(bar(0, 16 * MIB), bar(1, 256 * MIB))))) == []


def test_unchecked_without_bars_and_log() -> None:
    made = machine(gpu(bars=None), kernel_log=None)
    assert missing("bar-unassigned", made) == ("gpus.0000:04:00.0.bars", "kernel_log")
    assert missing("bar-unassigned", Machine()) == ("gpus", "kernel_log")


def test_the_log_is_missed_only_where_it_is_the_only_witness() -> None:
    assert missing("bar-unassigned", machine(kernel_log=None)) == ()
    assert missing("bar-unassigned", machine(gpu(), kernel_log=None)) == ()
    assert missing("bar-unassigned", machine(gpu(), pci=None, kernel_log=None)) == ("kernel_log",)


def test_0m_from_the_driver_is_decisive() -> None:
    lines = (
        "nvidia 0000:73:00.0: enabling device (0140 -> 0142)",
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: BAR1 is 0M @ 0x0 (PCI:0000:73:00.0)",
        "nvidia: probe of 0000:73:00.0 failed with error -1",
    )
    # The kernel keeps nothing of a BAR whose line in sysfs is all zero.
    card = blind("0000:73:00.0", name="Tesla V100", pci_id=V100, bars=(bar(0, 16 * MIB),))
    finding = only("bar-unassigned", machine(card, kernel_log=log(*lines)))
    assert (finding.subject, finding.confidence) == ("0000:73:00.0", "certain")
    assert finding.evidence[0].text == lines[1]
    assert finding.evidence[0].source == "dmesg"


def test_address_of_an_old_driver_comes_from_the_lines_around() -> None:
    lines = ("NVRM: BAR1 is 0M @ 0x0 (PCI:0002:00.0)", "nvidia: probe of 0000:67:00.0 failed with error -1")
    made = Machine(kernel_log=log(*lines))
    assert [f.subject for f in found(made)] == ["0000:67:00.0"]


def test_2008_wording_is_another_matter() -> None:
    lines = (
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: BAR1 is 256M @ 0x00000000 "
        "(PCI:30000000:01.0)",
        "nvidia: probe of 0000:00:10.0 failed with error -1",
    )
    assert names(Machine(kernel_log=log(*lines))) == []


@pytest.mark.parametrize(
    "line",
    [
        "pci 0000:04:00.0: BAR 1: no space for [mem size 0x800000000 64bit pref]",
        "pci 0000:04:00.0: BAR 1: failed to assign [mem size 0x800000000 64bit pref]",
        "pci 0000:04:00.0: BAR 1: can't assign mem pref (size 0x10000000)",
        "pci 0000:04:00.0: BAR 1 [mem size 0x800000000 64bit pref]: can't assign; no space",
        "pci 0000:04:00.0: BAR 1 [mem size 0x800000000 64bit pref]: failed to assign",
    ],
)
def test_kernel_alone_is_enough_in_every_wording(line: str) -> None:
    finding = only("bar-unassigned", machine(blind(bars=None), kernel_log=log(line)))
    assert finding.confidence == "likely"
    assert finding.evidence[0].text == line


@pytest.mark.parametrize(
    "line",
    [
        "pci 0000:04:00.0: BAR 6: no space for [mem size 0x00080000 pref]",
        "pci 0000:04:00.0: BAR 5: no space for [io  size 0x0080]",
        "pci 0000:04:00.0: BAR 5 [io  size 0x0080]: can't assign; no space",
        "pci 0000:04:00.0: BAR 7: no space for [mem size 0x02000000 64bit]",
        "pci 0000:04:00.0: VF BAR 1 [mem size 0x00080000]: can't assign; no space",
        "pci 0000:00:03.0: BAR 13: no space for [io  size 0x1000]",
        "pci 0000:04:00.0: can't claim BAR 6 [mem 0xfff80000-0xffffffff pref]: no compatible bridge window",
        "pci 0000:05:00.0: BAR 1: no space for [mem size 0x800000000 64bit pref]",
    ],
)
def test_false_friends_in_the_log(line: str) -> None:
    made = machine(blind(bars=None), kernel_log=log(line), pci=(bridge("0000:00:03.0"),))
    assert "bar-unassigned" not in names(made)


def test_last_word_of_the_kernel_wins() -> None:
    refused = "pci 0000:04:00.0: BAR 1: no space for [mem size 0x800000000 64bit pref]"
    placed = "pci 0000:04:00.0: BAR 1: assigned [mem 0x3800000000-0x3fffffffff 64bit pref]"
    assert "bar-unassigned" not in names(machine(blind(bars=None), kernel_log=log(refused, placed)))
    assert "bar-unassigned" in names(machine(blind(bars=None), kernel_log=log(placed, refused)))


def test_sysfs_contradicts_the_log() -> None:
    refused = "pci 0000:04:00.0: BAR 1: no space for [mem size 0x800000000 64bit pref]"
    assert "bar-unassigned" not in names(machine(blind(), kernel_log=log(refused)))


BRIDGE_LINE = "pcieport 0000:00:1d.4: BAR 15: failed to assign [mem size 0xc00000000 64bit pref]"


BEHIND_A_PORT = (
    bridge("0000:00:1d.4"),
    function("0000:04:00.0", "10de:2684", 0x030000, parent="0000:00:1d.4"),
)


def test_window_of_a_bridge_is_evidence_but_no_proof() -> None:
    works = machine(gpu(bars=(bar(1, 256 * MIB),)), kernel_log=log(BRIDGE_LINE), pci=BEHIND_A_PORT)
    assert names(works) == []
    bars_unread = works.model_copy(update={"gpus": (blind(bars=None),)})
    finding = only("bar-unassigned", bars_unread)
    assert (finding.severity, finding.confidence) == ("warning", "possible")
    unassigned = works.model_copy(update={"gpus": (blind(bars=UNASSIGNED),)})
    assert [e.text for e in only("bar-unassigned", unassigned).evidence] == [
        "BAR 1 of 32 GiB: no address",
        BRIDGE_LINE,
    ]


@pytest.mark.parametrize(
    "line",
    [
        "pcieport 0000:00:1d.4: BAR 13: failed to assign [mem size 0x1000]",
        "pcieport 0000:00:1d.4: BAR 15: assigned [mem 0x4000000000-0x4011ffffff 64bit pref]",
        "pcieport 0000:00:1d.5: BAR 15: failed to assign [mem size 0xc00000000 64bit pref]",
    ],
)
def test_other_windows_say_nothing(line: str) -> None:
    made = machine(blind(bars=None), kernel_log=log(line), pci=BEHIND_A_PORT)
    assert "bar-unassigned" not in names(made)


def test_new_kernels_name_the_window() -> None:
    line = "pcieport 0000:00:1d.4: bridge window [mem size 0xc00000000 64bit pref]: can't assign; no space"
    made = machine(blind(bars=None), kernel_log=log(line), pci=BEHIND_A_PORT)
    assert only("bar-unassigned", made).confidence == "possible"


def test_0m_without_any_address() -> None:
    line = "NVRM: BAR1 is 0M @ 0x0 (PCI:30000000:01.0)"
    finding = only("bar-unassigned", machine(blind(), kernel_log=log(line)))
    assert (finding.subject, finding.confidence) == ("machine", "likely")
    assert names(machine(gpu(), kernel_log=log(line))) == []


def test_bus_that_was_scanned_anew() -> None:
    line = "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:04:00.0)"
    assert only("bar-unassigned", machine(blind(), kernel_log=log(line))).confidence == "likely"
    assert names(machine(gpu(), kernel_log=log(line))) == []


REFUSED = "pci 0000:05:00.0: BAR 1 [mem size 0x800000000 64bit pref]: failed to assign"


@pytest.mark.parametrize(
    "lines",
    [
        ("pci 0000:05:00.0: BAR 1 [mem size 0x00100000 64bit pref]: failed to assign",),
        (
            "pci 0000:05:00.0: BAR 1 [mem size 0x800000000 64bit pref]: can't assign; no space",
            REFUSED.replace("failed to assign", "assigned"),
        ),
        ("pci 0000:05:00.0: [10de:1b38] type 00 class 0x030200", REFUSED.replace("BAR 1", "BAR 6")),
        ("pci 0000:05:00.0: [8086:6f08] type 01 class 0x060400", REFUSED.replace("BAR 1", "bridge window")),
    ],
    ids=["small", "assigned in the end", "ROM", "bridge"],
)
def test_log_alone_with_false_friends(lines: tuple[str, ...]) -> None:
    assert names(Machine(kernel_log=log(*lines))) == []


def test_log_alone_with_a_device_that_says_what_it_is() -> None:
    class_line = "pci 0000:05:00.0: [10de:1b38] type 00 class 0x030200"
    assert only("bar-unassigned", Machine(kernel_log=log(REFUSED))).confidence == "possible"
    assert only("bar-unassigned", Machine(kernel_log=log(class_line, REFUSED))).confidence == "likely"


def test_log_about_a_device_that_is_no_gpu_of_this_machine() -> None:
    assert names(machine(gpu(), kernel_log=log(REFUSED), pci=None)) == []
    assert names(machine(kernel_log=log(REFUSED), pci=(bridge("0000:00:03.0"),))) == ["no-gpu-found"]


def test_log_beside_nvml_that_lists_other_cards() -> None:
    listed = gpu(on_pci=None, driver=None, driver_read=False, bars=None, config_dead=None)
    zero = "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:73:00.0)"
    made = machine(listed, pci=None, kernel_log=log(zero, zero.replace("73", "04"), REFUSED.replace("05", "04")))
    assert [f.subject for f in found(made)] == ["0000:73:00.0"]


def test_legacy_boot_is_shown() -> None:
    made = machine(blind(bars=UNASSIGNED))
    assert made.driver is not None
    made = made.model_copy(update={"driver": made.driver.model_copy(update={"efi_boot": False})})
    assert only("bar-unassigned", made).evidence[-1].source == "/sys/firmware/efi"


LOW = "pci_bus 0000:00: root bus resource [mem 0x80000000-0xdfffffff window]"
HIGH = "pci_bus 0000:00: root bus resource [mem 0x380000000000-0x3807ffffffff window]"


def test_window_above_4_gib_tells_size_from_switch() -> None:
    unknown = only("bar-unassigned", machine(blind(bars=UNASSIGNED), kernel_log=None))
    assert "root bus resource" in unknown.next_test[0].do
    off = only("bar-unassigned", machine(blind(bars=UNASSIGNED), kernel_log=log(LOW)))
    assert "CSM" in off.remedy[0]
    assert not any("root bus resource" in test.do for test in off.next_test)
    small = only("bar-unassigned", machine(blind(bars=UNASSIGNED), kernel_log=log(LOW, HIGH)))
    assert "MMIO" in small.remedy[0]
    assert not any("Above 4G" in step for step in small.remedy)
    truncated = only("bar-unassigned", machine(blind(bars=UNASSIGNED), kernel_log=log(LOW, complete=False)))
    assert truncated.next_test == unknown.next_test


def test_names_the_window_that_is_missing_or_too_small() -> None:
    off = only("bar-unassigned", machine(blind(bars=UNASSIGNED), kernel_log=log(LOW)))
    assert "no memory window above 4 GiB" in off.message
    assert off.evidence[1].text == LOW
    assert not any("realloc" in test.do for test in off.next_test)
    two = (gpu("0000:05:00.0"), blind(bars=UNASSIGNED))
    short = only("bar-unassigned", machine(*two, kernel_log=log(LOW, HIGH)))
    assert "need 64 GiB above 4 GiB, and the window there holds 32 GiB" in short.message
    assert not any("realloc" in step for step in short.remedy)


def test_window_of_another_root_bus_is_no_witness() -> None:
    tree = (bridge("0000:00:02.0"), function("0000:04:00.0", "10de:1b38", 0x030200, parent="0000:00:02.0"))
    elsewhere = LOW.replace("0000:00", "0000:80")
    made = machine(blind(bars=UNASSIGNED), pci=tree, kernel_log=log(elsewhere, HIGH))
    assert "window" not in only("bar-unassigned", made).message
    own = machine(blind(bars=UNASSIGNED), pci=tree, kernel_log=log(LOW, HIGH.replace("0000:00", "0000:80")))
    assert "no memory window above 4 GiB" in only("bar-unassigned", own).message


ROOMY = HIGH.replace("3807f", "380ff")


def test_kernel_may_assign_anew_only_where_there_is_room() -> None:
    made = machine(blind(bars=UNASSIGNED), kernel_log=log(LOW, ROOMY))
    assert "pci=realloc" in only("bar-unassigned", made).remedy[0]
    unknown = only("bar-unassigned", machine(blind(bars=UNASSIGNED), kernel_log=None))
    assert "Boot once with pci=realloc" in unknown.next_test[1].do
    again = machine(
        blind(bars=UNASSIGNED), kernel_log=log(LOW, ROOMY), driver=driver(kernel_command_line="ro pci=nocrs,realloc")
    )
    finding = only("bar-unassigned", again)
    assert not any("realloc" in step for step in finding.remedy)
    assert "without pci=realloc" in finding.next_test[0].do


def test_setting_that_the_bmc_tells() -> None:
    off = machine(
        blind(bars=UNASSIGNED), firmware_settings={"MmioAbove4Gb": "Disabled", "SriovGlobalEnable": "Disabled"}
    )
    finding = only("bar-unassigned", off)
    assert "MmioAbove4Gb is switched off" in finding.message
    told = finding.evidence[1]
    assert (told.source, told.text) == ("BIOS settings, from the BMC", "MmioAbove4Gb=Disabled")
    assert finding.confidence == "certain"
    assert "Set MmioAbove4Gb to Enabled" in finding.remedy[1]
    assert finding.next_test == ()
    on = only("bar-unassigned", machine(blind(bars=UNASSIGNED), firmware_settings={"MmioAbove4Gb": "Enabled"}))
    assert not any("Above 4G" in step for step in on.remedy)


def test_size_that_only_the_catalog_knows() -> None:
    wiped = blind(bars=(bar(0, 16 * MIB), bar(1, None, assigned=False)), catalog_gpu="nvidia-tesla-p40")
    finding = only("bar-unassigned", machine(wiped), catalog=load())
    assert "32 GiB" in finding.message
    assert [e.source for e in finding.evidence] == ["PCI 0000:04:00.0", "catalog, nvidia-tesla-p40"]
    # Where BAR0 takes two registers, the large one is the third; it is not counted twice.
    third = blind(bars=(bar(0, 16 * MIB), bar(2, 32 * GIB, assigned=False)), catalog_gpu="nvidia-tesla-p40")
    assert len(only("bar-unassigned", machine(third), catalog=load()).evidence) == 1


def test_legacy_boot_leaves_no_room_for_the_card_that_is_missing() -> None:
    legacy = {"driver": driver(efi_boot=False), "kernel_log": log(LOW)}
    small = gpu(bars=(bar(0, 16 * MIB), bar(1, 256 * MIB)))
    made = machine(small, **legacy)
    assert names(made) == []
    finding = only("bar-unassigned", made, expect=2)
    assert (finding.severity, finding.confidence, finding.subject) == ("warning", "possible", "machine")
    assert names(made, expect=2)[0] == "gpu-count-mismatch"
    assert "bar-unassigned" not in names(machine(small, **{**legacy, "driver": driver(efi_boot=True)}), expect=2)
    assert "bar-unassigned" not in names(machine(small, **legacy, cpu=Cpu(hypervisor="KVM")), expect=2)


def test_a_cause_that_can_be_shown_stands_in_its_place() -> None:
    made = machine(blind(bars=UNASSIGNED), cpu=Cpu(physical_address_bits=36), memory_bytes=64 * GIB)
    assert names(made) == ["address-space-too-small"]
    assert names(made, expect=1) == ["address-space-too-small"]


def test_menu_names_of_the_model() -> None:
    server = Server(
        id="x",
        vendor="Supermicro",
        model="X",
        names=("X",),
        form=Form(kind="rack"),
        sockets=Sockets(count=2),
        slots=(SlotRow(id="1", lanes=16),),
        firmware=(
            FirmwareSetting(purpose="mmio-size", menu="MMIO High Size", value="256G", src=("m",)),
            FirmwareSetting(purpose="above-4g", menu="PCIe/PCI/PnP > Above 4G Decoding", value="Enabled", src=("m",)),
            FirmwareSetting(purpose="primary-display", menu="VGA Priority", value="Onboard", src=("m",)),
        ),
        sources={"m": Source(confidence="vendor", title="X manual")},
    )
    finding = only("bar-unassigned", machine(blind(bars=UNASSIGNED)), server=server)
    assert finding.remedy[1:3] == (
        "Set PCIe/PCI/PnP > Above 4G Decoding to Enabled.",
        "Set MMIO High Size to 256G.",
    )
    assert finding.sources == ("X manual",)


def test_bar_whose_size_nobody_kept() -> None:
    finding = only("bar-unassigned", machine(blind(bars=(bar(1, None, assigned=False), bar(3, 32 * MIB)))))
    assert finding.message == "Tesla P40 at 0000:04:00.0 has a memory BAR without an address."
    assert finding.evidence[0].text == "BAR 1: no address, size unknown"


def test_dead_card_is_another_rules_matter() -> None:
    assert "bar-unassigned" not in names(machine(blind(bars=UNASSIGNED, config_dead=True)))


@pytest.mark.parametrize(
    "known",
    [
        {"driver": driver(kernel_release="5.15.32-v8+raspi")},
        {"cpu": Cpu(model="Cortex-A72")},
        {"kernel_log": log("Booting Linux on physical CPU 0x0000000000 [0x410fd083]")},
    ],
    ids=["kernel", "processor", "log"],
)
def test_an_arm_board_has_no_switches_of_a_pc(known: dict[str, object]) -> None:
    finding = only("bar-unassigned", machine(blind(bars=UNASSIGNED), **known))
    said = " ".join((*finding.remedy, *(test.do for test in finding.next_test)))
    assert "device tree" in said
    assert not any(word in said for word in ("CSM", "Above 4G", "legacy"))


def test_other_vendors_have_bars_too() -> None:
    made = machine(amd(bars=(bar(0, 64 * GIB), bar(5, 512 << 10, assigned=False))))
    assert names(made) == ["bar-unassigned"]


def test_all_bars_but_a_working_card_is_a_warning() -> None:
    assert only("bar-unassigned", machine(gpu(bars=UNASSIGNED))).severity == "warning"


@pytest.mark.parametrize(
    ("file", "subjects"),
    [
        ("nvrm_bar1-0M_precision7920_v100.log", ["0000:73:00.0"]),
        ("pci_bar1_cant-assign_new-wording_rtx3090.log", ["0000:01:00.0"]),
        ("pci_bar1_no-space_old-wording_gtx750ti.log", ["0000:01:00.0"]),
        ("pci_amd_mi_bars_mixed-assigned-and-failed.log", ["0000:c5:00.0"]),
        ("pci_bar15_bridge-window-no-space_6x4090.log", []),
        ("nvrm_bar1_above4g_2008-wording.log", []),
        ("nvrm_fallen-off_at-probe_no-xid.log", []),
        ("rhcip_dmesg.txt", []),
    ],
)
def test_real_logs_alone(shared_machines: Path, file: str, subjects: list[str]) -> None:
    text = (shared_machines / "dmesg" / file).read_text(errors="replace")
    read: KernelLog = parse(text, "file")
    findings, _ = judge(Machine(kernel_log=read), View())
    assert [f.subject for f in findings if f.name == "bar-unassigned"] == subjects
