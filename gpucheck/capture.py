"""A captured machine behind the same door as a live one.

A capture is one JSON document, ``gpucheck/capture/1``:

``files``     path → text, ``{"base64": …}`` or ``{"error": "EACCES"}`` (what reading it raised)
``links``     path → target of the symbolic link
``folders``   paths of empty folders (the others follow from the paths above)
``commands``  command line, words joined by blanks → ``{"returncode", "stdout", "stderr"}`` or
              ``{"error": "ETIMEDOUT"}``
``nvml``      the NVML child's answers with their return codes
``environment``  variables of the process that can hide cards or steer TensorFlow
``python``    ``{"version", "folders"}``: the Python whose packages were looked at
``root``      whether it was made as root

An archive (tar, also compressed) or a folder with ``sys`` or ``proc`` in it works the same way.
"""

from __future__ import annotations

import base64
import bz2
import errno
import gzip
import io
import json
import lzma
import os
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpucheck.capture_script import read_manifest
from gpucheck.errors import InputError
from gpucheck.host import READ_LIMIT, Completed, NvmlAnswers, Python

SCHEMA = "gpucheck/capture/1"
UNPACKED_LIMIT = 256 << 20
"""Most bytes that an archive may unpack to, files and all; a capture of a big server is under 10 MiB."""

_ROOTS = ("sys", "proc", "dev", "etc", "var")
_HOPS = 40


class CaptureHost:
    """A machine as it was when the capture was made. All content is held in memory.

    Args:
        name: For messages: the file it came from.
        files: Path to content, or to the OSError that reading it raised.
        links: Path to the target of the symbolic link there.
        folders: Further folders, for empty ones.
        commands: Command line to what it printed.
        nvml: Answers of the NVML child, None when the capture holds none.
        environment: Variables of the process, None when the capture holds none.
        python: The Python whose packages were looked at, None when the capture names none.
        is_root: Whether it was made as root.
        redacted: Whether stand-ins were put in the place of what names the machine.
    """

    live = False

    def __init__(
        self,
        name: str,
        files: Mapping[str, bytes | OSError],
        links: Mapping[str, str] | None = None,
        *,
        folders: Iterable[str] = (),
        commands: Mapping[str, Completed | OSError] | None = None,
        nvml: NvmlAnswers | None = None,
        environment: Mapping[str, str] | None = None,
        python: Python | None = None,
        is_root: bool | None = None,
        redacted: bool = False,
    ) -> None:
        self.name = name
        self.redacted = redacted
        self._files = dict(files)
        self._links = dict(links or {})
        self._commands = dict(commands or {})
        self._nvml = nvml
        self._environment = environment
        self._python = python
        self._is_root = is_root
        self._folders: dict[str, set[str]] = {"/": set()}
        for path in folders:
            self._folders.setdefault(path, set())
        for path in [*self._files, *self._links, *self._folders]:
            self._enter(path)

    def _enter(self, path: str) -> None:
        """Put a path into the folders above it."""
        while path != "/":
            above = posixpath.dirname(path)
            names = self._folders.setdefault(above, set())
            if posixpath.basename(path) in names:
                return
            names.add(posixpath.basename(path))
            path = above

    def real(self, path: str) -> str:
        done, waiting, hops = "/", path.split("/"), 0
        while waiting:
            part = waiting.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                done = posixpath.dirname(done)
                continue
            step = posixpath.join(done, part)
            target = self._links.get(step)
            if target is None:
                done = step
                continue
            hops += 1
            if hops > _HOPS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            done = "/" if target.startswith("/") else done
            waiting = target.split("/") + waiting
        if done not in self._files and done not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "not in the capture", path)
        return done

    def read(self, path: str, limit: int = READ_LIMIT) -> bytes:
        real = self.real(path)
        content = self._files.get(real)
        if content is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if isinstance(content, OSError):
            raise content
        return content[:limit]

    def text(self, path: str) -> str:
        return self.read(path).decode("utf-8", "replace")

    def names(self, path: str) -> list[str]:
        real = self.real(path)
        if real not in self._folders:
            content = self._files[real]
            if isinstance(content, OSError):
                raise content
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return sorted(self._folders[real])

    def exists(self, path: str) -> bool:
        try:
            self.real(path)
        except OSError:
            return False
        return True

    def run(self, argv: Sequence[str], timeout: float) -> Completed:
        completed = self._commands.get(" ".join(argv))
        if completed is None:
            raise FileNotFoundError(errno.ENOENT, "the capture holds no output of it", argv[0])
        if isinstance(completed, OSError):
            raise completed
        return completed

    def holds(self, line: str) -> bool:
        """Whether the capture holds what became of this command line."""
        return line in self._commands

    @property
    def commands(self) -> Mapping[str, Completed | OSError]:
        """Command lines and what became of them."""
        return self._commands

    def kernel_messages(self) -> bytes:
        return self.read("/dev/kmsg")

    def ask_nvml(self, timeout: float) -> Callable[[], NvmlAnswers]:
        def answers() -> NvmlAnswers:
            if self._nvml is None:
                raise FileNotFoundError(errno.ENOENT, "the capture holds no NVML answers", self.name)
            return self._nvml

        return answers

    def environment(self) -> Mapping[str, str]:
        if self._environment is None:
            raise FileNotFoundError(errno.ENOENT, "the capture holds no environment", self.name)
        return self._environment

    def python(self) -> Python:
        if self._python is None:
            raise FileNotFoundError(errno.ENOENT, "the capture names no Python", self.name)
        return self._python

    @property
    def is_root(self) -> bool | None:
        return self._is_root


