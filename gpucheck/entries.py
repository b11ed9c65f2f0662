"""The shape of catalog entries: server models, cards and processors, every number with its source.

One TOML file is one thing and its name is its id: ``catalog/servers/dell/dell-poweredge-r730.toml``.
Tables carry ``src``, keys of ``[sources]`` in the same file. What has no source is left out, and the
tool says *unknown*.
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Literal

from pydantic import BaseModel, ConfigDict, model_validator

from gpucheck.errors import CatalogError
from gpucheck.findings import Citation

MOST_BUILDS = 256
"""Numbers of CPUs times choices of options: each is searched, so a typing mistake must not make a million of them."""

SourceConfidence = Literal["vendor", "measured", "vendor-quoted", "review", "community", "derived"]

CONFIDENCE_ORDER: dict[str, int] = {
    "vendor": 0,
    "measured": 1,
    "vendor-quoted": 2,
    "review": 3,
    "community": 4,
    "derived": 5,
}
"""Strongest first. ``vendor``: a vendor's document that was read; ``vendor-quoted``: as others quote
it; ``measured``: read from a real machine; ``derived``: our reasoning, shown as such."""

PlugKind = Literal["pcie-6", "pcie-8", "eps-8", "12vhpwr", "12-pin-fe", "8-pin-unknown"]
"""Auxiliary power by exact kind. ``eps-8`` and ``pcie-8`` look alike and have 12 V and ground on
opposite rows. ``8-pin-unknown``: an 8-pin socket whose kind no source names."""


class Entry(BaseModel):
    """Base of catalog tables: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Sourced(Entry):
    """A table that holds statements, and the sources they rest on.

    ``src`` is what the table rests on; a field ``NAME_src`` names the sources of ``NAME`` where they are others.
    """

    src: tuple[str, ...] = ()

    def src_of(self, field: str) -> tuple[str, ...]:
        """Keys of the sources that a field of this table rests on: its own, or else the table's."""
        own: tuple[str, ...] = getattr(self, f"{field}_src", ())
        return own or self.src


class Source(Entry):
    """A document. Confidence belongs to the document."""

    confidence: SourceConfidence
    title: str
    where: str | None = None
    """Page or address."""
    via: str | None = None
    """For ``vendor-quoted``: the text that quotes it."""


class Documented(Entry):
    """One file of the catalog: its id, and the documents that its tables name in ``src``."""

    id: str
    sources: dict[str, Source]

    @cached_property
    def citations(self) -> dict[str, Citation]:
        """Each source as documents cite it, by its key. The entry is frozen, so it is made once."""
        return {key: self._citation(key, source) for key, source in self.sources.items()}

    def _citation(self, key: str, source: Source) -> Citation:
        where = source.where if source.via is None else f"{source.where or ''} via {source.via}".strip()
        return Citation(entry=self.id, key=key, title=source.title, where=where, confidence=source.confidence)


# --- servers ----------------------------------------------------------------------------------


class SmbiosMatch(Sourced):
    """Whole strings as SMBIOS gives them, compared without case and outer blanks; never prefixes."""

    vendor: tuple[str, ...] = ()
    product: tuple[str, ...] = ()
    board: tuple[str, ...] = ()
    """Only where the board alone identifies the model."""


class Form(Sourced):
    """Build of the chassis."""

    kind: Literal["rack", "tower", "desktop", "board"]
    units: int | None = None


class Sockets(Sourced):
    """CPU sockets. ``designations`` are SMBIOS type 4 names in socket order."""

    count: int
    type: str | None = None
    cpus: tuple[str, ...] = ()
    designations: tuple[str, ...] = ()
    max_cpu_watts: int | None = None
    """Highest TDP of a CPU that fits the socket: the upper bound where no CPU is named."""
    max_cpu_watts_src: tuple[str, ...] = ()


class Recognise(Entry):
    """How a probe tells that this choice is fitted; all that is given must hold."""

    slots_absent: tuple[str, ...] = ()
    slots_present: tuple[str, ...] = ()
    slot_lanes: dict[str, int] = {}


