"""The parents of a training on several hosts: they find each other, and notice who is gone.

TensorFlow waits for a worker that never comes for many minutes, whatever limits it is given, and
swallows SIGTERM meanwhile. So the parents meet first, each at the very address and port that its
TensorFlow will use, and go on talking over these connections: a sign of life a second, how the
training ended, and the verdict. Each sends on the connections that it opened and hears on those that
it accepted, so that every pair is tried in both directions.

Nothing listens before :meth:`Peers.meet`. The listener is closed before any TensorFlow starts. What
is said is one JSON object a line, unencrypted: it belongs on a network that is trusted as much as
TensorFlow's own traffic.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from gpucheck.smoke.cluster import Cluster
from gpucheck.text import clean, say

BEAT_SECONDS = 1.0
SILENT_SECONDS = 15.0
"""A host that lost power or its cable ends no connection; it only falls silent."""
TRY_SECONDS = 2.0
RETRY_SECONDS = 0.2
LONGEST_LINE = 4 << 20


@dataclass(slots=True)
class Peer:
    """What is known of another parent.

    Attributes:
        reason: Why it could not be reached, while it could not.
        heard: ``time.monotonic()`` of its last word.
        at: What its training did last: phase and step.
        gone: It left without a word.
        left: It said goodbye.
        said: Its messages by their kind; the first of a kind stays.
    """

    reason: str = ""
    out: socket.socket | None = None
    heard: float | None = None
    at: tuple[str, int | None] = ("start", None)
    gone: bool = False
    left: bool = False
    said: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Incoming:
    connection: socket.socket
    rank: int | None = None
    pending: bytes = b""


class Peers:
    """All other parents of a cluster.

    Use as a context: leaving it says goodbye, unless by an exception, and closes everything.

    Args:
        cluster: Who belongs to it.
        greeting: What every other must know of this one before anything starts.
        on_end: Called once for each rank that is gone, or that said that its training did not come to
            its end; from another thread.
    """

    def __init__(
        self, cluster: Cluster, greeting: Mapping[str, object], on_end: Callable[[int], None] | None = None
    ) -> None:
        self.cluster = cluster
        self.greeting = dict(greeting)
        self.on_end = on_end or (lambda rank: None)
        self.peers = {rank: Peer() for rank in cluster.others}
        self.at: tuple[str, int | None] = ("start", None)
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._closing = threading.Event()
        self._met = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Peers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:  # whoever is interrupted leaves without a word, and is missed
            self.tell(bye=True)
        self._closing.set()
        for thread in self._threads:
            thread.join(TRY_SECONDS + 1)
        for peer in self.peers.values():
            if peer.out is not None:
                peer.out.close()

    # --- meeting ------------------------------------------------------------------------------

    def meet(self, deadline: float) -> dict[int, str]:
        """Wait until every pair has found each other, in both directions.

        Args:
            deadline: ``time.monotonic()`` at which to give up.

        Returns:
            Who is missing, and why; empty when the training may start.

        Raises:
            OSError: The own port is taken, or the own address is not this machine's.
        """
        me = self.cluster.me
        listener = socket.socket(
            socket.AF_INET6 if ":" in binding(me.address, me.port) else socket.AF_INET, socket.SOCK_STREAM
        )
        try:
            # TensorFlow binds the same port while these connections live: all must allow it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((binding(me.address, me.port), me.port))
            listener.listen(len(self.cluster.peers) + 16)
        except OSError:
            listener.close()
            raise
        self._start(self._hear, listener)
        for rank in self.peers:
            self._start(self._reach, rank, deadline)
        self._until(deadline, lambda peer: peer.out is not None and peer.heard is not None)
        self._met.set()
        self._until_closed(listener)
        missing = self.missing()
        if not missing:
            self.tell(ready=True)
            self._until(deadline, lambda peer: "ready" in peer.said)
            missing = self.missing(ready=True)
        return missing

    def missing(self, *, ready: bool = False) -> dict[int, str]:
        """Who is not there, with the reason."""
        found = {}
        left = {}
        with self._changed:
            for rank, peer in self.peers.items():
                if peer.gone or peer.left:
                    left[rank] = say("it ended before the training began")
                elif peer.out is None:
                    found[rank] = peer.reason or say("no answer")
                elif peer.heard is None:
                    found[rank] = say("it can be reached, but did not reach this host")
                elif ready and "ready" not in peer.said:
                    found[rank] = say("it came, but still waits for others")
        # Who gave up because of another is not to blame.
        return found or left

    def _until_closed(self, listener: socket.socket) -> None:
        """The thread that hears closes the listener; nobody may start a TensorFlow before that."""
        while listener.fileno() != -1 and not self._closing.is_set():
            time.sleep(0.01)

    def _reach(self, rank: int, deadline: float) -> None:
        """Try to reach a peer until the deadline."""
        peer, target = self.peers[rank], self.cluster.peers[rank]
        while time.monotonic() < deadline and not self._closing.is_set():
            connection = None
            try:
                connection = socket.create_connection((target.address, target.port), TRY_SECONDS)
                _send(connection, hello=self.cluster.key(), rank=self.cluster.rank, greeting=self.greeting)
                answer = json.loads(connection.makefile("rb").readline(LONGEST_LINE) or b"null")
                if not isinstance(answer, dict) or answer.get("welcome") != rank:
                    raise ValueError
            except (OSError, ValueError) as fault:
                if connection is not None:
                    connection.close()
                with self._changed:
                    peer.reason = (
                        clean(fault.strerror or str(fault) or type(fault).__name__)
                        if isinstance(fault, OSError)
                        else say("something else answers there, or a worker of another cluster")
                    )
                self._closing.wait(RETRY_SECONDS)
                continue
            with self._changed:
                peer.out = connection
                self._changed.notify_all()
            return

    # --- hearing ------------------------------------------------------------------------------

    def _hear(self, listener: socket.socket) -> None:
        """Accept, read, send signs of life, notice silence: until the end."""
        with listener, selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ, None)
            open_here: list[_Incoming] = []
            beat = time.monotonic()
            while not self._closing.is_set():
                for key, _ in selector.select(0.05 if not self._met.is_set() else BEAT_SECONDS / 4):
                    incoming = key.data
                    if incoming is None:
                        with contextlib.suppress(OSError):
                            connection, _ = listener.accept()
                            connection.settimeout(TRY_SECONDS)
                            open_here.append(_Incoming(connection))
                            selector.register(connection, selectors.EVENT_READ, open_here[-1])
                    elif not self._read(incoming):
                        selector.unregister(incoming.connection)
                        incoming.connection.close()
                        open_here.remove(incoming)
                if self._met.is_set() and listener.fileno() != -1:
                    selector.unregister(listener)
                    listener.close()
                if time.monotonic() >= beat:
                    beat = time.monotonic() + BEAT_SECONDS
                    self.tell(beat=self.at)
                    self._notice_silence()
            for incoming in open_here:
                incoming.connection.close()

    def _read(self, incoming: _Incoming) -> bool:
        """Take what a connection holds; False when it is over."""
        try:
            data = incoming.connection.recv(1 << 16)
        except OSError:
            data = b""
        incoming.pending += data
        *lines, incoming.pending = incoming.pending.split(b"\n")
        if not all(self._take(incoming, line) for line in lines) or len(incoming.pending) > LONGEST_LINE:
            return False
        if not data and incoming.rank is not None:
            self._end(incoming.rank)
        return bool(data)

    def _take(self, incoming: _Incoming, line: bytes) -> bool:
        """One message; False when whoever sends it is no peer."""
        try:
            message = json.loads(line)
        except ValueError:
            return False
        if not isinstance(message, dict):
            return False
        if incoming.rank is None:
            rank = message.get("rank")
            if message.get("hello") != self.cluster.key() or rank not in self.peers:
                return False
            incoming.rank = rank
            with contextlib.suppress(OSError):
                _send(incoming.connection, welcome=self.cluster.rank)
            message = {"greeting": message.get("greeting")}
        peer = self.peers[incoming.rank]
        with self._changed:
            peer.heard = time.monotonic()
            for kind, value in message.items():
                if kind == "beat" and isinstance(value, list) and len(value) == 2:
                    peer.at = (str(value[0]), value[1])
                elif kind == "bye":
                    peer.left = True
                else:
                    peer.said.setdefault(kind, value)
            self._changed.notify_all()
        if message.get("failed"):
            self.on_end(incoming.rank)
        return True

    def _end(self, rank: int) -> None:
        peer = self.peers[rank]
        with self._changed:
            unexpected = not peer.left and not peer.gone
            peer.gone = peer.gone or not peer.left
            self._changed.notify_all()
        if unexpected:
            self.on_end(rank)

    def _notice_silence(self) -> None:
        for rank, peer in self.peers.items():
            if peer.heard is not None and not peer.left and time.monotonic() - peer.heard > SILENT_SECONDS:
                self._end(rank)

    # --- talking ------------------------------------------------------------------------------

    def tell(self, **message: object) -> None:
        """Say something to everybody who can be reached. Who does not listen is noticed elsewhere."""
        with self._sending:
            for peer in self.peers.values():
                if peer.out is not None:
                    with contextlib.suppress(OSError):
                        _send(peer.out, **message)

    def collect(self, kind: str, deadline: float) -> dict[int, Any]:
        """What each said of a kind; left out is whoever never came, is gone, or said nothing by the
        deadline. Who failed has no ``result``."""
        self._until(
            deadline,
            lambda peer: peer.heard is None or kind in peer.said or (kind == "result" and "failed" in peer.said),
        )
        with self._changed:
            return {rank: peer.said[kind] for rank, peer in self.peers.items() if kind in peer.said}

    def trouble(self, deadline: float) -> None:
        """Wait until somebody is gone, or failed by itself: what ended the training here may be heard of
        a moment later."""
        with self._changed:
            self._changed.wait_for(
                lambda: any(peer.gone or peer.said.get("failed", {}).get("by_itself") for peer in self.peers.values()),
                max(0.0, deadline - time.monotonic()),
            )

    def _until(self, deadline: float, there: Callable[[Peer], bool]) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: all(there(peer) or peer.gone or peer.left for peer in self.peers.values()),
                max(0.0, deadline - time.monotonic()),
            )

    def gone(self) -> dict[int, Peer]:
        """Who left without a word."""
        with self._changed:
            return {rank: peer for rank, peer in self.peers.items() if peer.gone}

    def said(self, kind: str) -> dict[int, Any]:
        """What was said of a kind until now."""
        with self._changed:
            return {rank: peer.said[kind] for rank, peer in self.peers.items() if kind in peer.said}

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()


def _send(connection: socket.socket, **message: object) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def is_local(address: str) -> bool:
    """Whether an address, or what a name stands for, is one of this machine. Nothing listens."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, _, _, place in found:
        with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind((place[0], 0))
            return True
    return False


def binding(address: str, port: int) -> str:
    """The IP address to listen on: the own one where it is this machine's, else every one.

    Debian has a host's own name stand for 127.0.1.1, at which nobody else reaches it, and the name of
    a Kubernetes service stands for an address that no machine has: both mean every address. A loopback
    address that is written as a number is meant.
    """
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError:
        return "0.0.0.0"
    named = str(found)
    if not is_local(named) or (ipaddress.ip_address(named.partition("%")[0]).is_loopback and named != address):
        return "::" if ":" in named else "0.0.0.0"
    return named
