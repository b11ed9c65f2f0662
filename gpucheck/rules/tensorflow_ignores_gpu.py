"""TensorFlow leaves out a card that it could see.

What it means
TensorFlow makes no device of a card with far fewer multiprocessors than the best one, unless it is
told to.

How we know
TensorFlow says it in its start-up log. Cards that it leaves out because there are too many of them
are peer-limit-exceeded.

Why it matters
NVML lists every card and TensorFlow fewer, which looks like a fault of the card that is left out.

What to do
TF_MIN_GPU_MULTIPROCESSOR_COUNT=1 takes the small card in; but a training that shares its work equally
then runs at its pace, and within its memory.

When it is wrong
A small card that only drives a display is left out rightly.

Sources
https://github.com/tensorflow/tensorflow/issues/32489 (GTX 1050 beside RTX 2070)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpucheck.facts import Machine
from gpucheck.findings import Finding, Severity, finding
from gpucheck.rules import View
from gpucheck.rules import _tensorflow as tf
from gpucheck.rules._shared import addresses_in
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()

_SMALL = re.compile(r"Ignoring visible gpu device \(.*\) with (?:Cuda multiprocessor|core) count: (\d+)")


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding for every small card."""
    expected = view.expected.n if view.expected is not None else None
    short = expected is not None and view.counts.tensorflow is not None and view.counts.tensorflow < expected
    severity: Severity = "error" if short else "warning"
    for line in tf.log_lines(machine, "Ignoring visible gpu device"):
        found = _SMALL.search(line)
        if found is None:
            continue
        address = next(iter(addresses_in(line)), "TensorFlow")
        yield finding(
            "tensorflow-ignores-gpu",
            severity,
            address,
            say(
                "TensorFlow leaves out the card at {address}: it has {count} multiprocessors, fewer than wanted.",
                address=address,
                count=found[1],
            ),
            evidence=tf.log_evidence([line]),
            remedy=(
                say("To take it in: export TF_MIN_GPU_MULTIPROCESSOR_COUNT=1"),
                say("A training that shares its work equally then runs at the pace and in the memory of this card."),
            ),
        )
