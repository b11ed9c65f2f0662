"""The search against brute force, and what must hold of any server and any cards."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpucheck.entries import Bus, Card, Server, SlotRow
from gpucheck.fit.case import Case
from gpucheck.fit.plans import VERDICT_ORDER, Plan, best_plan, best_verdict, builds, most_cards, most_in, verdicts
from gpucheck.fit.request import Order, PsuPlan, Request, Wanted
from gpucheck.fit.slots import Build, Placement, Seat, active_rows, best_placement, named_slots, pair_class, seat

from .ask import by_all_rulings, card, fit, server

modest = settings(derandomize=True, max_examples=150, deadline=None)
thorough = settings(derandomize=True, max_examples=300, deadline=None)
few = settings(derandomize=True, max_examples=60, deadline=None)

# --- random machines: few values each, so that all kinds of clashes are met -----------------------

RISER = {"label": "Riser", "riser": "1", "choices": {"a": {"called": "riser a"}, "b": {"called": "riser b"}}}


@st.composite
def rows(draw: st.DrawFn) -> list[SlotRow]:
    count = draw(st.integers(1, 6))
    ids = [str(n) for n in range(1, count + 1)]
    crowded, alike = draw(st.sampled_from([(True, False), (False, False), (False, True)]))

    def maybe(*values: object) -> object:
        return draw(st.sampled_from(values))

    found: list[SlotRow] = []
    for id in ids:
        if found and (alike or draw(st.booleans())):  # servers have rows of slots that are alike
            found.append(draw(st.sampled_from(found)).model_copy(update={"id": id, "wide_blocks": {}}))
            continue
        others = [other for other in ids if other != id]
        blocked = draw(st.lists(st.sampled_from(others), max_size=2, unique=True)) if others and crowded else []
        found.append(
            SlotRow.model_validate(
                {
                    "id": id,
                    "socket": maybe(1, 1, 2, 2, None),
                    "lanes": maybe(8, 16),
                    "connector": maybe(8, 16, 16, None),
                    "open_ended": maybe(False, False, True),
                    "gen": 3,
                    "height": maybe("full", "full", "low", None),
                    "length": maybe("full", "half", None),
                    "watts": maybe(75, 75, None),
                    "max_wide": maybe(1, 2, 2, 3, None),
                    "gpu": maybe(True, True, True, False),
                    "order": maybe(None, 1, 2),
                    "switch": maybe(None, "A", "B"),
                    "wide_blocks": {str(draw(st.integers(2, 3))): blocked} if blocked else {},
                    "when": maybe({}, {}, {"riser": "a"}, {"riser": "b"}),
                }
            )
        )
    return found


@st.composite
def machines(draw: st.DrawFn) -> Server:
    sockets = draw(st.sampled_from([None, 0, 1, 2, 4]))
    aux = None if sockets is None else [{"at": "board", "plug": "pcie-8", "count": sockets, "src": ["manual"]}]
    slots = draw(rows())
    ids = [row.id for row in slots]
    return server(
        options__riser=RISER,
        slots=[row.model_dump(mode="json") for row in slots],
        power__aux=aux if sockets else ([] if sockets == 0 else None),
        gpu__limits=draw(st.lists(limits(ids), max_size=2)),
        gpu__zones=draw(st.lists(zones(ids), max_size=2, unique_by=lambda zone: zone["slots"][0])),
    )


def some(ids: Sequence[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(ids), min_size=1, max_size=4, unique=True)


def limits(ids: Sequence[str]) -> st.SearchStrategy[dict[str, object]]:
    """What a vendor says of some cards: how many, in which slots, in which order, in which machine."""
    return st.fixed_dictionaries(
        {
            "max": st.integers(0, 4),
            "src": st.sampled_from([["manual"], ["manual"], ["quote"]]),
            "slots": st.one_of(st.just([]), some(ids)),
            "only_slots": st.booleans(),
        },
        optional={
            "cards": st.sampled_from([["Card one"], ["nvidia-two"]]),
            "wide": st.integers(1, 2),
            "profile": st.sampled_from(["full", "low"]),
            "watts_each": st.sampled_from([75, 300]),
            "cpus": st.integers(1, 2),
            "needs": st.sampled_from([{"riser": "a"}, {"riser": "b"}]),
        },
    )


def zones(ids: Sequence[str]) -> st.SearchStrategy[dict[str, list[str]]]:
    return st.fixed_dictionaries({"slots": some(ids), "src": st.sampled_from([["manual"], ["manual"], ["owner"]])})


@st.composite
def cards(draw: st.DrawFn, name: str = "one") -> Card:
    plain = card(
        id=f"nvidia-{name}",
        name=f"Card {name}",
        size__slots_wide=draw(st.sampled_from([1, 2, 2, 2.5, None])),
        size__length_mm=draw(st.sampled_from([150, 267, 267, 330, None])),
        size__profile=draw(st.sampled_from(["full", "full", "low", None])),
        aux=draw(st.sampled_from([None, {"plugs": []}, {"plugs": [{"kind": "pcie-8"}]}])),
        power__watts=draw(st.sampled_from([25, 70, 250])),
    )
    return plain.model_copy(update={"bus": Bus(gen=3, lanes=16, connector=draw(st.sampled_from([8, 16])))})


@st.composite
def orders(draw: st.DrawFn) -> tuple[Order, ...]:
    kinds = [Wanted(draw(cards(name))) for name in ("one", "two")[: draw(st.integers(1, 2))]]
    return tuple(Order(wanted, draw(st.integers(1, 4))) for wanted in kinds)


def requests() -> st.SearchStrategy[Request]:
    return st.builds(
        Request,
        server=machines(),
        orders=orders(),
        cpus=st.sampled_from([None, 1, 2]),
        psus=st.sampled_from([None, PsuPlan(1, 500), PsuPlan(2, 500), PsuPlan(2, 1000)]),
        redundancy=st.sampled_from([None, "n+1"]),
    )


@st.composite
def places_taken(draw: st.DrawFn, server: Server, orders: Sequence[Order]) -> tuple[Order, ...]:
    """The same orders, some of them for one slot, and some cards that stand in the machine already."""
    ids = sorted({row.id for row in server.slots})
    kinds = [order.wanted for order in orders]
    pinned = [
        replace(order, count=1, slot=draw(st.sampled_from(ids))) if draw(st.booleans()) else order for order in orders
    ]
    stands = draw(st.lists(st.sampled_from(ids), max_size=2, unique=True))
    fitted = [Order(draw(st.sampled_from(kinds)), 1, slot, fitted=True) for slot in stands]
    return tuple(draw(st.permutations([*pinned, *fitted])))


# --- brute force ----------------------------------------------------------------------------------


def all_placements(server: Server, orders: Sequence[Order], build: Build) -> Iterator[Placement]:
    """Every way of putting any of the cards into any of the slots, with nothing left out early."""
    rows = active_rows(server, build)
    standing = [judged(server, order, row, build) for order in orders if order.fitted for row in rows]
    standing = [
        replace(one, remarks=(), order=one.row.order, rank=0, fitted=True) for one in standing if one is not None
    ]
    taken = {slot for one in standing for slot in one.covers}
    queue = [order for order in orders if not order.fitted for _ in range(order.count)]
    choices = [[None, *(judged(server, order, row, build) for row in rows)] for order in queue]
    for chosen in itertools.product(*choices):
        seats = [one for one in chosen if one is not None]
        covered = [slot for one in seats for slot in one.covers]
        in_the_way = len(covered) > len(set(covered)) or taken & set(covered)
        if not in_the_way and all(one.usable for one in seats) and not mixed(server, seats, standing):
            yield Placement((*standing, *seats))


def judged(server: Server, order: Order, row: SlotRow, build: Build) -> Seat | None:
    """One card in one slot; None where it is asked for in another."""
    if order.slot not in (None, row.id):
        return None
    return seat(order.wanted, row, build, named_slots(server, order.wanted, build))


def mixed(server: Server, seats: Sequence[Seat], standing: Sequence[Seat]) -> bool:
    """Whether a new card stands in a zone in which a card of another model stands."""
    return any(
        one.wanted.id != other.wanted.id and {one.row.id, other.row.id} <= set(zone.slots)
        for zone in server.gpu.zones
        if zone.src == ("manual",)
        for one in seats
        for other in (*seats, *standing)
    )


def price(placement: Placement) -> tuple[object, ...]:
    """Most cards first, then what costs."""
    return (-len(placement.seats), *placement.cost[:-1])


@modest
@given(machines(), st.lists(st.integers(1, 2), min_size=1, max_size=2), st.data())
def test_best_placement_is_the_best_of_all(server: Server, counts: list[int], data: st.DataObject) -> None:
    wanted = [Order(Wanted(data.draw(cards(name))), n) for name, n in zip(("one", "two"), counts, strict=False)]
    for build in builds(Request(server)):
        found = best_placement(server, wanted, build)
        best = min(all_placements(server, wanted, build), key=price)
        assert price(found) == price(best)


@thorough
@given(machines(), st.lists(st.integers(1, 2), min_size=1, max_size=2), st.data())
def test_so_it_is_with_cards_that_stand_or_must_stand_somewhere(
    server: Server, counts: list[int], data: st.DataObject
) -> None:
    wanted = [Order(Wanted(data.draw(cards(name))), n) for name, n in zip(("one", "two"), counts, strict=False)]
    orders = data.draw(places_taken(server, wanted))
    for build in builds(Request(server)):
        found = best_placement(server, orders, build)
        best = min(all_placements(server, orders, build), key=price)
        assert price(found) == price(best)
        stay = {(order.wanted.id, order.slot) for order in orders if order.fitted}
        assert {(one.wanted.id, one.row.id) for one in found.seats if one.fitted} <= stay


def test_a_card_makes_way_for_one_that_must_stand_in_a_slot_like_its_own() -> None:
    first, second = (Wanted(card(id=f"nvidia-{name}", name=name)) for name in ("one", "two"))
    pinned = [Order(first, 1), Order(second, 1, "1")]
    told = server(gpu__limits=[{"cards": ["two"], "max": 1, "slots": ["1"], "only_slots": True, "src": ["manual"]}])
    for machine, orders in ((server(), pinned), (told, [Order(first, 1), Order(second, 1)])):
        alike = machine.model_copy(update={"slots": tuple(r.model_copy(update={"socket": 1}) for r in machine.slots)})
        found = best_placement(alike, orders, Build(2, full=True))
        assert {(one.wanted.name, one.row.id) for one in found.seats} == {("two", "1"), ("one", "2")}


@modest
@given(machines(), orders())
def test_placement_is_one_that_can_be_built(server: Server, orders: tuple[Order, ...]) -> None:
    for build in builds(Request(server)):
        placement = best_placement(server, orders, build)
        covered = [slot for one in placement.seats for slot in one.covers]
        assert len(covered) == len(set(covered))
        assert {one.row.id for one in placement.seats} <= {row.id for row in active_rows(server, build)}
        for order in orders:
            assert sum(one.wanted is order.wanted for one in placement.seats) <= order.count


@modest
@given(rows())
def test_pair_class_has_no_direction(rows: list[SlotRow]) -> None:
    for first, second in itertools.product(rows, rows):
        assert pair_class(first, second) == pair_class(second, first)


# --- what must hold -------------------------------------------------------------------------------


@few
@given(requests())
def test_verdict_is_that_of_the_best_build(request: Request) -> None:
    plan = best_plan(request)
    assert plan.fails is (plan.verdict == "does-not-fit")
    if not plan.left_out:
        verdicts = [best_plan(replace(request, cpus=b.cpus, options=b.options)).verdict for b in builds(request)]
        assert plan.fails is all(verdict == "does-not-fit" for verdict in verdicts)


def of_all_builds(request: Request) -> str:
    """The verdict when every build is looked at in full."""
    plans = [
        Plan(Case(request, build, best_placement(request.server, request.orders, build))) for build in builds(request)
    ]
    return max(map(by_all_rulings, plans), key=VERDICT_ORDER.__getitem__)


@few
@given(requests())
def test_the_quick_ways_say_what_all_rulings_say(request: Request) -> None:
    assert best_plan(request).verdict == best_verdict(request) == of_all_builds(request)
    kind = request.orders[0]
    counted = [of_all_builds(replace(request, orders=(replace(kind, count=count),))) for count in range(1, 8)]
    found = verdicts(replace(request, orders=(kind,)), range(1, 8))
    assert [verdict for _, verdict, _ in found] == counted
    assert {most for _, _, most in found} == {
        max((count for count, verdict in enumerate(counted, 1) if verdict != "does-not-fit"), default=0)
    }


@few
@given(requests(), st.integers(0, 2000))
def test_more_usable_watts_never_hurt(request: Request, more: int) -> None:
    if request.psus is None:
        return
    larger = replace(request, psus=PsuPlan(request.psus.count, request.psus.watts + more))
    assert VERDICT_ORDER[best_plan(larger).verdict] >= VERDICT_ORDER[best_plan(request).verdict]
    assert most_cards(larger) >= most_cards(request)


@few
@given(requests())
def test_if_n_cards_fit_then_fewer_do(request: Request) -> None:
    first = replace(request, orders=request.orders[:1])
    fitting = [
        best_plan(replace(first, orders=(replace(first.orders[0], count=n),))).verdict != "does-not-fit"
        for n in range(1, 6)
    ]
    assert fitting == sorted(fitting, reverse=True)
    if False in fitting:
        assert most_cards(first) == fitting.index(False)
    else:
        assert most_cards(first) >= len(fitting)


@few
@given(requests())
def test_another_cpu_never_costs_a_slot(request: Request) -> None:
    # With power that is no obstacle: a CPU draws watts, too.
    rich = replace(request, psus=PsuPlan(2, 5000), redundancy=None)
    assert most_cards(replace(rich, cpus=2)) >= most_cards(replace(rich, cpus=1))


@few
@given(requests())
def test_what_is_left_free_is_never_worse_than_what_is_stated(request: Request) -> None:
    freed = request.freed("cpus", "psus", "options")
    assert most_cards(freed) >= most_cards(request)
    assert most_cards(request) == max(most_in(request, build) for build in builds(request))


@few
@given(machines(), orders(), st.sampled_from([None, 1, 2]), st.sampled_from([None, "1x500", "2x1000"]))
def test_document_holds_together(server: Server, orders: tuple[Order, ...], cpus: int | None, psus: str | None) -> None:
    advice = fit(server, *((order.wanted.card, order.count) for order in orders), cpus=cpus, psus=psus)
    wanted = sum(order.count for order in orders)
    assert advice.max_count is not None
    assert advice.max_with_changes is not None
    assert advice.max_with_changes >= advice.max_count
    fails = any(check.outcome == "fail" for check in advice.checks)
    assert fails is (advice.verdict == "does-not-fit")
    if not fails:
        assert len(advice.placement) == wanted
        assert advice.max_count >= wanted
    assert len(advice.topology.matrix) == len(advice.placement)
    assert (advice.verdict == "fits") <= (not advice.shopping_list)
    assert all(alternative.max_count <= advice.max_with_changes for alternative in advice.alternatives)
    if advice.verdict == "unknown":
        assert advice.questions
        assert advice.conditions
