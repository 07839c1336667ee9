"""The schema of telemetry: kinds of records, their fields with units and meanings, and the packing of hop records.

A *hop record* is one delivery as one router saw it: received on one link, and sent on one link or none. It is written
when nothing more about the delivery can follow at this router. Recording costs mostly octets, so a record is a unit of
four little-endian 64-bit words, and rare or large values are in extra units beside it; `PACKED` has the place of each
number. Records contain numbers of links; link records of the segment explain them. All other kinds are rare, and are
maps (`segments` has the file format).

A redelivered message has a new key for each attempt; the record of its ingress router has the key of the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import Final

VERSION: Final = 2
"""The version of this schema. A reader refuses other versions; it ignores unknown fields of maps."""

UNIT_WORDS: Final = 4
"""Words in a unit of hop records."""

UNIT_OCTETS: Final = 8 * UNIT_WORDS

KEY_OCTETS: Final = 20
"""Octets of a delivery key: the ingress router's number (8), its epoch (6), a counter (6)."""

EVERYTHING: Final = ""
"""In place of a tenant's key: the records of all tenants."""


class Kind(IntEnum):
    """The kind of a block's records."""

    SEGMENT = 1
    """One record: the router that writes the segment, and its start."""
    LINK = 2
    """The meaning of link numbers in later blocks."""
    EVENT = 4
    """Events of links."""
    COUNTS = 5
    """The counters of links, over all deliveries, whatever the sample."""
    EDGE = 6
    """Changes of the graph, as seen by the router."""
    END = 7
    """One record: the segment is complete, with its totals."""
    HOP = 8
    """Hop records, packed. (3 was their kind in version 1.)"""


class Type(Enum):
    """The type of a field's values."""

    STRING = "string"
    BINARY = "binary"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    """Signed, 64 bits."""
    TIME = "time"
    """Nanoseconds since 1970, by the router's own clock."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record."""

    name: str
    type: Type
    meaning: str
    unit: str = ""
    """The unit of a number."""
    optional: bool = False
    """True if it may be null: unknown, or there is none."""


class Unit(IntEnum):
    """The kind of a unit of hop records, in the highest octet of its word 2.

    In the unit of a hop record this octet has the flags, which are lower than the other kinds.
    """

    RECORD = 0
    """A hop record."""
    KEY = 0x80
    """The first octets of the keys of the following records, and the upper bits of their counters and times, until the
    next such unit. Each block begins with one.
    """
    WIDE = 0xC0
    """Rare values of the record before it, and the upper bits of its large numbers."""


@dataclass(frozen=True, slots=True)
class Bits:
    """The place of a number, or of its lower or upper bits."""

    unit: Unit
    word: int
    shift: int = 0
    bits: int = 64


PACKED: Final = {
    "time": (Bits(Unit.RECORD, 0, 0, 40), Bits(Unit.KEY, 2, 0, 24)),
    "ingress": (Bits(Unit.KEY, 0),),
    "epoch": (Bits(Unit.KEY, 1, 0, 48),),
    "counter": (Bits(Unit.RECORD, 1, 0, 32), Bits(Unit.KEY, 1, 48, 16)),
    "hops_left": (Bits(Unit.RECORD, 2, 36, 8),),
    "priority": (Bits(Unit.RECORD, 2, 44, 8),),
    "outcome": (Bits(Unit.RECORD, 2, 52, 4),),
    "flags": (Bits(Unit.RECORD, 2, 56, 8),),
    "incoming": (Bits(Unit.RECORD, 3, 0, 32),),
    "outgoing": (Bits(Unit.RECORD, 3, 32, 32),),
    "address": (Bits(Unit.WIDE, 3, 32, 32),),
    "attempt": (Bits(Unit.WIDE, 0, 48, 16),),
    "delivery_count": (Bits(Unit.WIDE, 1, 40, 16),),
    "size": (Bits(Unit.RECORD, 0, 40, 24), Bits(Unit.WIDE, 1, 0, 40)),
    "in_router": (Bits(Unit.RECORD, 1, 32, 32), Bits(Unit.WIDE, 3, 0, 32)),
    "outcome_after": (Bits(Unit.RECORD, 2, 0, 36), Bits(Unit.WIDE, 2, 0, 28)),
    "first": (Bits(Unit.WIDE, 0, 0, 48),),
    "condition": (Bits(Unit.WIDE, 2, 28, 28), Bits(Unit.WIDE, 1, 56, 4)),
}
"""The numbers of a hop record, with their places, lower bits first.

Without a wide unit `attempt` is 1, and the other values of that unit are 0. `incoming` and `outgoing` are numbers of
links; 0: there is none. `address` is the number of the link record with the address; 0: the incoming link's record has
it. `first` is the counter in the first attempt's key; 0: this is the first. `condition` is the number of the link
record with the condition of a rejection; 0: it was not rejected, or without a condition. A number that is too large for
its bits is stored as the largest that fits.
"""


