"""Rates of links between other routers, as the page gets them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from amqpmesh import ConnectorConfig, ListenerConfig, MeshConfig, Message, Router
from amqpmesh.router.http.requests import UNAVAILABLE, HttpError
from amqpmesh.router.http.visitors import Visitor
from amqpmesh.router.incremental import run_to_end
from amqpmesh.router.management.service import respond
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.management.views import whole
from amqpmesh.router.runtime import http_rates
from amqpmesh.router.runtime.http_rates import AGAIN, AT_ONCE, KEPT, PAUSE, MeshRates
from tests.support.peers.http_client import PATIENCE, HttpClient
from tests.support.worlds.meshes import World

OPERATOR = Visitor.of("", None, {}, may_write=False)
HTTP = ListenerConfig(url="http://127.0.0.1:0", role="http")
MESH = ListenerConfig(url="amqp://127.0.0.1:0", role="mesh", name="mesh")


class Asked:
    """The management nodes of simulated routers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.count: Counter[str] = Counter()
        self.silent: set[str] = set()

    async def ask(self, router: str, request: Message, visitor: Visitor) -> Message:
        await trio.lowlevel.checkpoint()
        self.count[router] += 1
        if router in self.silent:
            raise HttpError(UNAVAILABLE, "that router does not answer")
        told = run_to_end(respond(replace(request, reply_to="r"), whole(snapshot(self._world[router].core))))
        return Message.decode(told.encode())


def ring(names: str) -> tuple[World, Asked, MeshRates]:
    world = World(names, list(zip(names, names[1:] + names[0], strict=True)))
    world.advance(1.0)
    asked = Asked(world)
    return world, asked, MeshRates(world[names[0]].core, asked)  # type: ignore[arg-type]  # it asks nobody


async def test_each_link_of_others_has_a_rate_and_few_are_asked_at_a_time(autojump_clock: MockClock) -> None:
    names = "ABCDEFGHIJ"
    world, asked, rates = ring(names)
    wanted = {frozenset(each) for each in pairwise(names[1:])}
    found: set[frozenset[str]] = set()
    for _ in range(int(3 * AGAIN / PAUSE)):
        before = asked.count.copy()
        links = await rates.look(OPERATOR)
        told = asked.count - before
        assert told.total() <= AT_ONCE
        assert (await rates.look(OPERATOR), asked.count - before) == (links, told), "not again so soon"
        found = {frozenset(each[:2]) for each in links}
        assert len(found) == len(links)
        world.advance(PAUSE)
        await trio.sleep(PAUSE)
    assert found == wanted
    assert "A" not in asked.count
    assert max(asked.count.values()) <= 3
    assert sum(each[2] + each[3] for each in await rates.look(OPERATOR)) > 0, "routers tell each other of themselves"


async def test_what_does_not_answer_is_told_by_the_other_end_or_forgotten(autojump_clock: MockClock) -> None:
    world, asked, rates = ring("ABCD")

    async def turn(seconds: float) -> set[frozenset[str]]:
        for _ in range(int(seconds / PAUSE)):
            await rates.look(OPERATOR)
            world.advance(PAUSE)
            await trio.sleep(PAUSE)
        return {frozenset(each[:2]) for each in await rates.look(OPERATOR)}

    asked.silent = {"C"}
    assert await turn(4 * AGAIN) == {frozenset("BC"), frozenset("CD")}
    asked.silent = {"B", "C", "D"}
    assert await turn(2 * AGAIN) == {frozenset("BC"), frozenset("CD")}
    assert await turn(KEPT) == set()


async def test_the_page_gets_what_goes_over_the_links_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_rates, "AGAIN", 0.1)
    monkeypatch.setattr(http_rates, "PAUSE", 0.0)

    def to(router: Router, position: int) -> ConnectorConfig:
        return ConnectorConfig(url=router.listeners[position].url, role="mesh")

    mesh = MeshConfig(insecure=True)
    async with (
        Router(id="A", drain=0.1, listeners=[HTTP, MESH], mesh=mesh) as first,
        Router(id="B", drain=0.1, listeners=[MESH], connectors=[to(first, 1)], mesh=mesh) as second,
        Router(id="C", drain=0.1, connectors=[to(second, 0)], mesh=mesh) as third,
        third.receiver("q", credit=10) as receiver,
        second.sender("q") as sender,
        trio.open_nursery() as nursery,
    ):

        async def send() -> None:
            while True:
                await sender.send(b"x" * 1000)

        async def take() -> None:
            async for delivery in receiver:
                delivery.accept()

        nursery.start_soon(take)
        nursery.start_soon(send)
        client = HttpClient.of(first)
        with trio.fail_after(PATIENCE):
            while True:
                answer = await client.get("/view/rates")
                assert answer.status == 200
                found = {tuple(each[:2]): each[2:] for each in answer.json["links"]}
                if max(map(max, found.values()), default=0) > 1000:
                    break
                await trio.sleep(0.05)
        ((link, (there, back)),) = found.items()
        assert set(link) == {"B", "C"}
        assert (there > back) is (link == ("B", "C")), "the messages go to C"
        nursery.cancel_scope.cancel()


async def test_a_router_without_a_mesh_has_no_links() -> None:
    async with Router(id="A", drain=0.1, listeners=[HTTP]) as router:
        assert (await HttpClient.of(router).get("/view/rates")).json == {"links": []}
