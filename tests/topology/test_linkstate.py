"""Routers that find each other, exchange their records, and agree."""

from dataclasses import replace
from itertools import pairwise

import pytest

from amqpmesh.topology.database import RecordStatus
from amqpmesh.topology.linkstate import (
    AddressesChanged,
    Advert,
    Damped,
    Dropped,
    GraphChanged,
    IdentityConflict,
    NeighbourDown,
    NeighbourUp,
    Refused,
    Settings,
    Topology,
)
from amqpmesh.topology.messages import Acknowledgement, AgedRecord, Records, read_message, write_message
from amqpmesh.topology.records import (
    SURCHARGE,
    AddressDelta,
    Entry,
    Kind,
    LinkState,
    Neighbour,
    OpenedRecord,
    SignedRecord,
    encode,
    open_record,
)
from amqpmesh.topology.signing import Unsigned
from tests.support.worlds.topologies import EPOCH, Line, Mesh


def line_of(*names: str, mesh: Mesh | None = None) -> tuple[Mesh, list[Line]]:
    """Return routers in a line."""
    mesh = mesh or Mesh()
    mesh.start(*names)
    return mesh, [mesh.connect(a, b) for a, b in pairwise(names)]


def ring(count: int) -> tuple[Mesh, list[Line]]:
    names = [f"R{number}" for number in range(count)]
    mesh, lines = line_of(*names)
    return mesh, [*lines, mesh.connect(names[-1], names[0])]


# ---------------------------------------------------------------------------------------------------------- adjacencies


def test_two_routers_find_each_other() -> None:
    mesh, (line,) = line_of("A", "B")
    mesh.run(0.1)
    assert mesh.told("A", NeighbourUp) == [NeighbourUp(line, "B")]
    assert mesh.told("B", NeighbourUp) == [NeighbourUp(line, "A")]
    assert mesh.told("A", GraphChanged) == [GraphChanged(frozenset({"B"}))]
    assert mesh.disagreement() == ""
    assert mesh.routers["A"].next_hop("B", "flow") is line


@pytest.mark.parametrize(
    ("of_a", "of_b", "there", "back"),
    [(None, None, 1, 1), (7, None, 7, 7), (None, 7, 7, 7), (7, 3, 7, 3), (1, 7, 1, 7)],
)
def test_a_cost_that_one_end_has_holds_for_both(of_a: int | None, of_b: int | None, there: int, back: int) -> None:
    mesh = Mesh()
    mesh.start("A", "B")
    mesh.connect("A", "B", cost=of_a, back=of_b)
    mesh.run(3.0)
    for router in ("A", "B"):
        graph = mesh.routers[router].graph
        assert (graph.cost("A", "B"), graph.cost("B", "A")) == (there, back)


def test_a_changed_cost_is_of_its_direction_alone() -> None:
    mesh = Mesh()
    mesh.start("A", "B")
    line = mesh.connect("A", "B", cost=7, back=None)
    mesh.run(3.0)
    mesh.set_cost(line, "A", 2)
    mesh.run(3.0)
    graph = mesh.routers["B"].graph
    assert (graph.cost("A", "B"), graph.cost("B", "A")) == (2, 7)


@pytest.mark.parametrize("heard", [False, True])
def test_a_cost_that_is_set_to_what_it_is_holds_whatever_the_neighbour_says(heard: bool) -> None:
    mesh = Mesh()
    mesh.start("A", "B")
    line = mesh.connect("A", "B", cost=None, back=7)
    if heard:
        mesh.run(3.0)
    mesh.set_cost(line, "A", 1)
    mesh.run(3.0)
    graph = mesh.routers["B"].graph
    assert (graph.cost("A", "B"), graph.cost("B", "A")) == (1, 7)


def test_a_router_that_is_not_heard_is_no_neighbour() -> None:
    mesh = Mesh(intercept=lambda line, sender, data: data if sender == "A" else None)
    mesh.start("A", "B")
    line = mesh.connect("A", "B")
    mesh.run(10)
    assert mesh.told("A", NeighbourUp) == mesh.told("B", NeighbourUp) == []
    (link,) = mesh.routers["B"].neighbours()
    assert (link.adjacency, link.router, link.up, link.reason) == (line, "A", False, "HELLOs do not go both ways yet")


