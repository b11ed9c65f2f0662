"""Power supplies from the BMC's inventory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpucheck.facts import Power, Psu
from gpucheck.host import Completed, LiveHost
from gpucheck.readers import psu

FRU = """FRU Device Description : Builtin FRU Device (ID 0)
 Board Product         : PowerEdge R720
 Board Serial          : B1

FRU Device Description : PS1 (ID 1)
 Board Mfg             : DELL
 Board Product         : PWR SPLY,750WP,RDNT,DELTA
 Board Serial          : S1
 Board Part Number     : 09PXCVA00

FRU Device Description : PS2 (ID 2)
 Device not present (Requested sensor, data, or record not found)

FRU Device Description : PS3 (ID 3)
 Device not present (Timeout)

FRU Device Description : Power Supply 4 (ID 4)
 Product Manufacturer  : HP
 Product Name          : POWER SUPPLY
 Product Part Number   : 511777-001
 Power Supply Record
  Capacity                   : 460 W

FRU Device Description : iDRAC7
 Board Product         : PWR SPLY,750WP,RDNT,DELTA
 Board Serial          : S1
"""


class Answering(LiveHost):
    """A folder with one program in it: what it prints, or the error that running it gives."""

    def __init__(self, root: Path, answer: Completed | OSError) -> None:
        super().__init__(root)
        self.answer = answer
        self.asked: list[Sequence[str]] = []

    def run(self, argv: Sequence[str], timeout: float) -> Completed:
        self.asked.append(tuple(argv))
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer


def test_fru() -> None:
    assert psu.looks_like_ipmi_fru(FRU)
    assert psu.from_ipmi_fru(FRU) == (
        Psu(
            location="PS1",
            model="PWR SPLY,750WP,RDNT,DELTA",
            part="09PXCVA00",
            manufacturer="DELL",
            watts=750,
            present=True,
        ),
        Psu(location="PS2", present=False),
        Psu(location="PS3"),  # did not answer in time: nothing is known
        Psu(
            location="Power Supply 4",
            model="POWER SUPPLY",
            part="511777-001",
            manufacturer="HP",
            watts=460,
            present=True,
        ),
    )


@pytest.mark.parametrize("text", ["", "Power Supply 1   | 90 Watts          | ok\n", "Board Product : PWR SPLY,750W,X"])
def test_other_text_lists_no_unit(text: str) -> None:
    assert psu.from_ipmi_fru(text) == ()
    assert not psu.looks_like_ipmi_fru(text)


def test_the_bmc_is_asked_only_on_request(tmp_path: Path) -> None:
    host = Answering(tmp_path, Completed(0, FRU, ""))
    assert [gap.reason for gap in psu.read(host).gaps] == ["not-requested"]
    assert [gap.reason for gap in psu.read(host, [Psu(present=True)]).gaps] == ["not-requested"]
    assert psu.read(host, [Psu(present=True, watts=1100), Psu(present=False)]).gaps == ()
    assert host.asked == []
    assert len(psu.read(host, ask_ipmi=True).psus or ()) == 4
    assert host.asked == [("ipmitool", "fru")]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (FileNotFoundError(2, "no such program"), "tool-absent"),
        (TimeoutError("ipmitool did not end"), "timed-out"),
        (Completed(1, "", "Could not open device at /dev/ipmi0: No such file or directory"), "file-absent"),
        (Completed(1, "", "Could not open device at /dev/ipmi0: Permission denied"), "needs-root"),
        (Completed(0, "FRU Device Description : Builtin FRU Device (ID 0)\n", ""), "not-supported"),
    ],
)
def test_a_bmc_that_gives_nothing_is_a_gap(tmp_path: Path, answer: Completed | OSError, reason: str) -> None:
    parts = psu.read(Answering(tmp_path, answer), ask_ipmi=True)
    assert parts.psus is None
    assert [(gap.fact, gap.reason) for gap in parts.gaps] == [("psus", reason)]


@pytest.mark.parametrize(
    ("line", "redundancy"),
    [
        ("PS Redundancy    | 77h | ok  |  7.1 | Fully Redundant", "full"),
        ("PS Redundancy    | 77h | ok  |  7.1 | Redundancy Lost", "lost"),
        ("Pwr Unit Redund  | 02h | ok  | 21.1 | Redundancy Degraded", "lost"),
        ("Power Supplies   | 05h | ok  | 10.3 | Redundancy Lost", "lost"),
        ("Pwr Unit Redund  | 02h | ok  | 21.1 | Non-Redundant: Sufficient from Redundant", "lost"),
        ("PS Redundancy    | 77h | ns  |  7.1 | Disabled", None),
        ("PS Redundancy    | Not Readable      | ns", None),
        ("Power Supplies   | 0x00              | ok", None),
        ("Fan Redundancy   | 75h | ok  |  7.1 | Redundancy Lost", None),
        ("Fans             | 06h | ok  |  7.1 | Fully Redundant", None),
    ],
)
def test_redundancy(line: str, redundancy: str | None) -> None:
    power = psu.from_ipmi_sdr(line).power
    assert (power.redundancy if power is not None else None) == redundancy


def test_what_the_power_of_a_unit_cannot_say() -> None:
    text = "Status | 85h | ok | 10.1 | Presence detected, Power Supply AC lost, Failure detected\n"
    assert psu.from_ipmi_sdr(text).psus == (Psu(location="Power Supply 1", present=True, plugged=False),)
    assert psu.from_ipmi_sdr("Current 1 | 6Ah | ok | 10.1 | 0.40 Amps\n").psus == (Psu(location="Power Supply 1"),)
    assert psu.from_ipmi_dcmi("    Instantaneous power reading:      0 Watts\n") is None


def test_failed_at_0_watts_may_only_lack_mains(tmp_path: Path) -> None:
    """As iLO words it, in one reading or in several."""
    line = "Power Supply 2 | 34h | ok | 10.2 | {}0 Watts, Presence detected, Failure detected\n"
    parts = psu.from_ipmi_sdr(line.format(""))
    assert parts.psus == (Psu(location="Power Supply 2", present=True),)
    assert [(gap.fact, gap.reason) for gap in parts.gaps] == [("psus.Power Supply 2.failed", "contradiction")]
    assert psu.read_state(Answers(tmp_path, {psu.SENSORS: Completed(0, line.format(""), "")})).gaps == parts.gaps
    works = psu.from_ipmi_sdr(line.format("13"))
    assert works.psus == (Psu(location="Power Supply 2", present=True, plugged=True, failed=True),)
    assert works.gaps == ()


class Answers(LiveHost):
    """A folder that answers each program in its own way."""

    def __init__(self, root: Path, answers: dict[tuple[str, ...], Completed | OSError]) -> None:
        super().__init__(root)
        self.answers = answers
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], timeout: float) -> Completed:
        self.asked.append(tuple(argv))
        answer = self.answers.get(tuple(argv), FileNotFoundError(2, "none"))
        if isinstance(answer, OSError):
            raise answer
        return answer


def test_state_is_read_as_far_as_the_bmc_tells(tmp_path: Path) -> None:
    draw = Completed(0, "    Instantaneous power reading:   126 Watts\n", "")
    host = Answers(tmp_path, {psu.DRAW: draw, psu.SENSORS: Completed(1, "PS1 | 01h | ok | 10.1 | x\n", "fault")})
    state = psu.read_state(host)
    assert (state.psus, state.power, state.bmc_events) == (None, Power(drawn_watts=126), None)
    assert psu.read_state(Answers(tmp_path, {psu.EVENTS: Completed(0, "SEL has no entries\n", "")})).bmc_events == ()


def test_a_bmc_that_hangs_is_not_asked_again(tmp_path: Path) -> None:
    host = Answers(tmp_path, {psu.SENSORS: TimeoutError("slow")})
    assert psu.read_state(host).power is None
    assert host.asked == [psu.SENSORS]


def test_nothing_but_reading_is_asked() -> None:
    assert {command[1:3] for command in (psu.FRU, psu.SENSORS, psu.DRAW, psu.EVENTS)} == {
        ("fru",),
        ("sdr", "elist"),
        ("dcmi", "power"),
        ("sel", "elist"),
    }


def test_the_newest_events_are_kept() -> None:
    lines = [f"{n:4x} | 11/03/2026 | 10:11:12 | Power Unit | Redundancy Lost | Asserted" for n in range(999)]
    events = psu.from_ipmi_sel("\n".join(lines))
    assert len(events) == psu.MOST_EVENTS
    assert events[-1].startswith("3e6 |")


@pytest.mark.parametrize(
    ("name", "watts"),
    [
        ("glpi_fru_dell-r630.txt", {"PS1": 495, "PS2": None}),
        ("glpi_fru_dell-r720.txt", {"PS1": 750, "PS2": 750}),
        ("glpi_fru_hp-dl360-gen7.txt", {}),
        ("glpi_fru_sun-x2200-m2.txt", {}),
        ("rhcip_sdr.txt", {}),  # 90 Watts there is what the unit draws
    ],
)
def test_real_inventories(shared_machines: Path, name: str, watts: dict[str, int | None]) -> None:
    units = psu.from_ipmi_fru((shared_machines / "ipmi" / name).read_text())
    assert {unit.location: unit.watts for unit in units} == watts
