"""What was not read, in few lines: a person wants the steps, not the list of fields."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpucheck.text import say

if TYPE_CHECKING:
    from gpucheck.facts import Gap

NOT_SHOWN = frozenset({"onboard", "memory_devices"})
"""Facts that no report for people shows; their gaps stand in the JSON."""
ON_REQUEST = frozenset({"power", "firmware_settings"})
"""Facts that only a BMC tells. Most people ask none: that they did not is no news to them."""

_OF_CARD = re.compile(r"gpus\.([0-9a-f:.]+)\.(\w+)")


def grouped(gaps: Iterable[Gap]) -> list[tuple[str, Gap]]:
    """Facts that one step fills, with the gap that names it. The same fact of several cards is told
    once, with the step for the first of them."""
    groups: dict[tuple[str, str], list[Gap]] = {}
    for gap in gaps:
        not_asked = gap.fact in ON_REQUEST and gap.reason == "not-requested"
        if gap.fact not in NOT_SHOWN and not not_asked:
            of_card = _OF_CARD.fullmatch(gap.fact)
            groups.setdefault((gap.reason, of_card[2] if of_card else gap.how), []).append(gap)
    return [(_names(members), members[0]) for members in groups.values()]


def _names(members: list[Gap]) -> str:
    facts = list(dict.fromkeys(gap.fact for gap in members))
    of_card = _OF_CARD.fullmatch(facts[0])
    if of_card and len(facts) > 1:
        return say("{fact} of {count} cards", fact=of_card[2], count=len(facts))
    return ", ".join(facts)
