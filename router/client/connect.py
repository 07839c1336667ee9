"""`connect`: a connection to any AMQP 1.0 peer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

import trio

from amqpmesh.policies.redirect import Following, Place, pattern_refusal
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.client.connections.dialer import Dialer
from amqpmesh.router.client.connections.identity import ClientIdentity
from amqpmesh.router.client.factory import LinkFactory
from amqpmesh.router.client.links.arguments import demand_trio
from amqpmesh.router.client.links.link_manager import ANONYMOUS_RELAY
from amqpmesh.router.config.urls import Endpoint
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
    """A connection to a peer: a broker, a router, a service. It makes senders, receivers and requesters.

    Errors of the body come out as they are, and what fails in the background never cancels it: the next call on what
    failed says so. Leaving sends `close`; the peer has a second to answer.
    """

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer

    def __repr__(self) -> str:
        return f"<Connection {self._dialer.described()}>"

    async def __aenter__(self) -> Self:
        """Connect. With `reconnect`, as long as it takes, but for refusals that trying again would not change.

        Raises: ConnectionClosedError: no connection came about. SaslError: the peer does not let us in. CommandError:
            it was entered before, or not inside `trio.run`.
        """
        demand_trio()
        await self._dialer.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        await self._dialer.leave()
        if error is None:
            await trio.lowlevel.checkpoint()

    @property
    def id(self) -> str:
        """Our container-id (§2.7.1)."""
        return self._dialer.client_identity.id

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._dialer.client_connection is not None

    @property
    def reconnections(self) -> int:
        """How often it was made again."""
        return self._dialer.reconnections

    @property
    def peer(self) -> Open:
        """What the peer said of itself (§2.7.1). Raises: ConnectionClosedError: there is no connection now."""
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
    open_stream: Opener = open_tcp,
) -> Connection:
    """Make a connection to any AMQP 1.0 peer, to be entered by `async with`.

    Args:
        url: `amqp://host:port` or `amqps://...`, where TLS comes first; several are tried in turn.
        id: our container-id (§2.7.1); None: one of its own.
        user: who we are, by a password.
        password: for SCRAM-SHA-256, SCRAM-SHA-1, or PLAIN, the first of them that the peer offers (§5.3). PLAIN shows
            it to the peer, and without TLS to the network: there it is used on loopback only.
        insecure: use PLAIN without TLS all the same; not where a redirect leads: there TLS, and a certificate that was
            verified, are needed for it.
        mechanisms: SASL mechanisms, the best liked first, in the place of that choice; empty: no SASL layer.
        trust: PEM, authorities whose servers are believed; None: those that the system trusts.
        certificate: PEM, to show to a server that asks; without `user` it says who we are (EXTERNAL).
        key: PEM, the certificate's.
        tls: a context in the place of these three.
        hostname: which host is wanted, in `open` and SASL; None: the URL's. Some brokers name virtual hosts by it.
        idle_time_out: seconds without a frame after which the peer uses_credit as gone (§2.4.5); None: never.
        max_frame_size: octets of a frame that we take (§2.7.1), 512 at least.
        reconnect: connect again when the connection is lost, and at first until it comes about.
        redirects: hosts to which redirects are followed, those of the URLs and `hostname` beside (§2.8.16, §2.8.18):
            `b.example`, `*.example`, an IP address, `*` for any. They are shown who we are. None: none is followed.
        trace_frames: log every frame, decoded, without bodies and passwords, at `amqpmesh.frames`.
        open_stream: opens what TLS and AMQP run over: TCP, or a proxy, a tunnel, a test.

    Raises: CommandError: what cannot work: a URL that is none, no credentials for any mechanism. OSError: a file that
        cannot be read or does not hold what it should (`ssl.SSLError` is one).
    """
    urls = [url] if isinstance(url, str) else list(url)
    places = _places(urls, hostname)
    following = None if redirects is None else _following(places, redirects)
    if tls is None and any(each.startswith("amqps:") for each in urls):
        tls = client_context(*(None if file is None else Path(file) for file in (trust, certificate, key)))
    client_identity = ClientIdentity(
        id=id if id is not None else f"amqpmesh-{environment().token(6)}",
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
        open_stream=open_stream,
    )
    backoff = Backoff() if reconnect is True else reconnect or None
    return Connection(Dialer(places, client_identity, backoff=backoff, following=following))


def _places(urls: Sequence[str], hostname: str | None) -> list[Place]:
    """Where URLs lead. Raises: CommandError: there is none, or one is no URL."""
    try:
        endpoints = [Endpoint.parse(each) for each in urls]
    except ValueError as error:
        raise CommandError(f"{', '.join(urls)}: {error}") from None
    if not endpoints:
        raise CommandError("no URL to connect to")
    return [Place.named(each.host, each.port, secure=each.secure, hostname=hostname) for each in endpoints]


def _following(places: Sequence[Place], redirects: Sequence[str]) -> Following:
    """Which redirects are followed. Raises: CommandError: what is given are no hosts."""
    if isinstance(redirects, str):
        raise CommandError(f"{redirects!r} is one host: give a list of them")
    allowed = tuple(redirects)
    refusal = pattern_refusal(allowed)
    if refusal is not None:
        raise CommandError(f"redirects: {refusal}")
    named = {host: None for place in places for host in (place.network_host, place.hostname)}
    return Following(tuple(named), allowed)
