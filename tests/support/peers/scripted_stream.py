"""A scripted peer over any stream: it sends frames, and expects frames."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

import trio
from trio.testing import memory_stream_pair

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.messaging import Properties
from amqpmesh.router.amqp.standard.performatives import (
    Attach,
    Begin,
    Close,
    Disposition,
    Flow,
    Open,
    Performative,
    Transfer,
    decode_performative,
)
from amqpmesh.router.config.file import ListenerConfig
from amqpmesh.router.kernel import FrameReader
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted import AMQP, TLS, attached, begun, flow, frame

__all__ = ["AMQP", "TLS", "Peer", "attached", "begun", "connect", "connected", "credit", "exactly", "frame"]

P = TypeVar("P", bound=Performative)


def credit(number: int, *, handle: int = 0) -> Flow:
    """Return a `flow` that gives a link credit, before its first delivery."""
    return flow(handle=handle, delivery_count=0, link_credit=number)


async def exactly(stream: trio.abc.Stream, size: int) -> bytes:
    """Read so many octets."""
    data = b""
    while len(data) < size:
        more = await stream.receive_some(size - len(data))
        assert more, "the stream ended"
        data += more
    return data


class Peer:
    """One end of a stream to a router."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        #: The id of the first delivery that may not be sent yet, for want of credit or window. `credit_limit`: for want
        #: of credit. `window_limit`: the id of the first transfer frame that may not be sent yet.
        self.limit = 0
        #: Of the frame that came last.
        self.channel = 0
        self._frames = FrameReader(2**20)
        self._writing = trio.Lock()
        self.credit_limit = self.window_limit = 0

    async def write(self, *parts: bytes | Performative, channel: int = 0) -> None:
        """Send bytes and frames, all at once; frames of performatives go on `channel`."""
        async with self._writing:
            await self.stream.send_all(
                b"".join(part if isinstance(part, bytes) else frame(part, channel=channel) for part in parts)
            )

    async def expect_header(self) -> bytes:
        """Return the next 8 octets."""
        while (header := self._frames.next_header()) is None:
            assert await self._more(), "the stream ended"
        return header

    def rest(self) -> bytes:
        """Return the octets that were read, and are not taken yet."""
        return self._frames.take_rest()

    async def next_frame(self) -> tuple[Performative, bytes] | None:
        """Return the next frame that is not empty, with its payload; None at the end of the stream."""
        while True:
            found = self._frames.next_frame()
            if found is None:
                if not await self._more():
                    return None
            elif found.body:
                performative, at = decode_performative(found.body)
                self.channel = found.channel
                self._account(performative)
                return performative, found.body[at:]

    async def expect(self, kind: type[P]) -> P:
        """Return the next frame, and assert its kind. Flows come at any time and are skipped."""
        while True:
            found = await self.next_frame()
            assert found is not None, f"the stream ended, {kind.__name__} should have come"
            performative, self.payload = found
            if isinstance(performative, kind):
                return performative
            assert isinstance(performative, Flow), f"{performative} came, {kind.__name__} should have"

    async def expect_end(self) -> None:
        """Assert that nothing more comes but the flows that come at any time."""
        while (found := await self.next_frame()) is not None:
            assert isinstance(found[0], Flow), f"{found[0]} came, and the stream should have ended"

    async def open(self) -> Open:
        """Exchange protocol headers and `open`."""
        await self.write(AMQP, Open(container_id="peer"))
        assert await self.expect_header() == AMQP
        return await self.expect(Open)

    async def attach(self, role: Role, address: str | None) -> Attach:
        """Open everything down to a link with handle 0, all in one write."""
        await self.write(AMQP, Open(container_id=f"peer-{role.name}"), begun(), attached(role, address))
        assert await self.expect_header() == AMQP
        await self.expect(Open)
        await self.expect(Begin)
        return await self.expect(Attach)

    async def send(self, number: int, body: bytes = b"", *, settled: bool = False, to: str | None = None) -> None:
        """Send a delivery of one frame, with that id, once there is credit for it. Args: to: of an anonymous sender."""
        while number >= self.limit:
            found = await self.next_frame()
            assert found is not None, "the stream ended before there was credit"
            assert isinstance(found[0], Flow), f"{found[0]} came before there was credit"
        payload = b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body  # data section, §3.2.6
        if to is not None:
            payload = encode_composite(Properties(to=to)) + payload
        transfer = Transfer(
            handle=0, delivery_id=number, delivery_tag=number.to_bytes(4, "big"), message_format=0, settled=settled
        )
        await self.write(frame(transfer, payload))

    async def accept(self, transfer: Transfer) -> None:
        """Accept a delivery, and settle it."""
        assert transfer.delivery_id is not None
        await self.write(Disposition(role=Role.RECEIVER, first=transfer.delivery_id, settled=True, state=Accepted()))

    async def close(self) -> None:
        """Close in good order, and wait for the end."""
        await self.write(Close())
        await self.expect(Close)
        await self.expect_end()
        await self.stream.aclose()

    async def answer_close(self) -> Close:
        """Answer the router's `close`, and close this end. The router may have given it up: it waits for a second."""
        close = await self.expect(Close)
        with suppress(trio.BrokenResourceError):
            await self.write(Close())
            await self.expect_end()
        await self.stream.aclose()
        return close

    def _account(self, performative: Performative) -> None:
        """Count a frame of one session and one link on it, whose deliveries are numbered from 0 and have a frame
        each.
        """
        if isinstance(performative, Begin):
            self.window_limit = performative.incoming_window
        elif isinstance(performative, Flow):
            self.window_limit = (performative.next_incoming_id or 0) + performative.incoming_window
            if performative.handle == 0 and performative.link_credit is not None:
                self.credit_limit = (performative.delivery_count or 0) + performative.link_credit
        self.limit = min(self.window_limit, self.credit_limit)

    async def _more(self) -> bool:
        data = await self.stream.receive_some()
        self._frames.feed(data)
        return bool(data)


def connected(nursery: trio.Nursery, router: Router, listener: ListenerConfig | None = None) -> Peer:
    """Return a peer at the other end of a stream in memory, served by the nursery."""
    ours, theirs = memory_stream_pair()
    nursery.start_soon(router.serve_stream, theirs, listener)
    return Peer(ours)


async def connect(router: Router, position: int = 0) -> Peer:
    """Return a peer at the other end of a socket. Args: position: of the listener."""
    endpoint = router.listeners[position].url.rpartition("//")[2]
    host, _, port = endpoint.rpartition(":")
    return Peer(await trio.open_tcp_stream(host.strip("[]"), int(port)))
