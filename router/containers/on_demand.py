"""Containers that the router connects to on demand: a connection each, shared by all links that go there.

Nobody configured them one by one: a redirect names them, or a domain in an address. So there is a limit to how many,
they are left when nothing has needed them for a while, and a credential is shown only where a connector's own hosts
and policy allow it. To all others the router comes without a name (ANONYMOUS).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from amqpmesh.policies.redirect import Following, NotFollowedError, Place, Stop
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.connector import ConnectorConfig
from amqpmesh.router.config.consistency import free_name
from amqpmesh.router.config.urls import DEFAULT_PORTS, Endpoint
from amqpmesh.router.containers.remote_nodes import RemoteNode
from amqpmesh.router.delivery.link_loss import close_connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from amqpmesh.policies.redirect import Redirect
    from amqpmesh.router.context import Context
    from amqpmesh.router.model.connections import ConnectionRecord


@dataclass(slots=True)
class OnDemandConnection:
    """A place that something needs, or has needed a moment ago."""

    config: ConnectorConfig
    #: Where redirects from there are followed to.
    following: Following
    #: What certificates there have to name; None: the host of the URL.
    certified: str | None
    #: None: a domain, whose servers DNS knows.
    place: Place | None
    #: The configured connector whose credentials are shown there; None: none are.
    origin: str | None = None
    #: No one but peers, by their redirects, has named it.
    redirected: bool = False
    users: dict[object, None] = field(default_factory=dict)
    #: When it is left, if nobody needs it until then; seconds.
    left_at: float | None = None


class Places:
    """Those of a router, by the names of their connectors."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._config = context.config.elsewhere
        self._there: dict[str, OnDemandConnection] = {}
        #: Set by the owner: have a connector at work, with what certificates there have to name; have it end.
        self.on_connect: Callable[[ConnectorConfig, str | None], None] = lambda *_: None
        self.on_disconnect: Callable[[str], None] = lambda _: None

    def __len__(self) -> int:
        return len(self._there)

    def use(self, place: Place, user: object, *, home: str | None = None) -> str:
        """Have a connection there as long as `user` needs it, until it is said to `leave`.

        Args: home: the connector whose redirects have led there: no other's credentials are shown, or connection used,
            since who redirects would use them as if it had them; None: the configuration has.
        Returns: the name of the connector that leads there: a configured one, or one that is made for it.
        Raises: NotFollowedError: there are too many places, or too much goes there; the host is none.
        """
        there = Endpoint("amqps" if place.secure else "amqp", place.network_host, place.port)
        connectors = self._believed(home)
        for connector in connectors:
            same = (connector.hostname or there.host) == place.hostname and connector.places[0].host == place.certified
            if connector.places == (there,) and same:
                return connector.name
        origin = next((each for each in connectors if _may_show(each, place)), None)
        name = self._name(place.described if origin is None else f"{place.described} ({origin.name})")
        try:
            config = self._config_of(origin, str(place), name, place.hostname)
        except ConfigError as error:
            raise NotFollowedError(f"{place.described} is no place to connect to: {error.reason}") from None
        hosts = (place.hostname, place.network_host)
        # With credentials nothing goes to hosts that are not allowed to see them.
        policy = config.following if origin is None else origin.following
        allowed = replace(policy, own=(*policy.own, *hosts))
        shown_as = origin.name if origin is not None else None
        wanted = OnDemandConnection(config, allowed, place.certified, place, shown_as, redirected=home is not None)
        return self._occupy(wanted, user)

    def use_domain(self, domain: str, user: object) -> str:
        """The same for a domain, whose servers DNS knows, or for the configured connector that names it."""
        domain = domain.lower().removesuffix(".")
        for connector in self._connectors():
            if any(each.host.lower() == domain for each in connector.places):
                return connector.name
        urls = (f"amqps+srv://{domain}", f"amqp+srv://{domain}")
        try:
            config = self._config_of(None, urls, self._name(f"@{domain}"), None)
        except ConfigError as error:
            raise NotFollowedError(f"{domain} is no domain: {error.reason}") from None
        return self._occupy(OnDemandConnection(config, config.following, None, None), user)

    def is_redirected(self, name: str) -> bool:
        """Whether peers alone have named the place of a connector. Args: name: the connector's."""
        there = self._there.get(name)
        return there is not None and there.redirected

    def leave(self, name: str, user: object) -> None:
        """It is not needed for `user` any more."""
        there = self._there.get(name)
        if there is None or there.users.pop(user, 0) == 0 or there.users:
            return
        there.left_at = self._context.now + self._config.idle
        self._context.schedule(there.left_at, partial(self._part, name, there, there.left_at))

    def next_stop(self, home: str, stop: Stop | None, record: ConnectionRecord, node: str, redirect: Redirect) -> Stop:
        """Where a redirect leads a link. Args: home: the connector that it belongs to. stop: where it is by redirects.

        Raises: NotFollowedError: it is not followed.
        """
        there = self._there.get(home)
        if there is not None:
            policy = there.following
        else:
            policy = next(each for each in self._connectors() if each.name == home).following
        return policy.follow(stop or Stop(self._place_of(record), node), redirect)

    def _occupy(self, wanted: OnDemandConnection, user: object) -> str:
        name = wanted.config.name
        there = self._there.get(name)
        if there is None:
            if len(self._there) >= self._config.places:
                raise NotFollowedError(f"more than {self._config.places} places elsewhere")
            there = self._there[name] = wanted
            self.on_connect(wanted.config, wanted.certified)
        elif len(there.users) >= self._config.nodes and user not in there.users and not _make_room(there, user):
            raise NotFollowedError(f"more than {self._config.nodes} nodes at {name}")
        there.users[user] = None
        there.redirected = there.redirected and wanted.redirected
        there.left_at = None
        return name

    def _part(self, name: str, there: OnDemandConnection, at: float) -> None:
        """Nobody has needed it for a while: close the connection."""
        if there.left_at != at or self._there.get(name) is not there:
            return
        del self._there[name]
        self.on_disconnect(name)
        for record in list(self._context.connections):
            if record.connector is not None and record.connector.name == name and not record.lost:
                close_connection(self._context, record, None)

    def _name(self, stem: str) -> str:
        """Of a connector that is made, always the same of one place, and none that is configured has it."""
        return free_name(stem, [each.name for each in self._context.config.connectors])

    def _connectors(self) -> list[ConnectorConfig]:
        """The configured ones to containers."""
        return [each for each in self._context.config.connectors if not each.is_mesh]

    def _believed(self, home: str | None) -> list[ConnectorConfig]:
        """Those of them whose credentials may be shown where redirects of `home` lead."""
        there = self._there.get(home) if home is not None else None
        name = home if there is None else there.origin
        return [each for each in self._connectors() if home is None or each.name == name]

    def _config_of(
        self, origin: ConnectorConfig | None, url: str | tuple[str, ...], name: str, hostname: str | None
    ) -> ConnectorConfig:
        """Raises: ConfigError: there is no such URL."""
        # A session for each link each way, as far as the peer lets us.
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

    def _place_of(self, record: ConnectionRecord) -> Place:
        """Where a connection of ours goes, as far as a redirect may leave that unsaid."""
        config = record.connector
        assert config is not None, "the router has opened it"
        there = self._there.get(config.name)
        if there is not None and there.place is not None:
            return there.place
        found = next((each for each in config.places if each.host == record.host), config.places[0])
        secure = found.secure or record.tls is not None
        port = found.port if isinstance(found, Endpoint) else DEFAULT_PORTS["amqps" if secure else "amqp"]
        hostname = config.hostname or found.host
        return Place(network_host=record.host, port=port, secure=secure, hostname=hostname, certified=found.host)


def _make_room(there: OnDemandConnection, user: object) -> bool:
    """Let go of the node that nobody has needed for longest: whoever made up names keeps nobody from a place.

    Args: user: who wants the room; a link that is led there does not cost its own node.
    Returns: whether there was one.
    """
    nodes = [each for each in there.users if isinstance(each, RemoteNode) and not each.has(user)]
    idle = [(since, each) for each in nodes if (since := each.idle_since()) is not None]
    return any(each.let_go() for _, each in sorted(idle, key=itemgetter(0)))


def _may_show(connector: ConnectorConfig, place: Place) -> bool:
    """Whether a connector's credentials may be shown at a place: its hosts are allowed, and TLS is not given up."""
    policy = connector.following
    return (
        policy.allows(place.network_host) and policy.allows(place.hostname) and (place.secure or not connector.secure)
    )
