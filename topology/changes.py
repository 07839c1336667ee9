"""What a step of the protocol brings about: messages to send, and changes that the router has to know of."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from amqpmesh.topology.records import Name


@dataclass(frozen=True, slots=True)
class NeighbourUp:
    """An adjacency is up: both sides hear each other. It counts in the graph once both advertise it."""

    adjacency: Hashable
    router: str


@dataclass(frozen=True, slots=True)
class NeighbourDown:
    """An adjacency that was up is not any more; its connection may still stand, and can come up again."""

    adjacency: Hashable
    router: str
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """An adjacency is refused; nothing more will be sent on it, and its connection is to be closed."""

    adjacency: Hashable
    router: str
    reason: str
    other: Hashable | None = None
    """The adjacency on which the router with the same id lives that was there first, if it is that."""


@dataclass(frozen=True, slots=True)
class Damped:
    """An adjacency came up again too often: it is not advertised until then, unless it is lost before."""

    adjacency: Hashable
    router: str
    until: float
    """On the clock of `now`, seconds."""


@dataclass(frozen=True, slots=True)
class GraphChanged:
    """The graph has changed: `Paths` answers anew, of trees too."""

    routers: frozenset[str]
    """Whose way from here changed: others, or another cost, or they came or went; there may be none."""


@dataclass(frozen=True, slots=True)
class AddressesChanged:
    """`AddressBook.lookup` answers anew for these."""

    addresses: frozenset[Name]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something was not taken; it is counted, and here to be logged."""

    origin: str
    """Who is said to have signed it; empty if that could not be read."""
    neighbour: str
    """Who sent it; empty if that is not known, this router itself for what it cannot advertise."""
    reason: str
    """One word: malformed, oversized, version, kind, area, untrusted, stale, replayed, full, paced.

    An older record that merely crossed with the newer one is counted, as `late`, and not told.
    """
    detail: str
    count: int


@dataclass(frozen=True, slots=True)
class IdentityConflict:
    """Another live router of the mesh has this router's id: each answers what the other says, again and again."""

    router: str
    neighbours: tuple[str, ...]
    """Whom the other one last advertised as its neighbours: where it is to be found."""


@dataclass(frozen=True, slots=True)
class RevocationsChanged:
    """An authority's list of revocations is newer than before: connections are to be checked again."""

    authority: bytes
    number: int


Change: TypeAlias = (
    NeighbourUp
    | NeighbourDown
    | Refused
    | Damped
    | GraphChanged
    | AddressesChanged
    | Dropped
    | IdentityConflict
    | RevocationsChanged
)


class Step(NamedTuple):
    """What is to be done after a call, in order: messages first, or a router would be heard of before its news."""

    messages: list[tuple[Hashable, bytes]]
    changes: list[Change]
