"""What terminals, mailers and web pages do to a text, undone before any parser sees it.

Only what cannot be part of a tool's output is changed, so that a file as the tool wrote it stays as
it is: line ends, colours, marks of quotation, entities and tags of HTML, typographic quotes and
blanks, the indentation of a whole block.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterator
from itertools import groupby

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_LOST_ESCAPES = re.compile(r"\[(?:\d\d;\d\dm|m)\[K")
"""What grep's colours leave where only the escape characters were lost."""
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|nbsp|#\d{2,5}|#x[0-9a-f]{2,4});", re.I)
_BREAK = re.compile(r"<br ?/?>\n?", re.IGNORECASE)
_TAG = re.compile(r"</?(?:a|b|blockquote|code|div|em|font|i|li|p|pre|span|strong|tt|ul)(?: [^<>\n]{0,200})?>", re.I)
_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("“”„‟″", '"'),
        **dict.fromkeys("‘’‚‛′", "'"),
        **dict.fromkeys("\u00a0\u2007\u2009\u200a\u202f\u3000", " "),
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff"),
    }
)
_QUOTED = re.compile(r"(?:> ?)+")
_AT_THE_MARGIN = re.compile(r"Handle 0x[0-9A-Fa-f]{4}, DMI|=+NVSMI LOG=+|GPU [0-9A-Fa-f]{4,8}:|FRU Device Desc", re.M)
"""Lines that their tools write without indentation, and whose parsers count on it."""
_FEW = 2


def plain(text: str) -> str:
    """The text as the tools printed it, as far as that can be told."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    text = _LOST_ESCAPES.sub("", text)
    if "<nvidia_smi_log>" not in text:
        if _ENTITY.search(text):
            text = html.unescape(text)
        if "<" in text:
            text = _TAG.sub("", _BREAK.sub("\n", text))
    if not text.isascii():
        text = text.translate(_CHARACTERS)
    if "\n>" in text or text.startswith(">"):
        text = "\n".join(_unquoted(text.split("\n")))
    return "\n".join(_at_the_margin(text.split("\n"))) if _is_indented(text) else text


def _unquoted(lines: list[str]) -> Iterator[str]:
    """Lines that begin with ``>`` are a quotation; one alone is a prompt."""
    for is_quoted, run in groupby(lines, key=lambda line: line.startswith(">")):
        block = list(run)
        yield from (_QUOTED.sub("", line, count=1) for line in block) if is_quoted and len(block) >= _FEW else block


def _is_indented(text: str) -> bool:
    return re.search(rf"^ {{2,}}(?:{_AT_THE_MARGIN.pattern})", text, re.MULTILINE) is not None


def _at_the_margin(lines: list[str]) -> Iterator[str]:
    """Blocks that are indented as a whole, as Markdown marks code."""
    for is_indented, run in groupby(lines, key=lambda line: line.startswith("  ") or not line.strip()):
        block = "\n".join(run)
        moved = textwrap.dedent(block)
        yield moved if is_indented and _AT_THE_MARGIN.search(moved) else block
