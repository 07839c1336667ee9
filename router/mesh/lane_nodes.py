"""Nodes of lanes: the nodes whose deliveries leave to other routers, by lane and by address."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from amqpmesh.router.config.address import AddressConfig
from amqpmesh.router.mesh.ingress import to_all, to_one
from amqpmesh.router.model.lane import LaneKind
from amqpmesh.router.model.node import LaneNode
from amqpmesh.router.small_set import SmallSet, with_item, without_item

if TYPE_CHECKING:
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.lane import Lane
    from amqpmesh.router.model.node import InternalNode


class LaneNodes:
    """The nodes of lanes; trees that start at this router are not among them, but are ingresses."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._by_lane: dict[Lane, LaneNode] = {}
        self._by_address: dict[tuple[str, str], SmallSet[LaneNode]] = {}

    def __len__(self) -> int:
        return len(self._by_lane)

    def all(self) -> list[LaneNode]:
        """Return all nodes."""
        return list(self._by_lane.values())

    def get(self, lane: Lane) -> LaneNode | None:
        """Return the node of a lane; None: there is none."""
        return self._by_lane.get(lane)

    def of(self, tenant: str, name: str) -> list[LaneNode]:
        """Return the nodes of an address."""
        return list(self._by_address.get((tenant, name), ()))

    def use(self, lane: Lane) -> LaneNode:
        """Return the node of a lane, made if there is none."""
        node = self._by_lane.get(lane)
        if node is None:
            context = self._context
            # Transit has no address, so no configuration concerns it.
            config = context.nodes.config(lane.name) if lane.name else AddressConfig(pattern="#")
            if lane.kind is not LaneKind.TRANSIT:
                # The ingress router has decided how the address distributes, and the kind of the lane tells it.
                config = to_all(config) if lane.kind is LaneKind.TREE else to_one(config)
            node = self._by_lane[lane] = LaneNode(
                lane.tenant, lane.name, config, context.usages.memory_of(lane.tenant), lane
            )
            nodes = self._by_address.get((lane.tenant, lane.name), ())
            self._by_address[lane.tenant, lane.name] = with_item(nodes, node)
            context.touch(node)
        node.idle_since = None
        return node

    def is_in_use(self, node: InternalNode, idle_time: float) -> bool:
        """Tell whether an idle node was used a while ago only. Args: idle_time: seconds until it is forgotten."""
        context = self._context
        if node.idle_since is None:
            node.idle_since = context.now
        elif context.now < node.idle_since + idle_time:
            return True
        else:  # the kernel may have used it since
            links = chain(node.outgoing, *(share.node.outgoing for share in node.shares))
            used_at = max((each.endpoint.flow_state.last_at for each in links), default=node.idle_since)
            if used_at <= node.idle_since:
                return False
            node.idle_since = used_at
        until = node.idle_since + idle_time
        if context.now < until:
            context.schedule(until, lambda: context.touch(node))
        return context.now < until

    def remove(self, lane: Lane) -> None:
        """Forget the node of a lane."""
        left = without_item(self._by_address.pop((lane.tenant, lane.name)), self._by_lane.pop(lane))
        if left:
            self._by_address[lane.tenant, lane.name] = left
