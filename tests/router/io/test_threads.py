"""Work in threads, beside the event loop."""

from __future__ import annotations

import threading
from typing import cast

import pytest
import trio
import trio.testing

from amqpmesh.router.amqp.sasl.mechanisms import Computation
from amqpmesh.router.io import threads
from amqpmesh.router.io.threads import LIGHT, aside, do


class Hash:
    """A long check of a password."""

    iterations = LIGHT + 1
    is_done = False

    def do(self) -> None:
        self.is_done = True


async def test_a_large_file_holds_up_no_login() -> None:
    """Even if there is one thread for all logins."""
    threads._THREADS.set(trio.CapacityLimiter(1))
    goes_on = threading.Event()
    login = Hash()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(aside, goes_on.wait, 5.0)
            await trio.testing.wait_all_tasks_blocked()
            await do(cast(Computation, login))
            assert login.is_done
            assert not goes_on.is_set()
            goes_on.set()


async def test_an_error_of_the_work_comes_back() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await aside(int, "x")
    assert await aside(int, "7") == 7
