"""Planned maintenance: what it cuts off and loads, and what is to be done first; from published tables."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from amqpmesh.pipeline.contingency import Case, Failure, Flow
from amqpmesh.pipeline.cost_search import Effort
from amqpmesh.pipeline.deliveries import DYNAMIC
from amqpmesh.pipeline.graphs import Graph
from amqpmesh.pipeline.maintenance import flows, graph, outlook
from amqpmesh.router.amqp.errors import CommandError
from tests.pipeline.test_contingency import flow
from tests.pipeline.test_result_rows import at, write
from tests.pipeline.test_routing import grid

FEW = Effort(evaluations=60)


def both(**costs: int) -> Graph:
    """Return a graph of links `AB`, with equal costs of both directions."""
    edges = {(name[0], name[1]): cost for name, cost in costs.items()}
    return Graph(edges | {(b, a): cost for (a, b), cost in edges.items()}, {end for name in costs for end in name})


def test_what_is_cut_off_is_told_with_what_to_do() -> None:
    found = outlook(
        both(AB=1, BC=1, AD=1),
        [flow("orders", "A", "C", 5), flow("news", "A", "D", 7), flow("tea", "A", "B", 2), flow("tea", "A", "D", 1)],
        [("B",)],
    )
    assert [(each.address, each.messages) for each in found.cut_off] == [("orders", 5.0)]
    assert (found.without, found.lost, found.elsewhere, found.own) == ("B", 7.0, 2.0, 0.0)
    assert [(each.router, each.neighbour, each.before, each.after) for each in found.links] == [
        ("A", "D", 8 / 8, 8 / 8),
        ("D", "A", 0.0, 0.0),
    ]
    assert [*found.steps] == [
        "attach receivers of orders to routers that stay and can be reached: their senders reach none",
        "drain B (`amqpmesh drain`): 0 messages were sent there, and receivers of 2 have others elsewhere",
    ]


def test_costs_to_change_first_are_proposed_where_a_link_would_be_loaded_more_and_they_help() -> None:
    # Two ways from A to Z stay, by C and by D; without B, both of A's flows would go by C.
    mesh = both(AB=1, BZ=1, AC=2, CZ=2, AD=3, DZ=3)
    sent = [flow("one", "A", "Z", 10), flow("two", "C", "Z", 9)]
    found = outlook(mesh, sent, [("B",)], FEW)
    now = {(each.router, each.neighbour): (each.before, each.after) for each in found.links}
    assert now["C", "Z"] == (0.9, 1.9)
    assert found.changes
    assert found.steps[0].startswith("change costs: ")
    assert "the most used link is then used" in found.steps[0]
    assert found.steps[0].endswith(f"used {found.use:.2f} instead of 1.90")
    # They are in force before B leaves, and bring what is said.
    edges = {**mesh.edges, **{(each.router, each.neighbour): each.after for each in found.changes}}
    with_them = Case.of(Graph(edges, mesh.routers), sent)
    most = Case.of(mesh, sent).traffic.load.max()
    load = with_them.without(Failure("router", (("B",),)))["most_loaded_bytes"]
    assert load / most == pytest.approx(found.use)
    assert found.use < 1.9


def test_where_no_costs_help_it_is_said_and_where_nothing_changes_nothing_is_to_be_done() -> None:
    found = outlook(
        both(AB=1, BC=1, AC=1), [flow("a", "A", "C", 3), flow("b", "A", "B", 3), flow("c", "B", "C", 3)], [("A", "C")]
    )
    assert [*found.steps] == [
        "see that the most used link can carry 2.00 of what the busiest carries now: no costs help"
    ]
    assert (found.without, found.changes, found.cut_off) == ("A - C", [], [])
    found = outlook(both(AB=1, BC=1, AC=1), [flow("a", "A", "B")], [("A", "C")])
    assert [*found.steps] == ["nothing has to be changed first"]


@pytest.mark.parametrize("seed", range(6))
def test_addresses_and_loads_are_those_of_the_failure_of_all_at_once(seed: int) -> None:
    chance = random.Random(seed)
    edges = grid(chance, 9, 10)
    ids = sorted({end for edge in edges for end in edge})
    names = ["a", "b", "c", DYNAMIC]
    sent = [flow(chance.choice(names), *chance.choices(ids, k=2), chance.randint(1, 9)) for _ in range(20)]
    away = [(ids[seed],), (ids[seed + 1],), chance.choice([each for each in edges if ids[seed] not in each])]
    mesh = Graph(edges, {*ids})
    found, case = outlook(mesh, sent, away, FEW), Case.of(mesh, sent)
    row = case.without(Failure("maintenance", tuple(away)))
    assert sorted({each.address for each in found.cut_off}) == row["addresses"]
    most = case.traffic.load.max()
    assert max(each.after for each in found.links) == pytest.approx(row["most_loaded_bytes"] / most)
    assert found.use <= max(each.after for each in found.links) + 1e-9


@pytest.mark.parametrize("away", [("X",), ("A", "C"), ("A", "X")])
def test_what_the_graph_does_not_have_is_told(away: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match="in the recorded graph"):
        outlook(both(AB=1, BC=1), [], [away])


def publish(tmp_path: Path) -> Path:
    """Write the graph A - B - C, and its traffic."""
    ends = [("A", "B"), ("B", "A"), ("B", "C"), ("C", "B")]
    write(tmp_path, "plan/links", *({"router": a, "neighbour": b, "cost_before": 2} for a, b in ends))
    common = {"basis": "recorded", "tenant": "", "messages": 2.0, "bytes": 50.0}
    write(
        tmp_path,
        "traffic/matrix",
        {**common, "window_start": at(0), "address": "orders", "ingress": "A", "egress": "C"},
        {**common, "window_start": at(1), "address": "orders", "ingress": "A", "egress": "C"},
        {**common, "window_start": at(1), "address": "orders", "ingress": "A", "egress": None},
        {**common, "window_start": at(1), "address": "$management", "ingress": "A", "egress": "C"},
        {**common, "window_start": at(1), "address": "tea", "tenant": "shop", "ingress": "B", "egress": "A"},
    )
    return tmp_path


def test_the_graph_and_the_traffic_of_a_time_are_read(tmp_path: Path) -> None:
    out = publish(tmp_path)
    assert graph(str(out)) == both(AB=2, BC=2)
    tea, orders = Flow("shop", "tea", "B", "A", 2.0, 50.0), Flow("", "orders", "A", "C", 4.0, 100.0)
    assert flows(str(out)) == [orders, tea]
    assert flows(str(out), since=at(1)) == [orders._replace(messages=2.0, bytes=50.0), tea]
    assert flows(str(out), until=at(1)) == [orders._replace(messages=2.0, bytes=50.0)]
