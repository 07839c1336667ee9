"""Credit sinks: links by which deliveries come, and the credit of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from amqpmesh.router.kernel.serial import _HALF, _MASK

if TYPE_CHECKING:
    from amqpmesh.router.kernel.credit_parts import CreditPart
    from amqpmesh.router.kernel.credit_pool import Pool
    from amqpmesh.router.kernel.credit_sources import CreditSource
    from amqpmesh.router.kernel.fast_route import FastRoute
    from amqpmesh.router.kernel.link_endpoint import KernelLink
    from amqpmesh.router.kernel.rate_meter import RateMeter

MANY_SENDERS: Final = 2
"""Credit of a sink that stands for any number of senders, in multiples of one sender's."""

#: Deliveries granted at a time that are many: a sink that got so many is expected to get more.
_MANY_GRANTED: Final = 32


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
        "link",
        "lowers",
        "meter",
        "owner",
        "part",
        "pool",
        "route",
        "source",
        "times",
        "waiting",
    )  # fmt: skip

    def __init__(self, delivery_count: int, owner: object = None, large: bool = False) -> None:
        self.owner = owner
        self.pool: Pool | None = None
        """The pool that has it; None: it has fixed credit, or was removed."""
        self.link: KernelLink | None = None
        """The incoming link; None: it is a share of the pool by another node."""
        self.source: CreditSource | None = None
        """Of a share: the source of the other node's pool."""
        self.route: FastRoute | None = None
        """Of a share: the route by which deliveries leave by it."""
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
        self.part: CreditPart | None = None
        """The part of its tenant; None: no other tenant has a sink there."""
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
        return _credit_of(self)

    @property
    def limit(self) -> int:
        """Return the latest delivery-limit: delivery-count + link-credit, a serial number."""
        return _limit_of(self)

    @property
    def credit_slack(self) -> int:
        """Return how many more deliveries may come and leave at once without a call of `grants`."""
        return _slack_of(self)

    def announce(self) -> int:
        """Return the link-credit for the next flow: its credit, and for a firm sink no less than before."""
        return _announce(self)

    def announce_ahead(self, count: int) -> None:
        """Have `announce` return at least `count` for a firm sink without deliveries, however little its credit is."""
        self._announced = (self.delivery_count + count) & _MASK


class Grant(NamedTuple):
    """A flow to send now, with the delivery-count of the sink."""

    sink: CreditSink
    credit: int
    """The link-credit to announce; it may be lower than the last."""
    drain: bool
    echo: bool
    """Ask for a flow in return: only that confirms a lower limit."""


def credit_ahead(delivery_count: int, of: int) -> int:
    """Return by how much a serial number is ahead of another; 0 if it is behind (RFC 1982)."""
    distance = (delivery_count - of) & _MASK
    return distance if distance < _HALF else 0


def _credit_of(sink: CreditSink) -> int:
    return sink.granted - sink._revoked


def _limit_of(sink: CreditSink) -> int:
    return (sink.delivery_count + sink.granted - sink._revoked) & _MASK


def _slack_of(sink: CreditSink) -> int:
    if sink._idle or sink.draining or sink._revoked:
        return 0
    return max(0, sink.granted - sink._low_at - 1)


def _announce(sink: CreditSink) -> int:
    if not sink.firm:
        return _credit_of(sink)
    limit = _limit_of(sink)
    if credit_ahead(limit, sink._announced):
        sink._announced = limit
    return credit_ahead(sink._announced, sink.delivery_count)


def allowed(sink: CreditSink, most: int, now: float) -> int:
    """Return how much more credit a sink may be granted of `most`, by its rates."""
    assert sink.meter is not None
    return min(most, sink.meter.room(sink.granted, now))


def granted(sink: CreditSink, count: int, lacking: int, now: float) -> None:
    """Note that a sink was granted credit. Args: lacking: what it was not granted, because of its rates."""
    meter = sink.meter
    assert meter is not None
    meter.grant(count, sink.granted, now)
    if lacking > 0:
        meter.line.join(meter, lacking, now)  # type: ignore[attr-defined]


def release(sink: CreditSink, now: float) -> None:
    """Pay back the tokens of a sink that is removed. No rate limits it any more."""
    meter, sink.meter = sink.meter, None
    assert meter is not None
    meter.line.limit(meter, (), 0, now)  # type: ignore[attr-defined]
