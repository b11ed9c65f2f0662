"""Probe, training and policy → the gate's document, ``gpucheck/check/1``.

The machine is at fault: *fail*, exit code 1, and it should be drained. The check could not be made: *unknown*,
exit code 3, and the job should be tried elsewhere. Only the second is tried again, and every try is told.
"""

from __future__ import annotations

import datetime
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field

from gpucheck.catalog import Catalog, load
from gpucheck.facts import Expected
from gpucheck.findings import Document, Printed, now
from gpucheck.gate import PolicyCheck, Situation, demanded, judge
from gpucheck.host import Host, LiveHost
from gpucheck.policy import FILE, Policy
from gpucheck.policy import load as load_policy
from gpucheck.probing import Probe, model_name
from gpucheck.probing import probe as look
from gpucheck.smoke.report import SmokeReport
from gpucheck.text import Text, plural, say, shorten

CheckVerdict = Literal["pass", "fail", "unknown"]
Progress = Callable[[int, int, str], None]
EXIT_CODES: dict[CheckVerdict, int] = {"pass": 0, "fail": 1, "unknown": 3}

SCONTROL_SECONDS = 10.0
_GRES = re.compile(r"(?:gres/)?gpu(?::(?P<kind>[^:(,]+))?:(?P<count>\d+)")
_PART = re.compile(r"\d+g\.\d+gb")
"""In the name of a MIG profile: what is counted are parts of cards."""


class Attempt(Document):
    """One try. Its rows that did not pass are kept, so that no later try hides them."""

    time: str
    verdict: CheckVerdict
    headline: str
    checks: tuple[PolicyCheck, ...]


class CheckReport(Printed):
    """What a policy asked of a machine, and what came of it."""

    schema_: Literal["gpucheck/check/1"] = Field(default="gpucheck/check/1", alias="schema")
    verdict: CheckVerdict
    policy: Policy
    policy_file: Text | None = None
    """None: no file was there, so only what the command line says is asked."""
    checks: tuple[PolicyCheck, ...]
    advice: str | None = None
    """What to do with the job and the machine; None where all is well."""
    attempts: tuple[Attempt, ...] = ()
    """Every try, in order; the last is the one that the rest of the document is about."""
    probe: Probe
    smoke: SmokeReport | None = None
    """None: no training was asked for, or there was no GPU to train on."""


