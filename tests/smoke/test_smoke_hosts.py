"""Real trainings of two workers on this machine, sound and with one fault each."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from smoke.test_smoke_peers import free_ports

from gpucheck.api import smoke
from gpucheck.errors import GpucheckError, UsageError
from gpucheck.facts import Gpu, Machine, Nvml, NvmlGpu
from gpucheck.render import markdown, text
from gpucheck.smoke.cluster import Cluster, Peer
from gpucheck.smoke.evidence import TOLERANCE
from gpucheck.smoke.hosts import WORKER, _agree, _End, cluster_of, slow_network, smoke_on_hosts
from gpucheck.smoke.job import Job
from gpucheck.smoke.outcome import Judgement
from gpucheck.smoke.plan import DeviceRequest
from gpucheck.smoke.report import Network, SmokeReport
from gpucheck.smoke.run import Limits, train

SCRIPT = Path(__file__).with_name("cluster_worker.py")
GPUCHECK = (sys.executable, "-m", "gpucheck")

# Workers wait for each other: more of them at once than cores only take longer.
pytestmark = pytest.mark.xdist_group("hosts")
needs_tensorflow = pytest.mark.skipif(find_spec("tensorflow") is None, reason="needs the extra [smoke]")


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def workers(commands: Sequence[Sequence[str]], environs: Sequence[Mapping[str, str]] = ({}, {})) -> list[Ended]:
    """Run one command per worker, all at the same time."""
    started = [
        subprocess.Popen(
            command,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, environ in zip(commands, environs, strict=True)
    ]
    ended = []
    for process in started:
        try:
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
        ended.append(Ended(process.returncode, out, err))
    return ended


def hosts_file(folder: Path) -> Path:
    file = folder / "hosts.toml"
    file.write_text(
        "".join(
            f'[[host]]\nname = "{name}"\naddress = "127.0.0.1"\nport = {port}\n'
            for name, port in zip(("left", "right"), free_ports(2), strict=True)
        )
    )
    return file


def faulty(folder: Path, fault: str, *more: str) -> tuple[list[Ended], dict[int, SmokeReport]]:
    """Two workers, of which worker 1 has a fault; the documents of those that came to their end."""
    file = hosts_file(folder)
    ended = workers([[sys.executable, str(SCRIPT), fault, str(file), str(rank), str(folder), *more] for rank in (0, 1)])
    documents = {rank: folder / f"{rank}.json" for rank in (0, 1)}
    return ended, {
        rank: SmokeReport.model_validate_json(file.read_text()) for rank, file in documents.items() if file.exists()
    }


def names(report: SmokeReport) -> set[str]:
    return {finding.name for finding in report.findings}


# --- sound ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> tuple[list[dict[str, Any]], list[Ended]]:
    """Told by TF_CONFIG, as under Kubernetes."""
    places = [f"127.0.0.1:{port}" for port in free_ports(2)]
    environs = [
        {"TF_CONFIG": json.dumps({"cluster": {"worker": places}, "task": {"type": "worker", "index": rank}})}
        for rank in (0, 1)
    ]
    command = (*GPUCHECK, "smoke", "--devices", "cpu:1", "--cluster", "tf_config", "--steps", "4", "--json")
    ended = workers([command, command], environs)
    return [json.loads(one.out) for one in ended], ended


@needs_tensorflow
def test_two_hosts_train_exactly(pair):
    documents, ended = pair
    assert [one.code for one in ended] == [0, 0]
    for rank, document in enumerate(documents):
        assert (document["verdict"], document["exit_code"], document["findings"]) == ("pass", 0, [])
        assert document["headline"] == "Training on 2 workers is exact; it proves no GPU."
        assert document["proves_gpu"] is False
        assert document["global_batch"] == 32
        assert document["numerics"]["max_param_difference"] <= TOLERANCE / 10
        assert document["cluster"]["rank"] == rank
        (device,) = document["devices"]
        assert (device["replica_steps"], device["evidence"]["samples"]) == (4, 64)
        assert device["evidence"]["fed_difference"] < 1e-6
        assert device["evidence"]["reduced_difference"] < 1e-6  # against what both hosts sent
        assert set(device["evidence"]["computed_on"]) == {"CPU:0"}


@needs_tensorflow
def test_the_document_of_rank_0_holds_all_hosts(pair):
    documents, _ = pair
    assert [(host["rank"], host["verdict"], host["devices"]) for host in documents[0]["hosts"]] == [
        (0, "pass", ["CPU:0"]),
        (1, "pass", ["CPU:0"]),
    ]
    assert [host["rank"] for host in documents[1]["hosts"]] == [1]
    assert all(host["examples_per_second"] > 0 for host in documents[0]["hosts"])


@needs_tensorflow
def test_the_share_of_the_network_is_reported(pair):
    documents, _ = pair
    networks = [document["network"] for document in documents]
    assert networks[0] == networks[1]
    assert networks[0]["slowest"] in ("worker 0 (127.0.0.1)", "worker 1 (127.0.0.1)")
    assert 0 <= networks[0]["share"] < 1
    assert networks[0]["gradient_bytes"] == 15848  # 3,962 parameters of four bytes


@needs_tensorflow
def test_ports_are_stated_before_anything_listens(pair):
    documents, ended = pair
    for document, one in zip(documents, ended, strict=True):
        lines = one.err.splitlines()
        said = [line for line in lines if "listens" in line]
        assert said == document["cluster"]["listens"]
        assert "127.0.0.1" in said[0]
        assert lines.index(said[-1]) < lines.index("All 2 workers have met; the training starts.")
        assert f"TF_CONFIG={document['cluster']['tf_config']}" in lines


@needs_tensorflow
def test_the_hosts_are_printed(pair, capsys):
    documents, _ = pair
    report = SmokeReport.model_validate(documents[0])
    text.smoke(report)
    printed = capsys.readouterr().out
    assert "Hosts" in printed
    assert "of the slowest worker's own work" in " ".join(printed.split())
    assert "| 1 |" in markdown.smoke(report)


# --- faults ---------------------------------------------------------------------------------------


@needs_tensorflow
def test_a_host_that_leaves_the_sum_out_is_caught_by_all(tmp_path):
    ended, reports = faulty(tmp_path, "not-summed")
    assert [one.code for one in ended] == [1, 1]
    assert "allreduce-mismatch" in names(reports[1])
    # Host 0 summed what was sent, but host 1 made it with other parameters.
    assert names(reports[0]) == {"replica-diverged", "gradient-mismatch"}
    assert "differ between hosts: worker 0 (left), worker 1 (right)" in reports[0].findings[-1].message
    assert reports[1].headline.startswith("Training on 2 workers failed. The gradients that came back are not")
    assert [host.verdict for host in reports[0].hosts] == ["fail", "fail"]


@needs_tensorflow
def test_a_host_with_anothers_samples_is_named(tmp_path):
    ended, reports = faulty(tmp_path, "other-data")
    assert [one.code for one in ended] == [1, 1]
    assert names(reports[1]) == {"shard-mismatch"}
    # Both hold the same parameters, and both see that they are not those of one device.
    assert names(reports[0]) == {"gradient-mismatch"}
    assert any("other samples" in problem for problem in reports[0].hosts[1].problems)


@needs_tensorflow
def test_a_training_that_is_killed_on_one_host_is_named_on_the_other(tmp_path):
    ended, reports = faulty(tmp_path, "child-killed", "4000")
    assert [one.code for one in ended] == [1, 1]
    assert names(reports[1]) == {"smoke-worker-died"}
    (finding,) = reports[0].findings
    assert (finding.name, finding.code, finding.subject) == ("worker-lost", "GC818", "right")
    assert finding.message.startswith("Worker 1 (right) lost its training process to signal 9 in phase train, step ")
    assert reports[0].headline == finding.message


@needs_tensorflow
def test_a_worker_that_is_terminated_before_it_joins_is_named(tmp_path):
    """TensorFlow on the other host then waits in vain."""
    ended, reports = faulty(tmp_path, "terminated", "5", "60")
    assert [one.code for one in ended] == [1, 143]
    (finding,) = reports[0].findings
    assert (finding.name, finding.subject) == ("worker-lost", "right")
    assert finding.message == "Worker 1 (right) was lost: its process ended, or it fell silent."
    assert reports[0].seconds < 30


@needs_tensorflow
def test_tensorflow_that_waits_for_a_lost_worker_is_ended():
    """It would wait for many minutes in the strategy's constructor, and ignore SIGTERM."""
    first, second = free_ports(2)
    peers = (Peer("left", "127.0.0.1", first), Peer("right", "127.0.0.1", second))
    job = Job("cpu", 1, tf_config=Cluster("hosts", peers, 0).tf_config())
    messages: Any = queue.SimpleQueue()
    joined: list[float] = []

    def progress(step: int, steps: int, phase: str) -> None:
        if phase == "join":
            joined.append(time.monotonic())
            threading.Timer(1.0, messages.put, ({"lost": 1},)).start()

    outcome = train(
        job, environ=os.environ, limits=Limits(90, 90), progress=progress, command=WORKER, messages=messages
    )
    assert (outcome.ending, outcome.phase, outcome.returncode, outcome.left_behind) == ("lost", "join", -9, False)
    assert time.monotonic() - joined[0] < 15


