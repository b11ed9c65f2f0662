"""Text from hardware is hostile: names, SMBIOS strings and log lines pass through here."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

# C0 and C1 controls, zero-width and bidirectional marks (they reorder a terminal line or hide
# text), line and paragraph separators, unpaired surrogates.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]+"
)
# Whole, so that no letter of them stays (ECMA-48). Of what begins with one byte of C1, which also comes from text
# in the wrong encoding, only what is surely a sequence.
_ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[[0-?]*|\x9b[0-?]+)[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS and the like: titles, links
    r"|[\x90\x98\x9d-\x9f][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"  # two and three characters: character sets, reset
)
_BLANKS = re.compile(r"[ \t\n]+")
LONGEST = 500


def clean(text: str) -> str:
    """Return text as one printable line: no escape sequences, controls or runs of blanks."""
    if text.isascii() and text.isprintable() and "  " not in text and len(text) <= LONGEST:
        return text.strip()
    text = _UNPRINTABLE.sub("", _ESCAPE_SEQUENCE.sub("", text.replace("\r", " ")))
    text = _BLANKS.sub(" ", text).strip()
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


Text = Annotated[str, AfterValidator(clean)]
"""A string that came from a machine, cleaned on its way into a fact."""


def shorten(text: str, longest: int = 60) -> str:
    """A name as it fits into a table or a headline; what is cut off shows as an ellipsis."""
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def say(template: str, /, **fields: object) -> str:
    """Fill one whole sentence. Every sentence for people goes through here, so that a table of
    translations can be keyed by the English template."""
    return template.format(**fields)


def plural(count: int, one: str, many: str) -> str:
    """Pick the template for a count; both are whole sentences or whole noun phrases."""
    return one if count == 1 else many
