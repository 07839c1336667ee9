"""What receivers have said of a delivery is told to its sender: once all have, and as its sender may hear it (§3.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.shortening import told_state
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.amqp.standard.messaging import Received
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
    from amqpmesh.router.kernel import Leg, Relay


def answer(context: Context, leg: Leg) -> None:
    """The outcome of a leg has come: tell the sender, once those of all are known."""
    relay = leg.relay
    if relay.settled or relay.incoming is None:
        _settle_unheard(context, leg)
        return
    if relay.answered or relay.unanswered or relay.strongest is None:
        return
    final = redeliver(context, relay, relay.strongest)
    if final is not None:
        tell(context, relay, passed_up(context, relay, final))


def tell(context: Context, relay: Relay, outcome: bytes) -> None:
    """Give the sender its outcome."""
    incoming = relay.incoming
    source = relay.source
    assert incoming is not None
    assert isinstance(source, IncomingLink)
    drop_kept(context, relay)
    if relay.failed and state_kind(outcome) == RELEASED:
        # Of the last try it is true, of one before it is not: somebody has begun with it (§3.4.4).
        outcome = FAILED_STATE
    permitted = permissible(source, outcome)
    if permitted is None:
        error = Error(condition=AmqpCondition.NOT_ALLOWED, description="the source permits none of our outcomes")
        context.fail_link(source, error)
        return
    source.link.flow_state.count_outcome(permitted)
    if not outcome_step(relay.second, settled=False, known=False) & SETTLE_SENDER:
        relay.answered = True
        dispose(incoming, permitted, False)
        _shorten(relay)
        source.awaiting_settlement += 1
        limit = source.connection.limits.max_owed
        # On a lane it is many senders who owe, each of them bounded where it is attached.
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
        # An outcome in the middle of the frames: the rest is read and dropped, the link stays usable.
        relay.dropped = True
        drop_chunks(relay)
        for leg in relay.legs:
            if not leg.done:
                abort_leg(context, leg)
    close_if_done(context, relay)


def _shorten(relay: Relay) -> None:
    """What was said of a delivery is on its way, and stays until the sender settles: of what is long, which it was."""
    assert relay.incoming is not None
    relay.incoming.state = told_state(relay.incoming.state)
    for leg in relay.legs:
        leg.outcome = told_state(leg.outcome)
        if leg.delivery is not None:
            leg.delivery.remote_state = told_state(leg.delivery.remote_state)


def settle_orphan(context: Context, relay: Relay) -> None:
    """Nobody above waits for it: what receivers say ends here, settled without a state of anybody's."""
    context.legs_seen += max(0, len(relay.legs) - 1)
    for leg in relay.legs:
        _settle_unheard(context, leg)


def _settle_unheard(context: Context, leg: Leg) -> None:
    if leg.outcome is not None and not leg.done and leg.delivery is not None:
        dispose(leg.delivery, None, True)
        uncount_or_abort(context, leg)


def pass_up(context: Context, leg: Leg, state: bytes | None) -> None:
    """A state that is no outcome goes up as it came; `received` counts the sections as they were sent to us."""
    relay = leg.relay
    incoming = relay.incoming
    if state in (WAITS, LEFT):
        _heard_of(context, leg, state)
        return
    if state is None or incoming is None or leg.copy or relay.answered or len(relay.legs) > 1:
        return
    if state_kind(state) == RECEIVED and relay.section_shift:
        received, _ = decode_composite(Received, state)
        number = received.section_number
        # Header and annotations are ours: what the receiver holds of them says nothing of what was sent to us.
        head_sections = _head_sections(relay)
        if number < head_sections:
            received = Received(section_number=0, section_offset=0)
        else:
            received = Received(section_number=number + relay.section_shift, section_offset=received.section_offset)
        state = encode_composite(received)
    dispose(incoming, state, False)


def _heard_of(context: Context, leg: Leg, state: bytes) -> None:
    """A router says whether a delivery waits there: it concerns the one where that came in. Nobody else may say so."""
    relay, outgoing = leg.relay, leg.branch
    source = relay.source
    if not (isinstance(outgoing, OutgoingLink) and outgoing.lane is not None and isinstance(source, IncomingLink)):
        return
    if source.lane is None:
        if state == WAITS:
            if leg.tracked or not relay.settled:  # else nobody would say that it has left
                waits_there(context, relay)
        else:
            forwarded(context, relay)
    elif relay.incoming is not None:
        dispose(relay.incoming, state, False)


def _head_sections(relay: Relay) -> int:
    """How many head sections were sent on."""
    head = relay.head
    if head is None:
        return 0
    came = sum(1 for extent in (head.header, head.delivery_annotations, head.message_annotations) if extent[1])
    return came - relay.section_shift
