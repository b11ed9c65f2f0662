"""Markdown that one can paste: it shows what it should, and nothing that hardware says breaks out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from gpucheck.cli import run
from gpucheck.findings import Evidence, finding
from gpucheck.render.markdown import _finding, _plain, _prose

MACHINES = Path(__file__).resolve().parent.parent / "machines"
PARSER = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable("table")


def printed(capsys: pytest.CaptureFixture[str], machine: str, *form: str) -> str:
    run(["probe", "--from", str(MACHINES / machine / "capture.json"), *form])
    return capsys.readouterr().out


def tokens(text: str) -> list[Any]:
    return [token for block in PARSER.parse(text) for token in (block, *(block.children or ()))]


@pytest.mark.parametrize("machine", [path.parent.name for path in sorted(MACHINES.glob("*/capture.json"))])
def test_nothing_breaks_out(capsys: pytest.CaptureFixture[str], machine: str) -> None:
    text = printed(capsys, machine, "--markdown")
    document = json.loads(printed(capsys, machine, "--json"))
    found = tokens(text)
    kinds = {token.type for token in found}
    assert kinds.isdisjoint({"html_block", "html_inline", "link_open", "image", "hr", "blockquote_open"})
    assert kinds.isdisjoint({"em_open", "s_open", "code_block", "lheading"})
    steps = [step for f in document["findings"] for step in (*f["remedy"], *(test["do"] for test in f["next_test"]))]
    steps += [gap["how"] for gap in document["machine"]["gaps"]]
    for token in found:
        if token.type == "code_inline":  # a command in one of our own steps, word for word
            assert any(token.content in step for step in steps)
    headings = [token for token in found if token.type == "heading_open"]
    assert len(headings) == len(document["findings"])
    fences = [token.content for token in found if token.type == "fence"]
    assert len(fences) == sum(bool(finding["evidence"]) for finding in document["findings"])
    tables = [token for token in found if token.type == "table_open"]
    assert len(tables) == (2 if document["machine"]["gpus"] else 1)
    rows = [token for token in found if token.type == "tr_open"]
    assert len(rows) == len(tables) + 1 + len(document["machine"]["gpus"])


def test_what_hardware_says_is_shown_word_for_word(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "hostile-strings", "--markdown")
    shown = "".join(token.content for token in tokens(text) if token.type in ("text", "text_special", "fence"))
    document = json.loads(printed(capsys, "hostile-strings", "--json"))
    for card in document["machine"]["gpus"]:
        assert card["name"] in shown
        assert card["slot"] in shown
    for found in document["findings"]:
        assert found["message"] in shown
        for evidence in found["evidence"]:
            assert f"{evidence['source']}: {evidence['text']}" in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


@pytest.mark.parametrize(
    "text",
    [
        "# heading", "- item", "+ item", "* item", "1. item", "2) item", "=====", "---", "> quote", "    code",
        "a | b", "<b>bold</b>", "&lt;entity&gt;", "[x](y)", "![x](y)", "`code`", "**bold**", "_em_", "~~~",
        "\\", "a\\|b",
    ],
)  # fmt: skip
def test_plain(text: str) -> None:
    (paragraph,) = [token for token in PARSER.parse(_plain(text.strip())) if token.type == "inline"]
    assert {child.type for child in paragraph.children} <= {"text", "text_special"}
    assert "".join(child.content for child in paragraph.children) == text.strip()


def test_evidence_cannot_end_its_block() -> None:
    hostile = finding("bar-unassigned", "error", "machine", "x", evidence=(Evidence(source="```", text="````` <b>"),))
    (fence,) = [token for token in tokens("\n".join(_finding(hostile))) if token.type == "fence"]
    assert fence.content == "```: ````` <b>\n"


def test_an_unknown_value_is_a_question_mark() -> None:
    assert _plain(None) == "?"


def test_advice(capsys: pytest.CaptureFixture[str]) -> None:
    run(["advise", "--model", "R730", "--gpu", "P40", "--count", "2", "--markdown"])
    found = tokens(capsys.readouterr().out)
    assert "html_inline" not in {token.type for token in found}
    assert any("PowerEdge R730" in token.content for token in found if token.type == "text")


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        ("Read the log: sudo dmesg | grep -i nvrm", "Read the log: `sudo dmesg | grep -i nvrm`"),
        ("lspci -nnk -s 0000:04:00.0", "`lspci -nnk -s 0000:04:00.0`"),
        (
            "Rebuild it (sudo update-initramfs -u, or sudo dracut --force) and reboot.",
            "Rebuild it (`sudo update-initramfs -u`, or `sudo dracut --force`) and reboot.",
        ),
        ("Hold the clocks: sudo nvidia-smi -lgc 300,1500", "Hold the clocks: `sudo nvidia-smi -lgc 300,1500`"),
        ("sudo /usr/bin/dmesg > k.log, then gpucheck probe --from k.log", "`sudo /usr/bin/dmesg > k.log`, then "
         "`gpucheck probe --from k.log`"),
        ("nvidia-smi says N/A for a_b.", "nvidia-smi says N/A for a\\_b."),
        ("Run it: sudo x `y`", "Run it: sudo x \\`y\\`"),
    ],
)  # fmt: skip
def test_commands_are_to_be_copied(step: str, shown: str) -> None:
    assert _prose(step) == shown


def test_a_card_without_a_driver_is_not_an_unknown_one(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "r730-no-driver", "--markdown").splitlines()
    (row,) = [line for line in lines if line.startswith("| 0000:")]
    assert row.split("|")[5].strip() == "-"


def test_the_commands_of_a_finding_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert "(`sudo update-initramfs -u`, or `sudo dracut --force`)" in printed(capsys, "r730-nouveau", "--markdown")
