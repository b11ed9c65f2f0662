"""Cards without an address: Above 4G decoding, windows, virtual machines, too few address bits."""

from __future__ import annotations

from dataclasses import replace

from cases import THREADS, case
from machines.build import GIB, Bar, Golden, p40
from machines.golden import NO_NVIDIA, SLOT_6, r730


@case(
    "C001",
    "V100 seen by lspci, rejected by the driver: BAR1 has no address",
    THREADS + "xCuri0/ReBarUEFI/issues/329",
    first="bar-unassigned",
    confidence="certain",
    settled=False,
    says=("BAR1 is 0M",),
)
def bar1_is_0m() -> Golden:
    card = p40(SLOT_6, driver=None, bars=(Bar(0, 16 << 20, 0x9200_0000, small=True), Bar(1, 16 * GIB, None)))
    log = (
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid: NVRM: BAR1 is 0M @ 0x0 (PCI:0000:04:00.0)",
        "nvidia: probe of 0000:04:00.0 failed with error -1",
    )
    made = r730(replace(card, ids="10de:1db4"), **{**NO_NVIDIA, "modules": ("nvidia",), "module_installed": True})
    return replace(made, log=log, driver_version="570.158.01", library="570.158.01")
