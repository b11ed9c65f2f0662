"""Host or dumps → the probe document, ``gpucheck/probe/1``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from gpucheck.assemble import assemble, counts
from gpucheck.catalog import Catalog, load
from gpucheck.errors import InputError
from gpucheck.facts import Counts, Expected, Machine, Parts
from gpucheck.findings import Finding, Printed, Unchecked
from gpucheck.host import Host, LiveHost
from gpucheck.text import plural, say, shorten

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


def read(host: Host, *, timeout: float = NVML_SECONDS, ask_ipmi: bool = False) -> tuple[Parts, ...]:
    """Ask every reader once. NVML answers in a child process while the files are read."""
    from gpucheck.readers import cpu, driver, kernel_log, nvml, pci, psu, smbios

    waiting = host.ask_nvml(timeout)
    parts = [reader.read(host) for reader in (pci, smbios, cpu, driver, kernel_log)]
    listed = next((part.psus for part in parts if part.psus is not None), None)
    parts.append(psu.read(host, listed, ask_ipmi=ask_ipmi))
    parts.append(nvml.collect(waiting))
    return tuple(part if part.origin else part.model_copy(update={"origin": host.name}) for part in parts)


def _holds_fru(host: Host) -> bool:
    """Whether a capture was made with --ipmi: then the answer is there and costs nothing."""
    from gpucheck.capture import CaptureHost

    return isinstance(host, CaptureHost) and host.holds("ipmitool fru")


def gather(sources: Sequence[str], *, timeout: float = NVML_SECONDS, ask_ipmi: bool = False) -> tuple[Parts, ...]:
    """Read this machine, or every ``--from`` argument.

    Raises:
        InputError: a source cannot be read, or holds nothing.
    """
    if not sources:
        return read(LiveHost(), timeout=timeout, ask_ipmi=ask_ipmi)
    from gpucheck.sources import open_source

    parts: list[Parts] = []
    for source in sources:
        opened = open_source(source)
        parts.extend(
            opened if isinstance(opened, tuple) else read(opened, timeout=timeout, ask_ipmi=_holds_fru(opened))
        )
    return tuple(parts)


def probe(
    sources: Sequence[str] = (),
    *,
    expect_gpus: int | None = None,
    timeout: float = NVML_SECONDS,
    ask_ipmi: bool = False,
    catalog: Catalog | None = None,
) -> Probe:
    """Look at a machine and judge it.

    Args:
        sources: Captures and dumps of one machine; empty for this machine.
        expect_gpus: How many GPUs there should be.
        timeout: Seconds that NVML may take.
        ask_ipmi: Also run ``ipmitool`` for the power supplies (slow, needs root).
        catalog: The catalog; the built-in one by default.

    Raises:
        InputError: a source cannot be read, or the sources are of two machines.
    """
    catalog = catalog or load()
    machine = assemble(gather(sources, timeout=timeout, ask_ipmi=ask_ipmi), catalog)
    expected = Expected(n=expect_gpus, origin="--expect-gpus") if expect_gpus is not None else None
    return judge(machine, expected, catalog)


def judge(machine: Machine, expected: Expected | None, catalog: Catalog) -> Probe:
    """Facts to document: the rules, the verdict and the headline."""
    from gpucheck import rules

    counted = counts(machine, expected)
    server = catalog.server(machine.catalog_model) if machine.catalog_model is not None else None
    view = rules.View(counts=counted, expected=expected, server=server)
    findings, unchecked = rules.judge(machine, view)
    verdict = _verdict(machine, findings)
    return Probe(
        headline=_headline(machine, counted, findings, verdict),
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        counts=counted,
        machine=machine,
        findings=findings,
        unchecked=unchecked,
    )


def _verdict(machine: Machine, findings: Sequence[Finding]) -> ProbeVerdict:
    if any(finding.severity == "error" for finding in findings):
        return "problem"
    hung = machine.nvml is not None and machine.nvml.status == "timed-out"
    return "unknown" if machine.gpus is None or hung else "ok"


def _headline(machine: Machine, counted: Counts, findings: Sequence[Finding], verdict: ProbeVerdict) -> str:
    errors = [finding.message for finding in findings if finding.severity == "error"]
    warnings = [finding.message for finding in findings if finding.severity == "warning"]
    fields: dict[str, object] = {
        "model": model_name(machine),
        "first": (errors or warnings or [""])[0],
        "errors": len(errors),
        "warnings": len(warnings),
    }
    if verdict == "unknown" and machine.gpus is not None:
        return say("{model}: NVML did not answer in time, so nobody can say whether its GPUs work.", **fields)
    if verdict == "unknown":
        return say("{model}: its GPUs were not looked at, neither on PCI nor through NVML.", **fields)
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


def require_model(machine: Machine, name: str) -> str:
    """The catalog id of a probed machine. InputError when its model is not in the catalog."""
    if machine.catalog_model is None:
        raise InputError(
            say("its model is not in the catalog ({model})", model=model_name(machine)),
            input=name,
            hint="name the model with --model",
        )
    return machine.catalog_model
