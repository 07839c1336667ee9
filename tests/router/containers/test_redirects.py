"""Redirects of links to other containers: followed within limits, never in circles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amqpmesh.policies.redirect import MAX_REDIRECTS, Redirect
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error, LinkCondition
from amqpmesh.router.amqp.standard.delivery_states import Accepted, Modified
from amqpmesh.router.config.file import ConnectorConfig, ElsewhereConfig, LinkConfig, PasswordConfig
from amqpmesh.router.containers.container_links import REACHING
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.model.redirects import info
from amqpmesh.router.statistics.configured import ContainerLinkState, ContainerLinkStatistics
from tests.support.peers.broker import Broker
from tests.support.worlds.network import Network

HOME = ConnectorConfig(url="amqp://b.example:5672", name="home", role="container", idle_time_out=0.0)
FEEDS = LinkConfig(connector="home", name="feeds", source="queue", address="incoming")
FED = LinkConfig(connector="home", name="fed", target="queue", address="outgoing")
OTHER_PORT = "amqp://b.example:5673 (home)"
FAILED = Modified(delivery_failed=True)

S = ContainerLinkState


def redirect(**where: object) -> Error:
    """Return the error of a redirect. Args: where: the fields of a `Redirect`."""
    return Error(condition=LinkCondition.REDIRECT, info=info(Redirect(**where)))  # type: ignore[arg-type]  # tests' own


class Led(Network):
    """A router with links to a broker, and the connectors that it makes to follow redirects."""

    def __init__(self, *links: LinkConfig, home: ConnectorConfig = HOME, **settings: object) -> None:
        super().__init__(connectors=(home,), container_links=links or (FEEDS, FED), **settings)  # type: ignore[arg-type]  # as tests name them
        self.made: dict[str, ConnectorConfig] = {}

        def connect(config: ConnectorConfig, _certified: str | None) -> None:
            self.made[config.name] = replace(config, idle_time_out=0.0)

        self.core.on_demand.on_connect = connect

        def disconnect(name: str) -> None:
            del self.made[name]

        self.core.on_demand.on_disconnect = disconnect

    def there(self, name: str = OTHER_PORT, **settings: object) -> Broker:
        """Open the connection of a connector that the router has made for a redirect."""
        return Broker(self, connector=self.made[name], **settings)  # type: ignore[arg-type]  # as tests name them

    def told(self, name: str) -> ContainerLinkStatistics:
        return next(each for each in snapshot(self.core).container_links if each.name == name)

    def leave(self) -> None:
        """End as any network does, and check that the router has closed the connections for redirects."""
        super().leave()
        self.core.start_drain(self.now)
        self.advance(2 * REACHING + 60.0)
        assert self.made == {}


def test_a_link_that_is_refused_with_a_redirect_is_attached_where_it_leads() -> None:
    n = Led()
    Broker(n, connector=HOME, refuses={"queue": redirect(port=5673, address="moved")})
    assert list(n.made) == [OTHER_PORT]
    assert n.told("fed").state is S.DISCONNECTED
    assert n.told("fed").reason == f"home says that it is at {OTHER_PORT}"
    there = n.there()
    for name in ("feeds", "fed"):
        stands = n.told(name)
        assert (stands.state, stands.connector, stands.node, stands.failures) == (S.ATTACHED, OTHER_PORT, "moved", 0)
    producer, consumer = n.client(), n.client()
    consumer.receiver("incoming")
    sent, given = producer.send(producer.sender("outgoing")), there.send(there.sending("feeds"))
    there.take(1)[0].accept()
    consumer.take(1)[0].accept()
    n.run()
    assert sent.said == given.said == [(Accepted(), True)]
    n.leave()


def test_a_link_that_is_redirected_later_goes_there_and_what_is_in_doubt_is_said_so() -> None:
    n = Led(FED)
    broker = Broker(n, connector=HOME)
    producer = n.client()
    link = producer.sender("outgoing")
    in_doubt = producer.send(link)
    broker.take(1)
    broker.receiving("fed").detach(error=redirect(port=5673))
    n.run()
    assert in_doubt.said == [(FAILED, True)]
    there = n.there()
    sent = producer.send(link)
    there.take(1)[0].accept()
    n.run()
    assert sent.said == [(Accepted(), True)]
    n.leave()


def test_a_redirect_to_another_node_of_the_same_container_uses_the_same_connection() -> None:
    n = Led(FED)
    broker = Broker(n, connector=HOME, refuses={"queue": redirect(address="moved")})
    assert n.made == {}
    assert (n.told("fed").state, n.told("fed").node) == (S.ATTACHED, "moved")
    assert broker.receiving("fed").is_attached
    n.leave()


def test_a_place_stays_that_says_where_else_it_has_the_node_itself() -> None:
    n = Led(FED, elsewhere=ElsewhereConfig(idle=1.0))
    Broker(n, connector=HOME, refuses={"queue": redirect(port=5673)})
    there = n.there(refuses={"queue": redirect(address="moved")})
    assert (n.told("fed").state, n.told("fed").node) == (S.ATTACHED, "moved")
    n.advance(60.0)
    assert n.told("fed").state is S.ATTACHED
    assert there.receiving("fed").is_attached
    assert len(list(there.engine.channels.sessions)) == 1
    n.leave()


def test_when_it_ends_there_it_begins_where_it_belongs() -> None:
    n = Led(FED)
    home = Broker(n, connector=HOME, refuses={"queue": redirect(port=5673)})
    there = n.there()
    home.refuses.clear()
    there.receiving("fed").detach(error=Error(condition=AmqpCondition.RESOURCE_DELETED))
    n.run()
    assert (n.told("fed").state, n.told("fed").connector) == (S.WAITING, "home")
    n.advance(0.2)
    assert home.receiving("fed").is_attached
    n.leave()


def test_when_the_connection_there_is_lost_it_begins_where_it_belongs() -> None:
    n = Led(FED)
    home = Broker(n, connector=HOME, refuses={"queue": redirect(port=5673)})
    n.there().lose()
    assert n.told("fed").state is S.WAITING
    assert n.told("fed").reason == f"the connection to {OTHER_PORT} is gone, where it was sent"
    home.refuses.clear()
    n.advance(0.2)
    assert home.receiving("fed").is_attached
    n.leave()


def test_when_there_is_never_a_connection_it_begins_where_it_belongs() -> None:
    n = Led(FED)
    home = Broker(n, connector=HOME, refuses={"queue": redirect(port=5673)})
    home.refuses.clear()
    n.advance(REACHING - 0.1)
    assert n.told("fed").state is S.DISCONNECTED
    n.advance(0.5)
    assert home.receiving("fed").is_attached
    n.leave()


def test_the_connection_there_is_closed_when_nothing_has_needed_it_for_a_while() -> None:
    n = Led(FED, elsewhere=ElsewhereConfig(idle=10.0))
    home = Broker(n, connector=HOME, refuses={"queue": redirect(port=5673)})
    there = n.there()
    home.refuses.clear()
    there.receiving("fed").detach()
    n.run()
    n.advance(9.0)
    assert list(n.made) == [OTHER_PORT]
    n.advance(1.5)
    assert n.made == {}
    assert there.is_lost
    n.leave()


# ------------------------------------------------------------------------------------------------------------- bounded


def test_a_circle_is_not_gone_round_and_the_operator_is_told() -> None:
    n = Led(FED)
    Broker(n, connector=HOME, refuses={"queue": redirect(port=5673)})
    n.there(refuses={"queue": redirect(port=5672)})
    stands = n.told("fed")
    assert stands.state is S.WAITING
    assert stands.reason is not None
    assert stands.reason.startswith("the peer says that it is elsewhere: not followed, redirects lead in a circle")
    n.leave()


def test_a_row_of_redirects_ends() -> None:
    n = Led(FED)
    Broker(n, connector=HOME, refuses={"queue": redirect(port=6001)})
    for step in range(1, MAX_REDIRECTS + 1):
        n.there(f"amqp://b.example:{6000 + step} (home)", refuses={"queue": redirect(port=6001 + step)})
    assert len(n.made) == MAX_REDIRECTS
    assert n.told("fed").state is S.WAITING
    assert f"the {MAX_REDIRECTS} in a row that are followed" in (n.told("fed").reason or "")
    n.leave()


@pytest.mark.parametrize("where", [{"hostname": "c.example"}, {"network_host": "10.0.0.9"}], ids=str)
def test_a_host_that_nobody_allowed_is_not_connected_to(where: dict[str, object]) -> None:
    n = Led(FED)
    Broker(n, connector=HOME, refuses={"queue": redirect(**where)})
    assert n.made == {}
    assert n.told("fed").state is S.WAITING
    assert "is not allowed" in (n.told("fed").reason or "")
    n.leave()


def test_more_places_than_the_configuration_lets_are_not_connected_to() -> None:
    n = Led(elsewhere=ElsewhereConfig(places=1))
    Broker(n, connector=HOME, refuses={"queue": redirect(port=5673)})
    n.there(refuses={"queue": redirect(port=5674)})
    assert len(n.made) == 1
    assert n.told("fed").reason is not None
    assert "more than 1 places elsewhere" in n.told("fed").reason  # type: ignore[operator]  # it is not None
    n.leave()


def test_credentials_of_a_connector_go_to_its_own_hosts() -> None:
    home = replace(HOME, user="me", password=PasswordConfig(env="SECRET"))
    n = Led(FED, home=home)
    Broker(n, connector=HOME, refuses={"queue": redirect(port=5673)})
    assert (n.made[OTHER_PORT].user, n.made[OTHER_PORT].password) == ("me", home.password)
    # The peer has named the place. So no password goes there without TLS, even if the broker there offers PLAIN.
    assert n.core.on_demand.is_redirected(OTHER_PORT)
    assert not n.core.on_demand.is_redirected(HOME.name)
    n.leave()
