"""Statistics of a router: counters, times, and reasons of blocked senders."""

from dataclasses import fields, replace

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.messaging import (
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
    LifetimePolicy,
    Source,
    Target,
)
from amqpmesh.router.config.file import AddressConfig, Overflow
from amqpmesh.router.kernel import dispose
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.statistics.common import Direction, Outcomes, Reason
from amqpmesh.router.statistics.router_statistics import AddressStatistics, LinkStatistics, Statistics
from tests.support.worlds.network import OUTCOMES, Client, Network, message


def link(network: Network, name: str) -> LinkStatistics:
    (found,) = (each for each in snapshot(network.core).links if each.name == name)
    return found


def address(network: Network, name: str) -> AddressStatistics:
    (found,) = (each for each in snapshot(network.core).addresses if each.name == name)
    return found


def outcomes(counted: Outcomes) -> dict[str, int]:
    return {item.name: getattr(counted, item.name) for item in fields(Outcomes)}


def none_but(**counted: int) -> dict[str, int]:
    return {**dict.fromkeys((item.name for item in fields(Outcomes)), 0), **counted}


def pair(network: Network, *, credit: int = 10) -> tuple[Client, Client]:
    """Attach a consumer with a link `in` and a producer with a link `out`, both at `q`."""
    consumer, producer = network.client("consumer"), network.client("producer")
    consumer.receiver("q", name="in", credit=credit)
    producer.sender("q", name="out")
    return consumer, producer


@pytest.mark.parametrize("distribution", [Distribution.BALANCED, Distribution.MULTICAST])
@pytest.mark.parametrize("redeliver", [False, True])
def test_the_oldest_unsettled_delivery_has_an_age(distribution: Distribution, redeliver: bool) -> None:
    network = Network(AddressConfig(pattern="q", distribution=distribution, redeliver=redeliver))
    consumers, producer = [network.client() for _ in range(2)], network.client()
    for each in consumers:
        each.receiver("q")
    out = producer.sender("q")
    assert address(network, "q").oldest_unsettled is None
    for _ in range(2):
        producer.send(out, message())
        network.advance(2.0)
    assert address(network, "q").oldest_unsettled == 4.0
    for each in consumers:
        for arrival in each.take():
            arrival.accept()
    network.run()
    found = address(network, "q")
    assert found.oldest_unsettled is None
    assert found.delayed_1s == found.accepted == (4 if distribution is Distribution.MULTICAST else 2)
    assert found.delayed_10s == 0
    network.leave()


# What is counted.


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_outcome_is_counted_on_both_links_at_the_address_and_for_the_router(outcome: str) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", name="in")
    producer.send(producer.sender("q", name="out"))
    consumer.take(1)[0].dispose(OUTCOMES[outcome], settled=True)
    network.run()
    statistics = snapshot(network.core)
    for counted in (*statistics.links, *statistics.addresses, statistics.router):
        assert outcomes(counted) == none_but(**{outcome: 1})
    network.leave()


def test_a_presettled_delivery_has_no_outcome() -> None:
    network = Network()
    _consumer, producer = network.client(), network.client()
    _consumer.receiver("q", name="in")
    producer.send(producer.sender("q", name="out"), settled=True)
    statistics = snapshot(network.core)
    for counted in (*statistics.links, *statistics.addresses, statistics.router):
        assert outcomes(counted) == none_but(presettled=1)


def test_a_multicast_counts_each_receivers_outcome_and_one_for_the_sender() -> None:
    network = Network(AddressConfig(pattern="q", distribution=Distribution.MULTICAST))
    one, other, producer = network.client(), network.client(), network.client()
    one.receiver("q", name="one")
    other.receiver("q", name="other")
    producer.send(producer.sender("q", name="out"))
    one.take(1)[0].accept()
    other.take(1)[0].dispose(OUTCOMES["released"], settled=True)
    network.run()
    assert outcomes(link(network, "out")) == none_but(accepted=1)
    at = address(network, "q")
    assert outcomes(at) == none_but(accepted=1, released=1)
    assert (at.deliveries_in, at.deliveries_out, at.distribution) == (1, 2, Distribution.MULTICAST)


