"""What a training is doing, on disk before the next thing begins: a machine that dies under load takes
every other witness with it.

One file for each host, of JSON lines: first a line of the run (boot, process, cards), then one at each
stage, at last the verdict. Each line is forced to the disk. A new training begins a new file. It lies

- as root in ``/var/lib/gpucheck``;
- else in ``$XDG_STATE_HOME/gpucheck``, by default ``~/.local/state/gpucheck``.

Where that cannot be written, nothing is: a training needs no diary. ``gpucheck smoke --last`` reads it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpucheck import __version__
from gpucheck.findings import Evidence, Finding, NextTest, Reading, finding
from gpucheck.smoke.outcome import Judgement
from gpucheck.smoke.report import Verdict
from gpucheck.text import clean, plural, say

SCHEMA = "gpucheck/progress/1"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
MOST_BYTES = 1 << 20
SHOWN = 4
"""Last lines that are quoted."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def folder(environ: Mapping[str, str], *, root: bool) -> Path | None:
    """Where the file lies; None where the environment names no home."""
    if root:
        return Path("/var/lib/gpucheck")
    if state := environ.get("XDG_STATE_HOME"):
        return Path(state) / "gpucheck"
    home = environ.get("HOME")
    return Path(home) / ".local" / "state" / "gpucheck" if home else None


def path(environ: Mapping[str, str]) -> Path | None:
    """The file of this host: a home may be shared by many."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0 and "XDG_STATE_HOME" not in environ
    where = folder(environ, root=root)
    host = _UNSAFE.sub("_", platform.node()) or "host"
    return None if where is None else where / f"smoke-{host}.jsonl"


def boot_id() -> str | None:
    """Of this boot; None where the kernel has none."""
    with suppress(OSError):
        return Path(BOOT_ID).read_text("ascii").strip()
    return None


def process_start(pid: int) -> str | None:
    """When a process began, in the kernel's ticks; None where there is no such process."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
    return None


class Diary:
    """The file of a run.

    Args:
        file: Where to write it; None: nowhere.
        about: What is trained, on which cards.
    """

    def __init__(self, file: Path | None, about: Mapping[str, Any]) -> None:
        self._descriptor: int | None = None
        self._last: dict[str, Any] | None = None
        self._began = time.monotonic()
        if file is None:
            return
        with suppress(OSError):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A file of its own, and then the old name: what another run still writes stays whole.
            new = file.with_name(f".{file.name}.{os.getpid()}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
            self._descriptor = os.open(new, flags, 0o600)
            self._write(
                {
                    "schema": SCHEMA,
                    "gpucheck": __version__,
                    "began": datetime.now(UTC).isoformat(timespec="seconds"),
                    "boot": boot_id(),
                    "pid": os.getpid(),
                    "process_start": process_start(os.getpid()),
                    **about,
                }
            )
            new.replace(file)
            _force(file.parent)

    def stage(self, phase: str, device: str | None = None, step: int | None = None) -> None:
        """What begins now. Of the steps of a phase only the first is written."""
        if self._last is not None and (phase, device) == (self._last["phase"], self._last["device"]):
            return
        self._last = {"phase": phase, "device": device}
        self._write({"at": round(time.monotonic() - self._began, 3), **self._last, "step": step})

    def end(self, verdict: Verdict | None, headline: str) -> None:
        """The last line."""
        self._write({"at": round(time.monotonic() - self._began, 3), "verdict": verdict, "headline": headline})
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, json.dumps(line).encode() + b"\n")
            os.fsync(self._descriptor)
        except OSError:  # a full disk, a share that is gone
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


