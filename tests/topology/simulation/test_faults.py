"""Faults in simulated meshes: routes converge, every delivery ends honestly, nothing is left."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from amqpmesh import Backoff, MeshConfig
from amqpmesh.topology.simulation.mesh import Mesh
from tests.support.worlds.simulated_traffic import Traffic

HOLD = 3.0
MEMBERSHIP = MeshConfig(insecure=True, hold=HOLD, lane_idle=1.0)
Fault = Callable[[Mesh], Awaitable[None]]


async def triangle(mesh: Mesh) -> None:
    """Return a mesh where the path from A to C leads over B."""
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


async def ingress_killed_and_restarted(mesh: Mesh) -> None:
    await mesh.crash("A")
    await trio.sleep(0.1)
    await mesh.restart("A")
    await trio.sleep(1.0)  # until the sender has tried again


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
    for seconds in (86_400.0, -86_400.0):
        for router in "ABC":
            mesh.step_clock(router, seconds)
        await trio.sleep(0.2)


async def clock_stepped_back_before_a_restart(mesh: Mesh) -> None:
    mesh.step_clock("B", -86_400.0)
    await mesh.crash("B")
    await mesh.restart("B")


async def clock_stepped_forward_before_a_restart(mesh: Mesh) -> None:
    mesh.step_clock("B", 86_400.0)
    await mesh.crash("B")
    await mesh.restart("B")
    mesh.step_clock("B", -86_400.0)
    await mesh.settled()
    await mesh.crash("B")
    await mesh.restart("B")


FAULTS = [
    killed,
    killed_and_restarted,
    killed_and_restarted_at_once,
    egress_killed_and_restarted,
    ingress_killed_and_restarted,
    stopped,
    cut_and_healed,
    connection_lost,
    frozen_and_thawed,
    frozen_for_a_moment,
    link_removed_and_added,
    partitioned_and_healed,
    cost_changed,
    clock_stepped,
    clock_stepped_back_before_a_restart,
    clock_stepped_forward_before_a_restart,
]


def seeds() -> list[object]:
    """One event for each day; the others for the nights."""
    conditions = {"membership": MEMBERSHIP, "latency": 0.002, "jitter": 0.004}
    return [
        pytest.param(seed, marks=[pytest.mark.mesh(seed=seed, **conditions), *([pytest.mark.slow] if seed > 1 else [])])
        for seed in range(1, 11)
    ]


@pytest.mark.parametrize("seed", seeds())
@pytest.mark.parametrize("fault", FAULTS)
async def test_every_delivery_ends_honestly_traffic_goes_on_and_nothing_is_left(
    fault: Fault, seed: int, mesh: Mesh
) -> None:
    await triangle(mesh)
    traffic = Traffic(mesh, every=0.008)
    async with traffic.flowing("A", "C"):
        await trio.sleep(0.3)
        await fault(mesh)
        await mesh.settled()
        at = trio.current_time()
        await trio.sleep(0.3)
    traffic.check()
    assert traffic.first_after(at) < 0.150
    await mesh.emptied()


@pytest.mark.parametrize("fault", [killed, cut_and_healed])
async def test_traffic_goes_on_by_another_way_within_150_ms(fault: Fault, mesh: Mesh) -> None:
    await triangle(mesh)
    traffic = Traffic(mesh)
    async with traffic.flowing("A", "C"):
        await trio.sleep(0.5)
        at = trio.current_time()
        await fault(mesh)
        await trio.sleep(0.5)
    traffic.check()
    assert traffic.first_after(at) < 0.150
    assert traffic.count()["Accepted"] > 80


@pytest.mark.mesh(membership=MEMBERSHIP)
async def test_a_frozen_router_is_found_within_its_hold_time_and_traffic_goes_round_it(mesh: Mesh) -> None:
    await triangle(mesh)
    traffic = Traffic(mesh, every=0.05)
    async with traffic.flowing("A", "C"):
        await trio.sleep(0.5)
        mesh.freeze("B")
        at = trio.current_time()
        await mesh.settled()
        found = {each.router: each.at - at for each in mesh.log.find("neighbour down")}
        went_round = trio.current_time()
        await trio.sleep(0.5)
        mesh.thaw("B")
        await mesh.settled()
    traffic.check()
    assert sorted(found) == ["A", "C"]
    assert max(found.values()) <= HOLD
    assert traffic.first_after(went_round) < 0.150


@pytest.mark.mesh(membership=MEMBERSHIP)
async def test_what_a_router_has_that_froze_for_good_ends_as_failed_and_not_as_anything_better(mesh: Mesh) -> None:
    await mesh.line("A", "B", "C")
    await mesh.settled()
    traffic = Traffic(mesh)
    async with traffic.flowing("A", "C"):
        await trio.sleep(0.5)
        mesh.freeze("B")
        await trio.sleep(60.0)
        assert len(traffic.outcomes) == len(traffic.sent)
        assert traffic.count()["Modified"] > 0, "what it had taken"
    traffic.check()


@pytest.mark.mesh(latency=0.01)
async def test_an_address_is_reached_over_ten_routers_within_half_a_second_of_its_consumer(mesh: Mesh) -> None:
    await mesh.line(*"ABCDEFGHIJ")
    await mesh.settled()
    async with mesh.connect("A") as near, mesh.connect("J") as far, near.sender("q") as sender:
        await trio.sleep(1.0)
        assert not sender.credit
        began = trio.current_time()
        async with far.receiver("q") as receiver:
            sent = await sender.transfer("tea")
            async with await receiver.receive() as message:
                assert message.body == "tea"
            assert trio.current_time() - began < 0.5
            await sent.outcome()


@pytest.mark.mesh(latency=0.02)
async def test_three_routers_that_start_together_carry_an_address_within_a_second(mesh: Mesh) -> None:
    began = trio.current_time()
    await mesh.line("A", "B", "C")
    async with (
        mesh.connect("A") as near,
        mesh.connect("C") as far,
        near.sender("q") as sender,
        far.receiver("q") as receiver,
    ):
        sent = await sender.transfer("tea")
        async with await receiver.receive():
            pass
        await sent.outcome()
    assert trio.current_time() - began < 1.0


@pytest.mark.mesh(membership=MEMBERSHIP, backoff=Backoff(first=0.05, longest=0.1))
async def test_a_link_that_flaps_is_left_alone_until_it_stays(mesh: Mesh) -> None:
    await triangle(mesh)
    traffic = Traffic(mesh, every=0.1)
    async with traffic.flowing("A", "C"):
        for _ in range(6):
            await trio.sleep(0.5)
            mesh.reset("A", "B")
        at = trio.current_time()
        assert mesh.log.find("neighbour damped", "A")
        await trio.sleep(1.0)
        assert mesh.unsettled() == "A: no adjacency to B: lost too often recently"
        seen = len(mesh.log.find("neighbour"))
        assert 5.0 < await mesh.settled() < 30.0
        assert len(mesh.log.find("neighbour")) == seen, "by itself, and nothing else has changed"
    traffic.check()
    assert traffic.first_after(at) < 0.2, "over the link that stays"
    await mesh.emptied()


async def test_a_router_that_comes_back_is_known_by_its_new_life_only(mesh: Mesh) -> None:
    await mesh.line("A", "B", "C")
    async with mesh.connect("B") as client, client.receiver("old"):
        await mesh.settled()
        assert {each.name for each in mesh["A"].statistics().adverts} == {"old"}
        before = mesh["B"].router.mesh.topology.epoch
        await mesh.crash("B")
        await mesh.settled()
        await mesh.restart("B")
    assert mesh["B"].router.mesh.topology.epoch > before
    async with mesh.connect("B") as client, client.receiver("new"):
        await mesh.settled()
        assert {each.name for each in mesh["A"].statistics().adverts} == {"new"}


async def test_a_router_whose_clock_was_set_back_is_believed_in_its_new_life_all_the_same(mesh: Mesh) -> None:
    await mesh.line("A", "B", "C")
    await mesh.settled()
    before = mesh["B"].router.mesh.topology.epoch
    mesh.step_clock("B", -86_400.0)
    await mesh.settled()
    await mesh.crash("B")
    await mesh.restart("B")
    assert mesh["B"].router.mesh.topology.epoch < before
    async with mesh.connect("B") as client, client.receiver("q"):
        assert await mesh.settled() < 1.0
        assert {each.name for each in mesh["C"].statistics().adverts} == {"q"}
    assert mesh["B"].router.mesh.topology.epoch > before, "it has jumped above what the others had of it"


async def test_each_side_of_a_partition_goes_on_by_itself_and_both_find_each_other_again(mesh: Mesh) -> None:
    await mesh.ring("A", "B", "C", "D")
    await mesh.settled()
    here, there = Traffic(mesh, "here", every=0.05), Traffic(mesh, "there", every=0.05)
    across = Traffic(mesh, "across", every=0.05)
    async with here.flowing("A", "B"), there.flowing("C", "D"), across.flowing("A", "C"):
        await trio.sleep(0.5)
        mesh.partition("AB", "CD")
        await mesh.settled()
        at = trio.current_time()
        sent = len(across.sent)
        await trio.sleep(1.0)
        assert len(across.sent) == sent, "without a way there is no credit"
        assert min(len(here.sent_at), len(there.sent_at)) > sent
        mesh.heal()
        healed = trio.current_time()
        assert await mesh.settled() < 1.5
        await trio.sleep(0.5)
    for traffic in (here, there, across):
        traffic.check()
    assert here.first_after(at) < 0.2
    assert there.first_after(at) < 0.2
    assert across.first_after(healed) < 1.5
    await mesh.emptied()
