"""Values that several statistics share: reasons, directions, and counts of outcomes."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """The reasons why nothing can be sent on a link, as people read them."""

    DETACHED = "link is detached"
    DRAINING = "router drains"
    MEMORY = "memory used up"
    # Of senders, and of their addresses.
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
    # Of senders alone.
    OTHERS = "receivers' credit is used by others"
    HELD = "window is full"
    # Of lanes alone.
    UNANSWERED = "lane is not attached yet"
    # Of receivers, and of neighbours that take lanes.
    RECEIVER_NO_CREDIT = "receiver gave no credit"
    RECEIVER_TOOK_BACK = "receiver took its credit back"
    RECEIVER_SPENT = "receiver's credit is used up"
    RECEIVER_WINDOW = "session window is closed"
    RECEIVER_UNREAD = "peer does not read"
    RECEIVER_UNSETTLED = "unsettled limit reached"


class Direction(StrEnum):
    """Which way the deliveries of a link go, as the router sees it."""

    INCOMING = "incoming"
    """From a sender: the peer is a producer."""
    OUTGOING = "outgoing"
    """To a receiver: the peer is a consumer."""


class ConnectionDirection(StrEnum):
    """Who opened a connection."""

    IN = "in"
    """The peer did."""
    OUT = "out"
    """The router did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """How deliveries ended. Those that went pre-settled have no outcome."""

    presettled: int
    """Deliveries that were settled before they were sent: at most once."""
    accepted: int
    rejected: int
    released: int
    modified: int
