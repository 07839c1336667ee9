"""Deliveries of links, frame by frame, and their settlement (§2.6.12 to §2.6.14, §2.7.5)."""

from dataclasses import replace

import pytest

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.link import Receiver, Sender, Terminus
from amqpmesh.router.amqp.standard.definitions import (
    AmqpCondition,
    Error,
    LinkCondition,
    ReceiverSettleMode,
    Role,
    SenderSettleMode,
)
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Received, Rejected
from amqpmesh.router.amqp.standard.performatives import Disposition, Open, Transfer
from amqpmesh.router.kernel import ACCEPTED_STATE, Delivery, dispose
from tests.support.peers.engine_pair import Pair, Scripted
from tests.support.peers.scripted import AMQP, attached, begun, flow, frame, transferred
from tests.support.peers.scripted_link import failed, producing


def small_frames(*, credit: int = 5) -> Scripted:
    """Return a peer that receives frames of 512 octets, and refuses larger ones."""
    scripted = Scripted(peer_frame_size=512)
    scripted.peer.open(max_frame_size=512)
    scripted.peer.write(begun(), attached(Role.RECEIVER), flow(handle=0, delivery_count=0, link_credit=credit))
    scripted.peer.hear()
    scripted.end.events.clear()
    return scripted


def test_a_delivery_of_many_frames_has_its_particulars_in_the_first() -> None:
    scripted = small_frames()
    sender = scripted.sender()
    payload = bytes(range(256)) * 5
    assert sender.transfer(sender.delivery(b"tag", message_format=7), payload) == len(payload)
    heard = scripted.peer.hear()
    assert [each.performative for each in heard] == [
        Transfer(handle=0, delivery_id=0, delivery_tag=b"tag", message_format=7, more=True),
        Transfer(handle=0, more=True),
        Transfer(handle=0),
    ]
    assert b"".join(each.payload for each in heard) == payload
    assert sender.credit == 4, "one delivery, however many frames"


@pytest.mark.parametrize("size", [0, 1, 480, 486, 487, 488, 489, 490, 491, 492, 493, 500, 512, 1000, 5000])
def test_frames_are_cut_at_what_the_peer_takes_and_no_octet_is_lost(size: int) -> None:
    scripted = small_frames()
    sender = scripted.sender()
    payload = bytes(each % 251 for each in range(size))
    sender.transfer(sender.delivery(b"x" * 32), payload)
    heard = scripted.peer.hear()
    assert b"".join(each.payload for each in heard) == payload
    last = heard[-1].performative
    assert isinstance(last, Transfer)
    assert not last.more
    assert len(heard) <= size // 440 + 1


def test_a_delivery_is_sent_as_its_parts_come() -> None:
    scripted = small_frames()
    sender = scripted.sender()
    delivery = sender.delivery(b"t")
    for part in (b"one", b"", b"two"):
        sender.transfer(delivery, part, more=True)
    assert not delivery.complete
    other = sender.delivery(b"u")
    with pytest.raises(CommandError):
        sender.transfer(other, b"transfers of one link do not interleave")
    sender.transfer(delivery)
    assert delivery.complete
    heard = scripted.peer.hear()
    assert [(each.payload, getattr(each.performative, "more", None)) for each in heard] == [
        (b"one", True),
        (b"two", True),
        (b"", False),
    ]
    with pytest.raises(CommandError):
        sender.transfer(delivery, b"more")
    sender.transfer(other)


def test_a_delivery_may_be_settled_half_way_or_given_up() -> None:
    scripted = small_frames()
    sender = scripted.sender()
    settled = sender.delivery(b"s")
    sender.transfer(settled, b"one", more=True)
    sender.transfer(settled, b"two", settled=True)
    aborted = sender.delivery(b"a")
    with pytest.raises(CommandError):
        sender.transfer(aborted, aborted=True)
    sender.transfer(aborted, b"one", more=True)
    sender.transfer(aborted, aborted=True)
    assert aborted.complete
    assert aborted.aborted
    said = [each.performative for each in scripted.peer.hear()]
    assert said[1] == Transfer(handle=0, settled=True)
    assert said[3] == Transfer(handle=0, aborted=True)
    assert not scripted.session().flow_state.outgoing
    assert not sender.terminus.unsettled


