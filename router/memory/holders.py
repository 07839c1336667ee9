"""The router's memory: its holders, their shares, and which of them make room when too much is held.

A holder has an account of the router's budget. Octets count on the account of the place that they cannot leave:

- a node, while no receiver of the node can take the message;
- the receiver's connection, once the message is begun or written and the receiver does not read. Many senders share a
  lane, and a multicast has many receivers: those messages stay on the node's account;
- the sender's connection, until the message's address is known.

The *share* of a holder is a sixteenth of the budget, and less where there are more than sixteen holders:

    share = limit / max(16, holders)

All shares together are the budget. When the budget is used up, a holder below its share goes on as before, and a holder
above its share is given nothing more: a node gives its senders no credit, messages that need no credit of a node go
back, and the output of a connection is cut to a share. Messages under way may still come. At twice the budget the
largest holders make room: each of them holds more than a share, for all holders together have two shares each.

The router's own answers, and requests to its own nodes, count in a reserve that no other holder can use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel import Budget
from amqpmesh.router.model.links import IncomingLink, OutgoingLink

if TYPE_CHECKING:
    from amqpmesh.router.kernel import Leg, Relay
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.node import Address

#: A holder's share is this part of the memory, 1 / n, while there are no more holders than that.
SHARES: Final = 16

#: The reserve is this part of the memory, 1 / n.
RESERVE: Final = 16


class Memory:
    """The budget of a router, and whether it is used up."""

    __slots__ = ("budget", "reserve", "used_up", "withheld")

    def __init__(self, limit: int) -> None:
        """Args: limit: octets that may wait before holders above their share get no more."""
        self.budget = Budget(limit)
        #: For the router's own answers and requests.
        self.reserve = Budget(limit // RESERVE, self.budget)
        #: More waits than may, or did so and less than a tenth is free again.
        self.used_up = False
        #: Nodes whose senders get no credit for want of memory.
        self.withheld: dict[Address, None] = {}

    @property
    def share(self) -> int:
        """Octets that each holder may hold when the memory is used up."""
        budget = self.budget
        return budget.limit // max(SHARES, budget.holders)

    @property
    def is_exceeded(self) -> bool:
        """Whether the largest holders have to make room."""
        return self.budget.used > 2 * self.budget.limit

    def is_over(self, account: Budget) -> bool:
        """Whether nothing may be added to what a holder has."""
        budget = self.budget
        if account is self.reserve or not (self.used_up or budget.used > budget.limit):
            return False
        return account.used > self.share


def waiting_at(memory: Memory, relay: Relay, address: Address) -> Budget:
    """The account of a message that waits at a node.

    A message from the router itself, or to one of its own nodes, uses the reserve while some of it is left.
    """
    source, reserve = relay.source, memory.reserve
    is_own = address.kept or (isinstance(source, IncomingLink) and source.connection.own)
    return reserve if is_own and reserve.used < reserve.limit else address.account


def begun_on(relay: Relay, outgoing: OutgoingLink) -> Budget:
    """The account of the rest of a message that was begun on a link."""
    if outgoing.lane is None and not outgoing.address.is_multicast:
        return outgoing.connection.account
    return _node(relay, outgoing).account


def _node(relay: Relay, outgoing: OutgoingLink) -> Address:
    # Legs of one multicast are of several nodes where consumers are attached here and elsewhere; its octets are at one.
    return relay.address or outgoing.address  # type: ignore[return-value]  # the kernel knows no addresses


def hold(memory: Memory, leg: Leg) -> None:
    """Count the rest of a leg that cannot go on, on the account of the place where it stands."""
    outgoing = leg.branch
    assert isinstance(outgoing, OutgoingLink)
    if outgoing.connection.engine.flow_state.sending:
        count_output(memory, outgoing.connection)
    if leg.copy:
        return
    account = begun_on(leg.relay, outgoing)
    for chunk in reversed(leg.chunks):
        if chunk.account is account:
            break
        chunk.move(account)


def count_output(memory: Memory, record: ConnectionRecord) -> None:
    """Count the output of a peer that does not read. Above its share the peer is given no more."""
    flow_state = record.engine.flow_state
    unwritten = record.unwritten
    record.account.add(unwritten - record.counted)
    record.counted = unwritten
    most = record.output_backlog
    flow_state.backlog = min(most, memory.share) if memory.is_over(record.account) else most


def forget_output(record: ConnectionRecord) -> None:
    """Count no output of a peer: all of it is written, or never will be."""
    record.account.add(-record.counted)
    record.counted = 0
    record.engine.flow_state.backlog = record.output_backlog


def check_node(memory: Memory, address: Address, *, draining: bool) -> None:
    """Give a node's senders credit, or none where the node is above its share or the router drains."""
    is_over = address.buffered > 0 and memory.is_over(address.account)
    if is_over:
        memory.withheld[address] = None
    elif memory.withheld:
        memory.withheld.pop(address, None)
    suspended = is_over or draining
    if suspended != address.suspended:
        address.suspended = suspended
        if address.has_pool:
            address.pool.set_suspended(suspended)
