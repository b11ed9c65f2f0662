"""What ``--from`` accepts: the form is recognised from the content, never from the file's name."""

from __future__ import annotations

import sys
from pathlib import Path

from gpucheck import capture
from gpucheck.errors import InputError
from gpucheck.facts import KernelLog, Parts
from gpucheck.host import Host, LiveHost

FORMS = (
    "a gpucheck capture (JSON), an archive or folder with sys and proc, the text of dmidecode, "
    "a raw SMBIOS table, a kernel log, the text of 'ipmitool fru'"
)
READ_LIMIT = 256 << 20


def open_source(path: str) -> Host | Parts:
    """Open one ``--from`` argument: a host to read, or the parts that a dump holds.

    Args:
        path: A file, a folder, or ``-`` for standard input.

    Raises:
        InputError: it does not exist, cannot be read, or is in no form that is known.
    """
    if path == "-":
        return recognise("standard input", sys.stdin.buffer.read(READ_LIMIT))
    place = Path(path)
    try:
        if place.is_dir():
            return _folder(place)
        if not place.is_file() and not place.is_fifo():
            kind = "not a file or folder" if place.exists() else "no such file"
            raise InputError(kind, input=path, hint="check the path")
        with place.open("rb") as file:
            data = file.read(READ_LIMIT)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot be read: {reason}", input=path, hint="check the path and the rights") from None
    return recognise(path, data)


def _folder(place: Path) -> Host:
    if (place / "capture.json").is_file():
        return capture.parse_json(str(place), (place / "capture.json").read_bytes())
    if (place / "sys").is_dir() or (place / "proc").is_dir():
        return LiveHost(place)
    raise InputError(
        "no machine in this folder: neither sys, proc nor capture.json is in it",
        input=str(place),
        hint="give the folder that stands for /, or one dump file",
    )


def recognise(name: str, data: bytes) -> Host | Parts:
    """Tell the form from the content and parse it."""
    from gpucheck.readers import kernel_log, psu, smbios

    if not data.strip():
        raise InputError("it is empty", input=name, hint="make the dump again")
    if capture.looks_like_archive(data):
        return capture.from_archive(name, data)
    data = capture.unpack(name, data)
    if smbios.looks_like_table(data):
        try:
            return _named(smbios.parse_table(data, None), name)
        except ValueError as error:
            raise InputError(f"a damaged SMBIOS table: {error}", input=name) from None
    text = _decoded(data)
    if text is not None:
        if text.lstrip().startswith("{"):
            return capture.parse_json(name, text.encode())
        if smbios.looks_like_dmidecode(text):
            return _named(smbios.parse_text(text), name)
        if psu.looks_like_ipmi_fru(text):
            return Parts(origin=name, psus=psu.from_ipmi_fru(text))
        if kernel_log.looks_like_kernel_log(text):
            log: KernelLog = kernel_log.parse(text, "file")
            return Parts(origin=name, kernel_log=log)
    raise InputError("in no form that gpucheck knows", input=name, hint=f"known forms: {FORMS}")


def _decoded(data: bytes) -> str | None:
    """Text, also as Windows tools save it; None for binary data."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    if b"\0" in data[:4096]:
        return None
    return data.decode("utf-8-sig", "replace")


def _named(parts: Parts, name: str) -> Parts:
    return parts.model_copy(update={"origin": name})
