"""NVML through the real pynvml and a scripted C library."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml, Script, device, script

from gpucheck.facts import Link, Nvml, NvmlGpu, Parts
from gpucheck.host import LiveHost
from gpucheck.readers import nvml
from gpucheck.readers.nvml_watch import Sample, Watch

Use = Callable[[Script], None]
LONG = 60.0  # never reached
SHORT = 2.0  # for what hangs; enough to get there


@pytest.fixture
def use(fake_nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Use:
    """Let processes started from here on meet this script."""

    def install(wanted: Script) -> None:
        for name, value in fake_nvml.environment(wanted).items():
            monkeypatch.setenv(name, value)

    return install


def ask(timeout: float = LONG) -> Parts:
    return nvml.read(LiveHost(), timeout)


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def ask_until_hung_in(call: str, index: int) -> Parts:
    calls: list[dict[str, Any]] = []
    child = nvml.Child(calls.append, patience=LONG)
    wait_until(lambda: child.begun == {"call": call, "device": index})
    end = child.finish(time.monotonic())
    return nvml.parse({**end, "calls": calls + end["calls"]})


def asked() -> tuple[Nvml, tuple[NvmlGpu, ...]]:
    return started(ask())


def started(parts: Parts) -> tuple[Nvml, tuple[NvmlGpu, ...]]:
    assert parts.nvml is not None
    return parts.nvml, parts.nvml.gpus or ()


def reasons(parts: Parts) -> dict[str, str]:
    return {gap.fact: gap.reason for gap in parts.gaps}


# --- healthy ----------------------------------------------------------------------------------


def test_two_healthy_cards(use: Use) -> None:
    busy = [{"pid": 4321, "used_bytes": 1 << 30}, {"pid": 4322}]
    use(script(device(0), device(1, name="Tesla P40", ecc=1, mig=0, persistence=1, processes=busy)))
    whole, (first, second) = asked()

    assert (whole.status, whole.code, whole.message) == ("ok", None, None)
    assert whole.driver_version == "550.163.01"
    assert whole.nvml_version == "12.550.163.01"
    assert whole.cuda_version == "12.4"
    assert first.model_dump(exclude={"errors"}) == {
        "index": 0,
        "address": "0000:04:00.0",
        "name": "NVIDIA GeForce RTX 3090",
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "minor": 0,
        "pci_id": "10de:2204",
        "subsystem_id": "1043:87d5",
        "memory_total_bytes": 24576 << 20,
        "memory_used_bytes": 300 << 20,
        "bar1_bytes": 256 << 20,
        "compute_capability": "8.6",
        "vbios": "94.02.42.00.b4",
        "link": Link(width=16, max_width=16, speed_gts=2.5, max_speed_gts=8.0).model_dump(),
        "temperature_c": 35,
        "power_watts": 31.25,
        "power_limit_watts": 300.0,
        "power_default_limit_watts": 350.0,
        "power_max_limit_watts": 366.0,
        "performance_state": 8,
        "utilization_percent": 0,
        "sm_clock_mhz": 210,
        "sm_max_clock_mhz": 2100,
        "clock_reasons": ("idle",),
        "ecc_enabled": None,
        "ecc_volatile_corrected": None,
        "ecc_volatile_uncorrected": None,
        "ecc_aggregate_corrected": None,
        "ecc_aggregate_uncorrected": None,
        "retired_pages_single_bit": None,
        "retired_pages_double_bit": None,
        "retired_pages_pending": None,
        "remapped_rows_corrected": None,
        "remapped_rows_uncorrected": None,
        "remapped_rows_pending": None,
        "remapped_rows_failed": None,
        "mig_enabled": False,
        "mig_devices": None,
        "fabric_state": None,
        "persistence": False,
        "pcie_replays": 0,
        "processes": (),
    }
    assert first.errors["nvmlDeviceGetEccMode"] == 3
    assert (second.name, second.ecc_enabled, second.mig_enabled) == ("Tesla P40", True, False)
    assert second.persistence is True
    assert second.processes == (4321, 4322)


MEMORY = {
    "ecc_volatile_corrected": 5,
    "ecc_volatile_uncorrected": 1,
    "ecc_aggregate_corrected": 70,
    "ecc_aggregate_uncorrected": 2,
    "retired_pages_single_bit": 3,
    "retired_pages_double_bit": 0,
    "retired_pages_pending": 1,
    "remapped_rows_corrected": 4,
    "remapped_rows_uncorrected": 6,
    "remapped_rows_pending": 0,
    "remapped_rows_failed": 1,
}


def test_memory_health(use: Use) -> None:
    use(script(device(0, ecc=1, **MEMORY)))
    _, (gpu,) = asked()
    assert gpu.model_dump(include=set(MEMORY)) == MEMORY


@pytest.mark.parametrize("older", [{}, {"nvmlDeviceGetCurrentClocksEventReasons": 13}])
def test_why_clocks_are_low(use: Use, older: dict[str, int]) -> None:
    use(script(device(0, throttle_reasons=0x88), device(1, throttle_reasons=0x264), device(2), calls=older))
    parts = ask()
    _, gpus = started(parts)
    assert [gpu.clock_reasons for gpu in gpus] == [
        ("hw-slowdown", "hw-power-brake"),
        ("sw-power-cap", "sw-thermal", "hw-thermal", "0x200"),
        ("idle",),
    ]
    assert not [gap for gap in parts.gaps if "clock_reasons" in gap.how]


def test_mig_devices_are_counted_where_mig_is_on(use: Use) -> None:
    use(script(device(0, mig=1, mig_devices=3), device(1, mig=1, mig_devices=0), device(2, mig=0), device(3)))
    _, gpus = asked()
    assert [(gpu.mig_enabled, gpu.mig_devices) for gpu in gpus] == [(True, 3), (True, 0), (False, None), (False, None)]


def test_a_mig_device_that_does_not_answer_leaves_their_number_open(use: Use) -> None:
    use(script(device(0, mig=1, mig_devices=3, calls={"nvmlDeviceGetMigDeviceHandleByIndex": [0, 4]})))
    parts = ask()
    _, (gpu,) = started(parts)
    assert (gpu.mig_enabled, gpu.mig_devices) == (True, None)
    assert [gap.reason for gap in parts.gaps if "mig_devices" in gap.how] == ["needs-root"]


@pytest.mark.parametrize("code", [0, 13, 25])
def test_the_state_of_the_fabric_by_either_name(use: Use, code: int) -> None:
    states = (0, 1, 2, 3, 9)
    use(script(*(device(n, fabric_state=s) for n, s in enumerate(states)), calls={"nvmlDeviceGetGpuFabricInfoV": code}))
    _, gpus = asked()
    assert [gpu.fabric_state for gpu in gpus] == ["not-supported", "not-started", "in-progress", "completed", None]


@pytest.mark.parametrize(("status", "state"), [(0, "completed"), (10, None)])
def test_a_fabric_that_ended_with_an_error_is_not_completed(status: int, state: str | None) -> None:
    calls = [
        {"call": "nvmlInit", "code": 0},
        {"call": "nvmlDeviceGetCount", "code": 0, "value": 1},
        {"call": "nvmlDeviceGetGpuFabricInfoV", "device": 0, "code": 0, "value": {"state": 3, "status": status}},
    ]
    listed = nvml.parse({"calls": calls, "timed_out": False, "exit_code": 0}).nvml
    assert listed is not None
    assert [gpu.fabric_state for gpu in listed.gpus or ()] == [state]


def test_pairs_are_asked_among_a_few_cards_only(use: Use) -> None:
    for count, pairs in ((8, 56), (9, 0)):
        use(script(*map(device, range(count))))
        calls = [call["call"] for call in nvml.start_child(LONG)()["calls"]]
        assert calls.count("nvmlDeviceGetP2PStatus") == pairs


def test_no_card_is_an_empty_list(use: Use) -> None:
    use(script())
    whole, _ = asked()
    assert (whole.status, whole.gpus) == ("ok", ())


def test_an_8_digit_domain(use: Use) -> None:
    use(script(device(0, address="10000:01:00.0"), device(1, address="000e:00:00.0")))
    _, gpus = asked()
    assert [gpu.address for gpu in gpus] == ["10000:01:00.0", "000e:00:00.0"]


def test_hostile_names(use: Use) -> None:
    use(script(device(0, name="\x1b[31mTesla\x07\u202e P40"), device(1, name="P4\udcff\udcfe\n0", vbios=" ")))
    parts = ask()
    _, (first, second) = started(parts)
    assert first.name == "Tesla P40"
    assert second.name is None
    assert second.vbios is None
    told = [gap.how for gap in parts.gaps if "no text" in gap.how]
    assert len(told) == 1
    assert told[0].startswith("Not read: name. ")


def test_a_performance_state_that_nvml_does_not_know(use: Use) -> None:
    use(script(device(0, performance_state=32, link_width=0)))
    _, (gpu,) = asked()
    assert gpu.performance_state is None
    assert gpu.link.width is None


def test_what_an_older_library_lacks_is_asked_by_its_older_name(use: Use) -> None:
    lacks = dict.fromkeys(
        [
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetCurrentClocksEventReasons",
        ],
        13,
    )
    use(script(device(0, processes=[{"pid": 77, "used_bytes": 5}]), calls=lacks))
    _, (gpu,) = asked()
    assert gpu.memory_total_bytes == 24576 << 20
    assert gpu.processes == (77,)
    assert not {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses"} & set(gpu.errors)


def test_values_that_the_card_does_not_give(use: Use) -> None:
    bare = {"address": "0000:04:00.0", "name": "Quadro", "uuid": "GPU-1"}
    use(script(bare))
    parts = ask()
    assert parts.nvml is not None
    assert parts.nvml.gpus is not None
    (gpu,) = parts.nvml.gpus
    given = {key for key, value in gpu.model_dump().items() if value is not None}
    # no process is running: that was read; and a card that knows no MIG is not in it
    assert given == {"index", "address", "name", "uuid", "link", "processes", "errors", "mig_enabled"}
    assert gpu.link == Link()
    assert set(gpu.errors.values()) == {3}
    (gap,) = parts.gaps
    assert (gap.fact, gap.reason) == ("gpus.0000:04:00.0.nvml", "not-supported")
    assert "power_watts" in gap.how


def test_every_optional_call_failing(use: Use) -> None:
    use(script(device(0, calls={"*": 3, "nvmlDeviceGetHandleByIndex": 0})))
    whole, (gpu,) = asked()
    assert whole.status == "ok"
    assert gpu.address is None
    assert gpu.processes is None
    assert set(gpu.errors.values()) == {3}


def test_a_fault_in_the_bindings_costs_one_value(use: Use) -> None:
    answers = {
        "calls": [
            {"call": "nvmlInit", "code": 0},
            {"call": "nvmlDeviceGetCount", "code": 0, "value": 1},
            {"call": "nvmlDeviceGetName", "device": 0, "code": None, "error": "ArgumentError: no"},
            {"call": "nvmlDeviceGetMinorNumber", "device": 0, "code": 0, "value": 4},
        ],
        "timed_out": False,
        "exit_code": 0,
    }
    parts = nvml.parse(answers)
    assert parts.nvml is not None
    assert parts.nvml.gpus is not None
    assert parts.nvml.gpus[0].minor == 4
    assert reasons(parts) == {"nvml.gpus.0": "unreadable"}


# --- lost cards -------------------------------------------------------------------------------


def test_a_card_that_cannot_be_opened_keeps_its_place(use: Use) -> None:
    use(script(device(0), device(1, calls={"nvmlDeviceGetHandleByIndex": 15}), device(2)))
    parts = ask()
    assert parts.nvml is not None
    assert parts.nvml.status == "ok"
    assert parts.nvml.gpus is not None
    assert [gpu.address for gpu in parts.nvml.gpus] == ["0000:04:00.0", None, "0000:84:00.0"]
    assert parts.nvml.gpus[1].errors == {"nvmlDeviceGetHandleByIndex": 15}
    assert reasons(parts)["nvml.gpus.1"] == "unreadable"


def test_a_card_lost_after_it_was_opened_is_asked_no_more(use: Use) -> None:
    use(script(device(0), device(1, calls={"nvmlDeviceGetName": 15})))
    parts = ask()
    assert parts.nvml is not None
    assert parts.nvml.gpus is not None
    lost = parts.nvml.gpus[1]
    assert lost.address == "0000:44:00.0"
    assert lost.errors == {"nvmlDeviceGetName": 15}
    assert lost.power_watts is None
    (gap,) = [gap for gap in parts.gaps if gap.fact == "gpus.0000:44:00.0.nvml"]
    assert gap.reason == "unreadable"
    assert parts.nvml.gpus[0].power_watts == 31.25


def test_a_card_lost_at_the_last_call(use: Use) -> None:
    use(script(device(0, calls={"nvmlDeviceGetP2PStatus": [0, 15]}), device(1), device(2)))
    whole, gpus = asked()
    assert whole.status == "ok"
    assert gpus[0].errors["nvmlDeviceGetP2PStatus"] == 15
    assert "nvmlDeviceGetP2PStatus" not in gpus[1].errors


# --- NVML as a whole --------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "words"), [(9, "not loaded"), (18, "different versions"), (999, "unknown")])
def test_nvml_that_does_not_start(use: Use, code: int, words: str) -> None:
    use(script(device(0), calls={"nvmlInit": code}))
    parts = ask()
    assert parts.nvml is not None
    assert (parts.nvml.status, parts.nvml.call, parts.nvml.code) == ("failed", "nvmlInit", code)
    assert parts.nvml.gpus is None
    assert words in str(parts.nvml.message)
    assert reasons(parts) == {"nvml": "unreadable"}


def test_a_count_that_fails(use: Use) -> None:
    use(script(device(0), calls={"nvmlDeviceGetCount": 999}))
    whole, _ = asked()
    assert (whole.status, whole.call, whole.code, whole.gpus) == ("failed", "nvmlDeviceGetCount", 999, None)
    assert whole.driver_version == "550.163.01"


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has an NVIDIA driver")
    parts = ask()
    assert parts.nvml is not None
    assert (parts.nvml.status, parts.nvml.code, parts.nvml.gpus) == ("library-absent", 12, None)
    assert reasons(parts) == {"nvml": "file-absent"}


def test_an_empty_file_in_place_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    whole, _ = asked()
    assert (whole.status, whole.code) == ("failed", 12)
    assert "file too short" in str(whole.message)


def test_a_library_that_crashes(use: Use) -> None:
    use(script(device(0), device(1, calls={"nvmlDeviceGetVbiosVersion": "crash"})))
    whole, gpus = asked()
    assert (whole.status, whole.call) == ("failed", "nvmlDeviceGetVbiosVersion")
    assert "device 1 (0000:44:00.0)" in str(whole.message)
    assert len(gpus) == 2
    assert gpus[0].vbios == "94.02.42.00.b4"


# --- hangs ------------------------------------------------------------------------------------


def test_a_hang_at_the_start(use: Use) -> None:
    use(script(device(0), calls={"nvmlInit": "hang"}))
    parts = ask(SHORT)
    assert parts.nvml is not None
    assert (parts.nvml.status, parts.nvml.call, parts.nvml.gpus) == ("timed-out", "nvmlInit", None)
    assert reasons(parts) == {"nvml": "timed-out"}


def test_a_hang_at_one_card_keeps_what_was_read(use: Use) -> None:
    cards = [device(index) for index in range(4)]
    cards[2]["calls"] = {"nvmlDeviceGetPowerUsage": "hang"}
    use(script(*cards))
    whole, gpus = started(ask_until_hung_in("nvmlDeviceGetPowerUsage", 2))
    assert (whole.status, whole.call) == ("timed-out", "nvmlDeviceGetPowerUsage")
    assert "device 2 (0000:84:00.0)" in str(whole.message)
    assert [gpu.address for gpu in gpus] == ["0000:04:00.0", "0000:44:00.0", "0000:84:00.0", "0000:c4:00.0"]
    assert [gpu.power_watts for gpu in gpus] == [31.25, 31.25, None, None]


def test_a_hang_when_a_card_is_opened_keeps_all_places(use: Use) -> None:
    use(script(device(0), device(1, calls={"nvmlDeviceGetHandleByIndex": "hang"}), device(2)))
    whole, gpus = started(ask_until_hung_in("nvmlDeviceGetHandleByIndex", 1))
    assert (whole.status, whole.call) == ("timed-out", "nvmlDeviceGetHandleByIndex")
    assert [gpu.index for gpu in gpus] == [0, 1, 2]


def test_a_slow_driver_is_waited_for(use: Use) -> None:
    use(script(device(0), delays={"nvmlInit": 0.3}))
    whole, gpus = asked()
    assert whole.status == "ok"
    assert len(gpus) == 1


def test_a_hung_child_ends_without_its_parent(use: Use) -> None:
    use(script(calls={"nvmlInit": "hang"}))
    done = subprocess.run(nvml.child_command(SHORT), capture_output=True, timeout=LONG, check=False)
    assert done.returncode == 1
    assert done.stdout == b'{"call": "nvmlInit"'


def test_the_childs_own_clock_counts_as_a_hang(use: Use) -> None:
    use(script(calls={"nvmlInit": "hang"}))
    calls: list[dict[str, Any]] = []
    end = nvml.Child(calls.append, patience=SHORT).finish(time.monotonic() + LONG)
    assert end == {"calls": [{"call": "nvmlInit"}], "timed_out": True, "exit_code": None}


# --- bindings and inputs ----------------------------------------------------------------------


def parts_with_bindings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Parts:
    others = [entry for entry in sys.path if not (Path(entry) / "pynvml.py").exists()]
    monkeypatch.setattr(sys, "path", [str(folder), *others])
    return ask()


def test_no_bindings(use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(script(device(0)))
    parts = parts_with_bindings(tmp_path, monkeypatch)
    assert parts.nvml is None
    (gap,) = parts.gaps
    assert (gap.fact, gap.reason, gap.how) == ("nvml", "tool-absent", "pip install nvidia-ml-py")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pynvml/__init__.py", "def nvmlInit(): pass\ndef nvmlDeviceGetHandleByIndex(index): pass\n"),
        ("pynvml.py", "def nvmlInit(): pass\n"),
    ],
    ids=["package", "module"],
)
def test_foreign_bindings(use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str) -> None:
    use(script(device(0)))
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    parts = parts_with_bindings(tmp_path, monkeypatch)
    assert parts.nvml is None
    (gap,) = parts.gaps
    assert gap.reason == "tool-absent"
    assert "pip uninstall -y pynvml && pip install --force-reinstall nvidia-ml-py" in gap.how


def test_a_child_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    parts = ask()
    assert parts.nvml is None
    assert reasons(parts) == {"nvml": "unreadable"}


def test_a_folder_holds_no_answers(tmp_path: Path) -> None:
    parts = nvml.read(LiveHost(tmp_path))
    assert parts.nvml is None
    assert reasons(parts) == {"nvml": "not-in-input"}


def test_answers_replay_from_json(use: Use) -> None:
    use(script(device(0), device(1, calls={"nvmlDeviceGetUUID": 15})))
    answers = nvml.start_child(LONG)()
    assert nvml.parse(json.loads(json.dumps(answers))) == nvml.parse(answers)


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"calls": None},
        {"calls": []},
        {"calls": [None, 3, {"call": 4}, {"call": "nvmlInit", "code": "zero"}]},
    ],
)
def test_answers_that_are_none(answers: dict[str, Any]) -> None:
    parts = nvml.parse(answers)
    assert parts.nvml is None
    assert reasons(parts) == {"nvml": "unreadable"}


def test_a_damaged_answer_costs_its_value() -> None:
    wrong: list[Any] = [True, None, "text", [], [None], {"busId": 7, "used": "x"}, [{"pid": None}, 3]]
    for value in wrong:
        calls = [
            {"call": "nvmlDeviceGetCount", "code": 0, "value": 10**9},
            *({"call": call, "device": 0, "code": 0, "value": value} for call in nvml._FACTS),
        ]
        parts = nvml.parse({"calls": calls})
        assert parts.nvml is not None
        assert parts.nvml.gpus is not None
        assert parts.nvml.gpus[0].memory_used_bytes is None
        # The count is damaged too: it makes no cards, and counts none.
        assert (len(parts.nvml.gpus), parts.nvml.complete) == (1, False)
        assert reasons(parts)["nvml.complete"] == "unreadable"


# --- watching ---------------------------------------------------------------------------------


def watched(count: int) -> tuple[list[Sample], Parts]:
    """Watch until there are so many samples."""
    watch = Watch(interval=0.01)
    watch.start()
    assert watch.wait_ready(LONG)
    wait_until(lambda: len(watch.samples) >= count)
    return watch.stop(LONG), watch.parts


def test_a_watch_sees_values_change(use: Use) -> None:
    working = device(
        0,
        memory_used_bytes=[300 << 20, 300 << 20, 2 << 30],
        utilization_percent=[0, 0, 97],
        energy_mj=[1000, 1500, 90_000],
        processes=[{"pid": [0, 0, 1234], "used_bytes": 1 << 30}],
    )
    use(script(working, device(1)))
    samples, parts = watched(8)
    first = [sample for sample in samples if sample.address == "0000:04:00.0"]
    assert [sample.memory_used_bytes for sample in first[:4]] == [300 << 20, 300 << 20, 2 << 30, 2 << 30]
    assert [sample.utilization_percent for sample in first[:4]] == [0, 0, 97, 97]
    assert [sample.energy_joules for sample in first[:4]] == [1.0, 1.5, 90.0, 90.0]
    assert [sample.pids for sample in first[:4]] == [(), (), (1234,), (1234,)]
    assert first[2].pid_memory == {1234: 1 << 30}
    assert (first[0].power_watts, first[0].sm_clock_mhz, first[0].clock_reasons) == (31.25, 210, ("idle",))
    assert (first[0].uuid, first[-1].uuid) == (working["uuid"],) * 2
    assert (first[0].temperature_c, first[0].performance_state) == (35, 8)
    assert [sample.seconds for sample in samples] == sorted(sample.seconds for sample in samples)
    assert {sample.address for sample in samples} == {"0000:04:00.0", "0000:44:00.0"}
    assert parts.nvml is not None
    assert parts.nvml.status == "ok"


def test_a_watch_sees_a_process_come_and_go(use: Use) -> None:
    card = device(
        0,
        memory_used_bytes={"idle": 10, "busy": 5000},
        processes=[{"pid": "siblings", "used_bytes": 4000}],
    )
    use(script(card))
    watch = Watch(interval=0.01)
    watch.start()
    assert watch.wait_ready(LONG)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        wait_until(lambda: bool(watch.samples[-1].pids))
        busy = watch.samples[-1]
        worker.communicate(b"\n")
    wait_until(lambda: not watch.samples[-1].pids)
    samples = watch.stop(LONG)
    assert (samples[0].pids, samples[0].memory_used_bytes) == ((), 10)
    assert (busy.pids, busy.memory_used_bytes) == ((worker.pid,), 5000)
    assert busy.pid_memory == {worker.pid: 4000}
    assert (samples[-1].pids, samples[-1].memory_used_bytes) == ((), 10)


def test_a_card_lost_under_watch(use: Use) -> None:
    use(script(device(0, calls={"nvmlDeviceGetPowerUsage": [0, 0, 15]}), device(1)))
    samples, _ = watched(12)
    lost = [sample for sample in samples if sample.index == 0]
    assert len(lost) == 3
    assert lost[-1].errors["nvmlDeviceGetPowerUsage"] == 15
    assert lost[-1].power_watts is None
    assert [sample.lost for sample in lost] == [False, False, True]
    assert len([sample for sample in samples if sample.index == 1]) > 3


def test_errors_that_rise_under_watch(use: Use) -> None:
    counting = device(
        0,
        pcie_replays=[0, 3],
        ecc_volatile_corrected=[1, 1, 4000],
        ecc_volatile_uncorrected=0,
    )
    use(script(counting, device(1)))
    samples, _ = watched(8)
    first, second = ([sample for sample in samples if sample.index == index] for index in (0, 1))
    assert [sample.pcie_replays for sample in first[:3]] == [0, 3, 3]
    assert [sample.ecc_corrected for sample in first[:3]] == [1, 1, 4000]
    assert {sample.ecc_uncorrected for sample in first} == {0}
    assert {sample.ecc_corrected for sample in second} == {None}  # a card that does not count


def test_a_value_that_stops_being_given_is_none_again(use: Use) -> None:
    use(script(device(0, calls={"nvmlDeviceGetPowerUsage": [0, 999]})))
    samples, _ = watched(3)
    assert [sample.power_watts for sample in samples[:3]] == [31.25, None, None]
    assert "nvmlDeviceGetPowerUsage" not in samples[0].errors


def test_a_hang_under_watch(use: Use) -> None:
    use(script(device(0), device(1, calls={"nvmlDeviceGetClockInfo": "hang"})))
    watch = Watch(interval=0.01)
    watch.start()
    child = watch._child
    assert child is not None
    wait_until(lambda: child.begun == {"call": "nvmlDeviceGetClockInfo", "device": 1})
    assert not watch.wait_ready(0.01)
    samples = watch.stop(timeout=0.1)
    assert [sample.index for sample in samples] == [0]
    assert watch.parts.nvml is not None
    assert (watch.parts.nvml.status, watch.parts.nvml.call) == ("timed-out", "nvmlDeviceGetClockInfo")
    assert "device 1 (0000:44:00.0)" in str(watch.parts.nvml.message)


def test_a_watch_without_a_driver(use: Use) -> None:
    use(script(device(0), calls={"nvmlInit": 9}))
    watch = Watch()
    watch.start()
    assert not watch.wait_ready(LONG)
    assert watch.stop() == []
    assert watch.parts.nvml is not None
    assert (watch.parts.nvml.status, watch.parts.nvml.code) == ("failed", 9)


def test_a_watch_that_is_stopped_at_once_looks_once(use: Use) -> None:
    use(script(device(0)))
    watch = Watch()
    watch.start()
    assert [sample.index for sample in watch.stop(LONG)] == [0]
    assert watch.stop() == watch.samples
    assert watch.parts.nvml is not None
    assert watch.parts.nvml.status == "ok"


def test_a_watch_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    watch = Watch()
    watch.start()
    assert not watch.wait_ready(LONG)
    assert watch.stop() == []
    assert reasons(watch.parts) == {"nvml": "unreadable"}


# --- promises ---------------------------------------------------------------------------------


def test_nothing_but_questions_is_asked() -> None:
    allowed = re.compile(r"nvml((Device|System)Get|Init|Shutdown)\w*")
    for file in Path(nvml.__file__).parent.glob("nvml*.py"):
        names = set(re.findall(r"\bnvml[A-Z]\w*", file.read_text())) - {"nvmlReturn_t"}
        assert [name for name in sorted(names) if not allowed.fullmatch(name)] == []


def test_pynvml_knows_what_is_asked() -> None:
    import pynvml

    source = Path(nvml.__file__).with_name("nvml_child.py").read_text()
    names = set(re.findall(r"\bnvml(?:Device|System|Init)\w*", source))
    assert len(names) > 30
    assert [name for name in sorted(names) if not hasattr(pynvml, name)] == []


def test_every_fact_is_asked_for(use: Use) -> None:
    older = {"nvmlDeviceGetCurrentClocksEventReasons": 13, "nvmlDeviceGetGpuFabricInfoV": 13}
    use(script(device(0, mig=1, mig_devices=1), calls=older))
    calls = nvml.start_child(LONG)()["calls"]
    names = {re.sub(r"_v\d$", "", call["call"]) for call in calls}
    assert {*nvml._FACTS, *nvml._SYSTEM_FACTS} <= names


def test_pynvml_stays_out_of_this_process() -> None:
    code = "import sys, gpucheck.readers.nvml, gpucheck.readers.nvml_watch; print('pynvml' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout == "False\n"
