"""Faults between routers, and their effects on clients."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Released
from amqpmesh.router.amqp.standard.performatives import Flow
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.delivery.link_loss import fail_link
from amqpmesh.router.kernel import OUTGOING_WINDOW
from amqpmesh.router.mesh.outages import WAIT_TIME
from tests.support.worlds import meshes
from tests.support.worlds.meshes import World, records
from tests.support.worlds.network import message

LINE = [("A", "B"), ("B", "C")]
#: Return a mesh with two paths from A to D: by B, and a longer one by C.
SQUARE = [("A", "B"), ("B", "D"), ("A", "C", 3), ("C", "D", 3)]
NEWS = AddressConfig(pattern="news/#", distribution=Distribution.MULTICAST)
AGAIN = AddressConfig(pattern="again", redeliver=True, attempts=5)
SECOND = ReceiverSettleMode.SECOND


def test_a_lane_that_is_wanted_again_while_deliveries_of_its_last_life_are_unsettled_carries_both() -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("q", credit=10)
    first = producer.send(producer.sender("q"))
    (early,) = consumer.take(1)
    producer.close()
    mesh.advance(60.0)
    other = mesh["A"].client()
    link = other.sender("q")
    mesh.advance(0.2)
    second = other.send(link)
    (late,) = consumer.take(1)
    late.accept()
    early.accept()
    mesh.run()
    assert second.said == [(Accepted(), True)]
    assert first.said == []
    mesh.leave()


def test_costs_that_change_to_and_fro_leave_what_is_unsettled_alone() -> None:
    mesh = World("ABCD", SQUARE)
    consumer, producer = mesh["D"].client(), mesh["A"].client()
    consumer.receiver("q", credit=100)
    link = producer.sender("q")
    mesh.advance(0.2)
    sents = []
    (wire,) = mesh.between("A", "B")
    for turn in range(6):
        sents.append(producer.send(link))
        for core, record in wire.ends:
            assert core.mesh is not None
            core.mesh.set_cost(core.mesh.neighbours[record], 1 if turn % 2 else 20)
        mesh.advance(0.5)
        assert link.credit
    arrivals = consumer.take(6)
    for arrival in arrivals:
        arrival.accept()
    mesh.run()
    assert [sent.said for sent in sents] == [[(Accepted(), True)]] * 6
    mesh.leave()


def test_a_lane_that_was_replaced_goes_though_what_was_to_leave_by_it_never_did() -> None:
    mesh = World("ABCD", SQUARE)
    consumer, producer = mesh["D"].client(), mesh["A"].client()
    receiver = consumer.receiver("q", credit=100)
    link = producer.sender("q")
    mesh.advance(3.0)
    sent = producer.send(link, b"", more=True, message_format=1)
    mesh.advance(0.1)
    (lane,) = (each for record in records(mesh, "A") for each in record.outgoing if each.busy)
    assert lane.current is not None
    assert not lane.current.started, "nothing of it has come yet"
    here = mesh["A"].mesh
    here.set_cost(here.neighbours[lane.connection], 20)
    mesh.advance(0.5)
    assert lane.retired
    receiver.detach()
    mesh.advance(5.0)
    assert lane.gone
    assert sent.said == [(Released(), True)]
    producer.resume(sent, b"the rest")
    mesh.leave()


@pytest.mark.parametrize("address", ["q", "news/x"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_slow_reader_of_what_is_large_stops_no_other_address_and_no_neighbour(address: str, whole: bool) -> None:
    mesh = World("ABC", LINE, NEWS)
    slow, fast = mesh["C"].client(window=4), mesh["C"].client()
    producer, other = mesh["A"].client(), mesh["A"].client()
    slow.receiver(address, credit=10)
    fast.receiver("r", credit=100)
    large, small = producer.sender(address), other.sender("r")
    mesh.advance(0.2)
    slow.stopped = True
    payload = message("x" * 4_000_000)
    sent = producer.send(large, payload[:1000], more=True)
    for at in range(1000, len(payload), 200_000):
        window = producer.session.flow_state.remote_incoming_window
        if window * 4000 < 200_000:
            break
        producer.resume(sent, payload[at : at + 200_000], more=not whole)
        if whole:
            break
    for _ in range(30):
        mesh.advance(1.0)
        mesh.advance_until(lambda: small.credit > 0, 1.0)
        passing = other.send(small)
        fast.take(1)[0].accept()
        mesh.run()
        assert passing.said == [(Accepted(), True)]
    slow.lose()
    mesh.leave()


@pytest.mark.parametrize("size", [10, 300_000])
@pytest.mark.parametrize("name", ["q{}", "news/{}", "q{}@C"])
@pytest.mark.parametrize("before", [True, False])
def test_a_slow_reader_of_what_is_large_stops_nothing_of_forty_other_addresses(
    name: str, size: int, before: bool
) -> None:
    mesh = World("ABC", LINE, NEWS)
    slow, fast = mesh["C"].client(window=4), mesh["C"].client()
    producer, other = mesh["A"].client(), mesh["A"].client()
    slow.receiver("slow", credit=10)
    large = producer.sender("slow")
    names = [name.format(number) for number in range(40)]
    for each in names:
        fast.receiver(each.removesuffix("@C"), credit=100)
    links = []
    if before:
        links = [other.sender(each) for each in names]
        mesh.advance(0.2)
        for link in links:
            other.send(link, message("x" * size), settled=True)
        mesh.advance(0.2)
        fast.take(40)
    mesh.advance(0.2)
    slow.stopped = True
    payload = message("x" * 20_000_000)
    sent = producer.send(large, payload[:1000], more=True)
    for at in range(1000, len(payload), 200_000):
        if producer.session.flow_state.remote_incoming_window * 4000 < 200_000:
            break
        producer.resume(sent, payload[at : at + 200_000], more=True)
    mesh.advance(1.0)
    links = links or [other.sender(each) for each in names]
    mesh.advance(0.2)
    passing = [other.send(link, message("x" * size)) for link in links]
    mesh.advance(1.0)
    for arrival in fast.take(40):
        arrival.accept()
    mesh.run()
    assert [each.said for each in passing] == [[(Accepted(), True)]] * 40
    slow.lose()
    mesh.leave()


@pytest.mark.parametrize("above", ReceiverSettleMode)
def test_a_consumer_that_never_settles_stops_no_other_of_the_same_router(above: ReceiverSettleMode) -> None:
    mesh = World("ABC", LINE, AddressConfig(pattern="q", max_unsettled=3))
    idle, busy, producer = mesh["C"].client(), mesh["C"].client(), mesh["A"].client()
    idle.receiver("q", credit=100)
    busy.receiver("q", credit=100)
    link = producer.sender("q", rcv=above)
    mesh.advance(0.2)
    took = 0
    for _ in range(40):
        mesh.advance_until(lambda: link.credit > 0, 1.0)
        producer.send(link)
        for arrival in busy.take():
            took += 1
            arrival.accept()
        mesh.run()
    assert took > 30
    mesh.leave()


def test_many_receivers_that_owe_settlement_at_one_router_cost_none_of_them_its_lane() -> None:
    mesh = World("ABC", LINE)
    for wire in mesh.wires:
        for _, record in wire.ends:
            record.limits = replace(record.limits, max_owed=5)
    consumer = mesh["C"].client()
    consumer.receiver("q", credit=100)
    producers = [mesh["A"].client() for _ in range(3)]
    links = [producer.sender("q", rcv=SECOND) for producer in producers]
    mesh.advance(0.2)
    sents = []
    for _ in range(4):
        for producer, link in zip(producers, links, strict=True):
            mesh.advance_until(lambda link=link: link.credit > 0, 1.0)  # type: ignore[misc]  # of this turn
            sents.append(producer.send(link))
    for arrival in consumer.take(12):
        arrival.accept()
    mesh.run()
    assert [sent.said for sent in sents] == [[(Accepted(), False)]] * 12
    for sent in sents:
        sent.dispose(Accepted(), settled=True)
    mesh.leave()


def test_a_message_behind_a_large_one_of_the_same_sender_does_not_wait_on_another_way() -> None:
    mesh = World("ABC", [("A", "B"), ("A", "C")])
    slow, fast, producer = mesh["B"].client(window=4096), mesh["C"].client(), mesh["A"].client()
    slow.receiver("q", credit=10)
    link = producer.sender("q")
    mesh.advance(0.2)
    (wire,) = mesh.between("A", "B")
    first = producer.send(link, message("x" * 100_000))
    mesh.advance(0.5)
    wire.frozen = True
    large = producer.send(link, message("x" * 400_000))
    fast.receiver("q", credit=10)
    mesh.advance(0.2)
    small = producer.send(link)
    mesh.advance(0.2)
    fast.take(1)[0].accept()
    mesh.run()
    assert small.said == [(Accepted(), True)]
    wire.frozen = False
    mesh.advance(1.0)
    for arrival in slow.take(2):
        arrival.accept()
    mesh.run()
    assert first.said == large.said == [(Accepted(), True)]
    mesh.leave()


def test_a_neighbour_that_is_frozen_is_found_within_its_hold_time_and_what_it_has_is_in_doubt() -> None:
    mesh = World("ABCD", SQUARE)
    consumer, producer = mesh["D"].client(), mesh["A"].client()
    consumer.receiver("q", credit=100)
    link = producer.sender("q")
    mesh.advance(0.2)
    (wire,) = mesh.between("A", "B")
    wire.frozen = True
    before = producer.send(link)
    assert mesh.advance_until(lambda: before.said != [], 10.0) < 3.5
    assert before.said == [(Modified(delivery_failed=True), True)]
    mesh.advance_until(lambda: link.credit > 0, 1.0)
    after = producer.send(link)
    mesh.advance(0.2)
    consumer.take(1)[0].accept()
    mesh.run()
    assert after.said == [(Accepted(), True)]
    mesh.cut(wire)
    mesh.leave()


def test_a_message_that_is_undeliverable_at_one_router_is_tried_at_another() -> None:
    mesh = World("ABC", [("A", "B"), ("A", "C")], AGAIN)
    one, two, producer = mesh["B"].client(), mesh["C"].client(), mesh["A"].client()
    one.receiver("again", credit=10)
    link = producer.sender("again")
    mesh.advance(0.2)
    sent = producer.send(link)
    mesh.advance(0.1)
    two.receiver("again", credit=10)
    mesh.advance(0.2)
    (arrival,) = one.take(1)
    arrival.dispose(Modified(delivery_failed=True, undeliverable_here=True), settled=True)
    mesh.advance(0.5)
    assert sent.said == []
    (again,) = two.take(1)
    again.accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


def test_a_message_that_no_remaining_receiver_may_have_again_is_released() -> None:
    mesh = World("ABC", [("A", "B"), ("A", "C")], AGAIN)
    one, two, producer = mesh["B"].client(), mesh["C"].client(), mesh["A"].client()
    one.receiver("again", credit=10)
    link = producer.sender("again")
    mesh.advance(0.2)
    sent = producer.send(link)
    mesh.advance(0.1)
    two.receiver("again", credit=0)
    mesh.advance(0.2)
    (arrival,) = one.take(1)
    arrival.dispose(Modified(delivery_failed=True, undeliverable_here=True), settled=True)
    mesh.advance(0.5)
    assert sent.said == []
    two.close()
    mesh.advance(0.5)
    assert sent.said == [(Modified(delivery_failed=True), True)]
    mesh.leave()


@pytest.mark.parametrize("settled", [True, False])
def test_a_multicast_that_waited_while_the_tree_changed_reaches_nobody_twice(settled: bool) -> None:
    mesh = World("ABCD", [("A", "B"), ("B", "C"), ("B", "D", 3)], NEWS)
    near, far, producer = mesh["C"].client(), mesh["D"].client(), mesh["A"].client()
    near.receiver("news/x", credit=10)
    slow = far.receiver("news/x", credit=1)
    link = producer.sender("news/x")
    mesh.advance(0.2)
    sents = []
    while link.credit:
        sents.append(producer.send(link, settled=settled))
    assert len(sents) > 1
    came = len(near.take())
    mesh.cut(*mesh.between("B", "C"))
    mesh.join("D", "C")
    mesh.advance(1.0)
    slow.flow(50)
    mesh.advance(1.0)
    assert came + len(near.take()) <= len(sents)
    last = producer.send(link, settled=settled)
    assert [bytes(arrival.payload) for arrival in near.take(1)] == [message()], "the next one comes by the new tree"
    assert last.said == []
    mesh.leave()


def test_a_multicast_that_waits_for_a_lane_that_is_replaced_does_not_wait_for_what_is_unsettled_there() -> None:
    mesh = World("ABC", [("A", "B"), ("B", "C"), ("A", "C")], NEWS)
    near, far, producer = mesh["B"].client(), mesh["C"].client(), mesh["A"].client()
    near.receiver("news/x", credit=50)
    slow = far.receiver("news/x", credit=1)
    link = producer.sender("news/x")
    mesh.advance(0.2)
    while link.credit:
        producer.send(link)
    came = len(near.take())
    assert came < len(producer.sent)
    (wire,) = mesh.between("A", "C")
    for core, record in wire.ends:
        assert core.mesh is not None
        core.mesh.set_cost(core.mesh.neighbours[record], 20)
    mesh.advance(0.5)
    slow.flow(50)
    mesh.advance(0.5)
    assert came + len(near.take()) == len(producer.sent)
    assert not any(sent.said for sent in producer.sent.values()), "of the first nothing is settled yet"
    mesh.leave()


def test_a_multicast_of_a_router_whose_clock_was_set_back_is_not_taken_for_one_of_its_life_before() -> None:
    mesh = World("ABCD", [("A", "B"), ("B", "C"), ("A", "D"), ("D", "C")], NEWS)
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("news/x")
    link = producer.sender("news/x")
    mesh.advance(0.2)
    producer.send(link)
    consumer.take(1)[0].accept()
    assert mesh["C"].mesh.topology.parent("A") == "B"
    mesh.kill("A")
    mesh.epoch = 10  # its clock is far behind
    mesh.start("A")
    mesh.join("A", "D")
    mesh.advance(1.0)
    assert mesh["C"].mesh.topology.parent("A") == "D"
    producer = mesh["A"].client()
    link = producer.sender("news/x")
    mesh.advance(0.2)
    sent = producer.send(link)
    consumer.take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]
    mesh.leave()


def test_lanes_that_come_and_go_need_no_more_sessions_than_they_needed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meshes, "LISTENER", replace(meshes.LISTENER, handle_max=9))
    mesh = World("AB", [("A", "B")])
    (neighbour,) = mesh["A"].mesh.neighbours.values()
    needed = []
    for _ in range(3):
        consumer, producer = mesh["B"].client(), mesh["A"].client()
        for number in range(25):
            consumer.receiver(f"q{number}")
            producer.sender(f"q{number}")
        mesh.advance(0.2)
        assert len(mesh["A"].mesh.routes) == 25
        needed.append(len(neighbour.record.engine.channels.sessions))
        mesh.close_clients()
        mesh.advance(30.0)
        assert not len(mesh["A"].mesh.routes)
    assert needed[0] == needed[1] == needed[2]


def test_a_neighbour_that_detaches_its_control_link_is_parted_from() -> None:
    mesh = World("AB", [("A", "B")])
    (there,), (here,) = mesh["B"].mesh.neighbours.values(), mesh["A"].mesh.neighbours.values()
    (link,) = [link for link in there.session.all_links if link.context is there]
    link.detach()
    there.record.engine.flow_state.on_wake()
    mesh.run()
    assert here not in mesh["A"].mesh.neighbours.values()
    assert not mesh.wires, "both have closed in good order"
    mesh.leave()


def test_no_more_lanes_go_in_a_session_than_can_be_answered_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meshes, "LISTENER", replace(meshes.LISTENER, handle_max=9))
    mesh = World("AB", [("A", "B")])
    consumer, producer = mesh["A"].client(), mesh["B"].client()
    links = []
    for number in range(25):
        consumer.receiver(f"q{number}")
        links.append(producer.sender(f"q{number}"))
    mesh.advance(0.2)
    assert all(link.credit for link in links)
    mesh.leave()


def test_a_neighbour_that_ends_sessions_is_left_alone_with_their_lanes_for_a_while() -> None:
    mesh = World("AB", [("A", "B")])
    consumer, producer = mesh["B"].client(), mesh["A"].client()
    consumer.receiver("q")
    link = producer.sender("q")
    mesh.advance(0.2)
    (here,), (there,) = meshes.records(mesh, "A"), meshes.records(mesh, "B")
    for _ in range(3):
        (lane,) = here.outgoing
        there.engine.channels.incoming[lane.endpoint.session.flow_state.channel].end()
        there.engine.flow_state.on_wake()
        mesh.run()
        assert not here.outgoing, "not at once"
        mesh.advance(0.2)
    sent = producer.send(link)
    consumer.take(1)[0].accept()
    mesh.run()
    assert sent.said == [(Accepted(), True)]


@pytest.mark.parametrize("own", [True, False], ids=["of the link that it sends by", "of the other"])
def test_a_neighbour_that_ends_the_session_of_a_control_link_is_one_no_more_though_messages_still_come(
    own: bool,
) -> None:
    mesh = World("AB", [("A", "B")])
    (there,), (here,) = mesh["B"].mesh.neighbours.values(), mesh["A"].mesh.neighbours.values()
    channel = here.session.flow_state.channel
    session = there.session if own else there.record.engine.channels.incoming[channel]
    session.end()
    there.record.engine.flow_state.on_wake()
    mesh.run()
    assert here not in mesh["A"].mesh.neighbours.values()
    mesh.leave()


def test_consumers_that_come_and_go_by_the_hundred_disturb_no_running_traffic() -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    others = [mesh[router].client() for router in "ABC"]
    receiver = consumer.receiver("q", credit=50)
    link = producer.sender("q")
    idle = [mesh["B"].client().sender("q") for _ in range(5)]
    mesh.advance(0.2)
    sents = []
    for turn in range(100):
        passing = others[turn % 3].receiver(f"other-{turn}", credit=5)
        same = others[(turn + 1) % 3].receiver("q", credit=0)
        assert mesh.advance_until(lambda: link.credit > 0, 1.0) < 0.1
        sents.append(producer.send(link))
        for arrival in consumer.take(1):
            arrival.accept()
        receiver.flow(50)
        passing.detach()
        same.detach()
        mesh.run()
    assert all(sent.said == [(Accepted(), True)] for sent in sents)
    assert all(each.is_attached for each in idle)
    mesh.leave()


@pytest.mark.parametrize("is_cut", [False, True])
def test_what_waits_for_its_way_is_not_lost_when_its_sender_leaves_and_ends_with_that_way(is_cut: bool) -> None:
    mesh = World("ABC", LINE)
    consumer, producer = mesh["C"].client(window=4096), mesh["A"].client()
    consumer.receiver("q", credit=10)
    link = producer.sender("q")
    mesh.advance(0.2)
    (wire,) = mesh.between("A", "B")
    for number in range(4):
        if number == 1:
            mesh.advance(0.5)
            wire.frozen = True
        producer.send(link, message("x" * 200_000), settled=True)
    producer.close()
    assert mesh["A"].core.context.in_flight > 0
    if is_cut:
        mesh.cut(wire)
        mesh.advance(WAIT_TIME)
        assert mesh["A"].core.context.in_flight == 0
    else:
        wire.frozen = False
        mesh.advance(1.0)
        consumer.take(4)
    mesh.leave()


def test_a_tree_that_is_wanted_again_while_a_neighbour_is_left_alone_with_it_is_led_there_later() -> None:
    mesh = World("ABC", LINE, NEWS)
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    consumer.receiver("news/x", credit=10)
    producer.sender("news/x")
    mesh.advance(0.2)
    core = mesh["C"].core
    (lane,) = [each for record in records(mesh, "C") for each in record.incoming]
    fail_link(core.context, lane, Error(condition=AmqpCondition.INTERNAL_ERROR))
    core.context.on_output(lane.connection)
    mesh.run()
    # B's node of that tree ends with A's lane, and there is a new one before B tries again.
    producer.close()
    mesh.run()
    other = mesh["A"].client()
    link = other.sender("news/x")
    mesh.advance(1.0)
    sent = other.send(link)
    (arrival,) = consumer.take(1)
    arrival.accept()
    mesh.run()
    assert sent.outcome == Accepted()
    mesh.leave()


def test_a_branch_of_a_tree_that_was_detached_for_what_its_neighbour_did_wrong_is_attached_again() -> None:
    mesh = World("ABC", [("A", "B"), ("A", "C")], NEWS)
    consumers = [mesh[router].client() for router in "BC"]
    for consumer in consumers:
        consumer.receiver("news/x", credit=10)
    producer = mesh["A"].client()
    link = producer.sender("news/x")
    mesh.advance(0.2)
    core = mesh["C"].core
    (lane,) = [each for record in records(mesh, "C") for each in record.incoming]
    session = lane.endpoint.session
    # Routers refuse deliveries within a transaction.
    known = session.flow_state
    session.write(
        Flow(
            next_incoming_id=known.next_incoming_id,
            incoming_window=known.announce(),
            next_outgoing_id=known.next_outgoing_id,
            outgoing_window=OUTGOING_WINDOW,
            handle=lane.endpoint.flow_state.handle,
            properties={Symbol("txn-id"): b"x"},
        )
    )
    core.context.on_output(lane.connection)
    mesh.run()
    assert lane not in lane.connection.incoming, "A has detached it"
    mesh.advance(1.0)
    sent = producer.send(link)
    for consumer in consumers:
        consumer.take(1)[0].accept()
    mesh.run()
    assert sent.outcome == Accepted()
    mesh.leave()
