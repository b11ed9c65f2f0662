"""Asks NVML and writes every answer at once. Runs in a process of its own.

A driver in trouble can hang or crash whoever calls it, and neither a thread nor a signal handler
gets out of that; a process can be ended from outside. So each call is one JSON line on stdout: its
beginning is written before the call and its end after it. What came before a hang survives, and the
unfinished line names the call::

    {"call": "nvmlDeviceGetName", "device": 0, "code": 0, "value": "Tesla P40"}
    {"call": "nvmlDeviceGetPowerUsage", "device": 0

Arguments are SECONDS FOLDER [INTERVAL]: SECONDS after which it gives itself up (its parent may be
gone), FOLDER that holds pynvml, and INTERVAL in seconds to watch the cards until stdin closes.
Imports stay few: where there is no driver, starting Python is all it costs.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import sys

TYPE_CHECKING = False  # as in typing, which takes longer to import than all of the above
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, VERSION_MISMATCH = 12, 13, 15, 25
OTHER_VERSION = (FUNCTION_NOT_FOUND, VERSION_MISMATCH)
LIBRARY = "libnvidia-ml.so.1"

IDENTITY = (
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMinorNumber",
)
CHANGING = (
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetPerformanceState",
)
COUNTERS = (
    ("nvmlDeviceGetPcieReplayCounter",),
    ("nvmlDeviceGetTotalEccErrors", 0, 0),
    ("nvmlDeviceGetTotalEccErrors", 1, 0),
)
"""Errors that a watch counts: packets sent again, and the memory's since the driver was loaded."""
LASTING = (
    "nvmlDeviceGetBAR1MemoryInfo",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRetiredPagesPendingStatus",
)
WITH_ARGUMENTS = (
    ("nvmlDeviceGetRetiredPages", 0),  # after several single-bit errors
    ("nvmlDeviceGetRetiredPages", 1),  # after a double-bit error
    ("nvmlDeviceGetTotalEccErrors", 0, 0),  # corrected, since the driver was loaded
    ("nvmlDeviceGetTotalEccErrors", 0, 1),  # corrected, in the card's life
    ("nvmlDeviceGetTotalEccErrors", 1, 0),  # uncorrected, since the driver was loaded
    ("nvmlDeviceGetTotalEccErrors", 1, 1),  # uncorrected, in the card's life
)
FABRIC = (  # newest first, with the structure that each fills in
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfoV_t"),
    ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
)
SPARE = ctypes.c_byte * 256  # where the bindings lack the structure
MOST_MIG_DEVICES = 16  # of one card; today's have 7
MOST_PEERS = 8  # asked in pairs: among more cards that takes too long
MEMORY_V2 = 0x02000028  # size and version of the structure
TEMPERATURE_OF_GPU = 0
CLOCK_OF_SM = 1
PEER_READ, PEER_WRITE = 0, 1  # pynvml 13.615 defines its constant for reads as a tuple

answers = os.dup(1)
nvml: Any = None


class CardLost(Exception):
    """The card answers "GPU is lost": there is no use in asking on."""


def encode(fields: dict[str, Any]) -> str:
    """JSON of one line."""
    import json

    return json.dumps(fields)


def note(**fields: Any) -> None:
    """Write a whole line."""
    os.write(answers, f"{encode(fields)}\n".encode())


