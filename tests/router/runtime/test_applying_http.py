"""Listeners for HTTP that come, change and go while the router runs."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest
import trio

from amqpmesh import ConnectionClosedError, HttpConfig, ListenerConfig, Router, connect
from amqpmesh.router.config.file import RouterConfig
from amqpmesh.router.config.tables import Effect
from amqpmesh.router.io.handshake import UNKNOWN
from amqpmesh.router.io.streams import TcpStream
from amqpmesh.router.logs.event_log import event_of, fields_of
from amqpmesh.router.management.service import ADDRESS
from amqpmesh.router.runtime.http_calls import Share
from tests.router.management.test_config_edits import ask
from tests.support.peers.http_client import PATIENCE, HttpClient

AMQP = ListenerConfig(url="amqp://127.0.0.1:0", name="amqp", manage=True)
HTTP = ListenerConfig(url="http://127.0.0.1:0", name="http", role="http")


def config(*listeners: ListenerConfig) -> RouterConfig:
    return RouterConfig(id="A", drain=0.0, listeners=listeners)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


async def held(client: HttpClient) -> trio.abc.Stream:
    """Return a connection that the router has accepted, and that stays open after a request."""
    stream = await client.connect()
    await stream.send_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    answer = bytearray()
    with trio.fail_after(PATIENCE):
        while not answer.endswith(b"ok\n"):
            answer += await stream.receive_some()
    return stream


async def ends(stream: trio.abc.Stream) -> bool:
    async with stream:
        with trio.fail_after(PATIENCE):
            try:
                return not await stream.receive_some()
            except trio.BrokenResourceError:
                return True


async def is_refused(client: HttpClient) -> bool:
    try:
        await client.get("/healthz")
    except OSError:
        return True
    return False


async def test_one_comes_and_goes_and_its_port_is_free_at_once() -> None:
    http = replace(HTTP, url=f"http://127.0.0.1:{free_port()}")
    async with (
        Router(config(AMQP)) as router,
        connect(router.listeners[0].url) as client,
        client.receiver("q"),
        client.sender("q") as sender,
    ):
        for _ in range(3):
            applied = await router.apply(config(AMQP, http))
            assert [(each.key, each.needs_restart) for each in applied.differences] == [("listener[http]", False)]
            web = HttpClient.of(router, 1)
            assert (await web.get("/readyz")).status == 200
            assert "amqpmesh_" in (await web.get("/metrics")).body.decode()
            open_one = await held(web)
            await router.apply(config(AMQP))
            assert await is_refused(web)
            assert await ends(open_one), "its connections are closed, too"
        await sender.transfer(b"", settled=True)
        assert [each.name for each in router.statistics().listeners] == ["amqp"]


async def test_it_has_its_new_keys_at_once_and_its_connections_begin_anew() -> None:
    async with Router(config(AMQP, HTTP)) as router:
        web = HttpClient.of(router, 1)
        named = HttpClient.of(router, 1, host="router.example")
        assert (await named.get("/healthz")).status == 421
        open_one = await held(web)
        assert (await web.get("/api/user")).status == 403
        changed = replace(HTTP, hosts=("router.example",), manage=True, http=HttpConfig(connections=7))
        applied = await router.apply(config(AMQP, changed))
        assert {each.key: each.effect for each in applied.differences} == {
            "listener[http].manage": Effect.AT_ONCE,
            "listener[http].hosts": Effect.NEW_CONNECTIONS,
            "listener[http].http": Effect.NEW_CONNECTIONS,
        }
        assert await ends(open_one)
        assert (await named.get("/healthz")).status == 200
        assert (await web.get("/api/user")).status == 200
        await router.apply(config(AMQP, HTTP))
        assert (await named.get("/healthz")).status == 421
        assert (await web.get("/api/user")).status == 403


async def test_it_moves_to_another_url() -> None:
    here, there = (replace(HTTP, url=f"http://127.0.0.1:{free_port()}") for _ in range(2))
    async with Router(config(AMQP, here)) as router:
        before = HttpClient.of(router, 1)
        assert (await before.get("/healthz")).status == 200
        applied = await router.apply(config(AMQP, there))
        assert [each.effect for each in applied.differences] == [Effect.BOUND_ANEW]
        assert (await HttpClient.of(router, 1).get("/healthz")).status == 200
        assert await is_refused(before)


async def test_a_port_in_use_changes_nothing() -> None:
    async with Router(config(AMQP)) as router:
        taken = router.listeners[0].url.replace("amqp://", "http://")
        with pytest.raises(OSError, match="in use"):
            await router.apply(config(AMQP, replace(HTTP, url=taken)))
        assert [each.name for each in router.listeners] == ["amqp"]
        await router.apply(config(AMQP, HTTP))
        assert (await HttpClient.of(router, 1).get("/healthz")).status == 200


async def test_websockets_stay_when_it_changes_and_end_with_it() -> None:
    http = replace(HTTP, amqp=True)
    async with Router(config(AMQP, http)) as router:
        url = router.listeners[1].url.replace("http://", "ws://") + "/amqp"
        async with connect(url) as client, client.receiver("q") as receiver:
            await router.apply(config(AMQP, replace(http, hosts=("router.example",))))
            async with client.sender("q") as sender, trio.open_nursery() as nursery:
                nursery.start_soon(sender.send, b"hello")
                (await receiver.receive()).accept()
            await router.apply(config(AMQP))
            with trio.fail_after(PATIENCE), pytest.raises(ConnectionClosedError):
                await receiver.receive()


async def test_a_websocket_that_comes_while_its_listener_goes_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    http = replace(HTTP, amqp=True)
    async with Router(config(AMQP, http)) as router:
        listener = router._edge.listeners[1]
        await router.apply(config(AMQP))
        ours, theirs = socket.socketpair()
        with theirs:
            # The thread has answered the request for it before the change.
            router._admission.admit_opened(listener, TcpStream(ours), "127.0.0.1", UNKNOWN)
            assert ours.fileno() == -1
        assert listener.websockets == 0
    assert not [each for each in caplog.records if event_of(each) == "internal error"]


async def test_management_creates_and_deletes_it() -> None:
    keys: dict[Any, Any] = {"url": "http://127.0.0.1:0", "role": "http"}
    async with (
        Router(config(AMQP)) as router,
        connect(router.listeners[0].url) as client,
        client.requester(ADDRESS) as requester,
    ):
        status, _ = await ask(requester, "CREATE", keys, type="listener", name="web")
        assert status == 201
        web = HttpClient.of(router, 1)
        assert (await web.get("/healthz")).status == 200
        assert router.statistics().router.changed == ("listener[web]",)
        assert (await ask(requester, "DELETE", type="listener", name="web"))[0] == 204
        assert await is_refused(web)


async def test_an_internal_error_at_one_leaves_all_of_them_served_also_those_to_come(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turn, faults = Share.turn, iter([True])

    async def fails_once(self: Share, network: str = "") -> None:
        if next(faults, False):
            raise AssertionError("a fault of ours")
        await turn(self, network)

    monkeypatch.setattr(Share, "turn", fails_once)
    async with Router(config(AMQP, HTTP)) as router:
        assert (await HttpClient.of(router, 1).get("/healthz")).status == 200
        await router.apply(config(AMQP, HTTP, replace(HTTP, name="more")))
        assert (await HttpClient.of(router, 2).get("/healthz")).status == 200
    (told,) = [each for each in caplog.records if event_of(each) == "internal error"]
    assert fields_of(told)["listener"] == "http"
