"""Sessions: begin and end, windows, flows and dispositions, and what is answered with `end` (§2.5, §2.7.2, §2.7.8)."""

from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.composite import encode_composite
from amqpmesh.router.amqp.definitions import AmqpCondition, Error, Role, SessionCondition
from amqpmesh.router.amqp.delivery_states import Accepted, Modified, Rejected, TransactionalState
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.link import Receiver, Sender
from amqpmesh.router.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    Transfer,
    decode_performative,
)
from amqpmesh.router.amqp.states import ConnectionState, SessionState
from amqpmesh.router.amqp.terminus import Terminus
from amqpmesh.router.amqp.types import Symbol
from amqpmesh.router.kernel.relay import ACCEPTED_STATE, Delivery, dispose, serial_add
from tests.support.pair import Pair, Scripted, whole
from tests.support.script import AMQP, attached, begun, flow, frame, transferred

S = SessionState
WHY = Error(condition=AmqpCondition.NOT_ALLOWED, description="no more of this")


def mapped(*, attach: Attach | None = None, credit: int = 0, **settings: object) -> Scripted:
    """A session on channel 0, and on it a link with handle 0 if `attach` asks for one."""
    begin = settings.pop("begin", None) or begun()
    assert isinstance(begin, Begin)
    scripted = Scripted(**settings)
    scripted.peer.open()
    scripted.peer.write(begin)
    scripted.peer.expect(Begin)
    if attach is not None:
        scripted.peer.write(attach)
        scripted.peer.expect(Attach)
        if credit:
            scripted.receiver(attach.handle).flow(credit)
            scripted.peer.expect(Flow)
    scripted.end.events.clear()
    return scripted


def ended(scripted: Scripted) -> Error:
    """The session was ended for what the peer did: it and the owner heard the same, and nobody else anything."""
    end = scripted.peer.expect(End)
    (event,) = scripted.end.events
    scripted.end.events.clear()
    assert isinstance(event, events.SessionEnded)
    assert event.error == end.error
    assert not event.by_peer
    assert scripted.engine.state is ConnectionState.OPENED
    assert end.error is not None
    return end.error


# Begin and end.


def test_a_session_that_the_peer_begins_is_answered_on_a_channel_of_ours() -> None:
    scripted = Scripted(answers=False, handle_max=7, window=33, initial_outgoing_id=2**32 - 1)
    scripted.peer.write(AMQP, Open(container_id="peer"))
    scripted.engine.open()
    scripted.peer.expect_header()
    scripted.peer.expect(Open)
    scripted.peer.write(begun(), channel=9)
    session = scripted.end.take_one(events.SessionBegun).session
    assert session.state is S.BEGIN_RCVD
    assert not session.can_send
    with pytest.raises(CommandError):
        session.end()
    session.begin()
    assert session.state is S.MAPPED
    assert session.can_send
    begin = scripted.peer.expect(Begin)
    assert begin == Begin(
        remote_channel=9, next_outgoing_id=2**32 - 1, incoming_window=33, outgoing_window=2**31 - 1, handle_max=7
    )
    with pytest.raises(CommandError):
        session.begin()


def test_a_session_of_ours_is_mapped_when_the_peer_answers() -> None:
    pair = Pair()
    session = pair.open()
    assert session.state is S.MAPPED
    other = pair.client.engine.begin()
    assert other.state is S.BEGIN_SENT
    assert other.can_send, "frames may be pipelined behind a begin"
    pair.run()
    assert other.state is S.MAPPED


@pytest.mark.parametrize("error", [None, WHY])
def test_an_end_of_the_peer_is_answered_with_ours(error: Error | None) -> None:
    scripted = mapped()
    session = scripted.session()
    scripted.peer.write(End(error=error))
    assert scripted.peer.expect(End).error is None
    event = scripted.end.take_one(events.SessionEnded)
    assert (event.error, event.by_peer) == (error, True)
    assert session.state is S.UNMAPPED
    assert not session.can_send
    assert scripted.engine.channels.incoming == scripted.engine.channels.outgoing == {}


