"""Deliveries that end early: aborted, lost, decided before their end, or invalid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.errors import CommandError, ConnectionClosedError, LinkDetachedError, ProtocolError
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, LinkCondition
from amqpmesh.router.amqp.standard.delivery_states import Modified, Rejected
from amqpmesh.router.amqp.standard.messaging import Data
from amqpmesh.router.amqp.standard.performatives import Detach, Disposition
from amqpmesh.router.client.links.incoming import SECTION_MAX, WHOLE_MAX, DeliveryAbortedError
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

if TYPE_CHECKING:
    from amqpmesh.router.client.delivery import Delivery
    from amqpmesh.router.client.factory import LinkFactory

MIB = 2**20


def data(octets: bytes, size: int | None = None) -> bytes:
    """Return a data section, or the beginning of one of `size` octets."""
    return b"\x00\x53\x75\xb0" + (len(octets) if size is None else size).to_bytes(4, "big") + octets


async def parts(delivery: Delivery) -> list[bytes]:
    return [part async for part in delivery]


async def test_an_aborted_stream_raises_and_leaves_nothing_to_decide(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("q", streaming=True, credit=2, buffer=1) as receiver:
        link = peer.links[0]
        for number in range(6):  # more than credit or window allow
            await link.send(data(b"abc", 9), more=True)
            delivery = await receiver.receive()
            taking = Call(nursery, parts, delivery)
            if number % 2:
                await wait_all_tasks_blocked()
            await link.send(b"", aborted=True)
            assert isinstance(await taking.failure(), DeliveryAbortedError)
            with pytest.raises(DeliveryAbortedError):
                await delivery.read()
            assert receiver.undecided == 0
            if number == 5:
                assert delivery.accept() is False
        # Deliveries that are not taken are never seen.
        await link.send(data(b"abc", 9), more=True)
        await link.send(b"", aborted=True)
        await wait_all_tasks_blocked()
        await link.send(data(b"whole"))
        assert await parts(await receiver.receive()) == [b"whole"]
        assert not [each for each in await peer.rest() if isinstance(each, Disposition)]


async def test_whole_deliveries_that_are_aborted_are_never_seen(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("q", credit=2, buffer=1) as receiver:
        link = peer.links[0]
        for _ in range(6):
            await link.send(data(b"abc", 9), b"def", more=True)
            await link.send(b"", aborted=True)
        await link.send(data(b"whole"))
        assert (await receiver.receive()).message.body == b"whole"


async def test_a_cancelled_send_aborts_the_stream_at_the_other_end(factory: LinkFactory, nursery: trio.Nursery) -> None:
    async with factory.receiver("q", streaming=True, buffer=2**16) as receiver, factory.sender("q") as sender:
        sending = Call(nursery, sender.send, bytes(8 * MIB))
        delivery = await receiver.receive()
        await wait_all_tasks_blocked()
        await sending.cancel()
        with pytest.raises(DeliveryAbortedError):
            await parts(delivery)


@pytest.mark.parametrize("again", [False, True], ids=["no-reconnect", "reconnect"])
async def test_a_connection_lost_in_the_middle_of_a_stream_is_told(
    again: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with (
        peer.connect(reconnect=again) as connection,
        connection.receiver("q", streaming=True, credit=1) as receiver,
    ):
        await peer.links[0].send(data(b"abc", 9), more=True)
        delivery = await receiver.receive()
        reading = Call(nursery, delivery.read)
        await wait_all_tasks_blocked()
        await peer.roads.cut()
        assert isinstance(await reading.failure(), ConnectionClosedError)
        assert delivery.accept() is False
        if again:
            await trio.sleep(1)
            await peer.links[1].send(data(b"whole"))
            assert await parts(await receiver.receive()) == [b"whole"]


async def test_a_link_detached_in_the_middle_of_a_stream_is_told(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("q", streaming=True) as receiver:
        await peer.links[0].send(data(b"abc", 9), more=True)
        delivery = await receiver.receive()
        await peer.links[0].detach()
        with pytest.raises(LinkDetachedError):
            await parts(delivery)


@pytest.mark.parametrize("complete", [False, True], ids=["coming", "complete"])
async def test_what_was_decided_is_not_read_on_and_the_rest_is_dropped(
    complete: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("q", streaming=True, buffer=1) as receiver:
        link = peer.links[0]
        await link.send(data(b"abc", 9), b"def", more=True)
        delivery = await receiver.receive()
        stream = aiter(delivery)
        assert await anext(stream) == b"abc"
        if complete:
            await link.send(b"ghi")
            await wait_all_tasks_blocked()
        assert delivery.reject("amqp:not-allowed", "enough")
        assert isinstance((await peer.expect(Disposition)).state, Rejected)
        # Octets that arrived and were not taken are dropped: the body has no regular end.
        with pytest.raises(CommandError, match="decided"):
            await anext(stream)
        if not complete:
            for _ in range(20):  # more than the window, if frames stayed in it
                await link.send(b"x", more=True)
                await wait_all_tasks_blocked()
            await link.send(b"")
        await link.send(data(b"next"))
        assert await parts(await receiver.receive()) == [b"next"]


async def test_leaving_in_the_middle_of_a_stream_fails_it(factory: LinkFactory, nursery: trio.Nursery) -> None:
    async with factory.sender("q") as sender:
        async with factory.receiver("q", streaming=True, buffer=2**16) as receiver:
            sent = Call(nursery, sender.transfer, bytes(8 * MIB))
            delivery = await receiver.receive()
        assert await (await sent.result()).outcome() == Modified(delivery_failed=True)
        with pytest.raises(CommandError):
            await parts(delivery)


@pytest.mark.parametrize(
    ("frames", "condition"),
    [
        ((b"\x00\x53\x73\xc0\x01\x7f" + data(b"x"),), AmqpCondition.DECODE_ERROR),
        ((data(b"abc"), encode_composite(Data(value=b"x"))[:-1]), AmqpCondition.DECODE_ERROR),
        ((b"\x00\x53\x74" + b"\xd1" + (2**20).to_bytes(4, "big"), *[bytes(10_000)] * 10), None),
        ((b"nonsense",), AmqpCondition.DECODE_ERROR),
    ],
    ids=["properties", "cut-off", "head-too-large", "nonsense"],
)
async def test_a_malformed_message_is_rejected_as_soon_as_that_is_known(
    frames: tuple[bytes, ...], condition: AmqpCondition | None, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    assert SECTION_MAX < 100_000
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("q", streaming=True, credit=1) as receiver:
        link = peer.links[0]
        sending = Call(nursery, link.send, *frames)
        rejected = (await peer.expect(Disposition)).state
        assert isinstance(rejected, Rejected)
        assert rejected.error is not None
        assert rejected.error.condition == (condition or LinkCondition.MESSAGE_SIZE_EXCEEDED)
        await sending.result()
        await link.send(data(b"next"))
        assert await parts(await receiver.receive()) == [b"next"]
        assert not [each for each in await peer.rest() if isinstance(each, Detach)]


async def test_a_program_that_reads_an_invalid_message_gets_an_error(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("q", streaming=True) as receiver:
        await peer.links[0].send(data(b"abc"), more=True)
        delivery = await receiver.receive()
        stream = aiter(delivery)
        assert await anext(stream) == b"abc"
        await peer.links[0].send(b"\x00\x53\x77\x40")
        with pytest.raises(ProtocolError, match="after Data"):
            await anext(stream)
        assert isinstance((await peer.expect(Disposition)).state, Rejected)
        with pytest.raises(CommandError, match="already"):
            delivery.accept()


async def test_a_body_that_is_no_data_has_to_be_there_whole_and_is_bounded(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("q", streaming=True, buffer=1, credit=1) as receiver:
        link = peer.links[0]
        begin = b"\x00\x53\x77\xb1" + (2**30).to_bytes(4, "big")
        sending = Call(nursery, link.send, begin, *[b"x" * 16_000] * 1060, more=True)
        delivery = await receiver.receive()
        with pytest.raises(ProtocolError) as raised:
            await delivery.read()
        assert raised.value.condition == LinkCondition.MESSAGE_SIZE_EXCEEDED
        await sending.result()
        assert WHOLE_MAX == 16 * MIB
        assert isinstance((await peer.expect(Disposition)).state, Rejected)


async def test_other_message_formats_are_handed_out_whole(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    peer = Counterpart(nursery)
    async with (
        peer.connect() as connection,
        connection.receiver("q", streaming=True, buffer=1, any_format=True) as receiver,
    ):
        link = peer.links[0]
        sending = Call(nursery, link.send, *[b"x" * 1000] * 10, message_format=77)
        delivery = await receiver.receive()
        await sending.result()
        assert (delivery.message_format, delivery.payload) == (77, b"x" * 10_000)
        with pytest.raises(CommandError, match="77"):
            delivery.message  # noqa: B018 - it raises
        delivery.accept()


async def test_a_malformed_whole_message_is_rejected_and_never_seen(
    factory: LinkFactory, nursery: trio.Nursery
) -> None:
    async with factory.receiver("q", credit=1) as receiver, factory.sender("q") as sender:
        for nonsense in (b"\x00\x53\x75\xa0\xff", b"nonsense"):
            sent = Call(nursery, sender.transfer_payload, nonsense)
            receiving = Call(nursery, receiver.receive)
            outcome = await (await sent.result()).outcome()
            assert isinstance(outcome, Rejected)
            assert outcome.error is not None
            assert outcome.error.condition == AmqpCondition.DECODE_ERROR
            await wait_all_tasks_blocked()
            assert not receiving.is_done
            await receiving.cancel()
