"""Records that all routers of a mesh share: declarations of their bodies, which are signed, flooded and stored.

The signature covers the octets of the body, so a record is passed on as it came, and never encoded again. Of two
records of an origin, the one with the higher *pair*, (epoch, sequence), is newer; no clock is compared. An epoch is one
run of a router, and grows with each start. Within it, link states and addresses have sequences of their own.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from amqpmesh.topology.address_book import Advert
from amqpmesh.topology.schema import (
    Array,
    Body,
    Boolean,
    Integer,
    Row,
    Text,
    UnreadableError,
    body,
    decode,
    derived,
    encode,
    item,
)

__all__ = [
    "MAX_BODY",
    "AddressDelta",
    "Addresses",
    "Entry",
    "Key",
    "Kind",
    "LinkState",
    "Name",
    "Neighbour",
    "OpenedRecord",
    "Pair",
    "Record",
    "SignedRecord",
    "UnreadableError",
    "adverts",
    "costs",
    "encode",
    "open_record",
    "read_record",
]

MAX_BODY: Final = 60 * 1024
"""The most octets of a record's body: with its signature and its envelope it has to fit a message of 64 KiB."""

MAX_ID: Final = 255
"""The longest router id, in characters, as in the configuration."""

MAX_ADDRESS: Final = 2048
"""The longest address that is advertised, in characters. Longer ones work at their own router only."""

MAX_EPOCH: Final = 2**62 - 1
"""The highest epoch and sequence that is read; a router can still start an epoch above it."""

MAX_COST: Final = 2**31 - 1
SURCHARGE: Final = 2**24
"""Added to the costs of a router that wants no traffic of others: more than any path without it costs, so that paths
lead around the router where there is another way. It is in the costs themselves, since routers that do not know the
flag have to find the same paths as the others (RFC 6987 does the same for OSPF)."""

MAX_CONSUMERS: Final = 2**32 - 1
MAX_NEIGHBOURS: Final = 1024
"""Neighbours in a link state: the work of all routers for it grows with them."""

MAX_PARTS: Final = 4096

# An address splits at its last @; * and # are patterns; / parts tokens.
ROUTER_ID: Final = Text(MAX_ID, re.compile(r'[!"$-)+-.0-?A-~]+'), "router id")
AREA: Final = Text(64, words="area")
EPOCH: Final = Integer(0, MAX_EPOCH)
SEQUENCE: Final = Integer(0, MAX_EPOCH)
COST: Final = Integer(1, MAX_COST)
COUNT: Final = Integer(0, MAX_CONSUMERS)
TENANT: Final = Text(MAX_ID, words="tenant")
ADDRESS: Final = Text(MAX_ADDRESS, words="address")


class Kind(IntEnum):
    """The kind of a record; the number is on the wire, and covered by the signature."""

    LINK_STATE = 1
    ADDRESSES = 2
    ADDRESS_DELTA = 3
    CERTIFICATE = 4
    REVOCATION = 5


# Each record of a flood is compared with these several times. To look up a member of an enumeration takes longer than
# all the work that follows.
LINK_STATE: Final = Kind.LINK_STATE
ADDRESSES: Final = Kind.ADDRESSES
ADDRESS_DELTA: Final = Kind.ADDRESS_DELTA
CERTIFICATE: Final = Kind.CERTIFICATE
REVOCATION: Final = Kind.REVOCATION


class Pair(NamedTuple):
    """The version of a record: its epoch and its sequence. Of two records, the one with the greater pair is newer."""

    epoch: int
    sequence: int


class Key(NamedTuple):
    """The key of a record. An honest origin makes no two different records with the same key."""

    kind: Kind
    origin: str
    epoch: int
    sequence: int
    part: int

    @property
    def pair(self) -> Pair:
        """The pair of the record."""
        return Pair._make(self[2:4])


class Name(NamedTuple):
    """An address of a tenant; the key of the address book."""

    tenant: str
    name: str


class Neighbour(NamedTuple):
    """A neighbour in a link state: its router id, the least cost of sending there, and the number of adjacencies."""

    router: str
    cost: int
    adjacencies: int


_advert: Final = lru_cache(maxsize=1024)(Advert)


class Entry(NamedTuple):
    """An address in an address record."""

    tenant: str
    name: str
    distribution: str
    consumers: int
    producers: int

    @property
    def key(self) -> Name:
        """The address."""
        return Name(self.tenant, self.name)

    @property
    def advert(self) -> Advert:
        """Its advert. Most addresses have equal adverts, which are one object."""
        return _advert(self.distribution, self.consumers, self.producers)


class SignedRecord(NamedTuple):
    """A record as it travels: body and signature are the octets from its origin."""

    kind: int
    key_id: bytes
    body: bytes
    signature: bytes


def costs(origin: str, neighbours: Collection[Neighbour]) -> dict[str, int]:
    """Return the least cost of sending to each neighbour; a link of a router to itself does not count."""
    least = {router: cost for router, cost, _ in neighbours}
    if len(least) != len(neighbours):
        for router, cost, _ in neighbours:
            least[router] = min(cost, least[router])
    least.pop(origin, None)
    return least


def adverts(entries: Iterable[Entry]) -> dict[Name, Advert]:
    """Return the adverts of entries; the last entry of an address counts. Most adverts are equal, and one object."""
    return {Name(tenant, name): _advert(*values) for tenant, name, *values in entries}


