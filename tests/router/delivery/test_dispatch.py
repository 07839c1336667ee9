"""Dispatch of deliveries: distributions, order, priorities, ttl, copies, anonymous senders, large messages."""

from dataclasses import replace
from itertools import pairwise

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.composite import decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.link import Terminus
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import (
    AmqpValue,
    DeliveryAnnotations,
    Header,
    MessageAnnotations,
    Properties,
    Source,
    Target,
)
from amqpmesh.router.config.file import AddressConfig, Overflow
from amqpmesh.router.incremental import SENT_A_TURN
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.runtime.driver import DECISION, MOST_SENT
from tests.support.worlds.network import Network, message


def test_without_a_receiver_there_is_no_credit_and_with_one_there_is() -> None:
    network = Network()
    producer = network.client()
    link = producer.sender("q")
    assert link.credit == 0
    consumer = network.client()
    consumer.receiver("q", credit=10)
    assert link.credit == 10
    network.leave()


def test_two_producers_share_what_a_consumer_takes() -> None:
    network = Network()
    consumer, one, two = (network.client() for _ in range(3))
    first, second = one.sender("q"), two.sender("q")
    consumer.receiver("q", credit=10)
    assert first.credit + second.credit <= 12
    assert min(first.credit, second.credit) >= 1
    network.leave()


def test_balanced_consumers_get_equal_shares() -> None:
    network = Network()
    consumers = [network.client() for _ in range(3)]
    for consumer in consumers:
        consumer.receiver("q", credit=100)
    producer = network.client()
    link = producer.sender("q")
    for _ in range(30):
        producer.send(link)
    assert [len(consumer.take()) for consumer in consumers] == [10, 10, 10]
    network.leave()


def test_a_multicast_reaches_everyone_and_the_slowest_sets_the_pace() -> None:
    network = Network(AddressConfig(pattern="news", distribution=Distribution.MULTICAST))
    fast, slow, producer = (network.client() for _ in range(3))
    fast.receiver("news", credit=100)
    slow_link = slow.receiver("news", credit=2)
    link = producer.sender("news")
    sent = 0
    while link.credit:
        producer.send(link, settled=True)
        sent += 1
    assert sent == 3, "two for the slow one, one that waits"
    fast.take(2)
    slow.take(2)
    slow_link.flow(5)
    network.run()
    fast.take(1)
    slow.take(1)
    network.leave()


def test_a_multicast_that_drops_goes_on_without_a_stalled_receiver() -> None:
    network = Network(AddressConfig(pattern="news", distribution=Distribution.MULTICAST, overflow=Overflow.DROP))
    fast, slow, producer = (network.client() for _ in range(3))
    fast.receiver("news", credit=100)
    slow.receiver("news", credit=1)
    link = producer.sender("news")
    producer.send(link, settled=True)
    producer.send(link, settled=True)
    fast.take(1)
    network.advance(0.5)
    fast.take(0)
    network.advance(0.6)
    fast.take(1)
    slow.take(1)
    network.leave()


def test_an_unavailable_address_is_refused() -> None:
    network = Network(AddressConfig(pattern="no/#", distribution=Distribution.UNAVAILABLE))
    client = network.client()
    sender, receiver = client.sender("no/way"), client.receiver("no/way")
    for link in (sender, receiver):
        error = client.detached[link]
        assert error is not None
        assert error.condition == "amqp:not-found"
    network.leave()


def test_queued_deliveries_leave_by_priority_then_in_order() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=1)
    senders = [producer.sender("q") for _ in range(12)]
    producer.send(next(link for link in senders if link.credit))
    consumer.take(1)
    network.run()
    for priority, link in zip([4, 4, 9, 0, 1, 2, 3, 5, 6, 7, 8, 4], senders, strict=True):
        producer.send(link, message(priority, priority=priority))
    consumer.take(0)
    receiver.flow(100)
    network.run()
    bodies = [_body(arrival.payload) for arrival in consumer.take()]
    assert bodies == [9, 8, 7, 6, 5, 4, 4, 4, 3, 2, 1, 0]
    network.leave()


