"""Hosts to files: a capture of each, many at once, none longer than its deadline, and what was written is whole.

A run that was killed goes on where it was: hosts whose capture is there are not asked again, those that failed are.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from gpucheck.errors import InputError, UsageError
from gpucheck.findings import Printed
from gpucheck.fleet import store
from gpucheck.fleet.remote import LAST_WORDS, LIMIT, SCRIPT, Answer, Failed, ending, words
from gpucheck.fleet.store import Run, Sink, Unseen
from gpucheck.text import Text, plural, say

Fetch = Callable[[Answer], Awaitable[None]]
"""Hands an answer what a host sends; Failed when it does not."""
Progress = Callable[[int, int, str], None]
"""Hosts done, hosts in all, the one that was done."""
_CHUNK = 1 << 16
_GRACE_SECONDS = 5
"""How long srun may take to end its job after it was told to."""


@dataclass(frozen=True, slots=True)
class Job:
    """A host, and how its capture is had."""

    host: str
    fetch: Fetch


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do."""

    jobs: tuple[Job, ...]
    unseen: tuple[Unseen, ...] = ()
    """Hosts that need not be asked."""


class Collected(Printed):
    """What a run of collect brought."""

    schema_: Literal["gpucheck/fleet-collect/1"] = Field(default="gpucheck/fleet-collect/1", alias="schema")
    verdict: Literal["ok", "unknown"]
    folder: Text
    run: str
    collected: tuple[Text, ...]
    """Hosts whose capture is there, those that an earlier start of this run had included."""
    continued: int
    """So many of them were there when it started."""
    unseen: tuple[Unseen, ...]


# --- plans --------------------------------------------------------------------------------------


def by_ssh(hosts: str, *, known_hosts: str | None, identity: str | None, sudo: bool) -> Plan:
    """The hosts of a list. InputError and UsageError as :mod:`gpucheck.fleet.ssh` says."""
    from gpucheck.fleet import ssh

    targets = ssh.read_hosts(hosts)
    access = ssh.access(known_hosts, identity, sudo=sudo)

    def job(target: ssh.Target) -> Job:
        return Job(target.label, lambda answer: ssh.fetch(target, access, answer))

    return Plan(tuple(map(job, targets)))


def by_slurm(*, timeout: float, sudo: bool, more: str | None) -> Plan:
    """The nodes that are free; the others with their state. UsageError and NotCheckable as there."""
    from gpucheck.fleet import slurm

    free, others = slurm.list_nodes()

    def job(node: slurm.Node) -> Job:
        argv = slurm.argv(node, timeout=timeout, sudo=sudo, more=more)
        return Job(node.name, lambda answer: _program(argv, SCRIPT, answer, slurm.reason))

    return Plan(tuple(map(job, free)), tuple(others))


def by_itself(*, sudo: bool) -> Plan:
    """This machine, with the gpucheck that runs now."""
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    argv = ["env", f"PATH={path}", *words(sudo=sudo)]
    return Plan((Job(socket.gethostname() or "localhost", lambda answer: _program(argv, SCRIPT, answer)),))


