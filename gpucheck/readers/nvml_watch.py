"""Watch cards through NVML while they work, in a child process.

::

    watch = Watch(interval=0.1)
    watch.start()                      # never raises
    watch.wait_ready(timeout=10)       # True: every card has been sampled once, idle
    ...                                # let the cards work
    samples = watch.stop(timeout=2)    # never waits longer than about that
    watch.parts                        # status, cards and gaps, as readers.nvml.parse gives them

A watch that cannot see (no driver, NVML hangs) has no samples and says why in ``parts``. After a hang
the samples up to it remain, and ``parts.nvml`` has status ``timed-out`` with the call.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from gpucheck.facts import Parts
from gpucheck.nvml_codes import GPU_IS_LOST
from gpucheck.readers.nvml import Answered, Child, parse

_HUNG_SECONDS = 10.0
"""A round that takes this long hangs."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one card. None: the card or driver does not tell; ``errors`` has the return codes.

    Process ids are the kernel's. In a container NVML may list ids of the host, or none at all.
    """

    index: int
    address: str | None
    uuid: str | None
    seconds: float
    """``time.monotonic()`` of this machine, just after the values were read."""
    memory_used_bytes: int | None
    utilization_percent: int | None
    """Share of the driver's last sample period (up to a second) in which a kernel ran."""
    energy_joules: float | None
    """Since the driver was loaded; Volta and later."""
    power_watts: float | None
    temperature_c: int | None
    performance_state: int | None
    sm_clock_mhz: int | None
    clock_reasons: tuple[str, ...] | None
    """Why the clocks are where they are, as in :class:`gpucheck.facts.NvmlGpu`."""
    pcie_replays: int | None
    """Packets of the link that were sent again, as far as the card counts."""
    ecc_corrected: int | None
    """Errors of the card's memory since the driver was loaded."""
    ecc_uncorrected: int | None
    pids: tuple[int, ...] | None
    """Processes with a compute context."""
    pid_memory: dict[int, int] | None
    """Bytes per process, without those for which NVML does not know."""
    errors: dict[str, int]
    """NVML function to its return code. A card that is lost (15) has no sample after that."""

    @property
    def lost(self) -> bool:
        """The card answered that it is lost: this is its last sample."""
        return GPU_IS_LOST in self.errors.values()


class Watch:
    """Samples of all cards, taken by a child that asks NVML.

    Args:
        interval: Seconds from one round to the next.
    """

    def __init__(self, interval: float = 0.1) -> None:
        self._interval = interval
        self._child: Child | None = None
        self._answers: dict[str, Any] = {"timed_out": False, "exit_code": None}
        self._calls: list[dict[str, Any]] = []
        self._cards: dict[int, Answered] = {}
        self._unseen: set[int] | None = None
        """Cards without a sample yet; None until the cards are known."""
        self._samples: list[Sample] = []
        self._settled = threading.Event()
        self._ended = threading.Event()

    def start(self) -> None:
        """Start the child. Where that fails, ``parts`` says why and there are no samples."""
        try:
            self._child = Child(self._take, patience=_HUNG_SECONDS, interval=self._interval, on_end=self._end)
        except OSError as error:
            self._answers["error"] = str(error)
            self._end()

    def _end(self) -> None:
        self._ended.set()
        self._settled.set()

    def wait_ready(self, timeout: float) -> bool:
        """Wait for a first sample of every card. False: there is none after ``timeout`` seconds, or
        there never will be."""
        return self._settled.wait(timeout) and bool(self._samples) and not self._unseen

    @property
    def samples(self) -> list[Sample]:
        """Those taken so far, in order of time."""
        return list(self._samples)

    @property
    def has_ended(self) -> bool:
        """There will be no more samples: the child is gone, or could not be started."""
        return self._ended.is_set()

    def stop(self, timeout: float = 2.0) -> list[Sample]:
        """End the child, by force after ``timeout`` seconds, and return all samples."""
        if self._child is not None:
            self._child.close()
            self._answers = self._child.finish(time.monotonic() + timeout)
        return self.samples

    @property
    def parts(self) -> Parts:
        """How NVML started and which cards it has, without their state; after :meth:`stop` also
        how it ended."""
        return parse({**self._answers, "calls": [*self._calls, *self._answers.get("calls", ())]})

    def _take(self, answer: dict[str, Any]) -> None:
        """One line of the child, on the thread that reads it."""
        index = answer.get("device", -1)
        if "watching" in answer:
            self._unseen = set(answer["watching"])
        elif "sample" in answer:
            card = self._cards.pop(index)
            self._samples.append(_sample(index, answer["sample"], card))
            self._cards[index] = Answered(values={call: card.values.get(call) for call in _IDENTITY})
            if self._unseen is not None:
                self._unseen.discard(index)
        else:
            if self._unseen is None:
                self._calls.append(answer)
            if "call" in answer:
                self._cards.setdefault(index, Answered()).add(answer["call"], answer)
        if self._unseen == set():
            self._settled.set()


_IDENTITY = ("nvmlDeviceGetPciInfo", "nvmlDeviceGetUUID")


def _sample(index: int, seconds: float, card: Answered) -> Sample:
    millijoules = card.integer("nvmlDeviceGetTotalEnergyConsumption")
    processes = card.processes
    return Sample(
        index=index,
        address=card.address,
        uuid=card.text("nvmlDeviceGetUUID"),
        seconds=seconds,
        memory_used_bytes=card.integer("nvmlDeviceGetMemoryInfo", "used"),
        utilization_percent=card.integer("nvmlDeviceGetUtilizationRates", "gpu"),
        energy_joules=None if millijoules is None else millijoules / 1000,
        power_watts=card.watts("nvmlDeviceGetPowerUsage"),
        temperature_c=card.integer("nvmlDeviceGetTemperature"),
        performance_state=card.performance_state,
        sm_clock_mhz=card.integer("nvmlDeviceGetClockInfo"),
        clock_reasons=card.clock_reasons,
        pcie_replays=card.integer("nvmlDeviceGetPcieReplayCounter"),
        ecc_corrected=card.integer("nvmlDeviceGetTotalEccErrors[0, 0]"),
        ecc_uncorrected=card.integer("nvmlDeviceGetTotalEccErrors[1, 0]"),
        pids=None if processes is None else tuple(processes),
        pid_memory=None if processes is None else {pid: used for pid, used in processes.items() if used is not None},
        errors=card.errors,
    )
