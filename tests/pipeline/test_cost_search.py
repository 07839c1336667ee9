"""Proposed link costs: never worse than those before, and as good as the best known or networkx's."""

from __future__ import annotations

import random
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.pipeline.cost_search import HIGHEST, Effort, Proposal, arranged, capacities, search
from amqpmesh.pipeline.link_loads import Loads
from amqpmesh.pipeline.routing import Network, Traffic
from tests.pipeline.test_routing import Edges, Flows, assert_load, expected, flows_of, grid

#: All that it can find, however many changes that takes.
THOROUGH = Effort(worth=0.0, gain=0.0)
QUICK = Effort(evaluations=300)


def both(*links: tuple[str, str, int]) -> Edges:
    """Links that cost the same either way."""
    return {edge: cost for one, other, cost in links for edge in ((one, other), (other, one))}


def found(
    edges: Edges, flows: Flows, effort: Effort = THOROUGH, known: dict[tuple[str, str], float] | None = None
) -> Proposal:
    """Return the proposal, with uses as amounts, if no capacity is known."""
    traffic = Traffic(Network.of(edges), flows)
    if known is None:
        return search(traffic, np.ones(len(traffic.load)), effort)
    return search(traffic, capacities(traffic.network, known, traffic.load), effort)


def most(edges: Edges, flows: Flows) -> float:
    """Return the load of the most loaded link, as networkx finds it."""
    return max(expected(edges, flows)[0].values(), default=0.0)


# ---------------------------------------------------------------------------------------------- where the best is known


def test_two_ways_that_cost_different_share_evenly_by_one_change() -> None:
    edges = both(("A", "X", 1), ("X", "B", 1), ("A", "Y", 2), ("Y", "B", 2))
    best = found(edges, [("A", "B", 10.0)])
    assert (best.before, best.after, len(best.changes)) == (10.0, 5.0, 1)


def test_a_ring_with_a_hot_side_sends_the_other_flow_round_the_other_way() -> None:
    edges = both(("A", "B", 1), ("B", "C", 1), ("C", "D", 1), ("D", "A", 1))
    flows = [("A", "B", 4.0), ("A", "C", 4.0)]
    best = found(edges, flows)
    assert (best.before, best.after) == (6.0, 4.0)
    assert most({**edges, **best.changes}, flows) == 4.0


def test_the_fish_uses_its_long_side_too() -> None:
    short, long = ("R1", "R3", "R4", "R5"), ("R2", "R3", "R6", "R7", "R5")
    edges = both(*((one, other, 1) for way in (short, long) for one, other in pairwise(way)))
    best = found(edges, [("R1", "R5", 1.0), ("R2", "R5", 1.0)])
    assert (best.before, best.after, len(best.changes)) == (2.0, 1.0, 1)


def test_what_can_carry_more_gets_more() -> None:
    edges = both(("A", "X", 1), ("X", "B", 1), ("A", "Y", 1), ("Y", "B", 1))
    known = {("A", "X"): 100.0, ("X", "B"): 100.0, ("A", "Y"): 1.0, ("Y", "B"): 1.0}
    best = found(edges, [("A", "B", 10.0)], QUICK, known)
    assert (best.before, best.after) == (5.0, 0.1)


def test_links_of_unknown_capacity_count_the_same() -> None:
    edges = both(("A", "B", 1), ("B", "C", 1))
    traffic = Traffic(Network.of(edges), [("A", "B", 10.0), ("B", "C", 4.0)])
    use = traffic.load / capacities(traffic.network, {("A", "B"): 40.0}, traffic.load)
    assert dict(zip(sorted(edges), use, strict=True)) == {
        ("A", "B"): 0.25, ("B", "A"): 0.0, ("B", "C"): 1.0, ("C", "B"): 0.0,
    }  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 3, 8])  # graphs with better costs than those of the start
def test_on_a_graph_so_small_that_all_costs_can_be_tried_none_are_better(seed: int) -> None:
    chance = random.Random(seed)
    links = [("A", "B"), ("B", "C"), ("C", "D"), ("A", "D"), ("B", "D")]
    edges = both(*((*link, chance.randint(1, 3)) for link in links))
    flows = [(*chance.sample("ABCD", 2), float(chance.randint(1, 9))) for _ in range(5)]
    every = (zip(links, costs, strict=True) for costs in product(range(1, 5), repeat=len(links)))
    start, *others = (
        float(Traffic(Network.of(each), flows).load.max())
        for each in (edges, *(both(*((*link, cost) for link, cost in costs)) for costs in every))
    )
    best = min(others)
    assert best < start
    assert found(edges, flows, Effort(evaluations=1_000, worth=0.0, gain=0.0)).after <= best + 1e-9


