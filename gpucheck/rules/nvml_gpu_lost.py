"""NVML cannot reach one card.

What it means
NVML counts the card and does not open it, calls it lost, or says that it needs a reset, and nothing on
the bus says why. The other cards work, or would, and programs that give up at the first error see none
of them.

How we know
The call that opens the card, or the first call after it, returned an error; the code is shown. NVML
tells no address of a card that it does not open: where one card on PCI is the only one that NVML does
not list, that is likely the one.

Why it matters
No program can use the card, and a training over all cards does not start.

What to do
End the programs that use the card and reboot. If it comes back and is lost again under load, look at
power leads, seat, riser and heat as for a card that fell off the bus; if it never comes back, swap it.

When it is wrong
With a finding that explains the same card (gpu-fell-off-bus above all) this one is left out. A card
that a batch system or a container has not granted (codes 4 and 17) is hidden, not lost. A driver that
is starting or being replaced may refuse for a moment: ask again.

Sources
https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html (return codes of the handle calls)
https://github.com/NVIDIA/dcgm-exporter/issues/604 (a card without a handle)
https://github.com/rossumai/nvgpu/issues/6 (one lost card must not hide the others)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpucheck.facts import Gpu, Machine, NvmlGpu, pci_address
from gpucheck.findings import Confidence, Evidence, Finding, NextTest, Reading, finding
from gpucheck.nvml_codes import GPU_IS_LOST, RESET_REQUIRED, meaning
from gpucheck.rules import View
from gpucheck.rules._nvml import refusal
from gpucheck.rules._shared import (
    ADDRESS,
    cards_of,
    driver_evidence,
    explained,
    label,
    labels,
    log_evidence,
    log_lines,
    nvidia_on_pci,
)
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ("nvml",)

FALLEN = frozenset({"gpu-fell-off-bus"})
_NAMED = rf"PCI:({ADDRESS}): GPU-"
"""The driver's line before an Xid, with the card's UUID."""
INSUFFICIENT_POWER = 8
CERTAIN = (INSUFFICIENT_POWER, GPU_IS_LOST, RESET_REQUIRED)
"""Codes that say what is wrong; others have several causes."""


def lacks(machine: Machine) -> Iterator[str]:
    """NVML did not list the cards although there are some."""
    if machine.nvml is not None and machine.nvml.gpus is None and nvidia_on_pci(machine):
        yield "nvml.gpus"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding for each card that is known by address, and one for those that are not."""
    told = explained(view.found, machine, FALLEN)
    told |= {address for f in view.found if f.severity == "error" for address in cards_of(f, machine)}
    for gpu in machine.gpus or ():
        refused = refusal(gpu.nvml) if gpu.nvml is not None else None
        if refused is not None and gpu.address not in told:
            yield _lost(machine, gpu, *refused)
    yield from _nameless(machine, view, told)
    if machine.nvml is not None and machine.nvml.code == GPU_IS_LOST and not any(f.name in FALLEN for f in view.found):
        call = machine.nvml.call or "NVML"
        message = say("NVML does not start: it says that a GPU is lost, and not which one.")
        yield _finding("machine", message, GPU_IS_LOST, (_evidence(call, GPU_IS_LOST),), "certain")


def _nameless(machine: Machine, view: View, told: set[str]) -> Iterator[Finding]:
    """Cards that NVML counts and does not open, so that it tells no address."""
    listed = (machine.nvml.gpus if machine.nvml is not None else None) or ()
    alone = {gpu.nvml.index for gpu in machine.gpus or () if gpu.nvml is not None and gpu.nvml.address is None}
    closed = [seen for seen in listed if seen.address is None and seen.index not in alone and refusal(seen)]
    unlisted = [gpu for gpu in nvidia_on_pci(machine) if gpu.nvml is None]
    open_cases = [gpu for gpu in unlisted if gpu.address not in told]
    if not closed or any(f.name in FALLEN and f.subject == "machine" for f in view.found):
        return
    if len(closed) == len(unlisted) == len(open_cases) == 1:
        call, code = refusal(closed[0]) or ("", 0)
        yield _lost(machine, open_cases[0], call, code, index=closed[0].index)
    elif open_cases or not unlisted:
        yield _several(closed, open_cases)


