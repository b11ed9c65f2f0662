"""What is run on a host to make a capture of it, whichever way leads there, and how its answer is read.

The host gets one line for its shell and ``capture.sh`` on standard input. Where gpucheck is installed it makes the
capture (it sees more, through NVML); else the script does. The answer follows a mark, for a login shell may print
whatever it likes before it.
"""

from __future__ import annotations

import shlex

from gpucheck.capture import SCHEMA, looks_like_archive
from gpucheck.capture_script import script_text
from gpucheck.errors import GpucheckError
from gpucheck.fleet.store import Sink
from gpucheck.text import clean, say, shorten

LIMIT = 64 << 20
"""Most bytes that a host may send; a capture of a big server is under 10 MiB."""
_NOISE = 64 << 10
"""Most bytes before the mark."""
MARK = b"gpucheck-fleet-capture:\n"
_WAY = "gpucheck-fleet"
_CUT_OFF = 98


class Failed(Exception):
    """A host gave no capture. Its only argument is the reason, for people."""


SCRIPT = script_text().encode()

_SHELL_LINE = (
    "d=$(mktemp -d) || exit 1; "
    # PIPE: nobody listens any more. A shell that died of it would leave its folder there.
    "trap 'rm -rf \"$d\"' EXIT; trap 'exit 1' HUP INT PIPE TERM; "
    'cat >"$d/capture.sh"; '
    # A connection that broke must not leave half a script to be run.
    f'test "$(wc -c <"$d/capture.sh")" -eq {len(SCRIPT)} || exit {_CUT_OFF}; '
    # Another program is called gpucheck, too.
    'if command -v gpucheck >/dev/null 2>&1 && {sudo}gpucheck capture - >"$d/out" 2>/dev/null </dev/null '
    f"&& grep -q '{SCHEMA}' \"$d/out\"; then :; "
    'else rm -f "$d/out"; {sudo}sh "$d/capture.sh" "$d/out" >/dev/null </dev/null || exit; fi; '
    f'printf "{MARK[:-1].decode()}\\n"; {{sudo}}cat "$d/out"'
)


def words(*, sudo: bool = False) -> list[str]:
    """The program and its arguments that a host runs."""
    line = _SHELL_LINE.replace("{sudo}", "sudo -n " if sudo else "")
    return ["sh", "-c", line, _WAY]


def command(*, sudo: bool = False) -> str:
    """The same as one line for a login shell of whatever kind."""
    return "exec " + shlex.join(words(sudo=sudo))


class Answer:
    """What a host sends, as it comes: noise, the mark, a capture."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._head: bytes | None = b""
        """What came so far, while the mark is not in it."""

    def take(self, data: bytes) -> None:
        """Failed when it is no capture, or too large."""
        try:
            if self._head is None:
                self._sink.write(data)
                return
            self._head += data
            _, mark, begun = self._head.partition(MARK)
            if mark:
                self._head = None
                self._sink.write(begun)
            elif len(self._head) > _NOISE:
                raise Failed(say("it sent something else than a capture"))
        except OverflowError:
            raise Failed(say("it sent more than {size} MiB", size=LIMIT >> 20)) from None

    def end(self, status: int | None, errors: bytes) -> None:
        """The program has ended. Failed where it did not end well."""
        if status == 0 and self._head is None:
            return
        lines = [clean(line) for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
        said = shorten(lines[-1], 200) if lines else ""
        if status == _CUT_OFF:
            raise Failed(say("the script did not arrive whole"))
        if status == 0:
            raise Failed(say("it sent no capture"))
        if status is None:
            raise Failed(say("the connection was lost"))
        template = "exit status {status}: {said}" if said else "exit status {status}"
        raise Failed(say(template, status=status, said=said))


def ending(data: bytes, name: str) -> str:
    """Under which ending a capture is kept. Failed where it is none, or not whole: it is read once, as report will."""
    from gpucheck import capture

    try:
        if looks_like_archive(data):
            capture.from_archive(name, data)
            return ".tar.gz" if data[:2] == b"\x1f\x8b" else ".tar"
        capture.parse_json(name, data)
        return ".json"
    except GpucheckError as error:
        raise Failed(say("its capture is damaged: {reason}", reason=error.message)) from None


LAST_WORDS = 4096
"""How much of what a program says on standard error is kept: its end."""
