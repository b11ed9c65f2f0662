"""The parent on one of several hosts: meets the others, trains with them, and agrees on a verdict.

Each judges its own devices as on a machine alone. Then all tell what only the whole can be judged by:
what each replica sent and got back, a fingerprint of its parameters, the times of a step.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gpucheck import __version__
from gpucheck.errors import InputError, UsageError
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.smoke import plan as planning
from gpucheck.smoke.cards import not_listed
from gpucheck.smoke.cluster import Cluster, from_hosts, from_slurm, from_tf_config
from gpucheck.smoke.evidence import judge
from gpucheck.smoke.outcome import Judgement, Outcome
from gpucheck.smoke.peers import Peers, binding, is_local
from gpucheck.smoke.plan import DeviceRequest, DoNotTrain, Train
from gpucheck.smoke.progress import Diary, about
from gpucheck.smoke.progress import path as diary_path
from gpucheck.smoke.report import EXIT_CODES, ClusterUse, Network, SmokeHost, SmokeReport, Verdict
from gpucheck.smoke.run import STEPS, TIMEOUT, Messages, Progress, attend, report_of
from gpucheck.text import say

if TYPE_CHECKING:
    from gpucheck.facts import Machine

_START = "import sys; sys.path.append(sys.argv.pop()); from gpucheck.smoke.worker_cluster import main; main()"
WORKER = (sys.executable, "-P", "-c", _START)

MEETING_SHARE = 0.5
"""Part of the time that the others have to come; the training needs the rest."""
EXCHANGE_SECONDS = 5.0
"""For the others' results and verdicts, once the own training is over."""
TROUBLE_SECONDS = 3.0
SLOW_SHARE = 0.5
FOLLOWS = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError", "InternalError")
"""What TensorFlow raises on a host when another one is lost."""
_WORST: tuple[Verdict, ...] = ("fail", "not-run", "pass")


@dataclass(frozen=True, slots=True)
class _End:
    """What this host's document says, before the others have had their word."""

    judgement: Judgement
    outcome: Outcome | None = None
    network: Network | None = None


def smoke_on_hosts(
    cluster: Cluster,
    request: DeviceRequest,
    machine: Machine | None,
    *,
    steps: int = STEPS,
    timeout: float = TIMEOUT,
    if_busy: Literal["fail", "skip", "wait"] = "fail",
    expect_gpus: int | None = None,
    global_batch: int | None = None,
    progress: Progress | None = None,
    announce: Callable[[str], None] | None = None,
    environ: Mapping[str, str] | None = None,
    command: Sequence[str] = WORKER,
) -> SmokeReport:
    """Train data-parallel on every device of every host of a cluster. To be called once per worker.

    Args:
        cluster: The workers, and which this is.
        request: Devices of this host. Of logical CPU devices MultiWorkerMirroredStrategy takes one.
        machine: As in :func:`gpucheck.smoke.run.smoke`.
        steps: Training steps, the same on every worker.
        timeout: Seconds for everything; the others must have come within half of it.
        if_busy: ``fail`` or ``skip``.
        expect_gpus: Fewer GPUs of this host that did their part is a failure.
        global_batch: Samples per step over all hosts; by default 16 per device.
        progress: Called from this thread with step, steps and phase; ``meet`` while the others are awaited.
        announce: Called with each line that must be known before anything listens.
        environ: Environment of the training.
        command: Starts the training.

    Raises:
        UsageError: The request contradicts itself or the cluster, or the own port cannot be had.
    """
    environ = os.environ if environ is None else environ
    deadline = time.monotonic() + timeout
    plan = _plan(cluster, request, machine, environ, steps, global_batch, expect_gpus, if_busy)
    say_first = announce or (lambda line: None)
    for line in described(cluster, plan.job.kind if isinstance(plan, Train) else None):
        say_first(line)
    if progress is not None:
        progress(0, steps, "meet")
    inbox: Messages = queue.SimpleQueue()
    with (
        _ended_by_sigterm(),
        Peers(cluster, _greeting(plan), on_end=lambda rank: inbox.put({"lost": rank})) as peers,
    ):
        try:
            missing = peers.meet(time.monotonic() + MEETING_SHARE * timeout)
        except OSError as fault:
            raise UsageError(
                say("Nothing can listen on {target}: {reason}.", target=cluster.me.target, reason=fault.strerror),
                input="--cluster",
                hint=say("another process has the port, or the address is not this machine's"),
            ) from None
        end = _refused(cluster, plan, peers, missing)
        if end is None:
            assert isinstance(plan, Train)
            say_first(say("All {n} workers have met; the training starts.", n=len(cluster.peers)))
            about_it = about(plan.job.kind, [card.address for card in plan.cards], "mirrored", False, 0.0)
            diary = Diary(diary_path(environ), about_it)
            end = _train(cluster, plan, peers, inbox, deadline, expect_gpus, environ, progress, command, diary)
            report = _agree(cluster, peers, end, steps)
            diary.end(report.verdict, report.headline)
            return report
        return _agree(cluster, peers, end, steps)


