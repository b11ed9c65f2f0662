"""Nodes by Slurm: those that are free now get a job of one task, the others are told with their state."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from gpucheck.errors import NotCheckable, UsageError
from gpucheck.fleet.remote import words
from gpucheck.fleet.store import Unseen
from gpucheck.text import clean, say, shorten

FREE = frozenset(("idle", "mixed"))
"""States in which a job may start now. ``sinfo`` appends marks to them: see :func:`nodes`."""
IMMEDIATE_SECONDS = 10
"""How long a job may wait for its node; Slurm's scheduler looks at it every few seconds."""
_PLANNED = "-"
"""Planned for a larger job: a short one may still run before it."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is free, and a partition through which it can be asked for."""

    name: str
    partition: str


def list_nodes(timeout: float = 30) -> tuple[list[Node], list[Unseen]]:
    """Ask Slurm which nodes there are.

    Raises:
        UsageError: Slurm is not installed here.
        NotCheckable: its controller does not answer.
    """
    argv = ["sinfo", "--noheader", "--Node", "--format=%N|%P|%T|%E"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=timeout, check=False)
    except FileNotFoundError:
        raise UsageError("sinfo is not installed here", input="--slurm", hint="run it on a login node") from None
    except subprocess.TimeoutExpired:
        raise NotCheckable("Slurm did not answer in time", input="sinfo", hint="is slurmctld running?") from None
    if done.returncode:
        reason = shorten(clean(done.stderr) or say("exit status {status}", status=done.returncode), 200)
        raise NotCheckable(say("Slurm did not answer: {reason}", reason=reason), input="sinfo")
    return nodes(done.stdout.splitlines())


def nodes(lines: Iterable[str]) -> tuple[list[Node], list[Unseen]]:
    """Lines of ``name|partition|state|reason``, one a node and partition: those that are free, and why others are not.

    A mark after the state (``*`` not responding, ``~`` off, ``@`` about to boot again, ``$`` maintenance) takes the
    node out; ``-`` does not. The default partition's own mark is ``*``, too.
    """
    free: dict[str, Node] = {}
    others: dict[str, Unseen] = {}
    for line in lines:
        name, _, rest = line.strip().partition("|")
        partition, _, rest = rest.partition("|")
        state, _, reason = rest.partition("|")
        if not name or not state:
            continue
        if state.removesuffix(_PLANNED) in FREE:
            if name not in free or partition.endswith("*"):
                free[name] = Node(name, partition.removesuffix("*"))
            continue
        told = "Slurm: {state}" if reason.strip().lower() in ("", "none") else "Slurm: {state} ({reason})"
        others[name] = Unseen(host=name, reason=say(told, state=state, reason=shorten(clean(reason), 150)))
    return list(free.values()), [unseen for name, unseen in others.items() if name not in free]


def argv(node: Node, *, timeout: float, sudo: bool, more: str | None) -> list[str]:
    """The command that makes a capture on a node: it waits seconds for the node, never in the queue."""
    minutes = max(1, -(-int(timeout) // 60))
    return [
        "srun",
        f"--nodelist={node.name}",
        f"--partition={node.partition}",
        "--nodes=1",
        "--ntasks=1",
        f"--immediate={min(IMMEDIATE_SECONDS, max(1, int(timeout)))}",
        f"--time={minutes}",
        "--job-name=gpucheck-fleet",
        "--chdir=/",
        "--quiet",
        *shlex.split(more or ""),
        *words(sudo=sudo),
    ]


def reason(said: str) -> str:
    """What ``srun`` prints where the node is busy, in words that tell it from a fault."""
    if "Immediate execution impossible" in said or "Requested nodes are busy" in said:
        return say("busy: Slurm had no room on it for a short job just now")
    return said