@pytest.mark.parametrize(("error", "state"), [(None, S.END_SENT), (WHY, S.DISCARDING)])
def test_after_our_end_what_comes_on_the_session_is_dropped_until_the_peers(
    error: Error | None, state: SessionState
) -> None:
    scripted = mapped(attach=attached(Role.SENDER), credit=5)
    session = scripted.session()
    session.end(error)
    assert session.state is state
    assert scripted.peer.expect(End).error == error
    scripted.peer.write(
        transferred(),
        attached(Role.RECEIVER, handle=1),
        flow(handle=44),
        Disposition(role=Role.SENDER, first=0, settled=True),
        Detach(handle=55),
    )
    assert scripted.end.events == []
    assert scripted.peer.hear() == []
    scripted.peer.write(End())
    assert session.state is S.UNMAPPED
    assert scripted.end.events == []
    scripted.peer.begin()


@pytest.mark.parametrize("errors", [(None, None), (WHY, None), (None, WHY), (WHY, WHY)])
def test_both_may_end_a_session_at_once(errors: tuple[Error | None, Error | None]) -> None:
    pair = Pair()
    session = pair.open()
    other = pair.server.engine.channels.incoming[0]
    for each, error in zip((session, other), errors, strict=True):
        each.end(error)
    pair.run()
    assert session.state is other.state is S.UNMAPPED
    for end in (pair.client, pair.server):
        assert end.take(events.SessionEnded) == [], "each takes the other's for the answer (§2.5.3)"
        assert end.engine.state is ConnectionState.OPENED
        assert end.engine.channels.incoming == end.engine.channels.outgoing == {}


def test_a_session_is_ended_once() -> None:
    scripted = mapped()
    session = scripted.session()
    session.end()
    for command in (session.end, session.begin, lambda: session.attach(Terminus("x", Role.SENDER))):
        with pytest.raises(CommandError):
            command()
    scripted.peer.expect(End)


def test_a_session_given_up_before_the_peer_answered_keeps_its_channel_until_then() -> None:
    scripted = Scripted(server=False)
    scripted.engine.open()
    scripted.peer.write(AMQP, Open(container_id="server"))
    scripted.peer.expect_header()
    hasty = scripted.engine.begin()
    hasty.end()
    assert hasty.state is S.END_SENT
    second = scripted.engine.begin()
    assert second.flow_state.channel == 1, "an answer to channel 0 is still to come"
    scripted.peer.write(frame(begun(0), channel=4), frame(begun(1), channel=5))
    assert [event.session for event in scripted.end.take(events.SessionBegun)] == [second]
    scripted.peer.write(frame(flow(), channel=4), frame(End(), channel=4))
    assert hasty.state is S.UNMAPPED
    assert scripted.end.take(events.SessionEnded) == []
    third = scripted.engine.begin()
    assert third.flow_state.channel == 0
    scripted.peer.write(begun(0), channel=4)
    assert third.state is S.MAPPED


def test_a_session_that_the_peer_ends_before_our_begin_gets_both() -> None:
    scripted = Scripted(answers=False)
    scripted.peer.write(AMQP, Open(container_id="peer"), begun(), End(error=WHY))
    scripted.peer.expect_header()
    scripted.peer.expect_all(Open, Begin, End)
    scripted.end.take_one(events.SessionBegun)
    assert scripted.end.take_one(events.SessionEnded).error == WHY
    assert scripted.engine.channels.incoming == {}


def test_a_session_error_before_our_begin_comes_behind_it() -> None:
    scripted = Scripted(answers=False)
    scripted.peer.write(AMQP, Open(container_id="peer"), begun(), Detach(handle=3))
    scripted.peer.expect_header()
    _, _, end = scripted.peer.expect_all(Open, Begin, End)
    assert isinstance(end, End)
    assert end.error is not None
    assert end.error.condition == SessionCondition.UNATTACHED_HANDLE


