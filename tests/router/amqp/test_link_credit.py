"""Link credit: granted, used, and agreed on (§2.6.7 to §2.6.10)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.amqp.link import Receiver, Sender, Terminus
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, LinkCondition, Role
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Detach, Flow, Open, Transfer
from amqpmesh.router.kernel import serial_add
from tests.support.peers.engine_pair import Pair, Scripted
from tests.support.peers.scripted import AMQP, attached, begun, flow, transferred
from tests.support.peers.scripted_link import consuming, failed, producing


def test_a_flow_sets_the_credit_that_its_limit_leaves() -> None:
    scripted = consuming(credit=3)
    sender = scripted.sender()
    for number in range(2):
        sender.transfer(sender.delivery(bytes((number,))))
    assert sender.credit == 1
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=5, next_incoming_id=0))
    assert sender.credit == 3, "two of the five are used"
    scripted.peer.write(flow(handle=0, delivery_count=2, link_credit=5, next_incoming_id=2))
    assert sender.credit == 5
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=1, next_incoming_id=2))
    assert sender.credit == 0, "never below"
    with pytest.raises(CommandError):
        sender.transfer(sender.delivery(b"late"))


def test_a_flow_without_credit_leaves_it_as_it_is() -> None:
    scripted = consuming(credit=3)
    scripted.peer.write(flow(handle=0, delivery_count=0))
    assert scripted.sender().credit == 3
    assert len(scripted.end.take(events.CreditChanged)) == 1


def test_credit_given_twice_before_the_peer_knows_our_count_is_given_once() -> None:
    scripted = Scripted(server=False)
    scripted.engine.open()
    session = scripted.engine.begin()
    scripted.peer.write(AMQP, Open(container_id="server"), begun(0))
    sender = session.attach(Terminus("x", Role.SENDER), initial_delivery_count=2**32 - 1)
    assert isinstance(sender, Sender)
    pipelined = flow(next_incoming_id=None, handle=0, link_credit=5)
    scripted.peer.write(attached(Role.RECEIVER, name="x"), pipelined)
    for number in range(3):
        sender.transfer(sender.delivery(bytes((number,))))
    scripted.peer.write(pipelined)
    assert sender.credit == 2


@pytest.mark.parametrize("credit", [2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("count", [0, 5, 2**32 - 1])
def test_credit_without_end_is_credit(credit: int, count: int) -> None:
    pair = Pair()
    sender = pair.open().attach(Terminus("x", Role.SENDER), initial_delivery_count=count)
    pair.run()
    assert isinstance(sender, Sender)
    session = pair.server.engine.channels.incoming[0]
    session.write(flow(handle=session.links[0].flow_state.handle, delivery_count=count, link_credit=credit))
    pair.run()
    assert sender.credit == 2**31 - 1
    sender.transfer(sender.delivery(b"x"))
    assert sender.credit == 2**31 - 2


def test_a_transfer_without_credit_detaches_the_link() -> None:
    scripted = producing(credit=2)
    scripted.peer.write(transferred(0), transferred(1), transferred(2))
    assert len(scripted.end.take(events.TransferReceived)) == 2
    assert failed(scripted).condition == LinkCondition.TRANSFER_LIMIT_EXCEEDED
    scripted.peer.write(transferred(3), Detach(handle=0, closed=True), attached(Role.SENDER, "b"))
    scripted.peer.expect(Attach)


def test_a_transfer_before_any_credit_detaches_the_link_even_if_it_is_not_attached_yet() -> None:
    scripted = Scripted(answers=False)
    scripted.peer.write(AMQP, Open(container_id="peer"), begun(), attached(Role.SENDER), transferred())
    scripted.peer.expect_header()
    *_, attach, detach = scripted.peer.expect_all(Open, Begin, Attach, Detach)
    assert isinstance(attach, Attach)
    assert attach.target is None
    assert isinstance(detach, Detach)
    assert detach.error is not None
    assert detach.error.condition == LinkCondition.TRANSFER_LIMIT_EXCEEDED
    scripted.end.take_one(events.LinkDetached)


def test_a_delivery_sent_under_a_higher_limit_is_no_error() -> None:
    scripted = producing(credit=5)
    receiver = scripted.receiver()
    receiver.flow(0)
    assert scripted.peer.expect(Flow).link_credit == 0
    for number in range(5):
        scripted.peer.write(transferred(number))
    assert len(scripted.transfers()) == 5
    assert receiver.credit == 0
    scripted.peer.write(transferred(5))
    assert failed(scripted).condition == LinkCondition.TRANSFER_LIMIT_EXCEEDED


def test_once_the_peer_has_shown_that_it_knows_the_lower_limit_that_holds() -> None:
    scripted = producing(credit=5)
    scripted.receiver().flow(1, echo=True)
    told = scripted.peer.expect(Flow)
    assert told.echo
    assert told.link_credit == 1
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=1), transferred(0), transferred(1))
    assert len(scripted.transfers()) == 1
    assert failed(scripted).condition == LinkCondition.TRANSFER_LIMIT_EXCEEDED


def test_credit_that_is_raised_counts_from_where_the_sender_is() -> None:
    scripted = producing(credit=2, initial_delivery_count=2**32 - 1)
    scripted.peer.write(transferred(0))
    scripted.receiver().flow(4)
    told = scripted.peer.expect(Flow)
    assert (told.delivery_count, told.link_credit) == (0, 4)
    for number in range(1, 5):
        scripted.peer.write(transferred(number))
    assert len(scripted.transfers()) == 5
    scripted.peer.write(transferred(5))
    assert failed(scripted).condition == LinkCondition.TRANSFER_LIMIT_EXCEEDED


def test_available_is_told_and_goes_down_with_what_comes_and_never_below_nothing() -> None:
    scripted = producing(credit=5)
    receiver = scripted.receiver()
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=5, available=2))
    assert receiver.flow_state.available == 2
    for number in range(3):
        scripted.peer.write(transferred(number))
    assert receiver.flow_state.available == 0
    receiver.flow(5)
    assert scripted.peer.expect(Flow).available == 0

    scripted = consuming()
    scripted.sender().offer(7)
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=0, echo=True))
    assert scripted.peer.expect(Flow).available == 7


def test_a_link_flow_is_echoed_with_the_links_state() -> None:
    scripted = consuming(credit=3)
    scripted.sender().transfer(scripted.sender().delivery(b"x"))
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=3, next_incoming_id=0, echo=True))
    transfer, told = scripted.peer.expect_all(Transfer, Flow)
    assert isinstance(transfer, Transfer)
    assert isinstance(told, Flow)
    assert (told.handle, told.delivery_count, told.link_credit, told.drain, told.echo) == (0, 1, 2, False, False)
    assert told.next_outgoing_id == 1


def test_a_drain_with_nothing_to_send_uses_up_the_credit_and_says_so() -> None:
    scripted = consuming(credit=3)
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=3, drain=True))
    sender = scripted.end.take_one(events.DrainRequested).link
    assert scripted.peer.hear() == [], "it is for the owner to say that there is nothing"
    sender.transfer(sender.delivery(b"last"))
    sender.drained()
    _, told = scripted.peer.expect_all(Transfer, Flow)
    assert isinstance(told, Flow)
    assert (told.delivery_count, told.link_credit, told.drain) == (3, 0, True)
    assert sender.credit == 0
    scripted.peer.write(flow(handle=0, delivery_count=3, link_credit=1, next_incoming_id=1))
    assert sender.credit == 1
    sender.drained()
    assert scripted.peer.hear() == [], "nobody asks for it now"


def test_one_credit_can_be_drained() -> None:
    scripted = consuming()
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=1, drain=True))
    scripted.end.take_one(events.DrainRequested).link.drained()
    assert scripted.peer.expect(Flow).delivery_count == 1


def test_a_drain_of_no_credit_is_answered_at_once() -> None:
    scripted = consuming()
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=0, drain=True))
    assert scripted.end.take(events.DrainRequested) == []
    told = scripted.peer.expect(Flow)
    assert (told.delivery_count, told.link_credit, told.drain) == (0, 0, True)


def test_a_drained_sender_gives_its_credit_back() -> None:
    scripted = producing(credit=5, initial_delivery_count=2**32 - 3)
    receiver = scripted.receiver()
    receiver.flow(5, drain=True)
    assert scripted.peer.expect(Flow).drain
    scripted.peer.write(transferred(0), flow(next_outgoing_id=1, handle=0, delivery_count=2, link_credit=0, drain=True))
    assert receiver.credit == 0
    assert receiver.delivery_count == 2
    scripted.peer.write(transferred(1))
    assert failed(scripted).condition == LinkCondition.TRANSFER_LIMIT_EXCEEDED


def test_a_drain_may_be_answered_in_the_middle_of_a_delivery() -> None:
    scripted = producing(credit=5)
    receiver = scripted.receiver()
    receiver.flow(5, drain=True)
    scripted.peer.expect(Flow)
    scripted.peer.write(
        transferred(0, more=True), flow(next_outgoing_id=1, handle=0, delivery_count=5, link_credit=0, drain=True)
    )
    scripted.peer.write(transferred(0))
    assert len(scripted.transfers()) == 1
    assert (receiver.delivery_count, receiver.credit) == (5, 0)


def test_a_sender_that_counts_beyond_its_limit_is_detached() -> None:
    scripted = producing(credit=5)
    scripted.peer.write(flow(handle=0, delivery_count=6, link_credit=0))
    assert failed(scripted).condition == LinkCondition.TRANSFER_LIMIT_EXCEEDED


@given(st.integers(0, 2**32 - 1), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=20))
def test_both_ends_agree_on_the_credit_wherever_the_count_begins(start: int, rounds: list[tuple[int, int]]) -> None:
    pair = Pair()
    sender = pair.open().attach(Terminus("x", Role.SENDER), initial_delivery_count=start)
    pair.run()
    assert isinstance(sender, Sender)
    receiver = pair.server.engine.channels.incoming[0].links[0]
    assert isinstance(receiver, Receiver)
    sent = 0
    for credit, wanted in rounds:
        receiver.flow(credit)
        # The flow crosses deliveries under the old limit.
        while sender.credit and wanted > 3:
            sender.transfer(sender.delivery(sent.to_bytes(4, "big")))
            sent += 1
            wanted -= 1
        pair.run()
        for _ in range(min(sender.credit, wanted)):
            sender.transfer(sender.delivery(sent.to_bytes(4, "big")))
            sent += 1
        pair.run()
        assert sender.delivery_count == receiver.delivery_count == serial_add(start, sent)
        assert sender.credit == receiver.credit
    assert len(pair.server.take(events.TransferReceived)) == sent
    assert not pair.server.take(events.LinkDetached)


def test_a_flow_within_a_transaction_detaches_the_link() -> None:
    scripted = consuming(credit=3)
    none = flow(handle=0, delivery_count=0, link_credit=4, properties={Symbol("txn-id"): None, Symbol("x"): 1})
    scripted.peer.write(none)
    assert scripted.sender().credit == 4
    scripted.end.events.clear()
    sender = scripted.sender()
    scripted.peer.write(flow(handle=0, delivery_count=0, link_credit=5, properties={Symbol("txn-id"): b"t"}))
    assert failed(scripted).condition == AmqpCondition.NOT_IMPLEMENTED
    assert sender.credit == 4, "nothing of it has counted"
