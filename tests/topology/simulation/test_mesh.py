"""Simulated meshes: their construction, and their methods."""

import networkx
import pytest
import trio
from trio.testing import MockClock

from amqpmesh import CommandError, ConnectionClosedError, Message
from amqpmesh.topology.simulation.mesh import Mesh


def paths(mesh: Mesh, router: str) -> dict[str, int | None]:
    """Return the cost of the path to each other router."""
    return {each.router: each.distance for each in mesh[router].statistics().routes if each.router != router}


@pytest.mark.mesh(latency=0.004)
async def test_a_message_crosses_three_routers_and_takes_its_time(mesh: Mesh) -> None:
    await mesh.line("A", "B", "C", latency=0.005)
    await mesh.settled()
    async with (
        mesh.connect("A") as near,
        mesh.connect("C") as far,
        near.sender("q") as sender,
        far.receiver("q") as receiver,
    ):
        while not sender.credit:
            await trio.sleep(0.001)
        began = trio.current_time()
        sent = await sender.transfer("tea")
        async with await receiver.receive() as message:
            assert message.body == "tea"
        assert trio.current_time() - began == pytest.approx(2 * 0.004 + 2 * 0.005)
        await sent.outcome()
        assert trio.current_time() - began == pytest.approx(4 * 0.004 + 4 * 0.005)


@pytest.mark.parametrize(
    ("kind", "costs"),
    [
        ("line", {"B": 1, "C": 2, "D": 3}),
        ("ring", {"B": 1, "C": 2, "D": 1}),
        ("star", {"B": 1, "C": 1, "D": 1}),
        ("full", {"B": 1, "C": 1, "D": 1}),
    ],
)
async def test_routers_are_linked_as_asked_for(kind: str, costs: dict[str, int], mesh: Mesh) -> None:
    nodes = await getattr(mesh, kind)("A", "B", "C", "D")
    assert [node.id for node in nodes] == ["A", "B", "C", "D"]
    await mesh.settled()
    assert paths(mesh, "A") == costs


async def test_a_networkx_graph_becomes_a_mesh_with_what_its_edges_say(mesh: Mesh) -> None:
    graph = networkx.Graph()
    graph.add_edge("A", "B", cost=3)
    graph.add_edge("B", "C", cost=4, latency=0.1)
    await mesh.graph(graph, latency=0.001)
    assert await mesh.settled() > 0.1
    assert paths(mesh, "A") == {"B": 3, "C": 7}
    mesh.set_cost("A", "B", 10)
    await mesh.settled()
    assert paths(mesh, "A") == {"B": 10, "C": 14}
    assert paths(mesh, "C") == {"B": 4, "A": 14}, "both ways"


async def test_links_come_and_go_and_may_be_parallel(mesh: Mesh) -> None:
    for each in "AB":
        await mesh.router(each)
    assert paths(mesh, "A") == {}
    mesh.link("A", "B", cost=5)
    mesh.link("B", "A", cost=2)
    await mesh.settled()
    assert paths(mesh, "A") in ({"B": 5}, {"B": 2})
    mesh.unlink("A", "B")
    await mesh.settled()
    assert not [each for each in mesh["A"].statistics().routes if each.distance]
    with pytest.raises(CommandError, match="no link of A and B"):
        mesh.unlink("A", "B")


async def test_senders_of_a_router_need_no_connection(mesh: Mesh) -> None:
    a, b = await mesh.line("A", "B")
    async with b.receiver("q") as receiver, a.sender("q") as sender:
        sent = await sender.transfer(Message("tea", subject="x"))
        async with await receiver.receive() as message:
            assert message.subject == "x"
        await sent.outcome()


async def test_a_client_may_have_several_routers_to_try_and_comes_back_after_a_crash(mesh: Mesh) -> None:
    await mesh.line("A", "B")
    async with mesh.connect("A", "B", reconnect=True) as connection:
        assert connection.peer.container_id == "A"
        await mesh.crash("A")
        await trio.sleep(1.0)
        assert connection.peer.container_id == "B"


async def test_a_client_without_reconnecting_hears_that_its_router_was_killed(mesh: Mesh) -> None:
    await mesh.router("A")
    async with mesh.connect("A") as connection, connection.receiver("q") as receiver:
        await mesh.crash("A")
        with pytest.raises(ConnectionClosedError):
            await receiver.receive()


async def test_links_within_a_router_die_with_it(mesh: Mesh) -> None:
    a = await mesh.router("A")
    async with a.receiver("q") as receiver:
        await mesh.crash("A")
        with pytest.raises(ConnectionClosedError):
            await receiver.receive()
    await mesh.restart("A")
    async with a.receiver("q") as receiver, a.sender("q") as sender:
        await sender.transfer("tea", settled=True)
        assert (await receiver.receive()).message.body == "tea"


async def test_a_killed_router_says_nothing_more(mesh: Mesh) -> None:
    await mesh.line("A", "B")
    await mesh.settled()
    await mesh.crash("B")
    killed = len(mesh.log)
    await trio.sleep(5.0)
    assert "B" not in {each.router for each in mesh.log.events[killed:]}
    assert mesh.log.find("connection closed", "A")[0].text.count("condition=") == 0, "no word came"


async def test_what_cannot_be_is_said(mesh: Mesh) -> None:
    await mesh.line("A", "B")
    for wrong, says in (
        (mesh.restart, "still runs"),
        (mesh.router, "already"),
    ):
        with pytest.raises(CommandError, match=says):
            await wrong("A")
    await mesh.stop("A")
    with pytest.raises(CommandError, match="does not run"):
        await mesh.crash("A")
    with pytest.raises(CommandError, match="does not run"):
        mesh.freeze("A")
    with pytest.raises(KeyError):
        mesh.link("A", "X")
    with pytest.raises(ValueError, match="no network"):
        mesh.link("A", "B", latency=-1.0)


async def test_a_caller_that_waits_too_long_is_told_the_reason(mesh: Mesh) -> None:
    await mesh.line("A", "B")
    await mesh.settled()
    mesh.freeze("B")
    with pytest.raises(trio.TooSlowError, match="A: still an adjacency to B"):
        await mesh.settled(timeout=1.0)
    mesh.thaw("B")
    async with mesh["A"].receiver("q"):
        with pytest.raises(trio.TooSlowError, match="A: 1 addresses"):
            await mesh.emptied(timeout=1.0)


def test_a_mesh_needs_virtual_time() -> None:
    async def main() -> None:
        async with Mesh():
            pass

    with pytest.raises(CommandError, match="MockClock"):
        trio.run(main)
    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_the_error_of_the_body_comes_out_as_it_is() -> None:
    async def main() -> None:
        async with Mesh() as mesh:
            await mesh.line("A", "B")
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_fault_of_a_router_comes_out_of_the_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Mesh() as mesh:
            _, b = await mesh.line("A", "B")
            await mesh.settled()
            monkeypatch.setattr(b.router.mesh.topology, "received", lambda *_: 1 / 0)
            await trio.sleep(5.0)

    with pytest.raises(ExceptionGroup, match="faults of routers") as caught:
        trio.run(main, clock=MockClock(autojump_threshold=0))
    assert isinstance(caught.value.exceptions[0], ZeroDivisionError)
