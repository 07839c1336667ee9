"""Limits of deliveries and octets of which the workers of a router have portions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.config.mesh import WorkerConfig
from amqpmesh.router.credit.places import Shared
from amqpmesh.router.management.snapshot import snapshot
from amqpmesh.router.model.portions import Portion
from amqpmesh.router.model.usage import Owner
from amqpmesh.router.runtime import poller
from tests.router.access.test_caps import LIMIT, condition, fill, network, reload, stopped
from tests.support.worlds.network import Network

pytestmark = pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")

COUNT = 3
LIMITS = st.sampled_from([1, 5_000, 100_000, 2**20, 2**40])
ACTIONS = st.lists(st.tuples(st.sampled_from(["use", "use", "use", "limit"]), st.integers(0, 2), st.floats(0, 1.2)))
OWNER = Owner("t", "u")


@contextmanager
def portions(folder: Path, limit: int, *, of_octets: bool) -> Iterator[list[Portion]]:
    """Return the portions that the workers of a router have of a limit."""
    from amqpmesh.router.runtime.shared_counts import SharedCounts

    kind = Shared.OCTETS if of_octets else Shared.UNSETTLED
    shared = [SharedCounts(WorkerConfig(name="A", number=1 + at, count=COUNT, folder=folder)) for at in range(COUNT)]
    places = [each.places(OWNER, kind) for each in shared]
    yield [Portion(each, limit, of_octets=of_octets) for each in places if each is not None]
    for counts in shared:
        counts.close()


@given(LIMITS, ACTIONS)
def test_portions_never_pass_the_limit_and_nobody_keeps_what_another_needs(
    tmp_path_factory: pytest.TempPathFactory, limit: int, actions: list[tuple[str, int, float]]
) -> None:
    with portions(tmp_path_factory.getbasetemp(), limit, of_octets=True) as found:
        used = [0] * COUNT
        for action, worker, part in actions:
            if action == "limit":
                limit = 1 + int(part * 2**20)
                for each, octets in zip(found, used, strict=True):
                    each.allow(limit, octets)
            else:
                used[worker] = int(part * limit)
                found[worker].fit(used[worker])
            unit = found[0].unit
            assert sum(each.size for each in found) <= limit
            assert all(each.taken >= octets for each, octets in zip(found, used, strict=True)), "all is counted"
        if actions:
            for _ in range(2):  # two looks of each worker
                for each, octets in zip(found, used, strict=True):
                    each.fit(octets)
            if sum(-(-octets // unit) for octets in used) <= limit // unit:
                assert all(each.size >= octets for each, octets in zip(found, used, strict=True)), "there is enough"
        for each in found:
            each.fit(0)
        assert [each.others() for each in found] == [0] * COUNT


@given(st.lists(st.tuples(st.integers(0, COUNT - 1), st.integers(-20, 20))))
def test_deliveries_are_taken_exactly_while_there_are_some(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[int, int]]
) -> None:
    with portions(tmp_path_factory.getbasetemp(), 30, of_octets=False) as found:
        counts = [0] * COUNT
        for worker, number in actions:
            if number > 0:
                taken = found[worker].take(number)
                assert taken == min(number, 30 - sum(counts))
                counts[worker] += taken
            else:
                given_back = min(-number, counts[worker])
                found[worker].give_back(given_back)
                counts[worker] -= given_back
            assert [each.taken for each in found] == counts
            assert [each.free() for each in found] == [30 - sum(counts)] * COUNT


def test_the_portion_of_a_worker_that_is_gone_is_free(tmp_path: Path) -> None:
    with portions(tmp_path, 2**20, of_octets=True) as (lost, left, _):
        lost.fit(2**20)
        left.fit(2**20)
        assert (lost.size, left.size) == (2**20, 0)
        lost.release()  # as the system does for a process that ends
        left.fit(2**20)
        assert left.size == 2**20


def two_workers(folder: Path, tenant: str, **settings: object) -> list[Network]:
    """Return two workers of a router, each without connections to the other."""
    from amqpmesh.router.runtime.shared_counts import SharedCounts

    worlds = []
    for number in (1, 2):
        config = WorkerConfig(name="A", number=number, count=2, folder=folder)
        world = network(**settings)
        world.core.context.usages.share = SharedCounts(config).places
        world.core.context.usages._workers = world.core.context.memory._workers = 2
        reload(world, tenant)
        worlds.append(world)
    return worlds


def test_receivers_at_one_worker_may_have_all_deliveries_and_other_workers_those_that_are_left(tmp_path: Path) -> None:
    one, two = two_workers(tmp_path, "unsettled = 8, receivers = 2")
    here, there = one.client(hostname="a"), two.client(hostname="a")
    links = [here.receiver("q"), here.receiver("p")]
    assert all(each.is_attached for each in links)
    rows = [each for each in snapshot(two.core).limits if each.limit == "unsettled"]
    assert [(each.used, each.allowed) for each in rows] == [(8, 8)], "it shows what all workers have"
    links[1].detach()
    one.run()
    assert there.receiver("q").is_attached
    here.receiver("p")
    for world in (one, two):
        world.leave()


def test_a_receiver_is_refused_if_other_workers_have_all_deliveries(tmp_path: Path) -> None:
    one, two = two_workers(tmp_path, "unsettled = 2")
    here, there = one.client(hostname="a"), two.client(hostname="a")
    links = [here.receiver(name) for name in ("p", "q")]
    assert condition(there, there.receiver("q")) == LIMIT
    links[0].detach()
    one.run()
    assert there.receiver("q").is_attached
    for world in (one, two):
        world.leave()


def waiting(world: Network) -> int:
    """Return the octets that wait for a tenant at one worker."""
    usage = world.core.context.usages.of(Owner("a"))
    assert usage.budget is not None
    return usage.budget.used


@pytest.mark.parametrize("limit", ['waiting = "1 MB"', 'memory = "1 MB"', 'memory = "3.125 %"'])
def test_what_waits_at_one_worker_leaves_less_to_others_until_it_is_read(tmp_path: Path, limit: str) -> None:
    one, two = two_workers(tmp_path, limit, memory=16 * 2**20)
    readers = []
    for number in range(16):
        readers.append(stopped(one, f"q{number}", hostname="a"))
        fill(one.client(hostname="a"), f"q{number}")
    assert waiting(one) > 900_000, "one worker alone may have all of it"
    blocked = stopped(two, "q", hostname="a")
    late = two.client(hostname="a")
    fill(late, "q")
    assert waiting(two) < 300_000, "a share of it, and what was under way"
    assert fill(two.client(hostname="a"), "q") == 0
    assert two.core.context.memory.withheld
    (row,) = [each for each in snapshot(two.core).limits if each.limit in ("waiting", "memory")]
    assert row.used > row.allowed
    for each in readers:
        each.stopped = False
    one.run()
    one.advance(1.0)
    assert waiting(one) == 0
    two.advance(1.0)
    assert not two.core.context.memory.withheld, "what the other worker has returned is there"
    blocked.stopped = False
    two.run()
    two.advance(1.0)
    assert late.sender("q").credit > 0
    assert not two.core.context.portions, "the looks at portions end"
