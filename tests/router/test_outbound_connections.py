"""Outbound connections of a router, between two cores without sockets."""

from __future__ import annotations

import logging
from collections import deque

import pytest

from amqpmesh.policies.access import Peer
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.standard.definitions import ConnectionCondition, Error
from amqpmesh.router.amqp.standard.performatives import Open
from amqpmesh.router.config.file import ConnectorConfig, ListenerConfig, PasswordConfig, RouterConfig
from amqpmesh.router.config.users import Users
from amqpmesh.router.core import Core
from amqpmesh.router.endpoint_setup import WANTED, endpoint, name_wanted
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.statistics.common import ConnectionDirection
from tests.support.peers.scripted import AMQP, Script

ERROR = Error(condition=ConnectionCondition.CONNECTION_FORCED, description="the end")
LISTENER = ListenerConfig(url="amqp://127.0.0.1:0", name="here", idle_time_out=8.0)
CONNECTOR = ConnectorConfig(url="amqp://b.example", name="there", role="container", idle_time_out=4.0)
USER = ConnectorConfig(
    url="amqp://b.example", name="there", role="container", user="alice", password=PasswordConfig(env="PASSWORD")
)


class Two:
    """A router that connects, and the one that it connects to."""

    def __init__(
        self,
        connector: ConnectorConfig = CONNECTOR,
        listener: ListenerConfig = LISTENER,
        *,
        password: str | None = None,
        users: Users | None = None,
        secured: bool = False,
        certificate_user: str | None = None,
        hostname: str | None = "b.example",
        host: str = "192.0.2.1",
        redirected: bool = False,
    ) -> None:
        self.now = 100.0
        self.near = Core(RouterConfig(id="A"), self.now)
        self.far = Core(RouterConfig(id="B"), self.now)
        self.out = self.near.connect(
            connector,
            host,
            self.now,
            secured=secured,
            password=password,
            hostname=hostname,
            redirected=redirected,
            certificate=b"DER of B" if secured else None,
            certificate_user="urn:b" if secured else None,
        )
        self.come = self.far.accept(
            listener,
            "192.0.2.2",
            self.now,
            secured=secured,
            users=users,
            certificate=b"DER of A" if certificate_user else None,
            certificate_user=certificate_user,
        )
        self.run()

    def run(self) -> None:
        """Carry bytes to and fro until nobody has any."""
        while self._carry(self.near, self.out, self.far, self.come) | self._carry(
            self.far, self.come, self.near, self.out
        ):
            pass

    def _carry(self, one: Core, sends: ConnectionRecord, other: Core, receives: ConnectionRecord) -> bool:
        data = one.data_to_send(sends, self.now)
        other.receive(receives, data, self.now)
        while receives.login is not None:
            receives.login.do()
            other.logged_in(receives, self.now)
        one.sent(sends, self.now)
        return bool(data)


def test_the_open_goes_out_at_once_and_both_ends_know_each_other(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    two = Two()
    assert two.out.peer == Peer(container_id="B", connector="there", mechanism="ANONYMOUS", host=two.out.host)
    assert (two.come.peer.container_id, two.come.peer.listener, two.come.peer.connector) == ("A", "here", "")
    assert two.come.peer.hostname == "b.example"
    assert (two.out.role, two.come.role) == ("container", "normal")
    assert (two.out.connector, two.out.listener) == (CONNECTOR, None)
    assert (two.come.connector, two.come.listener) == (None, LISTENER)
    assert "connection opened connection=1 peer=192.0.2.1 container=B connector=there" in caplog.messages


def test_statistics_show_which_side_opened_a_connection() -> None:
    two = Two()
    (out,) = snapshot(two.near).connections
    (come,) = snapshot(two.far).connections
    assert (out.direction, out.role, out.listener, out.connector) == (
        ConnectionDirection.OUT,
        "container",
        None,
        "there",
    )
    assert (come.direction, come.role, come.listener, come.connector) == (
        ConnectionDirection.IN,
        "normal",
        "here",
        None,
    )
    assert (out.idle_time_out, out.remote_idle_time_out, out.host) == (4.0, 4.0, "192.0.2.1")


def test_a_connector_may_want_another_host_than_the_one_it_connects_to() -> None:
    connector = ConnectorConfig(url="amqp://b.example", role="container", hostname="vhost:/")
    assert Two(connector, hostname=None).come.peer.hostname == "vhost:/"
    # Where a redirect has led it wants what that said.
    assert Two(connector, hostname="c.example").come.peer.hostname == "c.example"


@pytest.mark.parametrize(("octets", "fit"), [(1, 8), (40, 8), (60, 5), (200, 1), (500, 0)])
def test_an_open_names_as_many_wanted_routers_as_fit_into_512_octets(octets: int, fit: int) -> None:
    """Without an `open` there would be no connection, and one to another worker is better than none (§2.4.1)."""
    wanted = [str(number) * octets for number in range(8)]
    engine = endpoint("A", CONNECTOR, Negotiation(server=False, sasl=None), 100.0, hostname="b.example")
    name_wanted(engine, wanted)
    engine.open()
    peer = Script(lambda given: deque(engine.receive(given, 100.0), 0).clear(), lambda: engine.data_to_send(100.0))
    peer.write(AMQP)
    assert peer.expect_header() == AMQP
    assert (peer.expect(Open).properties or {}).get(WANTED, []) == wanted[:fit]


def test_a_silent_peer_is_closed_when_the_connectors_idle_time_out_has_passed() -> None:
    two = Two()
    two.now += 4.0
    two.near.handle_timer(two.now)
    assert two.out.lost
    assert two.out.closed is not None
    assert "idle time-out" in str(two.out.closed.error)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "SCRAM-SHA-1", "PLAIN"])
