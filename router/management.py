"""`$management`: what a router tells of itself, asked for in messages.

The requests and responses are those of AMQP Management (working draft): QUERY and READ, and the operations that say
which types, attributes and operations there are. Nothing can be changed. The types are the classes of `statistics.py`;
their fields are the attributes, by the same names.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints
from urllib.parse import quote

from amqpmesh.policies.access import RESERVED
from amqpmesh.router.amqp.codec import encode
from amqpmesh.router.amqp.counting import MAX_VALUES
from amqpmesh.router.amqp.encoder import VALUE_WRITERS
from amqpmesh.router.amqp.types import Array, Int, Primitive, ULong
from amqpmesh.router.attaching import DYNAMIC
from amqpmesh.router.message import Message
from amqpmesh.router.statistics import (
    AddressStatistics,
    ConnectionStatistics,
    LinkStatistics,
    ListenerStatistics,
    NodeStatistics,
    RouterStatistics,
    Statistics,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from amqpmesh.router.amqp.types import Value
    from amqpmesh.router.steps import Steps

ADDRESS: Final = f"{RESERVED}management"
"""The address that requests are sent to."""

PREFIX: Final = "org.amqpmesh."
"""What the names of our types begin with; requests may leave it out."""

NODE: Final = "org.amqp.management"
"""The type of the management node, which is an entity, too."""

PAGE: Final = 500
"""Entities that one answer to a QUERY has at most; `offset` goes on from there."""

PAGE_SIZE: Final = 256 * 2**10
"""Octets after which an answer has no further entity: names may be long."""

PAGE_VALUES: Final = MAX_VALUES * 3 // 4
"""Values of the rows of an answer at most, so that clients that count them decode it without asking for more."""

MAX_ATTRIBUTE_NAMES: Final = 200
"""Those that a QUERY may ask for; there are not half as many."""

OK, BAD_REQUEST, NOT_FOUND, NOT_ALLOWED, NOT_IMPLEMENTED = 200, 400, 404, 405, 501

_DESCRIPTIONS: Final = {
    OK: "OK",
    BAD_REQUEST: "Bad Request",
    NOT_FOUND: "Not Found",
    NOT_ALLOWED: "Method Not Allowed",
    NOT_IMPLEMENTED: "Not Implemented",
}

#: Attributes that each entity has.
_COMMON: Final = {"name": Primitive.STRING, "identity": Primitive.STRING, "type": Primitive.STRING}

_PRIMITIVES: Final[tuple[tuple[type, Primitive], ...]] = (
    (bool, Primitive.BOOLEAN),
    (int, Primitive.ULONG),
    (float, Primitive.DOUBLE),
    (str, Primitive.STRING),
)
_WRITTEN: Final[Mapping[Primitive, Callable[[Any], Value]]] = {
    Primitive.BOOLEAN: bool,
    Primitive.ULONG: ULong,
    Primitive.DOUBLE: float,
    Primitive.STRING: str,
}


class RefusedError(Exception):
    """The response has this status and no body worth anything."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A value that is encoded already, as a part of others."""

    octets: bytes


VALUE_WRITERS[_Encoded] = lambda value, _depth: value.octets


def without_secret(address: str) -> str:
    """The name of an address, as anybody may know it.

    Whoever knows the address of a dynamic node can send there: its random part is between its maker and those that the
    maker tells. A digest stands in its place, so that nodes are told apart.
    """
    if not address.startswith(f"{DYNAMIC}/"):
        return address
    made_for, _, secret = address.rpartition("/")
    return f"{made_for}/*{hashlib.blake2b(secret.encode(), digest_size=6).hexdigest()}"


class EntityType:
    """Entities of one class, and how they are named and read."""

    def __init__(
        self,
        kind: str,
        cls: type,
        entities: Callable[[Statistics], Sequence[Any]],
        key: Callable[[Any], str],
        *,
        called: Callable[[Any], str] | None = None,
    ) -> None:
        """Args: kind: its name without prefix. key: what the identity goes on with, unique among these entities.
        called: their name, if it is not the identity.
        """
        self.name = f"{PREFIX}{kind}"
        self.entities = entities
        self.attributes: dict[str, Primitive] = {**_COMMON, **_typed(cls)}
        self._kind = kind
        self._key = key
        self._called = called

    def identity(self, entity: Any) -> str:
        """Unique among all entities of a router."""
        return f"{self._kind}{self._key(entity)}"

    def entity_name(self, entity: Any) -> str:
        """What people call it; not always unique."""
        return self._called(entity) if self._called is not None else self.identity(entity)

    def reader(self, names: Iterable[str]) -> Callable[[Any], list[Value]]:
        """What reads these attributes of an entity; null for those that it has not."""
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
        write = _WRITTEN[self.attributes[name]]
        return lambda entity: None if (value := getattr(entity, name)) is None else write(value)


