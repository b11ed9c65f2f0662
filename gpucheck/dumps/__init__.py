"""Other tools' text, saved or pasted, to partial facts.

One module per tool; each has ``looks_like(text)``, which says no when in doubt, and ``parse(text)``.
:func:`recognise` takes a text in which several tools' output may follow each other, as people paste it
into a forum: with prompts, with code fences, with prose between.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from gpucheck.dumps import bug_report, lspci, nvidia_smi, small
from gpucheck.facts import Gap, Parts
from gpucheck.readers import kernel_log, psu, smbios
from gpucheck.text import say

_PROGRAMS = {
    "lspci": "lspci",
    "nvidia-smi": "nvidia-smi",
    "dmesg": "kernel",
    "journalctl": "kernel",
    "dmidecode": "dmidecode",
    "lscpu": "lscpu",
    "lsmod": "lsmod",
    "modinfo": "modinfo",
    "uname": "uname",
}
"""Program to the kind of its output."""
_FILES = {
    "/proc/driver/nvidia/version": "version",
    "/proc/cmdline": "cmdline",
    "/proc/modules": "lsmod",
    "/dev/nvidia": "devices",
}
"""Argument of ls, cat or grep to the kind of output."""

# "$ ", "user@host:~$ ", "[root@host ~]# " and their like. A bare "# " is a comment too, so what
# follows it must be a program that is known; dmidecode begins its own output with "# dmidecode 3.2".
_PROMPT = re.compile(
    r"(?:\$ )?(?:\([\w.-]+\) )?(?:[\w.-]+@[\w.-]+[: ][^$#%>]*|\[[\w.-]+@[^\]]*\]|[\w/~.-]* ?)[$#%>❯➜] *"
    r"(?:sudo (?:-\S+ )*)?(?:/\S*/)?(?P<program>[\w-]+)(?P<rest>(?: .*)?)"
)
_ANY_USER = re.compile(r"(?:\$ )?\[?[\w.-]+@[\w.-]+[: ][^$#%>]*\]?[$#] ")
_READERS = frozenset({"cat", "ls", "grep", "head", "tail", "more", "less"})
_FENCE = re.compile(r"(?:```|~~~)[\w-]*|</?(?:pre|code)>|\[/?code\]", re.IGNORECASE)
_DMIDECODE = re.compile(r"# dmidecode \d|Handle 0x[0-9A-Fa-f]{4}, DMI type \d")
_HEX = re.compile(r"[0-9a-f]{2,3}: (?:[0-9a-f]{2} ?){16}")

_WHOLE = ("", "")
"""Ends an output that another one follows, so that its parser knows nothing is cut off."""
_LONGEST = 1000
"""Most characters of a line that begins a tool's output."""
_ALONE = frozenset({"kernel", "dmidecode", "fru"})
"""Kinds that a text may be as a whole: those are for their readers' own recognition."""


class _Segment(NamedTuple):
    """Lines of one tool's output."""

    kind: str
    lines: list[str]
    command: str


def recognise(text: str) -> list[Parts] | None:
    """Facts from a text of one or several tools, or of nvidia-bug-report.sh.

    Returns:
        The parts, all of one machine unless the text holds logs of several; None when no output of a
        known tool is in it, or nothing but one whole kernel log, dmidecode or ``ipmitool fru``.
    """
    if bug_report.looks_like(text):
        return bug_report.parse(text)
    if "&lt;" in text:
        text = html.unescape(text)
    segments = list(_segments(text))
    kinds = {segment.kind for segment in segments}
    if not kinds or (len(kinds) == 1 and kinds <= _ALONE and not any(segment.command for segment in segments)):
        return None
    texts: dict[str, list[str]] = {}
    for segment in segments:
        texts.setdefault(segment.kind, []).append("\n".join(segment.lines))
    # A line of no tool between two listings, so that neither runs into the other.
    joined = {kind: "\n\n.\n".join(pieces) for kind, pieces in texts.items()}
    return list(_parts(joined, _log_source(segments)))


