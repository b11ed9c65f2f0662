"""What NVML and the placement of the work say of each card. Pure.

What was seen counts. What was not seen counts only where the watch looked before the training, and went
on until after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from gpucheck.facts import pci_address
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.smoke.counters import told_by
from gpucheck.smoke.outcome import Outcome, Watched
from gpucheck.smoke.plan import Card, Train
from gpucheck.smoke.report import DeviceEvidence, NvmlEvidence, SmokeDevice, TensorFlowBuild
from gpucheck.text import say

if TYPE_CHECKING:
    from gpucheck.readers.nvml_watch import Sample


LEAST_GROWTH_BYTES = 32 << 20
"""A CUDA context alone takes more."""
WORKING_WATTS = 30
"""Over idle. A CUDA context alone takes a card out of its deepest sleep, which costs some ten watts."""
LOADED_PERCENT = 50
SLOWING = ("hw-power-brake", "hw-thermal", "sw-thermal", "hw-slowdown")
"""Reasons for low clocks that are no good reasons, the gravest first. A cap at the power limit is what
the limit is for."""
LEAST_SLOWED = {"hw-power-brake": 0.05, "hw-thermal": 0.05, "sw-thermal": 0.2, "hw-slowdown": 0.3}
"""Share of the samples under load from which a reason is told: a change of clocks sets the last for a
moment, and a card near its working limit touches the third now and then."""
LEAST_SAMPLES = 3
"""Under load; fewer say nothing of a share."""

_CREATED = re.compile(r"Created device \S*device:(GPU:\d+) (.*)")
_DESCRIBED = re.compile(r"name: (.+?), pci bus id: ([0-9a-fA-F:.]+)")


def identities_of(devices: Iterable[Mapping[str, Any]], stderr: Iterable[str]) -> dict[str, tuple[str, str]]:
    """TensorFlow device to PCI address and name: from its description, else from the line with the
    same text that TensorFlow logs when it makes the device."""
    texts = {match[1]: match[2] for line in stderr if (match := _CREATED.search(line))}
    texts |= {device["device"]: device["description"] for device in devices if device.get("description")}
    found = {}
    for device_name, text in texts.items():
        match = _DESCRIBED.search(text)
        if match and (address := pci_address(match[2])):
            found[device_name] = (address, match[1])
    return found


def doubts_of(
    plan: Train, device: str, replica: Mapping[str, Any], nvml: NvmlEvidence | None, *, logged: bool = False
) -> tuple[Evidence, ...]:
    """Everything that speaks against the device having done its part. ``logged``: TensorFlow told where it
    placed the work of some device."""
    steps, samples = replica.get("steps", 0), replica.get("samples", 0)
    found = []
    if steps != plan.job.steps:
        found.append((say("training"), say("{n} of {steps} steps ran on it", n=steps, steps=plan.job.steps)))
    if not samples:
        found.append((say("training"), say("it got no samples")))
    # Central variables have a home of their own; everything else belongs on the device.
    for what, home in (("variables_on", replica.get("home", device)), ("inputs_on", device)):
        if replica.get(what, home) != home:
            found.append((what, say("{other} instead of {device}", other=replica[what], device=home)))
    if strays := {other: count for other, count in (replica.get("computed_on") or {}).items() if other != device}:
        found.append((say("placement"), ", ".join(f"{other}: {count}" for other, count in strays.items())))
    if logged and not replica.get("computed_on"):
        found.append((say("placement"), say("none of the work was placed on it")))
    if nvml is not None:
        grown = nvml.memory_growth_bytes
        if grown is not None and grown < LEAST_GROWTH_BYTES:
            found.append((say("NVML memory"), say("grew by {n} bytes during the training", n=grown)))
        if nvml.busy_percent == 0:
            found.append((say("NVML utilisation"), say("0 % in every sample")))
        if nvml.lost:
            found.append(("NVML", say("the card was lost")))
    return tuple(Evidence(source=source, text=text) for source, text in found)


def by_address(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """The samples of each card, oldest first. NVML may fail to tell an address later on, or at all: then
    the card is known by its UUID."""
    samples = list(samples)
    known = {sample.uuid: sample.address for sample in samples if sample.uuid and sample.address}
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        address = sample.address or known.get(sample.uuid or "")
        if address is not None:
            found.setdefault(address, []).append(sample)
    return found


def shares_numbers(outcome: Outcome, samples: Iterable[Sample]) -> bool:
    """NVML numbers processes as this process does: it has listed the training's own."""
    return any(outcome.pid in (sample.pids or ()) for sample in samples)


