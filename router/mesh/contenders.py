"""Tenants whose senders at several routers contend for the credit of one address.

The credit of an address is divided hop by hop: a router knows of the senders behind a lane only that there are some. So
each router tells the next one which tenants send from how many routers, and is told how many routers there are for
each of these tenants in all: in properties of flows on the lanes (§2.7.4). A tenant of weight 2 that sends from three
routers counts 2/3 at each. A lane counts as much as all that is behind it, so that each tenant gets its part by
weight, from whichever routers, and however many, it sends.

Lanes on which only the tenant of the address sends say nothing. They count as one router of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from amqpmesh.router.access.contention import weight_of
from amqpmesh.router.amqp.codec.types import Symbol, UInt
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.link_state import can_tell, tell
from amqpmesh.router.model.credit_share import CreditShare
from amqpmesh.router.model.lane import LaneKind
from amqpmesh.router.model.links import IncomingLink
from amqpmesh.router.model.node import IngressNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.amqp.link import Link
    from amqpmesh.router.context import Context
    from amqpmesh.router.incremental import Steps
    from amqpmesh.router.kernel import CreditSink
    from amqpmesh.router.model.links import OutgoingLink
    from amqpmesh.router.model.node import Node

SENDING: Final = Symbol("amqpmesh:sending")
"""The property of a flow that has a map: from how many routers each tenant sends, by its key. A router tells it to the
next one of a lane, of the tenants behind it; and that one tells of the same tenants how many there are in all."""

PERIOD: Final = 0.25
"""Seconds between two looks at a node. With many nodes it is longer."""

NODE_TIME: Final = 0.001
"""Seconds that a period lasts at least for each node that is looked at: some hundredths of it are spent for that."""

NODES_A_STEP: Final = 16
"""Nodes that one step of a chore looks at."""

KEPT: Final = 4
"""Looks for which a tenant counts that was seen to be busy."""

MOST: Final = 64
"""Tenants that a lane tells of. Others count as little as none while there are so many."""

MOST_ROUTERS: Final = 65_535
"""The highest number of routers that is believed."""

Routers: TypeAlias = dict[str, int]
"""From how many routers each tenant sends, by its key."""


class Contention:
    """The tenants that send to one node, from here and from routers behind it."""

    __slots__ = ("busy", "heard", "limits", "said", "sending", "totals")

    def __init__(self) -> None:
        #: What neighbours tell of their lanes to this node, and of the lanes that leave it.
        self.heard: dict[Link, Routers] = {}
        self.limits: dict[Link, Routers] = {}
        #: What was told last on each lane.
        self.said: dict[Link, Routers] = {}
        #: The looks for which each part of the pool still counts as busy.
        self.busy: dict[str, int] = {}
        #: The tenants that send, and from how many routers in all, as far as is known here.
        self.sending: Routers = {}
        self.totals: Routers = {}


class Contenders:
    """The nodes of a router for which tenants contend, and what is told of them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._nodes: dict[Node, Contention] = {}
        self._is_looking = False

    def __len__(self) -> int:
        """Return the number of nodes that are looked at."""
        return len(self._nodes)

    def begin(self, node: Node) -> Contention:
        """Look at a node from now on, until only the tenant of its address sends to it."""
        found = self._nodes.get(node)
        if found is None:
            found = self._nodes[node] = Contention()
            if not self._is_looking:
                self._is_looking = True
                self._look_later()
        return found

    def hear(self, link: IncomingLink | OutgoingLink, properties: Mapping[Symbol, Value]) -> None:
        """Take what a neighbour tells of a lane."""
        told = _routers(properties.get(SENDING))
        if told is None or link.node is None or link.lane is None or link.lane.kind is LaneKind.TRANSIT:
            return
        contention = self.begin(link.node)
        (contention.heard if isinstance(link, IncomingLink) else contention.limits)[link.endpoint] = told

    def _look_later(self) -> None:
        period = max(PERIOD, NODE_TIME * len(self._nodes))
        self._context.schedule(self._context.now + period, lambda: self._context.chores.put_off(self._look()))

    def _look(self) -> Steps[None]:
        """Look at all nodes in small steps, senders' side first, then again after a while as long as there are some."""
        try:
            for number, node in enumerate(list(self._nodes), 1):
                contention = self._nodes[node]
                if not self._look_at(node, contention):
                    self._tell_all(node, contention)
                    del self._nodes[node]
                if number % NODES_A_STEP == 0:
                    yield
        finally:
            self._is_looking = bool(self._nodes)
            if self._nodes:
                self._look_later()

    def _look_at(self, node: Node, contention: Contention) -> bool:
        """Weigh what contends for a node, and tell of it. Returns: False: only its own tenant sends there."""
        pool = node.made_pool
        _forget(contention.heard, node.incoming)
        _forget(contention.limits, node.outgoing)
        if pool is None or not pool.sinks:
            contention.sending, contention.totals = {}, {}
            return False
        if isinstance(node, IngressNode):
            parts = {tenant: {tenant: 1} for tenant in pool.weights}
        else:
            parts = self._join_all(node, contention)
        present = {tenant for routers in parts.values() for tenant in routers}
        if not present - {node.tenant}:
            contention.sending, contention.totals = {}, {}
            self._weigh(node, parts, {})
            return False
        busy, before = contention.busy, contention.busy.copy()
        busy.clear()
        for part, is_busy in pool.contenders.items():
            left = KEPT if is_busy else before.get(part, 0) - 1
            if left > 0:
                busy[part] = left
        sending = _sum(routers for part, routers in parts.items() if part in busy)
        if sending:  # else the last ones are probably the next ones, too
            contention.sending = sending
        self._count_all(node, contention)
        self._weigh(node, parts, contention.totals)
        self._tell_all(node, contention)
        for share in node.shares:
            self.begin(share.node)
        return True

    def _join_all(self, node: Node, contention: Contention) -> dict[str, Routers]:
        """Count each lane and share that leads to a node as a part of its credit. Returns: what is behind each part."""
        pool, alone = node.pool, {node.tenant: 1}
        parts: dict[str, Routers] = {}
        names: dict[CreditSink, str] = {}
        for sink in pool.sinks:
            name, routers = self._source(sink, contention)
            names[sink] = name
            for tenant, count in (routers or alone).items():
                part = parts.setdefault(name, {})
                part[tenant] = max(count, part.get(tenant, 0))
        if pool.weights or any(routers != alone for routers in parts.values()):
            weights = pool.weights
            for sink, name in names.items():
                pool.join(sink, name, weights.get(name, 1.0))
        return parts

    def _source(self, sink: CreditSink, contention: Contention) -> tuple[str, Routers]:
        """Return the name of the part that a sink of credit is of, and what is known to send behind it."""
        owner = sink.owner
        if isinstance(owner, IncomingLink) and owner.lane is not None:
            return f"<{owner.connection.peer.container_id}", contention.heard.get(owner.endpoint, {})
        if isinstance(owner, CreditShare):
            lane, behind = owner.ingress.lane, self._nodes.get(owner.ingress)
            return f">{'' if lane is None else lane.far}", {} if behind is None else behind.sending
        return "", {}

    def _count_all(self, node: Node, contention: Contention) -> None:
        """Find from how many routers in all the tenants send: where the receivers are, that is known."""
        known = [contention.limits.get(each.endpoint) for each in node.outgoing if each.lane is not None]
        known += [each.totals for share in node.shares if (each := self._nodes.get(share.node)) is not None]
        totals = contention.sending.copy()
        for routers in known:
            for tenant, count in (routers or {}).items():
                totals[tenant] = max(count, totals.get(tenant, 0))
        contention.totals = totals

    def _weigh(self, node: Node, parts: Mapping[str, Routers], totals: Routers) -> None:
        pool, policy = node.pool, self._context.policy
        weights = pool.weights
        for name, routers in parts.items():
            weight = sum(
                count * weight_of(policy, tenant) / max(1, totals.get(tenant, 0)) for tenant, count in routers.items()
            )
            if name in weights and weights[name] != weight:
                pool.weigh(name, weight)
                self._context.touch(node)

    def _tell_all(self, node: Node, contention: Contention) -> None:
        """Tell the neighbours of a node's lanes what has changed."""
        alone = {node.tenant: 1}
        for outgoing in node.outgoing:
            if outgoing.lane is not None:
                sending = contention.sending
                self._tell(outgoing.endpoint, contention, {} if sending == alone else sending)
        for link, heard in contention.heard.items():
            totals = {tenant: contention.totals.get(tenant, count) for tenant, count in heard.items()}
            self._tell(link, contention, {} if totals == heard else totals)
        # Not all of the node's senders: there may be thousands.
        lanes = contention.heard.keys() | {each.endpoint for each in node.outgoing} if contention.said else set()
        contention.said = {link: said for link, said in contention.said.items() if link in lanes}

    def _tell(self, link: Link, contention: Contention, routers: Routers) -> None:
        if len(routers) > MOST:
            routers = {tenant: routers[tenant] for tenant in sorted(routers)[:MOST]}
        if contention.said.get(link, {}) == routers or not can_tell(link):
            return
        try:
            tell(link, {SENDING: {tenant: UInt(count) for tenant, count in routers.items()}})
        except CommandError:  # the neighbour takes very small frames: it counts the lane as one router
            return
        contention.said[link] = routers


def _routers(value: Value) -> Routers | None:
    """Return what a neighbour has told; None: it is malformed, or nothing."""
    if not isinstance(value, dict) or len(value) > MOST:
        return None
    told: Routers = {}
    for tenant, count in value.items():
        if not isinstance(tenant, str) or not isinstance(count, int) or not 0 < count <= MOST_ROUTERS:
            return None
        told[str(tenant)] = int(count)
    return told


def _sum(those: Iterable[Routers]) -> Routers:
    found: Routers = {}
    for routers in those:
        for tenant, count in routers.items():
            found[tenant] = found.get(tenant, 0) + count
    return found


def _forget(told: dict[Link, Routers], links: Iterable[IncomingLink | OutgoingLink]) -> None:
    """Forget what was told of lanes that are gone."""
    if told:
        present = {each.endpoint for each in links}
        for link in [each for each in told if each not in present]:
            del told[link]
