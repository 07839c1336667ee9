"""The node `$management` of a running router: the first receiver within it, on a connection of its own."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from amqpmesh.router import logs, management
from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.config import ListenerConfig
from amqpmesh.router.io.client.attacher import Attacher
from amqpmesh.router.io.client.conversation import BATCH_TIME
from amqpmesh.router.io.client.delivery import Delivery
from amqpmesh.router.io.client.doors import Doors
from amqpmesh.router.io.client.inside import Inside
from amqpmesh.router.io.driver import Driver
from amqpmesh.router.statistics import Statistics
from amqpmesh.router.steps import Steps

T = TypeVar("T")

log = logs.EventLog("amqpmesh.io")

CREDIT = 20
"""Requests that may wait here; those that ask more wait at home."""

MAX_REQUEST_SIZE = 64 * 2**10
"""Octets: a request says little."""

REPLY_TIME = 5.0
"""Seconds for an answer to leave. Who asks and then takes no answer must not stop those who come after."""


class ManagementNode(Doors):
    """Takes requests, one after the other, and answers each."""

    def __init__(self, listener: ListenerConfig, survey: Callable[[], Steps[Statistics]]) -> None:
        """Args: listener: whose limits hold. survey: finds out how the router stands."""
        self._inside = Inside(listener, own=True)
        self._survey = survey
        self._ended = False

    @property
    def _home(self) -> Attacher:
        return self._inside

    def begin(self, driver: Driver, start: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """The router has started: from now on there is the node, and soon who serves it."""
        driver.core.addresses.keep(management.ADDRESS)
        self._inside.begin(driver, start)

    def end(self) -> None:
        """The router is about to end."""
        self._ended = True
        self._inside.end()

    async def serve(self) -> None:
        """Answer requests until the router ends. Raises: nothing; faults of ours are logged."""
        try:
            async with self.receiver(management.ADDRESS, credit=CREDIT, max_message_size=MAX_REQUEST_SIZE) as requests:
                async for delivery in requests:
                    await self._answer(delivery)
        except AmqpMeshError as error:
            if not self._ended:
                log.error("fault", exception=error, address=management.ADDRESS)

    async def _answer(self, delivery: Delivery) -> None:
        try:
            if delivery.message.reply_to is None:
                delivery.reject("amqp:invalid-field", "there is no reply-to")
                return
            statistics = await _in_turns(self._survey())
            response = await _in_turns(management.respond(delivery.message, statistics))
            delivery.accept()
            with trio.move_on_after(REPLY_TIME):
                await delivery.reply(response)
        except AmqpMeshError as error:
            # An unknown message-format, or an answer that cannot be sent. Is everything over, the next request says so.
            if not delivery.is_decided:
                delivery.reject("amqp:not-implemented", str(error))
        except Exception as error:
            log.error("fault", exception=error, address=management.ADDRESS)
            if not delivery.is_decided:
                delivery.modify(delivery_failed=True)


async def _in_turns(steps: Steps[T]) -> T:
    """The result; whatever else there is to do gets its turn in between."""
    began = time.perf_counter()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if time.perf_counter() - began > BATCH_TIME:
            await trio.lowlevel.checkpoint()
            began = time.perf_counter()