def test_a_neighbour_that_falls_silent_is_gone_within_its_hold_time() -> None:
    mesh, (line,) = line_of("A", "B")
    mesh.run(5)
    line.is_silent = True
    silent_at = mesh.now
    mesh.run_while(lambda: not mesh.told("A", NeighbourDown), 10)
    assert mesh.now - silent_at <= mesh.settings.hold
    assert mesh.routers["A"].distance("B") is None
    line.is_silent = False
    mesh.run(3)
    assert mesh.disagreement() == ""
    assert mesh.routers["A"].distance("B") == 1


def test_a_neighbour_whose_hellos_wait_behind_other_things_lives_as_long_as_those_come() -> None:
    mesh, (line,) = line_of("A", "B")
    mesh.run(5)
    line.is_silent = True
    for _ in range(10):
        mesh.run(1)
        for router in mesh.routers.values():
            router.note_traffic(line, mesh.now)
    assert mesh.told("A", NeighbourDown) == []
    heard_at = mesh.now
    mesh.run_while(lambda: not mesh.told("A", NeighbourDown), 10)
    assert mesh.now - heard_at == pytest.approx(mesh.settings.hold)


def test_a_neighbour_that_does_not_hear_us_any_more_says_so() -> None:
    mesh, _ = line_of("A", "B")
    mesh.run(5)
    mesh.intercept = lambda line, sender, data: data if sender == "B" else None
    mesh.run(mesh.settings.hold + 0.1)
    (lost,) = mesh.told("B", NeighbourDown)
    assert "hold time" in lost.reason
    mesh.run(mesh.settings.hello)
    (lost,) = mesh.told("A", NeighbourDown)  # though it hears B all the time
    assert "does not hear" in lost.reason
    assert mesh.routers["A"].distance("B") is None


def test_a_lost_connection_leads_the_other_way_at_once() -> None:
    mesh, lines = ring(3)
    mesh.advertise("R1", "orders", 1)
    mesh.run(5)
    mesh.cut(lines[0])
    assert mesh.routers["R0"].next_hop("R1", "flow") is lines[2]
    mesh.run(0.01)
    assert mesh.disagreement() == ""


def test_one_side_alone_makes_no_edge() -> None:
    mesh, lines = ring(4)
    mesh.run(5)
    mesh.cut(lines[0], seen_by=("R0",))  # R1 has not noticed yet, and still advertises R0
    mesh.run(0.5)
    assert [mesh.routers[name].distance("R1") for name in ("R0", "R3", "R2")] == [3, 2, 1]


def test_parallel_connections_are_one_edge_and_the_cheapest_is_taken() -> None:
    mesh, (dear,) = line_of("A", "B")
    mesh.set_cost(dear, "A", 7)
    mesh.set_cost(dear, "B", 7)
    cheap, second = mesh.connect("A", "B", 2), mesh.connect("A", "B", 2)
    mesh.run(1)
    assert mesh.disagreement() == ""
    router = mesh.routers["A"]
    assert router.distance("B") == 2
    taken = {router.next_hop("B", f"flow {number}") for number in range(100)}
    assert taken == {cheap, second}
    mesh.cut(cheap)
    assert {router.next_hop("B", f"flow {number}") for number in range(100)} == {second}
    mesh.cut(second)
    assert router.next_hop("B", "flow") is dear
    mesh.run(1)
    assert mesh.disagreement() == ""
    assert mesh.told("A", Dropped) == mesh.told("B", Dropped) == []


def test_records_are_carried_on_when_the_connection_they_took_is_lost() -> None:
    mesh, (first,) = line_of("A", "B")
    mesh.connect("A", "B")
    mesh.run(1)
    first.is_silent = True  # A's next message is lost
    mesh.advertise("A", "orders", 1)
    mesh.run(0.1)
    assert not mesh.routers["B"].lookup("", "orders")
    mesh.cut(first)
    mesh.run(0.1)
    assert mesh.disagreement() == ""


def test_a_flow_keeps_the_way_that_it_has_when_another_appears() -> None:
    mesh = Mesh()
    mesh.start("A", "B", "C", "Z")
    over_b = mesh.connect("A", "B")
    for a, b in (("A", "C"), ("B", "Z"), ("C", "Z")):
        mesh.connect(a, b)
    mesh.run(1)
    router = mesh.routers["A"]
    flows = [f"flow {number}" for number in range(50)]
    assert len({router.next_hop("Z", flow) for flow in flows}) == 2
    assert {router.next_hop("Z", flow, over_b) for flow in flows} == {over_b}
    mesh.cut(over_b)
    assert over_b not in {router.next_hop("Z", flow, over_b) for flow in flows}


