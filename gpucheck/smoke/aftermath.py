"""What a training leaves on the machine after its end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpucheck.findings import Evidence, Finding, finding
from gpucheck.smoke.cards import by_address, nvml_evidence, shares_numbers
from gpucheck.smoke.outcome import Outcome
from gpucheck.text import say

if TYPE_CHECKING:
    from gpucheck.readers.nvml_watch import Sample

MOST_LEFT_BYTES = 64 << 20


def is_over(outcome: Outcome, samples: Sequence[Sample]) -> bool:
    """Whether every card that was sampled before the training has been sampled after it, and shows
    neither its process nor its memory any more. There is nothing to wait for on a card that is lost."""
    return all(
        _is_clean(outcome, own)
        for own in by_address(samples).values()
        if own[0].seconds <= outcome.started and not own[-1].lost
    )


def _is_clean(outcome: Outcome, own: Sequence[Sample]) -> bool:
    if own[-1].seconds < outcome.ended:
        return False
    left = nvml_evidence(own, outcome).memory_left_bytes
    return outcome.pid not in (own[-1].pids or ()) and (left is None or left <= MOST_LEFT_BYTES)


def left_over(outcome: Outcome, samples: Sequence[Sample]) -> list[Finding]:
    """What the training left on the machine."""
    found = []
    shared = shares_numbers(outcome, samples)
    holders: list[Evidence] = []
    unclear: list[Evidence] = []
    for address, own in sorted(by_address(samples).items()):
        evidence = nvml_evidence(own, outcome)
        last = own[-1]
        if last.seconds < outcome.ended:
            continue
        before = next((one.pids or () for one in reversed(own) if one.seconds <= outcome.started), ())
        others = [pid for pid in last.pids or () if pid not in before and pid != outcome.pid]
        if outcome.pid in (last.pids or ()):
            holders.append(Evidence(source=say("NVML processes"), text=f"{address}: {outcome.pid}"))
        elif not shared:
            mine = [pid for pid in others if pid in (evidence.other_processes or ())]
            unclear += [Evidence(source=say("NVML processes"), text=f"{address}: {pid}") for pid in mine]
        left = evidence.memory_left_bytes
        if left is not None and left > MOST_LEFT_BYTES:
            found.append(_memory(address, left, last.seconds - outcome.ended, others))
    if outcome.left_behind or holders:
        found.append(
            finding(
                "process-left-behind",
                "error",
                "machine",
                say("A process of the training outlived it (process group {pid}).", pid=outcome.pid),
                evidence=tuple(holders),
                remedy=(say("What SIGKILL does not end hangs in the driver: only a reboot frees the card."),),
            )
        )
    elif unclear:
        found.append(
            finding(
                "process-left-behind",
                "warning",
                "machine",
                say("A process that came onto a card during the training is still there. NVML numbers processes in "
                    "another namespace here, so it may be the training's own or somebody else's."),
                evidence=tuple(unclear),
                remedy=(say("Look it up on the host, outside the container: nvidia-smi, then ps -fp NUMBER."),),
                confidence="possible",
            )
        )  # fmt: skip
    return found


def _memory(address: str, left: int, seconds: float, others: Sequence[int]) -> Finding:
    """Memory that is still in use: a warning where somebody else's process may hold it."""
    return finding(
        "memory-not-released",
        "warning" if others else "error",
        address,
        say(
            "{mib} MiB more are in use on {address} {seconds:.0f} s after the training than before.",
            mib=left >> 20,
            address=address,
            seconds=seconds,
        ),
        evidence=(
            Evidence(source=say("NVML memory"), text=say("{n} bytes", n=left)),
            *(Evidence(source=say("NVML processes"), text=f"{address}: {pid}") for pid in others),
        ),
        remedy=(say("Look for processes that hold the card (nvidia-smi); a reset frees the rest."),),
        confidence="possible" if others else "certain",
    )
