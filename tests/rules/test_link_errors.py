from __future__ import annotations

from typing import Any

import pytest

from gpucheck.facts import ErrorCounts, Machine, NvmlGpu, PciFunction, Slot
from rules.machines import P40, amd, bridge, function, gpu, log, machine, missing, names, only

PORT, CARD = "0000:00:03.0", "0000:04:00.0"
FATAL = (
    f"pcieport {PORT}: AER: Uncorrected (Fatal) error received: {PORT}",
    f"pcieport {PORT}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
    f"pcieport {PORT}: device [8086:6f08] error status/mask=00004020/00000000",
    f"pcieport {PORT}: [ 5] SDES",
    f"pcieport {PORT}: [14] CmpltTO (First)",
)
CORRECTED = (
    f"pcieport {PORT}: AER: Correctable error message received from {CARD}",
    f"nvidia {CARD}: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)",
    f"nvidia {CARD}: [12] Timeout",
)
DEAF = {"nvml": None}


def tree(*below: PciFunction, **port: Any) -> tuple[PciFunction, ...]:
    card = function(CARD, P40, 0x030200, parent=PORT)
    return (bridge(PORT, **port), *(below or (card,)))


def made(*lines: str, card: dict[str, Any] | None = None, **known: Any) -> Machine:
    return machine(gpu(**(card or {})), **{"pci": tree(), "kernel_log": log(*lines), **known})


def test_fires_when_the_link_goes_down_in_use() -> None:
    slots = (Slot(designation="PCIe Slot 6", in_use=True, address=CARD),)
    finding = only("link-errors", made(*FATAL, card={**DEAF, "slot": "PCIe Slot 6"}, slots=slots))
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "likely", CARD)
    assert "went down while it was in use" in finding.message
    assert [evidence.text for evidence in finding.evidence] == [FATAL[1], *FATAL[3:]]
    port, power, seat, riser = finding.remedy
    assert f"{PORT}; its slot is PCIe Slot 6" in port
    assert ("power" in power, "Seat" in seat, "riser" in riser) == (True, True, True)


def test_newer_wording_and_counters_say_the_same() -> None:
    newer = FATAL[1].replace("PCIe Bus Error: severity=Uncorrected", "AER: PCIe Bus Error: severity=Uncorrectable")
    assert only("link-errors", made(newer, card=DEAF)).severity == "error"
    counted = made(card=DEAF, pci=tree(errors=ErrorCounts(fatal=1)))
    finding = only("link-errors", counted)
    assert (finding.severity, finding.confidence) == ("error", "possible")
    assert finding.evidence[0].text == "aer_dev_fatal: TOTAL_ERR_FATAL 1"


def test_a_card_that_works_again_is_a_warning() -> None:
    assert only("link-errors", made(*FATAL)).severity == "warning"
    counted = machine(amd(CARD), pci=tree(errors=ErrorCounts(fatal=1)))
    assert only("link-errors", counted).severity == "warning"


def test_a_stream_of_corrected_errors_is_a_warning() -> None:
    assert only("link-errors", made(*CORRECTED * 20)).severity == "warning"
    assert only("link-errors", made(pci=tree(errors=ErrorCounts(correctable=5000)))).severity == "warning"
    replays = {"nvml": NvmlGpu(index=0, address=CARD, pcie_replays=4711)}
    finding = only("link-errors", made(card=replays))
    assert (finding.severity, finding.evidence[0].text) == ("warning", f"{CARD}: 4711 PCIe replays")


def test_both_ends_of_a_link_are_one_finding() -> None:
    card = function(CARD, P40, 0x030200, parent=PORT, errors=ErrorCounts(correctable=12))
    both = made(*CORRECTED, pci=tree(card, errors=ErrorCounts(correctable=1500)))
    assert only("link-errors", both).severity == "warning"


