"""Windows of lists as answers, at a cost that is bounded however often they are asked for.

The order of the rows comes from a snapshot, which is taken again so seldom that it costs `ORDER_PART` of a core. The
rows of a window are read when they are asked for, as long as that costs `ROWS_PART` of a core; then they are those of
the snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import trio

from amqpmesh.router.http.requests import OK, Answer
from amqpmesh.router.http.windows import Rates, Window, ordered, rows
from amqpmesh.router.management.current import CURRENT, current
from amqpmesh.router.runtime.snapshots import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from amqpmesh.router.core import Core
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.management.entities import EntityType
    from amqpmesh.router.management.views import View
    from amqpmesh.router.runtime.snapshots import Snapshot, Snapshots

T = TypeVar("T")

ORDER_PART: Final = 0.004
"""The part of a core's time for snapshots and orders."""

GONE_PART: Final = 0.01
"""The same, once most of the rows of a window are gone: nobody wants to look at an empty list."""

ROWS_PART: Final = 0.004
"""The part of a core's time for the rows of windows."""

BURST: Final = 0.2
"""Seconds of work on rows that may be done at once after a rest."""

LEAST_AGE: Final = 1.0
"""Seconds for which an order holds at least."""

GREATEST_AGE: Final = 300.0
"""Seconds for which an order holds at most, whatever it costs, and after which it is forgotten."""

MOST_ORDERING: Final = 2.0
"""The work on orders that puts off the next snapshot, in that of a snapshot: one client that asks for ever other orders
would put it off for all.
"""

ORDERS: Final = 16
"""Orders that are kept: of one type, for one tenant, by one text and one attribute."""


class Allowance:
    """Work that may be done: a part of the time that goes by, and a burst of it after a rest."""

    def __init__(self, part: float, burst: float) -> None:
        """Args: part: of a core. burst: seconds."""
        self._part = part
        self._burst = burst
        self._left = burst
        self._at = trio.current_time()

    @property
    def is_left(self) -> bool:
        """True if something may be done now."""
        now = trio.current_time()
        self._left = min(self._burst, self._left + (now - self._at) * self._part)
        self._at = now
        return self._left > 0

    def divide(self, part: float, burst: float) -> None:
        """Allow another part from now on. Args: as of `Allowance`."""
        _ = self.is_left
        self._part, self._burst = part, burst

    def spend(self, seconds: float) -> None:
        """Note work that was done; it may be more than was allowed, and is missing later."""
        self._left -= seconds


class Allowances:
    """An allowance that tenants have equal parts of: one that asks without end spends its own part alone."""

    def __init__(self, part: float, burst: float) -> None:
        """Args: as of `Allowance`, of all together."""
        self._part = part
        self._burst = burst
        self._tenants: dict[str, Allowance] = {}
        self._asked: set[str] = set()

    def of(self, tenant: str) -> Allowance:
        """Return the part of a tenant."""
        self._asked.add(tenant)
        found = self._tenants.get(tenant)
        if found is None:
            count = len(self._tenants) + 1
            found = self._tenants[tenant] = Allowance(self._part, self._burst / count)
            self._divide()
        return found

    def keep(self) -> None:
        """Forget the tenants that have not asked since the last time."""
        self._tenants = {tenant: each for tenant, each in self._tenants.items() if tenant in self._asked}
        self._asked = set()
        self._divide()

    def _divide(self) -> None:
        for each in self._tenants.values():
            each.divide(self._part / len(self._tenants), self._burst / len(self._tenants))


class _List(NamedTuple):
    kind: str
    tenant: str


class _Order(NamedTuple):
    list: _List
    sort: str | None
    is_descending: bool
    text: str