def test_a_channel_may_be_used_again_as_soon_as_it_is_free() -> None:
    scripted = mapped(attach=attached(Role.SENDER), credit=5)
    scripted.peer.write(frame(End()), frame(begun()), frame(attached(Role.SENDER)), frame(End()), frame(begun()))
    heard = [type(each.performative) for each in scripted.peer.hear()]
    assert heard == [End, Begin, Attach, End, Begin]


# What the peer does wrong.


@pytest.mark.parametrize(
    ("performative", "condition"),
    [
        pytest.param(transferred(handle=7), SessionCondition.UNATTACHED_HANDLE, id="transfer to no link"),
        pytest.param(flow(handle=7), SessionCondition.UNATTACHED_HANDLE, id="flow for no link"),
        pytest.param(Detach(handle=7), SessionCondition.UNATTACHED_HANDLE, id="detach of no link"),
        pytest.param(attached(Role.RECEIVER, "b"), SessionCondition.HANDLE_IN_USE, id="attach to a handle in use"),
        pytest.param(
            attached(Role.SENDER, handle=1, initial_delivery_count=None),
            AmqpCondition.INVALID_FIELD,
            id="a sender without initial-delivery-count",
        ),
        pytest.param(flow(next_incoming_id=1), AmqpCondition.INVALID_FIELD, id="a flow that counts what we never sent"),
        pytest.param(flow(next_incoming_id=2**31 - 1), AmqpCondition.INVALID_FIELD, id="... by half a world"),
        pytest.param(transferred(delivery_id=None), AmqpCondition.INVALID_FIELD, id="a delivery without id"),
        pytest.param(transferred(delivery_tag=None), AmqpCondition.INVALID_FIELD, id="a delivery without tag"),
    ],
)
def test_what_breaks_a_session_ends_it_with_the_reason(performative: Performative, condition: Symbol) -> None:
    scripted = mapped(attach=attached(Role.SENDER), credit=5)
    scripted.peer.write(begun(), channel=1)
    scripted.peer.hear()
    scripted.end.events.clear()
    session = scripted.session()
    scripted.peer.write(performative)
    assert ended(scripted).condition == condition
    assert session.state is S.DISCARDING
    assert scripted.session(1).state is S.MAPPED, "nothing else is disturbed"


def test_a_handle_above_the_handle_max_closes_the_connection() -> None:
    # §2.7.2: framing-error at the connection, whichever frame it stands in.
    for performative in (attached(Role.SENDER, handle=8), transferred(handle=8), flow(handle=8), Detach(handle=8)):
        scripted = mapped(handle_max=7)
        scripted.peer.write(performative)
        close = scripted.peer.expect(Close)
        assert close.error is not None
        assert close.error.condition == "amqp:connection:framing-error"


def test_the_highest_handle_is_as_good_as_any() -> None:
    scripted = mapped(handle_max=7, attach=attached(Role.SENDER, handle=7))
    scripted.peer.write(Detach(handle=7))
    scripted.peer.expect(Detach)
    scripted.end.events.clear()
    scripted.peer.write(flow(handle=7))
    assert ended(scripted).condition == SessionCondition.UNATTACHED_HANDLE


def test_a_transfer_on_a_link_that_we_send_on_is_not_allowed() -> None:
    scripted = mapped(attach=attached(Role.RECEIVER))
    scripted.peer.write(transferred())
    assert ended(scripted).condition == AmqpCondition.NOT_ALLOWED


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"delivery_id": 1}, id="id"),
        pytest.param({"delivery_tag": b"other"}, id="tag"),
        pytest.param({"message_format": 1}, id="format"),
    ],
)
def test_what_a_delivery_is_does_not_change_from_frame_to_frame(changed: dict[str, object]) -> None:
    scripted = mapped(attach=attached(Role.SENDER), credit=5)
    scripted.peer.write(transferred(0, more=True))
    scripted.end.take_one(events.TransferReceived)
    scripted.peer.write(transferred(**{"number": 0, **changed}))  # type: ignore[arg-type]  # fields of a transfer
    assert ended(scripted).condition == AmqpCondition.INVALID_FIELD


