"""The probe as a person reads it in a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gpucheck.cli import run
from gpucheck.facts import Gap, Gpu, Link, Machine, NvmlGpu, Psu, Slot
from gpucheck.render.gaps import grouped
from gpucheck.render.text import _lanes, _link, _machine, console

MACHINES = Path(__file__).resolve().parent.parent / "machines"


def probed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], machine: str, columns: int = 100
) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "dumb")
    run(["probe", "--from", str(MACHINES / machine / "capture.json")])
    return capsys.readouterr().out.splitlines()


def test_a_narrow_terminal_gets_entries_and_no_folded_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = probed(monkeypatch, capsys, "r730-two-p40", 40)
    cards = lines.index("Cards")
    assert lines[cards + 1 : cards + 4] == [
        "  - 0000:04:00.0: card Tesla P40, slot",
        "    PCIe Slot 6, socket CPU1, driver",
        "    nvidia, link x16, 8 GT/s",
    ]
    slots = lines[lines.index("Slots, as the firmware lists them") :]
    assert "    0000:82:00.0" in slots
    assert max(map(len, lines)) <= 40


def test_the_answer_comes_first_and_the_cause_before_the_inventory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = probed(monkeypatch, capsys, "r730-fell-off-bus")
    assert lines[0].startswith("problem  Dell Inc. PowerEdge R730: 2 GPUs, one problem. Tesla P40 at 0000:82:00.0")
    heads = [line for line in lines if line and not line.startswith(" ")]
    assert [head.split(" (")[0] for head in heads[heads.index("GPUs on each level") :]] == [
        "GPUs on each level",
        "Cards",
        "error GC103 gpu-fell-off-bus",
        "Distance between the cards",
        "CPU sockets",
        "Slots, as the firmware lists them",
        "Power supplies",
        "Not checked, for lack of facts",
        "Not read",  # what NVML would have told of the lost card
    ]


def test_a_healthy_machine_fits_on_a_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = probed(monkeypatch, capsys, "r730-two-p40")
    assert lines[0] == "ok  Dell Inc. PowerEdge R730: 2 GPUs (Tesla P40), no problem found."
    assert "  0000:82:00.0  Tesla P40  PCIe Slot 4  CPU2    nvidia  x16, 8 GT/s" in lines
    assert len(lines) <= 40
    assert "Not read" not in lines


@pytest.mark.parametrize(
    ("machine", "headline"),
    [
        ("bmc-only", "ok  Dell Inc. PowerEdge R730: no GPU."),
        ("r730-no-driver", "problem  Dell Inc. PowerEdge R730: one GPU, one problem."),
        ("r730-nouveau", "problem  Dell Inc. PowerEdge R730: 2 GPUs, one problem."),
        ("r730-link-x8", "ok  Dell Inc. PowerEdge R730: 2 GPUs (Tesla P40), no error, one warning."),
        ("wsl-one-rtx-3060", "ok  The machine: one GPU (NVIDIA GeForce RTX 3060), no problem found."),
    ],
)
def test_headlines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], machine: str, headline: str
) -> None:
    assert probed(monkeypatch, capsys, machine, 200)[0].startswith(headline)


def test_eight_cards_have_a_matrix_that_fits_60_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = probed(monkeypatch, capsys, "sm-4028gr-tr-eight-p40", 60)
    assert "  3  0000:08:00.0  PHB  PHB  X    PIX  SYS  SYS  SYS  SYS" in lines
    cards = [line for line in lines if line.startswith("  0000:")]
    assert [found[1] for line in cards if (found := re.match(r"  0000:(\w\w):00\.0  Tesla ", line))] == [
        "04",
        "05",
        "08",
        "09",
        "84",
        "85",
        "88",
        "89",
    ]


@pytest.mark.parametrize(("cards", "table"), [(24, True), (25, False)])
def test_a_table_of_distances_that_nobody_could_read_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, cards: int, table: bool
) -> None:
    document = json.loads((MACHINES / "r730-two-p40" / "capture.json").read_text("utf-8"))
    for call in document["nvml"]["calls"]:
        if call["call"] == "nvmlDeviceGetCount":
            call["value"] = cards
    (tmp_path / "capture.json").write_text(json.dumps(document))
    shown = probed(monkeypatch, capsys, str(tmp_path), 140)
    assert ("  25 cards are too many for a table; --json lists it." in shown) is not table


def test_gaps_that_one_step_fills_are_one_line() -> None:
    how = "sudo /usr/sbin/dmidecode"
    gaps = [Gap(fact=fact, reason="needs-root", how=how) for fact in ("slots", "psus", "onboard", "slots")]
    gaps += [Gap(fact=f"gpus.0000:0{n}:00.0.link", reason="file-absent", how=f"card {n}") for n in (4, 5)]
    gaps += [Gap(fact="gpus.0000:04:00.0.bars", reason="unreadable", how="card 4")]
    gaps += [Gap(fact="psus", reason="not-requested", how="ipmitool fru")]
    gaps += [Gap(fact=fact, reason="not-requested", how="--bmc") for fact in ("power", "firmware_settings")]
    gaps += [Gap(fact="power", reason="not-supported", how="The BMC does not tell it.")]
    assert [(facts, gap.how) for facts, gap in grouped(gaps)] == [
        ("slots, psus", how),
        ("link of 2 cards", "card 4"),
        ("gpus.0000:04:00.0.bars", "card 4"),
        ("psus", "ipmitool fru"),
        ("power", "The BMC does not tell it."),
    ]


@pytest.mark.parametrize(
    ("lanes", "connector", "shown"),
    [(8, 16, "x8 in x16"), (16, 16, "x16"), (8, None, "x8"), (None, 16, None), (None, None, None)],
)
def test_lanes(lanes: int | None, connector: int | None, shown: str | None) -> None:
    assert _lanes(Slot(designation="1", in_use=False, lanes=lanes, connector=connector)) == shown


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        (Link(width=16, max_width=16, speed_gts=8.0), "x16, 8 GT/s"),
        (Link(width=8, max_width=16, speed_gts=2.5), "x8 of x16, 2.5 GT/s"),
        (Link(width=16, max_width=16, speed_gts=2.5, max_speed_gts=8.0), "x16, 2.5 GT/s (idle is normal)"),
        (Link(width=16, max_width=16, speed_gts=8.0, max_speed_gts=8.0), "x16, 8 GT/s"),
        (Link(width=4), "x4"),
        (Link(), None),
    ],
)
def test_link(link: Link, shown: str | None) -> None:
    assert _link(Gpu(address="0000:04:00.0", vendor="nvidia", link=link)) == shown


def test_many_unchecked_rules_are_counted_and_a_few_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "smi.txt").write_text("No devices were found\n")
    monkeypatch.setenv("COLUMNS", "120")
    run(["probe", "--from", str(tmp_path / "smi.txt")])
    assert re.search(r"^  \d+ checks lacked facts; --json lists them\.$", capsys.readouterr().out, re.MULTILINE)
    few = probed(monkeypatch, capsys, "k80-one-card", 120)
    named = few[few.index("Not checked, for lack of facts") + 1]
    assert "-" in named
    assert "--json" not in named


def test_cards_that_were_not_compared_are_not_unchanged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    card = "{}:00.0 3D controller [0302]: NVIDIA Corporation GP102GL [Tesla P40] [10de:1b38] (rev a1)\n"
    (tmp_path / "two.txt").write_text(card.format("04") + card.format("82"))
    (tmp_path / "one.txt").write_text(card.format("04"))
    monkeypatch.setenv("COLUMNS", "160")
    run(["probe", "--from", str(tmp_path / "one.txt"), "--baseline", str(tmp_path / "two.txt")])
    out = capsys.readouterr().out
    assert "Not seen here: 0000:82:00.0 Tesla P40." in out
    assert "Nothing that matters has changed" not in out


@pytest.mark.parametrize(("psu", "shown"), [(Psu(present=True, plugged=True), False), (Psu(watts=750), True)])
def test_a_supply_of_which_nothing_is_known_is_no_row(
    capsys: pytest.CaptureFixture[str], psu: Psu, shown: bool
) -> None:
    _machine(console(), Machine(psus=(psu,)))
    assert ("Power supplies" in capsys.readouterr().out) is shown


def test_a_busy_card_has_no_excuse_for_a_slow_link() -> None:
    link = Link(width=16, max_width=16, speed_gts=2.5, max_speed_gts=8.0)
    busy = Gpu(address="0000:04:00.0", vendor="nvidia", link=link, nvml=NvmlGpu(index=0, utilization_percent=99))
    assert _link(busy) == "x16, 2.5 GT/s"
