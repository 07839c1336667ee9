"""Settings of the mesh, as the topology protocol is given them."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Close, Open
from amqpmesh.router.config.file import ListenerConfig, MeshConfig, RouterConfig
from amqpmesh.router.core import Core
from amqpmesh.router.runtime.credentials import membership
from amqpmesh.router.runtime.router import Router
from tests.support.peers.scripted_stream import AMQP, attached, begun, connect

SAID = {
    "hello": 0.5,
    "hold": 7.0,
    "link_rate": 2.0,
    "link_burst": 17,
    "address_rate": 5000,
    "address_burst": 70_000,
    "max_origins": 3,
    "max_origin_octets": 80_000,
    "max_octets": 2_000_000,
    "max_waiting": 9,
}


@pytest.mark.parametrize("name", SAID)
def test_a_key_of_the_mesh_is_told_to_the_protocol(name: str) -> None:
    config = RouterConfig(id="A", mesh=MeshConfig(insecure=True, **{name: SAID[name]}))  # type: ignore[arg-type]  # each of its own type
    member = membership(config)
    assert member is not None
    mesh = member.join(Core(config, 0.0), 0.0, epoch=1)
    assert getattr(mesh.topology.settings, name) == SAID[name]


def test_few_routers_are_kept_in_mind_where_anybody_may_invent_them() -> None:
    config = RouterConfig(id="A", mesh=MeshConfig(insecure=True))
    member = membership(config)
    assert member is not None
    assert member.join(Core(config, 0.0), 0.0, epoch=1).topology.settings.max_origins == 1_000
    with_certificates = MeshConfig(certificate=Path("a.pem"), key=Path("a.key"), trust=Path("ca.pem"))
    assert with_certificates.origins == 100_000


async def test_a_client_that_comes_by_a_listener_for_routers_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    listener = ListenerConfig(url="amqp://127.0.0.1:0", role="mesh")
    config = RouterConfig(id="A", mesh=MeshConfig(insecure=True), listeners=(listener,))
    async with Router(config) as router:
        peer = await connect(router)
        await peer.write(AMQP, Open(container_id="client"), begun(), attached(Role.SENDER, "q"))
        assert await peer.expect_header() == AMQP
        while not isinstance(close := (await peer.next_frame() or (None,))[0], Close):
            assert close is not None, "the stream ended without a word"
        assert close.error is not None
        assert close.error.condition == "amqp:not-allowed"
        assert "only routers of the mesh" in (close.error.description or "")
        await peer.write(Close())
        await peer.stream.aclose()
    assert any(line.startswith("neighbour refused") for line in caplog.messages)
    assert router.statistics().is_empty
