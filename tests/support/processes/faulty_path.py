"""A path between two processes on which a test cuts, stalls and delays connections."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import trio

LARGEST = 1 << 16
PATIENCE = 60.0  # seconds for the thread to begin, and to end


class _Ways(NamedTuple):
    """The two directions of connections, each set once nothing passes any more."""

    up: trio.Event
    down: trio.Event


class Strait:
    """A proxy that listens at `port` and leads to another port. Any thread may call its methods, which return when
    done.
    """

    def __init__(self, to: int) -> None:
        """Args: to: the port that it leads to, where somebody may listen only later."""
        self._to = to
        self._scopes: set[trio.CancelScope] = set()
        self._ways = _Ways(trio.Event(), trio.Event())
        self._open = trio.Event()
        self._open.set()
        self._closed = False
        self._delay = 0.0
        #: How many connections have come about.
        self.made = 0
        self.port = 0
        self._ready = threading.Event()
        self._everything = trio.CancelScope()
        self._thread = threading.Thread(target=trio.run, args=(self._serve,), daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    def cut(self, *, lasting: bool = False) -> None:
        """Reset all connections. Args: lasting: refuse new ones until `mend`."""
        self._do(lambda: self._cut(lasting))

    def stall(self) -> None:
        """Let nothing pass, and tell nobody."""
        self._do(self._stall)

    def mend(self) -> None:
        """Let everything pass again, and what was stalled."""
        self._do(self._mend)

    def strand(self, *, up: bool = True, down: bool = True) -> None:
        """Let nothing more pass over the connections that there are, and tell nobody; new ones are not concerned.

        Args: up, down: the directions, as seen by those who connect.
        """
        self._do(lambda: self._strand(up, down))

    def delay(self, seconds: float) -> None:
        """Delay all that passes from now on."""
        self._delay = seconds

    def end(self) -> None:
        """Close everything."""
        self._do(self._everything.cancel)
        self._thread.join(PATIENCE)

    def _do(self, what: Callable[[], None]) -> None:
        with suppress(trio.RunFinishedError):
            trio.from_thread.run_sync(what, trio_token=self._token)

    def _cut(self, lasting: bool) -> None:
        self._closed = lasting
        for scope in self._scopes:
            scope.cancel()

    def _stall(self) -> None:
        self._open = trio.Event()

    def _mend(self) -> None:
        self._closed = False
        self._open.set()

    def _strand(self, up: bool, down: bool) -> None:
        for is_stranded, way in zip((up, down), self._ways, strict=True):
            if is_stranded:
                way.set()
        self._ways = _Ways(trio.Event(), trio.Event())

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        self._ready.set()
        with self._everything:
            await trio.serve_listeners(self._lead, [listener])

    async def _lead(self, near: trio.SocketStream) -> None:
        with trio.CancelScope() as scope, suppress(OSError):
            self._scopes.add(scope)
            try:
                async with near:
                    if self._closed:
                        return
                    async with await trio.open_tcp_stream("127.0.0.1", self._to) as far, trio.open_nursery() as both:
                        self.made += 1
                        ways = self._ways
                        both.start_soon(self._pass, near, far, both.cancel_scope, ways.up)
                        both.start_soon(self._pass, far, near, both.cancel_scope, ways.down)
            finally:
                self._scopes.discard(scope)

    async def _pass(
        self, source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope, stranded: trio.Event
    ) -> None:
        with suppress(trio.BrokenResourceError):
            while data := await source.receive_some(LARGEST):
                if self._delay:
                    await trio.sleep(self._delay)
                await self._open.wait()
                if stranded.is_set():
                    await trio.sleep_forever()
                await sink.send_all(data)
        both.cancel()
