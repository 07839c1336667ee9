"""The session window of a receiver in the router's process: wide for small messages, and for those only (§2.5.6)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from amqpmesh.router.client.receiver import Receiver
from amqpmesh.router.client.sender import Sender
from amqpmesh.router.runtime.router import Router

FRAMES = 8
BUFFER = FRAMES * 32 * 2**10
SMALL, LARGE = 100, 20_000


@asynccontextmanager
async def pair(credit: int = 2000) -> AsyncIterator[tuple[Receiver, Sender]]:
    """Attach a receiver whose buffer has room for few frames, and a sender."""
    async with (
        Router() as router,
        router.receiver("q", credit=credit, buffer=BUFFER) as receiver,
        router.sender("q") as sender,
    ):
        yield receiver, sender


async def fill(receiver: Receiver, sender: Sender, size: int) -> int:
    """Send until nothing moves any more, and take nothing. Returns: the messages that have arrived."""

    async def send() -> None:
        for _ in range(1000):
            await sender.transfer(bytes(size), settled=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return receiver.undecided


async def take(receiver: Receiver) -> None:
    """Take all that has arrived."""
    while receiver.undecided:
        await receiver.receive()
        await wait_all_tasks_blocked()


async def exchange(receiver: Receiver, sender: Sender, size: int, count: int) -> None:
    """Send and take messages, one after the other."""
    for _ in range(count):
        await sender.transfer(bytes(size), settled=True)
        await receiver.receive()
    await wait_all_tasks_blocked()


async def test_large_messages_fill_the_buffer_in_full_frames(autojump_clock: MockClock) -> None:
    async with pair() as (receiver, sender):
        assert await fill(receiver, sender, LARGE) == FRAMES


@pytest.mark.parametrize("before", [0, 20 * FRAMES])
async def test_small_messages_fill_it_with_eight_times_as_many(before: int, autojump_clock: MockClock) -> None:
    async with pair() as (receiver, sender):
        await exchange(receiver, sender, SMALL, before)
        assert await fill(receiver, sender, SMALL) == 8 * FRAMES


async def test_large_messages_fill_a_wide_window_once(autojump_clock: MockClock) -> None:
    async with pair() as (receiver, sender):
        await exchange(receiver, sender, SMALL, 20 * FRAMES)
        assert FRAMES < await fill(receiver, sender, LARGE) <= 8 * FRAMES
        await take(receiver)
        assert await fill(receiver, sender, LARGE) == FRAMES


async def test_a_large_message_now_and_then_keeps_it_narrow(autojump_clock: MockClock) -> None:
    async with pair() as (receiver, sender):
        for _ in range(20):
            await exchange(receiver, sender, SMALL, FRAMES - 1)
            await exchange(receiver, sender, LARGE, 1)
        assert await fill(receiver, sender, LARGE) == FRAMES


async def test_a_batch_of_small_messages_needs_no_decision(autojump_clock: MockClock) -> None:
    async with (
        Router(id="A") as router,
        router.receiver("q", credit=500, buffer=64 * 32 * 2**10) as receiver,
        router.sender("q") as sender,
    ):
        await exchange(receiver, sender, SMALL, 1000)
        before = counts(router)
        await fill(receiver, sender, SMALL)
        relayed, decided = counts(router)
        assert relayed - before[0] > 450
        assert decided - before[1] < 10


def counts(router: Router) -> tuple[int, int]:
    """Return the deliveries of the address that were relayed and decided."""
    (found,) = [each for each in router.statistics().addresses if each.name == "q"]
    return found.relayed, found.decided
