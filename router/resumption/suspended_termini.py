"""The termini that are kept for senders which have lost their link: grants, suspension, and the end of their time.

A sender asks for it by the timeout of its target (§3.5.4). While it is away, its deliveries go on: they have left, and
the outcomes that come are kept until the sender resumes its link and hears them, or until its time is over. Then each
delivery ends as that of a sender that is gone.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.router.amqp.standard.messaging import TerminusExpiryPolicy
from amqpmesh.router.delivery.left_unsettled import end_away_ones
from amqpmesh.router.kernel import MANY, Budget, KernelSession, keep_outcomes, set_aside
from amqpmesh.router.memory.retained import size_of_grant
from amqpmesh.router.model.lasting_sources import SuspendedSource
from amqpmesh.router.model.lasting_targets import SuspendedTarget
from amqpmesh.router.model.lasting_termini import (
    LastingTermini,
    ResumptionCounts,
    SuspendedTerminus,
    is_lasting,
)
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.resumption.former_connections import FormerConnections, reduce_incoming, reduce_outgoing
from amqpmesh.router.resumption.grants import Grants
from amqpmesh.router.resumption.returning_receivers import ReturningReceivers
from amqpmesh.router.telemetry.schema import Happening

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from amqpmesh.router.amqp.session import Session
    from amqpmesh.router.context import Context, Errand
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.lasting_termini import Grant
    from amqpmesh.router.model.links import LinkKey

#: Octets that a terminus, and each of its deliveries, count in the router's memory: about what they take. `OF_RELAY`: a
#: delivery that came, and that the router had to decide about.
OF_TERMINUS: Final = 2_048
OF_DELIVERY: Final = 350
OF_RELAY: Final = 2_048

#: Links after whose loss room is made for them.
_ROOM_AFTER: Final = 256

#: Deliveries that one step moves.
AT_ONCE: Final = 1_000

#: Termini that one step looks at, where all are looked at.
_LOOKED_AT: Final = 200

_CONNECTION_CLOSE: Final = TerminusExpiryPolicy.CONNECTION_CLOSE
_LINK_DETACH: Final = TerminusExpiryPolicy.LINK_DETACH


class _Lost(NamedTuple):
    """A link whose session is over, and whose terminus is yet to be made."""

    link: IncomingLink | OutgoingLink
    key: LinkKey
    grant: Grant
    has_time: bool
    """Its time runs."""


class SuspendedTermini(Grants, LastingTermini):
    """The grants of a router, and the termini that have no link now."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.sources = ReturningReceivers(context)
        self.resumptions = 0
        self.lapsed = 0
        self.evicted = 0
        self.counts = ResumptionCounts()
        self._suspended: dict[LinkKey, SuspendedTerminus] = {}
        #: Lost links whose termini are made in steps, before those links end.
        self._lost: dict[LinkKey, _Lost] = {}
        self._lost_keys: dict[IncomingLink | OutgoingLink, LinkKey] = {}
        #: The termini whose deliveries are yet to be moved, by link.
        self._unmoved: dict[IncomingLink | OutgoingLink, SuspendedTarget] = {}
        #: Those whose links are ending.
        self._ending: dict[IncomingLink | OutgoingLink, SuspendedTarget] = {}
        #: Those that have been made since there was room for all.
        self._made = 0
        self._makes_room = False
        #: Those whose time runs from the end of a session or connection that is still there.
        self._untimed: dict[ConnectionRecord, dict[SuspendedTerminus, None]] = {}
        #: Times of expiry; entries of termini that have come back meanwhile are skipped.
        self._times: list[tuple[float, SuspendedTerminus]] = []
        #: The deliveries of all of them, or more: some have ended meanwhile.
        self._most_deliveries = 0
        self._errand: Errand | None = None
        #: Deliveries are here while they have no link: no frame can name them.
        self._nowhere = KernelSession(0)
        self._nowhere.wire.router = context.kernel
        self._memory = Budget(context.budget.limit, context.budget)
        #: The octets of these by holder.
        self._octets: dict[tuple[str, str], int] = {}
        self._connections = FormerConnections(self._count)

    @property
    def suspended_number(self) -> int:
        """The termini that are kept without a link."""
        return len(self._suspended) + len(self._lost)

    def kept(self) -> Iterable[SuspendedTerminus]:
        """Return the termini that are kept without a link, those that were suspended first at the beginning."""
        return self._suspended.values()

    # ------------------------------------------------------------------------------------------------------ suspension

    def suspended(self, key: LinkKey) -> SuspendedTerminus | None:
        """Return the terminus that is kept for a link; None: there is none."""
        if key in self._lost:
            self._make(key)
        return self._suspended.get(key)

    def suspend(self, link: IncomingLink | OutgoingLink) -> None:
        """Keep the terminus of a link that is about to be detached, which has a grant."""
        grant, key = link.grant, link.key
        if not self.keeps or grant is None:
            return
        link.grant = None  # it is the terminus' now
        if key is None:  # it was stolen, and is another's now
            self.take_back(grant)
            return
        if isinstance(link, OutgoingLink):
            self.sources.park(link)
        self._keep(_Lost(link, key, grant, grant.policy is _LINK_DETACH))
        if self._has_too_many:
            self._context.chores.do(self.make_room())

    def suspend_all(self, record: ConnectionRecord, session: Session | None = None) -> None:
        """Keep those of a connection that is lost, or of a session that has ended, as `LastingTermini.suspend_all`."""
        for each in (*record.outgoing, *record.incoming, *record.detached_unsettled):
            if session is not None and each.endpoint.session is not session:
                continue
            if is_lasting(each):
                if self.keeps:
                    self._lose(each, is_connection=session is None)
            elif each in self._unmoved:
                keep_outcomes(each.endpoint.flow_state)
        for terminus in self._untimed.pop(record, ()):
            if session is not None and self._outlasts(terminus, session):
                self._leave_untimed(terminus)
            else:
                self._begin_time(terminus)

    def _lose(self, link: IncomingLink | OutgoingLink, *, is_connection: bool) -> None:
        """Note a link whose session is over: its terminus is made in time."""
        grant, key = link.grant, link.key
        assert grant is not None
        link.grant = None
        if key is None:
            self.take_back(grant)
            return
        if key in self._lost:
            self._make(key)  # it ends, since this one comes after it
        if isinstance(link, OutgoingLink):
            self.sources.park(link)
        else:
            keep_outcomes(link.endpoint.flow_state)
        self._lost_keys[link] = key
        self._lost[key] = _Lost(link, key, grant, is_connection or grant.policy is not _CONNECTION_CLOSE)
        if link.lane is not None:
            self._make(key)  # a lane may be asked for at once

    def move(self, link: IncomingLink | OutgoingLink) -> Steps[None]:
        """Keep the terminus of a link whose session is over, as `LastingTermini.move` does."""
        key = self._lost_keys.get(link)
        if key is not None:
            self._make(key)
            if self._made >= _ROOM_AFTER:
                yield from self.make_room()
        terminus = self._unmoved.get(link)
        if terminus is None:
            return
        self._ending[link] = terminus
        left = link.unsettled
        while left > AT_ONCE:
            self._move(terminus, AT_ONCE)
            yield
            if self._unmoved.get(link) is not terminus:
                return
            left -= AT_ONCE
        self.move_now(terminus)

    def move_now(self, terminus: SuspendedTerminus) -> None:
        """Move the deliveries of a terminus, which are to be resumed over another link."""
        if isinstance(terminus, SuspendedTarget) and not terminus.is_moved:
            self._move(terminus, MANY)
            terminus.is_moved = True
            del self._unmoved[terminus.link]
            self._context.end_detached(terminus.link)

    def ended(self, links: Iterable[IncomingLink | OutgoingLink]) -> None:
        """Let links that have ended have no kernel's part beside that which has their deliveries."""
        for link in links:
            terminus = self._ending.pop(link, None)
            if terminus is not None and self._is_kept(terminus):
                endpoint = terminus.link.endpoint
                if endpoint.flow_state.record is None:  # it is dismantled
                    endpoint.flow_state = terminus.holder

    def replace_connection(self, record: ConnectionRecord) -> None:
        """Have termini refer to little of a connection that is gone, as `LastingTermini.replace_connection` does."""
        if record.listener is not None and record.role == "normal" and self._connections.has_any_of(record):
            self._context.chores.do(self._connections.replace(record, self._reduce))

    def _reduce(self, terminus: SuspendedTerminus) -> None:
        """Let a terminus whose connection is gone keep no more of its former link than it needs."""
        if isinstance(terminus, SuspendedSource):
            if not self.sources.coming(terminus.link):
                reduce_outgoing(terminus.link, self._nowhere)
        elif isinstance(terminus, SuspendedTarget):
            endpoint = terminus.link.endpoint
            if not (terminus.is_moved or terminus.link.has_unsettled):  # it was detached before
                self.move_now(terminus)
                if endpoint.flow_state.record is None:
                    endpoint.flow_state = terminus.holder
            if endpoint.flow_state is terminus.holder:
                reduce_incoming(terminus.link)

    def _move(self, terminus: SuspendedTarget, most: int) -> None:
        """Move deliveries to where no frame can name them. Args: most: of them."""
        compacts = not self._context.traces.relays
        relays = set_aside(terminus.link.endpoint.flow_state, terminus.holder, compacts, most)
        more = relays * (OF_RELAY - OF_DELIVERY)
        terminus.octets += more
        self._count(terminus.grant.holder, more)

    def _count(self, holder: tuple[str, str], octets: int) -> None:
        """Count octets that are kept for a holder, or (negative) are not any more."""
        self._memory.add(octets)
        has = self._octets.get(holder, 0) + octets
        if has:
            self._octets[holder] = has
        else:
            self._octets.pop(holder, None)

    def _make(self, key: LinkKey) -> None:
        """Make the terminus of a lost link."""
        lost = self._lost.pop(key)
        del self._lost_keys[lost.link]
        record = lost.link.connection
        self._keep(lost._replace(has_time=lost.has_time or record.lost))

    def _keep(self, lost: _Lost) -> None:
        """Make the terminus of a link. Its deliveries are moved later."""
        context = self._context
        link, key, grant, has_time = lost
        if key[2] == grant.holder[1]:
            key = *key[:2], grant.holder[1], *key[3:]  # the user's name is in memory once for all links
        earlier = self._suspended.get(key)
        if earlier is not None:
            self.end(earlier, "another link of its name has ended")
        terminus: SuspendedTarget | SuspendedSource
        if isinstance(link, OutgoingLink):
            terminus = SuspendedSource(key, link, grant, context.now)
        else:
            terminus = self._unmoved[link] = SuspendedTarget(key, link, grant, context.now, self._nowhere)
        self._suspended[key] = terminus
        unsettled = terminus.unsettled + (self.sources.coming(link) if isinstance(link, OutgoingLink) else 0)
        self._made += 1
        terminus.counted = unsettled
        self._most_deliveries += unsettled
        names = size_of_grant(key[4], grant, link.endpoint.remote)
        terminus.octets = OF_TERMINUS + names + OF_DELIVERY * unsettled
        self._count(grant.holder, terminus.octets)
        self._connections.add(terminus)
        if has_time:
            self._begin_time(terminus)
        else:
            self._leave_untimed(terminus)
        self._record(terminus, Happening.SUSPENDED)
        if link.lane is None:
            context.log.info("link suspended", **_described(terminus), unsettled=unsettled, seconds=grant.timeout)

    def make_room(self) -> Steps[None]:
        """Give up termini until there are no more deliveries than may be, as `LastingTermini.make_room` does."""
        self._made = 0
        if self._makes_room:
            return  # what a thousand links that are detached at once need is found at one time, not a thousand times
        self._makes_room = True
        try:
            if self._has_too_many:
                yield from self._recount()
            evicted = -1
            while self._has_too_many and evicted != self.evicted:
                evicted = self.evicted
                yield from self._give_up_deliveries()
        finally:
            self._makes_room = False

    @property
    def _has_too_many(self) -> bool:
        return self._most_deliveries > self._context.config.resumption.unsettled

    def _give_up_deliveries(self) -> Steps[None]:
        """Do so with the termini that are there now. More may be made meanwhile."""
        kept = yield from self.by_holder()
        largest = [(-sum(each.counted + 1 for each in of_holder), holder) for holder, of_holder in kept.items()]
        heapify(largest)
        while largest and self._has_too_many:
            held, holder = heappop(largest)
            oldest = kept[holder].popleft()
            if kept[holder]:
                heappush(largest, (held + oldest.counted + 1, holder))
            if self.evict(oldest):
                yield

    def _recount(self) -> Steps[None]:
        """Count the deliveries of all of them anew: some have ended."""
        for number, each in enumerate(list(self._suspended.values()), 1):
            if self._is_kept(each):
                self._most_deliveries += each.unsettled - each.counted
                each.counted = each.unsettled
            if not number % _LOOKED_AT:
                yield

    def octets_by_holder(self) -> dict[tuple[str, str], int]:
        """Return the octets of what is kept for each holder, as `LastingTermini.octets_by_holder` does."""
        octets = self.sources.octets.by_holder()
        for holder, of_termini in self._octets.items():
            octets[holder] = octets.get(holder, 0) + of_termini
        return octets

    def octets_of(self, holder: tuple[str, str]) -> int:
        """Return the octets of what is kept for a holder: of its termini, and of messages."""
        return self._octets.get(holder, 0) + self.sources.octets.of(holder)

    def has_links_of(self, holder: tuple[str, str]) -> bool:
        """Tell whether a holder has termini without a link."""
        return holder in self._octets

    def by_holder(
        self, holders: Container[tuple[str, str]] | None = None
    ) -> Steps[dict[tuple[str, str], deque[SuspendedTerminus]]]:
        """Return the termini of holders, as `LastingTermini.by_holder` does."""
        found: dict[tuple[str, str], deque[SuspendedTerminus]] = {}
        for number, each in enumerate(list(self._suspended.values()), 1):
            holder = each.grant.holder
            if holders is None or holder in holders:
                of_holder = found.get(holder)
                if of_holder is None:
                    found[holder] = of_holder = deque()
                of_holder.append(each)
            if not number % _LOOKED_AT:
                yield
        return found

    def give_up_octets(self, holder: tuple[str, str], octets: int) -> int:
        """Give up messages that are kept for a holder, as `LastingTermini.give_up_octets` does."""
        return self.sources.octets.give_up(holder, octets)

    def evict(self, terminus: SuspendedTerminus) -> bool:
        """Give up a terminus for want of room, as `LastingTermini.evict` does."""
        if not self._is_kept(terminus):
            return False
        self.evicted += 1
        self.end(terminus, "there is no room")
        return True

    @staticmethod
    def _outlasts(terminus: SuspendedTerminus, session: Session) -> bool:
        """Tell whether the time of a terminus does not run yet when a session ends."""
        return terminus.session is not session or terminus.grant.policy is _CONNECTION_CLOSE

    # ------------------------------------------------------------------------------------------------------------- end

    def resumed(self, terminus: SuspendedTerminus) -> None:
        """Let go of a terminus whose deliveries are on a new link."""
        self._let_go(terminus)
        self.resumptions += 1
        self._record(terminus, Happening.RESUMED)
        if terminus.link.lane is None:
            seconds = round(self._context.now - terminus.since, 3)
            self._context.log.info("link resumed", **_described(terminus), seconds=seconds)

    def end(self, terminus: SuspendedTerminus, reason: str) -> None:
        """End a terminus that nobody can resume any more, and its deliveries."""
        self._let_go(terminus)
        self._record(terminus, Happening.EXPIRED)
        about = _described(terminus)
        self._context.log.info("link expired", **about, unsettled=terminus.unsettled, reason=reason)
        if isinstance(terminus, SuspendedSource):
            self.sources.end(terminus)
        elif isinstance(terminus, SuspendedTarget):
            if not terminus.is_moved:  # what it has not got lives as long as the session, which ends it
                del self._unmoved[terminus.link]
                terminus.is_moved = True
            self._context.chores.do(end_away_ones(self._context, terminus.holder))

    def _record(self, terminus: SuspendedTerminus, happening: Happening) -> None:
        if self._context.recording is not None:
            self._context.recording.suspended(terminus.link, happening)

    def end_all(self, reason: str) -> None:
        """End all of them, in steps, and keep no more."""
        self.keeps = False
        self._context.chores.do(self._end_all(reason))

    def _end_all(self, reason: str) -> Steps[None]:
        while self._lost or self._suspended:
            if self._lost:
                self._make(next(iter(self._lost)))
            else:
                self.end(next(iter(self._suspended.values())), reason)
            yield

    def _let_go(self, terminus: SuspendedTerminus) -> None:
        del self._suspended[terminus.key]
        self.take_back(terminus.grant)
        self._most_deliveries -= terminus.counted
        self._count(terminus.grant.holder, -terminus.octets)
        link = terminus.link
        self._connections.remove(terminus)
        if isinstance(terminus, SuspendedTarget) and terminus.holder is not terminus.link.endpoint.flow_state:
            terminus.link.endpoint.flow_state.add_counts(terminus.holder)
        untimed = self._untimed.get(link.connection)
        if untimed is not None:
            untimed.pop(terminus, None)
            if not untimed:
                del self._untimed[link.connection]
        self._context.keep_count(link)

    def _leave_untimed(self, terminus: SuspendedTerminus) -> None:
        self._untimed.setdefault(terminus.link.connection, {})[terminus] = None

    def _begin_time(self, terminus: SuspendedTerminus) -> None:
        terminus.session = None
        self.give_time(terminus, terminus.grant.timeout)

    def give_time(self, terminus: SuspendedTerminus, seconds: float) -> None:
        """Have the time of a terminus run anew from now on."""
        terminus.expires = self._context.now + seconds
        entry = terminus.expires, terminus
        heappush(self._times, entry)
        if self._times[0] is entry or len(self._times) > 2 * len(self._suspended) + 64:
            self._wait()

    def _wait(self) -> None:
        """Have the next time looked at when it comes. Entries that are over do not stay for long: those of termini that
        have gone, or whose time runs anew. So there are at most as many as termini, once they were looked at."""
        while self._times and not self._counts(*self._times[0]):
            heappop(self._times)
        if len(self._times) > 2 * len(self._suspended) + 64:
            self._times = [each for each in self._times if self._counts(*each)]
            self._times.sort()
        if self._errand is not None:
            self._context.cancel(self._errand)
            self._errand = None
        if self._times:
            self._errand = self._context.schedule(self._times[0][0], self._expire)

    def _is_kept(self, terminus: SuspendedTerminus) -> bool:
        return self._suspended.get(terminus.key) is terminus

    def _counts(self, at: float, terminus: SuspendedTerminus) -> bool:
        """Tell whether a time is that of a terminus which is kept."""
        return terminus.expires == at and self._is_kept(terminus)

    def _expire(self) -> None:
        self._errand = None
        while self._times and self._times[0][0] <= self._context.now:
            at, terminus = heappop(self._times)
            if self._counts(at, terminus):
                self.lapsed += 1
                self.end(terminus, "its time is over")
        self._wait()


def _described(terminus: SuspendedTerminus) -> dict[str, object]:
    """Return the fields of a log line that say whose terminus it is."""
    record = terminus.link.connection
    return {"connection": record.number, "peer": record.host, "link": terminus.key[4]}
