"""What ``nvidia-smi topo -m`` would show, which pairs copy directly, and what that means."""

from __future__ import annotations

from typing import Any

import pytest
from catalog.entries import SERVER

from gpucheck.catalog import Catalog
from gpucheck.fit.advise import advise
from gpucheck.fit.report import SlotTopology
from gpucheck.fit.request import Order, Request, Wanted

from .ask import ask, card, fit, server, shipped


def topology(model: str, *gpus: str, **stated: Any) -> SlotTopology:
    return ask(model, *gpus, **stated).topology


def access(found: SlotTopology) -> dict[str, int]:
    """Answers and how many pairs have each."""
    counts: dict[str, int] = {}
    for group in found.peer_access:
        counts[group.access] = counts.get(group.access, 0) + len(group.pairs)
    return counts


def means(found: SlotTopology) -> str:
    return " ".join(condition.text for condition in found.means)


def of_two(**changes: Any) -> SlotTopology:
    """Two example cards at one CPU, with the shipped rules on direct access."""
    one = card(**changes)
    slots = [{**row, "socket": 1} for row in SERVER["slots"]]
    box = server(sockets__type="LGA2011-3", slots=slots)
    return fit(box, (one, 2), catalog=Catalog({}, {one.id: one.model_dump(mode="json")}, shipped().software)).topology


def test_two_gpus_of_one_card_are_two_rows() -> None:
    found = topology("4028GR-TR", "K80:2")
    assert found.slots == ("8", "8", "9", "9")
    assert found.gpus == ("nvidia-tesla-k80",) * 4
    assert found.matrix[0] == ("X", "PIX", "PXB", "PXB")  # its own switch, then those of both cards and the server
    assert found.matrix[3] == ("PXB", "PXB", "PIX", "X")
    assert access(found) == {"yes": 6}
    assert "all pairs copy to each other directly" in means(found)


def test_cards_of_one_gpu_behind_one_switch() -> None:
    assert topology("4028GR-TR", "P40:2").matrix == (("X", "PIX"), ("PIX", "X"))


@pytest.mark.parametrize(
    ("model", "word"),
    [("7048GR-TR", "PHB"), ("ESC8000-G4", "NODE")],  # one root bus for each CPU; several
)
def test_cards_at_one_cpu(model: str, word: str) -> None:
    found = topology(model, "P40:2", cpus=1)
    assert found.matrix == (("X", word), (word, "X"))
    assert set(found.legend) == {"X", word}


def test_cards_across_the_cpus() -> None:
    found = topology("R730", "P40:2")
    assert found.matrix == (("X", "SYS"), ("SYS", "X"))
    (group,) = found.peer_access
    assert (group.access, group.pairs) == ("no", ((0, 1),))
    assert group.sources
    assert "go through the host's memory: all-reduce is slower, not broken" in means(found)
    assert "waits for the slowest pair" in means(found)


def test_family_without_direct_access() -> None:
    found = topology("ESC8000-G4", "4090:8")
    assert access(found) == {"no": 28}
    assert "no direct access over PCIe" in found.peer_access[0].why


def test_rule_for_a_family_covers_cards_without_their_own_word() -> None:
    found = of_two(family="geforce", software__compute_capability="8.9")
    assert access(found) == {"no": 1}
    assert "GeForce cards from Turing on" in found.peer_access[0].why
    assert access(of_two(family="geforce", software__compute_capability="6.1")) == {"unknown": 1}


def test_what_no_source_says_is_unknown() -> None:
    found = of_two()
    assert access(found) == {"unknown": 1}
    assert "nvidia-smi topo -p2p r" in means(found)
    assert access(of_two(peer_to_peer={"pcie": "yes", "src": ["brief"]})) == {"yes": 1}


def test_unlike_cards_and_unlike_makers() -> None:
    mixed = topology("4028GR-TR", "P40", "T4")
    assert access(mixed) == {"unknown": 1}
    assert "unlike cards" in mixed.peer_access[0].why
    assert "waits for the slowest card" in means(mixed)
    refused = topology("4028GR-TR", "P40", "RTX 2080 Ti")
    assert access(refused) == {"no": 1}  # one that has none is enough
    makers = topology("4028GR-TR", "P40", "MI25")
    assert access(makers) == {"no": 1}


def test_slots_of_unknown_owner() -> None:
    found = topology("X99-F8D", "P40:4")
    assert found.matrix[0] == ("X", "?", "?", "?")
    assert access(found) == {"unknown": 6}
    assert "?" in found.legend


def test_more_gpus_than_one_can_have_peers() -> None:
    assert "at most eight others" in means(topology("4028GR-TR2", "P40:10"))
    assert "at most eight others" not in means(topology("4028GR-TR2", "P40:9"))


def test_inference_needs_no_pairs() -> None:
    found = topology("R730", "P40:2", use="infer")
    assert found.matrix == (("X", "SYS"), ("SYS", "X"))
    assert [condition.text for condition in found.means] == [
        "For inference each GPU works on its own: how far apart they stand matters little."
    ]


def test_one_gpu_has_nothing_to_say() -> None:
    found = topology("R730", "P40")
    assert (found.matrix, found.peer_access, found.means) == ((("X",),), (), ())


def test_without_a_catalog_of_rules_nothing_is_made_up() -> None:
    found = fit(server(), (card(), 2)).topology
    assert found.matrix == (("X", "SYS"), ("SYS", "X"))
    assert access(found) == {"unknown": 1}


def test_fitted_cards_have_their_rows() -> None:
    p40 = Wanted(shipped().card("nvidia-tesla-p40"))
    orders = (Order(p40, 1, slot="4", fitted=True), Order(p40, 1))
    r730 = shipped().server("dell-poweredge-r730")
    request = Request(server=r730, orders=orders, cpus=2, options={"riser3": "alternate"}, catalog=shipped())
    assert sorted(advise(request).topology.slots) == ["4", "6"]


def test_every_pair_is_judged_once_and_every_word_explained() -> None:
    for question in (("4028GR-TR", "K80:4"), ("R730", "P40:2"), ("4028GR-TR2", "P40:10"), ("X99-F8D", "P40:4")):
        found = topology(*question)
        pairs = [pair for group in found.peer_access for pair in group.pairs]
        size = len(found.slots)
        assert sorted(pairs) == [(i, j) for i in range(size) for j in range(i + 1, size)]
        assert set(found.legend) == {word for line in found.matrix for word in line}
        assert all(group.sources or group.access == "unknown" for group in found.peer_access)
        assert all(condition.sources for condition in found.means)
