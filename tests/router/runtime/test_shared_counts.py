"""Limits that hold for all workers of a router together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.policies.limits import UNLIMITED, Allowance
from amqpmesh.router.amqp.standard.definitions import Role
from amqpmesh.router.amqp.standard.performatives import Attach, Begin, Close, Detach, Open
from amqpmesh.router.config.file import PolicyConfig
from amqpmesh.router.config.mesh import WorkerConfig
from amqpmesh.router.model.usage import NO_CAPS, Kind, Owner, Usage, caps_of
from amqpmesh.router.runtime import poller
from tests.support.peers.scripted_stream import AMQP, Peer, attached, begun, connect
from tests.support.worlds.sibling_workers import address_at, clients, router_config, until, workers

if TYPE_CHECKING:
    from pathlib import Path

    from amqpmesh.router.runtime.router import Router

pytestmark = pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")

HERE, THERE = address_at(1), address_at(2)
"""Addresses at the first worker, and at the other one."""

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["take", "take", "force", "release", "limit", "again"]), st.integers(0, 8))
)


@given(ACTIONS)
def test_the_sum_of_all_workers_never_passes_the_limit(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    from amqpmesh.router.runtime.shared_counts import SharedCounts

    folder = tmp_path_factory.getbasetemp()
    shared = [SharedCounts(WorkerConfig(name="A", number=number, count=3, folder=folder)) for number in (1, 2, 3)]
    places = [each.places(Owner("t", "u"), Kind.LINKS) for each in shared]
    others = [each.places(Owner("t", "v"), Kind.LINKS) for each in shared]
    counts, most = [0, 0, 0], 5
    for action, number in actions:
        worker = number % 3
        place = places[worker]
        assert place is not None
        if action == "limit":
            most = number + 1
        elif action == "release":
            if counts[worker]:
                place.release()
                counts[worker] -= 1
        elif action == "again":
            place.release_all()
            place.take_many(counts[worker], most)
        else:
            taken = place.take(most, forced=action == "force")
            assert taken is (action == "force" or sum(counts) < most), "a place is free exactly while there is room"
            counts[worker] += taken
        assert [each.others() for each in places if each] == [sum(counts) - each for each in counts]
        assert [each.others() for each in others if each] == [0, 0, 0]
    for each in shared:
        each.close()


def test_the_places_of_a_worker_that_is_gone_are_free(tmp_path: Path) -> None:
    from amqpmesh.router.runtime.shared_counts import SharedCounts

    one, other = (SharedCounts(WorkerConfig(name="A", number=number, count=2, folder=tmp_path)) for number in (1, 2))
    lost, left = one.places(Owner("t"), Kind.LINKS), other.places(Owner("t"), Kind.LINKS)
    assert lost is not None
    assert left is not None
    assert [lost.take(2, forced=False) for _ in range(3)] == [True, True, False]
    assert not left.take(2, forced=False)
    one.close()
    assert [left.take(2, forced=False) for _ in range(3)] == [True, True, False]
    other.close()


@pytest.mark.parametrize("most", [100, 1_000_000])
def test_a_new_limit_of_thousands_of_things_takes_a_few_calls(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from amqpmesh.router.runtime import shared_counts

    calls = 0
    control = shared_counts.fcntl.fcntl

    def counted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return control(*args)

    monkeypatch.setattr(shared_counts.fcntl, "fcntl", counted)
    shared = [shared_counts.SharedCounts(WorkerConfig(name="A", number=at, count=2, folder=tmp_path)) for at in (1, 2)]
    usages = [Usage(Owner("t"), each.places) for each in shared]
    for usage in usages:
        for _ in range(10_000):
            usage.take(Kind.LINKS)
        usage.allow(Allowance(links=most), caps_of(Allowance(links=most)))
    assert calls <= 6
    assert [usage.used(Kind.LINKS) for usage in usages] == [20_000, 20_000]
    assert usages[0].take(Kind.LINKS) is (most > 20_000)
    calls = 0
    usages[1].allow(UNLIMITED, NO_CAPS)
    assert calls <= 2
    assert usages[0].used(Kind.LINKS) <= 10_001
    for each in shared:
        each.close()


def test_a_limit_that_is_never_reached_takes_no_place_of_another_count(tmp_path: Path) -> None:
    from amqpmesh.router.runtime.shared_counts import SharedCounts

    one, other = (SharedCounts(WorkerConfig(name="A", number=number, count=2, folder=tmp_path)) for number in (1, 2))
    seen, taken = one.places(Owner("t"), Kind.LINKS), other.places(Owner("t"), Kind.LINKS)
    assert seen is not None
    assert taken is not None
    assert taken.take(10**12, forced=False)
    assert seen.others() == 1
    taken.release_all()
    taken.take_many(5, 10**12)
    assert seen.others() == 5
    one.close()
    other.close()


def policy(tmp_path: Path, limits: str) -> PolicyConfig:
    file = tmp_path / "policy.toml"
    file.write_text(f'[[group]]\nname = "g"\nsend = ["#"]\nreceive = ["#"]\nlimits = {{ {limits} }}')
    return PolicyConfig(file=file)


async def opened(router: Router) -> tuple[Peer, str | None]:
    """Open a connection. Returns: its peer, and the condition with which the router closes it; None: it does not."""
    peer = await connect(router)
    await peer.write(AMQP, Open(container_id="peer"), begun())
    assert await peer.expect_header() == AMQP
    await peer.expect(Open)
    found = await peer.next_frame()
    assert found is not None
    answer, _ = found
    if isinstance(answer, Begin):
        return peer, None
    assert isinstance(answer, Close)
    assert answer.error is not None
    return peer, str(answer.error.condition)


async def test_connections_to_all_workers_count_together(tmp_path: Path) -> None:
    config = router_config(policy=policy(tmp_path, "connections = 3"))
    async with workers(config, tmp_path) as both:
        peers = [await opened(both[number % 2]) for number in range(4)]
        assert [condition for _, condition in peers] == [None, None, None, "amqp:resource-limit-exceeded"]
        for router in both:
            (limit,) = router.statistics().limits
            assert (limit.used, limit.allowed) == (3, 3)
        await peers[0][0].close()
        await until(lambda: clients(both[0]) == 1)
        assert (await opened(both[1]))[1] is None, "the place of another worker's connection is free again"


async def test_a_connection_that_is_handed_over_counts_once_even_at_the_limit(tmp_path: Path) -> None:
    config = router_config(policy=policy(tmp_path, "connections = 1, sessions = 1, links = 1"))
    async with workers(config, tmp_path) as (first, second):
        for _ in range(3):
            peer, condition = await opened(first)
            assert condition is None
            await peer.write(attached(Role.SENDER, THERE))
            await peer.expect(Attach)
            await until(lambda: (clients(first), clients(second)) == (0, 1))
            assert [each.used for each in second.statistics().limits] == [1, 1, 1]
            assert (await opened(first))[1] == "amqp:resource-limit-exceeded"
            await peer.write(attached(Role.SENDER, THERE, name="other", handle=1))
            await peer.expect(Attach)
            detach = await peer.expect(Detach)
            assert detach.error is not None
            assert str(detach.error.condition) == "amqp:resource-limit-exceeded"
            await peer.close()
            await until(lambda: clients(second) == 0)
    assert second.statistics().is_empty