class Choice(Sourced):
    """One way in which an option can be built."""

    called: str
    """In words that a seller can check, such as ``alternate riser 3 (one x16 slot)``."""
    parts: tuple[str, ...] = ()
    photo: str | None = None
    """What to look for on a picture: a silk-screen text, a label."""
    recognise: Recognise | None = None


class Option(Sourced):
    """A riser position, a drive cage, a configuration. The first choice is as shipped."""

    label: str
    riser: str | None = None
    """Name for ``--riser NAME=CHOICE``, such as ``3``."""
    choices: dict[str, Choice]


class SlotRow(Sourced):
    """One slot under one option. The same id may repeat under other options, never two active."""

    id: str
    smbios: tuple[str, ...] = ()
    """SMBIOS type 9 designations of this slot, such as ``PCIe Slot 4``."""
    when: dict[str, str] = {}
    """Option name to choice; all must be chosen."""
    socket: int | None = None
    """Number of the CPU socket (from 1) whose lanes it has; None: not known."""
    lanes: int | None = None
    """Lanes that are wired; None: not known."""
    connector: int | None = None
    open_ended: bool = False
    gen: int | None = None
    height: Literal["full", "low"] | None = None
    height_src: tuple[str, ...] = ()
    length: Literal["full", "half"] | None = None
    length_src: tuple[str, ...] = ()
    watts: int | None = None
    """Power the slot may give."""
    watts_src: tuple[str, ...] = ()
    max_wide: int | None = None
    """Most slot widths that a card here may have; None: not known."""
    max_wide_src: tuple[str, ...] = ()
    wide_blocks: dict[str, tuple[str, ...]] = {}
    """Card width (``"2"``, ``"3"``) to the slot ids that such a card covers, cumulative."""
    wide_blocks_src: tuple[str, ...] = ()
    clearance_length_mm: float | None = None
    clearance_height_mm: float | None = None
    """Measured room beyond the PCIe CEM envelope, bracket to first obstacle."""
    gpu: bool = True
    """False: a source says that no GPU goes here."""
    gpu_src: tuple[str, ...] = ()
    order: int | None = None
    """The vendor's order of filling, 1 first."""
    order_src: tuple[str, ...] = ()
    switch: str | None = None
    """PCIe switch whose uplink it shares: same name, same switch."""
    switch_src: tuple[str, ...] = ()
    root_port: str | None = None
    """PCI address of the root port (or of the first bus behind it) on a measured machine."""
    riser: str | None = None
    position: str | None = None
    position_src: tuple[str, ...] = ()
    """Those of ``riser`` too."""

    @property
    def designations(self) -> tuple[str, ...]:
        """What firmware calls the slot; its id where no source names that."""
        return self.smbios or (self.id,)


class GpuLimit(Sourced):
    """A support statement of the kind ``at most two double-wide cards of 300 W in slots 6 and 4``.

    ``cards``, ``wide``, ``profile`` and ``watts_each`` say which cards it means, ``cpus`` and ``needs`` in which
    machine. ``max`` speaks of all cards that it means together.
    """

    cards: tuple[str, ...] = ()
    """Catalog ids or names; empty: every card of the class."""
    wide: int | None = None
    profile: Literal["full", "low"] | None = None
    watts_each: int | None = None
    max: int
    slots: tuple[str, ...] = ()
    """Slots that the statement names, in the vendor's order of filling."""
    only_slots: bool = False
    """The source names these slots and no others for such cards."""
    cpus: int | None = None
    """Number of CPUs for which it is said."""
    needs: dict[str, str] = {}
    """Option name to choice under which it is said."""
    note: str | None = None


class GpuZone(Sourced):
    """Slots among which a rule holds: every GPU in them must be of one model."""

    slots: tuple[str, ...]


