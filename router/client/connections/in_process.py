"""Links within the process of a router: an engine beside the router's core, without a socket between them.

They are ordinary links of the router, with the same credit and settlement. All bytes that one side sends are handed to
the other in one step, and none wait in between.
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

    from amqpmesh.policies.redirect import Redirect, RedirectChain
    from amqpmesh.policies.tenants import Tenant
    from amqpmesh.router.client.links.link import ClientLink
    from amqpmesh.router.config.file import ListenerConfig
    from amqpmesh.router.model.connections import ConnectionRecord
    from amqpmesh.router.runtime.driver import Driver

log = event_log.EventLog("amqpmesh.client")

NAME: Final = "in-process"
"""The name of such a connection in the place of a listener, a host and a container-id."""

SLICE: Final = 4 * 2**10
"""Octets that are handed over between two looks at the clock: some milliseconds of small messages."""

FRAME_SIZE: Final = 32 * 2**10

WIDENING: Final = 8
"""A batch of small messages uses up a window of full frames, and the router would have to decide about the rest."""


class InProcess(LinkManager):
    """The link manager within a router. It connects for the first link; the connection lasts as long as the router.

    If a fault of the library ends the connection, its links fail, and the next link makes another.
    """

    def __init__(self, listener: ListenerConfig, *, own: bool = False) -> None:
        """Args: listener: its limits apply. own: the links serve the router's own nodes, from which no client may
        receive.
        """
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
        """Allow links: the router has started. Args: start: runs a task that ends with the router."""
        self._driver, self._start, self._failure = driver, start, None

    def end(self) -> None:
        """Allow no more links: the router stops."""
        if self._failure is None:
            self._failure = CommandError("the router has ended, or is about to")

    # --------------------------------------------------------------------------------------------------- of LinkManager

    @property
    def reconnects(self) -> bool:
        """False: there is no network connection that could be lost and made again."""
        return False

    @property
    def failure(self) -> AmqpMeshError | None:
        """The error for which no link can be attached any more; None: links can be attached."""
        return self._failure

    @property
    def max_frame_size(self) -> int:
        """Octets of the largest frame that the peer may send."""
        return FRAME_SIZE

    @property
    def widening(self) -> int:
        """The number of times that a receiver's window may be as wide while messages are small."""
        return WIDENING

    def attach_later(self, link: ClientLink, losses: int) -> None:
        """Do nothing: the router had a reason to detach the link."""

    def follow(self, chain: RedirectChain | None, address: str | None, redirect: Redirect) -> None:
        """Follow no redirect: there is only one router in the process."""

    def request_connection(self) -> None:
        """Connect, if that is not done."""
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
            record = self._record = core.accept(
                self._listener, NAME, trio.current_time(), secured=True, own=self._own, inside=True
            )
            client_connection = ClientConnection(
                engine, wake=self._wake_up, opened=lambda: self.opened(client_connection), ended=self._connection_ended
            )
            self._client_connection: ClientConnection = client_connection
            engine.open()
            self._driver.connect(record, self)
            self._start(self._carry_bytes)

    # ------------------------------------------------------------------------------------------------------- the bytes

    @property
    def is_acknowledged(self) -> bool:
        """True: the other side reads all bytes at once."""
        return True

    def share(self, tenant: Tenant) -> None:
        """See `Output`: no policy rules what is within the process."""

    def flush(self, now: float) -> None:
        """Hand the core's bytes to the links. Never raises, never waits."""
        assert self._driver is not None
        assert self._record is not None
        core = self._driver.core
        try:
            while data := core.data_to_send(self._record, now):
                self._client_connection.receive_now(data)
                core.sent(self._record, now)
        except Exception as error:
            # A fault of the library ends the links within the process, not the connection whose bytes led to it.
            log.error("internal error", exception=error, listener=NAME)
            self._fault = error
            self._wanted.set()

    async def _carry_bytes(self) -> None:
        """Hand the links' bytes to the core, until the connection ends."""
        driver, record, client_connection = self._driver, self._record, self._client_connection
        assert driver is not None
        assert record is not None
        try:
            driver.settle()
            while not (record.engine.finished or self._fault is not None):
                await self._wanted.wait()
                self._wanted = trio.Event()
                await client_connection.gather()
                began = stopwatch_seconds()
                while data := client_connection.data_to_send():
                    for at in range(0, len(data), SLICE):
                        part = data[at : at + SLICE]
                        while not driver.core.receive(record, part, trio.current_time()):
                            part = bytearray()
                            driver.settle()
                            await trio.lowlevel.checkpoint()
                        if stopwatch_seconds() - began > BATCH_TIME:
                            driver.settle()
                            await trio.lowlevel.checkpoint()
                            began = stopwatch_seconds()
                    driver.settle()
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
                self.request_connection()  # for links that were added while it ended

    def _wake_up(self) -> None:
        self._wanted.set()

    def _connection_ended(self, error: ConnectionClosedError) -> None:
        self.ended(error, final=True)
        self._wanted.set()