def test_a_delivery_id_in_use_is_refused_and_one_that_is_settled_is_free() -> None:
    scripted = mapped(attach=attached(Role.SENDER), credit=5)
    scripted.peer.write(transferred(3), transferred(4, settled=True), transferred(4))
    assert len(scripted.transfers()) == 3
    scripted.peer.write(transferred(3, delivery_tag=b"new"))
    assert ended(scripted).condition == AmqpCondition.INVALID_FIELD


def test_more_links_than_the_peer_allows_leave_no_room_for_our_answer() -> None:
    for answers in (True, False):
        scripted = Scripted(answers=answers)
        scripted.peer.write(AMQP, Open(container_id="peer"), begun(handle_max=1))
        if not answers:
            scripted.engine.open()
            scripted.session().begin()
        scripted.peer.write(attached(Role.SENDER, handle=5), attached(Role.SENDER, "b", handle=6))
        assert scripted.end.take(events.SessionEnded) == []
        scripted.peer.write(attached(Role.SENDER, "c", handle=7))
        error = scripted.end.take_one(events.SessionEnded).error
        assert error is not None
        assert error.condition == AmqpCondition.RESOURCE_LIMIT_EXCEEDED


def test_no_more_links_are_attached_than_the_peer_allows() -> None:
    pair = Pair(server={"handle_max": 1})
    session = pair.open()
    links = [session.attach(Terminus(name, Role.SENDER)) for name in "ab"]
    with pytest.raises(CommandError):
        session.attach(Terminus("c", Role.SENDER))
    assert [link.flow_state.handle for link in links] == [0, 1]
    pair.run()
    links[0].detach()
    assert session.attach(Terminus("c", Role.SENDER)).flow_state.handle == 0, "the lowest that is free"
    pair.run()
    assert not pair.server.take(events.SessionEnded)


# Windows (§2.5.6).


def test_a_transfer_beyond_the_window_ends_the_session() -> None:
    scripted = mapped(attach=attached(Role.SENDER), credit=100, window=3)
    for number in range(3):
        scripted.peer.write(transferred(number))
    assert len(scripted.end.take(events.TransferReceived)) == 3
    scripted.peer.write(transferred(3))
    assert ended(scripted).condition == SessionCondition.WINDOW_VIOLATION


def test_frames_not_deliveries_are_counted() -> None:
    scripted = mapped(attach=attached(Role.SENDER), credit=100, window=3)
    for _ in range(3):
        scripted.peer.write(transferred(0, more=True))
    scripted.peer.write(transferred(0))
    error = scripted.peer.expect(End).error
    assert error is not None
    assert error.condition == SessionCondition.WINDOW_VIOLATION


def test_what_is_released_opens_the_window_again() -> None:
    scripted = mapped(attach=attached(Role.SENDER), credit=1000, window=4)
    numbers = iter(range(1000))
    for _ in range(50):
        scripted.peer.write(transferred(next(numbers)), transferred(next(numbers)))
        assert len(scripted.transfers()) == 2
        told = scripted.peer.expect(Flow)
        assert told.incoming_window == 4
        assert told.next_incoming_id == scripted.session().flow_state.next_incoming_id
        assert told.handle is None


def test_what_is_held_is_not_offered() -> None:
    scripted = mapped(attach=attached(Role.SENDER), credit=1000, window=4)
    scripted.peer.write(transferred(0), transferred(1), transferred(2), flow(next_outgoing_id=3, echo=True))
    assert scripted.peer.expect(Flow).incoming_window == 1
    scripted.session().release(3)
    assert scripted.peer.expect(Flow).incoming_window == 4


