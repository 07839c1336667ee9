"""From an incoming transfer to outgoing ones: where a delivery goes, when, and frame by frame (§2.6.12, §2.6.14).

A message is cut through: its first frame leaves as soon as its head is known and a receiver has credit. What cannot
leave yet waits as chunks that hold back the sender's session window, so nothing here grows beyond what was announced.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from amqpmesh.policies.distribution import choose
from amqpmesh.router import heads
from amqpmesh.router.amqp.composite import encode_composite
from amqpmesh.router.amqp.definitions import AmqpCondition, Error, LinkCondition, ReceiverSettleMode
from amqpmesh.router.amqp.messaging import Rejected
from amqpmesh.router.attaching import RefusedError
from amqpmesh.router.config import Overflow
from amqpmesh.router.kernel.relay import (
    DECLARED,
    RELEASED_STATE,
    TRANSACTIONAL,
    Chunk,
    Incomplete,
    Leg,
    Relay,
    Violation,
    read_head,
    read_to,
    state_kind,
)
from amqpmesh.router.lanes import LaneKind, next_tag
from amqpmesh.router.links import IncomingLink, OutgoingLink
from amqpmesh.router.settlement import senders_state, unknown_transaction
from amqpmesh.router.shares import Share

if TYPE_CHECKING:
    from collections import deque

    from amqpmesh.router.addresses import Address
    from amqpmesh.router.amqp.events import TransferReceived
    from amqpmesh.router.core import Core
    from amqpmesh.router.demand import Branch
    from amqpmesh.router.kernel.relay import SessionFlow
    from amqpmesh.router.settlement import Settlement


#: Octets of a lane's frame that are not payload, at most: a `transfer` with its state, and the final address.
FRAME_HEAD: Final = 512

#: Seconds for each router behind a lane of a multicast, before the lane is given up for one that stalls there.
HOP_PATIENCE: Final = 0.25

#: Waiting messages that may not go to who could take them, before the others behind them have to wait, too.
MAX_ASIDE: Final = 100


def rejected(condition: AmqpCondition | LinkCondition, description: str) -> bytes:
    """The encoded outcome `rejected` with a reason (§3.4.3)."""
    return encode_composite(Rejected(error=Error(condition=condition, description=description)))


def _is_one_frame(relay: Relay, outgoing: OutgoingLink) -> bool:
    """Whether what has come of a delivery is all of it, and leaves in one frame."""
    size = outgoing.link.session.connection.remote_max_frame_size
    room = max(size - FRAME_HEAD, size // 2)
    return relay.complete and sum(len(chunk.data) for chunk in relay.chunks) <= room


class Forwarding:
    """Takes deliveries from incoming links and gives them to outgoing ones."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._settlement: Settlement = core.settlement

    # ----------------------------------------------------------------------------------------------------- arriving

    def transfer_received(self, event: TransferReceived) -> None:
        """One frame of a delivery came."""
        core = self._core
        incoming = event.link.context
        session = event.link.session.flow_state
        delivery = event.delivery
        if not isinstance(incoming, IncomingLink):
            # The attach is not answered yet, or the link is being refused: accounted by the engine, of no use.
            session.release(1)
            return
        if state_kind(delivery.remote_state) in (TRANSACTIONAL, DECLARED):
            session.release(1)
            core.fail_link(incoming, unknown_transaction())
            return
        if event.first:
            relay = Relay(incoming, delivery, delivery.message_format, core.now)
            delivery.relay = relay
            incoming.current = relay
            core.relays += 1
            incoming.last_delivery_at = core.now
            if not delivery.link.link_credit:
                incoming.time_credit(core.now)
            incoming.pool.received(incoming.input, core.now)
            core.touch_input(incoming)
        else:
            assert delivery.relay is not None
            relay = delivery.relay
            if delivery.remote_settled and not relay.settled:
                # Pre-settled from this frame on, for the legs too (§2.7.5, settled).
                relay.settled = True
                self.drop_kept(relay)
        if delivery.aborted:
            incoming.current = None
            session.release(1)
            self.abort(relay)
            return
        if delivery.complete:
            relay.complete = True
            incoming.current = None
        if relay.dropped:
            session.release(1)
            self._settlement.close_if_done(relay)
            return
        self._append(relay, event.payload, session)

    def _append(self, relay: Relay, payload: bytes, session: SessionFlow) -> None:
        """Take the next payload of a relay, on to its legs or into its queue."""
        source = relay.source
        assert isinstance(source, IncomingLink)
        budget = source.address.budget if source.address is not None else self._core.budget
        if source.lane is not None and relay.complete and not relay.legs and not relay.chunks:
            # All lanes of a neighbour share its session: what is whole and waits must not close the window for others.
            session.release(1)
            chunk = Chunk(payload, None, budget)
        else:
            chunk = Chunk(payload, session, budget)
        if not relay.legs:
            relay.chunks.append(chunk)
            if relay.address is None:
                self._route(relay)
            return
        if relay.kept is not None:
            self._keep(relay, payload)
        for leg in [leg for leg in relay.legs if not leg.done and not leg.aborting]:
            if not leg.copy:
                chunk.holders += 1
                leg.chunks.append(chunk)
            elif not self._copy(leg, payload):
                self.abort_leg(leg)
                continue
            branch = leg.branch
            assert isinstance(branch, OutgoingLink)
            if branch.current is leg:
                self.pump(branch)
        # Until here we have held it ourselves, so that none of those was the last while others were still to come.
        chunk.release()
        self._settlement.close_if_done(relay)

    def _route(self, relay: Relay) -> None:
        """Read the head, find the address, and send the first frame on, or queue the relay."""
        core = self._core
        incoming = relay.source
        assert isinstance(incoming, IncomingLink)
        chunks = relay.chunks
        data = self._joined(chunks)
        lane = incoming.lane
        to = incoming.to
        anonymous = incoming.address is None
        if relay.message_format == 0:
            head = read_head(data, relay.complete)
            if head is not None and anonymous and to is None:
                try:
                    to = read_to(data, head.bare_at) if lane is None else heads.final_address(data, head)
                except Incomplete:
                    if not relay.complete:
                        head = None
                except Violation as violation:
                    self._settlement.end_unsent(relay, rejected(AmqpCondition.DECODE_ERROR, violation.description))
                    return
            if head is None:
                limit = incoming.connection.limits.head_max
                if len(data) > limit:
                    state = rejected(AmqpCondition.DECODE_ERROR, f"head sections of more than {limit} octets")
                    self._settlement.end_unsent(relay, state)
                return
            if incoming.connection.strict_annotations:
                refusal = heads.strict_refusal(data, head)
                if refusal is not None:
                    incoming.current = None
                    self.abort(relay)
                    core.fail_link(incoming, refusal)
                    return
            if head.irregular:
                core.irregular_heads += 1
            relay.head = head
            relay.priority = head.priority
        elif anonymous:
            state = rejected(AmqpCondition.NOT_IMPLEMENTED, "an anonymous terminus needs messages of format 0")
            self._settlement.end_unsent(relay, state)
            return
        if anonymous and not to:
            # Nobody will ever serve it, so to send it again would not help.
            core.count_undelivered(None)
            state = rejected(AmqpCondition.PRECONDITION_FAILED, "an anonymous terminus needs messages with `to`")
            self._settlement.end_unsent(relay, state)
            return
        try:
            if anonymous:
                assert to
                address, to = core.lookup.resolve(incoming, to)
            else:
                address = incoming.address
        except RefusedError as refusal:
            # What a link to that address would be told, its sender is told of the message.
            core.count_undelivered(None)
            self._settlement.end_unsent(relay, encode_composite(Rejected(error=refusal.error)))
            return
        if (
            address is None
            or not address.has_consumers
            or not self._may_hop(relay, incoming, address)
            or not self._is_new(relay, incoming)
        ):
            core.count_undelivered(address)
            self._settlement.end_unsent(relay, RELEASED_STATE)
            return
        relay.address = address
        if anonymous and lane is None:
            relay.to = to
        if address.waiting.size or not self._send_on(relay, address):
            self._enqueue(relay, address, incoming)

    def _may_hop(self, relay: Relay, incoming: IncomingLink, address: Address) -> bool:
        """Whether what came by a lane may go on: it has hops left, and would not go back where it came from."""
        if incoming.lane is None or address.lane is None:
            return True
        assert relay.incoming is not None
        relay.key = next_tag(relay.incoming.tag)
        if incoming.lane.kind is LaneKind.TREE:
            may = relay.key is not None or not address.outgoing
        else:
            neighbour = incoming.connection.peer.container_id
            may = relay.key is not None and any(
                each.connection.peer.container_id != neighbour for each in address.outgoing
            )
        self._core.no_hops += not may
        return may

    def _is_new(self, relay: Relay, incoming: IncomingLink) -> bool:
        """Whether it has not come before by another way, as multicasts may while their tree changes."""
        if incoming.lane is None or incoming.lane.kind is not LaneKind.TREE:
            return True
        assert relay.incoming is not None
        return self._core.is_new(incoming, relay.incoming.tag)

    def _send_on(self, relay: Relay, address: Address) -> bool:
        """Give it to whoever can take it now; whether there was anybody."""
        if address.shares and not address.is_multicast:
            share = self._way(address, relay)
            if share is None:
                return False
            self._give(relay, share)
            return True
        taken = self._choose(address, relay)
        if taken:
            self._start(relay, address, taken)
        return bool(taken)

    @staticmethod
    def _way(address: Address, relay: Relay) -> Share | None:
        """By which of an ingress' ways the relay leaves now; None: it has to wait."""
        ready = [each for each in address.shares if each.is_ready and not each.is_excluded(relay.excluded)]
        return next(iter(choose(address.config.distribution, ready)), None)

    def _give(self, relay: Relay, share: Share) -> None:
        """It leaves its ingress by this way: at once, or it waits there."""
        core = self._core
        self.forwarded(relay)
        share.take(core.now)
        relay.share = share
        relay.waiting = True
        relay.address = node = share.node
        core.touch(node)
        core.touch(share.ingress)
        if node.waiting.size or not self._send_on(relay, node):
            node.wait(relay, heads.expires_at(relay))

    @staticmethod
    def _joined(chunks: deque[Chunk]) -> bytes:
        """All of them in one, so that a head in many small frames does not use up the window that it needs."""
        first = chunks[0]
        if len(chunks) > 1:
            first.data = b"".join(chunk.data for chunk in chunks)
            while len(chunks) > 1:
                first.absorb(chunks.pop())
        return first.data

    def _keep(self, relay: Relay, payload: bytes) -> None:
        """Keep the message for a redelivery, while it is small enough for one."""
        assert relay.kept is not None
        budget = self._core.budget
        relay.kept += payload
        budget.add(len(payload))
        address = self._core.address_of(relay)
        if address is None or len(relay.kept) > address.config.redeliver_max or budget.used > budget.limit:
            self.drop_kept(relay)

    def drop_kept(self, relay: Relay) -> None:
        """The message will not be sent again."""
        if relay.kept is not None:
            self._core.budget.add(-len(relay.kept))
            relay.kept = None

    # ------------------------------------------------------------------------------------------------------- waiting

    def _enqueue(self, relay: Relay, address: Address, incoming: IncomingLink) -> None:
        core = self._core
        config = address.config
        expires_at = heads.expires_at(relay)
        deadline: float | None
        if incoming.address is None:
            waiting = incoming.waiting.get(address, 0)
            if waiting >= config.window:
                core.count_undelivered(address)
                self._settlement.end_unsent(relay, RELEASED_STATE)
                return
            incoming.waiting[address] = waiting + 1
            # Waiting for one address must not hold up the others of the link.
            self.forwarded(relay)
            deadline = core.now + config.anonymous_wait
            deadline = deadline if expires_at is None else min(deadline, expires_at)
        else:
            deadline = expires_at
        address.wait(relay, deadline)
        core.touch(address)

    def requeue(self, relay: Relay, address: Address) -> None:
        """It waits again, behind those of its priority; in a mesh where it came in: only there ways are chosen."""
        share = relay.share
        if isinstance(share, Share):
            self.forwarded(relay)
            relay.share = None
            relay.key = None
            relay.address = address = share.ingress
        incoming = relay.source
        if isinstance(incoming, IncomingLink) and incoming.address is None:
            incoming.waiting[address] = incoming.waiting.get(address, 0) + 1
        address.wait(relay, heads.expires_at(relay))
        self._core.touch(address)

    def end_waiting(self, address: Address) -> None:
        """Let go of those that have waited long enough: their ttl is over, or an anonymous sender's patience."""
        now = self._core.now
        while (relay := address.waiting.due(now)) is not None:
            expires_at = heads.expires_at(relay)
            if expires_at is not None and expires_at <= now:
                self._settlement.expired(relay)
            else:
                self._core.count_undelivered(address)
                self._settlement.end_unsent(relay, RELEASED_STATE)

    def unqueue(self, relay: Relay) -> None:
        """It waits no longer in its address' queue."""
        address = self._core.address_of(relay)
        if relay.queued and address is not None:
            address.waiting.remove(relay)
            incoming = relay.source
            if isinstance(incoming, IncomingLink) and incoming.address is None and relay.share is None:
                incoming.waiting[address] -= 1
                if not incoming.waiting[address]:
                    del incoming.waiting[address]
            self._core.touch(address)

    def forwarded(self, relay: Relay) -> None:
        """Its first frame has left, or never will: its input may be given credit for it again."""
        if not relay.waiting:
            return
        holder = relay.share or relay.source
        if isinstance(holder, Share):
            relay.waiting = False
            holder.pool.forwarded(holder.input, self._core.now)
            self._core.touch(holder.node)
            self._core.touch(holder.ingress)
        elif isinstance(holder, IncomingLink):
            relay.waiting = False
            holder.pool.forwarded(holder.input, self._core.now)
            self._core.touch_input(holder)

    def dispatch(self, address: Address) -> None:
        """Send what waits, as far as receivers can take it."""
        waiting = address.waiting
        aside: list[tuple[int, int, Relay]] = []
        by_share = bool(address.shares) and not address.is_multicast
        while (relay := waiting.first()) is not None:
            if by_share and (share := self._way(address, relay)) is not None:
                self.unqueue(relay)
                self._give(relay, share)
            elif not by_share and (taken := self._choose(address, relay)):
                self.unqueue(relay)
                self._start(relay, address, taken)
            elif relay.excluded is not None and len(aside) < MAX_ASIDE:
                # It waits for another receiver than those that could take the next one.
                aside.append(waiting.set_aside())
            else:
                break
        waiting.put_back(aside)

    def _choose(self, address: Address, relay: Relay) -> list[OutgoingLink]:
        """The outgoing links that take the relay now; none if it has to wait."""
        if address.is_multicast:
            return self._everyone(address)
        excluded = relay.excluded
        if address.lane is not None:
            return self._by_lane(address, relay)
        ready = [each for each in address.creditors if each.is_ready and (excluded is None or each not in excluded)]
        if not ready:
            for each in address.creditors:
                each.stall()
        return list(choose(address.config.distribution, ready))

    def _by_lane(self, way: Address, relay: Relay) -> list[OutgoingLink]:
        """The link of a lane that takes the relay now; none if it has to wait.

        What is more than one frame goes by a bulk link of the lane, for which nothing small waits; and what comes
        behind it from the same sender does not pass it, whichever link is free.
        """
        source = relay.source
        behind = source.bulk.get(way) if isinstance(source, IncomingLink) else None
        ready = [each for each in way.creditors if each.is_ready]
        if behind is not None:
            ready = [each for each in ready if behind.branch is each]
        elif any(not _is_one_frame(relay, each) for each in way.outgoing):
            ready = [each for each in ready if each.bulk]
            if not ready and all(each.busy for each in way.outgoing if each.bulk):
                self._core.need_bulk(way)
        elif len(ready) > 1:
            ready.sort(key=lambda each: each.bulk)
        if not ready:
            for each in way.creditors:
                each.stall()
        return ready[:1]

    def _everyone(self, address: Address) -> list[OutgoingLink]:
        """All receivers of a multicast, once each of those that count can take it; none if it has to wait."""
        ready = [each for each in address.creditors if each.is_ready]
        here: list[OutgoingLink] = []
        for share in address.shares:
            # A node of the mesh: the consumers that are attached to this router are elsewhere.
            here = self._everyone(share.node) if share.is_ready else []
            if not here:
                return []
        if len(ready) == len(address.outgoing):
            return ready + here
        for each in address.outgoing:
            if not each.is_ready and not each.left_out:
                for one in address.outgoing:
                    one.stall()
                return []
        for each in address.outgoing:
            if not each.is_ready:
                each.missed += 1
        return ready + here

    def watch(self, outgoing: OutgoingLink) -> None:
        """A receiver of a multicast can take nothing: see whether it has changed its mind after a while."""
        if outgoing.stalled_since is None and not outgoing.left_out:
            core = self._core
            since = outgoing.stalled_since = core.now
            patience = outgoing.address.config.overflow_time
            if outgoing.address.lane is not None and core.mesh is not None:
                # Who stalls there is left out there, and first: others behind that lane are to miss nothing.
                patience += HOP_PATIENCE * core.mesh.ways.hops_behind(outgoing)
            core.schedule(since + patience, partial(self._lose_patience, outgoing, since))

    def _lose_patience(self, outgoing: OutgoingLink, since: float) -> None:
        core = self._core
        address = outgoing.address
        if outgoing.gone or outgoing.stalled_since != since:
            return
        if address.config.overflow is Overflow.DROP:
            self._leave_out(outgoing)
            core.touch(address)
        elif address.incoming:
            core.log.info(
                "multicast waits",
                connection=outgoing.connection.number,
                link=outgoing.link.name,
                peer=outgoing.connection.host,
                address=address.name,
                reason="this receiver gives no credit",
            )

    def _leave_out(self, outgoing: OutgoingLink) -> None:
        """A receiver that stalls sets the pace of a multicast no longer."""
        if not outgoing.left_out and outgoing.branch is not None:
            pool = outgoing.address.pool
            outgoing.left_out = True
            pool.remove_branch(outgoing.branch, self._core.now)
            outgoing.branch = pool.add_branch(0, outgoing.cost, False, outgoing)

    def take_back(self, outgoing: OutgoingLink) -> Branch:
        """A receiver that was left out gives credit again."""
        pool = outgoing.address.pool
        outgoing.left_out = False
        outgoing.stalled_since = None
        if outgoing.branch is not None:
            pool.remove_branch(outgoing.branch, self._core.now)
        outgoing.branch = pool.add_branch(0, outgoing.cost, True, outgoing)
        return outgoing.branch

    # ------------------------------------------------------------------------------------------------------- leaving

    def _start(self, relay: Relay, address: Address, taken: list[OutgoingLink]) -> None:
        """Send the first frame to each of `taken`, and what else is here."""
        core = self._core
        chunks = relay.chunks
        if not chunks:
            # All that had come was empty, and left by a leg that is gone.
            chunks.append(Chunk(b"", None, address.budget))
        first = chunks[0]
        lane = address.lane
        if lane is not None and relay.key is None:
            relay.key = core.new_key(lane)
        data = heads.leaving(
            relay,
            first.data,
            address.config.delivery_annotations,
            core.now,
            to=relay.to if lane is not None and lane.kind is LaneKind.TRANSIT else None,
            within_mesh=lane is not None and lane.kind is LaneKind.TRANSIT,
        )
        if data is None:
            self._settlement.expired(relay)
            return
        # Where a message came in, it is sent again: else every router on its way would.
        came_in = not (isinstance(relay.source, IncomingLink) and relay.source.lane)
        if address.config.redeliver and not (relay.settled or relay.attempts) and not address.is_multicast and came_in:
            self.drop_kept(relay)
            relay.kept = bytearray()
            for chunk in chunks:
                if relay.kept is not None:
                    self._keep(relay, chunk.data)
        if data is not first.data:
            # Should nothing of it be sent after all, it is as if it had come so, now.
            first.data = data
            if relay.head is not None:
                relay.head = read_head(data, complete=True)
                relay.arrived = core.now
        relay.attempts += 1
        self.forwarded(relay)
        watchers = list(address.copies)
        for share in address.shares:
            share.take(core.now)
            share.pool.forwarded(share.input, core.now)
            watchers += share.node.copies
            core.touch(share.node)
        legs = [Leg(relay, each, False) for each in taken]
        for chunk in chunks:
            chunk.holders = len(legs)
        for leg in legs:
            leg.chunks.extend(chunks)
        if relay.attempts == 1:
            for each in watchers:
                copy = Leg(relay, each, True)
                if all(self._copy(copy, chunk.data) for chunk in chunks):
                    legs.append(copy)
        relay.legs += legs
        chunks.clear()
        for leg in legs:
            outgoing = leg.branch
            assert isinstance(outgoing, OutgoingLink)
            if leg.copy and not outgoing.is_ready:
                outgoing.backlog.append(leg)
            else:
                self._begin_leg(outgoing, leg)

    def _copy(self, leg: Leg, data: bytes) -> bool:
        """Give a `copy` receiver the next part of a message, in a chunk of its own: it holds up no sender.

        Returns: False, if its backlog is full: then it sees no more of this message.
        """
        outgoing = leg.branch
        assert isinstance(outgoing, OutgoingLink)
        budget = outgoing.copies
        assert budget is not None, "it sees copies"
        if budget.used + len(data) > budget.limit or self._core.suspended:
            outgoing.missed += 1
            for chunk in leg.chunks:
                chunk.release()
            leg.chunks.clear()
            return False
        leg.chunks.append(Chunk(data, None, budget))
        return True

    def _begin_leg(self, outgoing: OutgoingLink, leg: Leg) -> None:
        relay = leg.relay
        if relay.key is None and outgoing.lane is not None:
            # A consumer of an address here, which is at another router: wherever it came from, it begins its way there.
            relay.key = self._core.new_key(outgoing.lane)
        leg.delivery = outgoing.link.delivery(
            outgoing.next_tag(relay.key), message_format=relay.message_format, settled=relay.settled
        )
        if outgoing.lane is not None and not relay.second:
            # Lanes are of mode second, for those that need it (§2.7.5).
            leg.delivery.rcv_settle_mode = ReceiverSettleMode.FIRST.value
        leg.delivery.leg = leg
        outgoing.current = leg
        if outgoing.bulk and isinstance(relay.source, IncomingLink):
            relay.source.begin_bulk(outgoing.address, leg)
        if not relay.settled:
            leg.counted = True
            outgoing.unsettled += 1
        self._core.touch_outgoing(outgoing)
        self.pump(outgoing)

    def pump(self, outgoing: OutgoingLink) -> None:
        """Write what the current leg of an outgoing link has, as far as window and output allow; then the next copy."""
        while True:
            leg = outgoing.current
            if leg is None:
                if outgoing.backlog:
                    if outgoing.is_ready:
                        self._begin_leg(outgoing, outgoing.backlog.popleft())
                    else:
                        outgoing.stall()
                elif outgoing.copy and not outgoing.gone:
                    outgoing.link.drained()
                return
            if not self._write(outgoing, leg):
                return
            outgoing.current = None
            self.may_pass(leg)
            self._core.touch_outgoing(outgoing)
            self._settlement.leg_sent(leg)

    @staticmethod
    def may_pass(leg: Leg) -> None:
        """No more frames of a leg are to be written: what comes behind it need not follow it any more."""
        source, outgoing = leg.relay.source, leg.branch
        assert isinstance(outgoing, OutgoingLink)
        if outgoing.bulk and isinstance(source, IncomingLink) and source.bulk.get(outgoing.address) is leg:
            del source.bulk[outgoing.address]

    def _write(self, outgoing: OutgoingLink, leg: Leg) -> bool:
        """Write what the leg has; whether its last frame is written, or no more of it will be."""
        relay = leg.relay
        delivery = leg.delivery
        assert delivery is not None
        sender = outgoing.link
        if outgoing.gone or not sender.session.can_send:
            # Its session is over, and the link about to be let go of.
            return leg.aborting
        if leg.aborting:
            if not leg.started:
                return True
            sender.transfer(delivery, aborted=True)
            if not delivery.complete:
                outgoing.stall()
            return delivery.complete
        if not leg.started and sender.credit <= 0:
            # The receiver took its credit back before a frame was sent.
            if relay.legs == [leg] and not leg.copy:
                outgoing.current = None
                self.may_pass(leg)
                self._settlement.unsend(leg)
                self._core.touch_outgoing(outgoing)
            return False
        limit = sender.remote_max_message_size
        chunks = leg.chunks
        while chunks:
            chunk = chunks[0]
            last = relay.complete and len(chunks) == 1
            data: bytes | memoryview = chunk.data
            if leg.offset:
                data = memoryview(data)[leg.offset :]
            if limit and delivery.size + len(data) > limit:
                self._settlement.too_large(leg, limit)
                return False
            if not data and not last:
                chunks.popleft().release()
                leg.offset = 0
                continue
            if outgoing.is_held_up:
                outgoing.stall()
                return False
            settles = relay.settled and not delivery.settled
            # What the sender had said of it goes with the first frame (§2.7.5, state).
            said = senders_state(relay.incoming) if relay.incoming is not None and not leg.started else None
            taken = sender.transfer(delivery, data, more=not last, settled=settles, state=said)
            if delivery.delivery_id != -1 and not leg.started:
                leg.started = True
                outgoing.last_delivery_at = self._core.now
                outgoing.note_credit()
            if settles and delivery.settled:
                self._settlement.uncount(leg)
            if taken < len(data) or (last and not delivery.complete):
                leg.offset += taken
                outgoing.stall()
                return False
            chunks.popleft().release()
            leg.offset = 0
        return delivery.complete

    # ------------------------------------------------------------------------------------------------------ stopping

    def abort(self, relay: Relay) -> None:
        """The sender aborted it, or is gone in the middle of it: so do its legs (§2.7.5, aborted)."""
        self.unqueue(relay)
        self.forwarded(relay)
        relay.dropped = True
        relay.complete = True
        relay.incoming = None
        relay.settled = True
        self.drop_chunks(relay)
        for leg in relay.legs:
            if not leg.done and not (leg.delivery is not None and leg.delivery.complete):
                self.abort_leg(leg)
        self._settlement.close_if_done(relay)

    def abort_leg(self, leg: Leg) -> None:
        """Give up a leg whose last frame is not written; the receiver hears `aborted` if it heard anything."""
        outgoing = leg.branch
        assert isinstance(outgoing, OutgoingLink)
        leg.aborting = True
        for chunk in leg.chunks:
            chunk.release()
        leg.chunks.clear()
        if outgoing.current is leg:
            # Where the session's window is closed, the frame goes as soon as it opens.
            self.pump(outgoing)
        elif leg in outgoing.backlog:
            outgoing.backlog.remove(leg)
            self._settlement.finish(leg)

    def drop_chunks(self, relay: Relay) -> None:
        """Nobody will have what waits of it."""
        for chunk in relay.chunks:
            chunk.release()
        relay.chunks.clear()
