"""Which hosts train together: from Slurm's variables, from TF_CONFIG, from a file."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.errors import InputError, UsageError
from gpucheck.smoke.cluster import FIRST_PORT, Peer, from_hosts, from_slurm, from_tf_config, node_names, task_counts

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURM_STEP_NODELIST": "n[2-3]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_GTIDS": "1",
}


# --- Slurm ----------------------------------------------------------------------------------------


def test_the_step_counts_and_not_the_job():
    """tensorflow#36094: a resolver that read the variables of the job waited for nodes without a task."""
    cluster = from_slurm(STEP)
    assert [peer.name for peer in cluster.peers] == ["n2", "n3"]
    assert (cluster.rank, cluster.me.name) == (1, "n3")
    assert dict(cluster.seen)["SLURM_JOB_NODELIST"] == "n[1-4]"


def test_tf_config_is_derived_and_shown():
    port = FIRST_PORT + 7 * 16
    assert json.loads(from_slurm(STEP).tf_config()) == {
        "cluster": {"worker": [f"n2:{port}", f"n3:{port}"]},
        "task": {"type": "worker", "index": 1},
    }


@pytest.mark.parametrize(
    ("distribution", "node", "tasks", "names"),
    [
        ("", "0", "0,1", ["a1", "a1", "a2", "a2"]),
        ("", "0", "0,2", ["a1", "a2", "a1", "a2"]),
        ("cyclic", "1", "1,3", ["a1", "a2", "a1", "a2"]),
        ("block", "1", "2,3", ["a1", "a1", "a2", "a2"]),
    ],
)
def test_tasks_of_a_node_get_ports_in_a_row(distribution, node, tasks, names):
    several = {
        **STEP,
        "SLURM_STEP_NODELIST": "a[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_PROCID": tasks[0],
        "SLURM_NODEID": node,
        "SLURM_GTIDS": tasks,
        "SLURM_DISTRIBUTION": distribution,
    }
    cluster = from_slurm(several, port=5000)
    assert [peer.name for peer in cluster.peers] == names
    assert sorted(peer.target for peer in cluster.peers) == ["a1:5000", "a1:5001", "a2:5000", "a2:5001"]
    assert cluster.me.name == f"a{int(node) + 1}"


def test_tasks_in_no_known_order_are_refused():
    with pytest.raises(UsageError, match="distribution=block"):
        from_slurm({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_GTIDS": "1,2", "SLURM_NODEID": "0"})


def test_reserved_ports_are_used():
    assert from_slurm({**STEP, "SLURM_STEP_RESV_PORTS": "12000-12003"}).me.port == 12000
    assert from_slurm({**STEP, "SLURM_STEP_RESV_PORTS": "12000-12003"}, port=9000).me.port == 9000


def test_every_task_of_a_step_finds_the_same_cluster():
    other = from_slurm({**STEP, "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_GTIDS": "0"})
    assert other.key() == from_slurm(STEP).key()
    assert other.key() != from_slurm({**STEP, "SLURM_JOB_ID": "8"}).key()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"SLURM_STEP_NODELIST": None}, "in a Slurm job, but not as a task of a step"),
        ({"SLURM_STEP_NODELIST": None, "SLURM_JOB_ID": None}, "not started by Slurm"),
        ({"SLURM_STEP_NODELIST": "n[1-"}, "no list of nodes"),
        ({"SLURM_STEP_NODELIST": "n[1-2]\x1b[2J"}, "no list of nodes|make no sense"),
        ({"SLURM_STEP_NODELIST": "n[1-99999999]"}, "no list of nodes"),
        ({"SLURM_STEP_TASKS_PER_NODE": "many"}, "no number of tasks"),
        ({"SLURM_STEP_TASKS_PER_NODE": None}, "SLURM_STEP_TASKS_PER_NODE is not set"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1"}, "make no sense"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID=x"),
        ({"SLURM_STEP_NODELIST": "n2", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_PROCID": "0", "SLURM_NODEID": "0",
          "SLURM_GTIDS": "0"}, "one worker only"),
    ],
)  # fmt: skip
def test_a_step_that_makes_no_sense_is_refused_in_one_line(changes, words):
    environ = {name: value for name, value in {**STEP, **changes}.items() if value is not None}
    with pytest.raises(UsageError, match=words) as caught:
        from_slurm(environ)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3],m07", ["n1", "n2", "n3", "m07"]),
        ("n[08-10,12]", ["n08", "n09", "n10", "n12"]),
        ("r[1-2]c[3-4]-ib", ["r1c3-ib", "r1c4-ib", "r2c3-ib", "r2c4-ib"]),
        ("a-b.example.org,c", ["a-b.example.org", "c"]),
    ],
)
def test_names_of_nodes(text, names):
    assert list(node_names(text)) == names


