"""A path to a router that a test can cut, while the router stays."""

from __future__ import annotations

from contextlib import suppress

import trio

from tests.support.processes.router_thread import Served


class Way:
    """A port that leads to that router."""

    def __init__(self, served: Served) -> None:
        self._to = int(served.url.rpartition(":")[2])
        self._scopes: set[trio.CancelScope] = set()
        #: How many came.
        self.made = 0
        port = served.begin(self._serve)
        self.url = f"amqp://127.0.0.1:{port}"

    def cut(self) -> None:
        """Break all connections over it. Only the router's thread may call this."""
        for scope in self._scopes:
            scope.cancel()

    def cut_soon(self) -> None:
        """Break them from any thread, without waiting."""
        self._token.run_sync_soon(self.cut)

    async def _serve(self, *, task_status: trio.TaskStatus[int]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(listener.socket.getsockname()[1])
        await trio.serve_listeners(self._lead, [listener])

    async def _lead(self, near: trio.SocketStream) -> None:
        self.made += 1
        far = await trio.open_tcp_stream("127.0.0.1", self._to)
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                async with near, far, trio.open_nursery() as nursery:
                    nursery.start_soon(self._pass, near, far, nursery.cancel_scope)
                    nursery.start_soon(self._pass, far, near, nursery.cancel_scope)
            finally:
                self._scopes.discard(scope)

    async def _pass(self, source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError):
            async for data in source:
                await sink.send_all(data)
        both.cancel()
