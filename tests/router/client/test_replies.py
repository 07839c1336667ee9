"""Links for replies: one for all if the peer allows it, or else one for each address."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh import ConnectionClosedError, Message
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.performatives import Close, Detach, Disposition, Transfer
from amqpmesh.router.client.links.link_manager import ANONYMOUS_RELAY, REPLY_SENDERS
from tests.support.peers.library_client import Host, Roads
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call


async def test_an_open_of_a_client_desires_the_capability_that_it_uses(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    desired = []

    async def serve(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        desired.append((await host.open()).desired_capabilities)
        await host.expect(Close)
        await host.write(Close())
        await stream.aclose()

    roads.lead_to(serve)
    async with roads.connect(mechanisms=()):
        assert desired == [(ANONYMOUS_RELAY,)]


@pytest.mark.parametrize("offered", [True, False])
async def test_the_anonymous_terminus_is_used_for_answers_where_it_is_offered(
    offered: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery, credit=10, offered_capabilities=(ANONYMOUS_RELAY,) if offered else ())
    async with peer.connect() as connection, connection.receiver("questions") as questions:
        for number, address in enumerate(("one", "two", "one")):
            await wait_all_tasks_blocked()
            await peer.links[0].send(Message(number, reply_to=address, message_id=number).encode())
            delivery = await questions.receive()
            await delivery.reply(number)
            assert (await peer.expect(Transfer)).settled
            delivery.accept()
            assert (await peer.expect(Disposition)).settled
        targets = [far.attach.target.address for far in peer.links[1:]]
        assert targets == ([None] if offered else ["one", "two"])


@pytest.mark.parametrize("answers_detach", [True, False])
async def test_links_for_answers_are_given_up_when_there_are_too_many(
    answers_detach: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery, credit=10)
    if not answers_detach:
        peer.mute.add(Detach)
    async with peer.connect() as connection, connection.receiver("questions") as questions:
        for number in range(REPLY_SENDERS + 5):
            await wait_all_tasks_blocked()
            await peer.links[0].send(Message(number, reply_to=f"asker-{number}", message_id=number).encode())
            delivery = await questions.receive()
            await delivery.reply(number)
            delivery.accept()
        # Each had a session, whose channel is free again.
        assert REPLY_SENDERS <= max(link.channel for link in peer.links) <= REPLY_SENDERS + 1


async def test_the_links_for_answers_that_are_given_up_are_those_that_were_used_the_longest_ago(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery, credit=10)
    async with peer.connect() as connection, connection.receiver("questions") as questions:
        for number in (*range(REPLY_SENDERS), 0, REPLY_SENDERS):
            await wait_all_tasks_blocked()
            await peer.links[0].send(Message(number, reply_to=f"asker-{number}").encode())
            delivery = await questions.receive()
            await delivery.reply(number)
            delivery.accept()
        await wait_all_tasks_blocked()
        given_up = [far.attach.target.address for far in peer.links[1:] if not far.is_attached]
        assert given_up == ["asker-1"]


async def test_no_link_for_answers_is_given_up_that_has_some(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("questions") as questions:
        calls = []
        for number in range(REPLY_SENDERS + 2):
            await wait_all_tasks_blocked()
            await peer.links[0].send(Message(number, reply_to=f"asker-{number}").encode())
            delivery = await questions.receive()
            calls.append(Call(nursery, delivery.reply, number, settled=False))
            delivery.accept()
        await wait_all_tasks_blocked()
        first, *others = peer.links[1:]
        for far in others:
            await far.flow(1)
        sent = [await call.result() for call in calls[1:]]
        assert not calls[0].is_done, "there is no credit for it"
        await first.flow(1)
        sent.insert(0, await calls[0].result())
        for far, each in zip(peer.links[1:], sent, strict=True):
            await far.accept()
            assert await each.outcome() == Accepted()


async def test_every_answer_after_the_end_says_why_there_is_no_way(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery)
    async with peer.connect() as connection, connection.receiver("questions") as questions:
        await wait_all_tasks_blocked()
        await peer.links[0].send(Message(b"", reply_to="asker").encode())
        delivery = await questions.receive()
        await peer.roads.cut()
        await wait_all_tasks_blocked()
        for _ in range(2):
            with pytest.raises(ConnectionClosedError):
                await delivery.reply(b"")
