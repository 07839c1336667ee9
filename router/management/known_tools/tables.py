"""The types of entities that known tools ask for, and the attribute here that fills each of theirs.

An attribute without a counterpart here is null. It is left out where the tools then leave out its column, and where
they would stumble over null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from amqpmesh.router.amqp.codec.types import ULong
from amqpmesh.router.management.known_tools.seen import Seen, said
from amqpmesh.router.statistics.common import Direction
from amqpmesh.router.statistics.mesh_statistics import LaneStatistics

if TYPE_CHECKING:
    from amqpmesh.router.amqp.codec.types import Value

PREFIXES: Final = ("io.skupper.router.", "org.apache.qpid.dispatch.")
"""The prefixes of the types' names: of Skupper Router and of Qpid Dispatch Router."""

Column = Callable[[Any, Seen], "Value"]
"""A function that reads an attribute of an entity."""

_ROLES: Final = {"normal": "normal", "mesh": "inter-router", "container": "route-container"}


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A type of entities. Args: name: without prefix. kind: that of ours whose right it takes to read it. rows: the
    entities. columns: its attributes, but for `type`. removable: an UPDATE of `adminStatus` to `deleted`, or a DELETE,
    removes an entity.
    """

    name: str
    kind: str
    rows: Callable[[Seen], Iterable[Any]]
    columns: Mapping[str, Column]
    removable: bool = False
    looks_at_deliveries: bool = False

    @property
    def attributes(self) -> Sequence[str]:
        """The names of all attributes."""
        return ("name", "identity", "type", *(each for each in self.columns if each not in ("name", "identity")))


def null(_entity: Any, _seen: Seen) -> Value:
    """Read an attribute that nothing here is like."""
    return None


def _always(value: Value) -> Column:
    return lambda _entity, _seen: value


def _version(_entity: Any, _seen: Seen) -> Value:
    from importlib.metadata import version  # here: it takes long to load, and few ask

    return version("amqpmesh")


def _text(attribute: str) -> Column:
    return lambda entity, _seen: said(getattr(entity, attribute, None))


def _role(entity: Any, _seen: Seen) -> Value:
    role: str = entity.role
    return _ROLES.get(role, role)


def _count(attribute: str) -> Column:
    def read(entity: Any, _seen: Seen) -> Value:
        value = getattr(entity, attribute, None)
        return None if value is None else ULong(value)

    return read


def _since(attribute: str) -> Column:
    def read(entity: Any, seen: Seen) -> Value:
        seconds = seen.seconds_since(getattr(entity, attribute))
        return None if seconds is None else ULong(seconds)

    return read


def _total(kind: str, attribute: str) -> Column:
    return lambda _entity, seen: ULong(seen.total(kind, attribute)) if seen.of(kind) else ULong(0)


_OUTCOMES: Final = {
    "presettledCount": _count("presettled"),
    "acceptedCount": _count("accepted"),
    "rejectedCount": _count("rejected"),
    "releasedCount": _count("released"),
    "modifiedCount": _count("modified"),
}

_CONFIGURED: Final[Mapping[str, Column]] = {
    "mode": lambda _e, seen: "interior" if seen.of("mesh") else "standalone",
    "area": _always("0"),
    "hostName": null,
    "helloIntervalSeconds": null,
    "helloMaxAgeSeconds": null,
    "raIntervalSeconds": null,
    "raIntervalFluxSeconds": null,
    "remoteLsMaxAgeSeconds": null,
    "debugDumpFile": null,
    "saslConfigDir": null,
    "saslConfigName": null,
    "timestampsInUTC": _always(True),
    "timestampFormat": null,
    "defaultDistribution": null,
    "metadata": null,
    "dataConnectionCount": null,
    "workerThreads": null,
}

_MEASURED: Final[Mapping[str, Column]] = {
    "version": _version,
    "id": _text("id"),
    "uptimeSeconds": _since("started_at"),
    "memoryUsage": null,
    "residentMemoryUsage": null,
    "linkRouteCount": _always(ULong(0)),
    "autoLinkCount": lambda _e, seen: ULong(len(seen.of("container-link"))),
    "linkCount": lambda entity, seen: ULong(entity.links + len(seen.of("lane"))),
    "nodeCount": lambda _e, seen: ULong(len(seen.of("route"))),
    "addrCount": _count("addresses"),
    "connectionCount": _count("connections"),
    "connectionCounters": lambda entity, _s: {"amqp": ULong(entity.connections)},
    "presettledDeliveries": _count("presettled"),
    "droppedPresettledDeliveries": null,
    "acceptedDeliveries": _count("accepted"),
    "rejectedDeliveries": _count("rejected"),
    "releasedDeliveries": _count("released"),
    "modifiedDeliveries": _count("modified"),
    "deliveriesDelayed1Sec": _total("address", "delayed_1s"),
    "deliveriesDelayed10Sec": _total("address", "delayed_10s"),
    "deliveriesStuck": null,
    "deliveriesIngress": _count("deliveries_in"),
    "deliveriesEgress": _count("deliveries_out"),
    "deliveriesTransit": _total("address", "transit_out"),
    "deliveriesIngressRouteContainer": null,
    "deliveriesEgressRouteContainer": null,
    "deliveriesIngressInterNetwork": null,
    "deliveriesEgressInterNetwork": null,
}


def _zero_credit(entity: Any, seen: Seen) -> Value:
    return ULong(seen.seconds_since(entity.zero_credit_since) or 0)


def _last_delivery(entity: Any, seen: Seen) -> Value:
    seconds = seen.seconds_since(seen.last_delivery(entity.number))
    return None if seconds is None else ULong(seconds)


_CONNECTION: Final[Mapping[str, Column]] = {
    "name": lambda entity, _s: f"connection/{entity.number}",
    "identity": lambda entity, _s: str(entity.number),
    "host": _text("host"),
    "container": _text("container_id"),
    "role": _role,
    "dir": _text("direction"),
    "protocol": _always("amqp"),
    "opened": lambda entity, _s: entity.state == "OPENED",
    "isAuthenticated": lambda entity, _s: entity.mechanism is not None,
    "sasl": _text("mechanism"),
    "user": _text("user"),
    "tenant": _text("tenant"),
    "isEncrypted": lambda entity, _s: entity.tls is not None,
    "ssl": lambda entity, _s: entity.tls is not None,
    "sslProto": _text("tls"),
    "sslCipher": _text("cipher"),
    "sslSsf": null,
    "meshId": null,
    "properties": null,
    "adminStatus": _always("enabled"),
    "operStatus": _always("up"),
    "uptimeSeconds": _since("connected_at"),
    "lastDlvSeconds": _last_delivery,
}


def _waiting(entity: Any, _seen: Seen) -> Value:
    return ULong(entity.waiting if isinstance(entity, LaneStatistics) else entity.undelivered)


_LINK: Final[Mapping[str, Column]] = {
    "name": _text("name"),
    "identity": lambda entity, _s: str(entity.number),
    "linkName": _text("name"),
    "linkType": lambda entity, _s: "inter-router" if isinstance(entity, LaneStatistics) else "endpoint",
    "linkDir": lambda entity, _s: "in" if entity.direction is Direction.INCOMING else "out",
    "connectionId": lambda entity, _s: str(entity.connection),
    "owningAddr": lambda entity, seen: seen.class_and_text(entity),
    "peer": null,
    "capacity": null,
    "undeliveredCount": _waiting,
    "unsettledCount": _count("unsettled"),
    "deliveryCount": _count("deliveries"),
    **_OUTCOMES,
    "creditAvailable": _count("credit"),
    "zeroCreditSeconds": _zero_credit,
    "adminStatus": _always("enabled"),
    "operStatus": lambda entity, _s: "up" if getattr(entity, "attached", True) else "down",
}

_ADDRESS: Final[Mapping[str, Column]] = {
    "name": lambda entity, seen: seen.classed(entity.name),
    "identity": lambda entity, seen: seen.classed(entity.name),
    "distribution": _text("distribution"),
    "inProcess": null,
    "subscriberCount": _count("consumers"),
    "remoteCount": lambda entity, _s: ULong(len(entity.consumers_at)),
    "containerCount": null,
    "deliveriesIngress": lambda entity, _s: ULong(entity.deliveries_in - entity.transit_in),
    "deliveriesEgress": lambda entity, _s: ULong(entity.deliveries_out - entity.transit_out),
    "deliveriesTransit": _count("transit_out"),
    "deliveriesToContainer": null,
    "deliveriesFromContainer": null,
    "watch": null,
}


@dataclass(frozen=True, slots=True)
class _Self:
    """The router itself among those of the mesh."""

    router: str
    next_hops: tuple[str, ...] = ("(self)",)
    distance: int | None = None


def _routers(seen: Seen) -> list[Any]:
    routes = list(seen.of("route"))
    return [_Self(seen.router.id), *routes] if seen.of("mesh") else routes


def _neighbour(entity: Any, seen: Seen) -> Any:
    return next((each for each in seen.of("neighbour") if each.router == entity.router and each.up), None)


def _next_hop(entity: Any, _seen: Seen) -> Value:
    # A neighbour that is the next hop to itself has a link in place of a next hop.
    return None if entity.next_hops == (entity.router,) else ",".join(entity.next_hops) or None


def _router_link(entity: Any, seen: Seen) -> Value:
    found = None if isinstance(entity, _Self) else _neighbour(entity, seen)
    return None if found is None else ULong(found.connection)


_NODE: Final[Mapping[str, Column]] = {
    "name": lambda entity, _s: f"router.node/{entity.router}",
    "identity": lambda entity, _s: f"router.node/{entity.router}",
    "id": _text("router"),
    "address": lambda entity, _s: node_address(entity.router),
    "nextHop": _next_hop,
    "routerLink": _router_link,
    "cost": _count("distance"),
    "protocolVersion": null,
    "lastTopoChange": null,
    "linkState": null,
    "validOrigins": null,
    "instance": null,
}


def node_address(router: str) -> str:
    """Return the address of a router's management node, as a URL of the tools."""
    return f"amqp:/_topo/0/{router}/$management"


