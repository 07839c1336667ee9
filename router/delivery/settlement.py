"""Outcomes and settlement, passed on between sender and receivers, never invented (§2.6.12, §3.4).

*Up* is towards the sender, *down* towards the receivers. The functions below take a disposition of one side to the
other. The router decides an outcome itself only if a side is gone, or if there is no receiver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.shortening import lasting_state
from amqpmesh.router.delivery import message_head, tracing
from amqpmesh.router.delivery.exclusions import is_excluded, nobody_else
from amqpmesh.router.delivery.lifetime import (
    chosen_at,
    close_if_done,
    count_undelivered,
    drop_chunks,
    drop_kept,
    end_lane,
    finish,
    leg_sent,
    uncount,
)
from amqpmesh.router.delivery.permitted import is_outcome, senders_state, too_large, unknown_transaction
from amqpmesh.router.delivery.queueing import config_of, decided_there, forwarded, give_up_place, requeue, unqueue
from amqpmesh.router.delivery.redelivery import dead_letter
from amqpmesh.router.delivery.sending import Sent, abort_leg, may_pass, uncount_or_abort
from amqpmesh.router.delivery.verdict import answer, pass_up, settle_receivers, tell
from amqpmesh.router.incremental import LEGS_A_TURN
from amqpmesh.router.kernel import (
    ACCEPTED_STATE,
    DECLARED,
    FAILED_STATE,
    RELEASED_STATE,
    SETTLE_RECEIVER,
    TELL_RECEIVER,
    TELL_SENDER,
    TRANSACTIONAL,
    UNDELIVERABLE_STATE,
    Delivery,
    Leg,
    Relay,
    dispose,
    forget,
    is_terminal,
    outcome_step,
    settle_put_off,
    state_kind,
)
from amqpmesh.router.model.lane import tenant_of
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.telemetry.recording import outcome_of
from amqpmesh.router.telemetry.schema import Outcome

if TYPE_CHECKING:
    from amqpmesh.router.amqp.events import DispositionReceived
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.node import Node


# -------------------------------------------------------------------------------------------------------- dispositions


def disposition_received(context: Context, event: DispositionReceived) -> None:
    """Apply a peer's disposition. The event keeps the deliveries that this turn has no time for."""
    state, settled = event.state, event.settled
    if not settled:
        state = lasting_state(state)
    done = 0
    for delivery in event.deliveries:
        if state is not event.state:
            delivery.remote_state = state
        if delivery.leg is not None:
            receiver_said(context, delivery.leg, delivery, state, settled)
        elif delivery.relay is not None:
            _sender_said(context, delivery.relay, delivery, state, settled)
        done += 1
        if context.legs_seen >= LEGS_A_TURN:
            break
    del event.deliveries[:done]


def receiver_said(context: Context, leg: Leg, delivery: Delivery, state: bytes | None, settled: bool) -> None:
    """Apply what the receiver of a delivery says of it. Args: settled: it has settled the delivery."""
    outgoing = leg.outgoing
    assert isinstance(outgoing, OutgoingLink)
    if delivery.settled or leg.done:
        return
    if state_kind(state) in (TRANSACTIONAL, DECLARED):
        context.fail_link(outgoing, unknown_transaction())
        return
    if not is_terminal(state) and not settled:
        pass_up(context, leg, state)
        return
    # The sender of a copy waits for no outcome. With several receivers `answer` waits for all of them.
    step = outcome_step(leg.relay.second and not leg.copy, settled, leg.outcome is not None)
    if step & TELL_SENDER:
        # A settled state of an extension counts as final: the router does not know its meaning.
        said = state if state is not None else delivery.remote_state
        outcome = said if said is not None and is_outcome(said) else outgoing.default_outcome
        leg.decide(outcome)
        leg.outcome_at = context.now
        outgoing.endpoint.flow_state.count_outcome(outcome)
        outgoing.endpoint.flow_state.count_latency(context.now - leg.relay.came)
        decided_there(context, leg.relay, outcome)
        if context.traces.relays:
            tracing.decided(context, leg)
    if step & SETTLE_RECEIVER and (settled or leg.copy):  # other legs are settled when the sender is told
        dispose(delivery, leg.outcome if step & TELL_RECEIVER else None, True)
        uncount_or_abort(context, leg)
    if step & TELL_SENDER and not leg.copy:
        answer(context, leg)
    close_if_done(context, leg.relay)


def settle_kept(context: Context) -> None:
    """Apply the outcomes of messages that may be sent again: most of them the kernel sends again itself."""
    for delivery, state, settled in settle_put_off(context.kernel):
        if delivery.leg is not None:
            receiver_said(context, delivery.leg, delivery, state, settled)


