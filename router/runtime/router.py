"""`Router`: one nursery with all tasks of a router."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import trio

from amqpmesh.router.amqp.errors import CommandError, shown
from amqpmesh.router.amqp.standard.definitions import ConnectionCondition, Error
from amqpmesh.router.client.connections.in_process import InProcess
from amqpmesh.router.client.factory import LinkFactory
from amqpmesh.router.client.links.arguments import demand_trio
from amqpmesh.router.client.links.link_manager import LinkManager
from amqpmesh.router.config.file import ConnectorConfig, LinkConfig, ListenerConfig, RouterConfig, load
from amqpmesh.router.config.policy_trust import read_policy
from amqpmesh.router.core import Core
from amqpmesh.router.incremental import Steps, run_to_end
from amqpmesh.router.io.dialing import Backoff, Opener
from amqpmesh.router.io.dns import LookUp, look_up
from amqpmesh.router.io.environment import environment
from amqpmesh.router.io.streams import DirectStream
from amqpmesh.router.io.threads import aside
from amqpmesh.router.logs import event_log
from amqpmesh.router.runtime import poller
from amqpmesh.router.runtime.admission import Admission, Served
from amqpmesh.router.runtime.applying import ENDS, Applied, ConfigChanges
from amqpmesh.router.runtime.config_answers import answer_change
from amqpmesh.router.runtime.connectors import Connector, Network, open_tcp
from amqpmesh.router.runtime.credentials import ConnectorCredentials, Credentials, membership
from amqpmesh.router.runtime.driver import Driver
from amqpmesh.router.runtime.edge import Edge
from amqpmesh.router.runtime.ending import Ending, EndSteps, answer_drain
from amqpmesh.router.runtime.heap import RouterMemory
from amqpmesh.router.runtime.http_listeners import HttpListeners
from amqpmesh.router.runtime.listeners import Listener
from amqpmesh.router.runtime.management_node import ManagementNode
from amqpmesh.router.runtime.observers import Observers
from amqpmesh.router.runtime.on_demand_connectors import OnDemand
from amqpmesh.router.runtime.openings import opened
from amqpmesh.router.runtime.policy_store import PolicyStore
from amqpmesh.router.runtime.polled import PolledTransport
from amqpmesh.router.runtime.poller import Poller
from amqpmesh.router.runtime.reload import ConfigSource, NewConfig
from amqpmesh.router.runtime.snapshots import Snapshots, survey
from amqpmesh.router.runtime.streamed import StreamTransport
from amqpmesh.router.runtime.succession import Succession
from amqpmesh.router.runtime.token_keys import TokenFiles
from amqpmesh.router.runtime.token_store import TokenStore
from amqpmesh.router.statistics.router_statistics import Statistics

if TYPE_CHECKING:
    from amqpmesh.router.io.handshake import Identity
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.runtime.inherited import Inherited
    from amqpmesh.router.runtime.membership import Membership
    from amqpmesh.router.runtime.transport import Transport

log = event_log.EventLog("amqpmesh.io")

SHUTDOWN = Error(condition=ConnectionCondition.CONNECTION_FORCED, description="the router is shut down")


class Router(LinkFactory):
    """A router, from `async with` until its end: it relays between its peers.

    It changes nothing of the process: no signals, no configuration of logging, no environment. Errors of the body are
    raised unchanged, and background errors never cancel the body. Leaving drains, unless the body was cancelled: then
    peers get a `close` as far as that needs no waiting.
    """

    def __init__(
        self,
        config: RouterConfig | Path | None = None,
        *,
        listeners: Sequence[str | ListenerConfig] = (),
        connectors: Sequence[str | ConnectorConfig] = (),
        container_links: Sequence[LinkConfig] = (),
        open_stream: Opener = open_tcp,
        look_up: LookUp = look_up,
        backoff: Backoff = Backoff(),  # noqa: B008 - it cannot be changed
        epoch: int | None = None,
        **settings: Any,
    ) -> None:
        """Args:
            config: a configuration, or the file that holds one; None: all defaults, and no listener.
            listeners: additional listeners, as URLs or configurations.
            connectors: additional connectors, as configurations, or as URLs of routers of the mesh.
            container_links: additional container links.
            open_stream: opens the streams of connectors: TCP, or a tunnel, or a test's.
            look_up: asks DNS for the servers of a domain.
            backoff: the pauses of connectors between attempts.
            epoch: of this life of the router in its mesh, greater than the last; None: from the wall clock.
            settings: other keys of `RouterConfig`, such as `id`, `drain`, `idle_time_out`; they override `config`, and
            also hold for the listeners given as URLs and for `serve_stream`.
        Raises: ConfigError: a value or a file is not valid. TypeError: there is no such setting.
        """
        if isinstance(config, Path):
            config = load(config)
        config = replace(config or RouterConfig(), **settings)
        self.config = config = config.with_more(listeners, connectors, container_links)
        self.id = config.id
        self._edge = Edge()
        #: The file that the command line has started it with; None, in a program.
        self.source: ConfigSource | None = None
        #: The sockets of the process before this one; None: there was none.
        self._inherited: Inherited | None = None
        self._network = Network(open_stream, look_up, backoff)
        # The default listener of streams. Clients within the process need no login, as those on loopback.
        self._stream_listener = replace(config.with_listeners("amqp://localhost").listeners[-1], name="stream")
        self._inside = InProcess(self._stream_listener)
        self._policies = PolicyStore(config)
        self._snapshots = Snapshots(self._take_snapshot)
        self._management = ManagementNode(
            self._stream_listener,
            self._snapshots,
            self._policies.take,
            lambda request, by: answer_change(self._changes, self.source, request, by),
            lambda request, by: answer_drain(self._ending, self.source, request, by),
            lambda: self._ending.answered(),
        )
        self._on_demand = OnDemand(self._start_connector)
        self._membership: Membership | None = None
        self._epoch = epoch
        self._core: Core | None = None
        self._accepting = False
        self._served = Served()

    def __repr__(self) -> str:
        stage = "new" if self._core is None else "running" if self._accepting else "over"
        urls = ", ".join(each.url for each in self.listeners)
        return f"<Router {shown(self.id)} {stage}{urls and f', listens at {urls}'}>"

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The listeners, in the order of the configuration; none before `async with`."""
        return tuple(self._edge.listeners)

    @property
    def connectors(self) -> tuple[Connector, ...]:
        """The connectors, in the order of the configuration; none before `async with`."""
        return tuple(self._edge.connectors)

    async def __aenter__(self) -> Self:
        """Listen, then serve.

        Raises: OSError: a listener could not be bound; with its URL. ConfigError: a certificate or the users are not
            valid. CommandError: the router has run before, or this is not inside `trio.run`.
        """
        demand_trio()
        if self._core is not None:
            raise CommandError("a router runs once")
        await trio.lowlevel.checkpoint()
        mesh = self.config.mesh
        member = self._member()
        policy = None if self.config.policy is None else await aside(partial(read_policy, self.config.policy), mesh)
        token_files = await TokenFiles.read_aside(self.config)
        edge = self._edge
        edge.credentials.update(Credentials.load_all(self.config.listeners, mesh))
        credentials = [ConnectorCredentials.load(connector, mesh) for connector in self.config.connectors]
        with ExitStack() as undoing:
            bound, shared = [], self.config.worker is not None
            for listener in self.config.listeners:
                bound.append(await Listener.bind(listener, shared=shared, inherited=self._inherited))
                undoing.callback(bound[-1].close)
            core = Core(self.config, trio.current_time(), environment().token, self._wall)
            core.context.users_of = edge.users_of
            core.context.is_revoked = edge.is_revoked
            core.on_demand.on_connect = self._on_demand.connect
            core.on_demand.on_disconnect = self._on_demand.disconnect
            tokens = TokenStore(core, self._wall)
            tokens.begin(self.config, token_files)
            if member is not None:
                core.mesh = member.join(core, trio.current_time(), self._epoch)
            observers = Observers(self.config, self._stream_listener)
            observers.begin(core, self._wall)
            undoing.pop_all()
        self._observers = observers
        self._membership = member
        edge.hold(bound)
        self._core = core
        self._driver = self._drive(core)
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._poller = Poller(self._driver, self._nursery.start_soon) if poller.EPOLL is not None else None
        self._admission = Admission(
            core,
            self._driver,
            self._poller,
            self._nursery.start_soon,
            edge.amqp,
            edge.credentials_of,
            partial(self._serve, shield=True),
            self._served,
        )
        steps = EndSteps(self._stop_accepting, self._close_all, self._until_nobody_is_served, self._drop_all)
        self._ending = Ending(core, self._driver, lambda: self.config, steps, self._admission)
        if policy is not None:
            self._policies.begin(self._driver, self._nursery.start_soon, policy)
        self._accepting = True
        self._inside.begin(self._driver, self._start_inside)
        self._snapshots.begin(self._start_inside)
        self._management.begin(self._driver, self._start_inside)
        self._nursery.start_soon(self._management.serve)
        self._nursery.start_soon(self._driver.run_timers)
        self._nursery.start_soon(self._driver.run_chores)
        observers.start(self._nursery.start_soon, self._driver, self._start_inside)
        tokens.start(self._nursery.start_soon)
        start, management = self._start_inside, self._management
        edge.http = HttpListeners(bound, self._admission, self._snapshots, edge.credentials, start, management)
        await edge.http.begin()
        self._changes = ConfigChanges(
            core,
            self._driver,
            edge,
            on_demand=self._on_demand,
            policies=self._policies,
            observers=observers,
            membership=member,
            tokens=tokens,
            changed=self._config_changed,
        )
        edge.begin(core, self._poller, self._nursery.start_soon, self._admission.admit, self._start_connector)
        for connector, loaded in zip(self.config.connectors, credentials, strict=True):
            edge.connect(connector, loaded)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Drain, and end."""
        try:
            await self.drain()
        except trio.Cancelled:
            if error is None:  # otherwise the body's error is raised
                raise
        finally:
            self._stop_accepting()
            self._close_all()
            with trio.CancelScope(shield=True):  # this does not wait for peers
                await self._drop_all()
                await self._observers.end()
                await self._edge.http.end()
            self._admission.close()
            if self._poller is not None:
                self._poller.end()
            # The nursery gets no error, so it does not wrap the body's. The shield keeps the cancellation inside.
            self._nursery.cancel_scope.shield = True
            self._nursery.cancel_scope.cancel()
            await self._manager.__aexit__(None, None, None)

    async def drain(self) -> bool:
        """Accept no connections and no new deliveries, wait until all is settled or `drain` seconds have passed, then
        close.

        Idle clients do not prolong it. Peers have a second to answer; then every connection is closed. After the call
        nothing is accepted any more, even if it is cancelled; a second call does no harm.

        Returns: True if everything was settled in time.
        """
        self._started()
        return await self._ending.drain()

    async def move_clients(self, *, pace: float | None = None, timeout: float | None = None) -> bool:
        """Move all clients to other routers, in portions, before `drain`; if it is cancelled, the rest stays.

        Each connection is closed once its deliveries are settled, and new clients are turned away. Links within the
        program are not moved. Paths of the mesh lead around the router where there is another way.

        Args: pace: the share of the clients that is moved in a second; ten clients at least. timeout: seconds that it
            may take. None: as configured. Returns: whether all were moved in time.
        """
        self._started()
        self._ending.begin(pace, timeout)
        try:
            return await self._ending.until_moved()
        except trio.Cancelled:
            self._ending.cancel()
            raise

    def reload(self, config: RouterConfig | Path | None = None) -> list[str]:
        """Read users and certificates again, for new connections, and the policy, for all.

        Open connections stay, except those that the policy does not permit any more, those of users who may not log in
        any more, and those to routers of the mesh that are not trusted any more.

        Args: config: another configuration, to be compared with the one in force.
        Returns: the keys that differ: `apply` puts them in force.
        Raises: ConfigError: a file is not valid; then nothing has changed.
        """
        self._started()
        return self._changes.reload(config)

    async def reload_aside(self, config: NewConfig = None) -> list[str]:
        """Do the same as `reload`, in a thread. Args: config: may also be a function that reads it."""
        self._started()
        return await self._changes.reload_aside(config)

    async def apply(self, config: NewConfig = None, *, dry_run: bool = False) -> Applied:
        """Put a configuration in force without a restart, as a whole or not at all; read all files again, too.

        Args: config: the new configuration, its file, or a function that reads it in a thread; None: the one in force.
            dry_run: compare only.
        Returns: what differs, and which differences wait for a restart.
        Raises: ConfigError: it, or a file that it names, is not valid, or the audit log could not be opened. OSError: a
            listener could not be bound, with its URL. CommandError: the router does not run. Then nothing has changed.
        """
        if not self._accepting:
            raise CommandError(ENDS)
        return await self._changes.apply(config, dry_run=dry_run)

    def _config_changed(self, config: RouterConfig) -> None:
        before, self.config = self.config, config
        if before.log != config.log and self.source is not None:
            self.source.set_log(config.log)

    async def serve_stream(
        self, stream: trio.abc.Stream, listener: ListenerConfig | None = None, *, host: str = "stream"
    ) -> None:
        """Serve a client over any stream until it is gone; then close the stream.

        Args: listener: the listener whose rules hold; None: one without logins. With `amqps`, TLS comes first;
            with `ws`, a WebSocket; with `wss`, both.
            host: the name of the peer's side, for logs, and to tell peers without a name apart.
        Raises: CommandError: the router was not started, or accepts no more connections. ConfigError: the listener's
            files are not valid. No error of the peer is raised.
        """
        self._started()
        if not self._accepting:
            raise CommandError(ENDS)
        listener = listener or self._stream_listener
        if listener.is_http:
            raise CommandError("streams of a program carry AMQP, no HTTP")
        if listener not in self._edge.credentials:
            self._edge.credentials[listener] = Credentials.load(listener, self.config.mesh)
        await self._serve(stream, listener, host, None, shield=False)

    def statistics(self) -> Statistics:
        """Return the current statistics. After the router has ended, they are empty unless something was not released.

        Raises: CommandError: the router was never started.
        """
        return run_to_end(self._take_snapshot())

    def _take_snapshot(self) -> Steps[Statistics]:
        core, connectors = self._started(), (*self.connectors, *self._on_demand)
        return survey(core, self.listeners, connectors, self._policies.statistics(), self._changes.marks)

    @property
    def _link_manager(self) -> LinkManager:
        return self._inside

    def _drive(self, core: Core) -> Driver:
        return Driver(core)

    def _member(self) -> Membership | None:
        return membership(self.config)

    def _wall(self) -> float:
        """Return the time of the wall clock, seconds since 1970."""
        return time.time()

    # ----------------------------------------------------------------------------------------------------- connections

    def _start_inside(self, serve: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(self._serve_inside, serve)

    async def _serve_inside(self, serve: Callable[[], Awaitable[None]]) -> None:
        await self._serve_connection(serve, None, shield=True, listener="in-process")

    def _start_connector(
        self, config: ConnectorConfig, credentials: ConnectorCredentials, certified: str | None = None
    ) -> Connector:
        connector = Connector(
            config,
            credentials,
            self._network,
            driver=self._driver,
            transport=self._transport,
            serve=self._serve_opened,
            run_task=self._nursery.start_soon,
            certified=certified,
        )
        self._nursery.start_soon(connector.run)
        return connector

    async def _serve_opened(self, serve: Callable[[], Awaitable[None]], stream: trio.abc.Stream, name: str) -> None:
        await self._serve_connection(serve, stream, shield=True, connector=name)

    async def _serve(
        self, stream: trio.abc.Stream, listener: ListenerConfig, host: str, known: Identity | None, *, shield: bool
    ) -> None:
        serve = partial(self._accept, stream, listener, host, known)
        await self._serve_connection(serve, stream, shield=shield, peer=host, listener=listener.name)

    async def _serve_connection(
        self, serve: Callable[[], Awaitable[None]], stream: trio.abc.Stream | None, *, shield: bool, **named: str
    ) -> None:
        """Serve one connection to its end. Raises: nothing; an internal error is logged and ends this connection only.

        Args: stream: closed at the end. shield: only the router ends it, after a `close` to its peer. named: for logs.
        """
        with trio.CancelScope(shield=shield) as scope:
            self._served.add(scope)
            try:
                await serve()
            except Exception as error:
                log.error("internal error", exception=error, **named)
            finally:
                self._served.discard(scope)
                if stream is not None:
                    await trio.aclose_forcefully(stream)

    async def _accept(self, stream: trio.abc.Stream, config: ListenerConfig, host: str, known: Identity | None) -> None:
        core = self._started()
        credentials = self._edge.credentials_of(config)
        found = await opened(stream, config, credentials, host, core.logins, known)
        now = self._edge.admitting(config)
        if found is None or now is None:  # it has failed, or the listener does not admit it any more
            return
        (stream, identity), secured = found, config.endpoint.secure
        record = credentials.accept(core, now, host, trio.current_time(), identity, secured=secured)
        await self._admission.serve_secured(self._transport(record, stream, credentials))

    def _transport(
        self, record: ConnectionRecord, stream: trio.abc.Stream, credentials: Credentials | None
    ) -> Transport:
        if self._poller is not None and isinstance(stream, DirectStream):
            return PolledTransport(self._driver, record, stream, credentials, self._poller)
        return StreamTransport(self._driver, record, stream, credentials, self._nursery.start_soon)

    # ---------------------------------------------------------------------------------------------------------- ending

    def _started(self) -> Core:
        if self._core is None:
            raise CommandError("the router was not started: `async with` starts it")
        return self._core

    def _stop_accepting(self) -> None:
        self._accepting = False
        self._admission.stop()
        self._inside.end()
        self._management.end()
        self._observers.stop()
        self._snapshots.end()
        self._edge.stop()
        self._on_demand.stop()

    def _close_all(self) -> None:
        try:
            self._started().close_all(trio.current_time(), SHUTDOWN)
        except Exception as error:  # then they end without a close
            log.error("internal error", exception=error)
        self._driver.settle()

    async def _drop_all(self) -> None:
        self._served.cancel()
        await self._until_nobody_is_served()

    async def _until_nobody_is_served(self) -> None:
        await self._served.until_none()
        self._driver.finish_chores()


def memory_of(router: Router) -> RouterMemory:
    """Return the memory use of a router, for `heap`. Raises: CommandError: the router was never started."""
    return RouterMemory(router._started(), router._edge.listeners)


def changes_of(router: Router) -> ConfigChanges:
    """Return the changes of a router that runs, for the command that has started it."""
    return router._changes


def inherit(router: Router, sockets: Inherited | None) -> None:
    """Have a router that is not started yet listen at the sockets of the process before this one."""
    router._inherited = sockets


def succession_of(router: Router) -> Succession:
    """Return the succession of a router that runs, for the process around it."""
    connect, start = router._start_connector, router._nursery.start_soon
    return Succession(router._driver, router._edge, router._poller, start, router._admission.admit, connect)


def ending_of(router: Router) -> Ending:
    """Return the end of a router, for the process around it. Raises: CommandError: the router was never started."""
    router._started()
    return router._ending
