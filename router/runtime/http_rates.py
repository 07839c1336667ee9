"""Rates of the links of other routers, for the page: their counters are read now and then, while somebody looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from amqpmesh.router.http.requests import HttpError
from amqpmesh.router.management.entities import PREFIX
from amqpmesh.router.management.queries import AnswerError, entities_of, query

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from amqpmesh.router.core import Core
    from amqpmesh.router.http.visitors import Visitor
    from amqpmesh.router.mesh.member import MeshMember
    from amqpmesh.router.runtime.http_elsewhere import Elsewhere

NEIGHBOUR: Final = f"{PREFIX}neighbour"

COUNTERS: Final = ("connection", "router", "octets_in", "octets_out")

AGAIN: Final = 20.0
"""Seconds until a router is asked again: it takes a snapshot for the answer."""

PAUSE: Final = 2.0
"""Seconds between two times that routers are asked, for all clients; `AT_ONCE`: routers of one time at most."""

AT_ONCE: Final = 4

ROUTERS: Final = 200
"""Routers whose counters are kept at most, the nearest ones."""

KEPT: Final = 300.0
"""Seconds after which a rate is forgotten."""


class _Counted(NamedTuple):
    """The octets of one connection, as its router has told them."""

    at: float
    octets_in: int
    octets_out: int


class _Rates(NamedTuple):
    """Octets a second between a router and its neighbour."""

    at: float
    out: float
    back: float


class MeshRates:
    """The rates of all links but those of this router itself; used in its loop.

    A link has two ends, and one of them is asked. So a line of routers costs every other one an answer.
    """

    def __init__(self, core: Core, elsewhere: Elsewhere) -> None:
        self._core = core
        self._elsewhere = elsewhere
        self._asked: dict[str, float] = {}
        self._counted: dict[str, Mapping[int, _Counted]] = {}
        self._rates: dict[tuple[str, str], _Rates] = {}
        self._is_asking = False
        self._again_at = 0.0

    async def look(self, visitor: Visitor) -> list[tuple[str, str, float, float]]:
        """Return links, each with the octets a second there and back, for a client that may see them.

        Some routers are asked first, unless that was done a moment ago. One that does not answer keeps its rates.
        """
        mesh, now = self._core.mesh, trio.current_time()
        if mesh is None:
            return []
        if not self._is_asking and now >= self._again_at:
            self._is_asking, self._again_at = True, now + PAUSE
            try:
                for router in list(self._due(mesh, now)):
                    await self._ask(router, visitor)
            finally:
                self._is_asking = False
            self._forget(mesh, trio.current_time())
        return [(*link, each.out, each.back) for link, each in self._rates.items()]

    def _due(self, mesh: MeshMember, now: float) -> Iterator[str]:
        """Return the routers to ask now: those that were asked longest ago first."""
        near, graph = self._near(mesh), mesh.topology.graph
        covered = {(a, b) for link, each in self._rates.items() if each.at > now - AGAIN for a, b in (link, link[::-1])}
        count = 0
        for router in sorted(near, key=lambda each: (self._asked.get(each, -1.0), near[each])):
            ends = [other for other in graph.neighbours(router) if other != self._core.context.id]
            if self._asked.get(router, -AGAIN) > now - AGAIN or all((router, other) in covered for other in ends):
                continue
            covered.update((other, router) for other in ends)
            yield router
            count += 1
            if count == AT_ONCE:
                return

    def _near(self, mesh: MeshMember) -> dict[str, int]:
        """Return the routers that can be reached, with their distances: the nearest ones."""
        topology, own = mesh.topology, self._core.context.id
        known = ((topology.distance(each), each) for each in topology.graph.routers() if each != own)
        return {each: distance for distance, each in sorted((d, e) for d, e in known if d is not None)[:ROUTERS]}

    async def _ask(self, router: str, visitor: Visitor) -> None:
        """Read the counters of a router's connections to its neighbours."""
        self._asked[router] = trio.current_time()
        try:
            rows = entities_of(await self._elsewhere.ask(router, query(NEIGHBOUR, COUNTERS), visitor))
        except (AnswerError, HttpError):
            return
        now, before = trio.current_time(), self._counted.get(router, {})
        counted: dict[int, _Counted] = {}
        rates: dict[tuple[str, str], _Rates] = {}
        for row in rows:
            number, other, came, left = (row[name] for name in COUNTERS)
            if not isinstance(came, int) or not isinstance(left, int):
                return  # a router of an earlier version does not count them
            counted[number] = _Counted(now, came, left)
            last = before.get(number)
            if last is not None and now > last.at and other != self._core.context.id:
                sum_of = rates.get((router, other), _Rates(now, 0.0, 0.0))
                out, back = (max(0, count) / (now - last.at) for count in (left - last[2], came - last[1]))
                rates[router, other] = _Rates(now, sum_of.out + out, sum_of.back + back)
        self._counted[router] = counted
        for link in rates:
            self._rates.pop(link[::-1], None)
        self._rates.update(rates)

    def _forget(self, mesh: MeshMember, now: float) -> None:
        near = self._near(mesh)
        self._asked = {router: at for router, at in self._asked.items() if router in near}
        self._counted = {router: counted for router, counted in self._counted.items() if router in near}
        self._rates = {
            link: each for link, each in self._rates.items() if each.at > now - KEPT and near.keys() >= set(link)
        }
