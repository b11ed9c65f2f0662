"""The advice document, ``gpucheck/advice/1``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gpucheck.findings import Check, Citation, Document, Printed
from gpucheck.text import say

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
    needs: str | None = None
    """In a few words: what it takes, what is not known, or what is in the way."""


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


class FittedCard(Document):
    """A card that a probe found in the machine."""

    gpu: str | None
    """Catalog id; None: the catalog does not know it."""
    name: str
    slot: str | None
    """None: not known."""
    watts: int | None
    """None: not known."""
    sources: tuple[Citation, ...] = ()


class RoomLeft(Document):
    """How many more of one card a probed machine takes as it stands."""

    gpu: str
    name: str
    verdict: AdviceVerdict
    """Of one more."""
    more: int
    """The most with no fail; with the verdict *unknown* that many have a slot, and more is not known."""
    nothing_moved: int
    """The most if whatever stands in the other slots stays where it is."""

    @property
    def in_words(self) -> str:
        """A sentence for people; where one more is *unknown*, it tells no more than how many have a slot."""
        moved, unknown = self.nothing_moved < self.more, self.verdict == "unknown"
        return say(_ROOM_WORDS[unknown, moved], more=self.more, card=self.name, kept=self.nothing_moved)


_ROOM_WORDS = {
    (False, False): "{more} more {card}",
    (False, True): "{more} more {card}, {kept} of them if nothing is moved",
    (True, False): "{more} more {card} have a slot; whether they work in it is not known",
    (True, True): "{more} more {card} have a slot, {kept} of them if nothing is moved; whether they work in it is not "
    "known",
}
"""By whether it is known, and whether something would have to move."""


class Capacity(Document):
    """Most cards of a class, for the machine as the request states it."""

    class_: str = Field(alias="class")
    max: int
    perhaps: int
    """Most if all that is not known of the slots turns out well."""
    given: str


class PowerTerm(Document):
    """One part of the load."""

    item: str
    low_watts: int
    high_watts: int | None
    note: str | None = None
    sources: tuple[Citation, ...] = ()


class Supplies(Document):
    """The power supplies of the sum."""

    count: int
    watts: int
    """Rating of one, at 200-240 V."""
    watts_at_voltage: int
    """Output of one at the stated mains voltage."""
    low_line_watts: int | None
    """Output of one at 100-120 V; None: not known."""


class PowerSum(Document):
    """Watts. ``load_watts`` is the upper bound; null where no bound is known."""

    load_watts: int | None
    load_low_watts: int
    usable_watts: int | None
    peak_watts: int | None
    redundancy: str | None
    input_voltage: int | None
    supplies: Supplies | None = None
    usable_by_redundancy: dict[str, int] | None = None
    """``none``, ``n+1`` and ``n+n`` to the watts that may be used; None where the supplies are not known."""
    terms: tuple[PowerTerm, ...] = ()


class PeerAccess(Document):
    """Whether some pairs of GPUs copy to each other directly, and why."""

    pairs: tuple[tuple[int, int], ...]
    """Places of two rows of the matrix, from 0."""
    access: Literal["yes", "no", "unknown"]
    why: str
    sources: tuple[Citation, ...] = ()


class SlotTopology(Document):
    """Distance between the GPUs as they would stand, in the words of ``nvidia-smi topo -m``.

    A card with several GPUs has as many rows: its slot is named once for each.
    """

    slots: tuple[str, ...]
    matrix: tuple[tuple[str, ...], ...]
    gpus: tuple[str, ...] = ()
    """The card of each row."""
    legend: dict[str, str] = Field(default_factory=dict)
    """Meaning of the words that the matrix uses."""
    peer_access: tuple[PeerAccess, ...] = ()
    means: tuple[Condition, ...] = ()
    """What follows for the use of the cards, in sentences."""


class Driver(Document):
    """Branches of NVIDIA's Linux driver that drive all the cards."""

    from_: str | None = Field(default=None, alias="from")
    """None: older than any that matters."""
    last: str | None = None
    """None: current drivers do."""
    flavour: Literal["open", "proprietary", "either"]
    """Of the kernel modules."""