def test_a_delivery_is_undelivered_until_it_leaves_and_unsettled_until_it_is_settled() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", name="in", credit=1)
    out = producer.sender("q", name="out")
    producer.send(out)
    producer.send(out)
    at = address(network, "q")
    assert (at.waiting, at.deliveries_in, at.deliveries_out) == (1, 2, 1)
    assert at.buffered > 0
    incoming, outgoing = link(network, "out"), link(network, "in")
    assert (incoming.deliveries, incoming.undelivered, incoming.unsettled) == (2, 1, 2)
    assert (outgoing.deliveries, outgoing.undelivered, outgoing.unsettled) == (1, 0, 1)
    receiver.flow(1)
    network.run()
    assert (link(network, "out").undelivered, link(network, "in").unsettled) == (0, 2)
    for arrival in consumer.take(2):
        arrival.accept()
    network.run()
    assert link(network, "out").unsettled == link(network, "in").unsettled == 0
    assert snapshot(network.core).router.relays == 0


def test_copies_that_wait_and_copies_that_were_missed_are_told() -> None:
    network = Network(AddressConfig(pattern="q", copy_backlog=100 + 512))
    consumer, browser, producer = network.client(), network.client(), network.client()
    consumer.receiver("q", name="in", credit=10)
    browser.receiver("q", name="browse", credit=0, copy=True)
    out = producer.sender("q", name="out")
    producer.send(out)
    assert (link(network, "browse").undelivered, link(network, "browse").missed) == (1, 0)
    producer.send(out, b"\x00" * 5000)
    assert (link(network, "browse").undelivered, link(network, "browse").missed) == (1, 1)
    assert link(network, "browse").copy
    assert (address(network, "q").consumers, address(network, "q").copies) == (1, 1)


def test_what_links_counted_stays_with_the_address_and_the_router_when_they_are_gone() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    for _ in range(3):
        out = producer.sender("q")
        producer.send(out)
        consumer.take(1)[0].accept()
        network.run()
        out.detach()
        network.run()
    keeper = network.client()
    keeper.sender("q")
    consumer.close()
    producer.lose()
    at = address(network, "q")
    assert (at.deliveries_in, at.deliveries_out, outcomes(at)) == (3, 3, none_but(accepted=3))
    keeper.close()
    router = snapshot(network.core).router
    assert (router.deliveries_in, router.deliveries_out, outcomes(router)) == (3, 3, none_but(accepted=3))
    assert snapshot(network.core).is_empty


@pytest.mark.parametrize("first", ["in", "out"])
def test_a_link_detached_without_being_closed_counts_once(first: str) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver, sender = consumer.receiver("q", name="in"), producer.sender("q", name="out")
    producer.send(sender)
    (receiver if first == "in" else sender).detach(closed=False)
    network.run()
    lingering = link(network, first)
    assert (lingering.attached, lingering.unsettled, lingering.reason) == (False, 1, Reason.DETACHED)
    consumer.take(1)[0].accept()
    network.run()
    assert [each.name for each in snapshot(network.core).links] == ["out" if first == "in" else "in"]
    router = snapshot(network.core).router
    assert (router.deliveries_in, router.deliveries_out, router.accepted) == (1, 1, 1)


def test_what_goes_to_nobody_is_counted_at_its_address() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    out, anonymous = producer.sender("q"), producer.sender(None, name="anonymous")
    receiver = consumer.receiver("q", name="in", credit=1)
    for _ in range(2):
        producer.send(out)  # the second one waits
    producer.send(anonymous, message(to="q"))
    producer.send(anonymous, message(to="q"))
    assert address(network, "q").undelivered == 0
    assert link(network, "anonymous").undelivered == 2, "those that wait"
    network.advance(2)  # they have waited long enough
    assert address(network, "q").undelivered == 2
    receiver.detach()
    network.run()
    assert address(network, "q").undelivered == 3
    producer.send(anonymous, message(to="q"))  # there is no receiver any more
    assert address(network, "q").undelivered == 4
    producer.send(anonymous, message(to="nowhere"))
    assert address(network, "q").undelivered == 4
    assert snapshot(network.core).router.undelivered == 5


