"""Listeners for HTTP of a router: most routers have none, and need no package for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from amqpmesh.router.config.listener import ListenerConfig
    from amqpmesh.router.runtime.admission import Admission
    from amqpmesh.router.runtime.credentials import Credentials
    from amqpmesh.router.runtime.http_server import HttpServer
    from amqpmesh.router.runtime.listeners import Listener
    from amqpmesh.router.runtime.management_node import ManagementNode
    from amqpmesh.router.runtime.snapshots import Snapshots
    from amqpmesh.router.statistics.configured import ListenerStatistics


def by_protocol(listeners: Iterable[Listener]) -> tuple[list[Listener], list[Listener]]:
    """Return the listeners for AMQP, and those for HTTP."""
    found: tuple[list[Listener], list[Listener]] = [], []
    for each in listeners:
        found[each.config.is_http].append(each)
    return found


class HttpListeners:
    """The listeners for HTTP of one router, and their server, if there are any."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        admission: Admission,
        snapshots: Snapshots,
        credentials: Mapping[ListenerConfig, Credentials],
        start: Callable[[Callable[[], Awaitable[None]]], object],
        management: ManagementNode,
    ) -> None:
        """Args: listeners: all that the router has, always the current ones. Others: as of `HttpServer`."""
        self._listeners = listeners
        self._admission = admission
        self._snapshots = snapshots
        self._credentials = credentials
        self._start = start
        self._management = management
        self._server: HttpServer | None = None

    async def begin(self) -> None:
        """Serve those that the router starts with. Only then those of other workers can ask this one."""
        for each in by_protocol(self._listeners)[1]:
            self.serve(each)
        await self.settled()

    def serve(self, listener: Listener) -> None:
        """Serve a listener from now on, by the configuration that it has now. Its connections until now end."""
        from amqpmesh.router.runtime.noted_changes import keep_changes

        if self._server is None:
            from amqpmesh.router.runtime.http_server import HttpServer  # here: h11 is an extra

            self._server = HttpServer(
                self._admission, self._snapshots, self._credentials, self._start, self._statistics, self._management
            )
        keep_changes(
            self._admission.core, [listener.config, *(each.config for each in by_protocol(self._listeners)[1])]
        )
        self._server.serve(listener)

    def remove(self, listener: Listener) -> None:
        """Close a listener, and its connections."""
        assert self._server is not None, "it serves it"
        self._server.remove(listener)

    async def settled(self) -> None:
        """Wait until all listeners are served as they are now, and those that were removed are closed."""
        if self._server is not None:
            await self._server.settled()

    async def end(self) -> None:
        """End all connections, and unbind the listeners."""
        if self._server is not None:
            await self._server.end()

    def _statistics(self) -> list[ListenerStatistics]:
        return [each.statistics(self._admission.core.cost_of(each.config)) for each in self._listeners]
