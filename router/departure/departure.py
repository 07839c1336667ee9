"""The departure of all clients of a router, in portions."""

from __future__ import annotations

from collections import deque
from itertools import cycle
from typing import TYPE_CHECKING, Final, Protocol

from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.departure.client_moves import ClientMove, turn_away
from amqpmesh.router.model.links import IncomingLink
from amqpmesh.router.model.node import DynamicNode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from amqpmesh.policies.redirect import Redirect
    from amqpmesh.router.amqp.events import LinkAttached
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.links import OutgoingLink

STEP: Final = 0.01
"""Seconds between two looks at the connections that are moved now."""

LEAST: Final = 10.0
"""Connections that are moved in a second at least: a share of a few would take as long as one of thousands."""

AT_ONCE: Final = 50
"""Connections of which one step begins the move at most."""

LOOKED_AT: Final = 250
"""Connections that one step looks at: each takes some 10 us, and more with many links."""

FOUND: Final = 2000
"""Connections of which one step finds out whether they are to be moved: each takes some 2 us."""

OPERATORS: Final = frozenset({"$management", "$cbs"})
"""The nodes that clients may use to the end: an operator watches, or cancels, the departure."""


class SharedCounts(Protocol):
    """The counts of all workers of a router."""

    def note(self, order: int, left: int, moved: int) -> None:
        """Tell how far this worker is."""

    def others(self) -> list[tuple[int, int, int]]:
        """Return of each other worker: the order that it follows, connections left and moved."""


