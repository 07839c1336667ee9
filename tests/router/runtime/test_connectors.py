"""Connectors: their attempts, pauses, and states, none of which ends the router."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.connection import Connection
from amqpmesh.router.amqp.connection_settings import ConnectionSettings
from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.amqp.events import ConnectionOpened, Event
from amqpmesh.router.amqp.negotiation import Negotiation
from amqpmesh.router.amqp.sasl.exchange import SaslServer
from amqpmesh.router.amqp.sasl.mechanisms import MIN_ITERATIONS
from amqpmesh.router.amqp.standard.definitions import AmqpCondition, Error
from amqpmesh.router.config.file import (
    ConnectorConfig,
    ConnectorTlsConfig,
    ListenerConfig,
    MeshConfig,
    PasswordConfig,
    PlaceConfig,
    RouterConfig,
    TlsConfig,
)
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.config.users import Users, add_user
from amqpmesh.router.io.dialing import Backoff
from amqpmesh.router.io.dns import NoServerError, Server
from amqpmesh.router.io.tls import mesh_contexts
from amqpmesh.router.logs.event_log import event_of, fields_of
from amqpmesh.router.runtime.connectors import DIAL_TIME, REPEAT_TIME
from amqpmesh.router.runtime.router import Router, succession_of
from amqpmesh.router.statistics.configured import ConnectorState, ConnectorStatistics
from amqpmesh.topology.authority import Authority, certificate_pem, key_pem
from tests.support.peers.library_client import URL, Roads
from tests.support.tasks.calls import Call
from tests.support.tasks.until import until
from tests.support.worlds.connectors import Even, connecting, container, told
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY

OTHER = "amqp://other.example:5672"


async def served(stream: trio.abc.Stream, *mechanisms: str) -> AsyncIterator[tuple[Connection, Event]]:
    """Run a peer that handles each event as a test says."""
    sasl = SaslServer(mechanisms or ("ANONYMOUS",), Users({}))
    negotiation = Negotiation(server=True, sasl=sasl, sasl_required=True)
    settings = ConnectionSettings(container_id="host", idle_time_out=None)
    engine = Connection(settings, negotiation, trio.current_time())
    while not engine.finished:
        data = await stream.receive_some()
        for event in engine.receive(data, trio.current_time()) if data else engine.receive_eof():
            yield engine, event
        await stream.send_all(engine.data_to_send(trio.current_time()))
    await stream.aclose()


async def until_connected(router: Router) -> None:
    await until(lambda: told(router).state is ConnectorState.CONNECTED)


async def test_a_router_connects_to_another_as_its_client(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    async with Router(id="B") as far, connecting(roads, id="A") as near:
        roads.lead_to(far)
        await until_connected(near)
        (out,) = near.statistics().connections
        (come,) = far.statistics().connections
        assert (out.container_id, out.connector, out.direction, out.role) == ("B", "broker", "out", "container")
        assert (come.container_id, come.hostname, come.direction, come.role) == ("A", "router.example", "in", "normal")
        assert replace(told(near), settings={}) == ConnectorStatistics(
            name="broker",
            role="container",
            cost=1,
            state=ConnectorState.CONNECTED,
            url=URL,
            redirected_from=None,
            connection=out.number,
            failures=0,
            reason=None,
        )
    assert near.statistics().is_empty
    assert told(near).state is ConnectorState.ENDED


async def test_urls_are_tried_in_turn_and_pauses_between_rounds_double(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    async with connecting(roads, container(URL, OTHER)):
        began = trio.current_time()
        await trio.sleep(0.95)
    rounds = [began + after for after in (0.0, 0.1, 0.3, 0.7)]
    assert roads.tries == [(pytest.approx(at), url) for at in rounds for url in (URL, OTHER)]


async def test_a_neighbour_is_tried_ten_times_before_the_pauses_double(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    url = "amqp://127.0.0.1:5700"
    mesh = MeshConfig(insecure=True)
    async with Router(id="A", mesh=mesh, connectors=[url], open_stream=roads.open, backoff=Even()):
        began = trio.current_time()
        await trio.sleep(1.75)
    after = [*(round(0.1 * each, 1) for each in range(11)), 1.2, 1.6]
    assert roads.tries == [(pytest.approx(began + each), url) for each in after]


async def test_pauses_have_an_end_and_the_router_waits_for_ever(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    async with Router(id="B") as far, connecting(roads) as near:
        await trio.sleep(1000.0)
        assert roads.tries[-1][0] - roads.tries[-2][0] == pytest.approx(10.0)
        roads.lead_to(far)
        await trio.sleep(10.1)
        assert told(near).state is ConnectorState.CONNECTED


async def test_the_second_url_is_taken_while_the_first_leads_nowhere(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    async with Router(id="B") as far, connecting(roads, container(URL, OTHER)) as near:
        roads.lead_to(far, OTHER)
        await until_connected(near)
        assert told(near).url == OTHER
        # After a connection that lasted the first is tried first again.
        await trio.sleep(6.0)
        roads.lead_to(far, URL)
        await roads.cut()
        await until(lambda: told(near).url == URL and told(near).state is ConnectorState.CONNECTED)
        assert [url for _, url in roads.tries] == [URL, OTHER, URL]


async def test_a_connection_that_is_cut_is_made_again(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    async with Router(id="B") as far, connecting(roads) as near:
        roads.lead_to(far)
        await until_connected(near)
        await trio.sleep(100.0)
        await roads.cut()
        lost = trio.current_time()
        await until(lambda: told(near).failures)
        assert (told(near).failures, told(near).connection, told(near).url) == (1, None, None)
        await until_connected(near)
        assert trio.current_time() - lost == pytest.approx(0.1, abs=0.01)
        assert len(roads.tries) == 2
        assert [each.number for each in near.statistics().connections] == [2]


async def test_connections_that_do_not_last_are_made_ever_more_slowly(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)

    async def hangs_up(stream: trio.abc.Stream) -> None:
        async for engine, event in served(stream):
            if isinstance(event, ConnectionOpened):
                engine.open()
                engine.close(Error(condition=AmqpCondition.NOT_ALLOWED, description="not you"))

    roads.lead_to(hangs_up)
    async with connecting(roads) as router:
        began = trio.current_time()
        await trio.sleep(0.95)
        assert [at - began for at, _ in roads.tries] == pytest.approx([0.0, 0.1, 0.3, 0.7], abs=0.01)
        assert told(router).reason == "the peer closed the connection (amqp:not-allowed): not you"
        assert told(router).state is ConnectorState.WAITING


# What connectors do not live on: each is told, and tried again.


async def silent(stream: trio.abc.Stream) -> None:
    await trio.sleep_forever()


async def leaves(stream: trio.abc.Stream) -> None:
    await stream.aclose()


async def speaks_tls(stream: trio.abc.Stream) -> None:
    await stream.send_all(bytes([21, 3, 3, 0, 2, 2, 40, 0]))
    await stream.receive_some()


async def speaks_http(stream: trio.abc.Stream) -> None:
    await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await stream.receive_some()


async def lets_nobody_in(stream: trio.abc.Stream) -> None:
    async for _ in served(stream, "SCRAM-SHA-256"):
        pass


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        (None, "Connection refused"),
        (silent, "the router closed the connection (amqp:resource-limit-exceeded): no open came in time"),
        (leaves, "the peer closed before it answered: does it want TLS (amqps://)?"),
        (speaks_tls, "the peer answers in TLS: does it want amqps://?"),
        (speaks_http, "the peer does not speak AMQP 1.0: it begins with b'H'"),
        (lets_nobody_in, "not let in: none of ANONYMOUS is offered"),
    ],
)
async def test_why_a_connector_waits_is_told(
    host: Any, reason: str, nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    roads = Roads(nursery)
    if host is not None:
        roads.lead_to(host)
    async with connecting(roads, container(open_time_out=3.0)) as router:
        await until(lambda: told(router).failures)
        assert (told(router).state, told(router).reason) == (ConnectorState.WAITING, reason)
        await until(lambda: len(roads.tries) > 1)
        nursery.cancel_scope.cancel()
    (first, *others) = (each for each in caplog.records if each.getMessage().startswith("connector retrying"))
    assert first.getMessage().startswith(f"connector retrying connector=broker url={URL} reason=")
    assert first.getMessage().endswith(" seconds=0.1")
    assert others == []
    assert not [each for each in caplog.messages if each.startswith("connection closed")]


async def test_a_stream_that_never_comes_is_given_up(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    tries = []

    async def never(endpoint: Endpoint) -> trio.abc.Stream:
        tries.append(trio.current_time())
        await trio.sleep_forever()
        raise AssertionError("it does not end")

    async with Router(connectors=[container()], open_stream=never, backoff=Even()) as router:
        await until(lambda: told(router).failures)
        assert told(router).reason == f"no connection in {DIAL_TIME:g} s"
        await until(lambda: len(tries) == 2)
        assert tries[1] - tries[0] == pytest.approx(DIAL_TIME + 0.1, abs=0.01)


async def test_a_reason_that_stays_is_told_once_a_minute(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with connecting(Roads(nursery), container(URL, OTHER)):
        await trio.sleep(3 * REPEAT_TIME)
    waits = [each for each in caplog.messages if each.startswith("connector retrying")]
    assert len([each for each in waits if URL in each]) == len([each for each in waits if OTHER in each])
    assert 3 <= len(waits) / 2 <= 4


async def test_another_reason_is_told_at_once(
    nursery: trio.Nursery, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    roads = Roads(nursery)
    async with connecting(roads) as router:
        await until(lambda: told(router).failures == 2)
        roads.lead_to(speaks_http)
        await until(lambda: told(router).failures == 3)
    reasons = [each.partition("reason=")[2][:20] for each in caplog.messages if each.startswith("connector retrying")]
    assert reasons == ['"Connection refused"', '"the peer does not s']


async def test_a_fault_in_the_opener_costs_that_attempt_only(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)

    async def faulty(endpoint: Endpoint) -> trio.abc.Stream:
        if not roads.tries:
            roads.tries.append((trio.current_time(), str(endpoint)))
            raise RuntimeError("a fault")
        return await roads.open(endpoint)

    async with Router(id="B") as far, Router(connectors=[container()], open_stream=faulty) as near:
        roads.lead_to(far)
        await until_connected(near)
    assert len(roads.tries) == 2


# Domains.


async def test_the_servers_of_a_domain_are_tried_in_their_order(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    asked = []

    async def look_up(name: str) -> list[Server]:
        asked.append(name)
        if len(asked) == 1:
            raise OSError("DNS: no answer")
        return [Server(2, 0, 5673, "second.example"), Server(1, 0, 5672, "first.example")]

    async with Router(id="B") as far:
        roads.lead_to(far, "amqp://second.example:5673")
        connector = container("amqp+srv://example.org")
        async with connecting(roads, connector, look_up=look_up) as near:
            await until(lambda: told(near).failures)
            assert (told(near).reason, told(near).url) == ("DNS: no answer", None)
            await until_connected(near)
            assert told(near).url == "amqp://second.example:5673"
            (come,) = far.statistics().connections
            assert come.hostname == "example.org"
    assert asked == ["_amqp._tcp.example.org"] * 2
    assert [url for _, url in roads.tries] == ["amqp://first.example:5672", "amqp://second.example:5673"]


@pytest.mark.parametrize(
    ("answer", "tries"),
    [
        ([Server(0, 0, 5671, "b.example")], ["amqps://b.example:5671"]),
        (OSError("DNS: no answer"), []),
        (NoServerError("DNS: no such name"), ["amqp://b.example:5672"]),
    ],
    ids=["with TLS", "not said", "without TLS"],
)
async def test_a_domain_is_connected_to_without_tls_only_if_dns_says_that_it_has_no_servers_with(
    answer: list[Server] | OSError, tries: list[str], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)

    async def look_up(name: str) -> list[Server]:
        if name.startswith("_amqp."):
            return [Server(0, 0, 5672, "b.example")]
        if isinstance(answer, OSError):
            raise answer
        return answer

    connector = container("amqps+srv://example.org", "amqp+srv://example.org")
    async with connecting(roads, connector, look_up=look_up):
        await trio.sleep(0.75)
    rounds = 4
    assert [url for _, url in roads.tries] == tries * rounds


# The end.


async def test_a_router_that_ends_closes_what_it_opened_and_connects_no_more(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    async with Router(id="B") as far:
        roads.lead_to(far)
        async with connecting(roads) as near:
            await until_connected(near)
        assert near.statistics().is_empty
        await trio.sleep(60.0)
        assert len(roads.tries) == 1
    assert far.statistics().is_empty


async def test_a_drain_waits_for_what_came_over_a_connector_and_ends_those_that_wait(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    async with (
        Router(id="B") as far,
        connecting(roads, container(), ConnectorConfig(url=OTHER, role="container")) as near,
    ):
        roads.lead_to(far)
        await until(lambda: near.statistics().connectors[0].state is ConnectorState.CONNECTED)
        async with near.sender("q") as sender, near.receiver("q") as receiver:
            sending = Call(nursery, sender.send, "hello")
            async with await receiver.receive():
                drained = Call(nursery, near.drain)
                await wait_all_tasks_blocked()
                states = [each.state for each in near.statistics().connectors]
                assert states == [ConnectorState.CONNECTED, ConnectorState.ENDED]
            await sending.result()
            assert await drained.result()
        assert [each.state for each in near.statistics().connectors] == [ConnectorState.ENDED] * 2
        tries = len(roads.tries)
        await trio.sleep(60.0)
        assert len(roads.tries) == tries


async def test_a_router_that_has_drained_connects_no_more_to_the_process_that_it_takes_over(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    async with Router(id="A.old", open_stream=roads.open) as router:
        succession_of(router).join("/nowhere/door")
        await until(lambda: len(roads.tries) > 3)
        await router.drain()
        tries = len(roads.tries)
        await trio.sleep(60.0)
        assert len(roads.tries) == tries


@pytest.mark.parametrize("ends", ["cancelled", "left"])
async def test_a_router_ends_at_once_while_a_connector_is_connecting(
    ends: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    started = trio.Event()

    async def never(endpoint: Endpoint) -> trio.abc.Stream:
        started.set()
        await trio.sleep_forever()
        raise AssertionError("it does not end")

    began = trio.current_time()
    with trio.CancelScope() as scope:
        async with Router(connectors=[container()], open_stream=never) as router:
            await started.wait()
            if ends == "cancelled":
                scope.cancel()
                await trio.sleep_forever()
    assert trio.current_time() - began < 1.0
    assert router.statistics().is_empty


async def test_a_peer_that_does_not_answer_the_close_holds_nobody_up(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)

    async def opens_and_sleeps(stream: trio.abc.Stream) -> None:
        async for engine, event in served(stream):
            if isinstance(event, ConnectionOpened):
                engine.open()
                await stream.send_all(engine.data_to_send(trio.current_time()))
                await trio.sleep_forever()

    roads.lead_to(opens_and_sleeps)
    async with connecting(roads, container(idle_time_out=0.0)) as router:
        await until_connected(router)
        began = trio.current_time()
    assert trio.current_time() - began == pytest.approx(1.0, abs=0.3)
    assert router.statistics().is_empty
    nursery.cancel_scope.cancel()


# Who is who.


async def test_a_user_is_shown_by_its_password(
    nursery: trio.Nursery, autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_user(tmp_path / "users.toml", "alice", "secret", MIN_ITERATIONS)
    (tmp_path / "password").write_text("wrong\nthe second line\n")
    listener = ListenerConfig(
        url="amqp://127.0.0.1:5672", name="in", sasl=("SCRAM-SHA-256",), users=tmp_path / "users.toml"
    )
    connector = container(user="alice", password=PasswordConfig(file=tmp_path / "password"))
    roads = Roads(nursery)
    async with Router(id="B") as far, connecting(roads, connector) as near:
        roads.lead_to(far, listener=listener)
        await until(lambda: told(near).failures)
        assert told(near).reason == "not let in: the server does not accept the credentials (auth)"
        (tmp_path / "password").write_text("secret\n")
        near.reload()
        await until_connected(near)
        (come,) = far.statistics().connections
        assert (come.user, come.mechanism) == ("alice", "SCRAM-SHA-256")


@pytest.mark.parametrize(
    ("password", "reason"),
    [
        (PasswordConfig(env="NO_SUCH_VARIABLE"), "NO_SUCH_VARIABLE is not set"),
        (PasswordConfig(file=Path("/nonexistent")), "No such file or directory"),
        (PasswordConfig(file=Path("/dev/null")), "its first line is empty"),
    ],
)
async def test_a_password_that_is_not_there_is_told_at_the_start(password: PasswordConfig, reason: str) -> None:
    router = Router(connectors=[container(user="alice", password=password)])
    with pytest.raises(ConfigError, match=reason):
        await router.__aenter__()


async def test_a_password_comes_from_the_environment(
    nursery: trio.Nursery, autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_PASSWORD", "secret")
    add_user(tmp_path / "users.toml", "alice", "secret", MIN_ITERATIONS)
    listener = ListenerConfig(url="amqp://127.0.0.1:1", sasl=("SCRAM-SHA-1",), users=tmp_path / "users.toml")
    roads = Roads(nursery)
    connector = container(user="alice", password=PasswordConfig(env="BROKER_PASSWORD"))
    async with Router(id="B") as far, connecting(roads, connector) as near:
        roads.lead_to(far, listener=listener)
        await until_connected(near)


async def test_an_insecure_mesh_is_joined_on_loopback_by_url(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    url = "amqp://127.0.0.1:5700"
    mesh = MeshConfig(insecure=True)
    listener = ListenerConfig(url=url, name="mesh", role="mesh")
    async with (
        Router(RouterConfig(id="B", mesh=mesh)) as far,
        Router(id="A", mesh=mesh, connectors=[url], open_stream=roads.open) as near,
    ):
        roads.lead_to(far, url, listener)
        await until_connected(near)
        (come,) = far.statistics().connections
        assert (come.role, come.container_id, come.mechanism) == ("mesh", "A", "ANONYMOUS")


# Over TLS, and real sockets.


class Certificates:
    """The files of a mesh."""

    def __init__(self, folder: Path, name: str = "mill") -> None:
        self.folder = folder
        self.authority = Authority.create(name, time.time())
        self.trust = folder / "mesh-ca.pem"
        self.trust.write_bytes(certificate_pem(self.authority.certificate))

    def issue(self, router: str, *, file: str | None = None) -> MeshConfig:
        """Return a router's certificate and key."""
        key = Ed25519PrivateKey.generate()
        certificate = self.authority.issue(router, key.public_key(), time.time())
        name = file or router
        (self.folder / f"{name}.pem").write_bytes(certificate_pem(certificate))
        (self.folder / f"{name}.key").write_bytes(key_pem(key))
        return MeshConfig(certificate=self.folder / f"{name}.pem", key=self.folder / f"{name}.key", trust=self.trust)


