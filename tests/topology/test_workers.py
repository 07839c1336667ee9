"""Workers of a router, as other routers see them."""

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.topology.graph import Graph
from amqpmesh.topology.workers import Members, covers, name_of, worker_of

NAMES = st.sampled_from(["A", "B", "A.1", "A.1.1", "a.example", "A.", "A.x"])
NUMBERS = st.integers(min_value=1, max_value=999_999)


@given(NAMES, NUMBERS)
def test_a_worker_is_its_routers(name: str, number: int) -> None:
    worker = worker_of(name, number)
    assert name_of(worker) == name
    assert covers(name, worker)


def test_what_is_no_workers_id_is_nobodys() -> None:
    for router in ("A", "A.0", "A.01", "A.x", ".1", "A.1 ", "A.1234567"):
        assert name_of(router) is None


def graph(*routers: str) -> Graph:
    found = Graph()
    for router in routers:
        found.update(router, {each: 1 for each in routers if each != router})
    return found


def test_a_name_stands_for_the_router_of_that_id_else_for_its_workers() -> None:
    members = Members(graph("A.2", "A.10", "A.1", "B", "B.1", "A.1.1"))
    assert members.of("A") == ("A.1", "A.10", "A.2")
    assert members.of("A.1") == ("A.1",)
    assert members.of("B") == ("B",)
    assert members.of("C") == ()
    assert members.of("") == ()


def test_members_follow_routers_that_come_and_go() -> None:
    routers = graph("A.1", "B")
    members = Members(routers)
    assert members.of("A") == ("A.1",)
    routers.update("A.2", {"A.1": 1})
    routers.update("A.1", {"A.2": 1})
    assert members.of("A") == ("A.1", "A.2")
    routers.remove("A.1")
    assert members.of("A") == ("A.2",)
    routers.update("A", {})
    assert members.of("A") == ("A",)
