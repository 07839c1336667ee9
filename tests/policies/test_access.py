"""Access of peers to addresses: the router's own are not consumed by others."""

import dataclasses

import pytest

from amqpmesh.policies.access import Peer, may_consume


@pytest.mark.parametrize("address", ["$management", "$dynamic/c/l/0123@A", "$", "$management@A"])
def test_nobody_consumes_the_routers_own_addresses(address: str) -> None:
    assert not may_consume(address)


@pytest.mark.parametrize("address", ["orders", "a$b", "", "orders/$x", "orders@A"])
def test_every_other_address_may_be_consumed(address: str) -> None:
    assert may_consume(address)


def test_a_peer_is_a_value() -> None:
    peer = Peer(container_id="c", user="u")
    assert peer == Peer(container_id="c", user="u")
    assert len({peer, Peer(container_id="c", user="u"), Peer(container_id="c", user="u", tenant="t")}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        peer.user = "somebody else"  # type: ignore[misc]  # the test is that it cannot be set