def test_we_send_as_far_as_the_peers_window_goes_and_on_when_it_opens() -> None:
    scripted = mapped(attach=attached(Role.RECEIVER), begin=begun(incoming_window=2))
    scripted.peer.write(flow(incoming_window=2, handle=0, link_credit=10, delivery_count=0))
    sender = scripted.sender()
    scripted.end.events.clear()
    deliveries = [sender.delivery(bytes((number,))) for number in range(3)]
    assert [sender.transfer(each, b"x") for each in deliveries] == [1, 1, 0]
    assert [each.complete for each in deliveries] == [True, True, False]
    assert len(scripted.peer.hear()) == 2
    scripted.peer.write(flow(next_incoming_id=1, incoming_window=1))
    assert scripted.end.events == [], "that is where we are"
    scripted.peer.write(flow(next_incoming_id=2, incoming_window=2))
    assert scripted.end.take_one(events.WindowOpened).session is scripted.session()
    assert sender.transfer(deliveries[2], b"x") == 1
    assert deliveries[2].delivery_id == 2, "one that could not go had no number yet"
    transfer = scripted.peer.expect(Transfer)
    assert transfer.delivery_id == 2


def test_a_window_that_shrinks_below_what_is_under_way_is_closed_and_not_endless() -> None:
    scripted = mapped(attach=attached(Role.RECEIVER), begin=begun(incoming_window=10))
    scripted.peer.write(flow(incoming_window=10, handle=0, link_credit=10, delivery_count=0))
    sender = scripted.sender()
    for number in range(4):
        sender.transfer(sender.delivery(bytes((number,))))
    scripted.peer.write(flow(next_incoming_id=2, incoming_window=1))
    delivery = sender.delivery(b"late")
    assert sender.transfer(delivery) == 0
    assert not delivery.complete


def test_a_peer_that_has_not_seen_our_begin_counts_from_where_we_began() -> None:
    scripted = mapped(attach=attached(Role.RECEIVER), begin=begun(incoming_window=10), initial_outgoing_id=2**32 - 1)
    scripted.peer.write(flow(next_incoming_id=None, incoming_window=3, handle=0, link_credit=10, delivery_count=0))
    assert scripted.session().flow_state.remote_incoming_window == 3


def test_the_transfers_that_a_peer_numbers_otherwise_cost_and_give_it_no_window() -> None:
    # §2.5.6: next-incoming-id is what the flow says, so we count as the peer does from there.
    scripted = mapped(attach=attached(Role.SENDER), credit=100, window=3)
    scripted.peer.write(transferred(0), flow(next_outgoing_id=500))
    scripted.peer.write(transferred(1), flow(next_outgoing_id=2**32 - 5), transferred(2))
    assert len(scripted.end.take(events.TransferReceived)) == 3
    scripted.session().flow()
    told = scripted.peer.expect(Flow)
    assert (told.next_incoming_id, told.incoming_window) == (2**32 - 4, 0)
    scripted.peer.write(transferred(3))
    assert ended(scripted).condition == SessionCondition.WINDOW_VIOLATION


def test_a_session_flow_is_echoed_once_for_any_number_of_requests() -> None:
    scripted = mapped()
    scripted.peer.write(*(flow(echo=True) for _ in range(5)))
    told = scripted.peer.expect(Flow)
    assert not told.echo, "or the two would never stop"
    assert scripted.end.events == []


