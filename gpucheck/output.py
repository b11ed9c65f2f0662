"""Files that a command writes beside its answer."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gpucheck.errors import UsageError
from gpucheck.text import say

_NAME_ANOTHER = "name another place"


def check_writable(path: str) -> None:
    """Raise UsageError where :func:`replace_file` could not write, so far as that can be told beforehand."""
    folder = os.path.dirname(path) or "."
    try:
        mode = os.lstat(path).st_mode if path else 0
    except FileNotFoundError:
        mode = stat.S_IFREG
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None
    if not stat.S_ISREG(mode):
        raise UsageError(say("not a regular file"), input=path or "''", hint=_NAME_ANOTHER)
    if not os.path.isdir(folder):
        raise UsageError(say("no such folder"), input=folder, hint="make it first")
    if not os.access(folder, os.W_OK):
        raise UsageError(say("the folder cannot be written to"), input=folder, hint=_NAME_ANOTHER)


def replace_file(path: str, text: str | Iterable[str]) -> None:
    """Write a file whole or not at all, with the rights of any new file; one that is there is replaced.

    Raises:
        UsageError: It is no regular file, or cannot be written.
    """
    check_writable(path)
    unfinished: str | None = None
    try:
        number, unfinished = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".gpucheck-")
        with open(number, "w", encoding="utf-8", newline="") as file:
            file.writelines([text] if isinstance(text, str) else text)
            file.flush()
            os.fchmod(number, 0o666 & ~_umask())
            os.fsync(number)
        os.replace(unfinished, path)
        unfinished = None
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        if unfinished is not None:
            Path(unfinished).unlink(missing_ok=True)


def _umask() -> int:
    """The process's own; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _unwritable(path: str, error: Exception) -> UsageError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return UsageError(say("it cannot be written: {reason}", reason=reason), input=path, hint=_NAME_ANOTHER)
