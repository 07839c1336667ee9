"""The effects of failures on a graph, compared with networkx on the graph without the failed part."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import networkx
import pytest

from amqpmesh.pipeline.contingency import Case, Failure, Flow
from amqpmesh.pipeline.deliveries import DYNAMIC
from amqpmesh.pipeline.events import TABLES, spark_schema
from amqpmesh.pipeline.graphs import Graph, Record, deciding, graph
from tests.pipeline.test_routing import grid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIANGLE = {("A", "B"): 1, ("B", "C"): 1, ("A", "C"): 3}
SYMMETRIC = TRIANGLE | {(b, a): cost for (a, b), cost in TRIANGLE.items()}


def flow(address: str, ingress: str, egress: str, messages: float = 1.0) -> Flow:
    return Flow("", address, ingress, egress, messages, messages * 100)


def case(edges: dict[tuple[str, str], int], *flows: Flow, routers: str = "") -> Case:
    return Case.of(Graph(edges, set(routers)), flows)


def link(one: str, other: str) -> Failure:
    return Failure("link", ((one, other),))


def router(id: str) -> Failure:
    return Failure("router", ((id,),))


def test_a_link_with_a_way_round_it_costs_a_longer_way_and_loads_others() -> None:
    found = case(SYMMETRIC, flow("orders", "A", "C", 10)).without(link("A", "B"))
    assert found["addresses_cut_off"] == found["lost_messages"] == 0
    assert (found["moved_messages"], found["stretch"]) == (10, 1.5)
    assert (found["most_loaded"], found["most_loaded_bytes"], found["use"]) == ("A -> C", 1000, 1.0)


def test_a_failed_router_takes_its_clients_with_it_and_cuts_off_routers_behind_it() -> None:
    some = case(
        SYMMETRIC,
        flow("orders", "A", "B", 5),
        flow("news", "B", "C", 7),
        flow("here", "B", "B", 1),
        flow("far", "A", "C", 2),
    )
    found = some.without(router("B"))
    assert found["addresses"] == ["orders"]
    assert (found["addresses_cut_off"], found["lost_messages"], found["own_messages"]) == (1, 5, 8)
    assert (found["moved_messages"], found["stretch"]) == (2, 1.5)


def test_an_address_with_another_receiver_is_not_cut_off_and_what_went_to_the_lost_one_is_told() -> None:
    some = case(SYMMETRIC, flow("orders", "A", "B", 5), flow("orders", "A", "C", 2))
    found = some.without(router("B"))
    assert (found["addresses_cut_off"], found["lost_messages"], found["elsewhere_messages"]) == (0, 5, 5)


def test_a_dynamic_node_has_no_receiver_elsewhere() -> None:
    some = case(SYMMETRIC, flow(DYNAMIC, "A", "B", 5), flow(DYNAMIC, "A", "C", 2))
    found = some.without(router("B"))
    assert (found["addresses"], found["lost_messages"], found["elsewhere_messages"]) == ([DYNAMIC], 5, 0)


def test_it_is_cut_off_where_no_receiver_can_be_reached_though_elsewhere_it_is_not() -> None:
    line = {("A", "B"): 1, ("B", "A"): 1, ("B", "C"): 1, ("C", "B"): 1}
    some = case(line, flow("orders", "A", "C", 5), flow("orders", "B", "C", 2))
    found = some.without(link("A", "B"))
    assert (found["addresses"], found["lost_messages"], found["elsewhere_messages"]) == (["orders"], 5, 0)


def test_flows_that_had_no_way_before_are_counted_and_left_out() -> None:
    some = case({("A", "B"): 1, ("B", "A"): 1}, flow("orders", "A", "C"), flow("x", "A", "Z"), routers="C")
    assert (some.unreachable, some.flows) == (2, [])
    assert some.without(router("C"))["lost_messages"] == 0


def far(graph: networkx.DiGraph, flows: list[Flow]) -> float:
    """Return the cost of all paths, each times its messages."""
    return sum(
        each.messages * networkx.shortest_path_length(graph, each.ingress, each.egress, "weight") for each in flows
    )


@pytest.mark.parametrize("seed", range(8))
def test_what_is_lost_and_cut_off_is_what_a_graph_without_it_says(seed: int) -> None:
    chance = random.Random(seed)
    edges = grid(chance, 12, 15)
    ids = [f"R{each}" for each in range(12)]
    flows = [flow(f"a{chance.randrange(6)}", *chance.choices(ids, k=2), float(chance.randint(1, 9))) for _ in range(30)]
    some = case(edges, *flows)
    assert some.unreachable == 0
    singles = some.failures()
    pairs = [chance.sample([each.elements[0] for each in singles], 2) for _ in range(12)]
    for failure in [*singles, *(Failure("pair", tuple(each)) for each in pairs)]:
        whole = networkx.DiGraph()
        whole.add_weighted_edges_from((a, b, cost) for (a, b), cost in edges.items())
        left = whole.copy()
        for element in failure.elements:
            if len(element) == 1:
                left.remove_nodes_from(element)
            else:
                left.remove_edges_from([element, element[::-1]])
        alive = [each for each in flows if each.ingress in left]
        arrives = {each: each.egress in left and networkx.has_path(left, each.ingress, each.egress) for each in alive}
        served = {(each.address, each.ingress) for each, does in arrives.items() if does}
        reaching = [each for each, does in arrives.items() if does]
        cut = {each.address for each in alive if (each.address, each.ingress) not in served}

        found = some.without(failure)
        assert found["addresses"] == sorted(cut)
        assert found["lost_messages"] == sum(each.messages for each in alive if not arrives[each])
        assert found["own_messages"] == sum(each.messages for each in flows if each not in alive)
        assert found["stretch"] == pytest.approx(
            far(left, reaching) / far(whole, reaching) if far(whole, reaching) else 1.0
        )


def test_every_link_and_every_router_fails_alone() -> None:
    chance = random.Random(1)
    some = case(grid(chance, 10, 14), flow("a", "R1", "R5", 3), flow("b", "R2", "R7", 9))
    failures = some.failures()
    assert [each.elements[0] for each in failures if each.kind == "link"] == some.network.links()
    assert len([each for each in failures if each.kind == "router"]) == len(failures) - len(some.network.links()) == 10


# ------------------------------------------------------------------------------------------------- the recorded graph


def edge(
    router: str, time: int, origin: str, neighbour: str | None, cost: int | None = 1, *, whole: bool = False
) -> Record:
    return Record(router, time, origin, neighbour, None if neighbour is None else cost, whole)


def both(router: str, time: int, one: str, other: str, cost: int | None = 1, *, whole: bool = False) -> list[Record]:
    return [edge(router, time, one, other, cost, whole=whole), edge(router, time, other, one, cost, whole=whole)]


def test_the_graph_is_the_last_one_that_was_seen_whole_and_what_changed_since() -> None:
    seen = [*both("A", 1, "A", "B", whole=True), edge("A", 1, "C", None, whole=True), *both("A", 2, "B", "C", 4)]
    found = graph(seen)
    assert found.edges == {("A", "B"): 1, ("B", "A"): 1, ("B", "C"): 4, ("C", "B"): 4}
    assert found.routers >= {"A", "B", "C"}
    assert graph([*seen, *both("A", 3, "A", "B", None)]).edges == {("B", "C"): 4, ("C", "B"): 4}


def test_an_edge_that_is_not_in_a_whole_graph_is_gone() -> None:
    seen = [*both("A", 1, "A", "B", whole=True), *both("A", 5, "B", "C", whole=True)]
    assert graph(seen).edges == {("B", "C"): 1, ("C", "B"): 1}


def test_each_router_is_believed_of_its_own_edges_whatever_clocks_show() -> None:
    seen = [*both("A", 1, "A", "B", whole=True), *both("B", 9, "A", "B", 7), *both("C", 99, "A", "B", 3)]
    assert graph(seen).edges == {("A", "B"): 1, ("B", "A"): 7}


def test_of_routers_that_record_nothing_the_latest_recording_router_is_believed() -> None:
    seen = [*both("C", 1, "A", "B", whole=True), *both("D", 2, "A", "B", 7)]
    assert graph(seen).edges == {("A", "B"): 7, ("B", "A"): 7}


def test_an_edge_that_leads_one_way_only_carries_nothing() -> None:
    assert graph([edge("A", 1, "A", "B")]).edges == {}


def test_an_edge_that_costs_nothing_is_none() -> None:
    seen = [*both("A", 1, "A", "B", 0, whole=True), *both("A", 1, "B", "C", -5, whole=True), *both("A", 2, "A", "C")]
    assert graph(seen).edges == {("A", "C"): 1, ("C", "A"): 1}


def seen_by_chance(seed: int) -> list[Record]:
    """Return records of A, B and C about five routers: changes, and the whole graph."""
    chance = random.Random(seed)
    pairs = [(one, other) for one in "ABCDE" for other in "ABCDE" if one < other]
    seen = []
    for recorder in "ABC":
        for time in sorted(chance.sample(range(100), 8)):
            whole = chance.random() < 0.4
            for pair in chance.sample(pairs, 6 if whole else 1):
                cost = chance.randint(1, 9) if whole or chance.random() < 0.7 else None
                seen += both(recorder, time, *pair, cost, whole=whole)
    return seen


def test_what_decides_of_the_graph_is_no_more_than_the_graph(spark: SparkSession) -> None:
    columns = TABLES["edges"]
    for seed in range(4):
        seen = seen_by_chance(seed)
        rows = [tuple(each._asdict().get(column.name) for column in columns) for each in seen]
        decides = [Record(*row) for row in deciding(spark.createDataFrame(rows, spark_schema(columns))).collect()]
        assert graph(decides) == graph(seen)
        assert len(decides) <= 5 * 4 + 5 < len(seen)