def test_all_256_priorities_are_apart_and_without_a_header_it_is_4() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=1)
    receiver.flow(0)
    link = producer.sender(None)
    order = [3, 255, 5, 254, 10, 4, 9, 128, 0, 11]
    consumer.receiver("other", credit=100)
    waiting = [producer.send(link, message(each, priority=each, to="q")) for each in order]
    waiting.append(producer.send(link, message("none", header=False, to="q")))
    assert consumer.take() == []
    receiver.flow(100)
    network.run()
    came = [bytes(arrival.payload) for arrival in consumer.take(len(waiting))]
    sent = {each: message(each, priority=each, to="q") for each in order}
    expected = [sent[each] for each in sorted(order, reverse=True)]
    expected.insert(expected.index(sent[4]) + 1, message("none", header=False, to="q"))
    assert came == expected
    network.leave()


def _body(payload: bytes | bytearray) -> object:
    data = bytes(payload)
    _, at = decode_composite(Header, data)
    value, _ = decode_composite(AmqpValue, data, at)
    return value.value


def test_the_ttl_leaves_reduced_by_the_time_that_it_waited() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=1)
    link = producer.sender("q")
    receiver.flow(0)
    producer.send(link, message(ttl=10_000))
    network.advance(4.0)
    receiver.flow(1)
    network.run()
    (arrival,) = consumer.take(1)
    assert decode_composite(Header, bytes(arrival.payload))[0].ttl == 6_000
    arrival.accept()
    network.leave()


def test_a_message_that_expires_while_it_waits_goes_back_undeliverable() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=1)
    link = producer.sender("q")
    receiver.flow(0)
    sent = producer.send(link, message(ttl=500))
    network.advance(0.4)
    assert sent.said == []
    network.advance(0.2)
    assert sent.said == [(Modified(delivery_failed=True, undeliverable_here=True), True)]
    assert snapshot(network.core).router.expired == 1
    network.leave()


def test_a_copy_receiver_sees_each_message_and_takes_it_from_nobody() -> None:
    network = Network()
    consumer, browser, producer = (network.client() for _ in range(3))
    consumer.receiver("q", credit=100)
    seen = browser.receiver("q", credit=3, copy=True)
    assert seen.remote is not None
    assert seen.remote.source is not None
    assert seen.remote.source.distribution_mode == "copy"
    link = producer.sender("q")
    sents = [producer.send(link, message(number)) for number in range(10)]
    copies = browser.take(3)
    for copy in copies:
        copy.dispose(Rejected(), settled=True)
    seen.flow(100)
    network.run()
    copies += browser.take(7)
    originals = consumer.take(10)
    assert [_body(each.payload) for each in copies] == list(range(10))
    assert [each.said for each in sents] == [[]] * 10, "what a browser says does not reach the sender"
    for each in originals:
        each.accept()
    for each in copies[3:]:
        each.dispose(Released(), settled=False)
    network.run()
    assert all(each.said == [(Accepted(), True)] for each in sents)
    assert all(each.said[-1][1] for each in copies[3:])
    assert network.core.context.in_flight == 0
    network.leave()


def test_copy_receivers_alone_are_no_consumer() -> None:
    network = Network()
    browser, producer = network.client(), network.client()
    browser.receiver("q", copy=True)
    assert producer.sender("q").credit == 0
    network.leave()


def test_an_anonymous_sender_reaches_each_address_by_to() -> None:
    network = Network()
    one, two, producer = (network.client() for _ in range(3))
    one.receiver("a")
    two.receiver("b@A")
    link = producer.sender(None)
    assert link.credit == 64
    first = producer.send(link, message(1, to="a"))
    second = producer.send(link, message(2, to="b"))
    nowhere = producer.send(link, message(3, to="c"))
    for number, arrival in enumerate((*one.take(1), *two.take(1))):
        assert bytes(arrival.payload) == message(number + 1, to="ab"[number]), "its properties are not ours to change"
        arrival.accept()
    network.run()
    assert (first.outcome, second.outcome) == (Accepted(), Accepted())
    assert nowhere.outcome == Released(), "somebody may come"
    network.leave()