@given(st.text("n[]-,0123456789(x)", max_size=20))
def test_any_text_is_read_or_refused(text):
    for read in (node_names, task_counts):
        with suppress(UsageError):
            assert len(read(text)) >= 1


def test_counts_of_tasks():
    assert task_counts("2(x3),1") == (2, 2, 2, 1)


# --- TF_CONFIG ------------------------------------------------------------------------------------


def config(task: object, **groups: object) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": groups, "task": task})}


def test_the_chief_comes_first():
    cluster = from_tf_config(config({"type": "worker", "index": 0}, chief=["c:2222"], worker=["w:2222"], ps=["p:1"]))
    assert [peer.target for peer in cluster.peers] == ["c:2222", "w:2222"]
    assert cluster.rank == 1
    assert json.loads(cluster.tf_config())["cluster"] == {"worker": ["c:2222", "w:2222"]}


def test_an_ipv6_address_keeps_its_brackets():
    cluster = from_tf_config(config({"type": "worker", "index": 1}, worker=["[fd00::1]:2222", "[fd00::2]:2222"]))
    assert cluster.me == Peer("fd00::2", "fd00::2", 2222)
    assert cluster.me.target == "[fd00::2]:2222"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "is not set"),
        ({"TF_CONFIG": "{"}, "does not hold a cluster and a task"),
        ({"TF_CONFIG": "[]"}, "does not hold a cluster and a task"),
        (config({"type": "ps", "index": 0}, worker=["a:1", "b:1"], ps=["p:1"]), "only chief and workers train"),
        (config({"type": "worker", "index": 2}, worker=["a:1", "b:1"]), "no worker with the index 2"),
        (config({"type": "worker", "index": 0}, worker=["a:1", "b"]), "no address with a port"),
        (config({"type": "worker", "index": 0}, worker=["a:1", "b:70000"]), "no TCP port"),
        (config({"type": "worker", "index": 0}, worker=["a:1", "a:1"]), "Two workers have the address a:1"),
        (config({"type": "worker", "index": 0}, worker=["a:1"]), "one worker only"),
    ],
)
def test_a_tf_config_that_makes_no_sense_is_refused_in_one_line(environ, words):
    with pytest.raises(UsageError, match=words):
        from_tf_config(environ)


# --- a file ---------------------------------------------------------------------------------------

FILE = """
[[host]]
name = "left"
address = "10.0.0.1"
[[host]]
address = "10.0.0.2"
port = 4000
"""


def test_a_file_of_hosts():
    cluster = from_hosts(FILE, "hosts.toml", None, lambda address: address == "10.0.0.2")
    assert cluster.peers == (Peer("left", "10.0.0.1", 2222), Peer("10.0.0.2", "10.0.0.2", 4000))
    assert cluster.rank == 1
    assert from_hosts(FILE, "hosts.toml", 0, lambda address: False).rank == 0


@pytest.mark.parametrize(
    ("text", "rank", "fault", "words"),
    [
        (FILE, None, UsageError, "2 hosts of the file have an address of this machine.*--rank, from 0 to 1"),
        (FILE, 2, UsageError, "no host 2"),
        ("x", None, InputError, "no TOML"),
        ("", None, InputError, "names no host"),
        ("host = [1]", None, InputError, "host 1: It has no address"),
        ('[[host]]\naddress = "a"\nprot = 1', None, InputError, "unknown key 'prot'"),
        ('[[host]]\naddress = "a"\nport = "x"', None, UsageError, "'x' is no TCP port"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_in_one_line(text, rank, fault, words):
    with pytest.raises(fault, match=words):
        from_hosts(text, "hosts.toml", rank, lambda address: True)


def test_no_entry_is_this_machine():
    with pytest.raises(UsageError, match="No host of the file"):
        from_hosts(FILE, "hosts.toml", None, lambda address: False)
