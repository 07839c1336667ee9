"""Corners where a delivery, a credit or a record could be lost, doubled or kept: each was, once."""

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.composite import encode_composite
from amqpmesh.router.amqp.definitions import AmqpCondition, Error, ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.delivery_states import (
    Accepted,
    Declared,
    Modified,
    Received,
    Released,
    TransactionalState,
)
from amqpmesh.router.amqp.frames import FrameReader
from amqpmesh.router.amqp.messaging import Source, Target
from amqpmesh.router.amqp.performatives import Attach, Disposition, Flow, Transfer, decode_performative
from amqpmesh.router.amqp.types import Symbol
from amqpmesh.router.config import AddressConfig, ListenerConfig, Overflow
from amqpmesh.router.departures import fail_link
from tests.support.network import Network, message

SECOND = ReceiverSettleMode.SECOND


def test_a_foreign_format_message_begun_empty_survives_its_consumers_death() -> None:
    network = Network()
    a, b, producer = network.client(), network.client(), network.client()
    a.receiver("q")
    link = producer.sender("q")
    sent = producer.send(link, b"", more=True, message_format=7)  # goes to a, which has heard nothing of it
    b.receiver("q")
    a.lose()  # IndexError: deque index out of range
    producer.go_on(sent, b"rest")
    (arrival,) = b.take(1)
    assert bytes(arrival.payload) == b"rest"


def test_an_excluded_consumer_is_not_blocked_by_what_it_may_not_have() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True, attempts=9))
    a, b, producer = network.client(), network.client(), network.client()
    a.receiver("q", credit=10)
    link = producer.sender("q")
    producer.send(link)
    b.receiver("q", credit=0)
    a.take(1)[0].dispose(Modified(undeliverable_here=True), settled=True)
    network.run()
    producer.send(link)
    network.advance(5)
    assert len(a.take()) == 1, "head-of-line: a has credit, the second message may go to it"


def test_what_waits_for_a_consumer_that_left_gets_an_outcome() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True, attempts=9))
    a, b, producer = network.client(), network.client(), network.client()
    a.receiver("q", credit=10)
    link = producer.sender("q")
    s1 = producer.send(link)
    other = b.receiver("q", credit=0)
    a.take(1)[0].dispose(Modified(undeliverable_here=True), settled=True)
    network.run()
    other.detach()
    network.advance(60)
    assert s1.outcome is not None


@pytest.mark.parametrize("state", [TransactionalState(txn_id=b"t"), Declared(txn_id=b"t")])
def test_a_transfer_with_a_transactional_state_is_never_relayed_as_a_plain_one(
    state: TransactionalState | Declared,
) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    link = producer.sender("q")
    producer.send(link, state=encode_composite(state))
    assert not consumer.take(), "relayed as a plain message"
    assert producer.detached[link].condition == "amqp:transaction:unknown-id"


def test_a_closed_link_leaves_nothing_in_the_ledger() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=1000)
    for _i in range(50):
        link = producer.sender("q")
        producer.send(link)
        link.detach()
        network.run()
    session = next(iter(producer.record.engine.channels.incoming.values()))
    assert len(session.flow_state.incoming) == 0, f"{len(session.flow_state.incoming)} left in the ledger"


def test_a_stolen_link_leaves_nothing_in_the_ledger() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=1000)
    for _i in range(3):
        link = producer.sender("q", name="same")
        producer.send(link)
        network.run()
    session = next(iter(producer.record.engine.channels.incoming.values()))
    assert len(session.flow_state.incoming) <= 1


@pytest.mark.parametrize("side", ["consumer", "producer"])
def test_a_link_detached_without_closing_is_forgotten_when_its_deliveries_are_settled(side: str) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    for _i in range(20):
        receiver = consumer.receiver("q")
        link = producer.sender("q")
        producer.send(link)
        network.run()
        (arrival,) = consumer.take(1)
        (receiver if side == "consumer" else link).detach(closed=False)
        network.run()
        arrival.accept()
        network.run()
        (link if side == "consumer" else receiver).detach()
        network.run()
    assert network.core.relays == 0
    record = consumer.record if side == "consumer" else producer.record
    assert not record.lingering, f"{len(record.lingering)} links linger without a delivery"


