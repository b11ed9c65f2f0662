"""The search: every way in which the server may stand, the cards in their best places, and the best of them all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from gpucheck.findings import Check
from gpucheck.fit.case import Case, Ruling, needs_that_apply
from gpucheck.fit.report import AdviceVerdict
from gpucheck.fit.request import Request
from gpucheck.fit.rulings import failing, lowering, rulings
from gpucheck.fit.slots import Build, Room, active_rows

VERDICT_ORDER: dict[AdviceVerdict, int] = {
    "does-not-fit": 0,
    "unknown": 1,
    "fits-with-changes": 2,
    "fits": 3,
}


@dataclass(frozen=True)
class Plan:
    """One build with the cards in their best places, and everything that was checked about it."""

    case: Case

    @cached_property
    def rulings(self) -> tuple[Ruling, ...]:
        """All checks with what follows from them."""
        return tuple(rulings(self.case))

    @property
    def checks(self) -> tuple[Check, ...]:
        """The checks alone, each said once."""
        return tuple(dict.fromkeys(ruling.check for ruling in self.rulings))

    @property
    def left_out(self) -> int:
        """Cards that find no slot."""
        return self.case.left_out

    @property
    def fails(self) -> bool:
        """Whether any check fails; looks no further than the first."""
        short = self.left_out > 0 and not self.case.request.may_have_more_slots
        return short or any(ruling.check.outcome == "fail" for ruling in failing(self.case))

    @property
    def verdict(self) -> AdviceVerdict:
        """Any fail: does not fit. An essential unknown: unknown. Any change: fits with changes."""
        return self.better_than("does-not-fit")

    def better_than(self, known: AdviceVerdict) -> AdviceVerdict:
        """The better of a known verdict and this plan's; looks no further than to where it cannot be the better."""
        if self.left_out and not self.case.request.may_have_more_slots:
            return known
        worst = _lowest("fits", failing(self.case), known)
        worst = _lowest(worst, lowering(self.case), _best(known, "unknown"))
        return _best(worst, known)

    @property
    def cost(self) -> tuple[object, ...]:
        """Less is better among plans that leave out as many: does it fit, what is not known, CPUs that are wanted,
        changes, distance."""
        counts = [ruling.check.outcome for ruling in self.rulings]
        unknown = sum(ruling.essential and ruling.check.outcome == "unknown" for ruling in self.rulings)
        # Where cards find no slot, the fuller machine shows best what keeps them out.
        cpus = self.case.build.cpus
        missing = sum((need.cpus or 1) > cpus for need in needs_that_apply(self.case))
        return (
            counts.count("fail"),
            unknown,
            -cpus if self.left_out else 0,
            missing,
            counts.count("change"),
            cpus,
            self.case.placement.cost,
        )


def _best(one: AdviceVerdict, other: AdviceVerdict) -> AdviceVerdict:
    return max(one, other, key=VERDICT_ORDER.__getitem__)


def _lowest(verdict: AdviceVerdict, rulings: Iterator[Ruling], floor: AdviceVerdict) -> AdviceVerdict:
    """What rulings leave of a verdict, down to where it no longer matters."""
    for ruling in rulings:
        if VERDICT_ORDER[verdict] <= VERDICT_ORDER[floor]:
            break
        verdict = min(verdict, _at_best(ruling), key=VERDICT_ORDER.__getitem__)
    return verdict


def _at_best(ruling: Ruling) -> AdviceVerdict:
    """The best verdict that a plan with this ruling can have."""
    match ruling.check.outcome:
        case "fail":
            return "does-not-fit"
        case "unknown" if ruling.essential:
            return "unknown"
        case "change":
            return "fits-with-changes"
    return "fits"


def builds(request: Request) -> Iterator[Build]:
    """Every way in which the server may stand that agrees with what the request states."""
    server = request.server
    cpus = [request.cpus] if request.cpus is not None else range(1, server.sockets.count + 1)
    choices = [
        [(key, request.options[key])] if key in request.options else [(key, name) for name in option.choices]
        for key, option in server.options.items()
    ]
    standing = {order.slot for order in request.fitted if order.slot is not None}
    for count in cpus:
        for combination in itertools.product(*choices):
            build = Build(count, dict(combination), request.occupied, count == server.sockets.count, request.kept)
            if not standing or standing <= {row.id for row in active_rows(server, build)}:
                yield build


def _plan(request: Request, room: Room) -> Plan:
    return Plan(Case(request, room.build, room.best(request.orders)))


def _rooms(request: Request) -> Iterator[Room]:
    return (Room(request.server, build) for build in builds(request))


def best_plan(request: Request) -> Plan:
    """The best plan for exactly the cards of the request: most cards in slots, then least cost."""
    plans = [_plan(request, room) for room in _rooms(request)]
    fewest = min(plan.left_out for plan in plans)
    return min((plan for plan in plans if plan.left_out == fewest), key=lambda plan: plan.cost)


def best_verdict(request: Request) -> AdviceVerdict:
    """The verdict of :func:`best_plan`, found without weighing the plans against each other."""
    best: AdviceVerdict = "does-not-fit"
    for room in _rooms(request):
        best = _plan(request, room).better_than(best)
    return best


def most_cards(request: Request) -> int:
    """The most cards without a *fail*: of the one kind that is asked for, or of the mix as it stands."""
    return max(most_in(request, build) for build in builds(request))


def most_in(request: Request, build: Build) -> int:
    """The most cards without a *fail* in one build.

    A vendor's rule may allow three but not two; so every count that finds slots is looked at, not only up to the
    first that fails.
    """
    most = 0
    room = Room(request.server, build)
    slots = len(room.rows)
    if len(request.new) == 1 and request.new[0].slot is None:
        for count in range(1, len(room.places(request.new[0])) + 1):
            plan = _plan(_counted(request, count), room)
            if plan.left_out:
                break
            if not plan.fails:
                most = count
        return most
    ranges = [range(min(order.count, slots) + 1) for order in request.new]
    mixes = [counts for counts in itertools.product(*ranges) if 0 < sum(counts) <= slots]
    for counts in sorted(mixes, key=sum, reverse=True):
        orders = tuple(replace(o, count=n) for o, n in zip(request.new, counts, strict=True) if n)
        if not _plan(request.with_new(orders), room).fails:
            return sum(counts)
    return most


def _counted(request: Request, count: int) -> Request:
    return request.with_new((replace(request.new[0], count=count),))


def verdicts(request: Request, counts: Iterable[int]) -> tuple[tuple[int, AdviceVerdict, int], ...]:
    """What :func:`~gpucheck.fit.advise.advise` answers for several counts of one card, without its sentences.

    Args:
        request: One kind of card, in no slot of its own; its count does not matter.
        counts: How many of it.

    Returns:
        For each count: the count, the verdict, and the most cards that the machine takes.
    """
    best: dict[int, AdviceVerdict] = {}
    asked: dict[int, Request] = {}
    for room in _rooms(request):
        for count in range(1, len(room.places(request.new[0])) + 1):
            if count not in asked:
                asked[count] = _counted(request, count)
            plan = _plan(asked[count], room)
            if plan.left_out:
                break
            best[count] = plan.better_than(best.get(count, "does-not-fit"))
    most = max((count for count, verdict in best.items() if verdict != "does-not-fit"), default=0)
    return tuple((count, best.get(count, "does-not-fit"), most) for count in counts)
