"""Links that attach and detach: answers to an attach, dynamic nodes, links of one name."""

from dataclasses import replace

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.types import Array, Described, Primitive, Symbol, ULong
from amqpmesh.router.amqp.connection import Connection
from amqpmesh.router.amqp.link import Link, Sender, Terminus
from amqpmesh.router.amqp.standard.definitions import ReceiverSettleMode, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Received, Released, TransactionalState
from amqpmesh.router.amqp.standard.messaging import (
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
    DistributionMode,
    Source,
    Target,
    TerminusDurability,
    TerminusExpiryPolicy,
)
from amqpmesh.router.amqp.standard.transactions import Coordinator
from amqpmesh.router.config.file import AddressConfig
from tests.support.peers.bystanders import Intruder
from tests.support.peers.scripted import attached, frame
from tests.support.worlds.network import Client, Network, message

#: What every dynamic node can do (§3.5.9).
MODES = {"supported-dist-modes": Array(Primitive.SYMBOL, (Symbol("move"), Symbol("copy")))}


def _condition(client: Client, link: Link) -> str:
    error = client.detached[link]
    assert error is not None
    return error.condition


def test_our_attach_reports_what_is_in_force_and_no_more() -> None:
    network = Network()
    client = network.client()
    link = client.receiver(
        None,
        rcv=ReceiverSettleMode.SECOND,
        source=Source(
            address="q",
            durable=TerminusDurability.UNSETTLED_STATE,
            expiry_policy=TerminusExpiryPolicy.NEVER,
            timeout=60,
            filter={Symbol("apache.org:selector-filter:string"): Described(ULong(1), "a = 1")},
            capabilities=(Symbol("queue"),),
        ),
    )
    assert link.remote is not None
    source = link.remote.source
    assert source == Source(
        address="q",
        expiry_policy=TerminusExpiryPolicy.LINK_DETACH,
        distribution_mode=source.distribution_mode if source is not None else None,
    )
    assert link.remote.rcv_settle_mode is ReceiverSettleMode.SECOND
    network.leave()


def test_our_attach_of_a_target_reports_what_is_in_force_and_no_more() -> None:
    network = Network()
    client = network.client()
    link = client.sender(
        None,
        target=Target(
            address="q",
            durable=TerminusDurability.UNSETTLED_STATE,
            expiry_policy=TerminusExpiryPolicy.NEVER,
            timeout=60,
            dynamic_node_properties={Symbol("lifetime-policy"): DeleteOnNoLinks()},
            capabilities=(Symbol("queue"),),
        ),
    )
    assert link.remote is not None
    assert link.remote.target == Target(address="q", expiry_policy=TerminusExpiryPolicy.LINK_DETACH)
    network.leave()


def test_a_source_says_how_it_distributes_and_which_outcomes_it_takes() -> None:
    network = Network()
    client = network.client()
    outcomes = ("amqp:accepted:list", "amqp:received:list", "accepted", "amqp:released:list")
    asked = Source(
        address="q",
        default_outcome=Released(),
        outcomes=tuple(map(Symbol, outcomes)),
        dynamic_node_properties={Symbol("lifetime-policy"): DeleteOnNoLinks()},
    )
    for distribution_mode in (None, DistributionMode.MOVE, DistributionMode.COPY):
        link = client.receiver(None, source=replace(asked, distribution_mode=distribution_mode))
        assert link.remote is not None
        assert link.remote.source == Source(
            address="q",
            expiry_policy=TerminusExpiryPolicy.LINK_DETACH,
            distribution_mode=distribution_mode or DistributionMode.MOVE,
            default_outcome=Released(),
            outcomes=(Symbol("amqp:accepted:list"), Symbol("amqp:released:list")),
        )
    network.leave()


@pytest.mark.parametrize(
    ("target", "condition"),
    [
        (Coordinator(), "amqp:not-implemented"),
        (Target(address="$management"), "amqp:not-found"),
        (Target(address="amqp$transfer"), "amqp:not-found"),
        (Target(address="q@B"), "amqp:not-found"),
    ],
)
def test_an_attach_that_cannot_be_served_is_refused_as_the_standard_asks(
    target: Target | Coordinator, condition: str
) -> None:
    network = Network()
    client = network.client()
    link = client.session.attach(Terminus("s", Role.SENDER), source=Source(), target=target)
    network.run()
    attached = next(event for event in client.events if isinstance(event, events.LinkAttached))
    assert attached.attach.target is None, "no terminus of ours"
    assert _condition(client, link) == condition
    again = client.sender("q", name="s")
    assert again.is_attached
    network.leave()