def test_the_search_ends_where_nothing_better_is_possible() -> None:
    edges = both(("A", "X", 1), ("X", "B", 1), ("A", "Y", 2), ("Y", "B", 2))
    best = found(edges, [("A", "B", 10.0)])
    assert (best.least, best.is_exhausted) == (5.0, False)
    assert best.evaluations < 50


def test_where_there_is_no_other_way_nothing_is_proposed() -> None:
    line = both(("A", "B", 1), ("B", "C", 1))
    for flows in ([("A", "C", 5.0)], []):
        best = found(line, flows)
        assert (best.changes, best.before, best.after) == ({}, best.between, best.before)


# ---------------------------------------------------------------------------------------------------- what always holds


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 10**6), routers=st.integers(3, 14), more=st.integers(0, 14))
def test_it_is_never_worse_and_is_what_networkx_finds(seed: int, routers: int, more: int) -> None:
    chance = random.Random(seed)
    edges = grid(chance, routers, routers + more)
    flows = flows_of(chance, routers, 2 * routers)
    best = found(edges, flows, QUICK)
    assert best.after <= best.before <= best.between or not best.changes
    assert best.before == pytest.approx(most(edges, flows))
    assert best.after == pytest.approx(most({**edges, **best.changes}, flows))
    assert all(edge in edges and 1 <= cost <= HIGHEST and cost != edges[edge] for edge, cost in best.changes.items())
    on_the_way = [
        most({**edges, **dict(list(best.changes.items())[:count])}, flows) for count in range(len(best.changes) + 1)
    ]
    assert best.between == pytest.approx(max(on_the_way))


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), routers=st.integers(2, 10), changes=st.integers(1, 12))
def test_loads_after_one_change_after_the_other_are_those_of_a_graph_made_so(
    seed: int, routers: int, changes: int
) -> None:
    chance = random.Random(seed)
    edges = grid(chance, routers, routers + chance.randrange(routers))
    flows = flows_of(chance, routers, 2 * routers)
    network = Network.of(edges)
    loads = Loads(Traffic(network, flows))
    names = sorted(edges)
    for _ in range(changes):
        edge, cost = chance.randrange(len(names)), chance.randint(1, 6)
        trial = loads.tried(edge, cost)
        edges[names[edge]] = cost
        fresh = Traffic(Network.of(edges), flows)
        assert trial.load == pytest.approx(fresh.load)
        loads.accept(trial)
        assert loads.distances == pytest.approx(fresh.distances)
    assert_load(network, loads.load, expected(edges, flows)[0])


def test_few_changes_are_worth_more_than_many() -> None:
    chance = random.Random(9)
    edges = grid(chance, 14, 30)
    flows = flows_of(chance, 14, 60)
    many, few = (found(edges, flows, Effort(evaluations=600, worth=worth)) for worth in (0.0, 0.05))
    assert len(few.changes) < len(many.changes)
    assert many.after <= few.after < few.before - 0.05 * few.before * len(few.changes)
    assert found(edges, flows, Effort(evaluations=600, gain=0.99)).changes == {}, "for so little nothing is changed"


def test_the_same_is_found_each_time_with_no_more_than_was_allowed() -> None:
    chance = random.Random(2)
    edges, flows = grid(chance, 12, 24), flows_of(chance, 12, 40)
    one, other = (found(edges, flows, Effort(evaluations=200)) for _ in range(2))
    assert list(one.changes.items()) == list(other.changes.items())
    assert 200 <= one.evaluations <= 205
    assert one.is_exhausted
    assert found(edges, flows, Effort(looks=50)).evaluations < one.evaluations


def test_changes_come_in_an_order_in_which_links_are_used_little_on_the_way() -> None:
    edges = both(("A", "X", 1), ("X", "B", 1), ("A", "Y", 3), ("Y", "B", 3), ("A", "Z", 9), ("Z", "B", 9))
    traffic = Traffic(Network.of(edges), [("A", "B", 6.0)])
    changes = {("A", "X"): 17, ("A", "Y"): 15}
    ordered, after, between = arranged(traffic, np.ones(len(traffic.load)), changes)
    assert (ordered, after, between) == ({("A", "Y"): 15, ("A", "X"): 17}, 2.0, 6.0)