def nvml_evidence(own: Sequence[Sample], outcome: Outcome) -> NvmlEvidence:
    """Reduce the samples of one card."""
    memory = [(sample.seconds, sample.memory_used_bytes) for sample in own if sample.memory_used_bytes is not None]
    before = [used for seconds, used in memory if seconds <= outcome.started]
    after = [used for seconds, used in memory if seconds >= outcome.ended]
    meanwhile = [used for seconds, used in memory if outcome.started < seconds < outcome.ended]
    growth = max(meanwhile) - before[-1] if before and meanwhile else None
    if growth is not None and growth < LEAST_GROWTH_BYTES and not after:
        growth = None
    during = [sample for sample in own if outcome.started < sample.seconds < outcome.ended]
    # What the card did before and after is somebody else's work.
    busy = max((one.utilization_percent for one in during if one.utilization_percent is not None), default=None)
    if busy == 0 and not (before and after):
        busy = None
    watts = [sample.power_watts for sample in during if sample.power_watts is not None]
    heat = [sample.temperature_c for sample in during if sample.temperature_c is not None]
    energy = [(sample.seconds, sample.energy_joules) for sample in own if sample.energy_joules is not None]
    joules = energy[-1][1] - energy[0][1] if len(energy) > 1 else None
    idle = _idle_watts(own, outcome)
    loaded = [sample for sample in during if _is_loaded(sample)]
    clocks = [sample.sm_clock_mhz for sample in loaded if sample.sm_clock_mhz is not None]
    return NvmlEvidence(
        # A list without our number shows nothing: a container's numbers are not the host's.
        process_seen=True if shares_numbers(outcome, own) else None,
        other_processes=_others(own, outcome),
        memory_growth_bytes=growth,
        memory_left_bytes=after[-1] - before[-1] if before and after else None,
        busy_percent=busy,
        busy_seconds=_busy_seconds(during),
        energy_joules=joules,
        energy_over_idle_joules=joules - idle * (energy[-1][0] - energy[0][0])
        if joules is not None and idle is not None
        else None,
        idle_watts=idle,
        most_watts=max(watts, default=None),
        most_celsius=max(heat, default=None),
        clocks_mhz=(min(clocks), max(clocks)) if clocks else None,
        slowdowns=_slowdowns(loaded),
        lost=own[-1].lost if own else None,
    )


def _is_loaded(sample: Sample) -> bool:
    return sample.utilization_percent is not None and sample.utilization_percent >= LOADED_PERCENT


def _idle_watts(own: Sequence[Sample], outcome: Outcome) -> float | None:
    touched = outcome.started if outcome.touched is None else outcome.touched
    watts = [sample.power_watts for sample in own if sample.power_watts is not None and sample.seconds <= touched]
    return median(watts) if watts else None


def _busy_seconds(during: Sequence[Sample]) -> float | None:
    counted = [(sample.seconds, sample.utilization_percent) for sample in during]
    if len(counted) < 2 or any(percent is None for _, percent in counted):
        return None
    return round(sum((later - sooner) * (percent or 0) / 100 for (sooner, _), (later, percent) in pairwise(counted)), 2)


def _others(own: Sequence[Sample], outcome: Outcome) -> tuple[int, ...] | None:
    """Processes on the card during the training that were not there before, without the training's."""
    lists = [(sample.seconds, sample.pids) for sample in own if sample.pids is not None]
    if not any(seconds <= outcome.started for seconds, _ in lists):
        return None
    before = {pid for seconds, pids in lists if seconds <= outcome.started for pid in pids}
    during = [pid for seconds, pids in lists if outcome.started < seconds < outcome.ended for pid in pids]
    return tuple(pid for pid in dict.fromkeys(during) if pid not in before and pid != outcome.pid)


def _slowdowns(loaded: Sequence[Sample]) -> dict[str, float] | None:
    told = [sample.clock_reasons for sample in loaded if sample.clock_reasons is not None]
    if len(told) < LEAST_SAMPLES:
        return None
    shares = {reason: sum(reason in reasons for reasons in told) / len(told) for reason in SLOWING}
    return {reason: round(share, 3) for reason, share in shares.items() if share}


def strangers(nvml: NvmlEvidence, *, shared: bool) -> tuple[int, ...]:
    """Processes that came onto the card and are not, or not all, the training's. Where NVML does not number
    processes as this process does, a single one is the training's own."""
    others = nvml.other_processes or ()
    return others if shared or len(others) > 1 else ()


