"""`connect`: a connection to any AMQP 1.0 peer."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self

import trio

from amqpmesh.policies.redirect import PeerAddress, RedirectPolicy, pattern_refusal
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.client.connections.dialer import Dialer
from amqpmesh.router.client.connections.identity import ClientIdentity
from amqpmesh.router.client.factory import LinkFactory
from amqpmesh.router.client.links.arguments import demand_trio
from amqpmesh.router.client.links.link_manager import ANONYMOUS_RELAY
from amqpmesh.router.client.links.spans import Spans
from amqpmesh.router.config.urls import CONNECTING_PORTS, Endpoint
from amqpmesh.router.endpoint_setup import REDIRECT
from amqpmesh.router.io.dialing import Backoff, Opener, open_tcp
from amqpmesh.router.io.environment import environment
from amqpmesh.router.io.tls import client_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from types import TracebackType

    from amqpmesh.router.amqp.standard.performatives import Open
    from amqpmesh.router.client.links.link_manager import LinkManager


class Connection(LinkFactory):
    """A connection to a peer: a broker, a router or a service. It makes senders, receivers and requesters.

    Errors of the `async with` body leave it unchanged. A failure in the background never cancels the body: the next
    call on what has failed raises the error. Leaving the connection sends `close`; the peer has one second to answer.
    """

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer

    def __repr__(self) -> str:
        return f"<Connection {self._dialer.described()}>"

    async def __aenter__(self) -> Self:
        """Connect. With `reconnect`, try until it succeeds or the peer refuses in a way that no retry would change.

        Raises: ConnectionClosedError: no connection was made. SaslError: the peer refused the credentials.
            CommandError: the connection was entered before, or not inside `trio.run`.
        """
        demand_trio()
        await self._dialer.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connection."""
        await self._dialer.leave()
        if error is None:
            await trio.lowlevel.checkpoint()

    @property
    def id(self) -> str:
        """Our container-id (§2.7.1)."""
        return self._dialer.client_identity.id

    @property
    def is_connected(self) -> bool:
        """True while there is a connection."""
        return self._dialer.client_connection is not None

    @property
    def reconnections(self) -> int:
        """The number of times that the connection was made again."""
        return self._dialer.reconnections

    @property
    def peer(self) -> Open:
        """The `open` of the peer (§2.7.1). Raises: ConnectionClosedError: there is no connection now."""
        return self._dialer.peer

    @property
    def _link_manager(self) -> LinkManager:
        return self._dialer


