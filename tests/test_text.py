"""Text from hardware, made safe for a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.text import LONGEST, clean, plural, say, shorten


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Tesla P40", "Tesla P40"),
        ("  padded  with   blanks ", "padded with blanks"),
        ("two\nlines\tand\r\nmore", "two lines and more"),
        ("over\rwritten", "over written"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[H\x1b[?25lgone", "gone"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://example.invalid\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;unended title", ""),
        ("\x9b31mC1", "C1"),
        ("evil\x1b[1;31mred\x1b[m\x9b1m!", "evilred!"),
        ("a\x1b(Bb\x1b=c\x1b7d\x1bce", "abcde"),
        ("a\x1bP1$r0m\x1b\\b\x1b_x\x9cc", "abc"),
        ("a\x9d0;title\x07b\x90q\x9cc", "abc"),
        ("it\u00e2\u20ac\x9d in the wrong encoding", "it\u00e2\u20ac in the wrong encoding"),
        ("bell\x07 null\x00 del\x7f", "bell null del"),
        ("\u202egnissap\u202c", "gnissap"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("lone \udc80 surrogate", "lone surrogate"),
        ("line\u2028separator", "lineseparator"),
        ("Größe 超微 Ж", "Größe 超微 Ж"),
        ("", ""),
    ],
)
def test_clean(text: str, shown: str) -> None:
    assert clean(text) == shown


@given(st.text(st.characters(codec=None), max_size=2 * LONGEST))
def test_cleaned_text_is_one_printable_line(text: str) -> None:
    shown = clean(text)
    assert len(shown) <= LONGEST
    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cs", "Zl", "Zp"}
    assert "\x1b" not in shown
    assert "  " not in shown.replace("\xa0", "x")
    assert clean(shown) == shown


def test_shorten() -> None:
    assert shorten("Tesla P40") == "Tesla P40"
    assert shorten("x" * 100) == "x" * 59 + "…"
    assert shorten("four words are here", 11) == "four words…"


def test_sentences_are_whole_templates() -> None:
    assert say(plural(1, "one card", "{n} cards"), n=1) == "one card"
    assert say(plural(3, "one card", "{n} cards"), n=3) == "3 cards"
    assert say("{brace}", brace="{not} a field") == "{not} a field"