NAME: Final = Row(Name, (("tenant", TENANT), ("name", ADDRESS)))
NEIGHBOUR: Final = Row(Neighbour, (("router", ROUTER_ID), ("cost", COST), ("adjacencies", Integer(1, 2**16 - 1))))
ENTRY: Final = Row(
    Entry,
    (
        ("tenant", TENANT),
        ("name", ADDRESS),
        ("distribution", Text(32, words="word of the configuration")),
        ("consumers", COUNT),
        ("producers", COUNT),
    ),
)


@body("LinkState", "a router and its adjacencies; the router is alive while it renews this record")
class LinkState(Body):
    """Kind 1: a router and its adjacencies."""

    origin: str = item("o", ROUTER_ID, "the router that signs this record")
    epoch: int = item("e", EPOCH, "the epoch of the origin")
    sequence: int = item("s", SEQUENCE, "the sequence within the epoch; link states have their own")
    neighbours: tuple[Neighbour, ...] = item(
        "n", Array(NEIGHBOUR, MAX_NEIGHBOURS), "its neighbours, with the least cost of sending to each", default=()
    )
    addresses: int = item(
        "d", SEQUENCE, "the sequence of its addresses at that time; a router with a lower one asks for them", default=0
    )
    transit: bool = item(
        "t", Boolean(), "whether paths may lead through the router; false while it drains", default=True
    )
    capabilities: tuple[str, ...] = item(
        "c", Array(Text(64), 32), "what the router can do beyond version 1", default=()
    )
    area: str = item("a", AREA, "reserved for meshes of several areas", default="")
    overload: bool = item(
        "l", Boolean(), "whether the router moves its clients away; its costs have a surcharge then", default=False
    )

    key: Key = derived()
    """The key of this record."""
    costs: Mapping[str, int] = derived()
    """The cost of sending to each of its neighbours."""

    def __post_init__(self) -> None:
        """Compute the derived fields."""
        object.__setattr__(self, "key", Key(LINK_STATE, self.origin, self.epoch, self.sequence, 0))
        object.__setattr__(self, "costs", costs(self.origin, self.neighbours))


@body("Addresses", "all addresses of a router at a sequence, in one or more parts")
class Addresses(Body):
    """Kind 2: the full state of a router's addresses; it replaces all records up to its sequence."""

    origin: str = item("o", ROUTER_ID, "the router that signs this record")
    epoch: int = item("e", EPOCH, "the epoch of the origin")
    sequence: int = item("s", SEQUENCE, "the sequence of the last delta in this state; the same in all parts")
    part: int = item("p", Integer(0, MAX_PARTS - 1), "the number of this part, from 0", default=0)
    parts: int = item("q", Integer(1, MAX_PARTS), "the number of parts", default=1)
    entries: tuple[Entry, ...] = item("n", Array(ENTRY, 4096), "the addresses of this part", default=())
    area: str = item("a", AREA, "reserved for meshes of several areas", default="")

    key: Key = derived()
    """The key of this record."""

    def __post_init__(self) -> None:
        """Compute the derived fields."""
        object.__setattr__(self, "key", Key(ADDRESSES, self.origin, self.epoch, self.sequence, self.part))


@body("AddressDelta", "a change of a router's addresses; sequence 1 changes the empty state")
class AddressDelta(Body):
    """Kind 3: a change of a router's addresses since the sequence before."""

    origin: str = item("o", ROUTER_ID, "the router that signs this record")
    epoch: int = item("e", EPOCH, "the epoch of the origin")
    sequence: int = item("s", SEQUENCE, "one more than that of the state that it changes")
    set: tuple[Entry, ...] = item("n", Array(ENTRY, 4096), "addresses that are new or different", default=())
    removed: tuple[Name, ...] = item("r", Array(NAME, 4096), "addresses that are gone", default=())
    area: str = item("a", AREA, "reserved for meshes of several areas", default="")

    key: Key = derived()
    """The key of this record."""

    def __post_init__(self) -> None:
        """Compute the derived fields."""
        object.__setattr__(self, "key", Key(ADDRESS_DELTA, self.origin, self.epoch, self.sequence, 0))


Record: TypeAlias = LinkState | Addresses | AddressDelta

BODIES: Final[dict[Kind, type[Record]]] = {LINK_STATE: LinkState, ADDRESSES: Addresses, ADDRESS_DELTA: AddressDelta}
"""The body of each kind that is in msgpack; certificates and revocations are DER (RFC 5280)."""


def read_record(kind: int, data: bytes) -> Record:
    """Decode the body of a record.

    Raises: UnreadableError: an unknown kind, or no body of that kind.
    """
    form = BODIES.get(kind)  # type: ignore[call-overload]  # an int is found as the Kind that it equals
    if form is None:
        raise UnreadableError("kind", f"no record of kind {kind}")
    record: Record = decode(form, data, MAX_BODY)
    if isinstance(record, Addresses) and record.part >= record.parts:
        raise UnreadableError("malformed", f"part {record.part} of {record.parts}")
    return record


class OpenedRecord(NamedTuple):
    """A signed record with its decoded body. Both are immutable, so routers in one process can share them."""

    signed: SignedRecord
    record: Record


def open_record(signed: SignedRecord) -> OpenedRecord:
    """Decode the body of a signed record; the signature is not verified here.

    Raises: UnreadableError: as `read_record`.
    """
    return OpenedRecord(signed, read_record(signed.kind, signed.body))
