"""Connections of HTTP: each request is read, answered and written in its time, one after the other."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from amqpmesh.policies.guesses import network_of
from amqpmesh.router.http.connection import HttpConnection
from amqpmesh.router.http.requests import FAULT, TIME_OUT, HttpError, Switch, refusal
from amqpmesh.router.io.handshake import UNKNOWN, Identity
from amqpmesh.router.io.secured_stream import LINGER, close_gracefully
from amqpmesh.router.logs import event_log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from amqpmesh.router.config.http import HttpConfig
    from amqpmesh.router.http.requests import Answer, Request

    Respond: TypeAlias = Callable[["Client", Request], Awaitable[Answer | Switch]]

log = event_log.EventLog("amqpmesh.io")

READ_SIZE: Final = 8 * 2**10
"""Octets of one read at most."""


class Client(NamedTuple):
    """The client of a connection."""

    host: str
    """Its address."""
    identity: Identity = UNKNOWN
    """The identity in its certificate, if it has shown one."""
    secured: bool = False
    """It came by TLS."""


class OpenConnections:
    """The open connections of a listener, at most as many as its limit.

    A new one takes the place of the one that has waited longest for a whole request, of the network that has the most:
    clients that send nothing, or an octet now and then, keep nobody out. If none of those waits, it takes the place of
    the oldest one there, if its own network has fewer: clients that log in or read without end keep no other network
    out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        #: With their networks, the oldest first.
        self._open: dict[trio.CancelScope, str] = {}
        self._of_network: Counter[str] = Counter()
        #: Those that wait for a request or for its end, the oldest first.
        self._idle: dict[trio.CancelScope, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, scope: trio.CancelScope, host: str) -> bool:
        """Add a connection. Returns: False: there is no room for it. Args: host: the address of its client."""
        network = network_of(host)
        self._of_network[network] += 1
        if len(self._open) >= self._most:
            oldest = self._least_needed(network)
            if oldest is None:
                self._count_out(network)
                return False
            self.leave(oldest)
            oldest.cancel()
        self._open[scope] = network
        self._idle[scope] = None
        return True

    def leave(self, scope: trio.CancelScope) -> None:
        """Remove a connection."""
        network = self._open.pop(scope, None)
        if network is not None:
            self._count_out(network)
        self._idle.pop(scope, None)

    def _count_out(self, network: str) -> None:
        self._of_network[network] -= 1
        if not self._of_network[network]:
            del self._of_network[network]

    def _least_needed(self, network: str) -> trio.CancelScope | None:
        """Return the connection that makes room for a new one, which is counted already; None: there is none."""
        ((most, count),) = self._of_network.most_common(1)
        found = next((scope for scope in self._idle if self._open[scope] == most), None)
        if found is None and count > self._of_network[network]:
            found = next(scope for scope, each in self._open.items() if each == most)
        return found or next(iter(self._idle), None)

    def rest(self, scope: trio.CancelScope) -> None:
        """Note that a connection waits for a request."""
        if scope in self._open:
            self._idle[scope] = None

    def work(self, scope: trio.CancelScope) -> None:
        """Note that a request of a connection has come."""
        self._idle.pop(scope, None)


async def serve(
    stream: trio.abc.Stream,
    client: Client,
    limits: HttpConfig,
    respond: Respond,
    *,
    rest: Callable[[], object] = lambda: None,
    work: Callable[[], object] = lambda: None,
    turn: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
) -> bytes | None:
    """Serve one connection to its end. The caller closes the stream. Raises: nothing but cancellation.

    Returns: None: it has ended; else it goes on with another protocol, of which these octets have come.
    Args: respond: answers a request. Raises: HttpError. rest, work: are called when the connection waits for a request,
        and when one has come. turn: waits until octets that have come may be read.
    """
    connection = HttpConnection(limits)
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the client is gone
        closes = False
        while not closes:
            try:
                rest()
                request = await _read(stream, connection, limits, work, turn)
                if request is None:
                    return None
                answer = await respond(client, request)
            except HttpError as error:
                answer = error.answer
                # What follows a request that was not read to its end cannot be told from it.
                closes = not connection.is_whole
            except Exception as error:
                log.error("internal error", exception=error, peer=client.host)
                answer = refusal(FAULT, "an internal error; the log has more")
            if isinstance(answer, Switch):
                return await _switch(stream, connection, limits, answer)
            is_read = False
            with trio.move_on_after(limits.answer_time):
                await _write(stream, connection, answer, closes=closes)
                is_read = True
            if not is_read:
                return None
            closes = closes or not connection.begin_next()
        # Octets that nobody has read would reset the connection, and the answer with it.
        with trio.move_on_after(LINGER):
            await close_gracefully(stream)
    return None


async def _switch(
    stream: trio.abc.Stream, connection: HttpConnection, limits: HttpConfig, answer: Switch
) -> bytes | None:
    """Leave HTTP. Returns: as of `serve`. Raises: BrokenResourceError, ClosedResourceError: the client is gone."""
    told, behind = connection.switch(answer.headers)
    with trio.move_on_after(limits.answer_time):
        await stream.send_all(told)
        return behind
    return None


async def _read(
    stream: trio.abc.Stream,
    connection: HttpConnection,
    limits: HttpConfig,
    work: Callable[[], object],
    turn: Callable[[], Awaitable[object]],
) -> Request | None:
    """Read a request. Returns: None: the client has gone, or has sent none for too long. Raises: HttpError."""
    until = limits.request_time if connection.is_begun else limits.idle_time
    with trio.CancelScope(deadline=trio.current_time() + until) as scope:
        try:
            while True:
                request = connection.next_request()
                if request is not None:
                    work()
                    return request
                if connection.wants_continue:
                    await stream.send_all(connection.go_on())
                data = bytes(await stream.receive_some(READ_SIZE))
                if not connection.is_begun and data:
                    scope.deadline = trio.current_time() + limits.request_time
                # Also before it is read that the client has gone: endless requests in small pieces cost the most.
                await turn()
                connection.receive(data)
        except EOFError:
            return None
    if connection.is_begun:
        raise HttpError(TIME_OUT, "the request took too long")
    return None


async def _write(stream: trio.abc.Stream, connection: HttpConnection, answer: Answer, *, closes: bool) -> None:
    head = connection.head(answer, closes=closes)
    if answer.parts is None:
        await stream.send_all(head + connection.part(answer.body) + connection.end())
        return
    await stream.send_all(head)
    try:
        async with aclosing(answer.parts):
            if not connection.wants_head_only:
                async for part in answer.parts:
                    await stream.send_all(connection.part(part))
    except HttpError:
        # The router is about to end: without its end, the client sees that the content is cut off.
        raise trio.BrokenResourceError from None
    await stream.send_all(connection.end())
