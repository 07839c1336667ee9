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
    from amqpmesh.router.core import Core
    from amqpmesh.router.model.node import Address


# ------------------------------------------------------------------------------------------------------- what they say


def disposition_received(core: Core, event: DispositionReceived) -> None:
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
            _receiver_said(core, delivery.leg, delivery, state, settled)
        elif delivery.relay is not None:
            _sender_said(core, delivery.relay, delivery, state, settled)
        done += 1
        if core.legs_seen >= LEGS_A_TURN:
            break
    del event.deliveries[:done]


def _receiver_said(core: Core, leg: Leg, delivery: Delivery, state: bytes | None, settled: bool) -> None:
    outgoing = leg.branch
    assert isinstance(outgoing, OutgoingLink)
    if delivery.settled or leg.done:
        return
    if state_kind(state) in (TRANSACTIONAL, DECLARED):
        core.fail_link(outgoing, unknown_transaction())
        return
    if not is_terminal(state) and not settled:
        pass_up(core, leg, state)
        return
    # A copy's sender waits for nothing; towards it, and where several receive, `answer` decides when.
    step = outcome_step(leg.relay.second and not leg.copy, settled, leg.outcome is not None)
    if step & TELL_SENDER:
        # A state of an extension is final, as far as anybody here knows, once it is settled.
        said = state if state is not None else delivery.remote_state
        outcome = said if said is not None and is_outcome(said) else outgoing.default_outcome
        leg.decide(outcome)
        leg.outcome_at = core.now
        outgoing.link.flow_state.count_outcome(outcome)
        decided_there(core, leg.relay, outcome)
    if step & SETTLE_RECEIVER and (settled or leg.copy):  # others follow when the sender is told
        dispose(delivery, leg.outcome if step & TELL_RECEIVER else None, True)
        uncount_or_abort(core, leg)
    if step & TELL_SENDER and not leg.copy:
        answer(core, leg)
    close_if_done(core, leg.relay)


def _sender_said(core: Core, relay: Relay, delivery: Delivery, state: bytes | None, settled: bool) -> None:
    source = relay.source
    assert isinstance(source, IncomingLink)
    if delivery.settled:
        return
    if state_kind(state) in (TRANSACTIONAL, DECLARED):
        core.fail_link(source, unknown_transaction())
        return
    core.legs_seen += max(0, len(relay.legs) - 1)
    if not settled:
        if is_outcome(state):
            for leg in relay.legs:
                if not leg.done and leg.delivery is not None and leg.delivery.delivery_id != -1:
                    dispose(leg.delivery, _own(leg) or state, False)
        return
    dispose(delivery, None, True)
    _sender_settled(core, relay, delivery)


def resumed(core: Core, delivery: Delivery) -> None:
    """The sender went on with a delivery after its link was detached: it hears what it was not told meanwhile."""
    relay = delivery.relay
    assert relay is not None
    relay.second = delivery.second
    if delivery.remote_settled:
        forget(delivery)
        delivery.settled = True
        _sender_settled(core, relay, delivery)
        return
    if is_outcome(delivery.remote_state):
        _sender_said(core, relay, delivery, delivery.remote_state, settled=False)
    if relay.answered:
        dispose(delivery, delivery.state, not relay.second)
        if not relay.second:
            _sender_settled(core, relay, delivery)


def _sender_settled(core: Core, relay: Relay, delivery: Delivery) -> None:
    """The sender's end of a delivery is settled: so are the receivers' (§2.6.12)."""
    source = relay.source
    assert isinstance(source, IncomingLink)
    if relay.answered:
        source.owed -= 1
    relay.incoming = None
    relay.settled = True
    drop_kept(core, relay)
    if relay.legs:
        forwarded(core, relay, left=False)
    for leg in relay.legs:
        # Where frames are still to be written, the next one says that it is settled.
        if not leg.done and leg.delivery is not None and leg.delivery.complete:
            dispose(leg.delivery, _own(leg) or senders_state(delivery), True)
            finish(core, leg)
    close_if_done(core, relay)


# ----------------------------------------------------------------------------------------------- the router's own part


def end_unsent(core: Core, relay: Relay, state: bytes, why: Outcome | None = None) -> None:
    """Nothing of it was sent, and nothing will be: `state` is its outcome. Pre-settled, it is dropped.

    Args: why: as it is recorded; None: as `state` says.
    """
    if core.recording is not None:
        core.recording.unsent(relay, why if why is not None else outcome_of(state), state)
    unqueue(core, relay)
    forwarded(core, relay, left=False)
    drop_chunks(relay)
    relay.dropped = True
    if relay.incoming is not None and not relay.settled:
        tell(core, relay, state)
    close_if_done(core, relay)


def undelivered(core: Core, relay: Relay, address: Address | None, state: bytes = RELEASED_STATE) -> None:
    """It goes to nobody. Args: address: where it should have gone; None: there is no such address."""
    count_undelivered(core, address)
    end_unsent(core, relay, state, Outcome.UNDELIVERED)


def expired(core: Core, relay: Relay) -> None:
    """Its ttl is over before it was sent (§3.2.1)."""
    core.expired += 1
    if relay.complete:
        dead_letter(core, relay, b"".join(chunk.data for chunk in relay.chunks))
    end_unsent(core, relay, UNDELIVERABLE_STATE, Outcome.EXPIRED)


