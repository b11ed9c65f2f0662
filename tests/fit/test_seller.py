"""Questions to the seller: an answer leads to what it is said to lead to, and the message asks all of them."""

from __future__ import annotations

from typing import Any

import pytest
from catalog.entries import CARD, SERVER, changed

from gpucheck.catalog import Catalog
from gpucheck.entries import Card, Server
from gpucheck.fit.advise import advise
from gpucheck.fit.report import Advice, Answer, Question
from gpucheck.fit.request import Order, PsuPlan, Request, Wanted
from gpucheck.fit.seller import finished, seller_message

from .ask import ask

ASKED = (
    ("R730", "P40:2"),
    ("R730", "P40:1"),
    ("R730", "3090"),
    ("R720", "K80"),
    ("T630", "P40:4"),
    ("DL380 Gen9", "P40"),
    ("DL380 Gen10", "T4:2"),
    ("RH2288H V3", "T4:2"),
    ("4028GR-TR", "1080ti:8"),
    ("SR650", "V100"),
    ("C4130", "P100:4"),
)


def stated(option: str) -> dict[str, Any]:
    """An option of the command line as a question to the advisor."""
    name, _, value = option.partition(" ")
    match name:
        case "--cpus":
            return {"cpus": int(value)}
        case "--cpu-tdp":
            return {"cpu_watts": int(value)}
        case "--psu":
            return {"psu": value}
        case "--riser":
            return {"risers": (value,)}
        case "--option":
            return {"options": (value,)}
    raise AssertionError(option)


def answers(advice: Advice) -> list[tuple[Question, Answer]]:
    """Every answer that an option states."""
    both = [(question, answer) for question in advice.questions for answer in (question.yes, question.no)]
    return [(question, answer) for question, answer in both if answer.option is not None]


@pytest.mark.parametrize(("model", "cards"), ASKED)
def test_answer_leads_to_what_it_says(model: str, cards: str) -> None:
    advice = ask(model, cards)
    for question, answer in answers(advice):
        again = ask(model, cards, **stated(answer.option or ""))
        assert answer.verdict == again.verdict, (question.ask, answer)
        assert answer.max_count in (None, again.max_count), (question.ask, answer)


def test_answers_change_the_verdict() -> None:
    advice = ask("R730", "P40:2")
    led_to = {answer.option: (answer.verdict, answer.max_count) for _, answer in answers(advice)}
    assert led_to["--cpus 2"] == led_to["--riser 3=alternate"] == ("fits-with-changes", 2)
    assert led_to["--cpus 1"] == led_to["--riser 3=default"] == ("does-not-fit", 1)
    cpus = advice.questions[0]
    assert cpus.if_yes.endswith("Then the cards fit with changes, and at most 2 do.")
    assert cpus.if_no.endswith("Then the cards do not fit: at most 1.")


@pytest.mark.parametrize(("count", "given"), [(2, {"cpus": 1}), (3, {})])
def test_plan_that_fails_asks_nothing(count: int, given: dict[str, Any]) -> None:
    """It was tried in every way the machine may stand: no answer would save it."""
    advice = ask("R730", f"P40:{count}", **given)
    assert advice.verdict == "does-not-fit"
    assert advice.questions == ()
    assert advice.seller_message is None


@pytest.mark.parametrize("model", ["R730", "DL380 Gen9", "RH2288H V3", "T630"])
def test_without_cards_answers_change_the_room(model: str) -> None:
    for _, answer in answers(ask(model)):
        again = ask(model, **stated(answer.option or ""))
        assert (answer.verdict, answer.max_count) == (again.verdict, again.capacity[0].max)


def test_every_question_says_what_both_answers_lead_to() -> None:
    for model, cards in ASKED:
        advice = ask(model, cards)
        for question in advice.questions:
            assert question.yes.verdict is not None
            assert question.no.verdict is not None
            assert " Then " in question.if_yes
            assert " Then " in question.if_no


# --- answers that no option states --------------------------------------------------------------


