"""Peers of other protocols: the errors that name them, and their advice."""

from __future__ import annotations

import ssl

import pytest
import trio
import trustme
from trio.testing import MockClock

from amqpmesh.router.amqp.errors import ConnectionClosedError, SaslError
from amqpmesh.router.client.connect import connect
from tests.support.peers.library_client import URL, Roads, enter
from tests.support.peers.scripted import AMQP, SASL

SECURE_URL = "amqps://router.example:5672"
WANTS_TLS = f"{URL}: the peer closed before it answered: does it want TLS (amqps://)?"
WANTS_NO_TLS = f"{SECURE_URL}: no TLS here: does it want amqp://?"


async def said(roads: Roads, url: str, tls: ssl.SSLContext | None = None) -> str:
    """Return the message of the error that `connect` raises."""
    with pytest.raises(ConnectionClosedError) as raised:
        await enter(connect(url, tls=tls, open_stream=roads.open))
    # The peer refused nothing: with `reconnect` the client would try again.
    assert not isinstance(raised.value, SaslError)
    return str(raised.value)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer does not speak AMQP 1.0: it begins with b'H'"),
        (b"AMQP\x00\x00\x09\x01", r"the peer does not speak AMQP 1.0: it begins with b'AMQP\x00\x00\t\x01'"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "the peer answers in TLS: does it want amqps://?"),
        (b"", WANTS_TLS),
        (SASL, "the connection was lost"),
    ],
)
async def test_a_peer_that_speaks_something_else_is_told_from_one_that_is_lost(
    answer: bytes, reason: str, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)

    async def serve(stream: trio.abc.Stream) -> None:
        assert await stream.receive_some() == SASL
        if answer:
            await stream.send_all(answer)
        await stream.aclose()

    roads.lead_to(serve)
    assert await said(roads, URL) == reason


async def test_a_peer_without_the_layer_that_is_wanted_does_not_let_in(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    roads = Roads(nursery)

    async def serve(stream: trio.abc.Stream) -> None:
        await stream.send_all(AMQP)
        await stream.aclose()

    roads.lead_to(serve)
    with pytest.raises(SaslError, match="not let in"):
        await enter(roads.connect())


async def test_a_peer_that_wants_tls_or_none_is_told_by_the_url_to_try(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    authority = trustme.CA()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("router.example").configure_cert(theirs)
    authority.configure_trust(ours)
    roads = Roads(nursery)

    async def serve_tls(stream: trio.abc.Stream) -> None:
        with pytest.raises(trio.BrokenResourceError):
            await trio.SSLStream(stream, theirs, server_side=True).do_handshake()
        await stream.aclose()

    async def serve_plain(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all(AMQP)
        await stream.aclose()

    roads.lead_to(serve_tls, URL)
    roads.lead_to(serve_plain, SECURE_URL)
    assert await said(roads, URL) == WANTS_TLS
    assert await said(roads, SECURE_URL, ours) == WANTS_NO_TLS
