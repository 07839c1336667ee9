"""Gauges of rates: what is used and allowed in a second, in virtual time."""

from __future__ import annotations

import pytest

from amqpmesh.router.kernel import TokenBucket
from amqpmesh.router.management.entities import TYPES
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.statistics.router_statistics import RateStatistics
from tests.support.worlds.network import message
from tests.support.worlds.rated import Rated, limits


def rates(world: Rated) -> dict[str, RateStatistics]:
    """Return the rates by the identities that they have as entities."""
    world.core.context.now = world.now
    kind = next(each for name, each in TYPES.items() if name.endswith("rate"))
    return {kind.identity(each): each for each in snapshot(world.core).rates}


def test_a_rate_that_bites_is_used_as_much_as_is_allowed_and_its_links_wait() -> None:
    world = Rated(limits('messages = "200/s", messages_per_address = "500/s"', 'octets = "1_000_000/s"'))
    world.receiver("q")
    world.sender("q", message("x" * 100))
    world.go(60.0)
    found = rates(world)
    tenant, address, user = (found[each] for each in sorted(found, key=lambda each: found[each].allowed))
    assert (tenant.limit, tenant.tenant, tenant.user, tenant.host, tenant.address) == (
        "messages",
        "t",
        None,
        None,
        None,
    )
    assert (tenant.allowed, tenant.burst, tenant.waiting) == (200.0, 200.0, 1)
    assert tenant.used == pytest.approx(200.0, rel=0.02)
    assert tenant.left < 5.0
    assert (address.limit, address.address) == ("messages_per_address", "q")
    assert address.used == pytest.approx(200.0, rel=0.02)
    assert address.waiting == 0
    assert (user.limit, user.host, user.user) == ("octets", "127.0.0.1", None)
    assert user.used > 200 * 100, "octets are those of whole frames"


def test_a_gauge_falls_once_nothing_comes_any_more() -> None:
    world = Rated(limits('messages = "200/s"'))
    world.receiver("q")
    world.sender("q")
    world.go(60.0)
    seen = []
    for _ in range(4):
        (rate,) = rates(world).values()
        seen.append(rate.used)
        world.advance(5.0)
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] < 0.06 * seen[0]


def test_a_sender_that_sends_seldom_is_no_peak_when_it_is_looked_at() -> None:
    world = Rated(limits('messages = "1000/s"'))
    world.receiver("q")
    link = world.sender("q")
    for _ in range(200):  # within the credit that it has: the router grants none meanwhile
        world.advance(1.0)
        world.send_one(link)
    (rate,) = rates(world).values()
    assert rate.used == pytest.approx(1.0, rel=0.1)


def test_connections_and_attaches_are_rates_as_well() -> None:
    world = Rated(limits('new_connections = "10/s", attaches = "20/s"'))
    for _ in range(3):
        world.sender("q")
    found = {each.limit: each for each in rates(world).values()}
    assert found.keys() == {"new_connections", "attaches"}
    assert (found["attaches"].allowed, found["attaches"].left) == (20.0, 17.0)
    assert found["new_connections"].used == pytest.approx(3 / 5)


def test_rates_of_single_links_are_left_out() -> None:
    world = Rated(limits('messages_per_link = "10/s"'))
    world.sender("q")
    assert rates(world) == {}


@pytest.mark.parametrize("parts", [1, 7, 100])
def test_the_mean_does_not_depend_on_how_often_is_counted(parts: int) -> None:
    bucket = TokenBucket("key", 1.0, 1.0, False, 0.0)
    for at in range(1, parts + 1):
        bucket.count(1000 / parts, 100 / parts, 100 * at / parts)
    assert bucket.mean(100.0) == pytest.approx(10.0)
    assert bucket.mean(1000.0) < 1e-6