def test_max_unsettled_holds_for_a_consumer_that_detaches_and_comes_back() -> None:
    network = Network(AddressConfig(pattern="q", max_unsettled=2))
    consumer, producer = network.client(), network.client()
    link = None
    for i in range(20):
        receiver = consumer.receiver("q", name=f"r{i}")
        link = link or producer.sender("q")
        for _ in range(2):
            if link.credit:
                producer.send(link)
        receiver.detach(closed=False)
        network.run()
    assert network.core.relays <= 6, f"{network.core.relays} unsettled at one consumer"


def test_after_an_answered_drain_its_credit_is_not_promised() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    link = producer.sender("q")
    receiver = consumer.receiver("q", credit=0)
    receiver.flow(10, drain=True)
    network.run()
    network.advance(1)
    assert receiver.credit == 0
    pool = link and next(iter(producer.record.incoming)).pool
    assert pool.demand == 0, f"demand {pool.demand} for a consumer without credit"
    assert link.credit <= 1, f"producer holds {link.credit}"


def test_resumed_deliveries_that_are_ignored_do_not_eat_a_producers_credit_for_ever() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=5)
    link = producer.sender("q")
    before = link.credit
    assert before
    for i in range(before):
        link.delivery(b"t%d" % i)
        # as transfer, with resume
        producer.engine.write(
            0,
            Transfer(
                handle=link.flow_state.handle,
                delivery_id=link.flow_state.session.next_delivery_id,
                delivery_tag=b"t%d" % i,
                resume=True,
                settled=True,
            ),
        )
        fs = link.flow_state
        fs.session.next_delivery_id += 1
        fs.session.next_outgoing_id += 1
        fs.delivery_count += 1
        fs.link_credit -= 1
    network.advance(10)
    assert link.credit > 0, "no credit ever again"
    incoming = next(iter(producer.record.incoming))
    assert incoming.input.delivery_count == incoming.link.delivery_count


def test_a_presettled_message_that_is_too_large_leaves_nothing() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", max_message_size=1000)
    link = producer.sender("q")
    large = producer.send(link, message("x" * 500), settled=True, more=True)
    producer.go_on(large, b"y" * 2000, more=True)
    producer.go_on(large, b"z")
    assert network.core.relays == 0, network.core.relays


def test_settled_by_the_sender_midway_then_accepted_leaves_nothing() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    link = producer.sender("q")
    large = producer.send(link, message("x" * 500), more=True)
    producer.engine.write(0, Disposition(role=Role.SENDER, first=large.delivery.delivery_id, settled=True))
    network.run()
    consumer.arrivals[0].dispose(Accepted(), settled=False)
    network.run()
    producer.go_on(large, b"end")
    network.run()
    assert network.core.relays == 0, network.core.relays


def test_a_multicast_that_drops_goes_on_without_one_that_never_gave_credit() -> None:
    network = Network(AddressConfig(pattern="q", distribution=Distribution.MULTICAST, overflow=Overflow.DROP))
    a, b, producer = network.client(), network.client(), network.client()
    a.receiver("q", credit=100)
    b.receiver("q", credit=0)
    link = producer.sender("q")
    network.advance(30)
    assert link.credit > 0, "one receiver without credit stops the address for ever, overflow = drop or not"


def test_a_dead_letter_after_the_last_try_is_told_undeliverable() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True, attempts=1, dead_letter="dead"))
    consumer, large, producer = network.client(), network.client(), network.client()
    consumer.receiver("q")
    large.receiver("dead")
    link = producer.sender("q")
    sent = producer.send(link)
    consumer.take(1)[0].dispose(Released(), settled=True)
    network.run()
    large.take(1)
    assert sent.outcome == Modified(delivery_failed=True, undeliverable_here=True), sent.outcome


def test_dead_letters_for_a_stopped_consumer_do_not_stop_the_router() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True, attempts=1, dead_letter="dead"), memory=2**20)
    consumer, large, producer, c2, p2 = (network.client() for _ in range(5))
    receiver = consumer.receiver("q", credit=100)
    large.receiver("dead", credit=0)
    link = producer.sender("q")
    c2.receiver("other")
    s2 = p2.sender("other")
    for _i in range(40):
        if not link.credit:
            break
        producer.send(link, message("x" * 50_000))
        for arrival in consumer.take():
            arrival.dispose(Released(), settled=True)
        network.run()
        receiver.flow(100)
        network.run()
    network.advance(10)
    assert s2.credit > 0, f"{network.core.budget.used} octets of dead letters: nobody gets credit any more"


