"""Output of the core: all of it, or as much as there is time for."""

import trio

from amqpmesh.router.config.file import ListenerConfig, RouterConfig
from amqpmesh.router.core import Core
from amqpmesh.router.model.connections import ConnectionRecord
from amqpmesh.router.runtime.driver import Driver
from tests.support.tasks.stopwatches import measure

#: Parts of a large delivery, each of which can be written when the one before has left.
PARTS = 10


class Large:
    """A connection on which a large delivery leaves: there is always more output."""

    def __init__(self, core: Core, record: ConnectionRecord) -> None:
        self.core = core
        self.record = record
        self.left = PARTS
        self.seconds = 0.0

    def flush(self, now: float) -> None:
        self.seconds += 0.001
        self.left -= 1
        if self.left:
            self.core.context.on_output(self.record)


async def test_what_goes_on_whenever_some_of_it_has_left_is_let_out_as_long_as_there_is_time() -> None:
    core = Core(RouterConfig(), trio.current_time())
    measure(lambda: large.seconds)
    driver = Driver(core)
    record = core.accept(ListenerConfig(url="amqp://127.0.0.1:0"), "127.0.0.1", trio.current_time(), secured=False)
    large = Large(core, record)
    driver.connect(record, large)
    assert driver.settle(0.0015), "something is left"
    assert large.left == PARTS - 2
    assert driver.settle(0.0005)
    assert large.left == PARTS - 3
    assert not driver.settle(), "all has left"
    assert large.left == 0
    assert not driver.settle(0.0)
