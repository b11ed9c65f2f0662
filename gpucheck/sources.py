"""What ``--from`` accepts: the form is recognised from the content, never from the file's name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from gpucheck import capture
from gpucheck.errors import InputError
from gpucheck.facts import KernelLog, Parts
from gpucheck.host import Host, LiveHost

FORMS = (
    "a gpucheck capture (JSON), an archive or folder with sys and proc, the text of dmidecode, lspci, nvidia-smi, "
    "lscpu or 'ipmitool fru', a raw SMBIOS table, a kernel log, nvidia-bug-report.log"
)
READ_LIMIT = 256 << 20
"""Most bytes of one dump."""

_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def open_source(path: str) -> Host | tuple[Parts, ...]:
    """Open one ``--from`` argument: a host to read, or the parts that a dump holds.

    Args:
        path: A file, a folder, or ``-`` for standard input.

    Raises:
        InputError: it does not exist, cannot be read, is too large, or is in no form that is known.
    """
    if path == "-":
        if sys.stdin is None:
            raise InputError("it is closed", input="standard input", hint="pipe a dump into it")
        return recognise("standard input", _bounded("standard input", sys.stdin.buffer))
    place = Path(path)
    try:
        if not path or not place.exists():
            raise InputError("no such file", input=path or "--from", hint="check the path")
        if place.is_dir():
            return _folder(place)
        if not place.is_file() and not place.is_fifo():
            raise InputError("not a file or folder", input=path, hint="check the path")
        # Opening a pipe that nobody writes to would wait for ever; this way it is merely empty.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAIT)) as file:
            os.set_blocking(file.fileno(), True)
            data = _bounded(path, file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot be read: {reason}", input=path, hint="check the path and the rights") from None
    return recognise(path, data)


def _bounded(name: str, file: BinaryIO) -> bytes:
    data = file.read(READ_LIMIT + 1)
    if len(data) > READ_LIMIT:
        raise InputError(f"larger than {READ_LIMIT >> 20} MiB: no dump of a machine is", input=name)
    return data


def _folder(place: Path) -> Host:
    if (place / "capture.json").is_file():
        with (place / "capture.json").open("rb") as file:
            return capture.parse_json(str(place), _bounded(str(place), file))
    if (place / "sys").is_dir() or (place / "proc").is_dir():
        return LiveHost(place)
    raise InputError(
        "no machine in this folder: neither sys, proc nor capture.json is in it",
        input=str(place),
        hint="give the folder that stands for /, or one dump file",
    )


def recognise(name: str, data: bytes) -> Host | tuple[Parts, ...]:
    """Tell the form from the content and parse it."""
    from gpucheck import dumps
    from gpucheck.dumps import bug_report
    from gpucheck.readers import kernel_log, psu, smbios

    if not data.strip():
        raise InputError("it is empty", input=name, hint="make the dump again")
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
        if text.lstrip().startswith("{"):
            return capture.parse_json(name, text.encode())
        if (found := dumps.recognise(text)) is not None:
            return tuple(parts.model_copy(update={"origin": name}) for parts in found)
        if smbios.looks_like_dmidecode(text):
            return (_smbios(name, lambda: smbios.parse_text(text)),)
        if psu.looks_like_ipmi_fru(text):
            return (Parts(origin=name, psus=psu.from_ipmi_fru(text)),)
        if kernel_log.looks_like_kernel_log(text):
            log: KernelLog = kernel_log.parse(text, "file")
            return (Parts(origin=name, kernel_log=log),)
    raise InputError("in no form that gpucheck knows", input=name, hint=f"known forms: {FORMS}")


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
