"""The kernel's messages of this boot.

The ring buffer is read from /dev/kmsg without any program; where that is not allowed, the journal or
a log file may be. What people paste comes in a dozen forms (dmesg with seconds, dates or nothing,
journalctl, syslog): one parser takes them all and leaves the bare messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Literal, NamedTuple

from gpucheck.facts import Gap, GapReason, KernelLog, Parts
from gpucheck.host import Host
from gpucheck.text import clean, say

Source = Literal["dmesg", "kmsg", "journal", "file"]

DMESG = ("dmesg",)
JOURNAL = ("journalctl", "-k", "-b", "-o", "short-monotonic", "--no-pager")
FILES = ("/var/log/dmesg", "/var/log/kern.log")

# --- reading ----------------------------------------------------------------------------------


def read(host: Host, timeout: float = 2.0) -> Parts:
    """Read the kernel's messages of this boot from the first place that gives them.

    The order is that of cost: /dev/kmsg (no program), dmesg, the journal. The journal is often open
    to members of ``adm`` where the ring buffer is not. Log files are read only in a capture or a
    folder: on a live machine they may be of an earlier boot.

    Args:
        host: The machine.
        timeout: Seconds that each program may take.

    Never raises: without any message ``kernel_log`` is None and a gap says why.
    """
    reason: GapReason = "file-absent"
    how = say("journalctl -k -b > kernel.log, then gpucheck probe --from kernel.log")
    for source, messages in _places(host, timeout):
        try:
            log = parse(messages(), source)
        except PermissionError:
            reason, how = "needs-root", say("sudo /usr/bin/dmesg > kernel.log, then gpucheck probe --from kernel.log")
            continue
        except TimeoutError:
            reason = reason if reason == "needs-root" else "timed-out"
            continue
        except OSError:
            continue
        if log.lines:
            gaps = () if log.complete else (_beginning_lost(),)
            return Parts(origin=host.name, kernel_log=log, gaps=gaps)
    return Parts(origin=host.name, gaps=(Gap(fact="kernel_log", reason=reason, how=how),))


def _beginning_lost() -> Gap:
    how = say(
        "The first messages of this boot are no longer in the buffer: "
        "journalctl -k -b > kernel.log, then gpucheck probe --from kernel.log"
    )
    return Gap(fact="kernel_log.beginning", reason="not-in-input", how=how)


def _places(host: Host, timeout: float) -> Iterator[tuple[Source, Callable[[], str]]]:
    yield "kmsg", lambda: host.kernel_messages().decode("utf-8", "replace")
    yield "dmesg", lambda: _printed(host, DMESG, timeout)
    yield "journal", lambda: _printed(host, JOURNAL, timeout)
    for path in () if host.live else FILES:
        yield "file", partial(host.text, path)


def _printed(host: Host, argv: tuple[str, ...], timeout: float) -> str:
    done = host.run(argv, timeout)
    if done.returncode and ("not permitted" in done.stderr or "permission" in done.stderr.lower()):
        raise PermissionError(done.stderr.strip())
    return done.stdout


# --- parsing ----------------------------------------------------------------------------------

_SECONDS = r"\[ *[+-]?\d+\.\d{6}(?: <[ \d.]+>)?\]"
_KMSG = re.compile(r"\d+,\d+,\d+,[^;]*;(?P<text>.*)")
_ESCAPED = re.compile(r"(?:\\x[0-9a-f]{2})+")
# Priority (<6>, or in words), then seconds, a date in any language or what --human and --time-format=iso write,
# then the caller (thread or CPU) where the kernel is built to tell it.
_DMESG = re.compile(
    r"(?:<\d+>|\w+ *:\w+ *: )?"
    rf"(?:{_SECONDS}|\[\S{{1,9}} \S{{1,9}} +\d+ \d\d:\d\d:\d\d \d{{4}}\]|\[\w{{3}} ?\d+ \d\d:\d\d\]"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:?\d\d)"
    r"(?:\[ *[TC]\d+\])? ?(?P<text>.*)"
)
_PRIORITY = re.compile(r"<\d+>(?P<text>.*)")
# journalctl and syslog: a date in any language or ISO, or the seconds since boot; host (or none);
# program. rsyslog adds the kernel's own seconds.
_SYSLOG = re.compile(
    r"(?:\S+ +\S+ \d\d:\d\d:\d\d(?:\.\d+)?|\w+ \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \S+"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)|\d+\.\d{6}) (?:\S+ )?"
    rf"(?:(?P<kernel>kernel)|[\w./@()-]+(?:\[\d+\])?): (?:{_SECONDS} ?)?(?P<text>.*)"
)
_MONOTONIC = re.compile(rf"{_SECONDS} (?:\S+ )?kernel: (?P<text>.*)")

_NEW_BOOT = re.compile(r"-- (?:Boot [0-9a-f]+|Reboot) --")
_JOURNAL_NOTE = re.compile(r"-- .* --$|-- (?:Logs|Journal) begins? ")
_FIRST = "Linux version "

# Messages of the NVIDIA driver that syslog and older kernels spread over several stamped lines, and
# what never is the rest of one.
_SPREADS = re.compile(
    r"NVRM: (?:The NVIDIA (?:GPU|probe routine was|.* GPU installed in)|This PCI I/O region|This is a 64-bit BAR"
    r"|This can occur|Try unloading|API mismatch|A GPU crash dump|Your system is not)"
)
_STANDS_ALONE = re.compile(r"NVRM: (?:Xid|GPU|loading|No|The NVIDIA probe routine failed)\b")
_LONGEST = 400


_FAULT = re.compile(r"NVRM: .*(?:Xid \(|fallen off the bus|RmInitAdapter failed)")


class _Line(NamedTuple):
    """One line without what the logger wrote before it."""

    text: str
    continues: bool = False
    """The rest of the message above: it has no time stamp of its own."""


def parse(text: str, source: Source) -> KernelLog:
    """Make the messages of the last boot in a kernel log of any form.

    Continuation lines are joined to their first line with one blank and lose their own ``NVRM:``.
    Lines of other programs in a syslog are dropped. Of earlier boots :func:`faults` are kept.
    """
    messages: list[str] = []
    earlier: list[str] = []
    complete = False
    for line in _lines(text):
        if line is None or line.text.startswith(_FIRST):
            earlier += messages
            messages.clear()
            complete = line is not None
        if line is None:
            continue
        if messages and (line.continues or _ends_later(messages[-1], line.text)):
            messages[-1] += " " + line.text.removeprefix("NVRM:").lstrip()
        else:
            messages.append(line.text)
    lines = tuple(filter(None, map(clean, messages)))
    return KernelLog(source=source, lines=lines, complete=complete, earlier=faults(map(clean, earlier)))


def faults(lines: Iterable[str]) -> tuple[str, ...]:
    """What the NVIDIA driver says of a card that failed; the same line once."""
    return tuple(dict.fromkeys(line for line in lines if _FAULT.match(line)))


def _ends_later(message: str, line: str) -> bool:
    """Whether a line with a stamp of its own is the rest of the driver's message above it."""
    if not (line.startswith("NVRM: ") and _SPREADS.match(message)) or len(message) > _LONGEST:
        return False
    if _SPREADS.match(line) or _STANDS_ALONE.match(line):
        return False
    if message.startswith("NVRM: This PCI"):
        return message.endswith(":")
    return not message.endswith((".", "!"))


