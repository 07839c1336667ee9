"""The router's memory: its holders, their shares, and the rules for freeing memory when too much is held.

Each holder has an account in the router's budget. The octets of a message count on the account of the holder at which
the message waits:

- the sender's connection, until the message's address is known;
- a node, while no receiver of the node can take the message;
- the receiver's connection, once the router has begun to send the message and the receiver does not read. There are two
  exceptions, whose messages stay on the node's account: a lane, since many senders share it, and a multicast, since it
  has many receivers.

The *share* of a holder is a sixteenth of the budget, and less where there are more than sixteen holders:

    share = limit / max(16, holders)

So all shares together are at most the budget. When the budget is used up, a holder below its share goes on as before. A
holder above its share gets nothing more:

- a node gives its senders no credit;
- a message that needs no credit of the node returns to its sender;
- the output of a connection is limited to one share.

Messages under way may still arrive. When the memory in use exceeds twice the budget, the largest holders free memory
(`delivery.memory_pressure`). There a principal is one holder, with its connections, and with what is kept for it while
it is away.

The router's own answers, and requests to its own nodes, count in a reserve that no other holder can use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router.kernel import Budget
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import OwnNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.kernel import Leg, Relay
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.node import Node
    from amqpmesh.router.model.usage import Usage

#: A holder's share is 1 / n of the memory, with this n or the number of holders, whichever is larger.
SHARES: Final = 16

#: The reserve is 1 / n of the memory.
RESERVE: Final = 16


class Memory:
    """The budget of a router, and the state of being used up."""

    __slots__ = ("_shared", "_workers", "budget", "frees", "in_vain", "on_portion", "reserve", "used_up", "withheld")

    def __init__(self, limit: int, workers: int = 1, shared: dict[Budget, Usage] | None = None) -> None:
        """Args: limit: octets. While more are in use, only holders below their share get more.

        workers: of the router. shared: parts of the memory that they share, with the counts of their owners.
        """
        self.budget = Budget(limit)
        #: For the router's own answers and requests.
        self.reserve = Budget(limit // RESERVE, self.budget)
        #: The limit was exceeded, and less than a tenth of it is free since.
        self.used_up = False
        #: Holders make room now, in steps.
        self.frees = False
        #: The octets that were in use when holders had made room, and it was not enough; 0: it was, or is not needed.
        self.in_vain = 0
        self._workers = workers
        self._shared = {} if shared is None else shared
        #: Called when this worker has taken a portion of a part that the workers share.
        self.on_portion: Callable[[Usage], object] = lambda usage: None
        #: Nodes that give their senders no credit because they are above their share.
        self.withheld: dict[Node, None] = {}

    @property
    def share(self) -> int:
        """Octets that each holder may have when the memory is used up."""
        budget = self.budget  # as `share_of`, which would be one more call for each address that a sender names
        return budget.limit // (SHARES if budget.holders <= SHARES else budget.holders)

    @property
    def is_exceeded(self) -> bool:
        """True if the largest holders must free memory."""
        return self.budget.used > 2 * self.budget.limit

    def is_over(self, account: Budget) -> bool:
        """Return whether a holder gets no more memory: the budget is used up, and the holder is above its share."""
        whole = account.whole
        if whole is not self.budget:
            return whole is not None and self._is_over_part(account, whole)
        if account is self.reserve or not (self.used_up or whole.used > whole.limit):
            return False
        return account.used > self.share

    def _is_over_part(self, account: Budget, part: Budget) -> bool:
        """Return the same of a holder in a part of the memory, which a user or a tenant may take.

        The part itself is a holder in the memory that it is of.
        """
        if part.used > part.limit:
            usage = self._shared.get(part)
            if usage is not None and usage.octets is not None and part.used > usage.octets.taken:
                usage.fit()
                self.on_portion(usage)
        if account.used <= self._share_of_part(part):
            return False
        return part.used > part.limit or self.is_over(part)

    def room(self, account: Budget) -> int:
        """Return the octets that a holder may have when the memory, or the part that it is in, is used up."""
        return self.share if account.whole is None else min(self.share, self._share_of_part(account.whole))

    def _share_of_part(self, part: Budget) -> int:
        usage = self._shared.get(part) if self._shared else None
        if usage is None or usage.octets is None:
            return share_of(part)
        # As many holders may be at each of the other workers: the shares of all are at most the limit.
        return usage.octets.limit // max(SHARES, part.holders * self._workers)


def share_of(budget: Budget) -> int:
    """Return the octets that each holder in a memory may have when that is used up."""
    return budget.limit // max(SHARES, budget.holders)


def waiting_at(memory: Memory, relay: Relay, node: Node) -> Budget:
    """Return the account of a message that waits at a node.

    A message from the router itself, or to one of its own nodes, uses the reserve while some of it is left.
    """
    source, reserve = relay.source, memory.reserve
    is_own = isinstance(node, OwnNode) or (isinstance(source, IncomingLink) and source.connection.own)
    return reserve if is_own and reserve.used < reserve.limit else node.account


def begun_on(relay: Relay, outgoing: OutgoingLink) -> Budget:
    """Return the account of the remaining frames of a message whose first frame was sent on a link."""
    if outgoing.lane is None and not outgoing.node.is_multicast:
        return outgoing.connection.account
    return _node(relay, outgoing).account


def _node(relay: Relay, outgoing: OutgoingLink) -> Node:
    # The legs of a multicast belong to several nodes if it has consumers here and at other routers. Its octets count at
    # one of them.
    return relay.node or outgoing.node  # type: ignore[return-value]  # the kernel knows no addresses


def hold(memory: Memory, leg: Leg) -> None:
    """Count the unsent octets of a leg that cannot continue, on the account of the holder that it waits for."""
    outgoing = leg.outgoing
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
    """Count the unwritten output of a peer that does not read. Above its share the connection gets no more output."""
    flow_state = record.engine.flow_state
    unwritten = record.unwritten
    record.account.add(unwritten - record.counted)
    record.counted = unwritten
    most = record.output_backlog
    flow_state.backlog = min(most, memory.room(record.account)) if memory.is_over(record.account) else most


def forget_output(record: ConnectionRecord) -> None:
    """Remove a peer's output from its account: all of it is written, or never will be."""
    record.account.add(-record.counted)
    record.counted = 0
    record.engine.flow_state.backlog = record.output_backlog


def check_node(memory: Memory, node: Node, *, draining: bool) -> None:
    """Suspend a node's credit if the node is above its share or the router drains; otherwise, resume it."""
    is_over = node.buffered > 0 and memory.is_over(node.account)
    if is_over:
        memory.withheld[node] = None
    elif memory.withheld:
        memory.withheld.pop(node, None)
    suspended = is_over or draining
    if suspended != node.suspended:
        node.suspended = suspended
        if node.made_pool is not None:
            # A tenant that may take only a part of the memory must not fill it with credit that it was given before.
            node.made_pool.set_suspended(suspended, at_once=is_over and node.account.whole is not memory.budget)