def _lost(machine: Machine, gpu: Gpu, call: str, code: int, index: int | None = None) -> Finding:
    """``index`` where the card is known by elimination alone."""
    message = say("NVML cannot reach {card}: {meaning}.", card=label(gpu), meaning=meaning(code))
    evidence = [_evidence(call, code, index)]
    if gpu.nvml is not None and gpu.nvml.uuid is not None:
        evidence.append(Evidence(source="nvmlDeviceGetUUID", text=gpu.nvml.uuid))
    if gpu.on_pci:
        evidence.append(driver_evidence(gpu))
    evidence += _last_known(machine, gpu.address)
    confidence: Confidence = "possible" if code not in CERTAIN else "certain" if index is None else "likely"
    return _finding(gpu.address, message, code, tuple(evidence), confidence)


def _several(closed: Sequence[NvmlGpu], among: Sequence[Gpu]) -> Finding:
    found = [(seen.index, *(refusal(seen) or ("", 0))) for seen in closed]
    code = found[0][2]
    if among:
        template = plural(
            len(closed),
            "NVML counts one GPU that it cannot reach; it is among {cards}.",
            "NVML counts {count} GPUs that it cannot reach; they are among {cards}.",
        )
        message = say(template, count=len(closed), cards=labels(among))
    else:
        template = plural(
            len(closed),
            "NVML counts one GPU that it cannot reach; which one is not known.",
            "NVML counts {count} GPUs that it cannot reach; which ones is not known.",
        )
        message = say(template, count=len(closed))
    evidence = (*(_evidence(call, code, index) for index, call, code in found), *map(driver_evidence, among))
    confidence: Confidence = "certain" if all(code in CERTAIN for _, _, code in found) else "possible"
    return _finding("machine", message, code, evidence, confidence)


def _evidence(call: str, code: int, index: int | None = None) -> Evidence:
    if index is None:
        return Evidence(source=call, text=say("error {code}, {meaning}", code=code, meaning=meaning(code)))
    text = say("device {index}: error {code}, {meaning}", index=index, code=code, meaning=meaning(code))
    return Evidence(source=call, text=text)


def _last_known(machine: Machine, address: str) -> list[Evidence]:
    """The last line in which the driver names the card's UUID: a lost card tells none."""
    log = machine.kernel_log
    lines = [
        line
        for _, line in log_lines(machine, ": GPU-")
        if (found := re.search(_NAMED, line)) and pci_address(found[1]) == address
    ]
    return [log_evidence(log, line) for line in lines[-1:] if log is not None]


def _finding(subject: str, message: str, code: int, evidence: tuple[Evidence, ...], confidence: Confidence) -> Finding:
    address = pci_address(subject) or "ADDRESS"
    if code == INSUFFICIENT_POWER:
        remedy: tuple[str, ...] = (
            say("Shut down, take the mains off and plug every power lead of the card in, with the right kind of plug."),
        )
    else:
        remedy = (
            say("End what uses the card and reset it (sudo nvidia-smi --gpu-reset -i {address}), or reboot.",
                address=address),
            say("Read what the driver said when it lost the card: sudo dmesg | grep -i -e xid -e nvrm"),
            say("If it is lost again, check its power leads, seat, riser and heat sink."),
        )  # fmt: skip
    return finding(
        "nvml-gpu-lost",
        "error",
        subject,
        message,
        evidence=evidence,
        remedy=remedy,
        next_test=() if code == INSUFFICIENT_POWER else _tests(address),
        confidence=confidence,
    )


def _tests(address: str) -> tuple[NextTest, ...]:
    return (
        NextTest(
            do=say("Read its configuration space: sudo lspci -s {address} -x", address=address),
            outcomes=(
                Reading(
                    seen=say("All bytes are ff"),
                    means=say("It fell off the bus: power, contact, riser, heat or the card itself."),
                ),
                Reading(seen=say("It reads as it should"), means=say("The driver lost it: the kernel log tells why.")),
            ),
        ),
        NextTest(
            do=say("Reboot and ask again before any load."),
            outcomes=(
                Reading(seen=say("It is back"), means=say("Load, heat or power made it fail: watch it under load.")),
                Reading(
                    seen=say("It is still out of reach"), means=say("Seat it again; then swap it with one that works.")
                ),
            ),
        ),
    )
