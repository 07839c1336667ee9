"""Memory at its limit: the holders that are stopped, and the others that are served."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp.codec.composite import encode_composite
from amqpmesh.router.amqp.codec.types import Symbol
from amqpmesh.router.amqp.link import Receiver, Sender, Terminus
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Released
from amqpmesh.router.amqp.standard.messaging import MessageAnnotations, Source, Target
from amqpmesh.router.config.file import AddressConfig, ListenerConfig
from amqpmesh.router.core import Core
from amqpmesh.router.delivery.link_loss import close_connection
from amqpmesh.router.kernel import OVERHEAD, Budget
from amqpmesh.router.memory.holders import SHARES, Memory
from tests.support.worlds.meshes import World
from tests.support.worlds.network import Client, Network, message

MIB = 2**20


def stopped(network: Network, address: str) -> Client:
    """Attach a receiver that gives much credit, and stop it: it reads nothing any more."""
    client = network.client(max_frame_size=32 * 2**10)
    client.receiver(address, credit=10_000)
    client.stopped = True
    return client


def fill(core: Core, client: Client, address: str, size: int = 30_000) -> None:
    """Send to an address as long as there is credit, or until memory is used up."""
    link = client.sender(address)
    while link.credit and link.session.flow_state.remote_incoming_window and not core.context.memory.used_up:
        client.send(link, message("x" * size))


def use_up(network: Network, count: int = 6) -> list[Client]:
    """Use the memory up by messages to receivers that do not read. Returns: the receivers."""
    readers = [stopped(network, f"stopped {number}") for number in range(count)]
    for number in range(count):
        fill(network.core, network.client(), f"stopped {number}")
    assert network.core.context.memory.used_up
    return readers


# ------------------------------------------------------------------------------------------------ others are served


def test_receivers_that_stop_reading_take_no_credit_from_a_service_that_answers_others() -> None:
    network = Network(memory=MIB)
    readers = use_up(network)
    service, client = network.client(), network.client()
    requests = service.receiver("requests", credit=500)
    answers = service.sender(None)
    node = client.receiver(None, credit=500, source=Source(dynamic=True))
    assert node.remote is not None
    assert isinstance(node.remote.source, Source)
    link = client.sender("requests")
    for _ in range(300):
        client.send(link, message("please"))
        (request,) = service.take(1)
        answer = service.send(answers, message("here", to=node.remote.source.address))
        (arrival,) = client.take(1)
        arrival.accept()
        request.accept()
        network.run()
        assert answer.outcome == Accepted()
        requests.flow(500)
        node.flow(500)
        network.run()
    assert network.core.context.memory.used_up, "all the while"
    for each in readers:
        each.stopped = False
    network.leave()


def test_an_anonymous_message_for_a_node_above_its_share_goes_back_at_once_and_others_of_its_link_go_on() -> None:
    network = Network(memory=MIB)
    use_up(network)
    client, consumer = network.client(), network.client()
    consumer.receiver("fine", credit=1000)
    consumer.receiver("spent", credit=0)
    link = client.sender(None)
    sents = [client.send(link, message("x" * 30_000, to="spent")) for _ in range(6)]
    share = MIB // SHARES
    waiting = share // 30_000 + 1
    assert [sent.outcome for sent in sents] == [None] * waiting + [Released()] * (6 - waiting)
    for _ in range(200):
        client.send(link, message("hello", to="fine"))
        consumer.take(1)[0].accept()
        network.run()
    network.advance(2.0)
    assert all(sent.outcome == Released() for sent in sents), "those that waited have done so long enough"


@pytest.mark.parametrize("place", ["A", "B", "C"])
@pytest.mark.parametrize("kind", ["named", "anonymous", "dynamic"])
def test_receivers_that_stop_reading_at_a_router_silence_nobody_whose_messages_go_by_it(kind: str, place: str) -> None:
    mesh = World("ABC", [("A", "B"), ("B", "C")], memory=MIB)
    readers = [stopped(mesh[place], f"stopped {number}") for number in range(6)]
    mesh.advance(0.5)
    for number in range(6):
        fill(mesh[place].core, mesh["C" if number % 2 else place].client(window=2048), f"stopped {number}")
        mesh.advance(0.2)
    assert mesh[place].core.context.memory.used_up
    consumer, producer = mesh["C"].client(), mesh["A"].client()
    receiver = consumer.receiver(
        None if kind == "dynamic" else "fine", credit=100, source=Source(dynamic=True) if kind == "dynamic" else None
    )
    mesh.advance(0.5)
    to: str | None = "fine"
    if kind == "dynamic":
        assert receiver.remote is not None
        assert isinstance(receiver.remote.source, Source)
        to = receiver.remote.source.address
    link = producer.sender("fine" if kind == "named" else None)
    mesh.advance(0.5)
    for number in range(100):
        assert link.credit, f"after {number}"
        sent = producer.send(link, message("hello", to=to))
        consumer.take(1)[0].accept()
        receiver.flow(100)
        mesh.advance(0.01)
        assert sent.outcome == Accepted()
    assert mesh[place].core.context.memory.used_up, "all the while"
    for each in readers:
        each.stopped = False


def test_of_an_address_with_one_receiver_that_reads_senders_go_on() -> None:
    network = Network(memory=MIB)
    use_up(network)
    stuck = stopped(network, "q")
    producer, consumer = network.client(), network.client()
    link = producer.sender("q")
    big = producer.send(link, message("x" * 400_000), more=True)
    assert network.core.context.memory.is_over(stuck.record.account)
    consumer.receiver("q", credit=1000)
    other = network.client()
    small = other.sender("q")
    for _ in range(100):
        assert small.credit
        other.send(small)
        consumer.take(1)[0].accept()
        network.run()
    assert big.outcome is None


def test_a_browser_that_stops_holds_what_it_holds_itself() -> None:
    network = Network(AddressConfig(pattern="q", copy_backlog=2 * MIB), memory=MIB)
    browser, consumer, producer = (network.client() for _ in range(3))
    browser.receiver("q", credit=0, copy=True)
    consumer.receiver("q", credit=1000)
    link = producer.sender("q")
    for number in range(200):
        assert link.credit, f"after {number}"
        producer.send(link, message("x" * 10_000), settled=True)
        consumer.take(1)
    assert browser.record.account.used > MIB // SHARES
    assert network.core.context.budget.used < 2 * MIB


def test_messages_kept_for_redelivery_at_one_address_take_no_memory_of_another() -> None:
    network = Network(AddressConfig(pattern="#", redeliver=True), memory=MIB)
    hoarder, consumer, producer = (network.client() for _ in range(3))
    hoarder.receiver("hoard", credit=1000)
    link = producer.sender("hoard")
    for _ in range(40):
        producer.send(link, message("x" * 60_000))
    assert network.core.context.budget.used > MIB * 0.9
    consumer.receiver("q", credit=10)
    sent = producer.send(producer.sender("q"))
    consumer.take(1)[0].dispose(Modified(delivery_failed=True), settled=True)
    network.run()
    consumer.take(1)[0].accept()
    network.run()
    assert sent.outcome == Accepted(), "it was sent again"


def test_others_make_room_where_what_is_kept_for_a_redelivery_cannot() -> None:
    network = Network(AddressConfig(pattern="hoard", redeliver=True), memory=MIB)
    hoarder, producer = network.client(), network.client(window=2048)
    hoarder.receiver("hoard", credit=1000)
    link = producer.sender("hoard")
    for _ in range(30):
        producer.send(link, message("x" * 60_000))
    readers = [stopped(network, f"q{number}") for number in range(8)]
    for number in range(8):
        sender = network.client(window=2048)
        sender.send(sender.sender(f"q{number}"), message("x" * 200_000), more=True)
    assert network.core.context.budget.used <= 2 * MIB
    assert any(each.is_lost for each in readers)


def test_the_routers_own_nodes_answer_however_many_hold_memory() -> None:
    network = crowd(memory=MIB)
    hold_at_names(network, 1_000, rounds=3, size=1_000)
    assert network.core.context.memory.used_up
    assert network.core.context.memory.share < 2_000
    network.core.context.nodes.make_own("$management")
    own, asks = network.client(), network.client()
    own.record.own = True
    own.receiver("$management", credit=100)
    node = asks.receiver(None, credit=0, source=Source(dynamic=True))
    assert node.remote is not None
    assert isinstance(node.remote.source, Source)
    by_name, by_message = asks.sender("$management"), asks.sender(None)
    asks.send(by_name, message("x" * 3_000))
    asks.send(by_message, message("x" * 3_000, to="$management"))
    own.take(2)
    answers = own.sender(None)
    for _ in range(5):  # more than a share, before the client takes any
        own.send(answers, message("x" * 3_000, to=node.remote.source.address))
    node.flow(10)
    network.run()
    asks.take(5)


# ------------------------------------------------------------------------------- what is held, and by how many

EACH = 1_000  # links of one client
AT_ONCE = 50  # messages in one batch


def crowd(memory: int) -> Network:
    """Make a network whose clients may each have thousands of links and of waiting messages."""
    network = Network(memory=memory)
    network.listener = ListenerConfig(
        url="amqp://127.0.0.1:0",
        idle_time_out=0.0,
        session_window=2**16,
        connection_window=2**16,
        anonymous_window=2**16,
    )
    return network


def attach(network: Network, count: int, end: Callable[[int], Source | Target]) -> list[Receiver | Sender]:
    """Attach links, many at once. Args: end: makes the source or the target of a link, by its number."""
    links = list[Receiver | Sender]()
    for first in range(0, count, EACH):
        session = network.client(window=2**16).session
        for number in range(first, min(first + EACH, count)):
            each = end(number)
            is_sender = isinstance(each, Target)
            link = session.attach(
                Terminus(f"link {number}", Role.SENDER if is_sender else Role.RECEIVER),
                source=Source() if isinstance(each, Target) else each,
                target=each if isinstance(each, Target) else Target(),
                initial_delivery_count=0 if is_sender else None,
            )
            assert isinstance(link, Receiver | Sender)
            links.append(link)
        network.run()
    return links


def send_all(network: Network, links: list[Receiver | Sender], payload: Callable[[int], bytes]) -> None:
    """Send a message on each link that has credit."""
    for number, link in enumerate(links):
        if isinstance(link, Sender) and link.credit:
            link.transfer(link.delivery(b"%x" % link.delivery_count), payload(number))
        if number % AT_ONCE == AT_ONCE - 1:
            network.run()
    network.run()


def hold_at_names(network: Network, holders: int, rounds: int, size: int) -> None:
    """Let messages wait at nodes: each node has one receiver, whose credit is spent."""
    for each in attach(network, holders, lambda number: Source(address=f"q{number}")):
        assert isinstance(each, Receiver)
        each.flow(1)
    links = attach(network, holders, lambda number: Target(address=f"q{number}"))
    for _ in range(rounds):
        send_all(network, links, lambda _: message("x" * size))


def hold_at_dynamic_nodes(network: Network, holders: int, rounds: int, size: int) -> None:
    """Let messages of an anonymous sender wait at dynamic nodes, whose receivers give no credit."""
    nodes = list[str]()
    for each in attach(network, holders, lambda _: Source(dynamic=True)):
        assert each.remote is not None
        assert isinstance(each.remote.source, Source)
        assert each.remote.source.address is not None
        nodes.append(each.remote.source.address)
    senders = attach(network, 1, lambda _: Target())
    for _ in range(rounds):
        for sender in senders:
            send_all(network, [sender] * holders, lambda number: message("x" * size, to=nodes[number]))


def hold_in_heads(network: Network, holders: int, rounds: int, size: int) -> None:
    """Let peers begin messages with long heads, before which the router does not know the addresses."""
    head = encode_composite(MessageAnnotations(value={Symbol("k"): "v" * (size * rounds)}))
    begun = []
    for _ in range(holders):
        client = network.client()
        link = client.sender(None)
        begun.append((link, link.delivery(b"1")))
    for turn in range(rounds):
        for number, (link, delivery) in enumerate(begun):
            if link.is_attached and link.session.can_send:
                link.transfer(delivery, head[turn * size : (turn + 1) * size], more=True)
            if number % AT_ONCE == AT_ONCE - 1:
                network.run()


def hold_unread(network: Network, holders: int, rounds: int, size: int) -> None:
    """Let output wait for peers that do not read."""
    readers = []
    for number in range(holders):
        readers.append(network.client())
        readers[-1].receiver(f"q{number}", credit=1000)
        readers[-1].stopped = True
    links = attach(network, holders, lambda number: Target(address=f"q{number}"))
    for _ in range(rounds):
        send_all(network, links, lambda _: message("x" * size))
    for each in readers:
        each.stopped = False


@pytest.mark.parametrize(
    ("hold", "memory", "holders", "rounds", "size"),
    [
        (hold_at_names, MIB, 1_000, 3, 700),
        (hold_at_names, 2 * MIB, 1_000, 3, 5_000),
        (hold_at_dynamic_nodes, MIB, 1_000, 3, 500),
        pytest.param(hold_at_names, 8 * MIB, 10_000, 3, 500, marks=pytest.mark.slow),
        pytest.param(hold_at_dynamic_nodes, 16 * MIB, 10_000, 2, 500, marks=pytest.mark.slow),
        (hold_in_heads, 1 * MIB, 300, 3, 4_000),
        (hold_unread, 1 * MIB, 300, 10, 3_000),
    ],
)
def test_however_many_hold_memory_it_is_less_than_twice_the_limit(
    hold: Callable[[Network, int, int, int], None], memory: int, holders: int, rounds: int, size: int
) -> None:
    network = crowd(memory)
    core = network.core
    hold(network, holders, rounds, size)
    assert memory < core.context.budget.most < 2 * memory + AT_ONCE * (size + OVERHEAD)
    assert core.context.budget.holders <= holders + 20
    # New clients are served.
    consumer, producer = network.client(), network.client()
    consumer.receiver("fine", credit=10)
    sent = producer.send(producer.sender("fine"))
    consumer.take(1)[0].accept()
    network.run()
    assert sent.outcome == Accepted()


@pytest.mark.parametrize("distribution", [Distribution.BALANCED, Distribution.MULTICAST])
def test_however_many_lanes_hold_memory_it_is_less_than_twice_the_limit_at_each_router(
    distribution: Distribution,
) -> None:
    mesh = World("ABC", [("A", "B"), ("B", "C")], AddressConfig(pattern="#", distribution=distribution), memory=MIB)
    consumer, producer = mesh["C"].client(), mesh["A"].client(window=2**16, max_frame_size=32 * 2**10)
    for number in range(200):
        consumer.receiver(f"q{number}", credit=1)
    mesh.advance(1.0)
    links = [producer.sender(f"q{number}") for number in range(200)]
    anonymous = producer.sender(None)
    mesh.advance(1.0)
    for _ in range(4):
        for number, link in enumerate(links):
            for each in (link, anonymous):
                if each.credit and each.session.flow_state.remote_incoming_window:
                    producer.send(each, message("x" * 5_000, to=f"q{number}"))
        mesh.advance(0.2)
    assert max(mesh[each].core.context.budget.most for each in "ABC") > MIB, "it was used up"
    consumer.receiver("fine", credit=10)
    mesh.advance(0.5)
    sender = mesh["A"].client().sender("fine")
    mesh.advance(0.5)
    sent = mesh["A"].clients[-1].send(sender)
    mesh.advance(0.5)
    next(each for each in consumer.take() if each.link.name.startswith("r200")).accept()
    mesh.advance(0.5)
    assert sent.outcome == Accepted()
    assert max(mesh[each].core.context.budget.most for each in "ABC") < 2 * MIB + 64 * 2**10, (
        "what comes in one batch may"
    )


@given(
    limit=st.integers(2**20, 2**30),
    holders=st.integers(1, 200),
    wishes=st.lists(st.tuples(st.integers(0, 199), st.integers(1, 2**20)), max_size=300),
)
def test_holders_that_are_given_nothing_above_their_share_hold_less_than_twice_the_limit(
    limit: int, holders: int, wishes: list[tuple[int, int]]
) -> None:
    memory = Memory(limit)
    accounts = [Budget(limit, memory.budget) for _ in range(holders)]
    largest = 0
    for number, octets in wishes:
        account = accounts[number % holders]
        if not memory.is_over(account):
            account.add(octets)
            largest = max(largest, octets)
    assert memory.budget.holders == sum(account.used > 0 for account in accounts)
    # Messages that arrive at once may hold more than a share.
    assert memory.budget.used <= 2 * limit + largest * memory.budget.holders
    if memory.budget.used > 2 * limit:
        assert max(account.used for account in accounts) > memory.share


# ------------------------------------------------------------------------------------------------- what gives way


def test_of_those_that_hold_twice_the_memory_the_largest_that_does_not_read_is_cut_and_its_sender_goes_on() -> None:
    network = Network(memory=MIB)
    reader, producer, consumer = stopped(network, "stopped"), network.client(window=2048), network.client()
    consumer.receiver("fine", credit=1000)
    link, other = producer.sender("stopped"), producer.sender("fine", session=producer.engine.begin())
    sent = producer.send(link, message("x" * 3_000_000), more=True)
    assert reader.record.lost
    assert network.core.context.budget.used < MIB
    network.run()
    assert sent.outcome == Modified(delivery_failed=True)
    producer.resume(sent, b"rest")
    again = producer.send(other)
    consumer.take(1)[0].accept()
    network.run()
    assert again.outcome == Accepted(), "its sender has done nothing wrong"
    network.leave()


def test_a_peer_that_never_ends_its_deliveries_is_closed_at_twice_the_memory() -> None:
    network = crowd(MIB)
    network.listener = ListenerConfig(url="amqp://127.0.0.1:0", idle_time_out=0.0, head_max=MIB)
    hog = network.client(window=2**16, max_frame_size=32 * 2**10)
    head = encode_composite(MessageAnnotations(value={Symbol("k"): "v" * MIB}))
    for _ in range(3):
        link = hog.sender(None, session=hog.engine.begin())
        if not hog.engine.can_send:
            break
        link.transfer(link.delivery(b"1"), head[:800_000], more=True)
        network.run()
    assert not hog.engine.can_send
    assert network.core.context.budget.used == 0
    network.leave()


def test_the_routers_own_connection_is_not_closed_for_memory() -> None:
    network = Network(memory=MIB)
    own, reader = network.client(window=2048), stopped(network, "q")
    own.record.own = True
    link = own.sender("q")
    own.send(link, message(b"x" * 3_000_000), more=True)
    assert own.engine.can_send
    assert reader.record.lost
    own.lose()


def test_messages_that_wait_at_a_node_are_released_at_twice_the_memory() -> None:
    network = Network(memory=MIB)
    consumer, one, two = network.client(), network.client(window=2048), network.client(window=2048)
    receiver = consumer.receiver("q", credit=0)
    receiver.flow(1)
    network.run()
    links = [one.sender("q"), two.sender("q")]
    one.send(links[0])
    sents = [
        client.send(link, message("x" * 1_500_000), more=True)
        for client, link in zip((one, two), links, strict=True)
        if link.credit
    ]
    assert len(sents) == 2
    assert [sent.outcome for sent in sents] == [Released()] * 2
    assert network.core.context.budget.used < MIB
    for client, sent in zip((one, two), sents, strict=True):
        client.resume(sent, b"rest")
    network.leave()


def test_a_multicast_that_one_receiver_does_not_read_is_aborted_at_twice_the_memory() -> None:
    network = Network(AddressConfig(pattern="q", distribution=Distribution.MULTICAST), memory=MIB)
    reader, consumer, producer = stopped(network, "q"), network.client(), network.client(window=2048)
    consumer.receiver("q", credit=10)
    sent = producer.send(producer.sender("q"), message("x" * 3_000_000), more=True)
    assert network.core.context.budget.used < MIB
    producer.resume(sent, b"rest")
    assert sent.outcome == Modified(delivery_failed=True)
    reader.stopped = False
    network.run()
    assert all(arrival.delivery.aborted for client in (reader, consumer) for arrival in client.arrivals)
    network.leave()


def test_output_that_a_peer_has_not_read_counts_until_it_has() -> None:
    network = Network(memory=MIB)
    reader, producer = stopped(network, "q"), network.client()
    link = producer.sender("q")
    for _ in range(20):
        producer.send(link, message("x" * 3_000), settled=True)
        assert reader.record.account.used == reader.record.unwritten
    assert reader.record.account.used > 60_000
    reader.stopped = False
    network.run()
    assert reader.record.account.used == network.core.context.budget.used == 0
    network.leave()


def test_above_its_share_less_is_written_for_a_peer_that_does_not_read_until_it_reads() -> None:
    network = Network(memory=MIB)
    reader, producer = stopped(network, "q"), network.client()
    flow_state, limit = reader.record.engine.flow_state, network.listener.output_backlog
    link = producer.sender("q")
    for _ in range(30):
        producer.send(link, message("x" * 3_000), settled=True)
    others = use_up(network)
    producer.send(link, message("x" * 3_000), settled=True)
    assert flow_state.backlog == network.core.context.memory.share < reader.record.unwritten < limit
    before = reader.record.unwritten
    producer.send(link, message("x" * 3_000), settled=True)
    assert reader.record.unwritten == before
    for each in (reader, *others):
        each.stopped = False
    network.run()
    assert flow_state.backlog == limit
    assert not network.core.context.memory.used_up
    assert len(reader.take()) == 32
    network.leave()


def test_the_memory_of_a_connection_is_freed_with_it() -> None:
    network = Network(memory=MIB)
    reader, producer = stopped(network, "q"), network.client(window=2048)
    sent = producer.send(producer.sender("q"), message("x" * 700_000), more=True)
    assert network.core.context.budget.used > 700_000
    reader.lose()
    assert reader.record.account.used == network.core.context.budget.used == 0
    producer.resume(sent, b"rest")
    network.leave()


def test_a_closed_connection_whose_peer_does_not_read_that_makes_room_too() -> None:
    network = Network(memory=MIB)
    closed = [stopped(network, f"closed {number}") for number in range(4)]
    for number, reader in enumerate(closed):
        fill(network.core, network.client(), f"closed {number}")
        close_connection(network.core.context, reader.record, None)
    others = [stopped(network, f"q{number}") for number in range(14)]
    for number in range(14):
        producer = network.client()
        link = producer.sender(f"q{number}")
        while link.credit and network.core.context.memory.share > others[number].record.unwritten:
            producer.send(link, message("x" * 30_000))
    assert any(each.is_lost for each in closed)
    assert not any(each.is_lost for each in others)
    network.leave()
