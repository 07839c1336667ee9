"""Statistics of the edge: listeners, and TLS."""

import ssl
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trustme
from trio.testing import MockClock

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.config.file import ListenerConfig, TlsConfig
from amqpmesh.router.io.tls import client_context
from amqpmesh.router.runtime.router import Router
from amqpmesh.router.statistics.configured import ListenerStatistics
from tests.support.peers.scripted_stream import TLS, Peer, connect, connected
from tests.support.worlds.sockets import EITHER_WAY

pytestmark = EITHER_WAY

NAME = "router.example"


async def test_listeners_are_shown_with_their_ports_and_their_connections() -> None:
    async with Router(listeners=[ListenerConfig(url="amqp://127.0.0.1:0", connections=1)]) as router:
        url = router.listeners[0].url
        assert not url.endswith(":0")
        (told,) = router.statistics().listeners
        shown = ListenerStatistics(name="amqp", url=url, connections=0, refused=0, role="normal", cost=1)
        assert replace(told, settings={}) == shown
        assert (told.settings["url"], told.settings["connections"]) == ("amqp://127.0.0.1:0", 1)
        peer = await connect(router)
        await peer.open()
        await (await connect(router)).expect_end()
        (told,) = router.statistics().listeners
        assert (told.connections, told.refused) == (1, 1)
        await peer.close()
    (told,) = router.statistics().listeners
    assert (told.connections, told.refused) == (0, 1)


@pytest.mark.parametrize("port_of_its_own", [True, False])
async def test_tls_is_told_however_it_came_about(
    port_of_its_own: bool, tmp_path: Path, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    leaf = authority.issue_cert(NAME)
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "a.pem"))
    leaf.private_key_pem.write_to_path(str(tmp_path / "a.key"))
    listener = ListenerConfig(
        url="amqps://127.0.0.1:0",
        name="tls",
        tls=TlsConfig(certificate=tmp_path / "a.pem", key=tmp_path / "a.key"),
    )
    async with Router() as router:
        if not port_of_its_own:
            listener = replace(listener, url="amqp://127.0.0.1:0")
        peer = connected(nursery, router, listener)
        if not port_of_its_own:
            await peer.write(TLS)
            assert await peer.expect_header() == TLS
            (told,) = router.statistics().connections
            assert (told.tls, told.cipher) == (None, None)
        context: ssl.SSLContext = client_context(tmp_path / "ca.pem")
        secured = trio.SSLStream(peer.stream, context, server_hostname=NAME)
        peer = Peer(secured)
        await peer.open()
        (told,) = router.statistics().connections
        assert told.tls == secured.version()
        assert told.cipher == secured.cipher()[0]
        await peer.close()
    assert router.statistics().is_empty


async def test_a_router_that_was_never_started_has_none() -> None:
    with pytest.raises(CommandError):
        Router().statistics()
