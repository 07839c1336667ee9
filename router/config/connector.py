"""Connectors, which open connections, and the links on them."""

import re
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Literal

from amqpmesh.policies.access import PREFIXES, is_reserved
from amqpmesh.policies.redirect import RedirectPolicy, pattern_refusal
from amqpmesh.router.address_syntax import split
from amqpmesh.router.amqp.standard.messaging import DistributionMode, TerminusExpiryPolicy
from amqpmesh.router.config.limits import USHORT_MAX, Limits
from amqpmesh.router.config.tables import Effect, Rule, Table, emptiness, setting, table
from amqpmesh.router.config.urls import Endpoint, Service, place

ConnectorRole = Literal["mesh", "container"]
Durability = Literal["none", "configuration", "unsettled-state"]


class Watch(StrEnum):
    """The use of a receiver without credit beside a sender, which shows that the node exists."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def _without_user(url: str) -> str:
    """Return a URL without user and password, which are in none: errors must not repeat them."""
    scheme, slashes, rest = url.rpartition("//")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}"


def _url_refusal(url: str | tuple[str, ...]) -> str | None:
    urls = (url,) if isinstance(url, str) else url
    if not urls:
        return "must not be empty"
    for position, each in enumerate(urls):
        try:
            found = place(each)
        except ValueError as error:
            return f"{_without_user(each)!r} {error}"
        if isinstance(found, Endpoint) and not (found.port or found.is_unix):
            return f"{each!r} needs a port to connect to"
        if each in urls[:position]:
            return f"names {each} twice"
    return None


def _address_refusal(address: str) -> str | None:
    if is_reserved(address):
        return f"addresses that begin with {' or '.join(PREFIXES)} are the router's own"
    if split(address)[1] is not None:
        return "names a container: it is an address of the whole mesh"
    return emptiness(address)


def _capabilities_refusal(capabilities: tuple[str, ...]) -> str | None:
    if not all(re.fullmatch(r"[!-~]+", each) for each in capabilities):
        return "must be printable ASCII without spaces, each, and not empty"
    return "names one twice" if len(set(capabilities)) < len(capabilities) else None


@table
class ConnectorTlsConfig(Table):
    """TLS of a connector: the certificates that it trusts, and its own (§5.2). All files are PEM."""

    EFFECT = Effect.NEW_CONNECTIONS

    certificate: Path | None = setting(default=None)
    key: Path | None = setting(default=None)
    trust: Path | None = setting(default=None)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("key", "is required with certificate", lambda c: c.certificate is not None and c.key is None),
        Rule("certificate", "is required with key", lambda c: c.key is not None and c.certificate is None),
    )


@table
class PasswordConfig(Table):
    """The source of a password. The password itself is not in the configuration, which is shown to people."""

    EFFECT = Effect.NEW_CONNECTIONS

    file: Path | None = setting(default=None)
    env: str | None = setting(default=None, check=emptiness)

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("file", "is required, or env: the place of the password", lambda c: c.file is None and c.env is None),
        Rule("env", "excludes file: give one of them", lambda c: c.file is not None and c.env is not None),
    )


@table
class ConnectorConfig(Limits):
    """A connector: the address to connect to, the role, and the credentials.

    With a `user` it authenticates by SCRAM, or under TLS by PLAIN; otherwise by its certificate (EXTERNAL), or without
    credentials (ANONYMOUS).
    """

    EFFECT = Effect.NEW_CONNECTIONS

    url: str | tuple[str, ...] = setting(check=_url_refusal, effect=Effect.AT_ONCE)
    name: str = setting(default="", effect=Effect.AT_ONCE)
    role: ConnectorRole = setting(default="mesh", effect=Effect.AT_ONCE)
    cost: int | None = setting(default=None, low=1, high=USHORT_MAX, effect=Effect.AT_ONCE)
    tls: ConnectorTlsConfig | None = setting(default=None)
    user: str | None = setting(default=None, check=emptiness)
    password: PasswordConfig | None = setting(default=None)
    hostname: str | None = setting(default=None)
    redirects: tuple[str, ...] = setting(default=(), check=pattern_refusal)
    trace_frames: bool = setting(default=False)

    def __post_init__(self) -> None:
        """Check the table."""
        if not isinstance(self.url, str):
            object.__setattr__(self, "url", tuple(self.url))
        super().__post_init__()

    @property
    def places(self) -> tuple[Endpoint | Service, ...]:
        """The parsed URLs, in the order in which they are tried."""
        return tuple(place(url) for url in ((self.url,) if isinstance(self.url, str) else self.url))

    @property
    def redirect_policy(self) -> RedirectPolicy:
        """The rules for redirects of its connections: to hosts that it names."""
        named = (*(each.host for each in self.places), *((self.hostname,) if self.hostname else ()))
        return RedirectPolicy(own=tuple(dict.fromkeys(named)), allowed=self.redirects)

    @property
    def is_mesh(self) -> bool:
        """True if it leads to a router of the mesh."""
        return self.role == "mesh"

    @property
    def shows_certificate(self) -> bool:
        """True if it has a certificate for peers that request one in TLS."""
        return self.is_mesh or (self.tls is not None and self.tls.certificate is not None)

    @property
    def secure(self) -> bool:
        """True if one of the URLs uses TLS."""
        return any(each.secure for each in self.places)

    @property
    def has_websocket(self) -> bool:
        """True if AMQP goes through a WebSocket at one of the URLs."""
        return any(isinstance(each, Endpoint) and each.is_websocket for each in self.places)

    RULES: ClassVar[tuple[Rule, ...]] = (
        *(
            Rule(key, 'does nothing with role = "mesh": [mesh] sets how neighbours authenticate', broken)
            for key, broken in (
                ("tls", lambda c: c.is_mesh and c.tls is not None),
                ("user", lambda c: c.is_mesh and c.user is not None),
                ("password", lambda c: c.is_mesh and c.password is not None),
            )
        ),
        Rule("cost", 'does nothing with role = "container"', lambda c: not c.is_mesh and c.cost is not None),
        Rule("role", 'must be "container" with ws and wss', lambda c: c.is_mesh and c.has_websocket),
        Rule("tls", "does nothing without amqps or wss", lambda c: c.tls is not None and not c.secure),
        Rule("password", "is required with user", lambda c: c.user is not None and c.password is None),
        Rule("user", "is required with password", lambda c: c.password is not None and c.user is None),
    )


@table
class LinkConfig(Table):
    """A link to a node of another container. It feeds an address of the mesh, or is fed by it."""

    EFFECT = Effect.AT_ONCE

    connector: str = setting(check=emptiness)
    name: str = setting(default="")
    source: str | None = setting(default=None, check=emptiness)
    target: str | None = setting(default=None, check=emptiness)
    address: str = setting(check=_address_refusal)
    capabilities: tuple[str, ...] = setting(default=(), check=_capabilities_refusal)
    durable: Durability = setting(default="none")
    expiry_policy: TerminusExpiryPolicy = setting(default=TerminusExpiryPolicy.SESSION_END)
    distribution_mode: DistributionMode | None = setting(default=None)
    selector: str | None = setting(default=None, check=emptiness)
    watch: Watch = setting(default=Watch.AUTO)

    RULES: ClassVar[tuple[Rule, ...]] = (
        *(
            Rule(key, "is for a source: it does nothing with target", broken)
            for key, broken in (
                ("distribution_mode", lambda c: c.source is None and c.distribution_mode is not None),
                ("selector", lambda c: c.source is None and c.selector is not None),
            )
        ),
        Rule(
            "watch",
            "is for a target: it does nothing with source",
            lambda c: c.target is None and c.watch is not Watch.AUTO,
        ),
        Rule(
            "source",
            "is required, or target: the node of the other container",
            lambda c: c.source is None and c.target is None,
        ),
        Rule(
            "target",
            "excludes source: a link goes one way",
            lambda c: c.source is not None and c.target is not None,
        ),
    )