class Windows:
    """The windows of one router; used in its loop."""

    def __init__(self, core: Core, snapshots: Snapshots) -> None:
        self._core = core
        self._snapshots = snapshots
        self._taking = trio.Lock()
        self._ordering = trio.Lock()
        self._snapshot: Snapshot | None = None
        self._rates: dict[_List, Rates] = {}
        self._orders: dict[_Order, list[Any]] = {}
        #: The time until which the snapshot holds.
        self._until = 0.0
        #: The work on the orders of the snapshot.
        self._work = Work()
        self._rows = Allowances(ROWS_PART, BURST)
        self._asked_at = 0.0
        self._is_kept = False

    def drop(self) -> None:
        """Take a new snapshot next time: the router has changed by a request, whose client will look at it."""
        self._until = 0.0

    async def snapshot(self) -> Snapshot:
        """Return the snapshot that windows are of now."""
        self._asked_at = now = trio.current_time()
        async with self._taking:
            before = self._snapshot
            if before is not None and now < self._until:
                return before
            taken = await self._snapshots.take(LEAST_AGE)
            self._work = Work()
            self._rows.keep()
            if before is not None:
                # What nobody has looked at since the last one.
                self._rates = {key: each for key, each in self._rates.items() if each.at == before.at}
            self._orders = {}
            self._snapshot = taken
            self._hold(taken, ORDER_PART)
            self._keep()
            return taken

    def _hold(self, taken: Snapshot, part: float) -> None:
        """Have the snapshot hold for as long as the work on it is worth. Args: part: of a core."""
        seconds = taken.work + min(self._work.seconds, MOST_ORDERING * taken.work)
        self._until = taken.at + min(GREATEST_AGE, max(LEAST_AGE, seconds / part))

    async def answer(self, kind: EntityType, window: Window, view: View, tenant: str, taken: Snapshot) -> Answer:
        """Return a window.

        Args: view: the part of the snapshot that the client may see. tenant: the key of the client's.
        """
        entities = view.entities(kind)
        of = _List(kind.kind, tenant)
        async with self._ordering:
            rates = self._rates.get(of)
            if rates is None:
                rates = self._rates[of] = Rates()
            order = await self._order(_Order(of, *window[2:5]), kind, window, entities, rates, taken)
            rate = rates.of
        wanted = order[window.offset : window.offset + window.most]
        shown, at = await self._now(kind, wanted, tenant, taken)
        if 2 * len(shown) < len(wanted) and taken is self._snapshot:
            self._hold(taken, GONE_PART)
        found = await self._on_rows(tenant, rows(kind, shown, window, rate))
        head = (
            f'{{"total":{len(entities)},"matching":{len(order)},"offset":{window.offset},'
            f'"age":{max(0.0, trio.current_time() - taken.at):.3f},"now":{at:.6f},"results":['
        )
        return Answer(OK, head.encode() + b",\n".join(found) + b"]}\n", "application/json")

    async def _order(
        self, key: _Order, kind: EntityType, window: Window, entities: Sequence[Any], rates: Rates, taken: Snapshot
    ) -> list[Any]:
        """Return the entities of a window in their order."""
        found = self._orders.get(key) if taken is self._snapshot else None
        if found is None:
            work = self._work.timed
            await self._snapshots.in_turns(work(rates.take(kind, entities, taken.at)))
            found = await self._snapshots.in_turns(work(ordered(kind, entities, window, rates.of)))
            if taken is self._snapshot:
                while len(self._orders) >= ORDERS:
                    del self._orders[next(iter(self._orders))]
                self._orders[key] = found
                self._hold(taken, ORDER_PART)
        return found

    async def _now(
        self, kind: EntityType, shown: Sequence[Any], tenant: str, taken: Snapshot
    ) -> tuple[Sequence[Any], float]:
        """Return rows as they are now, or as in the snapshot if that has cost too much lately; and the time of that."""
        if kind.kind not in CURRENT or not self._rows.of(tenant).is_left:
            return shown, taken.at
        parts = taken.parts
        asked = [parts.unmasked(kind.kind, each) for each in shown] if tenant else shown
        found = await self._on_rows(tenant, current(self._core, kind.kind, asked))
        return [parts.shown(kind.kind, each) for each in found] if tenant else found, trio.current_time()

    async def _on_rows(self, tenant: str, steps: Steps[T]) -> T:
        work = Work()
        try:
            return await self._snapshots.in_turns(work.timed(steps))
        finally:
            self._rows.of(tenant).spend(work.seconds)

    def _keep(self) -> None:
        """Forget the snapshot once nobody asks any more: it holds names of what is gone."""
        if not self._is_kept:
            self._is_kept = True
            now, context = trio.current_time(), self._core.context
            self._core.change(lambda: context.schedule(now + GREATEST_AGE, self._forget_old), now)

    def _forget_old(self) -> None:
        self._is_kept = False
        now = self._core.context.now
        if now >= self._asked_at + GREATEST_AGE:
            self._snapshot, self._rates, self._orders, self._until = None, {}, {}, 0.0
        else:
            self._is_kept = True
            self._core.context.schedule(self._asked_at + GREATEST_AGE, self._forget_old)