def test_costs_change_while_running_each_direction_by_itself() -> None:
    mesh, lines = ring(4)
    mesh.run(1)
    mesh.set_cost(lines[0], "R0", 10)
    mesh.run(1)
    assert mesh.disagreement() == ""
    assert (mesh.routers["R0"].distance("R1"), mesh.routers["R1"].distance("R0")) == (3, 1)
    with pytest.raises(ValueError, match="at least 1"):
        mesh.set_cost(lines[0], "R0", 0)


def test_a_neighbour_that_flaps_is_not_advertised_until_it_has_held() -> None:
    mesh, lines = ring(3)
    mesh.run(5)
    for _ in range(4):
        mesh.cut(lines[0])
        mesh.run(0.2)
        lines[0] = mesh.connect("R0", "R1")
        mesh.run(0.3)
    mesh.run(5)
    assert mesh.told("R0", Damped)
    assert mesh.routers["R2"].graph.neighbours("R0") == {"R2": 1}
    link = next(link for link in mesh.routers["R0"].neighbours() if link.adjacency is lines[0])
    assert (link.up, link.advertised, link.reason) == (True, False, "lost too often recently")
    mesh.run(30)
    assert mesh.disagreement() == ""


def test_a_single_loss_is_not_damped() -> None:
    mesh, (line,) = line_of("A", "B")
    mesh.run(5)
    mesh.cut(line)
    mesh.connect("A", "B")
    mesh.run(0.5)
    assert mesh.disagreement() == ""
    assert mesh.told("A", Damped) == []


# ------------------------------------------------------------------------------------------------------------- identity


def test_a_router_with_another_id_than_expected_is_refused() -> None:
    mesh = Mesh()
    mesh.start("A", "B")
    line = Line(("A", "B"), {"A": 1, "B": 1}, 0.001)
    mesh.lines.append(line)
    mesh.call("A", lambda router, now: router.connected(line, 1, now, expected="C"))
    mesh.call("B", lambda router, now: router.connected(line, 1, now, expected="A"))
    mesh.run(1)
    (refused,) = mesh.told("A", Refused)
    assert (refused.adjacency, refused.router) == (line, "B")
    assert "C" in refused.reason
    assert mesh.told("A", NeighbourUp) == mesh.told("B", NeighbourUp) == []


def test_a_router_does_not_become_its_own_neighbour() -> None:
    mesh = Mesh()
    mesh.start("A")
    router = mesh.routers["A"]
    (hello,) = [data for _, data in router.connected("there", 1, 0.0).messages]
    router.connected("back", 1, 0.0)
    (refused,) = router.received("back", hello, 0.0).changes
    assert isinstance(refused, Refused)
    assert refused.reason == "it is this router itself"
    assert router.received("back", hello, 0.1) == ([], [])


def test_a_second_live_router_of_the_same_id_is_refused_and_both_are_named() -> None:
    mesh, (first,) = line_of("A", "B")
    mesh.run(1)
    stranger = Topology("A", mesh.settings, Unsigned(), Unsigned(), EPOCH + 5, mesh.now)
    mesh.routers["another A"] = stranger
    mesh.changes["another A"] = []
    mesh.adverts["another A"] = {}
    second = mesh.connect("another A", "B")
    mesh.run(5)
    (refused,) = mesh.told("B", Refused)
    assert (refused.adjacency, refused.router, refused.other) == (second, "A", first)
    assert mesh.told("another A", NeighbourUp) == []
    assert mesh.routers["B"].distance("A") == 1
    assert mesh.told("B", NeighbourDown) == []


def test_a_router_that_starts_again_is_taken_once_its_last_life_is_silent() -> None:
    mesh, (first,) = line_of("A", "B")
    mesh.run(1)
    mesh.cut(first, seen_by=("A",))  # B still has the connection of the last run
    mesh.start("A", epoch=EPOCH + 1)
    mesh.connect("A", "B")
    mesh.run(mesh.settings.hold + 1)
    assert mesh.told("B", Refused) == []
    assert mesh.routers["B"].distance("A") == 1
    mesh.cut(first)
    assert mesh.disagreement() == ""


