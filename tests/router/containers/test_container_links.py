"""Links to nodes of other containers: settlement by their receivers, and attaching again."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

from amqpmesh.router.amqp.codec.types import Described, Symbol
from amqpmesh.router.amqp.standard.definitions import (
    AmqpCondition,
    Error,
    LinkCondition,
    SenderSettleMode,
    SessionCondition,
)
from amqpmesh.router.amqp.standard.delivery_states import Accepted, DeliveryState, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import (
    DistributionMode,
    Source,
    Target,
    TerminusDurability,
    TerminusExpiryPolicy,
)
from amqpmesh.router.config.file import ConnectorConfig, LinkConfig, ListenerConfig
from amqpmesh.router.containers.container_link import REPEAT_TIME
from amqpmesh.router.containers.container_links import FIRST_STOLEN_PAUSE, LASTING, LONGEST_PAUSE
from amqpmesh.router.core import Core
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.statistics.configured import ContainerLinkState, ContainerLinkStatistics
from tests.support.peers.broker import CONNECTOR, Broker
from tests.support.worlds.meshes import Wire, World
from tests.support.worlds.network import OUTCOMES, Network, message

FEEDS = LinkConfig(connector="broker", name="feeds", source="queue", address="incoming")
FED = LinkConfig(connector="broker", name="fed", target="queue", address="outgoing")
NOT_FOUND = Error(condition=AmqpCondition.NOT_FOUND, description="no such queue")
STOLEN = Error(condition=LinkCondition.STOLEN)
FAILED = Modified(delivery_failed=True)
RABBIT = tuple(Symbol(f"amqp:{name}:list") for name in ("accepted", "rejected", "released"))

S = ContainerLinkState


def network(*links: LinkConfig) -> Network:
    return Network(connectors=(CONNECTOR,), container_links=links or (FEEDS, FED))


def told(of: Network, name: str) -> ContainerLinkStatistics:
    """Return the statistics of a link."""
    return next(each for each in snapshot(of.core).container_links if each.name == name)


def events(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [line for line in caplog.messages if line.startswith(f"{event} ")]


# ---------------------------------------------------------------------------------------------------- what crosses them


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_what_a_broker_sends_is_settled_with_the_receivers_outcome_and_not_before(outcome: str) -> None:
    router = network()
    broker, consumer = Broker(router), router.client()
    consumer.receiver("incoming")
    sent = broker.send(broker.sending("feeds"))
    (arrival,) = consumer.take(1)
    assert bytes(arrival.payload) == message()
    assert sent.said == []
    arrival.dispose(OUTCOMES[outcome], settled=True)
    router.run()
    assert sent.said == [(OUTCOMES[outcome], True)]
    router.leave()


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_what_a_broker_is_sent_has_the_brokers_outcome(outcome: str) -> None:
    router = network()
    broker, producer = Broker(router), router.client()
    sent = producer.send(producer.sender("outgoing"))
    (arrival,) = broker.take(1)
    assert bytes(arrival.payload) == message()
    assert sent.said == []
    arrival.dispose(OUTCOMES[outcome], settled=True)
    router.run()
    assert sent.said == [(OUTCOMES[outcome], True)]
    router.leave()


def test_a_source_is_asked_for_unsettled_deliveries_and_a_settled_one_is_passed_on_settled() -> None:
    router = network()
    broker = Broker(router)
    asked = {attach.name: attach for attach in broker.asked}
    assert asked["feeds"].snd_settle_mode is SenderSettleMode.UNSETTLED
    assert isinstance(asked["feeds"].source, Source)
    assert asked["feeds"].source.address == "queue"
    producer = router.client()
    producer.send(producer.sender("outgoing"), settled=True)
    (arrival,) = broker.take(1)
    assert arrival.delivery.remote_settled
    router.leave()


@pytest.mark.parametrize(
    ("said", "heard"), [(FAILED, Released()), (Rejected(), Rejected()), (Released(), Released()), (Accepted(),) * 2]
)
def test_a_source_without_the_outcome_modified_hears_one_that_it_has(said: DeliveryState, heard: DeliveryState) -> None:
    router = network(FEEDS)
    broker = Broker(router, answers={"source": Source(address="queue", outcomes=RABBIT)})
    consumer = router.client()
    consumer.receiver("incoming")
    sent = broker.send(broker.sending("feeds"))
    consumer.take(1)[0].dispose(said, settled=True)
    router.run()
    assert sent.said == [(heard, True)]
    router.leave()


def test_a_broker_has_no_credit_while_nobody_receives_what_it_would_send() -> None:
    router = network(FEEDS)
    broker = Broker(router)
    link = broker.sending("feeds")
    assert link.credit == 0
    consumer = router.client()
    consumer.receiver("incoming", credit=3)
    assert link.credit == 3
    consumer.close()
    router.advance(2.0)
    assert link.credit == 0
    router.leave()


def test_nobody_gets_credit_for_what_a_broker_would_receive_until_it_takes_the_link() -> None:
    router = network(FED)
    broker = Broker(router, refuses={"queue": NOT_FOUND})
    producer = router.client()
    link = producer.sender("outgoing")
    assert link.credit == 0
    broker.refuses.clear()
    router.advance(1.0)
    assert link.credit == 10
    router.leave()


def test_more_than_a_broker_had_credit_for_is_taken_and_delivered() -> None:
    router = network(FEEDS)
    broker, consumer = Broker(router), router.client()
    receiver = consumer.receiver("incoming", credit=2)
    link = broker.sending("feeds")
    sents = []
    for _ in range(10):
        link.flow_state.link_credit = 1  # like a broker that does not count messages under way
        sents.append(broker.send(link))
    arrivals = consumer.take(2)
    receiver.flow(8)
    router.run()
    arrivals += consumer.take(8)
    for arrival in arrivals:
        arrival.accept()
    router.run()
    assert [sent.said for sent in sents] == [[(Accepted(), True)]] * 10
    assert told(router, "feeds").state is S.ATTACHED
    router.leave()


def test_a_broker_is_not_asked_to_drain_when_a_consumer_drains() -> None:
    router = network(FEEDS)
    broker, consumer = Broker(router), router.client()
    receiver = consumer.receiver("incoming", credit=5)
    receiver.flow(5, drain=True)
    router.run()
    router.advance(0.1)
    assert receiver.credit == 5, "the broker has time to send"
    router.advance(0.2)
    assert receiver.credit == 0
    assert broker.drain_requests == 0
    router.leave()


def test_credit_that_lies_idle_at_a_broker_goes_to_those_who_wait_without_a_drain() -> None:
    router = network(FEEDS)
    broker, consumer, producer = Broker(router), router.client(), router.client()
    receiver = consumer.receiver("incoming", credit=10)
    idle = broker.sending("feeds")
    assert idle.credit == 10
    busy = producer.sender("incoming")
    for _ in range(5):
        while busy.credit:
            producer.send(busy)
        router.advance(0.3)
    assert idle.credit == 1
    assert broker.drain_requests == 0
    for arrival in consumer.take():
        arrival.accept()
    receiver.flow(10)
    router.run()
    assert busy.credit >= 5
    router.leave()


def test_what_a_broker_wants_to_know_of_a_node_it_is_told() -> None:
    lasting = LinkConfig(
        connector="broker",
        name="lasting",
        source="topic",
        address="incoming",
        capabilities=("topic", "shared"),
        durable="unsettled-state",
        expiry_policy=TerminusExpiryPolicy.NEVER,
        distribution_mode=DistributionMode.COPY,
        selector="colour = 'red'",
    )
    made = LinkConfig(connector="broker", name="made", target="queue", address="outgoing", capabilities=("queue",))
    router = network(lasting, made)
    asked = {attach.name: attach for attach in Broker(router).asked}
    selector = Symbol("apache.org:selector-filter:string")
    assert asked["lasting"].source == Source(
        address="topic",
        capabilities=(Symbol("topic"), Symbol("shared")),
        durable=TerminusDurability.UNSETTLED_STATE,
        expiry_policy=TerminusExpiryPolicy.NEVER,
        distribution_mode=DistributionMode.COPY,
        filter={selector: Described(selector, "colour = 'red'")},
    )
    assert asked["made"].target == Target(address="queue", capabilities=(Symbol("queue"),))
    router.leave()


# ------------------------------------------------------------------------------------------------ cut, stage by stage


@pytest.mark.parametrize("cut", ["on its way", "before it is decided", "before that is heard", "after it"])
def test_what_a_broker_sends_is_lost_at_no_stage(cut: str) -> None:
    router = network(FEEDS)
    broker, consumer = Broker(router), router.client()
    consumer.receiver("incoming")
    link = broker.sending("feeds")
    if cut == "on its way":
        link.transfer(link.delivery(b"1"), message())  # written, and not read by the router
        broker.engine.data_to_send(router.now)
        arrived = 0
    else:
        sent = broker.send(link)
        arrived = 1
    arrivals = consumer.take(arrived)
    if cut == "before that is heard":
        broker.stopped = True
    if cut in ("before that is heard", "after it"):
        arrivals[0].accept()
        router.run()
    broker.lose()
    if cut == "after it":
        assert sent.said == [(Accepted(), True)]
    else:
        # The broker still has the message without an outcome, and sends it again.
        another = Broker(router)
        again = another.send(another.sending("feeds"))
        (arrival,) = consumer.take(1)
        assert bytes(arrival.payload) == message()
        arrival.accept()
        router.run()
        assert again.said == [(Accepted(), True)]
    for arrival in arrivals:
        if not arrival.delivery.settled:
            arrival.accept()
    router.leave()


@pytest.mark.parametrize("cut", ["before it is decided", "before that is heard", "after it"])
def test_what_a_broker_is_sent_is_in_doubt_until_its_outcome_is_here(cut: str) -> None:
    router = network(FED)
    broker, producer = Broker(router), router.client()
    sent = producer.send(producer.sender("outgoing"))
    (arrival,) = broker.take(1)
    if cut != "before it is decided":
        arrival.accept()
    if cut == "before that is heard":
        broker.engine.data_to_send(router.now)  # written, and not read by the router
    elif cut == "after it":
        router.run()
    broker.lose()
    assert sent.said == [(Accepted() if cut == "after it" else FAILED, True)]
    router.leave()


# ---------------------------------------------------------------------------------------------------- what ends them


def test_a_refused_link_is_attached_again_after_growing_pauses_and_its_reason_told_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = network(FEEDS)
    broker = Broker(router, refuses={"queue": NOT_FOUND})
    stands = told(router, "feeds")
    assert (stands.state, stands.failures, stands.link) == (S.WAITING, 1, None)
    assert stands.reason == "the peer refused the link (amqp:not-found): no such queue"
    assert stands.retry_at is not None
    assert 0.05 <= stands.retry_at - router.now <= 0.1
    times = [router.now]
    while len(times) < 12:
        before = len(broker.asked)
        router.advance(0.01)
        if len(broker.asked) > before:
            times.append(router.now)
    pauses = [late - early for early, late in pairwise(times)]
    for row, pause in enumerate(pauses):
        longest = min(LONGEST_PAUSE, 0.1 * 2**row)
        assert longest / 2 - 1e-6 <= pause <= longest + 0.02  # a sum of hundredths is not exact
    assert len(events(caplog, "link retrying")) == 1 + int((router.now - times[0]) // REPEAT_TIME)
    broker.refuses.clear()
    router.advance(LONGEST_PAUSE)
    stands = told(router, "feeds")
    assert (stands.state, stands.failures, stands.reason, stands.retry_at) == (S.ATTACHED, 0, None, None)
    router.leave()


def test_a_session_that_a_broker_ends_takes_one_link_with_it() -> None:
    router = network()
    broker = Broker(router, refuses={"queue": NOT_FOUND}, ends_sessions=True)
    broker.refuses.clear()
    router.advance(0.2)
    consumer = router.client()
    consumer.receiver("incoming")
    sent = broker.send(broker.sending("feeds"))
    (arrival,) = consumer.take(1)
    broker.receiving("fed").session.end(Error(condition=SessionCondition.WINDOW_VIOLATION, description="so it is"))
    router.run()
    assert told(router, "fed").reason == "the peer ended the session (amqp:session:window-violation): so it is"
    assert told(router, "feeds").state is S.ATTACHED
    arrival.accept()
    router.advance(0.3)
    assert sent.said == [(Accepted(), True)]
    assert told(router, "fed").state is S.ATTACHED
    router.leave()


def test_a_link_that_lasted_is_attached_again_soon_whatever_was_before() -> None:
    router = network(FEEDS)
    broker = Broker(router, refuses={"queue": NOT_FOUND})
    router.advance(30.0)
    broker.refuses.clear()
    router.advance(LONGEST_PAUSE + LASTING)
    broker.sending("feeds").detach()
    router.run()
    stands = told(router, "feeds")
    assert stands.reason == "the peer detached the link"
    router.advance(0.1)
    assert told(router, "feeds").state is S.ATTACHED
    router.leave()


def test_a_link_that_was_detached_and_not_closed_still_hears_the_outcomes_of_what_it_had_sent() -> None:
    router = network(FEEDS)
    broker, consumer = Broker(router), router.client()
    consumer.receiver("incoming")
    early = broker.send(broker.sending("feeds"))
    broker.sending("feeds").detach(closed=False)
    router.run()
    router.advance(0.2)
    late = broker.send(broker.sending("feeds"))
    for arrival in consumer.take(2):
        arrival.accept()
    router.run()
    assert early.said == late.said == [(Accepted(), True)]
    router.leave()


def test_a_link_that_the_router_detaches_itself_is_attached_again() -> None:
    router = network(FEEDS)
    broker = Broker(router, answers={"source": Source(address="queue", outcomes=(Symbol("test:none"),))})
    consumer = router.client()
    consumer.receiver("incoming")
    broker.send(broker.sending("feeds"))
    consumer.take(1)[0].dispose(Released(), settled=True)
    router.run()
    reason = told(router, "feeds").reason
    assert reason == "the router detached the link (amqp:not-allowed): the source permits none of our outcomes"
    router.advance(0.2)
    assert told(router, "feeds").state is S.ATTACHED
    router.leave()


def test_a_link_that_the_peer_has_no_room_for_waits() -> None:
    router = network()
    Broker(router, channel_max=0)
    assert told(router, "feeds").state is S.ATTACHED
    stands = told(router, "fed")
    assert stands.state is S.WAITING
    assert stands.reason is not None
    assert stands.reason.startswith("it cannot be attached: ")
    router.leave()


def test_a_stolen_link_is_left_alone_for_longer_each_time_and_the_operator_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = network(FEEDS)
    broker = Broker(router)
    for row in range(1, 4):
        broker.sending("feeds").detach(error=STOLEN)
        router.run()
        stands = told(router, "feeds")
        assert (stands.state, stands.stolen) == (S.STOLEN, row)
        assert stands.retry_at is not None
        longest = FIRST_STOLEN_PAUSE * 2 ** (row - 1)
        assert longest / 2 <= stands.retry_at - router.now <= longest
        router.advance(longest / 2 - 0.1)
        assert len(broker.asked) == row
        router.advance(longest / 2 + 0.1)
        assert told(router, "feeds").state is S.ATTACHED
        router.advance(LASTING)
    lines = events(caplog, "link stolen by another container")
    assert [line.partition("count=")[2].split()[0] for line in lines] == ["1", "2", "3"]
    assert told(router, "feeds").stolen == 3
    router.leave()


def test_a_stolen_link_is_not_taken_back_because_the_connection_was_lost() -> None:
    router = network(FEEDS)
    broker = Broker(router)
    broker.sending("feeds").detach(error=STOLEN)
    router.run()
    broker.lose()
    assert told(router, "feeds").state is S.STOLEN
    another = Broker(router)
    assert another.asked == []
    router.advance(FIRST_STOLEN_PAUSE)
    assert told(router, "feeds").state is S.ATTACHED
    router.leave()


# --------------------------------------------------------------------------------------------------- reconnecting


def test_links_come_back_with_the_connection_and_what_was_unsettled_is_sent_again() -> None:
    router = network()
    broker, consumer, producer = Broker(router), router.client(), router.client()
    consumer.receiver("incoming", credit=10)
    lost = broker.send(broker.sending("feeds"))
    to_broker = producer.sender("outgoing")
    in_doubt = producer.send(to_broker)
    assert len(broker.take(1)) == 1
    broker.lose()
    assert {told(router, name).state for name in ("feeds", "fed")} == {S.DISCONNECTED}
    assert in_doubt.said == [(FAILED, True)]
    (orphan,) = consumer.take(1)
    orphan.accept()
    router.advance(2.0)
    assert lost.said == []
    assert to_broker.credit == 0

    another = Broker(router)
    assert {told(router, name).state for name in ("feeds", "fed")} == {S.ATTACHED}
    again = another.send(another.sending("feeds"))
    consumer.take(1)[0].accept()
    once_more = producer.send(to_broker)
    another.take(1)[0].accept()
    router.run()
    assert again.said == once_more.said == [(Accepted(), True)]
    router.leave()


def test_what_a_broker_was_to_be_sent_and_was_not_goes_back() -> None:
    router = network(FED)
    broker, producer = Broker(router, credit=1), router.client()
    link = producer.sender("outgoing")
    sent = producer.send(link)
    assert link.credit, "one delivery may wait here"
    waits = producer.send(link)
    broker.lose()
    assert sent.said == [(FAILED, True)]
    assert waits.said == [(Released(), True)]
    router.leave()


def test_a_router_that_drains_takes_back_a_brokers_credit_and_attaches_nothing_again() -> None:
    router = network(FEEDS)
    broker, consumer = Broker(router), router.client()
    consumer.receiver("incoming")
    link = broker.sending("feeds")
    assert router.core.has_credit_out
    router.core.start_drain(router.now)
    router.advance(0.1)
    assert link.credit == 0
    assert not router.core.has_credit_out
    link.detach()
    router.advance(5.0)
    assert len(broker.asked) == 1
    router.leave()


# ----------------------------------------------------------------------------------------------------------- meshes


class Bridge(Wire):
    """A connection from a router's container connector to a router of another mesh, where it is a client."""

    def __init__(self, world: World, one: Core, two: Core) -> None:
        now = world.now
        listener = ListenerConfig(url="amqp://127.0.0.1:0", name="clients", idle_time_out=0.0)
        self.connect(
            world,
            (one, one.connect(CONNECTOR, "127.0.0.1", now, secured=False)),
            (two, two.accept(listener, "127.0.0.1", now, secured=False)),
        )


