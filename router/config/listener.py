"""Listeners, which accept connections, and their authentication of peers."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from amqpmesh.router.config.connector import PasswordConfig
from amqpmesh.router.config.http import HTTP_MECHANISMS, HttpConfig, WebSocketConfig, host_refusal, origin_refusal
from amqpmesh.router.config.limits import USHORT_MAX, Limits
from amqpmesh.router.config.redirect import PlaceConfig
from amqpmesh.router.config.tables import Effect, Rule, Table, emptiness, setting, table
from amqpmesh.router.config.urls import Endpoint, endpoint
from amqpmesh.router.config.user_checks import UserCheck

MECHANISMS = (
    "ANONYMOUS",
    "PLAIN",
    "EXTERNAL",
    "SCRAM-SHA-1",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    "OAUTHBEARER",
    "XOAUTH2",
    "MSSBCBS",
)
PASSWORD_MECHANISMS = frozenset({"PLAIN", "SCRAM-SHA-1", "SCRAM-SHA-256", "SCRAM-SHA-512"})
TOKEN_MECHANISMS = ("OAUTHBEARER", "XOAUTH2", "MSSBCBS")
"""The mechanisms that need a token, at once or later."""

_TOKENS_UNDER_TLS = "tokens are taken under TLS, or on loopback: set tls, or say insecure = true"

ClientCertificate = Literal["none", "optional", "required"]
ListenerRole = Literal["normal", "mesh", "http"]


def _url_refusal(url: str) -> str | None:
    try:
        endpoint(url)
    except ValueError as error:
        return str(error)
    return None


def _sasl_refusal(mechanisms: Sequence[str]) -> str | None:
    unknown = [name for name in mechanisms if name not in MECHANISMS]
    if unknown:
        return f"unknown mechanism {unknown[0]!r}; known are {', '.join(MECHANISMS)}"
    return "names a mechanism twice" if len(set(mechanisms)) < len(mechanisms) else None


@table
class TlsConfig(Table):
    """TLS of a listener: its certificate, and its demands on clients (§5.2). All files are PEM."""

    EFFECT = Effect.NEW_CONNECTIONS

    certificate: Path = setting()
    key: Path = setting()
    trust: Path | None = setting(default=None)
    client: ClientCertificate = setting(default="none")
    key_password: PasswordConfig | None = setting(default=None)
    minimum: Literal["1.2", "1.3"] = setting(default="1.2")
    ciphers: str | None = setting(default=None, check=emptiness)
    revoked: Path | None = setting(default=None)
    user: Literal["any", "dns", "email", "uri", "ip", "common-name"] = setting(default="any")

    @property
    def asks_clients(self) -> bool:
        """True if clients are asked for a certificate."""
        return self.client != "none"

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("trust", "is required to verify the certificates of clients", lambda c: c.asks_clients and not c.trust),
        Rule("trust", 'does nothing with client = "none"', lambda c: c.trust is not None and not c.asks_clients),
        Rule("revoked", 'does nothing with client = "none"', lambda c: c.revoked is not None and not c.asks_clients),
        Rule("user", 'does nothing with client = "none"', lambda c: c.user != "any" and not c.asks_clients),
        Rule("ciphers", 'are of TLS 1.2 only: leave minimum at "1.2"', lambda c: c.ciphers and c.minimum != "1.2"),
    )


@table
class ListenerConfig(Limits):
    """A listener: the address for clients or neighbours, and their authentication.

    `[mesh]` rules the authentication of neighbours: by TLS with a certificate of the mesh, or not at all.
    """

    EFFECT = Effect.NEW_CONNECTIONS

    url: str = setting(check=_url_refusal, effect=Effect.BOUND_ANEW)
    name: str = setting(default="")
    role: ListenerRole = setting(default="normal", effect=Effect.BOUND_ANEW)
    cost: int | None = setting(default=None, low=1, high=USHORT_MAX, effect=Effect.AT_ONCE)
    connections: int = setting(default=10_000, low=1, effect=Effect.AT_ONCE)
    sasl: tuple[str, ...] = setting(default=("ANONYMOUS",), check=_sasl_refusal)
    users: Path | tuple[Path, ...] | UserCheck | None = setting(default=None, effect=Effect.AT_ONCE)
    tls: TlsConfig | None = setting(default=None)
    insecure: bool = setting(default=False)
    strict_annotations: bool = setting(default=False)
    redirect: PlaceConfig | None = setting(default=None)
    manage: bool = setting(default=False, effect=Effect.AT_ONCE)
    cbs: bool = setting(default=False)
    trace_frames: bool = setting(default=False)
    hosts: tuple[str, ...] = setting(default=(), check=host_refusal)
    origins: tuple[str, ...] = setting(default=(), check=origin_refusal)
    http: HttpConfig | None = setting(default=None)
    amqp: bool = setting(default=False)
    websocket: WebSocketConfig | None = setting(default=None)

    @property
    def users_files(self) -> tuple[Path, ...]:
        """The files of its users."""
        if self.users is None or callable(self.users):
            return ()
        return self.users if isinstance(self.users, tuple) else (self.users,)

    @property
    def user_check(self) -> UserCheck | None:
        """The function that checks its users; None: there is none."""
        return self.users if callable(self.users) else None

    @property
    def endpoint(self) -> Endpoint:
        """The parsed URL."""
        return endpoint(self.url)

    @property
    def is_mesh(self) -> bool:
        """True if other routers of the mesh connect here."""
        return self.role == "mesh"

    @property
    def is_http(self) -> bool:
        """True if it speaks HTTP."""
        return self.role == "http"

    @property
    def http_limits(self) -> HttpConfig:
        """The limits of its connections, if it speaks HTTP."""
        return HttpConfig() if self.http is None else self.http

    @property
    def websocket_limits(self) -> WebSocketConfig:
        """The limits of its connections, if AMQP goes through WebSockets here."""
        return WebSocketConfig() if self.websocket is None else self.websocket

    @property
    def _has_pages(self) -> bool:
        """True if pages in a browser can reach it."""
        return self.is_http or self.endpoint.is_websocket

    @property
    def sasl_demanded(self) -> bool:
        """True if a connection has to begin with the SASL layer (§5.3): not if anonymous peers are allowed."""
        return bool(self.sasl) and "ANONYMOUS" not in self.sasl

    @property
    def takes_passwords(self) -> bool:
        """True if it offers a mechanism that needs `users`."""
        return not PASSWORD_MECHANISMS.isdisjoint(self.sasl)

    @property
    def has_scram(self) -> bool:
        """True if it offers a mechanism that needs verifiers of passwords."""
        return any(name.startswith("SCRAM-") for name in self.sasl)

    @property
    def bearers(self) -> tuple[str, ...]:
        """The mechanisms that it offers by which a client shows a token at its login."""
        return tuple(name for name in self.sasl if name in ("OAUTHBEARER", "XOAUTH2"))

    def takes_tokens(self, *, secured: bool) -> bool:
        """Tell whether a client may show a token. Args: secured: it came by TLS."""
        return secured or self.insecure or self.endpoint.loopback

    def mechanisms(self, *, secured: bool) -> tuple[str, ...]:
        """Return the mechanisms to offer a client, in the order of `sasl`.

        Args: secured: the client came by TLS. Without TLS a password would cross the network in clear text, and there
            is no certificate to check, so PLAIN (unless the listener is `insecure`) and EXTERNAL are not offered. A
            token may cross a loopback network, too.
        Returns: for an empty `sasl`, ANONYMOUS: a peer that starts the SASL layer needs an offer.
        """
        if self.is_mesh and secured:
            return ("EXTERNAL",)
        if not self.sasl:
            return ("ANONYMOUS",)
        hidden = set() if secured else {"EXTERNAL"} if self.insecure else {"EXTERNAL", "PLAIN"}
        if not self.takes_tokens(secured=secured):
            hidden.update(TOKEN_MECHANISMS)
        return tuple(name for name in self.sasl if name not in hidden)

    @property
    def authenticates(self) -> bool:
        """True if it accepts no unauthenticated peer."""
        if self.is_mesh:
            return self.endpoint.secure
        # Without amqps a peer can omit TLS, and its certificate with it.
        # With `cbs`, a peer without a user may do nothing before it has put a token.
        by_certificate = self.endpoint.secure and self.tls is not None and self.tls.client == "required"
        return self.sasl_demanded or by_certificate or self.cbs

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("role", 'must be "http" with this url, and with no other', lambda c: c.endpoint.is_http is not c.is_http),
        *(
            Rule(key, 'does nothing with role = "http"', broken)
            for key, broken in (
                ("cbs", lambda c: c.is_http and c.cbs),
                ("redirect", lambda c: c.is_http and c.redirect is not None),
                ("strict_annotations", lambda c: c.is_http and c.strict_annotations),
                ("trace_frames", lambda c: c.is_http and c.trace_frames),
            )
        ),
        *(
            Rule(key, 'does nothing without role = "http", or a url that begins with ws or wss', broken)
            for key, broken in (
                ("hosts", lambda c: not c._has_pages and c.hosts),
                ("origins", lambda c: not c._has_pages and c.origins),
            )
        ),
        Rule("http", 'does nothing without role = "http"', lambda c: not c.is_http and c.http is not None),
        Rule(
            "amqp", 'does nothing without role = "http": other listeners speak AMQP', lambda c: c.amqp and not c.is_http
        ),
        Rule(
            "websocket",
            "does nothing without a url that begins with ws or wss",
            lambda c: not c.endpoint.is_websocket and c.websocket is not None,
        ),
        Rule("role", 'must be "normal" with ws and wss', lambda c: c.endpoint.is_websocket and c.role != "normal"),
        Rule(
            "sasl",
            f"HTTP has a counterpart of {', '.join(HTTP_MECHANISMS)} only",
            lambda c: c.is_http and not set(c.sasl).issubset(HTTP_MECHANISMS),
        ),
        *(
            Rule("tls", f"does nothing with {plain}: begin url with {plain}s", broken)
            for plain, broken in (
                ("http", lambda c: c.endpoint.scheme == "http" and c.tls),
                ("ws", lambda c: c.endpoint.scheme == "ws" and c.tls),
            )
        ),
        *(
            Rule(key, 'does nothing with role = "mesh": [mesh] sets how neighbours authenticate', broken)
            for key, broken in (
                ("tls", lambda c: c.is_mesh and c.tls is not None),
                ("users", lambda c: c.is_mesh and c.users is not None),
                ("sasl", lambda c: c.is_mesh and c.sasl != ("ANONYMOUS",)),
                ("insecure", lambda c: c.is_mesh and c.insecure),
                ("cbs", lambda c: c.is_mesh and c.cbs),
            )
        ),
        Rule("cost", 'does nothing without role = "mesh"', lambda c: not c.is_mesh and c.cost is not None),
        Rule("manage", 'does nothing with role = "mesh": neighbours change nothing', lambda c: c.is_mesh and c.manage),
        Rule(
            "manage",
            "needs authentication, or a listener on loopback: demand a mechanism, or a client certificate",
            lambda c: c.manage and not (c.authenticates or c.endpoint.loopback),
        ),
        Rule(
            "tls",
            "is required for amqps, wss and https: a certificate and its key",
            lambda c: c.endpoint.secure and not (c.tls or c.is_mesh),
        ),
        Rule(
            "sasl",
            "without authentication a listener binds to loopback only: demand a mechanism, or with amqps a client "
            "certificate, or say insecure = true",
            lambda c: not (c.authenticates or c.endpoint.loopback or c.insecure or c.is_mesh),
        ),
        Rule(
            "sasl",
            "PLAIN is offered under TLS only: set tls, or say insecure = true",
            lambda c: "PLAIN" in c.sasl and not (c.tls or c.insecure),
        ),
        Rule(
            "sasl",
            'EXTERNAL needs client certificates: set tls with trust, and client = "optional" or "required"',
            lambda c: "EXTERNAL" in c.sasl and not (c.tls and c.tls.asks_clients),
        ),
        Rule("cbs", "is required for MSSBCBS: cbs = true", lambda c: "MSSBCBS" in c.sasl and not c.cbs),
        Rule("sasl", _TOKENS_UNDER_TLS, lambda c: c.bearers and not (c.tls or c.takes_tokens(secured=False))),
        Rule("cbs", _TOKENS_UNDER_TLS, lambda c: c.cbs and not (c.tls or c.takes_tokens(secured=False))),
        Rule("users", "is required for PLAIN and SCRAM", lambda c: c.takes_passwords and not c.users),
        Rule("sasl", "a function for users checks PLAIN alone", lambda c: c.user_check is not None and c.has_scram),
        Rule("users", "does nothing without PLAIN or SCRAM", lambda c: c.users is not None and not c.takes_passwords),
    )
