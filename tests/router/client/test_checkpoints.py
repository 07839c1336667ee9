"""Checkpoints: every `await` is one, so that no loop blocks other tasks."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.io.streams import BATCH_TIME
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import joined
from tests.support.peers.scripted import frame, transferred
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.stopwatches import measure

if TYPE_CHECKING:
    from amqpmesh.router.client.factory import LinkFactory


async def test_entering_and_leaving(factory: LinkFactory, autojump_clock: MockClock) -> None:
    for kind in ("sender", "receiver", "requester"):
        link = getattr(factory, kind)("q")
        with assert_checkpoints():
            await link.__aenter__()
        with assert_checkpoints():
            await link.__aexit__(None, None, None)


async def test_entering_and_leaving_a_connection_and_links_that_have_failed(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        connection = joined(nursery, router)
        with assert_checkpoints():
            await connection.__aenter__()
        links: list[Any] = [connection.sender("q"), connection.receiver("q"), connection.requester("q")]
        for link in links:
            await link.__aenter__()
        await router.drain()
        await wait_all_tasks_blocked()
        assert not connection.is_connected
        for link in links:
            with assert_checkpoints():
                await link.__aexit__(None, None, None)
        with assert_checkpoints():
            await connection.__aexit__(None, None, None)


async def test_sending(factory: LinkFactory, autojump_clock: MockClock) -> None:
    async with factory.sender("q") as sender, factory.receiver("q") as receiver:
        await wait_all_tasks_blocked()
        assert sender.credit > 0
        with assert_checkpoints():
            sent = await sender.transfer(b"")
        with assert_checkpoints():
            await sender.send(b"", settled=True)
        (await receiver.receive()).accept()
        await wait_all_tasks_blocked()
        assert sent.is_decided
        with assert_checkpoints():
            assert await sent.outcome() == Accepted()


async def test_receiving(factory: LinkFactory, autojump_clock: MockClock) -> None:
    manual = factory.receiver("r", credit=0)
    async with factory.sender("q") as sender, factory.receiver("q") as receiver, manual:
        for _ in range(3):
            await sender.transfer(Message(b"x", reply_to="answers"), settled=True)
        await wait_all_tasks_blocked()
        with assert_checkpoints():
            delivery = await receiver.receive()
        with assert_checkpoints():
            await receiver.__anext__()
        with assert_checkpoints():
            async with delivery:
                pass
        with assert_checkpoints():
            assert await delivery.settled()
        with assert_checkpoints():
            assert (await delivery.read()).body == b"x"
        with assert_checkpoints():
            assert [part async for part in delivery] == [b"x"]
        with assert_checkpoints():
            await manual.drain()
        async with factory.receiver("answers"):
            for _ in range(2):  # the second one uses the link of the first
                with assert_checkpoints():
                    await delivery.reply(b"!")


@pytest.mark.parametrize(("step", "turns"), [(0.0, {0}), (0.7, {3, 4, 5}), (1.1, {8, 9, 10})])
async def test_a_batch_gives_the_thread_back_when_it_has_taken_its_time(
    step: float, turns: set[int], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Let another task run in the middle of a large batch, by the real clock.

    Args: step: the time between two looks at the clock, in lengths of a batch. turns: of the other task, in the middle
        of ten deliveries; the order of tasks within a round is random.
    """
    steps = count()
    far = Counterpart(nursery)
    taken = 0
    async with far.connect() as connection, connection.receiver("q") as receiver:

        async def take_turns() -> None:
            nonlocal taken
            while receiver.undecided < 10:
                taken += receiver.undecided > 0
                await trio.lowlevel.checkpoint()

        await wait_all_tasks_blocked()
        measure(lambda: next(steps) * step * BATCH_TIME)
        nursery.start_soon(take_turns)
        await far.peer.write(*(frame(transferred(number), Message(b"x").encode()) for number in range(10)))
        await wait_all_tasks_blocked()
    assert taken in turns


async def test_a_request(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """Check a request that is refused at once, too."""
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.requester("q") as requester:
        await far.roads.cut()
        await wait_all_tasks_blocked()
        with pytest.raises(AmqpMeshError):
            await requester.request(b"")
    async with Router() as router, router.requester("q") as requester, router.receiver("q") as service:

        async def answer() -> None:
            async with await service.receive():
                pass

        nursery.start_soon(answer)
        with assert_checkpoints(), trio.move_on_after(1):
            await requester.request(b"")


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_task_that_loops_over_ready_deliveries_stops_no_other_task(
    streaming: bool, factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    turns = taken = 0

    async def count() -> None:
        nonlocal turns
        while taken < 100:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with factory.sender("q") as sender, factory.receiver("q", credit=1000, streaming=streaming) as receiver:
        for _ in range(100):
            await sender.transfer(b"x", settled=True)
        await wait_all_tasks_blocked()
        nursery.start_soon(count)
        async for delivery in receiver:
            delivery.accept()
            taken += 1
            if taken == 100:
                break
        assert turns >= 50
