"""Sums of the counts of several links; they also hold the counts of links that have ended."""

from __future__ import annotations

from operator import add
from typing import TYPE_CHECKING, Final, TypedDict

from amqpmesh.router.kernel import LATENCY_BOUNDS
from amqpmesh.router.statistics.common import Decision

if TYPE_CHECKING:
    from collections.abc import Iterable

    from amqpmesh.router.model.links import IncomingLink, OutgoingLink


#: The latencies of no delivery, by `LATENCY_BOUNDS`.
NO_LATENCIES: Final = (0,) * (len(LATENCY_BOUNDS) + 1)

#: The upper bounds as text, "inf" for latencies beyond the last one.
LATENCY_NAMES: Final = (*(f"{each:g}" for each in LATENCY_BOUNDS), "inf")


class ByOutcome(TypedDict):
    """Counts by outcome, as arguments of `Outcomes`."""

    presettled: int
    accepted: int
    rejected: int
    released: int
    modified: int


class Tally:
    """The deliveries that arrived and left on some links, with the outcomes that receivers gave."""

    __slots__ = (
        "accepted",
        "deliveries_in",
        "deliveries_out",
        "late",
        "latency",
        "latency_sum",
        "modified",
        "octets_in",
        "octets_out",
        "presettled",
        "rejected",
        "released",
        "transit_in",
        "transit_out",
        "very_late",
        "zero_credit_in",
        "zero_credit_out",
    )

    def __init__(self) -> None:
        self.deliveries_in = 0
        self.deliveries_out = 0
        #: Of these, the ones that came from other routers, or were sent there.
        self.transit_in = 0
        self.transit_out = 0
        #: Octets of messages.
        self.octets_in = 0
        self.octets_out = 0
        #: Seconds without credit, all links together.
        self.zero_credit_in = 0.0
        self.zero_credit_out = 0.0
        #: Deliveries whose outcome came after more than a second, and after more than ten.
        self.late = 0
        self.very_late = 0
        #: The latencies of one delivery in 64, by `LATENCY_BOUNDS`, and their sum in seconds.
        self.latency = NO_LATENCIES
        self.latency_sum = 0.0
        self.presettled = 0
        self.accepted = 0
        self.rejected = 0
        self.released = 0
        self.modified = 0

    def copy(self) -> Tally:
        """Return a copy."""
        other = Tally()
        for name in Tally.__slots__:
            setattr(other, name, getattr(self, name))
        return other

    def add_latency(self, latency: Iterable[int], seconds: float) -> None:
        """Add latencies. Args: latency: by `LATENCY_BOUNDS`. seconds: their sum."""
        self.latency = tuple(map(add, self.latency, latency))
        self.latency_sum += seconds

    def add(self, link: IncomingLink | OutgoingLink, now: float) -> None:
        """Add the counts of a link. Args: now: seconds."""
        counted = link.endpoint.flow_state
        if not counted.sender:
            self.deliveries_in += counted.deliveries
            self.octets_in += counted.octets
            self.zero_credit_in += link.zero_credit_seconds(now)
            if counted.lane:
                self.transit_in += counted.deliveries
            return
        self.deliveries_out += counted.deliveries
        self.octets_out += counted.octets
        self.zero_credit_out += link.zero_credit_seconds(now)
        self.late += counted.late
        self.very_late += counted.very_late
        if counted.latency is not None:
            self.add_latency(counted.latency, counted.latency_sum)
        if counted.lane:
            self.transit_out += counted.deliveries
        self.presettled += counted.presettled
        self.accepted += counted.accepted
        self.rejected += counted.rejected
        self.released += counted.released
        self.modified += counted.modified

    def outcomes(self) -> ByOutcome:
        """Return the outcomes under the names that statistics use."""
        return ByOutcome(
            presettled=self.presettled,
            accepted=self.accepted,
            rejected=self.rejected,
            released=self.released,
            modified=self.modified,
        )


class TenantCounts:
    """The counts of one tenant over the life of a router."""

    __slots__ = ("denied", "expired", "octets_in", "octets_out", "past", "stolen", "undelivered")

    def __init__(self) -> None:
        #: The counts of links that are gone.
        self.past = Tally()
        #: Octets of connections that are gone.
        self.octets_in = 0
        self.octets_out = 0
        self.undelivered = 0
        self.expired = 0
        self.stolen = 0
        self.denied = 0

    def copy(self) -> TenantCounts:
        """Return counts of the same values."""
        other = TenantCounts()
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.past = self.past.copy()
        return other


class Decisions:
    """The deliveries of an address that the router decided about, by reason. All others the kernel has relayed."""

    __slots__ = ("anonymous", "duplicates", "named", "reasons")

    def __init__(self) -> None:
        #: Deliveries of senders that are attached to the address, and of lanes to it; counted at the first frame.
        self.named = 0
        #: Deliveries of anonymous senders; counted once their address is known.
        self.anonymous = 0
        self.reasons: dict[Decision, int] = {}
        #: Those of them that were sent before.
        self.duplicates = 0

    def add(self, reason: Decision) -> None:
        """Count a delivery by its reason."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    @property
    def total(self) -> int:
        """The number of deliveries that the router decided about."""
        return self.named + self.anonymous

    def by_reason(self) -> dict[str, int]:
        """Return the counts, largest first. They add up to `total`."""
        counts = dict(self.reasons)
        rest = self.total - sum(counts.values())
        if rest > 0:
            counts[Decision.REFUSED] = counts.get(Decision.REFUSED, 0) + rest
        return {reason.value: counts[reason] for reason in sorted(counts, key=lambda each: -counts[each])}


#: The counts of nodes where the router has decided about no delivery; nothing is ever added to them.
NO_DECISIONS: Final = Decisions()
