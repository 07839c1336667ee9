"""Settlement of deliveries: every order, mode and outcome.

Each test runs with one router and with several between the clients: the results must be the same.
"""

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role, SenderSettleMode
from amqpmesh.router.amqp.standard.delivery_states import (
    Accepted,
    Declared,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
)
from amqpmesh.router.amqp.standard.messaging import Header, Source
from amqpmesh.router.amqp.standard.performatives import Disposition
from amqpmesh.router.config.file import AddressConfig
from tests.support.worlds.network import OUTCOMES, Network, message
from tests.support.worlds.stretches import STRETCHES, Make

FIRST, SECOND = ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND


@pytest.fixture(params=STRETCHES)
def make(request: pytest.FixtureRequest) -> Make:
    """Return a function that makes the routers between the clients: one or several."""
    return STRETCHES[request.param]


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("settles", [True, False], ids=["receiver-settles", "receiver-waits"])
@pytest.mark.parametrize("below", [FIRST, SECOND], ids=["below-first", "below-second"])
@pytest.mark.parametrize("above", [FIRST, SECOND], ids=["above-first", "above-second"])
@pytest.mark.parametrize("snd", [SenderSettleMode.MIXED, SenderSettleMode.UNSETTLED])
def test_an_outcome_reaches_the_sender_and_both_sides_end_settled(
    make: Make, snd: SenderSettleMode, above: ReceiverSettleMode, below: ReceiverSettleMode, settles: bool, outcome: str
) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", rcv=below)
    sent = producer.send(producer.sender("q", snd=snd, rcv=above))
    (arrival,) = consumer.take(1)
    assert bytes(arrival.payload) == message()
    assert sent.said == []

    state = OUTCOMES[outcome]
    arrival.dispose(state, settled=settles)
    network.run()

    if above is FIRST:
        assert sent.said == [(state, True)]
    else:
        assert sent.said == [(state, False)]
        assert settles or arrival.said == [], "the receiver waits for the sender"
        sent.dispose(state, settled=True)
        network.run()
    if not settles:
        assert arrival.said == [(state, True)]
    assert network.relays == 0
    network.leave()


@pytest.mark.parametrize("above", [FIRST, SECOND])
def test_a_receiver_that_settles_without_a_state_leaves_its_default_outcome(
    make: Make, above: ReceiverSettleMode
) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", source=Source(address="q", default_outcome=Released()))
    link = producer.sender("q", rcv=above)
    sent = producer.send(link)
    consumer.take(1)[0].dispose(None, settled=True)
    network.run()
    assert sent.said == [(Released(), above is FIRST)]
    network.leave()


@pytest.mark.parametrize("default", [None, Accepted()])
def test_without_a_state_and_a_usable_default_the_outcome_is_a_failed_delivery(
    make: Make, default: Accepted | None
) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", source=Source(address="q", default_outcome=default))
    sent = producer.send(producer.sender("q"))
    consumer.take(1)[0].dispose(None, settled=True)
    network.run()
    assert sent.outcome == Modified(delivery_failed=True)
    network.leave()


