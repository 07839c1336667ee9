"""Other containers: redirects of peers to them (§2.8.16, §2.8.18), and connections to them on demand."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from amqpmesh.policies.redirect import PeerAddress, Redirect, pattern_refusal
from amqpmesh.router.config.limits import USHORT_MAX
from amqpmesh.router.config.tables import Effect, Rule, Table, emptiness, setting, table
from amqpmesh.router.config.urls import DEFAULT_PORTS

Follower = Literal["client", "router"]
Scheme = Literal["amqp", "amqps"]

MAX_HOST = 255
"""Characters of a host name: DNS allows no more, and the error that names it has to fit into a frame."""


def _host_refusal(host: str) -> str | None:
    if len(host) > MAX_HOST:
        return f"must be at most {MAX_HOST} characters"
    if any(character.isspace() or not character.isprintable() for character in host):
        return "has spaces or control characters"
    return emptiness(host)


def _says_nothing(config: "PlaceConfig") -> bool:
    return config.place == Redirect()


@table
class PlaceConfig(Table):
    """The container to which a whole connection is redirected (§2.8.16)."""

    EFFECT = Effect.NEW_CONNECTIONS

    hostname: str | None = setting(default=None, check=_host_refusal)
    network_host: str | None = setting(default=None, check=_host_refusal)
    port: int | None = setting(default=None, low=1, high=USHORT_MAX)

    @property
    def place(self) -> Redirect:
        """The redirect that peers are sent."""
        return Redirect(hostname=self.hostname, network_host=self.network_host, port=self.port)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("hostname", "is required, or network_host, or port: a redirect names a place", _says_nothing),
    )


@table
class RedirectConfig(PlaceConfig):
    """The container to which the links of an address are redirected, and the address there (§2.8.18)."""

    EFFECT = Effect.NEW_LINKS

    address: str | None = setting(default=None, check=emptiness)
    follow: Follower = setting(default="client")
    scheme: Scheme | None = setting(default=None)

    @property
    def is_followed(self) -> bool:
        """True if the router itself follows the redirect for its clients."""
        return self.follow == "router"

    @property
    def peer_address(self) -> PeerAddress:
        """The place that the router connects to, if it follows the redirect."""
        host = self.network_host or self.hostname
        assert host is not None, "a rule demands one"
        secure = self.scheme == "amqps" if self.scheme is not None else self.port == DEFAULT_PORTS["amqps"]
        hostname = self.hostname or host
        return PeerAddress(
            network_host=host,
            port=self.port or DEFAULT_PORTS["amqps" if secure else "amqp"],
            secure=secure,
            hostname=hostname,
            certified=hostname,
        )

    @property
    def place(self) -> Redirect:
        """The redirect that peers are sent; without an address of its own, each peer keeps the one it asked for."""
        return Redirect(hostname=self.hostname, network_host=self.network_host, port=self.port, address=self.address)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "hostname",
            "is required, or network_host, port or address: a redirect names a place",
            _says_nothing,
        ),
        Rule(
            "hostname",
            'is required, or network_host, with follow = "router": the place to connect to',
            lambda c: c.is_followed and (c.hostname or c.network_host) is None,
        ),
        Rule(
            "scheme",
            'does nothing without follow = "router": a client is told of no scheme',
            lambda c: c.scheme is not None and not c.is_followed,
        ),
    )


def _hosts_refusal(patterns: Sequence[str]) -> str | None:
    return pattern_refusal(patterns) or ("names one twice" if len(set(patterns)) < len(patterns) else None)


@table
class ElsewhereConfig(Table):
    """The limits of connections on demand: clients choose the destinations."""

    EFFECT = Effect.AT_ONCE

    domains: tuple[str, ...] = setting(default=(), check=_hosts_refusal, effect=Effect.NEW_LINKS)
    redirects: tuple[str, ...] = setting(default=(), check=_hosts_refusal, effect=Effect.NEW_CONNECTIONS)
    places: int = setting(default=64, low=1, high=10_000)
    nodes: int = setting(default=256, low=1, high=30_000)
    idle: float = setting(default=30.0, low=0.0, high=3600.0)
