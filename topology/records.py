"""What routers tell the whole mesh: the bodies of the records that are signed, flooded and kept, declared.

A record is signed over its body's bytes as they are sent, and is carried on as it came: nobody writes it anew. Which of
two records of an origin is newer, their *pairs* say, (epoch, sequence), and nothing else: no clock is compared. An
epoch is a life of a router: it grows with each start. Within it, link states and addresses count separately.
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
    "Opened",
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
"""The most octets of a record's body: with its signature and its envelope it must fit a message of 64 KiB."""

MAX_ID: Final = 255
"""The longest router id, characters, as in the configuration."""

MAX_ADDRESS: Final = 2048
"""The longest address that is advertised, characters; longer ones work at their own router only."""

MAX_EPOCH: Final = 2**62 - 1
"""The highest epoch and sequence that is read; a router can still jump above it."""

MAX_COST: Final = 2**31 - 1
MAX_CONSUMERS: Final = 2**32 - 1
MAX_NEIGHBOURS: Final = 1024
"""Neighbours in a link state: what each router has to do for one grows with them."""

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
    """What a record is; the number is on the wire, and under the signature."""

    LINK_STATE = 1
    ADDRESSES = 2
    ADDRESS_DELTA = 3
    CERTIFICATE = 4
    REVOCATION = 5


# What is asked of each record of a flood, several times: a member of an enumeration takes longer to look up than all
# that is then done with it.
LINK_STATE: Final = Kind.LINK_STATE
ADDRESSES: Final = Kind.ADDRESSES
ADDRESS_DELTA: Final = Kind.ADDRESS_DELTA
CERTIFICATE: Final = Kind.CERTIFICATE
REVOCATION: Final = Kind.REVOCATION


class Pair(NamedTuple):
    """How new a record is; pairs compare as they should."""

    epoch: int
    sequence: int


class Key(NamedTuple):
    """Which record: no two differing records of an honest origin have the same key."""

    kind: Kind
    origin: str
    epoch: int
    sequence: int
    part: int

    @property
    def pair(self) -> Pair:
        """How new it is."""
        return Pair._make(self[2:4])


class Name(NamedTuple):
    """An address of a tenant; the key of the address book."""

    tenant: str
    name: str


class Neighbour(NamedTuple):
    """A neighbour in a link state: its router id, the cheapest cost of sending there, and how many adjacencies."""

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
        """Which address."""
        return Name(self.tenant, self.name)

    @property
    def advert(self) -> Advert:
        """What is said about it. Most addresses have the same said about them: it is one object."""
        return _advert(self.distribution, self.consumers, self.producers)


class SignedRecord(NamedTuple):
    """A record as it travels: body and signature are octets as they came from its origin."""

    kind: int
    key_id: bytes
    body: bytes
    signature: bytes


def costs(origin: str, neighbours: Collection[Neighbour]) -> dict[str, int]:
    """What sending to each neighbour costs, the least of it if one is told several times; a way to itself is none."""
    told = {router: cost for router, cost, _ in neighbours}
    if len(told) != len(neighbours):
        for router, cost, _ in neighbours:
            told[router] = min(cost, told[router])
    told.pop(origin, None)
    return told


def adverts(entries: Iterable[Entry]) -> dict[Name, Advert]:
    """What entries say of their addresses; the last one counts. Most say the same, which is one object."""
    return {Name(tenant, name): _advert(*told) for tenant, name, *told in entries}


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


