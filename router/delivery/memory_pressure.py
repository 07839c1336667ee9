"""The consequences of memory that is used up: a warning, and at twice the budget the largest holders make room."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import TYPE_CHECKING, Final, TypeAlias

from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.delivery.link_loss import close_connection, cut_connection
from amqpmesh.router.delivery.settlement import give_up, undelivered
from amqpmesh.router.memory.holders import SHARES
from amqpmesh.router.model.connections import ConnectionRecord

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable, Iterator, Sequence

    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.kernel import Leg
    from amqpmesh.router.model.lasting_termini import SuspendedTerminus
    from amqpmesh.router.model.node import Node

#: Nodes without credit that each batch checks again: their share grows when other holders leave.
LOOKED_AT: Final = 8

#: Connections, principals or nodes that one step looks at in search of those that hold most.
_LOOKED_AT_ONCE: Final = 1_000

#: Principals that one step takes up, of those that may have to make room.
_MADE_AT_ONCE: Final = 200

#: After so many things that were given up, the octets in use are counted again.
_COUNTED_AFTER: Final = 16

#: Of several that hold alike, each gives up messages of at least this part of the memory in its turn.
_A_TURN: Final = 256

_Ranked: TypeAlias = "tuple[int, int, _Principal | _Address]"
"""Its octets, negative; a number of its own; a holder."""


def check(context: Context) -> None:
    """Update whether the memory is used up. It stays so until a tenth of it is free again."""
    memory, budget = context.memory, context.budget
    if not memory.is_exceeded:
        memory.in_vain = 0
    elif not memory.frees:
        memory.in_vain = min(memory.in_vain, budget.used)
        if budget.used > memory.in_vain + (budget.limit // SHARES if memory.in_vain else 0):
            memory.frees = True
            context.chores.do(_make_room(context))
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
    yield from (record for record in context.connections if _may_be_closed(record))
    yield from (node for node in nodes(context) if node.buffered)


def _may_be_closed(record: ConnectionRecord) -> bool:
    """Tell whether to close a connection may free memory. The router's own ones stay."""
    return not (record.own or record.cut) and (record.counted > 0 or not record.lost)


def _used_octets(holder: Node | ConnectionRecord) -> int:
    return holder.account.used


def _name(holder: Node | ConnectionRecord) -> str:
    return f"connection {holder.number}" if isinstance(holder, ConnectionRecord) else f"address {holder.name!r}"


# -------------------------------------------------------------------------------------------------------- making room


class _Principal:
    """A principal that holds memory: what is kept for it while it is away goes before its connections."""

    __slots__ = ("_connections", "_context", "_living", "given_up", "links", "name")

    def __init__(
        self,
        context: Context,
        name: tuple[str, str],
        links: deque[SuspendedTerminus] | None,
        connections: Iterable[ConnectionRecord],
    ) -> None:
        """Args: name: the tenant, and the user, host or neighbour. links: its termini without a link, if it has some,
        the oldest first.
        """
        self._context = context
        self.name = name
        self.links = links
        #: Its connections, those with most octets first, and the octets of all.
        self._connections: list[tuple[int, int, ConnectionRecord]] = []
        self._living = 0
        self.look_at(connections)
        #: What it has given up, but connections: links, messages, and the octets of both.
        self.given_up = 0, 0, 0

    def look_at(self, connections: Iterable[ConnectionRecord] | None = None) -> None:
        """Count the octets of its connections. Args: connections: None: those that it had; peers read meanwhile."""
        if connections is None:
            connections = [each for _, _, each in self._connections if _may_be_closed(each)]
        self._connections = [(-each.held, each.number, each) for each in connections if each.held]
        heapify(self._connections)
        self._living = -sum(each[0] for each in self._connections)

    @property
    def octets(self) -> int:
        """The octets that it holds."""
        return self._living + self._context.termini.octets_of(self.name)

    def give_up(self, octets: int) -> int | None:
        """Give up messages that are kept for it; if there are none, its oldest terminus; or a connection.

        Args: octets: of messages, if there are so many. Returns: the octets that are free now, or soon; None: it has
            nothing of these.
        """
        termini, budget = self._context.termini, self._context.budget
        before = budget.used
        messages = termini.give_up_octets(self.name, octets)
        links = 0
        while self.links and not (messages or links):
            links += termini.evict(self.links.popleft())
        if not (messages or links):
            return self._close_largest()
        freed = before - budget.used
        before_links, before_messages, before_octets = self.given_up
        self.given_up = before_links + links, before_messages + messages, before_octets + freed
        return freed

    def _close_largest(self) -> int | None:
        while self._connections:
            known, number, record = heappop(self._connections)
            self._living += known
            held = record.held if _may_be_closed(record) else 0
            if held >= -known:
                _close(self._context, record)
                return held
            if held:  # less than before: others may hold more now
                heappush(self._connections, (-held, number, record))
                self._living += held
                return 0
        return None


