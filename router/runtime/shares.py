"""The parts of the polling task's time that tenants have, by their weights.

A share is the sockets of one tenant. Of the shares with work, the one that has had the least time for its weight is
next. A share that had nothing to do has no claim on the past: it comes first, and gets no more for that.
"""

from __future__ import annotations

import select
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from amqpmesh.policies.tenants import Tenant

SLICE: Final = 0.001
"""Seconds of one turn of a share. So long a tenant's input waits for each other tenant that has had less time."""

LEAST_WEIGHT: Final = 0.01
"""Of a share: that of no tenant has none while tenants have no sockets."""

EACH: Final = 16
"""Sockets of a share that are looked at in one turn. The system reports all of them in turns, too."""


class Share:
    """The sockets of one tenant, or of the router itself, and the time that they have had."""

    __slots__ = ("busy", "epoll", "is_heavy_next", "is_waiting", "key", "queue", "sockets", "twin", "used", "weight")

    def __init__(self, key: tuple[str, bool], weight: float, epoll: Any) -> None:
        """Args: key: of the tenant, and whether the sockets are those of neighbours. epoll: reports the ready sockets
        of this share alone.
        """
        self.key = key
        self.weight = weight
        self.epoll = epoll
        #: Ready sockets that are not heavy; and those that are heavy or have work that the system does not report.
        self.queue: dict[int, None] = {}
        self.busy: dict[int, None] = {}
        #: The other share of the same tenant: the time that one has is that of both.
        self.twin: Share | None = None
        #: The number of its sockets.
        self.sockets = 0
        #: Seconds divided by the weight; of a share that comes back, no less than of the one that is served.
        self.used = 0.0
        self.is_waiting = False
        #: The last turn had no time for the heavy ones.
        self.is_heavy_next = False


class Shares:
    """The shares of a poller: none, unless a policy has several tenants."""

    def __init__(self, busy: dict[int, None]) -> None:
        """Args: busy: the busy sockets that are in the share of no tenant."""
        #: That of the sockets of no tenant, neighbours among them: its weight is that of all tenants together.
        self.own = Share(("", True), 0.0, None)
        self.own.busy = busy
        self._tenants: dict[tuple[str, bool], Share] = {}
        self._by_epoll: dict[int, Share] = {}
        self._by_socket: dict[int, Share] = {}
        #: The shares with work, by what they have used.
        self.waiting: list[tuple[float, int, Share]] = []
        self._entered = 0
        self._at = 0.0

    def __len__(self) -> int:
        return len(self._tenants)

    def enter(self, descriptor: int, tenant: Tenant, events: int, of_all: Any, *, between: bool = False) -> bool:
        """Have a socket polled as one of its tenant's.

        Args: of_all: reports which shares have ready sockets. between: it is a neighbour's.

        Returns: False: the system has no resources for that; no share is left without a socket.
        """
        key = tenant.key, between
        share = self._tenants.get(key)
        try:
            if share is None:
                share = self._tenants[key] = self._make(key, of_all)
            if share.weight != tenant.weight:
                for each in (share, share.twin):
                    if each is not None:
                        each.weight = tenant.weight
                self._weigh()
            before = self._by_socket.get(descriptor)
            if before is not share:
                share.epoll.register(descriptor, events)
                if before is not None:
                    self.leave(descriptor)
                self._by_socket[descriptor] = share
                share.sockets += 1
        except OSError:
            if share is not None and not share.sockets:
                self._end(share)
            return False
        return True

    def _make(self, key: tuple[str, bool], of_all: Any) -> Share:
        """Return a new share. Raises: OSError: the system has no resources."""
        epoll = select.epoll()
        try:
            of_all.register(epoll.fileno(), select.EPOLLIN)
        except OSError:
            epoll.close()
            raise
        share = self._by_epoll[epoll.fileno()] = Share(key, 0.0, epoll)
        twin = share.twin = self._tenants.get((key[0], not key[1]))
        if twin is not None:
            twin.twin = share
        return share

    def _end(self, share: Share) -> None:
        """Forget a share without sockets."""
        del self._tenants[share.key], self._by_epoll[share.epoll.fileno()]
        self._weigh()
        if share.twin is not None:
            share.twin.twin = None
        share.epoll.close()

    def _weigh(self) -> None:
        """Give the share of no tenant the weight of all tenants."""
        self.own.weight = sum({tenant: share.weight for (tenant, _), share in self._tenants.items()}.values())

    def leave(self, descriptor: int) -> bool:
        """Poll a socket no more. Returns: False: it is in the share of no tenant."""
        share = self._by_socket.pop(descriptor, None)
        if share is None:
            self.own.queue.pop(descriptor, None)
            return False
        share.epoll.unregister(descriptor)
        share.queue.pop(descriptor, None)
        share.busy.pop(descriptor, None)
        share.sockets -= 1
        if not share.sockets:
            self._end(share)
        return True

    def of(self, descriptor: int) -> Share:
        """Return the share of a socket."""
        return self._by_socket.get(descriptor, self.own)

    def with_epoll(self, descriptor: int) -> Share | None:
        """Return the share with this descriptor; None: it is a socket's, or of a share that is gone."""
        return self._by_epoll.get(descriptor)

    def wait(self, share: Share) -> None:
        """Have a share served, if it does not wait already."""
        if not share.is_waiting:
            share.is_waiting = True
            share.used = max(share.used, self._at)
            self._entered += 1
            heappush(self.waiting, (share.used, self._entered, share))

    def next(self) -> Share:
        """Return the share whose turn it is. It does not wait any more."""
        self._at, _, share = heappop(self.waiting)
        share.is_waiting = False
        return share

    def ready(self, share: Share) -> list[int]:
        """Return some sockets of a share that are ready; none, if some are known that have not had their turn."""
        if share.queue or not share.sockets:
            return []
        return [descriptor for descriptor, _ in share.epoll.poll(0, EACH)]

    def spend(self, share: Share, seconds: float) -> None:
        """Count the time of a turn. The share waits for the next one: the system knows whether there is more to do."""
        share.used += seconds / max(share.weight, LEAST_WEIGHT)
        if share.twin is not None:
            share.twin.used = max(share.twin.used, share.used)
        if share.sockets or share.busy:
            self.wait(share)

    def close(self) -> None:
        """Free what polls the shares."""
        for share in self._tenants.values():
            share.epoll.close()
