"""Which devices to try together next, and what the trials name. Pure.

Each device alone, then pairs, then all. More than :data:`GROUP` devices are tried in groups first,
since their pairs are too many: pairs are then only made inside a group that fails, or across groups
where each group is right and the whole is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from gpucheck.findings import Evidence, Finding, finding
from gpucheck.smoke.job import JOIN
from gpucheck.smoke.numbers import SUM_TOLERANCE, TOLERANCE
from gpucheck.smoke.report import Fate
from gpucheck.text import plural, say

GROUP = 8
MOST_HANGS = 3
"""So many hanging sets show enough; each costs the whole patience."""

TROUBLE = frozenset(
    {
        "allreduce-mismatch",
        "gpu-unused-in-training",
        "gradient-mismatch",
        "output-mismatch",
        "replica-diverged",
        "shard-mismatch",
        "smoke-timeout",
        "smoke-worker-died",
    }
)
"""Findings of which trials can say more."""

Devices = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """A short training of some devices.

    Attributes:
        outcome: ``wrong`` where its numbers are; ``failed`` by an error; ``died`` with the process.
        seconds: How long it took, or until it was given up.
        peer_access: False: tried with ``NCCL_P2P_DISABLE=1``.
        detail: What was wrong, in a few words.
    """

    devices: Devices
    outcome: Fate
    seconds: float
    peer_access: bool = True
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """What the trials point at.

    Attributes:
        cards: Devices that fail by themselves.
        sets: Devices that fail together though each of them, and each smaller set, was right.
        common: The one device in every failing pair, where there are several.
        peer_access: True: what hung with direct copies between cards went well without.
    """

    cards: tuple[Trial, ...] = ()
    sets: tuple[Trial, ...] = ()
    common: str | None = None
    peer_access: bool = False


def next_trials(devices: Sequence[str], trials: Sequence[Trial]) -> tuple[Devices, ...]:
    """What is worth a trial now, in this order, as if each were going to be right; empty at the end."""
    known = {trial.devices: trial.outcome for trial in trials if trial.peer_access}
    alone = [(device,) for device in devices]
    good = [device for device in devices if known.get((device,), "pass") == "pass"]
    hangs = sum(len(tried) > 1 and outcome == "hang" for tried, outcome in known.items())
    wanted = [] if len(good) < 2 or hangs >= MOST_HANGS else _in_company(good, known)
    # What holds a set that has failed would only fail again.
    bad = [set(tried) for tried, outcome in known.items() if outcome != "pass"]
    return tuple(one for one in (*alone, *wanted) if one not in known and not any(less <= set(one) for less in bad))


def _in_company(good: Sequence[str], known: Mapping[Devices, Fate]) -> list[Devices]:
    whole = tuple(good)
    if len(good) <= GROUP:
        return [*combinations(good, 2), *([whole] if len(good) > 2 else [])]
    count = -(-len(good) // GROUP)
    groups = [tuple(good[number::count]) for number in range(count)]
    wrong = [group for group in groups if known.get(group, "pass") != "pass"]
    within = [pair for group in wrong for pair in combinations(group, 2)]
    if wrong or known.get(whole, "pass") == "pass":
        return [*groups, *within, whole]
    across = [pair for pair in combinations(good, 2) if not any(set(pair) <= set(group) for group in groups)]
    return [*groups, whole, *across]


def fate(numbers: Mapping[str, Any]) -> tuple[Fate, str | None]:
    """Whether a trial that came to its end was right, and what was wrong. None is no number.

    Args:
        numbers: ``difference`` from the same training on the CPU, ``spread`` between the replicas,
            ``reduced_difference`` of the sum of gradients (absent where nothing was exchanged);
            or ``error``.
    """
    if "error" in numbers:
        return "failed", str(numbers["error"])
    limits = {"reduced_difference": SUM_TOLERANCE, "difference": TOLERANCE, "spread": 0.0}
    for name, limit in limits.items():
        value = numbers.get(name, 0.0)
        if value is None or not value <= limit:
            return "wrong", _described(name, value)
    return "pass", None


def _described(name: str, value: float | None) -> str:
    number = say("not a number") if value is None else f"{value:.3g}"
    if name == "reduced_difference":
        return say("the sum of the gradients is off by a share of {number}", number=number)
    if name == "difference":
        return say("a parameter differs from the CPU's by {number}", number=number)
    return say("the parameters of two replicas differ by {number}", number=number)


def conclude(trials: Sequence[Trial]) -> Named:
    """What the trials name."""
    failed = sorted((t for t in trials if t.peer_access and t.outcome != "pass"), key=lambda t: len(t.devices))
    named: list[Trial] = []
    for trial in failed:
        if not any(set(smaller.devices) <= set(trial.devices) for smaller in named):
            named.append(trial)
    sets = tuple(trial for trial in named if len(trial.devices) > 1)
    pairs = [set(trial.devices) for trial in sets if len(trial.devices) == 2]
    shared = set.intersection(*pairs) if len(pairs) > 1 else set()
    hung = [set(trial.devices) for trial in failed if trial.outcome == "hang" and len(trial.devices) > 1]
    return Named(
        cards=tuple(trial for trial in named if len(trial.devices) == 1),
        sets=sets,
        common=next(iter(shared), None) if len(pairs) == len(sets) else None,
        peer_access=any(
            not t.peer_access and t.outcome == "pass" and any(devices <= set(t.devices) for devices in hung)
            for t in trials
        ),
    )


# --- findings -------------------------------------------------------------------------------------


def joined(devices: Iterable[str]) -> str:
    """``A + B``: the subject of a finding on several devices."""
    return JOIN.join(devices)


def told(findings: Sequence[Finding], trials: Sequence[Trial]) -> tuple[list[Finding], str | None]:
    """Findings with what the trials add to them, and a sentence for the headline.

    Devices in ``trials`` have the names that people know them by.
    """
    named = conclude(trials)
    lines = evidence(trials)
    if named.cards:
        return _cards(findings, named, lines)
    if any(trial.outcome == "hang" for trial in named.sets):
        return _hanging(findings, named, lines)
    if named.sets:
        return _sets(findings, named, lines)
    tried = [trial for trial in trials if trial.peer_access]
    if not tried:
        return list(findings), None
    return [
        item.model_copy(update={"evidence": (*item.evidence, *lines)}) if item.name in TROUBLE else item
        for item in findings
    ], None


def evidence(trials: Sequence[Trial]) -> tuple[Evidence, ...]:
    """One line of how many were right, and one for each that was not."""
    source = say("trials of some devices")
    usual = [trial for trial in trials if trial.peer_access]
    lines = [
        say("{good} of {all} were right", good=sum(trial.outcome == "pass" for trial in usual), all=len(usual))
    ] * bool(usual)
    lines += [_line(trial) for trial in trials if trial.outcome != "pass" or not trial.peer_access]
    return tuple(Evidence(source=source, text=line) for line in lines)


def _line(trial: Trial) -> str:
    return say(
        "{devices}: {what} after {seconds:.1f} s" if trial.peer_access
        else "{devices} with NCCL_P2P_DISABLE=1: {what} after {seconds:.1f} s",
        devices=joined(trial.devices),
        what=trial.outcome if trial.detail is None else f"{trial.outcome} ({trial.detail})",
        seconds=trial.seconds,
    )  # fmt: skip


def _renamed(
    findings: Sequence[Finding], subject: str, lines: tuple[Evidence, ...], remedy: tuple[str, ...]
) -> list[Finding] | None:
    """Trouble under the subject that was found, once for each name; None where there is no trouble.
    What was counted on a device stays with that device."""
    if not any(item.name in TROUBLE for item in findings):
        return None
    renamed: list[Finding] = []
    for item in findings:
        if item.name not in TROUBLE or item.name == "gpu-unused-in-training":
            renamed.append(item)
        elif not any(other.name == item.name for other in renamed):
            renamed.append(
                item.model_copy(update={"subject": subject, "evidence": (*item.evidence, *lines), "remedy": remedy})
            )
    return renamed


def _cards(findings: Sequence[Finding], named: Named, lines: tuple[Evidence, ...]) -> tuple[list[Finding], str | None]:
    culprits = [trial.devices[0] for trial in named.cards]
    sentence = plural(
        len(culprits),
        say("{card} fails by itself.", card=culprits[0]),
        say("{cards} fail by themselves.", cards=", ".join(culprits)),
    )
    remedy = (say("Test the card in another slot; check memory errors, heat and power."),)
    renamed = _renamed(findings, joined(culprits), lines, remedy)
    if renamed is None:
        renamed = [*findings, finding("gradient-mismatch", "error", joined(culprits), sentence, evidence=lines,
                                      remedy=remedy)]  # fmt: skip
    return renamed, sentence


def _sets(findings: Sequence[Finding], named: Named, lines: tuple[Evidence, ...]) -> tuple[list[Finding], str | None]:
    subject = named.common or joined(named.sets[0].devices)
    sentence = _wrong(named)
    remedy = (
        say("Look at the way between them: set NCCL_P2P_DISABLE=1 and compare; then slots, risers, bridges and ACS."),
    )
    renamed = _renamed(findings, subject, lines, remedy)
    if renamed is None:
        renamed = [*findings, finding("allreduce-mismatch", "error", subject, sentence, evidence=lines, remedy=remedy)]
    return renamed, sentence


def _hanging(
    findings: Sequence[Finding], named: Named, lines: tuple[Evidence, ...]
) -> tuple[list[Finding], str | None]:
    hung = tuple(trial for trial in named.sets if trial.outcome == "hang")
    named = replace(named, sets=hung)
    paired = all(len(trial.devices) == 2 for trial in hung)
    subject = named.common or (joined(hung[0].devices) if len(hung) == 1 and paired else "machine")
    sentence = _hung(named)
    others = [item for item in findings if item.name != "smoke-timeout"]
    timed_out = [item for item in findings if item.name == "smoke-timeout"]
    log = tuple(line for item in timed_out for line in item.evidence)
    if named.peer_access:
        sentence = say("{sentence} Without peer access it works.", sentence=sentence)
        problem = finding(
            "peer-access-hangs",
            "error",
            subject,
            sentence,
            evidence=(*lines, *log),
            remedy=(
                say("Until it is mended, set NCCL_P2P_DISABLE=1: it works, and is slower."),
                say("Switch ACS off in the firmware, and the IOMMU off or to pass-through (iommu=pt); try again."),
                say("Put the cards under one switch or one socket, or look at the NVLink bridge."),
            ),
        )
    elif paired:
        problem = finding(
            "pair-hangs",
            "error",
            subject,
            sentence,
            evidence=(*lines, *log),
            remedy=(
                say("Read the kernel log of that moment for both addresses."),
                say("Exchange the slots of the two cards: see whether the hang stays with the cards or the slots."),
            ),
        )
    else:
        return [
            item.model_copy(update={"evidence": (*item.evidence, *lines)}) if item.name == "smoke-timeout" else item
            for item in findings
        ], sentence
    return [*others, problem], sentence


def _wrong(named: Named) -> str:
    first = named.sets[0].devices
    if named.common is not None:
        return say("Every pair that gives a wrong result has {card} in it; alone it is right.", card=named.common)
    if len(named.sets) == 1 and len(first) == 2:
        return say("The pair {pair} gives a wrong result; each of the two is right alone.", pair=joined(first))
    if len(first) == 2:
        return say("{n} pairs give a wrong result, {pair} first; each device is right alone.",
                   n=len(named.sets), pair=joined(first))  # fmt: skip
    return say("Only {n} devices together give a wrong result; smaller sets are right.", n=len(first))


def _hung(named: Named) -> str:
    first = named.sets[0].devices
    if named.common is not None:
        return say("Every pair that hangs has {card} in it; alone it works.", card=named.common)
    if len(named.sets) == 1 and len(first) == 2:
        return say("The pair {pair} hangs; each of the two works alone.", pair=joined(first))
    if len(first) == 2:
        return say("{n} pairs hang, {pair} first; each device works alone.", n=len(named.sets), pair=joined(first))
    return say("{n} devices hang together; what was tried of smaller sets works.", n=len(first))
