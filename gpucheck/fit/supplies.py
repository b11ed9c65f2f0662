"""Vendors' own rules on how many cards so many power supplies carry: tables and shares. They replace our sum."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gpucheck.entries import PsuShare, PsuTable
from gpucheck.fit.case import Case
from gpucheck.fit.request import PsuPlan
from gpucheck.fit.slots import vendor_read
from gpucheck.power import LOW_LINE_BELOW_VOLTS
from gpucheck.text import plural, say


@dataclass(frozen=True, slots=True)
class Rule:
    """What a vendor's rule says of these cards with these supplies."""

    allowed: bool
    text: str
    src: tuple[str, ...]


def rule(case: Case, plan: PsuPlan) -> Rule | None:
    """What the vendor's own table or share says; None where there is none, or it does not speak of this.

    Tables speak of full mains and of no wish for redundancy; a share counts the supplies that must carry the load.
    """
    power, request = case.server.power, case.request
    volts = request.input_volts
    if volts is not None and volts < LOW_LINE_BELOW_VOLTS:
        return None
    if request.redundancy in (None, "none"):
        for row in power.table:
            speaks = (row.supplies, row.watts) == (plan.count, plan.watts) and vendor_read(case.server, row.src)
            if speaks and (found := _by_table(case, row)) is not None:
                return found
    if power.share is not None and vendor_read(case.server, power.share.src):
        return _by_share(case, power.share, plan)
    return None


def _watts(case: Case) -> list[int] | None:
    """Watts of every card; None where one is not known."""
    found: list[int] = []
    for order in case.request.orders:
        if order.wanted.power is None:
            return None
        found += [order.wanted.power.watts] * order.count
    return found


def _by_table(case: Case, row: PsuTable) -> Rule | None:
    cards, classes = _watts(case), sorted(int(watts) for watts in row.most)
    if cards is None or any(watts > classes[-1] for watts in cards):
        return None
    counts = Counter(str(next(most for most in classes if watts <= most)) for watts in cards)
    fields = {"supplies": row.supplies, "watts": row.watts}
    if len(counts) == 1:
        kind, count = next(iter(counts.items()))
        most = row.most[kind]
        text = say(
            plural(
                most,
                "The vendor's table: with {supplies} × {watts} W supplies at most one card of up to {kind} W; {count} "
                "wanted.",
                "The vendor's table: with {supplies} × {watts} W supplies at most {most} cards of up to {kind} W; "
                "{count} wanted.",
            ),
            most=most,
            kind=kind,
            count=count,
            **fields,
        )
        return Rule(count <= most, text, row.src)
    if not row.mixed:
        return None
    allowed = any(all(mix.get(kind, 0) >= count for kind, count in counts.items()) for mix in row.mixed)
    wanted = " + ".join(f"{count} × {kind} W" for kind, count in sorted(counts.items(), key=lambda item: int(item[0])))
    template = (
        "The vendor's table: {supplies} × {watts} W supplies carry {wanted}."
        if allowed
        else "The vendor's table: {supplies} × {watts} W supplies do not carry {wanted} together."
    )
    return Rule(allowed, say(template, wanted=wanted, **fields), row.src)


def _by_share(case: Case, share: PsuShare, plan: PsuPlan) -> Rule | None:
    cards = _watts(case)
    if cards is None:
        return None
    counted = [watts for watts in cards if watts >= share.cards_from_watts]
    spare = {"none": 0, "n+1": 1, "n+n": (plan.count + 1) // 2}[case.request.redundancy or "none"]
    active = max(plan.count - spare, 0)
    if counted and active < share.supplies_min:
        text = say(
            "The vendor's rule: cards of {from_watts} W and more need {least} power supplies; {count} are there.",
            from_watts=share.cards_from_watts,
            least=share.supplies_min,
            count=active,
        )
        return Rule(False, text, share.src)
    most = int(plan.watts * active / share.divisor)
    text = say(
        "The vendor's rule: {count} × {watts} W supplies carry cards of {most} W in all; these draw {total} W.",
        count=active,
        watts=plan.watts,
        most=most,
        total=sum(counted),
    )
    return Rule(sum(counted) <= most, text, share.src)
