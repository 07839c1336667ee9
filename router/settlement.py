"""Outcomes and settlement carried between sender and receivers, never invented (§2.6.12, §3.4).

Up is towards the sender, down towards the receivers. What each side says of a delivery, and what then happens on the
other, are the methods below; a router's own decision exists only where a side is gone, or nobody was there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.router import heads
from amqpmesh.router.amqp.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.definitions import AmqpCondition, Error, LinkCondition, TransactionCondition
from amqpmesh.router.amqp.messaging import Modified, Received, Rejected
from amqpmesh.router.kernel.relay import (
    ACCEPTED,
    DECLARED,
    FAILED_STATE,
    MODIFIED,
    RECEIVED,
    REJECTED,
    RELEASED,
    RELEASED_STATE,
    TRANSACTIONAL,
    UNDELIVERABLE_STATE,
    Chunk,
    Delivery,
    Leg,
    Relay,
    dispose,
    is_terminal,
    read_head,
    state_kind,
)
from amqpmesh.router.links import IncomingLink, OutgoingLink
from amqpmesh.router.shares import Share

if TYPE_CHECKING:
    from amqpmesh.router.addresses import Address
    from amqpmesh.router.amqp.events import DispositionReceived
    from amqpmesh.router.core import Core

#: The strongest outcome of a multicast goes up.
_STRENGTH: Final = {REJECTED: 3, ACCEPTED: 2, MODIFIED: 1, RELEASED: 0}

#: The symbols by which termini name the outcomes (§3.5.3, outcomes).
_SYMBOLS: Final = {
    ACCEPTED: "amqp:accepted:list",
    REJECTED: "amqp:rejected:list",
    RELEASED: "amqp:released:list",
    MODIFIED: "amqp:modified:list",
}
OUTCOMES: Final = frozenset(_SYMBOLS.values())


def unknown_transaction() -> Error:
    """Why a link with a `transactional-state` ends: there is no transaction here (§4.5.8)."""
    return Error(
        condition=TransactionCondition.UNKNOWN_ID, description="a transactional-state outside a known transaction"
    )


def senders_state(delivery: Delivery) -> bytes | None:
    """What the sender of a delivery has said of it, as far as its receivers may hear it from us.

    Where a resumed delivery goes on (`received`) concerns the link that resumes it, and nobody else (§3.4.1).
    """
    state = delivery.remote_state
    return None if state_kind(state) == RECEIVED else state


class Settlement:
    """The accounts of all relays."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def disposition_received(self, event: DispositionReceived) -> None:
        """A peer told the state of deliveries, or settled them."""
        for delivery in event.deliveries:
            if delivery.leg is not None:
                self._receiver_said(delivery.leg, delivery, event.state, event.settled)
            elif delivery.relay is not None:
                self._sender_said(delivery.relay, delivery, event.state, event.settled)

    # ---------------------------------------------------------------------------------------- what the receiver says

    def _receiver_said(self, leg: Leg, delivery: Delivery, state: bytes | None, settled: bool) -> None:
        outgoing = leg.branch
        assert isinstance(outgoing, OutgoingLink)
        if delivery.settled or leg.done:
            return
        if state_kind(state) in (TRANSACTIONAL, DECLARED):
            self._core.fail_link(outgoing, unknown_transaction())
            return
        if not is_terminal(state) and not settled:
            self._pass_up(leg, state)
            return
        if leg.outcome is None:
            leg.outcome = state if is_terminal(state) else outgoing.default_outcome or FAILED_STATE
            outgoing.link.flow_state.count_outcome(leg.outcome)
            answers = not leg.copy
        else:
            # It is known, and cannot change (§2.6.12): only that it is settled may be new.
            answers = False
        if settled:
            dispose(delivery, None, True)
            self._uncount_or_abort(leg)
        elif leg.copy:
            dispose(delivery, leg.outcome, True)
            self._uncount_or_abort(leg)
        if answers:
            self._answer(leg.relay)
        self.close_if_done(leg.relay)

    def _uncount_or_abort(self, leg: Leg) -> None:
        """The receiver's end of a leg is settled; if its frames are not all written, no more are."""
        self.uncount(leg)
        if leg.delivery is not None and not leg.delivery.complete:
            self._core.forwarding.abort_leg(leg)
        else:
            leg.done = True
            self._end_lane(leg)

    def _pass_up(self, leg: Leg, state: bytes | None) -> None:
        """A state that is no outcome goes up as it came; `received` counts the sections as they were sent to us."""
        relay = leg.relay
        incoming = relay.incoming
        if state is None or incoming is None or leg.copy or relay.answered or len(relay.legs) > 1:
            return
        if state_kind(state) == RECEIVED and relay.section_shift:
            received, _ = decode_composite(Received, state)
            number = received.section_number
            # Header and annotations are ours: what the receiver holds of them says nothing of what was sent to us.
            head_sections = self._head_sections(relay)
            if number < head_sections:
                received = Received(section_number=0, section_offset=0)
            else:
                received = Received(section_number=number + relay.section_shift, section_offset=received.section_offset)
            state = encode_composite(received)
        dispose(incoming, state, False)

    @staticmethod
    def _head_sections(relay: Relay) -> int:
        """How many head sections were sent on."""
        head = relay.head
        if head is None:
            return 0
        came = sum(1 for extent in (head.header, head.delivery_annotations, head.message_annotations) if extent[1])
        return came - relay.section_shift

    def _answer(self, relay: Relay) -> None:
        """Outcomes of legs have come: tell the sender, once all are known."""
        if relay.settled or relay.incoming is None:
            self._settle_orphan(relay)
            return
        if relay.answered:
            return
        legs = [leg for leg in relay.legs if not leg.copy]
        outcome: bytes | None = None
        for leg in legs:
            if leg.outcome is None:
                return
            if outcome is None or _STRENGTH[state_kind(leg.outcome)] > _STRENGTH[state_kind(outcome)]:
                outcome = leg.outcome
        final = None if outcome is None else self._redeliver(relay, outcome)
        if final is not None:
            self._tell(relay, final)

    def _settle_orphan(self, relay: Relay) -> None:
        """Nobody above waits for it: what receivers say ends here, settled without a state of anybody's."""
        for leg in relay.legs:
            if leg.outcome is not None and not leg.done and leg.delivery is not None:
                dispose(leg.delivery, None, True)
                self._uncount_or_abort(leg)

    def _tell(self, relay: Relay, outcome: bytes) -> None:
        """Give the sender its outcome."""
        incoming = relay.incoming
        source = relay.source
        assert incoming is not None
        assert isinstance(source, IncomingLink)
        if relay.failed and state_kind(outcome) == RELEASED:
            # Of the last try it is true, of one before it is not: somebody has begun with it (§3.4.4).
            outcome = FAILED_STATE
        permitted = self._permitted(source, outcome)
        if permitted is None:
            error = Error(condition=AmqpCondition.NOT_ALLOWED, description="the source permits none of our outcomes")
            self._core.fail_link(source, error)
            return
        source.link.flow_state.count_outcome(permitted)
        if relay.second:
            relay.answered = True
            dispose(incoming, permitted, False)
            source.owed += 1
            limit = source.connection.limits.max_owed
            # On a lane it is many senders who owe, each of them bounded where it is attached.
            if source.owed > limit and source.lane is None:
                error = Error(
                    condition=AmqpCondition.RESOURCE_LIMIT_EXCEEDED,
                    description=f"more than {limit} deliveries have an outcome and are not settled by their sender",
                )
                self._core.fail_link(source, error)
                return
        else:
            relay.incoming = None
            dispose(incoming, permitted, True)
            for leg in relay.legs:
                if not leg.done and leg.outcome is not None and leg.delivery is not None:
                    dispose(leg.delivery, leg.outcome, True)
                    self._uncount_or_abort(leg)
        if not relay.complete:
            # An outcome in the middle of the frames: the rest is read and dropped, the link stays usable.
            relay.dropped = True
            self._core.forwarding.drop_chunks(relay)
            for leg in relay.legs:
                if not leg.done:
                    self._core.forwarding.abort_leg(leg)
        self.close_if_done(relay)

    @staticmethod
    def _permitted(source: IncomingLink, outcome: bytes) -> bytes | None:
        """The outcome, or the one that stands for it where the sender's source does not list it (§3.5.3, outcomes)."""
        remote = source.link.remote
        terminus = remote.source if remote is not None else None
        kind = state_kind(outcome)
        if terminus is None or not terminus.outcomes or kind == ACCEPTED or _SYMBOLS[kind] in terminus.outcomes:
            return outcome
        default = terminus.default_outcome
        if default is not None:
            encoded = encode_composite(default)
            if is_terminal(encoded) and state_kind(encoded) != ACCEPTED:
                return encoded
        for symbol, state in (
            (_SYMBOLS[RELEASED], RELEASED_STATE),
            (_SYMBOLS[MODIFIED], FAILED_STATE),
            (_SYMBOLS[REJECTED], encode_composite(Rejected())),
        ):
            if symbol in terminus.outcomes:
                return state
        return None

    # ------------------------------------------------------------------------------------------ what the sender says

    def _sender_said(self, relay: Relay, delivery: Delivery, state: bytes | None, settled: bool) -> None:
        source = relay.source
        assert isinstance(source, IncomingLink)
        if delivery.settled:
            return
        if state_kind(state) in (TRANSACTIONAL, DECLARED):
            self._core.fail_link(source, unknown_transaction())
            return
        if not settled:
            if is_terminal(state):
                for leg in relay.legs:
                    if not leg.done and leg.delivery is not None and leg.delivery.delivery_id != -1:
                        dispose(leg.delivery, state, False)
            return
        dispose(delivery, None, True)
        if relay.answered:
            source.owed -= 1
        relay.incoming = None
        relay.settled = True
        self._core.forwarding.drop_kept(relay)
        for leg in relay.legs:
            # Where frames are still to be written, the next one says that it is settled.
            if not leg.done and leg.delivery is not None and leg.delivery.complete:
                dispose(leg.delivery, senders_state(delivery), True)
                self.finish(leg)
        self.close_if_done(relay)

    # ------------------------------------------------------------------------------------------ the router's own part

    def end_unsent(self, relay: Relay, state: bytes) -> None:
        """Nothing of it was sent, and nothing will be: `state` is its outcome. Pre-settled, it is dropped."""
        forwarding = self._core.forwarding
        forwarding.unqueue(relay)
        forwarding.forwarded(relay)
        forwarding.drop_chunks(relay)
        relay.dropped = True
        if relay.incoming is not None and not relay.settled:
            self._tell(relay, state)
        self.close_if_done(relay)

    def expired(self, relay: Relay) -> None:
        """Its ttl is over before it was sent (§3.2.1)."""
        self._core.expired += 1
        if relay.complete:
            self._dead_letter(relay, b"".join(chunk.data for chunk in relay.chunks))
        self.end_unsent(relay, UNDELIVERABLE_STATE)

    def too_large(self, leg: Leg, limit: int) -> None:
        """The receiver takes no message of that size (§2.7.3, max-message-size)."""
        description = f"the receiver takes messages of at most {limit} octets"
        error = Error(condition=LinkCondition.MESSAGE_SIZE_EXCEEDED, description=description)
        leg.outcome = encode_composite(Rejected(error=error))
        relay = leg.relay
        self._core.forwarding.abort_leg(leg)
        if not leg.copy:
            self._answer(relay)
        self.close_if_done(relay)

    def _redeliver(self, relay: Relay, outcome: bytes) -> bytes | None:
        """Queue it again for another receiver, where its address says so (§3.2.1, §3.4.5).

        Returns: what to tell the sender; None: nothing yet, it is sent again.
        """
        address = self._core.address_of(relay)
        kind = state_kind(outcome)
        if relay.kept is None or not relay.complete or address is None or kind == ACCEPTED:
            return outcome
        leg = next(each for each in relay.legs if not each.copy)
        outgoing = leg.branch
        assert isinstance(outgoing, OutgoingLink)
        modified = decode_composite(Modified, outcome)[0] if kind == MODIFIED else None
        if modified is not None and modified.undeliverable_here:
            # Who it was at another router is not known here: nobody there gets it again.
            relay.excluded = (relay.excluded or set()) | {outgoing if address.lane is None else address}
        waits_at = relay.share.ingress if isinstance(relay.share, Share) else address
        possible = waits_at.has_consumers and not self._is_excluded(relay, waits_at)
        failed = kind == REJECTED or (modified is not None and bool(modified.delivery_failed))
        data = heads.redelivered(bytes(relay.kept), failed=failed, modified=modified)
        if relay.attempts >= address.config.attempts or not possible:
            self._core.forwarding.drop_kept(relay)
            if address.config.dead_letter is None:
                return outcome
            # Whatever happens to the copy: the sender need not try again (§3.4.5).
            self._dead_letter(relay, data)
            return UNDELIVERABLE_STATE
        if not leg.done and leg.delivery is not None:
            dispose(leg.delivery, outcome, True)
            self._uncount_or_abort(leg)
        relay.failed = relay.failed or failed
        # Copies go on by themselves; a browser sees the message once, however often it is tried.
        relay.legs = [each for each in relay.legs if each.copy and not each.done]
        self._core.budget.add(len(data) - len(relay.kept))
        relay.kept = bytearray(data)
        relay.head = read_head(data, complete=True)
        relay.chunks.append(Chunk(data, None, self._core.budget))
        self._core.forwarding.requeue(relay, address)
        return None

    def _dead_letter(self, relay: Relay, data: bytes) -> None:
        """Send a copy to the dead-letter address, without ttl; what becomes of it concerns nobody above."""
        core = self._core
        address = core.address_of(relay)
        name = address.config.dead_letter if address is not None else None
        if address is None or name is None or relay.message_format != 0:
            return
        dead, name = core.lookup.of_copy(address.tenant, name)
        if dead is None or not dead.has_consumers or core.budget.used + len(data) > core.budget.limit:
            core.count_undelivered(dead)
            return
        self._send_copy(dead, name, relay.message_format, heads.without_ttl(data))

    def _send_copy(self, address: Address, to: str, message_format: int, data: bytes) -> None:
        core = self._core
        relay = Relay(None, None, message_format, core.now)
        relay.complete = True
        relay.waiting = False
        relay.head = read_head(data, complete=True)
        relay.priority = relay.head.priority if relay.head is not None else 4
        relay.address = address
        relay.to = to
        # Not settled: at least once, as far as it goes. Its legs are orphans from the start.
        relay.settled = False
        relay.chunks.append(Chunk(data, None, core.budget))
        core.relays += 1
        address.wait(relay)
        core.touch(address)

    # ---------------------------------------------------------------------------------------------- when a side is gone

    def hop_lost(self, leg: Leg) -> None:
        """The receiver of a leg is gone: unsent, it is routed again; else its outcome is what stands for one."""
        relay = leg.relay
        outgoing = leg.branch
        assert isinstance(outgoing, OutgoingLink)
        if leg.done:
            return
        core = self._core
        core.forwarding.may_pass(leg)
        if not leg.started and not leg.copy and len(relay.legs) == 1 and not leg.aborting:
            self.unsend(leg)
            return
        for chunk in leg.chunks:
            chunk.release()
        leg.chunks.clear()
        partly = leg.delivery is None or not leg.delivery.complete
        if leg.delivery is not None:
            dispose(leg.delivery, None, True)
        self.uncount(leg)
        leg.done = True
        if leg.outcome is None:
            leg.outcome = (outgoing.default_outcome or FAILED_STATE) if leg.started else RELEASED_STATE
            outgoing.link.flow_state.count_outcome(leg.outcome)
            if not leg.copy:
                self._answer(relay)
        if partly and not relay.complete and all(each.done for each in relay.legs):
            relay.dropped = True
            core.forwarding.drop_chunks(relay)
        self.close_if_done(relay)

    def unsend(self, leg: Leg) -> None:
        """The only leg of a relay has sent nothing, and will not: the relay is routed again."""
        relay = leg.relay
        relay.chunks.extend(leg.chunks)
        leg.chunks.clear()
        self.uncount(leg)
        leg.done = True
        relay.legs = []
        relay.attempts -= 1
        self._core.forwarding.drop_kept(relay)
        self.route_again(relay)

    def route_again(self, relay: Relay) -> None:
        """Nothing of it was sent: it waits for another way, where there may be one, or goes back."""
        address = relay.share.ingress if isinstance(relay.share, Share) else self._core.address_of(relay)
        if address is None or not address.has_consumers:
            self._core.count_undelivered(address)
            self.end_unsent(relay, RELEASED_STATE)
            return
        self._core.forwarding.requeue(relay, address)

    def sender_gone(self, relay: Relay, delivery: Delivery) -> None:
        """The sender of a complete, unsettled relay is gone: unsent it is dropped, else it lives on as an orphan."""
        delivery.settled = True
        relay.incoming = None
        forwarding = self._core.forwarding
        forwarding.drop_kept(relay)
        if not relay.legs:
            forwarding.unqueue(relay)
            forwarding.forwarded(relay)
            forwarding.drop_chunks(relay)
            relay.complete = True
        else:
            self._settle_orphan(relay)
        self.close_if_done(relay)

    # ----------------------------------------------------------------------------------------------------- book-keeping

    def leg_sent(self, leg: Leg) -> None:
        """The last frame of a leg is written, or it was aborted."""
        delivery = leg.delivery
        if leg.aborting or (delivery is not None and delivery.settled):
            self.finish(leg)

    def finish(self, leg: Leg) -> None:
        """Nothing will be sent or heard of a leg any more."""
        self.uncount(leg)
        leg.done = True
        self._end_lane(leg)
        self.close_if_done(leg.relay)

    def _end_lane(self, leg: Leg) -> None:
        """What was the last of a lane that another has taken the place of, may be done now."""
        outgoing = leg.branch
        assert isinstance(outgoing, OutgoingLink)
        if outgoing.retired and self._core.mesh is not None:
            self._core.mesh.ways.end_if_done(outgoing)

    def uncount(self, leg: Leg) -> None:
        """It is no longer unsettled on its link."""
        if leg.counted:
            outgoing = leg.branch
            assert isinstance(outgoing, OutgoingLink)
            leg.counted = False
            outgoing.unsettled -= 1
            held = outgoing.connection.held
            if outgoing in outgoing.connection.lingering and outgoing.address in held:
                held[outgoing.address] -= 1
            if outgoing.unsettled + 1 >= outgoing.max_unsettled:
                self._core.touch_outgoing(outgoing)

    def _let_linger(self, taken: IncomingLink | OutgoingLink) -> None:
        """The last live delivery of a link that was detached without being closed may be settled now."""
        if taken in taken.connection.lingering and not taken.link.terminus.unsettled:
            self._core.no_longer_lingers(taken)

    def end_excluded(self, address: Address) -> None:
        """A receiver has left, or a way: what waits and may go to none of those that are left has its outcome."""
        for relay in address.waiting.relays():
            if self._is_excluded(relay, address):
                self.end_unsent(relay, FAILED_STATE)
        for share in list(address.borrowers):
            self.end_excluded(share.ingress)

    @staticmethod
    def _is_excluded(relay: Relay, address: Address) -> bool:
        """Whether all that a delivery could go to from here have given it back for good."""
        excluded = relay.excluded
        if excluded is None:
            return False
        if address.shares:
            return all(share.is_excluded(excluded) for share in address.shares)
        return excluded.issuperset(address.outgoing)

    def close_if_done(self, relay: Relay) -> None:
        """Let go of a relay once neither side has anything left to say."""
        if relay.closed or relay.queued or not relay.complete:
            return
        if relay.incoming is not None and not relay.incoming.settled:
            return
        if relay.legs:
            for leg in relay.legs:
                if not leg.done:
                    return
        elif relay.chunks:
            return
        relay.closed = True
        self._core.relays -= 1
        if isinstance(relay.source, IncomingLink):
            self._let_linger(relay.source)
        self._core.forwarding.drop_kept(relay)
        # Relays and deliveries refer to each other: the circles end here.
        for leg in relay.legs:
            if leg.delivery is not None:
                leg.delivery.leg = None
            if isinstance(leg.branch, OutgoingLink):
                self._let_linger(leg.branch)
        if relay.incoming is not None:
            relay.incoming.relay = None
        relay.legs = []
