"""Connectors whose connections go through WebSockets."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import trio
import trustme
from trio.testing import MockClock

from amqpmesh.router.amqp.errors import ConfigError
from amqpmesh.router.config.file import ConnectorConfig, ConnectorTlsConfig, LinkConfig, ListenerConfig, TlsConfig
from amqpmesh.router.message.content import Message
from amqpmesh.router.runtime import credentials
from amqpmesh.router.runtime.router import Router
from amqpmesh.router.statistics.configured import ConnectorState
from tests.support.peers.library_client import Roads, joined
from tests.support.tasks.until import until
from tests.support.worlds.connectors import connecting, container, told

URL = "ws://router.example:80/amqp"
LISTENER = ListenerConfig(url="ws://127.0.0.1:0/amqp", hosts=("router.example",))


async def until_connected(router: Router) -> None:
    await until(lambda: told(router).state is ConnectorState.CONNECTED)


async def test_links_to_a_container_go_through_a_websocket(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    roads = Roads(nursery)
    link = LinkConfig(connector="broker", target="there", address="here")
    async with Router(id="B") as far, connecting(roads, container(URL), id="A", container_links=[link]) as near:
        roads.lead_to(far, URL, LISTENER)
        await until_connected(near)
        assert told(near).url == URL
        async with (
            joined(nursery, far) as reader,
            reader.receiver("there") as there,
            joined(nursery, near) as writer,
            writer.sender("here") as here,
        ):
            nursery.start_soon(here.send, Message(b"x" * 300_000))
            delivery = await there.receive()
            async with delivery as message:
                assert len(message.body) == 300_000
    assert near.statistics().is_empty
    assert far.statistics().is_empty


async def test_wss_needs_a_certificate_that_is_trusted(
    nursery: trio.Nursery, autojump_clock: MockClock, tmp_path: Path
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("router.example")
    certificate, key, trust = tmp_path / "c.pem", tmp_path / "k.pem", tmp_path / "t.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(trust)
    listener = ListenerConfig(
        url="wss://127.0.0.1:0",
        hosts=("router.example",),
        tls=TlsConfig(certificate=certificate, key=key),
        insecure=True,
    )
    url = "wss://router.example:443"
    roads = Roads(nursery)
    trusting = container(url, tls=ConnectorTlsConfig(trust=trust))
    async with Router(id="B") as far, connecting(roads, trusting, id="A") as near:
        roads.lead_to(far, url, listener)
        await until_connected(near)
        assert near.statistics().connections[0].container_id == "B"
    async with Router(id="B") as far, connecting(roads, container(url), id="A") as near:
        roads.lead_to(far, url, listener)
        await until(lambda: told(near).failures)
        assert (told(near).reason or "").startswith("TLS: ")


async def leaves(stream: trio.abc.Stream) -> None:
    await stream.receive_some()
    await stream.aclose()


@pytest.mark.parametrize("place", ["another path", "no WebSocket"])
async def test_a_refused_websocket_is_told_and_tried_again(
    nursery: trio.Nursery, autojump_clock: MockClock, place: str
) -> None:
    roads = Roads(nursery)
    url = "ws://router.example:80/other"
    async with Router(id="B") as far, connecting(roads, container(url), id="A") as near:
        if place == "another path":
            roads.lead_to(far, url, LISTENER)
            reason = "refused with HTTP 404: "
        else:
            roads.lead_to(leaves, url)
            reason = "no WebSocket for AMQP here: the server has closed"
        await until(lambda: told(near).failures >= 2)
        assert told(near).state is ConnectorState.WAITING
        assert reason in (told(near).reason or "")
    assert near.statistics().is_empty


async def test_without_wsproto_a_router_with_such_a_connector_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(credentials, "find_spec", lambda name: None if name == "wsproto" else found(name))
    with pytest.raises(ConfigError, match=r"amqpmesh\[websocket\]"):
        await Router(connectors=[container(URL)]).__aenter__()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"url": URL}, 'role: must be "container" with ws and wss'),
        ({"url": "http://router.example", "role": "container"}, "must begin with"),
        ({"url": f"{URL}?x", "role": "container"}, "takes a host and a port"),
        ({"url": "amqp://router.example/path", "role": "container"}, "takes a host and a port"),
        ({"url": URL, "role": "container", "tls": ConnectorTlsConfig()}, "amqps or wss"),
    ],
)
def test_other_urls_are_refused(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ConnectorConfig(**settings)  # type: ignore[arg-type]