def told(server: dict[str, Any], count: int = 1, card: dict[str, Any] = CARD, **stated: Any) -> Advice:
    entry = Card.model_validate(card)
    orders = (Order(Wanted(entry), count),)
    catalog = Catalog({}, {entry.id: card})
    request = Request(Server.model_validate(server), orders, cpus=2, catalog=catalog, **stated)
    return finished(request, advise(request))


@pytest.mark.parametrize(
    ("path", "known", "less", "words"),
    [
        ("slots.{}.max_wide", 2, 1, "Is there room for a card of 2 slot widths at slot 1?"),
        ("slots.{}.length", "full", "half", "Is there room for a card of 267 mm behind slot 1?"),
        ("power.aux", SERVER["power"]["aux"], [], "Which GPU power cables"),
    ],
)
def test_answer_without_an_option_is_what_the_catalog_would_say(path: str, known: Any, less: Any, words: str) -> None:
    def built(value: Any) -> dict[str, Any]:
        return changed(SERVER, {path.format(slot): value for slot in (0, 1)})

    advice = told(built(None))
    assert advice.verdict == "unknown"
    (question,) = (question for question in advice.questions if question.ask.startswith(words))
    assert question.yes == Answer(verdict=told(built(known)).verdict)
    assert question.no == Answer(verdict="does-not-fit")
    assert told(built(less)).verdict in ("does-not-fit", "unknown")


def test_two_unknowns_depend_on_each_other() -> None:
    advice = told(changed(SERVER, {f"slots.{slot}.{key}": None for slot in (0, 1) for key in ("max_wide", "length")}))
    about = [question for question in advice.questions if question.ask.startswith("Is there room")]
    assert [question.yes.verdict for question in about] == ["unknown", "unknown"]
    assert about[0].if_yes.endswith("Then it depends on the other questions.")


# --- watts --------------------------------------------------------------------------------------


def test_question_about_the_cpus_names_the_watts_that_decide() -> None:
    """400 W for the CPUs and a base of at most 200 W, card of 200 W: each CPU may draw 50 W."""
    advice = told(SERVER, psus=PsuPlan(1, 500))
    (question,) = (question for question in advice.questions if question.ask.startswith("Are its CPUs"))
    assert question.ask == "Are its CPUs of at most 50 W (TDP) each?"
    assert (question.yes.option, question.yes.verdict) == ("--cpu-tdp 50", "fits-with-changes")
    assert (question.no.option, question.no.verdict) == ("--cpu-tdp 51", "unknown")
    assert told(SERVER, psus=PsuPlan(1, 500), cpu_watts=50).verdict == "fits-with-changes"
    known = told(SERVER, psus=PsuPlan(1, 500), cpu_watts=90)
    assert [question.ask for question in known.questions] == [
        "Does the machine draw at most 300 W under load without the cards asked for?"
    ]


# --- the message --------------------------------------------------------------------------------


def test_message_asks_everything_and_nothing_twice() -> None:
    advice = ask("R730", "P40:2")
    message = advice.seller_message
    assert message is not None
    assert message.startswith("Hello, I would like to put 2 × Tesla P40 into this Dell PowerEdge R730. Before I buy:")
    for number, question in enumerate(advice.questions, 1):
        assert f"{number}. {question.ask}" in message
        assert question.how in message
    for item in advice.shopping_list:
        assert message.count(item.item) == 1
        assert all(part in message for part in item.part_numbers) or f"Is this fitted: {item.item}?" in message
    assert not any(words in message for words in ("Then the cards", "None", "{", "--"))


def test_message_without_cards() -> None:
    message = ask("R730").seller_message
    assert message is not None
    assert "put GPUs into this Dell PowerEdge R730" in message
    assert "Is any of this in it" not in message


def test_no_message_where_nothing_is_to_be_asked() -> None:
    advice = told(changed(SERVER, {"power.cables": [], "power.aux": [{"at": "board", "plug": "pcie-8", "count": 2}]}))
    quiet = advice.model_copy(update={"questions": (), "shopping_list": ()})
    assert seller_message(quiet) is None
    assert ask(None, "P40").seller_message is None
