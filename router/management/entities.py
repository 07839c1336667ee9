"""The types of management entities, their names, and their attributes.

The types are the classes of `router/statistics`. The fields of a class are the attributes of its type, with the same
names.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin, get_type_hints
from urllib.parse import quote

from amqpmesh.policies.managing import KINDS
from amqpmesh.router.address_syntax import without_secret
from amqpmesh.router.amqp.codec.types import Primitive, ULong
from amqpmesh.router.config.edits import KINDS as CONFIGURED
from amqpmesh.router.config.plain_settings import PlainSettings
from amqpmesh.router.statistics.configured import (
    ConnectorStatistics,
    ContainerLinkStatistics,
    ListenerStatistics,
    PolicyStatistics,
    TableStatistics,
    UserStatistics,
)
from amqpmesh.router.statistics.mesh_statistics import (
    AdvertStatistics,
    DisagreementStatistics,
    LaneStatistics,
    MeshStatistics,
    NeighbourStatistics,
    RouteStatistics,
)
from amqpmesh.router.statistics.router_statistics import (
    AddressStatistics,
    ConnectionStatistics,
    LimitStatistics,
    LinkStatistics,
    NodeStatistics,
    RateStatistics,
    RouterStatistics,
    Statistics,
    TerminusStatistics,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from amqpmesh.router.amqp.codec.types import Value

PREFIX: Final = "org.amqpmesh."
"""The prefix of our types' names; requests may omit it."""

COMMON: Final = {"name": Primitive.STRING, "identity": Primitive.STRING, "type": Primitive.STRING}
"""Attributes of every entity."""

_PRIMITIVES: Final[tuple[tuple[type, Primitive], ...]] = (
    (bool, Primitive.BOOLEAN),
    (int, Primitive.ULONG),
    (float, Primitive.DOUBLE),
    (str, Primitive.STRING),
    (tuple, Primitive.LIST),
    (Mapping, Primitive.MAP),
)
_WRITTEN: Final[Mapping[Primitive, Callable[[Any], Value]]] = {
    Primitive.BOOLEAN: bool,
    Primitive.ULONG: ULong,
    Primitive.DOUBLE: float,
    Primitive.STRING: str,
    Primitive.LIST: list,
    Primitive.MAP: lambda counts: {name: ULong(count) for name, count in counts.items()},
}


class EntityType:
    """A type of entities: it lists them, names them, and reads their attributes."""

    def __init__(
        self,
        kind: str,
        cls: type,
        entities: Callable[[Statistics], Sequence[Any]],
        key: Callable[[Any], str],
        *,
        called: Callable[[Any], str] | None = None,
        changeable: Sequence[str] = (),
        removable: bool = False,
        by_type: bool = False,
    ) -> None:
        """Args: kind: its name without prefix, of `KINDS`. key: the rest of an identity, unique among entities of this
        type. called: returns an entity's name, if that is not the identity. changeable: attributes that UPDATE can
        change. removable: DELETE can remove it. by_type: a list of entities of all types leaves it out: it is
            long, and seldom of interest.
        """
        assert kind in KINDS, "a policy could not name it"
        self.name = f"{PREFIX}{kind}"
        #: Its name without prefix.
        self.kind = kind
        self.entities = entities
        self.attributes: dict[str, Primitive] = {**COMMON, **_typed(cls)}
        self.changeable = changeable
        self.removable = removable
        self.by_type = by_type
        #: The table of the configuration behind it, whose keys can be changed; None: there is none.
        self.table = CONFIGURED.get(kind)
        self._key = key
        self._public_name = called

    def identity(self, entity: Any) -> str:
        """Return the identity of an entity, unique in its router."""
        return f"{self.kind}{self._key(entity)}"

    def entity_name(self, entity: Any) -> str:
        """Return the name that people use for an entity; it need not be unique."""
        return self._public_name(entity) if self._public_name is not None else self.identity(entity)

    def reader(self, names: Iterable[str]) -> Callable[[Any], list[Value]]:
        """Return a function that reads these attributes of an entity; null for attributes that it does not have."""
        readers = [self._reader(name) for name in names]
        return lambda entity: [read(entity) for read in readers]

    def _reader(self, name: str) -> Callable[[Any], Value]:
        if name == "type":
            return lambda _: self.name
        if name == "identity":
            return self.identity
        if name == "name":
            return self.entity_name
        if name not in self.attributes:
            return lambda _: None
        if name == "address":
            return lambda entity: None if entity.address is None else without_secret(entity.address)
        if name == "settings":
            return lambda entity: settings_of(getattr(entity, name, None))
        write = _WRITTEN[self.attributes[name]]
        return lambda entity: None if (value := getattr(entity, name, None)) is None else write(value)


def settings_of(told: object) -> Value:
    """Return the settings of a table as a map. Whole numbers have the type of the other counts of entities."""
    return None if not isinstance(told, PlainSettings) else _wide(told.plain())


