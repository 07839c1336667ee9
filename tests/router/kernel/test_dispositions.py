"""Live deliveries, the range of a disposition, and its states."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amqpmesh.router.kernel import (
    ACCEPTED_STATE,
    FAILED_STATE,
    RELEASED_STATE,
    Delivery,
    DispositionFrame,
    KernelLink,
    KernelSession,
    Ledger,
    TransferFrame,
    abandon,
    apply_more,
    dispose,
    forget,
    is_terminal,
    receive_disposition,
    receive_transfer,
    send_transfer,
    serial_add,
    serial_distance,
    state_kind,
)

M = 2**32
EDGES = [0, 1, 2, 2**31 - 1, 2**31, 2**31 + 1, M - 2, M - 1]
SERIALS = st.sampled_from(EDGES) | st.integers(0, M - 1)


def session(first_id: int = 0) -> KernelSession:
    flow = KernelSession(1_000, initial_delivery_id=first_id)
    flow.channel = 0
    flow.remote_incoming_window = 1_000
    return flow


def sending_link(flow: KernelSession) -> KernelLink:
    link = KernelLink(flow, True, None, {})
    link.handle = 0
    link.link_credit = 1_000
    return link


def receiving_link(flow: KernelSession) -> KernelLink:
    link = KernelLink(flow, False, None, {})
    link.handle = 0
    link.link_credit = link.granted_limit = 1_000
    return link


def sent(link: KernelLink, tag: bytes = b"t", *, more: bool = False, settled: bool = False) -> Delivery:
    delivery = Delivery(link, tag, 0, settled, False)
    send_transfer(link, bytearray(), delivery, b"payload", more, False, None, 512)
    return delivery


def received(link: KernelLink, delivery_id: int, tag: bytes | None = None, *, more: bool = False) -> Delivery:
    frame = TransferFrame(0, delivery_id, tag or delivery_id.to_bytes(4, "big"), 0, more=more)
    return receive_transfer(link, frame, 7)


# ------------------------------------------------------------------------------------------------- serial numbers


@given(SERIALS, st.integers(-(2**31), 2**31 - 1))
def test_the_distance_to_a_sum_is_what_was_added(start: int, increment: int) -> None:
    end = serial_add(start, increment)
    assert 0 <= end < M
    assert serial_distance(start, end) == increment


@given(SERIALS, SERIALS)
def test_a_distance_leads_there_and_has_the_opposite_way_back(start: int, end: int) -> None:
    distance = serial_distance(start, end)
    assert serial_add(start, distance) == end
    assert -(2**31) <= distance < 2**31
    assert distance == -(2**31) or serial_distance(end, start) == -distance


# --------------------------------------------------------------------------------------------------------- ledger


@given(
    base=SERIALS,
    steps=st.lists(st.integers(1, 5) | st.just(2**20), max_size=12),
    first=st.integers(-3, 30) | st.just(2**20),
    span=st.integers(-3, 30) | st.sampled_from([2**20, 2**31 - 1, -(2**31)]),
)
@example(base=M - 2, steps=[1, 1, 1, 1], first=0, span=3)
@example(base=M - 2, steps=[1, 1, 1, 1], first=1, span=2**31 - 1)
def test_a_range_selects_its_live_deliveries_in_order(base: int, steps: list[int], first: int, span: int) -> None:
    link = receiving_link(session())
    ledger = Ledger()
    offsets = [sum(steps[:count]) for count in range(len(steps) + 1)]
    for offset in offsets:
        delivery = Delivery(link, b"", 0, False, False)
        delivery.delivery_id = serial_add(base, offset)
        ledger.put(delivery.delivery_id, delivery)
    low, high = serial_add(base, first), serial_add(base, first + span)
    expected = [serial_add(base, offset) for offset in offsets if first <= offset <= first + span]
    assert [each.delivery_id for each in ledger.select(low, high)] == expected


def heard(flow: KernelSession, frame: DispositionFrame) -> list[Delivery]:
    said = receive_disposition(flow, frame)
    return [] if said is None else said.deliveries


@pytest.mark.parametrize("live", [0, 1, 1_000])
def test_a_range_of_half_of_all_ids_costs_no_more_than_the_ledger(live: int) -> None:
    link = receiving_link(session())
    ledger = Ledger()
    for each in range(live):
        ledger.put(each, Delivery(link, b"", 0, False, False))
    started = time.perf_counter()
    assert len(ledger.select(0, 2**31 - 1)) == live
    assert time.perf_counter() - started < 1.0, "2**31 steps would take minutes"


def test_a_disposition_is_noted_on_the_deliveries_of_its_direction() -> None:
    flow = session()
    out, into = sending_link(flow), receiving_link(flow)
    ours, theirs = sent(out), received(into, 0)
    assert heard(flow, DispositionFrame(True, 0, 0, False, ACCEPTED_STATE)) == [ours]
    assert (ours.remote_state, ours.remote_settled) == (ACCEPTED_STATE, False)
    assert (theirs.remote_state, theirs.remote_settled) == (None, False)
    assert heard(flow, DispositionFrame(False, 0, 0, True, None)) == [theirs]
    assert (theirs.remote_state, theirs.remote_settled) == (None, True)
    assert heard(flow, DispositionFrame(True, 0, 0, True, None)) == [ours]
    assert (ours.remote_state, ours.remote_settled) == (ACCEPTED_STATE, True)


def test_of_very_many_deliveries_some_are_decided_at_a_time_and_no_more_those_that_are_gone_by_then() -> None:
    flow = session()
    link = sending_link(flow)
    deliveries = [sent(link) for _ in range(900)]
    said = receive_disposition(flow, DispositionFrame(True, 0, 899, True, ACCEPTED_STATE))
    assert said is not None
    told = list(said.deliveries)
    assert told == deliveries[: len(told)]
    assert 0 < len(told) < 800
    assert not deliveries[-1].remote_settled
    gone = [deliveries[len(told)], deliveries[800]]
    for delivery in gone:
        forget(delivery)
    while apply_more(said):
        assert len(said.deliveries) < 800
        told += said.deliveries
    assert told == [each for each in deliveries if each not in gone]
    assert all(each.remote_settled for each in told)
    assert not any(each.remote_settled for each in gone)
    assert not apply_more(said)


def test_a_disposition_of_ids_that_nothing_has_changes_nothing() -> None:
    flow = session()
    delivery = sent(sending_link(flow))
    for first, last in ((1, 9), (2**31, M - 1), (5, 0)):
        assert heard(flow, DispositionFrame(True, first, last, True, ACCEPTED_STATE)) == []
    assert (delivery.remote_state, delivery.remote_settled) == (None, False)


# ---------------------------------------------------------------------------------------------- what we say of them

SAYINGS = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(0, 4),
        st.booleans(),
        st.sampled_from([None, ACCEPTED_STATE, RELEASED_STATE, bytes(bytearray(ACCEPTED_STATE))]),
    ),
    max_size=30,
)


@given(SERIALS, SAYINGS)
@example(M - 2, [(True, 1, True, ACCEPTED_STATE)] * 5)
def test_dispositions_are_joined_and_nothing_else_changes(
    base: int, sayings: list[tuple[bool, int, bool, bytes]]
) -> None:
    flow = session()
    said = []
    delivery_id = base
    for receiver, step, settled, state in sayings:
        # Mostly the next id, as from a receiver that answers in order; sometimes the same, or a gap.
        delivery_id = serial_add(delivery_id, min(step, 2) if step != 3 else 1)
        said.append((receiver, delivery_id, settled, state))
        flow.dispose(receiver, delivery_id, settled, state)
    expanded = [
        (run.receiver, serial_add(run.first, offset), run.settled, run.state)
        for run in flow.dispositions
        for offset in range(serial_distance(run.first, run.last) + 1)
    ]
    assert expanded == said
    for before, after in zip(flow.dispositions, flow.dispositions[1:], strict=False):
        joinable = serial_add(before.last, 1) == after.first and (before.receiver, before.settled, before.state) == (
            after.receiver,
            after.settled,
            after.state,
        )
        assert not joinable, "two frames where one would do"


def test_the_first_disposition_wakes_the_engine_and_further_ones_do_not() -> None:
    woken = []
    flow = session()
    flow.wire.on_wake = lambda: woken.append(1)
    for delivery_id in (5, 6, 9):
        flow.dispose(True, delivery_id, True, None)
    assert woken == [1]


def test_settling_removes_a_delivery_and_tells_the_peer_once() -> None:
    flow = session()
    link = sending_link(flow)
    delivery = sent(link)
    dispose(delivery, ACCEPTED_STATE, False)
    assert len(flow.outgoing) == 1
    dispose(delivery, None, True)
    dispose(delivery, RELEASED_STATE, True)
    assert (delivery.state, delivery.settled) == (ACCEPTED_STATE, True)
    assert (len(flow.outgoing), link.unsettled) == (0, {})
    said = [(run.receiver, run.first, run.settled, run.state) for run in flow.dispositions]
    assert said == [(False, 0, False, ACCEPTED_STATE), (False, 0, True, None)]


def test_a_receiver_speaks_as_receiver() -> None:
    flow = session()
    dispose(received(receiving_link(flow), 3), FAILED_STATE, True)
    assert [(run.receiver, run.first, run.state) for run in flow.dispositions] == [(True, 3, FAILED_STATE)]


def test_nothing_is_said_to_a_peer_that_has_settled() -> None:
    flow = session()
    delivery = received(receiving_link(flow), 0)
    receive_disposition(flow, DispositionFrame(False, 0, 0, True, None))
    dispose(delivery, ACCEPTED_STATE, True)
    assert flow.dispositions == []
    assert len(flow.incoming) == 0


def test_nothing_is_said_on_a_session_that_is_gone() -> None:
    flow = session()
    delivery = sent(sending_link(flow))
    flow.channel = -1
    dispose(delivery, None, True)
    assert flow.dispositions == []
    assert len(flow.outgoing) == 0


def test_nothing_is_said_of_a_delivery_that_was_never_sent() -> None:
    flow = session()
    delivery = Delivery(sending_link(flow), b"t", 0, False, False)
    dispose(delivery, None, True)
    assert flow.dispositions == []


# ----------------------------------------------------------------------------------------------------- letting go


def test_what_an_abandoned_link_had_from_before_is_nobody_elses() -> None:
    flow = session(M - 1)
    link, other = sending_link(flow), sending_link(flow)
    kept = Delivery(link, b"kept", 0, False, False)  # of an earlier link: it has no id in this session
    link.unsettled[kept.tag] = kept
    last = sent(other)
    assert (kept.delivery_id, last.delivery_id) == (-1, M - 1)
    abandon(link)
    assert flow.outgoing.deliveries == {M - 1: last}


def test_an_abandoned_link_leaves_the_ledger_and_keeps_what_it_has_not_settled() -> None:
    flow = session()
    gone, stays = receiving_link(flow), receiving_link(flow)
    lost = [received(gone, 0), received(gone, 1, more=True)]
    kept = received(stays, 2)
    abandon(gone)
    assert flow.incoming.deliveries == {2: kept}
    assert list(gone.unsettled.values()) == lost, "the terminus still owes them an outcome (§2.6.13)"
    assert gone.current is None
    for delivery in lost:
        dispose(delivery, ACCEPTED_STATE, True)
    assert flow.dispositions == [], "no frame can speak of them (§2.6.5)"
    assert gone.unsettled == {}
    assert flow.incoming.deliveries == {2: kept}


def test_an_abandoned_sender_lets_go_of_the_delivery_in_its_midst() -> None:
    flow = session()
    link = sending_link(flow)
    presettled = sent(link, more=True, settled=True)
    assert link.current is presettled
    abandon(link)
    assert link.current is None
    assert presettled.delivery_id == -1
    assert len(flow.outgoing) == 0


def test_ids_of_abandoned_deliveries_are_free_for_others() -> None:
    flow = session()
    gone, other = receiving_link(flow), receiving_link(flow)
    lost = received(gone, 7)
    abandon(gone)
    live = received(other, 7)
    forget(lost)
    assert flow.incoming.deliveries == {7: live}


def test_forgetting_twice_takes_nothing_from_a_successor() -> None:
    flow = session()
    link = receiving_link(flow)
    first = received(link, 1, b"tag")
    forget(first)
    second = received(link, 2, b"tag")
    forget(first)
    assert flow.incoming.deliveries == {2: second}
    assert link.unsettled == {b"tag": second}


# --------------------------------------------------------------------------------------------------------- states


def test_outcomes_are_counted_by_kind() -> None:
    link = receiving_link(session())
    for state in (ACCEPTED_STATE, ACCEPTED_STATE, RELEASED_STATE, FAILED_STATE, b"\x00\x53\x25\x45", None):
        link.count_outcome(state)
    assert (link.accepted, link.released, link.modified, link.rejected) == (2, 1, 1, 1)


@pytest.mark.parametrize(
    ("state", "kind", "terminal"),
    [
        (None, -1, False),
        (b"\x00\x53\x23\xc0\x03\x02\x43\x44", 0x23, False),
        (ACCEPTED_STATE, 0x24, True),
        (b"\x00\x53\x25\x45", 0x25, True),
        (RELEASED_STATE, 0x26, True),
        (FAILED_STATE, 0x27, True),
        (b"\x00\x53\x33\xc0\x04\x01\xa0\x01x", 0x33, False),
        (b"\x00\x53\x34\xc0\x04\x01\xa0\x01x", 0x34, False),
    ],
)
def test_the_four_outcomes_are_terminal(state: bytes | None, kind: int, terminal: bool) -> None:
    assert state_kind(state) == kind
    assert is_terminal(state) is terminal
