"""A mesh in which much happens. `python -m tests.support.worlds.eventful SEED...` prints logs, form feeds between."""

import sys

import networkx
import trio
from trio.testing import MockClock

from amqpmesh import AddressConfig, Backoff, Distribution, MeshConfig, Message
from amqpmesh.topology.simulation.mesh import Mesh
from tests.support.worlds.simulated_traffic import Traffic

GRAPH = networkx.Graph([("A", "B"), ("B", "C"), ("C", "D"), ("D", "A"), ("B", "D"), ("D", "E"), ("E", "F"), ("F", "C")])
NEWS = AddressConfig(pattern="news/#", distribution=Distribution.MULTICAST)


async def happen(seed: int) -> str:
    """Return the log of a history."""
    async with Mesh(
        seed, latency=0.002, jitter=0.003, bandwidth=10e6, membership=MeshConfig(insecure=True, lane_idle=0.5),
        backoff=Backoff(first=0.05, longest=0.5), addresses=(NEWS,)
    ) as mesh:  # fmt: skip
        await mesh.graph(GRAPH)
        await mesh.settled()
        orders, news = Traffic(mesh, "orders", every=0.02), Traffic(mesh, "news/today", every=0.02)
        async with orders.flowing("AEF", "CBD"), news.flowing("BF", "AC"), trio.open_nursery() as nursery:
            nursery.start_soon(_ask, mesh)
            await trio.sleep(0.1)
            mesh.cut("A", "B")
            await trio.sleep(0.1)
            await mesh.crash("D")
            await trio.sleep(0.1)
            mesh.heal()
            await mesh.restart("D")
            mesh.set_cost("B", "C", 3)
            mesh.partition("ABCD", "EF")
            await trio.sleep(0.1)
            mesh.heal()
            await mesh.settled()
            mesh.reset("E", "F")
        mesh.log.note("-", "counted", orders=dict(orders.count()), news=dict(news.count()))
        await mesh.emptied()
    return str(mesh.log)


async def _ask(mesh: Mesh) -> None:
    async with (
        mesh.connect("B") as asking,
        mesh.connect("F") as answering,
        answering.receiver("quotes") as requests,
        asking.requester("quotes") as requester,
        trio.open_nursery() as nursery,
    ):

        async def answer() -> None:
            async for delivery in requests:
                async with delivery as message:
                    await delivery.reply(Message([message.body]))

        nursery.start_soon(answer)
        with trio.move_on_after(5):
            for number in range(5):
                await requester.request(number)
        nursery.cancel_scope.cancel()


def log_of(seed: int) -> str:
    """Return the event log of a seed."""
    return trio.run(happen, seed, clock=MockClock(autojump_threshold=0))


if __name__ == "__main__":
    print("\f".join(log_of(int(seed)) for seed in sys.argv[1:]), end="")
