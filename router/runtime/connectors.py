"""Connections that the router opens itself: one task for each connector, which connects, serves, and reconnects."""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.policies.redirect import NotFollowedError, PeerAddress, RedirectChain
from amqpmesh.router.amqp.standard.definitions import ConnectionCondition
from amqpmesh.router.config.urls import Endpoint, Service, is_loopback
from amqpmesh.router.io.dialing import LASTING, Backoff, Opener, PermanentError, is_refused
from amqpmesh.router.io.dns import LookUp, NoServerError, endpoints
from amqpmesh.router.io.handshake import Identity, SecuredStream
from amqpmesh.router.io.secured_stream import TlsStream
from amqpmesh.router.io.streams import TcpStream
from amqpmesh.router.logs import event_log
from amqpmesh.router.model.redirects import redirect_of
from amqpmesh.router.runtime.connector_ends import end_reason, failure_text
from amqpmesh.router.runtime.tenant_connectors import TenantConnectors
from amqpmesh.router.statistics.configured import ConnectorState, ConnectorStatistics

if TYPE_CHECKING:
    from amqpmesh.policies.redirect import Redirect
    from amqpmesh.router.config.file import ConnectorConfig
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.runtime.credentials import ConnectorCredentials
    from amqpmesh.router.runtime.driver import Driver
    from amqpmesh.router.runtime.transport import Transport

log = event_log.EventLog("amqpmesh.io")

DIAL_TIME: Final = 10.0
"""Seconds to open a stream, its TLS handshake included; the engine has its own time-out for the peer's `open`."""

REPEAT_TIME: Final = 60.0
"""Seconds before a reason that has not changed is logged again."""

QUICK_ROUNDS: Final = 10
"""Failed rounds in a row before the pauses of a mesh connector grow: routers that start together connect soon."""

MOST_WANTED: Final = 8
"""Routers that an `open` names: it must be short, for workers that hand the connection over."""

ServeConnection = Callable[[Callable[[], Awaitable[None]], trio.abc.Stream, str], Awaitable[None]]
"""A function that serves a connection, given its stream and its connector's name, until it ends or the router
ends it.
"""