def test_nothing_is_said_of_the_deliveries_of_a_link_that_its_peer_closed_with_an_error() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q")
    producer.send(producer.sender("q"))
    consumer.take(1)
    receiver.detach(error=Error(condition=AmqpCondition.INTERNAL_ERROR))
    network.core.receive(consumer.record, consumer.engine.data_to_send(network.now), network.now)
    reader = FrameReader(2**20)
    reader.feed(network.core.data_to_send(consumer.record, network.now))
    got = []
    while f := reader.next_frame():
        got.append(decode_performative(f.body)[0])
    assert not [frame for frame in got if isinstance(frame, Disposition)], [type(frame).__name__ for frame in got]


def test_copies_without_payload_are_bounded() -> None:
    network = Network(AddressConfig(pattern="q", copy_backlog=1000))
    consumer, b, producer = network.client(), network.client(), network.client()
    receiver = consumer.receiver("q", credit=1000)
    b.receiver("q", credit=0, copy=True)
    link = producer.sender("q")
    for _k in range(20):
        link = producer.sender("q", session=producer.engine.begin())
        network.run()
        for _i in range(100):
            if link.credit:
                producer.send(link, b"", settled=True)
        consumer.take()
        receiver.flow(1000)
        network.run()
    out = next(iter(b.record.outgoing))
    assert len(out.backlog) <= 100, len(out.backlog)


def test_states_that_are_no_outcome_do_not_gather_for_a_producer_that_reads_nothing() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    producer.send(producer.sender("q"))
    (arrival,) = consumer.take(1)
    producer.stopped = True
    for i in range(2000):
        arrival.dispose(Received(section_number=0, section_offset=i), settled=False)
        network.run()
    session = next(iter(producer.record.engine.channels.incoming.values()))
    assert len(session.flow_state.dispositions) + len(producer.record.engine.out) // 30 < 100, len(
        session.flow_state.dispositions
    )


def test_a_sender_sends_nothing_new_after_an_incomplete_unsettled_map() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.engine.write(
        0,
        Attach(
            name="r",
            handle=7,
            role=Role.RECEIVER,
            source=Source(address="q"),
            target=Target(),
            unsettled={b"a": None},
            incomplete_unsettled=True,
        ),
    )
    consumer.engine.write(
        0,
        Flow(
            next_incoming_id=0,
            incoming_window=100,
            next_outgoing_id=0,
            outgoing_window=100,
            handle=7,
            delivery_count=0,
            link_credit=5,
        ),
    )
    network.core.receive(consumer.record, consumer.engine.data_to_send(network.now), network.now)
    out = next(iter(consumer.record.outgoing), None)
    producer.sender("q") if False else None
    assert out is None or out.usable == 0, "new deliveries would go (§2.7.3)"


def test_a_consumer_that_vanishes_before_its_frame_of_a_multicast_counts_as_released() -> None:
    network = Network(AddressConfig(pattern="q", distribution=Distribution.MULTICAST))
    network.listener = ListenerConfig(url="amqp://127.0.0.1:0", name="t", idle_time_out=0.0, output_backlog=1)
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    consumer.receiver("q")
    link = producer.sender("q")
    consumer.stopped = True
    producer.send(link)
    outs = list(consumer.record.outgoing)
    late = [o for o in outs if o.current is not None and not o.current.started]
    assert late, "no leg is unsent"
    leg = late[0].current
    fail_link(network.core, late[0], Error(condition=Symbol("x:y")))
    assert leg.outcome == b"\x00\x53\x26\x45", leg.outcome


def test_an_answer_to_a_drain_does_not_wait_for_a_large_message() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=0)
    link = producer.sender("q")
    receiver.flow(2)
    network.run()
    producer.send(link, message("x" * 100), more=True)
    receiver.flow(1, drain=True)
    network.run()
    network.advance(5)
    assert receiver.credit == 0, "drain_time is 0.25 s"


def test_a_redelivery_expires_while_it_waits() -> None:
    network = Network(AddressConfig(pattern="q", redeliver=True))
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=1)
    link = producer.sender("q")
    sent = producer.send(link, message(ttl=500))
    consumer.take(1)[0].dispose(Released(), settled=True)
    network.run()
    network.advance(10)
    assert sent.outcome is not None, "its ttl is over since 9.5 link, and nobody was told"


