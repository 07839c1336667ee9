"""Replies that the peer does not accept, which end no service."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError, ConnectionClosedError
from amqpmesh.router.amqp.standard.definitions import Error, Role
from amqpmesh.router.amqp.standard.delivery_states import Rejected
from amqpmesh.router.amqp.standard.performatives import Disposition, Transfer
from amqpmesh.router.client.links.link_manager import ANONYMOUS_RELAY
from amqpmesh.router.message.content import Message
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

QUESTION = Message("?", reply_to="nobody").encode()


@pytest.mark.parametrize("offered", [True, False], ids=["anonymous terminus", "a link for each address"])
async def test_a_reply_address_that_the_peer_refuses_stops_no_service(
    offered: bool, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    refusal = Error(condition=Symbol("amqp:not-found"), description="no such node: " + "x" * 1000)
    far = Counterpart(
        nursery, refuse={Role.SENDER: refusal}, offered_capabilities=(ANONYMOUS_RELAY,) if offered else ()
    )
    async with far.connect() as connection, connection.receiver("q") as service:
        for _ in range(3):
            await wait_all_tasks_blocked()
            await far.links[0].send(QUESTION)
            delivery = await service.receive()
            async with delivery:
                assert await delivery.reply("!") is None
            said = await far.expect(Disposition)
            assert said.settled
            assert isinstance(said.state, Rejected)
            assert said.state.error is not None
            assert said.state.error.condition == "amqp:precondition-failed"
            description = said.state.error.description or ""
            assert description.startswith("no reply can be sent to 'nobody': ")
            assert "amqp:not-found: no such node" in description
            assert len(description) <= 200
    assert [each.levelname for each in caplog.records if "cannot be answered" in each.getMessage()] == ["WARNING"]


@pytest.mark.parametrize("way", ["a link for each address", "anonymous terminus"])
async def test_a_reply_address_that_is_too_long_for_the_peer_stops_no_service(
    way: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Try an address that does not fit into an `attach`, and one that makes the reply too large for the peer."""
    offered = (ANONYMOUS_RELAY,) if way == "anonymous terminus" else ()
    attach = {"max_message_size": 1000} if offered else {}
    far = Counterpart(nursery, credit=10, attach=attach, offered_capabilities=offered, max_frame_size=1024)
    async with far.connect() as connection, connection.receiver("q") as service:
        for _ in range(2):
            await wait_all_tasks_blocked()
            await far.links[0].send(Message("?", reply_to="x" * 2000).encode())
            delivery = await service.receive()
            async with delivery:
                assert await delivery.reply("!") is None
            said = await far.expect(Disposition)
            assert isinstance(said.state, Rejected)
            assert said.state.error is not None
            assert said.state.error.condition == "amqp:precondition-failed"
        await far.links[0].send(QUESTION)
        delivery = await service.receive()
        assert await delivery.reply("!") is not None
        assert (await far.expect(Transfer)).settled
        delivery.accept()


async def test_after_the_connection_was_left_nothing_can_be_answered_and_that_is_said(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q") as service:
        await wait_all_tasks_blocked()
        await far.links[0].send(QUESTION)
        delivery = await service.receive()
        answering = Call(nursery, delivery.reply, "!")
        await wait_all_tasks_blocked()
    for call in answering, Call(nursery, delivery.reply, "!"):
        failure = await call.failure()
        assert isinstance(failure, CommandError)
        assert "left" in str(failure)


async def test_a_lost_connection_is_told_to_the_answering_caller(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery)
    async with far.connect() as connection, connection.receiver("q") as service:
        await wait_all_tasks_blocked()
        await far.links[0].send(QUESTION)
        delivery = await service.receive()
        answering = Call(nursery, delivery.reply, "!")
        await wait_all_tasks_blocked()
        assert not answering.is_done
        await far.roads.cut()
        with pytest.raises(ConnectionClosedError):
            await answering.result()
        assert not delivery.is_decided