def _log_source(segments: Iterable[_Segment]) -> Literal["dmesg", "journal", "file"]:
    command = next((segment.command for segment in segments if segment.kind == "kernel"), "")
    return "dmesg" if command.startswith("dmesg") else "journal" if command else "file"


def _parts(texts: dict[str, str], source: Literal["dmesg", "journal", "file"]) -> Iterator[Parts]:
    if "lspci" in texts:
        yield lspci.parse(texts["lspci"])
    if "dmidecode" in texts:
        try:
            yield smbios.parse_text(texts["dmidecode"])
        except ValueError as error:
            how = say("The text of dmidecode cannot be read: {error}", error=error)
            yield Parts(gaps=(Gap(fact="system", reason="unreadable", how=how),))
    if "fru" in texts:
        yield Parts(psus=psu.from_ipmi_fru(texts["fru"]) or None)
    if "sdr" in texts:
        yield small.sensors(texts["sdr"])
    if "lscpu" in texts:
        yield small.lscpu(texts["lscpu"])
    drivers = [form.driver(texts[form.name]) for form in small.DRIVER_FORMS if form.driver and form.name in texts]
    if drivers:
        yield small.driver_parts(small.filled(drivers))
    if "kernel" in texts:
        log = kernel_log.parse(texts["kernel"], source)
        yield Parts(kernel_log=log if log.lines else None)
    if "nvidia-smi" in texts:
        yield nvidia_smi.parse(texts["nvidia-smi"])


def _segments(text: str) -> Iterator[_Segment]:
    """Split where a prompt names a program, and where a line can only begin another tool's output."""
    segment: _Segment | None = None
    for written in text.splitlines():
        raw = "" if _FENCE.fullmatch(written.strip()) else written
        line = raw.strip()
        prompt = _prompt(line) if len(line) <= _LONGEST else None
        if prompt is not None:
            if segment is not None:
                segment.lines.extend(_WHOLE)
                yield segment
            kind, command = prompt
            segment = _Segment(kind, [], command) if kind else None
            continue
        kind = _kind(raw, line, segment.kind if segment else None)
        if segment is not None and kind == segment.kind:
            segment.lines.append(raw)
            continue
        if segment is not None:
            segment.lines.extend(_WHOLE)
            yield segment
        segment = _Segment(kind, [raw], "") if kind else None
    if segment is not None:
        yield segment


def _prompt(line: str) -> tuple[str | None, str] | None:
    """Kind of output and command of a line with a prompt; None where it is none."""
    found = _PROMPT.fullmatch(line) if "#" in line or "$" in line or ">" in line or "%" in line else None
    if found is None or _DMIDECODE.match(line):
        return (None, line) if _ANY_USER.match(line) else None
    program, rest = found["program"], found["rest"]
    if program in _PROGRAMS:
        return _PROGRAMS[program], program + rest
    if program in _READERS:
        return next((kind for path, kind in _FILES.items() if path in rest), None), program + rest
    if program == "ipmitool":
        return None, program + rest  # told by its content
    return (None, line) if _ANY_USER.match(line) else None


def _kind(raw: str, line: str, current: str | None) -> str | None:
    """Kind of the output that a line belongs to."""
    if not line or (current is not None and raw.startswith("\t") and not raw.startswith("\tGPU")):
        return current
    if current == "kernel" and (line.startswith("[") or " kernel: " in line):
        return current
    if current == "lspci" and _HEX.fullmatch(line):
        return current
    if len(line) > _LONGEST:
        return current
    if kernel_log.looks_like_kernel_log(line):
        return "kernel"
    if lspci.starts(raw):
        return "lspci"
    if nvidia_smi.starts(raw):
        return "nvidia-smi"
    if _DMIDECODE.match(line):
        return "dmidecode"
    if psu.looks_like_ipmi_fru(line):
        return "fru"
    form = small.form_of(line)
    if form is not None:
        return form
    # Prose ends a kernel log, whose lines each have a mark; other parsers pass over what they don't know.
    return None if current == "kernel" and not raw[0].isspace() else current
