"""Connections for single tenants beside the connection of a connector: when they are opened, and when they end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from trio.testing import MockClock

from amqpmesh import Router
from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, MeshConfig, PolicyConfig
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.io.dialing import LASTING
from amqpmesh.router.runtime.tenant_connectors import HEAD_START
from tests.support.peers.library_client import Roads
from tests.support.tasks.until import until
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY

URL = "amqp://127.0.0.1:5001"
MESH = ListenerConfig(url="amqp://127.0.0.1:0", name="mesh", role="mesh")


def write(folder: Path, *tenants: str) -> PolicyConfig:
    """Write a policy with these tenants, each with all rights."""
    file = folder / "policy.toml"
    file.write_text(
        "".join(
            f'[[tenant]]\nname = "{each}"\nmatch = [{{ listener = "{each}" }}]\n'
            f'[[group]]\ntenant = "{each}"\nname = "all"\nsend = ["#"]\nreceive = ["#"]\n'
            for each in tenants
        )
    )
    return PolicyConfig(file=file)


@asynccontextmanager
async def two_routers(
    roads: Roads, folder: Path, *tenants: str, here: MeshConfig | None = None, there: MeshConfig | None = None
) -> AsyncIterator[tuple[Router, Router]]:
    """Start B, and A, which connects to B."""
    policy, insecure = write(folder, *tenants), MeshConfig(insecure=True)
    connector = ConnectorConfig(url=URL, name="to-B", role="mesh")
    async with (
        Router(id="B", mesh=there or insecure, policy=policy, open_stream=roads.open) as b,
        Router(id="A", mesh=here or insecure, policy=policy, connectors=[connector], open_stream=roads.open) as a,
    ):
        roads.lead_to(b, URL, MESH)
        yield a, b


def connections(router: Router) -> list[str | None]:
    """Return the tenants of the connections to neighbours that are open, oldest first; None: one is for all."""
    core = router._started()
    return [each.lanes_of for each in core.context.connections if each.role == "mesh" and not each.lost]


async def neighbours(a: Router, b: Router) -> None:
    """Wait until both routers are neighbours."""
    with trio.fail_after(10.0):
        await until(lambda: all(any(n.up for n in each.statistics().neighbours) for each in (a, b)))


async def test_they_are_open_before_lanes_come(
    nursery: trio.Nursery, autojump_clock: MockClock, tmp_path: Path
) -> None:
    roads = Roads(nursery)
    async with two_routers(roads, tmp_path, "a", "b") as (a, b):
        await neighbours(a, b)
        assert set(connections(b)) == {"a", "b", None}
        assert connections(a)[-1] is None, "it was begun when the others were open"


async def test_without_several_tenants_or_with_none_allowed_there_is_one_connection(
    nursery: trio.Nursery, autojump_clock: MockClock, tmp_path: Path
) -> None:
    for here, tenants in ((MeshConfig(insecure=True, tenant_connections=0), ("a", "b")), (None, ("a",))):
        async with two_routers(Roads(nursery), tmp_path, *tenants, here=here) as (a, b):
            await neighbours(a, b)
            assert connections(a) == connections(b) == [None]


async def test_a_neighbour_that_takes_none_is_a_neighbour_all_the_same(
    nursery: trio.Nursery, autojump_clock: MockClock, tmp_path: Path
) -> None:
    there = MeshConfig(insecure=True, tenant_connections=0)
    async with two_routers(Roads(nursery), tmp_path, "a", "b", there=there) as (a, b):
        began = trio.current_time()
        await neighbours(a, b)
        assert trio.current_time() - began < HEAD_START
        await until(lambda: connections(a) == connections(b) == [None])


async def test_a_neighbour_that_does_not_answer_on_them_is_waited_for_a_second(
    nursery: trio.Nursery, autojump_clock: MockClock, tmp_path: Path
) -> None:
    roads = Roads(nursery)
    kept: list[trio.abc.Stream] = []

    async def open_stream(endpoint: Endpoint) -> trio.abc.Stream:
        if len(roads.tries) in (1, 2):  # after the first, by which the neighbour is found
            roads.tries.append((trio.current_time(), str(endpoint)))
            ours, theirs = trio.testing.memory_stream_pair()
            kept.append(theirs)
            return ours
        return await roads.open(endpoint)

    policy, insecure = write(tmp_path, "a", "b"), MeshConfig(insecure=True)
    connector = ConnectorConfig(url=URL, name="to-B", role="mesh")
    async with (
        Router(id="B", mesh=insecure, policy=policy) as b,
        Router(id="A", mesh=insecure, policy=policy, connectors=[connector], open_stream=open_stream) as a,
    ):
        roads.lead_to(b, URL, MESH)
        began = trio.current_time()
        await neighbours(a, b)
        assert HEAD_START <= trio.current_time() - began < HEAD_START + 0.5


async def test_a_changed_policy_opens_and_closes_them(
    nursery: trio.Nursery, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with two_routers(Roads(nursery), tmp_path, "a", "b") as (a, b):
        await neighbours(a, b)
        write(tmp_path, "b", "c")
        for router in (a, b):
            router.reload()
        with trio.fail_after(10.0):
            await until(lambda: all(set(connections(each)) == {None, "b", "c"} for each in (a, b)))
        write(tmp_path, "b")
        a.reload()
        with trio.fail_after(10.0):
            await until(lambda: connections(a) == connections(b) == [None])


async def test_one_that_is_lost_is_opened_again_and_the_others_stay(
    nursery: trio.Nursery, autojump_clock: MockClock, tmp_path: Path
) -> None:
    roads = Roads(nursery)
    async with two_routers(roads, tmp_path, "a", "b") as (a, b):
        await neighbours(a, b)
        await trio.aclose_forcefully(roads.streams[1])
        with trio.fail_after(10.0):
            await until(lambda: len(connections(a)) == len(connections(b)) == 2)
            await until(lambda: len(connections(a)) == len(connections(b)) == 3)
        assert connections(a)[1] is None, "only the last one is new"


async def test_one_that_has_lasted_is_opened_again_at_once_however_often_it_was_lost_before(
    nursery: trio.Nursery, autojump_clock: MockClock, tmp_path: Path
) -> None:
    roads = Roads(nursery)
    async with two_routers(roads, tmp_path, "a", "b") as (a, b):
        await neighbours(a, b)

        async def lose_one() -> float:
            """Return the seconds until it is opened again."""
            await until(lambda: len(connections(a)) == len(connections(b)) == 3)
            lost, tries = trio.current_time(), len(roads.tries)
            await trio.aclose_forcefully(roads.streams[-1])
            await until(lambda: len(roads.tries) > tries)
            return roads.tries[-1][0] - lost

        await trio.aclose_forcefully(roads.streams[1])
        with trio.fail_after(600.0):
            pauses = [await lose_one() for _ in range(8)]
            assert pauses[-1] > 1.0
            await until(lambda: len(connections(a)) == len(connections(b)) == 3)
            await trio.sleep(LASTING)
            assert await lose_one() < 0.5


async def test_all_end_and_come_back_with_the_connection_of_the_connector(
    nursery: trio.Nursery, autojump_clock: MockClock, tmp_path: Path
) -> None:
    roads = Roads(nursery)
    async with two_routers(roads, tmp_path, "a", "b") as (a, b):
        await neighbours(a, b)
        await trio.aclose_forcefully(roads.streams[0])
        with trio.fail_after(10.0):
            await until(lambda: connections(a) == connections(b) == [])
        await neighbours(a, b)
        assert connections(a)[-1] is None
        assert len(connections(a)) == 3


async def test_none_is_opened_again_while_the_router_drains(
    nursery: trio.Nursery, autojump_clock: MockClock, tmp_path: Path
) -> None:
    roads = Roads(nursery)
    async with two_routers(roads, tmp_path, "a", "b") as (a, b):
        await neighbours(a, b)
        tries = len(roads.tries)
        assert await a.drain()
        await trio.sleep(60.0)
        assert len(roads.tries) == tries
        assert connections(b) == []
