"""Traffic on a graph, compared with networkx flow by flow."""

from __future__ import annotations

import random
from collections import defaultdict

import networkx
import numpy as np
import pytest

from amqpmesh.pipeline.routing import Network, Traffic

Edges = dict[tuple[str, str], int]
Flows = list[tuple[str, str, float]]


def grid(chance: random.Random, routers: int, links: int) -> Edges:
    """Return a connected graph whose costs differ by direction, with many paths of equal cost."""
    edges: Edges = {}
    ids = [f"R{each}" for each in range(routers)]
    pairs = [(ids[each], ids[chance.randrange(each)]) for each in range(1, routers)]
    pairs += [tuple(chance.sample(ids, 2)) for _ in range(links - len(pairs))]  # type: ignore[misc]  # two are a pair
    for one, other in pairs:
        edges[one, other], edges[other, one] = chance.randint(1, 2), chance.randint(1, 2)
    return edges


def expected(edges: Edges, flows: Flows) -> tuple[dict[tuple[str, str], float], Flows]:
    """Return the load of each edge, and the flows without a path, found with networkx one by one."""
    graph = networkx.DiGraph()
    graph.add_weighted_edges_from((a, b, cost) for (a, b), cost in edges.items())
    load: dict[tuple[str, str], float] = defaultdict(float)
    lost = []
    for begin, end, amount in flows:
        if begin not in graph or end not in graph or not networkx.has_path(graph, begin, end):
            lost.append((begin, end, amount))
            continue
        far = networkx.shortest_path_length(graph, target=end, weight="weight")
        here = {begin: amount}
        while here:
            there: dict[str, float] = defaultdict(float)
            for router, part in here.items():
                if router == end:
                    continue
                hops = [
                    each
                    for each in graph[router]
                    if each in far and far[router] == far[each] + graph[router][each]["weight"]
                ]
                for hop in hops:
                    load[router, hop] += part / len(hops)
                    there[hop] += part / len(hops)
            here = there
    return load, lost


def flows_of(chance: random.Random, routers: int, count: int) -> Flows:
    ids = [f"R{each}" for each in range(routers)]
    return [(*chance.sample(ids, 2), float(chance.randint(1, 9))) for _ in range(count)]  # type: ignore[misc]  # as above


def assert_load(network: Network, load: np.ndarray, wanted: dict[tuple[str, str], float]) -> None:
    found = {
        (network.routers[a], network.routers[b]): each
        for a, b, each in zip(network.tails, network.heads, load, strict=True)
    }
    assert {edge: each for edge, each in found.items() if each > 1e-9} == pytest.approx(wanted)


@pytest.mark.parametrize("seed", range(20))
def test_traffic_is_shared_over_all_cheapest_paths_hop_by_hop(seed: int) -> None:
    chance = random.Random(seed)
    edges = grid(chance, 15, 30)
    flows = flows_of(chance, 15, 25)
    network = Network.of(edges)
    assert_load(network, Traffic(network, flows).load, expected(edges, flows)[0])


@pytest.mark.parametrize("seed", range(10))
def test_what_becomes_of_it_without_a_link_or_a_router_is_what_it_would_be_on_a_graph_without_them(seed: int) -> None:
    chance = random.Random(seed)
    edges = grid(chance, 12, 18)
    flows = flows_of(chance, 12, 20)
    network = Network.of(edges)
    traffic = Traffic(network, flows)
    none = np.array([], dtype=np.int64)
    for one, other in network.links():
        _, now, load = traffic.without(network.edges_between(one, other), none)
        left = {edge: cost for edge, cost in edges.items() if set(edge) != {one, other}}
        wanted, lost = expected(left, flows)
        assert_load(network, load, wanted)
        unreachable = {(begin, end) for begin, end, _ in lost}
        for begin, end in {(begin, end) for begin, end, _ in flows}:
            rows, _, _ = traffic.without(network.edges_between(one, other), none)
            row = np.flatnonzero(traffic.targets[rows] == network.place[end])
            if len(row):
                assert np.isinf(now[row[0], network.place[begin]]) == ((begin, end) in unreachable)
            else:
                assert (begin, end) not in unreachable
    for router in network.routers:
        _, _, load = traffic.without(network.edges_at(router), np.array([network.place[router]]))
        left = {edge: cost for edge, cost in edges.items() if router not in edge}
        rest = [flow for flow in flows if router not in flow[:2]]
        assert_load(network, load, expected(left, rest)[0])


def test_routers_that_nobody_knows_and_those_that_send_to_themselves_load_nothing() -> None:
    network = Network.of({("A", "B"): 1, ("B", "A"): 1}, ["C"])
    traffic = Traffic(network, [("A", "Z", 1.0), ("Z", "A", 1.0), ("A", "A", 5.0), ("A", "C", 2.0), ("A", "B", 3.0)])
    assert_load(network, traffic.load, {("A", "B"): 3.0})
    assert network.links() == [("A", "B")]


def test_a_mesh_without_traffic_or_without_links_is_no_matter() -> None:
    for edges in ({}, {("A", "B"): 1, ("B", "A"): 1}):
        network = Network.of(edges, ["A"])
        traffic = Traffic(network, [])
        assert traffic.load.sum() == 0
        _, _, load = traffic.without(network.edges_at("A"), np.array([0]))
        assert load.sum() == 0
