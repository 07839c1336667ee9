"""Consumers of this router's own addresses that are attached to other routers of the mesh, as `name@THIS-ROUTER`.

Their router advertises `name@THIS-ROUTER` like any other address. A lane leads there from the node `name` of this
router. The lane is one of that node's outgoing links. So a delivery to `name` goes to remote consumers by the same rule
as to local ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.address_syntax import local_key, split
from amqpmesh.router.model.credit_share import LOCAL_COST
from amqpmesh.router.model.lane import Lane, LaneKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.router.containers.remote_nodes import RemoteNodes
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.links import OutgoingLink
    from amqpmesh.router.model.node import LocalNode
    from amqpmesh.topology.linkstate import Topology


class RemoteConsumers:
    """The lanes to remote consumers, by address. `Routes` attaches them."""

    def __init__(self, context: Context, remote_nodes: RemoteNodes, topology: Topology) -> None:
        self._context = context
        self._remote_nodes = remote_nodes
        self._topology = topology
        self._own = context.config.names
        #: By (tenant, `name@THIS-ROUTER`): the lane to each router that has consumers of it.
        self._links: dict[tuple[str, str], dict[Lane, OutgoingLink]] = {}
        self._most = context.config.mesh.outposts if context.config.mesh is not None else 0
        #: Addresses for which there is no room; at most as many as there is room for.
        self._waiting: dict[tuple[str, str], None] = {}

    def __len__(self) -> int:
        return len(self._links)

    def addresses(self, more: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
        """Return the addresses with remote consumers and those in `more`, in an order that is the same in each run."""
        return dict.fromkeys([*self._links, *more])

    def is_own(self, address: str) -> bool:
        """Return True for `name@THIS-ROUTER`."""
        return split(address)[1] in self._own

    def wanted(self, tenant: str, address: str) -> dict[Lane, int]:
        """Return the lanes that `name@THIS-ROUTER` needs, each with the cost of reaching the consumers behind it."""
        context, topology = self._context, self._topology
        config = context.nodes.config(split(address)[0])
        is_away = config.redirect is not None and not config.redirect.is_followed
        if is_away or config.alias is not None or config.distribution is Distribution.UNAVAILABLE:
            return {}  # no client may consume the address here, so none may consume it elsewhere
        return {
            Lane(LaneKind.ANYCAST, router, tenant, address): LOCAL_COST + (topology.distance(router) or 0)
            for router, advert in topology.lookup(tenant, address).items()
            if router != context.id and advert.consumers
        }

    def local_node(self, tenant: str, address: str) -> LocalNode | None:
        """Return the node `name` of `name@THIS-ROUTER`; None: there is none yet."""
        return self._context.nodes.find(tenant, local_key(self._context.id, split(address)[0]))

    def use_local_node(self, tenant: str, address: str) -> LocalNode:
        """Return the node `name` of `name@THIS-ROUTER`, made if there is none.

        Raises: RefusedError: the router follows a redirect of `name`, and the other container has too many nodes in
            use.
        """
        context, (name, _) = self._context, split(address)
        node = self.local_node(tenant, address)
        if node is None:
            node = self._remote_nodes.redirect_node(tenant, name) or context.nodes.use(
                tenant, local_key(context.id, name)
            )
            context.touch(node)
        return node

    def take_links(self, tenant: str, address: str) -> dict[Lane, OutgoingLink]:
        """Return the links of an address, and forget them."""
        return self._links.pop((tenant, address), {})

    def set_links(self, tenant: str, address: str, links: dict[Lane, OutgoingLink]) -> None:
        """Keep an address with its links.

        A lane without a link has no path yet, or a neighbour refused it. It is attached once that changes.
        """
        self._links[tenant, address] = links

    def has_room(self, tenant: str, address: str) -> bool:
        """Return True if one more address can have remote consumers; else it waits until another address has none."""
        if len(self._links) < self._most:
            return True
        if not self._waiting:
            self._context.log.warning("too many outposts", address=address, outposts=self._most)
        if len(self._waiting) < self._most:
            self._waiting[tenant, address] = None
        return False

    def stop_waiting(self, tenant: str, address: str) -> None:
        """Take an address from those that wait for room."""
        self._waiting.pop((tenant, address), None)

    def first_waiting(self) -> tuple[str, str] | None:
        """Return the address that has waited longest for room; None: none waits."""
        return next(iter(self._waiting), None)
