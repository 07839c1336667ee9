"""What routers record, declared once: kinds of records, their fields with unit and meaning, how deliveries are packed.

A *hop record* is one delivery as one router saw it: it came by one link, and left by one, or by none. It is written
when nothing more will be said of it there. It is ten words of 64 bits, little-endian, so that recording one costs next
to nothing; `PACKED` says where in them each number stands. Links are numbers there, which the segment's link records
explain. All other kinds are rare, and maps (`segments` has the file format).

A delivery that is tried again has a key for each try; the record of its ingress router says which was the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import Final

VERSION: Final = 1
"""Of all that this file says. A reader refuses what is newer; fields that it does not know of maps, it ignores."""

HOP_WORDS: Final = 10
"""Words of a hop record."""

KEY_OCTETS: Final = 20
"""Of a delivery key: the ingress router's number (8), its epoch (6), a counter (6)."""


class Kind(IntEnum):
    """What the records of a block are."""

    SEGMENT = 1
    """One: who writes the segment, and since when."""
    LINK = 2
    """What the numbers of links mean that are used behind it."""
    HOP = 3
    """Hop records, packed."""
    EVENT = 4
    """What happened to links."""
    COUNTS = 5
    """What links have counted, all of it, whatever the sample."""
    EDGE = 6
    """The graph, as the router saw it change."""
    END = 7
    """One: the segment is complete, and what stands in it."""


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


@dataclass(frozen=True, slots=True)
class Bits:
    """Where a number stands in a hop record."""

    word: int
    shift: int = 0
    bits: int = 64


PACKED: Final = {
    "time": Bits(0),
    "ingress": Bits(1),
    "epoch": Bits(2, 0, 48),
    "hops_left": Bits(2, 48, 8),
    "priority": Bits(2, 56, 8),
    "counter": Bits(3, 0, 48),
    "outcome": Bits(3, 48, 8),
    "flags": Bits(3, 56, 8),
    "incoming": Bits(4, 0, 32),
    "outgoing": Bits(4, 32, 32),
    "address": Bits(5, 0, 32),
    "attempt": Bits(5, 32, 16),
    "delivery_count": Bits(5, 48, 16),
    "size": Bits(6),
    "in_router": Bits(7),
    "outcome_after": Bits(8),
    "first": Bits(9, 0, 48),
}
"""The numbers of a hop record.

`incoming` and `outgoing` are numbers of links; 0: there is none. `address` is the number of the link record that tells
the address; 0: the incoming link's does. `first` is the counter of the first try's key; 0: this is it. What is too
large for its bits is the largest number that they hold.
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
    Field("name", Type.STRING, "the link's name"),
    Field("direction", Type.STRING, "incoming, outgoing, or address: no link, just one that deliveries go to"),
    Field("peer", Type.STRING, "the container-id at the other end", optional=True),
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
    Field("dropped", Type.INTEGER, "hop records that were lost in this life of the router, for want of room"),
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
