"""Questions whose right answer stands in a vendor's own table, each asked as the command line asks.

The list lies beside the project and is not part of it: where it is absent, there is nothing to test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpucheck.fit.report import Advice

from .ask import ask, outcome

LIST = Path(__file__).resolve().parents[3] / "shared" / "facts" / "checks.yaml"

MODELS = {"HPE Apollo 2000 / ProLiant XL190r Gen9": "XL190r Gen9", "FusionServer G5500 with G560": "G5500"}

CARDS = {
    "A100 40GB PCIe (any 250/300 W double-wide FHFL)": "A100 40GB",
    "A100 40GB PCIe": "A100 40GB",
    "Tesla K80 / P100 PCIe (passive double-wide)": "K80",
}
"""Their words for a card where ours are others; elsewhere what stands before a bracket."""

FITTED: dict[tuple[str, str], str] = {
    ("H3C UniServer R6900 G3", "one RS-4*FHHL-G3"): "riser=one-4fhhl",
    ("HPE Apollo 2000 / ProLiant XL190r Gen9", "r2200"): "chassis=r2200",
    ("HPE Apollo 2000 / ProLiant XL190r Gen9", "r2600"): "chassis=r2600",
    ("HPE Apollo 2000 / ProLiant XL190r Gen9", "three-slot riser cage"): "riser=three",
    ("PowerEdge C4130", "configuration C"): "configuration=C",
    ("PowerEdge C4130", "configuration E"): "configuration=E",
    ("PowerEdge C4130", "configuration H"): "configuration=H",
    ("PowerEdge R740", "NVDIMM-N with battery"): "nvdimm=fitted",
    ("PowerEdge R740", "configuration 4"): "risers=4",
    ("PowerEdge R740", "configuration 6"): "risers=6",
    ("PowerEdge R740xd", "configuration 4"): "risers=4",
    ("PowerEdge R740xd", "configuration 6"): "risers=6",
    ("PowerEdge T620", "RAID card"): "raid=fitted",
    ("TaiShan 200 (Model 2280)", "8 x SAS/SATA + 12 x NVMe"): "front=nvme12",
    ("ThinkSystem SR635 V3", "Gen4 front riser"): "front=gen4",
    ("ThinkSystem SR655", "rear drive bay fitted"): "drives=fitted",
    ("ThinkSystem SR655", "x16 risers"): "risers=x16",
    ("ThinkSystem SR850 V3", "Gen5, three risers"): "risers=gen5",
}
"""Model and their words for what is in it: our options."""


def asked(check: dict[str, Any]) -> Advice:
    """The answer to one of the questions."""
    request, server = check["request"], check["server"]
    words = [request.get(key) for key in ("riser", "chassis")] + request.get("other_cards", [])
    return ask(
        MODELS.get(server, server),
        *gpus(request),
        cpus=request.get("cpus"),
        cpu=request.get("cpu_model"),
        psu=request.get("psus"),
        ambient_c=request.get("ambient_c"),
        options=tuple(FITTED[server, word] for word in words if word),
    )


def gpus(request: dict[str, Any]) -> list[str]:
    if forced := request.get("forced_slots"):
        return [f"{named(card)}@{slot}" for card, slots in forced.items() for slot in slots]
    counts = request.get("mix") or {request["gpu"]: request["count"]}
    return [f"{named(card)}:{count}" for card, count in counts.items()]


def named(card: str) -> str:
    return CARDS.get(card, card.partition(" (")[0].removesuffix(" PCIe"))


def certain() -> list[dict[str, Any]]:
    checks = yaml.safe_load(LIST.read_text("utf-8"))["checks"] if LIST.is_file() else []
    return [check for check in checks if check["certain"]]


def names_a_card(check: dict[str, Any]) -> bool:
    return not check["request"]["gpu"].startswith("any ")


beside = pytest.mark.skipif(not LIST.is_file(), reason="the list is not beside the project")


@beside
@pytest.mark.parametrize("check", [*filter(names_a_card, certain())], ids=lambda check: str(check["id"]))
def test_answer_is_that_of_the_vendor(check: dict[str, Any]) -> None:
    advice = asked(check)
    verdicts = ("fits", "fits-with-changes") if check["answer"] == "fits" else ("does-not-fit",)
    assert advice.verdict in verdicts, advice.headline
    if check["max_count"] is not None:
        assert advice.max_count == check["max_count"], advice.headline
    if check["answer"] == "fits" and "slots_expected" in check:
        assert {place.slot for place in advice.placement} == {str(slot) for slot in check["slots_expected"]}


@beside
def test_slot_that_the_third_cpu_wakes() -> None:
    """No card is named and nothing is known of the slot's size: the question is which CPU it needs."""
    (check,) = (check for check in certain() if not names_a_card(check))
    request, option = check["request"], FITTED[check["server"], check["request"]["riser"]]
    (slot,) = check["slots_expected"]
    awake, asleep = (
        ask(check["server"], f"T4@{slot}", cpus=cpus, options=(option,))
        for cpus in (request["cpus"], request["cpus"] - 1)
    )
    assert (outcome(awake, "socket"), awake.max_count) == ("pass", 1)
    assert (outcome(asleep, "socket"), asleep.max_count) == ("fail", 0)
