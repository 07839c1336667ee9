"""The worst pairs of failures: the same as if the traffic were routed for every pair."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from amqpmesh.pipeline.contingency import Case, Failure, Flow
from amqpmesh.pipeline.graphs import Graph
from amqpmesh.pipeline.pairs import worst
from tests.pipeline.test_contingency import SYMMETRIC, case, flow
from tests.pipeline.test_routing import grid


def ring(number: int) -> dict[tuple[str, str], int]:
    edges = {(f"R{at}", f"R{(at + 1) % number}"): 1 for at in range(number)}
    return edges | {(b, a): cost for (a, b), cost in edges.items()}


def tree(chance: random.Random, number: int) -> dict[tuple[str, str], int]:
    edges = {(f"R{at}", f"R{chance.randrange(at)}"): chance.randint(1, 3) for at in range(1, number)}
    return edges | {(b, a): cost for (a, b), cost in edges.items()}


def graph_of(seed: int) -> tuple[random.Random, dict[tuple[str, str], int]]:
    chance = random.Random(seed)
    return chance, (grid(chance, 10, 11), ring(9), tree(chance, 9), grid(chance, 9, 16))[seed % 4]


def every_pair(some: Case) -> list[Failure]:
    """Return all pairs. A router has its links, so it is no pair with one of them."""
    elements = [*some.network.links(), *((each,) for each in some.network.routers)]
    both = combinations(elements, 2)
    return [Failure("pair", (a, b)) for a, b in both if not (set(a) < set(b) or set(b) < set(a))]


@pytest.mark.parametrize("seed", range(8))
def test_the_worst_pairs_are_those_of_all_pairs(seed: int) -> None:
    chance, edges = graph_of(seed)
    ids = sorted({end for edge in edges for end in edge})
    flows = [flow(f"a{chance.randrange(7)}", *chance.choices(ids, k=2), chance.randint(1, 9)) for _ in range(25)]
    some = Case.of(Graph(edges, {*ids, "alone"}), [*flows, Flow("", "here", "alone", "alone", 3, 300)])
    rows = {each.elements: some.without(each) for each in every_pair(some)}
    alone = {each.elements[0]: some.without(each) for each in some.failures()}

    found = worst(some, kept=12, routed=40)
    kept = {tuple(sorted(each.elements)) for each in found.failures}
    by_name = {tuple(sorted(elements)): row for elements, row in rows.items()}
    assert (found.judged, len(kept)) == (len(rows), len(found.failures))
    assert kept <= {*by_name}

    def harm(row: dict[str, float]) -> tuple[float, float]:
        return row["addresses_cut_off"], row["lost_messages"]

    most = sorted(map(harm, rows.values()), reverse=True)[:12]
    assert sorted((harm(by_name[each]) for each in kept), reverse=True)[:12] == most
    for elements, row in by_name.items():
        if elements not in kept:
            assert row["use"] <= found.bound + 1e-9
    names = ("addresses_cut_off", "lost_messages")
    beyond = set()
    for elements, row in by_name.items():
        if any(row[name] > sum(alone[each][name] for each in elements) for name in names):
            beyond.add(elements)
    assert len(beyond & kept) >= min(12, len(beyond))
    # With all of them routed, those that use a link most are known.
    proven = worst(some, kept=5, routed=len(rows))
    uses = sorted((row["use"] for row in rows.values()), reverse=True)
    named = {tuple(sorted(each.elements)) for each in proven.failures}
    assert sorted((by_name[each]["use"] for each in named), reverse=True)[:5] == pytest.approx(uses[:5])


def test_few_pairs_are_routed_where_a_bound_shows_that_no_other_is_worse() -> None:
    edges = {(a, b): cost for (a, b), cost in ring(18).items()} | SYMMETRIC
    some = case(edges, flow("a", "R1", "R2", 1000), *(flow("b", f"R{at}", f"R{at + 1}") for at in range(8, 14)))
    found = worst(some, kept=3, routed=1_000)
    assert found.judged > 700
    assert found.routed < found.judged / 2


def test_of_many_elements_those_that_carry_most_are_judged() -> None:
    some = case(ring(12), flow("a", "R1", "R3", 100), flow("b", "R7", "R8", 1))
    found = worst(some, elements=5)
    assert (found.elements, found.judged) == (5, 6)
    named = {name for failure in found.failures for element in failure.elements for name in element}
    assert named <= {"R0", "R1", "R2", "R3", "R4"}


def test_without_links_or_traffic_there_is_nothing_to_judge_or_nothing_lost() -> None:
    assert worst(case({}, routers="A")).failures == ()
    found = worst(case(SYMMETRIC))
    assert (found.judged, found.bound) == (9, 0.0)
