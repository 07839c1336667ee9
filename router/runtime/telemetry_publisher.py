"""A router's telemetry as messages: segments in memory, sent to the addresses at which all routers publish theirs.

No router waits for a receiver. What cannot be sent waits here, up to a number of octets; then the oldest is dropped.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from amqpmesh.policies.access import PUBLISHED
from amqpmesh.policies.groups import May
from amqpmesh.router.amqp.errors import AmqpMeshError
from amqpmesh.router.amqp.standard.definitions import SenderSettleMode
from amqpmesh.router.client.connections.in_process import InProcess
from amqpmesh.router.client.factory import LinkFactory
from amqpmesh.router.logs import event_log
from amqpmesh.router.message.content import Message
from amqpmesh.router.telemetry.schema import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from amqpmesh.policies.policy import Policy
    from amqpmesh.router.client.links.link_manager import LinkManager
    from amqpmesh.router.config.file import ListenerConfig
    from amqpmesh.router.runtime.driver import Driver

CONTENT_TYPE: Final = "application/vnd.amqpmesh.segment"
"""The content-type of the messages (§3.2.4): their body is a segment, as it would be in a file."""

PAUSE: Final = 1.0
"""Seconds before a link that ended is attached again."""

TOLD: Final = 10.0
"""Seconds between two log lines about dropped messages."""

TENANTS_A_STEP: Final = 1_000
"""Tenants that are looked at in one turn: half a millisecond."""

log = event_log.EventLog("amqpmesh.telemetry")


class _Feed:
    """The messages that wait for one address."""

    def __init__(self) -> None:
        self.waiting: deque[Message] = deque()
        self.octets = 0
        self.arrived = trio.Event()
        self.scope = trio.CancelScope()


class TelemetryPublisher(LinkFactory):
    """The sender of what one router records."""

    def __init__(self, listener: ListenerConfig, router: str) -> None:
        """Args: listener: the limits of its connection. router: the id of the router."""
        self._inside = InProcess(listener, own=True)
        self._router = router
        self._feeds: dict[str, _Feed] = {}
        #: What is offered is not sent.
        self._rests = False
        #: The keys of tenants of which some may listen to their part, by this policy.
        self._tenants: Sequence[str] = (EVERYTHING,)
        self._policy: Policy | None = None
        #: The secret of the policy, by which tenants get counters of delivery keys.
        self.key = b""
        #: The most octets that wait for one address.
        self._most = 0
        #: Messages that were dropped; those that the log has told of, and when.
        self.dropped = 0
        self._told = 0
        self._told_at = -math.inf

    @property
    def _link_manager(self) -> LinkManager:
        return self._inside

    def begin(self, driver: Driver, start: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """Allow messages: the router has started. Args: start: runs a task that ends with the router."""
        self._context = driver.core.context
        self._start = start
        self._token = trio.lowlevel.current_trio_token()
        self._inside.begin(driver, start)

    def end(self) -> None:
        """Send no more: the router stops."""
        self._inside.end()
        self.rest()

    def limit(self, octets: int) -> None:
        """Set the most octets that wait for one address."""
        self._most = octets

    async def wanted(self) -> frozenset[str]:
        """Return the keys of the tenants whose part somebody in the mesh listens to; `EVERYTHING`: to everything.

        A policy may have tens of thousands of tenants: others have their turn between some of them and the next.
        """
        policy, routes, nodes = self._context.policy, self._context.routes, self._context.nodes
        self._rests = False
        if policy is not self._policy:
            self._tenants = _listening(policy)
            self._policy = policy
            self.key = b"" if policy is None else policy.secret
        found = set()
        for number, key in enumerate(self._tenants, 1):
            if number % TENANTS_A_STEP == 0:
                await trio.lowlevel.checkpoint()
            name = published_at(key)
            local = nodes.find("", name)
            if (local is not None and local.outgoing) or routes.routers_with_consumers("", name):
                found.add(key)
        self._leave(key for key in self._feeds if key not in found)
        return frozenset(found)

    def rest(self) -> None:
        """Send nothing until `wanted` is asked again: the records are not published any more."""
        self._rests = True
        self._leave(self._feeds)

    def _leave(self, keys: Iterable[str]) -> None:
        # A feed that ends may take a second for that: who listens again meanwhile gets another one.
        for key in tuple(keys):
            self._feeds.pop(key).scope.cancel()

    def offer(self, tenant: str, name: str, octets: bytes) -> None:
        """Send a segment, if it can be sent. May be called by another thread.

        Args: tenant: its key, or `EVERYTHING`. name: of the segment.
        """
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._offered, tenant, name, octets)

    def _offered(self, tenant: str, name: str, octets: bytes) -> None:
        if self._rests or self._inside.failure is not None:
            return
        feed = self._feeds.get(tenant)
        if feed is None:
            feed = self._feeds[tenant] = _Feed()
            self._start(lambda: self._send(tenant, feed))
        message = Message(
            octets,
            subject=f"{self._router}.{name}",
            content_type=CONTENT_TYPE,
            application_properties={"router": self._router},
        )
        feed.waiting.append(message)
        feed.octets += len(octets)
        while feed.octets > self._most and len(feed.waiting) > 1:
            feed.octets -= _size(feed.waiting.popleft())
            self.dropped += 1
        feed.arrived.set()
        self._tell()

    async def _send(self, tenant: str, feed: _Feed) -> None:
        """Send the messages for an address, until nobody listens."""
        try:
            with feed.scope:
                while True:
                    try:
                        async with self.sender(
                            published_at(tenant), snd_settle_mode=SenderSettleMode.SETTLED
                        ) as sender:
                            while True:
                                while feed.waiting:
                                    message = feed.waiting.popleft()
                                    feed.octets -= _size(message)
                                    await sender.send(message, settled=True)
                                feed.arrived = trio.Event()
                                await feed.arrived.wait()
                    except AmqpMeshError as error:
                        log.warning("telemetry not published", address=published_at(tenant), reason=str(error))
                    await trio.sleep(PAUSE)
        finally:
            if self._feeds.get(tenant) is feed:
                del self._feeds[tenant]

    def _tell(self) -> None:
        now = trio.current_time()
        if self.dropped > self._told and now - self._told_at >= TOLD:
            log.warning("telemetry not published", messages=self.dropped - self._told, reason="nobody takes it in time")
            self._told, self._told_at = self.dropped, now


def _listening(policy: Policy | None) -> list[str]:
    """Return the keys of the tenants of which somebody may listen to their part, and `EVERYTHING`."""
    if policy is None:
        return [EVERYTHING]
    found = {each.tenant for each in policy.groups if May.TELEMETRY in each.may}
    if EVERYTHING in found:  # the operator's peers may listen to each part
        found.update(each.key for each in policy.tenants)
    return sorted(found | {EVERYTHING})


def published_at(tenant: str) -> str:
    """Return the address of what is recorded of a tenant. Args: tenant: its key, or `EVERYTHING`."""
    return f"{PUBLISHED}/{tenant}" if tenant else PUBLISHED


def _size(message: Message) -> int:
    body = message.body
    assert isinstance(body, bytes)
    return len(body)
