"""The sentence that sellers say, ``it takes only one GPU``: when it is right, and when it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpucheck.fit.plans import best_verdict
from gpucheck.fit.report import Claim, Scenario
from gpucheck.fit.request import Request
from gpucheck.text import say


def claim(request: Request, scenarios: Sequence[Scenario]) -> Claim | None:
    """What becomes of the claim in each way the machine may stand; None where that is stated already.

    Args:
        request: The model, and one kind of card or none.
        scenarios: The answer for each way, the machine as shipped with one CPU first.
    """
    if not scenarios:
        return None
    right = tuple(one for one in scenarios if _at_best(one) <= 1)
    more = tuple(one for one in scenarios if _at_best(one) > 1)
    wrong = tuple(one for one in more if _known(request, one))
    open_ones = tuple(one for one in more if one not in wrong)
    return Claim(
        text=_text(request, right, wrong, open_ones),
        right_when=right,
        wrong_when=wrong,
        not_known_when=open_ones,
    )


def _at_best(scenario: Scenario) -> int:
    return scenario.max_count if scenario.perhaps is None else scenario.perhaps


def _known(request: Request, scenario: Scenario) -> bool:
    """Whether more than one card is known to go in. Without cards the slots that are known count."""
    if not request.new:
        return scenario.max_count > 1
    orders = (replace(request.new[0], count=scenario.max_count),)
    stated = replace(request.with_new(orders), cpus=scenario.cpus, options=scenario.options)
    return best_verdict(stated) in ("fits", "fits-with-changes")


def _text(request: Request, right: Sequence[Scenario], wrong: Sequence[Scenario], open_ones: Sequence[Scenario]) -> str:
    one = [scenario for scenario in right if _at_best(scenario) == 1]
    none = [scenario for scenario in right if _at_best(scenario) == 0]
    more = wrong or open_ones
    fields: dict[str, object] = {
        "model": request.server.model,
        "card": request.new[0].wanted.name if request.new else say("double-wide card"),
        "cards": request.new[0].wanted.name if request.new else say("double-wide cards"),
        # The first is the machine as it is most often sold.
        "one": one[0].given if one else None,
        "none": none[0].given if none else None,
    }
    if more:
        # What is known comes first; what is not is told at its best.
        best = max(more, key=lambda scenario: (scenario.max_count if wrong else 0, _at_best(scenario)))
        fields |= {"more": best.given, "most": best.max_count if wrong else _at_best(best)}
    template = _TEMPLATES[bool(one), "wrong" if wrong else "open" if open_ones else None]
    text = say(template, **fields)
    if none and (one or more):
        return say("{claim} With {none} it takes none at all.", claim=text, none=fields["none"])
    return text


_TEMPLATES: dict[tuple[bool, str | None], str] = {
    (True, "wrong"): 'The claim "only one GPU" is right with {one}, and wrong with {more}: that takes {most} {cards}.',
    (True, "open"): 'The claim "only one GPU" is right with {one}; whether it is wrong with {more}, which has at '
    "most {most} slots for {cards}, is not known.",
    (True, None): 'The claim "only one GPU" is right for the {model}, however it stands: at most one {card}.',
    (False, "wrong"): 'The claim "only one GPU" is wrong for the {model}: with {more} it takes {most} {cards}.',
    (False, "open"): 'Whether the claim "only one GPU" is wrong for the {model} is not known: with {more} it has at '
    "most {most} slots for {cards}.",
    (False, None): 'Even the claim "only one GPU" is too good for the {model}: no {card} is known to go in.',
}
