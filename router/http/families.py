"""The families of metrics: their names, types, meanings and labels, each declared once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from amqpmesh.router.kernel import LATENCY_BOUNDS

PREFIX: Final = "amqpmesh_"

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """A family of metrics.

    Attributes: `name`: without prefix; a counter's ends in `_total` where it is read. `values`: of the labels that a
        row gives further values for, one for each of its series; one empty mapping, if it has one series.
    """

    name: str
    kind: str
    help: str
    values: tuple[tuple[tuple[str, str], ...], ...] = ((),)

    @property
    def samples(self) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
        """The series of a row: of each, the end of its name, and its further labels."""
        if self.kind == HISTOGRAM:
            bounds = (*(repr(each) for each in LATENCY_BOUNDS), "+Inf")
            return (*(("_bucket", (("le", each),)) for each in bounds), ("_sum", ()), ("_count", ()))
        return tuple(("_total" if self.kind == COUNTER else "", each) for each in self.values)

    @property
    def full_name(self) -> str:
        """The name, as a scraper sees it."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == COUNTER else ''}"


def _by(label: str, *values: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    return tuple(((label, value),) for value in values)


_IN_AND_OUT: Final = _by("direction", "in", "out")
_OUTCOMES: Final = tuple(
    (("direction", "out"), ("outcome", each)) for each in ("accepted", "rejected", "released", "modified", "presettled")
)

ADDRESS: Final = (
    Family(
        "deliveries",
        COUNTER,
        "Deliveries received (in), and deliveries sent that are settled, by outcome (out).",
        ((("direction", "in"),), *_OUTCOMES),
    ),
    Family("deliveries_sent", COUNTER, "Deliveries sent, settled or not."),
    Family("transit_deliveries", COUNTER, "Deliveries from other routers (in), and to them (out).", _IN_AND_OUT),
    Family("message_bytes", COUNTER, "Octets of the messages received and sent.", _IN_AND_OUT),
    Family("undelivered", COUNTER, "Deliveries released or dropped because no receiver took them."),
    Family("decided", COUNTER, "Deliveries that the router had to decide about: these are slower."),
    Family(
        "link_credit_zero_seconds",
        COUNTER,
        "Seconds without credit of the senders (in) and receivers (out) of the address, all of them together.",
        _IN_AND_OUT,
    ),
    Family(
        "delayed_deliveries",
        COUNTER,
        "Deliveries whose outcome came more than so many seconds after their arrival.",
        _by("seconds", "1", "10"),
    ),
    Family("latency_samples", COUNTER, "Deliveries whose latency was taken, one in 64 of each link."),
    Family("latency_sample_seconds", COUNTER, "Their latencies, all of them together."),
    Family("oldest_unsettled_seconds", GAUGE, "The age of the oldest delivery sent and not settled; 0: there is none."),
    Family("waiting_deliveries", GAUGE, "Deliveries that wait for a receiver."),
    Family("waiting_bytes", GAUGE, "Octets of messages that wait."),
    Family("senders", GAUGE, "Sender links of clients at this router."),
    Family("receivers", GAUGE, "Receiver links at this router."),
)
"""Of an address: labels `address` and `tenant`."""

TENANT: Final = (
    Family("tenant_connection_bytes", COUNTER, "Octets of the tenant's connections.", _IN_AND_OUT),
    Family("tenant_deliveries", COUNTER, "Deliveries of the tenant's clients, received and sent.", _IN_AND_OUT),
    Family("tenant_expired", COUNTER, "Deliveries whose time to live ended in this router."),
    Family("tenant_denied", COUNTER, "Connections, links and messages that the policy did not permit."),
)
"""Of a tenant: label `tenant`."""

LATENCY: Final = (
    Family("latency_seconds", HISTOGRAM, "Times from arrival to the receiver's outcome, of one delivery in 64."),
)
"""Of a tenant: label `tenant`."""

NEIGHBOUR: Final = (
    Family("neighbour_bytes", COUNTER, "Octets received from a neighbour, and sent to it.", _IN_AND_OUT),
    Family("neighbour_up", GAUGE, "1 if the neighbour and this router receive each other's messages."),
    Family("neighbour_cost", GAUGE, "The cost of sending to the neighbour."),
)
"""Of a neighbour in the mesh: label `neighbour`, the id of the router."""

LISTENER: Final = (
    Family("listener_refused", COUNTER, "Connections refused because of the limit of connections."),
    Family("listener_connections", GAUGE, "Open connections of a listener."),
)
"""Of a listener: label `listener`, its name."""

ROUTER: Final = (
    Family("connection_bytes", COUNTER, "Octets received and sent, counted inside TLS.", _IN_AND_OUT),
    Family("expired", COUNTER, "Deliveries whose time to live ended in this router."),
    Family("duplicates", COUNTER, "Messages dropped because their message-ids were seen before."),
    Family("window_passed", COUNTER, "Message-ids forgotten because of their number, their time or the memory."),
    Family(
        "moved",
        COUNTER,
        "Changes of the routers among which message-ids are divided, and messages sent to another one.",
    ),
    Family("no_path", COUNTER, "Deliveries released because no path led to their destination."),
    Family("stolen_links", COUNTER, "Links that another connection took over."),
    Family("denied", COUNTER, "Connections, links and messages that the policy did not permit."),
    Family("limited", COUNTER, "Connections, sessions, links and dynamic nodes beyond a limit of the policy."),
    Family("spans", COUNTER, "Spans of messages that the collector of OpenTelemetry has taken."),
    Family("spans_lost", COUNTER, "Messages in the share of tracing without a span at the collector."),
    Family("unpublished_telemetry", COUNTER, "Messages with telemetry that no receiver took in time."),
    Family("resumed_links", COUNTER, "Links that clients have resumed after a lost connection."),
    Family("expired_links", COUNTER, "Ends of links that nobody resumed in time."),
    Family("evicted_links", COUNTER, "Ends of links that were given up before their time, for want of room."),
    Family(
        "resumed_deliveries",
        COUNTER,
        "Deliveries of links that came back: their outcome was told at once, or they went on without one.",
        _by("state", "outcome", "unsettled"),
    ),
    Family(
        "aborted_resumes",
        COUNTER,
        "Deliveries that a sender aborted, or settled before their outcome, when it came back.",
    ),
    Family("restated", COUNTER, "Deliveries for which a peer that came back had another outcome than the router."),
    Family("in_doubt", COUNTER, "Deliveries of peers that came back of which nothing was known."),
    Family("uptime_seconds", GAUGE, "Seconds since the router has started."),
    Family("draining", GAUGE, "1 if the router is stopping: it moves its clients away, or accepts nothing new."),
    Family("connections", GAUGE, "Open connections."),
    Family("links", GAUGE, "Attached links."),
    Family("resumable_links", GAUGE, "Links that may be resumed, those of clients that are away included."),
    Family("suspended_links", GAUGE, "Links of clients that are away."),
    Family("suspended_deliveries", GAUGE, "Their unsettled deliveries."),
    Family("suspended_bytes", GAUGE, "Octets of the memory that they take."),
    Family("addresses", GAUGE, "Addresses in use."),
    Family("unsettled_deliveries", GAUGE, "Deliveries in flight: arriving, waiting, or unsettled on one side."),
    Family("memory_bytes", GAUGE, "Octets of messages and output that wait."),
    Family("memory_limit_bytes", GAUGE, "The configured memory."),
    Family("mesh_routers", GAUGE, "Known routers of the mesh, including this one; 0: it is in none."),
    Family("mesh_reachable_routers", GAUGE, "Reachable routers, including this one; 0: it is in no mesh."),
)
"""Of the router as a whole: without labels."""

LEFT_OUT: Final = (Family("addresses_left_out", GAUGE, "Addresses that were asked for, and have no series here."),)
"""Of an answer that names addresses."""


def counters(families: tuple[Family, ...]) -> int:
    """Return the number of a row's series that are counters; they come first."""
    return sum(len(each.samples) for each in families if each.kind != GAUGE)


def series(families: tuple[Family, ...]) -> int:
    """Return the number of a row's series."""
    return sum(len(each.samples) for each in families)
