"""Redirects of connections that the client follows, with its identity (§2.8.16)."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.amqp.codec.composite import Registry, decode_composite, encode_composite
from amqpmesh.router.amqp.codec.types import Int, Symbol
from amqpmesh.router.amqp.errors import (
    ConnectionClosedError,
    ConnectionRedirectError,
    InDoubtError,
    LinkRedirectError,
)
from amqpmesh.router.amqp.frames import SASL_FRAME
from amqpmesh.router.amqp.sasl.exchange import SaslCode, SaslInit, SaslMechanisms, SaslOutcome
from amqpmesh.router.amqp.standard.definitions import ConnectionCondition, Error, LinkCondition, Role
from amqpmesh.router.amqp.standard.performatives import Close, Open, Transfer
from amqpmesh.router.client.connect import connect
from amqpmesh.router.config.file import ListenerConfig, PlaceConfig, RouterConfig
from amqpmesh.router.config.users import add_user
from amqpmesh.router.kernel import FrameReader
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import URL, Host, Roads, Serve, enter
from tests.support.peers.scripted import SASL, frame
from tests.support.peers.scripted_server import Counterpart
from tests.support.tasks.calls import Call

B = "amqp://b.example:5672"
C = "amqp://c.example:5672"


def elsewhere(**info: Any) -> Error:
    """Return the error of a redirect."""
    told = {Symbol(key.replace("_", "-")): Int(value) if key == "port" else value for key, value in info.items()}
    return Error(condition=ConnectionCondition.REDIRECT, description="it moved", info=told)


def sends_to(error: Error, opens: list[Open] | None = None, *, slow: bool = False) -> Serve:
    """Return a peer that redirects every client. Args: opens: gets each client's `open`. slow: wait before `close`."""

    async def serve(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        opened = await host.open()
        if opens is not None:
            opens.append(opened)
        if slow:
            await trio.sleep(0.5)
        await host.write(Close(error=error))
        while await host.next_frame() is not None:
            pass
        await stream.aclose()

    return serve


def tried(roads: Roads) -> list[str]:
    return [url for _, url in roads.tries]


@pytest.mark.parametrize("slow", [False, True])
async def test_a_redirected_client_connects_there_and_names_the_host(
    slow: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    opens: list[Open] = []
    b = Counterpart(nursery, credit=1)
    b.mute = {Open}
    roads = b.roads
    roads.lead_to(sends_to(elsewhere(hostname="b.example", network_host="10.0.0.7", port=5673), opens, slow=slow))
    roads.lead_to(b.serve, "amqp://10.0.0.7:5673")
    connecting = roads.connect(mechanisms=(), redirects=["b.example", "10.0.0.7"])

    async def send() -> None:
        async with connecting as connection, connection.sender("q") as sender:
            await sender.send("x")
            assert connection.reconnections == 0

    sending = Call(nursery, send)
    opened = await b.expect(Open)
    assert [each.hostname for each in opens] == ["router.example"]
    assert opened.hostname == "b.example"
    assert opened.container_id == opens[0].container_id
    await b.peer.write(Open(container_id="b"))
    await b.expect(Transfer)
    await b.links[0].accept()
    await sending.result()
    assert tried(roads) == [URL, "amqp://10.0.0.7:5673"]


@pytest.mark.parametrize("certified", ["b.example", "127.0.0.1", "a.example"])
async def test_tls_stays_and_the_certificate_there_has_to_name_the_host(
    certified: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    authority = trustme.CA()
    tls = ssl.create_default_context()
    authority.configure_trust(tls)

    def secured(serve: Serve, name: str) -> Serve:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(name).configure_cert(context)

        async def serve_secured(stream: trio.abc.Stream) -> None:
            with suppress(trio.BrokenResourceError):  # the client has refused our certificate
                await serve(trio.SSLStream(stream, context, server_side=True, https_compatible=True))

        return serve_secured

    async def hear_nothing(stream: trio.abc.Stream) -> None:
        assert not await stream.receive_some()

    b = Counterpart(nursery)
    there = elsewhere(hostname="b.example", network_host="127.0.0.1", port=5672)
    b.roads.lead_to(secured(sends_to(there), "a.example"), "amqps://a.example:5671")
    b.roads.lead_to(secured(b.serve if certified == "b.example" else hear_nothing, certified), "amqps://127.0.0.1:5672")
    connection = b.roads.connect("amqps://a.example:5671", tls=tls, mechanisms=(), redirects=["b.example", "127.0.0.1"])
    if certified == "b.example":
        async with connection, connection.sender("q"):
            assert len(b.links) == 1
    else:
        with pytest.raises(ConnectionClosedError, match="amqps://127.0.0.1:5672: TLS: .*b.example"):
            async with connection, connection.sender("q"):
                raise AssertionError("that is somebody else")
        assert not b.links
    assert tried(b.roads) == ["amqps://a.example:5671", "amqps://127.0.0.1:5672"]


async def test_sasl_names_the_host_too(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    said: list[tuple[str | None, str | None]] = []
    told = elsewhere(hostname="b.example")

    async def serve(stream: trio.abc.Stream) -> None:
        host = Host(stream)
        assert await host.expect_header() == SASL
        offer = SaslMechanisms(sasl_server_mechanisms=(Symbol("ANONYMOUS"),))
        await host.write(SASL, frame(encode_composite(offer), type=SASL_FRAME))
        frames = FrameReader(512)
        frames.feed(await stream.receive_some())
        found = frames.next_frame()
        assert found is not None
        init = decode_composite(Registry(SaslInit), found.body)[0]
        await host.write(frame(encode_composite(SaslOutcome(code=SaslCode.OK)), type=SASL_FRAME))
        said.append((init.hostname, (await host.open()).hostname))
        await host.write(Close(error=told if len(said) == 1 else None))
        await host.expect(Close)
        await stream.aclose()

    roads = Roads(nursery)
    for url in (URL, B):
        roads.lead_to(serve, url)
    async with roads.connect(redirects=["b.example"], hostname="tenant"):
        while len(said) < 2:
            await trio.sleep(0.1)
    assert said == [("tenant", "tenant"), ("b.example", "b.example")]


# ------------------------------------------------------------------------------------------------------ not followed


@pytest.mark.parametrize(
    "info",
    [
        {"hostname": "evil.example"},
        {"network_host": "evil.example"},
        {"hostname": "b.example", "network_host": "10.0.0.1"},
        {"hostname": "evil.example", "network_host": "b.example"},
    ],
)
async def test_a_host_that_nobody_named_is_not_even_connected_to(
    info: dict[str, Any], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    roads.lead_to(sends_to(elsewhere(**info)))
    with pytest.raises(
        ConnectionRedirectError, match="not followed: the host '[a-z0-9.]+' is not allowed.*it moved"
    ) as raised:
        async with roads.connect(mechanisms=(), redirects=["b.example"]) as connection, connection.sender("q"):
            raise AssertionError("it is elsewhere")
    assert (raised.value.hostname, raised.value.network_host) == (info.get("hostname"), info.get("network_host"))
    assert tried(roads) == [URL]


async def test_a_client_without_a_list_of_hosts_follows_no_redirect(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    roads.lead_to(sends_to(elsewhere(port=5673)))
    with pytest.raises(ConnectionRedirectError, match="^the peer closed the connection: amqp:connection:red") as raised:
        async with roads.connect(mechanisms=(), redirects=None) as connection, connection.sender("q"):
            raise AssertionError("it is elsewhere")
    assert raised.value.port == 5673
    assert tried(roads) == [URL]


async def test_connections_that_are_sent_in_circles_end(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    roads.lead_to(sends_to(elsewhere(hostname="b.example")))
    roads.lead_to(sends_to(elsewhere(hostname="c.example")), B)
    roads.lead_to(sends_to(elsewhere(hostname="b.example")), C)
    with pytest.raises(ConnectionRedirectError, match="circle, back to amqp://b.example:5672"):
        async with roads.connect(mechanisms=(), redirects=["*"]) as connection, connection.sender("q"):
            raise AssertionError("it is nowhere")
    assert tried(roads) == [URL, B, C]


async def test_no_more_than_five_in_a_row_are_followed(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    for number in range(9):
        roads.lead_to(sends_to(elsewhere(port=number + 1)), f"amqp://router.example:{number}" if number else URL)
    with pytest.raises(ConnectionRedirectError, match="more than the 5 in a row"):
        async with roads.connect(mechanisms=()) as connection, connection.sender("q"):
            raise AssertionError("it is nowhere")
    assert tried(roads) == [URL, *(f"amqp://router.example:{number}" for number in range(1, 6))]


async def test_a_password_that_would_go_without_tls_beyond_this_machine_stays_here(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    users = tmp_path / "users.toml"
    add_user(users, "ada", "secret")
    place = PlaceConfig(hostname="b.example")
    listener = ListenerConfig(url="amqp://127.0.0.1:0", sasl=("PLAIN",), insecure=True, users=users, redirect=place)
    async with Router(RouterConfig(listeners=(listener,))) as router:
        with pytest.raises(
            ConnectionRedirectError, match="not followed: where a redirect leads, PLAIN is used only under TLS"
        ):
            async with (
                connect(
                    router.listeners[0].url, user="ada", password="secret", mechanisms=["PLAIN"], redirects=["*"]
                ) as connection,
                connection.sender("q"),
            ):
                raise AssertionError("it is elsewhere")


# ---------------------------------------------------------------------------------------------- lost, cancelled, left


async def test_after_a_loss_it_begins_again_at_the_first_url(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    b = Counterpart(nursery)
    b.roads.lead_to(sends_to(elsewhere(hostname="b.example")))
    b.roads.lead_to(b.serve, B)
    async with (
        b.roads.connect(mechanisms=(), redirects=["b.example"], reconnect=True, idle_time_out=None) as connection,
        connection.receiver("q") as receiver,
    ):
        for number in range(1, 4):
            assert receiver.is_attached
            assert tried(b.roads) == [URL, B] * number
            await trio.sleep(6)
            await trio.aclose_forcefully(b.peer.stream)
            await trio.sleep(30)
        assert connection.reconnections == 3


async def test_a_connection_that_is_sent_elsewhere_later_takes_its_links_along(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    a, b = Counterpart(nursery), Counterpart(nursery, credit=5)
    a.roads.lead_to(b.serve, B)
    async with a.connect(redirects=["b.example"]) as connection, connection.sender("q") as sender:
        await a.links[0].flow(1)
        doubtful = Call(nursery, sender.send, b"sent")
        await a.expect(Transfer)
        waiting = Call(nursery, sender.send, b"waiting")
        await wait_all_tasks_blocked()
        await a.peer.write(Close(error=elsewhere(hostname="b.example")))
        assert isinstance(await doubtful.failure(), InDoubtError)
        transfer = await b.expect(Transfer)
        assert b.payload.endswith(b"waiting")
        await b.links[0].accept(transfer.delivery_id or 0)
        await waiting.result()
        assert connection.is_connected
        assert connection.reconnections == 0


async def test_a_place_that_cannot_be_reached_is_no_reason_not_to_try_the_next_url(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    c = Counterpart(nursery)
    c.roads.lead_to(sends_to(elsewhere(hostname="b.example")))
    c.roads.lead_to(c.serve, C)
    urls = [URL, C]
    async with (
        c.roads.connect(urls, mechanisms=(), redirects=["b.example"]) as connection,
        connection.sender("q"),
    ):
        assert tried(c.roads) == [URL, B, C]
    c.roads.close(C)
    with pytest.raises(ConnectionClosedError, match="amqp://c.example:5672: Connection refused"):
        async with c.roads.connect(urls, mechanisms=(), redirects=["b.example"]) as lost, lost.sender("q"):
            raise AssertionError("nobody is there")


@pytest.mark.parametrize("told", [elsewhere(hostname="b.example"), elsewhere(hostname="evil.example")])
async def test_a_client_connects_again_with_pauses(
    told: Error, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)
    roads.lead_to(sends_to(told))
    with trio.move_on_after(60):
        async with roads.connect(mechanisms=(), redirects=["b.example"], reconnect=True) as connection:
            await enter(connection.sender("q"))
    assert 8 <= tried(roads).count(URL) <= 20
    assert tried(roads).count(B) in (0, tried(roads).count(URL))


@pytest.mark.parametrize("reconnect", [False, True])
async def test_a_call_that_is_cancelled_on_the_way_leaves_nothing_behind(
    reconnect: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    b = Counterpart(nursery)
    b.mute = {Open}
    b.roads.lead_to(sends_to(elsewhere(hostname="b.example")))
    b.roads.lead_to(b.serve, B)

    async def use() -> None:
        connection = b.roads.connect(mechanisms=(), redirects=["b.example"], reconnect=reconnect)
        async with connection, connection.sender("q"):
            raise AssertionError("nobody answers")

    using = Call(nursery, use)
    await b.expect(Open)
    began = trio.current_time()
    await using.cancel()
    assert trio.current_time() - began <= 1
    with pytest.raises(trio.ClosedResourceError):
        await b.peer.write(Close())


async def test_links_and_connections_may_be_redirected_by_turns(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    link = Error(condition=LinkCondition.REDIRECT, info={Symbol("hostname"): "b.example"})
    a, c = Counterpart(nursery, refuse={Role.SENDER: link}), Counterpart(nursery, credit=1)
    a.roads.lead_to(sends_to(elsewhere(hostname="c.example")), B)
    a.roads.lead_to(c.serve, C)
    async with a.connect(redirects=["*.example"]) as connection:
        async with connection.sender("q"):
            assert len(c.links) == 1
            assert tried(a.roads) == [URL, B, C]
        # A circle of a link's and a connection's redirects ends, too.
        a.roads.lead_to(sends_to(elsewhere(hostname="router.example")), B)
        a.roads.lead_to(Counterpart(nursery, refuse={Role.SENDER: link}).serve)
        with pytest.raises(LinkRedirectError, match="circle"):
            await enter(connection.sender("q"))