def port_of(router: Router) -> int:
    return Endpoint.parse(router.listeners[0].url).port


async def test_neighbours_connect_with_certificates_of_their_mesh(tmp_path: Path) -> None:
    mesh = Certificates(tmp_path)
    listener = ListenerConfig(url="amqps://127.0.0.1:0", role="mesh")
    with trio.fail_after(60):
        async with Router(id="B", mesh=mesh.issue("B"), listeners=[listener]) as far:
            # The port before it is one where nobody listens.
            urls = (f"amqps://127.0.0.1:{unused()}", f"amqps://localhost:{port_of(far)}")
            connector = ConnectorConfig(url=urls, cost=3)
            async with Router(id="A", mesh=mesh.issue("A"), connectors=[connector]) as near:
                await until_connected(near)
                await until(lambda: far.statistics().connections[0].container_id)
                (out,), (come,) = near.statistics().connections, far.statistics().connections
                assert (out.role, out.cost, out.user) == ("mesh", 3, "amqpmesh://mill/router/B")
                assert (come.role, come.mechanism, come.user) == ("mesh", "EXTERNAL", "amqpmesh://mill/router/A")
                assert (out.tls, come.tls) == ("TLSv1.3", "TLSv1.3")
    assert near.statistics().is_empty
    assert far.statistics().is_empty