# --- before the training --------------------------------------------------------------------------


def cluster_of(form: str, rank: int | None = None, port: int | None = None) -> Cluster:
    """The cluster that ``--cluster`` names: ``slurm``, ``tf_config`` or a file of hosts.

    Raises:
        UsageError: It cannot be derived, or an option does not go with it.
        InputError: The file cannot be read.
    """
    if rank is not None and form in ("slurm", "tf_config"):
        raise UsageError(say("With --cluster {form} the rank is known.", form=form), input="--rank")
    if port is not None and form != "slurm":
        raise UsageError(say("With --cluster {form} the ports are known.", form=form), input="--port")
    if form == "slurm":
        return from_slurm(os.environ, port)
    if form == "tf_config":
        return from_tf_config(os.environ)
    try:
        text = Path(form).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError(
            say("It cannot be read ({fault}).", fault=getattr(fault, "strerror", None) or type(fault).__name__),
            input=form,
            hint=say("--cluster takes slurm, tf_config or a TOML file of hosts"),
        ) from None
    return from_hosts(text, form, rank, is_local)


def _plan(
    cluster: Cluster,
    request: DeviceRequest,
    machine: Machine | None,
    environ: Mapping[str, str],
    steps: int,
    global_batch: int | None,
    expect_gpus: int | None,
    if_busy: Literal["fail", "skip", "wait"],
) -> Train | DoNotTrain:
    if if_busy == "wait":
        raise UsageError(
            say("The other hosts would wait too."), input="--if-busy wait", hint=say("with --cluster use fail or skip")
        )
    if request.kind == "cpu" and request.count != 1:
        raise UsageError(
            say("MultiWorkerMirroredStrategy takes one CPU device per worker."),
            input="--devices",
            hint=say("use cpu:1, and more workers"),
        )
    plan = planning.decide(
        request,
        planning.cards_of(machine) if machine is not None else None,
        nvml=machine.nvml if machine is not None else None,
        environ=environ,
        steps=steps,
        global_batch=None,
        expect_gpus=expect_gpus,
        if_busy=if_busy,
    )
    if isinstance(plan, DoNotTrain):
        return plan
    replicas = 1 if plan.job.kind == "cpu" else plan.job.replicas
    if global_batch is not None and global_batch < replicas * len(cluster.peers):
        raise UsageError(
            say(
                "A batch of {batch} samples is too small for {n} devices.",
                batch=global_batch,
                n=replicas * len(cluster.peers),
            ),
            input="--batch",
            hint=say("each device needs at least one sample"),
        )
    job = replace(plan.job, replicas=replicas, global_batch=global_batch, tf_config=cluster.tf_config())
    return replace(plan, job=job)


def described(cluster: Cluster, kind: Literal["gpu", "cpu"] | None = None) -> list[str]:
    """What is to be said before anything listens."""
    lines = [
        say(
            "{n} workers ({source}); this is worker {rank} of {hosts}.",
            n=len(cluster.peers),
            source=cluster.source,
            rank=cluster.rank,
            hosts=", ".join(peer.target for peer in cluster.peers),
        ),
        *(f"{name}={value}" for name, value in cluster.seen),
        f"TF_CONFIG={cluster.tf_config()}",
    ]
    return [*lines, *listens(cluster, kind)]


