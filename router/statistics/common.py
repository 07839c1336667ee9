"""Values shared by several statistics: reasons, directions, and counts of outcomes."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """The reasons why nothing can be sent on a link, as users read them."""

    DETACHED = "link is detached"
    DRAINING = "router drains"
    MEMORY = "memory used up"
    # Of senders and their addresses.
    NO_RECEIVER = "no receiver anywhere"
    SPLIT = "no receiver in this part of the mesh"
    NO_PATH = "no path there"
    NO_LANE = "no lane there"
    ATTACHING = "lanes are being attached"
    ELSEWHERE = "the container elsewhere is not reached"
    NO_CREDIT = "receivers give no credit"
    FAR_NO_CREDIT = "receivers at other routers give no credit"
    SPENT = "receivers' credit is used up"
    WINDOWS = "receivers' session windows are closed"
    UNREAD = "receivers do not read"
    UNSETTLED = "receivers settle too little"
    SLOWEST = "a multicast waits for its slowest receiver"
    # Of senders only.
    OTHERS = "receivers' credit is used by others"
    HELD = "window is full"
    RATE = "rate is reached"
    # Of lanes only.
    UNANSWERED = "lane is not attached yet"
    # Of receivers, and of neighbours at the receiving end of lanes.
    RECEIVER_NO_CREDIT = "receiver gave no credit"
    RECEIVER_TOOK_BACK = "receiver took its credit back"
    RECEIVER_SPENT = "receiver's credit is used up"
    RECEIVER_WINDOW = "session window is closed"
    RECEIVER_UNREAD = "peer does not read"
    RECEIVER_UNSETTLED = "unsettled limit reached"


class Decision(StrEnum):
    """The reasons why the router decided about a delivery, rather than relay it as the one before, as users read them.

    A delivery counts for one reason, though several may apply.
    """

    OWN = "router's own message"
    REDELIVER = "redeliver is set"
    EXPIRY = "absolute_expiry is set"
    DUPLICATE = "sent before"
    MESSAGE_ID = "duplicates is set"
    ELSEWHERE = "address is elsewhere"
    STRICT = "strict_annotations is set"
    COPIES = "copy receivers"
    TRACED = "the message is traced"
    QUEUED = "behind waiting deliveries"
    EXCLUDED = "receiver is excluded"
    SLOWEST = "a receiver of a multicast is not ready"
    NO_CREDIT = "receivers give no credit"
    BUSY = "receivers are not ready"
    LARGE = "several frames"
    HEAD = "unusual message head"
    UNUSUAL = "unusual transfer"
    TRANSIT = "came by a transit lane"
    TREE = "multicast over routers"
    ANONYMOUS = "anonymous sender over routers"
    BY_LANE = "receivers at several distances"
    DETACHED = "unsettled deliveries of detached links"
    CHANGED = "route is new or has changed"
    NO_RECEIVER = "no receiver"
    REFUSED = "refused, aborted or incomplete"


class Direction(StrEnum):
    """The direction of a link's deliveries, as the router sees it."""

    INCOMING = "incoming"
    """From a sender: the peer is a producer."""
    OUTGOING = "outgoing"
    """To a receiver: the peer is a consumer."""


class ConnectionDirection(StrEnum):
    """The side that opened a connection."""

    IN = "in"
    """The peer opened it."""
    OUT = "out"
    """The router opened it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """The outcomes of deliveries. Pre-settled deliveries have none."""

    presettled: int
    """Deliveries that the sender sent settled (at most once)."""
    accepted: int
    rejected: int
    released: int
    modified: int
