"""NVML, NVIDIA's management library, asked through pynvml in a child process.

The answers (what a capture stores) are every call in order, with its return code::

    {"calls": [{"call": "nvmlInit", "code": 0},
               {"call": "nvmlDeviceGetName", "device": 0, "code": 0, "value": "Tesla P40"},
               {"call": "nvmlDeviceGetEccMode", "device": 1, "code": 15},
               {"call": "nvmlDeviceGetPowerUsage", "device": 2}],
     "timed_out": true, "exit_code": null}

A call without ``code`` was begun and never returned: it hung (``timed_out``) or the library took the
process down with it (``exit_code``, negative for a signal). ``code`` is null where pynvml itself
failed. ``arguments`` tells calls of one name apart. Instead of ``nvmlInit`` there may be
``{"bindings": "absent"}`` or ``"foreign"``; instead of all calls an ``error``, why there was no child.

What a time-out leaves: the child reads identities of all cards before their state, and NVML counts
as started once it has counted. So a hang before ``nvmlDeviceGetCount`` returned makes ``gpus`` None,
and a later one keeps an entry for every card that NVML counted, with what was read by then.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TypeGuard

from gpucheck.facts import Gap, GapReason, Link, Nvml, NvmlGpu, Parts, pci_address
from gpucheck.host import Host, NvmlAnswers, end_group
from gpucheck.text import say

LIBRARY_NOT_FOUND = 12

MEANINGS = {
    1: "NVML was not started",
    2: "the arguments were refused",
    3: "not supported by this card or driver",
    4: "this user may not ask that",
    6: "not found",
    8: "the card's auxiliary power is not connected",
    9: "the NVIDIA kernel driver is not loaded",
    10: "the driver did not answer NVML in time",
    11: "the card's interrupts do not arrive",
    12: "the library libnvidia-ml.so.1 is not installed",
    13: "the installed driver does not have this function",
    14: "the card's infoROM is corrupt",
    15: "the card is lost: it fell off the bus or cannot be reached",
    16: "the card needs a reset",
    17: "the operating system blocks the NVIDIA device files (cgroup)",
    18: "kernel module and user library have different versions",
    19: "the card is in use",
    20: "memory ran out",
    25: "driver and library disagree about a structure",
    27: "the card is not ready yet",
    28: "the driver drives no card",
    29: "the card is in the wrong state for that",
    999: "unknown error; the kernel log may tell more",
}
"""nvmlReturn_t in our words."""

_FACTS = {
    "nvmlDeviceGetPciInfo": "address",
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetMinorNumber": "minor",
    "nvmlDeviceGetMemoryInfo": "memory_total_bytes",
    "nvmlDeviceGetBAR1MemoryInfo": "bar1_bytes",
    "nvmlDeviceGetCudaComputeCapability": "compute_capability",
    "nvmlDeviceGetVbiosVersion": "vbios",
    "nvmlDeviceGetCurrPcieLinkWidth": "link.width",
    "nvmlDeviceGetMaxPcieLinkWidth": "link.max_width",
    "nvmlDeviceGetCurrPcieLinkGeneration": "link.speed_gts",
    "nvmlDeviceGetMaxPcieLinkGeneration": "link.max_speed_gts",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetPowerUsage": "power_watts",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_watts",
    "nvmlDeviceGetPowerManagementDefaultLimit": "power_default_limit_watts",
    "nvmlDeviceGetPowerManagementLimitConstraints": "power_max_limit_watts",
    "nvmlDeviceGetPerformanceState": "performance_state",
    "nvmlDeviceGetUtilizationRates": "utilization_percent",
    "nvmlDeviceGetEccMode": "ecc_enabled",
    "nvmlDeviceGetMigMode": "mig_enabled",
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetPcieReplayCounter": "pcie_replays",
    "nvmlDeviceGetComputeRunningProcesses": "processes",
}
"""Calls whose failure leaves a fact unread. The child asks more, for the capture."""

_GAP_REASONS: dict[int, GapReason] = {3: "not-supported", 4: "needs-root", 10: "timed-out", 13: "not-supported"}

_SPEED_GTS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}

_VERSION_SUFFIX = re.compile(r"_v\d+$")


def meaning(code: int) -> str:
    """What a return code says, as the end of a sentence."""
    return MEANINGS.get(code, "an error that gpucheck has no words for")


# --- asking -----------------------------------------------------------------------------------


def bindings_folder() -> str:
    """Folder to import pynvml from; empty when it is not installed. Nothing is imported here."""
    spec = PathFinder.find_spec("pynvml")
    if spec is None or spec.origin is None:
        return ""
    folder = Path(spec.origin).parent
    return str(folder.parent if spec.submodule_search_locations else folder)


class Child:
    """The program nvml_child.py, running.

    Args:
        on_answer: Gets each finished line, on a thread of its own.
        patience: Seconds after which the child gives itself up, should nobody be left to end it; a
            watching child counts them anew in every round.
        interval: Seconds between the rounds of a watch; None to ask once.

    Raises:
        OSError: The child cannot be started.
    """

    def __init__(
        self, on_answer: Callable[[dict[str, Any]], None], patience: float, interval: float | None = None
    ) -> None:
        program = str(Path(__file__).with_name("nvml_child.py"))
        command = [sys.executable, "-I", "-S", program, f"{patience}", bindings_folder()]
        self._process = subprocess.Popen(
            command if interval is None else [*command, f"{interval}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self._on_answer = on_answer
        self._unfinished = b""
        self._thread = threading.Thread(target=self._collect, name="nvml", daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            while piece := pipe.read(1 << 16):
                *lines, self._unfinished = (self._unfinished + piece).split(b"\n")
                for line in lines:
                    if (answer := _decoded(line)) is not None:
                        self._on_answer(answer)

    def close(self) -> None:
        """Tell a watching child to stop."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def finish(self, deadline: float) -> dict[str, Any]:
        """Wait until ``deadline`` (``time.monotonic``), then end the child.

        Returns:
            ``timed_out``, ``exit_code`` (None after a time-out) and ``calls`` with the one call that
            was begun and never returned, if there is one.
        """
        self._thread.join(max(0.0, deadline - time.monotonic()))
        timed_out = self._thread.is_alive()
        exit_code = None
        if timed_out:
            end_group(self._process)
            self._thread.join(1.0)  # what is still in the pipe; a child stuck in the driver stays behind
        else:
            try:
                exit_code = self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                end_group(self._process)
        self.close()
        begun = _decoded(self._unfinished + b"}")
        if begun is not None and exit_code == 1:  # the child's own clock ended it
            timed_out, exit_code = True, None
        return {"calls": [] if begun is None else [begun], "timed_out": timed_out, "exit_code": exit_code}


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(line)
    except ValueError:  # torn by the end of the child
        return None
    return answer if isinstance(answer, dict) else None


