"""Remote nodes: nodes of containers outside the mesh, which clients reach through addresses of this router.

An address leads to a remote node if the router itself follows its redirect, or if it is `name@domain`. Such an address
has two nodes in this router. Consumers attach to one, and a link from the remote node feeds it. Producers attach to the
other, and a link from it feeds the remote node. A message of a producer goes to the remote container, and comes back
only if that container sends it: this router passes nothing from one of its two nodes to the other.

The links are made when the first producer or consumer attaches. They are removed when there has been none for a while,
or sooner if other nodes need their place.

Credit and outcomes are those of the remote container, end to end. So if two routers lead an address to each other, no
message circulates: neither router has credit to give.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from amqpmesh.policies.distribution import Distribution
from amqpmesh.policies.exports import Use
from amqpmesh.policies.patterns import steps
from amqpmesh.policies.redirect import NotFollowedError, PeerAddress, RedirectPolicy
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, LinkCondition
from amqpmesh.router.config.consistency import free_name
from amqpmesh.router.containers.container_link import ContainerLink
from amqpmesh.router.delivery.link_loss import fail_link
from amqpmesh.router.delivery.refusal import refuse
from amqpmesh.router.model.links import IncomingLink, OutgoingLink
from amqpmesh.router.model.node import IngressNode, RemoteSide
from amqpmesh.router.model.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from amqpmesh.router.config.redirect import RedirectConfig
    from amqpmesh.router.containers.container_links import Containers
    from amqpmesh.router.containers.on_demand import OnDemandConnections
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.node import LocalNode, Node


#: Seconds between two checks whether a link that nothing needs still has unsettled deliveries.
BUSY_TIME: Final = 1.0

#: Tokens of patterns that stand for any other token.
WILDCARDS: Final = frozenset({"*", "#"})


class RemoteNode(RemoteSide):
    """A remote node, as this router serves it.

    Attributes: `local`: the node that its consumers attach to. `connector`, `node`: the connector to its container,
        and its address there.
    """

    __slots__ = (
        "_containers",
        "_context",
        "_idle_since",
        "_links",
        "_look_at",
        "_on_demand",
        "connector",
        "local",
        "node",
    )

    def __init__(
        self, context: Context, containers: Containers, on_demand: OnDemandConnections, local: LocalNode, node: str
    ) -> None:
        self._context = context
        self._containers = containers
        self._on_demand = on_demand
        self.local = local
        self.node = node
        self.connector = ""
        #: The links, by their direction: True if a link feeds this router. `_idle_since`: the times since which nothing
        #: needs them, seconds.
        self._links: dict[bool, ContainerLink] = {}
        self._idle_since: dict[bool, float] = {}
        #: The time of the next check, if nothing happens before.
        self._look_at: float | None = None

    def ingress(self) -> IngressNode:
        """Return the node that its producers attach to; make it if there is none."""
        local = self.local
        if local.ingress is None:
            ingress = IngressNode(local.tenant, local.name, local.config, self._context.usages.memory_of(local.tenant))
            ingress.remote = self
            local.ingress = ingress
            self._context.touch(ingress)
        return local.ingress

    def look(self) -> bool:
        """Make the links that are needed, and remove those that nothing has needed for a while.

        Returns: whether the remote node was forgotten: it has no links, and nothing uses its address.
        """
        context, local, ingress = self._context, self.local, self.local.ingress
        for incoming in (True, False):
            self._attach_or_release(incoming=incoming, needed=self._is_needed(incoming=incoming))
        if self._links:
            return False
        if ingress is not None and ingress.is_idle:
            local.ingress = None
        if not local.is_idle:
            return False
        context.nodes.remove(local)
        self._on_demand.leave(self.connector, self)
        return True

    def has(self, link: object) -> bool:
        """Return whether a link is one of its links."""
        return link in self._links.values()

    def idle_since(self) -> float | None:
        """Return the time since which nothing needs the node's links, seconds.

        None: a link is needed or has unsettled deliveries, or there is no link. Producers and consumers that came or
        went in this batch count already, even if `look` has not run since.
        """
        if any(self._is_needed(incoming=each) for each in (True, False)):
            return None
        if any(each.is_busy for each in self._links.values()):
            return None
        return max((self._idle_since.get(each, self._context.now) for each in self._links), default=None)

    def let_go(self) -> bool:
        """Remove its links, which are idle, before their time has passed. Returns: as `look`."""
        for link in self._links.values():
            self._containers.remove(link)
        self._links.clear()
        self._idle_since.clear()
        self._context.touch(self.local)
        return self.look()

    def _is_needed(self, *, incoming: bool) -> bool:
        local, ingress = self.local, self.local.ingress
        if incoming:
            return bool(local.outgoing or local.copies)
        return ingress is not None and bool(ingress.incoming or ingress.borrowers or ingress.waiting.size)

    def _attach_or_release(self, *, incoming: bool, needed: bool) -> None:
        context = self._context
        link = self._links.get(incoming)
        if needed:
            self._idle_since.pop(incoming, None)
            if link is None and not context.draining:
                link = self._links[incoming] = self._link(incoming=incoming)
                self._containers.add(link)
            return
        if link is None:
            return
        idle = 0.0 if context.draining else context.config.elsewhere.idle
        until = self._idle_since.setdefault(incoming, context.now) + idle
        if context.now < until:
            self._schedule_look(until)
        elif link.is_busy:
            self._schedule_look(context.now + BUSY_TIME)
        else:
            del self._links[incoming], self._idle_since[incoming]
            self._containers.remove(link)

    def _link(self, *, incoming: bool) -> ContainerLink:
        context, local = self._context, self.local
        name = f"@{local.tenant}/{local.name}" if local.tenant else local.name
        return ContainerLink(
            # The link may use the connection of a configured link: if both had one name, it would steal that link.
            free_name(name, [each.name for each in context.config.container_links]),
            self.connector,
            self.node,
            incoming=incoming,
            address=local.name,
            serves=lambda _: local if incoming else self.ingress(),
            now=context.now,
            refused=self._refused,
        )

    def _schedule_look(self, at: float) -> None:
        if self._look_at is None or at < self._look_at:
            self._look_at = at
            self._context.schedule(at, self._look_again)

    def _look_again(self) -> None:
        self._look_at = None
        self._context.touch(self.local)

    def _refused(self, link: ContainerLink, error: Error | None) -> bool:
        """Refuse the clients that need a link, since its container has refused it. Waiting messages are refused, too.

        Returns: whether nothing else needs the link. If other routers do, it attaches again after a pause: they cannot
            be refused, since they would ask again at once.
        """
        context, local = self._context, self.local
        told = _error_for_clients(error, link.connector)
        attached: list[IncomingLink | OutgoingLink]
        if link.incoming:
            attached = [*local.outgoing, *local.copies]
        else:
            ingress = self.ingress()
            attached = [*ingress.incoming]
            while (relay := ingress.waiting.first()) is not None:
                refuse(context, relay, self._told(told, relay.source), ingress)
        others: list[object] = [each for each in attached if each.lane is not None]
        if not link.incoming:
            others += self.ingress().borrowers  # trees that lead there
        for each in attached:
            if each.lane is None:
                fail_link(context, each, self._told(told, each))
        context.touch(local)
        if others:
            return False
        del self._links[link.incoming]
        self._idle_since.pop(link.incoming, None)
        return True

    def _told(self, error: Error, link: object) -> Error:
        """Return an error as the peer of a link may see it: without what it says of another tenant's address."""
        context, local = self._context, self.local
        if not isinstance(link, IncomingLink | OutgoingLink):
            return error
        if link.lane is None:
            is_known = link.connection.peer.tenant == local.tenant
        else:  # it does not tell messages of importers from those of the exporter
            policy = context.policy
            is_known = policy is None or not policy.exports.is_offered(local.tenant, local.name, Use.SEND)
        if is_known:
            return error
        is_redirect = error.condition == LinkCondition.REDIRECT
        return Error(
            condition=AmqpCondition.NOT_FOUND if is_redirect else error.condition,
            description="the address is not served",
        )


