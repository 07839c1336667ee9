"""Fixtures of client tests: a limit of virtual time, and links of both kinds to a router."""

from __future__ import annotations

from collections.abc import AsyncIterator
from inspect import iscoroutinefunction

import pytest
import trio
from trio.testing import MockClock

from amqpmesh.router.client.factory import LinkFactory
from amqpmesh.router.runtime.router import Router
from tests.support.peers.library_client import joined
from tests.support.tasks.bounded import bounded

#: Seconds of virtual time. Heartbeats keep that time going, so a test that hangs soon reaches the limit.
END = 1000.0


def pytest_itemcollected(item: pytest.Item) -> None:
    """Limit the virtual time of the test."""
    if isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
        item.obj = bounded(END)(item.obj)


@pytest.fixture(params=["in-process", "stream"])
async def factory(
    request: pytest.FixtureRequest, nursery: trio.Nursery, autojump_clock: MockClock
) -> AsyncIterator[LinkFactory]:
    """Yield a router, or a connection to one, to make links with. Assert afterwards that nothing is left behind."""
    async with Router() as router:
        if request.param == "in-process":
            yield router
        else:
            async with joined(nursery, router) as connection:
                yield connection
    assert router.statistics().is_empty
