"""State of a link endpoint that changes with each transfer (§2.6.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.kernel.delivery_keys import _OCTETS
from amqpmesh.router.kernel.encoded_states import _ACCEPTED, _MODIFIED, _REJECTED, _RELEASED, FAILED_STATE, state_kind

if TYPE_CHECKING:
    from amqpmesh.router.kernel.fast_deliveries import FastDelivery
    from amqpmesh.router.kernel.fast_route import FastRoute
    from amqpmesh.router.kernel.ledger import Delivery
    from amqpmesh.router.kernel.relays import Leg, Relay
    from amqpmesh.router.kernel.session_endpoint import KernelSession

#: Octets of a dictionary that are too many for each of its entries.
_ROOMY: Final = 250


class KernelLink:
    """A link endpoint: its state that changes with each transfer (§2.6.7), and its counters."""

    __slots__ = (
        "accepted",
        "available",
        "behind",
        "current",
        "deliveries",
        "delivery_count",
        "drain",
        "ended",
        "fallback_outcome",
        "fast_route",
        "granted_limit",
        "handle",
        "lane",
        "lane_to_lane",
        "last_at",
        "last_tag",
        "leg",
        "link_credit",
        "lowered",
        "max_message_size",
        "max_outstanding",
        "modified",
        "number",
        "octets",
        "outstanding",
        "part",
        "presettled",
        "quiet",
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
        "snd_settle_mode",
        "touched",
        "turn",
        "unsettled",
    )

    def __init__(
        self, session: KernelSession, sender: bool, record: object, unsettled: dict[bytes, Delivery | FastDelivery]
    ) -> None:
        self.session = session
        #: True: we are the sending endpoint.
        self.sender = sender
        #: What is known of the link elsewhere: to the engine, or to the router; and by which number in hop records.
        self.record = record
        self.number = 0
        #: The output handle; -1 while unassigned.
        self.handle = -1
        self.delivery_count = 0
        self.link_credit = 0
        #: Senders: the latest flow took back all credit; it did not just find some spent.
        self.lowered = False
        self.available = 0
        self.drain = False
        #: Receivers: the highest delivery-limit that the sender may still rely on. It falls only when the peer has
        #: shown that it knows the lower one, so transfers under the old limit are never an error.
        self.granted_limit = 0
        #: The delivery that is in the middle of its frames; transfers of one link never interleave (§2.6.14).
        self.current: Delivery | None = None
        #: The terminus' unsettled map, by delivery-tag (§2.6.13). A sender's has nothing of what was relayed without a
        #: decision: its tags are ours, and new.
        self.unsettled = unsettled
        #: But for what came by a lane, and leaves by one, with the same tag and one hop less: by the tag that it came
        #: with, until the receiver has settled it.
        self.lane_to_lane: dict[bytes, FastDelivery] = {}
        #: What our side takes at most, in bytes, of a sender what the peer takes; 0: no limit (§2.7.3).
        self.max_message_size = 0
        #: The link's rcv-settle-mode is second.
        self.second = False
        #: 0 unsettled, 1 settled, 2 mixed (§2.8.2).
        self.snd_settle_mode = 2
        #: It is a lane, to or from a neighbour.
        self.lane = False
        #: Senders: 1 / n of what may wait to be written is too much for it.
        self.part = 1
        #: Something changed that the record was not told of; and how many deliveries were relayed since it was.
        self.touched = False
        self.relayed = 0
        #: Receivers: how many more may be relayed before it is due; and the relay whose frames are coming in.
        self.quiet = 0
        self.relay: Relay | None = None
        #: When the last delivery came or left, seconds; -1: none has.
        self.last_at = -1.0
        #: Receivers: where what comes leaves; None: it is decided anew for each delivery. Senders: the route that it is
        #: one of. And the peer's handle, under which the kernel knows the link; -1: it does not.
        self.fast_route: FastRoute | None = None
        self.remote_handle = -1
        #: Receivers: what begins on it now may have to follow what came before it.
        self.behind = False
        #: Their source does not permit each outcome (§3.5.3, outcomes).
        self.selective = False
        #: Receivers: deliveries that their sender was told the outcome of, and has not settled. Senders: deliveries
        #: that are not settled; and how many there may be of either.
        self.outstanding = 0
        self.max_outstanding = 0
        #: Senders: the leg whose frames are being written, the last tag, and the number of the choice that took it.
        self.leg: Leg | None = None
        self.last_tag = 0
        self.turn = 0
        #: Nothing can be said of what is on it any more: a `Sweep` ends that. And of senders the outcome that stands
        #: where the receiver has given none.
        self.ended = False
        self.fallback_outcome = FAILED_STATE
        self.reset_counters()

    def compact(self) -> None:
        """Let go of the room that deliveries had: a dictionary keeps it until it is cleared, empty or not."""
        rooms: tuple[dict[bytes, Any], ...] = (self.unsettled, self.lane_to_lane)
        for room in rooms:
            if room.__sizeof__() > _ROOMY * (len(room) + 1):
                left = dict(room)
                room.clear()
                room.update(left)

    def has_tag(self, tag: bytes) -> bool:
        """Tell whether an unsettled delivery has this tag on this lane. Deliveries that began here do not count."""
        if tag in self.unsettled:
            return True
        last = len(tag) - 1
        return last >= 0 and tag[last] < 255 and tag[:last] + _OCTETS[tag[last] + 1] in self.lane_to_lane

    def reset_counters(self) -> None:
        """Begin to count anew."""
        #: Deliveries whose first frame was read or written, and their payload in bytes.
        self.deliveries = 0
        self.octets = 0
        #: Of those, the ones that were settled then; and how the others ended.
        self.presettled = 0
        self.accepted = 0
        self.rejected = 0
        self.released = 0
        self.modified = 0

    @property
    def has_counted(self) -> bool:
        """Tell whether a counter is not 0."""
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


def enable_fast_path(link: KernelLink, handle: int, route: FastRoute | None) -> None:
    """Let the kernel handle frames of a link without a decision.

    Of a receiver the kernel relays deliveries, by `route` while that is valid; without one it continues deliveries that
    have begun. Of a sender, which is a link of `route`, it applies flows that add credit.

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
