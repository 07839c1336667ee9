"""Resolution of addresses: the node of this router that an address of a link or a message leads to.

All routers with receivers of `name` serve it. Only the container serves `name@container`. `@container` stands for all
nodes of the container. Results of the configuration are remembered by address, since each message of an anonymous
sender has an address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.policies.access import is_published, is_reserved
from amqpmesh.policies.distribution import UNAVAILABLE
from amqpmesh.policies.exports import Use
from amqpmesh.router.access.crossings import answerable, crossing, for_importer, refused
from amqpmesh.router.access.rights import check_address, is_judged
from amqpmesh.router.address_syntax import local_key, of_tools, refusal, split
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, LinkCondition
from amqpmesh.router.attach.resumable import check_message
from amqpmesh.router.credit.fixed_credit import FixedCredit
from amqpmesh.router.endpoint_setup import REDIRECT
from amqpmesh.router.model.lane import tenant_of
from amqpmesh.router.model.redirects import info
from amqpmesh.router.model.refusal import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpmesh.policies.exports import Crossing
    from amqpmesh.router.amqp.standard.performatives import Attach
    from amqpmesh.router.config.file import AddressConfig
    from amqpmesh.router.containers.remote_nodes import RemoteNodes
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.model.links import IncomingLink
    from amqpmesh.router.model.node import LocalNode, Node

#: The number of remembered addresses, and the characters of the longest one: peers choose them.
REMEMBERED: Final = 1000
LONGEST: Final = 255


def check_here(config: AddressConfig, name: str) -> None:
    """Check that the configuration does not redirect an address.

    Raises: RefusedError: it does; the error names the place (§2.8.18).
    """
    if config.redirect is not None:
        place = config.redirect.place.for_address(name)
        raise RefusedError(LinkCondition.REDIRECT, "the address is elsewhere", info(place))


def follows(config: AddressConfig, record: ConnectionRecord, attach: Attach | None, owner: Owner | None = None) -> bool:
    """Return whether this router follows the redirect of an address for a client.

    A client that desires `amqpmesh:redirect`, in its `open` or its `attach`, follows redirects itself, but not those of
    another tenant's addresses.
    """
    if config.redirect is None or not config.redirect.is_followed:
        return False
    if owner is not None and owner.crossing is not None:
        return True
    opened = record.engine.remote
    return not any(asked is not None and REDIRECT in asked.desired_capabilities for asked in (opened, attach))


class ResolvedAddress(NamedTuple):
    """An address in its parts, after the aliases of this router were applied."""

    name: str
    """Empty: the address stands for all nodes of the container."""
    container: str | None
    """None: all routers with receivers of the name serve it."""
    config: AddressConfig
    is_reserved: bool
    """True if the address is a router's own."""
    is_available: bool
    """True if the configuration permits the address.

    The check also holds for names of other containers: otherwise a client could avoid it by adding `@container`.
    """
    requires_resumption: bool
    """True if its links have to be resumable, but for those within this process."""
    is_published: bool
    """True if the routers of a mesh publish there: clients only receive from it."""

    @property
    def address(self) -> str:
        """The whole address."""
        return self.name if self.container is None else f"{self.name}@{self.container}"


def _resolved(name: str, container: str | None, config: AddressConfig) -> ResolvedAddress:
    reserved = is_reserved(name)
    return ResolvedAddress(
        name,
        container,
        config,
        reserved,
        config.distribution is not UNAVAILABLE,
        config.requires_resumption and not reserved,
        is_published(name),
    )


class Owner(NamedTuple):
    """The tenant of an address that a peer names, and the parts of the address, as that tenant names it."""

    tenant: str
    place: ResolvedAddress
    crossing: Crossing | None
    """The lines by which the peer may use another tenant's address; None: the address is of the peer's own."""