def is_confirmed(nvml: NvmlEvidence, *, shared: bool) -> bool:
    """NVML saw that the training held memory of the card, and that the card worked for it."""
    # Where NVML lists the training's process by its number, it lists it on every card that it uses.
    unlisted = shared and nvml.other_processes is not None
    held = nvml.process_seen or (bool(nvml.memory_growth_bytes) and not unlisted and not strangers(nvml, shared=shared))
    worked = bool(nvml.busy_percent)
    if nvml.busy_percent is None and nvml.most_watts is not None and nvml.idle_watts is not None:
        worked = nvml.most_watts - nvml.idle_watts >= WORKING_WATTS
    return bool(held) and worked


def uncounted(
    plan: Train, address: str | None, replica: Mapping[str, Any], nvml: NvmlEvidence | None
) -> tuple[str, ...]:
    """Names of what was not counted on a card, and so proves nothing."""
    names = []
    if address is None:
        names.append("address")
    if address not in {card.address for card in plan.cards if card.processes is not None}:
        names.append("busy")
    if not replica.get("computed_on"):
        names.append("computed_on")
    if nvml is not None:
        names += [f"nvml.{key}" for key, value in nvml if value is None]
    return tuple(names)


# --- findings -------------------------------------------------------------------------------------


def incidents(devices: Iterable[SmokeDevice], outcome: Outcome, watched: Watched) -> list[Finding]:
    """What happened to the cards while the training ran: lost, slowed down, used by others, errors that were
    counted; and a watch that could not see it."""
    seen = {device.address: device.evidence for device in devices if device.address is not None}
    cards = {address: evidence.nvml for address, evidence in seen.items() if evidence.nvml is not None}
    counters = {address: evidence.risen for address, evidence in seen.items() if evidence.risen is not None}
    return [
        *_happened(cards, outcome, watched),
        *_blind(watched),
        *told_by(counters, watched.before, watched.after),
    ]


def _happened(cards: Mapping[str, NvmlEvidence], outcome: Outcome, watched: Watched) -> Iterator[Finding]:
    shared = shares_numbers(outcome, watched.samples or ())
    for address, nvml in cards.items():
        fallen = _fell(address, watched)
        if fallen or nvml.lost:
            yield _lost(address, fallen=fallen)
        yield from _slowed(address, nvml)
        if others := strangers(nvml, shared=shared):
            yield _visited(address, others, certain=shared)


def _fell(address: str, watched: Watched) -> bool:
    """The card answered on the bus before the training, and does not after it."""
    before, after = watched.before, watched.after
    return (
        before is not None
        and after is not None
        and not before.dead.get(address, True)
        and (after.dead.get(address) is True)
    )


def _lost(address: str, *, fallen: bool) -> Finding:
    return finding(
        "gpu-fell-off-bus" if fallen else "nvml-gpu-lost",
        "error",
        address,
        say("The card at {address} fell off the bus during the training.", address=address)
        if fallen
        else say("The card at {address} was lost during the training.", address=address),
        evidence=(
            Evidence(source=f"/sys/bus/pci/devices/{address}", text=say("gone, or its registers read ff"))
            if fallen
            else Evidence(source="NVML", text=say("error 15, the GPU is lost")),
        ),
        remedy=(
            say("Shut down and check the power leads of the card: all of them, each on a cable of its own."),
            say("Seat the card again, and try it without the riser; look at its temperature under load."),
            say("Read the kernel log of that moment for an Xid: gpucheck probe"),
        ),
    )


def _slowed(address: str, nvml: NvmlEvidence) -> Iterator[Finding]:
    """The gravest reason by which the card was held back."""
    from gpucheck.rules.power_brake import power_remedy
    from gpucheck.rules.thermal_slowdown import cooling_remedy

    slowdowns = nvml.slowdowns or {}
    reason = next((reason for reason in SLOWING if slowdowns.get(reason, 0.0) >= LEAST_SLOWED[reason]), None)
    if reason is None:
        return
    template = {
        "hw-power-brake": "The server braked the card at {address} (HW power brake) in {share:.0f} % of the looks "
        "under load.",
        "hw-thermal": "The card at {address} got too hot: the hardware cut its clocks in {share:.0f} % of the looks "
        "under load.",
        "sw-thermal": "The card at {address} got hot: the driver held its clocks back in {share:.0f} % of the looks "
        "under load.",
        "hw-slowdown": "The hardware slowed the card at {address} down (HW slowdown) in {share:.0f} % of the looks "
        "under load, and does not say why.",
    }[reason]
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in slowdowns.items())
    evidence = [Evidence(source="nvmlDeviceGetCurrentClocksEventReasons", text=shares)]
    if nvml.clocks_mhz is not None:
        text = say("{low} to {high} MHz under load", low=nvml.clocks_mhz[0], high=nvml.clocks_mhz[1])
        evidence.append(Evidence(source="nvmlDeviceGetClockInfo", text=text))
    if nvml.most_celsius is not None:
        text = say("at most {degrees} °C", degrees=nvml.most_celsius)
        evidence.append(Evidence(source="nvmlDeviceGetTemperature", text=text))
    if nvml.most_watts is not None:
        text = say("at most {watts:.0f} W", watts=nvml.most_watts)
        evidence.append(Evidence(source="nvmlDeviceGetPowerUsage", text=text))
    yield finding(
        "gpu-throttled-in-training",
        "warning",
        address,
        say(template, address=address, share=100 * slowdowns[reason]),
        evidence=tuple(evidence),
        remedy=cooling_remedy() if reason.endswith("thermal") else power_remedy(),
    )


