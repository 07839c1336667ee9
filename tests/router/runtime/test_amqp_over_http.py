"""AMQP through WebSockets at the path /amqp of a listener for HTTP: the same port as its pages."""

from __future__ import annotations

import importlib.util
import ssl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from amqpmesh import ConfigError, ListenerConfig, Message, Router, TlsConfig, connect
from amqpmesh.router.amqp.errors import SaslError
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Close, Disposition, Open, Transfer
from amqpmesh.router.config.users import Users
from amqpmesh.router.runtime import http_server
from tests.support.peers.http_client import HttpClient, basic
from tests.support.peers.scripted_stream import AMQP, Peer, credit, frame
from tests.support.peers.scripted_stream import connect as connect_tcp
from tests.support.peers.websockets import BINARY, answer_of, over_websocket, read_all, request, ws_frame
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY

PAGES = ListenerConfig(url="http://127.0.0.1:0", role="http", amqp=True)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.001)


async def asked(router: Router, octets: bytes) -> tuple[trio.abc.Stream, int]:
    """Send a request. Returns: the connection, and the status of the answer."""
    stream = await trio.open_tcp_stream("127.0.0.1", int(router.listeners[0].url.rpartition(":")[2]))
    await stream.send_all(octets)
    status, _ = await answer_of(stream)
    return stream, status


async def peer_of(router: Router) -> Peer:
    return await over_websocket(await connect_tcp(router), "/amqp")


def url_of(router: Router) -> str:
    return router.listeners[0].url.replace("http", "ws", 1) + "/amqp"


async def test_messages_and_pages_go_through_one_port() -> None:
    async with Router(listeners=[PAGES, "amqp://127.0.0.1:0"]) as router:
        receiver = await peer_of(router)
        await receiver.attach(Role.RECEIVER, "q")
        await receiver.write(credit(10))
        sender = await connect_tcp(router, 1)
        await sender.attach(Role.SENDER, "q")
        for number, size in enumerate((0, 10, 16_000)):
            await sender.send(number, bytes(size))
            transfer = await receiver.expect(Transfer)
            assert len(receiver.payload) == size + 8
            await receiver.accept(transfer)
            await sender.expect(Disposition)
        assert (await HttpClient.of(router).get("/healthz")).status == 200
        assert {each.listener for each in router.statistics().connections} == {"http", "amqp"}
        await until(lambda: router.statistics().listeners[0].connections == 1)
        await receiver.close()
        await sender.close()
        await until(lambda: router.statistics().listeners[0].connections == 0)
    assert router.statistics().is_empty


async def test_octets_behind_the_request_are_the_first_ones_of_the_websocket() -> None:
    async with Router(id="A", listeners=[PAGES]) as router:
        opening = ws_frame(BINARY, AMQP) + ws_frame(BINARY, frame(Open(container_id="peer")))
        stream, status = await asked(router, request("/amqp") + opening)
        assert status == 101
        assert (await stream.receive_some(10)).endswith(AMQP)
        await stream.aclose()
    assert router.statistics().is_empty


@pytest.mark.parametrize(
    ("octets", "status"),
    [
        (request("/amqp", host="evil.example"), 421),
        (request("/amqp", origin="http://evil.example"), 403),
        (request("/amqp", origin="null"), 403),
        (request("/amqp", sec_websocket_protocol="mqtt"), 400),
        (request("/amqp", sec_websocket_version="8"), 426),
        (request("/amqp", upgrade=None), 426),
        (request("/amqp", method="POST"), 405),
        (request("/amqp/x"), 404),
    ],
)
async def test_other_requests_are_refused(octets: bytes, status: int) -> None:
    async with Router(listeners=[PAGES]) as router:
        stream, told = await asked(router, octets)
        assert told == status
        await stream.aclose()


async def test_pages_of_the_listener_and_of_configured_origins_are_let_in() -> None:
    async with Router(listeners=[replace(PAGES, origins=("https://shop.example",))]) as router:
        port = router.listeners[0].url.rpartition(":")[2]
        for origin, host in (("https://shop.example", "127.0.0.1"), (f"http://127.0.0.1:{port}", f"127.0.0.1:{port}")):
            stream, status = await asked(router, request("/amqp", origin=origin, host=host))
            assert status == 101
            await stream.aclose()


