"""What the rules on NVML's answers share: which cards it opened, what it refused, what was not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpucheck.facts import NVIDIA_SMI, Gpu, Machine, Nvml, NvmlGpu
from gpucheck.findings import Evidence
from gpucheck.nvml_codes import GPU_IS_LOST, MEANINGS, NO_PERMISSION, NOT_SUPPORTED, OPERATING_SYSTEM, RESET_REQUIRED
from gpucheck.rules._shared import nvidia_on_pci
from gpucheck.text import say

CLOCK_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""What tells why clocks are held back, by its new name and its old one."""
HANDLES = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByPciBusId")
HIDDEN = (NO_PERMISSION, OPERATING_SYSTEM)
"""The card works, but not for this process: a batch system or a container has not granted it."""
BUSY_PERCENT = 50
"""From this utilization on a card is loaded, and low clocks mean something."""


def nvml_reason(nvml: Nvml) -> str:
    """Why NVML did not start: nvidia-smi's own words where they were given, else code and meaning."""
    if nvml.call == NVIDIA_SMI and nvml.message is not None:
        return nvml.message
    if nvml.code is None:
        return nvml.message or say("the library was not found")
    reason = MEANINGS.get(nvml.code) or nvml.message or say("no reason given")
    return say("error {code}, {meaning}", code=nvml.code, meaning=reason)


def nvml_evidence(nvml: Nvml) -> tuple[Evidence, ...]:
    """Which call refused, and why."""
    return (Evidence(source=nvml.call or "NVML", text=nvml_reason(nvml)),)


def refusal(seen: NvmlGpu) -> tuple[str, int] | None:
    """The call and the code by which a card is out of NVML's reach; None for one that it reads, or that
    is only hidden from this process."""
    for call, code in seen.errors.items():
        if code in (GPU_IS_LOST, RESET_REQUIRED) or (call in HANDLES and code != 0 and code not in HIDDEN):
            return call, code
    return None


def read_cards(machine: Machine) -> Iterator[tuple[Gpu, NvmlGpu]]:
    """Cards that NVML reads, with what it says of them."""
    for gpu in machine.gpus or ():
        if gpu.nvml is not None and refusal(gpu.nvml) is None:
            yield gpu, gpu.nvml


def unread(machine: Machine, facts: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Names of facts that NVML did not give, of those in ``facts`` with the calls that give them.
    What a card cannot give is no lack."""
    if machine.nvml is not None and machine.nvml.gpus is None and nvidia_on_pci(machine):
        yield "nvml.gpus"
    for gpu, seen in read_cards(machine):
        for fact, calls in facts.items():
            refused = any(seen.errors.get(call) == NOT_SUPPORTED for call in calls)
            if getattr(seen, fact) is None and not refused:
                yield f"gpus.{gpu.address}.nvml.{fact}"


def reasons_evidence(seen: NvmlGpu) -> tuple[Evidence, ...]:
    """Why the clocks are held back, with clock, load, power and heat as far as they were read."""
    reasons = ", ".join(seen.clock_reasons or ())
    found = [Evidence(source="nvmlDeviceGetCurrentClocksEventReasons", text=reasons or say("none"))]
    if seen.sm_clock_mhz is not None and seen.sm_max_clock_mhz is not None:
        text = say("{now} of {most} MHz", now=seen.sm_clock_mhz, most=seen.sm_max_clock_mhz)
        found.append(Evidence(source="nvmlDeviceGetClockInfo", text=text))
    if seen.utilization_percent is not None:
        text = say("{percent} % busy", percent=seen.utilization_percent)
        found.append(Evidence(source="nvmlDeviceGetUtilizationRates", text=text))
    if seen.power_watts is not None and seen.power_limit_watts is not None:
        text = say("{now:g} of {limit:g} W", now=seen.power_watts, limit=seen.power_limit_watts)
        found.append(Evidence(source="nvmlDeviceGetPowerUsage", text=text))
    if seen.temperature_c is not None:
        text = say("{degrees} °C", degrees=seen.temperature_c)
        found.append(Evidence(source="nvmlDeviceGetTemperature", text=text))
    return tuple(found)


def is_loaded(seen: NvmlGpu) -> bool:
    """The card works hard just now."""
    return (seen.utilization_percent or 0) >= BUSY_PERCENT


def is_slow(seen: NvmlGpu) -> bool:
    """The clock is at half of what it can be, or less: what every hardware slowdown does."""
    return bool(seen.sm_clock_mhz and seen.sm_max_clock_mhz and 2 * seen.sm_clock_mhz <= seen.sm_max_clock_mhz)
