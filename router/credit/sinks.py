"""Credit sinks: links by which deliveries come, and the credit of each; and fixed credit for links without a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from amqpmesh.router.amqp.errors import CommandError
from amqpmesh.router.credit.rate_line import allowed, granted, release

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.router.kernel import RateMeter

SERIAL = 0xFFFF_FFFF
_HALF = 0x8000_0000

MANY_SENDERS = 2
"""Credit of a sink that stands for any number of senders, in multiples of one sender's."""


class CreditSink:
    """A link by which deliveries come, as its receiver sees it. `add_sink` makes it; every caller may read it."""

    __slots__ = (
        "_announced",
        "_answer_by",
        "_began",
        "_confirm_by",
        "_doubtful",
        "_idle",
        "_low_at",
        "_placed_at",
        "_plenty",
        "_raised",
        "_revoked",
        "_used_at",
        "available",
        "delivery_count",
        "draining",
        "drains",
        "firm",
        "granted",
        "large",
        "lowers",
        "meter",
        "owner",
        "times",
        "waiting",
    )  # fmt: skip

    def __init__(self, delivery_count: int, owner: object = None, large: bool = False) -> None:
        self.owner = owner
        self.large = large
        """The link carries large messages, while another link carries the rest of the same senders. A few deliveries at
        a time are enough for it."""
        self.delivery_count = delivery_count
        """A serial number, 0..2**32-1."""
        self.granted = 0
        """Deliveries that the peer may still send by the highest limit that a flow gave it, until it confirms a lower
        one. It may have sent them already."""
        self.available = 0
        """Deliveries that the peer has ready and no credit for, by its own account; never below 0 (§2.6.7)."""
        self.drains = True
        """The peer may be asked to drain. Others lose credit by a lower limit alone: some brokers fail when they
        are asked to drain."""
        self.firm = False
        """No flow lowers the limit of this peer, but it may be asked to drain. Clients with proton's engine send all
        that they have while their credit is not 0, and it is below 0 once the limit is below what they have sent."""
        self.lowers = False
        """Credit is taken back by a lower limit, as much as is needed. A drain would be passed on to all senders behind
        this peer, and take back everything."""
        self.times = 1
        """The most that it may hold, in multiples of what one sender may: it may stand for many."""
        self.meter: RateMeter | None = None
        """The share of the link in the rates that limit it; None: no rate does."""
        self.draining = False
        """The peer was asked to drain and has not answered."""
        self.waiting = 0
        """Deliveries from it that have come and not left."""
        self._began = delivery_count  # the delivery-count before its first delivery
        self._announced = delivery_count  # the highest limit that a flow gave it
        self._revoked = 0  # the part of `granted` that a flow took back and the peer has not confirmed
        self._raised = False  # the limit was raised again before the peer confirmed the lower one
        self._doubtful = False  # and lowered again: a flow that shows this limit may be older than the raise
        self._low_at = 0  # with this much credit or less, the sink needs more
        self._plenty = False  # it was granted much at a time, and never waited long for more since
        self._used_at = 0.0  # when it last used credit, or got some after it had none
        self._idle = False  # it has not used its credit for a while
        self._placed_at = 0.0  # when it was last found to be busy
        self._answer_by = 0.0  # asked to drain because others starve: when the wait for its answer ends
        self._confirm_by = 0.0  # its limit was lowered: when the wait for its answer ends

    @property
    def credit(self) -> int:
        """Return its link-credit by the latest limit: `granted` less what was taken back."""
        return self.granted - self._revoked

    @property
    def limit(self) -> int:
        """Return the latest delivery-limit: delivery-count + link-credit, a serial number."""
        return (self.delivery_count + self.granted - self._revoked) & SERIAL

    @property
    def credit_slack(self) -> int:
        """Return how many more deliveries may come and leave at once without a call of `grants`."""
        if self._idle or self.draining or self._revoked:
            return 0
        return max(0, self.granted - self._low_at - 1)

    def announce(self) -> int:
        """Return the link-credit for the next flow: its credit, and for a firm sink no less than before."""
        if not self.firm:
            return self.credit
        if ahead(self.limit, self._announced):
            self._announced = self.limit
        return ahead(self._announced, self.delivery_count)


class Grant(NamedTuple):
    """A flow to send now, with the delivery-count of the sink."""

    sink: CreditSink
    credit: int
    """The link-credit to announce; it may be lower than the last."""
    drain: bool
    echo: bool
    """Ask for a flow in return: only that confirms a lower limit."""


def ahead(delivery_count: int, of: int) -> int:
    """Return by how much a serial number is ahead of another; 0 if it is behind (RFC 1982)."""
    distance = (delivery_count - of) & SERIAL
    return distance if distance < _HALF else 0


