"""Connections that the router makes on demand to other containers, each shared by all links to one place.

The configuration does not list these places: a redirect names them, or the domain in an address. So their number is
limited, and a connection is closed when no link has needed it for a while. The router shows credentials only where the
hosts and the policy of a configured connector allow it. At all other places it logs in without a name (ANONYMOUS).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from amqpmesh.policies.redirect import NotFollowedError, PeerAddress, RedirectChain, RedirectPolicy
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.connector import ConnectorConfig
from amqpmesh.router.config.consistency import free_name
from amqpmesh.router.config.urls import DEFAULT_PORTS, Endpoint
from amqpmesh.router.containers.remote_nodes import RemoteNode
from amqpmesh.router.delivery.link_loss import close_connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.policies.redirect import Redirect
    from amqpmesh.router.config.redirect import ElsewhereConfig
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord


@dataclass(slots=True)
class OnDemandConnection:
    """A connection that something needs, or needed a moment ago."""

    config: ConnectorConfig
    #: The policy for redirects from this place.
    redirect_policy: RedirectPolicy
    #: The name that the certificate must have; None: the host of the URL.
    certified: str | None
    #: The place; None: a server of a domain, which DNS names.
    place: PeerAddress | None
    #: The configured connector whose credentials are shown; None: none are shown.
    origin: str | None = None
    #: True if only redirects of peers have named the place.
    redirected: bool = False
    #: The tenant of each user, by its key.
    users: dict[object, str] = field(default_factory=dict)
    #: The number of users of each tenant; of a connection that is not used, the tenant that used it last.
    tenants: dict[str, int] = field(default_factory=dict)
    #: The time when the connection is closed if nothing needs it until then, seconds.
    left_at: float | None = None


class OnDemandConnections:
    """The on-demand connections of a router, by the names of their connectors."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._config = context.config.elsewhere
        self._connections: dict[str, OnDemandConnection] = {}
        #: Set by the owner. `on_connect`: start a connector; the certificate must have the given name, if there is one.
        #: `on_disconnect`: stop the connector of a name.
        self.on_connect: Callable[[ConnectorConfig, str | None], None] = lambda *_: None
        self.on_disconnect: Callable[[str], None] = lambda _: None

    def __len__(self) -> int:
        return len(self._connections)

    def renew(self, config: ElsewhereConfig) -> None:
        """Have other limits from now on. What exists stays."""
        self._config = config

    def use(self, place: PeerAddress, user: object, tenant: str, *, home: str | None = None) -> str:
        """Provide a connection to a place until `user` leaves it (`leave`).

        Args: tenant: the user's, by its key. home: the connector whose redirects lead to the place; None: the
            configuration names it. With `home`, only the credentials and the connection of this connector are used: by
            a redirect a peer must not use those of other connectors.
        Returns: the name of the connector: a configured one, or one made for the place.
        Raises: NotFollowedError: the tenant has too many places, or too many users of this one; or the host is
            invalid.
        """
        endpoint = Endpoint("amqps" if place.secure else "amqp", place.network_host, place.port)
        connectors = self._usable_connectors(home)
        for connector in connectors:
            names = connector.hostname or endpoint.host, connector.places[0].host
            if connector.places == (endpoint,) and names == (place.hostname, place.certified):
                return connector.name
        origin = next((each for each in connectors if _may_show(each, place)), None)
        name = self._name(place.described if origin is None else f"{place.described} ({origin.name})")
        try:
            config = self._config_of(origin, str(place), name, place.hostname)
        except ConfigError as error:
            raise NotFollowedError(f"{place.described} is no place to connect to: {error.reason}") from None
        hosts = (place.hostname, place.network_host)
        # With credentials, redirects are followed only to hosts that may see the credentials.
        policy = config.redirect_policy if origin is None else origin.redirect_policy
        allowed = replace(policy, own=(*policy.own, *hosts))
        shown_as = origin.name if origin is not None else None
        wanted = OnDemandConnection(config, allowed, place.certified, place, shown_as, redirected=home is not None)
        return self._use_connection(wanted, user, tenant)

    def use_domain(self, domain: str, user: object, tenant: str) -> str:
        """Provide a connection to a domain: by a configured connector to its host, or to the servers that DNS names."""
        domain = domain.lower().removesuffix(".")
        for connector in self._connectors():
            if any(each.host.lower() == domain for each in connector.places):
                return connector.name
        urls = (f"amqps+srv://{domain}", f"amqp+srv://{domain}")
        try:
            config = self._config_of(None, urls, self._name(f"@{domain}"), None)
        except ConfigError as error:
            raise NotFollowedError(f"{domain} is no domain: {error.reason}") from None
        return self._use_connection(OnDemandConnection(config, config.redirect_policy, None, None), user, tenant)

    def is_redirected(self, name: str) -> bool:
        """Return whether only redirects of peers have named the place of a connector. Args: name: the connector's."""
        connection = self._connections.get(name)
        return connection is not None and connection.redirected

    def leave(self, name: str, user: object) -> None:
        """Note that `user` no longer needs the connection. Args: name: the connector's."""
        connection = self._connections.get(name)
        tenant = None if connection is None else connection.users.pop(user, None)
        if connection is None or tenant is None:
            return
        connection.tenants[tenant] -= 1
        if connection.users:
            if not connection.tenants[tenant]:
                del connection.tenants[tenant]
            return
        connection.left_at = self._context.now + self._config.idle
        self._context.schedule(connection.left_at, partial(self._close_if_idle, name, connection, connection.left_at))

    def extend_chain(
        self, home: str, chain: RedirectChain | None, record: ConnectionRecord, node: str, redirect: Redirect
    ) -> RedirectChain:
        """Return the redirects that a link has followed, with one more.

        Args: home: the connector that the link belongs to. chain: the redirects that the link has followed.
        Raises: NotFollowedError: the redirect is not followed.
        """
        connection = self._connections.get(home)
        if connection is not None:
            policy = connection.redirect_policy
        else:
            policy = next(each for each in self._connectors() if each.name == home).redirect_policy
        return policy.follow(chain or RedirectChain(self._place_of(record), node), redirect)

    def _use_connection(self, wanted: OnDemandConnection, user: object, tenant: str) -> str:
        name = wanted.config.name
        connection = self._connections.get(name)
        if connection is None or tenant not in connection.tenants:
            most = self._part(self._config.places)
            if sum(tenant in each.tenants for each in self._connections.values()) >= most:
                raise NotFollowedError(f"more than {most} places elsewhere")
        if connection is None:
            connection = self._connections[name] = wanted
            self.on_connect(wanted.config, wanted.certified)
        elif user not in connection.users:
            most = self._part(self._config.nodes)
            if connection.tenants.get(tenant, 0) >= most and not _make_room(connection, user, tenant):
                raise NotFollowedError(f"more than {most} nodes at {name}")
        if user not in connection.users:
            if not connection.users:
                connection.tenants.clear()
            connection.users[user] = tenant
            connection.tenants[tenant] = connection.tenants.get(tenant, 0) + 1
        connection.redirected = connection.redirected and wanted.redirected
        connection.left_at = None
        return name

    def _part(self, limit: int) -> int:
        """Return what one tenant has of a limit, whatever the others use."""
        policy = self._context.policy
        return limit if policy is None else policy.part(limit)

    def _close_if_idle(self, name: str, connection: OnDemandConnection, at: float) -> None:
        """Close a connection that nothing has needed for a while."""
        if connection.left_at != at or self._connections.get(name) is not connection:
            return
        del self._connections[name]
        self.on_disconnect(name)
        for record in list(self._context.connections):
            if record.connector is not None and record.connector.name == name and not record.lost:
                close_connection(self._context, record, None)

    def _name(self, stem: str) -> str:
        """Return the name for a connector of this router's own making: always the same for one place, and not a
        configured one.
        """
        return free_name(stem, [each.name for each in self._context.config.connectors])

    def _connectors(self) -> list[ConnectorConfig]:
        """Return the configured connectors to containers."""
        return [each for each in self._context.config.connectors if not each.is_mesh]

    def _usable_connectors(self, home: str | None) -> list[ConnectorConfig]:
        """Return the configured connectors whose connection or credentials may be used for a place.

        Args: home: the connector whose redirects led to the place. Then only this connector may be used; if it is an
            on-demand connector, only the configured one that lends it its credentials. None: the configuration names
            the place, so all may be used.
        """
        connection = self._connections.get(home) if home is not None else None
        name = home if connection is None else connection.origin
        return [each for each in self._connectors() if home is None or each.name == name]

    def _config_of(
        self, origin: ConnectorConfig | None, url: str | tuple[str, ...], name: str, hostname: str | None
    ) -> ConnectorConfig:
        """Make the configuration of a connector. Raises: ConfigError: the URL is invalid."""
        # A session for each link, and two links for each node, as far as the peer permits it.
        channel_max = min(2**16 - 1, 2 * self._config.nodes)
        if origin is not None:
            return replace(origin, url=url, name=name, hostname=hostname, channel_max=channel_max)
        limits = {**self._context.config.limits(), "channel_max": channel_max}
        return ConnectorConfig(
            url=url,
            name=name,
            hostname=hostname,
            role="container",
            redirects=self._config.redirects,
            **limits,  # type: ignore[arg-type]  # numbers
        )

    def _place_of(self, record: ConnectionRecord) -> PeerAddress:
        """Return the place of a connection that this router opened: a redirect may leave parts of it unchanged."""
        config = record.connector
        assert config is not None, "the router has opened it"
        connection = self._connections.get(config.name)
        if connection is not None and connection.place is not None:
            return connection.place
        found = next((each for each in config.places if each.host == record.host), config.places[0])
        secure = found.secure or record.tls is not None
        port = found.port if isinstance(found, Endpoint) else DEFAULT_PORTS["amqps" if secure else "amqp"]
        hostname = config.hostname or found.host
        return PeerAddress(network_host=record.host, port=port, secure=secure, hostname=hostname, certified=found.host)


def _make_room(connection: OnDemandConnection, user: object, tenant: str) -> bool:
    """Remove the node of a tenant that has been idle the longest: nodes of made-up names must not keep others from a
    place.

    Args: user: the user that needs the room. If it is a link, its own node stays.
    Returns: whether a node was removed.
    """
    nodes = [
        each
        for each, of in connection.users.items()
        if of == tenant and isinstance(each, RemoteNode) and not each.has(user)
    ]
    idle = [(since, each) for each in nodes if (since := each.idle_since()) is not None]
    return any(each.let_go() for _, each in sorted(idle, key=itemgetter(0)))


def _may_show(connector: ConnectorConfig, place: PeerAddress) -> bool:
    """Return whether a connector's credentials may be shown at a place.

    The connector's policy must allow the hosts, and a connector with TLS demands TLS of the place.
    """
    policy = connector.redirect_policy
    return (
        policy.allows(place.network_host) and policy.allows(place.hostname) and (place.secure or not connector.secure)
    )
