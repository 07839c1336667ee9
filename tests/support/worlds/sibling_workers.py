"""The workers of one router, all in this process: each listens at a port of its own, so a test chooses who accepts."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import trio

from amqpmesh.router.attach.homes import ranking
from amqpmesh.router.config.file import ListenerConfig, RouterConfig
from amqpmesh.router.config.workers import worker_config
from amqpmesh.router.runtime.router import Router

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PATIENCE = 60.0
"""Seconds; nothing here takes one."""

LOOPBACK = ListenerConfig(url="amqp://127.0.0.1:0")


def router_config(**settings: object) -> RouterConfig:
    """Return the configuration of the router `A`, which listens on loopback."""
    return RouterConfig(**{"id": "A", "listeners": (LOOPBACK,), "drain": 0.1, **settings})  # type: ignore[arg-type]  # the tests' values


@asynccontextmanager
async def workers(config: RouterConfig, folder: Path, count: int = 2) -> AsyncIterator[list[Router]]:
    """Run all workers of a router, as neighbours of each other."""
    async with AsyncExitStack() as stack:
        found = [
            await stack.enter_async_context(Router(worker_config(config, number, count, folder)))
            for number in range(1, count + 1)
        ]
        await until(lambda: all(len(each.statistics().neighbours) == count - 1 for each in found))
        yield found


async def until(condition: object) -> None:
    """Wait for what other tasks bring about."""
    assert callable(condition)
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.sleep(0.001)


def address_at(number: int, count: int = 2, *, tenant: str = "") -> str:
    """Return an address whose hash selects a worker."""
    numbers = range(1, count + 1)
    return next(name for name in map("q{}".format, range(1000)) if ranking(tenant, name, numbers)[0] == number)


def clients(router: Router) -> int:
    """Return the number of clients that a worker serves."""
    return router.listeners[0].connections