MakeTransport = Callable[["ConnectionRecord", trio.abc.Stream, None], "Transport"]
"""A function that makes the transport of a connection over its stream."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A place to connect to, and the name that its certificate must have: for a domain's servers, the domain."""

    place: Endpoint | Service
    name: str
    #: The last redirect's place, and the URL before the first redirect; None: there was no redirect.
    chain: RedirectChain | None = None
    redirected_from: str | None = None

    @property
    def described(self) -> str:
        """The destination, as a text for people: the place of the last redirect, if there was one."""
        return str(self.place) if self.chain is None else self.chain.place.described


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a connection, or of an attempt to connect.

    Attributes: `why`: the reason. `was_open`: the peer had opened the connection. `redirected_to`: the destination of
        the peer's redirect; None: there was no redirect.
    """

    why: str
    was_open: bool = False
    redirected_to: Destination | None = None


@dataclass(frozen=True, slots=True)
class Network:
    """The functions that connectors reach the network with; tests and tunnels replace them."""

    open_stream: Opener
    look_up: LookUp
    backoff: Backoff


class Connector:
    """A configured connector; `run` is its task.

    Attributes: `config`. `credentials`: for its next connection.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        credentials: ConnectorCredentials,
        network: Network,
        *,
        driver: Driver,
        transport: MakeTransport,
        serve: ServeConnection,
        run_task: Callable[[Callable[[], Awaitable[None]]], object],
        certified: str | None = None,
    ) -> None:
        """Args: transport: makes the transport of each connection. run_task: runs a task that ends with the router.
        certified: the name that certificates must have;
        None: the host, or the domain, of the URL.
        """
        self.config = config
        self.credentials = credentials
        self._network = network
        self._driver = driver
        self._transport = transport
        self._serve_connection = serve
        self._run_task = run_task
        self._certified = certified
        self._scope = trio.CancelScope()
        self._record: ConnectionRecord | None = None
        self._url: str | None = None
        self._redirected_from: str | None = None
        #: The servers of this round's domains, from DNS.
        self._servers: tuple[str, ...] = ()
        self._failures = 0
        self._reason: str | None = None
        self._logged: dict[str, tuple[str, float]] = {}
        self._stood_by = False
        self._beside: TenantConnectors | None = None
        #: The router that the last connection led to.
        self._neighbour: str | None = None

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.config.name

    def statistics(self, cost: int) -> ConnectorStatistics:
        """Return its state. Args: cost: the cost of sending over its connections."""
        record = self._record
        if record is not None and not record.lost:
            state = ConnectorState.CONNECTING if record.engine.remote is None else ConnectorState.CONNECTED
        elif self._scope.cancel_called:
            state = ConnectorState.ENDED
        elif record is not None and record.stands_by:
            state = ConnectorState.STANDING_BY
        else:
            state = ConnectorState.WAITING if record is not None or self._url is None else ConnectorState.CONNECTING
        is_open = state is ConnectorState.CONNECTED
        return ConnectorStatistics(
            name=self.name,
            role=self.config.role,
            cost=cost,
            state=state,
            url=self._url,
            redirected_from=None if self._url is None else self._redirected_from,
            connection=record.number if record is not None else None,
            failures=0 if is_open else self._failures,
            reason=None if is_open else self._reason,
        )

    def can_become(self, config: ConnectorConfig) -> bool:
        """Tell whether it can have another configuration and keep its connection, which leads to the same place."""
        if (config.name, config.role) != (self.config.name, self.config.role):
            return False
        if config.url == self.config.url:
            return True
        return (
            self._record is not None
            and self._redirected_from is None
            and self._url in {str(each) for each in config.places}
        )

    def stop(self) -> None:
        """Connect no more. An open connection continues until it ends."""
        self._scope.cancel()
        if self._beside is not None:
            self._beside.connect_no_more()

    async def run(self) -> None:
        """Connect, serve and reconnect, until `stop`. Raises: nothing."""
        with self._scope:
            remaining: deque[Destination] = deque()
            while True:
                if not remaining:  # a new round
                    remaining.extend(Destination(place, self._certified or place.host) for place in self.config.places)
                destination = remaining.popleft()
                self._url, self._redirected_from = str(destination.place), destination.redirected_from
                began = trio.current_time()
                try:
                    if isinstance(destination.place, Service):
                        found = await self._find(destination.place, remaining)
                        self._servers = tuple(endpoint.host for endpoint in found)
                        remaining.extendleft(Destination(endpoint, destination.name) for endpoint in reversed(found))
                        continue
                    ended = await self._connect(destination.place, destination)
                except trio.TooSlowError:
                    ended = Ended(f"no connection in {DIAL_TIME:g} s")
                except (OSError, trio.BrokenResourceError) as failure:
                    ended = Ended(failure_text(failure, mesh=self.config.is_mesh))
                    mesh = self._driver.core.mesh
                    if mesh is not None and self._neighbour is not None and not remaining and is_refused(failure):
                        mesh.routes.lane_links.resumed.gone(self._neighbour, trio.current_time())
                        self._driver.settle()
                except Exception as fault:
                    log.error("internal error", exception=fault, connector=self.name, url=self._url)
                    ended = Ended("a fault of this router")
                if self._stood_by:
                    self._stood_by = False
                    self._failures = 0
                    remaining.clear()
                    continue
                if ended.redirected_to is not None:
                    log.info("redirect followed", connector=self.name, url=self._url, to=ended.redirected_to.described)
                    remaining.appendleft(ended.redirected_to)
                    continue
                if ended.was_open and trio.current_time() - began >= LASTING:
                    self._failures = 0
                    remaining.clear()
                await self._pause(ended.why, was_open=ended.was_open, is_over=ended.was_open or not remaining)

    async def _find(self, service: Service, remaining: deque[Destination]) -> list[Endpoint]:
        """Return the servers of a domain. The servers without TLS are tried only if DNS says that there are none with
        TLS.

        Otherwise an attacker who blocks connections or answers of DNS could read what was meant to be secret.
        Raises: OSError: there are no servers, or DNS gave no answer.
        """
        plain = None if not service.secure else Service("amqp", service.domain)
        try:
            found = await endpoints(service, self._network.look_up)
        except NoServerError:
            plain = None
            raise
        finally:
            for destination in [destination for destination in remaining if destination.place == plain]:
                remaining.remove(destination)
        return found

    async def _pause(self, why: str, *, was_open: bool, is_over: bool) -> None:
        """Log why there is no connection, and wait, unless another destination of this round can be tried at once.

        Args: is_over: a connection was open, or the whole round has failed.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        url, self._url = self._url, None
        assert url is not None
        self._reason = why
        pause = None
        if is_over:
            self._failures += 1
            spared = QUICK_ROUNDS - 1 if self.config.is_mesh else 0
            pause = self._network.backoff.pause(max(1, self._failures - spared))
        if was_open:
            self._logged.clear()
        before, at = self._logged.get(url, ("", 0.0))
        if why != before or trio.current_time() - at >= REPEAT_TIME:
            self._logged[url] = why, trio.current_time()
            seconds = None if pause is None else round(pause, 3)
            log.warning("connector retrying", connector=self.name, url=url, reason=why, seconds=seconds)
        await trio.sleep(pause or 0.0)

    async def _connect(self, endpoint: Endpoint, destination: Destination) -> Ended:
        """Open one connection and serve it to its end.

        Raises: OSError, BrokenResourceError, TooSlowError: it could not be opened.
        """
        chain = destination.chain or RedirectChain(self._place(endpoint, destination.name))
        stream, identity = await self._dial(endpoint, destination, chain.place)
        beside = self._beside = self._of_tenants(endpoint, destination, chain)
        try:
            if beside is not None:
                await _before(stream, beside)
            record = self._record = self._start(endpoint, chain, identity)
            began = trio.current_time()
            transport = self._transport(record, stream, None)
            await self._serve_connection(transport.run, stream, self.name)
            self._end_beside()
            if self.config.is_mesh and record.engine.remote is not None:  # else nobody has said who is there
                self._neighbour = record.peer.container_id
            if record.stands_by:
                await self._stand_by(record.peer.container_id)
        finally:
            self._end_beside()
            self._record = None
        why = end_reason(self.config, record, transport.read_error, endpoint)
        redirected_to = None
        told = record.closed.error if record.closed is not None and record.closed.by_peer else None
        if told is not None and told.condition == ConnectionCondition.REDIRECT:
            lasted = trio.current_time() - began >= LASTING
            try:
                found = self._follow(RedirectChain(chain.place) if lasted else chain, redirect_of(told))
            except NotFollowedError as refusal:
                why = f"{why}; not followed: {refusal}"
            else:
                redirected_to = Destination(
                    _endpoint(found.place), found.place.certified, found, destination.redirected_from or str(endpoint)
                )
        return Ended(why, was_open=record.engine.remote is not None, redirected_to=redirected_to)

    async def _dial(
        self, endpoint: Endpoint, destination: Destination, place: PeerAddress
    ) -> tuple[trio.abc.Stream, Identity]:
        """Open a stream to a destination. Args: place: the same, for WebSockets. Raises: as `_connect`."""
        with trio.fail_after(DIAL_TIME):
            stream = await self._network.open_stream(endpoint)
            identity = Identity()
            if endpoint.secure:
                stream, identity = await _secured(stream, self.credentials.context, destination.name)
            if place.websocket is not None:
                stream = await _through_websocket(stream, place)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except trio.Cancelled:
            # Stopped while the stream was being opened: no other code would end the connection.
            await trio.aclose_forcefully(stream)
            raise
        return stream, identity

    def _start(
        self, endpoint: Endpoint, chain: RedirectChain, identity: Identity, lanes_of: str | None = None
    ) -> ConnectionRecord:
        """Begin a connection over a stream. Args: lanes_of: as of `Core.connect`."""
        return self._driver.core.connect(
            self.config,
            endpoint.host,
            trio.current_time(),
            secured=endpoint.secure,
            certificate=identity.certificate,
            certificate_user=identity.user,
            certificate_subject=identity.subject,
            password=self.credentials.password,
            hostname=chain.place.hostname,
            redirected=chain.is_redirected and not self._is_named(chain.place),
            lanes_of=lanes_of,
            wanted=self._wanted(endpoint, lanes_of),
        )

    def _wanted(self, endpoint: Endpoint, lanes_of: str | None) -> list[str]:
        """Return the routers that a connection is wanted to, if there are several behind its place.

        First comes the one that the last connection led to: another connector may be about to come back to another one.
        Connections for single tenants are of use only beside the one for all.
        """
        mesh, record = self._driver.core.mesh, self._record
        if mesh is None or not self.config.is_mesh or endpoint.is_unix:
            return []
        if lanes_of is not None and record is not None and record.engine.remote is not None:
            return [record.peer.container_id]
        awaited = mesh.routes.lane_links.resumed.awaited()
        beside = () if lanes_of is not None or self._beside is None else self._beside.routers()
        return [*sorted(awaited, key=lambda each: each != self._neighbour), *beside][:MOST_WANTED]

    def _end_beside(self) -> None:
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.stop()

    def _of_tenants(
        self, endpoint: Endpoint, destination: Destination, chain: RedirectChain
    ) -> TenantConnectors | None:
        mesh = self._driver.core.mesh
        if mesh is None or not self.config.is_mesh:
            return None

        async def connect(tenant: str, report: Callable[[ConnectionRecord], None]) -> str:
            stream, identity = await self._dial(endpoint, destination, chain.place)
            record = self._start(endpoint, chain, identity, tenant)
            report(record)
            transport = self._transport(record, stream, None)
            await self._serve_connection(transport.run, stream, self.name)
            return end_reason(self.config, record, transport.read_error, endpoint)

        return TenantConnectors(self.name, mesh, self._driver, self._network.backoff, self._run_task, connect)

    def _place(self, endpoint: Endpoint, name: str) -> PeerAddress:
        """Return a place that the configuration names. Args: name: the name that its certificate must have."""
        return PeerAddress(
            network_host=endpoint.host,
            port=endpoint.port,
            secure=endpoint.secure,
            hostname=self.config.hostname or name,
            certified=name,
            websocket=endpoint.path if endpoint.is_websocket else None,
        )

    def _is_named(self, place: PeerAddress) -> bool:
        """Return True if the configuration names a place that a redirect has led to."""
        named = (each for each in self.config.places if isinstance(each, Endpoint))
        return any(place.is_same(self._place(each, self._certified or each.host)) for each in named)

    def _follow(self, chain: RedirectChain, redirect: Redirect) -> RedirectChain:
        """Return the place that the peer redirects to (§2.8.16). Raises: NotFollowedError: it is not followed; with the
        reason.
        """
        policy = self.config.redirect_policy
        if redirect.hostname is None or policy.allows(redirect.hostname):
            # Servers of a domain may redirect to each other. DNS does not say which names their certificates have.
            policy = replace(policy, own=(*policy.own, *self._servers))
        found = policy.follow(chain, redirect)
        if self.config.is_mesh and not found.place.secure and not is_loopback(found.place.network_host):
            raise NotFollowedError("a mesh without certificates is on loopback only")
        return found

    async def _stand_by(self, router: str) -> None:
        """Wait while the neighbour's own connection to this router is open."""
        mesh = self._driver.core.mesh
        assert mesh is not None, "only connections within a mesh stand by"
        log.info("connector on standby", connector=self.name, url=self._url, router=router)
        await self._driver.until(lambda: not mesh.has_neighbour(router))
        self._stood_by = True


