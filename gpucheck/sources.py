"""What ``--from`` accepts: the form is recognised from the content, never from the file's name."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from gpucheck import capture
from gpucheck.errors import InputError
from gpucheck.facts import Gap, Parts
from gpucheck.host import Host, LiveHost
from gpucheck.text import say

FORMS = (
    "a gpucheck capture (JSON), an archive or folder with sys and proc, the text of dmidecode, lspci, nvidia-smi, "
    "lscpu or 'ipmitool fru', a raw SMBIOS table, a kernel log, nvidia-bug-report.log, pip list, printenv, "
    "TensorFlow's log, Redfish answers (JSON, or a folder of them), a folder of such files"
)
PROBE_SCHEMA = "gpucheck/probe/1"
READ_LIMIT = 256 << 20
"""Most bytes of one dump."""
TREE_LIMIT = 10_000
"""Most files of a folder of saved Redfish answers; a whole service has some hundred."""

_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def open_source(path: str) -> Host | tuple[Parts, ...]:
    """Open one ``--from`` argument: a host to read, or the parts that a dump holds.

    Args:
        path: A file, a folder, or ``-`` for standard input.

    Raises:
        InputError: it does not exist, cannot be read, is too large, or is in no form that is known.
    """
    return _opened(path, _content(path))


def open_baseline(path: str) -> Host | tuple[Parts, ...] | dict[str, Any]:
    """Open what a machine is compared with: what :func:`open_source` opens, or the document of an earlier probe.

    Raises:
        InputError: as there, and for a document of another kind or of a later version.
    """
    content = _content(path)
    text = _decoded(content) if isinstance(content, bytes) else None
    if text is None or not text.lstrip().startswith("{"):
        return _opened(path, content)
    document = capture.load_json(_name(path), text.encode())
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(document, dict) and schema == PROBE_SCHEMA:
        return document
    if schema == capture.SCHEMA or not isinstance(schema, str):
        return _opened(path, content)
    if schema.rpartition("/")[0] in (PROBE_SCHEMA.rpartition("/")[0], capture.SCHEMA.rpartition("/")[0]):
        fault = say("its form is {schema}, which this version of gpucheck does not know", schema=schema[:60])
        raise InputError(fault, input=_name(path), hint="make it again with this version, or take a newer one")
    fault = say("JSON of the schema {schema}, which is no earlier state of a machine", schema=repr(schema[:60]))
    raise InputError(fault, input=_name(path), hint="make one: gpucheck probe --json > FILE")


def _opened(path: str, content: bytes | Path) -> Host | tuple[Parts, ...]:
    if isinstance(content, bytes):
        return recognise(_name(path), content)
    try:
        return _folder(content)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _name(path: str) -> str:
    return "standard input" if path == "-" else path


def _content(path: str) -> bytes | Path:
    """What is in a file or in standard input; the path itself for a folder."""
    if path == "-":
        if sys.stdin is None:
            raise InputError("it is closed", input="standard input", hint="pipe a dump into it")
        return _bounded("standard input", sys.stdin.buffer)
    place = Path(path)
    try:
        if not path or not place.exists():
            raise InputError("no such file", input=path or "--from", hint="check the path")
        if place.is_dir():
            return place
        if not place.is_file() and not place.is_fifo():
            raise InputError("not a file or folder", input=path, hint="check the path")
        with _open(place) as file:
            if place.is_fifo():
                os.set_blocking(file.fileno(), True)
            return _bounded(path, file)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: OSError | ValueError) -> InputError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(f"cannot be read: {reason}", input=path, hint="check the path and the rights")


def _open(place: Path) -> BinaryIO:
    """Without waiting for ever: a pipe that nobody writes to is merely empty, and so is /proc/kmsg."""
    return open(place, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAIT))


def _bounded(name: str, file: BinaryIO) -> bytes:
    data = file.read(READ_LIMIT + 1) or b""  # None: nothing is there now
    if len(data) > READ_LIMIT:
        raise InputError(f"larger than {READ_LIMIT >> 20} MiB: no dump of a machine is", input=name)
    return data


def _redfish_tree(place: Path) -> list[dict[str, Any]]:
    """Every saved Redfish answer in a folder, however it is laid out: each tells its own path."""
    found: list[dict[str, Any]] = []
    size = 0
    for number, path in enumerate(sorted(islice(place.rglob("*.json"), TREE_LIMIT + 1)), 1):
        size += path.stat().st_size if path.is_file() else 0
        if number > TREE_LIMIT or size > READ_LIMIT:
            hint = "give the answers about one machine: its system, chassis, power and BIOS"
            raise InputError("too many files, or too large", input=str(place), hint=hint)
        if path.is_file():
            found += _redfish(path.read_text("utf-8-sig", "replace"))
    return found


def _folder(place: Path) -> Host | tuple[Parts, ...]:
    if (place / "capture.json").is_file():
        with (place / "capture.json").open("rb") as file:
            return capture.parse_json(str(place), _bounded(str(place), file))
    if (place / "sys").is_dir() or (place / "proc").is_dir():
        return LiveHost(place)
    resources = _redfish_tree(place)
    parts = _dumps_in(place, skip=".json" if resources else None)
    if resources:
        from gpucheck.readers import bmc

        return (bmc.parse(resources, str(place)), *parts)
    if parts:
        return parts
    raise InputError(
        "no machine in this folder: neither sys, proc, capture.json, saved Redfish answers nor a dump are in it",
        input=str(place),
        hint="give the folder that stands for /, a folder of dumps of one machine, or one dump file",
    )


def _dumps_in(place: Path, skip: str | None) -> tuple[Parts, ...]:
    """What the files of a folder hold, each recognised by itself; a gap names those that are no dump.

    Args:
        place: The folder; folders in it are passed over.
        skip: Ending of the names of files that were read already.
    """
    found: list[Parts] = []
    unknown: list[Gap] = []
    size = 0
    for path in sorted(islice(place.iterdir(), TREE_LIMIT)):
        if not path.is_file() or (skip is not None and path.name.endswith(skip)):
            continue
        size += path.stat().st_size
        if size > READ_LIMIT:
            raise InputError(f"its files are larger than {READ_LIMIT >> 20} MiB together", input=str(place))
        try:
            with _open(path) as file:
                opened = recognise(str(path), _bounded(str(path), file))
        except (InputError, OSError) as error:
            reason = error.message.partition(" (")[0] if isinstance(error, InputError) else error.strerror
            how = say("Left out: {reason}.", reason=reason)
            unknown.append(Gap(fact=f"input.{path.name}", reason="unreadable", how=how))
            continue
        if isinstance(opened, tuple):
            found += opened
        else:
            how = say("Left out: it is a capture. Give it by itself, with --from.")
            unknown.append(Gap(fact=f"input.{path.name}", reason="unreadable", how=how))
    return (*found, Parts(origin=str(place), gaps=tuple(unknown))) if found else ()


def recognise(name: str, data: bytes) -> Host | tuple[Parts, ...]:
    """Tell the form from the content and parse it."""
    from gpucheck import dumps
    from gpucheck.dumps import bug_report, pasted
    from gpucheck.readers import bmc, smbios

    if not data.strip():
        once = name == _name("-")
        hint = "pipe a dump into it; it can be read only once" if once else "make the dump again"
        raise InputError("it is empty", input=name, hint=hint)
    if capture.looks_like_archive(data):
        return capture.from_archive(name, data)
    try:
        data = capture.unpack(name, data)
    except InputError:
        # The script that writes bug reports appends one gzip member after the other: a cut end loses little.
        unpacked = bug_report.unpack(data, READ_LIMIT)
        if not bug_report.looks_like(unpacked[:5000].decode("utf-8", "replace")):
            raise
        data = unpacked
    if smbios.looks_like_table(data):
        return (_smbios(name, lambda: smbios.parse_table(data, None)),)
    text = _decoded(data)
    if text is not None:
        if text.lstrip().startswith(("{", "[")) and (resources := _redfish(text)):
            return (bmc.parse(resources, name),)
        if text.lstrip().startswith("{"):
            return capture.parse_json(name, text.encode())
        text = pasted.plain(text)
        if (found := _texts(name, text)) is not None:
            hosts = dumps.hosts(text)
            return tuple(parts.model_copy(update={"origin": name, "hosts": hosts}) for parts in found)
    raise InputError("in no form that gpucheck knows", input=name, hint=f"known forms: {FORMS}")


def _redfish(text: str) -> list[dict[str, Any]]:
    """The resources in a saved Redfish answer; empty where the text is none."""
    from gpucheck.readers import bmc

    if '"@odata.' not in text:
        return []
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return (document if isinstance(document, list) else [document]) if bmc.looks_like(document) else []


def _texts(name: str, text: str) -> Iterable[Parts] | None:
    """What a text of one or several tools holds; None where none of them is known."""
    from gpucheck import dumps
    from gpucheck.readers import kernel_log, psu, smbios

    if (found := dumps.recognise(text)) is not None:
        return found
    if smbios.looks_like_dmidecode(text):
        return (_smbios(name, lambda: smbios.parse_text(text)),)
    if psu.looks_like_ipmi_fru(text):
        return (Parts(psus=psu.from_ipmi_fru(text)),)
    if kernel_log.looks_like_kernel_log(text):
        return (Parts(kernel_log=kernel_log.parse(text, "file")),)
    return None


def _decoded(data: bytes) -> str | None:
    """Text, also as Windows tools save it; None for binary data."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    if b"\0" in data[:4096]:
        return None
    return data.decode("utf-8-sig", "replace")


def _smbios(name: str, parse: Callable[[], Parts]) -> Parts:
    try:
        return parse().model_copy(update={"origin": name})
    except ValueError as error:
        raise InputError(f"damaged SMBIOS data: {error}", input=name, hint="make the dump again") from None
