"""The door to a BMC: what its Redfish service answers, as files of the machine that it belongs to.

:class:`BmcHost` stands before a :class:`~gpucheck.host.Host` and answers ``/redfish/…/index.json``
itself, with a GET of the path without the file's name: the layout of a saved Redfish tree, so that a live
BMC, such a folder and a capture are read by the same code. Nothing but GET is ever sent, with HTTP Basic
authentication, which leaves no session behind.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import ssl
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from gpucheck.errors import InputError, UsageError
from gpucheck.host import READ_LIMIT, Completed, Host, NvmlAnswers, Python
from gpucheck.readers.bmc import FILE, PREFIX, ROOT
from gpucheck.text import say

if TYPE_CHECKING:
    import httpx

SECONDS = 60.0
"""How long all of it may take; an old BMC needs a second for each resource."""
USER, PASSWORD = "GPUCHECK_BMC_USER", "GPUCHECK_BMC_PASSWORD"

_ONE_LIMIT = 4 << 20
_ALL_LIMIT = 64 << 20
"""Most bytes of one resource, and of all of them."""
_REDIRECTS = 3
_AUTH_LIMIT = 4096
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


@dataclass(frozen=True, slots=True)
class BmcAccess:
    """Where a BMC is and how it lets us in. Made by :func:`access`, which checks it."""

    url: str
    """``https://host`` or ``https://host:port``."""
    user: str
    password: str = field(repr=False)
    ca_file: str | None = None
    insecure: bool = False
    timeout: float = SECONDS


# --- what was asked for -------------------------------------------------------------------------


def access(
    url: str,
    auth_file: str | None = None,
    *,
    ca_file: str | None = None,
    insecure: bool = False,
    timeout: float = SECONDS,
    environment: Mapping[str, str] | None = None,
) -> BmcAccess:
    """Check what the command line says of a BMC, and find user and password.

    Args:
        url: ``https://`` and the BMC's name or address, and a port if it is not 443.
        auth_file: File with user and password on two lines, or as ``user:password``; by default the
            environment has them, in ``GPUCHECK_BMC_USER`` and ``GPUCHECK_BMC_PASSWORD``.
        ca_file: PEM file with the certificates to trust in place of the system's.
        insecure: Trust any certificate.
        timeout: Seconds for all that is asked of the BMC.
        environment: In place of the process's own.

    Raises:
        UsageError: The address or the choice is wrong, or nothing gives user and password.
        InputError: The file cannot be read, everybody may read it, or it holds something else.
    """
    if ca_file is not None and insecure:
        raise UsageError("--bmc-ca and --bmc-insecure exclude each other", input="--bmc-insecure")
    base = _base(url)
    user, password = _from_file(auth_file) if auth_file is not None else _from_environment(environment or os.environ)
    return BmcAccess(base, user, password, ca_file, insecure, timeout)


def _base(url: str) -> str:
    hint = "for example https://192.0.2.7"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UsageError("not an address", input="--bmc", hint=hint) from None
    if "@" in unquote(unquote(url)):  # what stands before it may be a password: the address is not repeated
        hint = f"write them into a file for --bmc-auth, or set {USER} and {PASSWORD}"
        raise UsageError("it must not hold a user or password", input="--bmc", hint=hint)
    if parts.scheme != "https" or not host or not url.isascii() or any(char.isspace() for char in url):
        raise UsageError("not an address that begins with https://", input=url, hint=hint)
    if parts.path.rstrip("/") not in ("", ROOT) or parts.query or parts.fragment:
        raise UsageError("it goes on behind the host", input="--bmc", hint=hint)  # so may what stands there
    name = f"[{host}]" if ":" in host else host
    return f"https://{name}:{port}" if port is not None else f"https://{name}"


def _from_environment(environment: Mapping[str, str]) -> tuple[str, str]:
    user, password = environment.get(USER), environment.get(PASSWORD)
    if not user or password is None:
        hint = f"give --bmc-auth FILE, or set {USER} and {PASSWORD}"
        raise UsageError("no user and password for the BMC", input="--bmc", hint=hint)
    return user, password


