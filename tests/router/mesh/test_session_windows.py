"""Session windows between neighbours: wide for deliveries of one frame only (§2.5.6)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.session import Session
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.performatives import Begin
from amqpmesh.router.config.file import AddressConfig, MeshConfig
from amqpmesh.router.endpoint_setup import LARGE, WHOLE
from amqpmesh.router.kernel import KernelSession
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.mesh.lane_connection import BULK_SESSIONS
from amqpmesh.router.mesh.neighbour import Neighbour
from amqpmesh.router.statistics.common import Reason
from tests.support.worlds import meshes
from tests.support.worlds.meshes import LISTENER, World
from tests.support.worlds.network import message

WINDOW = LISTENER.session_window


def neighbours(lane_window: int = 8192, bulk_window: int = 64) -> tuple[World, Neighbour, Neighbour]:
    """Return a mesh of two routers, and the `Neighbour` that each of them has of the other."""
    mesh = World("AB", [("A", "B")], mesh=MeshConfig(insecure=True, lane_window=lane_window, bulk_window=bulk_window))
    (here,), (there,) = mesh["A"].mesh.neighbours.values(), mesh["B"].mesh.neighbours.values()
    return mesh, here, there


def answer(session: Session) -> Begin:
    """Return the peer's `begin`."""
    assert session.remote is not None
    return session.remote


def given_to(session: Session) -> int:
    """Return the window that the peer has opened for one of our sessions."""
    return answer(session).incoming_window


def test_the_session_of_lanes_is_given_a_wide_window_and_no_other_is() -> None:
    mesh, here, _ = neighbours()
    lanes, large = here.session_with_room(), here.bulk_session(alone=False)
    mesh.run()
    assert answer(lanes).offered_capabilities == (WHOLE,)
    assert given_to(lanes) == MeshConfig(insecure=True).lane_window // 2
    assert answer(large).offered_capabilities == (LARGE,)
    assert answer(here.session).offered_capabilities == ()
    for narrow in (here.session, large):
        assert 8 <= given_to(narrow) <= WINDOW


def test_each_session_for_what_is_large_is_given_a_window_of_its_own_as_far_as_there_may_be_any() -> None:
    mesh, here, _ = neighbours(bulk_window=300)
    sessions = [here.bulk_session(alone=alone) for alone in (False, True) for _ in range(BULK_SESSIONS)]
    mesh.run()
    assert len(set(sessions)) == 2 * BULK_SESSIONS
    assert {given_to(each) for each in sessions} == {300}
    more = here.record.engine.begin(desired_capabilities=(LARGE,))
    mesh.run()
    assert answer(more).offered_capabilities == ()
    assert given_to(more) == 8


def test_a_client_that_asks_for_a_wide_window_is_not_given_one() -> None:
    mesh, _, _ = neighbours()
    client = mesh["A"].client()
    session = client.engine.begin(desired_capabilities=(WHOLE, LARGE))
    mesh.run()
    assert answer(session).offered_capabilities == ()
    assert given_to(session) == WINDOW


@given(lane_window=st.integers(0, 10_000), sessions=st.integers(1, 20))
def test_the_window_of_a_neighbour_is_bounded_for_any_number_of_sessions(lane_window: int, sessions: int) -> None:
    mesh, here, there = neighbours(lane_window=lane_window)
    engine = here.record.engine
    begun = [engine.begin(desired_capabilities=(WHOLE,)) for _ in range(sessions)]
    mesh.run()
    windows = [each.window for each in there.record.engine.channels.sessions]
    assert sum(windows) <= lane_window + LISTENER.connection_window + 8 * len(windows)
    assert min(map(given_to, begun)) >= 8
    if lane_window >= 4 * WINDOW:
        assert given_to(here.session_with_room()) == lane_window // 2


def test_a_session_for_what_is_large_gets_no_less_because_another_is_wide() -> None:
    windows = []
    for lane_window in (0, 8192):
        mesh, here, _ = neighbours(lane_window=lane_window)
        large = here.bulk_session(alone=False)
        mesh.run()
        windows.append(given_to(large))
    assert windows[0] == windows[1]