def test_errors_that_cannot_be_corrected() -> None:
    line = f"pcieport {PORT}: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer"
    assert only("link-errors", made(line, f"pcieport {PORT}: [14] CmpltTO")).severity == "warning"
    assert only("link-errors", made(line, f"pcieport {PORT}: [20] UnsupReq")).severity == "info"
    # The kind of another device's error is not taken for this one's.
    assert only("link-errors", made(line, "pcieport 0000:00:1c.0: [14] CmpltTO")).severity == "info"


def test_a_handful_is_information() -> None:
    finding = only("link-errors", made(*CORRECTED))
    assert (finding.severity, finding.remedy) == ("info", ())


NIC = function("0000:04:00.0", "8086:1572", 0x020000, parent=PORT)


@pytest.mark.parametrize(
    "quiet",
    [
        made(),
        made(pci=tree(errors=ErrorCounts(correctable=3, nonfatal=2, fatal=0))),
        made(card={"nvml": NvmlGpu(index=0, address=CARD, pcie_replays=7)}),
        machine(pci=tree(NIC, errors=ErrorCounts(correctable=9999, fatal=3)), kernel_log=log(*FATAL)),
        machine(gpus=None, pci=None, kernel_log=log()),
    ],
    ids=["nothing", "a few counted", "a few replays", "a network card's", "a log alone, without errors"],
)
def test_quiet(quiet: Machine) -> None:
    assert "link-errors" not in names(quiet)


@pytest.mark.parametrize(("times", "severity"), [(1, "info"), (20, "warning")])
def test_a_log_alone_names_the_port_and_asks_for_the_tree(times: int, severity: str) -> None:
    lines = [f"pcieport {PORT}: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"] * times
    finding = only("link-errors", machine(gpus=None, pci=None, kernel_log=log(*lines)))
    assert (finding.severity, finding.subject, finding.confidence) == (severity, PORT, "possible")
    assert "lspci -t" in finding.remedy[0]


def test_an_excerpt_may_lack_the_port() -> None:
    line = f"pcieport {PORT}: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
    listed = (function(CARD, P40, 0x030200, parent="?"),)
    excerpt = machine(gpu(), pci=listed, pci_complete=False, kernel_log=log(line))
    assert (only("link-errors", excerpt).subject, only("link-errors", excerpt).severity) == (PORT, "info")
    assert "link-errors" not in names(excerpt.model_copy(update={"pci_complete": True}))
    flat = machine(gpu(), pci=(bridge(PORT, "?"), *listed), kernel_log=log(line))
    assert "lspci -t" in only("link-errors", flat).remedy[0]


def test_a_log_alone_says_nothing_of_a_disk() -> None:
    line = "nvme 0000:03:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
    assert "link-errors" not in names(machine(gpus=None, pci=None, kernel_log=log(*[line] * 30)))


@pytest.mark.parametrize("pci", [None, (bridge(PORT),)], ids=["not read", "nothing behind the port"])
def test_unknown_device_is_never_an_error(pci: Any) -> None:
    finding = only("link-errors", machine(gpus=None if pci is None else (), pci=pci, kernel_log=log(*FATAL)))
    assert (finding.severity, finding.confidence, finding.subject) == ("warning", "possible", PORT)


def test_a_switch_that_two_cards_share_is_named_by_its_address() -> None:
    cards = (gpu("0000:06:00.0"), gpu("0000:07:00.0"))
    pci = (
        bridge(PORT, errors=ErrorCounts(correctable=2000)),
        *(function(card.address, P40, 0x030200, parent=PORT) for card in cards),
    )
    finding = only("link-errors", machine(*cards, pci=pci))
    assert finding.subject == PORT
    assert "0000:06:00.0" in finding.message
    assert "0000:07:00.0" in finding.message


def test_unchecked_where_nobody_counts() -> None:
    uncounted = {"errors": None}
    assert missing("link-errors", made(card=uncounted, kernel_log=None)) == ("kernel_log", f"gpus.{CARD}.errors")
    assert missing("link-errors", made()) == ()
