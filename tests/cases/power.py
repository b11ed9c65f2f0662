"""Power supplies: too few watts, and watts that would do."""

from __future__ import annotations

from dataclasses import replace

from machines.build import MIB, OK, PRESENT, Bar, Board, Golden, NvmlCard, nvml, p40, port

from cases import THREADS, case

TI = {"ids": "10de:1b06", "subsystem": "10de:120f"}


def four_1080_ti(*supplies: int) -> Golden:
    """Four GTX 1080 Ti, two processors, and supplies of these watts."""
    cards = [
        replace(p40(f"0000:{bus}:00.0", number, node=number // 2), **TI, bars=bars(number))
        for number, bus in enumerate(("04", "05", "84", "85"))
    ]
    board = Board(
        vendor="Supermicro",
        product="SYS-7048GR-TR",
        board="X10DRG-Q",
        sockets={"CPU1": "Xeon", "CPU2": "Xeon"},
        psus=tuple((f"PSU{n}", "Not Specified", watts, PRESENT | OK) for n, watts in enumerate(supplies, 1)),
    )
    known = {"name": "NVIDIA GeForce GTX 1080 Ti", "pci_id": 0x1B0610DE, "subsystem_id": 0x120F10DE}
    listed = nvml(*(NvmlCard(card.address, memory=11_721_506_816, bar1=256 * MIB, **known) for card in cards))
    ports = tuple(
        port(f"0000:{side}:0{number}.0", card, node=node)
        for card, (side, number, node) in zip(
            cards, (("00", 2, 0), ("00", 3, 0), ("80", 2, 1), ("80", 3, 1)), strict=True
        )
    )
    return Golden(functions=ports, board=board, nvml=listed)


def bars(number: int) -> tuple[Bar, ...]:
    start = 0x9000_0000 + number * 0x100_0000
    high = 0xC000_0000 + number * 0x2000_0000
    return Bar(0, 16 * MIB, start, small=True), Bar(1, 256 * MIB, high), Bar(3, 32 * MIB, high + 256 * MIB)


@case(
    "C101",
    "The whole machine restarts when three or four cards train together",
    THREADS + "tensorflow/tensorflow/issues/8858",
    first="psu-undersized",
    confidence="likely",
    settled=False,
    says=("1,000 W together", "850 W", "nvidia-smi -pl"),
)
def four_cards_on_850_watts() -> Golden:
    return four_1080_ti(850)


@case(
    "C102",
    "Two supplies of 1600 W, and three cards at once still restart the machine",
    THREADS + "pytorch/pytorch/issues/3022",
    first=None,
    settled=False,
    absent=("psu-undersized", "psu-redundancy-lost"),
)
def four_cards_on_twice_1600_watts() -> Golden:
    # Nobody found the cause. A sum that fits is no finding, and no word that power is not to blame either.
    return four_1080_ti(1600, 1600)