@pytest.mark.parametrize("step", [-3_600_000, -1, 0, 1, 3_600_000])
def test_a_router_that_starts_again_is_believed_whatever_its_clock_says(step: int) -> None:
    mesh, _ = ring(4)
    mesh.advertise("R0", "before", 1)
    mesh.run(5)
    mesh.crash("R0")
    mesh.run(0.05)
    mesh.start("R0", epoch=EPOCH + step)
    mesh.connect("R0", "R1")
    mesh.connect("R0", "R3")
    mesh.advertise("R0", "after", 1)
    mesh.run(1)
    assert mesh.disagreement() == ""
    assert [name for _, name in mesh.routers["R2"].book.addresses()] == ["after"]
    assert mesh.told("R0", IdentityConflict) == []


def test_two_live_routers_of_one_id_far_apart_are_told_and_do_not_storm() -> None:
    mesh, _ = line_of("A", "B", "C", "D")
    mesh.run(1)
    mesh.routers["another A"] = Topology("A", mesh.settings, Unsigned(), Unsigned(), EPOCH + 5, mesh.now)
    mesh.changes["another A"] = []
    mesh.adverts["another A"] = {}
    mesh.connect("another A", "D")
    mesh.run(5)
    assert mesh.told("A", IdentityConflict) + mesh.told("another A", IdentityConflict)
    mesh.forget_changes()
    mesh.run(120)
    # Besides HELLOs, each new epoch is flooded over three lines; by now there is one a minute.
    hellos = 2 * 4 * 120 / 0.75
    assert mesh.messages.total() < hellos + 400


# ------------------------------------------------------------------------------------------------------------ addresses


def test_an_address_is_known_end_to_end_of_ten_routers_within_half_a_second() -> None:
    names = [f"R{number}" for number in range(10)]
    mesh, _ = line_of(*names)
    mesh.run(5)
    mesh.advertise("R9", "orders", 1)
    advertised_at = mesh.now
    mesh.run_while(lambda: not mesh.routers["R0"].lookup("", "orders"), 5)
    assert mesh.now - advertised_at < 0.1
    assert AddressesChanged(frozenset({("", "orders")})) in mesh.told("R0", AddressesChanged)


def test_three_routers_that_start_together_know_all_within_a_second() -> None:
    mesh, _ = ring(3)
    mesh.advertise("R0", "orders", 2)
    mesh.run(0.5)
    assert mesh.disagreement() == ""


def test_changes_of_addresses_go_together_and_the_first_does_not_wait() -> None:
    mesh, _ = line_of("A", "B")
    mesh.run(5)
    mesh.forget_changes()
    for number in range(500):
        mesh.advertise("A", f"address {number}", 1)
    mesh.run(0.01)
    assert list(mesh.routers["B"].lookup("", "address 0")) == ["A"]
    mesh.run(0.2)
    assert mesh.disagreement() == ""
    assert mesh.messages["A"] <= 5


def test_addresses_come_and_go_and_are_told_anew_when_that_is_shorter() -> None:
    settings = Settings(compact=1000)
    mesh, _ = line_of("A", "B", "C", mesh=Mesh(settings))
    mesh.run(1)
    for number in range(400):
        mesh.advertise("A", f"address {number % 10}", number % 7)
        mesh.run(0.03)
    mesh.run(1)
    assert mesh.disagreement() == ""
    log = mesh.routers["C"].database.origins["A"].log
    assert log.sequence > 300
    assert log.octets < 5000


def test_a_router_is_no_way_through_before_it_knows_the_mesh() -> None:
    mesh, _ = ring(12)
    mesh.run(2)
    mesh.start("new")
    slow = mesh.connect("R0", "new", delay=0.2)
    fast = mesh.connect("R1", "new", delay=0.001)
    while len(mesh.routers["new"].routers()) < 13:
        assert not any(link.advertised for link in mesh.routers["new"].neighbours())
        assert all("new" not in router.graph.neighbours("R1") for router in mesh.routers.values())
        mesh.run(0.001)
    mesh.run(1)
    assert mesh.disagreement() == ""
    assert {link.adjacency for link in mesh.routers["new"].neighbours() if link.advertised} == {slow, fast}