class GpuNeed(Sourced):
    """Something that must be there with a GPU. At most one of the fields that judge is given (``cpus``,
    ``cpu_watts_max``, ``inlet_c_max``, ``psu_watts_min``); ``item`` alone is something to buy or check."""

    item: str
    cpus: int | None = None
    cpu_watts_max: int | None = None
    inlet_c_max: int | None = None
    psu_watts_min: int | None = None
    cpu_families: tuple[str, ...] = ()
    """Only with CPUs of these families, such as ``EPYC 7003``."""
    parts: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()
    """Applies only to these cards; empty: to all."""
    wide_min: int | None = None
    """Applies to cards at least this wide."""
    aux_only: bool = False
    """Applies only to cards with auxiliary power."""

    @model_validator(mode="after")
    def _judged_by_one(self) -> GpuNeed:
        judging = (self.cpus, self.cpu_watts_max, self.inlet_c_max, self.psu_watts_min, self.cpu_families or None)
        if sum(value is not None for value in judging) > 1:
            raise ValueError("one need is judged by one field: give each its own")
        return self


class GpuForbid(Sourced):
    """Something that excludes a GPU, such as a tape unit."""

    item: str
    when: dict[str, str] = {}
    """The option's choice that stands for it, where the model declares one."""
    cards: tuple[str, ...] = ()
    """Only these cards; empty: every GPU."""


class GpuListed(Sourced):
    """Cards that a document lists as supported: ``listed by``, never a bare yes or no."""

    by: str
    cards: tuple[str, ...]


class BuildReport(Sourced):
    """A build that somebody runs (or failed with). A sourced report of a card that works covers
    what is otherwise unknown about it, at that source's confidence."""

    cards: tuple[str, ...]
    """Catalog ids of cards, or names where the card is not in the catalog."""
    count: int = 1
    works: bool
    slots: tuple[str, ...] = ()
    note: str | None = None


class GpuSupport(Entry):
    """What the vendor says about GPUs here, and what others ran."""

    official: Literal["supported", "none"] | None = None
    official_note: str | None = None
    official_src: tuple[str, ...] = ()
    limits: tuple[GpuLimit, ...] = ()
    zones: tuple[GpuZone, ...] = ()
    needs: tuple[GpuNeed, ...] = ()
    forbids: tuple[GpuForbid, ...] = ()
    listed: tuple[GpuListed, ...] = ()
    reports: tuple[BuildReport, ...] = ()


class PsuOption(Sourced):
    """A power supply the server can have; ``watts`` at 200-240 V."""

    watts: int
    called: str | None = None
    parts: tuple[str, ...] = ()


class LowLine(Sourced):
    """Output at 100-120 V of a supply that gives ``rated_watts`` at 200-240 V."""

    rated_watts: int
    watts: int


class BaseLoad(Sourced):
    """Power of the machine without cards and CPUs: fans, memory, drives, boards."""

    low_watts: int
    high_watts: int
    note: str | None = None


class AuxSocket(Sourced):
    """Where the server gives auxiliary GPU power."""

    at: str
    plug: PlugKind
    count: int = 1
    when: dict[str, str] = {}
    watts: int | None = None
    watts_src: tuple[str, ...] = ()


class Cable(Sourced):
    """A cable from the server's socket to a card's. ``gives`` may feed several plugs of one card."""

    called: str
    parts: tuple[str, ...] = ()
    from_plug: PlugKind | None = None
    gives: tuple[PlugKind, ...]
    sockets: int = 1
    """Server sockets that one cable takes."""
    note: str | None = None


class PsuShare(Sourced):
    """A vendor's rule: the watts of the cards together are at most a share of the watts of all active supplies.

    It replaces our own sum. Cards that draw less than ``cards_from_watts`` do not count.
    """

    divisor: float
    """3 for a third of the supplies' watts."""
    cards_from_watts: int = 0
    supplies_min: int = 1
    """With fewer supplies, none of the counted cards is allowed."""


class PsuTable(Sourced):
    """One row of a vendor's table of how many cards so many supplies carry. It replaces our own sum.

    ``most`` maps a class of cards, by its watts (``"300"``: cards that draw up to 300 W and more than the next
    smaller class), to the most of it alone. ``mixed`` lists the combinations that the table allows beside each
    other, each with the same keys; empty where the table is silent on mixing.
    """

    supplies: int
    watts: int
    most: dict[str, int]
    mixed: tuple[dict[str, int], ...] = ()


