"""Costs that clients change by `$management`, and the clients that may."""

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.router.client.requester import Requester
from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, MeshConfig
from amqpmesh.router.logs.event_log import event_of
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import Roads
from tests.support.tasks.until import until

NEAR, FAR, WIRE = "amqp://127.0.0.1:5701", "amqp://127.0.0.1:5702", "amqp://127.0.0.1:5700"
MESH = MeshConfig(insecure=True)


class Pair:
    """Routers A and B; A connects to B by a connector named `wire`, B lets it in by a listener `door`."""

    def __init__(self, roads: Roads, near: Router, far: Router) -> None:
        self.roads = roads
        self.near = near
        self.far = far

    def client(self, *, manage: bool) -> AbstractAsyncContextManager[Requester]:
        """Somebody who came in by a listener of A."""
        self.roads.lead_to(self.near, NEAR, ListenerConfig(url=NEAR, name="clients", manage=manage))
        return asking(self.roads)


@asynccontextmanager
async def asking(roads: Roads) -> AsyncIterator[Requester]:
    async with roads.connect(NEAR) as connection, connection.requester(ADDRESS) as requester:
        yield requester


@pytest.fixture
async def pair(nursery: trio.Nursery, autojump_clock: MockClock) -> AsyncIterator[Pair]:
    roads = Roads(nursery)
    door = ListenerConfig(url="amqp://127.0.0.1:0", name="door", role="mesh", cost=4)
    async with Router(id="B", mesh=MESH, listeners=[door]) as far:
        url = far.listeners[0].url
        roads.lead_to(far, url, far.config.listeners[0])
        wire = ConnectorConfig(url=url, cost=1)
        async with Router(id="A", mesh=MESH, connectors=[wire], open_stream=roads.open) as near:
            await until(lambda: distance(near) is not None and distance(far) is not None)
            yield Pair(roads, near, far)


def distance(router: Router) -> int | None:
    return next((each.distance for each in router.statistics().routes), None)


def update(cost: int, **named: str) -> Message:
    return Message({"cost": cost}, application_properties={"operation": "UPDATE", **named})


def status(answer: Message) -> Any:
    return answer.application_properties["statusCode"]


async def test_a_listener_says_what_sending_to_those_that_came_in_costs(pair: Pair) -> None:
    assert (distance(pair.near), distance(pair.far)) == (1, 4)


async def test_the_program_that_the_router_is_in_changes_the_cost_of_a_connector_for_good(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "amqpmesh.io")
    (connector,) = pair.near.statistics().connectors
    async with pair.near.requester(ADDRESS) as management:
        answer = await management.request(update(9, type="connector", name=connector.name))
        assert (status(answer), answer.body["cost"]) == (200, 9)
        read = Message(application_properties={"operation": "READ", "identity": f"connector/{connector.name}"})
        assert (await management.request(read)).body["cost"] == 9, "nobody is told what was found out before"
    assert (connector.cost, pair.near.statistics().connectors[0].cost) == (1, 9)
    await until(lambda: distance(pair.near) == 9)
    assert distance(pair.far) == 4, "the other direction is the other router's"
    (line,) = (each.getMessage() for each in caplog.records if event_of(each) == "cost changed")
    assert f"of=connector/{connector.name} cost=9 " in line
    await pair.roads.cut()
    await until(lambda: distance(pair.near) is None)
    await until(lambda: distance(pair.near) == 9)


async def test_the_cost_of_a_listener_and_of_one_neighbour_are_changed_as_well(pair: Pair) -> None:
    async with pair.far.requester(ADDRESS) as management:
        assert status(await management.request(update(6, identity="listener/door"))) == 200
        await until(lambda: distance(pair.far) == 6)
        (neighbour,) = pair.far.statistics().neighbours
        identity = f"neighbour/{neighbour.connection}"
        assert status(await management.request(update(8, identity=identity))) == 200
        await until(lambda: distance(pair.far) == 8)
    assert pair.far.statistics().listeners[0].cost == 6
    await pair.roads.cut()
    await until(lambda: distance(pair.far) is None)
    await until(lambda: distance(pair.far) == 6)


@pytest.mark.parametrize("manage", [True, False])
async def test_a_peer_may_change_costs_if_its_listener_permits_that(pair: Pair, manage: bool) -> None:
    (connector,) = pair.near.statistics().connectors
    async with pair.client(manage=manage) as management:
        answer = await management.request(update(9, identity=f"connector/{connector.name}"))
    assert status(answer) == (200 if manage else 403)
    assert pair.near.statistics().connectors[0].cost == (9 if manage else 1)


async def test_a_settled_request_to_change_a_cost_is_like_any_other(pair: Pair) -> None:
    (connector,) = pair.near.statistics().connectors
    async with pair.near.receiver(None) as answers, pair.near.sender(ADDRESS) as sender:
        asked = update(9, identity=f"connector/{connector.name}")
        asked.reply_to = answers.address
        await sender.transfer(asked, settled=True)
        assert status((await answers.receive()).message) == 200


async def test_no_peer_of_another_router_changes_anything_here(pair: Pair) -> None:
    async with pair.near.requester(f"{ADDRESS}@B") as management:
        answer = await management.request(update(9, identity="listener/door"))
    assert status(answer) == 403
    assert pair.far.statistics().listeners[0].cost == 4


async def test_a_router_whose_costs_were_changed_ends_without_waiting(autojump_clock: MockClock) -> None:
    door = ListenerConfig(url="amqp://127.0.0.1:0", name="door", role="mesh")
    async with Router(id="B", mesh=MESH, listeners=[door]) as router:
        async with router.requester(ADDRESS) as management:
            read = Message(application_properties={"operation": "READ", "identity": "listener/door"})
            for asked in (read, update(2, type="listener", name="door"), read):
                assert status(await management.request(asked)) == 200
        ended_at = trio.current_time()
    assert trio.current_time() == ended_at