def _sender_said(context: Context, relay: Relay, delivery: Delivery, state: bytes | None, settled: bool) -> None:
    source = relay.source
    assert isinstance(source, IncomingLink)
    if delivery.settled:
        return
    if state_kind(state) in (TRANSACTIONAL, DECLARED):
        context.fail_link(source, unknown_transaction())
        return
    context.legs_seen += max(0, len(relay.legs) - 1)
    if not settled:
        if is_outcome(state):
            for leg in relay.legs:
                if not leg.done and leg.delivery is not None and leg.started:
                    dispose(leg.delivery, _own(leg) or state, False)
        return
    dispose(delivery, None, True)
    _sender_settled(context, relay, delivery)


def resumed(context: Context, delivery: Delivery) -> None:
    """Go on with a delivery that its sender has resumed: tell the sender the outcome that it has missed."""
    relay = delivery.relay
    assert relay is not None
    relay.second = delivery.second
    if delivery.remote_settled:
        forget(delivery)
        delivery.settled = True
        context.termini.counts.aborted_resumes += not relay.answered
        if delivery.aborted and not relay.legs:
            sender_gone(context, relay, delivery)  # it waits here still: nobody gets it (§2.6.14)
        else:
            _sender_settled(context, relay, delivery)
        return
    if is_outcome(delivery.remote_state):
        _sender_said(context, relay, delivery, delivery.remote_state, settled=False)
    if relay.answered:
        dispose(delivery, delivery.state, not relay.second)
        if not relay.second:
            _sender_settled(context, relay, delivery)


def _sender_settled(context: Context, relay: Relay, delivery: Delivery) -> None:
    """Settle a delivery towards its receivers, after its sender has settled it (§2.6.12)."""
    source = relay.source
    assert isinstance(source, IncomingLink)
    if relay.answered:
        source.awaiting_settlement -= 1
    relay.incoming = None
    relay.settled = True
    drop_kept(context, relay)
    if relay.legs:
        forwarded(context, relay, left=False)
    for leg in relay.legs:
        # If frames are still to be written, the next one says that the delivery is settled.
        if not leg.done and leg.delivery is not None and leg.delivery.complete:
            dispose(leg.delivery, _own(leg) or senders_state(delivery), True)
            finish(context, leg)
    close_if_done(context, relay)


# -------------------------------------------------------------------------------------- outcomes that the router makes


def end_unsent(context: Context, relay: Relay, state: bytes, why: Outcome | None = None) -> None:
    """End a delivery of which nothing was sent, with the outcome `state`. A pre-settled delivery is dropped.

    Args: why: the outcome in telemetry; None: that of `state`.
    """
    if context.recording is not None:
        context.recording.not_sent(relay, why if why is not None else outcome_of(state), state)
    if context.traces.relays:
        tracing.unsent(context, relay, (why if why is not None else outcome_of(state)).name.lower())
    unqueue(context, relay)
    forwarded(context, relay, left=False)
    drop_chunks(relay)
    relay.dropped = True
    if relay.incoming is not None and not relay.settled:
        tell(context, relay, state)
    close_if_done(context, relay)


def undelivered(context: Context, relay: Relay, node: Node | None, state: bytes = RELEASED_STATE) -> None:
    """End an unsent delivery that no receiver gets. Args: node: its node; None: there is none."""
    count_undelivered(context, node)
    end_unsent(context, relay, state, Outcome.UNDELIVERED)


def expired(context: Context, relay: Relay) -> None:
    """End an unsent delivery whose ttl is over (§3.2.1)."""
    context.expired += 1
    source = relay.source
    counts = context.counts_of(tenant_of(source)) if isinstance(source, IncomingLink) else None
    if counts is not None:
        counts.expired += 1
    if relay.complete:
        dead_letter(context, relay, b"".join(chunk.data for chunk in relay.chunks))
    end_unsent(context, relay, UNDELIVERABLE_STATE, Outcome.EXPIRED)


def settle_written(context: Context, leg: Leg, sent: Sent) -> None:
    """Do what follows from the result that `sending.pump` returned for a leg."""
    if sent is Sent.HANDED_ON:
        _handed_on(context, leg)
    elif sent is Sent.TOO_LARGE:
        outgoing = leg.outgoing
        assert isinstance(outgoing, OutgoingLink)
        _break_off(context, leg, too_large(outgoing.endpoint.remote_max_message_size))
    elif sent is Sent.UNSENT:
        _unsend(context, leg)


def give_up(context: Context, leg: Leg) -> None:
    """Abort a leg whose receiver is too slow: the rest of the message takes memory that others need."""
    _break_off(context, leg, FAILED_STATE)