@pytest.mark.parametrize(
    ("source", "condition"),
    [
        (Source(address="$anything"), "amqp:not-found"),
        (Source(address="amqp$anything"), "amqp:not-found"),
        (Source(address="q@B"), "amqp:not-found"),
        (Source(), "amqp:invalid-field"),
    ],
)
def test_a_receiver_that_cannot_be_served_is_refused(source: Source, condition: str) -> None:
    network = Network()
    client = network.client()
    link = client.receiver(None, source=source)
    assert _condition(client, link) == condition
    network.leave()


def test_a_map_of_a_sender_of_whom_nothing_is_known_is_answered_by_none() -> None:
    network = Network()
    client, consumer = network.client(), network.client()
    consumer.receiver("q")
    for unsettled in ({}, {b"\0\0\0\1": None, b"two": Received(section_number=0, section_offset=9)}):
        link = client.session.attach(
            Terminus("s", Role.SENDER), source=Source(), target=Target(address="q"), unsettled=unsettled
        )
        network.run()
        assert link.remote is not None
        assert link.remote.unsettled is None
    assert isinstance(link, Sender)
    again = client.send(link)
    assert again.delivery.tag == b"\0\0\0\1", "what nobody has a record of comes as a new delivery"
    consumer.take(1)[0].accept()
    network.run()
    assert again.outcome == Accepted()
    network.leave()


def test_a_dynamic_node_carries_replies_and_goes_with_its_link() -> None:
    network = Network()
    client, service = network.client("a client/1"), network.client()
    replies = client.receiver(
        None,
        name="my replies",
        source=Source(dynamic=True),
    )
    assert replies.remote is not None
    source = replies.remote.source
    assert source is not None
    assert source.dynamic
    assert source.dynamic_node_properties == {"lifetime-policy": DeleteOnClose()} | MODES
    address = source.address
    assert address is not None
    assert address.startswith("$dynamic/a%20client%2F1/my%20replies/")
    assert address.endswith("@A")
    direct = service.sender(address)
    by_to = service.sender(None)
    one, two = service.send(direct, message(1)), service.send(by_to, message(2, to=address))
    for arrival in client.take(2):
        arrival.accept()
    network.run()
    assert one.outcome == two.outcome == Accepted()
    replies.detach()
    network.run()
    assert _condition(service, direct) == "amqp:resource-deleted"
    assert _condition(service, service.sender(address)) == "amqp:not-found"
    network.leave()


@pytest.mark.parametrize("letter", ["a", "/", "\u00e9", "\U0001f600"])
def test_the_name_of_a_dynamic_node_is_short_whatever_its_link_is_called(letter: str) -> None:
    network = Network()
    client = network.client(letter * 80, max_frame_size=512)
    replies = client.receiver(None, name=letter * 40, source=Source(dynamic=True))
    assert replies.remote is not None
    assert replies.remote.source is not None
    address = replies.remote.source.address
    assert address is not None
    assert len(address) <= 128
    again = client.receiver(None, name=letter * 40 + "2", source=Source(dynamic=True))
    assert again.is_attached
    assert again.remote is not None
    assert again.remote.source is not None
    assert again.remote.source.address != address
    network.leave()


@pytest.mark.parametrize("policy", [DeleteOnClose, DeleteOnNoMessages, DeleteOnNoLinks, DeleteOnNoLinksOrMessages])
def test_a_dynamic_node_lives_as_long_as_its_policy_says(policy: type) -> None:
    network = Network()
    client, service = network.client(), network.client()
    wanted = {Symbol("lifetime-policy"): policy()}
    replies = client.receiver(None, source=Source(dynamic=True, dynamic_node_properties=wanted))
    assert replies.remote is not None
    assert replies.remote.source is not None
    assert replies.remote.source.dynamic_node_properties == wanted | MODES
    address = replies.remote.source.address
    link = service.sender(address)
    replies.detach()
    network.run()
    if policy in (DeleteOnNoLinks, DeleteOnNoLinksOrMessages):
        assert link.is_attached
        assert client.receiver(address).is_attached, "its maker may come back to it"
        service.send(link)
        client.take(1)[0].accept()
        network.run()
    else:
        assert _condition(service, link) == "amqp:resource-deleted"
    network.leave()