def _place(part: int) -> Column:
    def read(entity: Any, _seen: Seen) -> Value:
        host, _, port = (entity.url or "").rpartition("//")[2].partition("/")[0].rpartition(":")
        return (host.strip("[]"), port)[part] or None

    return read


_DOOR: Final[Mapping[str, Column]] = {"host": _place(0), "port": _place(1), "role": _role, "cost": _count("cost")}
"""The attributes that listeners and connectors share."""

_LISTENER: Final[Mapping[str, Column]] = {
    "name": _text("name"),
    "identity": lambda entity, _s: f"listener/{entity.name}",
    **_DOOR,
    "connections": _count("connections"),
    "operStatus": _always("up"),
}

_CONNECTOR: Final[Mapping[str, Column]] = {
    "name": _text("name"),
    "identity": lambda entity, _s: f"connector/{entity.name}",
    **_DOOR,
    "connectionStatus": lambda entity, _s: "SUCCESS" if entity.state == "connected" else "CONNECTING",
    "connectionMsg": _text("reason"),
}

_AUTO_LINK: Final[Mapping[str, Column]] = {
    "name": _text("name"),
    "identity": lambda entity, _s: f"router.config.autoLink/{entity.name}",
    "address": _text("address"),
    "externalAddress": _text("node"),
    "direction": lambda entity, _s: "in" if entity.direction is Direction.INCOMING else "out",
    "phase": _always(ULong(0)),
    "connection": _text("connector"),
    "linkRef": _text("link"),
    "operStatus": lambda entity, _s: {"attached": "active", "attaching": "attaching"}.get(entity.state, "inactive"),
    "lastError": _text("reason"),
}


