"""In-process links: no sockets, no queue of their own, and an end with the router."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.errors import CommandError, ConnectionClosedError, InDoubtError
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Released
from amqpmesh.router.client.links.client_connection import ClientConnection
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import joined
from tests.support.tasks.calls import Call

if TYPE_CHECKING:
    from amqpmesh.router.client.factory import LinkFactory
    from amqpmesh.router.client.sender import Sender
    from amqpmesh.router.client.sent import Sent
    from amqpmesh.router.statistics.router_statistics import AddressStatistics

KIB = 2**10


def at(router: Router, address: str = "q") -> AddressStatistics:
    (found,) = (each for each in router.statistics().addresses if each.name == address)
    return found


async def test_no_socket_is_opened_for_them(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("a socket")

    for name in ("socket", "socketpair", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
        monkeypatch.setattr(trio.socket, name, refuse, raising=False)
    async with (
        Router() as router,
        router.receiver("q") as receiver,
        router.sender("q") as sender,
        router.requester("q") as requester,
        trio.open_nursery() as nursery,
    ):
        sending = Call(nursery, sender.send, "hello")
        async with await receiver.receive() as message:
            assert message.body == "hello"
        await sending.result()
        asking = Call(nursery, requester.request, "what")
        async with await receiver.receive() as message:
            asked = message
        assert asked.reply_to == requester.reply_to
        async with router.sender(asked.reply_to) as answers:
            await answers.send(Message("that", correlation_id=asked.message_id))
        assert (await asking.result()).body == "that"
    assert router.statistics().is_empty


async def test_they_are_links_of_the_router_like_any_other(autojump_clock: MockClock) -> None:
    async with Router() as router, router.receiver("q", credit=10) as receiver, router.sender("q") as sender:
        sent = await sender.transfer("hello")
        delivery = await receiver.receive()
        statistics = router.statistics()
        connections = [each for each in statistics.connections if each.listener == "in-process"]
        assert connections
        links = [each for each in statistics.links if each.address == "q"]
        assert sorted(each.unsettled for each in links) == [1, 1]
        assert statistics.router.relays == 1
        delivery.accept()
        assert await sent.outcome() == Accepted()
        assert router.statistics().router.relays == 0
        assert at(router).accepted == 1


# -------------------------------------------------------------------------------------------------------- back-pressure


async def transfer_all(sender: Sender, body: bytes, sent: list[Sent], number: int) -> None:
    for _ in range(number):
        one = await sender.transfer(body)
        sent.append(one)


@pytest.mark.parametrize("take", [False, True], ids=["takes-nothing", "decides-nothing"])
async def test_a_consumer_that_stops_stops_its_producers(
    take: bool, factory: LinkFactory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with factory.receiver("q", credit=10) as receiver, factory.sender("q") as sender:
        sent: list[Sent] = []
        nursery.start_soon(transfer_all, sender, b"x", sent, 100)
        taken = [await receiver.receive() for _ in range(10 if take else 0)]
        with trio.move_on_after(60):
            await receiver.receive() if take else await trio.sleep_forever()
            raise AssertionError("there was no credit for it")
        assert receiver.undecided == 10
        assert len(sent) == 11  # a router takes one more than the credit, so that no sender waits for a round trip
        assert sender.waiting == 1
        for delivery in taken:
            delivery.accept()
        for _ in range(100 - len(taken)):
            (await receiver.receive()).accept()
        await wait_all_tasks_blocked()
        assert [await each.outcome() for each in sent] == [Accepted()] * 100


async def test_a_consumer_that_stops_bounds_the_octets_that_wait_everywhere(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    body = bytes(64 * KIB)
    async with (
        Router() as router,
        router.receiver("q", credit=10_000, buffer=512 * KIB) as receiver,
        router.sender("q") as sender,
    ):
        sent: list[Sent] = []
        nursery.start_soon(transfer_all, sender, body, sent, 1000)
        await trio.sleep(60)
        waiting = router.statistics().router.buffered
        assert waiting < 16 * 512 * KIB
        passed = len(sent) * len(body)
        assert passed - waiting < 2 * 512 * KIB  # octets that the receiver has, and octets in its window
        # No queue grows any more.
        await trio.sleep(60)
        assert len(sent) * len(body) == passed
        assert router.statistics().router.buffered == waiting
        for _ in range(1000):
            (await receiver.receive()).accept()
    assert router.statistics().is_empty


async def test_a_consumer_that_stopped_holds_up_no_other(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    async with (
        Router() as router,
        router.sender("slow") as to_slow,
        router.receiver("slow", buffer=64 * KIB, credit=1000),
        router.receiver("q") as receiver,
        router.sender("q") as sender,
    ):
        with trio.move_on_after(10):
            await transfer_all(to_slow, bytes(64 * KIB), [], 1000)
        for number in range(100):
            await sender.send(number, settled=True)
            assert (await receiver.receive()).message.body == number


# ------------------------------------------------------------------------------------------------- beginning and end


async def test_links_are_attached_while_the_router_runs_and_not_before_or_after(autojump_clock: MockClock) -> None:
    router = Router()
    for kind in (router.sender, router.receiver, router.requester):
        with pytest.raises(CommandError, match="not started"):
            async with kind("q"):
                pass
    early = router.sender("q")  # it may be made before the router starts
    async with router:
        async with router.receiver("q") as receiver:
            with pytest.raises(CommandError, match="once"):
                async with early, early:
                    pass
        with pytest.raises(CommandError, match="left"):
            await receiver.receive()
    for kind in (router.sender, router.receiver, router.requester):
        with pytest.raises(CommandError, match="has ended"):
            async with kind("q"):
                pass


async def test_a_router_ends_the_links_that_are_still_attached(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    async with AsyncExitStack() as stack:
        async with Router(drain=2.0) as router:
            receiver = await stack.enter_async_context(router.receiver("q"))
            sender = await stack.enter_async_context(router.sender("q"))
            requester = await stack.enter_async_context(router.requester("r"))
            sent = await sender.transfer("in flight")
            delivery = await receiver.receive()
            calls = [Call(nursery, receiver.receive), Call(nursery, requester.request, "what")]
            await wait_all_tasks_blocked()
            left_at = trio.current_time()
        assert trio.current_time() - left_at <= 3.1
        assert router.statistics().is_empty
        assert isinstance(await calls[0].failure(), ConnectionClosedError)
        assert isinstance(await calls[1].failure(), ConnectionClosedError)  # it was never sent
        for call in (receiver.receive, lambda: sender.send("x"), lambda: requester.request("x")):
            with pytest.raises(ConnectionClosedError, match="shut down"):
                await call()
        # The delivery was not decided, and the sender learns that.
        with pytest.raises(InDoubtError):
            await sent.outcome()
        assert delivery.accept() is False
    assert router.statistics().is_empty


async def test_leaving_a_router_waits_for_what_its_links_have_in_flight(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    async with AsyncExitStack() as stack:
        async with Router(drain=30.0) as router:
            receiver = await stack.enter_async_context(router.receiver("q"))
            sender = await stack.enter_async_context(router.sender("q"))
            sending = Call(nursery, sender.send, "in flight")
            delivery = await receiver.receive()
            left_at = trio.current_time()

            async def accept_later() -> None:
                await trio.sleep(5)
                with pytest.raises(CommandError, match="about to"):
                    await stack.enter_async_context(router.sender("q"))
                delivery.accept()

            nursery.start_soon(accept_later)
        await sending.result()
        assert 5 <= trio.current_time() - left_at <= 6
    assert router.statistics().is_empty


async def use(router: Router, factory: LinkFactory, ready: trio.Event) -> None:
    """Use all kinds of links at once, until cancelled."""
    async with (
        factory.receiver("q") as receiver,
        factory.receiver("q", streaming=True),
        factory.sender("q") as sender,
        factory.requester("q") as requester,
        trio.open_nursery() as nursery,
    ):
        for _ in range(3):
            nursery.start_soon(sender.send, bytes(100_000))
        nursery.start_soon(requester.request, "what")
        async with await receiver.receive():
            ready.set()
            await trio.sleep_forever()


@pytest.mark.parametrize("end", ["in-process", "stream"])
async def test_a_body_that_is_cancelled_ends_soon_and_leaves_nothing(
    end: str, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    async with trio.open_nursery() as outside:
        router = Router()

        async def program(scope: trio.CancelScope, ready: trio.Event) -> None:
            with scope:
                async with router:
                    if end == "in-process":
                        await use(router, router, ready)
                    else:
                        async with joined(outside, router) as connection:
                            await use(router, connection, ready)

        scope, ready = trio.CancelScope(), trio.Event()
        nursery.start_soon(program, scope, ready)
        await ready.wait()
        await wait_all_tasks_blocked()
        scope.cancel()
        cancelled_at = trio.current_time()
        await wait_all_tasks_blocked()
    assert scope.cancelled_caught
    assert trio.current_time() - cancelled_at <= 5
    assert router.statistics().is_empty


async def test_a_link_that_is_left_gives_back_what_it_has(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    async with Router() as router, router.sender("q") as sender:
        async with router.receiver("q") as receiver:
            sent = [await sender.transfer(number) for number in range(3)]
            await receiver.receive()
        assert await sent[0].outcome() == Modified(delivery_failed=True)
        for each in sent[1:]:
            assert await each.outcome() == Released()
    assert router.statistics().is_empty


async def test_a_call_cancelled_at_the_moment_its_message_goes_says_which_came_first(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    ends = []
    async with Router() as router:
        for number in range(40):  # enough for both orders to occur
            async with router.receiver(f"{number}", credit=0) as receiver, router.sender(f"{number}") as sender:
                sent: list[Sent] = []
                scope = trio.CancelScope()
                nursery.start_soon(transfer_within, scope, sender, sent)
                await wait_all_tasks_blocked()
                assert sender.waiting == 1
                receiver.flow(1)
                scope.cancel()
                await wait_all_tasks_blocked()
                with trio.move_on_after(1):
                    (await receiver.receive()).accept()
                    assert sent, "it was told as cancelled, and came"
                ends.append(bool(sent))
    assert set(ends) == {False, True}


async def transfer_within(scope: trio.CancelScope, sender: Sender, sent: list[Sent]) -> None:
    with scope:
        one = await sender.transfer("x")
        sent.append(one)


# --------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("way", ["data_to_send", "receive_now"])
async def test_a_fault_of_ours_costs_the_links_that_there_are_and_none_that_come(
    way: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: Any) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError("of ours")

    async with Router() as router:
        await wait_all_tasks_blocked()  # until the router's own nodes have their links
        async with router.sender("q") as sender, router.receiver("q") as receiver:
            monkeypatch.setattr(ClientConnection, way, fault)
            with pytest.raises((ConnectionClosedError, InDoubtError)):
                await sender.send(b"")
            for call in (partial(sender.transfer, b""), receiver.receive):
                with pytest.raises(ConnectionClosedError, match="fault of this library.*of ours"):
                    await call()
        async with router.sender("q") as sender, router.receiver("q") as receiver:
            await sender.transfer(b"")
            (await receiver.receive()).accept()
    assert router.statistics().is_empty
