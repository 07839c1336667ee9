"""The kernel's state of a link (§2.6.7)."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.kernel.delivery_keys import _OCTETS
from amqpmesh.router.kernel.encoded_states import _ACCEPTED, _MODIFIED, _REJECTED, _RELEASED, FAILED_STATE, state_kind

if TYPE_CHECKING:
    from amqpmesh.router.kernel.credit_sinks import CreditSink
    from amqpmesh.router.kernel.credit_sources import CreditSource
    from amqpmesh.router.kernel.fast_deliveries import FastDelivery
    from amqpmesh.router.kernel.fast_multicast import FastLeg, FastMulticast
    from amqpmesh.router.kernel.fast_route import FastRoute
    from amqpmesh.router.kernel.kept_messages import SentMessages
    from amqpmesh.router.kernel.ledger import Delivery
    from amqpmesh.router.kernel.rate_meter import RateMeter
    from amqpmesh.router.kernel.relays import Leg, Relay
    from amqpmesh.router.kernel.session_endpoint import KernelSession
    from amqpmesh.router.kernel.user_ids import UserIdRule

#: Octets of a dictionary for each entry above which `compact` rebuilds it.
_ROOMY: Final = 250

#: Upper bounds of latencies that are counted together, seconds; beyond the last one, all others are.
LATENCY_BOUNDS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 10.0)
_NO_LATENCIES: Final = array("Q", bytes(8 * (len(LATENCY_BOUNDS) + 1)))

#: Of so many deliveries of a link, the latency of one is counted. The others only if they are late: seconds.
_TIMED_OF: Final = 64
_LATE: Final = 1.0
_VERY_LATE: Final = 10.0


class KernelLink:
    """The state of a link endpoint that changes with each transfer (§2.6.7), and its counters."""

    __slots__ = (
        "accepted",
        "anonymous",
        "available",
        "behind",
        "could_take",
        "credit_slack",
        "creditor",
        "current",
        "deliveries",
        "delivery_count",
        "dirty",
        "drain",
        "dry_for",
        "dry_since",
        "ended",
        "fallback_outcome",
        "fast_route",
        "flipped",
        "flow_due",
        "granted_limit",
        "handle",
        "in_first",
        "is_watched",
        "keeps",
        "lane",
        "lane_to_lane",
        "last_at",
        "last_tag",
        "late",
        "latency",
        "latency_sum",
        "leg",
        "link_credit",
        "lowered",
        "max_message_size",
        "max_outstanding",
        "meter",
        "missed",
        "modified",
        "number",
        "octets",
        "outstanding",
        "parked",
        "part",
        "presettled",
        "raised",
        "record",
        "rejected",
        "relay",
        "relayed",
        "released",
        "remote_handle",
        "second",
        "selective",
        "sender",
        "session",
        "sink",
        "snd_settle_mode",
        "source",
        "timed",
        "turn",
        "unsettled",
        "user_ids",
        "very_late",
    )

    def __init__(
        self,
        session: KernelSession,
        sender: bool,
        record: object,
        unsettled: dict[bytes, Delivery | FastDelivery | FastMulticast],
    ) -> None:
        self.session = session
        #: True: we are the sending endpoint.
        self.sender = sender
        #: The record of the link in the engine or in the router. `number`: the link's number in hop records.
        self.record = record
        self.number = 0
        #: The output handle; -1: none is assigned.
        self.handle = -1
        self.delivery_count = 0
        self.link_credit = 0
        #: Senders: the last flow withdrew all credit, rather than cross deliveries that used it.
        self.lowered = False
        self.available = 0
        self.drain = False
        #: Receivers: the highest delivery-limit that the sender may rely on. It falls only after the sender has shown
        #: that it knows the lower one, so transfers under the old limit are no error.
        self.granted_limit = 0
        #: The delivery whose frames are incomplete; transfers of one link never interleave (§2.6.14).
        self.current: Delivery | None = None
        #: The terminus' unsettled map, by delivery-tag (§2.6.13). That of a sender does not hold fast deliveries: their
        #: tags are new ones of ours.
        self.unsettled = unsettled
        #: Fast deliveries and legs from lane to lane, which keep their tag with one hop less: by incoming tag, until
        #: the receiver has settled them.
        self.lane_to_lane: dict[bytes, FastDelivery | FastLeg] = {}
        #: Octets of the largest message: receivers: that we take, senders: that the peer takes; 0: no limit (§2.7.3).
        self.max_message_size = 0
        #: The link's rcv-settle-mode is second.
        self.second = False
        #: Receivers: the tags of deliveries that came in mode first, though their outcomes are kept as in second: their
        #: sender is away, or has not resumed them yet. None: there was none.
        self.in_first: set[bytes] | None = None
        #: 0 unsettled, 1 settled, 2 mixed (§2.8.2).
        self.snd_settle_mode = 2
        #: The link is a lane, to or from a neighbour.
        self.lane = False
        #: Senders: 1 / `part` of the connection's backlog is the most output that may wait for large deliveries.
        self.part = 1
        #: The link changed since its record was last updated. `relayed`: deliveries that were relayed since then.
        self.dirty = False
        self.relayed = 0
        #: Receivers: deliveries that may be relayed before an update is due. `relay`: the relay whose frames come in.
        self.credit_slack = 0
        self.relay: Relay | None = None
        #: Receivers: what the link may be granted of the rates that limit it; None: no rate does.
        self.meter: RateMeter | None = None
        #: Receivers: the user-ids that messages may have; None: all.
        self.user_ids: UserIdRule | None = None
        #: Receivers: its sink in the pool of its node. Senders: its source there. None: it has none.
        self.sink: CreditSink | None = None
        self.source: CreditSource | None = None
        #: Since when it has no credit, seconds; -1: it has some.
        self.dry_since = -1.0
        #: Receivers: the next flush writes the flow by which the kernel has granted credit. `raised`: the engine has
        #: not noted the limit that the kernel has granted last.
        self.flow_due = False
        self.raised = False
        #: Senders: its node knows that it has credit. `flipped`: it is to be told that this has changed.
        self.creditor = False
        self.flipped = False
        #: Senders of a multicast: it is looked at once its patience is over; and it could take a delivery since the
        #: router last looked.
        self.is_watched = False
        self.could_take = False
        #: The time of the last delivery, seconds; -1: there was none.
        self.last_at = -1.0
        #: Receivers: the route by which deliveries leave; None: the router decides for each. Senders: a route that uses
        #: the link. `remote_handle`: the peer's handle, by which the kernel finds the link; -1: it does not.
        self.fast_route: FastRoute | None = None
        self.remote_handle = -1
        #: Receivers: each message names its own address, and `fast_route` is a table of routes (`AnonymousRoutes`).
        self.anonymous = False
        #: Receivers: a new delivery may have to wait for earlier ones of this link.
        self.behind = False
        #: Receivers: the source does not permit every outcome (§3.5.3, outcomes).
        self.selective = False
        #: Receivers: deliveries whose outcome the sender knows, and which it has not settled. Senders: unsettled
        #: deliveries. `max_outstanding`: the limit of either.
        self.outstanding = 0
        self.max_outstanding = 0
        #: Senders: the leg whose frames are being written; the number of the last tag; the turn of the last choice.
        self.leg: Leg | None = None
        self.last_tag = 0
        self.turn = 0
        #: Senders: deliveries that the receiver missed: its backlog was full, or a multicast skipped it.
        self.missed = 0
        #: The link has ended: no frame can refer to its deliveries, and a `Sweep` ends them. `fallback_outcome`: of a
        #: sender: the outcome of deliveries whose receiver has stated none.
        self.ended = False
        self.fallback_outcome = FAILED_STATE
        #: Senders: the receiver may resume the link over another endpoint: until then no `Sweep` ends its deliveries.
        self.parked = False
        #: Senders: the messages that the receiver may ask for when it comes back; None: none are kept.
        self.keeps: SentMessages | None = None
        self.reset_counters()

    def compact(self) -> None:
        """Free the memory that deliveries have left: a dictionary keeps it until it is cleared."""
        rooms: tuple[dict[bytes, Any], ...] = (self.unsettled, self.lane_to_lane)
        for room in rooms:
            if room.__sizeof__() > _ROOMY * (len(room) + 1):
                left = dict(room)
                room.clear()
                room.update(left)

    def has_tag(self, tag: bytes) -> bool:
        """Return whether an unsettled delivery that did not enter the mesh here has this tag on this lane."""
        if tag in self.unsettled:
            return True
        last = len(tag) - 1
        return last >= 0 and tag[last] < 255 and tag[:last] + _OCTETS[tag[last] + 1] in self.lane_to_lane

    def reset_counters(self) -> None:
        """Set all counters to 0."""
        #: Deliveries whose first frame was read or written. `octets`: of their payload.
        self.deliveries = 0
        self.octets = 0
        #: Deliveries that were settled with their first frame; then the others, by outcome.
        self.presettled = 0
        self.accepted = 0
        self.rejected = 0
        self.released = 0
        self.modified = 0
        #: Seconds without credit, but for the time since `dry_since`.
        self.dry_for = 0.0
        #: Senders: deliveries whose outcome came after more than a second, and after more than ten.
        self.late = 0
        self.very_late = 0
        #: The latencies of a part of them, by `LATENCY_BOUNDS`, and their sum in seconds; None: there were none.
        self.latency: array[int] | None = None
        self.latency_sum = 0.0
        #: Deliveries until the next one of that part.
        self.timed = 0

    def add_counts(self, other: KernelLink) -> None:
        """Count the outcomes that another link has counted, which counts anew."""
        self.accepted += other.accepted
        self.rejected += other.rejected
        self.released += other.released
        self.modified += other.modified
        other.reset_counters()

    @property
    def has_counted(self) -> bool:
        """True if a counter is not 0."""
        return bool(self.deliveries or self.accepted or self.rejected or self.released or self.modified)

    def count_outcome(self, state: bytes | None) -> None:
        """Count a delivery that ended with `state`."""
        kind = state_kind(state)
        if kind == _ACCEPTED:
            self.accepted += 1
        elif kind == _RELEASED:
            self.released += 1
        elif kind == _MODIFIED:
            self.modified += 1
        elif kind == _REJECTED:
            self.rejected += 1

    def count_latency(self, seconds: float) -> None:
        """Count the time from a delivery's arrival to its receiver's outcome."""
        if seconds >= _LATE:
            self.late += 1
            if seconds >= _VERY_LATE:
                self.very_late += 1
        if self.timed:
            self.timed -= 1
        else:
            self.timed = _TIMED_OF - 1
            if self.latency is None:
                self.latency = _NO_LATENCIES[:]  # a copy costs a third of a new array: each new link makes one
            self.latency[bisect_left(LATENCY_BOUNDS, seconds)] += 1
            self.latency_sum += seconds


def enable_fast_path(link: KernelLink, handle: int, route: FastRoute | None) -> None:
    """Let the kernel handle frames of a link without a decision.

    On a receiver the kernel relays deliveries by `route` while it is valid; without a route it continues deliveries
    that have begun. On a sender, which is a link of `route`, it applies flows that add credit.

    Args: handle: the peer's.
    """
    link.fast_route = route
    link.remote_handle = handle
    link.session.links[handle] = link


def disable_fast_path(link: KernelLink) -> None:
    """Leave all frames of a link to the engine."""
    link.fast_route = None
    if link.remote_handle != -1:
        del link.session.links[link.remote_handle]
        link.remote_handle = -1
