"""Workers of a router, as other routers see them."""

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.topology.graph import Graph
from amqpmesh.topology.workers import Members, covers, name_of, stand_in_of, upgraded_name, worker_of

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


@given(NAMES, NUMBERS)
def test_a_stand_in_and_its_workers_are_its_routers(name: str, number: int) -> None:
    stand_in = stand_in_of(name)
    assert name_of(stand_in) == name
    for router in (stand_in, worker_of(stand_in, number)):
        assert covers(name, router)
        assert upgraded_name(router) == upgraded_name(name)


def test_what_is_no_stand_ins_id_is_nobodys() -> None:
    for router in ("A.older", "A.old.0", "A.old.old", "A.1.old", "Aold", "B.old"):
        assert not covers("A", router)
    assert upgraded_name("A.old.3") == upgraded_name("A.2") == upgraded_name("A") == "A"


def test_a_stand_in_has_the_name_once_the_router_is_gone() -> None:
    routers = graph("A", "A.old", "B")
    members = Members(routers)
    assert members.of("A") == ("A",)
    routers.remove("A")
    assert members.of("A") == ("A.old",)


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
