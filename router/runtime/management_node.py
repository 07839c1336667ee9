"""The `$management` node of a running router: a receiver within the router, over its own connection."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from amqpmesh.router.access.needs import is_of_dynamic_node
from amqpmesh.router.access.rights import NOT_PERMITTED, check_address, may_change
from amqpmesh.router.access.vouched import VouchedPeer, vouched_peer
from amqpmesh.router.amqp.codec.value_limits import FEW_VALUES
from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.amqp.standard.definitions import AmqpCondition
from amqpmesh.router.client.connections.in_process import InProcess
from amqpmesh.router.client.delivery import Delivery
from amqpmesh.router.client.factory import LinkFactory
from amqpmesh.router.client.links.link_manager import LinkManager
from amqpmesh.router.config.file import ListenerConfig
from amqpmesh.router.incremental import Steps
from amqpmesh.router.io.environment import stopwatch_seconds
from amqpmesh.router.logs import event_log
from amqpmesh.router.management import service
from amqpmesh.router.management.policy_upload import PUSH, PolicyUpload
from amqpmesh.router.message.content import Message
from amqpmesh.router.model.connections import ConnectionRecord, brought_by
from amqpmesh.router.model.refusal import RefusedError
from amqpmesh.router.runtime.driver import Driver
from amqpmesh.router.statistics.router_statistics import Costly, Statistics

T = TypeVar("T")

log = event_log.EventLog("amqpmesh.io")

CREDIT = 4
"""Requests that may wait here. Others wait at their senders, so a new client waits behind few requests only."""

MAX_REQUEST_SIZE = 8 * 2**10
"""Octets of a request at most: requests are short, and one of at most `FEW_VALUES` values is decoded at once."""

SNAPSHOT_TIME = 0.2
"""Seconds for which one snapshot of the router answers all requests."""

PAGES_TIME = 30.0
"""Seconds for which a snapshot answers requests for further pages: all pages show one moment, and cost one snapshot."""

TURN_TIME = 0.002
"""Seconds of work before other tasks get a turn. A delivery needs several turns to pass the router, and before each of
them it may wait as long as this.
"""

PAUSE = 3.0
"""Seconds without work for each second of work: endless requests get a quarter of the thread's time at most."""

REPLY_TIME = 5.0
"""Seconds to send an answer. A client that accepts no answer must not stop the requests of others."""

FAULT_PAUSE = 1.0
"""Seconds before the node attaches again after an internal error ended its link: a permanent error costs a few log
lines a second at most.
"""


