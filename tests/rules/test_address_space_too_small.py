import pytest

from gpucheck.catalog import load
from gpucheck.facts import Cpu, Machine
from gpucheck.findings import Finding
from rules.machines import GIB, MIB, bar, blind, gpu, log, machine, missing, names, only

UNASSIGNED = (bar(0, 16 * MIB), bar(1, 32 * GIB, assigned=False), bar(3, 32 * MIB))
BITS_36 = Cpu(physical_address_bits=36)
TOP_OF_32_GB = "BIOS-e820: [mem 0x0000000100000000-0x000000081fffffff] usable"
NAME = "address-space-too-small"


def judged(**known: object) -> Finding:
    return only(NAME, machine(blind(bars=UNASSIGNED), **{"cpu": BITS_36, **known}))


def test_fires_where_memory_leaves_too_little() -> None:
    finding = judged(kernel_log=log(TOP_OF_32_GB))
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "certain", "0000:04:00.0")
    assert "36 address bits span 64 GiB" in finding.message
    assert finding.evidence[-1].text == TOP_OF_32_GB
    assert not any("Above 4G" in step for step in finding.remedy)
    assert "down to a few GiB less than 32 GiB" in finding.remedy[0]


def test_old_form_of_the_memory_map() -> None:
    old = "BIOS-e820: 0000000100000000 - 0000000820000000 (usable)"
    assert judged(kernel_log=log(old)).confidence == "certain"
    low = "BIOS-e820: 0000000100000000 - 0000000220000000 (usable)"
    assert judged(kernel_log=log(low, old.replace("usable", "reserved"))).confidence == "possible"


@pytest.mark.parametrize(
    ("memory", "confidence"),
    [(8 * GIB, "possible"), (31 * GIB + 300 * MIB, "likely"), (48 * GIB, "certain"), (None, "possible")],
)
def test_amount_of_memory_says_it_less_surely(memory: int | None, confidence: str) -> None:
    assert judged(memory_bytes=memory).confidence == confidence


def test_several_causes_fit_while_it_is_only_possible() -> None:
    made = machine(blind(bars=UNASSIGNED), cpu=BITS_36, memory_bytes=8 * GIB)
    assert names(made) == ["bar-unassigned", NAME]
    assert "one module" in judged(memory_bytes=8 * GIB).next_test[0].do


def test_all_cards_together() -> None:
    made = machine(
        gpu(bars=(bar(1, 256 * GIB),)),
        blind("0000:82:00.0", bars=(bar(1, 256 * GIB, assigned=False),)),
        cpu=Cpu(physical_address_bits=39),
        memory_bytes=16 * GIB,
    )
    finding = only(NAME, made)
    assert "The cards ask for 512 GiB" in finding.message
    assert finding.subject == "0000:82:00.0"
    assert names(made) == [NAME]


def test_size_by_the_catalog_makes_it_likely() -> None:
    wiped = blind(bars=(bar(1, None, assigned=False),), catalog_gpu="nvidia-tesla-p40")
    made = machine(wiped, cpu=BITS_36, memory_bytes=48 * GIB)
    assert only(NAME, made, catalog=load()).confidence == "likely"
    assert NAME not in names(made)


def test_quiet_with_room_or_in_a_virtual_machine_or_with_an_address() -> None:
    assert NAME not in names(machine(blind(bars=UNASSIGNED), memory_bytes=512 * GIB))
    guest = Cpu(physical_address_bits=36, hypervisor="KVM")
    assert NAME not in names(machine(blind(bars=UNASSIGNED), cpu=guest, memory_bytes=64 * GIB))
    assert names(machine(gpu(), cpu=BITS_36, memory_bytes=31 * GIB)) == []
    small = blind(bars=(bar(1, 256 * MIB, assigned=False),))
    assert NAME not in names(machine(small, cpu=BITS_36, memory_bytes=64 * GIB))


def test_unchecked_without_the_bits() -> None:
    assert missing(NAME, machine(gpu(), cpu=Cpu())) == ("cpu.physical_address_bits",)
    assert missing(NAME, Machine()) == ("gpus", "cpu")