@body("LinkState", "a router, and the adjacencies that it has; while it is renewed, its origin is alive")
class LinkState(Body):
    """Kind 1: a router and its adjacencies."""

    origin: str = item("o", ROUTER_ID, "who says this")
    epoch: int = item("e", EPOCH, "the life of the origin that this is of")
    sequence: int = item("s", SEQUENCE, "how new within the epoch; link states count for themselves")
    neighbours: tuple[Neighbour, ...] = item(
        "n", Array(NEIGHBOUR, MAX_NEIGHBOURS), "its neighbours, the least cost of sending to each", default=()
    )
    addresses: int = item("d", SEQUENCE, "the sequence of its addresses by then: who has less asks", default=0)
    transit: bool = item("t", Boolean(), "whether paths may lead through it; false while it drains", default=True)
    capabilities: tuple[str, ...] = item("c", Array(Text(64), 32), "what it can do beyond version 1", default=())
    area: str = item("a", AREA, "for meshes of several areas, one day", default="")

    key: Key = derived()
    """Which record this is."""
    costs: Mapping[str, int] = derived()
    """What sending to each of its neighbours costs."""

    def __post_init__(self) -> None:
        """Make what is derived."""
        object.__setattr__(self, "key", Key(LINK_STATE, self.origin, self.epoch, self.sequence, 0))
        object.__setattr__(self, "costs", costs(self.origin, self.neighbours))


@body("Addresses", "every address of a router at a sequence, in one or more parts")
class Addresses(Body):
    """Kind 2: the full state of a router's addresses; it takes the place of all that was said until its sequence."""

    origin: str = item("o", ROUTER_ID, "who says this")
    epoch: int = item("e", EPOCH, "the life of the origin that this is of")
    sequence: int = item("s", SEQUENCE, "the state after the delta of this sequence, all parts of it")
    part: int = item("p", Integer(0, MAX_PARTS - 1), "which part this is, from 0", default=0)
    parts: int = item("q", Integer(1, MAX_PARTS), "how many parts there are", default=1)
    entries: tuple[Entry, ...] = item("n", Array(ENTRY, 4096), "the addresses of this part", default=())
    area: str = item("a", AREA, "for meshes of several areas, one day", default="")

    key: Key = derived()
    """Which record this is."""

    def __post_init__(self) -> None:
        """Make what is derived."""
        object.__setattr__(self, "key", Key(ADDRESSES, self.origin, self.epoch, self.sequence, self.part))


@body("AddressDelta", "what changed among the addresses of a router; sequence 1 changes the empty state")
class AddressDelta(Body):
    """Kind 3: what changed since the sequence before."""

    origin: str = item("o", ROUTER_ID, "who says this")
    epoch: int = item("e", EPOCH, "the life of the origin that this is of")
    sequence: int = item("s", SEQUENCE, "one more than that of the state that it changes")
    set: tuple[Entry, ...] = item("n", Array(ENTRY, 4096), "addresses that are new or different", default=())
    removed: tuple[Name, ...] = item("r", Array(NAME, 4096), "addresses that are gone", default=())
    area: str = item("a", AREA, "for meshes of several areas, one day", default="")

    key: Key = derived()
    """Which record this is."""

    def __post_init__(self) -> None:
        """Make what is derived."""
        object.__setattr__(self, "key", Key(ADDRESS_DELTA, self.origin, self.epoch, self.sequence, 0))


Record: TypeAlias = LinkState | Addresses | AddressDelta

BODIES: Final[dict[Kind, type[Record]]] = {LINK_STATE: LinkState, ADDRESSES: Addresses, ADDRESS_DELTA: AddressDelta}
"""The body of each kind that is in msgpack; certificates and revocations are DER (RFC 5280)."""


def read_record(kind: int, data: bytes) -> Record:
    """The body of a record.

    Raises: UnreadableError: no such kind, or no body of that kind.
    """
    form = BODIES.get(kind)  # type: ignore[call-overload]  # an int is found as the Kind that it equals
    if form is None:
        raise UnreadableError("kind", f"no record of kind {kind}")
    record: Record = decode(form, data, MAX_BODY)
    if isinstance(record, Addresses) and record.part >= record.parts:
        raise UnreadableError("malformed", f"part {record.part} of {record.parts}")
    return record


class Opened(NamedTuple):
    """A signed record whose body has been read. Both never change, so many routers in one process can share them."""

    signed: SignedRecord
    record: Record


def open_record(signed: SignedRecord) -> Opened:
    """Read the body of a signed record; its signature is for others to check.

    Raises: UnreadableError: as `read_record`.
    """
    return Opened(signed, read_record(signed.kind, signed.body))