@pytest.mark.parametrize("first", ["in", "out"])
def test_what_a_link_counted_that_was_detached_and_settled_or_lost_stays_once(first: str) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver, sender = consumer.receiver("q", name="in"), producer.sender("q", name="out")
    producer.send(sender)
    consumer.take(1)[0].accept()
    network.run()
    producer.send(sender)  # it is not settled when the connection is lost
    (receiver if first == "in" else sender).detach(closed=False)
    network.run()
    (consumer if first == "in" else producer).lose()
    router = snapshot(network.core).router
    assert (router.deliveries_in, router.deliveries_out, router.accepted) == (2, 2, 1)
    again, last = network.client(), network.client()
    receiver, sender = again.receiver("p"), last.sender("p")
    last.send(sender)
    again.take(1)[0].accept()
    network.run()
    (receiver if first == "in" else sender).detach(closed=False)  # nothing is unsettled: it is gone at once
    network.run()
    router = snapshot(network.core).router
    assert (router.deliveries_in, router.deliveries_out, router.accepted) == (3, 3, 2)


def test_what_a_sender_says_it_has_is_told() -> None:
    network = Network()
    out = network.client().sender("q", name="out")
    out.offer(7)
    out.request_flow()
    network.run()
    assert link(network, "out").available == 7


def test_what_a_lost_receiver_leaves_is_counted_as_modified() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q")
    producer.send(producer.sender("q"))
    consumer.lose()
    router = snapshot(network.core).router
    assert outcomes(router) == none_but(modified=1)


def test_octets_of_messages_connections_and_router_add_up() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", name="in")
    payload = encode_composite(Accepted()) * 100  # any octets: the message-format is not 0
    producer.send(producer.sender("q", name="out"), payload, message_format=7)
    statistics = snapshot(network.core)
    assert [each.octets for each in statistics.links] == [len(payload)] * 2
    first, second = statistics.connections
    assert second.octets_in > len(payload) > first.octets_in
    assert first.octets_out > len(payload) > second.octets_out
    assert statistics.router.octets_in == first.octets_in + second.octets_in
    assert statistics.router.octets_out == first.octets_out + second.octets_out
    consumer.lose()
    told = snapshot(network.core)
    assert told.router.octets_in == first.octets_in + told.connections[0].octets_in


# Times.


def test_credit_and_deliveries_are_timed() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    out = producer.sender("q", name="out")
    began = snapshot(network.core).router.now
    assert link(network, "out").attached_at == link(network, "out").zero_credit_since == began
    network.advance(1)
    receiver = consumer.receiver("q", name="in", credit=1)
    for name in ("in", "out"):
        told = link(network, name)
        assert (told.credit > 0, told.zero_credit_since, told.last_delivery_at) == (True, None, None)
    network.advance(1)
    producer.send(out)
    assert link(network, "in").zero_credit_since == link(network, "in").last_delivery_at == began + 2
    assert link(network, "out").last_delivery_at == began + 2
    network.advance(1)
    while out.credit:
        producer.send(out)
    assert link(network, "out").zero_credit_since == began + 3
    network.advance(1)
    assert link(network, "in").zero_credit_since == began + 2
    receiver.flow(5)
    network.run()
    assert link(network, "in").zero_credit_since is None
    assert snapshot(network.core).router.now == began + 4


def test_credit_that_is_taken_back_or_drained_is_timed() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", name="in", credit=5)
    producer.sender("q", name="out")
    network.advance(1)
    receiver.flow(0)
    network.run()
    assert link(network, "in").zero_credit_since == link(network, "out").zero_credit_since == network.now
    receiver.flow(5)
    network.run()
    assert link(network, "in").zero_credit_since is link(network, "out").zero_credit_since is None
    network.advance(2)
    receiver.flow(5, drain=True)
    network.run()
    assert link(network, "in").zero_credit_since == network.now