def test_a_router_that_comes_new_is_sent_the_database_by_one_neighbour() -> None:
    mesh = Mesh()
    neighbours = [f"R{number}" for number in range(8)]
    mesh.start(*neighbours)
    for a, b in pairwise(neighbours):
        mesh.connect(a, b)
    for number in range(3000):
        mesh.advertise("R0", f"address {number}", 1)
    mesh.run(3)
    mesh.forget_changes()
    mesh.start("new")
    for name in neighbours:
        mesh.connect(name, "new")
    mesh.run(3)
    assert mesh.disagreement() == ""
    database = sum(len(stored.signed.body) for stored in mesh.routers["new"].database.origins["R0"].log)
    assert database > 50_000
    assert mesh.octets.total() < 2 * database + 20_000


def test_a_neighbour_that_never_sends_its_database_does_not_hold_up_the_others() -> None:
    mesh = Mesh()
    mesh.start("A", "B", "C")
    mesh.intercept = lambda line, sender, data: data if sender != "B" or b"\xa1t\x01" in data else None  # HELLO only
    mesh.connect("A", "B")
    mesh.connect("A", "C", delay=0.01)
    mesh.run(0.5)
    assert mesh.routers["A"].distance("C") == 1
    mesh.run(mesh.settings.load_time)
    assert [link.advertised for link in mesh.routers["A"].neighbours()] == [True, True]


def test_addresses_that_come_before_the_link_state_of_their_epoch_come_again() -> None:
    mesh, (line,) = line_of("A", "B")
    mesh.run(5)
    early = encode(AddressDelta("Z", 7, 1, (Entry("", "early", "closest", 1, 0),)))
    links = encode(LinkState("Z", 7, 1, (Neighbour("A", 1, 1),), addresses=1))
    taken = AgedRecord(0, Kind.LINK_STATE, b"", links, b"")
    for number, carried in ((1, AgedRecord(0, Kind.ADDRESS_DELTA, b"", early, b"")), (2, taken)):
        mesh.call(
            "A", lambda router, now, n=number, c=carried: router.received(line, write_message(Records(n, (c,))), now)
        )
    acknowledged: list[int] = []

    def listen(line: Line, sender: str, data: bytes) -> bytes:
        message = read_message(data)
        if sender == "A" and isinstance(message, Acknowledgement | Records):
            acknowledged.extend(message.acknowledged)
        return data

    mesh.intercept = listen
    mesh.run(0.1)
    assert acknowledged == [2]
    assert mesh.told("A", Dropped) == []


def test_a_delta_that_is_missing_is_asked_for() -> None:
    mesh, _ = line_of("A", "B", "C")
    mesh.advertise("C", "first", 1)
    mesh.run(5)
    lost: list[bytes] = []

    def lose_the_first(line: Line, sender: str, data: bytes) -> bytes | None:
        if sender == "B" and b"second" in data and not lost:
            lost.append(data)
            return None
        return data

    mesh.intercept = lose_the_first
    mesh.advertise("C", "second", 1)
    mesh.run(0.1)
    mesh.advertise("C", "third", 1)
    mesh.run(0.1)
    router = mesh.routers["A"]
    assert lost
    assert [name for _, name in router.book.addresses()] == ["first"]  # the known state is a former one
    mesh.run(mesh.settings.gap_time)  # it has not been sent again by then
    assert router.sent["Request"] == 1
    assert mesh.disagreement() == ""


def test_what_nobody_has_is_asked_for_more_and_more_seldom() -> None:
    mesh, (line,) = line_of("A", "B")
    mesh.run(5)
    epoch = mesh.routers["B"].epoch
    lie = encode(LinkState("B", epoch, 50, (Neighbour("A", 1, 1),), addresses=7))
    mesh.inject("A", line, write_message(Records(1, (AgedRecord(0, Kind.LINK_STATE, b"", lie, b""),))))
    mesh.run(60)
    assert 10 < mesh.routers["A"].sent["Request"] < 25


def test_a_router_with_very_many_addresses_is_known_whole() -> None:
    mesh, _ = line_of("A", "B", "C")
    for number in range(5_000):
        mesh.advertise("A", f"address/{number}/{'x' * (number % 50)}", 1)
    mesh.run(2)
    assert mesh.disagreement() == ""
    mesh.start("D")
    mesh.connect("C", "D")
    mesh.run(2)
    assert mesh.disagreement() == ""


def test_an_address_that_cannot_be_told_is_reported_and_disturbs_nothing() -> None:
    mesh, _ = line_of("A", "B")
    mesh.run(1)
    for name in ("x" * 2049, "\ud800"):
        mesh.call("A", lambda router, now, name=name: router.advertise("", name, Advert("closest", 1, 0), now))
    mesh.advertise("A", "x" * 2048, 1)
    mesh.run(1)
    assert mesh.disagreement() == ""
    assert [change.reason for change in mesh.told("A", Dropped)] == ["oversized", "oversized"]


