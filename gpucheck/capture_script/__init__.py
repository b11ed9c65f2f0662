"""``capture.sh``, which makes a capture on a host without Python, and how to read its manifest."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files

from gpucheck.host import Completed, Python

MANIFEST = "/commands/manifest"
"""Path of the manifest in the tree that the archive holds; ``capture.sh`` describes its lines."""


def script_text() -> str:
    """The script."""
    return files(__name__).joinpath("capture.sh").read_text("utf-8")


@dataclass(frozen=True)
class Manifest:
    """What ``capture.sh`` says of its archive beside the files."""

    is_root: bool | None = None
    commands: dict[str, Completed | OSError] = field(default_factory=dict)
    """Command line to what it printed, or a TimeoutError."""
    unreadable: dict[str, OSError] = field(default_factory=dict)
    """Path to what reading it raised."""
    environment: dict[str, str] | None = None
    """The variables that matter; None where no process was asked."""
    python: Python | None = None
    redacted: bool = False


def read_manifest(contents: Mapping[str, bytes | OSError]) -> Manifest:
    """The manifest among the files of an archive, by path from the machine's root.

    An archive of another origin has none: then nothing is known. A line that is not understood is
    passed over, so that a later script may say more.
    """
    is_root: bool | None = None
    redacted = False
    commands: dict[str, Completed | OSError] = {}
    unreadable: dict[str, OSError] = {}
    environment: dict[str, str] | None = None
    folders: list[str] = []

    def text(path: str) -> str:
        content = contents.get(path)
        return content.decode("utf-8", "replace") if isinstance(content, bytes) else ""

    for line in text(MANIFEST).splitlines():
        match line.split(" ", 4):
            case ["root", "yes" | "no" as word]:
                is_root = word == "yes"
            case ["redacted", "yes" | "no" as word]:
                redacted = word == "yes"
            case ["command", status, output, errors, words] if status.isdecimal():
                commands[words] = Completed(int(status), text(f"/{output}"), text(f"/{errors}"))
            case ["timed-out", *words]:
                commands[" ".join(words)] = TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            case ["unreadable", code, *words] if isinstance(number := getattr(errno, code, None), int):
                path = " ".join(words)
                unreadable[path] = OSError(number, os.strerror(number), path)
            case ["environment"]:
                environment = {}
            case ["variable", name, *words] if environment is not None:
                environment[name] = " ".join(words)
            case ["packages", *words]:
                folders.append(" ".join(words))
    python = Python(None, tuple(folders)) if folders else None
    return Manifest(is_root, commands, unreadable, environment, python, redacted)
