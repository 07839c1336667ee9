"""Two peers that send to each other and read slowly: both directions get their part, and nothing is lost."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Flow, Open, Transfer
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted import begun
from tests.support.peers.scripted_stream import AMQP, Peer, attached, frame

PIPE = 2_000_000  # octets under way to a peer, as in a system's buffers
SECONDS = 4
MANY = 5_000  # frames or deliveries: the peers' own limits hold nothing up


class Pipe(trio.abc.Stream):
    """One end of a stream in memory that holds `PIPE` octets in each direction."""

    def __init__(self) -> None:
        self.other = self
        self._data = bytearray()
        self._changed = trio.Event()
        self._is_closed = False

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        to, at = self.other, 0
        await trio.lowlevel.checkpoint()
        while at < len(data):
            if self._is_closed:
                raise trio.BrokenResourceError("the other end is closed")
            part = bytes(data[at : at + PIPE - len(to._data)])
            if part:
                to._data += part
                at += len(part)
                to._change()
            else:
                await to._changed.wait()

    async def wait_send_all_might_not_block(self) -> None:
        while len(self.other._data) >= PIPE and not self._is_closed:
            await self.other._changed.wait()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._data and not self._is_closed:
            await self._changed.wait()
        data = bytes(self._data[: max_bytes or 2**16])
        del self._data[: len(data)]
        self._change()
        return data

    async def aclose(self) -> None:
        for each in (self, self.other):
            each._is_closed = True
            each._change()
        await trio.lowlevel.checkpoint()


class Correspondent:
    """A peer that sends to one address as fast as it may, and reads from another one at its own speed."""

    def __init__(self, stream: Pipe, speed: float, size: int, parts: int) -> None:
        """Args: size: octets of the content of a frame. parts: frames of a message."""
        self.peer = Peer(stream)
        self.speed = speed
        self.size = size
        self.parts = parts
        self.sent = self.came = self.frames = 0

    async def run(self, to: str, source: str) -> None:
        incoming = replace(attached(Role.RECEIVER, source), name="in", handle=1)
        opened = [AMQP, Open(container_id=to), begun(incoming_window=MANY), attached(Role.SENDER, to), incoming]
        await self.peer.write(*opened, self._flow())
        assert await self.peer.expect_header() == AMQP
        for kind in (Open, Begin, Attach, Attach):
            await self.peer.expect(kind)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            nursery.start_soon(self._write)

    def _flow(self) -> Flow:
        limits = {"incoming_window": MANY, "outgoing_window": MANY, "link_credit": MANY}
        return Flow(
            next_incoming_id=self.frames,
            next_outgoing_id=self.sent * self.parts,
            handle=1,
            delivery_count=self.came,
            **limits,
        )

    async def _read(self) -> None:
        octets, begin = 0, trio.current_time()
        while (found := await self.peer.next_frame()) is not None:
            if isinstance(found[0], Transfer):
                self.frames += 1
                octets += len(found[1])
                if not found[0].more:
                    assert int.from_bytes(found[1][-4:], "big") == self.came, "lost, or out of order"
                    self.came += 1
                if self.frames % 100 == 0:
                    await self.peer.write(self._flow())
                await trio.sleep_until(begin + octets / self.speed)

    async def _write(self) -> None:
        head = b"\x00\x53\x75\xb0" + (self.size * self.parts).to_bytes(4, "big")
        while True:
            while self.sent >= self.peer.credit_limit or (self.sent + 1) * self.parts > self.peer.window_limit:
                await trio.sleep(0.02)
            tag = self.sent.to_bytes(4, "big")
            transfer = Transfer(handle=0, delivery_id=self.sent, delivery_tag=tag, message_format=0, settled=True)
            self.sent += 1
            for left in reversed(range(self.parts)):
                content = tag.rjust(self.size, b"x")
                start = b"" if left < self.parts - 1 else head
                await self.peer.write(frame(replace(transfer, more=left > 0), start + content))


@pytest.mark.parametrize(("size", "parts", "seed"), [(5_000, 1, 0), (4_000, 5, 1)])
async def test_neither_direction_gets_less_than_a_third_of_the_other(
    size: int, parts: int, seed: int, autojump_clock: MockClock
) -> None:
    chance = random.Random(seed)
    both = []
    async with Router(drain=0.0) as router, trio.open_nursery() as nursery:
        for to, source in (("x", "y"), ("y", "x")):
            ours, theirs = Pipe(), Pipe()
            ours.other, theirs.other = theirs, ours
            nursery.start_soon(router.serve_stream, theirs)
            both.append(Correspondent(ours, chance.uniform(1.5e6, 2e6), size, parts))
            nursery.start_soon(both[-1].run, to, source)
            await trio.sleep(0.5)  # the first one sends alone: the second one's pipe is full at once
        await trio.sleep(SECONDS)
        before = [each.came for each in both]
        await trio.sleep(SECONDS)
        came = [each.came - then for each, then in zip(both, before, strict=True)]
        assert min(came) * 3 >= max(came)
        assert min(came) * size * parts > SECONDS * 0.5e6
        for each in both:
            await each.peer.stream.aclose()
        nursery.cancel_scope.cancel()