async def _program(
    argv: Sequence[str], given: bytes, answer: Answer, reason: Callable[[str], str] | None = None
) -> None:
    """Run a program that makes a capture. It is told to end when this is cancelled, and then ended."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise Failed(say("{program} cannot be started: {reason}", program=argv[0], reason=error.strerror)) from None
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    errors = bytearray()

    async def listen(stream: asyncio.StreamReader) -> None:
        while data := await stream.read(_CHUNK):
            errors.extend(data)
            del errors[:-LAST_WORDS]

    async def feed(stream: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # it has ended: its status tells why
            stream.write(given)
            await stream.drain()
        stream.close()

    helpers = [asyncio.create_task(listen(process.stderr)), asyncio.create_task(feed(process.stdin))]
    try:
        while data := await process.stdout.read(_CHUNK):
            answer.take(data)
        status = await process.wait()
        await asyncio.gather(*helpers)
    finally:
        for helper in helpers:
            helper.cancel()
        await _ended(process)
    try:
        answer.end(status, bytes(errors))
    except Failed as failure:
        raise Failed(reason(str(failure)) if reason is not None else str(failure)) from None


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_GRACE_SECONDS):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


# --- a run --------------------------------------------------------------------------------------


def collect(
    folder: str,
    plan: Plan,
    *,
    parallel: int = 16,
    timeout: float = 120,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Collected:
    """Put a capture of every host into a folder.

    Args:
        folder: Is made where it is not there; see :mod:`gpucheck.fleet.store`.
        plan: Hosts, and how they are reached.
        parallel: Hosts that are asked at once.
        timeout: Seconds that one host may take.
        fresh: Begin a new run, also where the last one was broken off.
        progress: Called after every host.

    Raises:
        UsageError: the folder cannot be written, or another collect writes there.
        InputError: its ``fleet.json`` is damaged.
    """
    place = Path(folder)
    with store.writing(place):
        try:
            last = store.read_run(place)
        except InputError:
            if not fresh:
                raise
            last = None
        goes_on = last is not None and not last.ended and not fresh
        name = last.run if last is not None and goes_on else store.new_run(last)
        hosts = tuple(sorted({*(job.host for job in plan.jobs), *(one.host for one in plan.unseen)}))
        try:
            store.write_run(place, Run(run=name, ended=False, hosts=hosts))
            there = {job.host for job in plan.jobs if goes_on and store.held(place, job.host, name)}
            waiting = [job for job in plan.jobs if job.host not in there]
            failed = asyncio.run(_all(place, name, waiting, parallel, timeout, progress))
            unseen = tuple(sorted((*plan.unseen, *failed), key=lambda one: one.host))
            store.write_run(place, Run(run=name, ended=True, hosts=hosts, unseen=unseen))
        except OSError as error:
            reason = say("cannot be written: {reason}", reason=error.strerror)
            raise UsageError(reason, input=folder, hint="make room, then collect again: it goes on") from None
    missed = {one.host for one in unseen}
    collected = tuple(host for host in hosts if host not in missed)
    return Collected(
        headline=_headline(len(collected), len(unseen), folder),
        verdict="unknown" if unseen or not collected else "ok",
        exit_code=3 if unseen or not collected else 0,
        folder=folder,
        run=name,
        collected=collected,
        continued=len(there),
        unseen=unseen,
    )


async def _all(
    folder: Path, run: str, jobs: Sequence[Job], parallel: int, timeout: float, progress: Progress | None
) -> list[Unseen]:
    """Every host; those that gave nothing come back. A disk that is full ends all of it."""
    gate, looking = asyncio.Semaphore(parallel), asyncio.Lock()
    failed: list[Unseen] = []
    done = 0

    async def one(job: Job) -> None:
        nonlocal done
        async with gate:
            try:
                await _one(folder, run, job, timeout, looking)
            except Failed as failure:
                failed.append(Unseen(host=job.host, reason=str(failure)))
        done += 1
        if progress is not None:
            progress(done, len(jobs), job.host)

    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(one(job))
    except* OSError as errors:
        raise errors.exceptions[0] from None
    return failed


async def _one(folder: Path, run: str, job: Job, timeout: float, looking: asyncio.Lock) -> None:
    """One host: received beside its place, looked at, and only then put there.

    Captures are looked at one after the other: what a host packed may be large when it is unpacked.
    """
    part = store.part(folder, job.host)
    try:
        with part.open("wb") as file:
            try:
                async with asyncio.timeout(timeout):
                    await job.fetch(Answer(Sink(file, LIMIT)))
            except TimeoutError:
                raise Failed(say("no answer within {seconds:g} s", seconds=timeout)) from None
        async with looking:
            form = await asyncio.to_thread(lambda: ending(part.read_bytes(), job.host))
        store.keep(folder, job.host, run, form)
    finally:
        part.unlink(missing_ok=True)


def _headline(collected: int, unseen: int, folder: str) -> str:
    one, many = "A capture of {count} host is in {folder}.", "Captures of {count} hosts are in {folder}."
    text = (
        say(plural(collected, one, many), count=collected, folder=folder) if collected else say("No capture was made.")
    )
    if unseen:
        text += " " + say(plural(unseen, "{count} was not seen.", "{count} were not seen."), count=unseen)
    return text
