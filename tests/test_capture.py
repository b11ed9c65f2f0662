"""Captures and archives: the same door as a live host, and nothing gets out through it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck import capture
from gpucheck.capture import CaptureHost, from_archive, parse_json
from gpucheck.errors import InputError

FILE, LINK, HARD, FOLDER, FIFO = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
Member = tuple[str, bytes, bytes, str]
MACHINE: tuple[Member, ...] = (("m/sys", FOLDER, b"", ""), ("m/proc/version", FILE, b"Linux", ""))


def tar(*members: Member) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, kind, content, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, target, len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def refused(data: bytes) -> str:
    with pytest.raises(InputError) as caught:
        from_archive("x.tar", data)
    assert caught.value.input == "x.tar"
    return caught.value.message


def document(**parts: Any) -> bytes:
    return json.dumps({"schema": capture.SCHEMA, **parts}).encode()


def host(**parts: Any) -> CaptureHost:
    return parse_json("x.json", document(**parts))


# --- behaves as a kernel would ------------------------------------------------------------------


def test_reads_lists_and_follows_links() -> None:
    made = host(
        files={"/sys/devices/a/vendor": "0x10de\n", "/sys/devices/a/config": {"base64": "AAH/"}},
        links={"/sys/bus/a": "../devices/a", "/sys/abs": "/sys/devices"},
        folders=["/sys/empty"],
    )
    assert made.text("/sys/bus/a/vendor") == "0x10de\n"
    assert made.read("/sys/abs/a/config", 2) == b"\0\1"
    assert made.real("/sys/bus/a") == "/sys/devices/a"
    assert made.names("/sys") == ["abs", "bus", "devices", "empty"]
    assert made.names("/sys/empty") == []
    assert made.exists("/sys/bus/a")
    assert not made.exists("/sys/bus/b")


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/absent", FileNotFoundError),
        ("/dangling", FileNotFoundError),
        ("/folder", IsADirectoryError),
        ("/secret", PermissionError),
        ("/broken", OSError),
        ("/loop", OSError),
        ("/folder/file/below", FileNotFoundError),
    ],
)
def test_what_cannot_be_read_raises_what_a_kernel_would(path: str, error: type[OSError]) -> None:
    made = host(
        files={"/folder/file": "x", "/secret": {"error": "EACCES"}, "/broken": {"error": "EIO"}},
        links={"/dangling": "nowhere", "/loop": "loop"},
    )
    with pytest.raises(error):
        made.read(path)


def test_a_file_is_no_folder_and_an_unreadable_folder_says_why() -> None:
    made = host(files={"/file": "x", "/secret": {"error": "EACCES"}})
    with pytest.raises(NotADirectoryError):
        made.names("/file")
    with pytest.raises(PermissionError):
        made.names("/secret")


def test_commands_kernel_messages_nvml_and_root() -> None:
    made = host(
        files={"/dev/kmsg": "6,1,0,-;hello\n"},
        commands={"dmesg -T": {"returncode": 1, "stdout": "a", "stderr": "b"}},
        nvml={"calls": []},
        root=True,
    )
    done = made.run(["dmesg", "-T"], 1.0)
    assert (done.returncode, done.stdout, done.stderr) == (1, "a", "b")
    assert made.kernel_messages() == b"6,1,0,-;hello\n"
    assert made.ask_nvml(1.0)() == {"calls": []}
    assert made.is_root is True
    with pytest.raises(FileNotFoundError):
        made.run(["dmesg"], 1.0)
    bare = host()
    assert bare.is_root is None
    with pytest.raises(FileNotFoundError):
        bare.kernel_messages()
    with pytest.raises(FileNotFoundError):
        bare.ask_nvml(1.0)()


# --- damaged captures ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"files": []}, "files is no object"),
        ({"files": None}, "files is no object"),
        ({"files": {"sys": ""}}, "'sys' is no absolute path"),
        ({"files": {"/a/../b": ""}}, "'/a/../b' is no absolute path"),
        ({"files": {"/a": 1}}, "/a is neither text"),
        ({"files": {"/a": {"base64": "not base64!"}}}, "/a is not base64"),
        ({"files": {"/a": {"base64": "é"}}}, "/a is not base64"),
        ({"files": {"/a": {"base64": 7}}}, "/a is neither text"),
        ({"files": {"/a": {"error": "EWRONG"}}}, "/a is neither text"),
        ({"files": {"/a": {"error": "errorcode"}}}, "/a is neither text"),  # a dict in the module errno
        ({"links": 3}, "links is no object"),
        ({"links": {"/a": 3}}, "the link /a has no path"),
        ({"folders": "/sys"}, "folders is no list"),
        ({"folders": [3]}, "'3' is no absolute path"),
        ({"commands": {"dmesg": {}}}, "the command 'dmesg' lacks"),
        ({"commands": {"dmesg": {"returncode": "0", "stdout": "", "stderr": ""}}}, "the command 'dmesg' lacks"),
        ({"nvml": []}, "nvml is no object"),
        ({"nvml": 3}, "nvml is no object"),
        ({"root": 1}, "root is neither true nor false"),
    ],
)
def test_a_damaged_capture_says_which_part_is_wrong(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match="the capture is damaged: ") as caught:
        host(**parts)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"schema": "gpucheck/capture/1", ', "not valid JSON"),
        (b'{"schema": "gpucheck/probe/1"}', "schema 'gpucheck/probe/1', not a capture"),
        (b"{}", "not a capture"),
        (b'{"schema": ["gpucheck/capture/1"]}', "not a capture"),
        (b'{"a":' * 100_000, "nested"),
        (b'{"schema": "gpucheck/capture/1", "nvml": {"a": ' + b"9" * 400 + b"}}", "no number"),
        (b'{"schema": "gpucheck/capture/1", "nvml": {"a": Infinity}}', "no number"),
        (b'{"schema": "gpucheck/capture/1", "nvml": {"a": NaN}}', "no number"),
    ],
)
def test_what_is_no_capture(text: bytes, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_json("x.json", text)
    assert words in caught.value.message


# --- archives -----------------------------------------------------------------------------------


def test_an_archive_of_a_folder_or_of_the_root() -> None:
    for prefix in ("m/", "./", "", "a/b/"):
        members = ((f"{prefix}proc/version", FILE, b"Linux", ""), (f"{prefix}sys/empty", FOLDER, b"", ""))
        made = from_archive("x.tar", tar(*members))
        assert made.text("/proc/version") == "Linux"
        assert made.names("/sys") == ["empty"]


@pytest.mark.parametrize("name", ["m/../../etc/passwd", "../m/proc/stat", "/etc/passwd", "/sys/kernel", "//etc/passwd"])
def test_a_member_outside_of_the_archive_is_refused(name: str) -> None:
    assert "would leave the archive's folder" in refused(tar(*MACHINE, (name, FILE, b"x", "")))


@pytest.mark.parametrize("target", ["/etc/hostname", "../../../../../../../etc/hostname", "../../m/../../etc/hostname"])
def test_a_link_out_of_the_archive_leads_nowhere(target: str) -> None:
    made = from_archive("x.tar", tar(*MACHINE, ("m/proc/stolen", LINK, b"", target)))
    with pytest.raises(FileNotFoundError):
        made.read("/proc/stolen")
    assert not made.exists("/proc/stolen")


def test_links_in_a_circle_are_an_error_of_that_path_alone() -> None:
    members = (("m/proc/a", LINK, b"", "b"), ("m/proc/b", LINK, b"", "a"))
    made = from_archive("x.tar", tar(*MACHINE, *members))
    with pytest.raises(OSError, match="symbolic links"):
        made.read("/proc/a")
    assert made.text("/proc/version") == "Linux"


def test_hard_links_and_pipes_are_left_out() -> None:
    members = (("m/proc/hard", HARD, b"", "/etc/passwd"), ("m/proc/pipe", FIFO, b"", ""))
    made = from_archive("x.tar", tar(*MACHINE, *members))
    assert made.names("/proc") == ["version"]


def test_two_machines_in_one_archive_are_named() -> None:
    message = refused(tar(*MACHINE, ("other/sys", FOLDER, b"", "")))
    assert message == "the archive holds 2 machines: /m, /other"


def test_an_archive_without_a_machine() -> None:
    assert "holds no machine" in refused(tar(("m/readme", FILE, b"x", "")))


@pytest.mark.parametrize("mode", PACKERS)
@pytest.mark.parametrize("part", [0.3, 0.6, 0.999])
def test_a_cut_archive_is_refused(mode: str, part: float) -> None:
    raw = tar(*MACHINE, *((f"m/sys/{n}", FILE, b"content %d" % n, "") for n in range(50)))
    data = PACKERS[mode](raw)
    assert "cut off" in refused(data[: int(len(data) * part)])


def test_a_flipped_byte_in_compressed_data_is_refused() -> None:
    data = bytearray(gzip.compress(tar(*MACHINE)))
    data[len(data) // 2] ^= 0xFF
    assert "damaged" in refused(bytes(data))


@pytest.mark.parametrize("mode", ["gz", "bz2", "xz"])
def test_a_compressed_bomb_is_refused(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setattr(capture, "UNPACKED_LIMIT", 1 << 20)
    bomb = PACKERS[mode](tar(*MACHINE, ("m/sys/zeros", FILE, bytes(2 << 20), "")))
    assert len(bomb) < 5000
    assert refused(bomb) == "it unpacks to more than 1 MiB"


def test_a_sparse_bomb_is_refused(tmp_path: Path) -> None:
    """A sparse member of a terabyte takes one block in the archive."""
    info = tarfile.TarInfo("m/sys/zeros")
    info.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(1 << 40)}
    info.pax_headers |= {"GNU.sparse.numblocks": "0", "GNU.sparse.map": "0,0"}
    packed = io.BytesIO(tar(*MACHINE))
    with tarfile.open(fileobj=packed, mode="a", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)
    with tarfile.open(fileobj=io.BytesIO(packed.getvalue())) as archive:
        assert archive.getmember("m/sys/zeros").size == 1 << 40
    assert "unpacks to more than" in refused(packed.getvalue())
