"""Fixtures of client tests: a limit of virtual time, and both kinds of link to a router."""

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

#: Seconds by the test's clock. Heartbeats keep virtual time going, so a test that waits for nothing reaches it soon.
END = 1000.0


def pytest_itemcollected(item: pytest.Item) -> None:
    """Bound it."""
    if isinstance(item, pytest.Function) and iscoroutinefunction(item.obj):
        item.obj = bounded(END)(item.obj)


@pytest.fixture(params=["in-process", "stream"])
async def factory(
    request: pytest.FixtureRequest, nursery: trio.Nursery, autojump_clock: MockClock
) -> AsyncIterator[LinkFactory]:
    """A router's own factory, and those of a connection to one; nothing is left behind either."""
    async with Router() as router:
        if request.param == "in-process":
            yield router
        else:
            async with joined(nursery, router) as connection:
                yield connection
    assert router.statistics().is_empty