def test_an_anonymous_message_waits_a_while_for_credit_and_holds_up_no_other_address() -> None:
    network = Network(AddressConfig(pattern="slow", window=3))
    slow, quick, producer = (network.client() for _ in range(3))
    receiver = slow.receiver("slow", credit=1)
    receiver.flow(0)
    quick.receiver("quick", credit=100)
    link = producer.sender(None)
    waiting = [producer.send(link, message(to="slow")) for _ in range(17)]
    assert not any(each.said for each in waiting), "nobody else goes on: the sender is to wait"
    quick_ones = [producer.send(link, message(to="quick")) for _ in range(16)]
    for arrival in quick.take(16):
        arrival.accept()
    waiting.append(producer.send(link, message(to="slow")))
    assert waiting[-1].outcome == Released(), "no more than a part of the sender's window may wait"
    quick_ones.append(producer.send(link, message(to="quick")))
    quick.take(1)[0].accept()
    receiver.flow(1)
    network.run()
    slow.take(1)[0].accept()
    network.advance(0.9)
    assert [each.outcome for each in waiting[:-1]] == [Accepted()] + [None] * 16
    network.advance(0.2)
    assert [each.outcome for each in waiting[:-1]] == [Accepted()] + [Released()] * 16
    assert {each.outcome for each in quick_ones} == {Accepted()}
    network.leave()


def test_an_anonymous_message_that_was_given_back_waits_for_another_receiver_as_long_as_before_the_first() -> None:
    network = Network(AddressConfig(pattern="again", redeliver=True, attempts=5))
    consumer, producer = network.client(), network.client()
    consumer.receiver("again", credit=1)
    sent = producer.send(producer.sender(None), message(to="again"))
    consumer.take(1)[0].dispose(Released(), settled=True)
    network.run()
    network.advance(0.9)
    assert sent.outcome is None
    network.advance(0.2)
    assert sent.outcome == Released()
    network.leave()


def test_a_message_of_another_format_is_relayed_untouched_but_not_by_to() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    sent = producer.send(producer.sender("q"), b"\xff\x00 not sections", message_format=0x123)
    (arrival,) = consumer.take(1)
    assert arrival.delivery.message_format == 0x123
    assert bytes(arrival.payload) == b"\xff\x00 not sections"
    arrival.accept()
    refused = producer.send(producer.sender(None), b"\xff", message_format=0x123)
    network.run()
    assert sent.outcome == Accepted()
    assert isinstance(refused.outcome, Rejected)
    assert refused.outcome.error is not None
    assert refused.outcome.error.condition == "amqp:not-implemented"
    network.leave()


@pytest.mark.parametrize("window", [1, 2, 256])
@pytest.mark.parametrize("frame", [512, 4096])
def test_a_large_message_is_cut_through_whatever_the_frames(frame: int, window: int) -> None:
    network = Network(max_frame_size=32_768)
    consumer, producer = network.client(max_frame_size=frame, window=window), network.client()
    consumer.receiver("q")
    payload = message(bytes(range(256)) * 2000)
    sent = producer.send(producer.sender("q"), payload)
    (arrival,) = consumer.take(1)
    assert bytes(arrival.payload) == payload
    arrival.accept()
    network.run()
    assert sent.outcome == Accepted()
    network.leave()


def test_a_producer_outruns_a_stopped_reader_by_no_more_than_its_window() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    consumer.stopped = True
    link = producer.sender("q")
    delivery = link.delivery(b"big")
    sent = 0
    part = message(b"x" * 1_000_000)
    while taken := link.transfer(delivery, part, more=True):
        sent += taken
        network.run()
        assert sent < 8_000_000
    assert network.core.context.budget.used < 5_000_000
    consumer.stopped = False
    network.run()
    assert link.transfer(delivery, part, more=True)
    network.run()
    network.leave()


def test_an_aborted_message_is_aborted_below_and_a_waiting_one_disappears() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=1)
    link = producer.sender("q")
    first = producer.send(link, message("x" * 100), more=True)
    producer.resume(first, aborted=True)
    (arrival,) = consumer.arrivals
    assert arrival.delivery.aborted
    receiver.flow(0)
    second = producer.send(link, message("y" * 100), more=True)
    producer.resume(second, aborted=True)
    receiver.flow(5)
    network.run()
    consumer.take(0)
    assert network.core.context.in_flight == 0
    network.leave()


