"""The folder that collect fills and report reads.

::

    DIR/<host>/<run>.json       one capture of each run (or .tar.gz, from hosts without gpucheck); the newest counts,
                                and the one before it is what it is compared with
    DIR/<host>.json             the flat form, from elsewhere: one file a host, under any ending, and no history
    DIR/<host>/                 also: a folder that is itself one machine (with sys, proc or capture.json, or of dumps)
    DIR/fleet.json              the last run: its hosts, and why some of them gave nothing

``<run>`` is the time at which a run began, ``20261130T090000Z``. A file is written beside its place and then renamed:
under its own name it is whole. In a host's folder ``+`` stands for the colon (``gpu1+2222``).
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import Field, ValidationError

from gpucheck.errors import InputError, UsageError
from gpucheck.findings import Document
from gpucheck.text import Text, say

MANIFEST = "fleet.json"
_PARTS = ".part"
"""Folder of files that are not whole yet."""
_LOCK = ".lock"
_STAMP = "%Y%m%dT%H%M%SZ"
_STAMPED = re.compile(r"(\d{8}T\d{6}Z)\.")
_ENDINGS = frozenset((".json", ".gz", ".tgz", ".tar", ".bz2", ".xz", ".txt", ".log"))
_ONE_MACHINE = ("sys", "proc", "capture.json")


class Unseen(Document):
    """A host of which nothing can be said, and why."""

    host: Text
    reason: Text


class Run(Document):
    """``fleet.json``: the last run of collect."""

    schema_: Literal["gpucheck/fleet-run/1"] = Field(default="gpucheck/fleet-run/1", alias="schema")
    run: str = Field(pattern=r"^\d{8}T\d{6}Z$")
    ended: bool
    """False while it goes on, and after it was broken off."""
    hosts: tuple[Text, ...]
    unseen: tuple[Unseen, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where one host's capture lies, and the one before it."""

    host: str
    now: str
    before: str | None = None


# --- reading ------------------------------------------------------------------------------------


def read_run(folder: Path) -> Run | None:
    """The last run; None where collect never wrote here. InputError for a damaged file."""
    place = folder / MANIFEST
    try:
        return Run.model_validate_json(place.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else say("its form is not known")
        raise InputError(
            say("cannot be read: {reason}", reason=reason), input=str(place), hint="remove it, or collect with --fresh"
        ) from None


def places(folder: Path) -> Iterator[Place | Unseen]:
    """Every host of a folder, in the order of their names.

    Raises:
        InputError: there is no such folder, or it cannot be read.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith(".") and name != MANIFEST)
    except OSError as error:
        raise InputError(
            say("cannot be read: {reason}", reason=error.strerror), input=str(folder), hint="give a folder of captures"
        ) from None
    stems = Counter(_stem(name) for name in names)
    for name in names:
        path = folder / name
        if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            yield Unseen(host=name, reason=say("neither a file nor a folder"))
            continue
        if not os.path.isdir(path):
            yield Place(_stem(name) if stems[_stem(name)] == 1 else name, str(path))
            continue
        try:
            inside = sorted(entry for entry in os.listdir(path) if not entry.startswith("."))
        except OSError as error:
            yield Unseen(host=name, reason=say("its folder cannot be read: {reason}", reason=error.strerror))
            continue
        runs = [entry for entry in inside if _STAMPED.match(entry)]
        if runs and not any(entry in inside for entry in _ONE_MACHINE):
            yield Place(name, str(path / runs[-1]), str(path / runs[-2]) if len(runs) > 1 else None)
        elif inside:
            yield Place(name, str(path))
        else:
            yield Unseen(host=name, reason=say("its folder is empty"))


def run_of(path: str) -> str | None:
    """The run that a file is of; None for one from elsewhere."""
    found = _STAMPED.match(Path(path).name)
    return found[1] if found is not None else None


def _stem(name: str) -> str:
    """A host's name out of a file's: without the endings that captures have."""
    stem, ending = os.path.splitext(name)
    while ending in _ENDINGS and stem:
        name = stem
        stem, ending = os.path.splitext(name)
    return name


# --- writing ------------------------------------------------------------------------------------


def folder_of(host: str) -> str:
    """Name of a host's folder."""
    return host.replace(":", "+")


def held(folder: Path, host: str, run: str) -> bool:
    """Whether a run has this host's capture already."""
    try:
        return any(name.startswith(f"{run}.") for name in os.listdir(folder / folder_of(host)))
    except OSError:
        return False


def new_run(last: Run | None) -> str:
    """A name for a run that begins now: later than the last one's, even within one second."""
    stamp = datetime.now(UTC).strftime(_STAMP)
    if last is None or stamp > last.run:
        return stamp
    return (datetime.strptime(last.run, _STAMP) + timedelta(seconds=1)).strftime(_STAMP)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the folder: one collect at a time. What an earlier one left half-written is removed.

    Raises:
        UsageError: the folder cannot be made or written, or another collect is at work in it.
    """
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(say("cannot be written: {reason}", reason=error.strerror), input=str(folder)) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError("another collect is writing here", input=str(folder), hint="wait for it to end") from None
        shutil.rmtree(folder / _PARTS, ignore_errors=True)
        (folder / _PARTS).mkdir()
        yield
        shutil.rmtree(folder / _PARTS, ignore_errors=True)
    finally:
        os.close(lock)


def part(folder: Path, host: str) -> Path:
    """Where a host's capture lies until it is whole."""
    return folder / _PARTS / folder_of(host)


def keep(folder: Path, host: str, run: str, ending: str) -> None:
    """Put a host's capture, which is whole now, in its place."""
    place = folder / folder_of(host)
    place.mkdir(exist_ok=True)
    _sync(part(folder, host))
    os.replace(part(folder, host), place / f"{run}{ending}")
    _sync(place)
    _sync(folder)


def write_run(folder: Path, run: Run) -> None:
    """Write ``fleet.json``, whole or not at all."""
    draft = folder / _PARTS / ".run"
    draft.write_text(run.model_dump_json(indent=1) + "\n", "utf-8")
    _sync(draft)
    os.replace(draft, folder / MANIFEST)
    _sync(folder)


def _sync(path: Path) -> None:
    """Have what was written on the disk, not only in memory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Sink:
    """A file that refuses to grow beyond a limit. OverflowError at the first byte too many."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._left = limit

    def write(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise OverflowError
        self._file.write(data)
