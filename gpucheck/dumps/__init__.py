"""Other tools' text, saved or pasted, to partial facts.

One module per tool; each has ``looks_like(text)``, which says no when in doubt, and ``parse(text)``.
:func:`recognise` takes a text in which several tools' output may follow each other, as people paste it
into a forum: with prompts, with code fences, with prose between.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from gpucheck.dumps import bug_report, lspci, nvidia_smi, small, software
from gpucheck.facts import Gap, Nvml, Parts
from gpucheck.host import Completed
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
    "pip": "pip",
    "pip3": "pip",
    "conda": "pip",
    "printenv": "printenv",
    "env": "printenv",
}
"""Program to the kind of its output."""
_BRINGS = {"lspci": "pci", "nvidia-smi": "nvml", "dmidecode": "slots", "lscpu": "cpu"}
"""Program to the level that its output tells."""
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
# Where only the name of a host can stand: prompt, uname -a, a line of the kernel in a syslog or journal.
_HOST = re.compile(
    r"^(?:(?:\([\w.-]+\) )?\[?[\w.-]+@(?P<prompt>\w[\w.-]*)[: ][^$#%>\n]*[$#%] "
    r"|Linux (?P<uname>\w[\w.-]*) \d+\.\d+\S* #"
    r"|(?:\S+ +\S+ \d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\dT\S+) (?P<log>\w[\w.-]*) kernel: )",
    re.MULTILINE,
)
_NO_NAME = re.compile(
    r"localhost|host(?:name)?|server|machine|node|linux|ubuntu|debian|gpu|x+|[0-9a-f]{12}|[0-9a-f]{64}"
)
"""Names that anonymisers put, that are those of many hosts, and those of containers."""
_READERS = frozenset({"cat", "ls", "grep", "head", "tail", "more", "less"})
_FENCE = re.compile(r"(?:```|~~~)[\w-]*|</?(?:pre|code)>|\[/?code\]", re.IGNORECASE)
_DMIDECODE = re.compile(r"# dmidecode \d|Handle 0x[0-9A-Fa-f]{4}, DMI type \d")
_KEYWORD = re.compile(r" (?:-s|--string)[ =]+([a-z-]+)")
"""Of ``dmidecode -s system-product-name``, which prints one value and no name for it."""
_HEX = re.compile(r"[0-9a-f]{2,3}: (?:[0-9a-f]{2} ?){16}")

_WHOLE = ("", "", "")
"""Ends an output that another one follows, so that its parser knows nothing is cut off."""
_LONGEST = 1000
"""Most characters of a line that begins a tool's output."""
_ALONE = {
    "kernel": kernel_log.looks_like_kernel_log,
    "dmidecode": smbios.looks_like_dmidecode,
    "fru": psu.looks_like_ipmi_fru,
}
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
    segments = list(_segments(text))
    kinds = {segment.kind for segment in segments}
    if not kinds or (len(kinds) == 1 and _is_alone(text, segments)):
        return None
    texts: dict[str, list[str]] = {}
    for segment in segments:
        texts.setdefault(segment.kind, []).append(_text_of(segment))
    # A line of no tool between two listings, so that neither runs into the other; in a log it would be a message.
    joined = {kind: ("\n" if kind == "kernel" else "\n\n.\n").join(pieces) for kind, pieces in texts.items()}
    return list(_parts(joined, _log_source(segments)))


def _text_of(segment: _Segment) -> str:
    """The lines; of a value that its command alone names, both in one line."""
    keyword = _KEYWORD.search(segment.command) if segment.kind == "dmi-string" else None
    if keyword is None:
        return "\n".join(segment.lines)
    # Comments of dmidecode begin with #; prose may follow the value.
    value = next((line for line in map(str.strip, segment.lines) if line and not line.startswith("#")), "")
    return f"{keyword[1]}: {value}"


def _is_alone(text: str, segments: Sequence[_Segment]) -> bool:
    """Whether a text is one tool's output and nothing else, as a file has it.

    Between stamped lines of a kernel log prose can be told; in a log without stamps any line may be a message.
    """
    if not all(not s.command and s.kind in _ALONE and _ALONE[s.kind](text) for s in segments):
        return False
    taken = sum(bool(line.strip()) for s in segments for line in s.lines)
    stamped = any(s.kind == "kernel" and any(map(kernel_log.is_stamped, s.lines[:20])) for s in segments)
    return not stamped or taken == sum(bool(line.strip()) for line in text.splitlines())


def printed(commands: Mapping[str, Completed | OSError], known: Collection[str]) -> list[Parts]:
    """Facts from the programs' output in a capture.

    Args:
        commands: Command line to what became of it.
        known: Levels that were read directly: what programs say of these is left out.
    """
    wanted = {line: done for line, done in commands.items() if _BRINGS.get(_program(line), "") not in {"", *known}}
    texts = [f"$ {line}\n{done.stdout}\n{done.stderr}" for line, done in wanted.items() if isinstance(done, Completed)]
    hung = [line for line, done in wanted.items() if isinstance(done, TimeoutError) and _program(line) == "nvidia-smi"]
    found = (recognise("\n".join(texts)) or []) if texts else []
    if hung and not any(parts.nvml is not None for parts in found):
        message = say("{command} did not answer in time.", command=hung[0])
        gap = Gap(fact="nvml", reason="timed-out", how=message)
        found.append(Parts(nvml=Nvml(status="timed-out", call=hung[0], message=message), gaps=(gap,)))
    return found


def _program(line: str) -> str:
    words = line.removeprefix("sudo ").split()
    return words[0].rpartition("/")[2] if words else ""


def hosts(text: str) -> frozenset[str]:
    """Names that a text gives its host, without domain. For comparison only: never to be shown or kept."""
    found = (name for match in _HOST.finditer(text) for name in match.groups() if name)
    return frozenset(
        name for name in (full.partition(".")[0].lower() for full in found) if not _NO_NAME.fullmatch(name)
    )


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
    if "dmi-string" in texts:
        yield Parts(system=smbios.parse_strings(texts["dmi-string"]))
    if "fru" in texts:
        yield Parts(psus=psu.from_ipmi_fru(texts["fru"]) or None)
    for name, parse in small.BMC_FORMS.items():
        if name in texts:
            yield parse(texts[name])
    if "lscpu" in texts:
        yield small.lscpu(texts["lscpu"])
    yield from software.parse(texts)
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
    if program == "dmidecode" and _KEYWORD.search(rest):
        return "dmi-string", program + rest
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
    if (form := software.form_of(line)) is not None:
        return form
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
