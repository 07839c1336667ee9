"""What the router knows of a link beyond its protocol: whose it is, which address it serves, and what is on it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from amqpmesh.router import kernel
from amqpmesh.router.amqp.standard.messaging import Source
from amqpmesh.router.credit.sinks import MANY_SENDERS
from amqpmesh.router.small_set import shared, with_item, without_item

if TYPE_CHECKING:
    from amqpmesh.router.amqp.link import Receiver, Sender
    from amqpmesh.router.credit.pool import Pool
    from amqpmesh.router.credit.sinks import FixedCredit, Input
    from amqpmesh.router.credit.sources import Branch
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.node import Address


#: What identifies a link between two containers, for a second attach to steal it (§2.6.1): virtual host, principal,
#: container-id, link name, and whether we send.
LinkKey = tuple[str, str, str, str, bool]


#: What most links have in common; nothing is ever in it.
_NO_BACKLOG: Final[deque[kernel.Leg]] = deque(maxlen=0)
_NOTHING_LARGE: Final[dict[Address, kernel.Leg]] = {}

#: Large deliveries between routers fill this part of what may wait to be written, 1 / n.
BULK_PART: Final = 2


class IncomingLink:
    """A link that deliveries come in by. We are its receiver; the peer is a producer."""

    __slots__ = (
        "address",
        "attached_at",
        "bulk",
        "connection",
        "container",
        "from_old_parent",
        "input",
        "key",
        "lane",
        "link",
        "number",
        "pool",
        "remembered",
        "to",
        "waiting",
        "zero_credit_since",
    )

    def __init__(
        self,
        connection: ConnectionRecord,
        link: Receiver,
        address: Address | None,
        pool: Pool | FixedCredit,
        *,
        number: int,
        now: float,
        lane: Lane | None = None,
        large: bool = False,
        to: str | None = None,
        container: str | None = None,
    ) -> None:
        """Args: large: it is one of a lane's for what is large."""
        self.number = number
        #: A neighbour sends here what belongs to this lane; None: a client sends.
        self.lane = lane
        #: Where all its deliveries go: to a node of another router. None: see `address`, and `container`.
        self.to = to
        #: The container where all its deliveries go, to `to` or each by its own. None: see `address`.
        self.container = container
        #: Seconds, as all times here. None: it has credit; no delivery has come.
        self.attached_at = now
        self.zero_credit_since: float | None = now
        self.connection = connection
        self.link = link
        #: Where its deliveries go; None: each by its own `to` (the anonymous terminus).
        self.address = address
        self.pool = pool
        self.input: Input = pool.add_input(link.delivery_count, self, large)
        #: Routers know what a lower limit is.
        self.input.firm = lane is None
        self.input.lowers = lane is not None
        if lane is not None:
            self.input.times = MANY_SENDERS
        #: By way out, the leg of its last large relay, on a bulk link: what comes behind it may not pass it.
        #: To be read; see `begin_bulk`.
        self.bulk: dict[Address, kernel.Leg] = _NOTHING_LARGE
        #: A tree's lane of a neighbour that is not the parent any more: what still comes would come twice.
        self.from_old_parent = False
        #: Of a transit lane: deliveries that wait here, and for which it was given credit again.
        self.waiting = 0
        self.key: LinkKey | None = None
        #: Octets of what the peer has called it that count against the peer.
        self.remembered = 0
        flow_state = link.flow_state
        flow_state.record = self
        flow_state.number = number
        flow_state.lane = lane is not None
        # On a lane it is many senders who owe, each of them bounded where it is attached.
        flow_state.max_outstanding = connection.limits.max_owed if lane is None else kernel.MANY
        source = link.remote.source if link.remote is not None else None
        flow_state.selective = isinstance(source, Source) and bool(source.outcomes)

    def begin_bulk(self, way: Address, leg: kernel.Leg) -> None:
        """A large relay leaves by a bulk link of `way`."""
        if self.bulk is _NOTHING_LARGE:
            self.bulk = {}
        self.bulk[way] = leg
        self.link.flow_state.behind = True

    def end_bulk(self, way: Address, leg: kernel.Leg) -> None:
        """No more frames of it are to be written: what comes behind it need not follow it any more."""
        if self.bulk.get(way) is leg:
            del self.bulk[way]
            self.link.flow_state.behind = bool(self.bulk)

    @property
    def current(self) -> kernel.Relay | None:
        """The relay whose frames are coming in."""
        return self.link.flow_state.relay

    @current.setter
    def current(self, relay: kernel.Relay | None) -> None:
        self.link.flow_state.relay = relay

    @property
    def last_delivery_at(self) -> float | None:
        """When the last delivery came, seconds; None: none has."""
        at = self.link.flow_state.last_at
        return None if at < 0 else at

    @property
    def awaiting_settlement(self) -> int:
        """Deliveries of mode second that it was told the outcome of, and has not settled."""
        return self.link.flow_state.outstanding

    @awaiting_settlement.setter
    def awaiting_settlement(self, count: int) -> None:
        self.link.flow_state.outstanding = count

    def time_credit(self, now: float) -> None:
        """Whether it has credit may have changed."""
        if self.link.flow_state.link_credit:
            self.zero_credit_since = None
        elif self.zero_credit_since is None:
            self.zero_credit_since = now


