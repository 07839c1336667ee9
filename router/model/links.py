"""Links as the router sees them, beyond the protocol: their connections, their nodes, and their deliveries."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final

from amqpmesh.router import kernel
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.kernel import MANY_SENDERS
from amqpmesh.router.model.credited_link import CreditedLink
from amqpmesh.router.small_set import shared, with_item, without_item
from amqpmesh.router.statistics.common import Direction

if TYPE_CHECKING:
    from amqpmesh.router.amqp.link import Receiver, Sender
    from amqpmesh.router.amqp.standard.performatives import Flow
    from amqpmesh.router.credit.fixed_credit import FixedCredit
    from amqpmesh.router.kernel import CreditSink, CreditSource, Pool
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.foreign_links import Foreign
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.node import Node


#: The identity of a link between two containers, by which a second attach steals it (§2.6.1): virtual host, principal,
#: container-id, link name, and the direction (True: we send).
LinkKey = tuple[str, str, str, str, str, bool]

#: Shared empty values of most links; nothing is ever added to them.
_NO_BACKLOG: Final[deque[kernel.Leg]] = deque(maxlen=0)
_NOTHING_LARGE: Final[dict[Node, kernel.Leg]] = {}

#: Large deliveries between routers may fill 1 / n of the output that may wait to be written.
BULK_PART: Final = 2


class IncomingLink(CreditedLink):
    """A link on which deliveries arrive. This router is the receiver; the peer is a producer."""

    __slots__ = (
        "attached_at",
        "bulk",
        "connection",
        "container",
        "credit_sink",
        "endpoint",
        "from_old_parent",
        "key",
        "lane",
        "node",
        "number",
        "pool",
        "remembered",
        "to",
        "waiting",
    )

    endpoint: Receiver
    direction: ClassVar = Direction.INCOMING
    #: No copies wait on the link.
    backlog: ClassVar = _NO_BACKLOG
    foreign: Foreign | None = None  # of a `ForeignIncomingLink`

    def __init__(
        self,
        connection: ConnectionRecord,
        endpoint: Receiver,
        node: Node | None,
        pool: Pool | FixedCredit,
        *,
        number: int,
        now: float,
        lane: Lane | None = None,
        large: bool = False,
        to: str | None = None,
        container: str | None = None,
    ) -> None:
        """Args: large: the link is a lane's second one, for large deliveries."""
        self.number = number
        #: The lane whose deliveries a neighbour sends on the link; None: the peer is a client.
        self.lane = lane
        #: The node of another router that all its deliveries go to; None: see `node` and `container`.
        self.to = to
        #: The container that all its deliveries go to, at the node `to` or at the node that each names. None: see
        #: `node`.
        self.container = container
        #: Seconds, as all times here.
        self.attached_at = now
        self.connection = connection
        self.endpoint = endpoint
        #: The node that its deliveries go to; None: each names its own in `to` (the anonymous terminus).
        self.node = node
        self.pool = pool
        self.credit_sink: CreditSink = pool.add_sink(endpoint.delivery_count, self, large)
        #: A router understands a lower limit; a client might not, and is asked to drain.
        self.credit_sink.firm = lane is None
        self.credit_sink.lowers = lane is not None
        if lane is not None:
            self.credit_sink.times = MANY_SENDERS
        #: The leg of its last large relay, by the node that it leaves from on a bulk link: deliveries behind it may not
        #: overtake it. The table may be shared: `begin_bulk` adds to it.
        self.bulk: dict[Node, kernel.Leg] = _NOTHING_LARGE
        #: True for a tree's lane from a neighbour that is no longer the parent: the parent sends its deliveries, too.
        self.from_old_parent = False
        #: For a transit lane: deliveries that wait here although their credit was renewed.
        self.waiting = 0
        self.key: LinkKey | None = None
        self.grant = None
        #: Octets of its names that count on the peer's account.
        self.remembered = 0
        flow_state = endpoint.flow_state
        flow_state.record = self
        flow_state.number = number
        flow_state.dry_since = now
        if self.credit_sink.pool is not None:
            self.credit_sink.link = flow_state
            flow_state.sink = self.credit_sink
        flow_state.lane = lane is not None
        flow_state.anonymous = node is None
        # A lane carries deliveries of many senders. Each sender is limited at the router that it is attached to.
        flow_state.max_outstanding = connection.limits.max_owed if lane is None else kernel.MANY
        source = endpoint.remote.source if endpoint.remote is not None else None
        flow_state.selective = isinstance(source, Source) and bool(source.outcomes)

    def begin_bulk(self, node: Node, leg: kernel.Leg) -> None:
        """Note that a large relay leaves by a bulk link of the node `node`."""
        if self.bulk is _NOTHING_LARGE:
            self.bulk = {}
        self.bulk[node] = leg
        self.endpoint.flow_state.behind = True

    def end_bulk(self, node: Node, leg: kernel.Leg) -> None:
        """Note that no more frames of a large relay will be written: later deliveries need not wait for it any more."""
        if self.bulk.get(node) is leg:
            del self.bulk[node]
            self.endpoint.flow_state.behind = bool(self.bulk)

    def __del__(self) -> None:
        self.connection.freed.count += 1

    @property
    def current(self) -> kernel.Relay | None:
        """The relay whose frames are arriving."""
        return self.endpoint.flow_state.relay

    @current.setter
    def current(self, relay: kernel.Relay | None) -> None:
        self.endpoint.flow_state.relay = relay

    @property
    def last_delivery_at(self) -> float | None:
        """The time when the last delivery began, seconds; None: there was none."""
        at = self.endpoint.flow_state.last_at
        return None if at < 0 else at

    @property
    def awaiting_settlement(self) -> int:
        """Deliveries of rcv-settle-mode second whose outcome the sender knows, and which it has not settled."""
        return self.endpoint.flow_state.outstanding

    @awaiting_settlement.setter
    def awaiting_settlement(self, count: int) -> None:
        self.endpoint.flow_state.outstanding = count

    @property
    def peer_terminus(self) -> object:
        """The terminus in this router, as the peer's `attach` describes it; None: the peer has not attached."""
        remote = self.endpoint.remote
        return None if remote is None else remote.target

    @property
    def unsettled(self) -> int:
        """The number of unsettled deliveries."""
        return len(self.endpoint.flow_state.unsettled)

    @property
    def has_unsettled(self) -> bool:
        """True if a delivery is unsettled."""
        return bool(self.endpoint.flow_state.unsettled)

    def flow_received(self, flow: Flow, now: float) -> None:
        """Change the credit by the sender's `flow`, which has a delivery-count (§2.6.7)."""
        assert flow.delivery_count is not None
        self.pool.flow_received(self.credit_sink, flow.delivery_count, flow.link_credit, flow.available, now)
        self.endpoint.flow_state.credit_slack = self.credit_sink.credit_slack
        self.time_credit(now)

    def suspend(self) -> None:
        """Keep the link with its unsettled deliveries, after a detach that did not close it (§2.7.6)."""
        self.connection.detached_unsettled[self] = 0

    def end_suspension(self, count: int) -> Node | None:  # noqa: ARG002 - only sent deliveries count at a node
        """Return the node whose other links may take more deliveries now. Args: count: deliveries counted there."""
        return None

    def leave_connection(self) -> bool:
        """Take the link from the links of its connection. Returns: whether it was one of them."""
        return self.connection.incoming.pop(self, 0) != 0

    def leave_node(self, now: float) -> None:
        """Take the link from its node and from its pool of credit."""
        self.pool.remove_sink(self.credit_sink, now)
        if self.node is not None:
            self.node.incoming = without_item(self.node.incoming, self)