def test_credit_that_a_sender_gives_back_unasked_is_timed() -> None:
    network = Network()
    consumer, producer = network.client(window=1), network.client()
    consumer.receiver("q", credit=5)
    consumer.stopped = True
    out = producer.sender("q", name="out")
    for _ in range(2):
        producer.send(out)  # the second one waits, and nothing is free for it to be given
    network.now += 0.001
    out.flow_state.drain = True
    out.drained()
    network.run()
    assert (link(network, "out").credit, link(network, "out").zero_credit_since) == (0, network.now)


# Why nothing moves.


def test_a_sender_without_a_receiver_anywhere() -> None:
    network = Network()
    network.client().sender("q", name="out")
    assert link(network, "out").reason is Reason.NO_RECEIVER
    assert address(network, "q").reason is Reason.NO_RECEIVER


def test_a_link_with_credit_has_no_reason() -> None:
    network = Network()
    pair(network)
    assert [each.reason for each in snapshot(network.core).links] == [None, None]
    assert address(network, "q").reason is None


def test_receivers_that_give_no_credit() -> None:
    network = Network()
    pair(network, credit=0)
    assert link(network, "in").reason is Reason.RECEIVER_NO_CREDIT
    assert link(network, "out").reason is Reason.NO_CREDIT


def test_a_receiver_that_took_its_credit_back() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q", name="in")
    producer.sender("q", name="out")
    receiver.flow(0)
    network.run()
    assert link(network, "in").reason is Reason.RECEIVER_TOOK_BACK
    assert link(network, "out").reason is Reason.NO_CREDIT


def test_credit_that_is_used_up() -> None:
    network = Network()
    _consumer, producer = network.client(), network.client()
    _consumer.receiver("q", name="in", credit=1)
    out = producer.sender("q", name="out")
    while out.credit:
        producer.send(out)
    assert link(network, "in").reason is Reason.RECEIVER_SPENT
    assert link(network, "out").reason is Reason.SPENT


def test_credit_that_others_hold() -> None:
    network = Network()
    consumer, holder, producer = network.client(), network.client(), network.client()
    consumer.receiver("q", name="in", credit=5)
    holder.sender("q", name="holder")
    out = producer.sender("q", name="out")
    while out.credit:
        producer.send(out)
    assert address(network, "q").demand > 0
    assert link(network, "holder").credit > 0
    assert link(network, "out").reason is Reason.OTHERS
    network.advance(5)
    assert link(network, "out").reason is None, "idle credit is asked back"


def test_a_receivers_session_window_that_is_closed() -> None:
    network = Network()
    consumer, producer = network.client(window=2), network.client()
    consumer.receiver("q", name="in", credit=100)
    consumer.stopped = True  # it releases nothing
    out = producer.sender("q", name="out")
    while out.credit:
        producer.send(out)
    assert link(network, "in").credit > 0
    assert link(network, "in").reason is Reason.RECEIVER_WINDOW
    assert link(network, "out").reason is Reason.WINDOWS


def test_a_peer_that_does_not_read() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    consumer.receiver("q", name="in", credit=200)
    consumer.stopped = True
    out = producer.sender("q", name="out")
    while snapshot(network.core).connections[0].unwritten <= network.listener.output_backlog:
        producer.send(out, b"\x00" * 4000, message_format=1)
    producer.send(out)  # this one waits
    assert link(network, "in").reason is Reason.RECEIVER_UNREAD
    assert address(network, "q").reason is Reason.UNREAD
    consumer.stopped = False
    network.run()
    assert link(network, "in").reason is address(network, "q").reason is None


def test_a_receiver_that_settles_too_little() -> None:
    network = Network(AddressConfig(pattern="q", max_unsettled=1))
    _consumer, producer = network.client(), network.client()
    _consumer.receiver("q", name="in", credit=10)
    out = producer.sender("q", name="out")
    while out.credit:
        producer.send(out)
    assert link(network, "in").reason is Reason.RECEIVER_UNSETTLED
    assert link(network, "out").reason is Reason.UNSETTLED


