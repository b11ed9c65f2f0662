"""Fewer cards than expected, or levels that disagree, unexplained.

What it means
A card is counted on four levels: the PCI bus, the device files, NVML and TensorFlow. One level
shows fewer cards than the one below it, or the lowest shows fewer than there should be, and no
other finding says why.

How we know
The counts are compared by PCI address and per vendor; a level that was not looked at, or that could
not start, is compared with nothing.

Why it matters
It is the only sign of a card that leaves none: in a dead slot, without its power lead, or broken.

What to do
Look at the cards that are missing: power leads, seat, riser, and the CPU socket their slots belong
to. Then put a card that works into the slot of one that does not.

When it is wrong
A container or a batch system may show a process some of the cards only; where the device files
agree with NVML it is a warning. WSL 2 has no GPU on PCI, and that is right so.

Sources
https://github.com/leptonai/gpud/issues/591 (count and compare)
https://github.com/Azure/azhpc-diagnostics/pull/46 (a level that could not be read proves nothing)
https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1283 (gone from PCI, still known to NVML)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpucheck.facts import Gpu, Machine
from gpucheck.findings import Confidence, Evidence, Finding, NextTest, Reading, Severity, finding
from gpucheck.rules import View
from gpucheck.rules._shared import LOOK_FURTHER, cards_of, driver_evidence, labels, nvidia_on_pci, subject
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ("gpus",)

OFF_THE_BUS = frozenset({"cpu-socket-empty", "gpu-fell-off-bus", "link-down", "bus-resources-exhausted"})
"""Why a card is not on PCI."""
NOT_USABLE = frozenset(
    {
        "gpu-fell-off-bus",
        "nvml-gpu-lost",
        "bar-unassigned",
        "address-space-too-small",
        "bus-resources-exhausted",
        "vm-mmio-window-too-small",
        "nouveau-bound",
        "vfio-bound",
        "no-driver-bound",
        "driver-not-installed",
        "visibility-limited",
        "module-load-blocked",
        "driver-dropped-gpu",
        "open-module-unsupported",
        "gpu-init-failed",
    }
)
"""Why a card that is on PCI cannot be used."""


LEFT_OUT = frozenset(
    {"tensorflow-ignores-gpu", "tensorflow-no-kernels-for-gpu", "visibility-limited", "peer-limit-exceeded"}
)
"""Why TensorFlow lists fewer cards than NVML."""


def lacks(machine: Machine) -> Iterator[str]:
    """Levels above PCI, where there is something to compare."""
    if not nvidia_on_pci(machine):
        return
    if machine.nvml is None or machine.nvml.gpus is None:
        yield "nvml.gpus"
    elif not machine.nvml.complete:
        yield "nvml.complete"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """Runs after the causes: what ``view.found`` explains is left out."""
    yield from _too_few(machine, view)
    yield from _not_in_nvml(machine, view)
    yield from _only_in_nvml(machine, view)
    yield from _not_in_tensorflow(machine, view)


def usable(machine: Machine, found: Iterable[Finding]) -> int | None:
    """GPUs that are there and that no finding calls unusable; None where they were not looked for."""
    return None if machine.gpus is None else len(machine.gpus) - len(unusable(machine, found))


def raise_explaining(machine: Machine, view: View, found: Iterable[Finding]) -> list[Finding]:
    """Raise to error what explains an unmet expectation, and say so in its evidence.

    Expected cards can be missing from PCI (an empty socket, a card that fell off) or be there and
    not usable (no address, no or another driver). Each kind is explained by its own findings.
    """
    found = list(found)
    expected = view.expected
    if expected is None or machine.gpus is None:
        return found
    lost = unusable(machine, found)
    usable = len(machine.gpus) - len(lost)
    if usable >= expected.n:
        return found
    note = Evidence(
        source=expected.origin,
        text=say(
            plural(expected.n, "One GPU expected, {usable} usable", "{expected} GPUs expected, {usable} usable"),
            expected=expected.n,
            usable=usable,
        ),
    )
    missing_from_pci = len(machine.gpus) < expected.n
    return [
        f.model_copy(update={"severity": "error", "evidence": (*f.evidence, note)})
        if _explains(machine, f, lost, missing_from_pci)
        else f
        for f in found
    ]


def _explains(machine: Machine, f: Finding, lost: set[str], missing_from_pci: bool) -> bool:
    cards = cards_of(f, machine)
    if cards:
        return f.name in NOT_USABLE and not cards.isdisjoint(lost)
    return f.name in OFF_THE_BUS and f.confidence != "possible" and missing_from_pci


def unusable(machine: Machine, found: Iterable[Finding]) -> set[str]:
    """Cards that are known and cannot be used: a finding says so, or NVML does not list them.

    A warning says that the card works all the same, unless it belongs to a virtual machine.
    """
    named = {
        address
        for f in found
        if f.name == "vfio-bound" or (f.name in NOT_USABLE and f.severity == "error")
        for address in cards_of(f, machine)
    }
    return named | {gpu.address for gpu in (*unlisted(machine), *_stale(machine))}


def unlisted(machine: Machine) -> list[Gpu]:
    """NVIDIA cards on PCI that NVML, which works, does not list."""
    if machine.nvml is None or machine.nvml.gpus is None or not machine.nvml.complete:
        return []
    nameless = sum(gpu.address is None for gpu in machine.nvml.gpus)
    unlisted = [gpu for gpu in nvidia_on_pci(machine) if gpu.nvml is None]
    return unlisted if len(unlisted) > nameless else []


def _stale(machine: Machine) -> list[Gpu]:
    """Cards that NVML lists and PCI does not, on a machine where others are on both.

    Where no NVIDIA card is on PCI at all (WSL 2, Tegra) that is how the platform is made.
    """
    gone = [gpu for gpu in machine.gpus or () if gpu.on_pci is False]
    return gone if nvidia_on_pci(machine) else []


def _levels(view: View) -> Iterator[Evidence]:
    levels = (
        ("PCI", view.counts.pci),
        ("/dev/nvidia*", view.counts.device_files),
        ("NVML", view.counts.nvml),
        ("TensorFlow", view.counts.tensorflow),
    )
    for source, count in levels:
        if count is not None:
            yield Evidence(source=source, text=say("GPUs: {count}", count=count))
    if view.expected is not None:
        yield Evidence(source=view.expected.origin, text=say("GPUs expected: {count}", count=view.expected.n))


def _too_few(machine: Machine, view: View) -> Iterator[Finding]:
    expected, gpus = view.expected, machine.gpus or ()
    if expected is None or len(gpus) >= expected.n:
        return
    # An empty socket and a bridge without bus numbers explain any number of cards, a card that fell off only itself.
    if any(f.name == "cpu-socket-empty" for f in view.found):
        return
    if any(f.name == "bus-resources-exhausted" and f.confidence == "certain" for f in view.found):
        return
    one_each = ("gpu-fell-off-bus", "link-down")
    fallen = [f for f in view.found if f.name in one_each and f.confidence != "possible" and not cards_of(f, machine)]
    lost = view.lost - {f.subject for f in fallen}
    missing = expected.n - len(gpus) - len(fallen) - len(lost)
    if missing <= 0:
        return
    fields = {"expected": expected.n, "seen": len(gpus), "missing": missing}
    if machine.pci is None:
        yield _too_few_in_nvml(machine, view, fields)
        return
    if not machine.pci_complete:
        message = plural(
            missing,
            "GPUs expected: {expected}, in the list: {seen}. The list may be an excerpt; if it is whole, one is "
            "missing without a trace.",
            "GPUs expected: {expected}, in the list: {seen}. The list may be an excerpt; if it is whole, {missing} are "
            "missing without a trace.",
        )
    elif expected.n == 1:
        message = "One GPU is expected and none can be seen: it is missing without a trace."
    else:
        message = plural(
            missing,
            "{expected} GPUs are expected and {seen} can be seen: one is missing without a trace.",
            "{expected} GPUs are expected and {seen} can be seen: {missing} are missing without a trace.",
        )
    yield finding(
        "gpu-count-mismatch",
        "error",
        "machine",
        say(message, **fields),
        evidence=tuple(_levels(view)),
        confidence="certain" if machine.pci_complete else "possible",
        remedy=(
            *(() if machine.pci_complete else (say("Give the whole list: lspci -nnk > lspci.txt"),)),
            say("Check that every power lead of the missing cards is plugged in, with the right kind of plug."),
            say("Check that the slots belong to a populated CPU socket and that the risers are fitted."),
            say("Seat the cards again."),
            say("In the firmware setup, check that the slots are enabled and that Above 4G Decoding is on."),
        ),
        next_test=(
            NextTest(
                do=say("Move a missing card into a slot in which a card is seen."),
                outcomes=(
                    Reading(seen=say("It is seen"), means=say("Its old slot, riser or CPU socket is at fault.")),
                    Reading(seen=say("It is not seen"), means=say("The card or its power lead is at fault.")),
                ),
            ),
        ),
    )


def _too_few_in_nvml(machine: Machine, view: View, fields: dict[str, int]) -> Finding:
    """Only NVIDIA's tools were asked: a card that they do not list may be on PCI all the same."""
    nvml = machine.nvml
    who = nvml.call if nvml is not None and nvml.call is not None else "NVML"
    told = (Evidence(source=who, text=nvml.message),) if nvml is not None and nvml.message is not None else ()
    message = plural(
        view.expected.n if view.expected is not None else 0,
        "One GPU is expected and {who} lists none that it can use; whether it is on PCI was not given.",
        "{expected} GPUs are expected and {who} lists {seen}; whether the others are on PCI was not given.",
    )
    return finding(
        "gpu-count-mismatch",
        "error",
        "machine",
        say(message, who=who, **fields),
        evidence=(*told, *_levels(view)),
        remedy=LOOK_FURTHER,
    )


