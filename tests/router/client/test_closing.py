"""Closing connections and links: orderly, by an error, cancelled, and with peers that do not answer."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.standard.performatives import Attach, Close, Detach, Disposition, End, Transfer
from amqpmesh.router.logs.event_log import event_of, fields_of
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import joined
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

# ------------------------------------------------------------------------------------------------- entering and leaving


@pytest.mark.parametrize("kind", ["sender", "receiver", "requester"])
async def test_an_attach_that_is_cancelled_is_followed_by_a_detach(
    kind: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    far.mute |= {Attach, Detach}
    async with far.connect() as connection:
        with trio.move_on_after(5) as scope:
            async with getattr(connection, kind)("q"):
                raise AssertionError("it was attached")
        assert scope.cancelled_caught
        assert trio.current_time() <= 6.0
        await far.expect(Attach)
        detach = await far.expect(Detach)
        assert detach.closed


async def test_leaving_takes_a_second_at_most_for_each_thing_that_is_left_whatever_the_peer_does(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, credit=10)
    far.mute |= {Detach, Close}
    with trio.CancelScope() as scope:
        async with far.connect() as connection, connection.sender("a") as sender, connection.sender("b"):
            await sender.transfer(b"")
            scope.cancel()
    # Shielded: the peer still gets the frames, and has its second to answer.
    assert 0 < trio.current_time() <= 3.0
    frames = await far.rest()
    assert [type(frame) for frame in frames] == [Transfer, Detach, Detach, Close]


@pytest.mark.parametrize("kind", ["sender", "receiver"])
async def test_a_detach_that_is_not_answered_ends_the_session_of_the_link(
    kind: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Check that the peer keeps no half of the link: what it holds of it ends with the session (§2.5.2)."""
    far = Counterpart(nursery, credit=10, channel_max=1)
    async with far.connect() as connection, connection.sender("other") as other:
        far.mute.add(Detach)
        for _ in range(3):
            began = trio.current_time()
            async with getattr(connection, kind)("q"):
                pass
            assert 1.0 <= trio.current_time() - began <= 1.5
            assert [type(frame) for frame in await far.rest()] == [Detach]
        far.mute.clear()
        # The channel was free for the next one, so its session had ended.
        assert [link.channel for link in far.links] == [0, 1, 1, 1]
        await other.transfer("goes on", settled=True)
        assert (await far.expect(Transfer)).delivery_id == 0


async def test_a_detach_that_is_not_answered_leaves_a_shared_session_to_the_others(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, channel_max=0)
    far.mute |= {Detach, End}
    async with far.connect() as connection:
        async with connection.receiver("other", buffer=0) as other:
            async with connection.receiver("q", buffer=0):
                pass
            assert [type(frame) for frame in await far.rest()] == [Detach]
            # Transfers of the link that was left are dropped, and the peer's `detach` comes late.
            for _ in range(10):
                await far.links[1].send(b"\x00\x53\x75\xa0\x01x")
                await wait_all_tasks_blocked()
            await far.links[1].detach()
            for _ in range(10):
                await far.links[0].send(b"\x00\x53\x75\xa0\x01y")
                async with await other.receive() as message:
                    assert message.body == b"y"
            assert {type(frame) for frame in await far.rest()} == {Disposition}
        assert [type(frame) for frame in await far.rest()] == [Detach, End]
        assert connection.is_connected


async def test_leaving_a_connection_in_good_order_takes_no_longer_than_the_peer(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect():
        pass
    assert trio.current_time() == 0.0


async def test_leaving_a_connection_before_it_is_there_takes_a_second_at_most(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async def say_nothing(stream: trio.abc.Stream) -> None:
        await trio.sleep_forever()

    far = Counterpart(nursery)
    far.roads.lead_to(say_nothing)
    with trio.move_on_after(1):
        async with far.connect():
            raise AssertionError("it is there")
    assert trio.current_time() <= 2.0


async def test_links_that_others_use_are_over_when_the_connection_is_left(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    async with Router() as router:
        async with joined(nursery, router) as connection:
            started = []

            async def send() -> None:
                async with connection.sender("q") as sender:
                    started.append("sender")
                    await sender.send(b"")

            async def receive() -> None:
                async with connection.receiver("p") as receiver:
                    started.append("receiver")
                    await receiver.receive()

            async def ask() -> None:
                async with connection.requester("r") as requester:
                    started.append("requester")
                    await requester.request(b"")

            calls = [Call(nursery, each) for each in (send, receive, ask)]
            await wait_all_tasks_blocked()
            assert sorted(started) == ["receiver", "requester", "sender"]
        for call in calls:
            failure = await call.failure()
            assert isinstance(failure, CommandError)
            assert "left" in str(failure)


@pytest.mark.parametrize("waits", [0.5, 5.0])
async def test_a_sender_that_is_left_and_waits_for_outcomes_says_so_after_a_second(
    waits: float, nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "amqpmesh.client")
    far = Counterpart(nursery, credit=10)

    async def accept() -> None:
        await trio.sleep(waits)
        await far.links[0].accept()

    async with far.connect() as connection, connection.sender("q", name="mine") as sender:
        await wait_all_tasks_blocked()
        await sender.transfer(b"")
        nursery.start_soon(accept)
    said = [fields_of(record) for record in caplog.records if event_of(record) == "sender waits for outcomes"]
    expected = {"peer": "host", "link": "mine", "address": "q", "waiting": 0, "unsettled": 1}
    assert said == ([expected] if waits > 1 else [])
