"""Links that a second connection attaches: stolen from holders without a sign of life (§2.6.1)."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from amqpmesh.router.amqp import events
from amqpmesh.router.amqp.codec.types import Described, Symbol
from amqpmesh.router.amqp.frames import EMPTY_FRAME
from amqpmesh.router.amqp.link import Receiver, Terminus
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.amqp.standard.messaging import DeleteOnNoLinks, Source, Target
from amqpmesh.router.amqp.standard.performatives import encode_performative
from amqpmesh.router.attach.stealing import MOST_ASKED, Claim
from amqpmesh.router.memory.retained import LIFETIME_POLICY
from tests.support.worlds.network import Client, Network

#: What clients call a link to the address `q`, by the container that they are.
NAMES = {
    "proton": "the container-q",
    "go-amqp, if its program names it": "q",
    "qpid-jms": "qpid-jms:sender:ID:5d7c2e4a-0001-4f6b-9d2e-2f1f6d5a9b10:1:1:1:q",
}
WAIT = 0.25


def stolen(client: Client, link: object) -> bool:
    error = client.detached.get(link)  # type: ignore[call-overload]  # a link of either kind
    return error is not None and error.condition == "amqp:link:stolen"


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_two_connections_of_a_program_both_have_their_link(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "amqpmesh")
    network = Network()
    first, second = network.client("the container"), network.client("the container")
    receivers = [each.receiver("q", name=name, credit=0) for each in (first, second)]
    senders = [each.sender("q", name=name) for each in (first, second)]
    assert [link.is_attached for link in (*receivers, *senders)] == [True, False, True, False], "the first was asked"
    network.advance(0.01)
    assert all(link.is_attached for link in (*receivers, *senders))
    for link in receivers:
        link.flow(2)
    network.run()
    for client, link in zip((first, second), senders, strict=True):
        for _ in range(2):
            client.send(link)
    for client in (first, second):
        for arrival in client.take(2):
            arrival.accept()
    network.run()
    assert [sent.outcome for client in (first, second) for sent in client.sent.values()] == [Accepted()] * 4
    assert network.core.context.stolen == 0
    assert [line.split(" ", 3)[:3] for line in caplog.messages if line.startswith("link name")] == [
        ["link", "name", "shared"]
    ]
    network.leave()


def test_names_of_chance_are_never_asked_about() -> None:
    network = Network()
    first, second = network.client("", max_frame_size=512), network.client("", max_frame_size=512)
    # go-amqp gives a link of 40 random letters as a name, if the program gives none.
    links = [client.sender("q", name=chr(65 + n) * 40) for n, client in enumerate((first, second, first))]
    assert all(link.is_attached for link in links)
    network.leave()


def test_a_client_whose_cable_was_pulled_has_its_link_back_at_once() -> None:
    network = Network()
    old, consumer = network.client("same"), network.client()
    consumer.receiver("q")
    robbed = old.sender("q", name="link")
    taking = old.receiver("w", name="link")
    old.stopped = True
    new = network.client("same")
    links = [new.sender("q", name="link"), new.receiver("w", name="link", credit=0)]
    network.advance(WAIT - 0.01)
    assert not any(link.is_attached for link in links)
    network.advance(0.02)
    assert all(link.is_attached for link in links)
    assert network.core.context.stolen == 2
    new.send(links[0])  # type: ignore[arg-type]  # the sender
    consumer.take(1)
    old.stopped = False
    network.run()
    assert stolen(old, robbed)
    assert stolen(old, taking)
    network.leave()


def test_octets_that_come_are_a_sign_of_life_too() -> None:
    network = Network()
    old = network.client("same")
    kept = old.sender("q", name="link")
    old.stopped = True  # the router cannot see which octets it has read
    new = network.client("same")
    link = new.sender("q", name="link")
    network.advance(0.1)
    network.core.receive(old.record, EMPTY_FRAME, network.now)
    network.advance(0.1)
    assert link.is_attached
    old.stopped = False
    network.run()
    assert kept.is_attached
    network.leave()


def test_a_holder_that_goes_while_it_is_asked_gives_way() -> None:
    network = Network()
    old, new = network.client("same"), network.client("same")
    old.sender("q", name="link")
    old.stopped = True
    link = new.sender("q", name="link")
    old.lose()
    network.advance(0.01)
    assert link.is_attached
    assert network.core.context.stolen == 0
    network.leave()


def test_an_attach_with_an_unsettled_map_has_the_link_at_once() -> None:
    network = Network()
    old, new = network.client("same"), network.client("same")
    robbed = old.sender("q", name="link")
    link = new.session.attach(
        Terminus("link", Role.SENDER), source=Source(), target=Target(address="q"), unsettled={b"tag": None}
    )
    network.run()
    assert link.is_attached
    assert stolen(old, robbed)
    network.leave()


def test_without_a_time_to_wait_the_second_has_the_link() -> None:
    network = Network(theft_wait=0.0)
    old, new = network.client("same"), network.client("same")
    robbed = old.sender("q", name="link")
    assert new.sender("q", name="link").is_attached
    assert stolen(old, robbed)
    network.leave()


def test_of_several_holders_those_that_are_silent_lose_it() -> None:
    network = Network()
    clients = [network.client("same") for _ in range(4)]
    links = []
    for client in clients[:3]:
        links.append(client.sender("q", name="link"))
        network.advance(0.01)
    clients[1].stopped = True
    links.append(clients[3].sender("q", name="link"))
    network.advance(WAIT)
    assert [link.is_attached for link in (links[0], links[2], links[3])] == [True] * 3
    clients[1].stopped = False
    network.run()
    assert stolen(clients[1], links[1])
    network.leave()


def test_frames_behind_an_attach_count_once_the_attach_is_answered() -> None:
    network = Network()
    old, new, producer = network.client("same"), network.client("same"), network.client()
    old.receiver("q", name="link", credit=0)
    link = new.session.attach(Terminus("link", Role.RECEIVER), source=Source(address="q"), target=Target())
    assert isinstance(link, Receiver)
    link.flow(3, echo=True)
    network.run()
    assert not link.is_attached
    network.advance(0.01)
    assert link.is_attached
    assert any(isinstance(each, events.CreditChanged) and each.link is link for each in new.events), "the echo"
    sending = producer.sender("q")
    assert sending.credit > 0
    producer.send(sending)
    new.take(1)[0].accept()
    network.run()
    network.leave()


def test_a_drain_behind_the_attach_is_answered_when_that_is() -> None:
    network = Network()
    old, new = network.client("same"), network.client("same")
    old.receiver("q", name="link", credit=0)
    link = new.session.attach(Terminus("link", Role.RECEIVER), source=Source(address="q"), target=Target())
    assert isinstance(link, Receiver)
    link.flow(3, drain=True)
    network.run()
    network.advance(1.0)
    assert link.is_attached
    assert link.credit == 0
    network.leave()


@pytest.mark.parametrize("way", ["detach", "end", "lost"])
def test_a_claim_that_is_given_up_disturbs_nobody(way: str) -> None:
    network = Network()
    old, new = network.client("same"), network.client("same")
    kept = old.sender("q", name="link")
    session = new.engine.begin()
    network.run()
    link = session.attach(Terminus("link", Role.SENDER), source=Source(), target=Target(address="q"))
    network.run()
    if way == "detach":
        link.detach()
    elif way == "end":
        session.end()
    else:
        new.lose()
    network.run()
    network.advance(0.5)
    assert kept.is_attached
    assert len(network.core.context.link_names) == 1
    network.leave()


def test_of_an_attach_that_waits_stays_what_it_is_answered_by() -> None:
    network = Network(theft_wait=10.0)
    old, new = network.client("same"), network.client("same", max_frame_size=32_768)
    old.sender("q", name="link")
    old.stopped = True
    many = tuple(Symbol("x" * 90 + str(number)) for number in range(50))
    asked = Source(dynamic=True, capabilities=many, filter={Symbol("f"): Described(Symbol("f"), list(many))})
    source = replace(asked, dynamic_node_properties={LIFETIME_POLICY: DeleteOnNoLinks(), Symbol("x"): list(many)})
    old.receiver(None, source=source, name="node")
    links = [
        new.session.attach(
            Terminus("link", Role.SENDER), source=source, target=Target(address="q"), desired_capabilities=many
        ),
        new.session.attach(Terminus("node", Role.RECEIVER), source=source, target=Target(), properties={many[0]: many}),
    ]
    network.run()
    waiting = [each.context for session in new.record.engine.channels.sessions for each in session.links.values()]
    assert len(waiting) == 2
    for claim in waiting:
        assert isinstance(claim, Claim)
        assert len(encode_performative(claim.attach)) < 256
    old.stopped = False
    network.advance(20.0)
    assert all(link.is_attached for link in links)
    made = links[1].remote
    assert made is not None
    assert isinstance(made.source, Source)
    assert (made.source.dynamic_node_properties or {})[LIFETIME_POLICY] == DeleteOnNoLinks()
    network.leave()


def test_one_attach_asks_a_few_holders_only() -> None:
    network = Network()
    clients = [network.client("same") for _ in range(MOST_ASKED + 4)]
    for client in clients:
        client.sender("q", name="link")
        network.advance(0.01)
    before = [client.record.octets_out for client in clients]
    network.client("same").sender("q", name="link")
    assert sum(client.record.octets_out > was for client, was in zip(clients, before, strict=True)) == MOST_ASKED
    network.advance(0.5)
    assert len(network.core.context.link_names) == MOST_ASKED + 5
    network.leave()


def test_many_links_of_two_connections_are_one_question() -> None:
    network = Network()
    old, new = network.client("same"), network.client("same")
    for number in range(50):
        old.sender("q", name=f"{number}")
    before = old.record.octets_out
    links = [
        new.session.attach(Terminus(f"{number}", Role.SENDER), source=Source(), target=Target(address="q"))
        for number in range(50)
    ]
    network.run()
    assert old.record.octets_out - before == len(EMPTY_FRAME)
    network.advance(0.01)
    assert all(link.is_attached for link in links)
    network.leave()


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
