"""The links of a fast route: those of one node, or those of each node that an ingress has a share of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.policies.annotations import DeliveryAnnotationsRule
from amqpmesh.policies.distribution import Distribution, eligible
from amqpmesh.router import kernel
from amqpmesh.router.config.address import Duplicates
from amqpmesh.router.delivery.dispatch import FEW, room
from amqpmesh.router.delivery.duplicates import looks_at, window_of
from amqpmesh.router.model.lane import LaneKind
from amqpmesh.router.small_set import first

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.credit_share import CreditShare
    from amqpmesh.router.model.node import Node

# Members that each new address needs. To read one from its class costs as much as a call (Python 3.11).
_OFF: Final = Duplicates.OFF
_DROP: Final = DeliveryAnnotationsRule.DROP
_ORDER: Final = {Distribution.BALANCED: kernel.LEAST, Distribution.CLOSEST: kernel.TURNS}


def set_links(context: Context, route: kernel.FastRoute, entry: Node, node: Node, opened: kernel.FastRoute) -> bool:
    """Set the links by which deliveries that come to `entry` leave a node.

    Args: entry: the node itself, or an ingress that leads to it. opened: the route of `entry`, whose links the kernel
        may give credit to. Returns: False: the router must decide about each delivery.
    """
    config = node.config
    order = _ORDER.get(config.distribution)  # None: a multicast has links of another kind
    if order is None or node.waiting.size or node.copies or node.shares or node.remote is not None:
        return False
    # Few receivers are links of the route without credit, too: their credit comes and goes, and the route stays.
    outgoing = node.outgoing
    route.lists_all = lists_all = len(outgoing) <= FEW
    ready = outgoing if lists_all else node.creditors
    if not ready:
        return False
    lane, cost = node.lane, first(ready).cost
    for each in ready:
        record = each.connection
        if (
            each.cost != cost
            or record.own  # a node of the router's own asks for the sender of each delivery
            or (record.unsettled_after_detach and record.unsettled_after_detach.get(node))
            or (lane is None and each.lane is not None)  # to remote consumers: its deliveries enter the mesh here
        ):
            return False
    if lane is not None:
        if lane.kind is LaneKind.TREE:
            return False
        route.hops = context.routes.hop_limit(lane)
        route.order = kernel.FIRST
    else:
        route.order = order
    if config.duplicates is not _OFF:
        route.window = window_of(context, node) if looks_at(node) else None
    links: list[kernel.KernelLink] = []
    bulk = kernel.NO_LINKS
    for each in ready:
        endpoint = each.endpoint
        flow_state = endpoint.flow_state
        if flow_state.part == 1:
            links.append(flow_state)
        else:
            bulk = [*bulk, flow_state]
        if endpoint.input_handle is not None:
            kernel.enable_fast_path(flow_state, endpoint.input_handle, opened)
    route.links, route.bulk = links, bulk
    route.room = room(first(outgoing)) if len(outgoing) == 1 else min(map(room, outgoing))
    if lane is not None and lane.kind is LaneKind.TRANSIT:
        route.passing = kernel.PASS_ALL  # each message has its final address there
    elif entry.config.delivery_annotations is _DROP:
        route.passing = kernel.PASS_NONE
    else:
        route.passing = kernel.PASS_THEIRS
    return True


def set_shares(context: Context, route: kernel.FastRoute, ingress: Node) -> bool:
    """Set the shares among which the kernel chooses for each delivery of an ingress that leads to several nodes.

    Returns: False: the router must decide about each delivery.
    """
    distribution = ingress.config.distribution
    if distribution not in _ORDER or ingress.config.drops_duplicates:
        return False
    route.order = _ORDER[distribution]
    near = eligible(distribution, ingress.shares)
    route.shares = [_fast_share(context, route, share, is_candidate=share in near) for share in ingress.shares]
    rooms = [each.route.room for each in route.shares if each.is_open]
    if rooms:
        route.room = min(rooms)
    return bool(rooms)


def _fast_share(
    context: Context, route: kernel.FastRoute, share: CreditShare, *, is_candidate: bool
) -> kernel.FastShare:
    """Return a share as the kernel uses it. Args: route: of its ingress."""
    fast, node = kernel.FastShare(share), share.node
    fast.turn = share.turn
    fast.is_lane = node.lane is not None
    fast.counted = [each.endpoint.flow_state for each in (node.outgoing if fast.is_lane else node.creditors)]
    # A share whose links have no credit is busy, and only the router chooses one that is.
    fast.is_candidate = is_candidate and bool(node.creditors)
    fast.is_open = fast.is_candidate and set_links(context, fast.route, share.ingress, node, route)
    if not fast.is_open:
        for each in node.outgoing:
            flow_state = each.endpoint.flow_state
            if flow_state.fast_route is route:  # deliveries may wait at the node for the credit of its links
                flow_state.fast_route = None
    set_credit(fast.route, share)
    return fast


def set_credit(route: kernel.FastRoute, share: CreditShare) -> None:
    """Tell the kernel how many deliveries may leave by a share."""
    route.share = share.credit_sink
    share.credit_sink.route = route
    route.borrowed = share.credit_sink.credit
    route.credit_slack = share.pool.credit_slack(share.credit_sink)


def set_slack(share: CreditShare) -> None:
    """Tell the kernel how many deliveries may leave by a share before its pool must be told."""
    route = share.ingress.fast_route
    if route is None:
        return
    for fast in route.shares or ():
        if fast.record is share:
            route = fast.route
    route.credit_slack = share.pool.credit_slack(share.credit_sink)
