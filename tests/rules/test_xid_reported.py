import pytest

from gpucheck.facts import KernelLog, Machine
from gpucheck.rules.xid_reported import XIDS
from rules.machines import found, gpu, log, machine, missing, names, only


def xid(number: int, address: str = "0000:04:00", rest: str = "pid=1, x") -> str:
    return f"NVRM: Xid (PCI:{address}): {number}, {rest}"


@pytest.mark.parametrize(
    ("number", "severity", "words"),
    [
        (119, "warning", "GSP"),
        (31, "info", "a program used memory"),
        (54, "warning", "power lead"),
        (74, "warning", "NVLink"),
        (56, "info", "display"),
        (999, "warning", "does not explain"),
    ],
)
def test_fires_with_its_meaning(number: int, severity: str, words: str) -> None:
    finding = only("xid-reported", machine(gpu(), kernel_log=log(xid(number))))
    assert (finding.severity, finding.subject) == (severity, "0000:04:00.0")
    assert words in finding.message
    assert finding.evidence[0].text == xid(number)
    assert finding.remedy


def test_several_of_one_card_are_one_finding_with_the_gravest_first() -> None:
    lines = (xid(45), xid(13), xid(13, rest="pid=2, y"), xid(62), xid(154))
    finding = only("xid-reported", machine(gpu(), kernel_log=log(*lines)))
    assert "Xid 62" in finding.message
    assert [evidence.text for evidence in finding.evidence] == [xid(62), xid(13), xid(45), xid(154)]


def test_old_form_without_pci() -> None:
    finding = only("xid-reported", machine(gpu(), kernel_log=log("NVRM: Xid (0000:04:00): 13, 0005 00000000")))
    assert finding.subject == "0000:04:00.0"


def test_those_of_an_earlier_boot_are_information() -> None:
    kept = KernelLog(source="file", lines=(), complete=True, earlier=(xid(79), xid(62, "0000:82:00")))
    findings = found(machine(gpu(), kernel_log=kept))
    assert [(f.name, f.severity) for f in findings] == [("xid-reported", "info")] * 2
    assert "earlier boot" in findings[0].message


def test_quiet_where_another_finding_owns_it() -> None:
    lost = log(xid(79, rest="GPU has fallen off the bus."), xid(45), xid(154))
    assert names(machine(gpu(config_dead=True), kernel_log=lost)) == ["gpu-fell-off-bus"]
    assert names(machine(gpu())) == []
    assert names(machine(gpu(), kernel_log=log("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, x"))) == []


def test_unchecked_without_a_log() -> None:
    assert missing("xid-reported", Machine()) == ("kernel_log",)


def test_the_table() -> None:
    assert len(XIDS) > 40
    assert all(meaning.meaning[0].islower() and meaning.meaning[-1] != "." for meaning in XIDS.values())
