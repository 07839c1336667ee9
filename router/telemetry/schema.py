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
    """The kind of a unit of hop records: the highest octet of its word 2. In a hop record it has the flags, which are
    lower.
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
    Field("router", Type.STRING, "the router that recorded it"),
    Field("time", Type.TIME, "when its first frame had come", "ns since 1970"),
    Field(
        "key",
        Type.BINARY,
        "the delivery key: the ingress router's number (8 octets), its epoch (6), a counter (6), the same at every hop",
    ),
    Field("first_key", Type.BINARY, "the key of its first try; known where it began its way", optional=True),
    Field(
        "hops_left",
        Type.INTEGER,
        "how many hops it might still make when it came; where it began its way, when it left; 0: it has not left for "
        "another router, and came from none",
    ),
    Field("began", Type.BOOLEAN, "it began its way through the mesh here"),
    Field("attempt", Type.INTEGER, "the number of the try, from 1; known where it began its way", optional=True),
    Field("address", Type.STRING, "where it goes", optional=True),
    Field("tenant", Type.STRING, "whose address that is; empty without tenants", optional=True),
    Field("incoming_link", Type.STRING, "the name of the link that it came by", optional=True),
    Field("incoming_peer", Type.STRING, "the container-id at the other end of that", optional=True),
    Field("from_router", Type.BOOLEAN, "that is a router of the mesh", optional=True),
    Field("outgoing_link", Type.STRING, "the name of the link that it left by; null: it has not left", optional=True),
    Field("outgoing_peer", Type.STRING, "the container-id at the other end of that", optional=True),
    Field("to_router", Type.BOOLEAN, "that is a router of the mesh", optional=True),
    Field("outcome", Type.STRING, "how it ended here (`Outcome`), in small letters"),
    Field(
        "condition", Type.STRING, "of the error that it was rejected with; null: it was not, or without", optional=True
    ),
    Field("settled", Type.BOOLEAN, "it came settled: at most once"),
    Field("copy", Type.BOOLEAN, "it went to a receiver of copies, whose outcome counts for nobody"),
    Field("size", Type.INTEGER, "its payload, as it left or, if it has not, as it came", "octets"),
    Field("in_router", Type.INTEGER, "from its first frame coming to its last one leaving", "ns", optional=True),
    Field("outcome_after", Type.INTEGER, "from its first frame coming to its outcome passing", "ns", optional=True),
    Field("priority", Type.INTEGER, "of its header; 4 without one"),
    Field("delivery_count", Type.INTEGER, "of its header: tries that failed before it came here"),
)
"""A delivery at one hop, as readers get it."""

SEGMENT: Final = (
    Field("version", Type.INTEGER, "`VERSION`"),
    Field("router", Type.STRING, "the router's id"),
    Field("epoch", Type.INTEGER, "when this life of it began", "ms since 1970"),
    Field("segment", Type.INTEGER, "the number of the segment in this life, from 1"),
    Field("time", Type.TIME, "when it was begun", "ns since 1970"),
    Field("sample", Type.INTEGER, "the share of delivery keys that are recorded", "2**-32"),
)

LINK: Final = (
    Field("number", Type.INTEGER, "in hop records"),
    Field("name", Type.STRING, "the link's name; of a condition, its text"),
    Field(
        "direction",
        Type.STRING,
        "incoming, outgoing; or no link: address, that deliveries go to; condition, that they are rejected with",
    ),
    Field("peer", Type.STRING, "the container-id at the other end; of the router's own links, its id", optional=True),
    Field("from_router", Type.BOOLEAN, "that is a router of the mesh: it is a lane"),
    Field("address", Type.STRING, "where its deliveries go; null: each says so itself", optional=True),
    Field("tenant", Type.STRING, "whose address that is", optional=True),
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
    CREDIT = "credit"
    """It had no credit for a while, and has some again: `waited`."""


EVENT: Final = (
    Field("router", Type.STRING, "the router that recorded it"),
    Field("time", Type.TIME, "when", "ns since 1970"),
    Field("happening", Type.STRING, "what (`Happening`)"),
    Field("link", Type.STRING, "the link's name"),
    Field("direction", Type.STRING, "incoming or outgoing"),
    Field("peer", Type.STRING, "the container-id at the other end", optional=True),
    Field("address", Type.STRING, "its address", optional=True),
    Field("tenant", Type.STRING, "whose address that is", optional=True),
    Field("error", Type.STRING, "the condition that ended it", optional=True),
    Field("waited", Type.INTEGER, "how long it had no credit", "ns", optional=True),
)

COUNTS: Final = (
    Field("router", Type.STRING, "the router that recorded it"),
    Field("time", Type.TIME, "when", "ns since 1970"),
    Field(
        "since",
        Type.TIME,
        "the look before, since when something has come; null: this is the first",
        "ns since 1970",
        optional=True,
    ),
    Field("number", Type.INTEGER, "of the link, within this life of the router"),
    Field("link", Type.STRING, "the link's name"),
    Field("direction", Type.STRING, "incoming or outgoing"),
    Field("peer", Type.STRING, "the container-id at the other end", optional=True),
    Field("from_router", Type.BOOLEAN, "that is a router of the mesh: it is a lane"),
    Field("address", Type.STRING, "its address", optional=True),
    Field("tenant", Type.STRING, "whose address that is", optional=True),
    Field("deliveries", Type.INTEGER, "that began on it since it was attached"),
    Field("octets", Type.INTEGER, "of their payload", "octets"),
    Field("presettled", Type.INTEGER, "of the deliveries, those that were settled then"),
    Field("accepted", Type.INTEGER, "of the others, those that ended so"),
    Field("rejected", Type.INTEGER, "likewise"),
    Field("released", Type.INTEGER, "likewise"),
    Field("modified", Type.INTEGER, "likewise"),
    Field("unsettled", Type.INTEGER, "that have not ended now"),
    Field("credit", Type.INTEGER, "that there is now", "deliveries"),
)

EDGE: Final = (
    Field("router", Type.STRING, "the router that recorded it"),
    Field("time", Type.TIME, "when it saw that", "ns since 1970"),
    Field("origin", Type.STRING, "the router that the edge begins at"),
    Field("neighbour", Type.STRING, "the one that it leads to; null: `origin` itself came or went", optional=True),
    Field("cost", Type.INTEGER, "of the edge in this direction; null: it is gone", optional=True),
    Field("whole", Type.BOOLEAN, "no change: the graph as it was when the segment was begun"),
)

END: Final = (
    Field("time", Type.TIME, "when it was closed", "ns since 1970"),
    Field("hops", Type.INTEGER, "hop records in it"),
    Field("blocks", Type.INTEGER, "blocks in it before this one"),
    Field("dropped", Type.INTEGER, "hop records that were lost in this life of the router: no room, or a full disk"),
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