class ManagementNode(LinkFactory):
    """The management node: it answers one request after the other."""

    def __init__(
        self,
        listener: ListenerConfig,
        survey: Callable[[], Steps[Statistics]],
        take_policy: Callable[[bytes], Awaitable[str | None]],
    ) -> None:
        """Args: listener: the limits of the node's connection. survey: takes a snapshot of the router.
        take_policy: puts a policy in force; returns the reason why it is not.
        """
        self._take_policy = take_policy
        self._upload = PolicyUpload()
        self._inside = InProcess(listener, own=True)
        self._take_snapshot = survey
        self._snapshot: tuple[float, Statistics] | None = None
        self._worked = 0.0
        self._driver: Driver | None = None
        self._start: Callable[[Callable[[], Awaitable[None]]], object] | None = None
        self._ended = False
        #: Cancels the task that drops an old snapshot; at the end the router would wait for that task.
        self._forget_scope: trio.CancelScope | None = None

    @property
    def _link_manager(self) -> LinkManager:
        return self._inside

    def begin(self, driver: Driver, start: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """Create the node; the router has started, and `serve` will answer requests."""
        self._driver = driver
        self._start = start
        driver.core.context.nodes.make_own(service.ADDRESS)
        self._inside.begin(driver, start)

    def end(self) -> None:
        """Stop; the router is about to end."""
        self._ended = True
        if self._forget_scope is not None:
            self._forget_scope.cancel()
        self._inside.end()

    async def serve(self) -> None:
        """Answer requests on one link after the other until the router ends. Raises: nothing; internal errors are
        logged.
        """
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
        self._upload.forget(trio.current_time())
        try:
            if delivery.message.reply_to is None:
                delivery.reject("amqp:invalid-field", "there is no reply-to")
                return
            asking = self._asking(delivery)
            if not self._may_have_answer(asking, delivery.message.reply_to):
                delivery.reject(AmqpCondition.UNAUTHORIZED_ACCESS, NOT_PERMITTED)
                return
            if delivery.message.application_properties.get("operation") == PUSH:
                response = await self._pushed(delivery.message, asking)
                delivery.accept()
                await self._reply(delivery, response)
                return
            statistics = await self._statistics(PAGES_TIME if service.goes_on(delivery.message) else SNAPSHOT_TIME)
            response = await self._in_turns(service.respond(delivery.message, statistics, self._changes(asking)))
            delivery.accept()
            await self._reply(delivery, response)
        except AmqpMeshError as error:
            # An unknown message-format, or an answer that cannot be sent. If the connection has ended, the next request
            # raises.
            if not delivery.is_decided:
                delivery.reject("amqp:not-implemented", str(error))
        except Exception as error:
            log.error("internal error", exception=error, address=service.ADDRESS)
            if not delivery.is_decided:
                delivery.modify(delivery_failed=True)

    async def _reply(self, delivery: Delivery, response: Message) -> None:
        with trio.move_on_after(REPLY_TIME):
            await delivery.reply(response)

    async def _pushed(self, request: Message, asking: ConnectionRecord | VouchedPeer | None) -> Message:
        """Take a piece of a policy; after the last one, put the policy in force."""
        if not self._may_change(asking):
            return service.refused(request, service.RequestError(service.FORBIDDEN, "not permitted"))
        try:
            data = self._upload.take(request, trio.current_time())
            reason = None if data is None else await self._take_policy(data)
            if reason is not None:
                raise service.RequestError(service.CONFLICT, reason)
        except service.RequestError as refusal:
            return service.refused(request, refusal)
        if data is not None:
            self._snapshot = None
        return service.answer(request, service.OK, "OK", {"complete": data is not None})

    def _may_change(self, asking: ConnectionRecord | VouchedPeer | None) -> bool:
        """Tell whether the sender of a request may make changes."""
        assert self._driver is not None
        if isinstance(asking, VouchedPeer):
            return asking.may_change
        return asking is not None and may_change(self._driver.core.context, asking)

    def _asking(self, delivery: Delivery) -> ConnectionRecord | VouchedPeer | None:
        """Return the sender of a request: its connection, or what its router says of it; None: it is not known."""
        assert self._driver is not None
        context = self._driver.core.context
        record = brought_by(context.nodes, service.ADDRESS, delivery.tag)
        return record or vouched_peer(context, delivery.message.delivery_annotations, delivery.payload)

    def _may_have_answer(self, asking: ConnectionRecord | VouchedPeer | None, address: str) -> bool:
        """Tell whether the answer may go to an address: the sender of the request must be allowed to send there.

        If the sender is not known, and there is a policy, answers go to dynamic nodes only.
        """
        assert self._driver is not None
        core = self._driver.core
        if core.context.policy is None:
            return True
        try:
            place = core.lookup.place(address)
            if isinstance(asking, VouchedPeer):
                return asking.may_read and asking.may_send(core.context, place.name, place.container)
            if asking is None:
                return is_of_dynamic_node(place.name)
            check_address(core.context, asking, place.name, place.container, sends=True)
        except RefusedError:
            return False
        return True

    def _changes(self, asking: ConnectionRecord | VouchedPeer | None) -> service.Change | None:
        """Return a function that makes changes for the sender of a request; None: the sender may make none."""
        driver = self._driver
        assert driver is not None
        who: dict[str, object]
        if asking is None or not self._may_change(asking):
            return None
        if isinstance(asking, VouchedPeer):
            who = {"router": asking.router, "host": asking.peer.host, "user": asking.peer.user}
        else:
            who = {"connection": asking.number, "host": asking.host, "user": asking.peer.user}

        def change(identity: str, told: Costly, cost: int) -> None:
            driver.core.set_cost(told, cost, trio.current_time())
            driver.settle()
            self._snapshot = None
            log.info("cost changed", of=identity, cost=cost, **who)

        return change

    async def _statistics(self, age: float) -> Statistics:
        """Return the router's statistics, at most `age` seconds old."""
        if self._snapshot is None or trio.current_time() - self._snapshot[0] >= age:
            found = await self._in_turns(self._take_snapshot())
            if self._forget_scope is None and not self._ended:
                assert self._start is not None
                self._forget_scope = trio.CancelScope()
                self._start(self._forget)
            self._snapshot = trio.current_time(), found
        return self._snapshot[1]

    async def _forget(self) -> None:
        """Drop the snapshot once no answer needs it: it holds names of links that are gone."""
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
        """Do all steps and return the result, with pauses for other tasks in between and before the next work."""
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
