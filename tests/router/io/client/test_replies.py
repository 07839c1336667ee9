"""How answers find their way: over one link for all where the peer has one, else over a link for each address."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh import Message
from amqpmesh.router.amqp.performatives import Close, Disposition, Transfer
from amqpmesh.router.io.client.attacher import ANONYMOUS_RELAY, REPLY_SENDERS
from tests.support.client import Host, Roads
from tests.support.counterpart import Counterpart


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


async def test_links_for_answers_are_given_up_when_there_are_too_many(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    peer = Counterpart(nursery, credit=10)
    async with peer.connect() as connection, connection.receiver("questions") as questions:
        for number in range(REPLY_SENDERS + 5):
            await wait_all_tasks_blocked()
            await peer.links[0].send(Message(number, reply_to=f"asker-{number}", message_id=number).encode())
            delivery = await questions.receive()
            await delivery.reply(number)
            delivery.accept()
        conversation = connection.conversation
        assert conversation is not None
        assert len(conversation.engine.channels.sessions) <= REPLY_SENDERS + 2