def test_lanes_that_need_a_second_session_get_half_of_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meshes, "LISTENER", replace(LISTENER, handle_max=9))
    mesh, here, _ = neighbours()
    consumer, producer = mesh["B"].client(), mesh["A"].client()
    for number in range(15):
        consumer.receiver(f"q{number}")
        producer.sender(f"q{number}")
    mesh.advance(0.2)
    lanes = {each.endpoint.session for each in here.record.outgoing}
    assert sorted(map(given_to, lanes)) == [2048, 4096]


def test_more_messages_than_a_clients_window_leave_before_the_neighbour_has_read_any() -> None:
    most = 3 * WINDOW
    mesh = World("AB", [("A", "B")], AddressConfig(pattern="#", max_credit=most))
    mesh["A"].listener = replace(LISTENER, role="normal", session_window=most, connection_window=4 * most)
    consumer, producer = mesh["B"].client(), mesh["A"].client()
    consumer.receiver("q", credit=most)
    link = producer.sender("q")
    mesh.advance(0.2)
    (wire,) = mesh.wires
    wire.frozen = True
    sent = [producer.send(link) for _ in range(most)]
    mesh.run()
    (here,) = meshes.records(mesh, "A")
    (lane,) = here.outgoing
    assert lane.outstanding == most, "none waits for a window"
    wire.frozen = False
    mesh.run()
    for arrival in consumer.take(most):
        arrival.accept()
    mesh.run()
    assert [each.said for each in sent] == [[(Accepted(), True)]] * most
    mesh.leave()


@pytest.mark.parametrize("backlog", [2_000, 20_000])
def test_so_many_octets_wait_to_be_written_to_a_neighbour_before_its_lanes_get_no_more(backlog: int) -> None:
    mesh = World("AB", [("A", "B")], mesh=MeshConfig(insecure=True, output_backlog=backlog))
    consumer, producer = mesh["B"].client(), mesh["A"].client()
    consumer.receiver("q", credit=100)
    link = producer.sender("q")
    mesh.advance(0.2)
    producer.send(link, message("the first"))
    (wire,) = mesh.between("A", "B")
    wire.frozen = True
    sent = [producer.send(link, message("x" * 500 + str(number))) for number in range(90)]
    (there,) = mesh["A"].mesh.neighbours.values()
    assert backlog < there.record.unwritten <= backlog + 600, "one more than is allowed"
    (lane,) = (each for each in snapshot(mesh["A"].core).lanes if each.deliveries)
    assert lane.reason is Reason.RECEIVER_UNREAD
    wire.frozen = False
    mesh.run()
    for arrival in consumer.take(91):
        arrival.accept()
    mesh.run()
    assert {type(each.outcome) for each in sent} == {Accepted}
    mesh.leave()


def test_the_window_of_a_tree_grows_with_small_messages_and_narrows_with_a_large_one() -> None:
    mesh = World("AB", [("A", "B")], AddressConfig(pattern="news", distribution=Distribution.MULTICAST))
    consumer, producer = mesh["B"].client(window=100_000), mesh["A"].client()
    consumer.receiver("news", credit=10_000)
    link = producer.sender("news")
    mesh.advance(0.2)
    (lane,) = [each for record in mesh["B"].core.context.connections for each in record.incoming if each.lane]
    session = lane.endpoint.session
    usual = MeshConfig(insecure=True).bulk_window
    assert session.window == usual
    for _ in range(20 * usual):
        producer.send(link, settled=True)
    assert session.window == 8 * usual
    large = producer.send(link, message("x" * 100_000), settled=True)
    assert session.window == usual
    assert large.delivery.complete
    announced: list[int] = []
    for _ in range(20 * usual):
        producer.send(link, settled=True)
        announced.append(session.flow_state.incoming_limit)
    assert announced == sorted(announced)
    assert session.window == 8 * usual
    assert len(consumer.take()) == 40 * usual + 1
    mesh.leave()


def test_a_window_that_narrows_while_frames_are_held_is_announced_as_what_is_left_of_it() -> None:
    session = KernelSession(4)
    session.let_widen()
    session.window_size = 32
    session.announce()
    session.begin_parts()
    for _ in range(20):
        session.next_incoming_id += 1
        session.held += 1
    assert session.announce() == 12
    session.release(18)
    assert session.announce() == 12
    session.next_incoming_id += 10
    assert session.announce() == 2
