"""Reasons why nothing can be sent on a link now: the question of every user whose sender waits.

A router passes on the credit of receivers, so most reasons are found at the other end of an address or of a lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.credit.fixed_credit import FixedCredit
from amqpmesh.router.model.node import IngressNode, LocalNode
from amqpmesh.router.statistics.common import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.router.model.links import IncomingLink, OutgoingLink
    from amqpmesh.router.model.node import Node


#: Reasons of receivers, and the reasons of an address that follow from them. The first one found in this order is
#: given: the reason that is closest to an end.
_OF_RECEIVERS: Final = {
    Reason.UNANSWERED: Reason.ATTACHING,
    Reason.RECEIVER_UNREAD: Reason.UNREAD,
    Reason.RECEIVER_WINDOW: Reason.WINDOWS,
    Reason.RECEIVER_UNSETTLED: Reason.UNSETTLED,
    Reason.RECEIVER_SPENT: Reason.SPENT,
    Reason.RECEIVER_TOOK_BACK: Reason.NO_CREDIT,
    Reason.RECEIVER_NO_CREDIT: Reason.NO_CREDIT,
}
_ORDER: Final = (*dict.fromkeys(_OF_RECEIVERS.values()), Reason.FAR_NO_CREDIT)


class ConsumerRouters(NamedTuple):
    """The other routers that have consumers of an address, as far as this router knows."""

    within_reach: tuple[str, ...] = ()
    """The reachable ones, sorted."""
    out_of_reach: tuple[str, ...] = ()
    """The unreachable ones."""
    split: bool = False
    """True if some routers are unreachable: they may have consumers that this router does not know of."""


NO_CONSUMERS: Final = ConsumerRouters()


def why_outgoing(outgoing: OutgoingLink) -> Reason | None:
    """Return the reason why nothing can be sent to a receiver, or on a lane; None: it can."""
    endpoint, connection = outgoing.endpoint, outgoing.connection
    if not endpoint.is_attached:
        return Reason.UNANSWERED if endpoint.remote is None else Reason.DETACHED
    if not endpoint.credit:
        if endpoint.flow_state.lowered:
            return Reason.RECEIVER_TOOK_BACK
        had_some = endpoint.delivery_count != endpoint.initial_delivery_count
        return Reason.RECEIVER_SPENT if had_some else Reason.RECEIVER_NO_CREDIT
    if connection.unwritten > connection.engine.flow_state.backlog:
        return Reason.RECEIVER_UNREAD
    if endpoint.session.flow_state.remote_incoming_window <= 0:
        return Reason.RECEIVER_WINDOW
    unsettled = outgoing.outstanding + connection.unsettled_after_detach.get(outgoing.node, 0)
    return Reason.RECEIVER_UNSETTLED if unsettled >= outgoing.max_unsettled else None


def why_address(local: Node, *, draining: bool, consumers: ConsumerRouters = NO_CONSUMERS) -> Reason | None:
    """Return the reason why senders of an address get no credit; None: receivers can take deliveries.

    Args: draining: the router accepts nothing new. consumers: at other routers.
    """
    ingress = local.ingress if isinstance(local, LocalNode) else None
    node = local if ingress is None else ingress
    if local.suspended or node.has_consumers:
        return why_node(node if node.has_consumers else local, draining=draining)
    if consumers.within_reach:
        # Lanes are attached for senders only: without a sender, no lane is missing.
        return None if ingress is None else Reason.NO_LANE
    if consumers.out_of_reach:
        return Reason.NO_PATH
    return Reason.SPLIT if consumers.split else Reason.NO_RECEIVER


def why_node(node: Node, *, draining: bool) -> Reason | None:
    """Return the reason why deliveries cannot leave one node; None: they can.

    It concerns consumers at this router, an ingress and its routes, or a lane. Args: draining: the router accepts
    nothing new.
    """
    if node.suspended:
        return Reason.DRAINING if draining else Reason.MEMORY
    if not node.has_consumers:
        return Reason.NO_RECEIVER if node.lane is None else Reason.NO_PATH
    if node.demand:
        return None
    if isinstance(node, IngressNode) and node.remote is not None and not node.outgoing:
        return Reason.ELSEWHERE
    reasons = {_of_receivers(each) for each in node.outgoing if not each.skipped}
    ways = list(node.shares)
    if node.config.distribution is Distribution.CLOSEST:
        least = min((share.cost for share in ways), default=0)
        ways = [share for share in ways if share.cost == least]
    reasons |= {why_node(share.node, draining=draining) for share in ways}
    if None in reasons and (node.is_multicast or ways):
        # One of several routes can take deliveries: a multicast waits for the others, and an anycast's credit is lent
        # elsewhere.
        return Reason.SLOWEST if node.is_multicast else None
    return _first(reasons)


def _of_receivers(outgoing: OutgoingLink) -> Reason | None:
    reason = _OF_RECEIVERS.get(why) if (why := why_outgoing(outgoing)) is not None else None
    return Reason.FAR_NO_CREDIT if reason is Reason.NO_CREDIT and outgoing.lane is not None else reason


def _first(reasons: Iterable[Reason | None]) -> Reason | None:
    found = set(reasons)
    return next((reason for reason in _ORDER if reason in found), None)


def why_incoming(incoming: IncomingLink, of_address: Reason | None, *, draining: bool) -> Reason | None:
    """Return the reason why a sender may send nothing; None: it may.

    Args: of_address: the result of `why_address` for its address. draining: the router accepts nothing new.
    """
    endpoint = incoming.endpoint
    if not endpoint.is_attached:
        return Reason.DETACHED
    if endpoint.credit:
        return Reason.HELD if endpoint.session.flow_state.incoming_window <= 0 else None
    meter = endpoint.flow_state.meter
    if meter is not None and meter.waits:
        return Reason.RATE
    if incoming.node is not None and not isinstance(incoming.pool, FixedCredit):
        return of_address or Reason.OTHERS
    return Reason.DRAINING if draining else Reason.HELD