def test_two_meshes_are_joined_and_outcomes_cross_both() -> None:
    # A and B form one mesh, Y and Z another; the links lead from B to Y.
    links = (
        LinkConfig(connector="broker", name="there", target="parcels", address="parcels"),
        LinkConfig(connector="broker", name="back", source="receipts", address="receipts"),
    )
    world = World("ABYZ", [("A", "B"), ("Y", "Z")], connectors=(CONNECTOR,), container_links=links)

    def joined() -> Bridge:
        bridge = Bridge(world, world["B"].core, world["Y"].core)
        world.add(bridge)
        return bridge

    bridge = joined()
    left, right = world["A"].client(), world["Z"].client()
    parcels, receipts = left.sender("parcels"), right.sender("receipts")
    right.receiver("parcels")
    left.receiver("receipts")
    world.advance(0.5)
    for _ in range(2):
        there, back = left.send(parcels), right.send(receipts)
        (parcel,), (receipt,) = right.take(1), left.take(1)
        assert there.said == back.said == []
        parcel.accept()
        receipt.dispose(Rejected(), settled=True)
        world.run()
        assert there.said == [(Accepted(), True)]
        assert back.said == [(Rejected(), True)]

        in_doubt, lost = left.send(parcels), right.send(receipts)
        (twice,), (failed,) = right.take(1), left.take(1)
        world.cut(bridge)
        assert in_doubt.said == lost.said == [(FAILED, True)]
        twice.accept()
        failed.accept()
        world.advance(2.0)
        assert parcels.credit == receipts.credit == 0
        bridge = joined()
        world.advance(1.0)
    world.cut(bridge)
    world.leave()


