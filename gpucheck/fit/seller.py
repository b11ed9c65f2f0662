"""What each answer to a question leads to, and the message to the seller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpucheck.fit.advise import capacity, verdict_without_cards
from gpucheck.fit.claim import claim
from gpucheck.fit.plans import Plan, best_plan, best_verdict, most_cards
from gpucheck.fit.report import Advice, AdviceVerdict, Answer, Item, Question, Scenario
from gpucheck.fit.request import Request, parse_psus, resolve_option
from gpucheck.text import plural, say


def finished(request: Request, advice: Advice) -> Advice:
    """The advice on one model with what is for people: what answers lead to, the claim, the message to the seller."""
    plan = best_plan(request) if request.new else None
    questions = tuple(_answered(request, plan, advice.scenarios, question) for question in advice.questions)
    return advice.model_copy(
        update={
            "questions": questions,
            "claim": claim(request, advice.scenarios),
            "seller_message": seller_message(advice),
        }
    )


# --- answers --------------------------------------------------------------------------------------


def stated(request: Request, option: str) -> Request:
    """The request with one more option stated, such as ``--cpus 2``. UsageError for a value that it refuses."""
    name, _, value = option.partition(" ")
    match name:
        case "--cpus":
            return replace(request, cpus=int(value))
        case "--cpu-tdp":
            return replace(request, cpu_watts=int(value))
        case "--psu":
            return replace(request, psus=parse_psus(value))
        case _:
            key, choice = resolve_option(request.server, value, riser=name == "--riser")
            return replace(request, options={**request.options, key: choice})


def _answered(request: Request, plan: Plan | None, scenarios: Sequence[Scenario], question: Question) -> Question:
    yes, no = question.yes, question.no
    if yes.option is not None:
        yes = _stated(request, scenarios, yes)
    elif plan is not None and yes.verdict is None:
        yes = yes.model_copy(update={"verdict": _as_if(plan, question)})
    if no.option is not None:
        no = _stated(request, scenarios, no)
    elif plan is not None and no.verdict is None:
        no = no.model_copy(update={"verdict": "does-not-fit"})
    return question.model_copy(
        update={
            "yes": yes,
            "no": no,
            "if_yes": _then(question.if_yes, yes, bool(request.new)),
            "if_no": _then(question.if_no, no, bool(request.new)),
        }
    )


def _stated(request: Request, scenarios: Sequence[Scenario], answer: Answer) -> Answer:
    """What the advisor answers once the option is given.

    The most cards are counted where the scenarios tell them, and where fewer fit than are asked for.
    """
    told = stated(request, answer.option or "")
    if not request.new:
        room = capacity(told)
        return answer.model_copy(update={"verdict": verdict_without_cards(room), "max_count": room[0].max})
    verdict = best_verdict(told)
    counts = [
        scenario.max_count
        for scenario in scenarios
        if told.cpus in (None, scenario.cpus)
        and all(scenario.options[key] == choice for key, choice in told.options.items())
    ]
    most: int | None = None
    if told.cpus != request.cpus or told.options != request.options:
        most = max(counts) if counts else most_cards(told)
    elif verdict == "does-not-fit":
        most = most_cards(told)
    return answer.model_copy(update={"verdict": verdict, "max_count": most})


def _as_if(plan: Plan, question: Question) -> AdviceVerdict:
    """The verdict if what the question asks about were all right."""
    rest = [ruling for ruling in plan.rulings if all(one.ask != question.ask for one in ruling.questions)]
    outcomes = {ruling.check.outcome for ruling in rest}
    if "fail" in outcomes:
        return "does-not-fit"
    if any(ruling.essential and ruling.check.outcome == "unknown" for ruling in rest):
        return "unknown"
    return "fits-with-changes" if "change" in outcomes else "fits"


_THEN: dict[AdviceVerdict, str] = {
    "fits": "{what} Then the cards fit.",
    "fits-with-changes": "{what} Then the cards fit with changes.",
    "does-not-fit": "{what} Then the cards do not fit.",
    "unknown": "{what} Then it depends on the other questions.",
}

_THEN_COUNTED: dict[AdviceVerdict, str] = {
    "fits": "{what} Then the cards fit, and at most {most} do.",
    "fits-with-changes": "{what} Then the cards fit with changes, and at most {most} do.",
    "does-not-fit": "{what} Then the cards do not fit: at most {most}.",
    "unknown": "{what} Then it depends on the other questions; at most {most}.",
}


def _then(what: str, answer: Answer, with_cards: bool) -> str:
    if answer.verdict is None:
        return what
    if not with_cards:
        template = plural(
            answer.max_count or 0,
            "{what} Then it has a slot for one double-wide card.",
            "{what} Then it has slots for {most} double-wide cards.",
        )
        return say(template, what=what, most=answer.max_count)
    templates = _THEN if answer.max_count is None else _THEN_COUNTED
    if answer.max_count == 0:
        return say("{what} Then none of the cards fits.", what=what)
    return say(templates[answer.verdict], what=what, most=answer.max_count)


# --- the message ----------------------------------------------------------------------------------


def seller_message(advice: Advice) -> str | None:
    """Questions and things to order in words that a seller can answer; None where there is nothing to ask."""
    asked = [question.ask for question in advice.questions]
    items = [item for item in advice.shopping_list if not any(item.item in ask for ask in asked)]
    if not advice.questions and not items:
        return None
    cards = " + ".join(f"{one['count']} × {_name(advice, one['gpu'])}" for one in advice.request["gpus"])
    lines = [
        say("Hello, I would like to put {cards} into this {model}. Before I buy:", cards=cards, model=advice.model)
        if cards
        else say("Hello, I would like to put GPUs into this {model}. Before I buy:", model=advice.model)
    ]
    for number, question in enumerate(advice.questions, 1):
        lines += [f"{number}. {question.ask}", say("   How to tell: {how}", how=question.how)]
    if items:
        lines += ["", say("Is any of this in it, or can you add it?"), *map(_line, items)]
    lines += ["", say("Pictures of the open machine and of its labels would answer most of it. Thank you!")]
    return "\n".join(lines)


def _name(advice: Advice, gpu: str) -> str:
    return next((place.name for place in advice.placement if place.gpu == gpu), gpu)


def _line(item: Item) -> str:
    parts = item.other_numbers
    template = "- {count} × {item} (part number {parts})" if parts else "- {count} × {item}"
    return say(template, count=item.quantity, item=item.item, parts=parts)