def test_a_presettled_delivery_stays_presettled(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    producer.send(producer.sender("q"), settled=True)
    (arrival,) = consumer.take(1)
    assert arrival.delivery.remote_settled
    assert network.relays == 0
    network.leave()


def test_a_link_that_asks_for_settled_gets_unsettled_deliveries_unsettled(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", snd=SenderSettleMode.SETTLED)
    assert receiver.remote is not None
    assert receiver.remote.snd_settle_mode is SenderSettleMode.MIXED
    sent = producer.send(producer.sender("q"))
    (arrival,) = consumer.take(1)
    assert not arrival.delivery.remote_settled
    arrival.accept()
    network.run()
    assert sent.said == [(Accepted(), True)]
    network.leave()


def test_settled_on_a_later_frame_makes_the_rest_presettled(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    sent = producer.send(producer.sender("q"), message("x" * 50), more=True)
    producer.resume(sent, b"tail", settled=True)
    (arrival,) = consumer.take(1)
    assert arrival.delivery.remote_settled
    assert network.relays == 0
    network.leave()


def test_a_sender_that_settles_before_the_outcome_is_heard_below_and_later_outcomes_end_here(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    sent = producer.send(producer.sender("q"))
    (arrival,) = consumer.take(1)
    sent.dispose(Released(), settled=True)
    network.run()
    assert arrival.said == [(Released(), True)]
    assert network.relays == 0
    assert sent.said == []
    network.leave()


def test_a_senders_terminal_state_goes_down_and_the_confirmation_up(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", rcv=SECOND)
    sent = producer.send(producer.sender("q", rcv=SECOND))
    (arrival,) = consumer.take(1)
    sent.dispose(Released(), settled=False)
    network.run()
    assert arrival.said == [(Released(), False)]
    arrival.dispose(Released(), settled=False)
    network.run()
    assert sent.said == [(Released(), False)]
    sent.dispose(None, settled=True)
    network.run()
    assert arrival.said[-1][1]
    network.leave()


def test_states_that_are_no_outcome_pass_up(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    sent = producer.send(producer.sender("q"))
    (arrival,) = consumer.take(1)
    arrival.dispose(Received(section_number=1, section_offset=3), settled=False)
    network.run()
    assert sent.said == [(Received(section_number=1, section_offset=3), False)]
    arrival.accept()
    network.run()
    assert sent.said[-1] == (Accepted(), True)
    network.leave()


@pytest.mark.parametrize(
    ("outcomes", "default", "given", "heard"),
    [
        (("amqp:accepted:list", "amqp:released:list"), None, "rejected", Released()),
        (("amqp:accepted:list", "amqp:modified:list"), None, "released", Modified(delivery_failed=True)),
        (("amqp:accepted:list", "amqp:rejected:list"), None, "modified", Rejected()),
        (("amqp:accepted:list",), Released(), "rejected", Released()),
        (("amqp:rejected:list",), None, "accepted", Accepted()),
        (("amqp:rejected:list",), None, "rejected", OUTCOMES["rejected"]),
    ],
)
def test_an_outcome_that_the_source_does_not_list_is_replaced(
    make: Make, outcomes: tuple[str, ...], default: Released | None, given: str, heard: object
) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    source = Source(outcomes=tuple(map(Symbol, outcomes)), default_outcome=default)
    sent = producer.send(producer.sender("q", source=source))
    consumer.take(1)[0].dispose(OUTCOMES[given], settled=True)
    network.run()
    assert sent.said == [(heard, True)]
    network.leave()


def test_a_source_that_permits_no_outcome_of_ours_has_its_link_detached(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    link = producer.sender("q", source=Source(outcomes=(Symbol("amqp:accepted:list"),)))
    producer.send(link)
    consumer.take(1)[0].dispose(Released(), settled=True)
    network.run()
    error = producer.detached[link]
    assert error is not None
    assert error.condition == "amqp:not-allowed"
    network.leave()


@pytest.mark.parametrize(
    ("given", "heard"),
    [
        (("accepted", "accepted"), "accepted"),
        (("accepted", "rejected"), "rejected"),
        (("released", "accepted"), "accepted"),
        (("released", "modified"), "modified"),
        (("released", "released"), "released"),
    ],
)
@pytest.mark.parametrize("above", [FIRST, SECOND])
def test_the_strongest_outcome_of_a_multicast_goes_up(
    make: Make, above: ReceiverSettleMode, given: tuple[str, str], heard: str
) -> None:
    network = make(AddressConfig(pattern="news/#", distribution=Distribution.MULTICAST))
    one, two, producer = network.client(), network.client(), network.client()
    one.receiver("news/a", rcv=SECOND)
    two.receiver("news/a")
    sent = producer.send(producer.sender("news/a", rcv=above))
    (first,), (second,) = one.take(1), two.take(1)
    first.dispose(OUTCOMES[given[0]], settled=False)
    network.run()
    assert sent.said == []
    second.dispose(OUTCOMES[given[1]], settled=True)
    network.run()
    assert sent.outcome == OUTCOMES[heard]
    if above is SECOND:
        assert first.said == []
        sent.dispose(OUTCOMES[heard], settled=True)
        network.run()
    assert first.said[-1] == (OUTCOMES[given[0]], True), "settled, and with what it said itself"
    network.leave()


def test_a_consumer_that_vanishes_leaves_released_or_modified(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=1)
    link = producer.sender("q")
    first = producer.send(link)
    second = producer.send(link)
    consumer.take(1)
    consumer.lose()
    assert first.said == [(Modified(delivery_failed=True), True)]
    assert second.said == [(Released(), True)], "it was never sent"
    network.leave()


def test_a_consumer_that_vanishes_in_the_middle_of_a_message_fails_it_at_once(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    link = producer.sender("q")
    sent = producer.send(link, message("x" * 100), more=True)
    consumer.lose()
    assert sent.said == [(Modified(delivery_failed=True), True)]
    producer.resume(sent, b"y" * 100)
    other = network.client()
    other.receiver("q")
    again = producer.send(link)
    other.take(1)[0].accept()
    network.run()
    assert again.said == [(Accepted(), True)], "the link stays usable"
    network.leave()


def test_a_producer_that_vanishes_in_the_middle_of_a_message_aborts_it(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    producer.send(producer.sender("q"), message("x" * 100), more=True)
    producer.lose()
    (arrival,) = consumer.arrivals
    assert arrival.delivery.aborted
    other = network.client()
    other.send(other.sender("q"))
    consumer.take(1)
    network.leave()


@pytest.mark.parametrize("settles", [True, False])
def test_an_orphans_outcome_ends_here(make: Make, settles: bool) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", rcv=SECOND)
    producer.send(producer.sender("q"))
    (arrival,) = consumer.take(1)
    producer.lose()
    assert network.relays == 1
    arrival.dispose(Accepted(), settled=settles)
    network.run()
    assert network.relays == 0
    # The receiver's router learns of the sender's loss only if it is also the sender's router.
    state = None if isinstance(network, Network) else Accepted()
    assert arrival.said == ([] if settles else [(state, True)]), "settled with no state but the receiver's own"
    network.leave()


def test_a_sender_lost_between_outcome_and_settlement_settles_the_receiver_without_a_state(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", rcv=SECOND)
    sent = producer.send(producer.sender("q", rcv=SECOND))
    (arrival,) = consumer.take(1)
    arrival.dispose(Accepted(), settled=False)
    network.run()
    assert sent.said == [(Accepted(), False)]
    producer.lose()
    assert arrival.said == [(None, True)]
    network.leave()


def test_a_link_that_is_detached_without_being_closed_keeps_its_deliveries_live(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q")
    link = producer.sender("q")
    sent = producer.send(link)
    (arrival,) = consumer.take(1)
    receiver.detach(closed=False)
    link.detach(closed=False)
    network.run()
    assert sent.said == []
    arrival.accept()
    network.run()
    assert sent.said == [(Accepted(), True)]
    network.leave()


def test_the_end_of_a_session_ends_the_deliveries_of_its_links(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    session = consumer.engine.begin()
    network.run()
    consumer.receiver("q", session=session)
    sent = producer.send(producer.sender("q"))
    consumer.take(1)
    session.end()
    network.run()
    assert sent.said == [(Modified(delivery_failed=True), True)]
    network.leave()


def test_an_outcome_in_the_middle_of_a_message_ends_it_on_both_sides(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    link = producer.sender("q")
    sent = producer.send(link, message("x" * 100), more=True)
    (arrival,) = consumer.arrivals
    arrival.dispose(OUTCOMES["rejected"], settled=True)
    network.run()
    assert sent.said == [(OUTCOMES["rejected"], True)]
    producer.resume(sent, b"y" * 100)
    assert arrival.delivery.aborted
    next_one = producer.send(link)
    consumer.take(1)[0].accept()
    network.run()
    assert next_one.said == [(Accepted(), True)]
    network.leave()


def test_a_durable_message_is_accepted_by_its_receiver_and_never_by_the_router(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=2)
    link = producer.sender("q")
    durable = encode_composite(Header(durable=True)) + message(header=False)
    sents = [producer.send(link, durable) for _ in range(3)]
    network.advance(60)
    assert [sent.said for sent in sents] == [[], [], []], "sent or waiting, it is still its sender's"
    first, _ = consumer.take(2)
    first.accept()
    network.run()
    assert sents[0].said == [(Accepted(), True)]
    consumer.lose()
    assert not any(isinstance(sent.outcome, Accepted) for sent in sents[1:])
    network.leave()


def test_an_outcome_does_not_change(make: Make) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", rcv=SECOND)
    sent = producer.send(producer.sender("q", rcv=SECOND))
    (arrival,) = consumer.take(1)
    arrival.dispose(Accepted(), settled=False)
    network.run()
    arrival.dispose(Rejected(), settled=False)
    network.run()
    assert sent.said == [(Accepted(), False)]
    sent.dispose(Accepted(), settled=True)
    network.run()
    assert arrival.said == [(Accepted(), True)]
    network.leave()


@pytest.mark.parametrize("settled", [False, True])
def test_where_a_sender_resumes_is_not_sent_on(make: Make, settled: bool) -> None:
    network = make()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    state = Received(section_number=1, section_offset=3)
    sent = producer.send(producer.sender("q"), state=encode_composite(state))
    (arrival,) = consumer.take(1)
    assert arrival.delivery.remote_state is None
    sent.dispose(state, settled=settled)
    network.run()
    assert arrival.said == ([(None, True)] if settled else [])
    arrival.accept()
    network.leave()


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
    producer.resume(large, b"end")
    network.run()
    assert network.core.context.in_flight == 0, network.core.context.in_flight


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
