"""Machine to findings: one module per rule, named after its finding.

A rule module has

- a docstring that is its documentation: a title sentence, then the headings of
  :data:`gpucheck.explain.HEADINGS`, each on a line of its own;
- ``NEEDS``: names of :class:`~gpucheck.facts.Machine` attributes that it cannot do without;
- ``check(machine, view)``: a pure function that yields findings and never raises for odd facts;
- optionally ``lacks(machine)``: names of single facts (as :attr:`~gpucheck.facts.Gap.fact` writes
  them) that were not read although the rest could be judged.

Modules without ``check`` document findings that another room makes: those of the training (GC8xx but
for :data:`OF_TENSORFLOW`), and those of the comparison with a baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, cast

from gpucheck.facts import Counts, Expected, Machine
from gpucheck.findings import CODES, Finding, Unchecked, in_order

if TYPE_CHECKING:
    from gpucheck.catalog import Catalog
    from gpucheck.entries import Server

Check = Callable[[Machine, "View"], Iterator[Finding]]
Lacks = Callable[[Machine], Iterator[str]]


@dataclass(frozen=True, slots=True)
class View:
    """What a rule may look at besides the machine."""

    counts: Counts = field(default_factory=Counts)
    expected: Expected | None = None
    server: Server | None = None
    """Catalog entry of this model; None where the model is not known or not in the catalog."""
    catalog: Catalog | None = None
    """For what is known of a card; None where a caller judges without it."""
    lost: frozenset[str] = frozenset()
    """Addresses of GPUs that the baseline has and the machine has no longer: a finding tells of each."""
    found: tuple[Finding, ...] = ()
    """What the rules before this one found: causes come before counts, so that a later rule can
    leave out what is already explained."""


def module_name(name: str) -> str:
    """Dotted name of the module that documents a finding."""
    return f"{__name__}.{name.replace('-', '_')}"


OF_TENSORFLOW = frozenset(
    {
        "tensorflow-cpu-only-build",
        "tensorflow-cuda-libraries-missing",
        "tensorflow-no-kernels-for-gpu",
        "tensorflow-cudnn-too-new",
        "cpu-lacks-avx",
        "tensorflow-ignores-gpu",
    }
)
"""Of the family GC8xx, those that judge a machine and not a training."""


def machine_rules() -> list[str]:
    """Names of the rules that judge a machine, causes before counts. What the training finds is left
    out, so that a probe does not pay for its modules."""
    names = (name for name, code in CODES.items() if name in OF_TENSORFLOW or not code.code.startswith("GC8"))
    judging = (name for name in names if hasattr(import_module(module_name(name)), "check"))
    return sorted(judging, key=lambda name: CODES[name].stage)


def judge(machine: Machine, view: View) -> tuple[tuple[Finding, ...], tuple[Unchecked, ...]]:
    """Apply every rule; return findings in order, and the rules that lacked facts.

    A rule that lacks some of its facts is listed as unchecked and may still have found something
    in the rest: unknown is not absent, and never a pass.
    """
    found: list[Finding] = []
    unchecked: list[Unchecked] = []
    for name in machine_rules():
        module = import_module(module_name(name))
        check = cast(Check, module.check)
        missing = [need for need in module.NEEDS if getattr(machine, need) is None]
        if not missing:
            found.extend(check(machine, replace(view, found=tuple(found))))
            lacks = cast("Lacks | None", getattr(module, "lacks", None))
            missing.extend(lacks(machine) if lacks else ())
        if missing:
            unchecked.append(Unchecked(name=name, missing=tuple(missing)))

    from gpucheck.rules.gpu_count_mismatch import raise_explaining

    return in_order(raise_explaining(machine, view, found)), tuple(unchecked)