def _wide(value: object) -> Any:
    if isinstance(value, dict):
        return {name: _wide(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_wide(each) for each in value]
    return ULong(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _typed(cls: type) -> dict[str, Primitive]:
    """Return the AMQP types of the fields of a class of statistics."""
    hints = get_type_hints(cls)
    return {item.name: _primitive(hints[item.name]) for item in fields(cls)}


def _primitive(hint: Any) -> Primitive:
    """Return the AMQP type for a type hint. Raises: TypeError: there is none."""
    if isinstance(hint, types.UnionType):
        (hint,) = (option for option in get_args(hint) if option is not types.NoneType)
    hint = get_origin(hint) or hint
    for cls, primitive in _PRIMITIVES:
        if issubclass(hint, cls):
            return primitive
    raise TypeError(f"no AMQP type for {hint}")


def _numbered(entity: ConnectionStatistics | LaneStatistics | LinkStatistics | TerminusStatistics) -> str:
    return f"/{entity.number}"


def _named(
    entity: AddressStatistics | ConnectorStatistics | ListenerStatistics | NodeStatistics | TableStatistics,
) -> str:
    # A name may contain any character. Only a tenant stands before its /, so no name can imitate a tenant.
    if isinstance(entity, ConnectorStatistics | ListenerStatistics | TableStatistics):
        return f"/{entity.name}"
    tenant, name = entity.tenant, without_secret(entity.name)
    return f"@{quote(tenant, safe='')}/{name}" if tenant else f"/{name}"


def _user(entity: UserStatistics) -> str:
    return f"/{entity.name}" if entity.listener is None else f"@{quote(entity.listener, safe='')}/{entity.name}"


def _public_name(entity: AddressStatistics | NodeStatistics) -> str:
    return without_secret(entity.name)


def _advertised(entity: AdvertStatistics) -> str:
    return _of_router(entity, entity.name)


def _of_router(entity: AdvertStatistics | DisagreementStatistics, name: str) -> str:
    # The name comes last and may contain any character; the quoted router id before it is unambiguous.
    tenant = f"@{quote(entity.tenant, safe='')}" if entity.tenant else ""
    return f"{tenant}/{quote(entity.router, safe='')}/{name}"


def _limit(entity: LimitStatistics | RateStatistics) -> str:
    # The quoted parts are unambiguous, whatever characters a user's name has.
    owner = ("user", entity.user) if entity.user is not None else ("host", entity.host)
    if isinstance(entity, RateStatistics) and entity.address is not None:
        owner = ("address", without_secret(entity.address))
    whose = "" if owner[1] is None else f"/{owner[0]}/{quote(owner[1], safe='')}"
    tenant = f"@{quote(entity.tenant, safe='')}" if entity.tenant else ""
    return f"{tenant}/{entity.limit}{whose}"


def _meshes(told: Statistics) -> Sequence[MeshStatistics]:
    return (told.mesh,) if told.mesh is not None else ()


def _once(kind: str) -> EntityType:
    """Return the type of a table that is there once: it bears the name of its type."""

    def tables(told: Statistics) -> Sequence[TableStatistics]:
        return tuple(each for each in told.tables if each.name == kind)

    return EntityType(kind, TableStatistics, tables, _named, called=lambda e: e.name)


TYPES: Final[Mapping[str, EntityType]] = {
    each.name: each
    for each in (
        EntityType("router", RouterStatistics, lambda s: (s.router,), lambda e: f"/{e.id}", called=lambda e: e.id),
        EntityType(
            "listener", ListenerStatistics, lambda s: s.listeners, _named, called=lambda e: e.name, changeable=["cost"]
        ),
        EntityType(
            "connector",
            ConnectorStatistics,
            lambda s: s.connectors,
            _named,
            called=lambda e: e.name,
            changeable=["cost"],
        ),
        EntityType(
            "container-link",
            ContainerLinkStatistics,
            lambda s: s.container_links,
            lambda e: f"/{e.name}",
            called=lambda e: e.name,
        ),
        EntityType("policy", PolicyStatistics, lambda s: s.policies, lambda e: f"/{e.file}"),
        EntityType("connection", ConnectionStatistics, lambda s: s.connections, _numbered, removable=True),
        EntityType("link", LinkStatistics, lambda s: s.links, _numbered, called=lambda e: e.name, removable=True),
        EntityType(
            "terminus", TerminusStatistics, lambda s: s.termini, _numbered, called=lambda e: e.name, removable=True
        ),
        EntityType("address", AddressStatistics, lambda s: s.addresses, _named, called=_public_name),
        EntityType("node", NodeStatistics, lambda s: s.nodes, _named, called=_public_name),
        EntityType("address-pattern", TableStatistics, lambda s: s.address_patterns, _named, called=lambda e: e.name),
        *(_once(kind) for kind in ("elsewhere", "log", "telemetry", "metrics", "tracing", "resumption")),
        EntityType("user", UserStatistics, lambda s: s.users, _user, called=lambda e: e.name, by_type=True),
        EntityType("limit", LimitStatistics, lambda s: s.limits, _limit, called=lambda e: e.limit),
        EntityType("rate", RateStatistics, lambda s: s.rates, _limit, called=lambda e: e.limit),
        EntityType("mesh", MeshStatistics, _meshes, lambda e: f"/{e.id}", called=lambda e: e.id),
        EntityType(
            "neighbour",
            NeighbourStatistics,
            lambda s: s.neighbours,
            lambda e: f"/{e.connection}",
            called=lambda e: e.router,
            changeable=["cost"],
        ),
        EntityType("route", RouteStatistics, lambda s: s.routes, lambda e: f"/{e.router}", called=lambda e: e.router),
        EntityType("lane", LaneStatistics, lambda s: s.lanes, _numbered, called=lambda e: e.name),
        EntityType("advert", AdvertStatistics, lambda s: s.adverts, _advertised, called=lambda e: e.name),
        EntityType(
            "disagreement",
            DisagreementStatistics,
            lambda s: s.disagreements,
            lambda e: _of_router(e, without_secret(e.address)),
        ),
    )
}
