"""A limit of real time for tests with real peers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec

import trio

P = ParamSpec("P")


def bounded(seconds: float) -> Callable[[Callable[P, Awaitable[None]]], Callable[P, Awaitable[None]]]:
    """Make a test fail when it takes longer, by the real clock."""

    def decorate(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
        @wraps(test)
        async def within(*args: P.args, **kwargs: P.kwargs) -> None:
            with trio.fail_after(seconds):
                await test(*args, **kwargs)

        return within

    return decorate
