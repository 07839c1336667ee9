"""The routers of a simulated mesh, over their restarts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.client.factory import LinkFactory
from amqpmesh.topology.simulation.log import log_as

if TYPE_CHECKING:
    from amqpmesh.router.client.connect import Connection
    from amqpmesh.router.client.links.link_manager import LinkManager
    from amqpmesh.router.config.file import ListenerConfig
    from amqpmesh.router.statistics.router_statistics import Statistics
    from amqpmesh.topology.simulation.links import End
    from amqpmesh.topology.simulation.network import Host, Serve
    from amqpmesh.topology.simulation.routers import HostedRouter

START: Final = 1_700_000_000.0
"""The time of wall clocks when the run begins, in seconds since 1970."""


def true_time() -> float:
    """Return the time of wall clocks that are right, in seconds since 1970."""
    return START + trio.current_time()


class Node(LinkFactory):
    """One router of the mesh: the part that survives its death and restart.

    Its senders, receivers and requesters are links within the process, and die with it. `connect` makes a connection.
    """

    def __init__(
        self,
        host: Host,
        make: Callable[[Node], HostedRouter],
        connect: Callable[..., Connection],
        start: Callable[..., object],
    ) -> None:
        self.host = host
        #: The error of its wall clock, in seconds.
        self.clock_error = 0.0
        #: The number of its starts.
        self.lives = 0
        #: True if `kill` ended its last run.
        self.was_killed = False
        self._make = make
        self._connect = connect
        self._start = start
        self._router: HostedRouter | None = None
        self._scope = trio.CancelScope()
        self._leave = trio.Event()
        self._over = trio.Event()
        self._over.set()

    def __repr__(self) -> str:
        return f"<Node {self.id} {'frozen' if self.is_frozen else 'running' if self.is_running else 'down'}>"

    @property
    def id(self) -> str:
        """The router's id."""
        return self.host.name

    @property
    def is_running(self) -> bool:
        """True if it was started, and has not ended since."""
        return not self._over.is_set()

    @property
    def is_frozen(self) -> bool:
        """True if it is frozen."""
        return self.host.frozen

    @property
    def router(self) -> HostedRouter:
        """The router of the present or last run. Raises: CommandError: it was never started."""
        if self._router is None:
            raise CommandError(f"router {self.id} was never started")
        return self._router

    @property
    def epoch(self) -> int:
        """Return the epoch of the next run: milliseconds of its wall clock, plus the number of earlier runs."""
        return round(self.wall_clock() * 1000) + self.lives

    def wall_clock(self) -> float:
        """Return the time by its host's clock, in seconds since 1970."""
        return true_time() + self.clock_error

    def connect(self, **options: Any) -> Connection:
        """Return a client's connection to it; as `Mesh.connect`."""
        return self._connect(self.id, **options)

    def statistics(self) -> Statistics:
        """Return its state; after its end, its remains. Raises: CommandError: it was never started."""
        return self.router.statistics()

    @property
    def _link_manager(self) -> LinkManager:
        return self.router._link_manager

    # --------------------------------------------------------------------------------------------------------- its runs

    async def live(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the router until `leave` or `kill`."""
        log_as(self.id)
        self._over = trio.Event()
        self._leave = trio.Event()
        try:
            with trio.CancelScope() as self._scope:
                self._router = self._make(self)
                self.lives += 1
                self.was_killed = False
                async with self._router:
                    task_status.started()
                    await self._leave.wait()
        finally:
            self.host.servers.clear()
            self._over.set()

    async def leave(self) -> None:
        """Let it drain and end."""
        self._leave.set()
        await self._over.wait()

    async def kill(self) -> None:
        """End it at once. If its connections were cut before, no peer gets anything from it any more."""
        self.was_killed = True
        self._scope.cancel()
        await self._over.wait()

    def serve(self, port: int, listener: ListenerConfig | None) -> None:
        """Accept connections at a port, in this run. Args: listener: its configuration; None: for clients."""
        self.host.servers[port] = self._server(self.router, listener)

    def _server(self, router: HostedRouter, listener: ListenerConfig | None) -> Serve:
        async def serve(stream: End, peer: Host) -> None:
            log_as(self.id)
            await self.host.thawed()
            with suppress(CommandError):  # it is about to end
                await router.serve_stream(stream, listener, host=peer.name)
            await trio.aclose_forcefully(stream)

        return serve
