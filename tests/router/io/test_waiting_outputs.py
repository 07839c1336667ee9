"""Who waits until more can be written to a connection: what ends that, and for how long it lasts at most."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from amqpmesh.router.config import ListenerConfig, RouterConfig
from amqpmesh.router.connections import ConnectionRecord
from amqpmesh.router.core import Core
from amqpmesh.router.io.driver import IMPATIENCE, PATIENCE, Driver


class Waiting:
    """Counts how often it is told to go on."""

    def __init__(self) -> None:
        self.times = 0

    def go_on(self) -> None:
        self.times += 1


class Outlet:
    """Takes nothing."""

    def flush(self, now: float) -> None:
        pass


def connected(core: Core, driver: Driver) -> ConnectionRecord:
    record = core.accept(ListenerConfig(url="amqp://127.0.0.1:0"), "127.0.0.1", trio.current_time(), secured=False)
    driver.connect(record, Outlet())
    return record


async def test_it_ends_when_the_output_is_written_or_its_peer_says_something_or_is_gone() -> None:
    core = Core(RouterConfig(), trio.current_time())
    driver = Driver(core)
    sink, other = connected(core, driver), connected(core, driver)
    waiting = Waiting()
    for times, end in enumerate((driver.unblocked, driver.heard, driver.lost), 1):
        driver.wait(waiting, sink.engine.flow_state)
        driver.heard(other)
        assert driver.is_awaited
        assert waiting.times == times - 1
        end(sink)
        assert waiting.times == times
        assert not driver.is_awaited
    assert sink.engine.flow_state.slow_until == 0.0


async def test_it_ends_soon_in_any_case_and_then_nobody_waits_for_a_while(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    core = Core(RouterConfig(), trio.current_time())
    driver = Driver(core)
    nursery.start_soon(driver.keep_time)
    sink, later = connected(core, driver), connected(core, driver)
    first, second = Waiting(), Waiting()
    driver.wait(first, sink.engine.flow_state)
    await trio.sleep(PATIENCE / 2)
    driver.wait(second, later.engine.flow_state)
    await trio.sleep(PATIENCE * 0.6)
    assert (first.times, second.times) == (1, 0)
    assert sink.engine.flow_state.slow_until > trio.current_time() + IMPATIENCE - PATIENCE
    await trio.sleep(PATIENCE)
    assert (first.times, second.times) == (1, 1)
    assert not driver.is_awaited
    nursery.cancel_scope.cancel()
