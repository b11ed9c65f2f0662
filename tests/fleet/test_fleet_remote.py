"""What a host is told to run, and how lists of hosts are read; no host is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fleet import sshd
from gpucheck.capture import SCHEMA
from gpucheck.errors import InputError
from gpucheck.fleet import remote, ssh, store


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_a_host_that_nobody_listens_to_any_more_keeps_nothing(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to(program)
    own = tmp_path / "bin" / "gpucheck"
    own.write_text(f"#!/bin/sh\necho '{SCHEMA}'\n")
    own.chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'bin'}:{sshd.PATH}", "TMPDIR": str(tmp_path / "tmp")}
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            remote.words(), input=remote.SCRIPT, stdout=writer, env=environment, timeout=60, check=False
        )
    finally:
        os.close(writer)
    assert done.returncode != 0
    assert list((tmp_path / "tmp").iterdir()) == []


def test_hosts_in_every_form(tmp_path: Path) -> None:
    place = tmp_path / "hosts.txt"
    place.write_bytes(b"\xef\xbb\xbfgpu1 # first\r\n\r\nme@gpu2:2222\r\n[2001:db8::1]\r\n[2001:db8::1]:22\r\ngpu1\r\n")
    targets = ssh.read_hosts(str(place))
    assert [one.label for one in targets] == ["gpu1", "gpu2:2222", "2001:db8::1", "[2001:db8::1]:22"]
    assert [one.user for one in targets] == [None, "me", None, None]
    assert targets[3] == ssh.Target("2001:db8::1", 22)
    assert store.folder_of(targets[3].label) == "[2001+db8++1]+22"


@pytest.mark.parametrize("line", ["gpu1 gpu2", "gpu1:0", "gpu1:65536", "-oProxyCommand=x", "../x", "::1", "a;b", ".x"])
def test_what_is_no_host(line: str, tmp_path: Path) -> None:
    place = tmp_path / "hosts.txt"
    place.write_text(f"gpu1\n{line}\n")
    with pytest.raises(InputError, match="line 2 is no host"):
        ssh.read_hosts(str(place))


def test_a_host_named_twice_with_two_users(tmp_path: Path) -> None:
    place = tmp_path / "hosts.txt"
    place.write_text("a@gpu1\nb@gpu1\n")
    with pytest.raises(InputError, match="line 2 names gpu1 again"):
        ssh.read_hosts(str(place))
