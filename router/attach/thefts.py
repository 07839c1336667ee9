"""Links that a second attach takes over (§2.6.1), and names that two clients take from each other.

A peer with an unsettled map resumes its own link, so it gets the link at once. If two programs have one container-id,
and one name of a link, and both resume, each takes what is the other's: its deliveries and their outcomes. The router
sees it by the connections that lose the link and still answer. Such a name is not resumed any more for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

from amqpmesh.router.amqp.standard.definitions import Error, LinkCondition
from amqpmesh.router.delivery.link_loss import fail_link

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.links import IncomingLink, LinkKey, OutgoingLink

#: Seconds until a container is logged again whose connections share the name of a link. `TOLD`: containers that are
#: remembered for this.
TOLD_TIME: Final = 600.0
TOLD: Final = 1000

#: Thefts from connections that live, within `WATCHED` seconds, after which a name counts as shared by two clients; it
#: does so for `TWIN_TIME` seconds after the last theft. `NAMES`: names that are remembered for this; `LATEST`: thefts
#: of each; `SHOWN`: characters of a name. All that is remembered is 3 MB at most, which nothing else counts.
THEFTS: Final = 3
LATEST: Final = 16
WATCHED: Final = 60.0
TWIN_TIME: Final = 600.0
NAMES: Final = 1000
SHOWN: Final = 256


class _Robbed:
    """A connection that has lost a link. Once it has ended, only the number of its octets is remembered."""

    __slots__ = ("__weakref__", "_octets_in", "_record")

    def __init__(self, record: ConnectionRecord) -> None:
        self._record: ConnectionRecord | None = record
        self._octets_in = 0

    @property
    def octets_in(self) -> int:
        """The octets that have come over the connection."""
        return self._octets_in if self._record is None else self._record.octets_in

    def end(self) -> None:
        """Let go of the connection."""
        self._octets_in = self.octets_in
        self._record = None


class _Theft(NamedTuple):
    """A link that a connection has lost to another one."""

    time: float
    robbed: _Robbed
    octets_in: int
    """The octets that had come from the robbed connection: if more came later, its peer lives."""


class _Twins(NamedTuple):
    """A name that two clients have."""

    until: float
    container: str
    link: str


class Thefts:
    """The thefts of a router's links."""

    def __init__(self, context: Context) -> None:
        self._context = context
        #: Containers whose connections share the name of a link, by the hash of their identity; each with the time from
        #: which it may be logged again.
        self._logged_shared: OrderedDict[int, float] = OrderedDict()
        #: Thefts of resumed links within the last minute, and names of twins, by the hash of the link's identity, which
        #: may be long. The last ones at the end.
        self._watched: OrderedDict[int, list[_Theft]] = OrderedDict()
        self._twins: OrderedDict[int, _Twins] = OrderedDict()
        #: The connections of these thefts that have not ended.
        self._robbed: WeakValueDictionary[ConnectionRecord, _Robbed] = WeakValueDictionary()

    def steal(self, record: ConnectionRecord, robbed: IncomingLink | OutgoingLink) -> None:
        """Detach a link that was attached a second time: the second attach wins (§2.6.1)."""
        context = self._context
        context.log.info(
            "link stolen",
            connection=robbed.connection.number,
            by=record.number,
            peer=record.host,
            link=robbed.endpoint.name,
        )
        context.stolen += 1
        counts = context.counts_of(record.peer.tenant)
        if counts is not None:
            counts.stolen += 1
        if context.recording is not None:
            context.recording.stolen(robbed)
        error = Error(condition=LinkCondition.STOLEN, description="the link was attached again")
        fail_link(context, robbed, error)

    def log_shared(self, record: ConnectionRecord, holder: IncomingLink | OutgoingLink) -> None:
        """Log, once in `TOLD_TIME`, that two live connections of a container have a link of the same name."""
        now, told = self._context.now, self._logged_shared
        assert holder.key is not None
        container = hash(holder.key[:4])
        if told.get(container, now) > now:
            return
        told[container] = now + TOLD_TIME
        told.move_to_end(container)
        if len(told) > TOLD:
            told.popitem(last=False)
        self._context.log.info(
            "link name shared",
            connection=record.number,
            other=holder.connection.number,
            peer=record.host,
            container=record.peer.container_id,
            link=holder.endpoint.name,
        )

    # ---------------------------------------------------------------------------------------------------------- twins

    def watch(self, key: LinkKey, record: ConnectionRecord, robbed: ConnectionRecord) -> None:
        """Note that a connection resumes a link that another one has, and find out whether both live."""
        now, identity = self._context.now, hash(key)
        twins = _Twins(now + TWIN_TIME, key[3][:SHOWN], key[4][:SHOWN])
        if identity in self._twins:
            self._twins[identity] = twins
            self._twins.move_to_end(identity)
            return
        watched = self._watched
        while watched and next(iter(watched.values()))[-1].time <= now - WATCHED:
            watched.popitem(last=False)
        before = [each for each in watched.pop(identity, ()) if each.time > now - WATCHED]
        del before[: 1 - LATEST]
        victim = self._robbed.get(robbed)
        if victim is None:
            self._robbed[robbed] = victim = _Robbed(robbed)
        before.append(_Theft(now, victim, victim.octets_in))
        if sum(each.robbed.octets_in > each.octets_in for each in before) >= THEFTS:
            self._twins[identity] = twins
            if len(self._twins) > NAMES:
                self._twins.popitem(last=False)
            self._context.log.warning(
                "link not resumed",
                connection=record.number,
                other=robbed.number,
                peer=record.host,
                container=key[3],
                link=key[4],
                seconds=TWIN_TIME,
            )
            return
        watched[identity] = before
        if len(watched) > NAMES:
            watched.popitem(last=False)

    def ended(self, record: ConnectionRecord) -> None:
        """Note that a connection has ended, which may have lost links: nothing more comes from its peer."""
        victim = self._robbed.pop(record, None)
        if victim is not None:
            victim.end()

    def has_twins(self, key: LinkKey) -> bool:
        """Tell whether two clients take the link of this name from each other."""
        return bool(self._twins) and self._are_twins(hash(key))

    def _are_twins(self, identity: int) -> bool:
        twins = self._twins.get(identity)
        if twins is None:
            return False
        if twins.until > self._context.now:
            return True
        del self._twins[identity]
        return False

    def twins(self) -> Iterator[tuple[str, str]]:
        """Yield the containers and the names of links that are not resumed because of twins: the beginning of each."""
        for identity, twins in tuple(self._twins.items()):
            if self._are_twins(identity):
                yield twins.container, twins.link
