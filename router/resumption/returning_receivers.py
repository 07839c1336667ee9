"""The deliveries of receivers that lose their link and come back: kept, compared with their maps, and resumed.

While a receiver is away it is no consumer, and what it has got stays its own: nobody hears an outcome of it. The
deliveries stay where they are, in the ledger of the session that they left by. Once the receiver attaches with its map,
each outcome in it is passed on, and each delivery that both sides have is resumed over the new link before any other is
sent there.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.types import Extension
from amqpmesh.router.amqp.errors import ProtocolError
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.attach.joining import begin_drain, join
from amqpmesh.router.attach.reattaching import MOST_READ, is_incomplete, room_of_map
from amqpmesh.router.attach.rounds import PAUSE
from amqpmesh.router.delivery.left_unsettled import end_all
from amqpmesh.router.delivery.lifetime import finish
from amqpmesh.router.delivery.link_loss import close_link, detach_if_done, suspend
from amqpmesh.router.delivery.permitted import is_outcome
from amqpmesh.router.delivery.settlement import receiver_gone, receiver_said
from amqpmesh.router.endpoint_setup import WHOLE_MAP
from amqpmesh.router.incremental import SENT_A_TURN
from amqpmesh.router.kernel import (
    MANY,
    RELEASED_STATE,
    Delivery,
    left_in_second,
    parked_ids,
)
from amqpmesh.router.model.lasting_sources import LaneMap, LastingSources, OurMap
from amqpmesh.router.model.links import OutgoingLink
from amqpmesh.router.resumption.kept_octets import KeptOctets, OctetStore, keep_rest
from amqpmesh.router.resumption.return_plans import (
    Plan,
    Planned,
    Resumption,
    Return,
    count,
    entries,
    find,
    fitting,
    hand_over,
    known_of,
    lane_state,
    put_off,
    read,
    shortened,
    take_id,
)
from amqpmesh.router.resumption.sent_deliveries import NULL, WHOLE, ReceiversMap, SentDelivery, Step, Then, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from amqpmesh.router.amqp.link import Sender
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.kernel import KernelLink, KernelSession, SentMessages
    from amqpmesh.router.model.lasting_sources import SuspendedSource
    from amqpmesh.router.model.lasting_termini import Grant
    from amqpmesh.router.resumption.return_plans import Sent

#: Deliveries that one step moves; the outcomes of its receiver's map are passed on, too.
_AT_ONCE: Final = 10

_SECOND: Final = ReceiverSettleMode.SECOND


class ReturningReceivers(LastingSources):
    """The sources of a router that have no link now, and the links that resume deliveries."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.octets = OctetStore(context)
        self._plans: dict[SuspendedSource, Plan] = {}
        self._returning: dict[OutgoingLink, Return] = {}
        #: Links that were lost before all of their deliveries had been moved to them, and have been kept: these follow.
        self._followed: dict[OutgoingLink, Return] = {}
        #: Links that resume more deliveries in a later turn.
        self._resuming: set[OutgoingLink] = set()
        #: Links to neighbours that are to go on with a source, and whose attach is not answered yet.
        self._asked: dict[OutgoingLink, SuspendedSource] = {}
        #: For lanes of which a part comes back: called once that is here.
        self._again: dict[SuspendedSource, Callable[[], None]] = {}
        #: Of sessions that have ended: the ids of what each link had unsettled. A ledger is searched once for all.
        self._ids: dict[KernelSession, dict[KernelLink, list[int]]] = {}

    # ------------------------------------------------------------------------------------------------------------ away

    def park(self, link: OutgoingLink) -> None:
        """Keep the deliveries of a link that is about to end, but for what has not begun to leave."""
        link.endpoint.flow_state.parked = True
        link.node.returning += 1
        self.left(link)
        leg = link.current
        if leg is not None and leg.started and not keep_rest(self._context, link, leg):
            # The rest of the message is read and dropped: its sender must not wait for a receiver that is away.
            link.current = None
            leg.aborting = True
            for chunk in leg.chunks:
                chunk.release()
            leg.chunks.clear()

    def keeping(self, grant: Grant) -> SentMessages | None:
        """Return the place of the messages of a link, as `LastingSources.keeping` does."""
        return self.octets.keeping(grant.holder)

    def coming(self, link: OutgoingLink) -> int:
        """Return the number of deliveries that are yet to be moved to a link that has been lost meanwhile."""
        back = self._followed.get(link)
        return 0 if back is None else len(back.planned)

    def end(self, source: SuspendedSource) -> None:
        """End the deliveries of a source whose receiver does not come back, as of a receiver that is gone."""
        if source.link in self._followed:
            self._context.chores.do(self._end_later(source))
            return
        self._let_go(source)
        if source.flow_state.ended:  # else the session is there, and they live as long as it does
            self._context.chores.do(end_all(self._context, [source.link]))

    def _end_later(self, source: SuspendedSource) -> Steps[None]:
        while source.link in self._followed:
            yield
        self.end(source)

    def _let_go(self, source: SuspendedSource) -> None:
        state, node = source.flow_state, source.link.node
        state.parked = False
        node.returning -= 1
        self._context.touch(node)
        self._plans.pop(source, None)
        self._again.pop(source, None)
        ids = self._ids.get(state.session)
        if ids is not None:
            ids.pop(state, None)
            if not ids:
                del self._ids[state.session]

    # ----------------------------------------------------------------------------------------------------------- lanes

    def lane_map(self, source: SuspendedSource, octets_of: Callable[[bytes, bytes], int], room: int) -> LaneMap:
        """Return the map of a lane that is to be resumed, as `LastingSources.lane_map` does."""
        self._follow_now(source)
        ours: dict[bytes, bytes] = {}
        named: list[tuple[int, bytes]] = []
        for delivery_id, entry in self._entries(source):
            tag, state = lane_state(entry)
            if state is None:
                continue
            room -= octets_of(tag, state)
            if room < 0 or len(named) == MOST_READ:  # the neighbour takes a map with more for an incomplete one
                return LaneMap(ours, named)
            ours[tag] = state
            named.append((delivery_id, tag))
        return LaneMap(ours, None)

    def ask(self, source: SuspendedSource, outgoing: OutgoingLink, again: Callable[[], None]) -> None:
        """Note that a neighbour was asked to go on with a lane, as `LastingSources.ask` does."""
        self._asked[outgoing] = source
        source.asked = outgoing
        self._again[source] = again

    def answered(self, outgoing: OutgoingLink, attach: Attach) -> None:
        """Go on with a lane, as `LastingSources.answered` does."""
        source = self._asked.pop(outgoing, None)
        if source is None:
            return
        termini = self._context.termini
        if termini.suspended(source.key) is not source:
            source.asked = None
            detach_if_done(self._context, outgoing)
            return
        is_known = attach.unsettled is not None
        try:
            if is_known:
                self.compare(source, outgoing.endpoint, attach)
        except ProtocolError:
            is_known = False
        if not is_known:
            source.asked = None
            termini.end(source, "the neighbour knows nothing of it")
            detach_if_done(self._context, outgoing)
            return
        if source.part is None:
            source.asked = None
            comes = self.bring(source, outgoing)
            termini.resumed(source)
        else:
            termini.give_time(source, source.grant.timeout)  # nothing else is asked of the neighbour meanwhile
            comes = self.bring(source, outgoing)
        if not comes:
            detach_if_done(self._context, outgoing)

    def _part_is_here(self, source: SuspendedSource) -> None:
        """Ask for the next part of a lane, of which one has come back."""
        source.part = source.asked = None
        session = source.flow_state.session
        ids = self._ids.get(session, {}).get(source.flow_state, [])
        left = next((at for at, each in enumerate(ids) if session.outgoing.find(each) is not None), len(ids))
        del ids[:left]
        again = self._again.pop(source, None)
        if again is not None:
            again()

    # ------------------------------------------------------------------------------------------------------------ back

    def compare(self, source: SuspendedSource, endpoint: Sender, attach: Attach) -> OurMap:
        """Compare the map of a returning receiver with ours, as `LastingSources.compare` does."""
        self._follow_now(source)
        theirs = read(attach)
        complete = not is_incomplete(attach)
        reliable = WHOLE_MAP in attach.offered_capabilities
        second = source.flow_state.second and attach.rcv_settle_mode is _SECOND
        is_lane = source.link.lane is not None
        default = source.link.default_outcome
        keeps = source.flow_state.keeps
        assert keeps is None or isinstance(keeps, KeptOctets)
        planned: deque[Planned] = deque()
        steps: dict[tuple[SentDelivery, bool, bytes | None], Step] = {}  # most deliveries are alike
        for delivery_id, entry in self._entries(source):
            # On a lane each delivery has the mode of its sender.
            tag, known = known_of(entry, default, keeps, second=left_in_second(entry) if is_lane else second)
            alike = known, tag in theirs, theirs.get(tag)
            step = steps.get(alike)
            if step is None:
                steps[alike] = step = decide(known, ReceiversMap(*alike[1:], complete, reliable))
            planned.append(Planned(delivery_id, tag, step))
        if is_lane:
            # Our map was sent before: some have been settled since, which a resuming transfer tells.
            compared = {each.tag for each in planned}
            for tag, state in theirs.items():
                if tag not in compared:
                    planned.append(Planned(-1, tag, Step(Then.RESUME, None, state or WHOLE)))
        named = None
        if not is_lane:
            room = room_of_map(endpoint, attach)
            planned = deque(shortened(each, room) for each in planned)
            named = fitting(planned, room)
        is_part = named is not None
        if named is not None:
            # Those of the last round come last, or those of the round before it would have their turn again.
            planned = deque(sorted(planned, key=lambda each: each.delivery_id >= 0))
            planned = deque(each if each.tag in named else put_off(each) for each in planned)
        ours = {tag: Extension(step.state) for _, tag, step in planned if step.state is not None}
        is_empty = named is None and not ours
        tells = is_empty or any(
            each.step.said is not None or each.step.then in (Then.ABORT, Then.SEND) for each in planned
        )
        is_round = not is_lane and (is_part or not complete)
        self._plans[source] = Plan(planned, is_round, is_lane and source.part is not None, tells)
        count(self._context.termini.counts, planned, theirs)
        return OurMap(ours, is_part)

    def bring(self, source: SuspendedSource, outgoing: OutgoingLink) -> bool:
        """Move deliveries to the link that resumes them, in steps, as `LastingSources.bring` does."""
        plan = self._plans.pop(source)
        outgoing.endpoint.flow_state.last_tag = source.flow_state.last_tag
        if source.flow_state.keeps is not None:
            outgoing.endpoint.flow_state.keeps = source.flow_state.keeps
        if not plan.steps:
            self._has_moved(source, plan)  # now: the link may be lost before a later step
            if not plan.is_round:
                return False
        self._returning[outgoing] = Return(source, plan.steps, deque(), plan)
        outgoing.node.returning += 1
        self._context.chores.do(self._take_up(outgoing, self._returning[outgoing]))
        return True

    def _take_up(self, outgoing: OutgoingLink, back: Return) -> Steps[None]:
        """Move deliveries to the new link. An internal error costs the one that it was about. It is raised by a step of
        its own: no attach is left half done.
        """
        while self._returning.get(outgoing) is back or self._followed.get(outgoing) is back:
            try:
                self._move_some(outgoing, back, _AT_ONCE)
            except Exception as error:
                self._context.chores.put_off(_raise(error))
            if not back.planned:
                break
            yield
        if not back.planned:
            try:
                self.go_on(outgoing)
            except Exception as error:
                self._context.chores.put_off(_raise(error))

    def _move_some(self, outgoing: OutgoingLink, back: Return, most: int) -> None:
        """Move deliveries to the new link, and end the former one with the last of them. Args: most: of them."""
        if not back.planned:
            return
        try:
            for _ in range(min(most, len(back.planned))):
                self._move(outgoing, back, back.planned.popleft())
        finally:  # the former link ends also if the last delivery met an internal error
            if not back.planned:
                self._followed.pop(outgoing, None)
                self._has_moved(back.source, back.plan)

    def _follow_now(self, source: SuspendedSource) -> None:
        """Move what is yet to follow to a link that was lost and is to be resumed again."""
        back = self._followed.get(source.link)
        if back is not None:
            self._move_some(source.link, back, MANY)

    def _move(self, outgoing: OutgoingLink, back: Return, planned: Planned) -> None:
        """Pass on what the receiver's map says of a delivery, and move it to the new link if it is to be resumed."""
        _, tag, step = planned
        after = outgoing.endpoint.flow_state
        delivery = find(back.source, planned)
        leg = None if delivery is None else delivery.leg
        message_format = 0 if delivery is None else delivery.message_format
        if delivery is not None and leg is not None:
            take_id(delivery)
            if step.then in (Then.ABORT, Then.END) or (step.then is Then.STAY and not back.plan.is_round):
                if step.said is RELEASED_STATE:
                    leg.relay.attempts -= 1  # nobody has tried
                receiver_gone(self._context, leg, step.said)
            elif step.said is not None:
                delivery.remote_state = step.said
                receiver_said(self._context, leg, delivery, step.said, settled=False)
        if step.then is Then.STAY and back.plan.is_round:
            if delivery is not None:
                hand_over(delivery, back.source, outgoing)
            return
        if step.state is None:
            return
        if step.then is Then.ABORT or delivery is None:
            # Without a delivery its sender has settled it meanwhile.
            settled = step.then is not Then.ABORT
            delivery = Delivery(after, tag, message_format, settled, False)
        else:
            hand_over(delivery, back.source, outgoing)
        back.due.append(Resumption(delivery, step.state, step.then))

    def _has_moved(self, source: SuspendedSource, plan: Plan) -> None:
        """End the former link of a source, if all of its deliveries have been moved."""
        if plan.is_part:
            self._part_is_here(source)
        else:
            self._let_go(source)
            close_link(self._context, source.link)

    def _entries(self, source: SuspendedSource) -> Iterator[tuple[int, Sent]]:
        """Yield the unsettled deliveries of a source, or of its part, as `entries` does."""
        session = source.flow_state.session
        if source.part is None and session.channel == -1:
            ids = self._ids.get(session)
            if ids is None:
                ids = self._ids[session] = parked_ids(session)
        else:
            ids = {} if source.part is not None else parked_ids(session)  # more may leave by other links of the session
        return entries(source, ids.get(source.flow_state, ()))

    # --------------------------------------------------------------------------------------------------- being resumed

    def is_returning(self, outgoing: OutgoingLink) -> bool:
        """Tell whether a link gets no new deliveries yet, since there are others to be resumed."""
        return outgoing in self._returning or outgoing in self._asked

    def go_on(self, outgoing: OutgoingLink) -> bool:
        """Resume what credit and window allow, as `LastingSources.go_on` does."""
        back = self._returning.get(outgoing)
        if back is None:
            return outgoing in self._asked
        endpoint = outgoing.endpoint
        flow_state = endpoint.flow_state
        for _ in range(SENT_A_TURN):
            if not back.due:
                break
            if flow_state.link_credit <= 0 and flow_state.current is None:
                if flow_state.drain:
                    endpoint.drained()
                return True
            if flow_state.session.remote_incoming_window <= 0 or outgoing.is_held_up:
                outgoing.stall()
                return True
            if not self._resume(outgoing, back.due[0]):
                outgoing.stall()
                return True
            back.due.popleft()
        if back.due and outgoing not in self._resuming:
            self._resuming.add(outgoing)
            self._context.chores.put_off(self._go_on_later(outgoing))
        if back.due or back.planned:
            return True
        if back.plan.is_round:
            self._end_round(outgoing, back)
            return True
        self.left(outgoing)
        if outgoing.lane is not None:  # it gets nothing new
            detach_if_done(self._context, outgoing)
            return True
        join(self._context, outgoing)
        outgoing.note_credit()
        self._context.touch_outgoing(outgoing)
        if flow_state.drain:
            begin_drain(self._context, outgoing)
        return False

    def _go_on_later(self, outgoing: OutgoingLink) -> Steps[None]:
        self._resuming.remove(outgoing)
        self.go_on(outgoing)
        yield

    def _resume(self, outgoing: OutgoingLink, due: Resumption) -> bool:
        """Write the transfer that resumes a delivery. Returns: False: the rest waits for the session's window."""
        endpoint, delivery, state = outgoing.endpoint, due.delivery, due.state
        if delivery.state is not None and is_outcome(delivery.state):
            state = delivery.state  # the sender has stated it meanwhile
        if due.then is not Then.SEND or (state != NULL and delivery.delivery_id < 0):
            endpoint.resume(delivery, state=state, aborted=due.then is Then.ABORT)
            return True
        leg, keeps = delivery.leg, outgoing.endpoint.flow_state.keeps
        assert isinstance(keeps, KeptOctets)
        octets = keeps.messages.get(delivery.tag)
        if leg is None or leg.aborting or octets is None:
            # It is settled, or its octets were given up for others, since it was compared.
            return self._give_up(outgoing, delivery)
        if delivery.delivery_id < 0:  # from its first octet, also if another link has ended meanwhile
            delivery.complete = False
            delivery.size = 0
        settles = leg.relay.settled and not delivery.settled
        at = delivery.size
        endpoint.transfer(delivery, memoryview(octets)[at:], settled=settles, resume=True)
        if delivery.complete and delivery.settled:
            finish(self._context, leg)
        return delivery.complete

    def _give_up(self, outgoing: OutgoingLink, delivery: Delivery) -> bool:
        """Abort a delivery that cannot be sent again. Returns: as `_resume`."""
        endpoint, leg = outgoing.endpoint, delivery.leg
        if delivery.complete or delivery.delivery_id < 0:
            if leg is not None:
                receiver_gone(self._context, leg)
            endpoint.resume(delivery, state=None, aborted=True)
            return True
        endpoint.transfer(delivery, aborted=True)
        if delivery.complete and leg is not None:
            if leg.aborting:
                finish(self._context, leg)
            else:
                receiver_gone(self._context, leg)
        return delivery.complete

    def _end_round(self, outgoing: OutgoingLink, back: Return) -> None:
        """Have the link detached, so that the receiver attaches it again: at once, if that brings anything new."""
        if back.plan.tells:
            self._context.chores.put_off(self._detach_soon(outgoing, back))
        else:
            self._context.schedule(self._context.now + PAUSE, partial(self._detach, outgoing, back))

    def _detach_soon(self, outgoing: OutgoingLink, back: Return) -> Steps[None]:
        self._detach(outgoing, back)
        yield

    def _detach(self, outgoing: OutgoingLink, back: Return) -> None:
        endpoint = outgoing.endpoint
        if self._returning.get(outgoing) is back and endpoint.is_attached and endpoint.session.can_send:
            self.left(outgoing)
            suspend(self._context, outgoing)
            endpoint.detach(closed=False)

    def left(self, outgoing: OutgoingLink) -> None:
        """Note that a link takes no more deliveries, which may have been returning: all it was to have is its own."""
        source = self._asked.pop(outgoing, None)
        if source is not None:
            source.asked = None
        if source is not None and not outgoing.connection.lost:  # the neighbour has refused it
            self._context.schedule(self._context.now, partial(self._refused, source))
        back = self._returning.pop(outgoing, None)
        if back is None:
            return
        outgoing.node.returning -= 1
        self._context.touch(outgoing.node)
        if not back.planned:
            return
        state = outgoing.endpoint.flow_state
        self._followed[outgoing] = back
        if not (state.parked and state.session.channel == -1):
            self._move_some(outgoing, back, MANY)  # they end with the link, or live as long as its session

    def _refused(self, source: SuspendedSource) -> None:
        """End a source that a neighbour has refused to go on with."""
        termini = self._context.termini
        if termini.suspended(source.key) is source and source.asked is None:
            termini.end(source, "the neighbour refuses it")


def _raise(error: Exception) -> Steps[None]:
    """Raise an error, in a step of its own."""
    yield
    raise error
