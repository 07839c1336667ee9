"""Session windows: transfers that may be in flight, and the flows that announce them (§2.5.6, §2.7.4)."""

from itertools import repeat

from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.link import Receiver, Sender, Terminus
from amqpmesh.router.amqp.standard.definitions import Role, SessionCondition
from amqpmesh.router.amqp.standard.performatives import Begin, End, Flow, Open, Transfer
from amqpmesh.router.kernel import ACCEPTED_STATE, Delivery, dispose, serial_add
from tests.support.peers.engine_pair import Pair, Scripted, whole
from tests.support.peers.scripted import AMQP, attached, begun, flow, transferred
from tests.support.peers.scripted_session import ended, mapped


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


def test_a_released_delivery_opens_the_window_again() -> None:
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


def test_what_the_peer_may_still_send_is_counted_down_and_told_anew() -> None:
    # §2.5.6: remote-outgoing-window.
    scripted = mapped(attach=attached(Role.SENDER), credit=100, begin=begun(outgoing_window=7))
    state = scripted.session().flow_state
    assert state.remote_outgoing_window == 7
    scripted.peer.write(transferred(0, more=True), transferred(0))
    assert state.remote_outgoing_window == 5
    scripted.peer.write(flow(next_outgoing_id=2, outgoing_window=2))
    assert state.remote_outgoing_window == 2
    for number in range(1, 4):
        scripted.peer.write(transferred(number))
    assert state.remote_outgoing_window == 0, "a window that the peer does not keep to is its own affair"
    assert len(scripted.transfers()) == 4


def test_a_flow_counts_what_came_only_once_the_peer_has_begun() -> None:
    # §2.7.4: next-incoming-id.
    scripted = Scripted(server=False)
    scripted.engine.open()
    session = scripted.engine.begin()
    session.flow()
    scripted.peer.expect_header()
    told = scripted.peer.expect_all(Open, Begin, Flow)[-1]
    assert isinstance(told, Flow)
    assert told.next_incoming_id is None
    scripted.peer.write(AMQP, Open(container_id="server"), begun(0, next_outgoing_id=77))
    session.flow()
    assert scripted.peer.expect(Flow).next_incoming_id == 77


def test_a_flow_of_the_session_says_nothing_of_a_link() -> None:
    scripted = mapped(attach=attached(Role.SENDER), credit=5)
    scripted.session().flow()
    told = scripted.peer.expect(Flow)
    assert (told.handle, told.delivery_count, told.link_credit, told.available) == (None,) * 4
    assert not told.drain, "which is as good as not set (§1.4)"
    assert told.properties is None


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
    # §2.5.6: next-incoming-id is set from the flow, so we count as the peer does from then on.
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