def listens(cluster: Cluster, kind: Literal["gpu", "cpu"] | None = None) -> list[str]:
    """Where this host listens, and when."""
    me = cluster.me
    address = binding(me.address, me.port)
    every = address in ("0.0.0.0", "::")
    lines = [
        say("gpucheck listens on every address, port {port}, until the workers have met.", port=me.port)
        if every
        else say(
            "gpucheck listens on {address}, port {port}, until the workers have met.", address=address, port=me.port
        ),
        say("TensorFlow then listens on every address, port {port}, while it trains.", port=me.port),
    ]
    if kind == "gpu":
        lines.append(say("NCCL listens on ports that it chooses itself (NCCL_SOCKET_IFNAME), while it trains."))
    return lines


def _greeting(plan: Train | DoNotTrain) -> dict[str, object]:
    """What the others must know: whether this host trains, on what, and with which options."""
    greeting: dict[str, object] = {"host": socket.gethostname()}
    if isinstance(plan, DoNotTrain):
        return {**greeting, "refuses": {"verdict": plan.verdict, "headline": plan.headline}}
    job = plan.job
    return {
        **greeting,
        "cards": [card.address for card in plan.cards],
        "devices": job.replicas,
        "size": [job.width, job.load_batch],
        "options": {
            "gpucheck": __version__,
            "devices": job.kind,
            "steps": job.steps,
            "batch": job.global_batch,
        },
    }


def _refused(cluster: Cluster, plan: Train | DoNotTrain, peers: Peers, missing: Mapping[int, str]) -> _End | None:
    """Why nothing is trained; None when the training may start."""
    if isinstance(plan, DoNotTrain):
        devices = tuple(not_listed(card) for card in plan.cards)
        return _End(Judgement(plan.verdict, plan.headline, devices=devices, findings=plan.findings))
    greetings: dict[int, Any] = peers.said("greeting")
    refusals = {rank: it["refuses"] for rank, it in greetings.items() if it.get("refuses")}
    if refusals:
        found = tuple(
            lost(cluster, rank, say("does not train: {headline}", headline=refusal["headline"]))
            for rank, refusal in refusals.items()
        )
        verdict: Verdict = "fail" if any(it["verdict"] == "fail" for it in refusals.values()) else "not-run"
        return _not_trained(plan, verdict, found)
    if missing:
        return _not_trained(plan, "fail", tuple(_never_came(cluster, rank, why) for rank, why in missing.items()))
    everybody = {**greetings, cluster.rank: json.loads(json.dumps(_greeting(plan)))}
    if found := _unlike(cluster, everybody):
        return _not_trained(plan, "not-run", found)
    return None


def _not_trained(plan: Train, verdict: Verdict, findings: tuple[Finding, ...]) -> _End:
    devices = tuple(not_listed(card) for card in plan.cards)
    return _End(Judgement(verdict, findings[0].message, devices=devices, findings=findings))


def _never_came(cluster: Cluster, rank: int, why: str) -> Finding:
    target = cluster.peers[rank].target
    return lost(
        cluster,
        rank,
        say("never came: nobody answered at {target} ({why}).", target=target, why=why),
        Evidence(source=say("TCP to {target}", target=target), text=why),
    )


def lost(cluster: Cluster, rank: int, how: str, *evidence: Evidence) -> Finding:
    """``worker-lost``. ``how`` ends the sentence that begins with the worker."""
    target = cluster.peers[rank].target
    remedy = [
        say("Look whether it was started, and how its process ended (time limit, memory, kernel log)."),
        say("Look whether {target} can be reached from here: nc -vz {host} {port}.", target=target,
            host=cluster.peers[rank].address, port=cluster.peers[rank].port),
    ]  # fmt: skip
    if cluster.source == "slurm":
        remedy.append(say("Start the step with srun --kill-on-bad-exit (-K): else the other tasks are left waiting."))
    return finding(
        "worker-lost",
        "error",
        cluster.peers[rank].name,
        say("{who} {how}", who=cluster.named(rank), how=how),
        evidence=evidence,
        remedy=tuple(remedy),
    )