def _force(directory: Path) -> None:
    """Have the new name on the disk too."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- after a reboot -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Last:
    """A file as it was found: each line with its text."""

    run: Mapping[str, Any]
    stages: tuple[tuple[Mapping[str, Any], str], ...]
    end: Mapping[str, Any] | None
    header: str


def parse(data: bytes) -> Last | None:
    """Read a file; None where its first line is none of ours. A line that was cut off is left out."""
    lines: list[tuple[Mapping[str, Any], str]] = []
    for raw in data[:MOST_BYTES].decode("utf-8", "replace").splitlines():
        with suppress(ValueError):
            line = json.loads(raw)
            if isinstance(line, dict):
                lines.append((line, raw))
    if not lines or lines[0][0].get("schema") != SCHEMA:
        return None
    (run, header), rest = lines[0], lines[1:]
    ends = [line for line, _ in rest if "verdict" in line]
    stages = tuple((line, text) for line, text in rest if isinstance(line.get("phase"), str))
    return Last(run, stages, ends[-1] if ends else None, header)


def told(last: Last | None, boot_now: str | None, *, running: bool) -> Judgement:
    """What the last training came to.

    Args:
        last: The file; None: there is none.
        boot_now: Of this boot.
        running: The process of that training still runs.
    """
    if last is None:
        return Judgement("not-run", say("No training was recorded on this host."))
    began = clean(str(last.run.get("began")))
    if last.end is not None:
        verdict = last.end.get("verdict")
        return Judgement(
            verdict if verdict in ("pass", "fail", "not-run") else "not-run",
            say("The last training began at {began} and ended: {headline}", began=began,
                headline=clean(str(last.end.get("headline")))),
        )  # fmt: skip
    doing = _doing(last)
    if running:
        return Judgement("not-run", say("The training that began at {began} still runs. {doing}", began=began,
                                        doing=doing))  # fmt: skip
    boot = last.run.get("boot")
    if boot is not None and boot == boot_now:
        problem = _killed(last, began, doing)
        return Judgement("not-run", problem.message, findings=(problem,))  # that is no fault of a card
    problem = _died(last, began, doing, boot_now, certain=boot is not None and boot_now is not None)
    return Judgement("fail", problem.message, findings=(problem,))


def _doing(last: Last) -> str:
    """The last stage, as a sentence."""
    cards = [clean(str(card)) for card in last.run.get("cards") or ()]
    if not last.stages:
        return say("No stage had begun.")
    stage = last.stages[-1][0]
    phase, device = clean(stage["phase"]), stage.get("device")
    if device:
        return say("Stage {phase} was running on {device}.", phase=phase, device=clean(str(device)))
    if phase in ("train", "infer", "together", "soak") and cards:
        return plural(
            len(cards),
            say("Stage {phase} was running on {cards}.", phase=phase, cards=cards[0]),
            say("Stage {phase} was running on {n} cards together: {cards}.", phase=phase, n=len(cards),
                cards=", ".join(cards)),
        )  # fmt: skip
    return say("Stage {phase} was running.", phase=phase)


def _evidence(last: Last, boot_now: str | None) -> tuple[Evidence, ...]:
    source = say("progress file")
    return (
        *(Evidence(source=source, text=text) for text in (last.header, *(text for _, text in last.stages[-SHOWN:]))),
        *([Evidence(source=BOOT_ID, text=boot_now)] if boot_now else []),
    )


def _subject(last: Last) -> str:
    device = last.stages[-1][0].get("device") if last.stages else None
    return str(device) if device else "machine"


def _died(last: Last, began: str, doing: str, boot_now: str | None, *, certain: bool) -> Finding:
    alone = _subject(last) != "machine"
    return finding(
        "smoke-interrupted",
        "error",
        _subject(last),
        say("The machine went down during the training that began at {began}. {doing}", began=began, doing=doing)
        if certain
        else say("The training that began at {began} never ended. {doing}", began=began, doing=doing),
        evidence=_evidence(last, boot_now),
        remedy=(
            say("Read the end of the last boot's journal (journalctl -b -1 -e) and the BMC's event log."),
            say("If both end abruptly, suspect power: the supplies' rating, their cables, one supply less."),
        ),
        next_test=(
            NextTest(
                do=say("Limit the power of every card (nvidia-smi -pl) and train again.")
                if not alone
                else say("Train again on this card alone, then in another slot."),
                outcomes=(
                    Reading(
                        seen=say("It holds."),
                        means=say("The supplies cannot follow the cards' peaks, or a cable cannot."),
                    ),
                    Reading(
                        seen=say("It goes down again."),
                        means=say("A card, its slot or the cooling: train on fewer cards until it holds."),
                    ),
                )
                if not alone
                else (
                    Reading(seen=say("It goes down in any slot."), means=say("The card, or its power cable.")),
                    Reading(seen=say("It holds there."), means=say("The first slot, its riser or its cable.")),
                ),
            ),
        ),
        confidence="possible",
    )


def _killed(last: Last, began: str, doing: str) -> Finding:
    return finding(
        "smoke-interrupted",
        "warning",
        _subject(last),
        say("The training that began at {began} was ended from outside, in this same boot. {doing}", began=began,
            doing=doing),
        evidence=_evidence(last, boot_id()),
        remedy=(
            say("Look for the out-of-memory killer in the kernel log (journalctl -k), or ask who ended it."),
        ),
    )  # fmt: skip


def last_judgement(environ: Mapping[str, str]) -> Judgement:
    """The same, of this host's file."""
    file = path(environ)
    last = None
    with suppress(OSError):
        if file is not None:
            with file.open("rb") as opened:
                last = parse(opened.read(MOST_BYTES))
    pid = last.run.get("pid") if last is not None else None
    start = process_start(pid) if isinstance(pid, int) else None
    same_boot = last is not None and last.run.get("boot") == boot_id()
    return told(
        last,
        boot_id(),
        running=last is not None and same_boot and start is not None and start == last.run.get("process_start"),
    )


def about(kind: str, cards: Sequence[str], strategy: str, deep: bool, soak_minutes: float) -> dict[str, Any]:
    """What the first line says of the run."""
    return {"kind": kind, "cards": list(cards), "strategy": strategy, "deep": deep, "soak_minutes": soak_minutes}
