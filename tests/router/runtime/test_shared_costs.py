"""Costs of listeners and connectors that are changed alone, in a router with workers: they hold for all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, MeshConfig, RouterConfig
from amqpmesh.router.config.workers import worker_config
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime import poller
from amqpmesh.router.runtime.reload import ConfigSource
from amqpmesh.router.runtime.router import Router, changes_of
from amqpmesh.router.runtime.shared_config import SharedConfig
from amqpmesh.router.runtime.source_changes import apply_file, begin, follow
from tests.support.worlds.sibling_workers import router_config, until, workers

pytestmark = pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")

DOOR = ListenerConfig(url="amqp://127.0.0.1:0", name="door", role="mesh")
WIRES = tuple(ConnectorConfig(url="amqp://127.0.0.1:9", name=name) for name in ("one", "two"))
CONFIG = router_config(mesh=MeshConfig(insecure=True), listeners=(*router_config().listeners, DOOR), connectors=WIRES)


class Site:
    """The workers of one router, which follow each other's changes."""

    def __init__(self, routers: list[Router], folder: Path, nursery: trio.Nursery) -> None:
        self.routers = routers
        self._folder = folder
        self._nursery = nursery
        self.sources = [self._source(number) for number in range(1, len(routers) + 1)]
        for router, source in zip(routers, self.sources, strict=True):
            router.source = source

    def _source(self, number: int) -> ConfigSource:
        part_of = partial(_part, number=number, folder=self._folder)
        shared = SharedConfig(self._folder, CONFIG, part_of, self._tell)
        return ConfigSource(None, lambda: CONFIG, lambda _: None, shared)

    def _tell(self) -> None:
        for router, source in zip(self.routers, self.sources, strict=True):
            assert source.shared is not None
            self._nursery.start_soon(follow, changes_of(router), source.shared)

    async def update(self, number: int, body: dict[str, Any], **named: str) -> Message:
        """Ask a worker for a change."""
        async with self.routers[number].requester(ADDRESS) as management:
            return await management.request(
                Message(body, application_properties={"operation": "UPDATE", **named})  # type: ignore[arg-type]  # plain values
            )

    def costs(self, name: str) -> list[int]:
        """Return the costs of a listener or connector, at the workers that have it."""
        told = [each.statistics() for each in self.routers]
        return [row.cost for each in told for row in (*each.listeners, *each.connectors) if row.name == name]


def _part(config: RouterConfig, number: int, folder: Path) -> RouterConfig:
    return worker_config(config, number, 2, folder)


@asynccontextmanager
async def site(folder: Path) -> AsyncIterator[Site]:
    async with trio.open_nursery() as nursery, workers(CONFIG, folder) as routers:
        yield Site(routers, folder, nursery)


def status(answer: Message) -> Any:
    return answer.application_properties["statusCode"]


@pytest.mark.parametrize(
    "named", [{"type": "listener", "name": "door"}, {"identity": "listener/door"}, {"name": "door"}]
)
async def test_the_cost_of_a_listener_holds_for_all_workers(tmp_path: Path, named: dict[str, str]) -> None:
    async with site(tmp_path) as router:
        answer = await router.update(0, {"cost": 9}, **named)
        assert (status(answer), answer.body) == (
            200, {"name": "door", "identity": "listener/door", "type": "org.amqpmesh.listener", "cost": 9}
        )  # fmt: skip
        await until(lambda: router.costs("door") == [9, 9])


@pytest.mark.parametrize("asked", [0, 1])
async def test_any_worker_changes_the_cost_of_a_connector_that_one_of_them_has(tmp_path: Path, asked: int) -> None:
    async with site(tmp_path) as router:
        for cost, name in enumerate(("one", "two"), 5):
            assert status(await router.update(asked, {"cost": cost}, type="connector", name=name)) == 200
            await until(lambda name=name, cost=cost: router.costs(name) == [cost])


async def test_a_worker_that_is_started_again_has_the_cost(tmp_path: Path) -> None:
    async with site(tmp_path) as router:
        await router.update(0, {"cost": 9}, type="listener", name="door")
        source, changes = router.sources[1], changes_of(router.routers[1])
        assert source.shared is not None
        changes.follow_costs({})
        begin(changes, source.shared)
        assert router.costs("door") == [9, 9]


async def test_the_last_change_wins_and_the_file_takes_all_back(tmp_path: Path) -> None:
    async with site(tmp_path) as router:
        await router.update(0, {"cost": 9}, type="listener", name="door")
        # The same key beside others is a change of the configuration.
        assert status(await router.update(1, {"cost": 4, "links": 8}, type="listener", name="door")) == 200
        await until(lambda: router.costs("door") == [4, 4])
        await router.update(0, {"cost": 9}, type="listener", name="door")
        await until(lambda: router.costs("door") == [9, 9])
        # Another key leaves it.
        assert status(await router.update(1, {"links": 7}, type="listener", name="door")) == 200
        await until(lambda: all(each.config.listeners[1].links == 7 for each in router.routers))
        assert router.costs("door") == [9, 9]
        await apply_file(changes_of(router.routers[0]), router.sources[0])
        await until(lambda: router.costs("door") == [1, 1])


@pytest.mark.parametrize(
    ("body", "named", "code"),
    [
        ({"cost": 3}, {"type": "listener", "name": "amqp"}, 404),
        ({"cost": 3}, {"type": "connector", "name": "none"}, 404),
        ({"cost": 3}, {"name": "none"}, 404),
        ({"cost": 0}, {"type": "listener", "name": "door"}, 400),
        ({"cost": True}, {"type": "listener", "name": "door"}, 400),
    ],
)
async def test_what_has_no_cost_is_refused(
    tmp_path: Path, body: dict[str, Any], named: dict[str, str], code: int
) -> None:
    async with site(tmp_path) as router:
        assert status(await router.update(0, body, **named)) == code
        assert router.costs("door") == [1, 1]
