"""``gpucheck.toml``: what a machine should be. Models, and reading the file.

A key that is not given asks nothing. What a key asks and the machine does not tell is *unknown*, never passed.
"""

from __future__ import annotations

import datetime
import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from gpucheck.errors import InputError
from gpucheck.facts import pci_address
from gpucheck.findings import BY_CODE, CODES
from gpucheck.text import clean, say

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

FILE = "gpucheck.toml"
"""Taken from the current folder where no file is named."""
_LIMIT = 1 << 20


def _address(text: str) -> str:
    found = pci_address(text)
    if found is None:
        raise ValueError(say("no PCI address, such as 0000:04:00.0"))
    return found


def _finding_name(text: str) -> str:
    name = BY_CODE[text.upper()].name if text.upper() in BY_CODE else text
    if name not in CODES:
        near = difflib.get_close_matches(name, CODES, n=1)
        if near:
            raise ValueError(say("no finding has this name; the nearest is {name}", name=near[0]))
        raise ValueError(say("no finding has this name; docs/findings.md has them all"))
    return name


def _finding_subject(text: str) -> str:
    if not text.strip():
        raise ValueError(say("it must not be empty"))
    return pci_address(text) or text


def _day(value: object) -> object:
    """A date as TOML writes it, or the same as a text. A time of the day would be lost in silence, and a number
    would be taken for seconds since 1970."""
    if isinstance(value, datetime.datetime):
        raise ValueError(say("a date without a time of the day, such as 2026-12-31"))
    if isinstance(value, int | float) or (isinstance(value, str) and "-" not in value):
        raise ValueError(say("it must be a date such as 2026-12-31"))
    return value


def _whole(value: object) -> object:
    """True equals 1, and 16.0 equals 16."""
    if type(value) is not int:
        raise ValueError(say("it must be a whole number, without quotes"))
    return value


Count = Annotated[int, Field(strict=True, ge=0, le=1024)]
Address = Annotated[str, AfterValidator(_address)]
FindingName = Annotated[str, AfterValidator(_finding_name)]
Devices = Annotated[str, Field(pattern=r"^(auto|gpu|cpu:[1-9][0-9]{0,2})$")]
Said = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500), AfterValidator(clean)]
CardName = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class Part(BaseModel):
    """Base of the policy's parts: immutable, and strict about its own keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, use_attribute_docstrings=True)


class Cards(Part):
    """Which GPUs there should be. More than that is no fault."""

    count: Count | None = None
    """At least so many usable GPUs (a K80 is two). 0: none is needed. Not given: the models and addresses say it,
    or Slurm, or the baseline; else at least one."""
    models: dict[CardName, Count] = {}
    """Name of a card, as the catalog knows it or as the driver says it, or its PCI id, to how many GPUs of it."""
    addresses: tuple[Address, ...] = ()
    """PCI addresses at which there must be a usable GPU."""


class LinkOfOne(Part):
    """What the link of one GPU must have."""

    lanes: Annotated[Literal[1, 2, 4, 8, 16], BeforeValidator(_whole)] | None = None
    """Least width that the link has."""
    gen: Annotated[int, Field(strict=True, ge=1, le=6)] | None = None
    """Least PCIe generation that card and slot can do. An idle link runs slower."""


class Links(LinkOfOne):
    """What the link of every GPU must have."""

    at: dict[Address, LinkOfOne] = {}
    """Other values for the GPU at a PCI address, where there must be one."""

    def of(self, address: str) -> LinkOfOne:
        """What the link at an address must have."""
        return self.at.get(address, self)


class Supplies(Part):
    """Power supplies."""

    supplies: Count | None = None
    """At least so many that are fitted, have mains and have not failed."""
    redundancy: Annotated[bool, Field(strict=True)] = False
    """One supply may fail, as the BMC says it (``--ipmi``)."""


class Memory(Part):
    """Health of the GPUs' memory, as NVML counts it over a card's life. Each is the most that is allowed on one GPU."""

    uncorrectable: Count | None = None
    """Errors that could not be corrected."""
    retired_pages: Count | None = None
    """Pages taken out of use (before Ampere)."""
    remapped_rows: Count | None = None
    """Rows replaced by spare ones (Ampere and later)."""


class Training(Part):
    """The training that proves every card."""

    run: Annotated[bool, Field(strict=True)] = True
    """Whether to train at all."""
    devices: Devices = "auto"
    """``auto``, ``gpu`` or ``cpu:N``, as for ``gpucheck smoke``."""
    steps: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 10
    timeout_seconds: Annotated[int, Field(strict=True, ge=1, le=86_400)] = 300
    if_busy: Literal["fail", "skip", "wait"] = "fail"


class Retry(Part):
    """What to do when the check itself could not be made. A machine that failed is never asked again."""

    times: Annotated[int, Field(strict=True, ge=0, le=10)] = 0
    wait_seconds: Annotated[int, Field(strict=True, ge=0, le=3600)] = 10


class Allowance(Part):
    """A finding that is known and accepted until a day."""

    finding: FindingName
    """Name or code of the finding."""
    subject: Annotated[str, AfterValidator(_finding_subject)] | None = None
    """PCI address, slot or power supply that it is allowed for; not given: anywhere in the machine."""
    reason: Said
    """Why it is accepted."""
    until: Annotated[datetime.date, BeforeValidator(_day)]
    """Last day on which it is."""


class Policy(Part):
    """What a machine should be."""

    strict: Annotated[bool, Field(strict=True)] = False
    """Warnings fail too."""
    baseline: Annotated[str, Field(min_length=1)] | None = None
    """An earlier probe (its JSON) or capture to compare with; a relative path starts at the policy file."""
    gpus: Cards = Cards()
    link: Links = Links()
    power: Supplies = Supplies()
    memory: Memory = Memory()
    smoke: Training = Training()
    retry: Retry = Retry()
    allow: tuple[Allowance, ...] = ()


# --- reading ------------------------------------------------------------------------------------


def load(path: str) -> Policy:
    """Read a policy file.

    Raises:
        InputError: It cannot be read, is no TOML, or a key is wrong; the message names file and key.
    """
    try:
        place = Path(path)
        if not path or not place.exists():
            raise InputError(say("no such file"), input=path or "--policy", hint="gpucheck check --init writes one")
        if not place.is_file():
            raise InputError(say("not a file"), input=path, hint="name the policy file itself")
        with place.open("rb") as file:
            content = file.read(_LIMIT + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        fault = say("it cannot be read: {reason}", reason=reason)
        raise InputError(fault, input=path, hint="check the path and the rights") from None
    if len(content) > _LIMIT:
        raise InputError(say("larger than a policy can be"), input=path, hint="name the policy file itself")
    try:
        made = parse(path, content.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(say("it is not UTF-8 text"), input=path, hint="save it as UTF-8") from None
    if made.baseline is not None and not os.path.isabs(made.baseline):
        return made.model_copy(update={"baseline": os.path.join(os.path.dirname(path), made.baseline)})
    return made


def parse(name: str, text: str) -> Policy:
    """A policy from its text; ``name`` is for messages. Raises InputError as :func:`load` does."""
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        fault = say("no TOML: {fault}", fault=str(error))
        raise InputError(fault, input=name, hint="mend that line, or compare it with gpucheck check --init") from None
    try:
        return Policy.model_validate(content)
    except ValidationError as error:
        first, *others = error.errors(include_url=False)
        key, fault, hint = _explained(first)
        if others:
            hint = say("{hint}; then {count} more", hint=hint, count=len(others))
        raise InputError(say("{key}: {fault}", key=key, fault=fault), input=name, hint=hint) from None


_WANTED = {
    "bool": "it must be true or false",
    "date": "it must be a date such as 2026-12-31",
    "dict": "it must be a table of values, such as key = 1 below a [heading]",
    "model": "it must be a table: write its keys below a [heading] of this name",
    "tuple": "it must be a list in square brackets",
    "int": "it must be a whole number, without quotes",
    "string": "it must be a text in quotes",
}
"""What a value must be, by the first word of pydantic's type of error."""


