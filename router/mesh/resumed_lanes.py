"""Lanes that go on over another connection to the same neighbour, once their own is lost (§2.6.13).

Both ends of a lane are kept for a while, as those of a client's link are: the deliveries that have left stay with the
sending router, and the receiving one keeps what it has got, and the outcomes that come meanwhile. Once there is a
connection again, the sending router attaches each of its lanes by the old name, with its unsettled map. The answer has
the map of the receiving router. What both have is resumed; what the receiving router does not have went no further.

Such a link carries nothing new: new deliveries have links of their own. It is detached once all on it is settled.

If no frame has room for the map, the lane comes back in parts: each is a link with a name of its own, and a complete
map of some of the deliveries; a property of its attach has the name of the lane. The last part has that name itself. So
no round has to wait until receivers have decided, as with an incomplete map (§2.7.3).
"""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.codec.types import Extension
from amqpmesh.router.amqp.errors import CommandError, ProtocolError
from amqpmesh.router.amqp.link import Sender, Terminus
from amqpmesh.router.amqp.standard.definitions import (
    ConnectionCondition,
    Error,
    LinkCondition,
    ReceiverSettleMode,
    Role,
)
from amqpmesh.router.amqp.standard.messaging import Source, Target, TerminusExpiryPolicy
from amqpmesh.router.attach.reattaching import bring, in_common, is_incomplete, of_part, settle_rest, states
from amqpmesh.router.credit.fixed_credit import FixedCredit
from amqpmesh.router.delivery.link_loss import fail_link
from amqpmesh.router.endpoint_setup import PART_OF, WHOLE_MAP
from amqpmesh.router.mesh.neighbour import LIVES
from amqpmesh.router.message.outcomes import ALL_RECEIVED
from amqpmesh.router.model.connections import MESH
from amqpmesh.router.model.lasting_sources import Part, SuspendedSource
from amqpmesh.router.model.lasting_targets import SuspendedTarget
from amqpmesh.router.model.links import IncomingLink, LinkKey, OutgoingLink
from amqpmesh.router.small_set import with_item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from amqpmesh.router.amqp.link import Receiver
    from amqpmesh.router.amqp.standard.messaging import DeliveryState
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.config.mesh import MeshConfig
    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.mesh.neighbour import Neighbour
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lasting_termini import SuspendedTerminus

GONE_TIME: Final = 1
"""Seconds that lanes are kept once the neighbour's system has closed or reset their connection. Most likely its process
is gone; one that lives is connected again by then."""

_SECOND: Final = ReceiverSettleMode.SECOND
_POLICY: Final = TerminusExpiryPolicy.CONNECTION_CLOSE

#: Octets of an attach beside its name, its address and its map; of an entry beside its tag and its state.
_AROUND: Final = 300
_OF_ENTRY: Final = 8

#: Octets of a tag and an outcome that a map names; a longer outcome is told once its delivery is resumed. Else a few of
#: them would fill the frame. `_SHORT`: where the answer has no room for longer ones.
_LONG: Final = 128
_SHORT: Final = 64

#: Octets of a state in an answer, at least as many as of the longest one that counts as short.
_OF_STATE: Final = 24


def lane_target(lane: str, seconds: int) -> Target:
    """Return the target of a lane. Args: seconds: that it is to be kept, or is kept, without the link; 0: it is not."""
    return Target(address=lane, expiry_policy=_POLICY, timeout=seconds) if seconds else Target(address=lane)


def seconds_kept(config: MeshConfig | None, target: object) -> int:
    """Return the seconds that this router keeps an end of a lane. Args: target: as the neighbour asks for it, or has
    granted it."""
    if config is None or not isinstance(target, Target):
        return 0
    return min(config.resume, int(target.timeout))


def keep_lane(context: Context, link: IncomingLink | OutgoingLink, seconds: int) -> None:
    """Have an end of a lane kept without its link."""
    assert link.lane is not None, "it is a lane's"
    router = link.connection.peer.container_id
    # The neighbour may notice later that the connection is lost: only then its time begins.
    mesh = context.config.mesh
    margin = ceil(mesh.hold) if mesh is not None and isinstance(link, IncomingLink) else 0
    link.grant = context.termini.grant_lane(router, link.lane.target, seconds + margin)
    context.link_names.add(_key(link.connection, link.endpoint.name, sends=isinstance(link, OutgoingLink)), link)


def _key(record: ConnectionRecord, name: str, *, sends: bool) -> LinkKey:
    return MESH, MESH, MESH, record.peer.container_id, name, sends