def start_child(timeout: float) -> Callable[[], NvmlAnswers]:
    """Start asking; the function returned waits for the answers.

    The clock starts here. At ``timeout`` seconds the child is ended, and what it wrote is returned; a
    child that cannot be ended is left behind. Neither function raises.
    """
    deadline = time.monotonic() + timeout
    calls: list[dict[str, Any]] = []
    try:
        child = Child(calls.append, timeout + 5)
    except OSError as error:
        unstarted = {"calls": [], "timed_out": False, "exit_code": None, "error": str(error)}
        return lambda: unstarted

    def wait() -> NvmlAnswers:
        end = child.finish(deadline)
        return {**end, "calls": [*calls, *end["calls"]]}

    return wait


def read(host: Host, timeout: float = 10.0) -> Parts:
    """Ask NVML and wait."""
    return collect(host.ask_nvml(timeout))


def collect(wait: Callable[[], NvmlAnswers]) -> Parts:
    """Facts from what :meth:`Host.ask_nvml` returned; a host without NVML answers is a gap."""
    try:
        answers = wait()
    except FileNotFoundError:
        return Parts(
            gaps=(Gap(fact="nvml", reason="not-in-input", how=say("The input holds no answers of NVML.")),)
        )
    return parse(answers)


# --- parsing ----------------------------------------------------------------------------------


