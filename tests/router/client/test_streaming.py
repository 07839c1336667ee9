"""Sizes of messages, and messages that are read while they arrive (§2.6.14, §2.7.3)."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.errors import CommandError, LinkDetachedError
from amqpmesh.router.amqp.standard.definitions import LinkCondition
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.messaging import Data
from amqpmesh.router.amqp.standard.performatives import Disposition, Flow
from amqpmesh.router.client.links.attach_options import MAX_MESSAGE_SIZE
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import RejectedError
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import joined
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

if TYPE_CHECKING:
    from amqpmesh.router.amqp.codec.types import Value
    from amqpmesh.router.client.delivery import Delivery
    from amqpmesh.router.client.factory import LinkFactory

KIB, MIB = 2**10, 2**20
BODY = bytes(range(256)) * 2**12  # 1 MiB


def data(octets: bytes, size: int | None = None) -> bytes:
    """Return a data section, or the beginning of one of `size` octets."""
    return b"\x00\x53\x75\xb0" + (len(octets) if size is None else size).to_bytes(4, "big") + octets


async def parts(delivery: Delivery) -> list[bytes]:
    return [part async for part in delivery]


# ----------------------------------------------------------------------------------------------------- whole messages


async def test_messages_are_whole_up_to_the_size_that_is_announced(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with (
        peer.connect() as connection,
        connection.receiver("a", max_message_size=1000) as receiver,
        connection.receiver("b") as usual,
        connection.receiver("c", streaming=True) as streaming,
        connection.receiver("d", max_message_size=0) as unbounded,
    ):
        announced = [link.attach.max_message_size for link in peer.links]
        assert announced == [1000, 16 * MIB, None, None]
        assert all(each.is_attached for each in (usual, streaming, unbounded))
        link = peer.links[0]
        await link.send(data(bytes(992)))
        assert len((await receiver.receive()).payload) == 1000
        await link.send(data(bytes(500), 993), bytes(493))
        failure = await Call(nursery, receiver.receive).failure()
        assert isinstance(failure, LinkDetachedError)
        assert failure.error is not None
        assert failure.error.condition == LinkCondition.MESSAGE_SIZE_EXCEEDED
        # The other messages are not affected.
        await peer.links[1].send(data(b"x"))
        assert (await usual.receive()).message.body == b"x"


async def test_sixteen_mebibytes_arrive_as_one_message(factory: LinkFactory, nursery: trio.Nursery) -> None:
    async with factory.receiver("q") as receiver, factory.sender("q") as sender:
        largest = Message(bytes(MAX_MESSAGE_SIZE - len(data(b""))))
        sending = Call(nursery, sender.send, largest)
        async with await receiver.receive() as message:
            assert message == largest
        await sending.result()


async def test_a_router_does_not_pass_on_what_the_receiver_does_not_take(
    factory: LinkFactory, nursery: trio.Nursery
) -> None:
    async with factory.receiver("q", max_message_size=10_000) as receiver, factory.sender("q") as sender:
        with pytest.raises(RejectedError, match="message-size-exceeded"):
            await sender.send(bytes(200_000))
        # The link works as before.
        await sender.send(b"small", settled=True)
        assert (await receiver.receive()).message.body == b"small"


async def test_a_whole_message_may_be_larger_than_the_buffer(factory: LinkFactory, nursery: trio.Nursery) -> None:
    async with factory.receiver("q", buffer=64 * KIB) as receiver, factory.sender("q") as sender:
        sending = Call(nursery, sender.send, BODY)
        async with await receiver.receive() as message:
            assert message.body == BODY
        await sending.result()


# --------------------------------------------------------------------------------------------------- those that stream


async def test_a_delivery_is_handed_out_at_its_first_frames(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("q", streaming=True) as receiver:
        link = peer.links[0]
        head = Message(None, subject="s", application_properties={"k": 1}).encode().split(b"\x00\x53\x77")[0]
        await link.send(head, more=True)
        receiving = Call(nursery, receiver.receive)
        await wait_all_tasks_blocked()
        assert not receiving.is_done  # another section may come before the body
        await link.send(data(b"abc", 9), more=True)
        delivery = await receiving.result()
        assert (delivery.message.subject, delivery.message.application_properties) == ("s", {"k": 1})
        assert delivery.message.body is None
        assert "streams" in str(await Call(nursery, payload_of, delivery).failure())
        taking = Call(nursery, parts, delivery)
        await wait_all_tasks_blocked()
        await link.send(b"def", more=True)
        await wait_all_tasks_blocked()
        assert not taking.is_done
        await link.send(b"ghi")
        assert await taking.result() == [b"abc", b"def", b"ghi"]
        assert delivery.accept()
        assert (await peer.expect(Disposition)).state == Accepted()


async def payload_of(delivery: Delivery) -> bytes:
    return delivery.payload


async def test_a_body_is_the_same_in_parts_by_read_and_as_a_whole(factory: LinkFactory, nursery: trio.Nursery) -> None:
    sections = (Data(value=BODY[:1000]), Data(value=b""), Data(value=BODY[1000:]))
    for body in (BODY, b"", sections, "text", {"a": [1, 2]}, None):
        async with factory.receiver("q", streaming=True) as receiver, factory.sender("q") as sender:
            for way in ("parts", "read"):
                sending = Call(nursery, sender.send, Message(body, subject="s", footer={"x-opt-sum": 1}))
                delivery = await receiver.receive()
                assert delivery.message.subject == "s"
                if way == "parts" and isinstance(body, bytes | tuple):
                    assert b"".join(await parts(delivery)) == (body if isinstance(body, bytes) else BODY)
                elif way == "parts":
                    with pytest.raises(CommandError, match="read"):
                        await parts(delivery)
                else:
                    for _ in range(2):
                        message = await delivery.read()
                        assert message.body == (BODY if isinstance(body, tuple) else body)
                    assert message.footer == {"x-opt-sum": 1}
                delivery.accept()
                await sending.result()


async def test_parts_and_read_serve_whole_deliveries_too(factory: LinkFactory, nursery: trio.Nursery) -> None:
    async with factory.receiver("q") as receiver, factory.sender("q") as sender:
        await sender.send(b"octets", settled=True)
        await sender.send((Data(value=b"a"), Data(value=b"b")), settled=True)
        await sender.send("text", settled=True)
        assert await parts(await receiver.receive()) == [b"octets"]
        assert await parts(await receiver.receive()) == [b"a", b"b"]
        delivery = await receiver.receive()
        assert (await delivery.read()).body == "text"
        with pytest.raises(CommandError, match="no data"):
            await parts(delivery)


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
async def test_an_untaken_message_stops_the_sender(
    streaming: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    frame, frames = 16 * KIB, 100
    piece = bytes(frame - 100)
    peer = Counterpart(nursery)
    sent = 0

    async def send_as_the_window_allows() -> None:
        nonlocal sent
        limit = 0
        while sent < frames:
            while sent >= limit:
                flow = await peer.expect(Flow)
                limit = (flow.next_incoming_id or 0) + flow.incoming_window
            if not streaming:
                await peer.links[0].send(data(piece), settled=True)
            elif sent == 0:
                await peer.links[0].send(data(b"", (frames - 1) * len(piece)), more=True, settled=True)
            else:
                await peer.links[0].send(piece, more=sent < frames - 1)
            sent += 1

    async with (
        peer.connect(max_frame_size=frame) as connection,
        connection.receiver("q", streaming=streaming, buffer=8 * frame, credit=1000) as receiver,
    ):
        nursery.start_soon(send_as_the_window_allows)
        await wait_all_tasks_blocked()
        assert 8 <= sent <= 9  # sections before the body hold no frames
        if streaming:
            assert await parts(await receiver.receive()) == [piece] * (frames - 1)
        else:
            assert [(await receiver.receive()).message.body for _ in range(frames)] == [piece] * frames
        assert sent == frames


async def test_a_head_in_many_small_frames_does_not_fill_the_window(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("q", streaming=True, buffer=1) as receiver:
        payload = Message(b"body", application_properties={"k": "v" * 1000}).encode()
        sending = Call(nursery, peer.links[0].send, *[payload[at : at + 10] for at in range(0, len(payload), 10)])
        assert b"".join(await parts(await receiver.receive())) == b"body"
        await sending.result()


async def test_a_stream_of_64_mebibytes_passes_through_little_memory(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    size = 64 * MIB
    async with (
        Router() as router,
        joined(nursery, router) as connection,
        connection.receiver("q", streaming=True, buffer=256 * KIB) as receiver,
        router.sender("q") as sender,
    ):
        sending = Call(nursery, sender.transfer_payload, data(b"", size) + bytes(size))
        delivery = await receiver.receive()
        taken = 0
        async for part in delivery:
            taken += len(part)
            # Measured only near the end, since measuring is slow.
            if taken > size - 8 * MIB and not tracemalloc.is_tracing():
                tracemalloc.start()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        delivery.accept()
        assert await (await sending.result()).outcome() == Accepted()
        assert taken == size
        assert peak < 6 * MIB  # memory does not grow with the octets that have passed
    assert router.statistics().is_empty


async def test_a_stopped_reader_bounds_what_waits_on_the_whole_way(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q", streaming=True, buffer=256 * KIB) as receiver, factory.sender("q") as sender:
        tracemalloc.start()
        try:
            sending = Call(nursery, sender.send, bytes(16 * MIB))
            delivery = await receiver.receive()
            await trio.sleep(60)
            assert not sending.is_done
            # Besides the message and its encoded form: most of the widest session window (128 frames of 32 KiB).
            assert tracemalloc.get_traced_memory()[0] - 2 * 16 * MIB < 128 * 32 * KIB
        finally:
            tracemalloc.stop()
        assert sum([len(part) async for part in delivery]) == 16 * MIB
        delivery.accept()
        await sending.result()


@pytest.mark.parametrize("body", ["x" * 100, ["x"] * 50, b"x" * 100])
async def test_the_buffer_bounds_what_waits_whatever_the_bodies_are(
    body: Value, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Check with a first delivery that is larger than the window: those behind it wait within the window."""
    peer, count, pieces = Counterpart(nursery), 10, 0
    payload = Message(body).encode()
    cut = [payload[at : at + 10] for at in range(0, len(payload), 10)]
    async with (
        peer.connect(max_frame_size=512) as connection,
        connection.receiver("q", streaming=True, buffer=8 * 512) as receiver,
    ):
        (link,) = peer.links

        async def send_as_the_window_allows() -> None:
            nonlocal pieces
            for piece in [cut] * count:
                for number, octets in enumerate(piece, 1):
                    while link.window == 0:
                        await wait_all_tasks_blocked()
                        await trio.sleep(0.01)
                    await link.send(octets, more=number < len(piece))
                    pieces += 1

        nursery.start_soon(send_as_the_window_allows)
        await trio.sleep(10)
        assert pieces <= len(cut) + 8
        for _ in range(count):
            delivery = await receiver.receive()
            assert (await delivery.read()).body == body
            delivery.accept()
        assert pieces == count * len(cut)
