"""Outcomes and settlement carried between sender and receivers, never invented (§2.6.12, §3.4).

Up is towards the sender, down towards the receivers. What each side says of a delivery, and what then happens on the
other, are the methods below; a router's own decision exists only where a side is gone, or nobody was there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.router.amqp.shortening import lasting_state
from amqpmesh.router.delivery import message_head
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
from amqpmesh.router.delivery.verdict import answer, pass_up, settle_orphan, tell
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
    state_kind,
)
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.telemetry.recording import outcome_of
from amqpmesh.router.telemetry.schema import Outcome

if TYPE_CHECKING:
    from amqpmesh.router.amqp.events import DispositionReceived
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.node import Address


# ------------------------------------------------------------------------------------------------------- what they say


def disposition_received(context: Context, event: DispositionReceived) -> None:
    """A peer told the state of deliveries, or settled them. What it does not settle it may never.

    The event keeps those that there is no time for.
    """
    state, settled = event.state, event.settled
    if not settled:
        state = lasting_state(state)
    done = 0
    for delivery in event.deliveries:
        if state is not event.state:
            delivery.remote_state = state
        if delivery.leg is not None:
            _receiver_said(context, delivery.leg, delivery, state, settled)
        elif delivery.relay is not None:
            _sender_said(context, delivery.relay, delivery, state, settled)
        done += 1
        if context.legs_seen >= LEGS_A_TURN:
            break
    del event.deliveries[:done]


def _receiver_said(context: Context, leg: Leg, delivery: Delivery, state: bytes | None, settled: bool) -> None:
    outgoing = leg.branch
    assert isinstance(outgoing, OutgoingLink)
    if delivery.settled or leg.done:
        return
    if state_kind(state) in (TRANSACTIONAL, DECLARED):
        context.fail_link(outgoing, unknown_transaction())
        return
    if not is_terminal(state) and not settled:
        pass_up(context, leg, state)
        return
    # A copy's sender waits for nothing; towards it, and where several receive, `answer` decides when.
    step = outcome_step(leg.relay.second and not leg.copy, settled, leg.outcome is not None)
    if step & TELL_SENDER:
        # A state of an extension is final, as far as anybody here knows, once it is settled.
        said = state if state is not None else delivery.remote_state
        outcome = said if said is not None and is_outcome(said) else outgoing.default_outcome
        leg.decide(outcome)
        leg.outcome_at = context.now
        outgoing.link.flow_state.count_outcome(outcome)
        decided_there(context, leg.relay, outcome)
    if step & SETTLE_RECEIVER and (settled or leg.copy):  # others follow when the sender is told
        dispose(delivery, leg.outcome if step & TELL_RECEIVER else None, True)
        uncount_or_abort(context, leg)
    if step & TELL_SENDER and not leg.copy:
        answer(context, leg)
    close_if_done(context, leg.relay)


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
                if not leg.done and leg.delivery is not None and leg.delivery.delivery_id != -1:
                    dispose(leg.delivery, _own(leg) or state, False)
        return
    dispose(delivery, None, True)
    _sender_settled(context, relay, delivery)


def resumed(context: Context, delivery: Delivery) -> None:
    """The sender went on with a delivery after its link was detached: it hears what it was not told meanwhile."""
    relay = delivery.relay
    assert relay is not None
    relay.second = delivery.second
    if delivery.remote_settled:
        forget(delivery)
        delivery.settled = True
        _sender_settled(context, relay, delivery)
        return
    if is_outcome(delivery.remote_state):
        _sender_said(context, relay, delivery, delivery.remote_state, settled=False)
    if relay.answered:
        dispose(delivery, delivery.state, not relay.second)
        if not relay.second:
            _sender_settled(context, relay, delivery)


def _sender_settled(context: Context, relay: Relay, delivery: Delivery) -> None:
    """The sender's end of a delivery is settled: so are the receivers' (§2.6.12)."""
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
        # Where frames are still to be written, the next one says that it is settled.
        if not leg.done and leg.delivery is not None and leg.delivery.complete:
            dispose(leg.delivery, _own(leg) or senders_state(delivery), True)
            finish(context, leg)
    close_if_done(context, relay)


# ----------------------------------------------------------------------------------------------- the router's own part


def end_unsent(context: Context, relay: Relay, state: bytes, why: Outcome | None = None) -> None:
    """Nothing of it was sent, and nothing will be: `state` is its outcome. Pre-settled, it is dropped.

    Args: why: as it is recorded; None: as `state` says.
    """
    if context.recording is not None:
        context.recording.unsent(relay, why if why is not None else outcome_of(state), state)
    unqueue(context, relay)
    forwarded(context, relay, left=False)
    drop_chunks(relay)
    relay.dropped = True
    if relay.incoming is not None and not relay.settled:
        tell(context, relay, state)
    close_if_done(context, relay)


def undelivered(context: Context, relay: Relay, address: Address | None, state: bytes = RELEASED_STATE) -> None:
    """It goes to nobody. Args: address: where it should have gone; None: there is no such address."""
    count_undelivered(context, address)
    end_unsent(context, relay, state, Outcome.UNDELIVERED)


def expired(context: Context, relay: Relay) -> None:
    """Its ttl is over before it was sent (§3.2.1)."""
    context.expired += 1
    if relay.complete:
        dead_letter(context, relay, b"".join(chunk.data for chunk in relay.chunks))
    end_unsent(context, relay, UNDELIVERABLE_STATE, Outcome.EXPIRED)


def settle_written(context: Context, leg: Leg, sent: Sent) -> None:
    """Settle what `sending.pump` returned of a leg."""
    if sent is Sent.HANDED_ON:
        _handed_on(context, leg)
    elif sent is Sent.TOO_LARGE:
        outgoing = leg.branch
        assert isinstance(outgoing, OutgoingLink)
        _break_off(context, leg, too_large(outgoing.link.remote_max_message_size))
    elif sent is Sent.UNSENT:
        _unsend(context, leg)


def give_up(context: Context, leg: Leg) -> None:
    """No more of it is sent, though its receiver may be able to take it one day: it stands in the way of others."""
    _break_off(context, leg, FAILED_STATE)


def _break_off(context: Context, leg: Leg, outcome: bytes) -> None:
    relay = leg.relay
    leg.decide(outcome)
    leg.outcome_at = context.now
    abort_leg(context, leg)
    if not leg.copy:
        answer(context, leg)
    close_if_done(context, relay)


def _handed_on(context: Context, leg: Leg) -> None:
    """A leg has left whose sender has settled it: the router where it came in is told, and nobody else."""
    if leg.outcome is None:
        leg.decide(ACCEPTED_STATE)
    leg_sent(context, leg)
    answer(context, leg)


# ------------------------------------------------------------------------------------------------- when a side is gone


def hop_lost(context: Context, leg: Leg) -> None:
    """The receiver of a leg is gone: unsent, it is routed again; else its outcome is what stands for one."""
    relay = leg.relay
    outgoing = leg.branch
    assert isinstance(outgoing, OutgoingLink)
    if leg.done:
        return
    may_pass(leg)
    if leg.started and not leg.copy:
        forwarded(context, relay, left=False)  # it may have waited at another router
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
        leg.decide(outgoing.default_outcome if leg.started else RELEASED_STATE)
        leg.outcome_at = context.now
        outgoing.link.flow_state.count_outcome(leg.outcome)
    leg.end()
    if undecided and not leg.copy:
        answer(context, leg)
    if partly and not relay.complete and not relay.open:
        relay.dropped = True
        drop_chunks(relay)
    close_if_done(context, relay)


def _unsend(context: Context, leg: Leg) -> None:
    """The only leg of a relay has sent nothing, and will not: the relay is routed again."""
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
    """Nothing of it was sent: it waits for another way, where there may be one, or goes back."""
    address = chosen_at(context, relay)
    if address is None or not address.has_consumers:
        undelivered(context, relay, address)
        return
    requeue(context, relay, address)


def sender_gone(context: Context, relay: Relay, delivery: Delivery) -> None:
    """The sender of a complete, unsettled relay is gone: unsent it is dropped, else it lives on as an orphan."""
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
        settle_orphan(context, relay)
    close_if_done(context, relay)


def end_excluded(context: Context, address: Address) -> None:
    """A receiver has left, or a way: what waits and may go to none of those that are left has its outcome."""
    for relay in address.waiting.relays():
        if is_excluded(relay, address):
            end_unsent(context, relay, nobody_else(context, relay))
    for share in list(address.borrowers):
        end_excluded(context, share.ingress)


def end_waiting(context: Context, address: Address) -> None:
    """End what has waited long enough at a node: its ttl is over, or the patience of its anonymous sender."""
    now = context.now
    while (relay := address.waiting.due(now)) is not None:
        expires_at = message_head.expires_at(relay)
        if expires_at is not None and expires_at <= now:
            expired(context, relay)
            continue
        until = address.left_at + config_of(context, relay, address).anonymous_wait
        if until > now:  # what is before it leaves: its turn comes
            address.waiting.put_off(until if expires_at is None else min(until, expires_at))
            continue
        give_up_place(relay)
        undelivered(context, relay, address)


def _own(leg: Leg) -> bytes | None:
    """The outcome of one of several receivers, with which it is settled whatever the strongest is (§2.6.12)."""
    return leg.outcome if len(leg.relay.legs) > 1 else None
