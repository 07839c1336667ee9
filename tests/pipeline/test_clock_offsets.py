"""Clock offsets, and their stated errors."""

from __future__ import annotations

import random

import networkx
import pytest

from amqpmesh.pipeline.clock_offsets import INCONSISTENT, ONE_WAY, Bound, Clock, clocks


def references(bounds: list[Bound]) -> dict[str, Clock]:
    return {each.router: each for each in clocks(bounds) if each.is_reference}


def pairs(bounds: list[Bound]) -> dict[tuple[str, str], Clock]:
    return {(each.against, each.router): each for each in clocks(bounds) if not each.is_reference}


def test_a_clock_is_in_the_middle_between_its_bounds() -> None:
    found = references([Bound("A", "B", 700), Bound("B", "A", -500)])
    assert found["B"] == Clock("B", "A", True, 600, 100)
    assert found["A"] == Clock("A", "A", True, 0, 0)


def test_the_least_of_several_bounds_counts() -> None:
    found = references([Bound("A", "B", 900), Bound("A", "B", 700), Bound("B", "A", -500), Bound("B", "A", 0)])
    assert (found["B"].offset, found["B"].error) == (600, 100)


def test_an_odd_distance_is_no_smaller_error() -> None:
    found = references([Bound("A", "B", 0), Bound("B", "A", 1)])["B"]
    assert found.offset is not None
    assert found.error is not None
    for true in (0, -1):
        assert abs(true - found.offset) <= found.error


def test_what_only_goes_one_way_tells_nothing() -> None:
    bounds = [Bound("A", "B", 700)]
    assert references(bounds) == {}
    assert pairs(bounds)["A", "B"] == Clock("B", "A", False, None, None, ONE_WAY)


def test_a_way_round_bounds_both_directions() -> None:
    bounds = [Bound("A", "B", 10), Bound("B", "C", 10), Bound("C", "A", 10)]
    found = references(bounds)
    assert (found["C"].offset, found["C"].error) == (5, 15)
    assert pairs(bounds)["A", "C"].error == 15


def test_bounds_that_exclude_each_other_are_told_and_the_others_count() -> None:
    bounds = [
        Bound("A", "B", 10), Bound("B", "A", -11),  # B was set in between
        Bound("A", "C", 10), Bound("C", "A", 10), Bound("C", "B", 10), Bound("B", "C", 10),
    ]  # fmt: skip
    assert pairs(bounds)["A", "B"].problem == INCONSISTENT
    assert references(bounds)["B"] == Clock("B", "A", True, 0, 20)


def test_a_way_round_that_excludes_itself_leaves_its_routers_unknown_and_no_others() -> None:
    loop = [Bound("A", "B", -1), Bound("B", "A", 9), Bound("B", "C", -1), Bound("C", "B", 9), Bound("C", "A", -1)]
    bounds = [*loop, Bound("A", "C", 9), Bound("X", "Y", 5), Bound("Y", "X", 5)]
    found = references(bounds)
    assert {found[each].problem for each in "ABC"} == {INCONSISTENT}
    assert pairs(bounds)["A", "B"].problem == INCONSISTENT
    assert found["Y"] == Clock("Y", "X", True, 0, 5)


def test_a_clock_that_begins_in_1970_is_one_like_others() -> None:
    years = 1_777_600_000_000_000_000
    ahead = {"A": 0, "B": -years, "C": 0, "D": -years}
    bounds = [Bound(a, b, ahead[b] - ahead[a] + 50) for a, b in zip("ABCDCB", "BCDCBA", strict=True)]
    assert {name: clock.offset for name, clock in references(bounds).items()} == ahead


@pytest.mark.parametrize("bounds", [[], [Bound("A", "A", -5)]])
def test_nothing_to_compare_is_no_clock(bounds: list[Bound]) -> None:
    assert list(clocks(bounds)) == []


@pytest.mark.parametrize("seed", range(40))
def test_in_any_mesh_the_true_clocks_are_within_the_error_and_nothing_comes_before_it_left(seed: int) -> None:
    chance = random.Random(seed)
    graph = networkx.gnm_random_graph(chance.randint(2, 25), chance.randint(1, 60), seed=seed)
    ahead = {node: chance.randint(-(10**9), 10**9) for node in graph}
    bounds = []
    for one, other in graph.edges:
        for begin, end in ((one, other), (other, one)):
            if chance.random() < 0.8:  # some links are used in one direction only
                for _ in range(5):
                    took = chance.randint(50_000, 50_000 + chance.choice((10, 1_000_000)))
                    bounds.append(Bound(f"R{begin:02}", f"R{end:02}", ahead[end] - ahead[begin] + took))
    chance.shuffle(bounds)
    rows = list(clocks(bounds))
    offsets = {}
    for row in rows:
        if row.offset is None or row.error is None:
            assert row.problem == ONE_WAY
            continue
        true = ahead[int(row.router[1:])] - ahead[int(row.against[1:])]
        assert abs(true - row.offset) <= row.error
        if row.is_reference:
            offsets[row.router] = (row.against, row.offset)
    for bound in bounds:
        (one, behind), (other, front) = (offsets.get(name, (name, 0)) for name in (bound.behind, bound.ahead))
        if one == other:
            assert bound.most - (front - behind) >= -1  # offsets are whole nanoseconds