class ResumedLanes:
    """The lanes of a router that have lost their connection, and go on over another one."""

    def __init__(self, context: Context, life_of: Callable[[str], int | None]) -> None:
        """Args: life_of: tells a number of a router's process, which is greater for each later one; None: unknown."""
        self._context = context
        self._life_of = life_of
        self._config = context.config.mesh
        #: The connections to each neighbour, oldest first.
        self._ways: dict[str, list[Neighbour]] = {}
        #: The neighbours whose process is gone, most likely, until there is a connection again.
        self._gone: set[str] = set()
        #: Those that are waited for, each with the life that has been lost.
        self._lives: dict[str, int] = {}
        #: Parts of lanes so far, for their names.
        self._parts = 0

    @property
    def _is_on(self) -> bool:
        return self._config is not None and self._config.resume > 0

    # ---------------------------------------------------------------------------------------------- both ends of lanes

    def came(self, neighbour: Neighbour) -> None:
        """Go on with the lanes to and from a neighbour to which there is a connection again."""
        if not self._is_on:
            return
        self._ways.setdefault(neighbour.router, []).append(neighbour)
        self._gone.discard(neighbour.router)
        self._lives.pop(neighbour.router, None)
        for each in self._kept(neighbour.router):
            seconds = self._seconds(each.link, lives=True)
            each.grant = each.grant._replace(timeout=seconds)  # anew for each part, however their connection was lost
            self._context.termini.give_time(each, seconds)
        self._ask_soon(neighbour.router)

    def awaited(self) -> list[str]:
        """Return the neighbours whose lanes are kept while there is no connection to them, the latest first."""
        routers = dict.fromkeys(each.key[3] for each in self._context.termini.kept() if each.key[0] == MESH)
        return [each for each in reversed(routers) if each not in self._ways]

    def losing(self, record: ConnectionRecord) -> None:
        """Set the time that the ends of a connection's lanes are kept; it is about to be lost."""
        if not self._is_on or record.role != "mesh":
            return
        router = record.peer.container_id
        ways = self._ways.get(router, ())
        left = [each for each in ways if each.record is not record]
        if left:
            self._ways[router] = left
        elif self._ways.pop(router, None) is not None and (life := self._life_of(router)) is not None:
            self._lives = {each: self._lives[each] for each in self.awaited() if each in self._lives}
            self._lives[router] = life
        lives = bool(left) or (_may_live(record) and router not in self._gone)
        links: Iterable[IncomingLink | OutgoingLink] = (*record.outgoing, *record.incoming, *record.detached_unsettled)
        kept = 0
        for link in links:
            if link.lane is not None and link.grant is not None:
                link.grant = link.grant._replace(timeout=self._seconds(link, lives=lives))
                kept += 1
        if kept:
            seconds = self._config.resume if lives and self._config is not None else GONE_TIME
            self._context.log.info("lanes kept", router=router, connection=record.number, count=kept, seconds=seconds)
        is_gone = len(ways) > len(left) and not lives
        if is_gone:
            self._gone.add(router)  # connections for the lanes of one tenant are closed next
        for each in self._kept(router):
            asked = each.asked if isinstance(each, SuspendedSource) else None
            # Those of another connection, which was lost a moment before this one, are waited for no longer.
            is_long = each.expires is None or each.expires > self._context.now + GONE_TIME
            if (asked is not None and asked.connection is record) or (is_long and is_gone):
                self._context.termini.give_time(each, self._seconds(each.link, lives=lives))
        if left:
            self._ask_soon(router)

    def forget(self, record: ConnectionRecord) -> None:
        """Keep no lane of a connection that is about to be closed, since the neighbour is not trusted."""
        links: Iterable[IncomingLink | OutgoingLink] = (*record.outgoing, *record.incoming)
        for link in links:
            if link.lane is not None and link.grant is not None:
                self._context.termini.take_back(link.grant)
                link.grant = None

    def gone(self, router: str, now: float) -> None:
        """End the lanes to and from a neighbour at whose place nobody listens any more."""
        if self._is_on:
            self._context.schedule(now, partial(self._end_all, router, "the neighbour is gone"))

    def graph_changed(self) -> None:
        """End the lanes to and from neighbours that have begun anew, and are connected to others alone."""
        for router, life in tuple(self._lives.items()):
            if (self._life_of(router) or life) > life:
                del self._lives[router]
                self._context.schedule(
                    self._context.now, partial(self._end_all, router, "the neighbour has begun anew")
                )

    def _end_all(self, router: str, reason: str) -> None:
        if router not in self._ways:
            for each in self._kept(router):
                self._context.termini.end(each, reason)

    def _seconds(self, link: IncomingLink | OutgoingLink, *, lives: bool) -> int:
        if not lives:
            return GONE_TIME
        assert self._config is not None
        return self._config.resume + (ceil(self._config.hold) if isinstance(link, IncomingLink) else 0)

    def _kept(self, router: str) -> list[SuspendedTerminus]:
        return [each for each in self._context.termini.kept() if each.key[0] == MESH and each.key[3] == router]

    # --------------------------------------------------------------------------------------------- the sending router

    def ended(self, record: ConnectionRecord) -> None:
        """Go on with the lanes of a session that has ended, over another session."""
        if record.role == "mesh":
            self._ask_soon(record.peer.container_id)

    def answered(self, outgoing: OutgoingLink, attach: Attach) -> None:
        """Handle a neighbour's answer to the attach of a lane, a resumed one or any other."""
        seconds = seconds_kept(self._config, attach.target)
        if seconds:
            keep_lane(self._context, outgoing, seconds)
        self._context.termini.sources.answered(outgoing, attach)

    def _ask_soon(self, router: str) -> None:
        if router in self._ways:
            # By then the lanes of a connection that is being lost are kept.
            self._context.schedule(self._context.now, partial(self._ask, router))

    def _ask(self, router: str) -> None:
        self._context.chores.put_off(self._ask_all(router))  # a step for each lane, of a map of hundreds

    def _ask_all(self, router: str) -> Steps[None]:
        termini = self._context.termini
        for source in self._kept(router):
            ways = self._ways.get(router)
            if not ways:
                return
            if isinstance(source, SuspendedSource) and source.asked is None and termini.suspended(source.key) is source:
                self._attach(ways[-1], source)
                yield

    def _attach(self, neighbour: Neighbour, source: SuspendedSource) -> None:
        """Attach a lane that was lost by its name, with our unsettled map."""
        context, before = self._context, source.link
        record, lane = neighbour.record, before.lane
        assert lane is not None, "it is a lane's"
        assert self._config is not None
        of = source.key[4]
        # The neighbour's answer has to fit as well.
        engine = record.engine
        room = min(engine.remote_max_frame_size, engine.flow_state.max_frame_size)
        room -= _AROUND + 2 * len(of) + len(lane.target) + len(context.id)
        ours, named = context.termini.sources.lane_map(source, _octets, room)
        if named is not None and (source.part is not None or not named):
            # The frames of this connection are smaller than those of the one before it, or hardly larger than names.
            context.termini.end(source, "its unsettled map does not fit into a frame")
            return
        if named is not None:
            self._parts += 1
            source.part = Part(f"{of}/{self._parts}", named)
        try:
            endpoint = neighbour.session_with_room().attach(
                Terminus(of if source.part is None else source.part.name, Role.SENDER),
                source=Source(address=context.id),
                target=lane_target(lane.target, self._config.resume),
                rcv_settle_mode=_SECOND,
                unsettled={tag: Extension(each) if len(each) <= _LONG else ALL_RECEIVED for tag, each in ours.items()},
                offered_capabilities=(WHOLE_MAP,),
                properties=None if source.part is None else {PART_OF: of},
            )
        except CommandError as error:
            context.termini.end(source, str(error))
            return
        assert isinstance(endpoint, Sender)
        outgoing = OutgoingLink(
            record,
            endpoint,
            before.node,
            copy=False,
            default_outcome=None,
            max_unsettled=0,  # so that each settlement on it touches the link
            number=context.next_link_number(),
            now=context.now,
            lane=lane,
            cost=before.cost,
        )
        outgoing.retired = True
        endpoint.context = outgoing
        record.outgoing[outgoing] = None
        context.termini.sources.ask(source, outgoing, partial(self._ask_soon, neighbour.router))
        if context.recording is not None:
            context.recording.up(outgoing)

    # ------------------------------------------------------------------------------------------- the receiving router

    def take(self, record: ConnectionRecord, endpoint: Receiver, attach: Attach) -> bool:
        """Answer the attach of a lane with an unsettled map. Returns: False: it has none.

        If nothing is known of the lane, the answer has no map.
        """
        if attach.unsettled is None or not isinstance(attach.target, Target):
            return False
        context = self._context
        kept = self._take_back(record, endpoint.name)
        whole = (attach.properties or {}).get(PART_OF)
        is_part = kept is None and isinstance(whole, str)
        if is_part:
            kept = self._take_back(record, str(whole))
            if kept is not None and endpoint.name in kept.parts:
                kept = None  # its time is over
        is_same = kept is not None and kept.grant.address == attach.target.address
        if not (kept is not None and is_same and self._resume(record, endpoint, attach, kept, is_part=is_part)):
            if kept is not None:
                context.termini.end(kept, "it cannot be resumed")
            endpoint.attach(
                source=attach.source,
                target=Target(address=attach.target.address),
                rcv_settle_mode=_SECOND,
                offered_capabilities=(WHOLE_MAP,),
            )
        return True

    def _take_back(self, record: ConnectionRecord, name: str) -> SuspendedTarget | None:
        """Return what is kept of a lane, none of which is a link's any more."""
        context, key = self._context, _key(record, name, sends=False)
        for each in tuple(context.link_names.having(key)):  # that its connection is lost was not noticed here
            if each.grant is not None:
                context.termini.suspend(each)
            if (left := context.termini.suspended(key)) is not None:
                context.termini.move_now(left)
            fail_link(context, each, Error(condition=LinkCondition.STOLEN, description="the lane was attached again"))
        kept = context.termini.suspended(key)
        if kept is not None:
            context.termini.move_now(kept)
        return kept if isinstance(kept, SuspendedTarget) else None

    def _resume(
        self, record: ConnectionRecord, endpoint: Receiver, attach: Attach, kept: SuspendedTarget, *, is_part: bool
    ) -> bool:
        """Answer an attach that resumes deliveries of a lane. Args: is_part: others of it come by other links."""
        context, before = self._context, kept.link
        lane = before.lane
        assert lane is not None, "its key is a lane's"
        if is_incomplete(attach):
            return False
        try:
            both, rest = (
                of_part(context, attach, kept) if is_part else in_common(context, record, endpoint, attach, kept)
            )
        except ProtocolError:  # the map is malformed
            return False
        room = endpoint.session.connection.remote_max_frame_size - _AROUND - len(endpoint.name) - len(lane.target)
        maps = (states(both, longest) for longest in (_LONG, _SHORT))
        ours = next((each for each in maps if _octets_of(each) <= room), None)
        if ours is None:
            return False
        seconds = seconds_kept(self._config, attach.target)
        endpoint.attach(
            source=attach.source,
            target=lane_target(lane.target, seconds),
            rcv_settle_mode=_SECOND,
            unsettled=ours,
            offered_capabilities=(WHOLE_MAP,),
        )
        pool = FixedCredit(0)  # for what is resumed alone
        incoming = IncomingLink(
            record, endpoint, before.node, pool, number=context.next_link_number(), now=context.now, lane=lane
        )
        endpoint.context = incoming
        bring(context, both, incoming, kept, last=both)
        incoming.credit_sink.firm = True  # its credit is announced once, and not taken back
        if both:
            pool.let_resume(incoming.credit_sink, len(both))
        if is_part:
            context.termini.give_time(kept, kept.grant.timeout)  # for the next part
            if both:  # else the answer is the same each time, and names alone would need memory
                kept.parts = with_item(kept.parts, endpoint.name)
        else:
            if rest:
                context.chores.do(settle_rest(context, rest, kept))
            context.termini.resumed(kept)
        record.incoming[incoming] = None
        if seconds:
            keep_lane(context, incoming, seconds)
        context.touch_input(incoming)
        if context.recording is not None:
            context.recording.up(incoming)
        return True


def _may_live(record: ConnectionRecord) -> bool:
    """Tell whether the process of a neighbour whose connection is lost may live.

    If its system has closed or reset the connection, most likely it does not.
    """
    closed = record.closed
    if closed is None or not closed.by_peer:
        return True  # it was silent
    error = closed.error
    if error is None:
        return False
    return error.condition != ConnectionCondition.CONNECTION_FORCED or (error.info or {}).keys() >= LIVES.keys()


def _octets(tag: bytes, state: bytes) -> int:
    """Return the octets of an entry of a map, and of that of the answer."""
    return _OF_ENTRY + len(tag) + min(max(len(state), _OF_STATE), _LONG)


def _octets_of(unsettled: Mapping[bytes, DeliveryState]) -> int:
    """Return the octets of a map of the states that are known here."""
    octets = 0
    for tag, state in unsettled.items():
        octets += _OF_ENTRY + len(tag) + (len(state.octets) if isinstance(state, Extension) else _OF_STATE)
    return octets
