"""Recording: a replay gives the same machine, and a capture holds no more than it takes."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml, device, script
from machines import build
from machines.golden import MACHINES
from support import pci_device, tree

from gpucheck import capture as reading
from gpucheck.assemble import assemble
from gpucheck.catalog import load
from gpucheck.errors import UsageError
from gpucheck.facts import Machine
from gpucheck.host import Completed, Host, LiveHost
from gpucheck.probing import read
from gpucheck.recording import RecordingHost, capture, capture_to, document, dump, write

Document = dict[str, Any]
ABSENT = ("not in the capture", "No such file or directory")
"""A replay and a kernel say it in their own words."""


def recorded(host: Host, **how: Any) -> tuple[Machine, Document]:
    """The machine, and the capture that was written while it was read."""
    recorder = RecordingHost(host)
    machine = assemble(read(recorder, **how), load())
    made: Document = json.loads(dump(document(recorder)))
    return machine, made


def replayed(made: Document, **how: Any) -> Machine:
    return assemble(read(reading.parse_json("x.json", json.dumps(made).encode()), **how), load())


def facts(machine: Machine) -> Document:
    """All of it, also what documents leave out."""
    made = {name: getattr(machine, name) for name in type(machine).model_fields}
    made["gaps"] = [gap.model_dump() for gap in machine.gaps]
    for gap in made["gaps"]:
        gap["how"] = gap["how"].replace(*ABSENT)
    return made


def of_json(**parts: Any) -> Host:
    return reading.from_json("x.json", {"schema": reading.SCHEMA, **parts})


# --- replays -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_a_golden_machine_replays(name: str) -> None:
    machine, made = recorded(of_json(**MACHINES[name]().capture()))
    assert facts(replayed(made)) == facts(machine)
    again, second = recorded(of_json(**made))
    assert facts(again) == facts(machine)
    assert {**second, "time": ""} == {**made, "time": ""}


@pytest.mark.parametrize("name", MACHINES)
def test_a_folder_replays(name: str, tmp_path: Path) -> None:
    host = LiveHost(build.as_tree(MACHINES[name]().capture(), tmp_path))
    machine, made = recorded(host)
    assert facts(replayed(made)) == facts(machine)


@pytest.mark.parametrize("name", MACHINES)
def test_a_redacted_capture_is_the_same_machine(name: str) -> None:
    """Stand-ins change what names a card or a machine, and nothing that is known about it."""
    host = of_json(**MACHINES[name]().capture())
    made = capture(host)
    replay, machine = replayed(made), assemble(read(host), load())
    assert (replay.redacted, machine.redacted) == (True, False)
    assert nameless(facts(replay)) == nameless(facts(machine))


def nameless(known: Document) -> Document:
    """Facts without what stands for one machine or card."""
    nvml, gpus, system = known["nvml"], known["gpus"], known["system"]
    if nvml is not None and nvml.gpus is not None:
        known["nvml"] = nvml.model_copy(update={"gpus": [gpu.model_copy(update={"uuid": None}) for gpu in nvml.gpus]})
    known["gpus"] = [
        gpu.model_copy(update={"nvml": gpu.nvml and gpu.nvml.model_copy(update={"uuid": None})}) for gpu in gpus or ()
    ]
    known["system"] = system and system.model_copy(update={"uuid": None})
    known["redacted"] = None
    return known


def test_real_machines_replay(shared_machines: Path) -> None:
    for path in sorted(shared_machines.glob("sysfs/ghw_*.tar.gz")):
        machine, made = recorded(reading.from_archive(path.name, path.read_bytes()))
        assert facts(replayed(made)) == facts(machine), path.name


def test_this_machine_replays() -> None:
    machine, made = recorded(LiveHost())
    assert facts(replayed(made)) == facts(machine)


@pytest.mark.parametrize(
    "wanted",
    [
        script(device(0), device(1, name="Tesla P40", processes=[{"pid": 7, "used_bytes": 5}])),
        script(device(0, calls={"nvmlDeviceGetPowerUsage": 15}), device(1)),
        script(device(0), calls={"nvmlInit": 18}),
        script(device(0), device(1, calls={"nvmlDeviceGetVbiosVersion": "crash"})),
        script(device(0, memory_total_bytes=(1 << 63) + 1)),
    ],
    ids=["healthy", "lost", "mismatch", "crash", "large"],
)
def test_nvml_replays_with_its_return_codes(
    wanted: Document, fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fake_nvml.environment(wanted).items():
        monkeypatch.setenv(name, value)
    machine, made = recorded(LiveHost(), timeout=60.0)
    assert machine.nvml is not None
    assert made["nvml"]["calls"][0] == {"call": "nvmlInit", "code": wanted.get("calls", {}).get("nvmlInit", 0)}
    assert facts(replayed(made)) == facts(machine)


def test_nvml_that_hangs_replays(fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake_nvml.environment(script(calls={"nvmlInit": "hang"})).items():
        monkeypatch.setenv(name, value)
    machine, made = recorded(LiveHost(), timeout=1.0)
    assert machine.nvml is not None
    assert machine.nvml.status == "timed-out"
    assert facts(replayed(made)) == facts(machine)


def test_errors_replay_as_what_they_were() -> None:
    golden = MACHINES["r730-two-p40"]().capture()
    golden["files"] |= {
        "/sys/firmware/dmi/tables/DMI": {"error": "EACCES"},
        "/sys/devices/pci0000:00/0000:00:02.0/0000:04:00.0/current_link_width": {"error": "EINVAL"},
        "/sys/devices/pci0000:80/0000:80:02.0/0000:82:00.0/config": {"error": "EIO"},
        "/proc/meminfo": {"error": "EPERM"},
        "/dev/kmsg": {"error": "EPERM"},
    }
    golden["root"] = False
    machine, made = recorded(of_json(**golden))
    for path in ("/sys/firmware/dmi/tables/DMI", "/proc/meminfo", "/dev/kmsg"):
        assert made["files"][path] == golden["files"][path]
    assert {gap.reason for gap in machine.gaps} >= {"needs-root", "unreadable"}
    assert facts(replayed(made)) == facts(machine)


def test_a_link_that_leads_nowhere_still_tells_that_it_is_there(tmp_path: Path) -> None:
    path = "pci0000:00/0000:00:02.0"
    content = pci_device(path, "10de:1b38", 0x030200)
    folder = f"/sys/devices/{path}"
    del content[f"{folder}/uevent"]
    content |= {f"{folder}/vendor": "0x10de\n", f"{folder}/device": "0x1b38\n", f"{folder}/class": "0x030200\n"}
    content |= {f"{folder}/driver": Path("/sys/gone/nvidia")}
    machine, made = recorded(tree(tmp_path, content))
    assert machine.gpus is not None
    assert machine.gpus[0].driver_read is False
    assert facts(replayed(made)) == facts(machine)


def test_real_paths_replay(tmp_path: Path) -> None:
    """Links relative, absolute, of links, and above the file that is read."""
    content = {
        "/sys/bus/pci/drivers/nvidia": None,
        "/sys/devices/a/driver": Path("../../bus/pci/drivers/nvidia"),
        "/sys/bus/pci/devices/one": Path("../../../devices/a"),
        "/sys/bus/pci/devices/two": Path("/sys/bus/pci/devices/one"),
        "/sys/devices/a/vendor": "0x10de\n",
        "/usr/lib/modules/6/modules.dep": "kernel/nvidia.ko: x\n",
        "/lib": Path("usr/lib"),
    }
    recorder = RecordingHost(tree(tmp_path, content))
    asked = ("/sys/bus/pci/devices/two", "/sys/bus/pci/devices/two/driver", "/lib/modules/6/modules.dep")
    texts = ("/sys/bus/pci/devices/two/vendor", "/lib/modules/6/modules.dep")
    real = [recorder.real(path) for path in asked]
    read_ = [recorder.text(path) for path in texts]
    made = document(recorder)
    assert made["links"]["/lib"] == "/usr/lib"
    again = of_json(**made)
    assert [again.real(path) for path in asked] == real
    assert [again.text(path) for path in texts] == [read_[0], "kernel/nvidia.ko:\n"]


def test_what_a_program_printed_or_that_it_did_not_answer() -> None:
    printed = {"returncode": 3, "stdout": "a\n", "stderr": "b\n"}
    recorder = RecordingHost(of_json(commands={"ipmitool fru": printed}))
    recorder.run(["ipmitool", "fru"], 1.0)
    with pytest.raises(FileNotFoundError):
        recorder.run(["dmesg"], 1.0)
    assert document(recorder)["commands"] == {"ipmitool fru": printed}


def test_a_program_that_ran_out_of_time_is_no_program_that_is_absent(tmp_path: Path) -> None:
    class Slow(LiveHost):
        def run(self, argv: Sequence[str], timeout: float) -> Completed:
            raise TimeoutError(f"{argv[0]} did not end")

    recorder = RecordingHost(Slow(tmp_path))
    with pytest.raises(TimeoutError):
        recorder.run(["ipmitool", "fru"], 1.0)
    assert document(recorder)["commands"] == {"ipmitool fru": {"error": "ETIMEDOUT"}}


# --- no more than it takes -----------------------------------------------------------------------


def test_only_what_the_readers_need_is_kept(tmp_path: Path) -> None:
    content = {
        **pci_device("pci0000:00/0000:00:02.0", "10de:1b38", 0x030200, attributes={"config": bytes(range(256)) * 16}),
        "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.163.01": "elf" * 1000,
        "/usr/lib/x86_64-linux-gnu/libc.so.6": "elf" * 1000,
        "/dev/nvidia0": "",
        "/dev/sda": "",
        "/proc/sys/kernel/osrelease": "6.8\n",
        "/proc/modules": "nvidia 16384 0 - Live 0xffffffffc0a1b000 (OE)\n",
        "/proc/meminfo": "MemTotal:  65842512 kB\nMemFree:  1 kB\n",
        "/proc/cpuinfo": "".join(
            f"processor\t: {n}\nmodel name\t: X\nphysical id\t: {n // 2}\nflags\t\t: {'fpu ' * 200}\n\n"
            for n in range(4)
        ),
        "/lib/modules/6.8/modules.dep": "kernel/fs/ext4.ko: kernel/lib/crc.ko\nupdates/nvidia.ko: kernel/drm.ko\n",
        "/etc/machine-id": "0123456789abcdef0123456789abcdef\n",
        "/etc/modprobe.d/cards.conf": "# of alice\nblacklist nouveau\noptions snd power_save=0\n",
        "/etc/modprobe.d/README": "text\n",
        "/run/nvidia-fabricmanager/nv-fabricmanager.pid": "4120\n",
        "/run/alice.pid": "1\n",
    }
    machine, made = recorded(tree(tmp_path, content))
    files = made["files"]
    folder = "/sys/devices/pci0000:00/0000:00:02.0"
    assert build.unpacked(files[f"{folder}/config"]) == bytes(range(64))
    assert files["/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.163.01"] == ""
    assert files["/dev/nvidia0"] == ""
    assert {"/usr/lib/x86_64-linux-gnu/libc.so.6", "/dev/sda", "/etc/machine-id"}.isdisjoint(files)
    assert files["/proc/modules"] == "nvidia 16384 0 - Live 0x0000000000000000 (OE)\n"
    assert files["/proc/meminfo"] == "MemTotal:  65842512 kB\n"
    assert files["/etc/modprobe.d/cards.conf"] == "blacklist nouveau\n"
    assert {"/etc/modprobe.d/README", "/run/alice.pid"}.isdisjoint(files)
    assert files["/lib/modules/6.8/modules.dep"] == "updates/nvidia.ko:\n"
    assert files["/proc/cpuinfo"].count("flags") == 1
    assert machine.cpu is not None
    assert (machine.cpu.logical_cpus, machine.cpu.packages) == (4, 2)
    assert facts(replayed(made)) == facts(machine)


def test_the_text_is_sorted_and_a_line_an_answer() -> None:
    host = of_json(**MACHINES["r730-two-p40"]().capture())
    text = dump(capture(host, redact=False))
    made = json.loads(text)
    assert text == json.dumps(made, indent=1, sort_keys=True) + "\n"
    assert '\n  "/proc/meminfo": ' in text
    assert (made["schema"], made["redacted"]) == ("gpucheck/capture/1", False)
    assert text.isascii()


def test_a_capture_is_redacted_unless_told() -> None:
    host = of_json(**MACHINES["r730-two-p40"]().capture())
    assert "GPU-00000000-1b38-4000-8000-000000000001" in dump(capture(host, redact=False))
    made = capture(host)
    assert made["redacted"] is True
    assert "GPU-00000000-1b38-4000-8000-000000000001" not in dump(made)


def test_this_machine_keeps_its_name_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "alicia-the-owner")
    text = dump(capture(LiveHost()))
    assert "alicia-the-owner" not in text
    node = os.uname().nodename
    plain = dump(capture(LiveHost(), redact=False))
    assert len(node) < 4 or node not in plain or node not in text


# --- writing -------------------------------------------------------------------------------------

MADE: Document = {"schema": "gpucheck/capture/1", "files": {}}


def refused(path: Path | str, make: Callable[[], None]) -> UsageError:
    with pytest.raises(UsageError) as caught:
        make()
    assert caught.value.input == str(path)
    assert caught.value.hint
    return caught.value


def test_a_new_file_is_its_owner_s(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    before = os.umask(0)
    try:
        write(str(path), MADE)
    finally:
        os.umask(before)
    assert path.read_text() == dump(MADE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["c.json"]


def test_a_file_that_is_there_is_replaced_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text("old")
    error = refused(path, lambda: write(str(path), MADE))
    assert "--force" in str(error)
    assert path.read_text() == "old"
    write(str(path), MADE, force=True)
    assert path.read_text() == dump(MADE)


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text("old")
    with pytest.raises(TypeError):
        write(str(path), {"files": object()}, force=True)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["c.json"]


def test_a_full_disk_leaves_nothing() -> None:
    """/dev/full stands for one: it is refused, as is every device, pipe and folder."""
    assert "not a regular file" in str(refused("/dev/full", lambda: write("/dev/full", MADE, force=True)))


@pytest.mark.parametrize("name", ["", "absent/c.json", "file/c.json", "c\0.json"])
def test_a_place_that_is_none(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / name) if name else ""
    with pytest.raises(UsageError):
        write(path, MADE)


def test_folders_and_links_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    refused(tmp_path, lambda: write(str(tmp_path), MADE, force=True))
    refused(tmp_path / "link", lambda: write(str(tmp_path / "link"), MADE, force=True))
    assert (tmp_path / "target").read_text() == "old"


def test_a_file_without_a_name() -> None:
    with pytest.raises(UsageError, match="the name of the file is empty"):
        write("", MADE)


def test_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    write("-", MADE)
    assert capsys.readouterr().out == dump(MADE)


def test_the_command_checks_its_file_before_it_reads(tmp_path: Path) -> None:
    class Untouched(LiveHost):
        def read(self, path: str, limit: int = 0) -> bytes:
            raise AssertionError(path)

    path = tmp_path / "c.json"
    path.write_text("old")
    refused(path, lambda: capture_to(str(path), host=Untouched(tmp_path)))


def test_the_command_writes_what_probe_reads(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    capture_to(str(path), host=of_json(**MACHINES["r730-two-p40"]().capture()))
    machine = replayed(json.loads(path.read_text()))
    assert machine.catalog_model == "dell-poweredge-r730"
    assert [gpu.slot for gpu in machine.gpus or ()] == ["PCIe Slot 6", "PCIe Slot 4"]
