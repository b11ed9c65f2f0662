from __future__ import annotations

from typing import Any

import pytest

from gpucheck.facts import Machine, Nvml
from rules.machines import blind, gpu, machine, missing, names, only, seen

NONE = {"retired_pages_single_bit": None, "retired_pages_double_bit": None, "retired_pages_pending": None}
ROWS = {
    **NONE,
    "remapped_rows_corrected": 0,
    "remapped_rows_uncorrected": 0,
    "remapped_rows_pending": False,
    "remapped_rows_failed": False,
}


def second(**known: Any) -> Machine:
    """A healthy card and one with these counts."""
    return machine(gpu(), gpu("0000:82:00.0", nvml=seen("0000:82:00.0", index=1, **known)))


@pytest.mark.parametrize(
    ("known", "severity", "words"),
    [
        ({**ROWS, "remapped_rows_failed": True, "remapped_rows_pending": True}, "error", "could not replace a bad row"),
        ({**ROWS, "remapped_rows_pending": True}, "warning", "needs a reset"),
        ({"retired_pages_pending": True}, "warning", "needs a reset"),
        ({**ROWS, "remapped_rows_corrected": 1}, "info", "one row"),
        ({**ROWS, "remapped_rows_uncorrected": 3}, "info", "3 rows"),
        ({"retired_pages_double_bit": 1}, "info", "one retired page"),
        ({"retired_pages_single_bit": 4, "retired_pages_double_bit": 2}, "info", "6 retired pages"),
        ({"retired_pages_single_bit": 50}, "warning", "50 retired pages"),
    ],
)
def test_fires_at_its_gravest(known: dict[str, Any], severity: str, words: str) -> None:
    finding = only("memory-retired", second(**known))
    assert (finding.severity, finding.confidence, finding.subject) == (severity, "certain", "0000:82:00.0")
    assert words in finding.message
    assert finding.evidence
    if "reset" in words:
        assert "reboot" in finding.remedy[0]


def test_quiet_where_nothing_was_retired() -> None:
    assert names(second()) == names(second(**ROWS)) == []


def test_unchecked_where_neither_pages_nor_rows_were_read() -> None:
    assert missing("memory-retired", second(**NONE)) == ("gpus.0000:82:00.0.nvml.remapped_rows_pending",)
    assert missing("memory-retired", second(**ROWS)) == ()
    assert missing("memory-retired", second(**NONE, errors={"nvmlDeviceGetRemappedRows": 3})) == ()
    hung = machine(blind(driver="nvidia"), nvml=Nvml(status="timed-out"))
    assert missing("memory-retired", hung) == ("nvml.gpus",)
