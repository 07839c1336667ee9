"""Routers of a mesh that are drained and restarted one after the other while clients send and receive."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import networkx
import pytest
import trio

from amqpmesh import Accepted, AmqpMeshError, Backoff, InDoubtError, Outcome, Released
from amqpmesh.router.io.dialing import LASTING
from amqpmesh.topology.simulation.mesh import Mesh


@dataclass
class Account:
    """The messages of one address, and what became of them."""

    address: str
    sent: int = 0
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    doubtful: list[str] = field(default_factory=list)
    came: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0
    """Seconds that the sender has waited at most for credit and the outcome."""


async def produce(mesh: Mesh, account: Account, places: list[str], until: trio.Event, pause: float) -> None:
    """Send one message after the other."""
    backoff = Backoff(first=0.01, longest=0.05)
    async with (
        mesh.connect(*places, reconnect=backoff) as connection,
        connection.sender(account.address) as sender,
    ):
        while not until.is_set():
            name = f"{account.address}-{account.sent}"
            account.sent += 1
            began = trio.current_time()
            try:
                sent = await sender.transfer(name)
                account.outcomes[name] = await sent.outcome()
            except InDoubtError:
                account.doubtful.append(name)
            account.longest = max(account.longest, trio.current_time() - began)
            await trio.sleep(pause)


async def consume(mesh: Mesh, account: Account, places: list[str], until: trio.Event, pause: float) -> None:
    """Receive until nobody sends any more."""
    backoff = Backoff(first=0.01, longest=0.05)
    async with (
        mesh.connect(*places, reconnect=backoff) as connection,
        connection.receiver(account.address, credit=5) as receiver,
    ):
        with trio.CancelScope() as scope:

            async def stop() -> None:
                await until.wait()
                await trio.sleep(1.0)
                scope.cancel()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(stop)
                async for delivery in receiver:
                    await trio.sleep(pause)
                    account.came[delivery.message.body] += 1
                    delivery.accept()


async def roll(mesh: Mesh, ids: list[str], chance: random.Random) -> None:
    """Drain, end and restart these routers, one after the other."""
    for each in ids:
        await trio.sleep(chance.uniform(0.1, 0.5))
        assert await mesh[each].router.move_clients(pace=chance.choice([0.1, 1.0]))
        await mesh.stop(each)
        await trio.sleep(chance.uniform(0.0, 0.3))
        await mesh.restart(each)
        await mesh.settled()


@pytest.mark.parametrize("seed", range(4))
async def test_drains_in_a_random_mesh_lose_and_double_nothing(seed: int, mesh: Mesh) -> None:
    chance = random.Random(seed)
    count = chance.randint(3, 5)
    graph = networkx.relabel_nodes(
        networkx.connected_watts_strogatz_graph(count, 2, 0.5, seed=seed), dict(enumerate("ABCDE"[:count]))
    )
    await mesh.graph(graph, latency=chance.choice([0.0, 0.002]))
    await mesh.settled()
    ids = sorted(each.id for each in mesh)
    producers, consumers = trio.Event(), trio.Event()
    accounts = [Account(f"q{number}") for number in range(3)]
    async with trio.open_nursery() as clients:
        for account in accounts:
            for work, until, number in ((consume, consumers, 2), (produce, producers, 1)):
                for _ in range(number):
                    places = chance.sample(ids, 3)
                    clients.start_soon(work, mesh, account, places, until, chance.choice([0.0, 0.003, 0.02]))
        await trio.sleep(0.5)
        await roll(mesh, chance.sample(ids, len(ids)), chance)
        producers.set()
        await trio.sleep(2.0)
        consumers.set()
    longest: list[float] = []
    for account in accounts:
        assert account.sent > 50
        told = Counter(type(each) for each in account.outcomes.values())
        assert set(told) <= {Accepted, Released}, told
        assert account.doubtful == []
        assert max(account.came.values()) == 1
        assert {name for name, outcome in account.outcomes.items() if isinstance(outcome, Accepted)} == set(
            account.came
        )
        assert told[Released] <= 3
        longest.append(account.longest)
    # A router whose end cuts the mesh in two is the only way for some of the messages.
    assert max(longest) < 0.2 or not networkx.is_biconnected(graph)


async def test_a_sender_waits_some_ms_while_it_and_its_only_receiver_move(mesh: Mesh) -> None:
    await mesh.line("A", "B", latency=0.002)
    await mesh.settled()
    accounts = [Account(f"q{number}") for number in range(5)]
    producers, consumers = trio.Event(), trio.Event()
    async with trio.open_nursery() as clients:
        for account in accounts:
            clients.start_soon(consume, mesh, account, ["A", "B"], consumers, 0.0)
            clients.start_soon(produce, mesh, account, ["A", "B"], producers, 0.01)
        await trio.sleep(1.5)
        assert await mesh["A"].router.move_clients()
        await trio.sleep(0.5)
        producers.set()
        await trio.sleep(0.5)
        consumers.set()
    # The time is virtual: it is what the router lets clients wait, on a machine of any speed.
    assert max(account.longest for account in accounts) < 0.1
    for account in accounts:
        assert set(account.came) == set(account.outcomes)
        assert all(isinstance(each, Accepted) for each in account.outcomes.values())


async def test_a_cancelled_move_lets_the_rest_stay(mesh: Mesh) -> None:
    await mesh.line("A", "B")
    await mesh.settled()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(mesh.connect("A", "B", reconnect=True)) for _ in range(20)]
        with trio.move_on_after(0.45):
            await mesh["A"].router.move_clients(pace=0.1)
        assert not mesh["A"].statistics().router.draining
        await trio.sleep(5.0)
        places = Counter(each.peer.container_id for each in clients)
        assert 3 <= places["B"] <= 6
        assert places.total() == 20
        assert [each.overload for each in mesh["B"].statistics().routes] == [False]


async def test_a_router_alone_moves_its_clients_too(mesh: Mesh) -> None:
    await mesh.router("A")
    async with mesh.connect("A") as connection:
        assert await mesh["A"].router.move_clients()
        await trio.sleep(0.01)
        with pytest.raises(AmqpMeshError, match="about to stop"):
            connection.peer  # noqa: B018 - it raises


async def test_a_move_that_takes_too_long_ends(mesh: Mesh) -> None:
    await mesh.line("A", "B")
    await mesh.settled()
    async with (
        mesh.connect("A") as far,
        mesh.connect("B") as near,
        far.receiver("q", credit=1) as receiver,
        near.sender("q") as sender,
    ):
        sent = await sender.transfer("held")
        delivery = await receiver.receive()
        began = trio.current_time()
        assert not await mesh["A"].router.move_clients(timeout=2.0)
        assert trio.current_time() == began + 2.0
        assert mesh["A"].statistics().router.moving == 1
        assert [each.overload for each in mesh["B"].statistics().routes] == [True]
        delivery.accept()
        assert await sent.outcome() == Accepted()
        assert await mesh["A"].router.move_clients(timeout=2.0)


async def test_a_client_of_the_library_goes_to_its_next_place_at_once(mesh: Mesh) -> None:
    await mesh.line("A", "B")
    await mesh.settled()
    async with mesh.connect("A", "B", reconnect=Backoff(first=0.1)) as client, client.receiver("q"):
        await trio.sleep(2 * LASTING)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mesh["A"].router.move_clients)
            await trio.sleep(0.15)
            assert client.peer.container_id == "B"
            assert client.reconnections == 1


async def test_a_client_of_the_library_follows_a_redirect(mesh: Mesh) -> None:
    await mesh.router("B")
    await mesh.router("A", drain_to=(mesh.url("B"),))
    mesh.link("A", "B")
    await mesh.settled()
    async with mesh.connect("A", reconnect=True, redirects=["*"]) as client, client.receiver("q"):
        assert await mesh["A"].router.move_clients()
        await trio.sleep(0.1)
        assert client.peer.container_id == "B"
