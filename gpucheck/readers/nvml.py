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
from typing import Any, Literal, TypeGuard

from gpucheck.facts import SPEED_GTS, Gap, GapReason, Link, Nvml, NvmlGpu, Parts, pci_address
from gpucheck.host import Host, NvmlAnswers, end_group
from gpucheck.nvml_codes import GPU_IS_LOST, LIBRARY_NOT_FOUND, NOT_FOUND, NOT_SUPPORTED, meaning
from gpucheck.text import clean, say

MIG_MODE = "nvmlDeviceGetMigMode"

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
    "nvmlDeviceGetClockInfo": "sm_clock_mhz",
    "nvmlDeviceGetMaxClockInfo": "sm_max_clock_mhz",
    "nvmlDeviceGetCurrentClocksEventReasons": "clock_reasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "clock_reasons",
    "nvmlDeviceGetEccMode": "ecc_enabled",
    "nvmlDeviceGetTotalEccErrors": "ecc_volatile and ecc_aggregate",
    "nvmlDeviceGetRetiredPages": "retired_pages",
    "nvmlDeviceGetRetiredPagesPendingStatus": "retired_pages_pending",
    "nvmlDeviceGetRemappedRows": "remapped_rows",
    "nvmlDeviceGetMigMode": "mig_enabled",
    "nvmlDeviceGetMaxMigDeviceCount": "mig_devices_max",
    "nvmlDeviceGetMigDeviceHandleByIndex": "mig_devices",
    "nvmlDeviceGetGpuFabricInfoV": "fabric_state",
    "nvmlDeviceGetGpuFabricInfo": "fabric_state",
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetPcieReplayCounter": "pcie_replays",
    "nvmlDeviceGetComputeRunningProcesses": "processes",
}
"""Calls whose failure leaves a fact unread. The child asks more, for the capture."""

_SYSTEM_FACTS = {
    "nvmlSystemGetDriverVersion": "driver_version",
    "nvmlSystemGetNVMLVersion": "nvml_version",
    "nvmlSystemGetCudaDriverVersion": "cuda_version",
}

_GAP_REASONS: dict[int, GapReason] = {3: "not-supported", 4: "needs-root", 10: "timed-out", 13: "not-supported"}

_CLOCK_REASONS = {
    0x1: "idle",
    0x2: "applications-clocks",
    0x4: "sw-power-cap",
    0x8: "hw-slowdown",
    0x10: "sync-boost",
    0x20: "sw-thermal",
    0x40: "hw-thermal",
    0x80: "hw-power-brake",
    0x100: "display-clocks",
}
"""Bits of what NVML calls clocks event reasons, and called throttle reasons."""

_FABRIC_STATES: dict[int, Literal["not-supported", "not-started", "in-progress", "completed"]] = {
    0: "not-supported",
    1: "not-started",
    2: "in-progress",
    3: "completed",
}

_VERSION_SUFFIX = re.compile(r"_v\d+$")
_REPLACED = "\ufffd"
"""What the child puts in place of bytes that are no UTF-8."""


def clock_reasons(bits: int) -> tuple[str, ...]:
    """Names of NVML's clocks event reasons; a bit without a name stands for itself."""
    return tuple(_CLOCK_REASONS.get(1 << n, hex(1 << n)) for n in range(64) if bits >> n & 1)


# --- asking -----------------------------------------------------------------------------------


def bindings_folder() -> str:
    """Folder to import pynvml from; empty when it is not installed. Nothing is imported here."""
    spec = PathFinder.find_spec("pynvml")
    if spec is None or spec.origin is None:
        return ""
    folder = Path(spec.origin).parent
    return str(folder.parent if spec.submodule_search_locations else folder)


def child_command(patience: float, interval: float | None = None) -> list[str]:
    """How to run nvml_child: apart from the environment, without site packages, and imported, so that
    its compiled copy serves."""
    program = "import sys; sys.path.append(sys.argv[1]); import nvml_child; nvml_child.main(*sys.argv[2:])"
    arguments = [str(Path(__file__).parent), f"{patience}", bindings_folder()]
    watch = [] if interval is None else [f"{interval}"]
    return [sys.executable, "-I", "-S", "-c", program, *arguments, *watch]


