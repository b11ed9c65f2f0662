"""Hosts on loopback: each is an sshd of its own, on a port of its own, with its own host key."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEEDED = ("sshd", "ssh-keygen")
READY_SECONDS = 10.0

_CONFIG = """\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
SetEnv PATH={path}
{more}
"""


def unavailable() -> str | None:
    """Why no sshd can be started here; None when it can."""
    missing = [name for name in NEEDED if shutil.which(name, path=PATH) is None]
    return f"{', '.join(missing)} not installed (openssh-server, openssh-client)" if missing else None


@dataclass
class Sshd:
    """One host. ``name`` is how a list of hosts and the report call it."""

    port: int
    process: subprocess.Popen[bytes]
    key: str
    """Public host key."""

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def known(self) -> str:
        """Its line in known_hosts."""
        return f"[127.0.0.1]:{self.port} {self.key}\n"


class Hosts:
    """Use as a context: what was started is ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.identity = folder / "id"
        self._started: list[Sshd] = []
        keygen(self.identity)

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._started:
            host.process.terminate()
        for host in self._started:
            host.process.wait(5)

    def start(self, *, path: str = PATH, command: str | None = None, accept: bool = True) -> Sshd:
        """Start one.

        Args:
            path: PATH of whoever logs in.
            command: Is run in place of what the client asks for, which is in SSH_ORIGINAL_COMMAND.
            accept: Whether it takes our key.
        """
        port = free_port()
        folder = self.folder / str(port)
        folder.mkdir()
        key = keygen(folder / "host_key")
        own = self.identity.with_suffix(".pub").read_text() if accept else ""
        (folder / "authorized_keys").write_text(own)
        more = f"ForceCommand {command}" if command else ""
        (folder / "config").write_text(_CONFIG.format(port=port, folder=folder, path=path, more=more))
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where sshd locks itself up
        sshd = shutil.which("sshd", path=PATH)
        assert sshd is not None
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "config")], stdout=log, stderr=log)
        host = Sshd(port, process, key)
        self._started.append(host)
        deadline = time.monotonic() + READY_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"sshd did not come up: {(folder / 'log').read_text()}")
            time.sleep(0.05)
        return host

    def listed(self, *names: str) -> Path:
        """A list of hosts for ``--ssh``."""
        place = self.folder / "hosts.txt"
        user = getpass.getuser()
        place.write_text("# ours\n\n" + "".join(f"{user}@{name}  # one of them\n" for name in names))
        return place

    def known(self, *hosts: Sshd) -> Path:
        place = self.folder / "known_hosts"
        place.write_text("".join(host.known for host in hosts))
        return place


def keygen(place: Path) -> str:
    """A new key pair; the public half without its comment."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place)], check=True)
    return " ".join(place.with_suffix(".pub").read_text().split()[:2])


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def tools(folder: Path, *names: str) -> str:
    """A PATH with these programs and no others."""
    folder.mkdir()
    for name in names:
        program = shutil.which(name, path=PATH)
        if program is not None:
            (folder / name).symlink_to(program)
    return str(folder)
