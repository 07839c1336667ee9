"""Senders that come back at another router than the one that keeps their links."""

from __future__ import annotations

import pytest

from amqpmesh.router.amqp.standard.delivery_states import Accepted
from amqpmesh.router.management.snapshot import snapshot
from tests.router.resumption.test_returning_senders import SECOND, Roaming, as_map, tag
from tests.support.worlds.meshes import World

EITHER = pytest.mark.parametrize("routers", ["AB", "A.1 A.2"], ids=["routers", "workers"])


def roaming(routers: str) -> tuple[World, list[str], Roaming]:
    """Return a mesh of two, and a sender at the first one, with a delivery that its receiver has."""
    names = routers.split() if " " in routers else list(routers)
    mesh = World(names, [(names[0], names[1])])
    mesh.advance(1)
    return mesh, names, Roaming(SECOND, network=mesh[names[0]])


@EITHER
def test_a_sender_that_comes_back_at_another_router_is_told_that_nothing_is_known(routers: str) -> None:
    mesh, names, r = roaming(routers)
    r.send()
    r.lose()
    r.network = mesh[names[1]]
    assert r.back({tag(0): None}).unsettled is None
    assert snapshot(r.network.core).router.in_doubt == 1
    r.lose()
    mesh.advance(31)
    assert [mesh[each].core.context.termini.granted for each in names] == [0, 0]


@EITHER
def test_the_first_router_keeps_the_link_while_its_sender_is_at_another(routers: str) -> None:
    mesh, names, r = roaming(routers)
    (arrival,) = r.send()
    r.lose()
    r.network = mesh[names[1]]
    r.back({tag(0): None})
    arrival.dispose(Accepted(), settled=False)
    mesh.advance(10)
    r.lose()
    r.network = mesh[names[0]]
    assert as_map(r.back({tag(0): None})) == {tag(0): Accepted()}
