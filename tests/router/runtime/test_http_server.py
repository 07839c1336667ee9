"""Listeners for HTTP of a running router: health, logins, rights, changes, and its end."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trustme

from amqpmesh import (
    CommandError,
    ConfigError,
    HttpConfig,
    ListenerConfig,
    Login,
    PolicyConfig,
    Router,
    TlsConfig,
    TokenIssuerConfig,
    UserIdentity,
    connect,
)
from amqpmesh.router.config.users import Users
from amqpmesh.router.runtime import credentials
from amqpmesh.router.runtime.http_calls import STANDS_STILL, RouterCalls
from amqpmesh.router.runtime.snapshots import Work
from tests.support.data import tokens
from tests.support.peers.http_client import PATIENCE, HttpClient, basic

if TYPE_CHECKING:
    from trio.testing import MockClock

    from amqpmesh.router.config.user_checks import UserCheck
    from amqpmesh.router.incremental import Steps

PLAIN = ListenerConfig(url="http://127.0.0.1:0", role="http", manage=True)
AMQP = ListenerConfig(url="amqp://127.0.0.1:0")
CHANGE = {"x_amqpmesh_change": "1"}
JSON = {**CHANGE, "content_type": "application/json"}


@pytest.fixture
def users(tmp_path: Path) -> Path:
    file = tmp_path / "users.toml"
    Users({}).add("ada", "right", 4096).add("bob", "right", 4096).save(file)
    return file


def asking(users: Path | UserCheck, **settings: Any) -> ListenerConfig:
    return ListenerConfig(
        url="http://127.0.0.1:0", role="http", sasl=("PLAIN",), users=users, insecure=True, **settings
    )


# -------------------------------------------------------------------------------------------------------------- health


async def test_a_router_is_healthy_until_its_loop_stands_still_and_once_it_goes_on() -> None:
    async with Router(id="A", listeners=[PLAIN]) as router:
        client = HttpClient.of(router)
        for path in ("/healthz", "/readyz"):
            assert (await client.get(path)).status == 200
        told: list[int] = []
        release = threading.Event()

        def probe() -> None:
            told.append(trio.run(client.get, "/healthz").status)
            release.set()

        thread = threading.Thread(target=probe)
        thread.start()
        release.wait(PATIENCE)  # the loop stands still
        thread.join(PATIENCE)
        assert told == [503]
        assert (await client.get("/healthz")).status == 200


async def test_a_loop_that_stands_still_is_told_within_two_seconds(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RouterCalls, "soon", lambda *_: None)  # the router's loop does nothing
    calls = RouterCalls(lambda _: None, lambda: None)
    assert not await calls.is_alive()
    assert autojump_clock.current_time() < 2.0
    assert await calls.why_not_ready() == STANDS_STILL  # the first question has no answer yet
    assert autojump_clock.current_time() < 4.0


async def test_a_router_that_drains_is_healthy_and_takes_no_clients() -> None:
    async with Router(id="A", listeners=[PLAIN, AMQP], drain=30.0) as router, trio.open_nursery() as nursery:
        client = HttpClient.of(router)
        async with (
            connect(router.listeners[1].url) as peer,
            peer.receiver("a") as receiver,
            peer.sender("a") as sender,
        ):
            sent = await sender.transfer("x")
            delivery = await receiver.receive()
            nursery.start_soon(router.drain)
            while (found := await client.get("/readyz")).status == 200:
                await trio.sleep(0)
            assert (found.status, found.body) == (503, b"the router drains\n")
            assert (await client.get("/healthz")).status == 200
            assert (await client.get("/api/router")).json["router"][0]["draining"] is True
            delivery.accept()
            await sent.outcome()
    assert router.statistics().is_empty


async def test_a_router_that_moves_its_clients_is_not_ready_from_the_first_moment() -> None:
    async with Router(id="A", listeners=[PLAIN, AMQP]) as router:
        client = HttpClient.of(router)
        async with (
            connect(router.listeners[1].url) as peer,
            peer.receiver("a") as receiver,
            peer.sender("a") as sender,
            trio.open_nursery() as nursery,
        ):
            sent = await sender.transfer("x")
            delivery = await receiver.receive()
            assert (await client.get("/readyz")).status == 200
            nursery.start_soon(router.move_clients)
            await trio.lowlevel.checkpoint()
            assert (await client.get("/readyz")).status == 503
            assert (await client.get("/api/router")).json["router"][0]["moving"] == 1
            delivery.accept()
            await sent.outcome()
        assert (await client.get("/readyz")).status == 503
        assert (await client.get("/healthz")).status == 200
    assert router.statistics().is_empty


async def test_probes_take_no_login_and_change_nothing(users: Path) -> None:
    async with Router(id="A", listeners=[asking(users)]) as router:
        client = HttpClient.of(router)
        assert (await client.get("/healthz")).status == 200
        assert (await client.ask("HEAD", "/readyz")).status == 200
        assert (await client.ask("DELETE", "/healthz", **CHANGE)).status == 405
        assert (await client.get("/healthz", host="evil.example")).status == 421


# ---------------------------------------------------------------------------------------------------------------- pages


async def test_entities_are_those_of_management() -> None:
    async with Router(id="A", listeners=[PLAIN, AMQP]) as router, connect(router.listeners[1].url) as peer:
        client = HttpClient.of(router)
        async with peer.receiver("news/a"):
            whole = (await client.get("/api")).json
            assert [each["name"] for each in whole["address"]] == ["news/a"]
            assert whole["listener"][0]["role"] == "http"
            assert whole["router"][0]["id"] == "A"
            assert (await client.get("/api/address")).json == {"address": whole["address"]}
            for path in ("/api/address/news/a", "/api/address/news%2Fa"):
                found = await client.get(path)
                assert found.headers["content-type"] == "application/json"
                assert found.json["consumers"] == 1
        assert "access-control-allow-origin" not in (await client.get("/api/router")).headers
        for path in ("/index.html", "/api/nothing", "/api/address/none", "/apifoo", "/api/../etc/passwd"):
            assert (await client.get(path)).status == 404
        assert (await client.ask("POST", "/api/router", **CHANGE)).status == 405
        assert (await client.ask("PUT", "/api/router")).status == 405
    assert router.statistics().is_empty


async def test_a_long_list_comes_in_parts_that_the_router_makes_as_they_are_read() -> None:
    async with (
        Router(id="A", listeners=[PLAIN, AMQP]) as router,
        connect(router.listeners[1].url) as peer,
        trio.open_nursery() as nursery,
    ):
        for number in range(200):
            nursery.start_soon(_hold, peer, f"{'long' * 20}/{number}", nursery)
        while len(router.statistics().links) < 200:
            await trio.sleep(0.01)
        found = await HttpClient.of(router).get("/api")
        assert len(found.json["link"]) == 200
        assert len(found.body) > 2 * 2**16
        nursery.cancel_scope.cancel()
    assert router.statistics().is_empty


async def _hold(peer: Any, address: str, nursery: trio.Nursery) -> None:
    async with peer.receiver(address):
        await trio.sleep_forever()


async def test_metrics_come_in_the_format_that_a_scraper_asks_for() -> None:
    async with Router(id="A", listeners=[PLAIN, AMQP]) as router, connect(router.listeners[1].url) as peer:
        client = HttpClient.of(router)
        async with peer.receiver("news"):
            plain = await client.get("/metrics")
            asked = await client.get("/metrics?x", accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
            assert asked.status == 400
            asked = await client.get("/metrics", accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
            assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert asked.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
            assert b"# TYPE amqpmesh_deliveries_total counter\n" in plain.body
            assert b"# TYPE amqpmesh_deliveries counter\n" in asked.body
            assert asked.body.endswith(b"# EOF\n")
            assert b'amqpmesh_receivers{address="news",tenant=""} 1\n' in plain.body
            assert b'amqpmesh_listener_connections{listener="amqp"} 1\n' in plain.body
            found = await client.get("/metrics?address=news")
            assert b'amqpmesh_receivers{address="news",tenant=""} 1\n' in found.body
            assert b"amqpmesh_connections" not in found.body
        assert (await client.ask("DELETE", "/metrics", **CHANGE)).status == 405
    assert router.statistics().is_empty


async def test_metrics_are_read_again_after_two_hundred_times_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(self: Work, steps: Steps[bytes]) -> Steps[bytes]:
        self.seconds += 0.01
        return steps

    monkeypatch.setattr(Work, "timed", timed)
    async with Router(id="A", listeners=[PLAIN, AMQP]) as router, connect(router.listeners[1].url) as peer:
        client = HttpClient.of(router)
        before = (await client.get("/metrics")).body
        async with peer.receiver("news"):
            assert (await client.get("/metrics")).body == before
            monkeypatch.setattr("amqpmesh.router.runtime.http_metrics.PART", 0)
            await client.get("/metrics", accept="application/openmetrics-text")  # this work counts, too
            assert b'address="news"' in (await client.get("/metrics")).body


# -------------------------------------------------------------------------------------------------------------- changes


async def test_a_connection_is_removed_as_by_management(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with Router(id="A", listeners=[PLAIN, AMQP]) as router, connect(router.listeners[1].url) as peer:
        client = HttpClient.of(router)
        async with peer.receiver("a"):
            (number,) = [each.number for each in router.statistics().connections]
            path = f"/api/connection/{number}"
            for headers in ({}, {**CHANGE, "origin": "http://evil.example"}):
                assert (await client.ask("DELETE", path, **headers)).status == 403
            assert (await client.ask("PATCH", path, b'{"cost":2}', **CHANGE)).status == 400  # a form could send it
            assert (await client.ask("PATCH", path, b'{"cost":2}', **JSON)).status == 405
            assert (await client.ask("PATCH", "/api/listener/amqp", b'{"cost":0}', **JSON)).status == 400
            assert (await client.ask("PATCH", "/api/listener/amqp", b'[[["x', **JSON)).status == 400
            assert (await client.ask("DELETE", "/api/connection", **CHANGE)).status == 405
            assert router.statistics().router.connections == 1
            assert (await client.ask("DELETE", path, **CHANGE)).status == 204
            while router.statistics().router.connections:
                await trio.sleep(0.01)
            assert (await client.ask("DELETE", path, **CHANGE)).status == 404
    assert any("connection removed" in str(each.msg) for each in caplog.records)


async def test_nothing_is_changed_without_the_right() -> None:
    listener = ListenerConfig(url="http://127.0.0.1:0", role="http")
    async with (
        Router(id="A", listeners=[listener, AMQP]) as router,
        connect(router.listeners[1].url) as peer,
        peer.receiver("a"),
    ):
        (number,) = [each.number for each in router.statistics().connections]
        found = await HttpClient.of(router).ask("DELETE", f"/api/connection/{number}", **CHANGE)
        assert (found.status, found.json) == (403, {"error": "not permitted"})
        assert router.statistics().router.connections == 1


# --------------------------------------------------------------------------------------------------------------- logins


async def test_basic_is_the_listeners_users(users: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with Router(id="A", listeners=[asking(users)], login_failures=100) as router:
        client = HttpClient.of(router)
        refused = await client.get("/api")
        assert refused.status == 401
        assert refused.headers["www-authenticate"].startswith("Basic realm=")
        assert (await client.get("/api", authorization=basic("ada", "right"))).status == 200
        for shown in (
            basic("ada", "wrong"),
            basic("eve", "right"),
            basic("", "right"),
            basic("ada\0ada", "right"),
            "Bearer x",
            "Digest x",
            "",
        ):
            assert (await client.get("/api", authorization=shown)).status == 401
        for shown in ("Basic", "Basic !", "Basic YWRh"):
            assert (await client.get("/api", authorization=shown)).status == 400
        assert "right" not in caplog.text
        Users.load(users).switch("ada", disabled=True).save(users)
        router.reload()
        assert (await client.get("/api", authorization=basic("ada", "right"))).status == 401
        assert (await client.get("/api", authorization=basic("bob", "right"))).status == 200


async def test_a_password_is_checked_once_a_minute(users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    check = Users.verify_plain

    def counted(self: Users, user: str, password: str) -> bool:
        checked.append(user)
        return check(self, user, password)

    monkeypatch.setattr(Users, "verify_plain", counted)
    async with Router(id="A", listeners=[asking(users)]) as router:
        client = HttpClient.of(router)
        for _ in range(5):
            assert (await client.get("/api/router", authorization=basic("ada", "right"))).status == 200
        assert checked == ["ada"]
        monkeypatch.setattr("amqpmesh.router.runtime.http_logins.REMEMBERED_TIME", 0.0)
        router.reload()  # new users, who are asked again
        for _ in range(2):
            assert (await client.get("/api/router", authorization=basic("ada", "right"))).status == 200
        assert len(checked) == 3


async def test_users_of_the_program_are_asked() -> None:
    async def check(login: Login) -> UserIdentity | None:
        return UserIdentity("ada") if (login.user, login.password, login.listener) == ("a", "b", "http") else None

    async with Router(id="A", listeners=[asking(check, name="http")]) as router:
        client = HttpClient.of(router)
        assert (await client.get("/api", authorization=basic("a", "b"))).status == 200
        assert (await client.get("/api", authorization=basic("a", "c"))).status == 401


async def test_bearer_is_a_token_of_an_issuer(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(tokens.key_set(tokens.key("one")))
    issuer = TokenIssuerConfig(issuer=tokens.ISSUER, audience=(tokens.AUDIENCE,), jwks=tmp_path / "keys.json")
    listener = ListenerConfig(url="http://127.0.0.1:0", role="http", sasl=("OAUTHBEARER",))
    async with Router(id="A", listeners=[listener], token_issuers=(issuer,)) as router:
        client = HttpClient.of(router)
        assert "Bearer" in (await client.get("/api")).headers["www-authenticate"]
        now = time.time()
        assert (await client.get("/api", authorization=f"Bearer {tokens.bearer(now)}")).status == 200
        for shown in (tokens.bearer(now - 10_000), "x", "x" * 20_000, tokens.bearer(now, aud="other")):
            assert (await client.get("/api", authorization=f"Bearer {shown}")).status in (401, 431)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[trustme.CA, Path]:
    folder = tmp_path_factory.mktemp("tls")
    made = trustme.CA()
    made.cert_pem.write_to_path(str(folder / "ca.pem"))
    leaf = made.issue_cert("localhost")
    leaf.cert_chain_pems[0].write_to_path(str(folder / "router.pem"))
    leaf.private_key_pem.write_to_path(str(folder / "router.key"))
    return made, folder


POLICY = """
[[tenant]]
name = "one"
match = [{ user = "ada*" }]

