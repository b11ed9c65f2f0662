"""collect through a real sshd, several of them as hosts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet import sshd
from gpucheck import probe
from gpucheck.fleet import store
from gpucheck.fleet.report import report

pytestmark = pytest.mark.skipif(sshd.unavailable() is not None, reason=str(sshd.unavailable()))
pytest.importorskip("asyncssh", reason="asyncssh is not installed (the extra 'fleet')")

HERE = f"{Path(sys.executable).parent}:{sshd.PATH}"
BARE = (
    *("sh", "bash", "dash", "awk", "sed", "od", "tar", "gzip", "mktemp", "cat", "rm", "mkdir", "rmdir", "mv", "cp"),
    *("ls", "id", "grep", "wc", "head", "tail", "tr", "cut", "sort", "uniq", "readlink", "ln", "find", "basename"),
    *("dirname", "date", "uname", "sleep", "kill", "env", "printf", "test", "expr", "dd", "dmesg", "timeout"),
)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[sshd.Hosts]:
    folder = tmp_path / "ssh"
    folder.mkdir()
    with sshd.Hosts(folder) as started:
        yield started


def command(hosts: sshd.Hosts, folder: Path, names: list[str], known: list[sshd.Sshd], *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "gpucheck", "fleet", "collect", str(folder), "--ssh", str(hosts.listed(*names))),
        *("--known-hosts", str(hosts.known(*known)), "--identity", str(hosts.identity), "--json", *more),
    ]


def collect(
    hosts: sshd.Hosts,
    folder: Path,
    names: list[str],
    known: list[sshd.Sshd],
    *more: str,
    environment: dict[str, str] | None = None,
) -> dict[str, Any]:
    line = command(hosts, folder, names, known, *more)
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["exit_code"] == done.returncode
    return document


def reasons(document: dict[str, Any]) -> dict[str, str]:
    return {one["host"]: one["reason"] for one in document["unseen"]}


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def capture_of(folder: Path, host: str) -> Path:
    (file,) = (folder / store.folder_of(host)).iterdir()
    return file


def test_a_host_with_gpucheck_one_without_python_and_three_that_do_not_answer(
    hosts: sshd.Hosts, tmp_path: Path
) -> None:
    able = hosts.start(path=HERE)
    bare = hosts.start(path=sshd.tools(tmp_path / "bin", *BARE))
    refusing = hosts.start(accept=False)
    closed = f"127.0.0.1:{sshd.free_port()}"
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection, and says nothing
        hanging = f"127.0.0.1:{silent.getsockname()[1]}"
        names = [able.name, bare.name, refusing.name, closed, hanging]
        started = time.monotonic()
        document = collect(hosts, tmp_path / "out", names, [able, bare, refusing], "--timeout", "15")
        took = time.monotonic() - started

    assert document["schema"] == "gpucheck/fleet-collect/1"
    assert document["exit_code"] == 3
    assert sorted(document["collected"]) == sorted([able.name, bare.name])
    assert took < 40
    told = reasons(document)
    assert told[closed] == "cannot be reached: Connection refused"
    assert told[hanging] == "no answer within 15 s"
    assert "refuses our key" in told[refusing.name]

    assert capture_of(tmp_path / "out", able.name).suffix == ".json"
    archive = capture_of(tmp_path / "out", bare.name)
    assert archive.name.endswith(".tar.gz")
    with tarfile.open(archive) as opened:
        assert any(name.endswith("commands/manifest") for name in opened.getnames())
    assert probe([str(archive)]).machine.memory_bytes

    merged = report(str(tmp_path / "out"))
    assert {row.host for row in merged.rows} == {able.name, bare.name}
    assert {one.host: one.reason for one in merged.head.unseen} == told


def test_nothing_is_sent_to_a_host_whose_key_changed_or_is_not_known(hosts: sshd.Hosts, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    other = hosts.start(command=f"touch {seen}")
    unknown = hosts.start(command=f"touch {seen}")
    other.key = sshd.keygen(tmp_path / "another")
    document = collect(hosts, tmp_path / "out", [other.name, unknown.name], [other])

    told = reasons(document)
    assert "is not the one in" in told[other.name]
    assert f"ssh-keygen -R '[127.0.0.1]:{other.port}'" in told[other.name]
    assert "is not in" in told[unknown.name]
    assert not seen.exists()
    assert document["collected"] == []
    assert document["exit_code"] == 3


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("cat >/dev/null; echo hello", "it sent no capture"),
        ("cat >/dev/null; yes", "it sent something else than a capture"),
        ("cat >/dev/null; echo gpucheck-fleet-capture:; head -c 300 /dev/urandom", "its capture is damaged"),
        ("cat >/dev/null; echo gpucheck-fleet-capture:; echo '{\\\"schema\\\":'", "its capture is damaged"),
        ("cat >/dev/null; echo gpucheck-fleet-capture:; cat /dev/zero", "it sent more than 64 MiB"),
        ("cat >/dev/null; echo no room >&2; exit 5", "exit status 5: no room"),
        ("sleep 60", "no answer within 3 s"),
    ],
)
def test_what_is_no_capture_leaves_no_file(hosts: sshd.Hosts, tmp_path: Path, answer: str, reason: str) -> None:
    host = hosts.start(command=f'sh -c "{answer}"')
    timeout = ["--timeout", "3"] if answer.startswith("sleep") else []
    document = collect(hosts, tmp_path / "out", [host.name], [host], *timeout)
    assert reasons(document)[host.name].startswith(reason)
    assert not list((tmp_path / "out").glob("*/*"))


def test_our_agent_is_never_lent_to_a_host(hosts: sshd.Hosts, tmp_path: Path) -> None:
    host = hosts.start(command=f'sh -c "cat >/dev/null; echo agent:$SSH_AUTH_SOCK >{tmp_path}/seen"')
    own = tmp_path / "home" / ".ssh"
    own.mkdir(parents=True)
    (own / "config").write_text("Host *\n  ForwardAgent yes\n")
    socket_path = str(tmp_path / "agent")
    with subprocess.Popen(["ssh-agent", "-D", "-a", socket_path], stdout=subprocess.DEVNULL) as agent:
        try:
            until(Path(socket_path).exists)
            environment = {**os.environ, "HOME": str(own.parent), "SSH_AUTH_SOCK": socket_path}
            collect(hosts, tmp_path / "out", [host.name], [host], environment=environment)
        finally:
            agent.terminate()
    assert (tmp_path / "seen").read_text() == "agent:\n"


def test_what_a_login_shell_prints_first_is_passed_over(hosts: sshd.Hosts, tmp_path: Path) -> None:
    host = hosts.start(command='echo "Welcome!"; eval "$SSH_ORIGINAL_COMMAND"')
    document = collect(hosts, tmp_path / "out", [host.name], [host])
    assert document["collected"] == [host.name]
    assert probe([str(capture_of(tmp_path / "out", host.name))]).machine.memory_bytes


def test_a_run_that_was_killed_goes_on_and_leaves_nothing_half_written(hosts: sshd.Hosts, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    asked = tmp_path / "asked"
    quick = [hosts.start(command=f'echo quick >>{asked}; eval "$SSH_ORIGINAL_COMMAND"') for _ in range(2)]
    # Half of an answer comes, the rest waits for the gate.
    tail = f"while ! test -e {gate}; do sleep 0.1; done; tail -c +16001 {tmp_path}/answer"
    slow = hosts.start(
        command=f"cat >/dev/null; echo gpucheck-fleet-capture:; head -c 16000 {tmp_path}/answer; {tail}",
    )
    folder, names = tmp_path / "out", [*(host.name for host in quick), slow.name]
    capture = Path(__file__).parent.parent / "machines" / "r730-two-p40" / "capture.json"
    (tmp_path / "answer").write_bytes(capture.read_bytes())

    half = folder / ".part" / store.folder_of(slow.name)
    with subprocess.Popen(command(hosts, folder, names, [*quick, slow]), stdout=subprocess.DEVNULL) as process:
        try:
            until(lambda: half.exists() and half.stat().st_size > 0 and len(list(folder.glob("127*/*"))) == 2)
        finally:
            process.kill()
    assert half.stat().st_size < capture.stat().st_size
    before = {path: path.stat().st_mtime_ns for path in folder.glob("127*/*")}

    broken_off = report(str(folder))
    assert {row.host for row in broken_off.rows} == {host.name for host in quick}
    assert [(one.host, "broken off" in one.reason) for one in broken_off.head.unseen] == [(slow.name, True)]
    assert broken_off.head.exit_code == 3

    gate.touch()
    document = collect(hosts, folder, names, [*quick, slow])
    assert sorted(document["collected"]) == sorted(names)
    assert document["continued"] == 2
    assert document["exit_code"] == 0
    assert asked.read_text().count("quick") == 2  # those that were done are not asked again
    after = {path: path.stat().st_mtime_ns for path in folder.glob("127*/*")}
    assert len(after) == 3
    assert before.items() <= after.items()
    assert capture_of(folder, slow.name).read_bytes() == capture.read_bytes()
    assert not (folder / ".part").exists()
    assert report(str(folder)).head.exit_code == 0

    again = collect(hosts, folder, names, [*quick, slow])  # that run has ended: a new one begins
    assert again["continued"] == 0
    assert len(list(folder.glob("127*/*"))) == 6


def test_one_collect_at_a_time(hosts: sshd.Hosts, tmp_path: Path) -> None:
    host = hosts.start(command="sleep 60")
    folder = tmp_path / "out"
    with subprocess.Popen(command(hosts, folder, [host.name], [host]), stdout=subprocess.DEVNULL) as first:
        try:
            until((folder / "fleet.json").exists)
            again = command(hosts, folder, [host.name], [host])
            second = subprocess.run(again, capture_output=True, text=True, timeout=60, check=False)
        finally:
            first.kill()
    assert second.returncode == 2
    assert "another collect" in json.loads(second.stdout)["error"]["message"]
