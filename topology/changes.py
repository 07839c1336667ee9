"""Results of a step of the link-state protocol: messages to send, and changes for the router to act on."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from amqpmesh.policies.policy_version import PolicyVersion
from amqpmesh.topology.records import Name


@dataclass(frozen=True, slots=True)
class NeighbourUp:
    """An adjacency is up. The graph gets an edge once both routers advertise it."""

    adjacency: Hashable
    router: str


@dataclass(frozen=True, slots=True)
class NeighbourDown:
    """An adjacency is no longer up. Its connection may still be open, and the adjacency can come up again."""

    adjacency: Hashable
    router: str
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """An adjacency is refused. No message is sent on it any more, and its connection is to be closed."""

    adjacency: Hashable
    router: str
    reason: str
    other: Hashable | None = None
    """The earlier adjacency to a live router with the same id, if that is the reason."""


@dataclass(frozen=True, slots=True)
class Damped:
    """An adjacency came up after too many losses. It is not advertised until `until`."""

    adjacency: Hashable
    router: str
    until: float
    """On the clock of `now`, seconds."""


@dataclass(frozen=True, slots=True)
class GraphChanged:
    """The graph has changed, and with it the paths and trees."""

    routers: frozenset[str]
    """The routers with a changed route: another cost or next hop, new, or gone; there may be none."""


@dataclass(frozen=True, slots=True)
class AddressesChanged:
    """The result of `AddressBook.lookup` has changed for these addresses."""

    addresses: frozenset[Name]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A message or record was dropped. It is counted, and reported here for the log."""

    origin: str
    """The origin that the record names; empty if it could not be read."""
    neighbour: str
    """The neighbour that sent it; empty if unknown; this router for an address that it cannot advertise."""
    reason: str
    """One word: malformed, oversized, version, kind, area, untrusted, stale, replayed, full, paced.

    A record that crossed a newer one on its way is counted as `late`, and not reported.
    """
    detail: str
    count: int


@dataclass(frozen=True, slots=True)
class IdentityConflict:
    """Another live router has this router's id: both answer each other's records again and again."""

    router: str
    neighbours: tuple[str, ...]
    """The neighbours that the other router last advertised, which tell where it is."""


@dataclass(frozen=True, slots=True)
class RevocationsChanged:
    """A newer list of revocations of an authority has arrived: connections are to be checked again."""

    authority: bytes
    number: int


@dataclass(frozen=True, slots=True)
class PolicyFetched:
    """A neighbour has given the policy that it offers; the router is to judge it."""

    neighbour: str
    version: PolicyVersion
    data: bytes


@dataclass(frozen=True, slots=True)
class PolicyNotFetched:
    """A neighbour has not given the policy that it offers."""

    neighbour: str
    version: PolicyVersion
    reason: str


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
    | PolicyFetched
    | PolicyNotFetched
)


class Step(NamedTuple):
    """The results of a call. Send the messages first: then a router's records arrive before its traffic."""

    messages: list[tuple[Hashable, bytes]]
    changes: list[Change]
