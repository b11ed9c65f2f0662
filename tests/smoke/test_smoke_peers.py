"""The parents of a training on several hosts, as threads of one process on loopback."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import ExitStack

import pytest

from gpucheck.smoke import peers as module
from gpucheck.smoke.cluster import Cluster
from gpucheck.smoke.cluster import Peer as Place
from gpucheck.smoke.peers import Peers, binding, is_local


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def places(count: int) -> tuple[Place, ...]:
    return tuple(Place(f"h{rank}", "127.0.0.1", port) for rank, port in enumerate(free_ports(count)))


def meet(*peers: Peers, seconds: float = 10.0) -> list[dict[int, str]]:
    """Let all meet at the same time."""
    found: dict[int, dict[int, str]] = {}

    def one(index: int) -> None:
        found[index] = peers[index].meet(time.monotonic() + seconds)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(peers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [found[index] for index in range(len(peers))]


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def three():
    hosts = places(3)
    with ExitStack() as stack:
        yield [
            stack.enter_context(Peers(Cluster("hosts", hosts, rank), {"number": rank})) for rank in range(len(hosts))
        ]


def test_all_meet_and_hear_each_other(three):
    assert meet(*three) == [{}, {}, {}]
    assert three[0].said("greeting") == {1: {"number": 1}, 2: {"number": 2}}
    three[2].tell(result=[1, 2])
    three[1].tell(result=[3])
    assert three[0].collect("result", time.monotonic() + 5) == {1: [3], 2: [1, 2]}


def test_nothing_listens_before_and_after(three):
    ports = [place.port for place in three[0].cluster.peers]
    assert not any(map(listening, ports))
    meet(*three)
    assert not any(map(listening, ports))
    with socket.socket() as server:  # as TensorFlow does, while the connections live
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", ports[0]))
        server.listen()


def test_who_does_not_come_is_named_with_the_reason(three):
    missing = meet(*three[:2], seconds=1.0)
    assert missing == [{2: "Connection refused"}] * 2


def test_an_address_that_is_none_is_named():
    hosts = (*places(1), Place("gone", "gone.invalid", 1))
    with Peers(Cluster("hosts", hosts, 0), {}) as alone:
        (reason,) = alone.meet(time.monotonic() + 0.5).values()
    assert reason.isprintable()
    assert reason


def test_one_direction_is_not_enough():
    """Worker 1 reaches worker 0, but listens elsewhere: a firewall looks the same."""
    hosts = places(3)
    with (
        Peers(Cluster("hosts", hosts[:2], 0), {}) as here,
        socket.create_server(("127.0.0.1", hosts[2].port)),
    ):
        deadline = time.monotonic() + 1.5
        thread = threading.Thread(target=lambda: here.meet(deadline))
        thread.start()
        while not listening(hosts[0].port):
            time.sleep(0.01)
        with socket.create_connection(("127.0.0.1", hosts[0].port)) as there:
            hello = {"hello": here.cluster.key(), "rank": 1, "greeting": {}}
            there.sendall(json.dumps(hello).encode() + b"\n")
            assert json.loads(there.makefile().readline()) == {"welcome": 0}
            thread.join(10)
            assert here.missing() == {1: "Connection refused"}


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"hello": "other", "rank": 1}\n', b"\xff\n"])
def test_strangers_are_not_heard(noise):
    hosts = places(2)
    with Peers(Cluster("hosts", hosts, 0), {}) as here:
        thread = threading.Thread(target=lambda: here.meet(time.monotonic() + 0.5))
        thread.start()
        while not listening(hosts[0].port):
            time.sleep(0.01)
        with socket.create_connection(("127.0.0.1", hosts[0].port)) as stranger:
            stranger.sendall(noise)
            assert stranger.recv(100) == b""
        thread.join(10)
        assert here.said("greeting") == {}


def test_something_else_at_the_address_is_no_worker():
    hosts = places(2)
    with socket.create_server(("127.0.0.1", hosts[1].port)) as other, Peers(Cluster("hosts", hosts, 0), {}) as here:

        def answer() -> None:
            connection, _ = other.accept()
            with connection, connection.makefile("rb") as lines:
                lines.readline()
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n")

        threading.Thread(target=answer, daemon=True).start()
        here.meet(time.monotonic() + 0.3)
        assert "something else answers" in here.missing()[1]


def test_a_port_that_is_taken_is_an_error():
    hosts = places(2)
    with (
        socket.create_server(("127.0.0.1", hosts[0].port)),
        Peers(Cluster("hosts", hosts, 0), {}) as here,
        pytest.raises(OSError, match="in use"),
    ):
        here.meet(time.monotonic() + 1)


def test_goodbye_is_no_loss_and_leaving_without_it_is():
    lost: list[int] = []
    hosts = places(3)
    with Peers(Cluster("hosts", hosts, 0), {}, on_end=lost.append) as here:
        polite = Peers(Cluster("hosts", hosts, 1), {})
        rude = Peers(Cluster("hosts", hosts, 2), {})
        assert meet(here, polite, rude) == [{}, {}, {}]
        polite.__exit__(None, None, None)
        rude.__exit__(KeyError, KeyError(), None)
        here.trouble(time.monotonic() + 5)
        here.collect("never said", time.monotonic() + 5)
        assert set(here.gone()) == {2}
    assert lost == [2]


def test_who_falls_silent_is_lost(monkeypatch):
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.1)
    monkeypatch.setattr(module, "SILENT_SECONDS", 0.6)
    lost: list[int] = []
    hosts = places(2)
    with (
        Peers(Cluster("hosts", hosts, 0), {}, on_end=lost.append) as here,
        Peers(Cluster("hosts", hosts, 1), {}) as there,
    ):
        assert meet(here, there) == [{}, {}]
        time.sleep(1.0)
        assert lost == []  # signs of life are enough
        there.at = ("train", 4)
        time.sleep(0.3)
        monkeypatch.setattr(there, "tell", lambda **message: None)
        here.trouble(time.monotonic() + 5)
        assert lost == [1]
        assert here.gone()[1].at == ("train", 4)


def test_where_to_listen():
    assert binding("127.0.0.1", 1) == "127.0.0.1"
    assert binding("localhost", 1) in ("0.0.0.0", "::")  # a name for loopback is not where others come
    assert binding("192.0.2.1", 1) == "0.0.0.0"  # a service's address, which no machine has
    assert binding("gone.invalid", 1) == "0.0.0.0"


def test_which_addresses_are_local():
    assert is_local("127.0.0.1")
    assert not is_local("192.0.2.1")
    assert not is_local("gone.invalid")
