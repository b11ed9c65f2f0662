"""Hosts by SSH: keys and agents only, host keys as ``known_hosts`` has them, nothing installed on the other side."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.errors import InputError, UsageError
from gpucheck.fleet.remote import LAST_WORDS, SCRIPT, Answer, Failed, command
from gpucheck.text import clean, say, shorten

if TYPE_CHECKING:
    import asyncssh

_HOST = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.$-]*)@)?"
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?))"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Target:
    """A host as the list names it."""

    host: str
    port: int | None = None
    user: str | None = None

    @property
    def label(self) -> str:
        """How it is called in the folder and the report: without the user, who does not tell hosts apart."""
        if self.port is None:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Access:
    """How hosts are reached."""

    known_hosts: asyncssh.SSHKnownHosts
    files: tuple[str, ...]
    """Where those keys stand, for messages."""
    identity: str | None
    sudo: bool


def read_hosts(path: str) -> tuple[Target, ...]:
    """The hosts of a list: one a line, ``host``, ``user@host``, ``host:port``, ``[v6]:port``; ``#`` begins a comment.

    Raises:
        InputError: it cannot be read, a line is no host, or no host is in it.
    """
    try:
        text = Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(say("cannot be read: {reason}", reason=reason), input=path, hint="one host a line") from None
    targets: dict[str, Target] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        match = _HOST.fullmatch(words)
        port = int(match["port"]) if match is not None and match["port"] else None
        if match is None or (port is not None and not 0 < port < 65536):
            fault = say("line {number} is no host: {line}", number=number, line=repr(clean(words)[:60]))
            raise InputError(fault, input=path, hint="host, user@host, host:port or [IPv6]:port, one a line")
        target = Target(match["v6"] or match["host"], port, match["user"])
        if targets.setdefault(target.label, target) != target:
            fault = say("line {number} names {host} again, with another user", number=number, host=target.label)
            raise InputError(fault, input=path, hint="name each host once")
    if not targets:
        raise InputError("no host is in it", input=path, hint="one host a line")
    return tuple(targets.values())


def access(known_hosts: str | None, identity: str | None, *, sudo: bool) -> Access:
    """Read what is known of host keys.

    Raises:
        UsageError: the library is not installed.
        InputError: a file that was named cannot be read.
    """
    try:
        import asyncssh
    except ImportError:
        hint = 'pip install "gpucheck-server[fleet]"'
        raise UsageError("it needs the package asyncssh", input="--ssh", hint=hint) from None
    own = [os.path.expanduser("~/.ssh/known_hosts"), "/etc/ssh/ssh_known_hosts"]
    files = [known_hosts] if known_hosts is not None else [path for path in own if os.path.isfile(path)]
    if identity is not None and not os.path.isfile(identity):
        raise InputError("no such file", input=identity, hint="name the private key")
    try:
        known = asyncssh.read_known_hosts(files)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(
            say("cannot be read: {reason}", reason=reason), input=", ".join(files), hint="a file as OpenSSH writes it"
        ) from None
    return Access(known, tuple(files or own[:1]), identity, sudo)


async def fetch(target: Target, access: Access, answer: Answer) -> None:
    """Have a host make a capture and hand on what it sends. Failed when it does not."""
    import asyncssh

    own_keys = () if access.identity is None else [access.identity]  # a tuple would be one key and its certificate
    try:
        async with asyncssh.connect(
            target.host,
            target.port or (),
            username=target.user or (),
            known_hosts=access.known_hosts,
            client_keys=own_keys,
            preferred_auth=("publickey",),
            password_auth=False,
            kbdint_auth=False,
            gss_host=None,
            agent_forwarding=False,  # whatever ~/.ssh/config says
            x11_forwarding=False,
            keepalive_interval=15,
        ) as connection:
            await _run(connection, command(sudo=access.sudo), answer)
    except asyncssh.HostKeyNotVerifiable:
        raise Failed(_stranger(target, access)) from None
    except asyncssh.PermissionDenied:
        raise Failed(say("it refuses our key: add one with --identity, or to the SSH agent")) from None
    except (asyncssh.Error, OSError, ValueError) as error:  # ValueError: a key of ours that cannot be used
        raise Failed(shorten(clean(_reason(error)), 200)) from None


async def _run(connection: asyncssh.SSHClientConnection, line: str, answer: Answer) -> None:
    errors = bytearray()

    async def listen(stream: asyncssh.SSHReader[bytes]) -> None:
        while data := await stream.read(_CHUNK):
            errors.extend(data)
            del errors[:-LAST_WORDS]

    async with connection.create_process(line, encoding=None) as process:
        listening = asyncio.create_task(listen(process.stderr))
        try:
            process.stdin.write(SCRIPT)
            process.stdin.write_eof()
            while data := await process.stdout.read(_CHUNK):
                answer.take(data)
            ended = await process.wait()
            await listening
        finally:
            listening.cancel()
            connection.abort()
    answer.end(ended.returncode, bytes(errors))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        # asyncio puts its own words, with the address, in place of the system's.
        system = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
        return say("cannot be reached: {reason}", reason=system or error)
    return say("SSH: {reason}", reason=getattr(error, "reason", "") or str(error) or type(error).__name__)


def _stranger(target: Target, access: Access) -> str:
    """Why a host's key is not trusted: another one is known, or none."""
    import asyncssh

    keys = asyncssh.match_known_hosts(access.known_hosts, target.host, "", target.port)[0]
    files = ", ".join(access.files)
    if keys:
        return say(
            "its host key is not the one in {files}: it was installed anew, or another machine answers. Nothing was "
            "sent. If the new key is right: ssh-keygen -R {host}, then log in once",
            files=files,
            host=_as_known(target),
        )
    return say(
        "its host key is not in {files}. Nothing was sent. Check the key and add it: log in once with ssh", files=files
    )


def _as_known(target: Target) -> str:
    return target.host if target.port in (None, 22) else f"'[{target.host}]:{target.port}'"
