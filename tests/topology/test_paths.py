"""Paths from one router, compared with networkx."""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.topology.graph import Graph
from amqpmesh.topology.paths import Paths, Route
from amqpmesh.topology.records import Neighbour, costs
from amqpmesh.topology.trees import ShortestPathTree

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMES = [f"r{number}" for number in range(9)]


class LinkState(NamedTuple):
    """A change of an origin's link state; `links` is None if it is forgotten."""

    origin: str
    links: tuple[tuple[str, int], ...] | None
    transit: bool


def link_states(names: list[str] = NAMES) -> st.SearchStrategy[LinkState]:
    link = st.tuples(st.sampled_from(names), st.integers(1, 4))
    return st.builds(
        LinkState,
        st.sampled_from(names),
        st.one_of(st.none(), *[st.lists(link, min_size=size, max_size=12).map(tuple) for size in (0, 3, 6)]),
        st.sampled_from([True, True, True, False]),
    )


@st.composite
def link_changes(draw: st.DrawFn) -> list[LinkState]:
    """Return a connected mesh, and changes of single links: most have an effect, and few of them a large one."""
    size = draw(st.integers(2, len(NAMES)))
    links: dict[str, dict[str, int]] = {name: {} for name in NAMES[:size]}
    blocked: set[str] = set()
    costs = st.integers(1, 3)

    def join(one: str, other: str) -> None:
        links[one][other], links[other][one] = draw(costs), draw(costs)

    for number in range(1, size):
        join(NAMES[number], NAMES[draw(st.integers(0, number - 1))])
    said = [LinkState(name, tuple(links[name].items()), True) for name in links]
    for _ in range(draw(st.integers(1, 25))):
        one, other = draw(st.permutations(NAMES[:size]))[:2]
        match draw(st.sampled_from(["cost", "cost", "toggle", "toggle", "transit"])):
            case "transit":
                blocked ^= {one}
            case "toggle" if other in links[one]:
                del links[one][other], links[other][one]
            case "cost" if other in links[one]:
                links[one][other] = draw(costs)
            case _:
                join(one, other)
        said += [LinkState(name, tuple(links[name].items()), name not in blocked) for name in (one, other)]
    return said


def apply(graph: Graph, state: LinkState) -> bool:
    if state.links is None:
        return graph.remove(state.origin)
    links = costs(state.origin, [Neighbour(*link, 1) for link in state.links])
    return graph.update(state.origin, links, transit=state.transit)


def told(states: Iterable[LinkState]) -> dict[str, LinkState]:
    """Return the link states after some changes."""
    latest = {state.origin: state for state in states}
    return {origin: state for origin, state in latest.items() if state.links is not None}


def expected_network(states: Iterable[LinkState]) -> networkx.DiGraph:
    """Return the graph by its definition: edges that both ends advertise, each at the least cost of its sender."""
    valid = told(states)
    network = networkx.DiGraph()
    network.add_nodes_from(valid)
    for origin, state in valid.items():
        for neighbour, cost in state.links or ():
            there = valid.get(neighbour)
            if neighbour != origin and there and any(back == origin for back, _ in there.links or ()):
                least = (
                    min(cost, network.edges[origin, neighbour]["cost"]) if network.has_edge(origin, neighbour) else cost
                )
                network.add_edge(origin, neighbour, cost=least)
    return network


def seen_from(network: networkx.DiGraph, root: str, states: Iterable[LinkState]) -> networkx.DiGraph:
    """Return the graph without edges from routers that are not for transit."""
    blocked = {origin for origin, state in told(states).items() if not state.transit} - {root}
    seen = network.copy()
    seen.add_node(root)
    seen.remove_edges_from([edge for edge in network.edges if edge[0] in blocked])
    return seen


def expected_ways(network: networkx.DiGraph, root: str, states: list[LinkState]) -> dict[str, Route]:
    """Return all cheapest paths."""
    seen = seen_from(network, root, states)
    ways = {root: Route(0, (), 0)}
    for destination, distance in networkx.single_source_dijkstra_path_length(seen, root, weight="cost").items():
        if destination != root:
            paths = list(networkx.all_shortest_paths(seen, root, destination, weight="cost"))
            hops = tuple(sorted({path[1] for path in paths}))
            ways[destination] = Route(distance, hops, max(map(len, paths)) - 1)
    return ways


def expected_parents(network: networkx.DiGraph, root: str, states: list[LinkState]) -> dict[str, str]:
    """Return the parent: of the predecessors on cheapest paths, the one whose id sorts first."""
    seen = seen_from(network, root, states)
    before, _ = networkx.dijkstra_predecessor_and_distance(seen, root, weight="cost")
    return {router: min(candidates) for router, candidates in before.items() if candidates}


CHANGES = st.one_of(link_changes(), st.lists(link_states(), max_size=25))


