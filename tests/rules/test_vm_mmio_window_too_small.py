import pytest

from gpucheck.facts import Cpu, Machine
from rules.machines import GIB, MIB, bar, blind, bridge, driver, function, gpu, log, machine, missing, names, only

UNASSIGNED = (bar(0, 16 * MIB), bar(1, 128 * GIB, assigned=False))
PLACED = (bar(0, 16 * MIB), bar(1, 128 * GIB))
KVM = Cpu(hypervisor="KVM", physical_address_bits=40)
WINDOW = "pci_bus 0000:00: root bus resource [mem 0x8000000000-0xbfffffffff window]"
NAME = "vm-mmio-window-too-small"


def test_fires_for_the_second_card_of_a_guest() -> None:
    made = machine(gpu(bars=PLACED), blind("0000:00:06.0", bars=UNASSIGNED), cpu=KVM, memory_bytes=448 * GIB)
    finding = only(NAME, made)
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "likely", "0000:00:06.0")
    assert names(made, expect=2) == [NAME]
    assert [e.text for e in finding.evidence[-3:]] == [
        "hypervisor: KVM",
        "address sizes: 40 bits physical",
        "448 GiB",
    ]
    assert any("window of 512 GiB" in step for step in finding.remedy)
    assert len(finding.next_test) == 2


def test_certain_where_the_window_is_known_to_be_smaller() -> None:
    three = (gpu(bars=PLACED), gpu("0000:05:00.0", bars=PLACED), blind("0000:06:00.0", bars=UNASSIGNED))
    finding = only(NAME, machine(*three, cpu=KVM, kernel_log=log(WINDOW)))
    assert finding.confidence == "certain"
    assert "ask for 384 GiB, and its memory window above 4 GiB holds 256 GiB" in finding.message


@pytest.mark.parametrize(
    ("hypervisor", "step"),
    [
        ("VMware", 'pciPassthru.64bitMMIOSizeGB = "256"'),
        ("QEMU", "opt/ovmf/X-PciMmio64Mb,string=262144"),
        ("Hyper-V", "-HighMemoryMappedIoSpace 262144MB"),
    ],
)
def test_each_hypervisor_has_its_own_words(hypervisor: str, step: str) -> None:
    finding = only(NAME, machine(blind(bars=UNASSIGNED), cpu=Cpu(hypervisor=hypervisor)))
    assert any(step in line for line in finding.remedy), finding.remedy


def test_legacy_firmware_of_the_guest() -> None:
    made = machine(blind(bars=UNASSIGNED), cpu=KVM, driver=driver(efi_boot=False))
    finding = only(NAME, made)
    assert "legacy BIOS firmware" in finding.message
    assert finding.evidence[-1].source == "/sys/firmware/efi"
    uefi = only(NAME, machine(blind(bars=UNASSIGNED), cpu=KVM, driver=driver(efi_boot=True)))
    assert not any("UEFI" in step for step in uefi.remedy)


def test_speaks_alone_even_where_it_is_only_possible() -> None:
    tree = (bridge("0000:00:1c.0"), function("0000:04:00.0", "10de:2330", 0x030200, parent="0000:00:1c.0"))
    line = "pcieport 0000:00:1c.0: BAR 15: failed to assign [mem size 0x2000000000 64bit pref]"
    made = machine(blind(bars=None), cpu=KVM, pci=tree, kernel_log=log(line))
    assert only(NAME, made).confidence == "possible"
    assert "bar-unassigned" not in names(made)


def test_log_of_a_guest_alone() -> None:
    made = Machine(cpu=KVM, kernel_log=log("NVRM: BAR1 is 0M @ 0x0 (PCI:0000:00:05.0)"))
    assert only(NAME, made).subject == "0000:00:05.0"


def test_quiet_on_bare_metal_and_where_all_is_well() -> None:
    assert NAME not in names(machine(blind(bars=UNASSIGNED)))
    assert names(machine(gpu(bars=PLACED), cpu=KVM)) == []
    assert only(NAME, machine(gpu(bars=UNASSIGNED), cpu=KVM)).severity == "warning"


def test_unchecked_where_bars_or_processor_were_not_read() -> None:
    assert missing(NAME, machine(gpu(bars=None), cpu=KVM)) == ("gpus.0000:04:00.0.bars",)
    assert missing(NAME, machine(gpu(), cpu=None)) == ("cpu",)
    assert missing(NAME, machine(gpu(bars=None))) == ()
