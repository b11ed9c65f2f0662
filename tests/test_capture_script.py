"""capture.sh under the shells that a host may have."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import secretive
from machines import build
from machines.golden import MACHINES

from gpucheck import capture
from gpucheck.assemble import assemble
from gpucheck.capture import CaptureHost
from gpucheck.capture_script import MANIFEST, read_manifest, script_text
from gpucheck.catalog import load
from gpucheck.facts import Machine
from gpucheck.host import Completed, LiveHost
from gpucheck.probing import read
from gpucheck.readers import smbios

Document = dict[str, Any]
SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"], "ksh": ["ksh"], "zsh": ["zsh"]}
INSTALLED = [name for name, argv in SHELLS.items() if shutil.which(argv[0])]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "capture.sh"
    path.write_text(script_text())
    return path


@pytest.fixture(params=INSTALLED)
def shell(request: pytest.FixtureRequest) -> list[str]:
    return SHELLS[request.param]


def run(
    script: Path, *arguments: object, shell: list[str] | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [*(shell or ["sh"]), str(script), *map(str, arguments)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=script.parent,
        env={**os.environ, **environment},
        check=False,
    )


def tree(document: Document, root: Path) -> Path:
    """A machine as a folder. Its links are relative as in sysfs: they stay inside wherever it lies."""
    for path, target in document["links"].items():
        if target.startswith("/"):
            document["links"][path] = os.path.relpath(target, os.path.dirname(path))
    if "/dev/kmsg" in document["files"]:
        messages = document["files"].pop("/dev/kmsg").splitlines()
        document["files"]["/var/log/dmesg"] = "".join(f"[    0.000000] {line.split(';', 1)[1]}\n" for line in messages)
    return build.as_tree(document, root)


def opened(archive: Path) -> CaptureHost:
    return capture.from_archive(archive.name, archive.read_bytes())


def contents(archive: Path) -> Mapping[str, bytes | OSError]:
    return opened(archive)._files


def text_of(archive: Path) -> str:
    return "\n".join(str(path) + bytes(data).decode("latin-1") for path, data in contents(archive).items())


def machine(host: Any) -> Machine:
    return assemble(read(host), load())


def facts(machine: Machine) -> Document:
    made = {name: getattr(machine, name) for name in type(machine).model_fields}
    made["gaps"] = [gap.model_dump() for gap in machine.gaps]
    for gap in made["gaps"]:
        gap["how"] = gap["how"].replace("not in the capture", "No such file or directory")
    return made


# --- what it collects ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MACHINES)
def test_the_archive_of_a_machine_is_that_machine(name: str, script: Path) -> None:
    root = tree(MACHINES[name]().capture(), script.parent / "machine")
    done = run(script, "--no-redact", "--root", root, "c.tar.gz")
    assert (done.returncode, done.stdout) == (0, "c.tar.gz\n"), done.stderr
    assert facts(machine(opened(script.parent / "c.tar.gz"))) == facts(machine(LiveHost(root)))


def test_under_every_shell(script: Path, shell: list[str]) -> None:
    root = tree(secretive.document(), script.parent / "machine")
    done = run(script, "--root", root, "c.tar.gz", shell=shell)
    assert (done.returncode, done.stdout) == (0, "c.tar.gz\n"), done.stderr
    assert "look through it" in done.stderr
    made, live = machine(opened(script.parent / "c.tar.gz")), machine(LiveHost(root))
    assert made.kernel_log is not None
    assert live.kernel_log is not None
    assert len(made.kernel_log.lines) == len(live.kernel_log.lines)
    same = {"gpus", "slots", "psus", "cpu_sockets", "cpu", "memory_bytes", "topology", "pci", "gaps", "catalog_model"}
    assert {name: facts(made)[name] for name in same} == {name: facts(live)[name] for name in same}


def test_this_machine_is_read_with_programs_from_busybox_alone(script: Path) -> None:
    if shutil.which("busybox") is None:
        pytest.skip("no busybox")
    folder = script.parent / "bin"
    folder.mkdir()
    applets = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split()
    for applet in {*applets, "busybox"}:
        (folder / applet).symlink_to(str(shutil.which("busybox")))
    done = run(script, "c.tar.gz", shell=["busybox", "sh"], PATH=str(folder))
    assert done.returncode == 0, done.stderr
    made, live = machine(opened(script.parent / "c.tar.gz")), machine(LiveHost())
    same = ("pci", "cpu", "slots", "system", "memory_bytes", "topology")
    assert {name: facts(made)[name] for name in same} == {name: facts(live)[name] for name in same}


def test_this_machine(script: Path) -> None:
    done = run(script)
    assert (done.returncode, done.stdout) == (0, "gpucheck-capture.tar.gz\n"), done.stderr
    made, live = machine(opened(script.parent / "gpucheck-capture.tar.gz")), machine(LiveHost())
    same = ("pci", "cpu", "slots", "system", "memory_bytes", "topology", "cpu_sockets")
    assert {name: facts(made)[name] for name in same} == {name: facts(live)[name] for name in same}


# --- redaction -----------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [SHELLS[name] for name in INSTALLED])
def test_no_secret_is_in_the_archive(argv: list[str], script: Path) -> None:
    document = secretive.document()
    document["files"]["/sys/class/dmi/id/product_serial"] = f"{secretive.TAG}\n"
    root = tree(document, script.parent / "machine")
    assert run(script, "--no-redact", "--root", root, "plain.tar.gz").returncode == 0
    assert run(script, "--root", root, "c.tar.gz", shell=argv).returncode == 0
    before, after = text_of(script.parent / "plain.tar.gz"), text_of(script.parent / "c.tar.gz").lower()
    found = [secret for secret in secretive.SECRETS if secret in before]
    assert len(found) > 15
    # People and hosts are known by name only on the host itself.
    assert [secret for secret in found if secret.lower() in after] == ["gpubox17"]
    assert secretive.UUID.decode("latin-1") not in text_of(script.parent / "c.tar.gz")


def test_what_only_looks_like_a_secret_stays(script: Path) -> None:
    root = tree(secretive.document(), script.parent / "machine")
    run(script, "--root", root, "c.tar.gz")
    log = opened(script.parent / "c.tar.gz").text("/var/log/dmesg")
    zeroed = {"127.0.0.1", "255.255.255.0", "ff:ff:ff:ff:ff:ff"}
    assert [text for text in secretive.VERSIONS if text not in log and text not in zeroed] == []


def test_the_names_of_this_host_and_of_who_runs_it_go(script: Path) -> None:
    """A program that stands for dmesg prints them."""
    folder = script.parent / "bin"
    folder.mkdir()
    fake = folder / "dmesg"
    fake.write_text('#!/bin/sh\necho "[    0.000000] $(uname -n) and somebody-else met"\n')
    fake.chmod(0o755)
    name = folder / "uname"
    name.write_text("#!/bin/sh\necho gpubox17.example.org\n")
    name.chmod(0o755)
    done = run(script, "c.tar.gz", PATH=f"{folder}:{os.environ['PATH']}", SUDO_USER="somebody-else")
    assert done.returncode == 0
    text = text_of(script.parent / "c.tar.gz")
    assert "name and name met" in text
    assert "gpubox17" not in text
    assert "somebody" not in text


def test_the_table_keeps_every_length(script: Path, shell: list[str]) -> None:
    root = tree(secretive.document(), script.parent / "machine")
    run(script, "--root", root, "c.tar.gz", shell=shell)
    before, after = secretive.table(), opened(script.parent / "c.tar.gz").read(smbios.TABLE)
    assert len(after) == len(before)
    plain = smbios.parse_table(before)
    assert plain.system is not None
    system = plain.system.model_copy(update={"uuid": None})
    assert smbios.parse_table(after) == plain.model_copy(update={"system": system})


def test_real_tables(shared_machines: Path, script: Path) -> None:
    """Bytes of every kind go through awk and printf unharmed."""
    for path in sorted(shared_machines.glob("smbios-bin/*.dmi")):
        data = secretive.bare_table(path.read_bytes())
        document = MACHINES["bmc-only"]().capture()
        document["files"]["/sys/firmware/dmi/tables/DMI"] = build.packed(data)
        root = tree(document, script.parent / path.stem)
        run(script, "--root", root, f"{path.stem}.tar.gz")
        after = smbios.parse_table(opened(script.parent / f"{path.stem}.tar.gz").read(smbios.TABLE))
        before = smbios.parse_table(data)
        assert after.system is not None
        assert before.system is not None
        system = before.system.model_copy(update={"uuid": after.system.uuid})
        assert after == before.model_copy(update={"system": system}), path.name


# --- programs and what cannot be read ------------------------------------------------------------


def test_what_programs_print_is_in_the_manifest(script: Path) -> None:
    folder = script.parent / "bin"
    folder.mkdir()
    for name, text in {
        "dmesg": "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1",
        "journalctl": "echo '[    0.000000] tower kernel: Linux version 6.8'",
        "nvidia-smi": "echo '<nvidia_smi_log><serial>0324519087654</serial></nvidia_smi_log>'",
        "ipmitool": f"cat <<'END'\n{secretive.FRU}END\nexit 3",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    assert run(script, "--ipmi", "c.tar.gz", PATH=path).returncode == 0
    manifest = read_manifest(contents(script.parent / "c.tar.gz"))
    assert manifest.is_root is (os.geteuid() == 0)
    commands = {line: done for line, done in manifest.commands.items() if isinstance(done, Completed)}
    assert list(commands) == [
        "dmesg",
        "journalctl -k -b -o short-monotonic --no-pager",
        "nvidia-smi -q -x",
        "ipmitool fru",
        "ipmitool sdr elist",
        "ipmitool dcmi power reading",
        "ipmitool sel elist",
    ]
    assert commands["dmesg"].returncode == 1
    assert "not permitted" in commands["dmesg"].stderr
    assert "Linux version 6.8" in commands["journalctl -k -b -o short-monotonic --no-pager"].stdout
    assert commands["nvidia-smi -q -x"].stdout == "<nvidia_smi_log><serial>removed</serial></nvidia_smi_log>\n"
    fru = commands["ipmitool fru"]
    assert fru.returncode == 3
    serials = re.findall(r"Board Serial +: (\S+)", fru.stdout)
    assert len(set(serials)) == 2  # two supplies stay two
    assert secretive.PSU_SERIAL not in fru.stdout
    # The log is found too by whoever does not read the manifest.
    log = machine(opened(script.parent / "c.tar.gz")).kernel_log
    assert log is not None
    assert log.lines == ("Linux version 6.8",)


@pytest.mark.skipif(shutil.which("timeout") is None, reason="no timeout")
def test_a_program_that_does_not_answer_is_ended(script: Path) -> None:
    folder = script.parent / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 600\n")
    (folder / "nvidia-smi").chmod(0o755)
    quick = script.read_text().replace("ask 30 nvidia-smi", "ask 1 nvidia-smi")
    assert "ask 1 nvidia-smi" in quick
    script.write_text(quick)
    done = run(script, "c.tar.gz", PATH=f"{folder}:{os.environ['PATH']}")
    assert done.returncode == 0
    assert "nvidia-smi did not answer" in done.stderr
    answer = read_manifest(contents(script.parent / "c.tar.gz")).commands["nvidia-smi -q -x"]
    assert isinstance(answer, TimeoutError)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, to be nobody")
def test_without_root_it_says_what_root_would_add(script: Path) -> None:
    root = tree(secretive.document(), script.parent / "machine")
    for folder in (script.parent, *script.parent.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o755)
    (root / "sys/firmware/dmi/tables/DMI").chmod(0o400)
    (script.parent / "out").mkdir(mode=0o777)
    (script.parent / "out").chmod(0o777)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh"]
    done = run(script, "--root", root, "out/c.tar.gz", shell=nobody)
    assert done.returncode == 0, done.stderr
    assert "not readable without root: SMBIOS" in done.stderr
    manifest = read_manifest(contents(script.parent / "out/c.tar.gz"))
    assert manifest.is_root is False
    assert isinstance(manifest.unreadable["/sys/firmware/dmi/tables/DMI"], PermissionError)


def test_a_manifest_of_a_later_script_and_none_at_all() -> None:
    assert read_manifest({}).commands == {}
    assert read_manifest({}).is_root is None
    text = b"root no\nnews from later\ncommand x y z dmesg\nunreadable EWRONG /a\nunreadable EIO /a b\n"
    manifest = read_manifest({MANIFEST: text})
    assert manifest.is_root is False
    assert manifest.commands == {}
    assert list(manifest.unreadable) == ["/a b"]


# --- manners -------------------------------------------------------------------------------------


def test_it_leaves_one_file_and_nothing_else(script: Path) -> None:
    temporary = script.parent / "tmp"
    temporary.mkdir()
    before = set(os.listdir(script.parent))
    assert run(script, "c.tar.gz", TMPDIR=str(temporary)).returncode == 0
    assert set(os.listdir(script.parent)) - before == {"c.tar.gz"}
    assert os.listdir(temporary) == []
    assert (script.parent / "c.tar.gz").stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_there_is_kept(script: Path) -> None:
    (script.parent / "c.tar.gz").write_text("old")
    done = run(script, "c.tar.gz")
    assert done.returncode == 2
    assert "there already" in done.stderr
    assert (script.parent / "c.tar.gz").read_text() == "old"


@pytest.mark.parametrize("arguments", [["--wrong"], ["a", "b"], ["--root"], ["--root", "/absent"], ["absent/c.tar.gz"]])
def test_wrong_arguments(arguments: list[str], script: Path, shell: list[str]) -> None:
    done = run(script, *arguments, shell=shell)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("capture.sh: ")


def test_help(script: Path, shell: list[str]) -> None:
    done = run(script, "--help", shell=shell)
    assert done.returncode == 0
    assert "gpucheck probe --from" in done.stdout


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")
def test_shellcheck(script: Path) -> None:
    done = subprocess.run(["shellcheck", "-s", "sh", "-f", "json", str(script)], capture_output=True, check=False)
    assert json.loads(done.stdout) == []


def test_the_script_goes_where_it_is_asked_to(tmp_path: Path) -> None:
    from gpucheck.cli import run

    target = tmp_path / "capture.sh"
    assert run(["capture", "--script", str(target)]) == 0
    assert target.read_text("utf-8").startswith("#!/bin/sh")
    assert run(["capture", "--script", str(target)]) == 2
