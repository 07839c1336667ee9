"""The outcome that the sender of a delivery gets, once all its receivers have given theirs (§3.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.shortening import told_state
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.standard.messaging import Received
from amqpmesh.router.delivery import tracing
from amqpmesh.router.delivery.exclusions import passed_up
from amqpmesh.router.delivery.lifetime import close_if_done, drop_chunks, drop_kept
from amqpmesh.router.delivery.permitted import permissible
from amqpmesh.router.delivery.queueing import LEFT, WAITS, forwarded, waits_there
from amqpmesh.router.delivery.redelivery import redeliver
from amqpmesh.router.delivery.sending import abort_leg, uncount_or_abort
from amqpmesh.router.kernel import (
    FAILED_STATE,
    RECEIVED,
    RELEASED,
    SETTLE_SENDER,
    dispose,
    outcome_step,
    state_kind,
)
from amqpmesh.router.model.links import IncomingLink, OutgoingLink

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import Head, Leg, Relay


def answer(context: Context, leg: Leg) -> None:
    """Take the outcome of a leg, and tell the sender once the outcomes of all legs are known."""
    relay = leg.relay
    if relay.settled or relay.incoming is None:
        if relay.seen is not None and leg.outcome is not None:
            context.kernel.windows.on_outcome(relay, leg.outcome)
        _settle_receiver(context, leg)
        return
    if relay.answered or relay.unanswered or relay.strongest is None:
        return
    final = redeliver(context, relay, relay.strongest)
    if final is not None:
        tell(context, relay, passed_up(context, relay, final))


def tell(context: Context, relay: Relay, outcome: bytes) -> None:
    """Give the sender the outcome of its delivery."""
    incoming = relay.incoming
    source = relay.source
    assert incoming is not None
    assert isinstance(source, IncomingLink)
    drop_kept(context, relay)
    if relay.failed and state_kind(outcome) == RELEASED:
        # `released` is true of the last attempt only: a receiver of an earlier one has begun with it (§3.4.4).
        outcome = FAILED_STATE
    if relay.seen is not None:
        context.kernel.windows.on_outcome(relay, outcome)
    permitted = permissible(source, outcome)
    if permitted is None:
        error = Error(condition=AmqpCondition.NOT_ALLOWED, description="the source permits none of our outcomes")
        context.fail_link(source, error)
        return
    source.endpoint.flow_state.count_outcome(permitted)
    if context.traces.relays:
        tracing.told(context, relay, permitted)
    if not outcome_step(relay.second, settled=False, known=False) & SETTLE_SENDER:
        relay.answered = True
        dispose(incoming, permitted, False)
        _shorten(relay)
        source.awaiting_settlement += 1
        limit = source.connection.limits.max_owed
        # A lane has many senders; the router that each is attached to limits it.
        if source.awaiting_settlement > limit and source.lane is None:
            error = Error(
                condition=AmqpCondition.RESOURCE_LIMIT_EXCEEDED,
                description=f"more than {limit} deliveries have an outcome and are not settled by their sender",
            )
            context.fail_link(source, error)
            return
    else:
        relay.incoming = None
        dispose(incoming, permitted, True)
        context.legs_seen += max(0, relay.open - 1)
        for leg in relay.legs if relay.open else ():
            if not leg.done and leg.outcome is not None and leg.delivery is not None:
                dispose(leg.delivery, leg.outcome, True)
                uncount_or_abort(context, leg)
    if not relay.complete:
        # The outcome came before the last frame: the rest is read and dropped, so the link stays usable.
        relay.dropped = True
        drop_chunks(relay)
        for leg in relay.legs:
            if not leg.done:
                abort_leg(context, leg)
    close_if_done(context, relay)


def _shorten(relay: Relay) -> None:
    """Shorten the states of a delivery, which are kept until the sender settles: of a long state, keep its kind."""
    assert relay.incoming is not None
    relay.incoming.state = told_state(relay.incoming.state)
    relay.strongest = told_state(relay.strongest)
    for leg in relay.legs:
        leg.outcome = told_state(leg.outcome)
        if leg.delivery is not None:
            leg.delivery.remote_state = told_state(leg.delivery.remote_state)


def settle_receivers(context: Context, relay: Relay) -> None:
    """Settle the legs that have an outcome, of a delivery without a sender."""
    context.legs_seen += max(0, len(relay.legs) - 1)
    for leg in relay.legs:
        _settle_receiver(context, leg)


def _settle_receiver(context: Context, leg: Leg) -> None:
    if leg.outcome is not None and not leg.done and leg.delivery is not None:
        dispose(leg.delivery, None, True)
        uncount_or_abort(context, leg)


def pass_up(context: Context, leg: Leg, state: bytes | None) -> None:
    """Pass a state that is no outcome to the sender. `received` gets the section number of the incoming message."""
    relay = leg.relay
    incoming = relay.incoming
    if state in (WAITS, LEFT):
        _tell_ingress_router(context, leg, state)
        return
    if state is None or incoming is None or leg.copy or relay.answered or len(relay.legs) > 1:
        return
    if state_kind(state) == RECEIVED and relay.section_shift:
        received, _ = decode_composite(Received, state)
        number = received.section_number
        # Header and annotations were written here: the receiver's part of them does not map to the incoming message.
        # The kernel keeps no head of a message that it has rewritten.
        head = relay.head
        if head is None or number < _head_sections(head) - relay.section_shift:
            received = Received(section_number=0, section_offset=0)
        else:
            received = Received(section_number=number + relay.section_shift, section_offset=received.section_offset)
        state = encode_composite(received)
    dispose(incoming, state, False)


def _tell_ingress_router(context: Context, leg: Leg, state: bytes) -> None:
    """Handle another router's state that a delivery waits there, or has left: it is for the ingress router.

    The same state from a client is ignored.
    """
    relay, outgoing = leg.relay, leg.outgoing
    source = relay.source
    if not (isinstance(outgoing, OutgoingLink) and outgoing.lane is not None and isinstance(source, IncomingLink)):
        return
    if source.lane is None:
        if state == WAITS:
            if leg.tracked or not relay.settled:  # else no state would tell that it has left
                waits_there(context, relay)
        else:
            forwarded(context, relay)
    elif relay.incoming is not None:
        dispose(relay.incoming, state, False)


def _head_sections(head: Head) -> int:
    """Return the number of head sections that came."""
    return sum(1 for extent in (head.header, head.delivery_annotations, head.message_annotations) if extent[1])
