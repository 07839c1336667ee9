"""Receivers that go on with their deliveries after a reconnection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.errors import CommandError, LinkDetachedError
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.client.links import kept_deliveries
from amqpmesh.router.client.receiver import Receiver
from amqpmesh.router.config.file import ListenerConfig, RouterConfig
from amqpmesh.router.config.resumption import ResumptionConfig
from amqpmesh.router.message.outcomes import ModifiedError, ReleasedError
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import Roads
from tests.support.tasks.calls import Call

#: The streams of these tests come from no host that is known.
LASTING = RouterConfig(resumption=ResumptionConfig(anonymous=True))

MODES = [{"resume": 30.0}, {"resume": 30.0, "rcv_settle_mode": ReceiverSettleMode.SECOND}, {"exactly_once": True}]
IDS = ["first", "second", "exactly once"]


def ways(nursery: trio.Nursery, router: Router) -> Roads:
    roads = Roads(nursery)
    roads.lead_to(router)
    return roads


async def until_attached(receiver: Receiver) -> None:
    while not receiver.is_attached:
        await trio.sleep(0.01)
    await wait_all_tasks_blocked()


@pytest.mark.parametrize("when", ["away", "back"])
@pytest.mark.parametrize("how", MODES, ids=IDS)
async def test_a_decision_is_told_after_a_reconnection(
    nursery: trio.Nursery, autojump_clock: MockClock, how: dict[str, object], when: str
) -> None:
    async with Router(LASTING) as router:
        roads = ways(nursery, router)
        async with roads.connect(reconnect=True) as connection, connection.receiver("q", **how) as receiver:
            async with router.sender("q") as sender:
                call = Call(nursery, sender.send, "hello")
                delivery = await receiver.receive()
                await roads.cut()
                await wait_all_tasks_blocked()
                assert not connection.is_connected
                if when == "back":
                    await until_attached(receiver)
                assert not call.is_done
                assert delivery.accept(), "it is told, once the link is back"
                await call.result()
                assert await delivery.settled()
            with trio.move_on_after(5):
                await receiver.receive()
                raise AssertionError("it came twice")
            assert receiver.undecided == 0
    assert router.statistics().is_empty


@pytest.mark.parametrize("how", MODES, ids=IDS)
async def test_what_was_not_taken_is_taken_after_a_reconnection(
    nursery: trio.Nursery, autojump_clock: MockClock, how: dict[str, object]
) -> None:
    async with Router(LASTING) as router:
        roads = ways(nursery, router)
        async with (
            roads.connect(reconnect=True) as connection,
            connection.receiver("q", **how) as receiver,
            router.sender("q") as sender,
        ):
            calls = [Call(nursery, sender.send, number) for number in range(5)]
            await wait_all_tasks_blocked()
            await roads.cut()
            await wait_all_tasks_blocked()
            taking = Call(nursery, receiver.receive)
            await wait_all_tasks_blocked()
            assert not taking.is_done, "the peer may have given it up meanwhile"
            found = []
            async with await taking.result() as message:
                found.append(message.body)
            for _ in range(4):
                async with await receiver.receive() as message:
                    found.append(message.body)
            for call in calls:
                await call.result()
            assert sorted(found) == list(range(5))  # type: ignore[type-var]  # numbers
    assert router.statistics().is_empty


@pytest.mark.parametrize("how", MODES, ids=IDS)
async def test_a_router_that_has_forgotten_cannot_be_told(
    nursery: trio.Nursery, autojump_clock: MockClock, how: dict[str, object]
) -> None:
    async with Router(LASTING) as router:
        roads = ways(nursery, router)
        async with (
            roads.connect(reconnect=True) as connection,
            connection.receiver("q", **how) as receiver,
            router.sender("q") as sender,
        ):
            calls = [Call(nursery, sender.send, number) for number in range(3)]
            taken = await receiver.receive()
            early = await receiver.receive()
            await roads.cut()
            roads.close()
            await wait_all_tasks_blocked()
            early.accept()
            await trio.sleep(100)
            for call in calls:
                with pytest.raises(ModifiedError):
                    await call.result()
            roads.lead_to(router)
            await until_attached(receiver)
            assert not taken.accept()
            assert not await early.settled()
            assert receiver.undecided == 0
            call = Call(nursery, sender.send, "again")
            async with await receiver.receive() as message:
                assert message.body == "again", "and not what was here before"
            await call.result()
    assert router.statistics().is_empty


async def test_without_resumption_the_sender_hears_at_once(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router(LASTING) as router:
        roads = ways(nursery, router)
        async with (
            roads.connect(reconnect=True) as connection,
            connection.receiver("q") as receiver,
            router.sender("q") as sender,
        ):
            call = Call(nursery, sender.send, "hello")
            delivery = await receiver.receive()
            await roads.cut()
            with pytest.raises(ModifiedError):
                await call.result()
            assert not delivery.accept()


async def test_a_message_that_did_not_come_whole_is_released(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router(LASTING) as router:
        roads = ways(nursery, router)
        async with (
            roads.connect(reconnect=True) as connection,
            connection.receiver("q", exactly_once=True) as receiver,
            router.sender("q") as sender,
        ):
            ends = trio.Event()

            async def parts() -> AsyncIterator[bytes]:
                yield bytes(100_000)
                await ends.wait()
                yield b"end"

            call = Call(nursery, sender.send_parts, parts())
            await wait_all_tasks_blocked()
            assert receiver.undecided == 1
            await roads.cut()
            ends.set()
            with pytest.raises(ReleasedError):
                await call.result()
            assert receiver.undecided == 0
    assert router.statistics().is_empty


@pytest.mark.parametrize("both", [False, True])
async def test_many_messages_are_processed_once_each_however_often_connections_are_cut(
    nursery: trio.Nursery, autojump_clock: MockClock, both: bool
) -> None:
    found: list[object] = []
    told: list[bool] = []
    async with Router(LASTING) as router:
        roads, others = ways(nursery, router), ways(nursery, router)
        async with (
            roads.connect(reconnect=True) as connection,
            others.connect(reconnect=True) as other,
            connection.receiver("q", exactly_once=True, credit=7) as receiver,
            other.sender("q", exactly_once=True) as sender,
        ):

            async def receive() -> None:
                async for delivery in receiver:
                    await trio.sleep(0.01)
                    found.append(delivery.message.body)
                    told.append(delivery.accept())

            async def send(number: int) -> None:
                with suppress(ReleasedError):  # no receiver was there, three times: nobody has it
                    await sender.send(number)
                    return
                await send(number)

            calls = [Call(nursery, send, number) for number in range(60)]
            async with trio.open_nursery() as taking:
                taking.start_soon(receive)
                for pause in range(12):
                    await trio.sleep(0.003 * pause)
                    if connection.is_connected:
                        await roads.cut()
                    if both and other.is_connected:
                        await others.cut()
                    while not (receiver.is_attached and sender.is_attached):
                        await trio.sleep(0.01)
                for call in calls:
                    await call.result()
                taking.cancel_scope.cancel()
            assert connection.reconnections > 6
        assert sorted(found) == list(range(60))  # type: ignore[type-var]  # numbers
        assert all(told)
    assert router.statistics().is_empty


async def test_decisions_are_told_before_the_program_leaves(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router(LASTING) as router:
        roads = ways(nursery, router)
        async with router.sender("q") as sender, roads.connect(reconnect=True) as connection:
            async with connection.receiver("q", exactly_once=True) as receiver:
                call = Call(nursery, sender.send, "hello")
                delivery = await receiver.receive()
                await roads.cut()
                await wait_all_tasks_blocked()
                delivery.accept()
            await call.result()
    assert router.statistics().is_empty


@pytest.mark.parametrize("mode", ReceiverSettleMode)
async def test_decisions_that_several_maps_tell_are_told_before_the_program_leaves(
    nursery: trio.Nursery, autojump_clock: MockClock, mode: ReceiverSettleMode
) -> None:
    async with Router(LASTING) as router:
        roads = Roads(nursery)
        roads.lead_to(router, listener=ListenerConfig(url="amqp://127.0.0.1:0", max_frame_size=2048))
        async with router.sender("q") as sender, roads.connect(reconnect=True) as connection:
            async with connection.receiver("q", resume=60.0, rcv_settle_mode=mode, credit=0) as receiver:
                receiver.flow(60)
                calls = [Call(nursery, sender.send, number) for number in range(60)]
                came = [await receiver.receive() for _ in calls]
                await roads.cut()
                await wait_all_tasks_blocked()
                for each in came:
                    assert each.accept()
            for call in calls:
                await call.result()
    assert router.statistics().is_empty


async def test_it_takes_no_more_than_a_map_can_name(
    nursery: trio.Nursery, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_deliveries, "_OF_ENTRY", 8_000)
    async with Router(LASTING) as router:
        roads = ways(nursery, router)
        async with (
            roads.connect() as connection,
            connection.receiver("q", exactly_once=True) as receiver,
            roads.connect(reconnect=True) as other,
            other.sender("q", resume=60.0, rcv_settle_mode=ReceiverSettleMode.SECOND) as sender,
        ):
            calls = [Call(nursery, sender.send, number) for number in range(10)]
            await wait_all_tasks_blocked()
            assert receiver.undecided == 3, "frames of 32 KiB"
            for _ in range(10):
                async with await receiver.receive():
                    pass
            for call in calls:
                await call.result()
    assert router.statistics().is_empty


@pytest.mark.parametrize("decided", [0, 25, 60])
@pytest.mark.parametrize("small", ["theirs", "ours"])
@pytest.mark.parametrize("mode", ReceiverSettleMode)
async def test_maps_that_do_not_fit_into_a_frame_are_exchanged_in_rounds(
    nursery: trio.Nursery, autojump_clock: MockClock, mode: ReceiverSettleMode, small: str, decided: int
) -> None:
    """Theirs, which the client's frames limit, or ours, which the router's frames limit."""
    frame = 512 if small == "theirs" else 2**16
    listener = None if small == "theirs" else ListenerConfig(url="amqp://127.0.0.1:0", max_frame_size=2048)
    async with Router(LASTING) as router:
        roads = Roads(nursery)
        roads.lead_to(router, listener=listener)
        async with (
            roads.connect(reconnect=True, max_frame_size=frame) as connection,
            connection.receiver("q", resume=600.0, rcv_settle_mode=mode, credit=0) as receiver,
            router.sender("q") as sender,
        ):
            receiver.flow(60)
            calls = [Call(nursery, sender.send, number) for number in range(60)]
            came = [await receiver.receive() for _ in calls]
            await roads.cut()
            await wait_all_tasks_blocked()
            for each in came[:decided]:
                assert each.accept()
            while sum(call.is_done for call in calls) < decided:
                await trio.sleep(0.1)
            assert sum(call.is_done for call in calls) == decided
            for each in came[decided:]:
                assert each.accept()
            for call in calls:
                await call.result()
            last = Call(nursery, sender.send, "last")
            receiver.flow(1)
            async with await receiver.receive() as message:
                assert message.body == "last", "none came twice"
            await last.result()
    assert router.statistics().is_empty


@pytest.mark.parametrize("credit", [0, 1])
async def test_deliveries_are_resumed_whatever_credit_is_left(
    nursery: trio.Nursery, autojump_clock: MockClock, credit: int
) -> None:
    async with Router(LASTING) as router:
        roads = ways(nursery, router)
        async with (
            roads.connect(reconnect=True) as connection,
            connection.receiver("q", exactly_once=True, credit=credit) as receiver,
            router.sender("q") as sender,
        ):
            if not credit:
                receiver.flow(1)
            call = Call(nursery, sender.send, "hello")
            delivery = await receiver.receive()
            await roads.cut()
            await wait_all_tasks_blocked()
            await until_attached(receiver)
            delivery.accept()
            assert await delivery.settled()
            await call.result()
            if not credit:
                assert receiver.credit == 0
    assert router.statistics().is_empty


async def test_a_peer_that_keeps_nothing_is_told_apart(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    nothing = RouterConfig(resumption=ResumptionConfig(timeout=0.0))
    async with Router(nothing) as router, ways(nursery, router).connect() as connection:
        with pytest.raises(LinkDetachedError, match="keeps no unsettled state"):
            async with connection.receiver("q", exactly_once=True):
                pass
        async with connection.receiver("q", resume=5.0):
            pass


async def test_arguments(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router(LASTING) as router, ways(nursery, router).connect() as connection:
        for wrong in (0.0, -1.0, 1e9, float("nan")):
            with pytest.raises(CommandError, match="resume"):
                connection.receiver("q", resume=wrong)
