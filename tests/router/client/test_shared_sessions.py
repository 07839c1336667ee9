"""Links that share a session because the peer has no free channel: none uses up the window of another."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import LinkDetachedError
from amqpmesh.router.amqp.standard.definitions import Error, SenderSettleMode
from amqpmesh.router.message.content import Message
from tests.support.peers.scripted_server import Counterpart, Far
from tests.support.tasks.calls import Call

PAYLOAD = Message(b"x" * 100).encode()


async def test_deliveries_of_a_detached_receiver_are_released(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    far = Counterpart(nursery, channel_max=0)
    async with far.connect() as connection, connection.receiver("b", buffer=0) as b:
        async with connection.receiver("a", buffer=0) as a:
            first, second = await links(far)
            assert first.channel == second.channel
            before = await window(first)
            for _ in range(3):
                await second.send(PAYLOAD)
            await wait_all_tasks_blocked()
            assert await window(first) == before - 3
            await second.detach(Error(condition=Symbol("amqp:not-found")))
            await wait_all_tasks_blocked()
            assert await window(first) == before
            with pytest.raises(LinkDetachedError):
                await a.receive()
        await pass_by(first, Call(nursery, b.receive))
        assert await window(first) == before


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])
async def test_what_a_receiver_holds_that_was_left_is_given_back(
    streaming: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, channel_max=0)
    async with far.connect() as connection, connection.receiver("b", buffer=0) as b:
        async with connection.receiver("a", buffer=0, streaming=streaming) as a:
            first, second = await links(far)
            before = await window(first)
            await second.send(PAYLOAD, settled=True)
            taken = await a.receive()
            await second.send(PAYLOAD)
            await second.send(PAYLOAD, PAYLOAD[:10], more=True)
            await wait_all_tasks_blocked()
            assert await window(first) < before
        await wait_all_tasks_blocked()
        assert await window(first) == before
        # A delivery that a program has can still be read, and uses no window.
        assert (await taken.read()).body == b"x" * 100
        await pass_by(first, Call(nursery, b.receive))
        assert await window(first) == before


async def test_what_was_settled_before_its_link_was_lost_is_received_and_holds_nothing_of_the_next_one(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, channel_max=0)
    async with (
        far.connect(reconnect=True) as connection,
        connection.receiver("b", buffer=0),
        connection.receiver("a", buffer=0, streaming=True, snd_settle_mode=SenderSettleMode.SETTLED) as a,
    ):
        first, second = await links(far)
        before = await window(first)
        await second.send(PAYLOAD, settled=True)
        taken = await a.receive()
        await second.send(PAYLOAD, settled=True)
        await wait_all_tasks_blocked()
        await second.detach(closed=False)
        await trio.sleep(1)
        assert len(far.links) == 3
        assert await window(first) == before
        for delivery in taken, await a.receive():
            assert (await delivery.read()).body == b"x" * 100
        await wait_all_tasks_blocked()
        assert await window(first) == before


async def test_the_session_of_a_sender_takes_as_much_as_the_buffers_of_the_receivers_that_share_it(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, channel_max=0)
    async with far.connect(max_frame_size=1000) as connection, connection.sender("a"):
        (sender,) = await links(far)
        assert await window(sender) == 4
        async with connection.receiver("b", buffer=0):
            await wait_all_tasks_blocked()
            assert await window(sender) == 4
            async with connection.receiver("c", buffer=50_000):
                await wait_all_tasks_blocked()
                assert await window(sender) == 50
                async with connection.receiver("d", buffer=20_000):
                    await wait_all_tasks_blocked()
                    assert await window(sender) == 50


async def links(far: Counterpart) -> list[Far]:
    """Return the links once all tasks have nothing more to do."""
    await wait_all_tasks_blocked()
    return far.links


async def window(link: Far) -> int:
    """Return the window of its session, once the client was asked for it."""
    await link.flow(echo=True)
    await wait_all_tasks_blocked()
    return link.window


async def pass_by(link: Far, receiving: Call) -> None:
    """Send, receive and accept a delivery."""
    await link.send(PAYLOAD)
    (await receiving.result()).accept()
    await wait_all_tasks_blocked()
