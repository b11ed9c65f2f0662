"""Write a capture: what the readers asked of a machine, in the pass in which they ask it.

:class:`RecordingHost` stands between the readers and a machine and keeps every answer, also the
error that an answer was. :func:`document` makes ``gpucheck/capture/1`` of it (see
:mod:`gpucheck.capture`), which replays to the same facts because the same questions find the same
answers.

Only what the readers need is kept: of library and device folders the names that they look for, of
``modules.dep`` the lines about NVIDIA, of many equal processors what is counted.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import posixpath
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck import __version__
from gpucheck.capture import SCHEMA
from gpucheck.errors import UsageError
from gpucheck.host import READ_LIMIT, Completed, Host, NvmlAnswers, Python
from gpucheck.probing import NVML_SECONDS, read
from gpucheck.readers import bmc
from gpucheck.readers.config_space import without_serial_number
from gpucheck.readers.driver import BUILT_FOLDERS, LIBRARY_FOLDERS, MODPROBE_FOLDER, MODULES
from gpucheck.readers.environment import wanted
from gpucheck.readers.software import DISTRIBUTION, LIBRARY, LOADER_CACHE, library_folders
from gpucheck.text import say

if TYPE_CHECKING:
    from gpucheck.redfish import BmcAccess

Document = dict[str, Any]

# --- what is kept of a listing or a file --------------------------------------------------------

_LIBRARY = re.compile(r"libnvidia-ml\.so.*")
_MODULE = re.compile(r"nvidia.*\.ko.*")


def _wanted_names(path: str) -> re.Pattern[str] | None:
    """Which names of a large folder are kept; None for all of them."""
    if path == "/dev":
        return re.compile(r"nvidia.*")
    if path == "/sys/module":
        return re.compile("|".join(MODULES))
    if path in LIBRARY_FOLDERS:
        return _LIBRARY
    if path.endswith(("/site-packages", "/dist-packages")):
        return DISTRIBUTION
    if path == "/run":
        return re.compile(r"nvidia.*")
    if path == MODPROBE_FOLDER:
        return re.compile(r".*\.conf")
    return _MODULE if path.endswith(BUILT_FOLDERS) else None


def _count_processors(text: bytes) -> bytes:
    """The first processor whole; of the others only what counts them and their packages."""
    first, blank, rest = text.partition(b"\n\n")
    return first + blank + b"".join(re.findall(rb"^(?:processor|physical id)\s*:.*\n", rest, re.MULTILINE))


def _total_memory(text: bytes) -> bytes:
    total = re.search(rb"^MemTotal:.*\n?", text, re.MULTILINE)
    return total[0] if total else text


def _without_addresses(text: bytes) -> bytes:
    """Where root sees kernel addresses, zeros: they would tell an attacker where the kernel lies."""
    return re.sub(rb"\b0x[0-9a-f]+", lambda found: b"0x" + b"0" * (len(found[0]) - 2), text)


def _cuda_libraries(cache: bytes) -> bytes:
    names = sorted(set(LIBRARY.findall(cache.decode("latin-1"))))
    return "".join(f"{name}\n" for name in names).encode()


def _nvidia_modules(text: bytes) -> bytes:
    lines = (line.partition(b":") for line in text.splitlines())
    return b"".join(path + b":\n" for path, _, _ in lines if b"nvidia" in path)


def _about_nvidia(text: bytes) -> bytes:
    """Lines of a modprobe file that say which driver may load; the rest is about other hardware."""
    return b"".join(re.findall(rb"^.*(?:nvidia|nouveau).*\n?", text, re.MULTILINE))


_SHORTENED: tuple[tuple[re.Pattern[str], Callable[[bytes], bytes]], ...] = (
    (re.compile(r"/proc/cpuinfo"), _count_processors),
    (re.compile(r"/proc/meminfo"), _total_memory),
    (re.compile(r"/proc/modules"), _without_addresses),
    (re.compile(r".*/modules\.dep"), _nvidia_modules),
    (re.compile(re.escape(LOADER_CACHE)), _cuda_libraries),
    (re.compile(r"/redfish/.*/index\.json"), bmc.kept),
    (re.compile(r"/etc/modprobe\.d/.*"), _about_nvidia),
    (re.compile(r"/sys/bus/pci/devices/[^/]+/config"), without_serial_number),
)


def _shortened(path: str, content: bytes) -> bytes:
    return next((shorten(content) for pattern, shorten in _SHORTENED if pattern.fullmatch(path)), content)


# --- recording ----------------------------------------------------------------------------------

_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
"""Errors of a path that leads nowhere: a replay, which does not hold it, raises them by itself."""


class RecordingHost:
    """A machine that remembers what it was asked. Answers and errors pass through unchanged.

    Args:
        host: The machine, live or not.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.name = host.name
        self.live = host.live
        self.redacted = host.redacted
        self.files: dict[str, bytes | OSError] = {}
        """By real path."""
        self.links: dict[str, str] = {}
        self.folders: set[str] = set()
        self.seen: set[str] = set()
        """Real paths that are there, of which nobody asked what they are."""
        self.nowhere: set[str] = set()
        """Paths that led nowhere; where a folder lists one of them, it is a dangling link."""
        self.commands: dict[str, Completed | OSError] = {}
        self.nvml: NvmlAnswers | None = None
        self.variables: dict[str, str] | None = None
        self.interpreter: Python | None = None
        self._real: dict[str, str] = {}

    def _place(self, path: str) -> str:
        """The real path, where the content belongs; links on the way there are entered."""
        done = "/"
        parts = [part for part in path.split("/") if part not in ("", ".")]
        for part in parts:
            self.folders.add(done)
            step = posixpath.join(done, part)
            if step not in self._real:
                self._real[step] = self.host.real(step)
            done = self._real[step]
            if done != step:
                self.links[step] = done
        self.seen.add(done)
        return done

    def _failed(self, path: str, error: OSError) -> None:
        if error.errno in _ABSENT:
            return
        try:
            place = self._place(path)
        except OSError:
            return  # not even the way there can be told
        if error.errno == errno.EISDIR:
            self.folders.add(place)
        else:
            self.files.setdefault(place, error)

    def read(self, path: str, limit: int = READ_LIMIT) -> bytes:
        try:
            content = self.host.read(path, limit)
            place = self._place(path)
        except OSError as error:
            self._failed(path, error)
            raise
        known = self.files.get(place)
        kept = _shortened(path, content)
        if not isinstance(known, bytes) or len(known) < len(kept):
            self.files[place] = kept
        return content

    def text(self, path: str) -> str:
        return self.read(path).decode("utf-8", "replace")

    def _library(self, path: str) -> re.Pattern[str] | None:
        """Which names are kept of a folder that LD_LIBRARY_PATH or the Python names."""
        return LIBRARY if path in library_folders(self.variables, self.interpreter) else None

    def names(self, path: str) -> list[str]:
        try:
            names = self.host.names(path)
            place = self._place(path)
        except OSError as error:
            self._failed(path, error)
            raise
        patterns = [pattern for pattern in (_wanted_names(path), self._library(path)) if pattern is not None]
        self.folders.add(place)
        kept = (name for name in names if not patterns or any(pattern.fullmatch(name) for pattern in patterns))
        self.seen.update(posixpath.join(place, name) for name in kept)
        return names

    def real(self, path: str) -> str:
        try:
            real = self.host.real(path)
            self._place(path)
        except FileNotFoundError:
            with suppress(OSError):
                folder, name = posixpath.split(path)
                self.nowhere.add(posixpath.join(self._place(folder), name))
            raise
        return real

    def exists(self, path: str) -> bool:
        try:
            self._place(path)
        except OSError:
            return self.host.exists(path)
        return True

    def run(self, argv: Sequence[str], timeout: float) -> Completed:
        line = " ".join(argv)
        try:
            completed = self.host.run(argv, timeout)
        except FileNotFoundError:
            raise
        except OSError as error:
            self.commands[line] = error
            raise
        self.commands[line] = completed
        return completed

    def kernel_messages(self) -> bytes:
        try:
            messages = self.host.kernel_messages()
        except OSError as error:
            if error.errno not in _ABSENT:
                self.files["/dev/kmsg"] = error
            raise
        self.files["/dev/kmsg"] = messages
        return messages

    def ask_nvml(self, timeout: float) -> Callable[[], NvmlAnswers]:
        wait = self.host.ask_nvml(timeout)

        def answers() -> NvmlAnswers:
            self.nvml = wait()
            return self.nvml

        return answers

    def environment(self) -> Mapping[str, str]:
        self.variables = wanted(self.host.environment())
        return self.variables

    def python(self) -> Python:
        self.interpreter = self.host.python()
        return self.interpreter

    @property
    def is_root(self) -> bool | None:
        return self.host.is_root