class Flag(IntEnum):
    """The bits of `flags`."""

    SETTLED = 1
    """It arrived settled: at most once, and without an outcome."""
    BEGAN = 2
    """It entered the mesh at this router."""
    COPY = 4
    """It went to a receiver of copies."""
    TIMED = 8
    """It was sent, so `in_router` is known."""
    ANSWERED = 16
    """`outcome_after` is known."""


class Outcome(IntEnum):
    """The outcome of a delivery at this router; its number in `outcome`."""

    NONE = 0
    """Settled without an outcome, or its sender or receiver was lost."""
    ACCEPTED = 1
    REJECTED = 2
    RELEASED = 3
    MODIFIED = 4
    ABORTED = 5
    """Its sender aborted it."""
    EXPIRED = 6
    """Its ttl ended before it was sent."""
    UNDELIVERED = 7
    """There was no receiver for it."""


HOP: Final = (
    Field("router", Type.STRING, "the router that recorded the delivery"),
    Field("time", Type.TIME, "when the first frame of the delivery arrived", "ns since 1970"),
    Field(
        "key",
        Type.BINARY,
        "the delivery key, the same at every hop: the ingress router's number (8 octets), its epoch (6), a counter (6)",
    ),
    Field(
        "first_key",
        Type.BINARY,
        "the delivery key of the message's first attempt; null except at the ingress router",
        optional=True,
    ),
    Field(
        "hops_left",
        Type.INTEGER,
        "the hops that the delivery may still make: on arrival from a router, or at the ingress router on departure; 0 "
        "also if it neither came from a router nor left for one",
    ),
    Field("began", Type.BOOLEAN, "true at the ingress router, where the delivery entered the mesh"),
    Field(
        "attempt", Type.INTEGER, "the number of the attempt, from 1; null except at the ingress router", optional=True
    ),
    Field("address", Type.STRING, "the address of the delivery", optional=True),
    Field("tenant", Type.STRING, "the tenant of the address; empty without tenants", optional=True),
    Field("incoming_link", Type.STRING, "the name of the link on which the delivery arrived", optional=True),
    Field("incoming_peer", Type.STRING, "the container-id of the peer that sent it", optional=True),
    Field("from_router", Type.BOOLEAN, "true if that peer is a router of the mesh", optional=True),
    Field(
        "outgoing_link",
        Type.STRING,
        "the name of the link on which the delivery left; null if it did not leave",
        optional=True,
    ),
    Field("outgoing_peer", Type.STRING, "the container-id of the peer that it was sent to", optional=True),
    Field("to_router", Type.BOOLEAN, "true if that peer is a router of the mesh", optional=True),
    Field(
        "outcome",
        Type.STRING,
        "the outcome at this router: `none`, `accepted`, `rejected`, `released`, `modified`, `aborted`, `expired` or "
        "`undelivered`",
    ),
    Field(
        "condition",
        Type.STRING,
        "the error condition of a rejection; null if there is none",
        optional=True,
    ),
    Field("settled", Type.BOOLEAN, "true if the delivery arrived settled: it is delivered at most once"),
    Field("copy", Type.BOOLEAN, "true if it went to a receiver of copies, whose outcome does not reach the sender"),
    Field("size", Type.INTEGER, "the payload as sent or, if nothing was sent, as received", "octets"),
    Field(
        "in_router",
        Type.INTEGER,
        "the time from the first frame's arrival to the last frame's departure",
        "ns",
        optional=True,
    ),
    Field(
        "outcome_after",
        Type.INTEGER,
        "the time from the first frame's arrival until the outcome passed",
        "ns",
        optional=True,
    ),
    Field("priority", Type.INTEGER, "the priority in the header; 4 without one"),
    Field("delivery_count", Type.INTEGER, "the delivery-count in the header: attempts that failed before"),
)
"""A delivery at one hop, as readers get it."""

SEGMENT: Final = (
    Field("version", Type.INTEGER, "`VERSION`"),
    Field("router", Type.STRING, "the id of the router"),
    Field("epoch", Type.INTEGER, "when this life of the router began", "ms since 1970"),
    Field("segment", Type.INTEGER, "the number of the segment in this life, from 1"),
    Field("time", Type.TIME, "when the segment was started", "ns since 1970"),
    Field("sample", Type.INTEGER, "the share of delivery keys that are recorded", "2**-32"),
)

LINK: Final = (
    Field("number", Type.INTEGER, "the number of the link in hop records"),
    Field("name", Type.STRING, "the name of the link, or the text of a condition"),
    Field(
        "direction",
        Type.STRING,
        "`incoming` or `outgoing`; `address`: the record explains an address; `condition`: it explains a condition",
    ),
    Field("peer", Type.STRING, "the container-id of the peer; for the router's own links, its id", optional=True),
    Field("from_router", Type.BOOLEAN, "true if the peer is a router of the mesh, so the link is a lane"),
    Field("address", Type.STRING, "the address of the link; null if each delivery has its own", optional=True),
    Field("tenant", Type.STRING, "the tenant of the address", optional=True),
)


