"""The worker that an address lives at: it serves the connections whose first attach names the address."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.link import Receiver
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.model.refusal import RefusedError
from amqpmesh.topology.workers import worker_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from amqpmesh.router.amqp.events import LinkAttached
    from amqpmesh.router.attach.resolve import Lookup, ResolvedAddress
    from amqpmesh.router.config.mesh import WorkerConfig
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord


class Homes:
    """The homes of addresses, as one worker sees them.

    An address lives at the worker that its configuration names, else where it has receivers, else at the worker that a
    hash of tenant and address selects. Only workers that run are candidates.
    """

    def __init__(self, context: Context, lookup: Lookup, worker: WorkerConfig, is_alive: Callable[[int], bool]) -> None:
        """Args: is_alive: tells whether another worker, by its number, takes connections."""
        self._context = context
        self._lookup = lookup
        self._worker = worker
        self._is_alive = is_alive

    def of_attach(self, record: ConnectionRecord, event: LinkAttached) -> int | None:
        """Return the number of the worker that the address of a peer's attach lives at.

        Returns: None: the link can be served at any worker, or the attach is to be refused.
        """
        terminus = event.attach.target if isinstance(event.link, Receiver) else event.attach.source
        if not isinstance(terminus, Source | Target) or terminus.dynamic or not terminus.address:
            return None
        try:
            place = self._lookup.place(terminus.address)
            owner = self._lookup.owner(record.peer.tenant, place, sends=isinstance(event.link, Receiver))
        except RefusedError:
            return None
        return self._of_place(owner.tenant, owner.place)

    def _of_place(self, tenant: str, place: ResolvedAddress) -> int | None:
        worker, container, config = self._worker, place.container, place.config
        if container is not None and container != worker.name:
            # One worker's own node, or a node of another container.
            named = (each for each in self._numbers() if worker_of(worker.name, each) == container)
            return next((each for each in named if self._may_serve(each)), None)
        is_served_anywhere = place.is_reserved or not place.name or config.redirect is not None or config.worker == 0
        if is_served_anywhere or config.distribution is Distribution.UNAVAILABLE:
            return None
        if config.worker is not None:
            pinned = (config.worker - 1) % worker.count + 1
            if self._may_serve(pinned):
                return pinned
        consumers = self._with_consumers(tenant, place)
        ranked = ranking(tenant, place.name, self._numbers())
        with_consumers = (each for each in ranked if each in consumers)
        return next((each for each in (*with_consumers, *ranked) if self._may_serve(each)), None)

    def _with_consumers(self, tenant: str, place: ResolvedAddress) -> Collection[int]:
        """Return the workers that have consumers of an address of this router."""
        context, worker = self._context, self._worker
        node = context.nodes.find(tenant, place.name)
        others = context.routes.routers_with_consumers(tenant, place.name)
        found = {each for each in self._numbers() if others and worker_of(worker.name, each) in others}
        if node is not None and node.has_consumers:
            found.add(worker.number)
        return found

    def _numbers(self) -> range:
        return range(1, self._worker.count + 1)

    def _may_serve(self, number: int) -> bool:
        return number == self._worker.number or self._is_alive(number)


def ranking(tenant: str, name: str, numbers: Collection[int]) -> list[int]:
    """Return workers in the order in which an address prefers them.

    If a worker ends, only its addresses move, and each of them to the next worker of its own order (rendezvous
    hashing). The order is the same in all processes.
    """
    key = f"{tenant}\0{name}".encode()
    return sorted(numbers, key=lambda each: blake2b(key, digest_size=8, salt=each.to_bytes(2, "big")).digest())
