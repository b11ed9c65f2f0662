"""``It takes only one GPU``: when the sentence is right, and when it is not."""

from __future__ import annotations

import pytest

from gpucheck.fit.claim import claim
from gpucheck.fit.report import Claim, Scenario
from gpucheck.fit.request import Request

from .ask import ask, server


def of(model: str, *cards: str) -> Claim:
    found = ask(model, *cards).claim
    assert found is not None
    return found


def built(scenarios: tuple[Scenario, ...]) -> set[tuple[int, str | None]]:
    return {(one.cpus, one.options.get("riser3")) for one in scenarios}


@pytest.mark.parametrize("cards", [(), ("P40:2",), ("P40",)])
def test_r730_takes_two_only_with_both_cpus_and_the_alternate_riser(cards: tuple[str, ...]) -> None:
    found = of("R730", *cards)
    assert built(found.wrong_when) == {(2, "alternate")}
    assert built(found.right_when) == {(1, "default"), (1, "alternate"), (2, "default")}
    assert found.not_known_when == ()
    assert 'The claim "only one GPU" is right with 1 CPU, alternate riser 3' in found.text
    assert "and wrong with 2 CPUs, alternate riser 3" in found.text
    assert found.text.endswith("With 1 CPU, standard riser 3 with two slots (6 and 7, x8 each) it takes none at all.")


def test_every_way_of_standing_is_told_once() -> None:
    for model in ("R730", "T630", "4028GR-TR", "DL380 Gen10"):
        advice = ask(model, "T4")
        assert advice.claim is not None
        told = [*advice.claim.right_when, *advice.claim.wrong_when, *advice.claim.not_known_when]
        assert sorted(told, key=str) == sorted(advice.scenarios, key=str)
        assert all(one.max_count <= 1 for one in advice.claim.right_when)
        assert all(one.max_count > 1 for one in (*advice.claim.wrong_when, *advice.claim.not_known_when))


def test_wrong_is_said_only_where_so_many_are_known_to_fit() -> None:
    found = of("4028GR-TR2", "P40")
    assert found.wrong_when == ()
    assert found.text.startswith('Whether the claim "only one GPU" is wrong for the SYS-4028GR-TR2 is not known')
    for one in of("R730", "P40").wrong_when:
        again = ask("R730", f"P40:{one.max_count}", cpus=one.cpus, risers=(f"3={one.options['riser3']}",))
        assert again.verdict == "fits-with-changes"


def test_claim_of_a_machine_that_is_stated_is_not_discussed() -> None:
    assert ask("R730", "P40", cpus=2).claim is None
    assert ask("R730", "P40", "T4").claim is None


def scenario(count: int) -> Scenario:
    return Scenario(given=f"{count} slots", max_count=count, cpus=1, options={})


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((0,), 'Even the claim "only one GPU" is too good for the Box: no double-wide card is known to go in.'),
        ((1, 1), 'The claim "only one GPU" is right for the Box, however it stands: at most one double-wide card.'),
        ((2, 3), 'The claim "only one GPU" is wrong for the Box: with 3 slots it takes 3 double-wide cards.'),
        (
            (1, 2),
            'The claim "only one GPU" is right with 1 slots, and wrong with 2 slots: that takes 2 double-wide cards.',
        ),
        (
            (0, 2),
            'The claim "only one GPU" is wrong for the Box: with 2 slots it takes 2 double-wide cards. With 0 slots it '
            "takes none at all.",
        ),
    ],
)
def test_sentences(counts: tuple[int, ...], text: str) -> None:
    found = claim(Request(server()), [scenario(count) for count in counts])
    assert found is not None
    assert found.text == text