async def test_it_is_off_unless_the_listener_has_it() -> None:
    async with Router(listeners=[replace(PAGES, amqp=False)]) as router:
        stream, status = await asked(router, request("/amqp"))
        assert status == 404
        await stream.aclose()
    with pytest.raises(ConfigError, match="amqp: does nothing"):
        ListenerConfig(url="amqp://127.0.0.1:0", amqp=True)


async def test_without_wsproto_it_says_which_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(http_server, "find_spec", lambda name: None if name == "wsproto" else found(name))
    async with Router(listeners=[PAGES]) as router:
        stream, status = await asked(router, request("/amqp"))
        assert status == 501
        assert b"amqpmesh[websocket]" in await read_all(stream)
        await stream.aclose()


async def test_sasl_alone_shows_who_somebody_is(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    Users({}).add("ada", "right", 4096).save(file)
    listener = replace(PAGES, sasl=("PLAIN",), users=file, insecure=True)
    async with Router(listeners=[listener]) as router:
        # What a browser remembers and adds to each request is no login.
        stream, status = await asked(router, request("/amqp", authorization=basic("ada", "right")))
        assert status == 101
        await stream.send_all(ws_frame(BINARY, AMQP))
        assert b"AMQP\x03\x01\x00\x00" in await read_all(stream)
        await stream.aclose()
        async with connect(url_of(router), user="ada", password="right", mechanisms=("PLAIN",)):
            (found,) = router.statistics().connections
            assert (found.user, found.mechanism, found.listener) == ("ada", "PLAIN", "http")
        with pytest.raises(SaslError):
            async with connect(url_of(router), user="ada", password="wrong", mechanisms=("PLAIN",)):
                pass
    assert router.statistics().is_empty


async def test_a_certificate_shown_below_https_is_a_login(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "trust.pem")
    for name in ("localhost", "ada@example.org"):
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{name}.pem")
    mine = tmp_path / "localhost.pem"
    tls = TlsConfig(certificate=mine, key=mine, trust=tmp_path / "trust.pem", client="required")
    listener = ListenerConfig(
        url="https://127.0.0.1:0", role="http", amqp=True, hosts=("localhost",), sasl=("EXTERNAL",), tls=tls
    )
    context = ssl.create_default_context(cafile=str(tmp_path / "trust.pem"))
    context.load_cert_chain(tmp_path / "ada@example.org.pem")
    async with Router(listeners=[listener, "amqp://127.0.0.1:0"]) as router:
        url = url_of(router).replace("127.0.0.1", "localhost")
        async with (
            connect(url, tls=context, mechanisms=("EXTERNAL",)) as client,
            client.receiver("q") as q,
            connect(router.listeners[1].url) as writer,
            writer.sender("q") as sender,
            trio.open_nursery() as nursery,
        ):
            found = router.statistics().connections[0]
            assert (found.user, found.mechanism) == ("ada@example.org", "EXTERNAL")
            nursery.start_soon(sender.send, Message(b"x" * 100_000))
            async with await q.receive() as message:
                assert len(message.body) == 100_000
    assert router.statistics().is_empty


async def test_connections_are_limited_as_those_of_other_listeners(caplog: pytest.LogCaptureFixture) -> None:
    async with Router(listeners=[replace(PAGES, connections=1)]) as router:
        first = await peer_of(router)
        await first.open()
        stream, status = await asked(router, request("/amqp"))
        assert status == 503
        assert b"too many connections" in await read_all(stream)
        await stream.aclose()
        assert (await HttpClient.of(router).get("/healthz")).status == 200
        await first.close()
        await until(lambda: router.statistics().listeners[0].connections == 0)
        again = await peer_of(router)
        await again.open()
        await again.close()
    assert router.statistics().is_empty


async def test_a_router_that_ends_closes_them_in_good_order() -> None:
    async with Router(listeners=[PAGES]) as router, trio.open_nursery() as nursery:
        peer = await peer_of(router)
        await peer.attach(Role.RECEIVER, "q")
        closed: list[Any] = []

        async def hear() -> None:
            closed.append(await peer.expect(Close))
            await peer.write(Close())

        nursery.start_soon(hear)
        await router.drain()
    assert closed[0].error is not None
    await peer.stream.aclose()
    assert router.statistics().is_empty