def _typed(cls: type) -> dict[str, Primitive]:
    """The AMQP types of the fields of a class of statistics."""
    hints = get_type_hints(cls)
    return {item.name: _primitive(hints[item.name]) for item in fields(cls)}


def _primitive(hint: Any) -> Primitive:
    """Raises: TypeError: there is none for it."""
    if isinstance(hint, types.UnionType):
        (hint,) = (option for option in get_args(hint) if option is not types.NoneType)
    for cls, primitive in _PRIMITIVES:
        if issubclass(hint, cls):
            return primitive
    raise TypeError(f"no AMQP type for {hint}")


def _numbered(entity: ConnectionStatistics | LinkStatistics) -> str:
    return f"/{entity.number}"


def _named(entity: AddressStatistics | ListenerStatistics | NodeStatistics) -> str:
    # A name may hold anything, but nothing stands before its /, so no tenant can be mistaken for a part of one.
    if isinstance(entity, ListenerStatistics):
        return f"/{entity.name}"
    tenant, name = entity.tenant, without_secret(entity.name)
    return f"@{quote(tenant, safe='')}/{name}" if tenant else f"/{name}"


def _called(entity: AddressStatistics | NodeStatistics) -> str:
    return without_secret(entity.name)


TYPES: Final[Mapping[str, EntityType]] = {
    each.name: each
    for each in (
        EntityType("router", RouterStatistics, lambda s: (s.router,), lambda e: f"/{e.id}", called=lambda e: e.id),
        EntityType("listener", ListenerStatistics, lambda s: s.listeners, _named, called=lambda e: e.name),
        EntityType("connection", ConnectionStatistics, lambda s: s.connections, _numbered),
        EntityType("link", LinkStatistics, lambda s: s.links, _numbered, called=lambda e: e.name),
        EntityType("address", AddressStatistics, lambda s: s.addresses, _named, called=_called),
        EntityType("node", NodeStatistics, lambda s: s.nodes, _named, called=_called),
    )
}


def respond(request: Message, statistics: Statistics) -> Steps[Message]:
    """The answer to a request, in steps, since there may be much to tell; an error is an answer, too.

    Its `to` and its correlation-id are the request's reply-to and correlation-id, or message-id where it has none.
    """
    properties = request.application_properties
    status = OK
    try:
        operation = _text(properties, "operation")
        if operation is None:
            raise RefusedError(BAD_REQUEST, "the application-property `operation` is missing")
        if operation in _SEARCHES:
            body = yield from _SEARCHES[operation](request, statistics)
        else:
            body = _operation(operation)(request)
        description = _DESCRIPTIONS[OK]
    except RefusedError as refusal:
        status, body, description = refusal.status, {}, f"{_DESCRIPTIONS[refusal.status]}: {refusal}"
    return Message(
        body,
        to=request.reply_to,
        correlation_id=request.message_id if request.correlation_id is None else request.correlation_id,
        application_properties={"statusCode": Int(status), "statusDescription": description},
    )


def _operation(name: str) -> Callable[[Message], Value]:
    operation = _OPERATIONS.get(name)
    if operation is not None:
        return operation
    if name in _CHANGING:
        raise RefusedError(NOT_ALLOWED, f"{name}: nothing can be changed here")
    raise RefusedError(NOT_IMPLEMENTED, f"there is no operation {name}")


# ----------------------------------------------------------------------------------------------------- the operations


