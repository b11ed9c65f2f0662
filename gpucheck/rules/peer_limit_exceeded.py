"""More GPUs than can have peer access to each other.

What it means
Without NVLink switches a GPU can have peer access to eight others at a time. With more than nine
cards not all of them can be each other's peers.

How we know
CUDA says so in a log of TensorFlow that was given (CUDA_ERROR_TOO_MANY_PEERS); or more than nine NVIDIA
cards are in the machine and NVIDIA's driver holds them.

Why it matters
A program that opens every card to every other one stops with an error, leaves cards out, as TensorFlow
does, or goes on over host memory for the rest.

What to do
Give each process at most nine cards, or eight, which most machines group better: set
CUDA_VISIBLE_DEVICES. NCCL finds its way with more cards by itself.

When it is wrong
The number of cards alone is no fault: most programs never open all of them to each other, and cards
of a family without peer access, or far apart, are no peers in the first place. Hence it is told as
information.

Sources
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#peer-to-peer-memory-access (the limit)
https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html (CUDA_ERROR_TOO_MANY_PEERS)
https://github.com/tensorflow/tensorflow/issues/42039 (more than ten cards, some get no device)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Machine
from gpucheck.findings import Evidence, Finding, finding
from gpucheck.rules import View
from gpucheck.rules._links import has_nvswitch
from gpucheck.rules._shared import nvidia_on_pci
from gpucheck.rules._tensorflow import log_evidence, log_lines
from gpucheck.text import say

NEEDS: tuple[str, ...] = ()

MOST_PEERS = 8
_SAID = ("CUDA_ERROR_TOO_MANY_PEERS", "peer mapping resources exhausted")


def lacks(machine: Machine) -> Iterator[str]:
    """The cards, where they were not looked at."""
    if machine.gpus is None:
        yield "gpus"


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """At most one finding."""
    said = log_evidence(log_lines(machine, *_SAID), most=3)
    cards = [gpu for gpu in nvidia_on_pci(machine) if gpu.driver == "nvidia"]
    remedy = (
        say("Give each process eight cards: CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7, and the others to another one."),
        say("Or keep programs from opening every card to every other one: NCCL_P2P_DISABLE=1."),
    )
    if said:
        yield finding(
            "peer-limit-exceeded",
            "error",
            "machine",
            say(
                "CUDA refused a program, because one GPU can have peer access to {most} others at a time; it may go on "
                "without some cards.",
                most=MOST_PEERS,
            ),
            evidence=said,
            remedy=remedy,
        )
    elif len(cards) > MOST_PEERS + 1 and not has_nvswitch(machine):
        yield finding(
            "peer-limit-exceeded",
            "info",
            "machine",
            say(
                "{count} GPUs are in the machine; each can have peer access to {most} others at a time.",
                count=len(cards),
                most=MOST_PEERS,
            ),
            evidence=(Evidence(source="PCI", text=say("NVIDIA GPUs: {count}", count=len(cards))),),
            remedy=remedy,
            confidence="possible",
        )
