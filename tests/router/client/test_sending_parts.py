"""Messages that are sent part by part while a program makes them (§2.6.14, §2.7.5, §3.2.6)."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.errors import CommandError, ConnectionClosedError, LinkDetachedError
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Rejected
from amqpmesh.router.amqp.standard.messaging import Data
from amqpmesh.router.amqp.standard.performatives import Transfer
from amqpmesh.router.client.links.client_connection import BACKLOG
from amqpmesh.router.client.links.incoming import DeliveryAbortedError
from amqpmesh.router.client.links.sender_link import CHUNK
from amqpmesh.router.message.content import Message
from amqpmesh.router.message.outcomes import RejectedError
from amqpmesh.router.message.writer import JOINED_MAX, Sections
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import Roads, joined
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

if TYPE_CHECKING:
    from amqpmesh.router.client.delivery import Delivery
    from amqpmesh.router.client.factory import LinkFactory

KIB, MIB = 2**10, 2**20


class Source:
    """Parts that the test provides one by one, as an async generator."""

    def __init__(self, *ready: bytes) -> None:
        #: The number of parts that were asked for.
        self.asked = 0
        self.is_closed = False
        self._put, self._parts = trio.open_memory_channel[bytes | Exception](1000)
        self.give(*ready)

    def give(self, *parts: bytes | Exception) -> None:
        """Provide more parts; an exception is raised in place of a part."""
        for part in parts:
            self._put.send_nowait(part)

    def end(self) -> None:
        """End the parts."""
        self._put.close()

    async def parts(self) -> AsyncIterator[bytes]:
        try:
            self.asked += 1
            async for part in self._parts:
                if isinstance(part, Exception):
                    raise part
                yield part
                self.asked += 1
        finally:
            self.is_closed = True


async def each(parts: Iterable[Any]) -> AsyncIterator[Any]:
    for part in parts:
        yield part


async def taken(delivery: Delivery) -> bytes:
    return b"".join([part async for part in delivery])


# -------------------------------------------------------------------------------------------------------- what arrives


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
async def test_parts_arrive_as_one_body(
    streaming: bool, factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    parts = [b"", b"a" * 10, bytearray(b"b" * 300), memoryview(b"c" * (JOINED_MAX + 1)), b""]
    body = b"".join(parts)
    async with factory.receiver("q", streaming=streaming) as receiver, factory.sender("q") as sender:
        for size in (None, len(body)):
            said = Message(subject="s", application_properties={"k": 1}, footer={"x-opt-sum": "?"})

            async def summed(said: Message = said) -> AsyncIterator[Any]:
                for part in parts:
                    yield part
                said.footer["x-opt-sum"] = len(body)  # known once all parts are sent

            sending = Call(nursery, sender.send_parts, summed(), message=said, size=size)
            delivery = await receiver.receive()
            assert (delivery.message.subject, delivery.message.application_properties) == ("s", {"k": 1})
            message = await delivery.read()
            sections = tuple(Data(value=bytes(part)) for part in parts if part)
            assert message.body == (body if streaming or size is not None else sections)
            assert message.footer == {"x-opt-sum": len(body)}
            delivery.accept()
            await sending.result()


@pytest.mark.parametrize("size", [None, 0])
async def test_no_parts_are_an_empty_body(size: int | None, factory: LinkFactory, autojump_clock: MockClock) -> None:
    async with factory.receiver("q") as receiver, factory.sender("q") as sender:
        await sender.send_parts(each([]), size=size, settled=True)
        sent = await sender.transfer_parts(each([b""]), size=size)
        assert (await receiver.receive()).message.body == b""
        async with await receiver.receive() as message:
            assert message.body == b""
        assert await sent.outcome() == Accepted()


def test_a_body_that_is_too_large_for_a_data_section_is_several() -> None:
    for parts in ([b"abcdefghij"], [b"abc", b"defg", b"hij"]):
        made = Sections(Message(subject="s"), 10, section_max=4)
        payload = b"".join([made.head, *(bytes(piece) for part in parts for piece in made.part(part)), made.finish()])
        assert made.length == len(payload)
        assert Message.decode(payload).body == tuple(Data(value=part) for part in (b"abcd", b"efgh", b"ij"))
    made = Sections(None, None, section_max=4)
    payload = b"".join([made.head, *(bytes(piece) for piece in made.part(b"abcde")), made.finish()])
    assert made.length is None
    assert Message.decode(payload).body == (Data(value=b"abcd"), Data(value=b"e"))


async def test_an_invalid_value_is_refused_before_anything_is_sent(
    factory: LinkFactory, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q"), factory.sender("q") as sender:
        for wrong, settings in (
            (each([]), {"message": Message("a body")}),
            (each([]), {"message": "text"}),
            (each([]), {"message": Message(content_encoding="identity")}),
            (each([]), {"message": Message(application_properties={"k": object()})}),
            (each([]), {"size": -1}),
            ([b"no async iterable"], {}),
        ):
            arguments: dict[str, Any] = settings
            with pytest.raises(CommandError):
                await sender.send_parts(wrong, **arguments)  # type: ignore[arg-type]  # that is what is tested
        assert (sender.waiting, sender.unsettled) == (0, 0)


# ---------------------------------------------------------------------------------------------------------- on the wire


async def test_parts_are_asked_for_once_there_is_credit_and_each_goes_at_once(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    source = Source(b"abc", b"def")
    async with far.connect() as connection, connection.sender("q") as sender:
        sending = Call(nursery, sender.transfer_parts, source.parts(), size=9)
        assert await far.rest() == []
        assert source.asked == 0
        await far.links[0].flow(1)
        frames = [await far.expect(Transfer)]
        payloads = [far.payload]
        for _ in range(2):
            frames.append(await far.expect(Transfer))
            payloads.append(far.payload)
        assert await far.rest() == []
        assert b"".join(payloads) == b"\x00\x53\x75\xa0\x09abcdef"
        source.give(b"ghi")
        frames.append(await far.expect(Transfer))
        assert far.payload == b"ghi"
        source.end()
        last = await far.expect(Transfer)
        assert (last.more, far.payload) == (False, b"")
        assert [frame.more for frame in frames] == [True] * 4
        assert (await sending.result()).is_decided is False
        await far.links[0].accept()
    assert source.is_closed


@pytest.mark.parametrize("size", [None, 100_000], ids=["unknown", "known"])
async def test_what_is_cancelled_or_raises_is_aborted_and_the_link_goes_on(
    size: int | None, factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q", streaming=True) as receiver, factory.sender("q") as sender:
        for way in ("cancelled", "raised"):
            source = Source(b"first")
            sending = Call(nursery, sender.send_parts, source.parts(), size=size)
            delivery = await receiver.receive()
            parts = aiter(delivery)
            assert await anext(parts) == b"first"
            behind = Call(nursery, sender.send, "behind")
            if way == "cancelled":
                await sending.cancel()
            else:
                source.give(ZeroDivisionError("mine"))
                assert isinstance(await sending.failure(), ZeroDivisionError)
            assert source.is_closed
            with pytest.raises(DeliveryAbortedError):
                await anext(parts)
            delivery = await receiver.receive()
            assert (await delivery.read()).body == "behind"
            delivery.accept()
            await behind.result()


@pytest.mark.parametrize("parts", [[b"12345"], [b"123456789", b"01"], ["text"]], ids=["fewer", "more", "text"])
async def test_other_octets_than_were_announced_are_aborted(
    parts: list[Any], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=10)
    async with far.connect() as connection, connection.sender("q") as sender:
        with pytest.raises(CommandError):
            await sender.send_parts(each(parts), size=10)
        *others, last = await far.rest()
        assert isinstance(last, Transfer)
        assert last.aborted
        assert not any(isinstance(each, Transfer) and each.aborted for each in others)
        assert (sender.waiting, sender.unsettled) == (0, 0)


async def test_a_message_larger_than_the_peer_takes_is_not_begun_or_aborted(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=10, attach={"max_message_size": 1000})
    async with far.connect() as connection, connection.sender("q", snd_settle_mode=SenderSettleMode.SETTLED) as sender:
        source = Source(b"x" * 500, b"x" * 500)
        with pytest.raises(CommandError, match="1000"):
            await sender.send_parts(source.parts(), size=1000)
        assert await far.rest() == []
        assert source.asked == 0
        with pytest.raises(CommandError, match="1000"):
            await sender.send_parts(source.parts())
        frames = await far.rest()
        assert [isinstance(frame, Transfer) and frame.aborted for frame in frames] == [False] * (len(frames) - 1) + [
            True
        ]
        await sender.send_parts(each([b"x" * 495, b"x" * 489]), settled=True)  # 1000 with the heads of two sections
        last = (await far.rest())[-1]
        assert isinstance(last, Transfer)
        assert not last.more


async def test_senders_of_one_link_wait_in_order_and_other_links_go_on(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=10, channel_max=0)  # all links share one session
    async with (
        far.connect() as connection,
        connection.sender("q", snd_settle_mode=SenderSettleMode.SETTLED) as sender,
        connection.sender("r", snd_settle_mode=SenderSettleMode.SETTLED) as other,
    ):
        first, second = Source(b"1"), Source(b"2")
        calls = [Call(nursery, sender.send_parts, first.parts())]
        await wait_all_tasks_blocked()
        calls.append(Call(nursery, sender.send, b"3"))
        await wait_all_tasks_blocked()
        calls.append(Call(nursery, sender.send_parts, second.parts()))
        await wait_all_tasks_blocked()
        await other.send(b"at once")
        handles = [frame.handle for frame in await far.rest() if isinstance(frame, Transfer)]
        assert handles[-1] == far.links[1].attach.handle
        assert (first.asked, second.asked, sender.waiting) == (2, 0, 3)
        first.end()
        second.end()
        for call in calls:
            await call.result()
        await far.rest()
        assert far.links[0].begun == 3


async def test_a_window_that_is_used_up_stops_the_parts(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    far = Counterpart(nursery, credit=10, window=4)
    source = Source(*[b"x" * 100] * 20)
    source.end()
    async with far.connect() as connection, connection.sender("q", snd_settle_mode=SenderSettleMode.SETTLED) as sender:
        sending = Call(nursery, sender.send_parts, source.parts())
        assert len(await far.rest()) == 4
        asked = source.asked
        assert asked <= 5
        await trio.sleep(60)
        assert source.asked == asked
        frames = 4
        while not sending.is_done:
            await far.links[0].flow(window=4)
            frames += len(await far.rest())
        await sending.result()
        assert frames == 22  # the head, the parts, the end


# ------------------------------------------------------------------------------------------------------ what goes wrong


async def test_a_stream_that_is_lost_in_the_middle_says_so_at_once_and_is_not_sent_again(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router, router.receiver("q", streaming=True) as receiver:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with roads.connect(reconnect=True) as connection, connection.sender("q") as sender:
            source = Source(b"first")
            sending = Call(nursery, sender.send_parts, source.parts())
            delivery = await receiver.receive()
            behind = Call(nursery, sender.send, "behind")
            await wait_all_tasks_blocked()
            await roads.cut()
            assert isinstance(await sending.failure(), ConnectionClosedError)  # though no further part has come
            assert source.is_closed
            with pytest.raises(DeliveryAbortedError):
                await taken(delivery)
            async with await receiver.receive():
                pass
            await behind.result()
        assert connection.reconnections == 1
    assert router.statistics().is_empty


async def test_a_stream_that_waits_for_credit_goes_on_over_the_next_connection(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with roads.connect(reconnect=True) as connection, connection.sender("q") as sender:
            sending = Call(nursery, sender.send_parts, each([b"a", b"b"]), size=2)
            await wait_all_tasks_blocked()
            await roads.cut()
            async with router.receiver("q") as receiver:
                async with await receiver.receive() as message:
                    assert message.body == b"ab"
                await sending.result()
        assert connection.reconnections == 1
    assert router.statistics().is_empty


async def test_a_link_that_is_detached_in_the_middle_ends_the_stream(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=10)
    async with far.connect() as connection, connection.sender("q") as sender:
        source = Source(b"first")
        sending = Call(nursery, sender.send_parts, source.parts())
        await wait_all_tasks_blocked()
        await far.links[0].detach(Error(condition=AmqpCondition.RESOURCE_DELETED, description="gone"))
        failure = await sending.failure()
        assert isinstance(failure, LinkDetachedError)
        assert failure.error is not None
        assert failure.error.description == "gone"
        assert source.is_closed


async def test_a_message_that_is_rejected_in_the_middle_is_read_no_further(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=10)
    error = Error(condition=AmqpCondition.NOT_ALLOWED, description="spam")
    async with far.connect() as connection, connection.sender("q") as sender:
        source = Source(b"first")
        sending = Call(nursery, sender.send_parts, source.parts())
        await far.rest()
        await far.links[0].dispose(Rejected(error=error))
        failure = await sending.failure()
        assert isinstance(failure, RejectedError)
        assert failure.error == error
        assert source.is_closed
        (last,) = await far.rest()
        assert isinstance(last, Transfer)
        assert last.aborted
        # A message that is accepted in the middle is sent to its end.
        source = Source(b"first")
        accepted = Call(nursery, sender.send_parts, source.parts())
        await far.rest()
        await far.links[0].accept(1)
        await wait_all_tasks_blocked()
        assert not accepted.is_done
        source.end()
        await accepted.result()
        assert (sender.waiting, sender.unsettled) == (0, 0)


async def test_a_router_says_in_the_middle_that_no_receiver_takes_so_much(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q", max_message_size=100_000) as receiver, factory.sender("q") as sender:
        source = Source(*[bytes(20_000)] * 6)  # without an end
        failure = await Call(nursery, sender.send_parts, source.parts()).failure()
        assert isinstance(failure, RejectedError)
        assert "message-size-exceeded" in str(failure)
        await sender.send(b"small", settled=True)
        assert (await receiver.receive()).message.body == b"small"


async def test_a_sender_that_is_left_by_an_error_aborts_what_it_streams(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q", streaming=True) as receiver:
        source = Source(b"first")
        with pytest.raises(ZeroDivisionError):
            async with factory.sender("q") as sender:
                sending = Call(nursery, sender.send_parts, source.parts())
                delivery = await receiver.receive()
                raise ZeroDivisionError
        assert "left" in str(await sending.failure())
        assert source.is_closed
        with pytest.raises(DeliveryAbortedError):
            await taken(delivery)


# --------------------------------------------------------------------------------------------------------------- memory


async def test_no_more_is_asked_for_than_the_receiver_lets_pass(
    factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    part, count, asked = bytes(64 * KIB), 512, 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal asked
        for _ in range(count):
            asked += 1
            yield part

    async with factory.receiver("q", streaming=True, buffer=256 * KIB) as receiver, factory.sender("q") as sender:
        sending = Call(nursery, sender.send_parts, parts(), size=count * len(part))
        delivery = await receiver.receive()
        await trio.sleep(60)
        # The widest session window on the way (128 frames of 32 KiB), the backlog, and the buffer.
        bound = 128 * 32 * KIB + 2 * (BACKLOG + CHUNK) + 256 * KIB
        took = 0
        assert 0 < asked * len(part) <= bound
        async for octets in delivery:
            took += len(octets)
            assert asked * len(part) - took <= bound
        delivery.accept()
        await sending.result()
        assert took == count * len(part)


async def test_64_mebibytes_are_sent_through_little_memory(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    part, count = bytes(256 * KIB), 256
    async with (
        Router() as router,
        joined(nursery, router) as connection,
        router.receiver("q", streaming=True, buffer=256 * KIB) as receiver,
        connection.sender("q") as sender,
    ):
        sending = Call(nursery, sender.transfer_parts, each([part] * count))
        delivery = await receiver.receive()
        took = 0
        async for octets in delivery:
            took += len(octets)
            # Measured only near the end, since measuring is slow.
            if took > count * len(part) - 8 * MIB and not tracemalloc.is_tracing():
                tracemalloc.start()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        delivery.accept()
        assert await (await sending.result()).outcome() == Accepted()
        assert took == count * len(part)
        assert peak < 6 * MIB
    assert router.statistics().is_empty
