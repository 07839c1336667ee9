"""Fast routes: the links by which the kernel may relay the deliveries of a node without a decision.

A fast route is decided once for a node, and again when something there has changed. Until then the kernel relays by it
alone, and counts; `Context.catch_up` tells links and pools of the counts before they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.policies.annotations import DeliveryAnnotationsRule
from amqpmesh.policies.distribution import Distribution
from amqpmesh.router import kernel
from amqpmesh.router.delivery.dispatch import room
from amqpmesh.router.model.credit_share import CreditShare
from amqpmesh.router.model.lane import LaneKind
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.small_set import first

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.node import Node

_ORDER: Final = {Distribution.BALANCED: kernel.LEAST, Distribution.CLOSEST: kernel.TURNS}

#: The most receivers of a node whose fast route is decided after each change. A node with more waits for one more
#: delivery.
FEW: Final = 64


def reopen(context: Context, *, amid: bool = False) -> None:
    """Decide again about the fast routes that were closed.

    Args: amid: more of the batch follows. Nodes with many receivers wait for its end: else each event of one receiver
        would have all of them looked at.
    """
    closed, context.closed = context.closed, {}
    for node in closed:
        route = node.fast_route
        assert route is not None, "else nothing was closed"
        if _receivers(node) <= FEW or (route.wanted and not amid):
            route.wanted = False
            _decide(context, node)
        elif route.wanted:
            context.closed[node] = None


def _receivers(node: Node) -> int:
    """Return how many receivers a decision about a node looks at."""
    shares = node.shares
    return len((first(shares).node if len(shares) == 1 else node).creditors)


def open_input(context: Context, incoming: IncomingLink) -> None:
    """Let the kernel relay further frames and deliveries of a link, after the router has decided about one."""
    node, endpoint = incoming.node, incoming.endpoint
    flow_state = endpoint.flow_state
    route = flow_state.fast_route
    if route is not None:
        route.wanted = True
        return
    if endpoint.input_handle is None or not endpoint.is_attached:
        return
    if (
        node is not None
        and not incoming.connection.strict_annotations
        and (incoming.lane is None or incoming.lane.kind is LaneKind.ANYCAST)
    ):
        if node.fast_route is None:
            node.fast_route = kernel.FastRoute()
            context.closed[node] = None
        route = node.fast_route
        route.wanted = True
    kernel.enable_fast_path(flow_state, endpoint.input_handle, route)


def _decide(context: Context, entry: Node) -> None:
    """Decide whether the deliveries of a node all leave in the same way, and by which links."""
    route = entry.fast_route
    assert route is not None
    node = entry
    route.borrowed = -1
    route.credit_slack = 0
    if entry.shares:
        if len(entry.shares) > 1:
            return
        share = first(entry.shares)
        node, route.borrowed, route.credit_slack = (
            share.node,
            share.credit_sink.credit,
            share.pool.credit_slack(share.credit_sink),
        )
        if entry.copies or entry.waiting.size or entry.outgoing or node.shares:
            return
    config = entry.config
    distribution = node.config.distribution
    if (
        node.waiting.size
        or node.copies
        or config.redeliver
        or config.absolute_expiry
        or entry.remote is not None
        or node.remote is not None
    ):
        return
    if entry.is_multicast or node.is_multicast or distribution not in _ORDER:
        return
    ready = list(node.creditors)
    if not ready or any(
        each.cost != ready[0].cost or each.connection.unsettled_after_detach.get(node) for each in ready
    ):
        return
    if node.lane is None and any(each.lane is not None for each in ready):
        return  # a lane to remote consumers of an address here: its deliveries enter the mesh here
    if node.lane is not None:
        if node.lane.kind is not LaneKind.ANYCAST:
            return
        route.hops = context.routes.hop_limit(node.lane)
        route.order = kernel.FIRST
    else:
        route.order = _ORDER[distribution]
    route.links = [each.endpoint.flow_state for each in ready if not each.bulk]
    route.bulk = [each.endpoint.flow_state for each in ready if each.bulk]
    for each in ready:
        endpoint = each.endpoint
        if endpoint.input_handle is not None:
            kernel.enable_fast_path(endpoint.flow_state, endpoint.input_handle, route)
    route.room = min(room(each) for each in node.outgoing)
    route.drops = config.delivery_annotations is DeliveryAnnotationsRule.DROP
    route.generation = context.kernel.generation


def stay_quiet(node: Node) -> None:
    """Tell the kernel how many deliveries each sink of a node may get before its pool must be told."""
    pool = node.pool
    for each in pool.watched:
        owner = each.owner
        if isinstance(owner, IncomingLink):
            owner.endpoint.flow_state.credit_slack = pool.credit_slack(each)
        elif isinstance(owner, CreditShare) and owner.ingress.fast_route is not None:
            owner.ingress.fast_route.credit_slack = pool.credit_slack(each)


def expanded(relay: kernel.Relay) -> None:
    """Fill in the node of a relay that the kernel has made from a fast delivery."""
    outgoing = relay.legs[0].outgoing
    assert isinstance(outgoing, OutgoingLink)
    relay.node = outgoing.node
