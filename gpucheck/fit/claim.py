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
    right = tuple(one for one in scenarios if one.max_count <= 1)
    more = tuple(one for one in scenarios if one.max_count > 1)
    wrong = tuple(one for one in more if _known(request, one))
    open_ones = tuple(one for one in more if one not in wrong)
    return Claim(
        text=_text(request, right, wrong, open_ones),
        right_when=right,
        wrong_when=wrong,
        not_known_when=open_ones,
    )


def _known(request: Request, scenario: Scenario) -> bool:
    """Whether nothing essential is unknown about so many cards. Without cards only slots that are known count."""
    if not request.new:
        return True
    orders = (replace(request.new[0], count=scenario.max_count),)
    stated = replace(request.with_new(orders), cpus=scenario.cpus, options=scenario.options)
    return best_verdict(stated) in ("fits", "fits-with-changes")


def _text(
    request: Request, right: Sequence[Scenario], wrong: Sequence[Scenario], open_ones: Sequence[Scenario]
) -> str:
    fields: dict[str, object] = {
        "model": request.server.model,
        "card": request.new[0].wanted.name if request.new else say("double-wide card"),
    }
    if right:
        # The first is the machine as it is most often sold.
        fields |= {"right": right[0].given, "few": max(one.max_count for one in right)}
    if wrong or open_ones:
        most = max(wrong or open_ones, key=lambda one: one.max_count)
        fields |= {"wrong": most.given, "most": most.max_count}
    if right and wrong:
        template = (
            'The claim "only one GPU" is right with {right}, and wrong with {wrong}: that takes {most} × {card}.'
            if fields["few"]
            else 'The claim "only one GPU" is too good for {right}, which takes no {card}, and wrong with {wrong}: '
            "that takes {most}."
        )
    elif right and open_ones:
        template = (
            'The claim "only one GPU" is right with {right}; whether it is wrong with {wrong}, which has slots for '
            "{most} × {card}, is not known."
        )
    elif right:
        template = (
            'The claim "only one GPU" is right for a {model}, however it stands: at most {few} × {card}.'
            if fields["few"]
            else 'Even the claim "only one GPU" is too good for a {model}: no {card} is known to go in.'
        )
    elif wrong:
        template = 'The claim "only one GPU" is wrong for a {model}: with {wrong} it takes {most} × {card}.'
    else:
        template = (
            'Whether the claim "only one GPU" is wrong for a {model} is not known: with {wrong} it has slots for '
            "{most} × {card}."
        )
    return say(template, **fields)