# --- nothing to train -----------------------------------------------------------------------------


def two(rank: int = 0) -> Cluster:
    first, second = free_ports(2)
    return Cluster("hosts", (Peer("left", "127.0.0.1", first), Peer("right", "127.0.0.1", second)), rank)


def test_a_worker_that_never_comes_is_named_within_the_deadline():
    cluster = two()
    started = time.monotonic()
    report = smoke_on_hosts(cluster, DeviceRequest.parse("cpu:1"), None, timeout=2)
    assert time.monotonic() - started < 2
    (finding,) = report.findings
    assert (finding.name, finding.severity, finding.subject) == ("worker-lost", "error", "right")
    target = cluster.peers[1].target
    assert finding.message == f"Worker 1 (right) never came: nobody answered at {target} (Connection refused)."
    assert (report.verdict, report.exit_code) == ("fail", 1)
    assert [host.verdict for host in report.hosts] == ["fail"]


def both(cluster: Cluster, *options: dict[str, Any]) -> list[SmokeReport]:
    """Both workers in one process; for trainings that never start."""
    found: dict[int, SmokeReport] = {}

    def one(rank: int) -> None:
        mine = Cluster("hosts", cluster.peers, rank)
        given = {"request": DeviceRequest.parse("cpu:1"), "machine": None, "timeout": 20, **options[rank]}
        found[rank] = smoke_on_hosts(mine, given.pop("request"), given.pop("machine"), **given)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[0], found[1]]


