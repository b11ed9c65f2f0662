"""Host or dumps → the probe document, ``gpucheck/probe/1``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from gpucheck.assemble import assemble, counts, unread_functions
from gpucheck.catalog import Catalog, load
from gpucheck.facts import Counts, Expected, Machine, Parts
from gpucheck.findings import Change, Finding, Printed, Unchecked, in_order, untold
from gpucheck.host import Host, LiveHost
from gpucheck.text import plural, say, shorten

if TYPE_CHECKING:
    from gpucheck.baseline import Comparison, Earlier
    from gpucheck.redfish import BmcAccess

NVML_SECONDS = 10.0
"""How long NVML may take; starting a driver without persistence takes a few seconds per card."""

ProbeVerdict = Literal["ok", "problem", "unknown"]
EXIT_CODES: dict[ProbeVerdict, int] = {"ok": 0, "problem": 1, "unknown": 3}


class Probe(Printed):
    """What is in a machine and what is wrong with it."""

    schema_: Literal["gpucheck/probe/1"] = Field(default="gpucheck/probe/1", alias="schema")
    verdict: ProbeVerdict
    counts: Counts
    machine: Machine
    findings: tuple[Finding, ...]
    unchecked: tuple[Unchecked, ...]
    changes: tuple[Change, ...] | None = None
    """Against the baseline; None without one."""
    uncompared: str | None = None
    """Why the cards of the baseline were not compared; None where they were, and without one."""


def read(host: Host, *, timeout: float = NVML_SECONDS, ask_ipmi: bool = False) -> tuple[Parts, ...]:
    """Ask every reader once. NVML answers in a child process while the files are read."""
    from gpucheck.readers import bmc, cpu, driver, environment, kernel_log, nvml, pci, psu, smbios, software

    waiting = host.ask_nvml(timeout)
    parts = [reader.read(host) for reader in (pci, smbios, cpu, driver, kernel_log, environment, software)]
    listed = next((part.psus for part in parts if part.psus is not None), None)
    parts.append(psu.read(host, listed, ask_ipmi=ask_ipmi))
    if ask_ipmi:
        parts.append(psu.read_state(host))
    parts.append(bmc.read(host))
    parts.append(nvml.collect(waiting))
    parts += _printed(host, parts)
    return tuple(
        part.model_copy(update={"origin": part.origin or host.name, "redacted": host.redacted}) for part in parts
    )


def _printed(host: Host, direct: Sequence[Parts]) -> list[Parts]:
    """What programs printed when a capture was made, for levels that nothing in it tells directly."""
    from gpucheck.capture import CaptureHost

    if not isinstance(host, CaptureHost) or not host.commands:
        return []
    from gpucheck import dumps

    known = {name for name in Parts.model_fields for part in direct if getattr(part, name) is not None}
    return dumps.printed(host.commands, known)


def holds_fru(host: Host) -> bool:
    """Whether a capture was made with --ipmi: then the answer is there and costs nothing."""
    from gpucheck.capture import CaptureHost

    return isinstance(host, CaptureHost) and host.holds("ipmitool fru")


def gather(
    sources: Sequence[str], *, timeout: float = NVML_SECONDS, ask_ipmi: bool = False, bmc: BmcAccess | None = None
) -> tuple[Parts, ...]:
    """Read this machine, or every ``--from`` argument, and the machine's BMC if one is given.

    Raises:
        InputError: a source cannot be read, or holds nothing; the BMC does not answer.
        UsageError: what asks a BMC is not installed.
    """
    if bmc is not None:
        from gpucheck.readers import bmc as reader
        from gpucheck.redfish import BmcHost

        with BmcHost(LiveHost(), bmc) as host:
            if not sources:
                return read(host, timeout=timeout, ask_ipmi=ask_ipmi)
            return (*gather(sources), reader.read(host).model_copy(update={"origin": bmc.url}))
    if not sources:
        return read(LiveHost(), timeout=timeout, ask_ipmi=ask_ipmi)
    from gpucheck.sources import open_source

    parts: list[Parts] = []
    for source in sources:
        opened = open_source(source)
        parts.extend(opened if isinstance(opened, tuple) else read(opened, timeout=timeout, ask_ipmi=holds_fru(opened)))
    return tuple(parts)


def probe(
    sources: Sequence[str] = (),
    *,
    expect_gpus: int | Expected | None = None,
    timeout: float = NVML_SECONDS,
    ask_ipmi: bool = False,
    bmc: BmcAccess | None = None,
    catalog: Catalog | None = None,
    baseline: str | None = None,
    otherwise: Callable[[], Expected | None] | None = None,
) -> Probe:
    """Look at a machine and judge it.

    Args:
        sources: Captures and dumps of one machine; empty for this machine.
        expect_gpus: How many GPUs there should be; a number is taken for that of ``--expect-gpus``.
        timeout: Seconds that NVML may take.
        ask_ipmi: Also run ``ipmitool`` for the power supplies (slow, needs root).
        bmc: Also ask this BMC, by Redfish; see :func:`gpucheck.redfish.access`.
        catalog: The catalog; the built-in one by default.
        baseline: File with an earlier probe of the machine (its JSON), or an earlier capture or dump. Without
            ``expect_gpus`` there should be as many GPUs as then.
        otherwise: Asked for what to expect where nothing else says it.

    Raises:
        InputError: a source cannot be read, the BMC does not answer, or they are of two machines.
    """
    catalog = catalog or load()
    earlier = earlier_state(baseline, catalog) if baseline is not None else None
    machine = assemble(gather(sources, timeout=timeout, ask_ipmi=ask_ipmi, bmc=bmc), catalog)
    if isinstance(expect_gpus, int):
        expect_gpus = Expected(n=expect_gpus, origin="--expect-gpus")
    expected = expect_gpus if expect_gpus is not None else granted(machine)
    if expected is None and earlier is not None and (count := earlier.count) is not None:
        expected = Expected(n=count, origin=earlier.origin)
    if expected is None and otherwise is not None:
        expected = otherwise()
    if earlier is None:
        return judge(machine, expected, catalog)
    from gpucheck.baseline import compare

    return judge(machine, expected, catalog, compare(earlier, machine, ", ".join(sources) or say("this machine")))


def earlier_state(path: str, catalog: Catalog) -> Earlier:
    """Read a baseline. InputError when it cannot be read, or is none."""
    from gpucheck import baseline
    from gpucheck.sources import open_baseline

    opened, name = open_baseline(path), "standard input" if path == "-" else path
    if isinstance(opened, dict):
        return baseline.from_document(name, opened)
    parts = opened if isinstance(opened, tuple) else read(opened, ask_ipmi=holds_fru(opened))
    machine = assemble(parts, catalog)
    return baseline.Earlier(origin=name, machine=machine, findings=judge(machine, None, catalog).findings)


def granted(machine: Machine) -> Expected | None:
    """What Slurm granted the job on this node, where it says so and counts whole cards."""
    if machine.environment is None or any(gpu.nvml and gpu.nvml.mig_enabled for gpu in machine.gpus or ()):
        return None
    number = machine.environment.get("SLURM_GPUS_ON_NODE") or ""
    if number.isascii() and number.isdecimal():
        return Expected(n=int(number[:4]), origin="SLURM_GPUS_ON_NODE")
    listed = (machine.environment.get("SLURM_JOB_GPUS") or "").split(",")
    if all(entry.isascii() and entry.isdecimal() for entry in listed):
        return Expected(n=len(listed), origin="SLURM_JOB_GPUS")
    return None


def judge(machine: Machine, expected: Expected | None, catalog: Catalog, comparison: Comparison | None = None) -> Probe:
    """Facts to document: the rules, what changed since the baseline, the verdict and the headline."""
    from gpucheck import rules

    counted = counts(machine, expected)
    server = catalog.server(machine.catalog_model) if machine.catalog_model is not None else None
    view = rules.View(counts=counted, expected=expected, server=server, catalog=catalog)
    changes, uncompared = None, None
    if comparison is None:
        findings, unchecked = rules.judge(machine, view)
    else:
        from gpucheck import baseline

        view = replace(view, lost=frozenset(gpu.address for gpu in comparison.lost))
        findings, unchecked = rules.judge(machine, view)
        changes = baseline.changes(comparison, findings)
        findings = in_order([*findings, *baseline.findings(comparison, findings)])
        unchecked = (*unchecked, *baseline.unchecked(comparison))
        uncompared = baseline.uncompared(comparison)
    verdict = _verdict(machine, findings)
    return Probe(
        headline=_headline(machine, findings, unchecked, verdict),
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        counts=counted,
        machine=machine,
        findings=findings,
        unchecked=unchecked,
        changes=changes,
        uncompared=uncompared,
    )


def _verdict(machine: Machine, findings: Sequence[Finding]) -> ProbeVerdict:
    if any(finding.severity == "error" for finding in findings):
        return "problem"
    hung = machine.nvml is not None and machine.nvml.status == "timed-out"
    # NVML that lists nothing says nothing of a card that its driver does not take.
    unseen = machine.gpus is None or (not machine.gpus and machine.pci is None)
    return "unknown" if unseen or hung or unread_functions(machine) else "ok"


_TELL_NO_CARD = (
    (("slots", "cpu_sockets", "system"), "the table of dmidecode or the BMC"),
    (("psus",), "the power supplies"),
    (("cpu",), "the processors"),
    (("kernel_log",), "the kernel log"),
    (("driver",), "the driver"),
    (("nvml",), "nvidia-smi's refusal"),
    (("environment",), "environment variables"),
    (("software", "tensorflow_log"), "TensorFlow's side"),
)
"""Facts of a machine that come without its cards, and what they are for people."""
_LIST_CARDS = (
    ("pci", "sudo lspci -nnvvv > lspci.txt"),
    ("nvml", "nvidia-smi -q > smi.txt"),
    ("kernel_log", "sudo dmesg > dmesg.txt"),
)
"""Facts, and the command whose output brings them."""


def _unlooked(machine: Machine, findings: Sequence[Finding]) -> str:
    """The headline where no list of cards was read: what there is, and what to add to it."""
    first = next((f.message for f in findings), "")  # no error is among them, and warnings come first
    if not any(gap.fact == "pci" and gap.reason == "not-in-input" for gap in machine.gaps):
        text = say("{model}: its GPUs were not looked at, neither on PCI nor through NVML.", model=model_name(machine))
        return f"{text} {first}".strip()
    given = [name for facts, name in _TELL_NO_CARD if any(getattr(machine, fact) is not None for fact in facts)]
    steps = [step for fact, step in _LIST_CARDS if getattr(machine, fact) is None]
    template = (
        "{model}: {first} What was given ({given}) lists no cards. Add {steps}; then gpucheck probe with --from for "
        "each file."
        if first
        else "{model}: what was given ({given}) lists no cards. Add {steps}; then gpucheck probe with --from for each "
        "file."
    )
    fields = {"first": first, "given": ", ".join(given), "steps": "; ".join(steps)}
    return say(template, model=model_name(machine), **fields)


def _not_all_read(machine: Machine, unread: int) -> str:
    """The headline where PCI lists a function of which nothing could be read."""
    template = plural(
        unread,
        "{model}: {seen}, but one function on PCI could not be read: a card may be it.",
        "{model}: {seen}, but {unread} functions on PCI could not be read: a card may be among them.",
    )
    count = len(machine.gpus or ())
    seen = say(plural(count, "one GPU", "{count} GPUs") if count else "no GPU", count=count)
    return say(template, model=model_name(machine), seen=seen, unread=unread)


def _headline(
    machine: Machine, findings: Sequence[Finding], unchecked: Sequence[Unchecked], verdict: ProbeVerdict
) -> str:
    from gpucheck.rules import machine_rules

    errors = [finding.message for finding in findings if finding.severity == "error"]
    warnings = [finding.message for finding in findings if finding.severity == "warning"]
    lacking = untold(findings, unchecked)
    fields: dict[str, object] = {
        "model": model_name(machine),
        "first": (errors or warnings or [""])[0],
        "errors": len(errors),
        "warnings": len(warnings),
        "lacking": len(lacking),
    }
    if verdict == "unknown" and machine.gpus is None:
        return _unlooked(machine, findings)
    if verdict == "unknown" and machine.nvml is not None and machine.nvml.status == "timed-out":
        return say("{model}: NVML did not answer in time, so nobody can say whether its GPUs work.", **fields)
    if verdict == "unknown" and (unread := len(unread_functions(machine))):
        return _not_all_read(machine, unread)
    if verdict == "unknown":
        told = next((f.message for f in findings if f.name == "no-gpu-found"), say("no GPU was found."))
        return f"{fields['model']}: {told}"
    if machine.gpus is None:
        template = plural(len(errors), "{model}: one problem. {first}", "{model}: {errors} problems. {first}")
        return say(template, **fields)
    count = len(machine.gpus)
    names = sorted({shorten(gpu.name or gpu.pci_id or "GPU") for gpu in machine.gpus})
    fields |= {"count": count, "names": ", ".join(names)}
    if not count:
        one, many = "{model}: no GPU, one problem. {first}", "{model}: no GPU, {errors} problems. {first}"
        return say(plural(len(errors), one, many) if errors else "{model}: no GPU.", **fields)
    if len(errors) > 1:
        one, many = "{model}: one GPU, {errors} problems. {first}", "{model}: {count} GPUs, {errors} problems. {first}"
    elif errors:
        one, many = "{model}: one GPU, one problem. {first}", "{model}: {count} GPUs, one problem. {first}"
    elif len(warnings) > 1:
        one, many = (
            "{model}: one GPU ({names}), no error, {warnings} warnings. {first}",
            "{model}: {count} GPUs ({names}), no error, {warnings} warnings. {first}",
        )
    elif warnings:
        one, many = (
            "{model}: one GPU ({names}), no error, one warning. {first}",
            "{model}: {count} GPUs ({names}), no error, one warning. {first}",
        )
    elif len(lacking) * 2 > len(machine_rules()):
        one, many = (
            "{model}: one GPU ({names}), no problem in what was given; {lacking} checks had no facts.",
            "{model}: {count} GPUs ({names}), no problem in what was given; {lacking} checks had no facts.",
        )
    else:
        one, many = (
            "{model}: one GPU ({names}), no problem found.",
            "{model}: {count} GPUs ({names}), no problem found.",
        )
    return say(plural(count, one, many), **fields)


def model_name(machine: Machine) -> str:
    """Name of the machine for people."""
    system = machine.system
    name = (system.product or system.board) if system is not None else None
    if system is None or (name is None and system.vendor is None):
        return say("The machine")
    if name is None or system.vendor is None or name.startswith(system.vendor):
        return shorten(name or system.vendor or "")
    return f"{shorten(system.vendor)} {shorten(name)}"
