"""Pages of metrics in virtual time: what puts off the next reading, and a client that is gone meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.router.http.requests import HttpError, Request
from amqpmesh.router.http.visitors import Visitor
from amqpmesh.router.runtime.http_metrics import MetricsPages
from tests.support.worlds.network import Network

ALL = Visitor.of("", None, {}, may_write=False)


class Slow:
    """Snapshots whose turns take a millisecond each."""

    async def in_turns(self, steps: Any) -> Any:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            await trio.sleep(0.001)


def pages_of(network: Network, monkeypatch: pytest.MonkeyPatch, most: int = 2000) -> MetricsPages:
    monkeypatch.setattr("amqpmesh.router.runtime.snapshots.stopwatch_seconds", trio.current_time)
    return MetricsPages(network.core, Slow(), lambda: (), lambda: most)  # type: ignore[arg-type]


async def ask(pages: MetricsPages, **query: str) -> str:
    return (await pages.answer(Request("GET", "/metrics", query, {}), ALL)).body.decode()


async def test_questions_for_addresses_do_not_put_off_the_next_reading(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    ticks = 0.0

    def stopwatch() -> float:
        nonlocal ticks
        ticks += 0.001
        return ticks

    network = Network()
    pages = pages_of(network, monkeypatch)
    monkeypatch.setattr("amqpmesh.router.runtime.snapshots.stopwatch_seconds", stopwatch)
    await ask(pages)
    worked = ticks
    network.client().receiver("news", credit=1)
    for number in range(100):
        await ask(pages, address=f"q/{number}")
    await trio.sleep(100 * worked)
    assert 'amqpmesh_receivers{address="news",tenant=""} 1' in await ask(pages, address="news")
    with pytest.raises(HttpError):
        await ask(pages, address="a" * 257)
    network.leave()


async def test_a_client_that_is_gone_while_the_counts_are_read_makes_nothing_count_twice(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    network = Network()
    consumer, producer = network.client(), network.client()
    for number in range(60):
        consumer.receiver(f"q/{number}", credit=1)
        producer.send(producer.sender(f"q/{number}"), b"\x00\x53\x77\xa1\x01x", settled=True)
    network.run()
    pages = pages_of(network, monkeypatch, 500)
    monkeypatch.setattr("amqpmesh.router.runtime.http_metrics.PART", 0)
    row = 'amqpmesh_deliveries_total{address="other",tenant="",direction="in"} '
    (before,) = [each for each in (await ask(pages)).splitlines() if each.startswith(row)]
    for patience in range(1, 400, 23):
        with trio.move_on_after(patience / 1000):
            await ask(pages)
    (after,) = [each for each in (await ask(pages)).splitlines() if each.startswith(row)]
    assert before == after
    assert float(before.removeprefix(row)) > 0
    network.leave()
