"""An applied plan, compared with later traffic, without Spark: are its costs in force, and what did they bring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from amqpmesh.pipeline.contingency import Flow
from amqpmesh.pipeline.cost_search import Edge, capacities, edges_of
from amqpmesh.pipeline.graphs import Graph
from amqpmesh.pipeline.routing import Amounts, Network, Traffic

if TYPE_CHECKING:
    from amqpmesh.router.management.cost_plan import Change, Plan

MARGIN: Final = 0.1
"""A promise is kept if the busiest link is used more than promised by no more than this share."""


@dataclass(frozen=True)
class Kept:
    """The comparison.

    Args: missing: changes that are not in force. promised: the use of the busiest link with the planned costs, divided
        by that with the costs before, by the plan. predicted: the same for the later traffic, on the later graph.
        measured: the use of the busiest link since, divided by that which one would have had with the costs before;
        None: no load was recorded. busiest: that link. is_kept: all changes are in force, and the measured use is no
        more than promised. sentences: for people.
    """

    missing: Sequence[Change]
    promised: float
    predicted: float
    measured: float | None
    busiest: str | None
    is_kept: bool
    sentences: Sequence[str]


def kept(
    plan: Plan,
    graph: Graph,
    flows: Sequence[Flow],
    carried: Mapping[Edge, float],
    capacity: Mapping[Edge, float] | None = None,
) -> Kept:
    """Compare a plan with what came of it.

    Args: graph, flows: recorded after the plan was applied. carried: the octets that each direction of a link has
        carried in the same time. capacity: of directions of links in that time, in octets, for a plan that was made
        with limits: its loads are parts of these. The others are equal.
    """
    missing = [each for each in plan.changes if graph.edges.get((each.router, each.neighbour)) != each.after]
    promised = plan.after.share / plan.before.share if plan.before.share else 1.0
    here = [each for each in plan.changes if (each.router, each.neighbour) in graph.edges]
    network, load = _loads(graph, flows, {(each.router, each.neighbour): each.before for each in here})
    edges = edges_of(network)
    can = dict(zip(edges, capacities(network, {} if plan.relative else capacity or {}, load).tolist(), strict=True))
    before = max((octets / can[edge] for edge, octets in zip(edges, load.tolist(), strict=True)), default=0.0)
    load = _loads(graph, flows, {(each.router, each.neighbour): each.after for each in here})[1]
    after = max((octets / can[edge] for edge, octets in zip(edges, load.tolist(), strict=True)), default=0.0)
    most = max(can.values(), default=1.0)  # of links that are gone by now
    used = {edge: octets / can.get(edge, most) for edge, octets in carried.items()}
    busiest = max(used, key=lambda edge: (used[edge], edge), default=None)
    measured = used[busiest] / before if busiest is not None and before else None
    predicted = after / before if before else 1.0
    is_kept = not missing and measured is not None and measured <= promised * (1 + MARGIN)
    name = None if busiest is None else f"{busiest[0]} -> {busiest[1]}"
    sentences = _sentences(missing, promised, predicted, measured, name)
    return Kept(missing, promised, predicted, measured, name, is_kept, sentences)


def _loads(graph: Graph, flows: Sequence[Flow], costs: Mapping[Edge, int]) -> tuple[Network, Amounts]:
    network = Network.of({**graph.edges, **costs}, graph.routers)
    return network, Traffic(network, [(each.ingress, each.egress, each.bytes) for each in flows]).load


def _sentences(
    missing: Sequence[Change], promised: float, predicted: float, measured: float | None, busiest: str | None
) -> list[str]:
    told = [f"{each.router} -> {each.neighbour} has not the planned cost {each.after}" for each in missing]
    told.append(f"promised: the busiest link is used {promised:.2f} of what it was used with the costs before")
    told.append(f"predicted for the traffic since: {predicted:.2f}")
    if measured is None or busiest is None:
        told.append("measured: no link has carried anything since")
        return told
    told.append(f"measured: {measured:.2f}, at {busiest}")
    if measured > promised * (1 + MARGIN):
        if predicted > promised * (1 + MARGIN):
            told.append("the traffic is another one: plan again")
        elif not missing:
            told.append("the traffic took other paths than predicted: lanes are few, or links were away")
    return told