def from_json(name: str, document: Mapping[str, Any]) -> CaptureHost:
    """Build a host from a parsed ``gpucheck/capture/1`` document. InputError when its form is wrong."""
    try:
        nvml, is_root = document.get("nvml"), document.get("root")
        if not isinstance(nvml, dict | None):
            raise ValueError("nvml is no object")
        if not isinstance(is_root, bool | None):
            raise ValueError("root is neither true nor false")
        folders = document.get("folders", [])
        if not isinstance(folders, list):
            raise ValueError("folders is no list")
        return CaptureHost(
            name,
            {_absolute(path): _content(path, value) for path, value in _object(document, "files").items()},
            {_absolute(path): _target(path, value) for path, value in _object(document, "links").items()},
            folders=[_absolute(path) for path in folders],
            commands={line: _completed(line, value) for line, value in _object(document, "commands").items()},
            nvml=nvml,
            environment=_variables(document),
            python=_python(document),
            is_root=is_root,
            redacted=document.get("redacted") is True,
        )
    except ValueError as error:
        raise InputError(f"the capture is damaged: {error}", input=name, hint="make it again on the machine") from None


def _object(document: Mapping[str, Any], key: str) -> dict[str, object]:
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise ValueError(f"{key} is no object")
    return value


def _variables(document: Mapping[str, Any]) -> dict[str, str] | None:
    if document.get("environment") is None:
        return None
    variables = _object(document, "environment")
    texts = {name: value for name, value in variables.items() if isinstance(value, str)}
    if texts != variables:
        raise ValueError("a variable of the environment is no text")
    return texts


def _python(document: Mapping[str, Any]) -> Python | None:
    match document.get("python"):
        case None:
            return None
        case {"version": str() | None as version, "folders": [*folders]}:
            return Python(version, tuple(_absolute(path) for path in folders))
    raise ValueError("python lacks version or folders")


def _absolute(path: object) -> str:
    if not isinstance(path, str) or not path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{str(path)[:80]!r} is no absolute path")
    return "/" + posixpath.normpath(path).lstrip("/")


def _content(path: str, value: object) -> bytes | OSError:
    match value:
        case str():
            return value.encode("utf-8", "surrogatepass")
        case {"base64": str(packed)}:
            try:
                return base64.b64decode(packed, validate=True)
            except ValueError:  # binascii.Error is one, and so is text outside ASCII
                raise ValueError(f"{path} is not base64") from None
    if (error := _error(path, value)) is not None:
        return error
    raise ValueError(f"{path} is neither text, base64 nor error")


def _error(name: str, value: object) -> OSError | None:
    match value:
        case {"error": str(code)} if isinstance(number := getattr(errno, code, None), int):
            return OSError(number, os.strerror(number), name)
    return None


def _target(path: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"the link {path} has no path as its target")
    return value


def _completed(line: str, value: object) -> Completed | OSError:
    match value:
        case {"returncode": int(code), "stdout": str(output), "stderr": str(errors)}:
            return Completed(code, output, errors)
    if (error := _error(line, value)) is not None:
        return error
    raise ValueError(f"the command {line[:80]!r} lacks returncode, stdout or stderr")


def looks_like_archive(data: bytes) -> bool:
    """Whether the bytes are a tar archive, plain or compressed."""
    if data[257:262] == b"ustar":
        return True
    if data[:2] == b"\x1f\x8b" or data[:3] == b"BZh" or data[:6] == b"\xfd7zXZ\x00":
        start = _start(data)
        return start is not None and start[257:262] == b"ustar"
    return False


def _start(data: bytes) -> bytes | None:
    """The first block of compressed data, even where its end is cut off."""
    try:
        if data[:2] == b"\x1f\x8b":
            return zlib.decompressobj(wbits=31).decompress(data, 1024)
        if data[:3] == b"BZh":
            return bz2.BZ2Decompressor().decompress(data, 1024)
        return lzma.LZMADecompressor().decompress(data, 1024)
    except (OSError, zlib.error, lzma.LZMAError):
        return None


