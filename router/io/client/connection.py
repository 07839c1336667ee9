"""`connect`: a connection to any AMQP 1.0 peer, made again when it is lost."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

import trio

from amqpmesh.router import logs
from amqpmesh.router.amqp.connection import Connection as Engine
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError, ConnectionClosedError, SaslError
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.performatives import Open
from amqpmesh.router.amqp.sasl import SaslClient, SaslCode
from amqpmesh.router.io.client.attacher import ANONYMOUS_RELAY, Attacher
from amqpmesh.router.io.client.backoff import LASTING, Backoff
from amqpmesh.router.io.client.conversation import Conversation
from amqpmesh.router.io.client.dialing import FinalError, Opener, open_tcp, reason, secure
from amqpmesh.router.io.client.doors import Doors
from amqpmesh.router.io.client.link import LinkEnd, again
from amqpmesh.router.io.client.served import CLOSE_TIME, Served
from amqpmesh.router.io.tls import client_context
from amqpmesh.router.tracing import FrameTracer
from amqpmesh.router.urls import Endpoint

log = logs.EventLog("amqpmesh.client")

OPEN_TIME: Final = 10.0
"""Seconds for a stream to come about, its TLS handshake included; the peer's `open` has as many again."""

PLAIN: Final = "PLAIN"

PASSWORDS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-1", PLAIN)
"""Mechanisms that need a password, the best liked first."""