def test_a_router_that_drains_has_no_addresses_and_is_no_way_through() -> None:
    mesh, lines = ring(4)
    mesh.set_cost(lines[2], "R2", 10)
    mesh.set_cost(lines[2], "R3", 10)
    mesh.advertise("R1", "orders", 1)
    mesh.run(1)
    assert mesh.routers["R0"].distance("R2") == 2
    mesh.adverts["R1"].clear()
    mesh.call("R1", lambda router, now: router.drain(now))
    mesh.call("R1", lambda router, now: router.advertise("", "late", Advert("closest", 1, 0), now))
    mesh.run(1)
    for name in mesh.routers:
        assert mesh.routers[name].book.addresses() == []
    assert mesh.routers["R0"].distance("R2") == 11
    assert mesh.routers["R0"].distance("R1") == 1


def test_paths_lead_around_an_overloaded_router_whose_addresses_stay() -> None:
    mesh, lines = ring(4)
    mesh.set_cost(lines[2], "R2", 1000)
    mesh.set_cost(lines[2], "R3", 1000)
    mesh.advertise("R1", "orders", 1)
    mesh.run(1)
    assert mesh.routers["R0"].next_hop("R2", "flow") is lines[0]
    mesh.call("R1", lambda router, now: router.set_overload(now, overload=True))
    mesh.run(1)
    assert mesh.disagreement() == ""
    assert mesh.routers["R0"].next_hop("R2", "flow") is lines[3]
    assert mesh.routers["R0"].distance("R2") == 1001
    assert mesh.routers["R0"].distance("R1") == 1
    assert list(mesh.routers["R0"].lookup("", "orders")) == ["R1"]
    assert all(router.graph.overloaded == {"R1"} for router in mesh.routers.values())
    # The surcharge of its own cannot be avoided, so its distances are as before.
    assert [mesh.routers["R1"].distance(f"R{number}") for number in range(4)] == [1, 0, 1, 2]
    mesh.call("R1", lambda router, now: router.set_overload(now, overload=False))
    mesh.run(1)
    assert mesh.disagreement() == ""
    assert mesh.routers["R0"].next_hop("R2", "flow") is lines[0]
    assert all(router.graph.overloaded == set() for router in mesh.routers.values())


def test_a_router_of_before_finds_the_same_paths_around_an_overloaded_one() -> None:
    def without_overload(signed: SignedRecord) -> OpenedRecord:
        opened = open_record(signed)
        if not isinstance(opened.record, LinkState):
            return opened
        return opened._replace(record=replace(opened.record, overload=False))

    mesh = Mesh()
    mesh.start("A", "former", reader=without_overload)
    mesh.start("B", "C", "D")
    for one, other in (("A", "former"), ("former", "B"), ("B", "C"), ("C", "D"), ("D", "former"), ("A", "C")):
        mesh.connect(one, other)
    mesh.run(1)
    mesh.call("C", lambda router, now: router.set_overload(now, overload=True))
    mesh.run(1)
    former, new = mesh.routers["former"], mesh.routers["D"]
    assert (former.graph.overloaded, new.graph.overloaded) == (set(), {"C"})
    for one in mesh.routers:
        for other in mesh.routers.keys() - {one, "C"}:
            assert "C" not in mesh.routers[one].paths.path(other)[1:-1]
            # As the other routers see it, too: no message goes in a circle.
            assert len({tuple(router.paths.path(other, one)) for router in mesh.routers.values()}) == 1


def test_an_overloaded_router_is_the_way_where_there_is_no_other() -> None:
    mesh, lines = line_of("A", "B", "C")
    mesh.run(1)
    mesh.call("B", lambda router, now: router.set_overload(now, overload=True))
    mesh.run(1)
    assert mesh.disagreement() == ""
    assert mesh.routers["A"].next_hop("C", "flow") is lines[0]
    assert mesh.routers["A"].length("C") == 2


