"""Listeners for HTTP of a router that starts: most routers have none, and need no package for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from amqpmesh.router.config.listener import ListenerConfig
    from amqpmesh.router.runtime.admission import Admission
    from amqpmesh.router.runtime.credentials import Credentials
    from amqpmesh.router.runtime.listeners import Listener
    from amqpmesh.router.runtime.management_node import ManagementNode
    from amqpmesh.router.runtime.snapshots import Snapshots
    from amqpmesh.router.statistics.configured import ListenerStatistics


class Server(Protocol):
    """A server of some listeners."""

    async def end(self) -> None:
        """End all connections, and unbind the listeners."""


class NoServer:
    """The server of no listeners."""

    async def end(self) -> None:
        """End."""


def by_protocol(listeners: Iterable[Listener]) -> tuple[list[Listener], list[Listener]]:
    """Return the listeners for AMQP, and those for HTTP."""
    found: tuple[list[Listener], list[Listener]] = [], []
    for each in listeners:
        found[each.config.is_http].append(each)
    return found


async def begin_http(
    listeners: Sequence[Listener],
    admission: Admission,
    snapshots: Snapshots,
    credentials: Mapping[ListenerConfig, Credentials],
    start: Callable[[Callable[[], Awaitable[None]]], object],
    management: ManagementNode,
) -> Server:
    """Serve the listeners for HTTP of a router. Args: listeners: all that it has. Others: as of `HttpServer`."""
    _, http = by_protocol(listeners)
    if not http:
        return NoServer()
    from amqpmesh.router.runtime.http_server import HttpServer  # here: h11 is an extra
    from amqpmesh.router.runtime.noted_changes import keep_changes

    def statistics() -> list[ListenerStatistics]:
        return [each.statistics(admission.core.cost_of(each.config)) for each in listeners]

    keep_changes(admission.core, [each.config for each in http])
    server = HttpServer(admission, snapshots, credentials, start, statistics, management)
    await server.begin(http)
    return server