_NO_TARGET = "(leads nowhere)"
"""What a dangling link is written to lead to: no Host tells the name that is not there."""


def document(recorder: RecordingHost) -> Document:
    """The ``gpucheck/capture/1`` document of what was recorded so far."""
    files: Document = {path: _content(content) for path, content in recorder.files.items()}
    links = recorder.links | dict.fromkeys(recorder.nowhere & recorder.seen, _NO_TARGET)
    above = {parent for path in [*files, *links, *recorder.seen, *recorder.folders] for parent in _above(path)}
    folders = recorder.folders - above
    for path in recorder.seen - above - folders - files.keys() - links.keys():
        # A name of which only its being there counts: in sysfs a module, a driver, an IOMMU group.
        if path.startswith("/sys/"):
            folders.add(path)
        else:
            files[path] = ""
    made: Document = {
        "schema": SCHEMA,
        "gpucheck": __version__,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "redacted": recorder.redacted,
        "root": recorder.is_root,
        "files": files,
        "links": links,
        "folders": sorted(folders - files.keys()),
        "commands": {line: _printed(completed) for line, completed in recorder.commands.items()},
    }
    if recorder.nvml is not None:
        made["nvml"] = dict(recorder.nvml)
    if recorder.variables is not None:
        made["environment"] = recorder.variables
    if (python := recorder.interpreter) is not None:
        made["python"] = {"version": python.version, "folders": list(python.folders)}
    return made


