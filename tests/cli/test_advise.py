"""``gpucheck advise`` for people: the seller, prices, the claim, every model in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpucheck.cli import run

ROOT = Path(__file__).resolve().parents[2]
TWO = ("advise", "R730", "2xP40")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert err == ""
    return out


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found = json.loads(shown(capsys, *arguments, "--json"))
    assert isinstance(found, dict)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def wide(*arguments: str, columns: int) -> str:
    """What a pipe of so many columns gets."""
    environment = {**os.environ, "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "gpucheck", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=120, check=True)
    return done.stdout


# --- the seller ---------------------------------------------------------------------------------


def test_seller_prints_the_message_alone(capsys: pytest.CaptureFixture[str]) -> None:
    message = shown(capsys, *TWO, "--seller")
    assert message.startswith("Hello, I would like to put 2 × Tesla P40")
    assert message.strip() == document(capsys, *TWO)["seller_message"]
    assert "fits" not in message


@pytest.mark.parametrize("cards", ["3090", "3xP40"])
def test_seller_with_nothing_to_ask_says_so(capsys: pytest.CaptureFixture[str], cards: str) -> None:
    assert run(("advise", "R730", cards, "--seller")) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gpucheck: nothing is to be asked: No: the Dell PowerEdge R730 does not take ")


def test_seller_of_every_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "one message for each model" in refused(capsys, "advise", "--gpu", "P40", "--seller")


def test_markdown_holds_the_message_and_what_answers_mean(capsys: pytest.CaptureFixture[str]) -> None:
    page = shown(capsys, *TWO, "--markdown")
    assert "**Message to the seller**" in page
    assert re.search(r"^> 1\\\. Are both CPUs fitted\?  $", page, re.MULTILINE)
    assert "Are both CPUs fitted? Yes: " in page
    assert 'The claim "only one GPU" is right with' in page
    assert "**Known builds of this model**" in page


# --- prices -------------------------------------------------------------------------------------


def test_prices_are_added_up_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    prices = ("--price", "P40=200", "--price", "09TMRF=30")
    assert document(capsys, *TWO, *prices)["price"]["total"] == 460
    text = shown(capsys, *TWO, *prices)
    assert re.search(r"^  460\.00 +in all$", text, re.MULTILINE)
    assert re.search(r"^  400\.00 +without what may be fitted already$", text, re.MULTILINE)
    assert "Without a price: alternate riser 3" in text
    assert "in all |" in shown(capsys, *TWO, *prices, "--markdown")


def test_price_of_nothing_on_the_list_names_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert "on the list: Tesla P40; alternate riser 3" in refused(capsys, *TWO, "--price", "sled=1")


# --- options ------------------------------------------------------------------------------------


def test_cpu_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "240 W 2 × Xeon E5-2680 v4 [vendor-quoted]" in shown(capsys, *TWO, "--cpu", "E5-2680 v4")
    assert "give --cpu alone" in refused(capsys, *TWO, "--cpu", "E5-2680 v4", "--cpu-tdp", "120")
    assert "nearest: " in refused(capsys, *TWO, "--cpu", "E5-2681 v4")


def test_memory_and_use(capsys: pytest.CaptureFixture[str]) -> None:
    stated = document(capsys, *TWO, "--ram", "64G", "--use", "infer")["request"]
    assert (stated["ram_bytes"], stated["use"]) == (64 << 30, "infer")
    assert "For inference these are not asked" in shown(capsys, *TWO, "--use", "infer")
    assert "write it as 256G" in refused(capsys, *TWO, "--ram", "64")
    assert "'train', 'infer'" in refused(capsys, *TWO, "--use", "play")


def test_watts_of_the_supplies(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, *TWO)
    assert "Usable of 2 × 1100 W" in text
    assert re.search(r"^  200-240 V +2200 W +1100 W +1100 W$", text, re.MULTILINE)
    assert re.search(r"^  100-120 V +2100 W +1050 W +1050 W$", text, re.MULTILINE)


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("P40",), ("1xP40",), ("--gpu", "P40")])
def test_card_in_the_place_of_the_model_is_a_card(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert "models in the catalog take 1 × Tesla P40" in shown(capsys, "advise", *words)
    capture = str(ROOT / "tests" / "machines" / "r730-two-p40" / "capture.json")
    text = shown(capsys, "advise", "--from", capture, *words, code=1)
    assert "does not take 1 × Tesla P40 next to the 2 × Tesla P40" in " ".join(text.split())


def test_card_whose_name_begins_with_a_digit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(("advise", "2x2060", "--json")) in (0, 3)
    assert json.loads(capsys.readouterr().out)["request"]["gpus"] == [{"gpu": "nvidia-geforce-rtx-2060", "count": 2}]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("R730", "R720"), "R720: a server model where a card is expected"),
        (("R730", "--model", "R720"), "R730: a server model where a card is expected"),
        (("R730", "x"), "x: no such card in the catalog"),
        (("P41",), "P41: no such server model"),
        (("R730", "P40", "--ambient", "999"), "--ambient"),
        (("R730", "P40", "--ambient", "-300"), "--ambient"),
        (("R730", "P40", "--cpu-tdp", "99999"), "--cpu-tdp"),
        (("R730", "P40", "--psu", "2x99999"), "not a number of power supplies"),
    ],
)
def test_words_that_make_no_sense(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str) -> None:
    assert told in refused(capsys, "advise", *words)


# --- sources ------------------------------------------------------------------------------------


def test_sources_are_numbered_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    plain, cited = shown(capsys, *TWO), shown(capsys, *TWO, "--sources")
    assert "\nSources\n" not in plain
    assert re.search(r"^This rests on \d+ sources: --sources lists them", plain, re.MULTILINE)
    text, _, listed = cited.partition("\nSources\n")
    listing = re.findall(r"^ {2,3}(\d+) (?:vendor|measured|review|community|derived)", listed, re.MULTILINE)
    numbers = [int(number) for number in listing]
    assert numbers == list(range(1, len(numbers) + 1))
    told = re.findall(r"\[[a-z-]+\s((?:\d+,?\s*)+)\]", " ".join(text.split()))
    assert {int(number) for group in told for number in re.findall(r"\d+", group)} == set(numbers)


# --- every model --------------------------------------------------------------------------------


def test_ranking_says_what_each_model_needs(capsys: pytest.CaptureFixture[str]) -> None:
    found = {one["server"]: one for one in document(capsys, "advise", "--gpu", "P40", "--count", "2")["candidates"]}
    needs = found["dell-poweredge-r730"]["needs"]
    assert needs.startswith("2 CPUs, alternate riser 3, 2 × 1100 W")
    assert "power cable" in needs
    for one in found.values():
        assert one["needs"]
        assert "None" not in one["needs"]
        assert ("in the way" in one["needs"]) is (one["verdict"] == "does-not-fit")
        assert ("not known" in one["needs"]) is (one["verdict"] == "unknown")


@pytest.mark.parametrize("columns", [60, 100])
def test_pipes_of_any_width(columns: int) -> None:
    for arguments in (("advise", "--gpu", "P40", "--count", "4"), ("advise", "R730"), (*TWO, "--price", "P40=200")):
        text = wide(*arguments, columns=columns)
        assert max(map(len, text.splitlines())) <= columns
        assert "fits-with-chang\n" not in text
    ranked = wide("advise", "--gpu", "P40", "--count", "4", columns=columns)
    assert re.search(r"fits-with-changes +\d", ranked)
