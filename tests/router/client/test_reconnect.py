"""Links over a new connection: waiting calls continue, doubtful outcomes are in doubt, nothing arrives twice."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.errors import CommandError, ConnectionClosedError, InDoubtError
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified
from amqpmesh.router.client.delivery import Delivery
from amqpmesh.router.client.links.incoming import DeliveryAbortedError
from amqpmesh.router.client.receiver import Receiver
from amqpmesh.router.client.sender import Sender
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import Roads
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call


async def bodies(receiver: Receiver, number: int) -> list[object]:
    """Accept so many deliveries, and return their bodies."""
    found = []
    for _ in range(number):
        async with await receiver.receive() as message:
            found.append(message.body)
    return found


async def restored(sender: Sender) -> None:
    """Wait until the link is attached again."""
    while not sender.is_attached:
        await trio.sleep(0.01)


async def test_a_send_that_waits_for_credit_goes_on_over_the_next_connection(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with roads.connect(reconnect=True) as connection, connection.sender("q") as sender:
            waiting = []
            for number in range(3):
                waiting.append(Call(nursery, sender.send, f"{number}"))
                await wait_all_tasks_blocked()
            await roads.cut()
            await wait_all_tasks_blocked()
            assert not connection.is_connected
            assert sender.waiting == 3
            # A call that comes while there is no connection waits with the others.
            waiting.append(Call(nursery, sender.send, "3"))
            await restored(sender)
            async with router.receiver("q") as receiver:
                assert await bodies(receiver, 4) == ["0", "1", "2", "3"]
                for each in waiting:
                    await each.result()
        assert connection.reconnections == 1
    assert router.statistics().is_empty


async def test_sends_in_doubt_say_so_and_are_never_repeated(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router() as router, router.receiver("q") as receiver:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with roads.connect(reconnect=True) as connection, connection.sender("q") as sender:
            known = await sender.transfer("known")
            async with await receiver.receive():
                pass
            assert await known.outcome() == Accepted()
            sends = [Call(nursery, sender.send, f"{number}") for number in range(2)]
            pipelined = await sender.transfer("2")
            taken = [await receiver.receive() for _ in range(3)]
            await roads.cut()
            for each in sends:
                assert isinstance(await each.failure(), InDoubtError)
            for _ in range(2):
                with pytest.raises(InDoubtError):
                    await pipelined.outcome()
            assert await known.outcome() == Accepted()
            # The deliveries had arrived, and a decision now reaches no sender.
            for delivery in taken:
                delivery.accept()
            after = Call(nursery, sender.send, "next")
            assert await bodies(receiver, 1) == ["next"]
            await after.result()
            with trio.move_on_after(60):
                await receiver.receive()
                raise AssertionError("something was repeated")
    assert router.statistics().is_empty


@pytest.mark.parametrize("settled", [False, True], ids=["unsettled", "settled"])
async def test_a_send_half_transferred_begins_anew(
    settled: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    body = bytes(range(256)) * 2**14  # 4 MiB: more than all windows on the way hold
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with (
            roads.connect(reconnect=True) as connection,
            connection.sender("q") as sender,
            router.receiver("q", streaming=True, buffer=2**16) as receiver,
        ):

            async def send() -> None:
                await sender.send(body, settled=settled)

            sending = Call(nursery, send)
            first = await receiver.receive()
            await wait_all_tasks_blocked()
            assert sender.waiting == 1
            await roads.cut()
            with pytest.raises(DeliveryAbortedError):
                await first.read()
            second = await receiver.receive()
            assert (await second.read()).body == body
            second.accept()
            await sending.result()
    assert router.statistics().is_empty


async def test_what_is_cancelled_half_transferred_and_lost_does_not_begin_anew(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with (
            roads.connect(reconnect=True) as connection,
            connection.sender("q") as sender,
            router.receiver("q", streaming=True, buffer=2**16) as receiver,
        ):
            with trio.move_on_after(1):
                await sender.send(bytes(2**22))
            await roads.cut()
            following = Call(nursery, sender.send, b"next")
            with pytest.raises(DeliveryAbortedError):
                await (await receiver.receive()).read()
            delivery = await receiver.receive()
            assert (await delivery.read()).body == b"next"
            delivery.accept()
            await following.result()
    assert router.statistics().is_empty


async def test_deciding_after_the_link_was_lost_tells_nobody_and_is_no_error(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router, router.sender("q") as sender:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with roads.connect(reconnect=True) as connection, connection.receiver("q") as receiver:
            sent = [await sender.transfer(f"{number}") for number in range(4)]
            deliveries = [await receiver.receive() for _ in range(4)]
            assert deliveries[0].accept() is True
            await wait_all_tasks_blocked()
            await roads.cut()
            await wait_all_tasks_blocked()
            assert deliveries[1].accept() is False
            assert deliveries[2].reject("amqp:not-allowed") is False
            async with deliveries[3]:
                pass
            assert not await deliveries[1].settled()
            with pytest.raises(CommandError, match="already"):
                deliveries[1].accept()
            assert [await each.outcome() for each in sent] == [Accepted()] + [Modified(delivery_failed=True)] * 3
            # The link works as before.
            sending = Call(nursery, sender.send, "next")
            assert await bodies(receiver, 1) == ["next"]
            await sending.result()
    assert router.statistics().is_empty


async def test_a_receiver_has_its_credit_again_less_what_is_undecided(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router, router.sender("q") as sender:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with roads.connect(reconnect=True) as connection, connection.receiver("q", credit=5) as receiver:
            for number in range(3):
                await sender.transfer(f"{number}")
            held = [await receiver.receive() for _ in range(2)]
            await wait_all_tasks_blocked()
            await roads.cut()
            with trio.fail_after(10):
                while not receiver.is_attached:
                    await trio.sleep(0.01)
            # The third arrived and was not taken: it does not count, and no program gets it.
            assert (receiver.undecided, receiver.credit) == (2, 3)
            for delivery in held:
                delivery.accept()
            assert receiver.undecided == 0
            for number in range(5):
                await sender.transfer(f"again {number}")
            assert await bodies(receiver, 5) == [f"again {number}" for number in range(5)]
    assert router.statistics().is_empty


async def test_a_whole_settled_delivery_survives_its_link(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router() as router, router.sender("q") as sender:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with roads.connect(reconnect=True) as connection, connection.receiver("q", credit=5) as receiver:
            for number in range(4):
                await sender.transfer(f"{number}", settled=number % 2 == 0)
            await wait_all_tasks_blocked()
            await roads.cut()
            await wait_all_tasks_blocked()
            # The sender still has the deliveries that were not settled.
            assert await bodies(receiver, 2) == ["0", "2"]
            with trio.fail_after(10):
                while not receiver.is_attached:
                    await trio.sleep(0.01)
            assert receiver.credit == 5
            await sender.send("next", settled=True)
            assert await bodies(receiver, 1) == ["next"]
    assert router.statistics().is_empty


async def test_without_reconnect_what_has_come_settled_is_still_handed_out(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router, router.sender("q") as sender:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with roads.connect() as connection, connection.receiver("q") as receiver:
            await sender.send("last", settled=True)
            await wait_all_tasks_blocked()
            await roads.cut()
            await wait_all_tasks_blocked()
            assert await bodies(receiver, 1) == ["last"]
            with pytest.raises(ConnectionClosedError):
                await receiver.receive()
    assert router.statistics().is_empty


async def answer(receiver: Receiver, asked: list[Delivery]) -> None:
    async for delivery in receiver:
        asked.append(delivery)
        if delivery.message.body != "hold":
            async with delivery as message:
                await delivery.reply(message.body)


async def test_calls_in_flight_are_in_doubt_and_those_that_wait_go_on_with_the_new_reply_address(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router)
        asked: list[Delivery] = []
        async with (
            roads.connect(reconnect=True) as connection,
            connection.requester("quotes") as quotes,
        ):
            async with router.receiver("quotes", credit=1) as receiver:
                nursery.start_soon(answer, receiver, asked)
                assert (await quotes.request("first")).body == "first"
                # The service has one, and the router has one: it takes one more than the service has credit for.
                in_flight = []
                for _ in range(2):
                    in_flight.append(Call(nursery, quotes.request, "hold"))
                    await wait_all_tasks_blocked()
                waiting = Call(nursery, quotes.request, "waiting")
                await wait_all_tasks_blocked()
                assert [each.message.body for each in asked] == ["first", "hold"]
                await roads.cut()
                for call in in_flight:
                    assert isinstance(await call.failure(), InDoubtError)
                assert not waiting.is_done
                asked[1].accept()
                assert (await waiting.result()).body == "waiting"
            assert [each.message.body for each in asked] == ["first", "hold", "waiting"]
            assert asked[2].message.reply_to == quotes.reply_to
            assert asked[2].message.reply_to != asked[0].message.reply_to
    assert router.statistics().is_empty


async def test_a_call_that_was_taken_and_not_answered_is_in_doubt(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with (
            router.receiver("quotes") as receiver,
            roads.connect(reconnect=True) as connection,
            connection.requester("quotes") as quotes,
        ):
            call = Call(nursery, quotes.request, "taken")
            (await receiver.receive()).accept()
            await wait_all_tasks_blocked()
            await roads.cut()
            assert isinstance(await call.failure(), InDoubtError)
    assert router.statistics().is_empty


async def test_links_entered_while_there_is_no_connection_wait_for_one(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with roads.connect(reconnect=True) as connection:
            roads.close()
            await roads.cut()
            await wait_all_tasks_blocked()
            nursery.start_soon(reopen, roads, router)
            with pytest.raises(ConnectionClosedError, match="no connection now"):
                connection.peer  # noqa: B018 - it raises
            async with connection.receiver("q") as receiver, connection.sender("q") as sender:
                await sender.send("late", settled=True)
                assert await bodies(receiver, 1) == ["late"]
            assert trio.current_time() >= 20
    assert router.statistics().is_empty


async def reopen(roads: Roads, router: Router) -> None:
    await trio.sleep(20)
    roads.lead_to(router)


async def test_a_dynamic_node_has_another_address_on_the_next_connection(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        roads = Roads(nursery)
        roads.lead_to(router)
        async with roads.connect(reconnect=True) as connection, connection.receiver(None) as receiver:
            before = receiver.address
            await roads.cut()
            await trio.sleep(5)
            assert receiver.is_attached
            assert receiver.address not in (None, before)
            async with router.sender(receiver.address) as sender:
                await sender.send("here", settled=True)
                assert await bodies(receiver, 1) == ["here"]
    assert router.statistics().is_empty


@pytest.mark.parametrize("more", [False, True])
async def test_credit_by_hand_is_not_used_by_what_was_lost_before_anybody_saw_it(
    more: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect(reconnect=True) as connection, connection.receiver("q", credit=0) as receiver:
        receiver.flow(3)
        await wait_all_tasks_blocked()
        await far.links[0].send(Message("seen").encode())
        seen = await receiver.receive()
        await far.links[0].send(Message("waits").encode())
        await far.links[0].send(Message("comes").encode(), more=more)
        await wait_all_tasks_blocked()
        await far.roads.cut()
        await trio.sleep(30)
        assert receiver.is_attached
        assert receiver.credit == 2
        assert not seen.accept()
        assert receiver.credit == 2