async def test_a_router_of_another_mesh_is_told_of_as_such_by_either_side(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("mill", "other"):
        (tmp_path / name).mkdir()
    mesh, other = Certificates(tmp_path / "mill"), Certificates(tmp_path / "other", "other")
    listener = ListenerConfig(url="amqps://127.0.0.1:0", role="mesh")
    said = "it is not of the authority of this mesh"
    with trio.fail_after(60):
        async with Router(id="B", mesh=mesh.issue("B"), listeners=[listener]) as far:
            connector = ConnectorConfig(url=f"amqps://127.0.0.1:{port_of(far)}")
            async with Router(id="A", mesh=other.issue("A"), connectors=[connector]) as near:
                await until(lambda: near.statistics().connectors[0].reason)
                reason = near.statistics().connectors[0].reason or ""
                assert reason.startswith("TLS: ")
                assert reason.endswith(f": {said}")
            stranger = other.issue("C")
            assert stranger.certificate is not None
            assert stranger.key is not None
            context = mesh_contexts(stranger.certificate, stranger.key, mesh.trust)[1]
            stream = trio.SSLStream(await trio.open_tcp_stream("127.0.0.1", port_of(far)), context)
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()
            (reason,) = (
                str(fields_of(each)["reason"])
                for each in caplog.records
                if event_of(each) == "TLS handshake failed" and said in str(fields_of(each)["reason"])
            )
            assert reason.endswith(f": {said}")
            await trio.aclose_forcefully(stream)


def unused() -> int:
    """Return a free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


async def test_a_neighbour_that_it_is_sent_to_shows_a_certificate_of_the_mesh(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    mesh, other = Certificates(tmp_path), Certificates(tmp_path / "other")
    listener = ListenerConfig(url="amqps://127.0.0.1:0", role="mesh")
    with trio.fail_after(60):
        async with (
            Router(id="B", mesh=mesh.issue("B"), listeners=[listener]) as far,
            Router(id="C", mesh=other.issue("C"), listeners=[listener]) as stranger,
        ):
            for to, allowed in ((far, True), (stranger, False)):
                moved = replace(listener, redirect=PlaceConfig(network_host="127.0.0.1", port=port_of(to)))
                async with Router(id="A", mesh=mesh.issue("A"), listeners=[moved]) as first:
                    url = first.listeners[0].url
                    async with Router(id="N", mesh=mesh.issue("N"), connectors=[url]) as near:
                        if allowed:
                            await until(lambda: [each.router for each in near.statistics().neighbours] == ["B"])
                            assert told(near).redirected_from == url
                        else:
                            await until(lambda: "TLS" in (told(near).reason or ""))
                            assert not near.statistics().neighbours
    assert not stranger.statistics().connections


async def test_certificates_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    mesh, other = Certificates(tmp_path), Certificates(tmp_path / "other")
    listener = ListenerConfig(url="amqps://127.0.0.1:0", role="mesh")
    ours = other.issue("A")
    with trio.fail_after(60):
        async with Router(id="B", mesh=mesh.issue("B"), listeners=[listener]) as far:
            url = f"amqps://127.0.0.1:{port_of(far)}"
            async with Router(id="A", mesh=ours, connectors=[url], backoff=Backoff(0.01, 0.01)) as near:
                await until(lambda: told(near).failures)
                assert str(told(near).reason).startswith("TLS: ")
                assert ours.certificate is not None
                assert ours.key is not None
                issued = mesh.issue("A")
                for name in ("certificate", "key", "trust"):
                    getattr(ours, name).write_bytes(getattr(issued, name).read_bytes())
                near.reload()
                await until_connected(near)


async def test_a_neighbour_without_a_good_certificate_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    mesh, other = Certificates(tmp_path), Certificates(tmp_path / "other")
    listener = ListenerConfig(url="amqps://127.0.0.1:0", role="mesh")
    theirs = other.issue("A")
    assert theirs.trust is not None
    both = tmp_path / "both.pem"  # it believes the other, and is not believed
    both.write_bytes(mesh.trust.read_bytes() + theirs.trust.read_bytes())
    stranger = replace(theirs, trust=both)
    with trio.fail_after(60):
        async with Router(id="B", mesh=mesh.issue("B"), listeners=[listener]) as far:
            url = f"amqps://127.0.0.1:{port_of(far)}"
            async with Router(id="A", mesh=stranger, connectors=[url]) as near:
                await until(lambda: told(near).failures)
                # What was written before the peer left may have reset the connection.
                assert str(told(near).reason).endswith(": does it believe our certificate?")
                assert not far.statistics().connections


async def test_a_container_must_be_the_host_that_the_url_names(tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "b.pem"))
    leaf.private_key_pem.write_to_path(str(tmp_path / "b.key"))
    listener = ListenerConfig(
        url="amqps://127.0.0.1:0", tls=TlsConfig(certificate=tmp_path / "b.pem", key=tmp_path / "b.key")
    )
    with trio.fail_after(60):
        async with Router(id="B", listeners=[listener]) as far:
            port = port_of(far)
            tls = ConnectorTlsConfig(trust=tmp_path / "ca.pem")
            wrong = container(f"amqps://127.0.0.1:{port}", tls=tls)
            right = replace(wrong, url=f"amqps://localhost:{port}", name="right")
            async with Router(id="A", connectors=[wrong, right]) as near:
                await until(lambda: near.statistics().connectors[0].failures)
                await until(lambda: near.statistics().connectors[1].state is ConnectorState.CONNECTED)
                first = near.statistics().connectors[0]
                assert str(first.reason).startswith("TLS: IP address mismatch")