class Connection(Attacher, Doors):
    """A connection to a peer: a broker, a router, a service. It makes senders, receivers and requesters.

    Errors of the body come out as they are, and what fails in the background never cancels it: the next call on what
    failed says so. Leaving sends `close`; the peer has a second to answer.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        id: str,
        hostname: str | None,
        mechanisms: Sequence[str] | None,
        user: str | None,
        password: str | None,
        insecure: bool,
        context: ssl.SSLContext | None,
        external: bool,
        idle_time_out: float | None,
        max_frame_size: int,
        backoff: Backoff | None,
        trace_frames: bool,
        open_stream: Opener,
    ) -> None:
        super().__init__()
        try:
            self._endpoints = [Endpoint.parse(url) for url in urls]
        except ValueError as error:
            raise CommandError(f"{', '.join(urls)}: {error}") from None
        if not self._endpoints:
            raise CommandError("no URL to connect to")
        #: Our container-id (§2.7.1).
        self.id = id
        self._hostname = hostname
        self._mechanisms = mechanisms
        self._user, self._password = user, password
        self._insecure = insecure
        self._context = context
        self._external = external
        self._idle_time_out = idle_time_out
        self._max_frame_size = max_frame_size
        self._backoff = backoff
        self._trace_frames = trace_frames
        self._open_stream = open_stream
        self._failure: AmqpMeshError | None = CommandError("the connection was not opened: `async with` opens it")
        self._entered = False
        self._changed = trio.Event()
        self._closing = False
        self._served: Served | None = None
        self._made = 0
        for endpoint in self._endpoints:
            self._sasl(endpoint)  # what cannot work is said now

    async def __aenter__(self) -> Self:
        """Connect. With `reconnect`, as long as it takes, but for refusals that trying again would not change.

        Raises: ConnectionClosedError: no connection came about. SaslError: the peer does not let us in. CommandError:
            it was entered before.
        """
        if self._entered:
            raise CommandError("a connection is entered once")
        self._entered = True
        self._failure = None
        self._manager = trio.open_nursery()
        self._running = trio.CancelScope(shield=True)
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._run_on)
        try:
            await trio.lowlevel.checkpoint()
            while self.conversation is None:
                if self._failure is not None:
                    raise again(self._failure)
                await self._changed.wait()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        await self._end()
        if error is None:
            await trio.lowlevel.checkpoint()

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self.conversation is not None

    @property
    def reconnections(self) -> int:
        """How often it was made again."""
        return max(0, self._made - 1)

    @property
    def peer(self) -> Open:
        """What the peer said of itself (§2.7.1). Raises: ConnectionClosedError: there is no connection now."""
        remote = self.conversation.engine.remote if self.conversation is not None else None
        if remote is None:
            failure = self._failure if isinstance(self._failure, ConnectionClosedError) else None
            raise again(failure) if failure else ConnectionClosedError("there is no connection now")
        return remote

    # ---------------------------------------------------------------------------------------------------- of Attacher

    @property
    def _home(self) -> Attacher:
        return self

    @property
    def reconnects(self) -> bool:
        """Whether a connection that is lost is followed by another."""
        return self._backoff is not None and not self._closing

    @property
    def failure(self) -> AmqpMeshError | None:
        """Why there is no connection, and none will come."""
        return self._failure

    @property
    def max_frame_size(self) -> int:
        """Octets of a frame that we take."""
        return self._max_frame_size

    def wake(self) -> None:
        """A connection is there, or on its way."""

    def attach_later(self, end: LinkEnd, losses: int) -> None:
        """Attach it again after a pause."""
        self._nursery.start_soon(self._attach_later, end, losses)

    async def _attach_later(self, end: LinkEnd, losses: int) -> None:
        assert self._backoff is not None
        await trio.sleep(self._backoff.pause(losses))
        if self.conversation is not None:
            end.attach_to(self.conversation)

    # ------------------------------------------------------------------------------------------------------ connecting

    async def _run_on(self) -> None:
        """Go on when the body is cancelled, until it has been left: links abort, release and detach."""
        with self._running:
            await self._run()

    async def _run(self) -> None:
        """Connect, serve, and again. Raises: nothing."""
        position = failures = 0
        while True:
            endpoint = self._endpoints[position]
            began = trio.current_time()
            was_open = False
            try:
                conversation = await self._serve(endpoint)
            except FinalError as refusal:
                self._fail(refusal.error)
                return
            except trio.TooSlowError:
                error: AmqpMeshError = ConnectionClosedError(f"{endpoint}: timed out")
            except (OSError, trio.BrokenResourceError) as failure:
                error = ConnectionClosedError(f"{endpoint}: {reason(failure)}")
            except Exception as fault:
                log.error("fault", exception=fault, peer=str(endpoint))
                self._fail(ConnectionClosedError(f"a fault of this library: {fault!r}"))
                return
            else:
                assert conversation.failure is not None
                error, was_open = conversation.failure, conversation.was_open
            if self._closing:
                return
            lasted = was_open and trio.current_time() - began >= LASTING
            position = 0 if lasted else (position + 1) % len(self._endpoints)
            failures = 0 if lasted else failures
            # A whole round was made, or a connection: what follows is not the same try any more.
            is_over = was_open or position == 0
            if self._backoff is None and (is_over or isinstance(error, SaslError)):
                self._fail(error)
                return
            log.info("connection lost" if was_open else "not connected", peer=str(endpoint), reason=str(error))
            if self._backoff is not None and is_over:
                failures += 1
                await trio.sleep(self._backoff.pause(failures))

    async def _serve(self, endpoint: Endpoint) -> Conversation:
        """One connection, from its first byte to its last.

        Raises: OSError, BrokenResourceError, TooSlowError: none came about. FinalError: none will.
        """
        deadline = trio.current_time() + OPEN_TIME
        with trio.fail_at(deadline):
            stream = await self._open_stream(endpoint)
        try:
            if endpoint.secure:
                assert self._context is not None, "amqps has a context"
                with trio.fail_at(deadline):
                    stream = await secure(stream, self._context, endpoint)
            sasl = self._sasl(endpoint)
            engine = Engine(
                container_id=self.id,
                now=trio.current_time(),
                negotiation=Negotiation(server=False, sasl=sasl),
                hostname=self._hostname if self._hostname is not None else endpoint.host,
                max_frame_size=self._max_frame_size,
                idle_time_out=self._idle_time_out,
                open_time_out=OPEN_TIME,
                desired_capabilities=(ANONYMOUS_RELAY,),
            )
            tracer = FrameTracer(peer=str(endpoint)) if self._trace_frames else None
            unanswered = f"{endpoint}: the peer closed before it answered"
            if not endpoint.secure:
                unanswered += ": does it want TLS (amqps://)?"
            self._served = Served(stream, engine, tracer, unanswered=unanswered, opened=self.opened, ended=self.lost)
            conversation = await self._served.run()
            temporary = sasl is not None and sasl.outcome is SaslCode.SYS_TEMP
            if isinstance(conversation.failure, SaslError) and not temporary:
                raise FinalError(conversation.failure)
            return conversation
        finally:
            await trio.aclose_forcefully(stream)

    def _sasl(self, endpoint: Endpoint) -> SaslClient | None:
        """The exchange for this endpoint. Raises: CommandError: there are no credentials for any mechanism."""
        mechanisms = self._mechanisms
        if mechanisms is None:
            if self._user is not None:
                mechanisms = PASSWORDS
            elif self._external and endpoint.secure:
                mechanisms = ("EXTERNAL", "ANONYMOUS")
            else:
                mechanisms = ("ANONYMOUS",)
        if not mechanisms:
            return None
        if not (endpoint.secure or endpoint.loopback or self._insecure):
            mechanisms = [name for name in mechanisms if name != PLAIN]
            if not mechanisms:
                raise CommandError(f"PLAIN without TLS would show the password to the network: {endpoint}")
        return SaslClient(
            mechanisms,
            self._user,
            self._password,
            self._hostname if self._hostname is not None else endpoint.host,
            self._external and endpoint.secure,
        )

    # ---------------------------------------------------------------------------------------------------------- ending

    def lost(self, error: ConnectionClosedError) -> None:
        """The connection is over."""
        self.ended(error, final=not self.reconnects)

    def opened(self, conversation: Conversation) -> None:
        """There is a connection."""
        self._made += 1
        super().opened(conversation)
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def _fail(self, error: AmqpMeshError) -> None:
        if self._failure is None:
            self._failure = error
        self.ended(error, final=True)
        self._tell()

    async def _end(self) -> None:
        self._closing = True
        if self._failure is None:
            self._failure = CommandError("the connection was left")
        self.stop_all()
        if self._served is not None:
            with trio.move_on_after(CLOSE_TIME, shield=True):
                self._served.conversation.close()
                await self._served.ended.wait()
        # Not told of the body's error the nursery does not wrap it, and shielded it keeps to itself that its tasks
        # were cancelled.
        self._running.cancel()
        self._nursery.cancel_scope.shield = True
        self._nursery.cancel_scope.cancel()
        await self._manager.__aexit__(None, None, None)


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
        insecure: use PLAIN without TLS all the same.
        mechanisms: SASL mechanisms, the best liked first, in the place of that choice; empty: no SASL layer.
        trust: PEM, authorities whose servers are believed; None: those that the system trusts.
        certificate: PEM, to show to a server that asks; without `user` it says who we are (EXTERNAL).
        key: PEM, the certificate's.
        tls: a context in the place of these three.
        hostname: which host is wanted, in `open` and SASL; None: the URL's. Some brokers name virtual hosts by it.
        idle_time_out: seconds without a frame after which the peer counts as gone (§2.4.5); None: never.
        max_frame_size: octets of a frame that we take (§2.7.1), 512 at least.
        reconnect: connect again when the connection is lost, and at first until it comes about.
        trace_frames: log every frame, decoded, without bodies and passwords, at `amqpmesh.frames`.
        open_stream: opens what TLS and AMQP run over: TCP, or a proxy, a tunnel, a test.

    Raises: CommandError: what cannot work: a URL that is none, no credentials for any mechanism. OSError: a file that
        cannot be read or does not hold what it should (`ssl.SSLError` is one).
    """
    urls = [url] if isinstance(url, str) else list(url)
    if tls is None and any(each.startswith("amqps:") for each in urls):
        tls = client_context(*(None if file is None else Path(file) for file in (trust, certificate, key)))
    return Connection(
        urls,
        id=id if id is not None else f"amqpmesh-{uuid4().hex[:12]}",
        hostname=hostname,
        mechanisms=mechanisms,
        user=user,
        password=password,
        insecure=insecure,
        context=tls,
        external=certificate is not None or (tls is not None and mechanisms is not None and "EXTERNAL" in mechanisms),
        idle_time_out=idle_time_out,
        max_frame_size=max_frame_size,
        backoff=Backoff() if reconnect is True else reconnect or None,
        trace_frames=trace_frames,
        open_stream=open_stream,
    )