class SoftwareStack(Document):
    """The software that all the cards share, those that are fitted among them."""

    driver: Driver | None = None
    tensorflow: str | None = None
    """The newest official release with machine code for all the cards."""
    cuda: str | None = None
    cudnn: str | None = None
    python: tuple[str, str] | None = None
    """First and last version that the release is made for."""
    pip: str | None = None
    """The line that installs it."""
    cpu_needs: tuple[str, ...] = ()
    """What the release asks of the processor."""
    why_none: str | None = None
    """Why there is no driver, or no official TensorFlow, for all the cards."""
    sources: tuple[Citation, ...] = ()


class Item(Document):
    """Something to order, or that may already be fitted."""

    item: str
    part_numbers: tuple[str, ...]
    quantity: int
    need: Literal["must", "maybe-fitted"]
    why: str
    note: str | None = None
    sources: tuple[Citation, ...] = ()

    @property
    def other_numbers(self) -> str:
        """Part numbers, without those that are part of its name."""
        return ", ".join(number for number in self.part_numbers if number not in self.item)


class Answer(Document):
    """What comes out if a question is answered so."""

    option: str | None = None
    """The words of a command line that state the answer, such as ``--cpus 2``; None: no option says it."""
    verdict: AdviceVerdict | None = None
    max_count: int | None = None
    """Most cards then; None where the answer decides about the cards asked for alone."""


class Question(Document):
    """Something to ask the seller, and what each answer means."""

    ask: str
    how: str
    if_yes: str
    if_no: str
    yes: Answer = Answer()
    no: Answer = Answer()


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
    """Most cards with no fail; where no card is asked for, most that are known to find a slot."""
    perhaps: int | None = None
    """Where no card is asked for: most if all that is not known of the slots turns out well."""
    cpus: int
    options: dict[str, str]


class Claim(Document):
    """When the sentence ``it takes only one GPU`` is right, and when it is not."""

    text: str
    right_when: tuple[Scenario, ...] = ()
    wrong_when: tuple[Scenario, ...] = ()
    not_known_when: tuple[Scenario, ...] = ()
    """More than one finds a slot, and something that decides is not known."""


class KnownBuild(Document):
    """A build that somebody runs, or failed with."""

    cards: tuple[str, ...]
    count: int
    works: bool
    slots: tuple[str, ...] = ()
    note: str | None = None
    sources: tuple[Citation, ...] = ()


class PricedItem(Document):
    """A card or a thing to order, with what it costs."""

    item: str
    quantity: int
    each: float
    total: float
    need: Literal["must", "maybe-fitted"]


class Price(Document):
    """What the cards and the shopping list cost, in the currency of the prices that were given."""

    total: float
    """All that has a price."""
    total_if_fitted: float
    """Without what may be fitted already."""
    priced: tuple[PricedItem, ...]
    unpriced: tuple[str, ...]


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
    software: SoftwareStack | None = None
    shopping_list: tuple[Item, ...]
    questions: tuple[Question, ...]
    conditions: tuple[Condition, ...]
    alternatives: tuple[Alternative, ...]
    scenarios: tuple[Scenario, ...] = ()
    notes: tuple[Condition, ...] = ()
    fitted: tuple[FittedCard, ...] = ()
    """Cards that a probe found in the machine; those asked for are in addition to them."""
    room: tuple[RoomLeft, ...] = ()
    """Of each kind asked for, or fitted where none is; empty where no machine was probed."""
    needs: str | None = None
    """In a few words: what it takes, what is not known, or what is in the way."""
    claim: Claim | None = None
    known_builds: tuple[KnownBuild, ...] = ()
    seller_message: str | None = None
    """Ready to paste; None where there is nothing to ask."""
    price: Price | None = None
