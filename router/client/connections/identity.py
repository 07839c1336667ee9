"""`ClientIdentity`: credentials and settings of a client's connections, the same wherever redirects lead."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from amqpmesh.policies.redirect import PeerAddress
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.connection import Connection as Engine
from amqpmesh.router.amqp.connection_settings import ConnectionSettings
from amqpmesh.router.amqp.errors import CommandError, ConnectionClosedError, SaslError
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.sasl.exchange import SaslClient, SaslCode
from amqpmesh.router.client.connections.connection_tasks import ConnectionTasks
from amqpmesh.router.client.links.client_connection import ClientConnection
from amqpmesh.router.client.links.spans import Spans
from amqpmesh.router.config.urls import Endpoint, is_loopback
from amqpmesh.router.endpoint_setup import PASSWORDS, PLAIN, WITHHELD
from amqpmesh.router.io.dialing import Opener, PermanentError, secure
from amqpmesh.router.logs.frame_trace import FrameTracer

OPEN_TIME: Final = 10.0
"""Seconds to open a stream with its TLS handshake; the peer's `open` has as many again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientIdentity:
    """The arguments of `connect` that each connection needs."""

    id: str
    #: The places that the program named. A redirect has led to any other.
    places: Sequence[PeerAddress]
    mechanisms: Sequence[str] | None
    user: str | None
    password: str | None = field(repr=False)
    insecure: bool
    context: ssl.SSLContext | None
    external: bool
    idle_time_out: float | None
    max_frame_size: int
    desired_capabilities: tuple[Symbol, ...]
    trace_frames: bool
    #: Spans for messages; None: the program has not asked for them.
    spans: Spans | None
    open_stream: Opener

    async def serve(
        self,
        place: PeerAddress,
        *,
        began: Callable[[ConnectionTasks], None],
        opened: Callable[[ClientConnection], None],
        ended: Callable[[ConnectionClosedError], None],
    ) -> ClientConnection:
        """Open one connection, and serve it until it ends.

        Args: began: called with the tasks once there is a stream. opened, ended: as of `ConnectionTasks`.
        Raises: OSError, BrokenResourceError, TooSlowError: no connection was made. PermanentError: no retry can
            succeed.
        """
        endpoint = Endpoint(place.scheme, place.network_host, place.port, place.websocket or "")
        deadline = trio.current_time() + OPEN_TIME
        with trio.fail_at(deadline):
            stream = await self.open_stream(endpoint)
        try:
            if place.secure:
                assert self.context is not None, "amqps and wss have a context"
                with trio.fail_at(deadline):
                    stream = await secure(stream, self.context, place)
            if place.websocket is not None:
                from amqpmesh.router.io.websocket_client import open_websocket  # here: wsproto is an extra

                with trio.fail_at(deadline):
                    stream = await open_websocket(stream, place)
            sasl = self.sasl(place)
            settings = ConnectionSettings(
                container_id=self.id,
                max_frame_size=self.max_frame_size,
                idle_time_out=self.idle_time_out,
                open_time_out=OPEN_TIME,
                desired_capabilities=self.desired_capabilities,
            )
            negotiation = Negotiation(server=False, sasl=sasl)
            engine = Engine(settings, negotiation, trio.current_time(), hostname=place.hostname)
            tracer = FrameTracer(peer=str(endpoint)) if self.trace_frames else None
            unanswered = f"{endpoint}: the peer closed before it answered"
            if not place.secure and place.websocket is None:
                unanswered += ": does it want TLS (amqps://)?"
            tasks = ConnectionTasks(stream, engine, tracer, unanswered=unanswered, opened=opened, ended=ended)
            began(tasks)
            client_connection = await tasks.run()
            temporary = sasl is not None and sasl.outcome is SaslCode.SYS_TEMP
            if isinstance(client_connection.failure, SaslError) and not temporary:
                raise PermanentError(client_connection.failure)
            return client_connection
        finally:
            await trio.aclose_forcefully(stream)

    def sasl(self, place: PeerAddress) -> SaslClient | None:
        """Return the SASL exchange for this place. Raises: CommandError: there are no credentials for any mechanism."""
        mechanisms = self.mechanisms
        if mechanisms is None:
            if self.user is not None:
                mechanisms = PASSWORDS
            elif self.external and place.secure:
                mechanisms = ("EXTERNAL", "ANONYMOUS")
            else:
                mechanisms = ("ANONYMOUS",)
        if not mechanisms:
            return None
        refusal = self._refusal_of_plain(place) if PLAIN in mechanisms else None
        if refusal is not None:
            mechanisms = [name for name in mechanisms if name != PLAIN]
            if not mechanisms:
                raise CommandError(f"{refusal}: {place}")
        withheld = refusal if refusal == WITHHELD else None
        return SaslClient(
            mechanisms,
            self.user,
            self.password,
            place.hostname,
            self.external and place.secure,
            withheld,
            defers=True,
        )

    def _refusal_of_plain(self, place: PeerAddress) -> str | None:
        """Return the reason for not sending the password there; None: it may be sent."""
        if not any(each.is_same(place) for each in self.places):
            return None if place.secure and self._verifies else WITHHELD
        if place.secure or is_loopback(place.network_host) or self.insecure:
            return None
        return "PLAIN without TLS would show the password to the network"

    @property
    def _verifies(self) -> bool:
        """True if TLS verifies the peer's certificate and name."""
        context = self.context
        return context is not None and context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