def plain(value: Any) -> Any:
    """A pynvml value as JSON knows it. Text is decoded here: pynvml stumbles over bad UTF-8."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, ctypes.Structure):
        fields = [field[0] for field in type(value)._fields_]
        return {name: plain(ctypes.Structure.__getattribute__(value, name)) for name in fields}
    if value is None or isinstance(value, (int, float, str)):
        return value
    return getattr(value, "__dict__", None) or None  # a process; a handle means nothing elsewhere


def ask(
    call: str, *arguments: Any, label: str | None = None, filled: Any = None, **about: Any
) -> tuple[int | None, Any]:
    """Make one call and write its line.

    Args:
        call: Name in pynvml.
        arguments: What it takes.
        label: Name to write, where it differs.
        filled: Structure that the call fills in, in place of a value that it returns.
        about: More to write, such as the device.

    Returns:
        The return code, None where the bindings failed, and the value as pynvml gives it.

    Raises:
        CardLost: A card's call returned "GPU is lost".
    """
    os.write(answers, encode({"call": label or call, **about})[:-1].encode())
    function = getattr(nvml, call, None)
    value = None
    answer: dict[str, Any]
    try:
        if function is None:  # an older nvidia-ml-py
            answer = {"code": FUNCTION_NOT_FOUND}
        else:
            value = function(*arguments)
            shown = plain(value if filled is None else filled)
            answer = {"code": 0} if shown is None else {"code": 0, "value": shown}
    except nvml.NVMLError as error:
        answer = {"code": error.value}
    except UnicodeDecodeError as error:
        answer = {"code": 0, "value": plain(error.object)}
    except Exception as error:  # a fault of the bindings costs this value, not the others
        answer = {"code": None, "error": f"{type(error).__name__}: {error}"}
    os.write(answers, f", {encode(answer)[1:]}\n".encode())
    if answer["code"] == GPU_IS_LOST and "device" in about:
        raise CardLost
    return answer["code"], value


def ask_newest(index: int, handle: Any, *calls: str) -> None:
    """Ask by each name, newest first, until library and bindings know one."""
    for call in calls:
        if ask(call, handle, device=index)[0] not in OTHER_VERSION:
            return


def read_identity(index: int, handle: Any) -> None:
    """Which card it is."""
    for call in IDENTITY:
        ask(call, handle, device=index)


def read_changing(index: int, handle: Any) -> None:
    """What changes while a card works."""
    memory = "nvmlDeviceGetMemoryInfo"
    if ask(memory, handle, MEMORY_V2, label=f"{memory}_v2", device=index)[0] in OTHER_VERSION:
        ask(memory, handle, device=index)
    for call in CHANGING:
        ask(call, handle, device=index)
    ask("nvmlDeviceGetTemperature", handle, TEMPERATURE_OF_GPU, device=index)
    ask("nvmlDeviceGetClockInfo", handle, CLOCK_OF_SM, device=index)
    reasons = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    ask_newest(index, handle, *reasons)
    processes = "nvmlDeviceGetComputeRunningProcesses"
    ask_newest(index, handle, f"{processes}_v3", f"{processes}_v2")


def read_lasting(index: int, handle: Any) -> None:
    """The rest of what is read once."""
    for call in LASTING:
        ask(call, handle, device=index)
    ask("nvmlDeviceGetMaxClockInfo", handle, CLOCK_OF_SM, device=index)
    for call, *arguments in WITH_ARGUMENTS:
        ask(call, handle, *arguments, device=index, arguments=arguments)
    read_mig(index, handle)
    read_fabric(index, handle)


def read_mig(index: int, handle: Any) -> None:
    """Whether a card is partitioned, and into which MIG devices: places without one answer "not found"."""
    code, mode = ask("nvmlDeviceGetMigMode", handle, device=index)
    if code != 0 or not mode[0]:
        return
    code, most = ask("nvmlDeviceGetMaxMigDeviceCount", handle, device=index)
    for place in range(min(most, MOST_MIG_DEVICES) if code == 0 else 0):
        ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, place, device=index, arguments=[place])


def read_fabric(index: int, handle: Any) -> None:
    """How far the card is with the NVLink fabric, as far as bindings and library know one."""
    for call, structure in FABRIC:
        info = getattr(nvml, structure, SPARE)()
        if ask(call, handle, ctypes.byref(info), filled=info, device=index)[0] not in OTHER_VERSION:
            return


def read_peers(index: int, handle: Any, handles: dict[int, Any]) -> None:
    """Whether the driver lets a card and each later one copy directly."""
    for peer, other in handles.items() if len(handles) <= MOST_PEERS else ():
        for way in (PEER_READ, PEER_WRITE) if index < peer else ():
            ask("nvmlDeviceGetP2PStatus", handle, other, way, device=index, arguments=[peer, way])


def each(handles: dict[int, Any], read: Callable[[int, Any], None]) -> None:
    """Read every card, and drop those that are lost."""
    for index, handle in list(handles.items()):
        try:
            read(index, handle)
        except CardLost:
            del handles[index]


def watch(handles: dict[int, Any], interval: float, patience: float) -> None:
    """Write which cards are watched, then the changing values in rounds; after those of one card a
    line that tells the time."""
    import select
    import time

    def sample(index: int, handle: Any) -> None:
        try:
            read_changing(index, handle)
            for call, *arguments in COUNTERS:
                about: dict[str, Any] = {"arguments": arguments} if arguments else {}
                ask(call, handle, *arguments, device=index, **about)
        finally:
            note(sample=time.monotonic(), device=index)

    note(watching=list(handles))
    while True:
        faulthandler.dump_traceback_later(patience, exit=True)
        began = time.monotonic()
        each(handles, sample)
        if select.select([0], [], [], max(0.0, began + interval - time.monotonic()))[0]:
            return  # stdin was closed


def open_library(folder: str) -> bool:
    """Load the library, then pynvml, and start NVML; False where a line tells why not."""
    global nvml  # noqa: PLW0603
    if sys.platform.startswith("linux"):
        try:
            ctypes.CDLL(LIBRARY)
        except OSError as error:
            reason = str(error)
            if LIBRARY in reason and reason.endswith("No such file or directory"):
                os.write(answers, b'{"call": "nvmlInit", "code": 12}\n')  # as pynvml would answer
            else:  # it is there, but empty, for another CPU or in need of another library
                note(call="nvmlInit", code=LIBRARY_NOT_FOUND, error=reason)
            return False
    sys.path.append(folder)
    try:
        import pynvml
    except ImportError as error:
        note(bindings="absent", error=str(error))
        return False
    if hasattr(pynvml, "__path__") or not hasattr(pynvml, "nvmlDeviceGetHandleByIndex"):
        note(bindings="foreign", error=str(pynvml.__file__))
        return False
    nvml = pynvml
    return ask("nvmlInit")[0] == 0


def ask_all(folder: str, interval: float | None, patience: float) -> None:
    """Ask everything once, or watch."""
    if not open_library(folder):
        return
    for call in ("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlSystemGetCudaDriverVersion"):
        ask(call)
    code, count = ask("nvmlDeviceGetCount")
    handles: dict[int, Any] = {}
    for index in range(count if code == 0 else 0):
        try:
            code, handle = ask("nvmlDeviceGetHandleByIndex", index, device=index)
        except CardLost:
            continue
        if code == 0:
            handles[index] = handle
    each(handles, read_identity)  # of all cards first: after a hang it is known which ones there are
    if interval is not None:
        watch(handles, interval, patience)
        return
    each(handles, read_changing)
    each(handles, read_lasting)
    each(handles, lambda index, handle: read_peers(index, handle, handles))


def main(seconds: str, folder: str, interval: str | None = None) -> None:
    """Run the whole program; does not return."""
    os.dup2(2, 1)  # whatever the library prints stays out of the answers
    faulthandler.dump_traceback_later(float(seconds), exit=True)  # ends a hung call too
    ask_all(folder, None if interval is None else float(interval), float(seconds))
    os._exit(0)  # without nvmlShutdown, which can hang too: the kernel releases everything