def _explained(error: ErrorDetails) -> tuple[str, str, str]:
    """Key, what is wrong with it, and what to do."""
    steps = error["loc"][:-1] if error["loc"][-1:] == ("[key]",) else error["loc"]
    key = "".join(f"[{step + 1}]" if isinstance(step, int) else f".{_quoted(step)}" for step in steps).lstrip(".")
    value, context = error["input"], error.get("ctx", {})
    given = say("it is {given}", given=clean(repr(str(value) if isinstance(value, datetime.date) else value))[:80])
    match error["type"]:
        case "extra_forbidden":
            known = list(_model_at(steps[:-1]).model_fields)
            near = difflib.get_close_matches(str(steps[-1]), known, n=1)
            said = say("did you mean {name}?", name=near[0]) if near else say("keys: {names}", names=", ".join(known))
            return key, say("no such key"), said
        case "missing":
            return key, say("it is missing"), say("every [[allow]] needs finding, reason and until")
        case "value_error":
            return key, str(context["error"]), given
        case "literal_error":
            return key, say("it must be {values}", values=context["expected"]), given
        case "greater_than_equal":
            return key, say("it must be {least} or more", least=context["ge"]), given
        case "less_than_equal":
            return key, say("it must be {most} or less", most=context["le"]), given
        case "string_too_short":
            return key, say("it must not be empty"), given
        case "string_too_long":
            return key, say("it must have at most {most} letters", most=context["max_length"]), given
        case "string_pattern_mismatch":
            return key, say("it must be auto, gpu or cpu:N"), given
        case kind:
            return key, say(_WANTED.get(kind.partition("_")[0], error["msg"])), given


def _quoted(step: str) -> str:
    return step if re.fullmatch(r"[A-Za-z0-9_-]+", step) else f'"{clean(step)[:80]}"'


def _model_at(steps: tuple[int | str, ...]) -> type[Part]:
    """The part of the policy that a path of keys leads to."""
    model: type[Part] = Policy
    for step in steps:
        field = model.model_fields.get(str(step))
        if field is None:  # a number in a list, an address in a table
            continue
        inner = (field.annotation, *get_args(field.annotation))
        parts = [one for one in inner if isinstance(one, type) and issubclass(one, Part)]
        model = parts[0] if parts else model
    return model