class Happening(StrEnum):
    """The kinds of events of a link."""

    UP = "up"
    """It was attached."""
    DOWN = "down"
    """It ended."""
    STOLEN = "stolen"
    """Another connection attached a link of its name."""
    REDIRECTED = "redirected"
    """Its attach was answered with a redirect."""
    REFUSED = "refused"
    """Its attach was refused."""
    SUSPENDED = "suspended"
    """It is about to end without its peer, and its end here is kept: the peer may resume it (§2.6.13)."""
    RESUMED = "resumed"
    """Its peer has resumed it, by another link of the same name."""
    EXPIRED = "expired"
    """Its peer can resume it no more."""
    CREDIT = "credit"
    """It had no credit for a while, and has some again: `waited`."""


EVENT: Final = (
    Field("router", Type.STRING, "the router that recorded the event"),
    Field("time", Type.TIME, "when the event happened", "ns since 1970"),
    Field(
        "happening",
        Type.STRING,
        "the event: `up`, `down`, `stolen`, `redirected`, `refused`, `credit` after a wait; `suspended`, `resumed` or "
        "`expired` of a link that outlives its connection",
    ),
    Field("link", Type.STRING, "the name of the link"),
    Field("direction", Type.STRING, "`incoming` or `outgoing`"),
    Field("peer", Type.STRING, "the container-id of the peer", optional=True),
    Field("address", Type.STRING, "the address of the link", optional=True),
    Field("tenant", Type.STRING, "the tenant of the address", optional=True),
    Field("error", Type.STRING, "the error condition of a refused or redirected attach", optional=True),
    Field("waited", Type.INTEGER, "for `credit`, the time without credit", "ns", optional=True),
)

COUNTS: Final = (
    Field("router", Type.STRING, "the router that recorded the counters"),
    Field("time", Type.TIME, "when the router read the counters", "ns since 1970"),
    Field(
        "since",
        Type.TIME,
        "when the router read the counters the time before; null the first time",
        "ns since 1970",
        optional=True,
    ),
    Field("number", Type.INTEGER, "the number of the link in this life of the router"),
    Field("link", Type.STRING, "the name of the link"),
    Field("direction", Type.STRING, "`incoming` or `outgoing`"),
    Field("peer", Type.STRING, "the container-id of the peer", optional=True),
    Field("from_router", Type.BOOLEAN, "true if the peer is a router of the mesh, so the link is a lane"),
    Field("address", Type.STRING, "the address of the link", optional=True),
    Field("tenant", Type.STRING, "the tenant of the address", optional=True),
    Field("deliveries", Type.INTEGER, "deliveries on the link since it was attached"),
    Field("octets", Type.INTEGER, "the payload of these deliveries", "octets"),
    Field("presettled", Type.INTEGER, "deliveries that were sent settled"),
    Field("accepted", Type.INTEGER, "deliveries that were sent unsettled and accepted"),
    Field("rejected", Type.INTEGER, "deliveries that were sent unsettled and rejected"),
    Field("released", Type.INTEGER, "deliveries that were sent unsettled and released"),
    Field("modified", Type.INTEGER, "deliveries that were sent unsettled and ended as modified"),
    Field("unsettled", Type.INTEGER, "deliveries that are unsettled at this time"),
    Field("credit", Type.INTEGER, "the credit of the link at this time", "deliveries"),
)

EDGE: Final = (
    Field("router", Type.STRING, "the router that recorded the change"),
    Field("time", Type.TIME, "when that router saw the change", "ns since 1970"),
    Field("origin", Type.STRING, "the router where the edge begins"),
    Field(
        "neighbour",
        Type.STRING,
        "the router where the edge ends; null if the row is about the router `origin` itself",
        optional=True,
    ),
    Field("cost", Type.INTEGER, "the cost of the edge in this direction; null if the edge is gone", optional=True),
    Field("whole", Type.BOOLEAN, "true if the row is part of a record of the whole graph; false if it is a change"),
)

END: Final = (
    Field("time", Type.TIME, "when the segment was closed", "ns since 1970"),
    Field("hops", Type.INTEGER, "hop records in the segment"),
    Field("blocks", Type.INTEGER, "blocks in the segment before this one"),
    Field(
        "dropped",
        Type.INTEGER,
        "hop records that this life of the router has lost: it had no room, or the disk was full",
    ),
)
FIELDS: Final = {
    Kind.SEGMENT: SEGMENT,
    Kind.LINK: LINK,
    Kind.HOP: HOP,
    Kind.EVENT: EVENT,
    Kind.COUNTS: COUNTS,
    Kind.EDGE: EDGE,
    Kind.END: END,
}
"""The fields of each kind; except for hop records, those of their maps. No map has `router`: the segment record
has it.
"""
