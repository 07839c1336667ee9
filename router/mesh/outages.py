"""Outages: routers that no path leads to for a moment. Most come back soon, by a new connection or another path.

Meanwhile the nodes that lead to them are kept, with the credit that producers have because of them. Otherwise each
producer would lose its credit and get it again, which costs two flows. Deliveries that arrive meanwhile wait; they are
no more than the granted credit. The log names the routers that stay away longer, and those that come back later.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from amqpmesh.topology.records import Name

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.topology.linkstate import Topology

WAIT_TIME: Final = 2.0
"""Seconds to wait for a lost router; and once it is back, for the credit of a lane that was kept."""

MAX_LINES: Final = 20
"""Lines of the log for routers lost or found at the same time; one more line has the number of the others."""

MAX_LOST: Final = 10_000
"""Lost routers that are remembered until they are found. In an insecure mesh any peer can invent some."""


class Outages:
    """The routers that are waited for, and those that were lost."""

    def __init__(self, context: Context, topology: Topology) -> None:
        self._context = context
        self._topology = topology
        self._within_reach: set[str] = set()
        #: By router: the time until which it is waited for, seconds.
        self._until: dict[str, float] = {}
        #: Routers lost for too long: those that the log does not name yet, and those that it does.
        self._unlogged: list[str] = []
        self._lost: OrderedDict[str, None] = OrderedDict()

    def update(self, within_reach: set[str]) -> tuple[bool, float | None]:
        """Take the routers that a path leads to now.

        Returns: whether they have changed, and the time to call `end`, if any of them is lost.
        """
        lost = self._within_reach - within_reach
        self._log_found(within_reach - self._within_reach)
        changed = within_reach != self._within_reach
        self._within_reach = within_reach
        for router in within_reach:
            self._until.pop(router, None)
        if not lost:
            return changed, None
        until = self._context.now + WAIT_TIME
        for router in sorted(lost):
            self._until[router] = until
        return changed, until

    def concerns(self, lane: Lane) -> bool:
        """Return True if a lane is to be kept: its router is waited for, and had consumers of the address."""
        if lane.far not in self._until:
            return False
        advert = self._topology.book.advertised_by(lane.far).get(Name(lane.tenant, lane.name))
        return advert is not None and advert.consumers > 0

    def end(self, until: float) -> list[str]:
        """Stop waiting for the routers whose time ends at `until`. Returns: their ids."""
        ended = [router for router, at in self._until.items() if at == until]
        for router in ended:
            del self._until[router]
        if ended and not self._unlogged:
            self._context.schedule(self._context.now, self._log_lost)
        self._unlogged += ended
        return ended

    def _log_lost(self) -> None:
        """Log the routers that were lost at the same time."""
        lost, self._unlogged = [each for each in self._unlogged if each not in self._within_reach], []
        for router in lost:
            self._lost[router] = None
        while len(self._lost) > MAX_LOST:
            self._lost.popitem(last=False)
        for router in lost[:MAX_LINES]:
            self._context.log.warning("route lost", router=router, seconds=WAIT_TIME)
        if len(lost) > MAX_LINES:
            self._context.log.warning("route lost", count=len(lost) - MAX_LINES, seconds=WAIT_TIME)

    def _log_found(self, found: set[str]) -> None:
        """Log the lost routers that a path leads to again."""
        back = [router for router in sorted(found) if router in self._lost]
        for router in back:
            del self._lost[router]
        for router in back[:MAX_LINES]:
            self._context.log.info("route found", router=router)
        if len(back) > MAX_LINES:
            self._context.log.info("route found", count=len(back) - MAX_LINES)
