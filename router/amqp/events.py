"""What the peer did, as the connection reports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqpmesh.router.amqp.link import Link, Receiver, Sender
    from amqpmesh.router.amqp.sasl.mechanisms import Work
    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.amqp.standard.definitions import Error
    from amqpmesh.router.amqp.standard.performatives import Attach, Flow, Open
    from amqpmesh.router.kernel import Delivery


@dataclass(slots=True)
class TlsRequested:
    """The protocol headers agreed on TLS: negotiate it now, starting with `rest`, then call `secured()` (§5.2)."""

    rest: bytes


@dataclass(slots=True)
class Authenticated:
    """The SASL layer of a server has let in a peer that is a user (§5.3.2): `connection.user`."""


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
    """No frame will come or go any more (§2.7.9), or never did: `error` says why, if there is a reason.

    It comes once, whatever ends the connection. `by_peer` is False where we closed first: for what the peer did wrong,
    then `error` is what we told it; or by `close()`, then it is what the peer's own `close` says, once that has come.
    Sessions and links end with it, without events of their own.
    """

    error: Error | None
    by_peer: bool


@dataclass(slots=True)
class SessionBegun:
    """A session began: the peer's `begin` came (§2.7.2). Where the peer initiated it, answer with `session.begin()`."""

    session: Session


@dataclass(slots=True)
class SessionEnded:
    """A session ended (§2.7.8), and its links with it, without events of their own. Our `end` has been sent."""

    session: Session
    error: Error | None
    by_peer: bool


@dataclass(slots=True)
class LinkAttached:
    """The peer's `attach` came (§2.7.3).

    Where the peer initiated the link, answer with `link.attach(...)` or `link.refuse(error)`, now or later.
    """

    link: Link
    attach: Attach


@dataclass(slots=True)
class LinkDetached:
    """A link was detached (§2.7.7): by the peer, then answer with `link.detach(...)`; or by us for a peer's error."""

    link: Link
    closed: bool
    error: Error | None
    by_peer: bool


@dataclass(slots=True)
class TransferReceived:
    """One frame of a delivery (§2.7.5); `delivery.complete` and `.aborted` say whether it was the last.

    It holds one frame of the session's incoming window until `session.release(1)`.
    """

    link: Receiver
    delivery: Delivery
    payload: bytes
    first: bool


@dataclass(slots=True)
class DeliveriesGathered:
    """Whole deliveries came on a link with the fast path enabled, and their octets, in order (§2.7.5)."""

    link: Receiver
    deliveries: list[Delivery]
    payloads: list[bytes]


@dataclass(slots=True)
class DeliveryIgnored:
    """A resumed delivery that our unsettled map does not hold (§2.6.13): nothing came but one less of the credit."""

    link: Receiver


@dataclass(slots=True)
class DeliveryResumed:
    """The sender went on with a delivery that our unsettled map has: it has a delivery-id again (§2.6.13)."""

    link: Receiver
    delivery: Delivery


@dataclass(slots=True)
class DispositionReceived:
    """The peer told the state of live deliveries of ours, or settled them (§2.7.6); `state` is encoded."""

    session: Session
    deliveries: list[Delivery]
    state: bytes | None
    settled: bool


@dataclass(slots=True)
class CreditChanged:
    """Flow state of a link came (§2.7.4). A sender's credit changed, or a sending peer reported its own view."""

    link: Link
    flow: Flow


@dataclass(slots=True)
class DrainRequested:
    """The receiver wants its credit used up: send what is there, then `link.drained()` (§2.6.7)."""

    link: Sender
    flow: Flow


@dataclass(slots=True)
class WindowOpened:
    """Transfers may be sent on the session again: its remote-incoming-window had been used up (§2.5.6)."""

    session: Session


@dataclass(slots=True)
class Relayed:
    """Much was relayed without a decision: others should come first."""


RELAYED = Relayed()

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
