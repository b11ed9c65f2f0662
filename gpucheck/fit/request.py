"""What the person wants: cards, and what is known of the machine that they would go into."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from gpucheck.catalog import Catalog, exact_name
from gpucheck.entries import Aux, Bus, Card, CardCooling, CardPower, Server, Size, Variant, citations
from gpucheck.errors import UsageError
from gpucheck.findings import Citation
from gpucheck.power import Redundancy

MOST_CARDS = 64
"""More cards than any server has slots; beyond it a count is a typing mistake."""

Use = Literal["train", "infer"]
"""What the cards are for."""

SLOT_PITCH_MM = 20.32
"""From slot to slot (CEM)."""
ROUNDING_MM = 2.0
"""Lists round, brackets stick out: half-length cards are listed with 168 or 169 mm, two slots with 40 mm or more."""

HEIGHT_ROUNDING_MM = 1.0
"""A card of standard height, 111.15 mm, is listed with 111, 111.8 (4.4 inches) or 112 mm; a low one with 69."""

DERIVED = "this-machine"
"""Id of a server entry that was derived from what a machine reports of itself."""

LEAST_PSU_WATTS, MOST_PSU_WATTS = 100, 9999
"""No supply of a server gives less or more; beyond it a number is a typing mistake."""


@dataclass(frozen=True)
class Wanted:
    """A card as it will be built in: the reference card, or a maker's variant over it."""

    card: Card
    variant: Variant | None = None

    @cached_property
    def id(self) -> str:
        """Catalog id, with the variant behind a slash."""
        return self.card.id if self.variant is None else f"{self.card.id}/{self.variant.id}"

    @property
    def name(self) -> str:
        """Name for people."""
        return self.card.name if self.variant is None else self.variant.names[0]

    @property
    def size(self) -> Size:
        """Outer size."""
        return self.variant.size if self.variant and self.variant.size else self.card.size

    @property
    def aux(self) -> Aux | None:
        """Auxiliary power; None: not known."""
        return self.variant.aux if self.variant and self.variant.aux else self.card.aux

    @property
    def power(self) -> CardPower | None:
        """Board power; None: not known."""
        return self.variant.power if self.variant and self.variant.power else self.card.power

    @property
    def cooling(self) -> CardCooling | None:
        """Kind of cooler; None: not known."""
        return self.variant.cooling if self.variant and self.variant.cooling else self.card.cooling

    @property
    def bus(self) -> Bus | None:
        """PCIe side of the card; None: not known."""
        return self.card.bus

    def is_called(self, name: str) -> bool:
        """Whether a list's or a report's name for a card means this one: its id, or one of its names in full.

        The reference card's name does not mean a maker's variant, which differs in what decides fit.
        """
        return name == self.id or exact_name(name) in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        names = self.variant.names if self.variant is not None else (self.card.name, *self.card.names)
        return frozenset(map(exact_name, names))

    @cached_property
    def slots_wide(self) -> int | None:
        """Whole slots that it covers; where no source counts them, as many as its thickness takes."""
        wide = self.size.slots_wide
        if wide is None and self.size.thickness_mm is not None:
            wide = max(self.size.thickness_mm - ROUNDING_MM, 1) / SLOT_PITCH_MM
        return None if wide is None else int(-(-wide // 1))


@dataclass(frozen=True, slots=True)
class Order:
    """So many of one card, or one that stands in a slot already.

    Attributes:
        wanted: The card.
        count: How many.
        slot: The slot that it must stand in; None: any. Of a fitted card None: nobody knows, and none is taken.
        fitted: A probe found it there: it stays, and needs no slot, no cable and no judgement of its room.
    """

    wanted: Wanted
    count: int
    slot: str | None = None
    fitted: bool = False


@dataclass(frozen=True, slots=True)
class PsuPlan:
    """So many supplies of so many watts."""

    count: int
    watts: int


@dataclass(frozen=True, slots=True)
class Processor:
    """The CPU that is fitted in every socket in use.

    Attributes:
        name: Whole, without the maker.
        family: As catalog entries name it.
        watts: Thermal design power; None: not known.
        address_bits: Physical address bits; None: not known.
        pcie_gen: Generation of its PCIe lanes.
        pcie_lanes: How many it has.
        avx: Widest of its vector instructions; ``none`` where it has none.
        found: A probe read it; otherwise a person states it.
        sources: What ``watts`` rests on.
        family_sources: What the rest rests on.
    """

    name: str
    family: str
    watts: int | None = None
    address_bits: int | None = None
    pcie_gen: int | None = None
    pcie_lanes: int | None = None
    avx: str | None = None
    found: bool = False
    sources: tuple[Citation, ...] = ()
    family_sources: tuple[Citation, ...] = ()


@dataclass(frozen=True, slots=True)
class Stranger:
    """A card that a probe found in the machine and that the catalog does not know.

    Attributes:
        name: What it calls itself.
        slot: Id of its slot; None: not known.
        watts: The power limit that its driver tells; None: not known.
        sources: Of ``watts``.
    """

    name: str
    slot: str | None
    watts: int | None
    sources: tuple[Citation, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A question to the advisor. What is None is free: the search may choose it.

    Args:
        server: The model.
        orders: Cards and counts; empty: how many of each class?
        cpus: CPUs that are fitted.
        cpu_watts: TDP of one CPU.
        cpu: The CPU by name; then ``cpu_watts`` is its TDP.
        psus: Supplies that are fitted.
        options: Option name to the choice that is fitted.
        input_volts: Mains voltage.
        redundancy: How many supplies may fail.
        ambient_c: Temperature of the inlet air.
        ram_bytes: Memory of the host.
        address_bits: Physical address bits that a probe read.
        bios_version: Version of the firmware that a probe read.
        use: What the cards are for; None: judged as training, which asks for more.
        occupied: Slots in which a probe found something, without those of fitted cards.
        kept: Those of them in which it stays, such as the slots of cards that the catalog does not know.
        strangers: Cards in the machine that the catalog does not know.
        probed: Whether a probe of the machine speaks in it; then the room that is left is told.
        remarks: What a person should know of how the facts were read.
        catalog: Where the cards of other people's builds are looked up.
    """

    server: Server
    orders: tuple[Order, ...] = ()
    cpus: int | None = None
    cpu_watts: int | None = None
    cpu: Processor | None = None
    psus: PsuPlan | None = None
    options: dict[str, str] = field(default_factory=dict)
    input_volts: int | None = None
    redundancy: Redundancy | None = None
    ambient_c: int | None = None
    ram_bytes: int | None = None
    address_bits: int | None = None
    bios_version: str | None = None
    use: Use | None = None
    occupied: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    strangers: tuple[Stranger, ...] = ()
    probed: bool = False
    remarks: tuple[str, ...] = ()
    catalog: Catalog | None = None

    @property
    def count(self) -> int:
        """All cards together, those that are fitted among them."""
        return sum(order.count for order in self.orders)

    @property
    def new(self) -> tuple[Order, ...]:
        """What is asked for, without the cards that are fitted."""
        return tuple(order for order in self.orders if not order.fitted)

    @property
    def may_have_more_slots(self) -> bool:
        """Whether its slots are ports that PCI shows, because nobody read the firmware's list of slots."""
        return self.server.id == DERIVED and not any(row.smbios for row in self.server.slots)

    @property
    def fitted(self) -> tuple[Order, ...]:
        """The cards that a probe found in the machine."""
        return tuple(order for order in self.orders if order.fitted)

    def with_new(self, orders: tuple[Order, ...]) -> Request:
        """The same request for other cards; what is fitted stays."""
        return replace(self, orders=(*self.fitted, *orders))

    def freed(self, *names: str) -> Request:
        """The same request with some of what it states left free again."""
        empty: dict[str, Any] = {"cpus": None, "psus": None, "options": {}}
        return replace(self, **{name: empty[name] for name in names})

    def as_stated(self) -> dict[str, Any]:
        """The request as it goes into the document."""
        return {
            "gpus": [
                {"gpu": order.wanted.id, "count": order.count, **({"slot": order.slot} if order.slot else {})}
                for order in self.new
            ],
            "fitted": [{"gpu": order.wanted.id, "slot": order.slot} for order in self.fitted],
            "cpus": self.cpus,
            "cpu": None if self.cpu is None else self.cpu.name,
            "cpu_watts": self.cpu_watts,
            "psus": None if self.psus is None else {"count": self.psus.count, "watts": self.psus.watts},
            "options": dict(self.options),
            "input_voltage": self.input_volts,
            "redundancy": self.redundancy,
            "ambient_c": self.ambient_c,
            "ram_bytes": self.ram_bytes,
            "address_bits": self.address_bits,
            "bios_version": self.bios_version,
            "use": self.use,
            "occupied": sorted(self.occupied),
        }


def parse_psus(text: str) -> PsuPlan:
    """``2x1100``, ``2x1100W``, ``1100``. UsageError for anything else."""
    match = re.fullmatch(r"\s*(?:(\d{1,2})\s*[x×*]\s*)?(\d{2,5})\s*w?\s*", text, re.IGNORECASE)
    if match is None or not int(match[1] or 1) or not LEAST_PSU_WATTS <= int(match[2]) <= MOST_PSU_WATTS:
        raise UsageError("not a number of power supplies", input=f"--psu {text}", hint="write it as 2x1100")
    return PsuPlan(int(match[1] or 1), int(match[2]))


_SIZES = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_ram(text: str) -> int:
    """``256G``, ``256 GB``, ``1.5TiB`` to bytes, all binary. UsageError for anything else."""
    match = re.fullmatch(r"\s*(\d{1,7}(?:\.\d{1,3})?)\s*([MGT])(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None or not float(match[1]):
        raise UsageError("not a size of memory", input=f"--ram {text}", hint="write it as 256G")
    return int(float(match[1]) * _SIZES[match[2].upper()])


def processor(name: str, catalog: Catalog, *, found: bool = False) -> Processor:
    """The CPU that a name means. UsageError names the nearest."""
    family, cpu = catalog.find_cpu(name)
    pcie = family.pcie
    told = (*family.address_bits_src, *(pcie.src if pcie else ()), *family.avx_src)
    return Processor(
        name=cpu.name,
        family=family.family,
        watts=cpu.watts,
        address_bits=family.address_bits,
        pcie_gen=pcie.gen if pcie else None,
        pcie_lanes=pcie.lanes if pcie else None,
        avx=family.avx,
        found=found,
        sources=citations(family, cpu.src),
        family_sources=citations(family, tuple(dict.fromkeys(told))),
    )


def parse_slot(text: str) -> tuple[str, str | None]:
    """``P40@6`` to the card and the slot that it must stand in. UsageError for an empty slot."""
    card, at, slot = text.rpartition("@")
    if not at:
        return text, None
    if not slot.strip():
        raise UsageError("no slot is named", input=f"--gpu {text}", hint="write it as P40@6")
    return card, slot.strip()


def parse_gpu(text: str) -> tuple[str, int | None]:
    """``P40``, ``P40:2`` and ``2xP40`` to name and count. UsageError for a count that makes no sense."""
    name, count = text.strip(), None
    if match := re.fullmatch(r"(\d{1,4})\s*[x×]\s*(.+)", name, re.IGNORECASE):
        count, name = int(match[1]), match[2]
    elif match := re.fullmatch(r"(.+?)\s*:\s*(\S+)", name):
        name = match[1]
        if not match[2].isdecimal() or len(match[2]) > 4:
            raise UsageError("not a number of cards", input=f"--gpu {text}", hint="write it as P40:2")
        count = int(match[2])
    if not name:
        raise UsageError("no card is named", input=f"--gpu {text}", hint="write it as P40:2")
    return name.strip(), count if count is None else checked_count(count, f"--gpu {text}")


def checked_count(count: int, option: str) -> int:
    """A count of cards between 1 and MOST_CARDS. UsageError otherwise."""
    if not 1 <= count <= MOST_CARDS:
        raise UsageError(
            f"a number of cards is between 1 and {MOST_CARDS}",
            input=option,
            hint="leave it out to ask how many fit",
        )
    return count


def resolve_option(server: Server, text: str, *, riser: bool) -> tuple[str, str]:
    """``3=alternate`` to an option of this server and its choice.

    Args:
        server: The model.
        text: ``NAME=CHOICE``.
        riser: NAME is a riser (``--riser``), not an option (``--option``).

    Raises:
        UsageError: the server has no such option or choice; the hint lists those it has.
    """
    flag = "--riser" if riser else "--option"
    name, separator, choice = (part.strip() for part in text.partition("="))
    options = {
        (option.riser if riser else key): key
        for key, option in server.options.items()
        if not riser or option.riser is not None
    }
    folded = {str(known).casefold(): key for known, key in options.items()}
    if not folded:
        raise UsageError(f"the catalog knows no such choice for {server.model}", input=f"{flag} {text}")
    key = folded.get(name.casefold().removeprefix("riser").strip() if riser else name.casefold())
    if key is None or not separator:
        raise UsageError(
            f"not an option of {server.model}",
            input=f"{flag} {text}",
            hint="known: "
            + "; ".join(
                f"{known}={'|'.join(server.options[key].choices)}" for known, key in sorted(options.items(), key=str)
            ),
        )
    choices = {known.casefold(): known for known in server.options[key].choices}
    chosen = choices.get(choice.casefold())
    if chosen is None:
        raise UsageError(
            f"not a choice for {server.options[key].label}",
            input=f"{flag} {text}",
            hint=f"known: {', '.join(server.options[key].choices)}",
        )
    return key, chosen
