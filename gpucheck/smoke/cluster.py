"""Which hosts train together, and which of them this process is. Pure.

Three forms: the variables of a Slurm step, the variable TF_CONFIG, a file of hosts. Each gives the
same :class:`Cluster`, from which the TF_CONFIG of the training is written anew: what TensorFlow is
told can then be shown, whatever the source.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpucheck.errors import InputError, UsageError
from gpucheck.text import clean, say

FIRST_PORT = 20000
"""Of the ports under Slurm that no option and no reservation names."""
PORT_SPAN = 12000
"""Ports from which the operating system picks at random begin at 32768 on Linux."""
PORTS_PER_JOB = 16
USUAL_PORT = 2222
"""Of a host whose entry names none: the port of TensorFlow's own examples."""
MOST_NODES = 4096

SLURM_SEEN = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_DISTRIBUTION",
    "SLURM_PROCID",
    "SLURM_NODEID",
    "SLURM_LOCALID",
    "SLURM_GTIDS",
    "SLURM_STEP_RESV_PORTS",
    "SLURM_GPUS_PER_TASK",
    "SLURM_STEP_GPUS",
    "CUDA_VISIBLE_DEVICES",
)
"""What decides, and what explains a wrong number of cards; the report shows those that are set."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One process that trains.

    Attributes:
        name: What people call its host; two processes of a host share it.
        address: Name or IP address at which the others reach it.
        port: TCP port, first of gpucheck and then of TensorFlow.
    """

    name: str
    address: str
    port: int

    @property
    def target(self) -> str:
        """``address:port`` as TensorFlow writes it."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """All that train together, in the order of their ranks.

    Attributes:
        rank: Which of them this process is.
        seen: Variables that it was derived from.
    """

    source: Literal["slurm", "tf_config", "hosts"]
    peers: tuple[Peer, ...]
    rank: int
    seen: tuple[tuple[str, str], ...] = ()

    @property
    def me(self) -> Peer:
        return self.peers[self.rank]

    @property
    def others(self) -> tuple[int, ...]:
        """Every rank but this one."""
        return tuple(rank for rank in range(len(self.peers)) if rank != self.rank)

    def tf_config(self) -> str:
        """The value of TF_CONFIG for the training of this process."""
        workers = [peer.target for peer in self.peers]
        return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": self.rank}})

    def key(self) -> str:
        """The same for all that were given the same peers: who has another belongs elsewhere."""
        return hashlib.sha256(json.dumps([peer.target for peer in self.peers]).encode()).hexdigest()[:16]

    def called(self, rank: int) -> str:
        """A worker in the middle of a sentence: ``worker 1 (n2)``."""
        return say("worker {rank} ({name})", rank=rank, name=self.peers[rank].name)

    def named(self, rank: int) -> str:
        """A worker at the beginning of a sentence."""
        return say("Worker {rank} ({name})", rank=rank, name=self.peers[rank].name)


def _cluster(
    source: Literal["slurm", "tf_config", "hosts"],
    peers: Sequence[Peer],
    rank: int,
    seen: tuple[tuple[str, str], ...] = (),
) -> Cluster:
    """Check what every form must keep."""
    if len(peers) < 2:
        raise UsageError(
            say("There is one worker only, so nothing goes between hosts."),
            input="--cluster",
            hint=say("leave --cluster out, or start more workers (srun -N 2 --ntasks-per-node=1)"),
        )
    twice = [peer.target for index, peer in enumerate(peers) if peer.target in {p.target for p in peers[:index]}]
    if twice:
        raise UsageError(
            say("Two workers have the address {target}.", target=twice[0]),
            input="--cluster",
            hint=say("give each worker a port of its own"),
        )
    return Cluster(source, tuple(peers), rank, seen)


def _port(value: object, where: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535:
        raise UsageError(say("{value} is no TCP port.", value=repr(value)), input=where, hint=say("use 1 to 65535"))
    return value


# --- Slurm ----------------------------------------------------------------------------------------


def from_slurm(environ: Mapping[str, str], port: int | None = None) -> Cluster:
    """The tasks of this Slurm step.

    Only variables of the step count: a job may have more nodes and tasks than the step that runs,
    and one that waits for the rest of the job waits for ever.

    Args:
        environ: Environment of a task that srun started.
        port: Port of the first task of each node; the next task has the next one. By default one of
            those that Slurm reserved for the step, else one that follows from the job's number.

    Raises:
        UsageError: This is no task of a step, or its variables contradict each other.
    """
    if "SLURM_STEP_NODELIST" not in environ or "SLURM_PROCID" not in environ:
        raise UsageError(
            say("This process runs in a Slurm job, but not as a task of a step.")
            if "SLURM_JOB_ID" in environ
            else say("This process was not started by Slurm: SLURM_STEP_NODELIST is not set."),
            input="--cluster slurm",
            hint=say("start it with srun: srun -K -N 2 --ntasks-per-node=1 gpucheck smoke --cluster slurm"),
        )
    nodes = node_names(environ["SLURM_STEP_NODELIST"])
    counts = task_counts(_needed(environ, "SLURM_STEP_TASKS_PER_NODE"))
    rank = _number(environ, "SLURM_PROCID")
    if len(counts) != len(nodes) or not 0 <= rank < sum(counts):
        raise _contradiction(environ, "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID")
    placed = _placed(environ, counts, rank)
    first = _first_port(environ, port, max(counts))
    on_node = [0] * len(nodes)
    peers = []
    for node in placed:
        peers.append(Peer(nodes[node], nodes[node], _port(first + on_node[node], "--port")))
        on_node[node] += 1
    return _cluster("slurm", peers, rank, tuple((name, environ[name]) for name in SLURM_SEEN if name in environ))


def _placed(environ: Mapping[str, str], counts: Sequence[int], rank: int) -> list[int]:
    """The node of each rank. Slurm says which ranks are on this node; the two usual ways to deal
    tasks out are tried, first the one that was asked for."""
    block = [node for node, count in enumerate(counts) for _ in range(count)]
    cyclic = [node for turn in range(max(counts)) for node, count in enumerate(counts) if turn < count]
    ways = [cyclic, block] if environ.get("SLURM_DISTRIBUTION", "").startswith("cyclic") else [block, cyclic]
    node = _number(environ, "SLURM_NODEID")
    here = environ.get("SLURM_GTIDS", str(rank))
    for way in ways:
        own = [task for task, place in enumerate(way) if place == node]
        if (own == [int(task) for task in here.split(",") if task.isdigit()]) or (
            "SLURM_GTIDS" not in environ and rank in own
        ):
            return way
    raise UsageError(
        say("The tasks of the step are dealt out in a way that is not known (tasks on this node: {here}).", here=here),
        input="--cluster slurm",
        hint=say("start it with srun --distribution=block"),
    )


def _first_port(environ: Mapping[str, str], port: int | None, tasks: int) -> int:
    if port is not None:
        return port
    reserved = re.match(r"(\d+)-(\d+)", environ.get("SLURM_STEP_RESV_PORTS", ""))
    if reserved and int(reserved[2]) - int(reserved[1]) + 1 >= tasks:
        return int(reserved[1])
    # Two jobs that share a node should not meet on one port, and every task must find the same one.
    job, step = _number(environ, "SLURM_JOB_ID"), _number(environ, "SLURM_STEP_ID")
    return FIRST_PORT + (job * PORTS_PER_JOB + step * tasks) % (PORT_SPAN - tasks)


def _needed(environ: Mapping[str, str], name: str) -> str:
    if name not in environ:
        raise UsageError(say("The variable {name} is not set.", name=name), input="--cluster slurm")
    return environ[name]


def _number(environ: Mapping[str, str], name: str) -> int:
    text = _needed(environ, name)
    if not (text.isascii() and text.isdigit()):
        raise _contradiction(environ, name)
    return int(text)


def _contradiction(environ: Mapping[str, str], *names: str) -> UsageError:
    said = ", ".join(f"{name}={clean(environ.get(name, ''))}" for name in names)
    return UsageError(say("The variables of the step make no sense: {said}.", said=said), input="--cluster slurm")


def node_names(text: str) -> tuple[str, ...]:
    """Slurm's short form of a list of nodes: ``n[1-2,07-09]b,m3`` to the names.

    UsageError for what is no such list, or names more than :data:`MOST_NODES`.
    """
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        grown = [""]
        for piece in re.findall(r"\[[^\]]*\]|[^\[\]]+", part):
            endings = _range(piece[1:-1], text) if piece.startswith("[") else [piece]
            if len(grown) * len(endings) > MOST_NODES:
                raise _no_nodes(text)
            grown = [start + ending for start in grown for ending in endings]
        names += grown
    if not names or len(names) > MOST_NODES or text.count("[") != text.count("]"):
        raise _no_nodes(text)
    return tuple(names)


def _range(text: str, whole: str) -> list[str]:
    """``1-2,07-09`` to numbers that keep their leading zeros."""
    found: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part, re.ASCII)
        if match is None or int(match[2] or match[1]) - int(match[1]) >= MOST_NODES:
            raise _no_nodes(whole)
        found += [f"{n:0{len(match[1])}d}" for n in range(int(match[1]), int(match[2] or match[1]) + 1)]
    return found


def _no_nodes(text: str) -> UsageError:
    return UsageError(say("{text} is no list of nodes.", text=repr(clean(text))), input="SLURM_STEP_NODELIST")


def task_counts(text: str) -> tuple[int, ...]:
    """Slurm's short form of tasks per node: ``2(x3),1`` to ``(2, 2, 2, 1)``. UsageError otherwise."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,4})\))?", part, re.ASCII)
        if match is None or int(match[1]) < 1:
            raise UsageError(
                say("{text} says no number of tasks.", text=repr(clean(text))), input="SLURM_STEP_TASKS_PER_NODE"
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


# --- TF_CONFIG ------------------------------------------------------------------------------------


def from_tf_config(environ: Mapping[str, str]) -> Cluster:
    """The chief and the workers of the variable TF_CONFIG, chief first.

    Raises:
        UsageError: It is not set or not readable, or this process is neither chief nor worker.
    """
    where = "TF_CONFIG"
    if not environ.get(where):
        raise UsageError(
            say("The variable TF_CONFIG is not set."),
            input="--cluster tf_config",
            hint=say("Kubernetes operators for training set it in each pod"),
        )
    try:
        config = json.loads(environ[where])
        groups = config["cluster"]
        task = config["task"]
        kind, index = str(task["type"]), int(task["index"])
        targets = [(group, str(target)) for group in ("chief", "worker") for target in groups.get(group, ())]
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        raise UsageError(
            say("It does not hold a cluster and a task ({fault}).", fault=clean(f"{type(fault).__name__}: {fault}")),
            input=where,
            hint=say(
                'like {{"cluster": {{"worker": ["a:2222", "b:2222"]}}, "task": {{"type": "worker", "index": 0}}}}'
            ),
        ) from None
    if kind not in ("chief", "worker"):
        raise UsageError(
            say("This task is a {kind}; only chief and workers train.", kind=repr(clean(kind))),
            input=where,
            hint=say("run gpucheck smoke on those"),
        )
    own = [place for place, (group, _) in enumerate(targets) if group == kind]
    if not 0 <= index < len(own):
        raise UsageError(
            say("It names no {kind} with the index {index}.", kind=kind, index=index),
            input=where,
        )
    return _cluster("tf_config", [_target(target, where) for _, target in targets], own[index])


def _target(text: str, where: str) -> Peer:
    """``address:port``; an IPv6 address stands in brackets."""
    address, colon, port = text.rpartition(":")
    address = address.removeprefix("[").removesuffix("]")
    if not colon or not address:
        raise UsageError(say("{text} is no address with a port.", text=repr(clean(text))), input=where)
    return Peer(clean(address), clean(address), _port(port, where))


# --- a file of hosts ------------------------------------------------------------------------------


def from_hosts(text: str, file: str, rank: int | None, is_local: Callable[[str], bool]) -> Cluster:
    """The hosts of a TOML file: a table ``[[host]]`` each, with ``address`` and, where they differ from
    it and from 2222, ``name`` and ``port``. The first is rank 0.

    Args:
        text: The file.
        file: What it is called.
        rank: Which entry this process is; None for the one whose address is this machine's.
        is_local: Whether an address is one of this machine.

    Raises:
        InputError: The file is no such list.
        UsageError: No entry, or more than one, can be this process.
    """
    try:
        entries = tomllib.loads(text).get("host")
    except tomllib.TOMLDecodeError as fault:
        raise InputError(say("This is no TOML: {fault}.", fault=clean(str(fault))), input=file) from None
    if not isinstance(entries, list) or not entries:
        raise InputError(say("It names no host."), input=file, hint=say("a host is a table [[host]] with an address"))
    peers = [_host(entry, number, file) for number, entry in enumerate(entries, 1)]
    if rank is None:
        here = [place for place, peer in enumerate(peers) if is_local(peer.address)]
        if len(here) != 1:
            raise UsageError(
                say("No host of the file has an address of this machine.")
                if not here
                else say("{n} hosts of the file have an address of this machine.", n=len(here)),
                input=file,
                hint=say("say which is this one with --rank, from 0 to {last}", last=len(peers) - 1),
            )
        rank = here[0]
    elif not 0 <= rank < len(peers):
        raise UsageError(
            say("The file has no host {rank}.", rank=rank),
            input="--rank",
            hint=say("count from 0 to {last}", last=len(peers) - 1),
        )
    return _cluster("hosts", peers, rank)


def _host(entry: Any, number: int, file: str) -> Peer:
    where = f"{file}, host {number}"
    if not isinstance(entry, dict) or not isinstance(entry.get("address"), str) or not entry["address"].strip():
        raise InputError(say("It has no address."), input=where, hint=say('like address = "10.0.0.1"'))
    if unknown := sorted(set(entry) - {"name", "address", "port"}):
        raise InputError(
            say("It has an unknown key {key}.", key=repr(clean(unknown[0]))),
            input=where,
            hint=say("use name, address and port"),
        )
    address = clean(entry["address"])
    return Peer(clean(str(entry.get("name", address))), address, _port(entry.get("port", USUAL_PORT), where))
