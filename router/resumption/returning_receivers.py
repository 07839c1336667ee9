"""The deliveries of receivers that lose their link and come back: kept, compared with their maps, and resumed.

While a receiver is away it is no consumer, and what it has got stays its own: nobody hears an outcome of it. The
deliveries stay where they are, in the ledger of the session that they left by. Once the receiver attaches with its map,
each outcome in it is passed on, and each delivery that both sides have is resumed over the new link before any other is
sent there.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Extension
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.attach.joining import begin_drain, join
from amqpmesh.router.delivery.left_unsettled import end_all
from amqpmesh.router.delivery.permitted import is_outcome, senders_state
from amqpmesh.router.delivery.settlement import receiver_gone, receiver_said
from amqpmesh.router.endpoint_setup import WHOLE_MAP
from amqpmesh.router.kernel import RELEASED_STATE, Delivery, expand_sent, parked_ids
from amqpmesh.router.memory.retained import size_of_attach
from amqpmesh.router.model.lasting_sources import LastingSources
from amqpmesh.router.model.links import OutgoingLink
from amqpmesh.router.resumption.sent_deliveries import WHOLE, ReceiversMap, SentDelivery, Step, Then, decide

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.router.amqp.link import Sender
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.context import Context
    from amqpmesh.router.kernel import KernelLink, KernelSession, Leg
    from amqpmesh.router.model.lasting_sources import SuspendedSource

#: Octets of an attach beside its names, its addresses and its map; and of an entry beside its tag and its state.
_AROUND: Final = 200
_OF_ENTRY: Final = 8

_SECOND: Final = ReceiverSettleMode.SECOND


class Resumption(NamedTuple):
    """A transfer that resumes a delivery."""

    delivery: Delivery
    state: bytes
    aborted: bool


class ReturningReceivers(LastingSources):
    """The sources of a router that have no link now, and the links that resume deliveries."""

    def __init__(self, context: Context) -> None:
        self._context = context
        #: What is to be resumed, by the source that was compared, then by the link that does it.
        self._named: dict[SuspendedSource, deque[Resumption]] = {}
        self._returning: dict[OutgoingLink, deque[Resumption]] = {}
        #: Of sessions that have ended: the ids of what each link had unsettled. A ledger is searched once for all.
        self._ids: dict[KernelSession, dict[KernelLink, list[int]]] = {}

    # ------------------------------------------------------------------------------------------------------------ away

    def park(self, link: OutgoingLink) -> None:
        """Keep the deliveries of a link that is about to end, but for what has not begun to leave."""
        link.endpoint.flow_state.parked = True
        link.node.returning += 1
        self.left(link)
        leg = link.current
        if leg is not None and leg.started:
            # The rest of the message is read and dropped: its sender must not wait for a receiver that is away.
            link.current = None
            leg.aborting = True
            for chunk in leg.chunks:
                chunk.release()
            leg.chunks.clear()

    def end(self, source: SuspendedSource) -> None:
        """End the deliveries of a source whose receiver does not come back, as of a receiver that is gone."""
        self._let_go(source)
        link = source.link
        if source.flow_state.ended:  # else the session is there, and they live as long as it does
            self._context.chores.do(end_all(self._context, [link]))

    def _let_go(self, source: SuspendedSource) -> None:
        state, node = source.flow_state, source.link.node
        state.parked = False
        node.returning -= 1
        self._context.touch(node)
        self._named.pop(source, None)
        ids = self._ids.get(state.session)
        if ids is not None:
            ids.pop(state, None)
            if not ids:
                del self._ids[state.session]

    # ------------------------------------------------------------------------------------------------------------ back

    def compare(self, source: SuspendedSource, endpoint: Sender, attach: Attach) -> Mapping[bytes, object] | None:
        """Pass on what the map of a returning receiver says, as `LastingSources.compare` does."""
        theirs = _read(attach)
        complete = not attach.incomplete_unsettled
        reliable = WHOLE_MAP in attach.offered_capabilities
        second = source.flow_state.second and attach.rcv_settle_mode is _SECOND
        named = self._named[source] = deque()
        ours: dict[bytes, object] = {}
        octets = _AROUND + size_of_attach(attach)
        for delivery in self._deliveries(source):
            leg, tag = delivery.leg, delivery.tag
            assert leg is not None
            _take_id(delivery)
            said = ReceiversMap(tag in theirs, theirs.get(tag), complete, reliable)
            step = decide(_known(leg, delivery, second=second), said)
            self._count(step, said)
            if step.then is Then.RESUME:
                named.append(Resumption(delivery, step.state or b"", aborted=False))
                if step.said is not None:
                    delivery.remote_state = step.said
                    receiver_said(self._context, leg, delivery, step.said, settled=False)
            elif step.then is Then.ABORT:
                given_up = Delivery(delivery.link, tag, delivery.message_format, False, False)
                named.append(Resumption(given_up, step.state or b"", aborted=True))
            if step.then is Then.ABORT or step.then is Then.END:
                if step.said is RELEASED_STATE:
                    leg.relay.attempts -= 1  # nobody has tried
                receiver_gone(self._context, leg, step.said)
            if step.state is not None:
                ours[tag] = Extension(step.state)
                octets += _OF_ENTRY + len(tag) + len(step.state)
        if octets > endpoint.session.connection.remote_max_frame_size:
            named.clear()
            return None
        return ours

    def _count(self, step: Step, said: ReceiversMap) -> None:
        counts = self._context.termini.counts
        if step.then is Then.ABORT:
            counts.aborted_resumes += 1
        elif step.then is Then.RESUME:
            if step.state == WHOLE:
                counts.resumed_again += 1
            else:
                counts.resumed_outcomes += 1
                counts.restated += is_outcome(said.state) and said.state != step.state

    def bring(self, source: SuspendedSource, outgoing: OutgoingLink) -> bool:
        """Move deliveries to the link that resumes them, as `LastingSources.bring` does."""
        context, named = self._context, self._named.pop(source)
        before, after = source.flow_state, outgoing.endpoint.flow_state
        after.last_tag = before.last_tag
        for delivery, _, _ in named:
            leg = delivery.leg
            delivery.link = after
            if before.unsettled.get(delivery.tag) is delivery:
                del before.unsettled[delivery.tag]
            if leg is not None:
                after.unsettled[delivery.tag] = delivery
                leg.outgoing = outgoing
                if leg.counted:
                    before.outstanding -= 1
                    after.outstanding += 1
        self._let_go(source)
        context.end_detached(source.link)
        context.chores.do(end_all(context, [source.link]))
        if named:
            self._returning[outgoing] = named
            outgoing.node.returning += 1
        return bool(named)

    def _deliveries(self, source: SuspendedSource) -> list[Delivery]:
        """Return the unsettled deliveries of a source, in the order in which they have left."""
        state = source.flow_state
        session = state.session
        if state.ended:
            ids = self._ids.get(session)
            if ids is None:
                ids = self._ids[session] = parked_ids(session)
        else:
            ids = parked_ids(session)  # more may leave by other links of the session
        found = expand_sent(session, ids.get(state, []))
        if state.unsettled:
            # Those that the receiver was to be sent again, and others that were compared before.
            found += [each for each in state.unsettled.values() if isinstance(each, Delivery) and each.delivery_id < 0]
        return found

    # --------------------------------------------------------------------------------------------------- being resumed

    def is_returning(self, outgoing: OutgoingLink) -> bool:
        """Tell whether a link gets no new deliveries yet, since there are others to be resumed."""
        return outgoing in self._returning

    def go_on(self, outgoing: OutgoingLink) -> bool:
        """Resume what credit and window allow, as `LastingSources.go_on` does."""
        named = self._returning.get(outgoing)
        if named is None:
            return False
        endpoint = outgoing.endpoint
        flow_state = endpoint.flow_state
        while named:
            if flow_state.link_credit <= 0:
                if flow_state.drain:
                    endpoint.drained()
                return True
            if flow_state.session.remote_incoming_window <= 0 or outgoing.is_held_up:
                outgoing.stall()
                return True
            delivery, state, aborted = named.popleft()
            if delivery.state is not None and is_outcome(delivery.state):
                state = delivery.state  # the sender has stated it meanwhile
            endpoint.resume(delivery, state=state, aborted=aborted)
        self.left(outgoing)
        join(self._context, outgoing)
        outgoing.note_credit()
        self._context.touch_outgoing(outgoing)
        if flow_state.drain:
            begin_drain(self._context, outgoing)
        return False

    def left(self, outgoing: OutgoingLink) -> None:
        """Note that a link takes no more deliveries, which may have been returning."""
        if self._returning.pop(outgoing, None) is not None:
            outgoing.node.returning -= 1
            self._context.touch(outgoing.node)


def _read(attach: Attach) -> dict[bytes, bytes | None]:
    """Return the states of a receiver's map, encoded. Raises: ProtocolError: it is malformed."""
    assert attach.unsettled is not None
    return {tag: None if state is None else encode_composite(state) for tag, state in attach.unsettled.items()}


def _take_id(delivery: Delivery) -> None:
    """Take the id of a delivery, which no frame can name any more, and leave it in the unsettled map of its link."""
    ledger = delivery.link.session.outgoing
    if ledger.find(delivery.delivery_id) is delivery:
        ledger.remove(delivery.delivery_id)
    delivery.delivery_id = -1


def _known(leg: Leg, delivery: Delivery, *, second: bool) -> SentDelivery:
    """Return what is known here of a delivery."""
    incoming, outgoing = leg.relay.incoming, leg.outgoing
    assert isinstance(outgoing, OutgoingLink)
    stated = None if incoming is None else senders_state(incoming)
    return SentDelivery(
        is_whole=delivery.complete,
        outcome=leg.outcome,
        stated=stated if is_outcome(stated) else None,
        second=second,
        default=outgoing.default_outcome,
    )