@pytest.mark.parametrize("settled", [False, True])
def test_the_state_of_a_delivery_goes_with_its_first_frame(settled: bool) -> None:
    scripted = small_frames()
    sender = scripted.sender()
    state = Received(section_number=1, section_offset=2)
    sender.transfer(sender.delivery(b"t", settled=settled), b"x", state=encode_composite(state))
    transfer = scripted.peer.expect(Transfer)
    assert transfer.state == state
    assert bool(transfer.settled) is settled


def test_a_state_that_does_not_fit_goes_shortly() -> None:
    scripted = small_frames()
    long = Rejected(error=Error(condition=Symbol("x" * 80), description="ü" * 400))
    sender = scripted.sender()
    sender.transfer(sender.delivery(b"t" * 32), b"payload", state=encode_composite(long))
    heard = scripted.peer.hear()
    assert b"".join(each.payload for each in heard) == b"payload"
    first = heard[0].performative
    assert isinstance(first, Transfer)
    assert first.state == Rejected(error=Error(condition=Symbol("x" * 80), description="ü" * 60))


@pytest.mark.parametrize("size", range(380, 480, 3))
def test_with_a_state_of_any_size_frames_are_no_larger_than_the_peer_takes(size: int) -> None:
    scripted = small_frames(credit=1)
    state = encode_composite(Rejected(error=Error(condition=Symbol("x:y"), description="d" * size)))
    sender = scripted.sender()
    sender.transfer(sender.delivery(b"t" * 32, settled=True), b"payload", state=state)
    heard = scripted.peer.hear()
    assert b"".join(each.payload for each in heard) == b"payload"


def test_a_tag_is_short_and_its_own() -> None:
    scripted = small_frames()
    sender = scripted.sender()
    with pytest.raises(CommandError):
        sender.delivery(b"x" * 33)
    sender.transfer(sender.delivery(b"t"))
    with pytest.raises(CommandError):
        sender.delivery(b"t")
    scripted.peer.write(Disposition(role=Role.RECEIVER, first=0, settled=True, state=Accepted()))
    (delivery,) = scripted.end.take_one(events.DispositionReceived).deliveries
    dispose(delivery, None, settled=True)
    sender.transfer(sender.delivery(b"t"))


def test_a_message_of_many_frames_is_told_frame_by_frame() -> None:
    scripted = producing(credit=5)
    scripted.peer.write(
        frame(transferred(0, more=True, message_format=3), b"one"),
        frame(Transfer(handle=0, more=True), b"two"),
        frame(Transfer(handle=0), b"three"),
    )
    received = scripted.end.take(events.TransferReceived)
    assert [(event.payload, event.first) for event in received] == [(b"one", True), (b"two", False), (b"three", False)]
    (delivery,) = {event.delivery for event in received}
    assert (delivery.tag, delivery.message_format, delivery.size, delivery.complete) == (bytes(4), 3, 11, True)
    assert scripted.receiver().delivery_count == 1


def test_frames_of_different_links_may_interleave() -> None:
    scripted = producing(credit=5)
    scripted.peer.write(attached(Role.SENDER, "b", handle=1))
    scripted.receiver(1).flow(5)
    scripted.peer.write(
        frame(transferred(0, more=True), b"a"),
        frame(transferred(1, handle=1, more=True), b"b"),
        frame(Transfer(handle=0), b"A"),
        frame(Transfer(handle=1), b"B"),
    )
    assert [payload for _, payload in scripted.transfers()] == [b"aA", b"bB"]


@pytest.mark.parametrize("more", [False, True])
def test_an_aborted_delivery_is_over_and_what_stands_in_its_last_frame_is_ignored(more: bool) -> None:
    scripted = producing(credit=5)
    scripted.peer.write(
        frame(transferred(0, more=True), b"one"), frame(Transfer(handle=0, aborted=True, more=more), b"ignored")
    )
    ((delivery, payload),) = scripted.transfers()
    assert delivery.aborted
    assert delivery.settled
    assert payload == b"one"
    assert not scripted.session().flow_state.incoming
    scripted.peer.write(transferred(1, delivery_tag=bytes(4)))
    assert len(scripted.transfers()) == 1, "its tag and its place are free"


