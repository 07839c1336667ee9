"""What goes wrong in a mesh, in virtual time: routes converge, every delivery ends honestly, nothing is left behind."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from amqpmesh import MeshConfig
from amqpmesh.topology.simulation.mesh import Mesh
from tests.support.traffic import Traffic

HOLD = 3.0
MEMBERSHIP = MeshConfig(insecure=True, hold=HOLD, lane_idle=1.0)
Fault = Callable[[Mesh], Awaitable[None]]


async def triangle(mesh: Mesh) -> None:
    """From A to C the way leads over B."""
    await mesh.line("A", "B", "C")
    mesh.link("A", "C", cost=5)
    await mesh.settled()


async def killed(mesh: Mesh) -> None:
    await mesh.crash("B")


async def killed_and_restarted(mesh: Mesh) -> None:
    await mesh.crash("B")
    await mesh.settled()
    await trio.sleep(0.1)
    await mesh.restart("B")


async def killed_and_restarted_at_once(mesh: Mesh) -> None:
    await mesh.crash("B")
    await mesh.restart("B")


async def egress_killed_and_restarted(mesh: Mesh) -> None:
    await mesh.crash("C")
    await trio.sleep(0.1)
    await mesh.restart("C")


async def stopped(mesh: Mesh) -> None:
    await mesh.stop("B")


async def cut_and_healed(mesh: Mesh) -> None:
    mesh.cut("A", "B")
    await mesh.settled()
    await trio.sleep(0.1)
    mesh.heal("A", "B")


async def connection_lost(mesh: Mesh) -> None:
    mesh.reset("B", "C")


async def frozen_and_thawed(mesh: Mesh) -> None:
    mesh.freeze("B")
    await mesh.settled()
    await trio.sleep(0.5)
    mesh.thaw("B")


async def frozen_for_a_moment(mesh: Mesh) -> None:
    mesh.freeze("B")
    await trio.sleep(1.0)
    mesh.thaw("B")


async def link_removed_and_added(mesh: Mesh) -> None:
    mesh.unlink("B", "C")
    await mesh.settled()
    await trio.sleep(0.1)
    mesh.link("C", "B")


async def partitioned_and_healed(mesh: Mesh) -> None:
    mesh.partition("AB", "C")
    await mesh.settled()
    await trio.sleep(0.5)
    mesh.heal()


async def cost_changed(mesh: Mesh) -> None:
    mesh.set_cost("A", "C", 1)
    await mesh.settled()
    await trio.sleep(0.1)
    mesh.set_cost("A", "C", 9)


async def clock_stepped(mesh: Mesh) -> None:
    mesh.step_clock("B", -86_400.0)
    await mesh.crash("B")
    await mesh.restart("B")


FAULTS = [
    killed,
    killed_and_restarted,
    killed_and_restarted_at_once,
    egress_killed_and_restarted,
    stopped,
    cut_and_healed,
    connection_lost,
    frozen_and_thawed,
    frozen_for_a_moment,
    link_removed_and_added,
    partitioned_and_healed,
    cost_changed,
    clock_stepped,
]


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=pytest.mark.mesh(seed=seed, membership=MEMBERSHIP, latency=0.002, jitter=0.004))
        for seed in range(2)
    ],
)
@pytest.mark.parametrize("fault", FAULTS)
async def test_every_delivery_ends_honestly_and_traffic_goes_on(fault: Fault, seed: int, mesh: Mesh) -> None:
    await triangle(mesh)
    traffic = Traffic(mesh, every=0.004)
    async with traffic.flowing("AB" if fault not in (killed, stopped) else "A", "C"):
        await trio.sleep(0.3)
        await fault(mesh)
        await mesh.settled()
        at = trio.current_time()
        await trio.sleep(0.3)
        print(fault.__name__, traffic.count())
    traffic.check()
    print(traffic.first_after(at))
    print(await mesh.emptied())
