"""The only door to a machine. Readers see a Host and never open a file themselves.

A path is absolute and POSIX (``/sys/bus/pci/devices``) whatever the Host stands for. What cannot
be read raises the OSError that a live kernel would raise, so that a reader has one code path:
FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, TimeoutError.
"""

from __future__ import annotations

import errno
import os
import posixpath
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

READ_LIMIT = 16 << 20
"""Most bytes read from one file: a kernel log is a few MB, pseudo-files are far smaller."""


@dataclass(frozen=True, slots=True)
class Completed:
    """What a program printed."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Python:
    """The Python whose packages count: on a live machine the one that runs this."""

    version: str | None
    folders: tuple[str, ...]
    """Where its packages lie, in the order in which it looks."""


NvmlAnswers = Mapping[str, Any]
"""What the NVML child wrote: see readers/nvml.py for the shape. Holds ``{"timed_out": true}`` and
whatever came before when the child was given up."""


class Host(Protocol):
    """A machine that can be read: live, or a capture of one."""

    name: str
    live: bool
    redacted: bool
    """Whether serial numbers, UUIDs and names are stand-ins."""

    def read(self, path: str, limit: int = READ_LIMIT) -> bytes:
        """Content of a file, at most ``limit`` bytes."""

    def text(self, path: str) -> str:
        """Content of a file as UTF-8; bytes that are not become U+FFFD."""

    def names(self, path: str) -> list[str]:
        """Sorted names in a directory."""

    def real(self, path: str) -> str:
        """The path with every symbolic link followed. FileNotFoundError when it leads nowhere."""

    def exists(self, path: str) -> bool:
        """Whether the path leads to something; False also where that cannot be told."""

    def run(self, argv: Sequence[str], timeout: float) -> Completed:
        """Run a program, or return what it printed when the capture was made. FileNotFoundError
        when there is no such program (or the capture holds no output of it); TimeoutError."""

    def kernel_messages(self) -> bytes:
        """All records of /dev/kmsg that the ring buffer still holds, one after the other, without
        waiting for new ones. FileNotFoundError where there is no such device."""

    def ask_nvml(self, timeout: float) -> Callable[[], NvmlAnswers]:
        """Start asking NVML; the function returned waits for the answers. FileNotFoundError (from
        the function) when a capture holds none."""

    def environment(self) -> Mapping[str, str]:
        """Variables of the process. FileNotFoundError where it is none, or the capture holds none."""

    def python(self) -> Python:
        """The Python to look at. FileNotFoundError where none is named."""

    @property
    def is_root(self) -> bool | None:
        """Whether reads are done as root; None where that is not known."""


class LiveHost:
    """The machine this runs on, or a directory tree that looks like its root.

    Args:
        root: ``/`` or a folder that holds ``sys``, ``proc``, ``dev``. Links are followed inside it.
    """

    redacted = False

    def __init__(self, root: str | Path = "/") -> None:
        self.root = str(Path(root).resolve())
        self.live = self.root == "/"
        self.name = "this machine" if self.live else self.root

    def _inside(self, path: str) -> str:
        """Map a machine path to a path of this process; absolute links stay inside the root."""
        if self.live:
            return path
        done = self.root
        parts = [part for part in path.split("/") if part and part != "."]
        followed = 0
        while parts:
            part = parts.pop(0)
            if part == "..":
                done = done if done == self.root else posixpath.dirname(done)
                continue
            step = posixpath.join(done, part)
            if not os.path.islink(step):
                done = step
                continue
            followed += 1
            if followed > 40:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(step)
            if target.startswith("/"):
                done = self.root
            parts = [piece for piece in target.split("/") if piece and piece != "."] + parts
        return done

    def read(self, path: str, limit: int = READ_LIMIT) -> bytes:
        # A folder may hold a pipe under a file's name: opening it would wait for ever.
        wait_for_none = 0 if self.live else getattr(os, "O_NONBLOCK", 0)

        def opened(name: str, flags: int) -> int:
            return os.open(name, flags | wait_for_none)

        with open(self._inside(path), "rb", buffering=0, opener=opened) as file:
            if not self.live and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            pieces: list[bytes] = []
            left = limit
            # Not more at once: for /proc/sys the kernel makes a buffer of the size that is asked for.
            while left > 0 and (piece := file.read(min(left, 1 << 16))):
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces)

    def text(self, path: str) -> str:
        return self.read(path).decode("utf-8", "replace")

    def names(self, path: str) -> list[str]:
        return sorted(os.listdir(self._inside(path)))

    def real(self, path: str) -> str:
        if self.live:
            return os.path.realpath(path, strict=True)
        inside = self._inside(path)
        os.stat(inside)
        return "/" + posixpath.relpath(inside, self.root) if inside != self.root else "/"

    def exists(self, path: str) -> bool:
        try:
            return os.path.exists(self._inside(path))
        except OSError:
            return False

    def run(self, argv: Sequence[str], timeout: float) -> Completed:
        if not self.live:
            raise FileNotFoundError(errno.ENOENT, "a folder holds no program output", argv[0])
        output, errors, returncode, timed_out = _bounded(list(argv), timeout)
        if timed_out:
            raise TimeoutError(f"{argv[0]} did not end within {timeout:g} s")
        return Completed(returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))

    def kernel_messages(self) -> bytes:
        if not self.live:
            raise FileNotFoundError(errno.ENOENT, "a folder holds no kernel messages", "/dev/kmsg")
        ring = os.open("/dev/kmsg", os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        records: list[bytes] = []
        left = READ_LIMIT
        try:
            while left > 0:
                try:
                    record = os.read(ring, 8192)  # one record; none is longer
                except BrokenPipeError:
                    continue  # the oldest was overwritten meanwhile: go on with the next
                except BlockingIOError:
                    break  # the newest was read
                if not record:
                    break
                records.append(record)
                left -= len(record)
        finally:
            os.close(ring)
        return b"".join(records)

    def ask_nvml(self, timeout: float) -> Callable[[], NvmlAnswers]:
        if not self.live:

            def absent() -> NvmlAnswers:
                raise FileNotFoundError(errno.ENOENT, "a folder holds no NVML answers", self.name)

            return absent
        from gpucheck.readers import nvml

        return nvml.start_child(timeout)

    def environment(self) -> Mapping[str, str]:
        if not self.live:
            raise FileNotFoundError(errno.ENOENT, "a folder is no process", self.name)
        return os.environ

    def python(self) -> Python:
        if not self.live:
            raise FileNotFoundError(errno.ENOENT, "a folder runs no Python", self.name)
        folders = (path for path in sys.path if path.startswith("/"))  # paths are POSIX's; Windows has none such
        packages = dict.fromkeys(path for path in folders if path.endswith(("site-packages", "dist-packages")))
        return Python(sys.version.partition(" ")[0], tuple(packages))

    @property
    def is_root(self) -> bool | None:
        return os.geteuid() == 0 if self.live and hasattr(os, "geteuid") else None


def _bounded(argv: list[str], timeout: float) -> tuple[bytes, bytes, int, bool]:
    """Run a program in its own process group; end the group when the time is up."""
    environment = {**os.environ, "LC_ALL": "C", "LANG": "C"}
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        end_group(process)
        return b"", b"", -signal.SIGKILL, True
    return output, errors, process.returncode, False


def end_group(process: subprocess.Popen[Any], patience: float = 1.0) -> bool:
    """Kill a child and its children; True when it is gone.

    A process inside a stuck system call survives even SIGKILL until the driver lets go of it: then
    it is left to init, and a daemon thread reaps it if it ever ends.
    """
    try:
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, daemon=True).start()
        return False
    return True