class MmioWindow(Sourced):
    """The 64-bit memory window of the firmware, where a source gives its size."""

    bytes: int
    each: Literal["machine", "socket"] = "machine"
    when: str | None = None
    """The menu's setting under which it is that large, in its own words; None: always."""


class PowerSpec(Entry):
    """Power supplies, base load and the way to a card's plug."""

    bays: int | None = None
    bays_src: tuple[str, ...] = ()
    psus: tuple[PsuOption, ...] = ()
    low_line: tuple[LowLine, ...] = ()
    redundancy_note: str | None = None
    redundancy_src: tuple[str, ...] = ()
    share: PsuShare | None = None
    table: tuple[PsuTable, ...] = ()
    base: BaseLoad | None = None
    aux: tuple[AuxSocket, ...] | None = None
    """None: not known; empty: a source says that there is none."""
    cables: tuple[Cable, ...] = ()


class Cooling(Sourced):
    """``design`` says for which cards a source says that the chassis is made."""

    passive: Literal["yes", "no"] | None = None
    active: Literal["yes", "no", "unsupported"] | None = None
    note: str | None = None
    remedy: str | None = None


class FirmwareSetting(Sourced):
    """A firmware setting by the name in its menu."""

    purpose: Literal["csm", "above-4g", "mmio-base", "mmio-size", "resizable-bar", "primary-display", "other"]
    """``csm``: the compatibility mode that must be off before the others show."""
    menu: str
    value: str
    default: str | None = None
    command: str | None = None
    """How to set it from outside, such as a racadm attribute."""
    bios_from: str | None = None
    """First BIOS version that has it, where a source says that earlier ones do not."""
    bios_without: tuple[str, ...] = ()
    """BIOS versions that a source says lack it or dropped it."""


class Note(Sourced):
    """Something a buyer should know that no field holds."""

    text: str


class Server(Documented):
    """One server model."""

    vendor: str
    model: str
    names: tuple[str, ...]
    """As people type it. A name that several entries carry is answered for all of them."""
    tell_apart: str | None = None
    """How to tell it from another entry with the same name or the same looks."""
    tell_apart_src: tuple[str, ...] = ()
    smbios: tuple[SmbiosMatch, ...] = ()
    form: Form
    sockets: Sockets
    options: dict[str, Option] = {}
    slots: tuple[SlotRow, ...]
    gpu: GpuSupport = GpuSupport()
    power: PowerSpec = PowerSpec()
    cooling: tuple[Cooling, ...] = ()
    firmware: tuple[FirmwareSetting, ...] = ()
    mmio: tuple[MmioWindow, ...] = ()
    notes: tuple[Note, ...] = ()
    not_known: tuple[str, ...] = ()
    """What was looked for and not found, for the reader of the file."""

    @model_validator(mode="after")
    def _few_enough_builds(self) -> Server:
        builds = self.sockets.count * prod(len(option.choices) for option in self.options.values())
        if not 1 <= builds <= MOST_BUILDS:
            raise ValueError(f"{builds} ways of building it: more than nothing, and at most {MOST_BUILDS}")
        return self


# --- cards ------------------------------------------------------------------------------------


class PciId(Sourced):
    """A PCI id the card answers with."""

    id: str
    """``10de:1b38``."""
    subsystem: str | None = None


class Size(Sourced):
    """Outer size of the card."""

    slots_wide: float | None = None
    """2.5 takes three slots."""
    length_mm: float | None = None
    height_mm: float | None = None
    """From the slot edge up, without the plug. None with ``profile`` given: the CEM height of it."""
    thickness_mm: float | None = None
    profile: Literal["full", "low"] | None = None


class Plug(Entry):
    """Sockets of one kind on the card."""

    kind: PlugKind
    count: int = 1


class Aux(Sourced):
    """Auxiliary power of the card. ``plugs`` empty: none needed."""

    plugs: tuple[Plug, ...]
    at: Literal["end", "top"] | None = None
    note: str | None = None