@given(CHANGES, st.data())
@settings(max_examples=120, deadline=None)
def test_ways_equal_those_computed_from_nothing_after_any_changes(states: list[LinkState], data: st.DataObject) -> None:
    graph = Graph()
    paths = Paths(graph, "r0")
    before: dict[str, Route] = expected_ways(expected_network([]), "r0", [])
    for count, state in enumerate(states, 1):
        apply(graph, state)
        if count == len(states) or data.draw(st.booleans()):
            changed = paths.refresh()
            after = expected_ways(expected_network(states[:count]), "r0", states[:count])
            assert {router: paths.route(router) for router in paths.reachable()} == after
            assert changed == {router for router in before | after if before.get(router) != after.get(router)}
            before = after


@given(CHANGES, st.data())
@settings(max_examples=120, deadline=None)
def test_trees_equal_those_computed_from_nothing_after_any_changes(
    states: list[LinkState], data: st.DataObject
) -> None:
    graph = Graph()
    paths = Paths(graph, "r0", trees=3)
    ingresses = st.sampled_from(NAMES)
    for count, state in enumerate(states, 1):
        apply(graph, state)
        ingress = data.draw(ingresses)
        paths.refresh()
        parents = expected_parents(expected_network(states[:count]), ingress, states[:count])
        children = sorted(router for router, parent in parents.items() if parent == "r0")
        assert paths.parent(ingress) == parents.get("r0")
        assert paths.children(ingress) == tuple(children)
        tree = networkx.DiGraph([(parent, router) for router, parent in parents.items()])
        below = {child: {child} | networkx.descendants(tree, child) for child in children}
        assert {child: paths.subtree(ingress, child) for child in children} == below
        assert paths.branches(ingress, NAMES) == below


@given(st.lists(link_states(), max_size=40))
@settings(deadline=None)
def test_the_graph_holds_what_both_ends_advertise_and_tells_what_can_matter(states: list[LinkState]) -> None:
    graph = Graph()
    previous = expected_network([])
    blocked: set[str] = set()
    for count, state in enumerate(states, 1):
        matters = apply(graph, state)
        network = expected_network(states[:count])
        assert dict(graph.network.nodes(data="transit")) == {
            origin: valid.transit for origin, valid in told(states[:count]).items()
        }
        assert set(graph.network.edges(data="cost")) == set(network.edges(data="cost"))
        now_blocked = {router for router in network if network.out_degree(router) and not graph.is_transit(router)}
        if set(network.edges(data="cost")) != set(previous.edges(data="cost")):
            assert matters
        elif now_blocked == blocked:
            assert not matters
        previous, blocked = network, now_blocked


@given(link_changes())
@settings(deadline=None)
def test_no_message_visits_a_router_twice_whichever_next_hops_are_taken(states: list[LinkState]) -> None:
    graph = Graph()
    for state in states:
        apply(graph, state)
    everybody = {router: Paths(graph, router) for router in graph.routers()}
    for destination in everybody:
        steps = networkx.DiGraph()
        for router, paths in everybody.items():
            steps.add_edges_from((router, hop) for hop in paths.next_hops(destination))
            assert (paths.next_hops(destination) == ()) == (
                router == destination or paths.distance(destination) is None
            )
            for hop in paths.next_hops(destination):
                assert router not in everybody[hop].next_hops(destination)
        assert networkx.is_directed_acyclic_graph(steps)
        for router, paths in everybody.items():
            length = paths.length(destination)
            assert length is None or length >= longest(steps, router)


def longest(steps: networkx.DiGraph, router: str) -> int:
    """Return the most hops that a message can take from a router."""
    return max((1 + longest(steps, after) for after in steps[router]), default=0) if router in steps else 0


@given(link_changes(), st.sampled_from(NAMES))
@settings(deadline=None)
def test_all_routers_see_one_tree_so_a_multicast_enters_each_exactly_once(
    states: list[LinkState], ingress: str
) -> None:
    graph = Graph()
    for state in states:
        apply(graph, state)
    everybody = {router: Paths(graph, router) for router in graph.routers()}
    reached = [ingress]
    for router in reached:
        if router in everybody:
            children = everybody[router].children(ingress)
            assert all(everybody[child].parent(ingress) == router for child in children)
            reached += children
    assert sorted(reached) == sorted(Paths(graph, ingress).reachable())


def line(*names: str, cost: int = 1) -> Graph:
    graph = Graph()
    links: dict[str, dict[str, int]] = {name: {} for name in names}
    for one, other in pairwise(names):
        links[one][other] = links[other][one] = cost
    for name in names:
        graph.update(name, links[name])
    return graph


def test_a_router_alone_reaches_itself_and_nobody_else() -> None:
    paths = Paths(Graph(), "A")
    assert paths.reachable() == {"A"}
    assert (paths.distance("A"), paths.next_hops("A"), paths.length("A")) == (0, (), 0)
    assert (paths.distance("B"), paths.next_hops("B"), paths.length("B")) == (None, (), None)
    assert paths.parent("A") is None
    assert paths.parent("B") is None
    assert paths.children("A") == ()


def test_a_link_that_one_end_alone_advertises_leads_nowhere() -> None:
    graph = line("A", "B")
    paths = Paths(graph, "A")
    assert paths.next_hops("B") == ("B",)
    assert graph.update("B", {})
    assert paths.refresh() == {"B"}
    assert paths.distance("B") is None
    assert not graph.update("A", {"B": 1, "C": 1})


