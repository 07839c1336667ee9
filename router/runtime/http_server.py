"""The server of a router's listeners for HTTP, in a thread of its own.

The thread reads, writes, and answers whether the router's loop goes round; all else is done in that loop. So a client
that floods the thread takes its part of the time alone (`Share`), and a router that stands still is noticed.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.policies.guesses import network_of
from amqpmesh.router.config.http import HttpConfig
from amqpmesh.router.http.checks import Site
from amqpmesh.router.http.entities import Place, is_entities
from amqpmesh.router.http.page_files import page_answer
from amqpmesh.router.http.requests import (
    BAD_REQUEST,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    OK,
    READING,
    SEE_OTHER,
    UNAUTHORIZED,
    UNAVAILABLE,
    Answer,
    HttpError,
    Switch,
)
from amqpmesh.router.http.siblings import VISITOR, path_of
from amqpmesh.router.http.visitors import Visitor
from amqpmesh.router.http.windows import PARAMETERS
from amqpmesh.router.io.handshake import secure
from amqpmesh.router.io.streams import DirectStream, TcpStream
from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime.credentials import WEBSOCKET_PACKAGE
from amqpmesh.router.runtime.http_answers import EntityPages
from amqpmesh.router.runtime.http_calls import STANDS_STILL, RouterCalls, Share
from amqpmesh.router.runtime.http_connections import Client, OpenConnections, serve
from amqpmesh.router.runtime.http_logins import HttpLogins
from amqpmesh.router.runtime.http_metrics import PATH as METRICS
from amqpmesh.router.runtime.http_metrics import MetricsPages
from amqpmesh.router.runtime.http_siblings import Siblings
from amqpmesh.router.runtime.http_views import CLIENT, PageViews
from amqpmesh.router.runtime.http_views import ROOT as VIEWS
from amqpmesh.router.runtime.listeners import PAUSE, WORKER, bound_to_path, is_of_this_user

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from amqpmesh.router.config.listener import ListenerConfig
    from amqpmesh.router.http.requests import Request
    from amqpmesh.router.io.handshake import Identity, SecuredStream
    from amqpmesh.router.runtime.admission import Admission
    from amqpmesh.router.runtime.credentials import Credentials
    from amqpmesh.router.runtime.listeners import Listener
    from amqpmesh.router.runtime.management_node import ManagementNode
    from amqpmesh.router.runtime.snapshots import Snapshots
    from amqpmesh.router.statistics.configured import ListenerStatistics

log = event_log.EventLog("amqpmesh.io")

HEALTH: Final = "/healthz"
READINESS: Final = "/readyz"
AMQP: Final = "/amqp"
"""The path of AMQP through a WebSocket (OASIS AMQP WebSocket Binding), if the listener has it."""

LOGIN: Final = "/login"
"""The path that leads to the page after a login by the browser: Basic."""

PAGE_HEADER: Final = "x-amqpmesh-page"
"""The header field of requests of the page."""

PAGE_SCHEME: Final = "Amqpmesh"
"""The scheme in place of the others in a refusal for the page; no browser knows it."""

SIBLING_LIMITS: Final = HttpConfig(head=2**16, body=2**24)
"""The limits of connections of other workers, which pass on what their own listeners have let in."""


class HttpServer:
    """The server of all listeners for HTTP of one router."""

    def __init__(
        self,
        admission: Admission,
        snapshots: Snapshots,
        credentials: Mapping[ListenerConfig, Credentials],
        start: Callable[[Callable[[], Awaitable[None]]], object],
        listeners: Callable[[], Sequence[ListenerStatistics]],
        management: ManagementNode,
    ) -> None:
        """Args: admission: of the router's clients. credentials: of the listeners, always the current ones. start: runs
        a task of the router's. listeners: returns the state of all of the router's listeners.
        """
        core, driver = admission.core, admission.driver
        self._core = core
        self._credentials = credentials
        self._logins = HttpLogins(core, driver.passwords)
        self._entities = EntityPages(core, driver, snapshots)
        self._views = PageViews(core, snapshots, management)
        self._metrics = MetricsPages(core, snapshots, listeners, lambda: core.context.config.metrics.series)
        self._calls = RouterCalls(start, self._why_not_ready)
        self._scope = trio.CancelScope()
        self._is_over = trio.Event()
        self._is_started = False
        self._door: socket.socket | None = None
        #: The thread has begun. Until then it is told nothing.
        self._begun = trio.Event()
        self._early: list[Callable[[], object]] = []
        #: Set once the thread has done what it was told.
        self._awaited: list[trio.Event] = []
        #: The listeners, for the thread.
        self._sites: dict[Listener, _Site] = {}
        worker = core.context.config.worker
        self._siblings = None if worker is None else Siblings(worker)
        self._admission = admission

    def serve(self, listener: Listener) -> None:
        """Serve a listener of role `http`, which is bound, by its configuration now. Its connections until now end."""
        if not self._is_started:
            self._is_started = True
            worker = self._core.context.config.worker
            self._door = None if worker is None else bound_to_path(str(path_of(worker.folder, worker.number)))
            # A daemon: a program that ends without ending its routers does not wait for it.
            threading.Thread(target=trio.run, args=(self._run,), name="amqpmesh http", daemon=True).start()
        self._tell(partial(self._open, listener, listener.config, self._step()))

    def remove(self, listener: Listener) -> None:
        """Close a listener, and its connections."""
        self._tell(partial(self._close, listener, self._step()))

    def _step(self) -> Callable[[], object]:
        """Return a function that the thread calls once it has done what it is told."""
        done = trio.Event()
        if not self._is_over.is_set():
            self._awaited.append(done)
        return partial(self._calls.soon, done.set)

    async def settled(self) -> None:
        """Wait until the thread has done what it was told: a port is free again, and no site of before accepts."""
        for each in tuple(self._awaited):
            await each.wait()
        self._awaited = [each for each in self._awaited if not each.is_set()]

    def _tell(self, work: Callable[[], object]) -> None:
        if self._begun.is_set():
            self._calls.back(work)
        else:
            self._early.append(work)

    def _note_begun(self) -> None:
        self._begun.set()
        for work in self._early:
            self._calls.back(work)

    async def end(self) -> None:
        """End all connections, and the thread."""
        self._calls.end()
        self._tell(self._scope.cancel)
        with trio.CancelScope(shield=True):
            await self._is_over.wait()

    def _why_not_ready(self) -> str | None:
        return "the router drains" if self._core.context.draining or self._core.departure.is_on else None

    # ----------------------------------------------------------------------------------------------------- its thread

    async def _run(self) -> None:
        self._calls.begin()
        try:
            with self._scope:
                async with trio.open_nursery() as self._nursery:
                    self._calls.soon(self._note_begun)
                    if self._door is not None:
                        self._nursery.start_soon(self._admit_siblings, self._door)
                    await trio.sleep_forever()
        except Exception as error:
            log.error("internal error", exception=error)
        finally:
            if self._door is not None:
                self._door.close()
            for listener in self._sites:
                listener.close()
            self._calls.soon(self._note_over)

    def _note_over(self) -> None:
        self._is_over.set()
        for each in self._awaited:
            each.set()

    def _open(self, listener: Listener, config: ListenerConfig, done: Callable[[], object]) -> None:
        before = self._sites.get(listener)
        if before is not None:
            before.scope.cancel()
        self._sites[listener] = site = _Site(self, listener, config)
        self._nursery.start_soon(site.serve, before, done)

    def _close(self, listener: Listener, done: Callable[[], object]) -> None:
        site = self._sites.pop(listener)
        site.at_end = done
        site.scope.cancel()

    async def open_amqp(self, site: Site, listener: Listener, request: Request) -> Switch:
        """Answer a request for AMQP through a WebSocket, in the thread. Raises: HttpError.

        The client shows by SASL who it is: what a browser adds by itself, such as a password that it remembers, proves
        nothing of the page that asks.
        """
        site.check_websocket(request)
        if find_spec(WEBSOCKET_PACKAGE) is None:
            raise HttpError(NOT_IMPLEMENTED, "AMQP over WebSocket needs the extra amqpmesh[websocket]")
        from amqpmesh.router.http.upgrade import accepted  # here: wsproto is an extra

        headers = accepted(request)
        await self._calls.do(partial(self._check_room, listener))
        return Switch(tuple(headers))

    async def _check_room(self, listener: Listener) -> None:
        reason = self._admission.why_not(listener)
        if reason is not None:
            raise HttpError(UNAVAILABLE, reason, ("Retry-After", "5"))

    def serve_amqp(self, listener: Listener, stream: trio.abc.Stream, client: Client, behind: bytes) -> None:
        """Have the router's loop serve a WebSocket, from the thread, which must not use the stream any more.

        Args: behind: octets that have come.
        """
        from amqpmesh.router.io.websocket_framing import Framing  # here: wsproto is an extra
        from amqpmesh.router.io.websocket_stream import WebSocketStream

        assert isinstance(stream, DirectStream), "it is a socket, or TLS over one"
        websocket = WebSocketStream(stream, Framing.of_server(behind))
        self._calls.soon(self._admission.admit_opened, listener, websocket, client.host, client.identity)

    async def respond(
        self, site: Site, config: ListenerConfig, busy: trio.CapacityLimiter, client: Client, request: Request
    ) -> Answer:
        """Answer a request, in the thread. Args: busy: limits those that the router works on. Raises: HttpError."""
        if request.method == "OPTIONS":
            return site.preflight(request)
        site.check(request)
        if not (request.is_change or request.method in READING):
            raise HttpError(NOT_ALLOWED, "there is no such method", ("Allow", "GET, HEAD, POST, PATCH, DELETE"))
        if request.path in (HEALTH, READINESS):
            reason = await self._health(request)
            if reason is None and self._siblings is not None:
                reason = await self._siblings.why_not(request)
            return _healthy(reason)
        file = page_answer(request)
        if file is not None:
            return file
        visitor = await self._login(site, config, client, request)
        if request.path == LOGIN:
            return Answer(SEE_OTHER, headers=(("Location", "/"),))
        answer = await self._answer(busy, request, visitor)
        permits = site.permits(request)
        return replace(answer, headers=(*answer.headers, *permits)) if permits else answer

    async def _login(self, site: Site, config: ListenerConfig, client: Client, request: Request) -> Visitor:
        """Return the client of a request. Raises: HttpError: it is not let in.

        The page asks for the login itself: the browser would ask for a password, also for who has a token.
        """
        try:
            return await self._calls.do(partial(self._judge, site, config, client, request))
        except HttpError as error:
            if error.status == UNAUTHORIZED and PAGE_HEADER in request.headers:
                offered = " ".join(value.partition(" ")[0].lower() for _, value in error.headers)
                raise HttpError(
                    UNAUTHORIZED, str(error), ("WWW-Authenticate", f'{PAGE_SCHEME} offered="{offered}"')
                ) from None
            raise

    async def _answer(self, busy: trio.CapacityLimiter, request: Request, visitor: Visitor) -> Answer:
        """Answer a request for the router, which may have several workers. Raises: HttpError."""
        page = partial(self._calls.do, partial(self._page, busy, request, visitor))
        if self._siblings is None:
            return await page()
        worker = self._siblings.chosen(request)
        if worker not in (None, self._siblings.own):
            return await self._siblings.forward(worker, request, visitor)
        if worker is None and (is_entities(request.path) or request.path.startswith(VIEWS)):
            if not is_entities(request.path):
                if request.is_change or request.path != CLIENT:
                    raise HttpError(BAD_REQUEST, "the router has several workers: name one by the parameter router")
                return await page()
            if request.is_change or Place(request.path).identity is not None or PARAMETERS & request.query.keys():
                raise HttpError(BAD_REQUEST, "the router has several workers: name one by the parameter router")
            return self._siblings.listed(request, visitor, await page())
        answer = await page()
        if worker is None and request.path == METRICS:
            return await self._siblings.metrics(request, visitor, answer)
        return answer

    async def _health(self, request: Request) -> str | None:
        """Return the reason why this process is not well; None: it is."""
        if request.method not in READING:
            raise HttpError(NOT_ALLOWED, "the method is not allowed here", ("Allow", "GET, HEAD"))
        if request.path == READINESS:
            return await self._calls.why_not_ready()
        return None if await self._calls.is_alive() else STANDS_STILL

    async def _admit_siblings(self, door: socket.socket) -> None:
        """Answer other workers of this router."""

        async def admit() -> None:
            await trio.lowlevel.wait_readable(door)
            try:
                connected, _ = door.accept()
            except OSError:
                await trio.sleep(PAUSE)
                return
            if is_of_this_user(connected):
                self._nursery.start_soon(self._serve_sibling, TcpStream(connected))
            else:
                connected.close()

        await _for_ever(admit, WORKER)

    async def _serve_sibling(self, stream: TcpStream) -> None:
        try:
            await serve(stream, Client(WORKER), SIBLING_LIMITS, self._respond_to_sibling)
        except Exception as error:
            log.error("internal error", exception=error, peer=WORKER)
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _respond_to_sibling(self, _client: Client, request: Request) -> Answer:
        if request.path in (HEALTH, READINESS):
            return _healthy(await self._health(request))
        try:
            visitor = Visitor.read(request.headers.get(VISITOR, ""))
        except ValueError:
            raise HttpError(BAD_REQUEST, "no visitor") from None
        return await self._calls.do(partial(self._page, None, request, visitor))

    # ------------------------------------------------------------------------------------------------ the router's loop

    async def _judge(self, site: Site, config: ListenerConfig, client: Client, request: Request) -> Visitor:
        """Return the client of a request. Raises: HttpError: it is not let in."""
        host = site.host_of(request)
        shown = request.headers.get("authorization")
        credentials = self._credentials.get(config)
        if credentials is None:
            raise HttpError(UNAVAILABLE, "the listener has just changed", ("Connection", "close"))
        return await self._logins.judge(config, credentials, client, host, shown)

    async def _page(self, busy: trio.CapacityLimiter | None, request: Request, visitor: Visitor) -> Answer:
        """Return a page of this process. Raises: HttpError. Args: busy: None: another worker's listener asks."""
        async with nullcontext() if busy is None else busy:
            if is_entities(request.path):
                return await self._entities.answer(request, visitor, self._calls)
            if request.path.startswith(VIEWS):
                return await self._views.answer(request, visitor)
            if request.path == METRICS:
                return await self._metrics.answer(request, visitor)
            raise HttpError(NOT_FOUND, "there is no such page")

    def credentials_of(self, config: ListenerConfig) -> Credentials | None:
        """Return the credentials of a listener now; None: it has another configuration, or is gone."""
        return self._credentials.get(config)

    def not_secured(self, host: str, reason: str) -> None:
        """Log a failed handshake, from the thread."""
        self._calls.soon(self._core.logins.not_secured, host, reason)


