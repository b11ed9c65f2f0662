"""What the readers ask of a machine is what capture.sh collects: a question that it forgets would be answered
with "not there" by every archive."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from machines import build
from machines.golden import MACHINES

from gpucheck.capture import CaptureHost, from_archive
from gpucheck.capture_script import script_text
from gpucheck.host import READ_LIMIT, Completed, LiveHost
from gpucheck.probing import read
from gpucheck.readers import environment

SHAPES = ("r730-two-p40", "amd-one-mi100", "k80-one-card", "bmc-only", "vm-four-v100", "container-one-of-two")
"""Machines that between them have every kind of function that is read differently."""

MORE = {"/sys/bus/pci/slots/6/address": "0000:04:00\n", "{mi100}/hwmon/hwmon3/power1_cap": "290000000\n"}
"""Files in folders that are listed: an empty folder and none are the same to a reader, and to the script."""

FOLDER = re.compile(r"/tile\d$")
"""Paths of which only their being there is asked, and that are folders."""

TURNS_AWAY = re.compile(r"/physfn$|^/\.dockerenv$|^/run/\.containerenv$")
"""Paths whose being there makes the readers ask less."""

LEFT_OUT: dict[str, str] = {
    r"/sys/module": "asked only where /proc/modules cannot be read, and taken only there",
    r"/sys/bus/pci/devices/[^/]+/(vendor|device|class|subsystem_vendor|subsystem_device|driver)": "uevent has them",
    r"/redfish/.*": "answers of a BMC, which the script does not ask",
    r"/var/log/.*": "the kernel log comes from dmesg or the journal; of a folder only the first file counts",
}
"""Paths that are rightly not in an archive, and why."""


class Asked(LiveHost):
    """A folder that remembers the paths it was asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.files: set[str] = set()
        self.folders: set[str] = set()

    def read(self, path: str, limit: int = READ_LIMIT) -> bytes:
        self.files.add(path)
        return super().read(path, limit)

    def names(self, path: str) -> list[str]:
        self.folders.add(path)
        return super().names(path)

    def real(self, path: str) -> str:
        self.folders.add(path)
        return super().real(path)

    def exists(self, path: str) -> bool:
        self.files.add(path)
        return super().exists(path)


def folder(name: str, root: Path) -> Path:
    """A golden machine as a folder. Its links are relative as in sysfs: they stay inside wherever it lies."""
    document = MACHINES[name]().capture()
    document["links"] = {path: os.path.relpath(to, os.path.dirname(path)) for path, to in document["links"].items()}
    return build.as_tree(document, root)


def archived(root: str, place: Path, shell: Sequence[str] = ("sh",)) -> CaptureHost:
    """What capture.sh makes of a folder."""
    script, archive = place / "capture.sh", place / "c.tar.gz"
    script.write_text(script_text())
    subprocess.run([*shell, script, "--root", root, archive], check=True, capture_output=True, timeout=120)
    return from_archive("c", archive.read_bytes())


def filled(root: Path) -> tuple[Asked, list[str]]:
    """The folder with everything in it that is asked for, and all that was asked."""
    asked: set[str] = set()
    for _ in range(3):
        host = Asked(root)
        read(host)
        asked |= host.files | host.folders
        for path in sorted((host.files | host.folders) - {p for p in asked if TURNS_AWAY.search(p)}):
            place = Path(host._inside(path))
            if os.path.lexists(place):
                continue
            if path in host.folders or FOLDER.search(path):
                place.mkdir(parents=True, exist_ok=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text("1\n")
    return Asked(root), sorted(asked)


@pytest.mark.parametrize("name", SHAPES)
def test_every_path_that_readers_ask_for_is_collected(name: str, tmp_path: Path) -> None:
    root = folder(name, tmp_path / "machine")
    mi100 = next((function.address for function in MACHINES[name]().all_functions() if function.ids == "1002:738c"), "")
    for path, text in MORE.items():
        if mi100 or "{mi100}" not in path:
            place = root / path.format(mi100=f"/sys/bus/pci/devices/{mi100}").lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
    host, asked = filled(root)
    replay = archived(host.root, tmp_path)
    missing = [path for path in asked if host.exists(path) and not replay.exists(path)]
    assert [path for path in missing if not any(re.fullmatch(kind, path) for kind in LEFT_OUT)] == []


def test_every_program_that_readers_run_is_asked() -> None:
    lines: list[str] = []

    class Running(LiveHost):
        def run(self, argv: Sequence[str], timeout: float) -> Completed:
            lines.append(" ".join(argv))
            raise FileNotFoundError(errno.ENOENT, "no such program", argv[0])

        def kernel_messages(self) -> bytes:
            raise PermissionError(errno.EPERM, "not permitted", "/dev/kmsg")

    read(Running(), ask_ipmi=True)
    script = re.findall(r"ask \d+ ([^\n]+)", script_text())
    assert lines
    assert [line for line in lines if line not in [asked.rstrip() for asked in script]] == []


@pytest.mark.parametrize("name", [*SHAPES, "hostile-strings"])
@pytest.mark.parametrize("shell", ["dash", "bash --posix", "busybox sh"])
def test_every_kind_of_machine_under_every_shell(name: str, shell: str, tmp_path: Path) -> None:
    if shutil.which(shell.split(maxsplit=1)[0]) is None:
        pytest.skip(f"no {shell.split(maxsplit=1)[0]}")
    root = folder(name, tmp_path / "machine")
    parts, wanted = read(archived(str(root), tmp_path, shell.split())), read(LiveHost(root))
    for made, live in zip(parts, wanted, strict=True):
        for fact in ("pci", "slots", "psus", "cpu_sockets", "cpu", "driver", "memory_bytes"):
            assert getattr(made, fact) == getattr(live, fact), fact


def test_every_variable_that_readers_look_at_is_asked() -> None:
    listed = re.search(r"for name in (CUDA_VISIBLE_DEVICES[^;]+);", script_text())
    assert listed is not None
    assert set(listed[1].replace("\\\n", " ").split()) == environment.WANTED | environment.FLAGS