def test_our_numbers_go_round_and_nothing_happens() -> None:
    pair = Pair(
        client={"initial_outgoing_id": 2**32 - 3, "initial_delivery_id": 2**32 - 5, "window": 4},
        server={"initial_outgoing_id": 2**32 - 1, "initial_delivery_id": 2**32 - 1, "window": 5},
    )
    session = pair.open()
    sender = session.attach(Terminus("out", Role.SENDER), initial_delivery_count=2**32 - 2)
    receiver = session.attach(Terminus("in", Role.RECEIVER))
    pair.run()
    assert isinstance(sender, Sender)
    assert isinstance(receiver, Receiver)
    back = pair.server.engine.channels.incoming[0].links[receiver.flow_state.handle]
    there = pair.server.engine.channels.incoming[0].links[sender.flow_state.handle]
    assert isinstance(back, Sender)
    assert isinstance(there, Receiver)
    for round_ in range(20):
        there.flow(2)
        receiver.flow(2)
        pair.run()
        for link in (sender, back):
            for number in range(2):
                delivery = link.delivery(bytes((round_, number)))
                assert link.transfer(delivery, b"xy") == 2
        pair.run()
        for end in (pair.client, pair.server):
            for delivery, payload in whole(end.take(events.TransferReceived)):
                assert payload == b"xy"
                dispose(delivery, ACCEPTED_STATE, settled=True)
        pair.run()
        for end in (pair.client, pair.server):
            settled = [each for event in end.take(events.DispositionReceived) for each in event.deliveries]
            assert len(settled) == 2
            for delivery in settled:
                dispose(delivery, None, settled=True)
    assert session.flow_state.next_outgoing_id == serial_add(2**32 - 3, 40) == 37
    assert session.flow_state.next_delivery_id == 35
    assert sender.delivery_count == there.delivery_count == 38
    assert not session.flow_state.outgoing
    assert not session.flow_state.incoming


@given(
    window=st.integers(1, 6),
    sizes=st.lists(st.integers(0, 2000), min_size=1, max_size=12),
    chunk=st.integers(1, 300),
    frame_size=st.sampled_from([512, 600, 4096]),
)
def test_whatever_the_windows_and_frames_every_message_arrives_whole_and_in_order(
    window: int, sizes: list[int], chunk: int, frame_size: int
) -> None:
    pair = Pair(server={"window": window, "max_frame_size": frame_size}, sizes=repeat(chunk))
    sender = pair.open().attach(Terminus("x", Role.SENDER))
    pair.run()
    assert isinstance(sender, Sender)
    receiver = pair.server.engine.channels.incoming[0].links[0]
    assert isinstance(receiver, Receiver)
    receiver.flow(len(sizes))
    pair.run()
    received: list[events.TransferReceived] = []
    for number, size in enumerate(sizes):
        payload = bytes((number,)) * size
        delivery = sender.delivery(bytes((number,)))
        for _ in range(10_000):
            payload = payload[sender.transfer(delivery, payload) :]
            pair.run()
            arrived = pair.server.take(events.TransferReceived)
            received += arrived
            # The window is never exceeded: that would have ended the session.
            assert len(arrived) <= window
            receiver.session.release(len(arrived))
            pair.run()
            if delivery.complete:
                break
        else:
            raise AssertionError("the delivery does not get through")
    messages: dict[Delivery, bytes] = {}
    for event in received:
        messages[event.delivery] = messages.get(event.delivery, b"") + event.payload
    assert list(messages.values()) == [bytes((number,)) * size for number, size in enumerate(sizes)]
    assert not pair.server.take(events.SessionEnded)


# Dispositions (§2.7.6).


def delivered(number: int, *, links: int = 1) -> tuple[Scripted, list[Delivery]]:
    """Deliveries 0.. of the peer's, dealt out to its links, all live here."""
    scripted = mapped()
    for handle in range(links):
        scripted.peer.write(attached(Role.SENDER, f"a{handle}", handle=handle))
        scripted.receiver(handle).flow(100)
    for each in range(number):
        scripted.peer.write(transferred(each, handle=each % links))
    deliveries = [delivery for delivery, _ in scripted.transfers()]
    scripted.peer.hear()
    scripted.end.events.clear()
    return scripted, deliveries


