"""Admission of connections: the limits of listeners, and the start of each accepted connection."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import trio

from amqpmesh.router.endpoint_setup import agreed
from amqpmesh.router.io.handshake import HANDSHAKE_TIME_OUT, UNKNOWN, Identity
from amqpmesh.router.io.secured_stream import TlsStream
from amqpmesh.router.io.streams import TcpStream, layers
from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.accepted import AcceptedTransport
from amqpmesh.router.runtime.handshakes import Handshake, Handshakes, Opening
from amqpmesh.router.runtime.polled import PolledTransport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from amqpmesh.router.config.file import ListenerConfig, WorkerConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.io.streams import DirectStream
    from amqpmesh.router.runtime.credentials import Credentials
    from amqpmesh.router.runtime.driver import Driver
    from amqpmesh.router.runtime.hand_overs import Arrival, HandOvers
    from amqpmesh.router.runtime.listeners import Listener
    from amqpmesh.router.runtime.poller import Poller
    from amqpmesh.router.runtime.shared_counts import SharedCounts
    from amqpmesh.router.runtime.transport import Transport

    Serve: TypeAlias = Callable[[trio.abc.Stream, ListenerConfig, str, Identity | None], Awaitable[None]]

log = event_log.EventLog("amqpmesh.io")


class Served:
    """The connections that are served now, each by a task or by the poller."""

    def __init__(self) -> None:
        self._all: set[trio.CancelScope | AcceptedTransport | Handshake] = set()
        self._idle = trio.Event()
        self._is_over = False

    def add(self, served: trio.CancelScope | AcceptedTransport | Handshake) -> None:
        """Add a connection; after `cancel` it ends at once."""
        self._all.add(served)
        if self._is_over:
            served.cancel()

    def discard(self, served: trio.CancelScope | AcceptedTransport | Handshake) -> None:
        """Remove a connection that has ended."""
        self._all.discard(served)
        self._idle.set()

    def __len__(self) -> int:
        return len(self._all)

    def cancel(self) -> None:
        """End all connections, and those to come, without waiting for their peers."""
        self._is_over = True
        for each in tuple(self._all):
            each.cancel()

    async def until_none(self) -> None:
        """Wait until all connections have ended."""
        while self._all:
            self._idle = trio.Event()
            await self._idle.wait()


class Admission:
    """The admission of one router."""

    def __init__(
        self,
        core: Core,
        driver: Driver,
        poller: Poller | None,
        start: Callable[..., object],
        listeners: Sequence[Listener],
        credentials_of: Callable[[ListenerConfig], Credentials],
        serve: Serve,
        served: Served,
    ) -> None:
        """Args: start: runs a task that ends with the router. serve: serves a connection to its end, in a task; given
        the identity in the client's certificate, if all layers below AMQP are open. It is shielded: after a
        cancellation from outside the router itself ends its connections, each after a `close`.
        """
        self.core = core
        self.driver = driver
        self._poller = poller
        self._start = start
        self._listeners = listeners
        self._credentials_of = credentials_of
        self._serve = serve
        self._served = served
        #: Connections of AMQP at listeners for HTTP.
        self._websockets = 0
        self._is_stopped = False
        #: Handshakes under way, by the seconds that each of them may take.
        self._handshakes: dict[float, Handshakes] = {}
        self._hand_overs: HandOvers | None = None
        self._shared: SharedCounts | None = None
        #: Connections in TLS or a WebSocket that other workers serve.
        self.bridges = Served()
        worker = core.context.config.worker
        if worker is not None and worker.count > 1 and poller is not None:
            self._hand_overs = self._exchange(worker, poller)
            self._shared = self._share(worker)

    def admit(self, listener: Listener, stream: TcpStream, host: str) -> None:
        """Serve a connection that a listener has accepted, unless there are too many.

        Args: host: the peer's address.
        """
        if not self._has_room(listener):
            listener.refused += 1
            log.warning("connection refused", peer=host, listener=listener.name, reason="too many connections")
            audit = self.core.context.audit
            if audit is not None:
                audit.of_host("connection refused", host, listener=listener.name, reason="too many connections")
            stream.close()
            return
        self._count(listener)
        endpoint = listener.config.endpoint
        if self._poller is None:
            self._start(self._serve_in_task, listener, stream, host)
        elif not (endpoint.secure or endpoint.is_websocket):
            self._begin(self._poller, listener, stream, host)
        elif self._hand_overs is None:
            self._open(self._poller, listener, stream, host)
        else:  # the task becomes the bridge to the worker that takes the connection up
            self._start(self._serve_in_task, listener, stream, host)

    async def serve_secured(self, transport: Transport) -> None:
        """Serve a connection in TLS or a WebSocket to its end, or up to its hand-over; then be the bridge to the other
        worker.
        """
        hand_overs = self._hand_overs
        if hand_overs is None or not isinstance(transport, PolledTransport):
            await transport.run()
            return
        hand_overs.welcome(transport.record, transport)
        try:
            await transport.run()
            bridge = transport.bridge()
        finally:
            hand_overs.forget(transport.record)
            transport.withdraw()
        if bridge is not None:
            with trio.CancelScope() as scope:
                self.bridges.add(scope)
                try:
                    await bridge.run()
                finally:
                    self.bridges.discard(scope)

    def why_not(self, listener: Listener) -> str | None:
        """Return the reason why a listener for HTTP takes no more clients of AMQP; None: it does."""
        if self._is_stopped:
            return "the router is about to end"
        if listener.is_removed:
            return "the listener is gone"
        return None if self._has_room(listener) else "too many connections"

    def admit_opened(self, listener: Listener, stream: DirectStream, host: str, identity: Identity) -> None:
        """Serve a client of AMQP at a listener for HTTP. Args: stream: through the WebSocket."""
        if self.why_not(listener) is None:
            listener.websockets += 1
            self._websockets += 1
            self._start(self._serve_opened, listener, stream, host, identity)
        else:
            listener.refused += 1
            stream.close()

    async def _serve_opened(self, listener: Listener, stream: trio.abc.Stream, host: str, identity: Identity) -> None:
        try:
            await self._serve(stream, listener.config, host, identity)
        finally:
            listener.websockets -= 1
            self._websockets -= 1

    def connecting(self) -> int:
        """Return the number of connections at listeners for AMQP that are not open yet, in TLS or in AMQP."""
        places = {id(each.config) for each in self._listeners}
        there = [each for each in self.core.context.connections if id(each.listener) in places]
        accepted = sum(each.connections for each in self._listeners) - len(self.bridges)
        return accepted - sum(each.engine.remote is not None for each in there)

    def stop(self) -> None:
        """Take no connections of other workers, and none at listeners for HTTP, any more."""
        self._is_stopped = True
        if self._hand_overs is not None:
            self._hand_overs.stop()

    def close(self) -> None:
        """Close the channels to other workers; all connections have ended."""
        if self._hand_overs is not None:
            self._hand_overs.close()
        if self._shared is not None:
            self._shared.close()

    def _share(self, worker: WorkerConfig) -> SharedCounts:
        from amqpmesh.router.runtime.shared_counts import SharedCounts  # here: a single process does not need it

        shared = SharedCounts(worker)
        self.core.context.usages.share = self.core.context.rates.shared.share = shared.places
        self.core.context.rates.tokens = shared.tokens
        return shared

    def _exchange(self, worker: WorkerConfig, poller: Poller) -> HandOvers | None:
        from amqpmesh.router.runtime.hand_overs import HandOvers  # here: a single process does not need it

        try:
            return HandOvers(self.core, worker, poller, self._takes_more, self._take_up)
        except OSError as error:
            log.warning("no hand-overs", reason=error.strerror or str(error))
            return None

    def _has_room(self, listener: Listener) -> bool:
        # A client that is delayed after wrong passwords does not count towards the limits.
        delayed = self.driver.passwords.delayed
        accepted = sum([each.connections for each in self._listeners]) + self._websockets - sum(delayed.values())
        # Other workers of this router may connect, however many clients there are.
        is_full = accepted >= self.core.context.config.connections and not listener.config.endpoint.is_unix
        here = listener.websockets if listener.config.is_http else listener.connections
        return not is_full and here - delayed.get(listener.name, 0) < listener.config.connections

    @staticmethod
    def _count(listener: Listener) -> None:
        listener.connections += 1
        listener.most = max(listener.most, listener.connections)

    def _takes_more(self, name: str) -> bool:
        """Return whether a connection to a listener can be taken up from another worker. Args: name: the listener's."""
        return any(each.name == name and self._has_room(each) for each in self._listeners)

    def _take_up(self, stream: TcpStream, arrival: Arrival) -> None:
        """Serve a connection that another worker hands over."""
        assert self._poller is not None
        listener = next(each for each in self._listeners if each.name == arrival.terms.listener)
        self._count(listener)
        self._begin(self._poller, listener, stream, arrival.terms.host, arrival)

    async def _serve_in_task(self, listener: Listener, stream: TcpStream, host: str) -> None:
        try:
            await self._serve(stream, listener.config, host, None)
        finally:
            listener.connections -= 1

    def _open(self, poller: Poller, listener: Listener, stream: TcpStream, host: str) -> None:
        """Open TLS, or a WebSocket, on a stream; then serve the connection by the poller. Raises: as `_begin`."""
        try:
            credentials = self._credentials_of(listener.config)
            endpoint = listener.config.endpoint
            if not endpoint.secure:
                self._upgrade(poller, listener, stream, host, credentials)
                return
            assert credentials.context is not None, "the configuration demands a certificate for amqps and wss"
            secured = TlsStream(stream, credentials.context)

            def go_on() -> None:
                if endpoint.is_websocket:
                    self._upgrade(poller, listener, secured, host, credentials)
                else:
                    self._begin(poller, listener, secured, host, credentials=credentials)

            self._shake_hands(poller, listener, secured, host, self.core.logins.not_secured, go_on, HANDSHAKE_TIME_OUT)
        except Exception as error:
            self._fail(listener, stream, host, error)

    def _upgrade(
        self, poller: Poller, listener: Listener, stream: DirectStream, host: str, credentials: Credentials
    ) -> None:
        """Open a WebSocket on a stream, then serve the connection by the poller. Raises: as `_begin`."""
        from amqpmesh.router.runtime.websockets import WebSocketHandshake  # here: wsproto is an extra

        try:
            handshake = WebSocketHandshake(stream, listener.config)

            def go_on() -> None:
                self._begin(poller, listener, handshake.opened, host, credentials=credentials)

            seconds = listener.config.websocket_limits.request_time
            self._shake_hands(poller, listener, handshake, host, self.core.logins.not_upgraded, go_on, seconds)
        except Exception as error:
            self._fail(listener, stream, host, error)

    def _shake_hands(
        self,
        poller: Poller,
        listener: Listener,
        opening: Opening,
        host: str,
        failed: Callable[[str, str], None],
        go_on: Callable[[], None],
        seconds: float,
    ) -> None:
        """Do a handshake by the poller. Raises: OSError: the system has no resources.

        Args: failed: logs a failure. go_on: is called once the handshake is done. seconds: for it.
        """

        def ended(handshake: Handshake, is_done: bool) -> None:
            if is_done:
                go_on()
            else:
                listener.connections -= 1
            self._served.discard(handshake)

        if seconds not in self._handshakes:
            self._handshakes[seconds] = Handshakes(self.core, poller, self._start, seconds)
        handshakes = self._handshakes[seconds]
        self._served.add(handshakes.begin(opening, host, failed, ended, mesh=listener.config.is_mesh))
        self.driver.settle()  # the timer of the handshake may be the next

    def _begin(
        self,
        poller: Poller,
        listener: Listener,
        stream: DirectStream,
        host: str,
        arrival: Arrival | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Serve a connection by the poller. Raises: nothing; an internal error is logged.

        Args: stream: after the handshakes that the listener demands. credentials: with which they began; None: there
            were none.
        """
        hand_overs, demands_tls = self._hand_overs, listener.config.endpoint.secure
        in_tls = [each for each in layers(stream) if isinstance(each, TlsStream)]
        # The other worker has opened TLS on a connection that it hands over.
        secured = bool(in_tls) if arrival is None else demands_tls
        if listener.is_removed or (demands_tls and not secured):  # since the handshake began
            stream.close()
            listener.connections -= 1
            return
        try:
            credentials = credentials or self._credentials_of(listener.config)
            negotiation = None if arrival is None else agreed(arrival.terms.mechanism, arrival.terms.user)
            identity = UNKNOWN if arrival is None else arrival.terms.identity
            for each in in_tls:
                identity = Identity.of(each, credentials.user_name)
            record = credentials.accept(
                self.core,
                listener.config,
                host,
                trio.current_time(),
                identity,
                secured=secured,
                negotiation=negotiation,
            )
            if arrival is not None:
                record.tls, record.cipher = arrival.terms.tls, arrival.terms.cipher
                record.is_handed_over = True
            transport = AcceptedTransport(
                self.driver, record, stream, credentials, poller, self._start, partial(self._ended, listener)
            )
        except Exception as error:
            self._fail(listener, stream, host, error)
            return
        self._served.add(transport)
        if hand_overs is not None and arrival is not None:
            hand_overs.begin(record, transport, arrival)
            return
        if hand_overs is not None:
            hand_overs.welcome(record, transport)
        transport.begin()

    @staticmethod
    def _fail(listener: Listener, stream: DirectStream, host: str, error: Exception) -> None:
        """Log an internal error, and end the connection."""
        log.error("internal error", exception=error, peer=host, listener=listener.name)
        stream.close()
        listener.connections -= 1

    def _ended(self, listener: Listener, transport: AcceptedTransport) -> None:
        listener.connections -= 1
        if self._hand_overs is not None:
            self._hand_overs.forget(transport.record)
        self._served.discard(transport)