class Departure:
    """The departure of a router's clients.

    While it is on, each client is moved (`ClientMove`), and new ones are turned away once they attach a link: only
    those of operators stay. Routers of the mesh, connections that this router has opened, and the links of the program
    around it are not moved. It does nothing until it begins.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.is_on = False
        #: Connections that were moved, or have left, since it began.
        self.moved = 0
        self._pace = 0.0
        self._rate = LEAST
        self._began = 0.0
        self._started = 0
        self._places: Iterator[Redirect | None] = cycle((None,))
        #: Connections that there were when it began, up to a number, and that no step has looked at yet.
        self._there: deque[ConnectionRecord] = deque()
        self._last = 0
        self._waiting: deque[ConnectionRecord] = deque()
        self._known: set[ConnectionRecord] = set()
        self._moving: deque[ClientMove] = deque()
        self._is_scheduled = False
        #: With workers: the counts of all of them, and the number of the order that this one follows.
        self.shared: SharedCounts | None = None
        self.order = 0

    @property
    def left_in_all(self) -> int:
        """The same as `left`, of all workers of the router."""
        return self.left + sum(left for _, left, _ in self._others())

    @property
    def moved_in_all(self) -> int:
        """The same as `moved`, of all workers of the router."""
        return self.moved + sum(moved for _, _, moved in self._others())

    def others_follow(self, order: int) -> bool:
        """Tell whether the other workers follow an order."""
        return all(each >= order for each, _, _ in self._others())

    def _others(self) -> list[tuple[int, int, int]]:
        return [] if self.shared is None else self.shared.others()

    @property
    def left(self) -> int:
        """The number of connections that are yet to be moved, or are being moved."""
        return len(self._there) + len(self._waiting) + len(self._moving)

    def begin(self, pace: float, places: Sequence[Redirect]) -> None:
        """Move all clients. If that has begun, the rest is moved at the new pace.

        Args: pace: the share of the clients that is moved in a second. places: other routers, for clients that follow
            redirects.
        """
        self._pace = pace
        self._places = cycle(places or (None,))
        if not self.is_on:
            self.is_on = True
            self.moved = 0
            self._context.termini.end_all("the router's clients are moved")
            self._there.extend(self._context.connections)
            self._last = max((each.number for each in self._there), default=0)
            self._find()
        elif not self._there:
            self._count()
        self._tell()
        self._go_on_soon()

    def _find(self) -> None:
        """Find some of the clients that there were when it began."""
        for _ in range(min(len(self._there), FOUND)):
            each = self._there.popleft()
            # Those that are not open yet are new clients.
            if _is_client(each) and each.engine.remote is not None and not _is_operator(each):
                self._waiting.append(each)
                self._known.add(each)
        if not self._there:
            self._context.log.info("moving clients", connections=len(self._waiting), pace=self._pace)
            self._count()

    def _count(self) -> None:
        """Move clients from now on, at a pace by their number."""
        # The pace is that of the router: each worker moves the same share, and its part of the least number.
        self._rate = max(LEAST / self._context.config.workers, self._pace * self.left)
        self._began, self._started = self._context.now, 0

    def cancel(self) -> None:
        """Move no more clients. Those that are being moved now are moved to the end."""
        if self.is_on:
            self._context.log.info("clients stay", moved=self.moved, connections=len(self._waiting))
        self.is_on = False
        self._context.termini.keeps = not self._context.draining
        self._there.clear()
        self._waiting.clear()
        self._known.clear()
        self._tell()

    def turns_away(self, record: ConnectionRecord, event: LinkAttached) -> bool:
        """Turn a new client away that attaches a link. Returns: whether it is one."""
        is_known = record in self._known or (bool(self._there) and record.number <= self._last)
        if not _is_client(record) or is_known or _is_for_operators(event):
            return False
        self._context.log.info(
            "client turned away", connection=record.number, peer=record.host, container=record.peer.container_id
        )
        turn_away(self._context, record, next(self._places))
        return True

    def _tell(self) -> None:
        if self.shared is not None:
            self.shared.note(self.order, self.left, self.moved)

    def _go_on_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._context.schedule(self._context.now, self._go_on)

    def _go_on(self) -> None:
        self._is_scheduled = False
        context = self._context
        context.catch_up()
        if self._there:
            self._find()
        else:
            self._start_due()
        for _ in range(min(len(self._moving), LOOKED_AT)):
            move = self._moving.popleft()
            if move.go_on(context):
                self.moved += 1
                self._known.discard(move.record)
            else:
                self._moving.append(move)
        self._tell()
        if self.left:
            self._is_scheduled = True
            context.schedule(context.now + STEP, self._go_on)
        elif self.is_on:
            context.log.info("clients moved", connections=self.moved)

    def _start_due(self) -> None:
        """Begin the moves that are due."""
        due = 1 + int((self._context.now - self._began) * self._rate) - self._started
        for _ in range(min(due, AT_ONCE, len(self._waiting))):
            self._started += 1
            self._moving.append(ClientMove(self._waiting.popleft(), next(self._places)))


def _is_client(record: ConnectionRecord) -> bool:
    return record.listener is not None and not (record.listener.is_mesh or record.inside or record.own or record.lost)


def _is_operator(record: ConnectionRecord) -> bool:
    """Return True if a connection has links, and all of them are those of an operator."""
    # A connection may have thousands of links: the first one of another kind tells.
    if not all(_is_operators_link(each) or isinstance(each.node, DynamicNode) for each in record.incoming):
        return False
    if not all(_is_operators_link(each) or isinstance(each.node, DynamicNode) for each in record.outgoing):
        return False
    return any(map(_is_operators_link, record.incoming)) or any(map(_is_operators_link, record.outgoing))


def _is_operators_link(link: IncomingLink | OutgoingLink) -> bool:
    if isinstance(link, IncomingLink) and link.node is None:
        return _name(link.to) in OPERATORS
    return link.node is not None and link.node.name in OPERATORS


def _is_for_operators(event: LinkAttached) -> bool:
    attach = event.attach
    terminus = attach.source if _is_dynamic(attach.source) or _is_operators_node(attach.source) else attach.target
    return _is_operators_node(terminus) or _is_dynamic(terminus)


def _is_dynamic(terminus: object) -> bool:
    return isinstance(terminus, Source | Target) and terminus.dynamic


def _is_operators_node(terminus: object) -> bool:
    return isinstance(terminus, Source | Target) and _name(terminus.address) in OPERATORS


def _name(address: object) -> str:
    """Return an address without the container that it names."""
    return address.partition("@")[0] if isinstance(address, str) else ""
