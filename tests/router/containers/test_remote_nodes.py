"""Remote nodes: addresses that the router serves with the credit and outcomes of another container."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from amqpmesh.policies.distribution import Distribution
from amqpmesh.policies.groups import Group
from amqpmesh.policies.names import NamePattern
from amqpmesh.policies.policy import Policy
from amqpmesh.policies.redirect import Redirect
from amqpmesh.policies.tenants import Match, Tenant
from amqpmesh.router.amqp.link import Link, Sender, Terminus
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, LinkCondition, Role
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified, Rejected, Released
from amqpmesh.router.amqp.standard.messaging import Source, Target
from amqpmesh.router.config.file import (
    AddressConfig,
    ConnectorConfig,
    ElsewhereConfig,
    LinkConfig,
    PasswordConfig,
    RedirectConfig,
    WorkerConfig,
)
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.endpoint_setup import REDIRECT
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.model.redirects import info
from amqpmesh.router.statistics.common import Reason
from amqpmesh.router.statistics.configured import ContainerLinkState
from tests.support.peers.broker import Broker
from tests.support.worlds.network import OUTCOMES, Client, Network, message

THERE = RedirectConfig(hostname="b.example", network_host="10.0.0.2", port=5672, address="there", follow="router")
ELSEWHERE = AddressConfig(pattern="elsewhere/#", redirect=THERE)
PLACE = "amqp://10.0.0.2:5672 as b.example"
NOT_FOUND = Error(condition=AmqpCondition.NOT_FOUND, description="no such queue")
FAILED = Modified(delivery_failed=True)

S = ContainerLinkState


class Far(Network):
    """A router, and the other containers that it wants to connect to."""

    def __init__(self, *addresses: AddressConfig, **settings: object) -> None:
        super().__init__(*(addresses or (ELSEWHERE,)), **settings)  # type: ignore[arg-type]  # as tests name them
        #: The connectors that it has made, by name. `certified`: the names that certificates must have.
        self.wanted: dict[str, ConnectorConfig] = {}
        self.certified: dict[str, str | None] = {}

        def connect(config: ConnectorConfig, certified: str | None) -> None:
            self.wanted[config.name] = replace(config, idle_time_out=0.0)
            self.certified[config.name] = certified

        self.core.on_demand.on_connect = connect

        def disconnect(name: str) -> None:
            del self.wanted[name]

        self.core.on_demand.on_disconnect = disconnect

    def broker(self, name: str = PLACE, **settings: object) -> Broker:
        """Open the connection of a connector that the router has made."""
        return Broker(self, connector=self.wanted[name], **settings)  # type: ignore[arg-type]  # as tests name them

    def told(self, name: str) -> ContainerLinkState:
        """Return the state of the only link of an address."""
        (found,) = (each.state for each in snapshot(self.core).container_links if each.name == name)
        return found

    def leave(self) -> None:
        """End as any network does, after nothing has needed the links for a while."""
        for client in self.clients:
            if not isinstance(client, Broker) and not client.is_lost:
                client.close()
        self.advance(3 * self.core.context.config.elsewhere.idle + 3.0)
        assert self.wanted == {}
        assert snapshot(self.core).container_links == ()
        super().leave()

    def reason(self, address: str) -> Reason | None:
        """Return the reason why nothing can be sent to an address."""
        return next(each.reason for each in snapshot(self.core).addresses if each.name == address)


def following(client: Client, address: str | None) -> Sender:
    """Attach a sender of a client that follows redirects itself."""
    terminus = Terminus(f"follows {address}", Role.SENDER)
    target = Target(address=address)
    link = client.session.attach(terminus, source=Source(), target=target, desired_capabilities=(REDIRECT,))
    client.network.run()
    assert isinstance(link, Sender)
    return link


def refusal(client: Client, link: Link) -> Error:
    error = client.detached[link]
    assert error is not None
    return error


# ------------------------------------------------------------------------------------------------------- what crosses


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_what_is_sent_here_goes_there_and_has_the_outcome_that_it_has_there(outcome: str) -> None:
    n = Far()
    producer = n.client()
    link = producer.sender("elsewhere/a")
    assert link.is_attached
    assert link.credit == 0
    assert n.reason("elsewhere/a") is Reason.ELSEWHERE
    broker = n.broker(credit=3)
    assert broker.receiving("elsewhere/a").remote.target.address == "there"  # type: ignore[union-attr]  # it is attached
    assert 3 <= link.credit <= 4
    assert n.reason("elsewhere/a") is None
    sent = producer.send(link)
    (arrival,) = broker.take(1)
    assert bytes(arrival.payload) == message()
    assert sent.said == []
    arrival.dispose(OUTCOMES[outcome], settled=True)
    n.run()
    assert sent.said == [(OUTCOMES[outcome], True)]
    n.leave()


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_what_comes_from_there_is_settled_there_with_the_receivers_outcome_and_not_before(outcome: str) -> None:
    n = Far()
    consumer = n.client()
    consumer.receiver("elsewhere/a", credit=3)
    broker = n.broker()
    link = broker.sending("elsewhere/a")
    assert link.remote is not None
    assert link.remote.source.address == "there"  # type: ignore[union-attr]  # no coordinator
    assert link.credit == 3
    sent = broker.send(link)
    (arrival,) = consumer.take(1)
    assert sent.said == []
    arrival.dispose(OUTCOMES[outcome], settled=True)
    n.run()
    assert sent.said == [(OUTCOMES[outcome], True)]
    n.leave()


def test_what_is_sent_here_does_not_come_to_receivers_here_by_itself() -> None:
    n = Far()
    consumer, producer = n.client(), n.client()
    consumer.receiver("elsewhere/a")
    link = producer.sender("elsewhere/a")
    broker = n.broker()
    sent = producer.send(link)
    broker.take(1)[0].accept()
    n.run()
    assert sent.said == [(Accepted(), True)]
    assert consumer.take() == []
    n.leave()


def test_a_pre_settled_message_stays_so() -> None:
    n = Far()
    producer = n.client()
    link = producer.sender("elsewhere/a")
    broker = n.broker()
    producer.send(link, settled=True)
    assert broker.take(1)[0].delivery.remote_settled
    n.leave()


def test_the_name_that_was_asked_for_is_asked_for_there_if_no_other_is_said() -> None:
    n = Far(replace(ELSEWHERE, redirect=replace(THERE, address=None)))
    n.client().sender("elsewhere/a@A")
    assert n.broker().receiving("elsewhere/a").remote.target.address == "elsewhere/a"  # type: ignore[union-attr]
    n.leave()


def test_all_addresses_of_a_place_share_a_connection_and_all_links_of_an_address_a_link() -> None:
    n = Far(replace(ELSEWHERE, redirect=replace(THERE, address=None)))
    clients = [n.client() for _ in range(3)]
    for client in clients:
        for address in ("elsewhere/a", "elsewhere/b"):
            client.sender(address)
            client.receiver(address)
    assert list(n.wanted) == [PLACE]
    broker = n.broker()
    assert len(broker.asked) == 4
    n.leave()


def test_messages_of_an_anonymous_sender_go_there_and_wait_for_the_connection() -> None:
    n = Far()
    client = n.client()
    anonymous = client.sender(None)
    sent = client.send(anonymous, message(to="elsewhere/a"))
    assert sent.said == []
    broker = n.broker()
    broker.take(1)[0].accept()
    n.run()
    assert sent.said == [(Accepted(), True)]
    late = client.send(anonymous, message(to="elsewhere/a"))
    broker.take(1)[0].accept()
    n.run()
    assert late.said == [(Accepted(), True)]
    n.leave()


def test_a_message_whose_place_is_not_reached_in_time_is_released() -> None:
    n = Far()
    client = n.client()
    sent = client.send(client.sender(None), message(to="elsewhere/a"))
    n.advance(1.1)
    assert sent.said == [(Released(), True)]
    n.leave()


def test_what_comes_from_there_goes_to_all_receivers_of_a_multicast_and_what_is_sent_goes_there_once() -> None:
    n = Far(replace(ELSEWHERE, distribution=Distribution.MULTICAST))
    one, other = n.client(), n.client()
    one.receiver("elsewhere/a")
    other.receiver("elsewhere/a")
    broker = n.broker()
    given = broker.send(broker.sending("elsewhere/a"))
    for client in (one, other):
        client.take(1)[0].accept()
    n.run()
    assert given.said == [(Accepted(), True)]
    sent = one.send(one.sender("elsewhere/a"))
    broker.take(1)[0].accept()
    n.run()
    assert sent.said == [(Accepted(), True)]
    assert one.take() == other.take() == []
    n.leave()


def test_dead_letters_may_go_there() -> None:
    dying = AddressConfig(pattern="dying", redeliver=True, attempts=1, dead_letter="elsewhere/dead")
    n = Far(ELSEWHERE, dying)
    client = n.client()
    client.receiver("dying")
    # A receiver of the address at this router gets no dead letter: they go to the other container.
    client.receiver("elsewhere/dead")
    broker = n.broker()
    sent = client.send(client.sender("dying"))
    client.take(1)[0].dispose(Rejected(), settled=True)
    n.run()
    assert sent.outcome == Rejected()
    broker.take(1)[0].accept()
    assert client.take() == []
    n.leave()


# --------------------------------------------------------------------------------------------------------- who follows


def test_a_client_that_desires_the_redirect_itself_gets_it() -> None:
    n = Far()
    client = n.client()
    error = refusal(client, following(client, "elsewhere/a"))
    assert error.condition == LinkCondition.REDIRECT
    assert error.info == info(Redirect(hostname="b.example", network_host="10.0.0.2", port=5672, address="there"))
    anonymous = following(client, None)
    sent = client.send(anonymous, message(to="elsewhere/a"))
    assert isinstance(sent.outcome, Rejected)
    assert n.wanted == {}
    n.leave()


def test_without_a_word_about_it_clients_follow_themselves() -> None:
    n = Far(replace(ELSEWHERE, redirect=replace(THERE, follow="client")))
    client = n.client()
    assert refusal(client, client.sender("elsewhere/a")).condition == LinkCondition.REDIRECT
    assert n.wanted == {}
    n.leave()


# ------------------------------------------------------------------------------------------------------------ refusals


def test_what_the_place_refuses_its_clients_are_refused_with_the_same_words() -> None:
    n = Far()
    client = n.client()
    sender, receiver = client.sender("elsewhere/a"), client.receiver("elsewhere/a")
    anonymous = client.sender(None)
    sent = client.send(anonymous, message(to="elsewhere/a"))
    by_settled = client.sender(None)
    client.send(by_settled, message(to="elsewhere/a"), settled=True)
    broker = n.broker(refuses={"there": NOT_FOUND})
    for link in (sender, receiver, by_settled):
        error = refusal(client, link)
        assert error.condition == AmqpCondition.NOT_FOUND
        assert error.description == f"{PLACE} does not take the link: no such queue"
    assert isinstance(sent.outcome, Rejected)
    assert sent.outcome.error is not None
    assert sent.outcome.error.info == {"delivery-tag": sent.delivery.tag}
    assert anonymous.is_attached, "of what can be rejected nothing else ends"
    assert len(broker.asked) == 2
    n.advance(60.0)
    assert len(broker.asked) == 2
    n.leave()


def test_a_sender_to_a_queue_that_is_not_there_is_refused_by_a_broker_that_would_accept_all_the_same() -> None:
    n = Far(AddressConfig(pattern="elsewhere/#", redirect=replace(THERE, address="/amq/queue/there")))
    client = n.client()
    kept = client.sender("elsewhere/kept")
    broker = n.broker(product=("RabbitMQ", "3.10.8"))
    assert sorted(broker.links) == ["elsewhere/kept", "elsewhere/kept/watch"]
    broker.hides["/amq/queue/there"] = NOT_FOUND
    link = client.sender("elsewhere/a")
    assert refusal(client, link).condition == AmqpCondition.NOT_FOUND
    sent = client.send(kept)
    broker.take(1)[0].accept()
    n.run()
    assert sent.said == [(Accepted(), True)]
    n.leave()


def test_nothing_is_left_at_the_place_of_links_that_it_refused() -> None:
    n = Far()
    client = n.client()
    client.sender("elsewhere/kept").detach()
    broker = n.broker(refuses={"there": NOT_FOUND})
    for _ in range(5):
        client.sender("elsewhere/a")
        client.receiver("elsewhere/b")
    assert len(broker.asked) == 11
    assert list(broker.engine.channels.sessions) == []
    n.leave()


def test_a_receiver_is_refused_if_the_broker_detaches_right_after_its_attach() -> None:
    n = Far()
    client = n.client()
    link = client.receiver("elsewhere/a")
    broker = n.broker()
    broker.sending("elsewhere/a").detach(error=NOT_FOUND)
    n.run()
    assert refusal(client, link).condition == AmqpCondition.NOT_FOUND
    n.leave()


def test_a_place_that_is_the_router_itself_is_refused() -> None:
    n = Far()
    client = n.client()
    link = client.sender("elsewhere/a")
    broker = n.broker(container_id="A")
    assert refusal(client, link).description == f"{PLACE} does not take the link: it is this router itself"
    assert broker.asked == []
    n.leave()


@pytest.mark.parametrize("other", ["A", "A.1", "A.2"])
def test_a_place_that_is_another_worker_of_the_router_is_refused(other: str) -> None:
    n = Far(router="A.1", worker=WorkerConfig(name="A", number=1, folder=Path("/")))
    client = n.client()
    link = client.sender("elsewhere/a")
    broker = n.broker(container_id=other)
    assert refusal(client, link).description == f"{PLACE} does not take the link: it is this router itself"
    assert broker.asked == []
    n.leave()


def test_a_link_that_is_detached_there_later_comes_back_and_nobody_here_is_detached() -> None:
    n = Far()
    client = n.client()
    link = client.sender("elsewhere/a")
    broker = n.broker()
    in_doubt = client.send(link)
    broker.take(1)
    broker.receiving("elsewhere/a").detach(error=NOT_FOUND)
    n.run()
    assert in_doubt.said == [(FAILED, True)]
    assert link.is_attached
    n.advance(0.2)
    sent = client.send(link)
    broker.take(1)[0].accept()
    n.run()
    assert sent.said == [(Accepted(), True)]
    n.leave()


@pytest.mark.parametrize("settled", [False, True], ids=["before the outcome", "after it"])
def test_after_a_cut_a_sender_knows_what_is_in_doubt_and_goes_on(settled: bool) -> None:
    n = Far()
    client = n.client()
    link = client.sender("elsewhere/a")
    broker = n.broker()
    sent = client.send(link)
    (arrival,) = broker.take(1)
    if settled:
        arrival.accept()
        n.run()
    broker.lose()
    assert sent.said == [(Accepted() if settled else FAILED, True)]
    n.advance(1.0)
    assert link.credit == 0
    another = n.broker()
    assert link.credit
    again = client.send(link)
    another.take(1)[0].accept()
    n.run()
    assert again.said == [(Accepted(), True)]
    n.leave()


def test_after_a_cut_the_place_has_what_was_not_settled_there() -> None:
    n = Far()
    consumer = n.client()
    consumer.receiver("elsewhere/a")
    broker = n.broker()
    lost = broker.send(broker.sending("elsewhere/a"))
    (orphan,) = consumer.take(1)
    broker.lose()
    orphan.accept()
    n.run()
    assert lost.said == []
    another = n.broker()
    again = another.send(another.sending("elsewhere/a"))
    consumer.take(1)[0].accept()
    n.run()
    assert again.said == [(Accepted(), True)]
    n.leave()


# ---------------------------------------------------------------------------------------------- how much, how long


def test_links_and_then_the_connection_go_when_nobody_has_needed_them_for_a_while() -> None:
    n = Far(elsewhere=ElsewhereConfig(idle=10.0))
    client = n.client()
    link = client.sender("elsewhere/a")
    broker = n.broker()
    link.detach()
    n.run()
    n.advance(9.0)
    assert broker.receiving("elsewhere/a").is_attached
    n.advance(1.1)
    assert broker.links == {}
    assert snapshot(n.core).container_links == ()
    assert list(n.wanted) == [PLACE]
    n.advance(10.1)
    assert n.wanted == {}
    assert broker.is_lost
    client.close()
    assert snapshot(n.core).is_empty
    n.leave()


def test_a_sender_that_comes_back_in_time_finds_the_link() -> None:
    n = Far(elsewhere=ElsewhereConfig(idle=10.0))
    client = n.client()
    client.sender("elsewhere/a").detach()
    broker = n.broker()
    n.run()
    n.advance(9.0)
    again = client.sender("elsewhere/a")
    n.advance(30.0)
    assert again.credit
    assert len(broker.asked) == 1
    n.leave()


def test_a_link_stays_while_something_on_it_is_unsettled() -> None:
    n = Far(elsewhere=ElsewhereConfig(idle=1.0))
    client = n.client()
    sent = client.send(client.sender(None), message(to="elsewhere/a"))
    broker = n.broker()
    (arrival,) = broker.take(1)
    n.advance(30.0)
    arrival.accept()
    n.run()
    assert sent.said == [(Accepted(), True)]
    n.advance(3.0)
    assert broker.links == {}
    n.leave()


def test_links_share_sessions_once_the_peer_takes_no_more_of_those() -> None:
    n = Far()
    client = n.client()
    link = client.sender("elsewhere/a")
    broker = n.broker(channel_max=0)
    others = [client.sender(f"elsewhere/{name}") for name in "bcd"]
    n.advance(0.2)
    assert all(each.credit for each in (link, *others))
    assert len(broker.asked) == 4
    assert len({each.session for each in broker.links.values()}) == 1
    n.leave()


def test_a_link_that_is_configured_on_the_same_connection_is_not_stolen_from() -> None:
    connector = ConnectorConfig(url="amqp://10.0.0.2:5672", name="home", role="container", idle_time_out=0.0)
    same = LinkConfig(connector="home", name="elsewhere/a", source="queue", address="incoming")
    redirect = replace(THERE, hostname=None)
    n = Far(replace(ELSEWHERE, redirect=redirect), connectors=(connector,), container_links=(same,))
    client = n.client()
    client.receiver("elsewhere/a")
    broker = Broker(n, connector=connector)
    assert sorted(broker.links) == ["elsewhere/a", "elsewhere/a-2"]
    client.close()
    n.advance(100.0)
    assert list(broker.links) == ["elsewhere/a"]


def test_more_places_than_the_configuration_lets_are_refused() -> None:
    other = AddressConfig(pattern="other", redirect=replace(THERE, network_host="10.0.0.3"))
    n = Far(ELSEWHERE, other, elsewhere=ElsewhereConfig(places=1))
    client = n.client()
    client.sender("elsewhere/a")
    error = refusal(client, client.sender("other"))
    assert error.condition == AmqpCondition.RESOURCE_LIMIT_EXCEEDED
    assert error.description == "more than 1 places elsewhere"
    n.leave()


def test_more_nodes_of_a_place_than_the_configuration_lets_are_refused() -> None:
    n = Far(elsewhere=ElsewhereConfig(nodes=2))
    client = n.client()
    for name in "ab":
        client.sender(f"elsewhere/{name}")
    client.receiver("elsewhere/a")
    error = refusal(client, client.receiver("elsewhere/c"))
    assert error.condition == AmqpCondition.RESOURCE_LIMIT_EXCEEDED
    assert error.description == f"more than 2 nodes at {PLACE}"
    sent = client.send(client.sender(None), message(to="elsewhere/d"))
    assert isinstance(sent.outcome, Rejected)
    n.leave()


def test_tenants_have_equal_parts_of_the_places_and_of_their_nodes() -> None:
    others = [
        AddressConfig(pattern=name, redirect=replace(THERE, network_host=f"10.0.1.{at}"))
        for at, name in enumerate("xyz")
    ]
    n = Far(ELSEWHERE, *others, elsewhere=ElsewhereConfig(places=6, nodes=4))
    tenants = [Tenant(name=each, match=(Match(hostname=NamePattern(each)),)) for each in "ab"]
    groups = [Group(name="all", key=f"group[{each}]", tenant=each, send=("#",)) for each in "ab"]
    n.core.set_policy(Policy(tenants, groups), n.now)
    ann, bob = n.client(hostname="a"), n.client(hostname="b")
    for client in (ann, bob):  # what the other has makes no difference
        for address in ("elsewhere/a", "x"):
            assert client.sender(address) not in client.detached
        error = refusal(client, client.sender("y"))
        assert error.description == "more than 2 places elsewhere"
        error = refusal(client, client.sender("elsewhere/b"))
        assert error.description == f"more than 1 nodes at {PLACE}"
    assert len(n.wanted) == 2, "both use the same connections"
    ann.close()
    bob.close()
    n.advance(300.0)
    last = n.client(hostname="b")
    assert last.sender("z") not in last.detached
    assert len(n.wanted) == 1
    n.leave()


def test_the_node_that_nobody_has_needed_for_longest_makes_room_for_another() -> None:
    n = Far(elsewhere=ElsewhereConfig(nodes=3))
    client, other = n.client(), n.client()
    first, kept, second = (client.sender(f"elsewhere/{name}") for name in "abc")
    broker = n.broker()
    for link in (second, first):
        link.detach()
        n.advance(1.0)
    assert other.receiver("elsewhere/d").is_attached
    n.run()
    assert sorted(broker.links) == ["elsewhere/a", "elsewhere/b", "elsewhere/d"]
    late = other.sender("elsewhere/e")
    n.run()
    assert sorted(broker.links) == ["elsewhere/b", "elsewhere/d", "elsewhere/e"]
    for link in (kept, late):
        sent = client.send(link) if link is kept else other.send(link)
        broker.take(1)[0].accept()
        n.run()
        assert sent.said == [(Accepted(), True)]
    assert refusal(other, other.sender("elsewhere/a")).condition == AmqpCondition.RESOURCE_LIMIT_EXCEEDED
    n.leave()


def test_a_client_that_made_up_names_keeps_nobody_from_the_place_once_it_has_left() -> None:
    n = Far(elsewhere=ElsewhereConfig(nodes=20))
    hostile, client = n.client(), n.client()
    for number in range(20):
        hostile.sender(f"elsewhere/{number}")
    broker = n.broker()
    assert refusal(client, client.sender("elsewhere/a")).condition == AmqpCondition.RESOURCE_LIMIT_EXCEEDED
    hostile.close()
    links = [client.sender(f"elsewhere/{name}") for name in "abc"]
    n.run()
    assert all(each.is_attached and each.credit for each in links)
    assert len(broker.links) == 20
    n.leave()


def test_a_client_that_leaves_one_name_and_takes_another_at_once_finds_room() -> None:
    n = Far(elsewhere=ElsewhereConfig(nodes=1))
    client = n.client()
    link = client.sender("elsewhere/a")
    broker = n.broker()
    link.detach()
    assert client.sender("elsewhere/b").is_attached
    n.run()
    assert list(broker.links) == ["elsewhere/b"]
    n.leave()


def test_what_came_back_or_is_unsettled_makes_no_room() -> None:
    n = Far(elsewhere=ElsewhereConfig(nodes=2))
    client = n.client()
    client.sender("elsewhere/a").detach()
    sent = client.send(client.sender(None), message(to="elsewhere/b"))
    broker = n.broker()
    (arrival,) = broker.take(1)
    n.advance(1.0)
    again = client.receiver("elsewhere/a")
    assert refusal(client, client.sender("elsewhere/c")).condition == AmqpCondition.RESOURCE_LIMIT_EXCEEDED
    assert again.is_attached
    arrival.accept()
    n.run()
    assert sent.said == [(Accepted(), True)]
    assert client.sender("elsewhere/c").is_attached
    n.run()
    assert sorted({each.name for each in broker.links.values()}) == ["elsewhere/a", "elsewhere/c"]
    n.leave()


def test_a_link_that_is_led_to_a_place_that_is_full_does_not_cost_its_own_node() -> None:
    n = Far(elsewhere=ElsewhereConfig(nodes=1))
    client = n.client()
    client.sender("elsewhere/a").detach()
    onward = Redirect(hostname="b.example", network_host="10.0.0.2", port=5672, address="further")
    broker = n.broker(refuses={"there": Error(condition=LinkCondition.REDIRECT, info=info(onward))})
    assert broker.links == {}
    again = client.sender("elsewhere/a")
    assert refusal(client, again).condition == LinkCondition.REDIRECT
    n.leave()


# ------------------------------------------------------------------------------------------------------ who we are

SECRET = PasswordConfig(env="SECRET")


def home(url: str, **more: object) -> ConnectorConfig:
    """Return a connector with credentials."""
    return ConnectorConfig(url=url, name="home", role="container", user="me", password=SECRET, **more)  # type: ignore[arg-type]  # as tests name them


@pytest.mark.parametrize(
    ("connector", "there", "shown"),
    [
        pytest.param(home("amqp://10.0.0.2:7000"), {"hostname": None}, True, id="its host at another port"),
        pytest.param(home("amqp://10.0.0.2:7000"), {}, False, id="its host under a name that is not its own"),
        pytest.param(home("amqp://10.0.0.2:7000", hostname="b.example"), {}, True, id="under a name of its own"),
        pytest.param(home("amqp://10.0.0.2:7000", redirects=("*.example",)), {}, True, id="under an allowed name"),
        pytest.param(home("amqp://10.0.0.3:5672"), {"hostname": None}, False, id="another host"),
        pytest.param(home("amqp://10.0.0.3:5672", redirects=("*",)), {}, True, id="any host is allowed"),
        pytest.param(home("amqps://10.0.0.2:5671"), {"hostname": None}, False, id="TLS would be given up"),
        pytest.param(home("amqps://10.0.0.2:7000"), {"hostname": None, "scheme": "amqps"}, True, id="TLS as at home"),
    ],
)
def test_credentials_are_shown_where_their_connector_lets_them(
    connector: ConnectorConfig, there: dict[str, object], shown: bool
) -> None:
    redirect = replace(THERE, **there)  # type: ignore[arg-type]  # as tests name them
    n = Far(replace(ELSEWHERE, redirect=redirect), connectors=(connector,))
    client = n.client()
    client.sender("elsewhere/a")
    (made,) = n.wanted.values()
    assert made.places == (Endpoint("amqps" if redirect.scheme else "amqp", "10.0.0.2", 5672),)
    assert (made.user, made.password) == (("me", SECRET) if shown else (None, None))
    # The configuration names the place, not a peer.
    assert not n.core.on_demand.is_redirected(made.name)
    n.leave()


def test_a_place_that_redirects_does_not_use_what_it_was_not_shown() -> None:
    """A place that the router uses without credentials cannot redirect it to a place where it would show some."""
    n = Far(connectors=(home("amqp://10.0.0.9:5672"),), elsewhere=ElsewhereConfig(redirects=("10.0.0.9",)))
    client = n.client()
    client.sender("elsewhere/a")
    onward = Redirect(hostname="10.0.0.9", network_host="10.0.0.9", address="secrets")
    n.broker(refuses={"there": Error(condition=LinkCondition.REDIRECT, info=info(onward))})
    (made,) = (each for name, each in n.wanted.items() if name != PLACE)
    assert made.places == (Endpoint("amqp", "10.0.0.9", 5672),)
    assert (made.user, made.password) == (None, None)
    n.leave()


def test_the_host_that_is_wanted_is_the_one_that_certificates_have_to_name() -> None:
    n = Far(replace(ELSEWHERE, redirect=replace(THERE, scheme="amqps")))
    n.client().sender("elsewhere/a")
    ((name, certified),) = n.certified.items()
    assert name == "amqps://10.0.0.2:5672 as b.example"
    assert certified == "b.example"
    assert n.wanted[name].hostname == "b.example"
    n.leave()


def test_a_configured_connection_to_the_same_place_is_used() -> None:
    connector = ConnectorConfig(url="amqp://10.0.0.2:5672", name="home", role="container", idle_time_out=0.0)
    n = Far(replace(ELSEWHERE, redirect=replace(THERE, hostname=None)), connectors=(connector,))
    client = n.client()
    link = client.sender("elsewhere/a")
    assert n.wanted == {}
    broker = Broker(n, connector=connector)
    sent = client.send(link)
    broker.take(1)[0].accept()
    n.run()
    assert sent.said == [(Accepted(), True)]
    n.leave()


# ----------------------------------------------------------------------------------------------------------- domains


def test_a_name_at_a_domain_that_the_configuration_names_is_there() -> None:
    n = Far(elsewhere=ElsewhereConfig(domains=("*.example",)))
    client = n.client()
    link = client.sender("orders@b.example")
    assert n.wanted["@b.example"].url == ("amqps+srv://b.example", "amqp+srv://b.example")
    assert n.wanted["@b.example"].user is None
    broker = n.broker("@b.example")
    assert broker.receiving("orders@b.example").remote.target.address == "orders"  # type: ignore[union-attr]
    sent = client.send(link)
    by_message = client.send(client.sender(None), message(to="orders@b.example"))
    for arrival in broker.take(2):
        arrival.accept()
    n.run()
    assert sent.said == by_message.said == [(Accepted(), True)]
    client.receiver("orders@b.example")
    given = broker.send(broker.sending("orders@b.example"))
    client.take(1)[0].accept()
    n.run()
    assert given.said == [(Accepted(), True)]
    n.leave()


@pytest.mark.parametrize("domains", [(), ("*.example",)])
def test_no_other_domain_is(domains: tuple[str, ...]) -> None:
    n = Far(elsewhere=ElsewhereConfig(domains=domains))
    client = n.client()
    assert refusal(client, client.sender("orders@b.test")).condition == AmqpCondition.NOT_FOUND
    outcome = client.send(client.sender(None), message(to="orders@b.test")).outcome
    assert isinstance(outcome, Rejected)
    assert outcome.error is not None
    assert outcome.error.condition == AmqpCondition.NOT_FOUND
    assert n.wanted == {}
    n.leave()


def test_a_connector_that_names_the_domain_leads_there() -> None:
    broker = ConnectorConfig(url="amqp://b.example:5699", name="broker", role="container", idle_time_out=0.0)
    n = Far(elsewhere=ElsewhereConfig(domains=("b.example",)), connectors=(broker,))
    client = n.client()
    link = client.sender("orders@b.example")
    assert n.wanted == {}
    far = Broker(n, connector=broker)
    sent = client.send(link)
    far.take(1)[0].accept()
    n.run()
    assert sent.said == [(Accepted(), True)]
    n.leave()


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "amqpmesh")
