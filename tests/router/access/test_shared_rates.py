"""Rates that the workers of a router have together: each has what its clients ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqpmesh.router.config.mesh import WorkerConfig
from amqpmesh.router.credit.places import Shared
from amqpmesh.router.credit.rate_line import RateOwner
from amqpmesh.router.credit.shared_rates import PERIOD, WHOLE, SharedRates
from amqpmesh.router.kernel import TokenBucket
from amqpmesh.router.runtime import poller
from tests.support.worlds.rated import Rated, limits

pytestmark = pytest.mark.skipif(poller.EPOLL is None, reason="this system has no epoll")

COUNT = 3
RATE, BURST = 1000.0, 200.0
OWNER = RateOwner("messages", "t")
POLICY = limits('messages = "200/s", burst = 0.5')


@contextmanager
def workers(folder: Path, count: int) -> Iterator[list[Rated]]:
    """Return the workers of a router, with a receiver and a sender each."""
    from amqpmesh.router.runtime.shared_counts import SharedCounts

    worlds, shared = [], []
    for number in range(1, 1 + count):
        config = WorkerConfig(name="A", number=number, count=count, folder=folder)
        world = Rated(POLICY, worker=config)
        shared.append(SharedCounts(config))
        world.core.context.rates.shared.share = shared[-1].places
        worlds.append(world)
        world.receiver("q")
    try:
        yield worlds
    finally:
        for each in shared:
            each.close()


def go(worlds: list[Rated], seconds: float) -> list[int]:
    """Let the senders of workers send, all at the same time. Returns: the messages that each has sent meanwhile."""
    before = [sum(each.sent.values()) for each in worlds]
    for _ in range(round(seconds / 0.02)):
        for each in worlds:
            each.go(0.02)
    return [sum(each.sent.values()) - count for each, count in zip(worlds, before, strict=True)]


def test_a_client_alone_gets_nearly_all_wherever_it_is(tmp_path: Path) -> None:
    with workers(tmp_path, 4) as worlds:
        worlds[2].sender("q")
        go(worlds, 1.0)
        assert go(worlds, 2.0)[2] == pytest.approx(400, abs=4)
        for at in (0, 1, 3):  # others who send nothing have a little, to begin with
            worlds[at].go(0.0)
            worlds[at].sender("q")
        silent = worlds[2]
        before = sum(silent.sent.values())
        silent.go(2.0)
        assert 380 <= sum(silent.sent.values()) - before <= 400


def test_clients_at_several_workers_share_it_equally(tmp_path: Path) -> None:
    with workers(tmp_path, 2) as worlds:
        for each in worlds:
            each.sender("q")
        total = sum(go(worlds, 1.0))
        assert total <= 200 + 2 * 100, "the rate, and what each may have at once"
        assert go(worlds, 2.0) == [pytest.approx(200, abs=8)] * 2


def test_one_that_comes_later_has_its_part_within_a_second_and_one_that_leaves_gives_it_back(tmp_path: Path) -> None:
    with workers(tmp_path, 2) as worlds:
        first, second = worlds
        first.sender("q")
        go(worlds, 1.0)
        late = second.sender("q")
        go(worlds, 1.0)
        assert go(worlds, 2.0) == [pytest.approx(200, abs=8)] * 2
        late.detach()
        second.run()
        go(worlds, 0.5)
        assert go(worlds, 2.0)[0] == pytest.approx(400, abs=4)


def test_what_one_does_not_use_the_other_has(tmp_path: Path) -> None:
    with workers(tmp_path, 2) as worlds:
        first, second = worlds
        busy, slow = first.sender("q"), second.sender("q")
        go(worlds, 1.0)
        other = second.sender("nobody receives there")
        before = first.sent[busy], second.sent[slow]
        for _ in range(40):  # 20 in a second
            if slow.credit:
                second.send_one(slow)
            first.go(0.05)
            second.go(0.05, [other])
        assert first.sent[busy] - before[0] >= 250
        assert second.sent[slow] - before[1] >= 35


def test_when_a_worker_ends_its_part_is_free(tmp_path: Path) -> None:
    from amqpmesh.router.runtime.shared_counts import SharedCounts

    config = WorkerConfig(name="A", number=2, count=2, folder=tmp_path)
    lost = SharedCounts(config)
    places = lost.places(OWNER._replace(limit="messages"), Shared.RATE)
    assert places is not None
    places.take_many(WHOLE, 0)
    with workers(tmp_path, 2) as worlds:
        worlds[0].sender("q")
        go(worlds, 1.0)
        assert go(worlds, 1.0)[0] == pytest.approx(100, abs=4)
        lost.close()  # as the system does for a process that ends
        go(worlds, 0.5)
        assert go(worlds, 1.0)[0] == pytest.approx(200, abs=4)


@given(st.lists(st.lists(st.sampled_from(["", "wait", "full"]), min_size=COUNT, max_size=COUNT), max_size=12))
def test_the_parts_of_all_are_never_more_than_the_rate_once_all_have_looked(
    tmp_path_factory: pytest.TempPathFactory, history: list[list[str]]
) -> None:
    from amqpmesh.router.runtime.shared_counts import SharedCounts

    folder = tmp_path_factory.mktemp("counts")
    counts = [SharedCounts(WorkerConfig(name="A", number=1 + at, count=COUNT, folder=folder)) for at in range(COUNT)]
    rates = [SharedRates() for _ in range(COUNT)]
    buckets = [TokenBucket(OWNER, 1.0, 1.0, False, 0.0) for _ in range(COUNT)]
    now = 0.0
    for each, shared, bucket in zip(rates, counts, buckets, strict=True):
        each.share = shared.places
        assert each.limit(bucket, OWNER, RATE, BURST, COUNT, now)
    for wanted in [*history, ["wait"] * COUNT, ["full"] * COUNT]:
        for _ in range(15):
            for each, bucket, want in zip(rates, buckets, wanted, strict=True):
                bucket.waiting = want == "wait"
                bucket.tokens = bucket.burst if want == "full" else 0.0
                if want == "wait":
                    each.want(bucket, now)
            now += PERIOD
            for each in rates:
                each.look(now)
        assert sum(each.rate for each in buckets) <= RATE * 1.02, "but for what one has claimed less at the end"
        assert sum(each.burst for each in buckets) <= BURST * 1.02 + COUNT
        waiting = [bucket.rate for bucket, want in zip(buckets, wanted, strict=True) if want == "wait"]
        assert all(one == pytest.approx(other, rel=0.1) for one, other in pairwise(waiting))
    assert not any(each._active for each in rates), "nobody looks at what nobody asks for"
    for each, bucket in zip(rates, buckets, strict=True):
        each.release(bucket)
    for shared in counts:
        places = shared.places(OWNER, Shared.RATE)
        assert places is not None
        assert places.others() == 0
        shared.close()
