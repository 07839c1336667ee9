"""Routers that send too much: their records are accepted later, delay no others, and arrive in the end."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from amqpmesh.topology.address_book import Advert
from amqpmesh.topology.linkstate import AddressesChanged, Dropped, Settings, Topology
from amqpmesh.topology.messages import Records, write_message
from amqpmesh.topology.records import MAX_NEIGHBOURS, AddressDelta, Entry, Kind, LinkState, Neighbour, encode
from amqpmesh.topology.signing import Unsigned
from tests.support.worlds.topologies import EPOCH, Line, Mesh
from tests.topology.test_hostile import running, signed

HASTY = Settings(link_rate=1000.0, link_burst=1000, address_rate=2**30, address_burst=2**30, link_time=0.001)
STRICT = Settings(link_rate=1.0, link_burst=2, address_rate=4096, address_burst=8192)


def hasty_and_strict() -> tuple[Mesh, Line]:
    """Return a mesh where A keeps no rate limit, and B, C and D accept very little of each origin."""
    mesh = Mesh(STRICT)
    mesh.start("B", "C", "D")
    mesh.settings = HASTY
    mesh.start("A")
    line = mesh.connect("A", "B")
    mesh.connect("B", "C")
    mesh.connect("C", "D")
    mesh.run(20)
    assert mesh.disagreement() == ""
    mesh.forget_changes()
    return mesh, line


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["cost", "address"]),
            st.integers(0, 3),
            st.integers(0, 9),
            st.sampled_from([0.0, 0.03, 0.4]),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_whatever_a_router_says_too_often_its_last_word_is_heard(changes: list[tuple[str, int, int, float]]) -> None:
    mesh, line = hasty_and_strict()
    for kind, which, value, wait in changes:
        if kind == "cost":
            mesh.set_cost(line, "A", 1 + value)
        else:
            mesh.advertise("A", f"address {which}", value)
        mesh.run(wait)
    mesh.run(90)
    assert mesh.disagreement() == ""
    assert {each.reason for name in "BCD" for each in mesh.told(name, Dropped)} <= {"paced"}


def test_what_is_said_too_often_is_told_with_its_origin_and_taken_when_it_is_resent() -> None:
    mesh, line = hasty_and_strict()
    for cost in range(2, 12):
        mesh.set_cost(line, "A", cost)
        mesh.run(0.1)
    dropped = mesh.told("B", Dropped)
    assert {(each.origin, each.neighbour, each.reason) for each in dropped} == {("A", "A", "paced")}
    assert mesh.routers["B"].dropped["paced"] == sum(each.count for each in dropped) > 0
    assert mesh.routers["C"].dropped["paced"] == 0
    assert mesh.routers["C"].graph.cost("A", "B") != 11
    mesh.run(20)
    assert mesh.routers["C"].graph.cost("A", "B") == 11


def test_an_unverified_record_takes_nothing_from_the_router_that_it_names() -> None:
    mesh, line = running()
    router = mesh.routers["A"]
    for number in range(100):
        forged = signed(Unsigned(), encode(LinkState("C", EPOCH, 1000 + number)))._replace(signature=b"none of C's")
        mesh.inject("A", line, write_message(Records(number, (forged,))))
    assert router.dropped["untrusted"] == 100
    assert router.dropped["paced"] == 0
    mesh.set_cost(mesh.lines[1], "C", 7)
    mesh.run(0.5)
    assert router.graph.cost("C", "B") == 7


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**16), st.sampled_from([0.002, 0.005, 0.02]))
def test_hundreds_of_addresses_that_come_and_go_and_links_that_change_all_the_time_are_not_too_much(
    seed: int, wait: float
) -> None:
    mesh, line = running()
    for step in range(400):
        mesh.advertise("A", f"address {(seed + 7 * step) % 50}", step % 2)
        if step % 5 == 0:
            mesh.set_cost(line, "A", 1 + step % 9)
        if step % 150 == 149:  # it restarts with all its addresses
            adverts = mesh.adverts["A"]
            mesh.crash("A")
            mesh.start("A", epoch=EPOCH + step)
            line = mesh.connect("A", "B")
            for name, advert in adverts.items():
                mesh.advertise("A", name.name, advert.consumers)
        mesh.run(wait)
    mesh.run(30)
    assert mesh.disagreement() == ""
    assert all(router.dropped["paced"] == 0 for router in mesh.routers.values())


def test_a_link_state_of_more_neighbours_than_anybody_has_is_not_read() -> None:
    mesh, line = running()
    many = tuple(Neighbour(f"X{number}", 1, 1) for number in range(MAX_NEIGHBOURS + 1))
    state = LinkState("C", EPOCH, 1000, many)
    mesh.inject("A", line, write_message(Records(1, (signed(Unsigned(), encode(state)),))))
    assert [dropped.reason for dropped in mesh.told("A", Dropped)] == ["malformed"]
    fewer = replace(state, neighbours=many[1:])
    mesh.inject("A", line, write_message(Records(2, (signed(Unsigned(), encode(fewer)),))))
    assert mesh.routers["A"].database.origins["C"].pair.sequence == 1000
    assert mesh.routers["A"].graph.neighbours("C") == {}  # B's record counts, and no other
    assert mesh.routers["A"].distance("X7") is None


# ------------------------------------------------------------------------------------------------------------- in parts


def sizes(mesh: Mesh, name: str) -> list[int]:
    """Return the number of changed addresses of each step."""
    return [len(change.addresses) for change in mesh.told(name, AddressesChanged)]


def test_thousands_of_addresses_that_come_and_go_are_followed_in_parts() -> None:
    mesh, _ = running(Mesh(Settings(part=100)))
    for number in range(5000):
        mesh.call("C", lambda router, now, number=number: router.advertise("", f"{number}", Advert("balanced", 1), now))
    mesh.run(5)
    router = mesh.routers["A"]
    assert len(router.book) == 5003
    assert max(sizes(mesh, "A")) <= 100
    mesh.forget_changes()
    mesh.cut(mesh.lines[1])
    mesh.run(0.02)  # the graph is updated at once
    assert router.distance("C") is None
    assert 100 < len(router.book) < 5000
    mesh.advertise("B", "while it goes on", 1)
    mesh.run(0.02)
    assert list(router.lookup("", "while it goes on")) == ["B"]
    assert len(router.book) > 1000
    mesh.run(5)
    assert len(router.book) == 3
    assert max(sizes(mesh, "A")) <= 100
    assert sum(sizes(mesh, "A")) == 5002


def test_a_full_state_that_is_replaced_while_it_is_followed_comes_to_the_last_one() -> None:
    router = Topology("A", Settings(part=10), Unsigned(), Unsigned(), EPOCH, 0.0)
    router.book.set_reachable({"A", "B"})
    first = {Entry("", f"{number}", "balanced", 1, 0).key: Advert("balanced", 1) for number in range(50)}
    last = {Entry("", f"{number}", "balanced", 1, 0).key: Advert("closest", 2) for number in range(40, 60)}
    router.book.replace("B", first)
    router.handle_timer(0.0)
    router.book.replace("B", last)
    now = 0.0
    while (at := router.next_timer()) is not None and at < 1.0:
        now = max(now, at)
        router.handle_timer(now)
    assert {key: dict(router.lookup(*key)) for key in router.book.addresses()} == {
        tuple(key): {"B": advert} for key, advert in last.items()
    }


def test_a_delta_counts_as_more_than_its_few_octets() -> None:
    mesh, line = running(Mesh(Settings(address_burst=40 * 4096, address_rate=4096)))
    epoch = mesh.routers["A"].database.origins["C"].pair.epoch
    for number in range(2, 100):
        body = encode(AddressDelta("C", epoch, number, (Entry("", "short", "balanced", number, 0),)))
        mesh.inject("A", line, write_message(Records(number, (signed(Unsigned(), body, Kind.ADDRESS_DELTA),))))
    assert mesh.routers["A"].database.origins["C"].log.sequence in {40, 41}
    assert mesh.routers["A"].dropped["paced"] > 50