def test_a_message_larger_than_the_receiver_takes_is_rejected() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", max_message_size=1000)
    link = producer.sender("q")
    whole = producer.send(link, message("x" * 2000))
    cut = producer.send(link, message("y" * 500), more=True)
    producer.resume(cut, b"z" * 600, more=True)
    for sent in (whole, cut):
        assert isinstance(sent.outcome, Rejected)
        assert sent.outcome.error is not None
        assert sent.outcome.error.condition == "amqp:link:message-size-exceeded"
    producer.resume(cut, b"z")
    fits = producer.send(link)
    consumer.take(1)[0].accept()
    network.run()
    assert fits.outcome == Accepted()
    network.leave()


def test_a_message_larger_than_the_listener_takes_detaches_its_link() -> None:
    network = Network()
    network.listener = type(network.listener)(url="amqp://127.0.0.1:0", max_message_size=1000, idle_time_out=0.0)
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    link = producer.sender("q")
    assert link.remote_max_message_size == 1000
    sent = producer.send(link, message("y" * 500), more=True)
    sent.link.transfer(sent.delivery, b"z" * 600)
    network.run()
    error = producer.detached[link]
    assert error is not None
    assert error.condition == "amqp:link:message-size-exceeded"
    assert consumer.arrivals[0].delivery.aborted
    network.leave()


def test_annotations_pass_except_those_of_the_mesh() -> None:
    network = Network(AddressConfig(pattern="drop", delivery_annotations="drop"))  # type: ignore[arg-type]  # a StrEnum's value
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    consumer.receiver("drop")
    forged = DeliveryAnnotations(value={Symbol("x-opt-mesh-to"): "elsewhere", Symbol("x-opt-mine"): 1})
    mine = encode_composite(DeliveryAnnotations(value={Symbol("x-opt-mine"): 1}))
    propagated = encode_composite(MessageAnnotations(value={Symbol("any"): "thing"}))
    header = encode_composite(Header(priority=7))
    body = encode_composite(AmqpValue(value="v"))
    producer.send(producer.sender("q"), header + encode_composite(forged) + propagated + body)
    producer.send(producer.sender("drop"), header + encode_composite(forged) + propagated + body)
    passed, dropped = consumer.take(2)
    assert bytes(passed.payload) == header + mine + propagated + body
    assert bytes(dropped.payload) == header + propagated + body
    network.leave()


@pytest.mark.parametrize("section", [DeliveryAnnotations, MessageAnnotations])
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("address", ["q", None])
def test_a_strict_listener_detaches_a_link_for_an_annotation_that_is_not_optional(
    section: type[DeliveryAnnotations | MessageAnnotations], settled: bool, address: str | None
) -> None:
    network = Network()
    consumer = network.client()
    consumer.receiver("q")
    network.listener = replace(network.listener, strict_annotations=True)
    producer = network.client()
    to = encode_composite(Properties(to="q")) + encode_composite(AmqpValue(value="v"))
    optional = encode_composite(section(value={Symbol("x-opt-mine"): 1})) + to
    strange = encode_composite(section(value={Symbol("x-opt-mine"): 1, Symbol("mine"): 1})) + to
    for payload, more in ((strange, False), (strange, True), (strange[:7], True)):
        link = producer.sender(address)
        first = producer.send(link, optional, settled=settled)
        consumer.take(1)[0].accept()
        network.run()
        assert settled or first.outcome == Accepted()
        sent = producer.send(link, payload, settled=settled, more=more)
        if payload != strange:
            assert link.is_attached, "its annotations are still to come"
            sent.link.transfer(sent.delivery, strange[7:])
            network.run()
        error = producer.detached[link]
        assert error is not None
        assert error.condition == "amqp:not-implemented"
        assert consumer.arrivals == []
        assert network.core.context.in_flight == 0
    network.leave()


@pytest.mark.parametrize("mode", [ReceiverSettleMode.FIRST, ReceiverSettleMode.SECOND])
def test_order_holds_from_one_sender_to_one_receiver(mode: ReceiverSettleMode) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=7)
    link = producer.sender("q", rcv=mode)
    bodies = []
    for number in range(200):
        while not link.credit:
            for arrival in consumer.take():
                bodies.append(_body(arrival.payload))
                arrival.accept()
            receiver.flow(7)
            network.run()
        producer.send(link, message(number))
    for _ in range(5):
        receiver.flow(10)
        network.run()
        bodies += [_body(arrival.payload) for arrival in consumer.take()]
    assert bodies == list(range(200))
    network.leave()