def _visited(address: str, others: Sequence[int], *, certain: bool) -> Finding:
    pids = ", ".join(map(str, others))
    return finding(
        "gpu-busy",
        "warning",
        address,
        say("Other processes ({pids}) came onto the card at {address} during the training: its speed, memory and "
            "power are not the training's alone.", pids=pids, address=address)
        if certain
        else say("Several processes ({pids}) came onto the card at {address} during the training. At most one is the "
                 "training's: its speed, memory and power are not the training's alone.", pids=pids, address=address),
        evidence=(Evidence(source=say("NVML processes"), text=f"{address}: {pids}"),),
        remedy=(say("End them, or keep them off the machine, and train again."),),
        confidence="certain" if certain else "likely",
    )  # fmt: skip


def _blind(watched: Watched) -> Iterator[Finding]:
    """The watch could not start, or did not last."""
    parts = watched.parts
    if parts is None or (parts.nvml is not None and parts.nvml.status == "ok"):
        return
    nvml = parts.nvml
    if nvml is not None and nvml.status == "timed-out":
        yield finding(
            "nvml-timeout",
            "warning",
            "machine",
            say("NVML hung while the cards were watched: what it showed until then counts, and nothing after."),
            evidence=(Evidence(source=nvml.call or "NVML", text=nvml.message or say("No answer before the deadline")),),
            remedy=(say("Read the kernel log, and run gpucheck probe; if NVML hangs there too, reboot."),),
        )
        return
    why = nvml.message if nvml is not None else next((gap.how for gap in parts.gaps if gap.fact == "nvml"), None)
    yield finding(
        "nvml-unavailable",
        "warning",
        "machine",
        say("NVML could not watch the cards, so that nothing beside TensorFlow itself shows their work."),
        evidence=(Evidence(source=(nvml.call if nvml is not None else None) or "NVML", text=why or say("no reason")),),
        remedy=(say("Run gpucheck probe: it says why NVML does not start."),),
    )


def called(device: SmokeDevice) -> str:
    """Its address, else the name that TensorFlow gives it."""
    return device.address or device.device or "machine"


def unused(subject: str, doubts: tuple[Evidence, ...]) -> Finding:
    """A device that evidence speaks against."""
    return finding(
        "gpu-unused-in-training",
        "error",
        subject,
        say("The device {subject} did not do its part of the training.", subject=subject),
        evidence=doubts,
        remedy=(say("Train on this card alone (CUDA_VISIBLE_DEVICES) and compare."),),
    )


def absent(plan: Train, devices: Iterable[SmokeDevice]) -> list[Card]:
    """Cards of the plan that are not among the devices."""
    seen = {device.address for device in devices}
    return [card for card in (*plan.cards, *plan.left_out) if card.address not in seen]


def not_listed(card: Card, evidence: DeviceEvidence | None = None) -> SmokeDevice:
    """A card that was not trained on, or not to the end."""
    return SmokeDevice(
        device=None,
        address=card.address,
        uuid=card.uuid,
        name=card.name,
        used=False,
        replica_steps=None,
        examples_per_second=None,
        evidence=evidence or DeviceEvidence(),
    )


def missing(plan: Train, seen: set[str | None], build: TensorFlowBuild | None) -> list[Finding]:
    """Cards that should have trained and that TensorFlow did not list."""
    if None in seen:
        # A device without an address may be any card: its own evidence says that it is unproven.
        return []
    vendor = "amd" if build and build.rocm else "nvidia"
    found = []
    for card in plan.cards:
        if card.address in seen:
            continue
        drives = card.vendor == vendor
        found.append(
            finding(
                "gpu-unused-in-training",
                "error" if drives else "info",
                card.address,
                say("The card at {address} is on PCI, but TensorFlow does not list it.", address=card.address)
                if drives
                else say(
                    "The card at {address} took no part: this TensorFlow drives cards of another maker.",
                    address=card.address,
                ),
                remedy=(say("Run gpucheck probe: it shows on which level the card is lost."),) if drives else (),
            )
        )
    return found
