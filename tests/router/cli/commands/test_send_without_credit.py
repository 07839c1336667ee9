"""The reason why a sender has no credit: asked of routers, unknown of other peers."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.router.amqp.connection_settings import OURS, PRODUCT
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, Role
from amqpmesh.router.amqp.standard.performatives import Attach
from amqpmesh.router.cli.commands.send import ANSWER_TIME, UNKNOWN, why_no_credit
from amqpmesh.router.runtime.router import Router
from amqpmesh.router.runtime.snapshots import SNAPSHOT_TIME
from tests.support.peers.library_client import joined
from tests.support.peers.scripted_server import Counterpart


async def test_a_router_tells_the_reason_that_its_status_has(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    async with Router() as router, joined(nursery, router) as connection, connection.sender("q") as sender:
        assert await why_no_credit(connection, sender.name) == "no receiver anywhere"
        async with router.receiver("q", credit=0):
            await trio.sleep(SNAPSHOT_TIME)
            assert await why_no_credit(connection, sender.name) == "receivers give no credit"
        assert await why_no_credit(connection, "another") == UNKNOWN
    assert router.statistics().is_empty


@pytest.mark.parametrize("properties", [None, {PRODUCT: "RabbitMQ"}])
async def test_other_peers_are_not_asked(
    properties: dict[object, object] | None, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    far = Counterpart(nursery, properties=properties)
    async with far.connect() as connection, connection.sender("q") as sender:
        assert await why_no_credit(connection, sender.name) == UNKNOWN
        assert len(far.links) == 1


@pytest.mark.parametrize("way", ["refuses", "is silent"])
async def test_a_router_that_does_not_answer_ends_nothing(
    way: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    refuse = {Role.SENDER: Error(condition=AmqpCondition.NOT_FOUND, description="no")} if way == "refuses" else None
    far = Counterpart(nursery, properties={PRODUCT: OURS})
    async with far.connect() as connection, connection.sender("q") as sender:
        far.refuse = dict(refuse or {})
        if way == "is silent":
            far.mute.add(Attach)
        began = trio.current_time()
        assert await why_no_credit(connection, sender.name) == UNKNOWN
        assert trio.current_time() - began <= ANSWER_TIME + 2
        assert sender.is_attached