def unpack(name: str, data: bytes) -> bytes:
    """Undo gzip, bzip2 or xz. InputError when the data is cut off, damaged or far too large."""
    opener: Callable[[io.BytesIO], Any]
    if data[:2] == b"\x1f\x8b":
        opener = lambda raw: gzip.GzipFile(fileobj=raw)  # noqa: E731
    elif data[:3] == b"BZh":
        opener = bz2.BZ2File
    elif data[:6] == b"\xfd7zXZ\x00":
        opener = lzma.LZMAFile
    else:
        return data
    try:
        with opener(io.BytesIO(data)) as stream:
            unpacked: bytes = stream.read(UNPACKED_LIMIT + 1)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise InputError(
            f"the compressed file is cut off or damaged: {error}", input=name, hint="copy it again, whole"
        ) from None
    if len(unpacked) > UNPACKED_LIMIT:
        raise _too_large(name)
    return unpacked


def _too_large(name: str) -> InputError:
    hint = "pack /sys and /proc as a snapshot tool does, without the data of disks"
    return InputError(f"it unpacks to more than {UNPACKED_LIMIT >> 20} MiB", input=name, hint=hint)


def from_archive(name: str, data: bytes) -> CaptureHost:
    """Build a host from a tar archive of a machine's ``/sys`` and ``/proc``.

    Nothing is written to disk. InputError for a cut-off archive, for a member that would leave the
    archive's own folder, and for an archive without a machine in it.
    """
    raw = unpack(name, data)
    # GNU tar and Python end an archive with two blocks of zeros; without them the end is missing.
    if len(raw) % 512 or raw[-1024:].strip(b"\0"):
        raise InputError("the archive is cut off", input=name, hint="copy it again, whole")
    files: dict[str, bytes | OSError] = {}
    links: dict[str, str] = {}
    folders: list[str] = []
    size = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
            for member in archive:
                parts = [part for part in member.name.split("/") if part not in ("", ".")]
                if ".." in parts or member.name.startswith("/"):
                    raise InputError(
                        f"the member {member.name[:80]!r} would leave the archive's folder",
                        input=name,
                        hint="do not unpack this file as root; pack with names that do not begin with /",
                    )
                size += member.size  # of a sparse file this is what reading it would give
                if size > UNPACKED_LIMIT:
                    raise _too_large(name)
                path = "/" + "/".join(parts)
                if member.issym():
                    links[path] = member.linkname
                elif member.isdir():
                    folders.append(path)
                elif member.isreg() and (stream := archive.extractfile(member)) is not None:
                    files[path] = stream.read()
    except (tarfile.TarError, EOFError, UnicodeError, ValueError) as error:
        raise InputError(f"the archive is damaged: {error}", input=name, hint="copy it again, whole") from None
    prefix = _machine_root(name, [*files, *links, *folders])
    files = {path[len(prefix) :]: content for path, content in files.items() if path.startswith(prefix + "/")}
    manifest = read_manifest(files)
    return CaptureHost(
        name,
        {**files, **manifest.unreadable},
        {path[len(prefix) :]: target for path, target in links.items() if path.startswith(prefix + "/")},
        folders=[path[len(prefix) :] for path in folders if path.startswith(prefix + "/")],
        commands=manifest.commands,
        environment=manifest.environment,
        python=manifest.python,
        is_root=manifest.is_root,
        redacted=manifest.redacted,
    )


def _machine_root(name: str, paths: Iterable[str]) -> str:
    """The folder in the archive that stands for ``/``: the shallowest one that holds sys or proc."""
    roots: set[str] = set()
    for path in paths:
        parts = path.split("/")[1:]
        for depth, part in enumerate(parts[:3]):
            if part in ("sys", "proc"):
                roots.add("/".join(["", *parts[:depth]]).rstrip("/"))
                break
            if part in _ROOTS:
                break
    if not roots:
        raise InputError(
            "the archive holds no machine: neither sys nor proc is in it",
            input=name,
            hint="pack /sys and /proc as a snapshot tool does",
        )
    if len(roots) > 1:
        raise InputError(
            f"the archive holds {len(roots)} machines: {', '.join(sorted(roots))}",
            input=name,
            hint="give one machine at a time",
        )
    return roots.pop()


def _word(digits: str) -> int:
    """A number of at most 64 bits, which is all that hardware gives; so no sum of them can overflow."""
    if len(digits) > 20 or not digits.strip("-").isdigit():
        raise ValueError(f"{digits[:20]} is no number that a machine gives")
    return int(digits)


def load_json(name: str, data: bytes) -> Any:
    """Parse JSON from anywhere. InputError where it is damaged, nested without end or full of vast numbers."""
    try:
        return json.loads(data, parse_int=_word, parse_constant=_word)
    except RecursionError:
        raise InputError("not a capture: JSON nested without end", input=name) from None
    except ValueError as error:
        raise InputError(f"not valid JSON: {error}", input=name, hint="copy it again, whole") from None


def parse_json(name: str, data: bytes) -> CaptureHost:
    """Read the JSON form. InputError for damaged JSON and for a document of another schema."""
    document = load_json(name, data)
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise InputError(
            f"JSON of the schema {str(schema)[:60]!r}, not a capture" if schema else "JSON, but not a capture",
            input=name,
            hint=f"a capture says {SCHEMA!r}; the result of a probe cannot be probed again",
        )
    return from_json(name, document)