def _not_in_nvml(machine: Machine, view: View) -> Iterator[Finding]:
    named = {address for f in view.found if f.name in NOT_USABLE for address in cards_of(f, machine)}
    named |= {f.subject for f in view.found if f.name == "gpu-suspect" and f.severity == "error"}
    missing = [gpu for gpu in unlisted(machine) if gpu.address not in named]
    if not missing:
        return
    counts, total = view.counts, len(machine.gpus or ())
    hidden = counts.nvml is not None and counts.nvml > 0 and counts.nvml == counts.device_files
    wanted = view.expected is not None and total - len(unusable(machine, view.found)) < view.expected.n
    severity: Severity = "warning" if hidden and not wanted else "error"
    confidence: Confidence = "possible" if hidden else "certain"
    if hidden:
        message = say(
            plural(
                len(missing),
                "NVML does not list {cards}, and there is no device file for it: perhaps it is hidden from this "
                "process.",
                "NVML does not list {cards}, and there are no device files for them: perhaps they are hidden from "
                "this process.",
            ),
            cards=labels(missing),
        )
    else:
        message = say(
            plural(
                len(missing),
                "PCI shows {cards}, but NVML does not list it.",
                "PCI shows {cards}, but NVML does not list them.",
            ),
            cards=labels(missing),
        )
    yield finding(
        "gpu-count-mismatch",
        severity,
        subject(missing),
        message,
        evidence=(*_levels(view), *(driver_evidence(gpu) for gpu in missing)),
        remedy=(
            say("Read what the driver says about the card: sudo dmesg | grep -i -e nvrm -e nvidia"),
            say("In a container or a batch job, ask for all cards, or look from the host."),
            say("Shut down, take the mains off for half a minute and boot again."),
        ),
        confidence=confidence,
    )