def test_a_delivery_may_be_aborted_with_its_only_frame() -> None:
    scripted = producing(credit=5)
    scripted.peer.write(frame(transferred(0, aborted=True), b"ignored"))
    assert [(delivery.aborted, payload) for delivery, payload in scripted.transfers()] == [(True, b"")]
    assert not scripted.session().flow_state.incoming


def test_a_delivery_that_is_settled_in_any_frame_is_settled() -> None:
    scripted = producing(credit=5)
    scripted.peer.write(
        transferred(0, more=True),
        Transfer(handle=0, more=True, settled=True),
        Transfer(handle=0),
        Disposition(role=Role.SENDER, first=0, settled=True),
    )
    ((delivery, _),) = scripted.transfers()
    assert delivery.remote_settled
    assert scripted.end.take(events.DispositionReceived) == []


def test_a_resumed_delivery_that_we_do_not_know_is_read_and_ignored() -> None:
    scripted = producing(credit=5, settings={"window": 8})
    scripted.peer.write(
        transferred(0, resume=True, more=True),
        Transfer(handle=0, resume=True, more=True),
        Transfer(handle=0),
        transferred(1, resume=True, state=Accepted(), settled=True),
        transferred(2),
    )
    assert [delivery.delivery_id for delivery, _ in scripted.transfers()] == [2]
    assert scripted.receiver().delivery_count == 3
    assert scripted.session().flow_state.held == 0
    assert len(scripted.end.take(events.DeliveryIgnored)) == 2, "each used one of the credit"
    assert scripted.end.events == []


@pytest.mark.parametrize("role", list(Role))
def test_an_unsettled_map_is_parsed(role: Role) -> None:
    unsettled = {b"one": None, b"two": Accepted(), b"three": Received(section_number=1, section_offset=9)}
    scripted = Scripted()
    scripted.peer.open()
    scripted.peer.write(begun(), attached(role, unsettled=unsettled, incomplete_unsettled=True))
    attach = scripted.end.take_one(events.LinkAttached).attach
    assert attach.unsettled is not None
    assert attach.unsettled == unsettled
    assert list(attach.unsettled.items()) == list(unsettled.items()), "in order, each read when it is asked for"
    assert len(attach.unsettled) == 3
    assert attach.incomplete_unsettled
    empty = attached(role, "b", handle=1)
    scripted.peer.write(replace(empty, unsettled={}), replace(empty, name="c", handle=2))
    with_map, without = scripted.end.take(events.LinkAttached)
    assert with_map.attach.unsettled == {}
    assert without.attach.unsettled is None, "to resume and to attach again differ (§2.6.13)"


def test_a_message_that_is_larger_than_we_take_detaches_the_link() -> None:
    def limited() -> Scripted:
        scripted = Scripted(answers=False)
        scripted.peer.write(AMQP, Open(container_id="peer"))
        scripted.engine.open()
        scripted.peer.write(begun(), attached(Role.SENDER))
        scripted.session().begin()
        scripted.link().attach(max_message_size=10)
        scripted.receiver().flow(5)
        scripted.peer.expect_header()
        scripted.peer.hear()
        scripted.end.events.clear()
        return scripted

    scripted = limited()
    scripted.peer.write(frame(transferred(0), bytes(10)), frame(transferred(1), bytes(11)))
    assert len(scripted.transfers()) == 1
    assert failed(scripted).condition == LinkCondition.MESSAGE_SIZE_EXCEEDED

    scripted = limited()
    scripted.peer.write(frame(transferred(0, more=True), bytes(6)), frame(Transfer(handle=0), bytes(5)))
    assert failed(scripted).condition == LinkCondition.MESSAGE_SIZE_EXCEEDED


