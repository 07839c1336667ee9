"""Links and sessions that the peer ends: their next attach, and their credit."""

from __future__ import annotations

import itertools

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.errors import (
    InDoubtError,
    LinkDetachedError,
    LinkStolenError,
    SessionEndedError,
)
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, LinkCondition, Role, SessionCondition
from amqpmesh.router.amqp.standard.messaging import Data, Source
from amqpmesh.router.amqp.standard.performatives import Disposition, Flow, Transfer
from amqpmesh.router.io.dialing import Backoff
from amqpmesh.router.message.content import Message
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

FORCED = Error(condition=LinkCondition.DETACH_FORCED, description="for the night")
HELLO = encode_composite(Data(value=b"hello"))


async def test_a_link_detached_by_force_is_attached_again_and_its_waiting_sends_go_on(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect(reconnect=True) as connection, connection.sender("q") as sender:
        await peer.links[0].flow(1)
        doubtful = Call(nursery, sender.send, b"sent")
        await peer.expect(Transfer)
        waiting = Call(nursery, sender.send, b"waiting")
        await wait_all_tasks_blocked()
        await peer.links[0].detach(FORCED)
        error = await doubtful.failure()
        assert isinstance(error, InDoubtError)
        assert error.error == FORCED
        await trio.sleep(1)
        assert sender.is_attached
        assert not waiting.is_done
        assert [each.attach.name for each in peer.links] == [sender.name] * 2
        await peer.links[1].flow(1)
        transfer = await peer.expect(Transfer)
        assert peer.payload.endswith(b"waiting")
        await peer.links[1].accept(transfer.delivery_id or 0)
        await waiting.result()
        assert connection.reconnections == 0


async def test_a_link_detached_for_now_is_attached_again(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    peer = Counterpart(nursery)
    async with peer.connect(reconnect=True) as connection, connection.receiver("q") as receiver:
        await peer.links[0].detach(closed=False)
        await trio.sleep(1)
        assert receiver.is_attached
        assert len(peer.links) == 2


async def test_a_link_that_is_detached_over_and_over_is_not_attached_over_and_over(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    backoff = Backoff(first=1.0, longest=16.0)
    times = []
    async with peer.connect(reconnect=backoff) as connection, connection.receiver("q"):
        for number in range(8):
            while len(peer.links) <= number:
                await trio.sleep(0.05)
            times.append(trio.current_time())
            # The last but one lasts for a while, so the pauses start again from the first.
            await trio.sleep(60 if number == 6 else 0)
            await peer.links[number].detach(FORCED)
        while len(peer.links) <= 8:
            await trio.sleep(0.05)
        times.append(trio.current_time())
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    for pause, longest in zip(pauses, [1.0, 2.0, 4.0, 8.0, 16.0, 16.0, 61.0, 2.0], strict=True):
        assert longest / 2 <= pause <= longest + 0.05


async def test_leaving_while_a_link_waits_to_be_attached_again_ends_at_once(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect(reconnect=Backoff(100.0, 100.0)) as connection:
        async with connection.receiver("q") as receiver:
            await peer.links[0].detach(FORCED)
            await trio.sleep(1)
            assert not receiver.is_attached
        async with connection.sender("q") as sender:
            await peer.links[1].detach(FORCED)
            await trio.sleep(1)
            assert not sender.is_attached
            left_at = trio.current_time()
    assert trio.current_time() == left_at


async def test_links_of_an_ended_session_are_attached_again(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    peer = Counterpart(nursery, credit=10)
    async with peer.connect(reconnect=True) as connection, connection.sender("q") as sender:
        doubtful = Call(nursery, sender.send, b"sent")
        await peer.expect(Transfer)
        await peer.links[0].end(Error(condition=SessionCondition.ERRANT_LINK, description="who was it"))
        assert isinstance(await doubtful.failure(), InDoubtError)
        await trio.sleep(1)
        sending = Call(nursery, sender.send, b"again")
        transfer = await peer.expect(Transfer)
        await peer.links[1].accept(transfer.delivery_id or 0)
        await sending.result()


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        (AmqpCondition.NOT_FOUND, LinkDetachedError),
        (AmqpCondition.UNAUTHORIZED_ACCESS, LinkDetachedError),
        (AmqpCondition.RESOURCE_DELETED, LinkDetachedError),
        (LinkCondition.STOLEN, LinkStolenError),
        (None, LinkDetachedError),
    ],
)
async def test_a_link_that_is_detached_for_good_stays_so_and_the_connection_goes_on(
    condition: AmqpCondition | LinkCondition | None,
    kind: type[LinkDetachedError],
    nursery: trio.Nursery,
    autojump_clock: MockClock,
) -> None:
    peer = Counterpart(nursery, credit=1)
    async with peer.connect(reconnect=True) as connection, connection.sender("q") as sender:
        async with connection.receiver("q") as receiver:
            receiving = Call(nursery, receiver.receive)
            await wait_all_tasks_blocked()
            error = None if condition is None else Error(condition=condition, description="gone")
            for link in peer.links:
                await link.detach(error)
            failure = await receiving.failure()
            assert type(failure) is kind
            assert failure.error == error
            for _ in range(2):
                with pytest.raises(kind):
                    await sender.send(b"")
                with pytest.raises(kind):
                    await receiver.receive()
        await trio.sleep(60)
        assert len(peer.links) == 2
        assert connection.is_connected
        async with connection.sender("elsewhere") as other:
            assert other.is_attached


async def test_without_reconnect_the_end_of_a_session_is_the_end_of_its_links(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.sender("q") as sender:
        waiting = Call(nursery, sender.send, b"waiting")
        await wait_all_tasks_blocked()
        await peer.links[0].end(Error(condition=SessionCondition.WINDOW_VIOLATION, description="too much"))
        failure = await waiting.failure()
        assert isinstance(failure, SessionEndedError)
        assert failure.error is not None
        assert failure.error.condition == SessionCondition.WINDOW_VIOLATION
        with pytest.raises(SessionEndedError):
            await sender.send(b"")
        assert connection.is_connected


async def test_credit_given_by_hand_is_given_again_as_far_as_it_was_not_used(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect(reconnect=True) as connection, connection.receiver("q", credit=0) as receiver:
        receiver.flow(5)
        assert (await peer.expect(Flow)).link_credit == 5
        for _ in range(2):
            await peer.links[0].send(HELLO)
        for _ in range(2):
            (await receiver.receive()).accept()
        await wait_all_tasks_blocked()
        await peer.roads.cut()
        await wait_all_tasks_blocked()
        # Credit that is given meanwhile is sent with the rest.
        receiver.flow(1)
        await trio.sleep(1)
        assert receiver.is_attached
        told = 0  # deliveries from before that are told of, in one frame or two
        while told < 2:
            said = await peer.expect(Disposition)
            told += (said.last or said.first) - said.first + 1
        assert (await peer.expect(Flow)).link_credit == 4
        assert receiver.credit == 4


async def test_credit_that_was_to_be_drained_is_not_given_again(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect(reconnect=True) as connection, connection.receiver("q", credit=0) as receiver:
        receiver.flow(5)
        draining = Call(nursery, receiver.drain)
        await wait_all_tasks_blocked()
        assert not draining.is_done
        await peer.roads.cut()
        await draining.result()
        await trio.sleep(1)
        assert receiver.is_attached
        assert receiver.credit == 0
        await wait_all_tasks_blocked()
        assert not any(isinstance(each, Flow) and each.link_credit and not each.drain for each in await peer.rest())
        receiver.flow(2)
        await wait_all_tasks_blocked()
        assert receiver.credit == 2


async def test_deliveries_of_a_lost_link_hold_nothing_of_the_next_ones_window(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect(reconnect=True) as connection, connection.receiver("q", buffer=2**17) as receiver:
        for _ in range(6):
            await peer.links[0].send(HELLO, settled=True)
        await wait_all_tasks_blocked()
        await peer.roads.cut()
        await trio.sleep(1)
        assert receiver.is_attached
        for _ in range(6):
            assert (await receiver.receive()).message.body == b"hello"
        for _ in range(3):
            await peer.links[1].send(HELLO, settled=True)
            await receiver.receive()
        receiver_flows = []
        await wait_all_tasks_blocked()
        with trio.move_on_after(1):
            while True:
                receiver_flows.append((await peer.expect(Flow)).incoming_window)
        assert receiver_flows
        assert all(window <= 8 for window in receiver_flows)


async def test_a_request_half_transferred_when_its_reply_link_is_lost_begins_anew_with_the_new_address(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    fields = {"source": Source(address="first", dynamic=True)}
    peer = Counterpart(nursery, credit=10, window=4, attach=fields, max_frame_size=16_384)
    async with peer.connect(reconnect=True) as connection, connection.requester("q") as requester:
        assert requester.reply_to == "first"
        replies, requests = peer.links
        assert (replies.attach.role, requests.attach.role) == (Role.RECEIVER, Role.SENDER)
        call = Call(nursery, requester.request, Message(bytes(2**18), message_id="m"))
        for _ in range(4):
            assert (await peer.expect(Transfer)).more
        await wait_all_tasks_blocked()
        fields["source"] = Source(address="second", dynamic=True)
        await replies.detach(FORCED)
        await trio.sleep(1)
        assert requester.reply_to == "second"
        await requests.flow(10, window=100)
        assert (await peer.expect(Transfer)).aborted
        assert (await peer.expect(Transfer)).delivery_id == 1
        assert b"second" in peer.payload
        while (await peer.expect(Transfer)).more:
            pass
        await requests.accept(1)
        answer = Message(b"answer", correlation_id="m").encode()
        await peer.links[2].send(answer)
        assert (await call.result()).body == b"answer"