def test_a_direction_costs_what_the_router_that_sends_on_it_says_and_the_cheapest_of_parallel_links_counts() -> None:
    graph = Graph()
    graph.update("A", costs("A", [Neighbour("B", 7, 1), Neighbour("B", 3, 1)]))
    graph.update("B", {"A": 5})
    assert Paths(graph, "A").distance("B") == 3
    assert Paths(graph, "B").distance("A") == 5
    assert not graph.update("A", {"B": 3})


def test_a_router_that_drains_is_reached_and_sends_but_nothing_passes_through_it() -> None:
    graph = line("A", "B", "C")
    paths = {name: Paths(graph, name) for name in "ABC"}
    assert paths["A"].distance("C") == 2
    assert graph.update("B", {"A": 1, "C": 1}, transit=False)
    assert [each.refresh() for each in paths.values()] == [{"C"}, set(), {"A"}]
    assert paths["A"].next_hops("B") == ("B",)
    assert paths["A"].next_hops("C") == ()
    assert paths["B"].next_hops("C") == ("C",)
    assert paths["A"].children("B") == ()
    assert paths["B"].children("A") == ()


def test_a_router_forwards_on_the_old_graph_until_it_refreshes() -> None:
    graph = line("A", "B", "C")
    paths = Paths(graph, "A")
    graph.update("B", {"A": 1})
    assert paths.next_hops("C") == ("B",)
    assert paths.path("C") == ["A", "B", "C"]
    paths.refresh()
    assert paths.next_hops("C") == ()
    assert paths.path("C") == []


def test_equal_cost_next_hops_are_sorted_and_the_tree_takes_the_parent_that_sorts_first() -> None:
    graph = Graph()
    graph.update("A", {"C": 1, "B": 1})
    graph.update("B", {"A": 1, "D": 1})
    graph.update("C", {"A": 1, "D": 1})
    graph.update("D", {"B": 1, "C": 1})
    paths = Paths(graph, "A")
    assert paths.route("D") == Route(distance=2, next_hops=("B", "C"), length=2)
    assert paths.path("D") == ["A", "B", "D"]
    assert paths.path("A", ingress="D") == ["D", "B", "A"]
    assert paths.subtree("A", "B") == {"B", "D"}
    assert paths.subtree("A", "D") == set()  # no child of A
    assert paths.branches("A", ["D", "C", "A", "elsewhere"]) == {"B": {"D"}, "C": {"C"}}


def test_a_length_is_that_of_the_longest_cheapest_path() -> None:
    graph = Graph()
    graph.update("A", {"B": 1, "D": 3})
    graph.update("B", {"A": 1, "C": 1})
    graph.update("C", {"B": 1, "D": 1})
    graph.update("D", {"C": 1, "A": 3})
    assert Paths(graph, "A").route("D") == Route(distance=3, next_hops=("B", "D"), length=3)


def test_a_place_in_the_tree_of_another_may_change_while_no_way_does() -> None:
    graph = Graph()
    graph.update("A", {"B": 1, "C": 1})
    graph.update("B", {"A": 1, "Z": 1})
    graph.update("C", {"A": 1, "Z": 1})
    graph.update("Z", {"B": 1, "C": 1})
    paths = Paths(graph, "A")
    assert paths.parent("Z") == "B"
    assert graph.update("Z", {"B": 5, "C": 1})
    assert paths.refresh() == set()
    assert paths.parent("Z") == "C"


def test_no_more_trees_are_kept_than_asked_for() -> None:
    paths = Paths(line(*NAMES), NAMES[0], trees=3)
    gc.collect()
    before = sum(isinstance(each, ShortestPathTree) for each in gc.get_objects())
    for name in NAMES:
        assert paths.parent(name) == (None if name == NAMES[0] else NAMES[1])
    assert sum(isinstance(each, ShortestPathTree) for each in gc.get_objects()) - before == 3


@pytest.mark.parametrize("cost", [0, -1])
def test_a_cost_below_one_is_refused_and_changes_nothing(cost: int) -> None:
    graph = line("A", "B")
    with pytest.raises(ValueError, match="at least 1"):
        graph.update("A", {"C": 2, "B": cost})
    assert graph.neighbours("A") == {"B": 1}
    assert "C" not in graph


def test_a_router_that_looks_seldom_still_ends_at_the_present() -> None:
    graph = line("A", "B", "C")
    paths = Paths(graph, "A")
    start = graph.generation
    for cost in range(2, 10_000):
        graph.update("B", {"A": 1, "C": cost})
    assert graph.changes_since(start) is None
    graph.update("A", {"B": 2})
    assert graph.changes_since(graph.generation - 1) == {("A", "B")}
    assert graph.changes_since(graph.generation - 2) == {("A", "B"), ("B", "C")}
    assert paths.refresh() == {"B", "C"}
    assert paths.distance("C") == 2 + 9_999