class _Address:
    """A node at which messages wait."""

    def __init__(self, context: Context, node: Node) -> None:
        self._context = context
        self.node = node
        self.returned = 0

    @property
    def octets(self) -> int:
        """The octets that wait there."""
        return self.node.account.used

    def give_up(self, _octets: int) -> int | None:
        """Return its messages. Returns: the octets that are free; None: it keeps what may be sent again."""
        held = self.octets
        _return(self._context, self.node)
        freed = held - self.octets
        self.returned += freed
        return freed if freed > 0 else None


def _make_room(context: Context) -> Steps[None]:
    """Let whatever holds most make room, in steps, until one and a half times the limit is used."""
    try:
        yield from _free(context)
    finally:
        context.memory.frees = False


def _left(context: Context) -> int:
    """Return the octets in use but for those of lost connections, whose deliveries are ended in steps."""
    return context.budget.used - sum(record.account.used - record.counted for record in context.leaving)


def _free(context: Context) -> Steps[None]:
    limit, memory = context.budget.limit, context.memory
    enough, left = limit * 3 // 2, _left(context)
    if left <= 2 * limit:
        return
    share, largest = yield from _find_largest(context)
    paid: dict[_Principal | _Address, None] = {}
    looked_at: dict[_Principal, int] = {}
    for turn in count():
        if not turn % _COUNTED_AFTER:
            left = _left(context)
        if left <= enough or not largest:
            break
        known, number, holder = heappop(largest)
        if isinstance(holder, _Principal) and turn - looked_at.get(holder, -_COUNTED_AFTER) >= _COUNTED_AFTER:
            looked_at[holder] = turn
            holder.look_at()
        octets, next_largest = holder.octets, -largest[0][0] if largest else 0
        if octets <= share:
            continue
        if octets < min(-known, next_largest):  # it was more before: another one holds most now
            heappush(largest, (-octets, number, holder))
            continue
        if isinstance(holder, _Principal) and not holder.links and context.termini.has_links_of(holder.name):
            # Some were lost meanwhile.
            holder.links = (yield from context.termini.by_holder((holder.name,))).get(holder.name)
        freed = holder.give_up(min(left - enough, max(octets - max(next_largest, share), limit // _A_TURN)))
        if freed is None:
            yield
            continue
        left -= freed
        paid[holder] = None
        heappush(largest, (-holder.octets, number, holder))
        yield
    memory.in_vain = context.budget.used if _left(context) > 2 * limit else 0
    _log(context, list(paid))


def _find_largest(context: Context) -> Steps[tuple[int, list[_Ranked]]]:
    """Look for what holds more than a share: principals, and nodes at which messages wait.

    A share is a sixteenth of the memory, and less if there are more than sixteen principals and nodes that hold some.
    So all shares together are at most the memory, and nobody with no more than that gives anything up.
    Returns: the share, octets; a heap of them, the largest first.
    """
    connections: dict[tuple[str, str], list[ConnectionRecord]] = {}
    for number, record in enumerate(list(context.connections), 1):
        if _may_be_closed(record) and record.held:
            connections.setdefault(record.holder, []).append(record)
        if not number % _LOOKED_AT_ONCE:
            yield
    octets = context.termini.octets_by_holder()
    for number, (name, records) in enumerate(connections.items(), 1):
        octets[name] = octets.get(name, 0) + sum(each.held for each in records)
        if not number % _LOOKED_AT_ONCE:
            yield
    full: list[_Address] = []
    for number, node in enumerate(list(nodes(context)), 1):
        if node.buffered and node.account.used:
            full.append(_Address(context, node))
        if not number % _LOOKED_AT_ONCE:
            yield
    share = context.budget.limit // max(SHARES, len(octets) + len(full))
    names = dict.fromkeys(name for name, held in octets.items() if held > share)
    links = yield from context.termini.by_holder(names)
    largest: list[_Ranked] = [(-each.octets, number, each) for number, each in enumerate(full) if each.octets > share]
    for number, name in enumerate(names, len(full)):
        principal = _Principal(context, name, links.get(name), connections.get(name, ()))
        largest.append((-principal.octets, number, principal))
        if not number % _MADE_AT_ONCE:
            yield
    heapify(largest)
    return share, largest


def _log(context: Context, paid: Sequence[_Principal | _Address]) -> None:
    """Log what was given up, but for connections, each of which has a line."""
    returned = [each for each in paid if isinstance(each, _Address)]
    if returned:
        context.log.warning(
            "messages returned to free memory",
            addresses=len(returned),
            largest=returned[0].node.name,
            octets=sum(each.returned for each in returned),
        )
    given_up = {each.name: each.given_up for each in paid if isinstance(each, _Principal) and any(each.given_up)}
    if given_up:
        tenant, name = max(given_up, key=lambda each: given_up[each][2])
        links, messages, octets = (sum(each) for each in zip(*given_up.values(), strict=True))
        context.log.warning(
            "links given up to free memory",
            users=len(given_up),
            largest=name,
            tenant=tenant or None,
            links=links,
            messages=messages,
            octets=octets,
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
