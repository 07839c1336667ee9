"""Credit that one node of a router lends to another.

An ingress node takes the deliveries of an address from the producers here. They leave by its exit nodes: the node of
the consumers here, and a lane node for each egress router. An exit node has a pool of its own, because other senders
use it too. A share joins the two pools: it is a sink of the exit's pool and a source of the ingress node's pool. So
credit is divided within a router by the same rule as between two routers, without a link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel import MANY_SENDERS
from amqpmesh.router.small_set import SmallSet, first, with_item, without_item

if TYPE_CHECKING:
    from amqpmesh.router.kernel import FastRoute, Grant
    from amqpmesh.router.model.node import InternalNode, Node

LOCAL_COST: Final = 1
"""The cost of reaching a consumer at its own router. The cost of the path to that router is added."""


class CreditShare:
    """The credit that an ingress node holds at one of its exit nodes."""

    __slots__ = ("cost", "credit_sink", "credit_source", "drain_by", "draining", "ingress", "node", "pool", "turn")

    def __init__(self, ingress: InternalNode, node: Node, cost: int) -> None:
        """Args: node: the exit node. cost: the cost of reaching its consumers."""
        self.ingress = ingress
        self.node = node
        ingress.shares = with_item(ingress.shares, self)
        node.borrowers = with_item(node.borrowers, self)
        self.cost = cost
        self.turn = 0
        #: The exit's pool, and this share's sink in it: as an incoming link has them.
        self.pool = node.pool
        self.credit_sink = node.pool.add_sink(0, self)
        self.credit_sink.times = MANY_SENDERS
        self.credit_source = ingress.pool.add_source(0, cost, True, self)
        self.credit_sink.source = self.credit_source
        #: The exit has asked for unused credit, and waits for it until then: seconds.
        self.draining = False
        self.drain_by = 0.0

    @property
    def outstanding(self) -> int:
        """Return the unsettled deliveries of the next consumer, or of all links of the lane together."""
        node = self.node
        if node.lane is not None:
            return sum(each.outstanding for each in node.outgoing)
        return min((each.outstanding for each in node.creditors), default=0)

    @property
    def busy(self) -> bool:
        """Return True if no link of the exit can take a delivery now: it would wait there."""
        return not any(each.is_ready for each in self.node.creditors)

    @property
    def is_ready(self) -> bool:
        """Return True if the share has credit."""
        return self.credit_sink.credit > 0

    def is_excluded(self, excluded: set[object] | None) -> bool:
        """Return True if no link of the exit may take a delivery. Args: excluded: links and nodes to avoid."""
        return excluded is not None and (self.node in excluded or excluded.issuperset(self.node.outgoing))

    def take(self, now: float) -> None:
        """Pass a delivery to the exit."""
        self.pool.received(self.credit_sink, now)
        self._update_source(now)

    def relayed(self, count: int, now: float) -> None:
        """Record `count` deliveries that were passed to the exit and left at once."""
        self.pool.relayed(self.credit_sink, count, now)
        self._update_source(now)

    def set_cost(self, cost: int, now: float) -> None:
        """Change the cost of reaching the exit's consumers."""
        if cost != self.cost:
            self.cost = cost
            self.ingress.pool.change_source(self.credit_source, self.credit_sink.credit, cost, True, now)

    def grant(self, grant: Grant, now: float) -> None:
        """Take what the exit's pool grants this share: the counterpart of a `flow` on a link."""
        if grant.echo:
            # No delivery is on its way between two nodes of a router, so a lower limit is confirmed at once.
            self.pool.flow_received(self.credit_sink, self.credit_sink.delivery_count, grant.credit, None, now)
        if grant.drain and not self.draining:
            self.draining = True
            self.ingress.pool.drain(now)
        self._update_source(now, withdrawn=not grant.credit)

    def drained(self, now: float) -> None:
        """Return the credit to the exit's pool: the ingress node has nothing to send."""
        self.draining = False
        unused = self.credit_sink.limit
        self.pool.flow_received(self.credit_sink, unused, 0, None, now)
        self._update_source(now)

    def end(self, now: float) -> None:
        """End the share: the exit is gone, or is no longer needed."""
        ingress, node = self.ingress, self.node
        ingress.shares = without_item(ingress.shares, self)
        ingress.lenders = without_item(ingress.lenders, self)
        node.borrowers = without_item(node.borrowers, self)
        self.pool.remove_sink(self.credit_sink, now)
        ingress.pool.remove_source(self.credit_source, now)

    def look(self, now: float) -> bool:
        """Update what the consumers of a multicast can take now. Returns: whether it has changed."""
        if self.node.is_multicast:  # its pool counts them
            return False
        before = self.credit_source.usable
        self._update_source(now)
        return self.credit_source.usable != before

    def _update_source(self, now: float, *, withdrawn: bool = False) -> None:
        usable = self.credit_sink.credit
        if self.ingress.is_multicast and not self.node.is_multicast:
            # The exit node is no multicast and grants the sum of its consumers' credit. Here each consumer takes every
            # delivery.
            usable = min(usable, min((each.usable for each in self.node.outgoing), default=0))
        self.ingress.pool.set_usable(self.credit_source, usable, now, withdrawn=withdrawn)


def take_counts(route: FastRoute, shares: SmallSet[CreditShare], count: int, last_at: float) -> list[CreditShare]:
    """Record the deliveries of an ingress that the kernel has relayed.

    Args: route: of the ingress. count, last_at: deliveries of one sender, and the time of the last one. If the ingress
        has several shares, the kernel has counted the deliveries of all senders by share.
    Returns: the shares that deliveries have left by.
    """
    if route.shares is None:
        share = first(shares)
        share.relayed(count, last_at)
        route.credit_slack = share.pool.credit_slack(share.credit_sink)
        return [share]
    used = []
    for fast in route.shares:
        if fast.relayed:
            record = fast.record
            assert isinstance(record, CreditShare)
            record.turn = fast.turn
            record.relayed(fast.relayed, fast.last_at)
            fast.relayed = 0
            fast.route.credit_slack = record.pool.credit_slack(record.credit_sink)
            used.append(record)
    return used
