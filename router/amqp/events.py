"""Events that a connection reports: actions of the peer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpmesh.router.amqp.alike_attaches import AlikeAttaches
    from amqpmesh.router.amqp.link import Link, Receiver, Sender
    from amqpmesh.router.amqp.sasl.mechanisms import Work
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.definitions import Error
    from amqpmesh.router.amqp.standard.performatives import Attach, Flow, Open
    from amqpmesh.router.kernel import Delivery


@dataclass(slots=True)
class TlsRequested:
    """Both sides agreed on TLS: do the handshake, which begins with the octets `rest`, then call `secured()` (§5.2)."""

    rest: bytes


@dataclass(slots=True)
class Authenticated:
    """A server's SASL exchange has authenticated the peer as a user (§5.3.2): `connection.user`."""


@dataclass(slots=True)
class SaslWorkDue:
    """The SASL exchange waits: do `work`, in a thread if it takes long, then call `sasl_worked()` (§5.3.2)."""

    work: Work


@dataclass(slots=True)
class ConnectionOpened:
    """The peer's `open` came (§2.7.1); a server answers with `connection.open()`."""

    open: Open


@dataclass(slots=True)
class ConnectionClosed:
    """The connection has ended: no frame will be read or written (§2.7.9). `error` is the reason, if there is one.

    Each connection reports it once. `by_peer` is False if we closed first. If we closed for an error of the peer,
    `error` is the one that we sent; after our `close()` it is the one of the peer's answer.
    Sessions and links end with the connection, without events of their own.
    """

    error: Error | None
    by_peer: bool


@dataclass(slots=True)
class SessionBegun:
    """The peer's `begin` came (§2.7.2). If the peer initiated the session, answer with `session.begin()`."""

    session: Session


@dataclass(slots=True)
class SessionEnded:
    """A session ended (§2.7.8), with its links, which have no events of their own. Our `end` has been sent."""

    session: Session
    error: Error | None
    by_peer: bool


@dataclass(slots=True)
class LinkAttached:
    """The peer's `attach` came (§2.7.3).

    If the peer initiated the link, answer with `link.attach(...)` or `link.refuse(error)`, now or later.
    """

    link: Link
    attach: Attach
    #: What it has in common with others; None: nothing is remembered.
    alike: AlikeAttaches | None = None


@dataclass(slots=True)
class LinkDetached:
    """A link was detached (§2.7.7): by the peer (answer with `link.detach(...)`), or by us for an error of the peer."""

    link: Link
    closed: bool
    error: Error | None
    by_peer: bool


@dataclass(slots=True)
class TransferReceived:
    """One frame of a delivery came (§2.7.5). `delivery.complete` or `.aborted` is set with its last frame.

    The frame uses one of the session's incoming window until the caller calls `session.release(1)`.
    """

    link: Receiver
    delivery: Delivery
    payload: bytes
    first: bool


@dataclass(slots=True)
class DeliveriesGathered:
    """Complete deliveries, with their payloads, arrived in order on a link whose fast path is enabled (§2.7.5)."""

    link: Receiver
    deliveries: list[Delivery]
    payloads: list[bytes]


@dataclass(slots=True)
class DeliveryIgnored:
    """A resumed delivery came, whose octets are dropped (§2.6.13). It used one credit; no frame is held."""

    link: Receiver
    tag: bytes


@dataclass(slots=True)
class DeliveryResumed:
    """The sender resumed a delivery of our unsettled map, which has a delivery-id again (§2.6.13)."""

    link: Receiver
    delivery: Delivery


@dataclass(slots=True)
class DispositionReceived:
    """The peer set the state of deliveries that it has not settled, or settled them (§2.7.6). `state` is encoded."""

    session: Session
    deliveries: list[Delivery]
    state: bytes | None
    settled: bool


@dataclass(slots=True)
class CreditChanged:
    """The flow state of a link came (§2.7.4): new credit for our sender, or the state of the peer's sender."""

    link: Link
    flow: Flow


@dataclass(slots=True)
class DrainRequested:
    """The receiver asks to use up its credit: send the available messages, then call `link.drained()` (§2.6.7)."""

    link: Sender
    flow: Flow


@dataclass(slots=True)
class WindowOpened:
    """The session may send transfers again: the peer has reopened its incoming window (§2.5.6)."""

    session: Session


@dataclass(slots=True)
class Relayed:
    """The kernel has relayed as much as is fair: serve other connections before this one goes on."""


RELAYED = Relayed()


@dataclass(slots=True)
class HeldBack:
    """The kernel holds deliveries of the connection back, and the next frame may be about them: receive them first."""


HELD_BACK = HeldBack()


Event = (
    TlsRequested
    | Authenticated
    | SaslWorkDue
    | ConnectionOpened
    | ConnectionClosed
    | SessionBegun
    | SessionEnded
    | LinkAttached
    | LinkDetached
    | HeldBack
    | TransferReceived
    | DeliveriesGathered
    | DeliveryIgnored
    | DeliveryResumed
    | DispositionReceived
    | CreditChanged
    | DrainRequested
    | WindowOpened
    | Relayed
)