def test_the_links_of_an_overloaded_router_that_come_and_go_have_the_surcharge() -> None:
    mesh, _ = ring(3)
    mesh.run(1)
    mesh.call("R1", lambda router, now: router.set_overload(now, overload=True))
    mesh.run(1)
    mesh.start("R3")
    line = mesh.connect("R1", "R3")
    mesh.run(1)
    assert mesh.disagreement() == ""
    assert mesh.routers["R0"].graph.neighbours("R1") == dict.fromkeys(["R0", "R2", "R3"], 1 + SURCHARGE)
    assert mesh.routers["R3"].graph.overloaded == {"R1"}
    mesh.cut(line)
    mesh.run(1)
    assert mesh.routers["R0"].graph.neighbours("R1") == dict.fromkeys(["R0", "R2"], 1 + SURCHARGE)


# --------------------------------------------------------------------------------------------------------------- ageing


def test_a_router_that_does_not_renew_its_records_is_forgotten_with_its_addresses() -> None:
    settings = Settings(max_age=30.0)
    mesh, (_, line) = line_of("A", "B", "C", mesh=Mesh(settings))
    mesh.advertise("C", "orders", 1)
    mesh.run(100)
    assert mesh.disagreement() == ""
    mesh.cut(line)
    mesh.run(1)
    assert mesh.routers["A"].routers() == ["A", "B", "C"]
    assert not mesh.routers["A"].lookup("", "orders")
    mesh.run(30)
    for name in ("A", "B"):
        assert mesh.routers[name].routers() == ["A", "B"]
        assert list(mesh.routers[name].database.dead) == ["C"]
    mesh.run(61)
    assert mesh.routers["A"].database.dead == {}


def test_parts_of_a_mesh_that_were_apart_for_longer_than_records_live_agree_again() -> None:
    settings = Settings(max_age=30.0)
    mesh, lines = line_of("A", "B", "C", "D", mesh=Mesh(settings))
    for name in mesh.routers:
        mesh.advertise(name, f"at {name}", 1)
    mesh.run(5)
    lines[1].is_silent = True
    mesh.advertise("A", "at A", 0)
    mesh.run(50)
    assert mesh.routers["D"].routers() == ["C", "D"]
    lines[1].is_silent = False
    mesh.run(3)
    assert mesh.disagreement() == ""
    assert len(mesh.routers["A"].book.addresses()) == 3


def test_ids_may_be_as_long_as_they_may_and_summaries_take_as_many_messages_as_they_need() -> None:
    mesh = Mesh()
    names = [f"{number:0255}" for number in range(700)]
    mesh.start("A", *names)
    router = mesh.routers["A"]
    for name in names:
        stored = mesh.routers.pop(name).database.origins[name].link
        assert router.database.accept(stored.signed, 0.0, 0.0).status is RecordStatus.NEW
    mesh.start("B")
    mesh.connect("A", "B")
    mesh.run(2)
    assert len(mesh.routers["B"].routers()) == 702
    assert mesh.routers["A"].sent["Summary"] > 1
    assert mesh.told("B", Dropped) == []
    assert mesh.disagreement() == ""


@pytest.mark.parametrize("name", ["hello", "hold", "max_age", "retransmit_time", "load_time", "gap_time"])
def test_times_that_would_never_rest_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Settings(**{name: 0.0})


def test_ages_add_up_over_hops() -> None:
    settings = Settings(max_age=30.0)
    mesh = Mesh(settings)
    names = [f"R{number}" for number in range(6)]
    mesh.start(*names)
    first = mesh.connect("R0", "R1")
    mesh.run(1)
    mesh.cut(first)
    # Each router gets R0's records four seconds later than the one before it, and from that one alone.
    for a, b in pairwise(names[1:]):
        line = mesh.connect(a, b)
        mesh.run(4)
        assert "R0" in mesh.routers[b].routers()
        mesh.cut(line)
    mesh.run(1 + 30 - mesh.now + 0.5)
    assert all("R0" not in mesh.routers[name].routers() for name in names[1:])


def test_a_quiet_mesh_says_hello_and_little_else() -> None:
    mesh, _ = ring(6)
    for name in mesh.routers:
        mesh.advertise(name, f"at {name}", 1)
    mesh.run(10)
    mesh.forget_changes()
    mesh.run(300)
    # In 300 s each link state is renewed three times, crosses each line at most twice, and is acknowledged.
    hellos = 2 * 6 * 300 / 0.75
    renewals = 4 * 6 * 6 * 2 * 2
    assert mesh.messages.total() < hellos + renewals
    assert all(not changes for changes in mesh.changes.values())