@pytest.mark.parametrize(
    ("attach", "transfer", "condition"),
    [
        pytest.param({}, {"delivery_tag": b"\0\0\0\0"}, AmqpCondition.NOT_ALLOWED, id="a tag in use"),
        pytest.param(
            {"snd_settle_mode": SenderSettleMode.UNSETTLED},
            {"settled": True},
            AmqpCondition.INVALID_FIELD,
            id="settled on a link of unsettled ones",
        ),
        pytest.param(
            {"rcv_settle_mode": ReceiverSettleMode.FIRST},
            {"rcv_settle_mode": ReceiverSettleMode.SECOND},
            AmqpCondition.INVALID_FIELD,
            id="mode second on a link of mode first",
        ),
    ],
)
def test_a_link_error_detaches_the_link_with_the_reason(
    attach: dict[str, object], transfer: dict[str, object], condition: Symbol
) -> None:
    scripted = producing(credit=5, **attach)
    scripted.peer.write(transferred(0))
    scripted.end.events.clear()
    scripted.peer.write(transferred(1, **transfer))
    assert failed(scripted).condition == condition


# Settle modes (§2.8.2, §2.8.3).


def test_in_mode_first_the_receiver_settles_when_it_has_it() -> None:
    sent, received, pair = exchanged(ReceiverSettleMode.FIRST)
    assert not received.second
    dispose(received, ACCEPTED_STATE, settled=True)
    pair.run()
    event = pair.client.take_one(events.DispositionReceived)
    assert event.deliveries == [sent]
    assert event.settled
    dispose(sent, None, settled=True)
    pair.run()
    assert pair.server.events == [], "of what is settled nothing is said"
    assert_empty(pair)


def test_in_mode_second_the_receiver_settles_after_the_sender() -> None:
    sent, received, pair = exchanged(ReceiverSettleMode.SECOND)
    assert received.second
    dispose(received, ACCEPTED_STATE, settled=False)
    pair.run()
    assert not pair.client.take_one(events.DispositionReceived).settled
    dispose(sent, None, settled=True)
    pair.run()
    event = pair.server.take_one(events.DispositionReceived)
    assert event.deliveries == [received]
    assert event.settled
    dispose(received, ACCEPTED_STATE, settled=True)
    pair.run()
    assert pair.client.events == []
    assert_empty(pair)


def test_a_delivery_of_a_link_of_mode_second_may_be_of_mode_first() -> None:
    scripted = producing(credit=5, rcv_settle_mode=ReceiverSettleMode.SECOND)
    scripted.peer.write(transferred(0, rcv_settle_mode=ReceiverSettleMode.FIRST), transferred(1))
    assert [delivery.second for delivery, _ in scripted.transfers()] == [False, True]


def test_a_presettled_delivery_is_over_when_it_is_sent() -> None:
    pair, sender, receiver = connected(ReceiverSettleMode.FIRST)
    receiver.flow(1)
    pair.run()
    sender.transfer(sender.delivery(b"t", settled=True), b"x")
    pair.run()
    delivery = pair.server.take_one(events.TransferReceived).delivery
    assert delivery.settled
    dispose(delivery, ACCEPTED_STATE, settled=True)
    pair.run()
    assert pair.client.take(events.DispositionReceived) == []
    assert_empty(pair)


def connected(mode: ReceiverSettleMode) -> tuple[Pair, Sender, Receiver]:
    pair = Pair()
    sender = pair.open().attach(Terminus("x", Role.SENDER), rcv_settle_mode=mode)
    pair.run()
    receiver = pair.server.engine.channels.incoming[0].links[0]
    assert isinstance(sender, Sender)
    assert isinstance(receiver, Receiver)
    return pair, sender, receiver


def exchanged(mode: ReceiverSettleMode) -> tuple[Delivery, Delivery, Pair]:
    pair, sender, receiver = connected(mode)
    receiver.flow(1)
    pair.run()
    sent = sender.delivery(b"t")
    sender.transfer(sent, b"x")
    pair.run()
    received = pair.server.take_one(events.TransferReceived).delivery
    pair.client.events.clear()
    pair.server.events.clear()
    return sent, received, pair


def assert_empty(pair: Pair) -> None:
    for end in (pair.client, pair.server):
        session = end.engine.channels.incoming[0]
        assert not session.flow_state.outgoing
        assert not session.flow_state.incoming
        assert not any(link.terminus.unsettled for link in session.all_links)