def test_a_copy_receiver_without_credit_holds_up_nobody_and_sees_what_its_backlog_takes() -> None:
    network = Network(AddressConfig(pattern="q", copy_backlog=100_000))
    consumer, browser, producer = (network.client() for _ in range(3))
    consumer.receiver("q", credit=1000)
    copies = browser.receiver("q", credit=0, copy=True)
    link = producer.sender("q")
    payload = message("x" * 3_000)
    for _ in range(100):
        producer.send(link, payload, settled=True)
    consumer.take(100)
    large = producer.send(link, message("y" * 300_000), more=True)
    producer.resume(large, b"rest")
    consumer.take(1)
    copies.flow(1000)
    network.run()
    assert 25 <= len(browser.take()) <= 33, "what is around a message counts a little, too"
    network.leave()


def test_a_sender_that_never_settles_what_it_was_told_loses_its_link() -> None:
    network = Network()
    network.listener = type(network.listener)(url="amqp://127.0.0.1:0", max_owed=3, idle_time_out=0.0)
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=100)
    link = producer.sender("q", rcv=ReceiverSettleMode.SECOND)
    for _ in range(4):
        assert link not in producer.detached
        producer.send(link)
        consumer.take(1)[0].accept()
        network.run()
    error = producer.detached[link]
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    assert network.core.context.in_flight == 0
    network.leave()


def test_a_head_in_more_frames_than_the_window_has_is_read_all_the_same() -> None:
    network = Network(session_window=8)
    network.listener = type(network.listener)(url="amqp://127.0.0.1:0", session_window=8, idle_time_out=0.0)
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    annotations = encode_composite(MessageAnnotations(value={Symbol("k"): "v" * 30_000}))
    payload = annotations + message(header=False)
    sent = producer.send(producer.sender("q"), payload[:100], more=True)
    for at in range(100, len(payload), 1000):
        producer.resume(sent, payload[at : at + 1000], more=at + 1000 < len(payload))
    (arrival,) = consumer.take(1)
    assert bytes(arrival.payload) == payload
    network.leave()


def test_a_disposition_that_speaks_of_thousands_is_done_in_parts() -> None:
    network = Network(AddressConfig(pattern="q", max_credit=5000))
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", credit=3000)
    link = producer.sender("q")
    sents = [producer.send(link) for _ in range(3000)]
    arrivals = consumer.take(3000)
    for arrival in arrivals:
        arrival.accept()
    data = consumer.engine.data_to_send(network.now)
    assert len(data) < 100, "one disposition"
    assert not network.core.receive(consumer.record, data + data, network.now)
    assert 0 < network.core.context.in_flight < 3000
    while not network.core.receive(consumer.record, b"", network.now):
        pass
    network.run()
    assert all(sent.outcome == Accepted() for sent in sents)
    network.leave()


def test_sections_out_of_order_are_relayed_untouched_and_counted() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    header = encode_composite(Header(ttl=5000))
    payload = header + header + encode_composite(AmqpValue(value="v"))
    producer.send(producer.sender("q"), payload)
    (arrival,) = consumer.take(1)
    assert bytes(arrival.payload) == payload
    assert snapshot(network.core).router.irregular == 1
    network.leave()


def test_a_receiver_that_wants_less_than_it_has_been_sent_is_a_consumer_all_the_same() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", credit=10)
    link = producer.sender("q")
    for _ in range(5):
        producer.send(link, settled=True)
    # As it says this it has not heard of the five: what is left of its credit is spent.
    receiver.flow_state.delivery_count -= 5
    receiver.flow(1)
    network.run()
    receiver.flow_state.delivery_count += 5
    other = network.client().sender("q")
    network.advance(3.0)
    assert other.credit == 1
    network.leave()


def test_a_head_of_more_octets_than_are_collected_is_beyond_a_limit() -> None:
    network = Network()
    network.listener = replace(network.listener, head_max=600)
    client = network.client(max_frame_size=512)
    network.client().receiver("q")
    endless = b"\x00\x53\x72\xd1\x00\x00\x10\x00\x00\x00\x00\x02" + b"x" * 700
    sent = client.send(client.sender("q"), endless, more=True)
    assert isinstance(sent.outcome, Rejected)
    assert sent.outcome.error is not None
    assert sent.outcome.error.condition == AmqpCondition.RESOURCE_LIMIT_EXCEEDED
    network.leave()


