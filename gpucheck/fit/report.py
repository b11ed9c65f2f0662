"""The advice document, ``gpucheck/advice/1``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gpucheck.findings import Check, Citation, Document, Printed

AdviceVerdict = Literal["fits", "fits-with-changes", "does-not-fit", "unknown"]


class Candidate(Document):
    """One of several products that a name means, or one model of a ranking."""

    server: str
    model: str
    gpus: tuple[str, ...] = ()
    verdict: AdviceVerdict
    max_count: int | None
    max_with_changes: int | None = None
    tell_apart: str | None = None


class Place(Document):
    """One card in its slot."""

    gpu: str
    name: str
    slot: str
    position: str | None
    riser: str | None
    socket: int | None
    lanes: int | None
    """None: not known."""
    gen: int | None
    covers: tuple[str, ...]
    """Other slots that the card covers."""
    fitted: bool = False
    """It stands there already."""


class Capacity(Document):
    """Most cards of a class, for the machine as the request states it."""

    class_: str = Field(alias="class")
    max: int
    given: str


class PowerTerm(Document):
    """One part of the load."""

    item: str
    low_watts: int
    high_watts: int | None
    sources: tuple[Citation, ...] = ()


class PowerSum(Document):
    """Watts. ``load_watts`` is the upper bound; null where no bound is known."""

    load_watts: int | None
    load_low_watts: int
    usable_watts: int | None
    peak_watts: int | None
    redundancy: str | None
    input_voltage: int | None
    terms: tuple[PowerTerm, ...] = ()


class SlotTopology(Document):
    """Distance between the cards as they would stand."""

    slots: tuple[str, ...]
    matrix: tuple[tuple[str, ...], ...]


class Item(Document):
    """Something to order, or that may already be fitted."""

    item: str
    part_numbers: tuple[str, ...]
    quantity: int
    need: Literal["must", "maybe-fitted"]
    why: str
    note: str | None = None
    sources: tuple[Citation, ...] = ()


class Question(Document):
    """Something to ask the seller, and what each answer means."""

    ask: str
    how: str
    if_yes: str
    if_no: str


class Condition(Document):
    """Something that must hold and that nobody has confirmed."""

    text: str
    sources: tuple[Citation, ...] = ()


class Alternative(Document):
    """What would come out if something that the request states were changed."""

    change: str
    verdict: AdviceVerdict
    max_count: int
    parts: tuple[str, ...] = ()


class Scenario(Document):
    """The answer for one way in which the machine may stand."""

    given: str
    max_count: int
    cpus: int
    options: dict[str, str]


class Advice(Printed):
    """Does it fit, where, and what must be ordered with it."""

    schema_: Literal["gpucheck/advice/1"] = Field(default="gpucheck/advice/1", alias="schema")
    verdict: AdviceVerdict
    server: str | None
    model: str | None
    candidates: tuple[Candidate, ...] = ()
    request: dict[str, Any]
    max_count: int | None
    max_with_changes: int | None
    capacity: tuple[Capacity, ...]
    placement: tuple[Place, ...]
    checks: tuple[Check, ...]
    power: PowerSum | None
    topology: SlotTopology
    shopping_list: tuple[Item, ...]
    questions: tuple[Question, ...]
    conditions: tuple[Condition, ...]
    alternatives: tuple[Alternative, ...]
    scenarios: tuple[Scenario, ...] = ()
    notes: tuple[Condition, ...] = ()
