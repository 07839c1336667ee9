"""Routes of anonymous senders, by the addresses that their messages name in `to` (§3.2.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from amqpmesh.router.kernel.encoded_values import _PROPERTIES, uint32
from amqpmesh.router.kernel.fast_route import _ALL, FastRoute
from amqpmesh.router.kernel.head_sections import _PASS_ALL, _PASS_THEIRS, _after_any, _bare_message_at
from amqpmesh.router.kernel.transit_routes import (
    _HANDED_ON,
    _TRACKED,
    SettledRoute,
    TransitRoute,
    _annotations_at,
    _section_end,
    _with_annotations,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from amqpmesh.router.kernel.frame_fields import TransferFrame
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.router_state import KernelRouter

    AnyRoute: TypeAlias = FastRoute | TransitRoute | SettledRoute

#: The most routes, and octets, of each of the two parts of a table. `_ENTRY`: octets of a route in it, beside its `to`.
MOST_ROUTES: Final = 16384
MOST_OCTETS: Final = 4 * 2**20
_MOST_ROUTES: Final = MOST_ROUTES
_MOST_OCTETS: Final = MOST_OCTETS
_ENTRY: Final = 256

#: Deliveries that the decision about a route counts as, in `KernelConnection.work`.
_DECISION: Final = 4


class AnonymousRoutes(FastRoute):
    """The routes of one link whose messages name their addresses: by the octets of `to`, as they come.

    At the end of a transit lane they are found by the whole section of delivery annotations, which has nothing but the
    final address. An address at another router has a `TransitRoute`.

    It is in the place of the link's own route. It is valid while its `generation` is the router's `epoch`: after a
    change by which an address may lead to another node, each `to` is decided again. Each of its routes is valid, or
    not, by itself.

    The routes that were used least recently are dropped. Those used lately are in `recent`; when it is full, it becomes
    `older`, and the former `older` is dropped. A route that is found in `older` returns to `recent`.
    """

    __slots__ = ("counted", "last", "last_to", "older", "older_octets", "only", "recent", "recent_octets", "waited_for")

    def __init__(self) -> None:
        super().__init__()
        self.recent: dict[bytes, AnyRoute] = {}
        self.older: dict[bytes, AnyRoute] = {}
        self.recent_octets = 0
        self.older_octets = 0
        #: The octets that the sender's account has been charged.
        self.counted = 0
        #: The `to` that was looked up last, and its route; an empty `to` has none.
        self.last_to = b""
        self.last: AnyRoute | None = None
        #: The `to` of all messages of a link whose target gives it; else None.
        self.only: bytes | None = None
        #: Keyed by addresses, among others, for which messages of this link wait here or at other routers: the router
        #: decides about messages for these addresses at other routers.
        self.waited_for: Mapping[Hashable, object] = {}

    @property
    def octets(self) -> int:
        """The octets that the table takes."""
        return self.recent_octets + self.older_octets

    def clear(self) -> None:
        """Drop all routes."""
        self.recent = {}
        self.older = {}
        self.recent_octets = self.older_octets = 0
        self.last_to = b""
        self.last = None

    def octets_for(self, to: bytes, route: AnyRoute) -> int:
        """Return the octets that the route of a `to` takes."""
        return _ENTRY + len(to) + (4 * len(route.annotations) if isinstance(route, TransitRoute) else 0)

    def put(self, to: bytes, route: AnyRoute) -> None:
        """Add the route of a `to`, or replace the former one."""
        self.last_to = b""
        self.last = None
        octets = self.octets_for(to, route)
        former = self.recent.get(to)
        if former is not None:
            self.recent[to] = route
            self.recent_octets += octets - self.octets_for(to, former)
            return
        former = self.older.pop(to, None)
        if former is not None:
            self.older_octets -= self.octets_for(to, former)
        if len(self.recent) >= _MOST_ROUTES or self.recent_octets + octets > _MOST_OCTETS:
            self.older = self.recent
            self.older_octets = self.recent_octets
            self.recent = {}
            self.recent_octets = 0
        self.recent[to] = route
        self.recent_octets += octets

    def find(self, to: bytes) -> AnyRoute | None:
        """Return the route of a `to`; None: the router must decide."""
        if to == self.last_to:
            return self.last
        route = self.recent.get(to)
        if route is None:
            route = self.older.get(to)
            if route is None:
                return None
            self.put(to, route)
        self.last_to = to
        self.last = route
        return route


def _anonymous_route(
    router: KernelRouter, link: KernelLink, frame: TransferFrame, data: bytes, payload_at: int, end: int
) -> FastRoute | None:
    """Return the route of the next delivery of an anonymous sender; None: the router must decide."""
    table = link.fast_route
    if table is None or table.generation != router.epoch or frame.message_format > 0:
        return None
    assert isinstance(table, AnonymousRoutes), "an anonymous sender has no other"
    router.rewritten = None
    router.final_address = b""
    router.exchange = 0
    if link.lane:
        return _route_off_transit(router, link, table, frame, data, payload_at, end)
    bare_at = _bare_message_at(router.header, data, payload_at, end, _PASS_THEIRS, not frame.more)
    if bare_at < 0:
        return None
    to = table.only
    if to is None:
        to = _to(data, bare_at, end)
    found = None if to is None else _found(router, link, table, to)
    if found is None or isinstance(found, SettledRoute):
        return None
    if isinstance(found, TransitRoute):
        transit: TransitRoute = found
        settled = frame.settled == 1
        if frame.more or transit.address in table.waited_for or (settled and router.recorder is not None):
            return None
        if transit.route.generation == router.generation:
            section = transit.settled_annotations if settled else transit.annotations
            router.exchange = _TRACKED if settled else 0
            router.rewritten = _with_annotations(data, payload_at, bare_at, end, section)
            router.final_address = transit.octets
            if router.rewritten is None:
                return None
        return transit.route
    route: FastRoute = found
    if route.shares is not None or (route.borrowed >= 0 and route.order != _ALL):
        return None  # the counts of a link do not show how many of its deliveries left by which share
    return route


def _found(router: KernelRouter, link: KernelLink, table: AnonymousRoutes, to: bytes) -> AnyRoute | None:
    """Return the route of a `to`, which the router decides about if the table has none; None: there is still none."""
    found = table.find(to)
    if found is None and router.on_unknown is not None:
        router.on_unknown(link.record, to)
        found = table.find(to) if table.generation == router.epoch else None
        if found is not None:
            link.session.wire.work -= _DECISION
    return found


def _route_off_transit(
    router: KernelRouter,
    link: KernelLink,
    table: AnonymousRoutes,
    frame: TransferFrame,
    data: bytes,
    payload_at: int,
    end: int,
) -> FastRoute | None:
    """Return the route of the next delivery of a transit lane that ends here, and take its final address off.

    Returns: None: the router must decide.
    """
    if frame.more or frame.settled == 1:
        return None
    bare_at = _bare_message_at(router.header, data, payload_at, end, _PASS_ALL, True)
    at = -1 if bare_at < 0 else _annotations_at(data, payload_at, bare_at)
    if at < 0:
        return None
    after = _section_end(data, at)
    found = _found(router, link, table, data[at:after])
    if found is None or isinstance(found, TransitRoute):
        return None
    if isinstance(found, SettledRoute):
        settled: SettledRoute = found
        found = settled.route
        if settled.route.keeper is not None or router.recorder is not None:
            return None
        router.exchange = _HANDED_ON
    route: FastRoute = found
    if route.generation != router.generation or route.borrowed >= 0 or route.shares is not None or route.order == _ALL:
        return None
    router.rewritten = data[payload_at:at] + data[after:end]
    return route


def _to(data: bytes, at: int, end: int) -> bytes | None:
    """Return the octets of the `to` in the properties with which the bare message at `at` begins.

    Returns: None: there is none, or the properties are not encoded as usual, or not complete.
    """
    if end - at < 4 or data[at] != 0 or data[at + 1] != 0x53 or data[at + 2] != _PROPERTIES:
        return None
    if data[at + 3] == 0xC0 and end - at >= 6:
        after = at + 5 + data[at + 4]
        count = data[at + 5]
        at += 6
    elif data[at + 3] == 0xD0 and end - at >= 12:
        after = at + 8 + uint32(data, at + 4)
        count = uint32(data, at + 8)
        at += 12
    else:
        return None
    if count < 3 or after > end:
        return None
    at = _after_any(data, at, after)  # message-id
    if at >= 0:
        at = _after_any(data, at, after)  # user-id
    if at < 0:
        return None
    stop = _after_any(data, at, after)
    if stop < 0:
        return None
    if data[at] == 0xA1:
        return data[at + 2 : stop]
    return data[at + 5 : stop] if data[at] == 0xB1 else None