class Child:
    """The program nvml_child, running.

    Args:
        on_answer: Gets each finished line, on a thread of its own.
        patience: Seconds after which the child gives itself up, should nobody be left to end it; a
            watching child counts them anew in every round.
        interval: Seconds between the rounds of a watch; None to ask once.
        on_end: Called on that thread when the child has nothing more to say.

    Raises:
        OSError: The child cannot be started.
    """

    def __init__(
        self,
        on_answer: Callable[[dict[str, Any]], None],
        patience: float,
        interval: float | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._process = subprocess.Popen(
            child_command(patience, interval),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self._on_answer = on_answer
        self._on_end = on_end
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
        self._on_end()

    @property
    def begun(self) -> dict[str, Any] | None:
        """The call that was begun and has not returned."""
        return _decoded(self._unfinished + b"}")

    def close(self) -> None:
        """Tell a watching child to stop."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def finish(self, deadline: float) -> dict[str, Any]:
        """Wait until ``deadline`` (``time.monotonic``), then end the child.

        Returns:
            ``timed_out``, ``exit_code`` (None after a time-out) and ``calls`` with the one that was
            begun and never returned, if there is one.
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
        begun = self.begun
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
        return Parts(gaps=(Gap(fact="nvml", reason="not-in-input", how=say("The input holds no answers of NVML.")),))
    return parse(answers)


# --- parsing ----------------------------------------------------------------------------------


@dataclass
class Answered:
    """What NVML as a whole, or one card, answered. Calls are named without their version."""

    values: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    """Calls that failed outside NVML, and why."""
    garbled: set[str] = field(default_factory=set)
    """Calls whose text is none."""

    def add(self, call: str, answer: Mapping[str, Any]) -> None:
        """Take one line. A later version of a call replaces what an earlier one said; calls with
        arguments stand beside each other."""
        name = _VERSION_SUFFIX.sub("", call)
        code, value = answer.get("code"), answer.get("value")
        if "error" in answer:
            self.faults[name] = str(answer["error"])
        if not _is_int(code):
            return
        if code == NOT_FOUND and name == "nvmlDeviceGetMigDeviceHandleByIndex":
            return  # a place without a MIG device
        if code != 0:
            self.errors[name] = code
        elif "arguments" in answer:
            self.values[f"{name}{answer['arguments']}"] = value
        elif isinstance(value, str) and _REPLACED in value:
            self.garbled.add(name)
        else:
            self.errors.pop(name, None)
            self.values[name] = value

    def integer(self, name: str, part: str | int | None = None) -> int | None:
        """A number, or the one at ``part`` of a structure or list."""
        value = self.values.get(name)
        if isinstance(part, str):
            value = value.get(part) if isinstance(value, Mapping) else None
        elif part is not None:
            value = value[part] if isinstance(value, list) and len(value) > part else None
        return value if _is_int(value) else None

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        return (clean(value) or None) if isinstance(value, str) else None

    def length(self, name: str) -> int | None:
        """How many a list holds."""
        value = self.values.get(name)
        return len(value) if isinstance(value, list) else None

    def flag(self, name: str, part: int | None = None) -> bool | None:
        number = self.integer(name, part)
        return None if number is None else number != 0

    def watts(self, name: str, part: int | None = None) -> float | None:
        milliwatts = self.integer(name, part)
        return None if milliwatts is None else milliwatts / 1000

    @property
    def address(self) -> str | None:
        """PCI address of a card."""
        pci = self.values.get("nvmlDeviceGetPciInfo")
        text = pci.get("busId") if isinstance(pci, Mapping) else None
        return pci_address(text) if isinstance(text, str) else None

    @property
    def performance_state(self) -> int | None:
        """0 fastest to 15; NVML says 32 where it does not know."""
        state = self.integer("nvmlDeviceGetPerformanceState")
        return None if state == 32 else state

    @property
    def clock_reasons(self) -> tuple[str, ...] | None:
        """Names of the bits by which the clocks are held back."""
        bits = self.integer("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self.integer("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else clock_reasons(bits)

    @property
    def fabric_state(self) -> Literal["not-supported", "not-started", "in-progress", "completed"] | None:
        """None also where it ended with an error: the fabric manager did not answer, or refused."""
        for call in ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"):
            if (state := self.integer(call, "state")) is not None:
                failed = _FABRIC_STATES.get(state) == "completed" and self.integer(call, "status") not in (0, None)
                return None if failed else _FABRIC_STATES.get(state)
        return None

    @property
    def mig_devices(self) -> int | None:
        """MIG devices of a card in MIG mode; None where a place did not answer."""
        call = "nvmlDeviceGetMigDeviceHandleByIndex"
        if self.integer("nvmlDeviceGetMaxMigDeviceCount") is None or call in self.errors:
            return None
        return sum(name.startswith(call) for name in self.values)

    @property
    def processes(self) -> dict[int, int | None] | None:
        """Ids of the processes with a compute context, and the card's memory each holds in bytes."""
        listed = self.values.get("nvmlDeviceGetComputeRunningProcesses")
        if not isinstance(listed, list):
            return None
        found: dict[int, int | None] = {}
        for process in listed:
            if isinstance(process, Mapping) and _is_int(pid := process.get("pid")):
                used = process.get("usedGpuMemory")
                found[pid] = used if _is_int(used) else None
        return found


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def parse(answers: NvmlAnswers) -> Parts:
    """Turn the child's answers into facts.

    ``nvml`` is None, with a gap that holds the fix, where NVML was not asked: no nvidia-ml-py, or a
    foreign package in its place. Otherwise its ``status`` says how it went. A card that fails keeps
    its place, its return codes are in ``errors``, and gaps name the facts that they cost.
    """
    whole = Answered()
    cards: dict[int, Answered] = {}
    unfinished: Mapping[str, Any] | None = None
    calls = answers.get("calls")
    for answer in calls if isinstance(calls, list) else ():
        if not isinstance(answer, Mapping):
            continue
        if "bindings" in answer:
            return Parts(gaps=(_bindings_gap(answer),))
        call, index = answer.get("call"), answer.get("device")
        if isinstance(call, str):
            asked = cards.setdefault(index, Answered()) if _is_int(index) else whole
            asked.add(call, answer)
            unfinished = None if "code" in answer else answer

    gpus = None
    trusted = True
    gaps: list[Gap] = []
    if (count := whole.integer("nvmlDeviceGetCount")) is not None:
        trusted = count <= _MOST_CARDS
        places = sorted({*(range(count) if trusted else ()), *cards})
        gpus = tuple(_gpu(index, cards.setdefault(index, Answered())) for index in places)
        gaps = [gap for index in places for gap in _card_gaps(index, cards[index])]
        gaps += _unread("nvml", whole, _SYSTEM_FACTS)
        if not trusted:
            how = say("NVML counts {count} cards, which no machine has: those that answered are listed.", count=count)
            gaps.append(Gap(fact="nvml.complete", reason="unreadable", how=how))

    outcome = _outcome(answers, whole, cards, unfinished)
    if outcome.status == "unasked":
        return Parts(gaps=(Gap(fact="nvml", reason="unreadable", how=outcome.message),))
    if outcome.status != "ok":
        gaps.insert(0, Gap(fact="nvml", reason=_STATUS_REASONS[outcome.status], how=outcome.message))
    nvml = Nvml(
        status=outcome.status,
        call=outcome.call,
        code=outcome.code,
        message=outcome.message or None,
        driver_version=whole.text("nvmlSystemGetDriverVersion"),
        nvml_version=whole.text("nvmlSystemGetNVMLVersion"),
        cuda_version=_cuda_version(whole.integer("nvmlSystemGetCudaDriverVersion")),
        gpus=gpus,
        complete=trusted,
    )
    return Parts(nvml=nvml, gaps=tuple(gaps))


_MOST_CARDS = 1024
"""A greater count is a damaged input."""

_STATUS_REASONS: dict[str, GapReason] = {
    "library-absent": "file-absent",
    "failed": "unreadable",
    "timed-out": "timed-out",
}


@dataclass(frozen=True)
class _Outcome:
    status: Literal["ok", "library-absent", "failed", "timed-out", "unasked"]
    message: str = ""
    call: str | None = None
    code: int | None = None


def _outcome(
    answers: NvmlAnswers,
    whole: Answered,
    cards: Mapping[int, Answered],
    unfinished: Mapping[str, Any] | None,
) -> _Outcome:
    """How it went as a whole."""
    for call in ("nvmlInit", "nvmlDeviceGetCount"):
        code, fault = whole.errors.get(call), whole.faults.get(call)
        if code == LIBRARY_NOT_FOUND and fault is None:
            template = "The library libnvidia-ml.so.1 is not installed; it comes with the NVIDIA driver."
            return _Outcome("library-absent", say(template), call, code)
        if code == LIBRARY_NOT_FOUND:
            template = "The library libnvidia-ml.so.1 is there but cannot be loaded: {error}."
            return _Outcome("failed", say(template, error=fault), call, code)
        if code is not None:
            template = "NVML does not start: {meaning} ({call} returned {code})."
            return _Outcome("failed", say(template, meaning=meaning(code), call=call, code=code), call, code)
        if fault is not None:
            return _Outcome("failed", say("{call} failed in pynvml: {error}.", call=call, error=fault), call)

    if answers.get("timed_out") is True:
        if unfinished is None:
            return _Outcome("timed-out", say("NVML did not answer everything in time."))
        call, where = str(unfinished["call"]), _card_named(unfinished, cards)
        if where is None:
            return _Outcome("timed-out", say("NVML hung in {call}.", call=call), call)
        return _Outcome("timed-out", say("NVML hung in {call} of {card}.", call=call, card=where), call)

    exit_code = answers.get("exit_code")
    if unfinished is not None or exit_code not in (0, None):
        if unfinished is None:
            template = "The process that asks NVML died with exit code {code}."
            return _Outcome("failed", say(template, code=exit_code))
        call, where = str(unfinished["call"]), _card_named(unfinished, cards)
        if where is None:
            template = "NVML took its caller down in {call} (exit code {code})."
            return _Outcome("failed", say(template, call=call, code=exit_code), call)
        template = "NVML took its caller down in {call} of {card} (exit code {code})."
        return _Outcome("failed", say(template, call=call, card=where, code=exit_code), call)

    if "nvmlDeviceGetCount" not in whole.values:
        template = "NVML was not asked: {error}."
        return _Outcome("unasked", say(template, error=answers.get("error") or "no answers"))
    return _Outcome("ok")


def _card_named(answer: Mapping[str, Any], cards: Mapping[int, Answered]) -> str | None:
    """The card of a call, as ``device 3 (0000:c4:00.0)``; None for a call that is of no card."""
    index = answer.get("device")
    if not _is_int(index):
        return None
    address = cards[index].address if index in cards else None
    if address is None:
        return say("device {index}", index=index)
    return say("device {index} ({address})", index=index, address=address)


def _bindings_gap(answer: Mapping[str, Any]) -> Gap:
    if answer["bindings"] == "foreign":
        template = (
            "{path} is not NVIDIA's pynvml, so NVML was not asked: "
            "pip uninstall -y pynvml && pip install --force-reinstall nvidia-ml-py"
        )
        how = say(template, path=answer.get("error"))
    else:
        how = say("pip install nvidia-ml-py")
    return Gap(fact="nvml", reason="tool-absent", how=how)


def _card_gaps(index: int, asked: Answered) -> list[Gap]:
    """Why facts of one card are missing: a gap for each return code."""
    address = asked.address
    fact = f"nvml.gpus.{index}" if address is None else f"gpus.{address}.nvml"
    for call, code in asked.errors.items():
        if call == "nvmlDeviceGetHandleByIndex":
            template = "NVML does not open device {index}: {meaning} ({call} returned {code})."
            how = say(template, index=index, meaning=meaning(code), call=call, code=code)
            return [Gap(fact=fact, reason=_GAP_REASONS.get(code, "unreadable"), how=how)]
        if code == GPU_IS_LOST:
            template = "{call} returned {code}, {meaning}; nothing was read after that."
            how = say(template, call=call, code=code, meaning=meaning(code))
            return [Gap(fact=fact, reason="unreadable", how=how)]
    return _unread(fact, asked, _FACTS)


def _unread(fact: str, asked: Answered, facts: Mapping[str, str]) -> list[Gap]:
    """What failing calls, garbled text and faults of the bindings cost; ``facts`` names what a call is for."""
    missing: dict[int, list[str]] = {}
    read = {facts[call] for call in asked.values if call in facts}  # perhaps by an older name
    for call, code in asked.errors.items():
        if call == MIG_MODE and _has_no_mig(asked):
            continue
        if call in facts and facts[call] not in read:
            missing.setdefault(code, []).append(facts[call])
    gaps = []
    for code, names in missing.items():
        template = "Not read: {facts}. NVML returned {code}: {meaning}."
        how = say(template, facts=", ".join(dict.fromkeys(names)), code=code, meaning=meaning(code))
        gaps.append(Gap(fact=fact, reason=_GAP_REASONS.get(code, "unreadable"), how=how))
    if asked.garbled:
        template = (
            "Not read: {facts}. NVML returned bytes that are no text; drivers 555.85 and 555.99 under WSL 2 do that: "
            "install another version."
        )
        how = say(template, facts=", ".join(facts.get(call, call) for call in sorted(asked.garbled)))
        gaps.append(Gap(fact=fact, reason="unreadable", how=how))
    for call, error in asked.faults.items():
        how = say("{call} failed in pynvml: {error}.", call=call, error=error)
        gaps.append(Gap(fact=fact, reason="unreadable", how=how))
    return gaps


def _has_no_mig(asked: Answered) -> bool:
    """A card that does not know the mode is not in it: every card before A100, and all GeForce."""
    return asked.errors.get(MIG_MODE) == NOT_SUPPORTED


def _gpu(index: int, asked: Answered) -> NvmlGpu:
    major = asked.integer("nvmlDeviceGetCudaComputeCapability", 0)
    minor = asked.integer("nvmlDeviceGetCudaComputeCapability", 1)
    processes = asked.processes
    return NvmlGpu(
        index=index,
        address=asked.address,
        name=asked.text("nvmlDeviceGetName"),
        uuid=asked.text("nvmlDeviceGetUUID"),
        minor=asked.integer("nvmlDeviceGetMinorNumber"),
        pci_id=_pci_id(asked.integer("nvmlDeviceGetPciInfo", "pciDeviceId")),
        subsystem_id=_pci_id(asked.integer("nvmlDeviceGetPciInfo", "pciSubSystemId")),
        memory_total_bytes=asked.integer("nvmlDeviceGetMemoryInfo", "total"),
        memory_used_bytes=asked.integer("nvmlDeviceGetMemoryInfo", "used"),
        bar1_bytes=asked.integer("nvmlDeviceGetBAR1MemoryInfo", "bar1Total"),
        compute_capability=None if major is None or minor is None else f"{major}.{minor}",
        vbios=asked.text("nvmlDeviceGetVbiosVersion"),
        link=Link(
            width=asked.integer("nvmlDeviceGetCurrPcieLinkWidth") or None,
            max_width=asked.integer("nvmlDeviceGetMaxPcieLinkWidth") or None,
            speed_gts=SPEED_GTS.get(asked.integer("nvmlDeviceGetCurrPcieLinkGeneration") or 0),
            max_speed_gts=SPEED_GTS.get(asked.integer("nvmlDeviceGetMaxPcieLinkGeneration") or 0),
        ),
        temperature_c=asked.integer("nvmlDeviceGetTemperature"),
        power_watts=asked.watts("nvmlDeviceGetPowerUsage"),
        power_limit_watts=asked.watts("nvmlDeviceGetEnforcedPowerLimit"),
        power_default_limit_watts=asked.watts("nvmlDeviceGetPowerManagementDefaultLimit"),
        power_max_limit_watts=asked.watts("nvmlDeviceGetPowerManagementLimitConstraints", 1),
        performance_state=asked.performance_state,
        utilization_percent=asked.integer("nvmlDeviceGetUtilizationRates", "gpu"),
        sm_clock_mhz=asked.integer("nvmlDeviceGetClockInfo"),
        sm_max_clock_mhz=asked.integer("nvmlDeviceGetMaxClockInfo"),
        clock_reasons=asked.clock_reasons,
        ecc_enabled=asked.flag("nvmlDeviceGetEccMode", 0),
        ecc_volatile_corrected=asked.integer("nvmlDeviceGetTotalEccErrors[0, 0]"),
        ecc_volatile_uncorrected=asked.integer("nvmlDeviceGetTotalEccErrors[1, 0]"),
        ecc_aggregate_corrected=asked.integer("nvmlDeviceGetTotalEccErrors[0, 1]"),
        ecc_aggregate_uncorrected=asked.integer("nvmlDeviceGetTotalEccErrors[1, 1]"),
        retired_pages_single_bit=asked.length("nvmlDeviceGetRetiredPages[0]"),
        retired_pages_double_bit=asked.length("nvmlDeviceGetRetiredPages[1]"),
        retired_pages_pending=asked.flag("nvmlDeviceGetRetiredPagesPendingStatus"),
        remapped_rows_corrected=asked.integer("nvmlDeviceGetRemappedRows", 0),
        remapped_rows_uncorrected=asked.integer("nvmlDeviceGetRemappedRows", 1),
        remapped_rows_pending=asked.flag("nvmlDeviceGetRemappedRows", 2),
        remapped_rows_failed=asked.flag("nvmlDeviceGetRemappedRows", 3),
        mig_enabled=False if _has_no_mig(asked) else asked.flag("nvmlDeviceGetMigMode", 0),
        mig_devices=asked.mig_devices,
        fabric_state=asked.fabric_state,
        persistence=asked.flag("nvmlDeviceGetPersistenceMode"),
        pcie_replays=asked.integer("nvmlDeviceGetPcieReplayCounter"),
        processes=None if processes is None else tuple(processes),
        errors=dict(asked.errors),
    )


def _pci_id(packed: int | None) -> str | None:
    """NVML packs device and vendor into one number, 0x1b3810de; 0 where it does not know."""
    return f"{packed & 0xFFFF:04x}:{packed >> 16 & 0xFFFF:04x}" if packed else None


def _cuda_version(number: int | None) -> str | None:
    """12040 is 12.4."""
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"
