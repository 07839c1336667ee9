"""Access of peers to addresses: the router's own are reserved."""

import dataclasses

import pytest

from amqpmesh.policies.access import Peer, is_reserved


@pytest.mark.parametrize("address", ["$management", "$dynamic/c/l/0123@A", "$", "$management@A"])
def test_the_routers_own_addresses_are_reserved(address: str) -> None:
    assert is_reserved(address)


@pytest.mark.parametrize("address", ["orders", "a$b", "", "orders/$x", "orders@A"])
def test_no_other_address_is_reserved(address: str) -> None:
    assert not is_reserved(address)


def test_a_peer_is_a_value() -> None:
    peer = Peer(container_id="c", user="u")
    assert peer == Peer(container_id="c", user="u")
    assert len({peer, Peer(container_id="c", user="u"), Peer(container_id="c", user="u", tenant="t")}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        peer.user = "somebody else"  # type: ignore[misc]  # the test is that it cannot be set
