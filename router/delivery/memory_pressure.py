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

    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.kernel import Leg
    from amqpmesh.router.model.node import Node

#: Nodes without credit that each batch checks again: their share grows when other holders leave.
LOOKED_AT: Final = 8


def check(context: Context) -> None:
    """Update whether the memory is used up. It stays so until a tenth of it is free again."""
    memory, budget = context.memory, context.budget
    if memory.is_exceeded:
        _make_room(context)
    used_up = budget.used > (0.9 if memory.used_up else 1.0) * budget.limit
    withheld = memory.withheld
    if used_up != memory.used_up:
        memory.used_up = used_up
        if used_up:
            largest = max(_holders(context), key=_used_octets, default=None)
            context.log.warning(
                "memory used up",
                octets=budget.used,
                limit=budget.limit,
                holders=budget.holders,
                share=memory.share,
                largest=None if largest is None else _name(largest),
                consequence="holders of more than a share get no more",
            )
        for node in tuple(withheld):
            context.touch(node)
    elif withheld:
        for node in list(islice(withheld, LOOKED_AT)):
            del withheld[node]
            withheld[node] = None
            if not memory.is_over(node.account):
                context.touch(node)
                if len(withheld) > LOOKED_AT:  # a part of the memory may have room for all of them again
                    context.chores.put_off(_look_at_all(context))
                    break


def _look_at_all(context: Context) -> Steps[None]:
    """Let each node have credit again that is not above its share any more."""
    for node in tuple(context.memory.withheld):
        if node in context.memory.withheld and not context.memory.is_over(node.account):
            context.touch(node)
        yield


def look_at_portions(context: Context) -> None:
    """Take what is needed of limits that workers share, give back the rest, and let nodes have credit that wait."""
    context.chores.put_off(_fit_portions(context))


def _fit_portions(context: Context) -> Steps[None]:
    grew = False
    for usage in tuple(context.portions):
        if usage.octets is not None:
            grew = usage.fit() or grew
        if usage.octets is None or not usage.octets.taken:
            context.portions.pop(usage, None)
            if usage.owner.user is not None:
                context.usages.forget_idle(usage)
        yield
    if context.portions:
        context.wake_portions()
    if grew and context.memory.withheld:
        yield from _look_at_all(context)


def nodes(context: Context) -> Iterator[Node]:
    """Yield all nodes of the router: addresses, ingresses, and nodes of lanes."""
    for node in context.nodes.values():
        yield node
        if node.ingress is not None:
            yield node.ingress
    yield from context.routes.nodes()


def _holders(context: Context) -> Iterator[Node | ConnectionRecord]:
    for record in context.connections:
        if not (record.own or record.cut) and (record.counted or not record.lost):
            yield record
    yield from (node for node in nodes(context) if node.buffered)


def _used_octets(holder: Node | ConnectionRecord) -> int:
    return holder.account.used


def _name(holder: Node | ConnectionRecord) -> str:
    return f"connection {holder.number}" if isinstance(holder, ConnectionRecord) else f"address {holder.name!r}"


def _make_room(context: Context) -> None:
    """Have the largest holders make room for the others."""
    limit = context.budget.limit
    # The deliveries of lost connections are ended in steps, and will free their memory.
    left = context.budget.used - sum(record.account.used - record.counted for record in context.leaving)
    if left <= 2 * limit:
        return
    returned: dict[str, int] = {}
    for holder in sorted(_holders(context), key=_used_octets, reverse=True):
        if left <= 1.5 * limit or not _used_octets(holder):
            break
        held = _used_octets(holder)
        if isinstance(holder, ConnectionRecord):
            _close(context, holder)
            left -= held
        else:
            _return(context, holder)
            if _used_octets(holder) < held:  # the node keeps messages that may be sent again
                returned[holder.name] = held - _used_octets(holder)
                left -= returned[holder.name]
    if returned:
        context.log.warning(
            "messages returned to free memory",
            addresses=len(returned),
            largest=next(iter(returned)),
            octets=sum(returned.values()),
        )


def _close(context: Context, record: ConnectionRecord) -> None:
    context.log.warning(
        "connection closed to free memory", connection=record.number, peer=record.host, octets=record.account.used
    )
    if record.counted:
        cut_connection(context, record)
        return
    error = Error(
        condition=AmqpCondition.RESOURCE_LIMIT_EXCEEDED, description="too much of the router's memory is held"
    )
    close_connection(context, record, error)


def _return(context: Context, node: Node) -> None:
    """Return the queued messages of a node to their senders, and abort those whose first frames have left."""
    for relay in node.waiting.relays():
        undelivered(context, relay, node)
    begun: Iterable[Leg | None] = [each.current for each in node.outgoing]
    for leg in begun:
        if leg is not None and any(chunk.account is node.account for chunk in leg.chunks):
            give_up(context, leg)
