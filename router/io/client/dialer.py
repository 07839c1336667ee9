"""Makes a connection, and makes it again when it is lost."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Final

import trio

from amqpmesh.router import logs
from amqpmesh.router.amqp.connection import Connection as Engine
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError, ConnectionClosedError, SaslError, shown
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.performatives import Open
from amqpmesh.router.amqp.sasl import SaslClient, SaslCode
from amqpmesh.router.io.client.attacher import ANONYMOUS_RELAY, Attacher
from amqpmesh.router.io.client.backoff import LASTING, Backoff
from amqpmesh.router.io.client.conversation import Conversation
from amqpmesh.router.io.client.dialing import FinalError, Opener, reason, secure
from amqpmesh.router.io.client.link import LinkEnd, again
from amqpmesh.router.io.client.served import CLOSE_TIME, Served
from amqpmesh.router.tracing import FrameTracer
from amqpmesh.router.urls import Endpoint

log = logs.EventLog("amqpmesh.client")

OPEN_TIME: Final = 10.0
"""Seconds for a stream to come about, its TLS handshake included; the peer's `open` has as many again."""

PLAIN: Final = "PLAIN"

PASSWORDS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-1", PLAIN)
"""Mechanisms that need a password, the best liked first."""


class Dialer(Attacher):
    """What is behind a `Connection`: it dials one peer after the other, and serves whoever is there."""

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

    async def enter(self) -> None:
        """As `Connection.__aenter__`."""
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
            await self.leave()
            raise

    async def leave(self) -> None:
        """Close; the peer has a second to answer, whoever is cancelled."""
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

    @property
    def reconnections(self) -> int:
        """How often it was made again."""
        return max(0, self._made - 1)

    @property
    def peer(self) -> Open:
        """As `Connection.peer`."""
        remote = self.conversation.engine.remote if self.conversation is not None else None
        if remote is None:
            failure = self._failure if isinstance(self._failure, ConnectionClosedError) else None
            raise again(failure) if failure else ConnectionClosedError("there is no connection now")
        return remote

    def described(self) -> str:
        """How it stands, for people."""
        urls = ", ".join(map(str, self._endpoints))
        if self.conversation is not None:
            stage = "connected"
        elif not self._entered:
            stage = "new"
        else:
            stage = "over" if self._failure is not None else "connecting"
        return f"{shown(self.id)} to {urls} {stage}"

    # ---------------------------------------------------------------------------------------------------- of Attacher

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