def _lines(text: str) -> Iterator[_Line | None]:
    """The kernel's lines without their prefix; None where another boot begins."""
    above = ""  # what the last line with a prefix was: kmsg, kernel or other (another program)
    stamped = False
    for raw in text.split("\n"):
        line = raw.rstrip()
        words = line.lstrip()
        if not words:
            continue
        if words.startswith("-- ") and (_NEW_BOOT.match(words) or _JOURNAL_NOTE.match(words)):
            if _NEW_BOOT.match(words):
                yield None
        elif found := _KMSG.match(words):
            above, stamped = "kmsg", True
            yield from _split(_unescape(found["text"]), "\n")
        elif found := _SYSLOG.match(words):
            above, stamped = found["kernel"] or "other", True
            if found["kernel"]:
                yield from _split(found["text"], "#012")  # rsyslog's line feed
        elif found := _MONOTONIC.match(words) or _DMESG.match(words):
            above, stamped = "kernel", True
            yield _Line(found["text"])
        elif above in ("other", "kmsg") and line != words:
            continue  # the rest of another program's message, or the record's SUBSYSTEM=pci
        else:
            found = _PRIORITY.match(words)
            yield _Line(found["text"] if found else words, stamped and not found and line != words)


def _split(message: str, line_feed: str) -> Iterator[_Line]:
    if line_feed not in message:
        yield _Line(message)
        return
    for number, line in enumerate(message.split(line_feed)):
        yield _Line(line.strip(), continues=number > 0)


def _unescape(text: str) -> str:
    """Undo /dev/kmsg's escapes: a line feed within a message arrives as ``\\x0a``."""
    if "\\x" not in text:
        return text
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("\\x", "")).decode("utf-8", "replace"), text)


_BARE = re.compile(r"NVRM: |(?:pci|pcieport|nvidia) [0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d: ")


def looks_like_kernel_log(text: str) -> bool:
    """Whether the text begins as a boot does, or half of its first lines are a kernel's messages.

    False when in doubt.
    """
    lines = [line.strip() for line in text[:40_000].split("\n")]
    lines = [line for line in lines if line and not line.startswith("-- ")][:200]
    boots = len(lines) > 2 and any(line.startswith(_FIRST) for line in lines[:20])
    return boots or 0 < len(lines) <= 2 * sum(map(_is_kernel_line, lines))


def is_stamped(line: str) -> bool:
    """Whether a logger put time or source before the line."""
    return any(form.match(line) for form in (_KMSG, _SYSLOG, _DMESG))


def _is_kernel_line(line: str) -> bool:
    if found := _SYSLOG.match(line):
        return found["kernel"] is not None
    return any(form.match(line) for form in (_KMSG, _DMESG, _PRIORITY, _BARE))