def test_a_disposition_speaks_of_a_range_over_all_links_of_its_direction() -> None:
    scripted, deliveries = delivered(9, links=3)
    scripted.peer.write(Disposition(role=Role.SENDER, first=2, last=6, state=Accepted()))
    event = scripted.end.take_one(events.DispositionReceived)
    assert event.deliveries == deliveries[2:7]
    assert event.state == ACCEPTED_STATE
    assert not event.settled
    assert {each.remote_state for each in deliveries[2:7]} == {ACCEPTED_STATE}
    assert not any(each.remote_settled for each in deliveries)


def test_a_disposition_in_the_other_direction_is_of_other_deliveries() -> None:
    scripted, _ = delivered(3)
    scripted.peer.write(Disposition(role=Role.RECEIVER, first=0, last=2, settled=True))
    assert scripted.end.events == []


@pytest.mark.parametrize(
    ("first", "last"),
    [
        pytest.param(0, 2**31 - 1, id="half of all there are"),
        pytest.param(2**32 - 100, 2, id="across the wrap"),
        pytest.param(2**32 - 2**30, 2**30 - 1, id="half, across the wrap"),
    ],
)
def test_a_range_of_any_width_means_those_that_are_live(first: int, last: int) -> None:
    scripted, deliveries = delivered(3)
    scripted.peer.write(Disposition(role=Role.SENDER, first=first, last=last, settled=True))
    event = scripted.end.take_one(events.DispositionReceived)
    assert event.deliveries == deliveries
    assert all(each.remote_settled for each in deliveries)


@pytest.mark.parametrize(("first", "last"), [(3, None), (77, 99), (2, 1), (2**31, 2**32 - 1), (5, 4)])
def test_a_disposition_of_nothing_that_lives_is_nothing(first: int, last: int | None) -> None:
    scripted, _ = delivered(3)
    scripted.peer.write(Disposition(role=Role.SENDER, first=first, last=last, settled=True, state=Accepted()))
    scripted.peer.write(Disposition(role=Role.RECEIVER, first=first, last=last, settled=True, state=Accepted()))
    assert scripted.end.events == []
    assert scripted.peer.hear() == []


def test_a_delivery_that_we_settled_is_spoken_of_no_more() -> None:
    scripted, deliveries = delivered(3)
    dispose(deliveries[1], ACCEPTED_STATE, settled=True)
    assert scripted.peer.expect(Disposition) == Disposition(role=Role.RECEIVER, first=1, settled=True, state=Accepted())
    scripted.peer.write(Disposition(role=Role.SENDER, first=0, last=2, settled=True))
    assert scripted.end.take_one(events.DispositionReceived).deliveries == [deliveries[0], deliveries[2]]


def test_what_follows_each_other_and_says_the_same_is_said_at_once() -> None:
    scripted, deliveries = delivered(8, links=2)
    for each in deliveries[:5]:
        dispose(each, ACCEPTED_STATE, settled=True)
    dispose(deliveries[7], ACCEPTED_STATE, settled=True)
    said = scripted.peer.expect_all(Disposition, Disposition)
    assert [(each.first, each.last) for each in said if isinstance(each, Disposition)] == [(0, 4), (7, None)]


def test_with_an_end_what_was_disposed_is_said_before() -> None:
    scripted, deliveries = delivered(1)
    dispose(deliveries[0], ACCEPTED_STATE, settled=True)
    scripted.session().end()
    scripted.peer.expect_all(Disposition, End)


