"""What to train on, from facts alone."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.errors import UsageError
from gpucheck.facts import Gpu, Machine, Nvml, NvmlGpu
from gpucheck.smoke.job import Job, Shard, by_speed, mesh, split
from gpucheck.smoke.plan import (
    LOAD_SHARE,
    Card,
    DeviceRequest,
    DoNotTrain,
    Train,
    cards_of,
    decide,
    granted,
    load_seconds,
    sample_bytes,
    size,
)

FIRST, SECOND, THIRD = "0000:04:00.0", "0000:82:00.0", "0000:83:00.0"


def card(address: str, number: int = 0, **more) -> Card:
    return Card(address, "nvidia", name="Tesla P40", uuid=f"GPU-{number}0000", in_nvml=True, **more)


TWO = (card(FIRST, 1), card(SECOND, 2))


def plan(request: str, cards, **more):
    return decide(DeviceRequest.parse(request), cards, **{"environ": {}, "steps": 10, **more})


@pytest.mark.parametrize(
    ("text", "request_"),
    [("auto", DeviceRequest("auto")), ("GPU", DeviceRequest("gpu")), (" cpu:4 ", DeviceRequest("cpu", 4))],
)
def test_devices_are_read(text, request_):
    assert DeviceRequest.parse(text) == request_


@pytest.mark.parametrize("text", ["", "cpu", "cpu:", "cpu:0", "cpu:-1", "cpu:65", "cpu:²", "gpu:2", "tpu"])
def test_anything_else_is_a_usage_error(text):
    with pytest.raises(UsageError):
        DeviceRequest.parse(text)


def test_auto_trains_on_the_cards_that_pci_shows():
    chosen = plan("auto", TWO)
    assert isinstance(chosen, Train)
    assert (chosen.job.kind, chosen.job.replicas, chosen.cards) == ("gpu", 2, TWO)
    assert dict(chosen.environment) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_auto_takes_a_card_of_any_maker():
    chosen = plan("auto", (Card(FIRST, "amd"),))
    assert isinstance(chosen, Train)
    assert chosen.job.kind == "gpu"


def test_a_card_with_a_dead_driver_is_trained_for_too():
    chosen = plan("auto", (Card(FIRST, "nvidia"),))
    assert isinstance(chosen, Train)
    assert chosen.job.kind == "gpu"


def test_auto_takes_logical_devices_only_where_there_is_no_card():
    chosen = plan("auto", ())
    assert isinstance(chosen, Train)
    assert chosen.job.kind == "cpu"
    assert 2 <= chosen.job.replicas <= 4
    assert dict(chosen.environment)["CUDA_VISIBLE_DEVICES"] == "-1"


def test_a_bus_that_cannot_be_read_is_not_an_empty_one():
    chosen = plan("auto", None)
    assert isinstance(chosen, DoNotTrain)
    assert chosen.verdict == "not-run"


def test_logical_devices_can_be_asked_for_whatever_is_there():
    for cards in (None, (), TWO):
        chosen = plan("cpu:3", cards)
        assert isinstance(chosen, Train)
        assert (chosen.job.kind, chosen.job.replicas, chosen.cards) == ("cpu", 3, ())


@pytest.mark.parametrize(("request_", "more"), [("gpu", {}), ("auto", {"expect_gpus": 1})])
def test_gpus_that_are_wanted_and_absent_are_a_failure(request_, more):
    chosen = plan(request_, (), **more)
    assert isinstance(chosen, DoNotTrain)
    assert chosen.verdict == "fail"
    assert [finding.name for finding in chosen.findings] == ["no-gpu-found"]


def test_logical_devices_cannot_meet_an_expectation():
    with pytest.raises(UsageError):
        plan("cpu:2", (), expect_gpus=2)


@pytest.mark.parametrize("more", [{"steps": 0}, {"global_batch": 2}])
def test_a_training_without_a_step_or_a_sample_for_each_device_is_a_usage_error(more):
    with pytest.raises(UsageError):
        plan("cpu:3", (), **more)


def test_a_busy_card_is_not_trained_on():
    chosen = plan("auto", (card(FIRST, 1, processes=(77,)), card(SECOND, 2, processes=())))
    assert isinstance(chosen, DoNotTrain)
    assert chosen.verdict == "not-run"
    (finding,) = chosen.findings
    assert (finding.name, finding.subject, finding.severity) == ("gpu-busy", FIRST, "error")
    assert "77" in finding.message


HUNG = Nvml(status="timed-out", call="nvmlDeviceGetMemoryInfo_v2")


@pytest.mark.parametrize("if_busy", ["fail", "skip", "wait"])
@pytest.mark.parametrize("cards", [TWO, (card(FIRST, 1, processes=()), Card(SECOND, "nvidia"))])
def test_a_card_is_left_alone_where_nvml_hung_before_it_named_the_processes(cards, if_busy):
    chosen = plan("auto", cards, nvml=HUNG, if_busy=if_busy)
    assert isinstance(chosen, DoNotTrain)
    assert (chosen.verdict, chosen.cards) == ("not-run", cards)
    (finding,) = chosen.findings
    assert (finding.name, finding.severity) == ("nvml-timeout", "error")
    assert finding.evidence[0].source == HUNG.call


def test_nothing_is_trained_on_cards_that_neither_pci_nor_a_hung_nvml_named():
    chosen = plan("gpu", None, nvml=HUNG)
    assert isinstance(chosen, DoNotTrain)
    assert (chosen.verdict, [finding.name for finding in chosen.findings]) == ("not-run", ["nvml-timeout"])


def test_a_hang_after_the_processes_were_read_stops_nothing():
    cards = tuple(card(address, processes=()) for address in (FIRST, SECOND))
    assert isinstance(plan("auto", cards, nvml=HUNG), Train)
    assert isinstance(plan("auto", (*cards, Card(THIRD, "amd")), nvml=HUNG), Train)


def test_a_driver_that_cannot_name_the_processes_stops_nothing():
    assert isinstance(plan("auto", TWO, nvml=Nvml(status="ok")), Train)
    assert isinstance(plan("auto", TWO, nvml=Nvml(status="failed", code=9)), Train)


def test_a_busy_card_can_be_left_out_by_its_uuid():
    cards = (card(FIRST, 1, processes=(77,)), card(SECOND, 2, processes=()))
    chosen = plan("auto", cards, if_busy="skip")
    assert isinstance(chosen, Train)
    assert (chosen.cards, chosen.left_out) == (cards[1:], cards[:1])
    assert dict(chosen.environment)["CUDA_VISIBLE_DEVICES"] == "GPU-20000"
    assert [(finding.name, finding.severity) for finding in chosen.findings] == [("gpu-busy", "warning")]


def test_with_every_card_busy_there_is_nothing_to_skip_to():
    chosen = plan("auto", (card(FIRST, 1, processes=(77,)),), if_busy="skip")
    assert isinstance(chosen, DoNotTrain)
    assert chosen.verdict == "not-run"


def test_a_busy_card_outside_the_grant_does_not_matter():
    cards = (card(FIRST, 1, processes=(77,)), card(SECOND, 2, processes=()))
    chosen = plan("auto", cards, environ={"CUDA_VISIBLE_DEVICES": "1"})
    assert isinstance(chosen, Train)
    assert (chosen.cards, chosen.left_out) == (cards[1:], cards[:1])


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
def test_cards_that_the_environment_hides_are_no_reason_to_train_on_a_cpu(value):
    chosen = plan("auto", TWO, environ={"CUDA_VISIBLE_DEVICES": value})
    assert isinstance(chosen, DoNotTrain)
    assert chosen.verdict == "fail"
    assert [finding.name for finding in chosen.findings] == ["tensorflow-sees-no-gpu"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [FIRST, SECOND, THIRD]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, [SECOND, FIRST]),
        ({"CUDA_VISIBLE_DEVICES": "0,9,1"}, [FIRST]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-2"}, [SECOND]),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, [FIRST, SECOND, THIRD]),
        ({"NVIDIA_VISIBLE_DEVICES": "0,1"}, [FIRST, SECOND]),
        ({"SLURM_JOB_GPUS": "0,1"}, [FIRST, SECOND]),
    ],
)
def test_a_declared_allotment_narrows_what_is_expected(environ, expected):
    """The third card is on PCI, but NVML does not list it: lost, or not granted."""
    cards = (*TWO, Card(THIRD, "nvidia"))
    assert [card.address for card in granted(cards, environ)] == expected


def test_cards_come_from_the_machine_in_the_order_of_addresses():
    machine = Machine(
        gpus=(
            Gpu(address=SECOND, vendor="nvidia", nvml=NvmlGpu(index=1, uuid="GPU-2", processes=(5,))),
            Gpu(address=FIRST, vendor="nvidia", name="Tesla P40"),
        )
    )
    assert cards_of(machine) == (
        Card(FIRST, "nvidia", name="Tesla P40"),
        Card(SECOND, "nvidia", uuid="GPU-2", in_nvml=True, processes=(5,)),
    )
    assert cards_of(Machine()) is None
    assert cards_of(Machine(gpus=())) == ()


@pytest.mark.parametrize(("batch", "replicas"), [(64, 4), (50, 4), (3, 3), (7, 2), (1, 1)])
def test_a_batch_is_divided_without_loss(batch, replicas):
    shards = split(batch, replicas)
    covered = [sample for shard in shards for sample in range(shard.first, shard.first + shard.count)]
    assert covered == list(range(batch))
    assert max(shard.count for shard in shards) - min(shard.count for shard in shards) <= 1


def test_no_replica_goes_without_a_sample():
    with pytest.raises(ValueError, match="too few"):
        split(3, 4)


def test_a_job_survives_its_way_to_the_worker():
    job = Job("cpu", 2, shards=(Shard(0, 3), Shard(3, 5)), global_batch=8)
    assert Job.from_json(job.to_json()) == job


# --- shares by speed, meshes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "speeds", "counts"),
    [
        (64, (1.0, 1.0, 1.0, 1.0), (16, 16, 16, 16)),
        (64, (4.0, 2.0, 1.0, 1.0), (32, 16, 8, 8)),
        (10, (1.0, 2.0), (3, 7)),
        (4, (1000.0, 1.0, 1.0, 1.0), (1, 1, 1, 1)),
        (8, (1000.0, 1.0, 1.0), (6, 1, 1)),
        (5, (7.0,), (5,)),
    ],
)
def test_shares_go_by_speed(batch, speeds, counts):
    assert tuple(shard.count for shard in by_speed(batch, speeds)) == counts


@given(
    speeds=st.lists(st.floats(min_value=1e-3, max_value=1e9), min_size=1, max_size=16),
    more=st.integers(min_value=0, max_value=5000),
)
def test_shares_by_speed_cover_the_batch_and_leave_nobody_out(speeds, more):
    batch = len(speeds) + more
    shards = by_speed(batch, speeds)
    covered = [sample for shard in shards for sample in range(shard.first, shard.first + shard.count)]
    assert covered == list(range(batch))
    assert min(shard.count for shard in shards) >= 1
    by_pace = sorted(zip(speeds, shards, strict=True), key=lambda pair: pair[0])
    counts = [shard.count for _, shard in by_pace]
    assert all(later >= earlier - 1 for earlier, later in itertools.pairwise(counts))


def test_shares_by_speed_need_a_sample_for_each():
    with pytest.raises(ValueError, match="too few"):
        by_speed(1, (1.0, 2.0))


@pytest.mark.parametrize(
    ("strategy", "devices", "shape"),
    [
        ("model", 3, (1, 3)),
        ("hybrid", 4, (2, 2)),
        ("hybrid", 6, (3, 2)),
        ("hybrid", 12, (4, 3)),
        ("hybrid", 16, (4, 4)),
    ],
)
def test_devices_make_a_mesh(strategy, devices, shape):
    assert mesh(strategy, devices) == shape


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 7])
def test_a_prime_number_of_devices_makes_none(devices):
    with pytest.raises(ValueError, match="no mesh"):
        mesh("hybrid", devices)
    with pytest.raises(UsageError, match="mesh"):
        plan(f"cpu:{devices}", (), strategy="hybrid")


def test_what_cannot_be_divided_is_a_usage_error():
    with pytest.raises(UsageError, match="share by its speed"):
        plan("cpu:4", (), strategy="model", split="auto")
    with pytest.raises(UsageError, match="rows"):
        plan("cpu:4", (), strategy="hybrid", global_batch=65)
    with pytest.raises(UsageError, match="mesh"):
        plan("auto", TWO, strategy="hybrid")


def test_without_a_card_a_mesh_gets_four_logical_devices():
    chosen = plan("auto", (), strategy="hybrid", mode="infer")
    assert isinstance(chosen, Train)
    assert (chosen.job.replicas, chosen.job.strategy, chosen.job.mode) == (4, "hybrid", "infer")


# --- the size of the work -------------------------------------------------------------------------

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "width", "batch"),
    [
        ((None,), 64, 2048),
        ((24 * GIB, None), 64, 2048),
        ((64 << 20,), 64, 256),
        ((2 * GIB,), 64, 4854),
        ((24 * GIB,), 64, 32768),
        ((2 * GIB, 80 * GIB), 64, 4854),
        ((80 * GIB,), 256, 32768),
    ],
)
def test_the_work_is_fitted_to_the_smallest_card(free, width, batch):
    assert size(free) == (width, batch)


@given(free=st.integers(min_value=256 << 20, max_value=200 * GIB))
def test_the_load_never_takes_more_than_its_share(free):
    width, batch = size([free])
    assert batch * sample_bytes(width) <= LOAD_SHARE * free
    smaller_width, smaller_batch = size([free // 2])
    assert batch * sample_bytes(width) >= smaller_batch * sample_bytes(smaller_width)


@pytest.mark.parametrize(
    ("cards", "split_", "seconds"), [(1, "even", 5.0), (4, "even", 2.0), (8, "auto", 1.0), (64, "even", 1.0)]
)
def test_all_measurements_take_ten_seconds_but_one_never_less_than_nvml_needs(cards, split_, seconds):
    assert load_seconds(cards, split_) == seconds


def test_the_job_for_cards_follows_their_free_memory():
    nvml = NvmlGpu(index=0, memory_total_bytes=24 * GIB, memory_used_bytes=22 * GIB)
    (free,) = cards_of(Machine(gpus=(Gpu(address=FIRST, vendor="nvidia", nvml=nvml),)))
    assert free.free_bytes == 2 * GIB
    chosen = plan("gpu", (free,), split="auto")
    assert isinstance(chosen, Train)
    assert (chosen.job.width, chosen.job.load_batch, chosen.job.by_speed) == (64, 4854, True)