def _from_file(path: str) -> tuple[str, str]:
    """User and password. The file is opened once, so that it is the one that was looked at."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAIT)) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise InputError("not a regular file", input=path, hint="write user and password into a file")
            if os.name == "posix" and mode & stat.S_IRWXO:
                raise InputError("everybody on this machine may read it", input=path, hint=f"chmod 600 {path}")
            data = file.read(_AUTH_LIMIT + 1)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(f"cannot be read: {reason}", input=path, hint="check the path and the rights") from None
    hint = "two lines, user and password; or one line, user:password"
    try:
        lines = data.decode("utf-8-sig").rstrip("\r\n").splitlines()
    except UnicodeDecodeError:
        lines = []
    if len(lines) == 1:
        lines = lines[0].split(":", 1)
    if len(data) > _AUTH_LIMIT or len(lines) != 2 or not all(lines):
        raise InputError("it does not hold a user and a password", input=path, hint=hint)
    return lines[0], lines[1]


# --- asking -------------------------------------------------------------------------------------


class _Failure(Exception):
    """Why a resource was not got: the error that its reader sees, and words for a person."""

    def __init__(self, code: int, words: str, hint: str | None = None) -> None:
        super().__init__(words)
        self.code = code
        self.words = words
        self.hint = hint


class BmcHost:
    """A machine together with its BMC. Use it in a ``with`` statement: entering it lets the BMC answer.

    Args:
        host: The machine; it answers whatever is not Redfish's.
        access: Its BMC.

    Raises (from ``with``):
        UsageError: The HTTP library is not installed.
        InputError: The BMC does not answer, shows a certificate that is not trusted, refuses user or
            password, or speaks no Redfish.
    """

    def __init__(self, host: Host, access: BmcAccess) -> None:
        self.host = host
        self.name = host.name
        self.live = host.live
        self.redacted = host.redacted
        self._access = access
        self._known: dict[str, bytes] = {}
        self._left = _ALL_LIMIT
        self._end = 0.0
        self._client: httpx.Client | None = None

    def __enter__(self) -> BmcHost:
        try:
            import httpx
        except ImportError:
            hint = "pip install 'gpucheck-server[bmc]'"
            raise UsageError("httpx, which asks the BMC, is not installed", input="--bmc", hint=hint) from None
        self._client = httpx.Client(
            auth=(self._access.user, self._access.password),
            verify=self._trust(),
            timeout=self._access.timeout,
            trust_env=False,  # neither a proxy nor ~/.netrc has a part in this
            headers={"Accept": "application/json", "OData-Version": "4.0"},
        )
        self._end = time.monotonic() + self._access.timeout
        try:
            systems = _object(self._get(ROOT)).get("Systems")
            path = systems.get("@odata.id") if isinstance(systems, dict) else None
            if not isinstance(path, str) or not path.startswith(PREFIX):
                raise _Failure(errno.EPROTO, say("its answer is not that of a Redfish service"))
            self._get(path.rstrip("/"))  # the root is open to everybody; this asks for the password
        except _Failure as failure:
            self._client.close()
            raise InputError(failure.words, input=self._access.url, hint=failure.hint) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.close()

    def _trust(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._access.ca_file)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            path, hint = self._access.ca_file, "give certificates in PEM form"
            raise InputError(f"no certificates in it can be read: {error}", input=path, hint=hint) from None
        if self._access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _get(self, path: str) -> bytes:
        """Body of a resource, from memory the second time.

        A thread asks, since neither a name server that is silent nor a BMC that sends a byte now and then
        heeds the time that is set for one step.
        """
        if path in self._known:
            return self._known[path]
        answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()
        threading.Thread(target=self._ask, args=(path, answers.put), daemon=True).start()
        try:
            answer = answers.get(timeout=max(self._end - time.monotonic(), 0.001))
        except queue.Empty:
            raise self._too_slow() from None
        if isinstance(answer, Exception):
            raise answer
        self._known[path] = answer
        return answer

    def _too_slow(self) -> _Failure:
        words = say("it did not answer within {seconds} s", seconds=f"{self._access.timeout:g}")
        return _Failure(errno.ETIMEDOUT, words, "check the address, or give more time with --bmc-timeout")

    def _ask(self, path: str, put: Callable[[bytes | Exception], None]) -> None:
        import httpx

        try:
            put(self._fetched(path))
        except httpx.TimeoutException:
            put(self._too_slow())
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            put(_unreachable(error))
        except Exception as error:
            put(error)

    def _fetched(self, path: str) -> bytes:
        import httpx

        assert self._client is not None
        url = home = httpx.URL(self._access.url + (f"{path}/" if path == ROOT else path))
        for _ in range(_REDIRECTS + 1):
            with self._client.stream("GET", url) as response:
                if not response.has_redirect_location:
                    _check(response.status_code, path)
                    return self._body(response)
                url = response.url.join(response.headers["location"])
            if (url.scheme, url.host, url.port) != (home.scheme, home.host, home.port):
                raise _Failure(errno.EPROTO, say("it sends us on to another host, {host}", host=url.host))
        raise _Failure(errno.ELOOP, say("it sends us from one address to the next without end"))

    def _body(self, response: httpx.Response) -> bytes:
        pieces: list[bytes] = []
        limit = min(_ONE_LIMIT, self._left)
        for piece in response.iter_bytes():
            limit -= len(piece)
            self._left -= len(piece)
            if limit < 0:
                raise _Failure(errno.EFBIG, say("it sends more than any BMC has to say"))
            if time.monotonic() > self._end:
                raise self._too_slow()
            pieces.append(piece)
        return b"".join(pieces)

    # --- as a machine ---------------------------------------------------------------------------

    def read(self, path: str, limit: int = READ_LIMIT) -> bytes:
        if not path.startswith(PREFIX):
            return self.host.read(path, limit)
        try:
            return self._get(path.removesuffix(FILE))[:limit]
        except _Failure as failure:
            raise OSError(failure.code, os.strerror(failure.code), path) from None

    def text(self, path: str) -> str:
        return self.read(path).decode("utf-8", "replace")

    def names(self, path: str) -> list[str]:
        return self.host.names(path)

    def real(self, path: str) -> str:
        return path if f"{path}/".startswith(PREFIX) else self.host.real(path)

    def exists(self, path: str) -> bool:
        return f"{path}/".startswith(PREFIX) or self.host.exists(path)

    def run(self, argv: Sequence[str], timeout: float) -> Completed:
        return self.host.run(argv, timeout)

    def kernel_messages(self) -> bytes:
        return self.host.kernel_messages()

    def ask_nvml(self, timeout: float) -> Callable[[], NvmlAnswers]:
        return self.host.ask_nvml(timeout)

    def environment(self) -> Mapping[str, str]:
        return self.host.environment()

    def python(self) -> Python:
        return self.host.python()

    @property
    def is_root(self) -> bool | None:
        return self.host.is_root


def _object(body: bytes) -> dict[str, object]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    return document if isinstance(document, dict) else {}


def _check(status: int, path: str) -> None:
    """Raise for an answer without the resource."""
    if status == 200:
        return
    if status == 401:
        raise _Failure(errno.EACCES, say("it refuses the user or the password"), "try them in its web page")
    if status == 403:
        words = say("the user may not read {path}", path=path)
        raise _Failure(errno.EACCES, words, "give the user the right to log in and read")
    words = say("it answers {path} with HTTP status {status}", path=path, status=status)
    raise _Failure(errno.ENOENT if status in (404, 410) else errno.EIO, words, "is it a BMC with Redfish?")


def _unreachable(error: Exception) -> _Failure:
    """Words for an error of the connection. A certificate's fault is deep in the chain of causes."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            words = say("its certificate is not trusted: {reason}", reason=cause.verify_message)
            hint = "give the certificate that signed it with --bmc-ca FILE; --bmc-insecure trusts any"
            return _Failure(errno.EPROTO, words, hint)
        cause = cause.__cause__ or cause.__context__
    words = say("no connection: {reason}", reason=str(error) or type(error).__name__)
    return _Failure(errno.EIO, words, "check the address and that the BMC is in reach of this machine")