def test_any_router_of_a_mesh_feeds_a_broker_and_is_fed_by_it() -> None:
    world = World("ABC", [("A", "B"), ("B", "C")], connectors=(CONNECTOR,), container_links=(FEEDS, FED))
    broker = Broker(world["A"])
    far = world["C"].client()
    far.receiver("incoming")
    outgoing = far.sender("outgoing")
    world.advance(0.5)
    sent, given = broker.send(broker.sending("feeds")), far.send(outgoing)
    far.take(1)[0].dispose(FAILED, settled=True)
    broker.take(1)[0].accept()
    world.run()
    assert sent.said == [(FAILED, True)]
    assert given.said == [(Accepted(), True)]
    world.leave()


def test_links_of_several_connectors_do_not_know_of_each_other() -> None:
    other = ConnectorConfig(url="amqp://127.0.0.1:5698", name="other", role="container", idle_time_out=0.0)
    there = LinkConfig(connector="other", name="there", target="queue", address="incoming")
    router = Network(connectors=(CONNECTOR, other), container_links=(FEEDS, there))
    first, second = Broker(router), Broker(router, connector=other)
    sent = first.send(first.sending("feeds"))
    second.take(1)[0].accept()
    router.run()
    assert sent.said == [(Accepted(), True)]
    first.lose()
    assert (told(router, "feeds").state, told(router, "there").state) == (S.DISCONNECTED, S.ATTACHED)
    router.leave()


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "amqpmesh")