def test_after_an_end_nothing_is_said() -> None:
    scripted, deliveries = delivered(2)
    dispose(deliveries[0], ACCEPTED_STATE, settled=True)
    scripted.peer.write(End())
    dispose(deliveries[1], ACCEPTED_STATE, settled=True)
    # The one from before may be said before our end, the one from behind it never.
    heard = [each.performative for each in scripted.peer.hear()]
    assert heard == [Disposition(role=Role.RECEIVER, first=0, settled=True, state=Accepted()), End()]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        pytest.param(
            Rejected(error=Error(condition=Symbol("x:y"), description="no " * 400, info={Symbol("a"): "b" * 400})),
            Rejected(error=Error(condition=Symbol("x:y"), description=("no " * 400)[:60])),
            id="rejected with a long story",
        ),
        pytest.param(
            Rejected(error=Error(condition=Symbol("x" * 600))), Rejected(), id="rejected with a long condition"
        ),
        pytest.param(
            Modified(delivery_failed=True, message_annotations={Symbol("a"): "b" * 600}),
            Modified(delivery_failed=True),
            id="modified with a long annotation",
        ),
        pytest.param(
            TransactionalState(
                txn_id=b"t", outcome=Modified(undeliverable_here=True, message_annotations={Symbol("a"): "b" * 600})
            ),
            TransactionalState(txn_id=b"t", outcome=Modified(undeliverable_here=True)),
            id="the same in a transaction",
        ),
        pytest.param(
            TransactionalState(
                txn_id=b"t" * 32, outcome=Rejected(error=Error(condition=Symbol("x" * 80), description="ü" * 600))
            ),
            TransactionalState(
                txn_id=b"t" * 32, outcome=Rejected(error=Error(condition=Symbol("x" * 80), description="ü" * 60))
            ),
            id="the longest that there can be",
        ),
        pytest.param(
            Rejected(error=Error(condition=Symbol("x:y"), description="no " * 100)),
            Rejected(error=Error(condition=Symbol("x:y"), description="no " * 100)),
            id="what fits",
        ),
    ],
)
def test_a_state_that_does_not_fit_into_the_peers_frames_is_told_shortly(state: object, told: object) -> None:
    scripted = Scripted()
    scripted.peer.open(max_frame_size=512)
    scripted.peer.write(begun(), attached(Role.SENDER))
    scripted.receiver().flow(1)
    scripted.peer.write(transferred())
    scripted.peer.hear()
    ((delivery, _),) = scripted.transfers()
    dispose(delivery, encode_composite(state), settled=True)
    data = scripted.engine.data_to_send(scripted.now)
    assert len(data) <= 512
    disposition, _ = decode_performative(data, 8)
    assert disposition == Disposition(role=Role.RECEIVER, first=0, settled=True, state=told)  # type: ignore[arg-type]  # a state


@pytest.mark.parametrize("size", range(430, 512))
def test_a_state_is_told_in_full_as_long_as_it_fits(size: int) -> None:
    scripted = Scripted()
    scripted.peer.open(max_frame_size=512)
    scripted.peer.write(begun(), attached(Role.SENDER))
    scripted.receiver().flow(1)
    scripted.peer.write(transferred())
    scripted.peer.hear()
    ((delivery, _),) = scripted.transfers()
    state = Rejected(error=Error(condition=Symbol("x:y"), description="d" * size))
    dispose(delivery, encode_composite(state), settled=True)
    data = scripted.engine.data_to_send(scripted.now)
    full = len(frame(Disposition(role=Role.RECEIVER, first=0, settled=True, state=state)))
    assert len(data) == full if full <= 512 else len(data) < 200


def test_sessions_of_one_connection_have_numbers_of_their_own() -> None:
    scripted, first = delivered(2)
    scripted.peer.write(frame(begun(), channel=1), frame(attached(Role.SENDER), channel=1))
    scripted.receiver(channel=1).flow(5)
    scripted.peer.write(transferred(0), channel=1)
    ((second, _),) = scripted.transfers()
    scripted.peer.hear()
    scripted.end.events.clear()
    scripted.peer.write(Disposition(role=Role.SENDER, first=0, settled=True), channel=1)
    assert scripted.end.take_one(events.DispositionReceived).deliveries == [second]
    assert not first[0].remote_settled
