"""Senders that find out, after a reconnection, what became of the deliveries whose outcomes they had not heard."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.errors import CommandError, InDoubtError, LinkDetachedError
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.client.delivery import Delivery
from amqpmesh.router.config.file import RouterConfig
from amqpmesh.router.config.listener import ListenerConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.message.outcomes import ModifiedError, RejectedError, ReleasedError
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import Roads
from tests.support.tasks.calls import Call

#: The streams of these tests come from no host that is known.
LASTING = RouterConfig(resumption=ResumptionConfig(anonymous=True))


def ways(nursery: trio.Nursery, router: Router) -> Roads:
    roads = Roads(nursery)
    roads.lead_to(router)
    return roads


MODES = [{"resume": 30.0}, {"resume": 30.0, "rcv_settle_mode": ReceiverSettleMode.SECOND}, {"exactly_once": True}]


@pytest.mark.parametrize("when", ["away", "back"])
@pytest.mark.parametrize("how", MODES, ids=["first", "second", "exactly once"])
async def test_the_outcome_is_heard_after_a_reconnection(
    nursery: trio.Nursery, autojump_clock: MockClock, how: dict[str, object], when: str
) -> None:
    async with Router(LASTING) as router, router.receiver("q") as receiver:
        roads = ways(nursery, router)
        async with roads.connect(reconnect=True) as connection, connection.sender("q", **how) as sender:
            call = Call(nursery, sender.send, "hello")
            delivery = await receiver.receive()
            await roads.cut()
            await wait_all_tasks_blocked()
            assert not connection.is_connected
            if when == "away":
                delivery.accept()
            while not sender.is_attached:
                await trio.sleep(0.01)
            if when == "back":
                delivery.accept()
            await call.result()
            assert sender.unsettled == 0
            with trio.move_on_after(5):
                await receiver.receive()
                raise AssertionError("it came twice")
        assert connection.reconnections == 1
    assert router.statistics().is_empty


@pytest.mark.parametrize("error", [RejectedError, ModifiedError])
async def test_an_outcome_that_is_no_success_is_raised(
    nursery: trio.Nursery, autojump_clock: MockClock, error: type[Exception]
) -> None:
    async with Router(LASTING) as router, router.receiver("q") as receiver:
        roads = ways(nursery, router)
        async with roads.connect(reconnect=True) as connection, connection.sender("q", exactly_once=True) as sender:
            call = Call(nursery, sender.send, "hello")
            delivery = await receiver.receive()
            await roads.cut()
            await wait_all_tasks_blocked()
            _ = delivery.reject() if error is RejectedError else delivery.modify(delivery_failed=True)
            with pytest.raises(error):
                await call.result()
    assert router.statistics().is_empty


async def test_without_resumption_the_outcome_is_in_doubt(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router(LASTING) as router, router.receiver("q") as receiver:
        roads = ways(nursery, router)
        async with roads.connect(reconnect=True) as connection, connection.sender("q") as sender:
            call = Call(nursery, sender.send, "hello")
            delivery = await receiver.receive()
            await roads.cut()
            with pytest.raises(InDoubtError):
                await call.result()
            delivery.accept()


@pytest.mark.parametrize("how", MODES, ids=["first", "second", "exactly once"])
async def test_a_router_that_has_forgotten_leaves_it_in_doubt(
    nursery: trio.Nursery, autojump_clock: MockClock, how: dict[str, object]
) -> None:
    async with Router(LASTING) as router, router.receiver("q") as receiver:
        roads = ways(nursery, router)
        async with roads.connect(reconnect=True) as connection, connection.sender("q", **how) as sender:
            call = Call(nursery, sender.send, "hello")
            delivery = await receiver.receive()
            await roads.cut()
            roads.close()
            await trio.sleep(100)
            roads.lead_to(router)
            with pytest.raises(InDoubtError, match="knows nothing"):
                await call.result()
            delivery.accept()
    assert router.statistics().is_empty


async def test_a_message_that_did_not_come_whole_is_sent_again(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    body = bytes(300_000)
    async with Router(LASTING) as router, router.receiver("q", credit=1, buffer=2**17) as receiver:
        roads = ways(nursery, router)
        async with roads.connect(reconnect=True) as connection, connection.sender("q", exactly_once=True) as sender:
            call = Call(nursery, sender.send, body)
            await wait_all_tasks_blocked()
            await roads.cut()
            found: list[Delivery] = []
            while not call.is_done:
                with trio.move_on_after(5):
                    async with await receiver.receive() as message:
                        assert message.body == body
                        found.append(message)
            await call.result()
            assert len(found) == 1
    assert router.statistics().is_empty


async def test_many_messages_are_processed_once_each_however_often_the_connection_is_cut(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    found: list[object] = []

    leaving = trio.CancelScope()

    async def receive(router: Router) -> None:
        with leaving:
            async with router.receiver("q", credit=7) as receiver:
                async for delivery in receiver:
                    await trio.sleep(0.01)
                    async with delivery as message:
                        found.append(message.body)

    async with Router(LASTING) as router:
        nursery.start_soon(receive, router)
        roads = ways(nursery, router)
        async with roads.connect(reconnect=True) as connection, connection.sender("q", exactly_once=True) as sender:
            calls = [Call(nursery, sender.send, number) for number in range(200)]
            for pause in range(20):
                await trio.sleep(0.003 * pause)
                if connection.is_connected:
                    await roads.cut()
                while not sender.is_attached:
                    await trio.sleep(0.01)
            for call in calls:
                await call.result()
        assert sorted(found) == list(range(200))  # type: ignore[type-var]  # numbers
        leaving.cancel()
        await wait_all_tasks_blocked()


async def test_released_messages_are_sent_again_three_times_in_all(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with (
        Router(LASTING) as router,
        router.receiver("q") as receiver,
        ways(nursery, router).connect() as connection,
        connection.sender("q", exactly_once=True) as sender,
    ):
        call = Call(nursery, sender.send, "hello")
        for _ in range(3):
            (await receiver.receive()).release()
        with pytest.raises(ReleasedError):
            await call.result()
        call = Call(nursery, sender.send, "again")
        (await receiver.receive()).release()
        async with await receiver.receive() as message:
            assert message.body == "again"
        await call.result()
    assert router.statistics().is_empty


async def test_what_was_released_while_the_sender_was_away_is_sent_again_three_times_in_all(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router(LASTING) as router, router.receiver("q") as receiver:
        roads = ways(nursery, router)
        async with roads.connect(reconnect=True) as connection, connection.sender("q", exactly_once=True) as sender:
            call = Call(nursery, sender.send, "hello")
            for _ in range(3):
                delivery = await receiver.receive()
                assert delivery.message.body == "hello"
                await roads.cut()
                await wait_all_tasks_blocked()
                assert not connection.is_connected
                delivery.release()
                while not sender.is_attached:
                    await trio.sleep(0.01)
            with pytest.raises(ReleasedError):
                await call.result()
            call = Call(nursery, sender.send, "again")
            delivery = await receiver.receive()
            await roads.cut()
            await wait_all_tasks_blocked()
            delivery.release()
            async with await receiver.receive() as message:
                assert message.body == "again"
            await call.result()
            assert sender.unsettled == sender.waiting == 0
    assert router.statistics().is_empty


async def test_a_peer_that_keeps_nothing_is_told_apart(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    nothing = RouterConfig(resumption=ResumptionConfig(timeout=0.0))
    async with Router(nothing) as router, ways(nursery, router).connect() as connection:
        with pytest.raises(LinkDetachedError, match="keeps no unsettled state"):
            async with connection.sender("q", exactly_once=True):
                pass
        async with connection.sender("q", resume=5.0):
            pass


async def test_arguments(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async def parts() -> object:
        yield b"x"

    async with Router(LASTING) as router, ways(nursery, router).connect() as connection:
        for wrong in (0.0, -1.0, 1e9, float("nan")):
            with pytest.raises(CommandError, match="resume"):
                connection.sender("q", resume=wrong)
        async with connection.sender("q", exactly_once=True) as sender:
            with pytest.raises(CommandError, match="settle"):
                await sender.send("x", settled=True)
            with pytest.raises(CommandError, match="parts"):
                await sender.send_parts(parts())  # type: ignore[arg-type]  # a generator


@pytest.mark.parametrize("outcomes", ["before", "after"])
@pytest.mark.parametrize("sizes", [(1250, 32768), (32768, 1024)], ids=["our map", "the peer's map"])
@pytest.mark.parametrize("how", MODES, ids=["first", "second", "exactly once"])
async def test_maps_that_do_not_fit_are_exchanged_in_rounds(
    nursery: trio.Nursery, autojump_clock: MockClock, how: dict[str, object], sizes: tuple[int, int], outcomes: str
) -> None:
    config = replace(LASTING, listeners=())
    listener = ListenerConfig(url="amqp://127.0.0.1:0", name="small", max_frame_size=sizes[0])
    async with Router(config) as router, router.receiver("q", credit=200) as receiver:
        roads = Roads(nursery)
        roads.lead_to(router, listener=listener)
        async with (
            roads.connect(reconnect=True, max_frame_size=sizes[1]) as connection,
            connection.sender("q", **how) as s,
        ):
            calls = [Call(nursery, s.send, number) for number in range(60)]
            deliveries = [await receiver.receive() for _ in calls]
            await roads.cut()
            await wait_all_tasks_blocked()
            if outcomes == "before":
                for each in deliveries:
                    each.accept()
            await trio.sleep(3)
            new = Call(nursery, s.send, "new")
            for each in deliveries if outcomes == "after" else ():
                each.accept()
            for call in calls:
                await call.result()
            last = await receiver.receive()
            assert last.message.body == "new"
            last.accept()
            await new.result()
        assert router.statistics().router.resumed > 1, "there were several rounds"
    assert router.statistics().is_empty