@dataclass
class _Answered:
    """What NVML as a whole, or one card, answered; names without their version."""

    values: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    def add(self, call: str, answer: Mapping[str, Any]) -> None:
        """Take one line. A later version of the same call replaces what an earlier one said."""
        name = _VERSION_SUFFIX.sub("", call)
        code = answer.get("code")
        if _is_int(code) and code != 0:
            self.errors[name] = code
        elif _is_int(code) and "arguments" not in answer:
            self.errors.pop(name, None)
            self.values[name] = answer.get("value")
        elif "error" in answer:
            self.faults[name] = str(answer["error"])

    def integer(self, name: str, part: str | int | None = None) -> int | None:
        """A number, or the number at ``part`` of a structure or list."""
        value = self.values.get(name)
        if isinstance(part, str):
            value = value.get(part) if isinstance(value, Mapping) else None
        elif part is not None:
            value = value[part] if isinstance(value, list) and len(value) > part else None
        return value if _is_int(value) else None

    def text(self, name: str, part: str | None = None) -> str | None:
        value = self.values.get(name)
        if part is not None:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value if isinstance(value, str) and value.strip() else None

    def flag(self, name: str, part: int | None = None) -> bool | None:
        number = self.integer(name, part)
        return None if number is None else number != 0

    def watts(self, name: str, part: int | None = None) -> float | None:
        milliwatts = self.integer(name, part)
        return None if milliwatts is None else milliwatts / 1000


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def parse(answers: NvmlAnswers) -> Parts:
    """Turn the child's answers into facts.

    ``nvml`` is None, with a gap that holds the fix, where NVML was not asked: no nvidia-ml-py, or a
    foreign package in its place. Otherwise its ``status`` says how it went. A card that fails keeps
    its place, its return codes are in ``errors``, and gaps name the facts that they cost.
    """
    whole = _Answered()
    cards: dict[int, _Answered] = {}
    unfinished: Mapping[str, Any] | None = None
    calls = answers.get("calls")
    for answer in calls if isinstance(calls, list) else ():
        if not isinstance(answer, Mapping):
            continue
        if "bindings" in answer:
            return Parts(gaps=(_bindings_gap(answer),))
        call, index = answer.get("call"), answer.get("device")
        if not isinstance(call, str):
            continue
        asked = cards.setdefault(index, _Answered()) if _is_int(index) else whole
        asked.add(call, answer)
        unfinished = None if "code" in answer else answer

    count = whole.integer("nvmlDeviceGetCount")
    gpus: tuple[NvmlGpu, ...] | None = None
    if count is not None:
        places = sorted({*range(min(count, _MOST_CARDS)), *cards})
        gpus = tuple(_gpu(index, cards.get(index, _Answered())) for index in places)

    nvml = _outcome(answers, whole, unfinished, gpus)
    if nvml is None:
        error = answers.get("error")
        return Parts(gaps=(Gap(fact="nvml", reason="unreadable", how=_unasked(error)),))
    gaps = [gap for gpu in gpus or () for gap in _card_gaps(gpu, cards.get(gpu.index, _Answered()))]
    if nvml.status != "ok":
        gaps.insert(0, Gap(fact="nvml", reason=_STATUS_REASONS[nvml.status], how=nvml.message or ""))
    return Parts(nvml=nvml, gaps=tuple(gaps))


_MOST_CARDS = 1024
"""A count beyond this is a damaged input."""

_STATUS_REASONS: dict[str, GapReason] = {
    "library-absent": "file-absent",
    "failed": "unreadable",
    "timed-out": "timed-out",
}


def _outcome(
    answers: NvmlAnswers,
    whole: _Answered,
    unfinished: Mapping[str, Any] | None,
    gpus: tuple[NvmlGpu, ...] | None,
) -> Nvml | None:
    """How NVML as a whole went; None where it was never asked."""
    versions = Nvml(
        status="ok",
        driver_version=whole.text("nvmlSystemGetDriverVersion"),
        nvml_version=whole.text("nvmlSystemGetNVMLVersion"),
        cuda_version=_cuda_version(whole.integer("nvmlSystemGetCudaDriverVersion")),
        gpus=gpus,
    )
    for call in ("nvmlInit", "nvmlDeviceGetCount"):
        code = whole.errors.get(call)
        if code == LIBRARY_NOT_FOUND and call not in whole.faults:
            message = say("The library libnvidia-ml.so.1, which comes with the NVIDIA driver, is not installed.")
            return versions.model_copy(update={"status": "library-absent", "code": code, "message": message})
    ...


def _gpu(index: int, asked: _Answered) -> NvmlGpu:
    """One card."""
    capability = asked.values.get("nvmlDeviceGetCudaComputeCapability")
    processes = asked.values.get("nvmlDeviceGetComputeRunningProcesses")
    state = asked.integer("nvmlDeviceGetPerformanceState")
    return NvmlGpu(
        index=index,
        address=address_of(asked.values.get("nvmlDeviceGetPciInfo")),
    )