def test_workers_with_other_options_do_not_train():
    reports = both(two(), {"steps": 5}, {"steps": 6})
    for report in reports:
        assert (report.verdict, report.exit_code) == ("not-run", 3)
        assert [finding.message for finding in report.findings] == [
            "Worker 1 (right) was started with other options than worker 0: steps 6 instead of 5."
        ]


def test_a_host_without_a_gpu_says_so_to_the_others():
    card = Gpu(address="0000:04:00.0", vendor="nvidia", nvml=NvmlGpu(index=0, uuid="GPU-1", processes=()))
    machines = (Machine(gpus=(card,), nvml=Nvml(status="ok")), Machine(gpus=()))
    gpu = DeviceRequest.parse("gpu")
    reports = both(two(), *({"request": gpu, "machine": machine} for machine in machines))
    assert [report.verdict for report in reports] == ["fail", "fail"]
    assert reports[0].headline == "Worker 1 (right) does not train: Nothing was trained: there is no GPU on PCI."
    assert names(reports[1]) == {"no-gpu-found"}


def test_two_workers_on_one_card_do_not_train():
    card = Gpu(address="0000:04:00.0", vendor="nvidia", nvml=NvmlGpu(index=0, uuid="GPU-1", processes=()))
    machine = Machine(gpus=(card,), nvml=Nvml(status="ok"))
    gpu = DeviceRequest.parse("gpu")
    for report in both(two(), *({"request": gpu, "machine": machine} for _ in (0, 1))):
        assert report.verdict == "not-run"
        (finding,) = report.findings
        assert (finding.name, finding.subject) == ("gpu-busy", "0000:04:00.0")
        assert "--gpus-per-task" in finding.remedy[0]


@pytest.mark.parametrize(("share", "found"), [(0.49, []), (0.51, [("network-slow", "info", "possible")])])
def test_a_step_that_is_mostly_exchange_is_worth_an_info(share, found):
    network = Network(
        slowest="worker 1 (n2)", step_alone_seconds=1 - share, step_together_seconds=1.0, share=share, gradient_bytes=4
    )
    assert [(item.name, item.severity, item.confidence) for item in slow_network(network)] == found


def test_a_taken_port_is_said_in_one_line():
    cluster = two()
    with (
        socket.create_server(("127.0.0.1", cluster.me.port)),
        pytest.raises(UsageError, match=r"Nothing can listen on 127\.0\.0\.1:.*in use"),
    ):
        smoke_on_hosts(cluster, DeviceRequest.parse("cpu:1"), None, timeout=5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"request": "cpu:2"}, "one CPU device per worker"),
        ({"if_busy": "wait"}, "would wait too"),
        ({"global_batch": 1}, "too small for 2 devices"),
    ],
)
def test_a_request_that_does_not_go_with_several_hosts(options, words):
    request = DeviceRequest.parse(options.pop("request", "cpu:1"))
    with pytest.raises(UsageError, match=words):
        smoke_on_hosts(two(), request, None, **options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("slurm", 1, None), "the rank is known"),
        (("tf_config", None, 5), "the ports are known"),
        (("/nonexistent/hosts.toml", None, None), "cannot be read"),
    ],
)
def test_options_that_do_not_go_together(arguments, words):
    with pytest.raises(GpucheckError, match=words):
        cluster_of(*arguments)


def test_a_host_without_a_verdict_is_no_pass():
    class Silent:
        def tell(self, **message: object) -> None: ...

        def collect(self, kind: str, deadline: float) -> dict[int, Any]:
            return {}

    report = _agree(two(), Silent(), _End(Judgement("pass", "good", proves_gpu=True)), 4)  # type: ignore[arg-type]
    assert (report.verdict, report.exit_code, report.proves_gpu) == ("not-run", 3, False)
    assert "Worker 1" in report.headline
    assert "did not tell its verdict" in report.headline


@pytest.mark.parametrize("options", [{"rank": 1}, {"port": 4000}])
def test_a_rank_or_a_port_without_a_cluster_is_refused(options):
    with pytest.raises(UsageError, match="several hosts"):
        smoke("cpu:1", **options)
