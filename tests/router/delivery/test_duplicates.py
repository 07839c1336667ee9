"""Messages with a message-id that an address has seen before (§3.2.4, message-id)."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import ULong
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import AmqpValue, Header, Properties
from amqpmesh.router.config.address import Duplicates
from amqpmesh.router.config.file import AddressConfig
from amqpmesh.router.management.changed_config import put_in_force
from amqpmesh.router.management.snapshot import snapshot
from tests.support.worlds.network import Client, Network

DROPS = AddressConfig(
    pattern="q/#", duplicates=Duplicates.MESSAGE_ID, duplicate_window=100, duplicate_time=60.0, max_credit=5
)
MODIFIED = Modified(delivery_failed=True)


def message(message_id: object, text: str = "hello") -> bytes:
    """Encode a message."""
    properties = Properties(message_id=message_id, to="q/a")  # type: ignore[arg-type]  # any type, to be refused or not
    return encode_composite(properties) + encode_composite(AmqpValue(value=text))


def two(config: AddressConfig = DROPS) -> tuple[Network, Client, Client]:
    """Return a network with a receiver at `q/a` and a client for senders."""
    network = Network(config)
    consumer, producer = network.client(), network.client()
    consumer.receiver("q/a", credit=1000)
    return network, consumer, producer


def counted(network: Network) -> int:
    """Return how many duplicates the router has counted."""
    return snapshot(network.core).router.duplicates


def test_a_rejected_message_that_is_sent_again_hears_so() -> None:
    network, consumer, producer = two()
    sender = producer.sender("q/a")
    for number in range(4):  # the later ones are relayed without a decision
        first = producer.send(sender, message(f"a{number}"))
        (arrival,) = consumer.take(1)
        arrival.dispose(Rejected(), settled=True)
        network.run()
        again = producer.send(sender, message(f"a{number}"))
        assert consumer.take() == []
        assert (again.outcome, again.said) == (Rejected(), first.said)


@pytest.mark.parametrize("address", ["q/a", None])
@pytest.mark.parametrize("warm", [False, True], ids=["decided", "relayed"])
def test_a_message_that_is_sent_again_hears_the_first_outcome(address: str | None, warm: bool) -> None:
    network, consumer, producer = two()
    sender = producer.sender(address)
    if warm:
        for number in range(3):
            producer.send(sender, message(f"warm-{number}"))
            consumer.take(1)[0].accept()
            network.run()
    first = producer.send(sender, message("a"))
    (arrival,) = consumer.take(1)
    arrival.accept()
    network.run()
    assert first.said == [(Accepted(), True)]
    again = producer.send(sender, message("a"))
    assert again.said == [(Accepted(), True)]
    assert consumer.take() == []
    assert counted(network) == 1
    network.leave()


@pytest.mark.parametrize("warm", [False, True], ids=["decided", "relayed"])
def test_one_that_comes_while_the_first_is_on_its_way_joins_it(warm: bool) -> None:
    network, consumer, producer = two()
    sender = producer.sender("q/a")
    if warm:
        for number in range(3):
            producer.send(sender, message(f"warm-{number}"))
            consumer.take(1)[0].accept()
            network.run()
    first = producer.send(sender, message("a"))
    (arrival,) = consumer.take(1)
    other = network.client()
    again = [producer.send(sender, message("a")), other.send(other.sender("q/a"), message("a"))]
    assert first.said == again[0].said == again[1].said == []
    arrival.dispose(Rejected(), settled=True)
    network.run()
    assert [each.said for each in (first, *again)] == [first.said] * 3
    assert isinstance(first.said[0][0], Rejected)
    assert consumer.take() == []
    assert counted(network) == 2
    network.leave()


@pytest.mark.parametrize("outcome", [Released(), MODIFIED])
def test_after_a_release_it_is_a_retry(outcome: Released | Modified) -> None:
    network, consumer, producer = two()
    sender = producer.sender("q/a")
    first = producer.send(sender, message("a"))
    (arrival,) = consumer.take(1)
    arrival.dispose(outcome, settled=True)
    network.run()
    assert first.said == [(outcome, True)]
    again = producer.send(sender, message("a"))
    (arrival,) = consumer.take(1)
    arrival.accept()
    network.run()
    assert again.said == [(Accepted(), True)]
    assert counted(network) == 0
    network.leave()


def sent_and_taken(network: Network, consumer: Client, producer: Client, message_id: object) -> None:
    """Send a message that is accepted."""
    sent = producer.send(producer.sender("q/a"), message(message_id))
    consumer.take(1)[0].accept()
    network.run()
    assert sent.said == [(Accepted(), True)]


SAME = UUID(int=1)
IDS = [ULong(1), "1", b"1", SAME, SAME.bytes, "x" * 64, b"x" * 64, "x" * 65, b"x" * 65, "x" * 66, ULong(300), ULong(0)]


def test_message_ids_of_other_types_or_values_are_others() -> None:
    network, consumer, producer = two()
    for each in IDS:
        sent_and_taken(network, consumer, producer, each)
    for each in IDS:
        producer.send(producer.sender("q/a"), message(each))
    assert consumer.take() == []
    assert counted(network) == len(IDS)
    network.leave()


def test_an_id_is_the_same_in_each_of_its_encodings() -> None:
    network, consumer, producer = two()
    encodings = [b"\x53\x07", b"\x80" + bytes(7) + b"\x07"], [b"\xa1\x01k", b"\xb1\x00\x00\x00\x01k"]
    for first, second in encodings:
        for number, octets in enumerate((first, second)):
            section = b"\x00\x53\x73\xc0" + bytes((1 + len(octets), 1)) + octets
            producer.send(producer.sender("q/a"), section + encode_composite(AmqpValue(value="v")))
            arrivals = consumer.take(1 - number)
            for each in arrivals:
                each.accept()
            network.run()
    network.leave()


def test_messages_without_a_message_id_all_arrive_and_so_do_malformed_ones() -> None:
    network, consumer, producer = two()
    body = encode_composite(AmqpValue(value="v"))
    malformed = b"\x00\x53\x73\xc0\x03\x01\x70\x00" + body, b"\x00\x53\x73\xc0\x02\x01\x41" + body
    for payload in (body, message(None), *malformed, b"\x00\x53\x73\x45" + body):
        for _ in range(2):
            producer.send(producer.sender("q/a"), payload)
            consumer.take(1)[0].accept()
    assert counted(network) == 0
    network.leave()


def test_a_message_of_another_format_is_not_looked_at() -> None:
    network, consumer, producer = two()
    for _ in range(2):
        producer.send(producer.sender("q/a"), message("a"), message_format=7)
        consumer.take(1)[0].accept()
    network.leave()


@pytest.mark.parametrize("warm", [False, True])
def test_settled_duplicates_are_dropped_and_counted(warm: bool) -> None:
    network, consumer, producer = two()
    sender = producer.sender("q/a")
    if warm:
        producer.send(sender, message("warm"), settled=True)
        producer.send(sender, message("warm-2"), settled=True)
        consumer.take(2)
    for _ in range(3):
        producer.send(sender, message("a"), settled=True)
    consumer.take(1)
    assert counted(network) == 2
    unsettled = producer.send(sender, message("a"))
    consumer.take(1)[0].accept()  # nobody knows an outcome of the first, so this one is a message of its own
    network.run()
    assert unsettled.said == [(Accepted(), True)]
    producer.send(sender, message("a"), settled=True)
    assert consumer.take() == []
    network.leave()


def test_in_mode_second_a_duplicate_waits_for_its_senders_settlement() -> None:
    network, consumer, producer = two()
    sent_and_taken(network, consumer, producer, "a")
    again = producer.send(producer.sender("q/a", rcv=ReceiverSettleMode.SECOND), message("a"))
    assert again.said == [(Accepted(), False)]
    again.dispose(Accepted(), settled=True)
    network.run()
    network.leave()


@pytest.mark.parametrize("octets", [10, 200])
def test_a_message_of_several_frames_is_one_message(octets: int) -> None:
    network, consumer, producer = two()
    sender = producer.sender("q/a")
    data = message("a" * octets, "x" * 3000)
    for number in range(2):
        sent = producer.send(sender, data[:7], more=True)
        producer.resume(sent, data[7:100], more=True)
        producer.resume(sent, data[100:2000], more=True)
        assert sent.said == ([] if number == 0 else [(Accepted(), True)])
        producer.resume(sent, data[2000:])
        for arrival in consumer.take(1 - number):
            assert bytes(arrival.payload) == data
            arrival.accept()
            network.run()
        assert sent.said == [(Accepted(), True)]
    assert counted(network) == 1
    network.leave()


def test_properties_that_come_too_late_are_not_looked_at() -> None:
    network, consumer, producer = two()
    data = message("a" * 140_000)
    for _ in range(2):
        producer.send(producer.sender("q/a"), data)
        consumer.take(1)[0].accept()
    network.leave()


# ------------------------------------------------------------------------------------------- ends of the first message


def test_the_sender_vanishes_and_the_outcome_is_kept_for_another() -> None:
    network, consumer, producer = two()
    producer.send(producer.sender("q/a"), message("a"))
    (arrival,) = consumer.take(1)
    producer.lose()
    back = network.client()
    again = back.send(back.sender("q/a"), message("a"))
    assert again.said == []
    arrival.accept()
    network.run()
    assert again.said == [(Accepted(), True)]
    assert back.send(back.sender("q/a"), message("a")).said == [(Accepted(), True)]
    network.leave()


def test_the_sender_vanishes_while_its_message_waits_and_one_that_joined_it_is_released() -> None:
    network = Network(DROPS)
    consumer, producer, other = network.client(), network.client(), network.client()
    link = consumer.receiver("q/a", credit=1)
    sender, joins = producer.sender("q/a"), other.sender("q/a")
    producer.send(sender, message("full"))
    consumer.take(1)[0].accept()
    network.run()
    producer.send(sender, message("a"))
    again = other.send(joins, message("a"))
    assert again.said == []
    producer.lose()
    link.flow(5)
    network.run()
    assert again.said == [(Released(), True)]
    assert consumer.take() == []
    other.send(joins, message("a"))
    consumer.take(1)[0].accept()
    network.leave()


def test_the_sender_aborts_and_one_that_joined_it_is_released() -> None:
    network, consumer, producer = two()
    other = network.client()
    first = producer.send(producer.sender("q/a"), message("a", "x" * 3000)[:1000], more=True)
    again = other.send(other.sender("q/a"), message("a"))
    producer.resume(first, aborted=True)
    assert again.said == [(Released(), True)]
    assert consumer.take() == []
    other.send(other.sender("q/a"), message("a"))
    consumer.take(1)[0].accept()
    network.leave()


def test_the_sender_settles_before_the_outcome_and_one_that_joined_it_is_in_doubt() -> None:
    network, consumer, producer = two()
    other = network.client()
    first = producer.send(producer.sender("q/a"), message("a"))
    consumer.take(1)
    again = other.send(other.sender("q/a"), message("a"))
    first.dispose(None, settled=True)
    network.run()
    assert again.said == [(MODIFIED, True)]
    other.send(other.sender("q/a"), message("a"), settled=True)
    assert consumer.take() == []
    network.leave()


@pytest.mark.parametrize("join", [False, True])
def test_the_receiver_is_lost_and_all_hear_modified(join: bool) -> None:
    network, consumer, producer = two()
    other = network.client()
    sents = [producer.send(producer.sender("q/a"), message("a"))]
    consumer.take(1)
    if join:
        sents.append(other.send(other.sender("q/a"), message("a")))
    consumer.lose()
    assert [each.said for each in sents] == [[(MODIFIED, True)]] * len(sents)
    network.leave()


def test_one_that_joined_leaves() -> None:
    network, consumer, producer = two()
    first = producer.send(producer.sender("q/a"), message("a"))
    (arrival,) = consumer.take(1)
    other, third = network.client(), network.client()
    other.send(other.sender("q/a"), message("a"))
    again = third.send(third.sender("q/a"), message("a"))
    settled = third.send(third.sender("q/a"), message("a"))
    settled.dispose(None, settled=True)
    other.lose()
    arrival.accept()
    network.run()
    assert first.said == again.said == [(Accepted(), True)]
    network.leave()


def test_a_message_that_is_redelivered_is_one_message() -> None:
    network, consumer, producer = two(replace(DROPS, redeliver=True, attempts=3))
    first = producer.send(producer.sender("q/a"), message("a"))
    (arrival,) = consumer.take(1)
    arrival.dispose(MODIFIED, settled=True)
    network.run()
    again = producer.send(producer.sender("q/a"), message("a"))
    consumer.take(1)[0].accept()
    network.run()
    assert first.said == again.said == [(Accepted(), True)]
    network.leave()


def test_after_a_dead_letter_it_is_a_retry() -> None:
    network, consumer, producer = two(replace(DROPS, redeliver=True, attempts=1, dead_letter="dead"))
    keeper = network.client()
    keeper.receiver("dead", credit=10)
    first = producer.send(producer.sender("q/a"), message("a"))
    consumer.take(1)[0].dispose(MODIFIED, settled=True)
    network.run()
    keeper.take(1)[0].accept()
    network.run()
    assert first.said == [(Modified(delivery_failed=True, undeliverable_here=True), True)]
    producer.send(producer.sender("q/a"), message("a"))
    consumer.take(1)[0].accept()
    network.leave()


def test_one_that_expired_was_never_sent() -> None:
    network = Network(DROPS)
    consumer, producer, other = network.client(), network.client(), network.client()
    link = consumer.receiver("q/a", credit=1)
    sender, joins = producer.sender("q/a"), other.sender("q/a")
    producer.send(sender, message("full"))
    consumer.take(1)[0].accept()
    network.run()
    first = producer.send(sender, encode_composite(Header(ttl=1000)) + message("a"))
    again = other.send(joins, message("a"))
    network.advance(1.5)
    assert first.said == again.said
    assert isinstance(first.outcome, Modified)
    link.flow(5)
    network.run()
    other.send(joins, message("a"))
    consumer.take(1)[0].accept()
    network.leave()


# ----------------------------------------------------------------------------------------------------------- the window


def passed(network: Network) -> int:
    """Return how many message-ids were forgotten."""
    return snapshot(network.core).router.window_passed


def test_a_message_id_is_forgotten_after_its_time() -> None:
    network, consumer, producer = two()
    sent_and_taken(network, consumer, producer, "a")
    network.advance(59.9)
    assert producer.send(producer.sender("q/a"), message("a")).said == [(Accepted(), True)]
    network.advance(0.2)
    sent_and_taken(network, consumer, producer, "a")
    assert passed(network) == 1
    network.leave()


def test_the_time_begins_with_the_outcome_and_one_on_its_way_stays() -> None:
    network, consumer, producer = two()
    producer.send(producer.sender("q/a"), message("a"))
    (arrival,) = consumer.take(1)
    network.advance(200.0)
    again = producer.send(producer.sender("q/a"), message("a"))
    arrival.accept()
    network.advance(59.0)
    assert again.said == [(Accepted(), True)]
    assert producer.send(producer.sender("q/a"), message("a")).said == [(Accepted(), True)]
    network.leave()


def test_the_oldest_message_id_is_forgotten_when_there_are_too_many() -> None:
    network, consumer, producer = two(replace(DROPS, duplicate_window=3))
    for each in "abcd":
        sent_and_taken(network, consumer, producer, each)
    assert passed(network) == 1
    assert producer.send(producer.sender("q/a"), message("b")).said == [(Accepted(), True)]
    sent_and_taken(network, consumer, producer, "a")
    network.leave()


def test_the_windows_outlive_their_links_and_end_with_their_time() -> None:
    network, consumer, producer = two()
    sent_and_taken(network, consumer, producer, "a")
    consumer.close()
    producer.close()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q/a")
    assert producer.send(producer.sender("q/a"), message("a")).said == [(Accepted(), True)]
    network.leave()
    assert snapshot(network.core).router.remembered
    network.advance(62.0)
    assert not network.core.context.kernel.windows.of
    assert snapshot(network.core).router.remembered == network.core.context.budget.used == 0
    assert network.core.next_timer() is None


def test_more_than_memory_allows_is_forgotten_and_memory_stays_flat() -> None:
    network, consumer, producer = two(replace(DROPS, duplicate_window=1_000_000))
    network = Network(replace(DROPS, duplicate_window=1_000_000), memory=2**20)
    consumer, producer = network.client(), network.client()
    link, sender = consumer.receiver("q/a", credit=5000), producer.sender("q/a")
    most = 0
    for number in range(2000):
        producer.send(sender, message(f"{number:0100}"), settled=True)
        most = max(most, snapshot(network.core).router.remembered) if number % 100 == 0 else most
    assert link.credit
    consumer.take(2000)
    assert passed(network) > 1000
    assert most <= 2**18 + 1000
    network.leave()


def test_a_configuration_that_changes_holds_at_once() -> None:
    network, consumer, producer = two()
    sent_and_taken(network, consumer, producer, "a")
    config = network.core.context.config
    put_in_force(network.core, replace(config, addresses=()), network.now)
    network.run()
    sent_and_taken(network, consumer, producer, "a")
    sent_and_taken(network, consumer, producer, "a")
    put_in_force(network.core, config, network.now)
    network.run()
    sent_and_taken(network, consumer, producer, "a")
    assert producer.send(producer.sender("q/a"), message("a")).said == [(Accepted(), True)]
    network.leave()