def test_a_router_that_drains_takes_anonymous_credit_back() -> None:
    network = Network()
    producer = network.client()
    link = producer.sender(None)
    assert link.credit
    network.core.start_drain(network.now)
    network.run()
    assert link.credit == 0, f"start_drain: 'unused credit is taken back', the anonymous sender holds {link.credit}"


def test_a_senders_terminal_state_said_while_it_waits_goes_down() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=1)
    link = producer.sender("q", rcv=ReceiverSettleMode.SECOND)
    producer.send(link)
    sent = producer.send(link)
    sent.dispose(Released(), settled=False)
    network.run()
    receiver.flow(1)
    network.run()
    last = consumer.arrivals[-1]
    assert last.delivery.remote_state is not None or last.said, "the sender's state is passed down (§2.6.12)"


def test_a_transfers_own_state_goes_down() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    producer.send(producer.sender("q"), state=encode_composite(Released()))
    assert consumer.arrivals[-1].delivery.remote_state is not None


def test_a_link_of_mode_settled_may_not_send_unsettled() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    link = producer.sender("q", snd=SenderSettleMode.SETTLED)
    producer.send(link)
    assert link in producer.detached, (
        "§2.7.5: MUST be true on at least one transfer; unsettled mode is checked, settled mode is not"
    )


def test_a_copy_receivers_drain_is_answered_when_its_copies_are_sent() -> None:
    network = Network()
    consumer, b, producer = network.client(), network.client(), network.client()
    consumer.receiver("q")
    receiver = b.receiver("q", credit=1, copy=True)
    link = producer.sender("q")
    big = producer.send(link, message("x" * 100), more=True)  # its copy is in the middle of its frames
    out = next(iter(b.record.outgoing))
    s2 = producer.sender("q", session=producer.engine.begin())
    network.run()
    consumer.receiver("q")
    producer.send(s2)  # a second copy waits in the backlog
    assert out.backlog
    receiver.flow(5, drain=True)
    network.run()
    producer.go_on(big, b"end")
    network.advance(5)
    assert receiver.credit == 0, f"holds {receiver.credit}, drain never answered"


def test_a_drain_leaves_the_credit_that_a_delivery_on_its_way_needs() -> None:
    network = Network(AddressConfig(pattern="q", distribution=Distribution.MULTICAST))
    network.listener = ListenerConfig(url="amqp://127.0.0.1:0", idle_time_out=0.0, output_backlog=1)
    consumer, producer = network.client(), network.client()
    receivers = [consumer.receiver("q", credit=1) for _ in range(2)]
    link = producer.sender("q")
    consumer.stopped = True
    producer.send(link, settled=True)
    for receiver in receivers:
        receiver.flow(1, drain=True)
    network.run()
    network.advance(1.0)
    consumer.stopped = False
    network.run()
    consumer.take(2)
    assert [receiver.credit for receiver in receivers] == [0, 0]
    network.leave()


def test_the_default_outcome_of_a_receiver_that_vanished_stands_for_what_it_did_not_say() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", source=Source(address="q", default_outcome=Released()))
    sent = producer.send(producer.sender("q"))
    consumer.take(1)
    consumer.lose()
    assert sent.outcome == Released()
    network.leave()


def test_a_receiver_with_all_that_it_may_have_unsettled_goes_on_when_it_settles() -> None:
    network = Network(AddressConfig(pattern="q", max_unsettled=2))
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=10)
    link = producer.sender("q")
    sents = [producer.send(link) for _ in range(3) if link.credit]
    arrivals = consumer.take(2)
    assert len(sents) == 3
    arrivals[0].accept()
    network.run()
    consumer.take(1)
    network.leave()


def test_states_of_one_receiver_of_a_multicast_are_not_the_senders() -> None:
    network = Network(AddressConfig(pattern="q", distribution=Distribution.MULTICAST))
    one, two, producer = network.client(), network.client(), network.client()
    one.receiver("q")
    two.receiver("q")
    sent = producer.send(producer.sender("q"))
    (arrival,) = one.take(1)
    arrival.dispose(Received(section_number=1, section_offset=1), settled=False)
    network.run()
    assert sent.said == []
    network.leave()


def test_receivers_that_left_with_credit_are_forgotten_while_others_stay() -> None:
    network = Network()
    steady, passing = network.client(), network.client()
    steady.receiver("q")
    for _ in range(5):
        passing.receiver("q").detach()
        network.run()
    address = network.core.addresses.find("", "q")
    assert address is not None
    assert len(address.creditors) == 1
    network.leave()