def _healthy(reason: str | None) -> Answer:
    return Answer(OK, b"ok\n") if reason is None else Answer(UNAVAILABLE, f"{reason}\n".encode())


async def _for_ever(step: Callable[[], Awaitable[None]], where: str) -> None:
    """Do something again and again. An internal error ends neither it nor the thread, in which all listeners are."""
    while True:
        try:
            await step()
        except Exception as error:
            log.error("internal error", exception=error, listener=where)
            await trio.sleep(PAUSE)


class _Site:
    """One listener, in the thread."""

    def __init__(self, server: HttpServer, listener: Listener, config: ListenerConfig) -> None:
        self._server = server
        self._listener = listener
        self._config = config
        self._limits = config.http_limits
        self._open = OpenConnections(self._limits.connections)
        self._share = Share(self._limits.share)
        self._site = Site(config)
        self._busy = trio.CapacityLimiter(self._limits.requests)
        #: Cancelled to end it, with its connections.
        self.scope = trio.CancelScope()
        #: Called once the listener is closed at its end; None: it goes on.
        self.at_end: Callable[[], object] | None = None
        self._is_over = trio.Event()

    async def serve(self, before: _Site | None, begun: Callable[[], object]) -> None:
        """Accept connections until it is cancelled.

        Args: before: the site that the listener was until now. begun: called once that one is over.
        """
        try:
            if before is not None:
                await before._is_over.wait()
            begun()
            with self.scope:
                async with trio.open_nursery() as self._nursery:
                    for each in self._listener.sockets:
                        self._nursery.start_soon(_for_ever, partial(self._accept, each), self._listener.name)
        finally:
            self._is_over.set()
            if self.at_end is not None:
                self._listener.close()
                self.at_end()

    async def _accept(self, listening: socket.socket) -> None:
        """Accept the next connection."""
        await trio.lowlevel.wait_readable(listening)
        if self._listener.is_paused:  # the successor takes the connection that has come
            await trio.sleep(PAUSE)
            return
        await self._share.turn()
        try:
            connected, address = listening.accept()
        except (BlockingIOError, ConnectionError):
            return  # another process has taken it, or the client is gone already
        except OSError as error:
            log.warning("accept failed", peer=self._listener.url, reason=error.strerror or str(error))
            await trio.sleep(PAUSE)
            return
        scope = trio.CancelScope()
        if self._open.enter(scope, address[0]):
            self._nursery.start_soon(self._serve, TcpStream(connected), address[0], scope)
        else:
            self._listener.refused += 1
            connected.close()

    async def _serve(self, stream: trio.abc.Stream, host: str, scope: trio.CancelScope) -> None:
        self._listener.connections = len(self._open)
        goes_on = False
        try:
            with scope:
                client = Client(host)
                if self._config.endpoint.secure:
                    secured = await self._secure(stream, host)
                    if secured is None:
                        return
                    stream, identity = secured
                    client = Client(host, identity, secured=True)
                rest, work = partial(self._open.rest, scope), partial(self._open.work, scope)
                behind = await serve(
                    stream,
                    client,
                    self._limits,
                    self._respond,
                    rest=rest,
                    work=work,
                    turn=partial(self._share.turn, network_of(host)),
                )
                if behind is not None:
                    goes_on = True
                    self._server.serve_amqp(self._listener, stream, client, behind)
        except Exception as error:
            log.error("internal error", exception=error, peer=host, listener=self._listener.name)
        finally:
            self._open.leave(scope)
            self._listener.connections = len(self._open)
            if not goes_on:
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(stream)

    async def _secure(self, stream: trio.abc.Stream, host: str) -> tuple[SecuredStream, Identity] | None:
        await self._share.turn(network_of(host))
        credentials = self._server.credentials_of(self._config)
        if credentials is None:
            return None
        assert credentials.context is not None, "the configuration demands a certificate for https"
        return await secure(stream, credentials.context, host, self._server, name=credentials.user_name)

    async def _respond(self, client: Client, request: Request) -> Answer | Switch:
        await self._share.turn(network_of(client.host))
        if request.path == AMQP and self._config.amqp:
            return await self._server.open_amqp(self._site, self._listener, request)
        return await self._server.respond(self._site, self._config, self._busy, client, request)
