"""The library's client, connected to routers and to scripted peers by streams in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import trio
from trio.testing import memory_stream_pair

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Open
from amqpmesh.router.client.connect import Connection, connect
from amqpmesh.router.config.file import ListenerConfig
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted import begun
from tests.support.peers.scripted_stream import AMQP, Peer

#: A host of no address: only `Roads` knows where it is.
URL = "amqp://router.example:5672"

Serve = Callable[[trio.abc.Stream], Awaitable[None]]


class Roads:
    """A table of URLs and of the routers or peers behind them, for `connect(..., open_stream=roads.open)`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._places: dict[str, Serve] = {}
        #: When which URL was tried.
        self.tries: list[tuple[float, str]] = []
        #: The far ends of what was opened, in order.
        self.streams: list[trio.abc.Stream] = []

    def lead_to(self, place: Router | Serve, url: str = URL, listener: ListenerConfig | None = None) -> None:
        """Let `url` lead to a router, or to a function that serves a stream."""
        if isinstance(place, Router):
            router = place

            async def serve(stream: trio.abc.Stream) -> None:
                with suppress(CommandError):  # it has ended
                    await router.serve_stream(stream, listener)
                await trio.aclose_forcefully(stream)

            place = serve
        self._places[url] = place

    def close(self, url: str = URL) -> None:
        """Refuse connections to `url` from now on; connections that exist stay."""
        self._places.pop(url, None)

    async def open(self, endpoint: Endpoint) -> trio.abc.Stream:
        """Return the near end of a new stream. Raises: OSError: nothing listens there."""
        self.tries.append((trio.current_time(), str(endpoint)))
        await trio.lowlevel.checkpoint()
        serve = self._places.get(str(endpoint))
        if serve is None:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = memory_stream_pair()
        self.streams.append(theirs)
        self._nursery.start_soon(serve, theirs)
        return ours

    async def cut(self) -> None:
        """Break every stream."""
        streams, self.streams = self.streams, []
        for stream in streams:
            await trio.aclose_forcefully(stream)

    def connect(self, url: str | list[str] = URL, **settings: Any) -> Connection:
        """Connect as `connect` does, over these roads."""
        return connect(url, open_stream=self.open, **settings)


class Gate:
    """Streams over some roads that stop what the client writes while the gate is shut: `open_stream=gate.open`."""

    def __init__(self, roads: Roads) -> None:
        self._roads = roads
        self._is_open = trio.Event()
        self._is_open.set()

    async def open(self, endpoint: Endpoint) -> trio.abc.Stream:
        """Open a stream as `Roads.open` does."""
        stream = await self._roads.open(endpoint)
        assert isinstance(stream, trio.StapledStream)
        carry = stream.send_stream.send_all_hook

        async def wait_and_carry() -> None:
            await self._is_open.wait()
            await carry()

        stream.send_stream.send_all_hook = wait_and_carry
        return stream

    def shut(self) -> None:
        """Let writing wait from now on."""
        self._is_open = trio.Event()

    def lift(self) -> None:
        """Let pass what waits."""
        self._is_open.set()


class Host(Peer):
    """A scripted peer that a client has connected to; without SASL: `roads.connect(mechanisms=())`."""

    async def open(self, **fields: Any) -> Open:
        """Answer the client's header and `open`."""
        assert await self.expect_header() == AMQP
        opened = await self.expect(Open)
        await self.write(AMQP, Open(container_id="host", **fields))
        return opened

    async def begin(self, **fields: int) -> Begin:
        """Answer its next `begin`; `channel` is then that session's, at either end."""
        begin = await self.expect(Begin)
        await self.write(begun(self.channel, **fields), channel=self.channel)
        return begin

    async def attach(self, **fields: Any) -> Attach:
        """Answer its next `attach` on the same handle, with what it asked for unless `fields` says otherwise."""
        attach = await self.expect(Attach)
        role = Role.SENDER if attach.role is Role.RECEIVER else Role.RECEIVER
        standard = {
            "source": attach.source,
            "target": attach.target,
            "snd_settle_mode": attach.snd_settle_mode,
            "rcv_settle_mode": attach.rcv_settle_mode,
            "initial_delivery_count": 0 if role is Role.SENDER else None,
        }
        answer = Attach(name=attach.name, handle=attach.handle, role=role, **{**standard, **fields})
        await self.write(answer, channel=self.channel)
        return attach


async def enter(resource: AbstractAsyncContextManager[object]) -> None:
    """Enter and leave a context that is expected to fail, so that nothing stays open if it does not."""
    async with resource:
        pass


def joined(
    nursery: trio.Nursery, router: Router, *, listener: ListenerConfig | None = None, **settings: Any
) -> Connection:
    """Return a connection to that router, to be entered."""
    roads = Roads(nursery)
    roads.lead_to(router, listener=listener)
    return roads.connect(**settings)
