"""Dumps of other people's machines through the whole probe: nothing raises, nothing is invented, and
machines that work are not called broken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpucheck.catalog import Catalog, load
from gpucheck.probing import Probe, probe


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load()


def errors(report: Probe) -> list[str]:
    return [finding.name for finding in report.findings if finding.severity == "error"]


def test_text_of_dmidecode(shared_machines: Path, catalog: Catalog) -> None:
    dumps = sorted((shared_machines / "dmi").glob("*.txt"))
    assert len(dumps) > 30
    for dump in dumps:
        report = probe([str(dump)], catalog=catalog)
        machine = report.machine
        assert errors(report) == [], dump.name
        assert report.verdict == "unknown", dump.name
        assert report.counts.pci is report.counts.nvml is report.counts.device_files is None
        text = re.sub(r"\s+", " ", dump.read_text("utf-8", "replace"))
        sockets, slots, psus = machine.cpu_sockets or (), machine.slots or (), machine.psus or ()
        assert sum(socket.populated is True for socket in sockets) == text.count("Status: Populated"), dump.name
        assert sum(socket.populated is False for socket in sockets) == text.count("Status: Unpopulated"), dump.name
        assert len(slots) == len(re.findall(r"DMI type 9,", text)), dump.name
        assert len(psus) == len(re.findall(r"DMI type 39,", text)), dump.name
        names = [socket.designation for socket in sockets] + [slot.designation for slot in slots]
        names += [socket.model for socket in sockets if socket.model] + [psu.model for psu in psus if psu.model]
        for name in names:
            assert name in text or name.startswith("SMBIOS 0x"), (dump.name, name)
        for psu in psus:
            assert psu.watts is None or re.search(rf"\b{psu.watts} ?W", text), (dump.name, psu)
        for slot in slots:
            assert slot.address is None or slot.address[5:] in text, (dump.name, slot)


def test_an_r730_to_the_letter(shared_machines: Path, catalog: Catalog) -> None:
    dump = shared_machines / "dmi" / "PowerEdge_R730__1B371D2A39C6.dmidecode.txt"
    machine = probe([str(dump)], catalog=catalog).machine
    assert machine.catalog_model == "dell-poweredge-r730"
    assert [socket.populated for socket in machine.cpu_sockets or ()] == [True, True]
    assert len(machine.slots or ()) == 6
    assert [(psu.watts, psu.present) for psu in machine.psus or ()] == [(1100, True), (1100, True)]
    assert [slot.socket for slot in machine.slots or ()] == ["CPU2", "CPU2", "CPU2", "CPU2", "CPU1", "CPU1"]


def test_raw_tables(shared_machines: Path, catalog: Catalog) -> None:
    tables = sorted((shared_machines / "smbios-bin").glob("*.dmi"))
    assert tables
    for table in tables:
        report = probe([str(table)], catalog=catalog)
        assert errors(report) == [], table.name
        assert report.machine.system is not None, table.name


def test_archives_of_sysfs(shared_machines: Path, catalog: Catalog) -> None:
    archives = sorted((shared_machines / "sysfs").glob("*.tar.*"))
    assert len(archives) > 5
    for archive in archives:
        report = probe([str(archive)], catalog=catalog)
        assert errors(report) == [], archive.name
        assert report.counts.nvml is None, archive.name
        if report.counts.pci is None:
            assert report.verdict == "unknown", archive.name
        for gpu in report.machine.gpus or ():
            assert re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", gpu.address), archive.name


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("nvrm_xid79_fallen-off.log", ["gpu-fell-off-bus"]),
        ("nvrm_fallen-off_at-probe_no-xid.log", ["gpu-fell-off-bus"]),
        ("nvrm_bar1-0M_precision7920_v100.log", ["bar-unassigned"]),
        ("pci_bar1_cant-assign_new-wording_rtx3090.log", ["bar-unassigned"]),
        ("aer_corrected_old-format.log", []),
        ("gpud_dmesg-xid-119.log", []),
    ],
)
def test_kernel_logs(shared_machines: Path, catalog: Catalog, name: str, found: list[str]) -> None:
    report = probe([str(shared_machines / "dmesg" / name)], catalog=catalog)
    assert sorted(set(errors(report))) == found


def test_output_of_nvidia_smi(shared_machines: Path, catalog: Catalog) -> None:
    """Machines at work: what is retired or partitioned there is told, and nothing is an error."""
    dumps = sorted(path for path in (shared_machines / "nvidia-smi").iterdir() if path.suffix in {".txt", ".xml"})
    assert len(dumps) > 12
    found: set[str] = set()
    for dump in dumps:
        report = probe([str(dump)], catalog=catalog)
        assert errors(report) == [], dump.name
        assert report.counts.nvml, dump.name
        found.update(finding.name for finding in report.findings)
        text = dump.read_text("utf-8", "replace")
        for gpu in report.machine.gpus or ():
            if gpu.nvml is None or gpu.nvml.address is None:
                continue  # counted, and not shown in an excerpt
            if "_reasons" in text.lower() or "Event Reasons" in text:
                assert gpu.nvml.clock_reasons is not None, dump.name
            if "ECC Errors" in text and gpu.nvml.ecc_enabled:
                assert gpu.nvml.ecc_volatile_uncorrected == gpu.nvml.ecc_aggregate_uncorrected == 0, dump.name
    assert found == {"memory-retired", "mig-limits-process"}