async def _before(stream: trio.abc.Stream, beside: TenantConnectors) -> None:
    """Have the connections for single tenants opened, before the one over `stream`."""
    beside.follow()
    try:
        await beside.until_open()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


def _endpoint(place: PeerAddress) -> Endpoint:
    return Endpoint(place.scheme, place.network_host, place.port, place.websocket or "")


async def open_tcp(endpoint: Endpoint) -> TcpStream:
    """Open a TCP connection by IPv6 or IPv4, whichever answers first; or one to a Unix socket. Raises: OSError."""
    if endpoint.is_unix:
        stream = await trio.open_unix_socket(endpoint.host)
    else:
        stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
    return TcpStream(socket.socket(fileno=stream.socket.detach()))


async def _secured(
    stream: trio.abc.Stream, context: ssl.SSLContext | None, name: str
) -> tuple[trio.abc.Stream, Identity]:
    """Return the stream inside TLS, as its client (§5.2). Raises: BrokenResourceError: the handshake failed."""
    assert context is not None, "amqps has a context"
    secured: SecuredStream
    if isinstance(stream, TcpStream):
        secured = TlsStream(stream, context, server_hostname=name)
    else:
        secured = trio.SSLStream(stream, context, server_hostname=name, https_compatible=True)
    try:
        await secured.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return secured, Identity.of(secured)


async def _through_websocket(stream: trio.abc.Stream, place: PeerAddress) -> trio.abc.Stream:
    """Return the stream through a WebSocket over another one. Raises: BrokenResourceError: there is none for AMQP."""
    from amqpmesh.router.io.websocket_client import open_websocket  # here: wsproto is an extra

    try:
        return await open_websocket(stream, place)
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if isinstance(error, PermanentError):  # a connector tries again whatever the reason
            raise trio.BrokenResourceError from error.error
        raise
