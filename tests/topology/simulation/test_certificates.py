"""Certificates in simulated meshes: expiry, renewal, revocation, and wrong clocks."""

import pytest
import trio

from amqpmesh import CommandError, ConfigError, MeshConfig
from amqpmesh.topology.simulation.mesh import Mesh
from tests.support.worlds.simulated_traffic import Traffic

DAY = 86_400.0
TOLERANCE = 300.0
CHECK = 61.0
"""Seconds within which a router checks its neighbours' certificates again."""
MEMBERSHIP = MeshConfig(insecure=True, hello=5.0, hold=15.0, lane_idle=1.0)
CERTIFIED = pytest.mark.mesh(certificates=30.0, membership=MEMBERSHIP)


def reached(mesh: Mesh, router: str) -> set[str]:
    """Return the routers that a router reaches."""
    return {each.router for each in mesh[router].statistics().routes if each.distance}


def refusals(mesh: Mesh) -> list[str]:
    """Return the reasons of refused neighbours in the log."""
    return [str(each) for each in mesh.log.find("neighbour refused")]


@CERTIFIED
async def test_messages_cross_a_mesh_of_routers_that_have_certificates(mesh: Mesh) -> None:
    await mesh.line("A", "B", "C")
    await mesh.settled()
    traffic = Traffic(mesh)
    async with traffic.flowing("A", "C"):
        await trio.sleep(0.5)
    traffic.check()
    assert traffic.count()["Accepted"] > 20
    assert refusals(mesh) == []
    await mesh.emptied()


@CERTIFIED
async def test_a_certificate_that_is_renewed_breaks_nothing_and_holds_when_the_old_one_has_ended(mesh: Mesh) -> None:
    await mesh.line("A", "B", "C")
    await mesh.settled()
    traffic = Traffic(mesh, every=0.05)
    async with traffic.flowing("A", "C"):
        for router in "ABC":
            await trio.sleep(0.3)
            mesh.renew(router, days=60)
        await trio.sleep(0.5)
        for router in "ABC":
            mesh.step_clock(router, 31 * DAY)
        await trio.sleep(0.5)
    await trio.sleep(2 * CHECK)
    assert mesh.unsettled() is None
    traffic.check()
    assert set(traffic.count()) == {"Accepted"}
    assert mesh.log.find("neighbour down") == []
    assert refusals(mesh) == []
    await mesh.crash("B")
    await mesh.settled()
    await mesh.restart("B")
    assert await mesh.settled() < 5.0, "with the new one it is taken in again"
    await mesh.emptied()


@CERTIFIED
@pytest.mark.parametrize(
    ("passed", "event", "days"),
    [
        (29.0 * DAY, "certificate expires", 1.0),
        pytest.param(30.0 * DAY, "certificate expired", 0.0, marks=pytest.mark.slow),
        pytest.param(35.0 * DAY, "certificate expired", 5.0, marks=pytest.mark.slow),
    ],
)
async def test_a_certificate_that_ends_or_has_ended_is_told_of(
    passed: float, event: str, days: float, mesh: Mesh
) -> None:
    await mesh.line("A", "B")
    await mesh.settled()
    mesh.step_clock("A", passed)
    await trio.sleep(3600.0)
    (told,) = mesh.log.find("certificate expire")
    assert told.text == f"{event} router=A days={days}"


@CERTIFIED
async def test_a_certificate_that_ends_while_its_router_runs_ends_its_adjacencies_in_bounded_time(mesh: Mesh) -> None:
    await mesh.line("A", "B", "C")
    await mesh.settled()
    for router in "AB":
        mesh.renew(router, days=60)
    for router in "ABC":
        mesh.step_clock(router, 30 * DAY + TOLERANCE - 30.0)
    await trio.sleep(20.0)
    assert mesh.unsettled() is None, "within the tolerance it is still good"
    await trio.sleep(20.0 + CHECK)
    assert reached(mesh, "B") == {"A"}
    assert any("expired" in each for each in refusals(mesh))
    await trio.sleep(120.0)
    assert reached(mesh, "B") == {"A"}, "nor is it taken in again"
    mesh.renew("C", days=90)
    await trio.sleep(60.0)
    assert reached(mesh, "A") == {"B", "C"}
    await mesh.emptied()


@CERTIFIED
async def test_a_router_that_is_revoked_loses_its_adjacencies_wherever_the_list_is_given_and_comes_back_by_no_link(
    mesh: Mesh,
) -> None:
    await mesh.ring("A", "B", "C", "X")
    await mesh.settled()
    traffic = Traffic(mesh, every=0.05)
    async with traffic.flowing("A", "C"):
        await trio.sleep(0.5)
        at = trio.current_time()
        mesh.revoke("X", told="B")
        await trio.sleep(1.0)
        assert [reached(mesh, router) for router in "ABC"] == [{"B", "C"}, {"A", "C"}, {"A", "B"}]
        assert reached(mesh, "X") == set()
        assert {each.router for each in mesh.log.find("neighbour down") if each.at - at < 1.0} >= {"A", "C"}
    traffic.check()
    await trio.sleep(400.0)
    assert [reached(mesh, router) for router in "ABC"] == [{"B", "C"}, {"A", "C"}, {"A", "B"}]
    assert traffic.first_after(at) < 0.2, "it goes on by B"
    mesh.renew("X")
    await trio.sleep(60.0)
    assert reached(mesh, "X") == {"A", "B", "C"}, "with another key it is one of them again"
    await mesh.emptied()


@CERTIFIED
@pytest.mark.parametrize("step", [-10 * DAY, 10 * DAY, -TOLERANCE, TOLERANCE])
async def test_a_clock_that_steps_within_what_certificates_hold_breaks_nothing(step: float, mesh: Mesh) -> None:
    await mesh.line("A", "B", "C")
    await mesh.settled()
    for router in "ABC":
        mesh.renew(router, days=30)
    if step < -TOLERANCE:
        for router in "ABC":
            mesh.step_clock(router, -step)
    mesh.step_clock("B", step)
    traffic = Traffic(mesh, every=1.0)
    async with traffic.flowing("A", "C"):
        await trio.sleep(2 * CHECK)
    traffic.check()
    assert set(traffic.count()) == {"Accepted"}
    await mesh.emptied()


@CERTIFIED
async def test_a_router_whose_clock_is_wrong_by_more_than_that_is_alone_until_it_is_right_again(mesh: Mesh) -> None:
    await mesh.line("A", "B", "C")
    await mesh.settled()
    mesh.step_clock("C", 40 * DAY)
    await trio.sleep(CHECK)
    assert reached(mesh, "C") == set()
    assert reached(mesh, "A") == {"B"}
    mesh.step_clock("C", -40 * DAY)
    await trio.sleep(60.0)
    assert reached(mesh, "C") == {"A", "B"}
    await mesh.emptied()


async def test_a_mesh_without_certificates_has_none_to_renew(mesh: Mesh) -> None:
    await mesh.line("A", "B")
    with pytest.raises(CommandError, match="no certificates"):
        mesh.renew("A")
    with pytest.raises(CommandError, match="no certificates"):
        mesh.revoke("A", told="B")


@CERTIFIED
async def test_a_router_does_not_start_with_a_certificate_that_has_ended(mesh: Mesh) -> None:
    await mesh.line("A", "B")
    await mesh.settled()
    await mesh.stop("B")
    mesh.step_clock("B", 40 * DAY)
    with pytest.raises(ConfigError, match="expired"):
        await mesh.restart("B")
    mesh.step_clock("B", -40 * DAY)
    await mesh.restart("B")
    await mesh.settled()
