"""The consequences of memory that is used up: a warning, and the largest holders make room at twice the budget."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.delivery.link_loss import close_connection, cut_connection
from amqpmesh.router.delivery.settlement import give_up, undelivered
from amqpmesh.router.model.connections import ConnectionRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from amqpmesh.router.core import Core
    from amqpmesh.router.kernel import Leg
    from amqpmesh.router.model.node import Address

#: Nodes without credit that each batch looks at again: the share grows as others leave.
LOOKED_AT: Final = 8


def check(core: Core) -> None:
    """Find out whether memory is used up. It stays so until a tenth of it is free again."""
    memory, budget = core.memory, core.budget
    if memory.is_exceeded:
        _make_room(core)
    used_up = budget.used > (0.9 if memory.used_up else 1.0) * budget.limit
    withheld = memory.withheld
    if used_up != memory.used_up:
        memory.used_up = used_up
        if used_up:
            largest = max(_holders(core), key=_used, default=None)
            core.log.warning(
                "memory used up",
                octets=budget.used,
                limit=budget.limit,
                holders=budget.holders,
                share=memory.share,
                largest=None if largest is None else _name(largest),
                consequence="holders of more than a share get no more",
            )
        for node in tuple(withheld):
            core.touch(node)
    elif withheld:
        for node in list(islice(withheld, LOOKED_AT)):
            del withheld[node]
            withheld[node] = None
            if not memory.is_over(node.account):
                core.touch(node)


def nodes(core: Core) -> Iterator[Address]:
    """All nodes of the router: of addresses, of producers in a mesh, and of lanes."""
    for address in core.addresses.values():
        yield address
        if address.ingress is not None:
            yield address.ingress
    if core.mesh is not None:
        yield from core.mesh.routes.nodes()


def _holders(core: Core) -> Iterator[Address | ConnectionRecord]:
    for record in core.connections:
        if not (record.own or record.cut) and (record.counted or not record.lost):
            yield record
    yield from (address for address in nodes(core) if address.buffered)


def _used(holder: Address | ConnectionRecord) -> int:
    return holder.account.used


def _name(holder: Address | ConnectionRecord) -> str:
    return f"connection {holder.number}" if isinstance(holder, ConnectionRecord) else f"address {holder.name!r}"


def _make_room(core: Core) -> None:
    """Have the largest holders make room for the others."""
    limit = core.budget.limit
    # What connections that are gone have left is ended in steps.
    left = core.budget.used - sum(record.account.used - record.counted for record in core.leaving)
    if left <= 2 * limit:
        return
    returned: dict[str, int] = {}
    for holder in sorted(_holders(core), key=_used, reverse=True):
        if left <= 1.5 * limit or not _used(holder):
            break
        held = _used(holder)
        if isinstance(holder, ConnectionRecord):
            _close(core, holder)
            left -= held
        else:
            _return(core, holder)
            if _used(holder) < held:  # it keeps what may be sent again
                returned[holder.name] = held - _used(holder)
                left -= returned[holder.name]
    if returned:
        core.log.warning(
            "messages returned to free memory",
            addresses=len(returned),
            largest=next(iter(returned)),
            octets=sum(returned.values()),
        )


def _close(core: Core, record: ConnectionRecord) -> None:
    core.log.warning(
        "connection closed to free memory", connection=record.number, peer=record.host, octets=record.account.used
    )
    if record.counted:
        cut_connection(core, record)
        return
    error = Error(
        condition=AmqpCondition.RESOURCE_LIMIT_EXCEEDED, description="too much of the router's memory is held"
    )
    close_connection(core, record, error)


def _return(core: Core, address: Address) -> None:
    """Return the messages that wait at a node to their senders, and abort those that were begun there."""
    for relay in address.waiting.relays():
        undelivered(core, relay, address)
    begun: Iterable[Leg | None] = [each.current for each in address.outgoing]
    for leg in begun:
        if leg is not None and any(chunk.account is address.account for chunk in leg.chunks):
            give_up(core, leg)