class CardCooling(Sourced):
    """How the card gets rid of its heat."""

    kind: Literal["passive", "blower", "open-air", "liquid"]


class CardPower(Sourced):
    """What the card draws."""

    watts: int
    """Board power, the maker's default limit."""
    peak_factor: float | None = None
    """Short peaks over board power."""
    peak_src: tuple[str, ...] = ()


class Bus(Sourced):
    """The card's side of the slot."""

    gen: int
    lanes: int
    """Lanes that are wired."""
    connector: int = 16
    """Lanes of the card's edge connector."""


class Bar1(Sourced):
    """Size of BAR1 of one GPU as the card comes."""

    bytes: int
    resizable_to_bytes: int | None = None


class Software(Sourced):
    """What still drives it. ``tensorflow_newest``: newest official wheel with machine code for it."""

    compute_capability: str | None = None
    architecture: str | None = None
    last_driver_branch: str | None = None
    """None: current drivers support it, as far as ``src`` says."""
    tensorflow_newest: str | None = None
    note: str | None = None


class PeerToPeer(Sourced):
    """Direct copies between two such cards over PCIe."""

    pcie: Literal["yes", "no"]
    note: str | None = None


class Variant(Sourced):
    """A maker's version that differs in what decides fit. What is not given is as the reference."""

    id: str
    names: tuple[str, ...]
    size: Size | None = None
    aux: Aux | None = None
    power: CardPower | None = None
    cooling: CardCooling | None = None


class Card(Documented):
    """One card model; without a maker's name it is the reference card."""

    vendor: Literal["nvidia", "amd", "intel"]
    name: str
    names: tuple[str, ...]
    form: Literal["pcie", "sxm2", "sxm3", "sxm4", "sxm5", "mxm"] = "pcie"
    family: Literal["datacenter", "workstation", "geforce", "titan", "radeon", "instinct", "arc", "other"]
    gpus_per_card: int = 1
    vram_gib: float | None = None
    """Per GPU."""
    vram_src: tuple[str, ...] = ()
    pci: tuple[PciId, ...]
    size: Size = Size()
    aux: Aux | None = None
    power: CardPower | None = None
    cooling: CardCooling | None = None
    bus: Bus | None = None
    bar1: Bar1 | None = None
    software: Software = Software()
    peer_to_peer: PeerToPeer | None = None
    needs_above_4g: bool | None = None
    needs_above_4g_src: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()
    notes: tuple[Note, ...] = ()


# --- processors -------------------------------------------------------------------------------


class CpuPcie(Sourced):
    """PCIe lanes of one processor of the family."""

    gen: int
    lanes: int


class Cpu(Sourced):
    """One processor of a family."""

    name: str
    """Whole, without the maker: ``Xeon E5-2680 v4``."""
    names: tuple[str, ...] = ()
    """Other ways to write it that do not follow from ``name``."""
    watts: int | None = None
    """Thermal design power."""


class CpuFamily(Documented):
    """Processors of one generation: what holds for all of them, and each with its watts."""

    vendor: Literal["intel", "amd"]
    family: str
    """As servers' ``cpu_families`` name it: ``EPYC 7003``."""
    address_bits: int | None = None
    """Physical address bits, as ``lscpu`` prints them."""
    address_bits_src: tuple[str, ...] = ()
    pcie: CpuPcie | None = None
    avx: Literal["none", "avx", "avx2", "avx512"] | None = None
    """Widest of the vector instructions that software asks for."""
    avx_src: tuple[str, ...] = ()
    models: tuple[Cpu, ...]
    notes: tuple[Note, ...] = ()


def citations(entry: Documented, keys: tuple[str, ...]) -> tuple[Citation, ...]:
    """Expand ``src`` keys. CatalogError for a key that the entry does not define."""
    try:
        return tuple(entry.citations[key] for key in keys)
    except KeyError as error:
        raise CatalogError(f"source {error} is not in [sources]", input=entry.id) from None
