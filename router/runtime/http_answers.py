"""Answers to HTTP's requests, made in the router's loop from its snapshots."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet

import trio

from amqpmesh.router.http import entities
from amqpmesh.router.http.requests import OK, Answer, as_json, refusal
from amqpmesh.router.http.windows import window_of
from amqpmesh.router.logs import event_log
from amqpmesh.router.management import service, views
from amqpmesh.router.management.requested_changes import kind_of, remove, set_cost
from amqpmesh.router.runtime.http_windows import Windows
from amqpmesh.router.runtime.noted_changes import note_change

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from amqpmesh.router.core import Core
    from amqpmesh.router.http.requests import Request
    from amqpmesh.router.http.visitors import Visitor
    from amqpmesh.router.management.views import View
    from amqpmesh.router.runtime.driver import Driver
    from amqpmesh.router.runtime.http_calls import RouterCalls
    from amqpmesh.router.runtime.snapshots import Snapshot, Snapshots
    from amqpmesh.router.statistics.router_statistics import Costly, Removable

log = event_log.EventLog("amqpmesh.io")

HELD: Final = 4
"""Snapshots that lists hold at a time, which slow clients read: a further list is made of the latest of them."""


class Seen(NamedTuple):
    """The part of a snapshot that a client may see, and the snapshot."""

    view: View
    snapshot: Snapshot


class _Listing:
    """A list while it is sent, and the snapshot that it is made of."""

    def __init__(self, pieces: Iterator[bytes], snapshot: Snapshot) -> None:
        self.pieces = pieces
        self.snapshot = snapshot


class EntityPages:
    """The entities of a router as pages of JSON, and the changes of them."""

    def __init__(self, core: Core, driver: Driver, snapshots: Snapshots) -> None:
        self._core = core
        self._driver = driver
        self._snapshots = snapshots
        self._windows = Windows(core, snapshots)
        self._listings: WeakSet[_Listing] = WeakSet()

    async def view(self, visitor: Visitor, taken: Snapshot | None = None) -> Seen:
        """Return what a client may see now. Args: taken: the snapshot of it; None: of the last moment."""
        taken = taken or await self._snapshots.take()
        rights = visitor.may_read, visitor.may_change
        if not visitor.tenant:
            return Seen(views.whole(taken.statistics, *rights), taken)
        part = await self._snapshots.in_turns(taken.parts.of(visitor.tenant))
        return Seen(views.of_tenant(part, *rights), taken)

    async def answer(self, request: Request, visitor: Visitor, calls: RouterCalls) -> Answer:
        """Answer a request for entities, or for a change. Raises: HttpError.

        Args: calls: with which the thread that sends the answer asks for its further parts.
        """
        place = entities.Place(request.path)
        window = None if place.kind is None or place.identity is not None else window_of(request.query, place.kind)
        if window is not None and not request.is_change:
            seen = await self.view(visitor, await self._windows.snapshot())
            (kind,) = place.kinds(seen.view)
            return await self._windows.answer(kind, window, seen.view, visitor.tenant, seen.snapshot)
        is_list = place.identity is None and not request.is_change
        seen = await self.view(visitor, self._held() if is_list else None)
        if request.is_change:
            message = entities.change(request, place)
            return await self._change(message, visitor, seen)
        if place.identity is not None:
            body = await self._snapshots.in_turns(entities.found(place, seen.view))
            return Answer(OK, body, "application/json")
        listing = _Listing(entities.listed(place.kinds(seen.view), seen.view), seen.snapshot)
        self._listings.add(listing)
        return Answer(OK, kind="application/json", parts=self._parts(listing, calls))

    def _held(self) -> Snapshot | None:
        """Return a snapshot that others read, if they hold as many as they may; None: a new one may be taken."""
        held = {id(each.snapshot.parts): each.snapshot for each in self._listings}
        return None if len(held) < HELD else max(held.values(), key=lambda each: each.at)

    async def _parts(self, listing: _Listing, calls: RouterCalls) -> AsyncGenerator[bytes, None]:
        """Yield the parts of an answer, in the thread that sends it; each is made in the router's loop."""
        while part := await calls.do(lambda: self._snapshots.in_turns(entities.next_part(listing.pieces))):
            yield part

    async def _change(self, message: Any, visitor: Visitor, seen: Seen) -> Answer:
        """Make a change as the management node does, by the same rights."""
        changes = service.Changes(partial(self._set_cost, visitor), partial(self._remove, visitor, seen.snapshot))
        told = await self._snapshots.in_turns(service.respond(message, seen.view, changes))
        status = int(told.application_properties["statusCode"])
        if status == service.FORBIDDEN:
            self._refuse(visitor, str(message.application_properties["operation"]))
        if status >= 400:
            reason = str(told.application_properties["statusDescription"])
            return refusal(status, "not permitted" if status == service.FORBIDDEN else reason)
        return Answer(status) if status == service.NO_CONTENT else as_json(told.body)

    def _set_cost(self, visitor: Visitor, identity: str, told: Costly, cost: int) -> None:
        set_cost(self._core, told, cost, trio.current_time())
        log.info("cost changed", of=identity, cost=cost, host=visitor.fields["peer"], user=visitor.fields["user"])
        self._note("cost changed", visitor, of=identity, **{"from": told.cost, "to": cost})

    def _remove(self, visitor: Visitor, snapshot: Snapshot, told: Removable) -> None:
        kind = kind_of(told)
        if visitor.tenant:
            told = snapshot.parts.unmasked(kind, told)
        remove(self._core, told, trio.current_time())
        event = f"{kind} removed"
        log.info(event, of=f"{kind}/{told.number}", host=visitor.fields["peer"], user=visitor.fields["user"])
        self._note(event, visitor, of=f"{kind}/{told.number}")

    def _note(self, event: str, visitor: Visitor, **fields: object) -> None:
        self._driver.settle()
        self._snapshots.drop()
        self._windows.drop()
        note_change(self._core.context, event, **fields, source="http", **visitor.fields)

    def _refuse(self, visitor: Visitor, operation: str) -> None:
        audit = self._core.context.audit
        if audit is not None:
            rule = {**visitor.fields, "source": "http", "operation": operation}
            host, user = str(visitor.fields["peer"]), visitor.fields["user"]
            audit.of_host(
                "request refused", host, user=None if user is None else str(user), reason="not permitted", rule=rule
            )
