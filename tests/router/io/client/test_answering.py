"""Answering where the peer does not let the answer through: no request ends the service that it was sent to."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.definitions import Error, Role
from amqpmesh.router.amqp.delivery_states import Rejected
from amqpmesh.router.amqp.errors import ConnectionClosedError
from amqpmesh.router.amqp.performatives import Disposition
from amqpmesh.router.amqp.types import Symbol
from amqpmesh.router.io.client.attacher import ANONYMOUS_RELAY
from amqpmesh.router.message import Message
from tests.support.calls import Call
from tests.support.counterpart import Counterpart

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


async def test_a_lost_connection_is_told_to_who_answers(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
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
