"""Windows of lists: the part of a core that they cost, and of it the parts of tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from amqpmesh import ListenerConfig, Router
from amqpmesh.router.runtime import http_windows
from amqpmesh.router.runtime.snapshots import Work
from tests.support.peers.http_client import HttpClient

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock

HTTP = ListenerConfig(url="http://127.0.0.1:0", role="http")


async def test_a_tenant_that_asks_without_end_spends_its_own_part_alone(autojump_clock: MockClock) -> None:
    rows = http_windows.Allowances(0.01, 1.0)
    done = {"quiet": 0, "greedy": 0}
    for second in range(1, 1001):
        for tenant, often in (("quiet", second % 50 == 0), ("greedy", True)):
            if often and rows.of(tenant).is_left:
                rows.of(tenant).spend(0.1)
                done[tenant] += 1
        await trio.sleep(1.0)
    assert done["quiet"] == 20
    assert 40 <= done["greedy"] <= 70
    rows.keep()  # both have asked
    for _ in range(2):
        _ = rows.of("greedy").is_left
        rows.keep()
    await trio.sleep(100.0)
    for _ in range(200):
        await trio.sleep(1.0)
        rows.of("greedy").spend(0.0099)
    assert rows.of("greedy").is_left, "it has all that the other one had"


async def test_ever_other_orders_keep_no_snapshot_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(self: Work, steps: Any) -> Any:
        self.seconds += 0.1
        return steps

    monkeypatch.setattr(Work, "timed", timed)
    monkeypatch.setattr(http_windows, "LEAST_AGE", 0.0)
    monkeypatch.setattr(http_windows, "ORDER_PART", 1.0)
    async with Router(id="A", drain=0.1, listeners=[HTTP]) as router:
        client = HttpClient.of(router)
        for number in range(200):
            age = (await client.get(f"/api/address?count=1&filter=a{number}")).json["age"]
        with trio.fail_after(10):  # the work on all these orders would be worth 20 s
            while (before := age) <= (age := (await client.get("/api/address?count=1")).json["age"]):
                pass
        assert age < before
