"""Refusal of messages whose own address is refused, as a link to that address would be.

Source: Using the AMQP Anonymous Terminus for Message Routing Version 1.0 (OASIS), §2.2.2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from amqpmesh.router.address_syntax import without_secret
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.messaging import Rejected
from amqpmesh.router.delivery.lifetime import count_undelivered
from amqpmesh.router.delivery.link_loss import fail_link
from amqpmesh.router.delivery.permitted import takes_rejected
from amqpmesh.router.delivery.sending import abort
from amqpmesh.router.delivery.settlement import undelivered
from amqpmesh.router.model.links import IncomingLink
from amqpmesh.router.telemetry.schema import Outcome

if TYPE_CHECKING:
    from amqpmesh.router.amqp.standard.definitions import Error
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Relay
    from amqpmesh.router.model.node import Node
    from amqpmesh.router.model.refusal import RefusedError

#: The entry of an error's info with the delivery-tag of the refused message.
DELIVERY_TAG: Final = Symbol("delivery-tag")


def refuse(context: Context, relay: Relay, error: Error, node: Node | None = None, *, by_policy: bool = False) -> None:
    """Refuse an unsent message with the error that a link to the message's address would get.

    The message is `rejected` with that error. If the message is settled, or the sender's source lists no `rejected`,
    the error ends the sender's link instead. It never ends a lane, since a lane has many senders.
    Args: node: the node where the message waits; None: it waits at none. by_policy: the policy does not permit the
        message; otherwise a link with an address does not end.
    """
    incoming = relay.source
    assert isinstance(incoming, IncomingLink)
    if incoming.lane is None and (incoming.node is None or by_policy):
        error = replace(error, info={**(error.info or {}), DELIVERY_TAG: relay.tag})
        if relay.settled or not takes_rejected(incoming):
            count_undelivered(context, node)
            if context.recording is not None:
                context.recording.not_sent(relay, Outcome.UNDELIVERED, encode_composite(Rejected(error=error)))
            fail_sender(context, relay, error)
            return
    undelivered(context, relay, node, encode_composite(Rejected(error=error)))


def refuse_and_tell(context: Context, relay: Relay, named: str | None, refusal: RefusedError) -> None:
    """Refuse an unsent message as `refuse` does, and tell the operator why. Args: named: its address."""
    _tell(context, relay, named, refusal)
    refuse(context, relay, refusal.error, by_policy=True)


def fail_and_tell(context: Context, relay: Relay, named: str | None, refusal: RefusedError) -> None:
    """Drop a message that may be sent in part, detach its link, and tell the operator why. Args: as above."""
    _tell(context, relay, named, refusal)
    fail_sender(context, relay, refusal.error)


def _tell(context: Context, relay: Relay, named: str | None, refusal: RefusedError) -> None:
    incoming = relay.source
    assert isinstance(incoming, IncomingLink)
    link, address, condition = incoming.endpoint.name, without_secret(named or ""), refusal.error.condition
    context.log.info(
        "message refused",
        connection=incoming.connection.number,
        peer=incoming.connection.host,
        link=link,
        address=address,
        condition=condition,
        reason=refusal.reason,
    )
    if context.audit is not None:
        rule = {"address": address, "condition": condition, **refusal.rule}
        context.audit.of("message refused", incoming.connection, reason=refusal.reason, rule=rule, link=link)


def fail_sender(context: Context, relay: Relay, error: Error) -> None:
    """Drop a message, and detach its link with an error about that message."""
    incoming = relay.source
    assert isinstance(incoming, IncomingLink)
    if incoming.current is relay:
        incoming.current = None
    abort(context, relay)
    fail_link(context, incoming, error)
