"""The node `$management` of a running router: the first receiver within it, on a connection of its own."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from amqpmesh.router.amqp.codec.value_limits import FEW_VALUES
from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.client.connections.in_process import InProcess
from amqpmesh.router.client.delivery import Delivery
from amqpmesh.router.client.factory import LinkFactory
from amqpmesh.router.client.links.link_manager import LinkManager
from amqpmesh.router.config.file import ListenerConfig
from amqpmesh.router.incremental import Steps
from amqpmesh.router.io.environment import stopwatch_seconds
from amqpmesh.router.logs import event_log
from amqpmesh.router.management import service
from amqpmesh.router.mesh.costs import Costly
from amqpmesh.router.model.connections import brought_by
from amqpmesh.router.runtime.driver import Driver
from amqpmesh.router.statistics.router_statistics import Statistics

T = TypeVar("T")

log = event_log.EventLog("amqpmesh.io")

CREDIT = 4
"""Requests that may wait here; those that ask more wait at home, and whoever comes anew is behind so many only."""

MAX_REQUEST_SIZE = 8 * 2**10
"""Octets: a request says little, and all of it is decoded at once, if it holds no more than `FEW_VALUES`."""

SNAPSHOT_TIME = 0.2
"""Seconds for which all are told what was found out for one."""

PAGES_TIME = 30.0
"""The same for the pages of an answer behind the first: together they tell of one moment, and cost one survey."""

TURN_TIME = 0.002
"""Seconds after which the thread is given back. Relaying a delivery takes several turns, each of which may wait for one
of these."""

PAUSE = 3.0
"""Seconds without work for each second of it: whoever asks and asks gets a quarter of the thread's time, no more."""

REPLY_TIME = 5.0
"""Seconds for an answer to leave. Who asks and then takes no answer must not stop those who come after."""

FAULT_PAUSE = 1.0
"""Seconds after which the node comes back, where a fault of ours has ended its link: one that is there to stay costs a
few lines of the log a second, and no more."""


class ManagementNode(LinkFactory):
    """Takes requests, one after the other, and answers each."""

    def __init__(self, listener: ListenerConfig, survey: Callable[[], Steps[Statistics]]) -> None:
        """Args: listener: whose limits hold. survey: finds out how the router stands."""
        self._inside = InProcess(listener, own=True)
        self._take_snapshot = survey
        self._snapshot: tuple[float, Statistics] | None = None
        self._worked = 0.0
        self._driver: Driver | None = None
        self._start: Callable[[Callable[[], Awaitable[None]]], object] | None = None
        self._ended = False
        #: Of the task that waits until the survey is old; cancelled at the end, which would wait for it.
        self._forget_scope: trio.CancelScope | None = None

    @property
    def _home(self) -> LinkManager:
        return self._inside

    def begin(self, driver: Driver, start: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """The router has started: from now on there is the node, and soon who serves it."""
        self._driver = driver
        self._start = start
        driver.core.addresses.keep(service.ADDRESS)
        self._inside.begin(driver, start)

    def end(self) -> None:
        """The router is about to end."""
        self._ended = True
        if self._forget_scope is not None:
            self._forget_scope.cancel()
        self._inside.end()

    async def serve(self) -> None:
        """Answer requests until the router ends, on one link after the other. Raises: nothing; faults are logged."""
        while not self._ended:
            try:
                await self._serve_link()
            except Exception as error:
                if not self._ended:
                    log.error("internal error", exception=error, address=service.ADDRESS)
                    await trio.sleep(FAULT_PAUSE)

    async def _serve_link(self) -> None:
        async with self.receiver(
            service.ADDRESS, credit=CREDIT, max_message_size=MAX_REQUEST_SIZE, max_values=FEW_VALUES
        ) as requests:
            async for delivery in requests:
                await self._answer(delivery)

    async def _answer(self, delivery: Delivery) -> None:
        try:
            if delivery.message.reply_to is None:
                delivery.reject("amqp:invalid-field", "there is no reply-to")
                return
            statistics = await self._statistics(PAGES_TIME if service.goes_on(delivery.message) else SNAPSHOT_TIME)
            response = await self._in_turns(service.respond(delivery.message, statistics, self._changes(delivery.tag)))
            delivery.accept()
            with trio.move_on_after(REPLY_TIME):
                await delivery.reply(response)
        except AmqpMeshError as error:
            # An unknown message-format, or an answer that cannot be sent. Is everything over, the next request says so.
            if not delivery.is_decided:
                delivery.reject("amqp:not-implemented", str(error))
        except Exception as error:
            log.error("internal error", exception=error, address=service.ADDRESS)
            if not delivery.is_decided:
                delivery.modify(delivery_failed=True)

    def _changes(self, tag: bytes) -> service.Change | None:
        """What changes something for whoever has sent this delivery; None: they may change nothing."""
        driver = self._driver
        assert driver is not None
        asking = brought_by(driver.core, service.ADDRESS, tag)
        if asking is None or asking.listener is None or not asking.listener.manage:
            return None
        who = {"connection": asking.number, "host": asking.host, "user": asking.peer.user}

        def change(identity: str, told: Costly, cost: int) -> None:
            driver.core.set_cost(told, cost, trio.current_time())
            driver.settle()
            self._snapshot = None
            log.info("cost changed", of=identity, cost=cost, **who)

        return change

    async def _statistics(self, age: float) -> Statistics:
        """How the router stands, or stood less than `age` seconds ago."""
        if self._snapshot is None or trio.current_time() - self._snapshot[0] >= age:
            found = await self._in_turns(self._take_snapshot())
            if self._forget_scope is None and not self._ended:
                assert self._start is not None
                self._forget_scope = trio.CancelScope()
                self._start(self._forget)
            self._snapshot = trio.current_time(), found
        return self._snapshot[1]

    async def _forget(self) -> None:
        """Let go of what was found out, once it is told to nobody: it holds names of links that are gone."""
        assert self._forget_scope is not None
        with self._forget_scope:
            while self._snapshot is not None:
                until = self._snapshot[0] + PAGES_TIME
                if trio.current_time() < until:
                    await trio.sleep_until(until)
                else:
                    self._snapshot = None
        self._forget_scope = None

    async def _in_turns(self, steps: Steps[T]) -> T:
        """The result; in between, and before the next work, there are pauses for whatever else there is to do."""
        began = stopwatch_seconds() - self._worked
        while True:
            try:
                next(steps)
            except StopIteration as end:
                self._worked = stopwatch_seconds() - began
                result: T = end.value
                return result
            worked = stopwatch_seconds() - began
            if worked > TURN_TIME:
                await trio.sleep(worked * PAUSE)
                began = stopwatch_seconds()
