"""The end of a router in two stages: its clients are moved to other routers, then it drains and closes."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from amqpmesh.policies.redirect import Redirect
from amqpmesh.router.config.edits import EditError
from amqpmesh.router.config.urls import Endpoint
from amqpmesh.router.logs import event_log
from amqpmesh.router.management.drain_requests import arguments, drained
from amqpmesh.router.management.service import CONFLICT, NOT_IMPLEMENTED, RequestError, refused
from amqpmesh.router.runtime.noted_changes import note_recent
from amqpmesh.router.runtime.shared_config import POLL
from amqpmesh.router.runtime.shared_drain import Order

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from amqpmesh.router.config.file import RouterConfig
    from amqpmesh.router.core import Core
    from amqpmesh.router.management.drain_requests import Wanted
    from amqpmesh.router.message.content import Message
    from amqpmesh.router.runtime.admission import Admission
    from amqpmesh.router.runtime.driver import Driver
    from amqpmesh.router.runtime.reload import ConfigSource
    from amqpmesh.router.runtime.shared_config import SharedConfig
    from amqpmesh.router.runtime.shared_drain import SharedDrain

log = event_log.EventLog("amqpmesh.io")

CLOSE_TIME: Final = 1.0
"""Seconds that peers have to answer our `close` when the router ends."""

HEARING_TIME: Final = 0.25
"""Seconds that senders have, when the router drains, to receive the withdrawal of their credit and to confirm it."""

MOVE_TIME: Final = 60.0
"""Seconds for the move of all clients if neither the configuration nor a request has a number."""

OPEN_TIME: Final = 5.0
"""Seconds for the opening of connections that were accepted just before a successor had the listening sockets. Only one
that is open can be told to connect again.
"""

OPEN_LOOK: Final = 0.02
"""Seconds between two looks at them."""

FOLLOW_TIME: Final = 1.0
"""Seconds to wait until all workers have begun to move their clients."""

NOT_DRAINING: Final = "the router does not drain"


class EndSteps(NamedTuple):
    """The steps of the end, in this order."""

    stop_accepting: Callable[[], object]
    close_all: Callable[[], object]
    until_nobody_is_served: Callable[[], Awaitable[None]]
    drop_all: Callable[[], Awaitable[None]]


class Ending:
    """The end of a router."""

    def __init__(
        self,
        core: Core,
        driver: Driver,
        config: Callable[[], RouterConfig],
        steps: EndSteps,
        admission: Admission,
    ) -> None:
        """Args: config: returns the configuration in force."""
        self._admission = admission
        self._core = core
        self._driver = driver
        self._config = config
        self._steps = steps
        self._lock = trio.Lock()
        self._is_drained = False
        self._deadline = 0.0
        #: True once a request has asked for the end of the process.
        self._is_wanted = False
        #: True while a successor has the listening sockets: then the clients move to it, and that is not cancelled.
        self.is_succeeded = False
        #: With workers: called with True once other processes have the listening sockets, and with False if they died.
        self.on_succession: Callable[[bool], object] = lambda _: None
        #: With workers: the orders that all of them follow.
        self._shared: SharedDrain | None = None
        self._gives_order = False
        #: True until the answer to a request that ends the process has left.
        self._is_asked = False

    # ------------------------------------------------------------------------------------------------ moving clients

    @property
    def left(self) -> int:
        """The number of clients that are yet to be moved, of all workers."""
        return self._core.departure.left_in_all

    @property
    def moved(self) -> int:
        """The number of clients that were moved, or have left, since the move began, of all workers."""
        return self._core.departure.moved_in_all

    @property
    def is_moving(self) -> bool:
        """True from the begin of a move to its cancellation."""
        return self._core.departure.is_on

    @property
    def seconds_left(self) -> float:
        """The seconds until clients are moved no more, and the router drains."""
        return max(0.0, self._deadline - trio.current_time())

    def begin(self, pace: float | None = None, timeout: float | None = None) -> None:
        """Begin to move all clients, or go on at another pace, and ask the mesh for paths around this router.

        Args: pace: the share of the clients that is moved in a second. timeout: seconds. None: as configured.
        """
        config = self._config()
        timeout = config.drain_timeout or MOVE_TIME if timeout is None else timeout
        now = trio.current_time()
        self._deadline = now + timeout
        if not self.is_moving:
            note_recent(self._core.context, "drain begun", seconds=timeout)
        self._core.change(partial(self._begin, config.drain_pace if pace is None else pace, config.drain_to), now)
        self._driver.settle()

    def _begin(self, pace: float, urls: tuple[str, ...]) -> None:
        if self._core.mesh is not None:
            self._core.mesh.set_overload(overload=True)
        ends = map(Endpoint.parse, urls)
        places = [Redirect(hostname=each.host, network_host=each.host, port=each.port) for each in ends]
        self._core.departure.begin(pace, places)

    def cancel(self) -> bool:
        """Move no more clients, and take part in the mesh as before. Returns: whether clients were being moved."""
        if not self.is_moving or self.is_succeeded:
            return False
        self._is_wanted = False
        note_recent(self._core.context, "drain cancelled", moved=self.moved)
        self._core.change(self._cancel, trio.current_time())
        self._driver.settle()
        return True

    def _cancel(self) -> None:
        self._core.departure.cancel()
        if self._core.mesh is not None:
            self._core.mesh.set_overload(overload=False)

    async def until_moved(self) -> bool:
        """Wait until all clients are moved, the time is over, or the move is cancelled.

        Returns: whether all were moved.
        """
        departure = self._core.departure
        while departure.is_on and departure.left and (deadline := self._deadline) > trio.current_time():
            with trio.move_on_at(deadline):
                await self._driver.until(
                    partial(lambda at: not (departure.is_on and departure.left) or self._deadline != at, deadline)
                )
        return departure.is_on and not departure.left

    # ------------------------------------------------------------------------------------------------------- workers

    def share(self, shared: SharedDrain) -> None:
        """Follow the orders that one of the workers of this router gets, now and whenever `follow` is called."""
        self._shared = self._core.departure.shared = shared
        self.follow()

    def follow(self) -> None:
        """Follow the last order, unless this worker does."""
        if self._shared is None or self._gives_order:
            return
        order, departure = self._shared.order(), self._core.departure
        if order is None or order.number <= departure.order:
            return
        departure.order = order.number
        if order.is_succession != self.is_succeeded:
            self.is_succeeded = order.is_succession
            self.on_succession(order.is_succession)
        if order.moves:
            self.want(order.pace, order.seconds_left)
        else:
            self.cancel()
        self._shared.note(order.number, departure.left, departure.moved)

    async def order(self, config: SharedConfig, wanted: Wanted) -> None:
        """Have all workers move their clients, or keep them, and wait until they have begun.

        Raises: RequestError: there is nothing to cancel. EditError: another change takes too long. OSError.
        """
        assert self._shared is not None, "workers share their orders"
        async with config.locked():
            last = self._shared.order()
            if wanted.cancel and (last is None or not last.moves or last.is_succession):
                raise RequestError(CONFLICT, NOT_DRAINING)
            timeout = wanted.timeout
            if timeout is None:
                timeout = self._config().drain_timeout or MOVE_TIME
            number = 1 if last is None else last.number + 1
            self._shared.give(Order(number, not wanted.cancel, wanted.pace, time.monotonic() + timeout))
            # This worker follows last: once all have moved their clients the router ends, and it has to answer first.
            self._gives_order = True
            try:
                config.tell()
                with trio.move_on_after(FOLLOW_TIME):  # one that is being started again follows later
                    while not self._core.departure.others_follow(number):
                        await trio.sleep(POLL)
            finally:
                self._gives_order = False
                self.follow()

    async def until_it_stays(self) -> None:
        """Wait until the end of the process, which a request has asked for, is cancelled."""
        await self._driver.until(lambda: not self._is_wanted)

    @property
    def takes_time(self) -> bool:
        """True if the workers have clients to move before they end: then none of them ends before the others."""
        return self._shared is not None and (self.is_moving or bool(self._config().drain_timeout))

    # ------------------------------------------------------------------------------------ the end of a router's process

    def want(self, pace: float | None, timeout: float | None) -> None:
        """Begin as `begin` does, for a request after which the process has to end."""
        self._is_wanted = True
        self.begin(pace, timeout)

    def expect_answer(self) -> None:
        """Do not end the process before `answered`."""
        self._is_asked = True

    def answered(self) -> None:
        """Note that a request is answered: it may have asked for the end of the process."""
        if self._is_asked:
            self._is_asked = False
            self._driver.settle()

    async def until_wanted_and_moved(self) -> None:
        """Wait for such a request, and until its move is over."""
        while True:
            await self._driver.until(lambda: self._is_wanted and not self._is_asked)
            await self.until_moved()
            if self._is_wanted:
                return

    async def move_if_configured(self) -> None:
        """Move the clients after a signal, if the configuration has a time for it and there is another router."""
        if self.is_moving or (self._config().drain_timeout and self._has_others()):
            if not self.is_moving:
                self.begin()
            await self.until_moved()

    def _has_others(self) -> bool:
        """Return True if clients can go elsewhere: not to another worker of this router, which ends, too."""
        if self._config().drain_to:
            return True
        mesh, own = self._core.mesh, self._config().id
        if mesh is None:
            return False
        from amqpmesh.topology.workers import name_of  # here: a router of no mesh needs nothing of the topology

        topology = mesh.topology
        others = [each for each in topology.routers() if each != own and topology.distance(each) is not None]
        return any(name_of(own) is None or name_of(each) != name_of(own) for each in others)

    # ------------------------------------------------------------------------------------------------------- draining

    async def drain(self) -> bool:
        """Drain, as `Router.drain` does. Returns: True if everything was settled in time."""
        core, driver, steps = self._core, self._driver, self._steps
        async with self._lock:
            if self._is_drained:
                return True
            if self.is_succeeded:
                with trio.move_on_after(OPEN_TIME):
                    while self._admission.connecting():
                        await trio.sleep(OPEN_LOOK)
            steps.stop_accepting()
            core.start_drain(trio.current_time())
            driver.settle()
            until = trio.current_time() + self._config().drain
            with trio.move_on_at(until):
                # Deliveries may be on their way, sent with credit that is withdrawn now; not every peer confirms the
                # withdrawal.
                with trio.move_on_after(HEARING_TIME):
                    await driver.until(lambda: not core.has_credit_out)
                while not core.is_quiet:
                    await driver.until(lambda: core.is_quiet)
            settled = core.is_quiet
            steps.close_all()
            with trio.move_on_after(CLOSE_TIME):
                await steps.until_nobody_is_served()
            with trio.move_on_at(until):
                await self._admission.bridges.until_none()  # other workers serve them, and end later
            await steps.drop_all()
            self._is_drained = True
            return settled


async def answer_drain(
    ending: Ending, source: ConfigSource | None, request: Message, by: Mapping[str, object]
) -> Message:
    """Answer a request to move the clients away, after which the process ends.

    Args: source: of the command that has started the router; None: a program has. by: the sender, for the log.
    """
    try:
        wanted = arguments(request)
        if source is None:
            raise RequestError(NOT_IMPLEMENTED, "a program has started this router, and decides about its end")
        ending.expect_answer()
        if source.shared is not None:
            await ending.order(source.shared, wanted)
        elif not wanted.cancel:
            ending.want(wanted.pace, wanted.timeout)
        elif not ending.cancel():
            raise RequestError(CONFLICT, NOT_DRAINING)
    except EditError as error:
        return refused(request, RequestError(CONFLICT, str(error)))
    except OSError as error:
        return refused(request, RequestError(CONFLICT, error.strerror or str(error)))
    except RequestError as refusal:
        return refused(request, refusal)
    if wanted.cancel:
        log.info("drain cancelled", **by)
    else:
        log.info("drain requested", **by)
    return drained(request, moving=ending.is_moving, left=ending.left, moved=ending.moved, seconds=ending.seconds_left)
