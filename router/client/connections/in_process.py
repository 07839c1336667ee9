"""Links within the process: an engine beside the router's core, and no socket between them.

They are links of the router like any other, with its ledger and its credit: what an engine has to send is handed to
the other in one step, and nothing waits between them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.router.amqp.connection import Connection as Engine
from amqpmesh.router.amqp.connection_settings import ConnectionSettings
from amqpmesh.router.amqp.errors import AmqpMeshError, CommandError, ConnectionClosedError
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.client.links.client_connection import ClientConnection
from amqpmesh.router.client.links.link_manager import LinkManager
from amqpmesh.router.io.environment import stopwatch_seconds
from amqpmesh.router.io.streams import BATCH_TIME
from amqpmesh.router.logs import event_log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from amqpmesh.policies.redirect import Redirect, Stop
    from amqpmesh.router.client.links.link import ClientLink
    from amqpmesh.router.config.file import ListenerConfig
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.runtime.driver import Driver

log = event_log.EventLog("amqpmesh.client")

NAME: Final = "in-process"
"""What such a connection is called where others have a listener, a host and a container-id."""

SLICE: Final = 4 * 2**10
"""Octets that are handed over between two looks at the clock: some milliseconds of small messages."""

FRAME_SIZE: Final = 32 * 2**10


class InProcess(LinkManager):
    """Makes the connection when the first link wants it; it lives as long as the router.

    Where a fault of ours links it, its links fail, and the next link makes another.
    """

    def __init__(self, listener: ListenerConfig, *, own: bool = False) -> None:
        """Args: listener: whose limits hold. own: for the router's own nodes, which nobody else may consume."""
        super().__init__()
        self._own = own
        self._listener = replace(
            listener, name=NAME, idle_time_out=0.0, sasl=(), max_frame_size=FRAME_SIZE, manage=True
        )
        self._driver: Driver | None = None
        self._start: Callable[[Callable[[], Awaitable[None]]], object] | None = None
        self._failure: AmqpMeshError | None = CommandError("the router was not started: `async with` starts it")
        self._record: ConnectionRecord | None = None
        self._wanted = trio.Event()
        self._fault: Exception | None = None

    def begin(self, driver: Driver, start: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """The router has started. Args: start: runs a task that ends with the router."""
        self._driver, self._start, self._failure = driver, start, None

    def end(self) -> None:
        """The router takes nobody in any more."""
        if self._failure is None:
            self._failure = CommandError("the router has ended, or is about to")

    # --------------------------------------------------------------------------------------------------- of LinkManager

    @property
    def reconnects(self) -> bool:
        """There is nothing that could be lost."""
        return False

    @property
    def failure(self) -> AmqpMeshError | None:
        """Why no link can be attached any more."""
        return self._failure

    @property
    def max_frame_size(self) -> int:
        """Octets of a frame that we take."""
        return FRAME_SIZE

    def attach_later(self, link: ClientLink, losses: int) -> None:
        """Nothing is attached again: the router that detached it had a reason."""

    def follow(self, stop: Stop | None, address: str | None, redirect: Redirect) -> None:
        """Nowhere: within the process there is one router."""

    def wake(self) -> None:
        """Somebody wants a connection."""
        if self.client_connection is None and self._record is None:
            assert self._driver is not None
            assert self._start is not None
            core = self._driver.core
            settings = ConnectionSettings(
                container_id=NAME,
                max_frame_size=FRAME_SIZE,
                channel_max=self._listener.channel_max,
                handle_max=self._listener.handle_max,
                idle_time_out=None,
            )
            engine = Engine(settings, Negotiation(server=False), trio.current_time())
            self._fault = None
            record = self._record = core.accept(self._listener, NAME, trio.current_time(), secured=True, own=self._own)
            client_connection = ClientConnection(
                engine, wake=self._wake_up, opened=lambda: self.opened(client_connection), ended=self._over
            )
            self._client_connection: ClientConnection = client_connection
            engine.open()
            self._driver.connect(record, self)
            self._start(self._carry)

    # ------------------------------------------------------------------------------------------------------- the bytes

    @property
    def is_acknowledged(self) -> bool:
        """As of `Output`: what is let out is read at once."""
        return True

    def flush(self, now: float) -> None:
        """Hand over what the core has to send. Never raises, never waits."""
        assert self._driver is not None
        assert self._record is not None
        core = self._driver.core
        try:
            while data := core.data_to_send(self._record, now):
                self._client_connection.receive_now(data)
                core.sent(self._record, now)
        except Exception as error:
            # A fault of ours: it costs the links within the process, and not whoever's bytes brought it about.
            log.error("internal error", exception=error, listener=NAME)
            self._fault = error
            self._wanted.set()

    async def _carry(self) -> None:
        """Hand over what the links have to send, until the connection ends."""
        driver, record, client_connection = self._driver, self._record, self._client_connection
        assert driver is not None
        assert record is not None
        try:
            driver.settle()
            while not (record.engine.finished or self._fault is not None):
                await self._wanted.wait()
                self._wanted = trio.Event()
                began = stopwatch_seconds()
                while data := client_connection.data_to_send():
                    for at in range(0, len(data), SLICE):
                        part = data[at : at + SLICE]
                        while not driver.core.receive(record, part, trio.current_time()):
                            part = bytearray()
                            driver.settle()
                            await trio.lowlevel.checkpoint()
                        driver.settle()
                        if stopwatch_seconds() - began > BATCH_TIME:
                            await trio.lowlevel.checkpoint()
                            began = stopwatch_seconds()
                    client_connection.written()
        except Exception as error:
            self._fault = error
            raise
        finally:
            fault = self._fault
            client_connection.lost("the router has ended" if fault is None else f"a fault of this library: {fault!r}")
            self._record = None
            driver.lost(record)
            if self._links and self._failure is None:
                self.wake()  # for those who came when it was ending

    def _wake_up(self) -> None:
        self._wanted.set()

    def _over(self, error: ConnectionClosedError) -> None:
        self.ended(error, final=True)
        self._wanted.set()
