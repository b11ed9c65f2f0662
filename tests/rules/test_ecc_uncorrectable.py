from __future__ import annotations

import pytest

from gpucheck.facts import Machine
from rules.machines import gpu, log, machine, missing, names, only, seen

XID = "NVRM: Xid (PCI:0000:82:00): 94, pid=77, name=python, Contained: CE User Channel (0x9)."


def second(**known: object) -> Machine:
    """A healthy card and one with these counts."""
    return machine(gpu(), gpu("0000:82:00.0", nvml=seen("0000:82:00.0", index=1, **known)))


@pytest.mark.parametrize(("count", "words"), [(1, "a memory error"), (7, "7 memory errors")])
def test_fires_on_errors_since_the_driver_was_loaded(count: int, words: str) -> None:
    finding = only("ecc-uncorrectable", second(ecc_volatile_uncorrected=count, ecc_aggregate_uncorrected=9))
    assert (finding.severity, finding.confidence, finding.subject) == ("error", "certain", "0000:82:00.0")
    assert words in finding.message
    assert [line.text for line in finding.evidence] == [
        f"uncorrected since the driver was loaded: {count}",
        "uncorrected in the card's life: 9",
    ]


def test_the_log_of_the_same_card_is_evidence() -> None:
    made = second(ecc_volatile_uncorrected=1)
    made = made.model_copy(update={"kernel_log": log(XID, XID.replace("82", "04"), XID.replace(" 94,", " 13,"))})
    assert [line.text for line in only("ecc-uncorrectable", made).evidence][-1:] == [XID]


def test_earlier_errors_are_a_warning() -> None:
    earlier = only("ecc-uncorrectable", second(ecc_aggregate_uncorrected=2))
    assert (earlier.severity, "none since" in earlier.message) == ("warning", True)
    unknown = only("ecc-uncorrectable", second(ecc_volatile_uncorrected=None, ecc_aggregate_uncorrected=2))
    assert (unknown.severity, "when is not known" in unknown.message) == ("warning", True)


def test_quiet_without_errors_and_on_corrected_ones() -> None:
    assert names(second(ecc_volatile_corrected=4000, ecc_aggregate_corrected=9000)) == []


def test_unchecked_where_a_card_that_counts_was_not_read() -> None:
    name = "gpus.0000:82:00.0.nvml.ecc_volatile_uncorrected"
    assert missing("ecc-uncorrectable", second(ecc_volatile_uncorrected=None)) == (name,)
    assert missing("ecc-uncorrectable", second(ecc_volatile_uncorrected=None, ecc_enabled=False)) == ()
    refused = {"nvmlDeviceGetTotalEccErrors": 3}
    assert missing("ecc-uncorrectable", second(ecc_volatile_uncorrected=None, errors=refused)) == ()