def test_a_multicast_that_waits_for_its_slowest_receiver() -> None:
    network = Network(AddressConfig(pattern="q", distribution=Distribution.MULTICAST))
    fast, slow, producer = network.client(), network.client(), network.client()
    fast.receiver("q", name="fast")
    slow.receiver("q", name="slow", credit=0)
    producer.sender("q", name="out")
    assert link(network, "out").reason is Reason.SLOWEST
    assert link(network, "fast").reason is None
    assert link(network, "slow").reason is Reason.RECEIVER_NO_CREDIT


def test_a_receiver_that_was_left_out_is_no_reason() -> None:
    config = AddressConfig(pattern="q", distribution=Distribution.MULTICAST, overflow=Overflow.DROP, overflow_time=1.0)
    network = Network(config)
    fast, slow, producer = network.client(), network.client(), network.client()
    fast_link = fast.receiver("q", name="fast")
    slow.receiver("q", name="slow", credit=1)
    out = producer.sender("q", name="out")
    producer.send(out)
    assert link(network, "slow").reason is Reason.RECEIVER_SPENT
    assert address(network, "q").reason is Reason.SLOWEST
    network.advance(2)
    assert address(network, "q").reason is None
    fast_link.flow(0)
    network.run()
    assert address(network, "q").reason is Reason.NO_CREDIT


def test_memory_that_is_used_up() -> None:
    network = Network(memory=2**20)
    consumer, producer, other = (network.client() for _ in range(3))
    consumer.receiver("q", name="in", credit=1)
    out = producer.sender("q")
    producer.send(out)
    delivery = out.delivery(b"big")
    while network.core.context.budget.used <= 2**20:
        out.transfer(delivery, message(b"\x00" * 1_000_000), more=True)
        network.run()
    other.sender("q", name="late")
    other.sender(None, name="anonymous")
    router = snapshot(network.core).router
    assert router.memory_used_up
    assert router.buffered > router.memory == 2**20
    assert link(network, "late").reason is address(network, "q").reason is Reason.MEMORY
    assert link(network, "anonymous").reason is None
    other.receiver("p")
    other.sender("p", name="elsewhere")
    assert link(network, "elsewhere").reason is None


def test_a_router_that_drains() -> None:
    network = Network()
    _consumer, producer = pair(network)
    producer.sender(None, name="anonymous")
    network.core.start_drain(network.now)
    network.advance(0.1)
    assert snapshot(network.core).router.draining
    assert not snapshot(network.core).router.memory_used_up
    assert link(network, "out").reason is Reason.DRAINING
    assert link(network, "anonymous").reason is Reason.DRAINING


def test_an_anonymous_sender_whose_window_is_full() -> None:
    network = Network()
    network.listener = replace(network.listener, anonymous_window=1)
    producer = network.client()
    out = producer.sender(None, name="out")
    producer.send(out, b"\x00", more=True)
    told = link(network, "out")
    assert (told.address, told.credit, told.undelivered, told.reason) == (None, 0, 1, Reason.HELD)


def test_a_sender_whose_session_window_is_held_by_what_waits() -> None:
    network = Network()
    network.listener = replace(network.listener, session_window=2)
    consumer, producer = network.client(window=1), network.client()
    consumer.receiver("q", name="in", credit=5)
    consumer.stopped = True
    out = producer.sender("q", name="out")
    for _ in range(3):
        assert link(network, "out").reason is None
        producer.send(out)
    assert link(network, "out").credit > 0
    assert link(network, "out").reason is Reason.HELD
    assert snapshot(network.core).connections[1].held == 2


# Whom and what it names.