def connect(
    url: str | Sequence[str],
    *,
    id: str | None = None,
    user: str | None = None,
    password: str | None = None,
    mechanisms: Sequence[str] | None = None,
    insecure: bool = False,
    trust: Path | str | None = None,
    certificate: Path | str | None = None,
    key: Path | str | None = None,
    tls: ssl.SSLContext | None = None,
    hostname: str | None = None,
    idle_time_out: float | None = 16.0,
    max_frame_size: int = 16 * 2**10,
    reconnect: bool | Backoff = False,
    redirects: Sequence[str] | None = (),
    trace_frames: bool = False,
    spans: bool = False,
    open_stream: Opener = open_tcp,
) -> Connection:
    """Make a connection to any AMQP 1.0 peer; `async with` opens it.

    Args:
        url: `amqp://host:port`, or `amqps://host:port` for TLS; `ws://host:port/path` or `wss://host:port/path` through
            a WebSocket, with the extra `amqpmesh[websocket]`. Several URLs are tried in turn.
        id: our container-id (§2.7.1); None: a generated one.
        user: user name for a login with a password.
        password: for SCRAM-SHA-512, SCRAM-SHA-256, SCRAM-SHA-1 or PLAIN: the first of them that the peer offers (§5.3).
            PLAIN shows the password to the peer. Without TLS it shows it to the network, too, so PLAIN is then used on
            loopback only.
        insecure: allow PLAIN without TLS. Not after a redirect: there PLAIN needs TLS and a verified certificate.
        mechanisms: SASL mechanisms to choose from, the preferred one first, instead of those above; empty: no SASL
            layer.
        trust: PEM file of the certificate authorities to trust; None: those that the system trusts.
        certificate: PEM file of the certificate to show to a server that asks for one. Without `user` it is the login
            (EXTERNAL).
        key: PEM file of the certificate's key.
        tls: a TLS context, instead of the three files.
        hostname: the host to name in `open` and SASL; None: the URL's. Some brokers name virtual hosts by it.
        idle_time_out: seconds without a frame after which the peer counts as gone (§2.4.5); None: never.
        max_frame_size: octets of the largest frame that the peer may send (§2.7.1), 512 at least.
        reconnect: connect again when the connection is lost, and repeat the first attempt until it succeeds.
        redirects: hosts to which redirects are followed, besides those of the URLs and `hostname` (§2.8.16, §2.8.18):
            `b.example`, `*.example`, an IP address, or `*` for any. Our login is shown to them. None: no redirect is
            followed.
        trace_frames: log every frame, decoded, without bodies and passwords, at `amqpmesh.frames`.
        spans: make spans of OpenTelemetry for messages that are sent, and for those that `async with delivery`
            processes, by the tracer provider of the process; with the extra `amqpmesh[otel]`.
        open_stream: opens the stream under TLS and AMQP: TCP by default; a proxy, a tunnel, or a test.

    Raises: CommandError: the arguments cannot work: an invalid URL, or no credentials for any mechanism. OSError: a
        file cannot be read or is invalid (`ssl.SSLError` is one).
    """
    urls = [url] if isinstance(url, str) else list(url)
    places = _places(urls, hostname)
    redirect_policy = None if redirects is None else _redirect_policy(places, redirects)
    if tls is None and any(each.secure for each in places):
        tls = client_context(*(None if file is None else Path(file) for file in (trust, certificate, key)))
    own_id = id if id is not None else f"amqpmesh-{environment().token(6)}"
    client_identity = ClientIdentity(
        id=own_id,
        places=places,
        mechanisms=mechanisms,
        user=user,
        password=password,
        insecure=insecure,
        context=tls,
        external=certificate is not None or (tls is not None and mechanisms is not None and "EXTERNAL" in mechanisms),
        idle_time_out=idle_time_out,
        max_frame_size=max_frame_size,
        desired_capabilities=(ANONYMOUS_RELAY, REDIRECT) if redirects else (ANONYMOUS_RELAY,),
        trace_frames=trace_frames,
        spans=Spans(own_id) if spans else None,
        open_stream=open_stream,
    )
    backoff = Backoff() if reconnect is True else reconnect or None
    return Connection(Dialer(places, client_identity, backoff=backoff, redirect_policy=redirect_policy))


def _places(urls: Sequence[str], hostname: str | None) -> list[PeerAddress]:
    """Return the places that the URLs name. Raises: CommandError: there is no URL, or one is invalid."""
    try:
        endpoints = [Endpoint.parse(each, CONNECTING_PORTS) for each in urls]
    except ValueError as error:
        raise CommandError(f"{', '.join(urls)}: {error}") from None
    if not endpoints:
        raise CommandError("no URL to connect to")
    if any(each.is_websocket for each in endpoints) and find_spec("wsproto") is None:
        raise CommandError("WebSocket needs the package wsproto: pip install 'amqpmesh[websocket]'")
    return [
        PeerAddress.named(
            each.host,
            each.port,
            secure=each.secure,
            hostname=hostname,
            websocket=each.path if each.is_websocket else None,
        )
        for each in endpoints
    ]


def _redirect_policy(places: Sequence[PeerAddress], redirects: Sequence[str]) -> RedirectPolicy:
    """Return the rules for following redirects. Raises: CommandError: the patterns are no hosts."""
    if isinstance(redirects, str):
        raise CommandError(f"{redirects!r} is one host: give a list of them")
    allowed = tuple(redirects)
    refusal = pattern_refusal(allowed)
    if refusal is not None:
        raise CommandError(f"redirects: {refusal}")
    named = {host: None for place in places for host in (place.network_host, place.hostname)}
    return RedirectPolicy(tuple(named), allowed)
