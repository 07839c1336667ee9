"""Two routers that have connected to each other: the connections of one side stay."""

import pytest

from tests.support.worlds.meshes import Wire, World


def stands_by(wire: Wire) -> bool:
    """Tell whether the opener of a connection has closed it in favour of the other side's."""
    return wire.ends[0][1].stands_by


@pytest.mark.parametrize(("first", "second"), ["AB", "BA"])
def test_of_two_new_connections_the_one_that_the_lower_id_opened_stays(first: str, second: str) -> None:
    world = World("AB", [])
    wires = {first: world.join(first, second), second: world.join(second, first)}
    world.advance(1.0)
    assert stands_by(wires["B"])
    assert not stands_by(wires["A"])
    assert [len(world[router].mesh.neighbours) for router in "AB"] == [1, 1]
    assert world["A"].mesh.topology.distance("B") == 1


@pytest.mark.parametrize(("first", "second"), ["AB", "BA"])
def test_an_established_connection_stays_whichever_router_opened_it(first: str, second: str) -> None:
    world = World("AB", [(first, second)], settle=10.0)
    old = world.wires[0]
    new = world.join(second, first)
    world.advance(1.0)
    assert stands_by(new)
    assert not stands_by(old)
    assert world.wires == [old]


def test_connections_that_one_side_has_opened_are_parallel_and_all_stay() -> None:
    world = World("AB", [("A", "B"), ("A", "B")], settle=10.0)
    assert [len(world[router].mesh.neighbours) for router in "AB"] == [2, 2]