class OutgoingLink:
    """A link that deliveries leave by. We are its sender; the peer is a consumer."""

    __slots__ = (
        "address",
        "attached_at",
        "backlog",
        "branch",
        "connection",
        "copies",
        "copy",
        "cost",
        "drain_by",
        "gone",
        "key",
        "lane",
        "link",
        "missed",
        "number",
        "remembered",
        "retired",
        "skipped",
        "stalled_since",
        "zero_credit_since",
    )

    def __init__(
        self,
        connection: ConnectionRecord,
        link: Sender,
        address: Address,
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
        #: A neighbour takes here what belongs to this lane; None: a client takes.
        self.lane = lane
        #: What reaching the consumer costs; one that is attached here, 1.
        self.cost = cost
        #: Seconds, as all times here. None: it has credit; no delivery has left.
        self.attached_at = now
        self.zero_credit_since: float | None = now
        self.connection = connection
        self.link = link
        self.address = address
        #: It sees each delivery and takes it from nobody (§3.5.7).
        self.copy = copy
        self.branch: Branch | None = None
        #: Copies that wait for credit.
        self.backlog: deque[kernel.Leg] = deque() if copy else _NO_BACKLOG
        #: Octets of copies that wait, if it sees copies.
        self.copies = kernel.Budget(address.config.copy_backlog, connection.account) if copy else None
        #: Copies that it did not see, because its backlog was full.
        self.missed = 0
        #: Until when its drain waits for the senders, seconds, if it has asked for one.
        self.drain_by = 0.0
        #: A multicast waits for its credit since then.
        self.stalled_since: float | None = None
        #: A multicast goes on without it until it gives credit again.
        self.skipped = False
        #: A lane that another has taken the place of: it is detached once nothing on it is unsettled.
        self.retired = False
        self.gone = False
        self.key: LinkKey | None = None
        #: Octets of what the peer has called it that count against the peer.
        self.remembered = 0
        flow_state = link.flow_state
        flow_state.record = self
        flow_state.number = number
        flow_state.lane = lane is not None
        flow_state.max_outstanding = max_unsettled
        flow_state.fallback_outcome = default_outcome or kernel.FAILED_STATE

    @property
    def default_outcome(self) -> bytes:
        """The encoded outcome that stands where the receiver gave none; never `accepted`."""
        return self.link.flow_state.fallback_outcome

    @property
    def is_over(self) -> bool:
        """It takes nothing any more, though it may not be let go of yet."""
        return self.link.flow_state.ended

    @property
    def bulk(self) -> bool:
        """A further link of a lane, for deliveries of more than one frame, in a session that no small one waits for."""
        return self.link.flow_state.part != 1

    @bulk.setter
    def bulk(self, bulk: bool) -> None:
        self.link.flow_state.part = BULK_PART if bulk else 1

    @property
    def last_delivery_at(self) -> float | None:
        """When the last delivery left, seconds; None: none has."""
        at = self.link.flow_state.last_at
        return None if at < 0 else at

    @property
    def current(self) -> kernel.Leg | None:
        """The leg whose frames are being written."""
        return self.link.flow_state.leg

    @current.setter
    def current(self, leg: kernel.Leg | None) -> None:
        self.link.flow_state.leg = leg

    @property
    def outstanding(self) -> int:
        """The number of deliveries that were sent on the link and are not settled."""
        return self.link.flow_state.outstanding

    @outstanding.setter
    def outstanding(self, outstanding: int) -> None:
        self.link.flow_state.outstanding = outstanding

    @property
    def max_unsettled(self) -> int:
        """How many there may be."""
        return self.link.flow_state.max_outstanding

    @max_unsettled.setter
    def max_unsettled(self, most: int) -> None:
        self.link.flow_state.max_outstanding = most

    @property
    def turn(self) -> int:
        """The number of the choice that took it last."""
        return self.link.flow_state.turn

    @turn.setter
    def turn(self, turn: int) -> None:
        self.link.flow_state.turn = turn

    @property
    def busy(self) -> bool:
        """It is in the middle of a delivery, and transfers of one link never interleave (§2.6.14)."""
        return self.current is not None

    @property
    def is_ready(self) -> bool:
        """It can take the first frame of a delivery now."""
        flow_state = self.link.flow_state
        return (
            self.current is None
            and flow_state.link_credit > 0
            and flow_state.session.remote_incoming_window > 0
            and self.outstanding + self.connection.unsettled_after_detach.get(self.address, 0) < self.max_unsettled
            and not self.is_held_up
            and not flow_state.ended
        )

    @property
    def usable(self) -> int:
        """How many deliveries it can take, as far as its credit, its window and its output go."""
        flow_state = self.link.flow_state
        if (
            flow_state.ended
            or flow_state.session.remote_incoming_window <= 0
            or self.is_held_up
            or (self.current is not None and self.current.chunks)
        ):
            return 0
        unsettled = self.outstanding + self.connection.unsettled_after_detach.get(self.address, 0)
        return max(0, min(flow_state.link_credit, self.max_unsettled - unsettled))

    @property
    def available(self) -> int:
        """How many deliveries wait for its credit (§2.6.7). While it has some, what waits in spite of that is large, if
        another link of the lane is for that."""
        address = self.address
        has_credit = self.lane is not None and not self.bulk and self.link.flow_state.link_credit > 0
        if has_credit and any(each.bulk for each in address.outgoing):  # of a lane, which are few
            return 0
        return address.waiting.size

    def note_credit(self) -> None:
        """It has credit, or has none: only those that have are looked at when a delivery goes."""
        if self.link.flow_state.link_credit > 0 and not (self.gone or self.copy or self.retired):
            self.address.creditors = shared(with_item(self.address.creditors, self), self.address.outgoing)
        else:
            self.address.creditors = without_item(self.address.creditors, self)

    def time_credit(self, now: float) -> None:
        """Whether it has credit may have changed."""
        if self.link.flow_state.link_credit:
            self.zero_credit_since = None
        elif self.zero_credit_since is None:
            self.zero_credit_since = now

    def stall(self) -> None:
        """It was wanted and could not send, for its session's window or its connection's output: it is to be looked at
        when that has changed."""
        session = self.link.session
        if session.flow_state.remote_incoming_window <= 0:
            session.stalled[self] = None
        elif self.is_held_up:
            self.connection.stalled[self] = None

    @property
    def is_held_up(self) -> bool:
        """Too much waits to be written to the peer. What is large stops first, so that the small pass it."""
        return self.connection.is_congested(self.link.flow_state.part)

    def next_tag(self, key: bytes | None = None) -> bytes:
        """A delivery-tag that no unsettled delivery of this link has. Args: key: what it should be on a lane."""
        flow_state = self.link.flow_state
        if key is not None and self.lane is not None and not flow_state.has_tag(key):
            return key
        while True:
            flow_state.last_tag += 1
            tag = b"%x" % flow_state.last_tag  # python-qpid-proton reads tags as text, and fails if they are none
            if self.lane is None or not flow_state.has_tag(tag):
                return tag