class RemoteNodes:
    """The remote nodes of a router."""

    def __init__(self, context: Context, containers: Containers, on_demand: OnDemandConnections) -> None:
        self._context = context
        self._containers = containers
        self._on_demand = on_demand
        self._domains = RedirectPolicy(allowed=context.config.elsewhere.domains)
        #: The addresses that other routers of the mesh reach through this one, with their distributions. They are the
        #: patterns without wildcards: which addresses match the others is not known. A multicast is none of them: it
        #: goes to all routers along a tree, and each of them would send it to the remote node.
        self.single: Mapping[str, Distribution] = dict(self._find_single())

    def node_of_redirect(self, tenant: str, name: str, redirect: RedirectConfig) -> LocalNode:
        """Return the node of an address whose redirect this router follows. Args: redirect: of the address.

        Raises: RefusedError: the router uses too many containers on demand, or too many nodes of this container.
        """
        return self._use(tenant, name, redirect.place.address or name, redirect.peer_address)

    def renew(self) -> tuple[Mapping[str, Distribution], Mapping[str, Distribution]]:
        """Follow a changed configuration. Nodes that exist stay until they are not used any more.

        Returns: what `single` had, and what it has now.
        """
        before = self.single
        self._domains = RedirectPolicy(allowed=self._context.config.elsewhere.domains)
        self.single = dict(self._find_single())
        return before, self.single

    def _find_single(self) -> Iterator[tuple[str, Distribution]]:
        for config in self._context.config.addresses:
            if config.redirect is None or not config.redirect.is_followed:
                continue
            is_single = WILDCARDS.isdisjoint(word for _, word in steps(config.pattern))
            if is_single and config.distribution in (Distribution.BALANCED, Distribution.CLOSEST):
                yield config.pattern, config.distribution

    def redirect_node(self, tenant: str, name: str) -> LocalNode | None:
        """Return the node of an address; None: the address has no redirect that this router follows.

        The redirect of `name@ROUTER` is that router's to follow: here it is the node of those who receive from there.
        Raises: RefusedError: as `node_of_redirect`.
        """
        if "@" in name:
            return None
        redirect = self._context.nodes.config(name).redirect
        return self.node_of_redirect(tenant, name, redirect) if redirect is not None and redirect.is_followed else None

    def ingress(self, tenant: str, name: str) -> Node | None:
        """Return the node that producers of an address attach to. Returns None, Raises: as `redirect_node`."""
        node = self.redirect_node(tenant, name)
        return None if node is None else self._context.routes.ingress(node)

    def node(self, tenant: str, name: str, domain: str) -> LocalNode | None:
        """Return the node of `name@domain`; None: the configuration does not name the domain.

        Raises: RefusedError: as `node_of_redirect`; or the address is unavailable by the configuration.
        """
        if not name or not self._domains.allows(domain):
            return None
        whole = f"{name}@{domain}"
        if self._context.nodes.config(whole).distribution is Distribution.UNAVAILABLE:
            raise RefusedError(AmqpCondition.NOT_FOUND, "the address is unavailable")
        return self._use(tenant, whole, name, domain)

    def _use(self, tenant: str, name: str, node: str, place: PeerAddress | str) -> LocalNode:
        context = self._context
        local = context.nodes.use(tenant, name)
        context.touch(local)
        if local.remote is None:
            far = RemoteNode(context, self._containers, self._on_demand, local, node)
            try:
                if isinstance(place, str):
                    far.connector = self._on_demand.use_domain(place, far, tenant)
                else:
                    far.connector = self._on_demand.use(place, far, tenant)
            except NotFollowedError as refusal:
                raise RefusedError(AmqpCondition.RESOURCE_LIMIT_EXCEEDED, str(refusal)) from None
            local.remote = far
        return local


def _error_for_clients(error: Error | None, connector: str) -> Error:
    """Return the error that clients get for a refusal. A redirect stays in it: clients may follow it themselves."""
    if error is None:
        return Error(condition=LinkCondition.DETACH_FORCED, description=f"{connector} does not take the link")
    about = f": {error.description}" if error.description else ""
    info = error.info if error.condition == LinkCondition.REDIRECT else None
    return Error(condition=error.condition, description=f"{connector} does not take the link{about}", info=info)
