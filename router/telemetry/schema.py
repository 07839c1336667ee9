"""What routers record, declared once: kinds of records, their fields with unit and meaning, how deliveries are packed.

A *hop record* is one delivery as one router saw it: it came by one link, and left by one, or by none. It is written
when nothing more will be said of it there. What it costs to record one is mostly its octets, so it is a unit of four
words of 64 bits, little-endian, and what is rare or large stands in units beside it; `PACKED` says where each number
is. Links are numbers there, which the segment's link records explain. All other kinds are rare, and maps (`segments`
has the file format).

A delivery that is tried again has a key for each try; the record of its ingress router says which was the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import Final

VERSION: Final = 2
"""Of all that this file says. A reader refuses any other; fields that it does not know of maps, it ignores."""

UNIT_WORDS: Final = 4
"""Words of a unit of hop records."""

UNIT_OCTETS: Final = 8 * UNIT_WORDS

KEY_OCTETS: Final = 20
"""Of a delivery key: the ingress router's number (8), its epoch (6), a counter (6)."""


class Kind(IntEnum):
    """What the records of a block are."""

    SEGMENT = 1
    """One: who writes the segment, and since when."""
    LINK = 2
    """What the numbers of links mean that are used behind it."""
    EVENT = 4
    """What happened to links."""
    COUNTS = 5
    """What links have counted, all of it, whatever the sample."""
    EDGE = 6
    """The graph, as the router saw it change."""
    END = 7
    """One: the segment is complete, and what stands in it."""
    HOP = 8
    """Hop records, packed. (3 was that of version 1.)"""


class Type(Enum):
    """What a field holds."""

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
    """Of numbers that have one."""
    optional: bool = False
    """It may be null: unknown, or there is none."""


class Unit(IntEnum):
    """What a unit of hop records is, by the uppermost octet of its word 2: a record has its flags there, which are less
    than these.
    """

    RECORD = 0
    """A hop record."""
    KEY = 0x80
    """What keys of the records behind it begin with, and the upper bits of their counters and times, until the next one
    says otherwise: each block begins with one.
    """
    WIDE = 0xC0
    """Of the record before it, what is rare, and the upper bits of numbers that are large."""


@dataclass(frozen=True, slots=True)
class Bits:
    """Where a number, or its lower or upper bits, stand."""

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
"""The numbers of a hop record: where each stands, the lower bits first.

Without a wide unit `attempt` is 1, and of all else what would stand there is 0. `incoming` and `outgoing` are numbers
of links; 0: there is none. `address` is the number of the link record that tells the address; 0: the incoming link's
does. `first` is the counter of the first try's key; 0: this is it. `condition` is the number of the link record that
tells why it was rejected; 0: it was not, or without one. What is too large for its bits is the largest number that they
hold.
"""


class Flag(IntEnum):
    """Bits of `flags`."""

    SETTLED = 1
    """It came settled: at most once, and without an outcome."""
    BEGAN = 2
    """It began its way through the mesh here."""
    COPY = 4
    """It went to a receiver of copies."""
    TIMED = 8
    """It has left, so `in_router` is known."""
    ANSWERED = 16
    """`outcome_after` is known."""


class Outcome(IntEnum):
    """How it ended at this router, as its number in `outcome`."""

    NONE = 0
    """Settled, or nobody said anything of it any more: its sender or its receiver was gone."""
    ACCEPTED = 1
    REJECTED = 2
    RELEASED = 3
    MODIFIED = 4
    ABORTED = 5
    """Its sender took it back in the middle."""
    EXPIRED = 6
    """Its ttl was over before it left."""
    UNDELIVERED = 7
    """There was nobody to send it to."""


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
"""A delivery at one hop, as those who ask are shown it."""

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
    """What happens to a link."""

    UP = "up"
    """It is attached."""
    DOWN = "down"
    """It is gone."""
    STOLEN = "stolen"
    """Another connection has attached a link of its name."""
    REDIRECTED = "redirected"
    """Who asked for it was told to go elsewhere."""
    REFUSED = "refused"
    """Who asked for it was told why not."""
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
"""The fields by kind; of all but hop records, those of their maps. `router` stands in no map: the segment tells it."""