class FixedCredit:
    """A fixed number of deliveries for each sink, independent of the receivers: for links without an address.

    Each message of an anonymous sender has its own address, so no consumer's credit can be the sender's. The class has
    the methods that a pool has for its sinks.

    Args: window: deliveries granted and waiting, per sink.
    """

    def __init__(self, window: int = 64) -> None:
        self.window = window
        self.capacity = window
        """Deliveries that may be granted or wait; of them no more than the window are granted."""
        self._suspended = False
        self._inputs: dict[CreditSink, None] = {}
        self._low: dict[CreditSink, None] = {}
        self._asked: list[CreditSink] = []  # sinks to be asked to drain

    @property
    def sinks(self) -> Iterable[CreditSink]:
        """Return all sinks."""
        return self._inputs

    def add_sink(self, delivery_count: int, owner: object = None, large: bool = False) -> CreditSink:
        """Add a sink, as `Pool.add_sink` does."""
        sink = CreditSink(delivery_count, owner, large)
        self._inputs[sink] = None
        self._low[sink] = None
        return sink

    def remove_sink(self, sink: CreditSink, now: float) -> None:
        """Remove a sink. `forwarded` is still called for each of its waiting deliveries."""
        self._inputs.pop(sink, None)
        self._low.pop(sink, None)
        if sink.meter is not None:
            release(sink, now)

    def received(self, sink: CreditSink, now: float) -> None:  # noqa: ARG002 - as a pool's
        """Record that the first frame of a delivery came. Runs per delivery."""
        sink.delivery_count = (sink.delivery_count + 1) & SERIAL
        sink.waiting += 1
        if sink.available:
            sink.available -= 1
        if sink.granted:
            sink.granted -= 1

    def forwarded(self, sink: CreditSink, now: float) -> None:  # noqa: ARG002 - as a pool's
        """Record that the first frame of a delivery has left, or that it will never leave. Runs per delivery.

        Raises: CommandError: no delivery of this sink waits.
        """
        if not sink.waiting:
            raise CommandError("forwarded: no delivery of this sink waits")
        sink.waiting -= 1
        self._note_low(sink)

    def held(self, sink: CreditSink) -> int:
        """Return the number of waiting deliveries that use up the window."""
        return sink.waiting

    def relayed(self, sink: CreditSink, count: int, now: float) -> None:  # noqa: ARG002 - as a pool's
        """Record deliveries that came and left at once, as `Pool.relayed` does."""
        sink.delivery_count = (sink.delivery_count + count) & SERIAL
        sink.available = max(0, sink.available - count)
        sink.granted = max(0, sink.granted - count)
        self._note_low(sink)

    def credit_slack(self, sink: CreditSink) -> int:
        """Return how many more deliveries of a sink may come and leave at once before it may get credit."""
        if sink.draining:
            return 0
        if sink.meter is not None and sink.granted <= self.window // 2:
            return sink.granted // 2
        return max(0, sink.granted - max(0, self.window // 2 - self.held(sink)) - 1)

    def flow_received(
        self,
        sink: CreditSink,
        delivery_count: int,
        link_credit: int | None,  # noqa: ARG002 - as a pool's
        available: int | None,
        now: float,  # noqa: ARG002 - as a pool's
    ) -> None:
        """Record the peer's flow, which may return credit unasked (§2.6.7)."""
        if spent := ahead(delivery_count, sink.delivery_count):
            sink.delivery_count = delivery_count
            sink.granted = max(0, sink.granted - spent)
            self._low[sink] = None
        if available is not None:
            sink.available = available

    def set_suspended(self, suspended: bool) -> None:
        """Suspend or resume: while the router's memory is used up, or the router drains, credit is taken back."""
        if suspended != self._suspended:
            self._suspended = suspended
            self._low.update(self._inputs)

    def resume(self, sink: CreditSink) -> None:
        """Note that a sink that waited for a rate may be granted credit, as `Pool.resume` does."""
        if sink in self._inputs:
            self._low[sink] = None

    def reclaim_unused(self, sink: CreditSink, now: float) -> bool:  # noqa: ARG002 - as a pool's
        """Take credit back that a sink does not use, as `Pool.reclaim_unused` does."""
        if sink.draining or not sink.granted:
            return False
        sink.draining = True
        self._asked.append(sink)
        return True

    def grants(self, now: float) -> list[Grant]:
        """Return the flows to send now, at most one per sink. The router calls this once after each batch of events."""
        flows = [Grant(sink, sink.announce(), True, False) for sink in self._asked]
        self._asked.clear()
        if not self._low:
            return flows
        if self._suspended:
            for sink in [each for each in self._low if each.granted and not each.draining]:
                if sink.firm:
                    sink.draining = True
                else:
                    sink.granted = 0
                flows.append(Grant(sink, sink.announce(), sink.draining, not sink.firm))
            return flows
        for sink in self._low:
            room = max(0, min(self.window, self.capacity - self.held(sink)) - sink.granted)
            lacking = 0
            if room and sink.meter is not None:
                wanted = max(0, min(room, sink.meter.limit() - sink.granted))
                room = allowed(sink, wanted, now)
                lacking = wanted - room
            if room or sink.draining:
                sink.granted += room
                sink.draining = False
                flows.append(Grant(sink, sink.announce(), False, False))
            if sink.meter is not None:
                granted(sink, room, lacking, now)
        self._low.clear()
        return flows

    def _note_low(self, sink: CreditSink) -> None:
        """Note that a sink may get credit if half of the window is free, or the sink has none."""
        if sink in self._inputs and ((sink.granted + self.held(sink)) * 2 <= self.window or not sink.granted):
            self._low[sink] = None