def _setting(key: str) -> Column:
    return lambda entity, _s: said(entity.settings.get(key))


_PATTERN: Final[Mapping[str, Column]] = {
    "name": _text("name"),
    "identity": lambda entity, _s: f"router.config.address/{entity.name}",
    "prefix": null,
    "pattern": _text("name"),
    "distribution": _setting("distribution"),
    "waypoint": _always(False),
}

_LOG: Final[Mapping[str, Column]] = {
    "name": _always("log/DEFAULT"),
    "identity": _always("log/DEFAULT"),
    "module": _always("DEFAULT"),
    "enable": lambda entity, _s: f"{entity.settings['level']}+",
    "includeTimestamp": _always(True),
    "outputFile": null,
}

_POLICY: Final[Mapping[str, Column]] = {
    "name": _always("policy"),
    "identity": _always("policy"),
    "maxConnections": null,
    "maxMessageSize": null,
    "enableVhostPolicy": lambda _e, seen: bool(seen.of("policy")),
    "enableVhostNamePatterns": lambda _e, seen: bool(seen.of("policy")),
    "policyDir": lambda _e, seen: next((each.file for each in seen.of("policy")), ""),
    "defaultVhost": _always(""),
    "connectionsProcessed": null,
    "connectionsDenied": null,
    "connectionsCurrent": _count("connections"),
    "linksDenied": null,
    "maxMessageSizeDenied": null,
    "totalDenials": _count("denied"),
}