def test_a_lifetime_policy_that_is_none_is_refused_and_one_of_an_extension_is_not_in_force() -> None:
    network = Network()
    client = network.client()
    for wanted in (Accepted(), Described(ULong(99), []), "forever"):
        properties = {Symbol("lifetime-policy"): wanted, Symbol("x-color"): "red"}
        link = client.receiver(None, source=Source(dynamic=True, dynamic_node_properties=properties))  # type: ignore[arg-type]  # wrong on purpose
        if not isinstance(wanted, Described):
            assert _condition(client, link) == "amqp:invalid-field"
            continue
        assert link.remote is not None
        assert isinstance(link.remote.source, Source)
        assert link.remote.source.dynamic_node_properties == {"lifetime-policy": DeleteOnClose()} | MODES
    network.leave()


@pytest.mark.parametrize("asked", [None, "move", Symbol("copy"), [Symbol("move")]], ids=repr)
def test_the_distribution_modes_of_a_dynamic_node_are_an_array_of_symbols_whatever_was_asked_for(asked: object) -> None:
    intruder = Intruder(Network())
    intruder.peer.open()
    intruder.peer.begin()
    # Clients in C++ write a string where a symbol should be.
    properties = {Symbol("supported-dist-modes"): asked}
    source = Source(dynamic=True, dynamic_node_properties=properties)  # type: ignore[arg-type]  # wrong on purpose
    intruder.give(frame(attached(Role.RECEIVER, source=source)))
    octets = intruder.take()
    named = octets.index(b"supported-dist-modes") + len("supported-dist-modes")
    # §1.6.24: array8, its size, two elements, all of them sym8.
    assert octets[named:].startswith(b"\xe0\x0c\x02\xa3\x04move\x04copy")
    assert not intruder.is_finished


def test_nobody_else_consumes_a_dynamic_node() -> None:
    network = Network()
    client, thief = network.client(), network.client()
    replies = client.receiver(None, source=Source(dynamic=True))
    assert replies.remote is not None
    assert replies.remote.source is not None
    address = replies.remote.source.address
    assert _condition(thief, thief.receiver(address)) == "amqp:unauthorized-access"
    assert client.receiver(address).is_attached
    network.leave()


def test_each_peer_that_knows_the_name_of_a_dynamic_target_may_receive_from_it() -> None:
    network = Network()
    client, other = network.client("a client/1"), network.client()
    link = client.sender(None, name="my node", target=Target(dynamic=True))
    assert link.remote is not None
    assert isinstance(link.remote.target, Target)
    assert link.remote.target.dynamic
    assert link.remote.target.dynamic_node_properties == {"lifetime-policy": DeleteOnClose()} | MODES
    address = link.remote.target.address
    assert address is not None
    assert address.startswith("$dynamic/a%20client%2F1/my%20node/")
    assert address.endswith("@A")
    for each in (client, other):
        consumer = each.receiver(address)
        client.send(link)
        each.take(1)[0].accept()
        network.run()
        consumer.detach()
        network.run()
    consumer = other.receiver(address)
    link.detach()
    network.run()
    assert _condition(other, consumer) == "amqp:resource-deleted"
    assert _condition(other, other.receiver(address)) == "amqp:not-found"
    network.leave()


def test_an_address_beside_the_dynamic_flag_counts_for_nothing() -> None:
    network = Network()
    client = network.client()
    source = client.receiver(None, source=Source(address="q", dynamic=True)).remote
    target = client.sender(None, target=Target(address="q", dynamic=True)).remote
    assert source is not None
    assert source.source is not None
    assert str(source.source.address).startswith("$dynamic/")
    assert target is not None
    assert isinstance(target.target, Target)
    assert str(target.target.address).startswith("$dynamic/")
    network.leave()


