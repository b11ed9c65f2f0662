from __future__ import annotations

from typing import Any

import pytest

from gpucheck.facts import Cpu, Machine, PciFunction, Port, Slot
from rules.machines import P40, bridge, function, gpu, log, machine, missing, names, only

PORT = "0000:00:1c.4"
DOWN = Port(presence=True, link_active=False, link_disabled=False, power_off=False)


def made(*lines: str, port: Port | None = None, pci: Any = (), **known: Any) -> Machine:
    """A healthy card, and an empty port that says what is given."""
    functions: tuple[PciFunction, ...] = (
        bridge("0000:00:02.0"),
        function("0000:04:00.0", P40, 0x030200, parent="0000:00:02.0"),
        bridge(PORT, port=port),
        *pci,
    )
    return machine(gpu(), **{"pci": functions, "kernel_log": log(*lines), **known})


def test_fires_on_presence_without_link() -> None:
    slots = (Slot(designation="PCIE5", in_use=False, address=PORT),)
    finding = only("link-down", made(port=DOWN, slots=slots))
    assert (finding.severity, finding.confidence, finding.subject) == ("warning", "likely", PORT)
    assert "PCIE5" in finding.message
    assert "lower PCIe generation" in finding.remedy[0]


@pytest.mark.parametrize(
    "line",
    [
        f"pcieport {PORT}: pciehp: Slot(5): Card present",
        f"pcieport {PORT}: pciehp: Slot(5): Link Down",
        f"pcieport {PORT}: pciehp: Slot(5-1): No link",
        f"pcieport {PORT}: pciehp: Slot(5): Cannot train link: status 0x5811",
        f"pciehp {PORT}:pcie004: Link Training Error occurs",
        f"pciehp {PORT}:pcie004: link training error: status 0x5811",
        f"pcieport {PORT}: pciehp: Failed to check link status",
        f"pci {PORT}: retraining failed",
    ],
)
def test_fires_on_what_the_kernel_says(line: str) -> None:
    finding = only("link-down", made(line))
    assert (finding.severity, [evidence.text for evidence in finding.evidence]) == ("warning", [line])


def test_a_log_alone_makes_it_possible() -> None:
    alone = machine(gpus=None, pci=None, kernel_log=log(f"pcieport {PORT}: pciehp: Slot(5): No link"))
    assert only("link-down", alone).confidence == "possible"


def test_a_log_alone_does_not_explain_a_missing_card() -> None:
    alone = machine(gpu(on_pci=None), pci=None, kernel_log=log(f"pcieport {PORT}: pciehp: Slot(5): No link"))
    assert only("link-down", alone, 2).severity == "warning"
    assert only("gpu-count-mismatch", alone, 2).severity == "error"


def test_an_expected_card_makes_it_an_error_that_explains() -> None:
    report = [(f.name, f.severity) for f in [only("link-down", made(port=DOWN), 2)]]
    assert report == [("link-down", "error")]
    assert "gpu-count-mismatch" not in names(made(port=DOWN), 2)
    assert "gpu-count-mismatch" in names(made(port=DOWN), 3)


DRIVE = function("0000:05:00.0", "144d:a808", 0x010802, parent=PORT)


@pytest.mark.parametrize(
    "quiet",
    [
        made(),
        made(port=DOWN.model_copy(update={"link_active": True})),
        made(port=DOWN.model_copy(update={"presence": False})),
        made(port=DOWN.model_copy(update={"link_disabled": True})),
        made(port=DOWN.model_copy(update={"power_off": True})),
        made(port=DOWN, pci=(DRIVE,)),
        made(port=DOWN, cpu=Cpu(hypervisor="KVM")),
        made(f"pcieport {PORT}: pciehp: Slot(5): Card present", f"pcieport {PORT}: pciehp: Slot(5): Link Up"),
        made(f"pcieport {PORT}: pciehp: Slot(5): Link Down", f"pcieport {PORT}: pciehp: Slot(5): Card not present"),
        made(f"pcieport {PORT}: pciehp: Slot(5): Link Down/Up ignored (recovered by DPC)"),
        made(f"pcieport {PORT}: pciehp: Slot(5): Link Down", pci=(DRIVE,)),
        made("pcieport 0000:40:01.0: pciehp: Slot(5): Link Down"),
    ],
    ids=[
        "empty", "up", "absent", "disabled", "no power", "a device all the same", "virtual", "came up", "taken out",
        "recovered", "log of a port in use", "another machine's port",
    ],
)  # fmt: skip
def test_quiet(quiet: Machine) -> None:
    assert "link-down" not in names(quiet)


def test_unchecked_where_no_port_was_read() -> None:
    assert missing("link-down", made()) == ("pci.bridges",)
    assert missing("link-down", made(port=DOWN, kernel_log=None)) == ("kernel_log",)
    assert missing("link-down", machine(pci=None)) == ("pci",)
