"""Single entities of a router as they are now, read without a snapshot of all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.delivery.arrival import receive_held
from amqpmesh.router.management.snapshot import address_statistics, connection_statistics, link_statistics
from amqpmesh.router.model.blocked import NO_CONSUMERS, why_address
from amqpmesh.router.model.links import OutgoingLink
from amqpmesh.router.model.node import LocalNode
from amqpmesh.router.model.oldest import note_oldest, oldest_unsettled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from amqpmesh.router.core import Core
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.model.blocked import ConsumerRouters
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.links import IncomingLink
    from amqpmesh.router.model.node import Node
    from amqpmesh.router.statistics.common import Reason
    from amqpmesh.router.statistics.router_statistics import (
        AddressStatistics,
        ConnectionStatistics,
        LinkStatistics,
    )

STEP: Final = 200
"""Objects that one step looks at."""


def current(core: Core, kind: str, wanted: Sequence[Any]) -> Steps[list[Any]]:
    """Return entities as they are now, in the same order; those that are gone are left out.

    Args: kind: their type, one of `CURRENT`. wanted: earlier statistics of them, as the operator sees them.
    """
    core.context.catch_up()
    receive_held(core.context)
    return (yield from CURRENT[kind](core, wanted))


def _addresses(core: Core, wanted: Sequence[AddressStatistics]) -> Steps[list[Any]]:
    context = core.context
    found = (context.nodes.find(each.tenant, each.name) for each in wanted)
    nodes = [each for each in found if each is not None]
    strays = yield from _strays(core, set(nodes))
    consumers = _consumers(core)
    told = []
    for node in nodes:
        tally, ages = node.past.copy(), dict[object, float]()
        links = dict.fromkeys((*_links_of(core, node), *strays.get(node, ())))
        records: dict[ConnectionRecord, None] = {}
        for number, link in enumerate(links):
            if number % STEP == 0:
                yield
            tally.add(link, context.now)
            if isinstance(link, OutgoingLink):
                records[link.connection] = None
        for number, record in enumerate(records):
            if number % STEP == 0:
                yield
            for sent_by, age in oldest_unsettled(record, context.now):
                note_oldest(ages, context.seen_as(sent_by.node), age)
        where = consumers(node)
        reason = why_address(node, draining=context.draining, consumers=where)
        told.append(address_statistics(node, tally, reason, where, ages.get(node)))
        yield
    return told


def _links_of(core: Core, node: LocalNode) -> Iterator[IncomingLink | OutgoingLink]:
    """Yield the attached links of an address, those of lanes included."""
    nodes: list[Node] = [node]
    if node.ingress is not None:
        nodes.append(node.ingress)
    if core.mesh is not None:
        nodes += core.mesh.routes.nodes((node.tenant, node.name))
    for each in nodes:
        yield from each.incoming
        yield from each.outgoing
        yield from each.copies


def _strays(core: Core, nodes: set[LocalNode]) -> Steps[dict[Node, list[IncomingLink | OutgoingLink]]]:
    """Return the links of addresses that are not attached any more, and whose counts are not kept elsewhere yet."""
    context = core.context
    found: dict[Node, list[IncomingLink | OutgoingLink]] = {}

    def look(links: Iterable[IncomingLink | OutgoingLink]) -> None:
        for link in links:
            node = None if link.node is None else context.seen_as(link.node)
            if isinstance(node, LocalNode) and node in nodes:
                found.setdefault(node, []).append(link)

    for number, record in enumerate(list(context.connections)):
        if number % STEP == 0:
            yield
        if record.detached_unsettled:
            look(list(record.detached_unsettled))
    for record in list(context.leaving):
        look((*record.incoming, *record.outgoing, *record.detached_unsettled))
        yield
    look(list(context.ended_links.links))
    return found


def _consumers(core: Core) -> Callable[[LocalNode], ConsumerRouters]:
    if core.mesh is None:
        return lambda _: NO_CONSUMERS
    reachability = core.mesh.mesh_routes.reachability()
    return lambda node: reachability.of(node.tenant, node.name)


def _records(core: Core, numbers: set[int]) -> Steps[dict[int, ConnectionRecord]]:
    """Return the connections of some numbers."""
    found = {}
    for number, record in enumerate(list(core.context.connections)):
        if number % STEP == 0:
            yield
        if record.number in numbers and not record.own and record in core.context.connections:
            found[record.number] = record
    return found


def _connections(core: Core, wanted: Sequence[ConnectionStatistics]) -> Steps[list[Any]]:
    records = yield from _records(core, {each.number for each in wanted})
    return [connection_statistics(core, records[each.number]) for each in wanted if each.number in records]


def _links(core: Core, wanted: Sequence[LinkStatistics]) -> Steps[list[Any]]:
    context, numbers = core.context, {each.number for each in wanted}
    records = yield from _records(core, {each.connection for each in wanted})
    links: dict[int, IncomingLink | OutgoingLink] = {}
    for record in records.values():
        if record.lost:
            continue
        for number, link in enumerate((*record.incoming, *record.outgoing, *record.detached_unsettled)):
            if number % STEP == 0:
                yield
            if link.number in numbers and link.lane is None:
                links[link.number] = link
    consumers = _consumers(core)
    told = []
    for each in wanted:
        found = links.get(each.number)
        if found is not None and not found.connection.lost:
            node = None if found.node is None else context.seen_as(found.node)
            why: dict[Node, Reason | None] = {}
            if isinstance(node, LocalNode):
                why[node] = why_address(node, draining=context.draining, consumers=consumers(node))
            told.append(link_statistics(core, found, why))
        yield
    return told


CURRENT: Final[Mapping[str, Callable[[Core, Sequence[Any]], Steps[list[Any]]]]] = {
    "address": _addresses,
    "connection": _connections,
    "link": _links,
}
"""The readers of entities, by their types."""