def _only_in_nvml(machine: Machine, view: View) -> Iterator[Finding]:
    gone = _stale(machine)
    if gone:
        yield finding(
            "gpu-count-mismatch",
            "error",
            subject(gone),
            say(
                "NVML still lists {cards}, but it is no longer on the PCI bus: the driver's state is stale.",
                cards=labels(gone),
            ),
            evidence=tuple(_levels(view)),
            remedy=(say("Reboot. If it happens again, check the card's power leads, seat and riser."),),
            confidence="likely",
        )


def _not_in_tensorflow(machine: Machine, view: View) -> Iterator[Finding]:
    seen, nvml = view.counts.tensorflow, view.counts.nvml
    # None at all is TensorFlow's own matter and has findings of its own.
    explained = any(f.name in LEFT_OUT for f in view.found)
    if seen is not None and nvml is not None and 0 < seen < nvml and not explained:
        yield finding(
            "gpu-count-mismatch",
            "error",
            "TensorFlow",
            say("NVML lists {nvml} GPUs, TensorFlow only {seen}.", nvml=nvml, seen=seen),
            evidence=tuple(_levels(view)),
            remedy=(
                say("Look at CUDA_VISIBLE_DEVICES in the environment of the program."),
                say(
                    "TensorFlow leaves out a card with far fewer multiprocessors than the best one, unless "
                    "TF_MIN_GPU_MULTIPROCESSOR_COUNT is set lower."
                ),
            ),
        )