class OutgoingLink(CreditedLink):
    """A link on which deliveries leave. This router is the sender; the peer is a consumer."""

    __slots__ = (
        "attached_at",
        "backlog",
        "connection",
        "copies",
        "copy",
        "cost",
        "credit_source",
        "drain_by",
        "endpoint",
        "gone",
        "key",
        "lane",
        "node",
        "number",
        "remembered",
        "retired",
        "skipped",
        "stalled_since",
    )

    endpoint: Sender
    direction: ClassVar = Direction.OUTGOING
    foreign: Foreign | None = None  # of a `ForeignOutgoingLink`

    def __init__(
        self,
        connection: ConnectionRecord,
        endpoint: Sender,
        node: Node,
        *,
        copy: bool,
        default_outcome: bytes | None,
        max_unsettled: int,
        number: int,
        now: float,
        lane: Lane | None = None,
        cost: int = 1,
    ) -> None:
        self.number = number
        #: The lane whose deliveries a neighbour receives on the link; None: the peer is a client.
        self.lane = lane
        #: The cost of reaching the consumer; 1 for a consumer that is attached to this router.
        self.cost = cost
        #: Seconds, as all times here.
        self.attached_at = now
        self.connection = connection
        self.endpoint = endpoint
        self.node = node
        #: True if the receiver gets a copy of each delivery, and takes it from no other receiver (§3.5.7).
        self.copy = copy
        self.credit_source: CreditSource | None = None
        #: Copies that wait for credit.
        self.backlog: deque[kernel.Leg] = deque() if copy else _NO_BACKLOG
        #: The account of the octets of waiting copies; None: the receiver gets no copies.
        self.copies = kernel.Budget(node.config.copy_backlog, connection.account) if copy else None
        #: The time until which its drain waits for the senders, seconds; only while it drains.
        self.drain_by = 0.0
        #: The time since which a multicast waits for this receiver; None: it does not wait.
        self.stalled_since: float | None = None
        #: True if a multicast skips this receiver until it gives credit again.
        self.skipped = False
        #: True for the link of a lane that another link has replaced: it is detached once all deliveries are settled.
        self.retired = False
        self.gone = False
        self.grant = None
        self.key: LinkKey | None = None
        #: Octets of its names that count on the peer's account.
        self.remembered = 0
        flow_state = endpoint.flow_state
        flow_state.record = self
        flow_state.number = number
        flow_state.dry_since = now
        flow_state.lane = lane is not None
        flow_state.max_outstanding = max_unsettled
        flow_state.fallback_outcome = default_outcome or kernel.FAILED_STATE

    def __del__(self) -> None:
        self.connection.freed.count += 1

    @property
    def default_outcome(self) -> bytes:
        """The encoded outcome of deliveries to which the receiver gave none; never `accepted`."""
        return self.endpoint.flow_state.fallback_outcome

    @property
    def is_over(self) -> bool:
        """True if the link has ended and takes no more deliveries; its former deliveries may not have ended yet."""
        return self.endpoint.flow_state.ended

    @property
    def bulk(self) -> bool:
        """True for a further link of a lane, for deliveries of several frames. Its session delays no small delivery."""
        return self.endpoint.flow_state.part != 1

    @bulk.setter
    def bulk(self, bulk: bool) -> None:
        self.endpoint.flow_state.part = BULK_PART if bulk else 1

    @property
    def last_delivery_at(self) -> float | None:
        """The time when the last delivery began, seconds; None: there was none."""
        at = self.endpoint.flow_state.last_at
        return None if at < 0 else at

    @property
    def current(self) -> kernel.Leg | None:
        """The leg whose frames are being written."""
        return self.endpoint.flow_state.leg

    @current.setter
    def current(self, leg: kernel.Leg | None) -> None:
        self.endpoint.flow_state.leg = leg

    @property
    def outstanding(self) -> int:
        """The number of deliveries that were sent on the link and are not settled."""
        return self.endpoint.flow_state.outstanding

    @outstanding.setter
    def outstanding(self, outstanding: int) -> None:
        self.endpoint.flow_state.outstanding = outstanding

    @property
    def max_unsettled(self) -> int:
        """The largest number of unsettled deliveries on the link."""
        return self.endpoint.flow_state.max_outstanding

    @max_unsettled.setter
    def max_unsettled(self, most: int) -> None:
        self.endpoint.flow_state.max_outstanding = most

    @property
    def missed(self) -> int:
        """Deliveries that this receiver missed: its backlog was full, or a multicast skipped it."""
        return self.endpoint.flow_state.missed

    @missed.setter
    def missed(self, missed: int) -> None:
        self.endpoint.flow_state.missed = missed

    @property
    def turn(self) -> int:
        """The number of the latest choice among links that has taken this one."""
        return self.endpoint.flow_state.turn

    @turn.setter
    def turn(self, turn: int) -> None:
        self.endpoint.flow_state.turn = turn

    @property
    def busy(self) -> bool:
        """True if a delivery is half sent: the transfers of two deliveries never interleave on a link (§2.6.14)."""
        return self.current is not None

    @property
    def is_ready(self) -> bool:
        """True if the link can take the first frame of a delivery now."""
        flow_state = self.endpoint.flow_state
        return (
            self.current is None
            and flow_state.link_credit > 0
            and flow_state.session.remote_incoming_window > 0
            and self.outstanding + self.connection.unsettled_after_detach.get(self.node, 0) < self.max_unsettled
            and not self.is_held_up
            and not flow_state.ended
        )

    @property
    def usable(self) -> int:
        """The number of deliveries that its credit, its session's window and its connection's output let it take."""
        flow_state = self.endpoint.flow_state
        if (
            flow_state.ended
            or flow_state.session.remote_incoming_window <= 0
            or self.is_held_up
            or (self.current is not None and self.current.chunks)
        ):
            return 0
        unsettled = self.outstanding + self.connection.unsettled_after_detach.get(self.node, 0)
        return max(0, min(flow_state.link_credit, self.max_unsettled - unsettled))

    @property
    def available(self) -> int:
        """The number of deliveries that wait for its credit (§2.6.7).

        It is 0 for a lane's link that has credit, if the lane has a bulk link: the waiting deliveries are large then,
        and wait for the bulk link.
        """
        node = self.node
        has_credit = self.lane is not None and not self.bulk and self.endpoint.flow_state.link_credit > 0
        if has_credit and any(each.bulk for each in node.outgoing):  # of a lane, which are few
            return 0
        return node.waiting.size

    def note_credit(self) -> None:
        """Add the link to its node's `creditors` if it has credit, else remove it: only creditors are asked to send."""
        flow_state = self.endpoint.flow_state
        flow_state.creditor = flow_state.link_credit > 0
        if flow_state.creditor and not (self.gone or self.copy or self.retired):
            self.node.creditors = shared(with_item(self.node.creditors, self), self.node.outgoing)
        else:
            self.node.creditors = without_item(self.node.creditors, self)

    def join_pool(self, *, counts: bool = True) -> None:
        """Add the link to its node's pool, as a source of credit. Args: counts: as of `PoolState.add_source`."""
        self.credit_source = source = self.node.pool.add_source(0, self.cost, counts, self)
        flow_state = self.endpoint.flow_state
        source.link = flow_state
        flow_state.source = source

    def stall(self) -> None:
        """Note that a delivery could not be sent for want of session window or output space.

        The session or the connection tries the link again when that changes.
        """
        session = self.endpoint.session
        if session.flow_state.remote_incoming_window <= 0:
            session.stalled[self] = None
        elif self.is_held_up:
            self.connection.stalled[self] = None

    @property
    def is_held_up(self) -> bool:
        """True if too much output waits for the peer. A bulk link stops at a lower limit: small deliveries pass it."""
        return self.connection.is_congested(self.endpoint.flow_state.part)

    def next_tag(self, key: bytes | None = None) -> bytes:
        """Return a delivery-tag that no unsettled delivery of this link has. Args: key: the tag to use on a lane."""
        flow_state = self.endpoint.flow_state
        if key is not None and self.lane is not None and not flow_state.has_tag(key):
            return key
        while True:
            flow_state.last_tag += 1
            tag = b"%x" % flow_state.last_tag  # python-qpid-proton reads tags as text, and fails on other octets
            if self.lane is None or not flow_state.has_tag(tag):
                return tag

    @property
    def peer_terminus(self) -> object:
        """The terminus in this router, as the peer's `attach` describes it; None: the peer has not attached."""
        remote = self.endpoint.remote
        return None if remote is None else remote.source

    @property
    def unsettled(self) -> int:
        """The number of unsettled deliveries."""
        return self.outstanding

    @property
    def has_unsettled(self) -> bool:
        """True if a delivery is unsettled. The map lacks fast deliveries, which `outstanding` counts."""
        return bool(self.endpoint.flow_state.unsettled) or self.outstanding > 0

    def suspend(self) -> None:
        """Keep the link with its unsettled deliveries, after a detach that did not close it (§2.7.6).

        The deliveries still count at the node, against what the connection's other links to it may have unsettled.
        """
        record = self.connection
        record.detached_unsettled[self] = self.outstanding
        held = record.unsettled_after_detach.get(self.node, 0)
        record.unsettled_after_detach[self.node] = held + self.outstanding
        self.max_unsettled = 0  # so that each settlement on it touches the link

    def end_suspension(self, count: int) -> Node | None:
        """Return the node whose other links may take more deliveries now. Args: count: deliveries counted there."""
        held = self.connection.unsettled_after_detach.pop(self.node, 0) - count
        if held > 0:
            self.connection.unsettled_after_detach[self.node] = held
        return self.node

    def leave_connection(self) -> bool:
        """Take the link from the links of its connection. Returns: whether it was not taken from them before."""
        if self.gone:
            return False
        self.gone = True
        self.connection.outgoing.pop(self, None)
        return True

    def leave_node(self, now: float) -> None:
        """Take the link from its node, and its credit from the node's pool."""
        node = self.node
        node.outgoing = without_item(node.outgoing, self)
        if node.copies or node.draining or node.creditors:
            node.copies = without_item(node.copies, self)
            node.draining = without_item(node.draining, self)
            node.creditors = without_item(node.creditors, self)
        if self.credit_source is not None and node.made_pool is not None:
            node.made_pool.remove_source(self.credit_source, now)