class Lookup:
    """The resolution of addresses that links and messages name."""

    def __init__(self, context: Context, remote_nodes: RemoteNodes) -> None:
        self._context = context
        self._remote_nodes = remote_nodes
        self._own = context.config.names
        #: Addresses that were looked up lately, in two generations. When the first is full, it becomes the older one,
        #: and the former older one is dropped. An address in use returns to the first: no flood of others displaces it.
        self._places: dict[str, ResolvedAddress] = {}
        self._older: dict[str, ResolvedAddress] = {}

    @property
    def remembered(self) -> Mapping[str, ResolvedAddress]:
        """The remembered addresses, with their parts."""
        return {**self._older, **self._places}

    def compact(self) -> None:
        """Forget all remembered addresses: each of them may keep a page of memory that is otherwise free."""
        self._places, self._older = {}, {}

    def place(self, address: str) -> ResolvedAddress:
        """Return the parts of an address, after aliases.

        Raises: RefusedError: the address is invalid.
        """
        place = self._places.get(address)
        if place is None:
            place = self._older.pop(address, None) or self._place(address)
            if len(address) <= LONGEST:
                if len(self._places) >= REMEMBERED // 2:
                    self._places, self._older = {}, self._places
                self._places[address] = place
        return place

    def _place(self, address: str) -> ResolvedAddress:
        context = self._context
        if address.startswith("_topo/"):
            address = of_tools(address)
        while True:
            fault = refusal(address)
            if fault is not None:
                raise RefusedError(AmqpCondition.INVALID_FIELD, f"the address {fault}")
            name, container = split(address)
            config = context.nodes.config(name)
            if config.alias is None or not (container is None or container in self._own):
                return _resolved(name, container, config)
            # This ends: a configuration with circles of aliases is refused.
            address = config.alias

    def owner(self, tenant: str, place: ResolvedAddress, *, sends: bool) -> Owner:
        """Return the owner of an address, and the address as its owner names it.

        The aliases of the exporter's addresses are followed, too, as far as the export reaches.
        Args: tenant: the key of the peer's. place: with a name.
        Raises: RefusedError: the peer's tenant imports the address, and no export permits the use of it.
        """
        context = self._context
        found = None
        if context.policy is not None and not place.is_published:
            found = crossing(context, tenant, place.name, place.container, sends=sends)
        if found is None:
            return Owner(tenant, place, None)
        container = place.container
        there = self.place(found.name if container is None else f"{found.name}@{container}")
        if there.container != container or there.is_reserved or not found.exported.offers(there.name):
            context.denied += 1
            raise refused(f"an alias leads from {found.name} out of {found.exported.key}")
        return Owner(found.tenant, there, found)

    # --------------------------------------------------------------------------------------------------------- of links

    def target(self, record: ConnectionRecord, attach: Attach, owner: Owner) -> Node | None:
        """Return the node for the messages of a sender to an address.

        Returns: None: each message is resolved by itself, and goes to the router `place.container`.
        Raises: RefusedError: the configuration redirects or forbids the address; or its container is not known.
        """
        try:
            return self._target(record, attach, owner)
        except RefusedError as refusal:
            raise refusal if owner.crossing is None else for_importer(refusal) from None

    def _target(self, record: ConnectionRecord, attach: Attach, owner: Owner) -> Node | None:
        tenant, place, _ = owner
        context, container = self._context, place.container
        if not place.name:
            assert container is not None
            if container not in self._own and not self._is_router(container):
                raise RefusedError(AmqpCondition.NOT_FOUND, f"no container {container!r} is known here")
            return None
        # All workers of a router have the same addresses of these kinds.
        is_alike = place.is_reserved or place.config.redirect is not None
        if container == context.id or (is_alike and container in self._own):
            node = self._local(record, attach, owner, sends=True)
            return node if node.remote is None else context.routes.ingress(node)
        if container is not None and container in self._own:
            return context.routes.ingress(self._use(tenant, place, place.address))
        if container is not None and place.is_reserved and self._is_router(container):
            return None
        return context.routes.ingress(self._source(record, attach, owner, sends=True))

    def source(self, record: ConnectionRecord, attach: Attach, owner: Owner) -> LocalNode:
        """Return the node for a receiver of an address. The caller checks the receiver's rights.

        Raises: RefusedError: as `target`; or the address stands for all nodes of a container.
        """
        tenant, place, exported = owner
        if (
            exported is None
            and place.container is None
            and place.name
            and not place.is_reserved
            and place.config.redirect is None
        ):  # most addresses
            return self._use(tenant, place, local_key(self._context.id, place.name))
        try:
            return self._source(record, attach, owner, sends=False)
        except RefusedError as refusal:
            raise refusal if owner.crossing is None else for_importer(refusal) from None

    def _source(self, record: ConnectionRecord, attach: Attach, owner: Owner, *, sends: bool) -> LocalNode:
        tenant, place, _ = owner
        container = place.container
        if not place.name:
            description = "the whole of a container can be sent to, and not received from"
            raise RefusedError(AmqpCondition.NOT_IMPLEMENTED, description)
        if container is None or container in self._own:
            return self._local(record, attach, owner, sends=sends)
        if self._is_router(container):
            if place.is_reserved:
                raise RefusedError(AmqpCondition.UNAUTHORIZED_ACCESS, "this address is a router's own")
            return self._use(tenant, place, place.address)
        node = self._remote_nodes.node(tenant, place.name, container)
        if node is None:
            raise RefusedError(AmqpCondition.NOT_FOUND, f"no container {container!r} is known here")
        return node

    def _local(self, record: ConnectionRecord, attach: Attach, owner: Owner, *, sends: bool) -> LocalNode:
        """Return this router's own node of a name; make it if there is none. Raises: RefusedError: as `target`."""
        context = self._context
        tenant, place, _ = owner
        if place.is_published:
            return self._published(record, place, sends=sends)
        if place.is_reserved:
            node = context.nodes.find(context.nodes.tenant_of_reserved(tenant, place.name), place.name)
            if node is None and sends:
                node = answerable(context, tenant, place.name)
            if node is None:
                raise RefusedError(AmqpCondition.NOT_FOUND, "no such node")
            return node
        redirect = place.config.redirect
        if redirect is not None:
            if follows(place.config, record, attach, owner):
                return self._remote_nodes.node_of_redirect(tenant, place.name, redirect)
            check_here(place.config, place.name)
        return self._use(tenant, place, local_key(context.id, place.name))

    def _published(self, record: ConnectionRecord, place: ResolvedAddress, *, sends: bool) -> LocalNode:
        """Return the node of what routers publish. Raises: RefusedError: only the routers themselves send to it."""
        if place.container is not None:
            raise RefusedError(AmqpCondition.NOT_FOUND, "all routers publish there, and none by itself")
        is_of_program = record.own if sends else record.inside
        # The policy does not rule containers that the router connects to, nor who comes to a listener for routers.
        if not is_of_program and (sends or (self._context.policy is not None and not is_judged(self._context, record))):
            raise RefusedError(AmqpCondition.UNAUTHORIZED_ACCESS, "this address is a router's own")
        return self._use("", place, place.name)

    def _use(self, tenant: str, place: ResolvedAddress, key: str) -> LocalNode:
        if not place.is_available:
            raise RefusedError(AmqpCondition.NOT_FOUND, "the address is unavailable")
        # A key with a second `@` may fall under another pattern than the name.
        nodes = self._context.nodes
        node = nodes.find(tenant, key)
        if node is None:
            node = nodes.make(tenant, key, None if "@" in place.name else place.config)
            # If the link is refused after all, the node is not used, and is forgotten.
            self._context.touch(node)
        return node

    def _is_router(self, container: str) -> bool:
        """Return whether a container is another router of the mesh, or the workers of one, reachable or not."""
        return bool(self._context.routes.routers_of(container))

    # ------------------------------------------------------------------------------------------------------ of messages

    def resolve(self, incoming: IncomingLink, to: str) -> tuple[Node | None, str]:
        """Return the node for a message, and the address that its `to` stands for, after aliases.

        Returns: None for the node: no receiver of the address is known.
        Raises: RefusedError: the address can never be served, or the configuration redirects it (§2.8.18); or the
            sender may not send to it, or has a link that cannot be resumed as the address requires.
        """
        lane, only = incoming.lane, incoming.container
        if lane is not None:
            return self._arrived(incoming, lane.tenant, to), to
        node = self._in_use(incoming, to)
        if node is not None:
            return node, to
        if incoming.to is None and only is not None:
            _, container = split(to)
            if container not in (None, only):
                description = "the message's `to` is at another container than the link's target"
                raise RefusedError(AmqpCondition.NOT_ALLOWED, description)
            to = to if container else f"{to}@{only}"
        place = self.place(to)
        if not place.name:
            description = "the message's `to` is a whole container, and no address in it"
            raise RefusedError(AmqpCondition.INVALID_FIELD, description)
        check_address(self._context, incoming.connection, place.name, place.container, sends=True)
        owner = self.owner(tenant_of(incoming), place, sends=True)
        tenant, place, _ = owner
        check_message(incoming, place)
        try:
            if self._is_here(place) and place.config.redirect is not None:
                return self._redirected(incoming, owner), place.address
            return self.route(tenant, place), place.address
        except RefusedError as refusal:
            raise refusal if owner.crossing is None else for_importer(refusal) from None

    def _in_use(self, incoming: IncomingLink, to: str) -> Node | None:
        """Return the node in use whose name is the `to` of a message; None: only the whole look-up tells.

        Without a mesh and a policy nothing else can be meant by a plain name that no pattern gives another meaning.
        """
        context, connection = self._context, incoming.connection
        if (
            context.policy is not None
            or context.routes.is_in_mesh
            or connection.token is not None
            or incoming.container is not None
        ):
            return None
        node = context.nodes.find(tenant_of(incoming) if connection.own else connection.peer.tenant, to)
        if node is None or "@" in to or is_reserved(to):
            return None
        if context.has_detours:
            config = context.nodes.patterns.lookup(to)
            if config is not None and config.is_detour:
                return None
        return node

    def route(self, tenant: str, place: ResolvedAddress) -> Node | None:
        """Return the node for a single message to an address; None: no receiver of it is known.

        Raises: RefusedError: as `target`; or there are too many remote nodes.
        """
        context = self._context
        routes, name, container = context.routes, place.name, place.container
        if place.is_published:  # also for what a router sends for clients, such as dead letters
            raise RefusedError(AmqpCondition.UNAUTHORIZED_ACCESS, "this address is a router's own")
        if not place.is_available:
            raise RefusedError(AmqpCondition.NOT_FOUND, "the address is unavailable")
        if container is not None and container != context.id and not (container in self._own and place.is_reserved):
            if self._is_router(container):
                found = routes.anonymous_route_to(tenant, name, container, place.config)
                context.no_path += found is None
                return found
            if container in self._own:
                return None
            node = self._remote_nodes.node(tenant, name, container)
            if node is None:
                raise RefusedError(AmqpCondition.NOT_FOUND, f"no container {container!r} is known here")
            return context.routes.ingress(node)
        if place.is_reserved:
            tenant = context.nodes.tenant_of_reserved(tenant, name)
        if routes.is_in_mesh and container is None:
            found = routes.anonymous_route(tenant, name, place.config)
        else:
            found = context.nodes.find(tenant, local_key(context.id, name))
        if found is None and place.is_reserved:
            found = answerable(context, tenant, name)
        if found is None and place.is_reserved:
            raise RefusedError(AmqpCondition.NOT_FOUND, "no such node")
        return found

    def of_copy(self, tenant: str, address: str) -> tuple[Node | None, str]:
        """Return the node and the address, as `resolve`, for a copy that the router sends itself; never refuse it."""
        place = self.place(address)
        try:
            tenant, place, _ = self.owner(tenant, place, sends=True)
            if self._is_here(place) and place.config.redirect is not None:
                return self._remote_nodes.ingress(tenant, place.name), place.address
            return self.route(tenant, place), place.address
        except RefusedError:
            return None, place.address

    def _is_here(self, place: ResolvedAddress) -> bool:
        """Return whether this router serves an address itself, perhaps as one of several."""
        return place.container is None or place.container in self._own

    def _redirected(self, incoming: IncomingLink, owner: Owner) -> Node:
        """Return the node of a redirected address. Raises: RefusedError: the client has to follow the redirect."""
        tenant, place, _ = owner
        redirect = place.config.redirect
        assert redirect is not None
        if not follows(place.config, incoming.connection, incoming.endpoint.remote, owner):
            check_here(place.config, place.name)
        return self._context.routes.ingress(self._remote_nodes.node_of_redirect(tenant, place.name, redirect))

    def _arrived(self, incoming: IncomingLink, tenant: str, to: str) -> Node | None:
        """Return the node for a message that a transit lane has brought to its last router; None: it has none.

        Aliases do not apply: the router of the sender has applied its own.
        """
        context = self._context
        name, container = split(to)
        if not (container is None or container in self._own):
            context.no_path += 1
            return None
        place = _resolved(name, container, context.nodes.config(name))
        if place.config.redirect is not None:
            try:
                return self._redirected(incoming, Owner(tenant, place, None))
            except RefusedError as refusal:
                # The lane does not tell messages of importers from those of the exporter.
                raise for_importer(refusal) if self._is_offered(tenant, name) else refusal from None
        if not place.is_available or place.is_published:
            return None
        if place.is_reserved:
            node = context.nodes.find(context.nodes.tenant_of_reserved(tenant, name), name)
            return node or answerable(context, tenant, name)
        return context.nodes.find(tenant, name if container is None else local_key(context.id, name))

    def _is_offered(self, tenant: str, name: str) -> bool:
        policy = self._context.policy
        return policy is not None and policy.exports.is_offered(tenant, name, Use.SEND)


def is_cut_off(context: Context, incoming: IncomingLink) -> bool:
    """Tell whether no path leads now to the one container that the messages of a link go to."""
    container = incoming.container
    if container is None or container in context.config.names:
        return False
    return not any(context.routes.is_reachable(each) for each in context.routes.routers_of(container))


def limit_windows(context: Context) -> None:
    """Suspend the windows of senders while the router drains or the address is cut off; resume the others."""
    for record in context.connections:
        for incoming in record.incoming:
            if isinstance(incoming.pool, FixedCredit):
                incoming.pool.set_suspended(context.draining or is_cut_off(context, incoming))
                context.touch_input(incoming)