def test_a_link_can_be_stolen_within_one_connection() -> None:
    network = Network()
    client = network.client()
    robbed = client.receiver("q", name="link")
    session = client.engine.begin()
    network.run()
    thief = client.receiver("q", name="link", session=session)
    assert _condition(client, robbed) == "amqp:link:stolen"
    assert thief.is_attached
    network.leave()


def test_the_same_name_in_the_other_direction_or_of_another_container_is_another_link() -> None:
    network = Network()
    one, two = network.client("one"), network.client("two")
    links: list[Link] = [one.sender("q", name="x"), one.receiver("q", name="x"), two.sender("q", name="x")]
    assert all(link.is_attached for link in links)
    network.leave()


def test_a_transactional_state_outside_a_transaction_ends_its_link() -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    receiver = consumer.receiver("q")
    producer.send(producer.sender("q"))
    consumer.take(1)[0].dispose(TransactionalState(txn_id=b"t", outcome=Accepted()), settled=True)
    network.run()
    assert _condition(consumer, receiver) == "amqp:transaction:unknown-id"
    network.leave()


def test_a_multicast_address_serves_those_who_come_later_too() -> None:
    network = Network(AddressConfig(pattern="m", distribution=Distribution.MULTICAST))
    one, producer = network.client(), network.client()
    one.receiver("m")
    link = producer.sender("m")
    producer.send(link, settled=True)
    two = network.client()
    two.receiver("m")
    producer.send(link, settled=True)
    one.take(2)
    two.take(1)
    network.leave()


def test_a_silent_connection_is_kept_alive_as_its_peer_demands() -> None:
    network = Network()
    client = network.client(idle_time_out=1.0)
    assert client.record.engine.remote is not None
    assert client.record.engine.remote.idle_time_out == 500, "half of what it grants (§2.4.5)"
    for _ in range(40):
        network.advance(0.1)
        for event in client.engine.handle_timer(network.now):
            raise AssertionError(f"the router was silent for too long: {event}")
    network.leave()


def test_a_fault_in_the_timers_of_a_connection_ends_neither_them_nor_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network()
    faulty, other = network.client(idle_time_out=1.0), network.client(idle_time_out=1.0)
    handle_timer, faults = Connection.handle_timer, 0

    def failing(engine: Connection, now: float) -> list[events.Event]:
        if engine is faulty.record.engine:
            raise ZeroDivisionError
        return handle_timer(engine, now)

    def pass_time(*clients: Client) -> None:
        nonlocal faults
        for _ in range(60):
            try:
                network.advance(0.1)
            except ZeroDivisionError:
                faults += 1
                network.run()
            for client in clients:
                for event in client.engine.handle_timer(network.now):
                    raise AssertionError(f"the router was silent for too long: {event}")

    with monkeypatch.context() as patched:
        patched.setattr(Connection, "handle_timer", failing)
        pass_time(other)
    assert 5 <= faults <= 7, "once a second"
    faulty.engine.receive(b"\0\0\0\x08\2\0\0\0", network.now)  # nothing else reached the router for so long
    network.advance(1.0)
    pass_time(faulty, other)
    network.leave()


def test_what_failed_when_it_was_due_is_done_again_and_what_was_due_beside_it_is_done() -> None:
    network, done = Network(), list[str]()

    def failing() -> None:
        done.append("failing")
        if done.count("failing") == 1:
            raise ZeroDivisionError

    network.core.context.schedule(network.now + 1.0, failing)
    network.core.context.schedule(network.now + 1.0, lambda: done.append("beside"))
    with pytest.raises(ZeroDivisionError):
        network.advance(1.0)
    network.advance(0.1)
    assert done == ["failing", "beside"]
    network.advance(1.0)
    assert done == ["failing", "beside", "failing"]
    network.leave()


def test_a_peer_without_room_for_our_answer_loses_that_session_and_no_more() -> None:
    network = Network()
    client = network.client(max_frame_size=512)
    session = client.engine.begin()
    network.run()
    client.receiver("a" * 600, session=session)
    ended = [event for event in client.events if isinstance(event, events.SessionEnded)]
    assert [event.session for event in ended] == [session]
    assert ended[0].error is not None
    assert ended[0].error.condition == "amqp:frame-size-too-small"
    assert client.receiver("a").is_attached
    network.leave()