def _unlike(cluster: Cluster, everybody: Mapping[int, Mapping[str, Any]]) -> tuple[Finding, ...]:
    """What keeps hosts that have all met from training together. Every one of them finds the same."""
    first = everybody[0]
    found = []
    for rank in sorted(everybody):
        other = everybody[rank]
        differing = [name for name, value in first["options"].items() if other["options"].get(name) != value]
        if differing:
            name = differing[0]
            how = say(
                "was started with other options than worker 0: {option} {there} instead of {here}.",
                option=name,
                there=other["options"].get(name),
                here=first["options"][name],
            )
            found.append(lost(cluster, rank, how))
        elif other["devices"] != first["devices"]:
            message = say(
                "{who} has {there} devices and worker 0 has {here}: MultiWorkerMirroredStrategy needs as many on each.",
                who=cluster.named(rank),
                there=other["devices"],
                here=first["devices"],
            )
            found.append(finding("gpu-count-mismatch", "error", cluster.peers[rank].name, message))
    cards = Counter((it["host"], card) for it in everybody.values() for card in it["cards"])
    for (host, card), workers in cards.items():
        if workers > 1:
            message = say("{n} workers on {host} would train on the card at {card}.", n=workers, host=host, card=card)
            remedy = say("Give each task its own cards: srun --gpus-per-task=1, or one task per node.")
            found.append(finding("gpu-busy", "error", card, message, remedy=(remedy,)))
    return tuple(found)


# --- the training ---------------------------------------------------------------------------------


def _train(
    cluster: Cluster,
    plan: Train,
    peers: Peers,
    inbox: Messages,
    deadline: float,
    expect_gpus: int | None,
    environ: Mapping[str, str],
    progress: Progress | None,
    command: Sequence[str],
    diary: Diary,
) -> _End:
    plan = _sized(plan, peers)

    def follow(step: int, steps: int, phase: str) -> None:
        peers.at = (phase, step)
        if progress is not None:
            progress(step, steps, phase)

    left = deadline - time.monotonic()
    seconds = max(1.0, left - min(EXCHANGE_SECONDS, 0.2 * left))
    outcome, watched = attend(plan, environ, seconds, follow, command=command, messages=inbox, diary=diary)
    if outcome.ending != "done" or not (outcome.result or {}).get("replicas"):
        by_itself = not _follows(outcome)
        peers.tell(failed={"by_itself": by_itself, "how": _how(outcome)})
        judgement = judge(plan, outcome, watched, expect_gpus)
        if not by_itself:
            peers.trouble(time.monotonic() + TROUBLE_SECONDS)
        return _End(_blame(cluster, judgement, peers, by_itself), outcome)
    assert outcome.result is not None
    mine = _summary(outcome.result)
    peers.tell(result=mine)
    results = {**peers.collect("result", max(deadline, time.monotonic() + 1.0)), cluster.rank: mine}
    if len(results) < len(cluster.peers):  # a sum over some hosts is held against nothing
        return _End(_blame(cluster, judge(plan, outcome, watched, expect_gpus), peers, False), outcome)
    judgement = judge(plan, _pooled(outcome, results), watched, expect_gpus)
    network = _network(cluster, results)
    found = (*_diverged(cluster, results), *(slow_network(network) if plan.job.kind == "gpu" else ()))
    if found:
        judgement = replace(judgement, findings=(*judgement.findings, *found))
    if problems := [item for item in judgement.findings if item.severity == "error"]:
        headline = say(
            "Training on {workers} workers failed. {problem}",
            workers=len(cluster.peers),
            problem=problems[0].message,
        )
        judgement = replace(judgement, verdict="fail", proves_gpu=False, headline=headline)
    return _End(judgement, outcome, network)


def _sized(plan: Train, peers: Peers) -> Train:
    """The net and the load that the smallest card of all hosts can hold: all need the same net."""
    sizes = [it["size"] for it in peers.said("greeting").values()]
    width = min(plan.job.width, *(width for width, _ in sizes))
    loads = [load for load in (plan.job.load_batch, *(load for _, load in sizes)) if load is not None]
    return replace(plan, job=replace(plan.job, width=width, load_batch=min(loads, default=None)))


def _follows(outcome: Outcome) -> bool:
    """Whether the training ended in a way that the loss of another worker brings about."""
    if outcome.ending == "failed":
        return (outcome.failure or {}).get("kind") in FOLLOWS
    # TensorFlow's coordination service aborts the process when another one is gone.
    return outcome.ending == "lost" or (outcome.ending == "died" and outcome.returncode == -signal.SIGABRT)


