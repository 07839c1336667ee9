"""Where peers are sent instead of being served (§2.8.16, §2.8.18)."""

from typing import ClassVar, Literal

from amqpmesh.policies.redirect import Place, Redirect
from amqpmesh.router.config.limits import USHORT_MAX
from amqpmesh.router.config.tables import Rule, Table, emptiness, setting, table
from amqpmesh.router.config.urls import DEFAULT_PORTS

Follower = Literal["client", "router"]
Scheme = Literal["amqp", "amqps"]

MAX_HOST = 255
"""Characters of a host's name: DNS has no longer one, and the error with it has to fit into a frame."""


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
    """The container to which a whole connection is sent (§2.8.16)."""

    hostname: str | None = setting(default=None, check=_host_refusal)
    network_host: str | None = setting(default=None, check=_host_refusal)
    port: int | None = setting(default=None, low=1, high=USHORT_MAX)

    @property
    def place(self) -> Redirect:
        """As peers are told."""
        return Redirect(hostname=self.hostname, network_host=self.network_host, port=self.port)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("hostname", "is needed, or network_host, or port: it must say where", _says_nothing),
    )


@table
class RedirectConfig(PlaceConfig):
    """The container to which the links of an address are sent, and the address there (§2.8.18)."""

    address: str | None = setting(default=None, check=emptiness)
    follow: Follower = setting(default="client")
    scheme: Scheme | None = setting(default=None)

    @property
    def is_followed(self) -> bool:
        """Whether the router itself goes there for its clients."""
        return self.follow == "router"

    @property
    def there(self) -> Place:
        """Where the router connects. Only of a redirect that it follows."""
        host = self.network_host or self.hostname
        assert host is not None, "a rule demands one"
        secure = self.scheme == "amqps" if self.scheme is not None else self.port == DEFAULT_PORTS["amqps"]
        hostname = self.hostname or host
        return Place(
            network_host=host,
            port=self.port or DEFAULT_PORTS["amqps" if secure else "amqp"],
            secure=secure,
            hostname=hostname,
            certified=hostname,
        )

    @property
    def place(self) -> Redirect:
        """As peers are told, but for the address of who names none here."""
        return Redirect(hostname=self.hostname, network_host=self.network_host, port=self.port, address=self.address)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "hostname",
            "is needed, or network_host, port or address: it must say where",
            _says_nothing,
        ),
        Rule(
            "hostname",
            'is needed, or network_host, with follow = "router": where it connects',
            lambda c: c.is_followed and (c.hostname or c.network_host) is None,
        ),
        Rule(
            "scheme",
            'does nothing without follow = "router": a client is told of no scheme',
            lambda c: c.scheme is not None and not c.is_followed,
        ),
    )