def _above(path: str) -> list[str]:
    above = []
    while path != "/":
        path = posixpath.dirname(path)
        above.append(path)
    return above


def _content(content: bytes | OSError) -> str | dict[str, str]:
    if isinstance(content, OSError):
        return {"error": _code(content)}
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    return {"base64": base64.b64encode(content).decode()} if "\0" in text else text


def _code(error: OSError) -> str:
    if error.errno is None and isinstance(error, TimeoutError):
        return "ETIMEDOUT"
    return errno.errorcode.get(error.errno or errno.EIO, "EIO")


def _printed(completed: Completed | OSError) -> Document:
    if isinstance(completed, OSError):
        return {"error": _code(completed)}
    return {"returncode": completed.returncode, "stdout": completed.stdout, "stderr": completed.stderr}


def capture(host: Host, timeout: float = NVML_SECONDS, ask_ipmi: bool = False, *, redact: bool = True) -> Document:
    """Read a machine as ``probe`` does, and return the capture of it.

    Args:
        host: The machine.
        timeout: Seconds that NVML may take.
        ask_ipmi: Also run ``ipmitool``.
        redact: Put stand-ins in the place of serial numbers, UUIDs, addresses and names.
    """
    recorder = RecordingHost(host)
    read(recorder, timeout=timeout, ask_ipmi=ask_ipmi)
    made = document(recorder)
    if not redact:
        return made
    from gpucheck import redact as redaction

    names = _own_names() if host.live else ()
    return redaction.redact(made, names=names, key=_machine_id(host))


def _own_names() -> list[str]:
    """Name of the machine this runs on, long and short, and of who runs it."""
    import platform

    node = platform.node()
    users = (os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER"))
    return [name for name in (node, node.partition(".")[0], *users) if name]


def _machine_id(host: Host) -> bytes:
    """What tells this installation from others where SMBIOS cannot be read; never written down."""
    try:
        return host.read("/etc/machine-id", 4096).strip()
    except OSError:
        return b""


# --- writing ------------------------------------------------------------------------------------


def dump(made: Document) -> str:
    """JSON in which a line is one answer: what a diff should show."""
    return json.dumps(made, indent=1, sort_keys=True) + "\n"


def check_target(path: str, *, force: bool = False) -> None:
    """Raise UsageError where :func:`write` would, so far as that can be told beforehand."""
    if path == "-":
        return
    if not path:
        raise UsageError("the name of the file is empty", input="capture", hint="gpucheck capture machine.json")
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            raise UsageError("no such folder", input=folder, hint="make it first") from None
        return
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None
    if not stat.S_ISREG(mode):
        raise UsageError("not a regular file", input=path, hint="name a new file, or - for standard output")
    if not force:
        raise UsageError("it is there already", input=path, hint="name a new file, or give --force to replace it")


def write(path: str, made: Document, *, force: bool = False) -> None:
    """Write a capture whole or not at all, readable by its owner alone.

    Args:
        path: The file, or ``-`` for standard output.
        made: The capture.
        force: Replace a file that is there already.

    Raises:
        UsageError: The file is there already, is none, or cannot be written.
    """
    if path == "-":
        sys.stdout.write(dump(made))
        return
    write_text(path, dump(made), force=force)


def write_text(path: str, text: str, *, force: bool = False) -> None:
    """Write a file whole or not at all, readable by its owner alone.

    Raises:
        UsageError: The file is there already, is none, or cannot be written.
    """
    check_target(path, force=force)
    unfinished: str | None = None
    try:
        number, unfinished = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".gpucheck-", suffix=".json")
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        unfinished = None
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        if unfinished is not None:
            Path(unfinished).unlink(missing_ok=True)


def _unwritable(path: str, error: Exception) -> UsageError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return UsageError(say("it cannot be written: {reason}", reason=reason), input=path, hint="name another place")


def capture_to(
    path: str,
    *,
    redact: bool = True,
    ask_ipmi: bool = False,
    timeout: float = NVML_SECONDS,
    force: bool = False,
    bmc: BmcAccess | None = None,
    host: Host | None = None,
) -> None:
    """The command ``gpucheck capture``: read this machine (or ``host``) and write the capture.

    Raises:
        UsageError: See :func:`write`; raised before the machine is read where that is possible.
        InputError: The BMC does not answer.
    """
    from gpucheck.host import LiveHost

    check_target(path, force=force)
    machine = host or LiveHost()
    if bmc is None:
        made = capture(machine, timeout, ask_ipmi, redact=redact)
    else:
        from gpucheck.redfish import BmcHost

        with BmcHost(machine, bmc) as asked:
            made = capture(asked, timeout, ask_ipmi, redact=redact)
    write(path, made, force=force)