def test_a_presettled_message_that_is_too_large_leaves_nothing() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", max_message_size=1000)
    link = producer.sender("q")
    large = producer.send(link, message("x" * 500), settled=True, more=True)
    producer.resume(large, b"y" * 2000, more=True)
    producer.resume(large, b"z")
    assert network.core.context.in_flight == 0, network.core.context.in_flight


def test_a_multicast_that_drops_goes_on_without_one_that_never_gave_credit() -> None:
    network = Network(AddressConfig(pattern="q", distribution=Distribution.MULTICAST, overflow=Overflow.DROP))
    a, b, producer = network.client(), network.client(), network.client()
    a.receiver("q", credit=100)
    b.receiver("q", credit=0)
    link = producer.sender("q")
    network.advance(30)
    assert link.credit > 0, "one receiver without credit stops the address for ever, overflow = drop or not"


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


@pytest.mark.parametrize("most", [SENT_A_TURN, MOST_SENT])
def test_deliveries_that_have_waited_leave_in_turns_and_in_order(most: int) -> None:
    network = Network()
    network.core.context.most_sent = most
    consumer = network.client(window=1000)
    addresses = [f"q{number}" for number in range(30)]
    for address in addresses:
        consumer.receiver(address, credit=100)
    links = [network.client().sender(address) for address in addresses]
    consumer.stopped = True
    for number in range(60):
        for producer, link in zip(network.clients[1:], links, strict=True):
            producer.send(link, message(number), settled=True)
    out = [each.endpoint.flow_state for each in consumer.record.outgoing]

    def sent() -> int:
        return sum(each.deliveries for each in out)

    window = sent()
    assert 2 * window < 1800, "the window of the session lets no more through"
    core, consumer.stopped = network.core, False
    for octets in (consumer.unread, b""):
        consumer.read(octets or core.data_to_send(consumer.record, network.now))
        core.sent(consumer.record, network.now)
    consumer.unread = bytearray()
    turns = [window]
    assert core.receive(consumer.record, consumer.engine.data_to_send(network.now), network.now)
    turns.append(sent())
    while core.context.chores:
        core.work(network.now, lambda: False)
        turns.append(sent())
    assert turns[-1] == 2 * window
    assert all(later - earlier <= most for earlier, later in pairwise(turns))
    network.run()
    came: dict[str, list[bytes]] = {}
    for each in consumer.take():
        came.setdefault(each.link.name, []).append(bytes(each.payload))
    assert list(came.values()) == [[message(number) for number in range(60)]] * 30
    network.leave()


@pytest.mark.parametrize(("most", "turns"), [(SENT_A_TURN, 1), (MOST_SENT, 3)])
def test_nodes_whose_time_has_come_have_turns(most: int, turns: int) -> None:
    network = Network()
    network.core.context.most_sent = most
    consumer, producer = network.client(), network.client()
    addresses = [f"q{number}" for number in range(60)]
    receivers = [consumer.receiver(address, credit=1) for address in addresses]
    links = [producer.sender(address) for address in addresses]
    for link in links:
        producer.send(link, settled=True)
    consumer.take(len(receivers))
    waiting = [producer.send(link, message(ttl=1000)) for link in links]
    network.now += 1.0
    core = network.core
    for turn in range(1, turns + 1):
        at = core.next_timer()
        assert at is not None
        assert at <= network.now
        core.handle_timer(network.now)
        producer.read(core.data_to_send(producer.record, network.now))
        assert sum(each.outcome is not None for each in waiting) == min(turn * most, len(waiting))
    network.run()
    network.leave()


@pytest.mark.parametrize(("decision", "turns"), [(1, 1), (DECISION, 17)])
def test_what_is_decided_counts_more_in_a_turn_where_tenants_contend(decision: int, turns: int) -> None:
    network = Network()
    client = network.client()
    network.core.context.decision = decision
    for number in range(80):
        client.session.attach(Terminus(f"s{number}", Role.SENDER), source=Source(), target=Target(address=f"q{number}"))
    data = client.engine.data_to_send(network.now)
    taken = 1
    while not network.core.receive(client.record, data, network.now):
        data, taken = bytearray(), taken + 1
    assert taken == turns
    network.run()
    assert len(client.record.incoming) == 80
    network.leave()
