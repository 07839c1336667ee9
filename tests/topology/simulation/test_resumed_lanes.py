"""Connections between simulated routers that are lost and come back: no message of mode second is in doubt."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from amqpmesh import MeshConfig
from amqpmesh.topology.simulation.mesh import Mesh
from tests.support.worlds.simulated_traffic import Traffic

CONDITIONS = {"membership": MeshConfig(insecure=True, hold=3.0, resume=10), "latency": 0.002, "jitter": 0.004}
Fault = Callable[[Mesh], Awaitable[None]]


async def connections_lost(mesh: Mesh) -> None:
    for near, far in ("BC", "AB", "BC"):
        mesh.reset(near, far)
        await trio.sleep(0.4)


async def cut_and_healed(mesh: Mesh) -> None:
    mesh.cut("A", "B")
    await trio.sleep(0.6)
    mesh.heal("A", "B")


async def partitioned_and_healed(mesh: Mesh) -> None:
    mesh.partition("AB", "C")
    await trio.sleep(7.0)
    mesh.heal()


async def frozen_and_thawed(mesh: Mesh) -> None:
    mesh.freeze("B")
    await trio.sleep(5.0)
    mesh.thaw("B")


def seeds(number: int) -> list[object]:
    """Return runs that differ by their chances."""
    return [pytest.param(seed, marks=pytest.mark.mesh(seed=seed, **CONDITIONS)) for seed in range(1, number + 1)]


@pytest.mark.parametrize("seed", seeds(2))
@pytest.mark.parametrize("fault", [connections_lost, cut_and_healed, partitioned_and_healed, frozen_and_thawed])
async def test_no_message_of_mode_second_is_in_doubt_and_none_comes_twice(fault: Fault, seed: int, mesh: Mesh) -> None:
    await mesh.line("A", "B", "C")
    await mesh.settled()
    traffic = Traffic(mesh, every=0.01, second=True)
    async with traffic.flowing("AB", "CA"):
        await trio.sleep(0.3)
        await fault(mesh)
        await mesh.settled()
        await trio.sleep(1.0)
    traffic.check()
    assert set(traffic.count()) <= {"Accepted", "Released"}
    assert traffic.count()["Accepted"] > 50
    await mesh.emptied()


@pytest.mark.parametrize("seed", seeds(2))
async def test_what_a_killed_router_had_is_in_doubt_within_a_second(seed: int, mesh: Mesh) -> None:
    await mesh.line("A", "B", "C")
    await mesh.settled()
    traffic = Traffic(mesh, every=0.01, second=True)
    async with traffic.flowing("A", "C"):
        await trio.sleep(0.3)
        at = trio.current_time()
        await mesh.crash("B")
        await trio.sleep(1.5)
        await mesh.restart("B")
        await mesh.settled()
    traffic.check()
    in_doubt = [traffic.told_at[number] for number, outcome in traffic.outcomes.items() if outcome == "Modified"]
    assert in_doubt
    assert max(in_doubt) <= at + 1.0


@pytest.mark.mesh(**CONDITIONS)
async def test_a_router_that_was_silent_and_is_gone_leaves_nobody_waiting(mesh: Mesh) -> None:
    await mesh.line("A", "B")
    await mesh.settled()
    traffic = Traffic(mesh, every=0.01, second=True)
    async with traffic.flowing("A", "B"):
        await trio.sleep(0.3)
        mesh.partition("A", "B")
        await trio.sleep(5.0)  # the hold time is over, and the neighbour is waited for
        assert "Modified" not in traffic.count()
        await mesh.crash("B")
        mesh.heal()
        await trio.sleep(1.0)
        assert traffic.count()["Modified"]
        await mesh.restart("B")
        await mesh.settled()
    traffic.check()
