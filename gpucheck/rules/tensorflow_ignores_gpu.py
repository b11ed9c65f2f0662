"""TensorFlow leaves out a card that it could see.

What it means
TensorFlow makes no device of a card with far fewer multiprocessors than the best one, unless it is
told to. And with more than eight cards that reach each other, some may get no device, because the
driver maps no more than eight peers.

How we know
TensorFlow says both in its start-up log.

Why it matters
NVML lists every card and TensorFlow fewer, which looks like a fault of the card that is left out.

What to do
A small card beside a large one: TF_MIN_GPU_MULTIPROCESSOR_COUNT=1 takes it in; but a training that
shares its work equally then runs at the pace, and within the memory, of the small one. Too many
peers: show each process at most eight cards with CUDA_VISIBLE_DEVICES.

When it is wrong
A small card that only drives a display is left out rightly.

Sources
https://github.com/tensorflow/tensorflow/issues/32489 (GTX 1050 beside RTX 2070)
https://github.com/tensorflow/tensorflow/issues/42039 (CUDA_ERROR_TOO_MANY_PEERS)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpucheck.facts import Machine
from gpucheck.findings import Evidence, Finding, Severity, finding
from gpucheck.rules import View
from gpucheck.rules import _tensorflow as tf
from gpucheck.rules._shared import addresses_in
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()

PEERS = 8
"""Most peers of one card that the driver maps."""

_SMALL = re.compile(r"Ignoring visible gpu device \(.*\) with (?:Cuda multiprocessor|core) count: (\d+)")


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """One finding for every small card, and one for the limit of peers."""
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
    lines = tf.log_lines(machine, "CUDA_ERROR_TOO_MANY_PEERS")
    if lines:
        listed = view.counts.nvml
        counted = (Evidence(source="NVML", text=say("GPUs: {count}", count=listed)),) if listed is not None else ()
        yield finding(
            "tensorflow-ignores-gpu",
            "error",
            "TensorFlow",
            say("TensorFlow could not use some cards, because one card can have at most {count} peers.", count=PEERS),
            evidence=(*tf.log_evidence(lines), *counted),
            remedy=(
                say("Show each process at most {count} cards: CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7", count=PEERS),
                say("For more cards, train with several processes, each with its own."),
            ),
        )
