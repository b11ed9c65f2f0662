"""Links and peers in other people's dumps: idle links, empty ports, single errors are nobody's fault."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gpucheck.catalog import Catalog, load
from gpucheck.errors import GpucheckError
from gpucheck.facts import Machine
from gpucheck.probing import Probe, probe
from gpucheck.readers.kernel_log import parse
from gpucheck.rules.link_errors import logged

NAMES = {"link-speed-reduced", "link-errors", "link-down", "peer-access-blocked", "peer-limit-exceeded"}
FOLDERS = ("sysfs", "lspci", "dmesg", "nvidia-smi", "nvidia-bug-report")


@pytest.fixture(scope="module")
def reports(shared_machines: Path) -> dict[str, Probe]:
    catalog: Catalog = load()
    found: dict[str, Probe] = {}
    for folder in FOLDERS:
        for dump in sorted((shared_machines / folder).glob("*")):
            try:
                found[f"{folder}/{dump.name}"] = probe([str(dump)], catalog=catalog)
            except GpucheckError:
                continue  # notes beside the dumps
    return found


def test_no_false_alarm(reports: dict[str, Probe]) -> None:
    assert len(reports) > 50
    told = {
        name: [f.message for f in r.findings if f.name in NAMES and f.severity != "info"] for name, r in reports.items()
    }
    assert {name: messages for name, messages in told.items() if messages} == {}


def test_ports_of_an_hgx_board(reports: dict[str, Probe]) -> None:
    pci = reports["lspci/gpud_hgx-h100_lspci-vvv.txt"].machine.pci or ()
    ports = [function.port for function in pci if function.port is not None]
    assert Counter((port.presence, port.link_active) for port in ports) == {(True, True): 30}
    redirecting = [function.address for function in pci if function.acs and "ReqRedir" in function.acs]
    assert redirecting == ["0000:82:00.0", "0000:82:01.0", "0000:82:02.0", "0000:82:03.0"]


def test_empty_ports_of_a_board_with_four_cards(reports: dict[str, Probe]) -> None:
    pci = reports["lspci/linuxhw_SYS-4028GR-TR_9D0DC8353202_excerpt.txt"].machine.pci or ()
    assert [function.acs for function in pci if function.acs is not None] == [()]


@pytest.mark.parametrize(
    "name",
    [
        "aer_corrected_old-format.log",
        "aer_corrected_2017-format_physical-layer.log",
        "aer_correctable_new-format_root-port-1022-1453.log",
    ],
)
def test_every_wording_is_read(shared_machines: Path, name: str) -> None:
    log = parse((shared_machines / "dmesg" / name).read_text("utf-8"), "file")
    (heard,) = logged(Machine(kernel_log=log)).values()
    assert heard.correctable > 0
    assert (heard.fatal, heard.nonfatal, heard.kinds) == (0, 0, set())
    assert any("]" in evidence.text and "PCIe Bus Error" not in evidence.text for evidence in heard.evidence)