def _named(columns: Mapping[str, Column], kind: str) -> Mapping[str, Column]:
    # Its name is the router's, as with Dispatch.
    return {"name": _text("id"), "identity": lambda entity, _s: f"{kind}/{entity.id}", **columns}


def _one(seen: Seen) -> Sequence[Any]:
    return (seen.router,)


def _of(*kinds: str) -> Callable[[Seen], Sequence[Any]]:
    return lambda seen: [each for kind in kinds for each in seen.of(kind)]


def _none(_seen: Seen) -> Sequence[Any]:
    return ()


TABLES: Final[Mapping[str, KnownTable]] = {
    each.name: each
    for each in (
        KnownTable("router", "router", _one, _named({**_CONFIGURED, **_MEASURED}, "router")),
        KnownTable("routerMetrics", "router", _one, _named(_MEASURED, "routerMetrics")),
        KnownTable("connection", "connection", _of("connection"), _CONNECTION, True, looks_at_deliveries=True),
        KnownTable("router.link", "link", _of("link", "lane"), _LINK),
        KnownTable("router.address", "address", _of("address"), _ADDRESS),
        KnownTable("router.node", "route", _routers, _NODE),
        KnownTable("listener", "listener", _of("listener"), _LISTENER),
        KnownTable("connector", "connector", _of("connector"), _CONNECTOR),
        KnownTable("router.config.autoLink", "container-link", _of("container-link"), _AUTO_LINK),
        KnownTable("router.config.address", "address-pattern", _of("address-pattern"), _PATTERN),
        KnownTable("log", "log", _of("log"), _LOG),
        KnownTable("policy", "router", _one, _POLICY),
        # Without a row, skstat ends with an error.
        KnownTable("network", "router", _one, _named({"networkId": null, "tenantId": null}, "network")),
        # Nothing here is like them: the tools show empty tables.
        KnownTable("router.config.linkRoute", "router", _none, {}),
        KnownTable("allocator", "router", _none, {}),
        KnownTable("vhost", "router", _none, {}),
        KnownTable("vhostStats", "router", _none, {}),
        KnownTable("sslProfile", "router", _none, {}),
    )
}