def _how(outcome: Outcome) -> str:
    """The end of a sentence that begins with the worker."""
    at = say("in phase {phase}, step {step}", phase=outcome.phase, step=outcome.step or 0)
    if outcome.ending == "failed":
        failure = outcome.failure or {}
        return say("ended its training with an error {at}: {kind}.", at=at, kind=failure.get("kind"))
    if outcome.ending == "died" and outcome.returncode is not None and outcome.returncode < 0:
        return say("lost its training process to signal {n} {at}.", n=-outcome.returncode, at=at)
    if outcome.ending in ("stuck", "late"):
        return say("made no progress within {n:g} s {at}.", n=outcome.limit_seconds, at=at)
    return say("ended its training {at}.", at=at)


def _blame(cluster: Cluster, judgement: Judgement, peers: Peers, by_itself: bool) -> Judgement:
    """Name whoever was lost. What TensorFlow made of it here is then no finding of its own."""
    found = [
        lost(
            cluster,
            rank,
            say("was lost: its process ended, or it fell silent."),
            Evidence(
                source=say("last sign of life"),
                text=say("phase {phase}, step {step}", phase=peer.at[0], step=peer.at[1] or 0),
            ),
        )
        for rank, peer in peers.gone().items()
    ]
    if by_itself:
        return judgement
    found += [lost(cluster, rank, it["how"]) for rank, it in peers.said("failed").items() if it["by_itself"]]
    if not found:
        return replace(judgement, verdict="fail", proves_gpu=False)
    rest = [item for item in judgement.findings if item.name not in ("smoke-worker-died", "smoke-timeout")]
    return replace(judgement, verdict="fail", proves_gpu=False, headline=found[0].message, findings=(*found, *rest))


# --- what only all hosts together can tell --------------------------------------------------------