[[tenant]]
name = "two"
match = [{ user = "bob*" }, { hostname = "127.0.0.1" }]

[[group]]
tenant = "one"
name = "readers"
users = ["*"]
receive = ["#"]
manage = ["read:address", "read:router"]

[[group]]
tenant = "two"
name = "all"
users = ["*"]
receive = ["#"]
manage = ["write"]
"""


async def test_a_certificate_and_the_policy_choose_what_a_client_sees(
    authority: tuple[trustme.CA, Path], tmp_path: Path
) -> None:
    made, folder = authority
    (tmp_path / "policy.toml").write_text(POLICY, encoding="utf-8")
    tls = TlsConfig(
        certificate=folder / "router.pem", key=folder / "router.key", trust=folder / "ca.pem", client="required"
    )
    http = ListenerConfig(url="https://127.0.0.1:0", role="http", sasl=("EXTERNAL",), tls=tls)
    amqp = ListenerConfig(url="amqps://127.0.0.1:0", sasl=("EXTERNAL",), tls=tls)

    def context(user: str | None) -> ssl.SSLContext:
        found = ssl.create_default_context(cafile=folder / "ca.pem")
        if user is not None:
            made.issue_cert(f"{user}@x.example").configure_cert(found)
        return found

    policy = PolicyConfig(file=tmp_path / "policy.toml")
    async with Router(id="A", listeners=[http, amqp], policy=policy) as router, trio.open_nursery() as nursery:
        (tmp_path / "ada.pem").write_bytes(b"")
        clients = {user: HttpClient.of(router, context=context(user)) for user in ("ada", "bob", "eve", None)}
        for user in ("ada", "bob"):
            leaf = made.issue_cert(f"{user}@x.example")
            leaf.cert_chain_pems[0].write_to_path(str(tmp_path / f"{user}.pem"))
            leaf.private_key_pem.write_to_path(str(tmp_path / f"{user}.key"))
            url = router.listeners[1].url.replace("127.0.0.1", "localhost")
            nursery.start_soon(_receive, url, folder / "ca.pem", tmp_path / user, f"of/{user}")
        while len(router.statistics().links) < 2:
            await trio.sleep(0.01)
        ada = (await clients["ada"].get("/api")).json
        assert set(ada) == {"address", "router"}
        metrics = (await clients["ada"].get("/metrics")).body
        assert b'amqpmesh_receivers{address="of/ada",tenant="one"} 1' in metrics
        assert b"bob" not in metrics
        assert b"two" not in metrics
        assert b"amqpmesh_listener" not in metrics
        assert [each["name"] for each in ada["address"]] == ["of/ada"]
        assert ada["router"][0]["links"] == 1
        bob = (await clients["bob"].get("/api")).json
        assert [each["name"] for each in bob["link"]] != []
        assert "of/ada" not in str(bob)
        assert "ada" not in str(bob)
        link = bob["link"][0]["number"]
        assert (await clients["ada"].get("/api/link")).status == 403
        assert (await clients["ada"].ask("DELETE", f"/api/link/{link}", **CHANGE)).status == 403
        # The host that the request asks for is a hostname of the policy.
        assert (await clients["eve"].get("/api")).status == 403
        assert (await clients["eve"].get("/api", host="127.0.0.1")).status == 200
        with pytest.raises(trio.BrokenResourceError):
            await clients[None].get("/api")
        assert (await clients["bob"].ask("DELETE", f"/api/link/{link}", **CHANGE)).status == 204
        nursery.cancel_scope.cancel()
    assert router.statistics().is_empty


async def _receive(url: str, trust: Path, own: Path, address: str) -> None:
    async with (
        connect(url, trust=trust, certificate=own.with_suffix(".pem"), key=own.with_suffix(".key")) as peer,
        peer.receiver(address) as receiver,
    ):
        try:
            await receiver.receive()
        except Exception:
            await trio.sleep_forever()


# ------------------------------------------------------------------------------------------------- limits, and the end


async def test_idle_clients_keep_nobody_out_and_its_connections_are_no_clients() -> None:
    listener = ListenerConfig(url="http://127.0.0.1:0", role="http", http=HttpConfig(connections=3))
    async with Router(id="A", listeners=[listener], connections=2) as router, trio.open_nursery() as nursery:
        client = HttpClient.of(router)
        held = [await client.connect() for _ in range(6)]
        for each in held[3:]:
            await each.send_all(b"GET / HTTP/1.1\r\nHost")  # a part of a request is no more than none
        assert (await client.get("/healthz")).status == 200
        assert router.statistics().router.connections == 0
        with trio.fail_after(PATIENCE):
            assert await held[0].receive_some(1) == b""
        for each in held:
            await each.aclose()
        nursery.cancel_scope.cancel()
    assert router.listeners[0].connections == 0


async def test_open_connections_and_slow_readers_do_not_delay_the_end() -> None:
    async with Router(id="A", listeners=[PLAIN]) as router:
        client = HttpClient.of(router)
        idle = await client.connect()
        reading = await client.connect()
        for _ in range(20):
            await reading.send_all(b"GET /api HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with trio.move_on_after(PATIENCE) as scope:
            await router.drain()
        assert not scope.cancelled_caught
    await idle.aclose()
    await reading.aclose()
    assert router.statistics().is_empty
    for each in threading.enumerate():
        if each.name == "amqpmesh http":
            each.join(PATIENCE)
            assert not each.is_alive()


async def test_a_stream_of_a_program_is_no_http() -> None:
    async with Router(id="A") as router:
        ours, theirs = trio.testing.memory_stream_pair()
        with pytest.raises(CommandError):
            await router.serve_stream(theirs, PLAIN)
        await ours.aclose()


async def test_without_its_package_it_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"amqpmesh\[http\]"):
        async with Router(id="A", listeners=[PLAIN]):
            pass
