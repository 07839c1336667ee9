"""Answers with metrics, read again so seldom that scrapers cost next to nothing, however often they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import trio

from amqpmesh.router.http.metrics import LONGEST, OPEN, PLAIN, Metrics, Scope, Selection
from amqpmesh.router.http.requests import BAD_REQUEST, NOT_ALLOWED, OK, READING, Answer, HttpError
from amqpmesh.router.http.siblings import ROUTER
from amqpmesh.router.runtime.snapshots import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from amqpmesh.router.core import Core
    from amqpmesh.router.http.requests import Request
    from amqpmesh.router.http.visitors import Visitor
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.runtime.snapshots import Snapshots
    from amqpmesh.router.statistics.configured import ListenerStatistics

T = TypeVar("T")

PATH: Final = "/metrics"

PART: Final = 200
"""Metrics are as old as this many times the work on them at least: that work takes half a hundredth of a core, so that
with the answers it is less than one.
"""

DOCUMENTS: Final = 100
"""Documents that are kept for other scrapers with the same rights; and as many answers to questions for addresses."""


class MetricsPages:
    """The metrics of a router as pages; used in its loop."""

    def __init__(
        self,
        core: Core,
        snapshots: Snapshots,
        listeners: Callable[[], Sequence[ListenerStatistics]],
        most: Callable[[], int],
    ) -> None:
        """Args: listeners, most: as of `Metrics`."""
        self._metrics = Metrics(core, listeners, most)
        self._snapshots = snapshots
        self._reading = trio.Lock()
        #: The time from which the counts may be read again.
        self._again_at = 0.0
        self._documents: dict[tuple[Scope, bool], bytes] = {}
        self._selected: dict[tuple[Scope, Selection, bool], bytes] = {}
        self._work = Work()

    async def answer(self, request: Request, visitor: Visitor) -> Answer:
        """Answer a scraper. Raises: HttpError."""
        if request.method not in READING:
            raise HttpError(NOT_ALLOWED, "metrics are read only", ("Allow", "GET, HEAD"))
        query = {name: value for name, value in request.query.items() if name != ROUTER}
        if query.keys() - {"tenant", "address"}:
            raise HttpError(BAD_REQUEST, "the parameters are tenant, address and router")
        scope = Scope(visitor.tenant, visitor.reads)
        is_open = "application/openmetrics-text" in request.headers.get("accept", "")
        selection = Selection(query.get("tenant"), query.get("address", "#")) if query else None
        if selection is not None and len(selection.pattern) > LONGEST:
            raise HttpError(BAD_REQUEST, f"the pattern has more than {LONGEST} characters")
        # One at a time: none reads tables that another one changes.
        async with self._reading:
            if trio.current_time() >= self._again_at:
                # Also if the client is gone: half a reading would count twice what it has not come to.
                with trio.CancelScope(shield=True):
                    self._documents, self._selected = {}, {}
                    self._work = Work()
                    await self._done(self._metrics.refresh())
            if selection is not None:
                body = await self._answer(scope, selection, is_open=is_open)
            else:
                body = await self._document(scope, is_open=is_open)
        return Answer(OK, body, OPEN if is_open else PLAIN)

    async def _document(self, scope: Scope, *, is_open: bool) -> bytes:
        found = self._documents.get((scope, is_open))
        if found is None:
            if len(self._documents) >= DOCUMENTS:
                return await self._snapshots.in_turns(self._metrics.document(scope, is_open=is_open))
            found = await self._done(self._metrics.document(scope, is_open=is_open))
            self._documents[scope, is_open] = found
        return found

    async def _answer(self, scope: Scope, selection: Selection, *, is_open: bool) -> bytes:
        # The work on these does not put off the next reading: endless questions of one client would put it off for all.
        key = scope, selection, is_open
        found = self._selected.get(key)
        if found is None:
            found = await self._snapshots.in_turns(self._metrics.selected(scope, selection, is_open=is_open))
            if len(self._selected) < DOCUMENTS:
                self._selected[key] = found
        return found

    async def _done(self, steps: Steps[T]) -> T:
        """Do work on metrics in turns with other tasks, and put off the next reading by it."""
        found = await self._snapshots.in_turns(self._work.timed(steps))
        self._again_at = trio.current_time() + PART * self._work.seconds
        return found
