"""Cards are hidden from this process.

What it means
The driver works and the cards are there, but this process, its container or its job may use only some
of them, or none.

How we know
NVML lists fewer cards than PCI shows, which it does inside a container and under a scheduler's cgroup;
or a variable such as CUDA_VISIBLE_DEVICES names fewer than NVML lists. CUDA reads that list up to the
first entry that it does not know. Who allotted the cards shows in the environment: SLURM_*,
NVIDIA_VISIBLE_DEVICES, Kubernetes. NVML's "Unknown Error" in a container is what is left when the
container has lost its devices.

Why it matters
A card that is hidden looks like one that is broken or missing. What a scheduler granted is in order
and only told; what nobody declared is an error. Where NVML lists fewer cards than were granted, one of
them may be lost: that is a warning.

What to do
Ask for more cards where they are given: the scheduler's request, --gpus all of the container engine,
the variable itself. A container that lost its devices must be started again.

When it is wrong
Devices may have been given to a container by hand (--device), which leaves no variable. Which card an
index means depends on CUDA_DEVICE_ORDER, so no card is named for it.

Sources
https://docs.nvidia.com/deploy/topics/topic_5_2_1.html (CUDA_VISIBLE_DEVICES)
https://github.com/NVIDIA/nvidia-container-toolkit/issues/48 (NVML: Unknown Error)
https://github.com/ollama/ollama/issues/11356 (two of eight cards under Slurm)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpucheck.facts import Environment, Gpu, Machine
from gpucheck.findings import Confidence, Evidence, Finding, NextTest, Reading, Severity, finding
from gpucheck.rules import View
from gpucheck.rules._shared import cards_of, driver_evidence, label, labels, nvidia_on_pci, subject
from gpucheck.text import plural, say

NEEDS: tuple[str, ...] = ("gpus",)

NVML_UNKNOWN = 999
"""What NVML returns where the device files may not be opened."""

_SCHEDULER = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_JOB_ID")
_NO_CARD = frozenset({"", "-1", "none", "void", "nodevfiles"})
"""What people and schedulers write for no card at all."""
_UUID_LENGTH = len("GPU-00000000-0000-0000-0000-000000000000")


def lacks(machine: Machine) -> Iterator[str]:
    """The environment, where a card is there to be hidden."""
    if nvidia_on_pci(machine) and (machine.environment is None or machine.environment.variables is None):
        yield "environment.variables"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """Devices that a container lost; cards below NVML; cards below CUDA and ROCm."""
    if container_lost_devices(machine):
        yield _lost(machine)
        return
    yield from _below_nvml(machine, view)
    yield from _capabilities(machine)
    yield from _cuda_list(machine, view)
    yield from _rocm_lists(machine)


# --- a container that lost its devices ----------------------------------------------------------


def container_lost_devices(machine: Machine) -> bool:
    """Whether NVML fails in a container as it does when the device files may not be opened."""
    inside = machine.environment is not None and machine.environment.container is not None
    nvml = machine.nvml
    return inside and nvml is not None and nvml.status == "failed" and nvml.code == NVML_UNKNOWN


def _lost(machine: Machine) -> Finding:
    assert machine.environment is not None
    rules = machine.environment.device_rules
    closed = rules is not None and not any(rule.startswith("a") or _allows_nvidia(rule) for rule in rules)
    return finding(
        "visibility-limited",
        "error",
        "machine",
        say("NVML fails with an unknown error in this container: it may no longer open the cards' device files."),
        evidence=(
            Evidence(source="nvmlInit", text=say("error {code}, Unknown Error", code=NVML_UNKNOWN)),
            *(Evidence(source="/sys/fs/cgroup/devices/devices.list", text=rule) for rule in rules or ()),
        ),
        remedy=(
            say("Start the container again; the cards come back until the host's systemd is reloaded once more."),
            say(
                "To keep them, on the host: sudo nvidia-ctk system create-dev-char-symlinks --create-all, or let the "
                "engine manage cgroups itself (Docker: native.cgroupdriver=cgroupfs)."
            ),
        ),
        next_test=()
        if closed
        else (
            NextTest(
                do=say("Run nvidia-smi on the host."),
                outcomes=(
                    Reading(
                        seen=say("It lists the cards"), means=say("The container lost its devices: start it again.")
                    ),
                    Reading(seen=say("It fails too"), means=say("The driver is at fault: probe the host.")),
                ),
            ),
        ),
        confidence="certain" if closed else "likely",
    )


def _allows_nvidia(rule: str) -> bool:
    kind, _, rest = rule.partition(" ")
    device, _, access = rest.partition(" ")
    return kind in ("a", "c") and device.split(":")[0] in ("*", "195") and "r" in access


# --- below NVML ---------------------------------------------------------------------------------


def _below_nvml(machine: Machine, view: View) -> Iterator[Finding]:
    from gpucheck.rules.gpu_count_mismatch import unlisted

    explained = {address for f in view.found for address in cards_of(f, machine)}
    hidden = [gpu for gpu in unlisted(machine) if gpu.address not in explained and gpu.driver in ("nvidia", None)]
    environment = machine.environment
    if not hidden or environment is None or machine.nvml is None or machine.nvml.gpus is None:
        return
    allotment = _allotment(environment)
    if allotment is None and environment.container is None:
        return  # nothing hides them: the counts speak
    listed, total = len(machine.nvml.gpus), len(nvidia_on_pci(machine))
    severity: Severity
    confidence: Confidence
    number = _granted(machine, environment)
    unfilled = allotment is not None and number is not None and number > listed
    if allotment is not None and unfilled:
        severity, confidence = "warning", "likely"
        message = say(
            plural(
                listed,
                "This process was granted {number} cards ({by}), and NVML lists only one; not listed: {cards}.",
                "This process was granted {number} cards ({by}), and NVML lists only {listed}; not listed: {cards}.",
            ),
            number=number,
            listed=listed,
            by=allotment.source,
            cards=labels(hidden),
        )
    elif allotment is not None:
        severity, confidence = "info", "certain"
        message = say(
            plural(
                listed,
                "This process was granted one of {total} cards ({by}); hidden: {cards}.",
                "This process was granted {listed} of {total} cards ({by}); hidden: {cards}.",
            ),
            listed=listed,
            total=total,
            by=allotment.source,
            cards=labels(hidden),
        )
    elif environment.variables is None or not environment.variables_complete:
        severity, confidence = "warning", "possible"
        message = say("This container seems to hide {cards}.", cards=labels(hidden))
    else:
        severity, confidence = "error", "likely"
        message = say("This container hides {cards}, and nothing says that it should.", cards=labels(hidden))
    files = machine.driver.device_files if machine.driver is not None else None
    yield finding(
        "visibility-limited",
        severity,
        subject(hidden),
        message,
        evidence=(
            *((allotment,) if allotment is not None else ()),
            Evidence(source="NVML", text=say("GPUs: {count}", count=listed)),
            *((Evidence(source="/dev", text=", ".join(files)),) if files else ()),
            *(driver_evidence(gpu) for gpu in hidden),
        ),
        remedy=_ask_for_more(environment),
        next_test=() if allotment is not None and not unfilled else (_on_the_host(hidden),),
        confidence=confidence,
    )


def _allotment(environment: Environment) -> Evidence | None:
    """The variable that says how many cards, or which, were given to this process."""
    for name in _SCHEDULER:
        if (value := environment.get(name)) is not None:
            return Evidence(source=name, text=value)
    value = environment.get("NVIDIA_VISIBLE_DEVICES")
    if value is not None and value != "all":
        return Evidence(source="NVIDIA_VISIBLE_DEVICES", text=value)
    if environment.get("KUBERNETES_SERVICE_HOST") is not None:
        return Evidence(source="KUBERNETES_SERVICE_HOST", text=say("set: the container is part of a pod"))
    return None


def _granted(machine: Machine, environment: Environment) -> int | None:
    """How many cards were given to this process, where a variable counts or lists whole ones."""
    if any(gpu.nvml and gpu.nvml.mig_enabled for gpu in machine.gpus or ()):
        return None
    number = environment.get("SLURM_GPUS_ON_NODE") or ""
    if number.isascii() and number.isdecimal():
        return int(number[:4])
    entries = {entry.strip() for entry in (environment.get("NVIDIA_VISIBLE_DEVICES") or "").split(",")}
    whole = all(entry.startswith("GPU-") or (entry.isascii() and entry.isdecimal()) for entry in entries)
    return len(entries) if whole else None


def _ask_for_more(environment: Environment) -> tuple[str, ...]:
    if any(environment.get(name) is not None for name in _SCHEDULER):
        return (say("If the job needs more cards, ask the scheduler for them (such as --gpus-per-node)."),)
    if environment.container == "kubernetes":
        return (say("If it needs more cards, raise nvidia.com/gpu among the limits of the pod."),)
    return (say("If it needs more cards, start the container with them (such as docker run --gpus all)."),)


def _on_the_host(hidden: list[Gpu]) -> NextTest:
    return NextTest(
        do=say("Run nvidia-smi on the host."),
        outcomes=(
            Reading(
                seen=say("It lists {cards}", cards=label(hidden[0])), means=say("The container hides what is not here.")
            ),
            Reading(seen=say("It does not"), means=say("The driver lost the card: probe the host.")),
        ),
    )


def _capabilities(machine: Machine) -> Iterator[Finding]:
    environment = machine.environment
    value = environment.get("NVIDIA_DRIVER_CAPABILITIES") if environment is not None else None
    if environment is None or environment.container is None or not value or not nvidia_on_pci(machine):
        return
    if {"all", "compute"} & {word.strip() for word in value.split(",")}:
        return
    yield finding(
        "visibility-limited",
        "warning",
        "NVIDIA_DRIVER_CAPABILITIES",
        say("This container was given NVIDIA's driver without CUDA, so no program in it can compute on a card."),
        evidence=(Evidence(source="NVIDIA_DRIVER_CAPABILITIES", text=value),),
        remedy=(say("Start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility (or all)."),),
        confidence="likely",
    )


# --- below CUDA and ROCm ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choice:
    """What CUDA makes of the list in CUDA_VISIBLE_DEVICES.

    Attributes:
        count: Cards up to the first entry that is not known.
        stopped_at: That entry; None where the list was read to its end.
    """

    count: int
    stopped_at: str | None = None


def choose(value: str, uuids: Sequence[str | None]) -> Choice | None:
    """Read the list as CUDA does.

    Args:
        value: Indices, or UUIDs and beginnings of UUIDs, with commas between.
        uuids: One entry for each card that could be chosen; None where its UUID is not known.

    Returns:
        None where it cannot be told: MIG devices, or UUIDs that were not read.
    """
    chosen: set[int | str] = set()
    for entry in (piece.strip() for piece in value.split(",")):
        if entry.lower() in _NO_CARD:
            return Choice(len(chosen), None if not chosen else entry)
        if entry.startswith("MIG-"):
            return None
        if entry.startswith("GPU-"):
            matches = [number for number, uuid in enumerate(uuids) if uuid is not None and uuid.startswith(entry)]
            if len(matches) == 1:
                chosen.add(matches[0])
            elif matches or None in uuids or len(entry) < _UUID_LENGTH:
                return None  # perhaps one of those; and of a stand-in no beginning is known
            else:
                return Choice(len(chosen), entry)
        elif entry.isascii() and entry.isdecimal() and int(entry[:9]) < len(uuids):
            chosen.add(int(entry))
        else:
            return Choice(len(chosen), entry)
    return Choice(len(chosen))


def _cuda_list(machine: Machine, view: View) -> Iterator[Finding]:
    environment = machine.environment
    value = environment.get("CUDA_VISIBLE_DEVICES") if environment is not None else None
    cards = _reachable(machine)
    if environment is None or value is None or not cards or any(gpu.nvml and gpu.nvml.mig_enabled for gpu in cards):
        return
    choice = choose(value, [gpu.nvml.uuid if gpu.nvml is not None else None for gpu in cards])
    if choice is None or choice.count >= len(cards):
        return
    in_job = any(environment.get(name) is not None for name in _SCHEDULER)
    expected = view.expected
    short = expected is not None and not expected.origin.startswith("SLURM_") and choice.count < expected.n
    severity: Severity = "info" if in_job or choice.count else "warning"
    fields = {"value": value, "count": choice.count, "total": len(cards), "entry": choice.stopped_at}
    if choice.stopped_at is not None:
        severity = "error"
        message = say(
            plural(
                choice.count,
                "CUDA_VISIBLE_DEVICES={value} names {entry!r}, which no card is; CUDA stops there and sees one card of "
                "{total}.",
                "CUDA_VISIBLE_DEVICES={value} names {entry!r}, which no card is; CUDA stops there and sees {count} "
                "cards of {total}.",
            ),
            **fields,
        )
    elif not choice.count:
        message = say(
            plural(
                len(cards),
                "CUDA_VISIBLE_DEVICES={value} hides the card from CUDA.",
                "CUDA_VISIBLE_DEVICES={value} hides all {total} cards from CUDA.",
            ),
            **fields,
        )
    else:
        message = say("CUDA_VISIBLE_DEVICES={value} lets CUDA see {count} of {total} cards.", **fields)
    note = (Evidence(source=expected.origin, text=say("GPUs expected: {n}", n=expected.n)),) if expected else ()
    yield finding(
        "visibility-limited",
        "error" if short else severity,
        "CUDA_VISIBLE_DEVICES",
        message,
        evidence=(
            Evidence(source="CUDA_VISIBLE_DEVICES", text=value),
            Evidence(source="NVML" if machine.nvml is not None else "PCI", text=say("GPUs: {n}", n=len(cards))),
            *(note if short else ()),
        ),
        remedy=(
            (say("If the job needs more cards, ask the scheduler for them."),)
            if in_job and choice.stopped_at is None
            else (
                say("To let programs see every card: unset CUDA_VISIBLE_DEVICES"),
                say("Inside a container or a job the cards count from 0: indices of the host are wrong there."),
            )
        ),
        confidence="certain" if machine.nvml is not None else "likely",
    )


def _reachable(machine: Machine) -> list[Gpu]:
    """NVIDIA cards that a process without the variable could use."""
    cards = [gpu for gpu in machine.gpus or () if gpu.vendor == "nvidia"]
    if machine.nvml is None:
        return [gpu for gpu in cards if gpu.driver == "nvidia"]
    if machine.nvml.status != "ok" or not machine.nvml.complete:
        return []
    return [gpu for gpu in cards if gpu.nvml is not None]


def _rocm_lists(machine: Machine) -> Iterator[Finding]:
    cards = [gpu for gpu in machine.gpus or () if gpu.vendor == "amd" and gpu.driver == "amdgpu"]
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
        value = machine.environment.get(name) if machine.environment is not None else None
        if value is None or not cards:
            continue
        entries = {entry.strip().lower() for entry in value.split(",")} - _NO_CARD
        if len(entries) >= len(cards):
            continue
        yield finding(
            "visibility-limited",
            "info" if entries else "warning",
            name,
            say(
                "{name}={value} lets ROCm see {count} of {total} cards.",
                name=name,
                value=value,
                count=len(entries),
                total=len(cards),
            ),
            evidence=(Evidence(source=name, text=value),),
            remedy=(say("To let programs see every card: unset {name}", name=name),),
        )