def _break_off(context: Context, leg: Leg, outcome: bytes) -> None:
    relay = leg.relay
    leg.decide(outcome)
    leg.outcome_at = context.now
    if context.traces.relays:
        tracing.decided(context, leg)
    abort_leg(context, leg)
    if not leg.copy:
        answer(context, leg)
    close_if_done(context, relay)


def _handed_on(context: Context, leg: Leg) -> None:
    """Tell the ingress router that a delivery has left, for a delivery that its sender had settled."""
    if leg.outcome is None:
        leg.decide(ACCEPTED_STATE)
    leg_sent(context, leg)
    answer(context, leg)


# ------------------------------------------------------------------------------------------ senders and receivers gone


def receiver_gone(context: Context, leg: Leg, outcome: bytes | None = None) -> None:
    """End a leg whose receiver is gone: an unsent delivery is routed again, a sent one gets an outcome.

    Args: outcome: that is true of it; None: the default outcome.
    """
    relay = leg.relay
    outgoing = leg.outgoing
    assert isinstance(outgoing, OutgoingLink)
    if leg.done:
        return
    may_pass(leg)
    if leg.started and not leg.copy:
        forwarded(context, relay, left=False)  # another router may have told that it waits there
    if not leg.started and not leg.copy and len(relay.legs) == 1 and not leg.aborting:
        _unsend(context, leg)
        return
    for chunk in leg.chunks:
        chunk.release()
    leg.chunks.clear()
    partly = leg.delivery is None or not leg.delivery.complete
    if leg.delivery is not None:
        dispose(leg.delivery, None, True)
    uncount(context, leg)
    undecided = leg.outcome is None
    if undecided:
        leg.decide(outcome or (outgoing.default_outcome if leg.started else RELEASED_STATE))
        leg.outcome_at = context.now
        if context.traces.relays:
            tracing.decided(context, leg, lost=True)
        outgoing.endpoint.flow_state.count_outcome(leg.outcome)
    leg.end()
    if undecided and not leg.copy:
        answer(context, leg)
    if partly and not relay.complete and not relay.open:
        relay.dropped = True
        drop_chunks(relay)
    close_if_done(context, relay)


def _unsend(context: Context, leg: Leg) -> None:
    """Undo the only leg of a delivery, which has sent nothing, and route the delivery again."""
    relay = leg.relay
    relay.chunks.extend(leg.chunks)
    leg.chunks.clear()
    uncount(context, leg)
    leg.end()
    relay.drop([])
    relay.attempts -= 1
    drop_kept(context, relay)
    end_lane(context, leg)
    route_again(context, relay)


def route_again(context: Context, relay: Relay) -> None:
    """Queue an unsent delivery for another route; without a receiver, release it."""
    node = chosen_at(context, relay)
    if node is None or not node.has_consumers:
        undelivered(context, relay, node)
        return
    requeue(context, relay, node)


def sender_gone(context: Context, relay: Relay, delivery: Delivery) -> None:
    """Note that the sender of a complete, unsettled delivery is gone.

    An unsent delivery is dropped. One that was sent lives on until its receivers settle it.
    """
    delivery.settled = True
    relay.incoming = None
    drop_kept(context, relay)
    if not relay.legs:
        unqueue(context, relay)
        forwarded(context, relay, left=False)
        drop_chunks(relay)
        relay.complete = True
    else:
        forwarded(context, relay, left=False)
        settle_receivers(context, relay)
    close_if_done(context, relay)


def end_excluded(context: Context, node: Node) -> None:
    """End the queued deliveries that none of the remaining receivers may get, after one receiver or route is gone."""
    for relay in node.waiting.relays():
        if is_excluded(relay, node):
            end_unsent(context, relay, nobody_else(context, relay))
    for share in list(node.borrowers):
        end_excluded(context, share.ingress)


def end_waiting(context: Context, node: Node) -> None:
    """End the deliveries that have waited too long at a node: the ttl is over, or an anonymous sender's limit."""
    now = context.now
    while (relay := node.waiting.due(now)) is not None:
        expires_at = message_head.expires_at(relay)
        if expires_at is not None and expires_at <= now:
            expired(context, relay)
            continue
        until = node.left_at + config_of(context, relay, node).anonymous_wait
        if until > now:  # deliveries before it have left since: its turn will come
            node.waiting.put_off(until if expires_at is None else min(until, expires_at))
            continue
        give_up_place(relay)
        undelivered(context, relay, node)


def _own(leg: Leg) -> bytes | None:
    """Return a receiver's own outcome, if there are several receivers: each is settled with its own (§2.6.12)."""
    return leg.outcome if len(leg.relay.legs) > 1 else None
