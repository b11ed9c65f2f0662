"""NVML did not answer in time.

What it means
A call into NVIDIA's driver did not come back before the deadline. The call was given up; the
process that made it may stay until the next reboot, for a process inside the driver cannot be
killed.

How we know
The process that asks NVML was stopped at the deadline; the call that hung is named.

Why it matters
The cards may be in order and merely slow to wake (many cards without persistence mode take seconds
each), or one card is stuck and blocks every program that asks for any card.

What to do
Ask again with more time (--timeout). If it hangs again, look in the kernel log for an Xid and for
tasks that are blocked; a stuck card is cured by a reboot.

When it is wrong
A loaded machine or the first call after boot can be slow. It says nothing about the number of
cards: that is unknown.

Sources
https://github.com/leptonai/gpud/pull/117 (a call that never returns)
"""

from __future__ import annotations

from collections.abc import Iterator

from gpucheck.facts import Machine
from gpucheck.findings import Evidence, Finding, NextTest, Reading, finding
from gpucheck.rules import View
from gpucheck.rules._shared import log_evidence, log_lines
from gpucheck.text import say

NEEDS: tuple[str, ...] = ("nvml",)

LAST_LINES = 3


def check(machine: Machine, view: View) -> Iterator[Finding]:
    """At most one finding, for the machine. A warning: on its own it proves no fault."""
    nvml = machine.nvml
    if nvml is None or nvml.status != "timed-out":
        return
    log = machine.kernel_log
    stuck = [line for _, line in log_lines(machine, "blocked for more than", "Xid (")][-LAST_LINES:]
    yield finding(
        "nvml-timeout",
        "warning",
        "machine",
        say("NVML did not answer in time, so what it knows of the cards was not read."),
        evidence=(
            Evidence(source=nvml.call or "NVML", text=nvml.message or say("No answer before the deadline")),
            *(log_evidence(log, line) for line in stuck if log is not None),
        ),
        remedy=(
            say("Ask again with more time (--timeout)."),
            say("If it hangs again, reboot: a card that is stuck in the driver blocks every program."),
        ),
        next_test=(
            NextTest(
                do=say("Look for blocked tasks and Xids: sudo dmesg | grep -e 'blocked for more than' -e Xid"),
                outcomes=(
                    Reading(
                        seen=say("There are some"),
                        means=say("A card is stuck; the Xid line names its address."),
                    ),
                    Reading(
                        seen=say("There are none"),
                        means=say("The driver is slow to start: switch persistence mode on."),
                    ),
                ),
            ),
        ),
    )
