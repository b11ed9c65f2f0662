"""Explanations of findings: the docstrings of the rule modules, taken apart by their headings."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

from gpucheck.errors import UsageError
from gpucheck.findings import BY_CODE, CODES, Code, Document
from gpucheck.rules import module_name
from gpucheck.text import say

HEADINGS = (
    "What it means",
    "How we know",
    "Why it matters",
    "What to do",
    "When it is wrong",
    "Sources",
)
"""In this order in every rule module's docstring, each on a line of its own."""

_FELL_OFF = "79"
"""The Xid that has a finding of its own."""
_HEADING = re.compile(r"^[ \t]*(" + "|".join(HEADINGS) + r"):?[ \t]*(?:\n[ \t]*[-=~]+[ \t]*)?$", re.MULTILINE)

_LINE_BREAK = re.compile(r"(?<!\n)\n(?!\n|- )")
"""Inside a paragraph: neither beside an empty line nor before a list item."""


class Explanation(Document):
    """One finding, explained."""

    code: str
    name: str
    summary: str
    sections: dict[str, str]
    """Heading to text: one line a paragraph, list item or source."""


def explain(name_or_code: str) -> Explanation:
    """Explain a finding. Imports that rule's module and no other rule.

    Args:
        name_or_code: ``GC601``, ``bar-unassigned`` or ``bar_unassigned``, in any case; ``Xid 79`` too.

    Raises:
        UsageError: Nothing is called so; the hint names what is nearest.
    """
    code = _find(name_or_code)
    module = import_module(module_name(code.name))
    return Explanation(code=code.code, name=code.name, summary=code.summary, sections=sections(module.__doc__ or ""))


def sections(docstring: str) -> dict[str, str]:
    """Split a rule's docstring at its headings and undo its line breaks, so that the reader's width
    counts. Headings that are absent are left out."""
    pieces = _HEADING.split(inspect.cleandoc(docstring))
    return {
        heading: text.strip() if heading == "Sources" else _LINE_BREAK.sub(" ", text.strip())
        for heading, text in zip(pieces[1::2], pieces[2::2], strict=True)
    }


def all_codes() -> tuple[Code, ...]:
    """Every registered finding, by code."""
    return tuple(sorted(CODES.values(), key=lambda code: code.code))


def table_markdown() -> str:
    """The table of findings for the README and the docs: name, code, meaning."""
    rows = [f"| `{code.name}` | {code.code} | {code.summary} |" for code in all_codes()]
    return "\n".join(["| name | code | meaning |", "|---|---|---|", *rows]) + "\n"


def _find(name_or_code: str) -> Code:
    wanted = name_or_code.strip()
    xid = re.fullmatch(r"xid[ :-]*(\d{1,4})", wanted, re.IGNORECASE)
    if xid is not None:
        return CODES["gpu-fell-off-bus" if xid[1] == _FELL_OFF else "xid-reported"]
    code = BY_CODE.get(wanted.upper()) or CODES.get(wanted.lower().replace("_", "-"))
    if code is None:
        raise UsageError(say("No finding has this name or code."), input=wanted, hint=_hint(wanted))
    return code


def _hint(wanted: str) -> str:
    from difflib import get_close_matches

    by_code = get_close_matches(wanted.upper(), BY_CODE, n=1, cutoff=0.75)
    near = by_code or get_close_matches(wanted.lower().replace("_", "-"), CODES, n=1, cutoff=0)
    return say("Did you mean {name}?", name=near[0])