def _summary(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the others need of a host's result."""
    alone = [device["alone_per_second"] for device in result["devices"]]
    samples = result["load"] * len(result["replicas"])
    return {
        "tallies": [replica["tally"] for replica in result["replicas"]],
        "fingerprint": result["fingerprint"],
        "gradient_bytes": result["gradient_bytes"],
        "devices": [device["device"] for device in result["devices"]],
        "alone_per_second": sum(alone),
        "per_second": result["together_per_second"],
        "step_alone": result["load"] / min(alone),
        "step_together": samples / result["together_per_second"],
    }


def _pooled(outcome: Outcome, results: Mapping[int, Mapping[str, Any]]) -> Outcome:
    """The outcome with the check of the sum over all hosts: what came back, held against what all sent."""
    tallies = [tally for result in results.values() for tally in result["tallies"]]
    result = dict(outcome.result or {})
    replicas = [dict(replica) for replica in result["replicas"]]
    size = sum(tally[1] or 0.0 for tally in tallies)
    for replica in replicas:
        received = replica["tally"][2]
        known = received is not None and all(tally[0] is not None for tally in tallies)
        if size:
            total = sum(tally[0] or 0.0 for tally in tallies)
            replica["reduced_difference"] = abs(received - total) / size if known else None
    return replace(outcome, result={**result, "replicas": replicas})


def _network(cluster: Cluster, results: Mapping[int, Mapping[str, Any]]) -> Network:
    slowest = max(results, key=lambda rank: results[rank]["step_alone"])
    alone = results[slowest]["step_alone"]
    together = sum(result["step_together"] for result in results.values()) / len(results)
    return Network(
        slowest=cluster.called(slowest),
        step_alone_seconds=alone,
        step_together_seconds=together,
        share=max(0.0, 1 - alone / together),
        gradient_bytes=results[slowest]["gradient_bytes"],
    )


def _diverged(cluster: Cluster, results: Mapping[int, Mapping[str, Any]]) -> tuple[Finding, ...]:
    """Hosts whose parameters are not those of the most."""
    prints = Counter(result["fingerprint"] for result in results.values())
    if len(prints) == 1:
        return ()
    (usual, most), *_ = prints.most_common()
    others = [rank for rank in sorted(results) if most == 1 or results[rank]["fingerprint"] != usual]
    return (
        finding(
            "replica-diverged",
            "error",
            cluster.peers[others[0]].name if most > 1 and len(others) == 1 else "machine",
            say(
                "The parameters differ between hosts: {who}.", who=", ".join(cluster.called(rank) for rank in others)
            ),
            evidence=tuple(
                Evidence(source=say("SHA-256 of the parameters, {who}", who=cluster.called(rank)),
                         text=results[rank]["fingerprint"])
                for rank in sorted(results)
            ),
            remedy=(say("Look at the way between the hosts: NCCL_DEBUG=INFO names it; compare NCCL_IB_DISABLE=1."),),
        ),
    )  # fmt: skip


def slow_network(network: Network) -> tuple[Finding, ...]:
    """``network-slow``: as an info, since the training of a smoke has short steps."""
    if network.share <= SLOW_SHARE:
        return ()
    return (
        finding(
            "network-slow",
            "info",
            "machine",
            say(
                "{share:.0f} % of a step is exchange between hosts and waiting, in a training of short steps.",
                share=100 * network.share,
            ),
            evidence=(
                Evidence(
                    source=say("step of the slowest host alone"),
                    text=say("{ms:.2f} ms", ms=1000 * network.step_alone_seconds),
                ),
                Evidence(
                    source=say("step of all together"), text=say("{ms:.2f} ms", ms=1000 * network.step_together_seconds)
                ),
            ),
            confidence="possible",
            remedy=(say("Look which link the exchange takes (NCCL_DEBUG=INFO), and measure that link alone."),),
        ),
    )


# --- the verdict of all ---------------------------------------------------------------------------


def _agree(cluster: Cluster, peers: Peers, end: _End, steps: int) -> SmokeReport:
    """Tell the own verdict, hear the others', and let the worst be everybody's."""
    own = _host(cluster, end)
    peers.tell(verdict=own.model_dump(mode="json"))
    heard = peers.collect("verdict", time.monotonic() + EXCHANGE_SECONDS)
    hosts = sorted([own, *(SmokeHost(**it) for it in heard.values())], key=lambda host: host.rank)
    judgement = end.judgement
    worst = min((host.verdict for host in hosts), key=_WORST.index)
    if worst != judgement.verdict:
        culprit = next(host for host in hosts if host.verdict == worst)
        judgement = replace(
            judgement,
            verdict=worst,
            proves_gpu=False,
            headline=say(
                "{who} did not pass: {headline}",
                who=cluster.named(culprit.rank),
                headline=culprit.headline,
            ),
        )
    elif worst == "pass" and len(hosts) < len(cluster.peers):
        silent = next(rank for rank in cluster.others if rank not in heard)
        judgement = replace(
            judgement,
            verdict="not-run",
            proves_gpu=False,
            headline=say("{who} did not tell its verdict; here the training went well.", who=cluster.named(silent)),
        )
    elif worst == "pass":
        judgement = replace(judgement, headline=_headline(hosts, judgement.proves_gpu))
    outcome = end.outcome
    report = report_of(judgement, "mirrored", "train", steps if outcome else None, outcome.seconds if outcome else None)
    return report.model_copy(
        update={
            "exit_code": EXIT_CODES[judgement.verdict],
            "cluster": ClusterUse(
                source=cluster.source,
                rank=cluster.rank,
                tf_config=cluster.tf_config(),
                listens=tuple(listens(cluster)),
                seen=dict(cluster.seen),
            ),
            "hosts": tuple(hosts) if cluster.rank == 0 else (own,),
            "network": end.network,
        }
    )


def _host(cluster: Cluster, end: _End) -> SmokeHost:
    result = end.outcome.result if end.outcome is not None else None
    told = _summary(result) if result and result.get("replicas") else {}
    return SmokeHost(
        host=cluster.me.name,
        rank=cluster.rank,
        address=cluster.me.target,
        devices=tuple(told["devices"]) if told else None,
        examples_per_second=told.get("per_second"),
        alone_per_second=told.get("alone_per_second"),
        verdict=end.judgement.verdict,
        headline=end.judgement.headline,
        problems=tuple(item.message for item in end.judgement.findings if item.severity == "error"),
    )


def _headline(hosts: Sequence[SmokeHost], proves_gpu: bool) -> str:
    devices = sum(len(host.devices or ()) for host in hosts)
    if proves_gpu:
        return say(
            "All {n} GPUs of {workers} workers trained together, and the result is exact.",
            n=devices,
            workers=len(hosts),
        )
    return say("Training on {workers} workers is exact; it proves no GPU.", workers=len(hosts))


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Schedulers end a task by SIGTERM: let it unwind, so that the training is ended and the others hear
    of it. Only the main thread may say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
