"""Statistics of what the configuration names: listeners, connectors, container links, other tables, and the policy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from amqpmesh.router.statistics.common import Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerStatistics:
    """A listener, to which clients or neighbours connect."""

    name: str
    url: str
    """The URL, with the port in use."""
    connections: int
    """Open connections of this listener."""
    refused: int
    """Connections refused because of the limit `connections`."""
    role: str
    """`normal`: for clients. `mesh`: for neighbours."""
    cost: int
    """The cost of its connections to neighbours, unless a neighbour has its own cost."""
    runtime: bool = False
    """Management has created or changed it: it differs from the configuration that the router was given."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """The keys of its table in the configuration, with the values in force, without files and passwords."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStatistics:
    """The policy in force, and the last one that the router has refused."""

    file: str
    version: int
    """The version in the file; 0: it has none."""
    digest: str
    """SHA-256 of the file, in hexadecimal digits."""
    tenants: int
    groups: int
    push: bool
    """The router takes policies that are pushed to it or to its neighbours."""
    refused_version: int | None
    """The version of the last policy that the router has refused since the one in force came; unset: none."""
    refused_digest: str | None
    """Its digest."""
    refused_reason: str | None
    """The reason."""


class ConnectorState(StrEnum):
    """The state of a connector."""

    CONNECTING = "connecting"
    """It is connecting."""
    CONNECTED = "connected"
    """The peer has opened the connection."""
    WAITING = "waiting"
    """The last attempt failed; the next one follows."""
    STANDING_BY = "standing by"
    """The other router has connected to this one itself; that connection is used."""
    ENDED = "ended"
    """It connects no more: the router is stopping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorStatistics:
    """A connector, with which the router connects to other routers or containers."""

    name: str
    role: str
    """`mesh` or `container`."""
    cost: int
    """The cost of its connections to neighbours, unless a neighbour has its own cost."""
    state: ConnectorState
    url: str | None
    """The URL of the connection or of the attempt; None: there is none now."""
    redirected_from: str | None
    """The configured URL from which redirects (§2.8.16) led to `url`; None: no redirect."""
    connection: int | None
    """The number of its connection; None: there is none."""
    failures: int
    """Failed attempts and short-lived connections in a row; 0 while it is connected."""
    reason: str | None
    """The reason why the last connection failed or ended; None: it is connected, or tries for the first time."""
    runtime: bool = False
    """Management has created or changed it: it differs from the configuration that the router was given."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """The keys of its table in the configuration, with the values in force, without files and passwords."""


class ContainerLinkState(StrEnum):
    """The state of a link to a node of another container."""

    DISCONNECTED = "no connection"
    """Its connector has no connection."""
    ATTACHING = "attaching"
    """The other container has not answered the attach yet."""
    ATTACHED = "attached"
    WAITING = "waiting"
    """It was refused or detached; the next attempt follows."""
    STOLEN = "stolen"
    """Another link of its name has taken its place; the next attempt follows much later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLinkStatistics:
    """A configured link to a node of another container. While it is attached, the link with the number `link` has its
    counters.
    """

    name: str
    connector: str
    """The name of the connector that the link uses."""
    connection: int | None
    """The number of the connection; None: there is none."""
    direction: Direction
    node: str
    """The address of the node in the other container."""
    address: str
    """The address in this router."""
    state: ContainerLinkState
    since: float
    """The time when the state began."""
    link: int | None
    """The number of the link; None: it is not attached."""
    failures: int
    """Refused and short-lived attaches in a row; 0 while it is attached."""
    stolen: int
    """The number of times that another link took its place."""
    retry_at: float | None
    """The time of the next attempt; None: at the next connection, or it is attached."""
    reason: str | None
    """The reason why it is not attached, or the connector's; None: it is attached, or there was no attempt yet."""
    unwatched: str | None
    """The reason why the router does not watch the node; None: it is watched, or needs no watch. Without a watch, the
    container may accept messages for a deleted node.
    """
    runtime: bool = False
    """Management has created or changed it: it differs from the configuration that the router was given."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """The keys of its table in the configuration, with the values in force, without files and passwords."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserStatistics:
    """A password user in the file of a listener. No password or verifier is told."""

    name: str
    listener: str | None
    """The first of `listeners`, for requests; None: all listeners with files of users have the same ones."""
    listeners: tuple[str, ...]
    """The names of the listeners with the same files."""
    groups: tuple[str, ...]
    """The groups that the file names."""
    disabled: bool
    """The user cannot log in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatistics:
    """A table of the configuration: an `[[address]]`, which is named by its pattern, or one that is there once."""

    name: str
    runtime: bool = False
    """Management has created or changed it: it differs from the configuration that the router was given."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Its keys with the values in force, without files and passwords."""
