"""The three questions as functions, for programs. ``gpucheck.probe`` and so on lead here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from gpucheck.catalog import load

if TYPE_CHECKING:
    from gpucheck.checking import CheckReport
    from gpucheck.facts import Machine
    from gpucheck.fit.report import Advice
    from gpucheck.fleet.report import Fleet
    from gpucheck.policy import Policy
    from gpucheck.power import Redundancy
    from gpucheck.probing import Probe
    from gpucheck.smoke.job import Strategy
    from gpucheck.smoke.report import SmokeReport


def probe(
    sources: Sequence[str] = (),
    *,
    expect_gpus: int | None = None,
    timeout: float = 10.0,
    catalog: str | None = None,
    baseline: str | None = None,
    ask_ipmi: bool = False,
    bmc: str | None = None,
    bmc_auth: str | None = None,
    bmc_ca: str | None = None,
    bmc_insecure: bool = False,
    bmc_timeout: float = 60.0,
) -> Probe:
    """What is in this machine (or in captures and dumps of one), and what is wrong with it.

    Args:
        sources: Paths of captures and dumps; empty for this machine.
        expect_gpus: How many GPUs there should be.
        timeout: Seconds that NVML may take.
        catalog: Folder with catalog entries of your own.
        baseline: An earlier probe of the machine (its JSON document), capture or dump to compare it with.
        ask_ipmi: Also run ``ipmitool`` for the power supplies and the BMC's log (takes seconds, needs root).
        bmc: Also ask this BMC by Redfish: ``https://`` and its name or address.
        bmc_auth: File with user and password for it; by default ``GPUCHECK_BMC_USER`` and
            ``GPUCHECK_BMC_PASSWORD`` in the environment have them.
        bmc_ca: PEM file with the certificates to check that of the BMC with.
        bmc_insecure: Do not check the certificate of the BMC.
        bmc_timeout: Seconds that the BMC may take.

    Raises:
        gpucheck.errors.InputError: A source cannot be read, they are of two machines, or the BMC does not answer.
        gpucheck.errors.UsageError: The BMC's address is none, or nothing gives user and password.
    """
    from gpucheck.probing import probe as look

    access = None
    if bmc is not None:
        from gpucheck import redfish

        access = redfish.access(bmc, bmc_auth, ca_file=bmc_ca, insecure=bmc_insecure, timeout=bmc_timeout)
    return look(
        sources,
        expect_gpus=expect_gpus,
        timeout=timeout,
        ask_ipmi=ask_ipmi,
        bmc=access,
        catalog=load(catalog),
        baseline=baseline,
    )


def advise(
    model: str | None,
    *gpus: str,
    cpus: int | None = None,
    cpu_watts: int | None = None,
    psu: str | None = None,
    risers: Sequence[str] = (),
    options: Sequence[str] = (),
    input_volts: int | None = None,
    redundancy: Redundancy | None = None,
    ambient_c: int | None = None,
    cpu: str | None = None,
    ram: str | None = None,
    use: Literal["train", "infer"] | None = None,
    prices: Sequence[str] = (),
    sources: Sequence[str] = (),
    catalog: str | None = None,
) -> Advice:
    """Whether cards fit a server model, where, and what must be ordered with them.

    Args:
        model: Name as people type it; None: the probed machine, or with cards every model ranked.
        *gpus: ``P40``, ``P40:2`` or ``2xP40``.
        cpus: CPUs fitted.
        cpu_watts: TDP of one CPU.
        psu: Supplies fitted, ``2x1100``.
        risers: ``3=alternate`` and the like.
        options: ``KEY=CHOICE`` of the server's other options.
        input_volts: Mains voltage.
        redundancy: How many supplies may fail.
        ambient_c: Temperature of the inlet air.
        cpu: The CPU that is fitted, by name; it says its own watts.
        ram: Memory of the host, ``256G``.
        use: What the cards are for; None: judged as training.
        prices: ``P40=200`` and the like: what one card or part costs.
        sources: Captures or dumps of the machine: what they show counts as stated.
        catalog: Folder with catalog entries of your own.

    Raises:
        gpucheck.errors.UsageError: A name is unknown, or the request contradicts itself.
        gpucheck.errors.InputError: A source cannot be read.
    """
    from gpucheck.fit.ask import Asked, answer

    asked = Asked(
        model=model,
        gpus=gpus,
        cpus=cpus,
        cpu_watts=cpu_watts,
        psu=psu,
        risers=tuple(risers),
        options=tuple(options),
        input_volts=input_volts,
        redundancy=redundancy,
        ambient_c=ambient_c,
        cpu=cpu,
        ram=ram,
        use=use,
        prices=tuple(prices),
        sources=tuple(sources),
    )
    return answer(asked, load(catalog))


def smoke(
    devices: str = "auto",
    *,
    steps: int = 10,
    timeout: float = 300.0,
    if_busy: Literal["fail", "skip", "wait"] = "fail",
    expect_gpus: int | None = None,
    global_batch: int | None = None,
    strategy: Strategy = "mirrored",
    mode: Literal["train", "infer"] = "train",
    split: Literal["even", "auto"] = "even",
    cluster: str | None = None,
    rank: int | None = None,
    port: int | None = None,
    announce: Callable[[str], None] | None = None,
    deep: bool = False,
    soak_minutes: float = 0.0,
    progress: Callable[[int, int, str], None] | None = None,
) -> SmokeReport:
    """Train on every card of this machine and report what it proves.

    Args:
        devices: ``auto`` (logical CPU devices only where PCI shows no GPU), ``gpu`` or ``cpu:N``.
        steps: Training steps, at least one.
        timeout: Seconds for the training (and, with ``wait``, once more for the cards to get free).
        if_busy: What to do about cards that run somebody else's processes: train on none, leave them
            out, or wait for them.
        expect_gpus: Fewer GPUs that did their part than this is a failure.
        global_batch: Samples per step over all devices; by default 16 for each.
        strategy: ``mirrored`` (a copy of the net on each card), ``central`` (one copy that all read),
            ``model`` (layers cut over the cards) or ``hybrid`` (both, on a mesh of cards).
        mode: ``infer`` for forward passes only.
        split: ``auto`` gives each card a share of the batch by the speed that it has alone.
        cluster: Train together with other hosts, on each of which this is called too: ``slurm`` (a task
            that srun started), ``tf_config`` (the variable TF_CONFIG) or a TOML file of hosts.
        rank: Which host of the file this is, from 0; by default the one with an address of this machine.
        port: First port on each host under Slurm.
        announce: Called with each line that must be known before anything listens on a port.
        deep: Try each card alone, pairs and all also where nothing failed, all-reduce known sums, and
            fill the free memory of each card with patterns.
        soak_minutes: Repeat the training under load for so long, which is added to ``timeout``.
        progress: Called from this thread with step, steps and phase at every sign of life.

    Raises:
        gpucheck.errors.UsageError: ``devices`` names none, or the request contradicts itself.
        gpucheck.errors.InputError: The file of hosts cannot be read.
    """
    from gpucheck.errors import UsageError
    from gpucheck.smoke.plan import DeviceRequest
    from gpucheck.smoke.run import smoke as train
    from gpucheck.text import say

    request = DeviceRequest.parse(devices)
    look = _look if request.kind != "cpu" else None
    if cluster is None and (rank is not None or port is not None):
        raise UsageError(
            say("A rank and a port are of a training on several hosts."),
            input="--port" if rank is None else "--rank",
            hint=say("use it with --cluster"),
        )
    if cluster is not None:
        from gpucheck.smoke.hosts import cluster_of, smoke_on_hosts

        if (strategy, mode, split) != ("mirrored", "train", "even"):
            raise UsageError(
                say("Several hosts train with the strategy mirrored and even shares only."), input="--cluster"
            )
        if deep or soak_minutes:
            raise UsageError(
                say("A closer look and a soak are for one host: run them on each by itself."), input="--cluster"
            )
        return smoke_on_hosts(
            cluster_of(cluster, rank, port),
            request,
            look() if look is not None else None,
            steps=steps,
            timeout=timeout,
            if_busy=if_busy,
            expect_gpus=expect_gpus,
            global_batch=global_batch,
            progress=progress,
            announce=announce,
        )
    return train(
        request,
        look() if look is not None else None,
        steps=steps,
        timeout=timeout,
        if_busy=if_busy,
        expect_gpus=expect_gpus,
        global_batch=global_batch,
        strategy=strategy,
        mode=mode,
        split=split,
        deep=deep,
        soak_minutes=soak_minutes,
        progress=progress,
        look_again=look,
    )


def last_smoke() -> SmokeReport:
    """What the last training on this host came to, from the file that it kept: after the machine went
    down, the stage and the card that were at work."""
    import os

    from gpucheck.smoke.progress import last_judgement
    from gpucheck.smoke.run import report_of

    return report_of(last_judgement(os.environ), "mirrored", "train")


def check(
    policy: Policy | str | None = None,
    sources: Sequence[str] = (),
    *,
    expect_gpus: int | None = None,
    train: bool = True,
    strict: bool = False,
    timeout: float = 10.0,
    catalog: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> CheckReport:
    """Whether this machine (or a capture of one) is what a policy says that it should be.

    Args:
        policy: The policy, or its file. None: ``gpucheck.toml`` of the current folder, if it is there;
            else at least one GPU, without errors.
        sources: Paths of captures and dumps, which are not trained on; empty for this machine.
        expect_gpus: How many GPUs there should be, whatever the policy says.
        train: False leaves the training out, whatever the policy says.
        strict: Warnings fail too, whatever the policy says.
        timeout: Seconds that NVML may take.
        catalog: Folder with catalog entries of your own.
        progress: Called by the training with step, steps and phase at every sign of life.

    Raises:
        gpucheck.errors.InputError: The policy, its baseline or a source cannot be read.
    """
    from gpucheck.checking import check as judge

    return judge(
        sources,
        policy=policy,
        expect_gpus=expect_gpus,
        train=train,
        strict=strict,
        timeout=timeout,
        catalog=load(catalog),
        progress=progress,
    )


def fleet_report(
    folder: str,
    *,
    since: str | None = None,
    room: str | None = None,
    jobs: int = 1,
    strict: bool = False,
    catalog: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Fleet:
    """Many machines, judged together: their verdicts, groups of equal ones, and who differs from its twins.

    Args:
        folder: A capture of each host, as ``gpucheck fleet collect`` or anybody else put them there.
        since: A folder with the state to compare with; by default each host's run before, where it is there.
        room: Also tell how many more of this card go into each host.
        jobs: Processes that judge. More than one needs a main module that can be imported, as
            ``multiprocessing`` says.
        strict: Let warnings make the exit code 1.
        catalog: Folder with catalog entries of your own.
        progress: Called after every host with hosts judged and hosts in all.

    Raises:
        gpucheck.errors.InputError: There is no such folder, or nothing is in it.
        gpucheck.errors.UsageError: No card is called so.
    """
    from gpucheck.fleet.report import report

    merged = report(folder, since=since, room=room, catalog=catalog, jobs=jobs, strict=strict, progress=progress)
    return merged.document()


def _look() -> Machine:
    """What is in this machine now."""
    from gpucheck.assemble import assemble
    from gpucheck.probing import gather

    return assemble(gather(()), load())
