"""Routers that no path leads to, since a moment ago: most of them are back soon, over a new connection or another way.

Until then what leads to them is kept as it was, and with it the credit that producers hold for their sake. To take it
back and to give it again at once would cost two flows for each producer; what comes meanwhile waits, and is no more
than was granted. The log tells which routers stay away for longer, and which of those are back.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final

from amqpmesh.topology.records import Name

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.router.core import Core
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.topology.linkstate import Topology

WAIT_TIME: Final = 2.0
"""Seconds for which a lost router is waited for; and once it is back, for the credit of a lane that was kept."""

MAX_LINES: Final = 20
"""Lines of the log for routers that are lost, or found, at the same time; one more has the number of the others."""

MAX_LOST: Final = 10_000
"""Lost routers that are remembered, to tell when they are found: in an insecure mesh anybody can invent some."""


class Outages:
    """Who is waited for."""

    def __init__(self, core: Core, topology: Topology, over: Callable[[str], None]) -> None:
        """Args: over: told of a router that was waited for long enough."""
        self._core = core
        self._topology = topology
        self._over = over
        self._within_reach: set[str] = set()
        #: Until when, seconds, by the router's id.
        self._until: dict[str, float] = {}
        #: Of those that were waited for long enough: which have no line in the log yet, and which have one.
        self._unlogged: list[str] = []
        self._lost: OrderedDict[str, None] = OrderedDict()

    def update(self, within_reach: set[str]) -> bool:
        """A path leads to these routers now; whether they are others than before."""
        lost = self._within_reach - within_reach
        self._log_found(within_reach - self._within_reach)
        changed = within_reach != self._within_reach
        self._within_reach = within_reach
        for router in within_reach:
            self._until.pop(router, None)
        until = self._core.now + WAIT_TIME
        for router in sorted(lost):
            self._until[router] = until
            self._core.schedule(until, partial(self._end, router, until))
        return changed

    def concerns(self, lane: Lane) -> bool:
        """Whether a lane is to be kept: its router is waited for, and had consumers of the address."""
        if lane.far not in self._until:
            return False
        advert = self._topology.book.advertised_by(lane.far).get(Name(lane.tenant, lane.name))
        return advert is not None and advert.consumers > 0

    def _end(self, router: str, until: float) -> None:
        if self._until.get(router) == until:
            del self._until[router]
            if not self._unlogged:
                self._core.schedule(self._core.now, self._log_lost)
            self._unlogged.append(router)
            self._over(router)

    def _log_lost(self) -> None:
        """Log those for which waiting has ended at the same time."""
        lost, self._unlogged = [each for each in self._unlogged if each not in self._within_reach], []
        for router in lost:
            self._lost[router] = None
        while len(self._lost) > MAX_LOST:
            self._lost.popitem(last=False)
        for router in lost[:MAX_LINES]:
            self._core.log.warning("route lost", router=router, seconds=WAIT_TIME)
        if len(lost) > MAX_LINES:
            self._core.log.warning("route lost", count=len(lost) - MAX_LINES, seconds=WAIT_TIME)

    def _log_found(self, found: set[str]) -> None:
        """Log those that were lost, and to which a path leads again."""
        back = [router for router in sorted(found) if router in self._lost]
        for router in back:
            del self._lost[router]
        for router in back[:MAX_LINES]:
            self._core.log.info("route found", router=router)
        if len(back) > MAX_LINES:
            self._core.log.info("route found", count=len(back) - MAX_LINES)
