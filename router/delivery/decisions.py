"""The reasons of decisions: why the kernel did not relay a delivery by the route of its node.

They are found after the decision, so a delivery that is relayed pays nothing for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.policies.annotations import DeliveryAnnotationsRule
from amqpmesh.router.delivery.anonymous_routes import is_steady
from amqpmesh.router.kernel import AnonymousRoutes, SettledRoute, TransitRoute
from amqpmesh.router.model.lane import LaneKind
from amqpmesh.router.model.node import node_of
from amqpmesh.router.statistics.common import Decision

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Relay
    from amqpmesh.router.model.links import IncomingLink
    from amqpmesh.router.model.node import Node


def came(context: Context, incoming: IncomingLink) -> bool:
    """Count a delivery whose first frame the router handles. That of an anonymous sender has no address yet.

    Returns: False: the link has no valid route, so the frame itself is no reason of the decision.
    """
    node, route = incoming.node, incoming.endpoint.flow_state.fast_route
    if node is None:
        return True
    context.seen_as(node).decided().named += 1
    return route is not None and route is node.fast_route and route.generation == context.kernel.generation


def note(context: Context, incoming: IncomingLink, node: Node, reason: Decision) -> None:
    """Count the reason of a decision. Args: node: the one that the delivery came to."""
    decisions = context.seen_as(node).decided()
    decisions.add(reason)
    if incoming.node is None:
        decisions.anonymous += 1


def before(
    context: Context, relay: Relay, incoming: IncomingLink, node: Node, named: str | None, *, has_route: bool
) -> Decision | None:
    """Return the reason that is known before a delivery leaves or waits; None: its route is valid.

    Args: named: the address that the message of an anonymous sender names. has_route: as `came` returned.
    """
    config, head = node.config, relay.head
    drops = config.delivery_annotations is DeliveryAnnotationsRule.DROP
    reasons = (
        (incoming.connection.own, Decision.OWN),
        (config.redeliver, Decision.REDELIVER),
        (config.absolute_expiry, Decision.EXPIRY),
        (config.drops_duplicates and (config.redeliver or len(node.shares) > 1), Decision.MESSAGE_ID),
        (node.remote is not None, Decision.ELSEWHERE),
        (incoming.connection.strict_annotations, Decision.STRICT),
        (node.copies, Decision.COPIES),
        (relay in context.traces.relays, Decision.TRACED),
        (head is not None and (head.irregular or (drops and head.delivery_annotations[1])), Decision.HEAD),
        (incoming.node is None and incoming.lane is None and not is_steady(context, node), Decision.ANONYMOUS),
        (node.waiting.size, Decision.QUEUED),
    )
    for applies, reason in reasons:
        if applies:
            return reason
    if incoming.node is None:
        has_route = _has_route(context, incoming, node, named)
    return None if has_route else Decision.CHANGED


def _has_route(context: Context, incoming: IncomingLink, node: Node, named: str | None) -> bool:
    """Return whether the table of an anonymous sender has a valid route for an address."""
    table, route = incoming.endpoint.flow_state.fast_route, node.fast_route
    if named is None or not isinstance(table, AnonymousRoutes) or table.generation != context.kernel.epoch:
        return False
    found = table.find(named.encode())
    if isinstance(found, TransitRoute | SettledRoute):
        found = found.route
    return found is not None and found is route and route.generation == context.kernel.generation


def after(
    relay: Relay, incoming: IncomingLink, node: Node, known: Decision | None, *, frames: int, octets: int
) -> Decision:
    """Return the reason of the decision about a delivery that has left or waits now.

    Args: node: the one that it came to. known: the reason by `before`. frames: that have come, or 2 if more follow.
        octets: of its message, as far as it has come.
    """
    if relay.excluded is not None:
        return Decision.EXCLUDED
    if known is not None and known is not Decision.CHANGED:
        return known
    reason = _why_waiting(relay) or _why_by_way(relay, incoming, node) or known
    if reason is None:
        route = node.fast_route
        is_large = frames > 1 or (route is not None and octets > route.room)
        reason = Decision.LARGE if is_large else Decision.SLOWEST if node.is_multicast else Decision.UNUSUAL
    return reason


def _why_waiting(relay: Relay) -> Decision | None:
    """Return the reason why a delivery waits; None: it has left. It may wait behind others where a share has led."""
    chosen = node_of(relay)
    if not relay.queued or chosen is None:
        return None
    if chosen.waiting.size > 1:
        return Decision.QUEUED
    if chosen.is_multicast:
        return Decision.SLOWEST
    return Decision.BUSY if chosen.creditors else Decision.NO_CREDIT


def _why_by_way(relay: Relay, incoming: IncomingLink, node: Node) -> Decision | None:
    """Return the reason that lies in the links by which a delivery came or leaves; None: others are relayed there."""
    lane, chosen = incoming.lane, node_of(relay) or node
    if lane is not None and lane.kind is LaneKind.TRANSIT:
        return Decision.TRANSIT
    if node.is_multicast and any(not share.node.is_multicast for share in node.shares):
        return Decision.TREE
    if chosen.copies:
        return Decision.COPIES
    if not node.is_multicast and chosen.lane is None and any(each.lane is not None for each in chosen.creditors):
        return Decision.BY_LANE
    if any(each.connection.unsettled_after_detach.get(chosen) for each in chosen.creditors):
        return Decision.DETACHED
    return None