def test_a_connection_names_its_peer() -> None:
    network = Network()
    network.advance(3)
    client = network.client("worker-1", idle_time_out=20.0)
    client.sender("q")
    client.receiver("p")
    (told,) = snapshot(network.core).connections
    assert (told.number, told.listener, told.host) == (1, "test", "127.0.0.1")
    assert (told.container_id, told.hostname, told.tenant, told.user) == ("worker-1", None, "", None)
    assert (told.tls, told.cipher, told.certificate_subject) == (None, None, None)
    assert (told.state, told.connected_at) == ("OPENED", network.now)
    assert (told.idle_time_out, told.remote_idle_time_out) == (None, 10.0)  # half of it is announced
    assert (told.max_frame_size, told.sessions, told.links) == (4096, 1, 2)


def test_a_connection_that_has_not_opened_is_there() -> None:
    network = Network()
    network.core.accept(network.listener, "192.0.2.1", network.now, secured=False)
    (told,) = snapshot(network.core).connections
    assert (told.host, told.container_id, told.state) == ("192.0.2.1", "", "START")


def test_links_are_told_apart_by_number() -> None:
    network = Network()
    one, other = network.client("one"), network.client("other")
    one.sender("q", name="same")
    other.sender("q", name="same")
    other.receiver("q", name="same")
    links = snapshot(network.core).links
    assert {each.name for each in links} == {"same"}
    assert len({each.number for each in links}) == 3
    assert [(each.connection, each.direction) for each in links] == [
        (1, Direction.INCOMING),
        (2, Direction.INCOMING),
        (2, Direction.OUTGOING),
    ]


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (None, "delete-on-close"),
        (DeleteOnClose(), "delete-on-close"),
        (DeleteOnNoLinks(), "delete-on-no-links"),
        (DeleteOnNoMessages(), "delete-on-no-messages"),
        (DeleteOnNoLinksOrMessages(), "delete-on-no-links-or-messages"),
    ],
)
def test_a_dynamic_node_is_told_with_its_maker_and_lifetime(policy: LifetimePolicy | None, named: str) -> None:
    network = Network()
    network.client().sender("q")
    maker = network.client()
    properties = None if policy is None else {Symbol("lifetime-policy"): policy}
    made = maker.receiver(None, source=Source(dynamic=True, dynamic_node_properties=properties))
    assert made.remote is not None
    assert isinstance(made.remote.source, Source)
    (node,) = snapshot(network.core).nodes
    assert f"{node.name}@A" == made.remote.source.address
    assert (node.dynamic, node.maker, node.lifetime) == (True, 2, named)
    assert node.name in {each.name for each in snapshot(network.core).addresses}


def test_a_sender_to_a_dynamic_node_is_told_its_name() -> None:
    network = Network()
    made = network.client().sender(None, target=Target(dynamic=True), name="out")
    assert made.is_attached
    (node,) = snapshot(network.core).nodes
    assert link(network, "out").address == node.name


def test_a_node_that_is_kept_stays_while_peers_come_and_go() -> None:
    network = Network()
    network.core.context.nodes.make_own("$node")
    client = network.client()
    for _ in range(2):
        sender = client.sender("$node")
        assert sender.is_attached
        sender.detach()
        network.run()
    told = snapshot(network.core)
    assert [node.name for node in told.nodes] == ["$node"]
    assert not told.addresses


# Reading.


def test_reading_statistics_changes_nothing() -> None:
    def relayed(reads: int) -> tuple[Statistics, list[int]]:
        network = Network()
        consumer, producer = network.client(window=4), network.client()
        receiver, out = consumer.receiver("q", name="in", credit=3), producer.sender("q", name="out")
        credit = []
        for _ in range(20):
            for _ in range(reads):
                snapshot(network.core)
            if out.credit:
                producer.send(out, b"\x00" * 10_000, message_format=1)
            for arrival in consumer.take():
                dispose(arrival.delivery, encode_composite(Accepted()), True)
                receiver.flow(3)
            network.run()
            credit.append(out.credit)
        return snapshot(network.core), credit

    assert relayed(0) == relayed(3)


def test_statistics_are_values() -> None:
    network = Network()
    pair(network)
    assert snapshot(network.core) == snapshot(network.core)
    with pytest.raises(AttributeError):
        snapshot(network.core).router.links = 0  # type: ignore[misc]  # what is tried
