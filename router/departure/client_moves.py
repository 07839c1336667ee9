"""The move of one client: its links come to rest, then its connection is closed."""

from __future__ import annotations

from enum import Enum, auto
from itertools import islice
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.standard.conditions import ConnectionCondition
from amqpmesh.router.amqp.standard.definitions import Error
from amqpmesh.router.credit.fixed_credit import FixedCredit
from amqpmesh.router.delivery.link_loss import close_connection, retire_receiver, withdraw_sender
from amqpmesh.router.endpoint_setup import REDIRECT
from amqpmesh.router.model.node import DynamicNode
from amqpmesh.router.model.redirects import info

if TYPE_CHECKING:
    from amqpmesh.policies.redirect import Redirect
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.links import IncomingLink, OutgoingLink

HEARING_TIME: Final = 0.1
"""Seconds that senders have to use or return their credit. Many clients without messages do not answer."""

ARRIVAL_TIME: Final = 0.05
"""Seconds for messages that senders have sent before they heard that their credit is taken back; also the most that a
client hears nothing of its connection while it can send nothing.
"""

QUIET_TIME: Final = 0.1
"""Seconds without a delivery after which no answer to a request of the client is expected any more."""

LINKS_A_STEP: Final = 100
"""Links that one step brings to rest: each takes some 20 us."""

DEPARTED: Final = "the router is about to stop: connect to another one"
"""The description that a peer gets."""


class _Stage(Enum):
    RECEIVING = auto()
    """Its receivers get nothing new, and decide about what they have; its senders may send what follows from that."""
    SENDING = auto()
    """Its senders get no more credit, and use or return what they have."""
    ARRIVING = auto()
    """Senders that have not answered have lost their credit. What they sent before they knew still arrives."""
    SETTLING = auto()
    """The rest of its deliveries is being settled."""


class ClientMove:
    """The move of a client's connection.

    Receivers come before senders: a client that receives and sends on decides about a delivery once it could send.
    """

    __slots__ = ("_until", "place", "record", "stage")

    def __init__(self, record: ConnectionRecord, place: Redirect | None) -> None:
        """Args: place: the router to which a client is sent that follows redirects; None: there is none."""
        self.record = record
        self.place = place
        self.stage = _Stage.RECEIVING
        self._until = 0.0

    def go_on(self, context: Context) -> bool:
        """Do what can be done now. Returns: whether the connection is closed."""
        record = self.record
        if record.lost:
            return True
        # Also of links that were attached in the meantime.
        if not _retire_receivers(context, record) or any(map(_is_busy_receiver, record.outgoing)):
            return False
        if self.stage is _Stage.RECEIVING:
            self.stage, self._until = _Stage.SENDING, context.now + HEARING_TIME
        if not _withdraw_senders(context, record):
            return False
        if self.stage is _Stage.SENDING:
            if context.now < self._until and _may_send(record):
                return False
            if not _take_back_credit(context, record):
                return False
            self.stage, self._until = _Stage.ARRIVING, context.now + ARRIVAL_TIME
        if self.stage is _Stage.ARRIVING:
            if context.now < self._until and _may_send(record):
                return False
            self.stage, self._until = _Stage.SETTLING, context.now + QUIET_TIME
        if record.unfinished is not None or record.detached_unsettled or not self._is_quiet(context.now):
            return False
        links: list[IncomingLink | OutgoingLink] = [*record.incoming, *record.outgoing]
        if any(each.has_unsettled or each.current is not None for each in links):
            return False
        turn_away(context, record, self.place)
        return True

    def _is_quiet(self, now: float) -> bool:
        """Return True if the client seems to expect no answer at a dynamic node of its own."""
        latest = None
        for each in self.record.outgoing:
            if isinstance(each.node, DynamicNode):
                latest = max(latest or 0.0, each.last_delivery_at or 0.0)
        return latest is None or now >= max(self._until, latest + QUIET_TIME)


def turn_away(context: Context, record: ConnectionRecord, place: Redirect | None) -> None:
    """Close a client's connection: with a redirect (§2.8.16) if it follows redirects, else so that it connects anew."""
    opened = record.engine.remote
    if place is not None and opened is not None and REDIRECT in opened.desired_capabilities:
        error = Error(condition=ConnectionCondition.REDIRECT, description=DEPARTED, info=info(place))
    else:
        error = Error(condition=ConnectionCondition.CONNECTION_FORCED, description=DEPARTED)
    close_connection(context, record, error)


def _is_busy_receiver(outgoing: OutgoingLink) -> bool:
    """Return True while a receiver has deliveries to decide about. Dynamic nodes are looked at last: answers to the
    client's requests arrive there.
    """
    if isinstance(outgoing.node, DynamicNode):
        return False
    return outgoing.has_unsettled or outgoing.current is not None


def _retire_receivers(context: Context, record: ConnectionRecord) -> bool:
    """Send nothing new on a client's links. Returns: whether that holds for all of them."""
    news = (each for each in record.outgoing if not (each.retired or isinstance(each.node, DynamicNode)))
    some = list(islice(news, LINKS_A_STEP))
    for outgoing in some:
        retire_receiver(context, outgoing)
    return len(some) < LINKS_A_STEP


def _withdraw_senders(context: Context, record: ConnectionRecord) -> bool:
    """Give a client's senders no more credit, and ask for what they have. Returns: whether that holds for all."""
    some = list(islice((each for each in record.incoming if not is_withdrawn(each)), LINKS_A_STEP))
    for incoming in some:
        pool, endpoint = incoming.pool, incoming.endpoint
        if isinstance(pool, FixedCredit):
            pool.withdraw()
        else:
            withdraw_sender(context, incoming)
            if endpoint.is_attached and endpoint.credit:
                endpoint.flow(endpoint.credit, drain=True)
        context.touch_input(incoming)
    return len(some) < LINKS_A_STEP


def _may_send(record: ConnectionRecord) -> bool:
    return any(each.endpoint.may_send for each in record.incoming)


def _take_back_credit(context: Context, record: ConnectionRecord) -> bool:
    """Take the credit back of senders that have not returned it. Returns: whether that holds for all.

    A message that such a sender has just sent would be lost with the connection, if it was sent settled: after our
    `close` nothing may be read any more but the peer's (§2.4.6). A peer that knows of no credit sends none (§2.6.7).
    """
    there = (each for each in record.incoming if each.endpoint.credit and each.endpoint.may_send)
    some = list(islice(there, LINKS_A_STEP))
    for incoming in some:
        incoming.endpoint.flow(0, echo=True)
        context.touch_input(incoming)
    return len(some) < LINKS_A_STEP


def is_withdrawn(incoming: IncomingLink) -> bool:
    """Return True if a link gets no more credit."""
    return isinstance(incoming.pool, FixedCredit) and incoming.pool.is_withdrawn