def test_a_user_is_shown_by_what_the_peer_offers(mechanism: str) -> None:
    listener = ListenerConfig(url="amqp://127.0.0.1:0", sasl=(mechanism,), users="users.toml", insecure=True)  # type: ignore[arg-type]  # a text
    two = Two(USER, listener, password="secret", users=Users({}).add("alice", "secret"), secured=True)
    assert (two.come.peer.user, two.come.peer.mechanism) == ("alice", mechanism)
    assert two.out.peer.user == "urn:b"  # the exchange has shown who we are, not who the peer is


def test_a_password_goes_to_no_network_in_clear() -> None:
    listener = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("PLAIN",), users="users.toml", insecure=True)  # type: ignore[arg-type]  # a text
    two = Two(USER, listener, password="secret", users=Users({}).add("alice", "secret"))
    assert two.out.engine.finished
    assert two.out.engine.negotiation.refusal == "none of SCRAM-SHA-512, SCRAM-SHA-256, SCRAM-SHA-1 is offered"


@pytest.mark.parametrize("secured", [False, True], ids=["in clear", "TLS"])
def test_where_a_redirect_leads_a_password_goes_only_under_tls_not_even_on_loopback(secured: bool) -> None:
    listener = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("PLAIN",), users="users.toml", insecure=True)  # type: ignore[arg-type]  # a text
    users = Users({}).add("alice", "secret")
    two = Two(USER, listener, password="secret", users=users, secured=secured, host="127.0.0.1", redirected=True)
    if secured:
        assert (two.come.peer.user, two.come.peer.mechanism) == ("alice", "PLAIN")
    else:
        assert two.out.engine.negotiation.refusal == (
            "none of SCRAM-SHA-512, SCRAM-SHA-256, SCRAM-SHA-1 is offered; where a redirect leads, PLAIN is used only "
            "under TLS with a verified certificate"
        )
    told = Two(USER, listener, password="secret", users=users, host="127.0.0.1")
    assert told.come.peer.mechanism == "PLAIN"


def test_neighbours_know_each_other_by_certificate(caplog: pytest.LogCaptureFixture) -> None:
    connector = ConnectorConfig(url="amqps://b.example", name="b", cost=7)
    listener = ListenerConfig(url="amqps://0.0.0.0", name="mesh", role="mesh")
    two = Two(connector, listener, secured=True, certificate_user="urn:a")
    assert (two.out.role, two.come.role) == ("mesh", "mesh")
    assert (two.out.cost, two.come.cost) == (7, None), "as configured"
    assert (two.out.certificate, two.come.certificate) == (b"DER of B", b"DER of A")
    assert (two.come.peer.user, two.come.peer.mechanism) == ("urn:a", "EXTERNAL")
    assert two.out.peer.user == "urn:b"


def test_a_wrong_password_is_told_to_the_caller_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    listener = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("SCRAM-SHA-256",), users="users.toml")  # type: ignore[arg-type]  # a text
    two = Two(USER, listener, password="wrong", users=Users({}).add("alice", "secret"))
    assert two.out.engine.negotiation.refusal == "the server does not accept the credentials (auth)"
    assert two.out.closed is not None
    assert [message.split(" connection=")[0] for message in caplog.messages] == ["authentication failed"]


def test_a_router_that_ends_closes_what_it_has_opened() -> None:
    two = Two()
    two.near.close_all(two.now, ERROR)
    two.run()
    assert two.come.closed is not None
    assert two.come.closed.error == ERROR
    two.near.receive_eof(two.out, two.now)
    assert snapshot(two.near).is_empty