def settle_written(core: Core, leg: Leg, sent: Sent) -> None:
    """Settle what `sending.pump` returned of a leg."""
    if sent is Sent.HANDED_ON:
        _handed_on(core, leg)
    elif sent is Sent.TOO_LARGE:
        outgoing = leg.branch
        assert isinstance(outgoing, OutgoingLink)
        _break_off(core, leg, too_large(outgoing.link.remote_max_message_size))
    elif sent is Sent.UNSENT:
        _unsend(core, leg)


def give_up(core: Core, leg: Leg) -> None:
    """No more of it is sent, though its receiver may be able to take it one day: it stands in the way of others."""
    _break_off(core, leg, FAILED_STATE)


def _break_off(core: Core, leg: Leg, outcome: bytes) -> None:
    relay = leg.relay
    leg.decide(outcome)
    leg.outcome_at = core.now
    abort_leg(core, leg)
    if not leg.copy:
        answer(core, leg)
    close_if_done(core, relay)


def _handed_on(core: Core, leg: Leg) -> None:
    """A leg has left whose sender has settled it: the router where it came in is told, and nobody else."""
    if leg.outcome is None:
        leg.decide(ACCEPTED_STATE)
    leg_sent(core, leg)
    answer(core, leg)


# ------------------------------------------------------------------------------------------------- when a side is gone


def hop_lost(core: Core, leg: Leg) -> None:
    """The receiver of a leg is gone: unsent, it is routed again; else its outcome is what stands for one."""
    relay = leg.relay
    outgoing = leg.branch
    assert isinstance(outgoing, OutgoingLink)
    if leg.done:
        return
    may_pass(leg)
    if leg.started and not leg.copy:
        forwarded(core, relay, left=False)  # it may have waited at another router
    if not leg.started and not leg.copy and len(relay.legs) == 1 and not leg.aborting:
        _unsend(core, leg)
        return
    for chunk in leg.chunks:
        chunk.release()
    leg.chunks.clear()
    partly = leg.delivery is None or not leg.delivery.complete
    if leg.delivery is not None:
        dispose(leg.delivery, None, True)
    uncount(core, leg)
    undecided = leg.outcome is None
    if undecided:
        leg.decide(outgoing.default_outcome if leg.started else RELEASED_STATE)
        leg.outcome_at = core.now
        outgoing.link.flow_state.count_outcome(leg.outcome)
    leg.end()
    if undecided and not leg.copy:
        answer(core, leg)
    if partly and not relay.complete and not relay.open:
        relay.dropped = True
        drop_chunks(relay)
    close_if_done(core, relay)


def _unsend(core: Core, leg: Leg) -> None:
    """The only leg of a relay has sent nothing, and will not: the relay is routed again."""
    relay = leg.relay
    relay.chunks.extend(leg.chunks)
    leg.chunks.clear()
    uncount(core, leg)
    leg.end()
    relay.drop([])
    relay.attempts -= 1
    drop_kept(core, relay)
    end_lane(core, leg)
    route_again(core, relay)


def route_again(core: Core, relay: Relay) -> None:
    """Nothing of it was sent: it waits for another way, where there may be one, or goes back."""
    address = chosen_at(core, relay)
    if address is None or not address.has_consumers:
        undelivered(core, relay, address)
        return
    requeue(core, relay, address)


def sender_gone(core: Core, relay: Relay, delivery: Delivery) -> None:
    """The sender of a complete, unsettled relay is gone: unsent it is dropped, else it lives on as an orphan."""
    delivery.settled = True
    relay.incoming = None
    drop_kept(core, relay)
    if not relay.legs:
        unqueue(core, relay)
        forwarded(core, relay, left=False)
        drop_chunks(relay)
        relay.complete = True
    else:
        forwarded(core, relay, left=False)
        settle_orphan(core, relay)
    close_if_done(core, relay)


def end_excluded(core: Core, address: Address) -> None:
    """A receiver has left, or a way: what waits and may go to none of those that are left has its outcome."""
    for relay in address.waiting.relays():
        if is_excluded(relay, address):
            end_unsent(core, relay, nobody_else(core, relay))
    for share in list(address.borrowers):
        end_excluded(core, share.ingress)


def end_waiting(core: Core, address: Address) -> None:
    """End what has waited long enough at a node: its ttl is over, or the patience of its anonymous sender."""
    now = core.now
    while (relay := address.waiting.due(now)) is not None:
        expires_at = message_head.expires_at(relay)
        if expires_at is not None and expires_at <= now:
            expired(core, relay)
            continue
        until = address.left_at + config_of(core, relay, address).anonymous_wait
        if until > now:  # what is before it leaves: its turn comes
            address.waiting.put_off(until if expires_at is None else min(until, expires_at))
            continue
        give_up_place(relay)
        undelivered(core, relay, address)


def _own(leg: Leg) -> bytes | None:
    """The outcome of one of several receivers, with which it is settled whatever the strongest is (§2.6.12)."""
    return leg.outcome if len(leg.relay.legs) > 1 else None
