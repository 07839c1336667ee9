"""Waiting for a condition by the test's clock."""

from __future__ import annotations

from collections.abc import Callable

import trio

LONGEST = 1000.0
"""Seconds; none of these tests waits for a tenth of it."""


async def until(condition: Callable[[], object]) -> None:
    """Wait until it is true. Raises: trio.TooSlowError: it does not become true."""
    with trio.fail_after(LONGEST):
        while not condition():
            await trio.sleep(0.002)
