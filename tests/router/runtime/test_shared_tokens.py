"""Rates of connections and attaches, which the workers of a router keep together."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Attach, Detach
from amqpmesh.router.credit.places import TOKEN
from amqpmesh.router.credit.rate_line import Rate, RateLines, RateOwner
from amqpmesh.router.runtime import poller
from tests.router.runtime.test_shared_counts import HERE, THERE, opened, policy
from tests.support.peers.scripted_stream import attached
from tests.support.worlds.sibling_workers import clients, router_config, until, workers

if TYPE_CHECKING:
    from amqpmesh.router.runtime.shared_tokens import SharedTokens

pytestmark = pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")

TENANT = RateOwner("attaches", "t")
USER = RateOwner("attaches", "t", user="u")

STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["tenant", "user", "both"]), st.sampled_from([0.0, 0.01, 0.3, 5.0])),
    max_size=80,
)


class Clock:
    """A clock that tests set."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def buckets(folder: Path, count: int, clock: Clock) -> list[SharedTokens]:
    from amqpmesh.router.runtime.shared_tokens import SharedTokens

    return [SharedTokens(folder / "tokens", clock) for _ in range(count)]


def rate(owner: RateOwner, rate: float, burst: float, workers: int = 3) -> Rate:
    return Rate(owner, rate, burst, False, tenant=owner.tenant, workers=workers)


@given(STEPS)
def test_all_workers_together_have_the_rate_that_one_process_has(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str, float]]
) -> None:
    """One process with one bucket is the naive judge."""
    clock = Clock()
    shared = buckets(tmp_path_factory.mktemp("tokens"), 3, clock)
    lines = [RateLines(lambda _: None) for _ in shared]
    for each, tokens in zip(lines, shared, strict=True):
        each.tokens = tokens
    alone = RateLines(lambda _: None)
    of_tenant, of_user = rate(TENANT, 2.0, 4.0), rate(USER, 1.0, 3.0)
    for worker, which, seconds in steps:
        clock.now += seconds
        wanted = {"tenant": [of_tenant], "user": [of_user], "both": [of_tenant, of_user]}[which]
        lacking = alone.spend([each._replace(workers=1) for each in wanted], clock.now)
        found = lines[worker].spend(wanted, clock.now)
        assert (found and found.owner) == (lacking and lacking.owner)
        for bucket in lines[worker].buckets:
            if bucket.key in {each.owner for each in wanted}:
                assert (bucket.rate, bucket.burst) in {(2.0, 4.0), (1.0, 3.0)}, "the gauge shows what all may have"
    for each in shared:
        each.close()


def test_a_worker_that_ends_leaves_its_tokens_spent_and_no_lock(tmp_path: Path) -> None:
    clock = Clock()
    one, other = buckets(tmp_path, 2, clock)
    wanted = [rate(TENANT, 1.0, 2.0)]
    assert one.take(wanted) == [2.0]
    one.close()
    assert other.take(wanted) == [1.0]
    assert other.take(wanted) == [0.0]
    clock.now += 1.0
    assert other.take(wanted) == [pytest.approx(1.0)]
    other.close()


def test_a_smaller_burst_holds_at_once_and_a_larger_one_is_filled_at_the_rate(tmp_path: Path) -> None:
    clock = Clock()
    (shared,) = buckets(tmp_path, 1, clock)
    for left in (100.0, 99.0, 98.0):
        assert shared.take([rate(TENANT, 10.0, 100.0)]) == [pytest.approx(left)]
    assert shared.take([rate(TENANT, 1.0, 1.0)]) == [pytest.approx(0.7)]
    clock.now += 0.3
    assert shared.take([rate(TENANT, 1.0, 1.0)]) == [pytest.approx(1.0)]
    assert shared.take([rate(TENANT, 100.0, 1_000.0)]) == [pytest.approx(900.0)]
    shared.close()