def _query(request: Message, statistics: Statistics) -> Steps[Value]:
    """Some attributes of many entities, as a table: `attributeNames`, and a row for each in `results`.

    The rows are encoded as they are read: that takes as long as reading them, and would be one long step at the end.
    """
    kinds = _entity_types(request)
    names = _attribute_names(request) or list(dict.fromkeys(name for kind in kinds for name in kind.attributes))
    offset = _number(request, "offset") or 0
    asked = _number(request, "count")
    count = min(PAGE if asked is None else asked, PAGE, PAGE_VALUES // (len(names) + 1))
    readers = {kind: kind.reader(names) for kind in kinds}
    results: list[Any] = []
    size = 0
    for kind, entity in _page(kinds, statistics, offset, count):
        row = encode(readers[kind](entity))
        size += len(row)
        if results and size > PAGE_SIZE:
            break
        results.append(_Encoded(row))
        yield
    return {"attributeNames": names, "results": results}


def _page(
    kinds: Iterable[EntityType], statistics: Statistics, offset: int, count: int
) -> Iterator[tuple[EntityType, Any]]:
    """`count` entities, after the first `offset` of all."""
    for kind in kinds:
        entities = kind.entities(statistics)
        page = entities[offset : offset + count]
        offset = max(0, offset - len(entities))
        count -= len(page)
        for entity in page:
            yield kind, entity


def _read(request: Message, statistics: Statistics) -> Steps[Value]:
    """All attributes of one entity."""
    properties = request.application_properties
    name, identity, wanted = (_text(properties, each) for each in ("name", "identity", "type"))
    if name is None and identity is None:
        raise RefusedError(BAD_REQUEST, "READ needs a `name` or an `identity`")
    if "self" in (name, identity) and wanted in (None, NODE):
        return {"name": "self", "identity": "self", "type": NODE}
    found: list[tuple[EntityType, Any]] = []
    for kind in [_entity_type(wanted)] if wanted is not None else TYPES.values():
        for entity in kind.entities(statistics):
            if identity in (None, kind.identity(entity)) and name in (None, kind.entity_name(entity)):
                found.append((kind, entity))
            yield
    if not found:
        raise RefusedError(NOT_FOUND, "there is no such entity")
    if len(found) > 1:
        raise RefusedError(BAD_REQUEST, f"{len(found)} entities have that name: say its `type`, or its `identity`")
    kind, entity = found[0]
    return dict(zip(kind.attributes, kind.reader(kind.attributes)(entity), strict=True))


def _get_types(request: Message) -> Value:
    """The types, each with those that it extends: none."""
    return {name: [] for name in _type_names(request)}


def _get_attributes(request: Message) -> Value:
    """The names of the attributes of each type."""
    return {name: list(TYPES[name].attributes if name in TYPES else _COMMON) for name in _type_names(request)}


def _get_operations(request: Message) -> Value:
    """The operations of each type, with the names of their arguments."""
    reading: Value = {"READ": ["name", "identity"]}
    return {name: reading if name in TYPES else dict(_ARGUMENTS) for name in _type_names(request)}


def _get_annotations(request: Message) -> Value:
    """The annotations of each type: none."""
    return {name: [] for name in _type_names(request)}


def _get_mgmt_nodes(_request: Message) -> Value:
    """Other management nodes that this one knows: none."""
    return []


#: The operations that look through what there is, in steps.
_SEARCHES: Final[Mapping[str, Callable[[Message, Statistics], Steps[Value]]]] = {"QUERY": _query, "READ": _read}
_OPERATIONS: Final[Mapping[str, Callable[[Message], Value]]] = {
    "GET-TYPES": _get_types,
    "GET-ATTRIBUTES": _get_attributes,
    "GET-OPERATIONS": _get_operations,
    "GET-ANNOTATIONS": _get_annotations,
    "GET-MGMT-NODES": _get_mgmt_nodes,
}
_CHANGING: Final = frozenset({"CREATE", "UPDATE", "DELETE", "REGISTER", "DEREGISTER"})
_ARGUMENTS: Final[Mapping[str, Value]] = {
    "QUERY": ["entityType", "offset", "count"],
    "READ": ["name", "identity"],
    "GET-TYPES": ["entityType"],
    "GET-ATTRIBUTES": ["entityType"],
    "GET-OPERATIONS": ["entityType"],
    "GET-ANNOTATIONS": ["entityType"],
    "GET-MGMT-NODES": [],
}


# -------------------------------------------------------------------------------------------------------- what they say


def _text(properties: Mapping[str, Value], name: str) -> str | None:
    value = properties.get(name)
    if value is not None and not isinstance(value, str):
        raise RefusedError(BAD_REQUEST, f"`{name}` is no string")
    return value


def _number(request: Message, name: str) -> int | None:
    value = request.application_properties.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RefusedError(BAD_REQUEST, f"`{name}` is no count")
    return value


def _entity_type(name: str) -> EntityType:
    kind = TYPES.get(name) or TYPES.get(f"{PREFIX}{name}")
    if kind is None:
        raise RefusedError(NOT_FOUND, f"there is no type {name}")
    return kind


def _entity_types(request: Message) -> Sequence[EntityType]:
    """The type that is asked for, or all."""
    name = _text(request.application_properties, "entityType")
    return [_entity_type(name)] if name is not None else list(TYPES.values())


def _type_names(request: Message) -> list[str]:
    """As `_entity_types`, with that of the management node."""
    name = _text(request.application_properties, "entityType")
    if name is None:
        return [NODE, *TYPES]
    return [name] if name == NODE else [_entity_type(name).name]


def _attribute_names(request: Message) -> list[str]:
    """Those that are asked for; none: all."""
    body = request.body
    if not isinstance(body, Mapping):
        if body is None or body in (b"", ""):
            return []
        raise RefusedError(BAD_REQUEST, "the body is no map")
    names = body.get("attributeNames") or []
    if isinstance(names, Array):
        names = list(names.values)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RefusedError(BAD_REQUEST, "`attributeNames` is no list of strings")
    if len(names) > MAX_ATTRIBUTE_NAMES:
        raise RefusedError(BAD_REQUEST, f"`attributeNames` are more than {MAX_ATTRIBUTE_NAMES}")
    return names