def check(
    sources: Sequence[str] = (),
    *,
    policy: Policy | str | None = None,
    expect_gpus: int | None = None,
    train: bool = True,
    strict: bool = False,
    timeout: float = 10.0,
    ask_ipmi: bool = False,
    catalog: Catalog | None = None,
    progress: Progress | None = None,
    today: datetime.date | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> CheckReport:
    """Judge a machine by a policy.

    Args:
        sources: Captures and dumps of one machine; empty for this machine. Captures are not trained on.
        policy: The policy, or its file. None: ``gpucheck.toml`` of the current folder, if it is there.
        expect_gpus: How many GPUs there should be, whatever the policy says.
        train: False leaves the training out, whatever the policy says.
        strict: Warnings fail too, whatever the policy says.
        timeout: Seconds that NVML may take.
        ask_ipmi: Also ask the BMC for its power supplies (``ipmitool``, root).
        catalog: The catalog; the built-in one by default.
        progress: Called by the training at every sign of life.
        today: Day for the allowances; by default today in UTC.
        wait: Waits for so many seconds between two tries.

    Raises:
        InputError: The policy, its baseline or a source cannot be read.
    """
    catalog = catalog or load()
    if policy is None and os.path.lexists(FILE):
        policy = FILE
    file = policy if isinstance(policy, str) else None
    asked = load_policy(file) if file is not None else policy if isinstance(policy, Policy) else Policy()
    if strict:
        asked = asked.model_copy(update={"strict": True})
    expected = demanded(asked, file or say("the policy"))
    if expect_gpus is not None:
        expected = Expected(n=expect_gpus, origin="--expect-gpus")
    attempts: list[Attempt] = []
    for number in range(asked.retry.times + 1):
        if number:
            wait(asked.retry.wait_seconds)
        started, trouble = now(), list[str]()
        probe = look(
            sources,
            expect_gpus=expected,
            timeout=timeout,
            ask_ipmi=ask_ipmi,
            catalog=catalog,
            baseline=asked.baseline,
            otherwise=partial(_at_least_one, not sources, trouble),
        )
        seen = Situation(
            policy=asked,
            expected=probe.counts.expected or AT_LEAST_ONE,
            probe=probe,
            catalog=catalog,
            today=today or datetime.datetime.now(datetime.UTC).date(),
            asked_training=train and asked.smoke.run and not sources,
            trouble=next(iter(trouble), None),
        )
        seen = replace(seen, smoke=_training(seen, progress))
        checks = judge(seen)
        verdict = _verdict(checks)
        headline = _headline(seen, checks, verdict)
        kept = tuple(row for row in checks if row.outcome != "pass")
        attempts.append(Attempt(time=started, verdict=verdict, headline=headline, checks=kept))
        if verdict != "unknown" or not any(row.transient for row in kept):
            break
    if len(attempts) > 1:
        headline = say("{headline} This was try {count}.", headline=headline, count=len(attempts))
    return CheckReport(
        headline=headline,
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        policy=asked,
        policy_file=file,
        checks=checks,
        advice=_advice(checks, verdict),
        attempts=tuple(attempts),
        probe=probe,
        smoke=seen.smoke,
    )


# --- what to expect -----------------------------------------------------------------------------

AT_LEAST_ONE = Expected(n=1, origin="gpucheck check")
"""A gate without a policy."""


def _at_least_one(live: bool, trouble: list[str]) -> Expected:
    """The Gres of this node where it is one of Slurm's, else one GPU. Slurm that does not answer is a trouble."""
    if not live:
        return AT_LEAST_ONE
    try:
        return node_gres(LiveHost(), os.environ) or AT_LEAST_ONE
    except TimeoutError:
        trouble.append(say("Slurm's scontrol gave no answer, so how many GPUs this node should have is not known."))
        return AT_LEAST_ONE


def node_gres(host: Host, variables: Mapping[str, str]) -> Expected | None:
    """How many whole GPUs Slurm has configured for this node; None where Slurm does not say, and in a job, which
    has a part of them.

    Raises:
        TimeoutError: Slurm's controller does not answer.
    """
    if "SLURM_JOB_ID" in variables:
        return None
    name = variables.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    try:
        done = host.run(["scontrol", "--oneliner", "show", "node", name], SCONTROL_SECONDS)
    except TimeoutError:
        raise
    except OSError:
        return None
    if done.returncode:
        if "nable to contact" in done.stderr or "ommunication" in done.stderr:
            raise TimeoutError(done.stderr)
        return None
    field = next((word for word in done.stdout.split() if word.startswith("Gres=")), "")
    n = gres_count(field.removeprefix("Gres="))
    return None if n is None else Expected(n=n, origin=say("Gres of Slurm's node {name}", name=name))


def gres_count(text: str) -> int | None:
    """GPUs in a list of Gres such as ``gpu:p40:2(S:0-1),shard:8``; None where none are, or parts of cards."""
    found = [match for match in map(_GRES.match, re.split(r",(?![^(]*\))", text)) if match is not None]
    if not found or any(_PART.search(match["kind"] or "") for match in found):
        return None
    return sum(int(match["count"][:4]) for match in found)


# --- training and verdict -----------------------------------------------------------------------


def _training(seen: Situation, progress: Progress | None) -> SmokeReport | None:
    """The training's report, where one was asked for and there is something to train on."""
    gpus, asked = seen.machine.gpus, seen.policy.smoke
    on_cpu = asked.devices.startswith("cpu") or (seen.expected.n == 0 and gpus == ())
    if not seen.asked_training or (not gpus and not on_cpu):
        return None
    from gpucheck.api import smoke

    return smoke(
        asked.devices,
        steps=asked.steps,
        timeout=float(asked.timeout_seconds),
        if_busy=asked.if_busy,
        expect_gpus=None if on_cpu else max(seen.expected.n - len(seen.excused), 0),
        progress=progress,
    )


def _verdict(checks: Sequence[PolicyCheck]) -> CheckVerdict:
    outcomes = {row.outcome for row in checks}
    return "fail" if "fail" in outcomes else "unknown" if "unknown" in outcomes else "pass"


def _headline(seen: Situation, checks: Sequence[PolicyCheck], verdict: CheckVerdict) -> str:
    weighed = [row for row in checks if row.outcome == verdict]
    first = weighed[0]
    fields = {"model": model_name(seen.machine), "first": shorten(first.message, 300), "more": len(weighed) - 1}
    if verdict == "fail":
        one, many = "{model} fails: {first}", "{model} fails: {first} And {more} more."
        return say(many if fields["more"] else one, **fields)
    if verdict == "unknown":
        if first.topic == "probe":
            return first.message
        return say("{model} could not be checked well enough to say: {first}", **fields)
    sentences = [say("{model} passes {checks} checks.", model=fields["model"], checks=len(checks))]
    if (usable := len(seen.usable)) < seen.expected.n:
        sentences.append(say("Of {n} expected GPUs {usable} can be used.", n=seen.expected.n, usable=usable))
    if allowed := len({(row.allowance.finding, row.subject) for row in checks if row.allowance is not None}):
        sentences.append(say(plural(allowed, "One finding is allowed.", "{n} findings are allowed."), n=allowed))
    if seen.smoke is None:
        sentences.append(say("Nothing was trained."))
    elif not seen.smoke.proves_gpu:
        sentences.append(say("The training was on CPUs only, which proves no GPU."))
    return " ".join(sentences)


_OF_CARDS = ("gpus", "model", "address")
"""Topics that fail for a card that is hidden, too."""


def _advice(checks: Sequence[PolicyCheck], verdict: CheckVerdict) -> str | None:
    if verdict == "pass":
        return None
    if verdict == "fail":
        failed = [row for row in checks if row.outcome == "fail"]
        if {row.finding for row in failed if row.topic not in _OF_CARDS} == {"visibility-limited"}:
            return say(
                "The machine may be good: perhaps this process is not shown all of its cards. Start it with them, or "
                "run gpucheck check on the host. What it means and what to do: gpucheck explain visibility-limited."
            )
        names = dict.fromkeys(row.finding for row in failed if row.finding is not None)
        if not names:
            return say("Drain this machine: the same job fails here again until that is mended.")
        return say(
            "Drain this machine: the same job fails here again until that is mended. What each means and what to do: "
            "{commands}.",
            commands=", ".join(f"gpucheck explain {name}" for name in names),
        )
    open_ = [row for row in checks if row.outcome == "unknown"]
    if any(row.transient for row in open_):
        return say("Nothing shows that this machine is bad: try the job again, on another machine if there is one.")
    one = (
        "Nothing shows that this machine is bad, and another try gives the same: bring what was not read, or ask less."
    )
    many = (
        "Nothing shows that this machine is bad, and another try gives the same: bring the {count} things that were "
        "not read, or ask less."
    )
    return say(plural(len(open_), one, many), count=len(open_))