def test_while_another_worker_keeps_the_lock_each_has_an_equal_part(tmp_path: Path) -> None:
    from amqpmesh.router.runtime.file_locks import set_lock

    clock = Clock()
    (shared,) = buckets(tmp_path, 1, clock)
    lines = RateLines(lambda _: None)
    lines.tokens = shared
    wanted = [rate(TENANT, 3.0, 9.0)]
    stopped = os.open(tmp_path / "tokens", os.O_RDWR | os.O_CREAT, 0o600)
    set_lock(stopped, fcntl.F_WRLCK, 0, 1)
    assert [lines.spend(wanted, clock.now) is None for _ in range(4)] == [True, True, True, False]
    os.close(stopped)
    assert [lines.spend(wanted, clock.now) is None for _ in range(10)] == [True] * 9 + [False]
    shared.close()


def test_without_a_file_each_worker_has_an_equal_part(tmp_path: Path) -> None:
    from amqpmesh.router.runtime.shared_tokens import SharedTokens

    lines = RateLines(lambda _: None)
    lines.tokens = SharedTokens(tmp_path / "missing" / "tokens")
    wanted = [rate(TENANT, 3.0, 6.0)]
    assert [lines.spend(wanted, 0.0) is None for _ in range(3)] == [True, True, False]


def test_what_a_tenant_uses_up_makes_the_router_forget_nothing_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amqpmesh.router.runtime import shared_tokens

    monkeypatch.setattr(shared_tokens, "ROWS", 2)
    clock = Clock()
    (shared,) = buckets(tmp_path, 1, clock)
    quiet = [rate(TENANT._replace(tenant=f"quiet{number}"), 0.01, 1.0) for number in range(4)]
    for each in quiet:
        assert shared.take([each]) == [1.0]
    for number in range(200):
        clock.now += 0.01
        many = rate(RateOwner("attaches", "loud", host=f"2001:db8::{number:x}"), 1.0 if number % 2 else 0.02, 1.0)
        assert shared.take([many]) == [1.0]
    for each in quiet:
        assert shared.take([each])[0] < TOKEN  # type: ignore[index]  # nobody else has the lock
    size = os.stat(tmp_path / "tokens").st_size
    assert size <= 2 * 16 * 24, "the file has a fixed size"
    clock.now += 200.0
    assert shared.take([quiet[0]]) == [1.0]
    shared.close()


async def test_connections_to_all_workers_have_one_rate(tmp_path: Path) -> None:
    config = router_config(policy=policy(tmp_path, 'new_connections = "3/h", burst = 3600'))
    async with workers(config, tmp_path) as both:
        first = both[0]
        peers = [await opened(each) for each in (first, first, both[1], first, both[1])]
        refused = "amqp:resource-limit-exceeded"
        assert [condition for _, condition in peers] == [None, None, None, refused, refused]
        for each in both:
            (gauge,) = each.statistics().rates
            assert (gauge.limit, gauge.allowed, gauge.burst) == ("new_connections", 3 / 3600, 3.0)
            assert gauge.left == pytest.approx(0.0, abs=0.1)


async def test_an_attach_that_moves_its_connection_to_another_worker_counts_once(tmp_path: Path) -> None:
    config = router_config(policy=policy(tmp_path, 'new_connections = "1/h", attaches = "2/h", burst = 3600'))
    async with workers(config, tmp_path) as (first, second):
        peer, condition = await opened(first)
        assert condition is None
        await peer.write(attached(Role.SENDER, THERE))
        await peer.expect(Attach)
        await until(lambda: (clients(first), clients(second)) == (0, 1))
        for number, address in enumerate((HERE, THERE), 1):
            await peer.write(attached(Role.SENDER, address, name=f"link{number}", handle=number))
            await peer.expect(Attach)
        detach = await peer.expect(Detach)
        assert detach.error is not None
        assert str(detach.error.condition) == "amqp:resource-limit-exceeded"
        await peer.close()
        await until(lambda: clients(second) == 0)
    assert second.statistics().is_empty
