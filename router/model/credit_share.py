"""Part of one node's credit, lent to another within this router.

Where deliveries of an address enter the mesh, one pool divides among the producers what all the ways out can take
together. Each way out, the consumers here or the lane to one egress router, has a pool of its own, since others use it
too. A share joins them: an input of the way's pool and a branch of the ingress pool, so the credit is divided
by the same rule as between two routers, without a link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.credit.sinks import MANY_SENDERS, SERIAL
from amqpmesh.router.small_set import with_item, without_item

if TYPE_CHECKING:
    from amqpmesh.router.credit.sinks import Grant
    from amqpmesh.router.model.node import Node


class Share:
    """What the ingress node of an address may give to one of its ways out."""

    __slots__ = ("branch", "cost", "drain_by", "draining", "ingress", "input", "node", "pool", "turn")

    def __init__(self, ingress: Node, node: Node, cost: int) -> None:
        """Args: node: the way out. cost: what reaching consumers by it costs."""
        self.ingress = ingress
        self.node = node
        ingress.shares = with_item(ingress.shares, self)
        node.borrowers = with_item(node.borrowers, self)
        self.cost = cost
        self.turn = 0
        #: The way's pool, and this share's place in it: as an incoming link has them.
        self.pool = node.pool
        self.input = node.pool.add_input(0, self)
        self.input.times = MANY_SENDERS
        self.branch = ingress.pool.add_branch(0, cost, True, self)
        #: The way wants back what is not used, and by when: seconds.
        self.draining = False
        self.drain_by = 0.0

    @property
    def outstanding(self) -> int:
        """Deliveries that the consumer that is next, or all links of the lane together, have not settled."""
        node = self.node
        if node.lane is not None:
            return sum(each.outstanding for each in node.outgoing)
        return min((each.outstanding for each in node.creditors), default=0)

    @property
    def busy(self) -> bool:
        """Nothing of the way can take a delivery now; it would wait there."""
        return not any(each.is_ready for each in self.node.creditors)

    @property
    def is_ready(self) -> bool:
        """It has credit."""
        return self.input.credit > 0

    def is_excluded(self, excluded: set[object] | None) -> bool:
        """Whether nobody may take a delivery here. Args: excluded: links, and nodes of lanes, that gave it back."""
        return excluded is not None and (self.node in excluded or excluded.issuperset(self.node.outgoing))

    def take(self, now: float) -> None:
        """A delivery is given to the way."""
        self.pool.received(self.input, now)
        self._tell(now)

    def relayed(self, count: int, now: float) -> None:
        """So many deliveries were given to the way, and left it in the same moment."""
        self.pool.relayed(self.input, count, now)
        self._tell(now)

    def set_cost(self, cost: int, now: float) -> None:
        """What reaching consumers by it costs from now on."""
        if cost != self.cost:
            self.cost = cost
            self.ingress.pool.change_branch(self.branch, self.input.credit, cost, True, now)

    def grant(self, grant: Grant, now: float) -> None:
        """The way's pool has decided what this share may have: what a `flow` says to a link."""
        if grant.echo:
            # Nothing is on its way between the two: a lower limit is seen at once.
            self.pool.flow_received(self.input, self.input.delivery_count, grant.credit, None, now)
        if grant.drain and not self.draining:
            self.draining = True
            self.ingress.pool.drain(now)
        self._tell(now, withdrawn=not grant.credit)

    def drained(self, now: float) -> None:
        """The ingress has nothing to send for what it holds: the way has it back."""
        self.draining = False
        unused = (self.input.delivery_count + self.input.credit) & SERIAL
        self.pool.flow_received(self.input, unused, 0, None, now)
        self._tell(now)

    def end(self, now: float) -> None:
        """The way is no longer one, or is no longer needed."""
        ingress, node = self.ingress, self.node
        ingress.shares = without_item(ingress.shares, self)
        ingress.lenders = without_item(ingress.lenders, self)
        node.borrowers = without_item(node.borrowers, self)
        self.pool.remove_input(self.input, now)
        ingress.pool.remove_branch(self.branch, now)

    def look(self, now: float) -> bool:
        """See what the consumers of a multicast can take now; whether that is new."""
        if self.node.is_multicast:  # its pool does that
            return False
        before = self.branch.usable
        self._tell(now)
        return self.branch.usable != before

    def _tell(self, now: float, *, withdrawn: bool = False) -> None:
        usable = self.input.credit
        if self.ingress.is_multicast and not self.node.is_multicast:
            # The way calls itself otherwise, and promises what its consumers can take together: here each takes all.
            usable = min(usable, min((each.usable for each in self.node.outgoing), default=0))
        self.ingress.pool.set_usable(self.branch, usable, now, withdrawn=withdrawn)
